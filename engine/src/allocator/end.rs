//! The end of the data file: how much of it can go, and cutting it off.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::state::{Locked, State};
use super::{GROWTH_PAGES_MAX, GROWTH_PAGES_MIN, Space, Want};
use crate::datafile::bitmap::{Bitmap, LARGE_BLOCK_PAGES, Words};
use crate::datafile::pages::Pages;
use crate::datafile::promises::Room;
use crate::error::{Error, Kind, Result};
use crate::limits::{BRANCH_PAGES, PAGE_BYTES};

/// Pages that are cut off the end of the file at a time.
const CUT_PAGES_MAX: u32 = if cfg!(debug_assertions) { 64 } else { 8192 };

/// How much of a free end of the file is left there: a little avoids growing and shrinking in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slack {
    /// While the store is in use.
    Usual,
    /// When it was quiet for long, or is closed.
    Least,
    /// When a caller asked for it, or when pages were moved for nothing else.
    Nothing,
}

impl Slack {
    fn pages(self, bitmap: &Bitmap<impl Words>) -> u64 {
        let eighth = bitmap.pages() as u64 / 8;
        match self {
            Slack::Usual => eighth.max(GROWTH_PAGES_MIN),
            Slack::Least => eighth.max(GROWTH_PAGES_MIN / 8),
            Slack::Nothing => 0,
        }
    }
}

impl Space {
    /// Whether the file has an end that could be cut off, were both meta pages to forget it.
    pub(crate) fn has_surplus(&self, slack: Slack) -> Result<bool> {
        let mut state = self.lock()?;
        let count = state.bitmap.image_pages(GROWTH_PAGES_MAX);
        let kept = self.promised().and(Room::RESERVE);
        let lower = state
            .find(Want::Piece(count), count, kept)
            .map_or(u32::MAX, |(page, _)| page);
        // Saving the bitmap again moves it, and the place kept for it, as near to the front as there is room.
        let (page, length) = state.for_bitmap;
        let target = if length >= count { lower.min(page) } else { lower };
        let mut end = state.bitmap.end_of_used();
        for _ in 0..2 {
            for (page, length) in [state.saved, state.for_bitmap] {
                if page + length == end && page > target {
                    end = state.bitmap.end_of_used_before(page);
                }
            }
        }
        Ok(self.surplus(&state, end) > slack.pages(&state.bitmap))
    }

    /// Free pages behind `end` that are not promised to anybody.
    pub(super) fn surplus(&self, state: &State<'_>, end: u32) -> u64 {
        let keep = self.promised().and(Room::RESERVE);
        let available = state.available();
        let small = available.blocks.small.saturating_sub(keep.small_blocks() + 1) * BRANCH_PAGES as u64;
        let large = available.blocks.large.saturating_sub(keep.blocks.large + 1) * LARGE_BLOCK_PAGES as u64;
        let behind = (state.bitmap.pages() - end) as u64;
        let behind = behind.min(available.pages.saturating_sub(keep.pages)).min(small);
        if keep.blocks.large == 0 {
            behind
        } else {
            behind.min(large)
        }
    }

    /// Cuts free pages off the end of the file that neither meta page knows. In pieces: commits need the allocator's lock, and
    /// the kernel takes a fifth of a second to forget a gigabyte. `pause` between the pieces is for them.
    pub(crate) fn cut(&self, slack: Slack, pages: &Pages, pause: Duration) -> Result<()> {
        let mut target = None;
        loop {
            let mut state = self.lock()?;
            target = self.cut_file(&mut state, slack, target)?;
            pages.cover(state.bitmap.pages() as u64 * PAGE_BYTES as u64)?;
            if target.is_some() {
                drop(state);
                std::thread::sleep(pause);
                continue;
            }
            if slack == Slack::Least {
                // What could not be given back for want of room to move to is given back another time.
                match state.give_back_memory() {
                    Err(error) if error.kind() == Kind::MakeSpace => {}
                    given_back => given_back?,
                }
            }
            return Ok(());
        }
    }

    /// Cuts one piece off the end of the file. `target`: pages that the file should keep, once that was decided. Returns it while
    /// there is more to cut.
    pub(super) fn cut_file(&self, state: &mut Locked<'_>, slack: Slack, target: Option<u32>) -> Result<Option<u32>> {
        let [older, newer] = state.durable_ends;
        let surplus = self.surplus(state, older.max(newer).max(state.bitmap.end_of_used()));
        if target.is_none() && surplus <= slack.pages(&state.bitmap) {
            return Ok(None);
        }
        // Pages may have been taken since it was decided.
        let least = (state.bitmap.pages() - surplus as u32).max(target.unwrap_or(0));
        let pages = least.max(state.bitmap.pages().saturating_sub(CUT_PAGES_MAX));
        if pages >= state.bitmap.pages() {
            return Ok(None);
        }
        state.cut(pages);
        self.mirror(state);
        // First noted, then done: a process that dies in between leaves a file that is longer than needed.
        state.end_step();
        self.head().preloaded.fetch_min(pages as u64, Ordering::Relaxed);
        self.file
            .set_len(pages as u64 * PAGE_BYTES as u64)
            .map_err(|error| Error::io("shrinking the data file", error))?;
        Ok((pages > least).then_some(least))
    }
}
