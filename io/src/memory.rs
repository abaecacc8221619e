//! Reserved address space: what keeps a [`Mapping`](crate::Mapping) mapped, for real and for simulated files.
//!
//! A reservation is a range of addresses that belongs to one owner from its creation until it is dropped. Dropping it
//! also unmaps everything that was mapped over it. Invariant: `base` is a multiple of [`ALIGNMENT`], because the kernel
//! maps files with 2 MiB page table entries only where address and file offset agree modulo 2 MiB.

use std::ffi::c_void;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Alignment of every reservation, and the unit its length is rounded up to.
pub(crate) const ALIGNMENT: usize = 2 << 20;

const PAGE: usize = 4096;

/// For fewer bytes a system call costs more than the faults that it saves.
const POPULATED_BYTES_MIN: usize = 8 * PAGE;

/// Keeps the memory of a [`Mapping`] mapped.
pub(crate) trait MappedMemory: Debug + Send + Sync {}

/// A range of addresses, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    base: *mut u8,
    length: usize,
    /// The result of `mmap`: a reservation takes more addresses than requested, to be aligned.
    start: *mut c_void,
    start_length: usize,
}

// SAFETY: a reservation is an address range; it gives no access by itself.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl MappedMemory for Reservation {}

impl Reservation {
    /// Reserves `length` bytes of addresses (rounded up) that may not be touched until something is mapped there.
    pub(crate) fn inaccessible(length: u64) -> io::Result<Reservation> {
        Reservation::new(length, ProtFlags::empty())
    }

    /// Reserves `length` bytes (rounded up) of zeroed memory that costs nothing until it is touched.
    pub(crate) fn zeroed(length: u64) -> io::Result<Reservation> {
        Reservation::new(length, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn new(length: u64, protection: ProtFlags) -> io::Result<Reservation> {
        let (length, start_length) = padded(length)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses an unused range, so no other memory is affected.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), start_length, protection, flags) }
            .map_err(|error| out_of_addresses(error, start_length))?;
        let skipped = start.align_offset(ALIGNMENT);
        assert!(skipped + length <= start_length);
        let base = start.cast::<u8>().wrapping_add(skipped);
        Ok(Reservation {
            base,
            length,
            start,
            start_length,
        })
    }

    /// First byte; a multiple of [`ALIGNMENT`].
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Asks the kernel for the memory of a range before it is written, which costs less than a fault for each page.
    /// This is a hint: where it fails the page faults happen.
    pub(crate) fn populate(&self, offset: usize, length: usize) {
        // SAFETY: the range is inside our own.
        unsafe { populate(self.base, offset, (offset + length).min(self.length)) };
    }

    /// Length in bytes; a multiple of [`ALIGNMENT`].
    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this reservation alone, and every user of it kept this reservation alive until
        // now.
        let outcome = unsafe { munmap(self.start, self.start_length) };
        debug_assert!(outcome.is_ok(), "munmap of our own range failed: {outcome:?}");
    }
}

/// Asks the kernel for the memory of a range, which costs less than a fault for each page.
///
/// # Safety
/// `base` is the first byte of a mapping that stays mapped meanwhile, and `start..end` is inside it.
pub(crate) unsafe fn populate(base: *mut u8, start: usize, end: usize) {
    let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
    if end - start >= POPULATED_BYTES_MIN {
        // SAFETY: a mapping consists of whole pages, so the rounded range is inside it too; populating changes no
        // bytes.
        let _ = unsafe { madvise(base.wrapping_add(start).cast(), end - start, Advice::LinuxPopulateWrite) };
    }
}

/// Says whether a mapping is read in random order, so that the kernel reads a missing page without its surroundings.
///
/// # Safety
/// `base` is the first byte of a mapping of `length` bytes that stays mapped meanwhile.
pub(crate) unsafe fn expect_random_reads(base: *mut u8, length: usize, random: bool) {
    let advice = if random { Advice::Random } else { Advice::Normal };
    // SAFETY: the caller guarantees that the range is a mapping; the advice changes no bytes.
    let _ = unsafe { madvise(base.cast(), length, advice) };
}

/// Asks the kernel to read a range of a mapped file in the background.
///
/// # Safety
/// `base` is the first byte of a mapping that stays mapped meanwhile, and `start..end` is inside it.
pub(crate) unsafe fn read_ahead(base: *mut u8, start: usize, end: usize) {
    let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
    // SAFETY: a mapping consists of whole pages, so the rounded range is inside it too; the advice changes no bytes.
    let _ = unsafe { madvise(base.wrapping_add(start).cast(), end - start, Advice::WillNeed) };
}

/// Reads a range of a file, aligned to [`ALIGNMENT`], into the page cache in pieces of that size. It uses its own
/// mapping, because large pieces are a property of the mapping. A store's mapping must not have this property: later,
/// when memory is short, every miss would read 2 MiB.
pub(crate) fn preload(file: &OwnedFd, offset: u64, length: usize) {
    let Ok(range) = Reservation::inaccessible(length as u64) else {
        return;
    };
    let (flags, base) = (MapFlags::SHARED | MapFlags::FIXED, range.base().cast::<c_void>());
    // SAFETY: the addresses belong to `range` until it is dropped.
    if unsafe { mmap(base, length, ProtFlags::READ, flags, file, offset) }.is_ok() {
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateRead] {
            // SAFETY: no byte of the file is changed. If a program cuts the file at this moment, the call returns an
            // error, and the kernel sends no signal.
            let _ = unsafe { madvise(base, length, advice) };
        }
    }
}

/// The usable length, and the length to reserve so that an aligned range of the usable length fits inside.
fn padded(length: u64) -> io::Result<(usize, usize)> {
    let invalid = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("cannot reserve {length} bytes of addresses"),
        )
    };
    let length = usize::try_from(length).map_err(|_| invalid())?;
    if length == 0 {
        return Err(invalid());
    }
    let rounded = length.checked_next_multiple_of(ALIGNMENT).ok_or_else(invalid)?;
    Ok((rounded, rounded.checked_add(ALIGNMENT).ok_or_else(invalid)?))
}

fn out_of_addresses(error: Errno, length: usize) -> io::Error {
    if error != Errno::NOMEM {
        return error.into();
    }
    let message = format!(
        "cannot reserve {length} bytes of address space: the process is limited (ulimit -v) or has too many mappings \
         (vm.max_map_count)"
    );
    io::Error::new(io::ErrorKind::OutOfMemory, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_aligned_and_rounded_up() {
        for length in [1, 4096, ALIGNMENT as u64, ALIGNMENT as u64 + 1] {
            let reservation = Reservation::zeroed(length).unwrap();
            assert_eq!(reservation.base() as usize % ALIGNMENT, 0);
            assert_eq!(reservation.length(), (length as usize).next_multiple_of(ALIGNMENT));
        }
    }

    #[test]
    fn kernel_is_told_that_reads_of_a_mapping_come_in_no_order() {
        let reservation = Reservation::zeroed(ALIGNMENT as u64).unwrap();
        let base = reservation.base();
        let is_told = || {
            let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap();
            // The mapping that contains the address, and its flags; `rr` stands for random reads.
            let begins = |line: &str| {
                let (start, end) = line.split_once(' ')?.0.split_once('-')?;
                let bound = |number| usize::from_str_radix(number, 16).ok();
                Some((bound(start)?..bound(end)?).contains(&(base as usize)))
            };
            let own = mappings.lines().skip_while(|line| begins(line) != Some(true));
            let mut flags = own.filter_map(|line| line.strip_prefix("VmFlags:"));
            flags.next().unwrap().split_whitespace().any(|flag| flag == "rr")
        };
        for random in [false, true, false] {
            // SAFETY: the range belongs to `reservation`, and has this length.
            unsafe { expect_random_reads(base, reservation.length(), random) };
            assert_eq!(is_told(), random);
        }
    }

    #[test]
    fn impossible_lengths_are_errors() {
        assert_eq!(Reservation::zeroed(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(
            Reservation::zeroed(u64::MAX).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        let error = Reservation::inaccessible(1 << 60).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{error}");
    }
}
