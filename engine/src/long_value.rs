//! Writing long values: from the caller's stream, or from a fold, into pages of their own in the data file, in parts that
//! each get a checksum. They are *loose* until a base refers to them: whoever fails before the commit gives them back.
//! Reading them is in `value` and `pages`.

use std::io::Read;
use std::sync::atomic::Ordering;

use crate::base::Extent;
use crate::checksum::checksum_with;
use crate::commit::Durability;
use crate::core::Core;
use crate::error::{Error, Reason, Result};
use crate::limits::{PAGE_BYTES, VALUE_CHUNK_BYTES, VALUES_UNSYNCED_BYTES_MAX};
use crate::planted::{PlantedBug, is_planted};
use crate::space::{Claim, Want};

impl Core {
    /// Writes a long value to pages of its own, ahead of the commit that will refer to it.
    pub(crate) fn write_value(&self, length: u64, from: &mut dyn Read) -> Result<Extent> {
        let _user = self.enter()?;
        let mut extent = Extent {
            page: 0,
            checksum: 0,
            length,
            birth: 0,
        };
        let take = || self.space.take(Claim::Loose, Want::Piece(extent.pages()), &self.pages);
        (extent.page, _) = take().or_else(|error| self.after_folding(error, take))?;
        // After that: a snapshot from before the fold does not see the value, and must not hold its pages.
        extent.birth = self.region.version().number;
        let taken = Taken { core: self, extent };
        let written = self.write_value_at(extent, from)?;
        std::mem::forget(taken);
        Ok(written)
    }

    pub(crate) fn write_value_at(&self, mut extent: Extent, from: &mut dyn Read) -> Result<Extent> {
        let doing = |error| Error::io("writing a long value", error);
        let seed = self.seeds.pages;
        let mut offset = extent.page as u64 * PAGE_BYTES as u64;
        let mut table = Vec::new();
        let mut chunk = vec![0u8; VALUE_CHUNK_BYTES.min(extent.length as usize)];
        let mut left = extent.length;
        while left > 0 {
            let part = &mut chunk[..left.min(VALUE_CHUNK_BYTES as u64) as usize];
            let count = fill(part, from)?;
            if count < part.len() {
                let (announced, found) = (extent.length, extent.length - left + count as u64);
                return Err(Reason::ValueLengthMismatch { announced, found }.into());
            }
            self.data.write_at(part, offset).map_err(doing)?;
            table.extend_from_slice(&checksum_with(seed, part).to_le_bytes());
            offset += part.len() as u64;
            left -= part.len() as u64;
        }
        if fill(&mut [0], from)? != 0 {
            let (announced, found) = (extent.length, extent.length + 1);
            return Err(Reason::ValueLengthMismatch { announced, found }.into());
        }
        if extent.length > VALUE_CHUNK_BYTES as u64 {
            extent.checksum = checksum_with(seed, &table);
            self.data.write_at(&table, offset.next_multiple_of(4)).map_err(doing)?;
        } else {
            extent.checksum = checksum_with(seed, &chunk);
        }
        Ok(extent)
    }

    /// When the values of a commit are to be durable: before its record, or, for a commit that need not be, with the next
    /// sync of the log, which syncs the data file first. A power cut before that may keep the record and take the values;
    /// the record says so. Not with runs: an extent is known by its checksum, but a page of a tree that lay there
    /// before is as good as the right one.
    pub(crate) fn value_durability(&self, commit: Durability) -> Durability {
        let waiting = self.control().values_unsynced_bytes.load(Ordering::Relaxed);
        if waiting >= VALUES_UNSYNCED_BYTES_MAX {
            Durability::Synced
        } else {
            commit
        }
    }

    /// Readies values and runs that were written for the record that will refer to them.
    pub(crate) fn ready_values(&self, pages: u32, durability: Durability) -> Result<()> {
        if durability == Durability::Written {
            self.leave_to_sync(pages);
            return Ok(());
        }
        if is_planted(PlantedBug::ValuesNotSynced) {
            return Ok(());
        }
        let synced = self.sync_data_file("syncing long values");
        synced.map_err(|error| self.poisoned_unless_busy(error))
    }

    /// Lets the next sync of the log sync the data file first.
    pub(crate) fn leave_to_sync(&self, pages: u32) {
        let control = self.control();
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        control.values_unsynced_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Release: whoever syncs a record that refers to them sees this number, or a later one.
        control.values_written.fetch_add(1, Ordering::Release);
    }

    /// Makes values durable before the log is. The caller holds the sync lock and has read how far the log is visible.
    pub(crate) fn sync_values(&self) -> Result<()> {
        let control = self.control();
        // Acquire: pairs with the Release in `leave_to_sync`.
        let are_synced =
            control.values_synced.load(Ordering::Relaxed) == control.values_written.load(Ordering::Acquire);
        if are_synced || is_planted(PlantedBug::ValuesNotSynced) {
            return Ok(());
        }
        self.sync_data_file("syncing long values")
    }

    /// Gives back the pages of values that no record refers to.
    pub(crate) fn give_back_values(&self, values: &[Extent]) {
        let give_back = |value: &Extent| self.space.give_back(value.page, value.pages(), &self.pages);
        values.iter().for_each(give_back);
    }
}

/// Pages of a value that is being written. They are given back when its stream fails or panics.
struct Taken<'a> {
    core: &'a Core,
    extent: Extent,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.core.region.is_forked() {
            return;
        }
        self.core.give_back_values(&[self.extent]);
    }
}

/// Reads until `part` is full or the stream ends. Returns the bytes read.
fn fill(part: &mut [u8], from: &mut dyn Read) -> Result<usize> {
    let mut count = 0;
    while count < part.len() {
        match from.read(&mut part[count..]) {
            Ok(0) => break,
            Ok(read) => count += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::of_stream(error)),
        }
    }
    Ok(count)
}
