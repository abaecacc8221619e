//! The maintenance lock: one thread of all processes folds, or works on files, at a time.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use duramen_io::WordLockGuard;

use crate::btree::Root;
use crate::core::Core;
use crate::datafile::meta::{Meta, MetaPages};
use crate::error::{Error, Result};
use crate::region::{Pin, Version};

/// What the folding thread remembers.
#[derive(Debug)]
pub(crate) struct MaintenanceState {
    /// The newest durable meta page.
    pub(crate) durable: Meta,
    /// Versions that new trees were written for, with those under which they were published, ascending: commits may
    /// have begun generations, and with them versions, in between.
    pub(crate) published: Vec<(u64, u64)>,
    /// Versions that are kept for commit streams, oldest first, with the bytes of log that each one's fold moved.
    pub(crate) history: VecDeque<(Pin, Version, u64)>,
    /// The tree, and the pages of the file, of which nothing could be moved to the front.
    pub(crate) shrunk_in_vain: Option<(Root, u64)>,
}

impl Core {
    /// Waits until no other thread folds, makes the base durable or reclaims. Maintenance remembers the newest durable
    /// meta page.
    ///
    /// # Errors
    /// [`Reason::Busy`] when a process was stopped in that; those of putting in order what was left half done, and of
    /// reading that page, when another process has written it.
    pub(crate) fn hold_maintenance(&self) -> Result<MaintenanceGuard<'_>> {
        let lock = &self.control().maintenance_lock.0;
        let beat = || self.control().maintenance_beat.load(Ordering::Relaxed);
        let word = self.region.hold_while_still(lock, beat, || self.owe_maintenance())?;
        self.remember(word)
    }

    /// Says to those who wait for the maintenance lock, which the caller has, that it gets on.
    #[inline]
    pub(crate) fn beat(&self) {
        // Relaxed: a sign of life, which nothing else depends on.
        self.control().maintenance_beat.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells the next holder of the maintenance lock to finish the interrupted step.
    pub(crate) fn owe_maintenance(&self) {
        // Before the lock is free: pairs with the load in `remember`, which has the lock.
        self.control().maintenance_owed.store(1, Ordering::Release);
    }

    /// Tells the next holder of the maintenance lock to finish a step that failed because another process was in the
    /// way.
    pub(crate) fn owed_if_busy<T>(&self, done: Result<T>) -> Result<T> {
        done.inspect_err(|error| {
            if error.waited_for().is_some() {
                self.owe_maintenance();
            }
        })
    }

    /// Takes what this process keeps of versions for commit streams.
    pub(crate) fn take_history(&self) -> VecDeque<(Pin, Version, u64)> {
        let mut state = self.maintenance.lock().unwrap_or_else(|e| e.into_inner());
        std::mem::take(&mut state.history)
    }

    /// Puts in order what was left half done, and learns what other processes have done meanwhile.
    fn remember<'a>(&'a self, word: WordLockGuard<'a>) -> Result<MaintenanceGuard<'a>> {
        self.beat();
        // Only the holder of the word keeps this lock for long.
        let state = self.maintenance.lock().unwrap_or_else(|e| e.into_inner());
        let mut held = MaintenanceGuard {
            _owed: OwedByPanic {
                core: self,
                was_panicking: std::thread::panicking(),
            },
            state,
            _word: word,
        };
        if self.control().maintenance_owed.load(Ordering::Acquire) != 0 {
            // What a stopped store has in memory may be half changed.
            self.running()?;
            self.repair_maintenance()?;
            self.control().maintenance_owed.store(0, Ordering::Release);
        }
        self.cover_data()?;
        let newest = self.control().tail.0.meta_sequence.load(Ordering::Acquire);
        if held.durable.sequence as u32 != newest {
            let found = MetaPages::read(&*self.data)?.filter(|found| found.newest.sequence as u32 == newest);
            let found = found.ok_or_else(|| Error::damaged(format!("meta page {newest} is not intact any more")))?;
            held.durable = found.newest;
        }
        self.learn_origin()?;
        Ok(held)
    }

    /// The published version that has the durable root; always counts as pinned.
    pub(crate) fn durable_version(&self) -> u64 {
        self.control().durable_version.load(Ordering::Relaxed)
    }

    /// Notes the durable version for the next holder of the maintenance lock.
    pub(crate) fn durable_is(&self, version: u64) {
        self.control().durable_version.store(version, Ordering::Relaxed);
    }

    /// Waits until no other thread prepares generations.
    ///
    /// # Errors
    /// [`Reason::Busy`].
    pub(crate) fn hold_preparing(&self) -> Result<WordLockGuard<'_>> {
        self.region.hold(&self.control().preparing_lock.0, || ())
    }

    /// As [`Core::hold_maintenance`]. `None`: another process has the lock now.
    pub(crate) fn try_hold_maintenance(&self) -> Result<Option<MaintenanceGuard<'_>>> {
        let lock = &self.control().maintenance_lock.0;
        let mut word = lock.try_lock(self.region.me());
        if word.is_none() {
            self.region.free_if_dead(lock, || self.owe_maintenance());
            word = lock.try_lock(self.region.me());
        }
        word.map(|word| self.remember(word)).transpose()
    }
}

/// The right to fold, to make the base durable and to reclaim, with the state of maintenance.
pub(crate) struct MaintenanceGuard<'a> {
    _owed: OwedByPanic<'a>,
    state: MutexGuard<'a, MaintenanceState>,
    /// Released after `state`, so that a holder of the word never waits for the state.
    _word: WordLockGuard<'a>,
}

/// Leaves it to the next holder of the maintenance lock to put in order what a panic left half done, as after the death
/// of a process.
struct OwedByPanic<'a> {
    core: &'a Core,
    /// A destructor may fold while a thread unwinds: that is no panic of the fold.
    was_panicking: bool,
}

impl Drop for OwedByPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            self.core.owe_maintenance();
        }
    }
}

impl Deref for MaintenanceGuard<'_> {
    type Target = MaintenanceState;

    fn deref(&self) -> &MaintenanceState {
        &self.state
    }
}

impl DerefMut for MaintenanceGuard<'_> {
    fn deref_mut(&mut self) -> &mut MaintenanceState {
        &mut self.state
    }
}
