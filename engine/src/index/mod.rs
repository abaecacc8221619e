//! The ordered index of one log generation ("M"): which keys the generation's log holds, and where each version lies.
//!
//! Data comes from the writer, which inserts every operation of a commit after its record is in the log and before the
//! commit becomes visible. It goes to readers (point reads and cursors), to conflict checks and to the fold, which
//! walks a frozen generation in key order. Keys and values are not here: they are in the log and reached through
//! [`Keys`].
//!
//! The memory is one piece that several processes map, each at its own address: offsets, no pointers, all state inside.
//! There is one writer at a time (the caller holds the commit lock) and any number of readers that take no lock, never
//! wait and never start over. Nothing is removed or reused; the memory is given up as a whole.
//!
//! # How readers and the writer get along
//! The index is a B+tree. What readers see of it changes in three ways only, each a single store: a leaf or branch gets
//! its next slots (its count), an entry gets a newer version (its reference), the tree gets a new root. Everything else
//! is written once, before the store that makes it reachable. A full node is not changed but copied into new ones, and
//! the old one is abandoned where it is: a reader inside it goes on undisturbed.
//!
//! Why an abandoned node is as good as a new one: a reader takes its commit number first and descends afterwards. When
//! it reads the word that leads it to a node, the node holds everything inserted until then, in particular everything
//! up to its commit number; what is inserted into the copies later has higher numbers, which it ignores. So the only
//! rule is that one word leads either to the old node or to *all* of its copies; `branch.rs` says how.
//!
//! These rules also make the death of a writer harmless at any instruction: what it stored is the index before or after
//! its insert. Its successor inserts the operations of the interrupted commit again; those that are there are
//! recognised.
//!
//! # Invariants
//! - The versions of an entry have commits that do not increase from the newest to the oldest.
//! - Every separator is a key in the leaf it leads to; so every leaf but the first root holds an entry.
//! - `has_room(n)` is a worst case: nothing in `n` inserts and notes can run out of memory after it said yes.

mod arena;
mod branch;
mod cursor;
mod filter;
mod finger;
mod head;
mod leaf;
mod newer;
mod room;
#[cfg(test)]
mod tests;
mod write;

use std::mem::size_of;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use arrayvec::ArrayVec;

pub(crate) use arena::Versions;
pub(crate) use cursor::{IndexCursor, OUT_OF_ORDER};
pub(crate) use finger::{Finger, Fingers, KeptFingers};

use crate::checksum::key_tag;
use arena::{Arena, HEIGHT_MAX, Header, LINE_BYTES, NONE, VersionRecord};
use branch::{Bound, Branch, Slots};
use filter::Filter;
use finger::At;
use head::Frame;
use leaf::Leaf;

/// Gives the keys of a generation by their positions in its log.
pub(crate) trait Keys<'a>: Copy {
    /// Full key of the operation at `position` of the generation's log. Positions come from [`Index::insert`] and lead
    /// to the same bytes while the index exists. `u32::MAX` is not a position.
    fn key(self, position: u32) -> &'a [u8];

    /// Says that this key, and the bytes after it, will be read soon.
    #[inline]
    fn prefetch(self, _position: u32) {}
}

/// One version of a key, a range delete or a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// The commit that made it.
    pub(crate) commit: u64,
    /// Where its operation lies in the generation's log.
    pub(crate) position: u32,
}

/// Handle of an index; a copy is the same index.
#[derive(Clone, Copy)]
pub(crate) struct Index {
    arena: Arena,
    filter: Filter,
}

/// Where a descent went: the slots a branch had when it was read, and the slot that was taken.
#[derive(Clone, Copy)]
struct Step {
    branch: u32,
    slots: Slots,
    slot: u16,
}

/// From the root down to the branch above the leaf.
type Path = ArrayVec<Step, HEIGHT_MAX>;

/// "durindx" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"durindx\x03");
/// Size of the log of a quiet store, whose index should be small.
const SMALL_LOG_BYTES: usize = 1 << 20;
/// One part in this many of the memory is the filter: a 64th of the log or a little more.
const FILTER_PART: usize = 25;
/// Offsets have 32 bits, and the last one means "nothing".
const BYTES_MAX: usize = u32::MAX as usize & !(LINE_BYTES - 1);

impl Index {
    /// Memory suited to a generation whose log holds `log_bytes` of records of about 130 bytes (170 in small logs).
    /// Smaller records fill it before the log is full; [`Index::has_room`] tells.
    pub(crate) fn bytes_for(log_bytes: u64) -> usize {
        let log_bytes = usize::try_from(log_bytes).unwrap_or(usize::MAX).min(BYTES_MAX);
        let beyond = log_bytes.saturating_sub(SMALL_LOG_BYTES);
        let reserve = (beyond / 4).min(room::LARGE_RESERVE_BYTES).max(beyond / 10);
        let reserve = reserve.max(room::RESERVE_BYTES);
        (log_bytes / 5 * 2 + reserve).min(BYTES_MAX) & !(LINE_BYTES - 1)
    }

    /// Bytes at the front of so much memory that making an index of it writes.
    pub(crate) fn cleared_bytes(bytes: u64) -> u64 {
        bytes / FILTER_PART as u64 + size_of::<Header>() as u64
    }

    /// Makes an empty index of memory with any content. Only the filter (a 25th of the memory) is cleared.
    ///
    /// # Safety
    /// `memory` starts at a cache line (64 bytes); `bytes` bytes from it on are readable and writable for as long as
    /// this handle or a copy of it is used; no thread uses an index that was there before.
    pub(crate) unsafe fn create(memory: *mut u8, bytes: usize) -> Index {
        assert!(
            bytes >= room::BYTES_MIN,
            "an index needs at least {} bytes, not {bytes}",
            room::BYTES_MIN
        );
        let bytes = bytes.min(BYTES_MAX) & !(LINE_BYTES - 1);
        // SAFETY: the caller guarantees alignment, extent and lifetime.
        let arena = unsafe { Arena::new(memory, bytes as u32) };
        let filter = Filter::new((bytes / FILTER_PART / 8).max(8) as u32);
        let index = Index { arena, filter };
        // A half-made index is not attached to: the magic goes first and comes last.
        arena.header().magic.store(0, Release);
        filter.clear(&arena);
        index.format();
        // Pairs with Acquire in `attach`.
        arena.header().magic.store(MAGIC, Release);
        index
    }

    fn format(&self) {
        let header = self.arena.header();
        header.bytes.store(self.arena.bytes(), Relaxed);
        header.filter_words.store(self.filter.words(), Relaxed);
        header.range_deletes.store(NONE, Relaxed);
        header.runs.store(NONE, Relaxed);
        let counters = &header.counters;
        counters
            .nodes_end
            .store(self.filter.end().next_multiple_of(LINE_BYTES as u64) as u32, Relaxed);
        counters.versions_start.store(self.arena.bytes(), Relaxed);
        counters.entries.store(0, Relaxed);
        counters.versions.store(0, Relaxed);
        counters.leaves.store(1, Relaxed);
        counters.branches.iter().for_each(|level| level.store(0, Relaxed));
        let (offset, leaf) = self.arena.allocate_node::<Leaf>();
        leaf.format(Frame::WHOLE, &[], 0);
        self.set_root(offset, 0);
    }

    /// Handle of the index that was created in this memory; `None` when there is none of this size and layout.
    ///
    /// # Safety
    /// As for [`Index::create`], but an index may be there and in use.
    pub(crate) unsafe fn attach(memory: *mut u8, bytes: usize) -> Option<Index> {
        if bytes < room::BYTES_MIN {
            return None;
        }
        let bytes = bytes.min(BYTES_MAX) & !(LINE_BYTES - 1);
        // SAFETY: the caller guarantees alignment, extent and lifetime.
        let arena = unsafe { Arena::new(memory, bytes as u32) };
        let header = arena.header();
        // Acquire: pairs with Release in `create`.
        if header.magic.load(Acquire) != MAGIC || header.bytes.load(Relaxed) != arena.bytes() {
            return None;
        }
        let words = header.filter_words.load(Relaxed);
        // Before the end of the nodes, which the writer moves before it publishes a new root there. Acquire: pairs with
        // Release in `set_root`, so that the end is at least the one of then.
        let (root, height) = unpack_root(header.root.load(Acquire));
        let nodes_end = header.counters.nodes_end.load(Relaxed);
        let versions_start = header.counters.versions_start.load(Relaxed);
        let is_sound = words > 0
            && Filter::new(words).end() < u64::from(nodes_end)
            && root < nodes_end
            && nodes_end <= versions_start
            && versions_start <= arena.bytes()
            && height <= HEIGHT_MAX;
        is_sound.then(|| Index {
            arena,
            filter: Filter::new(words),
        })
    }

    /// False: no key with this hash is in the index for a reader that took its commit number before it asked.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        self.filter.may_contain(&self.arena, hash)
    }

    /// Asks the processor for what `find` looks at first.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.filter.prefetch(&self.arena, hash);
    }

    /// Newest version of a key with `commit <= newest_commit`.
    pub(crate) fn find<'a, K: Keys<'a>>(
        &self,
        keys: K,
        full_key: &[u8],
        hash: u64,
        newest_commit: u64,
    ) -> Option<Version> {
        if !self.may_contain(hash) {
            return None;
        }
        let leaf: &Leaf = self.arena.at(self.descend(keys, full_key, Bound::AtMost, |_| ()));
        let slot = leaf.find(&self.arena, keys, full_key, key_tag(hash), leaf.count())?;
        self.visible(leaf.reference(slot), newest_commit)
    }

    /// Newest version of a key of all that are there, looked for at a finger first. The caller holds the commit lock.
    pub(crate) fn find_near<'a, K: Keys<'a>>(
        &self,
        keys: K,
        full_key: &[u8],
        hash: u64,
        finger: Finger,
    ) -> Option<Version> {
        match self.at_finger(keys, finger, full_key, key_tag(hash)) {
            Some(At::Slot(leaf, slot)) => self.visible(leaf.reference(slot), u64::MAX),
            Some(At::Room(_)) => None,
            None => self.find(keys, full_key, hash, u64::MAX),
        }
    }

    /// Newest version with `commit <= newest_commit` of those from `reference` back.
    fn visible(&self, reference: u32, newest_commit: u64) -> Option<Version> {
        Versions::new(self.arena, reference).find(|version| version.commit <= newest_commit)
    }

    /// Leaves of the index.
    pub(crate) fn leaves(&self) -> usize {
        self.arena.header().counters.leaves.load(Relaxed) as usize
    }

    /// Keys in order that divide the index into pieces of so many leaves; the first of them is empty. Of an index that
    /// takes no more entries.
    pub(crate) fn samples<'a, K: Keys<'a>>(&self, keys: K, every: usize) -> Vec<&'a [u8]> {
        let mut samples: Vec<&[u8]> = vec![&[]];
        let (mut path, mut start) = (Path::new(), samples[0]);
        let mut passed = 0;
        loop {
            path.clear();
            self.descend(keys, start, Bound::AtMost, |step| path.push(step));
            let Some(step) = path.pop() else { break };
            let branch: &Branch = self.arena.at(step.branch);
            for placed in branch.children_with(keys, step.slots, &[]) {
                if passed > 0 && passed % every == 0 {
                    samples.push(keys.key(placed.child.separator));
                }
                passed += 1;
            }
            match self.fence_after(keys, &path, start) {
                NONE => break,
                fence => start = keys.key(fence),
            }
        }
        samples
    }

    /// Range deletes, newest first.
    pub(crate) fn range_deletes(&self) -> Versions {
        // Acquire: pairs with Release in `note`.
        Versions::new(self.arena, self.arena.header().range_deletes.load(Acquire))
    }

    /// Runs, newest first.
    pub(crate) fn runs(&self) -> Versions {
        // Acquire: pairs with Release in `note`.
        Versions::new(self.arena, self.arena.header().runs.load(Acquire))
    }

    /// Whether there is any key. Unlike a counter this cannot be wrong after a writer died in an insert.
    #[inline]
    pub(crate) fn has_keys(&self) -> bool {
        let (root, height) = self.root();
        height > 0 || self.arena.at::<Leaf>(root).count() > 0
    }

    /// Whether there is any run.
    #[inline]
    pub(crate) fn has_runs(&self) -> bool {
        // Acquire: pairs with Release in `note`.
        self.arena.header().runs.load(Acquire) != NONE
    }

    /// Whether there is any range delete or run.
    #[inline]
    pub(crate) fn has_notes(&self) -> bool {
        self.has_range_deletes() || self.has_runs()
    }

    /// Whether there is any range delete.
    #[inline]
    pub(crate) fn has_range_deletes(&self) -> bool {
        // Acquire: pairs with Release in `note`.
        self.arena.header().range_deletes.load(Acquire) != NONE
    }

    /// The newest commit with a range delete; 0: none.
    #[inline]
    pub(crate) fn newest_range_delete(&self) -> u64 {
        // Acquire: pairs with Release in `note`.
        match self.arena.header().range_deletes.load(Acquire) {
            NONE => 0,
            newest => self.arena.at::<VersionRecord>(newest).version().commit,
        }
    }

    /// Keys in the index. May be one short for every writer that died in an insert.
    pub(crate) fn entries(&self) -> u64 {
        self.arena.header().counters.entries.load(Relaxed)
    }

    /// Versions of all keys together. May be one short for every writer that died in an insert.
    #[cfg(test)]
    pub(crate) fn versions(&self) -> u64 {
        self.arena.header().counters.versions.load(Relaxed)
    }

    /// Where the memory is in use: header, filter and nodes at its front, versions at its back.
    pub(crate) fn used_parts(&self) -> [Range<u64>; 2] {
        let counters = &self.arena.header().counters;
        let nodes_end = counters.nodes_end.load(Relaxed);
        let versions_start = counters.versions_start.load(Relaxed);
        [0..nodes_end.into(), versions_start.into()..self.arena.bytes().into()]
    }

    /// Bytes of the memory that are in use, header and filter included.
    #[cfg(test)]
    pub(crate) fn used_bytes(&self) -> usize {
        self.arena.bytes() as usize - self.arena.free_bytes() as usize
    }

    /// Offset of the leaf that `bound` leads to; `visit` sees every branch on the way.
    #[inline]
    fn descend<'a, K: Keys<'a>>(&self, keys: K, key: &[u8], bound: Bound, mut visit: impl FnMut(Step)) -> u32 {
        let (mut node, height) = self.root();
        for _ in 0..height {
            self.arena.prefetch::<Branch>(node);
            let branch: &Branch = self.arena.at(node);
            let slots = branch.slots();
            let slot = branch.choose(keys, slots, key, bound);
            visit(Step {
                branch: node,
                slots,
                slot: slot as u16,
            });
            node = branch.child(slot);
        }
        self.arena.prefetch::<Leaf>(node);
        node
    }

    /// Separator of the node that `path` leads to: the least key it may hold.
    fn fence_before(&self, path: &[Step]) -> u32 {
        path.last().map_or(NONE, |step| {
            self.arena.at::<Branch>(step.branch).separator(step.slot as usize)
        })
    }

    /// Where the next node of the same level begins, for a `key` in the range of the node that `path` leads to.
    fn fence_after<'a, K: Keys<'a>>(&self, keys: K, path: &[Step], key: &[u8]) -> u32 {
        let after = |step: &Step| {
            self.arena
                .at::<Branch>(step.branch)
                .separator_after(keys, step.slots, key)
        };
        path.iter().rev().find_map(after).unwrap_or(NONE)
    }

    /// Offset of the root and number of branch levels. Acquire: pairs with Release in [`Index::set_root`].
    #[inline]
    fn root(&self) -> (u32, usize) {
        unpack_root(self.arena.header().root.load(Acquire))
    }

    fn set_root(&self, node: u32, height: usize) {
        assert!(height <= HEIGHT_MAX);
        self.arena
            .header()
            .root
            .store((height as u64) << 32 | u64::from(node), Release);
    }
}

#[inline]
fn unpack_root(word: u64) -> (u32, usize) {
    (word as u32, (word >> 32) as usize)
}

const _: () = assert!(size_of::<VersionRecord>() == 16 && size_of::<Header>() == 192);
