//! Bugs that are planted on purpose, each at a place where it could happen by mistake, to see whether the
//! tests find it (`tests/suite/planted.rs`). They exist only with the cargo feature `planted-bugs`, which the engine's own
//! tests turn on; without it every question is answered by a constant, and nothing of this is in the program.
//!
//! A bug is planted for one thread, so that tests beside it are not disturbed: for stores with manual maintenance,
//! which do everything in the thread that calls.

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A synced commit returns before its sync.
    AcknowledgeBeforeSync,
    /// Pages of the durable base are freed before a newer base is durable.
    ReclaimIgnoresDurableBase,
    /// Pages are freed that open snapshots read.
    ReclaimIgnoresSnapshots,
    /// Names of log files are not made durable.
    DirectoryNotSynced,
    /// Replay takes any record with the next number: of an older epoch, of an earlier use of the file.
    ChainNotChecked,
    /// Replay takes records whose bodies are torn.
    BodiesNotChecked,
    /// The meta page is written before the pages that it refers to are durable.
    MetaBeforePages,
    /// Conflicts are looked for in keys, not in ranges.
    RangesNotChecked,
    /// A serializable transaction forgets what it read.
    ReadsNotChecked,
    /// The base is folded from commits that a power cut can take from the log.
    FoldAheadOfSync,
    /// A record that refers to a long value is synced before the value is.
    ValuesNotSynced,
    /// The saved bitmap says that all pages are free.
    BitmapNotSaved,
    /// Recovery relies on a base that may be in the kernel's memory only.
    FoundBaseNotSynced,
    /// A power cut can take an epoch back, which is then given out again.
    EpochNotSynced,
    /// A panic in the middle of a commit stops nothing.
    PanicPassedOver,
    /// The next holder of a dead process's commit lock leaves that commit half in the index.
    CommitNotFinished,
    /// The next holder of a dead process's allocator lock continues with its unfinished changes.
    AllocatorNotUndone,
    /// Pages stay taken for a tree that a dead process was writing.
    TreeNotGivenUp,
    /// What a dead process had published is not put in order.
    TreeNotPutInOrder,
    /// No process gives back what a dead process held.
    DeadNotBuried,
    /// An opening does not wait until it is decided whether the last commit of a dead process stands. It does not bury
    /// the dead either, as when another process is doing so.
    OpenedUndecided,
    /// A sync counts although another description may have been told of something that could not be written.
    SyncedInDoubt,
    /// A record shares a write unit with records that were synced before it.
    UnitShared,
    /// Records are stored to a mapping also beside records that were synced.
    StoredBesideSynced,
    /// The checksums of all stores begin alike, so that recovery believes what other stores wrote.
    StoresAlike,
    /// Opening takes the newest intact meta page, whatever became of the two pages of the other parity.
    OtherMetaPairNotLookedAt,
    /// A page counts as the right one although what refers to it names another checksum.
    ChildChecksumNotCompared,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug for what this thread does from now on, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}

/// Whether this bug is planted.
#[cfg(feature = "planted-bugs")]
#[inline]
pub(crate) fn is_planted(bug: PlantedBug) -> bool {
    // A store may be dropped while its thread ends.
    PLANTED.try_with(|planted| planted.get() == Some(bug)).unwrap_or(false)
}

/// The bug that is planted in this thread.
#[cfg(feature = "planted-bugs")]
pub fn planted() -> Option<PlantedBug> {
    PLANTED.get()
}

/// Points at which this process goes on before it kills itself; negative: it does not.
#[cfg(feature = "planted-bugs")]
static POINTS_LEFT: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(-1);

/// Lets this process kill itself at the `point`-th of the places that it comes to where it leaves something half done.
#[cfg(feature = "planted-bugs")]
pub fn kill_at(point: i64) {
    POINTS_LEFT.store(point, std::sync::atomic::Ordering::SeqCst);
}

/// Suspends the process at this kill point, until a test resumes it.
#[cfg(feature = "planted-bugs")]
pub fn stop_at(point: i64) {
    IS_STOPPED.store(true, std::sync::atomic::Ordering::SeqCst);
    kill_at(point);
}

/// Panics of the thread that comes to that place, instead. Only for tests in which no other thread comes to such
/// places.
#[cfg(feature = "planted-bugs")]
pub fn panic_at(point: i64) {
    PANIC_POINTS_LEFT.set(point);
}

/// How many such places the thread has left until it panics.
#[cfg(feature = "planted-bugs")]
pub fn panic_points_left() -> i64 {
    PANIC_POINTS_LEFT.get()
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    /// Points at which this thread goes on before it panics; not positive: it does not.
    static PANIC_POINTS_LEFT: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
}

/// Whether it is stopped where it would be killed.
#[cfg(feature = "planted-bugs")]
static IS_STOPPED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// How many such places are left, for who wants to know how many there are.
#[cfg(feature = "planted-bugs")]
pub fn kill_points_left() -> i64 {
    POINTS_LEFT.load(std::sync::atomic::Ordering::SeqCst)
}

/// A place where a process leaves something half done when it dies.
#[cfg(feature = "planted-bugs")]
#[inline]
pub(crate) fn kill_point() {
    use std::sync::atomic::Ordering::SeqCst;
    // A store may be dropped while its thread ends.
    let is_panic = PANIC_POINTS_LEFT.try_with(|left| {
        left.set(left.get() - 1);
        left.get() == 0
    });
    if is_panic == Ok(true) {
        panic!("a planted panic");
    }
    // Compared first: other threads are at such places too, and most programs have nothing planted.
    if POINTS_LEFT.load(SeqCst) > 0 && POINTS_LEFT.fetch_sub(1, SeqCst) == 1 {
        if IS_STOPPED.load(SeqCst) {
            duramen_io::stop_this_process();
        } else {
            duramen_io::kill_this_process();
        }
    }
}

/// A place where a process leaves something half done when it dies: nothing happens there.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn kill_point() {}

/// Whether this bug is planted: never.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn is_planted(_bug: PlantedBug) -> bool {
    false
}
