//! The background thread of a process, as its users see it: it is started, woken and stopped here. What it does is in
//! [`crate::retention_worker`].

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::lock::locked;

/// Time between two checks.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Minimum sleep between two checks of delayed messages. Messages that are due close together are published together.
pub(crate) const NAP: Duration = Duration::from_millis(1);

/// The background thread, as the handles of the program share it. The last handle stops it.
#[derive(Default)]
pub(crate) struct BackgroundThread {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What wakes the thread.
#[derive(Default)]
pub(crate) struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

/// What other threads tell the background thread while it sleeps.
#[derive(Default)]
struct SignalState {
    is_over: bool,
    /// Due time of the soonest delayed message that this process scheduled since the last check, in milliseconds since
    /// 1970.
    due: Option<u64>,
}

impl Signal {
    pub(crate) fn is_over(&self) -> bool {
        locked(&self.state).is_over
    }

    /// Sleeps for `rest`, or until a message is scheduled. `true`: the thread must end. The first part of the sleep
    /// ignores messages, so scheduling many of them wakes the thread once.
    pub(crate) fn wait(&self, rest: Duration) -> bool {
        let state = locked(&self.state);
        let waited = self
            .changed
            .wait_timeout_while(state, NAP.min(rest), |state| !state.is_over);
        let (state, _) = waited.unwrap_or_else(|e| e.into_inner());
        let is_quiet = |state: &mut SignalState| !state.is_over && state.due.is_none();
        let waited = self
            .changed
            .wait_timeout_while(state, rest.saturating_sub(NAP), is_quiet);
        waited.unwrap_or_else(|e| e.into_inner()).0.is_over
    }

    /// Returns the due time of what was scheduled since the last call.
    pub(crate) fn take_due(&self) -> Option<u64> {
        locked(&self.state).due.take()
    }
}

impl BackgroundThread {
    /// Starts the thread unless it runs. If the system has no thread left, trimming waits for the next start.
    pub(crate) fn start(&self, work: impl FnOnce(&Signal) + Send + 'static) {
        let mut thread = locked(&self.thread);
        if thread.is_some() {
            return;
        }
        let signal = self.signal.clone();
        let builder = std::thread::Builder::new().name("duramen-topics".into());
        *thread = builder.spawn(move || work(&signal)).ok();
    }

    /// Tells the thread of a delayed message, which may not be committed yet.
    pub(crate) fn expect(&self, due: u64) {
        let mut state = locked(&self.signal.state);
        state.due = Some(state.due.map_or(due, |known| known.min(due)));
        drop(state);
        self.signal.changed.notify_all();
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        locked(&self.signal.state).is_over = true;
        self.signal.changed.notify_all();
        if let Some(thread) = locked(&self.thread).take() {
            // Its panic was reported when it happened; the next background thread does the remaining work.
            let _ = thread.join();
        }
    }
}
