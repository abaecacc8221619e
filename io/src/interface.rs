//! What the engine needs from a machine: a directory of files, memory mapped from them, time and random numbers.
//!
//! Every call may fail, and the simulated implementation makes each of them fail in turn. Offsets and lengths are in
//! bytes. Nothing here buffers: `write_at` reaches the kernel before it returns, `sync_data` reaches the device.

use std::fmt::Debug;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::mapping::Mapping;

/// How [`Storage::open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist; it can only be read.
    Read,
    /// The file must exist; it can be read and written.
    Write,
    /// The file is created when it is missing; it can be read and written.
    Create,
}

/// The values of [`Storage::write_unit`]: powers of two from a sector to the largest block of a file system.
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
    /// Takes an advisory lock on a file, which is created when missing. The lock is held until the returned guard is
    /// dropped or the process dies. It excludes other processes and other guards of this process alike. `Ok(None)`:
    /// another holder has the lock in a mode that excludes `mode`.
    fn lock(&self, name: &str, mode: LockMode) -> io::Result<Option<Lock>>;
    /// Opens a file, which is created when missing, to lock single bytes of it. Byte locks exclude the
    /// [`Storage::lock`]s that other holders have on the file.
    fn byte_locks(&self, name: &str) -> io::Result<Box<dyn ByteLocks>>;
    /// Bytes that the machine writes to the device as a unit when any of them changes: a block of the file system. A
    /// power cut may destroy any byte of a unit that is being written, including bytes that do not change. The value is
    /// in [`WRITE_UNITS`].
    fn write_unit(&self) -> u64;
    /// Bytes that the machine writes to the device as a unit after [`File::store_at`] changed any of them: a multiple
    /// of the write unit. A power cut may destroy any byte of it, as with [`Storage::write_unit`]. `None`: this storage
    /// has no stores.
    fn store_unit(&self) -> Option<u64> {
        None
    }
    /// Whether the file system overwrites existing bytes of a file in place. Where it does not, a store to a mapped
    /// file may need a new block, and ends the process with `SIGBUS` when the disk is full.
    fn writes_in_place(&self) -> bool {
        true
    }
    /// Identifies a file and its state: it differs between files, and changes when the file changes. `None`: the
    /// machine cannot tell.
    fn stamp(&self, name: &str) -> io::Result<Option<FileStamp>> {
        let _ = name;
        Ok(None)
    }
    /// Permissions for a file outside the directory, so that the same users can use it as the files inside.
    fn file_mode(&self) -> u32 {
        0o600
    }
    /// The path of the directory, for messages.
    fn path(&self) -> &Path;
}

/// Identity and state of a file: see [`Storage::stamp`]. It stays equal until calls change, cut, replace or copy the
/// file. A store to a mapping may leave it unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// The file: its file system, and its number there.
    pub file: (u64, u64),
    /// Length in bytes.
    pub length: u64,
    /// Differs after each change by a call. It does not depend only on a modification time that any program can set.
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

/// A holder of advisory locks on single bytes of a file. The bytes need not exist. The kernel frees the locks when the
/// holder is dropped or its process dies, in whatever container it runs, and at no other time. A forked child does not
/// keep them.
pub trait ByteLocks: Debug + Send + Sync {
    /// Takes the lock of a byte, in exclusive mode. `false`: another holder has it.
    fn take(&self, byte: u64) -> io::Result<bool>;
    /// Releases the lock of a byte.
    fn release(&self, byte: u64) -> io::Result<()>;
    /// Whether another holder has the lock of a byte.
    fn is_taken(&self, byte: u64) -> io::Result<bool>;
}

/// A held advisory lock. Dropping it releases the lock.
#[derive(Debug)]
pub struct Lock {
    pub(crate) _held: Box<dyn LockGuard>,
}

/// What keeps a lock: an open file description, or an entry in the simulated disk.
pub(crate) trait LockGuard: Debug + Send + Sync {}

/// An open file.
#[allow(clippy::len_without_is_empty)] // No caller treats an empty file specially.
pub trait File: Debug + Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buffer` from `offset`. Reaching the end of the file first is an `UnexpectedEof` error.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Fills `buffer` from `offset` with the device's bytes, bypassing the kernel's page cache. The two differ after a
    /// failed write to the device: the kernel reports the failure once and then treats the bytes as written. Bytes at
    /// the end of the file that the device does not have read as zeros. `offset` and the length of `buffer` are
    /// multiples of 4 KiB. `false`: the file system does not support this, and `buffer` is unchanged.
    fn read_device(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool>;
    /// Writes all of `bytes` at `offset`, extending the file when needed.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Writes like [`File::write_at`], for short consecutive writes by one caller at a time. The range must be in a
    /// part of the file that was filled before. With a [`Storage::store_unit`], most of these writes are stores to a
    /// mapping; no program may cut the file meanwhile. The errors are those of `write_at`. A process that dies while it
    /// writes leaves a prefix of the bytes.
    fn store_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }
    /// Gives `offset..offset + length` real blocks, so that writing there can no longer find the disk full. The file
    /// grows to cover the range. Bytes that were never written read as zeros. A full disk is a `StorageFull` error.
    fn allocate(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Writes zeros to `offset..offset + length`, extending the file. Unlike [`File::allocate`], this really writes the
    /// blocks: a later small write and its sync then touch no metadata, which halves the cost of a sync.
    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Cuts or extends the file to `length`.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Returns once everything written so far, and the length, survives power loss.
    fn sync_data(&self) -> io::Result<()>;
    /// Asks the kernel to start writing a range back. This is a hint: it guarantees nothing and reports no errors.
    fn start_writeback(&self, offset: u64, length: u64);
    /// Brings a range into the page cache that is allocated but was never written, in pieces of 2 MiB where possible. A
    /// mapping then needs one page table entry for each piece instead of 512. A random read through it saves most of
    /// the address translation. This is a hint: where it fails the pieces are small.
    fn preload_in_large_pieces(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
    /// Returns the blocks of an unused range to the file system. Later reads there return the old bytes, or zeros. This
    /// is a hint: where it is not possible the blocks stay.
    fn discard(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
    /// Bytes that the file occupies on the device.
    fn allocated_bytes(&self) -> io::Result<u64>;
    /// Maps the file into memory, shared with every other mapping and with `write_at`. The mapping takes `reserve`
    /// bytes of address space, aligned to 2 MiB, so that the file can grow under it. Memory beyond the end of the file
    /// must not be touched.
    fn map(&self, reserve: u64, access: Access) -> io::Result<Mapping>;
}

/// Allowed uses of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// The clocks of a machine.
pub trait Clock: Debug + Send + Sync {
    /// Time since a fixed but unknown moment; never goes back.
    fn monotonic(&self) -> Duration;
    /// Time of day, since 1970 in UTC. Cheap (a few nanoseconds) and coarse (milliseconds).
    fn wall(&self) -> Duration;
    /// Identifies the current boot of the machine: each start has another value. `None`: the machine cannot tell.
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
