//! The commit pipeline: how a set of operations becomes durable, visible and ordered.
//!
//! The simple version: take the lock, check conflicts, write one record to the log, put its operations into the index,
//! publish the commit number, release the lock, and for `Synced` wait until the log has been synced that far.
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
//! 4. outside the lock: one waiter syncs for all who wait (no timer: a commit that arrives while a sync runs is served
//!    by the next sync; compare arXiv 2606.18187).

pub(crate) mod background;
pub(crate) mod checkpoint;
pub(crate) mod conflict;
pub(crate) mod draft;
pub(crate) mod exclusive;
pub(crate) mod sequence_state;

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::btree::Stored;
use crate::checksum::key_hash;
use crate::commit::conflict::Checks;
use crate::commit::draft::{Add, AddTo, Draft, Numbering, first_number_key};
use crate::commit::exclusive::{ExclusiveWait, NOT_EXCLUSIVE};
use crate::commit::sequence_state::SequenceState;
use crate::core::Core;
use crate::core::watch::Begun;
use crate::error::{Error, Kind, Reason, Result, printable};
use crate::index::{Finger, Version};
use crate::key::full_key::{FullRange, split};
use crate::limits::{
    LOG_GROWTH_BYTES, LOG_OVERHEAD_BYTES, LOG_RESERVE_BYTES, LOG_SPAN_BYTES, RUNS_PER_GENERATION_MAX,
    STANDBY_GENERATIONS, WAIT_ROUNDS_MAX,
};
use crate::log::FoldCosts;
use crate::log::{
    LogView, OperationKind, RECORD_HEADER_BYTES, RecordHeader, body_checksum, first_record, record_bytes,
};
use crate::planted::{PlantedBug, is_planted, kill_point};
use crate::read::scan::Scan;
use crate::read::value::{Source, Value};
use crate::read::view::View;
use crate::region::{GenerationEntry, GenerationState, Patience};
use crate::settings::Durability;

/// Numbers of appends that are looked for are below this.
const NUMBERS_END: u64 = 1 << 48;
/// A pause is made in steps of this: it is over when the fold is.
const PAUSE_STEP: Duration = Duration::from_millis(5);
/// A commit that has waited for a fold this long, and was not woken, checks which process folds.
const FOLD_LOOK: Duration = Duration::from_millis(90);
/// Holders of log files that an error names; `stat` lists all.
const LISTED_HOLDERS_MAX: usize = 3;

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

/// What stands in the way of appending a record.
enum Room {
    Ready,
    /// A fold must free a generation first.
    Wait,
    /// The generation after the next must be prepared first, so that deletions have it when the disk is full. Not under
    /// the lock, because this creates files.
    Prepare,
}

impl Core {
    /// Commits a draft and waits until it lasts as asked for.
    pub(crate) fn commit(&self, draft: &mut Draft, checks: Option<&Checks>, durability: Durability) -> Result<u64> {
        let commit = self.append(draft, checks, NOT_EXCLUSIVE)?;
        self.wait_as_asked(commit, durability)?;
        Ok(commit)
    }

    /// Waits until a commit lasts as its caller asked for.
    pub(crate) fn wait_as_asked(&self, commit: u64, durability: Durability) -> Result<()> {
        if durability == Durability::Synced && !is_planted(PlantedBug::AcknowledgeBeforeSync) {
            self.wait_durable(commit)?;
        }
        Ok(())
    }

    /// Makes a draft visible, without waiting for a sync. `token` is that of the exclusive transaction which commits.
    pub(crate) fn append(&self, draft: &mut Draft, checks: Option<&Checks>, token: u32) -> Result<u64> {
        self.writable()?;
        let costs = draft.fold_costs();
        let bytes = costs.bytes;
        if record_bytes(draft.body.len()) + LOG_OVERHEAD_BYTES > LOG_SPAN_BYTES {
            let cause = format!("one commit holds {bytes} bytes of appends and short values; split it up");
            return Err(Reason::InvalidArgument(cause).into());
        }
        // First in the name of this process, and taken back there last: what is promised in all is then never more than
        // what is promised to a commit, as `recount_promises` relies on.
        self.note_promised(costs);
        self.promise(costs, draft)
            .inspect_err(|_| self.note_not_promised(costs))?;
        let mut appended = self.append_promised(draft, checks, token);
        if let Err(error) = &appended
            && error.kind() == Kind::MakeSpace
            && draft.may_fold()
        {
            match self.give_end_back() {
                Ok(true) => appended = self.append_promised(draft, checks, token),
                Ok(false) => {}
                Err(error) => appended = Err(error),
            }
        }
        if draft.adds_anything && draft.may_fold() {
            appended =
                appended.or_else(|error| self.after_folding(error, || self.append_promised(draft, checks, token)));
        }
        if let Err(error) = &appended {
            self.space.settle(costs);
            // After a failed write the store has stopped, and the counts no longer matter.
            if error.kind() != Kind::Reopen || matches!(error.reason(), Reason::Restored) {
                self.note_not_promised(costs);
            }
        }
        if appended.is_ok() && self.folds_in_background() {
            self.pause(record_bytes(draft.body.len()), token);
        }
        appended
    }

    /// Slows a commit down that was made, while commits come faster than the fold that goes on frees the log.
    fn pause(&self, bytes: u64, token: u32) {
        let Some(pause) = self.pace.pause(bytes, || self.platform.clock.monotonic()) else {
            return;
        };
        // While one has the store to himself, all others wait for him.
        let is_exclusive = token != NOT_EXCLUSIVE;
        let mut left = if is_exclusive { pause.min(PAUSE_STEP) } else { pause };
        while !left.is_zero() && self.pace.is_on() {
            let step = left.min(PAUSE_STEP);
            std::thread::sleep(step);
            left -= step;
        }
    }

    /// Makes sure that there is room to fold what a commit brings.
    fn promise(&self, costs: FoldCosts, draft: &Draft) -> Result<()> {
        let adds_anything = draft.adds_anything;
        let promise = || {
            // A restore brings no data but numbers, and may be the cure. A checkpoint brings none.
            if adds_anything && !draft.restores && !draft.makes_checkpoint {
                self.stay_within_quota(costs)?;
            }
            self.space.promise(costs, !adds_anything, &self.pages)
        };
        let is_full = |error: &Error| error.kind() == Kind::MakeSpace;
        let Err(error) = promise() else { return Ok(()) };
        if !is_full(&error) || !draft.may_fold() {
            return Err(error);
        }
        // A fold takes less than was promised for it, and frees what was deleted.
        if adds_anything {
            return self.after_folding(error, promise);
        }
        // A snapshot may have been dropped that held what is free now.
        if self.free_retired()? && promise().is_ok() {
            return Ok(());
        }
        if self.space.figures()?.pending_operations == 0 {
            return Err(error);
        }
        self.maintain()?;
        promise()
    }

    /// Refuses what would make the data larger than the quota. Retired pages do not count: they come free by
    /// themselves.
    fn stay_within_quota(&self, costs: FoldCosts) -> Result<()> {
        let Some(quota) = self.settings.quota_bytes else {
            return Ok(());
        };
        let needed = self.space.used_bytes() + self.space.pending_bytes() + costs.bytes;
        if needed > quota {
            return Err(Reason::QuotaExceeded { needed, quota }.into());
        }
        Ok(())
    }

    #[inline]
    fn note_promised(&self, costs: FoldCosts) {
        if self.is_shared() {
            self.region.process(self.region.me()).promised.add(costs);
        }
    }

    #[inline]
    fn note_not_promised(&self, costs: FoldCosts) {
        if self.is_shared() {
            self.region.process(self.region.me()).promised.subtract(costs);
        }
    }

    fn append_promised(&self, draft: &mut Draft, checks: Option<&Checks>, token: u32) -> Result<u64> {
        let (mut rounds, mut has_spare) = (0, !draft.adds_anything);
        let (mut patience, mut exclusive_wait) = (Patience::default(), ExclusiveWait::default());
        loop {
            let seen = self.progress_seen();
            let guard = self.hold_commits_in_time()?;
            self.writable()?;
            let exclusive = self.exclusive_token();
            if exclusive != NOT_EXCLUSIVE && exclusive != token {
                drop(guard);
                self.wait_for_exclusive(exclusive, &mut exclusive_wait)?;
                continue;
            }
            self.know_maps_under_lock()?;
            draft.maps.iter().try_for_each(|map| map.alive())?;
            if let Some(checks) = checks {
                self.check_conflicts(checks, draft)?;
            }
            let room = self.whole_or_stopped("beginning a generation", || self.make_room(draft, has_spare));
            match room? {
                Room::Ready => {
                    self.fill_in(draft)?;
                    let written = self.whole_or_stopped("writing a commit", || self.write_record(draft));
                    let commit = written?;
                    drop(guard);
                    kill_point();
                    self.wake_waiting_streams();
                    draft.ring(|bell| self.ring_elsewhere(bell));
                    return Ok(commit);
                }
                // The fold that a restore would wait for is its own.
                Room::Wait if !draft.may_fold() => {
                    drop(guard);
                    return Err(self.no_log_file());
                }
                Room::Wait => {
                    drop(guard);
                    // A fold may take as long as it takes; but when none is due, nothing will make room.
                    let is_folded = self.region.version().generations.len() == 1 && !self.is_base_ahead();
                    let nothing_to_fold = is_folded && self.pace.oldest_folding().is_none();
                    rounds = if nothing_to_fold { rounds + 1 } else { 0 };
                    let begun = Begun::now();
                    self.wait_for_fold(seen, rounds, &mut patience)?;
                    self.tell_stalled(begun);
                    has_spare = !draft.adds_anything;
                }
                Room::Prepare => {
                    drop(guard);
                    let kept = match self.folds_in_background() {
                        true => self.keep_growing_spare(),
                        false => self.keep_spare(),
                    };
                    match kept {
                        Err(error) if draft.may_fold() && self.waits_for_fold(&error) => {
                            self.wait_for_fold(seen, 0, &mut patience)?;
                        }
                        kept => {
                            kept?;
                            has_spare = true;
                        }
                    }
                }
            }
        }
    }

    /// Waits until a fold freed a generation, or folds where no background thread does.
    ///
    /// # Errors
    /// What keeps the log from being folded; [`Reason::Busy`] when a process was stopped while it folds.
    fn wait_for_fold(&self, seen: u32, rounds: u32, patience: &mut Patience) -> Result<()> {
        if rounds == if self.folds_in_background() { WAIT_ROUNDS_MAX } else { 2 } {
            return Err(self.no_log_file());
        }
        if !self.folds_in_background() {
            return self.maintain();
        }
        // The folding thread pauses after an error, and there may be room since. Only a fold that is tried now can say.
        if rounds == 0
            && self.fold_failed.load(Ordering::Relaxed)
            && let Some(mut state) = self.try_hold_maintenance()?
        {
            return self.maintain_frozen(&mut state);
        }
        self.ask_for_fold();
        let begun = self.platform.clock.monotonic();
        self.wait_for_progress(seen);
        let waited = self.platform.clock.monotonic().saturating_sub(begun);
        self.writable()?;
        let (lock, beat) = (&self.control().maintenance_lock.0, &self.control().maintenance_beat);
        // A dead one is buried by those who fold here.
        if waited >= FOLD_LOOK
            && let Some(holder) = lock.holder().filter(|&holder| !self.region.is_dead(holder))
        {
            patience.look(&self.region, holder, beat.load(Ordering::Relaxed))?;
        }
        Ok(())
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
        // A sync that ends right now moves the record to the next unit.
        let end = entry.tail.load(Ordering::Relaxed).next_multiple_of(self.unit) + bytes;
        let runs_fit = draft.runs == 0
            || index.runs().count() as u64 + draft.runs <= RUNS_PER_GENERATION_MAX
            || entry.tail.load(Ordering::Relaxed) == first_record(self.unit);
        let fits = end + reserve <= entry.capacity.load(Ordering::Relaxed);
        let is_in_place = !draft.makes_checkpoint || entry.tail.load(Ordering::Relaxed) == first_record(self.unit);
        if fits && is_in_place && runs_fit && index.has_room(draft.planned.len()) {
            match self.fill_ahead(active, end, end + reserve) {
                // The next log file may have blocks already.
                Err(error)
                    if error.kind() == Kind::MakeSpace
                        && entry.tail.load(Ordering::Relaxed) > first_record(self.unit) => {}
                filled => return filled.map(|()| Room::Ready),
            }
        }
        if !self.can_rotate() {
            return Ok(Room::Wait);
        }
        if !has_spare && self.standbys() < STANDBY_GENERATIONS {
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
            let end = first_record(self.unit) + bytes;
            self.fill_ahead(tail.slot.load(Ordering::Relaxed) as u16, end, end + reserve)?;
            Ok(Room::Ready)
        } else {
            Ok(Room::Wait)
        }
    }

    /// Whether a fold can be the cure: folding what is frozen frees a log file, so that it needs no new one.
    fn waits_for_fold(&self, error: &Error) -> bool {
        error.kind() == Kind::MakeSpace && self.generations_to_replay() > 1
    }

    /// Whether there are generations that are no longer needed, and will be free soon.
    fn is_about_to_recycle(&self) -> bool {
        let pins = self.region.pins();
        self.region.generations().any(|(_, entry)| match entry.state() {
            GenerationState::Folded => {
                let (birth, death) = (entry.birth.load(Ordering::Relaxed), entry.death.load(Ordering::Relaxed));
                pins.everything || !pins.hold(birth, death)
            }
            // Its memory is being given back.
            GenerationState::Preparing => entry.memory.place().1 > 0,
            _ => false,
        })
    }

    /// Fills the log file of a generation with zeros up to `end`, and a step further while that is cheap. Of a record
    /// that takes more than a step the blocks are only allocated: writing each byte of it twice would cost more than
    /// the sync saves that finds all blocks written.
    fn fill_ahead(&self, slot: u16, record_end: u64, end: u64) -> Result<()> {
        let entry = self.entry(slot);
        let filled = entry.filled.load(Ordering::Relaxed);
        if end <= filled {
            return Ok(());
        }
        let file = self.log_file(slot)?;
        // What is filled next begins in a unit without records.
        let end = end.next_multiple_of(self.unit);
        let step = filled + LOG_GROWTH_BYTES;
        let grown = if record_end > step {
            let allocated = file.allocate(filled, record_end - filled);
            allocated.and_then(|()| file.write_zeros(record_end, end - record_end).map(|()| end))
        } else {
            let target = step
                .min(entry.capacity.load(Ordering::Relaxed))
                .max(end)
                .next_multiple_of(self.unit);
            let grown = file.write_zeros(filled, target - filled).map(|()| target);
            grown.or_else(|_| file.write_zeros(filled, end - filled).map(|()| end))
        };
        let reached = grown.map_err(|error| crate::region::full_or_io("the log", end - filled, error))?;
        entry.filled.store(reached, Ordering::Relaxed);
        Ok(())
    }

    /// Fills in what depends on the newest state: numbers and sums.
    fn fill_in(&self, draft: &mut Draft) -> Result<()> {
        if draft.appends.is_empty() && draft.sequences.is_empty() && draft.adds.is_empty() {
            return Ok(());
        }
        self.cover_data()?;
        let mut newest = Newest { core: self, view: None };
        self.fill_in_appends(draft, &mut newest)?;
        self.fill_in_sequences(draft, &mut newest)?;
        for index in 0..draft.adds.len() {
            let Add { operation, delta, base } = draft.adds[index];
            let full_key = draft.full_key(operation);
            let sum = match base {
                AddTo::Newest => {
                    let value = newest.get(full_key, draft.planned[operation].hash)?;
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

    /// Numbers of appends.
    fn fill_in_appends<'a>(&'a self, draft: &mut Draft, newest: &mut Newest<'a>) -> Result<()> {
        let seed = self.hash_seed;
        let appends = std::mem::take(&mut draft.appends);
        for append in &appends {
            let next = match newest.get(&append.counter, key_hash(seed, &append.counter))? {
                Some(next) => u64::from_be_bytes(
                    (*next)
                        .try_into()
                        .map_err(|_| Error::damaged("a counter of appends has the wrong length"))?,
                ),
                None => newest.first_number(draft.full_key(append.operations[0].0))?,
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
        }
        draft.appends = appends;
        Ok(())
    }

    /// Numbers, times and positions of what is appended to sequences. Their time never goes back, whatever the clock
    /// does.
    fn fill_in_sequences<'a>(&'a self, draft: &mut Draft, newest: &mut Newest<'a>) -> Result<()> {
        if draft.sequences.is_empty() {
            return Ok(());
        }
        let wall = self.commit_time(draft) / 1_000;
        let seed = self.hash_seed;
        let generation = self.active_generation();
        for sequence in 0..draft.sequences.len() {
            let counter = draft.sequences[sequence].counter_operation;
            let fingers = draft.sequences[sequence].place.fingers.of(generation);
            let held = newest.get_near(draft.full_key(counter), draft.planned[counter].hash, fingers.counter)?;
            let sequence = &mut draft.sequences[sequence];
            sequence.fingers = fingers;
            let name = || sequence.place.bell.name().into();
            let held = held.ok_or_else(|| Reason::TopicDeleted { name: name() })?;
            let state = SequenceState::decode(&held)?;
            let time = state.time.max(wall);
            sequence.state = SequenceState { time, ..state };
        }
        for place in 0..draft.heads.len() {
            let head = draft.heads[place];
            let state = draft.sequences[head.sequence].state;
            draft.set_key_end(head.operation, state.next, seed);
            draft.set_value(head.operation, state.stamp_bytes());
            if let Some(body) = head.body {
                draft.set_key_end(body, state.next, seed);
            }
            draft.heads[place].stamp = state.stamp();
            draft.sequences[head.sequence].state.advance(head.bytes);
        }
        for sequence in 0..draft.sequences.len() {
            let Numbering {
                counter_operation,
                state,
                ..
            } = &draft.sequences[sequence];
            let (counter, state) = (*counter_operation, state.encode());
            draft.set_value(counter, state);
        }
        Ok(())
    }

    /// Adds to the value of a counter.
    pub(crate) fn sum(&self, full_key: &[u8], value: Option<&[u8]>, delta: i64) -> Result<i64> {
        let (map, key) = crate::key::full_key::split(full_key);
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
        let (map, key) = crate::key::full_key::split(full_key);
        Reason::NotACounter {
            map: self.catalog.name_of(map),
            key: printable(key),
            length,
        }
        .into()
    }

    /// The requested time of the commit or that of the clock, in microseconds since 1970. The commit gets a later one where
    /// time would run back.
    fn commit_time(&self, draft: &Draft) -> u64 {
        let wall = || self.platform.clock.wall().as_micros() as u64;
        draft.time.unwrap_or_else(wall)
    }

    /// The point of no return.
    fn write_record(&self, draft: &mut Draft) -> Result<u64> {
        let control = self.control();
        let tail = &control.tail.0;
        let slot = tail.slot.load(Ordering::Relaxed) as u16;
        let entry = self.entry(slot);
        let commit = control.visible.0.load(Ordering::Relaxed) + 1;
        let start = next_position(entry, self.unit);
        let wall = self.commit_time(draft);
        // A commit that rings may hold times of the shared clock, which must not run back when the store is opened
        // again.
        let shared = if draft.rung.is_empty() { 0 } else { self.shared_micros() };
        let time = wall.max(shared).max(tail.time.load(Ordering::Relaxed));
        let header = RecordHeader {
            commit,
            synced: control.synced.0.load(Ordering::Acquire),
            body_length: draft.body.len() as u32,
            body_checksum: body_checksum(draft.body.body(), &self.seeds),
            previous: tail.previous.load(Ordering::Relaxed),
            generation: entry.number.load(Ordering::Relaxed),
            epoch: tail.epoch.load(Ordering::Relaxed),
            meta_sequence: tail.meta_sequence.load(Ordering::Relaxed),
            time,
        };
        let costs = draft.fold_costs();
        let file = self.log_file(slot)?;
        // SAFETY: under the commit lock the generation that takes commits stays.
        let log = unsafe { self.log_view(slot) }?;
        self.note_not_promised(costs);
        let body_bytes = draft.body.len();
        let (record, sum) = draft.body.seal(&header, &self.seeds);
        let length = record.len() as u64;
        tail.begin_writing(commit, start, entry.costs.load());
        kill_point();
        let is_stored = may_be_stored(entry, start, self.store_unit);
        let written = if is_stored {
            file.store_at(record, start)
        } else {
            file.write_at(record, start)
        };
        if let Err(error) = written {
            let is_full = error.kind() == std::io::ErrorKind::StorageFull;
            match is_full.then(|| self.is_record_whole(&*file, start, commit)) {
                // What was not written is in the file already: recovery would find the record.
                Some(Ok(true)) => {}
                Some(Ok(false)) => {
                    // Nothing of it can be seen, and the next record goes to its place.
                    tail.ends_writing();
                    draft.body.unseal(body_bytes);
                    self.note_promised(costs);
                    return Err(crate::region::full_or_io("the log", length, error));
                }
                None | Some(Err(_)) => {
                    let cause = Error::io(format!("writing commit {commit} to the log"), error);
                    self.poison(&cause);
                    return Err(Reason::Unknown {
                        commit,
                        cause: cause.to_string(),
                    }
                    .into());
                }
            }
        }
        kill_point();
        tail.previous.store(sum, Ordering::Relaxed);
        tail.time.store(time, Ordering::Relaxed);
        kill_point();
        entry.costs.add(costs);
        // Release: the syncer that sees this tail syncs after the write above.
        entry.tail.store(start + length, Ordering::Release);
        kill_point();
        self.enter_in_index(slot, log, draft, commit, start as u32 + RECORD_HEADER_BYTES as u32);
        // Before the commit is visible: a process that died in between would leave other processes with handles of
        // dropped maps.
        if !(draft.created.is_empty() && draft.dropped.is_empty() && draft.renamed.is_empty()) {
            self.catalog
                .has_changed(control.catalog.swap(commit, Ordering::AcqRel), commit);
        }
        if draft.restores {
            // No handle goes on that was opened before it.
            self.region.begin_another_life();
        }
        // A thread that finds the name of a new map from here on gets a working handle.
        draft.created.iter().for_each(|&id| self.catalog.created(id, commit));
        kill_point();
        // Release: pairs with the acquire in `read_version`; everything above is visible to a reader that sees the
        // number.
        control.visible.0.store(commit, Ordering::Release);
        draft.dropped.iter().for_each(|&id| self.catalog.dropped(id));
        draft
            .renamed
            .iter()
            .for_each(|(id, name)| self.catalog.renamed(*id, name));
        self.watch.commits.up();
        Ok(commit)
    }

    fn enter_in_index(&self, slot: u16, log: LogView<'_>, draft: &mut Draft, commit: u64, body: u32) {
        let index = self.index(slot);
        for operation in 0..draft.planned.len() {
            kill_point();
            let planned = draft.planned[operation];
            let position = body + planned.position;
            match draft.finger(planned.near).copied() {
                _ if matches!(planned.note, Some(OperationKind::Run | OperationKind::Restore)) => {
                    index.add_run(commit, position);
                }
                // It changes no pair. A fold finds it here.
                _ if planned.note == Some(OperationKind::Checkpoint) => {
                    self.control().pending_checkpoint.0.begins(commit, slot, position);
                }
                _ if planned.note.is_some() => index.add_range_delete(commit, position),
                None => index.insert(log, draft.full_key(operation), planned.hash, commit, position),
                Some(finger) => {
                    let (key, version) = (draft.full_key(operation), Version { commit, position });
                    let finger = index.insert_near(log, key, planned.hash, version, finger);
                    if let Some(kept) = draft.finger(planned.near) {
                        *kept = finger;
                    }
                }
            }
        }
        let generation = self.entry(slot).number.load(Ordering::Relaxed);
        let keep = |sequence: &Numbering| sequence.place.fingers.keep(generation, sequence.fingers);
        draft.sequences.iter().for_each(keep);
    }

    /// Number of the generation that takes commits. Under the commit lock.
    fn active_generation(&self) -> u32 {
        let slot = self.control().tail.0.slot.load(Ordering::Relaxed) as u16;
        self.entry(slot).number.load(Ordering::Relaxed)
    }
}

/// What keys hold now, under the commit lock.
struct Newest<'a> {
    core: &'a Core,
    /// All of the store, once something is not in the generation that takes commits.
    view: Option<View<'a>>,
}

impl<'a> Newest<'a> {
    fn get(&mut self, full_key: &[u8], hash: u64) -> Result<Option<Value<'a>>> {
        self.get_near(full_key, hash, Finger::NONE)
    }

    /// Looks a key up; in the active generation the search begins at the writer's last position.
    fn get_near(&mut self, full_key: &[u8], hash: u64, finger: Finger) -> Result<Option<Value<'a>>> {
        let core = self.core;
        let slot = core.control().tail.0.slot.load(Ordering::Relaxed) as u16;
        // SAFETY: a `Newest` is made and used under the commit lock, under which no generation goes.
        let active = unsafe { core.generation_view(slot) }?;
        let source = core.source();
        // Counters change often: nearly always it is there.
        let found = active.written_near(source, full_key, hash, finger)?;
        if let Some((commit, entry)) = found
            && commit >= active.index.newest_range_delete()
        {
            return entry.resolve(source);
        }
        self.view()?.get(full_key)
    }

    fn view(&mut self) -> Result<&View<'a>> {
        Ok(match &mut self.view {
            Some(view) => view,
            // SAFETY: a `Newest` is made and used under the commit lock.
            none => none.insert(unsafe { self.core.view_under_lock() }?),
        })
    }
}

impl Newest<'_> {
    /// The number that appends begin with under a prefix that has no counter; `first` is the full key of number 0.
    #[cold]
    fn first_number(&mut self, first: &[u8]) -> Result<u64> {
        let prefix = &first[..first.len() - 8];
        let core = self.core;
        let least = first_number_key(split(first).0)?;
        let least = match self.get(&least, key_hash(core.hash_seed, &least))? {
            Some(least) => u64::from_be_bytes(least.first_chunk().copied().unwrap_or_default()),
            None => 0,
        };
        let mut scan = Scan::new(core.source(), self.view()?, &[], numbered(prefix));
        Ok(number_behind(&mut scan, prefix.len())?.max(least))
    }
}

/// The full keys that appends have under a prefix, which is a full key as well.
pub(crate) fn numbered(prefix: &[u8]) -> FullRange {
    FullRange {
        low: [prefix, &0u64.to_be_bytes()].concat(),
        // No counter comes this far. Text of eight bytes, read as a number, lies above.
        high: [prefix, &NUMBERS_END.to_be_bytes()].concat(),
    }
}

/// The number that appends begin with where there is no counter: 0, or the one after the greatest that is there,
/// because a store that was loaded or salvaged has the pairs of appends without their counters. `scan` walks through
/// [`numbered`], of a prefix with so many bytes.
pub(crate) fn number_behind<'a, S: Source<'a>>(scan: &mut Scan<'a, S>, prefix_bytes: usize) -> Result<u64> {
    scan.seek_end();
    while scan.prev()?.is_some() {
        if let Ok(number) = scan.key()[prefix_bytes..].try_into() {
            return Ok(u64::from_be_bytes(number) + 1);
        }
    }
    Ok(0)
}

/// Where the next record goes. Bytes that a sync made durable, or is about to make durable, share no write unit with
/// what is written later: a power cut may destroy any byte of a unit that is being written.
fn next_position(entry: &GenerationEntry, unit: u64) -> u64 {
    let tail = entry.tail.load(Ordering::Relaxed);
    let synced = entry.syncing_tail();
    if synced > tail / unit * unit && !is_planted(PlantedBug::UnitShared) {
        tail.next_multiple_of(unit)
    } else {
        tail
    }
}

/// Whether the next record may be stored to a mapping: the kernel then writes the whole store unit back, in which no
/// bytes may be that a sync made durable, or is about to.
fn may_be_stored(entry: &GenerationEntry, start: u64, unit: Option<u64>) -> bool {
    let is_apart = |unit: u64| entry.syncing_tail() <= start / unit * unit;
    unit.is_some_and(|unit| is_apart(unit) || is_planted(PlantedBug::StoredBesideSynced))
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Durability, Maintenance, Options};

    /// Opens a store, with how it puts and says which call wrote the record: `store` or `write`.
    fn putting(disk: &SimDisk) -> (crate::Store, impl Fn(&[u8]) -> String) {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written)
            .generation_bytes(256 << 10, 256 << 10);
        let store = options.open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        let (disk, length) = (disk.clone(), 5_000);
        let put = move |key: &[u8]| {
            disk.trace(true);
            map.put(key, vec![7; length]).expect("a put");
            let calls = disk.take_trace().into_iter();
            // Zeros are written ahead of records.
            let mut records = calls.filter(|call| call.contains(" wal-") && !call.starts_with("zeros"));
            let record = records.next_back().expect("a record");
            record.split(' ').next().expect("a call").to_owned()
        };
        (store, put)
    }

    #[test]
    fn record_is_stored_only_where_nothing_near_it_was_synced() {
        let disk = SimDisk::new(1);
        let unit = disk.platform().storage.store_unit().expect("stores");
        let (store, put) = putting(&disk);
        let core = store.core();
        let slot = || core.control().tail.0.slot.load(Ordering::Relaxed) as u16;
        let in_first_unit = || core.entry(slot()).end().position() < unit;
        // The header that begins an epoch was synced.
        while in_first_unit() {
            assert_eq!(put(b"key"), "write");
        }
        assert_eq!(put(b"key"), "store");
        store.sync().expect("a sync");
        let synced = core.entry(slot()).end().position() - 1;
        while next_position(core.entry(slot()), core.unit) / unit == synced / unit {
            assert_eq!(put(b"key"), "write");
        }
        assert_eq!(put(b"key"), "store");
        // Nor does a sync of records that are complete end stores to the next generation.
        let first = slot();
        while slot() == first {
            put(b"key");
        }
        assert!(in_first_unit());
        assert_eq!(put(b"key"), "store");
        let mut state = core.hold_maintenance().expect("the only holder");
        core.maintain_frozen(&mut state).expect("a fold");
        drop(state);
        assert_eq!(put(b"key"), "store");
    }

    #[test]
    fn record_that_comes_during_a_sync_shares_no_unit_with_what_is_synced() {
        let disk = SimDisk::new(1);
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        let store = options.clone().open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        let tail = &store.core().control().tail.0;
        let start = || tail.writing_at.load(Ordering::Relaxed);
        let unit = store.core().unit;
        map.put(b"before", b"value").expect("a put");
        let entry = store.core().entry(tail.slot.load(Ordering::Relaxed) as u16);
        entry.may_be_synced_to(entry.end());
        map.put(b"during", b"value").expect("a put");
        assert!(start().is_multiple_of(unit));
        map.put(b"packed", b"value").expect("a put");
        assert!(!start().is_multiple_of(unit));
        let store = options.open_on(disk.kill().platform()).expect("a store");
        let map = store.map("map").expect("a map");
        for key in [b"before", b"during", b"packed"] {
            assert!(map.get(key).expect("a sound store").is_some(), "{key:?}");
        }
    }

    /// The header of the log file that an opening begins is the only place that names the new epoch, and is synced
    /// before there are records.
    #[test]
    fn records_after_an_opening_put_its_epoch_at_no_risk() {
        for seed in 0..100 {
            let disk = SimDisk::new(seed);
            let options = Options::new()
                .maintenance(Maintenance::Manual)
                .durability(Durability::Written);
            let epoch = |store: &crate::Store| store.core().control().tail.0.epoch.load(Ordering::Relaxed);
            let store = options.clone().open_on(disk.platform()).expect("a store");
            let before = epoch(&store);
            let map = store.map("map").expect("a map");
            map.put(b"key", b"value").expect("a put");
            let store = options.open_on(disk.power_cut(seed).platform()).expect("a store");
            assert!(
                epoch(&store) > before,
                "seed {seed}: epoch {before} was given out again"
            );
        }
    }
}
