//! Checksums of what is stored (CRC-32C, by the processor's instruction where it has one) and hashes of keys (XXH3,
//! seeded per store so that no client can choose colliding keys).

use crate::planted::{PlantedBug, is_planted};

/// CRC-32C of `bytes`.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of `bytes`, begun with `seed`: each seed gives another checksum. With 0 it is [`checksum`].
#[inline]
pub(crate) fn checksum_with(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// What the random id of a store contributes to everything that the store writes, so that recovery never believes bytes
/// that another store wrote, or that a user who does not know the id put into a value.
///
/// A forged record must hit both `record_magic` and a checksum begun with `records`: 64 bits that are secret to a
/// program that cannot read the store's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreSeeds {
    /// First word of each record of the log.
    pub(crate) record_magic: u32,
    /// Begins the checksums of records of the log.
    pub(crate) records: u32,
    /// Begins the checksums of pages of the data file.
    pub(crate) pages: u32,
}

impl StoreSeeds {
    pub(crate) fn of(store: u128) -> StoreSeeds {
        let bytes = if is_planted(PlantedBug::StoresAlike) {
            [0; 16]
        } else {
            store.to_le_bytes()
        };
        let word = |purpose: u64| xxhash_rust::xxh3::xxh3_64_with_seed(&bytes, purpose) as u32;
        StoreSeeds {
            record_magic: word(1),
            records: word(2),
            pages: word(3),
        }
    }
}

/// Hash of a full key. Leaves use its top byte as the tag of the key, filters its lower bits.
#[inline]
pub(crate) fn key_hash(seed: u64, full_key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(full_key, seed)
}

/// The tag of a key in a leaf.
#[inline]
pub(crate) fn key_tag(hash: u64) -> u8 {
    (hash >> 56) as u8
}
