//! Short consecutive writes, as stores to a mapping of the file. A system call for each would be most of the cost of
//! writing a hundred bytes (ext4 on Linux 6.18: 0.6 us, against less than 0.1).
//!
//! A store either succeeds or raises a signal, and a full disk or a broken device must not end a process. So before the
//! first store to a page, the kernel is asked to make it ready, some pages at a time (`MADV_POPULATE_WRITE`). Every
//! possible failure happens there. Right after the call the pages are in memory and have their blocks on the device. In
//! addition, a system call writes once every tenth of a second, and once every 256 KiB: a file system that has stopped
//! refuses it. All this happens only on file systems that overwrite bytes in place. Other file systems get system
//! calls.
//!
//! After a store, the kernel writes back the whole folio that contains the page. Its size depends on how the folio came
//! into memory, so the largest size counts ([`STORE_UNIT`]). The caller of [`crate::File::store_at`] must store only
//! where a power cut may destroy everything else in that unit.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use crate::memory::{ALIGNMENT, Reservation};

const PAGE_BYTES: u64 = 4096;
const WORD_BYTES: usize = 8;
/// Bytes that are made ready at a time. With twice as much, a put takes 3 % less time on average, but a put that waits
/// for the kernel takes half as long again.
const READY_BYTES: u64 = 2 * PAGE_BYTES;
/// Longer writes are system calls, which copy faster.
const STORED_BYTES_MAX: u64 = PAGE_BYTES;
/// Bytes of the file that are mapped at a time.
const WINDOW_BYTES: u64 = 256 << 10;
/// Position of the window in the reservation: the memory before it and after it may not be touched.
const WINDOW_AT: usize = ALIGNMENT / 2;

/// For this many milliseconds after a write by system call, pages that were made ready in the meantime are still in
/// memory, dirty or just written back.
const WARM_MILLIS: u64 = 100;

/// The largest folio of a machine with pages of 4 KiB: the maximum that one page table entry maps.
const STORE_UNIT: u64 = 2 << 20;

/// Maximum bytes that the kernel writes back after a store to a byte of a mapping. `None`: unknown, or stores may fail.
///
/// A store needs a place for each block of its page. Where blocks are smaller than pages, a system call that wrote to
/// the page may have allocated only its own blocks. The rest may be holes, in a log file that was restored from a copy.
/// A store there ends the process with `SIGBUS` when the disk is full.
pub(crate) fn store_unit(block_bytes: u64) -> Option<u64> {
    let are_whole_pages = rustix::param::page_size() as u64 == PAGE_BYTES && block_bytes >= PAGE_BYTES;
    are_whole_pages.then_some(STORE_UNIT)
}

/// The part of a file that is mapped for stores, and the part of it that is ready for stores. Only one caller at a time
/// writes.
#[derive(Debug)]
pub(crate) struct Stores {
    range: ManuallyDrop<Reservation>,
    /// Position of the window in the file.
    window: AtomicU64,
    /// The range that may be stored to: whole pages of the window.
    ready_from: AtomicU64,
    ready_to: AtomicU64,
    /// End of the time in which stores are allowed, in milliseconds.
    warm_until: AtomicU64,
    /// The kernel may have given the addresses of the window to other code.
    is_lost: AtomicBool,
}

impl Stores {
    /// `None`: no addresses are left.
    pub(crate) fn new() -> Option<Stores> {
        Some(Stores {
            range: ManuallyDrop::new(Reservation::inaccessible(ALIGNMENT as u64).ok()?),
            window: AtomicU64::new(0),
            ready_from: AtomicU64::new(0),
            ready_to: AtomicU64::new(0),
            warm_until: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
        })
    }

    /// Stores `bytes` at `offset` if that is sure to succeed, from the first word to the last. A process that is killed
    /// in the middle leaves a prefix of the bytes, as with a system call. `false`: nothing was stored, and a system
    /// call must write.
    #[inline]
    pub(crate) fn store(&self, bytes: &[u8], offset: u64) -> bool {
        let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
        let end = offset + bytes.len() as u64;
        if !rest.is_empty() || !offset.is_multiple_of(WORD_BYTES as u64) || bytes.len() as u64 > STORED_BYTES_MAX {
            return false;
        }
        if now() >= self.warm_until.load(Ordering::Relaxed) || offset < self.ready_from.load(Ordering::Relaxed) {
            return false;
        }
        let ready_to = self.ready_to.load(Ordering::Relaxed);
        if end > ready_to && (offset > ready_to || !self.make_ready(offset)) {
            return false;
        }
        let first = self.at(offset).cast::<u64>();
        for (at, word) in words.iter().enumerate() {
            // SAFETY: the range is part of the window, and its pages are part of the file, because they were just made
            // ready. `File::store_at` requires that no program cuts the file meanwhile.
            unsafe { first.wrapping_add(at).write_volatile(u64::from_ne_bytes(*word)) };
        }
        true
    }

    /// Makes the pages from that of `offset` on ready for stores. `false`: this is not possible, or the pages are not
    /// part of the file, or the window ends.
    #[cold]
    fn make_ready(&self, offset: u64) -> bool {
        let from = offset / PAGE_BYTES * PAGE_BYTES;
        let to = from + READY_BYTES;
        if to > self.window.load(Ordering::Relaxed) + WINDOW_BYTES {
            return false;
        }
        // SAFETY: the range is part of the window, and this changes no bytes of it.
        let made = unsafe { madvise(self.at(from).cast(), READY_BYTES as usize, Advice::LinuxPopulateWrite) };
        if made.is_ok() {
            self.ready_from.store(from, Ordering::Relaxed);
            self.ready_to.store(to, Ordering::Relaxed);
        }
        made.is_ok()
    }

    /// Address of a byte of the window.
    fn at(&self, offset: u64) -> *mut u8 {
        let place = WINDOW_AT + (offset - self.window.load(Ordering::Relaxed)) as usize;
        self.range.base().wrapping_add(place)
    }

    /// Records that a system call wrote to the file up to `end`, and moves the window there if necessary.
    pub(crate) fn written(&self, file: &OwnedFd, end: u64) {
        let from = end.saturating_sub(1) / PAGE_BYTES * PAGE_BYTES;
        let window = self.window.load(Ordering::Relaxed);
        let is_mapped = self.ready_to.load(Ordering::Relaxed) > 0;
        let is_inside = is_mapped && (window..=window + WINDOW_BYTES - READY_BYTES).contains(&from);
        if is_inside || self.move_window(file, from) {
            self.ready_from.store(from, Ordering::Relaxed);
            self.ready_to.store(from + PAGE_BYTES, Ordering::Relaxed);
            self.warm_until.store(now() + WARM_MILLIS, Ordering::Relaxed);
        }
    }

    /// Maps another part of the file. The kernel revokes write access to all previously mapped pages at once. Otherwise
    /// it would revoke access for each page that it writes back, and interrupt every processor each time (8 us in a
    /// virtual machine).
    fn move_window(&self, file: &OwnedFd, from: u64) -> bool {
        self.forget();
        if self.is_lost.load(Ordering::Relaxed) {
            return false;
        }
        let base = self.range.base().wrapping_add(WINDOW_AT).cast::<c_void>();
        let (protection, flags) = (ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the addresses belong to `range`, and only this code stores there.
        let mapped = unsafe { mmap(base, WINDOW_BYTES as usize, protection, flags, file, from) };
        self.window.store(from, Ordering::Relaxed);
        // A failed kernel call may have removed what was mapped there before.
        self.is_lost.store(mapped.is_err(), Ordering::Relaxed);
        mapped.is_ok()
    }

    /// Makes nothing ready any more.
    pub(crate) fn forget(&self) {
        self.ready_to.store(0, Ordering::Relaxed);
        self.warm_until.store(0, Ordering::Relaxed);
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        if !*self.is_lost.get_mut() {
            // SAFETY: this runs once, and the field is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.range) };
        }
    }
}

/// Milliseconds of a clock that takes a few nanoseconds to read.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 4 << 20;

    /// A file in memory that is filled with zeros, and its mapping.
    fn filled() -> (OwnedFd, Stores) {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, LENGTH).unwrap();
        let stores = Stores::new().unwrap();
        (file, stores)
    }

    fn read(file: &OwnedFd, offset: u64) -> [u8; 8] {
        let mut bytes = [0; 8];
        rustix::io::pread(file, &mut bytes[..], offset).unwrap();
        bytes
    }

    #[test]
    fn only_words_that_go_on_where_a_call_wrote_are_stored() {
        let (file, stores) = filled();
        assert!(!stores.store(&[1; 8], 0), "nothing was written yet");
        stores.written(&file, 8);
        assert!(stores.store(&[1; 16], 8));
        assert!(!stores.store(&[3; 7], 24), "no whole words");
        assert!(!stores.store(&[3; 8], 25), "words across words");
        assert!(
            !stores.store(&[3; 8], PAGE_BYTES + 8),
            "behind something that was not written"
        );
        assert!(stores.store(&[2; 16], PAGE_BYTES - 8), "into the next page");
        assert!(
            stores.store(&[4; 8], READY_BYTES - 8),
            "to the end of what that made ready"
        );
        assert!(stores.store(&[5; PAGE_BYTES as usize], READY_BYTES), "from there on");
        assert!(
            !stores.store(&[6; PAGE_BYTES as usize + 8], READY_BYTES + PAGE_BYTES),
            "a long one"
        );
        assert!(!stores.store(&[6; 8], 24), "back");
        let offsets = [0, 8, 16, 24, PAGE_BYTES - 8, PAGE_BYTES, READY_BYTES - 8, READY_BYTES];
        let found = offsets.map(|offset| read(&file, offset)[0]);
        assert_eq!(found, [0, 1, 1, 0, 2, 2, 4, 5]);
    }

    #[test]
    fn what_a_call_wrote_is_ready_up_to_the_end_of_its_page_and_more_where_the_file_goes_on() {
        let (file, stores) = filled();
        stores.written(&file, 2 * PAGE_BYTES);
        assert!(stores.store(&[4; 8], PAGE_BYTES));
        assert_eq!(stores.ready_to.load(Ordering::Relaxed), 2 * PAGE_BYTES);
        rustix::fs::ftruncate(&file, 2 * PAGE_BYTES + READY_BYTES - PAGE_BYTES).unwrap();
        assert!(
            !stores.store(&[5; 8], 2 * PAGE_BYTES),
            "not all of it is part of the file"
        );
        rustix::fs::ftruncate(&file, 2 * PAGE_BYTES + READY_BYTES).unwrap();
        assert!(stores.store(&[5; 8], 2 * PAGE_BYTES));
        stores.forget();
        assert!(!stores.store(&[6; 8], 2 * PAGE_BYTES + 8), "nothing is ready");
    }

    #[test]
    fn once_in_a_tenth_of_a_second_a_call_writes() {
        let (file, stores) = filled();
        stores.written(&file, 8);
        let until = stores.warm_until.load(Ordering::Relaxed);
        assert!(until <= now() + WARM_MILLIS && until > now());
        assert!(stores.store(&[1; 8], 8) && stores.store(&[1; 8], PAGE_BYTES));
        assert_eq!(
            stores.warm_until.load(Ordering::Relaxed),
            until,
            "stores change nothing of that"
        );
        stores.warm_until.store(now(), Ordering::Relaxed);
        assert!(!stores.store(&[1; 8], PAGE_BYTES + 8));
        assert!(
            !stores.store(&[1; 8], READY_BYTES + PAGE_BYTES),
            "nor makes anything ready"
        );
        stores.written(&file, PAGE_BYTES + 16);
        assert!(stores.store(&[1; 8], PAGE_BYTES + 16));
    }

    #[test]
    fn windows_follow_the_calls_and_keep_what_was_stored() {
        let (file, stores) = filled();
        let mut calls = 0;
        for offset in (0..LENGTH - READY_BYTES).step_by(512) {
            let bytes = (offset + 1).to_ne_bytes();
            if !stores.store(&bytes, offset) {
                calls += 1;
                rustix::io::pwrite(&file, &bytes, offset).unwrap();
                stores.written(&file, offset + 8);
            }
        }
        // One call for each window, and some for a slow machine.
        assert!(
            (LENGTH / WINDOW_BYTES..LENGTH / WINDOW_BYTES + 100).contains(&calls),
            "{calls}"
        );
        // Back to the start, as in a reused file.
        stores.written(&file, 8);
        assert!(stores.store(&[7; 8], 16));
        for offset in (0..LENGTH - READY_BYTES).step_by(512) {
            assert_eq!(u64::from_ne_bytes(read(&file, offset)), offset + 1);
        }
        assert_eq!(read(&file, 16), [7; 8]);
    }

    #[test]
    fn file_that_cannot_be_mapped_gets_calls() {
        let (_file, stores) = filled();
        let directory = rustix::fs::open("/", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        stores.written(&directory, 8);
        assert!(stores.is_lost.load(Ordering::Relaxed));
        assert!(!stores.store(&[1; 8], 8));
        let (file, _) = filled();
        stores.written(&file, 8);
        assert!(!stores.store(&[1; 8], 8), "its addresses may be used by other code");
    }
}
