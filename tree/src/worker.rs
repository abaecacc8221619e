//! The background thread of the trees of a process. What it does is in [`crate::trees`].

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks. Leases end at most so much late.
const TICK: Duration = Duration::from_millis(500);

/// The thread. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Worker {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Signal {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Sleeps until the next look; `true`: the thread must end.
    fn sleep(&self) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let slept = self.changed.wait_timeout_while(is_over, TICK, |is_over| !*is_over);
        *slept.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Worker {
    /// Starts a thread that calls `look` again and again; `None`: the system has none.
    pub(crate) fn start(look: impl Fn() + Send + 'static) -> Option<Worker> {
        let signal = Arc::new(Signal::default());
        let waiting = signal.clone();
        let work = move || {
            while !waiting.sleep() {
                look();
            }
        };
        let thread = std::thread::Builder::new().name("duramen-trees".into()).spawn(work);
        let thread = thread.ok()?;
        Some(Worker {
            signal,
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        *self.signal.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}
