//! Which pages of the data file are free, which wait until nobody can see them, and how many are promised.
//!
//! Three kinds of pages: *free*; *used* by the newest base, by values and runs that the log refers to, or being
//! written; *retired*: replaced by version `death`, but perhaps still read by a snapshot, or needed by the durable
//! base. A retired page born in version `birth` becomes free when no pinned version lies in `birth..death`, and one that
//! the log refers to (of a long value, or of a run) only when nobody follows the log from before `death` either; the
//! version of the durable base always counts as pinned. Versions count published roots, not commits: a fold gives the
//! same commits a new root.
//!
//! Before a commit is accepted, the pages that folding it may take are promised: `needed(pending) + reserve <=
//! available`, where available are the free pages, those that the running fold has taken of them, and the retired ones
//! that wait for nothing but the next durable base: they are free before the next fold begins, and a snapshot that is
//! taken from now on does not see them. So a fold never meets a full disk, and because deletions may use the reserve,
//! a full store can always be emptied.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use duramen_io::File;

use crate::checksum::checksum;
use crate::error::{Error, Reason, Result};
use crate::limits::{DATA_PAGES_MAX, DELETE_RESERVE_PAGES, PAGE_BYTES};
use crate::meta::{META_PAGES, SavedBitmap};
use crate::pages::Pages;
use crate::planted::{PlantedBug, is_planted};
use crate::region::{Pins, full_or_io};

/// The file grows by a sixteenth of itself, within these bounds.
const GROWTH_PAGES_MIN: u64 = 64;
const GROWTH_PAGES_MAX: u64 = 16_384;
/// What the kernel maps with one entry of a page table.
const LARGE_PIECE_PAGES: u64 = 512;
/// From this size on the file grows by whole large pieces.
const LARGE_FILE_PAGES: u64 = 16 * LARGE_PIECE_PAGES;
/// A run of this many pages is worth a system call of its own.
const LONG_RUN_PAGES: u32 = 16;

/// The allocator of the data file.
#[derive(Debug)]
pub(crate) struct Space {
    file: Arc<dyn File>,
    state: Mutex<State>,
    /// Mirrors of `state` that the commit path reads without the lock: pages that promises can count on, and pages of
    /// the published base, its values, and what commits brought.
    available: AtomicU64,
    base: AtomicU64,
    /// Pages up to this one were preloaded, or written before that could have helped.
    preloaded: AtomicU64,
    /// Operations and bytes in commits that are not folded.
    pending_operations: AtomicU64,
    pending_bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    bitmap: Bitmap,
    /// Used pages that no base refers to yet: values and runs of commits that are not folded or not even made.
    loose: Bitmap,
    retired: Vec<Retired>,
    retired_pages: u64,
    /// Those of the retired pages that no snapshot holds.
    awaited_pages: u64,
    /// Used pages of a tree that is not yet published, by whether they were promised to it.
    taken: u64,
    taken_beyond: u64,
    /// Pages that may be cut off once the other meta page has forgotten them too.
    durable_ends: [u32; 2],
}

impl State {
    /// Pages that promises can count on.
    fn available(&self) -> u64 {
        self.bitmap.free + self.taken + self.awaited_pages
    }

    /// Pages of the published base, its values, and what commits brought.
    fn base(&self) -> u64 {
        self.bitmap.pages as u64 - self.bitmap.free - self.retired_pages - self.taken - self.taken_beyond
    }
}

/// What a tree that is being written takes its pages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// From what was promised to the fold of the commits it holds.
    Promised,
    /// From what is left beyond all promises: nobody asked for a rewrite before.
    Beyond,
}

/// How much of a free end of the file is left there: a little avoids growing and shrinking in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slack {
    /// While the store is in use.
    Usual,
    /// When it was quiet for long, or is closed.
    Least,
}

impl Slack {
    fn pages(self, bitmap: &Bitmap) -> u64 {
        let least = match self {
            Slack::Usual => GROWTH_PAGES_MIN,
            Slack::Least => GROWTH_PAGES_MIN / 8,
        };
        (bitmap.pages as u64 / 8).max(least)
    }
}

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
    /// Whether a snapshot, or somebody who follows the log, may still read these pages.
    fn is_held(&self, pins: &Pins) -> bool {
        pins.hold(self.birth, self.death) || self.is_logged && pins.hold_logged(self.death)
    }
}

/// Figures for statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceFigures {
    pub(crate) file_pages: u64,
    pub(crate) free_pages: u64,
    pub(crate) retired_pages: u64,
    pub(crate) pending_operations: u64,
    pub(crate) pending_bytes: u64,
}

impl Space {
    /// A space whose used pages are those of `bitmap`.
    pub(crate) fn new(file: Arc<dyn File>, bitmap: Bitmap) -> Space {
        let end = bitmap.pages;
        let loose = Bitmap::empty(end);
        let state = State {
            bitmap,
            loose,
            retired: Vec::new(),
            retired_pages: 0,
            awaited_pages: 0,
            taken: 0,
            taken_beyond: 0,
            durable_ends: [end, end],
        };
        Space {
            file,
            available: AtomicU64::new(state.available()),
            base: AtomicU64::new(state.base()),
            state: Mutex::new(state),
            preloaded: AtomicU64::new(end as u64),
            pending_operations: AtomicU64::new(0),
            pending_bytes: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn mirror(&self, state: &State) {
        self.available.store(state.available(), Ordering::Relaxed);
        self.base.store(state.base(), Ordering::Relaxed);
    }

    /// Pages that folding this much may take at the worst. Each operation rewrites a leaf and its branches and makes
    /// them split; but the tree is rewritten at most once, and where neighbours are rewritten together, they come out
    /// eight ninths full (see `base::merge`), which also holds for what is new. And the bitmap may get longer.
    fn needed(&self, operations: u64, bytes: u64) -> u64 {
        let used = self.base.load(Ordering::Relaxed);
        let rewritten = (operations * 12).min(used + used / 8 + 12);
        let new = (bytes + operations * 16) * 9 / 8 / PAGE_BYTES as u64;
        rewritten + new + 2 * (used >> 15) + 16
    }

    /// What is promised to the commits that are not folded.
    fn promised(&self) -> u64 {
        let operations = self.pending_operations.load(Ordering::Relaxed);
        self.needed(operations, self.pending_bytes.load(Ordering::Relaxed))
    }

    /// Promises the pages for a commit, growing the file when needed. `uses_reserve`: the commit only deletes.
    pub(crate) fn promise(&self, operations: u64, bytes: u64, uses_reserve: bool, pages: &Pages) -> Result<()> {
        let pending = self.pending_operations.fetch_add(operations, Ordering::Relaxed) + operations;
        let pending_bytes = self.pending_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let reserve = if uses_reserve { 0 } else { DELETE_RESERVE_PAGES };
        let needed = self.needed(pending, pending_bytes) + reserve;
        let result = self.have(needed, pages);
        if result.is_err() {
            self.settle(operations, bytes);
        }
        result
    }

    /// Takes back what was promised: the commit was refused, or is folded.
    pub(crate) fn settle(&self, operations: u64, bytes: u64) {
        self.pending_operations.fetch_sub(operations, Ordering::Relaxed);
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds what recovery found in the log, without asking for room: the fold will ask.
    pub(crate) fn promise_recovered(&self, operations: u64, bytes: u64) {
        self.pending_operations.fetch_add(operations, Ordering::Relaxed);
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn have(&self, needed: u64, pages: &Pages) -> Result<()> {
        let have = || self.available.load(Ordering::Relaxed);
        if needed <= have() {
            return Ok(());
        }
        let mut state = self.lock();
        if needed <= have() {
            return Ok(());
        }
        self.grow(&mut state, needed - have(), pages)
    }

    fn grow(&self, state: &mut State, short: u64, pages: &Pages) -> Result<()> {
        let now = state.bitmap.pages as u64;
        let step = (now / 16).clamp(GROWTH_PAGES_MIN, GROWTH_PAGES_MAX);
        let mut wanted = short.next_multiple_of(step);
        if now + wanted >= LARGE_FILE_PAGES {
            wanted = (now + wanted).next_multiple_of(LARGE_PIECE_PAGES) - now;
        }
        let grown = self.grow_by(state, wanted, pages);
        // Near the end of the disk less may be had than is handy.
        let grown = grown.or_else(|error| {
            if wanted == short {
                Err(error)
            } else {
                self.grow_by(state, short, pages)
            }
        });
        self.mirror(state);
        grown
    }

    fn grow_by(&self, state: &mut State, more: u64, pages: &Pages) -> Result<()> {
        let now = state.bitmap.pages as u64;
        let bytes = more * PAGE_BYTES as u64;
        if now + more > DATA_PAGES_MAX {
            return Err(Reason::Full {
                needed: bytes,
                what: "the data file, which ends at 16 TiB",
            }
            .into());
        }
        self.file
            .allocate(now * PAGE_BYTES as u64, bytes)
            .map_err(|error| full_or_io("the data file", bytes, error))?;
        pages.cover((now + more) * PAGE_BYTES as u64)?;
        state.bitmap.extend(more as u32);
        state.loose.extend(more as u32);
        Ok(())
    }

    /// A run of free pages for a new tree: `wanted` or fewer, but at least one of `least` pages, now used.
    pub(crate) fn take_run(&self, claim: Claim, least: u32, wanted: u32, pages: &Pages) -> Result<(u32, u32)> {
        let mut state = self.lock();
        if claim == Claim::Beyond {
            self.have_beyond(&mut state, wanted as u64, pages)
                .or_else(|_| self.have_beyond(&mut state, least as u64, pages))?;
        }
        let run = match state.bitmap.find(least, wanted) {
            Some(run) => run,
            None => {
                self.grow(&mut state, wanted as u64, pages)
                    .or_else(|_| self.grow(&mut state, least as u64, pages))?;
                state.bitmap.find(least, wanted).expect("the file has just grown")
            }
        };
        state.bitmap.set(run.0, run.1, true);
        match claim {
            Claim::Promised => state.taken += run.1 as u64,
            Claim::Beyond => state.taken_beyond += run.1 as u64,
        }
        self.mirror(&state);
        let end = (run.0 + run.1) as u64;
        let file_pages = state.bitmap.pages as u64;
        drop(state);
        pages.forget(run.0, run.1);
        self.preload(end, file_pages);
        Ok(run)
    }

    /// Brings the part of the file up to page `end`, when it is about to be written for the first time, into memory in
    /// large pieces. Only in large files: a small one would occupy several times its size. Here and not when the file
    /// grows, because that is in the way of a commit.
    fn preload(&self, end: u64, file_pages: u64) {
        let whole = file_pages / LARGE_PIECE_PAGES * LARGE_PIECE_PAGES;
        let end = end.next_multiple_of(LARGE_PIECE_PAGES).min(whole);
        // Relaxed: only a hint depends on it.
        let start = self.preloaded.load(Ordering::Relaxed);
        if start >= end {
            return;
        }
        self.preloaded.store(end, Ordering::Relaxed);
        if end >= LARGE_FILE_PAGES {
            let bytes = |pages: u64| pages * PAGE_BYTES as u64;
            self.file.preload_in_large_pieces(bytes(start), bytes(end - start));
        }
    }

    /// Makes sure that `count` pages are there beyond all promises.
    fn have_beyond(&self, state: &mut State, count: u64, pages: &Pages) -> Result<()> {
        let wanted = self.promised() + DELETE_RESERVE_PAGES + count;
        let available = state.available();
        if available < wanted {
            self.grow(state, wanted - available, pages)?;
        }
        Ok(())
    }

    /// Exactly `count` pages in one piece for a value or a run of changes, beyond all promises.
    pub(crate) fn take(&self, count: u32, pages: &Pages) -> Result<u32> {
        let mut state = self.lock();
        self.have_beyond(&mut state, count as u64, pages)?;
        let (page, _) = match state.bitmap.find(count, count) {
            Some(run) => run,
            None => {
                self.grow(&mut state, count as u64, pages)?;
                state
                    .bitmap
                    .find(count, count)
                    .expect("the file has just grown by as much")
            }
        };
        state.bitmap.set(page, count, true);
        state.loose.set(page, count, true);
        self.mirror(&state);
        pages.forget(page, count);
        Ok(page)
    }

    /// The base about to be published refers to these pages, which a commit brought.
    pub(crate) fn adopt(&self, page: u32, count: u32) {
        self.lock().loose.set(page, count, false);
    }

    /// Pages that were taken and are not needed after all.
    pub(crate) fn give_back(&self, page: u32, count: u32) {
        let mut state = self.lock();
        state.bitmap.set(page, count, false);
        state.loose.set(page, count, false);
        self.mirror(&state);
    }

    /// Pages that were taken for a new tree, which does not need them.
    pub(crate) fn give_back_run(&self, claim: Claim, page: u32, count: u32) {
        let mut state = self.lock();
        match claim {
            Claim::Promised => state.taken -= count as u64,
            Claim::Beyond => state.taken_beyond -= count as u64,
        }
        state.bitmap.set(page, count, false);
        self.mirror(&state);
    }

    /// A new tree was published: what was taken for it belongs to the base, and what it does not hold is retired.
    /// `pins` are those of snapshots, looked up after it was published.
    pub(crate) fn published(&self, retired: impl IntoIterator<Item = Retired>, pins: &Pins) {
        let mut state = self.lock();
        for item in retired {
            state.retired_pages += item.pages as u64;
            if !item.is_held(pins) {
                state.awaited_pages += item.pages as u64;
            }
            state.loose.set(item.page, item.pages, false);
            state.retired.push(item);
        }
        state.taken = 0;
        state.taken_beyond = 0;
        self.mirror(&state);
    }

    /// Marks pages as used that a replayed record refers to.
    pub(crate) fn mark_used(&self, page: u32, count: u32) -> Result<()> {
        let mut state = self.lock();
        if page < META_PAGES || page as u64 + count as u64 > state.bitmap.pages as u64 {
            return Err(Error::damaged(format!(
                "the log refers to pages {page}+{count}, beyond the data file"
            )));
        }
        if (page..page + count).any(|page| state.bitmap.is_used(page)) {
            return Err(Error::damaged(format!(
                "the log refers to pages {page}+{count}, which are in use elsewhere"
            )));
        }
        state.bitmap.set(page, count, true);
        state.loose.set(page, count, true);
        self.mirror(&state);
        Ok(())
    }

    /// Whether there are pages that the newest base does not use and that are not free.
    pub(crate) fn has_retired(&self) -> bool {
        self.lock().retired_pages > 0
    }

    /// Frees retired pages that neither a snapshot nor the durable base needs. With `overwrite` freed pages are filled
    /// with 0xDD, so that tests notice whoever still reads them.
    pub(crate) fn reclaim(&self, pins: &Pins, durable_version: u64, overwrite: bool) -> Result<u64> {
        let mut state = self.lock();
        let (mut freed, mut awaited, mut overwritten) = (0, 0, Ok(()));
        let retired = std::mem::take(&mut state.retired);
        let mut kept = Vec::with_capacity(retired.len());
        for item in retired {
            let is_held = item.is_held(pins);
            // As long as no base of `death` or later is durable, recovery may go back to one that refers to these
            // pages, or replay records that do.
            if is_held || item.death > durable_version {
                awaited += if is_held { 0 } else { item.pages as u64 };
                kept.push(item);
                continue;
            }
            freed += item.pages as u64;
            state.bitmap.set(item.page, item.pages, false);
            if overwrite {
                let rubbish = vec![0xDD; item.pages as usize * PAGE_BYTES];
                let offset = item.page as u64 * PAGE_BYTES as u64;
                // An error must not leave the counts half changed.
                overwritten = overwritten.and(self.file.write_at(&rubbish, offset));
            }
        }
        state.retired = kept;
        state.retired_pages -= freed;
        state.awaited_pages = awaited;
        self.mirror(&state);
        overwritten
            .map(|()| freed)
            .map_err(|error| Error::io("overwriting freed pages", error))
    }

    /// Writes the bitmap of the pages that the newest base uses: all used pages but those that are retired or loose.
    /// `previous` is the saved bitmap that this one replaces: it is not marked.
    pub(crate) fn save(&self, previous: SavedBitmap, pages: &Pages) -> Result<(SavedBitmap, u32)> {
        let words = self.lock().bitmap.words.len();
        // Taking the pages may grow the file by at most one step: leave room for its words.
        let bytes = (words + GROWTH_PAGES_MAX as usize / 64 + 1) * 8;
        let count = bytes.div_ceil(PAGE_BYTES) as u32;
        let (page, taken) = self.take_run(Claim::Promised, count, count, pages)?;
        assert_eq!(taken, count);
        let (image, end) = {
            let mut state = self.lock();
            // It is nothing that a fold writes.
            state.taken -= count as u64;
            self.mirror(&state);
            let mut durable = state.bitmap.clone();
            for item in &state.retired {
                durable.set(item.page, item.pages, false);
            }
            durable.set(previous.page, previous.pages, false);
            if is_planted(PlantedBug::BitmapNotSaved) {
                durable = Bitmap::new(durable.pages);
            }
            durable.remove(&state.loose);
            let mut image: Vec<u8> = durable.words.iter().flat_map(|word| word.to_le_bytes()).collect();
            image.resize(count as usize * PAGE_BYTES, 0);
            (image, state.bitmap.end_of_used())
        };
        self.file
            .write_at(&image, page as u64 * PAGE_BYTES as u64)
            .map_err(|error| Error::io("saving the bitmap of used pages", error))?;
        Ok((
            SavedBitmap {
                page,
                pages: count,
                checksum: checksum(&image),
            },
            end,
        ))
    }

    /// Whether the file has an end that could be cut off, were both meta pages to forget it.
    pub(crate) fn has_surplus(&self, slack: Slack) -> bool {
        let state = self.lock();
        self.surplus(&state, state.bitmap.end_of_used()) > slack.pages(&state.bitmap)
    }

    /// Free pages behind `end` that are not promised to anybody.
    fn surplus(&self, state: &State, end: u32) -> u64 {
        let keep = self.promised() + DELETE_RESERVE_PAGES;
        let behind = (state.bitmap.pages - end) as u64;
        behind.min(state.available().saturating_sub(keep))
    }

    /// Notes the last page that the newest meta page knows.
    pub(crate) fn durable_end_is(&self, end: u32) {
        let mut state = self.lock();
        state.durable_ends = [state.durable_ends[1], end];
    }

    /// Cuts free pages off the end of the file that neither meta page knows.
    pub(crate) fn cut(&self, slack: Slack) -> Result<()> {
        let mut state = self.lock();
        let [older, newer] = state.durable_ends;
        let surplus = self.surplus(&state, older.max(newer).max(state.bitmap.end_of_used()));
        if surplus <= slack.pages(&state.bitmap) {
            return Ok(());
        }
        let pages = state.bitmap.pages - surplus as u32;
        self.file
            .set_len(pages as u64 * PAGE_BYTES as u64)
            .map_err(|error| Error::io("shrinking the data file", error))?;
        self.preloaded.fetch_min(pages as u64, Ordering::Relaxed);
        state.bitmap.cut(pages);
        state.loose.cut(pages);
        self.mirror(&state);
        Ok(())
    }

    /// Bytes of the pages in use, those that are only retired not counted.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.base.load(Ordering::Relaxed) * PAGE_BYTES as u64
    }

    pub(crate) fn figures(&self) -> SpaceFigures {
        let state = self.lock();
        SpaceFigures {
            file_pages: state.bitmap.pages as u64,
            free_pages: state.bitmap.free,
            retired_pages: state.retired_pages,
            pending_operations: self.pending_operations.load(Ordering::Relaxed),
            pending_bytes: self.pending_bytes.load(Ordering::Relaxed),
        }
    }

    /// Copies of the bitmaps of used and of loose pages and of the retired pages, for the checker.
    pub(crate) fn contents(&self) -> (Bitmap, Bitmap, Vec<Retired>) {
        let state = self.lock();
        (state.bitmap.clone(), state.loose.clone(), state.retired.clone())
    }
}

/// One bit per page of the data file: set = used.
#[derive(Clone, Debug)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
    pages: u32,
    free: u64,
    /// No page below this word is free.
    first: usize,
}

impl Bitmap {
    fn empty(pages: u32) -> Bitmap {
        let mut bitmap = Bitmap {
            words: Vec::new(),
            pages: 0,
            free: 0,
            first: 0,
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

    /// Clears every bit that is set in `other`, which has the same length. Only good for saving: `free` goes stale.
    fn remove(&mut self, other: &Bitmap) {
        self.words
            .iter_mut()
            .zip(&other.words)
            .for_each(|(word, other)| *word &= !other);
    }

    /// Loads what `save` wrote, for a file that now has `pages` pages, and marks the saved bitmap's own pages.
    pub(crate) fn load(file: &dyn File, saved: SavedBitmap, pages: u32) -> Result<Bitmap> {
        if saved.page as u64 + saved.pages as u64 > pages as u64 {
            return Err(Error::damaged(format!(
                "the saved bitmap lies at page {}, beyond the data file",
                saved.page
            )));
        }
        let mut image = vec![0u8; saved.pages as usize * PAGE_BYTES];
        file.read_at(&mut image, saved.page as u64 * PAGE_BYTES as u64)
            .map_err(|error| Error::io("reading the bitmap of used pages", error))?;
        if checksum(&image) != saved.checksum {
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

    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    pub(crate) fn is_used(&self, page: u32) -> bool {
        self.words[page as usize / 64] >> (page % 64) & 1 == 1
    }

    pub(crate) fn set(&mut self, page: u32, count: u32, used: bool) {
        for page in page..page + count {
            let (word, bit) = (page as usize / 64, 1u64 << (page % 64));
            if used && self.words[word] & bit == 0 {
                self.words[word] |= bit;
                self.free -= 1;
            } else if !used && self.words[word] & bit != 0 {
                self.words[word] &= !bit;
                self.free += 1;
                self.first = self.first.min(word);
            }
        }
    }

    fn extend(&mut self, more: u32) {
        self.pages += more;
        self.words.resize((self.pages as usize).div_ceil(64), 0);
        self.free += more as u64;
    }

    fn cut(&mut self, pages: u32) {
        self.free -= (self.pages - pages) as u64;
        self.pages = pages;
        self.words.truncate((pages as usize).div_ceil(64));
        self.first = self.first.min(self.words.len());
    }

    /// Page after the last used one.
    fn end_of_used(&self) -> u32 {
        let last = self
            .words
            .iter()
            .rposition(|&word| word != 0)
            .expect("the meta pages are always used");
        last as u32 * 64 + 64 - self.words[last].leading_zeros()
    }

    /// A run of free pages of at most `wanted`: the first that is long enough to be written in one go without waste, or
    /// else the longest one that has at least `least`. Low pages first, so that the end of the file comes free.
    fn find(&mut self, least: u32, wanted: u32) -> Option<(u32, u32)> {
        let mut best: Option<(u32, u32)> = None;
        let mut page = self.skip_used(self.first as u32 * 64);
        self.first = page as usize / 64;
        while page < self.pages {
            let end = self.end_of_free(page, wanted);
            let length = end - page;
            if length >= wanted.min(least.max(LONG_RUN_PAGES)) {
                return Some((page, length));
            }
            if length >= least && best.is_none_or(|(_, longest)| length > longest) {
                best = Some((page, length));
            }
            page = self.skip_used(end);
        }
        best
    }

    /// The first free page at or after `page`, or `pages`.
    fn skip_used(&self, mut page: u32) -> u32 {
        while page < self.pages {
            let rest = !self.words[page as usize / 64] >> (page % 64);
            if rest != 0 {
                return (page + rest.trailing_zeros()).min(self.pages);
            }
            page = (page / 64 + 1) * 64;
        }
        self.pages
    }

    /// The end of the free run that begins at `page`, looking no further than `wanted` pages.
    fn end_of_free(&self, page: u32, wanted: u32) -> u32 {
        let limit = (page as u64 + wanted as u64).min(self.pages as u64) as u32;
        (page..limit).find(|&page| self.is_used(page)).unwrap_or(limit)
    }
}
