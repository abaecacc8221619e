//! The commit pipeline: how a set of operations becomes durable, visible and ordered.
//!
//! The simple version: take the lock, check conflicts, write one record to the log, put its operations into the index,
//! publish the commit number, let go of the lock, and for `Synced` wait until the log has been synced that far.
//!
//! Why it is hard: whatever can fail must fail before the record is written, because afterwards the commit stands;
//! what is slow must happen outside the lock; and what is acknowledged must be in the kernel (`Written`) or on the
//! device (`Synced`), whichever thread did the work.
//!
//! Invariants: `synced <= visible`; `visible` advances by one per record, in log order; a record is in the log before
//! its operations are in the index, and they are before `visible` reaches it, so readers never meet half a commit.
//!
//! Outline of `commit`:
//! 1. outside the lock: the body is encoded, the pages that folding it may take are promised (the disk may be full);
//! 2. under the lock: maps still exist; conflicts; room in the generation, rotating to the next one when it is full
//!    (or waiting, outside the lock, for a fold); numbers for `append` and sums for `add` are filled in;
//! 3. the record is written with one call; index; notes; `visible`;
//! 4. outside the lock: one waiter syncs for all who wait (no timer: whoever comes while a sync runs is served by the
//!    next one; compare arXiv 2606.18187).

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use duramen_io::{wait, wake};

use crate::base::Stored;
use crate::catalog::MapInfo;
use crate::checksum::{checksum, key_hash};
use crate::core::{Core, with_source};
use crate::error::{Error, Kind, Reason, Result, printable};
use crate::full_key::{COUNTERS, FullKey, FullRange, check_key};
use crate::index::IndexCursor;
use crate::limits::{
    INLINE_VALUE_BYTES_MAX, KEY_BYTES_MAX, LIVE_GENERATIONS_MAX, LOG_GROWTH_BYTES, LOG_RESERVE_BYTES, LOG_SPAN_BYTES,
    NOTES_PER_GENERATION_MAX, PAGE_BYTES, WAIT_ROUNDS_MAX,
};
use crate::log::{
    Body, LOG_START, Operation, OperationKind, RECORD_HEADER_BYTES, RecordHeader, SECTOR_BYTES, record_bytes,
};
use crate::planted::{PlantedBug, is_planted};
use crate::promises::FoldCosts;
use crate::region::{GenerationEntry, GenerationState};
use crate::view::{GenerationView, Note, decode_root};

/// Holders of log files that an error names; `stat` lists all.
const LISTED_HOLDERS_MAX: usize = 3;

/// Token of those who hold nothing exclusively.
pub(crate) const NOT_EXCLUSIVE: u32 = 0;

/// What a commit returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub(crate) number: u64,
    pub(crate) assigned: Vec<u64>,
}

impl Commit {
    /// Position of the commit in the order of all commits of the store, counting from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The numbers that `append` operations got, in the order in which they were called.
    pub fn assigned(&self) -> &[u64] {
        &self.assigned
    }
}

/// How long a commit must last before its call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The commit, and every one before it, survives power loss.
    #[default]
    Synced,
    /// The commit is in the kernel's memory of a file in the store's directory: it survives the death of every
    /// process. A power cut may take the newest such commits, always a suffix, never a mix.
    Written,
}

/// A commit being put together.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) body: Body,
    planned: Vec<Planned>,
    appends: Vec<Append>,
    adds: Vec<Add>,
    maps: Vec<Arc<MapInfo>>,
    /// Maps that the commit makes and drops, and new names it gives.
    pub(crate) created: Vec<u32>,
    pub(crate) dropped: Vec<u32>,
    pub(crate) renamed: Vec<(u32, String)>,
    assigned: Vec<u64>,
    adds_anything: bool,
    notes: u64,
    /// What folding the draft takes beyond what its operations and bytes say; see [`fold_costs`].
    costs: FoldCosts,
}

/// What folding an operation takes beyond one operation and its bytes: a run counts with all its pairs, and a value
/// that is too long for a leaf takes whole pages.
pub(crate) fn fold_costs(kind: OperationKind, value: &[u8]) -> FoldCosts {
    match kind {
        OperationKind::Run => FoldCosts {
            operations: decode_root(value).pairs,
            ..FoldCosts::default()
        },
        OperationKind::Put if value.len() > INLINE_VALUE_BYTES_MAX => FoldCosts {
            operations: 0,
            bytes: (value.len().next_multiple_of(PAGE_BYTES) - value.len()) as u64,
            value_pages: value.len().div_ceil(PAGE_BYTES) as u64,
        },
        _ => FoldCosts::default(),
    }
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    /// Position of the operation in the body.
    position: u32,
    hash: u64,
    is_note: bool,
}

/// Appends of one prefix: the operations whose keys end in the assigned number, and the counter.
#[derive(Debug)]
struct Append {
    counter: Vec<u8>,
    /// Index of the counter's operation in `planned`, then of the others, with their places in `assigned`.
    counter_operation: usize,
    operations: Vec<(usize, usize)>,
}

/// An addition: the value of the planned operation is filled in under the lock.
#[derive(Clone, Copy, Debug)]
struct Add {
    operation: usize,
    delta: i64,
    base: AddTo,
}

/// What an addition adds to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddTo {
    /// What the store holds when the commit is made.
    Newest,
    /// What an earlier operation of the same draft leaves.
    Operation(usize),
    /// Nothing: the draft deletes a range that holds the key.
    Nothing,
}

impl Draft {
    pub(crate) fn new() -> Draft {
        Draft {
            body: Body::new(),
            planned: Vec::new(),
            appends: Vec::new(),
            adds: Vec::new(),
            maps: Vec::new(),
            created: Vec::new(),
            dropped: Vec::new(),
            renamed: Vec::new(),
            assigned: Vec::new(),
            adds_anything: false,
            notes: 0,
            costs: FoldCosts::default(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.body.clear();
        self.planned.clear();
        self.appends.clear();
        self.adds.clear();
        self.maps.clear();
        self.created.clear();
        self.dropped.clear();
        self.renamed.clear();
        self.assigned.clear();
        self.adds_anything = false;
        self.notes = 0;
        self.costs = FoldCosts::default();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    /// Adds a put, delete or put of an extent. Returns its index.
    pub(crate) fn push(&mut self, kind: OperationKind, full_key: &[u8], value: &[u8], seed: u64) -> usize {
        let position = self.body.push(kind, full_key, value) as u32;
        let hash = key_hash(seed, full_key);
        self.planned.push(Planned {
            position,
            hash,
            is_note: false,
        });
        self.costs += fold_costs(kind, value);
        self.adds_anything |= kind != OperationKind::Delete;
        self.planned.len() - 1
    }

    /// Adds a range delete or run; these come before all single operations.
    pub(crate) fn push_note(&mut self, kind: OperationKind, low: &[u8], value: &[u8]) {
        let position = self.body.push(kind, low, value) as u32;
        self.planned.push(Planned {
            position,
            hash: 0,
            is_note: true,
        });
        self.costs += fold_costs(kind, value);
        self.adds_anything |= kind == OperationKind::Run;
        self.notes += 1;
    }

    /// Adds an append: `prefix` is a full key to which the commit adds a number.
    pub(crate) fn push_append(&mut self, map: u32, prefix: &[u8], kind: OperationKind, value: &[u8]) -> Result<()> {
        let mut key = Vec::with_capacity(prefix.len() + 8);
        key.extend_from_slice(prefix);
        key.extend_from_slice(&[0; 8]);
        check_key(&key)?;
        let full = FullKey::new(map, &key)?;
        let mut counter = map.to_be_bytes().to_vec();
        counter.extend_from_slice(prefix);
        if counter.len() > KEY_BYTES_MAX {
            return Err(Reason::KeyTooLong {
                length: prefix.len(),
                max: KEY_BYTES_MAX - 8,
            }
            .into());
        }
        let counter = FullKey::new(COUNTERS, &counter)?;
        let position = self.body.push(kind, &full, value) as u32;
        self.planned.push(Planned {
            position,
            hash: 0,
            is_note: false,
        });
        let operation = self.planned.len() - 1;
        let place = self.assigned.len();
        self.assigned.push(0);
        self.costs += fold_costs(kind, value);
        self.adds_anything = true;
        match self.appends.iter_mut().find(|append| append.counter[..] == counter[..]) {
            Some(append) => append.operations.push((operation, place)),
            None => {
                let position = self.body.push(OperationKind::Put, &counter, &[0; 8]) as u32;
                self.planned.push(Planned {
                    position,
                    hash: 0,
                    is_note: false,
                });
                self.appends.push(Append {
                    counter: counter.to_vec(),
                    counter_operation: self.planned.len() - 1,
                    operations: vec![(operation, place)],
                });
            }
        }
        Ok(())
    }

    /// Adds an addition to a counter. Returns its index.
    pub(crate) fn push_add(&mut self, full_key: &[u8], delta: i64, base: AddTo, seed: u64) -> usize {
        let operation = self.push(OperationKind::Put, full_key, &[0; 8], seed);
        self.adds.push(Add { operation, delta, base });
        operation
    }

    /// The sum that the commit computed for its first addition.
    pub(crate) fn first_sum(&self) -> i64 {
        let operation = self.adds[0].operation;
        let start = self.planned[operation].position as usize + 8 + self.full_key(operation).len();
        i64::from_be_bytes(self.body.body()[start..start + 8].try_into().expect("eight bytes"))
    }

    /// What folding the draft takes.
    fn fold_costs(&self) -> FoldCosts {
        FoldCosts {
            operations: self.costs.operations + self.planned.len() as u64,
            bytes: self.costs.bytes + self.body.len() as u64,
            value_pages: self.costs.value_pages,
        }
    }

    /// The numbers that the commit assigned.
    pub(crate) fn assigned(&self) -> &[u64] {
        &self.assigned
    }

    /// Remembers that the commit needs this map to exist.
    pub(crate) fn needs(&mut self, map: &Arc<MapInfo>) {
        if !self.maps.iter().any(|known| Arc::ptr_eq(known, map)) {
            self.maps.push(map.clone());
        }
    }

    fn full_key(&self, operation: usize) -> &[u8] {
        let body = &self.body.body()[self.planned[operation].position as usize..];
        &body[8..12 + u16::from_le_bytes([body[2], body[3]]) as usize]
    }

    /// What an operation, which is a put or delete, leaves at its key.
    fn stored(&self, operation: usize) -> Result<Stored<'_>> {
        let body = &self.body.body()[self.planned[operation].position as usize..];
        Ok(Operation::decode(body)?.0.stored())
    }

    /// The eight bytes at the end of an operation's key.
    fn set_key_end(&mut self, operation: usize, number: u64, seed: u64) {
        let start = self.planned[operation].position as usize;
        let end = start + 8 + self.full_key(operation).len();
        self.body.body_mut()[end - 8..end].copy_from_slice(&number.to_be_bytes());
        self.planned[operation].hash = key_hash(seed, self.full_key(operation));
    }

    /// The eight bytes of an operation's value.
    fn set_value(&mut self, operation: usize, value: [u8; 8]) {
        let start = self.planned[operation].position as usize + 8 + self.full_key(operation).len();
        self.body.body_mut()[start..start + 8].copy_from_slice(&value);
    }

    fn rehash(&mut self, operation: usize, seed: u64) {
        self.planned[operation].hash = key_hash(seed, self.full_key(operation));
    }
}

/// What must not have changed since a transaction began.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// The commit that the transaction sees.
    pub(crate) since: u64,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) ranges: Vec<FullRange>,
    /// Runs of changes whose keys are written; their keys are checked one by one.
    pub(crate) runs: Vec<crate::base::Root>,
}

/// What stands in the way of appending a record.
enum Room {
    Ready,
    /// A fold must free a generation first.
    Wait,
    /// The next generation but one is to be prepared first, so that deletions have it when the disk is full. Not under
    /// the lock: files are made for it.
    Prepare,
}

impl Core {
    /// Commits a draft and waits until it lasts as asked for.
    pub(crate) fn commit(&self, draft: &mut Draft, checks: Option<&Checks>, durability: Durability) -> Result<u64> {
        let commit = self.append(draft, checks, NOT_EXCLUSIVE)?;
        if durability == Durability::Synced && !is_planted(PlantedBug::AcknowledgeBeforeSync) {
            self.wait_synced(commit)?;
        }
        Ok(commit)
    }

    /// Makes a draft visible, without waiting for a sync. `token` is that of the exclusive transaction which commits.
    pub(crate) fn append(&self, draft: &mut Draft, checks: Option<&Checks>, token: u32) -> Result<u64> {
        self.writable()?;
        let costs = draft.fold_costs();
        let bytes = costs.bytes;
        if record_bytes(draft.body.len()) + LOG_START + LOG_RESERVE_BYTES > LOG_SPAN_BYTES {
            let cause = format!("one commit holds {bytes} bytes of appends and short values; split it up");
            return Err(Reason::InvalidArgument(cause).into());
        }
        self.promise(costs, draft.adds_anything)?;
        let mut appended = self.append_promised(draft, checks, token);
        if let Err(error) = &appended
            && error.kind() == Kind::MakeSpace
            && self.give_end_back()?
        {
            appended = self.append_promised(draft, checks, token);
        }
        if appended.is_err() {
            self.space.settle(costs);
        }
        if self.folds_in_background()
            && let Some(pause) = self.pace.pause(bytes, || self.platform.clock.monotonic())
        {
            std::thread::sleep(pause);
        }
        appended
    }

    /// Makes sure that there is room to fold what a commit brings.
    fn promise(&self, costs: FoldCosts, adds_anything: bool) -> Result<()> {
        let promise = || self.space.promise(costs, !adds_anything, &self.pages);
        let is_full = |error: &Error| error.kind() == Kind::MakeSpace;
        let Err(error) = promise() else { return Ok(()) };
        if !is_full(&error) {
            return Err(error);
        }
        // A snapshot may have been dropped that held what is free now.
        if self.free_retired()? && promise().is_ok() {
            return Ok(());
        }
        // A fold takes less than was promised for it, and frees what was deleted. Not for puts: what the store has to
        // spare then is for deleting.
        if adds_anything || self.space.figures().pending_operations == 0 {
            return Err(error);
        }
        self.maintain()?;
        promise()
    }

    fn append_promised(&self, draft: &mut Draft, checks: Option<&Checks>, token: u32) -> Result<u64> {
        let (mut rounds, mut has_spare) = (0, !draft.adds_anything);
        loop {
            let seen = self.progress_seen();
            let guard = self.control().commit_lock.0.lock();
            self.writable()?;
            let exclusive = self.control().exclusive.0.load(Ordering::Relaxed);
            if exclusive != NOT_EXCLUSIVE && exclusive != token {
                drop(guard);
                wait(&self.control().exclusive.0, exclusive, Some(Duration::from_millis(20)));
                continue;
            }
            draft.maps.iter().try_for_each(|map| map.alive())?;
            if let Some(checks) = checks {
                self.check_conflicts(checks)?;
            }
            match self.make_room(draft, has_spare)? {
                Room::Ready => {
                    self.fill_in(draft)?;
                    let commit = self.write_record(draft)?;
                    drop(guard);
                    self.streams.wake_if_waiting();
                    return Ok(commit);
                }
                Room::Wait => {
                    drop(guard);
                    // A fold may take as long as it takes; but when none is due, nothing will make room.
                    let nothing_to_fold = self.region.version().generations.len() == 1;
                    rounds = if nothing_to_fold { rounds + 1 } else { 0 };
                    self.wait_for_fold(seen, rounds)?;
                    has_spare = !draft.adds_anything;
                }
                Room::Prepare => {
                    drop(guard);
                    match self.keep_spare() {
                        Err(error) if self.waits_for_fold(&error) => self.wait_for_fold(seen, 0)?,
                        kept => {
                            kept?;
                            has_spare = true;
                        }
                    }
                }
            }
        }
    }

    /// Shuts all other writers out until `end_exclusive`. Returns the token that lets the holder commit.
    pub(crate) fn begin_exclusive(&self) -> Result<u32> {
        let word = &self.control().exclusive.0;
        loop {
            self.writable()?;
            let guard = self.control().commit_lock.0.lock();
            let holder = word.load(Ordering::Relaxed);
            if holder == NOT_EXCLUSIVE {
                let token = self.control().exclusive_tokens.fetch_add(1, Ordering::Relaxed) | 1 << 31;
                word.store(token, Ordering::Release);
                return Ok(token);
            }
            drop(guard);
            wait(word, holder, Some(Duration::from_millis(20)));
        }
    }

    /// Lets the other writers in again.
    pub(crate) fn end_exclusive(&self) {
        let word = &self.control().exclusive.0;
        word.store(NOT_EXCLUSIVE, Ordering::Release);
        wake(word, u32::MAX);
    }

    fn folds_in_background(&self) -> bool {
        self.folder_runs.load(Ordering::Relaxed)
    }

    /// Waits until a fold freed a generation, or folds where nobody does it in the background.
    fn wait_for_fold(&self, seen: u64, rounds: u32) -> Result<()> {
        if rounds == if self.folds_in_background() { WAIT_ROUNDS_MAX } else { 2 } {
            return Err(self.no_log_file());
        }
        if !self.folds_in_background() {
            return self.maintain();
        }
        self.ask(|work| work.fold = true);
        self.wait_for_progress(seen);
        self.writable()?;
        self.take_fold_error().map_or(Ok(()), Err)
    }

    /// Why no generation comes free although nothing is left to fold.
    fn no_log_file(&self) -> Error {
        let holders = self.region.holders(LISTED_HOLDERS_MAX);
        if holders.is_empty() {
            let (needed, what) = (self.settings.generation_bytes_min, "the log");
            return Reason::Full { needed, what }.into();
        }
        let files = self.region.generations_used();
        Reason::LogHeld { files, holders }.into()
    }

    /// Makes sure that the record fits into the active generation.
    fn make_room(&self, draft: &Draft, has_spare: bool) -> Result<Room> {
        let tail = &self.control().tail.0;
        let active = tail.slot.load(Ordering::Relaxed) as u16;
        let bytes = record_bytes(draft.body.len());
        let reserve = if draft.adds_anything { LOG_RESERVE_BYTES } else { 0 };
        let entry = self.entry(active);
        let index = self.index(active);
        // A sync that ends right now moves the record to the next sector.
        let end = entry.tail.load(Ordering::Relaxed).next_multiple_of(SECTOR_BYTES) + bytes;
        let notes_fit = draft.notes == 0
            || index.notes().count() as u64 + draft.notes <= NOTES_PER_GENERATION_MAX
            || entry.tail.load(Ordering::Relaxed) == LOG_START;
        let fits = end + reserve <= entry.capacity.load(Ordering::Relaxed);
        if fits && notes_fit && index.has_room(draft.planned.len()) {
            match self.fill_ahead(active, end + reserve) {
                // The next log file may have blocks already.
                Err(error) if error.kind() == Kind::MakeSpace && entry.tail.load(Ordering::Relaxed) > LOG_START => {}
                filled => return filled.map(|()| Room::Ready),
            }
        }
        if !self.can_rotate() {
            return Ok(Room::Wait);
        }
        if !has_spare && self.standbys() < 2 {
            return Ok(Room::Prepare);
        }
        let rotated = match self.rotate(bytes + reserve, draft.planned.len()) {
            Err(error) if self.waits_for_fold(&error) => false,
            // Letting go of what is folded frees one too, and may be going on just now.
            Err(error) if error.kind() == Kind::MakeSpace && !draft.adds_anything && self.is_about_to_recycle() => {
                false
            }
            rotated => rotated?,
        };
        if rotated {
            self.fill_ahead(tail.slot.load(Ordering::Relaxed) as u16, LOG_START + bytes + reserve)?;
            Ok(Room::Ready)
        } else {
            Ok(Room::Wait)
        }
    }

    /// Whether a fold can be the cure: folding what is frozen frees a log file, so that it needs no new one.
    fn waits_for_fold(&self, error: &Error) -> bool {
        error.kind() == Kind::MakeSpace && self.generations_to_replay() > 1
    }

    /// Whether there may be one more generation: recovery adds one to those that it replays, and all of them must fit
    /// into one version.
    pub(crate) fn can_rotate(&self) -> bool {
        self.generations_to_replay() <= LIVE_GENERATIONS_MAX - 3
    }

    /// Whether there are generations that nobody needs any more.
    fn is_about_to_recycle(&self) -> bool {
        let pins = self.region.pins();
        self.region.generations().any(|(_, entry)| {
            let (birth, death) = (entry.birth.load(Ordering::Relaxed), entry.death.load(Ordering::Relaxed));
            entry.state() == GenerationState::Folded && (pins.everything || !pins.hold(birth, death))
        })
    }

    /// Generations that a crash now would make recovery replay: those that are not in the durable base.
    fn generations_to_replay(&self) -> usize {
        let durable = self.control().durable.0.load(Ordering::Acquire);
        let waits = |entry: &GenerationEntry| match entry.state() {
            GenerationState::Active | GenerationState::Frozen => true,
            GenerationState::Folded => entry.last_commit.load(Ordering::Relaxed) > durable,
            GenerationState::Unused | GenerationState::Preparing | GenerationState::Standby => false,
        };
        self.region.generations().filter(|(_, entry)| waits(entry)).count()
    }

    /// Fills the log file of a generation with zeros up to `end`, and a step further while that is cheap.
    fn fill_ahead(&self, slot: u16, end: u64) -> Result<()> {
        let entry = self.entry(slot);
        let filled = entry.filled.load(Ordering::Relaxed);
        if end <= filled {
            return Ok(());
        }
        let file = self.segments.file(slot)?;
        let target = (filled + LOG_GROWTH_BYTES)
            .min(entry.capacity.load(Ordering::Relaxed))
            .max(end);
        let grown = file.write_zeros(filled, target - filled).map(|()| target);
        let grown = grown.or_else(|_| file.write_zeros(filled, end - filled).map(|()| end));
        let reached = grown.map_err(|error| crate::region::full_or_io("the log", end - filled, error))?;
        entry.filled.store(reached, Ordering::Relaxed);
        Ok(())
    }

    /// Fills in what depends on the newest state: numbers and sums.
    fn fill_in(&self, draft: &mut Draft) -> Result<()> {
        if draft.appends.is_empty() && draft.adds.is_empty() {
            return Ok(());
        }
        let view = self.view_under_lock();
        let seed = self.hash_seed;
        for append in std::mem::take(&mut draft.appends) {
            let next = with_source!(self, source => view.get(source, &append.counter))?;
            let next = match next {
                Some(next) => u64::from_be_bytes(
                    (*next)
                        .try_into()
                        .map_err(|_| Error::damaged("a counter of appends has the wrong length"))?,
                ),
                None => 0,
            };
            for (number, &(operation, place)) in (next..).zip(&append.operations) {
                draft.set_key_end(operation, number, seed);
                draft.assigned[place] = number;
            }
            draft.set_value(
                append.counter_operation,
                (next + append.operations.len() as u64).to_be_bytes(),
            );
            draft.rehash(append.counter_operation, seed);
            draft.appends.push(append);
        }
        for index in 0..draft.adds.len() {
            let Add { operation, delta, base } = draft.adds[index];
            let full_key = draft.full_key(operation);
            let sum = match base {
                AddTo::Newest => {
                    let value = with_source!(self, source => view.get(source, full_key))?;
                    self.sum(full_key, value.as_deref(), delta)
                }
                AddTo::Nothing => self.sum(full_key, None, delta),
                AddTo::Operation(earlier) => match draft.stored(earlier)? {
                    Stored::Inline(value) => self.sum(full_key, Some(value), delta),
                    Stored::Deleted => self.sum(full_key, None, delta),
                    Stored::Extent(extent) => Err(self.not_a_counter(full_key, extent.length)),
                },
            }?;
            draft.set_value(operation, sum.to_be_bytes());
        }
        Ok(())
    }

    /// Adds to the value of a counter.
    pub(crate) fn sum(&self, full_key: &[u8], value: Option<&[u8]>, delta: i64) -> Result<i64> {
        let (map, key) = crate::full_key::split(full_key);
        let value = match value {
            None => 0,
            Some(bytes) => {
                let bytes = bytes.try_into();
                i64::from_be_bytes(
                    bytes.map_err(|_| self.not_a_counter(full_key, value.map_or(0, <[u8]>::len) as u64))?,
                )
            }
        };
        value.checked_add(delta).ok_or_else(|| {
            Reason::CounterOverflow {
                map: self.catalog.name_of(map),
                key: printable(key),
                value,
                delta,
            }
            .into()
        })
    }

    fn not_a_counter(&self, full_key: &[u8], length: u64) -> Error {
        let (map, key) = crate::full_key::split(full_key);
        Reason::NotACounter {
            map: self.catalog.name_of(map),
            key: printable(key),
            length,
        }
        .into()
    }

    /// The point of no return.
    fn write_record(&self, draft: &mut Draft) -> Result<u64> {
        let control = self.control();
        let tail = &control.tail.0;
        let slot = tail.slot.load(Ordering::Relaxed) as u16;
        let entry = self.entry(slot);
        let commit = control.visible.0.load(Ordering::Relaxed) + 1;
        let start = next_position(entry);
        let header = RecordHeader {
            commit,
            synced: control.synced.0.load(Ordering::Acquire),
            body_length: draft.body.len() as u32,
            body_checksum: checksum(draft.body.body()),
            previous: tail.previous.load(Ordering::Relaxed),
            generation: entry.number.load(Ordering::Relaxed),
            epoch: tail.epoch.load(Ordering::Relaxed),
            meta_sequence: tail.meta_sequence.load(Ordering::Relaxed),
        };
        let costs = draft.fold_costs();
        let file = self.segments.file(slot)?;
        let (record, sum) = draft.body.seal(&header);
        let length = record.len() as u64;
        if let Err(error) = file.write_at(record, start) {
            let cause = Error::io(format!("writing commit {commit} to the log"), error);
            self.poison(&cause);
            return Err(Reason::Unknown {
                commit,
                cause: cause.to_string(),
            }
            .into());
        }
        tail.previous.store(sum, Ordering::Relaxed);
        entry.operations.fetch_add(costs.operations, Ordering::Relaxed);
        entry.bytes.fetch_add(costs.bytes, Ordering::Relaxed);
        entry.value_pages.fetch_add(costs.value_pages, Ordering::Relaxed);
        // Release: the syncer that sees this tail syncs after the write above.
        entry.tail.store(start + length, Ordering::Release);
        self.enter_in_index(slot, draft, commit, start as u32 + RECORD_HEADER_BYTES as u32);
        // Release: pairs with the acquire in `read_version`; everything above is visible to whoever sees the number.
        control.visible.0.store(commit, Ordering::Release);
        draft.created.iter().for_each(|&id| self.catalog.created(id));
        draft.dropped.iter().for_each(|&id| self.catalog.dropped(id));
        draft
            .renamed
            .iter()
            .for_each(|(id, name)| self.catalog.renamed(*id, name));
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        Ok(commit)
    }

    fn enter_in_index(&self, slot: u16, draft: &Draft, commit: u64, body: u32) {
        let index = self.index(slot);
        let log = self.segments.view(slot);
        for (operation, planned) in draft.planned.iter().enumerate() {
            if planned.is_note {
                index.note(commit, body + planned.position);
            } else {
                index.insert(
                    log,
                    draft.full_key(operation),
                    planned.hash,
                    commit,
                    body + planned.position,
                );
            }
        }
    }

    /// Waits until a commit survives power loss; the first one who waits syncs for all.
    pub(crate) fn wait_synced(&self, commit: u64) -> Result<()> {
        let control = self.control();
        loop {
            let word = control.sync_word.0.load(Ordering::Acquire);
            if control.synced.0.load(Ordering::Acquire) >= commit {
                return Ok(());
            }
            if self.is_poisoned() {
                return Err(Reason::Unknown {
                    commit,
                    cause: self.cause(),
                }
                .into());
            }
            match control.sync_lock.0.try_lock() {
                Some(leading) => {
                    let synced = self.sync_log();
                    // The lock first, then the word: who is woken while the lock is still held would find it taken and
                    // sleep again, with nobody but the clock to wake it (`tests/schedules.rs` has this schedule).
                    drop(leading);
                    let unknown = |error: Error| Reason::Unknown {
                        commit,
                        cause: error.to_string(),
                    };
                    self.announce_synced(synced.map_err(unknown)?);
                }
                // A leader that stops, or dies, must not hold the others up for ever.
                None => {
                    wait(&control.sync_word.0, word, Some(Duration::from_millis(20)));
                }
            }
        }
    }

    /// Syncs the log up to what is visible now, and returns how far that is; the caller holds the sync lock, and
    /// announces it afterwards.
    fn sync_log(&self) -> Result<u64> {
        let control = self.control();
        let (version, visible) = self.region.read_version(&control.visible.0);
        if control.synced.0.load(Ordering::Acquire) >= visible {
            return Ok(visible);
        }
        // Oldest first: a later generation must not be durable before an earlier one is.
        for &slot in &version.generations {
            let entry = self.entry(slot);
            let tail = entry.tail.load(Ordering::Acquire);
            if entry.synced_tail.load(Ordering::Acquire) == tail {
                continue;
            }
            let doing = |error| Error::io("syncing the log", error);
            let synced = self
                .segments
                .file(slot)
                .and_then(|file| file.sync_data().map_err(doing));
            if let Err(cause) = synced {
                self.poison(&cause);
                return Err(cause);
            }
            entry.synced_tail.store(tail, Ordering::Release);
        }
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(visible)
    }

    /// Publishes how far the log is durable and wakes all who wait.
    fn announce_synced(&self, commit: u64) {
        let control = self.control();
        control.synced.0.fetch_max(commit, Ordering::AcqRel);
        control.sync_word.0.fetch_add(1, Ordering::AcqRel);
        wake(&control.sync_word.0, u32::MAX);
        // Pairs with the fence in `Changes::wait`: either the stream sees the new number, or we see that it waits.
        fence(Ordering::SeqCst);
        self.streams.wake_if_waiting();
    }

    /// Makes everything that is visible now survive power loss.
    pub(crate) fn sync(&self) -> Result<()> {
        self.healthy()?;
        self.wait_synced(self.control().visible.0.load(Ordering::Acquire))
    }

    /// Refuses the commit when something that it depends on was changed since. Under the commit lock.
    pub(crate) fn check_conflicts(&self, checks: &Checks) -> Result<()> {
        let control = self.control();
        let oldest = control.tail.0.checkable_since.load(Ordering::Relaxed);
        if checks.since < oldest {
            return Err(Reason::TooOld {
                began: checks.since,
                oldest,
            }
            .into());
        }
        if control.visible.0.load(Ordering::Relaxed) == checks.since {
            return Ok(());
        }
        let newer = self.generations_after(checks.since);
        for key in &checks.keys {
            let hash = key_hash(self.hash_seed, key);
            if self.changed_since(&newer, key, hash, checks.since)? {
                return Err(self.conflict(key));
            }
        }
        for range in &checks.ranges {
            if is_planted(PlantedBug::RangesNotChecked) {
                break;
            }
            if let Some(key) = self.changed_in_range(&newer, range, checks.since)? {
                return Err(self.conflict(&key));
            }
        }
        for &run in &checks.runs {
            if let Some(key) = self.changed_in_run(&newer, run, checks.since)? {
                return Err(self.conflict(&key));
            }
        }
        Ok(())
    }

    pub(crate) fn conflict(&self, full_key: &[u8]) -> Error {
        self.counters.conflicts.fetch_add(1, Ordering::Relaxed);
        let (map, key) = crate::full_key::split(full_key);
        Reason::Conflict {
            map: self.catalog.name_of(map),
            key: printable(key),
        }
        .into()
    }

    /// Generations that hold commits after `since`, in any state in which they can be read.
    fn generations_after(&self, since: u64) -> Vec<GenerationView> {
        let mut newer = Vec::new();
        for (slot, entry) in self.region.generations() {
            let holds = match entry.state() {
                GenerationState::Active => true,
                GenerationState::Frozen | GenerationState::Folded => entry.last_commit.load(Ordering::Relaxed) > since,
                GenerationState::Unused | GenerationState::Preparing | GenerationState::Standby => false,
            };
            if holds {
                newer.push(self.generation_view(slot));
            }
        }
        newer
    }

    fn changed_since(&self, newer: &[GenerationView], key: &[u8], hash: u64, since: u64) -> Result<bool> {
        for generation in newer {
            let found = with_source!(self, source => generation.recent(source, key, hash, u64::MAX)?.map(|(c, _)| c));
            if found.is_some_and(|commit| commit > since) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A key in `range` (or the beginning of a range delete) that was changed after `since`.
    fn changed_in_range(&self, newer: &[GenerationView], range: &FullRange, since: u64) -> Result<Option<Vec<u8>>> {
        for generation in newer {
            let mut cursor = IndexCursor::new(generation.index, generation.log);
            cursor.seek(&range.low);
            while cursor.is_valid() && cursor.key() < range.high.as_slice() {
                if cursor.visible(u64::MAX).is_some_and(|version| version.commit > since) {
                    return Ok(Some(cursor.key().to_vec()));
                }
                cursor.next();
            }
            for (_, note) in generation.notes(u64::MAX).take_while(|(commit, _)| *commit > since) {
                match note {
                    Note::DeleteRange { low, high } if low < range.high.as_slice() && range.low.as_slice() < high => {
                        return Ok(Some(low.max(&range.low).to_vec()));
                    }
                    Note::DeleteRange { .. } => {}
                    Note::Run(root) => {
                        let first = with_source!(self, source => first_in(source, root, range)?);
                        if first.is_some() {
                            return Ok(first);
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    /// A key of a run that was changed after `since`: looks every changed key up in the run.
    fn changed_in_run(&self, newer: &[GenerationView], run: crate::base::Root, since: u64) -> Result<Option<Vec<u8>>> {
        let everything = FullRange {
            low: Vec::new(),
            high: vec![0xFF; 8],
        };
        for generation in newer {
            let mut cursor = IndexCursor::new(generation.index, generation.log);
            cursor.first();
            while cursor.is_valid() {
                if cursor.visible(u64::MAX).is_some_and(|version| version.commit > since) {
                    let hash = key_hash(self.hash_seed, cursor.key());
                    let found = with_source!(self, source => {
                        crate::base::find(source, run, cursor.key(), hash)?.is_some()
                    });
                    if found {
                        return Ok(Some(cursor.key().to_vec()));
                    }
                }
                cursor.next();
            }
            for (_, note) in generation.notes(u64::MAX).take_while(|(commit, _)| *commit > since) {
                let found = match note {
                    Note::DeleteRange { low, high } => {
                        let range = FullRange {
                            low: low.to_vec(),
                            high: high.to_vec(),
                        };
                        with_source!(self, source => first_in(source, run, &range)?)
                    }
                    // Two runs: walk the other one through this one.
                    Note::Run(other) => with_source!(self, source => common_key(source, run, other, &everything)?),
                };
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }
}

/// Where the next record goes. Bytes that a sync made durable share no sector with what is written later, because a
/// sector that is torn in a power cut would take them along.
fn next_position(entry: &GenerationEntry) -> u64 {
    let tail = entry.tail.load(Ordering::Relaxed);
    let synced = entry.synced_tail.load(Ordering::Acquire);
    if synced > tail / SECTOR_BYTES * SECTOR_BYTES {
        tail.next_multiple_of(SECTOR_BYTES)
    } else {
        tail
    }
}

/// The first key of a tree inside a range.
fn first_in<S: crate::base::PageSource>(
    source: S,
    root: crate::base::Root,
    range: &FullRange,
) -> Result<Option<Vec<u8>>> {
    let mut cursor = crate::base::Cursor::new(source, root);
    cursor.seek(&range.low)?;
    Ok((cursor.is_valid() && cursor.key() < range.high.as_slice()).then(|| cursor.key().to_vec()))
}

/// A key that two trees have in common, found by leaping from one to the other.
fn common_key<S: crate::base::PageSource>(
    source: S,
    one: crate::base::Root,
    other: crate::base::Root,
    range: &FullRange,
) -> Result<Option<Vec<u8>>> {
    let mut one = crate::base::Cursor::new(source, one);
    let mut other = crate::base::Cursor::new(source, other);
    one.seek(&range.low)?;
    other.seek(&range.low)?;
    while one.is_valid() && other.is_valid() {
        match one.key().cmp(other.key()) {
            std::cmp::Ordering::Equal => return Ok(Some(one.key().to_vec())),
            std::cmp::Ordering::Less => one.seek(other.key())?,
            std::cmp::Ordering::Greater => other.seek(one.key())?,
        }
    }
    Ok(None)
}
