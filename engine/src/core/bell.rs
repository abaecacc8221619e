//! How those who wait for appends to a sequence learn of them, without a call of the kernel for each.
//!
//! The simple version: a commit that appended to a sequence rings its *bell*, and every *listener* of the bell wakes
//! up.
//!
//! Why it is hard: a commit must not pay for listeners that are not there, nor for those that are busy; and none may
//! sleep through an append. A listener therefore *arms* the bell before it looks for new appends, and only the first
//! commit after that reaches the listeners.
//!
//! Nothing is lost, because of two rules:
//! - `watched` is set under the commit lock. A commit looks at it after it released that lock: either it held the lock
//!   first, and the listener, who looks for appends only afterwards, sees what it appended; or it sees that there is a
//!   listener.
//! - `armed` is only exchanged, never just read. If the exchange of a commit comes before that of a listener, the
//!   listener's (Acquire) sees what the commit's (Release) published, and finds the append; if it comes after, the
//!   commit finds the bell armed, and tells the listeners.
//!
//! A bell is memory of one process; what other processes append rings it too, see `ringing`. What is needed to find new
//! appends is in the store.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::Waker;
use std::time::Duration;

use crate::checksum::checksum;
use crate::core::Core;
use crate::region::BELL_SLOTS;

/// Rung by every commit that appends to a sequence, or ends it.
#[derive(Debug)]
pub struct Bell {
    name: String,
    /// Where those who append count for other processes.
    pub(crate) slot: usize,
    /// Every ring counts in the shared region, also when no process listens; see `Store::rings`.
    pub(crate) is_counted: bool,
    /// How many listeners there are. Changed under the commit lock.
    watched: AtomicU32,
    /// 1: a listener may be about to sleep.
    armed: AtomicU32,
    listeners: Mutex<Vec<(u64, Weak<Listener>)>>,
}

impl Bell {
    fn new(name: &str, slot: usize, is_counted: bool) -> Bell {
        Bell {
            name: name.into(),
            slot,
            is_counted,
            watched: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            listeners: Mutex::default(),
        }
    }

    /// Name of what it belongs to, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// To be called before one looks whether there is something new, and then sleeps: the next append is told.
    pub fn arm(&self) {
        self.armed.swap(1, Ordering::AcqRel);
    }

    /// Called by every commit that appended, after it became visible and released the commit lock.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.watched.load(Ordering::Relaxed) != 0 && self.armed.swap(0, Ordering::AcqRel) != 0 {
            self.tell();
        }
    }

    /// Tells all listeners to look, whether or not there was a commit.
    #[cold]
    pub fn tell(&self) {
        let mut told = Vec::new();
        for (token, listener) in locked(&self.listeners).iter() {
            told.extend(listener.upgrade().map(|listener| (*token, listener)));
        }
        // Outside the lock: a waker may do anything, and the last handle of a listener may be dropped here.
        told.iter().for_each(|(token, listener)| listener.tell(*token));
    }

    /// Adds a listener. The caller has the commit lock.
    pub(crate) fn add(&self, listener: &Arc<Listener>, token: u64) {
        let mut listeners = locked(&self.listeners);
        listeners.push((token, Arc::downgrade(listener)));
        self.watched.store(listeners.len() as u32, Ordering::Relaxed);
        drop(listeners);
        self.arm();
    }

    /// Ends what `Store::listen` began.
    pub fn forget(&self, listener: &Arc<Listener>) {
        let mut listeners = locked(&self.listeners);
        listeners.retain(|(_, known)| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(listener)));
        self.watched.store(listeners.len() as u32, Ordering::Relaxed);
    }
}

/// Sleeps until one of its bells rings. One thread, or one task, waits at a listener.
#[derive(Default)]
pub struct Listener {
    state: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    /// Of the bells that rang since the last look, each once.
    tokens: Vec<u64>,
    /// All of `tokens`, once they are more than [`TOKENS_SEARCHED`]; empty until then.
    known: HashSet<u64>,
    is_asleep: bool,
    waker: Option<Waker>,
}

/// Up to so many tokens a walk through them costs less than a hash.
const TOKENS_SEARCHED: usize = 8;

impl Rung {
    /// Adds a token, unless it is there: a listener that does not look must not grow with every ring.
    fn add(&mut self, token: u64) {
        let Rung { tokens, known, .. } = self;
        let is_known = match tokens.len() {
            0..=TOKENS_SEARCHED => tokens.contains(&token),
            _ if tokens.last() == Some(&token) => true,
            _ => {
                if known.is_empty() {
                    known.extend(tokens.iter());
                }
                !known.insert(token)
            }
        };
        if !is_known {
            tokens.push(token);
        }
    }

    fn take(&mut self) -> Vec<u64> {
        if !self.known.is_empty() {
            self.known = HashSet::new();
        }
        std::mem::take(&mut self.tokens)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// How often a listener looks again before it sleeps: waking a sleeping thread costs it and the commit far more.
const SPINS: u32 = 200;

impl Listener {
    /// A listener without bells.
    pub fn new() -> Arc<Listener> {
        Arc::default()
    }

    /// Gives it a token, as a bell does.
    pub fn tell(&self, token: u64) {
        let mut rung = locked(&self.state);
        rung.add(token);
        let waker = rung.waker.take();
        let is_asleep = std::mem::take(&mut rung.is_asleep);
        drop(rung);
        if is_asleep {
            self.changed.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The tokens of the bells that rang since the last call, after at most `timeout`; none: the time is over.
    pub fn wait(&self, timeout: Duration) -> Vec<u64> {
        for _ in 0..SPINS {
            let tokens = self.take();
            if !tokens.is_empty() || timeout.is_zero() {
                return tokens;
            }
            std::hint::spin_loop();
        }
        let mut rung = locked(&self.state);
        rung.is_asleep = true;
        let is_quiet = |rung: &mut Rung| rung.tokens.is_empty();
        let slept = self.changed.wait_timeout_while(rung, timeout, is_quiet);
        let (mut rung, _) = slept.unwrap_or_else(|e| e.into_inner());
        rung.is_asleep = false;
        rung.take()
    }

    /// Takes new rings for a task. When there are none, keeps its waker, and wakes it at the next ring.
    pub fn poll(&self, waker: &Waker) -> Vec<u64> {
        let mut rung = locked(&self.state);
        if rung.tokens.is_empty() {
            rung.waker = Some(waker.clone());
        }
        rung.take()
    }

    fn take(&self) -> Vec<u64> {
        locked(&self.state).take()
    }
}

/// The bells that have handles in this process, by the key of the counter.
type Known = HashMap<Vec<u8>, Weak<Bell>>;

/// All of them, apart by where their sequences are counted for.
#[derive(Debug)]
pub(crate) struct Bells {
    slots: Box<[Mutex<Known>]>,
}

impl Default for Bells {
    fn default() -> Bells {
        Bells {
            slots: (0..BELL_SLOTS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Bells {
    /// The bell of a sequence. Counted bells have the last slot, so that no other sequence counts there.
    pub(crate) fn bell(&self, counter: &[u8], name: &str, is_counted: bool) -> Arc<Bell> {
        // The same in all processes.
        let slot = match is_counted {
            true => BELL_SLOTS - 1,
            false => checksum(counter) as usize % (BELL_SLOTS - 1),
        };
        let mut known = locked(&self.slots[slot]);
        if let Some(bell) = known.get(counter).and_then(Weak::upgrade) {
            return bell;
        }
        if known.len() == known.capacity() {
            known.retain(|_, bell| bell.strong_count() > 0);
        }
        let bell = Arc::new(Bell::new(name, slot, is_counted));
        known.insert(counter.to_vec(), Arc::downgrade(&bell));
        bell
    }

    /// Rings those of a slot.
    pub(crate) fn ring(&self, slot: usize) {
        let known: Vec<Arc<Bell>> = locked(&self.slots[slot]).values().filter_map(Weak::upgrade).collect();
        // Outside the lock: a waker may do anything.
        known.iter().for_each(|bell| bell.ring());
    }

    /// Whether anybody listens to any of them.
    pub(crate) fn has_listeners(&self) -> bool {
        let is_watched = |bell: &Weak<Bell>| {
            let bell = bell.upgrade();
            bell.is_some_and(|bell| bell.watched.load(Ordering::Relaxed) != 0)
        };
        self.slots.iter().any(|known| locked(known).values().any(is_watched))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Core {
    /// Called by every commit that appended, after those who listen in this process were told.
    #[inline]
    pub(crate) fn ring_elsewhere(&self, bell: &Bell) {
        let bells = self.region.bells();
        if bell.is_counted || bells.is_heard_by_others(self.region.me()) {
            bells.ring(bell.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bells_that_nobody_holds_are_forgotten() {
        let bells = Bells::default();
        let held = bells.bell(b"held", "held", false);
        for number in 0..10_000u32 {
            bells.bell(&number.to_be_bytes(), "dropped", false);
        }
        let known = bells.slots.iter().map(|known| locked(known).len());
        assert!(known.sum::<usize>() < 10 * BELL_SLOTS);
        assert!(Arc::ptr_eq(&held, &bells.bell(b"held", "held", false)));
    }

    #[test]
    fn a_listener_that_does_not_look_keeps_each_token_once() {
        for bells in [1, 2, TOKENS_SEARCHED as u64, 10, 1_000] {
            let listener = Listener::new();
            for _ in 0..3 {
                (0..10_000).for_each(|ring| listener.tell(ring % bells));
                let rung = locked(&listener.state);
                assert!(rung.tokens.len() as u64 <= bells && rung.known.len() as u64 <= bells);
                drop(rung);
            }
            let mut tokens = listener.wait(Duration::ZERO);
            tokens.sort_unstable();
            assert_eq!(tokens, (0..bells).collect::<Vec<_>>());
            listener.tell(3);
            assert_eq!(listener.wait(Duration::ZERO), [3]);
        }
    }

    #[test]
    fn a_bell_that_is_not_armed_is_silent() {
        let bell = Bell::new("bell", 0, false);
        let listener = Listener::new();
        bell.add(&listener, 7);
        bell.armed.store(0, Ordering::Relaxed);
        bell.ring();
        assert_eq!(listener.wait(Duration::ZERO), [0; 0]);
        bell.arm();
        (0..3).for_each(|_| bell.ring());
        assert_eq!(listener.wait(Duration::ZERO), [7]);
        bell.forget(&listener);
        bell.arm();
        bell.ring();
        assert_eq!(listener.wait(Duration::ZERO), [0; 0]);
    }
}
