//! The service `Topics`.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, UNIX_EPOCH};

use duramen::topic::{Start, SubscribeOptions, Subscription};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{Command, ConfigureTopic, CreateTopic, DeleteTopic};
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::operation_result::Result as Given;
use duramen_proto::v1::subscribe_request::Start as Asked;
use duramen_proto::v1::topics_server::Topics;
use duramen_proto::v1::*;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

use super::groups;
use crate::command::to_topic_options;
use crate::error::{failed, invalid, stopping, unanswered};
use crate::level::Level;
use crate::pipeline::Answer;
use crate::security::{Access, Caller, Credentials, Resource};
use crate::session;
use crate::state::{State, Subscribed, check_space, led, received, unexpected};

/// Messages after which a publishing stream begins another command.
const COMMAND_MESSAGES: usize = 4_096;
/// Bytes of them, likewise.
const COMMAND_BYTES: usize = 1 << 20;
/// Messages of a response when the subscriber names no number, and the most.
const BATCH_MESSAGES: usize = 1_000;
const BATCH_MESSAGES_MAX: usize = 10_000;
/// Bytes after which a response ends.
const BATCH_BYTES: usize = 256 << 10;
/// How long a publishing stream waits before it tries again, when the server has too much in its queue.
const WAIT: Duration = Duration::from_millis(2);

/// How often a subscription looks whether its token is still valid.
const CHECK: Duration = Duration::from_secs(2);

pub(crate) struct TopicsService(pub(crate) State);

impl TopicsService {
    async fn publish_all(
        &self,
        space: &str,
        topic: String,
        messages: Vec<Message>,
        options: Option<WriteOptions>,
    ) -> Result<Option<u64>, Status> {
        check_space(space)?;
        let change = publish(topic, messages);
        let Some(led) = self.0.write_at_any_level(change, options).await? else {
            return Ok(None);
        };
        first_offset(&led).map(Some)
    }
}

fn publish(topic: String, messages: Vec<Message>) -> Change {
    let operation = Operation {
        change: Some(Operated::Publish(PublishOperation { topic, messages })),
    };
    Change::Commit(CommitRequest {
        then: vec![operation],
        ..CommitRequest::default()
    })
}

fn first_offset(led: &Led) -> Result<u64, Status> {
    if let Led::Committed(response) = led
        && let Some(Given::FirstOffset(offset)) = response.results.first().and_then(|result| result.result.as_ref())
    {
        return Ok(*offset);
    }
    Err(unexpected(led))
}

#[tonic::async_trait]
impl Topics for TopicsService {
    async fn create_topic(
        &self,
        request: Request<CreateTopicRequest>,
    ) -> Result<Response<CreateTopicResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Topic(&request.get_ref().topic))?;
        let request = request.into_inner();
        let change = Change::CreateTopic(CreateTopic {
            topic: request.topic,
            options: request.topic_options,
            if_missing: request.if_missing,
        });
        let created = self.0.change(&request.space, change, request.options).await?;
        Ok(Response::new(CreateTopicResponse { created }))
    }

    async fn configure_topic(
        &self,
        request: Request<ConfigureTopicRequest>,
    ) -> Result<Response<ConfigureTopicResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Topic(&request.get_ref().topic))?;
        let request = request.into_inner();
        let change = Change::ConfigureTopic(ConfigureTopic {
            topic: request.topic,
            options: request.topic_options,
        });
        self.0.change(&request.space, change, request.options).await?;
        Ok(Response::new(ConfigureTopicResponse {}))
    }

    async fn delete_topic(
        &self,
        request: Request<DeleteTopicRequest>,
    ) -> Result<Response<DeleteTopicResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Topic(&request.get_ref().topic))?;
        let request = request.into_inner();
        let change = Change::DeleteTopic(DeleteTopic { topic: request.topic });
        self.0.change(&request.space, change, request.options).await?;
        Ok(Response::new(DeleteTopicResponse {}))
    }

    async fn list_topics(&self, request: Request<ListTopicsRequest>) -> Result<Response<ListTopicsResponse>, Status> {
        let caller = self.0.caller(&request)?;
        check_space(&request.get_ref().space)?;
        let mut topics = self.0.topics.list().map_err(|error| failed(&error))?;
        topics.retain(|topic| caller.sees(Resource::Topic(topic)));
        Ok(Response::new(ListTopicsResponse { topics }))
    }

    async fn describe_topic(
        &self,
        request: Request<DescribeTopicRequest>,
    ) -> Result<Response<DescribeTopicResponse>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Topic(&request.get_ref().topic))?;
        check_space(&request.get_ref().space)?;
        let topic = self.0.topic(&request.get_ref().topic)?;
        let described = topic.describe().map_err(|error| failed(&error))?;
        Ok(Response::new(DescribeTopicResponse {
            first_offset: described.first,
            next_offset: described.next,
            bytes: described.bytes,
            topic_options: Some(to_topic_options(&described.options)),
        }))
    }

    async fn publish(&self, request: Request<PublishRequest>) -> Result<Response<PublishResponse>, Status> {
        self.0
            .authorize(&request, Access::Write, Resource::Topic(&request.get_ref().topic))?;
        let request = request.into_inner();
        let message = request
            .message
            .ok_or_else(|| invalid("the request has no message; set the field message"))?;
        let offset = self
            .publish_all(&request.space, request.topic, vec![message], request.options)
            .await?;
        Ok(Response::new(PublishResponse { offset }))
    }

    async fn publish_batch(
        &self,
        request: Request<PublishBatchRequest>,
    ) -> Result<Response<PublishBatchResponse>, Status> {
        self.0
            .authorize(&request, Access::Write, Resource::Topic(&request.get_ref().topic))?;
        let request = request.into_inner();
        let first_offset = self
            .publish_all(&request.space, request.topic, request.messages, request.options)
            .await?;
        Ok(Response::new(PublishBatchResponse { first_offset }))
    }

    type PublishStreamStream = ReceiverStream<Result<PublishStreamResponse, Status>>;

    async fn publish_stream(
        &self,
        request: Request<Streaming<PublishStreamRequest>>,
    ) -> Result<Response<Self::PublishStreamStream>, Status> {
        let credentials = Credentials::of(&request);
        // The first message names the topic, so the permission is looked at with each command.
        self.0.guard.caller(&credentials)?;
        let requests = request.into_inner();
        let state = self.0.clone();
        let (responses, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            if let Err(status) = publish_requests(&state, &credentials, requests, &responses).await {
                let _ = responses.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type SubscribeStream = ReceiverStream<Result<SubscribeResponse, Status>>;

    async fn subscribe(&self, request: Request<SubscribeRequest>) -> Result<Response<Self::SubscribeStream>, Status> {
        let reader = Reader {
            credentials: Credentials::of(&request),
            topic: request.get_ref().topic.clone(),
        };
        reader.check(&self.0)?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let topic = self.0.topic(&request.topic)?;
        let start = match request.start {
            None => Start::Tail,
            Some(Asked::Offset(offset)) => Start::Offset(offset),
            Some(Asked::TimeMs(time)) => Start::Time(UNIX_EPOCH + Duration::from_millis(time)),
            Some(Asked::Earliest(_)) => Start::Beginning,
            Some(Asked::Last(messages)) => Start::Last(messages),
        };
        let messages = match request.batch_messages as usize {
            0 => BATCH_MESSAGES,
            messages => messages.min(BATCH_MESSAGES_MAX),
        };
        let options = SubscribeOptions::new()
            .batch_messages(messages)
            .batch_bytes(BATCH_BYTES);
        let subscribed = topic.subscribe_with(start, options);
        let subscription = subscribed.map_err(|error| failed(&error))?;
        // A slow subscriber holds two responses; the rest waits in the store.
        let (sender, receiver) = mpsc::channel(2);
        tokio::spawn(send_messages(self.0.clone(), reader, subscription, sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn create_group(
        &self,
        request: Request<CreateGroupRequest>,
    ) -> Result<Response<CreateGroupResponse>, Status> {
        let caller = self.0.caller(&request)?;
        caller.may(Access::Admin, Resource::Topic(&request.get_ref().topic))?;
        may_bury(&caller, request.get_ref().group_options.as_ref())?;
        groups::create(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn configure_group(
        &self,
        request: Request<ConfigureGroupRequest>,
    ) -> Result<Response<ConfigureGroupResponse>, Status> {
        let caller = self.0.caller(&request)?;
        caller.may(Access::Admin, Resource::Topic(&request.get_ref().topic))?;
        may_bury(&caller, request.get_ref().group_options.as_ref())?;
        groups::configure(&self.0, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn delete_group(
        &self,
        request: Request<DeleteGroupRequest>,
    ) -> Result<Response<DeleteGroupResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Topic(&request.get_ref().topic))?;
        groups::delete(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn list_groups(&self, request: Request<ListGroupsRequest>) -> Result<Response<ListGroupsResponse>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Topic(&request.get_ref().topic))?;
        groups::list(&self.0, request.get_ref()).map(Response::new)
    }

    async fn pause_group(&self, request: Request<PauseGroupRequest>) -> Result<Response<PauseGroupResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Topic(&request.get_ref().topic))?;
        groups::pause(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn reset_group(&self, request: Request<ResetGroupRequest>) -> Result<Response<ResetGroupResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Topic(&request.get_ref().topic))?;
        groups::reset(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn list_pending(
        &self,
        request: Request<ListPendingRequest>,
    ) -> Result<Response<ListPendingResponse>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Topic(&request.get_ref().topic))?;
        groups::pending(&self.0, request.get_ref()).map(Response::new)
    }

    async fn redrive(&self, request: Request<RedriveRequest>) -> Result<Response<RedriveResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Topic(&request.get_ref().topic))?;
        groups::redrive(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<FetchResponse>, Status> {
        let caller = self.0.caller(&request)?;
        caller.may(Access::Read, Resource::Topic(&request.get_ref().topic))?;
        self.0.sessions.may_use(&request.get_ref().session, &caller)?;
        let reader = Reader {
            credentials: Credentials::of(&request),
            topic: request.get_ref().topic.clone(),
        };
        let mut checks = tokio::time::interval(CHECK);
        let fetched = groups::fetch(&self.0, request.into_inner());
        let mut fetched = std::pin::pin!(fetched);
        let fetched = loop {
            tokio::select! {
                fetched = &mut fetched => break fetched,
                // A fetch may wait for long, and its token may be revoked meanwhile.
                _ = checks.tick() => reader.check(&self.0)?,
            }
        };
        fetched.map(Response::new)
    }

    async fn settle(&self, request: Request<SettleRequest>) -> Result<Response<SettleResponse>, Status> {
        let caller = self.0.caller(&request)?;
        for settlement in &request.get_ref().settlements {
            caller.may(Access::Read, Resource::Topic(&settlement.topic))?;
        }
        groups::settle(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<ExtendResponse>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Topic(&request.get_ref().topic))?;
        groups::extend(&self.0, request.into_inner()).await.map(Response::new)
    }

    type SessionStream = ReceiverStream<Result<SessionResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let credentials = Credentials::of(&request);
        // Without a principal there is no session. What it may do is looked at with each subscription and each request.
        self.0.guard.caller(&credentials)?;
        let responses = session::serve(self.0.clone(), credentials, request.into_inner());
        Ok(Response::new(ReceiverStream::new(responses)))
    }
}

/// Adds the messages of requests that have arrived already: one command costs less than many.
async fn add_ready(requests: &mut Streaming<PublishStreamRequest>, messages: &mut Vec<Message>) {
    let mut bytes = bytes_of(messages);
    while messages.len() < COMMAND_MESSAGES && bytes < COMMAND_BYTES {
        let ready = poll_fn(|context| Poll::Ready(Pin::new(&mut *requests).poll_next(context))).await;
        // An end or an error comes again with the next call.
        let Poll::Ready(Some(Ok(request))) = ready else { return };
        bytes += bytes_of(&request.messages);
        messages.extend(request.messages);
    }
}

fn bytes_of(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.payload.len()).sum()
}

/// Publishes the messages of a stream of requests, one command after the other. While one is committed, the requests that
/// arrive gather for the next. So a refused message is the last that the stream publishes.
async fn publish_requests(
    state: &State,
    credentials: &Credentials,
    mut requests: Streaming<PublishStreamRequest>,
    responses: &mpsc::Sender<Result<PublishStreamResponse, Status>>,
) -> Result<(), Status> {
    let mut stream = None;
    let mut acknowledged = 0;
    // The end of the stream of requests, or of the connection, ends the loop.
    while let Ok(Some(request)) = requests.message().await {
        let (topic, level) = match &stream {
            Some(known) => known,
            None => {
                check_space(&request.space)?;
                let level = Level::of(request.acknowledge, state.default_level)?;
                stream.insert((request.topic, level))
            }
        };
        let caller = state.guard.caller(credentials)?;
        caller.may(Access::Write, Resource::Topic(topic))?;
        let mut messages = request.messages;
        add_ready(&mut requests, &mut messages).await;
        let count = messages.len() as u64;
        let answer = enqueue(state, publish(topic.clone(), messages), *level).await?;
        let last_offset = match level {
            Level::Memory => None,
            Level::Written | Level::Synced => {
                let answered = answer.await.unwrap_or_else(|_| Err(unanswered()))?;
                let first = first_offset(&led(answered)?)?;
                Some(first + count.saturating_sub(1))
            }
        };
        acknowledged += count;
        let response = PublishStreamResponse {
            acknowledged,
            last_offset,
        };
        if responses.send(Ok(response)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Queues a change of a publishing stream. Where a single request is refused because too much is queued, a stream waits:
/// its client is held back by the flow control of the connection.
async fn enqueue(state: &State, change: Change, level: Level) -> Result<Answer, Status> {
    let command = Command {
        idempotency_key: Bytes::new(),
        change: Some(change),
    };
    loop {
        match state.pipeline.enqueue(command.clone(), level) {
            Err(status) if status.code() == Code::ResourceExhausted => tokio::time::sleep(WAIT).await,
            queued => return queued,
        }
    }
}

/// Refuses options of a group whose dead letters go to a topic of which the caller is no administrator: the group creates it
/// when it is missing, and publishes to it.
fn may_bury(caller: &Caller, options: Option<&GroupOptions>) -> Result<(), Status> {
    match options.and_then(|options| options.dead_letters.as_ref()) {
        Some(group_options::DeadLetters::DeadLetterTopic(topic)) => caller.may(Access::Admin, Resource::Topic(topic)),
        _ => Ok(()),
    }
}

/// Who receives the messages of a subscription.
struct Reader {
    credentials: Credentials,
    topic: String,
}

impl Reader {
    fn check(&self, state: &State) -> Result<(), Status> {
        let caller = state.guard.caller(&self.credentials)?;
        caller.may(Access::Read, Resource::Topic(&self.topic))
    }
}

/// Sends the messages of a subscription until the client, the topic or the server ends it.
async fn send_messages(
    state: State,
    reader: Reader,
    mut subscription: Subscription,
    sender: mpsc::Sender<Result<SubscribeResponse, Status>>,
) {
    let _counted = Subscribed::count(&state);
    let mut ends = state.ends.clone();
    let mut checks = tokio::time::interval(CHECK);
    {
        let mut batches = subscription.stream();
        loop {
            let batch = tokio::select! {
                batch = batches.next() => batch,
                () = sender.closed() => break,
                _ = checks.tick() => match reader.check(&state) {
                    Ok(()) => continue,
                    Err(refused) => {
                        let _ = sender.try_send(Err(refused));
                        break;
                    }
                },
                _ = ends.wait_for(|ends| *ends) => {
                    let ended = stopping();
                    let _ = sender.try_send(Err(ended));
                    break;
                }
            };
            let response = match batch {
                None => break,
                Some(Ok(batch)) => Ok(SubscribeResponse {
                    skipped: batch.gap().map_or(0, |gap| gap.end - gap.start),
                    messages: batch.iter().map(received).collect(),
                }),
                Some(Err(error)) => Err(failed(&error)),
            };
            let is_over = response.is_err();
            if sender.send(response).await.is_err() || is_over {
                break;
            }
        }
    }
}
