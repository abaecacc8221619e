//! Every limit of the engine, each with its reason, and the relations between them as compile-time assertions.

/// Format of the files. Stores of a newer format are refused; see `docs/reference/format.md` for the policy.
pub(crate) const FORMAT: u32 = 6;
/// Most checkpoints of a store: the register is written whole when one is made or dropped.
pub(crate) const CHECKPOINTS_MAX: usize = 100_000;
/// Longest name of a checkpoint in bytes.
pub(crate) const CHECKPOINT_NAME_BYTES_MAX: usize = 255;
/// Most metadata of a checkpoint, for the same reason.
pub(crate) const CHECKPOINT_METADATA_BYTES_MAX: usize = 4 << 10;
/// The unit of the data file. 4 KiB is the operating system's page on both supported processors and the sweet spot
/// for random access (Haas and Leis, VLDB 2023).
pub(crate) const PAGE_BYTES: usize = 4096;
/// A branch is a run of this many pages: its fanout keeps trees of ten million pairs at two branch levels.
pub(crate) const BRANCH_PAGES: u32 = 4;
/// Bytes of a branch.
pub(crate) const BRANCH_BYTES: usize = PAGE_BYTES * BRANCH_PAGES as usize;
/// Longest user key in bytes. A leaf must hold several keys of this length beside their values.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of the map id that stands in front of every user key.
pub(crate) const MAP_ID_BYTES: usize = 4;
/// Longest key with its map id.
pub(crate) const FULL_KEY_BYTES_MAX: usize = KEY_BYTES_MAX + MAP_ID_BYTES;
/// Longest value kept inside a leaf; longer ones get pages of their own, so that a leaf holds at least three pairs
/// of this size with short keys and always at least one with the longest key.
pub(crate) const INLINE_VALUE_BYTES_MAX: usize = 1200;
/// Longest value written into a log record; longer ones are written straight into the data file, and the record
/// refers to them, so that a record stays small and a value is not written twice.
pub(crate) const LOGGED_VALUE_BYTES_MAX: usize = 64 << 10;
/// Longest value: 1 GiB.
pub const VALUE_BYTES_MAX: u64 = 1 << 30;
/// Part of a long value that carries a checksum of its own, so that a stream verifies as it goes.
pub(crate) const VALUE_CHUNK_BYTES: usize = 1 << 20;
/// Longest name of a map in bytes.
pub(crate) const MAP_NAME_BYTES_MAX: usize = 255;
/// Generations of the log that may be alive in one version: one that takes commits, the others frozen.
pub(crate) const LIVE_GENERATIONS_MAX: usize = 8;
/// Generations that may wait for a fold beside the one that takes commits: recovery adds one to those that it replays,
/// and all of them must fit into one version.
pub(crate) const WAITING_GENERATIONS_MAX: usize = LIVE_GENERATIONS_MAX - 3;

/// Generations that are prepared ahead: the next one, and one for deletions when the disk is full.
pub(crate) const STANDBY_GENERATIONS: usize = 2;

/// How long calls wait for a lock or an exclusive transaction unless the store is opened with another limit: longer
/// than any device that works takes for a write, and short enough for a person to see the error.
pub(crate) const LOCK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

const _: () = assert!(BRANCH_BYTES == 16384);
const _: () = assert!(FULL_KEY_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 64 + 16 < PAGE_BYTES);
const _: () = assert!(INLINE_VALUE_BYTES_MAX < LOGGED_VALUE_BYTES_MAX);

/// Log files, and so generations alive or pinned by readers at one time. Readers that hold a moment each keep the
/// generations that were alive then, so this is large: what ends first is the disk. Each takes 256 MiB of addresses.
pub(crate) const GENERATIONS_MAX: usize = 4096;
/// Log files that are kept, empty, when the store is quiet: their names need not be made durable again.
pub(crate) const LOG_FILES_KEPT: usize = 16;
/// Log files with nothing in them that are kept at most while the store is busy; more are left only by readers that
/// held many generations.
pub(crate) const LOG_FILES_UNUSED_MAX: usize = 16;
/// Log files beyond which those that are only read, which their mapping is enough for, are closed: a process may have
/// a thousand open files at most, and the program wants some for itself.
pub(crate) const LOG_FILES_OPEN_MAX: usize = 64;
/// Bytes of address space for one log file; no record may make a log file longer.
pub(crate) const LOG_SPAN_BYTES: u64 = 256 << 20;
/// Bytes of log that a generation takes at most in the ordinary course (a single larger record gets a larger one).
pub(crate) const GENERATION_BYTES_MAX: u64 = 128 << 20;
/// Bytes of a generation in a new or idle store. Two of them are kept: 1 MiB of log.
pub(crate) const GENERATION_BYTES_MIN: u64 = 512 << 10;
/// Bytes by which a log file is filled with zeros ahead of its records.
pub(crate) const LOG_GROWTH_BYTES: u64 = 256 << 10;
/// Bytes of a log file that no record can have: its header and a last gap, each in the largest write unit, and the
/// reserve.
pub(crate) const LOG_OVERHEAD_BYTES: u64 = 2 * (64 << 10) + LOG_RESERVE_BYTES;
/// End of a log file that only deletions may use, so that a full disk can always be emptied.
pub(crate) const LOG_RESERVE_BYTES: u64 = 32 << 10;
/// Bytes of long values of written commits from which on the background syncs them, without waiting for a sync of the
/// log.
pub(crate) const VALUES_TO_SYNC_BYTES: u64 = 64 << 20;
/// Bytes of them that may wait where the background does so: with more, a commit syncs its values itself. Recovery
/// reads and writes again what waited.
pub(crate) const VALUES_UNSYNCED_BYTES_MAX: u64 = 512 << 20;
/// Pages of the data file that only deletions may count on.
pub(crate) const DELETE_RESERVE_PAGES: u64 = 64;
/// Of these, blocks of the size of a branch.
pub(crate) const DELETE_RESERVE_BLOCKS: u64 = 10;
/// Write set of a transaction in memory unless it says otherwise; what is beyond goes to the data file as a sorted run.
pub(crate) const WRITE_SET_BYTES_MAX: usize = 16 << 20;
/// Snapshots that may be open at once: the slots are scanned whenever space is reclaimed.
pub(crate) const SNAPSHOTS_MAX: usize = 65_536;
/// Processes that may have a store open at once: the search for dead ones asks the kernel about each.
pub(crate) const PROCESSES_MAX: usize = 128;
/// Pages of the data file: their numbers are 32 bits wide, which makes 16 TiB.
pub(crate) const DATA_PAGES_MAX: u64 = u32::MAX as u64;
/// Keys of which a commit stream that lies far behind remembers the newest operation it read: a few MiB.
pub(crate) const STREAM_KEYS_MAX: usize = 16_384;
/// Runs that a generation takes: every read looks through those that are not folded.
pub(crate) const RUNS_PER_GENERATION_MAX: u64 = 256;
/// How often the closure form runs before it runs once with all other writers shut out.
pub(crate) const ATTEMPTS_MAX: u32 = 10;
/// Ranges that a transaction deletes, overlapping ones counted once: each new one moves those behind it in a list.
pub(crate) const TRANSACTION_RANGES_MAX: usize = 4096;
/// Memory for what a serialisable transaction has read: all of it is checked under the commit lock.
pub(crate) const READ_SET_BYTES_MAX: usize = 64 << 20;
/// Appends and additions of one transaction. They are resolved at the commit, so they stay in memory until then, and
/// end in one record.
pub(crate) const RESOLVED_BYTES_MAX: u64 = LOG_SPAN_BYTES - LOG_OVERHEAD_BYTES;
/// The least that counts as a memory budget.
pub(crate) const MEMORY_BYTES_MIN: u64 = 8 << 20;
/// Threads that fold, while a fold goes on, at most: each has buffers of about half a megabyte.
pub(crate) const FOLD_THREADS_MAX: usize = 16;
/// Operations for each part of a fold, at least: fewer take no time worth dividing.
pub(crate) const FOLD_PART_OPERATIONS: u64 = 2_500;
/// Operations in the log that closing a store folds; what is more stays in the log.
pub(crate) const FOLDED_AT_CLOSE_MAX: u64 = 20_000;
/// Pages that closing writes for that, at most: some ten milliseconds.
pub(crate) const PAGES_AT_CLOSE_MAX: u64 = 4_096;
/// Rounds of up to a tenth of a second that a commit waits for room in the log, with nothing left to fold, before it
/// reports that there is none.
pub(crate) const WAIT_ROUNDS_MAX: u32 = 100;
/// Replayed generations that may wait for the ordinary fold; more are folded before the store opens. Two more can be
/// replayed by a program that crashes whenever it has started.
pub(crate) const REPLAYED_MAX: usize = WAITING_GENERATIONS_MAX;
/// Address space taken for the data file at once; the mapping is replaced by a larger one when the file outgrows it.
pub(crate) const DATA_SPAN_BYTES: u64 = 1 << 40;
/// Address space for the shared region: what the allocator keeps of the largest data file while it moves, and the
/// memory of indexes.
pub(crate) const REGION_SPAN_BYTES: u64 = 512 << 30;
/// The least that will do where a process may not have so many addresses.
pub(crate) const REGION_SPAN_BYTES_MIN: u64 = 512 << 20;
/// What of it is left to indexes, whatever the data file takes.
pub(crate) const INDEX_SPAN_BYTES: u64 = 128 << 30;
/// How far the log may run ahead of a write transaction before its conflicts can no longer be checked.
pub(crate) const CHECKABLE_GENERATIONS_MAX: usize = 16;
/// Generations that are kept for commit streams at most, so that log files are left to write to.
pub(crate) const RETAINED_GENERATIONS_MAX: usize = 32;

const _: () = assert!(
    LOG_SPAN_BYTES <= u32::MAX as u64 + 1,
    "positions in a log are 32 bits wide"
);
const _: () = assert!(GENERATION_BYTES_MAX + 2 * (WRITE_SET_BYTES_MAX as u64) < LOG_SPAN_BYTES);
const _: () = assert!(LOG_RESERVE_BYTES * 4 <= GENERATION_BYTES_MIN);
const _: () = assert!(
    GENERATIONS_MAX <= u16::MAX as usize,
    "numbers of log files are 16 bits wide"
);
const _: () = assert!(LIVE_GENERATIONS_MAX + CHECKABLE_GENERATIONS_MAX + RETAINED_GENERATIONS_MAX < GENERATIONS_MAX);

/// Numbers of commits, versions and meta pages in files are below this, or the file is a forgery: at a million a second
/// it takes a hundred thousand years. So nothing that counts on from them can overflow.
pub(crate) const LONG_NUMBER_MAX: u64 = 1 << 62;
/// Largest number of a generation, an epoch or a map in a file: what is above is left for counting on while a store is
/// open.
pub(crate) const SHORT_NUMBER_MAX: u32 = u32::MAX - (1 << 20);
