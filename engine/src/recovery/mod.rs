//! Opening a store: find the durable base, replay the log after it, and begin a new epoch.
//!
//! What is found decides what is done; `tests/suite/recovery.rs` meets every row:
//!
//! | found | done |
//! |---|---|
//! | no data file, nothing else that is not ours | a new store is made (or `NoStore`) |
//! | no data file, log files | `Damaged` |
//! | no data file, other files | `NotAStore` |
//! | a data file without an intact meta page | `Damaged` |
//! | a meta page of a newer format | `NewerFormat` |
//! | the data file ends before the last page in use | `Damaged` |
//! | a meta page of an older format, and none of this one | `OlderFormat` |
//! | one of the four meta pages is not intact, or one copy of each of the two sequences | they are written again |
//! | no copy of the meta page before the newest intact one | `Damaged`: a newer one may be lost |
//! | the saved bitmap has a wrong checksum | `Damaged` |
//! | a log file without an intact header of this store | not used: nothing in it was ever acknowledged |
//! | the same, but a record in it claims that a commit was synced which is lost | `Damaged` |
//! | a log file whose generation the base contains | not used |
//! | a log file that continues the chain | its records are replayed |
//! | the same, without a record | not used |
//! | more than five log files to replay | they are folded before the store opens |
//! | a record that does not continue the chain, or is torn; nothing claims that it was synced | the log ends there |
//! | the same, but a later record, or a later file's header, claims that it was synced | `Damaged` |
//! | a record whose commit number a later epoch began with | the log ends before it: an earlier recovery gave it up |
//! | a log file that does not continue the chain; nothing claims that what is missing was synced | not used |
//! | the log ends before a commit of which the base holds a part | `Damaged` |
//! | a record claims a durable meta page that is newer than the newest intact one | `Damaged` |
//! | a record refers to a value or run whose pages are not what was written | `Damaged` |
//! | the same, but they were not synced before the record, and nothing claims that it was synced | the log ends before it |
//! | a record makes a checkpoint that the register does not have | the next fold ends there and keeps it |
//! | the same, but it is not the first record of its file | `Damaged` |

pub(crate) mod burial;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use duramen_io::{File, Lock, LockMode, OpenMode, Platform};

use crate::allocator::Space;
use crate::btree::{self, Extent, Root};
use crate::checksum::{StoreSeeds, checksum_with};
use crate::core::{Core, StoreLock};
use crate::datafile::bitmap::Bitmap;
use crate::datafile::meta::{DATA_FILE, META_PAGES, Meta, MetaPages, SavedBitmap};
use crate::datafile::pages::Pages;
use crate::datafile::register::SavedRegister;
use crate::error::{Error, Kind, Reason, Result, unless_full};
use crate::fold::checkpoints::pages_with;
use crate::index::Index;
use crate::key::full_key::{CATALOG, FIRST_USER_MAP, FullRange, GUARDED, split};
use crate::limits::{
    GENERATIONS_MAX, LIVE_GENERATIONS_MAX, LOG_FILES_OPEN_MAX, LOG_SPAN_BYTES, PAGE_BYTES, REPLAYED_MAX,
};
use crate::log::FoldCosts;
use crate::log::decode_root;
use crate::log::fold_costs;
use crate::log::{
    LOG_START, OperationKind, Operations, RECORD_HEADER_BYTES, Scan, SegmentHeader, Segments, extent_of, file_name,
    first_record, headers_from, scan,
};
use crate::planted::{PlantedBug, is_planted};
use crate::read::generation_view::GenerationView;
use crate::region::processes::{LOCK_FILE, Seat};
use crate::region::{FIRST_VERSION, GenerationState, REGION_FILE, Region, Version, remove_stale};
use crate::settings::Settings;
use crate::sync::unsynced::make_durable;

/// The data file of a store that is being made.
const NEW_DATA_FILE: &str = "data.new";
/// Where the processes share memory that open a store on a file system that copies on write.
const MEMORY_DIRECTORY: &str = "/dev/shm";
/// Free pages that a new store has.
const NEW_STORE_PAGES: u64 = 64;

/// Opens or makes a store.
pub(crate) fn open(platform: Platform, settings: Settings) -> Result<Core> {
    match open_with(platform.clone(), settings.clone(), settings.read_only) {
        // A full disk must not keep the store closed, because it could not be emptied then. Nothing that is in the
        // region outlives the process, so its memory will do.
        Err(error) if error.kind() == Kind::MakeSpace && !settings.read_only => open_with(platform, settings, true),
        opened => opened,
    }
}

fn open_with(platform: Platform, settings: Settings, has_private_region: bool) -> Result<Core> {
    let path = platform.storage.path().display().to_string();
    let doing = |error| Error::io(format!("opening the store at {path}"), error);
    let look = || -> Result<(Vec<String>, bool)> {
        let files = platform.storage.list().map_err(doing)?;
        let exists = files.iter().any(|name| name == DATA_FILE);
        if !exists {
            check_directory_is_free(&path, &files)?;
            if !settings.create {
                return Err(Reason::NoStore { path: path.clone() }.into());
            }
        }
        Ok((files, exists))
    };
    // Before a lock is left in a directory that is not ours.
    look()?;
    // No other process can attach to private memory.
    let (seat, lock) = if !settings.is_exclusive && !has_private_region {
        (take_seat(&platform, &path)?, StoreLock::Seat)
    } else {
        let lock = take_lock(&platform, &path, settings.read_only)?;
        (Seat::alone(), StoreLock::Whole { _lock: lock })
    };
    if seat.is_anybody_else_alive() {
        return attach(platform, settings, &path, seat);
    }
    // Again: until now another process may have made the store here, or written to it.
    let (files, exists) = look()?;
    if !exists {
        make_store(&platform)?;
    } else if !settings.read_only && !files.iter().any(|name| slot_of(name).is_some()) {
        // Its creator may have been killed before the name was durable, and no log may outlast the name.
        platform.storage.sync().map_err(doing)?;
    }
    let mode = if settings.read_only {
        OpenMode::Read
    } else {
        OpenMode::Write
    };
    // No process attaches to a store that is open exclusively, so its memory need not be a file.
    let is_elsewhere = settings.region_directory.is_some() || !platform.storage.writes_in_place();
    let (mut seat, mut lock) = (seat, lock);
    if !has_private_region {
        let is_ours = seat.sit(0)?;
        assert!(
            is_ours,
            "a process that closed the gate and found no other process is alone"
        );
        if !is_elsewhere && !settings.is_salvage && files.iter().any(|name| name == REGION_FILE) {
            match open_warm(&platform, &settings, &path, seat, lock)? {
                Warm::Opened(core) => return Ok(*core),
                Warm::Cold(cold_seat, cold_lock) => (seat, lock) = (cold_seat, cold_lock),
            }
        }
    }
    let data = platform.storage.open(DATA_FILE, mode).map_err(doing)?;
    let no_meta = || Error::damaged(format!("{path}/{DATA_FILE} has no intact meta page"));
    let found = MetaPages::read(&*data)?.ok_or_else(no_meta)?;
    let meta = found.newest;
    let pages_in_file = (data.len().map_err(doing)? / PAGE_BYTES as u64) as u32;
    let mut passed_over = Vec::new();
    match found.verify() {
        Err(error) if settings.is_salvage => passed_over.push(error.fact()),
        verified => verified?,
    }
    let bitmap = match load_bitmap(&*data, &meta, pages_in_file) {
        // Only who writes needs to know which pages are free.
        Err(error) if settings.is_salvage && error.kind() == Kind::Damaged => {
            passed_over.push(error.fact());
            Bitmap::new(pages_in_file.max(meta.data_pages))
        }
        loaded => loaded?,
    };
    let region = Arc::new(if has_private_region || settings.is_exclusive && is_elsewhere {
        if !settings.read_only {
            // What an attempt that found the disk full has left there takes room. That it is missing is no harm.
            let _ = remove_stale(&platform);
        }
        Region::private()?
    } else {
        let exists = files.iter().any(|name| name == REGION_FILE);
        let directory = is_elsewhere
            .then(|| memory_directory(&platform, &settings))
            .transpose()?;
        Region::create(&platform, exists, seat, directory.as_deref())?
    });
    region.sit_down(duramen_io::process_id(), platform.clock.wall());
    let pages = Pages::open(data.clone(), StoreSeeds::of(meta.store).pages, settings.machine_bytes)?;
    let space = Space::new(
        data.clone(),
        region.clone(),
        settings.overwrite_freed,
        bitmap,
        meta.bitmap,
    )?;
    if !settings.read_only {
        // It takes memory in proportion to the file, which readers have no use for.
        space.be_ready_to_retire()?;
    }
    let core = Core::new(
        platform.clone(),
        settings.clone(),
        data,
        pages,
        space,
        Segments::new(&platform, settings.read_only),
        region,
        meta,
        lock,
    );
    core.passed_over
        .lock()
        .unwrap_or_else(|e| e.into_inner())
        .append(&mut passed_over);
    core.control()
        .next_capacity
        .store(settings.generation_bytes_min, Ordering::Relaxed);
    let replayed = Recovery::of(&core, found, files)?.run()?;
    core.count_branches(meta.root);
    core.space.keep_room_for_bitmap()?;
    if replayed > REPLAYED_MAX && !core.settings.read_only {
        // A program that crashes soon after every start must not pile up log files.
        match core.maintain_all() {
            // What is not damaged can be read; writers are told.
            Err(error) if error.kind() == Kind::Damaged => {}
            maintained => maintained?,
        }
    }
    if !settings.read_only && !has_private_region && core.undamaged().is_ok() {
        // On a disk without room for the next indexes nothing could be deleted later.
        core.region.keep_spare_memory()?;
    }
    core.region.is_ready(meta.store);
    Ok(core)
}

/// Directory for the memory of the region where it cannot lie in the store's directory.
fn memory_directory(platform: &Platform, settings: &Settings) -> Result<PathBuf> {
    let directory = settings.region_directory.clone();
    let directory = directory.unwrap_or_else(|| PathBuf::from(MEMORY_DIRECTORY));
    let why = match duramen_io::writes_in_place(&directory) {
        Ok(true) => return Ok(directory),
        Ok(false) => "it is neither tmpfs nor ext4".to_string(),
        Err(error) => error.to_string(),
    };
    let cause = format!(
        "{} cannot have the memory that processes share which open the store at {}: {why}; mount a tmpfs there, set \
         `Options::region_directory` to a directory on tmpfs or ext4, or open the store with `Options::exclusive`",
        directory.display(),
        platform.storage.path().display()
    );
    Err(Reason::InvalidArgument(cause).into())
}

/// Which pages are used, in a data file that has them all.
fn load_bitmap(data: &dyn File, meta: &Meta, pages_in_file: u32) -> Result<Bitmap> {
    if pages_in_file < meta.data_pages {
        let lost = meta.data_pages - pages_in_file;
        return Err(Error::damaged(format!(
            "the data file ends {lost} pages before its last used one"
        )));
    }
    Bitmap::load(data, meta.bitmap, pages_in_file, StoreSeeds::of(meta.store).pages)
}

/// Comes in among those who share the store.
fn take_seat(platform: &Platform, path: &str) -> Result<Seat> {
    Seat::enter(platform, path)?.ok_or_else(|| in_use(platform, path))
}

fn in_use(platform: &Platform, path: &str) -> Error {
    let (path, holder) = (path.to_string(), holder_of(platform));
    Reason::InUse { path, holder }.into()
}

/// Opens a store for reading that other processes share, as one more process. `None`: no process has it open, or none
/// shares it, or this process may not write their memory.
pub(crate) fn attach_to_read(platform: &Platform, settings: &Settings) -> Result<Option<Core>> {
    let path = platform.storage.path().display().to_string();
    // Where there is none, none is made.
    let is_there = |files: Vec<String>| files.iter().any(|name| name == REGION_FILE);
    if settings.is_exclusive || !platform.storage.list().is_ok_and(is_there) {
        return Ok(None);
    }
    let Some(seat) = Seat::enter(platform, &path).ok().flatten() else {
        return Ok(None);
    };
    if !seat.is_anybody_else_alive() {
        return Ok(None);
    }
    match attach(platform.clone(), settings.clone(), &path, seat) {
        Err(error) if matches!(error.reason(), Reason::Io { error, .. } if is_unwritable(error)) => Ok(None),
        attached => attached.map(Some),
    }
}

/// What became of an opening that looked for a warm region.
enum Warm {
    Opened(Box<Core>),
    /// There is none; these are as before.
    Cold(Seat, StoreLock),
}

/// Opens a store with the region that was left when it was closed, if there is such a region and it is trustworthy.
fn open_warm(platform: &Platform, settings: &Settings, path: &str, seat: Seat, lock: StoreLock) -> Result<Warm> {
    let region = match Region::take_warm(platform, seat) {
        Ok(region) => region,
        Err(seat) => return Ok(Warm::Cold(seat, lock)),
    };
    let core = join(platform.clone(), settings.clone(), path, region, lock)?;
    // On a disk without room for the next indexes nothing could be deleted later.
    unless_full(core.region.keep_spare_memory())?;
    Ok(Warm::Opened(Box::new(core)))
}

/// Opens a store that others have open.
fn attach(platform: Platform, settings: Settings, path: &str, seat: Seat) -> Result<Core> {
    let region = Region::attach(&platform, path, seat)?;
    join(platform, settings, path, region, StoreLock::Seat)
}

/// Opens a store whose region is there: everything is where others have put it.
fn join(platform: Platform, settings: Settings, path: &str, region: Region, lock: StoreLock) -> Result<Core> {
    let region = Arc::new(region);
    let doing = |error| Error::io(format!("opening the store at {path}"), error);
    let data = platform.storage.open(DATA_FILE, OpenMode::Write).map_err(doing)?;
    let no_meta = || Error::damaged(format!("{path}/{DATA_FILE} has no intact meta page"));
    // Another process may write meta pages just now. Which of them counts is in the region, so none is missed here.
    let meta = MetaPages::read(&*data)?.ok_or_else(no_meta)?.newest;
    if !region.is_of(meta.store) {
        return Err(Error::damaged(format!(
            "{path}/{DATA_FILE} is not the data file of the store that is open there"
        )));
    }
    if let Some(cause) = region.stopped_by() {
        return Err(Reason::Poisoned { cause }.into());
    }
    region.sit_down(duramen_io::process_id(), platform.clock.wall());
    let pages = Pages::open(data.clone(), StoreSeeds::of(meta.store).pages, settings.machine_bytes)?;
    let space = Space::attach(data.clone(), region.clone(), settings.overwrite_freed);
    let segments = Segments::new(&platform, false);
    let core = Core::new(platform, settings, data, pages, space, segments, region, meta, lock);
    core.data_is_unreported.store(true, Ordering::Relaxed);
    core.region.seat().open_gate();
    if core.settings.read_only {
        // A read-only process does not wait for living processes.
        let commits = &core.control().commit_lock.0;
        core.region.free_if_dead(commits, || core.repair_commits());
        return Ok(core);
    }
    core.bury_the_dead();
    // When this returns it is decided whether the last commit of a dead process stands. A process that is suspended
    // inside a commit is waited for, for a limited time.
    if !is_planted(PlantedBug::OpenedUndecided) {
        drop(core.hold_commits());
    }
    Ok(core)
}

/// Refuses a directory that holds something else. Files of a creation that a crash interrupted are ours; but a log is
/// made only after the data file, and may hold commits that are nowhere else.
fn check_directory_is_free(path: &str, files: &[String]) -> Result<()> {
    if let Some(name) = files.iter().find(|name| slot_of(name).is_some()) {
        return Err(Error::damaged(format!("{path} holds {name:?} and no {DATA_FILE:?}")));
    }
    let ours = |name: &str| [LOCK_FILE, REGION_FILE, NEW_DATA_FILE].contains(&name);
    match files.iter().find(|name| !ours(name)) {
        None => Ok(()),
        Some(name) => {
            let found = format!("it holds {name:?} and no {DATA_FILE:?}");
            Err(Reason::NotAStore {
                path: path.to_string(),
                found,
            }
            .into())
        }
    }
}

fn slot_of(name: &str) -> Option<u16> {
    let slot = name.strip_prefix("wal-")?.parse().ok()?;
    ((slot as usize) < GENERATIONS_MAX && file_name(slot) == name).then_some(slot)
}

fn take_lock(platform: &Platform, path: &str, read_only: bool) -> Result<Option<Lock>> {
    let mode = if read_only {
        LockMode::Shared
    } else {
        LockMode::Exclusive
    };
    let lock = match platform.storage.lock(LOCK_FILE, mode) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Err(in_use(platform, path)),
        // A directory that cannot be written has no writers to be protected from.
        Err(error) if read_only && is_unwritable(&error) => return Ok(None),
        Err(error) => return Err(Error::io(format!("locking the store at {path}"), error)),
    };
    if !read_only {
        match write_holder(platform) {
            // Only who is refused reads it, and a full disk must not keep the store closed.
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {}
            written => written.map_err(|error| Error::io("writing the lock file", error))?,
        }
    }
    Ok(Some(lock))
}

fn is_unwritable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound
    )
}

fn write_holder(platform: &Platform) -> std::io::Result<()> {
    let process = duramen_io::process_id();
    let name = duramen_io::process_name(process).unwrap_or_default();
    let file = platform.storage.open(LOCK_FILE, OpenMode::Create)?;
    let text = format!("{process} {name}");
    file.set_len(0)?;
    file.write_at(text.as_bytes(), 0)
}

/// Who holds the store. The lock file names the last process that had it to itself, which may be long gone when those
/// who hold the store now share it, or only read it.
fn holder_of(platform: &Platform) -> String {
    if let Ok(Some(_)) = platform.storage.lock(LOCK_FILE, LockMode::Shared) {
        return "processes that only read it".into();
    }
    match Region::attached_in(platform) {
        Ok(processes) if !processes.is_empty() && !Seat::is_whole_taken(platform) => named(&processes),
        _ => read_holder(platform),
    }
}

/// Processes with their names, as far as this one can see them.
fn named(processes: &[u32]) -> String {
    let name = |process: &u32| match duramen_io::process_name(*process) {
        Some(name) => format!("{process} {name}"),
        None => process.to_string(),
    };
    processes.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn read_holder(platform: &Platform) -> String {
    let read = || {
        let file = platform.storage.open(LOCK_FILE, OpenMode::Read)?;
        let mut text = vec![0; file.len()?.min(256) as usize];
        file.read_at(&mut text, 0)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&text).into_owned())
    };
    let text = read().unwrap_or_default();
    if text.is_empty() {
        "a process that just began".into()
    } else {
        text
    }
}

/// Makes an empty store. It exists once its data file has its name, and that is the last step.
fn make_store(platform: &Platform) -> Result<()> {
    let doing = |error| Error::io("making the store", error);
    let file = platform.storage.open(NEW_DATA_FILE, OpenMode::Create).map_err(doing)?;
    file.set_len(0).map_err(doing)?;
    let (reserved, bytes) = (
        META_PAGES as u64 * PAGE_BYTES as u64,
        NEW_STORE_PAGES * PAGE_BYTES as u64,
    );
    // What separates the meta pages takes no blocks.
    file.set_len(reserved).map_err(doing)?;
    file.allocate(reserved, bytes)
        .map_err(|error| crate::region::full_or_io("a new store", bytes, error))?;
    let random = || platform.random.next_u64();
    let store = (random() as u128) << 64 | random() as u128;
    let meta = Meta {
        store,
        sequence: 0,
        hash_seed: random(),
        base_commit: 0,
        previous: 0,
        root: Root::default(),
        version: FIRST_VERSION,
        bitmap: SavedBitmap {
            checksum: checksum_with(StoreSeeds::of(store).pages, &[]),
            ..SavedBitmap::default()
        },
        data_pages: META_PAGES,
        next_map: FIRST_USER_MAP,
        epoch: 0,
        next_generation: 1,
        reaches: 0,
        time: 0,
        register: SavedRegister::default(),
    };
    let sync = || file.sync_data().map_err(doing);
    meta.write(&*file, &sync)?;
    Meta { sequence: 1, ..meta }.write(&*file, &sync)?;
    platform.storage.rename(NEW_DATA_FILE, DATA_FILE).map_err(doing)?;
    platform.storage.sync().map_err(|error| {
        // A sync that failed may have dropped the name: the next one would succeed without it, and a power cut leave a
        // log without a data file. So the next opening creates the store again.
        let _ = platform.storage.remove(DATA_FILE);
        doing(error)
    })
}

/// A log file with an intact header of this store.
struct Found {
    slot: u16,
    header: SegmentHeader,
    file: Arc<dyn File>,
    length: u64,
}

impl Found {
    fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.length as usize];
        let read = self.file.read_at(&mut bytes, 0);
        read.map_err(|error| Error::io(format!("reading log file {}", file_name(self.slot)), error))?;
        Ok(bytes)
    }
}

/// What the good records of a file hold together.
#[derive(Default)]
struct Held {
    operations: u64,
    /// Whether any of them refers to a value that was not synced before it.
    values_may_be_torn: bool,
}

impl Held {
    fn scan(found: &Found, bytes: &[u8], seeds: &StoreSeeds) -> Result<(Scan, Held)> {
        let mut held = Held::default();
        let scanned = scan(bytes, &found.header, seeds, |_, _, body| {
            for operation in Operations::of(body) {
                let (_, operation) = operation?;
                held.operations += 1;
                held.values_may_be_torn |= operation.may_be_torn;
            }
            Ok(())
        })?;
        Ok((scanned, held))
    }
}

/// The first record of a file that an earlier recovery gave up: a later epoch began with its commit. It was torn then,
/// or a value of it was; by now the same value, put once more, may lie in the same pages, and it would look whole.
fn given_up(found: &Found, bytes: &[u8], later: &[Found], seeds: &StoreSeeds) -> Result<Option<u64>> {
    let newer = later.iter().filter(|one| one.header.epoch > found.header.epoch);
    let Some(first) = newer.map(|one| one.header.first_commit).min() else {
        return Ok(None);
    };
    let mut end = None;
    scan(bytes, &found.header, seeds, |start, header, _| {
        if header.commit >= first && end.is_none() {
            end = Some(start - RECORD_HEADER_BYTES as u64);
        }
        Ok(())
    })?;
    Ok(end)
}

struct Recovery<'a> {
    core: &'a Core,
    meta: Meta,
    found: Vec<Found>,
    /// The last commit of the base and of what was replayed, and its header checksum.
    last_commit: u64,
    previous: u32,
    /// Commit time of the last commit.
    time: u64,
    accepted: Vec<u16>,
    next_map: u32,
    /// Extents that replayed operations refer to; several versions of a key never share one.
    epoch: u32,
    next_generation: u32,
    synced_claim: u64,
    meta_claim: u32,
    /// Bytes of log files that no record says were synced, and those of values in the data file.
    unsynced_records: Vec<(u16, Range<u64>)>,
    unsynced_values: RefCell<Vec<Range<u64>>>,
    /// Whether a record says that the meta page that was found is durable.
    meta_was_durable: bool,
    /// What all the meta pages hold. The next damage might hit the other copy of a page that is damaged already.
    meta_pages: MetaPages,
    /// The newest version that anything in use was born in: versions go on from there.
    newest_version: Cell<u64>,
    /// The newest commit that makes a checkpoint: its number, its generation, and the position of its operation there.
    checkpoint: Option<(u64, u16, u32)>,
}

impl<'a> Recovery<'a> {
    fn of(core: &'a Core, meta_pages: MetaPages, files: Vec<String>) -> Result<Recovery<'a>> {
        let meta = meta_pages.newest;
        let mut recovery = Recovery {
            core,
            meta,
            found: Vec::new(),
            last_commit: meta.base_commit,
            previous: meta.previous,
            time: 0,
            accepted: Vec::new(),
            next_map: meta.next_map,
            epoch: meta.epoch,
            next_generation: meta.next_generation,
            synced_claim: 0,
            meta_claim: meta.sequence as u32,
            unsynced_records: Vec::new(),
            unsynced_values: RefCell::default(),
            meta_was_durable: false,
            meta_pages,
            newest_version: Cell::new(meta.version),
            checkpoint: None,
        };
        for slot in files.iter().filter_map(|name| slot_of(name)) {
            core.region.use_generation(slot)?;
            let file = core.log_file(slot)?;
            let is_needed = recovery.find(slot, &file)?;
            // Snapshots of the process before may have held thousands of files.
            if !is_needed && core.segments.files_open() > LOG_FILES_OPEN_MAX {
                core.segments.forget(slot);
            }
        }
        recovery.found.sort_by_key(|found| found.header.generation);
        Ok(recovery)
    }

    /// Looks at one log file. Returns whether it may have to be replayed.
    fn find(&mut self, slot: u16, file: &Arc<dyn File>) -> Result<bool> {
        let doing = |error| Error::io(format!("reading log file {}", file_name(slot)), error);
        let length = file.len().map_err(doing)?.min(LOG_SPAN_BYTES);
        self.core.entry(slot).filled.store(length, Ordering::Relaxed);
        if length < PAGE_BYTES as u64 {
            return Ok(false);
        }
        let mut head = vec![0; PAGE_BYTES];
        file.read_at(&mut head, 0).map_err(doing)?;
        if let Some(header) = SegmentHeader::decode(&head, self.meta.store) {
            self.epoch = self.epoch.max(header.epoch);
            self.next_generation = self.next_generation.max(header.generation + 1);
            if header.generation >= self.meta.next_generation {
                self.found.push(Found {
                    slot,
                    header,
                    file: file.clone(),
                    length,
                });
                return Ok(true);
            }
        } else if SegmentHeader::decode_any(&head).is_none() {
            self.heed_claims(&**file, length).map_err(doing)?;
        }
        Ok(false)
    }

    /// A header that rotted may precede records that know what was synced. A header that a power cut tore does not.
    fn heed_claims(&mut self, file: &dyn File, length: u64) -> std::io::Result<()> {
        let mut bytes = vec![0; length as usize];
        file.read_at(&mut bytes, 0)?;
        let since = self.meta.next_generation;
        for found in headers_from(&bytes, LOG_START, &self.core.seeds).filter(|found| found.generation >= since) {
            self.synced_claim = self.synced_claim.max(found.synced);
            if found.meta_sequence.wrapping_sub(self.meta_claim) as i32 > 0 {
                self.meta_claim = found.meta_sequence;
            }
        }
        Ok(())
    }

    /// Returns how many generations were replayed.
    fn run(mut self) -> Result<usize> {
        let found = std::mem::take(&mut self.found);
        for (index, one) in found.iter().enumerate() {
            self.replay(one, &found[index + 1..])?;
        }
        self.core.pass_over(self.check_claims())?;
        let replayed = self.accepted.len();
        self.begin()?;
        Ok(replayed)
    }

    /// Nothing that records say was durable may be missing.
    fn check_claims(&self) -> Result<()> {
        if self.synced_claim > self.last_commit {
            return Err(Error::damaged(format!(
                "the log ends at commit {}, but commit {} was synced",
                self.last_commit, self.synced_claim
            )));
        }
        if self.meta.reaches > self.last_commit {
            return Err(Error::damaged(format!(
                "the log ends at commit {}, but parts of the base are of commit {}",
                self.last_commit, self.meta.reaches
            )));
        }
        if self.meta_claim != self.meta.sequence as u32 {
            return Err(Error::damaged(format!(
                "the newest meta page is number {}, but number {} was durable",
                self.meta.sequence as u32, self.meta_claim
            )));
        }
        Ok(())
    }

    /// Replays one log file, or finds that it does not belong to the chain. `later` are the files after it.
    fn replay(&mut self, found: &Found, later: &[Found]) -> Result<()> {
        let mut bytes = found.read()?;
        let continues = found.header.first_commit == self.last_commit + 1 && found.header.previous == self.previous;
        let (mut scanned, mut held) = Held::scan(found, &bytes, &self.core.seeds)?;
        self.heed(&scanned);
        // Generations without a commit are left by every opening that wrote nothing.
        if !continues || scanned.last_commit < found.header.first_commit {
            return Ok(());
        }
        let mut is_cut = false;
        // In memory only: the new epoch that begins with this opening ends the log durably.
        let mut end_before = |bytes: &mut [u8], record: u64| {
            bytes[record as usize..][..RECORD_HEADER_BYTES].fill(0);
            is_cut = true;
        };
        if let Some(record) = given_up(found, &bytes, later, &self.core.seeds)? {
            end_before(&mut bytes, record);
        }
        if held.values_may_be_torn
            && let Some(record) = self.torn_value(found, &bytes, later)?
        {
            end_before(&mut bytes, record);
        }
        if is_cut {
            (scanned, held) = Held::scan(found, &bytes, &self.core.seeds)?;
            if scanned.last_commit < found.header.first_commit {
                return Ok(());
            }
        }
        if self.accepted.len() == LIVE_GENERATIONS_MAX - 1 {
            return Err(Error::damaged(
                "more log files continue the base than a version can hold",
            ));
        }
        self.enter(found, &bytes, &scanned, held.operations)?;
        self.accepted.push(found.slot);
        self.time = self.time.max(scanned.time);
        self.last_commit = scanned.last_commit;
        self.previous = scanned.previous;
        Ok(())
    }

    /// Believes what the records of a file say was durable.
    fn heed(&mut self, scanned: &Scan) {
        self.synced_claim = self.synced_claim.max(scanned.synced_claim);
        self.meta_was_durable |= scanned.meta_claim == self.meta.sequence as u32;
        if scanned.meta_claim.wrapping_sub(self.meta_claim) as i32 > 0 {
            self.meta_claim = scanned.meta_claim;
        }
    }

    /// The first record that nothing claims was synced and that refers to values which are not what was written: a
    /// power cut kept the record and took them. It ends the log like a record that is torn itself.
    fn torn_value(&self, found: &Found, bytes: &[u8], later: &[Found]) -> Result<Option<u64>> {
        let first_torn = |claim: u64| {
            let mut torn = None;
            scan(bytes, &found.header, &self.core.seeds, |start, header, body| {
                if torn.is_none() && header.commit > claim && !self.holds_values(body)? {
                    torn = Some(start - RECORD_HEADER_BYTES as u64);
                }
                Ok(())
            })?;
            Ok::<_, Error>(torn)
        };
        if first_torn(self.synced_claim)?.is_none() {
            return Ok(None);
        }
        // Rare, and what is damaged must stay as it is: the later files are asked as well.
        let mut claim = self.synced_claim;
        for one in later {
            claim = claim.max(scan(&one.read()?, &one.header, &self.core.seeds, |_, _, _| Ok(()))?.synced_claim);
        }
        first_torn(claim)
    }

    /// Whether all values that a record refers to, and that were not synced before it, are whole.
    fn holds_values(&self, body: &[u8]) -> Result<bool> {
        for operation in Operations::of(body) {
            let (_, operation) = operation?;
            if !operation.may_be_torn || operation.kind != OperationKind::PutExtent {
                continue;
            }
            match self.verify_extent(extent_of(operation.value)) {
                Err(error) if error.kind() == Kind::Damaged => return Ok(false),
                verified => verified?,
            }
        }
        Ok(true)
    }

    /// Builds the index of a replayed generation.
    fn enter(&mut self, found: &Found, bytes: &[u8], scanned: &Scan, operations: u64) -> Result<()> {
        let core = self.core;
        let entry = core.entry(found.slot);
        let memory = Index::bytes_for(scanned.tail).max(Index::bytes_for_entries(operations as usize));
        let (offset, length) = core.region.take(&entry.memory, memory as u64)?;
        // SAFETY: the region handed this memory out for this index alone.
        let index = unsafe { Index::create(core.region.memory(offset), length as usize) };
        // SAFETY: the store is not open yet: no other thread knows the generation.
        let log = unsafe { core.log_view(found.slot) }?;
        let generation = GenerationView { log, index };
        let mut costs = FoldCosts {
            operations,
            ..FoldCosts::default()
        };
        let mut unsynced = scanned.tail;
        let synced_claim = self.synced_claim;
        scan(bytes, &found.header, &core.seeds, |start, header, body| {
            costs.bytes += body.len() as u64;
            if header.commit > synced_claim {
                unsynced = unsynced.min(start - RECORD_HEADER_BYTES as u64);
            }
            for operation in Operations::of(body) {
                let (position, operation) = operation?;
                let is_unsynced = operation.may_be_torn && header.commit > synced_claim;
                let position = (start + position as u64) as u32;
                costs += fold_costs(operation.kind, operation.value);
                match operation.kind {
                    OperationKind::Run => core.pass_over(self.adopt_run(decode_root(operation.value)))?,
                    OperationKind::PutExtent => {
                        core.pass_over(self.adopt_extent(extent_of(operation.value), is_unsynced))?
                    }
                    // The pages of a restore are those of a checkpoint.
                    OperationKind::Put
                    | OperationKind::Delete
                    | OperationKind::DeleteRange
                    | OperationKind::Restore => None,
                    OperationKind::Checkpoint => {
                        self.checkpoint = Some((header.commit, found.slot, position));
                        let inside = "the log makes a checkpoint inside of a file, where no fold would end";
                        let is_first = header.commit == found.header.first_commit;
                        core.pass_over(if is_first { Ok(()) } else { Err(Error::damaged(inside)) })?
                    }
                };
                if !operation.kind.is_note() {
                    self.note_map(operation.full_key, operation.value);
                }
                generation.enter(operation, core.hash_seed, header.commit, position);
            }
            Ok(())
        })?;
        // Without a synced record the header may be missing as well.
        let start = if unsynced == first_record(found.header.unit.into()) {
            0
        } else {
            unsynced
        };
        if start < scanned.tail {
            self.unsynced_records.push((found.slot, start..scanned.tail));
        }
        core.space.promise_recovered(costs);
        entry.first_commit.store(found.header.first_commit, Ordering::Relaxed);
        entry.last_commit.store(scanned.last_commit, Ordering::Relaxed);
        entry.last_header.store(scanned.previous, Ordering::Relaxed);
        entry.begin(found.header.generation, scanned.tail);
        entry.is_now_synced_to(entry.end());
        entry.capacity.store(found.length, Ordering::Relaxed);
        entry.costs.store(costs);
        entry.birth.store(self.meta.version + 1, Ordering::Relaxed);
        entry.death.store(u64::MAX, Ordering::Relaxed);
        entry.set_state(GenerationState::Frozen);
        Ok(())
    }

    /// Ids of maps that were made after the base are not given out again.
    fn note_map(&mut self, full_key: &[u8], value: &[u8]) {
        let (map, _) = split(full_key);
        if map == CATALOG
            && let Ok(id) = value.try_into()
            && let id = u32::from_le_bytes(id)
            && id & GUARDED == 0
        {
            self.next_map = self.next_map.max(id + 1);
        }
    }

    /// Takes the pages of a value that only the log refers to, and checks that they are what was written. Those that
    /// no record says were synced are made durable later, like the log.
    fn adopt_extent(&self, extent: Extent, is_unsynced: bool) -> Result<()> {
        self.core.space.mark_used(extent.page, extent.pages())?;
        self.note_birth(extent.birth);
        self.verify_extent(extent)?;
        if is_unsynced {
            let bytes = |page: u32| u64::from(page) * PAGE_BYTES as u64;
            let range = bytes(extent.page)..bytes(extent.page + extent.pages());
            self.unsynced_values.borrow_mut().push(range);
        }
        Ok(())
    }

    fn verify_extent(&self, extent: Extent) -> Result<()> {
        self.core.pages.verified().extent(extent).map(drop)
    }

    /// Takes the pages of a run. They were synced before its record was written.
    fn adopt_run(&mut self, root: Root) -> Result<()> {
        btree::walk(self.core.pages.verified(), root, &mut |visit| match visit {
            btree::Visit::Page {
                number, pages, birth, ..
            } => {
                self.note_birth(birth);
                self.core.space.mark_used(number, pages)
            }
            btree::Visit::Extent(extent) => self.adopt_extent(extent, false),
        })?;
        let names = FullRange::map(CATALOG);
        let mut cursor = btree::Cursor::new(self.core.pages.verified(), root);
        cursor.seek(&names.low)?;
        while cursor.is_valid() && cursor.key() < names.high.as_slice() {
            let (page, location) = cursor.value();
            if let btree::Stored::Inline(id) = location.stored(page) {
                self.note_map(cursor.key(), id);
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// Versions published before the crash may be newer than the durable one. A page born in the future of those who
    /// see it would be freed under them.
    fn note_birth(&self, birth: u64) {
        self.newest_version.set(self.newest_version.get().max(birth));
    }

    /// Makes the replayed log, and the values that it refers to, durable: values first, as always. When a sync failed
    /// in a process before, the kernel may show bytes and believe that the device has them, which it has not.
    fn make_found_durable(&self) -> Result<()> {
        let core = self.core;
        let values = self.unsynced_values.take();
        if !values.is_empty() {
            let sync = || {
                core.data
                    .sync_data()
                    .map_err(|error| Error::io("syncing long values", error))
            };
            make_durable(&*core.data, PAGE_BYTES as u64, values.into_iter(), &sync)?;
        }
        for &slot in &self.accepted {
            let file = core.log_file(slot)?;
            let sync = || {
                file.sync_data()
                    .map_err(|error| Error::io("syncing the replayed log", error))
            };
            let records = self.unsynced_records.iter().filter(|(found, _)| *found == slot);
            make_durable(&*file, core.unit, records.map(|(_, range)| range.clone()), &sync)?;
        }
        Ok(())
    }

    /// A fold may not have kept the newest checkpoint that the log makes.
    fn learn_checkpoint(&self) -> Result<()> {
        let core = self.core;
        let Some((commit, slot, position)) = self.checkpoint else {
            return Ok(());
        };
        let register = core.register(self.meta.register)?;
        // SAFETY: the store is not open yet: the generation stays.
        let generation = unsafe { core.generation_view(slot) }?;
        let new = generation.new_checkpoint(position)?;
        if new.id >= register.next_id {
            core.control().pending_checkpoint.0.begins(commit, slot, position);
            core.space.has_root_to_keep(pages_with(&register, &new));
        }
        Ok(())
    }

    /// Publishes what was found and, for writers, begins a new generation in a new epoch.
    fn begin(self) -> Result<()> {
        let core = self.core;
        let control = core.control();
        if !core.settings.read_only {
            // What was found may be in the kernel's memory only, after a process died. What follows relies on it: pages
            // that only an older meta page needs are free from here on, and the next records go on from the last.
            let needs_writing = !self.meta_was_durable || !self.meta_pages.is_whole();
            if needs_writing && !is_planted(PlantedBug::FoundBaseNotSynced) {
                // Written again for the same reason as the log.
                let doing = |error| Error::io("syncing the base that was found", error);
                let sync = || core.data.sync_data().map_err(doing);
                self.meta_pages.write_again(&*core.data, &sync)?;
            }
            self.make_found_durable()?;
        }
        control.visible.0.store(self.last_commit, Ordering::Release);
        control.synced.0.store(self.last_commit, Ordering::Release);
        control.durable.0.store(self.meta.base_commit, Ordering::Release);
        let tail = &control.tail.0;
        tail.previous.store(self.previous, Ordering::Relaxed);
        tail.time.store(self.time, Ordering::Relaxed);
        tail.epoch.store(self.epoch + 1, Ordering::Relaxed);
        tail.meta_sequence.store(self.meta.sequence as u32, Ordering::Relaxed);
        tail.next_generation.store(self.next_generation, Ordering::Relaxed);
        tail.next_map.store(self.next_map, Ordering::Relaxed);
        tail.checkable_since.store(self.last_commit, Ordering::Relaxed);
        tail.time.fetch_max(self.meta.time, Ordering::Relaxed);
        core.begin_shared_clock(tail.time.load(Ordering::Relaxed), self.epoch + 1);
        let number = self.newest_version.get() + 1;
        core.durable_is(number);
        core.region.publish(&Version {
            number,
            root: self.meta.root,
            base_commit: self.meta.base_commit,
            reaches: self.meta.reaches.max(self.meta.base_commit),
            generations: self.accepted.iter().copied().collect(),
            register: self.meta.register,
        });
        core.pass_over(self.learn_checkpoint())?;
        core.pass_over(core.learn_origin())?;
        if !core.settings.read_only {
            let began = core.rotate(0, 0)?;
            assert!(began, "a store that was just opened has unused log files");
            core.sync_epoch(tail.slot.load(Ordering::Relaxed) as u16)?;
            let prepared = core.prepare_standby(core.settings.generation_bytes_min, 0);
            // On a full disk a fold makes room for it: the log files that were replayed come free.
            if self.accepted.is_empty() {
                prepared?;
            } else {
                unless_full(prepared)?;
            }
        }
        Ok(())
    }
}
