//! Files outside a store's directory that processes share as memory, for directories on copy-on-write file systems.
//!
//! On such a file system a store to a mapped file needs a new block whenever the old block is shared with a copy, or
//! always. On a full disk the store ends the process with `SIGBUS`. File systems that write in place keep a file's
//! blocks.
//!
//! Each process that has such a file open holds a shared lock on it. The lock distinguishes a file that a dead process
//! left from a file in use, even if the directory that names it is a copy of another directory.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::failure::failed;
use crate::interface::File;
use crate::real::RealFile;

/// Creates a file that processes share as memory. Nothing may exist at `path`. Returns the file with its inode number.
pub fn create_shared_file(path: &Path, mode: u32) -> io::Result<(Arc<dyn File>, u64)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode);
    let descriptor = retry_on_intr(|| rustix::fs::openat(CWD, path, flags, mode))
        .map_err(|error| failed(error, "create", path.display()))?;
    // The umask would remove permissions that other users of the store need.
    retry_on_intr(|| rustix::fs::fchmod(&descriptor, mode))
        .map_err(|error| failed(error, "change permissions of", path.display()))?;
    held(descriptor, path)
}

/// Opens a file that [`create_shared_file`] created. Returns it with its inode number.
pub fn open_shared_file(path: &Path) -> io::Result<(Arc<dyn File>, u64)> {
    held(open(path)?, path)
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()));
    opened.map_err(|error| failed(error, "open", path.display()))
}

fn held(descriptor: OwnedFd, path: &Path) -> io::Result<(Arc<dyn File>, u64)> {
    retry_on_intr(|| rustix::fs::flock(&descriptor, FlockOperation::LockShared))
        .map_err(|error| failed(error, "lock", path.display()))?;
    let status = rustix::fs::fstat(&descriptor).map_err(|error| failed(error, "stat", path.display()))?;
    let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    // Another process may have removed the file since it was opened.
    if !is_file || status.st_nlink == 0 {
        return Err(failed(Errno::NOENT, "open", path.display()));
    }
    let file = RealFile::new(descriptor, path.display().to_string(), true);
    Ok((Arc::new(file), status.st_ino))
}

/// Removes a file that processes shared as memory, unless a process still uses it. A file with another inode than
/// `inode` is left alone.
pub fn remove_if_unused(path: &Path, inode: u64) -> io::Result<()> {
    let descriptor = open(path)?;
    let status = rustix::fs::fstat(&descriptor).map_err(|error| failed(error, "stat", path.display()))?;
    let is_unused = || rustix::fs::flock(&descriptor, FlockOperation::NonBlockingLockExclusive).is_ok();
    if status.st_ino == inode && is_unused() {
        remove_shared_file(path)?;
    }
    Ok(())
}

/// Removes a file that no process shares any more.
pub fn remove_shared_file(path: &Path) -> io::Result<()> {
    retry_on_intr(|| rustix::fs::unlinkat(CWD, path, AtFlags::empty()))
        .map_err(|error| failed(error, "remove", path.display()))
}
