//! What becomes of a store's locks when its process forks.
//!
//! A lock of an open file description lasts as long as any descriptor of it, and a forked child has copies of them all: it
//! would keep the locks of a parent that died, and nobody would ever notice the death. So every descriptor with locks is
//! registered here, and right after a fork the child puts others in their place, which lead nowhere. The child also counts
//! the fork: handles that were made before it know that they are not theirs to use any more.
//!
//! `unsafe` is used to register the function that the C library calls in the child. Between `fork` and `exec` a child may
//! only make calls that are safe in a signal handler: `dup3` is one, and taking a lock or memory is not, so the registry is
//! an array of atomic numbers.

use std::ops::Deref;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

/// Descriptors with locks that a process may have: one for each store that it has open, and a few for a moment.
const KEPT_MAX: usize = 4096;
const NONE: i32 = -1;

static KEPT: [AtomicI32; KEPT_MAX] = [const { AtomicI32::new(NONE) }; KEPT_MAX];
/// A descriptor that leads nowhere.
static NOWHERE: AtomicI32 = AtomicI32::new(NONE);
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Somebody opens a descriptor with locks, or forks.
static CHANGING: AtomicBool = AtomicBool::new(false);

/// How many forks lie between the first process and this one, as far as the C library was asked for them. Who finds it
/// changed since it opened something is in a child.
#[inline]
pub fn forks() -> u32 {
    // Relaxed: it changes in the only thread of a child, before that runs anything else.
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
        // Before it is closed: its number may be somebody else's right after that.
        KEPT[self.place].store(NONE, Ordering::SeqCst);
    }
}

/// Opens and registers a descriptor that is to have locks. No fork happens in between, which would leave the child a copy.
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

/// Waits until nobody forks and nobody else opens a descriptor with locks: both take microseconds.
extern "C" fn begin_change() {
    while CHANGING.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

extern "C" fn end_change() {
    CHANGING.store(false, Ordering::Release);
}

/// Makes the C library call [`in_child`] in children of this process. After a failure the next call tries again: a process
/// that is short of descriptors may have some later.
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
        // Nothing leads through the reading end of a pipe whose other end is closed.
        let (nowhere, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        NOWHERE.store(nowhere.into_raw_fd(), Ordering::SeqCst);
    }
    // SAFETY: the functions are there for as long as the program runs, and may be called around a fork.
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
            // SAFETY: numbers of descriptors; the child has nobody else who could use them at this moment. If it failed
            // the child would keep the lock, as every program does that does not look after this.
            unsafe { libc::dup3(nowhere, number, libc::O_CLOEXEC) };
        }
    }
    end_change();
}
