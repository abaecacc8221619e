//! Which processes share a store, and which of them are alive.
//!
//! Each has an entry in a table of the shared region and, for as long as it lives, a lock on its own byte of the file
//! `lock`. The kernel frees that lock when the process dies and at no other time, in whatever container it runs: that
//! is how the others tell the dead from those that are only stopped. Process ids are for messages; they are reused, and
//! mean different things in different containers.
//!
//! ```text
//! byte 0       the gate: held while a process opens the store, or closes it as the last one
//! byte 1       held while a process takes something over from a dead process
//! byte 64 + n  held by the process of entry n
//! ```
//!
//! A lock on all bytes, which is how a process has a store to itself and how read-only processes keep writers out of a
//! store that no other process has open, excludes all of these.
//!
//! Invariants: who is attached by its entry and has no lock on its byte is dead. An entry of a dead process is given to
//! another one only when no word of the region names it any more; words change from naming a dead process only under
//! byte 1.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use duramen_io::{ByteLocks, Owner, Platform};

use crate::datafile::promises::SharedCosts;
use crate::error::{Error, Result};
use crate::limits::PROCESSES_MAX;

/// Locked by every process that has the store open; contains the PID of the last writer.
pub(crate) const LOCK_FILE: &str = "lock";

const GATE_BYTE: u64 = 0;
const BURIAL_BYTE: u64 = 1;
const FIRST_BYTE: u64 = 64;
/// No process has this byte: it is taken when all are.
const PROBED_BYTE: u64 = 1 << 40;

/// How long a process waits while another process opens the store: replaying the longest log takes seconds.
const GATE_WAIT: Duration = Duration::from_secs(60);
const GATE_STEP: Duration = Duration::from_millis(5);

/// One process of the table, in the shared region. All zeros: the entry is free.
#[repr(C, align(128))]
pub(crate) struct ProcessEntry {
    /// Nonzero from when its byte is locked until right before it is released.
    attached: AtomicU32,
    /// Its id, as it sees it.
    pub(crate) process: AtomicU32,
    /// Time of day at which it attached, in milliseconds since 1970.
    pub(crate) since: AtomicU64,
    /// How many had attached before it: tells it from another process that has the entry later.
    pub(crate) arrival: AtomicU64,
    /// Commit streams that read generations just now.
    pub(crate) reading: AtomicU32,
    /// What its commits were promised that are not in the log yet.
    pub(crate) promised: SharedCosts,
}

/// Bytes of an entry.
pub(crate) const PROCESS_BYTES: usize = 128;
const _: () = assert!(size_of::<ProcessEntry>() == PROCESS_BYTES);

impl ProcessEntry {
    /// Release: a process that sees that the entry is taken sees whose it is.
    pub(crate) fn occupy(&self, process: u32, since: Duration, arrival: u64) {
        self.process.store(process, Ordering::Relaxed);
        self.since.store(since.as_millis() as u64, Ordering::Relaxed);
        self.arrival.store(arrival, Ordering::Relaxed);
        self.attached.store(1, Ordering::Release);
    }

    pub(crate) fn leave(&self) {
        self.attached.store(0, Ordering::Release);
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Acquire) != 0
    }

    /// The number of the process in an entry as it lies in the file; `None`: the entry is free.
    pub(crate) fn process_in(bytes: &[u8; PROCESS_BYTES]) -> Option<u32> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (attached, process) = (offset_of!(ProcessEntry, attached), offset_of!(ProcessEntry, process));
        (word(attached) != 0).then(|| word(process))
    }
}

/// This process's place among those that share a store.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) owner: Owner,
    /// `None`: no other process can have the store open, so none can die.
    locks: Option<Box<dyn ByteLocks>>,
    /// Threads of one process do not exclude each other by byte locks.
    burying: Mutex<()>,
}

/// What keeps others from taking something over from the dead.
pub(crate) struct Burial<'a> {
    locks: &'a dyn ByteLocks,
    _one: MutexGuard<'a, ()>,
}

impl Drop for Burial<'_> {
    fn drop(&mut self) {
        // What fails here fails when the process ends at the latest.
        let _ = self.locks.release(BURIAL_BYTE);
    }
}

impl Seat {
    /// The place of a process that has the store to itself.
    pub(crate) fn alone() -> Seat {
        Seat {
            owner: Owner::new(0),
            locks: None,
            burying: Mutex::new(()),
        }
    }

    /// Comes in through the gate, which is closed behind until [`Seat::open_gate`]; which entry is ours is yet to be
    /// chosen. `None`: the store is locked as a whole.
    pub(crate) fn enter(platform: &Platform, path: &str) -> Result<Option<Seat>> {
        let doing = |error| Error::io(format!("locking the store at {path}"), error);
        let locks = platform.storage.byte_locks(LOCK_FILE).map_err(doing)?;
        let mut waited = Duration::ZERO;
        while !locks.take(GATE_BYTE).map_err(doing)? {
            if waited >= GATE_WAIT || locks.is_taken(PROBED_BYTE).map_err(doing)? {
                return Ok(None);
            }
            std::thread::sleep(GATE_STEP);
            waited += GATE_STEP;
        }
        Ok(Some(Seat {
            locks: Some(locks),
            ..Seat::alone()
        }))
    }

    /// Whether a process has locked the store as a whole. If that cannot be determined, the answer is no.
    pub(crate) fn is_whole_taken(platform: &Platform) -> bool {
        let locks = platform.storage.byte_locks(LOCK_FILE);
        locks.is_ok_and(|locks| locks.is_taken(PROBED_BYTE).unwrap_or(false))
    }

    /// Lets others open the store.
    pub(crate) fn open_gate(&self) {
        if let Some(locks) = &self.locks {
            let _ = locks.release(GATE_BYTE);
        }
    }

    /// Closes the gate again, to leave. `false`: others have been opening or leaving for long, or it cannot be locked.
    pub(crate) fn close_gate(&self) -> bool {
        let Some(locks) = &self.locks else { return false };
        let mut waited = Duration::ZERO;
        loop {
            match locks.take(GATE_BYTE) {
                Ok(true) => return true,
                Ok(false) if waited < GATE_WAIT => {}
                Ok(false) | Err(_) => return false,
            }
            std::thread::sleep(GATE_STEP);
            waited += GATE_STEP;
        }
    }

    /// Whether others may share the store.
    pub(crate) fn is_shared(&self) -> bool {
        self.locks.is_some()
    }

    /// Whether another process has any entry, by its byte.
    pub(crate) fn is_anybody_else_alive(&self) -> bool {
        (0..PROCESSES_MAX as u16).any(|number| self.is_alive(Owner::new(number)))
    }

    /// Releases the byte of this process's entry.
    pub(crate) fn stand_up(&self) {
        if let Some(locks) = &self.locks {
            let _ = locks.release(FIRST_BYTE + u64::from(self.owner.number()));
        }
    }

    /// Takes the byte of an entry, which is ours from then on. `false`: another process has it.
    pub(crate) fn sit(&mut self, number: u16) -> Result<bool> {
        let Some(locks) = &self.locks else { return Ok(true) };
        let taken = locks.take(FIRST_BYTE + u64::from(number));
        let taken = taken.map_err(|error| Error::io("locking a place among the processes", error))?;
        if taken {
            self.owner = Owner::new(number);
        }
        Ok(taken)
    }

    /// Whether another process has the byte of an entry. If that cannot be determined, the process counts as alive.
    pub(crate) fn is_alive(&self, owner: Owner) -> bool {
        let byte = FIRST_BYTE + u64::from(owner.number());
        let locks = self.locks.as_ref();
        locks.is_some_and(|locks| locks.is_taken(byte).unwrap_or(true))
    }

    /// Keeps other processes from taking things over from dead processes. `None`: another process is doing so.
    pub(crate) fn bury(&self) -> Option<Burial<'_>> {
        let locks = self.locks.as_deref()?;
        let one = self.burying.lock().unwrap_or_else(|e| e.into_inner());
        locks.take(BURIAL_BYTE).ok()?.then_some(Burial { locks, _one: one })
    }
}
