//! A file in memory, real or simulated.

use std::sync::Arc;

use crate::memory::{self, MappedMemory};

/// A file in memory. The addresses stay valid until it is dropped. The bytes below the length of the file may be read
/// at any time. They may change during a read if a thread or process writes to the file.
#[derive(Debug)]
pub struct Mapping {
    pub(crate) base: *mut u8,
    pub(crate) length: usize,
    pub(crate) _kept: Arc<dyn MappedMemory>,
}

// SAFETY: a mapping is an address range; its users decide which thread may touch which bytes when.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// First byte of the mapping.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Reserved length in bytes; the file may be shorter.
    pub fn reserved(&self) -> usize {
        self.length
    }

    /// Says whether reads come in random order. If so, a missing page is read alone, without its surroundings, which
    /// may be 8 MiB. This is a hint.
    pub fn expect_random_reads(&self, random: bool) {
        // SAFETY: `base` is mapped for `length` bytes for as long as this lives.
        unsafe { memory::expect_random_reads(self.base, self.length, random) };
    }

    /// Asks the kernel to bring a range into memory in the background. A hint.
    pub fn read_ahead(&self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.length as u64);
        if offset < end {
            // SAFETY: `base` is mapped for as long as this lives, and the end was cut to the length.
            unsafe { memory::read_ahead(self.base, offset as usize, end as usize) };
        }
    }

    /// Asks the kernel for the memory of a range before it is written, so that the first writer there need not wait for
    /// it. This is a hint: where it fails the page faults happen.
    pub fn populate(&self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.length as u64);
        if offset < end {
            // SAFETY: `base` is mapped for as long as this lives, and the end was cut to the length.
            unsafe { memory::populate(self.base, offset as usize, end as usize) };
        }
    }
}
