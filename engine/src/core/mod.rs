//! The heart of an open store: everything that its handles, snapshots and background threads share.

pub(crate) mod bell;
pub(crate) mod beside;
pub(crate) mod catalog;
mod clock;
pub(crate) mod followers;
pub(crate) mod kept_roots;
pub(crate) mod long_value;
mod maintenance;
pub(crate) mod pace;
pub(crate) mod pins;
pub(crate) mod repair;
pub(crate) mod streams;
pub(crate) mod syncs;
mod views;
pub(crate) mod watch;

pub(crate) use maintenance::{MaintenanceGuard, MaintenanceState};
pub(crate) use views::keep_generations;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use duramen_io::{File, Lock, Platform, WordLockGuard, wait, wake};

use crate::allocator::Space;
use crate::checksum::StoreSeeds;
use crate::core::bell::Bells;
use crate::core::beside::ExclusiveThread;
use crate::core::catalog::{Catalog, map_id};
use crate::core::kept_roots::KeptRoots;
use crate::core::pace::Pace;
use crate::core::streams::Streams;
use crate::core::syncs::Syncs;
use crate::core::watch::Watch;
use crate::datafile::meta::Meta;
use crate::datafile::pages::Pages;
use crate::error::{Error, Kind, Reason, Result};
use crate::index::Index;
use crate::key::full_key::{CATALOG, FullRange};
use crate::limits::MAP_ID_BYTES;
use crate::log::{OpenFile, Segments};
use crate::planted::{PlantedBug, is_planted, kill_point};
use crate::read::deleted::Deletions;
use crate::read::scan::Scan;
use crate::read::view::View;
use crate::region::{Control, GenerationEntry, Region, STOPPED};
use crate::settings::Settings;

/// See the module.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) platform: Platform,
    pub(crate) settings: Settings,
    pub(crate) data: Arc<dyn File>,
    pub(crate) pages: Pages,
    pub(crate) space: Space,
    pub(crate) segments: Segments,
    pub(crate) region: Arc<Region>,
    pub(crate) catalog: Catalog,
    pub(crate) hash_seed: u64,
    pub(crate) store: u128,
    pub(crate) seeds: StoreSeeds,
    /// What no later write shares with synced bytes, see [`duramen_io::Storage::write_unit`].
    pub(crate) unit: u64,
    /// What no store to a mapping shares with synced bytes, see [`duramen_io::Storage::store_unit`].
    pub(crate) store_unit: Option<u64>,
    /// State of maintenance in this process; see [`Core::hold_maintenance`].
    maintenance: Mutex<MaintenanceState>,
    kept_roots: KeptRoots,
    /// Woken when the thread that syncs has something to do.
    pub(crate) work: (Mutex<Work>, Condvar),
    /// Wakers of commit futures, by commit.
    pub(crate) waiting: Mutex<Vec<(u64, std::task::Waker)>>,
    pub(crate) closed: AtomicBool,
    /// What [`crate::region::Control::life`] is as long as the handles of this process are good.
    life: u32,
    /// The process that opened the store: asking the kernel costs more than all the rest of a snapshot.
    pub(crate) process: u32,
    /// Whether the thread that syncs for commit futures runs. Where it could not be started they sync for themselves.
    pub(crate) syncer_runs: AtomicBool,
    /// Whether the folding thread runs; where it was not asked for, or could not be started, commits fold.
    pub(crate) folder_runs: AtomicBool,
    /// Whether the thread that rings for what other processes append runs.
    pub(crate) ringer_runs: AtomicBool,
    pub(crate) streams: Streams,
    pub(crate) bells: Bells,
    /// What opening found damaged and passed over, for [`crate::Options::salvage`].
    pub(crate) passed_over: Mutex<Vec<String>>,
    /// Whether the newest fold that this process tried failed. Relaxed: only who folds next depends on it.
    pub(crate) fold_failed: AtomicBool,
    /// The newest commit at which a fold made no room for what was to be written; `u64::MAX`: none.
    pub(crate) folded_in_vain: AtomicU64,
    pub(crate) watch: Watch,
    pub(crate) deletions: Deletions,
    pub(crate) pace: Pace,
    pub(crate) syncs: Syncs,
    /// Whether the kernel may have told others, and not this process, of pages of the data file that it could not
    /// write: until the first sync in a process that attached to a store which others had open.
    pub(crate) data_is_unreported: AtomicBool,
    /// Which thread of this process has the exclusive transaction.
    pub(crate) exclusive_thread: ExclusiveThread,
    /// Calls that write outside the commit lock, and would go on doing so while the store is closed.
    users: AtomicU64,
    /// Whether `close` has done all that it does, but for letting go of the lock.
    settled: AtomicBool,
    /// What [`Region::hash_of_memory`] said, if the region will be left to the next opening when the lock is released.
    left_memory: OnceLock<u64>,
    /// Held as long as anything of the store is in use; once a closed store is no longer in use, handles that are still
    /// there touch nothing of it.
    lock: Mutex<Option<StoreLock>>,
}

/// What keeps others from opening the store in a way that this process could not bear.
#[derive(Debug)]
pub(crate) enum StoreLock {
    /// A lock on the whole; `None` for read-only stores on directories without locks.
    Whole { _lock: Option<Lock> },
    /// An entry in the table of processes that share it.
    Seat,
}

/// What the background threads of this process are asked to do.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) sync: bool,
    pub(crate) stop: bool,
}

impl Core {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts are made by recovery and put together once"
    )]
    pub(crate) fn new(
        platform: Platform,
        settings: Settings,
        data: Arc<dyn File>,
        pages: Pages,
        space: Space,
        segments: Segments,
        region: Arc<Region>,
        durable: Meta,
        lock: StoreLock,
    ) -> Core {
        let pace = Pace::new(region.clone());
        let life = region.control().life.0.load(Ordering::Acquire) & !STOPPED;
        let unit = platform.storage.write_unit();
        let store_unit = platform.storage.store_unit();
        region.limit_locks(settings.lock_timeout);
        if settings.retain_log_bytes > 0 {
            space.fold_in_one();
        }
        Core {
            platform,
            data,
            pages,
            space,
            segments,
            region,
            catalog: Catalog::default(),
            hash_seed: durable.hash_seed,
            store: durable.store,
            seeds: StoreSeeds::of(durable.store),
            unit,
            store_unit,
            maintenance: Mutex::new(MaintenanceState {
                durable,
                published: Vec::new(),
                history: VecDeque::new(),
                shrunk_in_vain: None,
            }),
            kept_roots: KeptRoots::default(),
            settings,
            work: (Mutex::new(Work::default()), Condvar::new()),
            waiting: Mutex::new(Vec::new()),
            closed: AtomicBool::new(false),
            life,
            process: duramen_io::process_id(),
            syncer_runs: AtomicBool::new(false),
            folder_runs: AtomicBool::new(false),
            ringer_runs: AtomicBool::new(false),
            streams: Streams::default(),
            bells: Bells::default(),
            passed_over: Mutex::default(),
            fold_failed: AtomicBool::new(false),
            folded_in_vain: AtomicU64::new(u64::MAX),
            watch: Watch::default(),
            deletions: Deletions::default(),
            pace,
            syncs: Syncs::default(),
            data_is_unreported: AtomicBool::new(false),
            exclusive_thread: ExclusiveThread::default(),
            users: AtomicU64::new(0),
            settled: AtomicBool::new(false),
            left_memory: OnceLock::new(),
            lock: Mutex::new(Some(lock)),
        }
    }

    /// Notes damage that opening passes over, where it may; elsewhere it stays an error.
    pub(crate) fn pass_over<T>(&self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Err(error) if self.settings.is_salvage && error.kind() == Kind::Damaged => {
                let mut passed_over = self.passed_over.lock().unwrap_or_else(|e| e.into_inner());
                passed_over.push(error.fact());
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    /// Whether other processes may have the store open too.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.region.seat().is_shared()
    }

    pub(crate) fn control(&self) -> &Control {
        self.region.control()
    }

    #[inline(always)]
    pub(crate) fn entry(&self, slot: u16) -> &GenerationEntry {
        self.region.generation(slot)
    }

    /// The index of a live generation.
    #[inline]
    pub(crate) fn index(&self, slot: u16) -> Index {
        self.index_of(self.entry(slot))
    }

    #[inline(always)]
    fn index_of(&self, entry: &GenerationEntry) -> Index {
        let (offset, bytes) = entry.memory.place();
        let memory = self.region.memory(offset);
        // SAFETY: the entry of a live generation names memory that was formatted before the generation went live.
        unsafe { Index::attach(memory, bytes as usize) }.expect("the index of a live generation was overwritten")
    }

    /// The log file of a generation, which exists.
    pub(crate) fn log_file(&self, slot: u16) -> Result<Arc<dyn File>> {
        self.open_log(slot).map(|open| open.file)
    }

    /// The log file of a generation, which exists, and what its description may not be told of.
    pub(crate) fn open_log(&self, slot: u16) -> Result<OpenFile> {
        let entry = self.entry(slot);
        let incarnation = entry.incarnation.load(Ordering::Acquire);
        self.segments.file(slot, incarnation, &entry.number)
    }

    /// The log file of a generation that is being prepared, made where there is none.
    pub(crate) fn create_log_file(&self, slot: u16) -> Result<Arc<dyn File>> {
        let entry = self.entry(slot);
        let incarnation = entry.incarnation.load(Ordering::Acquire);
        let created = self.segments.create(slot, incarnation, &entry.number);
        created.map(|open| open.file)
    }

    /// Keeps the store's lock for a call that writes outside the commit lock.
    pub(crate) fn enter(&self) -> Result<User<'_>> {
        self.own()?;
        self.users.fetch_add(1, Ordering::SeqCst);
        let user = User { core: self };
        if self.closed.load(Ordering::SeqCst) {
            return Err(Reason::Closed.into());
        }
        Ok(user)
    }

    /// Whether anything in this process uses the store, which is closed.
    pub(crate) fn is_in_use(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0 || self.region.is_pinned_here()
    }

    /// The end of closing.
    pub(crate) fn let_go(&self) {
        self.settled.store(true, Ordering::SeqCst);
        self.let_go_if_unused();
    }

    /// Lets other processes open the store, if it is closed and no handle of it is in use.
    #[cold]
    fn let_go_if_unused(&self) {
        if self.settled.load(Ordering::SeqCst) && !self.region.is_forked() && !self.is_in_use() {
            let held = self.lock.lock().unwrap_or_else(|e| e.into_inner()).take();
            if held.is_none() {
                return;
            }
            self.region.leave();
            if let Some(&memory) = self.left_memory.get()
                && !self.region.leave_warm(&self.platform, memory)
            {
                self.region.goes_with_this_process();
            }
            self.region.seat().stand_up();
        }
    }

    /// Leaves the region to the next opening, if this process does not use the store any more. The caller is the last
    /// process that has the store open. It keeps others out until [`Core::let_go`], and makes the log durable before
    /// that.
    pub(crate) fn will_leave_warm(&self) {
        if !self.is_in_use() {
            self.left_memory.get_or_init(|| self.region.hash_of_memory());
        }
    }

    /// Refuses work after an input/output error or after `close`.
    #[inline]
    pub(crate) fn healthy(&self) -> Result<()> {
        self.present()?;
        if self.closed.load(Ordering::Relaxed) {
            return Err(Reason::Closed.into());
        }
        Ok(())
    }

    /// Refuses work after an input/output error, after a restore, and in a process that was forked.
    #[inline]
    pub(crate) fn present(&self) -> Result<()> {
        self.own()?;
        match self.control().life.0.load(Ordering::Relaxed) {
            life if life == self.life => Ok(()),
            life => Err(self.past(life)),
        }
    }

    #[cold]
    fn past(&self, life: u32) -> Error {
        match life & STOPPED {
            0 => Reason::Restored.into(),
            _ => Reason::Poisoned { cause: self.cause() }.into(),
        }
    }

    /// Refuses work in a fork of the process that opened the store.
    #[inline]
    pub(crate) fn own(&self) -> Result<()> {
        if self.region.is_forked() {
            return Err(Reason::Forked.into());
        }
        Ok(())
    }

    /// Refuses work after an input/output error, and in a process that was forked.
    #[inline]
    pub(crate) fn unpoisoned(&self) -> Result<()> {
        self.own()?;
        self.running()
    }

    /// Refuses work after an input/output error.
    #[inline]
    pub(crate) fn running(&self) -> Result<()> {
        if self.is_poisoned() {
            return Err(Reason::Poisoned { cause: self.cause() }.into());
        }
        Ok(())
    }

    /// As `healthy`, and refuses writes to a store that was opened read-only.
    #[inline]
    pub(crate) fn writable(&self) -> Result<()> {
        if self.settings.read_only {
            return Err(Reason::ReadOnly.into());
        }
        self.healthy()?;
        self.undamaged()
    }

    /// Refuses to write, or to fold, once a fold met damage.
    #[inline]
    pub(crate) fn undamaged(&self) -> Result<()> {
        if self.control().damaged.load(Ordering::Acquire) != 0 {
            return Err(self.damage_error());
        }
        Ok(())
    }

    #[cold]
    fn damage_error(&self) -> Error {
        let what = self.control().damage.read();
        let what = what.as_deref().unwrap_or("its base cannot be read");
        Error::damaged(format!(
            "{what}; so nothing more is written to it, and what is not damaged can be read \
             (`duramen dump --skip-damaged` saves it)"
        ))
    }

    /// Refuses all writes from here on, because what they would be folded into is damaged. Unlike [`Core::poison`] this
    /// leaves reads alone: everything acknowledged is in the log or in the base.
    pub(crate) fn stop_writing(&self, what: &str) {
        self.tell_damaged(what);
        self.control().damage.write(what);
        self.control().damaged.store(1, Ordering::Release);
        self.report_progress();
    }

    /// Stops the store: after a failed write or sync the content of the device is unknown (a second sync may succeed
    /// without having written anything; see Rebello et al., "Can Applications Recover from fsync Failures?", 2020).
    pub(crate) fn poison(&self, cause: &Error) {
        let cause = cause.to_string();
        self.tell_stopped(&cause);
        self.region.stop(&cause);
        self.wake_streams();
        self.report_progress();
    }

    /// Stops the store, and returns the error that tells the caller so.
    pub(crate) fn poisoned_by(&self, cause: Error) -> Error {
        // A sync that failed before it has said so, and named the commit.
        if cause.kind() == Kind::Reopen {
            return cause;
        }
        self.poison(&cause);
        let cause = cause.to_string();
        Reason::Poisoned { cause }.into()
    }

    /// Stops the store for `cause`, unless another process was only in the way: then nothing happened.
    pub(crate) fn poisoned_unless_busy(&self, cause: Error) -> Error {
        match cause.reason() {
            _ if cause.waited_for().is_some() => cause,
            _ => self.poisoned_by(cause),
        }
    }

    /// Runs a step that must not end halfway, under a lock that a panic releases. A panic stops the store, because the
    /// next holder of the lock would continue with a half-done step. Closing and opening the store repairs it.
    #[inline]
    pub(crate) fn whole_or_stopped<T>(&self, doing: &'static str, body: impl FnOnce() -> T) -> T {
        let unfinished = Unfinished { core: self, doing };
        let done = body();
        std::mem::forget(unfinished);
        done
    }

    pub(crate) fn cause(&self) -> String {
        self.control().cause.read().unwrap_or_else(|| "an earlier error".into())
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.control().life.0.load(Ordering::Relaxed) & STOPPED != 0
    }

    /// Tells those who wait for room that there may be some.
    pub(crate) fn report_progress(&self) {
        let word = &self.control().progress.0;
        // Release: a thread that sees the new number sees what was done before.
        word.fetch_add(1, Ordering::Release);
        wake(word, u32::MAX);
    }

    /// Waits until progress was reported since `seen`, for a bounded time.
    pub(crate) fn wait_for_progress(&self, seen: u32) {
        wait(&self.control().progress.0, seen, Some(Duration::from_millis(100)));
    }

    #[inline]
    pub(crate) fn progress_seen(&self) -> u32 {
        // Acquire: pairs with the Release in `report_progress`.
        self.control().progress.0.load(Ordering::Acquire)
    }

    /// Whether a thread of this process folds.
    pub(crate) fn folds_in_background(&self) -> bool {
        self.folder_runs.load(Ordering::Relaxed)
    }

    /// Tells those who fold that there is something to fold.
    pub(crate) fn ask_for_fold(&self) {
        let word = &self.control().work.0;
        word.fetch_add(1, Ordering::AcqRel);
        wake(word, u32::MAX);
    }

    /// The newest commit that made, renamed or dropped maps. It may not be visible yet.
    #[inline]
    pub(crate) fn newest_catalog_change(&self) -> u64 {
        self.control().catalog.load(Ordering::Acquire)
    }

    /// Makes sure that handles of maps know what other processes did to those.
    #[inline]
    pub(crate) fn know_maps_under_lock(&self) -> Result<()> {
        let changes = self.control().catalog.load(Ordering::Acquire);
        if self.catalog.has_seen(changes) {
            return Ok(());
        }
        // SAFETY: the caller has the commit lock, as the name says, and the view ends here.
        let view = unsafe { self.view_under_lock() }?;
        self.learn_maps(&view, changes)
    }

    /// Makes sure that handles of maps know what other processes did to those, without any lock: what a snapshot shows
    /// that is taken now.
    #[inline]
    pub(crate) fn know_maps(&self) -> Result<()> {
        // Before the snapshot is taken.
        let change = self.newest_catalog_change();
        if self.catalog.has_seen(change) {
            return Ok(());
        }
        self.know_maps_up_to(change)
    }

    #[cold]
    fn know_maps_up_to(&self, change: u64) -> Result<()> {
        let is_visible = self.control().visible.0.load(Ordering::Acquire) >= change;
        if !is_visible && self.catalog.has_looked(change) {
            return Ok(());
        }
        match self.with_view(|view| self.learn_maps(view, change)) {
            // A commit looks again, under its lock; a read needs a snapshot itself.
            Err(error) if matches!(error.reason(), Reason::TooManySnapshots { .. }) => Ok(()),
            learned => learned,
        }
    }

    #[cold]
    fn learn_maps(&self, view: &View<'_>, change: u64) -> Result<()> {
        let mut names = HashMap::new();
        let source = self.pages.verified();
        let mut scan = Scan::new(source, view, &[], FullRange::map(CATALOG));
        while let Some(entry) = scan.next()? {
            let name = String::from_utf8_lossy(&scan.key()[MAP_ID_BYTES..]).into_owned();
            if let Some(id) = entry.resolve(source)? {
                names.insert(map_id(&id)?, name);
            }
        }
        kill_point();
        self.catalog.learn(&names, view.commit, change);
        Ok(())
    }

    /// Waits for the commit lock and takes it.
    ///
    /// # Errors
    /// [`Reason::Busy`] when a process that is alive has had the lock for long: it was stopped inside a commit.
    #[inline]
    pub(crate) fn hold_commits(&self) -> Result<WordLockGuard<'_>> {
        let lock = &self.control().commit_lock.0;
        self.region.hold(lock, || self.repair_commits())
    }

    /// Waits for the commit lock, to commit for a user, as long as [`crate::Options::lock_timeout`] says.
    ///
    /// # Errors
    /// [`Reason::LockTimeout`], [`Reason::Busy`].
    #[inline]
    pub(crate) fn hold_commits_in_time(&self) -> Result<WordLockGuard<'_>> {
        let lock = &self.control().commit_lock.0;
        self.region
            .hold_in_time(lock, "the commit lock", || self.repair_commits())
    }

    /// As [`Core::hold_commits`], for callers that can do without the lock. `None`: it was not free soon.
    pub(crate) fn hold_commits_soon(&self) -> Option<WordLockGuard<'_>> {
        let lock = &self.control().commit_lock.0;
        self.region.hold_soon(lock, || self.repair_commits())
    }

    /// Wakes the commit futures that can be polled with success, or with the error that stopped the store, or that
    /// must sync for themselves.
    pub(crate) fn wake_futures(&self) {
        let synced = self.control().synced.0.load(Ordering::Acquire);
        let everyone = self.is_poisoned() || !self.syncer_runs.load(Ordering::Acquire);
        let mut waiting = self.waiting.lock().unwrap_or_else(|e| e.into_inner());
        let (ready, rest) = std::mem::take(&mut *waiting)
            .into_iter()
            .partition(|(commit, _)| everyone || *commit <= synced || self.was_given_up(*commit, 0).is_some());
        *waiting = rest;
        drop(waiting);
        let ready: Vec<(u64, std::task::Waker)> = ready;
        ready.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Asks the background threads of this process to work.
    pub(crate) fn ask(&self, request: impl FnOnce(&mut Work)) {
        request(&mut self.work.0.lock().unwrap_or_else(|e| e.into_inner()));
        self.work.1.notify_all();
    }
}

/// Something that is half done; see [`Core::whole_or_stopped`].
struct Unfinished<'a> {
    core: &'a Core,
    doing: &'static str,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if is_planted(PlantedBug::PanicPassedOver) {
            return;
        }
        let panic = std::io::Error::other("a thread panicked");
        self.core.poison(&Error::io(self.doing, panic));
    }
}

/// A call for which the store stays locked; see [`Core::enter`].
pub(crate) struct User<'a> {
    core: &'a Core,
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.core.users.fetch_sub(1, Ordering::SeqCst);
        if self.core.closed.load(Ordering::SeqCst) {
            self.core.let_go_if_unused();
        }
    }
}
