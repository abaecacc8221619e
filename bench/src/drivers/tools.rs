//! What the building of drivers needs, whatever their language: whether a tool is there, where to build, and whether that
//! was done since the sources changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result};

/// Whether the program can be started from the search path.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// A directory of this name beside the lab's binary.
pub fn beside_the_lab(name: &str) -> Result<PathBuf> {
    let binary = std::env::current_exe().context("finding the lab's own place")?;
    let target = binary.parent().context("the lab is in a directory")?.join(name);
    fs::create_dir_all(&target).with_context(|| format!("making the directory {}", target.display()))?;
    Ok(target)
}

/// When the newest file below a directory was changed.
pub fn newest(directory: &Path) -> Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    let entries =
        fs::read_dir(directory).with_context(|| format!("looking for the drivers in {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        newest = newest.max(match entry.file_type()?.is_dir() {
            true => self::newest(&entry.path())?,
            false => entry.metadata()?.modified()?,
        });
    }
    Ok(newest)
}
