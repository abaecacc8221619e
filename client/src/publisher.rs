//! The pipelined stream of messages to one topic.
//!
//! Messages wait in `waiting` in the order of the stream until the server acknowledges them. A response acknowledges the
//! messages of one commit, which have consecutive offsets, and names the offset of the last one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use duramen_proto::v1::{PublishStreamRequest, PublishStreamResponse};
use futures_core::Stream;
use prost::Message as _;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tonic::{Request, Streaming};

use crate::client::{Client, topics};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::options::Message;

/// Room for unacknowledged messages, in units of `UNIT_BYTES`; each message takes one unit at least.
const ROOM: u32 = 8 << 10;
const UNIT_BYTES: usize = 1 << 10;

/// Publishes messages to a topic without waiting for each; see [`crate::Topic::publisher`].
///
/// It sends in the order of the calls. It holds up to 8 MiB of unacknowledged messages, then `send` waits. It does not
/// repeat messages: when the connection breaks, each unacknowledged [`Ticket`] gets an error with the reason
/// `PUBLISHER_ENDED`.
pub struct Publisher {
    requests: Mutex<mpsc::UnboundedSender<PublishStreamRequest>>,
    first: Mutex<Option<PublishStreamRequest>>,
    shared: Arc<Shared>,
}

struct Shared {
    room: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Why the stream ended, and whether it left messages unacknowledged.
    ended: Option<(Error, bool)>,
}

struct Waiting {
    units: u32,
    reply: oneshot::Sender<Result<Option<u64>>>,
}

/// Resolves when the server acknowledges the message, with the message's offset.
///
/// The offset is `None` at `Acknowledge::Memory`.
pub struct Ticket(oneshot::Receiver<Result<Option<u64>>>);

impl Future for Ticket {
    type Output = Result<Option<u64>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = || {
            Err(unacknowledged(&Error::new(
                ErrorKind::Unavailable,
                "",
                "the runtime stopped",
            )))
        };
        Pin::new(&mut self.0)
            .poll(context)
            .map(|reply| reply.unwrap_or_else(|_| ended()))
    }
}

impl Publisher {
    pub(crate) async fn open(client: &Client, topic: &str) -> Result<Publisher> {
        // An attempt consumes its receiver, so each one makes a channel and leaves the sender here.
        let opened = Mutex::new(None);
        let call = client.open((), |channel, attempt| {
            let (sender, receiver) = mpsc::unbounded_channel();
            *locked(&opened) = Some(sender);
            async move {
                let (metadata, extensions, ()) = attempt.into_parts();
                let request = Request::from_parts(metadata, extensions, Requests(receiver));
                topics(channel).publish_stream(request).await
            }
        });
        let responses = call.await?;
        let requests = opened.into_inner().unwrap_or_else(PoisonError::into_inner);
        let shared = Arc::new(Shared {
            room: Semaphore::new(ROOM as usize),
            state: Mutex::default(),
        });
        tokio::spawn(shared.clone().acknowledge(responses));
        Ok(Publisher {
            requests: Mutex::new(requests.expect("an attempt succeeded")),
            first: Mutex::new(Some(PublishStreamRequest {
                topic: topic.into(),
                acknowledge: client.options().acknowledge as i32,
                ..PublishStreamRequest::default()
            })),
            shared,
        })
    }

    /// Sends a message, once there is room for it. The ticket resolves with its offset when the server acknowledges it.
    ///
    /// # Errors
    /// `Unavailable` with the reason `PUBLISHER_ENDED` when the stream has ended. This message was not sent.
    pub async fn send(&self, message: impl Into<Message>) -> Result<Ticket> {
        let message = message.into().0;
        let units = u32::try_from(1 + message.encoded_len() / UNIT_BYTES).map_or(ROOM, |units| units.min(ROOM));
        if let Ok(room) = self.shared.room.acquire_many(units).await {
            room.forget();
        }
        // This lock keeps the order of `waiting` and the order of the stream equal.
        let requests = locked(&self.requests);
        let mut state = locked(&self.shared.state);
        if let Some((cause, _)) = &state.ended {
            let message = format!("the publisher has ended and did not send this message; open another one: {cause}");
            return Err(Error::new(ErrorKind::Unavailable, "PUBLISHER_ENDED", message));
        }
        let (reply, ticket) = oneshot::channel();
        state.waiting.push_back(Waiting { units, reply });
        let mut request = locked(&self.first).take().unwrap_or_default();
        request.messages.push(message);
        // When the stream has just ended, its task finds the message in `waiting`.
        let _ = requests.send(request);
        Ok(Ticket(ticket))
    }

    /// Waits until the server has acknowledged all messages sent so far.
    ///
    /// # Errors
    /// `UnknownOutcome` with the reason `PUBLISHER_ENDED` when the stream ended before that.
    pub async fn flush(&self) -> Result<()> {
        let _ = self.shared.room.acquire_many(ROOM).await;
        match &locked(&self.shared.state).ended {
            Some((cause, true)) => Err(unacknowledged(cause)),
            _ => Ok(()),
        }
    }
}

impl Shared {
    /// Receives acknowledgements until the stream ends.
    async fn acknowledge(self: Arc<Self>, mut responses: Streaming<PublishStreamResponse>) {
        let mut acknowledged = 0;
        loop {
            let response = match responses.message().await {
                Ok(Some(response)) => response,
                Ok(None) => {
                    let message = "the server ended the stream";
                    return self.end(Error::new(ErrorKind::Unavailable, "CONNECTION_LOST", message));
                }
                Err(status) => return self.end(Failure::of(&status).error),
            };
            let count = response.acknowledged.saturating_sub(acknowledged);
            self.resolve(count, response.last_offset);
            acknowledged = response.acknowledged;
        }
    }

    /// Resolves the tickets of `count` messages, whose offsets end with `last`.
    fn resolve(&self, count: u64, last: Option<u64>) {
        let mut state = locked(&self.state);
        for left in (0..count).rev() {
            let Some(waiting) = state.waiting.pop_front() else {
                return;
            };
            let offset = last.map(|last| last.saturating_sub(left));
            // The program may have dropped the ticket.
            let _ = waiting.reply.send(Ok(offset));
            self.room.add_permits(waiting.units as usize);
        }
    }

    /// Resolves all tickets with errors. A refusal is about the first one. The server may have published the others.
    fn end(&self, cause: Error) {
        let mut state = locked(&self.state);
        let is_refusal = !cause.is_transient() && cause.kind != ErrorKind::UnknownOutcome;
        for (number, waiting) in std::mem::take(&mut state.waiting).into_iter().enumerate() {
            let error = match is_refusal && number == 0 {
                true => cause.clone(),
                false => unacknowledged(&cause),
            };
            let _ = waiting.reply.send(Err(error));
            state.ended = Some((cause.clone(), true));
        }
        state.ended.get_or_insert((cause, false));
        // Waiting senders go on, and find that the stream has ended.
        self.room.close();
    }
}

fn unacknowledged(cause: &Error) -> Error {
    let message =
        format!("the stream ended before the server acknowledged the message, which may be published: {cause}");
    Error::new(ErrorKind::UnknownOutcome, "PUBLISHER_ENDED", message)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Requests(mpsc::UnboundedReceiver<PublishStreamRequest>);

impl Stream for Requests {
    type Item = PublishStreamRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PublishStreamRequest>> {
        self.0.poll_recv(context)
    }
}
