//! A member of a group that is on the other side of the network.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duramen::topic::{Group, GroupWatch, Topic};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{Command, Lease, Leased};
use duramen_proto::v1::Delivered;
use prost::bytes::Bytes;
use tokio::sync::Notify;
use tonic::Status;

use crate::error::failed;
use crate::level::Level;
use crate::state::{State, led, received, unexpected};

/// The longest time between two looks at a group.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How soon a member looks again when too many messages are in flight. Members of other processes make room without word.
const FULL: Duration = Duration::from_millis(50);
/// How soon a member looks again when it did not get what seemed to be there.
const MISSED: Duration = Duration::from_millis(20);

/// What the leases of a member belong to.
#[derive(Clone)]
pub(crate) struct Holder {
    /// The session; empty: none.
    pub(crate) session: Bytes,
    /// The stream of the session that gets the messages; 0: none.
    pub(crate) stream: u64,
}

/// A member of a group, for a client.
pub(crate) struct RemoteMember {
    state: State,
    topic: Topic,
    group: Group,
    name: String,
    holder: Holder,
    watch: GroupWatch,
    room: Arc<Notify>,
    prefers_new: bool,
}

/// Messages that a member received.
pub(crate) struct Received {
    pub(crate) lease: Bytes,
    pub(crate) deadline_ms: u64,
    pub(crate) messages: Vec<Delivered>,
}

impl RemoteMember {
    pub(crate) fn new(
        state: &State,
        (topic, group): (&str, &str),
        name: String,
        holder: Holder,
    ) -> Result<RemoteMember, Status> {
        let topic = state.topic(topic)?;
        let group = topic.existing_group(group).map_err(|error| failed(&error))?;
        Ok(RemoteMember {
            state: state.clone(),
            watch: GroupWatch::new(&group),
            room: state.rooms.of(topic.name(), group.name()),
            topic,
            group,
            name,
            holder,
            prefers_new: false,
        })
    }

    /// Receives messages, at most `most`, as soon as there are any. `None`: there were none in the time of `wait`. When the
    /// future is dropped while a lease is being made, the messages come back when the lease or the session ends.
    pub(crate) async fn receive(&mut self, most: u32, wait: Option<Duration>) -> Result<Option<Received>, Status> {
        let until = wait.map(|wait| Instant::now() + wait);
        loop {
            // Before the look, so that what is committed after it wakes this task.
            self.watch.arm();
            let room = self.room.clone();
            let made_room = room.notified();
            let next = self.group.next_event().map_err(|error| failed(&error))?;
            let due_in = self.group.time_until(next);
            let left = until.map_or(LOOK_AGAIN, |until| until.saturating_duration_since(Instant::now()));
            if !due_in.is_zero() {
                if left.is_zero() {
                    return Ok(None);
                }
                self.changed(due_in.min(left).min(LOOK_AGAIN)).await;
                continue;
            }
            let leased = self.lease(most).await?;
            if !leased.offsets.is_empty() {
                if let Some(received) = self.read(leased)? {
                    return Ok(Some(received));
                }
                continue;
            }
            if left.is_zero() {
                return Ok(None);
            }
            if leased.full {
                tokio::select! {
                    () = made_room => {}
                    () = tokio::time::sleep(FULL.min(left)) => {}
                }
            } else {
                self.changed(MISSED.min(left)).await;
            }
        }
    }

    /// Waits until something was committed, at most for a time.
    async fn changed(&self, wait: Duration) {
        tokio::select! {
            () = poll_fn(|context| self.watch.poll_changed(context)) => {}
            () = tokio::time::sleep(wait) => {}
        }
    }

    async fn lease(&mut self, most: u32) -> Result<Leased, Status> {
        // New messages and those that are delivered again take turns, so neither holds the others up.
        self.prefers_new = !self.prefers_new;
        let lease = Lease {
            topic: self.topic.name().into(),
            group: self.group.name().into(),
            member: self.name.clone(),
            token: self.state.store.random_number(),
            messages: most,
            prefers_new: self.prefers_new,
            session: self.holder.session.clone(),
            stream: self.holder.stream,
        };
        let command = Command {
            idempotency_key: Bytes::new(),
            change: Some(Change::Lease(lease)),
        };
        // A power cut ends leases anyway.
        let outcome = self.state.pipeline.submit(command, Level::Written).await?;
        match outcome.map(led).transpose()? {
            Some(Led::Leased(leased)) => Ok(leased),
            other => Err(unexpected(&other.unwrap_or(Led::Changed(false)))),
        }
    }

    /// Reads leased messages; `None`: retention deleted all of them meanwhile. Their lease then ends at its deadline.
    fn read(&self, leased: Leased) -> Result<Option<Received>, Status> {
        let messages = self.topic.read_some(&leased.offsets).map_err(|error| failed(&error))?;
        let mut tries = leased.offsets.iter().zip(&leased.tries);
        let delivered = messages.iter().map(|message| {
            let tries = tries.find(|(offset, _)| **offset == message.offset());
            Delivered {
                tries: tries.map_or(1, |(_, tries)| *tries),
                message: Some(received(message)),
            }
        });
        let messages: Vec<_> = delivered.collect();
        let received = Received {
            lease: leased.lease,
            deadline_ms: leased.deadline_ms,
            messages,
        };
        Ok((!received.messages.is_empty()).then_some(received))
    }
}
