//! The memory of the region behind its tables: handed out in pieces, and taken back, under `growth_lock`.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::{INDEXES_START, MEMORY_START, Piece, Region, SLOT_BYTES, SLOTS_START};
use crate::error::{Reason, Result};
use crate::limits::PAGE_BYTES;

/// Indexes get memory in multiples of this, so that freed pieces fit again.
const MEMORY_STEP: u64 = 64 << 10;

/// Freed memory that is kept at the end: enough for the index of the smallest generation.
const MEMORY_SPARE_BYTES: u64 = 256 << 10;
/// The end of the file is cut off when it is so many times as long as it has to be. Cutting takes the kernel up to 20
/// ms, for which writers to missing pages of the file wait; and a store that goes on as before needs the memory again.
/// A quiet store cuts all of it (`cut_memory`).
const MEMORY_SURPLUS: u64 = 4;

impl Region {
    /// First byte of a piece of memory.
    pub(crate) fn memory(&self, offset: u64) -> *mut u8 {
        assert!((MEMORY_START..self.span).contains(&offset));
        // SAFETY: the offset lies inside the mapping.
        unsafe { self.mapping.base().add(offset as usize) }
    }

    /// Asks the kernel for the memory of a piece that is about to be written: a commit that faults it in page by page
    /// may have to wait for the file system's journal.
    pub(crate) fn populate(&self, offset: u64, bytes: u64) {
        self.mapping.populate(offset, bytes);
    }

    /// All pieces of memory that have owners, ascending. Under `growth_lock`.
    fn pieces(&self) -> Vec<(u64, u64)> {
        let arrays = self.control().space.arrays().into_iter();
        let arrays = arrays.flat_map(|array| array.pieces.iter().map(Piece::place));
        let indexes = self.generations().map(|(_, entry)| entry.memory.place());
        let mut pieces: Vec<(u64, u64)> = indexes.chain(arrays).filter(|(_, bytes)| *bytes > 0).collect();
        pieces.sort_unstable();
        pieces
    }

    /// Finds memory for an index and makes it the piece of `owner`, who has none. Returns its place.
    pub(crate) fn take(&self, owner: &Piece, bytes: u64) -> Result<(u64, u64)> {
        let _growing = self.hold_growth()?;
        let bytes = bytes.next_multiple_of(MEMORY_STEP);
        self.take_between(owner, bytes, INDEXES_START..self.span)
    }

    /// Takes memory for an array: apart from the indexes as long as they are small, so that an index always fits where
    /// one was before.
    pub(crate) fn take_for_array(&self, owner: &Piece, bytes: u64) -> Result<(u64, u64)> {
        let _growing = self.hold_growth()?;
        let bytes = bytes.next_multiple_of(PAGE_BYTES as u64);
        match self.find(MEMORY_START..INDEXES_START, bytes) {
            Some(_) => self.take_between(owner, bytes, MEMORY_START..INDEXES_START),
            None => self.take_between(owner, bytes, INDEXES_START..self.span),
        }
    }

    /// The first free place for so many bytes.
    fn find(&self, range: Range<u64>, bytes: u64) -> Option<u64> {
        let mut offset = range.start;
        for (used, length) in self.pieces() {
            if used >= offset && used.min(range.end).saturating_sub(offset) >= bytes {
                break;
            }
            offset = offset.max(used + length);
        }
        (offset + bytes <= range.end).then_some(offset)
    }

    /// Allocates the file behind a piece before it is one. Under `growth_lock`.
    fn take_between(&self, owner: &Piece, bytes: u64, range: Range<u64>) -> Result<(u64, u64)> {
        assert_eq!(owner.place().1, 0, "an owner has one piece of memory");
        let Some(offset) = self.find(range, bytes) else {
            let what = "index memory, of which open snapshots hold what there is (`stat` lists them)";
            return Err(Reason::Full { needed: bytes, what }.into());
        };
        self.file
            .allocate(offset, bytes)
            // A part may have been had; it is for others.
            .inspect_err(|_| self.cut(self.end_of_memory() + MEMORY_SPARE_BYTES))
            .map_err(|error| self.full_or_io("index memory", bytes, error))?;
        owner.offset.store(offset, Ordering::Release);
        // Last: a piece without a length is free.
        owner.bytes.store(bytes, Ordering::Release);
        Ok((offset, bytes))
    }

    /// Gives a piece of memory back; and the end of the file behind all pieces to the file system, if it is long.
    ///
    /// # Errors
    /// [`Reason::Busy`]: the owner has it still.
    pub(crate) fn give_back(&self, owner: &Piece) -> Result<()> {
        let _growing = self.hold_growth()?;
        owner.bytes.store(0, Ordering::Release);
        // A little is kept: on a disk that is full by now, deletions still need the next generation's index.
        let end = self.end_of_memory() + MEMORY_SPARE_BYTES;
        if self.file.len().is_ok_and(|length| length > end * MEMORY_SURPLUS) {
            self.cut(end);
        }
        Ok(())
    }

    /// Makes sure that there is memory for a few more small indexes.
    pub(crate) fn keep_spare_memory(&self) -> Result<()> {
        let _growing = self.hold_growth()?;
        self.file
            .allocate(self.end_of_memory().max(INDEXES_START), MEMORY_SPARE_BYTES)
            .map_err(|error| self.full_or_io("index memory", MEMORY_SPARE_BYTES, error))
    }

    /// Gives all free memory back, behind the last piece and between pieces. For a quiet store, whose next
    /// indexes are prepared.
    pub(crate) fn cut_memory(&self) -> Result<()> {
        let _growing = self.hold_growth()?;
        self.cut(self.end_of_memory());
        let mut end = MEMORY_START;
        for (used, length) in self.pieces() {
            self.file.discard(end, used - end);
            end = used + length;
        }
        Ok(())
    }

    /// Whether indexes lie further from the beginning than all of them take together.
    pub(crate) fn memory_has_holes(&self) -> Result<bool> {
        let _growing = self.hold_growth()?;
        let mut pieces = self.pieces();
        pieces.retain(|&(used, _)| used >= INDEXES_START);
        let in_use: u64 = pieces.iter().map(|&(_, bytes)| bytes).sum();
        let end = pieces.last().map_or(INDEXES_START, |&(used, length)| used + length);
        Ok(end > INDEXES_START + in_use)
    }

    pub(super) fn end_of_memory(&self) -> u64 {
        let slots_end = SLOTS_START + self.control().slots_allocated.load(Ordering::Relaxed) as u64 * SLOT_BYTES;
        self.pieces().last().map_or(slots_end, |&(used, length)| used + length)
    }

    fn cut(&self, end: u64) {
        // Keeping the length is harmless, so a failure here is not worth an error.
        if self.file.len().is_ok_and(|length| length > end) {
            let _ = self.file.set_len(end);
        }
    }

    /// Bytes of index memory in use.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.generations().map(|(_, entry)| entry.memory.place().1).sum()
    }
}
