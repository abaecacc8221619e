//! Bytes that the kernel takes for written although the device does not have them.
//!
//! The kernel reports once that it could not write a page, to each description of the file that was open then, and
//! takes the page for clean afterwards. A process that comes later is told nothing: its syncs succeed, and a power cut
//! takes the bytes. So before a process relies on bytes that others wrote, and that no sync is known to have covered,
//! it looks at what the device has ([`File::read_device`]) and writes again what differs from the kernel's memory.
//!
//! Writing all of them again would be simpler, and wrong: some may be durable, and acknowledged, by a process that
//! could not say so any more; and a power cut may destroy a unit that is being written, also one whose bytes do not
//! change. A unit of which the device has other bytes holds nothing that was ever synced.
//!
//! In the data file, what the durable base refers to is durable. Everything else that is in use is found from what
//! refers to it: the pages of the published tree that are newer than the durable base, and the values and runs that
//! records refer to which are not folded. A pin keeps the first where they are meanwhile, and all of them the lock on
//! syncs of the data file, which the caller has: without such a sync nothing comes free that is in use now. Pages that
//! are written and not referred to yet are synced before a record refers to them, or with it, by a process that lives
//! and had the file open.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::atomic::Ordering;

use duramen_io::File;

use crate::btree;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::limits::PAGE_BYTES;
use crate::log::{Operation, OperationKind, Operations, SegmentHeader, decode_root, extent_of, file_name, scan};
use crate::region::Version;

/// Bytes that are compared at a time.
const PART_BYTES: u64 = 1 << 20;

/// Makes `ranges` of a file durable, whatever the kernel has reported to others: `sync` syncs the file.
///
/// Where the file system cannot say what the device has, all of it is written again.
pub(crate) fn make_durable(
    file: &dyn File,
    unit: u64,
    ranges: impl Iterator<Item = Range<u64>>,
    sync: &dyn Fn() -> Result<()>,
) -> Result<()> {
    sync()?;
    let length = file.len().map_err(comparing)?;
    let mut is_rewritten = false;
    for range in ranges {
        let (start, end) = (range.start / unit * unit, range.end.next_multiple_of(unit).min(length));
        for part in (start..end).step_by(PART_BYTES as usize) {
            is_rewritten |= write_differences_again(file, unit, part..end.min(part + PART_BYTES))?;
        }
    }
    if is_rewritten { sync() } else { Ok(()) }
}

fn comparing(error: std::io::Error) -> Error {
    Error::io("comparing what the device has with what was written", error)
}

/// Writes the units of a range again that the device has otherwise. Returns whether there were any.
fn write_differences_again(file: &dyn File, unit: u64, range: Range<u64>) -> Result<bool> {
    let length = (range.end - range.start) as usize;
    let mut wanted = vec![0; length];
    file.read_at(&mut wanted, range.start).map_err(comparing)?;
    // From a page on, because smaller pieces cannot be read.
    let start = range.start / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let skipped = (range.start - start) as usize;
    let mut found = vec![0; (skipped + length).next_multiple_of(PAGE_BYTES)];
    let is_known = file.read_device(&mut found, start).map_err(comparing)?;
    let found = &found[skipped..skipped + length];
    let units = wanted.chunks(unit as usize).zip(found.chunks(unit as usize));
    let mut is_rewritten = false;
    for (index, (wanted, found)) in units.enumerate() {
        if !is_known || wanted != found {
            let offset = range.start + index as u64 * unit;
            let doing = |error| Error::io("writing again what the device does not have", error);
            file.write_at(wanted, offset).map_err(doing)?;
            is_rewritten = true;
        }
    }
    Ok(is_rewritten)
}

impl Core {
    /// Pages that records refer to which are not folded in a version. The caller has the maintenance lock, or a pin of
    /// that version; records that come meanwhile are of the living.
    pub(crate) fn pages_in_log(&self, version: &Version) -> Result<HashSet<u32>> {
        let mut pages = HashSet::new();
        for &slot in &version.generations {
            let end = self.entry(slot).tail.load(Ordering::Acquire);
            // SAFETY: as long as the caller has one of those, no generation of the version goes.
            let log = unsafe { self.log_view(slot) }?;
            // SAFETY: below the end of the records everything was written.
            let bytes = unsafe { log.bytes(0, end) };
            let no_header = || Error::damaged(format!("{} has lost its header", file_name(slot)));
            let header = SegmentHeader::decode(bytes, self.store).ok_or_else(no_header)?;
            let scanned = scan(bytes, &header, &self.seeds, |_, _, body| {
                for operation in Operations::of(body) {
                    let (_, operation) = operation?;
                    self.note_pages(&mut pages, operation)?;
                }
                Ok(())
            })?;
            if scanned.tail != end {
                let (name, found) = (file_name(slot), scanned.tail);
                return Err(Error::damaged(format!(
                    "the records of {name} end at {found}, not at {end}"
                )));
            }
        }
        Ok(pages)
    }

    fn note_pages(&self, pages: &mut HashSet<u32>, operation: Operation<'_>) -> Result<()> {
        let run = match operation.kind {
            OperationKind::PutExtent => {
                pages.extend(btree::Visit::Extent(extent_of(operation.value)).pages());
                return Ok(());
            }
            OperationKind::Run => decode_root(operation.value),
            // The pages of a restore are those of a checkpoint.
            OperationKind::Put
            | OperationKind::Delete
            | OperationKind::DeleteRange
            | OperationKind::Restore
            | OperationKind::Checkpoint => {
                return Ok(());
            }
        };
        btree::walk(self.source(), run, &mut |visit| {
            pages.extend(visit.pages());
            Ok(())
        })
    }

    /// Makes everything in the data file durable that is in use, whatever the kernel has reported to others. The caller
    /// has the lock on syncs of the data file; `sync` syncs it.
    pub(crate) fn make_data_durable(&self, sync: &dyn Fn() -> Result<()>) -> Result<()> {
        // What the log refers to is known once it is decided whether the last commit of a dead process stands.
        drop(self.hold_commits()?);
        let (pin, version, _) = self.region.pin(0, &self.control().visible.0)?;
        let pages = self
            .cover_data()
            .and_then(|()| self.pages_not_known_to_be_durable(&version));
        let written = pages.and_then(|pages| {
            let bytes = |page: u32| u64::from(page) * PAGE_BYTES as u64;
            let ranges = runs(pages).map(|run| bytes(run.start)..bytes(run.end));
            make_durable(&*self.data, PAGE_BYTES as u64, ranges, sync)
        });
        self.region.unpin(&pin);
        written
    }

    fn pages_not_known_to_be_durable(&self, version: &Version) -> Result<BTreeSet<u32>> {
        let mut pages: BTreeSet<u32> = self.pages_in_log(version)?.into_iter().collect();
        let durable = self.durable_version();
        btree::walk_newer(self.source(), version.root, durable, &mut |visit| {
            pages.extend(visit.pages());
            Ok(())
        })?;
        Ok(pages)
    }
}

/// Runs of neighbours.
fn runs(pages: BTreeSet<u32>) -> impl Iterator<Item = Range<u32>> {
    let mut pages = pages.into_iter().peekable();
    std::iter::from_fn(move || {
        let first = pages.next()?;
        let mut end = first + 1;
        while pages.next_if_eq(&end).is_some() {
            end += 1;
        }
        Some(first..end)
    })
}

#[cfg(test)]
mod tests {
    use duramen_io::{FailKind, FailSpan, SimDisk};

    use super::*;
    use crate::{Durability, Maintenance, Options, Store};

    fn open(disk: &SimDisk) -> Store {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written)
            .generation_bytes(32 << 10, 64 << 10);
        options.open_on(disk.platform()).expect("a store")
    }

    fn value(number: u32) -> Vec<u8> {
        let length = if number.is_multiple_of(100) { 100_000 } else { 90 };
        (0..length).map(|at| (number as usize * 31 + at) as u8).collect()
    }

    /// A base that is published and not durable, and long values that only the log refers to, when the process that
    /// syncs the data file is told of an error, and dies. The disk's seed says which of the pages are lost.
    #[test]
    fn what_the_kernel_gave_up_is_written_again_and_survives_power_loss() {
        for seed in 0..10 {
            let disk = SimDisk::new(seed);
            let store = open(&disk);
            let map = store.map("map").expect("a map");
            let put = |numbers: std::ops::Range<u32>| {
                numbers.for_each(|number| map.put(number.to_be_bytes(), value(number)).expect("a put"));
            };
            put(0..1_000);
            store.maintain().expect("a durable base");
            put(500..1_500);
            store.sync().expect("a durable log");
            let core = store.core();
            let mut state = core.hold_maintenance().expect("no other process has it");
            assert!(core.fold(&mut state).expect("a fold"), "some generations are full");
            drop(state);
            put(1_500..1_550);
            disk.fail(1, FailKind::Io, FailSpan::Once);
            core.data.sync_data().expect_err("somebody was told");
            let sync = || core.data.sync_data().map_err(|error| Error::io("syncing", error));
            core.make_data_durable(&sync).expect("a disk that works again");
            store.sync().expect("a durable log");
            store.maintain().expect("a durable base");
            assert_whole(&disk.power_cut(seed));
        }
    }

    fn assert_whole(disk: &SimDisk) {
        let store = open(disk);
        let map = store.map("map").expect("a map");
        for number in 0..1_550u32 {
            let found = map.get(number.to_be_bytes()).expect("a sound store");
            assert!(found.as_deref() == Some(&*value(number)), "{number}");
        }
        let report = store.check(&mut |_| ()).expect("a check");
        assert_eq!(report.problems, [""; 0]);
    }
}
