//! What rings in all processes: who listens, what was appended, and a word to sleep on. How it is used is in `ringing`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use duramen_io::{Owner, wait, wake};

use super::Line;
use crate::limits::PROCESSES_MAX;

/// Counters of appends: sequences share them.
pub(crate) const BELL_SLOTS: usize = 256;
/// What rings in all processes, in the shared region. All zeros: there are no listeners.
#[repr(C)]
pub(crate) struct SharedBells {
    /// A bit for each process that has listeners.
    listening: Line<[AtomicU64; PROCESSES_MAX / 64]>,
    /// 1: a ringer may be about to sleep.
    armed: Line<AtomicU32>,
    /// Ringers sleep on it.
    word: AtomicU32,
    /// Commits that appended while another process listened, by counter. The last counter counts all of its commits.
    counts: [AtomicU32; BELL_SLOTS],
}

impl SharedBells {
    fn bit(&self, owner: Owner) -> (&AtomicU64, u64) {
        let number = usize::from(owner.number());
        (&self.listening.0[number / 64], 1 << (number % 64))
    }

    /// Whether anybody but this process listens.
    #[inline]
    pub(crate) fn is_heard_by_others(&self, me: Owner) -> bool {
        let number = usize::from(me.number());
        let heard = |(word, bits): (usize, &AtomicU64)| {
            let mine = if word == number / 64 { 1 << (number % 64) } else { 0 };
            bits.load(Ordering::Relaxed) & !mine != 0
        };
        self.listening.0.iter().enumerate().any(heard)
    }

    /// Counts an append, and wakes the ringers that sleep.
    #[cold]
    pub(crate) fn ring(&self, slot: usize) {
        self.counts[slot].fetch_add(1, Ordering::Release);
        if self.armed.0.swap(0, Ordering::AcqRel) != 0 {
            self.wake();
        }
    }

    /// Arms, for a ringer. Returns the value to sleep on.
    pub(crate) fn arm(&self) -> u32 {
        let word = self.word.load(Ordering::Acquire);
        self.armed.0.swap(1, Ordering::AcqRel);
        word
    }

    /// Sleeps until a ring after it was armed. `false`: there was none within the time.
    pub(crate) fn wait(&self, word: u32, timeout: Duration) -> bool {
        wait(&self.word, word, Some(timeout))
    }

    /// Appends that were counted for a slot.
    pub(crate) fn count(&self, slot: usize) -> u32 {
        self.counts[slot].load(Ordering::Acquire)
    }

    /// A process has listeners. It has the commit lock.
    pub(crate) fn begin_to_hear(&self, owner: Owner) {
        let (bits, bit) = self.bit(owner);
        bits.fetch_or(bit, Ordering::AcqRel);
    }

    /// It has none any more. It has the commit lock, or is dead.
    pub(crate) fn stop_hearing(&self, owner: Owner) {
        let (bits, bit) = self.bit(owner);
        bits.fetch_and(!bit, Ordering::AcqRel);
    }

    /// Has all ringers look.
    pub(crate) fn wake(&self) {
        self.word.fetch_add(1, Ordering::AcqRel);
        wake(&self.word, u32::MAX);
    }

    /// A process is dead, or leaves: it hears nothing more. What it may have had to tell is told.
    pub(crate) fn forget(&self, owner: Owner) {
        self.stop_hearing(owner);
        for count in &self.counts {
            count.fetch_add(1, Ordering::Release);
        }
        self.wake();
    }
}
