//! The errors of keyed state. All errors are the store's [`Error`]; the facts are in a [`StateError`] inside.

use duramen_engine::{Error, Kind, Reason};

use super::kind::StateKind;

/// The facts of an error of keyed state; see [`StateError::of`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A name that no job or state can have.
    #[error("{name:?} cannot be the name of a {of}: {cause}; take 1 to 100 bytes without `/` and control characters")]
    InvalidName {
        /// The name.
        name: String,
        /// What it was to name: "job" or "state".
        of: &'static str,
        /// Description of the mistake.
        cause: &'static str,
    },
    /// A number of key groups that no job can have.
    #[error("a job cannot have {asked} key groups; take 1 to {max}")]
    InvalidKeyGroups {
        /// The requested number.
        asked: u16,
        /// The maximum.
        max: u16,
    },
    /// The job was made with another number of key groups.
    #[error(
        "job {job:?} has {found} key groups, not {asked}; the number is fixed when the job is made, so open it with {found}"
    )]
    OtherKeyGroups {
        /// The job.
        job: String,
        /// The number that it was made with.
        found: u16,
        /// The requested number.
        asked: u16,
    },
    /// A worker that a job cannot have.
    #[error(
        "there is no worker {index} of {workers} in a job with {key_groups} key groups; workers count from 0, and each needs a key group"
    )]
    InvalidWorker {
        /// The requested worker.
        index: u16,
        /// The requested number of workers.
        workers: u16,
        /// Key groups of the job.
        key_groups: u16,
    },
    /// The key belongs to another worker.
    #[error(
        "the key has key group {key_group}, and this worker of job {job:?} owns {first} to {last} in state {state:?}; send the key to its worker, which `KeyGroups::worker_of` computes"
    )]
    OtherWorker {
        /// The job.
        job: String,
        /// The state.
        state: String,
        /// Key group of the key.
        key_group: u16,
        /// First key group of the worker.
        first: u16,
        /// Last key group of the worker.
        last: u16,
    },
    /// The job has no state of this name.
    #[error("job {job:?} has no state named {name:?}; declare it, or look at `KeyedState::states`")]
    UnknownState {
        /// The job.
        job: String,
        /// The requested name.
        name: String,
    },
    /// The state is of another kind.
    #[error(
        "state {name:?} of job {job:?} is a {found}, not a {asked}; open it as it was declared, or take another name"
    )]
    OtherKind {
        /// The job.
        job: String,
        /// The state.
        name: String,
        /// The kind that it was declared with.
        found: StateKind,
        /// The requested kind.
        asked: StateKind,
    },
    /// The state was declared with other types.
    #[error(
        "state {name:?} of job {job:?} was declared with the types {found}, not {asked}; open it with these, or call `KeyedState::retype` when only the names of types changed"
    )]
    OtherTypes {
        /// The job.
        job: String,
        /// The state.
        name: String,
        /// The types that it was declared with.
        found: String,
        /// The requested types.
        asked: String,
    },
    /// A map of the store has the name that the job needs, and it holds pairs of the program.
    #[error(
        "the map {map:?} holds pairs that are not of the job; rename the map, or take another name for the job or state"
    )]
    MapInUse {
        /// The map.
        map: String,
    },
    /// A definition row that this version cannot read.
    #[error(
        "the definition {key:?} in map {map:?} is not of a form that this version knows; open the job with the version that wrote it"
    )]
    InvalidDefinition {
        /// The map with the definitions.
        map: String,
        /// Key of the row.
        key: String,
    },
    /// The job has no checkpoint with this id.
    #[error("job {job:?} has no checkpoint {id}; `KeyedState::checkpoints` has the ids that are kept")]
    UnknownCheckpoint {
        /// The job.
        job: String,
        /// The requested id.
        id: u64,
    },
    /// An id that is not greater than that of the newest checkpoint.
    #[error("job {job:?} cannot make checkpoint {asked} after checkpoint {newest}; ids grow, so take a greater one")]
    CheckpointNotNewer {
        /// The job.
        job: String,
        /// The requested id.
        asked: u64,
        /// The id of the newest checkpoint.
        newest: u64,
    },
}

impl StateError {
    /// The facts of an error, if it is an error of keyed state.
    pub fn of(error: &Error) -> Option<&StateError> {
        match error.reason() {
            Reason::Above { cause, .. } => cause.downcast_ref(),
            _ => None,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            StateError::InvalidDefinition { .. } => Kind::Damaged,
            _ => Kind::FixTheCall,
        }
    }
}

impl From<StateError> for Error {
    fn from(error: StateError) -> Error {
        Reason::Above {
            kind: error.kind(),
            cause: Box::new(error),
        }
        .into()
    }
}
