//! The shared region: one memory-mapped file (`shared`) that holds everything readers and writers of a store share
//! while it is open: the commit lock, the numbers of the newest visible and synced commits, the published version,
//! the table of log generations, the slots in which snapshots pin versions, what the allocator of the data file knows, and
//! the memory of the indexes.
//!
//! It holds offsets, never pointers, so that another process can attach to it. Nothing in it outlives the last
//! process: the first opener formats it anew and recovery fills it from the data file and the log.
//!
//! ```text
//! 0        Control
//! 4 KiB    processes, 64 bytes each
//! 12 KiB   what the allocator has changed and can undo
//! 44 KiB   log generations, 128 bytes each, allocated in steps
//! 556 KiB  snapshot slots, 64 bytes each, allocated in steps
//! 5 MiB    memory of the allocator's arrays
//! 6 MiB    memory of the indexes, and of larger arrays; both are handed out in pieces
//! ```
//!
//! Invariants: `durable <= base commit <= synced <= visible`; a slot that is neither free nor claimed names a version whose
//! pages and generations nobody may reuse.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use arrayvec::ArrayVec;
use duramen_io::{Access, File, LOOK_INTERVAL, Mapping, OpenMode, Owner, Platform, WordLock, WordLockGuard, wake};

use crate::base::Root;
use crate::error::{Error, Reason, Result};
use crate::limits::{
    GENERATIONS_MAX, LIVE_GENERATIONS_MAX, PAGE_BYTES, PROCESSES_MAX, REGION_SPAN_BYTES, REGION_SPAN_BYTES_MIN,
    SNAPSHOTS_MAX,
};
use crate::processes::{ProcessEntry, Seat};
use crate::promises::{FoldCosts, Promises};
use crate::undo::UndoLog;

/// Name of the region's file in the store directory.
pub(crate) const REGION_FILE: &str = "shared";

const CONTROL_BYTES: u64 = 4 << 10;
const PROCESSES_START: u64 = CONTROL_BYTES;
const PROCESS_BYTES: u64 = size_of::<ProcessEntry>() as u64;
const UNDO_START: u64 = PROCESSES_START + PROCESSES_MAX as u64 * PROCESS_BYTES;
const GENERATIONS_START: u64 = UNDO_START + (32 << 10);
const _: () = assert!(size_of::<UndoLog>() as u64 <= GENERATIONS_START - UNDO_START);
const GENERATION_BYTES: u64 = size_of::<GenerationEntry>() as u64;
const GENERATIONS_STEP: usize = 64;
const SLOTS_START: u64 = GENERATIONS_START + GENERATIONS_MAX as u64 * GENERATION_BYTES;
const SLOT_BYTES: u64 = size_of::<Slot>() as u64;
const SLOTS_STEP: usize = 256;
/// Aligned, so that the memory of indexes begins at a page and at a multiple of what they take.
const MEMORY_START: u64 = (SLOTS_START + SNAPSHOTS_MAX as u64 * SLOT_BYTES).next_multiple_of(512 << 10);
/// The memory of indexes begins here. Before it is that of the allocator's arrays, while they are small.
const INDEXES_START: u64 = MEMORY_START + (1 << 20);
/// Indexes get memory in multiples of this, so that freed pieces fit again.
const MEMORY_STEP: u64 = 64 << 10;

/// Freed memory that is kept at the end: enough for the index of the smallest generation.
const MEMORY_SPARE_BYTES: u64 = 256 << 10;

/// Pin value of a free slot.
const FREE: u64 = 0;
/// Bit of the pin value of a slot whose owner, whose number is the rest, has not yet chosen its version: nothing at all may
/// be reclaimed.
const CLAIMED: u64 = 1 << 63;
/// The first version a store publishes after it is opened.
pub(crate) const FIRST_VERSION: u64 = 2;
/// `follow` value of a snapshot that does not need the generations after its own.
const FOLLOW_NONE: u64 = 0;

/// Words of a published version.
const VERSION_WORDS: usize = 5 + LIVE_GENERATIONS_MAX;

/// Words of the name of a library.
const LIBRARY_WORDS: usize = 4;
/// "durashrd", and the version of the layout of the region and of what its words mean.
const LAYOUT: u64 = u64::from_be_bytes(*b"durashr\x01");

/// How often somebody looks who holds a lock before he gives up: about five seconds.
const BUSY_LOOKS: u32 = 50;

/// One cache line, so that words written by different people do not share one.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// The head of the region. All zeros is its valid first state.
#[repr(C)]
pub(crate) struct Control {
    /// Says that the region is whole, and made by a library that agrees with this one about what lies where.
    layout: AtomicU64,
    /// The library that made it.
    library: [AtomicU64; LIBRARY_WORDS],
    /// What never changes: which store it is.
    store: [AtomicU64; 2],
    /// How many processes ever attached.
    pub(crate) arrivals: AtomicU64,
    /// Serialises commits.
    pub(crate) commit_lock: Line<WordLock>,
    /// Number of the newest commit that readers may see. Released by the committer, acquired by snapshots.
    pub(crate) visible: Line<AtomicU64>,
    /// Number of the newest commit that survives power loss. Released by the syncer, acquired by waiters.
    pub(crate) synced: Line<AtomicU64>,
    /// Newest commit in the durable base: recovery would replay what comes after it.
    pub(crate) durable: Line<AtomicU64>,
    /// Token of the exclusive transaction that is open, or zero. Other writers wait on it.
    pub(crate) exclusive: Line<AtomicU32>,
    /// Held while somebody syncs the log for everybody.
    pub(crate) sync_lock: Line<WordLock>,
    /// Changes whenever `synced` does; waiters sleep on it.
    pub(crate) sync_word: Line<AtomicU32>,
    /// Counts commits whose long values are left to the next sync of the log, and those of them that survive power loss.
    pub(crate) values_written: AtomicU64,
    pub(crate) values_synced: AtomicU64,
    /// Bytes of those values, about, since the last sync.
    pub(crate) values_unsynced_bytes: AtomicU64,
    /// Held while the data file is synced.
    pub(crate) data_sync_lock: Line<WordLock>,
    /// How many processes had attached when the data file was last begun to be synced.
    pub(crate) data_sync_arrivals: AtomicU64,
    /// Held by whoever folds, makes durable and reclaims.
    pub(crate) maintenance_lock: Line<WordLock>,
    /// The published version that has the durable root; always counts as pinned.
    pub(crate) durable_version: AtomicU64,
    /// The version that a new tree is about to be published as, or was, and is not wholly put in order yet; or zero.
    pub(crate) installing: AtomicU64,
    /// Held by whoever gives back what dead processes had.
    pub(crate) burial_lock: Line<WordLock>,
    /// Held by whoever prepares the next generations.
    pub(crate) preparing_lock: Line<WordLock>,
    /// Bytes that the next generation shall take.
    pub(crate) next_capacity: AtomicU64,
    /// Nonzero: the names of all log files are known to survive power loss.
    pub(crate) names_synced: AtomicU32,
    /// Nonzero while generations are freed: commit streams do not begin to read then.
    pub(crate) freeing: AtomicU32,
    /// Changes when a fold ended or a generation became free; who waits for room sleeps on it.
    pub(crate) progress: Line<AtomicU32>,
    /// Changes when there is something to fold; folding threads sleep on it.
    pub(crate) work: Line<AtomicU32>,
    /// Counts commits that made, renamed or dropped maps. Changed under the commit lock.
    pub(crate) catalog: AtomicU64,
    /// Nonzero: a commit stream may be asleep. Set under the commit lock.
    pub(crate) streams_waiting: Line<AtomicU32>,
    /// Changes when there may be something to deliver; commit streams sleep on it.
    pub(crate) streams_word: AtomicU32,
    /// Nonzero once an input/output error stopped the store, and what that was.
    pub(crate) poisoned: Line<AtomicU32>,
    pub(crate) cause: Text,
    /// Nonzero once damage keeps the log from being folded, and what that is: nothing more is written then, but everything
    /// that is not damaged can be read.
    pub(crate) damaged: AtomicU32,
    pub(crate) damage: Text,
    /// How many versions were published. The lowest bit says which of `versions` is the newest.
    published: Line<AtomicU64>,
    versions: [[AtomicU64; VERSION_WORDS]; 2],
    /// State of the commit path, written under the commit lock only.
    pub(crate) tail: Line<Tail>,
    /// Held by whoever makes the region larger, hands out its memory or takes it back. What it guards is changed by single
    /// stores, each of which leaves everything in order.
    pub(crate) growth_lock: Line<WordLock>,
    /// Snapshot slots and log generations that have memory behind them.
    slots_allocated: AtomicU32,
    generations_allocated: AtomicU32,
    /// Token that the next exclusive transaction gets.
    pub(crate) exclusive_tokens: AtomicU32,
    /// The allocator of the data file.
    pub(crate) space: SpaceHead,
    /// Snapshot slots ever used; the rest are free.
    slots_used: Line<AtomicU32>,
    /// Entries of log generations ever used, or that a later one is in use: the rest are unused, without files.
    generations_used: Line<AtomicU32>,
}

const _: () = assert!(size_of::<Control>() <= CONTROL_BYTES as usize);
const _: () = assert!(GENERATION_BYTES == 128 && GENERATIONS_MAX.is_multiple_of(GENERATIONS_STEP));

/// A few words for people, written once.
#[repr(C)]
pub(crate) struct Text {
    /// 0: nothing yet, 1: somebody writes, 2: written.
    state: AtomicU32,
    length: AtomicU32,
    bytes: [AtomicU8; TEXT_BYTES],
}

/// Longer texts are cut.
const TEXT_BYTES: usize = 376;

impl Text {
    /// Writes it, unless somebody has or is just doing it.
    pub(crate) fn write(&self, text: &str) {
        let begun = self.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        if begun.is_err() {
            return;
        }
        let is_end = |&end: &usize| text.is_char_boundary(end);
        let length = (0..=text.len().min(TEXT_BYTES)).rev().find(is_end).unwrap_or(0);
        for (place, &byte) in self.bytes.iter().zip(&text.as_bytes()[..length]) {
            place.store(byte, Ordering::Relaxed);
        }
        self.length.store(length as u32, Ordering::Relaxed);
        // Pairs with the acquire in `read`.
        self.state.store(2, Ordering::Release);
    }

    /// What was written. `None`: nothing, or whoever wrote it died in the middle.
    pub(crate) fn read(&self) -> Option<String> {
        if self.state.load(Ordering::Acquire) != 2 {
            return None;
        }
        let length = self.length.load(Ordering::Relaxed) as usize;
        let bytes: Vec<u8> = self.bytes[..length.min(TEXT_BYTES)]
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed))
            .collect();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Where the next record goes. Written under the commit lock.
#[repr(C)]
pub(crate) struct Tail {
    /// Slot of the generation that takes commits.
    pub(crate) slot: AtomicU32,
    /// Header checksum of the newest record, which the next one names.
    pub(crate) previous: AtomicU32,
    /// Incremented by every recovery.
    pub(crate) epoch: AtomicU32,
    /// Low half of the sequence number of the newest durable meta page.
    pub(crate) meta_sequence: AtomicU32,
    /// Number the next generation gets.
    pub(crate) next_generation: AtomicU32,
    /// Id the next map gets.
    pub(crate) next_map: AtomicU32,
    /// Conflicts can be checked for transactions that began at this commit or later.
    pub(crate) checkable_since: AtomicU64,
    /// The commit whose record was last begun to be written, where, after which record, and what the costs of its
    /// generation were before: for `repair`.
    pub(crate) writing: AtomicU64,
    pub(crate) writing_at: AtomicU64,
    pub(crate) writing_previous: AtomicU32,
    pub(crate) writing_costs: [AtomicU64; 3],
}

/// What a log file is used for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GenerationState {
    /// There is no such file, or it is ready for reuse.
    Unused = 0,
    /// Prepared: the next generation.
    Standby = 1,
    /// Takes commits.
    Active = 2,
    /// Complete, waiting to be folded or being folded.
    Frozen = 3,
    /// In the base, but snapshots or transactions may still read it, or the base is not durable yet.
    Folded = 4,
    /// Somebody is preparing it to become a standby.
    Preparing = 5,
}

/// A piece of the region's memory that somebody has; all zeros: none. Changed under `growth_lock`, read by its owner.
#[repr(C)]
pub(crate) struct Piece {
    offset: AtomicU64,
    bytes: AtomicU64,
}

impl Piece {
    /// Offset in the region and length in bytes.
    pub(crate) fn place(&self) -> (u64, u64) {
        // Acquire: pairs with the stores in `Region::take`.
        (self.offset.load(Ordering::Acquire), self.bytes.load(Ordering::Acquire))
    }
}

/// Where an array of the region is, see `shared_array`. All zeros is an empty one.
#[repr(C)]
pub(crate) struct ArrayHead {
    pub(crate) pieces: [Piece; 2],
    /// Which of the pieces holds the elements.
    pub(crate) current: AtomicU64,
    /// Elements.
    pub(crate) length: AtomicU64,
}

/// What `space` keeps here.
#[repr(C)]
pub(crate) struct SpaceHead {
    /// Held by whoever looks at, or changes, the arrays and counts.
    pub(crate) lock: Line<WordLock>,
    pub(crate) used: ArrayHead,
    pub(crate) loose: ArrayHead,
    pub(crate) taken: ArrayHead,
    pub(crate) retired: ArrayHead,
    pub(crate) loose_runs: ArrayHead,
    /// How many steps are done. The lowest bit says which of `counts` counts.
    pub(crate) step: AtomicU64,
    pub(crate) counts: [[AtomicU64; SPACE_COUNTS]; 2],
    /// What commits read without the lock: pages and blocks that promises can count on, and pages of the published
    /// base, its values, and what commits brought.
    pub(crate) available: Line<AtomicU64>,
    pub(crate) small_blocks: AtomicU64,
    pub(crate) large_blocks: AtomicU64,
    pub(crate) base: AtomicU64,
    /// Pages of the file.
    pub(crate) file_pages: AtomicU64,
    /// Pages up to this one were preloaded, or written before that could have helped.
    pub(crate) preloaded: AtomicU64,
    pub(crate) promises: Promises,
}

/// Numbers that the allocator keeps beside its arrays.
pub(crate) const SPACE_COUNTS: usize = 30;

/// One log generation. Written under the commit lock or by the folding thread alone.
#[repr(C, align(64))]
pub(crate) struct GenerationEntry {
    pub(crate) state: AtomicU32,
    pub(crate) number: AtomicU32,
    /// Memory of the index.
    pub(crate) memory: Piece,
    /// First commit in the log file, and (once frozen) the last.
    pub(crate) first_commit: AtomicU64,
    pub(crate) last_commit: AtomicU64,
    /// Header checksum of the last record, once frozen.
    pub(crate) last_header: AtomicU32,
    /// Counts how often the log file was removed, or may have been.
    pub(crate) incarnation: AtomicU32,
    /// End of the records in the log file.
    pub(crate) tail: AtomicU64,
    /// End of the part that is known to survive power loss.
    pub(crate) synced_tail: AtomicU64,
    /// Length of the file that has blocks: filled with zeros, or allocated right before a long record took them.
    pub(crate) filled: AtomicU64,
    /// Length at which the generation is complete.
    pub(crate) capacity: AtomicU64,
    /// Operations, bytes and pages of values that the fold will move into the base.
    pub(crate) operations: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) value_pages: AtomicU64,
    /// Versions [birth, death) in which this generation is part of what snapshots read.
    pub(crate) birth: AtomicU64,
    pub(crate) death: AtomicU64,
}

impl GenerationEntry {
    pub(crate) fn state(&self) -> GenerationState {
        match self.state.load(Ordering::Acquire) & STATE_MASK {
            0 => GenerationState::Unused,
            1 => GenerationState::Standby,
            2 => GenerationState::Active,
            3 => GenerationState::Frozen,
            4 => GenerationState::Folded,
            5 => GenerationState::Preparing,
            other => panic!("generation state {other} does not exist: the shared region was overwritten"),
        }
    }

    /// Takes an unused entry for preparation; `false` when somebody else was faster.
    pub(crate) fn start_preparing(&self, owner: Owner) -> bool {
        let (from, to) = (GenerationState::Unused as u32, prepared_by(owner));
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether what it holds is not in the base.
    pub(crate) fn is_to_fold(&self) -> bool {
        matches!(self.state(), GenerationState::Active | GenerationState::Frozen)
    }

    /// What folding it takes.
    pub(crate) fn costs(&self) -> FoldCosts {
        FoldCosts {
            operations: self.operations.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            value_pages: self.value_pages.load(Ordering::Relaxed),
        }
    }

    /// Whether this process prepares the entry.
    pub(crate) fn is_prepared_by(&self, owner: Owner) -> bool {
        self.state.load(Ordering::Acquire) == prepared_by(owner)
    }

    /// Release: whoever sees the state sees the fields that were written before it.
    pub(crate) fn set_state(&self, state: GenerationState) {
        self.state.store(state as u32, Ordering::Release);
    }
}

/// The state of a generation; the rest says who prepares it.
const STATE_MASK: u32 = 0xFF;

fn prepared_by(owner: Owner) -> u32 {
    GenerationState::Preparing as u32 | u32::from(owner.number()) << 8
}

/// A version as published: the base and the generations above it, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u64,
    pub(crate) root: Root,
    /// The newest commit contained in the base.
    pub(crate) base_commit: u64,
    /// Slots of the live generations, oldest first; the last one takes commits.
    pub(crate) generations: ArrayVec<u16, LIVE_GENERATIONS_MAX>,
}

/// Where one snapshot pins its version.
#[repr(C, align(64))]
pub(crate) struct Slot {
    pin: AtomicU64,
    /// Number of the oldest generation that must be kept, with all after it, beyond those of the version.
    follow: AtomicU64,
    /// Process id of the owner.
    pub(crate) process: AtomicU32,
    /// 0 snapshot, 1 write transaction, 2 commit stream.
    pub(crate) purpose: AtomicU32,
    /// Commit that the snapshot shows.
    pub(crate) commit: AtomicU64,
    /// Time of day at which it was taken, in milliseconds since 1970.
    pub(crate) since: AtomicU64,
    /// Counts the uses of this slot that are over, so that an id names one snapshot for ever. Written by the owner.
    uses: AtomicU64,
    /// One more than the newest use that somebody ended, so that it cannot be taken for the end of a later one.
    ended: AtomicU64,
    /// Number of the entry of the process whose slot it is.
    owner: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// Bits of an id that are the slot's index. The rest counts its uses: at a million a second they last nine years.
const SLOT_INDEX_BITS: u32 = 16;
const _: () = assert!(SNAPSHOTS_MAX <= 1 << SLOT_INDEX_BITS);

/// The pins that a reclaim must respect.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// Somebody is just beginning: reclaim nothing.
    pub(crate) everything: bool,
    /// Pinned versions, ascending.
    pub(crate) versions: Vec<u64>,
    /// Oldest generation number that a write transaction or stream follows.
    pub(crate) follow: Option<u64>,
    /// Oldest version of one that follows and can still go on.
    pub(crate) follow_version: Option<u64>,
}

impl Pins {
    /// Whether a version in `birth..death` is pinned.
    pub(crate) fn hold(&self, birth: u64, death: u64) -> bool {
        let first = self.versions.partition_point(|&version| version < birth);
        self.everything || self.versions.get(first).is_some_and(|&version| version < death)
    }

    /// Whether somebody follows the log from before `death`, and so may meet a reference to what died then.
    pub(crate) fn hold_logged(&self, death: u64) -> bool {
        self.follow_version.is_some_and(|version| version < death)
    }
}

/// The mapped region.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Mapping,
    /// Bytes of it that can be used: [`REGION_SPAN_BYTES`], or less where the process may not have so many addresses.
    span: u64,
    file: Arc<dyn File>,
    seat: Seat,
    /// Whether nobody else can have the region mapped any more.
    is_last: AtomicBool,
    /// What [`duramen_io::forks`] said when it was mapped.
    forks: u32,
}

impl Region {
    /// Makes the region of a store that nobody else has open. `exists`: there is a file of that name, which handles of a
    /// closed store may still have mapped; so it is left to them, and another one made.
    pub(crate) fn create(platform: &Platform, exists: bool, seat: Seat) -> Result<Region> {
        let doing = |error| Error::io("making the shared region", error);
        if exists {
            platform.storage.remove(REGION_FILE).map_err(doing)?;
        }
        let file = platform.storage.open(REGION_FILE, OpenMode::Create).map_err(doing)?;
        file.set_len(0).map_err(doing)?;
        Region::over(file, seat)
    }

    fn over(file: Arc<dyn File>, seat: Seat) -> Result<Region> {
        let head = GENERATIONS_START + GENERATIONS_STEP as u64 * GENERATION_BYTES;
        let slots = SLOTS_STEP as u64 * SLOT_BYTES;
        for (offset, bytes) in [(0, head), (SLOTS_START, slots)] {
            file.allocate(offset, bytes)
                .map_err(|error| full_or_io("the shared region", bytes, error))?;
        }
        let region = Region::map(file, seat)?;
        let control = region.control();
        control.slots_allocated.store(SLOTS_STEP as u32, Ordering::Relaxed);
        control
            .generations_allocated
            .store(GENERATIONS_STEP as u32, Ordering::Relaxed);
        Ok(region)
    }

    /// Takes this process's entry in the table, which nobody else has.
    pub(crate) fn sit_down(&self, process: u32, now: Duration) {
        let arrival = self.control().arrivals.fetch_add(1, Ordering::Relaxed);
        self.process(self.me()).occupy(process, now, arrival);
    }

    /// Attaches to the region of a store that other processes have open, and takes an entry in their table.
    pub(crate) fn attach(platform: &Platform, path: &str, seat: Seat) -> Result<Region> {
        let doing = |error| Error::io("attaching to the shared region", error);
        let file = platform.storage.open(REGION_FILE, OpenMode::Write).map_err(doing)?;
        if file.len().map_err(doing)? < GENERATIONS_START {
            return Err(in_the_making(path));
        }
        let mut region = Region::map(file, seat)?;
        region.check_layout(path)?;
        let free = (0..PROCESSES_MAX as u16).map(Owner::new);
        let free: Vec<Owner> = free.filter(|&owner| !region.process(owner).is_attached()).collect();
        for owner in free {
            if region.seat.sit(owner.number())? {
                return Ok(region);
            }
        }
        Err(Reason::TooManyProcesses { open: PROCESSES_MAX }.into())
    }

    /// Refuses a region that a library made which does not agree with this one.
    fn check_layout(&self, path: &str) -> Result<()> {
        let control = self.control();
        // Acquire: pairs with the Release in `is_ready`.
        match control.layout.load(Ordering::Acquire) {
            0 => return Err(in_the_making(path)),
            LAYOUT if control.library.each_ref().map(|word| word.load(Ordering::Relaxed)) == library() => {}
            _ => {
                let found = control
                    .library
                    .each_ref()
                    .map(|word| word.load(Ordering::Relaxed).to_le_bytes());
                let found = String::from_utf8_lossy(found.as_flattened())
                    .trim_end_matches('\0')
                    .to_string();
                return Err(Reason::OtherVersion {
                    path: path.to_string(),
                    found,
                    ours: LIBRARY.to_string(),
                }
                .into());
            }
        }
        Ok(())
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

    /// Gives this process's entry up: it has nothing of the store any more.
    pub(crate) fn leave(&self) {
        self.process(self.me()).leave();
        self.seat.stand_up();
    }

    /// This process among those that share the store.
    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }

    fn map(file: Arc<dyn File>, seat: Seat) -> Result<Region> {
        let doing_map = |error| Error::io("mapping the shared region", error);
        // A limit (`ulimit -v`, a container, valgrind) may leave fewer addresses: fewer and smaller indexes fit then.
        // Of what there is, an eighth: the data file and the log need some too.
        let mut span = REGION_SPAN_BYTES;
        let mapping = loop {
            match file.map(span, Access::ReadWrite) {
                Ok(mapping) if span == REGION_SPAN_BYTES => break mapping,
                // Another process may use all of it.
                Err(error) if seat.is_shared() => return Err(doing_map(error)),
                Ok(_) => {
                    span = (span / 8).max(REGION_SPAN_BYTES_MIN);
                    break file.map(span, Access::ReadWrite).map_err(doing_map)?;
                }
                Err(_) if span > REGION_SPAN_BYTES_MIN => span /= 2,
                Err(error) => return Err(doing_map(error)),
            }
        };
        let is_last = AtomicBool::new(!seat.is_shared());
        Ok(Region {
            mapping,
            span,
            file,
            seat,
            is_last,
            forks: duramen_io::forks(),
        })
    }

    /// A region in the memory of this process alone, for stores that are opened read-only.
    pub(crate) fn private() -> Result<Region> {
        let doing = |error| Error::io("making private memory", error);
        Region::over(duramen_io::memory_file().map_err(doing)?, Seat::alone())
    }

    /// Whether this process was forked from the one that opened the store: then nothing here is its own.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        duramen_io::forks() != self.forks
    }

    /// This process among those that share the store.
    #[inline]
    pub(crate) fn me(&self) -> Owner {
        self.seat.owner
    }

    /// Waits for a lock of the region and takes it. From a holder that has died it is taken over: then `repair` is called
    /// first, with the lock, to put in order what it guards. Whoever dies in that is followed by another one, who begins
    /// it anew.
    #[inline]
    pub(crate) fn hold<'a>(&self, lock: &'a WordLock, repair: impl Fn()) -> WordLockGuard<'a> {
        let held = lock.lock_unless(self.me(), |holder| self.take_from_dead(lock, holder, &repair));
        held.unwrap_or_else(|taken_over| taken_over)
    }

    /// The same, for a lock that nobody has for long who is not stopped.
    ///
    /// # Errors
    /// [`Reason::Busy`] with the process that is stopped.
    #[inline]
    pub(crate) fn hold_patiently<'a>(&self, lock: &'a WordLock, repair: impl Fn()) -> Result<WordLockGuard<'a>> {
        let mut looks = 0;
        let held = lock.lock_unless(self.me(), |holder| {
            looks += 1;
            let taken_over = self.take_from_dead(lock, holder, &repair).map(Ok);
            taken_over.or_else(|| (looks >= BUSY_LOOKS && holder != self.me()).then(|| Err(self.busy(holder))))
        });
        held.or_else(|taken_over| taken_over)
    }

    fn busy(&self, holder: Owner) -> Error {
        let process = self.process(holder).process.load(Ordering::Relaxed);
        let waited = LOOK_INTERVAL * BUSY_LOOKS;
        Reason::Busy { process, waited }.into()
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
        // While nobody else buries, the entry of a dead process stays that: so this is still about the same one.
        let is_dead = self.process(holder).is_attached() && !self.seat.is_alive(holder);
        let guard = is_dead.then(|| lock.take_over(holder, self.me())).flatten()?;
        drop(burial);
        repair();
        Some(guard)
    }

    /// Puts in order what a lock guards whose holder has died, as [`Region::hold`] does, and lets go of it.
    pub(crate) fn free_if_dead(&self, lock: &WordLock, repair: impl Fn()) {
        if let Some(holder) = lock.holder() {
            drop(self.take_from_dead(lock, holder, &repair));
        }
    }

    /// All processes that are attached, dead ones too.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (Owner, &ProcessEntry)> {
        let owners = (0..PROCESSES_MAX as u16).map(Owner::new);
        let entries = owners.map(|owner| (owner, self.process(owner)));
        entries.filter(|(_, entry)| entry.is_attached())
    }

    /// Why the store has stopped, if it has.
    pub(crate) fn stopped_by(&self) -> Option<String> {
        let has_stopped = self.control().poisoned.0.load(Ordering::Acquire) != 0;
        has_stopped.then(|| self.control().cause.read().unwrap_or_else(|| "an earlier error".into()))
    }

    /// Stops the store in all processes.
    pub(crate) fn stop(&self, cause: &str) {
        self.control().cause.write(cause);
        self.control().poisoned.0.store(1, Ordering::SeqCst);
        self.control().sync_word.0.fetch_add(1, Ordering::SeqCst);
        wake(&self.control().sync_word.0, u32::MAX);
    }

    /// What the holder of the allocator's lock can undo.
    pub(crate) fn undo_log(&self) -> &UndoLog {
        // SAFETY: as for `control`; the log is allocated with it, at a multiple of eight bytes.
        unsafe { &*(self.mapping.base().add(UNDO_START as usize) as *const UndoLog) }
    }

    /// The entry of a process.
    pub(crate) fn process(&self, owner: Owner) -> &ProcessEntry {
        assert!((owner.number() as usize) < PROCESSES_MAX);
        let offset = PROCESSES_START as usize + owner.number() as usize * PROCESS_BYTES as usize;
        // SAFETY: as for `control`; the entries are allocated with it.
        unsafe { &*(self.mapping.base().add(offset) as *const ProcessEntry) }
    }

    pub(crate) fn control(&self) -> &Control {
        // SAFETY: the mapping is page-aligned, covers CONTROL_BYTES of allocated file, which began as zeros (a valid
        // Control), and every field is atomic, so shared access from anywhere is sound.
        unsafe { &*(self.mapping.base() as *const Control) }
    }

    fn slot(&self, index: usize) -> &Slot {
        assert!(index < self.control().slots_allocated.load(Ordering::Acquire) as usize);
        let offset = SLOTS_START as usize + index * SLOT_BYTES as usize;
        // SAFETY: as for `control`; the slot lies in the allocated part by the assertion.
        unsafe { &*(self.mapping.base().add(offset) as *const Slot) }
    }

    /// The log generation of a log file.
    #[inline]
    pub(crate) fn generation(&self, slot: u16) -> &GenerationEntry {
        assert!((slot as u32) < self.control().generations_allocated.load(Ordering::Acquire));
        let offset = GENERATIONS_START as usize + slot as usize * GENERATION_BYTES as usize;
        // SAFETY: as for `control`; the entry lies in the allocated part by the assertion.
        unsafe { &*(self.mapping.base().add(offset) as *const GenerationEntry) }
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

    /// Whoever dies with this lock leaves everything in order: what it guards is changed by single stores.
    fn hold_growth(&self) -> WordLockGuard<'_> {
        self.hold(&self.control().growth_lock.0, || ())
    }

    /// Makes an entry one of those that [`Region::generations`] goes through. Its user has claimed it, or is recovery.
    pub(crate) fn use_generation(&self, slot: u16) -> Result<()> {
        let _growing = self.hold_growth();
        while slot as u32 >= self.control().generations_allocated.load(Ordering::Relaxed) {
            let count = self.control().generations_allocated.load(Ordering::Relaxed);
            let offset = GENERATIONS_START + count as u64 * GENERATION_BYTES;
            let bytes = GENERATIONS_STEP as u64 * GENERATION_BYTES;
            self.file
                .allocate(offset, bytes)
                .map_err(|error| full_or_io("the table of log generations", bytes, error))?;
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
    /// unused meanwhile; whoever claims it next makes it known again.
    pub(crate) fn forget_last_generation(&self, slot: u16) {
        let used = &self.control().generations_used.0;
        let _ = used.compare_exchange(slot as u32 + 1, slot as u32, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// First byte of a piece of memory.
    pub(crate) fn memory(&self, offset: u64) -> *mut u8 {
        assert!((MEMORY_START..self.span).contains(&offset));
        // SAFETY: the offset lies inside the mapping.
        unsafe { self.mapping.base().add(offset as usize) }
    }

    /// Asks the kernel for the memory of a piece that is about to be written: a commit that faults it in page by page may
    /// have to wait for the file system's journal.
    pub(crate) fn populate(&self, offset: u64, bytes: u64) {
        self.mapping.populate(offset, bytes);
    }

    /// All pieces of memory that somebody has, ascending. Under `growth_lock`.
    fn pieces(&self) -> Vec<(u64, u64)> {
        let space = &self.control().space;
        let arrays = [
            &space.used,
            &space.loose,
            &space.taken,
            &space.retired,
            &space.loose_runs,
        ];
        let arrays = arrays
            .into_iter()
            .flat_map(|array| array.pieces.iter().map(Piece::place));
        let indexes = self.generations().map(|(_, entry)| entry.memory.place());
        let mut pieces: Vec<(u64, u64)> = indexes.chain(arrays).filter(|(_, bytes)| *bytes > 0).collect();
        pieces.sort_unstable();
        pieces
    }

    /// Finds memory for an index and makes it the piece of `owner`, who has none. Returns its place.
    pub(crate) fn take(&self, owner: &Piece, bytes: u64) -> Result<(u64, u64)> {
        let _growing = self.hold_growth();
        let bytes = bytes.next_multiple_of(MEMORY_STEP);
        self.take_between(owner, bytes, INDEXES_START..self.span)
    }

    /// The same for an array: apart from the indexes as long as they are small, so that an index always fits where one
    /// was before.
    pub(crate) fn take_for_array(&self, owner: &Piece, bytes: u64) -> Result<(u64, u64)> {
        let _growing = self.hold_growth();
        let bytes = bytes.next_multiple_of(PAGE_BYTES as u64);
        match self.find(MEMORY_START..INDEXES_START, bytes) {
            Some(_) => self.take_between(owner, bytes, MEMORY_START..INDEXES_START),
            None => self.take_between(owner, bytes, INDEXES_START..self.span),
        }
    }

    /// The first place for so many bytes that is nobody's.
    fn find(&self, range: Range<u64>, bytes: u64) -> Option<u64> {
        let mut offset = range.start;
        for (used, length) in self.pieces() {
            if used >= offset && used.min(range.end).saturating_sub(offset) >= bytes {
                break;
            }
            offset = offset.max(used + length);
        }
        (offset + bytes <= range.end).then_some(offset)
    }

    /// Allocates the file behind a piece before it is one. Under `growth_lock`.
    fn take_between(&self, owner: &Piece, bytes: u64, range: Range<u64>) -> Result<(u64, u64)> {
        assert_eq!(owner.place().1, 0, "an owner has one piece of memory");
        let Some(offset) = self.find(range, bytes) else {
            let what = "index memory, of which open snapshots hold what there is (`stat` lists them)";
            return Err(Reason::Full { needed: bytes, what }.into());
        };
        self.file
            .allocate(offset, bytes)
            // A part may have been had; it is for others.
            .inspect_err(|_| self.cut(self.end_of_memory() + MEMORY_SPARE_BYTES))
            .map_err(|error| full_or_io("index memory", bytes, error))?;
        owner.offset.store(offset, Ordering::Release);
        // Last: a piece without a length is nobody's.
        owner.bytes.store(bytes, Ordering::Release);
        Ok((offset, bytes))
    }

    /// Gives a piece of memory back, and the end of the file behind all pieces to the file system.
    pub(crate) fn give_back(&self, owner: &Piece) {
        let _growing = self.hold_growth();
        owner.bytes.store(0, Ordering::Release);
        // A little is kept: on a disk that is full by now, deletions still need the next generation's index.
        self.cut(self.end_of_memory() + MEMORY_SPARE_BYTES);
    }

    /// Makes sure that there is memory for a few more small indexes.
    pub(crate) fn keep_spare_memory(&self) -> Result<()> {
        let _growing = self.hold_growth();
        self.file
            .allocate(self.end_of_memory().max(INDEXES_START), MEMORY_SPARE_BYTES)
            .map_err(|error| full_or_io("index memory", MEMORY_SPARE_BYTES, error))
    }

    /// Gives all memory that is nobody's back, behind the last piece and between pieces. For a quiet store, whose next
    /// indexes are prepared.
    pub(crate) fn cut_memory(&self) {
        let _growing = self.hold_growth();
        self.cut(self.end_of_memory());
        let mut end = MEMORY_START;
        for (used, length) in self.pieces() {
            self.file.discard(end, used - end);
            end = used + length;
        }
    }

    /// Whether indexes lie further from the beginning than all of them take together.
    pub(crate) fn memory_has_holes(&self) -> bool {
        let _growing = self.hold_growth();
        let mut pieces = self.pieces();
        pieces.retain(|&(used, _)| used >= INDEXES_START);
        let in_use: u64 = pieces.iter().map(|&(_, bytes)| bytes).sum();
        let end = pieces.last().map_or(INDEXES_START, |&(used, length)| used + length);
        end > INDEXES_START + in_use
    }

    fn end_of_memory(&self) -> u64 {
        let slots_end = SLOTS_START + self.control().slots_allocated.load(Ordering::Relaxed) as u64 * SLOT_BYTES;
        self.pieces().last().map_or(slots_end, |&(used, length)| used + length)
    }

    fn cut(&self, end: u64) {
        // Keeping the length is harmless, so a failure here is not worth an error.
        if self.file.len().is_ok_and(|length| length > end) {
            let _ = self.file.set_len(end);
        }
    }

    /// Bytes of index memory in use.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.generations().map(|(_, entry)| entry.memory.place().1).sum()
    }

    /// Publishes a version. The caller holds the commit lock, or is recovery. Whoever dies in here has published it or not:
    /// the words go to the place that nobody is told of, and one store makes that the newest.
    pub(crate) fn publish(&self, version: &Version) {
        let control = self.control();
        let next = control.published.0.load(Ordering::Relaxed) + 1;
        // Pairs with the acquire fence in `read_version`: a reader that saw any new word, in the place of the version before
        // the last one, sees that there is a newer one than that.
        fence(Ordering::Release);
        let mut words = [0u64; VERSION_WORDS];
        words[0] = version.number;
        words[1] = version.root.page as u64 | (version.root.height as u64) << 32;
        words[2] = version.root.pairs;
        words[3] = version.base_commit;
        words[4] = version.generations.len() as u64;
        for (word, &slot) in words[5..].iter_mut().zip(&version.generations) {
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
            let count = words[4] as usize;
            let root = Root {
                page: words[1] as u32,
                height: (words[1] >> 32) as u8,
                pairs: words[2],
            };
            let generations = words[5..5 + count].iter().map(|&slot| slot as u16).collect();
            return (
                Version {
                    number: words[0],
                    root,
                    base_commit: words[3],
                    generations,
                },
                commit,
            );
        }
    }

    /// The published version.
    pub(crate) fn version(&self) -> Version {
        self.read_version(&self.control().visible.0).0
    }

    /// Takes a slot and pins the published version in it; `hint` is where to look first.
    #[inline(always)]
    pub(crate) fn pin(&self, hint: usize, limit: &AtomicU64) -> Result<(Pin, Version, u64)> {
        let index = self.claim(hint)?;
        let slot = self.slot(index);
        // The claim stored that nothing may go; this fence orders it before the reads of the version. It pairs with the fence in
        // `pins`: either the reclaimer sees our pin, or we see the version it published before it looked.
        fence(Ordering::SeqCst);
        let (version, commit) = self.read_version(limit);
        slot.commit.store(commit, Ordering::Relaxed);
        slot.pin.store(version.number, Ordering::Release);
        Ok((Pin { index: index as u32 }, version, commit))
    }

    #[inline]
    fn claim(&self, hint: usize) -> Result<usize> {
        let used = &self.control().slots_used.0;
        let claimed = CLAIMED | u64::from(self.me().number());
        loop {
            let count = used.load(Ordering::Acquire) as usize;
            for step in 0..count {
                let index = (hint + step) % count;
                let slot = self.slot(index);
                if slot.pin.load(Ordering::Relaxed) == FREE
                    && slot
                        .pin
                        .compare_exchange(FREE, claimed, Ordering::SeqCst, Ordering::Relaxed)
                        .is_ok()
                {
                    // Before the version is in its place, which is what the owner is looked up for.
                    slot.owner.store(u32::from(self.me().number()), Ordering::Relaxed);
                    return Ok(index);
                }
            }
            if count == SNAPSHOTS_MAX {
                return Err(Reason::TooManySnapshots { open: count }.into());
            }
            self.add_slot(count)?;
        }
    }

    /// Makes slot number `count` usable, unless somebody else just did.
    fn add_slot(&self, count: usize) -> Result<()> {
        let _growing = self.hold_growth();
        if count == self.control().slots_allocated.load(Ordering::Relaxed) as usize {
            let offset = SLOTS_START + count as u64 * SLOT_BYTES;
            let bytes = SLOTS_STEP as u64 * SLOT_BYTES;
            self.file
                .allocate(offset, bytes)
                .map_err(|error| full_or_io("snapshot slots", bytes, error))?;
            self.control()
                .slots_allocated
                .store((count + SLOTS_STEP) as u32, Ordering::Release);
        }
        let used = &self.control().slots_used.0;
        let _ = used.compare_exchange(count as u32, count as u32 + 1, Ordering::SeqCst, Ordering::Relaxed);
        Ok(())
    }

    /// The slot behind a pin.
    pub(crate) fn pinned(&self, pin: &Pin) -> &Slot {
        self.slot(pin.index as usize)
    }

    /// Lets all generations from `number` on be kept for this pin, or no longer.
    pub(crate) fn follow(&self, pin: &Pin, number: Option<u32>) {
        self.pinned(pin)
            .follow
            .store(number.map_or(FOLLOW_NONE, |n| n as u64 + 1), Ordering::SeqCst);
    }

    /// Takes a slot for a version that somebody else has pinned and keeps pinned meanwhile.
    pub(crate) fn pin_again(&self, version: u64, commit: u64) -> Result<Pin> {
        let index = self.claim(0)?;
        let slot = self.slot(index);
        slot.commit.store(commit, Ordering::Relaxed);
        slot.pin.store(version, Ordering::SeqCst);
        Ok(Pin { index: index as u32 })
    }

    /// Frees a slot.
    pub(crate) fn unpin(&self, pin: &Pin) {
        if self.is_forked() {
            // It is the parent's.
            return;
        }
        let slot = self.pinned(pin);
        slot.follow.store(FOLLOW_NONE, Ordering::Relaxed);
        slot.uses
            .store(slot.uses.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Release: all reads of the snapshot happen before a reclaimer that sees the slot free.
        slot.pin.store(FREE, Ordering::Release);
    }

    /// Whether this process holds a slot.
    pub(crate) fn is_pinned_here(&self) -> bool {
        let used = self.control().slots_used.0.load(Ordering::SeqCst) as usize;
        (0..used).any(|index| self.slot(index).is_of(self.me()))
    }

    /// This process is the last one, and the gate is closed: whoever comes next makes another region.
    pub(crate) fn goes_with_this_process(&self) {
        self.is_last.store(true, Ordering::Relaxed);
    }

    /// Frees the slots of a process that is dead.
    pub(crate) fn unpin_all_of(&self, owner: Owner) {
        let used = self.control().slots_used.0.load(Ordering::SeqCst) as usize;
        for index in (0..used).filter(|&index| self.slot(index).is_of(owner)) {
            self.unpin(&Pin { index: index as u32 });
        }
    }

    /// Whether anybody holds a slot.
    pub(crate) fn is_pinned(&self) -> bool {
        let used = self.control().slots_used.0.load(Ordering::SeqCst) as usize;
        (0..used).any(|index| self.slot(index).pin.load(Ordering::SeqCst) != FREE)
    }

    /// Everything that is pinned. To be called after the version that the caller wants to protect was published.
    pub(crate) fn pins(&self) -> Pins {
        // Pairs with the fence in `pin`.
        fence(Ordering::SeqCst);
        let mut pins = Pins::default();
        let readable_since = self.control().tail.0.checkable_since.load(Ordering::Relaxed);
        for index in 0..self.control().slots_used.0.load(Ordering::SeqCst) as usize {
            let slot = self.slot(index);
            let follow = slot.follow.load(Ordering::SeqCst);
            let version = slot.pin.load(Ordering::SeqCst);
            match version {
                FREE => continue,
                claimed if claimed >= CLAIMED => pins.everything = true,
                version => pins.versions.push(version),
            }
            if follow != FOLLOW_NONE {
                pins.follow = Some(pins.follow.map_or(follow - 1, |oldest| oldest.min(follow - 1)));
            }
            // Who has lost a generation that it follows gets an error and reads no further.
            if follow != FOLLOW_NONE && slot.commit.load(Ordering::Relaxed) >= readable_since {
                pins.follow_version = Some(pins.follow_version.map_or(version, |oldest| oldest.min(version)));
            }
        }
        pins.versions.sort_unstable();
        pins
    }

    /// Who pins the oldest commits, in words: at most so many of them, and how many more there are.
    pub(crate) fn holders(&self, most: usize) -> String {
        let mut slots = self.slots_in_use();
        slots.sort_by_key(|(_, _, slot)| slot.commit.load(Ordering::Relaxed));
        let named: Vec<String> = slots
            .iter()
            .take(most)
            .map(|(index, _, slot)| {
                let (id, process) = (slot.id(*index), slot.process.load(Ordering::Relaxed));
                let commit = slot.commit.load(Ordering::Relaxed);
                format!("{} {id} of process {process} at commit {commit}", slot.purpose_name())
            })
            .collect();
        let more = slots.len() - named.len();
        let rest = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        named.join(", ") + &rest
    }

    /// The slots in use with their indexes, for statistics and for ending snapshots.
    pub(crate) fn slots_in_use(&self) -> Vec<(u32, u64, &Slot)> {
        let count = self.control().slots_used.0.load(Ordering::Acquire) as usize;
        let pinned = |index: usize| {
            (
                index as u32,
                self.slot(index).pin.load(Ordering::Acquire),
                self.slot(index),
            )
        };
        (0..count).map(pinned).filter(|(_, pin, _)| is_version(*pin)).collect()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Nobody reads it any more, and whoever opens the store next makes it anew.
        if self.is_last.load(Ordering::Relaxed) && !self.is_forked() {
            let _ = self.file.set_len(0);
        }
    }
}

impl Slot {
    /// Whether a process has this slot.
    pub(crate) fn is_of(&self, owner: Owner) -> bool {
        // Acquire: who sees a version sees whose it is.
        match self.pin.load(Ordering::SeqCst) {
            FREE => false,
            claimed if claimed >= CLAIMED => claimed == CLAIMED | u64::from(owner.number()),
            _ => self.owner.load(Ordering::Acquire) == u32::from(owner.number()),
        }
    }

    /// The id of the slot's present use: index and number of the use.
    pub(crate) fn id(&self, index: u32) -> u64 {
        self.uses.load(Ordering::Relaxed) << SLOT_INDEX_BITS | index as u64
    }

    /// Ends the use that an id names, which may be over by now: then nothing happens to the present one.
    pub(crate) fn end(&self, id: u64) {
        self.ended.fetch_max((id >> SLOT_INDEX_BITS) + 1, Ordering::Release);
    }

    /// Whether the present use was ended. For its owner, and for figures that may be a moment old.
    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) == self.uses.load(Ordering::Relaxed) + 1
    }

    /// What the slot is used for, in words.
    pub(crate) fn purpose_name(&self) -> &'static str {
        match self.purpose.load(Ordering::Relaxed) {
            0 => "snapshot",
            1 => "transaction",
            _ => "changes",
        }
    }
}

/// Whether the pin value of a slot is a version.
fn is_version(pin: u64) -> bool {
    pin != FREE && pin < CLAIMED
}

/// A pinned version; give it back with [`Region::unpin`].
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) index: u32,
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

/// A full disk as the typed error, anything else as an input/output error.
pub(crate) fn full_or_io(what: &'static str, needed: u64, error: std::io::Error) -> Error {
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
    fn ending_a_use_of_a_slot_that_is_over_leaves_the_next_one_alone() {
        let region = Region::private().unwrap();
        let pin = || region.pin(0, &region.control().visible.0).unwrap().0;
        let first = pin();
        let (index, id) = (first.index, region.pinned(&first).id(first.index));
        region.unpin(&first);
        let second = pin();
        assert_eq!(second.index, index);
        let slot = region.pinned(&second);
        // Somebody found the first use, and gets to ending it only now.
        slot.end(id);
        assert!(!slot.is_ended());
        slot.end(slot.id(index));
        slot.end(id);
        assert!(slot.is_ended());
        region.unpin(&second);
        assert!(!region.pinned(&pin()).is_ended());
    }

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
