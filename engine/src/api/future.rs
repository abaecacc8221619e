//! Commits as futures: visible at once, resolved when they are durable.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::api::store::Handle;
use crate::commit::Commit;
use crate::commit::background::sync_loop;
use crate::error::{Reason, Result};
use crate::settings::Durability;

/// A commit that is made, and visible, but perhaps not yet durable. It resolves when it is as durable as was asked for.
/// Dropping it takes nothing back. It needs no particular executor. A thread of the store syncs for it; where the
/// system gives none, polling it does, and takes as long as a sync does.
///
/// # Errors
/// Resolves to [`Reason::Unknown`] when the sync failed, and to [`Reason::NotSynced`] when another process was stopped
/// and keeps it from being known.
#[must_use = "the commit is made, but only the future tells when it is durable"]
#[derive(Debug)]
pub struct CommitFuture {
    handle: Arc<Handle>,
    commit: Commit,
    durability: Durability,
    /// How many attempts to sync for futures had come to an end when it first asked for one. What came of those is not
    /// an answer to it: the process that was in the way may have gone on since.
    asked_after: Option<u64>,
}

impl CommitFuture {
    pub(crate) fn new(handle: &Arc<Handle>, commit: Commit, durability: Durability) -> CommitFuture {
        let runs = &handle.core.syncer_runs;
        if durability == Durability::Synced && !runs.load(Ordering::Acquire) {
            handle.opened.spawn("duramen-sync", runs, sync_loop);
            // A future that arrived while the thread failed to start has no thread that wakes it.
            if !runs.load(Ordering::Acquire) {
                handle.core.wake_futures();
            }
        }
        CommitFuture {
            handle: handle.clone(),
            commit,
            durability,
            asked_after: None,
        }
    }

    /// The commit, whether it is durable or not.
    pub fn commit(&self) -> &Commit {
        &self.commit
    }
}

impl Future for CommitFuture {
    type Output = Result<Commit>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Commit>> {
        let this = self.get_mut();
        let (core, number) = (&this.handle.core, this.commit.number);
        let attempts = *this.asked_after.get_or_insert_with(|| core.sync_attempts());
        let outcome = || {
            if this.durability == Durability::Written || core.control().synced.0.load(Ordering::Acquire) >= number {
                return Some(Ok(this.commit.clone()));
            }
            let unknown = || {
                Reason::Unknown {
                    commit: number,
                    cause: core.cause(),
                }
                .into()
            };
            let error = core
                .is_poisoned()
                .then(unknown)
                .or_else(|| core.was_given_up(number, attempts));
            error.map(Err)
        };
        if let Some(outcome) = outcome() {
            return Poll::Ready(outcome);
        }
        core.waiting
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push((number, context.waker().clone()));
        core.ask(|work| work.sync = true);
        if !core.syncer_runs.load(Ordering::Acquire) {
            // There is no thread to be had: late is better than never.
            let synced = core.wait_durable(number);
            core.wake_futures();
            return Poll::Ready(synced.map(|()| this.commit.clone()));
        }
        // The sync may have ended between the first look and the registration.
        outcome().map_or(Poll::Pending, Poll::Ready)
    }
}
