//! What the pins of a process are for, as statistics show it.

use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::region::Pin;

/// What a pin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Snapshot = 0,
    Transaction = 1,
    Changes = 2,
}

/// Notes in a pin's slot whose it is, for statistics.
pub(crate) fn describe(core: &Core, pin: &Pin, purpose: Purpose) {
    let slot = core.region.pinned(pin);
    slot.purpose.store(purpose as u32, Ordering::Relaxed);
    slot.process.store(core.process, Ordering::Relaxed);
    let since = core.platform.clock.wall().as_millis() as u64;
    slot.since.store(since, Ordering::Relaxed);
}
