//! A process among those that use a simulated disk: one that dies in one of its calls, or one that does not.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::disk::Disk;
use super::platform::{SharedDisk, locked};

/// One process.
#[derive(Default)]
pub(super) struct SimProcess {
    fate: Option<Mutex<Mortal>>,
    is_dead: AtomicBool,
    /// Its byte locks, which the kernel frees when it dies: of which file, and as which holder.
    byte_locks: Mutex<Vec<(String, u64)>>,
}

/// What is left of a life.
struct Mortal {
    calls: u64,
    /// What happens when it is dead.
    afterwards: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for SimProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut process = f.debug_struct("SimProcess");
        process.field("is_mortal", &self.fate.is_some());
        process.field("is_dead", &self.is_dead).finish_non_exhaustive()
    }
}

impl SimProcess {
    /// One that dies in the call after so many.
    pub(super) fn mortal(calls: u64, afterwards: Box<dyn FnOnce() + Send>) -> SimProcess {
        let afterwards = Some(afterwards);
        SimProcess {
            fate: Some(Mutex::new(Mortal { calls, afterwards })),
            ..SimProcess::default()
        }
    }

    pub(super) fn has_byte_locks(&self, file: &str, holder: u64) {
        let mut locks = self.byte_locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.push((file.to_owned(), holder));
    }

    /// Does a call; or a part of it, when it is the last one.
    pub(super) fn call<T>(&self, disk: &SharedDisk, call: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let Some(fate) = &self.fate else {
            return call(&mut locked(disk));
        };
        if self.is_dead.load(Ordering::Acquire) {
            never_return();
        }
        let mut mortal = fate.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = locked(disk);
        held.plan.caller_lives = Some(mortal.calls);
        let result = call(&mut held);
        match held.plan.caller_lives.take() {
            Some(left) => {
                mortal.calls = left;
                return result;
            }
            None => self.is_dead.store(true, Ordering::Release),
        }
        for (file, holder) in &*self.byte_locks.lock().unwrap_or_else(PoisonError::into_inner) {
            held.free_bytes(file, *holder, |_| true);
        }
        drop(held);
        let afterwards = mortal.afterwards.take();
        drop(mortal);
        afterwards.into_iter().for_each(|afterwards| afterwards());
        never_return()
    }
}

/// A thread of a dead process does nothing any more, not even put in order what it has.
fn never_return() -> ! {
    loop {
        std::thread::park();
    }
}
