//! Keeps a store's locks out of forked children.
//!
//! A lock of an open file description lasts as long as any descriptor of it. A forked child has copies of all
//! descriptors. It would keep the locks of a dead parent, and no process would ever notice the death. So every
//! descriptor with locks is registered here. Right after a fork the child replaces each of them with a descriptor that
//! leads nowhere. The child also counts the fork: handles that were created before the fork then know that the child
//! must not use them.
//!
//! `unsafe` registers the function that the C library calls in the child. Between `fork` and `exec` a child may only
//! make calls that are safe in a signal handler. `dup3` is such a call; taking a lock or allocating memory is not. So
//! the registry is an array of atomic numbers.

use std::ops::Deref;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

/// Maximum descriptors with locks in a process: one for each open store, and a few short-lived descriptors.
const KEPT_MAX: usize = 4096;
const NONE: i32 = -1;

static KEPT: [AtomicI32; KEPT_MAX] = [const { AtomicI32::new(NONE) }; KEPT_MAX];
/// A descriptor that leads nowhere.
static NOWHERE: AtomicI32 = AtomicI32::new(NONE);
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Set while a thread opens a descriptor with locks, or forks.
static CHANGING: AtomicBool = AtomicBool::new(false);

/// Number of forks between the first process and this process, as far as the C library performed them. A handle that
/// finds the number changed since it was opened is in a child.
#[inline]
pub fn forks() -> u32 {
    // Relaxed: it changes in the only thread of a child, before that thread runs anything else.
    FORKS.load(Ordering::Relaxed)
}

/// A descriptor that no forked child keeps.
#[derive(Debug)]
pub(crate) struct Kept {
    descriptor: OwnedFd,
    place: usize,
}

impl Deref for Kept {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.descriptor
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Before the descriptor is closed: its number may belong to another file right after that.
        KEPT[self.place].store(NONE, Ordering::SeqCst);
    }
}

/// Opens and registers a descriptor that will hold locks. No fork happens in between, which would leave the child a
/// copy.
pub(crate) fn keep_from_children<E: From<Errno>>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Kept, E> {
    watch_for_forks()?;
    begin_change();
    let kept = open().and_then(|descriptor| register(descriptor).map_err(E::from));
    end_change();
    kept
}

fn register(descriptor: OwnedFd) -> Result<Kept, Errno> {
    let number = descriptor.as_raw_fd();
    let is_mine = |place: &AtomicI32| {
        place
            .compare_exchange(NONE, number, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    };
    match KEPT.iter().position(is_mine) {
        Some(place) => Ok(Kept { descriptor, place }),
        None => Err(Errno::MFILE),
    }
}

/// Waits until no thread forks and no other thread opens a descriptor with locks. Both take microseconds.
extern "C" fn begin_change() {
    while CHANGING.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

extern "C" fn end_change() {
    CHANGING.store(false, Ordering::Release);
}

/// Makes the C library call [`in_child`] in children of this process. After a failure the next call tries again: a
/// process that is short of descriptors may have some later.
fn watch_for_forks() -> Result<(), Errno> {
    static WATCHES: AtomicBool = AtomicBool::new(false);
    static BEGINNING: Mutex<()> = Mutex::new(());
    // Acquire: pairs with the Release below.
    if WATCHES.load(Ordering::Acquire) {
        return Ok(());
    }
    // The functions must be registered once: a second `begin_change` before one fork would wait for the first.
    let _beginning = BEGINNING.lock().unwrap_or_else(PoisonError::into_inner);
    if WATCHES.load(Ordering::Acquire) {
        return Ok(());
    }
    if NOWHERE.load(Ordering::SeqCst) == NONE {
        // Reads from a pipe whose write end is closed return nothing.
        let (nowhere, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        NOWHERE.store(nowhere.into_raw_fd(), Ordering::SeqCst);
    }
    // SAFETY: the functions exist for as long as the program runs, and may be called around a fork.
    match unsafe { libc::pthread_atfork(Some(begin_change), Some(end_change), Some(in_child)) } {
        0 => {
            // Release: pairs with the Acquire above.
            WATCHES.store(true, Ordering::Release);
            Ok(())
        }
        error => Err(Errno::from_raw_os_error(error)),
    }
}

/// Called in a child before `fork` returns there.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let nowhere = NOWHERE.load(Ordering::Relaxed);
    for place in &KEPT {
        let number = place.load(Ordering::Relaxed);
        if number != NONE {
            // SAFETY: numbers of descriptors; the child has no other thread that could use them at this moment. If
            // `dup3` failed, the child would keep the lock, like a child of any program without this protection.
            unsafe { libc::dup3(nowhere, number, libc::O_CLOEXEC) };
        }
    }
    end_change();
}
