//! The handle of an open store.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, path::Path};

use duramen_io::Platform;
use tempfile::TempDir;

use crate::allocator::Slack;
use crate::api::batch::Batch;
use crate::api::changes::{Changes, ChangesFrom};
use crate::api::closing::CloseFuture;
use crate::api::future::CommitFuture;
use crate::api::map::{Map, Maps};
use crate::api::options::Options;
use crate::api::snapshot::Snapshot;
use crate::api::transaction::{Transaction, TransactionOptions};
use crate::commit::Commit;
use crate::commit::background;
use crate::commit::draft::Draft;
use crate::core::Core;
use crate::core::watch::Begun;
use crate::error::{Error, Reason, Result};
use crate::map_name::reserved;
use crate::recovery;
use crate::settings::Durability;
use crate::settings::Settings;

/// An open store. Clones are handles of the same store; it closes when the last handle of any kind (clone, map,
/// snapshot, transaction, stream) is dropped.
#[derive(Clone)]
pub struct Store {
    lanes: Arc<[Arc<Handle>]>,
}

/// What keeps a store open. A store has several, all of the same, so that threads that take a snapshot for each read do
/// not all count the same reference, which would send one cache line to and fro between their processors.
#[repr(align(128))]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) opened: Arc<Opened>,
}

/// An open store: its core and its background threads. It closes when it is dropped.
pub(crate) struct Opened {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The directory of a temporary store: dropping it removes it.
    temporary: OnceLock<TempDir>,
}

/// Handles of a store: more than threads that usually read at once.
const LANES: usize = 32;

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.core.platform.storage.path())
            .finish()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle().fmt(f)
    }
}

impl fmt::Display for Store {
    /// Its directory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core().platform.storage.path().display().fmt(f)
    }
}

impl Store {
    /// Opens the store in a directory with the default options, making it when it is missing.
    ///
    /// # Errors
    /// See [`Options::open`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Store> {
        Options::new().open(directory)
    }

    /// Opens a new store in a temporary directory, which is removed when the last handle is dropped: for tests, and for
    /// data that needs to outlive nothing. Its commits are [`Durability::Written`] unless asked for otherwise;
    /// [`Options::temporary`] takes other options.
    ///
    /// ```
    /// let store = duramen_engine::Store::temporary()?;
    /// store.map("map")?.put("key", "value")?;
    /// # Ok::<(), duramen_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn temporary() -> Result<Store> {
        Options::new().durability(Durability::Written).temporary()
    }

    pub(crate) fn remove_when_dropped(&self, directory: TempDir) {
        let kept = self.handle().opened.temporary.set(directory);
        kept.expect("a store that was just opened has no such directory yet");
    }

    /// Opens a store for reading that other processes have open. `None`: there is no process to join.
    pub(crate) fn open_beside_others(platform: &Platform, settings: &Settings) -> Result<Option<Store>> {
        Ok(recovery::attach_to_read(platform, settings)?.map(Store::over))
    }

    pub(crate) fn open_with(platform: Platform, settings: Settings) -> Result<Store> {
        let begun = Begun::now();
        let core = recovery::open(platform, settings)?;
        core.tell_opened(begun);
        Ok(Store::over(core))
    }

    fn over(core: Core) -> Store {
        let opened = Opened {
            core: Arc::new(core),
            threads: Mutex::new(Vec::new()),
            temporary: OnceLock::new(),
        };
        if opened.core.settings.background && !opened.core.settings.read_only {
            opened.spawn("duramen-fold", &opened.core.folder_runs, background::fold_loop);
        }
        Store::of(&Arc::new(opened))
    }

    fn of(opened: &Arc<Opened>) -> Store {
        let lane = |_| {
            Arc::new(Handle {
                core: opened.core.clone(),
                opened: opened.clone(),
            })
        };
        Store {
            lanes: (0..LANES).map(lane).collect(),
        }
    }

    /// The store that a handle keeps open.
    pub(crate) fn behind(handle: &Handle) -> Store {
        Store::of(&handle.opened)
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.lanes[0]
    }

    /// A handle that few others use at the same time when their numbers are different.
    pub(crate) fn lane(&self, number: usize) -> &Arc<Handle> {
        &self.lanes[number % LANES]
    }

    /// Notes an error of work in the background, for `stat`.
    #[doc(hidden)]
    pub fn note_background_error(&self, during: &'static str, error: &Error) {
        self.core().note_background_error(during, error);
    }

    /// Whether this is the same open store.
    #[doc(hidden)]
    pub fn is(&self, other: &Store) -> bool {
        std::ptr::eq(self.core(), other.core())
    }

    pub(crate) fn core(&self) -> &Core {
        &self.handle().core
    }

    /// Opens a map, making it when it is missing. Making it is a commit of its own, `Synced` unless the store was
    /// opened with another durability.
    ///
    /// # Errors
    /// [`Reason::InvalidMapName`], and those of a commit.
    pub fn map(&self, name: &str) -> Result<Map> {
        loop {
            if let Some(map) = self.maps().get(name)? {
                return Ok(map);
            }
            match self.maps().create_by("store.map", name) {
                Err(error) if matches!(error.reason(), Reason::MapExists { .. }) => continue,
                created => return created,
            }
        }
    }

    /// Opens a map that a layer above the engine keeps for itself, making it when it is missing. No user can name it.
    #[doc(hidden)]
    pub fn reserved_map(&self, name: &str) -> Result<Map> {
        let name = reserved(name);
        match self.maps().named(&name)? {
            Some(map) => Ok(map),
            None => self.transact(|tx| tx.named(&name)),
        }
    }

    /// The reserved map of a name, without creating it; `None`: it does not exist yet.
    #[doc(hidden)]
    pub fn existing_reserved_map(&self, name: &str) -> Result<Option<Map>> {
        self.maps().named(&reserved(name))
    }

    /// Time of day as the store takes it, since 1970 in UTC.
    #[doc(hidden)]
    pub fn wall_clock(&self) -> Duration {
        self.core().platform.clock.wall()
    }

    /// Time since some moment, as the store takes it; it never goes back.
    #[doc(hidden)]
    pub fn monotonic_clock(&self) -> Duration {
        self.core().platform.clock.monotonic()
    }

    /// An unpredictable number.
    #[doc(hidden)]
    pub fn random_number(&self) -> u64 {
        self.core().platform.random.next_u64()
    }

    /// Refuses a commit beside an exclusive transaction of the same thread, for layers above: `call` and `what` name
    /// it.
    #[doc(hidden)]
    pub fn refuse_beside(&self, call: &'static str, what: &str) -> Result<()> {
        self.core().refuse_beside(call, || what.to_string())
    }

    /// Whether the calling thread is in a transaction of its own, beside which it cannot commit.
    #[doc(hidden)]
    pub fn is_beside_transaction(&self) -> bool {
        self.core().is_beside()
    }

    /// Whether nothing can be written.
    #[doc(hidden)]
    pub fn is_read_only(&self) -> bool {
        self.core().settings.read_only
    }

    /// Durability of commits that ask for nothing else.
    #[doc(hidden)]
    pub fn default_durability(&self) -> Durability {
        self.core().settings.durability
    }

    /// The maps of the store: list, look up, create, rename, drop.
    pub fn maps(&self) -> Maps<'_> {
        Maps { store: self }
    }

    /// A snapshot of everything committed so far. It costs well under a microsecond, never blocks, and never changes.
    ///
    /// # Errors
    /// [`Reason::TooManySnapshots`], [`Reason::Closed`], [`Reason::Poisoned`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::new(self, &self.core().control().visible.0)
    }

    /// A snapshot of what survives power loss: the newest synced commit and everything before it.
    ///
    /// # Errors
    /// As [`Store::snapshot`].
    pub fn snapshot_durable(&self) -> Result<Snapshot> {
        Snapshot::new(self, &self.core().control().synced.0)
    }

    /// Begins a write transaction.
    ///
    /// # Errors
    /// As [`Store::snapshot`], and [`Reason::ReadOnly`].
    pub fn begin(&self, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(self, options)
    }

    /// Runs a closure in a transaction and commits it, again after a conflict: ten times concurrently with others,
    /// then once with all other writers shut out, where no conflict can be. The closure may therefore run several
    /// times and should have no other effects. When it returns an error, or panics, nothing is written.
    ///
    /// The error is any type that a [`crate::Error`] can become, so the closure can fail for reasons of its own; it can
    /// roll back with a value, too ([`crate::Rollback`]). Where it ends with `Ok(..)` the compiler asks which error is
    /// meant: end with a call that returns a `Result` (`tx.put(..)`), or write `Ok::<_, duramen::Error>(..)`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let store = duramen_engine::Store::open(directory.path())?;
    /// # let accounts = store.map("accounts")?;
    /// #[derive(Debug)]
    /// enum Refused {
    ///     NoMoney,
    ///     Store(duramen_engine::Error),
    /// }
    /// impl From<duramen_engine::Error> for Refused {
    ///     fn from(error: duramen_engine::Error) -> Refused {
    ///         Refused::Store(error)
    ///     }
    /// }
    /// let paid = store.transact(|tx| {
    ///     let Some(balance) = tx.get(&accounts, "ada")? else {
    ///         return Err(Refused::NoMoney);
    ///     };
    ///     tx.put(&accounts, "bob", &balance)?;
    ///     Ok(tx.delete(&accounts, "ada")?)
    /// });
    /// assert!(matches!(paid, Err(Refused::NoMoney)));
    /// # Ok::<(), duramen_engine::Error>(())
    /// ```
    ///
    /// Write through `tx` only. A commit that the closure makes in any other way (`map.put`, `store.map` of a map that
    /// is missing, `topic.publish`) is no part of the transaction. Once the closure runs exclusively, that call returns
    /// [`Reason::WouldWaitForItself`].
    ///
    /// # Errors
    /// Whatever the closure returns; [`Reason::LockTimeout`]; those of a commit.
    ///
    /// # Panics
    /// In debug builds, on a commit inside the closure that is not made through `tx`, from the first run on.
    pub fn transact<T, E: From<Error>>(
        &self,
        body: impl FnMut(&mut Transaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.transact_with(TransactionOptions::default(), body)
    }

    /// [`Store::transact`] with options.
    ///
    /// # Errors
    /// As [`Store::transact`].
    pub fn transact_with<T, E: From<Error>>(
        &self,
        options: TransactionOptions,
        mut body: impl FnMut(&mut Transaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        Transaction::run(self, options, &mut body)
    }

    /// Commits several writes at once, without reading.
    ///
    /// # Errors
    /// Those of a commit: [`Reason::Full`], [`Reason::Unknown`], [`Reason::Poisoned`], [`Reason::MapDropped`],
    /// [`Reason::Busy`], and [`Reason::NotSynced`], after which the commit is there.
    pub fn write(&self, batch: Batch) -> Result<Commit> {
        batch.commit(self)
    }

    /// Commits several writes at once; they are visible at once, and the future resolves when they last as the batch
    /// asks for. Any executor will do.
    ///
    /// # Errors
    /// As [`Store::write`], but for what comes up while syncing: that is the future's.
    pub fn write_async(&self, batch: Batch) -> Result<CommitFuture> {
        batch.commit_async(self)
    }

    /// Makes everything committed so far survive power loss.
    ///
    /// # Errors
    /// [`Reason::Unknown`] when the sync failed; [`Reason::Busy`] when another process was stopped and keeps it from
    /// being known.
    pub fn sync(&self) -> Result<()> {
        self.core().sync()
    }

    /// The stream of commits: every commit from some moment on, in order, with what its keys held before and after.
    ///
    /// # Errors
    /// [`Reason::NotRetained`], [`Reason::InvalidArgument`] (no such commit yet), and those of [`Store::snapshot`].
    pub fn changes(&self, from: ChangesFrom) -> Result<Changes> {
        Changes::new(self.handle(), from)
    }

    /// Ends a snapshot that its owner forgot: its next call returns [`Reason::SnapshotEnded`]. What it holds is
    /// freed when its owner drops it, because values that were borrowed from it must stay. Ids are in
    /// [`crate::Statistics::snapshots`]. `false`: there is no such snapshot.
    ///
    /// # Errors
    /// [`Reason::Closed`].
    pub fn end_snapshot(&self, id: u64) -> Result<bool> {
        self.core().healthy()?;
        let slots = self.core().region.slots_in_use();
        let found = slots.into_iter().find(|(index, _, slot)| slot.id(*index) == id);
        if let Some((_, _, slot)) = found {
            slot.end(id);
            self.core().wake_streams();
            return Ok(true);
        }
        Ok(false)
    }

    /// Folds what is in the log, makes the result durable and frees what is no longer needed, now.
    ///
    /// # Errors
    /// [`Reason::Full`], [`Reason::Damaged`], [`Reason::Poisoned`], [`Reason::Io`]; [`Reason::Busy`] when another
    /// process was stopped while it did so.
    pub fn maintain(&self) -> Result<()> {
        self.core().maintain()
    }

    /// Makes everything that was committed survive power loss, and closes the store. Little is folded: most of a large
    /// log stays, with the memory that processes shared, and the next opening on this machine goes on with both. Call
    /// [`Store::maintain`] before for the smallest files. Later calls through any handle return [`Reason::Closed`], and
    /// others can open the store at once, unless a snapshot, transaction or stream is still open: snapshots stay valid,
    /// and all of them hold the store's lock until they are dropped. Dropping the last handle closes as well, but
    /// cannot report errors.
    ///
    /// # Errors
    /// As [`Store::maintain`] and [`Store::sync`]. The store is closed all the same, and nothing acknowledged is lost.
    pub fn close(self) -> Result<()> {
        self.handle().opened.close()
    }

    /// Closes the store on a thread of its own, as [`Store::close`] does, and resolves when it is closed. Closing goes
    /// on when the future is dropped. It needs no particular executor.
    ///
    /// ```
    /// async fn stop(store: duramen_engine::Store) -> duramen_engine::Result<()> {
    ///     store.close_async().await
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Store::close`].
    pub fn close_async(self) -> CloseFuture {
        CloseFuture::new(self)
    }
}

impl Opened {
    /// Starts a thread of the store, unless it runs; `runs` says so from then on. When there is none to be had, `runs`
    /// says that, and commits fold and sync for themselves.
    pub(crate) fn spawn(&self, name: &str, runs: &AtomicBool, body: fn(&Core)) {
        if runs.swap(true, Ordering::AcqRel) {
            return;
        }
        let core = self.core.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || body(&core));
        match thread {
            Ok(thread) => self.threads.lock().unwrap_or_else(|e| e.into_inner()).push(thread),
            Err(_) => runs.store(false, Ordering::Release),
        }
    }

    fn close(&self) -> Result<()> {
        self.core.own()?;
        // From here on other handles are refused. A thread that is committing now holds the lock.
        if self.core.closed.swap(true, Ordering::SeqCst) {
            return Err(Reason::Closed.into());
        }
        let begun = Begun::now();
        drop(self.core.hold_commits_soon());
        self.core.region.brakes().forget(self.core.region.me());
        self.core.wake_streams();
        if !self.core.settings.read_only {
            self.core.start_writing_log_back();
        }
        self.stop_threads();
        let settled = if self.core.settings.read_only {
            self.core.leave_as_reader();
            Ok(())
        } else {
            let settled = self.core.settle_or_leave();
            self.core.forget_history();
            settled
        };
        self.core.let_go();
        self.core.region.seat().open_gate();
        self.core.tell_closed(begun, settled.as_ref().err());
        settled
    }

    fn stop_threads(&self) {
        self.core.ask(|work| work.stop = true);
        self.core.ask_for_fold();
        self.core.region.bells().wake();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(|e| e.into_inner()));
        // A waker that the syncing thread calls may drop the last handle there.
        let is_other = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        for thread in threads.into_iter().filter(is_other) {
            // A panic of the thread has poisoned the store already.
            let _ = thread.join();
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.core.region.is_forked() {
            // The threads do not exist in this process, and must not even be detached.
            let threads = self.threads.get_mut().unwrap_or_else(|e| e.into_inner());
            std::mem::forget(std::mem::take(threads));
            std::mem::forget(self.temporary.take());
            return;
        }
        // No caller receives an error here; the log has everything.
        if !self.core.closed.load(Ordering::Acquire) {
            let _ = self.close();
        }
    }
}

impl Core {
    /// Gives back what is kept for streams that begin later: none does.
    fn forget_history(&self) {
        let history = self.take_history();
        history.into_iter().for_each(|(pin, ..)| self.region.unpin(&pin));
    }

    /// Closes a read-only store, which folds nothing. The last process leaves the shared memory as it is. The gate is
    /// as after [`Core::settle_or_leave`].
    fn leave_as_reader(&self) {
        let seat = self.region.seat();
        if seat.is_shared() && seat.close_gate() && !seat.is_anybody_else_alive() && !self.is_in_use() {
            // Those who wrote have made the log durable when they left; where one was killed the region is of no use.
            self.will_leave_warm();
        }
    }

    /// Leaves nothing that a power cut could take: little is folded; where it is more, or others go on with the store,
    /// the log is synced. From here on the gate is closed, if this is the last one, until it has left.
    fn settle_or_leave(&self) -> Result<()> {
        let seat = self.region.seat();
        let is_last = !seat.is_shared() || seat.close_gate() && !seat.is_anybody_else_alive();
        if is_last {
            self.bury_the_dead();
        } else {
            seat.open_gate();
        }
        if is_last && self.has_little_to_fold() {
            return self.settle();
        }
        self.unpoisoned()?;
        if is_last {
            self.undamaged()?;
            // A base that is published and not durable could be lost where the region is not: with a device that was
            // taken away, for example.
            let mut state = self.hold_maintenance()?;
            self.make_durable(&mut state)?;
            drop(state);
            // While the device writes the log.
            self.will_leave_warm();
        }
        self.wait_synced(self.control().visible.0.load(Ordering::Acquire))
    }

    /// Leaves nothing to replay, and no more files than needed.
    fn settle(&self) -> Result<()> {
        self.maintain_all()?;
        let mut state = self.hold_maintenance()?;
        self.reclaim(&mut state)?;
        self.give_space_back(&mut state, Slack::Least)?;
        drop(state);
        self.forget_history();
        if self.region.seat().is_shared() {
            if self.is_in_use() {
                // A process that opens the store while a snapshot is held here goes on with the region.
                return Ok(());
            }
            self.region.goes_with_this_process();
        }
        self.empty_log_files()
    }
}

thread_local! {
    static DRAFT: Cell<Option<Box<Draft>>> = const { Cell::new(None) };
}

/// Runs `use_draft` with an empty draft whose memory is reused from call to call.
pub(crate) fn with_draft<T>(use_draft: impl FnOnce(&mut Draft) -> T) -> T {
    let mut draft = take_draft();
    let done = use_draft(&mut draft);
    keep_draft(draft);
    done
}

/// An empty draft, in the memory that the thread keeps unless it is in use: a closure of the user that runs inside
/// an operation may begin another operation.
#[inline]
pub(crate) fn take_draft() -> Box<Draft> {
    // A thread that is ending keeps none.
    DRAFT.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

/// Gives a draft to the thread for the next commit, unless it has become large: a thread may live long, and never again
/// commit as much as it once did.
#[inline]
pub(crate) fn keep_draft(mut draft: Box<Draft>) {
    if !draft.is_large() {
        draft.clear();
        let _ = DRAFT.try_with(|kept| kept.set(Some(draft)));
    }
}
