//! A disk in memory behind the traits of the crate, for tests: it loses power, fills up, fails and lies on request.
//!
//! All random behaviour follows from the given seeds. A power cut may leave:
//! - Bytes and length of a file survive once its `sync_data` returned. Before, each sector of 512 bytes holds the old
//!   content, any version since, or a tear between two. Changes of length survive in order up to some point. Where the
//!   length survives and bytes do not, there are zeros. Bytes that were never written never appear.
//! - A name, its removal or change survives once [`Storage::sync`](crate::Storage::sync) returned, whether or not the
//!   file itself was synced. Before, in any combination.
//! - Stores through a mapping count as writes at the next call to the disk that concerns the file.
//!
//! A process that dies leaves everything unchanged; unsynced data stays unsynced.

mod bits;
mod content;
mod directory;
mod disk;
mod history;
mod inode;
mod plan;
mod platform;
mod process;
mod survival;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::interface::{Clock, Platform, WRITE_UNITS};

use disk::{Disk, SharedDisk, locked};
use platform::SimClock;
use process::SimProcess;

pub use plan::{FailKind, FailSpan};

/// Initial time of day of a simulated machine.
const FIRST_WALL: Duration = Duration::from_secs(1_800_000_000);

/// Value of the monotonic clock after the machine starts.
const FIRST_MONOTONIC: Duration = Duration::from_secs(10);

/// A simulated disk with one directory and a clock. Clones share the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk {
    disk: SharedDisk,
    clock: Arc<SimClock>,
}

impl SimDisk {
    /// Creates an empty disk.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk::from_parts(Disk::new(seed), SimClock::new(FIRST_MONOTONIC, FIRST_WALL, 1))
    }

    fn from_parts(disk: Disk, clock: SimClock) -> SimDisk {
        SimDisk {
            disk: Arc::new(Mutex::new(disk)),
            clock: Arc::new(clock),
        }
    }

    /// The disk as the engine uses it. Each call creates another user of the same disk, with its own random numbers.
    pub fn platform(&self) -> Platform {
        platform::platform(&self.disk, &self.clock, SimProcess::default())
    }

    /// The disk for a process that dies in one of its calls, after `calls` of them (as [`SimDisk::calls`] counts) have
    /// succeeded. The fatal call happens in part, or not, or as a whole. It never returns, and neither does any later
    /// call of that process. The thread of the fatal call calls `afterwards` and then blocks permanently. It keeps all
    /// its resources except its byte locks. So a test loses a thread and what the thread holds.
    pub fn platform_of_one_who_dies(&self, calls: u64, afterwards: impl FnOnce() + Send + 'static) -> Platform {
        let process = SimProcess::mortal(calls, Box::new(afterwards));
        platform::platform(&self.disk, &self.clock, process)
    }

    /// Returns a new disk with one of the legal outcomes of a power cut at this moment; this disk continues. The new
    /// machine has no locks, plans or trace, and its monotonic clock starts again. It lies about syncs as this machine
    /// does.
    pub fn power_cut(&self, seed: u64) -> SimDisk {
        let disk = locked(&self.disk)
            .after_power_cut(seed)
            .expect("addresses for a copy of the disk");
        SimDisk::from_parts(
            disk,
            SimClock::new(FIRST_MONOTONIC, self.clock.wall(), self.clock.boot + 1),
        )
    }

    /// Returns a new disk in the state that the next process finds after all processes were killed at this moment. It
    /// has the current contents, with unsynced data still unsynced, and no locks, plans or trace. This disk continues.
    pub fn kill(&self) -> SimDisk {
        let disk = locked(&self.disk)
            .after_kill()
            .expect("addresses for a copy of the disk");
        SimDisk::from_parts(
            disk,
            SimClock::new(self.clock.monotonic(), self.clock.wall(), self.clock.boot),
        )
    }

    /// Advances the clock.
    pub fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    /// Sets the time of day, forward or back, like a clock correction. The monotonic time is not affected.
    pub fn set_wall(&self, wall: Duration) {
        self.clock.set_wall(wall);
    }

    /// Number of calls so far that changed something or made it durable: creating (opening an existing file does not
    /// count), removing, renaming, writing, allocating, changing a length, syncing.
    pub fn calls(&self) -> u64 {
        locked(&self.disk).plan.calls
    }

    /// Allows `calls` more of the calls that [`SimDisk::calls`] counts. The next one happens in part, or not, or as a
    /// whole, and fails. Every later call of any kind fails without effect.
    pub fn stop_after(&self, calls: u64) {
        locked(&self.disk).plan.stop_after = Some(calls);
    }

    /// Makes the `nth` counted call from now fail (1: the next). A failed write may have written a first part. A failed
    /// sync drops what it could not write: later syncs succeed without it, though it can still be read.
    pub fn fail(&self, nth: u64, kind: FailKind, span: FailSpan) {
        assert!(nth > 0, "the next call is number 1");
        locked(&self.disk).plan.failure = Some((nth, kind, span));
    }

    /// Ends the failures that [`SimDisk::fail`] started.
    pub fn stop_failing(&self) {
        locked(&self.disk).plan.failure = None;
    }

    /// Sets the write unit: the bytes that a power cut may destroy around bytes that were not synced. New disks have 4
    /// KiB.
    ///
    /// Files whose names begin with `wal-` have this unit. Other files have at most 4 KiB of it: the engine writes them
    /// in whole pages, and refuses machines with larger blocks. After a store ([`crate::File::store_at`]) four units
    /// are written as one.
    pub fn set_write_unit(&self, unit: u64) {
        assert!(unit.is_power_of_two() && WRITE_UNITS.contains(&unit));
        locked(&self.disk).write_unit = unit;
    }

    /// Sets what blocks of deleted files hold. A power cut may leave these bytes where a unit was being written, at the
    /// same distance from the beginning of a file. Empty: nothing.
    pub fn leave_stale_blocks(&self, bytes: Vec<u8>) {
        locked(&self.disk).stale = bytes;
    }

    /// Sets whether power cuts destroy units that are being written. New disks do. Otherwise a power cut leaves only a
    /// mix of old and new bytes.
    pub fn tear_units(&self, on: bool) {
        locked(&self.disk).tears_units = on;
    }

    /// Limits the bytes of all files together, counted in blocks of 4 KiB that were written or allocated.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        locked(&self.disk).capacity = capacity;
    }

    /// Bytes of all files together, as [`SimDisk::set_capacity`] counts them.
    pub fn allocated_bytes(&self) -> u64 {
        locked(&self.disk).allocated_bytes()
    }

    /// Starts or stops the trace of calls.
    pub fn trace(&self, on: bool) {
        locked(&self.disk).trace = on.then(Vec::new);
    }

    /// The calls since the trace began or was last taken, such as `write wal-0 4096+176`. Calls that were made to fail
    /// end in ` failed`.
    pub fn take_trace(&self) -> Vec<String> {
        locked(&self.disk)
            .trace
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// The current bytes of a file, which must exist.
    pub fn read_raw(&self, name: &str) -> Vec<u8> {
        let mut disk = locked(&self.disk);
        let (inode, _) = disk.named_inode(name);
        let mut bytes = vec![0; inode.length() as usize];
        inode.read(0, &mut bytes);
        bytes
    }

    /// Changes bytes of a file, which must exist, as if they had always been there: durable at once, and not counted as
    /// a call.
    pub fn write_raw(&self, name: &str, offset: u64, bytes: &[u8]) {
        let mut disk = locked(&self.disk);
        let (inode, sequence) = disk.named_inode(name);
        inode
            .rewrite(sequence, offset, bytes)
            .expect("addresses for a longer file");
    }

    /// Names of all files, sorted.
    pub fn files(&self) -> Vec<String> {
        // This also works on a stopped disk.
        locked(&self.disk).names()
    }

    /// Makes the disk lie: syncs of files opened by names with this prefix succeed and do nothing.
    pub fn ignore_sync(&self, name_prefix: Option<&str>) {
        locked(&self.disk).ignored_syncs = name_prefix.map(str::to_owned);
    }

    /// Makes the disk lie: syncs of the directory succeed and do nothing.
    pub fn ignore_directory_sync(&self, ignore: bool) {
        locked(&self.disk).ignores_directory_sync = ignore;
    }
}
