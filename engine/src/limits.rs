//! Every limit of the engine, each with its reason, and the relations between them as compile-time assertions.

/// The unit of the data file. 4 KiB is the operating system's page on both supported processors and the sweet spot
/// for random access (Haas and Leis, VLDB 2023).
pub const PAGE_BYTES: usize = 4096;
/// A branch is a run of this many pages: its fanout keeps trees of ten million pairs at two branch levels.
pub const BRANCH_PAGES: u32 = 4;
/// Bytes of a branch.
pub const BRANCH_BYTES: usize = PAGE_BYTES * BRANCH_PAGES as usize;
/// Longest user key in bytes. A leaf must hold several keys of this length beside their values.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of the map id that stands in front of every user key.
pub const MAP_ID_BYTES: usize = 4;
/// Longest key with its map id.
pub const FULL_KEY_BYTES_MAX: usize = KEY_BYTES_MAX + MAP_ID_BYTES;
/// Longest value kept inside a leaf; longer ones get pages of their own, so that a leaf holds at least three pairs
/// of this size with short keys and always at least one with the longest key.
pub const INLINE_VALUE_BYTES_MAX: usize = 1200;
/// Longest value written into a log record; longer ones are written straight into the data file, and the record
/// refers to them, so that a record stays small and a value is not written twice.
pub const LOGGED_VALUE_BYTES_MAX: usize = 64 << 10;
/// Longest value: 1 GiB.
pub const VALUE_BYTES_MAX: u64 = 1 << 30;
/// Part of a long value that carries a checksum of its own, so that a stream verifies as it goes.
pub const VALUE_CHUNK_BYTES: usize = 1 << 20;
/// Longest name of a map in bytes.
pub const MAP_NAME_BYTES_MAX: usize = 255;
/// Generations of the log that may be alive in one version: one that takes commits, the others frozen.
pub const LIVE_GENERATIONS_MAX: usize = 8;

const _: () = assert!(BRANCH_BYTES == 16384);
const _: () = assert!(FULL_KEY_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 64 + 16 < PAGE_BYTES);
const _: () = assert!(INLINE_VALUE_BYTES_MAX < LOGGED_VALUE_BYTES_MAX);
