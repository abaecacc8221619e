//! What a process remembers of syncs for commit futures.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::core::Core;
use crate::error::{Error, Reason};

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

impl Core {
    /// Whether waiting for a commit to be durable was given up, in an attempt that came to its end after so many
    /// others.
    pub(crate) fn was_given_up(&self, commit: u64, attempts: u64) -> Option<Error> {
        let futures = self.syncs.futures();
        let is_it = |&(newest, ..): &(u64, u32, Duration)| commit <= newest && attempts < futures.attempts;
        let (_, process, waited) = futures.given_up.filter(is_it)?;
        let reason = Reason::NotSynced {
            commit,
            process,
            waited,
        };
        Some(reason.into())
    }
}
