//! What folding commits may take from the data file, at the worst, and how much of that is promised to commits that
//! are not folded yet.
//!
//! Pages alone are not enough on a disk that is full: a branch takes an aligned block of four, and a value that is too
//! long for a leaf takes its pages in one piece. So both are promised as well. Branches give back as many blocks as
//! they take, once no reader sees the old ones; leaves and other pages are taken from what is no whole block as long as
//! there is such (`space`), so the blocks that are there stay.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::datafile::bitmap::{Blocks, LARGE_BLOCK_PAGES};
use crate::limits::{BRANCH_PAGES, DELETE_RESERVE_BLOCKS, DELETE_RESERVE_PAGES, LOGGED_VALUE_BYTES_MAX, PAGE_BYTES};
use crate::log::FoldCosts;
use crate::planted::kill_point;

const _: () = assert!(
    LOGGED_VALUE_BYTES_MAX <= LARGE_BLOCK_PAGES as usize * PAGE_BYTES,
    "a fold finds room for a value in one large block"
);

/// Costs in the shared region, where others may die between one of the numbers and the next. All zeros: nothing.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SharedCosts([AtomicU64; 3]);

impl SharedCosts {
    /// SeqCst, as in `add`: `repair` compares what it finds in several places.
    pub(crate) fn load(&self) -> FoldCosts {
        FoldCosts::of(self.0.each_ref().map(|number| number.load(Ordering::SeqCst)))
    }

    pub(crate) fn store(&self, costs: FoldCosts) {
        let places = self.0.iter().zip(costs.numbers());
        places.for_each(|(place, number)| place.store(number, Ordering::Relaxed));
    }

    pub(crate) fn add(&self, costs: FoldCosts) {
        for (place, number) in self.0.iter().zip(costs.numbers()) {
            place.fetch_add(number, Ordering::SeqCst);
            kill_point();
        }
    }

    pub(crate) fn subtract(&self, costs: FoldCosts) {
        let places = self.0.iter().zip(costs.numbers());
        places.for_each(|(place, number)| _ = place.fetch_sub(number, Ordering::Relaxed));
    }

    /// Takes back what is more than what is `known`. Others may add meanwhile, which they tell first, and subtract,
    /// which shows.
    fn at_most(&self, known: impl Fn() -> FoldCosts) {
        for (index, place) in self.0.iter().enumerate() {
            loop {
                let now = place.load(Ordering::SeqCst);
                let most = known().numbers()[index];
                let lowered = || place.compare_exchange(now, most, Ordering::SeqCst, Ordering::Relaxed);
                if now <= most || lowered().is_ok() {
                    break;
                }
            }
        }
    }
}

/// Pages of the data file, and how many blocks must be among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) pages: u64,
    pub(crate) blocks: Blocks,
}

impl Room {
    /// What is kept for deletions.
    pub(crate) const RESERVE: Room = Room {
        pages: DELETE_RESERVE_PAGES,
        blocks: Blocks {
            small: DELETE_RESERVE_BLOCKS,
            large: 0,
        },
    };

    pub(crate) fn and(self, other: Room) -> Room {
        Room {
            pages: self.pages + other.pages,
            blocks: Blocks {
                small: self.blocks.small + other.blocks.small,
                large: self.blocks.large + other.blocks.large,
            },
        }
    }

    /// Small blocks that must be there: those in large ones that are needed whole do not count twice.
    pub(crate) fn small_blocks(self) -> u64 {
        self.blocks.small + self.blocks.large * (LARGE_BLOCK_PAGES / BRANCH_PAGES) as u64
    }

    /// Pages by which a file must grow to offer this when it offers `available`.
    pub(crate) fn missing_in(self, available: Room) -> u64 {
        let small = self.small_blocks().saturating_sub(available.blocks.small) * BRANCH_PAGES as u64;
        let large = self.blocks.large.saturating_sub(available.blocks.large) * LARGE_BLOCK_PAGES as u64;
        let in_blocks = match small.max(large) {
            0 => 0,
            // New pages need not begin at a block.
            pages => pages + LARGE_BLOCK_PAGES as u64 - 1,
        };
        self.pages.saturating_sub(available.pages).max(in_blocks)
    }
}

/// What is promised. It lies in the shared region.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Promises {
    /// What all commits that are not folded cost.
    pending: SharedCosts,
    /// Height of the base.
    height: AtomicU64,
    /// Branches of the base.
    branches: AtomicU64,
    /// Nonzero: folds are not done step by step, because what they replace is kept.
    in_one: AtomicU64,
}

/// A pair that comes into the middle of a full leaf can leave three behind.
pub(crate) const LEAVES_PER_OPERATION: u64 = 3;

/// When the branches were not counted.
const UNKNOWN: u64 = u64::MAX;

/// Changes to all of a large base are folded in so many steps at most, each of which is published.
const FOLD_STEPS_MAX: u64 = 32;
/// Pages of the base for each step, at least: a step waits for the device twice.
const STEP_PAGES_MIN: u64 = 1536;

impl Promises {
    /// Nothing is promised, and the branches were not counted.
    pub(crate) fn begin(&self) {
        self.pending.store(FoldCosts::default());
        self.height.store(0, Ordering::Relaxed);
        self.branches.store(UNKNOWN, Ordering::Relaxed);
        self.in_one.store(0, Ordering::Relaxed);
    }

    /// From now on folds are done in one. Returns whether they were.
    pub(crate) fn fold_in_one(&self) -> bool {
        self.in_one.swap(1, Ordering::Relaxed) != 0
    }

    /// Folds may be done step by step again.
    pub(crate) fn fold_in_steps(&self) {
        self.in_one.store(0, Ordering::Relaxed);
    }

    /// In how many steps changes to all of a base of so many pages are folded.
    pub(crate) fn fold_steps(&self, base: u64) -> u64 {
        match base / STEP_PAGES_MIN {
            // What two steps replace is free too late.
            ..3 => 1,
            _ if self.in_one.load(Ordering::Relaxed) != 0 => 1,
            steps => steps.min(FOLD_STEPS_MAX),
        }
    }

    /// Pages that rewriting all of a base of so many pages takes at once, with so many blocks for branches. What is
    /// rewritten comes out eight ninths full.
    fn rewritten_at_once(&self, base: u64, branches: u64) -> u64 {
        let all = base + base / 8 + 12;
        match self.fold_steps(base) {
            1 => all,
            // Steps are not equal, and what one has replaced comes free when the next one is done. Never less than of a
            // smaller base.
            steps => (all * 5 / 2 / steps + branches * BRANCH_PAGES as u64).max(3 * STEP_PAGES_MIN * 9 / 8 + 12),
        }
    }

    pub(crate) fn add(&self, costs: FoldCosts) {
        self.pending.add(costs);
    }

    pub(crate) fn settle(&self, costs: FoldCosts) {
        self.pending.subtract(costs);
    }

    /// Takes back what is more than what is `known` to be promised.
    pub(crate) fn at_most(&self, known: impl Fn() -> FoldCosts) {
        self.pending.at_most(known);
    }

    /// What all commits that are not folded cost.
    pub(crate) fn pending(&self) -> FoldCosts {
        self.pending.load()
    }

    /// The base has another height, or other branches.
    pub(crate) fn tree_is(&self, height: u8, branches: Option<u64>) {
        self.height.store(height as u64, Ordering::Relaxed);
        self.branches.store(branches.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// What folding all that is pending may take from a file of which `base` pages are in use. Each operation rewrites
    /// a leaf and its branches and makes them split; but the tree is rewritten at most once, a large one step by step,
    /// and where neighbours are rewritten together, they come out eight ninths full (see `btree::merge`), which also
    /// holds for what is new. And the bitmap may get longer.
    pub(crate) fn needed(&self, base: u64) -> Room {
        let FoldCosts {
            operations,
            bytes,
            value_pages,
        } = self.pending();
        let height = self.height.load(Ordering::Relaxed).max(2);
        let branches = match self.branches.load(Ordering::Relaxed) {
            UNKNOWN => base / 32,
            branches => branches,
        };
        let new = (bytes + operations * 16) * 9 / 8 / PAGE_BYTES as u64;
        let all_branches = branches + branches / 8 + new / 32 + height + 2;
        let small = (operations * (height + 1)).min(all_branches);
        let rewritten = operations * LEAVES_PER_OPERATION + small * BRANCH_PAGES as u64;
        Room {
            pages: rewritten.min(self.rewritten_at_once(base, small)) + new + 2 * (base >> 15) + 16,
            blocks: Blocks {
                small,
                // Each large block but the last comes out at least half full.
                large: (2 * value_pages).div_ceil(LARGE_BLOCK_PAGES as u64) + (value_pages > 0) as u64,
            },
        }
    }
}
