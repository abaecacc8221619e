//! A thread that rings at given times: it extends leases that are kept alive, and wakes tasks for events without a
//! commit.
//!
//! All topics of an open store share one thread. It runs only while something waits for a time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Instant;

use duramen_engine::Result;

use crate::error::TopicError;
use crate::lock::locked;

/// An object that waits for a time.
pub(crate) trait Timed: Send + Sync {
    /// Called at its time. Returns the next time to call it, if there is one.
    fn ring(&self) -> Option<Instant>;
}

/// Rings at given times.
#[derive(Clone, Default)]
pub(crate) struct Timer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    times: BinaryHeap<Reverse<(Instant, u64)>>,
    waiting: HashMap<u64, Weak<dyn Timed>>,
    next: u64,
    runs: bool,
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").finish_non_exhaustive()
    }
}

impl Timer {
    /// Rings at a time, unless `timed` is dropped before.
    ///
    /// # Errors
    /// [`TopicError::NoThread`].
    pub(crate) fn at(&self, time: Instant, timed: Weak<dyn Timed>) -> Result<()> {
        let mut state = locked(&self.shared.state);
        if !state.runs {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("duramen-alarm".into());
            thread.spawn(move || run(&shared)).map_err(|_| TopicError::NoThread)?;
            state.runs = true;
        }
        let id = state.next;
        state.next += 1;
        state.waiting.insert(id, timed);
        state.times.push(Reverse((time, id)));
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }
}

fn run(shared: &Shared) {
    let mut state = locked(&shared.state);
    loop {
        let Some(&Reverse((time, id))) = state.times.peek() else {
            state.runs = false;
            return;
        };
        let left = time.saturating_duration_since(Instant::now());
        let is_there = state.waiting.get(&id).is_some_and(|timed| timed.strong_count() > 0);
        if is_there && !left.is_zero() {
            let waited = shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
            continue;
        }
        state.times.pop();
        let Some(timed) = state.waiting.remove(&id) else {
            continue;
        };
        let Some(rung) = timed.upgrade() else { continue };
        // Outside the lock: the called object may commit, or be dropped here.
        drop(state);
        let next = rung.ring();
        drop(rung);
        state = locked(&shared.state);
        if let Some(next) = next {
            state.waiting.insert(id, timed);
            state.times.push(Reverse((next, id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    struct Told {
        name: u32,
        sender: Mutex<Sender<u32>>,
        again: Mutex<u32>,
    }

    impl Timed for Told {
        fn ring(&self) -> Option<Instant> {
            locked(&self.sender).send(self.name).unwrap();
            let mut again = locked(&self.again);
            *again = again.checked_sub(1)?;
            Some(Instant::now())
        }
    }

    #[test]
    fn what_waits_is_rung_in_the_order_of_times_and_again_as_often_as_it_asks() {
        let (sender, rung) = channel();
        let told = |name, again| {
            let (sender, again) = (Mutex::new(sender.clone()), Mutex::new(again));
            Arc::new(Told { name, sender, again })
        };
        let timer = Timer::default();
        let now = Instant::now();
        let (late, soon, dropped) = (told(1, 0), told(2, 2), told(3, 0));
        let weak = |told: &Arc<Told>| Arc::downgrade(told) as Weak<dyn Timed>;
        timer.at(now + Duration::from_millis(80), weak(&late)).unwrap();
        timer.at(now + Duration::from_millis(40), weak(&dropped)).unwrap();
        timer.at(now + Duration::from_millis(20), weak(&soon)).unwrap();
        drop(dropped);
        let rung: Vec<u32> = (0..4)
            .map(|_| rung.recv_timeout(Duration::from_secs(60)).unwrap())
            .collect();
        assert_eq!(rung, [2, 2, 2, 1]);
    }
}
