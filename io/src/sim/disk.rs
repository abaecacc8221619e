//! The state of a simulated disk. Every call on it is counted, its fate is decided, and it is done.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;

use crate::interface::{FileStamp, LockMode, OpenMode};
use crate::name::check_name;

use super::content::PAGE;
use super::directory::{Directory, InodeId};
use super::inode::Inode;
use super::plan::{FailKind, Fate, Plan, no_space};
use super::survival::{Chooser, Survival};

/// Holders of one lock.
#[derive(Debug, Default)]
struct Holders {
    shared: usize,
    is_exclusive: bool,
    /// The holder of each locked byte.
    bytes: BTreeMap<u64, u64>,
}

/// A disk that several handles share.
pub(super) type SharedDisk = Arc<Mutex<Disk>>;

/// Locks the disk, even after a test panicked while it held the lock.
pub(super) fn locked(disk: &SharedDisk) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state behind the mutex of a simulated disk.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) random: Rng,
    pub(super) plan: Plan,
    /// Bytes that all files together may occupy.
    pub(super) capacity: Option<u64>,
    /// The unit that a power cut destroys, as a whole or in part.
    pub(super) write_unit: u64,
    pub(super) tears_units: bool,
    /// Bytes that sometimes replace destroyed bytes.
    pub(super) stale: Vec<u8>,
    /// One line for each call since tracing began.
    pub(super) trace: Option<Vec<String>>,
    /// Syncs of files whose names begin with this do nothing.
    pub(super) ignored_syncs: Option<String>,
    pub(super) ignores_directory_sync: bool,
    directory: Directory,
    inodes: BTreeMap<InodeId, Inode>,
    inodes_made: InodeId,
    locks: BTreeMap<String, Holders>,
    byte_holders_made: u64,
    /// Number of the last call that changed something.
    sequence: u64,
}

impl Disk {
    pub(super) fn new(seed: u64) -> Disk {
        Disk {
            random: Rng::with_seed(seed),
            plan: Plan::default(),
            write_unit: PAGE,
            tears_units: true,
            stale: Vec::new(),
            capacity: None,
            trace: None,
            ignored_syncs: None,
            ignores_directory_sync: false,
            directory: Directory::default(),
            inodes: BTreeMap::new(),
            inodes_made: 0,
            locks: BTreeMap::new(),
            byte_holders_made: 0,
            sequence: 0,
        }
    }

    /// The disk after a power cut now.
    pub(super) fn after_power_cut(&mut self, seed: u64) -> io::Result<Disk> {
        self.find_stores();
        let mut chooser = Chooser::new(seed, self.unsynced_sequences());
        let survival = chooser.next();
        let names = self.directory.survivors(survival, &mut chooser.random);
        let mut disk = self.successor(seed);
        for (name, inode) in &names {
            let survival = chooser.next();
            let unit = if name.starts_with("wal-") {
                self.write_unit
            } else {
                self.write_unit.min(PAGE)
            };
            let torn = if self.tears_units { chooser.torn_units() } else { 0 };
            let survivor =
                self.inodes[inode].after_power_cut(survival, (unit, torn), &self.stale, &mut chooser.random)?;
            let before = disk.inodes.insert(*inode, survivor);
            assert!(before.is_none(), "{name} is one of two names of a file");
        }
        disk.directory = Directory::settled(names);
        Ok(disk)
    }

    /// The disk after the death of all processes.
    pub(super) fn after_kill(&mut self) -> io::Result<Disk> {
        let mut disk = self.successor(self.random.clone().u64(..));
        for (id, inode) in &mut self.inodes {
            if self.directory.may_need(*id) {
                disk.inodes.insert(*id, inode.after_kill(self.sequence)?);
            }
        }
        disk.directory = self.directory.clone();
        Ok(disk)
    }

    /// A disk with the same settings, without files, plans and locks.
    fn successor(&self, seed: u64) -> Disk {
        Disk {
            write_unit: self.write_unit,
            tears_units: self.tears_units,
            stale: self.stale.clone(),
            capacity: self.capacity,
            ignored_syncs: self.ignored_syncs.clone(),
            ignores_directory_sync: self.ignores_directory_sync,
            inodes_made: self.inodes_made,
            sequence: self.sequence,
            ..Disk::new(seed)
        }
    }

    fn find_stores(&mut self) {
        for inode in self.inodes.values_mut() {
            inode.find_stores(self.sequence);
        }
    }

    fn unsynced_sequences(&self) -> std::ops::RangeInclusive<u64> {
        let of_files = self.inodes.values().flat_map(|inode| inode.history().sequences());
        let (first, last) = of_files
            .chain(self.directory.sequences())
            .fold((u64::MAX, 0), |(first, last), sequence| {
                (first.min(sequence), last.max(sequence))
            });
        if first > last {
            self.sequence..=self.sequence
        } else {
            first..=last
        }
    }

    /// Counts a call, adds it to the trace, and returns its fate.
    fn begin(&mut self, needs_space: bool, call: impl FnOnce() -> String) -> io::Result<Fate> {
        let fate = self.plan.next(needs_space)?;
        self.sequence += 1;
        if let Some(trace) = &mut self.trace {
            let failed = if fate == Fate::Whole { "" } else { " failed" };
            trace.push(call() + failed);
        }
        Ok(fate)
    }

    /// Whether a call that changes one thing at once happens. For a process that dies in the call it is random.
    fn happens(&mut self, fate: Fate) -> bool {
        match fate {
            Fate::Whole => true,
            Fate::Stopping => self.random.bool(),
            Fate::Failing(_) => false,
        }
    }

    fn end(fate: Fate) -> io::Result<()> {
        if fate == Fate::Whole { Ok(()) } else { Err(fate.error()) }
    }

    /// Opens a file and returns its inode, in which the handle is counted.
    pub(super) fn open(&mut self, name: &str, mode: OpenMode) -> io::Result<InodeId> {
        check_name(name)?;
        self.plan.check_running()?;
        let id = match self.directory.find(name) {
            Some(id) => id,
            None if mode == OpenMode::Create => self.create(name)?,
            None => return Err(missing(name)),
        };
        self.inode(id).handles += 1;
        Ok(id)
    }

    fn create(&mut self, name: &str) -> io::Result<InodeId> {
        let fate = self.begin(true, || format!("create {name}"))?;
        self.inodes_made += 1;
        let id = self.inodes_made;
        if self.happens(fate) {
            self.inodes.insert(id, Inode::default());
            self.directory.create(self.sequence, name, id);
        }
        Self::end(fate).map(|()| id)
    }

    pub(super) fn close(&mut self, id: InodeId) {
        self.inode(id).handles -= 1;
        self.forget_unneeded();
    }

    fn forget_unneeded(&mut self) {
        let directory = &self.directory;
        self.inodes
            .retain(|id, inode| inode.handles > 0 || directory.may_need(*id));
    }

    pub(super) fn list(&self) -> io::Result<Vec<String>> {
        self.plan.check_running()?;
        Ok(self.names())
    }

    /// All names, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        self.directory.names().keys().cloned().collect()
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        check_name(name)?;
        self.plan.check_running()?;
        self.directory.find(name).ok_or_else(|| missing(name))?;
        let fate = self.begin(false, || format!("remove {name}"))?;
        if self.happens(fate) {
            self.directory.remove(self.sequence, name);
        }
        Self::end(fate)
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.plan.check_running()?;
        self.directory.find(from).ok_or_else(|| missing(from))?;
        let fate = self.begin(false, || format!("rename {from} {to}"))?;
        if self.happens(fate) && from != to {
            self.directory.rename(self.sequence, from, to);
        }
        Self::end(fate)
    }

    pub(super) fn sync_directory(&mut self) -> io::Result<()> {
        let fate = self.begin(false, || "sync directory".to_owned())?;
        if self.ignores_directory_sync {
            return Self::end(fate);
        }
        if self.happens(fate) {
            self.directory.sync();
        } else if let Fate::Failing(_) = fate {
            self.directory.sync_badly(&mut self.random);
        }
        self.forget_unneeded();
        Self::end(fate)
    }

    /// Takes a lock, if its holders allow it.
    pub(super) fn lock(&mut self, name: &str, mode: LockMode) -> io::Result<bool> {
        check_name(name)?;
        self.plan.check_running()?;
        if self.directory.find(name).is_none() {
            self.create(name)?;
        }
        let holders = self.locks.entry(name.to_owned()).or_default();
        let is_free =
            !holders.is_exclusive && holders.bytes.is_empty() && (mode == LockMode::Shared || holders.shared == 0);
        if is_free {
            match mode {
                LockMode::Shared => holders.shared += 1,
                LockMode::Exclusive => holders.is_exclusive = true,
            }
        }
        Ok(is_free)
    }

    pub(super) fn unlock(&mut self, name: &str, mode: LockMode) {
        let holders = self.locks.get_mut(name).expect("a held lock has an entry");
        match mode {
            LockMode::Shared => holders.shared -= 1,
            LockMode::Exclusive => holders.is_exclusive = false,
        }
    }

    /// Creates a holder of byte locks.
    pub(super) fn byte_holder(&mut self, name: &str) -> io::Result<u64> {
        check_name(name)?;
        self.plan.check_running()?;
        if self.directory.find(name).is_none() {
            self.create(name)?;
        }
        self.locks.entry(name.to_owned()).or_default();
        self.byte_holders_made += 1;
        Ok(self.byte_holders_made)
    }

    fn holders(&mut self, name: &str) -> &mut Holders {
        self.locks.get_mut(name).expect("who holds bytes has an entry")
    }

    pub(super) fn take_byte(&mut self, name: &str, byte: u64, holder: u64) -> io::Result<bool> {
        self.plan.check_running()?;
        let holders = self.holders(name);
        let is_free = !holders.is_exclusive && holders.shared == 0;
        Ok(is_free && *holders.bytes.entry(byte).or_insert(holder) == holder)
    }

    pub(super) fn is_byte_taken(&mut self, name: &str, byte: u64, holder: u64) -> io::Result<bool> {
        self.plan.check_running()?;
        let holders = self.holders(name);
        let by_other = holders.bytes.get(&byte).is_some_and(|&found| found != holder);
        Ok(by_other || holders.is_exclusive || holders.shared > 0)
    }

    /// Frees the chosen bytes of a holder.
    pub(super) fn free_bytes(&mut self, name: &str, holder: u64, is_chosen: impl Fn(u64) -> bool) {
        let bytes = &mut self.holders(name).bytes;
        bytes.retain(|&byte, &mut found| found != holder || !is_chosen(byte));
    }

    /// The inode behind an open file.
    pub(super) fn inode(&mut self, id: InodeId) -> &mut Inode {
        self.inodes.get_mut(&id).expect("an open file has an inode")
    }

    /// The inode behind an open file, unless the disk has stopped.
    pub(super) fn running_inode(&mut self, id: InodeId) -> io::Result<&mut Inode> {
        self.plan.check_running()?;
        Ok(self.inode(id))
    }

    /// The inode behind a name, for tests.
    pub(super) fn named_inode(&mut self, name: &str) -> (&mut Inode, u64) {
        let id = self
            .directory
            .find(name)
            .unwrap_or_else(|| panic!("the simulated disk has no file {name}"));
        (self.inodes.get_mut(&id).expect("a name has an inode"), self.sequence)
    }

    pub(super) fn stamp(&mut self, name: &str) -> io::Result<FileStamp> {
        self.plan.check_running()?;
        let id = self.directory.find(name).ok_or_else(|| missing(name))?;
        let inode = &self.inodes[&id];
        Ok(FileStamp {
            file: (0, id),
            length: inode.length(),
            changed: (inode.changes, 0),
        })
    }

    /// Number of free bytes.
    fn room(&self) -> u64 {
        self.capacity
            .map_or(u64::MAX, |capacity| capacity.saturating_sub(self.allocated_bytes()))
    }

    /// Bytes of all blocks of all files.
    pub(super) fn allocated_bytes(&self) -> u64 {
        // Blocks of a removed file are free once it is closed, even if a power cut could still bring it back.
        let counts = |(id, inode): &(&InodeId, &Inode)| inode.handles > 0 || self.directory.has_name(**id);
        let counted = self.inodes.iter().filter(counts);
        counted.map(|(_, inode)| inode.allocated_bytes()).sum()
    }

    pub(super) fn write(&mut self, id: InodeId, name: &str, bytes: &[u8], offset: u64) -> io::Result<()> {
        let what = || format!("write {name} {offset}+{}", bytes.len());
        self.grow(id, offset, bytes.len() as u64, what, |inode, sequence, length| {
            inode.write(sequence, offset, &bytes[..length as usize])
        })
    }

    /// Performs a program's store to a mapping: all of the units around it are at risk from then on.
    pub(super) fn store(&mut self, id: InodeId, name: &str, bytes: &[u8], offset: u64) -> io::Result<()> {
        let what = || format!("store {name} {offset}+{}", bytes.len());
        let unit = self.store_unit();
        self.grow(id, offset, bytes.len() as u64, what, |inode, sequence, length| {
            inode.write(sequence, offset, &bytes[..length as usize])?;
            inode.note_dirty(offset / unit * unit..(offset + length).next_multiple_of(unit));
            Ok(())
        })
    }

    /// Bytes that the kernel writes back after a program stored to a mapping.
    pub(super) fn store_unit(&self) -> u64 {
        self.write_unit * 4
    }

    pub(super) fn write_zeros(&mut self, id: InodeId, name: &str, offset: u64, length: u64) -> io::Result<()> {
        let what = || format!("zeros {name} {offset}+{length}");
        self.grow(id, offset, length, what, |inode, sequence, length| {
            inode.write_zeros(sequence, offset, length)
        })
    }

    pub(super) fn allocate(&mut self, id: InodeId, name: &str, offset: u64, length: u64) -> io::Result<()> {
        let what = || format!("allocate {name} {offset}+{length}");
        self.grow(id, offset, length, what, |inode, sequence, length| {
            inode.allocate(sequence, offset, length)
        })
    }

    /// Changes a range of a file, which may need blocks. If it fails, a first part may have happened.
    fn grow(
        &mut self,
        id: InodeId,
        offset: u64,
        length: u64,
        call: impl FnOnce() -> String,
        change: impl FnOnce(&mut Inode, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        check_range(offset, length)?;
        if length == 0 {
            return self.plan.check_running();
        }
        let needs_space = self.running_inode(id)?.needs_blocks(offset, length);
        let fate = self.begin(needs_space, call)?;
        let (room, sequence) = (self.room(), self.sequence);
        let wanted = match fate {
            Fate::Whole => length,
            Fate::Stopping => self.random.u64(..=length),
            Fate::Failing(_) => self.random.u64(..length),
        };
        let inode = self.inode(id);
        let done = inode.fitting(offset, wanted, room);
        change(inode, sequence, done)?;
        if fate == Fate::Whole && done < length {
            Err(no_space())
        } else {
            Self::end(fate)
        }
    }

    pub(super) fn set_length(&mut self, id: InodeId, name: &str, length: u64) -> io::Result<()> {
        check_range(length, 0)?;
        let grows = length > self.running_inode(id)?.length();
        let fate = self.begin(grows, || format!("truncate {name} {length}"))?;
        if self.happens(fate) {
            let sequence = self.sequence;
            self.inode(id).set_length(sequence, length)?;
        }
        Self::end(fate)
    }

    pub(super) fn sync_file(&mut self, id: InodeId, name: &str) -> io::Result<()> {
        let fate = self.begin(false, || format!("sync {name}"))?;
        if self
            .ignored_syncs
            .as_ref()
            .is_some_and(|prefix| name.starts_with(prefix))
        {
            return Self::end(fate);
        }
        let sequence = self.sequence;
        if self.happens(fate) {
            self.inode(id).sync(sequence);
        } else if fate == Fate::Failing(FailKind::Io) {
            let survival = match self.random.u8(..4) {
                0 | 1 => Survival::Nothing,
                2 => Survival::Each { keep: 4 },
                _ => Survival::Everything,
            };
            let mut random = self.random.fork();
            self.inode(id).sync_badly(sequence, survival, &mut random);
        }
        Self::end(fate)
    }

    pub(super) fn note_writeback(&mut self, name: &str, offset: u64, length: u64) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("writeback {name} {offset}+{length}"));
        }
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("the simulated disk has no file {name}"),
    )
}

/// Refuses ranges beyond the limits of file systems, and beyond the addresses of a test machine.
fn check_range(offset: u64, length: u64) -> io::Result<()> {
    const LENGTH_MAX: u64 = 1 << 44;
    if offset.checked_add(length).is_none_or(|end| end > LENGTH_MAX) {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(())
}
