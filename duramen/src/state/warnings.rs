//! Warnings: figures of a job that are above limits, with the cause and the cure.

use std::fmt;
use std::time::Duration;

use super::statistics::JobStatistics;

/// Limits above which [`JobStatistics::warnings`] warns. Limits that are `None` are not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateLimits {
    /// Bytes of a state. Default: `None`.
    pub bytes: Option<u64>,
    /// Bytes by which a state grows after a checkpoint. Default: `None`.
    pub growth_bytes: Option<u64>,
    /// Checkpoints that the job keeps. Default: 10.
    pub checkpoints: Option<usize>,
    /// Bytes that one checkpoint holds alone. Default: `None`.
    pub checkpoint_bytes: Option<u64>,
    /// Age of the oldest reader. Default: 10 minutes.
    pub reader_age: Option<Duration>,
}

impl Default for StateLimits {
    fn default() -> Self {
        StateLimits::new()
    }
}

impl StateLimits {
    /// The defaults.
    pub fn new() -> StateLimits {
        StateLimits {
            bytes: None,
            growth_bytes: None,
            checkpoints: Some(10),
            checkpoint_bytes: None,
            reader_age: Some(Duration::from_secs(600)),
        }
    }

    /// Sets the limit for the bytes of a state.
    pub fn bytes(mut self, bytes: u64) -> StateLimits {
        self.bytes = Some(bytes);
        self
    }

    /// Sets the limit for the bytes by which a state grows after a checkpoint.
    pub fn growth_bytes(mut self, bytes: u64) -> StateLimits {
        self.growth_bytes = Some(bytes);
        self
    }

    /// Sets the limit for the checkpoints that the job keeps.
    pub fn checkpoints(mut self, count: usize) -> StateLimits {
        self.checkpoints = Some(count);
        self
    }

    /// Sets the limit for the bytes that one checkpoint holds alone.
    pub fn checkpoint_bytes(mut self, bytes: u64) -> StateLimits {
        self.checkpoint_bytes = Some(bytes);
        self
    }

    /// Sets the limit for the age of the oldest reader.
    pub fn reader_age(mut self, age: Duration) -> StateLimits {
        self.reader_age = Some(age);
        self
    }
}

/// A figure above its limit. Its text names the cause and the cure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateWarning {
    /// A state is large.
    Large {
        /// The state.
        state: String,
        /// Its bytes.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A state grew much since the newest checkpoint.
    Grows {
        /// The state.
        state: String,
        /// Bytes since the checkpoint.
        bytes: u64,
        /// The limit.
        limit: u64,
        /// The checkpoint.
        since: u64,
    },
    /// The job keeps many checkpoints.
    ManyCheckpoints {
        /// The job.
        job: String,
        /// Checkpoints that it keeps.
        kept: usize,
        /// The limit.
        limit: usize,
        /// The oldest of them.
        oldest: u64,
    },
    /// A checkpoint holds much space that neither the present nor another checkpoint needs.
    LargeCheckpoint {
        /// The checkpoint.
        id: u64,
        /// Bytes that it holds alone.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A reader has been open for long.
    OldReader {
        /// What it is: "snapshot", "transaction" or "changes".
        purpose: &'static str,
        /// PID of its process.
        process: u32,
        /// Its number, for [`crate::Store::end_snapshot`].
        id: u64,
        /// How long it has been open.
        age: Duration,
        /// The limit.
        limit: Duration,
        /// Bytes that it keeps from being reused.
        pinned_bytes: u64,
    },
}

impl fmt::Display for StateWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateWarning::Large { state, bytes, limit } => write!(
                f,
                "state {state:?} has {bytes} bytes, more than {limit}; delete keys that are done, or give the job more space"
            ),
            StateWarning::Grows {
                state,
                bytes,
                limit,
                since,
            } => write!(
                f,
                "state {state:?} has grown by {bytes} bytes since checkpoint {since}, more than {limit}; make checkpoints more \
                 often, or look for keys that are never deleted"
            ),
            StateWarning::ManyCheckpoints {
                job,
                kept,
                limit,
                oldest,
            } => write!(
                f,
                "job {job:?} keeps {kept} checkpoints since checkpoint {oldest}, more than {limit}; call `KeyedState::retain` after \
                 each checkpoint"
            ),
            StateWarning::LargeCheckpoint { id, bytes, limit } => write!(
                f,
                "checkpoint {id} alone holds {bytes} bytes, more than {limit}; retain fewer checkpoints, or make them more often"
            ),
            StateWarning::OldReader {
                purpose,
                process,
                id,
                age,
                limit,
                pinned_bytes,
            } => write!(
                f,
                "process {process} has had a reader ({purpose} {id}) open for {} s, more than {} s, which keeps {pinned_bytes} bytes \
                 from being reused; close it there, or end it with `Store::end_snapshot`",
                age.as_secs(),
                limit.as_secs()
            ),
        }
    }
}

/// The figure, if it is above the limit, and the limit.
fn above<T: PartialOrd + Copy>(figure: T, limit: Option<T>) -> Option<(T, T)> {
    limit.filter(|limit| figure > *limit).map(|limit| (figure, limit))
}

impl JobStatistics {
    /// The figures that are above limits.
    pub fn warnings(&self, limits: &StateLimits) -> Vec<StateWarning> {
        let mut warnings = Vec::new();
        for state in &self.states {
            let name = || state.name.clone();
            if let Some((bytes, limit)) = above(state.bytes, limits.bytes) {
                let state = name();
                warnings.push(StateWarning::Large { state, bytes, limit });
            }
            let grown = state.bytes_grown.and_then(|bytes| u64::try_from(bytes).ok());
            if let (Some(since), Some(grown)) = (self.grown_since, grown)
                && let Some((bytes, limit)) = above(grown, limits.growth_bytes)
            {
                warnings.push(StateWarning::Grows {
                    state: name(),
                    bytes,
                    limit,
                    since,
                });
            }
        }
        if let (Some(oldest), Some((kept, limit))) = (
            self.checkpoints.first(),
            above(self.checkpoints.len(), limits.checkpoints),
        ) {
            warnings.push(StateWarning::ManyCheckpoints {
                job: self.job.clone(),
                kept,
                limit,
                oldest: oldest.id,
            });
        }
        for checkpoint in &self.checkpoints {
            if let Some((bytes, limit)) = above(checkpoint.bytes_alone, limits.checkpoint_bytes) {
                let id = checkpoint.id;
                warnings.push(StateWarning::LargeCheckpoint { id, bytes, limit });
            }
        }
        if let Some(reader) = self.oldest_reader
            && let Some((age, limit)) = above(reader.age, limits.reader_age)
        {
            warnings.push(StateWarning::OldReader {
                purpose: reader.purpose,
                process: reader.process,
                id: reader.id,
                age,
                limit,
                pinned_bytes: reader.pinned_bytes,
            });
        }
        warnings
    }
}
