//! Sleeping until a word in memory changes, and a lock made of a single such word.
//!
//! The words may be in memory that several processes map. So this module uses the kernel's shared futex calls, not the
//! private calls: the kernel then finds sleepers by file and offset instead of by address.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

/// Sleeps while `word` is `expected`, until a thread calls [`wake`] on it. False: `timeout` passed first. True means
/// only that the caller should check the word again. The word may have been different from the start, or a signal may
/// have ended the sleep.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    // A timeout that is too long for the kernel counts as no timeout.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()) {
        Err(Errno::TIMEDOUT) => false,
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => true,
        Err(error) => panic!("futex wait on a mapped word failed: {error}"),
    }
}

/// Wakes up to `count` threads, of any process, that sleep in [`wait`] on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    // The kernel takes a signed number and would wake a single thread for a negative number.
    let count = count.min(i32::MAX as u32);
    if count > 0 {
        futex::wake(word, futex::Flags::empty(), count).expect("futex wake on a mapped word failed");
    }
}

const FREE: u32 = 0;
/// A thread may sleep until the lock is free. The other bits name the holder.
const WAITERS: u32 = 1 << 31;

/// How often `lock` checks a held lock before it sleeps. This takes about as long as the longest section worth waiting
/// out, and far less than the 30 microseconds that waking a sleeping thread costs.
const SPINS: u32 = 100;

/// How often a waiter checks the holder of a lock. If a woken thread dies before it takes the lock, the other waiters
/// sleep for up to this long.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The owner of a [`WordLock`]: a number that identifies a process among those that share the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// The owner with this number, which is below 2^16.
    pub fn new(number: u16) -> Owner {
        Owner(u32::from(number) + 1)
    }

    /// The number of this owner.
    pub fn number(self) -> u16 {
        (self.0 - 1) as u16
    }
}

/// A mutex in a single word, which may be in memory shared by processes: all zeros is a free lock. The holder's death
/// does not free the lock. But the word names the holder, so that other processes can detect the death and
/// [`WordLock::take_over`].
///
/// The word is zero (free) or the holder's number, plus a bit that says whether a thread may sleep, as in Drepper's
/// "Futexes are tricky". A holder needs the kernel to unlock only if that bit is set.
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
    #[inline]
    pub fn lock(&self, owner: Owner) -> WordLockGuard<'_> {
        if self.try_take(owner.0).is_err() {
            self.lock_contended(owner, &mut |_| None::<()>);
        }
        WordLockGuard { lock: self }
    }

    /// Waits for the lock and takes it, unless `look` returns an error first. While another owner holds the lock,
    /// `look` is called every [`LOOK_INTERVAL`] with that owner. What it returns is the error. `look` may also take the
    /// lock over; the caller then waits for no other owner.
    #[inline]
    pub fn lock_unless<E>(
        &self,
        owner: Owner,
        mut look: impl FnMut(Owner) -> Option<E>,
    ) -> Result<WordLockGuard<'_>, E> {
        if self.try_take(owner.0).is_err()
            && let Some(error) = self.lock_contended(owner, &mut look)
        {
            return Err(error);
        }
        Ok(WordLockGuard { lock: self })
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self, owner: Owner) -> Option<WordLockGuard<'_>> {
        self.try_take(owner.0).ok().map(|_| WordLockGuard { lock: self })
    }

    /// The owner that holds the lock.
    pub fn holder(&self) -> Option<Owner> {
        match self.word.load(Ordering::Acquire) & !WAITERS {
            FREE => None,
            number => Some(Owner(number)),
        }
    }

    /// Takes the lock from the dead owner `dead`, if `dead` still holds it. The caller guarantees:
    ///
    /// - the process with that number is dead;
    /// - no process with that number starts before this returns;
    /// - the caller repairs what the lock guards.
    pub fn take_over(&self, dead: Owner, owner: Owner) -> Option<WordLockGuard<'_>> {
        let take = |word: u32| (word & !WAITERS == dead.0).then_some(owner.0 | WAITERS);
        // Acquire: the dead owner's stores precede the kernel's report of its death anyway.
        let taken = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take);
        taken.ok().map(|_| WordLockGuard { lock: self })
    }

    /// Frees a lock whose guard was forgotten. The caller guarantees that no thread is inside the section. Returns
    /// whether a thread slept to get the lock.
    pub fn unlock(&self) -> bool {
        // Release pairs with the Acquire of the next holder.
        let before = self.word.swap(FREE, Ordering::Release);
        debug_assert_ne!(before, FREE, "a free lock was unlocked");
        let has_waiters = before & WAITERS != 0;
        if has_waiters {
            wake(&self.word, 1);
        }
        has_waiters
    }

    #[inline]
    fn try_take(&self, word: u32) -> Result<u32, u32> {
        // Acquire pairs with the Release of `unlock`.
        self.word
            .compare_exchange(FREE, word, Ordering::Acquire, Ordering::Relaxed)
    }

    #[cold]
    fn lock_contended<E>(&self, owner: Owner, look: &mut dyn FnMut(Owner) -> Option<E>) -> Option<E> {
        for _ in 0..SPINS {
            // Relaxed: only a hint; the exchange below orders.
            if self.word.load(Ordering::Relaxed) == FREE && self.try_take(owner.0).is_ok() {
                return None;
            }
            std::hint::spin_loop();
        }
        loop {
            // Setting the bit while no other thread sleeps costs one needless wake. Leaving it clear while a thread
            // sleeps would leave that thread asleep.
            let found = match self.try_take(owner.0 | WAITERS) {
                Ok(_) => return None,
                Err(found) => found,
            };
            let marked = found | WAITERS;
            let is_marked = found == marked
                || self
                    .word
                    .compare_exchange(found, marked, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            if is_marked && !wait(&self.word, marked, Some(LOOK_INTERVAL)) {
                let error = look(Owner(found & !WAITERS));
                if error.is_some() {
                    return error;
                }
            }
        }
    }
}

/// Holds a [`WordLock`]; dropping it unlocks.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct WordLockGuard<'a> {
    lock: &'a WordLock,
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

    const ME: Owner = Owner(1);

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
                        assert!(wait(&word, 0, Some(Duration::from_secs(30))), "no call woke us");
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
                        let _guard = counted.lock.lock(ME);
                        // SAFETY: the lock is held.
                        unsafe { *counted.count.get() += 1 };
                    }
                });
            }
        });
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *counted.count.get() }, threads * rounds);
        assert!(counted.lock.try_lock(ME).is_some());
    }

    #[test]
    fn long_held_word_lock_puts_others_to_sleep_and_wakes_them() {
        let lock = WordLock::new();
        let released = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let guard = lock.lock(ME);
            assert!(lock.try_lock(ME).is_none());
            for _ in 0..3 {
                scope.spawn(|| {
                    let _guard = lock.lock(ME);
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

    #[test]
    fn lock_of_a_dead_owner_is_taken_over_once_and_by_name() {
        let lock = WordLock::new();
        let (dead, other) = (Owner::new(7), Owner::new(8));
        assert_eq!(lock.holder(), None);
        std::mem::forget(lock.lock(dead));
        assert_eq!(lock.holder().map(Owner::number), Some(7));
        assert!(lock.take_over(other, ME).is_none(), "it is not his");
        let guard = lock.take_over(dead, ME).expect("it is his");
        assert!(lock.take_over(dead, other).is_none(), "it is no longer his");
        assert_eq!(lock.holder(), Some(ME));
        drop(guard);
        assert_eq!(lock.holder(), None);
    }

    #[test]
    fn waiter_looks_who_holds_the_lock_and_may_give_up_or_go_on() {
        let lock = WordLock::new();
        let dead = Owner::new(7);
        std::mem::forget(lock.lock(dead));
        assert_eq!(lock.lock_unless(ME, Some).err(), Some(dead));
        let guard = lock.lock_unless(ME, |holder| {
            assert_eq!(holder, dead);
            drop(lock.take_over(dead, ME));
            None::<()>
        });
        assert!(guard.is_ok());
    }
}
