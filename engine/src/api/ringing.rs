//! Bells across processes: who appends in one process wakes those who listen in another.
//!
//! The simple version: every process that has listeners has a thread that sleeps on a word of the shared region, the
//! *ringer*. A commit that appended counts, in the region, for the sequence, and wakes the ringers; those ring the
//! bells of their own process whose sequences were counted for.
//!
//! Why it is hard: as for bells. A commit must not pay for listeners that are not there, nor for ringers that are busy;
//! and no listener may sleep through an append, even if a process dies.
//!
//! - A process with listeners has a bit in `listening`. It is set under the commit lock, so that a commit that took the
//!   lock later sees it; the listener sees an append that had the lock before, because it checks afterwards.
//! - Sequences share some hundred counters. A bell of another sequence of the same counter rings for nothing.
//! - A ringer reads `word`, arms, looks at the counters, and sleeps while `word` is as it was. `armed` is only
//!   exchanged: a commit counts before it does so. If its exchange comes before that of the ringer, the ringer sees the
//!   count; if it comes after, the commit changes `word` and wakes all listeners that are armed by then.
//! - A process that dies between its commit and the wake-up has not rung. The process that buries it counts for all
//!   sequences. Until then ringers ring everything once in a while, as long as there is a dead process.

use std::sync::Arc;
use std::time::Duration;

use crate::api::store::Store;
use crate::core::Core;
use crate::core::bell::{Bell, Listener};
use crate::region::BELL_SLOTS;

/// How long a ringer sleeps before it checks for events without a wake-up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Store {
    /// Lets a listener know of every append to a sequence from now on, by a token of its choice. What was appended
    /// before must be looked for afterwards; the bell is armed.
    #[doc(hidden)]
    pub fn listen(&self, bell: &Bell, listener: &Arc<Listener>, token: u64) {
        let core = self.core();
        if core.is_shared() {
            let opened = &self.handle().opened;
            opened.spawn("duramen-bells", &core.ringer_runs, ring_loop);
        }
        // Under the lock, see `bell`. Where a process was suspended inside a commit, it may not wake this listener when
        // it resumes. So the listener checks by itself.
        let guard = core.hold_commits_soon();
        if core.is_shared() {
            core.hear_others();
        }
        bell.add(listener, token);
        drop(guard);
    }

    /// How often a bell rang, in all processes: of a sequence that [`Sequence::counted`](crate::Sequence::counted)
    /// made, every commit that appended counts, before its call returns. Read this before a snapshot: while the number
    /// stays, no later commit has appended, except one of a process that dies between its commit and the count. When
    /// another process cleans up after the dead one, all bells count.
    ///
    /// The number wraps at 32 bits, may jump, and means nothing after a reopen: compare it only for equality.
    #[doc(hidden)]
    #[inline]
    pub fn rings(&self, bell: &Bell) -> u64 {
        self.core().region.bells().count(bell.slot).into()
    }
}

impl Core {
    /// From here on other processes tell this one of appends. The caller has the commit lock.
    fn hear_others(&self) {
        self.region.bells().begin_to_hear(self.region.me());
    }

    /// Tells other processes that no thread listens here.
    fn stop_hearing(&self) {
        if self.bells.has_listeners() {
            return;
        }
        // A thread that begins to listen holds the lock, and sets the bit again.
        let Some(_commits) = self.control().commit_lock.0.try_lock(self.region.me()) else {
            return;
        };
        if !self.bells.has_listeners() {
            self.region.bells().stop_hearing(self.region.me());
        }
    }

    fn is_anybody_dead(&self) -> bool {
        let is_dead = |owner| owner != self.region.me() && !self.region.seat().is_alive(owner);
        self.region.processes().any(|(owner, _)| is_dead(owner))
    }
}

/// Rings the bells of this process for what others append.
fn ring_loop(core: &Core) {
    let bells = core.region.bells();
    let mut seen = [0; BELL_SLOTS];
    // What was appended before it began to look is looked for too.
    let mut everything = true;
    loop {
        let word = bells.arm();
        for (slot, seen) in seen.iter_mut().enumerate() {
            let count = bells.count(slot);
            if everything || count != *seen {
                *seen = count;
                core.bells.ring(slot);
            }
        }
        if core.work.0.lock().unwrap_or_else(|e| e.into_inner()).stop {
            return;
        }
        everything = false;
        if !bells.wait(word, LOOK_EVERY) {
            everything = core.is_anybody_dead();
            core.stop_hearing();
        }
    }
}
