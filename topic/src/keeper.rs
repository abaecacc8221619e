//! The background thread of a process that lets go of what topics do not have to keep.
//!
//! It belongs to the handles that the program has: the last of them stops it, and waits for it, before it lets go of the
//! store. So a program that drops everything finds the store closed. When the program closes the store instead, the thread
//! finds that, wakes whoever waits for messages, and ends.

use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use duramen_engine::Reason;

use crate::retention::Rounds;
use crate::topics::{Home, Inner, locked};

/// How often the thread looks.
const TICK: Duration = Duration::from_secs(1);
/// So many times as long as it worked the thread rests: it never takes more than this share of a processor.
const REST: u32 = 20;

/// What the handles of a program share beside what all share.
#[derive(Default)]
pub(crate) struct Users {
    stop: Arc<Stop>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Stop {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sleeps; `true`: it is over.
    fn wait(&self, rest: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(locked(&self.is_over), rest, |is_over| !*is_over);
        *waited.unwrap_or_else(|e| e.into_inner()).0
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

impl Drop for Users {
    fn drop(&mut self) {
        *locked(&self.stop.is_over) = true;
        self.stop.changed.notify_all();
        if let Some(keeper) = locked(&self.keeper).take() {
            // Its panic was reported when it happened; what it was to do is done by the next one.
            let _ = keeper.join();
        }
    }
}

fn keep(stop: &Stop, inner: &Weak<Inner>) {
    let (mut rest, mut rounds) = (TICK, Rounds::default());
    while !stop.wait(rest) {
        let Some(inner) = inner.upgrade() else { return };
        let began = Instant::now();
        // What went wrong, a full disk for instance, may go right the next time; and whoever uses the store hears of it.
        let trimmed = rounds.trim(&Home::of_worker(&inner), &|| stop.wait(Duration::ZERO));
        if trimmed.is_err_and(|error| matches!(error.reason(), Reason::Closed)) {
            // A task that waits looks at nothing by itself, as a thread does.
            inner.tell_all();
            return;
        }
        rest = TICK.max(began.elapsed() * REST);
    }
}
