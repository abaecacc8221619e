//! The calls on one topic.

use duramen_proto::v1::{
    ConfigureTopicRequest, DeleteTopicRequest, DescribeTopicRequest, DescribeTopicResponse, GroupDescription,
    ListGroupsRequest, PublishBatchRequest, PublishRequest, TopicOptions,
};

use crate::client::{Client, send};
use crate::error::Result;
use crate::group::Group;
use crate::options::{Message, Start, WriteOptions};
use crate::publisher::Publisher;
use crate::subscription::Subscription;

/// A handle of a topic; see [`Client::topic`]. The errors of its calls are those of [`crate::Error`].
#[derive(Clone)]
pub struct Topic {
    client: Client,
    name: String,
}

impl Topic {
    pub(crate) fn new(client: Client, name: String) -> Topic {
        Topic { client, name }
    }

    /// A handle whose writes have these options.
    pub fn with(&self, options: WriteOptions) -> Topic {
        Topic::new(self.client.with(options), self.name.clone())
    }

    /// Publishes a message and returns its offset. `None`: the level is `Acknowledge::Memory`.
    ///
    /// # Errors
    /// `NotFound` when there is no such topic; `UnknownOutcome` when the answer did not arrive.
    pub async fn publish(&self, message: impl Into<Message>) -> Result<Option<u64>> {
        let request = PublishRequest {
            topic: self.name.clone(),
            message: Some(message.into().0),
            options: Some(self.client.options().of_call()),
            ..PublishRequest::default()
        };
        Ok(self.client.write(request, send!(topics.publish)).await?.offset)
    }

    /// Publishes messages in one commit: all or none. Returns the offset of the first one; the others follow it
    /// without gaps. `None`: the level is `Acknowledge::Memory`.
    ///
    /// # Errors
    /// `NotFound` when there is no such topic; `UnknownOutcome` when the answer did not arrive.
    pub async fn publish_batch<M: Into<Message>>(&self, messages: impl IntoIterator<Item = M>) -> Result<Option<u64>> {
        let request = PublishBatchRequest {
            topic: self.name.clone(),
            messages: messages.into_iter().map(|message| message.into().0).collect(),
            options: Some(self.client.options().of_call()),
            ..PublishBatchRequest::default()
        };
        Ok(self
            .client
            .write(request, send!(topics.publish_batch))
            .await?
            .first_offset)
    }

    /// Opens a stream that publishes many messages without waiting for each.
    ///
    /// # Errors
    /// `DeadlineExceeded` when the client cannot connect in time. A missing topic is an error of the first message.
    pub async fn publisher(&self) -> Result<Publisher> {
        Publisher::open(&self.client, &self.name).await
    }

    /// Opens a stream of the topic's messages. It resumes by itself when the connection breaks or the server restarts:
    /// no message is lost, and none arrives twice.
    ///
    /// # Errors
    /// `NotFound` when there is no such topic; `DeadlineExceeded` when the client cannot connect in time.
    pub async fn subscribe(&self, start: Start) -> Result<Subscription> {
        // A start that depends on the topic's end is turned into an offset first. After a break it would be another place.
        let start = match start {
            Start::Next => Start::Offset(self.describe().await?.next_offset),
            Start::Last(messages) => Start::Offset(self.describe().await?.next_offset.saturating_sub(messages)),
            fixed => fixed,
        };
        Subscription::open(self.client.clone(), self.name.clone(), start).await
    }

    /// A handle of a group of this topic. This makes no call.
    pub fn group(&self, name: impl Into<String>) -> Group {
        Group {
            client: self.client.clone(),
            topic: self.name.clone(),
            name: name.into(),
        }
    }

    /// Describes the groups and durable subscriptions of the topic, in the order of their names.
    ///
    /// # Errors
    /// `NotFound` when there is no such topic.
    pub async fn groups(&self) -> Result<Vec<GroupDescription>> {
        let request = ListGroupsRequest {
            topic: self.name.clone(),
            ..ListGroupsRequest::default()
        };
        Ok(self.client.read(request, send!(topics.list_groups)).await?.groups)
    }

    /// Describes the topic.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn describe(&self) -> Result<DescribeTopicResponse> {
        let request = DescribeTopicRequest {
            topic: self.name.clone(),
            ..DescribeTopicRequest::default()
        };
        self.client.read(request, send!(topics.describe_topic)).await
    }

    /// Replaces all options of the topic.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn configure(&self, options: TopicOptions) -> Result<()> {
        let request = ConfigureTopicRequest {
            topic: self.name.clone(),
            topic_options: Some(options),
            options: Some(self.client.options().of_call()),
            ..ConfigureTopicRequest::default()
        };
        self.client
            .write(request, send!(topics.configure_topic))
            .await
            .map(drop)
    }

    /// Deletes the topic with its messages.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn delete(&self) -> Result<()> {
        let request = DeleteTopicRequest {
            topic: self.name.clone(),
            options: Some(self.client.options().of_call()),
            ..DeleteTopicRequest::default()
        };
        self.client.write(request, send!(topics.delete_topic)).await.map(drop)
    }
}
