//! At most one line a second, with a count of the lines that were left out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Decides which events of one kind are logged.
#[derive(Debug)]
pub(crate) struct LogLimit {
    begun: Instant,
    /// When the next line may come, in milliseconds after `begun`.
    next_ms: AtomicU64,
    left_out: AtomicU64,
}

impl Default for LogLimit {
    fn default() -> LogLimit {
        LogLimit {
            begun: Instant::now(),
            next_ms: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }
}

impl LogLimit {
    /// `Some`: log the event, and say how many before it were left out. `None`: leave it out.
    pub(crate) fn admit(&self) -> Option<u64> {
        self.admit_at(self.begun.elapsed())
    }

    fn admit_at(&self, now: Duration) -> Option<u64> {
        let now_ms = now.as_millis() as u64;
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        let after = now_ms + INTERVAL.as_millis() as u64;
        // Of threads that come at the same moment, the exchange admits one.
        let is_admitted = now_ms >= next_ms
            && self
                .next_ms
                .compare_exchange(next_ms, after, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_admitted {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_a_second_is_admitted_and_tells_how_many_were_not() {
        let limit = LogLimit::default();
        let at = |ms| limit.admit_at(Duration::from_millis(ms));
        assert_eq!(at(5), Some(0));
        assert_eq!(at(6), None);
        assert_eq!(at(1_004), None);
        assert_eq!(at(1_005), Some(2));
        assert_eq!(at(9_000), Some(0));
    }
}
