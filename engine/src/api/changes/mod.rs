//! The ordered stream of commits, with what every key held before and after.
//!
//! The simple version: read the records of the log one after the other, and look every key up in the view as of the
//! commit before.
//!
//! Why it is hard: the log is there to be folded and reused, so a stream must hold what it has yet to read and nothing
//! else; a stream that is not read must not hold the log without limit; and a commit must not pay for streams.
//!
//! What a stream holds is a pin of some version whose base is not newer than the stream's position, and, through
//! `follow`, the generations after that version. The old value of a key changed by commit `c` is then what that base
//! and the generations above it show up to `c - 1`. The log refers to values and runs in the data file; `Pins` keeps
//! their pages for all who follow.
//!
//! As soon as a newer version's base is not newer than the position, the pin moves there: after every commit that is
//! delivered, and before every reclaim for streams that are not being read just then. So a stream that has delivered
//! everything holds only what is current anyway. A stream that lags by more than `CHECKABLE_GENERATIONS_MAX` folded
//! generations loses them, and with them its pin; its next call says so.
//!
//! Waiting: a stream that has nothing to deliver sets `waiting` *under the commit lock* and sleeps on `word`. A commit
//! looks at `waiting` after it released that lock (one relaxed load). Either it held the lock first, and the stream
//! sees the commit, or the stream did, and the commit sees the flag. The first commit takes the flag down and wakes
//! all, so a stream that is busy reading costs the commits after it nothing.
//!
//! Invariants: `base commit of the pinned version <= position <= visible`. Generations are read, and their set is
//! looked at, only while [`Core::keep_generations`] keeps them. Locks are taken in the order list of streams, stream,
//! generations kept, commit lock; the folding thread, which holds `maintenance`, never waits for a stream.

mod collector;
mod reader;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use duramen_io::wait;

use crate::api::map::Map;
use crate::api::store::Handle;
use crate::core::Core;
use crate::core::catalog::map_id;
use crate::core::streams::{Follower, Hold, State};
use crate::error::{Reason, Result};
use crate::key::full_key::{FIRST_USER_MAP, split};
use crate::map_name::is_reserved;

use collector::{Collector, Filter, Pairs, Past, name_of, names_at};
use reader::{Reader, Record};

pub use collector::StoredChange;

/// Commits by which a stream lags when it begins to remember what it read (see [`Latest`]).
const FAR_BEHIND: u64 = 256;
/// How long a stream sleeps that no writer will wake.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where a stream of commits begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangesFrom {
    /// After the newest commit that is visible now.
    Now,
    /// After this commit. It can be any commit that the base does not hold yet, or the newest commit in the base, and
    /// with [`crate::Options::retain_log_bytes`] an older one. After the store is reopened this goes back to the base
    /// that was durable then: what was kept beyond it is gone.
    After(u64),
}

/// One commit as a stream delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitChanges {
    /// The number of the commit.
    pub number: u64,
    /// What it changed, in the order of maps (by age) and keys; each key once. Deletes of keys that were not there are
    /// left out, so this may be empty.
    pub changes: Vec<Change>,
}

/// What a commit did to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The name of the map, as of the commit.
    pub map: String,
    /// The key.
    pub key: Vec<u8>,
    /// What it held before the commit; `None`: nothing.
    pub old: Option<Vec<u8>>,
    /// What it holds since; `None`: it was removed, by itself, with a range, or with its map.
    pub new: Option<Vec<u8>>,
}

/// One commit as the store keeps it.
#[doc(hidden)]
#[derive(Debug)]
pub struct StoredCommit {
    /// The number of the commit.
    pub number: u64,
    /// When it was committed, in microseconds since 1970.
    pub time: u64,
    /// What it changed, by full key.
    pub pairs: Pairs,
}

/// The ordered stream of commits: each exactly once, none skipped, from a chosen moment on; see
/// [`crate::Store::changes`].
///
/// Commits are delivered once they are visible, whether or not they are durable yet: a power cut may take back a
/// commit that was delivered, if it was not `Synced` ([`Changes::durable_only`] avoids that). A commit is delivered as
/// a whole and is in memory as a whole, with the old and new values of all its keys. A commit that replaces or removes
/// a gigabyte takes that much. The stream itself needs almost nothing.
///
/// A stream holds what it has yet to deliver: the log of it, and the values and pages that were replaced in it. It is
/// a handle: the store stays open as long as it lives. A stream that is not read keeps this for about 16 folded
/// generations of the log and then loses its place, so that a forgotten stream cannot fill the disk.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_engine::ChangesFrom;
/// use std::time::Duration;
///
/// let stock = store.map("stock")?;
/// let mut changes = store.changes(ChangesFrom::Now)?;
/// stock.put(b"apples", b"12")?;
/// stock.put(b"apples", b"11")?;
///
/// let first = changes.next(Duration::from_secs(1))?.unwrap();
/// let second = changes.next(Duration::from_secs(1))?.unwrap();
/// assert_eq!(first.changes[0].old, None);
/// assert_eq!(second.changes[0].old.as_deref(), Some(&b"12"[..]));
/// assert_eq!(second.changes[0].new.as_deref(), Some(&b"11"[..]));
/// assert_eq!(changes.next(Duration::ZERO)?, None);
/// # Ok::<(), duramen_engine::Error>(())
/// ```
pub struct Changes {
    handle: Arc<Handle>,
    follower: Arc<Mutex<Follower>>,
    reader: Reader,
    filter: Filter,
    /// Names of maps, by id, as of `position`.
    names: HashMap<u32, String>,
    durable_only: bool,
    position: u64,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Changes {
    pub(crate) fn new(handle: &Arc<Handle>, from: ChangesFrom) -> Result<Changes> {
        let core = &*handle.core;
        core.healthy()?;
        let mut reader = Reader::default();
        let (hold, position) = match from {
            ChangesFrom::Now => {
                let (hold, tail) = Hold::newest(core)?;
                if let Some(&newest) = hold.version.generations.last() {
                    reader = Reader::at(core, newest, tail);
                }
                let position = hold.commit;
                (hold, position)
            }
            ChangesFrom::After(commit) => (Hold::after(core, commit)?, commit),
        };
        let names = names_at(core, &hold.version, position);
        let follower = Arc::new(Mutex::new(Follower {
            state: State::Following(hold),
            position,
        }));
        core.streams.list().push(Arc::downgrade(&follower));
        let mut changes = Changes {
            handle: handle.clone(),
            follower,
            reader,
            filter: Filter::AllMaps,
            names: HashMap::new(),
            durable_only: false,
            position,
        };
        // Only now: on an error the pin is given back by the drop.
        changes.names = names?;
        Ok(changes)
    }

    /// Delivers only what concerns these maps from now on; commits that do not touch them are skipped. No maps: no
    /// filter.
    ///
    /// # Errors
    /// [`Reason::ForeignMap`].
    pub fn only(&mut self, maps: &[&Map]) -> Result<()> {
        let mut ids = maps
            .iter()
            .map(|map| map.id_in(&self.handle.core))
            .collect::<Result<Vec<u32>>>()?;
        ids.sort_unstable();
        ids.dedup();
        self.filter = match ids.is_empty() {
            true => Filter::AllMaps,
            false => Filter::Maps(ids),
        };
        self.reader.latest.clear();
        Ok(())
    }

    /// Whether to deliver commits only once they survive power loss. `Written` commits become durable
    /// with the next `Synced` commit, by [`crate::Store::sync`], or when the log is folded. Default: no.
    pub fn durable_only(&mut self, durable_only: bool) {
        self.durable_only = durable_only;
    }

    /// The number of the last commit that was delivered or skipped: where [`ChangesFrom::After`] goes on.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next commit; waits for it up to `timeout`, then returns `None`. An error leaves the position as it is.
    ///
    /// # Errors
    /// [`Reason::NotRetained`] when the stream fell behind too far, [`Reason::SnapshotEnded`], [`Reason::Closed`],
    /// [`Reason::Poisoned`], [`Reason::Damaged`].
    pub fn next(&mut self, timeout: Duration) -> Result<Option<CommitChanges>> {
        self.next_as(timeout, |changes, core, commit| {
            changes.note_names(&commit.pairs)?;
            Ok(changes.name(core, commit.number, commit.pairs))
        })
    }

    /// Delivers all that the store keeps from now on, by [`Changes::next_stored`].
    pub(crate) fn everything(&mut self) {
        self.filter = Filter::Everything;
    }

    /// As [`Changes::next`], with full keys.
    pub(crate) fn next_stored(&mut self, timeout: Duration) -> Result<Option<StoredCommit>> {
        self.next_as(timeout, |_, _, commit| Ok(Some(commit)))
    }

    /// Passes over all commits up to this one.
    ///
    /// # Errors
    /// [`Reason::InvalidArgument`]: there is no such commit yet.
    pub(crate) fn skip_to(&mut self, commit: u64) -> Result<()> {
        if commit <= self.position {
            return Ok(());
        }
        let core = &*self.handle.core;
        let newest = self.limit(core);
        if commit > newest {
            let cause = format!("a stream cannot go on after commit {commit}, because the newest one is {newest}");
            return Err(Reason::InvalidArgument(cause).into());
        }
        let mut follower = locked(&self.follower);
        self.reader.latest.clear();
        (self.position, follower.position) = (commit, commit);
        follower.advance(core);
        Ok(())
    }

    /// The next commit of which `shape` makes something.
    fn next_as<T>(
        &mut self,
        timeout: Duration,
        shape: impl Fn(&mut Changes, &Core, StoredCommit) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let handle = self.handle.clone();
        let core = &*handle.core;
        let began = core.platform.clock.monotonic();
        let mut is_late = timeout.is_zero();
        loop {
            let word = core.control().streams_word.load(Ordering::Acquire);
            core.healthy()?;
            locked(&self.follower).hold(core)?;
            let limit = self.limit(core);
            while self.position < limit {
                let commit = self.read(core, limit)?;
                let shaped = shape(self, core, commit)?;
                if shaped.is_some() {
                    return Ok(shaped);
                }
            }
            if is_late {
                return Ok(None);
            }
            let left = timeout.saturating_sub(core.platform.clock.monotonic().saturating_sub(began));
            is_late = left.is_zero() || !self.wait(core, word, left);
        }
    }

    /// The newest commit that may be delivered.
    fn limit(&self, core: &Core) -> u64 {
        let control = core.control();
        let limit = if self.durable_only {
            &control.synced.0
        } else {
            &control.visible.0
        };
        limit.load(Ordering::Acquire)
    }

    /// Sleeps until there may be something to deliver; `false`: the time is over. `word` was read before the caller
    /// found that there is nothing.
    fn wait(&self, core: &Core, word: u32, timeout: Duration) -> bool {
        let Some(guard) = core.hold_commits_soon() else {
            // A process may be suspended inside a commit. This does not wait for it, and checks again later.
            wait(&core.control().streams_word, word, Some(timeout.min(LOOK_AGAIN)));
            return true;
        };
        core.control().streams_waiting.0.store(1, Ordering::Relaxed);
        drop(guard);
        // Pairs with the fence in `announce_synced`, which knows nothing of the commit lock.
        fence(Ordering::SeqCst);
        self.limit(core) > self.position || wait(&core.control().streams_word, word, Some(timeout))
    }

    /// Reads one commit.
    fn read(&mut self, core: &Core, limit: u64) -> Result<StoredCommit> {
        let number = self.position + 1;
        let mut follower = locked(&self.follower);
        let retained = core.keep_generations()?;
        let version = follower.hold(core)?.version.clone();
        let Record { start, time, body } = self.reader.record(core, &version, number)?;
        let Reader {
            latest,
            generations,
            deleted,
            ..
        } = &mut self.reader;
        latest.switch(limit - number > FAR_BEHIND);
        let visible = core.control().visible.0.load(Ordering::Acquire);
        let past = Past {
            source: core.source(),
            root: version.root,
            deleted: deleted.at(generations, version.base_commit, number - 1, visible)?,
            generations,
            commit: number - 1,
            hash_seed: core.hash_seed,
        };
        let collector = Collector {
            past,
            start,
            generation: generations.last().copied(),
            latest,
            filter: &self.filter,
            pairs: BTreeMap::new(),
        };
        let collected = collector.collect(body);
        // After an error the same commit is read again, and must not find itself.
        let pairs = collected.inspect_err(|_| self.reader.latest.clear())?;
        drop(retained);
        follower.position = number;
        self.position = number;
        follower.advance(core);
        Ok(StoredCommit { number, time, pairs })
    }

    /// Learns the names of maps that the commit made or renamed. Those of dropped maps stay: their pairs may follow,
    /// and ids are never used again.
    fn note_names(&mut self, pairs: &Pairs) -> Result<()> {
        for (full_key, pair) in pairs.range(..FIRST_USER_MAP.to_be_bytes().to_vec()) {
            if let Some(id) = &pair.new {
                self.names.insert(map_id(id)?, name_of(full_key));
            }
        }
        Ok(())
    }

    /// The changes with the names of their maps; `None`: the filter lets none through.
    fn name(&self, core: &Core, number: u64, pairs: Pairs) -> Option<CommitChanges> {
        let named = |(full_key, StoredChange { old, new }): (Vec<u8>, StoredChange)| {
            let (map, key) = split(&full_key);
            let name = self.names.get(&map).cloned();
            let map_name = name.unwrap_or_else(|| core.catalog.name_of(map));
            (map >= FIRST_USER_MAP && !is_reserved(&map_name)).then(|| Change {
                map: map_name,
                key: key.to_vec(),
                old,
                new,
            })
        };
        let changes: Vec<Change> = pairs.into_iter().filter_map(named).collect();
        let is_wanted = !matches!(self.filter, Filter::Maps(_)) || !changes.is_empty();
        is_wanted.then_some(CommitChanges { number, changes })
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let core = &self.handle.core;
        if core.region.is_forked() {
            return;
        }
        core.streams
            .list()
            .retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(&self.follower)));
        // The folding thread may still have hold of the follower, so the pin is given back here.
        locked(&self.follower).let_go(core, State::Lost);
    }
}

fn locked(follower: &Mutex<Follower>) -> MutexGuard<'_, Follower> {
    follower.lock().unwrap_or_else(|e| e.into_inner())
}
