//! Publishing messages to a topic.

use std::cell::RefCell;
use std::time::SystemTime;

use duramen_engine::{CommitFuture, Item, Result, Stamp, Transaction};

use crate::error::TopicError;
use crate::handle::Topic;
use crate::message::{Encoded, Message};
use crate::time::at;

/// Offset and time of a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Offset of the message in the topic.
    pub offset: u64,
    time: u64,
}

impl Published {
    fn of(stamp: Stamp) -> Published {
        Published {
            offset: stamp.number,
            time: stamp.time,
        }
    }

    /// Time of publication.
    pub fn time(&self) -> SystemTime {
        at(self.time)
    }
}

/// A message that a transaction or a batch published. It knows the offset once the transaction or batch has committed.
#[derive(Clone, Debug)]
pub struct Ticket {
    ticket: duramen_engine::Ticket,
}

impl Ticket {
    pub(crate) fn of(ticket: duramen_engine::Ticket) -> Ticket {
        Ticket { ticket }
    }

    /// Offset and time of the message. `None` until the transaction or the batch has committed. It stays `None` if the
    /// transaction or batch never commits, or if the message was rolled back.
    pub fn published(&self) -> Option<Published> {
        self.ticket.stamp().map(Published::of)
    }

    /// The offset of the message. `None` in the same cases as [`Ticket::published`].
    pub fn offset(&self) -> Option<u64> {
        self.published().map(|published| published.offset)
    }
}

/// Result of publishing a message at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was published now.
    Published(Published),
    /// It was published before. The offset is known for the publisher's newest message, and for a message with an id,
    /// while the topic keeps them.
    Duplicate(Option<u64>),
}

thread_local! {
    /// Buffer for the stored form of a single message.
    static HEAD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Topic {
    /// Publishes a message. Publishers of a topic never conflict. The message is visible to subscribers as soon as it
    /// is written, whatever the durability.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`], [`TopicError::PublisherHeldBack`], [`TopicError::TopicFull`],
    /// [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn publish<'m>(&self, message: impl Into<Message<'m>>) -> Result<Published> {
        self.home().store.refuse_beside("topic.publish", self.name())?;
        self.with_item(&message.into(), |item| {
            Ok(Published::of(self.append_admitted(&[item])?))
        })
    }

    /// Publishes a message. It is visible when this returns. The future resolves when the message is durable, and runs
    /// on any executor.
    ///
    /// # Errors
    /// As [`Topic::publish`], except for sync errors: the future returns those.
    pub fn publish_async<'m>(&self, message: impl Into<Message<'m>>) -> Result<(Published, CommitFuture)> {
        self.home().store.refuse_beside("topic.publish", self.name())?;
        self.with_item(&message.into(), |item| {
            self.admit(&[item])?;
            let (stamp, future) = self.shared().sequence.append_async(&[item], self.durability())?;
            Ok((Published::of(stamp), future))
        })
    }

    pub(crate) fn with_item<T>(&self, message: &Message<'_>, append: impl FnOnce(Item<'_>) -> Result<T>) -> Result<T> {
        refuse_id(message)?;
        self.with_any_item(message, append)
    }

    /// Encodes a message and passes it to `append`. Accepts ids: the caller checks for duplicates.
    pub(crate) fn with_any_item<T>(
        &self,
        message: &Message<'_>,
        append: impl FnOnce(Item<'_>) -> Result<T>,
    ) -> Result<T> {
        self.check_parts(message)?;
        let mut head = HEAD.with(RefCell::take);
        head.clear();
        let appended = message.encode(&mut head).and_then(|body| {
            self.wait_for_brakes()?;
            append(Item { head: &head, body })
        });
        HEAD.with(|kept| kept.replace(head));
        appended
    }

    /// Publishes several messages in one commit: their offsets are consecutive, and all or none of them are published.
    /// Returns the offset and time of the first message; `None` without messages.
    ///
    /// # Errors
    /// As [`Topic::publish`].
    pub fn publish_all<'m>(&self, messages: impl IntoIterator<Item: Into<Message<'m>>>) -> Result<Option<Published>> {
        let mut encoded = Encoded::default();
        messages.into_iter().try_for_each(|message| {
            let message = message.into();
            refuse_id(&message)?;
            self.check_parts(&message)?;
            encoded.push(&message)
        })?;
        let items = encoded.items();
        if items.is_empty() {
            return Ok(None);
        }
        self.home().store.refuse_beside("topic.publish", self.name())?;
        self.wait_for_brakes()?;
        Ok(Some(Published::of(self.append_admitted(&items)?)))
    }
}

/// Refuses a message with an id in calls that do not check for duplicates.
fn refuse_id(message: &Message<'_>) -> Result<()> {
    match message.given_id() {
        None => Ok(()),
        Some(_) => {
            let cause = "it has an id, and this call looks for no duplicates; call publish_by_id";
            Err(TopicError::InvalidMessage { cause }.into())
        }
    }
}

/// Publishes in a transaction.
pub(crate) fn publish_in(tx: &mut Transaction, topic: &Topic, message: &Message<'_>) -> Result<Ticket> {
    topic.with_item(message, |item| {
        topic.admit_in(tx, &[item])?;
        let ticket = tx.append_to(&topic.shared().sequence, item)?;
        Ok(Ticket { ticket })
    })
}
