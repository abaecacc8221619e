//! The background thread of a process: it deletes what retention removes from topics, and publishes delayed messages.
//!
//! The thread sleeps until the next retention check, or until the first delayed message is due if that is sooner. It
//! finds delayed messages of other processes at its next check, at most a second late.
//!
//! The thread belongs to the program's handles. The last handle stops the thread, and waits for it, before it releases
//! the store. So a program that drops everything finds the store closed. If the program closes the store instead, the
//! thread notices, wakes all waiters for messages, and ends.

use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use duramen_engine::{Error, Reason};

use crate::delayed;
use crate::retention::Rounds;
use crate::topics::{Home, Inner, locked};

/// Time between two checks.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Rest time as a multiple of the work time. It bounds the thread's share of a processor.
const REST: u32 = 20;
/// Minimum sleep between two checks of delayed messages. Messages that are due close together are published together.
const NAP: Duration = Duration::from_millis(1);

/// State that the handles of the program share in addition to the common state.
#[derive(Default)]
pub(crate) struct Users {
    stop: Arc<Stop>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Stop {
    state: Mutex<Told>,
    changed: Condvar,
}

/// What other threads tell the background thread while it sleeps.
#[derive(Default)]
struct Told {
    is_over: bool,
    /// Due time of the soonest delayed message that this process scheduled since the last check, in milliseconds since
    /// 1970.
    due: Option<u64>,
}

impl Stop {
    fn is_over(&self) -> bool {
        locked(&self.state).is_over
    }

    /// Sleeps for `rest`, or until a message is scheduled. `true`: the thread must end. The first part of the sleep
    /// ignores messages, so scheduling many of them wakes the thread once.
    fn wait(&self, rest: Duration) -> bool {
        let told = locked(&self.state);
        let waited = self
            .changed
            .wait_timeout_while(told, NAP.min(rest), |told| !told.is_over);
        let (told, _) = waited.unwrap_or_else(|e| e.into_inner());
        let is_quiet = |told: &mut Told| !told.is_over && told.due.is_none();
        let waited = self
            .changed
            .wait_timeout_while(told, rest.saturating_sub(NAP), is_quiet);
        waited.unwrap_or_else(|e| e.into_inner()).0.is_over
    }

    /// Returns the due time of what was scheduled since the last call.
    fn take_due(&self) -> Option<u64> {
        locked(&self.state).due.take()
    }
}

impl Users {
    /// Starts the thread unless it runs. If the system has no thread left, trimming waits for the next start.
    pub(crate) fn start_keeper(&self, inner: &Arc<Inner>) {
        let mut keeper = locked(&self.keeper);
        if keeper.is_some() {
            return;
        }
        let (stop, inner) = (self.stop.clone(), Arc::downgrade(inner));
        let thread = std::thread::Builder::new().name("duramen-topics".into());
        *keeper = thread.spawn(move || keep(&stop, &inner)).ok();
    }
}

impl Users {
    /// Tells the thread of a delayed message, which may not be committed yet.
    pub(crate) fn expect(&self, due: u64) {
        let mut told = locked(&self.stop.state);
        told.due = Some(told.due.map_or(due, |known| known.min(due)));
        drop(told);
        self.stop.changed.notify_all();
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        locked(&self.stop.state).is_over = true;
        self.stop.changed.notify_all();
        if let Some(keeper) = locked(&self.keeper).take() {
            // Its panic was reported when it happened; the next background thread does the remaining work.
            let _ = keeper.join();
        }
    }
}

fn keep(stop: &Stop, inner: &Weak<Inner>) {
    let mut look = Look {
        trims_at: Instant::now() + TICK,
        due: None,
        has_failed: false,
        rounds: Rounds::default(),
    };
    let mut rest = NAP;
    while !stop.wait(rest) {
        let Some(inner) = inner.upgrade() else { return };
        match look.at(&inner, stop) {
            Ok(next) => rest = next,
            Err(Closed) => {
                // A task that waits checks nothing by itself, unlike a thread.
                inner.tell_all();
                return;
            }
        }
    }
}

/// The store was closed.
struct Closed;

/// State of the thread between two checks.
struct Look {
    trims_at: Instant,
    /// Due time of a message that may not be committed yet, in milliseconds since 1970.
    due: Option<u64>,
    /// Whether the last check of delayed messages failed.
    has_failed: bool,
    rounds: Rounds,
}

impl Look {
    /// Does the work that is due now. Returns how long the thread can sleep.
    fn at(&mut self, inner: &Arc<Inner>, stop: &Stop) -> Result<Duration, Closed> {
        let home = Home::of_worker(inner);
        let due = self.due_in(&home, stop);
        if due.as_ref().is_ok_and(|due| due.is_some_and(|due| due.is_zero())) {
            self.has_failed = {
                let published = delayed::publish_due(&home, &|| stop.is_over());
                self.note(&home, "publishing delayed messages", published.map(drop))?
            };
        } else {
            self.has_failed = self.note(&home, "looking for delayed messages", due.map(drop))?;
        }
        let began = Instant::now();
        if began >= self.trims_at {
            // A failure, such as a full disk, may be gone at the next attempt. The store reports it to its callers.
            let trimmed = self.rounds.trim(&home, &|| stop.is_over());
            self.note(&home, "trimming the topics", trimmed)?;
            self.trims_at = Instant::now() + TICK.max(began.elapsed() * REST);
        }
        let next = match self.has_failed {
            true => TICK,
            false => self.due_in(&home, stop).ok().flatten().unwrap_or(TICK).min(TICK),
        };
        let trims_in = self.trims_at.saturating_duration_since(Instant::now());
        Ok(next.min(trims_in).max(NAP))
    }

    /// Time until a delayed message is due, or may be due.
    fn due_in(&mut self, home: &Home, stop: &Stop) -> Result<Option<Duration>, Error> {
        let now = home.store.wall_clock();
        self.due = [self.due, stop.take_due()].into_iter().flatten().min();
        let told = self.due.map(|due| Duration::from_millis(due).saturating_sub(now));
        // This check handles the due time now. The next check finds the row, if it is committed then.
        self.due = self.due.filter(|due| Duration::from_millis(*due) > now);
        let first = home.due_in()?;
        Ok([told, first].into_iter().flatten().min())
    }

    /// Returns whether the operation failed; an error when the store was closed.
    fn note(&self, home: &Home, during: &'static str, done: Result<(), Error>) -> Result<bool, Closed> {
        match done {
            Ok(()) => Ok(false),
            Err(error) if matches!(error.reason(), Reason::Closed) => Err(Closed),
            Err(error) => {
                home.store.note_background_error(during, &error);
                Ok(true)
            }
        }
    }
}
