//! Short writes one behind the other, as stores to a mapping of the file: a system call for each would be most of what
//! writing a hundred bytes costs (ext4 on Linux 6.18: 0.6 us, against less than 0.1).
//!
//! A store knows two outcomes, done or a signal, and a signal is not what a full disk or a broken device may be answered
//! with. So before the first store to a page the kernel is asked to make it ready, some pages at a time
//! (`MADV_POPULATE_WRITE`), and after a pause a system call writes: what can fail fails there, as an error, and
//! right after it the pages are in memory and have their place on the device. And it is done only where writing a byte again
//! takes no new place on the device: other file systems get calls.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use crate::memory::{ALIGNMENT, Reservation};

const PAGE_BYTES: u64 = 4096;
const WORD_BYTES: usize = 8;
/// Bytes that are made ready at a time. With twice as much a put takes 3 % less on average, but the one that waits for the kernel
/// half as long again.
const READY_BYTES: u64 = 2 * PAGE_BYTES;
/// Longer writes are system calls: they copy faster.
const STORED_BYTES_MAX: u64 = PAGE_BYTES;
/// Bytes that are let go together.
const PIECE_BYTES: u64 = 64 * PAGE_BYTES;

/// So many milliseconds after a page was made ready, or written to, it is still in memory, dirty or just written back.
const WARM_MILLIS: u64 = 100;

/// File systems that write in place, whatever else they do: ext4 (and ext2, ext3), tmpfs. XFS does not: of what `cp --reflink`
/// took a copy each block takes a new place, and on a full disk that was a signal.
const IN_PLACE: [u32; 2] = [0xef53, 0x0102_1994];

/// A mapping for stores to the front of a file, and which part of it may be stored to. One caller at a time writes.
#[derive(Debug)]
pub(crate) struct Stores {
    range: Reservation,
    length: u64,
    /// What may be stored to: whole pages.
    ready_from: AtomicU64,
    ready_to: AtomicU64,
    /// Until when, in milliseconds.
    warm_until: AtomicU64,
}

impl Stores {
    /// `None`: the file system is none of those, or there are no addresses left.
    pub(crate) fn to(file: &OwnedFd, length: u64) -> Option<Stores> {
        let kind = rustix::fs::fstatfs(file).ok()?.f_type as u32;
        if !IN_PLACE.contains(&kind) {
            return None;
        }
        // What stands in front of it in memory ends at addresses that may not be touched; and behind the file is none of it.
        let range = Reservation::inaccessible(length + ALIGNMENT as u64).ok()?;
        let length = range.length() - ALIGNMENT;
        let base = range.base().wrapping_add(ALIGNMENT).cast::<c_void>();
        let (protection, flags) = (ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the addresses are our own, and nobody uses them yet.
        unsafe { mmap(base, length, protection, flags, file, 0) }.ok()?;
        Some(Stores {
            range,
            length: length as u64,
            ready_from: AtomicU64::new(0),
            ready_to: AtomicU64::new(0),
            warm_until: AtomicU64::new(0),
        })
    }

    /// Stores `bytes` at `offset` if that is sure to succeed, from the first word to the last: who is killed in the middle
    /// leaves the front of them, as with a system call. `false`: nothing was done.
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
            // SAFETY: the mapping is ours for `length` bytes, and its page is part of the file, because it was just made
            // ready; whoever cuts the file meanwhile breaks what `File::map_for_stores` asks for.
            unsafe { first.add(at).write_volatile(u64::from_ne_bytes(*word)) };
        }
        true
    }

    /// Makes the pages from that of `offset` on ready for stores. `false`: some of them cannot be, or are not part of the file.
    #[cold]
    fn make_ready(&self, offset: u64) -> bool {
        let from = offset / PAGE_BYTES * PAGE_BYTES;
        let to = from + READY_BYTES;
        if to > self.length {
            return false;
        }
        // SAFETY: the range is part of our mapping of a file, of which this changes no bytes.
        let made = unsafe { madvise(self.at(from).cast(), READY_BYTES as usize, Advice::LinuxPopulateWrite) };
        if made.is_ok() {
            self.is_ready(from, to);
        }
        made.is_ok()
    }

    fn at(&self, offset: u64) -> *mut u8 {
        self.range.base().wrapping_add(ALIGNMENT + offset as usize)
    }

    fn is_ready(&self, from: u64, to: u64) {
        let before = self.ready_from.swap(from, Ordering::Relaxed) / PIECE_BYTES;
        self.ready_to.store(to, Ordering::Relaxed);
        self.warm_until.store(now() + WARM_MILLIS, Ordering::Relaxed);
        if before != from / PIECE_BYTES {
            self.let_go(before);
        }
    }

    /// Notes that a system call wrote up to `end`.
    pub(crate) fn written(&self, end: u64) {
        let from = end.saturating_sub(1) / PAGE_BYTES * PAGE_BYTES;
        self.is_ready(from, (from + PAGE_BYTES).min(self.length));
    }

    /// Nothing is ready any more: the file may be cut.
    pub(crate) fn forget(&self) {
        self.ready_to.store(0, Ordering::Relaxed);
        self.warm_until.store(0, Ordering::Relaxed);
    }

    /// Lets the kernel forget who may store to the pages of a piece. Whoever writes a page back takes that away from all
    /// processors anyhow, and interrupts each of them for each page (8 us in a virtual machine); this does it for all at once.
    fn let_go(&self, piece: u64) {
        let start = piece * PIECE_BYTES;
        if start + PIECE_BYTES <= self.length {
            // SAFETY: the range is part of our mapping of a file, of which this changes no bytes.
            let _ = unsafe { madvise(self.at(start).cast(), PIECE_BYTES as usize, Advice::LinuxDontNeed) };
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
        let stores = Stores::to(&file, LENGTH).unwrap();
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
        stores.written(8);
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
    fn what_a_call_wrote_is_ready_up_to_the_end_of_its_page() {
        let (file, stores) = filled();
        stores.written(2 * PAGE_BYTES);
        assert!(stores.store(&[4; 8], PAGE_BYTES));
        assert_eq!(stores.ready_to.load(Ordering::Relaxed), 2 * PAGE_BYTES);
        // The call that wrote them is asked again where the file ends.
        rustix::fs::ftruncate(&file, 2 * PAGE_BYTES + READY_BYTES - PAGE_BYTES).unwrap();
        assert!(
            !stores.store(&[5; 8], 2 * PAGE_BYTES),
            "not all of it is part of the file"
        );
        rustix::fs::ftruncate(&file, 2 * PAGE_BYTES + READY_BYTES).unwrap();
        assert!(stores.store(&[5; 8], 2 * PAGE_BYTES));
        stores.written(LENGTH);
        assert!(!stores.store(&[6; 8], LENGTH), "behind what is mapped");
    }

    #[test]
    fn after_a_pause_a_call_writes() {
        let (_file, stores) = filled();
        stores.written(8);
        assert!(stores.store(&[1; 8], 8));
        let until = stores.warm_until.load(Ordering::Relaxed);
        assert!(until <= now() + WARM_MILLIS && until > now());
        stores.warm_until.store(now(), Ordering::Relaxed);
        assert!(!stores.store(&[1; 8], 16));
        assert!(!stores.store(&[1; 8], PAGE_BYTES), "nor makes anything ready");
        stores.written(24);
        assert!(stores.store(&[1; 8], 24));
    }

    #[test]
    fn pieces_that_are_let_go_keep_what_was_stored() {
        let (file, stores) = filled();
        for page in 0..LENGTH / PAGE_BYTES {
            let offset = page * PAGE_BYTES;
            stores.written(offset + 8);
            assert!(stores.store(&(page + 1).to_ne_bytes(), offset + 8));
        }
        // Back, as in a file that is used again, and to a page that was let go.
        stores.written(8);
        assert!(stores.store(&[7; 8], 16));
        for page in 0..LENGTH / PAGE_BYTES {
            assert_eq!(u64::from_ne_bytes(read(&file, page * PAGE_BYTES + 8)), page + 1);
        }
        assert_eq!(read(&file, 16), [7; 8]);
    }

    #[test]
    fn other_file_systems_get_calls() {
        let process = rustix::fs::open("/proc/self/comm", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        assert!(Stores::to(&process, LENGTH).is_none());
    }
}
