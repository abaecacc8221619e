//! How much memory inserts can take in the worst case.
//!
//! Per entry it is about two and a half times what random keys take, because the worst case meets full nodes only. The
//! reasoning:
//! - An insert or note takes one version record.
//! - Only an insert into a full leaf divides it. A full leaf is divided at most twice, once unevenly (one new leaf) and
//!   once evenly (two). Full leaves are those that are full now, or new ones, which are built at most half full and
//!   need [`FILL_INSERTS`] inserts to become full.
//! - A divided leaf adds to a branch once. An addition that does not fit starts a branch beside the full one or copies
//!   it (into one or two). A branch may be full now, or after [`TAIL_ADDITIONS`] additions to a new one, and then the
//!   former happens to it at most once and the latter once. Either adds once to the level above.
//! - Above the root, the first addition makes a new root.

use std::mem::size_of;
use std::sync::atomic::Ordering::Relaxed;

use super::Index;
use super::arena::{HEIGHT_MAX, Header, LINE_BYTES, VersionRecord};
use super::branch::{Branch, TAIL_SLOTS};
use super::leaf::{LEAF_ENTRIES, Leaf};

/// An evenly divided leaf has this many free slots in its fuller half.
const FILL_INSERTS: u64 = LEAF_ENTRIES as u64 / 2 - 1;
/// An addition takes at most two slots.
const TAIL_ADDITIONS: u64 = TAIL_SLOTS as u64 / 2;
/// Least memory for an index: header, least filter, the first leaf and a little.
pub(super) const BYTES_MIN: usize = 4096;

/// What a small index has beside what its entries take on average, so that `has_room` does not refuse too soon.
pub(super) const RESERVE_BYTES: usize = 32 << 10;
/// Memory that a large commit is promised: a batch of 1,000 pairs is promised 2 MB.
pub(super) const LARGE_RESERVE_BYTES: usize = 2 << 20;

const LEAF_BYTES: u64 = size_of::<Leaf>() as u64;
const BRANCH_BYTES: u64 = size_of::<Branch>() as u64;

/// How many nodes of each level there are.
struct Shape {
    leaves: u64,
    height: usize,
    branches: [u64; HEIGHT_MAX],
}

impl Shape {
    /// Bytes that `entries` inserts can take at most.
    fn worst_case_bytes(&self, entries: u64) -> u64 {
        let full_leaves = self.leaves + entries / FILL_INSERTS;
        let leaf_bytes = (entries * 2 * LEAF_BYTES).min(full_leaves * 3 * LEAF_BYTES);
        let mut additions = entries.min(full_leaves * 2);
        let mut bytes = entries * size_of::<VersionRecord>() as u64 + leaf_bytes;
        for level in 0..HEIGHT_MAX {
            if additions == 0 {
                break;
            }
            let (new_roots, branches) = if level < self.height {
                (0, self.branches[level])
            } else {
                (1, 0)
            };
            let full_branches = branches + additions / TAIL_ADDITIONS;
            bytes += (new_roots + (additions * 2).min(full_branches * 3)) * BRANCH_BYTES;
            additions = additions.min(full_branches * 2);
        }
        bytes
    }
}

impl Index {
    /// True: that many inserts and notes, together, cannot run out of memory. To be asked again when a writer died in
    /// between, since what it had taken and not published is lost.
    pub(crate) fn has_room(&self, entries: usize) -> bool {
        let counters = &self.arena.header().counters;
        let shape = Shape {
            leaves: u64::from(counters.leaves.load(Relaxed)),
            height: self.root().1,
            branches: std::array::from_fn(|level| u64::from(counters.branches[level].load(Relaxed))),
        };
        shape.worst_case_bytes(entries as u64) <= self.arena.free_bytes()
    }

    /// Memory in which a new index has room for `entries`, whatever their keys are.
    pub(crate) fn bytes_for_entries(entries: usize) -> usize {
        let shape = Shape {
            leaves: 1,
            height: 0,
            branches: [0; HEIGHT_MAX],
        };
        let bytes = shape.worst_case_bytes(entries as u64) as usize + size_of::<Header>() + BYTES_MIN;
        (bytes + bytes / (super::FILTER_PART - 1)).next_multiple_of(LINE_BYTES)
    }
}
