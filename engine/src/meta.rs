//! Meta pages: the first four pages of the data file. They say where the newest durable base is.
//!
//! ```text
//! page 0, 1   two copies of the meta page with an even sequence number
//! page 2, 3   two copies of the meta page with an odd sequence number
//!
//! meta page   0 magic u64 | 8 format u32 | 12 checksum u32 | 16 the rest, by format
//! ```
//!
//! Every future format keeps the first line of that, and how the checksum is made: CRC-32C of bytes 16..4096, begun
//! with the number of the format less one. It covers the format too, so that a page of a newer format can be told from
//! one that rotted.
//!
//! A new meta page replaces the older pair, both copies, after everything it refers to is durable. The pair with the
//! highest intact sequence number counts. Falling back to the older pair is right after a power cut during the
//! write (the newer one was never acknowledged) and wrong when the newer one was durable: the log tells, because
//! records carry the sequence number of the newest durable meta page.

use duramen_io::File;

use crate::base::Root;
use crate::checksum::checksum_with;
use crate::error::{Error, Reason, Result};
use crate::limits::{LONG_NUMBER_MAX, PAGE_BYTES, SHORT_NUMBER_MAX};

/// Format of the files. Stores of a newer format are refused; see `docs/reference/format.md` for the policy.
pub(crate) const FORMAT: u32 = 1;
/// Name of the data file.
pub(crate) const DATA_FILE: &str = "data";
/// Pages at the beginning of the data file that are not for the allocator.
pub(crate) const META_PAGES: u32 = 4;

const META_MAGIC: u64 = u64::from_le_bytes(*b"DuramenD");
const META_BYTES: usize = 128;

/// The durable state of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) store: u128,
    pub(crate) sequence: u64,
    pub(crate) hash_seed: u64,
    /// Newest commit contained in the base.
    pub(crate) base_commit: u64,
    /// Header checksum of that commit's record, to which the log connects.
    pub(crate) previous: u32,
    pub(crate) root: Root,
    /// The version that had this root when it was made: pages born later do not belong to it.
    pub(crate) version: u64,
    /// The saved bitmap of used pages: first page, pages, checksum.
    pub(crate) bitmap: SavedBitmap,
    /// Pages of the data file up to the last one in use; what is beyond may be cut off once both meta pages say so.
    pub(crate) data_pages: u32,
    pub(crate) next_map: u32,
    pub(crate) epoch: u32,
    pub(crate) next_generation: u32,
    /// Newest commit of which the base holds anything: when it is newer than `base_commit`, the commits between the two are in
    /// parts of the base, and in the log up to there.
    pub(crate) reaches: u64,
}

/// Where the bitmap of used pages is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedBitmap {
    pub(crate) page: u32,
    pub(crate) pages: u32,
    pub(crate) checksum: u32,
}

impl Meta {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0u8; PAGE_BYTES];
        out[0..8].copy_from_slice(&META_MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[16..32].copy_from_slice(&self.store.to_le_bytes());
        out[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        out[40..48].copy_from_slice(&self.hash_seed.to_le_bytes());
        out[48..56].copy_from_slice(&self.base_commit.to_le_bytes());
        out[56..64].copy_from_slice(&self.root.pairs.to_le_bytes());
        out[64..72].copy_from_slice(&self.version.to_le_bytes());
        let words = [
            self.previous,
            self.root.page,
            self.root.height as u32,
            self.bitmap.page,
            self.bitmap.pages,
            self.bitmap.checksum,
            self.data_pages,
            self.next_map,
            self.epoch,
            self.next_generation,
        ];
        for (place, word) in out[72..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out[112..120].copy_from_slice(&self.reaches.to_le_bytes());
        let sum = page_checksum(FORMAT, &out);
        out[12..16].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(page: &[u8]) -> Found {
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        if long(0) != META_MAGIC {
            return Found::Nothing;
        }
        let format = word(8);
        if format == 0 || word(12) != page_checksum(format, page) {
            return Found::Nothing;
        }
        if format > FORMAT {
            return Found::Newer(format);
        }
        let meta = Meta {
            store: u128::from_le_bytes(page[16..32].try_into().expect("sixteen bytes")),
            sequence: long(32),
            hash_seed: long(40),
            base_commit: long(48),
            previous: word(72),
            root: Root {
                page: word(76),
                height: word(80) as u8,
                pairs: long(56),
            },
            version: long(64),
            bitmap: SavedBitmap {
                page: word(84),
                pages: word(88),
                checksum: word(92),
            },
            data_pages: word(96),
            next_map: word(100),
            epoch: word(104),
            next_generation: word(108),
            reaches: long(112),
        };
        if meta.is_possible() {
            Found::Meta(meta)
        } else {
            Found::Nothing
        }
    }

    /// Whether one can count on from the numbers.
    fn is_possible(&self) -> bool {
        let long = [self.sequence, self.base_commit, self.version, self.reaches];
        let short = [self.next_map, self.epoch, self.next_generation];
        long.iter().all(|&number| number < LONG_NUMBER_MAX) && short.iter().all(|&number| number < SHORT_NUMBER_MAX)
    }

    /// Page of the first of its two copies.
    pub(crate) fn first_page(&self) -> u64 {
        (self.sequence % 2) * 2
    }

    /// Writes both copies. The caller has synced what the meta page refers to, and syncs the file afterwards.
    pub(crate) fn write(&self, data: &dyn File) -> std::io::Result<()> {
        let page = self.encode();
        let first = self.first_page();
        data.write_at(&page, first * PAGE_BYTES as u64)?;
        data.write_at(&page, (first + 1) * PAGE_BYTES as u64)
    }

    /// The newest intact meta page, and whether both copies of it are intact. `None`: there is none at all.
    pub(crate) fn read(data: &dyn File) -> Result<Option<(Meta, bool)>> {
        let length = data.len().map_err(|error| Error::io("reading the meta pages", error))?;
        let mut found: Vec<Meta> = Vec::new();
        let mut newer = None;
        for index in 0..META_PAGES as u64 {
            let mut page = vec![0u8; PAGE_BYTES];
            let offset = index * PAGE_BYTES as u64;
            if offset + PAGE_BYTES as u64 > length {
                break;
            }
            data.read_at(&mut page, offset)
                .map_err(|error| Error::io("reading the meta pages", error))?;
            match Meta::decode(&page) {
                Found::Meta(meta) if meta.sequence % 2 == index / 2 => found.push(meta),
                Found::Newer(format) => newer = Some(format),
                Found::Meta(_) | Found::Nothing => {}
            }
        }
        if let Some(format) = newer {
            return Err(Reason::NewerFormat {
                found: format,
                supported: FORMAT,
            }
            .into());
        }
        let Some(newest) = found.iter().max_by_key(|meta| meta.sequence).copied() else {
            return Ok(None);
        };
        let copies = found.iter().filter(|meta| meta.sequence == newest.sequence).count();
        Ok(Some((newest, copies == 2)))
    }
}

/// The checksum of a meta page of any format.
fn page_checksum(format: u32, page: &[u8]) -> u32 {
    checksum_with(format - 1, &page[16..])
}

enum Found {
    Meta(Meta),
    Newer(u32),
    Nothing,
}

const _: () = assert!(112 + 8 <= META_BYTES && META_BYTES <= PAGE_BYTES);
