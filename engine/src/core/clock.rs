//! The clock that all processes of a store share, and the numbers of processes. What they are for is in `api::presence`.

use std::sync::atomic::Ordering;

use crate::core::Core;

impl Core {
    /// Called once for a region, before any other process can attach. `newest`: time of the newest commit, in microseconds.
    pub(crate) fn begin_shared_clock(&self, newest: u64, epoch: u32) {
        let clock = &self.platform.clock;
        let now = newest.max(clock.wall().as_micros() as u64);
        let base = now.wrapping_sub(clock.monotonic().as_micros() as u64);
        self.control().clock_base.store(base, Ordering::Relaxed);
        self.control().opening.store(u64::from(epoch), Ordering::Relaxed);
    }

    /// The shared clock in microseconds.
    pub(crate) fn shared_micros(&self) -> u64 {
        let base = self.control().clock_base.load(Ordering::Relaxed);
        base.wrapping_add(self.platform.clock.monotonic().as_micros() as u64)
    }

    /// The number of the process that was the `arrival`th to attach to the region.
    pub(crate) fn process_number_of(&self, arrival: u64) -> u64 {
        assert!(arrival < 1 << 32, "four billion processes attached to one region");
        self.control().opening.load(Ordering::Relaxed) << 32 | arrival
    }
}
