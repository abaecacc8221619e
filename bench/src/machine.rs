//! The environment of a result: the machine, its file system, and the build.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::measure::status_bytes;

/// The machine that produced the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor.
    pub processor: String,
    /// Number of processors that this process may use.
    pub processors: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Type and device of the file system that the stores were on.
    pub file_system: String,
}

impl Machine {
    /// Describes this machine, with the stores in `directory`.
    pub fn here(directory: &Path) -> Machine {
        let unknown = || "unknown".to_string();
        Machine {
            processor: processor().unwrap_or_else(unknown),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: status_bytes("/proc/meminfo", "MemTotal").unwrap_or(0),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| unknown(), |text| text.trim().into()),
            file_system: file_system(directory).unwrap_or_else(unknown),
        }
    }

    /// Whether the stores were in memory, where a sync costs nothing and protects nothing.
    pub fn is_in_memory(&self) -> bool {
        self.file_system.starts_with("tmpfs") || self.file_system.starts_with("ramfs")
    }
}

fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("model name") || line.starts_with("CPU part"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn file_system(directory: &Path) -> Option<String> {
    let directory = fs::canonicalize(directory).ok()?;
    file_system_in(&fs::read_to_string("/proc/self/mountinfo").ok()?, &directory)
}

/// Returns type and device of the innermost mount that contains `directory`. Of two mounts at one place, the later one
/// counts.
fn file_system_in(mounts: &str, directory: &Path) -> Option<String> {
    let parsed = mounts.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut kind_and_device = back.split(' ');
        let described = format!("{} on {}", kind_and_device.next()?, kind_and_device.next()?);
        Some((front.split(' ').nth(4)?, described))
    });
    let holding = parsed.filter(|(place, _)| directory.starts_with(place));
    holding
        .max_by_key(|(place, _)| place.len())
        .map(|(_, described)| described)
}

/// Returns the commit of the build, with `-dirty` if there were changes on top. Does not modify the repository.
pub fn commit() -> String {
    let described = Command::new("git")
        .args([
            "--no-optional-locks",
            "-C",
            env!("CARGO_MANIFEST_DIR"),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
        ])
        .output();
    match described {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_string(),
        _ => "unknown".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_mount_counts() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /var rw shared:1 - xfs /dev/b rw\n\
            3 1 0:3 / /var/tmp rw - tmpfs tmpfs rw\n4 1 0:4 / /va rw - btrfs /dev/c rw";
        assert_eq!(
            file_system_in(mounts, Path::new("/var/tmp/lab")).as_deref(),
            Some("tmpfs on tmpfs")
        );
        assert_eq!(
            file_system_in(mounts, Path::new("/var/lab")).as_deref(),
            Some("xfs on /dev/b")
        );
        assert_eq!(
            file_system_in(mounts, Path::new("/home")).as_deref(),
            Some("ext4 on /dev/a")
        );
    }
}
