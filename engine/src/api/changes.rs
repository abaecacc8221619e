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

use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use duramen_io::{wait, wake};

use crate::api::map::Map;
use crate::api::store::Handle;
use crate::btree::{Cursor, Root};
use crate::checksum::key_hash;
use crate::core::Core;
use crate::core::catalog::map_id;
use crate::core::pins::{Purpose, describe};
use crate::core::streams::{Follower, Hold, State};
use crate::error::{Error, Reason, Result};
use crate::key::full_key::{CATALOG, FIRST_USER_MAP, FullRange, split};
use crate::limits::{MAP_ID_BYTES, STREAM_KEYS_MAX};
use crate::log::decode_root;
use crate::log::{
    LOG_START, Operation, OperationKind, Operations, RECORD_HEADER_BYTES, SegmentHeader, first_record, record_bytes,
};
use crate::map_name::is_reserved;
use crate::read::deleted::{Deleted, Replayed};
use crate::read::scan::Scan;
use crate::read::value::{Entry, Source};
use crate::read::view::{GenerationView, entry_at, in_tree, recent};
use crate::read::write_set::OwnWrites;
use crate::region::{GenerationEntry, GenerationState, Patience, Version};

/// How long a stream waits at a time while generations are freed.
const FREEING_WAIT: Duration = Duration::from_millis(10);
/// Number of waits of [`FREEING_WAIT`] for streams, each of which reads one commit at a time, between two checks of the
/// process that is waited for.
const FREEING_WAITS_PER_LOOK: u32 = 10;
const FREEING_STEP: Duration = Duration::from_micros(200);
const FREEING_ROUNDS_MAX: u32 = 500;

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
                reader.cursor = hold
                    .version
                    .generations
                    .last()
                    .and_then(|&slot| LogCursor::at(core, slot, Some(tail)));
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
            filter: Filter { maps: None },
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
        self.filter.maps = (!ids.is_empty()).then_some(ids);
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
                let read = self.read(core, limit)?;
                if read.is_some() {
                    return Ok(read);
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

    /// Reads one commit; `None`: the filter lets nothing of it through.
    fn read(&mut self, core: &Core, limit: u64) -> Result<Option<CommitChanges>> {
        let number = self.position + 1;
        let mut follower = locked(&self.follower);
        let retained = core.keep_generations()?;
        let version = follower.hold(core)?.version.clone();
        let (start, body) = self.reader.record(core, &version, number)?;
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
        drop(follower);
        self.note_names(&pairs)?;
        Ok(self.name(core, number, pairs))
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

    fn name(&self, core: &Core, number: u64, pairs: Pairs) -> Option<CommitChanges> {
        let named = |(full_key, Pair { old, new }): (Vec<u8>, Pair)| {
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
        (self.filter.maps.is_none() || !changes.is_empty()).then_some(CommitChanges { number, changes })
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

/// Keeps generations from being freed while a stream reads them without a pin.
pub(crate) struct KeptGenerations<'a> {
    reading: &'a AtomicU32,
}

impl Drop for KeptGenerations<'_> {
    fn drop(&mut self) {
        // Release: a thread that finds no readers runs after their reads.
        self.reading.fetch_sub(1, Ordering::Release);
    }
}

impl Core {
    /// Called after every commit.
    #[inline]
    pub(crate) fn wake_waiting_streams(&self) {
        if self.control().streams_waiting.0.load(Ordering::Relaxed) != 0 {
            self.wake_streams();
        }
    }

    /// Wakes all streams, so that they look at the state of the store again.
    #[cold]
    pub(crate) fn wake_streams(&self) {
        let control = self.control();
        control.streams_waiting.0.store(0, Ordering::Relaxed);
        // Release: who sees the new word sees what it was changed for.
        control.streams_word.fetch_add(1, Ordering::AcqRel);
        wake(&control.streams_word, u32::MAX);
    }

    /// Keeps all generations as they are while a stream reads. A thread that frees a generation first blocks new reads,
    /// and then waits for those in progress.
    ///
    /// # Errors
    /// [`Reason::Busy`] when a process was stopped while it freed one.
    fn keep_generations(&self) -> Result<KeptGenerations<'_>> {
        let (mut patience, mut rounds) = (Patience::default(), 0u32);
        let reading = &self.region.process(self.region.me()).reading;
        let freeing = &self.control().freeing;
        loop {
            // SeqCst, as in `while_nobody_reads`: either this thread sees the freeing thread, or that thread sees this
            // one.
            reading.fetch_add(1, Ordering::SeqCst);
            let kept = KeptGenerations { reading };
            if freeing.load(Ordering::SeqCst) == 0 {
                return Ok(kept);
            }
            drop(kept);
            if wait(freeing, 1, Some(FREEING_WAIT)) {
                // It gets on, perhaps with the next generation by now.
                (patience, rounds) = (Patience::default(), 0);
                continue;
            }
            rounds += 1;
            if rounds.is_multiple_of(FREEING_WAITS_PER_LOOK)
                && let Some(holder) = self.control().maintenance_lock.0.holder()
            {
                patience.look(&self.region, holder, 0)?;
            }
        }
    }

    /// Frees something that streams read without a pin, under the maintenance lock. `false`: a stream keeps reading.
    pub(crate) fn while_nobody_reads(&self, free: impl FnOnce()) -> bool {
        let freeing = &self.control().freeing;
        freeing.store(1, Ordering::SeqCst);
        let is_read = || {
            self.region
                .processes()
                .any(|(_, entry)| entry.reading.load(Ordering::SeqCst) > 0)
        };
        let mut rounds = 0;
        while is_read() && rounds < FREEING_ROUNDS_MAX {
            std::thread::sleep(FREEING_STEP);
            rounds += 1;
        }
        let is_free = rounds < FREEING_ROUNDS_MAX;
        if is_free {
            free();
        }
        freeing.store(0, Ordering::SeqCst);
        wake(freeing, u32::MAX);
        is_free
    }

    /// Moves the pins of all streams that no longer need what they hold. Called by the folding thread, with the
    /// maintenance lock; a stream that is being read moves by itself.
    pub(crate) fn move_streams(&self) {
        let followers: Vec<_> = self.streams.list().iter().filter_map(Weak::upgrade).collect();
        for follower in followers {
            if let Ok(mut follower) = follower.try_lock() {
                follower.advance(self);
            }
        }
    }

    /// The oldest commit that a stream can begin after, as far as that can be told without waiting for a fold.
    fn oldest_retained(&self) -> u64 {
        let oldest = self
            .try_hold_maintenance()
            .ok()
            .flatten()
            .and_then(|state| state.history.front().map(|(_, version, _)| version.reaches));
        oldest.unwrap_or_else(|| self.region.version().reaches)
    }

    /// Slots of the generations whose logs and indexes can be read. While they are kept it stays that way.
    fn readable_slots(&self) -> impl Iterator<Item = u16> {
        let is_readable = |entry: &GenerationEntry| match entry.state() {
            GenerationState::Active | GenerationState::Frozen | GenerationState::Folded => true,
            GenerationState::Unused | GenerationState::Preparing | GenerationState::Standby => false,
        };
        self.region
            .generations()
            .filter_map(move |(slot, entry)| is_readable(entry).then_some(slot))
    }

    /// The generations that hold commits after this one, up to generation `newest`, oldest first.
    pub(crate) fn generations_between(&self, commit: u64, newest: u32) -> Result<Vec<GenerationView<'_>>> {
        let number = |slot: u16| self.entry(slot).number.load(Ordering::Relaxed);
        let wanted =
            |&slot: &u16| self.entry(slot).last_commit.load(Ordering::Relaxed) > commit && number(slot) <= newest;
        let mut slots: Vec<u16> = self.readable_slots().filter(wanted).collect();
        slots.sort_unstable_by_key(|&slot| number(slot));
        slots.into_iter().map(|slot| self.generation_view(slot)).collect()
    }
}

impl Follower {
    /// What it holds, or why it holds nothing any more.
    fn hold(&mut self, core: &Core) -> Result<&Hold> {
        self.notice_end(core);
        match &self.state {
            State::Following(hold) => Ok(hold),
            State::Lost => Err(Reason::NotRetained {
                asked: self.position,
                oldest: core.oldest_retained(),
            }
            .into()),
            State::Ended => Err(Reason::SnapshotEnded.into()),
        }
    }

    fn notice_end(&mut self, core: &Core) {
        let State::Following(hold) = &self.state else { return };
        if core.region.pinned(&hold.pin).is_ended() {
            self.let_go(core, State::Ended);
        } else if core.control().tail.0.checkable_since.load(Ordering::Relaxed) > hold.commit {
            self.let_go(core, State::Lost);
        }
    }

    fn let_go(&mut self, core: &Core, state: State) {
        if let State::Following(hold) = std::mem::replace(&mut self.state, state) {
            core.unpin(&hold.pin);
        }
    }

    /// Moves the pin to the published version, if that shows everything from the position on.
    fn advance(&mut self, core: &Core) {
        self.notice_end(core);
        let State::Following(hold) = &self.state else { return };
        let published = core.region.version();
        if published.number == hold.version.number || published.reaches > self.position {
            return;
        }
        // Without a free slot the old pin does as well.
        let Ok((next, _)) = Hold::newest(core) else { return };
        // A fold may have published another version in between.
        if next.version.reaches <= self.position {
            self.let_go(core, State::Following(next));
        } else {
            core.unpin(&next.pin);
        }
    }
}

impl Hold {
    /// Pins what is published now. Also returns the end of the log.
    fn newest(core: &Core) -> Result<(Hold, u64)> {
        // Under the commit lock no generation can begin before this follows those that will.
        let _guard = core.hold_commits()?;
        let (pin, version, commit) = core.region.pin(0, &core.control().visible.0)?;
        describe(core, &pin, Purpose::Changes);
        let hold = Hold { pin, version, commit };
        let tail = hold.follow(core);
        Ok((hold, tail))
    }

    /// Lets the generations after those of the version be kept. Returns the end of its newest one.
    fn follow(&self, core: &Core) -> u64 {
        // A store that was opened read-only has no generation that takes commits, and none will follow.
        let Some(&newest) = self.version.generations.last() else {
            return first_record(core.unit);
        };
        let entry = core.entry(newest);
        core.region
            .follow(&self.pin, Some(entry.number.load(Ordering::Relaxed)));
        entry.tail.load(Ordering::Acquire)
    }

    /// Pins a version from which everything after `commit` can be read.
    fn after(core: &Core, commit: u64) -> Result<Hold> {
        let (hold, _) = Hold::newest(core)?;
        if commit > hold.commit {
            let newest = hold.commit;
            core.unpin(&hold.pin);
            let cause = format!(
                "commit {commit} is not in the store, whose newest is {newest}; if it was there, a power cut took it \
                 before it was synced"
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        if hold.version.reaches <= commit {
            return Ok(hold);
        }
        core.unpin(&hold.pin);
        Hold::kept(core, commit)
    }

    /// Pins a version that folding kept for streams.
    fn kept(core: &Core, commit: u64) -> Result<Hold> {
        // While this lock is held nothing is freed.
        let state = core.hold_maintenance()?;
        let kept = state
            .history
            .iter()
            .rev()
            .find(|(_, version, _)| version.reaches <= commit);
        let Some((pin, version, _)) = kept else {
            let oldest = state
                .history
                .front()
                .map_or_else(|| core.region.version().reaches, |(_, version, _)| version.reaches);
            return Err(Reason::NotRetained { asked: commit, oldest }.into());
        };
        let visible = core.region.pinned(pin).commit.load(Ordering::Relaxed);
        let pin = core.region.pin_again(version.number, visible)?;
        describe(core, &pin, Purpose::Changes);
        let hold = Hold {
            pin,
            version: version.clone(),
            commit: visible,
        };
        hold.follow(core);
        Ok(hold)
    }
}

/// Where a stream reads the log, and the generations in which it looks old values up. Valid for one pinned version.
#[derive(Debug, Default)]
struct Reader {
    /// Number of the version that `generations` belong to; 0: none yet.
    version: u64,
    cursor: Option<LogCursor>,
    /// Those above the version's base, up to that of the cursor.
    generations: Vec<GenerationView<'static>>,
    /// What is deleted by ranges in those.
    deleted: Replayed,
    latest: Latest,
}

/// A place in the log.
#[derive(Clone, Copy, Debug)]
struct LogCursor {
    slot: u16,
    segment: SegmentHeader,
    /// A record begins here, or at the next write unit.
    position: u64,
}

impl LogCursor {
    /// `None`: the log file has lost its header.
    fn at(core: &Core, slot: u16, position: Option<u64>) -> Option<LogCursor> {
        // SAFETY: the header was written before the generation went live, and the caller holds the generation.
        let head = unsafe { core.log_view(slot).ok()?.bytes(0, LOG_START) };
        let segment = SegmentHeader::decode(head, core.store)?;
        Some(LogCursor {
            slot,
            segment,
            position: position.unwrap_or(first_record(segment.unit.into())),
        })
    }

    /// Whether the generation is still there and holds a commit that is not before the cursor.
    fn leads_to(&self, core: &Core, commit: u64) -> bool {
        let entry = core.entry(self.slot);
        core.readable_slots().any(|slot| slot == self.slot)
            && entry.number.load(Ordering::Relaxed) == self.segment.generation
            && entry.last_commit.load(Ordering::Relaxed) >= commit
    }
}

impl Reader {
    /// The body of the record of a commit, and its position in the log. The caller holds the version, the retention
    /// lock, and keeps both as long as it uses the body.
    fn record<'a>(&mut self, core: &'a Core, version: &Version, commit: u64) -> Result<(u32, &'a [u8])> {
        self.enter(core, version, commit)?;
        let damaged = || Error::damaged(format!("the log has no intact record of commit {commit}"));
        let cursor = self.cursor.as_mut().ok_or_else(damaged)?;
        let log = core.log_view(cursor.slot)?;
        // Acquire: pairs with the release by the committer, who wrote the record before.
        let end = core.entry(cursor.slot).tail.load(Ordering::Acquire);
        loop {
            // SAFETY: the end is the entry's, and the caller keeps the generation.
            let found = unsafe { log.record(cursor.position, end, &cursor.segment, &core.seeds) };
            let (position, header, body) = found.ok_or_else(damaged)?;
            cursor.position = position;
            match header.commit.cmp(&commit) {
                std::cmp::Ordering::Less => cursor.position += record_bytes(body.len()),
                std::cmp::Ordering::Equal => return Ok((position as u32 + RECORD_HEADER_BYTES as u32, body)),
                std::cmp::Ordering::Greater => return Err(damaged()),
            }
        }
    }

    /// Puts the cursor into the generation of a commit.
    fn enter(&mut self, core: &Core, version: &Version, commit: u64) -> Result<()> {
        let stays = self.cursor.is_some_and(|cursor| cursor.leads_to(core, commit));
        if stays && self.version == version.number {
            return Ok(());
        }
        if !stays {
            let holds = |slot: &u16| {
                let entry = core.entry(*slot);
                entry.first_commit.load(Ordering::Relaxed) <= commit
                    && commit <= entry.last_commit.load(Ordering::Relaxed)
            };
            let slot = core.readable_slots().find(holds);
            self.cursor = slot.and_then(|slot| LogCursor::at(core, slot, None));
        }
        let newest = self.cursor.map_or(u32::MAX, |cursor| cursor.segment.generation);
        let generations = core.generations_between(version.base_commit, newest)?;
        // SAFETY: the caller holds a pin of the version for as long as it reads through this reader. With another
        // version these are replaced, and what `latest` has of them is cleared.
        let kept = generations
            .into_iter()
            .map(|generation| unsafe { generation.unbound() });
        self.generations = kept.collect();
        self.deleted.generations_changed();
        if self.version != version.number {
            self.latest.clear();
        }
        self.version = version.number;
        Ok(())
    }
}

/// Where the newest operation on a key lies, for keys that were read lately. Without it a stream far behind would walk
/// through all newer versions of a key that is written again and again, once for each.
///
/// Invariant: of a key in it nothing newer was read than what it says.
#[derive(Default)]
struct Latest {
    is_on: bool,
    operations: HashMap<Box<[u8]>, (GenerationView<'static>, u32)>,
}

impl fmt::Debug for Latest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latest")
            .field("keys", &self.operations.len())
            .finish_non_exhaustive()
    }
}

impl Latest {
    fn switch(&mut self, is_on: bool) {
        if !is_on {
            self.clear();
        }
        self.is_on = is_on;
    }

    fn clear(&mut self) {
        self.operations.clear();
    }

    fn entry<'a>(&self, full_key: &[u8]) -> Result<Option<Entry<'a>>> {
        let Some((generation, position)) = self.operations.get(full_key) else {
            return Ok(None);
        };
        Ok(Some(Entry::stored(generation.stored(*position)?)))
    }

    fn note(&mut self, full_key: &[u8], generation: GenerationView<'static>, position: u32) {
        if !self.is_on {
            return;
        }
        if let Some(known) = self.operations.get_mut(full_key) {
            *known = (generation, position);
            return;
        }
        if self.operations.len() == STREAM_KEYS_MAX {
            self.clear();
        }
        self.operations.insert(full_key.into(), (generation, position));
    }
}

/// Which maps a stream delivers; `None`: all.
#[derive(Debug)]
struct Filter {
    maps: Option<Vec<u32>>,
}

impl Filter {
    /// Whether changes of a map are looked at: those of the catalog always, because it has the names.
    fn wants(&self, map: u32) -> bool {
        map == CATALOG
            || map >= FIRST_USER_MAP && self.maps.as_ref().is_none_or(|maps| maps.binary_search(&map).is_ok())
    }

    /// The watched keys as ranges of full keys.
    fn ranges(&self) -> Vec<FullRange> {
        let mut ranges = vec![FullRange::map(CATALOG)];
        match &self.maps {
            Some(maps) => ranges.extend(maps.iter().map(|&map| FullRange::map(map))),
            None => ranges.push(FullRange::from_map(FIRST_USER_MAP)),
        }
        ranges
    }
}

/// What a commit did to a key.
#[derive(Debug)]
struct Pair {
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
}

/// By full key.
type Pairs = BTreeMap<Vec<u8>, Pair>;

/// The store as of a commit: a base and the generations above it.
struct Past<'g, 'p, S> {
    source: S,
    root: Root,
    generations: &'g [GenerationView<'p>],
    deleted: Deleted,
    commit: u64,
    hash_seed: u64,
}

impl<'a, S: Source<'a>> Past<'_, 'a, S> {
    fn resolve(&self, entry: Entry<'a>) -> Result<Option<Vec<u8>>> {
        Ok(entry.resolve(self.source)?.map(|value| value.to_vec()))
    }

    fn get(&self, full_key: &[u8]) -> Result<Option<Vec<u8>>> {
        let hash = key_hash(self.hash_seed, full_key);
        let found = recent(
            self.source,
            self.generations,
            &self.deleted,
            full_key,
            hash,
            self.commit,
        )?;
        if let Some((_, entry)) = found {
            return self.resolve(entry);
        }
        match in_tree(self.source, self.root, full_key, hash)? {
            Some(entry) => self.resolve(entry),
            None => Ok(None),
        }
    }

    /// Visits the pairs of a range.
    fn each(&self, range: FullRange, mut visit: impl FnMut(&[u8], Vec<u8>)) -> Result<()> {
        let (source, deleted) = (self.source, &self.deleted);
        let mut scan = Scan::over(
            source,
            self.root,
            self.generations,
            deleted,
            self.commit,
            OwnWrites::default(),
            range,
        );
        while let Some(entry) = scan.next()? {
            if let Some(value) = self.resolve(entry)? {
                visit(scan.key(), value);
            }
        }
        Ok(())
    }
}

/// Puts together what one record did: range deletes first, then its run, then its single operations.
struct Collector<'g, 'p, S> {
    past: Past<'g, 'p, S>,
    /// Position of the record's body in the newest generation's log.
    start: u32,
    /// The generation that has the record.
    generation: Option<GenerationView<'static>>,
    latest: &'g mut Latest,
    filter: &'g Filter,
    pairs: Pairs,
}

impl<'a, S: Source<'a>> Collector<'_, 'a, S> {
    fn collect(mut self, body: &'a [u8]) -> Result<Pairs> {
        for operation in Operations::of(body) {
            let (position, operation) = operation?;
            match operation.kind {
                OperationKind::DeleteRange => {
                    self.latest.clear();
                    self.collect_deleted(operation.full_key, operation.value)?;
                }
                OperationKind::Run => {
                    self.latest.clear();
                    self.collect_run(decode_root(operation.value))?;
                }
                OperationKind::Put | OperationKind::PutExtent | OperationKind::Delete => {
                    self.collect_single(operation, self.start + position as u32)?
                }
            }
        }
        self.pairs.retain(|_, pair| pair.old.is_some() || pair.new.is_some());
        Ok(self.pairs)
    }

    fn collect_single(&mut self, operation: Operation<'a>, position: u32) -> Result<()> {
        let (map, _) = split(operation.full_key);
        if !self.filter.wants(map) {
            return Ok(());
        }
        self.set(operation.full_key, Entry::stored(operation.stored()))?;
        if let Some(generation) = self.generation {
            self.latest.note(operation.full_key, generation, position);
        }
        Ok(())
    }

    fn collect_deleted(&mut self, low: &[u8], high: &[u8]) -> Result<()> {
        for wanted in self.filter.ranges() {
            let range = FullRange::between(low.max(&wanted.low), high.min(&wanted.high));
            let pairs = &mut self.pairs;
            self.past.each(range, |key, value| {
                let (old, new) = (Some(value), None);
                pairs.insert(key.to_vec(), Pair { old, new });
            })?;
        }
        Ok(())
    }

    fn collect_run(&mut self, root: Root) -> Result<()> {
        for wanted in self.filter.ranges() {
            let mut cursor = Cursor::new(self.past.source, root);
            cursor.seek(&wanted.low)?;
            while cursor.is_valid() && cursor.key() < wanted.high.as_slice() {
                let (page, location) = cursor.value();
                let entry = entry_at::<S>(page, location);
                self.set(cursor.key(), entry)?;
                cursor.next()?;
            }
        }
        Ok(())
    }

    fn set(&mut self, full_key: &[u8], entry: Entry<'a>) -> Result<()> {
        let new = self.past.resolve(entry)?;
        match self.pairs.entry(full_key.to_vec()) {
            Place::Occupied(mut place) => place.get_mut().new = new,
            Place::Vacant(place) => {
                let old = match self.latest.entry(full_key)? {
                    Some(entry) => self.past.resolve(entry)?,
                    None => self.past.get(full_key)?,
                };
                place.insert(Pair { old, new });
            }
        }
        Ok(())
    }
}

/// The names of all maps after a commit.
fn names_at(core: &Core, version: &Version, commit: u64) -> Result<HashMap<u32, String>> {
    let _retained = core.keep_generations()?;
    let generations = core.generations_between(version.base_commit, u32::MAX)?;
    let mut names = HashMap::new();
    let mut damage = Ok(());
    let past = Past {
        source: core.source(),
        root: version.root,
        generations: &generations,
        deleted: Deleted::all(&generations, version.base_commit, commit)?,
        commit,
        hash_seed: core.hash_seed,
    };
    past.each(FullRange::map(CATALOG), |full_key, id| match map_id(&id) {
        Ok(id) => drop(names.insert(id, name_of(full_key))),
        Err(error) => damage = Err(error),
    })?;
    damage.map(|()| names)
}

/// The name in a full key of the catalog.
fn name_of(full_key: &[u8]) -> String {
    String::from_utf8_lossy(&full_key[MAP_ID_BYTES..]).into_owned()
}

fn locked(follower: &Mutex<Follower>) -> MutexGuard<'_, Follower> {
    follower.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Maintenance, Options};

    #[test]
    fn streams_wait_for_somebody_who_frees_one_generation_after_the_other() {
        let disk = SimDisk::new(1);
        let open = || Options::new().maintenance(Maintenance::Manual).open_on(disk.platform());
        let (store, other) = (open().expect("a store"), open().expect("a store"));
        let _maintenance = store.core().hold_maintenance().expect("no other process has it");
        let freeing = &store.core().control().freeing;
        freeing.store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    std::thread::sleep(Duration::from_millis(2));
                    freeing.store(0, Ordering::SeqCst);
                    freeing.store(1, Ordering::SeqCst);
                    wake(freeing, u32::MAX);
                }
                freeing.store(0, Ordering::SeqCst);
            });
            other
                .core()
                .keep_generations()
                .map(drop)
                .expect("no process is suspended");
        });
    }
}
