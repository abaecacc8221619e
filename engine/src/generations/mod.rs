//! The life of a log generation: standby (file and index memory prepared), active (takes commits), frozen (complete),
//! folded (in the base, perhaps still read by snapshots), unused (file kept for reuse).
//!
//! Who does what: the committer that finds the active generation full rotates to the standby one, under the commit
//! lock; the folding thread prepares standbys and recycles folded generations.

mod alive;

use std::sync::atomic::Ordering;

use crate::core::pace::LogRoom;
use crate::core::{Core, MaintenanceState};
use crate::error::{Error, Kind, Result};
use crate::index::Index;
use crate::limits::{
    CHECKABLE_GENERATIONS_MAX, LOG_FILES_KEPT, LOG_FILES_OPEN_MAX, LOG_FILES_UNUSED_MAX, LOG_GROWTH_BYTES,
    LOG_RESERVE_BYTES, LOG_SPAN_BYTES, STANDBY_GENERATIONS, WAITING_GENERATIONS_MAX,
};
use crate::log::FoldCosts;
use crate::log::{LOG_START, SegmentHeader, file_name, first_record};
use crate::planted::{PlantedBug, is_planted, kill_point};
use crate::region::{GenerationEntry, GenerationState, full_or_io};

/// Bytes of a log file that are there before it takes commits, in the ordinary case: also on a full disk it then has
/// room for deletions.
const FIRST_FILLED_BYTES: u64 = LOG_START + LOG_GROWTH_BYTES / 2;
/// Bytes of a new log file that are filled where the disk has no room for [`FIRST_FILLED_BYTES`].
const LEAST_FILLED_BYTES: u64 = LOG_START + LOG_RESERVE_BYTES;

/// Bytes of index memory that the kernel is asked for when a generation is prepared. The rest comes as it is written.
const POPULATED_BYTES: u64 = 1 << 20;

const _: () = assert!(LOG_GROWTH_BYTES >= LOG_RESERVE_BYTES * 2);

/// How many times as large the next generation is while a store is written to: what folds of small ones move one page
/// at a time is then a small part of all.
const GROWTH: u64 = 4;
/// A generation holds at most this fraction of the base, so that only a small part of a store waits in the log.
const BASE_PARTS: u64 = 9;
/// Generations of a small store that is written to grow to so many times the smallest size.
const GROWN_FACTOR: u64 = 4;

impl Core {
    /// Makes the standby generation the active one, preparing it first if needed. `false`: no log file is free,
    /// because snapshots hold them all. Under the commit lock, or before any other thread uses the store.
    pub(crate) fn rotate(&self, bytes: u64, entries: usize) -> Result<bool> {
        let needed = first_record(self.unit) + bytes;
        let Some(slot) = self.standby(needed, entries)? else {
            return Ok(false);
        };
        let control = self.control();
        let (version, visible) = self.region.read_version(&control.visible.0);
        self.begin_generation(slot, visible + 1)?;
        kill_point();
        let is_empty = |&old: &u16| self.entry(old).first_commit.load(Ordering::Relaxed) > visible;
        if version.generations.last().is_some_and(is_empty) {
            // Nothing of it will be in the base, and its file may be the only one that names the epoch.
            self.sync_epoch(slot)?;
        }
        let mut next = version.clone();
        if let Some(&old) = version.generations.last() {
            let entry = self.entry(old);
            entry.last_commit.store(visible, Ordering::Relaxed);
            entry
                .last_header
                .store(control.tail.0.previous.load(Ordering::Relaxed), Ordering::Relaxed);
            entry.set_state(GenerationState::Frozen);
            kill_point();
            if bytes > 0 {
                self.pace.filled(
                    entry.tail.load(Ordering::Relaxed),
                    entry.capacity.load(Ordering::Relaxed),
                );
            }
        }
        next.number += 1;
        next.generations.push(slot);
        self.entry(slot).birth.store(next.number, Ordering::Relaxed);
        self.entry(slot).set_state(GenerationState::Active);
        kill_point();
        control.tail.0.slot.store(slot as u32, Ordering::Relaxed);
        kill_point();
        self.region.publish(&next);
        kill_point();
        self.set_price();
        self.ask_for_fold();
        Ok(true)
    }

    /// Writes the header of a generation that is about to take commits.
    fn begin_generation(&self, slot: u16, first_commit: u64) -> Result<()> {
        let control = self.control();
        let entry = self.entry(slot);
        let number = control.tail.0.next_generation.fetch_add(1, Ordering::Relaxed);
        let header = SegmentHeader {
            store: self.store,
            generation: number,
            epoch: control.tail.0.epoch.load(Ordering::Relaxed),
            first_commit,
            synced: control.synced.0.load(Ordering::Relaxed),
            previous: control.tail.0.previous.load(Ordering::Relaxed),
            meta_sequence: control.tail.0.meta_sequence.load(Ordering::Relaxed),
            unit: self.unit as u32,
        };
        self.log_file(slot)?
            .write_at(&header.encode(), 0)
            .map_err(|error| full_or_io("the log", LOG_START, error))?;
        kill_point();
        entry.first_commit.store(first_commit, Ordering::Relaxed);
        entry.last_commit.store(u64::MAX, Ordering::Relaxed);
        entry.costs.store(FoldCosts::default());
        entry.death.store(u64::MAX, Ordering::Relaxed);
        entry.begin(number, first_record(self.unit));
        Ok(())
    }

    /// Makes the header of a new generation durable, where nothing else that is durable names the epoch. An epoch that
    /// a power cut took back would be assigned again, and records of the lost one would pass for records of the new
    /// one.
    pub(crate) fn sync_epoch(&self, slot: u16) -> Result<()> {
        let entry = self.entry(slot);
        // No store to a mapping may write that header to the device again.
        entry.may_be_synced_to(entry.end());
        if is_planted(PlantedBug::EpochNotSynced) {
            return Ok(());
        }
        let synced = self.log_file(slot)?.sync_data();
        synced.map_err(|error| Error::io("syncing the header of the log", error))
    }

    /// The standby generation, if it is (or can be made) large enough.
    fn standby(&self, needed: u64, entries: usize) -> Result<Option<u16>> {
        if let Some((slot, entry)) = self.next_standby() {
            let large = entry.capacity.load(Ordering::Relaxed) >= needed;
            if large && self.index(slot).has_room(entries) {
                return Ok(Some(slot));
            }
            self.discard_standby(slot);
        }
        // Small, because commits wait for it; large ones are prepared ahead.
        let capacity = needed.max(self.settings.generation_bytes_min) + LOG_RESERVE_BYTES;
        match self.prepare_standby(capacity, entries) {
            // On a full disk a file will do that is there already, and long enough.
            Err(error) if error.kind() == Kind::MakeSpace => match self.longest_unused_file() {
                length if length >= needed => self.prepare_standby(length, entries),
                _ => Err(error),
            },
            prepared => prepared,
        }
    }

    /// The standby generation that is used next.
    fn next_standby(&self) -> Option<(u16, &GenerationEntry)> {
        let entries = self.region.generations();
        let standbys = entries.filter(|(_, entry)| entry.state() == GenerationState::Standby);
        standbys.max_by_key(|(slot, entry)| (entry.capacity.load(Ordering::Relaxed), std::cmp::Reverse(*slot)))
    }

    /// Written length of the longest log file that is not in use.
    fn longest_unused_file(&self) -> u64 {
        let entries = self.region.generations();
        let unused = entries.filter(|(_, entry)| entry.state() == GenerationState::Unused);
        unused
            .map(|(_, entry)| entry.filled.load(Ordering::Relaxed))
            .max()
            .unwrap_or(0)
    }

    fn discard_standby(&self, slot: u16) {
        let entry = self.entry(slot);
        self.take_back(entry);
        self.give_memory_back(entry);
    }

    /// Makes this process the only user of a generation. Under the commit lock, which other processes hold when they
    /// look.
    fn take_back(&self, entry: &GenerationEntry) {
        entry.set_prepared_by(self.region.me());
        kill_point();
    }

    /// Gives back the memory of a generation that [`Core::take_back`] claimed. Preferably without the commit lock:
    /// truncating the memory's file takes milliseconds, and every commit would wait. If this process dies here, burial
    /// treats it as a process that prepared the generation.
    fn give_memory_back(&self, entry: &GenerationEntry) {
        // A suspended process may block this. The next process that prepares the entry gives the memory back first.
        let _ = self.region.give_back(&entry.memory);
        kill_point();
        // Last: from here on another process may prepare the entry with other memory.
        entry.set_state(GenerationState::Unused);
    }

    /// Whether a generation takes more memory, or more of the disk, than a new one of the smallest size.
    pub(crate) fn is_large(&self, slot: u16) -> bool {
        let entry = self.entry(slot);
        let capacity = self.settings.generation_bytes_min + LOG_RESERVE_BYTES;
        entry.capacity.load(Ordering::Relaxed) > capacity
            || entry.filled.load(Ordering::Relaxed) > FIRST_FILLED_BYTES.min(capacity)
    }

    pub(crate) fn discard_standbys(&self, is_chosen: impl Fn(u16) -> bool) -> Result<()> {
        // Rotation takes standbys under the commit lock.
        let commits = self.hold_commits()?;
        let standbys = self.region.generations();
        let chosen: Vec<_> = standbys
            .filter(|(slot, entry)| entry.state() == GenerationState::Standby && is_chosen(*slot))
            .inspect(|(_, entry)| self.take_back(entry))
            .collect();
        drop(commits);
        chosen.into_iter().for_each(|(_, entry)| self.give_memory_back(entry));
        Ok(())
    }

    /// Freezes the active generation when it is large, or far behind in memory, and holds nothing.
    pub(crate) fn leave_large_active(&self) -> Result<bool> {
        let _commits = self.hold_commits()?;
        let active = self.control().tail.0.slot.load(Ordering::Relaxed) as u16;
        let visible = self.control().visible.0.load(Ordering::Relaxed);
        let is_empty = self.entry(active).first_commit.load(Ordering::Relaxed) > visible;
        let is_in_the_way = self.is_large(active) || self.region.memory_has_holes()?;
        let rotate = || self.whole_or_stopped("beginning a generation", || self.rotate(0, 0));
        Ok(is_empty && is_in_the_way && self.can_rotate() && rotate()?)
    }

    /// How many generations wait to be used.
    pub(crate) fn standbys(&self) -> usize {
        let entries = self.region.generations();
        entries
            .filter(|(_, entry)| entry.state() == GenerationState::Standby)
            .count()
    }

    /// Makes sure that one generation is left when the next one is taken: deletions need it when the disk is full.
    pub(crate) fn keep_spare(&self) -> Result<()> {
        // One at a time: of those who find one missing together only the first makes it.
        let _one = self.hold_preparing()?;
        for _ in self.standbys()..STANDBY_GENERATIONS {
            self.prepare_next()?;
        }
        Ok(())
    }

    /// Capacity of the next generation while writes fill generations at the usual pace: four times that of the previous
    /// one, up to a part of the base, so that folding rewrites the base a bounded number of times per byte written and
    /// not much of a store waits in the log. In a small store up to a few times the smallest size, because of batches:
    /// before one is taken, a generation must have room for the worst that it can do to the index.
    pub(crate) fn keep_growing_spare(&self) -> Result<()> {
        let settings = &self.settings;
        let share = self.space.used_bytes() / BASE_PARTS;
        // Not where something is kept: streams of commits keep whole folds, and a snapshot keeps what a fold replaces.
        let is_kept = settings.retain_log_bytes > 0 || self.region.is_pinned();
        let factor = if is_kept { 1 } else { GROWN_FACTOR };
        let least = settings.generation_bytes_min * factor;
        let most = share.max(least).min(settings.generation_bytes_max);
        let _one = self.hold_preparing()?;
        for _ in self.standbys()..STANDBY_GENERATIONS {
            let last = self.control().next_capacity.load(Ordering::Relaxed);
            let is_next_there = self.next_standby().is_some_and(|(_, entry)| {
                let capacity = entry.capacity.load(Ordering::Relaxed);
                capacity > settings.generation_bytes_min && capacity >= last.min(most)
            });
            if is_next_there {
                // The other one is taken only where the disk has no room for more.
                self.prepare_standby(settings.generation_bytes_min, 0)?;
                break;
            }
            self.control()
                .next_capacity
                .store((last * GROWTH).min(most), Ordering::Relaxed);
            if self.prepare_next()?.is_none() {
                // Snapshots hold all log files.
                self.control().next_capacity.store(last, Ordering::Relaxed);
                break;
            }
        }
        Ok(())
    }

    /// Prepares generations ahead of commits that continue. A commit that needs a generation reports what is missing.
    /// `false`: trying again soon is of no use.
    pub(crate) fn keep_growing_spare_if_possible(&self) -> Result<bool> {
        match self.keep_growing_spare() {
            Err(error) if error.kind() == Kind::MakeSpace || error.waited_for().is_some() => Ok(false),
            kept => kept.map(|()| true),
        }
    }

    /// Prepares a generation as large as the next one shall be. On a full disk a small one, and small ones from then
    /// on.
    fn prepare_next(&self) -> Result<Option<u16>> {
        let next = self.control().next_capacity.load(Ordering::Relaxed);
        let least = self.settings.generation_bytes_min;
        match self.prepare_standby(next, 0) {
            Err(error) if error.kind() == Kind::MakeSpace && next > least => {
                self.region.cut_memory()?;
                self.control().next_capacity.store(least, Ordering::Relaxed);
                self.prepare_standby(least, 0)
            }
            prepared => prepared,
        }
    }

    /// Sets the price of a byte to what the log has left, while a fold goes on.
    pub(crate) fn set_price(&self) {
        if let Some(newest) = self.pace.newest_folding() {
            let now = self.platform.clock.monotonic();
            self.pace.set_price(now, self.log_room(newest));
        }
    }

    /// What the log still takes while generations up to number `newest` are being folded.
    fn log_room(&self, newest: u32) -> LogRoom {
        const ALL: u64 = WAITING_GENERATIONS_MAX as u64 + 1;
        let version = self.region.version();
        let alive = self.generations_alive() as u64;
        // Those that came after the ones that are being folded, and what they hold.
        let (mut later, mut written) = (0, 0);
        for entry in version.generations.iter().map(|&slot| self.entry(slot)) {
            if entry.number.load(Ordering::Relaxed) > newest {
                later += 1;
                written += entry.tail.load(Ordering::Relaxed);
            }
        }
        let active = version.generations.last().expect("one generation always takes commits");
        let active = self.entry(*active);
        let usable = self.pace.usable(active.capacity.load(Ordering::Relaxed));
        let left_in_active = usable.saturating_sub(active.tail.load(Ordering::Relaxed));
        // A record that is larger than a generation gets a larger one to itself, and is not the last of its kind.
        let visible = self.control().visible.0.load(Ordering::Relaxed);
        let records = (visible + 1).saturating_sub(active.first_commit.load(Ordering::Relaxed));
        let record = active.tail.load(Ordering::Relaxed).checked_div(records).unwrap_or(0);
        let next = self
            .pace
            .usable(self.control().next_capacity.load(Ordering::Relaxed))
            .max(record);
        let folding = alive.saturating_sub(later).min(ALL);
        LogRoom {
            planned: ((ALL / 2).min(ALL - folding) * next).saturating_sub(written),
            left: ALL.saturating_sub(alive) * next + left_in_active,
        }
    }

    /// Prepares a generation that can hold `capacity` bytes of log and `entries` index entries: file, zeros, index.
    /// Needs no lock. `None`: all log files are in use.
    pub(crate) fn prepare_standby(&self, capacity: u64, entries: usize) -> Result<Option<u16>> {
        let capacity = capacity.min(LOG_SPAN_BYTES);
        let Some(slot) = self.claim_unused(capacity)? else {
            return Ok(None);
        };
        let prepared = self.prepare_slot(slot, capacity, entries);
        let state = if prepared.is_ok() {
            GenerationState::Standby
        } else {
            GenerationState::Unused
        };
        self.entry(slot).set_state(state);
        prepared.map(|()| Some(slot))
    }

    /// Claims an unused log file for preparation, or a new one if needed.
    fn claim_unused(&self, capacity: u64) -> Result<Option<u16>> {
        loop {
            // Files that exist are preferred: their blocks are there already.
            let unused = self
                .region
                .generations()
                .filter(|(_, entry)| entry.state() == GenerationState::Unused)
                .max_by_key(|(slot, entry)| {
                    let filled = entry.filled.load(Ordering::Relaxed);
                    (filled.min(capacity), std::cmp::Reverse(*slot))
                });
            let next = self.region.generations_used();
            let slot = match unused {
                Some((slot, _)) => slot,
                None if next >= self.settings.log_files_max => return Ok(None),
                None => next as u16,
            };
            // Before the claim, which needs the entry's memory; and after it, because another process may have
            // forgotten the entry between the two.
            self.region.use_generation(slot)?;
            if self.entry(slot).start_preparing(self.region.me()) {
                let used = self.region.use_generation(slot);
                used.inspect_err(|_| self.entry(slot).set_state(GenerationState::Unused))?;
                return Ok(Some(slot));
            }
        }
    }

    fn prepare_slot(&self, slot: u16, capacity: u64, entries: usize) -> Result<()> {
        let entry = self.entry(slot);
        let file = self.create_log_file(slot)?;
        kill_point();
        let first = FIRST_FILLED_BYTES.min(capacity);
        // A file that was cut, or written on another machine, may end in the middle of a unit. That unit is filled
        // again: what is filled after records were written must not share a unit with them.
        let filled = entry.filled.load(Ordering::Relaxed) / self.unit * self.unit;
        entry.filled.store(filled, Ordering::Relaxed);
        if filled < first {
            let fill = |end: u64| file.write_zeros(filled, end - filled).map(|()| end);
            let reached = fill(first).or_else(|_| {
                // On a full disk less will do, and what was had of more is for others: deletions need no more.
                let least = LEAST_FILLED_BYTES.min(capacity).max(filled);
                file.set_len(filled)?;
                fill(least)
            });
            let reached = reached.map_err(|error| full_or_io("the log", LEAST_FILLED_BYTES, error))?;
            kill_point();
            entry.filled.store(reached, Ordering::Relaxed);
        }
        kill_point();
        // The name must survive power loss before a commit in the file is acknowledged. Files that were there when the
        // store was opened may have names that are not durable either.
        let names_synced =
            self.control().names_synced.load(Ordering::Acquire) != 0 || is_planted(PlantedBug::DirectoryNotSynced);
        if !names_synced || filled == 0 && !is_planted(PlantedBug::DirectoryNotSynced) {
            self.platform.storage.sync().map_err(|error| {
                if filled == 0 {
                    // The sync may have dropped the name. The next sync would succeed without it, and a power cut could
                    // take the file. So the next opening creates the file again.
                    self.segments.forget(slot);
                    let _ = self.platform.storage.remove(&file_name(slot));
                }
                // The file has its length now and would count as known the next time, with a name that may not last.
                self.poisoned_by(Error::io("syncing the store's directory", error))
            })?;
            self.control().names_synced.store(1, Ordering::Release);
        }
        let bytes = Index::bytes_for(capacity).max(Index::bytes_for_entries(entries));
        if entry.memory.place().1 > 0 {
            self.region.give_back(&entry.memory)?;
        }
        let taken = self.region.take(&entry.memory, bytes as u64);
        let (memory, memory_bytes) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                // What the file was given is for others, and a smaller generation may do.
                self.trim_log_file(slot, entry.filled.load(Ordering::Relaxed), filled)?;
                return Err(error);
            }
        };
        self.region.populate(
            memory,
            Index::cleared_bytes(memory_bytes)
                .max(POPULATED_BYTES)
                .min(memory_bytes),
        );
        // SAFETY: the region handed this memory out for this index alone.
        unsafe { Index::create(self.region.memory(memory), memory_bytes as usize) };
        entry.capacity.store(capacity, Ordering::Relaxed);
        kill_point();
        Ok(())
    }

    /// Frees generations that are in the durable base and have no readers.
    pub(crate) fn recycle(&self, state: &MaintenanceState) -> Result<()> {
        let mut pins = self.region.pins();
        if pins.everything {
            return Ok(());
        }
        pins.versions.push(self.durable_version());
        pins.versions.sort_unstable();
        let is_folded = |entry: &GenerationEntry| entry.state() == GenerationState::Folded;
        let mut folded: Vec<(u16, &GenerationEntry)> = self
            .region
            .generations()
            .filter(|(_, entry)| is_folded(entry))
            .collect();
        folded.sort_by_key(|(_, entry)| entry.number.load(Ordering::Relaxed));
        let surplus = folded.len().saturating_sub(CHECKABLE_GENERATIONS_MAX);
        for (age, &(slot, entry)) in folded.iter().enumerate() {
            let last = entry.last_commit.load(Ordering::Relaxed);
            let number = entry.number.load(Ordering::Relaxed) as u64;
            let read = pins.hold(entry.birth.load(Ordering::Relaxed), entry.death.load(Ordering::Relaxed));
            let followed = pins.follow.is_some_and(|oldest| number >= oldest) && age >= surplus;
            if last > state.durable.base_commit || read || followed {
                if self.segments.files_open() > LOG_FILES_OPEN_MAX {
                    self.segments.close(slot);
                }
                continue;
            }
            self.free_generation(slot, last);
        }
        self.remove_surplus_log_files();
        Ok(())
    }

    fn free_generation(&self, slot: u16, last: u64) {
        let entry = self.entry(slot);
        // Each may take a while, and there may be hundreds.
        self.beat();
        // Under the commit lock, because conflict checks walk the generations under it; and while no commit stream
        // reads. A stream that reads for long is not waited for; a later call frees the generations.
        self.while_nobody_reads(|| {
            // A process that was suspended inside a commit blocks this now.
            let Some(commits) = self.hold_commits_soon() else {
                return;
            };
            self.control().tail.0.checkable_since.fetch_max(last, Ordering::Relaxed);
            self.take_back(entry);
            drop(commits);
            self.give_memory_back(entry);
        });
    }

    /// Removes unused log files when there are more of them than the next generations need.
    fn remove_surplus_log_files(&self) {
        let is_empty = |entry: &GenerationEntry| {
            entry.state() == GenerationState::Unused && entry.filled.load(Ordering::Relaxed) > 0
        };
        let mut empty = self.region.generations().filter(|(_, entry)| is_empty(entry));
        if let Some((first, _)) = empty.nth(LOG_FILES_UNUSED_MAX) {
            self.remove_unused_log_files(first as usize);
        }
    }

    /// Removes unused log files from number `first` on. All they hold is in the durable base. So a file that stays, or
    /// that reappears after a power cut, does no harm.
    fn remove_unused_log_files(&self, first: usize) {
        for slot in (first..self.region.generations_used()).rev() {
            let slot = slot as u16;
            let entry = self.entry(slot);
            if !entry.start_preparing(self.region.me()) {
                continue;
            }
            let name = file_name(slot);
            // Before the file goes: were it the other way round, and this process died in between, others would go on
            // with a file that has no name.
            entry.incarnation.fetch_add(1, Ordering::AcqRel);
            kill_point();
            if entry.filled.load(Ordering::Relaxed) == 0 || self.platform.storage.remove(&name).is_ok() {
                self.segments.forget(slot);
                kill_point();
                entry.filled.store(0, Ordering::Relaxed);
                self.region.forget_last_generation(slot);
            }
            entry.set_state(GenerationState::Unused);
        }
    }

    /// Truncates unused log files to their headers.
    pub(crate) fn trim_log_files(&self) -> Result<()> {
        self.remove_unused_log_files(LOG_FILES_KEPT);
        for (slot, entry) in self.region.generations() {
            // Taken, because a commit that needs a generation just now must not get this one.
            if !entry.start_preparing(self.region.me()) {
                continue;
            }
            let filled = entry.filled.load(Ordering::Relaxed);
            let trimmed = self.trim_log_file(slot, filled, LOG_START.min(filled));
            entry.set_state(GenerationState::Unused);
            trimmed?;
        }
        Ok(())
    }

    fn trim_log_file(&self, slot: u16, filled: u64, keep: u64) -> Result<()> {
        if keep < filled {
            let file = self.log_file(slot)?;
            file.set_len(keep)
                .map_err(|error| Error::io(format!("trimming {}", file_name(slot)), error))?;
            self.entry(slot).filled.store(keep, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes into the header of the log, which has no records, which meta page is the newest. So an opening
    /// that finds both copies of that page damaged does not take the previous meta page for the newest.
    ///
    /// The header was synced, and is written over: that it may be torn by a power cut is no harm, because the meta page
    /// has everything else that it says.
    fn note_durable_base(&self) -> Result<()> {
        let tail = &self.control().tail.0;
        let slot = tail.slot.load(Ordering::Relaxed) as u16;
        if self.entry(slot).tail.load(Ordering::Relaxed) != first_record(self.unit) {
            return Ok(());
        }
        let doing = |error| Error::io(format!("writing the header of {}", file_name(slot)), error);
        let file = self.log_file(slot)?;
        let mut head = vec![0; LOG_START as usize];
        file.read_at(&mut head, 0).map_err(doing)?;
        let newest = tail.meta_sequence.load(Ordering::Relaxed);
        match SegmentHeader::decode(&head, self.store) {
            Some(header) if header.meta_sequence != newest => {
                let header = SegmentHeader {
                    meta_sequence: newest,
                    ..header
                };
                file.write_at(&header.encode(), 0).map_err(doing)
            }
            _ => Ok(()),
        }
    }

    /// Leaves only headers of the log files, when nothing in them is needed any more: closing, after the last fold.
    pub(crate) fn empty_log_files(&self) -> Result<()> {
        let durable = self.control().durable.0.load(Ordering::Acquire);
        if durable != self.control().visible.0.load(Ordering::Acquire) {
            return Ok(());
        }
        self.note_durable_base()?;
        self.remove_unused_log_files(LOG_FILES_KEPT);
        for (slot, entry) in self.region.generations() {
            let filled = entry.filled.load(Ordering::Relaxed);
            let is_read = matches!(entry.state(), GenerationState::Frozen | GenerationState::Folded);
            if filled > LOG_START && !is_read {
                let emptied = self.log_file(slot)?.set_len(LOG_START);
                emptied.map_err(|error| Error::io(format!("emptying {}", file_name(slot)), error))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use duramen_io::{OpenMode, SimDisk};

    use super::*;
    use crate::{Maintenance, Options, Store};

    const LEAST: u64 = 64 << 10;
    const MOST: u64 = 1 << 20;

    /// A store whose base takes a few MiB, and which folds when it is told to.
    fn store(disk: &SimDisk, most: u64) -> Store {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .generation_bytes(LEAST, most);
        let store = options.open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        for number in 0..5_000u64 {
            map.put(number.to_be_bytes(), [7; 1_000]).expect("a put");
        }
        store.maintain().expect("a fold");
        store
    }

    /// Capacities of the generations that wait to be used.
    fn standbys(core: &Core) -> Vec<u64> {
        let entries = core.region.generations().map(|(_, entry)| entry);
        let waiting = entries.filter(|entry| entry.state() == GenerationState::Standby);
        waiting.map(|entry| entry.capacity.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn generations_for_commits_beside_a_fold_grow_up_to_a_part_of_the_base() {
        let store = store(&SimDisk::new(1), MOST);
        let core = store.core();
        core.control().next_capacity.store(LEAST, Ordering::Relaxed);
        let part = core.space.used_bytes() / BASE_PARTS;
        assert!((LEAST * GROWTH + 1..MOST).contains(&part), "{part}");
        let mut capacities = Vec::new();
        for _ in 0..8 {
            core.discard_standbys(|_| true).expect("no other process");
            core.keep_growing_spare().expect("room");
            let mut standbys = standbys(core);
            standbys.sort_unstable();
            assert_eq!(standbys.len(), STANDBY_GENERATIONS);
            assert_eq!(standbys[0], LEAST, "what is only for a full disk is small");
            capacities.extend(standbys.pop());
        }
        assert_eq!(capacities.first(), Some(&(LEAST * GROWTH)));
        assert_eq!(capacities.last(), Some(&part));
    }

    #[test]
    fn leaving_a_generation_without_commits_puts_the_epoch_at_no_risk() {
        for seed in 0..100 {
            let disk = SimDisk::new(seed);
            let options = Options::new().maintenance(Maintenance::Manual);
            let epoch = |store: &Store| store.core().control().tail.0.epoch.load(Ordering::Relaxed);
            let store = options.clone().open_on(disk.platform()).expect("a store");
            let (before, core) = (epoch(&store), store.core());
            let active = || core.control().tail.0.slot.load(Ordering::Relaxed) as u16;
            let first = active();
            let mut state = core.hold_maintenance().expect("the only holder");
            let mut leave = || {
                core.entry(active()).capacity.fetch_add(MOST, Ordering::Relaxed);
                core.leave_large_generations(&mut state).expect("a quiet store");
            };
            leave();
            assert_ne!(active(), first);
            // Until its file is used again.
            while active() != first {
                leave();
            }
            drop(state);
            let again = options.open_on(disk.power_cut(seed).platform()).expect("a store");
            assert!(
                epoch(&again) > before,
                "seed {seed}: epoch {before} was given out again"
            );
        }
    }

    #[test]
    fn commits_wait_for_what_the_fold_frees_but_not_for_what_a_reader_let_go_meanwhile() {
        let store = store(&SimDisk::new(5), MOST);
        let (core, map) = (store.core(), store.map("map").expect("a map"));
        let mut snapshots = Vec::new();
        for number in 0..WAITING_GENERATIONS_MAX as u64 {
            map.put(number.to_be_bytes(), [7; 100]).expect("a put");
            snapshots.push(store.snapshot().expect("a snapshot"));
            store.maintain().expect("a fold");
        }
        let folded = || {
            let entries = core.region.generations().map(|(_, entry)| entry);
            let folded = entries.filter(|entry| entry.state() == GenerationState::Folded);
            folded
                .map(|entry| entry.number.load(Ordering::Relaxed))
                .collect::<Vec<_>>()
        };
        let numbers = folded();
        let (oldest, newest) = (
            *numbers.iter().min().expect("held ones"),
            *numbers.iter().max().expect("held ones"),
        );
        assert_eq!(numbers.len(), snapshots.len(), "each snapshot holds one");
        // As a thread that folds does.
        core.folder_runs.store(true, Ordering::Relaxed);
        let alive_beside = |from: u32| {
            core.pace.begins(from, newest, 1 << 20, core.platform.clock.monotonic());
            core.set_price();
            let alive = core.generations_alive();
            core.pace.ends(core.platform.clock.monotonic());
            alive
        };
        let replayed = core.generations_to_replay();
        assert_eq!(alive_beside(oldest), replayed, "they are held");
        drop(snapshots);
        assert_eq!(
            alive_beside(oldest),
            replayed + numbers.len(),
            "the fold is about to free them"
        );
        assert_eq!(alive_beside(newest), replayed + 1, "it had to do with one of them");
        assert_eq!(alive_beside(newest + 1), replayed, "with none of them");
        assert_eq!(core.generations_alive(), replayed, "no fold goes on");
        core.folder_runs.store(false, Ordering::Relaxed);
        store.maintain().expect("a fold");
        assert_eq!(folded(), []);
    }

    #[test]
    fn a_small_store_that_is_written_to_gets_generations_of_four_times_the_smallest_size() {
        let options = Options::new().generation_bytes(LEAST, MOST);
        let store = options.open_on(SimDisk::new(4).platform()).expect("a store");
        let (core, map) = (store.core(), store.map("map").expect("a map"));
        let capacity = || {
            let active = *core.region.version().generations.last().expect("an active one");
            core.entry(active).capacity.load(Ordering::Relaxed)
        };
        assert!(capacity() < LEAST * 2);
        let mut largest = 0;
        for number in 0..600u64 {
            map.put(number.to_be_bytes(), [7; 1_000]).expect("a put");
            largest = largest.max(capacity());
        }
        assert_eq!(largest, LEAST * GROWN_FACTOR);
    }

    /// Two processes, and an unused log file for which the second process is about to prepare a generation.
    fn about_to_prepare(disk: &SimDisk) -> (Store, ManuallyDrop<Store>, u16) {
        let store = store(disk, MOST);
        let options = Options::new().maintenance(Maintenance::Manual);
        let other = options.generation_bytes(LEAST, MOST).open_on(disk.platform());
        let other = ManuallyDrop::new(other.expect("a store"));
        let theirs = other.core();
        theirs.discard_standbys(|_| true).expect("no other process");
        let is_unused = |entry: &GenerationEntry| {
            entry.state() == GenerationState::Unused && entry.filled.load(Ordering::Relaxed) > 0
        };
        let unused = theirs.region.generations().find(|(_, entry)| is_unused(entry));
        let (slot, entry) = unused.expect("a log file");
        assert!(entry.start_preparing(theirs.region.me()));
        (store, other, slot)
    }

    fn file_bytes(core: &Core, slot: u16) -> u64 {
        let file = core.platform.storage.open(&file_name(slot), OpenMode::Write);
        file.and_then(|file| file.len()).unwrap_or(0)
    }

    /// A generation that a dead process was preparing is free again, and can be prepared and used.
    fn assert_given_up(store: Store, disk: &SimDisk, slot: u16, incarnation: u32) {
        let (core, map) = (store.core(), store.map("map").expect("a map"));
        core.bury_the_dead();
        assert_eq!(core.region.processes().count(), 1, "it is buried");
        let entry = core.entry(slot);
        assert_eq!(entry.state(), GenerationState::Unused);
        assert!(entry.incarnation.load(Ordering::Relaxed) > incarnation);
        assert_eq!(entry.memory.place().1, 0);
        assert_eq!(entry.filled.load(Ordering::Relaxed), file_bytes(core, slot));
        // Until it has been the active one.
        let number = entry.number.load(Ordering::Relaxed);
        let mut puts = 0u64;
        while entry.number.load(Ordering::Relaxed) == number {
            map.put(puts.to_be_bytes(), [9; 1_000]).expect("a put");
            puts += 1;
        }
        assert!(file_bytes(core, slot) >= entry.tail.load(Ordering::Relaxed));
        let disk = disk.kill();
        drop((map, store));
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        assert!((0..puts).all(|put| map.get(put.to_be_bytes()).unwrap().unwrap() == [9; 1_000]));
    }

    #[test]
    fn generation_that_a_dead_process_had_nearly_prepared_is_given_up() {
        let disk = SimDisk::new(7);
        let (store, other, slot) = about_to_prepare(&disk);
        let (theirs, entry) = (other.core(), other.core().entry(slot));
        theirs.prepare_slot(slot, LEAST, 0).expect("room");
        assert!(entry.memory.place().1 > 0);
        // It died before it could say how far the file was filled.
        entry.filled.store(LOG_START, Ordering::Relaxed);
        let incarnation = entry.incarnation.load(Ordering::Relaxed);
        theirs.region.seat().stand_up();
        assert_given_up(store, &disk, slot, incarnation);
    }

    #[test]
    fn log_file_that_a_dead_process_had_removed_is_not_taken_to_be_there() {
        let disk = SimDisk::new(8);
        let (store, other, slot) = about_to_prepare(&disk);
        let (theirs, entry) = (other.core(), other.core().entry(slot));
        let incarnation = entry.incarnation.load(Ordering::Relaxed);
        theirs.platform.storage.remove(&file_name(slot)).expect("a log file");
        theirs.region.seat().stand_up();
        assert_given_up(store, &disk, slot, incarnation);
    }

    /// The memory of an index cannot be given back while a suspended process holds the lock for that. The entry of the
    /// dead process leads to it later.
    #[test]
    fn dead_process_whose_memory_cannot_be_given_back_is_buried_another_time() {
        let disk = SimDisk::new(9);
        let (store, other, slot) = about_to_prepare(&disk);
        let (core, theirs) = (store.core(), other.core());
        theirs.prepare_slot(slot, LEAST, 0).expect("room");
        let incarnation = core.entry(slot).incarnation.load(Ordering::Relaxed);
        let stopped = Options::new().maintenance(Maintenance::Manual).open_on(disk.platform());
        let stopped = stopped.expect("a store");
        theirs.region.seat().stand_up();
        let lock = &stopped.core().control().growth_lock.0;
        let held = lock
            .try_lock(stopped.core().region.me())
            .expect("no other process has it");
        core.bury_the_dead();
        assert_eq!(core.region.processes().count(), 3);
        assert_ne!(core.entry(slot).state(), GenerationState::Unused);
        drop(held);
        stopped.close().expect("an end");
        assert_given_up(store, &disk, slot, incarnation);
    }

    #[test]
    fn generations_are_small_again_where_the_disk_has_no_room_for_large_ones() {
        let disk = SimDisk::new(2);
        let store = store(&disk, MOST);
        let core = store.core();
        core.control().next_capacity.store(MOST, Ordering::Relaxed);
        core.discard_standbys(|_| true).expect("no other process");
        core.region.cut_memory().expect("no other process");
        disk.set_capacity(Some(disk.allocated_bytes() + MOST / 4));
        core.keep_spare().expect("room for two small ones");
        assert_eq!(standbys(core), [LEAST; 2]);
        assert_eq!(core.control().next_capacity.load(Ordering::Relaxed), LEAST);
    }

    #[test]
    fn what_the_log_takes_is_planned_for_half_of_it_beside_what_is_being_folded() {
        let store = store(&SimDisk::new(3), LEAST);
        let (core, map) = (store.core(), store.map("map").expect("a map"));
        let usable = core.pace.usable(LEAST);
        let number = |slot: u16| core.entry(slot).number.load(Ordering::Relaxed);
        let active = || *core.region.version().generations.last().expect("an active one");
        let folding = number(active());
        let empty = core.log_room(folding - 1);
        assert!(empty.planned <= 3 * usable && empty.planned > 2 * usable, "{empty:?}");
        let mut before = empty;
        while number(active()) < folding + 3 {
            map.put(b"key", [8; 1_000]).expect("a put");
            let room = core.log_room(folding - 1);
            assert!(
                room.planned <= before.planned && room.left <= before.left + usable,
                "{before:?} {room:?}"
            );
            before = room;
        }
        // Four have come since: more than half, and there is room for two more.
        assert_eq!(before.planned, 0);
        assert!(before.left <= 3 * usable, "{before:?}");
        // The same with three of them being folded: half is left.
        let folded = core.log_room(folding + 2);
        assert!(folded.planned > 0 && folded.planned <= 3 * usable, "{folded:?}");
    }

    #[test]
    fn the_log_takes_as_many_large_records_as_small_ones() {
        let store = store(&SimDisk::new(5), LEAST);
        let (core, map) = (store.core(), store.map("map").expect("a map"));
        let newest = || {
            let active = *core.region.version().generations.last().expect("an active one");
            core.entry(active).number.load(Ordering::Relaxed)
        };
        let small = core.log_room(newest() - 1);
        for _ in 0..2 {
            let mut batch = crate::Batch::new();
            for number in 0..8 * LEAST / 1_000 {
                batch.put(&map, number.to_be_bytes(), [9; 1_000]).expect("a short pair");
            }
            store.write(batch).expect("room");
        }
        let large = core.log_room(newest() - 1);
        assert!(large.left > 4 * small.left, "{small:?} {large:?}");
    }
}
