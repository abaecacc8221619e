//! How often processes left the store, so that what they had can be taken back at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duramen_engine::Store;

/// How often the processes are looked at, at most: a look costs a system call for each.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many processes left, as far as is known. All groups of a process share it.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// When they were looked at, in milliseconds of the monotonic clock, plus one; 0: never.
    looked: AtomicU64,
    departed: AtomicU64,
}

impl Presence {
    /// How many processes have left the store or died since its first opening. Another number than before: look which.
    pub(crate) fn departed(&self, store: &Store) -> u64 {
        let now = store.monotonic_clock().as_millis() as u64 + 1;
        let looked = self.looked.load(Ordering::Relaxed);
        let is_time = looked == 0 || now.saturating_sub(looked) >= LOOK_EVERY.as_millis() as u64;
        // One of the threads that come at the same time looks.
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
