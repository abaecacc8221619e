//! What a dead process had of a store that others share: locks, snapshots, log files that it prepared, room that it was
//! promised, and its place among the processes. The process that notices the death gives all of it back, within about a
//! second.
//!
//! No thread waits for this. A thread that needs a lock of a dead process takes it over at once, in the same way. Every
//! step can be repeated without harm, because the process that does it may die as well.

use std::sync::atomic::Ordering;

use duramen_io::{OpenMode, Owner, WordLock, wake};

use crate::commit::exclusive::{NOT_EXCLUSIVE, is_token_of};
use crate::core::Core;
use crate::error::Result;
use crate::log::FoldCosts;
use crate::log::file_name;
use crate::planted::{PlantedBug, is_planted, kill_point};
use crate::region::{GenerationEntry, GenerationState};
use crate::sync::Synced;

impl Core {
    /// Looks for processes that have died, and gives back what they had.
    pub(crate) fn bury_the_dead(&self) {
        let is_left = is_planted(PlantedBug::DeadNotBuried) || is_planted(PlantedBug::OpenedUndecided);
        if !self.is_shared() || is_left {
            return;
        }
        let is_dead = |owner: Owner| owner != self.region.me() && self.region.is_dead(owner);
        let dead: Vec<Owner> = self
            .region
            .processes()
            .map(|(owner, _)| owner)
            .filter(|&owner| is_dead(owner))
            .collect();
        if dead.is_empty() {
            return;
        }
        let lock = &self.control().burial_lock.0;
        // The process that buried may be dead itself.
        self.region.free_if_dead(lock, || ());
        let Some(burying) = lock.try_lock(self.region.me()) else {
            return;
        };
        // Another process may have buried it meanwhile, and a new process may have taken its entry.
        for owner in dead.into_iter().filter(|&owner| is_dead(owner)) {
            self.bury(owner);
        }
        drop(burying);
        self.report_progress();
    }

    fn bury(&self, owner: Owner) {
        self.free_locks_of_the_dead();
        self.control().names_synced.store(0, Ordering::Release);
        let mut are_given_up = true;
        let prepared = self.region.generations();
        for (slot, entry) in prepared.filter(|(_, entry)| entry.is_prepared_by(owner)) {
            are_given_up &= self.give_up_preparing(slot, entry);
        }
        let exclusive = &self.control().exclusive.0;
        // Others may note at this moment that they wait for it.
        let ended = exclusive.fetch_update(Ordering::AcqRel, Ordering::Acquire, |token| {
            is_token_of(owner, token).then_some(NOT_EXCLUSIVE)
        });
        if ended.is_ok() {
            wake(exclusive, u32::MAX);
        }
        kill_point();
        self.region.unpin_all_of(owner);
        self.region.bells().forget(owner);
        self.region.brakes().forget(owner);
        let Ok(Some(maintenance)) = self.try_hold_maintenance() else {
            // Another thread folds now: a later round does this.
            return;
        };
        // Another process may have taken the commit lock over and not have decided yet whether the last commit stands.
        // Until then it is unknown what the log refers to.
        let Ok(decided) = self.hold_commits() else {
            return;
        };
        drop(decided);
        if self.free_loose_pages(owner).is_err() {
            return;
        }
        let entry = self.region.process(owner);
        entry.promised.store(FoldCosts::default());
        kill_point();
        if self.recount_promises().is_err() {
            return;
        }
        drop(maintenance);
        entry.reading.store(0, Ordering::SeqCst);
        // Another time otherwise: by its place what it had prepared is found.
        if !are_given_up {
            return;
        }
        // Who is about to take a lock over has looked who is dead, and must find the same one in this place until it
        // has.
        let Some(burial) = self.region.seat().bury() else {
            return;
        };
        // Another process may have been taking over when this freed one of the locks: then a later round does it.
        if !self.has_locks(owner) {
            entry.leave();
        }
        drop(burial);
    }

    /// Whether any lock names a process. A new process in the same entry would be mistaken for the dead one.
    fn has_locks(&self, owner: Owner) -> bool {
        let control = self.control();
        let locks = [
            &control.sync_lock,
            &control.data_sync_lock,
            &control.preparing_lock,
            &control.commit_lock,
            &control.maintenance_lock,
            &control.space.lock,
            &control.growth_lock,
            &control.burial_lock,
        ];
        locks.into_iter().any(|lock| lock.0.holder() == Some(owner))
    }

    /// Takes all locks that dead processes have, in the order in which each can be put in order with those before it,
    /// and releases them.
    fn free_locks_of_the_dead(&self) {
        let control = self.control();
        self.region.free_locks_of_dead();
        self.space.free_lock_of_dead();
        let free = |lock: &WordLock, repair: &dyn Fn()| self.region.free_if_dead(lock, repair);
        free(&control.sync_lock.0, &|| self.doubt(Synced::Log));
        free(&control.data_sync_lock.0, &|| self.doubt(Synced::Data));
        free(&control.preparing_lock.0, &|| ());
        free(&control.commit_lock.0, &|| self.repair_commits());
        free(&control.maintenance_lock.0, &|| self.owe_maintenance());
    }

    /// Frees pages of long values and of runs that never came into the log.
    ///
    /// # Errors
    /// [`crate::Reason::Busy`].
    fn free_loose_pages(&self, owner: Owner) -> Result<()> {
        if !self.space.has_loose_runs(owner)? {
            return Ok(());
        }
        match self.pages_in_log(&self.region.version()) {
            Ok(referred_to) => self
                .space
                .free_loose_pages_of(owner, |page| referred_to.contains(&page)),
            // They are only lost until the store is reopened. A read of what is damaged reports it.
            Err(_) => Ok(()),
        }
    }

    /// A log file that was being made ready, or removed: it may be there or not, under a name that may last or not.
    /// `false`: its memory cannot be given back now.
    fn give_up_preparing(&self, slot: u16, entry: &GenerationEntry) -> bool {
        entry.incarnation.fetch_add(1, Ordering::AcqRel);
        if entry.memory.place().1 > 0 && self.region.give_back(&entry.memory).is_err() {
            return false;
        }
        kill_point();
        let file = self.platform.storage.open(&file_name(slot), OpenMode::Write);
        let length = file.and_then(|file| file.len()).unwrap_or(0);
        entry.filled.store(length, Ordering::Relaxed);
        entry.set_state(GenerationState::Unused);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use duramen_io::SimDisk;

    use super::*;
    use crate::commit::exclusive::WAITED_FOR;
    use crate::{Durability, Maintenance, Options, Store, TransactionOptions};

    fn open(disk: &SimDisk) -> ManuallyDrop<Store> {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        // One of them dies, and the others do not wait for it on the way out of a test that failed.
        ManuallyDrop::new(options.open_on(disk.platform()).expect("a store"))
    }

    #[test]
    fn exclusive_transaction_of_a_dead_process_shuts_nobody_out() {
        let disk = SimDisk::new(1);
        let (store, other) = (open(&disk), open(&disk));
        let map = store.map("map").expect("a map");
        let exclusive = other.begin(TransactionOptions::new().exclusive());
        std::mem::forget(exclusive.expect("no other writer"));
        other.core().region.seat().stand_up();
        let core = store.core();
        // A thread of this process waits for it.
        core.control().exclusive.0.fetch_or(WAITED_FOR, Ordering::AcqRel);
        core.bury_the_dead();
        assert_eq!(core.control().exclusive.0.load(Ordering::Acquire), NOT_EXCLUSIVE);
        map.put(b"key", b"value").expect("a put");
        assert_eq!(core.region.processes().count(), 1);
    }

    #[test]
    fn process_in_the_place_of_a_dead_one_does_not_seem_to_read_what_that_one_read() {
        let disk = SimDisk::new(2);
        let (store, other) = (open(&disk), open(&disk));
        let theirs = &other.core().region;
        theirs.process(theirs.me()).reading.fetch_add(1, Ordering::SeqCst);
        theirs.seat().stand_up();
        let core = store.core();
        core.bury_the_dead();
        let third = open(&disk);
        assert_eq!(third.core().region.me(), theirs.me());
        let _maintenance = core.hold_maintenance().expect("no other process has it");
        assert!(core.while_nobody_reads(|| ()), "a stream seems to read");
    }
}
