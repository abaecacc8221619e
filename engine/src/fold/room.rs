//! Finding room by folding: for calls that bring something and find too little.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::core::Core;
use crate::error::{Error, Reason, Result, unless_full};

/// How often a call that needs room waits for what another thread or process folds.
pub(crate) const FOLDS_AWAITED: u32 = 3;

impl Core {
    /// Tries again what brings something and found too little room, after what is deleted has come free: pages that
    /// waited for a durable base, and what a fold of the log frees. Waits for what others fold just now, a few times
    /// and up to [`crate::Options::lock_timeout`]. A fold that did not help is not made again before there is another
    /// commit: calls that meet a disk that is full of data are refused at once. `error`, if it is another one, stays.
    pub(crate) fn after_folding<T>(&self, error: Error, mut again: impl FnMut() -> Result<T>) -> Result<T> {
        // Not where snapshots hold the log, or a file may not grow: a fold is no cure for that.
        let is_full = |error: &Error| matches!(error.reason(), Reason::Full { .. } | Reason::QuotaExceeded { .. });
        let in_vain = || {
            let commit = self.control().visible.0.load(Ordering::Acquire);
            self.folded_in_vain.load(Ordering::Relaxed) == commit
        };
        let has_pending = || Ok::<_, Error>(self.space.figures()?.pending_operations > 0 && !in_vain());
        if !is_full(&error) || !(self.space.has_retired()? || has_pending()?) {
            return Err(error);
        }
        let begun = Instant::now();
        let mut progress = 0;
        let mut state = loop {
            let seen = self.progress_seen();
            if let Some(state) = self.try_hold_maintenance()? {
                break state;
            }
            // Where others fold again and again, and it does not help, the next fold does not either.
            if progress == FOLDS_AWAITED || begun.elapsed() >= self.settings.lock_timeout {
                return Err(error);
            }
            self.wait_for_progress(seen);
            progress += u32::from(self.progress_seen() != seen);
            match again() {
                Err(error) if is_full(&error) => {}
                done => return done,
            }
        };
        // A snapshot may have been dropped that held what is free now.
        self.free_what_is_counted_on(&mut state)?;
        match again() {
            Err(error) if is_full(&error) => {}
            done => return done,
        }
        if !has_pending()? {
            return Err(error);
        }
        let commit = self.control().visible.0.load(Ordering::Acquire);
        let folded = self.maintain_holding(&mut state);
        drop(state);
        if unless_full(folded)?.is_some() {
            // Deletions need it next.
            unless_full(self.keep_spare())?;
        }
        let done = again();
        if done.as_ref().is_err_and(is_full) {
            self.folded_in_vain.store(commit, Ordering::Relaxed);
        }
        done
    }
}
