//! What a store is made of at the moment.

use std::sync::atomic::Ordering;
use std::time::Duration;

use duramen_io::Owner;

use crate::api::snapshot::Pinned;
use crate::api::store::Store;
use crate::core::Core;
use crate::core::catalog::map_id;
use crate::core::pins::Purpose;
use crate::core::watch::BackgroundError;
use crate::error::Result;
use crate::key::full_key::{CATALOG, FullRange};
use crate::limits::PAGE_BYTES;
use crate::map_name::is_reserved;
use crate::read::write_set::OwnWrites;
use crate::region::GenerationState;
use crate::region::processes::ProcessEntry;

/// Figures of an open store, taken without stopping anybody: they may be a few commits apart.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Newest visible commit.
    pub commit: u64,
    /// Newest commit that survives power loss.
    pub synced_commit: u64,
    /// Newest commit in the base; what is above it is in the log.
    pub base_commit: u64,
    /// The maps, by name, with their pairs.
    pub maps: Vec<MapStatistics>,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages of the data file.
    pub pages: u64,
    /// Pages that can be used at once.
    pub free_pages: u64,
    /// Pages that were replaced and wait for snapshots, or for the base to become durable.
    pub retired_pages: u64,
    /// Levels of the base tree; 0 when it is empty.
    pub depth: u32,
    /// Bytes of the data file.
    pub data_bytes: u64,
    /// Bytes of the log files, used and kept for use.
    pub log_bytes: u64,
    /// Fold debt: operations and bytes in the log that are not in the base.
    pub unfolded_operations: u64,
    /// See `unfolded_operations`.
    pub unfolded_bytes: u64,
    /// Log generations by state.
    pub generations: GenerationStatistics,
    /// Open snapshots, transactions and streams.
    pub snapshots: Vec<SnapshotStatistics>,
    /// The processes that have the store open. A dead process is listed until another process has given back what it
    /// held: for a tenth of a second or two, while any of them writes.
    pub processes: Vec<ProcessStatistics>,
    /// Memory by part, without the kernel's page cache.
    pub memory: MemoryStatistics,
    /// Counts since the store was opened.
    pub counts: Counts,
    /// The last error of work that this process did in the background.
    pub background_error: Option<BackgroundError>,
}

/// One map.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MapStatistics {
    /// Its name.
    pub name: String,
    /// Its pairs.
    pub pairs: u64,
}

/// Log generations by state.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct GenerationStatistics {
    /// Waiting to be folded, or being folded.
    pub frozen: u64,
    /// In the base, but still read by snapshots, or the base is not durable yet.
    pub folded: u64,
}

/// A snapshot, transaction or commit stream that is open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SnapshotStatistics {
    /// For [`Store::end_snapshot`].
    pub id: u64,
    /// What it is: "snapshot", "transaction" or "changes".
    pub purpose: &'static str,
    /// Process id of its owner.
    pub process: u32,
    /// How long it has been open.
    pub age: Duration,
    /// The commit it shows.
    pub commit: u64,
    /// Bytes of the data file that cannot be reused as long as it is open (others may hold some of them too).
    pub pinned_bytes: u64,
    /// Whether it was ended and waits to be dropped.
    pub ended: bool,
}

/// A process that has the store open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProcessStatistics {
    /// Its process id, as it sees it: in another container it has another one.
    pub process: u32,
    /// How long it has had the store open.
    pub age: Duration,
    /// Version of the library in it: the same in all that share a store.
    pub version: String,
    /// Snapshots, transactions and streams that it holds.
    pub snapshots: usize,
    /// Whether it is the calling process.
    pub is_this: bool,
}

/// Memory by part, in bytes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MemoryStatistics {
    /// Indexes of the log generations.
    pub index_bytes: u64,
    /// Log records that the indexes refer to (memory of the kernel's page cache).
    pub log_bytes: u64,
    /// What [`crate::Options::memory_bytes`] allows for both.
    pub budget_bytes: u64,
}

/// Counts since the store was opened.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Commits.
    pub commits: u64,
    /// Commits that were refused because of a conflict.
    pub conflicts: u64,
    /// Syncs of the log.
    pub syncs: u64,
    /// Folds.
    pub folds: u64,
}

impl Store {
    /// Figures of the store.
    ///
    /// # Errors
    /// [`crate::Reason::Closed`], [`crate::Reason::Poisoned`], [`crate::Reason::Damaged`].
    pub fn stat(&self) -> Result<Statistics> {
        let core = self.core();
        core.healthy()?;
        let version = core.region.version();
        let figures = core.space.figures()?;
        let (log_bytes, live_log_bytes, generations) = core.log_figures();
        Ok(Statistics {
            commit: core.control().visible.0.load(Ordering::Acquire),
            synced_commit: core.control().synced.0.load(Ordering::Acquire),
            base_commit: version.base_commit,
            // Before the pins of `maps` are taken: they are not the user's.
            snapshots: core.snapshot_figures()?,
            processes: core.process_figures(),
            maps: self.map_figures()?,
            page_bytes: PAGE_BYTES as u64,
            pages: figures.file_pages,
            free_pages: figures.free_pages,
            retired_pages: figures.retired_pages,
            depth: version.root.height as u32,
            data_bytes: figures.file_pages * PAGE_BYTES as u64,
            log_bytes,
            unfolded_operations: figures.pending_operations,
            unfolded_bytes: figures.pending_bytes,
            generations,
            memory: MemoryStatistics {
                index_bytes: core.region.index_bytes(),
                log_bytes: live_log_bytes,
                budget_bytes: core.settings.memory_bytes,
            },
            counts: Counts {
                commits: core.watch.commits.get(),
                conflicts: core.watch.conflicts.get(),
                syncs: core.watch.syncs.get(),
                folds: core.watch.folds.get(),
            },
            background_error: core.last_background_error(),
        })
    }

    fn map_figures(&self) -> Result<Vec<MapStatistics>> {
        let pinned = Pinned::new(self, &self.core().control().visible.0, Purpose::Snapshot)?;
        let mut scan = pinned.scan(OwnWrites::default(), FullRange::map(CATALOG));
        let mut maps = Vec::new();
        while let Some((key, id)) = scan.next_pair()? {
            let name = String::from_utf8_lossy(&key[4..]).into_owned();
            if is_reserved(&name) {
                continue;
            }
            maps.push(MapStatistics {
                name,
                pairs: pinned.count(&FullRange::map(map_id(&id)?))?,
            });
        }
        Ok(maps)
    }
}

impl Core {
    /// Bytes of all log files, bytes of the records in live generations, and the generations.
    fn log_figures(&self) -> (u64, u64, GenerationStatistics) {
        let (mut bytes, mut live) = (0, 0);
        let mut generations = GenerationStatistics::default();
        for (_, entry) in self.region.generations() {
            bytes += entry.filled.load(Ordering::Relaxed);
            match entry.state() {
                GenerationState::Unused | GenerationState::Preparing | GenerationState::Standby => continue,
                GenerationState::Active => {}
                GenerationState::Frozen => generations.frozen += 1,
                GenerationState::Folded => generations.folded += 1,
            }
            live += entry.tail.load(Ordering::Relaxed);
        }
        (bytes, live, generations)
    }

    fn process_figures(&self) -> Vec<ProcessStatistics> {
        let (now, me) = (self.platform.clock.wall(), self.region.me());
        let slots = self.region.slots_in_use();
        let held_by = |owner| slots.iter().filter(|(_, _, slot)| slot.is_of(owner)).count();
        let figures = |(owner, entry): (Owner, &ProcessEntry)| ProcessStatistics {
            process: entry.process.load(Ordering::Relaxed),
            age: now.saturating_sub(Duration::from_millis(entry.since.load(Ordering::Relaxed))),
            version: self.region.library(),
            snapshots: held_by(owner),
            is_this: owner == me,
        };
        self.region.processes().map(figures).collect()
    }

    fn snapshot_figures(&self) -> Result<Vec<SnapshotStatistics>> {
        let (_, _, retired) = self.space.contents()?;
        let now = self.platform.clock.wall();
        let figures = |(index, version, slot): (u32, u64, &crate::region::Slot)| {
            let pinned = retired
                .iter()
                .filter(|item| item.birth <= version && version < item.death);
            SnapshotStatistics {
                id: slot.id(index),
                purpose: slot.purpose_name(),
                process: slot.process.load(Ordering::Relaxed),
                age: now.saturating_sub(Duration::from_millis(slot.since.load(Ordering::Relaxed))),
                commit: slot.commit.load(Ordering::Relaxed),
                pinned_bytes: pinned.map(|item| item.pages as u64 * PAGE_BYTES as u64).sum(),
                ended: slot.is_ended(),
            }
        };
        Ok(self.region.slots_in_use().into_iter().map(figures).collect())
    }
}
