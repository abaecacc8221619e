//! What happens in a store beside its calls, for those who operate it: the counts and the last error of work in the background
//! that `stat` shows, `tracing` events with the feature `tracing`, and counters and histograms of the `metrics` crate with the
//! feature `metrics`. Without a feature nothing of it is compiled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::core::Core;
use crate::error::{Error, Kind};

/// An error that no caller was told, because the work was done in the background: a fold, trimming the topics.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackgroundError {
    /// What was being done.
    pub during: &'static str,
    /// The error.
    pub error: String,
    /// What can be done about it.
    pub kind: Kind,
    /// How long ago it happened.
    pub age: Duration,
    /// Such errors since the store was opened, this one included.
    pub count: u64,
}

/// A count since the store was opened.
#[derive(Debug)]
pub(crate) struct Count {
    value: AtomicU64,
    #[cfg(feature = "metrics")]
    meter: metrics_meter::Meter,
}

/// Handles of the `metrics` crate, which have no `Debug` of use.
#[cfg(feature = "metrics")]
mod metrics_meter {
    pub(super) struct Meter(pub(super) metrics::Counter);

    impl std::fmt::Debug for Meter {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Meter")
        }
    }
}

impl Count {
    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_variables, reason = "only metrics have names")
    )]
    fn named(name: &'static str) -> Count {
        Count {
            value: AtomicU64::new(0),
            #[cfg(feature = "metrics")]
            meter: metrics_meter::Meter(metrics::counter!(name)),
        }
    }

    #[inline]
    pub(crate) fn up(&self) {
        self.value.fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        self.meter.0.increment(1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// What a store has counted, and the last error in the background.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) commits: Count,
    pub(crate) conflicts: Count,
    pub(crate) syncs: Count,
    pub(crate) folds: Count,
    background_errors: Count,
    /// The last one, and when it happened by the monotonic clock.
    last_error: Mutex<Option<(BackgroundError, Duration)>>,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            commits: Count::named("duramen_commits_total"),
            conflicts: Count::named("duramen_conflicts_total"),
            syncs: Count::named("duramen_syncs_total"),
            folds: Count::named("duramen_folds_total"),
            background_errors: Count::named("duramen_background_errors_total"),
            last_error: Mutex::new(None),
        }
    }
}

/// When something began. It asks for the time only where its duration is told.
pub(crate) struct Begun(#[cfg(any(feature = "tracing", feature = "metrics"))] std::time::Instant);

impl Begun {
    #[inline]
    pub(crate) fn now() -> Begun {
        Begun(
            #[cfg(any(feature = "tracing", feature = "metrics"))]
            std::time::Instant::now(),
        )
    }
}

#[cfg_attr(
    not(any(feature = "tracing", feature = "metrics")),
    expect(unused_variables, reason = "these are told only with a feature")
)]
impl Core {
    /// The store is open.
    pub(crate) fn tell_opened(&self, begun: Begun) {
        #[cfg(feature = "tracing")]
        tracing::info!(
            path = %self.platform.storage.path().display(),
            commit = self.control().visible.0.load(Ordering::Relaxed),
            micros = begun.0.elapsed().as_micros() as u64,
            "store opened"
        );
    }

    /// The store is closed, or could not be closed as it should.
    pub(crate) fn tell_closed(&self, begun: Begun, error: Option<&Error>) {
        #[cfg(feature = "tracing")]
        {
            let micros = begun.0.elapsed().as_micros() as u64;
            let path = self.platform.storage.path().display();
            match error {
                None => tracing::info!(%path, micros, "store closed"),
                Some(error) => tracing::warn!(%path, micros, %error, "store closed, and its log stays"),
            }
        }
    }

    /// A fold moved operations from the log into the tree.
    pub(crate) fn count_fold(&self, operations: u64, begun: Begun) {
        self.watch.folds.up();
        #[cfg(feature = "metrics")]
        metrics::histogram!("duramen_fold_seconds").record(begun.0.elapsed());
        #[cfg(feature = "tracing")]
        tracing::debug!(operations, micros = begun.0.elapsed().as_micros() as u64, "log folded");
    }

    /// The log was synced up to a commit.
    pub(crate) fn count_sync(&self, commit: u64, begun: Begun) {
        self.watch.syncs.up();
        #[cfg(feature = "metrics")]
        metrics::histogram!("duramen_sync_seconds").record(begun.0.elapsed());
        #[cfg(feature = "tracing")]
        tracing::trace!(commit, micros = begun.0.elapsed().as_micros() as u64, "log synced");
    }

    /// A transaction conflicted at a key.
    pub(crate) fn count_conflict(&self, map: &str, key: &str) {
        self.watch.conflicts.up();
        #[cfg(feature = "tracing")]
        tracing::debug!(map, key, "transaction refused because of a conflict");
    }

    /// A writer waited for a fold, because the log was full.
    pub(crate) fn tell_stalled(&self, begun: Begun) {
        #[cfg(feature = "metrics")]
        metrics::histogram!("duramen_stall_seconds").record(begun.0.elapsed());
        #[cfg(feature = "tracing")]
        tracing::debug!(
            micros = begun.0.elapsed().as_micros() as u64,
            "a commit waited for the log to be folded"
        );
    }

    /// Nothing can be written any more until the store is opened again.
    pub(crate) fn tell_stopped(&self, cause: &str) {
        #[cfg(feature = "tracing")]
        tracing::error!(cause, "the store has stopped: open it again");
    }

    /// Writers are kept out because a page is damaged.
    pub(crate) fn tell_damaged(&self, what: &str) {
        #[cfg(feature = "tracing")]
        tracing::error!(what, "the store is damaged and takes no more commits");
    }

    /// Notes an error of work in the background.
    pub(crate) fn note_background_error(&self, during: &'static str, error: &Error) {
        #[cfg(feature = "tracing")]
        tracing::warn!(during, %error, "work in the background failed");
        self.watch.background_errors.up();
        let noted = BackgroundError {
            during,
            error: error.to_string(),
            kind: error.kind(),
            age: Duration::ZERO,
            count: 0,
        };
        let mut last = self.watch.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((noted, self.platform.clock.monotonic()));
    }

    /// The last error of work in the background.
    pub(crate) fn last_background_error(&self) -> Option<BackgroundError> {
        let last = self.watch.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        let (error, at) = last.as_ref()?;
        Some(BackgroundError {
            age: self.platform.clock.monotonic().saturating_sub(*at),
            count: self.watch.background_errors.get(),
            ..error.clone()
        })
    }
}
