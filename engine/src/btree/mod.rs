//! The base: one ordered tree of all pairs, in pages that never change once written.
//!
//! A copy-on-write B+tree of full keys (map id and user key; plain bytes here) in leaves of one page and branches of
//! four. Readers come with a [`Root`] and a [`PageSource`], and see that tree for as long as its pages live. The only
//! way to change it is [`merge`]: it takes ranges to cut and a sorted stream of changes, writes the pages that differ
//! through a [`PageSink`], names every page and extent that the new tree no longer holds, and returns the new root.
//! Where pages live, who may still see a retired page and what is durable is decided above; nothing here keeps state.
//!
//! Invariants of a tree:
//! - keys ascend strictly over the whole tree; all leaves have level 0, a branch stands one level above its children;
//! - child `i` of a branch holds the keys `k` with `separator(i) <= k < separator(i + 1)`; separator 0 is the lower
//!   bound of the branch itself, and the empty string at the left edge, so that no key is below it;
//! - the checksum that a branch keeps for a child is that of the child's page;
//! - the count that a branch keeps for a child is the number of pairs under it, and its flag says whether any of them
//!   is an extent;
//! - no leaf is empty, and a root that is a branch has at least two children.
//!
//! Trust: a [`PageSource`] gives out only pages that passed [`verify_page`]. After that no accessor panics or leaves
//! the page, whatever its bytes; what one page cannot show (its place in the tree) is checked where it is used and
//! reported as damage, and [`check_tree`] looks at everything.

mod alone;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod any_page;
mod branch;
mod check;
mod cursor;
mod find;
mod leaf;
mod merge;
mod page;
#[cfg(test)]
mod tests;
mod verify;
mod window;

use std::ops::{Deref, Range};

use crate::error::{Error, Result};
use crate::limits::{PAGE_BYTES, VALUE_CHUNK_BYTES};

pub(crate) use alone::{differing_keys, holds_extent, walk_alone};
#[allow(unused_imports)]
pub(crate) use check::{Visit, check_tree, count_branches, walk, walk_newer};
#[allow(unused_imports)]
pub(crate) use cursor::{Cursor, count_below};
#[allow(unused_imports)]
pub(crate) use find::{Found, find, leaf_of};
#[allow(unused_imports)]
pub(crate) use merge::{Division, MergeOptions, MergedPart, Part, assemble, divide, merge, merge_part};
#[allow(unused_imports)]
pub(crate) use page::seal_page;
pub(crate) use verify::verify_page;

/// No tree is higher: with at least 14 children to a full branch, pages run out long before.
pub(crate) const HEIGHT_MAX: usize = 16;

/// Bytes that the processor fetches at once.
pub(crate) const LINE_BYTES: usize = 64;

/// Root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Root {
    /// Page of the root; means nothing in an empty tree.
    pub page: u32,
    /// 0: the tree is empty; 1: `page` is a leaf; n: `page` is a branch over trees of height n - 1.
    pub height: u8,
    /// Pairs in the tree; in a run of changes deletions count as well.
    pub pairs: u64,
    /// Checksum of `page`.
    pub checksum: u32,
}

impl Root {
    fn link(&self) -> Link {
        Link {
            page: self.page,
            checksum: self.checksum,
        }
    }
}

/// A page as the page above it, or the root, refers to it. The checksum tells it from its own older versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// First page.
    pub page: u32,
    /// Checksum of the page.
    pub checksum: u32,
}

/// Bytes that live in pages of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First page.
    pub page: u32,
    /// CRC-32C of the bytes, or of the table of chunk checksums when there is one.
    pub checksum: u32,
    /// Bytes of the value.
    pub length: u64,
    /// Version that wrote it.
    pub birth: u64,
}

/// Bytes of a stored [`Extent`].
pub(crate) const EXTENT_BYTES: usize = 24;

impl Extent {
    /// Pages it occupies: its bytes, then, when they are more than one chunk, a table of one checksum per chunk that
    /// begins at the next multiple of four.
    pub(crate) fn pages(&self) -> u32 {
        let chunk = VALUE_CHUNK_BYTES as u64;
        let table = if self.length > chunk {
            self.length.div_ceil(chunk) * 4
        } else {
            0
        };
        let bytes = if table > 0 {
            self.length.next_multiple_of(4) + table
        } else {
            self.length
        };
        u32::try_from(bytes.div_ceil(PAGE_BYTES as u64)).expect("lengths are checked when an extent is read")
    }

    /// The stored form.
    pub(crate) fn encode(&self) -> [u8; EXTENT_BYTES] {
        let mut bytes = [0; EXTENT_BYTES];
        bytes[0..4].copy_from_slice(&self.page.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.birth.to_le_bytes());
        bytes
    }

    /// From the stored form.
    pub(crate) fn decode(bytes: &[u8; EXTENT_BYTES]) -> Extent {
        Extent {
            page: page::u32_at(bytes, 0),
            checksum: page::u32_at(bytes, 4),
            length: page::u64_at(bytes, 8),
            birth: page::u64_at(bytes, 16),
        }
    }
}

/// What a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored<'a> {
    /// These bytes.
    Inline(&'a [u8]),
    /// Bytes in pages of their own.
    Extent(Extent),
    /// Nothing: the key is deleted. Stored only in runs of changes.
    Deleted,
}

/// Where the value of a pair is, relative to the leaf that holds the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the leaf, from the first offset to before the second.
    Inline(u16, u16),
    /// In pages of its own.
    Extent(Extent),
    /// The key is deleted.
    Deleted,
}

impl Location {
    /// The value, with the bytes of its leaf.
    pub(crate) fn stored<'a>(&self, leaf: &'a [u8]) -> Stored<'a> {
        match *self {
            Location::Inline(start, end) => Stored::Inline(&leaf[start as usize..end as usize]),
            Location::Extent(extent) => Stored::Extent(extent),
            Location::Deleted => Stored::Deleted,
        }
    }
}

/// Where pages come from.
pub(crate) trait PageSource: Copy {
    /// A page in memory; it stays as it is for as long as this lives.
    type Page: Deref<Target = [u8]> + Clone;

    /// The page, or run of pages, of `bytes` bytes that begins at page `number`. It passed [`verify_page`], with this
    /// number and checksum, at its first touch or later, or this process sealed it. `checksum` looks up what refers to
    /// the page: it costs a line of memory, so only a page that is verified now has it called.
    fn page(self, number: u32, bytes: usize, checksum: impl FnOnce() -> u32) -> Result<Self::Page>;

    /// Whether walks pass over what this error kept from being read: a page with everything under it. Only for saving
    /// what a damaged store still holds; the source remembers what was passed over.
    #[inline]
    fn passes_over(self, error: &Error) -> bool {
        let _ = error;
        false
    }

    /// Whether pages that are needed soon should be asked for with [`PageSource::read_ahead`]: not where most are in
    /// memory.
    #[inline]
    fn wants_read_ahead(self) -> bool {
        false
    }

    /// Asks for leaves that are needed soon, in the order in which they will be.
    fn read_ahead(self, numbers: &mut dyn Iterator<Item = u32>) {
        let _ = numbers;
    }

    /// Says that the leaf `number` is needed next. Its first 256 bytes are what a search reads first.
    fn prefetch(self, number: u32) {
        let _ = number;
    }

    /// Asks for some lines of the leaf; lines behind its end are left out.
    fn prefetch_lines(self, number: u32, lines: Range<usize>) {
        let _ = (number, lines);
    }
}

/// Where new pages go, and where those that the new tree does not hold are named. Each page and extent is retired
/// once, after its last read, and never one that this sink was given in the same merge.
pub(crate) trait PageSink {
    /// Chooses a number for a page (or a run of pages, by its length), seals it with [`seal_page`], stores it.
    fn write(&mut self, page: &mut [u8]) -> Result<Link>;
    /// Stores a value in pages of its own.
    fn write_value(&mut self, bytes: &[u8]) -> Result<Extent>;
    /// The new tree no longer holds these pages. `birth` is the version that wrote them, 0 when that was not looked up.
    fn retire(&mut self, number: u32, pages: u32, birth: u64);
    /// The new tree no longer holds this value.
    fn retire_extent(&mut self, extent: Extent);
    /// Whether another tree, which is kept, holds a value of a key of the old one: then it is not retired.
    fn keeps(&self, _extent: Extent, _key: &dyn Fn() -> Vec<u8>) -> Result<bool> {
        Ok(false)
    }
    /// Whether the births of all pages must be looked up that are retired.
    fn asks_for_births(&self) -> bool {
        false
    }
}

/// Changes in strictly ascending order of their keys.
pub(crate) trait ChangeStream {
    /// Full key of the change at hand; `None` at the end.
    fn key(&self) -> Option<&[u8]>;
    /// What the key has from now on. Asked only while there is a key.
    fn change(&self) -> Stored<'_>;
    /// Goes to the next change.
    fn advance(&mut self) -> Result<()>;
}
