//! The stream of messages from one topic. After a break it goes on with the offset after the last message.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duramen_proto::v1::subscribe_request::Start as Place;
use duramen_proto::v1::{ReceivedMessage, SubscribeRequest, SubscribeResponse};
use futures_core::Stream;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::client::{Client, send};
use crate::error::Result;
use crate::following::{self, Follow};
use crate::options::{Start, millis_since_1970};

/// A message of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Its place in the topic, counting from 0.
    pub offset: u64,
    /// Time of publication.
    pub time: SystemTime,
    /// The payload.
    pub payload: Bytes,
    /// The key.
    pub key: Option<Bytes>,
    /// The headers.
    pub headers: Vec<(String, Bytes)>,
}

impl From<ReceivedMessage> for Received {
    fn from(message: ReceivedMessage) -> Received {
        let headers = message.headers.into_iter().map(|header| (header.name, header.value));
        Received {
            offset: message.offset,
            time: UNIX_EPOCH + Duration::from_millis(message.time_ms),
            payload: message.payload,
            key: (!message.key.is_empty()).then_some(message.key),
            headers: headers.collect(),
        }
    }
}

/// A stream of messages; see [`crate::Topic::subscribe`]. It ends with an error that a retry cannot cure, such as
/// `NotFound` when the topic is deleted.
pub struct Subscription {
    batches: mpsc::Receiver<Result<SubscribeResponse>>,
    ready: VecDeque<ReceivedMessage>,
    skipped: u64,
}

impl Subscription {
    pub(crate) async fn open(client: Client, topic: String, start: Start) -> Result<Subscription> {
        let place = match start {
            Start::Offset(offset) => Some(Place::Offset(offset)),
            Start::Time(time) => Some(Place::TimeMs(millis_since_1970(time))),
            Start::Earliest => Some(Place::Earliest(true)),
            Start::Last(messages) => Some(Place::Last(messages)),
            Start::Next => None,
        };
        let request = SubscribeRequest {
            topic,
            start: place,
            ..SubscribeRequest::default()
        };
        let batches = following::open(client, Topic(request)).await?;
        Ok(Subscription {
            batches,
            ready: VecDeque::new(),
            skipped: 0,
        })
    }

    /// The next message. `None`: the subscription ended with the error before.
    pub async fn next(&mut self) -> Option<Result<Received>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Number of messages so far that the topic's retention deleted before this subscription received them.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl Stream for Subscription {
    type Item = Result<Received>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Received>>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(message.into())));
            }
            match self.batches.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(batch))) => {
                    self.skipped += batch.skipped;
                    self.ready = batch.messages.into();
                }
            }
        }
    }
}

struct Topic(SubscribeRequest);

impl Follow for Topic {
    type Response = SubscribeResponse;

    async fn open(&self, client: &Client) -> Result<Streaming<SubscribeResponse>> {
        client.open(self.0.clone(), send!(topics.subscribe)).await
    }

    fn received(&mut self, batch: &SubscribeResponse) {
        if let Some(last) = batch.messages.last() {
            self.0.start = Some(Place::Offset(last.offset + 1));
        }
    }
}
