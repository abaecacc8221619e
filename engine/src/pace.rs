//! Pacing: when commits come faster than folds move them into the base, each commit is slowed down in proportion, so
//! that the log does not run full and stop everybody for as long as a fold takes.
//!
//! The simple version would let commits run until no generation is free, and then wait for the fold. This one foresees
//! that: from how far the fold has come, and from what earlier ones took, it estimates the time until the generations
//! that are being folded are free again, syncs included; from what is left of the log, how many bytes may come in that
//! time. The quotient is the price of a byte, in time. Commits that come more slowly than that pay nothing but a load;
//! the others pause (a token bucket), all in proportion to their bytes.
//!
//! The price aims at half of the log (`LogRoom::planned`): then the next fold has as much to do as this one, and the rate
//! does not change from fold to fold. A fifth of what is left is for a fold that takes longer than was foreseen. It is set again every few
//! milliseconds while the fold goes on, and when a generation is full.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Shorter pauses are left to the commits that follow: a sleep wakes up late by a good part of this.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// What a commit pauses at most for bytes of others.
const PAUSE_FOR_OTHERS_MAX: Duration = Duration::from_millis(4);
/// What a commit pauses at most for its own bytes: an estimate may be wrong.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time that was not used, and may be made up for: pauses end late.
const CREDIT: Duration = Duration::from_millis(2);
/// With less room than this, no byte gets dearer.
const ROOM_BYTES_MIN: u64 = 64 << 10;

/// Bytes that the log still takes while a fold goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogRoom {
    /// Until half of the log is filled with what this fold does not take.
    pub(crate) planned: u64,
    /// Until commits must wait for the fold.
    pub(crate) left: u64,
}

/// See the module. All orderings are relaxed: the numbers only steer speed.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Nanoseconds that a KiB of log is to take.
    price: AtomicU64,
    /// When the next byte may come, in nanoseconds of the store's clock.
    next: AtomicU64,
    fold: Mutex<Fold>,
}

/// The fold that goes on, and what earlier ones took.
#[derive(Debug, Default)]
struct Fold {
    stage: Stage,
    /// Number of the newest generation that it takes.
    newest: u32,
    /// Bytes of log that it takes.
    bytes: u64,
    /// Nanoseconds per KiB of log until the new tree is written.
    merge_cost: u64,
    /// What comes after that: making the tree durable and freeing the generations.
    rest: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// No fold goes on.
    #[default]
    Idle,
    /// Since then, and the share that is done, from 0 to 1.
    Merging(Duration, f64),
    /// The tree is written since then.
    Finishing(Duration),
}

impl Fold {
    /// Time until the generations that it takes are free.
    fn left(&self, now: Duration) -> Duration {
        match self.stage {
            Stage::Idle => Duration::ZERO,
            Stage::Merging(began, done) => {
                let expected = Duration::from_nanos(self.bytes / 1024 * self.merge_cost);
                let elapsed = now.saturating_sub(began);
                // What is left at the speed of earlier folds; the more is done, the more at that of this one.
                let left = expected.mul_f64((1.0 - done) * (1.0 - done)) + elapsed.mul_f64(1.0 - done);
                left + self.rest
            }
            Stage::Finishing(since) => {
                let elapsed = now.saturating_sub(since);
                // One that takes longer than expected is expected to take half as long again.
                self.rest.saturating_sub(elapsed).max(elapsed / 2)
            }
        }
    }
}

impl Pace {
    fn fold(&self) -> std::sync::MutexGuard<'_, Fold> {
        self.fold.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A fold of so many bytes of log begins, up to the generation of number `newest`.
    pub(crate) fn begins(&self, newest: u32, bytes: u64, now: Duration) {
        let mut fold = self.fold();
        (fold.newest, fold.bytes) = (newest, bytes);
        fold.stage = Stage::Merging(now, 0.0);
    }

    /// Number of the newest generation that the fold takes which goes on.
    pub(crate) fn newest_folding(&self) -> Option<u32> {
        let fold = self.fold();
        (!matches!(fold.stage, Stage::Idle)).then_some(fold.newest)
    }

    /// `done` of `all` operations of the fold are in the new tree.
    pub(crate) fn merged(&self, done: u64, all: u64) {
        if let Stage::Merging(_, share) = &mut self.fold().stage {
            *share = (done as f64 / all.max(1) as f64).min(1.0);
        }
    }

    /// The new tree is written.
    pub(crate) fn finishes(&self, now: Duration) {
        let mut fold = self.fold();
        if let Stage::Merging(began, _) = fold.stage
            && let Some(cost) = (now.saturating_sub(began).as_nanos() as u64).checked_div(fold.bytes / 1024)
        {
            fold.merge_cost = mean(fold.merge_cost, cost);
        }
        fold.stage = Stage::Finishing(now);
    }

    /// The fold is over, or has failed: commits pay nothing.
    pub(crate) fn ends(&self, now: Duration) {
        let mut fold = self.fold();
        if let Stage::Finishing(since) = fold.stage {
            let rest = mean(fold.rest.as_nanos() as u64, now.saturating_sub(since).as_nanos() as u64);
            fold.rest = Duration::from_nanos(rest);
        }
        fold.stage = Stage::Idle;
        self.price.store(0, Ordering::Relaxed);
    }

    /// Sets the price to what the log has left. To be called now and then while the fold goes on.
    pub(crate) fn set_price(&self, now: Duration, room: LogRoom) {
        let fold = self.fold();
        let room = room
            .planned
            .min(room.left / 5 * 4)
            .max(room.left / 2)
            .max(ROOM_BYTES_MIN);
        let price = fold.left(now).as_nanos() as u64 / (room / 1024);
        self.price.store(price, Ordering::Relaxed);
    }

    /// The pause that a commit of `bytes` is to make.
    pub(crate) fn pause(&self, bytes: u64, now: impl Fn() -> Duration) -> Option<Duration> {
        let price = self.price.load(Ordering::Relaxed);
        if price == 0 {
            return None;
        }
        let nanos = |time: Duration| time.as_nanos() as u64;
        let now = nanos(now());
        let share = (bytes.saturating_mul(price) / 1024).min(nanos(PAUSE_MAX));
        let mut due = now;
        let _ = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            let least = now.saturating_sub(nanos(CREDIT));
            due = next.clamp(least, now + nanos(PAUSE_FOR_OTHERS_MAX)) + share;
            Some(due)
        });
        let pause = Duration::from_nanos(due.saturating_sub(now));
        (pause >= PAUSE_MIN).then_some(pause)
    }
}

/// The mean of a new measurement and those before it, which are zero at first.
fn mean(before: u64, new: u64) -> u64 {
    if before == 0 { new } else { before / 2 + new / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn second(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn room(mebibytes: u64) -> LogRoom {
        LogRoom {
            planned: mebibytes * MIB,
            left: mebibytes * MIB * 5 / 4,
        }
    }

    /// A pace that has seen a fold of 64 MiB take two seconds, and one for the syncs.
    fn measured() -> Pace {
        let pace = Pace::default();
        pace.begins(1, 64 * MIB, second(0.0));
        pace.set_price(second(0.0), room(128));
        pace.finishes(second(2.0));
        pace.set_price(second(2.0), room(128));
        pace.ends(second(3.0));
        pace
    }

    /// How long so many MiB of commits of 4 KiB take, when nothing else slows them down.
    fn time_for(pace: &Pace, mebibytes: u64, begin: Duration) -> Duration {
        let mut now = begin;
        for _ in 0..mebibytes * 256 {
            now += pace.pause(4096, || now).unwrap_or_default();
        }
        now - begin
    }

    fn is_about(time: Duration, seconds: f64) -> bool {
        (time.as_secs_f64() - seconds).abs() < seconds / 50.0 + 0.01
    }

    #[test]
    fn commits_pay_only_while_a_fold_goes_on() {
        let pace = measured();
        assert_eq!(time_for(&pace, 16, second(4.0)), Duration::ZERO);
        pace.begins(1, 64 * MIB, second(4.0));
        pace.set_price(second(4.0), room(128));
        assert!(time_for(&pace, 16, second(4.0)) > Duration::ZERO);
        pace.ends(second(5.0));
        assert_eq!(time_for(&pace, 16, second(5.0)), Duration::ZERO);
    }

    #[test]
    fn the_planned_room_is_full_when_the_fold_is_expected_to_end() {
        let pace = measured();
        pace.begins(1, 128 * MIB, second(4.0));
        pace.set_price(second(4.0), room(128));
        // Twice the bytes: four seconds, and one for the syncs.
        assert!(is_about(time_for(&pace, 128, second(4.0)), 5.0));
    }

    #[test]
    fn what_this_fold_takes_counts_more_the_further_it_has_come() {
        let pace = measured();
        pace.begins(1, 64 * MIB, second(4.0));
        pace.set_price(second(4.0), room(128));
        pace.merged(500, 1000);
        pace.set_price(second(8.0), room(128));
        // Half is done in four seconds where one was expected: between 0.5 s + 1 s and 4 s + 1 s, the nearer to what is seen.
        assert!(is_about(time_for(&pace, 128, second(8.0)), 3.5));
        pace.merged(1000, 1000);
        pace.set_price(second(12.0), room(128));
        assert!(is_about(time_for(&pace, 128, second(12.0)), 1.0));
    }

    #[test]
    fn syncs_that_take_too_long_make_bytes_dearer() {
        let pace = measured();
        pace.begins(1, 64 * MIB, second(4.0));
        pace.set_price(second(4.0), room(128));
        pace.finishes(second(6.0));
        pace.set_price(second(6.0), room(128));
        assert!(is_about(time_for(&pace, 128, second(6.0)), 1.0));
        pace.set_price(second(16.0), room(128));
        assert!(is_about(time_for(&pace, 128, second(16.0)), 5.0));
    }

    #[test]
    fn the_less_room_the_dearer_but_never_without_limit() {
        let pace = measured();
        pace.begins(1, 64 * MIB, second(4.0));
        pace.set_price(second(4.0), room(8));
        assert!(is_about(time_for(&pace, 8, second(4.0)), 3.0));
        pace.set_price(second(4.0), room(0));
        // Three seconds for the 64 KiB that there always are, and what was not used before is made up for.
        let part = pace.pause(4096, || second(9.0)).expect("a pause") + CREDIT;
        assert!(is_about(part, 3.0 * 4096.0 / 65536.0));
        assert_eq!(pace.pause(64 * MIB, || second(19.0)), Some(PAUSE_MAX - CREDIT));
    }

    #[test]
    fn nobody_pauses_long_for_others() {
        let pace = measured();
        pace.begins(1, 64 * MIB, second(4.0));
        pace.set_price(second(4.0), room(8));
        let of_others = pace.pause(MIB, || second(5.0)).expect("a pause");
        assert!(of_others > second(0.3));
        let own = pace.pause(100, || second(5.0)).expect("a pause");
        assert!(own < second(0.005));
    }

    #[test]
    fn pauses_that_end_late_are_made_up_for() {
        let pace = measured();
        pace.begins(1, 64 * MIB, second(4.0));
        pace.set_price(second(4.0), room(128));
        let mut now = second(4.0);
        for _ in 0..128 * 256 {
            if let Some(pause) = pace.pause(4096, || now) {
                now += pause + Duration::from_micros(500);
            }
        }
        assert!(is_about(now - second(4.0), 3.0));
    }
}
