//! One bit per page of the data file (set = used), and the search for free ones.
//!
//! Free pages in one piece are precious: a branch takes four, a value of middling size up to sixteen, and on a disk
//! that is full the file cannot grow to have them. So aligned blocks of four and of sixteen pages that are wholly free
//! are counted, and a search can be told to leave them alone as long as there are others.
//!
//! Invariant: `free` and `blocks` count what `words` says of the pages before `pages`; bits behind them are clear.

use std::ops::{DerefMut, Range};

use duramen_io::File;

use crate::checksum::checksum_with;
use crate::datafile::meta::{META_PAGES, SavedBitmap};
use crate::error::{Error, Result};
use crate::limits::{BRANCH_PAGES, PAGE_BYTES};

/// A run of this many pages is worth a system call of its own.
pub(crate) const LONG_RUN_PAGES: u32 = 16;
/// After so many pages without a run that is long enough, the longest one so far will do: looking through all of a
/// large and scattered file for each run costs more than writing in shorter ones.
const SEARCHED_PAGES_MAX: u32 = 64 * 256;
/// What is looked through of that for one run.
const SEARCHED_PIECE_PAGES: u32 = SEARCHED_PAGES_MAX / 8;
/// Pages of a large block.
pub(crate) const LARGE_BLOCK_PAGES: u32 = 16;

const _: () = assert!(BRANCH_PAGES == 4, "`small_blocks` folds bits by four");
const _: () = assert!(LARGE_BLOCK_PAGES == 16, "`large_blocks` folds bits by sixteen");

/// Numbers of aligned blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Of [`BRANCH_PAGES`], those in large ones included.
    pub(crate) small: u64,
    /// Of [`LARGE_BLOCK_PAGES`].
    pub(crate) large: u64,
}

/// What a search leaves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spared {
    Nothing,
    /// Free blocks of sixteen pages.
    LargeBlocks,
    /// Free blocks of four pages, and so the larger ones too.
    AllBlocks,
}

/// A run of free pages that a search is for.
struct Sought {
    /// Fewer pages are of no use.
    least: u32,
    /// With so many the search is over.
    enough: u32,
    /// More are not taken.
    wanted: u32,
    spared: Spared,
}

/// Where the words of a bitmap are.
pub(crate) trait Words: DerefMut<Target = [u64]> {
    /// Changes the number of words; new ones are zero.
    fn set_len(&mut self, count: usize);
    /// Called before words change.
    fn will_change(&mut self, _range: Range<usize>) {}
}

impl Words for Vec<u64> {
    fn set_len(&mut self, count: usize) {
        self.resize(count, 0);
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Bitmap<W = Vec<u64>> {
    words: W,
    counts: Counts,
}

/// What is known of the words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) pages: u32,
    pub(crate) free: u64,
    pub(crate) blocks: Blocks,
    /// No page below this word is free.
    pub(crate) first: usize,
    /// No run of [`LONG_RUN_PAGES`] begins below this word.
    pub(crate) first_long: usize,
    /// Where the next search for a run that may be short goes on: what is below was looked through since a page there
    /// came free.
    pub(crate) searched: usize,
}

/// The first bits of the small blocks of a word of which every bit is set.
fn small_blocks(free: u64) -> u64 {
    let pairs = free & free >> 1;
    pairs & pairs >> 2 & 0x1111_1111_1111_1111
}

/// Counts of the large blocks.
fn large_blocks(free: u64) -> u64 {
    let small = small_blocks(free);
    let pairs = small & small >> 4;
    pairs & pairs >> 8 & 0x0001_0001_0001_0001
}

impl Bitmap {
    pub(crate) fn empty(pages: u32) -> Bitmap {
        let mut bitmap = Bitmap {
            words: Vec::new(),
            counts: Counts::default(),
        };
        bitmap.extend(pages);
        bitmap
    }

    /// A bitmap of `pages` pages of which only the meta pages are used.
    pub(crate) fn new(pages: u32) -> Bitmap {
        let mut bitmap = Bitmap::empty(pages);
        bitmap.set(0, META_PAGES, true);
        bitmap
    }

    /// Loads a saved bitmap, for a file that now has `pages` pages, and marks its own pages. Its checksum is begun with
    /// `seed`.
    pub(crate) fn load(file: &dyn File, saved: SavedBitmap, pages: u32, seed: u32) -> Result<Bitmap> {
        if saved.page as u64 + saved.pages as u64 > pages as u64 {
            return Err(Error::damaged(format!(
                "the saved bitmap lies at page {}, beyond the data file",
                saved.page
            )));
        }
        let mut image = vec![0u8; saved.pages as usize * PAGE_BYTES];
        file.read_at(&mut image, saved.page as u64 * PAGE_BYTES as u64)
            .map_err(|error| Error::io("reading the bitmap of used pages", error))?;
        if checksum_with(seed, &image) != saved.checksum {
            return Err(Error::damaged(format!(
                "the bitmap at page {} has a wrong checksum",
                saved.page
            )));
        }
        let mut bitmap = Bitmap::new(pages);
        let words = image
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        for (index, word) in words.enumerate() {
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                let page = (index * 64 + bit) as u32;
                if page >= pages {
                    return Err(Error::damaged(format!(
                        "page {page} is in use but beyond the data file"
                    )));
                }
                bitmap.set(page, 1, true);
            }
        }
        bitmap.set(saved.page, saved.pages, true);
        Ok(bitmap)
    }
}

impl<W: Words> Bitmap<W> {
    /// A bitmap of these words, of which this is known.
    pub(crate) fn over(words: W, counts: Counts) -> Bitmap<W> {
        Bitmap { words, counts }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn set_counts(&mut self, counts: Counts) {
        self.counts = counts;
    }

    /// Gets the bits of another bitmap of as many pages.
    pub(crate) fn take_over(&mut self, other: &Bitmap) {
        self.words.copy_from_slice(&other.words);
        self.counts = other.counts;
    }

    pub(crate) fn words(&mut self) -> &mut W {
        &mut self.words
    }

    /// A copy of its own.
    pub(crate) fn copy(&self) -> Bitmap {
        Bitmap {
            words: self.words.to_vec(),
            counts: self.counts,
        }
    }

    /// The bits in the order of the file format, filled up with zeros to whole pages.
    pub(crate) fn image(&self, pages: u32) -> Vec<u8> {
        let mut image: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        image.resize(pages as usize * PAGE_BYTES, 0);
        image
    }

    /// Pages that the image of a bitmap takes, also when it gets longer by so many pages of the file.
    pub(crate) fn image_pages(&self, more: u64) -> u32 {
        let bytes = (self.words.len() as u64 + more / 64 + 1) * 8;
        bytes.div_ceil(PAGE_BYTES as u64) as u32
    }

    pub(crate) fn pages(&self) -> u32 {
        self.counts.pages
    }

    pub(crate) fn free(&self) -> u64 {
        self.counts.free
    }

    /// Blocks that are wholly free.
    pub(crate) fn blocks(&self) -> Blocks {
        self.counts.blocks
    }

    pub(crate) fn is_used(&self, page: u32) -> bool {
        self.words[page as usize / 64] >> (page % 64) & 1 == 1
    }

    pub(crate) fn set(&mut self, page: u32, count: u32, used: bool) {
        let (mut page, end) = (page as u64, page as u64 + count as u64);
        assert!(
            end <= self.counts.pages as u64,
            "pages {page} to {end} of {}",
            self.counts.pages
        );
        if page < end {
            self.words.will_change(page as usize / 64..(end as usize).div_ceil(64));
        }
        while page < end {
            let index = page as usize / 64;
            let next = (page / 64 + 1) * 64;
            let bits = (next.min(end) - page) as u32;
            let mask = (u64::MAX >> (64 - bits)) << (page % 64);
            self.set_word(index, mask, used);
            page = next;
        }
    }

    fn set_word(&mut self, index: usize, mask: u64, used: bool) {
        self.uncount(index);
        if used {
            self.words[index] |= mask;
        } else {
            self.words[index] &= !mask;
            self.counts.first = self.counts.first.min(index);
            self.counts.searched = self.counts.searched.min(index);
            self.lower_first_long(index);
        }
        self.count(index);
    }

    /// Some pages of this word are free that were not. What they made long may begin in the word before: if it began
    /// below that one, it was long already.
    fn lower_first_long(&mut self, index: usize) {
        self.counts.first_long = self.counts.first_long.min(index.saturating_sub(1));
    }

    fn count(&mut self, index: usize) {
        let free = self.free_bits(index);
        self.counts.free += free.count_ones() as u64;
        self.counts.blocks.small += small_blocks(free).count_ones() as u64;
        self.counts.blocks.large += large_blocks(free).count_ones() as u64;
    }

    fn uncount(&mut self, index: usize) {
        let free = self.free_bits(index);
        self.counts.free -= free.count_ones() as u64;
        self.counts.blocks.small -= small_blocks(free).count_ones() as u64;
        self.counts.blocks.large -= large_blocks(free).count_ones() as u64;
    }

    /// The free pages of a word.
    fn free_bits(&self, index: usize) -> u64 {
        let inside = (self.counts.pages as u64).saturating_sub(index as u64 * 64);
        let mask = if inside >= 64 { u64::MAX } else { (1 << inside) - 1 };
        !self.words[index] & mask
    }

    /// The free pages of a word that a search may take.
    fn searched_bits(&self, index: usize, spared: Spared) -> u64 {
        let free = self.free_bits(index);
        match spared {
            Spared::Nothing => free,
            Spared::LargeBlocks => free & !(large_blocks(free) * 0xFFFF),
            Spared::AllBlocks => free & !(small_blocks(free) * 0xF),
        }
    }

    /// Clears every bit that is set in `other`, which has the same length. Only good for saving: the counts go stale.
    pub(crate) fn remove(&mut self, other: &Bitmap<impl Words>) {
        self.words
            .iter_mut()
            .zip(other.words.iter())
            .for_each(|(word, other)| *word &= !other);
    }

    pub(crate) fn extend(&mut self, more: u32) {
        let last = self.words.len().checked_sub(1);
        last.into_iter().for_each(|last| self.uncount(last));
        self.counts.pages += more;
        self.words.set_len((self.counts.pages as usize).div_ceil(64));
        self.lower_first_long(last.unwrap_or(0));
        (last.unwrap_or(0)..self.words.len()).for_each(|index| self.count(index));
    }

    /// Forgets the pages behind, which are free.
    pub(crate) fn cut(&mut self, pages: u32) {
        let kept = (pages as usize).div_ceil(64);
        let changed = pages as usize / 64..self.words.len();
        changed.clone().for_each(|index| self.uncount(index));
        self.counts.pages = pages;
        self.words.set_len(kept);
        (changed.start..kept).for_each(|index| self.count(index));
        self.counts.first = self.counts.first.min(kept);
        self.counts.first_long = self.counts.first_long.min(kept);
    }

    /// Page after the last used one.
    pub(crate) fn end_of_used(&self) -> u32 {
        self.end_of_used_before(self.pages())
    }

    /// Free pages before `limit`.
    pub(crate) fn end_of_used_before(&self, limit: u32) -> u32 {
        let (whole, rest) = (limit as usize / 64, limit % 64);
        let last = match self.words.get(whole).map_or(0, |word| word & !(u64::MAX << rest)) {
            0 => {
                let words = &self.words[..whole];
                let last = words.iter().rposition(|&word| word != 0);
                last.map(|last| (last, words[last]))
            }
            bits => Some((whole, bits)),
        };
        let (last, bits) = last.expect("the meta pages are always used");
        last as u32 * 64 + 64 - bits.leading_zeros()
    }

    /// A run of free pages of at most `wanted`, but at least [`LONG_RUN_PAGES`]: the first one that begins before
    /// `limit`. `None`: there is none, or it lies far behind what was looked through by now, and the next call goes on
    /// there.
    pub(crate) fn find_long(&mut self, wanted: u32, limit: u32) -> Option<(u32, u32)> {
        let mut page = self.next_free(self.counts.first_long as u32 * 64, Spared::Nothing);
        let far = page.saturating_add(SEARCHED_PAGES_MAX).min(limit);
        let mut found = None;
        while page < self.counts.pages.min(far) {
            let end = self.end_of_free(page, wanted.max(LONG_RUN_PAGES), Spared::Nothing);
            if end - page >= LONG_RUN_PAGES {
                found = Some((page, (end - page).min(wanted)));
                break;
            }
            page = self.next_free(end, Spared::Nothing);
        }
        self.counts.first_long = page as usize / 64;
        found
    }

    /// A run of free pages of at most `wanted`: the first that has `enough`, or else a long one that has at least
    /// `least`. Low pages first, so that the end of the file comes free. But who is content with less than `enough`
    /// gets what the next piece of the lowest part has, because to look through all of it for each run costs more than
    /// a shorter run; it begins again where a page comes free.
    pub(crate) fn find(&mut self, least: u32, enough: u32, wanted: u32, spared: Spared) -> Option<(u32, u32)> {
        let sought = Sought {
            least,
            enough: enough.max(least).min(wanted),
            wanted,
            spared,
        };
        let first = self.next_free(self.counts.first as u32 * 64, Spared::Nothing);
        self.counts.first = first as usize / 64;
        let lowest = first..first.saturating_add(SEARCHED_PAGES_MAX).min(self.counts.pages);
        let (mut start, mut far) = (first, lowest.end);
        if least < sought.enough {
            let resumed = self.counts.searched as u32 * 64;
            start = if lowest.contains(&resumed) { resumed } else { first };
            far = start.saturating_add(SEARCHED_PIECE_PAGES);
        }
        let (found, searched) = self.search(&sought, start..lowest.end, far);
        if least < sought.enough {
            self.counts.searched = searched as usize / 64;
        }
        let rest = lowest.end..self.counts.pages;
        let far = rest.start.saturating_add(SEARCHED_PIECE_PAGES);
        found
            .or_else(|| self.search(&sought, first..start, start).0)
            .or_else(|| self.search(&sought, rest, far).0)
    }

    /// The first run in a range that has enough; or the longest one up to `far`; or else the first. And where the
    /// search ended.
    fn search(&self, sought: &Sought, range: Range<u32>, far: u32) -> (Option<(u32, u32)>, u32) {
        let mut best: Option<(u32, u32)> = None;
        let mut page = self.next_free(range.start, sought.spared);
        while page < range.end && (page < far || best.is_none()) {
            let end = self.end_of_free(page, sought.wanted, sought.spared);
            let length = end - page;
            if length >= sought.enough {
                return (Some((page, length)), page);
            }
            if length >= sought.least && best.is_none_or(|(_, longest)| length > longest) {
                best = Some((page, length));
            }
            page = self.next_free(end, sought.spared);
        }
        (best, page)
    }

    /// A free block for a branch, and those that follow it, of at most `wanted` pages in all.
    pub(crate) fn find_blocks(&self, wanted: u32, spared: Spared) -> Option<(u32, u32)> {
        let starts = |index: usize| match spared {
            Spared::Nothing => small_blocks(self.free_bits(index)),
            _ => small_blocks(self.searched_bits(index, Spared::LargeBlocks)),
        };
        let index = (self.counts.first..self.words.len()).find(|&index| starts(index) != 0)?;
        let page = index as u32 * 64 + starts(index).trailing_zeros();
        let free = self.end_of_free(page, wanted, spared) - page;
        Some((page, free / BRANCH_PAGES * BRANCH_PAGES))
    }

    /// The first page at or after `page` that a search may take, or `pages`.
    #[inline]
    fn next_free(&self, mut page: u32, spared: Spared) -> u32 {
        while page < self.counts.pages {
            let rest = self.searched_bits(page as usize / 64, spared) >> (page % 64);
            if rest != 0 {
                return page + rest.trailing_zeros();
            }
            page = (page / 64 + 1) * 64;
        }
        self.counts.pages
    }

    /// The end of the run that begins at `page`, looking no further than `wanted` pages.
    #[inline]
    fn end_of_free(&self, page: u32, wanted: u32, spared: Spared) -> u32 {
        let limit = (page as u64 + wanted as u64).min(self.counts.pages as u64) as u32;
        let mut end = page;
        while end < limit {
            let rest = !self.searched_bits(end as usize / 64, spared) >> (end % 64);
            let run = if rest == 0 { 64 } else { rest.trailing_zeros() };
            let in_word = 64 - end % 64;
            end += run.min(in_word);
            if run < in_word {
                break;
            }
        }
        end.min(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A count, or a smaller one under Miri, which runs a thousand times slower.
    fn scaled(count: usize, under_miri: usize) -> usize {
        if cfg!(miri) { under_miri } else { count }
    }

    /// Counts page by page.
    fn assert_counts(bitmap: &Bitmap) {
        let free = |page: u32| page < bitmap.counts.pages && !bitmap.is_used(page);
        let blocks = |pages: u32| {
            let starts = (0..bitmap.counts.pages).step_by(pages as usize);
            starts.filter(|&start| (start..start + pages).all(free)).count() as u64
        };
        assert_eq!(
            bitmap.counts.free,
            (0..bitmap.counts.pages).filter(|&page| free(page)).count() as u64
        );
        let counted = Blocks {
            small: blocks(BRANCH_PAGES),
            large: blocks(LARGE_BLOCK_PAGES),
        };
        assert_eq!(bitmap.counts.blocks, counted);
    }

    #[test]
    fn counts_are_those_of_the_pages_after_any_changes() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut bitmap = Bitmap::new(70);
        for _ in 0..scaled(2000, 30) {
            let page = rng.u32(META_PAGES..bitmap.counts.pages);
            let count = rng.u32(0..=(bitmap.counts.pages - page).min(90));
            match rng.u32(0..20) {
                0 => bitmap.extend(rng.u32(1..200)),
                1 => {
                    let end = bitmap.end_of_used();
                    bitmap.cut(rng.u32(end..=bitmap.counts.pages));
                }
                2..8 => bitmap.set(page, count.min(5), true),
                _ => bitmap.set(page, count, rng.bool()),
            }
            assert_counts(&bitmap);
        }
    }

    #[test]
    fn search_finds_only_free_pages_and_leaves_blocks_alone() {
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..scaled(300, 5) {
            let mut bitmap = Bitmap::new(rng.u32(100..400));
            for _ in 0..rng.u32(1..60) {
                let page = rng.u32(META_PAGES..bitmap.counts.pages);
                bitmap.set(page, rng.u32(1..=(bitmap.counts.pages - page).min(12)), true);
            }
            for spared in [Spared::Nothing, Spared::LargeBlocks, Spared::AllBlocks] {
                let least = rng.u32(1..6);
                let wanted = rng.u32(least..70);
                let before = bitmap.counts.blocks;
                let Some((page, count)) = bitmap.find(least, LONG_RUN_PAGES, wanted, spared) else {
                    continue;
                };
                assert!((least..=wanted).contains(&count));
                assert!((page..page + count).all(|page| !bitmap.is_used(page)));
                let mut after = bitmap.clone();
                after.set(page, count, true);
                assert!(spared == Spared::Nothing || after.counts.blocks.large == before.large);
                assert!(spared != Spared::AllBlocks || after.counts.blocks.small == before.small);
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "searches thousands of pages")]
    fn first_long_run_is_found_sooner_or_later() {
        let mut rng = fastrand::Rng::with_seed(17);
        for _ in 0..200 {
            let pages = rng.u32(100..4 * SEARCHED_PAGES_MAX);
            let mut bitmap = Bitmap::new(pages);
            let step = rng.usize(3..20);
            (META_PAGES..pages)
                .step_by(step)
                .for_each(|page| bitmap.set(page, 1, true));
            for _ in 0..30 {
                let page = rng.u32(META_PAGES..bitmap.pages());
                let count = rng.u32(1..=(bitmap.pages() - page).min(40));
                match rng.u32(0..10) {
                    0 => bitmap.extend(count),
                    1 => bitmap.cut(bitmap.end_of_used().max(page)),
                    2..6 => bitmap.set(page, count, false),
                    _ => bitmap.set(page, count, true),
                }
                let is_long = |page: u32| {
                    let run = page..page + LONG_RUN_PAGES;
                    run.end <= bitmap.pages() && run.clone().all(|page| !bitmap.is_used(page))
                };
                let limit = if rng.bool() { u32::MAX } else { rng.u32(0..pages) };
                let first = (META_PAGES..bitmap.pages().min(limit)).find(|&page| is_long(page));
                let wanted = rng.u32(LONG_RUN_PAGES..64);
                let calls = pages / SEARCHED_PAGES_MAX + 2;
                let found = (0..calls).find_map(|_| bitmap.find_long(wanted, limit));
                assert_eq!(found.map(|(page, _)| page), first);
                assert!(found.is_none_or(|(page, count)| {
                    (LONG_RUN_PAGES..=wanted).contains(&count) && (page..page + count).all(|page| !bitmap.is_used(page))
                }));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "searches thousands of pages")]
    fn search_does_not_look_through_a_whole_scattered_file() {
        let pages = 4 * SEARCHED_PAGES_MAX;
        let mut bitmap = Bitmap::new(pages);
        (META_PAGES..pages - 100)
            .step_by(3)
            .for_each(|page| bitmap.set(page, 1, true));
        // The only long run is at the end; the first pages do as well.
        let (page, count) = bitmap.find(1, LONG_RUN_PAGES, 64, Spared::Nothing).unwrap();
        assert!(page < SEARCHED_PAGES_MAX && count == 2);
        // Who can do with nothing else gets it.
        let (page, count) = bitmap.find(50, LONG_RUN_PAGES, 64, Spared::Nothing).unwrap();
        assert!(page >= pages - 102 && count == 64);
    }

    #[test]
    #[cfg_attr(miri, ignore = "searches thousands of pages")]
    fn free_page_is_found_wherever_the_last_search_ended() {
        let mut rng = fastrand::Rng::with_seed(19);
        for _ in 0..scaled(300, 5) {
            let pages = rng.u32(100..3 * SEARCHED_PAGES_MAX);
            let mut bitmap = Bitmap::empty(pages);
            bitmap.set(0, pages, true);
            for _ in 0..rng.u32(0..3) {
                let page = rng.u32(META_PAGES..pages);
                bitmap.set(page, rng.u32(1..=(pages - page).min(20)), false);
            }
            bitmap.counts.searched = rng.usize(0..pages as usize / 32);
            for spared in [Spared::Nothing, Spared::LargeBlocks, Spared::AllBlocks] {
                let may_be_taken =
                    (0..pages.div_ceil(64) as usize).any(|index| bitmap.searched_bits(index, spared) != 0);
                let found = bitmap.clone().find(1, LONG_RUN_PAGES, 64, spared);
                assert_eq!(found.is_some(), may_be_taken);
                assert!(found.is_none_or(|(page, count)| (page..page + count).all(|page| !bitmap.is_used(page))));
            }
        }
    }

    #[test]
    fn what_comes_free_below_is_taken_before_what_is_above() {
        let pages = SEARCHED_PAGES_MAX;
        let mut bitmap = Bitmap::new(pages);
        (META_PAGES..pages)
            .step_by(5)
            .for_each(|page| bitmap.set(page, 1, true));
        let take = |bitmap: &mut Bitmap| {
            let (page, count) = bitmap
                .find(1, LONG_RUN_PAGES, 64, Spared::Nothing)
                .expect("much is free");
            bitmap.set(page, count, true);
            page
        };
        let taken: Vec<u32> = (0..20).map(|_| take(&mut bitmap)).collect();
        assert!(
            taken.iter().any(|&page| page > pages / 2),
            "all of it has been looked through: {taken:?}"
        );
        for round in 0..scaled(100, 5) as u32 {
            bitmap.set(3 + round % 7, 1, true);
            bitmap.set(3 + round % 7, 1, false);
            let page = take(&mut bitmap);
            assert!(page < 2 * SEARCHED_PIECE_PAGES, "round {round}: {page}");
            bitmap.set(page, 1, false);
        }
    }

    #[test]
    fn a_block_is_found_as_long_as_there_is_one() {
        let mut rng = fastrand::Rng::with_seed(13);
        for _ in 0..scaled(100, 5) {
            let mut bitmap = Bitmap::new(300);
            (0..rng.u32(1..100)).for_each(|_| bitmap.set(rng.u32(META_PAGES..300), 1, true));
            while let Some((page, count)) = bitmap.find_blocks(16, Spared::Nothing) {
                assert!(page % BRANCH_PAGES == 0 && count % BRANCH_PAGES == 0 && (4..=16).contains(&count));
                assert!((page..page + count).all(|page| !bitmap.is_used(page)));
                bitmap.set(page, count, true);
            }
            assert_eq!(bitmap.counts.blocks.small, 0);
        }
    }
}
