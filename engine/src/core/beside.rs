//! Commits that a thread makes beside a transaction of its own.
//!
//! A thread that has an exclusive transaction open would wait for itself if it committed in any other way. Such a
//! commit is refused at once ([`Reason::WouldWaitForItself`]). [`crate::Store::transact`] runs exclusively only after
//! ten conflicts, so the mistake would stay hidden until then: debug builds panic on every commit inside a closure of
//! `transact`, from its first run on.
//!
//! Which thread has an exclusive transaction: the thread that made the last call on it. Transactions are `Send`, and
//! the engine cannot see a move, only the next call. The number is kept per open handle of a store ([`Core`]), so a
//! commit through another handle of the same store, opened by the same process, is not recognised: it waits for
//! [`crate::Options::lock_timeout`], as other processes do.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::Core;
use crate::error::{Reason, Result};
#[cfg(debug_assertions)]
use crate::error::{cure, on_map};
use crate::map_name::is_reserved;

/// The number of no thread.
const NO_THREAD: u64 = 0;

static NEXT_THREAD: AtomicU64 = AtomicU64::new(NO_THREAD + 1);

thread_local! {
    static THIS_THREAD: Cell<u64> = const { Cell::new(NO_THREAD) };
}

/// The number of the calling thread, which no other thread of this process ever has.
fn this_thread() -> u64 {
    let numbered = THIS_THREAD.try_with(|number| {
        if number.get() == NO_THREAD {
            number.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    });
    // A thread that is ending has no number any more.
    numbered.unwrap_or(u64::MAX)
}

/// The thread of this process that has the store's exclusive transaction.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveThread(AtomicU64);

impl ExclusiveThread {
    /// The calling thread has it.
    pub(crate) fn is_here(&self) {
        // Relaxed: only a thread that reads its own number acts on it.
        self.0.store(this_thread(), Ordering::Relaxed);
    }

    /// No thread has it.
    pub(crate) fn is_over(&self) {
        self.0.store(NO_THREAD, Ordering::Relaxed);
    }

    /// Whether the calling thread has it.
    #[inline]
    pub(crate) fn is_this(&self) -> bool {
        let holder = self.0.load(Ordering::Relaxed);
        holder != NO_THREAD && holder == this_thread()
    }
}

#[cfg(debug_assertions)]
thread_local! {
    /// The stores of which this thread runs closures of `transact`, by the addresses of their cores.
    static CLOSURES: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// A closure of `transact` that the thread runs, until this is dropped.
pub(crate) struct Closure;

impl Closure {
    #[cfg_attr(
        not(debug_assertions),
        expect(unused_variables, reason = "only debug builds count closures")
    )]
    pub(crate) fn of(core: &Core) -> Closure {
        #[cfg(debug_assertions)]
        CLOSURES.with_borrow_mut(|closures| closures.push(std::ptr::from_ref(core).addr()));
        Closure
    }
}

impl Drop for Closure {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        let _ = CLOSURES.try_with(|closures| closures.borrow_mut().pop());
    }
}

impl Core {
    /// Refuses a commit for which the calling thread would wait for its own exclusive transaction. `call` and `map`
    /// name it.
    ///
    /// # Errors
    /// [`Reason::WouldWaitForItself`].
    ///
    /// # Panics
    /// In debug builds, when the calling thread runs a closure of `transact` of this store.
    #[inline]
    pub(crate) fn refuse_beside(&self, call: &'static str, map: impl FnOnce() -> String) -> Result<()> {
        if self.exclusive_thread.is_this() {
            let map = named(map());
            return Err(Reason::WouldWaitForItself { call, map }.into());
        }
        #[cfg(debug_assertions)]
        self.assert_outside_of_closures(call, map);
        Ok(())
    }

    /// Whether a commit of the calling thread would be refused, or would panic.
    pub(crate) fn is_beside(&self) -> bool {
        #[cfg(debug_assertions)]
        {
            let me = std::ptr::from_ref(self).addr();
            if CLOSURES.try_with(|closures| closures.borrow().contains(&me)) == Ok(true) {
                return true;
            }
        }
        self.exclusive_thread.is_this()
    }

    #[cfg(debug_assertions)]
    fn assert_outside_of_closures(&self, call: &'static str, map: impl FnOnce() -> String) {
        let me = std::ptr::from_ref(self).addr();
        // A thread that is ending runs none.
        let is_inside = CLOSURES.try_with(|closures| closures.borrow().contains(&me));
        if is_inside == Ok(true) {
            let map = named(map());
            panic!(
                "`{call}`{} makes a commit of its own inside a closure of `transact`: it is no part of the transaction, \
                 and would wait for itself once the closure runs exclusively; use {} inside the closure, or make the call \
                 before or after `transact` (this check is in debug builds only)",
                on_map(&map),
                cure(call)
            );
        }
    }
}

/// The name of a map, or words for a map that users do not know.
fn named(map: String) -> String {
    match is_reserved(&map) {
        true => "(a map of topics)".to_string(),
        false => map,
    }
}
