//! Bugs that are planted on purpose, each at the place where somebody could make it by mistake, to see whether the
//! tests find it (`tests/planted.rs`). They exist only with the cargo feature `planted-bugs`, which the engine's own
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

/// Whether this bug is planted: never.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn is_planted(_bug: PlantedBug) -> bool {
    false
}
