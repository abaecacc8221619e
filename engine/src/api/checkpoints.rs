//! Checkpoints: states of the whole store that are kept until they are dropped.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::api::snapshot::Snapshot;
use crate::api::store::Store;
use crate::api::transaction::{Transaction, TransactionOptions};
use crate::btree::{differing_keys, walk};
use crate::commit::checkpoint::NewlyMade;
use crate::datafile::register::{Kept, Register};
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
    /// The newest commit that it shows: the commit that made it, which changes nothing else.
    pub commit: u64,
    /// When it was made.
    pub created: SystemTime,
    /// Pairs in the store then: those of maps, and what topics and trees consist of. `None` in what a call returns that has just made it: they
    /// are counted when the log is folded.
    pub pairs: Option<u64>,
}

impl From<&Kept> for Checkpoint {
    fn from(kept: &Kept) -> Checkpoint {
        Checkpoint {
            number: kept.id,
            name: kept.name.clone(),
            metadata: kept.metadata.clone(),
            commit: kept.commit,
            created: SystemTime::UNIX_EPOCH + Duration::from_micros(kept.time),
            pairs: Some(kept.root.pairs),
        }
    }
}

fn newly_made(made: NewlyMade, name: &str, metadata: &[u8]) -> Checkpoint {
    Checkpoint {
        number: made.id,
        name: name.into(),
        metadata: metadata.to_vec(),
        commit: made.commit,
        created: SystemTime::UNIX_EPOCH + Duration::from_micros(made.time),
        pairs: None,
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

    /// The register, with the newest checkpoint.
    fn register(&self) -> Result<Arc<Register>> {
        let core = self.store.core();
        core.keep_pending_checkpoint()?;
        core.register_now()
    }

    /// Keeps the present state under a name of at most 255 bytes. It has every commit that was visible when the call began. When
    /// the call returns, the checkpoint survives power loss, and so do all these commits.
    ///
    /// The call commits, and waits for one flush. Writers are shut out until the commit is made, as by an exclusive transaction. Folds reach
    /// the checkpoint in the background. A call that needs it sooner folds first: opening, listing, comparing and dropping
    /// checkpoints, and making the next one. Processes that have the store open for reading only see it then.
    ///
    /// `metadata` is of the program, 4 KiB at most.
    ///
    /// # Errors
    /// [`crate::Reason::CheckpointExists`], [`crate::Reason::InvalidArgument`], those of [`Store::begin`] and of a commit, and those of a
    /// fold if the checkpoint before is not folded yet.
    pub fn create(&self, name: &str, metadata: impl AsRef<[u8]>) -> Result<Checkpoint> {
        let core = self.store.core();
        core.refuse_beside("checkpoints().create", || name.to_string())?;
        let metadata = metadata.as_ref();
        core.check_new_checkpoint(name, metadata)?;
        loop {
            core.get_ready_for_checkpoint()?;
            let alone = self.store.begin(TransactionOptions::new().exclusive())?;
            let made = core.commit_checkpoint(name, metadata, alone.token())?;
            drop(alone);
            // Another one may have been made in between.
            if let Some(made) = made {
                core.wait_durable(made.commit)?;
                return Ok(newly_made(made, name, metadata));
            }
        }
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
        let metadata = metadata.as_ref();
        core.check_new_checkpoint(name, metadata)?;
        let mut tx = loop {
            core.get_ready_for_checkpoint()?;
            let tx = self.store.begin(TransactionOptions::new().exclusive())?;
            // Another one may have been made in between.
            if !core.has_pending_checkpoint() {
                break tx;
            }
        };
        if core.register_now()?.named(name).is_some() {
            return Err(Reason::CheckpointExists { name: name.into() }.into());
        }
        let done = work(&mut tx)?;
        let alone = tx.commit_and_stay()?;
        let made = core.commit_checkpoint(name, metadata, alone.token())?;
        let made = made.expect("all other writers are shut out");
        drop(alone);
        core.wait_durable(made.commit)?;
        Ok((done, newly_made(made, name, metadata)))
    }

    /// All checkpoints, in the order in which they were made.
    ///
    /// # Errors
    /// Those of a snapshot, and those of a fold if the newest one is not folded yet.
    pub fn list(&self) -> Result<Vec<Checkpoint>> {
        let register = self.register()?;
        Ok(register.present().map(Checkpoint::from).collect())
    }

    /// A checkpoint; `None`: there is none of this name.
    ///
    /// # Errors
    /// As [`Checkpoints::list`].
    pub fn get(&self, name: &str) -> Result<Option<Checkpoint>> {
        let register = self.register()?;
        Ok(register.named(name).map(Checkpoint::from))
    }

    /// Opens a checkpoint for reading, as a snapshot. [`Snapshot::map`] has the maps that were dropped since. Dropping the checkpoint
    /// meanwhile takes nothing from the snapshot; its space comes free when both are gone.
    ///
    /// # Errors
    /// [`crate::Reason::UnknownCheckpoint`], those of a snapshot, and those of a fold if the newest one is not folded yet.
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

    /// Bytes of the data file that this checkpoint shares with the present, or with another checkpoint. `None`: there is none of this
    /// name. The call reads the whole tree of the checkpoint; commits and folds go on meanwhile.
    ///
    /// # Errors
    /// As [`Checkpoints::open`], and those of reading.
    pub fn bytes_shared(&self, name: &str) -> Result<Option<u64>> {
        let opened = match self.open(name) {
            Err(error) if matches!(error.reason(), Reason::UnknownCheckpoint { .. }) => return Ok(None),
            opened => opened?,
        };
        let mut pages = 0;
        walk(self.store.core().source(), opened.pinned().view().root, &mut |visit| {
            pages += visit.pages().len() as u64;
            Ok(())
        })?;
        let alone = self.bytes_alone(name)?;
        Ok(alone.map(|alone| (pages * PAGE_BYTES as u64).saturating_sub(alone)))
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use duramen_io::SimDisk;

    use crate::{Durability, Maintenance, Options, TransactionOptions};

    fn store() -> crate::Store {
        let options = Options::new().maintenance(Maintenance::Manual);
        options.open_on(SimDisk::new(1).platform()).expect("a store")
    }

    #[test]
    fn no_commit_comes_between_a_transaction_and_its_checkpoint() {
        let store = store();
        let map = store.map("map").expect("a map");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let counting = map.clone();
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    counting.add("commits", 1).expect("a commit");
                }
            });
            let committed = || map.get("commits").expect("a get").map(|value| value.to_vec());
            for round in 0..100 {
                let before = committed();
                while committed() == before {
                    std::thread::yield_now();
                }
                let made = store.checkpoints().create_with(&round.to_string(), "", |tx| {
                    let commits = tx.get(&map, "commits")?.map_or_else(Vec::new, |value| value.to_vec());
                    tx.put(&map, "seen", commits)
                });
                made.expect("room");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for round in 0..100 {
            let kept = store.checkpoints().open(&round.to_string()).expect("it was made");
            let get = |key| {
                kept.get(&map, key)
                    .expect("a get")
                    .map_or_else(Vec::new, |value| value.to_vec())
            };
            assert_eq!(get("seen"), get("commits"), "round {round}");
        }
    }

    #[test]
    fn making_a_checkpoint_does_not_wait_for_folds() {
        let store = store();
        let map = store.map("map").expect("a map");
        let put = |value: &str| map.put("key", value).expect("a put");
        put("first");
        let folding = store.core().hold_maintenance().expect("no thread has it");
        let made = store.checkpoints().create("one", "metadata").expect("room");
        assert_eq!(made.pairs, None);
        put("second");
        drop(folding);
        put("third");
        let list = store.checkpoints().list().expect("a list");
        let [kept] = &list[..] else { panic!("{list:?}") };
        let pairs = kept.pairs;
        assert!(pairs.is_some_and(|pairs| pairs >= 1), "{pairs:?}");
        assert_eq!(*kept, crate::Checkpoint { pairs, ..made });
        let one = store.checkpoints().open("one").expect("it is there");
        assert_eq!(one.get(&map, "key").expect("a get").as_deref(), Some(&b"first"[..]));
        assert_eq!(map.get("key").expect("a get").as_deref(), Some(&b"third"[..]));
    }

    #[test]
    fn one_round_of_maintenance_keeps_the_checkpoint_and_folds_what_came_after() {
        let store = store();
        let map = store.map("map").expect("a map");
        map.put("key", "first").expect("a put");
        store.checkpoints().create("one", "").expect("room");
        map.put("key", "second").expect("a put");
        let core = store.core();
        assert!(core.has_pending_checkpoint());
        store.maintain().expect("a fold");
        assert!(!core.has_pending_checkpoint());
        let version = core.region.version();
        assert_eq!(version.base_commit, core.control().visible.0.load(Ordering::Relaxed));
        let one = store.checkpoints().open("one").expect("it is there");
        assert_eq!(one.get(&map, "key").expect("a get").as_deref(), Some(&b"first"[..]));
    }

    /// The next checkpoint needs the one before in the register.
    #[test]
    fn checkpoints_one_right_after_the_other_are_all_kept() {
        let store = store();
        let map = store.map("map").expect("a map");
        for number in 0..50u32 {
            map.put("key", number.to_be_bytes()).expect("a put");
            let made = store.checkpoints().create(&number.to_string(), "").expect("room");
            assert_eq!(made.number, u64::from(number) + 1);
            let again = store.checkpoints().create(&number.to_string(), "");
            assert!(again.is_err(), "the name is taken");
        }
        for number in 0..50u32 {
            let kept = store.checkpoints().open(&number.to_string()).expect("it was made");
            let value = kept.get(&map, "key").expect("a get");
            assert_eq!(value.as_deref(), Some(&number.to_be_bytes()[..]));
        }
    }

    /// A process that is stopped in a sync of the log keeps the fold from the pending checkpoint. No call may pass that off as a commit
    /// that was made.
    #[test]
    fn who_cannot_fold_to_a_checkpoint_is_told_that_nothing_was_done() {
        let disk = SimDisk::new(1);
        let open = || {
            let options = Options::new()
                .maintenance(Maintenance::Manual)
                .durability(Durability::Written);
            let opened = options.generation_bytes(64 << 10, 64 << 10).open_on(disk.platform());
            opened.expect("a store")
        };
        let (store, other) = (open(), open());
        let map = store.map("map").expect("a map");
        map.put("key", "value").expect("a put");
        store.maintain().expect("a fold");
        let core = store.core();
        let alone = store
            .begin(TransactionOptions::new().exclusive())
            .expect("no other one");
        let made = core.commit_checkpoint("one", b"", alone.token()).expect("room");
        drop(alone);
        let lock = &other.core().control().sync_lock.0;
        let stopped = lock.try_lock(other.core().region.me()).expect("it is free");
        let error = store.checkpoints().list().expect_err("it must fold");
        assert!(
            !error.is_of_a_made_commit() && error.waited_for().is_some(),
            "{error:?}"
        );
        let refused = (0..100_000u32).find_map(|at| map.put(at.to_be_bytes(), [7; 900]).err().map(|error| (at, error)));
        let (at, error) = refused.expect("the log is full");
        assert!(!error.is_of_a_made_commit(), "{error:?}");
        assert!(map.get(at.to_be_bytes()).expect("a get").is_none());
        drop(stopped);
        let list = store.checkpoints().list().expect("a list");
        assert_eq!(list[0].commit, made.expect("no other is pending").commit);
    }
}
