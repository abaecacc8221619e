//! Writing long values: from the caller's stream, or from a fold, into pages of their own in the data file, in parts
//! that each get a checksum. They are *loose* until a base refers to them: a commit that fails gives them back. Reading
//! them is in `value` and `pages`.

use std::io::Read;

use crate::allocator::{Claim, Want};
use crate::btree::Extent;
use crate::checksum::checksum_with;
use crate::core::Core;
use crate::error::{Error, Reason, Result};
use crate::limits::{PAGE_BYTES, VALUE_CHUNK_BYTES};

impl Core {
    /// Writes a long value to pages of its own, ahead of the commit that will refer to it.
    pub(crate) fn write_value(&self, value: &[u8]) -> Result<Extent> {
        self.write_loose(value.len() as u64, |extent| self.write_value_at(extent, value))
    }

    /// Writes a long value that comes from a stream.
    pub(crate) fn write_stream(&self, length: u64, from: &mut dyn Read) -> Result<Extent> {
        self.write_loose(length, |extent| {
            let mut parts = Parts::new(self, extent);
            let mut chunk = vec![0u8; VALUE_CHUNK_BYTES.min(length as usize)];
            let mut left = length;
            while left > 0 {
                let part = &mut chunk[..left.min(VALUE_CHUNK_BYTES as u64) as usize];
                let count = fill(part, from)?;
                if count < part.len() {
                    let found = length - left + count as u64;
                    let announced = length;
                    return Err(Reason::ValueLengthMismatch { announced, found }.into());
                }
                parts.write(part)?;
                left -= part.len() as u64;
            }
            if fill(&mut [0], from)? != 0 {
                let (announced, found) = (length, length + 1);
                return Err(Reason::ValueLengthMismatch { announced, found }.into());
            }
            parts.finish()
        })
    }

    /// Writes a value to the pages that were taken for it.
    pub(crate) fn write_value_at(&self, extent: Extent, value: &[u8]) -> Result<Extent> {
        let mut parts = Parts::new(self, extent);
        value.chunks(VALUE_CHUNK_BYTES).try_for_each(|part| parts.write(part))?;
        parts.finish()
    }

    /// Takes pages for a value of this length and lets `write` fill them.
    fn write_loose(&self, length: u64, write: impl FnOnce(Extent) -> Result<Extent>) -> Result<Extent> {
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
        let written = write(extent)?;
        std::mem::forget(taken);
        Ok(written)
    }

    /// Gives back the pages of values that no record refers to.
    pub(crate) fn give_back_values(&self, values: &[Extent]) {
        let give_back = |value: &Extent| self.space.give_back(value.page, value.pages(), &self.pages);
        values.iter().for_each(give_back);
    }
}

/// Writes a value part by part, and makes up what its pages end with and its checksum.
struct Parts<'a> {
    core: &'a Core,
    extent: Extent,
    offset: u64,
    /// Checksums of the parts.
    table: Vec<u8>,
}

impl<'a> Parts<'a> {
    fn new(core: &'a Core, extent: Extent) -> Parts<'a> {
        Parts {
            core,
            extent,
            offset: extent.page as u64 * PAGE_BYTES as u64,
            table: Vec::new(),
        }
    }

    /// Writes the next part: [`VALUE_CHUNK_BYTES`], or what is left.
    fn write(&mut self, part: &[u8]) -> Result<()> {
        self.write_at_end(part)?;
        let checksum = checksum_with(self.core.seeds.pages, part);
        self.table.extend_from_slice(&checksum.to_le_bytes());
        Ok(())
    }

    fn write_at_end(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.core.data.write_at(bytes, self.offset);
        written.map_err(|error| Error::io("writing a long value", error))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn finish(mut self) -> Result<Extent> {
        let table = std::mem::take(&mut self.table);
        self.extent.checksum = match table[..].try_into() {
            Ok(only) => u32::from_le_bytes(only),
            Err(_) => {
                self.offset = self.offset.next_multiple_of(4);
                self.write_at_end(&table)?;
                checksum_with(self.core.seeds.pages, &table)
            }
        };
        Ok(self.extent)
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
