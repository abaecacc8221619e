//! Counts processes that left the store, so that their leases can be taken back at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duramen_engine::Store;

/// Minimum time between two checks of the processes: a check costs a system call for each.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Number of processes that left, as far as is known. All groups of a process share it.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Time of the last check, in milliseconds of the monotonic clock, plus one; 0: no check yet.
    looked: AtomicU64,
    departed: AtomicU64,
}

impl Presence {
    /// Number of processes that have left the store or died since its first opening. When it changes, the caller checks
    /// which.
    pub(crate) fn departed(&self, store: &Store) -> u64 {
        let now = store.monotonic_clock().as_millis() as u64 + 1;
        let looked = self.looked.load(Ordering::Relaxed);
        let is_time = looked == 0 || now.saturating_sub(looked) >= LOOK_EVERY.as_millis() as u64;
        // One of several concurrent threads makes the check.
        let takes = |_| {
            self.looked
                .compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        if is_time && Some(()).is_some_and(takes) {
            self.departed.store(store.processes_departed(), Ordering::Relaxed);
        }
        self.departed.load(Ordering::Relaxed)
    }
}
