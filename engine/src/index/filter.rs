//! The filter of an index: says in a few nanoseconds that a key is not in it, which is the answer for nearly every
//! read of data older than the generation.
//!
//! A blocked Bloom filter (Putze, Sanders and Singler, 2007) with blocks of one word: a key sets 4 bits in one word,
//! so a probe touches one cache line. At 64 bytes of log per byte and 170 bytes a record it has 21 bits per key and
//! errs in about one probe of 400. The word is chosen by bits 0..32 of the hash and the bits by 32..56; the top byte
//! is the tag in leaves and would make errors of both go together.

use std::mem::size_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::arena::{Arena, Header};

/// Where the filter lies in the memory of an index.
#[derive(Clone, Copy)]
pub(super) struct Filter {
    words: u32,
}

/// Offset of the first word.
const START: u32 = size_of::<Header>() as u32;

impl Filter {
    pub(super) fn new(words: u32) -> Filter {
        assert!(words > 0);
        Filter { words }
    }

    /// Offset of the first byte behind the filter.
    pub(super) fn end(self) -> u64 {
        u64::from(START) + u64::from(self.words) * 8
    }

    pub(super) fn words(self) -> u32 {
        self.words
    }

    pub(super) fn clear(self, arena: &Arena) {
        for index in 0..self.words {
            arena.at::<AtomicU64>(START + index * 8).store(0, Relaxed);
        }
    }

    #[inline]
    fn offset(self, hash: u64) -> u32 {
        let index = (u64::from(hash as u32) * u64::from(self.words)) >> 32;
        START + index as u32 * 8
    }

    #[inline]
    fn word(self, arena: &Arena, hash: u64) -> &AtomicU64 {
        arena.at(self.offset(hash))
    }

    /// Asks the processor for the word of a key.
    #[inline]
    pub(super) fn prefetch(self, arena: &Arena, hash: u64) {
        arena.prefetch::<AtomicU64>(self.offset(hash));
    }

    /// Adds a key. Relaxed is enough: the store that publishes the key's entry comes later and releases this one.
    pub(super) fn add(self, arena: &Arena, hash: u64) {
        let word = self.word(arena, hash);
        word.store(word.load(Relaxed) | bits(hash), Relaxed);
    }

    /// False: no entry that was published before the caller took its commit number has this hash. Relaxed is enough:
    /// taking the commit number acquired everything that was stored before it.
    #[inline]
    pub(super) fn may_contain(self, arena: &Arena, hash: u64) -> bool {
        let bits = bits(hash);
        self.word(arena, hash).load(Relaxed) & bits == bits
    }
}

#[inline]
fn bits(hash: u64) -> u64 {
    1 << (hash >> 32 & 63) | 1 << (hash >> 38 & 63) | 1 << (hash >> 44 & 63) | 1 << (hash >> 50 & 63)
}
