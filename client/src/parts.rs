//! Long values, in parts.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use duramen_proto::v1::{GetStreamResponse, PutStreamRequest, PutStreamStart};
use futures_core::Stream;
use prost::bytes::Bytes;
use tonic::Streaming;

use crate::error::{Error, Failure, Result};

/// Bytes of a part that the client sends.
const PART_BYTES: usize = 256 << 10;

/// The parts of a value; see [`crate::Map::get_stream`].
pub struct Parts {
    /// `None` after the end or an error.
    responses: Option<Streaming<GetStreamResponse>>,
    first: Option<Bytes>,
    length: u64,
    received: u64,
}

impl Parts {
    /// `None`: the map does not have the key.
    pub(crate) async fn of(mut responses: Streaming<GetStreamResponse>) -> Result<Option<Parts>> {
        let first = responses.message().await.map_err(|status| Failure::of(&status).error)?;
        let Some(first) = first else { return Ok(None) };
        Ok(Some(Parts {
            responses: Some(responses),
            length: first.length.ok_or_else(Error::bad_response)?,
            first: Some(first.part),
            received: 0,
        }))
    }

    /// Length of the value in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The next part. `None`: the value is complete, or an error came before.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    fn end(&mut self, error: Error) -> Poll<Option<Result<Bytes>>> {
        self.responses = None;
        Poll::Ready(Some(Err(error)))
    }
}

impl Stream for Parts {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if let Some(first) = self.first.take() {
            self.received = first.len() as u64;
            return Poll::Ready(Some(Ok(first)));
        }
        let Some(responses) = &mut self.responses else {
            return Poll::Ready(None);
        };
        match Pin::new(responses).poll_next(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(response))) => {
                self.received += response.part.len() as u64;
                Poll::Ready(Some(Ok(response.part)))
            }
            Poll::Ready(Some(Err(status))) => self.end(Failure::of(&status).error),
            Poll::Ready(None) if self.received < self.length => self.end(Error::connection_lost(
                "the value ended before all of it had arrived; read it again",
            )),
            Poll::Ready(None) => {
                self.responses = None;
                Poll::Ready(None)
            }
        }
    }
}

/// The requests that store a value.
pub(crate) struct Requests {
    start: Option<PutStreamStart>,
    value: Bytes,
}

impl Requests {
    pub(crate) fn new(start: PutStreamStart, value: Bytes) -> Requests {
        Requests {
            start: Some(start),
            value,
        }
    }
}

impl Stream for Requests {
    type Item = PutStreamRequest;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<PutStreamRequest>> {
        let start = self.start.take();
        if start.is_none() && self.value.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.value.len().min(PART_BYTES);
        let part = self.value.split_to(length);
        Poll::Ready(Some(PutStreamRequest { start, part }))
    }
}
