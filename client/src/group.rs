//! The calls that administer one group.

use std::time::Duration;

use duramen_proto::v1::group_options::DeadLetters;
use duramen_proto::v1::{
    self, ConfigureGroupRequest, CreateGroupRequest, DeleteGroupRequest, Filter, HeaderFilter, ListPendingRequest,
    PauseGroupRequest, PendingMessage, Position, RedriveRequest, RedriveResponse, ResetGroupRequest, position,
};

use crate::client::{Client, send};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Start, millis, millis_since_1970};

/// How a group delivers; see [`Group::create`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupOptions(pub(crate) v1::GroupOptions);

impl GroupOptions {
    /// Leases of 30 seconds. A failed message comes back after 1, 10 and 60 seconds, and then every ten minutes. After 20
    /// attempts it goes to the topic `dead.` with the name of the group's topic.
    pub fn new() -> GroupOptions {
        GroupOptions::default()
    }

    /// Longest time that a member may take for messages before the group delivers them again.
    pub fn lease(mut self, lease: Duration) -> GroupOptions {
        self.0.lease_ms = millis(lease);
        self
    }

    /// The most deliveries of a message; 0: no limit.
    pub fn tries(mut self, tries: u32) -> GroupOptions {
        self.0.tries = Some(tries);
        self
    }

    /// The most messages that members hold, or that wait for redelivery, at a time. Default: 10,000.
    pub fn in_flight(mut self, messages: u32) -> GroupOptions {
        self.0.in_flight = messages;
        self
    }

    /// How long a message waits after its first failure, its second, and so on. The last time applies to all later ones.
    pub fn back_off(mut self, times: &[Duration]) -> GroupOptions {
        self.0.back_off_ms = times.iter().copied().map(millis).collect();
        self
    }

    /// The topic for messages after their last failure. A missing topic is created.
    pub fn dead_letters(mut self, topic: impl Into<String>) -> GroupOptions {
        self.0.dead_letters = Some(DeadLetters::DeadLetterTopic(topic.into()));
        self
    }

    /// Drops messages after their last failure.
    pub fn discard_dead_letters(mut self) -> GroupOptions {
        self.0.dead_letters = Some(DeadLetters::DiscardDeadLetters(true));
        self
    }

    /// Delivers messages of one key in their order, and to one member at a time.
    pub fn order_by_key(mut self) -> GroupOptions {
        self.0.order_by_key = true;
        self
    }

    /// Delivers only messages whose key matches; `*` stands for any characters.
    pub fn filter_key(mut self, wanted: impl Into<String>) -> GroupOptions {
        self.0.filter.get_or_insert_default().key = wanted.into();
        self
    }

    /// Delivers only messages that have a header of this name whose value matches; `*` stands for any characters.
    pub fn filter_header(mut self, name: impl Into<String>, wanted: impl Into<String>) -> GroupOptions {
        let filter: &mut Filter = self.0.filter.get_or_insert_default();
        filter.headers.push(HeaderFilter {
            name: name.into(),
            value: wanted.into(),
        });
        self
    }
}

/// A handle of a group of a topic; see [`crate::Topic::group`]. The errors of its calls are those of [`crate::Error`].
#[derive(Clone)]
pub struct Group {
    pub(crate) client: Client,
    pub(crate) topic: String,
    pub(crate) name: String,
}

impl Group {
    /// Creates the group; `start` is its first message. Returns `false` when the group exists with equal options.
    ///
    /// # Errors
    /// `NotFound` when there is no such topic; `AlreadyExists` when the group has other options.
    pub async fn create(&self, start: Start, options: GroupOptions) -> Result<bool> {
        let request = CreateGroupRequest {
            topic: self.topic.clone(),
            group: self.name.clone(),
            start: Some(position(start)),
            group_options: Some(options.0),
            if_missing: true,
            options: Some(self.client.options().of_call()),
            ..CreateGroupRequest::default()
        };
        Ok(self.client.write(request, send!(topics.create_group)).await?.created)
    }

    /// Replaces all options of the group. Messages that were delivered before keep their leases.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn configure(&self, options: GroupOptions) -> Result<()> {
        let request = ConfigureGroupRequest {
            topic: self.topic.clone(),
            group: self.name.clone(),
            group_options: Some(options.0),
            options: Some(self.client.options().of_call()),
            ..ConfigureGroupRequest::default()
        };
        self.client
            .write(request, send!(topics.configure_group))
            .await
            .map(drop)
    }

    /// Deletes the group.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn delete(&self) -> Result<()> {
        let request = DeleteGroupRequest {
            topic: self.topic.clone(),
            group: self.name.clone(),
            options: Some(self.client.options().of_call()),
            ..DeleteGroupRequest::default()
        };
        self.client.write(request, send!(topics.delete_group)).await.map(drop)
    }

    /// Describes the group: its position, its lag, and how many messages are pending.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn describe(&self) -> Result<v1::GroupDescription> {
        let groups = self.client.topic(&self.topic).groups().await?;
        let found = groups.into_iter().find(|group| group.group == self.name);
        found.ok_or_else(|| {
            let message = format!("topic {:?} has no group {:?}; create it", self.topic, self.name);
            Error::new(ErrorKind::NotFound, "GROUP_NOT_FOUND", message)
        })
    }

    /// Stops to deliver messages, or goes on. Members can settle messages of a paused group.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn pause(&self, paused: bool) -> Result<()> {
        let request = PauseGroupRequest {
            topic: self.topic.clone(),
            group: self.name.clone(),
            paused,
            options: Some(self.client.options().of_call()),
            ..PauseGroupRequest::default()
        };
        self.client.write(request, send!(topics.pause_group)).await.map(drop)
    }

    /// Goes on at another message, forward or back. Members lose the messages that they hold.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn reset(&self, start: Start) -> Result<()> {
        let request = ResetGroupRequest {
            topic: self.topic.clone(),
            group: self.name.clone(),
            start: Some(position(start)),
            options: Some(self.client.options().of_call()),
            ..ResetGroupRequest::default()
        };
        self.client.write(request, send!(topics.reset_group)).await.map(drop)
    }

    /// Delivers dead letters of the group again, at most `limit`, as if for the first time; 0: all.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` when the group has no topic for dead letters.
    pub async fn redrive(&self, limit: u64) -> Result<RedriveResponse> {
        let mut options = self.client.options().of_call();
        // Each dead letter comes back once, so a repeated call needs no key.
        options.idempotency_key.clear();
        let request = RedriveRequest {
            topic: self.topic.clone(),
            group: self.name.clone(),
            limit,
            options: Some(options),
            ..RedriveRequest::default()
        };
        self.client.write(request, send!(topics.redrive)).await
    }

    /// Lists at most so many messages that members hold, or that wait for redelivery, by offset; 0: 1,000. At most 10,000.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn pending(&self, limit: u32) -> Result<Vec<PendingMessage>> {
        let request = ListPendingRequest {
            topic: self.topic.clone(),
            group: self.name.clone(),
            limit,
            ..ListPendingRequest::default()
        };
        Ok(self.client.read(request, send!(topics.list_pending)).await?.messages)
    }
}

fn position(start: Start) -> Position {
    Position {
        at: match start {
            Start::Offset(offset) => Some(position::At::Offset(offset)),
            Start::Time(time) => Some(position::At::TimeMs(millis_since_1970(time))),
            Start::Earliest => Some(position::At::Earliest(true)),
            Start::Last(messages) => Some(position::At::Last(messages)),
            Start::Next => None,
        },
    }
}
