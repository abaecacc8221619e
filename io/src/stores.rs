//! Short writes one behind the other, as stores to a mapping of the file: a system call for each would be most of what
//! writing a hundred bytes costs (ext4 on Linux 6.18: 0.6 us, against less than 0.1).
//!
//! A store either succeeds or ends in a signal, and a full disk or a broken device must not end a process. So before the first
//! store to a page the kernel is asked to make it ready, some pages at a time (`MADV_POPULATE_WRITE`): what can fail fails there, and
//! right after it the pages are in memory and have their place on the device. And once in a tenth of a second, and in 256 KiB, a
//! system call writes: a file system that has stopped refuses it. All of this is done only where writing a byte again takes
//! no new place on the device: other file systems get calls.
//!
//! After a store the kernel writes the whole folio back that the page is part of. Its size depends on how the folio came
//! into memory, so the largest one counts ([`STORE_UNIT`]), and [`crate::File::store_at`] leaves it to its caller to store
//! only where nothing else in that unit may be destroyed by a power cut.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use crate::memory::{ALIGNMENT, Reservation};

const PAGE_BYTES: u64 = 4096;
const WORD_BYTES: usize = 8;
/// Bytes that are made ready at a time. With twice as much a put takes 3 % less on average, but the one that waits for the kernel
/// half as long again.
const READY_BYTES: u64 = 2 * PAGE_BYTES;
/// Longer writes are system calls: they copy faster.
const STORED_BYTES_MAX: u64 = PAGE_BYTES;
/// Bytes of the file that are mapped at a time.
const WINDOW_BYTES: u64 = 256 << 10;
/// Where they are mapped: what stands in front of them in memory, and behind, may not be touched.
const WINDOW_AT: usize = ALIGNMENT / 2;

/// So many milliseconds after a system call wrote, the pages that were made ready meanwhile are still in memory, dirty or just
/// written back.
const WARM_MILLIS: u64 = 100;

/// The largest folio of a machine with pages of 4 KiB: what one entry of the page table maps at most.
const STORE_UNIT: u64 = 2 << 20;

/// What the kernel writes back at most when a byte of a mapping was stored to. `None`: it is not known, or stores may fail.
///
/// A store needs a place for each block of its page. Where blocks are smaller than pages, a system call that wrote to the
/// page may have found one for its own blocks alone: the rest may be holes, in a log file that was restored from a copy. A
/// store there ends the process with `SIGBUS` when the disk is full.
pub(crate) fn store_unit(block_bytes: u64) -> Option<u64> {
    let are_whole_pages = rustix::param::page_size() as u64 == PAGE_BYTES && block_bytes >= PAGE_BYTES;
    are_whole_pages.then_some(STORE_UNIT)
}

/// What of a file is mapped for stores, and which part of that may be stored to. One caller at a time writes.
#[derive(Debug)]
pub(crate) struct Stores {
    range: ManuallyDrop<Reservation>,
    /// Where in the file the window begins.
    window: AtomicU64,
    /// What may be stored to: whole pages of the window.
    ready_from: AtomicU64,
    ready_to: AtomicU64,
    /// Until when, in milliseconds.
    warm_until: AtomicU64,
    /// The kernel may have given the addresses of the window to other code.
    is_lost: AtomicBool,
}

impl Stores {
    /// `None`: there are no addresses left.
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

    /// Stores `bytes` at `offset` if that is sure to succeed, from the first word to the last: a process that is
    /// killed in the middle leaves the front of them, as with a system call. `false`: nothing was done, and a system call has to.
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
            // ready. `File::store_at` asks that no program cuts the file meanwhile.
            unsafe { first.add(at).write_volatile(u64::from_ne_bytes(*word)) };
        }
        true
    }

    /// Makes the pages from that of `offset` on ready for stores. `false`: they cannot be, or are not part of the file, or
    /// the window ends.
    #[cold]
    fn make_ready(&self, offset: u64) -> bool {
        let from = offset / PAGE_BYTES * PAGE_BYTES;
        let to = from + READY_BYTES;
        if to > self.window.load(Ordering::Relaxed) + WINDOW_BYTES {
            return false;
        }
        // SAFETY: the range is part of the window, of which this changes no bytes.
        let made = unsafe { madvise(self.at(from).cast(), READY_BYTES as usize, Advice::LinuxPopulateWrite) };
        if made.is_ok() {
            self.ready_from.store(from, Ordering::Relaxed);
            self.ready_to.store(to, Ordering::Relaxed);
        }
        made.is_ok()
    }

    /// Where a byte of the window is.
    fn at(&self, offset: u64) -> *mut u8 {
        let place = WINDOW_AT + (offset - self.window.load(Ordering::Relaxed)) as usize;
        self.range.base().wrapping_add(place)
    }

    /// Notes that a system call wrote to the file up to `end`, and moves the window there when it must.
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

    /// Maps another part of the file. The kernel takes the right to store away from all pages that were mapped before, at
    /// once. Otherwise it does so for each page that it writes back, and interrupts every processor for it (8 us in a
    /// virtual machine).
    fn move_window(&self, file: &OwnedFd, from: u64) -> bool {
        self.forget();
        if self.is_lost.load(Ordering::Relaxed) {
            return false;
        }
        let base = self.range.base().wrapping_add(WINDOW_AT).cast::<c_void>();
        let (protection, flags) = (ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the addresses are our own, and only this code stores there.
        let mapped = unsafe { mmap(base, WINDOW_BYTES as usize, protection, flags, file, from) };
        self.window.store(from, Ordering::Relaxed);
        // A kernel that failed may have taken away what was there before.
        self.is_lost.store(mapped.is_err(), Ordering::Relaxed);
        mapped.is_ok()
    }

    /// Nothing is ready any more.
    pub(crate) fn forget(&self) {
        self.ready_to.store(0, Ordering::Relaxed);
        self.warm_until.store(0, Ordering::Relaxed);
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        if !*self.is_lost.get_mut() {
            // SAFETY: once, and it is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.range) };
        }
    }
}

/// Milliseconds of a clock that costs some nanoseconds.
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
        // One for each window, and some for a machine that is slow.
        assert!(
            (LENGTH / WINDOW_BYTES..LENGTH / WINDOW_BYTES + 100).contains(&calls),
            "{calls}"
        );
        // Back, as in a file that is used again.
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
