//! The stream that tells how far an export is.

use duramen_proto::v1::ExportResponse;
use tonic::Streaming;

use crate::error::{Failure, Result};

/// An export under way. It goes on in the server when this is dropped.
#[derive(Debug)]
pub struct Exporting {
    /// `None` after the end or an error.
    responses: Option<Streaming<ExportResponse>>,
}

impl Exporting {
    pub(crate) fn new(responses: Streaming<ExportResponse>) -> Exporting {
        Exporting {
            responses: Some(responses),
        }
    }

    /// How far it is; the last response has the export. `None`: that was the last one.
    pub async fn next(&mut self) -> Option<Result<ExportResponse>> {
        match self.responses.as_mut()?.message().await {
            Ok(Some(response)) => Some(Ok(response)),
            Ok(None) => {
                self.responses = None;
                None
            }
            Err(status) => {
                self.responses = None;
                Some(Err(Failure::of(&status).error))
            }
        }
    }
}
