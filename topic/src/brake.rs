//! Slowing publishers down to a subscriber that wants them to wait.
//!
//! A publisher waits before its commit, outside of all locks, and at most for a time that the subscriber gave. Nothing of
//! this is seen by publishers of topics where no subscriber wants it, but for one load of a counter.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use duramen_engine::Result;

use crate::error::TopicError;
use crate::topic::Topic;
use crate::topics::locked;

/// How far a subscriber has come that holds publishers back.
#[derive(Debug)]
pub(crate) struct Brake {
    max: u64,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    position: u64,
    is_over: bool,
}

impl Brake {
    pub(crate) fn new(position: u64, max: u64, timeout: Duration) -> Brake {
        Brake {
            max,
            timeout,
            state: Mutex::new(State {
                position,
                is_over: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// The subscriber is done with everything before this.
    pub(crate) fn reached(&self, position: u64) {
        locked(&self.state).position = position;
        self.changed.notify_all();
    }

    /// The subscriber holds nobody back any more.
    pub(crate) fn release(&self) {
        locked(&self.state).is_over = true;
        self.changed.notify_all();
    }

    /// Waits until the subscriber has come near enough. `Err`: how far behind it still is.
    fn wait(&self, next: u64) -> Result<(), u64> {
        let lag = |state: &State| next.saturating_sub(state.position);
        let is_far = |state: &mut State| !state.is_over && lag(state) >= self.max;
        let waited = self
            .changed
            .wait_timeout_while(locked(&self.state), self.timeout, is_far);
        let (state, timeout) = waited.unwrap_or_else(|e| e.into_inner());
        match timeout.timed_out() && !state.is_over {
            true => Err(lag(&state)),
            false => Ok(()),
        }
    }
}

/// The subscribers of a topic that hold publishers back.
#[derive(Debug, Default)]
pub(crate) struct Brakes {
    count: AtomicU32,
    brakes: Mutex<Vec<Weak<Brake>>>,
}

impl Brakes {
    pub(crate) fn add(&self, brake: &Arc<Brake>) {
        let mut brakes = locked(&self.brakes);
        brakes.push(Arc::downgrade(brake));
        self.count(&brakes);
    }

    pub(crate) fn remove(&self, brake: &Arc<Brake>) {
        let mut brakes = locked(&self.brakes);
        brakes.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(brake)));
        self.count(&brakes);
    }

    // Relaxed: a publisher that misses a subscriber which begins just now is one message early.
    fn count(&self, brakes: &[Weak<Brake>]) {
        self.count.store(brakes.len() as u32, Ordering::Relaxed);
    }

    pub(crate) fn release_all(&self) {
        let brakes = locked(&self.brakes);
        brakes
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|brake| brake.release());
    }

    /// Called by publishers before they commit.
    #[inline]
    pub(crate) fn wait(&self, topic: &Topic) -> Result<()> {
        match self.count.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => self.wait_for_all(topic),
        }
    }

    #[cold]
    fn wait_for_all(&self, topic: &Topic) -> Result<()> {
        let brakes: Vec<Arc<Brake>> = locked(&self.brakes).iter().filter_map(Weak::upgrade).collect();
        let began = Instant::now();
        for brake in brakes {
            brake.wait(topic.next()?).map_err(|lag| TopicError::PublisherHeldBack {
                topic: topic.name().into(),
                lag,
                waited_millis: began.elapsed().as_millis() as u64,
            })?;
        }
        Ok(())
    }
}
