//! Holding those back that append to a sequence, whatever process they are in.
//!
//! The simple version: who wants others to wait for him has an entry in the shared region, with his position and how
//! far they may be ahead of it. An appending thread checks the entries of that sequence, and waits; before its commit,
//! outside of all locks, and at most for the time that the entry says.
//!
//! Nothing is promised to the last message: those who look at the same time do not count each other. A process that
//! dies holds no writer back: waiting writers check whether it lives, and the process that buries it frees its entries.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use duramen_io::{Hindrance, LOOK_INTERVAL};

use crate::api::store::Store;
use crate::error::Result;
use crate::region::SharedBrake;

/// How many there can be in one store at a time, in all processes.
pub use crate::region::BRAKES_MAX;

/// Holds others back until it is dropped.
#[derive(Debug)]
pub struct Brake {
    store: Store,
    entry: usize,
}

impl Brake {
    /// Its holder is done with everything before this.
    pub fn reached(&self, position: u64) {
        let now = self.store.core().shared_micros();
        self.entry(|entry| entry.reached(position, now));
    }

    /// Its number among those of the store. Another brake may get it later.
    pub fn number(&self) -> usize {
        self.entry
    }

    fn entry(&self, act: impl FnOnce(&SharedBrake)) {
        let core = self.store.core();
        // The entry is the parent's; and the entry of a process that detached may have a new owner by now.
        if !core.region.is_forked() && core.healthy().is_ok() {
            act(core.region.brakes().entry(self.entry));
        }
    }
}

impl Drop for Brake {
    fn drop(&mut self) {
        self.entry(SharedBrake::free);
    }
}

/// Why an append may not happen yet.
#[derive(Clone, Copy, Debug)]
pub struct HeldBack {
    /// How far it is ahead.
    pub lag: u64,
    /// How long it has waited.
    pub waited: Duration,
    /// What holds it back; `None`: that has just ended.
    pub by: Option<BrakeStatistics>,
}

/// What a brake says, for people who look after a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrakeStatistics {
    /// Its number among those of the store.
    pub number: usize,
    /// The sequence.
    pub sequence: u64,
    /// The process that holds it, as that sees itself: in another container it has another number.
    pub process: u32,
    /// Whether that is the process which asks.
    pub is_this: bool,
    /// Whether that process is suspended, as far as can be seen.
    pub is_suspended: bool,
    /// The holder is done with everything before this.
    pub position: u64,
    /// How far others may be ahead.
    pub max: u64,
    /// How long others wait at most.
    pub timeout: Duration,
    /// How long ago the holder said how far it is.
    pub idle: Duration,
}

impl Store {
    /// Holds back those who append to a sequence, as long as they are `max` or more ahead of `position`, and each for
    /// `timeout` at most. `None`: as many do so as can, [`BRAKES_MAX`].
    ///
    /// # Errors
    /// Those of a store that is closed or stopped.
    #[doc(hidden)]
    pub fn brake(&self, sequence: u64, position: u64, max: u64, timeout: Duration) -> Result<Option<Brake>> {
        let core = self.core();
        core.healthy()?;
        let (brakes, now) = (core.region.brakes(), core.shared_micros());
        let taken = brakes.take(core.region.me(), sequence, position, max, (timeout, now));
        Ok(taken.map(|entry| Brake {
            store: self.clone(),
            entry,
        }))
    }

    /// Everything that holds back appends, in all processes that live.
    ///
    /// # Errors
    /// Those of a store that is closed or stopped.
    #[doc(hidden)]
    pub fn brakes(&self) -> Result<Vec<BrakeStatistics>> {
        let core = self.core();
        core.healthy()?;
        let all = core.region.brakes().all();
        Ok(all
            .filter_map(|(number, entry)| self.brake_figures(number, entry))
            .collect())
    }

    /// `None`: nothing holds it, or a process that is dead.
    fn brake_figures(&self, number: usize, entry: &SharedBrake) -> Option<BrakeStatistics> {
        let (core, (owner, sequence)) = (self.core(), entry.used_by()?);
        let is_this = owner == core.region.me();
        if !is_this && core.region.is_dead(owner) {
            return None;
        }
        Some(BrakeStatistics {
            number,
            sequence,
            process: core.region.process(owner).process.load(Ordering::Relaxed),
            is_this,
            is_suspended: core.region.hindrance_of(owner) == Some(Hindrance::Stopped),
            position: entry.position(),
            max: entry.max(),
            timeout: entry.timeout(),
            idle: Duration::from_micros(core.shared_micros().saturating_sub(entry.moved())),
        })
    }

    /// Waits, before something is appended to a sequence, while a brake holds it back. `next` says which number it
    /// would get. Costs one load where no brake ever existed.
    ///
    /// # Errors
    /// Those of `next`. The inner error: no consumer progressed in time.
    #[doc(hidden)]
    #[inline]
    pub fn wait_for_brakes(
        &self,
        sequence: u64,
        next: impl Fn() -> Result<u64>,
    ) -> Result<std::result::Result<(), HeldBack>> {
        if !self.core().region.brakes().are_used() {
            return Ok(Ok(()));
        }
        self.wait_for_each(sequence, &next)
    }

    #[cold]
    fn wait_for_each(
        &self,
        sequence: u64,
        next: &dyn Fn() -> Result<u64>,
    ) -> Result<std::result::Result<(), HeldBack>> {
        let begun = Instant::now();
        for (number, entry) in self.core().region.brakes().of(sequence) {
            if let Err(lag) = self.wait_for_one(entry, sequence, next)? {
                let waited = begun.elapsed();
                let by = self.brake_figures(number, entry).filter(|by| by.sequence == sequence);
                return Ok(Err(HeldBack { lag, waited, by }));
            }
        }
        Ok(Ok(()))
    }

    /// The inner `Err`: how far ahead of it others still are.
    fn wait_for_one(
        &self,
        entry: &SharedBrake,
        sequence: u64,
        next: &dyn Fn() -> Result<u64>,
    ) -> Result<std::result::Result<(), u64>> {
        let (core, begun, number) = (self.core(), Instant::now(), next()?);
        loop {
            let word = entry.arm();
            let (Some(holder), Some(lag)) = (entry.holder(sequence), entry.excess(number)) else {
                return Ok(Ok(()));
            };
            let left = entry.timeout().saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(Err(lag));
            }
            // Before the first wait too: a dead holder never moves on, and until it is buried its entry stays.
            if holder != core.region.me() && core.region.is_dead(holder) {
                return Ok(Ok(()));
            }
            if entry.wait(word, left.min(LOOK_INTERVAL)) {
                continue;
            }
            // The sequence may have been deleted meanwhile, or the store closed.
            next()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Maintenance, Options};

    const TIMEOUT: Duration = Duration::from_millis(20);
    const SEQUENCE: u64 = 7;

    fn open(disk: &SimDisk) -> Store {
        let options = Options::new().maintenance(Maintenance::Manual);
        options.open_on(disk.platform()).expect("a store")
    }

    fn lag_of(store: &Store, sequence: u64, next: u64) -> Option<u64> {
        let waited = store.wait_for_brakes(sequence, || Ok(next)).expect("a store");
        waited.err().map(|held| held.lag)
    }

    #[test]
    fn every_process_sees_who_holds_back_and_since_when() {
        let disk = SimDisk::new(4);
        let (one, other) = (open(&disk), open(&disk));
        let brake = one.brake(SEQUENCE, 10, 3, TIMEOUT).expect("a store").expect("a place");
        disk.advance(Duration::from_secs(5));
        let found = other.brakes().expect("a store");
        let facts = |by: &BrakeStatistics| (by.sequence, by.position, by.max, by.timeout, by.is_this);
        assert_eq!(
            found.iter().map(facts).collect::<Vec<_>>(),
            [(SEQUENCE, 10, 3, TIMEOUT, false)]
        );
        assert!(found[0].idle >= Duration::from_secs(5), "{found:?}");
        let held = other.wait_for_brakes(SEQUENCE, || Ok(20)).expect("a store");
        let by = held.expect_err("it is held back").by.expect("a living process");
        assert_eq!((by.number, by.position), (brake.number(), 10));
        brake.reached(12);
        let found = one.brakes().expect("a store");
        assert_eq!((found[0].position, found[0].is_this), (12, true));
        assert!(found[0].idle < Duration::from_secs(5), "{found:?}");
        drop(brake);
        assert_eq!(other.brakes().expect("a store"), []);
    }

    #[test]
    fn one_process_holds_another_back_until_it_moves_on_or_ends() {
        let disk = SimDisk::new(1);
        let (one, other) = (open(&disk), open(&disk));
        assert_eq!(lag_of(&other, SEQUENCE, 100), None);
        let brake = one.brake(SEQUENCE, 10, 3, TIMEOUT).expect("a store").expect("a place");
        assert_eq!(lag_of(&other, SEQUENCE, 12), None);
        for store in [&one, &other] {
            assert_eq!(lag_of(store, SEQUENCE, 13), Some(3));
        }
        assert_eq!(lag_of(&other, SEQUENCE + 1, 100), None, "that is another one");
        brake.reached(11);
        assert_eq!(lag_of(&other, SEQUENCE, 13), None);
        assert_eq!(lag_of(&other, SEQUENCE, 20), Some(9));
        drop(brake);
        assert_eq!(lag_of(&other, SEQUENCE, 100), None);
    }

    #[test]
    fn whoever_waits_goes_on_when_the_holder_does_or_leaves_or_dies() {
        let long = Duration::from_secs(600);
        type End = fn(Store, Brake);
        let moves_on: End = |_store, brake| brake.reached(100);
        let leaves: End = |store, brake| {
            store.close().expect("an end");
            drop(brake);
        };
        let dies: End = |store, brake| {
            store.core().region.seat().stand_up();
            std::mem::forget((store, brake));
        };
        for end in [moves_on, leaves, dies] {
            let disk = SimDisk::new(1);
            let (one, other) = (open(&disk), open(&disk));
            let brake = one.brake(SEQUENCE, 0, 1, long).expect("a store").expect("a place");
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| lag_of(&other, SEQUENCE, 50));
                std::thread::sleep(TIMEOUT);
                end(one, brake);
                assert_eq!(waits.join().expect("no panic"), None);
            });
        }
    }

    #[test]
    fn holder_that_is_dead_already_holds_no_append_back_at_all() {
        let disk = SimDisk::new(1);
        let (one, other) = (open(&disk), open(&disk));
        let brake = one.brake(SEQUENCE, 0, 1, Duration::from_secs(600));
        one.core().region.seat().stand_up();
        std::mem::forget((one, brake));
        let looks = std::cell::Cell::new(0);
        let next = || {
            looks.set(looks.get() + 1);
            Ok(50)
        };
        other
            .wait_for_brakes(SEQUENCE, next)
            .expect("a store")
            .expect("no wait");
        assert_eq!(looks.get(), 1, "each wait ends with another look");
    }

    #[test]
    fn as_many_as_there_are_places_and_those_of_who_left_are_free_again() {
        let disk = SimDisk::new(1);
        let (one, other) = (open(&disk), open(&disk));
        let take = |store: &Store| store.brake(SEQUENCE, 0, 1, TIMEOUT).expect("a store");
        let mut all: Vec<Brake> = (0..BRAKES_MAX).map_while(|_| take(&one)).collect();
        assert_eq!(all.len(), BRAKES_MAX);
        assert!(take(&other).is_none());
        all.truncate(BRAKES_MAX - 1);
        let last = take(&other).expect("the free entry");
        assert!(take(&one).is_none());
        one.close().expect("an end");
        // Not those of another process.
        drop(all);
        assert_eq!(lag_of(&other, SEQUENCE, 50), Some(50));
        let all: Vec<Brake> = (0..BRAKES_MAX).map_while(|_| take(&other)).collect();
        assert_eq!(all.len(), BRAKES_MAX - 1);
        drop(last);
    }
}
