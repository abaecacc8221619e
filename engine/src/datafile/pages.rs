//! Pages of the data file as readers see them: mapped. Each page is verified (checksum and structure) when this process
//! touches it for the first time. `check`, salvage and recovery read pages one by one instead, and verify each.

use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use duramen_io::{Access, File, Mapping, prefetch};

use crate::btree::{Extent, LINE_BYTES, Link, PageSource, verify_page};
use crate::checksum::checksum_with;
use crate::error::{Error, Result};
use crate::limits::{DATA_SPAN_BYTES, PAGE_BYTES, VALUE_CHUNK_BYTES};

/// The data file in memory.
#[derive(Debug)]
pub(crate) struct Pages {
    file: Arc<dyn File>,
    /// Begins the checksums of all that is in the file.
    seed: u32,
    base: AtomicPtr<u8>,
    span: AtomicU64,
    /// Length of the data file when it was last asked for.
    length: AtomicU64,
    /// All mappings ever made: snapshots may still read through the earlier ones.
    mappings: Mutex<Vec<Arc<Mapping>>>,
    /// A file of more bytes does not stay in memory as a whole.
    kept_bytes: u64,
    /// Whether the file is larger than that. What is read is then likely to be missing in memory, and what is read
    /// around it for nothing would drive out what is needed: so pages are read alone, and ahead only where it is known
    /// which come.
    exceeds_memory: AtomicBool,
    verified: VerifiedBits,
    /// How often pages had come free when `verified` was last made to agree with that.
    seen_freed: AtomicU64,
}

impl Pages {
    /// Opens the data file of a store with this seed of checksums, on a machine with so much memory.
    pub(crate) fn open(file: Arc<dyn File>, seed: u32, machine_bytes: u64) -> Result<Pages> {
        let length = file.len().map_err(|error| Error::io("opening the data file", error))?;
        let pages = Pages {
            file,
            seed,
            base: AtomicPtr::new(std::ptr::null_mut()),
            span: AtomicU64::new(0),
            length: AtomicU64::new(length),
            mappings: Mutex::new(Vec::new()),
            kept_bytes: machine_bytes / 2,
            exceeds_memory: AtomicBool::new(false),
            verified: VerifiedBits::default(),
            seen_freed: AtomicU64::new(0),
        };
        pages.cover(length.max(1))?;
        Ok(pages)
    }

    /// Makes sure that the mapping covers a file of `length` bytes, and is read as one of that length should be.
    pub(crate) fn cover(&self, length: u64) -> Result<()> {
        if length > self.span.load(Ordering::Acquire) {
            self.map(length)?;
        }
        let exceeds_memory = length > self.kept_bytes;
        if self.exceeds_memory.swap(exceeds_memory, Ordering::Relaxed) != exceeds_memory {
            let mappings = self.mappings.lock().unwrap_or_else(|e| e.into_inner());
            mappings
                .iter()
                .for_each(|mapping| mapping.expect_random_reads(exceeds_memory));
        }
        Ok(())
    }

    /// Bytes of a file that the mapping covers.
    #[inline]
    pub(crate) fn span(&self) -> u64 {
        self.span.load(Ordering::Acquire)
    }

    fn map(&self, length: u64) -> Result<()> {
        let mut mappings = self.mappings.lock().unwrap_or_else(|e| e.into_inner());
        let mut span = DATA_SPAN_BYTES;
        while span < length {
            span *= 2;
        }
        // Containers may limit address space: take less rather than fail, as long as the file fits.
        let doing = |error| Error::io("mapping the data file", error);
        let mapping = loop {
            match self.file.map(span, Access::Read) {
                Ok(mapping) if span >= DATA_SPAN_BYTES => break mapping,
                // And leave three quarters of what there is to others.
                Ok(_) => {
                    span = (span / 4).max(length.next_power_of_two());
                    break self.file.map(span, Access::Read).map_err(doing)?;
                }
                Err(_) if span / 4 >= length => span /= 4,
                Err(error) => return Err(doing(error)),
            }
        };
        mapping.expect_random_reads(self.exceeds_memory());
        self.base.store(mapping.base(), Ordering::Release);
        mappings.push(Arc::new(mapping));
        self.span.store(span, Ordering::Release);
        Ok(())
    }

    /// The pages as they can be read now. `'a` must not outlive the pin of the snapshot that reads through it.
    pub(crate) fn mapped<'a>(&'a self) -> MappedPages<'a> {
        MappedPages {
            base: self.base.load(Ordering::Acquire),
            pages: self,
        }
    }

    pub(crate) fn verified<'a>(&'a self) -> VerifiedPages<'a> {
        VerifiedPages {
            file: &*self.file,
            seed: self.seed,
        }
    }

    /// Whether the file is too large to stay in memory.
    #[inline]
    pub(crate) fn exceeds_memory(&self) -> bool {
        self.exceeds_memory.load(Ordering::Relaxed)
    }

    /// Asks for pages that will be read soon, those that lie side by side together.
    #[cold]
    fn read_ahead(&self, numbers: &mut dyn Iterator<Item = u32>) {
        let mappings = self.mappings.lock().unwrap_or_else(|e| e.into_inner());
        let newest = mappings
            .last()
            .expect("the file is mapped as long as it is open")
            .clone();
        // The kernel may have to find memory first, and others ask at the same time.
        drop(mappings);
        for_each_run(numbers, |run| {
            let bytes = |page: u64| page * PAGE_BYTES as u64;
            newest.read_ahead(bytes(run.start), bytes(run.end) - bytes(run.start));
        });
    }

    /// Begins the checksums of all that is in the data file.
    pub(crate) fn seed(&self) -> u32 {
        self.seed
    }

    /// Refuses bytes beyond the end of the file, which must not be touched through the mapping. Relaxed: the length
    /// is looked up again before anything is refused.
    fn check_inside(&self, page: u32, length: usize) -> Result<()> {
        let end = page as u64 * PAGE_BYTES as u64 + length as u64;
        if end > self.length.load(Ordering::Relaxed) {
            let now = self
                .file
                .len()
                .map_err(|error| Error::io("reading the data file", error))?;
            self.length.store(now, Ordering::Relaxed);
            if end > now {
                return Err(Error::damaged(format!(
                    "something refers to page {page}, but the data file ends before byte {end}"
                )));
            }
        }
        Ok(())
    }

    /// Notes pages that this process has just sealed and written: what they hold is what their checksums were made of,
    /// so the first reader need not compute them once more.
    pub(crate) fn written(&self, page: u32, pages: u32) {
        (page..page + pages).for_each(|page| self.verified.set(page));
    }

    /// Forgets that pages were verified: they are about to get new content.
    pub(crate) fn forget(&self, page: u32, pages: u32) {
        (page..page + pages).for_each(|page| self.verified.clear(page));
    }

    /// Whether this process knows of all pages that came free, some of which another process may have rewritten;
    /// `freed` counts how often some did.
    #[inline]
    pub(crate) fn has_seen_freed(&self, freed: u64) -> bool {
        // Acquire: pairs with the Release in `forget_freed`.
        self.seen_freed.load(Ordering::Acquire) >= freed
    }

    /// Forgets that any page was verified, because some of them may be others by now.
    #[cold]
    pub(crate) fn forget_freed(&self, freed: u64) {
        self.verified.clear_all();
        // Release, and afterwards: a thread that finds the number finds the bits cleared.
        self.seen_freed.fetch_max(freed, Ordering::AcqRel);
    }

    /// Notes that this process freed pages itself, and has forgotten them, as the count went from `before` to the next.
    pub(crate) fn freed_here(&self, before: u64) {
        let next = before + 1;
        let _ = self
            .seen_freed
            .compare_exchange(before, next, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Takes pages that lie side by side together, in ascending or descending order.
fn for_each_run(numbers: impl Iterator<Item = u32>, mut take: impl FnMut(Range<u64>)) {
    let mut run = 0..0;
    for number in numbers.map(u64::from) {
        if run.is_empty() {
            run = number..number + 1;
        } else if number == run.end {
            run.end += 1;
        } else if number + 1 == run.start {
            run.start -= 1;
        } else {
            take(std::mem::replace(&mut run, number..number + 1));
        }
    }
    if !run.is_empty() {
        take(run);
    }
}

/// Pages through the mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedPages<'a> {
    base: *const u8,
    pages: &'a Pages,
}

// SAFETY: an address in a read-only mapping; pages that a pinned version refers to do not change.
unsafe impl Send for MappedPages<'_> {}
// SAFETY: as above.
unsafe impl Sync for MappedPages<'_> {}

impl<'a> MappedPages<'a> {
    /// Bytes of the file. The caller holds a pin under which they do not change.
    fn bytes(self, page: u32, length: usize) -> &'a [u8] {
        let first = self.base.wrapping_add(page as usize * PAGE_BYTES);
        // SAFETY: the bytes lie in the file, as `check_inside` found when they were first touched (pages in use are
        // never cut off it); the pin keeps them unchanged and the mapping lives as long as the store.
        unsafe { std::slice::from_raw_parts(first, length) }
    }

    /// Where pages are read alone: those of several that belong together are asked for together.
    #[inline]
    fn ask_for_all(self, page: u32, length: usize) {
        if length > PAGE_BYTES && self.pages.exceeds_memory() {
            self.pages
                .read_ahead(&mut (page..page + length.div_ceil(PAGE_BYTES) as u32));
        }
    }

    #[cold]
    fn verify(self, link: Link, length: usize) -> Result<()> {
        let number = link.page;
        self.pages.check_inside(number, length)?;
        self.ask_for_all(number, length);
        verify_page(link, self.bytes(number, length), self.pages.seed)?;
        self.pages.verified.set(number);
        Ok(())
    }

    /// A value in pages of its own, verified at the first touch.
    pub(crate) fn extent(self, extent: Extent) -> Result<&'a [u8]> {
        let length = extent.pages() as usize * PAGE_BYTES;
        let is_verified = self.pages.verified.get(extent.page);
        if !is_verified {
            self.pages.check_inside(extent.page, length)?;
        }
        self.ask_for_all(extent.page, length);
        if !is_verified {
            verify_extent(extent, self.bytes(extent.page, length), self.pages.seed)?;
            self.pages.verified.set(extent.page);
        }
        let bytes = self.bytes(extent.page, length);
        Ok(&bytes[..extent.length as usize])
    }
}

impl<'a> PageSource for MappedPages<'a> {
    type Page = &'a [u8];

    #[inline]
    fn page(self, page: u32, bytes: usize, checksum: impl FnOnce() -> u32) -> Result<&'a [u8]> {
        if !self.pages.verified.get(page) {
            let checksum = checksum();
            self.verify(Link { page, checksum }, bytes)?;
        }
        Ok(self.bytes(page, bytes))
    }

    #[inline]
    fn wants_read_ahead(self) -> bool {
        self.pages.exceeds_memory()
    }

    fn read_ahead(self, numbers: &mut dyn Iterator<Item = u32>) {
        self.pages.read_ahead(numbers);
    }

    /// The header, and the tags and slots of an ordinary leaf.
    #[inline]
    fn prefetch(self, number: u32) {
        let page = self.base.wrapping_add(number as usize * PAGE_BYTES);
        (0..4 * LINE_BYTES)
            .step_by(LINE_BYTES)
            .for_each(|line| prefetch(page.wrapping_add(line)));
    }

    #[inline]
    fn prefetch_lines(self, number: u32, lines: Range<usize>) {
        let page = self.base.wrapping_add(number as usize * PAGE_BYTES);
        let (mut at, end) = (lines.start * LINE_BYTES, (lines.end * LINE_BYTES).min(PAGE_BYTES));
        while at < end {
            prefetch(page.wrapping_add(at));
            at += LINE_BYTES;
        }
    }
}

/// Pages read one by one, verified every time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VerifiedPages<'a> {
    file: &'a dyn File,
    seed: u32,
}

impl VerifiedPages<'_> {
    /// A value in pages of its own.
    pub(crate) fn extent(self, extent: Extent) -> Result<Vec<u8>> {
        let mut bytes = vec![0; extent.pages() as usize * PAGE_BYTES];
        read_page(self.file, extent.page, &mut bytes)?;
        verify_extent(extent, &bytes, self.seed)?;
        bytes.truncate(extent.length as usize);
        Ok(bytes)
    }
}

impl PageSource for VerifiedPages<'_> {
    type Page = Arc<[u8]>;

    fn page(self, page: u32, bytes: usize, checksum: impl FnOnce() -> u32) -> Result<Arc<[u8]>> {
        let mut read = vec![0; bytes];
        read_page(self.file, page, &mut read)?;
        let checksum = checksum();
        verify_page(Link { page, checksum }, &read, self.seed)?;
        Ok(read.into())
    }
}

fn read_page(file: &dyn File, number: u32, page: &mut [u8]) -> Result<()> {
    let offset = number as u64 * PAGE_BYTES as u64;
    file.read_at(page, offset).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::damaged(format!(
            "something refers to page {number}, but the data file ends before byte {}",
            offset + page.len() as u64
        )),
        _ => Error::io(format!("reading page {number} of the data file"), error),
    })
}

/// Checks the pages of a value against the checksum in its reference: of the bytes, or for values of several chunks of
/// the table of the chunks' checksums behind them.
fn verify_extent(extent: Extent, bytes: &[u8], seed: u32) -> Result<()> {
    let bad = |part: &str| {
        Err(Error::damaged(format!(
            "the value at page {}: wrong checksum of {part}",
            extent.page
        )))
    };
    let (value, rest) = bytes.split_at(extent.length as usize);
    if value.len() <= VALUE_CHUNK_BYTES {
        return if checksum_with(seed, value) == extent.checksum {
            Ok(())
        } else {
            bad("its bytes")
        };
    }
    let table = extent_table(extent, value.len(), rest, seed)?;
    for (index, (chunk, expected)) in value.chunks(VALUE_CHUNK_BYTES).zip(table.chunks_exact(4)).enumerate() {
        if checksum_with(seed, chunk).to_le_bytes() != expected {
            return bad(&format!("part {index}"));
        }
    }
    Ok(())
}

/// The table of chunk checksums in the bytes that follow a value, verified.
pub(crate) fn extent_table(extent: Extent, length: usize, rest: &[u8], seed: u32) -> Result<&[u8]> {
    let padding = length.next_multiple_of(4) - length;
    let table = &rest[padding..padding + length.div_ceil(VALUE_CHUNK_BYTES) * 4];
    if checksum_with(seed, table) != extent.checksum {
        return Err(Error::damaged(format!(
            "the value at page {}: wrong checksum of its table",
            extent.page
        )));
    }
    Ok(table)
}

/// One bit per page of the data file, in pieces that are made when they are first needed.
#[derive(Debug)]
struct VerifiedBits {
    /// Pointers to `VerifiedPiece`s; null until needed. Together they cover every page number.
    pieces: Box<[AtomicPtr<VerifiedPiece>]>,
}

const PIECE_BITS: usize = 1 << 20;
type VerifiedPiece = [AtomicU64; PIECE_BITS / 64];

impl Default for VerifiedBits {
    fn default() -> VerifiedBits {
        let count = (1 << 32) / PIECE_BITS;
        VerifiedBits {
            pieces: (0..count).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
        }
    }
}

impl Drop for VerifiedBits {
    fn drop(&mut self) {
        for piece in &mut self.pieces {
            let piece = *piece.get_mut();
            if !piece.is_null() {
                // SAFETY: non-null pieces come from `Box::into_raw` in `piece_or_new`, and no other thread uses them
                // now.
                drop(unsafe { Box::from_raw(piece) });
            }
        }
    }
}

impl VerifiedBits {
    #[inline]
    fn piece(&self, page: u32) -> Option<&VerifiedPiece> {
        // Acquire: pairs with the release in `piece_or_new`, so that the piece's zeros are seen.
        let piece = self.pieces[page as usize / PIECE_BITS].load(Ordering::Acquire);
        // SAFETY: null, or a piece that lives until the drop.
        unsafe { piece.as_ref() }
    }

    fn clear_all(&self) {
        for piece in &self.pieces {
            // SAFETY: as in `piece`.
            let words = unsafe { piece.load(Ordering::Acquire).as_ref() };
            // Relaxed: `seen_freed` orders it before what relies on it.
            words
                .into_iter()
                .flatten()
                .for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    fn piece_or_new(&self, page: u32) -> &VerifiedPiece {
        if let Some(piece) = self.piece(page) {
            return piece;
        }
        let fresh: Box<VerifiedPiece> = Box::new([const { AtomicU64::new(0) }; PIECE_BITS / 64]);
        let fresh = Box::into_raw(fresh);
        let place = &self.pieces[page as usize / PIECE_BITS];
        match place.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made, and now kept until the drop.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: `fresh` was never shared.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: `other` is non-null and kept until the drop.
                unsafe { &*other }
            }
        }
    }

    /// Relaxed: a bit says only that this process looked at the page before; looking twice does no harm, and pages
    /// get new content only after no reader can reach them.
    #[inline]
    fn get(&self, page: u32) -> bool {
        let bit = page as usize % PIECE_BITS;
        self.piece(page)
            .is_some_and(|piece| piece[bit / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1)
    }

    fn set(&self, page: u32) {
        let bit = page as usize % PIECE_BITS;
        self.piece_or_new(page)[bit / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
    }

    fn clear(&self, page: u32) {
        let bit = page as usize % PIECE_BITS;
        if let Some(piece) = self.piece(page) {
            piece[bit / 64].fetch_and(!(1 << (bit % 64)), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Maintenance, Options};

    #[test]
    fn file_that_outgrows_the_memory_is_read_in_another_way_until_it_is_small_again() {
        const MEMORY: u64 = 8 << 20;
        let options = Options::new().maintenance(Maintenance::Manual).machine_bytes(MEMORY);
        let store = options.open_on(SimDisk::new(1).platform()).expect("a store");
        let map = store.map("map").expect("a map");
        assert!(!store.core().pages.exceeds_memory());
        for number in 0..6_000u32 {
            map.put(number.to_be_bytes(), [7; 1_000]).expect("a put");
        }
        store.maintain().expect("a fold");
        assert!(store.core().pages.exceeds_memory());
        map.clear().expect("a commit");
        store.compact(&mut |_| ()).expect("room");
        assert!(!store.core().pages.exceeds_memory());
    }

    #[test]
    fn pages_side_by_side_are_taken_together_in_either_order() {
        let runs = |numbers: &[u32]| {
            let mut runs = Vec::new();
            for_each_run(numbers.iter().copied(), |run| runs.push(run));
            runs
        };
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[7, 8, 9, 20, 3, 4]), [7..10, 20..21, 3..5]);
        assert_eq!(runs(&[9, 8, 7, 5, 4]), [7..10, 4..6]);
    }
}
