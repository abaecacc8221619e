//! Checksums of what is stored (CRC-32C, by the processor's instruction where it has one) and hashes of keys (XXH3,
//! seeded per store so that nobody can choose keys that collide).

/// CRC-32C of `bytes`.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of `bytes` that begins with a number, so that it differs for every one. With 0 it is [`checksum`].
pub(crate) fn checksum_with(number: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(number, bytes)
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
