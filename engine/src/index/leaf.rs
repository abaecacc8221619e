//! A leaf: up to 32 entries in the order in which they arrived.
//!
//! ```text
//! line 0     count, frame (skip, sure, prefix), state | 32 tags, one byte of the key's hash each | newest commit
//! lines 1-2  32 references: offset of the newest version record of the entry
//! lines 3-4  32 positions: where the key is in the log
//! lines 5-6  32 heads of 4 bytes
//! ```
//! A new entry is written into the slot `count`, then `count` is stored with Release: that store publishes it. A new
//! version of an entry is one Release store of its reference. Slots below `count` change in no other way, slots from
//! `count` on are read by the writer only. A search for one key looks at the tags; heads serve the order only,
//! for which four bytes are enough in so narrow a range of keys. The position is also in the version record; it is here
//! so that a find waits for the key and for the version at the same time and not one after the other.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use arrayvec::ArrayVec;

use super::Keys;
use super::arena::{Arena, Shared, VersionRecord};
use super::head::{Frame, StoredFrame};

/// Entries of a leaf.
pub(super) const LEAF_ENTRIES: usize = 32;
/// Bytes of a head in a leaf.
pub(super) const LEAF_HEAD_BYTES: usize = 4;
const TAG_WORDS: usize = LEAF_ENTRIES / 8;

const OPEN: u32 = 0;
/// The leaf was once left as it is by an uneven split and must be divided evenly the next time.
const CLOSED: u32 = 1;
/// There are copies of the leaf, or they are being made; who made them died, perhaps, before they could be reached.
const COPIED: u32 = 2;

#[repr(C, align(64))]
pub(super) struct Leaf {
    count: AtomicU32,
    frame: StoredFrame,
    /// [`OPEN`] or what became of the leaf. For writers only.
    state: AtomicU32,
    tags: [AtomicU64; TAG_WORDS],
    /// No version in it is of a later commit.
    newest: AtomicU64,
    unused: AtomicU64,
    references: [AtomicU32; LEAF_ENTRIES],
    positions: [AtomicU32; LEAF_ENTRIES],
    heads: [AtomicU32; LEAF_ENTRIES],
}

// SAFETY: atomic integers only.
unsafe impl Shared for Leaf {}

const _: () = assert!(size_of::<Leaf>() == 448);

/// What a leaf holds of one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) head: u32,
    pub(super) reference: u32,
    pub(super) position: u32,
    pub(super) tag: u8,
}

/// Slot and head of an entry: compares as the heads do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ranked(u64);

impl Ranked {
    fn new(head: u32, slot: usize) -> Ranked {
        Ranked(u64::from(head) << 32 | slot as u64)
    }

    pub(super) fn head(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn slot(self) -> usize {
        self.0 as u32 as usize
    }
}

/// Entries of a leaf in the order of their keys.
pub(super) type Order = ArrayVec<Ranked, LEAF_ENTRIES>;

impl Leaf {
    /// Prepares a leaf that no reader can see yet.
    pub(super) fn format(&self, frame: Frame, entries: &[Entry], newest: u64) {
        assert!(entries.len() <= LEAF_ENTRIES);
        self.frame.set(frame);
        self.state.store(OPEN, Relaxed);
        self.newest.store(newest, Relaxed);
        self.unused.store(0, Relaxed);
        for (slot, entry) in entries.iter().enumerate() {
            self.fill(slot, *entry);
        }
        self.count.store(entries.len() as u32, Relaxed);
    }

    /// The commit after which no version in it is.
    #[inline]
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Relaxed)
    }

    /// Says that a version of this commit is about to be added. Relaxed: who sees the commit sees this.
    #[inline]
    pub(super) fn expect(&self, commit: u64) {
        self.newest.store(commit, Relaxed);
    }

    /// Adds an entry. Release: pairs with Acquire in [`Leaf::count`].
    pub(super) fn push(&self, entry: Entry) {
        let count = self.count.load(Relaxed) as usize;
        self.fill(count, entry);
        self.count.store(count as u32 + 1, Release);
    }

    fn fill(&self, slot: usize, entry: Entry) {
        self.heads[slot].store(entry.head, Relaxed);
        self.references[slot].store(entry.reference, Relaxed);
        self.positions[slot].store(entry.position, Relaxed);
        let tags = &self.tags[slot / 8];
        let shift = slot % 8 * 8;
        tags.store(
            tags.load(Relaxed) & !(0xFF << shift) | u64::from(entry.tag) << shift,
            Relaxed,
        );
    }

    /// Entries published. Acquire: pairs with Release in [`Leaf::push`] and shows what the slots hold.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count.load(Acquire) as usize
    }

    #[inline]
    pub(super) fn frame(&self) -> Frame {
        self.frame.get()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Relaxed) != OPEN
    }

    pub(super) fn close(&self) {
        self.state.store(CLOSED, Relaxed);
    }

    #[inline]
    pub(super) fn is_copied(&self) -> bool {
        self.state.load(Relaxed) == COPIED
    }

    /// To be called before the copies can be reached, so that no writer after this one takes the leaf for one of the
    /// tree.
    pub(super) fn is_being_copied(&self) {
        self.state.store(COPIED, Relaxed);
    }

    /// Newest version record of the entry in `slot`. Acquire: pairs with Release in [`Leaf::set_reference`].
    #[inline]
    pub(super) fn reference(&self, slot: usize) -> u32 {
        self.references[slot].load(Acquire)
    }

    /// Publishes a newer version of the entry in `slot`.
    pub(super) fn set_reference(&self, slot: usize, reference: u32) {
        self.references[slot].store(reference, Release);
    }

    /// Where the key of the entry in `slot` is in the log.
    #[inline]
    pub(super) fn position(&self, slot: usize) -> u32 {
        self.positions[slot].load(Relaxed)
    }

    pub(super) fn entry(&self, ranked: Ranked) -> Entry {
        let slot = ranked.slot();
        let tag = (self.tags[slot / 8].load(Relaxed) >> (slot % 8 * 8)) as u8;
        Entry {
            head: ranked.head(),
            reference: self.reference(slot),
            position: self.position(slot),
            tag,
        }
    }

    /// Slot of `key` among the first `count`.
    #[inline]
    pub(super) fn find<'a, K: Keys<'a>>(
        &self,
        arena: &Arena,
        keys: K,
        key: &[u8],
        tag: u8,
        count: usize,
    ) -> Option<usize> {
        // Of 12 leaves one has another key with the tag; its head tells without a look into the log.
        let frame = self.frame();
        let head = frame.is_sure().then(|| leaf_head(frame.head(keys, key)));
        for (word_index, word) in self.tags[..count.div_ceil(8)].iter().enumerate() {
            let mut matches = bytes_equal(word.load(Relaxed), tag);
            while matches != 0 {
                let slot = word_index * 8 + matches.trailing_zeros() as usize / 8;
                matches &= matches - 1;
                if slot >= count {
                    return None;
                }
                if head.is_some_and(|head| head != self.heads[slot].load(Relaxed)) {
                    continue;
                }
                // The version is wanted next: this waits for both at once.
                arena.prefetch::<VersionRecord>(self.reference(slot));
                if keys.key(self.position(slot)) == key {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// The first `count` entries in the order of their keys.
    pub(super) fn order<'a, K: Keys<'a>>(&self, keys: K, count: usize) -> Order {
        let heads = self.heads[..count].iter().enumerate();
        let mut order: Order = heads
            .map(|(slot, head)| Ranked::new(head.load(Relaxed), slot))
            .collect();
        order.sort_unstable();
        for run in order.chunk_by_mut(|left, right| left.head() == right.head()) {
            if run.len() > 1 {
                let key = |ranked: &Ranked| keys.key(self.position(ranked.slot()));
                // Stable, because entries that arrived in order are found in order and cost one comparison each.
                run.sort_by(|left, right| key(left).cmp(key(right)));
            }
        }
        order
    }

    /// How many entries of `order` are below `key`.
    pub(super) fn rank<'a, K: Keys<'a>>(&self, keys: K, order: &Order, key: &[u8]) -> usize {
        let head = leaf_head(self.frame().head(keys, key));
        let first = order.partition_point(|ranked| ranked.head() < head);
        let equal = order[first..].partition_point(|ranked| ranked.head() == head);
        let run = &order[first..first + equal];
        first + run.partition_point(|ranked| keys.key(self.position(ranked.slot())) < key)
    }
}

/// The part of a head that leaves keep.
pub(super) fn leaf_head(head: u64) -> u32 {
    (head >> 32) as u32
}

/// The top bit of every byte of `word` that equals `byte`, exactly.
#[inline]
fn bytes_equal(word: u64, byte: u8) -> u64 {
    const LOW_BITS: u64 = 0x7F7F_7F7F_7F7F_7F7F;
    let difference = word ^ (u64::from(byte) * 0x0101_0101_0101_0101);
    !(((difference & LOW_BITS) + LOW_BITS) | difference | LOW_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_are_found_exactly() {
        for byte in (0..=255u8).step_by(if cfg!(miri) { 17 } else { 1 }) {
            for other in 0..=255u8 {
                let word = u64::from_le_bytes([other, byte, other, byte, byte, other, other, byte]);
                let expected = if byte == other {
                    0x8080_8080_8080_8080
                } else {
                    0x8000_0080_8000_8000
                };
                assert_eq!(bytes_equal(word, byte), expected);
            }
        }
    }
}
