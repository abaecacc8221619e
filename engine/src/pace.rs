//! Pacing: when commits come faster than folds move them into the base, each commit is slowed down in proportion, so
//! that the log does not run full and stop everybody for as long as a fold takes.
//!
//! The folding thread measures what a fold costs per byte of log. Once several generations wait to be folded, commits
//! are spread over time at that rate (a token bucket); the more generations wait, the slower. With nothing waiting a
//! commit pays one load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest pause of one commit.
const PAUSE_MAX: Duration = Duration::from_millis(5);
/// Shorter pauses are left to the commits that follow: the clock and the scheduler count in milliseconds.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// See the module. All orderings are relaxed: the numbers only steer speed.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Nanoseconds that the last fold took per KiB of log.
    cost: AtomicU64,
    /// Share of that cost that commits are made to wait, in percent.
    percent: AtomicU64,
    /// When the next byte may come, in nanoseconds of the store's clock.
    next: AtomicU64,
}

impl Pace {
    /// Notes what a fold took.
    pub(crate) fn measured(&self, took: Duration, bytes: u64) {
        if let Some(cost) = (took.as_nanos() as u64).saturating_mul(1024).checked_div(bytes) {
            self.cost.store(cost, Ordering::Relaxed);
        }
    }

    /// Notes how many generations wait to be folded.
    pub(crate) fn waiting(&self, generations: usize) {
        let percent = match generations {
            0..=2 => 0,
            3 => 80,
            4 => 110,
            _ => 150,
        };
        self.percent.store(percent, Ordering::Relaxed);
    }

    /// The pause that a commit of `bytes` is to make.
    pub(crate) fn pause(&self, bytes: u64, now: impl Fn() -> Duration) -> Option<Duration> {
        let percent = self.percent.load(Ordering::Relaxed);
        if percent == 0 {
            return None;
        }
        let now = now().as_nanos() as u64;
        let share = bytes * self.cost.load(Ordering::Relaxed) / 1024 * percent / 100;
        let mut due = now;
        let _ = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            due = next.clamp(now, now + PAUSE_MAX.as_nanos() as u64) + share;
            Some(due)
        });
        let pause = Duration::from_nanos(due - now);
        (pause >= PAUSE_MIN).then(|| pause.min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_pause_only_while_generations_wait_and_longer_the_more_there_are() {
        let pace = Pace::default();
        pace.measured(Duration::from_secs(1), 1 << 20);
        let total = |waiting| {
            pace.waiting(waiting);
            (0..100)
                .filter_map(|_| pace.pause(4096, || Duration::ZERO))
                .sum::<Duration>()
        };
        assert_eq!(total(2), Duration::ZERO);
        let (three, five) = (total(3), total(5));
        assert!(Duration::ZERO < three && three <= five);
    }

    #[test]
    fn a_commit_never_pauses_longer_than_the_limit() {
        let pace = Pace::default();
        pace.measured(Duration::from_secs(100), 1024);
        pace.waiting(5);
        assert_eq!(pace.pause(1 << 20, || Duration::from_secs(7)), Some(PAUSE_MAX));
    }
}
