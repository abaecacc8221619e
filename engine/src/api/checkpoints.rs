//! Checkpoints: states of the whole store that are kept until they are dropped.

use std::time::{Duration, SystemTime};

use crate::api::snapshot::Snapshot;
use crate::api::store::Store;
use crate::api::transaction::{Transaction, TransactionOptions};
use crate::btree::differing_keys;
use crate::datafile::register::Kept;
use crate::error::{Reason, Result};
use crate::key::full_key::{FullKey, split};
use crate::limits::PAGE_BYTES;
use crate::map_name::is_reserved;
use crate::read::value::Value;

/// The checkpoints of a store; see [`Store::checkpoints`].
#[derive(Clone, Copy, Debug)]
pub struct Checkpoints<'s> {
    store: &'s Store,
}

/// A state of the store that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// Its number, which no other checkpoint of the store has had.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// What the program has stored with it, such as the offset of a source.
    pub metadata: Vec<u8>,
    /// The newest commit that it shows.
    pub commit: u64,
    /// When it was made.
    pub created: SystemTime,
    /// Pairs in the store then: those of maps, and what topics and trees consist of.
    pub pairs: u64,
}

impl From<&Kept> for Checkpoint {
    fn from(kept: &Kept) -> Checkpoint {
        Checkpoint {
            number: kept.id,
            name: kept.name.clone(),
            metadata: kept.metadata.clone(),
            commit: kept.commit,
            created: SystemTime::UNIX_EPOCH + Duration::from_micros(kept.time),
            pairs: kept.root.pairs,
        }
    }
}

/// A pair that differs between two checkpoints.
#[derive(Debug)]
pub struct Difference<'a> {
    /// The name of its map, in the later checkpoint if the map is there.
    pub map: &'a str,
    /// Its key.
    pub key: &'a [u8],
    /// The value before; `None`: there was no pair.
    pub old: Option<Value<'a>>,
    /// The value afterwards; `None`: the pair was deleted.
    pub new: Option<Value<'a>>,
}

fn value_of<'s>(snapshot: &'s Snapshot, full_key: &FullKey) -> Result<Option<Value<'s>>> {
    snapshot.pinned().alive()?;
    snapshot.pinned().view().get(full_key)
}

impl Store {
    /// The checkpoints of the store: make, list, open and drop them.
    ///
    /// A checkpoint is a state of all maps, topics and trees that stays, through restarts and crashes, until it is dropped. It costs the
    /// space of what has changed since. (The base is a copy-on-write tree, and a checkpoint is a root of it that is kept.)
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let store = duramen_engine::Store::open(directory.path())?;
    /// let stock = store.map("stock")?;
    /// stock.put("apples", "12")?;
    /// store.checkpoints().create("monday", "offset 7")?;
    /// stock.put("apples", "3")?;
    ///
    /// let monday = store.checkpoints().open("monday")?;
    /// assert_eq!(monday.get(&stock, "apples")?.as_deref(), Some(&b"12"[..]));
    /// store.checkpoints().drop("monday")?;
    /// # Ok::<(), duramen_engine::Error>(())
    /// ```
    pub fn checkpoints(&self) -> Checkpoints<'_> {
        Checkpoints { store: self }
    }
}

impl Checkpoints<'_> {
    pub(crate) fn store(&self) -> &Store {
        self.store
    }

    /// Keeps the present state under a name of at most 255 bytes. It has every commit that was visible when the call began. When
    /// the call returns, the checkpoint survives power loss, and so do all these commits. The call folds what is in the log;
    /// commits go on meanwhile.
    ///
    /// `metadata` is of the program, 4 KiB at most.
    ///
    /// # Errors
    /// [`crate::Reason::CheckpointExists`], [`crate::Reason::InvalidArgument`], and those of a fold. After
    /// [`crate::Reason::Full`] the checkpoint may have been made: [`Checkpoints::get`] tells.
    pub fn create(&self, name: &str, metadata: impl AsRef<[u8]>) -> Result<Checkpoint> {
        let core = self.store.core();
        core.refuse_beside("checkpoints().create", || name.to_string())?;
        Ok(Checkpoint::from(&core.create_checkpoint(name, metadata.as_ref())?))
    }

    /// Runs a transaction with all other writers shut out, commits it, and keeps the state that shows this commit and none after it:
    /// a stream job stores its position and its checkpoint so. When the call returns, both survive power loss. A crash in between
    /// leaves the commit without the checkpoint, and so do the errors of [`Checkpoints::create`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let store = duramen_engine::Store::open(directory.path())?;
    /// let positions = store.map("positions")?;
    /// let (_, made) = store.checkpoints().create_with("after 7", "", |tx| tx.put(&positions, "source", "7"))?;
    /// let kept = store.checkpoints().open(&made.name)?;
    /// assert_eq!(kept.get(&positions, "source")?.as_deref(), Some(&b"7"[..]));
    /// # Ok::<(), duramen_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Store::begin`], of `work`, of a commit, and of [`Checkpoints::create`]. A name that is taken is refused before `work`
    /// runs.
    pub fn create_with<T>(
        &self,
        name: &str,
        metadata: impl AsRef<[u8]>,
        work: impl FnOnce(&mut Transaction) -> Result<T>,
    ) -> Result<(T, Checkpoint)> {
        let core = self.store.core();
        core.refuse_beside("checkpoints().create_with", || name.to_string())?;
        if core.present_register()?.named(name).is_some() {
            return Err(Reason::CheckpointExists { name: name.into() }.into());
        }
        let mut tx = self.store.begin(TransactionOptions::new().exclusive())?;
        let done = work(&mut tx)?;
        let exclusive = tx.commit_and_stay()?;
        let kept = core.create_checkpoint(name, metadata.as_ref())?;
        drop(exclusive);
        Ok((done, Checkpoint::from(&kept)))
    }

    /// All checkpoints, in the order in which they were made.
    ///
    /// # Errors
    /// Those of a snapshot.
    pub fn list(&self) -> Result<Vec<Checkpoint>> {
        let register = self.store.core().present_register()?;
        Ok(register.present().map(Checkpoint::from).collect())
    }

    /// A checkpoint; `None`: there is none of this name.
    ///
    /// # Errors
    /// As [`Checkpoints::list`].
    pub fn get(&self, name: &str) -> Result<Option<Checkpoint>> {
        let register = self.store.core().present_register()?;
        Ok(register.named(name).map(Checkpoint::from))
    }

    /// Opens a checkpoint for reading, as a snapshot. [`Snapshot::map`] has the maps that were dropped since. Dropping the checkpoint
    /// meanwhile takes nothing from the snapshot; its space comes free when both are gone.
    ///
    /// # Errors
    /// [`crate::Reason::UnknownCheckpoint`], and those of a snapshot.
    pub fn open(&self, name: &str) -> Result<Snapshot> {
        Snapshot::of_checkpoint(self.store, name)
    }

    /// Shows the pairs of maps that differ between two checkpoints, in the order of maps and keys, until `visit` returns `false`. The
    /// work is in proportion to what has changed, however large the store is. Pairs of topics and trees are left out.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let store = duramen_engine::Store::open(directory.path())?;
    /// let (stock, checkpoints) = (store.map("stock")?, store.checkpoints());
    /// stock.put("apples", "12")?;
    /// checkpoints.create("monday", "")?;
    /// stock.put("apples", "3")?;
    /// checkpoints.create("tuesday", "")?;
    /// checkpoints.diff("monday", "tuesday", |pair| {
    ///     assert_eq!((pair.map, pair.key), ("stock", &b"apples"[..]));
    ///     assert_eq!(pair.old.as_deref(), Some(&b"12"[..]));
    ///     assert_eq!(pair.new.as_deref(), Some(&b"3"[..]));
    ///     Ok(true)
    /// })?;
    /// # Ok::<(), duramen_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Checkpoints::open`], those of reading, and what `visit` returns.
    pub fn diff(&self, from: &str, to: &str, mut visit: impl FnMut(Difference<'_>) -> Result<bool>) -> Result<()> {
        let (from, to) = (self.open(from)?, self.open(to)?);
        let mut names = from.map_names()?;
        // A map that was renamed has its newer name.
        names.extend(to.map_names()?);
        let roots = [&from, &to].map(|snapshot| snapshot.pinned().view().root);
        differing_keys(self.store.core().source(), roots, &mut |full_key| {
            let (map, key) = split(full_key);
            let Some(name) = names.get(&map).filter(|name| !is_reserved(name)) else {
                return Ok(true);
            };
            let full_key = FullKey::new(map, key)?;
            visit(Difference {
                map: name,
                key,
                old: value_of(&from, &full_key)?,
                new: value_of(&to, &full_key)?,
            })
        })
    }

    /// Bytes of the data file that only this checkpoint holds: what dropping it sets free. `None`: there is none of this name. The
    /// call reads the pages that differ from those of the checkpoint before.
    ///
    /// # Errors
    /// Those of a fold.
    pub fn bytes_alone(&self, name: &str) -> Result<Option<u64>> {
        let pages = self.store.core().pages_of_checkpoint_alone(name)?;
        Ok(pages.map(|pages| pages * PAGE_BYTES as u64))
    }

    /// Drops a checkpoint. Returns whether there was one. The space that only it held can be used again when no snapshot of it is
    /// open.
    ///
    /// # Errors
    /// Those of a fold.
    pub fn drop(&self, name: &str) -> Result<bool> {
        let core = self.store.core();
        core.refuse_beside("checkpoints().drop", || name.to_string())?;
        let dropped =
            core.drop_checkpoints(|register| register.named(name).map(|kept| kept.id).into_iter().collect())?;
        Ok(dropped > 0)
    }

    /// Drops all checkpoints but the newest ones, at once: after a crash all of them are there, or none is. Returns how many it dropped.
    ///
    /// # Errors
    /// As [`Checkpoints::drop`].
    pub fn keep_last(&self, count: usize) -> Result<u64> {
        let core = self.store.core();
        core.refuse_beside("checkpoints().keep_last", || count.to_string())?;
        core.drop_checkpoints(|register| {
            let newest_first = register.present().rev();
            newest_first.skip(count).map(|kept| kept.id).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use duramen_io::SimDisk;

    use crate::{Maintenance, Options};

    #[test]
    fn no_commit_comes_between_a_transaction_and_its_checkpoint() {
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(SimDisk::new(1).platform()).expect("a store");
        let map = store.map("map").expect("a map");
        let (held, is_held) = channel();
        let (written, is_written) = channel();
        std::thread::scope(|scope| {
            let core = store.core();
            scope.spawn(move || {
                let folds = core.hold_maintenance().expect("it is free");
                held.send(()).expect("a test waits");
                // While this lasts the checkpoint waits. Another writer has the time to come in, if it is not shut out.
                let _ = is_written.recv_timeout(Duration::from_millis(200));
                drop(folds);
            });
            is_held.recv().expect("a thread has it");
            let late = map.clone();
            let kept = store.checkpoints().create_with("one", "", |tx| {
                scope.spawn(move || {
                    late.put("late", "value").expect("a put");
                    let _ = written.send(());
                });
                tx.put(&map, "key", "value")
            });
            kept.expect("room");
        });
        let one = store.checkpoints().open("one").expect("it was made");
        assert!(one.get(&map, "key").expect("a get").is_some());
        assert!(one.get(&map, "late").expect("a get").is_none());
        assert!(map.get("late").expect("a get").is_some());
    }
}
