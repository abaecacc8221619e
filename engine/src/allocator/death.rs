//! What a process that died leaves in the allocator: a step half done, a tree that was not published, pages and
//! promises.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use duramen_io::Owner;

use super::Space;
use super::retired::StoredRetired;
use crate::datafile::bitmap::Blocks;
use crate::datafile::promises::Room;
use crate::error::Result;
use crate::log::FoldCosts;
use crate::planted::{PlantedBug, is_planted, kill_point};

impl Space {
    /// Frees the allocator's lock if its holder is dead.
    pub(crate) fn free_lock_of_dead(&self) {
        self.region.free_if_dead(&self.head().lock.0, || self.undo());
    }

    /// Undoes the step in which a process died with the lock. The caller holds the lock now.
    pub(super) fn undo(&self) {
        let head = self.head();
        let step = head.step.load(Ordering::Acquire);
        // SAFETY: the caller has the lock.
        let mut state = unsafe { self.state() };
        let Some(notes) = self.region.undo_log().notes(step) else {
            return self
                .region
                .stop("a process died in a change of the free space that cannot be undone");
        };
        for note in notes.filter(|_| !is_planted(PlantedBug::AllocatorNotUndone)) {
            match note.array() {
                0 => state.bitmap.words().undo(note),
                1 => state.loose.words().undo(note),
                2 => state.taken_bits.undo(note),
                3 => state.retired.undo(note),
                _ => state.loose_runs.undo(note),
            }
            kill_point();
        }
        state.set_counts(
            head.counts[step as usize % 2]
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed)),
        );
        self.mirror(&state);
    }

    /// Takes back what is promised beyond what is `known`, after which every commit still has what it was promised.
    pub(crate) fn promised_at_most(&self, known: impl Fn() -> FoldCosts) {
        self.head().promises.at_most(known);
    }

    /// Gives back what a process took for a tree that died before it was published.
    pub(crate) fn give_up_tree(&self) -> Result<()> {
        let mut state = self.lock()?;
        let count = state.retired_count();
        state.retired.resize(count, StoredRetired::default());
        state.staged = 0;
        // A process that dies between two steps leaves too few blocks counted, never too many; and pages count once.
        state.taken.blocks = Blocks::default();
        state.taken_value_pages = 0;
        for index in 0..state.taken_bits.len() {
            let bits = state.taken_bits[index];
            for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                state.bitmap.set(index as u32 * 64 + bit, 1, false);
            }
            if bits != 0 {
                state.count_given_up(bits.count_ones().into());
                state.taken_bits.put(index, 0);
                kill_point();
                state.end_long_step();
            }
        }
        state.taken = Room::default();
        state.taken_beyond = 0;
        self.mirror(&state);
        Ok(())
    }

    /// Whether a process took pages that may still be loose.
    pub(crate) fn has_loose_runs(&self, owner: Owner) -> Result<bool> {
        let state = self.lock()?;
        let mut runs = state.loose_runs.iter();
        Ok(runs.any(|&[_, found]| found == u64::from(owner.number())))
    }

    /// Frees the loose pages of a process that is dead, but for those that `is_referred_to` by the log.
    pub(crate) fn free_loose_pages_of(&self, owner: Owner, is_referred_to: impl Fn(u32) -> bool) -> Result<()> {
        let mut state = self.lock()?;
        let dead = u64::from(owner.number());
        // What was given back since it was taken may have another owner.
        let others: HashSet<u32> = state.loose_pages(|found| found != dead).collect();
        let lost: Vec<u32> = state
            .loose_pages(|found| found == dead)
            .filter(|page| !others.contains(page) && !is_referred_to(*page))
            .collect();
        for page in lost {
            state.bitmap.set(page, 1, false);
            state.loose.set(page, 1, false);
            kill_point();
            state.end_long_step();
        }
        for index in (0..state.loose_runs.len()).rev() {
            if state.loose_runs[index][1] == dead {
                state.forget_loose_run(index);
                state.end_long_step();
            }
        }
        self.mirror(&state);
        Ok(())
    }
}
