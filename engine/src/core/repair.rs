//! Repair after a process died inside a commit. The next holder of the commit lock does it.
//!
//! The simple version: what was published is done, what was not has never begun.
//!
//! Why it is hard: a commit stands from the moment its record is in the log, and then its operations have still to go
//! into the index, one by one, before one store makes it visible. So the repair looks for the record where the dead
//! process was going to write it. A whole record that continues the chain is the next commit, and the repair completes
//! it. (No caller was told of it. But recovery after a later power cut would find it too, so it must count here as
//! well.) Anything else is the beginning of a record, which the next one overwrites.
//!
//! What the dead one had already done is done again: the index recognises operations that it has, and of the numbers
//! that a commit adds to, those from before are kept in `Tail` until the next commit begins.
//!
//! Everything else that happens under the commit lock changes the published version, or is about generations that no
//! version names; there the published version says how far it came.
//!
//! Invariant: whatever is found, doing this again from the beginning, after dying in it, leaves the same.

use std::sync::atomic::Ordering;

use duramen_io::{File, wake};

use crate::core::Core;
use crate::datafile::meta::MetaPages;
use crate::error::{Error, Reason, Result};
use crate::limits::LOG_SPAN_BYTES;
use crate::log::FoldCosts;
use crate::log::fold_costs;
use crate::log::{OperationKind, Operations, RECORD_HEADER_BYTES, RecordHeader, body_checksum, record_bytes};
use crate::planted::{PlantedBug, is_planted, kill_point};
use crate::region::{GenerationState, Tail};

/// A record that its writer left whole.
struct Left {
    body: Vec<u8>,
    /// Checksum of its header, which the next record names.
    sum: u32,
    /// Its commit time.
    time: u64,
}

impl Core {
    /// Repairs what a process left that died with the commit lock. The caller holds the lock now.
    pub(crate) fn repair_commits(&self) {
        self.settle_version();
        if let Err(error) = self.finish_commit() {
            // Whether the commit stands is not known, and what is in the index of it cannot be taken back.
            self.poison(&error);
        }
    }

    /// Makes the states of generations those of the published version.
    fn settle_version(&self) {
        let control = self.control();
        let version = self.region.version();
        // The next holder of the maintenance lock gives up a tree whose publication was prepared and did not happen.
        if control.installing.load(Ordering::Relaxed) > version.number {
            control.installing.store(0, Ordering::Relaxed);
        }
        let Some(&active) = version.generations.last() else {
            return;
        };
        for (slot, entry) in self.region.generations() {
            match entry.state() {
                // It was to be published next.
                GenerationState::Active if slot != active => entry.set_state(GenerationState::Standby),
                _ => {}
            }
        }
        let entry = self.entry(active);
        if entry.state() != GenerationState::Active {
            // The one after it was not published.
            entry.last_commit.store(u64::MAX, Ordering::Relaxed);
            entry.set_state(GenerationState::Active);
        }
        control.tail.0.slot.store(active as u32, Ordering::Relaxed);
    }

    fn finish_commit(&self) -> Result<()> {
        let control = self.control();
        let tail = &control.tail.0;
        let commit = control.visible.0.load(Ordering::Acquire) + 1;
        if tail.writing.load(Ordering::Acquire) != commit || is_planted(PlantedBug::CommitNotFinished) {
            return Ok(());
        }
        let slot = tail.slot.load(Ordering::Relaxed) as u16;
        let start = tail.writing_at.load(Ordering::Relaxed);
        let Some(left) = self.record_left(&*self.log_file(slot)?, start, commit)? else {
            return Ok(());
        };
        self.enter_record(slot, start, commit, &left)?;
        kill_point();
        // It may have changed maps.
        control.catalog.store(commit, Ordering::Release);
        // Release: pairs with the acquire in `read_version`, as in `write_record`.
        control.visible.0.store(commit, Ordering::Release);
        Ok(())
    }

    /// The record of a commit at the place where it was to be written, if all of it is there.
    fn record_left(&self, file: &dyn File, start: u64, commit: u64) -> Result<Option<Left>> {
        let tail = &self.control().tail.0;
        let doing = |error| Error::io("reading what a process that died had begun to write", error);
        let length = file.len().map_err(doing)?.min(LOG_SPAN_BYTES);
        let body_start = start + RECORD_HEADER_BYTES as u64;
        if body_start > length {
            return Ok(None);
        }
        let mut head = [0; RECORD_HEADER_BYTES];
        file.read_at(&mut head, start).map_err(doing)?;
        let Some((header, sum)) = RecordHeader::decode(&head, &self.seeds) else {
            return Ok(None);
        };
        let entry = self.entry(tail.slot.load(Ordering::Relaxed) as u16);
        let is_next = header.commit == commit
            && header.previous == tail.writing_previous.load(Ordering::Relaxed)
            && header.generation == entry.number.load(Ordering::Relaxed)
            && header.epoch == tail.epoch.load(Ordering::Relaxed);
        if !is_next || body_start + u64::from(header.body_length) > length {
            return Ok(None);
        }
        let mut body = vec![0; header.body_length as usize];
        file.read_at(&mut body, body_start).map_err(doing)?;
        let is_whole = body_checksum(&body, &self.seeds) == header.body_checksum;
        Ok(is_whole.then_some(Left {
            body,
            sum,
            time: header.time,
        }))
    }

    /// Whether the record of a commit is whole at the place where it was to be written, after a write that failed.
    pub(crate) fn is_record_whole(&self, file: &dyn File, start: u64, commit: u64) -> Result<bool> {
        Ok(self.record_left(file, start, commit)?.is_some())
    }

    /// Does what `Core::write_record` does after writing.
    fn enter_record(&self, slot: u16, start: u64, commit: u64, left: &Left) -> Result<()> {
        let tail = &self.control().tail.0;
        let entry = self.entry(slot);
        // SAFETY: the caller has the commit lock of the process that died, and the generation takes commits.
        let generation = unsafe { self.generation_view(slot) }?;
        let body_start = start as u32 + RECORD_HEADER_BYTES as u32;
        let mut costs = FoldCosts {
            bytes: left.body.len() as u64,
            ..FoldCosts::default()
        };
        for operation in Operations::of(&left.body) {
            let (position, operation) = operation?;
            let position = body_start + position as u32;
            costs.operations += 1;
            costs += fold_costs(operation.kind, operation.value);
            match operation.kind {
                OperationKind::Restore => self.region.begin_another_life(),
                OperationKind::Checkpoint => self.control().pending_checkpoint.0.begins(commit, slot, position),
                _ => {}
            }
            // Each process that died in an insert may have left memory that nothing refers to.
            if !generation.index.has_room(1) {
                return Err(Error::damaged(format!(
                    "processes died so often in commit {commit} that its index has no room left"
                )));
            }
            generation.enter(operation, self.hash_seed, commit, position);
            kill_point();
        }
        tail.previous.store(left.sum, Ordering::Relaxed);
        tail.time.store(left.time, Ordering::Relaxed);
        costs += tail.writing_costs.load();
        entry.costs.store(costs);
        // Release: the syncer that sees this tail syncs after the record was written.
        let end = start + record_bytes(left.body.len());
        entry.tail.store(end, Ordering::Release);
        Ok(())
    }
}

impl Core {
    /// Repairs what a process left that died with the maintenance lock, or that gave up because another process was in
    /// the way. The caller holds the lock.
    ///
    /// # Errors
    /// Those of taking locks and of publishing. The caller must repeat the repair then.
    pub(crate) fn repair_maintenance(&self) -> Result<()> {
        let control = self.control();
        // The dead process may have held the commit lock too. Taking that over decides whether a tree was published.
        drop(self.hold_commits()?);
        control.freeing.store(0, Ordering::SeqCst);
        wake(&control.freeing, u32::MAX);
        self.pace.costs_nothing();
        if control.installing.load(Ordering::Acquire) == 0 {
            if !is_planted(PlantedBug::TreeNotGivenUp) {
                self.space.give_up_tree()?;
            }
        } else if !is_planted(PlantedBug::TreeNotPutInOrder) {
            self.finish_install()?;
        }
        self.finish_meta().map_err(|error| self.poisoned_unless_busy(error))?;
        self.recount_promises()?;
        self.report_progress();
        Ok(())
    }

    /// Takes back promises that no commit needs: those of dead processes, and of generations that they folded. Under
    /// the maintenance lock, because a fold settles what it folded.
    pub(crate) fn recount_promises(&self) -> Result<()> {
        // What is in the log changes under this lock alone.
        let _commits = self.hold_commits()?;
        self.space.promised_at_most(|| {
            let mut promised = FoldCosts::default();
            let entries = self.region.generations().map(|(_, entry)| entry);
            for entry in entries.filter(|entry| entry.is_to_fold()) {
                promised += entry.costs.load();
            }
            for (_, process) in self.region.processes() {
                promised += process.promised.load();
            }
            promised
        });
        Ok(())
    }

    /// Makes a meta page durable that was written, or was being written: a power cut may bring it back, so nothing must
    /// be overwritten that it refers to before there is a newer one. A copy that was cut off while it was written is
    /// written again, so that the newest meta page has two copies.
    fn finish_meta(&self) -> Result<()> {
        let control = self.control();
        let known = control.tail.0.meta_sequence.load(Ordering::Acquire);
        let found = MetaPages::read(&*self.data)?.ok_or_else(|| Error::damaged("no meta page is intact"))?;
        let again = || found.write_again(&*self.data, &|| self.sync_data_file("making the base durable"));
        let newest = found.newest.sequence as u32;
        if newest == known.wrapping_add(1) {
            again()?;
            self.is_durable(&found.newest)?;
        } else if newest == known && !found.is_whole() {
            match again() {
                // The copies that are intact suffice until the next meta page is written.
                Err(error) if matches!(error.reason(), Reason::Full { .. }) => {}
                written => written?,
            }
        }
        Ok(())
    }
}

impl Tail {
    /// Notes what a commit is about to do, for the repair of the commit lock.
    pub(crate) fn begin_writing(&self, commit: u64, start: u64, costs: FoldCosts) {
        self.writing_at.store(start, Ordering::Relaxed);
        self.writing_previous
            .store(self.previous.load(Ordering::Relaxed), Ordering::Relaxed);
        self.writing_costs.store(costs);
        // Last, and Release: with this number the others count.
        self.writing.store(commit, Ordering::Release);
    }

    /// Notes that the commit of [`Tail::begin_writing`] was refused.
    pub(crate) fn ends_writing(&self) {
        // No commit has this number.
        self.writing.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;
    use std::time::Duration;

    use duramen_io::SimDisk;

    use super::*;
    use crate::core::pace::LogRoom;
    use crate::datafile::meta::Meta;
    use crate::key::full_key::{CATALOG, FullKey};
    use crate::limits::PAGE_BYTES;
    use crate::log::{Body, NewCheckpoint, checkpoint_key};
    use crate::{ChangesFrom, Durability, Kind, Maintenance, Options, Store, TransactionOptions};

    fn open(disk: &SimDisk) -> Store {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        options.open_on(disk.platform()).expect("a store")
    }

    /// What a writer is about to write, and where.
    fn record(core: &Core, mut body: Body) -> (Vec<u8>, u16, u64) {
        let control = core.control();
        let tail = &control.tail.0;
        let slot = tail.slot.load(Ordering::Relaxed) as u16;
        let entry = core.entry(slot);
        let header = RecordHeader {
            commit: control.visible.0.load(Ordering::Relaxed) + 1,
            synced: control.synced.0.load(Ordering::Relaxed),
            body_length: body.len() as u32,
            body_checksum: body_checksum(body.body(), &core.seeds),
            previous: tail.previous.load(Ordering::Relaxed),
            generation: entry.number.load(Ordering::Relaxed),
            epoch: tail.epoch.load(Ordering::Relaxed),
            meta_sequence: tail.meta_sequence.load(Ordering::Relaxed),
            time: tail.time.load(Ordering::Relaxed),
        };
        let (record, _) = body.seal(&header, &core.seeds);
        (record.to_vec(), slot, entry.tail.load(Ordering::Relaxed))
    }

    /// What a writer leaves who dies while the kernel copies his record: the front of it, with the header.
    fn leave_the_front_of_a_record(core: &Core) {
        let mut body = Body::new();
        body.push(OperationKind::Put, b"\0\0\0\x09a key", &[7; 10_000]);
        let (record, slot, start) = record(core, body);
        let file = core.log_file(slot).expect("a log file");
        file.write_at(&record[..8_000], start).expect("a disk");
        core.repair_commits();
    }

    #[test]
    fn map_that_a_dead_writer_dropped_is_dropped_for_those_who_have_handles_of_it() {
        let disk = SimDisk::new(4);
        // Nothing was promised for the record, so no fold takes it.
        let (store, other) = (ManuallyDrop::new(open(&disk)), ManuallyDrop::new(open(&disk)));
        let map = other.map("map").expect("a map");
        map.put(b"key", b"value").expect("a put");
        let core = store.core();
        let name = FullKey::new(CATALOG, b"map").expect("a short key");
        let mut body = Body::new();
        body.push(OperationKind::Delete, &name, &[]);
        let (record, slot, start) = record(core, body);
        let (tail, entry) = (&core.control().tail.0, core.entry(slot));
        let commit = core.control().visible.0.load(Ordering::Relaxed) + 1;
        tail.begin_writing(commit, start, entry.costs.load());
        let file = core.log_file(slot).expect("a log file");
        file.write_at(&record, start).expect("a disk");
        core.repair_commits();
        let error = map.put(b"key", b"newer").expect_err("there is no such map any more");
        assert!(matches!(error.reason(), Reason::MapDropped { .. }), "{error}");
    }

    /// Found by `duramen torture`: what was committed after that was not found in the log, by recovery, by streams of
    /// commits, and by the search for pages that the log refers to.
    #[test]
    fn front_of_a_record_that_a_dead_writer_left_before_a_sync_hides_nothing() {
        let disk = SimDisk::new(1);
        let store = open(&disk);
        let map = store.map("map").expect("a map");
        map.put(b"before", b"value").expect("a put");
        leave_the_front_of_a_record(store.core());
        // The next writer begins at the next sector.
        store.sync().expect("a durable log");
        let mut changes = store.changes(ChangesFrom::Now).expect("a stream");
        map.put(b"long", vec![3; 100_000]).expect("a put");
        map.put(b"after", b"value").expect("a put");
        store.sync().expect("a durable log");
        let core = store.core();
        let referred_to = core.pages_in_log(&core.region.version()).expect("a whole log");
        assert!(referred_to.len() >= 100_000 / 4096, "{referred_to:?}");
        for commit in 0..2 {
            assert!(
                changes.next(Duration::ZERO).expect("a whole log").is_some(),
                "commit {commit}"
            );
        }
        for disk in [disk.kill(), disk.power_cut(1)] {
            let store = open(&disk);
            let map = store.map("map").expect("a map");
            for key in [&b"before"[..], b"long", b"after"] {
                assert!(
                    map.get(key).expect("a sound store").is_some(),
                    "{key:?} was acknowledged"
                );
            }
            assert_eq!(store.check(&mut |_| ()).expect("a check").problems, [""; 0]);
            assert_eq!(map.count().expect("a count"), 3);
        }
    }

    /// The other process dies while it frees a generation, and commits pause for its fold.
    #[test]
    fn streams_and_commits_go_on_once_somebody_has_the_maintenance_of_a_dead_process() {
        let disk = SimDisk::new(3);
        let (store, other) = (open(&disk), ManuallyDrop::new(open(&disk)));
        let map = store.map("map").expect("a map");
        let mut changes = store.changes(ChangesFrom::Now).expect("a stream");
        map.put(b"key", b"value").expect("a put");
        let (core, theirs) = (store.core(), other.core());
        let lock = &theirs.control().maintenance_lock.0;
        std::mem::forget(lock.try_lock(theirs.region.me()).expect("no other process has it"));
        theirs.control().freeing.store(1, Ordering::SeqCst);
        theirs.pace.begins(1, 1, 1 << 20, Duration::ZERO);
        theirs.pace.merges(Duration::ZERO);
        let room = LogRoom { planned: 1, left: 1 };
        theirs.pace.set_price(Duration::from_secs(1), room);
        assert!(core.pace.is_on());
        theirs.region.seat().stand_up();
        // The first process that comes need not be the process that buries.
        drop(
            core.try_hold_maintenance()
                .expect("all is in order")
                .expect("it is free"),
        );
        assert!(!core.pace.is_on(), "commits pause for no process");
        assert_eq!(core.control().freeing.load(Ordering::SeqCst), 0);
        assert!(changes.next(Duration::ZERO).expect("a whole log").is_some());
    }

    /// The other process dies while the kernel copies the first copy of its meta page. Found by the crash tests.
    #[test]
    fn meta_page_that_a_dead_process_left_half_written_is_written_again() {
        let disk = SimDisk::new(5);
        let (store, other) = (open(&disk), ManuallyDrop::new(open(&disk)));
        store.map("map").expect("a map").put(b"key", b"value").expect("a put");
        store.maintain().expect("a fold");
        let (core, theirs) = (store.core(), other.core());
        let lock = &theirs.control().maintenance_lock.0;
        std::mem::forget(lock.try_lock(theirs.region.me()).expect("no other process has it"));
        let found = MetaPages::read(&*core.data).expect("a disk").expect("a meta page");
        let next = Meta {
            sequence: found.newest.sequence + 1,
            ..found.newest
        };
        let [page, _] = next.pages();
        core.data.write_at(&[7; 100], page * PAGE_BYTES as u64).expect("a disk");
        theirs.region.seat().stand_up();
        drop(core.hold_maintenance().expect("all is in order"));
        assert_eq!(store.check(&mut |_| ()).expect("a check").problems, [""; 0]);
    }

    /// The other process was stopped inside a commit when the tree was to be published.
    #[test]
    fn tree_that_could_not_be_published_is_given_up_by_the_next_who_folds() {
        let disk = SimDisk::new(2);
        let options = || {
            let options = Options::new().maintenance(Maintenance::Manual);
            options
                .generation_bytes(32 << 10, 64 << 10)
                .durability(Durability::Written)
        };
        let open = || options().open_on(disk.platform()).expect("a store");
        let (store, other) = (open(), open());
        let map = store.map("map").expect("a map");
        let put_all = |byte: u8| {
            (0..1_000u32).for_each(|number| map.put(number.to_be_bytes(), [byte; 100]).expect("a put"));
        };
        put_all(1);
        let core = store.core();
        let mut state = core.hold_maintenance().expect("no other process has it");
        let lock = &other.core().control().commit_lock.0;
        let stopped = lock
            .try_lock(other.core().region.me())
            .expect("no other process has it");
        let error = core.fold(&mut state).expect_err("it cannot be published");
        assert!(matches!(error.reason(), Reason::Busy { .. }), "{error}");
        drop((state, stopped));
        // By the next process that folds.
        other.maintain().expect("a fold");
        put_all(2);
        store.maintain().expect("a fold");
        assert!((0..1_000u32).all(|number| map.get(number.to_be_bytes()).unwrap().unwrap() == [2; 100]));
        assert_eq!(store.check(&mut |_| ()).expect("a check").problems, [""; 0]);
    }

    /// A fold ends where a generation ends, so a checkpoint inside of one could not be kept.
    #[test]
    fn checkpoint_inside_of_a_log_file_is_damage() {
        let disk = SimDisk::new(9);
        let store = ManuallyDrop::new(open(&disk));
        store.map("map").expect("a map").put(b"key", b"value").expect("a put");
        let new = NewCheckpoint {
            id: 1,
            time: 0,
            name: "one",
            metadata: b"",
        };
        let mut body = Body::new();
        body.push(OperationKind::Checkpoint, &checkpoint_key(new.id), &new.encode());
        let (record, slot, start) = record(store.core(), body);
        let file = store.core().log_file(slot).expect("a log file");
        file.write_at(&record, start).expect("a disk");
        let options = Options::new().maintenance(Maintenance::Manual);
        let error = options.open_on(disk.kill().platform()).expect_err("it is damaged");
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(error.to_string().contains("checkpoint inside"), "{error}");
    }

    /// A process that dies before the commit that makes a checkpoint leaves room for it kept back.
    #[test]
    fn room_that_a_dead_process_kept_for_a_checkpoint_comes_free() {
        let disk = SimDisk::new(10);
        let (store, other) = (open(&disk), ManuallyDrop::new(open(&disk)));
        let exclusive = || TransactionOptions::new().exclusive();
        let _held = ManuallyDrop::new(other.begin(exclusive()).expect("no other one"));
        let theirs = other.core();
        theirs.space.begin_to_keep_root(500, &theirs.pages).expect("room");
        let kept = || store.core().control().space.next_register_pages.load(Ordering::Relaxed);
        assert_eq!(kept(), 500);
        theirs.region.seat().stand_up();
        drop(store.begin(exclusive()).expect("the one before is dead"));
        assert_eq!(kept(), 0);
    }
}
