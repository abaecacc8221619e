//! A disk in memory behind the traits of the crate, for tests: it loses power, fills up, fails and lies as told.
//!
//! Everything that is random follows from the seeds given. What a power cut may leave:
//! - Bytes and length of a file survive once its `sync_data` returned. Before, each sector of 512 bytes holds the old
//!   content, any version since, or a tear between two; changes of length survive in order up to some point; where
//!   the length survives and bytes do not, there are zeros. Bytes that nobody wrote never appear.
//! - A name, its removal or change survives once [`Storage::sync`](crate::Storage::sync) returned, whether or not
//!   the file itself was synced. Before, in any combination.
//! - Stores through a mapping count as writes made when the disk is next asked to do anything with that file.
//!
//! A process that dies leaves everything as it is; what was unsynced stays unsynced.

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

use disk::Disk;
use platform::{SharedDisk, SimClock, locked};
use process::SimProcess;

pub use plan::{FailKind, FailSpan};

/// Where simulated time of day begins.
const FIRST_WALL: Duration = Duration::from_secs(1_800_000_000);

/// The monotonic clock after a start of the machine.
const FIRST_MONOTONIC: Duration = Duration::from_secs(10);

/// A simulated disk with one directory and a clock. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk {
    disk: SharedDisk,
    clock: Arc<SimClock>,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk::from_parts(Disk::new(seed), SimClock::new(FIRST_MONOTONIC, FIRST_WALL, 1))
    }

    fn from_parts(disk: Disk, clock: SimClock) -> SimDisk {
        SimDisk {
            disk: Arc::new(Mutex::new(disk)),
            clock: Arc::new(clock),
        }
    }

    /// The disk as the engine sees it. Each call makes another user of the same disk, with random numbers of its own.
    pub fn platform(&self) -> Platform {
        platform::platform(&self.disk, &self.clock, SimProcess::default())
    }

    /// The disk as it is for a process that dies in one of its calls, when `calls` of them (as [`SimDisk::calls`] counts)
    /// have succeeded. That call happens in part, or not, or as a whole, and never returns, as no other one of that process
    /// does: its thread calls `afterwards`, and then stays where it is for ever, with all that it has but its byte locks. So a
    /// test loses a thread, and what that has.
    pub fn platform_of_one_who_dies(&self, calls: u64, afterwards: impl FnOnce() + Send + 'static) -> Platform {
        let process = SimProcess::mortal(calls, Box::new(afterwards));
        platform::platform(&self.disk, &self.clock, process)
    }

    /// A new disk with one of the legal outcomes of a power cut at this moment; this disk goes on. The new machine
    /// has no locks, plans or trace, its monotonic clock starts again, and it lies about syncs as this one does.
    pub fn power_cut(&self, seed: u64) -> SimDisk {
        let disk = locked(&self.disk)
            .after_power_cut(seed)
            .expect("addresses for a copy of the disk");
        SimDisk::from_parts(
            disk,
            SimClock::new(FIRST_MONOTONIC, self.clock.wall(), self.clock.boot + 1),
        )
    }

    /// A new disk as the next process finds it after all processes were killed at this moment: current contents,
    /// what is unsynced still unsynced, no locks, plans or trace. This disk goes on.
    pub fn kill(&self) -> SimDisk {
        let disk = locked(&self.disk)
            .after_kill()
            .expect("addresses for a copy of the disk");
        SimDisk::from_parts(
            disk,
            SimClock::new(self.clock.monotonic(), self.clock.wall(), self.clock.boot),
        )
    }

    /// Lets time pass.
    pub fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    /// Sets the time of day, forward or back, as somebody who corrects a clock does; other time goes on as it was.
    pub fn set_wall(&self, wall: Duration) {
        self.clock.set_wall(wall);
    }

    /// How many calls changed something or made it durable so far: creating (opening what exists does not count),
    /// removing, renaming, writing, allocating, changing a length, syncing.
    pub fn calls(&self) -> u64 {
        locked(&self.disk).plan.calls
    }

    /// Lets `calls` more such calls succeed. The next one happens in part, or not, or as a whole, and fails, as does
    /// every call of any kind after it, without effect.
    pub fn stop_after(&self, calls: u64) {
        locked(&self.disk).plan.stop_after = Some(calls);
    }

    /// Makes the `nth` such call from now fail (1: the next). A failed write may have written a first part. A sync
    /// that fails drops what it could not write: later syncs succeed without it, though it can still be read.
    pub fn fail(&self, nth: u64, kind: FailKind, span: FailSpan) {
        assert!(nth > 0, "the next call is number 1");
        locked(&self.disk).plan.failure = Some((nth, kind, span));
    }

    /// Ends what [`SimDisk::fail`] began.
    pub fn stop_failing(&self) {
        locked(&self.disk).plan.failure = None;
    }

    /// Sets the write unit: what a power cut may destroy around bytes that were not synced. New disks have 4 KiB.
    ///
    /// Files whose names begin with `wal-` have this unit. Others have 4 KiB of it at most: the engine writes them in
    /// whole pages, and refuses machines whose blocks are larger. After a store ([`crate::File::store_at`]) four units
    /// are written as one.
    pub fn set_write_unit(&self, unit: u64) {
        assert!(unit.is_power_of_two() && WRITE_UNITS.contains(&unit));
        locked(&self.disk).write_unit = unit;
    }

    /// What blocks of deleted files hold: a power cut may leave it, instead of any bytes, where a unit was being written, at
    /// the same distance from the beginning of a file. Empty: nothing.
    pub fn leave_stale_blocks(&self, bytes: Vec<u8>) {
        locked(&self.disk).stale = bytes;
    }

    /// Says whether power cuts destroy units that are being written. New disks do; otherwise a power cut leaves a mix of old
    /// and new bytes and nothing else.
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

    /// Starts or ends the trace of calls.
    pub fn trace(&self, on: bool) {
        locked(&self.disk).trace = on.then(Vec::new);
    }

    /// The calls since the trace began or was last taken, such as `write wal-0 4096+176`; those that were made to
    /// fail end in ` failed`.
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

    /// Changes bytes of a file, which must exist, as if they had always been so: at once durable, not a call.
    pub fn write_raw(&self, name: &str, offset: u64, bytes: &[u8]) {
        let mut disk = locked(&self.disk);
        let (inode, sequence) = disk.named_inode(name);
        inode
            .rewrite(sequence, offset, bytes)
            .expect("addresses for a longer file");
    }

    /// Names of all files, sorted.
    pub fn files(&self) -> Vec<String> {
        // Also of a disk that has stopped.
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
