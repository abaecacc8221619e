//! One watch: the changes of a tree, one after the other, from any revision that is kept.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use duramen_engine::{Error, Result};

use crate::shared::Shared;
use crate::watches::{Event, TreeWatches, WatchOptions, Watched};

/// The id of the watch in its set.
const ONLY: u64 = 0;

/// Watches a tree; see [`crate::Tree::watch`].
pub struct TreeWatch {
    watches: TreeWatches,
    /// Where it was when it ended.
    resume_from: u64,
    /// Why it has ended.
    gone: Option<Error>,
}

impl fmt::Debug for TreeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.watches.fmt(f)
    }
}

impl TreeWatch {
    pub(crate) fn begin(tree: &Arc<Shared>, options: WatchOptions) -> Result<TreeWatch> {
        let mut watches = TreeWatches::begin(tree)?;
        let resume_from = watches.add(ONLY, options)?;
        Ok(TreeWatch {
            watches,
            resume_from,
            gone: None,
        })
    }

    /// The revision from which another watch goes on where this one is: it sees what this one has not returned. Where the last
    /// batch ended within a revision, it sees this revision from its beginning.
    pub fn resume_from(&self) -> u64 {
        self.watches.resume_from(ONLY).unwrap_or(self.resume_from)
    }

    /// All changes up to this revision were returned, or are not of interest to the watch.
    pub fn revision(&self) -> u64 {
        self.resume_from().saturating_sub(1)
    }

    /// The next changes, in order, as soon as there are any; `None`: there were none in the given time. With no time at all it
    /// looks at everything that there is. A revision with very many changes comes in several batches.
    ///
    /// # Errors
    /// [`crate::TreeError::Compacted`], again at each call from then on; those of reading.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Vec<Event>>> {
        if let Some(gone) = &self.gone {
            return Err(gone.clone());
        }
        self.resume_from = self.resume_from();
        match self.watches.next(timeout)?.and_then(|mut seen| seen.pop()) {
            None => Ok(None),
            Some((_, Watched::Events(events))) => Ok(Some(events)),
            Some((_, Watched::Ended(gone))) => {
                self.gone = Some(gone.clone());
                Err(gone)
            }
        }
    }
}
