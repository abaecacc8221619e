//! The region of a store whose directory is on a file system that copies on write: its memory is a file elsewhere, and
//! the file `shared` in the directory says where.
//!
//! ```text
//! 0    magic number
//! 8    inode number of the file with the memory
//! 16   length of its path
//! 20   its path
//! ..   CRC-32C of all that
//! ```
//!
//! The file is short, and read and written by calls. It is never mapped.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duramen_io::{File, OpenMode, Platform};

use super::{REGION_FILE, full_or_io};
use crate::error::{Error, Reason, Result};

const MAGIC: [u8; 8] = *b"durelse\x01";
const HEAD_BYTES: usize = 20;
/// The longest path that Linux knows, and more than the rest.
const POINTER_BYTES_MAX: u64 = 4096 + 64;
/// Every file with the memory of a region is named so, with random digits behind.
const NAME: &str = "duramen-";

/// Where the memory of a region is that is not in the store's directory.
#[derive(Debug)]
pub(super) struct Pointer {
    pub(super) path: PathBuf,
    inode: u64,
}

/// The memory of a region elsewhere, as the region keeps it.
#[derive(Debug)]
pub(super) struct Elsewhere {
    path: PathBuf,
    /// The file in the store's directory that says where.
    pointer: Arc<dyn File>,
}

impl Elsewhere {
    /// Removes it: this process is the last one.
    pub(super) fn remove(&self) {
        // The next opening of the store removes what is left.
        let _ = duramen_io::remove_shared_file(&self.path);
        let _ = self.pointer.set_len(0);
    }

    /// As [`full_or_io`], but says where there is no room, and what helps.
    pub(super) fn full_or_io(&self, what: &'static str, needed: u64, error: std::io::Error) -> Error {
        full_at(&self.path, what, needed, error)
    }
}

fn full_at(path: &Path, what: &'static str, needed: u64, error: std::io::Error) -> Error {
    if error.kind() != std::io::ErrorKind::StorageFull || duramen_io::is_size_limit(&error) {
        return full_or_io(what, needed, error);
    }
    let directory = path.parent().unwrap_or(path).display();
    let cause = format!(
        "{error} ({needed} more bytes); the processes that have the store open share memory in {directory}: make that \
         larger (in Docker with `--shm-size`), or set `Options::region_directory`"
    );
    Reason::NoRoom { what, cause }.into()
}

impl Pointer {
    fn encode(&self) -> Vec<u8> {
        let path = self.path.as_os_str().as_bytes();
        let mut bytes = [
            &MAGIC[..],
            &self.inode.to_le_bytes(),
            &(path.len() as u32).to_le_bytes(),
            path,
        ]
        .concat();
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Pointer> {
        let (body, sum) = bytes.split_last_chunk()?;
        let (head, path) = body.split_at_checked(HEAD_BYTES)?;
        let (inode, length) = head[MAGIC.len()..].split_first_chunk()?;
        let is_whole = head.starts_with(&MAGIC)
            && u32::from_le_bytes(length.try_into().ok()?) as usize == path.len()
            && crc32c::crc32c(body) == u32::from_le_bytes(*sum);
        let path = PathBuf::from(OsStr::from_bytes(path));
        let is_ours = path.is_absolute() && path.file_name()?.as_bytes().starts_with(NAME.as_bytes());
        let inode = u64::from_le_bytes(*inode);
        (is_whole && is_ours).then_some(Pointer { path, inode })
    }

    /// What the file in the store's directory says. `None`: it is the region itself, or not whole.
    pub(super) fn read(platform: &Platform) -> std::io::Result<Option<Pointer>> {
        let file = platform.storage.open(REGION_FILE, OpenMode::Read)?;
        let length = file.len()?;
        if length > POINTER_BYTES_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; length as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(Pointer::decode(&bytes))
    }

    /// Opens the memory.
    ///
    /// # Errors
    /// [`Reason::MemoryElsewhere`]: this process does not see it.
    pub(super) fn open(self, platform: &Platform, path: &str) -> Result<(Arc<dyn File>, Elsewhere)> {
        let memory = self.path.display().to_string();
        let not_seen = || Reason::MemoryElsewhere {
            path: path.to_string(),
            memory: memory.clone(),
        };
        let file = match duramen_io::open_shared_file(&self.path) {
            Ok((file, inode)) if inode == self.inode => file,
            Ok(_) => return Err(not_seen().into()),
            Err(error) if is_missing(&error) => return Err(not_seen().into()),
            Err(error) => return Err(Error::io("attaching to the shared region", error)),
        };
        let doing = |error| Error::io("attaching to the shared region", error);
        let pointer = platform.storage.open(REGION_FILE, OpenMode::Write).map_err(doing)?;
        let path = self.path;
        Ok((file, Elsewhere { path, pointer }))
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Removes the file of a region that no process uses any more, and the memory that it may name.
pub(crate) fn remove_stale(platform: &Platform) -> std::io::Result<()> {
    if let Ok(Some(pointer)) = Pointer::read(platform) {
        // What cannot be removed takes memory, and does no other harm.
        let _ = duramen_io::remove_if_unused(&pointer.path, pointer.inode);
    }
    platform.storage.remove(REGION_FILE)
}

/// Makes a file for the memory of a region in `directory`, and lets the store's directory say so.
pub(super) fn create(platform: &Platform, directory: &Path) -> Result<(Arc<dyn File>, Elsewhere)> {
    let doing = |error| Error::io("making the shared region", error);
    let random = || platform.random.next_u64();
    let path = directory.join(format!("{NAME}{:016x}{:016x}", random(), random()));
    let what = "the shared region";
    let created = duramen_io::create_shared_file(&path, platform.storage.file_mode());
    let (file, inode) = created.map_err(|error| full_at(&path, what, 0, error))?;
    let written = || {
        let pointer = platform.storage.open(REGION_FILE, OpenMode::Create).map_err(doing)?;
        pointer.set_len(0).map_err(doing)?;
        let path = path.clone();
        let bytes = Pointer { path, inode }.encode();
        let written = pointer.write_at(&bytes, 0);
        written.map_err(|error| full_or_io(what, bytes.len() as u64, error))?;
        Ok(pointer)
    };
    match written() {
        Ok(pointer) => Ok((file, Elsewhere { path, pointer })),
        Err(error) => {
            let _ = duramen_io::remove_shared_file(&path);
            Err(error)
        }
    }
}
