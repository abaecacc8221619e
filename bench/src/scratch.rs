//! New directories for runs, removed when the run is over.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};

/// An empty directory that belongs to the lab, removed on drop.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates a directory inside `parent`.
    pub fn new(parent: &Path) -> Result<Scratch> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("duramen-lab-{}-{number}", std::process::id()));
        fs::create_dir_all(parent).with_context(|| format!("making the directory {}", parent.display()))?;
        fs::create_dir(&path).with_context(|| format!("making the directory {}", path.display()))?;
        Ok(Scratch { path })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} was left behind: {error}", self.path.display());
        }
    }
}

/// Returns the disk space taken by everything below `directory`. Holes do not count: a store that reserves length takes
/// no space.
pub fn allocated_bytes(directory: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // An open store may remove one of its files between the listing and this call.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        total += if metadata.is_dir() {
            allocated_bytes(&entry.path())?
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(total)
}
