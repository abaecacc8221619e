//! What the engine may ask of a machine: a directory of files, memory mapped from them, time and random numbers.
//!
//! Every call may fail, and the simulated implementation makes each of them fail in turn. Offsets and lengths are in
//! bytes. Nothing here buffers: `write_at` reaches the kernel before it returns, `sync_data` reaches the device.

use std::fmt::Debug;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::memory;

/// How [`Storage::open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist; it can only be read.
    Read,
    /// The file must exist; it can be read and written.
    Write,
    /// The file is made when it is missing; it can be read and written.
    Create,
}

/// What [`Storage::write_unit`] can be: powers of two from a sector to the largest block of a file system.
pub const WRITE_UNITS: RangeInclusive<u64> = 512..=64 << 10;

/// A directory of files with plain names. Created and removed names survive power loss only after [`Storage::sync`].
pub trait Storage: Debug + Send + Sync {
    /// Opens a file.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// Names of all files, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Gives a file a new name, replacing any file of that name in one step.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes created, renamed and removed names survive power loss.
    fn sync(&self) -> io::Result<()>;
    /// Takes an advisory lock on a file, which is made when missing. It is held until the returned guard is dropped
    /// or the process dies, and it excludes other processes and other guards of this process alike. `Ok(None)`:
    /// somebody else holds it in a mode that excludes `mode`.
    fn lock(&self, name: &str, mode: LockMode) -> io::Result<Option<Lock>>;
    /// Opens a file, which is made when missing, to lock single bytes of it. Byte locks exclude [`Storage::lock`]s of the
    /// same file by anybody else.
    fn byte_locks(&self, name: &str) -> io::Result<Box<dyn ByteLocks>>;
    /// Bytes that the machine writes to the device as a whole when one of them changes: a block of the file system. A power
    /// cut may destroy any byte of a unit that is being written, also a byte that does not change. One of
    /// [`WRITE_UNITS`].
    fn write_unit(&self) -> u64;
    /// Bytes that the machine writes to the device as a whole after [`File::store_at`] changed one of them: a multiple of the
    /// write unit, for which the same holds. `None`: there are no stores here.
    fn store_unit(&self) -> Option<u64> {
        None
    }
    /// Whether bytes that a file has are written again where they are. Elsewhere a store to a mapped file may need a new
    /// block, and ends the process with `SIGBUS` when the disk is full.
    fn writes_in_place(&self) -> bool {
        true
    }
    /// What tells a file from any other, and from itself after a change. `None`: the machine cannot tell.
    fn stamp(&self, name: &str) -> io::Result<Option<FileStamp>> {
        let _ = name;
        Ok(None)
    }
    /// Permissions for a file outside the directory that is as much whose as those inside.
    fn file_mode(&self) -> u32 {
        0o600
    }
    /// The directory, for messages.
    fn path(&self) -> &Path;
}

/// See [`Storage::stamp`]. It is equal as long as a file is not changed by calls, cut, replaced or copied. A store to a
/// mapping may leave it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// The file: which file system, and which file there.
    pub file: (u64, u64),
    /// Length in bytes.
    pub length: u64,
    /// When the file was changed last: not by the time of day alone that anybody can set.
    pub changed: (u64, u64),
}

/// Strength of a [`Storage::lock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Many holders, none of them exclusive.
    Shared,
    /// One holder.
    Exclusive,
}

/// One holder of advisory locks on single bytes of a file, which need not exist. The kernel frees them when the holder is
/// dropped or its process dies, in whatever container it runs, and at no other time. A child that the process forks does
/// not keep them.
pub trait ByteLocks: Debug + Send + Sync {
    /// Takes the lock of a byte, in exclusive mode. `false`: another holder has it.
    fn take(&self, byte: u64) -> io::Result<bool>;
    /// Lets go of the lock of a byte.
    fn release(&self, byte: u64) -> io::Result<()>;
    /// Whether another holder has the lock of a byte.
    fn is_taken(&self, byte: u64) -> io::Result<bool>;
}

/// A held advisory lock; dropping it lets go.
#[derive(Debug)]
pub struct Lock {
    pub(crate) _held: Box<dyn LockGuard>,
}

/// What keeps a lock: an open file description, or an entry in the simulated disk.
pub(crate) trait LockGuard: Debug + Send + Sync {}

/// An open file.
#[allow(clippy::len_without_is_empty)] // An empty file is no special case for anybody.
pub trait File: Debug + Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buffer` from `offset`; reaching the end of the file first is an `UnexpectedEof` error.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Fills `buffer` from `offset` with what the device has, past the kernel's memory. The two differ after a write to the
    /// device that failed: the kernel reports it once and then takes the bytes for written. What the device does not have
    /// of the end of the file reads as zeros. `offset` and the length of `buffer` are multiples of 4 KiB. `false`: the file
    /// system cannot do this, and `buffer` is as before.
    fn read_device(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool>;
    /// Writes all of `bytes` at `offset`, extending the file when needed.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// [`File::write_at`] for short writes one behind the other, by one caller at a time, to a part of the file that was filled
    /// before. Where there is a [`Storage::store_unit`], most of them are stores to a mapping, and no program may cut the
    /// file meanwhile. Errors are those of `write_at`, and a process that dies while it writes leaves the front of the bytes.
    fn store_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }
    /// Gives `offset..offset + length` real blocks, so that writing there can no longer find the disk full. The file
    /// grows to cover the range; what was never written reads as zeros. A full disk is a `StorageFull` error.
    fn allocate(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Writes zeros to `offset..offset + length`, extending the file. Unlike [`File::allocate`] the blocks are
    /// really written: a later small write and its sync then touch no metadata, which halves the cost of a sync.
    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Cuts or extends the file to `length`.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Returns once everything written so far, and the length, survives power loss.
    fn sync_data(&self) -> io::Result<()>;
    /// Asks the kernel to start writing a range back. A hint: nothing is promised, errors are not reported.
    fn start_writeback(&self, offset: u64, length: u64);
    /// Brings a range that was allocated and never written into the kernel's memory, in pieces of 2 MiB where it can:
    /// a mapping then needs one page table entry for each of them instead of 512, and a random read through it saves
    /// most of the translation of its address. A hint: where it fails the pieces are small.
    fn preload_in_large_pieces(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
    /// Gives the blocks of a range, whose bytes nobody needs any more, back to the file system. What is read there
    /// afterwards is what was there, or zeros. A hint: where it cannot be done they stay.
    fn discard(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
    /// Bytes that the file occupies on the device.
    fn allocated_bytes(&self) -> io::Result<u64>;
    /// Maps the file into memory, shared with every other mapping and with `write_at`. `reserve` bytes of address
    /// space are taken, aligned to 2 MiB, so that the file can grow under the mapping; memory beyond the end of the
    /// file must not be touched.
    fn map(&self, reserve: u64, access: Access) -> io::Result<Mapping>;
}

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// A file in memory. The addresses stay valid until it is dropped; the bytes below the length of the file may be
/// read at any time, and may change while they are read if somebody writes to the file.
#[derive(Debug)]
pub struct Mapping {
    pub(crate) base: *mut u8,
    pub(crate) length: usize,
    pub(crate) _kept: Arc<dyn MappedMemory>,
}

/// What keeps the memory of a [`Mapping`] mapped.
pub(crate) trait MappedMemory: Debug + Send + Sync {}

// SAFETY: a mapping is an address range; who may touch which bytes when is decided by its users.
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

    /// Says whether reads come in no order: a page that is not in memory is then read alone, and not with what lies around
    /// it, which may be 8 MiB. A hint.
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

    /// Asks the kernel for the memory of a range that is about to be written, so that whoever writes there first need
    /// not wait for it. A hint: where it fails the faults happen.
    pub fn populate(&self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.length as u64);
        if offset < end {
            // SAFETY: `base` is mapped for as long as this lives, and the end was cut to the length.
            unsafe { memory::populate(self.base, offset as usize, end as usize) };
        }
    }
}

/// Time.
pub trait Clock: Debug + Send + Sync {
    /// Time since a fixed but unknown moment; never goes back.
    fn monotonic(&self) -> Duration;
    /// Time of day, since 1970 in UTC. Cheap (a few nanoseconds) and coarse (milliseconds).
    fn wall(&self) -> Duration;
    /// A name for the time since the machine started: it has another one after each start. `None`: it cannot be told.
    fn boot(&self) -> Option<u128>;
}

/// Random numbers that others cannot guess (real) or that follow from a seed (simulated).
pub trait Random: Debug + Send + Sync {
    /// A number from all 64-bit numbers.
    fn next_u64(&self) -> u64;
}

/// Everything the engine needs from a machine.
#[derive(Clone, Debug)]
pub struct Platform {
    /// The store's directory.
    pub storage: Arc<dyn Storage>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Random numbers.
    pub random: Arc<dyn Random>,
}
