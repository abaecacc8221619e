//! A store as one sequence of pairs: what a copy outside of the store consists of.
//!
//! The pairs are those of all maps, of the names of maps and of the counters of appends, with their full keys, in order. A
//! store that is built from them is equal to the one they came from, except for its id and its checkpoints.

use std::path::Path;
use std::time::Duration;

use crate::api::changes::{Changes, ChangesFrom, StoredCommit};
use crate::api::checkpoints::Checkpoints;
use crate::api::options::Options;
use crate::api::snapshot::{Pinned, Snapshot};
use crate::api::store::Store;
use crate::btree::{self, ChangeStream, Root, Stored, differing_keys};
use crate::error::{Error, Reason, Result};
use crate::fold::page_sink::FileSink;
use crate::key::full_key::{FullKey, FullRange, split};
use crate::limits::{FULL_KEY_BYTES_MAX, MAP_ID_BYTES, VALUE_BYTES_MAX};
use crate::read::value::Value;
use crate::read::write_set::OwnWrites;
use crate::settings::Maintenance;

/// Pairs with full keys, ascending, for [`Store::build`].
#[doc(hidden)]
pub trait StoredPairs {
    /// Goes to the next pair. The first call goes to the first one. `false`: there are no more.
    ///
    /// # Errors
    /// Those of the source of the pairs; they end the building.
    fn advance(&mut self) -> Result<bool>;

    /// The full key and the value at hand.
    fn pair(&self) -> (&[u8], &[u8]);
}

impl Store {
    /// The id of the store, which no other store has.
    #[doc(hidden)]
    pub fn id(&self) -> u128 {
        self.core().store
    }

    /// Makes a store from pairs, in a directory that is missing or empty. It is durable when this returns. Its commits go on after
    /// `commit`, and the ids of its maps with `next_map`.
    ///
    /// # Errors
    /// [`Reason::InvalidArgument`] when the directory is not empty, or the pairs are not in order; those of a fold, and those of
    /// the source. Remove what a call that failed has left.
    #[doc(hidden)]
    pub fn build(directory: &Path, commit: u64, next_map: u32, pairs: &mut dyn StoredPairs) -> Result<()> {
        if duramen_io::is_occupied(directory) {
            let cause = format!(
                "{} is not empty, and the store needs a directory of its own: name a directory that is missing or empty",
                directory.display()
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        let target = Options::new().maintenance(Maintenance::Manual).open(directory)?;
        let core = target.core();
        core.load(commit, next_map, |sink: &mut FileSink<'_>| {
            let mut given = Given {
                pairs,
                has_pair: false,
                before: Vec::new(),
            };
            given.advance()?;
            btree::merge(
                core.source(),
                Root::default(),
                &mut given,
                &[],
                core.fold_options(),
                sink,
            )
        })?;
        target.close()
    }
}

/// The stream of commits with all that the store keeps: see [`Changes`], which has only what maps show.
#[doc(hidden)]
#[derive(Debug)]
pub struct StoredChanges(Changes);

impl Store {
    /// The stream of commits from some moment on, with full keys. What a copy of that moment makes of it is the store's pairs.
    ///
    /// # Errors
    /// As [`Store::changes`].
    #[doc(hidden)]
    pub fn stored_changes(&self, from: ChangesFrom) -> Result<StoredChanges> {
        let mut changes = self.changes(from)?;
        changes.everything();
        Ok(StoredChanges(changes))
    }

    /// The id that the next map will get, or a greater one.
    #[doc(hidden)]
    pub fn next_map(&self) -> u32 {
        self.core().next_map()
    }
}

impl StoredChanges {
    /// The next commit; waits for it up to `timeout`, then returns `None`. An error leaves the position as it is.
    ///
    /// # Errors
    /// As [`Changes::next`]. A restore of a checkpoint is [`Reason::NotRetained`].
    pub fn next(&mut self, timeout: Duration) -> Result<Option<StoredCommit>> {
        self.0.next_stored(timeout)
    }

    /// Passes over all commits up to this one.
    ///
    /// # Errors
    /// [`Reason::InvalidArgument`]: there is no such commit yet.
    pub fn skip_to(&mut self, commit: u64) -> Result<()> {
        self.0.skip_to(commit)
    }

    /// The number of the last commit that was delivered or passed over.
    pub fn position(&self) -> u64 {
        self.0.position()
    }
}

impl Checkpoints<'_> {
    /// Shows all pairs of a checkpoint with their full keys, in order, until `visit` returns `false`.
    ///
    /// # Errors
    /// As [`Checkpoints::open`], those of reading, and what `visit` returns.
    #[doc(hidden)]
    pub fn each_stored(&self, name: &str, mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        let snapshot = self.open(name)?;
        let everything = FullRange {
            low: Vec::new(),
            high: vec![0xFF; MAP_ID_BYTES + 1],
        };
        let mut scan = snapshot.pinned().scan(OwnWrites::default(), everything);
        while let Some((key, value)) = scan.next_pair()? {
            snapshot.pinned().alive()?;
            if !visit(key, &value)? {
                break;
            }
        }
        Ok(())
    }

    /// Shows all pairs that differ between two checkpoints with their full keys, in order, and their values before and afterwards,
    /// until `visit` returns `false`. The work is in proportion to what has changed.
    ///
    /// # Errors
    /// As [`Checkpoints::each_stored`].
    #[doc(hidden)]
    pub fn each_stored_difference(
        &self,
        (from, to): (&str, &str),
        mut visit: impl FnMut(&[u8], Option<Value<'_>>, Option<Value<'_>>) -> Result<bool>,
    ) -> Result<()> {
        let (from, to) = (self.open(from)?, self.open(to)?);
        let roots = [&from, &to].map(|snapshot: &Snapshot| snapshot.pinned().view().root);
        differing_keys(self.store().core().source(), roots, &mut |full_key| {
            let (map, key) = split(full_key);
            let key = FullKey::new(map, key)?;
            visit(full_key, stored_in(from.pinned(), &key)?, stored_in(to.pinned(), &key)?)
        })
    }
}

/// The value of a full key.
pub(crate) fn stored_in<'s>(pinned: &'s Pinned, full_key: &FullKey) -> Result<Option<Value<'s>>> {
    pinned.alive()?;
    pinned.view().get(full_key)
}

/// Pairs of a caller, as changes to an empty tree.
struct Given<'a> {
    pairs: &'a mut dyn StoredPairs,
    has_pair: bool,
    before: Vec<u8>,
}

impl ChangeStream for Given<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.has_pair.then(|| self.pairs.pair().0)
    }

    fn change(&self) -> Stored<'_> {
        Stored::Inline(self.pairs.pair().1)
    }

    fn advance(&mut self) -> Result<()> {
        if self.has_pair {
            self.before.clear();
            self.before.extend_from_slice(self.pairs.pair().0);
        }
        self.has_pair = self.pairs.advance()?;
        if !self.has_pair {
            return Ok(());
        }
        let (key, value) = self.pairs.pair();
        let is_possible =
            (MAP_ID_BYTES..=FULL_KEY_BYTES_MAX).contains(&key.len()) && value.len() as u64 <= VALUE_BYTES_MAX;
        if is_possible && (self.before.is_empty() || *self.before < *key) {
            return Ok(());
        }
        Err(Error::damaged("pairs for a store are not in order, or too long"))
    }
}
