//! Crashes: random work on a simulated disk that stops after some call, every kind of outcome of that, recovery,
//! crashes in the recovery and in the work after it, and the comparison with the model after each. The work is that of one
//! process or of several that share the store: stores opened on one disk, with nothing in common but its files.
//!
//! Everything follows from a [`Case`], so a case that fails can be run again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use duramen_engine::{Error, Options, Store};
use duramen_io::SimDisk;
use fastrand::Rng;

use super::history::History;
use super::workload::{Ended, Workload, check_sound};
use super::{Checked, forged};

/// Crashes after the first one, each in the recovery from the one before or in the work after that.
const MORE_CRASHES_MAX: u32 = 3;
/// Power cuts drawn at each place where the disk stops.
const POWER_CUTS: u64 = 2;

/// One run of work that ends in a crash.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub seed: u64,
    /// Things that are done before the crash.
    pub steps: u32,
    /// Processes that share the store; one has it to itself.
    pub processes: usize,
    /// Calls of the disk that succeed; all of them when it is `None`.
    pub stop_after: Option<u64>,
    /// How the disk lies, to test the tests.
    pub lie: Option<Lie>,
}

/// How a simulated disk lies.
#[derive(Clone, Copy, Debug)]
pub enum Lie {
    /// Syncs of files whose names begin so do nothing.
    Sync(&'static str),
    /// Syncs of the directory do nothing.
    DirectorySync,
}

/// How many recoveries were compared with the model, by what came before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub after_kill: u64,
    pub after_power_cut: u64,
    /// Recoveries that were themselves stopped.
    pub stopped_recoveries: u64,
    /// Stores that went on after another process died, which were compared too.
    pub after_death: u64,
}

impl Tally {
    /// Counts what was counted elsewhere.
    pub fn add(&mut self, other: &Tally) {
        self.after_kill += other.after_kill;
        self.after_power_cut += other.after_power_cut;
        self.stopped_recoveries += other.stopped_recoveries;
        self.after_death += other.after_death;
    }

    /// Crash points whose outcome was compared.
    pub fn points(&self) -> u64 {
        self.after_kill + self.after_power_cut + self.after_death
    }
}

impl Case {
    /// A case by its seed.
    pub fn new(seed: u64, steps: u32) -> Case {
        Case {
            seed,
            steps,
            processes: 1,
            stop_after: None,
            lie: None,
        }
    }

    /// This case in several processes.
    pub fn among(self, processes: usize) -> Case {
        Case { processes, ..self }
    }

    /// This case with a crash after a number of calls.
    pub fn stopping_after(self, calls: u64) -> Case {
        Case {
            stop_after: Some(calls),
            ..self
        }
    }

    pub fn options(&self) -> Options {
        let mut rng = Rng::with_seed(self.seed ^ 0x6f70_7469_6f6e);
        let most = rng.u64(48..128) << 10;
        super::small_options()
            .generation_bytes(48 << 10, most)
            // What was freed and not overwritten is as good as new, and must not be taken for it.
            .overwrite_freed(rng.bool())
            .fold_parts([0, 2, 5, 40][rng.usize(..4)], 1)
            // Every other store leaves what it is when it is closed, to the next opening.
            .folded_at_close([0, u64::MAX][rng.usize(..2)])
    }

    /// Opens the store in all processes, one after the other.
    fn open(&self, disk: &SimDisk) -> Result<Vec<Store>, Error> {
        let open = |_| self.options().open_on(disk.platform());
        (0..self.processes).map(open).collect()
    }

    /// Bytes that a power cut may destroy around a byte that was not synced; `DURAMEN_WRITE_UNIT` asks for one unit alone.
    pub fn write_unit(&self) -> u64 {
        let asked = std::env::var("DURAMEN_WRITE_UNIT").ok();
        let asked = asked.and_then(|unit| unit.parse().ok());
        asked.unwrap_or([512, 4 << 10, 16 << 10][(self.seed / 7 % 3) as usize])
    }

    pub fn disk(&self) -> SimDisk {
        let disk = SimDisk::new(self.seed);
        disk.set_write_unit(self.write_unit());
        if self.seed.is_multiple_of(3) {
            disk.leave_stale_blocks(forged::log_of_another_store().to_vec());
        }
        match self.lie {
            None => {}
            Some(Lie::Sync(prefix)) => disk.ignore_sync(Some(prefix)),
            Some(Lie::DirectorySync) => disk.ignore_directory_sync(true),
        }
        disk
    }

    /// How many calls the whole run takes, closing included.
    pub fn calls(&self) -> u64 {
        let disk = self.disk();
        let mut history = History::new();
        let whole = Case {
            stop_after: None,
            ..*self
        };
        if let Ok(mut stores) = self.open(&disk) {
            let _ = whole.work(&disk, &mut stores, &mut history);
            drop(stores);
        }
        disk.calls()
    }

    /// Runs the case: work, crash, and everything after it, for a kill and for several power cuts.
    ///
    /// # Errors
    /// What the store did wrong; a panic counts.
    pub fn run(&self, tally: &mut Tally) -> Checked {
        let run = AssertUnwindSafe(|| self.run_unguarded(tally));
        let found = catch_unwind(run).unwrap_or_else(|panic| Err(format!("panic: {}", panic_message(&*panic))));
        found.map_err(|cause| format!("{cause}\n{self:?}"))
    }

    fn run_unguarded(&self, tally: &mut Tally) -> Checked {
        let disk = self.disk();
        if let Some(calls) = self.stop_after {
            disk.stop_after(calls);
        }
        let mut history = History::new();
        let stores = match self.open(&disk) {
            Ok(mut stores) => {
                self.work(&disk, &mut stores, &mut history)?;
                Some(stores)
            }
            Err(error) => stop_only(&error).map(|()| None)?,
        };
        // Before the store is dropped, which would close it where the disk has not stopped.
        let killed = Crash::Kill.of(&disk, &history);
        let cut: Vec<_> = (0..POWER_CUTS)
            .map(|cut| Crash::PowerCut(self.seed.wrapping_add(cut)).of(&disk, &history))
            .collect();
        drop(stores);
        let mut after = After {
            case: self,
            rng: Rng::with_seed(self.seed ^ self.stop_after.unwrap_or(u64::MAX)),
            tally,
        };
        after.follow(killed, Crash::Kill)?;
        cut.into_iter()
            .try_for_each(|cut| after.follow(cut, Crash::PowerCut(0)))
    }

    /// The work before the crash. Ends early when the disk stops.
    fn work(&self, disk: &SimDisk, stores: &mut Vec<Store>, history: &mut History) -> Checked {
        let mut workload = Workload::new(self.seed, self.seed ^ 1);
        let mut done = self.steps > 0;
        for steps in self.parts() {
            done = ended_by_stop(workload.run_among(stores, history, steps))?
                && (!self.comes_and_goes() || self.come_and_go(disk, stores, history)?);
            if !done {
                break;
            }
        }
        drop(workload);
        if done && self.seed.is_multiple_of(4) {
            self.close(stores, history)?;
        }
        Ok(())
    }

    /// Whether processes close the store during the work, and others open it.
    fn comes_and_goes(&self) -> bool {
        self.processes > 1 || self.seed % 5 == 2
    }

    /// Steps between which processes come and go.
    fn parts(&self) -> impl Iterator<Item = u32> {
        let parts = if self.comes_and_goes() { 3 } else { 1 };
        (0..parts).map(move |part| (self.steps + part) / parts)
    }

    /// One of the processes closes the store, and another one opens it. `false`: the disk stopped.
    fn come_and_go(&self, disk: &SimDisk, stores: &mut Vec<Store>, history: &mut History) -> Checked<bool> {
        if let Err(error) = stores.remove(0).close() {
            return stop_only(&error).map(|()| false);
        }
        history.all_synced();
        match self.options().open_on(disk.platform()) {
            Ok(store) => stores.push(store),
            Err(error) => return stop_only(&error).map(|()| false),
        }
        Ok(true)
    }

    /// All processes close the store; after the first there is nothing that a power cut takes.
    fn close(&self, stores: &[Store], history: &mut History) -> Checked {
        for store in stores {
            match store.clone().close() {
                Ok(()) => history.all_synced(),
                Err(error) => return stop_only(&error),
            }
        }
        Ok(())
    }
}

/// A way to crash.
#[derive(Clone, Copy, Debug)]
pub enum Crash {
    Kill,
    PowerCut(u64),
}

impl Crash {
    pub fn of(self, disk: &SimDisk, history: &History) -> (SimDisk, History) {
        let mut history = history.clone();
        match self {
            Crash::Kill => (disk.kill(), history),
            Crash::PowerCut(seed) => {
                history.power_cut();
                (disk.power_cut(seed), history)
            }
        }
    }
}

/// What follows a crash: recoveries, more work and more crashes.
pub struct After<'a> {
    pub case: &'a Case,
    pub rng: Rng,
    pub tally: &'a mut Tally,
}

impl After<'_> {
    pub fn follow(&mut self, (mut disk, mut history): (SimDisk, History), mut last: Crash) -> Checked {
        let mut path = vec![last];
        for _ in 0..self.rng.u32(..=MORE_CRASHES_MAX) {
            let opened = self.open_and_work(&disk, &mut history, last);
            let stores = opened.map_err(|cause| format!("{cause}\ncrashes: {path:?}"))?;
            last = if self.rng.bool() {
                Crash::Kill
            } else {
                Crash::PowerCut(self.rng.u64(..))
            };
            path.push(last);
            let next = last.of(&disk, &history);
            drop(stores);
            (disk, history) = next;
        }
        self.finish(&disk, &mut history, last)
            .map_err(|cause| format!("{cause}\ncrashes: {path:?}"))
    }

    /// Opens the store, which may be stopped in it, and works until the disk stops or enough was done.
    fn open_and_work(&mut self, disk: &SimDisk, history: &mut History, last: Crash) -> Checked<Option<Vec<Store>>> {
        let in_recovery = self.rng.bool();
        if in_recovery {
            disk.stop_after(self.rng.u64(..24));
        }
        let stores = match self.case.open(disk) {
            Ok(stores) => stores,
            Err(error) => {
                self.tally.stopped_recoveries += 1;
                return stop_only(&error).map(|()| None);
            }
        };
        self.compare(self.any(&stores), history, last)?;
        if !in_recovery {
            disk.stop_after(self.rng.u64(..60));
        }
        // Every other time the same work as before: records of the same lengths at the same places.
        let shape = if self.rng.bool() {
            self.case.seed
        } else {
            self.rng.u64(..)
        };
        let mut workload = Workload::new(shape, self.rng.u64(..));
        ended_by_stop(workload.run_among(&stores, history, self.case.steps.min(20)))?;
        Ok(Some(stores))
    }

    /// Not always the process that recovered the store.
    fn any<'a>(&self, stores: &'a [Store]) -> &'a Store {
        &stores[self.case.seed as usize % stores.len()]
    }

    fn compare(&mut self, store: &Store, history: &mut History, last: Crash) -> Checked {
        match last {
            Crash::Kill => self.tally.after_kill += 1,
            Crash::PowerCut(_) => self.tally.after_power_cut += 1,
        }
        history.recovered(store)
    }

    /// A recovery that nothing disturbs; now and then everything that can be asked of a store after it.
    fn finish(&mut self, disk: &SimDisk, history: &mut History, last: Crash) -> Checked {
        let stores = self.case.open(disk).map_err(cannot_open)?;
        self.compare(self.any(&stores), history, last)?;
        if self.rng.u8(..8) > 0 {
            // Not dropped in vain: it is closed, which must not fail.
            return close_all(stores);
        }
        check_sound(self.any(&stores))?;
        let mut workload = Workload::new(self.rng.u64(..), self.rng.u64(..));
        match workload.run_among(&stores, history, 20) {
            Ok(()) => {}
            Err(ended) => return Err(format!("after recovery: {ended:?}")),
        }
        drop(workload);
        check_sound(self.any(&stores))?;
        close_all(stores)?;
        history.all_synced();
        let stores = self.case.open(disk).map_err(cannot_open)?;
        history.recovered(self.any(&stores))?;
        check_sound(self.any(&stores))
    }
}

fn close_all(stores: Vec<Store>) -> Checked {
    let closed = stores.into_iter().try_for_each(Store::close);
    closed.map_err(|error| format!("closing: {error}"))
}

fn cannot_open(error: Error) -> String {
    format!("the store does not open: {error}")
}

/// Whether work went to its end; `false`: the disk stopped.
fn ended_by_stop(ended: Result<(), Ended>) -> Checked<bool> {
    match ended {
        Ok(()) => Ok(true),
        Err(Ended::Stopped(error)) => stop_only(&error).map(|()| false),
        Err(Ended::Wrong(cause)) if cause.contains(": stopped") => Ok(false),
        Err(Ended::Wrong(cause)) => Err(cause),
    }
}

/// Refuses every error but that of a disk which has stopped.
fn stop_only(error: &Error) -> Checked {
    let text = error.to_string();
    if text.contains(": stopped") {
        Ok(())
    } else {
        Err(format!("an error that nothing caused: {text}"))
    }
}

/// The text of a panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}
