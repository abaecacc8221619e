//! The right of a transaction to commit alone.
//!
//! A word in the shared region has the token of the transaction that has it, or zero. Commits of others wait until the word changes;
//! so does the next exclusive transaction. The word is set under the commit lock, and commits look at it under that lock.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use duramen_io::{Hindrance, LOOK_INTERVAL, Owner, wait, wake};

use crate::core::Core;
use crate::error::{Reason, Result};

/// How long a process that has the store to itself may be stopped before others give up.
const STOPPED_FOR: Duration = Duration::from_secs(5);

/// Token of those who hold nothing exclusively.
pub(crate) const NOT_EXCLUSIVE: u32 = 0;

/// Bit of a token for which another thread may sleep: without it the holder wakes no thread, which would be a call of the system
/// for each exclusive transaction.
pub(crate) const WAITED_FOR: u32 = 1 << 19;

/// The `count`-th token of all; it says which process has it.
fn nth_token(owner: Owner, count: u32) -> u32 {
    1 << 31 | u32::from(owner.number()) << 20 | count & (WAITED_FOR - 1)
}

/// Who has this token.
fn owner_of(token: u32) -> Owner {
    Owner::new((token >> 20 & 0x7FF) as u16)
}

/// Whether a process has this token.
pub(crate) fn is_token_of(owner: Owner, token: u32) -> bool {
    token != NOT_EXCLUSIVE && owner_of(token) == owner
}

/// How a call has waited for exclusive transactions so far.
#[derive(Default)]
pub(crate) struct ExclusiveWait {
    /// How long, in all.
    waited: Duration,
    /// The token of one whose process was found stopped, and when that was.
    stopped_since: Option<(u32, Duration)>,
}

impl Core {
    /// The token of the transaction that has the right, or [`NOT_EXCLUSIVE`].
    pub(crate) fn exclusive_token(&self) -> u32 {
        // Relaxed: those who act on it have the commit lock, under which it is set.
        self.control().exclusive.0.load(Ordering::Relaxed) & !WAITED_FOR
    }

    /// Shuts all other writers out until `end_exclusive`. Returns the token that lets the holder commit.
    pub(crate) fn begin_exclusive(&self) -> Result<u32> {
        let word = &self.control().exclusive.0;
        let mut exclusive_wait = ExclusiveWait::default();
        loop {
            self.writable()?;
            let guard = self.hold_commits_in_time()?;
            let holder = self.exclusive_token();
            if holder == NOT_EXCLUSIVE {
                // Who made a checkpoint with the right before this one may have died with its room kept back.
                if !self.has_pending_checkpoint() {
                    self.space.keeps_root();
                }
                let count = self.control().exclusive_tokens.fetch_add(1, Ordering::Relaxed);
                let token = nth_token(self.region.me(), count);
                word.store(token, Ordering::Release);
                self.exclusive_thread.is_here();
                return Ok(token);
            }
            drop(guard);
            self.wait_for_exclusive(holder, &mut exclusive_wait)?;
        }
    }

    /// Waits for the exclusive transaction of this token for a while: the caller looks again.
    ///
    /// # Errors
    /// [`Reason::WouldWaitForItself`] when it is the calling thread's; [`Reason::LockTimeout`] when the call has waited
    /// for exclusive transactions as long as it may; [`Reason::Busy`] when the process has been stopped for about five
    /// seconds.
    pub(crate) fn wait_for_exclusive(&self, token: u32, so_far: &mut ExclusiveWait) -> Result<()> {
        let word = &self.control().exclusive.0;
        let holder = owner_of(token);
        let is_own = holder == self.region.me();
        if is_own && self.exclusive_thread.is_this() {
            let (call, map) = ("a commit", String::new());
            return Err(Reason::WouldWaitForItself { call, map }.into());
        }
        let left = self.settings.lock_timeout.saturating_sub(so_far.waited);
        let waited_for = token | WAITED_FOR;
        match word.compare_exchange(token, waited_for, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {}
            Err(found) if found == waited_for => {}
            Err(_) => return Ok(()),
        }
        let begun = Instant::now();
        let has_changed = wait(word, waited_for, Some(LOOK_INTERVAL.min(left)));
        so_far.waited += begun.elapsed();
        if has_changed {
            return Ok(());
        }
        if !is_own && self.region.is_dead(holder) {
            // A token comes once: another one, or one of another process in its place, stays.
            let _ = word.compare_exchange(waited_for, NOT_EXCLUSIVE, Ordering::AcqRel, Ordering::Relaxed);
            wake(word, u32::MAX);
            return Ok(());
        }
        if so_far.waited >= self.settings.lock_timeout {
            return Err(self.region.timed_out("an exclusive transaction", holder, so_far.waited));
        }
        if is_own {
            return Ok(());
        }
        let is_stopped = self.region.hindrance_of(holder) == Some(Hindrance::Stopped);
        let now = self.platform.clock.monotonic();
        match so_far.stopped_since {
            Some((before, since)) if is_stopped && before == token => {
                let waited = now.saturating_sub(since);
                if waited >= STOPPED_FOR {
                    return Err(self.region.busy(holder, waited));
                }
            }
            _ => so_far.stopped_since = is_stopped.then_some((token, now)),
        }
        Ok(())
    }

    /// Lets the other writers in again.
    pub(crate) fn end_exclusive(&self) {
        let word = &self.control().exclusive.0;
        self.exclusive_thread.is_over();
        if word.swap(NOT_EXCLUSIVE, Ordering::Release) & WAITED_FOR != 0 {
            wake(word, u32::MAX);
        }
    }
}
