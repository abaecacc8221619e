//! A branch: four pages that route a key to one of up to 816 children.
//!
//! With `n` children, separators 1 to n - 1 (child 0 has the lower bound of the whole branch, which is not stored):
//! ```text
//! 64  heads u64[n - 1]     first eight bytes of each separator after the prefix, as a number that orders like them
//!     children u32[n]      page numbers
//!     slots u16[n - 1]     length of the separator after the prefix when it is at most 8, so that the head is all of
//!                          it; else the offset of the rest in the heap (which is always more than 8)
//!     counts               pairs under each child; the top bit is set when any of them is an extent:
//!                          u16[n] at level 1, u64[n] above
//!     sums u32[n]          checksums of the children's pages: looked at when a child is verified, so they come last
//!     free
//!     heap                 what separators have after their first eight bytes: length u16, bytes
//! ```

use std::cmp::Ordering;

use crate::error::Result;
use crate::limits::{BRANCH_BYTES, FULL_KEY_BYTES_MAX};

use super::page::{self, HEADER_BYTES, head_u64, misplaced, u16_at, u32_at, u64_at};
use super::{HEIGHT_MAX, Link};

/// Bytes of a separator that its head holds.
pub(super) const HEAD_BYTES: usize = 8;
/// Set in the count of a child that holds extents, at level 1.
pub(super) const LOW_EXTENTS: u16 = 1 << 15;
/// Set in the count of a child that holds extents, above level 1.
pub(super) const HIGH_EXTENTS: u64 = 1 << 63;

/// Children of a branch whose separators take no room in the heap.
const CHILDREN_MAX: usize = (BRANCH_BYTES - HEADER_BYTES + HEAD_BYTES + 2) / (HEAD_BYTES + CHILD_BYTES + 2 + 2);
/// Bytes of a child's page number and checksum.
pub(super) const CHILD_BYTES: usize = 4 + 4;

const _: () = assert!(HEADER_BYTES + HEAD_BYTES * CHILDREN_MAX.next_power_of_two() <= BRANCH_BYTES);

/// What a branch says of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub page: u32,
    pub checksum: u32,
    pub pairs: u64,
    pub holds_extents: bool,
}

impl Child {
    pub(super) fn link(&self) -> Link {
        Link {
            page: self.page,
            checksum: self.checksum,
        }
    }
}

/// Offsets of the arrays of a branch.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub children: usize,
    pub slots: usize,
    pub counts: usize,
    pub sums: usize,
    pub end: usize,
}

impl Layout {
    #[inline(always)]
    pub(super) fn new(count: usize, level: u8) -> Layout {
        let children = HEADER_BYTES + HEAD_BYTES * (count - 1);
        let slots = children + 4 * count;
        let counts = slots + 2 * (count - 1);
        let sums = counts + count_bytes(level) * count;
        Layout {
            children,
            slots,
            counts,
            sums,
            end: sums + 4 * count,
        }
    }
}

/// Bytes of the count of a child.
pub(super) fn count_bytes(level: u8) -> usize {
    if level == 1 { 2 } else { 8 }
}

/// Bytes that a separator takes in the heap when it has `length` bytes after the prefix.
pub(super) fn heap_bytes(length: usize) -> usize {
    if length > HEAD_BYTES {
        2 + length - HEAD_BYTES
    } else {
        0
    }
}

/// Checksum that a branch which passed `verify_page` keeps for a child.
pub(super) fn checksum_of_child(page: &[u8], index: usize) -> u32 {
    u32_at(page, Layout::new(page::count(page), page::level(page)).sums + 4 * index)
}

/// A view of a branch that passed `verify_page`.
#[derive(Clone, Copy)]
pub(super) struct Branch<'a> {
    bytes: &'a [u8; BRANCH_BYTES],
    count: usize,
}

impl<'a> Branch<'a> {
    /// The branch of `level` that `number` was said to be.
    #[inline(always)]
    pub(super) fn open(page: &'a [u8], number: u32, level: u8) -> Result<Branch<'a>> {
        match page.first_chunk::<BRANCH_BYTES>() {
            Some(bytes) if page::is(bytes, page::BRANCH, level) => Ok(Branch {
                bytes,
                count: page::count(bytes),
            }),
            _ => Err(misplaced(
                number,
                "it is not a branch of the level that the page above it says",
            )),
        }
    }

    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    #[inline(always)]
    pub(super) fn prefix(&self) -> &'a [u8] {
        page::prefix(self.bytes)
    }

    fn layout(&self) -> Layout {
        Layout::new(self.count, page::level(self.bytes))
    }

    /// Page of a child.
    #[inline(always)]
    pub(super) fn page(&self, index: usize) -> u32 {
        u32_at(self.bytes, HEADER_BYTES + HEAD_BYTES * (self.count - 1) + 4 * index)
    }

    /// Page and checksum of a child.
    pub(super) fn link(&self, index: usize) -> Link {
        Link {
            page: self.page(index),
            checksum: checksum_of_child(self.bytes, index),
        }
    }

    /// Pairs under a child of a branch of level 1.
    #[inline(always)]
    pub(super) fn pairs_of(&self, index: usize) -> usize {
        (u16_at(self.bytes, Layout::new(self.count, 1).counts + 2 * index) & !LOW_EXTENTS) as usize
    }

    /// Everything about a child.
    pub(super) fn child(&self, index: usize) -> Child {
        let counts = self.layout().counts;
        let (pairs, holds_extents) = if page::level(self.bytes) == 1 {
            let count = u16_at(self.bytes, counts + 2 * index);
            ((count & !LOW_EXTENTS) as u64, count & LOW_EXTENTS != 0)
        } else {
            let count = u64_at(self.bytes, counts + 8 * index);
            (count & !HIGH_EXTENTS, count & HIGH_EXTENTS != 0)
        };
        Child {
            page: self.page(index),
            checksum: checksum_of_child(self.bytes, index),
            pairs,
            holds_extents,
        }
    }

    /// Pairs under the first `children` children.
    pub(super) fn pairs_before(&self, children: usize) -> u64 {
        let counts = &self.bytes[self.layout().counts..];
        if page::level(self.bytes) == 1 {
            let (counts, _) = counts[..2 * children].as_chunks::<2>();
            counts
                .iter()
                .map(|count| (u16::from_le_bytes(*count) & !LOW_EXTENTS) as u64)
                .sum()
        } else {
            let (counts, _) = counts[..8 * children].as_chunks::<8>();
            // A sum that overflows comes from a damaged page; it must be some number all the same.
            counts.iter().fold(0, |sum, count| {
                sum.wrapping_add(u64::from_le_bytes(*count) & !HIGH_EXTENTS)
            })
        }
    }

    /// Head of the separator of child `index + 1`.
    #[inline(always)]
    fn head(&self, index: usize) -> u64 {
        // There are fewer heads than that. Saying so spares the search a comparison with the end of the page.
        u64_at(
            self.bytes,
            HEADER_BYTES + HEAD_BYTES * (index % CHILDREN_MAX.next_power_of_two()),
        )
    }

    #[inline(always)]
    fn slot(&self, index: usize) -> usize {
        u16_at(self.bytes, self.layout().slots + 2 * index) as usize
    }

    /// What a separator has after its head; `None` when the head holds all of it.
    fn rest(&self, index: usize) -> Option<&'a [u8]> {
        let slot = self.slot(index);
        if slot <= HEAD_BYTES {
            return None;
        }
        let length = u16_at(self.bytes, slot) as usize;
        Some(&self.bytes[slot + 2..slot + 2 + length])
    }

    /// Appends the separator of `child`, which is not child 0, to `key`.
    pub(super) fn append_separator(&self, child: usize, key: &mut Vec<u8>) {
        key.extend_from_slice(self.prefix());
        let head = self.head(child - 1).to_be_bytes();
        match self.rest(child - 1) {
            None => key.extend_from_slice(&head[..self.slot(child - 1)]),
            Some(rest) => {
                key.extend_from_slice(&head);
                key.extend_from_slice(rest);
            }
        }
    }

    /// Whether all keys of `child`, which is not the last, are below `key`.
    #[inline]
    pub(super) fn ends_at_most(&self, child: usize, key: &[u8]) -> bool {
        let suffix = match page::after_prefix(self.bytes, key) {
            Ok(suffix) => suffix,
            Err(side) => return side == Ordering::Greater,
        };
        match self.head(child).cmp(&head_u64(suffix)) {
            Ordering::Equal => self.compare_equal_heads(child, suffix) != Ordering::Greater,
            order => order == Ordering::Less,
        }
    }

    /// The child whose range holds `key`.
    #[inline(always)]
    pub(super) fn route(&self, key: &[u8]) -> usize {
        let suffix = match page::after_prefix(self.bytes, key) {
            Ok(suffix) => suffix,
            Err(Ordering::Less) => return 0,
            Err(_) => return self.count - 1,
        };
        let head = head_u64(suffix);
        // Branchless, and in quarters: half of the comparisons of a random search go either way, and each wrong guess
        // costs more than several steps; the three looks of one step do not wait for each other. `low` heads are known
        // to be small enough, and the answer lies in `low..=low + length`.
        let mut low = 0;
        let mut length = self.count - 1;
        let is_below = |index: usize| (self.head(index) <= head) as usize;
        while length >= 4 {
            let quarter = length / 4;
            let below = is_below(low + quarter - 1) + is_below(low + 2 * quarter - 1) + is_below(low + 3 * quarter - 1);
            low += below * quarter;
            length -= 3 * quarter;
        }
        low += (0..length).map(|index| is_below(low + index)).sum::<usize>();
        if low > 0 && self.head(low - 1) == head {
            self.route_among_equal_heads(suffix, head, low)
        } else {
            low
        }
    }

    /// Which part of the range of a child lies before `key`, from 0 to 1, as far as heads tell.
    #[inline(always)]
    pub(super) fn share_before(&self, child: usize, key: &[u8]) -> f64 {
        let Ok(suffix) = page::after_prefix(self.bytes, key) else {
            return 0.0;
        };
        let low = if child == 0 { 0 } else { self.head(child - 1) };
        let high = if child + 1 == self.count {
            u64::MAX
        } else {
            self.head(child)
        };
        // Separators with the same head: not a number, or too large a one.
        let share = head_u64(suffix).wrapping_sub(low) as f64 / high.wrapping_sub(low) as f64;
        share.min(1.0)
    }

    /// `end` separators have heads up to `head`, the last of them exactly `head`: counts those up to `suffix`.
    #[cold]
    fn route_among_equal_heads(&self, suffix: &[u8], head: u64, end: usize) -> usize {
        let (mut low, mut high) = (0, end);
        while low < high {
            let middle = (low + high) / 2;
            let order = self
                .head(middle)
                .cmp(&head)
                .then_with(|| self.compare_equal_heads(middle, suffix));
            if order == Ordering::Greater {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Compares a separator with a key when their heads are equal. Where one of them ends inside the head, zeros stood
    /// in for what it lacks, so it is the beginning of the other one, or the same.
    fn compare_equal_heads(&self, index: usize, suffix: &[u8]) -> Ordering {
        match self.rest(index) {
            None => self.slot(index).cmp(&suffix.len()),
            Some(_) if suffix.len() <= HEAD_BYTES => Ordering::Greater,
            Some(rest) => rest.cmp(&suffix[HEAD_BYTES..]),
        }
    }

    /// Checks that every offset and length stays inside the page.
    pub(super) fn verify(bytes: &[u8]) -> Result<(), &'static str> {
        let branch = Branch {
            bytes: bytes.first_chunk().ok_or("it is too short")?,
            count: page::count(bytes),
        };
        if page::level(bytes) == 0 || page::level(bytes) as usize >= HEIGHT_MAX {
            return Err("it is a branch of an impossible level");
        }
        let (top, end) = (page::heap_top(bytes), page::heap_end(bytes));
        if branch.layout().end > top {
            return Err("its arrays reach into its heap");
        }
        for index in 0..branch.count - 1 {
            branch.verify_separator(branch.slot(index), top, end)?;
        }
        Ok(())
    }

    fn verify_separator(&self, slot: usize, top: usize, end: usize) -> Result<(), &'static str> {
        let length = if slot <= HEAD_BYTES {
            slot
        } else if slot < top || slot + 2 > end || slot + 2 + u16_at(self.bytes, slot) as usize > end {
            return Err("a separator is outside its heap");
        } else {
            HEAD_BYTES + u16_at(self.bytes, slot) as usize
        };
        if self.prefix().len() + length > FULL_KEY_BYTES_MAX {
            return Err("a separator is too long");
        }
        Ok(())
    }
}
