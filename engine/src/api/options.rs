//! How a store is opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use duramen_io::Platform;

use crate::api::store::Store;
use crate::error::{Error, Reason, Result};
use crate::index::Index;
use crate::limits::{
    FOLDED_AT_CLOSE_MAX, GENERATION_BYTES_MAX, GENERATION_BYTES_MIN, GENERATIONS_MAX, LOCK_TIMEOUT, MEMORY_BYTES_MIN,
    PAGE_BYTES, STANDBY_GENERATIONS, WAITING_GENERATIONS_MAX,
};
use crate::settings::{Durability, Maintenance, Settings};

/// How often opening a store for reading is tried, while others come and go.
const READING_ATTEMPTS: u32 = 3;

/// Options for opening a store. The defaults are safe; [`Store::open`] uses them.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// use duramen_engine::{Durability, Options};
/// let store = Options::new().durability(Durability::Written).open(directory.path().join("store"))?;
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    create: bool,
    read_only: bool,
    durability: Durability,
    memory_bytes: Option<u64>,
    machine_bytes: Option<u64>,
    retain_log_bytes: u64,
    maintenance: Maintenance,
    network_filesystem: bool,
    salvage: bool,
    overwrite_freed: bool,
    generation_bytes: Option<(u64, u64)>,
    fold_parts: Option<(usize, u64)>,
    folded_at_close: u64,
    log_files_max: usize,
    exclusive: bool,
    lock_timeout: Duration,
    region_directory: Option<PathBuf>,
    quota_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create: true,
            read_only: false,
            durability: Durability::Synced,
            memory_bytes: None,
            machine_bytes: None,
            retain_log_bytes: 0,
            maintenance: Maintenance::Background,
            network_filesystem: false,
            salvage: false,
            overwrite_freed: false,
            generation_bytes: None,
            fold_parts: None,
            folded_at_close: FOLDED_AT_CLOSE_MAX,
            log_files_max: GENERATIONS_MAX,
            exclusive: false,
            lock_timeout: LOCK_TIMEOUT,
            region_directory: None,
            quota_bytes: None,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Whether a missing store is made (default) or an error.
    pub fn create(mut self, create: bool) -> Options {
        self.create = create;
        self
    }

    /// Opens the store for reading only. While no other process has it open, nothing in its directory is written, which
    /// may be read-only itself, and commits that a crash left in the log are read from there; a process that wants to
    /// write then is refused with [`Reason::InUse`]. Beside others that have it open, this one takes part in the memory
    /// that they share: it sees each commit as they do and excludes no other process, and it must be allowed to write
    /// the store's files. Default: no.
    pub fn read_only(mut self, read_only: bool) -> Options {
        self.read_only = read_only;
        self
    }

    /// Durability of commits that ask for nothing else. Default: [`Durability::Synced`].
    pub fn durability(mut self, durability: Durability) -> Options {
        self.durability = durability;
        self
    }

    /// Memory that the store may use for its index of recent commits and the log they are in, in bytes. The page
    /// cache of the kernel is not counted. Default: an eighth of the memory of the machine or control group, at most
    /// 1 GiB. Less than 8 MiB counts as 8 MiB.
    pub fn memory_bytes(mut self, bytes: u64) -> Options {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Bytes that the data may take: the pages of the data file that are in use, and what waits in the log to be folded
    /// into them. A commit that would go beyond is refused with [`Reason::QuotaExceeded`], of kind
    /// [`MakeSpace`](crate::Kind::MakeSpace), unless it only deletes. What was deleted or overwritten counts until a
    /// fold, which the commit makes before it is refused; so writing at the very edge of the quota is slow. Files may
    /// be larger: free pages, and log files that are kept for use, do not count. The quota is one of this handle: other
    /// processes have theirs. Default: none.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// use duramen_engine::{Options, Reason};
    /// let store = Options::new().quota_bytes(1 << 20).open(directory.path())?;
    /// let map = store.map("map")?;
    /// let refused = map.put("too much", vec![7; 2 << 20]).unwrap_err();
    /// assert!(matches!(refused.reason(), Reason::QuotaExceeded { .. }));
    /// # Ok::<(), duramen_engine::Error>(())
    /// ```
    pub fn quota_bytes(mut self, bytes: u64) -> Options {
        self.quota_bytes = Some(bytes);
        self
    }

    /// Bytes of the commit stream that are kept for [`Store::changes`] beyond what the log holds anyway. The space of
    /// what those commits replaced is kept with them, while the store is open. At most 32 generations of the log are
    /// kept, however small they are. Default: 0.
    ///
    /// Where several processes share the store, each keeps what it folds itself, by its own number, for streams that
    /// begin in it; and any process may fold. So a stream that begins later finds what its own process has kept, and
    /// otherwise [`Reason::NotRetained`]. An open stream keeps what it needs, whichever process folds.
    pub fn retain_log_bytes(mut self, bytes: u64) -> Options {
        self.retain_log_bytes = bytes;
        self
    }

    /// Who does the maintenance. Default: [`Maintenance::Background`].
    pub fn maintenance(mut self, maintenance: Maintenance) -> Options {
        self.maintenance = maintenance;
        self
    }

    /// How long a call waits for a lock, or for an exclusive transaction, that another thread or process has. After
    /// that it returns [`Reason::LockTimeout`], which names the process. Default: 30 seconds.
    ///
    /// - Zero: a call does not wait for an exclusive transaction. A lock that commits hold for microseconds is still
    ///   waited for, about a tenth of a second.
    /// - A process that was seen to be suspended gives [`Reason::Busy`] after five seconds, if that is earlier.
    /// - Locks that only maintenance takes are waited for at least five seconds, so that a short timeout cannot stop
    ///   folding. Waits for a fold itself, and for messages, are not limited by this, except that a put on a full disk
    ///   waits so long for the fold that goes on.
    pub fn lock_timeout(mut self, timeout: Duration) -> Options {
        self.lock_timeout = timeout;
        self
    }

    /// Where the processes that have the store open keep the memory that they share: a directory on tmpfs or ext4,
    /// which all of them see. The first process that opens the store decides, and the others follow it.
    ///
    /// By default that is the file `shared` in the store's directory, on ext4 and tmpfs. On other file systems it is a
    /// file in `/dev/shm`, because a full disk would end a process that writes to mapped memory there
    /// (`docs/guide/accidents.md`).
    pub fn region_directory(mut self, directory: impl AsRef<Path>) -> Options {
        let directory = directory.as_ref();
        self.region_directory = Some(std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned()));
        self
    }

    /// Allows a store on a network file system, whose mappings and syncs may not keep what Duramen promises.
    /// Default: refused.
    pub fn allow_network_filesystem(mut self, allow: bool) -> Options {
        self.network_filesystem = allow;
        self
    }

    /// Opens what is left of a damaged store, for [`Snapshot::salvage`](crate::Snapshot::salvage): read-only, and
    /// what opening finds damaged is noted by
    /// [`Snapshot::salvage_maps`](crate::Snapshot::salvage_maps) where it is an error otherwise: a bitmap of used pages
    /// that rotted, a data file that was cut off, a hole in the log, behind which nothing is shown. What other calls
    /// show of such a store may be older than what was acknowledged. A store without any intact meta page cannot be
    /// opened so either. Default: no.
    pub fn salvage(mut self, salvage: bool) -> Options {
        self.salvage = salvage;
        self
    }

    /// Fills freed pages with 0xDD, for tests.
    #[doc(hidden)]
    pub fn overwrite_freed(mut self, overwrite: bool) -> Options {
        self.overwrite_freed = overwrite;
        self
    }

    /// Memory of the machine, for tests of what happens when it has little.
    #[doc(hidden)]
    pub fn machine_bytes(mut self, bytes: u64) -> Options {
        self.machine_bytes = Some(bytes);
        self
    }

    /// Bytes of the smallest and largest generation, for tests of what happens when many of them fill up.
    #[doc(hidden)]
    pub fn generation_bytes(mut self, least: u64, most: u64) -> Options {
        self.generation_bytes = Some((least, most));
        self
    }

    /// Into how many parts folds of at least so many operations divide the tree, for tests of small ones.
    #[doc(hidden)]
    pub fn fold_parts(mut self, parts: usize, operations: u64) -> Options {
        self.fold_parts = Some((parts, operations));
        self
    }

    /// How many operations closing folds at most, for tests of what it leaves in the log.
    #[doc(hidden)]
    pub fn folded_at_close(mut self, operations: u64) -> Options {
        self.folded_at_close = operations;
        self
    }

    /// Most log files at one time, for tests of what happens when readers hold them all.
    #[doc(hidden)]
    pub fn log_files(mut self, most: usize) -> Options {
        self.log_files_max = most.min(GENERATIONS_MAX);
        self
    }

    /// Opens the store for this process alone: while others have it open this is refused, and while this one has it
    /// open they are, with [`Reason::InUse`] and the number of the process. Default: no, other processes may open the
    /// store with the same call, and all of them read and write. With [`Options::read_only`] it only keeps writers out:
    /// others that open the store so may read it too.
    pub fn exclusive(mut self, exclusive: bool) -> Options {
        self.exclusive = exclusive;
        self
    }

    /// Opens the store in a directory, making both when they are missing (see [`Options::create`]).
    ///
    /// After a crash this replays the log: at most a few hundred MiB of it, in about a second.
    ///
    /// # Errors
    /// [`Reason::InUse`], [`Reason::NotAStore`], [`Reason::NoStore`], [`Reason::NewerFormat`],
    /// [`Reason::OlderFormat`], [`Reason::Damaged`],
    /// [`Reason::Full`] and [`Reason::Io`].
    pub fn open(self, directory: impl AsRef<Path>) -> Result<Store> {
        let directory = directory.as_ref();
        let doing = |error| Error::io(format!("opening {}", directory.display()), error);
        if !duramen_io::exists(directory) {
            if !self.create || self.is_read_only() {
                return Err(Reason::NoStore {
                    path: directory.display().to_string(),
                }
                .into());
            }
            duramen_io::create_directory(directory).map_err(doing)?;
        }
        if !duramen_io::is_directory(directory) {
            let found = "it is a file".to_string();
            return Err(Reason::NotAStore {
                path: directory.display().to_string(),
                found,
            }
            .into());
        }
        self.check_filesystem(directory, duramen_io::is_network_filesystem(directory).map_err(doing)?)?;
        if !self.is_read_only() {
            let platform = duramen_io::real_platform(directory).map_err(doing)?;
            if !self.network_filesystem && !duramen_io::copies_on_write(directory).map_err(doing)? {
                check_blocks(directory, platform.storage.write_unit())?;
            }
            return self.open_on(platform);
        }
        let alone = duramen_io::real_platform_read_only(directory).map_err(doing)?;
        if self.salvage {
            return self.open_on(alone);
        }
        // Those who share a store write to the memory that they share, also those who only read.
        let beside_others = duramen_io::real_platform(directory).map_err(doing)?;
        self.open_to_read(beside_others, alone)
    }

    /// Opens a new store in a directory of its own, below the system's directory for temporary files. The directory is
    /// removed when the last handle is dropped; a process that is killed leaves it there.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn temporary(self) -> Result<Store> {
        let directory = tempfile::Builder::new().prefix("duramen-").tempdir();
        let directory = directory.map_err(|error| Error::io("making a temporary directory", error))?;
        let store = self.open(directory.path())?;
        store.remove_when_dropped(directory);
        Ok(store)
    }

    /// Opens the store on a given platform: a simulated disk, in tests.
    pub fn open_on(self, platform: Platform) -> Result<Store> {
        match self.read_only && !self.salvage {
            true => self.open_to_read(platform.clone(), platform),
            false => Store::open_with(platform, self.settings()),
        }
    }

    /// Another process may open the store, or close it, between the two attempts.
    fn open_to_read(self, beside_others: Platform, alone: Platform) -> Result<Store> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            if let Some(store) = Store::open_beside_others(&beside_others, &self.settings())? {
                return Ok(store);
            }
            match Store::open_with(alone.clone(), self.settings()) {
                Err(error) if attempt < READING_ATTEMPTS && matches!(error.reason(), Reason::InUse { .. }) => {}
                opened => return opened,
            }
        }
    }

    /// Refuses a directory on a network file system, by its name, unless that was asked for.
    fn check_filesystem(&self, directory: &Path, network: Option<String>) -> Result<()> {
        match (network, self.network_filesystem) {
            (Some(name), false) => {
                let cause = format!(
                    "{} is on a network file system ({name}), whose locks, mappings and syncs cannot be relied upon; \
                     use a local disk, or allow it with `allow_network_filesystem`",
                    directory.display()
                );
                Err(Reason::InvalidArgument(cause).into())
            }
            _ => Ok(()),
        }
    }

    fn is_read_only(&self) -> bool {
        self.read_only || self.salvage
    }

    fn settings(&self) -> Settings {
        let machine_bytes = self.machine_bytes.unwrap_or_else(duramen_io::memory_limit_bytes);
        let share = (machine_bytes / 8).min(1 << 30);
        let memory_bytes = self.memory_bytes.unwrap_or(share).max(MEMORY_BYTES_MIN);
        let most = generation_bytes(memory_bytes);
        let (least, most) = self.generation_bytes.unwrap_or((GENERATION_BYTES_MIN, most));
        Settings {
            create: self.create && !self.is_read_only(),
            read_only: self.is_read_only(),
            is_salvage: self.salvage,
            durability: self.durability,
            memory_bytes,
            machine_bytes,
            retain_log_bytes: self.retain_log_bytes,
            background: self.maintenance == Maintenance::Background,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            fold_parts: self.fold_parts,
            folded_at_close: self.folded_at_close,
            overwrite_freed: self.overwrite_freed,
            generation_bytes_min: least,
            generation_bytes_max: most,
            log_files_max: self.log_files_max,
            is_exclusive: self.exclusive,
            lock_timeout: self.lock_timeout,
            region_directory: self.region_directory.clone(),
            quota_bytes: self.quota_bytes,
        }
    }
}

/// Refuses a file system that writes blocks in place which are larger than a page. The data file is written in pages,
/// and a power cut may destroy all of a block that is being written: also pages beside it that were durable.
fn check_blocks(directory: &Path, block: u64) -> Result<()> {
    if block <= PAGE_BYTES as u64 {
        return Ok(());
    }
    let cause = format!(
        "the file system of {} has blocks of {block} bytes, and a power cut while one is written could destroy \
         acknowledged data beside it; use a file system with blocks of {PAGE_BYTES} bytes, or one that copies on write",
        directory.display()
    );
    Err(Reason::InvalidArgument(cause).into())
}

/// Bytes of log of the largest generations of which as many as there may be take `memory_bytes`.
fn generation_bytes(memory_bytes: u64) -> u64 {
    let (mut fits, mut too_large) = (GENERATION_BYTES_MIN, GENERATION_BYTES_MAX);
    if memory_taken(too_large) <= memory_bytes {
        return too_large;
    }
    while fits + PAGE_BYTES as u64 <= too_large {
        let middle = fits.midpoint(too_large);
        let bound = if memory_taken(middle) <= memory_bytes {
            &mut fits
        } else {
            &mut too_large
        };
        *bound = middle;
    }
    fits
}

/// What the log takes at most with generations of so many bytes: one takes commits, others wait for a fold, and those
/// that come next have an index already.
fn memory_taken(generation_bytes: u64) -> u64 {
    let index = Index::bytes_for(generation_bytes) as u64;
    (WAITING_GENERATIONS_MAX as u64 + 1) * (generation_bytes + index) + STANDBY_GENERATIONS as u64 * index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_generations_as_there_may_be_take_the_memory_that_was_given() {
        for mebibytes in [8, 9, 16, 21, 64, 128, 333, 1024] {
            let memory = mebibytes << 20;
            let generation = generation_bytes(memory);
            assert!(memory_taken(generation) <= memory, "{mebibytes} MiB: {generation}");
            assert!(
                memory_taken(generation) >= memory / 100 * 98,
                "{mebibytes} MiB: {generation}"
            );
        }
        assert_eq!(generation_bytes(u64::MAX), GENERATION_BYTES_MAX);
    }

    #[test]
    fn file_systems_whose_blocks_are_larger_than_a_page_are_refused() {
        check_blocks(Path::new("somewhere"), 4096).expect("blocks of a page");
        let error = check_blocks(Path::new("somewhere"), 16384).expect_err("larger blocks");
        assert!(matches!(error.reason(), Reason::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("16384"), "{error}");
    }

    #[test]
    fn network_file_systems_are_refused_by_name_unless_asked_for() {
        let check = |options: Options, name: Option<&str>| {
            options.check_filesystem(Path::new("somewhere"), name.map(str::to_string))
        };
        let error = check(Options::new(), Some("NFS")).expect_err("it is a network file system");
        assert!(matches!(error.reason(), Reason::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("(NFS)"), "{error}");
        check(Options::new(), None).expect("a local disk");
        check(Options::new().allow_network_filesystem(true), Some("NFS")).expect("it was asked for");
    }
}
