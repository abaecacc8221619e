//! Who holds those back that append, in all processes: at which place it is, and how long others wait for it. How it is
//! used is in [`crate::api::brake`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use duramen_io::{Owner, wait, wake};

use super::Line;

/// How many there can be at a time.
pub const BRAKES_MAX: usize = 255;

/// All of them, in the shared region. All zeros: there is none.
#[repr(C)]
pub(crate) struct SharedBrakes {
    /// How many entries have been anybody's, from the first one on.
    used: Line<AtomicU32>,
    entries: [SharedBrake; BRAKES_MAX],
}

/// One of them.
#[repr(C, align(64))]
pub(crate) struct SharedBrake {
    /// Zero: free. Otherwise the owner, and whether the rest is filled in.
    state: AtomicU32,
    /// Changes when those who sleep are to look.
    word: AtomicU32,
    /// 1: a thread may be about to sleep.
    armed: AtomicU32,
    timeout_millis: AtomicU32,
    /// What it is about.
    sequence: AtomicU64,
    /// It is done with everything before this.
    position: AtomicU64,
    /// How far others may be ahead.
    max: AtomicU64,
    /// When its holder set the position, in microseconds of the shared clock.
    moved: AtomicU64,
}

const FILLED_IN: u32 = 1;

fn claimed_by(owner: Owner) -> u32 {
    (u32::from(owner.number()) + 1) << 1
}

impl SharedBrakes {
    /// Takes an entry. `None`: all are taken.
    pub(crate) fn take(
        &self,
        owner: Owner,
        sequence: u64,
        position: u64,
        max: u64,
        (timeout, now): (Duration, u64),
    ) -> Option<usize> {
        let claim = |entry: &SharedBrake| {
            let claimed = claimed_by(owner);
            let claim = entry
                .state
                .compare_exchange(0, claimed, Ordering::AcqRel, Ordering::Relaxed);
            claim.is_ok()
        };
        let number = self.entries.iter().position(claim)?;
        let entry = &self.entries[number];
        entry.sequence.store(sequence, Ordering::Relaxed);
        entry.position.store(position, Ordering::Relaxed);
        entry.max.store(max, Ordering::Relaxed);
        entry.moved.store(now, Ordering::Relaxed);
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        entry.timeout_millis.store(millis, Ordering::Relaxed);
        // Release: a thread that finds it filled in finds the rest.
        entry.state.store(claimed_by(owner) | FILLED_IN, Ordering::Release);
        self.used.0.fetch_max(number as u32 + 1, Ordering::AcqRel);
        Some(number)
    }

    pub(crate) fn entry(&self, number: usize) -> &SharedBrake {
        &self.entries[number]
    }

    /// Whether there may be any.
    #[inline]
    pub(crate) fn are_used(&self) -> bool {
        self.used.0.load(Ordering::Relaxed) != 0
    }

    /// Those of a sequence, with their numbers.
    pub(crate) fn of(&self, sequence: u64) -> impl Iterator<Item = (usize, &SharedBrake)> {
        self.all().filter(move |(_, entry)| entry.holder(sequence).is_some())
    }

    /// All that are or were used, with their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &SharedBrake)> {
        let used = self.used.0.load(Ordering::Acquire) as usize;
        self.entries.iter().take(used).enumerate()
    }

    /// Frees those of a process that is dead, or leaves.
    pub(crate) fn forget(&self, owner: Owner) {
        let is_its = |entry: &&SharedBrake| entry.state.load(Ordering::Acquire) & !FILLED_IN == claimed_by(owner);
        self.entries.iter().filter(is_its).for_each(SharedBrake::free);
    }
}

impl SharedBrake {
    /// Gives it back, and lets everybody go who waits.
    pub(crate) fn free(&self) {
        self.state.store(0, Ordering::SeqCst);
        self.tell();
    }

    pub(crate) fn reached(&self, position: u64, now: u64) {
        self.moved.store(now, Ordering::Relaxed);
        self.position.store(position, Ordering::SeqCst);
        self.tell();
    }

    fn tell(&self) {
        // Either a thread that is about to sleep finds what was stored, or this thread sees that it is armed.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) != 0 && self.armed.swap(0, Ordering::SeqCst) != 0 {
            self.word.fetch_add(1, Ordering::AcqRel);
            wake(&self.word, u32::MAX);
        }
    }

    /// Arms the entry for a waiting thread. Returns the value to sleep on.
    pub(crate) fn arm(&self) -> u32 {
        let word = self.word.load(Ordering::Acquire);
        self.armed.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        word
    }

    /// Sleeps until it has moved on since it was armed, or for so long. `false`: it has not.
    pub(crate) fn wait(&self, word: u32, timeout: Duration) -> bool {
        wait(&self.word, word, Some(timeout))
    }

    /// Whose it is, if it is about this sequence.
    pub(crate) fn holder(&self, sequence: u64) -> Option<Owner> {
        let state = self.state.load(Ordering::Acquire);
        let is_about = state & FILLED_IN != 0 && self.sequence.load(Ordering::Relaxed) == sequence;
        is_about.then(|| Owner::new(((state >> 1) - 1) as u16))
    }

    /// The process and the sequence; `None`: it is not used.
    pub(crate) fn used_by(&self) -> Option<(Owner, u64)> {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.holder(sequence).map(|owner| (owner, sequence))
    }

    pub(crate) fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    pub(crate) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// When the position was set, in microseconds of the shared clock.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_millis.load(Ordering::Relaxed).into())
    }

    /// How far others are ahead, if that is too far.
    pub(crate) fn excess(&self, next: u64) -> Option<u64> {
        let lag = next.saturating_sub(self.position.load(Ordering::Acquire));
        (lag >= self.max.load(Ordering::Relaxed)).then_some(lag)
    }
}
