//! The file format of bbolt, the store of etcd. The format is that of <https://github.com/etcd-io/bbolt>, version 1.5: files
//! `page.go`, `meta.go`, `bucket.go` and `inode.go` of `internal/common`.
//!
//! ```text
//! page      number 8 bytes, flags 2, count 2, overflow 4 (pages that follow and belong to it), then `count` elements
//! leaf      element: flags 4, position 4, key bytes 4, value bytes 4; then keys and values
//! branch    element: position 4, key bytes 4, page number 8; then keys: the least that its page may have
//! meta      magic 4, version 4, page bytes 4, flags 4, root bucket 16, free list 8, pages 8, transaction 8, checksum 8
//! bucket    the value of a leaf element with the flag 1: root page 8, sequence 8; root page 0: a page follows in the value
//! ```
//! Numbers are little-endian, as on all machines that we run on. A position counts from the beginning of its element. Pages 0
//! and 1 are two meta pages, of which the valid page with the higher transaction counts. Its checksum is FNV-1a, 64 bits.

mod reader;
mod writer;

pub(super) use reader::{Bucket, Reader};
pub(super) use writer::Writer;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const PAGE_HEADER_BYTES: usize = 16;
/// An element of a leaf page and of a branch page.
const ELEMENT_BYTES: usize = 16;
/// What a meta page has after its header: bytes under the checksum, and the checksum.
const META_SUMMED_BYTES: usize = 56;
const META_BYTES: usize = META_SUMMED_BYTES + 8;
/// Root page and sequence of a bucket.
const BUCKET_BYTES: usize = 16;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE_LIST: u16 = 0x10;
/// Flag of a leaf element whose value is a bucket.
const IS_BUCKET: u32 = 0x01;

/// The checksum of a meta page.
fn fnv_1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests;
