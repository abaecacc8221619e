//! The raw memory of one index: nodes grow from the front, version records from the back, nothing is ever freed.
//!
//! Everything in it is addressed by a byte offset from the start, because every process maps it elsewhere, and every
//! word of it is an atomic, so that a reference to a half-filled node is sound while the writer fills the rest. The
//! one place where an offset becomes a reference is [`Arena::at`], which checks bounds and alignment.
//!
//! Invariants: `header + filter <= nodes_end <= versions_start <= bytes`; memory below `nodes_end` and from
//! `versions_start` on is never handed out again.

use std::mem::{align_of, size_of};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::Version;

/// The offset that means "nothing" and the log position that means "below every key".
pub(super) const NONE: u32 = u32::MAX;
/// Nodes start at cache lines.
pub(super) const LINE_BYTES: usize = 64;
/// Branch levels an index can have. Every level multiplies the entries by at least eight, and offsets have 32 bits.
pub(super) const HEIGHT_MAX: usize = 10;

/// What stands at the start of the memory. The first line is read by everybody and hardly ever written, the others
/// belong to the writer, so that an insert does not take the first line away from readers.
#[repr(C, align(64))]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) bytes: AtomicU32,
    pub(super) filter_words: AtomicU32,
    /// Height in the upper half, offset of the root in the lower: one store publishes both.
    pub(super) root: AtomicU64,
    /// The newest range delete and the newest run.
    pub(super) range_deletes: AtomicU32,
    pub(super) runs: AtomicU32,
    unused: [AtomicU32; 8],
    pub(super) counters: Counters,
}

/// What only the writer changes; anybody may look.
#[repr(C, align(64))]
pub(super) struct Counters {
    pub(super) nodes_end: AtomicU32,
    pub(super) versions_start: AtomicU32,
    pub(super) entries: AtomicU64,
    pub(super) versions: AtomicU64,
    pub(super) leaves: AtomicU32,
    /// Branches that are part of the tree, by level; 0 is the level above the leaves.
    pub(super) branches: [AtomicU32; HEIGHT_MAX],
}

/// One version of one key, a range delete or a run.
#[repr(C, align(16))]
pub(super) struct VersionRecord {
    commit: AtomicU64,
    position: AtomicU32,
    previous: AtomicU32,
}

impl VersionRecord {
    pub(super) fn version(&self) -> Version {
        Version {
            commit: self.commit.load(Relaxed),
            position: self.position.load(Relaxed),
        }
    }

    pub(super) fn previous(&self) -> u32 {
        self.previous.load(Relaxed)
    }
}

/// Types that may be laid over the memory.
///
/// # Safety
/// Every field is an atomic integer: any bit pattern is valid, and shared references tolerate writers.
pub(super) unsafe trait Shared {}

// SAFETY: atomic integers only.
unsafe impl Shared for Header {}
// SAFETY: atomic integers only.
unsafe impl Shared for VersionRecord {}
// SAFETY: an atomic integer.
unsafe impl Shared for AtomicU64 {}

/// Handle of the memory.
#[derive(Clone, Copy)]
pub(super) struct Arena {
    base: *mut u8,
    bytes: u32,
}

// SAFETY: the memory behind `base` is reached only through atomics, and `Arena::new` demands that it stays.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// # Safety
    /// `base` is aligned to a cache line; `bytes` bytes from it on are readable and writable for as long as this
    /// handle or a copy of it is used, and are used by nothing else but handles of the same index.
    pub(super) unsafe fn new(base: *mut u8, bytes: u32) -> Arena {
        assert!(
            base.addr().is_multiple_of(LINE_BYTES),
            "index memory must start at a cache line"
        );
        assert!(
            bytes as usize >= size_of::<Header>(),
            "index memory of {bytes} bytes does not hold its header"
        );
        Arena { base, bytes }
    }

    #[inline]
    pub(super) fn at<T: Shared>(&self, offset: u32) -> &T {
        let offset = offset as usize;
        assert!(
            offset + size_of::<T>() <= self.bytes as usize && offset.is_multiple_of(align_of::<T>()),
            "offset {offset} leads out of the index"
        );
        // SAFETY: in bounds and aligned by the check above (the base is aligned to a cache line, as much as any T
        // needs); `Shared` makes any content valid and concurrent stores sound; the memory stays by `new`.
        unsafe { &*self.base.wrapping_add(offset).cast::<T>() }
    }

    /// Asks the processor for the lines of a node, so that misses that would come one after the other come together.
    #[inline]
    pub(super) fn prefetch<T: Shared>(&self, offset: u32) {
        let node = std::ptr::from_ref(self.at::<T>(offset)).cast::<u8>();
        (0..size_of::<T>())
            .step_by(LINE_BYTES)
            .for_each(|line| duramen_io::prefetch(node.wrapping_add(line)));
    }

    #[inline]
    pub(super) fn header(&self) -> &Header {
        self.at(0)
    }

    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Bytes not handed out yet.
    pub(super) fn free_bytes(&self) -> u64 {
        let counters = &self.header().counters;
        u64::from(counters.versions_start.load(Relaxed)) - u64::from(counters.nodes_end.load(Relaxed))
    }

    /// Memory for a node. The counter moves before the node is used: a writer that dies in between wastes the
    /// node, and its successor never hands out memory that readers may hold.
    pub(super) fn allocate_node<T: Shared>(&self) -> (u32, &T) {
        let bytes = size_of::<T>();
        debug_assert!(bytes.is_multiple_of(LINE_BYTES));
        assert!(
            self.free_bytes() >= bytes as u64,
            "the index is full: has_room was not asked"
        );
        let counters = &self.header().counters;
        let offset = counters.nodes_end.load(Relaxed);
        counters.nodes_end.store(offset + bytes as u32, Relaxed);
        (offset, self.at(offset))
    }

    /// Offset of a new version record, filled but not yet published.
    pub(super) fn allocate_version(&self, version: Version, previous: u32) -> u32 {
        let bytes = size_of::<VersionRecord>();
        assert!(
            self.free_bytes() >= bytes as u64,
            "the index is full: has_room was not asked"
        );
        let counters = &self.header().counters;
        let offset = counters.versions_start.load(Relaxed) - bytes as u32;
        counters.versions_start.store(offset, Relaxed);
        let record: &VersionRecord = self.at(offset);
        record.commit.store(version.commit, Relaxed);
        record.position.store(version.position, Relaxed);
        record.previous.store(previous, Relaxed);
        offset
    }
}

/// Adds to a counter that only the writer changes: no locked instruction is needed.
pub(super) fn count_up(counter: &AtomicU32) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// As [`count_up`].
pub(super) fn count_up_wide(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// Versions from a record back to the oldest.
pub(crate) struct Versions {
    arena: Arena,
    next: u32,
}

impl Versions {
    pub(super) fn new(arena: Arena, newest: u32) -> Versions {
        Versions { arena, next: newest }
    }
}

impl Iterator for Versions {
    type Item = Version;

    fn next(&mut self) -> Option<Version> {
        if self.next == NONE {
            return None;
        }
        let record: &VersionRecord = self.arena.at(self.next);
        self.next = record.previous();
        Some(record.version())
    }
}
