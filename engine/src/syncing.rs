//! Syncs: of the log, one for all who wait, and of the data file. In every process, and beside one that was stopped.
//!
//! The simple version: whoever has the lock syncs, and says how far everything survives power loss; the others wait.
//!
//! Why it is hard: the kernel tells once of bytes that it could not write, to each description of the file that was open
//! when it gave them up, takes them for clean afterwards, and whoever opens the file later is told that all is well. So
//! somebody may know, and be stopped or killed before it has told anybody. And it may be stopped for ever, with the lock.
//!
//! So each process notes in its entry that it is in the middle of a sync, with a number of the order in which syncs begin,
//! files are opened and processes attach ([`crate::region::Control::moments`]). Whoever syncs, with the lock or without,
//! looks at the notes of the others:
//!
//! | somebody else is in the middle of a sync, and | then |
//! |---|---|
//! | it began after this process had opened the file, or is about other log files | nothing: what it is told of, this process is told of too |
//! | it began before, and is alive | nobody is told that anything is durable; who waits for long gets `Busy` |
//! | it began before, and is dead | what is not known to be durable is written again, so that the next sync has it to write. With the lock, and while nobody who is alive is in the middle of a sync: bytes that somebody was told are durable are never written again |
//!
//! The lock only keeps all who wait from syncing each for himself. Who finds that its holder does not get on syncs beside
//! it, which a holder that was stopped does not mind: everything that is published afterwards is a maximum, and an end of a
//! generation's records that comes late says nothing about the next generation in the same log file
//! ([`crate::region::LogEnd`]).
//!
//! Invariants: `synced <= visible`; `synced` reaches a commit only after a sync that began after its record was written,
//! by a description that is told of everything that came between.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use duramen_io::{Hindrance, LOOK_INTERVAL, Owner, WordLock, WordLockGuard, wait, wake};

use crate::core::Core;
use crate::error::{Error, Reason, Result};
use crate::planted::{PlantedBug, is_planted, kill_point};
use crate::processes::ProcessEntry;

/// How long a holder of the lock may be in the middle of one sync before others sync beside it. A device that is as slow
/// has little to do for the second one.
const STUCK_AFTER: Duration = Duration::from_secs(1);
/// How long somebody waits who cannot.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for a process that is seen to wait for its device.
const DEVICE_PATIENCE: Duration = Duration::from_secs(60);
/// How long a process waits for an older one to sync what a dead one may have been told of, before it writes that again.
const OLDER_AFTER: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);
/// In the number of a sync: it is none, but somebody writes again what a dead process may have been told of.
const WRITES_AGAIN: u64 = 1 << 63;

fn writes_again(number: u64) -> bool {
    number & WRITES_AGAIN != 0
}

/// What is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synced {
    Log,
    Data,
}

/// What a process remembers of syncs, for each of both.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    own: [OwnSyncs; 2],
    futures: Mutex<FutureSyncs>,
}

/// What became of syncs for futures.
#[derive(Debug, Default)]
struct FutureSyncs {
    /// How many attempts have come to an end.
    attempts: u64,
    /// The newest commit that the last one gave up on, which process was in the way, and for how long.
    given_up: Option<(u64, u32, Duration)>,
}

impl Syncs {
    fn futures(&self) -> MutexGuard<'_, FutureSyncs> {
        self.futures.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[derive(Debug, Default)]
struct OwnSyncs {
    /// Threads of a process share descriptions of files: only one of two would be told.
    one: Mutex<()>,
    /// Who was last found in the middle of a sync while others waited, in which one, and since when.
    watched: Mutex<Option<(Owner, u64, Instant)>>,
    /// The number of a sync that does not get on.
    stuck: AtomicU64,
}

/// What came of trying to sync.
enum Attempt<T> {
    Done(T),
    /// This process may have been told of something, and is in the middle of its sync.
    InDoubt(Owner),
}

/// This process is in the middle of a sync, until this is dropped.
struct Begun<'a> {
    word: &'a AtomicU64,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        // Release: whoever finds that it is over finds that the store has stopped, if it has.
        self.word.store(0, Ordering::Release);
    }
}

impl Core {
    /// Makes everything that is visible now survive power loss.
    pub(crate) fn sync(&self) -> Result<()> {
        self.healthy()?;
        self.wait_synced(self.control().visible.0.load(Ordering::Acquire))
    }

    /// Waits until a commit that was just made survives power loss.
    ///
    /// # Errors
    /// [`Reason::Unknown`]; [`Reason::NotSynced`] when another process keeps it from being known.
    pub(crate) fn wait_durable(&self, commit: u64) -> Result<()> {
        self.wait_synced(commit).map_err(|error| match *error.reason() {
            Reason::Busy { process, waited } => Reason::NotSynced {
                commit,
                process,
                waited,
            }
            .into(),
            _ => error,
        })
    }

    /// Makes what is visible now survive power loss, for the futures that wait for that; or gives up, so that they say so.
    pub(crate) fn sync_for_futures(&self) {
        let commit = self.control().visible.0.load(Ordering::Acquire);
        let given_up = match self.wait_synced(commit).as_ref().map_err(Error::reason) {
            Err(&Reason::Busy { process, waited }) => Some((commit, process, waited)),
            // A failed sync has stopped the store; the futures find that out themselves.
            _ => None,
        };
        let mut futures = self.syncs.futures();
        (futures.attempts, futures.given_up) = (futures.attempts + 1, given_up);
        drop(futures);
        self.wake_futures();
    }

    /// How many attempts to sync for futures have come to an end.
    pub(crate) fn sync_attempts(&self) -> u64 {
        self.syncs.futures().attempts
    }

    /// Whether waiting for a commit to be durable was given up, in an attempt that came to its end after so many others.
    pub(crate) fn was_given_up(&self, commit: u64, attempts: u64) -> Option<Error> {
        let futures = self.syncs.futures();
        let is_it = |&(newest, ..): &(u64, u32, Duration)| commit <= newest && attempts < futures.attempts;
        let (_, process, waited) = futures.given_up.filter(is_it)?;
        let reason = Reason::NotSynced {
            commit,
            process,
            waited,
        };
        Some(reason.into())
    }

    /// Waits until a commit survives power loss; the first one who waits syncs for all.
    ///
    /// # Errors
    /// [`Reason::Unknown`]; [`Reason::Busy`].
    pub(crate) fn wait_synced(&self, commit: u64) -> Result<()> {
        let control = self.control();
        let lock = &control.sync_lock.0;
        let (mut has_waited, mut in_doubt) = (false, None);
        loop {
            let words = control.sync_words.0.each_ref();
            let seen = words.map(|word| word.load(Ordering::Acquire));
            let sleep = |place: usize| wait(words[place], seen[place], Some(STEP));
            if control.synced.0.load(Ordering::Acquire) >= commit {
                return Ok(());
            }
            let unknown = |cause: String| Error::from(Reason::Unknown { commit, cause });
            if self.is_poisoned() {
                return Err(unknown(self.cause()));
            }
            let mut led = None;
            let attempt = match lock.try_lock(self.region.me()) {
                Some(leading) => {
                    let attempt = self.sync_log(true);
                    led = Some(self.syncing().1);
                    // The lock first, then the word: who is woken while the lock is still held would find it taken and
                    // sleep again, with nobody but the clock to wake it (`tests/schedules.rs` has this schedule).
                    drop(leading);
                    attempt
                }
                None if self.is_stuck(Synced::Log, lock, has_waited) => {
                    // Whoever was stopped may be dead by now, and then somebody is to have the lock.
                    self.region.free_if_dead(lock, || ());
                    self.sync_log(false)
                }
                // A leader that stops, or dies, must not hold the others up for ever.
                None => {
                    has_waited = !sleep(self.place_to_wait(commit));
                    if has_waited {
                        self.region.free_if_dead(lock, || ());
                    }
                    continue;
                }
            };
            match attempt {
                Ok(Attempt::Done(synced)) => self.announce_synced(synced, led),
                Ok(Attempt::InDoubt(owner)) => {
                    self.still_patient(&mut in_doubt, self.in_the_way(owner, lock))?;
                    sleep(self.place_to_wait(commit));
                }
                Err(error) if matches!(error.reason(), Reason::Busy { .. }) => return Err(error),
                Err(error) => return Err(unknown(error.to_string())),
            }
        }
    }

    /// Syncs the log up to what is visible now, and says how far that is; the caller announces it. It has the sync lock,
    /// or goes beside who has it.
    fn sync_log(&self, has_lock: bool) -> Result<Attempt<u64>> {
        let control = self.control();
        let _one = self.one_at_a_time(Synced::Log);
        let (version, visible) = self.region.read_version(&control.visible.0);
        if control.synced.0.load(Ordering::Acquire) >= visible {
            return Ok(Attempt::Done(visible));
        }
        // Whoever was in the middle of a sync here before may have been told.
        self.unpoisoned()?;
        if has_lock {
            // In one word: whoever reads it knows of one and the same sync. Release: pairs with `syncing`.
            let place = 1 - self.syncing().1;
            control.syncing.0.store(visible << 1 | place as u64, Ordering::Release);
        }
        self.own_entry().will_sync(&version.generations);
        let begun = self.begin_sync(Synced::Log);
        let dead = self.dead_in_sync(Synced::Log);
        kill_point();
        self.sync_values()?;
        // Oldest first: a later generation must not be durable before an earlier one is.
        for &slot in &version.generations {
            if let Some(owner) = self.sync_generation(slot)? {
                if !has_lock || !self.region.is_dead(owner) {
                    return Ok(Attempt::InDoubt(owner));
                }
                return self.write_log_again(&begun).map(Attempt::InDoubt);
            }
        }
        kill_point();
        // Somebody else may have been told meanwhile of a page of the data file that could not be written.
        self.unpoisoned()?;
        self.resolve(Synced::Log, &dead);
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(Attempt::Done(visible))
    }

    /// Syncs the records that one generation has now. Somebody: who may have been told of something that this process is
    /// not told of.
    fn sync_generation(&self, slot: u16) -> Result<Option<Owner>> {
        let entry = self.entry(slot);
        let end = entry.end();
        if entry.is_synced_to(end) {
            return Ok(None);
        }
        let (file, opened) = match self.log_file_since(slot) {
            Ok(found) => found,
            // The file is gone because the generation is, which was durable first.
            Err(_) if entry.is_synced_to(end) => return Ok(None),
            Err(cause) => {
                self.poison(&cause);
                return Err(cause);
            }
        };
        let doubtful = self.in_doubt(Synced::Log, opened, |entry| entry.may_sync(slot));
        if doubtful.is_some() {
            return Ok(doubtful);
        }
        // Before: what is written meanwhile begins at another sector than what survives power loss at the end.
        entry.may_be_synced_to(end);
        self.let_record_pass(slot, end.position());
        if let Err(error) = file.sync_data() {
            let cause = Error::io("syncing the log", error);
            self.poison(&cause);
            return Err(cause);
        }
        kill_point();
        entry.is_now_synced_to(end);
        Ok(None)
    }

    /// Up to which commit the sync goes that was begun last with the lock, and which of the two words is its.
    fn syncing(&self) -> (u64, usize) {
        let syncing = self.control().syncing.0.load(Ordering::Acquire);
        (syncing >> 1, (syncing & 1) as usize)
    }

    /// Which of the two words somebody is to sleep on who waits for a commit. To be asked after both were read: a sync that ends
    /// or begins meanwhile has changed the word, or is about to.
    fn place_to_wait(&self, commit: u64) -> usize {
        let (up_to, place) = self.syncing();
        if commit <= up_to { place } else { 1 - place }
    }

    /// Publishes how far the log is durable, and wakes those who wait for that. `led`: the word of the sync, which had the
    /// lock: of those who came too late for it one is enough, who syncs for the others; were all of them woken, all but
    /// one would sleep again. He comes last: the
    /// more of the others have run when he begins, the more commits he syncs.
    fn announce_synced(&self, commit: u64, led: Option<usize>) {
        let control = self.control();
        control.synced.0.fetch_max(commit, Ordering::AcqRel);
        let words = &control.sync_words.0;
        for word in words {
            word.fetch_add(1, Ordering::AcqRel);
        }
        match led {
            Some(led) => {
                wake(&words[led], u32::MAX);
                wake(&words[1 - led], 1);
            }
            None => words.iter().for_each(|word| wake(word, u32::MAX)),
        }
        // Pairs with the fence in `Changes::wait`: either the stream sees the new number, or we see that it waits.
        fence(Ordering::SeqCst);
        self.wake_waiting_streams();
    }

    /// Makes everything in the data file durable, or stops the store: after a failure nobody asks again.
    ///
    /// # Errors
    /// [`Reason::Busy`]: nothing is known then, and the store goes on.
    pub(crate) fn sync_data_file(&self, doing: &str) -> Result<()> {
        let mut in_doubt = None;
        loop {
            let leading = self.hold_data_sync();
            let attempt = self.try_sync_data_file(doing, leading.is_some(), in_doubt)?;
            drop(leading);
            let Attempt::InDoubt(owner) = attempt else {
                return Ok(());
            };
            let lock = &self.control().data_sync_lock.0;
            self.still_patient(&mut in_doubt, self.in_the_way(owner, lock))?;
            std::thread::sleep(STEP);
        }
    }

    /// Waits for the lock on syncs of the data file. `None`: its holder does not get on.
    fn hold_data_sync(&self) -> Option<WordLockGuard<'_>> {
        let lock = &self.control().data_sync_lock.0;
        if self.is_stuck(Synced::Data, lock, false) {
            // Whoever was stopped may be dead by now.
            self.region.free_if_dead(lock, || ());
            return lock.try_lock(self.region.me());
        }
        let held = lock.lock_unless(self.region.me(), |holder| {
            let taken_over = self.region.take_from_dead(lock, holder, &|| ()).map(Some);
            taken_over.or_else(|| self.is_stuck(Synced::Data, lock, true).then_some(None))
        });
        held.map_or_else(|otherwise| otherwise, Some)
    }

    fn try_sync_data_file(&self, doing: &str, has_lock: bool, since: Option<Instant>) -> Result<Attempt<()>> {
        let control = self.control();
        let _one = self.one_at_a_time(Synced::Data);
        self.unpoisoned()?;
        let begun = self.begin_sync(Synced::Data);
        let dead = self.dead_in_sync(Synced::Data);
        kill_point();
        let opened = self.own_entry().arrival.load(Ordering::Relaxed);
        if let Some(owner) = self.in_doubt(Synced::Data, opened, |_| true) {
            if !has_lock || !self.region.is_dead(owner) || self.is_left_to_older(owner, since) {
                return Ok(Attempt::InDoubt(owner));
            }
            let again = || self.write_unsynced_pages_again();
            return self.write_again(Synced::Data, &begun, again).map(Attempt::InDoubt);
        }
        // Once more: whoever was told of something, and has come to the end of its sync since, has stopped the store before.
        self.unpoisoned()?;
        let written = control.values_written.load(Ordering::Acquire);
        control.values_unsynced_bytes.store(0, Ordering::Relaxed);
        let synced = self.data.sync_data().map_err(|error| Error::io(doing, error));
        synced.inspect_err(|cause| self.poison(cause))?;
        kill_point();
        control.values_synced.fetch_max(written, Ordering::Relaxed);
        self.resolve(Synced::Data, &dead);
        Ok(Attempt::Done(()))
    }

    /// Whether to wait for a process that is told of what a dead one was told of: it needs to write nothing again.
    fn is_left_to_older(&self, dead: Owner, since: Option<Instant>) -> bool {
        if since.is_some_and(|since| since.elapsed() >= OLDER_AFTER) {
            return false;
        }
        let number = self.note_of(Synced::Data, self.region.process(dead));
        let is_told = |entry: &ProcessEntry| entry.arrival.load(Ordering::Relaxed) < number;
        let mut processes = self.region.processes();
        !writes_again(number) && processes.any(|(owner, entry)| is_told(entry) && self.region.seat().is_alive(owner))
    }

    /// Syncs the data file in the place of processes that died in that, if this one is told of all that they were told of.
    pub(crate) fn sync_data_for_the_dead(&self) {
        let arrival = self.own_entry().arrival.load(Ordering::Relaxed);
        let dead = self.dead_in_sync(Synced::Data);
        if !dead.is_empty() && dead.iter().all(|&(_, number)| arrival < number) {
            // A failure has stopped the store.
            let _ = self.try_sync_data_file("syncing the data file after a process died in that", false, None);
        }
    }

    /// Sees to it that nothing hangs on what a dead process was told of. `false`: another time.
    pub(crate) fn settle_syncs_of(&self, dead: Owner) -> bool {
        let entry = self.region.process(dead);
        if self.note_of(Synced::Log, entry) != 0
            && let Some(_leading) = self.control().sync_lock.0.try_lock(self.region.me())
        {
            let _one = self.one_at_a_time(Synced::Log);
            let begun = self.begin_sync(Synced::Log);
            // A failure has stopped the store.
            let _ = self.write_log_again(&begun);
        }
        if self.note_of(Synced::Data, entry) != 0 {
            let _ = self.sync_data_file("syncing the data file after a process died in that");
        }
        [Synced::Log, Synced::Data]
            .iter()
            .all(|&of| self.note_of(of, entry) == 0)
    }

    /// See [`Core::write_again`].
    fn write_log_again(&self, begun: &Begun<'_>) -> Result<Owner> {
        self.write_again(Synced::Log, begun, || {
            let version = self.region.version();
            let mut slots = version.generations.iter();
            slots.try_for_each(|&slot| self.write_unsynced_again(slot))
        })
    }

    /// What is below the end of the records does not change; and what is not known to be synced is not folded, so that the
    /// file stays that of this generation.
    fn write_unsynced_again(&self, slot: u16) -> Result<()> {
        let entry = self.entry(slot);
        let (start, end) = (entry.synced_tail(), entry.tail.load(Ordering::Acquire));
        if start >= end {
            return Ok(());
        }
        let doing = |error| Error::io("writing the log again", error);
        let file = self.log_file(slot)?;
        let mut bytes = vec![0; (end - start) as usize];
        file.read_at(&mut bytes, start).map_err(doing)?;
        file.write_at(&bytes, start).map_err(doing)
    }

    /// Writes again what is not known to be durable, because dead processes may have been told of it, unless somebody who is
    /// alive is in the middle of a sync. Returns who was in the way: the next attempt finds nobody, or says so again. The
    /// caller has the lock.
    fn write_again(&self, of: Synced, begun: &Begun<'_>, write: impl FnOnce() -> Result<()>) -> Result<Owner> {
        // From here on nobody begins to sync beside us, or we see that it did: both store first and look then.
        begun.word.store(WRITES_AGAIN | self.next_moment(), Ordering::SeqCst);
        let others = self.others_in_sync(of);
        if let Some(&(alive, _)) = others.iter().find(|(owner, _)| !self.region.is_dead(*owner)) {
            return Ok(alive);
        }
        kill_point();
        write().inspect_err(|error| {
            if !matches!(error.reason(), Reason::Busy { .. }) {
                self.poison(error);
            }
        })?;
        kill_point();
        self.resolve(of, &others);
        Ok(self.region.me())
    }

    /// Notes that nothing hangs any more on what dead processes were told of in these syncs.
    fn resolve(&self, of: Synced, dead: &[(Owner, u64)]) {
        for &(owner, number) in dead {
            let word = &self.region.process(owner).syncing[of as usize];
            let _ = word.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn one_at_a_time(&self, of: Synced) -> MutexGuard<'_, ()> {
        self.syncs.own[of as usize]
            .one
            .lock()
            .unwrap_or_else(|e| e.into_inner())
    }

    fn own_entry(&self) -> &ProcessEntry {
        self.region.process(self.region.me())
    }

    fn note_of(&self, of: Synced, entry: &ProcessEntry) -> u64 {
        entry.syncing[of as usize].load(Ordering::SeqCst)
    }

    fn begin_sync(&self, of: Synced) -> Begun<'_> {
        let word = &self.own_entry().syncing[of as usize];
        word.store(self.next_moment(), Ordering::SeqCst);
        Begun { word }
    }

    /// A number that nothing else has.
    fn next_moment(&self) -> u64 {
        self.control().moments.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The other processes that are in the middle of a sync, dead or alive.
    fn others_in_sync(&self, of: Synced) -> Vec<(Owner, u64)> {
        if !self.is_shared() {
            return Vec::new();
        }
        // Pairs with the stores in `begin_sync` and `write_again`.
        fence(Ordering::SeqCst);
        let processes = self.region.processes();
        let noted = processes.map(|(owner, entry)| (owner, self.note_of(of, entry)));
        noted
            .filter(|&(owner, number)| owner != self.region.me() && number != 0)
            .collect()
    }

    fn dead_in_sync(&self, of: Synced) -> Vec<(Owner, u64)> {
        let mut others = self.others_in_sync(of);
        others.retain(|&(owner, _)| self.region.is_dead(owner));
        others
    }

    /// Who may have been told of something that is not told to a description which was opened at that moment, of a file that
    /// it may be syncing.
    fn in_doubt(&self, of: Synced, opened: u64, concerns: impl Fn(&ProcessEntry) -> bool) -> Option<Owner> {
        if is_planted(PlantedBug::SyncedInDoubt) {
            return None;
        }
        let is_doubtful = |&(owner, number): &(Owner, u64)| {
            let entry = self.region.process(owner);
            let is_told_more = writes_again(number) || number <= opened;
            // Another sync by now may concern other files; but then this one came to its end.
            is_told_more && (writes_again(number) || concerns(entry) || self.note_of(of, entry) != number)
        };
        self.others_in_sync(of)
            .into_iter()
            .find(is_doubtful)
            .map(|(owner, _)| owner)
    }

    /// Whether the holder of the lock does not get on with its sync. `looks`: somebody has waited, and looks again.
    fn is_stuck(&self, of: Synced, lock: &WordLock, looks: bool) -> bool {
        let Some(holder) = lock.holder().filter(|&holder| holder != self.region.me()) else {
            return false;
        };
        let own = &self.syncs.own[of as usize];
        let number = self.note_of(of, self.region.process(holder));
        if number != 0 && own.stuck.load(Ordering::Relaxed) == number {
            return true;
        }
        if !looks {
            return false;
        }
        let mut watched = own.watched.lock().unwrap_or_else(|e| e.into_inner());
        match *watched {
            Some((owner, before, since)) if (owner, before) == (holder, number) => {
                let is_stuck = since.elapsed() >= STUCK_AFTER;
                if is_stuck {
                    own.stuck.store(number, Ordering::Relaxed);
                }
                is_stuck
            }
            _ => {
                *watched = Some((holder, number, Instant::now()));
                false
            }
        }
    }

    /// Who is to go on, or to be ended, so that syncs get on: not one that is dead.
    fn in_the_way(&self, doubtful: Owner, lock: &WordLock) -> Owner {
        let is_other = |owner: &Owner| *owner != self.region.me();
        match lock.holder().filter(is_other) {
            Some(holder) if self.region.is_dead(doubtful) => holder,
            _ => doubtful,
        }
    }

    /// Gives up once syncs have been in doubt for long; `since` is when that began.
    fn still_patient(&self, since: &mut Option<Instant>, owner: Owner) -> Result<()> {
        let waited = since.get_or_insert_with(Instant::now).elapsed();
        let is_slow = || waited < DEVICE_PATIENCE && self.region.hindrance_of(owner) == Some(Hindrance::Device);
        if waited < PATIENCE || owner == self.region.me() || is_slow() {
            return Ok(());
        }
        Err(self.region.busy(owner, waited))
    }
}

const _: () =
    assert!(PATIENCE.as_millis() > OLDER_AFTER.as_millis() && OLDER_AFTER.as_millis() > LOOK_INTERVAL.as_millis());

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::mem::ManuallyDrop;
    use std::sync::Arc;

    use duramen_io::{FailKind, FailSpan, SimDisk};

    use super::*;
    use crate::planted::plant;
    use crate::{Durability, Maintenance, Map, Options, Store};

    const PAIRS: u32 = 200;

    fn open(disk: &SimDisk) -> ManuallyDrop<Store> {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        // One of them is stopped or dead, and the other one does not wait for it on the way out of a test that failed.
        ManuallyDrop::new(options.open_on(disk.platform()).expect("a store"))
    }

    fn map(store: &Store) -> Map {
        store.map("map").expect("a map")
    }

    /// A process that has the lock, and was told of something that could not be written, and has told nobody yet.
    struct Told(ManuallyDrop<Store>);

    impl Told {
        fn of(disk: &SimDisk, of: Synced, bytes: usize) -> Told {
            let store = open(disk);
            let map = map(&store);
            for number in 0..PAIRS {
                let value = vec![number as u8 + 1; if number == 0 { bytes } else { 100 }];
                map.put(&number.to_be_bytes(), &value).expect("a put");
            }
            drop(map);
            let core = store.core();
            let (lock, file) = match of {
                Synced::Log => (
                    &core.control().sync_lock,
                    core.log_file(active(core)).expect("a log file"),
                ),
                Synced::Data => (&core.control().data_sync_lock, core.data.clone()),
            };
            std::mem::forget(lock.0.try_lock(core.region.me()).expect("nobody else"));
            core.own_entry().will_sync(&[active(core)]);
            std::mem::forget(core.begin_sync(of));
            disk.fail(1, FailKind::Io, FailSpan::Once);
            file.sync_data().expect_err("it is told");
            Told(store)
        }

        fn goes_on(&self, of: Synced) {
            let core = self.0.core();
            drop(Begun {
                word: &core.own_entry().syncing[of as usize],
            });
            match of {
                Synced::Log => core.control().sync_lock.0.unlock(),
                Synced::Data => core.control().data_sync_lock.0.unlock(),
            };
        }

        fn dies(&self) {
            self.0.core().region.seat().stand_up();
        }
    }

    /// What becomes of a future, by a waker that somebody else wakes.
    fn resolved(future: crate::CommitFuture) -> Result<crate::Commit> {
        struct Thread(std::thread::Thread);
        impl std::task::Wake for Thread {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Arc::new(Thread(std::thread::current())).into();
        let (mut context, mut future) = (std::task::Context::from_waker(&waker), std::pin::pin!(future));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) {
            if let std::task::Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
                return outcome;
            }
            std::thread::park_timeout(Duration::from_secs(30));
        }
        panic!("a future waits without end");
    }

    fn active(core: &Core) -> u16 {
        *core.region.version().generations.last().expect("an active one")
    }

    #[test]
    fn nothing_is_durable_by_a_file_opened_after_a_sync_that_somebody_has_not_come_to_the_end_of() {
        for (of, bytes) in [(Synced::Log, 100), (Synced::Data, 100_000)] {
            let disk = SimDisk::new(1);
            let told = Told::of(&disk, of, bytes);
            let other = open(&disk);
            let map = map(&other);
            let written = map.with_durability(Durability::Synced).put(b"key", b"value");
            let error = written.expect_err("it cannot be known");
            assert!(matches!(error.reason(), Reason::NotSynced { .. }), "{of:?}: {error}");
            assert!(map.get(b"key").expect("a read").is_some(), "it was committed");
            // A long value is made durable first, and refused where that cannot be known.
            let long = vec![3; 100_000];
            let written = map.with_durability(Durability::Synced).put(b"long", &long);
            match (of, written.expect_err("it cannot be known").reason()) {
                (Synced::Log, Reason::NotSynced { .. }) => {
                    // Its pages are not given to the next one.
                    map.put(b"next", &[4; 100_000]).expect("a put");
                    assert_eq!(map.get(b"long").expect("a read").expect("a value"), long);
                }
                (Synced::Data, Reason::Busy { .. }) => assert!(map.get(b"long").expect("a read").is_none()),
                (_, reason) => panic!("{of:?}: {reason}"),
            }
            let mut batch = crate::Batch::new();
            batch.durability(Durability::Synced);
            batch.put(&map, b"key", b"newer").expect("a short pair");
            let mut later = crate::Batch::new();
            later.durability(Durability::Synced);
            later.put(&map, b"key", b"newest").expect("a short pair");
            let waits = other.write_async(batch).expect("it is committed");
            let later = other.write_async(later).expect("it is committed");
            let error = resolved(waits).expect_err("it cannot be known");
            assert!(matches!(error.reason(), Reason::NotSynced { .. }), "{of:?}: {error}");
            told.goes_on(of);
            let synced = resolved(later);
            synced.unwrap_or_else(|error| panic!("{of:?}: what nobody waited for then was given up: {error}"));
            other.sync().expect("nobody is in the middle of a sync any more");
            let report = other.check(&mut |_| ()).expect("a check");
            assert_eq!(report.problems, [""; 0], "{of:?}");
        }
    }

    /// What a new process makes durable after another one died that was told of an error, and what a power cut leaves.
    fn survives(seed: u64, of: Synced, bytes: usize) -> bool {
        let disk = SimDisk::new(seed);
        let told = Told::of(&disk, of, bytes);
        let other = open(&disk);
        told.dies();
        other.sync().expect("it was written again");
        let after = disk.power_cut(seed);
        let store = open(&after);
        let found = map(&store);
        let value = |number: u32| found.get(&number.to_be_bytes()).ok().flatten();
        (0..PAIRS).all(|number| value(number).is_some_and(|value| value.iter().all(|&byte| byte == number as u8 + 1)))
    }

    #[test]
    fn what_a_dead_process_was_told_of_is_written_again_by_one_that_came_later() {
        for (of, bytes) in [(Synced::Log, 100), (Synced::Data, 100_000)] {
            for seed in 0..10 {
                assert!(survives(seed, of, bytes), "{of:?}, seed {seed}");
            }
            plant(Some(PlantedBug::SyncedInDoubt));
            let all_survive = (0..10).all(|seed| survives(seed, of, bytes));
            plant(None);
            assert!(!all_survive, "{of:?}: nothing was noticed");
        }
    }

    #[test]
    fn process_that_dies_after_others_gave_it_up_is_in_nobodys_way() {
        for (of, bytes) in [(Synced::Log, 100), (Synced::Data, 100_000)] {
            let disk = SimDisk::new(1);
            let told = Told::of(&disk, of, bytes);
            let other = open(&disk);
            let error = other.sync().expect_err("it cannot be known");
            assert!(matches!(error.reason(), Reason::Busy { .. }), "{of:?}: {error}");
            told.dies();
            other
                .sync()
                .unwrap_or_else(|error| panic!("{of:?}: it was written again: {error}"));
        }
    }

    #[test]
    fn note_of_one_who_writes_again_is_not_taken_for_that_of_another() {
        let disk = SimDisk::new(1);
        let (one, other) = (open(&disk), open(&disk));
        let core = one.core();
        for of in [Synced::Log, Synced::Data] {
            let begun = core.begin_sync(of);
            core.write_again(of, &begun, || Ok(())).expect("nobody is in the way");
            let seen = other.core().others_in_sync(of);
            assert!(matches!(seen[..], [(owner, note)] if owner == core.region.me() && writes_again(note)));
            // Another one in the same entry, and in the same way, before whoever looked goes on.
            core.write_again(of, &begun, || Ok(())).expect("nobody is in the way");
            other.core().resolve(of, &seen);
            let left = other.core().others_in_sync(of);
            assert!(left.len() == 1 && left != seen, "{of:?}: {left:?}");
            assert!(other.core().in_doubt(of, u64::MAX >> 1, |_| false).is_some(), "{of:?}");
            other.core().resolve(of, &left);
            assert_eq!(other.core().others_in_sync(of), []);
        }
    }

    #[test]
    fn syncs_go_on_beside_a_process_that_was_stopped_in_one_and_it_takes_nothing_back() {
        let disk = SimDisk::new(1);
        let (stopped, other) = (open(&disk), open(&disk));
        let map = map(&other);
        map.put(b"key", b"value").expect("a put");
        other.sync().expect("both have the files open");
        map.put(b"key", &[7; 10_000]).expect("a put");
        let core = stopped.core();
        core.log_file(active(core)).expect("a log file");
        std::mem::forget(
            core.control()
                .sync_lock
                .0
                .try_lock(core.region.me())
                .expect("nobody else"),
        );
        core.own_entry().will_sync(&core.region.version().generations);
        let begun = core.begin_sync(Synced::Log);
        let (slot, stale) = (active(core), core.entry(active(core)).end());
        other.sync().expect("beside the one that was stopped");
        assert_eq!(other.core().control().synced.0.load(Ordering::Relaxed), 3);
        // The log file is used again meanwhile, and has less in it than it had.
        for round in 0..100 {
            other.maintain().expect("a fold");
            map.put(b"key", b"newest").expect("a put");
            if active(core) == slot {
                break;
            }
            assert!(round < 99, "the log file is used again");
        }
        let entry = core.entry(slot);
        assert!(!entry.is_synced_to(entry.end()), "there is something to sync");
        assert!(entry.tail.load(Ordering::Relaxed) < 10_000);
        entry.is_now_synced_to(stale);
        assert!(
            !entry.is_synced_to(entry.end()),
            "an end of long ago counts for nothing"
        );
        drop(begun);
        core.control().sync_lock.0.unlock();
        other.sync().expect("a sync");
        assert!(entry.is_synced_to(entry.end()));
    }
}
