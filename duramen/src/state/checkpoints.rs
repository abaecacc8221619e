//! Checkpoints of a job: checkpoints of the store whose names are `JOB/ID`, the id in 20 digits.

use std::time::SystemTime;

use duramen_engine::{Checkpoint, Error, Reason, Result};

use super::error::StateError;
use super::keyed_state::KeyedState;
use super::view::StateView;

/// Digits of an id in a name: so many has the greatest one, and names sort as ids do.
const DIGITS: usize = 20;

/// A checkpoint of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateCheckpoint {
    /// The id that the job gave it.
    pub id: u64,
    /// What the job stored with it.
    pub metadata: Vec<u8>,
    /// The newest commit that it shows.
    pub commit: u64,
    /// When it was made.
    pub created: SystemTime,
}

/// The name of a job's checkpoint in the store.
pub(super) fn checkpoint_name(job: &str, id: u64) -> String {
    format!("{job}/{id:0DIGITS$}")
}

/// The id in the name of a checkpoint, if it is of the job.
fn id_in(job: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(job)?.strip_prefix('/')?;
    let is_id = digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_id.then(|| digits.parse().ok())?
}

impl KeyedState {
    /// Makes a checkpoint with an id of the job, greater than all ids that are kept. It is a checkpoint of the whole store, named
    /// `JOB/ID` with the id in 20 digits. It shows whole commits, so the states, positions and messages in it belong together.
    ///
    /// One process of the job makes the checkpoints, as Flink's coordinator does. `metadata` is 4 KiB at most.
    ///
    /// # Errors
    /// [`StateError::CheckpointNotNewer`]; those of [`crate::Checkpoints::create`].
    pub fn checkpoint(&self, id: u64, metadata: impl AsRef<[u8]>) -> Result<StateCheckpoint> {
        match self.latest()? {
            Some(newest) if newest.id >= id => return Err(self.not_newer(id, newest.id)),
            _ => {}
        }
        let name = checkpoint_name(self.job(), id);
        match self.store.checkpoints().create(&name, metadata) {
            Ok(made) => Ok(state_checkpoint(id, made)),
            // Another process was faster.
            Err(error) if matches!(error.reason(), Reason::CheckpointExists { .. }) => Err(self.not_newer(id, id)),
            Err(error) => Err(error),
        }
    }

    fn not_newer(&self, asked: u64, newest: u64) -> Error {
        let job = self.job().to_string();
        StateError::CheckpointNotNewer { job, asked, newest }.into()
    }

    /// The checkpoints of the job, in the order of their ids.
    ///
    /// # Errors
    /// Those of [`crate::Checkpoints::list`].
    pub fn checkpoints(&self) -> Result<Vec<StateCheckpoint>> {
        let all = self.store.checkpoints().list()?.into_iter();
        let of_job = all.filter_map(|checkpoint| {
            let id = id_in(self.job(), &checkpoint.name)?;
            Some(state_checkpoint(id, checkpoint))
        });
        let mut checkpoints: Vec<StateCheckpoint> = of_job.collect();
        checkpoints.sort_by_key(|checkpoint| checkpoint.id);
        Ok(checkpoints)
    }

    /// The checkpoint of the job with the greatest id.
    ///
    /// # Errors
    /// As [`KeyedState::checkpoints`].
    pub fn latest(&self) -> Result<Option<StateCheckpoint>> {
        Ok(self.checkpoints()?.pop())
    }

    /// Drops all checkpoints of the job but the newest ones, the oldest first, and returns how many it dropped. Other checkpoints of
    /// the store stay. After a crash some may be left; the next call drops them.
    ///
    /// # Errors
    /// Those of [`crate::Checkpoints::drop`].
    pub fn retain(&self, newest: usize) -> Result<u64> {
        let checkpoints = self.checkpoints()?;
        let surplus = checkpoints.len().saturating_sub(newest);
        let mut dropped = 0;
        for checkpoint in &checkpoints[..surplus] {
            let name = checkpoint_name(self.job(), checkpoint.id);
            dropped += u64::from(self.store.checkpoints().drop(&name)?);
        }
        Ok(dropped)
    }

    /// The states as they were at a checkpoint, for reading only. The job goes on meanwhile.
    ///
    /// # Errors
    /// [`StateError::UnknownCheckpoint`]; those of [`crate::Checkpoints::open`].
    pub fn at(&self, id: u64) -> Result<StateView> {
        let name = checkpoint_name(self.job(), id);
        let snapshot = self.store.checkpoints().open(&name);
        let snapshot = snapshot.map_err(|error| self.known(id, error))?;
        StateView::new(self, snapshot)?.ok_or_else(|| self.no_checkpoint(id))
    }

    /// Puts the whole store back to a checkpoint with [`crate::restore`], and returns the number of the commit: all maps, topics
    /// and trees, of other jobs too. All handles that were opened before are refused then, this one as well. Close them, and open
    /// the store again.
    ///
    /// Newer checkpoints stay. The next one needs an id greater than theirs; [`KeyedState::latest`] has the greatest.
    ///
    /// # Errors
    /// [`StateError::UnknownCheckpoint`]; those of [`crate::restore`].
    pub fn restore(&self, id: u64) -> Result<u64> {
        let name = checkpoint_name(self.job(), id);
        crate::restore(&self.store, &name).map_err(|error| self.known(id, error))
    }

    /// The error of a checkpoint in the words of the job.
    fn known(&self, id: u64, error: Error) -> Error {
        match error.reason() {
            Reason::UnknownCheckpoint { .. } => self.no_checkpoint(id),
            _ => error,
        }
    }

    fn no_checkpoint(&self, id: u64) -> Error {
        let job = self.job().to_string();
        StateError::UnknownCheckpoint { job, id }.into()
    }
}

fn state_checkpoint(id: u64, checkpoint: Checkpoint) -> StateCheckpoint {
    StateCheckpoint {
        id,
        metadata: checkpoint.metadata,
        commit: checkpoint.commit,
        created: checkpoint.created,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_from_names_of_the_job_only() {
        assert_eq!(checkpoint_name("job", 42), "job/00000000000000000042");
        for id in [0, 42, u64::MAX] {
            assert_eq!(id_in("job", &checkpoint_name("job", id)), Some(id));
        }
        let others = [
            "job",
            "job/",
            "job/42",
            "jobs/00000000000000000042",
            "job/0000000000000000004x",
            "job/+0000000000000000042",
            "job/99999999999999999999",
            "my job/00000000000000000042",
        ];
        for other in others {
            assert_eq!(id_in("job", other), None, "{other}");
        }
    }
}
