//! A leaf: one page of pairs in key order.
//!
//! ```text
//! 64  tags u8[count]     top byte of the hash of each key: a point read compares up to 64 of them at once and then
//!                        touches, almost always, one record only
//!     slots u16[count]   offset of each record; beside the tags, so that a point read needs four lines in a row
//!     heads u32[count]   first four bytes after the prefix, as a number that orders like them
//!     free
//!     heap               records in key order: suffix length u16, value field u16, suffix, value or extent.
//!                        Value field: the length of the value, or EXTENT, or DELETED
//! ```

use std::cmp::Ordering;
use std::ops::Range;

use crate::error::Result;
use crate::limits::{FULL_KEY_BYTES_MAX, INLINE_VALUE_BYTES_MAX, PAGE_BYTES, VALUE_BYTES_MAX};

use super::page::{self, HEADER_BYTES, head_u32, misplaced, u16_at, u32_at, u64_at};
use super::{EXTENT_BYTES, Extent, LINE_BYTES, Location};

/// Bytes of a record beside its suffix and value.
pub(super) const RECORD_HEADER_BYTES: usize = 4;
/// Bytes a pair takes in the arrays: tag, slot, head.
const ARRAYS_BYTES: usize = 1 + 2 + 4;
/// Bytes a pair takes beside its suffix and value.
pub(super) const PAIR_BYTES: usize = ARRAYS_BYTES + RECORD_HEADER_BYTES;
/// About one part in so many of a leaf is free.
const FREE_PARTS: usize = 9;
/// Enough for most records of random keys, of which about thirty share a leaf: where one lies among them varies by about
/// two and a half to either side, and it takes two or three lines itself.
const LIKELY_LINES: usize = 10;
const PAGE_LINES: usize = PAGE_BYTES / LINE_BYTES;
/// Value field of a value in pages of its own.
pub(super) const EXTENT: u16 = 0x8000;
/// Value field of a deletion.
pub(super) const DELETED: u16 = 0x4000;

const _: () = assert!(INLINE_VALUE_BYTES_MAX < DELETED as usize);

/// Bytes that the value takes in the record.
pub(super) fn value_bytes(field: u16) -> usize {
    match field {
        EXTENT => EXTENT_BYTES,
        DELETED => 0,
        length => length as usize,
    }
}

/// The lines in which a record is likely to lie, in a leaf of so many pairs, of which this share lies before it: if the
/// records are about equally long, and the leaf about as full as others.
#[inline(always)]
pub(super) fn likely_lines(pairs: usize, share: f64) -> Range<usize> {
    let top = (HEADER_BYTES + ARRAYS_BYTES * pairs + PAGE_BYTES / FREE_PARTS).min(PAGE_BYTES);
    let record = top + ((PAGE_BYTES - top) as f64 * share) as usize;
    let line = record / LINE_BYTES;
    line.saturating_sub(LIKELY_LINES / 2)..(line + LIKELY_LINES.div_ceil(2)).min(PAGE_LINES)
}

/// Where the parts of a record are in its leaf.
#[derive(Clone, Copy, Default)]
pub(super) struct Record {
    /// What the key has after the prefix; it ends where the value begins.
    suffix: u16,
    value: u16,
    /// Length of the value, or what it is instead.
    field: u16,
}

impl Record {
    /// Bytes of the leaf that are the suffix of the key.
    #[inline(always)]
    pub(super) fn suffix(self) -> Range<usize> {
        self.suffix as usize..self.value as usize
    }

    /// Whether the value has this length, or is this in place of one.
    pub(super) fn holds(self, field: u16) -> bool {
        self.field == field
    }

    /// Bytes of the leaf that are the value, or stand for it.
    pub(super) fn value(self) -> Range<usize> {
        self.value as usize..self.value as usize + value_bytes(self.field)
    }

    /// Where the value is, in a leaf that begins with `bytes`.
    #[inline(always)]
    pub(super) fn location(self, bytes: &[u8]) -> Location {
        let start = self.value as usize;
        match self.field {
            EXTENT => {
                let stored = bytes[start..start + EXTENT_BYTES].first_chunk();
                Location::Extent(Extent::decode(stored.expect("its length was just cut")))
            }
            DELETED => Location::Deleted,
            length => Location::Inline(self.value, self.value + length),
        }
    }
}

/// A view of a leaf that passed `verify_page`.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    bytes: &'a [u8; PAGE_BYTES],
    count: usize,
}

impl<'a> Leaf<'a> {
    /// The leaf that `number` was said to be.
    #[inline(always)]
    pub(super) fn open(page: &'a [u8], number: u32) -> Result<Leaf<'a>> {
        match page.first_chunk::<PAGE_BYTES>() {
            Some(bytes) if page::is(bytes, page::LEAF, 0) => Ok(Leaf {
                bytes,
                count: page::count(bytes),
            }),
            _ => Err(misplaced(number, "it is not a leaf, but the page above it says so")),
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

    #[inline(always)]
    pub(super) fn tag(&self, index: usize) -> u8 {
        self.bytes[HEADER_BYTES + index]
    }

    #[inline(always)]
    pub(super) fn head(&self, index: usize) -> u32 {
        u32_at(self.bytes, HEADER_BYTES + 3 * self.count + 4 * index)
    }

    #[inline(always)]
    pub(super) fn slot(&self, index: usize) -> usize {
        u16_at(self.bytes, HEADER_BYTES + self.count + 2 * index) as usize
    }

    /// The whole key of a pair.
    pub(super) fn key(&self, index: usize) -> Vec<u8> {
        [self.prefix(), self.suffix(index)].concat()
    }

    /// What the key has after the prefix.
    #[inline(always)]
    pub(super) fn suffix(&self, index: usize) -> &'a [u8] {
        let record = self.slot(index);
        let length = u16_at(self.bytes, record) as usize;
        &self.bytes[record + RECORD_HEADER_BYTES..record + RECORD_HEADER_BYTES + length]
    }

    /// Value field and stored value.
    #[inline(always)]
    pub(super) fn value(&self, index: usize) -> (u16, &'a [u8]) {
        let record = self.slot(index);
        let field = u16_at(self.bytes, record + 2);
        let start = record + RECORD_HEADER_BYTES + u16_at(self.bytes, record) as usize;
        (field, &self.bytes[start..start + value_bytes(field)])
    }

    /// Where the parts of a pair's record are.
    #[inline(always)]
    pub(super) fn record(&self, index: usize) -> Record {
        let record = self.slot(index);
        Record {
            suffix: (record + RECORD_HEADER_BYTES) as u16,
            value: (record + RECORD_HEADER_BYTES) as u16 + u16_at(self.bytes, record),
            field: u16_at(self.bytes, record + 2),
        }
    }

    /// Where the value of a pair is.
    #[inline(always)]
    pub(super) fn location(&self, index: usize) -> Location {
        self.record(index).location(self.bytes)
    }
    /// The pair of this key, if it is here.
    #[inline(always)]
    pub(super) fn find(&self, key: &[u8], tag: u8) -> Option<usize> {
        let suffix = page::after_prefix(self.bytes, key).ok()?;
        let mut first = 0;
        while first < self.count {
            let block = self.bytes[HEADER_BYTES + first..]
                .first_chunk()
                .expect("64 tags lie before the heap's end");
            let mut hits = duramen_io::match_bytes(block, tag);
            if self.count - first < 64 {
                hits &= (1 << (self.count - first)) - 1;
            }
            while hits != 0 {
                let index = first + hits.trailing_zeros() as usize;
                if page::equal(self.suffix(index), suffix) {
                    return Some(index);
                }
                hits &= hits - 1;
            }
            first += 64;
        }
        None
    }

    /// Number of pairs with keys below `key`, which is the index of the first pair not below it.
    pub(super) fn lower_bound(&self, key: &[u8]) -> usize {
        let suffix = match page::after_prefix(self.bytes, key) {
            Ok(suffix) => suffix,
            Err(Ordering::Less) => return 0,
            Err(_) => return self.count,
        };
        let head = head_u32(suffix);
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            let order = self
                .head(middle)
                .cmp(&head)
                .then_with(|| self.suffix(middle).cmp(suffix));
            if order == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Index of the pair of this key, without its hash.
    pub(super) fn position(&self, key: &[u8]) -> Option<usize> {
        let index = self.lower_bound(key);
        self.holds_at(index, key).then_some(index)
    }

    /// Whether a pair has this key. There may be no such pair.
    pub(super) fn holds_at(&self, index: usize, key: &[u8]) -> bool {
        let suffix = page::after_prefix(self.bytes, key);
        index < self.count && suffix.is_ok_and(|suffix| page::equal(self.suffix(index), suffix))
    }

    /// Whether any value is in pages of its own.
    pub(super) fn holds_extents(&self) -> bool {
        (0..self.count).any(|index| self.record(index).holds(EXTENT))
    }

    /// Checks that every offset and length stays inside the page.
    pub(super) fn verify(bytes: &[u8]) -> Result<(), &'static str> {
        let leaf = Leaf {
            bytes: bytes.first_chunk().ok_or("it is too short")?,
            count: page::count(bytes),
        };
        if page::level(bytes) != 0 {
            return Err("it is a leaf above level 0");
        }
        let (top, end) = (page::heap_top(bytes), page::heap_end(bytes));
        if HEADER_BYTES + 7 * leaf.count > top {
            return Err("its arrays reach into its heap");
        }
        for index in 0..leaf.count {
            leaf.verify_record(leaf.slot(index), top, end)?;
        }
        Ok(())
    }

    fn verify_record(&self, record: usize, top: usize, end: usize) -> Result<(), &'static str> {
        if record < top || record + RECORD_HEADER_BYTES > end {
            return Err("a record begins outside its heap");
        }
        let suffix_length = u16_at(self.bytes, record) as usize;
        let field = u16_at(self.bytes, record + 2);
        if field != EXTENT && field != DELETED && field as usize > INLINE_VALUE_BYTES_MAX {
            return Err("a value is longer than a leaf may hold");
        }
        if suffix_length + self.prefix().len() > FULL_KEY_BYTES_MAX {
            return Err("a key is too long");
        }
        let value = record + RECORD_HEADER_BYTES + suffix_length;
        if value + value_bytes(field) > end {
            return Err("a record ends outside its heap");
        }
        if field == EXTENT && !(1..=VALUE_BYTES_MAX).contains(&u64_at(self.bytes, value + 8)) {
            return Err("an extent has an impossible length");
        }
        Ok(())
    }
}
