//! Sleeping until a word in memory changes, and a lock made of one such word.
//!
//! The words may lie in memory that several processes map, so the kernel's shared futex calls are used, not the
//! private ones: the kernel then finds sleepers by file and offset instead of by address.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

/// Sleeps while `word` is `expected`, until somebody calls [`wake`] on it. False: `timeout` passed first. True says
/// only that it is time to look at the word again: it may have been different from the start, or nothing may have
/// happened (a signal).
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    // A timeout that the kernel cannot count is as good as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()) {
        Err(Errno::TIMEDOUT) => false,
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => true,
        Err(error) => panic!("futex wait on a mapped word failed: {error}"),
    }
}

/// Wakes up to `count` threads, of any process, that sleep in [`wait`] on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    // The kernel takes a signed number and would wake a single thread for a negative one.
    let count = count.min(i32::MAX as u32);
    if count > 0 {
        futex::wake(word, futex::Flags::empty(), count).expect("futex wake on a mapped word failed");
    }
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_WITH_WAITERS: u32 = 2;

/// How often `lock` looks at a held lock before it sleeps: about the length of the longest section worth waiting out,
/// and far less than the 30 microseconds that waking a sleeping thread costs.
const SPINS: u32 = 100;

/// A mutex in one word, which may lie in memory shared by processes: all zeros is a free lock. The holder's death
/// does not free it.
///
/// The word is 0 (free), 1 (held) or 2 (held, and somebody may sleep), as in Drepper's "Futexes are tricky": a holder
/// needs the kernel to unlock only in the third state.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct WordLock {
    word: AtomicU32,
}

impl WordLock {
    /// A free lock.
    pub const fn new() -> WordLock {
        WordLock {
            word: AtomicU32::new(FREE),
        }
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> WordLockGuard<'_> {
        if self.try_take().is_err() {
            self.lock_contended();
        }
        WordLockGuard { lock: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<WordLockGuard<'_>> {
        self.try_take().ok().map(|_| WordLockGuard { lock: self })
    }

    /// Frees a lock whose guard was forgotten, or whose holder is known to be dead. Whoever calls this answers for
    /// nobody being inside the section. Returns whether somebody slept to get it.
    pub fn unlock(&self) -> bool {
        // Release pairs with the Acquire of the next holder.
        let before = self.word.swap(FREE, Ordering::Release);
        debug_assert_ne!(before, FREE, "a free lock was unlocked");
        let has_waiters = before == HELD_WITH_WAITERS;
        if has_waiters {
            wake(&self.word, 1);
        }
        has_waiters
    }

    #[inline]
    fn try_take(&self) -> Result<u32, u32> {
        // Acquire pairs with the Release of `unlock`.
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..SPINS {
            // Relaxed: only a hint; the exchange below orders.
            if self.word.load(Ordering::Relaxed) == FREE && self.try_take().is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        // Taking it in state 2 although nobody else may sleep costs one needless wake; taking it in state 1 while
        // somebody sleeps would leave that thread asleep for ever.
        while self.word.swap(HELD_WITH_WAITERS, Ordering::Acquire) != FREE {
            wait(&self.word, HELD_WITH_WAITERS, None);
        }
    }
}

/// Holds a [`WordLock`]; dropping it unlocks.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct WordLockGuard<'a> {
    lock: &'a WordLock,
}

impl WordLockGuard<'_> {
    /// Frees the lock, as dropping the guard does. Returns whether somebody slept to get it; true may be said too often.
    pub fn release(self) -> bool {
        ManuallyDrop::new(self).lock.unlock()
    }
}

impl Drop for WordLockGuard<'_> {
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;

    #[test]
    fn wait_returns_at_once_when_the_word_differs() {
        let started = Instant::now();
        assert!(wait(&AtomicU32::new(1), 0, Some(Duration::from_secs(60))));
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn wait_ends_after_its_timeout() {
        let started = Instant::now();
        let word = AtomicU32::new(5);
        while wait(&word, 5, Some(Duration::from_millis(20))) {}
        assert!(started.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn wake_of_everybody_wakes_everybody() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while word.load(Ordering::Acquire) == 0 {
                        assert!(wait(&word, 0, Some(Duration::from_secs(30))), "nobody woke us");
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            word.store(1, Ordering::Release);
            wake(&word, u32::MAX);
        });
    }

    struct Counted {
        lock: WordLock,
        count: UnsafeCell<u64>,
    }

    // SAFETY: the count is only touched while the lock is held.
    unsafe impl Sync for Counted {}

    #[test]
    fn word_lock_lets_one_thread_in_at_a_time() {
        let counted = Counted {
            lock: WordLock::new(),
            count: UnsafeCell::new(0),
        };
        let (threads, rounds) = (8, 20_000);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let counted = &counted;
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let _guard = counted.lock.lock();
                        // SAFETY: the lock is held.
                        unsafe { *counted.count.get() += 1 };
                    }
                });
            }
        });
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *counted.count.get() }, threads * rounds);
        assert!(counted.lock.try_lock().is_some());
    }

    #[test]
    fn long_held_word_lock_puts_others_to_sleep_and_wakes_them() {
        let lock = WordLock::new();
        let released = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let guard = lock.lock();
            assert!(lock.try_lock().is_none());
            for _ in 0..3 {
                scope.spawn(|| {
                    let _guard = lock.lock();
                    assert!(released.load(Ordering::Relaxed));
                });
            }
            std::thread::sleep(Duration::from_millis(30));
            released.store(true, Ordering::Relaxed);
            drop(guard);
        });
    }

    #[test]
    fn word_lock_is_one_word_of_zeros() {
        assert_eq!(size_of::<WordLock>(), 4);
        assert_eq!(WordLock::default().word.load(Ordering::Relaxed), 0);
    }
}
