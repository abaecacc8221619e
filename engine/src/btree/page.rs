//! What leaves and branches have in common: the header, the prefix of all keys, and the seal.
//!
//! ```text
//!  0  checksum u32       CRC-32C of all other bytes of the page, begun with the seed of the store; what refers to
//!                        the page repeats it
//!  4  number u32         its own page number: a page in the wrong place is noticed
//!  8  birth u64          version that wrote it
//! 16  kind u8            1 leaf, 2 branch
//! 17  level u8           0 for a leaf
//! 18  count u16          pairs of a leaf, children of a branch
//! 20  prefix length u16  bytes that all keys (a branch: all separators) begin with and that are stored once
//! 22  heap top u16       first byte of the heap, which reaches to the end of the page
//! 24  zero
//! 32  prefix             when it has at most 32 bytes: a search then finds it in the line that it reads anyway.
//!                        A longer one stands at the end of the page.
//! 64  arrays, then free bytes, then the heap: see `leaf` and `branch`
//! ```

use std::cmp::Ordering;

use crate::checksum::checksum_with;
use crate::error::{Error, Result};

use super::Link;

pub(super) const HEADER_BYTES: usize = 64;
const NUMBER_AT: usize = 4;
const BIRTH_AT: usize = 8;
const KIND_AT: usize = 16;
const LEVEL_AT: usize = 17;
const COUNT_AT: usize = 18;
pub(super) const PREFIX_LENGTH_AT: usize = 20;
const HEAP_TOP_AT: usize = 22;
const INLINE_PREFIX_AT: usize = 32;
const INLINE_PREFIX_BYTES: usize = HEADER_BYTES - INLINE_PREFIX_AT;

pub(super) const LEAF: u8 = 1;
pub(super) const BRANCH: u8 = 2;

#[inline(always)]
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

#[inline(always)]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline(always)]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[inline(always)]
pub(super) fn number(page: &[u8]) -> u32 {
    u32_at(page, NUMBER_AT)
}

#[inline(always)]
pub(super) fn birth(page: &[u8]) -> u64 {
    u64_at(page, BIRTH_AT)
}

#[inline(always)]
pub(super) fn kind(page: &[u8]) -> u8 {
    page[KIND_AT]
}

#[inline(always)]
pub(super) fn level(page: &[u8]) -> u8 {
    page[LEVEL_AT]
}

/// Whether the page is of this kind and level: one comparison, because every step of every search asks.
#[inline(always)]
pub(super) fn is(page: &[u8], kind: u8, level: u8) -> bool {
    u16_at(page, KIND_AT) == u16::from_le_bytes([kind, level])
}

#[inline(always)]
pub(super) fn count(page: &[u8]) -> usize {
    u16_at(page, COUNT_AT) as usize
}

#[inline(always)]
pub(super) fn heap_top(page: &[u8]) -> usize {
    u16_at(page, HEAP_TOP_AT) as usize
}

/// What all keys of the page begin with.
#[inline(always)]
pub(super) fn prefix(page: &[u8]) -> &[u8] {
    let length = u16_at(page, PREFIX_LENGTH_AT) as usize;
    let start = if length <= INLINE_PREFIX_BYTES {
        INLINE_PREFIX_AT
    } else {
        page.len() - length
    };
    &page[start..start + length]
}

/// What `key` has after the prefix of the page, or on which side of all keys with that prefix it is.
#[inline(always)]
pub(super) fn after_prefix<'a>(page: &[u8], key: &'a [u8]) -> Result<&'a [u8], Ordering> {
    let length = u16_at(page, PREFIX_LENGTH_AT) as usize;
    // Nearly all prefixes are short, and a call to compare a few bytes would cost as much as the rest of this.
    if length < 8
        && let Some(start) = key.first_chunk::<8>()
    {
        let difference = u64::from_le_bytes(*start) ^ u64_at(page, INLINE_PREFIX_AT);
        if (difference << 8) << (56 - 8 * length) == 0 {
            return Ok(&key[length..]);
        }
    } else if let Some(suffix) = key.strip_prefix(prefix(page)) {
        return Ok(suffix);
    }
    Err(key.cmp(prefix(page)))
}

/// Whether two strings are equal; without a call for the usual lengths of keys.
#[inline(always)]
pub(super) fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    match (
        a.first_chunk::<8>(),
        a.last_chunk::<8>(),
        b.first_chunk::<8>(),
        b.last_chunk::<8>(),
    ) {
        // Two loads that may overlap cover everything up to sixteen bytes.
        (Some(a_first), Some(a_last), Some(b_first), Some(b_last)) if a.len() <= 16 => {
            let difference = (u64::from_le_bytes(*a_first) ^ u64::from_le_bytes(*b_first))
                | (u64::from_le_bytes(*a_last) ^ u64::from_le_bytes(*b_last));
            difference == 0
        }
        _ => a == b,
    }
}

/// End of the records in the heap.
pub(super) fn heap_end(page: &[u8]) -> usize {
    page.len() - tail_bytes(u16_at(page, PREFIX_LENGTH_AT) as usize)
}

/// Bytes that a prefix takes from the heap.
pub(super) fn tail_bytes(prefix_length: usize) -> usize {
    if prefix_length <= INLINE_PREFIX_BYTES {
        0
    } else {
        prefix_length
    }
}

/// What a page of this shape says about itself, for [`write_header`].
pub(super) struct Header<'a> {
    pub kind: u8,
    pub level: u8,
    pub count: usize,
    pub heap_top: usize,
    pub prefix: &'a [u8],
}

/// Fills the header except for what [`seal_page`] fills, and the prefix.
pub(super) fn write_header(page: &mut [u8], header: Header<'_>) {
    page[..HEADER_BYTES].fill(0);
    page[KIND_AT] = header.kind;
    page[LEVEL_AT] = header.level;
    page[COUNT_AT..COUNT_AT + 2].copy_from_slice(&(header.count as u16).to_le_bytes());
    page[PREFIX_LENGTH_AT..PREFIX_LENGTH_AT + 2].copy_from_slice(&(header.prefix.len() as u16).to_le_bytes());
    page[HEAP_TOP_AT..HEAP_TOP_AT + 2].copy_from_slice(&(header.heap_top as u16).to_le_bytes());
    let length = header.prefix.len();
    let start = if length <= INLINE_PREFIX_BYTES {
        INLINE_PREFIX_AT
    } else {
        page.len() - length
    };
    page[start..start + length].copy_from_slice(header.prefix);
}

/// Gives a page its number and birth, and then its checksum, begun with `seed`. Called by the sink.
pub(crate) fn seal_page(page: &mut [u8], number: u32, birth: u64, seed: u32) -> Link {
    page[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&number.to_le_bytes());
    page[BIRTH_AT..BIRTH_AT + 8].copy_from_slice(&birth.to_le_bytes());
    let sum = checksum_with(seed, &page[4..]);
    page[..4].copy_from_slice(&sum.to_le_bytes());
    Link {
        page: number,
        checksum: sum,
    }
}

/// The error for a page that is sound, but not what the page above it says.
#[cold]
pub(super) fn misplaced(number: u32, what: &str) -> Error {
    Error::damaged(format!("page {number} of the data file: {what}"))
}

/// Bytes that two keys have in common from the start.
#[inline]
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let length = a.len().min(b.len());
    let mut at = 0;
    while at + 8 <= length {
        let difference = u64_at(a, at) ^ u64_at(b, at);
        if difference != 0 {
            return at + difference.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < length && a[at] == b[at] {
        at += 1;
    }
    at
}

/// First four bytes as a number that orders like the bytes; zeros stand in for what is missing.
#[inline(always)]
pub(super) fn head_u32(suffix: &[u8]) -> u32 {
    match suffix.first_chunk::<4>() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => suffix.iter().fold(0, |head, byte| head << 8 | *byte as u32) << (8 * (4 - suffix.len()) as u32 % 32),
    }
}

/// First eight bytes as a number that orders like the bytes; zeros stand in for what is missing.
#[inline(always)]
pub(super) fn head_u64(suffix: &[u8]) -> u64 {
    match suffix.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => suffix.iter().fold(0, |head, byte| head << 8 | *byte as u64) << (8 * (8 - suffix.len()) as u32 % 64),
    }
}
