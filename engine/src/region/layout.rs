//! What lies at the beginning of the region: numbers, locks and small tables, all of atomics, and all valid as zeros.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use duramen_io::{Owner, WordLock};

use super::warm::SharedMark;
use super::{CONTROL_BYTES, GENERATION_BYTES, GENERATIONS_STEP, LIBRARY_WORDS, VERSION_WORDS};
use crate::datafile::promises::{Promises, SharedCosts};
use crate::limits::GENERATIONS_MAX;

/// One cache line, so that words written by different people do not share one.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// The head of the region. All zeros is its valid first state.
#[repr(C)]
pub(crate) struct Control {
    /// Says that the region is whole, and made by a library that agrees with this one about what lies where.
    pub(super) layout: AtomicU64,
    /// The library that made it.
    pub(super) library: [AtomicU64; LIBRARY_WORDS],
    /// What never changes: which store it is.
    pub(super) store: [AtomicU64; 2],
    /// Bytes of addresses that the process took which made the region: all that others may find in it is below.
    pub(super) span: AtomicU64,
    /// Counts processes that attach.
    pub(crate) arrivals: AtomicU64,
    /// How many entries of the table of processes have been anybody's, from the first one on.
    pub(super) entries_used: AtomicU32,
    /// Which opening of the store made the region: the epoch of the log that began with it.
    pub(crate) opening: AtomicU64,
    /// What is added to the monotonic clock, in microseconds, to get the clock that all processes share.
    pub(crate) clock_base: AtomicU64,
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
    /// How fast commits may come.
    pub(crate) pace: Line<PaceWords>,
    /// Held while one thread syncs the log for all waiting commits.
    pub(crate) sync_lock: Line<WordLock>,
    /// Change whenever `synced` does; waiters sleep on them, by turns: on the one those of the sync that goes on, on
    /// the other one those who came too late for it.
    pub(crate) sync_words: Line<[AtomicU32; 2]>,
    /// Up to which commit the sync of the log goes that was begun last with the lock, times two, and which of the words
    /// is its.
    pub(crate) syncing: Line<AtomicU64>,
    /// Counts commits whose long values are left to the next sync of the log, and those of them that survive power
    /// loss.
    pub(crate) values_written: AtomicU64,
    pub(crate) values_synced: AtomicU64,
    /// Bytes of those values, about, since the last sync.
    pub(crate) values_unsynced_bytes: AtomicU64,
    /// Held while the data file is synced.
    pub(crate) data_sync_lock: Line<WordLock>,
    /// Nonzero: a process died while it synced the log, or the data file. See `syncing`.
    pub(crate) sync_doubts: [AtomicU32; 2],
    /// Held by the thread that folds, makes the base durable and reclaims space.
    pub(crate) maintenance_lock: Line<WordLock>,
    /// Changes while maintenance makes progress. A waiting thread that sees no change waits for a suspended process.
    pub(crate) maintenance_beat: AtomicU32,
    /// Nonzero: the next holder of the maintenance lock must finish an interrupted step first; see `repair`.
    pub(crate) maintenance_owed: AtomicU32,
    /// The published version that has the durable root; always counts as pinned.
    pub(crate) durable_version: AtomicU64,
    /// The version that a new tree is about to be published as, or was, and is not wholly put in order yet; or zero.
    pub(crate) installing: AtomicU64,
    /// Held by the thread that gives back what dead processes held.
    pub(crate) burial_lock: Line<WordLock>,
    /// Held by the thread that prepares the next generations.
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
    /// The newest commit that made, renamed or dropped maps. Changed under the commit lock, before it is visible.
    pub(crate) catalog: AtomicU64,
    /// Nonzero: a commit stream may be asleep. Set under the commit lock.
    pub(crate) streams_waiting: Line<AtomicU32>,
    /// Changes when there may be something to deliver; commit streams sleep on it.
    pub(crate) streams_word: AtomicU32,
    /// The lowest bit is set once an input/output error stopped the store; the others count restores of checkpoints.
    pub(crate) life: Line<AtomicU32>,
    /// What stopped the store.
    pub(crate) cause: Text,
    /// Nonzero once damage keeps the log from being folded, and what that is: nothing more is written then, but
    /// everything that is not damaged can be read.
    pub(crate) damaged: AtomicU32,
    pub(crate) damage: Text,
    /// How many versions were published. The lowest bit says which of `versions` is the newest.
    pub(super) published: Line<AtomicU64>,
    pub(super) versions: [[AtomicU64; VERSION_WORDS]; 2],
    /// State of the commit path, written under the commit lock only.
    pub(crate) tail: Line<Tail>,
    /// The checkpoint that a fold must keep when it comes there.
    pub(crate) pending_checkpoint: Line<PendingCheckpoint>,
    /// Held by the thread that extends the region, hands out its memory or takes it back. Each change of what it guards
    /// is a single store that leaves a consistent state.
    pub(crate) growth_lock: Line<WordLock>,
    /// Counts how often pages of the data file became free. Pages that were verified before must be verified again
    /// then.
    pub(crate) freed: AtomicU64,
    /// Snapshot slots and log generations that have memory behind them.
    pub(super) slots_allocated: AtomicU32,
    pub(super) generations_allocated: AtomicU32,
    /// Token that the next exclusive transaction gets.
    pub(crate) exclusive_tokens: AtomicU32,
    /// The allocator of the data file.
    pub(crate) space: SpaceHead,
    /// Snapshot slots ever used; the rest are free.
    pub(super) slots_used: Line<AtomicU32>,
    /// Entries of log generations ever used, or that a later one is in use: the rest are unused, without files.
    pub(super) generations_used: Line<AtomicU32>,
    /// What the last process that closed the store says of the region, see `warm`.
    pub(super) mark: SharedMark,
}

const _: () = assert!(size_of::<Control>() <= CONTROL_BYTES as usize);
const _: () = assert!(GENERATION_BYTES == 128 && GENERATIONS_MAX.is_multiple_of(GENERATIONS_STEP));

/// A few words for people, written once.
#[repr(C)]
pub(crate) struct Text {
    /// 0: empty, 1: being written, 2: written.
    state: AtomicU32,
    length: AtomicU32,
    bytes: [AtomicU8; TEXT_BYTES],
}

/// Longer texts are cut.
const TEXT_BYTES: usize = 376;

impl Text {
    /// Writes the text, unless another thread has written it or is writing it.
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

    /// The text. `None`: there is none, or its writer died while it wrote.
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

/// How fast commits may arrive during a fold; see `pace`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PaceWords {
    /// Nanoseconds that writing a KiB of log should take.
    pub(crate) price: AtomicU64,
    /// When the next byte may come, in nanoseconds of the store's clock. In the past: commits may catch up.
    pub(crate) next: AtomicU64,
    /// How much at most, in nanoseconds.
    pub(crate) credit: AtomicU64,
    /// Parts of its log that the last generation held when it was full: with small records its index is full first.
    /// Zero: none was.
    pub(crate) fill: AtomicU64,
    /// Number of the oldest generation that the fold takes which goes on.
    pub(crate) oldest: AtomicU64,
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
    /// Commit time of the newest record, in microseconds since the Unix epoch; never goes back.
    pub(crate) time: AtomicU64,
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
    pub(crate) writing_costs: SharedCosts,
}

/// A checkpoint that a commit makes, and that no fold has reached yet.
#[repr(C)]
pub(crate) struct PendingCheckpoint {
    /// The commit; zero: there is none.
    commit: AtomicU64,
    /// Its generation, and the position of its operation there.
    slot: AtomicU32,
    position: AtomicU32,
}

impl PendingCheckpoint {
    /// Notes one. Under the commit lock; there is none.
    pub(crate) fn begins(&self, commit: u64, slot: u16, position: u32) {
        self.slot.store(slot.into(), Ordering::Relaxed);
        self.position.store(position, Ordering::Relaxed);
        // Release: with this number the others count.
        self.commit.store(commit, Ordering::Release);
    }

    /// A fold has kept it. Under the maintenance lock.
    pub(crate) fn ends(&self) {
        self.commit.store(0, Ordering::Release);
    }

    /// The commit that makes it.
    pub(crate) fn commit(&self) -> Option<u64> {
        Some(self.commit.load(Ordering::Acquire)).filter(|&commit| commit != 0)
    }

    /// The slot of its generation, and the position of its operation there.
    pub(crate) fn place(&self) -> (u16, u32) {
        (
            self.slot.load(Ordering::Relaxed) as u16,
            self.position.load(Ordering::Relaxed),
        )
    }
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
    /// A process prepares it as a standby, or gives back what it held.
    Preparing = 5,
}

/// A piece of the region's memory that has an owner; all zeros: none. Changed under `growth_lock`, read by its owner.
#[repr(C)]
pub(crate) struct Piece {
    pub(super) offset: AtomicU64,
    pub(super) bytes: AtomicU64,
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
    /// Held by threads that read or change the arrays and counts.
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
    /// Pages of the register of checkpoints; 0: there are none.
    pub(crate) register_pages: AtomicU64,
    /// Pages of the register that a pending checkpoint will be in; 0: there is none.
    pub(crate) next_register_pages: AtomicU64,
    pub(crate) promises: Promises,
}

impl SpaceHead {
    /// All arrays.
    pub(super) fn arrays(&self) -> [&ArrayHead; 5] {
        [&self.used, &self.loose, &self.taken, &self.retired, &self.loose_runs]
    }
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
    /// End of the part that is known to survive power loss, with the number of the generation: see [`LogEnd`].
    synced_end: AtomicU64,
    /// End of the range that a sync covers that is in progress, or was.
    syncing_end: AtomicU64,
    /// Length of the file that has blocks: filled with zeros, or allocated right before a long record took them.
    pub(crate) filled: AtomicU64,
    /// Length at which the generation is complete.
    pub(crate) capacity: AtomicU64,
    /// Operations, bytes and pages of values that the fold will move into the base.
    pub(crate) costs: SharedCosts,
    /// Versions [birth, death) in which this generation is part of what snapshots read.
    pub(crate) birth: AtomicU64,
    pub(crate) death: AtomicU64,
}

/// An end of the records of one generation. As a number it is larger the later it comes in the log, also where a log
/// file is used again: so who was stopped with an old one in hand takes nothing back with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogEnd {
    generation: u32,
    position: u32,
}

impl LogEnd {
    fn encode(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.position)
    }

    pub(crate) fn position(self) -> u64 {
        self.position.into()
    }

    pub(crate) fn generation(self) -> u32 {
        self.generation
    }
}

impl GenerationEntry {
    /// Gives the entry to a generation without records, of which nothing is synced.
    pub(crate) fn begin(&self, number: u32, start: u64) {
        // Synced first and the number last, Release, for `end`. A reader that sees the tail of the new generation sees
        // that syncs of the old one no longer count. A reader that sees the new number sees its tail.
        let synced = LogEnd {
            generation: number,
            position: 0,
        };
        self.synced_end.fetch_max(synced.encode(), Ordering::AcqRel);
        self.tail.store(start, Ordering::Release);
        self.number.store(number, Ordering::Release);
    }

    /// Where its records end now. Nothing is promised of a generation that may be another one meanwhile, but that
    /// noting this end as synced changes nothing of that one.
    pub(crate) fn end(&self) -> LogEnd {
        // Acquire: pairs with the stores in `begin`; the load of the tail pairs with the store after the records before
        // it.
        let generation = self.number.load(Ordering::Acquire);
        let position = self.tail.load(Ordering::Acquire) as u32;
        LogEnd { generation, position }
    }

    /// Whether all records up to an end survive power loss.
    pub(crate) fn is_synced_to(&self, end: LogEnd) -> bool {
        self.synced_end.load(Ordering::Acquire) >= end.encode()
    }

    /// Notes that they do.
    pub(crate) fn is_now_synced_to(&self, end: LogEnd) {
        self.synced_end.fetch_max(end.encode(), Ordering::AcqRel);
    }

    /// Notes that a sync that is about to begin may make them durable.
    pub(crate) fn may_be_synced_to(&self, end: LogEnd) {
        self.syncing_end.fetch_max(end.encode(), Ordering::SeqCst);
    }

    /// Position up to which the records of the present generation may survive power loss by a sync that goes on, or by
    /// one that is over. As for `synced_tail`.
    pub(crate) fn syncing_tail(&self) -> u64 {
        let end = self.syncing_end.load(Ordering::SeqCst);
        let is_of_present = end >> 32 == u64::from(self.number.load(Ordering::Relaxed));
        let position = if is_of_present { end & u64::from(u32::MAX) } else { 0 };
        position.max(self.synced_tail())
    }

    /// Position up to which the records of the present generation are known to survive power loss. For who holds what
    /// keeps it from becoming another one.
    pub(crate) fn synced_tail(&self) -> u64 {
        self.synced_end.load(Ordering::Acquire) & u64::from(u32::MAX)
    }

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

    /// Claims an unused entry for preparation; `false` when another process was faster.
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

    /// Takes an entry that others may still look at under a lock of the caller's.
    pub(crate) fn set_prepared_by(&self, owner: Owner) {
        self.state.store(prepared_by(owner), Ordering::Release);
    }

    /// Whether any process prepares the entry.
    pub(super) fn is_being_prepared(&self) -> bool {
        self.state() == GenerationState::Preparing
    }

    /// Whether this process prepares the entry.
    pub(crate) fn is_prepared_by(&self, owner: Owner) -> bool {
        self.state.load(Ordering::Acquire) == prepared_by(owner)
    }

    /// Release: a thread that sees the state sees the fields that were written before it.
    pub(crate) fn set_state(&self, state: GenerationState) {
        self.state.store(state as u32, Ordering::Release);
    }
}

/// The state of a generation; the rest says who prepares it.
const STATE_MASK: u32 = 0xFF;

fn prepared_by(owner: Owner) -> u32 {
    GenerationState::Preparing as u32 | u32::from(owner.number()) << 8
}
