//! The background thread of a process that deletes what topics do not have to keep, and publishes delayed messages.
//!
//! It sleeps until the next look at retention, or until the first delayed message is due when that is sooner. Delayed
//! messages of other processes it finds at its next look, at most a second late.
//!
//! It belongs to the handles that the program has: the last of them stops it, and waits for it, before it lets go of the
//! store. So a program that drops everything finds the store closed. When the program closes the store instead, the thread
//! finds that, wakes whoever waits for messages, and ends.

use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use duramen_engine::{Error, Reason};

use crate::delayed;
use crate::retention::Rounds;
use crate::topics::{Home, Inner, locked};

/// How often the thread looks.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// So many times as long as it worked the thread rests: it never takes more than this share of a processor.
const REST: u32 = 20;
/// The thread sleeps at least so long between two looks at delayed messages: those that follow each other closely are
/// published together.
const NAP: Duration = Duration::from_millis(1);

/// What the handles of a program share beside what all share.
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

/// What the thread is told while it sleeps.
#[derive(Default)]
struct Told {
    is_over: bool,
    /// When the soonest delayed message is due that this process scheduled since the last look, in milliseconds since 1970.
    due: Option<u64>,
}

impl Stop {
    fn is_over(&self) -> bool {
        locked(&self.state).is_over
    }

    /// Sleeps, until a message is scheduled at the longest; `true`: it is over. The first part of the sleep takes no notice
    /// of messages: scheduling many of them wakes the thread once.
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

    /// What was scheduled since the last call.
    fn take_due(&self) -> Option<u64> {
        locked(&self.state).due.take()
    }
}

impl Users {
    /// Starts the thread, unless it runs. Where there is none to be had, trimming waits for the next start.
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
    /// Tells the thread of a delayed message. The message is perhaps not committed yet.
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
            // Its panic was reported when it happened; what it was to do is done by the next one.
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
                // A task that waits looks at nothing by itself, as a thread does.
                inner.tell_all();
                return;
            }
        }
    }
}

/// The store was closed.
struct Closed;

/// What the thread knows from one look to the next.
struct Look {
    trims_at: Instant,
    /// When a message is due that may be not committed yet, in milliseconds since 1970.
    due: Option<u64>,
    /// Whether the last look at delayed messages failed.
    has_failed: bool,
    rounds: Rounds,
}

impl Look {
    /// Does what is to be done now. Returns how long the thread can sleep.
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
            // What went wrong, a full disk for instance, may go right the next time; and callers of the store hear of it.
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

    /// How long until a delayed message is due, or may be.
    fn due_in(&mut self, home: &Home, stop: &Stop) -> Result<Option<Duration>, Error> {
        let now = home.store.wall_clock();
        self.due = [self.due, stop.take_due()].into_iter().flatten().min();
        let told = self.due.map(|due| Duration::from_millis(due).saturating_sub(now));
        // Looked at now: the next look finds the row, if it is committed then.
        self.due = self.due.filter(|due| Duration::from_millis(*due) > now);
        let first = home.due_in()?;
        Ok([told, first].into_iter().flatten().min())
    }

    /// Whether something failed; an error when the store was closed.
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
