//! What a file system does when a block is written again.

use std::io;
use std::path::Path;

use rustix::io::retry_on_intr;

use crate::failure::failed;

/// ext2, ext3 and ext4; and tmpfs.
const IN_PLACE: [u32; 2] = [0xef53, 0x0102_1994];
/// btrfs, ZFS and bcachefs: they never overwrite a block that is in use.
const COPY_ON_WRITE: [u32; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];

fn kind_of(path: &Path) -> io::Result<u32> {
    // The field is signed and wider on some targets; the magic numbers have 32 bits.
    let found = retry_on_intr(|| rustix::fs::statfs(path));
    Ok(found.map_err(|error| failed(error, "stat", path.display()))?.f_type as u32)
}

/// Whether the file system always overwrites a file's blocks in place. False for unknown file systems.
pub fn writes_in_place(path: &Path) -> io::Result<bool> {
    Ok(IN_PLACE.contains(&kind_of(path)?))
}

/// Whether the file system never overwrites a block that is in use.
pub fn copies_on_write(path: &Path) -> io::Result<bool> {
    Ok(COPY_ON_WRITE.contains(&kind_of(path)?))
}
