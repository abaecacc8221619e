//! Syncs of the log, one for all commits that wait, and of the data file, in all processes that share a store.
//!
//! The simple version: a thread that waits for its commit takes the lock, syncs, and announces how far everything
//! survives power loss. Threads that find the lock taken wait for that.
//!
//! Why it is hard: the kernel reports once that it could not write bytes, to each description of the file that was open
//! at that moment. Then it takes the bytes for clean. A description that is opened after the report learns nothing, and
//! its syncs succeed. So the success of a sync counts only for bytes that this description would have been told of.
//! Three rules follow:
//!
//! | case | rule |
//! |---|---|
//! | a sync fails | the store stops in all processes |
//! | the lock comes from a process that died with it, and may have been told | the region holds a doubt until what is not known to be durable was compared with what the device has, see `unsynced` |
//! | a process syncs a file through this description for the first time, and the file held bytes of others when it was opened | as above: a third program may have synced the file and consumed the report |
//!
//! A process that is suspended in the middle of a sync keeps the lock. Others that wait for a sync get [`Reason::Busy`]
//! or [`Reason::NotSynced`] with its PID; the commit itself stands, and everybody can read it.
//!
//! The leader reads where the records end under the commit lock, and notes that they may be durable from now on. So no
//! record is on its way to the unit that is synced, and later records begin in another one.
//!
//! Invariants: `synced <= visible`; `synced` reaches a commit only after a sync that began after its record was
//! written, by a description that is told of everything that came between.

pub(crate) mod unsynced;
mod values;

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use arrayvec::ArrayVec;
use duramen_io::{LOOK_INTERVAL, wait, wake};

use crate::core::Core;
use crate::core::watch::Begun;
use crate::error::{Error, Reason, Result};
use crate::limits::LIVE_GENERATIONS_MAX;
use crate::log::OpenFile;
use crate::planted::{PlantedBug, is_planted, kill_point};
use crate::region::{LogEnd, Patience};
use crate::sync::unsynced::make_durable;

/// How often a thread that waits for a sync checks for changes without a wake-up.
const STEP: Duration = Duration::from_millis(20);
const STEPS_PER_LOOK: u32 = (LOOK_INTERVAL.as_millis() / STEP.as_millis()) as u32;

/// What is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synced {
    Log,
    Data,
}

impl Core {
    /// Makes everything that is visible now survive power loss.
    pub(crate) fn sync(&self) -> Result<()> {
        self.healthy()?;
        self.wait_synced(self.control().visible.0.load(Ordering::Acquire))
    }

    /// Asks the kernel to begin writing what a sync of the log will wait for.
    pub(crate) fn start_writing_log_back(&self) {
        for (slot, entry) in self.region.generations().filter(|(_, entry)| entry.is_to_fold()) {
            let (start, end) = (entry.synced_tail(), entry.end().position());
            // A hint: what it cannot do, the sync does.
            if start < end
                && let Ok(file) = self.log_file(slot)
            {
                file.start_writeback(start, end - start);
            }
        }
    }

    /// Waits until a commit that was just made survives power loss.
    ///
    /// # Errors
    /// [`Reason::Unknown`]; [`Reason::NotSynced`] when another process keeps it from being known.
    pub(crate) fn wait_durable(&self, commit: u64) -> Result<()> {
        self.wait_synced(commit).map_err(|error| match error.waited_for() {
            Some((process, waited)) => Reason::NotSynced {
                commit,
                process,
                waited,
            }
            .into(),
            None => error,
        })
    }

    /// Makes what is visible now survive power loss, for the futures that wait for that; or gives up, so that they say
    /// so.
    pub(crate) fn sync_for_futures(&self) {
        let commit = self.control().visible.0.load(Ordering::Acquire);
        // A failed sync has stopped the store; the futures find that out themselves.
        let waited_for = self.wait_synced(commit).err().and_then(|error| error.waited_for());
        let given_up = waited_for.map(|(process, waited)| (commit, process, waited));
        let mut futures = self.syncs.futures();
        (futures.attempts, futures.given_up) = (futures.attempts + 1, given_up);
        drop(futures);
        self.wake_futures();
    }

    /// How many attempts to sync for futures have come to an end.
    pub(crate) fn sync_attempts(&self) -> u64 {
        self.syncs.futures().attempts
    }

    /// Waits until a commit survives power loss; the first thread that waits syncs for all.
    ///
    /// # Errors
    /// [`Reason::Unknown`]; [`Reason::Busy`].
    pub(crate) fn wait_synced(&self, commit: u64) -> Result<()> {
        self.wait_synced_by(commit, |core| core.sync_log(None))
    }

    /// Waits until a complete generation, of which this is the last commit, survives power loss. Does not sync the
    /// active generation: its next records could not be stored to a mapping, beside those that were synced.
    pub(crate) fn wait_generation_synced(&self, last_commit: u64) -> Result<()> {
        self.wait_synced_by(last_commit, |core| core.sync_log(Some(last_commit)))
    }

    fn wait_synced_by(&self, commit: u64, sync: impl Fn(&Core) -> Result<u64>) -> Result<()> {
        let control = self.control();
        let lock = &control.sync_lock.0;
        let (mut patience, mut steps) = (Patience::default(), 0);
        loop {
            let words = control.sync_words.0.each_ref();
            let seen = words.map(|word| word.load(Ordering::Acquire));
            if control.synced.0.load(Ordering::Acquire) >= commit {
                return Ok(());
            }
            let unknown = |cause: String| Error::from(Reason::Unknown { commit, cause });
            if self.is_poisoned() {
                return Err(unknown(self.cause()));
            }
            if let Some(leading) = lock.try_lock(self.region.me()) {
                let attempt = sync(self);
                let led = self.syncing().1;
                // The lock first, then the word: a thread that wakes while the lock is still held would find it taken
                // and sleep again, with only the clock to wake it (`tests/suite/schedules.rs` has this schedule).
                drop(leading);
                match attempt {
                    Ok(synced) => self.announce_synced(synced, led),
                    Err(error) if error.waited_for().is_some() => return Err(error),
                    Err(error) => return Err(unknown(error.to_string())),
                }
                continue;
            }
            let place = self.place_to_wait(commit);
            if wait(words[place], seen[place], Some(STEP)) {
                continue;
            }
            self.region.free_if_dead(lock, || self.doubt(Synced::Log));
            steps += 1;
            if let Some(holder) = lock.holder()
                && steps % STEPS_PER_LOOK == 0
            {
                // Each sync that begins changes the beat.
                patience.look(&self.region, holder, control.syncing.0.load(Ordering::Acquire) as u32)?;
            }
        }
    }

    /// Syncs the log up to `last_commit`, the last one of a generation, or up to what is visible now, and says how far
    /// that is. The caller has the sync lock, and announces it.
    fn sync_log(&self, last_commit: Option<u64>) -> Result<u64> {
        let control = self.control();
        // Where there is a doubt, all of the log is looked at.
        let last_commit = last_commit.filter(|_| !self.is_in_doubt(Synced::Log));
        let (ends, visible) = self.begin_sync(last_commit)?;
        if control.synced.0.load(Ordering::Acquire) >= visible {
            return Ok(visible);
        }
        // A process that was in the middle of a sync here before may have been told of a failure.
        self.unpoisoned()?;
        // In one word: a thread that reads it knows of a single sync. Release: pairs with `syncing`.
        let begun = Begun::now();
        let place = 1 - self.syncing().1;
        control.syncing.0.store(visible << 1 | place as u64, Ordering::Release);
        kill_point();
        self.sync_values()?;
        // Oldest first: a later generation must not be durable before an earlier one is.
        for (slot, end) in ends {
            self.sync_generation(slot, end)?;
        }
        kill_point();
        // Another process may have been told meanwhile of a page of the data file that could not be written.
        self.unpoisoned()?;
        control.sync_doubts[Synced::Log as usize].store(0, Ordering::Release);
        self.count_sync(visible, begun);
        Ok(visible)
    }

    /// Where the records of the live generations end, up to the generation whose last commit is given, and up to which
    /// commit that is. From here on they may become durable. The commit lock keeps records out that are being written.
    fn begin_sync(&self, last_commit: Option<u64>) -> Result<(ArrayVec<(u16, LogEnd), LIVE_GENERATIONS_MAX>, u64)> {
        let commits = self.hold_commits()?;
        let (version, visible) = self.region.read_version(&self.control().visible.0);
        let is_meant =
            |slot: &u16| last_commit.is_none_or(|last| self.entry(*slot).last_commit.load(Ordering::Relaxed) <= last);
        let slots = version.generations.iter().copied().filter(is_meant);
        let ends: ArrayVec<_, LIVE_GENERATIONS_MAX> = slots.map(|slot| (slot, self.entry(slot).end())).collect();
        let visible = last_commit.unwrap_or(visible);
        for &(slot, end) in &ends {
            self.entry(slot).may_be_synced_to(end);
        }
        drop(commits);
        Ok((ends, visible))
    }

    /// Syncs the records that one generation had.
    fn sync_generation(&self, slot: u16, end: LogEnd) -> Result<()> {
        let entry = self.entry(slot);
        if entry.is_synced_to(end) {
            return Ok(());
        }
        let open = match self.open_log(slot) {
            Ok(open) => open,
            // The file is gone because the generation is, which was durable first.
            Err(_) if entry.is_synced_to(end) => return Ok(()),
            Err(cause) => {
                self.poison(&cause);
                return Err(cause);
            }
        };
        self.sync_log_file(slot, &open, end)
            .inspect_err(|cause| self.poison(cause))?;
        kill_point();
        entry.is_now_synced_to(end);
        if open.unreported.is_some() {
            self.segments.has_synced(slot);
        }
        Ok(())
    }

    /// Syncs a log file, and makes sure of what the kernel may have reported to another description only.
    ///
    /// What is below the end of the records does not change; and what is not known to be synced is not folded, so that
    /// the file stays that of this generation.
    fn sync_log_file(&self, slot: u16, open: &OpenFile, end: LogEnd) -> Result<()> {
        let sync = || {
            open.file
                .sync_data()
                .map_err(|error| Error::io("syncing the log", error))
        };
        let is_unreported = open.unreported == Some(end.generation());
        if is_planted(PlantedBug::SyncedInDoubt) || !is_unreported && !self.is_in_doubt(Synced::Log) {
            return sync();
        }
        let start = self.entry(slot).synced_tail().next_multiple_of(self.unit);
        let range = start..end.position().max(start);
        make_durable(&*open.file, self.unit, std::iter::once(range), &sync)
    }

    /// Notes that a process died that may have been told of a failure. The caller has the lock of these syncs.
    pub(crate) fn doubt(&self, of: Synced) {
        self.control().sync_doubts[of as usize].store(1, Ordering::Release);
    }

    fn is_in_doubt(&self, of: Synced) -> bool {
        self.control().sync_doubts[of as usize].load(Ordering::Acquire) != 0
    }

    /// Up to which commit the sync goes that was begun last with the lock, and which of the two words is its.
    fn syncing(&self) -> (u64, usize) {
        let syncing = self.control().syncing.0.load(Ordering::Acquire);
        (syncing >> 1, (syncing & 1) as usize)
    }

    /// Which of the two words a thread sleeps on that waits for a commit. Called after both were read: a sync that ends
    /// or begins meanwhile has changed the word, or is about to.
    fn place_to_wait(&self, commit: u64) -> usize {
        let (up_to, place) = self.syncing();
        if commit <= up_to { place } else { 1 - place }
    }

    /// Publishes how far the log is durable, and wakes the threads that wait for that. `led` is the word of the sync.
    /// Of the threads that came too late for it one is woken, which syncs for the others; if all of them woke, all but
    /// one would sleep again. It wakes last: the more of the others have run when it begins, the more commits it syncs.
    fn announce_synced(&self, commit: u64, led: usize) {
        let control = self.control();
        control.synced.0.fetch_max(commit, Ordering::AcqRel);
        let words = &control.sync_words.0;
        for word in words {
            word.fetch_add(1, Ordering::AcqRel);
        }
        wake(&words[led], u32::MAX);
        wake(&words[1 - led], 1);
        // Pairs with the fence in `Changes::wait`: either the stream sees the new number, or we see that it waits.
        fence(Ordering::SeqCst);
        self.wake_waiting_streams();
    }

    /// Makes everything in the data file durable, or stops the store: after a failure no process asks again.
    ///
    /// # Errors
    /// [`Reason::Busy`]: nothing is known then, and the store goes on.
    pub(crate) fn sync_data_file(&self, doing: &str) -> Result<()> {
        let control = self.control();
        let lock = &control.data_sync_lock.0;
        let _leading = self.region.hold(lock, || self.doubt(Synced::Data))?;
        // A process that was told of a failure has stopped the store before it let the lock go.
        self.unpoisoned()?;
        let is_unreported = self.data_is_unreported.load(Ordering::Relaxed);
        kill_point();
        let written = control.values_written.load(Ordering::Acquire);
        control.values_unsynced_bytes.store(0, Ordering::Relaxed);
        let sync = || self.data.sync_data().map_err(|error| Error::io(doing, error));
        let is_doubtful = is_unreported || self.is_in_doubt(Synced::Data);
        let synced = match is_doubtful && !is_planted(PlantedBug::SyncedInDoubt) {
            true => self.make_data_durable(&sync),
            false => sync(),
        };
        synced.inspect_err(|cause| {
            if cause.waited_for().is_none() {
                self.poison(cause);
            }
        })?;
        kill_point();
        control.values_synced.fetch_max(written, Ordering::Relaxed);
        control.sync_doubts[Synced::Data as usize].store(0, Ordering::Release);
        self.data_is_unreported.store(false, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::mem::ManuallyDrop;
    use std::sync::Arc;
    use std::time::Instant;

    use duramen_io::{FailKind, FailSpan, OpenMode, SimDisk};

    use super::*;
    use crate::log::file_name;
    use crate::planted::plant;
    use crate::{Durability, Maintenance, Map, Options, Store};

    const PAIRS: u32 = 200;

    fn open(disk: &SimDisk) -> ManuallyDrop<Store> {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        // One of them is suspended or dead, and the other one does not wait for it on the way out of a test that
        // failed.
        ManuallyDrop::new(options.open_on(disk.platform()).expect("a store"))
    }

    fn map(store: &Store) -> Map {
        store.map("map").expect("a map")
    }

    fn put_pairs(store: &Store, bytes: usize) {
        let map = map(store);
        for number in 0..PAIRS {
            let value = vec![number as u8 + 1; if number == 0 { bytes } else { 100 }];
            map.put(number.to_be_bytes(), &value).expect("a put");
        }
    }

    fn all_pairs_survive(disk: &SimDisk) -> bool {
        let store = ManuallyDrop::into_inner(open(disk));
        let found = map(&store);
        let value = |number: u32| found.get(number.to_be_bytes()).ok().flatten();
        let is_right =
            |number: u32| value(number).is_some_and(|value| value.iter().all(|&byte| byte == number as u8 + 1));
        (0..PAIRS).all(is_right)
    }

    fn lock(core: &Core, of: Synced) -> &duramen_io::WordLock {
        match of {
            Synced::Log => &core.control().sync_lock.0,
            Synced::Data => &core.control().data_sync_lock.0,
        }
    }

    /// A process that has the lock, and was told of something that could not be written, and has told no other yet.
    struct Told(ManuallyDrop<Store>);

    impl Told {
        fn of(disk: &SimDisk, of: Synced, bytes: usize) -> Told {
            let store = open(disk);
            put_pairs(&store, bytes);
            let core = store.core();
            std::mem::forget(lock(core, of).try_lock(core.region.me()).expect("no other process"));
            let file = match of {
                Synced::Log => core.log_file(active(core)).expect("a log file"),
                Synced::Data => core.data.clone(),
            };
            disk.fail(1, FailKind::Io, FailSpan::Once);
            file.sync_data().expect_err("it is told");
            Told(store)
        }

        fn goes_on(&self, of: Synced) {
            lock(self.0.core(), of).unlock();
        }

        fn dies(&self) {
            self.0.core().region.seat().stand_up();
        }
    }

    /// What becomes of a future, by a waker that another thread wakes.
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
    fn nothing_is_durable_while_a_suspended_process_holds_the_lock() {
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
                    map.put(b"next", vec![4; 100_000]).expect("a put");
                    assert_eq!(map.get(b"long").expect("a read").expect("a value"), long);
                }
                (Synced::Data, Reason::Busy { .. }) => assert!(map.get(b"long").expect("a read").is_none()),
                (_, reason) => panic!("{of:?}: {reason}"),
            }
            let batch = |value: &[u8]| {
                let mut batch = crate::Batch::new();
                batch.durability(Durability::Synced);
                batch.put(&map, b"key", value).expect("a short pair");
                other.write_async(batch).expect("it is committed")
            };
            let (waits, later) = (batch(b"newer"), batch(b"newest"));
            let error = resolved(waits).expect_err("it cannot be known");
            assert!(matches!(error.reason(), Reason::NotSynced { .. }), "{of:?}: {error}");
            told.goes_on(of);
            let synced = resolved(later);
            synced.unwrap_or_else(|error| {
                panic!("{of:?}: a commit that was waited for by no other was given up: {error}")
            });
            other.sync().expect("no process is in the middle of a sync any more");
            let report = other.check(&mut |_| ()).expect("a check");
            assert_eq!(report.problems, [""; 0], "{of:?}");
        }
    }

    /// What a process that attached before or after makes durable once another one died that was told of an error, and
    /// what a power cut leaves.
    fn survives_a_death(seed: u64, of: Synced, bytes: usize, attaches_before: bool) -> bool {
        let disk = SimDisk::new(seed);
        let before = attaches_before.then(|| open(&disk));
        let told = Told::of(&disk, of, bytes);
        let other = before.unwrap_or_else(|| open(&disk));
        told.dies();
        other.sync().expect("it was written again");
        let disk = disk.power_cut(seed);
        drop(ManuallyDrop::into_inner(other));
        all_pairs_survive(&disk)
    }

    #[test]
    fn what_a_dead_process_was_told_of_is_written_again() {
        for (of, bytes) in [(Synced::Log, 100), (Synced::Data, 100_000)] {
            for seed in 0..10 {
                assert!(survives_a_death(seed, of, bytes, seed % 2 == 0), "{of:?}, seed {seed}");
            }
            plant(Some(PlantedBug::SyncedInDoubt));
            let all_survive = (0..10).all(|seed| survives_a_death(seed, of, bytes, seed % 2 == 0));
            plant(None);
            assert!(!all_survive, "{of:?}: nothing was noticed");
        }
    }

    /// A fold syncs complete generations. The process that died was told of the active one.
    #[test]
    fn fold_leaves_no_doubt_about_the_generation_that_takes_commits() {
        for seed in 0..10 {
            let disk = SimDisk::new(seed);
            let other = open(&disk);
            drop(map(&other));
            let core = other.core();
            let commits = core.hold_commits().expect("no other process");
            assert!(core.rotate(0, 0).expect("a disk with room"));
            drop(commits);
            Told::of(&disk, Synced::Log, 100).dies();
            let mut state = core.hold_maintenance().expect("no other process folds");
            assert!(core.fold(&mut state).expect("a fold"), "a generation is complete");
            drop(state);
            other.sync().expect("it was written again");
            let disk = disk.power_cut(seed);
            drop(ManuallyDrop::into_inner(other));
            assert!(all_pairs_survive(&disk), "seed {seed}");
        }
    }

    /// A third program syncs a file of the store (`sync FILE`, an agent that makes backups) and consumes the kernel's
    /// report of a failure. Then a process attaches, to which the kernel reports nothing.
    fn survives_a_foreign_sync(seed: u64, of: Synced, bytes: usize) -> bool {
        let disk = SimDisk::new(seed);
        let older = open(&disk);
        put_pairs(&older, bytes);
        let name = match of {
            Synced::Log => file_name(active(older.core())),
            Synced::Data => crate::datafile::meta::DATA_FILE.to_string(),
        };
        let foreign = disk.platform().storage.open(&name, OpenMode::Write).expect("a file");
        disk.fail(1, FailKind::Io, FailSpan::Once);
        foreign.sync_data().expect_err("it is told");
        let younger = open(&disk);
        younger.sync().expect("it was written again");
        let disk = disk.power_cut(seed);
        drop((ManuallyDrop::into_inner(older), ManuallyDrop::into_inner(younger)));
        all_pairs_survive(&disk)
    }

    #[test]
    fn what_a_foreign_sync_was_told_of_is_written_again_by_a_process_that_attaches_later() {
        for (of, bytes) in [(Synced::Log, 100), (Synced::Data, 100_000)] {
            for seed in 0..10 {
                assert!(survives_a_foreign_sync(seed, of, bytes), "{of:?}, seed {seed}");
            }
            plant(Some(PlantedBug::SyncedInDoubt));
            let all_survive = (0..10).all(|seed| survives_a_foreign_sync(seed, of, bytes));
            plant(None);
            assert!(!all_survive, "{of:?}: nothing was noticed");
        }
    }

    #[test]
    fn nothing_is_written_again_that_the_device_has() {
        let disk = SimDisk::new(1);
        let older = open(&disk);
        put_pairs(&older, 100);
        older.sync().expect("a sync");
        map(&older).put(b"later", b"value").expect("a put");
        let younger = open(&disk);
        disk.trace(true);
        younger.sync().expect("a sync");
        let again = disk.take_trace();
        assert!(!again.iter().any(|call| call.starts_with("write")), "{again:?}");
    }

    #[test]
    fn process_that_dies_after_others_gave_it_up_holds_up_no_one() {
        for (of, bytes) in [(Synced::Log, 100), (Synced::Data, 100_000)] {
            let disk = SimDisk::new(1);
            let told = Told::of(&disk, of, bytes);
            let other = open(&disk);
            let error = other.sync().expect_err("it cannot be known");
            assert!(matches!(error.reason(), Reason::Busy { .. }), "{of:?}: {error}");
            told.dies();
            let synced = other.sync();
            synced.unwrap_or_else(|error| panic!("{of:?}: it was written again: {error}"));
        }
    }

    #[test]
    fn end_of_an_older_generation_says_nothing_of_the_next_one_in_its_file() {
        let disk = SimDisk::new(1);
        let store = open(&disk);
        let map = map(&store);
        map.put(b"key", [7; 10_000]).expect("a put");
        let core = store.core();
        let (slot, stale) = (active(core), core.entry(active(core)).end());
        for round in 0..100 {
            store.maintain().expect("a fold");
            map.put(b"key", b"newest").expect("a put");
            if active(core) == slot {
                break;
            }
            assert!(round < 99, "the log file is used again");
        }
        let entry = core.entry(slot);
        assert!(!entry.is_synced_to(entry.end()), "there is something to sync");
        assert!(entry.end().position() < stale.position());
        entry.is_now_synced_to(stale);
        assert!(!entry.is_synced_to(entry.end()));
        store.sync().expect("a sync");
        assert!(entry.is_synced_to(entry.end()));
    }
}
