//! The current bytes of one simulated file, in memory that is also the file's mapping.
//!
//! The bytes are in one reservation of addresses, so a write is visible at once through every mapping. A file that
//! outgrows its reservation moves to a larger reservation. Reservations that are still mapped are kept, and every later
//! write is repeated in them. Copying a disk copies only pages that were ever written.
//!
//! Invariant: pages outside `touched` hold zeros.

use std::io;
use std::sync::Arc;

use crate::memory::Reservation;

use super::bits::Bits;

/// Unit of `touched` and of a file's blocks.
pub(super) const PAGE: u64 = 4096;

/// Addresses reserved for a file unless a mapping asks for more: address space is plentiful, moving is expensive.
const DEFAULT_RESERVE: u64 = 256 << 20;

/// Bytes in mappable memory. Reads beyond the written bytes return zeros.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// The last is the file's. Those before it are smaller reservations that were mapped when the file outgrew them.
    reservations: Vec<Arc<Reservation>>,
    touched: Bits,
    /// A mapping may be used for stores, so the reservation can no longer be replaced by a larger one.
    pinned: bool,
}

impl Content {
    /// Fills `buffer` from `offset`.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        let held = self
            .reservations
            .last()
            .map_or(0, |reservation| reservation.length() as u64);
        let inside = (held.saturating_sub(offset) as usize).min(buffer.len());
        buffer[inside..].fill(0);
        if inside > 0 {
            let base = self.reservations[self.reservations.len() - 1].base();
            let from = base.wrapping_add(offset as usize);
            // SAFETY: `offset + inside` is within the reservation, which is readable memory and not `buffer`.
            unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), inside) };
        }
    }

    /// `length` bytes from `offset`.
    pub(super) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read(offset, &mut bytes);
        bytes
    }

    /// Makes room for `end` bytes, so that writes below it cannot fail.
    pub(super) fn reserve(&mut self, end: u64) -> io::Result<()> {
        let held = self
            .reservations
            .last()
            .map_or(0, |reservation| reservation.length() as u64);
        if end <= held {
            return Ok(());
        }
        if self.pinned {
            let message = "a simulated file cannot outgrow a mapping that is used for stores";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let larger = Reservation::zeroed(end.max(held * 2).max(DEFAULT_RESERVE))?;
        if let Some(old) = self.reservations.last() {
            copy_pages(old, &larger, &self.touched);
        }
        self.reservations
            .retain(|reservation| Arc::strong_count(reservation) > 1);
        self.reservations.push(Arc::new(larger));
        Ok(())
    }

    /// Writes bytes; [`Content::reserve`] has made room.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.touch(offset, bytes.len());
        for reservation in &self.reservations {
            let fitting = (reservation.length() as u64)
                .saturating_sub(offset)
                .min(bytes.len() as u64) as usize;
            if fitting > 0 {
                reservation.populate(offset as usize, fitting);
                let to = reservation.base().wrapping_add(offset as usize);
                // SAFETY: `offset + fitting` is within the reservation, which is writable memory and not `bytes`.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, fitting) };
            }
        }
    }

    /// Records that a range was stored to through a mapping.
    pub(super) fn touch(&mut self, offset: u64, length: usize) {
        if length > 0 {
            self.touched
                .insert(offset / PAGE..(offset + length as u64).div_ceil(PAGE));
        }
    }

    /// The parts of `offset..end` that may hold something other than zeros, as ranges of bytes.
    pub(super) fn touched(&self, offset: u64, end: u64) -> Vec<std::ops::Range<u64>> {
        let runs = self.touched.runs(offset / PAGE..end.div_ceil(PAGE));
        let clipped = runs
            .into_iter()
            .map(|run| (run.start * PAGE).max(offset)..(run.end * PAGE).min(end));
        clipped.filter(|range| !range.is_empty()).collect()
    }

    /// Turns `offset..` into zeros.
    pub(super) fn cut(&mut self, offset: u64) {
        for range in self.touched(offset, u64::MAX / 2) {
            self.write(range.start, &vec![0; (range.end - range.start) as usize]);
        }
    }

    /// Copies the bytes into new, unmapped memory.
    pub(super) fn copy(&self) -> io::Result<Content> {
        let mut copy = Content::default();
        if let Some(from) = self.reservations.last() {
            copy.reserve(from.length() as u64)?;
            copy_pages(from, &copy.reservations[0], &self.touched);
            copy.touched = self.touched.clone();
        }
        Ok(copy)
    }

    /// Memory of at least `reserve` bytes that shows the file from now on.
    pub(super) fn map(&mut self, reserve: u64, for_stores: bool) -> io::Result<Arc<Reservation>> {
        if reserve == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "cannot map 0 bytes"));
        }
        self.reserve(reserve)?;
        self.pinned |= for_stores;
        Ok(Arc::clone(&self.reservations[self.reservations.len() - 1]))
    }
}

fn copy_pages(from: &Reservation, to: &Reservation, pages: &Bits) {
    for run in pages.runs(0..u64::MAX / 2) {
        let (start, length) = ((run.start * PAGE) as usize, ((run.end - run.start) * PAGE) as usize);
        assert!(start + length <= from.length() && start + length <= to.length());
        to.populate(start, length);
        let (source, target) = (from.base().wrapping_add(start), to.base().wrapping_add(start));
        // SAFETY: both ranges are inside their reservations, as just checked, and reservations never overlap.
        unsafe { std::ptr::copy_nonoverlapping(source, target, length) };
    }
}
