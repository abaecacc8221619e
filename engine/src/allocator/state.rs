//! What the allocator knows while its lock is held: the pages, what the running fold took, and where free ones are
//! found. When the lock is released, the numbers go back to the shared region.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::Ordering;

use duramen_io::{Owner, WordLockGuard};

use super::Want;
use super::retired::{Retired, StoredRetired};
use crate::datafile::bitmap::{self, Bitmap, Blocks, LARGE_BLOCK_PAGES, LONG_RUN_PAGES, Spared, Words};
use crate::datafile::meta::META_GAP_PAGES;
use crate::datafile::promises::Room;
use crate::error::Result;
use crate::limits::{BRANCH_PAGES, LOGGED_VALUE_BYTES_MAX, PAGE_BYTES};
use crate::planted::kill_point;
use crate::region::shared_array::SharedArray;
use crate::region::undo::UndoLog;
use crate::region::{Region, SPACE_COUNTS, SpaceHead};

/// How many values with pages of their own fit into so many pages.
fn long_values_in(pages: u64) -> usize {
    (pages * PAGE_BYTES as u64).div_ceil(LOGGED_VALUE_BYTES_MAX as u64) as usize
}

impl Words for SharedArray<'_, u64> {
    fn set_len(&mut self, count: usize) {
        self.resize(count, 0);
    }

    fn will_change(&mut self, range: Range<usize>) {
        self.note_words(range);
    }
}

/// The allocator's state, as the holder of its lock sees it.
#[derive(Debug)]
pub(super) struct State<'a> {
    pub(super) bitmap: Bitmap<SharedArray<'a, u64>>,
    /// Used pages that no base refers to yet: values and runs of commits that are not folded or not even made.
    pub(super) loose: Bitmap<SharedArray<'a, u64>>,
    /// Where a process took loose pages that were loose when a tree was last published, or since: page and pages, and
    /// whose they are. Some of them may be free, or belong to another process, by now. Empty where no other process can
    /// have the store open.
    pub(super) loose_runs: SharedArray<'a, [u64; 2]>,
    /// Pages that a tree took which is being written: a bit for each.
    pub(super) taken_bits: SharedArray<'a, u64>,
    /// Those that are, and behind them those that a tree will retire whose publication is being prepared, or has just
    /// happened, and what commits brought that is in it.
    pub(super) retired: SharedArray<'a, StoredRetired>,
    /// How many of the last elements of `retired` are not retired yet.
    pub(super) staged: u64,
    pub(super) retired_pages: u64,
    /// Those of the retired pages that no snapshot holds.
    pub(super) awaited: Room,
    /// What the running fold took of what was promised to it: pages, blocks for branches, and whole blocks' worth of
    /// pages for values.
    pub(super) taken: Room,
    pub(super) taken_value_pages: u64,
    /// Pages of a tree that is being written beyond all promises.
    pub(super) taken_beyond: u64,
    /// Where the next bitmap goes: pages that count as used, so that no other thread takes them. Empty: not yet chosen.
    pub(super) for_bitmap: (u32, u32),
    /// The pages of the bitmap that the newest meta page refers to.
    pub(super) saved: (u32, u32),
    /// Pages that may be cut off once the other meta page has forgotten them too.
    pub(super) durable_ends: [u32; 2],
}

/// The numbers of a [`State`] as the region keeps them.
type StoredCounts = [u64; SPACE_COUNTS];

impl State<'_> {
    pub(super) fn counts(&self) -> StoredCounts {
        let bitmap = |counts: bitmap::Counts| {
            let blocks = counts.blocks;
            [
                counts.pages as u64,
                counts.free,
                blocks.small,
                blocks.large,
                counts.first as u64,
                counts.first_long as u64,
                counts.searched as u64,
            ]
        };
        let room = |room: Room| [room.pages, room.blocks.small, room.blocks.large];
        let numbers = bitmap(self.bitmap.counts())
            .into_iter()
            .chain(bitmap(self.loose.counts()))
            .chain(room(self.awaited))
            .chain(room(self.taken))
            .chain([self.retired_pages, self.taken_value_pages, self.taken_beyond])
            .chain(
                [self.for_bitmap, self.saved]
                    .into_iter()
                    .flat_map(|(page, count)| [page, count].map(u64::from)),
            )
            .chain(self.durable_ends.map(u64::from))
            .chain([self.staged]);
        let mut counts = StoredCounts::default();
        counts
            .iter_mut()
            .zip(numbers)
            .for_each(|(count, number)| *count = number);
        counts
    }

    /// Takes over what [`State::counts`] gave.
    pub(super) fn set_counts(&mut self, counts: StoredCounts) {
        let mut numbers = counts.into_iter();
        let mut next = || numbers.next().expect("there are as many numbers as are stored");
        let [used, loose] = [(); 2].map(|()| bitmap::Counts {
            pages: next() as u32,
            free: next(),
            blocks: Blocks {
                small: next(),
                large: next(),
            },
            first: next() as usize,
            first_long: next() as usize,
            searched: next() as usize,
        });
        self.bitmap.set_counts(used);
        self.loose.set_counts(loose);
        [self.awaited, self.taken] = [(); 2].map(|()| Room {
            pages: next(),
            blocks: Blocks {
                small: next(),
                large: next(),
            },
        });
        [self.retired_pages, self.taken_value_pages, self.taken_beyond] = [(); 3].map(|()| next());
        [self.for_bitmap, self.saved] = [(); 2].map(|()| (next() as u32, next() as u32));
        self.durable_ends = [(); 2].map(|()| next() as u32);
        self.staged = next();
    }
}

/// The state while its lock is held; what became of it is stored when this is dropped.
pub(super) struct Locked<'a> {
    pub(super) state: State<'a>,
    pub(super) head: &'a SpaceHead,
    pub(super) undo: &'a UndoLog,
    pub(super) region: &'a Region,
    /// Whether the thread was unwinding when it took the lock: its destructors change the free space too.
    pub(super) was_panicking: bool,
    pub(super) _guard: WordLockGuard<'a>,
}

impl<'a> Deref for Locked<'a> {
    type Target = State<'a>;

    fn deref(&self) -> &State<'a> {
        &self.state
    }
}

impl<'a> DerefMut for Locked<'a> {
    fn deref_mut(&mut self) -> &mut State<'a> {
        &mut self.state
    }
}

impl Locked<'_> {
    /// Ends a step: what was done so far stands if this process dies. The next change begins another step.
    pub(super) fn end_step(&mut self) {
        debug_assert!(self.state.is_each_page_counted_once(), "{:?}", self.state);
        kill_point();
        let next = self.head.step.load(Ordering::Relaxed) + 1;
        let places = self.head.counts[next as usize % 2].iter().zip(self.state.counts());
        places.for_each(|(place, count)| place.store(count, Ordering::Relaxed));
        kill_point();
        // Release: a process that sees the number sees all of the step.
        self.head.step.store(next, Ordering::Release);
        kill_point();
        self.undo.begin(next);
    }

    /// Ends a step that has changed much already, before there is no room to note more.
    pub(super) fn end_long_step(&mut self) {
        if self.undo.is_nearly_full() {
            self.end_step();
        }
    }

    /// Forgets the loose runs of which nothing is loose any more, and those that are listed twice.
    pub(super) fn forget_needless_runs(&mut self) {
        self.end_step();
        let mut seen = HashSet::new();
        for index in (0..self.loose_runs.len()).rev() {
            let run = self.loose_runs[index];
            if !self.is_any_loose(run) || !seen.insert(run) {
                self.forget_loose_run(index);
                self.end_long_step();
            }
        }
        self.end_step();
    }
}

/// A step that is half done. What it changed must not stand: the next opening counts all pages again.
struct Unfinished<'a>(&'a Region);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0
            .stop("a thread panicked while it changed what is known of free space");
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let unfinished = Unfinished(self.region);
        if std::thread::panicking() && !self.was_panicking {
            return;
        }
        self.end_step();
        std::mem::forget(unfinished);
    }
}

impl State<'_> {
    /// What promises can count on.
    pub(super) fn available(&self) -> Room {
        let free = Room {
            pages: self.bitmap.free(),
            blocks: self.bitmap.blocks(),
        };
        let value_blocks = Room {
            pages: 0,
            blocks: Blocks {
                small: self.taken_value_pages / BRANCH_PAGES as u64,
                large: self.taken_value_pages / LARGE_BLOCK_PAGES as u64,
            },
        };
        free.and(self.taken).and(value_blocks).and(self.awaited)
    }

    /// Notes pages that the running fold takes or gives back.
    pub(super) fn count_taken(&mut self, want: Want, count: u32, apply: fn(u64, u64) -> u64) {
        let count = count as u64;
        self.taken.pages = apply(self.taken.pages, count);
        match want {
            Want::Leaves(_) => {}
            Want::Branches(_) => {
                self.taken.blocks.small = apply(self.taken.blocks.small, count / BRANCH_PAGES as u64);
            }
            Want::Piece(_) => self.taken_value_pages = apply(self.taken_value_pages, count),
        }
    }

    /// Whether the fold would have more than what was promised.
    pub(super) fn would_take_more(&self, want: Want, promised: Room) -> bool {
        let blocks = match want {
            Want::Branches(_) => want.room().blocks.small,
            Want::Leaves(_) | Want::Piece(_) => 0,
        };
        self.taken.pages + want.pages() as u64 > promised.pages
            || blocks > 0 && self.taken.blocks.small + blocks > promised.blocks.small
    }

    /// Free pages for what is wanted, leaving the blocks alone that are kept, when there are others. Leaves are content
    /// with a run that has `enough` pages.
    pub(super) fn find(&mut self, want: Want, enough: u32, kept: Room) -> Option<(u32, u32)> {
        let small = self.bitmap.blocks().small + self.taken.blocks.small;
        // A run may begin in the middle of a block, and end in that of another.
        let small = small.saturating_sub(kept.small_blocks() + 1) as u32;
        let large = self.bitmap.blocks().large.saturating_sub(kept.blocks.large + 1) as u32;
        let within = |pages: u32, blocks: u32, of: u32| pages.min(blocks.saturating_mul(of));
        match want {
            Want::Leaves(wanted) if small == 0 => self.bitmap.find(1, enough, wanted, Spared::AllBlocks),
            Want::Leaves(wanted) if large == 0 => {
                self.find_leaves(within(wanted, small, BRANCH_PAGES), enough, Spared::LargeBlocks)
            }
            Want::Leaves(wanted) => {
                let wanted = within(within(wanted, small, BRANCH_PAGES), large, LARGE_BLOCK_PAGES);
                let long = self.find_long(wanted, enough);
                long.or_else(|| self.find_leaves(wanted, enough, Spared::Nothing))
            }
            Want::Branches(wanted) if large > 0 => self
                .bitmap
                .find_blocks(within(wanted, large, LARGE_BLOCK_PAGES), Spared::Nothing),
            Want::Branches(wanted) => self.bitmap.find_blocks(wanted, Spared::LargeBlocks),
            Want::Piece(pages) if large > pages / LARGE_BLOCK_PAGES => {
                self.bitmap.find(pages, pages, pages, Spared::Nothing)
            }
            Want::Piece(pages) => self
                .bitmap
                .find(pages, pages, pages, Spared::AllBlocks)
                .or_else(|| self.bitmap.find(pages, pages, pages, Spared::LargeBlocks)),
        }
    }

    /// A long run for leaves that are content with nothing shorter. Scraps are for those who want little, and for the
    /// time when there is nothing else: each is a write. But the end of a file that is far too long for what is in it
    /// must come free, so there is a limit.
    fn find_long(&mut self, wanted: u32, enough: u32) -> Option<(u32, u32)> {
        if enough < LONG_RUN_PAGES || wanted < enough {
            return None;
        }
        let used = u64::from(self.bitmap.pages()) - self.bitmap.free();
        let limit = u32::try_from(used / 2 * 3).unwrap_or(u32::MAX);
        self.bitmap.find_long(wanted, limit)
    }

    /// Pages for leaves, in blocks only when there is nothing else.
    fn find_leaves(&mut self, wanted: u32, enough: u32, spared: Spared) -> Option<(u32, u32)> {
        let found = self.bitmap.find(1, enough, wanted, spared);
        found.or_else(|| self.bitmap.find(1, enough, wanted, Spared::AllBlocks))
    }

    /// Free pages for what is wanted, whatever they are kept for.
    pub(super) fn find_any(&mut self, want: Want) -> Option<(u32, u32)> {
        match want {
            Want::Leaves(wanted) => self.bitmap.find(1, LONG_RUN_PAGES, wanted, Spared::Nothing),
            Want::Branches(wanted) => {
                let found = self.bitmap.find_blocks(wanted, Spared::Nothing);
                found.or_else(|| {
                    self.bitmap
                        .find(BRANCH_PAGES, BRANCH_PAGES, BRANCH_PAGES, Spared::Nothing)
                })
            }
            Want::Piece(pages) => self.bitmap.find(pages, pages, pages, Spared::Nothing),
        }
    }

    /// Makes room for what may have to be said of a file of so many pages: bits, and that each one is retired. So that
    /// can never fail, and a full disk cannot be in the way of freeing pages.
    pub(super) fn reserve(&mut self, pages: u64) -> Result<()> {
        self.reserve_bits(pages)?;
        self.retired.reserve(pages as usize)
    }

    /// Makes room to note a long value in every place that the file has for one. A disk that is full later then refuses
    /// no value for which there are free pages.
    pub(super) fn reserve_loose_runs(&mut self, pages: u64) -> Result<()> {
        self.loose_runs.reserve(long_values_in(pages))
    }

    pub(super) fn reserve_bits(&mut self, pages: u64) -> Result<()> {
        let words = pages.div_ceil(64) as usize;
        self.bitmap.words().reserve(words)?;
        self.taken_bits.reserve(words)?;
        self.loose.words().reserve(words)
    }

    /// Gives back what was reserved for a longer file.
    pub(super) fn give_back_memory(&mut self) -> Result<()> {
        let pages = self.bitmap.pages() as usize;
        self.bitmap.words().shrink(pages.div_ceil(64))?;
        self.taken_bits.shrink(pages.div_ceil(64))?;
        self.loose.words().shrink(pages.div_ceil(64))?;
        self.retired.shrink(pages)?;
        self.loose_runs.shrink(long_values_in(pages as u64))
    }

    /// Notes whose loose pages these are.
    pub(super) fn note_loose_run(&mut self, page: u32, count: u32, owner: Owner) -> Result<()> {
        self.loose_runs.reserve(self.loose_runs.len() + 1)?;
        self.loose_runs
            .append(&[[page as u64 | (count as u64) << 32, owner.number().into()]]);
        Ok(())
    }

    /// The loose pages of those whose owner is chosen.
    pub(super) fn loose_pages(&self, is_chosen: impl Fn(u64) -> bool) -> impl Iterator<Item = u32> {
        let chosen = self.loose_runs.iter().filter(move |[_, owner]| is_chosen(*owner));
        let pages = chosen.flat_map(|&[run, _]| run as u32..run as u32 + (run >> 32) as u32);
        pages.filter(|&page| page < self.loose.pages() && self.loose.is_used(page))
    }

    /// Forgets a run.
    pub(super) fn forget_loose_run(&mut self, index: usize) {
        let last = self.loose_runs.len() - 1;
        if index < last {
            let moved = self.loose_runs[last];
            self.loose_runs.put(index, moved);
        }
        self.loose_runs.resize(last, [0; 2]);
    }

    /// Whether any page of a run is loose.
    pub(super) fn is_any_loose(&self, [run, _]: [u64; 2]) -> bool {
        let end = (run as u32 + (run >> 32) as u32).min(self.loose.pages());
        (run as u32..end).any(|page| self.loose.is_used(page))
    }

    /// How many elements of `retired` are.
    pub(super) fn retired_count(&self) -> usize {
        self.retired.len() - self.staged as usize
    }

    /// Those that are retired.
    pub(super) fn all_retired(&self) -> impl Iterator<Item = Retired> {
        let stored = &self.retired[..self.retired_count()];
        stored.iter().map(|&stored| Retired::decode(stored))
    }

    /// Notes which pages a tree takes that is being written, or gives back.
    pub(super) fn mark_taken(&mut self, page: u32, count: u32, taken: bool) {
        let (first, end) = (page as usize, page as usize + count as usize);
        self.taken_bits.note_words(first / 64..end.div_ceil(64));
        for page in first..end {
            let mask = 1 << (page % 64);
            let word = &mut self.taken_bits[page / 64];
            *word = if taken { *word | mask } else { *word & !mask };
        }
    }

    /// Pages that a tree took are free again.
    pub(super) fn count_given_up(&mut self, pages: u64) {
        let promised = pages.min(self.taken.pages);
        self.taken.pages -= promised;
        self.taken_beyond = self.taken_beyond.saturating_sub(pages - promised);
    }

    /// Makes the file longer or shorter in what is known of it.
    pub(super) fn extend(&mut self, more: u32) {
        self.bitmap.extend(more);
        self.loose.extend(more);
        self.taken_bits.resize((self.bitmap.pages() as usize).div_ceil(64), 0);
    }

    pub(super) fn cut(&mut self, pages: u32) {
        self.bitmap.cut(pages);
        self.loose.cut(pages);
        self.taken_bits.resize((pages as usize).div_ceil(64), 0);
    }

    /// Pages of the published base, its values, what commits brought, and the meta pages. What separates those is never
    /// written, so it does not count.
    pub(super) fn base(&self) -> u64 {
        let used = self.bitmap.pages() as u64 - self.bitmap.free();
        let others = self.retired_pages + self.taken.pages + self.taken_beyond;
        (used - others).saturating_sub(u64::from(META_GAP_PAGES))
    }

    /// Whether there are no more retired and taken pages than used ones. It must hold after each step.
    fn is_each_page_counted_once(&self) -> bool {
        let used = u64::from(self.bitmap.pages()) - self.bitmap.free();
        self.retired_pages + self.taken.pages + self.taken_beyond <= used
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::allocator::Claim;
    use crate::{Maintenance, Options};

    /// A process that dies halfway, and a process that dies while it takes over, leave counts that can be taken over.
    #[test]
    fn every_step_of_giving_up_a_tree_counts_each_page_once() {
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(SimDisk::new(1).platform()).expect("a store");
        let core = store.core();
        let before = core.space.lock().expect("no other process").bitmap.free();
        for (claim, wants) in [(Claim::Promised, 400), (Claim::Beyond, 300)] {
            for _ in 0..wants {
                let taken = core.space.take(claim, Want::Leaves(9), &core.pages);
                taken.expect("there is room");
            }
        }
        let steps = core.control().space.step.load(Ordering::Relaxed);
        core.space.give_up_tree().expect("no other process");
        let steps = core.control().space.step.load(Ordering::Relaxed) - steps;
        assert!(steps > 3, "{steps} steps: too little for more than one");
        let state = core.space.lock().expect("no other process");
        let grown = u64::from(state.bitmap.pages()) - state.bitmap.free();
        assert!(state.bitmap.free() > before && grown < 100, "{:?}", &*state);
        assert_eq!((state.taken.pages, state.taken_beyond), (0, 0));
    }

    const PAGES: u32 = 400_000;
    const RUN_PAGES: u32 = 64;

    /// Where leaves are written in a file whose scraps lie between every tenth page, with one long run of free pages.
    fn leaves_beside_a_run(run: u32) -> Vec<u32> {
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(SimDisk::new(1).platform()).expect("a store");
        let mut state = store.core().space.lock().expect("no other process");
        let before = state.bitmap.pages();
        let free: Vec<u32> = (0..before).filter(|&page| !state.bitmap.is_used(page)).collect();
        free.iter().for_each(|&page| state.bitmap.set(page, 1, true));
        state.reserve(u64::from(PAGES)).expect("memory");
        state.extend(PAGES - before);
        for page in (before..PAGES).step_by(10) {
            state.bitmap.set(page, 1, true);
        }
        state.bitmap.set(run, RUN_PAGES, false);
        let found = (0..8).map(|_| {
            let found = state.find(Want::Leaves(RUN_PAGES), LONG_RUN_PAGES, Room::default());
            found.expect("most pages are free").0
        });
        let found = found.collect();
        // As it was, for the store to close.
        state.bitmap.set(before, PAGES - before, false);
        state.cut(before);
        free.iter().for_each(|&page| state.bitmap.set(page, 1, false));
        found
    }

    #[test]
    fn leaves_leave_scraps_for_a_long_run_that_is_not_far_behind_what_is_used() {
        // A tenth of the pages is used: 60,000 pages are half as many again.
        let near = leaves_beside_a_run(50_000);
        assert!(near[0] < 50_000, "one search does not look that far: {near:?}");
        // Free pages before it belong to it.
        assert!(
            near.last().is_some_and(|page| (49_990..=50_000).contains(page)),
            "{near:?}"
        );
        let far = leaves_beside_a_run(100_000);
        assert!(
            far.iter().all(|&page| page < 60_000),
            "the end of the file must come free: {far:?}"
        );
    }
}
