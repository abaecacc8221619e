//! The real machine: a directory of files through Linux system calls, its clocks and its random numbers.
//!
//! Calls interrupted by a signal are repeated; short reads and writes are continued. Errors keep the kind of the
//! kernel's error number, and name the failed call and the file. An exhausted quota, and a file that may not grow,
//! count as a full disk.
//!
//! A write beyond `RLIMIT_FSIZE` ends a process with the signal `SIGXFSZ`, unless the program handles it. A library
//! must not change how the program handles the signal. So this module makes no call that would cross the limit, and
//! returns the error instead.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags};

use crate::failure::{SizeLimit, failed};
use crate::file_system::writes_in_place;
use crate::fork::{Kept, keep_from_children};
use crate::interface::{
    Access, ByteLocks, Clock, File, FileStamp, Lock, LockGuard, LockMode, OpenMode, Platform, Random, Storage,
    WRITE_UNITS,
};
use crate::mapping::Mapping;
use crate::memory::{ALIGNMENT, Reservation};
use crate::name::check_name;
use crate::stores::{Stores, store_unit};

/// Bytes written at once by `write_zeros`. The page cache takes a write as one folio when it can. A later small write
/// into a large folio costs in proportion to the folio: 3 microseconds into 4 KiB, 17 into 4 MiB, on Linux 6.18.
const ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Reads that bypass the page cache begin and end at multiples of this, on the device and in memory.
const DIRECT_BYTES: u64 = 4096;

/// Memory that begins at a multiple of [`DIRECT_BYTES`].
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Aligned {
        let memory = vec![0; length + DIRECT_BYTES as usize];
        let start = memory.as_ptr().align_offset(DIRECT_BYTES as usize);
        Aligned { memory, start, length }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// The machine as a store in `directory` uses it. The directory must exist.
pub fn real_platform(directory: &Path) -> io::Result<Platform> {
    platform(directory, true)
}

/// The machine as a read-only store in `directory` uses it. Nothing can be changed, and only existing files can be
/// locked, in shared mode. For a directory without write permission, or on a read-only medium.
pub fn real_platform_read_only(directory: &Path) -> io::Result<Platform> {
    platform(directory, false)
}

fn platform(directory: &Path, writable: bool) -> io::Result<Platform> {
    let storage = RealStorage {
        directory: open_directory(directory)?,
        path: directory.to_owned(),
        writable,
    };
    Ok(Platform {
        storage: Arc::new(storage),
        clock: Arc::new(RealClock),
        random: Arc::new(RealRandom),
    })
}

/// A file without a name, in memory, that disappears with its last handle. It replaces what a process would share if it
/// could write to the store's directory.
pub fn memory_file() -> io::Result<Arc<dyn File>> {
    let name = "(memory)".to_string();
    let descriptor = rustix::fs::memfd_create("duramen", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| failed(error, "memfd_create", &name))?;
    Ok(Arc::new(RealFile::new(descriptor, name, true)))
}

/// Whether a path exists.
pub fn exists(path: &Path) -> bool {
    path.exists()
}

/// Whether a path is a directory.
pub fn is_directory(path: &Path) -> bool {
    path.is_dir()
}

/// Whether a path is a directory or inside it. Nothing needs to exist at the path.
pub fn is_within(path: &Path, directory: &Path) -> bool {
    let Ok(directory) = directory.canonicalize() else {
        return false;
    };
    let existing = |path: std::path::PathBuf| path.ancestors().find_map(|path| path.canonicalize().ok());
    let existing = std::path::absolute(path).ok().and_then(existing);
    existing.is_some_and(|path| path.starts_with(directory))
}

/// Whether a path is a directory that is not empty.
pub fn is_occupied(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
}

/// Creates a directory inside an existing directory, and makes its name survive power loss. The directory may already
/// exist.
pub fn create_directory(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if !(error.kind() == io::ErrorKind::AlreadyExists && path.is_dir()) => {
            return Err(io::Error::new(
                error.kind(),
                format!("create directory {}: {error}", path.display()),
            ));
        }
        // Another process may have just created an existing directory without having synced its name yet.
        _ => {}
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => return Ok(()),
    };
    let opened = open_directory(parent)?;
    retry_on_intr(|| rustix::fs::fsync(&opened)).map_err(|error| failed(error, "sync directory", parent.display()))
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()))
        .map_err(|error| failed(error, "open directory", path.display()))
}

/// `RLIMIT_FSIZE` as this process last read it. It is read again whenever a file is opened or grows, and before a write
/// is refused.
static FILE_BYTES_MAX: AtomicU64 = AtomicU64::new(u64::MAX);

fn ask_for_size_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    let limit = limit.current.unwrap_or(u64::MAX);
    // Relaxed: no other data depends on the number.
    FILE_BYTES_MAX.store(limit, Ordering::Relaxed);
    limit
}

#[derive(Debug)]
struct RealStorage {
    /// All names are resolved here, so a change of the process's working directory has no effect.
    directory: OwnedFd,
    path: PathBuf,
    writable: bool,
}

impl RealStorage {
    fn open_fd(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        check_name(name)?;
        let mode = Mode::from_raw_mode(0o666);
        retry_on_intr(|| rustix::fs::openat(&self.directory, name, flags | OFlags::CLOEXEC, mode))
            .map_err(|error| failed(error, "open", self.path.join(name).display()))
    }

    /// Size of a block of the file system; 0: unknown.
    fn block_bytes(&self) -> u64 {
        rustix::fs::fstatvfs(&self.directory).map_or(0, |found| found.f_frsize)
    }

    fn check_writable(&self, call: &str, name: &str) -> io::Result<()> {
        if self.writable {
            return Ok(());
        }
        let message = format!("{call} {name}: {} is open for reading only", self.path.display());
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, message))
    }
}

impl Storage for RealStorage {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR,
            OpenMode::Create => OFlags::RDWR | OFlags::CREATE,
        };
        let writable = mode != OpenMode::Read;
        if writable {
            self.check_writable("open", name)?;
        }
        let descriptor = self.open_fd(name, flags)?;
        Ok(Arc::new(RealFile::new(descriptor, name.to_owned(), writable)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let context = |error| failed(error, "list", self.path.display());
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.directory).map_err(context)? {
            let entry = entry.map_err(context)?;
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                let status = rustix::fs::statat(&self.directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                kind = FileType::from_raw_mode(status.map_err(context)?.st_mode);
            }
            // Names that are not text do not belong to the store.
            if kind == FileType::RegularFile
                && let Ok(name) = entry.file_name().to_str()
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        self.check_writable("remove", name)?;
        retry_on_intr(|| rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()))
            .map_err(|error| failed(error, "remove", name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.check_writable("rename", from)?;
        retry_on_intr(|| rustix::fs::renameat(&self.directory, from, &self.directory, to))
            .map_err(|error| failed(error, "rename", format_args!("{from} to {to}")))
    }

    fn sync(&self) -> io::Result<()> {
        retry_on_intr(|| rustix::fs::fsync(&self.directory))
            .map_err(|error| failed(error, "sync directory", self.path.display()))
    }

    fn lock(&self, name: &str, mode: LockMode) -> io::Result<Option<Lock>> {
        let (kind, flags) = match mode {
            LockMode::Shared if !self.writable => (libc::F_RDLCK, OFlags::RDONLY),
            LockMode::Shared => (libc::F_RDLCK, OFlags::RDWR | OFlags::CREATE),
            LockMode::Exclusive => (libc::F_WRLCK, OFlags::RDWR | OFlags::CREATE),
        };
        if mode == LockMode::Exclusive {
            self.check_writable("lock", name)?;
        }
        // The lock belongs to the open file description, so each lock opens a new description. Two locks of one process
        // then exclude each other like those of two processes.
        let descriptor = keep_from_children(|| self.open_fd(name, flags))?;
        match set_lock(&descriptor, kind, WHOLE_FILE) {
            Ok(()) => Ok(Some(Lock {
                _held: Box::new(RealLock { descriptor }),
            })),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
            Err(error) => Err(failed(error, "lock", name)),
        }
    }

    fn byte_locks(&self, name: &str) -> io::Result<Box<dyn ByteLocks>> {
        self.check_writable("lock", name)?;
        Ok(Box::new(RealByteLocks {
            descriptor: keep_from_children(|| self.open_fd(name, OFlags::RDWR | OFlags::CREATE))?,
            name: name.to_owned(),
        }))
    }

    fn write_unit(&self) -> u64 {
        // A device may have larger sectors than the file system has blocks. 4 KiB is the largest common size.
        self.block_bytes()
            .max(4096)
            .checked_next_power_of_two()
            .map_or(*WRITE_UNITS.end(), |unit| unit.min(*WRITE_UNITS.end()))
    }

    fn store_unit(&self) -> Option<u64> {
        store_unit(self.block_bytes()).filter(|_| self.writes_in_place())
    }

    fn writes_in_place(&self) -> bool {
        writes_in_place(&self.path).unwrap_or(false)
    }

    fn stamp(&self, name: &str) -> io::Result<Option<FileStamp>> {
        check_name(name)?;
        let status = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let status = status.map_err(|error| failed(error, "stat", name))?;
        Ok(Some(FileStamp {
            file: (status.st_dev, status.st_ino),
            length: status.st_size as u64,
            // The change time, which no program can set. The type of the second number depends on the C library.
            changed: (status.st_ctime as u64, status.st_ctime_nsec as _),
        }))
    }

    fn file_mode(&self) -> u32 {
        let status = rustix::fs::fstat(&self.directory);
        status.map_or(0o600, |status| status.st_mode & 0o666 | 0o600)
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// First byte and number of bytes of a lock. 0 bytes: to the end of the file and beyond.
type LockedRange = (i64, i64);
const WHOLE_FILE: LockedRange = (0, 0);

/// Takes or releases a lock for an open file description, without waiting.
fn set_lock(descriptor: &OwnedFd, kind: libc::c_int, range: LockedRange) -> Result<(), Errno> {
    lock_call(descriptor, libc::F_OFD_SETLK, kind, range).map(drop)
}

/// Makes one lock call for an open file description. Returns the request as the kernel left it.
fn lock_call(
    descriptor: &OwnedFd,
    command: libc::c_int,
    kind: libc::c_int,
    (start, length): LockedRange,
) -> Result<libc::flock, Errno> {
    // SAFETY: `flock` is a plain structure for which all zeros is a value: process 0 as required.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = start;
    request.l_len = length;
    retry_on_intr(|| {
        // SAFETY: the descriptor is open and `request` outlives the call.
        match unsafe { libc::fcntl(descriptor.as_raw_fd(), command, &mut request) } {
            -1 => Err(last_error()),
            _ => Ok(()),
        }
    })?;
    Ok(request)
}

/// The error of the libc call that just failed.
fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[derive(Debug)]
struct RealLock {
    descriptor: Kept,
}

impl LockGuard for RealLock {}

impl Drop for RealLock {
    fn drop(&mut self) {
        // Closing alone is not enough: a thread that is just starting another program has a copy of the descriptor for
        // a moment. In a forked child the descriptor leads nowhere, and this does nothing.
        let _ = set_lock(&self.descriptor, libc::F_UNLCK, WHOLE_FILE);
    }
}

/// An open file description, to which the locks belong.
#[derive(Debug)]
struct RealByteLocks {
    descriptor: Kept,
    name: String,
}

impl ByteLocks for RealByteLocks {
    fn take(&self, byte: u64) -> io::Result<bool> {
        match set_lock(&self.descriptor, libc::F_WRLCK, (byte as i64, 1)) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(error) => Err(failed(error, "lock", &self.name)),
        }
    }

    fn release(&self, byte: u64) -> io::Result<()> {
        set_lock(&self.descriptor, libc::F_UNLCK, (byte as i64, 1)).map_err(|error| failed(error, "unlock", &self.name))
    }

    fn is_taken(&self, byte: u64) -> io::Result<bool> {
        let found = lock_call(&self.descriptor, libc::F_OFD_GETLK, libc::F_WRLCK, (byte as i64, 1))
            .map_err(|error| failed(error, "look for locks of", &self.name))?;
        Ok(i32::from(found.l_type) != libc::F_UNLCK)
    }
}

impl Drop for RealByteLocks {
    fn drop(&mut self) {
        let _ = set_lock(&self.descriptor, libc::F_UNLCK, WHOLE_FILE);
    }
}

#[derive(Debug)]
pub(crate) struct RealFile {
    descriptor: OwnedFd,
    name: String,
    writable: bool,
    /// Length that the file has had, as far as this handle knows: a write that ends below it does not extend the file.
    known_bytes: AtomicU64,
    /// Created by the first store. `None`: no addresses are left for it.
    stores: OnceLock<Option<Stores>>,
}

impl RealFile {
    pub(crate) fn new(descriptor: OwnedFd, name: String, writable: bool) -> RealFile {
        if writable {
            ask_for_size_limit();
        }
        RealFile {
            descriptor,
            name,
            writable,
            known_bytes: AtomicU64::new(0),
            stores: OnceLock::new(),
        }
    }

    /// Refuses a call that would cross the limit for the size of a file. `may_be_inside`: a call that does not extend
    /// the file may end beyond the limit. The kernel refuses writes there, but neither allocating nor cutting.
    ///
    /// The limit may be lowered below the length of open files. This is noticed when such a file grows.
    #[inline]
    fn check_size(&self, call: &str, end: u64, may_be_inside: bool) -> io::Result<()> {
        let is_known = end <= self.known_bytes.load(Ordering::Relaxed);
        if is_known && end <= FILE_BYTES_MAX.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.check_growth(call, end, may_be_inside)
    }

    #[cold]
    fn check_growth(&self, call: &str, end: u64, may_be_inside: bool) -> io::Result<()> {
        let limit = ask_for_size_limit();
        if end <= limit || may_be_inside && end <= self.len()? {
            return Ok(());
        }
        let message = format!(
            "{call} {} up to {end} bytes: this process may write {limit} bytes to a file (RLIMIT_FSIZE; raise it with \
             `ulimit -f`)",
            self.name
        );
        Err(io::Error::new(io::ErrorKind::StorageFull, SizeLimit(message)))
    }

    fn reaches(&self, end: u64) {
        self.known_bytes.fetch_max(end, Ordering::Relaxed);
    }

    fn status(&self) -> io::Result<rustix::fs::Stat> {
        rustix::fs::fstat(&self.descriptor).map_err(|error| failed(error, "stat", &self.name))
    }

    fn check_writable(&self, call: &str) -> io::Result<()> {
        if self.writable {
            return Ok(());
        }
        let message = format!("{call} {}: the file is open for reading only", self.name);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }
}

impl File for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.status()?.st_size as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            let position = offset + filled as u64;
            let rest = &mut buffer[filled..];
            match retry_on_intr(|| rustix::io::pread(&self.descriptor, &mut *rest, position)) {
                Ok(0) => {
                    let message = format!("read {}: the file ends before offset {}", self.name, position + 1);
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
                }
                Ok(count) => filled += count,
                Err(error) => return Err(failed(error, "read", format_args!("{} at {position}", self.name))),
            }
        }
        Ok(())
    }

    fn read_device(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        assert!(offset.is_multiple_of(DIRECT_BYTES) && (buffer.len() as u64).is_multiple_of(DIRECT_BYTES));
        // A separate description: on this descriptor the flag would also make writes bypass the kernel's page cache.
        let path = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let Ok(direct) = retry_on_intr(|| rustix::fs::openat(CWD, &path, flags, Mode::empty())) else {
            return Ok(false);
        };
        let mut filled = 0;
        let mut aligned = Aligned::new(buffer.len());
        while filled < buffer.len() {
            let position = offset + filled as u64;
            let rest = &mut aligned.bytes_mut()[filled..];
            match retry_on_intr(|| rustix::io::pread(&direct, &mut *rest, position)) {
                // Less than a block is left of the file.
                Ok(count) if !(count as u64).is_multiple_of(DIRECT_BYTES) || count == 0 => {
                    filled += count;
                    break;
                }
                Ok(count) => filled += count,
                Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(false),
                Err(error) => return Err(failed(error, "read", format_args!("{} at {position}", self.name))),
            }
        }
        buffer[..filled].copy_from_slice(&aligned.bytes_mut()[..filled]);
        buffer[filled..].fill(0);
        Ok(true)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable("write")?;
        let end = offset + bytes.len() as u64;
        self.check_size("write", end, false)?;
        let mut written = 0;
        while written < bytes.len() {
            let position = offset + written as u64;
            match retry_on_intr(|| rustix::io::pwrite(&self.descriptor, &bytes[written..], position)) {
                Ok(0) => {
                    let message = format!("write {} at {position}: the kernel took no bytes", self.name);
                    return Err(io::Error::new(io::ErrorKind::WriteZero, message));
                }
                Ok(count) => written += count,
                Err(error) => return Err(failed(error, "write", format_args!("{} at {position}", self.name))),
            }
        }
        self.reaches(end);
        Ok(())
    }

    #[inline]
    fn store_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable("store")?;
        let Some(stores) = self.stores.get_or_init(Stores::new) else {
            return self.write_at(bytes, offset);
        };
        if !stores.store(bytes, offset) {
            self.write_at(bytes, offset)?;
            stores.written(&self.descriptor, offset + bytes.len() as u64);
        }
        Ok(())
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.check_writable("allocate")?;
        if length == 0 {
            return Ok(());
        }
        self.check_size("allocate", offset + length, true)?;
        match retry_on_intr(|| rustix::fs::fallocate(&self.descriptor, FallocateFlags::empty(), offset, length)) {
            Ok(()) => {
                self.reaches(offset + length);
                Ok(())
            }
            // Fallback for file systems without support: zeros beyond the end take blocks as well. Holes before the end
            // stay, because they cannot be told from data that another thread or process writes at this moment.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let (length_now, end) = (self.len()?, offset + length);
                self.write_zeros(length_now, end.saturating_sub(length_now))
            }
            Err(error) => Err(failed(error, "allocate", format_args!("{} at {offset}", self.name))),
        }
    }

    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let piece = (length - done).min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..piece as usize], offset + done)?;
            done += piece;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.check_writable("truncate")?;
        self.check_growth("truncate", length, true)?;
        self.known_bytes.store(0, Ordering::Relaxed);
        if let Some(Some(stores)) = self.stores.get() {
            stores.forget();
        }
        retry_on_intr(|| rustix::fs::ftruncate(&self.descriptor, length))
            .map_err(|error| failed(error, "truncate", format_args!("{} to {length}", self.name)))
    }

    fn sync_data(&self) -> io::Result<()> {
        retry_on_intr(|| rustix::fs::fdatasync(&self.descriptor)).map_err(|error| failed(error, "sync", &self.name))
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
            return;
        };
        let flags = libc::SYNC_FILE_RANGE_WRITE;
        // SAFETY: the descriptor is open; the call takes no memory. It is a hint, so its outcome does not matter.
        unsafe { libc::sync_file_range(self.descriptor.as_raw_fd(), offset, length, flags) };
    }

    fn preload_in_large_pieces(&self, offset: u64, length: u64) {
        let start = offset.next_multiple_of(ALIGNMENT as u64);
        let end = (offset + length) / ALIGNMENT as u64 * ALIGNMENT as u64;
        if start < end {
            crate::memory::preload(&self.descriptor, start, (end - start) as usize);
        }
    }

    fn discard(&self, offset: u64, length: u64) {
        if self.writable && length > 0 {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = retry_on_intr(|| rustix::fs::fallocate(&self.descriptor, flags, offset, length));
        }
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        // The unit is 512 bytes whatever the file system's blocks are.
        Ok(self.status()?.st_blocks as u64 * 512)
    }

    fn map(&self, reserve: u64, access: Access) -> io::Result<Mapping> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        if access == Access::ReadWrite {
            self.check_writable("map")?;
        }
        let reservation = Reservation::inaccessible(reserve)?;
        let (base, length) = (reservation.base(), reservation.length());
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range replaced is exactly the range that `reservation` owns, and no thread uses it yet.
        unsafe { rustix::mm::mmap(base.cast(), length, protection, flags, &self.descriptor, 0) }
            .map_err(|error| failed(error, "map", format_args!("{length} bytes of {}", self.name)))?;
        Ok(Mapping {
            base,
            length,
            _kept: Arc::new(reservation),
        })
    }
}

#[derive(Debug)]
struct RealClock;

impl Clock for RealClock {
    fn monotonic(&self) -> Duration {
        read(rustix::time::ClockId::Monotonic)
    }

    fn wall(&self) -> Duration {
        // A load from a page that the kernel updates at each tick.
        read(rustix::time::ClockId::RealtimeCoarse)
    }

    fn boot(&self) -> Option<u128> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&id.trim().replace('-', ""), 16).ok()
    }
}

fn read(clock: rustix::time::ClockId) -> Duration {
    let now = rustix::time::clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[derive(Debug)]
struct RealRandom;

impl Random for RealRandom {
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        let count = retry_on_intr(|| rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()))
            .expect("the kernel gives random numbers");
        assert_eq!(count, bytes.len(), "requests of up to 256 bytes are never cut short");
        u64::from_le_bytes(bytes)
    }
}
