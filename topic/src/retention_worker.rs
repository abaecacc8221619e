//! The background thread of a process: it deletes what retention removes from topics, and publishes delayed messages.
//!
//! The thread sleeps until the next retention check, or until the first delayed message is due if that is sooner. It
//! finds delayed messages of other processes at its next check, at most a second late.
//!
//! The thread belongs to the program's handles. The last handle stops the thread, and waits for it, before it releases
//! the store. So a program that drops everything finds the store closed. If the program closes the store instead, the
//! thread notices, wakes all waiters for messages, and ends.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use duramen_engine::{Error, Reason};

use crate::background_thread::{NAP, Signal, TICK};
use crate::delayed;
use crate::home::{Home, Inner};
use crate::retention::Rounds;

/// Rest time as a multiple of the work time. It bounds the thread's share of a processor.
const REST: u32 = 20;

/// Starts the thread unless it runs.
pub(crate) fn start(home: &Home) {
    home.start_background(work);
}

fn work(signal: &Signal, inner: &Weak<Inner>) {
    let mut look = Look {
        trims_at: Instant::now() + TICK,
        due: None,
        has_failed: false,
        rounds: Rounds::default(),
    };
    let mut rest = NAP;
    while !signal.wait(rest) {
        let Some(inner) = inner.upgrade() else { return };
        match look.at(&inner, signal) {
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
    fn at(&mut self, inner: &Arc<Inner>, signal: &Signal) -> Result<Duration, Closed> {
        let home = Home::of_worker(inner);
        let due = self.due_in(&home, signal);
        if due.as_ref().is_ok_and(|due| due.is_some_and(|due| due.is_zero())) {
            self.has_failed = {
                let published = delayed::publish_due(&home, &|| signal.is_over());
                self.note(&home, "publishing delayed messages", published.map(drop))?
            };
        } else {
            self.has_failed = self.note(&home, "looking for delayed messages", due.map(drop))?;
        }
        let began = Instant::now();
        if began >= self.trims_at {
            // A failure, such as a full disk, may be gone at the next attempt. The store reports it to its callers.
            let trimmed = self.rounds.trim(&home, &|| signal.is_over());
            self.note(&home, "trimming the topics", trimmed)?;
            self.trims_at = Instant::now() + TICK.max(began.elapsed() * REST);
        }
        let next = match self.has_failed {
            true => TICK,
            false => self.due_in(&home, signal).ok().flatten().unwrap_or(TICK).min(TICK),
        };
        let trims_in = self.trims_at.saturating_duration_since(Instant::now());
        Ok(next.min(trims_in).max(NAP))
    }

    /// Time until a delayed message is due, or may be due.
    fn due_in(&mut self, home: &Home, signal: &Signal) -> Result<Option<Duration>, Error> {
        let now = home.store.wall_clock();
        self.due = [self.due, signal.take_due()].into_iter().flatten().min();
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
