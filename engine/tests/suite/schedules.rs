//! The small lock-free protocols of the engine under every schedule and every value that the memory model allows.
//!
//! These are models: the engine's words lie in mapped memory and are ordinary atomics, which loom cannot watch. Each
//! model names the functions that it mirrors, step by step and with the same orderings; who changes those changes it.
//! For every step that matters there is a flaw that leaves it out, and the test asserts that the model then fails: a
//! model that cannot fail proves nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Runs a model through its schedules; how often a thread is interrupted where it need not be is bounded, which keeps
/// this to seconds (most errors need one or two interruptions).
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Asserts that some schedule makes the model panic.
fn assert_fails(what: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let explored = catch_unwind(AssertUnwindSafe(|| explore(preemptions, model)));
    assert!(explored.is_err(), "the model must notice: {what}");
}

mod pins {
    //! Mirrors `Region::pin`, `claim`, `read_version`, `publish`, `unpin` and `pins` of `region.rs`, and what
    //! `Space::reclaim` makes of the pins: a page that version `death` retired is free when no pinned version is below.

    use super::*;

    const FREE: u64 = 0;
    const PIN_ALL: u64 = 1;
    const FIRST: u64 = 2;
    const SECOND: u64 = 3;

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Flaw {
        None,
        /// The reader's fence between its claim and its look at the version is missing.
        NoFenceInPin,
        /// The reclaimer's fence between publishing and looking at the pins is missing.
        NoFenceInPins,
        /// A reader looks at the version first and claims its slot with it afterwards.
        NoPinAll,
        /// The end of a snapshot is not ordered after its reads.
        RelaxedUnpin,
        /// The reclaimer takes a slot whose owner is choosing for a free one.
        IgnoresPinAll,
        /// Pages are freed before the version without them is published.
        FreesBeforePublishing,
    }

    struct Region {
        published: AtomicU64,
        /// Number and root of two versions.
        versions: [[AtomicU64; 2]; 2],
        pin: AtomicU64,
        /// The page that the root of each version is. Loom notices a read that a write may overlap.
        pages: [UnsafeCell<u64>; 2],
        flaw: Flaw,
    }

    impl Region {
        fn new(flaw: Flaw) -> Region {
            Region {
                published: AtomicU64::new(0),
                versions: [FIRST, 0].map(|number| [AtomicU64::new(number), AtomicU64::new(0)]),
                pin: AtomicU64::new(FREE),
                pages: [UnsafeCell::new(FIRST), UnsafeCell::new(0)],
                flaw,
            }
        }

        fn read_version(&self) -> (u64, u64) {
            loop {
                let newest = self.published.load(Ordering::Acquire);
                let [number, root] = &self.versions[newest as usize % 2];
                let version = (number.load(Ordering::Relaxed), root.load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if self.published.load(Ordering::Relaxed) == newest {
                    return version;
                }
                thread::yield_now();
            }
        }

        fn publish(&self, number: u64, root: u64) {
            let next = self.published.load(Ordering::Relaxed) + 1;
            fence(Ordering::Release);
            let place = &self.versions[next as usize % 2];
            place[0].store(number, Ordering::Relaxed);
            place[1].store(root, Ordering::Relaxed);
            self.published.store(next, Ordering::Release);
        }

        /// Returns the pinned root and its version.
        fn pin(&self) -> (u64, u64) {
            if self.flaw == Flaw::NoPinAll {
                let (number, root) = self.read_version();
                self.pin.store(number, Ordering::SeqCst);
                return (number, root);
            }
            let claimed = self
                .pin
                .compare_exchange(FREE, PIN_ALL, Ordering::SeqCst, Ordering::Relaxed);
            assert_eq!(claimed, Ok(FREE), "the only reader finds its slot free");
            if self.flaw != Flaw::NoFenceInPin {
                fence(Ordering::SeqCst);
            }
            let (number, root) = self.read_version();
            self.pin.store(number, Ordering::Release);
            (number, root)
        }

        fn unpin(&self) {
            let ordering = if self.flaw == Flaw::RelaxedUnpin {
                Ordering::Relaxed
            } else {
                Ordering::Release
            };
            self.pin.store(FREE, ordering);
        }

        /// Whether some reader may still see what `death` retired.
        fn is_held(&self, death: u64) -> bool {
            if self.flaw != Flaw::NoFenceInPins {
                fence(Ordering::SeqCst);
            }
            match self.pin.load(Ordering::SeqCst) {
                FREE => false,
                PIN_ALL => self.flaw != Flaw::IgnoresPinAll,
                version => version < death,
            }
        }

        fn reclaim(&self) {
            if !self.is_held(SECOND) {
                // SAFETY: loom checks that no thread reads the page now.
                self.pages[0].with_mut(|page| unsafe { *page = 0xDD });
            }
        }

        fn fold(&self) {
            // SAFETY: no version leads to this page yet.
            self.pages[1].with_mut(|page| unsafe { *page = SECOND });
            if self.flaw == Flaw::FreesBeforePublishing {
                self.reclaim();
                self.publish(SECOND, 1);
            } else {
                self.publish(SECOND, 1);
                self.reclaim();
            }
        }

        fn read(&self) {
            let (number, root) = self.pin();
            // SAFETY: loom checks that no thread writes the page now.
            let page = self.pages[root as usize].with(|page| unsafe { *page });
            assert_eq!(page, number, "a pinned page is not what its version wrote");
            self.unpin();
        }
    }

    pub fn model(flaw: Flaw, reads: usize) {
        let region = Arc::new(Region::new(flaw));
        let reader = region.clone();
        let reader = thread::spawn(move || (0..reads).for_each(|_| reader.read()));
        region.fold();
        reader.join().unwrap();
    }
}

#[test]
fn page_is_never_freed_under_a_reader_that_pinned_its_version() {
    use pins::{Flaw, model};
    explore(3, || model(Flaw::None, 2));
    for (flaw, what) in [
        (Flaw::NoFenceInPin, "no fence in pin"),
        (Flaw::NoFenceInPins, "no fence in pins"),
        (Flaw::NoPinAll, "a version that is pinned only after it was read"),
        (Flaw::RelaxedUnpin, "an unpin that is not ordered after the reads"),
        (
            Flaw::IgnoresPinAll,
            "a reclaim beside a reader that is choosing its version",
        ),
        (Flaw::FreesBeforePublishing, "a reclaim before the publication"),
    ] {
        assert_fails(what, 3, move || model(flaw, 1));
    }
}

mod limits {
    //! Mirrors the reading of a commit number between two looks at the version in `Region::read_version`, against
    //! `Core::rotate` and `Core::write_record`: every commit up to the number is in a generation of the version.

    use super::*;

    struct Store {
        published: AtomicU64,
        /// Generations of two versions.
        generations: [AtomicU64; 2],
        visible: AtomicU64,
        /// The commit in each generation's log, one each.
        logs: [UnsafeCell<u64>; 2],
    }

    impl Store {
        fn commit(&self, generation: usize, commit: u64) {
            // SAFETY: no thread reads what is not yet visible; loom checks it.
            self.logs[generation].with_mut(|log| unsafe { *log = commit });
            self.visible.store(commit, Ordering::Release);
        }

        fn rotate(&self) {
            fence(Ordering::Release);
            self.generations[1].store(2, Ordering::Relaxed);
            self.published.store(1, Ordering::Release);
        }

        fn read_version(&self, number_comes_later: bool) -> (u64, u64) {
            loop {
                let newest = self.published.load(Ordering::Acquire);
                let generations = self.generations[newest as usize % 2].load(Ordering::Relaxed);
                let commit = self.visible.load(Ordering::Acquire);
                fence(Ordering::Acquire);
                if self.published.load(Ordering::Relaxed) == newest {
                    let later = || self.visible.load(Ordering::Acquire);
                    return (generations, if number_comes_later { later() } else { commit });
                }
                thread::yield_now();
            }
        }
    }

    pub fn model(number_comes_later: bool) {
        let store = Arc::new(Store {
            published: AtomicU64::new(0),
            generations: [AtomicU64::new(1), AtomicU64::new(0)],
            visible: AtomicU64::new(0),
            logs: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let writer = store.clone();
        let writer = thread::spawn(move || {
            writer.commit(0, 1);
            writer.rotate();
            writer.commit(1, 2);
        });
        let (generations, commit) = store.read_version(number_comes_later);
        assert!(
            commit <= generations,
            "commit {commit} is in none of {generations} generations"
        );
        for generation in 0..commit as usize {
            // SAFETY: what is visible is no longer written; loom checks it.
            let found = store.logs[generation].with(|log| unsafe { *log });
            assert_eq!(found, generation as u64 + 1);
        }
        writer.join().unwrap();
    }
}

#[test]
fn every_visible_commit_is_in_the_version_read_with_it() {
    explore(3, || limits::model(false));
    assert_fails("a commit number read after the version was checked", 3, || {
        limits::model(true)
    });
}

mod versions {
    //! Mirrors `Region::publish` and `read_version`: two places for a version and one number that says which is the newest.
    //! A publisher may die at any instruction; the next one, who took the commit lock over, publishes again, and readers
    //! neither wait nor see half a version.

    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Flaw {
        None,
        /// A reader does not check whether the place was reused while it read it.
        NoSecondLook,
        /// The publisher's fence before it reuses a place is missing.
        NoFenceInPublish,
        /// The number is stored without Release.
        RelaxedPublish,
        /// The words go to the place that readers look at.
        SamePlace,
    }

    struct Published {
        published: AtomicU64,
        places: [[AtomicU64; 2]; 2],
        flaw: Flaw,
    }

    impl Published {
        /// Publishes a version of two words that are equal, or dies after so many stores.
        fn publish(&self, version: u64, stores: usize) {
            let next = self.published.load(Ordering::Relaxed) + 1;
            if self.flaw != Flaw::NoFenceInPublish {
                fence(Ordering::Release);
            }
            let place = (next as usize + (self.flaw == Flaw::SamePlace) as usize) % 2;
            for word in self.places[place].iter().take(stores) {
                word.store(version, Ordering::Relaxed);
            }
            let ordering = match self.flaw {
                Flaw::RelaxedPublish => Ordering::Relaxed,
                _ => Ordering::Release,
            };
            if stores > 2 {
                self.published.store(next, ordering);
            }
        }

        fn read(&self) -> [u64; 2] {
            loop {
                let newest = self.published.load(Ordering::Acquire);
                let words = self.places[newest as usize % 2].each_ref();
                let words = words.map(|word| word.load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if self.flaw == Flaw::NoSecondLook || self.published.load(Ordering::Relaxed) == newest {
                    return words;
                }
                thread::yield_now();
            }
        }
    }

    pub fn model(flaw: Flaw) {
        let published = Arc::new(Published {
            published: AtomicU64::new(0),
            places: [(); 2].map(|()| [AtomicU64::new(0), AtomicU64::new(0)]),
            flaw,
        });
        let publisher = published.clone();
        let publisher = thread::spawn(move || {
            publisher.publish(1, 3);
            // Dies in the middle, and is followed by another one.
            publisher.publish(7, 1);
            publisher.publish(2, 3);
        });
        let [one, other] = published.read();
        assert!(one == other && one != 7, "{one} and {other} are of two versions");
        publisher.join().unwrap();
        assert_eq!(published.read(), [2, 2]);
    }
}

#[test]
fn version_is_read_whole_whenever_its_publisher_dies() {
    use versions::{Flaw, model};
    explore(3, || model(Flaw::None));
    assert_fails("no second look", 3, || model(Flaw::NoSecondLook));
    assert_fails("no fence before a place is used anew", 3, || {
        model(Flaw::NoFenceInPublish)
    });
    assert_fails("a version that is published without release", 3, || {
        model(Flaw::RelaxedPublish)
    });
    assert_fails("a version in the place that is read", 3, || model(Flaw::SamePlace));
}

mod takeover {
    //! Mirrors `Region::take_from_dead`, `WordLock::take_over`, and the end of `Core::bury` with `Seat::sit`: a process has died
    //! with a lock; two others notice it. One takes the lock over, and frees the dead one's place, in which a process sits
    //! down that takes the lock by the same number.

    use super::*;

    const FREE: u64 = 0;
    /// Number of the dead process's place, and of its successor's.
    const PLACE: u64 = 7;

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Flaw {
        None,
        /// A process that takes over does not keep others from freeing the place between its check and its taking.
        NoBurial,
        /// The place is freed while others may be between their look and their taking.
        FreesAnyTime,
        /// The place is freed although a lock names it.
        LeavesLocked,
        /// The guarded words are not put in order.
        NoRepair,
    }

    struct Place {
        lock: AtomicU64,
        attached: AtomicU64,
        alive: AtomicU64,
        /// Nonzero: held. A lock with a guard would be in the way of a model that must fail.
        burial: AtomicU64,
        /// What the lock guards: equal, but for what the dead one had begun.
        guarded: [UnsafeCell<u64>; 2],
        is_wrong: AtomicU64,
        flaw: Flaw,
    }

    impl Place {
        fn is_dead(&self) -> bool {
            self.attached.load(Ordering::Acquire) == 1 && self.alive.load(Ordering::Acquire) == 0
        }

        /// Takes the lock over from the dead one, if it has it.
        fn take_over(&self, me: u64) -> bool {
            let take = || {
                self.lock
                    .compare_exchange(PLACE, me, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            };
            if self.flaw == Flaw::NoBurial {
                return self.is_dead() && take();
            }
            self.hold_burial();
            let is_taken = self.is_dead() && take();
            self.burial.store(0, Ordering::Release);
            is_taken
        }

        fn hold_burial(&self) {
            while self
                .burial
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
            {
                thread::yield_now();
            }
        }

        fn repair(&self) {
            if self.flaw != Flaw::NoRepair {
                // SAFETY: loom checks that no other thread is here.
                let other = self.guarded[0].with(|other| unsafe { *other });
                // SAFETY: as for the other word.
                self.guarded[1].with_mut(|word| unsafe { *word = other });
            }
        }

        fn work(&self) {
            for word in &self.guarded {
                // SAFETY: as above.
                word.with_mut(|word| unsafe { *word += 1 });
            }
            // SAFETY: as above.
            let [one, other] = self.guarded.each_ref().map(|word| word.with(|word| unsafe { *word }));
            if one != other {
                self.is_wrong.store(1, Ordering::Relaxed);
            }
        }

        fn try_work(&self, me: u64) {
            let taken = self
                .lock
                .compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed);
            let is_repaired = taken.is_err() && self.take_over(me);
            if is_repaired {
                self.repair();
            }
            if taken.is_ok() || is_repaired {
                self.work();
                self.lock.store(FREE, Ordering::Release);
            }
        }

        /// Frees the place, if its owner is dead, and lets a new process take it.
        fn bury(&self) {
            if !self.is_dead() {
                return;
            }
            if self.flaw != Flaw::FreesAnyTime {
                self.hold_burial();
            }
            let is_named = self.lock.load(Ordering::Acquire) == PLACE && self.flaw != Flaw::LeavesLocked;
            if !is_named {
                self.attached.store(0, Ordering::Release);
            }
            if self.flaw != Flaw::FreesAnyTime {
                self.burial.store(0, Ordering::Release);
            }
            if is_named {
                return;
            }
            self.alive.store(1, Ordering::Release);
            self.attached.store(1, Ordering::Release);
            self.try_work(PLACE);
        }
    }

    pub fn model(flaw: Flaw) {
        let place = Arc::new(Place {
            lock: AtomicU64::new(PLACE),
            attached: AtomicU64::new(1),
            alive: AtomicU64::new(0),
            burial: AtomicU64::new(0),
            guarded: [UnsafeCell::new(1), UnsafeCell::new(0)],
            is_wrong: AtomicU64::new(0),
            flaw,
        });
        let waiter = place.clone();
        let waiter = thread::spawn(move || waiter.try_work(1));
        place.bury();
        place.try_work(2);
        place.bury();
        waiter.join().unwrap();
        let is_wrong = place.is_wrong.load(Ordering::Relaxed) != 0;
        assert!(!is_wrong, "what the dead one had begun is still so");
        // No thread is left that could be inside.
        assert_eq!(place.lock.load(Ordering::Acquire), FREE, "the lock is lost");
    }
}

#[test]
fn lock_of_a_dead_process_is_taken_over_once_and_never_from_the_one_in_its_place() {
    use takeover::{Flaw, model};
    explore(3, || model(Flaw::None));
    assert_fails("a look at who is alive that others do not respect", 3, || {
        model(Flaw::NoBurial)
    });
    assert_fails("a place that is freed at any time", 3, || model(Flaw::FreesAnyTime));
    assert_fails("a place that is freed while a lock names it", 3, || {
        model(Flaw::LeavesLocked)
    });
    assert_fails("what is guarded is left as it is", 3, || model(Flaw::NoRepair));
}

mod group_sync {
    //! Mirrors `Core::wait_synced`, `sync_log` and `announce_synced` of `commit.rs`. The futex waits without limit here: the
    //! engine's timeout is for processes that died, and must not be what gets anybody on.

    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Flaw {
        None,
        /// The leader announces what is visible after its sync, not what was before.
        LooksAfterSync,
        /// The leader announces while it still holds the lock: who wakes finds it held and sleeps again, for good.
        AnnouncesUnderLock,
        /// A waiter reads the word it sleeps on after it looked how far the log is synced.
        ReadsWordLate,
        /// Only the word of the finished sync changes: no thread wakes a waiter that came too late for it.
        ChangesOneWord,
    }

    struct Log {
        /// Records in the kernel and on the device. One lock for both: system calls are atomic.
        disk: Mutex<(u64, u64)>,
        commit_lock: Mutex<()>,
        visible: AtomicU64,
        synced: AtomicU64,
        /// Nonzero: held. Only ever tried, as by `WordLock::try_lock`.
        sync_lock: AtomicU64,
        sync_words: [AtomicU64; 2],
        /// Twice the commit up to which the sync that was begun last goes, and its word.
        syncing: AtomicU64,
        /// Threads that have returned and will wake no other thread.
        returned: AtomicU64,
        flaw: Flaw,
    }

    impl Log {
        fn commit(&self) -> u64 {
            let _guard = self.commit_lock.lock().unwrap();
            let commit = self.visible.load(Ordering::Relaxed) + 1;
            self.disk.lock().unwrap().0 = commit;
            self.visible.store(commit, Ordering::Release);
            commit
        }

        fn wait_synced(&self, commit: u64) {
            loop {
                let read = || self.sync_words.each_ref().map(|word| word.load(Ordering::Acquire));
                let early = read();
                if self.synced.load(Ordering::Acquire) >= commit {
                    return;
                }
                let taken = self
                    .sync_lock
                    .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_err() {
                    let syncing = self.syncing.load(Ordering::Acquire);
                    let is_covered = commit <= syncing >> 1;
                    let place = (syncing & 1) as usize ^ usize::from(!is_covered);
                    let late = self.flaw == Flaw::ReadsWordLate;
                    self.wait(place, if late { read() } else { early }[place]);
                    continue;
                }
                let synced = self.sync_log();
                if self.flaw == Flaw::AnnouncesUnderLock {
                    self.announce_synced(synced);
                    self.sync_lock.store(0, Ordering::Release);
                } else {
                    self.sync_lock.store(0, Ordering::Release);
                    self.announce_synced(synced);
                }
            }
        }

        fn sync_log(&self) -> u64 {
            let visible = self.visible.load(Ordering::Acquire);
            if self.synced.load(Ordering::Acquire) < visible {
                let place = 1 - (self.syncing.load(Ordering::Acquire) & 1);
                self.syncing.store(visible << 1 | place, Ordering::Release);
                let mut disk = self.disk.lock().unwrap();
                disk.1 = disk.0;
            }
            match self.flaw {
                Flaw::LooksAfterSync => self.visible.load(Ordering::Acquire),
                _ => visible,
            }
        }

        fn announce_synced(&self, commit: u64) {
            self.synced.fetch_max(commit, Ordering::AcqRel);
            let place = (self.syncing.load(Ordering::Acquire) & 1) as usize;
            self.sync_words[place].fetch_add(1, Ordering::AcqRel);
            if self.flaw != Flaw::ChangesOneWord {
                self.sync_words[1 - place].fetch_add(1, Ordering::AcqRel);
            }
        }

        /// A futex: sleeps while the word is what the caller saw. There are two threads, so that nobody is left to
        /// change it once the other one has returned.
        fn wait(&self, place: usize, seen: u64) {
            loop {
                let alone = self.returned.load(Ordering::SeqCst) > 0;
                if self.sync_words[place].load(Ordering::SeqCst) != seen {
                    return;
                }
                assert!(!alone, "a waiter sleeps for ever");
                thread::yield_now();
            }
        }

        fn write_and_wait(&self) {
            let commit = self.commit();
            self.wait_synced(commit);
            let durable = self.disk.lock().unwrap().1;
            assert!(
                durable >= commit,
                "commit {commit} was acknowledged, but the device ends at {durable}"
            );
        }
    }

    pub fn model(flaw: Flaw) {
        let log = Arc::new(Log {
            disk: Mutex::new((0, 0)),
            commit_lock: Mutex::new(()),
            visible: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            sync_lock: AtomicU64::new(0),
            sync_words: [AtomicU64::new(0), AtomicU64::new(0)],
            syncing: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            flaw,
        });
        let other = log.clone();
        let other = thread::spawn(move || other.write_and_wait());
        log.write_and_wait();
        other.join().unwrap();
    }
}

#[test]
fn nobody_returns_before_a_sync_that_began_after_their_record_was_written() {
    use group_sync::{Flaw, model};
    explore(3, || model(Flaw::None));
    assert_fails("announcing what was written during the sync", 3, || {
        model(Flaw::LooksAfterSync)
    });
    assert_fails("a waiter that sleeps although the lock is free", 3, || {
        model(Flaw::AnnouncesUnderLock)
    });
    assert_fails("a wake-up between two looks", 3, || model(Flaw::ReadsWordLate));
    assert_fails("nobody to sync for those who came too late", 3, || {
        model(Flaw::ChangesOneWord)
    });
}

mod leaf {
    //! Mirrors `Leaf::push`, `set_reference`, `count` and `reference` of `index/leaf.rs`: slots are filled, then the
    //! count is released; a newer version is one released store. A reader that took its commit number first meets
    //! everything up to it.

    use super::*;

    const SLOTS: usize = 2;

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Flaw {
        None,
        /// The count is stored before the slot is filled.
        CountFirst,
        /// The count is stored without Release.
        RelaxedCount,
        /// The reference to a newer version is stored without Release.
        RelaxedReference,
        /// The commit becomes visible before its operations are in the index.
        VisibleFirst,
    }

    struct Leaf {
        count: AtomicU64,
        references: [AtomicU64; SLOTS],
        positions: [AtomicU64; SLOTS],
        /// Version records: written once, before anything leads to them.
        versions: [UnsafeCell<u64>; 3],
        visible: AtomicU64,
        flaw: Flaw,
    }

    impl Leaf {
        fn release_unless(&self, flaw: Flaw) -> Ordering {
            if self.flaw == flaw {
                Ordering::Relaxed
            } else {
                Ordering::Release
            }
        }

        fn push(&self, slot: usize, version: usize) {
            let fill = || {
                self.references[slot].store(version as u64, Ordering::Relaxed);
                self.positions[slot].store(slot as u64 + 100, Ordering::Relaxed);
            };
            let publish = || {
                self.count
                    .store(slot as u64 + 1, self.release_unless(Flaw::RelaxedCount))
            };
            if self.flaw == Flaw::CountFirst {
                publish();
                fill();
            } else {
                fill();
                publish();
            }
        }

        fn write_version(&self, version: usize) {
            // SAFETY: nothing leads to this record yet; loom checks it.
            self.versions[version].with_mut(|record| unsafe { *record = version as u64 + 1 });
        }

        /// Commit 1 inserts two keys, commit 2 the first of them again.
        fn write(&self) {
            if self.flaw == Flaw::VisibleFirst {
                self.visible.store(1, Ordering::Release);
            }
            for slot in 0..SLOTS {
                self.write_version(slot);
                self.push(slot, slot);
            }
            self.visible.store(1, Ordering::Release);
            self.write_version(2);
            self.references[0].store(2, self.release_unless(Flaw::RelaxedReference));
            self.visible.store(2, Ordering::Release);
        }

        fn read(&self) {
            let commit = self.visible.load(Ordering::Acquire);
            let count = self.count.load(Ordering::Acquire) as usize;
            assert!(
                commit == 0 || count == SLOTS,
                "commit {commit} is visible with {count} keys"
            );
            for slot in 0..count {
                assert_eq!(self.positions[slot].load(Ordering::Relaxed), slot as u64 + 100);
                let version = self.references[slot].load(Ordering::Acquire) as usize;
                // SAFETY: what a reference leads to is complete; loom checks it.
                let record = self.versions[version].with(|record| unsafe { *record });
                assert_eq!(record, version as u64 + 1);
                assert!(commit < 2 || slot > 0 || version == 2, "the newest version is hidden");
            }
        }
    }

    pub fn model(flaw: Flaw) {
        let leaf = Arc::new(Leaf {
            count: AtomicU64::new(0),
            references: [AtomicU64::new(0), AtomicU64::new(0)],
            positions: [AtomicU64::new(0), AtomicU64::new(0)],
            versions: [UnsafeCell::new(0), UnsafeCell::new(0), UnsafeCell::new(0)],
            visible: AtomicU64::new(0),
            flaw,
        });
        let writer = leaf.clone();
        let writer = thread::spawn(move || writer.write());
        leaf.read();
        leaf.read();
        writer.join().unwrap();
    }
}

#[test]
fn reader_of_an_index_leaf_meets_whole_entries_and_all_that_is_visible() {
    use leaf::{Flaw, model};
    explore(3, || model(Flaw::None));
    assert_fails("a count that comes before its slot", 3, || model(Flaw::CountFirst));
    assert_fails("a count without release", 3, || model(Flaw::RelaxedCount));
    assert_fails("a reference without release", 3, || model(Flaw::RelaxedReference));
    assert_fails("a commit that is visible too early", 3, || model(Flaw::VisibleFirst));
}

mod units {
    //! Mirrors `write_record` and `next_position` of `commit.rs`, and `begin_sync` of `syncing.rs`: one record is there, and
    //! another one is written while the first is synced.

    use super::*;

    const UNIT: u64 = 4;
    const FIRST_ENDS: u64 = 1;

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Flaw {
        None,
        /// The leader reads the end of the records without the commit lock.
        NoLock,
        /// The leader does not say, before it syncs, which records may become durable.
        SaysNothing,
    }

    struct Log {
        flaw: Flaw,
        commit_lock: Mutex<()>,
        tail: AtomicU64,
        syncing_end: AtomicU64,
        /// Whether the device was asked to make the first unit durable.
        is_synced: Mutex<bool>,
    }

    impl Log {
        fn write(&self) {
            let _commits = self.commit_lock.lock().expect("no panic");
            let start = match self.syncing_end.load(Ordering::Relaxed) {
                0 => self.tail.load(Ordering::Relaxed),
                _ => UNIT,
            };
            let is_synced = self.is_synced.lock().expect("no panic");
            assert!(start >= UNIT || !*is_synced, "written to a unit that was synced");
            drop(is_synced);
            self.tail.store(start + 1, Ordering::Release);
        }

        fn sync(&self) {
            let commits = (self.flaw != Flaw::NoLock).then(|| self.commit_lock.lock().expect("no panic"));
            let end = self.tail.load(Ordering::Acquire);
            if self.flaw != Flaw::SaysNothing {
                self.syncing_end.store(end, Ordering::Relaxed);
            }
            drop(commits);
            *self.is_synced.lock().expect("no panic") = true;
        }
    }

    pub fn model(flaw: Flaw) {
        let log = Arc::new(Log {
            flaw,
            commit_lock: Mutex::new(()),
            tail: AtomicU64::new(FIRST_ENDS),
            syncing_end: AtomicU64::new(0),
            is_synced: Mutex::new(false),
        });
        let syncer = Arc::clone(&log);
        let syncing = thread::spawn(move || syncer.sync());
        log.write();
        syncing.join().expect("no panic");
    }
}

#[test]
fn record_written_beside_a_sync_shares_no_unit_with_what_is_synced() {
    use units::{Flaw, model};
    explore(3, || model(Flaw::None));
    assert_fails("no lock", 3, || model(Flaw::NoLock));
    assert_fails("the leader says nothing", 3, || model(Flaw::SaysNothing));
}
