//! Pages that were replaced, and may still be read.

use crate::datafile::bitmap::{Blocks, LARGE_BLOCK_PAGES};
use crate::datafile::promises::Room;
use crate::limits::{BRANCH_PAGES, DATA_PAGES_MAX, INDEX_SPAN_BYTES, REGION_SPAN_BYTES};
use crate::region::Pins;

/// Pages that wait for readers of the versions `birth..death`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retired {
    pub(crate) page: u32,
    pub(crate) pages: u32,
    pub(crate) birth: u64,
    pub(crate) death: u64,
    /// Whether records of the log may refer to them: pages of long values and of runs.
    pub(crate) is_logged: bool,
}

impl Retired {
    /// Whether a snapshot, or a stream that follows the log, may still read these pages.
    pub(super) fn is_held(&self, pins: &Pins) -> bool {
        pins.hold(self.birth, self.death) || self.is_logged && pins.hold_logged(self.death)
    }

    /// The room that it leaves: it may make neighbouring pages a block, but that is not known before.
    pub(super) fn room(&self) -> Room {
        let blocks = |pages: u32| ((self.page + self.pages) / pages).saturating_sub(self.page.div_ceil(pages)) as u64;
        Room {
            pages: self.pages as u64,
            blocks: Blocks {
                small: blocks(BRANCH_PAGES),
                large: blocks(LARGE_BLOCK_PAGES),
            },
        }
    }

    pub(super) fn encode(self) -> StoredRetired {
        // A value has at most 2^18 pages and a few.
        assert!(self.pages < 1 << 31);
        let logged = if self.is_logged { LOGGED } else { 0 };
        [
            self.page as u64 | (self.pages as u64) << 32 | logged,
            self.birth,
            self.death,
        ]
    }

    /// Pages that a commit brought and that a tree is about to hold: they only lose that mark when it is published.
    pub(super) fn encode_adopted(page: u32, pages: u32) -> StoredRetired {
        [page as u64 | (pages as u64) << 32, ADOPTED, 0]
    }

    /// The pages of such an element, if it is one.
    pub(super) fn decode_adopted([pages, birth, _]: StoredRetired) -> Option<(u32, u32)> {
        (birth == ADOPTED).then_some((pages as u32, (pages >> 32) as u32))
    }

    pub(super) fn decode([pages, birth, death]: StoredRetired) -> Retired {
        Retired {
            page: pages as u32,
            pages: ((pages & !LOGGED) >> 32) as u32,
            birth,
            death,
            is_logged: pages & LOGGED != 0,
        }
    }
}

/// A [`Retired`] as the region keeps it: page and number of pages, birth, death. The highest bit of the first number
/// says whether it is logged.
pub(super) type StoredRetired = [u64; 3];

const LOGGED: u64 = 1 << 63;
/// No page was born then.
const ADOPTED: u64 = u64::MAX;

/// Bytes that the list of retired pages reserves at most.
const RETIRED_BYTES_MAX: u64 = DATA_PAGES_MAX * size_of::<StoredRetired>() as u64 / 4 * 5;
const _: () = assert!(
    3 * RETIRED_BYTES_MAX + INDEX_SPAN_BYTES <= REGION_SPAN_BYTES,
    "the largest data file leaves room for indexes: behind a gap that was too short, a list that moves, and its new place"
);
