//! A member of a group: a session with one subscription.
//!
//! A task has the stream of the session and passes deliveries on, as far as the program has room for them. When the
//! connection breaks or the server restarts, the task opens the session again. The leases belong to the session, so the
//! program settles what it holds as before. Settling is a call of its own, which repeats itself like other calls.
//!
//! A delivery can get lost with its connection, and the server cannot tell. So the task says which leases it still has when
//! it opens the session again: those of deliveries that the program has, or that wait for it. The server releases the rest.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duramen_proto::v1::session_request::Say;
use duramen_proto::v1::session_response::Say as Said;
use duramen_proto::v1::settlement::Verdict;
use duramen_proto::v1::{
    self, BeginSubscription, CloseSession, Credit, Delivered, ExtendRequest, GiveUp, HeldLeases, OpenSession, Retry,
    SessionRequest, SessionResponse, SettleRequest, Settlement, WriteOptions,
};
use futures_core::Stream;
use prost::bytes::Bytes;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Streaming};

use crate::call::Pauses;
use crate::client::{send, topics};
use crate::error::{Error, Failure, Result};
use crate::group::Group;
use crate::options::millis;
use crate::subscription::Received;

/// The number of the only subscription of the session.
const SUBSCRIPTION: u32 = 1;
/// How long the end of a member waits until the server has taken its messages back.
const CLOSE: Duration = Duration::from_secs(2);
/// The most held leases that the server accepts in a list. Without the list it releases nothing.
const HELD_MAX: usize = 10_000;

/// How a member receives.
#[derive(Clone, Copy, Debug)]
pub struct MemberOptions {
    batch: u32,
    ahead: u64,
    timeout: Duration,
}

impl Default for MemberOptions {
    fn default() -> MemberOptions {
        MemberOptions {
            batch: 100,
            ahead: 200,
            timeout: Duration::from_secs(30),
        }
    }
}

impl MemberOptions {
    /// Batches of 100 messages, 200 messages ahead of the program, and 30 seconds to come back.
    pub fn new() -> MemberOptions {
        MemberOptions::default()
    }

    /// The most messages of a delivery, at most 1,000. Default: 100.
    pub fn batch(mut self, messages: u32) -> MemberOptions {
        self.batch = messages.max(1);
        self
    }

    /// How many messages the server may send before the program takes them. Their leases run meanwhile. Default: 200.
    pub fn ahead(mut self, messages: u64) -> MemberOptions {
        self.ahead = messages.max(1);
        self
    }

    /// How long the server keeps the messages of this member when its connection is broken: 1 second to 10 minutes.
    /// Default: 30 seconds.
    pub fn timeout(mut self, timeout: Duration) -> MemberOptions {
        self.timeout = timeout;
        self
    }
}

/// A member of a group; see [`Group::join`].
///
/// When it and all its deliveries are dropped, the messages that it has not settled go back to the group at once, and this
/// attempt does not count.
/// When its process dies, they go back after the timeout of the member, and the attempt counts.
pub struct Member {
    deliveries: mpsc::Receiver<Result<Passed>>,
    /// Tells the task how many messages the program took. The session is open as long as there is a sender.
    taken: UnboundedSender<u64>,
}

struct Shared {
    group: Group,
    session: Mutex<Bytes>,
    /// Leases of deliveries that the program has, or that wait for it.
    held: Mutex<HashSet<Bytes>>,
}

impl Shared {
    fn session(&self) -> Bytes {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn held(&self) -> MutexGuard<'_, HashSet<Bytes>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leases that the server must not release; `None`: they are too many for a list.
    fn held_leases(&self) -> Option<HeldLeases> {
        let held = self.held();
        (held.len() <= HELD_MAX).then(|| HeldLeases {
            leases: held.iter().cloned().collect(),
        })
    }
}

/// A lease that the program may still settle. When the last clone is dropped, the member holds it no more.
pub(crate) struct Held {
    shared: Arc<Shared>,
    lease: Bytes,
}

impl Held {
    fn new(shared: &Arc<Shared>, lease: Bytes) -> Held {
        shared.held().insert(lease.clone());
        Held {
            shared: shared.clone(),
            lease,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.held().remove(&self.lease);
    }
}

/// Messages on their way from the task to the program.
struct Passed {
    messages: v1::SessionMessages,
    held: Held,
}

impl Member {
    pub(crate) async fn open(group: Group, name: String, options: MemberOptions) -> Result<Member> {
        let shared = Arc::new(Shared {
            group,
            session: Mutex::default(),
            held: Mutex::default(),
        });
        let mut link = Link {
            shared,
            name,
            options,
            allowed: options.ahead,
        };
        let stream = link.open().await?;
        let (sender, deliveries) = mpsc::channel(1);
        let (taken, takes) = mpsc::unbounded_channel();
        tokio::spawn(link.follow(stream, takes, sender));
        Ok(Member { deliveries, taken })
    }

    /// The next messages. `None`: the member ended with the error before.
    ///
    /// # Errors
    /// What a retry cannot cure, such as `NotFound` when the group was deleted.
    pub async fn receive(&mut self) -> Option<Result<Deliveries>> {
        let received = match self.deliveries.recv().await? {
            Ok(received) => received,
            Err(error) => return Some(Err(error)),
        };
        // The task has ended when this fails, and the next call says so.
        let Passed { messages, held } = received;
        let _ = self.taken.send(messages.messages.len() as u64);
        Some(Ok(Deliveries {
            held: Arc::new(held),
            _taken: self.taken.clone(),
            until: UNIX_EPOCH + Duration::from_millis(messages.deadline_ms),
            messages: messages.messages.into_iter().filter_map(delivery).collect(),
        }))
    }
}

pub(crate) fn delivery(delivered: Delivered) -> Option<Delivery> {
    let message = delivered.message?.into();
    let tries = delivered.tries;
    Some(Delivery { message, tries })
}

/// A message that a group delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// The message.
    pub message: Received,
    /// Number of deliveries of the message, including this one.
    pub tries: u32,
}

/// Messages that were delivered together, with one lease.
///
/// The group delivers the messages that the program drops without settling again when the lease ends, or when the member
/// connects again after a break. In the second case the attempt does not count.
pub struct Deliveries {
    /// Shared with the transactions that settle messages of the lease.
    held: Arc<Held>,
    /// Keeps the session open.
    _taken: UnboundedSender<u64>,
    until: SystemTime,
    messages: Vec<Delivery>,
}

impl Deliveries {
    /// The messages, in the order of the topic.
    pub fn messages(&self) -> &[Delivery] {
        &self.messages
    }

    /// When the lease ended or will end, as the server said with the messages. The group delivers them again after it.
    pub fn until(&self) -> SystemTime {
        self.until
    }

    /// Acknowledges all messages that this member still has. The group does not deliver them again.
    ///
    /// # Errors
    /// `FailedPrecondition` with the reason `LEASE_LOST` or `ALREADY_SETTLED`.
    pub async fn acknowledge(&self) -> Result<()> {
        self.settle(Vec::new(), Verdict::Acknowledge(true)).await
    }

    /// Acknowledges one message.
    ///
    /// # Errors
    /// As [`Deliveries::acknowledge`].
    pub async fn acknowledge_one(&self, offset: u64) -> Result<()> {
        self.settle(vec![offset], Verdict::Acknowledge(true)).await
    }

    /// Tells that a message failed: the group delivers it again after `delay`, or as its options say. `why` is for people.
    ///
    /// # Errors
    /// As [`Deliveries::acknowledge`].
    pub async fn retry(&self, offset: u64, delay: Option<Duration>, why: impl Into<String>) -> Result<()> {
        let retry = Retry {
            delay_ms: delay.map(millis),
            reason: why.into(),
        };
        self.settle(vec![offset], Verdict::Retry(retry)).await
    }

    /// Gives a message up: it goes to the dead letters. `why` is for people.
    ///
    /// # Errors
    /// As [`Deliveries::acknowledge`].
    pub async fn give_up(&self, offset: u64, why: impl Into<String>) -> Result<()> {
        let give_up = GiveUp { reason: why.into() };
        self.settle(vec![offset], Verdict::GiveUp(give_up)).await
    }

    /// Gives all messages that this member still has back to the group at once. This attempt does not count.
    ///
    /// # Errors
    /// As [`Deliveries::acknowledge`].
    pub async fn release(&self) -> Result<()> {
        self.settle(Vec::new(), Verdict::Release(true)).await
    }

    /// Makes the lease last at least so long from now. Returns when it ends.
    ///
    /// # Errors
    /// As [`Deliveries::acknowledge`].
    pub async fn extend(&self, by: Duration) -> Result<SystemTime> {
        let group = self.group();
        let request = ExtendRequest {
            topic: group.topic.clone(),
            group: group.name.clone(),
            lease: self.held.lease.clone(),
            by_ms: millis(by),
            ..ExtendRequest::default()
        };
        let extended = group.client.write(request, send!(topics.extend)).await?;
        Ok(UNIX_EPOCH + Duration::from_millis(extended.deadline_ms))
    }

    /// The acknowledgement of a message, for a transaction: its effects and its acknowledgement are then one commit.
    pub(crate) fn settlement(&self, offsets: Vec<u64>, verdict: Verdict) -> Settlement {
        let group = self.group();
        Settlement {
            topic: group.topic.clone(),
            group: group.name.clone(),
            lease: self.held.lease.clone(),
            offsets,
            session: self.held.shared.session(),
            verdict: Some(verdict),
        }
    }

    /// Keeps the lease among those that the member holds, beyond the end of this value.
    pub(crate) fn held(&self) -> Arc<Held> {
        self.held.clone()
    }

    fn group(&self) -> &Group {
        &self.held.shared.group
    }

    async fn settle(&self, offsets: Vec<u64>, verdict: Verdict) -> Result<()> {
        let client = &self.group().client;
        let request = SettleRequest {
            settlements: vec![self.settlement(offsets, verdict)],
            options: Some(WriteOptions {
                acknowledge: client.options().acknowledge as i32,
                ..WriteOptions::default()
            }),
            ..SettleRequest::default()
        };
        let (settled, is_repeated) = client.write_counted(request, send!(topics.settle)).await;
        match settled {
            // An attempt before this one had its effect, and its answer got lost.
            Err(error) if is_repeated && error.reason == "ALREADY_SETTLED" => Ok(()),
            settled => settled.map(drop),
        }
    }
}

/// The stream of the session, and what is needed to open it again.
struct Link {
    shared: Arc<Shared>,
    name: String,
    options: MemberOptions,
    /// Messages that the server may still send.
    allowed: u64,
}

struct Open {
    requests: UnboundedSender<SessionRequest>,
    responses: Streaming<SessionResponse>,
}

impl Open {
    fn say(&self, say: Say) {
        // When the stream is over, its next response says so.
        let _ = self.requests.send(SessionRequest { say: Some(say) });
    }
}

/// Why the task stops to follow a stream.
enum Broken {
    /// It opens the session again.
    Again(Error),
    /// The member has ended.
    Ended(Error),
    /// The program dropped the member.
    Dropped,
}

impl Link {
    /// Opens the session, the known one if there is one, and subscribes. It subscribes only once it knows the session:
    /// when the answer of the server gets lost, a session that no client knows must have no messages.
    async fn open(&mut self) -> Result<Open> {
        let open = Say::Open(OpenSession {
            session: self.shared.session(),
            timeout_ms: millis(self.options.timeout),
            ..OpenSession::default()
        });
        // An attempt consumes its receiver, so each one makes a channel and leaves the sender here.
        let opened = Mutex::new(None);
        let client = self.shared.group.client.clone();
        let call = client.open((), |channel, attempt| {
            let (requests, receiver) = mpsc::unbounded_channel();
            let open = Some(open.clone());
            let _ = requests.send(SessionRequest { say: open });
            *opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(requests);
            // The attempt succeeds with the first response: a connection that breaks before it is an attempt that failed.
            async move {
                let (metadata, extensions, ()) = attempt.into_parts();
                let request = Request::from_parts(metadata, extensions, Requests(receiver));
                let mut responses = topics(channel).session(request).await?.into_inner();
                let first = responses.message().await?;
                Ok(Response::new((first, responses)))
            }
        });
        let (first, responses) = call.await?;
        let requests = opened.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some(Said::Opened(session)) = first.and_then(|first| first.say) else {
            return Err(Error::bad_response());
        };
        *self.shared.session.lock().unwrap_or_else(PoisonError::into_inner) = session.session;
        let stream = Open {
            requests: requests.expect("an attempt succeeded"),
            responses,
        };
        stream.say(self.begin());
        Ok(stream)
    }

    fn begin(&self) -> Say {
        Say::Begin(BeginSubscription {
            subscription: SUBSCRIPTION,
            topic: self.shared.group.topic.clone(),
            group: self.shared.group.name.clone(),
            start: None,
            member: self.name.clone(),
            messages: self.options.batch,
            credit: self.allowed,
            held: self.shared.held_leases(),
        })
    }

    async fn follow(
        mut self,
        mut stream: Open,
        mut takes: UnboundedReceiver<u64>,
        deliveries: mpsc::Sender<Result<Passed>>,
    ) {
        let mut pauses = Pauses::default();
        loop {
            let mut broken = self.pass_on(&mut stream, &mut takes, &deliveries, &mut pauses).await;
            stream = loop {
                let error = match broken {
                    Broken::Again(error) => error,
                    Broken::Ended(error) => {
                        let _ = deliveries.send(Err(error)).await;
                        return;
                    }
                    Broken::Dropped => {
                        while takes.recv().await.is_some() {}
                        return close(stream).await;
                    }
                };
                sleep(pauses.next(error.retry_after)).await;
                if deliveries.is_closed() {
                    return;
                }
                match self.open().await {
                    Ok(stream) => break stream,
                    Err(error) => broken = broken_by(error),
                }
            };
        }
    }

    /// Passes deliveries on until the stream breaks.
    async fn pass_on(
        &mut self,
        stream: &mut Open,
        takes: &mut UnboundedReceiver<u64>,
        deliveries: &mpsc::Sender<Result<Passed>>,
        pauses: &mut Pauses,
    ) -> Broken {
        loop {
            let response = tokio::select! {
                response = stream.responses.message() => response,
                Some(messages) = takes.recv() => {
                    self.allowed += messages;
                    stream.say(Say::Credit(Credit { subscription: SUBSCRIPTION, messages }));
                    continue;
                }
                () = deliveries.closed() => return Broken::Dropped,
            };
            match response.map(|response| response.and_then(|response| response.say)) {
                Ok(Some(Said::Messages(messages))) => {
                    *pauses = Pauses::default();
                    self.allowed = self.allowed.saturating_sub(messages.messages.len() as u64);
                    let held = Held::new(&self.shared, messages.lease.clone());
                    let passed = Passed { messages, held };
                    tokio::select! {
                        sent = deliveries.send(Ok(passed)) => if sent.is_err() { return Broken::Dropped },
                        () = deliveries.closed() => return Broken::Dropped,
                    }
                }
                Ok(Some(Said::Ended(ended))) => {
                    return broken_by(Error::of_answer(ended.code, ended.reason, ended.message));
                }
                Ok(Some(Said::Opened(_) | Said::Answer(_))) => {}
                Ok(None) => return Broken::Again(Error::connection_lost("the server ended the stream")),
                Err(status) => return broken_by(Failure::of(&status).error),
            }
        }
    }
}

fn broken_by(error: Error) -> Broken {
    match error.is_transient() {
        true => Broken::Again(error),
        false => Broken::Ended(error),
    }
}

/// Ends the session, so that its messages go back to the group at once.
async fn close(mut stream: Open) {
    stream.say(Say::Close(CloseSession {}));
    let ended = async { while let Ok(Some(_)) = stream.responses.message().await {} };
    // Without an answer the server ends the session by its timeout.
    let _ = timeout(CLOSE, ended).await;
}

struct Requests(UnboundedReceiver<SessionRequest>);

impl Stream for Requests {
    type Item = SessionRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<SessionRequest>> {
        self.0.poll_recv(context)
    }
}
