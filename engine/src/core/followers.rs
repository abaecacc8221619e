//! What streams hold, and for how long: pins of versions, and generations that are not freed while a stream reads them.

use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duramen_io::{wait, wake};

use crate::core::Core;
use crate::core::pins::{Purpose, describe};
use crate::core::streams::{Follower, Hold, State};
use crate::error::{Reason, Result};
use crate::log::first_record;
use crate::read::generation_view::GenerationView;
use crate::region::{GenerationEntry, GenerationState, Patience};

/// How long a stream waits at a time while generations are freed.
const FREEING_WAIT: Duration = Duration::from_millis(10);
/// Number of waits of [`FREEING_WAIT`] for streams, each of which reads one commit at a time, between two checks of the
/// process that is waited for.
const FREEING_WAITS_PER_LOOK: u32 = 10;
const FREEING_STEP: Duration = Duration::from_micros(200);
const FREEING_ROUNDS_MAX: u32 = 500;

/// Keeps generations from being freed while a stream reads them without a pin.
pub(crate) struct KeptGenerations<'a> {
    reading: &'a AtomicU32,
}

impl Drop for KeptGenerations<'_> {
    fn drop(&mut self) {
        // Release: a thread that finds no readers runs after their reads.
        self.reading.fetch_sub(1, Ordering::Release);
    }
}

impl Core {
    /// Called after every commit.
    #[inline]
    pub(crate) fn wake_waiting_streams(&self) {
        if self.control().streams_waiting.0.load(Ordering::Relaxed) != 0 {
            self.wake_streams();
        }
    }

    /// Wakes all streams, so that they look at the state of the store again.
    #[cold]
    pub(crate) fn wake_streams(&self) {
        let control = self.control();
        control.streams_waiting.0.store(0, Ordering::Relaxed);
        // Release: who sees the new word sees what it was changed for.
        control.streams_word.fetch_add(1, Ordering::AcqRel);
        wake(&control.streams_word, u32::MAX);
    }

    /// Keeps all generations as they are while a stream reads. A thread that frees a generation first blocks new reads,
    /// and then waits for those in progress.
    ///
    /// # Errors
    /// [`Reason::Busy`] when a process was stopped while it freed one.
    pub(crate) fn keep_generations(&self) -> Result<KeptGenerations<'_>> {
        let (mut patience, mut rounds) = (Patience::default(), 0u32);
        let reading = &self.region.process(self.region.me()).reading;
        let freeing = &self.control().freeing;
        loop {
            // SeqCst, as in `while_nobody_reads`: either this thread sees the freeing thread, or that thread sees this
            // one.
            reading.fetch_add(1, Ordering::SeqCst);
            let kept = KeptGenerations { reading };
            if freeing.load(Ordering::SeqCst) == 0 {
                return Ok(kept);
            }
            drop(kept);
            if wait(freeing, 1, Some(FREEING_WAIT)) {
                // It gets on, perhaps with the next generation by now.
                (patience, rounds) = (Patience::default(), 0);
                continue;
            }
            rounds += 1;
            if rounds.is_multiple_of(FREEING_WAITS_PER_LOOK)
                && let Some(holder) = self.control().maintenance_lock.0.holder()
            {
                patience.look(&self.region, holder, 0)?;
            }
        }
    }

    /// Frees something that streams read without a pin, under the maintenance lock. `false`: a stream keeps reading.
    pub(crate) fn while_nobody_reads(&self, free: impl FnOnce()) -> bool {
        let freeing = &self.control().freeing;
        freeing.store(1, Ordering::SeqCst);
        let is_read = || {
            self.region
                .processes()
                .any(|(_, entry)| entry.reading.load(Ordering::SeqCst) > 0)
        };
        let mut rounds = 0;
        while is_read() && rounds < FREEING_ROUNDS_MAX {
            std::thread::sleep(FREEING_STEP);
            rounds += 1;
        }
        let is_free = rounds < FREEING_ROUNDS_MAX;
        if is_free {
            free();
        }
        freeing.store(0, Ordering::SeqCst);
        wake(freeing, u32::MAX);
        is_free
    }

    /// Moves the pins of all streams that no longer need what they hold. Called by the folding thread, with the
    /// maintenance lock; a stream that is being read moves by itself.
    pub(crate) fn move_streams(&self) {
        let followers: Vec<_> = self.streams.list().iter().filter_map(Weak::upgrade).collect();
        for follower in followers {
            if let Ok(mut follower) = follower.try_lock() {
                follower.advance(self);
            }
        }
    }

    /// The oldest commit that a stream can begin after, as far as that can be told without waiting for a fold.
    fn oldest_retained(&self) -> u64 {
        let oldest = self
            .try_hold_maintenance()
            .ok()
            .flatten()
            .and_then(|state| state.history.front().map(|(_, version, _)| version.reaches));
        oldest.unwrap_or_else(|| self.region.version().reaches)
    }

    /// Slots of the generations whose logs and indexes can be read. While they are kept it stays that way.
    pub(crate) fn readable_slots(&self) -> impl Iterator<Item = u16> {
        let is_readable = |entry: &GenerationEntry| match entry.state() {
            GenerationState::Active | GenerationState::Frozen | GenerationState::Folded => true,
            GenerationState::Unused | GenerationState::Preparing | GenerationState::Standby => false,
        };
        self.region
            .generations()
            .filter_map(move |(slot, entry)| is_readable(entry).then_some(slot))
    }

    /// The generations that hold commits after this one, up to generation `newest`, oldest first.
    ///
    /// # Safety
    /// As for [`Core::log_view`], for each of them.
    pub(crate) unsafe fn generations_between(&self, commit: u64, newest: u32) -> Result<Vec<GenerationView<'_>>> {
        let number = |slot: u16| self.entry(slot).number.load(Ordering::Relaxed);
        let wanted =
            |&slot: &u16| self.entry(slot).last_commit.load(Ordering::Relaxed) > commit && number(slot) <= newest;
        let mut slots: Vec<u16> = self.readable_slots().filter(wanted).collect();
        slots.sort_unstable_by_key(|&slot| number(slot));
        // SAFETY: passed on.
        let views = slots.into_iter().map(|slot| unsafe { self.generation_view(slot) });
        views.collect()
    }
}

impl Follower {
    /// What it holds, or why it holds nothing any more.
    pub(crate) fn hold(&mut self, core: &Core) -> Result<&Hold> {
        self.notice_end(core);
        match &self.state {
            State::Following(hold) => Ok(hold),
            State::Lost => Err(Reason::NotRetained {
                asked: self.position,
                oldest: core.oldest_retained(),
            }
            .into()),
            State::Ended => Err(Reason::SnapshotEnded.into()),
        }
    }

    fn notice_end(&mut self, core: &Core) {
        let State::Following(hold) = &self.state else { return };
        if core.region.pinned(&hold.pin).is_ended() {
            self.let_go(core, State::Ended);
        } else if core.control().tail.0.checkable_since.load(Ordering::Relaxed) > hold.commit {
            self.let_go(core, State::Lost);
        }
    }

    pub(crate) fn let_go(&mut self, core: &Core, state: State) {
        if let State::Following(hold) = std::mem::replace(&mut self.state, state) {
            core.unpin(&hold.pin);
        }
    }

    /// Moves the pin to the published version, if that shows everything from the position on.
    pub(crate) fn advance(&mut self, core: &Core) {
        self.notice_end(core);
        let State::Following(hold) = &self.state else { return };
        let published = core.region.version();
        if published.number == hold.version.number || published.reaches > self.position {
            return;
        }
        // Without a free slot the old pin does as well.
        let Ok((next, _)) = Hold::newest(core) else { return };
        // A fold may have published another version in between.
        if next.version.reaches <= self.position {
            self.let_go(core, State::Following(next));
        } else {
            core.unpin(&next.pin);
        }
    }
}

impl Hold {
    /// Pins what is published now. Also returns the end of the log.
    pub(crate) fn newest(core: &Core) -> Result<(Hold, u64)> {
        // Under the commit lock no generation can begin before this follows those that will.
        let _guard = core.hold_commits()?;
        let (pin, version, commit) = core.region.pin(0, &core.control().visible.0)?;
        describe(core, &pin, Purpose::Changes);
        let hold = Hold { pin, version, commit };
        let tail = hold.follow(core);
        Ok((hold, tail))
    }

    /// Lets the generations after those of the version be kept. Returns the end of its newest one.
    fn follow(&self, core: &Core) -> u64 {
        // A store that was opened read-only has no generation that takes commits, and none will follow.
        let Some(&newest) = self.version.generations.last() else {
            return first_record(core.unit);
        };
        let entry = core.entry(newest);
        core.region
            .follow(&self.pin, Some(entry.number.load(Ordering::Relaxed)));
        entry.tail.load(Ordering::Acquire)
    }

    /// Pins a version from which everything after `commit` can be read.
    pub(crate) fn after(core: &Core, commit: u64) -> Result<Hold> {
        let (hold, _) = Hold::newest(core)?;
        if commit > hold.commit {
            let newest = hold.commit;
            core.unpin(&hold.pin);
            let cause = format!(
                "commit {commit} is not in the store, whose newest is {newest}; if it was there, a power cut took it \
                 before it was synced"
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        if hold.version.reaches <= commit {
            return Ok(hold);
        }
        core.unpin(&hold.pin);
        Hold::kept(core, commit)
    }

    /// Pins a version that folding kept for streams.
    fn kept(core: &Core, commit: u64) -> Result<Hold> {
        // While this lock is held nothing is freed.
        let state = core.hold_maintenance()?;
        let kept = state
            .history
            .iter()
            .rev()
            .find(|(_, version, _)| version.reaches <= commit);
        let Some((pin, version, _)) = kept else {
            let oldest = state
                .history
                .front()
                .map_or_else(|| core.region.version().reaches, |(_, version, _)| version.reaches);
            return Err(Reason::NotRetained { asked: commit, oldest }.into());
        };
        let visible = core.region.pinned(pin).commit.load(Ordering::Relaxed);
        let pin = core.region.pin_again(version.number, visible)?;
        describe(core, &pin, Purpose::Changes);
        let hold = Hold {
            pin,
            version: version.clone(),
            commit: visible,
        };
        hold.follow(core);
        Ok(hold)
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Maintenance, Options};

    #[test]
    fn streams_wait_for_somebody_who_frees_one_generation_after_the_other() {
        let disk = SimDisk::new(1);
        let open = || Options::new().maintenance(Maintenance::Manual).open_on(disk.platform());
        let (store, other) = (open().expect("a store"), open().expect("a store"));
        let _maintenance = store.core().hold_maintenance().expect("no other process has it");
        let freeing = &store.core().control().freeing;
        freeing.store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    std::thread::sleep(Duration::from_millis(2));
                    freeing.store(0, Ordering::SeqCst);
                    freeing.store(1, Ordering::SeqCst);
                    wake(freeing, u32::MAX);
                }
                freeing.store(0, Ordering::SeqCst);
            });
            other
                .core()
                .keep_generations()
                .map(drop)
                .expect("no process is suspended");
        });
    }
}
