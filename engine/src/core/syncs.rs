//! What a process remembers of syncs for commit futures.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// What a process remembers of syncs.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    pub(crate) futures: Mutex<FutureSyncs>,
}

/// What became of syncs for futures.
#[derive(Debug, Default)]
pub(crate) struct FutureSyncs {
    /// How many attempts have come to an end.
    pub(crate) attempts: u64,
    /// The newest commit that the last one gave up on, which process was in the way, and for how long.
    pub(crate) given_up: Option<(u64, u32, Duration)>,
}

impl Syncs {
    pub(crate) fn futures(&self) -> MutexGuard<'_, FutureSyncs> {
        self.futures.lock().unwrap_or_else(|e| e.into_inner())
    }
}
