//! One stream of a session.
//!
//! A task reads the requests of the client. Each subscription is a task of its own, and so is each answer that waits for a
//! commit. All of them write to one short queue: when the client does not read, they wait, and the messages stay in the
//! store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use duramen::topic::SubscribeOptions;
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{Command, Extend};
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::session_request::Say;
use duramen_proto::v1::session_response::Say as Said;
use duramen_proto::v1::*;
use prost::bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::{Code, Status, Streaming};

use super::life::{attach, close};
use super::lost::{LostLeases, release};
use super::member::{Holder, RemoteMember};
use crate::command::start_of;
use crate::error::{failed, invalid, reason_of, status, stopping};
use crate::level::Level;
use crate::registry::Attached;
use crate::security::{Access, Credentials, Resource};
use crate::state::{State, Subscribed, check_space, led, received, unexpected};

/// Responses that wait for a client that does not read.
const RESPONSES: usize = 4;
/// The most subscriptions of a stream.
const SUBSCRIPTIONS_MAX: usize = 10_000;
/// The most requests of a stream that wait for their commit; then the server reads no further ones.
const UNANSWERED_MAX: usize = 1_024;
/// How long a session outlives its stream.
const TIMEOUT: Duration = Duration::from_secs(30);
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Messages of a delivery, and the most.
const MESSAGES: u32 = 100;
const MESSAGES_MAX: u32 = 1_000;
/// Bytes of a delivery of a subscription without a group.
const BATCH_BYTES: usize = 256 << 10;
/// The longest time that a lease can be extended by.
pub(crate) const EXTEND_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How often a stream looks whether its principal may still do what it does.
const CHECK: Duration = Duration::from_secs(2);

type Responses = mpsc::Sender<Result<SessionResponse, Status>>;

/// Serves a stream until the client, another stream of the session, or the server ends it.
pub(crate) fn serve(
    state: State,
    credentials: Credentials,
    requests: Streaming<SessionRequest>,
) -> mpsc::Receiver<Result<SessionResponse, Status>> {
    let (responses, receiver) = mpsc::channel(RESPONSES);
    tokio::spawn(async move {
        if let Err(status) = run(state, credentials, requests, &responses).await {
            let _ = responses.send(Err(status)).await;
        }
    });
    receiver
}

async fn run(
    state: State,
    credentials: Credentials,
    mut requests: Streaming<SessionRequest>,
    responses: &Responses,
) -> Result<(), Status> {
    let first = requests.message().await?.and_then(|request| request.say);
    let Some(Say::Open(open)) = first else {
        return Err(invalid(
            "the first request of a session must open it; set the field open",
        ));
    };
    check_space(&open.space)?;
    let timeout = match open.timeout_ms {
        0 => TIMEOUT,
        timeout => Duration::from_millis(timeout),
    };
    if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
        let message = format!(
            "timeout_ms is {}; it must be 1,000 to 600,000, or 0",
            timeout.as_millis()
        );
        return Err(invalid(message));
    }
    let caller = state.guard.caller(&credentials)?;
    let mut attached = attach(&state, &caller, &open.session, timeout).await?;
    let opened = Said::Opened(SessionOpened {
        session: attached.session.clone(),
        resumed: attached.resumed,
        timeout_ms: attached.timeout.as_millis() as u64,
    });
    let mut stream = Stream {
        state: state.clone(),
        credentials,
        holder: Holder {
            session: attached.session.clone(),
            stream: attached.number,
        },
        lost: LostLeases::new(attached.resumed),
        responses: responses.clone(),
        subscriptions: HashMap::new(),
        answers: JoinSet::new(),
        unanswered: Arc::new(Semaphore::new(UNANSWERED_MAX)),
    };
    let ended = async {
        say(responses, opened).await?;
        stream.follow(&mut requests, &mut attached).await
    };
    let ended = ended.await;
    // The subscriptions end here; what they lease just now belongs to the session.
    stream.subscriptions.clear();
    match ended {
        Ok(Ended::Closed) => {
            // Settlements that came before the end are done first.
            while stream.answers.join_next().await.is_some() {}
            close(&state, &attached).await
        }
        Ok(Ended::Left) => {
            state.sessions.detach(&attached);
            Ok(())
        }
        Err(status) => {
            state.sessions.detach(&attached);
            Err(status)
        }
    }
}

/// How a stream ended that did nothing wrong.
enum Ended {
    /// The client closed the session.
    Closed,
    /// The connection broke, or the client ended the stream.
    Left,
}

struct Stream {
    state: State,
    credentials: Credentials,
    holder: Holder,
    lost: LostLeases,
    responses: Responses,
    subscriptions: HashMap<u32, Subscription>,
    answers: JoinSet<()>,
    unanswered: Arc<Semaphore>,
}

/// A subscription of a stream; its task ends when this is dropped.
struct Subscription {
    topic: String,
    credit: Arc<Semaphore>,
    task: tokio::task::AbortHandle,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stream {
    async fn follow(
        &mut self,
        requests: &mut Streaming<SessionRequest>,
        attached: &mut Attached,
    ) -> Result<Ended, Status> {
        let mut ends = self.state.ends.clone();
        let mut checks = tokio::time::interval(CHECK);
        loop {
            let request = tokio::select! {
                request = requests.message() => request,
                _ = checks.tick() => {
                    self.check_topics()?;
                    continue;
                }
                _ = &mut attached.taken_over => {
                    let message = "another stream opened this session, and this one is over";
                    return Err(status(Code::Aborted, "SESSION_TAKEN_OVER", message));
                }
                _ = ends.wait_for(|ends| *ends) => return Err(stopping()),
            };
            // An error is a connection that broke.
            let Ok(Some(request)) = request else {
                return Ok(Ended::Left);
            };
            while self.answers.try_join_next().is_some() {}
            match request.say {
                Some(Say::Begin(begin)) => self.begin(begin).await?,
                Some(Say::Credit(credit)) => self.add_credit(&credit)?,
                Some(Say::Settle(settle)) => self.settle(settle).await?,
                Some(Say::Extend(extend)) => self.extend(extend).await?,
                Some(Say::End(end)) => {
                    // A subscription that has ended by itself is gone already, or will be.
                    self.subscriptions.remove(&end.subscription);
                }
                Some(Say::Close(_)) => return Ok(Ended::Closed),
                Some(Say::Open(_)) => return Err(invalid("the session is open; open comes once")),
                None => {
                    return Err(invalid(
                        "the request says nothing that this server knows; set one field",
                    ));
                }
            }
        }
    }

    /// Ends the stream when its principal is not valid any more. Ends subscriptions that it may not read any more.
    fn check_topics(&mut self) -> Result<(), Status> {
        let caller = self.state.guard.caller(&self.credentials)?;
        let responses = &self.responses;
        self.subscriptions.retain(|number, known| {
            let Err(refused) = caller.may(Access::Read, Resource::Topic(&known.topic)) else {
                return true;
            };
            let (responses, ended) = (responses.clone(), ended(*number, &refused));
            tokio::spawn(async move { say(&responses, ended).await });
            false
        });
        Ok(())
    }

    fn may_read<'t>(&self, topics: impl IntoIterator<Item = &'t str>) -> Result<(), Status> {
        let caller = self.state.guard.caller(&self.credentials)?;
        let mut topics = topics.into_iter();
        topics.try_for_each(|topic| caller.may(Access::Read, Resource::Topic(topic)))
    }

    async fn begin(&mut self, mut begin: BeginSubscription) -> Result<(), Status> {
        let number = begin.subscription;
        self.subscriptions.retain(|_, known| !known.task.is_finished());
        if self.subscriptions.contains_key(&number) {
            let message = format!("the stream has a subscription {number}; choose another number");
            return Err(invalid(message));
        }
        if self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            let message = format!("a stream has at most {SUBSCRIPTIONS_MAX} subscriptions; open another one");
            return Err(status(Code::ResourceExhausted, "TOO_MANY_SUBSCRIPTIONS", message));
        }
        if let Err(refused) = self.may_read([&begin.topic[..]]) {
            return say(&self.responses, ended(number, &refused)).await;
        }
        let lost = match self.lost.take(&self.state, &self.holder, &mut begin) {
            Ok(lost) => lost,
            Err(refused) => return say(&self.responses, ended(number, &refused)).await,
        };
        let topic = begin.topic.clone();
        let credit = Arc::new(Semaphore::new(permits(begin.credit)));
        let task = tokio::spawn(deliver(
            self.state.clone(),
            (self.holder.clone(), lost),
            begin,
            credit.clone(),
            self.responses.clone(),
        ));
        let task = task.abort_handle();
        self.subscriptions.insert(number, Subscription { topic, credit, task });
        Ok(())
    }

    fn add_credit(&self, credit: &Credit) -> Result<(), Status> {
        // Credit for a subscription that has ended by itself may be on its way.
        if let Some(known) = self.subscriptions.get(&credit.subscription) {
            let room = Semaphore::MAX_PERMITS - known.credit.available_permits();
            known.credit.add_permits(permits(credit.messages).min(room));
        }
        Ok(())
    }

    async fn settle(&mut self, settle: SettleInSession) -> Result<(), Status> {
        let level = Level::of(settle.acknowledge, Level::Written)?;
        let mut settlements = settle.settlements;
        for settlement in &mut settlements {
            settlement.session = self.holder.session.clone();
        }
        let allowed = self.may_read(settlements.iter().map(|settlement| &settlement.topic[..]));
        let state = self.state.clone();
        self.answer(settle.request, async move {
            allowed?;
            settle_all(&state, settlements, WriteOptions::default(), level)
                .await
                .map(|()| 0)
        })
        .await
    }

    async fn extend(&mut self, extend: ExtendInSession) -> Result<(), Status> {
        let allowed = self.may_read([&extend.topic[..]]);
        let state = self.state.clone();
        let change = Extend {
            topic: extend.topic,
            group: extend.group,
            lease: extend.lease,
            by_ms: extend.by_ms,
        };
        self.answer(extend.request, async move {
            allowed?;
            extend_lease(&state, change).await
        })
        .await
    }

    /// Answers a request when the work is done. Too many at a time hold up the requests after them.
    async fn answer(
        &mut self,
        request: u64,
        work: impl Future<Output = Result<u64, Status>> + Send + 'static,
    ) -> Result<(), Status> {
        let room = self.unanswered.clone().acquire_owned().await;
        let responses = self.responses.clone();
        self.answers.spawn(async move {
            let mut answer = SessionAnswer {
                request,
                ..SessionAnswer::default()
            };
            match work.await {
                Ok(deadline_ms) => answer.deadline_ms = deadline_ms,
                Err(status) => {
                    answer.code = status.code() as u32;
                    answer.reason = reason_of(&status);
                    answer.message = status.message().into();
                }
            }
            let _ = say(&responses, Said::Answer(answer)).await;
            drop(room);
        });
        Ok(())
    }
}

async fn say(responses: &Responses, said: Said) -> Result<(), Status> {
    let response = SessionResponse { say: Some(said) };
    responses.send(Ok(response)).await.map_err(|_| stopping())
}

fn permits(credit: u64) -> usize {
    usize::try_from(credit)
        .unwrap_or(usize::MAX)
        .min(Semaphore::MAX_PERMITS)
}

/// Sends the messages of a subscription, and tells the client why it ended.
async fn deliver(
    state: State,
    of_session: (Holder, Vec<Vec<u8>>),
    begin: BeginSubscription,
    credit: Arc<Semaphore>,
    responses: Responses,
) {
    let number = begin.subscription;
    let ended = match begin.group.is_empty() {
        true => deliver_topic(&state, begin, &credit, &responses).await,
        false => deliver_group(&state, of_session, begin, &credit, &responses).await,
    };
    // Without an error the client is gone.
    if let Err(status) = ended {
        let _ = say(&responses, self::ended(number, &status)).await;
    }
}

/// Tells the client why a subscription ended.
fn ended(subscription: u32, status: &Status) -> Said {
    Said::Ended(SubscriptionEnded {
        subscription,
        code: status.code() as u32,
        reason: reason_of(status),
        message: status.message().into(),
    })
}

/// Waits for credit; the messages that may come, at most `most`.
async fn credit_for(credit: &Semaphore, most: u32) -> u32 {
    // The semaphore is never closed.
    if let Ok(permit) = credit.acquire().await {
        drop(permit);
    }
    u32::try_from(credit.available_permits())
        .unwrap_or(u32::MAX)
        .clamp(1, most)
}

fn messages_of(begin: &BeginSubscription) -> u32 {
    match begin.messages {
        0 => MESSAGES,
        messages => messages.min(MESSAGES_MAX),
    }
}

async fn deliver_group(
    state: &State,
    (holder, lost): (Holder, Vec<Vec<u8>>),
    begin: BeginSubscription,
    credit: &Semaphore,
    responses: &Responses,
) -> Result<(), Status> {
    let _counted = Subscribed::count(state);
    let most = messages_of(&begin);
    let name = (&begin.topic[..], &begin.group[..]);
    let mut member = RemoteMember::new(state, name, begin.member, holder.clone())?;
    release(state, &holder, name, lost).await?;
    loop {
        let allowed = credit_for(credit, most).await;
        let Some(received) = member.receive(allowed, None).await? else {
            continue;
        };
        credit.forget_permits(received.messages.len());
        let messages = SessionMessages {
            subscription: begin.subscription,
            lease: received.lease,
            deadline_ms: received.deadline_ms,
            messages: received.messages,
            skipped: 0,
        };
        if say(responses, Said::Messages(messages)).await.is_err() {
            return Ok(());
        }
    }
}

async fn deliver_topic(
    state: &State,
    begin: BeginSubscription,
    credit: &Semaphore,
    responses: &Responses,
) -> Result<(), Status> {
    let _counted = Subscribed::count(state);
    let topic = state.topic(&begin.topic)?;
    let most = messages_of(&begin);
    let options = SubscribeOptions::new()
        .batch_messages(most as usize)
        .batch_bytes(BATCH_BYTES);
    let subscribed = topic.subscribe_with(start_of(begin.start.as_ref()), options);
    let mut subscription = subscribed.map_err(|error| failed(&error))?;
    let mut batches = subscription.stream();
    loop {
        let batch = match batches.next().await {
            None => {
                return Err(status(
                    Code::Aborted,
                    "SUBSCRIPTION_ENDED",
                    "the subscription has ended",
                ));
            }
            Some(batch) => batch.map_err(|error| failed(&error))?,
        };
        let mut skipped = batch.gap().map_or(0, |gap| gap.end - gap.start);
        let mut place = 0;
        while place < batch.len() {
            let allowed = credit_for(credit, most).await as usize;
            let part = batch.part(place..(place + allowed).min(batch.len()));
            place += part.len();
            credit.forget_permits(part.len());
            let delivered = part.iter().map(|message| Delivered {
                message: Some(received(message)),
                tries: 0,
            });
            let messages = SessionMessages {
                subscription: begin.subscription,
                lease: Bytes::new(),
                deadline_ms: 0,
                messages: delivered.collect(),
                skipped: std::mem::take(&mut skipped),
            };
            if say(responses, Said::Messages(messages)).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Settles messages in one commit.
pub(crate) async fn settle_all(
    state: &State,
    settlements: Vec<Settlement>,
    options: WriteOptions,
    level: Level,
) -> Result<(), Status> {
    if settlements.is_empty() {
        return Err(invalid("there is nothing to settle; send at least one settlement"));
    }
    if level == Level::Memory {
        return Err(invalid(
            "settling cannot be acknowledged at the level MEMORY; ask for WRITTEN or SYNCED",
        ));
    }
    let groups: Vec<_> = settlements
        .iter()
        .map(|settlement| (settlement.topic.clone(), settlement.group.clone()))
        .collect();
    let operations = settlements.into_iter().map(|settlement| Operation {
        change: Some(Operated::Settle(settlement)),
    });
    let command = Command {
        idempotency_key: options.idempotency_key,
        change: Some(Change::Commit(CommitRequest {
            then: operations.collect(),
            ..CommitRequest::default()
        })),
    };
    let outcome = state.pipeline.submit(command, level).await?;
    led(outcome.unwrap_or_default())?;
    for (topic, group) in &groups {
        state.rooms.made(topic, group);
    }
    Ok(())
}

/// Extends a lease, and returns when it ends, in milliseconds since 1970.
pub(crate) async fn extend_lease(state: &State, extend: Extend) -> Result<u64, Status> {
    if Duration::from_millis(extend.by_ms) > EXTEND_MAX {
        let message = format!("by_ms is {}; a lease can be extended by a day at most", extend.by_ms);
        return Err(invalid(message));
    }
    let command = Command {
        idempotency_key: Bytes::new(),
        change: Some(Change::Extend(extend)),
    };
    let outcome = state.pipeline.submit(command, Level::Written).await?;
    match led(outcome.unwrap_or_default())? {
        Led::ExtendedToMs(until) => Ok(until),
        other => Err(unexpected(&other)),
    }
}
