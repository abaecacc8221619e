//! How the commands of an entry end.

use duramen::Error;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{Outcome, Refusal};

use crate::refusal::refusal_of;

/// Why a command changed nothing: it was refused, or the store failed.
pub(super) enum Stopped {
    Refused(Refusal),
    /// It was refused, and may have written something before.
    RefusedLate(Refusal, Error),
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        match refusal_of(&error) {
            Some(refusal) => Stopped::Refused(refusal),
            None => Stopped::Failed(error),
        }
    }
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Stopped {
        Stopped::Refused(refusal)
    }
}

pub(super) type Ran = std::result::Result<Outcome, Stopped>;

pub(super) fn outcome(led: Led) -> Outcome {
    Outcome { outcome: Some(led) }
}
