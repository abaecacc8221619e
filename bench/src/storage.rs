//! The number of bytes written to and read from the storage below a directory: sectors of its block device, from
//! `/sys/dev/block/MAJOR:MINOR/stat`.
//!
//! The device counts for all processes. A cell therefore begins with a sync of the file system; otherwise it would be
//! charged for what the previous cell left in the page cache. The kernel's count for one process (`write_bytes` of
//! `/proc/PID/io`) is not a number of bytes. It counts pages when they become dirty. With large folios it counts the
//! whole folio, up to 2 MiB, for one of its pages. That count remains the fallback where a file system has no device of
//! its own: btrfs, overlays, memory, networks.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};

/// The counter of the bytes of storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StorageCounter {
    /// The block device of the directory.
    Device,
    /// The kernel, for the process. Results older than the device counter imply this one.
    #[default]
    Process,
}

impl StorageCounter {
    /// Explains to readers what is counted.
    pub fn words(self) -> &'static str {
        match self {
            StorageCounter::Device => {
                "what the device of the directory was given (to storage) and asked for (from storage) while the phase ran, \
                 by whomever; what the kernel writes later is not in it"
            }
            StorageCounter::Process => {
                "to storage: pages that the process dirtied, as the kernel counts them: with large folios several times \
                 what is written; from storage: what the kernel fetched for the process"
            }
        }
    }
}

/// Bytes since the device was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Bytes written to the device.
    pub written_bytes: u64,
}

/// A block device with counters.
pub struct Device {
    stat: PathBuf,
}

impl Device {
    /// Returns the device that `directory` is on, if there is one.
    pub fn below(directory: &Path) -> Result<Option<Device>> {
        let doing = || format!("asking for the device of {}", directory.display());
        let number = fs::metadata(directory).with_context(doing)?.dev();
        let folder = format!("/sys/dev/block/{}:{}", major(number), minor(number));
        Ok(Device::at(Path::new(&folder)))
    }

    /// Returns the device whose files are in `folder`. Returns `None` for a device that was told not to count. Also
    /// returns `None` for a device that never counted a write although a file system is on it (the common device over
    /// several paths, in older kernels). Either would report that nothing is written.
    fn at(folder: &Path) -> Option<Device> {
        // A partition has no queue of its own: the queue of its disk is one folder up.
        let is_switched_off =
            |switch: &str| fs::read_to_string(folder.join(switch)).is_ok_and(|text| text.trim() == "0");
        if ["queue/iostats", "../queue/iostats"].into_iter().any(is_switched_off) {
            return None;
        }
        let device = Device {
            stat: folder.join("stat"),
        };
        let transferred = device.transferred().ok()?;
        (transferred.written_bytes > 0).then_some(device)
    }

    /// Returns the counts so far.
    pub fn transferred(&self) -> Result<Transferred> {
        let name = self.stat.display();
        let text = fs::read_to_string(&self.stat).with_context(|| format!("reading {name}"))?;
        parsed(&text).with_context(|| format!("{name} has no numbers of sectors: {text}"))
    }
}

/// Parses the counters: sectors read are the third number and sectors written the seventh. A sector is 512 bytes here,
/// whatever the device has.
fn parsed(stat: &str) -> Option<Transferred> {
    let numbers: Vec<u64> = stat.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(Transferred {
        read_bytes: numbers.get(2)?.checked_mul(512)?,
        written_bytes: numbers.get(6)?.checked_mul(512)?,
    })
}

/// Writes everything that waits in the page cache for the file system of `directory`.
pub fn sync_file_system(directory: &Path) -> Result<()> {
    let doing = || format!("syncing the file system of {}", directory.display());
    let opened = File::open(directory).with_context(doing)?;
    rustix::fs::syncfs(opened).with_context(doing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    const STAT: &str =
        "  168390    11036 18302366   199206  1061206   642158 52816138  1352917        0  1013436  1554393";

    #[test]
    fn third_and_seventh_number_are_sectors_of_512_bytes() {
        let expected = Transferred {
            read_bytes: 18_302_366 * 512,
            written_bytes: 52_816_138 * 512,
        };
        assert_eq!(parsed(STAT), Some(expected));
        assert_eq!(parsed("1 2 3 4 5 6"), None);
        assert_eq!(parsed("1 2 three 4 5 6 7"), None);
        assert_eq!(parsed(""), None);
    }

    #[test]
    fn device_that_does_not_count_is_none() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let disk = scratch.path().join("disk");
        let partition = disk.join("partition");
        fs::create_dir_all(&partition)?;
        fs::create_dir(disk.join("queue"))?;
        let is_counting = || (Device::at(&disk).is_some(), Device::at(&partition).is_some());
        assert_eq!(is_counting(), (false, false), "no stat");
        fs::write(disk.join("stat"), STAT)?;
        fs::write(partition.join("stat"), STAT)?;
        fs::write(disk.join("queue/iostats"), "1\n")?;
        assert_eq!(is_counting(), (true, true));
        fs::write(partition.join("stat"), "5 0 40 1 0 0 0 0 0 0 0")?;
        assert_eq!(is_counting(), (true, false), "no write was ever counted");
        fs::write(partition.join("stat"), STAT)?;
        fs::write(disk.join("queue/iostats"), "0\n")?;
        assert_eq!(is_counting(), (false, false), "switched off");
        Ok(())
    }

    #[test]
    fn file_system_without_a_device_has_none() -> Result<()> {
        assert!(Device::below(Path::new("/proc"))?.is_none());
        assert!(Device::below(Path::new("/no/such/directory")).is_err());
        Ok(())
    }

    #[test]
    fn file_system_is_synced_by_its_directory() -> Result<()> {
        sync_file_system(&std::env::temp_dir())?;
        let error = sync_file_system(Path::new("/no/such/directory")).expect_err("nothing to sync");
        assert!(format!("{error:#}").contains("/no/such/directory"), "{error:#}");
        Ok(())
    }
}
