//! Figures of a job: its states, their growth, what its checkpoints hold, and the oldest reader of the store.

use std::ops::{Bound, Range};
use std::time::Duration;

use duramen_engine::{Result, Snapshot};

use super::checkpoints::{StateCheckpoint, checkpoint_name};
use super::definition::state_map;
use super::error::StateError;
use super::keyed_state::KeyedState;
use super::kind::StateKind;
use super::rows::{Rows, bounds};
use super::view::StateView;

/// States of at most so many rows are measured exactly.
const EXACT_ROWS_MAX: u64 = 10_000;
/// Key groups of larger states whose rows are measured, evenly spaced.
const SAMPLED_GROUPS: u16 = 32;
/// Rows that are measured in each of them.
const SAMPLED_ROWS: usize = 256;

/// Figures of a job; see [`KeyedState::statistics`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobStatistics {
    /// The job.
    pub job: String,
    /// The checkpoint from which growth is counted: the newest one.
    pub grown_since: Option<u64>,
    /// Its states, by name.
    pub states: Vec<StateStatistics>,
    /// Its checkpoints, by id.
    pub checkpoints: Vec<CheckpointSpace>,
    /// The snapshot, transaction or stream of the store that has been open for longest, of any process and any job.
    pub oldest_reader: Option<StateReader>,
}

/// Figures of a state, in the key groups of the handle.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StateStatistics {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: StateKind,
    /// Its rows: keys with a value, elements of lists, or entries of maps. Exact.
    pub rows: u64,
    /// Bytes of the keys and values of its rows. Exact for up to 10,000 rows; for more, an estimate from some rows of 32 key groups.
    /// The space in the file is larger, because pages are not full.
    pub bytes: u64,
    /// Rows since the newest checkpoint, less those that were deleted. `None`: the job has no checkpoint.
    pub rows_grown: Option<i64>,
    /// Bytes since the newest checkpoint, as exact as `bytes`.
    pub bytes_grown: Option<i64>,
}

/// What a checkpoint holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointSpace {
    /// The checkpoint.
    pub id: u64,
    /// Bytes that dropping this one checkpoint sets free.
    pub bytes_alone: u64,
}

/// An open snapshot, transaction or stream of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateReader {
    /// For [`crate::Store::end_snapshot`].
    pub id: u64,
    /// What it is: "snapshot", "transaction" or "changes".
    pub purpose: &'static str,
    /// PID of its process, as that process sees it.
    pub process: u32,
    /// How long it has been open.
    pub age: Duration,
    /// Bytes of the data file that cannot be reused as long as it is open.
    pub pinned_bytes: u64,
}

impl KeyedState {
    /// Figures of the states in the key groups of this handle, of the checkpoints of the job, and of the oldest reader.
    ///
    /// The call reads up to 10,000 rows of each state twice, and what its checkpoints do not share. [`JobStatistics::warnings`]
    /// compares the figures with limits.
    ///
    /// # Errors
    /// Those of reading, and of [`crate::Checkpoints::bytes_alone`].
    pub fn statistics(&self) -> Result<JobStatistics> {
        // First, so that the snapshots below are not among the readers.
        let oldest_reader = self.oldest_reader()?;
        let checkpoints = self.checkpoints()?;
        let before = self.newest_view(&checkpoints)?;
        let snapshot = self.store.snapshot()?;
        let mut states = Vec::new();
        for (name, kind) in self.states()? {
            let Some(map) = snapshot.map(&state_map(self.job(), &name))? else {
                continue;
            };
            let now = measure(&snapshot, &self.rows(map, &name))?;
            let then = match &before {
                None => None,
                Some((_, view)) => match view.rows(&name)? {
                    Some(rows) => Some(measure(view.snapshot(), &rows)?),
                    None => Some(Size::default()),
                },
            };
            states.push(StateStatistics {
                name,
                kind,
                rows: now.rows,
                bytes: now.bytes,
                rows_grown: then.map(|then| now.rows.wrapping_sub(then.rows) as i64),
                bytes_grown: then.map(|then| now.bytes.wrapping_sub(then.bytes) as i64),
            });
        }
        let mut spaces = Vec::new();
        for checkpoint in checkpoints {
            let name = checkpoint_name(self.job(), checkpoint.id);
            if let Some(bytes_alone) = self.store.checkpoints().bytes_alone(&name)? {
                let id = checkpoint.id;
                spaces.push(CheckpointSpace { id, bytes_alone });
            }
        }
        Ok(JobStatistics {
            job: self.job().to_string(),
            grown_since: before.map(|(id, _)| id),
            states,
            checkpoints: spaces,
            oldest_reader,
        })
    }

    /// The newest of these checkpoints, unless another process has dropped it meanwhile.
    fn newest_view(&self, checkpoints: &[StateCheckpoint]) -> Result<Option<(u64, StateView)>> {
        let Some(newest) = checkpoints.last() else {
            return Ok(None);
        };
        match self.at(newest.id) {
            Ok(view) => Ok(Some((newest.id, view))),
            Err(error) if matches!(StateError::of(&error), Some(StateError::UnknownCheckpoint { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn oldest_reader(&self) -> Result<Option<StateReader>> {
        let readers = self.store.stat()?.snapshots.into_iter();
        let oldest = readers.filter(|reader| !reader.ended).max_by_key(|reader| reader.age);
        Ok(oldest.map(|reader| StateReader {
            id: reader.id,
            purpose: reader.purpose,
            process: reader.process,
            age: reader.age,
            pinned_bytes: reader.pinned_bytes,
        }))
    }
}

/// Rows and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    rows: u64,
    bytes: u64,
}

fn measure(snapshot: &Snapshot, rows: &Rows) -> Result<Size> {
    let (low, high) = bounds(&rows.own);
    let count = snapshot.count(&rows.map, low..high)?;
    if count <= EXACT_ROWS_MAX {
        let bytes = add_up(snapshot, rows, &rows.own, usize::MAX)?.bytes;
        return Ok(Size { rows: count, bytes });
    }
    // The hash spreads keys, so any groups will do. The front of the range is there in case that few keys have all rows.
    let mut sample = add_up(snapshot, rows, &rows.own, SAMPLED_ROWS)?;
    let groups = rows.own.end - rows.own.start;
    for group in rows.own.clone().step_by(usize::from(groups.div_ceil(SAMPLED_GROUPS))) {
        let part = add_up(snapshot, rows, &(group..group + 1), SAMPLED_ROWS)?;
        sample.rows += part.rows;
        sample.bytes += part.bytes;
    }
    let bytes = u128::from(sample.bytes) * u128::from(count) / u128::from(sample.rows.max(1));
    Ok(Size {
        rows: count,
        bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
    })
}

/// The first rows of some key groups.
fn add_up(snapshot: &Snapshot, rows: &Rows, groups: &Range<u16>, most: usize) -> Result<Size> {
    let (low, high) = bounds(groups);
    let mut cursor = snapshot.range(&rows.map, (Bound::Included(low), Bound::Excluded(high)))?;
    let mut size = Size::default();
    while size.rows < most as u64 {
        let Some((key, value)) = cursor.next()? else { break };
        size.rows += 1;
        size.bytes += (key.len() + value.len()) as u64;
    }
    Ok(size)
}
