//! Log files: one per generation, with fixed names that are reused in place, and the scan that finds out where the
//! records of a file end.
//!
//! ```text
//! file     header (one page) | records ...
//! header   0 magic u64 | 8 format u32 | 12 checksum of the rest of the header u32 | 16 store id u128
//!          32 generation u32 | 36 epoch u32 | 40 first commit u64 | 48 synced u64 | 56 previous u32
//!          60 meta sequence u32 | 64 write unit u32 | 68 zero u32 | zeros
//! ```
//!
//! The write unit is what the platform said when the generation began ([`duramen_io::Storage::write_unit`]). The header
//! has the first unit of the file to itself (at least one page). A record begins right behind the one before it, or,
//! when a sync came between the two, at the next multiple of the unit: so no write shares a unit with synced bytes.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use duramen_io::{Access, File, Mapping, OpenMode, Platform, WRITE_UNITS, prefetch};

use super::record::{Operation, OperationKind, RECORD_HEADER_BYTES, RecordHeader, body_checksum, record_bytes};
use crate::btree::Stored;
use crate::checksum::{StoreSeeds, checksum};

use crate::error::{Error, Result};
use crate::limits::{FORMAT, GENERATIONS_MAX, LOG_SPAN_BYTES, LONG_NUMBER_MAX, PAGE_BYTES, SHORT_NUMBER_MAX};
use crate::planted::{PlantedBug, is_planted};

/// Bytes of the page with the header of a log file, with which the first record begins at the earliest.
pub(crate) const LOG_START: u64 = PAGE_BYTES as u64;
const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"DuramenW");
const SEGMENT_HEADER_BYTES: usize = 72;

/// Position of the first record of a log file whose unit is this.
pub(crate) fn first_record(unit: u64) -> u64 {
    unit.max(LOG_START)
}

/// Name of the log file in a slot.
pub(crate) fn file_name(slot: u16) -> String {
    format!("wal-{slot}")
}

/// Who a log file belongs to and what came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) store: u128,
    pub(crate) generation: u32,
    pub(crate) epoch: u32,
    pub(crate) first_commit: u64,
    pub(crate) synced: u64,
    pub(crate) previous: u32,
    pub(crate) meta_sequence: u32,
    /// Bytes; a power of two.
    pub(crate) unit: u32,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0u8; SEGMENT_HEADER_BYTES];
        out[0..8].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[16..32].copy_from_slice(&self.store.to_le_bytes());
        out[32..36].copy_from_slice(&self.generation.to_le_bytes());
        out[36..40].copy_from_slice(&self.epoch.to_le_bytes());
        out[40..48].copy_from_slice(&self.first_commit.to_le_bytes());
        out[48..56].copy_from_slice(&self.synced.to_le_bytes());
        out[56..60].copy_from_slice(&self.previous.to_le_bytes());
        out[60..64].copy_from_slice(&self.meta_sequence.to_le_bytes());
        out[64..68].copy_from_slice(&self.unit.to_le_bytes());
        let sum = checksum(&out[16..]);
        out[12..16].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// `None` when these bytes are not an intact header of the store: the file was never used, its header was torn
    /// by a power cut before anything in it was acknowledged, or it belongs to another store.
    pub(crate) fn decode(bytes: &[u8], store: u128) -> Option<SegmentHeader> {
        SegmentHeader::decode_any(bytes).filter(|header| header.store == store)
    }

    /// An intact header of whichever store.
    pub(crate) fn decode_any(bytes: &[u8]) -> Option<SegmentHeader> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES)?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let header = SegmentHeader {
            store: u128::from_le_bytes(bytes[16..32].try_into().expect("sixteen bytes")),
            generation: word(32),
            epoch: word(36),
            first_commit: long(40),
            synced: long(48),
            previous: word(56),
            meta_sequence: word(60),
            unit: word(64),
        };
        let intact = long(0) == SEGMENT_MAGIC && word(8) == FORMAT && word(12) == checksum(&bytes[16..]);
        (intact && header.is_possible()).then_some(header)
    }

    /// Whether one can count on from the numbers. Commits begin with 1.
    fn is_possible(&self) -> bool {
        let is_unit = self.unit.is_power_of_two() && WRITE_UNITS.contains(&u64::from(self.unit));
        is_unit
            && (1..LONG_NUMBER_MAX).contains(&self.first_commit)
            && self.generation < SHORT_NUMBER_MAX
            && self.epoch < SHORT_NUMBER_MAX
    }
}

/// The log files that this process uses, by slot.
///
/// Another process may remove a file and make one of that name again. So each has an incarnation, of which the shared
/// region says the newest, and one that this process opened or mapped before that is not used any more.
///
/// A generation is read through its mapping alone, so the file behind one that only readers need can be closed: there
/// may be more of them than a process may have open files.
#[derive(Debug)]
pub(crate) struct Segments {
    platform: Platform,
    /// How a file that is known is opened: a store that was opened read-only changes none.
    mode: OpenMode,
    /// Made at the first use, so that files that never were cost little.
    places: Vec<OnceLock<Box<Segment>>>,
    files_open: AtomicUsize,
}

/// One log file, or the place for one.
#[derive(Debug, Default)]
struct Segment {
    /// First byte of the mapping; null while there is none. Release: a thread that acquires it finds the file mapped.
    base: AtomicPtr<u8>,
    /// Of the file that is mapped. Read before `base`, and changed while that is null.
    incarnation: AtomicU32,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    file: Option<OpenFile>,
    mapping: Option<Mapping>,
}

/// An open log file.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn File>,
    /// The generation that was in the file when it was opened, until a sync of it through this description has
    /// succeeded. The kernel does not report to this description what it failed to write of that generation before.
    pub(crate) unreported: Option<u32>,
}

impl Segment {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Segments {
    pub(crate) fn new(platform: &Platform, read_only: bool) -> Segments {
        Segments {
            platform: platform.clone(),
            mode: if read_only { OpenMode::Read } else { OpenMode::Write },
            places: (0..GENERATIONS_MAX).map(|_| OnceLock::new()).collect(),
            files_open: AtomicUsize::new(0),
        }
    }

    /// Opens and maps the file of a slot, which exists, unless it is open. `generation` is the number of the generation
    /// that the file holds.
    pub(crate) fn file(&self, slot: u16, incarnation: u32, generation: &AtomicU32) -> Result<OpenFile> {
        self.open(slot, incarnation, self.mode, generation)
    }

    /// Opens and maps the file of a slot, and makes it when it is missing.
    pub(crate) fn create(&self, slot: u16, incarnation: u32, generation: &AtomicU32) -> Result<OpenFile> {
        self.open(slot, incarnation, OpenMode::Create, generation)
    }

    fn open(&self, slot: u16, incarnation: u32, mode: OpenMode, generation: &AtomicU32) -> Result<OpenFile> {
        let segment = self.places[slot as usize].get_or_init(Default::default);
        let mut open = segment.lock();
        if segment.incarnation.load(Ordering::Relaxed) != incarnation {
            // The old file has no readers: that is why it was removed.
            self.forget_open(segment, &mut open);
            // Release: who sees this number sees that the old mapping is gone.
            segment.incarnation.store(incarnation, Ordering::Release);
        }
        if let Some(file) = &open.file {
            return Ok(file.clone());
        }
        let doing = |error| Error::io(format!("opening log file {}", file_name(slot)), error);
        let file = self.platform.storage.open(&file_name(slot), mode).map_err(doing)?;
        if open.mapping.is_none() {
            let mapping = file.map(LOG_SPAN_BYTES, Access::Read).map_err(doing)?;
            segment.base.store(mapping.base(), Ordering::Release);
            open.mapping = Some(mapping);
        }
        // After the file was opened: of a generation that begins later the kernel reports everything.
        let unreported = Some(generation.load(Ordering::SeqCst));
        let opened = OpenFile { file, unreported };
        open.file = Some(opened.clone());
        self.files_open.fetch_add(1, Ordering::Relaxed);
        Ok(opened)
    }

    /// Notes that a sync of a file succeeded before which all that may have been lost unreported was written again.
    pub(crate) fn has_synced(&self, slot: u16) {
        if let Some(segment) = self.places[slot as usize].get()
            && let Some(open) = &mut segment.lock().file
        {
            open.unreported = None;
        }
    }

    /// The bytes of a generation that is alive or held. `filled` says how long its file is at least. `None`: this
    /// process has not mapped the file yet.
    ///
    /// # Safety
    /// The generation stays alive or held for `'p`: its file stays mapped, and what was written in it stays as it is.
    #[inline]
    pub(crate) unsafe fn view<'p>(&self, slot: u16, incarnation: u32, filled: &'p AtomicU64) -> Option<LogView<'p>> {
        let segment = self.places[slot as usize].get()?;
        let is_current = segment.incarnation.load(Ordering::Acquire) == incarnation;
        let base = segment.base.load(Ordering::Acquire);
        (is_current && !base.is_null()).then_some(LogView { base, filled })
    }

    /// How many files are open.
    pub(crate) fn files_open(&self) -> usize {
        self.files_open.load(Ordering::Relaxed)
    }

    /// Closes a file. What is mapped of it stays readable, and the next [`Segments::file`] opens it again.
    pub(crate) fn close(&self, slot: u16) {
        if let Some(segment) = self.places[slot as usize].get()
            && segment.lock().file.take().is_some()
        {
            self.files_open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes a file that has no readers any more, and unmaps it.
    pub(crate) fn forget(&self, slot: u16) {
        if let Some(segment) = self.places[slot as usize].get() {
            self.forget_open(segment, &mut segment.lock());
        }
    }

    fn forget_open(&self, segment: &Segment, open: &mut Open) {
        if open.file.take().is_some() {
            self.files_open.fetch_sub(1, Ordering::Relaxed);
        }
        segment.base.store(std::ptr::null_mut(), Ordering::Release);
        open.mapping = None;
    }
}

/// The bytes of one log file as mapped, for as long as a pin or a lock keeps the generation. Positions handed to it come from the index of that generation, which learns
/// them after the record was written, so they always lie in written bytes.
///
/// What stands there may be something else all the same: when the kernel could not write a page back, and dropped it
/// from memory, the mapping shows what the device had before. So lengths are checked before they are used. A key of
/// such a place is cut off at the end of the file, and equals none that is looked for; what is asked of the operation
/// itself is damage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogView<'p> {
    base: *const u8,
    /// How long the file is at least; more as the generation grows.
    filled: &'p AtomicU64,
}

// SAFETY: a view is an address in a read-only mapping; records never change once the index knows them.
unsafe impl Send for LogView<'_> {}
// SAFETY: as above.
unsafe impl Sync for LogView<'_> {}

impl<'p> LogView<'p> {
    /// The log, for a holder of the pin itself, which no lifetime can name.
    ///
    /// # Safety
    /// What is returned, and what it leads to, is used only while the generation stays alive or held.
    pub(crate) unsafe fn unbound(self) -> LogView<'static> {
        LogView {
            base: self.base,
            // SAFETY: by the contract.
            filled: unsafe { &*std::ptr::from_ref(self.filled) },
        }
    }

    /// Full key of the operation at `position`.
    ///
    /// # Safety
    /// `position` is that of an operation in a record of this generation.
    #[inline]
    pub(crate) unsafe fn full_key(self, position: u32) -> &'p [u8] {
        let operation = self.base.wrapping_add(position as usize);
        // SAFETY: by the contract the header of the operation lies in the file. Arrays of bytes need no alignment.
        let key_length = unsafe { *operation.wrapping_add(2).cast::<[u8; 2]>() };
        let length = 4 + usize::from(u16::from_le_bytes(key_length));
        let length = length.min(self.left_from(position).saturating_sub(8));
        // SAFETY: what is left of the key after the cut lies in the file.
        unsafe { std::slice::from_raw_parts(operation.wrapping_add(8), length) }
    }

    /// Bytes of the file from a position on.
    #[inline(always)]
    fn left_from(self, position: u32) -> usize {
        // Relaxed: it covers the record of each position that the index hands out, because it is stored before the
        // record is written.
        let filled = self.filled.load(Ordering::Relaxed);
        filled.saturating_sub(position.into()) as usize
    }

    /// The operation at `position`.
    ///
    /// # Safety
    /// As for [`LogView::full_key`].
    #[inline]
    pub(crate) unsafe fn operation(self, position: u32) -> Result<Operation<'p>> {
        let operation = self.base.wrapping_add(position as usize);
        // SAFETY: by the contract the position is in the file, which is mapped to its end.
        let bytes = unsafe { std::slice::from_raw_parts(operation, self.left_from(position)) };
        Ok(Operation::decode(bytes)?.0)
    }

    /// What the put or delete at `position` stored.
    ///
    /// # Safety
    /// As for [`LogView::full_key`].
    #[inline]
    pub(crate) unsafe fn stored(self, position: u32) -> Result<Stored<'p>> {
        // SAFETY: passed on.
        let operation = unsafe { self.operation(position) }?;
        match operation.kind {
            OperationKind::Put | OperationKind::PutExtent | OperationKind::Delete => Ok(operation.stored()),
            OperationKind::DeleteRange | OperationKind::Run | OperationKind::Restore | OperationKind::Checkpoint => {
                Err(changed(position))
            }
        }
    }

    /// Brings the operation at `position` closer: its key and the first bytes of its value.
    #[inline]
    pub(crate) fn prefetch_operation(self, position: u32) {
        let operation = self.base.wrapping_add(position as usize);
        prefetch(operation);
        prefetch(operation.wrapping_add(64));
    }

    /// Bytes `from..to` of the file.
    ///
    /// # Safety
    /// The range was written before.
    pub(crate) unsafe fn bytes(self, from: u64, to: u64) -> &'p [u8] {
        // SAFETY: by the contract.
        unsafe { std::slice::from_raw_parts(self.base.wrapping_add(from as usize), (to - from) as usize) }
    }
}

/// The error for an operation of the log that is another one than was written.
#[cold]
pub(crate) fn changed(position: u32) -> Error {
    Error::damaged(format!(
        "the log holds another operation at {position} than was written there; the device may have failed to write it"
    ))
}

impl<'p> LogView<'p> {
    /// The record at `position` (or at the next unit) of a generation whose records end at `end`: its position,
    /// header and body. `None`: there is none, so the log is damaged.
    ///
    /// # Safety
    /// `end` is what the generation's entry says.
    pub(crate) unsafe fn record(
        self,
        position: u64,
        end: u64,
        segment: &SegmentHeader,
        seeds: &StoreSeeds,
    ) -> Option<(u64, RecordHeader, &'p [u8])> {
        // SAFETY: everything below the end of the records was written, and by the contract does not change.
        let bytes = unsafe { self.bytes(0, end) };
        let ours = |found: &RecordHeader| found.generation == segment.generation && found.epoch == segment.epoch;
        let found = next_record(bytes, position, segment.unit.into(), seeds, ours)?;
        Some((found.position, found.header, found.body?))
    }
}

/// Why a scan stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScanEnd {
    /// At the end of the file or at bytes that are no record of this generation.
    NoRecord,
    /// At a header that is intact but does not continue the chain.
    BrokenChain,
    /// At a record whose body is not what its header says.
    BadBody,
}

/// What a scan of one log file found.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// Position after the last good record.
    pub(crate) tail: u64,
    /// The last good commit (the one before `first_commit` when there is none).
    pub(crate) last_commit: u64,
    /// Header checksum of the last good record.
    pub(crate) previous: u32,
    /// Commit time of the last good record; 0 when there is none.
    pub(crate) time: u64,
    pub(crate) end: ScanEnd,
    /// The highest `synced` and meta sequence that any intact header of this generation claims, also beyond the end.
    pub(crate) synced_claim: u64,
    pub(crate) meta_claim: u32,
}

/// Walks the records of a log file, calling `visit` with the position of each good body, its header and itself; then
/// looks at the rest of the file for headers of this generation, whose claims tell damage from a torn tail.
pub(crate) fn scan(
    bytes: &[u8],
    header: &SegmentHeader,
    seeds: &StoreSeeds,
    mut visit: impl FnMut(u64, &RecordHeader, &[u8]) -> Result<()>,
) -> Result<Scan> {
    let mut scan = Scan {
        tail: first_record(header.unit.into()),
        last_commit: header.first_commit - 1,
        previous: header.previous,
        time: 0,
        end: ScanEnd::NoRecord,
        synced_claim: header.synced,
        meta_claim: header.meta_sequence,
    };
    let ours = |found: &RecordHeader| {
        let is_of_file = found.generation == header.generation && found.epoch == header.epoch;
        is_of_file || is_planted(PlantedBug::ChainNotChecked)
    };
    let unit = header.unit.into();
    while let Some(found) = next_record(bytes, scan.tail, unit, seeds, ours) {
        let header = &found.header;
        let continues = header.previous == scan.previous || is_planted(PlantedBug::ChainNotChecked);
        if !continues || header.commit != scan.last_commit + 1 {
            scan.end = ScanEnd::BrokenChain;
            break;
        }
        let Some(body) = found.body else {
            scan.end = ScanEnd::BadBody;
            break;
        };
        scan.synced_claim = scan.synced_claim.max(header.synced);
        scan.meta_claim = scan.meta_claim.max(header.meta_sequence);
        visit(found.position + RECORD_HEADER_BYTES as u64, header, body)?;
        scan.tail = found.position + record_bytes(body.len());
        scan.last_commit = header.commit;
        scan.previous = found.sum;
        scan.time = header.time;
    }
    for found in headers_from(bytes, scan.tail, seeds).filter(ours) {
        scan.synced_claim = scan.synced_claim.max(found.synced);
        scan.meta_claim = scan.meta_claim.max(found.meta_sequence);
    }
    Ok(scan)
}

/// All intact record headers of this store from `position` on, whatever generation they belong to.
pub(crate) fn headers_from<'a>(
    bytes: &'a [u8],
    position: u64,
    seeds: &'a StoreSeeds,
) -> impl Iterator<Item = RecordHeader> + use<'a> {
    // Records begin at multiples of eight bytes, and the magic number tells most places apart at a glance.
    let rest = bytes.get(position as usize..).unwrap_or_default();
    let words = rest.chunks_exact(8).enumerate();
    words
        .filter(|(_, word)| word[..4] == seeds.record_magic.to_le_bytes())
        .filter_map(move |(index, _)| Some(decode_at(rest, index as u64 * 8, seeds)?.0))
}

/// A record with an intact header.
struct FoundRecord<'a> {
    position: u64,
    header: RecordHeader,
    /// Checksum of the header.
    sum: u32,
    /// `None`: it is not what the header says.
    body: Option<&'a [u8]>,
}

/// The record at `position`, or, where a sync made the writer skip the rest of a unit, at the next unit. A process that
/// died while it wrote may have left the beginning of a record at the first of these places before that sync: so a
/// whole record counts before a torn one.
fn next_record<'a>(
    bytes: &'a [u8],
    position: u64,
    unit: u64,
    seeds: &StoreSeeds,
    ours: impl Fn(&RecordHeader) -> bool,
) -> Option<FoundRecord<'a>> {
    let places = [position, position.next_multiple_of(unit)];
    let mut found = places
        .into_iter()
        .filter_map(|position| record_at(bytes, position, seeds).filter(|found| ours(&found.header)));
    let first = found.next()?;
    match first.body {
        Some(_) => Some(first),
        None => found.find(|next| next.body.is_some()).or(Some(first)),
    }
}

fn record_at<'a>(bytes: &'a [u8], position: u64, seeds: &StoreSeeds) -> Option<FoundRecord<'a>> {
    let (header, sum) = decode_at(bytes, position, seeds)?;
    let start = position as usize + RECORD_HEADER_BYTES;
    let body = bytes.get(start..start + header.body_length as usize);
    let body = body
        .filter(|body| body_checksum(body, seeds) == header.body_checksum || is_planted(PlantedBug::BodiesNotChecked));
    Some(FoundRecord {
        position,
        header,
        sum,
        body,
    })
}

fn decode_at(bytes: &[u8], position: u64, seeds: &StoreSeeds) -> Option<(RecordHeader, u32)> {
    RecordHeader::decode(bytes.get(position as usize..)?, seeds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mapping of a file in which every byte is `fill`.
    fn view_of<'a>(bytes: &'a [u8], filled: &'a AtomicU64) -> LogView<'a> {
        filled.store(bytes.len() as u64, Ordering::Relaxed);
        LogView {
            base: bytes.as_ptr(),
            filled,
        }
    }

    #[test]
    fn lengths_that_lead_out_of_the_file_are_cut_off_or_damage() {
        let filled = AtomicU64::new(0);
        for fill in [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x7f, 0xff] {
            // Larger than the file, so that a slice beyond its end would be noticed and not be a fault.
            let memory = vec![fill; 1 << 20];
            let file = &memory[..8192];
            let log = view_of(file, &filled);
            for position in (0..file.len() - 12).chain([file.len() - 12, file.len() - 8, file.len() - 1]) {
                let range = file.as_ptr_range();
                // SAFETY: the position is in the file, and the bytes outlive the view.
                let key = unsafe { log.full_key(position as u32) };
                // SAFETY: as for the key.
                let operation = unsafe { log.operation(position as u32) };
                assert!(
                    key.as_ptr_range().end <= range.end || key.is_empty(),
                    "{fill:#x} at {position}"
                );
                if let Ok(operation) = operation {
                    assert!(
                        operation.value.as_ptr_range().end <= range.end,
                        "{fill:#x} at {position}"
                    );
                }
                // SAFETY: as above.
                let stored = unsafe { log.stored(position as u32) };
                assert!(
                    matches!(fill, 0x01 | 0x02) || stored.is_err(),
                    "{fill:#x} at {position}"
                );
            }
        }
    }

    #[test]
    fn range_delete_where_a_put_was_written_is_damage() {
        let filled = AtomicU64::new(0);
        let mut bytes = vec![0; 4096];
        bytes[..20].copy_from_slice(&[4, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 9, b'a', 0, 0, 0, 9, b'b', 0, 0]);
        let log = view_of(&bytes, &filled);
        // SAFETY: the position is in the file, and the bytes outlive the view.
        let operation = unsafe { log.operation(0) };
        // SAFETY: as for the operation.
        let stored = unsafe { log.stored(0) };
        assert_eq!(operation.expect("a range delete").kind, OperationKind::DeleteRange);
        assert!(stored.expect_err("not a put").to_string().contains("another operation"));
    }
}
