//! The traits of the crate on top of a simulated disk.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;

use crate::interface::{
    Access, ByteLocks, Clock, File, FileStamp, Lock, LockGuard, LockMode, OpenMode, Platform, Random, Storage,
};
use crate::mapping::Mapping;
use crate::memory::ALIGNMENT;

use super::directory::InodeId;
use super::disk::{Disk, SharedDisk, locked};
use super::process::SimProcess;

/// The traits over one disk and one clock, for one process.
pub(super) fn platform(disk: &SharedDisk, clock: &Arc<SimClock>, process: SimProcess) -> Platform {
    let random = SimRandom {
        numbers: Mutex::new(locked(disk).random.fork()),
    };
    let disk = DiskOfProcess {
        disk: Arc::clone(disk),
        process: Arc::new(process),
    };
    Platform {
        storage: Arc::new(SimStorage { disk }),
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        random: Arc::new(random),
    }
}

/// A disk as one process uses it.
#[derive(Clone, Debug)]
struct DiskOfProcess {
    disk: SharedDisk,
    process: Arc<SimProcess>,
}

impl DiskOfProcess {
    fn call<T>(&self, call: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        self.process.call(&self.disk, call)
    }

    /// Locks the disk for what even a dead process does with its open files and locks.
    fn locked(&self) -> MutexGuard<'_, Disk> {
        locked(&self.disk)
    }
}

#[derive(Debug)]
struct SimStorage {
    disk: DiskOfProcess,
}

impl Storage for SimStorage {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let inode = self.disk.call(|disk| disk.open(name, mode))?;
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(SimFile {
            disk: self.disk.clone(),
            inode,
            name: name.to_owned(),
            writable,
        }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.call(|disk| disk.list())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.call(|disk| disk.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.call(|disk| disk.rename(from, to))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call(|disk| disk.sync_directory())
    }

    fn lock(&self, name: &str, mode: LockMode) -> io::Result<Option<Lock>> {
        let is_taken = self.disk.call(|disk| disk.lock(name, mode))?;
        let guard = || SimLock {
            disk: self.disk.clone(),
            name: name.to_owned(),
            mode,
        };
        Ok(is_taken.then(|| Lock {
            _held: Box::new(guard()),
        }))
    }

    fn byte_locks(&self, name: &str) -> io::Result<Box<dyn ByteLocks>> {
        let holder = self.disk.call(|disk| disk.byte_holder(name))?;
        self.disk.process.has_byte_locks(name, holder);
        Ok(Box::new(SimByteLocks {
            disk: self.disk.clone(),
            name: name.to_owned(),
            holder,
        }))
    }

    fn write_unit(&self) -> u64 {
        self.disk.locked().write_unit
    }

    fn store_unit(&self) -> Option<u64> {
        Some(self.disk.locked().store_unit())
    }

    fn stamp(&self, name: &str) -> io::Result<Option<FileStamp>> {
        self.disk.call(|disk| disk.stamp(name)).map(Some)
    }

    fn path(&self) -> &Path {
        Path::new("/simulated")
    }
}

#[derive(Debug)]
struct SimByteLocks {
    disk: DiskOfProcess,
    name: String,
    holder: u64,
}

impl ByteLocks for SimByteLocks {
    fn take(&self, byte: u64) -> io::Result<bool> {
        self.disk.call(|disk| disk.take_byte(&self.name, byte, self.holder))
    }

    fn release(&self, byte: u64) -> io::Result<()> {
        self.disk
            .locked()
            .free_bytes(&self.name, self.holder, |found| found == byte);
        Ok(())
    }

    fn is_taken(&self, byte: u64) -> io::Result<bool> {
        self.disk.call(|disk| disk.is_byte_taken(&self.name, byte, self.holder))
    }
}

impl Drop for SimByteLocks {
    fn drop(&mut self) {
        self.disk.locked().free_bytes(&self.name, self.holder, |_| true);
    }
}

#[derive(Debug)]
struct SimLock {
    disk: DiskOfProcess,
    name: String,
    mode: LockMode,
}

impl LockGuard for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.locked().unlock(&self.name, self.mode);
    }
}

#[derive(Debug)]
struct SimFile {
    disk: DiskOfProcess,
    inode: InodeId,
    /// The name under which it was opened.
    name: String,
    writable: bool,
}

impl SimFile {
    fn check_writable(&self) -> io::Result<()> {
        if self.writable {
            return Ok(());
        }
        let message = format!("{} is open for reading only", self.name);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.disk.locked().close(self.inode);
    }
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.disk.call(|disk| Ok(disk.running_inode(self.inode)?.length()))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.call(|disk| {
            let inode = disk.running_inode(self.inode)?;
            if !buffer.is_empty() && offset.saturating_add(buffer.len() as u64) > inode.length() {
                let message = format!("read {}: the file ends at {}", self.name, inode.length());
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            inode.read(offset, buffer);
            Ok(())
        })
    }

    fn read_device(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        self.disk.call(|disk| {
            disk.running_inode(self.inode)?.read_device(offset, buffer);
            Ok(true)
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        self.disk.call(|disk| disk.write(self.inode, &self.name, bytes, offset))
    }

    fn store_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        self.disk.call(|disk| disk.store(self.inode, &self.name, bytes, offset))
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.check_writable()?;
        self.disk
            .call(|disk| disk.allocate(self.inode, &self.name, offset, length))
    }

    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()> {
        self.check_writable()?;
        self.disk
            .call(|disk| disk.write_zeros(self.inode, &self.name, offset, length))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.check_writable()?;
        self.disk.call(|disk| disk.set_length(self.inode, &self.name, length))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.call(|disk| disk.sync_file(self.inode, &self.name))
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        self.disk.locked().note_writeback(&self.name, offset, length);
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.disk
            .call(|disk| Ok(disk.running_inode(self.inode)?.allocated_bytes()))
    }

    fn map(&self, reserve: u64, access: Access) -> io::Result<Mapping> {
        if access == Access::ReadWrite {
            self.check_writable()?;
        }
        let memory = self.disk.call(|disk| {
            disk.running_inode(self.inode)?
                .map(reserve, access == Access::ReadWrite)
        })?;
        // The memory may be longer. The mapping shows only the requested length, as on the real machine.
        let length = (reserve as usize).next_multiple_of(ALIGNMENT);
        assert!(length <= memory.length());
        Ok(Mapping {
            base: memory.base(),
            length,
            _kept: memory,
        })
    }
}

/// A clock that moves only when a test advances it.
#[derive(Debug)]
pub(super) struct SimClock {
    monotonic_nanos: AtomicU64,
    /// Time of day when the monotonic clock was zero, since 1970.
    wall_at_zero_nanos: AtomicU64,
    /// Number of starts of the machine.
    pub(super) boot: u64,
}

impl SimClock {
    pub(super) fn new(monotonic: Duration, wall: Duration, boot: u64) -> SimClock {
        let monotonic_nanos = AtomicU64::new(monotonic.as_nanos() as u64);
        SimClock {
            monotonic_nanos,
            wall_at_zero_nanos: AtomicU64::new(wall.saturating_sub(monotonic).as_nanos() as u64),
            boot,
        }
    }

    pub(super) fn set_wall(&self, wall: Duration) {
        let at_zero = wall.saturating_sub(self.monotonic());
        self.wall_at_zero_nanos
            .store(at_zero.as_nanos() as u64, Ordering::SeqCst);
    }

    pub(super) fn advance(&self, duration: Duration) {
        self.monotonic_nanos
            .fetch_add(duration.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_nanos.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Duration {
        Duration::from_nanos(self.wall_at_zero_nanos.load(Ordering::SeqCst)) + self.monotonic()
    }

    fn boot(&self) -> Option<u128> {
        Some(self.boot.into())
    }
}

/// Numbers that follow from the disk's seed.
#[derive(Debug)]
struct SimRandom {
    numbers: Mutex<Rng>,
}

impl Random for SimRandom {
    fn next_u64(&self) -> u64 {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).u64(..)
    }
}
