//! Counters that several processes of the lab share in a mapped file: the number of acknowledged writes of each writer.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, bail};

/// Counters in a file that every process maps.
pub struct SharedCounters {
    first: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping belongs to this value alone, and atomics may be used from any thread.
unsafe impl Send for SharedCounters {}
// SAFETY: as above.
unsafe impl Sync for SharedCounters {}

impl SharedCounters {
    /// Creates the file with all counters at 0.
    pub fn create(path: &Path, count: usize) -> Result<SharedCounters> {
        // The file is written in full, so that no page of the mapping needs allocation on a disk that filled up
        // meanwhile.
        std::fs::write(path, vec![0; count * 8]).with_context(|| format!("making {}", path.display()))?;
        SharedCounters::open(path, count)
    }

    /// Opens a file that was created with `count` counters.
    pub fn open(path: &Path, count: usize) -> Result<SharedCounters> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))?;
        if file.metadata()?.len() != count as u64 * 8 {
            bail!("{} does not hold {count} counters", path.display());
        }
        SharedCounters::map(&file, count)
    }

    fn map(file: &File, count: usize) -> Result<SharedCounters> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of an open file whose length was checked; nothing else is at the address that comes back.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * 8,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            bail!("mapping counters: {}", std::io::Error::last_os_error());
        }
        let first = NonNull::new(address.cast()).context("a mapping is never at address 0")?;
        Ok(SharedCounters { first, count })
    }

    /// Returns the counters.
    pub fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds `count` words, is aligned to a page, and lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this value with this length, and no borrow of it is left.
        let outcome = unsafe { libc::munmap(self.first.as_ptr().cast(), self.count * 8) };
        assert_eq!(outcome, 0, "a mapping of our own can be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::sync::atomic::Ordering;

    #[test]
    fn whoever_opens_the_file_sees_the_same_counters() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let path = scratch.path().join("counters");
        let mine = SharedCounters::create(&path, 16)?;
        let theirs = SharedCounters::open(&path, 16)?;
        mine.all()[15].store(7, Ordering::SeqCst);
        assert_eq!(theirs.all()[15].load(Ordering::SeqCst), 7);
        assert!(SharedCounters::open(&path, 17).is_err());
        Ok(())
    }
}
