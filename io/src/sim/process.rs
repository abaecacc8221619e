//! A process that uses a simulated disk. It may be set to die in one of its calls.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::disk::{Disk, SharedDisk, locked};

/// State of one process.
#[derive(Default)]
pub(super) struct SimProcess {
    fate: Option<Mutex<Mortal>>,
    is_dead: AtomicBool,
    /// Its byte locks, which the kernel frees when it dies: the file and the holder of each.
    byte_locks: Mutex<Vec<(String, u64)>>,
}

/// The remaining life of a process that will die.
struct Mortal {
    calls: u64,
    /// Runs after the death of the process.
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
    /// A process that dies in a call after `calls` of them have succeeded.
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

    /// Makes a call, or a part of it if the process dies in it.
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

/// Blocks a thread of a dead process for good: it runs nothing more, not even destructors.
fn never_return() -> ! {
    loop {
        std::thread::park();
    }
}
