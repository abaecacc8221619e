//! The stream of pairs that differ between two checkpoints.

use duramen_proto::v1::{CheckpointDifference, DiffCheckpointsResponse};
use tonic::Streaming;

use crate::error::{Failure, Result};

/// The pairs that differ between two checkpoints. They end with an error when the connection breaks.
#[derive(Debug)]
pub struct Differences {
    /// `None` after the end or an error.
    responses: Option<Streaming<DiffCheckpointsResponse>>,
    ready: std::vec::IntoIter<CheckpointDifference>,
}

impl Differences {
    pub(crate) fn new(responses: Streaming<DiffCheckpointsResponse>) -> Differences {
        Differences {
            responses: Some(responses),
            ready: Vec::new().into_iter(),
        }
    }

    /// The next pair. `None`: there are no more.
    pub async fn next(&mut self) -> Option<Result<CheckpointDifference>> {
        loop {
            if let Some(difference) = self.ready.next() {
                return Some(Ok(difference));
            }
            match self.responses.as_mut()?.message().await {
                Ok(Some(response)) => self.ready = response.differences.into_iter(),
                Ok(None) => self.responses = None,
                Err(status) => {
                    self.responses = None;
                    return Some(Err(Failure::of(&status).error));
                }
            }
        }
    }
}
