//! The shared region: one memory-mapped file (`shared`) that holds everything readers and writers of a store share
//! while it is open: the commit lock, the numbers of the newest visible and synced commits, the published version,
//! the table of log generations, the slots in which snapshots pin versions, what the allocator of the data file knows,
//! and the memory of the indexes.
//!
//! It holds offsets, never pointers, so that another process can attach to it. Nothing in it is needed after the last
//! process: the first opener formats it again, and recovery fills it from the data file and the log. A closed store may
//! leave it to the next opening, which saves that work (`warm`).
//!
//! ```text
//! 0        Control
//! 8 KiB    processes, 128 bytes each
//! 24 KiB   what the allocator has changed and can undo
//! 56 KiB   what rings in all processes
//! 60 KiB   who holds those back that append
//! 76 KiB   log generations, 128 bytes each, allocated in steps
//! 588 KiB  snapshot slots, 64 bytes each, allocated in steps
//! 5 MiB    memory of the allocator's arrays
//! 6 MiB    memory of the indexes, and of larger arrays; both are handed out in pieces
//! ```
//!
//! Invariants: `durable <= base commit <= synced <= visible`; a slot that is neither free nor claimed names a version
//! whose pages and generations must not be reused.

pub(crate) mod processes;
pub(crate) mod shared_array;
pub(crate) mod undo;

use std::mem::offset_of;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use arrayvec::ArrayVec;
use duramen_io::{
    Access, File, Hindrance, LOOK_INTERVAL, Mapping, OpenMode, Owner, Platform, WordLock, WordLockGuard, wake,
};

use crate::btree::Root;
use crate::datafile::register::SavedRegister;
use crate::error::{Error, Reason, Result};
use crate::limits::{
    GENERATIONS_MAX, LIVE_GENERATIONS_MAX, LOCK_TIMEOUT, PROCESSES_MAX, REGION_SPAN_BYTES, REGION_SPAN_BYTES_MIN,
    SNAPSHOTS_MAX,
};
use crate::region::processes::{PROCESS_BYTES, ProcessEntry, Seat};
use crate::region::undo::UndoLog;

mod bells;
mod brakes;
mod layout;
mod memory;
mod pointer;
mod slots;
mod warm;

pub(crate) use bells::{BELL_SLOTS, SharedBells};
pub use brakes::BRAKES_MAX;
pub(crate) use brakes::{SharedBrake, SharedBrakes};
pub(crate) use layout::{
    ArrayHead, Control, GenerationEntry, GenerationState, Line, LogEnd, PaceWords, Piece, SPACE_COUNTS, SpaceHead, Tail,
};
pub(crate) use pointer::remove_stale;
use pointer::{Elsewhere, Pointer};
pub(crate) use slots::{Pin, Pins, Slot};

/// Name of the region's file in the store directory.
pub(crate) const REGION_FILE: &str = "shared";

const CONTROL_BYTES: u64 = 8 << 10;
const PROCESSES_START: u64 = CONTROL_BYTES;
const UNDO_START: u64 = PROCESSES_START + (PROCESSES_MAX * PROCESS_BYTES) as u64;
const BELLS_START: u64 = UNDO_START + (32 << 10);
const _: () = assert!(size_of::<UndoLog>() as u64 <= BELLS_START - UNDO_START);
const BRAKES_START: u64 = BELLS_START + (4 << 10);
const _: () = assert!(size_of::<SharedBells>() as u64 <= BRAKES_START - BELLS_START);
const GENERATIONS_START: u64 = BRAKES_START + (16 << 10);
const _: () = assert!(size_of::<SharedBrakes>() as u64 <= GENERATIONS_START - BRAKES_START);
const GENERATION_BYTES: u64 = size_of::<GenerationEntry>() as u64;
const GENERATIONS_STEP: usize = 64;
const SLOTS_START: u64 = GENERATIONS_START + GENERATIONS_MAX as u64 * GENERATION_BYTES;
const SLOT_BYTES: u64 = size_of::<Slot>() as u64;
const SLOTS_STEP: usize = 256;
/// Aligned, so that the memory of indexes begins at a page and at a multiple of what they take.
const MEMORY_START: u64 = (SLOTS_START + SNAPSHOTS_MAX as u64 * SLOT_BYTES).next_multiple_of(512 << 10);
/// The memory of indexes begins here. Before it is that of the allocator's arrays, while they are small.
const INDEXES_START: u64 = MEMORY_START + (1 << 20);
/// The first version a store publishes after it is opened.
pub(crate) const FIRST_VERSION: u64 = 2;
/// Words of a published version.
const VERSION_WORDS: usize = 9 + LIVE_GENERATIONS_MAX;

/// Words of the name of a library.
const LIBRARY_WORDS: usize = 4;
/// "durashr", and the version of the layout of the region and of what its words mean.
const LAYOUT: u64 = u64::from_be_bytes(*b"durashr\x11");

/// The bit of [`Control::life`] that says that the store has stopped, and what each restore adds.
pub(crate) const STOPPED: u32 = 1;
const ONE_LIFE: u32 = 2;

/// How often, and after which pause, an opening process checks again whether the region is complete.
const LENGTH_LOOKS_MAX: u32 = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How often a waiting thread checks a lock's holder before it gives up: about five seconds.
const BUSY_LOOKS: u32 = 50;
/// How often a waiting thread checks a holder that waits for its device: about a minute.
const DEVICE_LOOKS: u32 = 600;
/// In how many looks, in the end, it is not seen to.
const DEVICE_DOUBTS: u32 = 10;

/// A version as published: the base and the generations above it, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u64,
    pub(crate) root: Root,
    /// The newest commit contained in the base.
    pub(crate) base_commit: u64,
    /// The newest commit of which the base holds anything. It is newer than `base_commit` while a fold goes on step by
    /// step: the base, without the generations, is then of no moment.
    pub(crate) reaches: u64,
    /// Slots of the live generations, oldest first; the last one takes commits.
    pub(crate) generations: ArrayVec<u16, LIVE_GENERATIONS_MAX>,
    /// The register of checkpoints.
    pub(crate) register: SavedRegister,
}

impl Version {
    /// Whether the base holds a part of what is in frozen generations.
    pub(crate) fn is_begun(&self) -> bool {
        self.reaches > self.base_commit
    }
}

/// Which owner a thread waits for, and how many checks in a row found no change.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    seen: Option<(Owner, u32)>,
    looks: u32,
    /// In how many of them it was seen to wait for its device.
    device_looks: u32,
}

impl Patience {
    /// Called every [`LOOK_INTERVAL`] with the owner that is waited for, and with a word that changes while the owner
    /// makes progress.
    ///
    /// # Errors
    /// [`Reason::Busy`] after about five seconds in which nothing changed; after a minute when its device is that slow.
    pub(crate) fn look(&mut self, region: &Region, holder: Owner, beat: u32) -> Result<()> {
        let is_still = self.seen.replace((holder, beat)) == Some((holder, beat));
        if !is_still {
            (self.looks, self.device_looks) = (0, 0);
        }
        self.looks += 1;
        if holder == region.me() || self.looks - self.device_looks < BUSY_LOOKS - DEVICE_DOUBTS {
            return Ok(());
        }
        if region.hindrance_of(holder) == Some(Hindrance::Device) {
            self.device_looks += 1;
        }
        if self.looks - self.device_looks < BUSY_LOOKS && self.looks < DEVICE_LOOKS {
            return Ok(());
        }
        Err(region.busy(holder, LOOK_INTERVAL * self.looks))
    }
}

/// The mapped region.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Mapping,
    /// Bytes of it that can be used: [`REGION_SPAN_BYTES`], or less where the process may not have so many addresses.
    span: u64,
    file: Arc<dyn File>,
    /// Where it is, if not in the store's directory.
    elsewhere: Option<Elsewhere>,
    seat: Seat,
    /// Whether no other process can have the region mapped any more.
    is_last: AtomicBool,
    /// Whether it is memory of this process alone.
    is_private: bool,
    /// What [`duramen_io::forks`] said when it was mapped.
    forks: u32,
    /// How many looks a lock is waited for.
    lock_looks: AtomicU32,
}

impl Region {
    /// Creates the region of a store that no other process has open. `exists`: there is a file of that name, which
    /// handles of a closed store may still have mapped; so it is left to them, and another one made. `directory`:
    /// holds the region's memory when the store's own directory cannot.
    pub(crate) fn create(platform: &Platform, exists: bool, seat: Seat, directory: Option<&Path>) -> Result<Region> {
        let doing = |error| Error::io("making the shared region", error);
        if exists {
            remove_stale(platform).map_err(doing)?;
        }
        if let Some(directory) = directory {
            let (file, elsewhere) = pointer::create(platform, directory)?;
            return match Region::over(file, Some(&elsewhere), seat) {
                Ok(mut region) => {
                    region.elsewhere = Some(elsewhere);
                    Ok(region)
                }
                Err(error) => {
                    elsewhere.remove();
                    Err(error)
                }
            };
        }
        let file = platform.storage.open(REGION_FILE, OpenMode::Create).map_err(doing)?;
        file.set_len(0).map_err(doing)?;
        Region::over(file, None, seat)
    }

    fn over(file: Arc<dyn File>, elsewhere: Option<&Elsewhere>, seat: Seat) -> Result<Region> {
        let head = GENERATIONS_START + GENERATIONS_STEP as u64 * GENERATION_BYTES;
        let slots = SLOTS_STEP as u64 * SLOT_BYTES;
        for (offset, bytes) in [(0, head), (SLOTS_START, slots)] {
            let allocated = file.allocate(offset, bytes);
            allocated.map_err(|error| match elsewhere {
                Some(elsewhere) => elsewhere.full_or_io("the shared region", bytes, error),
                None => full_or_io("the shared region", bytes, error),
            })?;
        }
        let region = Region::map_what_we_may(file, seat)?;
        let control = region.control();
        control.span.store(region.span, Ordering::Relaxed);
        control.slots_allocated.store(SLOTS_STEP as u32, Ordering::Relaxed);
        control
            .generations_allocated
            .store(GENERATIONS_STEP as u32, Ordering::Relaxed);
        Ok(region)
    }

    /// Takes this process's own entry in the table.
    pub(crate) fn sit_down(&self, process: u32, now: Duration) {
        let control = self.control();
        // First: other processes must see this entry before this process begins anything.
        let entries = u32::from(self.me().number()) + 1;
        control.entries_used.fetch_max(entries, Ordering::SeqCst);
        let arrival = control.arrivals.fetch_add(1, Ordering::SeqCst);
        self.process(self.me()).occupy(process, now, arrival);
    }

    /// Attaches to the region of a store that other processes have open, and takes an entry in their table.
    pub(crate) fn attach(platform: &Platform, path: &str, seat: Seat) -> Result<Region> {
        let doing = |error| Error::io("attaching to the shared region", error);
        let (file, elsewhere) = match Pointer::read(platform).map_err(doing)? {
            Some(pointer) => {
                let (file, elsewhere) = pointer.open(platform, path)?;
                (file, Some(elsewhere))
            }
            None => (
                platform.storage.open(REGION_FILE, OpenMode::Write).map_err(doing)?,
                None,
            ),
        };
        if file.len().map_err(doing)? < GENERATIONS_START {
            return Err(in_the_making(path));
        }
        let (mapping, span) = Region::mapping_of_its_maker(&*file)?;
        let mut region = Region::of(file, mapping, span, seat);
        region.elsewhere = elsewhere;
        region.check_layout(path)?;
        region.check_length(path)?;
        let free = (0..PROCESSES_MAX as u16).map(Owner::new);
        let free: Vec<Owner> = free.filter(|&owner| !region.process(owner).is_attached()).collect();
        for owner in free {
            if region.seat.sit(owner.number())? {
                return Ok(region);
            }
        }
        Err(Reason::TooManyProcesses { open: PROCESSES_MAX }.into())
    }

    /// The processes that have an entry in the region of a directory, for messages. The region may be unused by now.
    pub(crate) fn attached_in(platform: &Platform) -> std::io::Result<Vec<u32>> {
        let file = match Pointer::read(platform)? {
            Some(pointer) => duramen_io::open_shared_file(&pointer.path)?.0,
            None => platform.storage.open(REGION_FILE, OpenMode::Read)?,
        };
        let mut head = [0; 8];
        file.read_at(&mut head, 0)?;
        if u64::from_le_bytes(head) != LAYOUT {
            return Ok(Vec::new());
        }
        let mut table = [0; PROCESSES_MAX * PROCESS_BYTES];
        file.read_at(&mut table, PROCESSES_START)?;
        let entries = table.as_chunks::<PROCESS_BYTES>().0;
        Ok(entries.iter().filter_map(ProcessEntry::process_in).collect())
    }

    /// Refuses a region that a library made which does not agree with this one.
    fn check_layout(&self, path: &str) -> Result<()> {
        let control = self.control();
        // Acquire: pairs with the Release in `is_ready`.
        match control.layout.load(Ordering::Acquire) {
            0 => return Err(in_the_making(path)),
            LAYOUT if control.library.each_ref().map(|word| word.load(Ordering::Relaxed)) == library() => {}
            _ => {
                return Err(Reason::OtherVersion {
                    path: path.to_string(),
                    found: self.library(),
                    ours: LIBRARY.to_string(),
                }
                .into());
            }
        }
        Ok(())
    }

    /// Refuses a region whose file was truncated: reading the missing part would kill the process with a signal.
    fn check_length(&self, path: &str) -> Result<()> {
        if !self.is_cut_off()? {
            return Ok(());
        }
        let (path, holder) = (
            path.to_string(),
            format!("processes whose shared memory, the file `{REGION_FILE}`, was cut off"),
        );
        Err(Reason::InUse { path, holder }.into())
    }

    /// Whether the file of the region ends before what those who share it have in it.
    pub(crate) fn is_cut_off(&self) -> Result<bool> {
        for _ in 0..LENGTH_LOOKS_MAX {
            // Others give memory back and take some meanwhile: then the length and what they have do not belong
            // together.
            if self.is_whole()? {
                return Ok(false);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(true)
    }

    fn is_whole(&self) -> Result<bool> {
        let doing = |error| Error::io("looking how long the shared region is", error);
        let length = self.file.len().map_err(doing)?;
        let generations = u64::from(self.control().generations_allocated.load(Ordering::Acquire));
        // First what says where the rest is.
        Ok(length >= GENERATIONS_START + generations * GENERATION_BYTES && length >= self.end_of_memory())
    }

    /// Version of the library that made the region.
    pub(crate) fn library(&self) -> String {
        let words = &self.control().library;
        let bytes = words.each_ref().map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        String::from_utf8_lossy(bytes.as_flattened())
            .trim_end_matches('\0')
            .to_string()
    }

    /// Lets others attach.
    pub(crate) fn is_ready(&self, store: u128) {
        let control = self.control();
        let numbers = [store as u64, (store >> 64) as u64];
        control
            .store
            .iter()
            .zip(numbers)
            .for_each(|(place, number)| place.store(number, Ordering::Relaxed));
        control
            .library
            .iter()
            .zip(library())
            .for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        // Release: who sees it finds everything in its place.
        control.layout.store(LAYOUT, Ordering::Release);
        self.seat.open_gate();
    }

    /// Whether this is the region of that store.
    pub(crate) fn is_of(&self, store: u128) -> bool {
        let numbers = [store as u64, (store >> 64) as u64];
        self.control()
            .store
            .each_ref()
            .map(|number| number.load(Ordering::Relaxed))
            == numbers
    }

    /// Gives this process's entry up: it has nothing of the store any more. The entry is another one's after
    /// [`Seat::stand_up`].
    pub(crate) fn leave(&self) {
        self.bells().forget(self.me());
        self.process(self.me()).leave();
    }

    /// This process among those that share the store.
    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }

    fn map_what_we_may(file: Arc<dyn File>, seat: Seat) -> Result<Region> {
        let doing_map = |error| Error::io("mapping the shared region", error);
        // A limit (`ulimit -v`, a container, valgrind) may leave fewer addresses: fewer and smaller indexes fit then.
        // Of what there is, an eighth: the data file and the log need some too.
        let mut span = REGION_SPAN_BYTES;
        loop {
            match file.map(span, Access::ReadWrite) {
                Ok(mapping) if span == REGION_SPAN_BYTES => return Ok(Region::of(file, mapping, span, seat)),
                Ok(_) => {
                    span = (span / 8).max(REGION_SPAN_BYTES_MIN);
                    let mapping = file.map(span, Access::ReadWrite).map_err(doing_map)?;
                    return Ok(Region::of(file, mapping, span, seat));
                }
                Err(_) if span > REGION_SPAN_BYTES_MIN => span /= 2,
                Err(error) => return Err(doing_map(error)),
            }
        }
    }

    /// Maps as much as the process did that made the region, which may use all of it.
    fn mapping_of_its_maker(file: &dyn File) -> Result<(Mapping, u64)> {
        let mut span = [0; 8];
        file.read_at(&mut span, offset_of!(Control, span) as u64)
            .map_err(|error| Error::io("reading the shared region", error))?;
        // A region that is not whole, or not of this layout, is refused once its head can be read.
        let span = u64::from_le_bytes(span).clamp(REGION_SPAN_BYTES_MIN, REGION_SPAN_BYTES);
        let doing = |error| {
            let doing =
                format!("mapping the shared region, for which {span} bytes of addresses are needed (`ulimit -v`)");
            Error::io(doing, error)
        };
        Ok((file.map(span, Access::ReadWrite).map_err(doing)?, span))
    }

    fn of(file: Arc<dyn File>, mapping: Mapping, span: u64, seat: Seat) -> Region {
        Region {
            mapping,
            span,
            file,
            elsewhere: None,
            is_last: AtomicBool::new(!seat.is_shared()),
            is_private: false,
            seat,
            forks: duramen_io::forks(),
            lock_looks: AtomicU32::new(looks_of(LOCK_TIMEOUT)),
        }
    }

    /// A region in the memory of this process alone, for stores that are opened read-only.
    pub(crate) fn private() -> Result<Region> {
        let doing = |error| Error::io("making private memory", error);
        let mut region = Region::over(duramen_io::memory_file().map_err(doing)?, None, Seat::alone())?;
        region.is_private = true;
        Ok(region)
    }

    /// Whether this process is a fork of the process that opened the store. A fork owns nothing here.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        duramen_io::forks() != self.forks
    }

    /// This process among those that share the store.
    #[inline]
    pub(crate) fn me(&self) -> Owner {
        self.seat.owner
    }

    /// Waits for a lock of the region and takes it. If the holder has died, the lock is taken over, and `repair` runs
    /// first to restore what the lock guards. If this process dies during the repair, the next process repeats it.
    ///
    /// # Errors
    /// [`Reason::Busy`] when one living process has held the lock for long: it was suspended. Also when the lock was
    /// not free within [`crate::Options::lock_timeout`], or within five seconds if that is more, regardless of its
    /// holders.
    #[inline]
    pub(crate) fn hold<'a>(&self, lock: &'a WordLock, repair: impl Fn()) -> Result<WordLockGuard<'a>> {
        let looks_max = self.lock_looks.load(Ordering::Relaxed).max(BUSY_LOOKS);
        let mut limit = |holder, looks| (looks >= looks_max).then(|| self.busy(holder, LOOK_INTERVAL * looks));
        self.hold_within(lock, &|| 0, &mut limit, repair)
    }

    /// Waits for a lock of the region as [`Region::hold`] does, exactly as long as [`crate::Options::lock_timeout`]
    /// says.
    ///
    /// # Errors
    /// [`Reason::LockTimeout`], which says `what` was waited for; [`Reason::Busy`].
    #[inline]
    pub(crate) fn hold_in_time<'a>(
        &self,
        lock: &'a WordLock,
        what: &'static str,
        repair: impl Fn(),
    ) -> Result<WordLockGuard<'a>> {
        let looks_max = self.lock_looks.load(Ordering::Relaxed);
        let mut limit =
            |holder, looks| (looks >= looks_max).then(|| self.timed_out(what, holder, LOOK_INTERVAL * looks));
        self.hold_within(lock, &|| 0, &mut limit, repair)
    }

    /// `beat` changes while the holder of the lock makes progress. `limit` is called after each look at the holder,
    /// with the number of looks so far; an error from it ends the wait.
    #[inline]
    fn hold_within<'a>(
        &self,
        lock: &'a WordLock,
        beat: &dyn Fn() -> u32,
        limit: &mut dyn FnMut(Owner, u32) -> Option<Error>,
        repair: impl Fn(),
    ) -> Result<WordLockGuard<'a>> {
        let (mut patience, mut looks) = (Patience::default(), 0);
        let held = lock.lock_unless(self.me(), |holder| {
            looks += 1;
            let taken_over = self.take_from_dead(lock, holder, &repair).map(Ok);
            let mut given_up = || {
                patience
                    .look(self, holder, beat())
                    .err()
                    .or_else(|| limit(holder, looks))
            };
            taken_over.or_else(|| given_up().map(Err))
        });
        held.or_else(|taken_over| taken_over)
    }

    /// From now on locks are waited for so long.
    pub(crate) fn limit_locks(&self, timeout: Duration) {
        self.lock_looks.store(looks_of(timeout), Ordering::Relaxed);
    }

    /// As [`Region::hold`], for a lock that its holder may keep for any time while it changes `beat`.
    #[inline]
    pub(crate) fn hold_while_still<'a>(
        &self,
        lock: &'a WordLock,
        beat: impl Fn() -> u32,
        repair: impl Fn(),
    ) -> Result<WordLockGuard<'a>> {
        self.hold_within(lock, &beat, &mut |_, _| None, repair)
    }

    /// As [`Region::hold`], for callers that can do without the lock. `None`: it was not free soon.
    pub(crate) fn hold_soon<'a>(&self, lock: &'a WordLock, repair: impl Fn()) -> Option<WordLockGuard<'a>> {
        let held = lock.lock_unless(self.me(), |holder| Some(self.take_from_dead(lock, holder, &repair)));
        held.map_or_else(|taken_over| taken_over, Some)
    }

    /// What blocks another process, as far as this process can see. In another container the noted PID may belong to
    /// another process. So the answer changes how long this process waits, and nothing else.
    pub(crate) fn hindrance_of(&self, owner: Owner) -> Option<Hindrance> {
        duramen_io::hindrance_of(self.process(owner).process.load(Ordering::Relaxed))
    }

    /// The error after a wait for `holder` that had no result.
    pub(crate) fn busy(&self, holder: Owner, waited: Duration) -> Error {
        let process = self.process(holder).process.load(Ordering::Relaxed);
        Reason::Busy { process, waited }.into()
    }

    /// A lock or an exclusive transaction was waited for as long as a call waits.
    pub(crate) fn timed_out(&self, what: &'static str, holder: Owner, waited: Duration) -> Error {
        let process = self.process(holder).process.load(Ordering::Relaxed);
        let name = duramen_io::process_name(process).unwrap_or_default();
        Reason::LockTimeout {
            what,
            process,
            name,
            waited,
        }
        .into()
    }

    /// Takes a lock from a holder that has died, and puts in order what it guards; for who waits for the lock.
    #[cold]
    pub(crate) fn take_from_dead<'a>(
        &self,
        lock: &'a WordLock,
        holder: Owner,
        repair: &dyn Fn(),
    ) -> Option<WordLockGuard<'a>> {
        if holder == self.me() {
            return None;
        }
        let burial = self.seat.bury()?;
        // Only the holder of the burial lock changes entries of dead processes. So the entry is still that of this
        // process.
        let guard = self
            .is_dead(holder)
            .then(|| lock.take_over(holder, self.me()))
            .flatten()?;
        drop(burial);
        repair();
        Some(guard)
    }

    /// Repairs what a lock guards whose holder has died, as [`Region::hold`] does, and releases the lock.
    pub(crate) fn free_if_dead(&self, lock: &WordLock, repair: impl Fn()) {
        if let Some(holder) = lock.holder() {
            drop(self.take_from_dead(lock, holder, &repair));
        }
    }

    /// Whether another process is dead, and its entry still names it.
    pub(crate) fn is_dead(&self, owner: Owner) -> bool {
        let entry = self.process(owner);
        let arrival = entry.arrival.load(Ordering::Acquire);
        if !entry.is_attached() || self.seat.is_alive(owner) {
            return false;
        }
        // A process that detaches orderly clears its entry before its byte is free. A process that takes the entry now
        // arrived later.
        entry.is_attached() && entry.arrival.load(Ordering::Acquire) == arrival
    }

    /// All processes that are attached, dead ones too.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (Owner, &ProcessEntry)> {
        let used = self.control().entries_used.load(Ordering::SeqCst);
        let owners = (0..used as u16).map(Owner::new);
        let entries = owners.map(|owner| (owner, self.process(owner)));
        entries.filter(|(_, entry)| entry.is_attached())
    }

    /// Why the store has stopped, if it has.
    pub(crate) fn stopped_by(&self) -> Option<String> {
        let has_stopped = self.control().life.0.load(Ordering::Acquire) & STOPPED != 0;
        has_stopped.then(|| self.control().cause.read().unwrap_or_else(|| "an earlier error".into()))
    }

    /// Stops the store in all processes.
    pub(crate) fn stop(&self, cause: &str) {
        self.control().cause.write(cause);
        self.control().life.0.fetch_or(STOPPED, Ordering::SeqCst);
        self.wake_syncs();
    }

    /// Ends the life of all handles: the store was put back to a checkpoint.
    pub(crate) fn begin_another_life(&self) {
        self.control().life.0.fetch_add(ONE_LIFE, Ordering::SeqCst);
        self.wake_syncs();
    }

    fn wake_syncs(&self) {
        for word in &self.control().sync_words.0 {
            word.fetch_add(1, Ordering::SeqCst);
            wake(word, u32::MAX);
        }
    }

    /// What the holder of the allocator's lock can undo.
    pub(crate) fn undo_log(&self) -> &UndoLog {
        // SAFETY: as for `control`; the log is allocated with it, at a multiple of eight bytes.
        unsafe { self.at(UNDO_START) }
    }

    /// What rings in all processes.
    #[inline]
    pub(crate) fn bells(&self) -> &SharedBells {
        // SAFETY: as for `control`; it is allocated with it, at a multiple of a page.
        unsafe { self.at(BELLS_START) }
    }

    /// Who holds others back.
    pub(crate) fn brakes(&self) -> &SharedBrakes {
        // SAFETY: as for `bells`.
        unsafe { self.at(BRAKES_START) }
    }

    /// The entry of a process.
    pub(crate) fn process(&self, owner: Owner) -> &ProcessEntry {
        assert!((owner.number() as usize) < PROCESSES_MAX);
        // SAFETY: as for `control`; the entries are allocated with it.
        unsafe { self.at(PROCESSES_START + u64::from(owner.number()) * PROCESS_BYTES as u64) }
    }

    pub(crate) fn control(&self) -> &Control {
        // SAFETY: the mapping is page-aligned, covers CONTROL_BYTES of allocated file, which began as zeros (a valid
        // Control), and every field is atomic, so shared access from anywhere is sound.
        unsafe { self.at(0) }
    }

    /// What lies at an offset.
    ///
    /// # Safety
    /// A `T` of atomics was allocated there, aligned; zeros are a valid one.
    #[inline(always)]
    unsafe fn at<T>(&self, offset: u64) -> &T {
        // SAFETY: passed on.
        unsafe { &*self.mapping.base().wrapping_add(offset as usize).cast() }
    }

    fn slot(&self, index: usize) -> &Slot {
        assert!(index < self.control().slots_allocated.load(Ordering::Acquire) as usize);
        // SAFETY: as for `control`; the slot lies in the allocated part by the assertion.
        unsafe { self.at(SLOTS_START + index as u64 * SLOT_BYTES) }
    }

    /// The log generation of a log file.
    #[inline]
    pub(crate) fn generation(&self, slot: u16) -> &GenerationEntry {
        assert!((slot as u32) < self.control().generations_allocated.load(Ordering::Acquire));
        // SAFETY: as for `control`; the entry lies in the allocated part by the assertion.
        unsafe { self.at(GENERATIONS_START + u64::from(slot) * GENERATION_BYTES) }
    }

    /// All log generations that may be anything but unused, with the slots of their log files.
    pub(crate) fn generations(&self) -> impl Iterator<Item = (u16, &GenerationEntry)> {
        let used = self.control().generations_used.0.load(Ordering::Acquire) as u16;
        (0..used).map(|slot| (slot, self.generation(slot)))
    }

    /// Frees the lock of the region's growth if its holder is dead.
    pub(crate) fn free_locks_of_dead(&self) {
        self.free_if_dead(&self.control().growth_lock.0, || ());
    }

    /// A process that dies with this lock leaves a consistent state: each change of what it guards is a single store.
    fn hold_growth(&self) -> Result<WordLockGuard<'_>> {
        self.hold(&self.control().growth_lock.0, || ())
    }

    /// Makes an entry one of those that [`Region::generations`] goes through. Its user has claimed it, or is recovery.
    pub(crate) fn use_generation(&self, slot: u16) -> Result<()> {
        let _growing = self.hold_growth()?;
        while slot as u32 >= self.control().generations_allocated.load(Ordering::Relaxed) {
            let count = self.control().generations_allocated.load(Ordering::Relaxed);
            let offset = GENERATIONS_START + count as u64 * GENERATION_BYTES;
            let bytes = GENERATIONS_STEP as u64 * GENERATION_BYTES;
            self.file
                .allocate(offset, bytes)
                .map_err(|error| self.full_or_io("the table of log generations", bytes, error))?;
            self.control()
                .generations_allocated
                .store(count + GENERATIONS_STEP as u32, Ordering::Release);
        }
        let used = &self.control().generations_used.0;
        used.fetch_max(slot as u32 + 1, Ordering::AcqRel);
        Ok(())
    }

    /// How many entries of log generations [`Region::generations`] goes through.
    pub(crate) fn generations_used(&self) -> usize {
        self.control().generations_used.0.load(Ordering::Acquire) as usize
    }

    /// Forgets the last entry, if it is this one, whose file is gone. The caller has claimed it, so that it stays
    /// unused meanwhile. The next process that claims it registers it again.
    pub(crate) fn forget_last_generation(&self, slot: u16) {
        let used = &self.control().generations_used.0;
        let _ = used.compare_exchange(slot as u32 + 1, slot as u32, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Publishes a version. The caller holds the commit lock, or is recovery. A process that dies in here has published
    /// all of it or nothing: the words go to the place that readers do not use yet, and one store makes that place the
    /// newest.
    pub(crate) fn publish(&self, version: &Version) {
        let control = self.control();
        let next = control.published.0.load(Ordering::Relaxed) + 1;
        // Pairs with the acquire fence in `read_version`: a reader that saw any new word, in the place of the version
        // before the last one, sees that there is a newer one than that.
        fence(Ordering::Release);
        let mut words = [0u64; VERSION_WORDS];
        words[0] = version.number;
        words[1] = version.root.page as u64 | (version.root.height as u64) << 32;
        words[2] = version.root.pairs;
        words[3] = version.base_commit;
        words[4] = version.reaches;
        words[5] = version.generations.len() as u64;
        words[6] = version.root.checksum as u64;
        words[7] = version.register.page as u64 | (version.register.pages as u64) << 32;
        words[8] = version.register.checksum as u64;
        for (word, &slot) in words[9..].iter_mut().zip(&version.generations) {
            *word = slot as u64;
        }
        for (place, word) in control.versions[next as usize % 2].iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        // Pairs with the acquire load in `read_version`.
        control.published.0.store(next, Ordering::Release);
    }

    /// The published version and a commit number that belongs to it: `limit` (visible or synced) read between two
    /// looks at the version, so that every commit up to it is in the version's base or generations. It never waits: it
    /// looks again only when a version was published meanwhile.
    #[inline(always)]
    pub(crate) fn read_version(&self, limit: &AtomicU64) -> (Version, u64) {
        let control = self.control();
        loop {
            let newest = control.published.0.load(Ordering::Acquire);
            let mut words = [0u64; VERSION_WORDS];
            for (word, place) in words.iter_mut().zip(&control.versions[newest as usize % 2]) {
                *word = place.load(Ordering::Relaxed);
            }
            // Acquire: everything up to this commit was written before the committer released the number.
            let commit = limit.load(Ordering::Acquire);
            fence(Ordering::Acquire);
            if control.published.0.load(Ordering::Relaxed) != newest {
                continue;
            }
            let count = words[5] as usize;
            let root = Root {
                page: words[1] as u32,
                height: (words[1] >> 32) as u8,
                pairs: words[2],
                checksum: words[6] as u32,
            };
            let register = SavedRegister {
                page: words[7] as u32,
                pages: (words[7] >> 32) as u32,
                checksum: words[8] as u32,
            };
            let generations = words[9..9 + count].iter().map(|&slot| slot as u16).collect();
            return (
                Version {
                    number: words[0],
                    root,
                    base_commit: words[3],
                    reaches: words[4],
                    generations,
                    register,
                },
                commit,
            );
        }
    }

    /// The published version.
    pub(crate) fn version(&self) -> Version {
        self.read_version(&self.control().visible.0).0
    }

    /// As [`full_or_io`]; a region that is elsewhere says where.
    fn full_or_io(&self, what: &'static str, needed: u64, error: std::io::Error) -> Error {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.full_or_io(what, needed, error),
            None => full_or_io(what, needed, error),
        }
    }

    /// This process is the last one, and the gate is closed. The next process that opens the store creates another
    /// region.
    pub(crate) fn goes_with_this_process(&self) {
        self.is_last.store(true, Ordering::Relaxed);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // No process reads it any more, and the next opening creates a new one.
        if self.is_last.load(Ordering::Relaxed) && !self.is_forked() {
            let _ = self.file.set_len(0);
            if let Some(elsewhere) = &self.elsewhere {
                elsewhere.remove();
            }
        }
    }
}

/// How many looks take so long.
fn looks_of(timeout: Duration) -> u32 {
    let looks = timeout.as_nanos().div_ceil(LOOK_INTERVAL.as_nanos());
    u32::try_from(looks).unwrap_or(u32::MAX).max(1)
}

/// This library, as the region says it.
const LIBRARY: &str = env!("CARGO_PKG_VERSION");

fn library() -> [u64; LIBRARY_WORDS] {
    let mut bytes = [0; LIBRARY_WORDS * 8];
    let length = LIBRARY.len().min(bytes.len());
    bytes[..length].copy_from_slice(&LIBRARY.as_bytes()[..length]);
    let word = |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("eight bytes"));
    std::array::from_fn(word)
}

fn in_the_making(path: &str) -> Error {
    let (path, holder) = (
        path.to_string(),
        "a process that could not finish opening it".to_string(),
    );
    Reason::InUse { path, holder }.into()
}

/// A full disk, or a file that may not grow, as the typed error; anything else as an input/output error.
pub(crate) fn full_or_io(what: &'static str, needed: u64, error: std::io::Error) -> Error {
    if duramen_io::is_size_limit(&error) {
        let cause = error.to_string();
        return Reason::NoRoom { what, cause }.into();
    }
    if error.kind() == std::io::ErrorKind::StorageFull {
        Reason::Full { needed, what }.into()
    } else {
        Error::io(format!("making room for {what}"), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_known_up_to_the_last_one_in_use() {
        let region = Region::private().unwrap();
        assert_eq!(region.generations().count(), 0);
        let last = GENERATIONS_MAX as u16 - 1;
        for slot in [3, 200, last] {
            region.use_generation(slot).unwrap();
            assert_eq!(region.generations().count(), slot as usize + 1);
        }
        assert!(region.generation(last).start_preparing(region.me()));
        region.forget_last_generation(200);
        assert_eq!(region.generations_used(), GENERATIONS_MAX);
        region.forget_last_generation(last);
        assert_eq!(region.generations_used(), GENERATIONS_MAX - 1);
    }
}
