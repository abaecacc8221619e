//! What all services of a server share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use duramen::topic::{Topic, Topics};
use duramen::tree::{Tree, Trees};
use duramen::{Map, Store};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{Command, Outcome};
use duramen_proto::v1::{self, WriteOptions};
use prost::bytes::Bytes;
use tokio::sync::Semaphore;
use tonic::{Code, Request, Status};

use crate::command::{Kept, Sessions, map_not_found, tree_not_found};
use crate::error::{failed, of_refusal, status};
use crate::level::Level;
use crate::pages::Pages;
use crate::pipeline::{Answer, Pipeline};
use crate::registry::{Backups, Rooms, SessionRegistry, Watchers};
use crate::security::{Access, Caller, Credentials, Guard, Resource, Usages};

/// What the services work on. Clones share it.
#[derive(Clone)]
pub(crate) struct State {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) topics: Topics,
    pub(crate) trees: Trees,
    pub(crate) kept: Kept,
    pub(crate) stored_sessions: Sessions,
    pub(crate) pipeline: Pipeline,
    /// Room for values that arrive in parts, in bytes. It is not that of the queue: a slow client must not hold up the
    /// writes of others.
    pub(crate) arriving: Semaphore,
    pub(crate) guard: Guard,
    pub(crate) usages: Usages,
    pub(crate) default_level: Level,
    pub(crate) pages: Pages,
    pub(crate) begun: Instant,
    /// Where copies are made.
    pub(crate) copy_dir: Option<PathBuf>,
    pub(crate) backups: Backups,
    pub(crate) subscriptions: AtomicU64,
    pub(crate) watchers: Watchers,
    pub(crate) sessions: SessionRegistry,
    pub(crate) rooms: Rooms,
    /// Set once the server ends: streams end then.
    pub(crate) ends: tokio::sync::watch::Receiver<bool>,
}

impl std::ops::Deref for State {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl State {
    pub(crate) fn new(inner: Inner) -> State {
        State { inner: Arc::new(inner) }
    }

    /// Finds out who sent a request.
    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.guard.caller(&Credentials::of(request))
    }

    /// Refuses a request whose sender may not do what it asks for.
    pub(crate) fn authorize<T>(
        &self,
        request: &Request<T>,
        access: Access,
        resource: Resource<'_>,
    ) -> Result<(), Status> {
        self.caller(request)?.may(access, resource)
    }

    pub(crate) fn map(&self, name: &str) -> Result<Map, Status> {
        let map = self.store.maps().get(name).map_err(|error| failed(&error))?;
        map.ok_or_else(|| of_refusal(&map_not_found(name)))
    }

    pub(crate) fn topic(&self, name: &str) -> Result<Topic, Status> {
        let topic = self.topics.get(name).map_err(|error| failed(&error))?;
        topic.ok_or_else(|| {
            let message = format!("there is no topic {name:?}; create it with CreateTopic");
            status(Code::NotFound, "TOPIC_NOT_FOUND", message)
        })
    }

    pub(crate) fn tree(&self, name: &str) -> Result<Tree, Status> {
        let tree = self.trees.get(name).map_err(|error| failed(&error))?;
        tree.ok_or_else(|| of_refusal(&tree_not_found(name)))
    }

    /// Applies a change, and returns its outcome; a refusal is an error.
    pub(crate) async fn write(&self, change: Change, options: Option<WriteOptions>) -> Result<Led, Status> {
        self.write_at_any_level(change, options)
            .await?
            .ok_or_else(only_publishing)
    }

    /// Applies a change of the maps or topics there are. Returns whether it changed something.
    pub(crate) async fn change(
        &self,
        space: &str,
        change: Change,
        options: Option<WriteOptions>,
    ) -> Result<bool, Status> {
        check_space(space)?;
        match self.write(change, options).await? {
            Led::Changed(changed) => Ok(changed),
            other => Err(unexpected(&other)),
        }
    }

    /// As [`State::write`]; `None`: the level is that of memory.
    pub(crate) async fn write_at_any_level(
        &self,
        change: Change,
        options: Option<WriteOptions>,
    ) -> Result<Option<Led>, Status> {
        let (command, level) = self.command(change, options)?;
        match self.pipeline.submit(command, level).await? {
            Some(outcome) => led(outcome).map(Some),
            None => Ok(None),
        }
    }

    /// As [`State::write`], for a change whose bytes have room elsewhere until it is answered.
    pub(crate) async fn write_beside(&self, change: Change, options: Option<WriteOptions>) -> Result<Led, Status> {
        let (command, level) = self.command(change, options)?;
        self.pipeline.submit_beside(command, level).await.and_then(led)
    }

    /// Queues a change. The answer comes through the receiver.
    pub(crate) fn enqueue(&self, change: Change, options: Option<WriteOptions>) -> Result<Answer, Status> {
        let (command, level) = self.command(change, options)?;
        self.pipeline.enqueue(command, level)
    }

    /// Applies a change that the server makes of itself.
    pub(crate) async fn write_unasked(&self, change: Change) -> Result<Led, Status> {
        let command = Command {
            idempotency_key: Bytes::new(),
            change: Some(change),
        };
        let outcome = self.pipeline.submit(command, Level::Written).await?;
        led(outcome.unwrap_or_default())
    }

    fn command(&self, change: Change, options: Option<WriteOptions>) -> Result<(Command, Level), Status> {
        let options = options.unwrap_or_default();
        let level = Level::of(options.acknowledge, self.default_level)?;
        if level == Level::Memory && !may_be_lost(&change) {
            return Err(only_publishing());
        }
        let command = Command {
            idempotency_key: options.idempotency_key,
            change: Some(change),
        };
        Ok((command, level))
    }
}

fn only_publishing() -> Status {
    crate::error::invalid("only publishing can be acknowledged at the level MEMORY; ask for WRITTEN or SYNCED")
}

/// Whether a change only publishes.
fn may_be_lost(change: &Change) -> bool {
    use duramen_proto::v1::operation::Change as Operated;
    let Change::Commit(commit) = change else { return false };
    let publishes = |operation: &duramen_proto::v1::Operation| matches!(operation.change, Some(Operated::Publish(_)));
    let is_conditional = !(commit.conditions.is_empty() && commit.node_conditions.is_empty());
    !is_conditional && commit.otherwise.is_empty() && commit.then.iter().all(publishes)
}

/// What a command led to; a refusal is an error.
pub(crate) fn led(outcome: Outcome) -> Result<Led, Status> {
    match outcome.outcome {
        Some(Led::Refused(refusal)) => Err(of_refusal(&refusal)),
        Some(led) => Ok(led),
        None => Err(status(
            Code::Internal,
            "INTERNAL",
            "the server gave no outcome; report this",
        )),
    }
}

/// An outcome that does not belong to the command.
pub(crate) fn unexpected(led: &Led) -> Status {
    let message = format!("the command had the outcome {led:?}, which belongs to another command; report this");
    status(Code::Internal, "INTERNAL", message)
}

/// Refuses a space that does not exist.
pub(crate) fn check_space(space: &str) -> Result<(), Status> {
    if space.is_empty() {
        return Ok(());
    }
    let message = format!("there is no space {space:?}; this server has only the default space: leave the field empty");
    Err(status(Code::NotFound, "SPACE_NOT_FOUND", message))
}

/// Counts a subscription as long as it lives.
pub(crate) struct Subscribed(State);

impl Subscribed {
    pub(crate) fn count(state: &State) -> Subscribed {
        state.subscriptions.fetch_add(1, Ordering::Relaxed);
        Subscribed(state.clone())
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.0.subscriptions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message as clients get it.
pub(crate) fn received(message: duramen::topic::Received<'_>) -> v1::ReceivedMessage {
    v1::ReceivedMessage {
        offset: message.offset(),
        time_ms: message.time_millis(),
        payload: Bytes::copy_from_slice(message.payload()),
        key: message.key().map_or_else(Bytes::new, Bytes::copy_from_slice),
        headers: message
            .headers()
            .map(|(name, value)| v1::Header {
                name: name.into(),
                value: Bytes::copy_from_slice(value),
            })
            .collect(),
    }
}
