//! One of several processes that share a store dies in a call to the disk, and the others go on; later all of them are
//! killed, or the power goes. The work is that of [`Case`], a step of which any of the processes does. The thread that was
//! dying when its process died stays there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use duramen_engine::{Error, Store, TransactionOptions};
use duramen_io::SimDisk;
use fastrand::Rng;

use super::Checked;
use super::crashes::{After, Case, Crash, Tally, panic_message};
use super::history::History;
use super::workload::{Workload, check_sound};

/// A process that dies, and what it leaves.
#[derive(Clone)]
struct Death {
    case: Case,
    /// Calls of the process before the one in which it dies.
    calls: u64,
    disk: SimDisk,
    /// The stores of the others, as far as they are open.
    others: Arc<Mutex<Vec<Store>>>,
    /// What was done up to its death.
    history: Arc<Mutex<History>>,
}

/// How a case with a death ended.
enum Ended {
    /// No process died.
    Alive(Checked),
    /// What came of everything after the death.
    Dead(Checked<Tally>),
}

impl Case {
    /// Runs the case with a process that dies after so many calls, and everything after its death. `false`: it did not
    /// make as many.
    ///
    /// # Errors
    /// What the store did wrong; a panic counts.
    pub fn run_with_death(&self, calls: u64, tally: &mut Tally) -> Checked<bool> {
        let death = Death {
            case: *self,
            calls,
            disk: self.disk(),
            others: Arc::default(),
            history: Arc::new(Mutex::new(History::new())),
        };
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let worked = guarded(|| death.work(&sender));
            let _ = sender.send(Ended::Alive(worked));
        });
        let told = |cause| format!("{cause}\n{self:?}, one dies after {calls} calls");
        match ended.recv().expect("one of both comes to an end") {
            Ended::Alive(worked) => worked.map_err(told).map(|()| false),
            Ended::Dead(outcome) => {
                tally.add(&outcome.map_err(told)?);
                Ok(true)
            }
        }
    }
}

impl Death {
    fn rng(&self) -> Rng {
        Rng::with_seed(self.case.seed ^ self.calls.rotate_left(20))
    }

    /// Works until the process dies, which never returns, or to the end.
    fn work(&self, ended: &Sender<Ended>) -> Checked {
        // The process that recovers the store or creates it, or another one.
        let mortal = self.rng().usize(..self.case.processes);
        let mut history = History::new().shown_in(&self.history);
        let mut workload = Workload::new(self.case.seed, self.case.seed ^ 1);
        let stores = self.open(mortal, ended).map_err(|error| error.to_string())?;
        let worked = workload.run_among(&stores, &mut history, self.case.steps);
        worked.map_err(|ended| format!("work before a death: {ended:?}"))?;
        let closed = stores[mortal].clone().close();
        closed.map_err(|error| format!("closing: {error}"))
    }

    fn open(&self, mortal: usize, ended: &Sender<Ended>) -> Result<Vec<Store>, Error> {
        let open = |number| {
            if number == mortal {
                let (death, ended) = (self.clone(), ended.clone());
                let afterwards = move || {
                    let mut tally = Tally::default();
                    let outcome = guarded(|| death.go_on(&mut tally));
                    let _ = ended.send(Ended::Dead(outcome.map(|()| tally)));
                };
                let platform = self.disk.platform_of_one_who_dies(self.calls, in_a_thread(afterwards));
                return self.case.options().open_on(platform);
            }
            let store = self.case.options().open_on(self.disk.platform())?;
            self.others.lock().expect("no panic").push(store.clone());
            Ok(store)
        };
        (0..self.case.processes).map(open).collect()
    }

    fn go_on(&self, tally: &mut Tally) -> Checked {
        let mut history = self.history.lock().expect("no panic").clone();
        let others = self.others.lock().expect("no panic").clone();
        let mut rng = self.rng();
        if !others.is_empty() {
            self.survive(&others, &mut history, &mut rng, tally)?;
        }
        for crash in [Crash::Kill, Crash::PowerCut(rng.u64(..))] {
            let rng = rng.fork();
            let crashed = crash.of(&self.disk, &history);
            let mut after = After {
                case: &self.case,
                rng,
                tally,
            };
            after.follow(crashed, crash)?;
        }
        Ok(())
    }

    /// The others find everything that was acknowledged, and go on as if nothing had happened.
    fn survive(&self, others: &[Store], history: &mut History, rng: &mut Rng, tally: &mut Tally) -> Checked {
        let survivor = &others[rng.usize(..others.len())];
        if rng.u8(..4) == 0 {
            // Not even that: what the dead one left is there at the crash.
            return Ok(());
        }
        // A process that may commit knows whether the last commit of the dead process stands.
        let alone = TransactionOptions::new().exclusive();
        let decided = survivor.transact_with(alone, |_| Ok::<_, duramen_engine::Error>(()));
        decided.map_err(|error| format!("a transaction after a death: {error}"))?;
        history.survived(survivor)?;
        tally.after_death += 1;
        let mut workload = Workload::new(rng.u64(..), rng.u64(..));
        let steps = rng.u32(..20);
        let ended = workload.run_among(others, history, steps);
        ended.map_err(|ended| format!("work after a death: {ended:?}"))?;
        if rng.u8(..4) == 0 {
            drop(workload);
            check_sound(survivor)?;
        }
        Ok(())
    }
}

/// Not in the thread that dies, which holds locks.
fn in_a_thread(work: impl FnOnce() + Send + 'static) -> impl FnOnce() + Send + 'static {
    || drop(std::thread::spawn(work).join())
}

fn guarded(work: impl FnOnce() -> Checked) -> Checked {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|panic| Err(format!("panic: {}", panic_message(&*panic))))
}
