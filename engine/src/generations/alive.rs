//! How many generations there are that take memory, or that recovery would replay: they decide whether one more may begin.

use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::limits::WAITING_GENERATIONS_MAX;
use crate::region::{GenerationEntry, GenerationState};

impl Core {
    /// Whether there may be one more generation.
    pub(crate) fn can_rotate(&self) -> bool {
        self.generations_alive() <= WAITING_GENERATIONS_MAX
    }

    /// Generations that recovery would replay, and those that the fold which goes on is about to free: until then they
    /// take memory.
    pub(crate) fn generations_alive(&self) -> usize {
        let folding = self.pace.oldest_folding().filter(|_| self.folds_in_background());
        self.generations_to_replay() + folding.map_or(0, |oldest| self.generations_about_to_go(oldest))
    }

    /// Generations from number `oldest` on that are durably folded and have no readers.
    fn generations_about_to_go(&self, oldest: u32) -> usize {
        let durable = self.control().durable.0.load(Ordering::Acquire);
        let is_done = |entry: &GenerationEntry| {
            entry.state() == GenerationState::Folded
                && entry.number.load(Ordering::Relaxed) >= oldest
                && entry.last_commit.load(Ordering::Relaxed) <= durable
        };
        if !self.region.generations().any(|(_, entry)| is_done(entry)) {
            return 0;
        }
        let pins = self.region.pins();
        let is_needed = |entry: &GenerationEntry| {
            let number = u64::from(entry.number.load(Ordering::Relaxed));
            pins.everything
                || pins.follow.is_some_and(|oldest| number >= oldest)
                || pins.hold(entry.birth.load(Ordering::Relaxed), entry.death.load(Ordering::Relaxed))
        };
        let entries = self.region.generations();
        entries.filter(|(_, entry)| is_done(entry) && !is_needed(entry)).count()
    }

    /// Generations that a crash now would make recovery replay: those that are not in the durable base.
    pub(crate) fn generations_to_replay(&self) -> usize {
        let durable = self.control().durable.0.load(Ordering::Acquire);
        let waits = |entry: &GenerationEntry| match entry.state() {
            GenerationState::Active | GenerationState::Frozen => true,
            GenerationState::Folded => entry.last_commit.load(Ordering::Relaxed) > durable,
            GenerationState::Unused | GenerationState::Preparing | GenerationState::Standby => false,
        };
        self.region.generations().filter(|(_, entry)| waits(entry)).count()
    }
}
