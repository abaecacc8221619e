//! Writes to topics in transactions and batches.

use std::time::{Duration, SystemTime};

use duramen_engine::{Batch, Reason, Result, Transaction};

use crate::delayed::{self, Scheduled};
use crate::group::{Deliveries, Delivery, Durable, Verdict};
use crate::handle::Topic;
use crate::message::Message;
use crate::publish::{Ticket, publish_in};
use crate::publish_by_id;
use crate::publisher::Publisher;
use crate::time::since_epoch;

/// Writes to topics in a transaction. They take effect when it commits, all or none, together with its other writes.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{TopicOptions, TopicWrites, Topics};
///
/// let stock = store.map("stock")?;
/// let sold = Topics::open(&store)?.create("sold", TopicOptions::new())?;
/// let ticket = store.transact(|tx| {
///     tx.put(&stock, b"apples", b"11")?;
///     tx.publish(&sold, b"one apple")
/// })?;
/// assert_eq!(ticket.offset(), Some(0));
/// # Ok::<(), duramen_engine::Error>(())
/// ```
pub trait TopicWrites {
    /// Publishes a message when the transaction commits. The message never conflicts with other publishers. The
    /// transaction itself does not see it.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`], [`TopicError::PublisherHeldBack`], [`TopicError::TopicFull`], and those of
    /// [`Transaction::put`]. If the topic is deleted before the commit, the commit fails with
    /// [`duramen_engine::Reason::TopicDeleted`].
    fn publish<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Ticket>;

    /// Publishes messages one after the other, as [`TopicWrites::publish`] does. If a message fails and the transaction
    /// still commits, the messages before it are published.
    ///
    /// # Errors
    /// As for a single message.
    fn publish_all<'m>(
        &mut self,
        topic: &Topic,
        messages: impl IntoIterator<Item: Into<Message<'m>>>,
    ) -> Result<Vec<Ticket>> {
        messages
            .into_iter()
            .map(|message| self.publish(topic, message))
            .collect()
    }

    /// The offset that the next message of a topic gets, without those that this transaction has published. In an exclusive
    /// transaction no other writer publishes before the commit, so the transaction's first message gets this offset, and
    /// the others follow.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`].
    fn next_offset(&self, topic: &Topic) -> Result<u64>;

    /// How many messages this transaction has published to a topic, dead letters of groups included. The cost grows with all
    /// that it has published.
    #[doc(hidden)]
    fn published_to(&self, topic: &Topic) -> u64;

    /// Publishes a message of a publisher. `None`: a message with this sequence or a higher one was published before.
    ///
    /// # Errors
    /// As [`TopicWrites::publish`].
    fn publish_once<'m>(
        &mut self,
        publisher: &Publisher,
        sequence: u64,
        message: impl Into<Message<'m>>,
    ) -> Result<Option<Ticket>>;

    /// Publishes a message that has an id. `None`: a message with this id was published within the window of the topic
    /// ([`TopicOptions::deduplicate_for`]). If two concurrent transactions publish the same id, one of them conflicts,
    /// and finds the duplicate when it runs again.
    ///
    /// # Errors
    /// As [`TopicWrites::publish`]; [`TopicError::InvalidMessage`] when the message has no id,
    /// [`TopicError::OptionMissing`] when the topic has no window.
    fn publish_by_id<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Option<Ticket>>;

    /// Schedules a message for a later time when the transaction commits (see [`Topic::publish_at`]).
    ///
    /// # Errors
    /// As [`TopicWrites::publish`].
    fn publish_at<'m>(&mut self, topic: &Topic, time: SystemTime, message: impl Into<Message<'m>>)
    -> Result<Scheduled>;

    /// Cancels a delayed message when the transaction commits. `false`: the message was published or cancelled before,
    /// or belongs to another topic. A transaction that is too late conflicts, and returns `false` when it runs again.
    ///
    /// # Errors
    /// Those of [`Transaction::delete`].
    fn cancel(&mut self, topic: &Topic, scheduled: &Scheduled) -> Result<bool>;

    /// Acknowledges a message that a group delivered, atomically with the transaction's other writes.
    ///
    /// # Errors
    /// [`TopicError::LeaseLost`], [`TopicError::AlreadySettled`], [`TopicError::GroupDeleted`]. If the lease
    /// is taken back before the commit, the commit conflicts. When the transaction runs again, it gets one of these
    /// errors.
    fn acknowledge(&mut self, delivery: &Delivery) -> Result<()>;

    /// Acknowledges messages that were delivered together.
    ///
    /// # Errors
    /// As [`TopicWrites::acknowledge`].
    fn acknowledge_all(&mut self, deliveries: &Deliveries) -> Result<()>;

    /// Marks a message as failed, atomically with the transaction's other writes. The group delivers it again after
    /// `delay`, or after the time in the group's back-off list. After the last attempt it goes to the dead-letter
    /// topic. `why` is kept for people to read, cut after 512 bytes.
    ///
    /// # Errors
    /// As [`TopicWrites::acknowledge`].
    fn retry(&mut self, delivery: &Delivery, delay: Option<Duration>, why: &str) -> Result<()>;

    /// Sends a message to the dead-letter topic, atomically with the transaction's other writes.
    ///
    /// # Errors
    /// As [`TopicWrites::acknowledge`].
    fn give_up(&mut self, delivery: &Delivery, why: &str) -> Result<()>;

    /// Releases messages that were delivered together: the group delivers them again at once, and this attempt does not
    /// count.
    ///
    /// # Errors
    /// As [`TopicWrites::acknowledge`].
    fn release(&mut self, deliveries: &Deliveries) -> Result<()>;

    /// Acknowledges every message up to and including `offset` for a durable subscription.
    ///
    /// # Errors
    /// [`TopicError::AlreadySettled`], [`TopicError::NotReceived`], [`TopicError::GroupDeleted`].
    fn acknowledge_through(&mut self, durable: &Durable, offset: u64) -> Result<()>;
}

/// Publishing in a [`Batch`]: the message is published when the batch commits, atomically with everything else in it. A
/// batch reads nothing and never conflicts, so it costs less than a transaction.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_engine::Batch;
/// use duramen_topic::{TopicBatch, TopicOptions, Topics};
///
/// let orders = store.map("orders")?;
/// let placed = Topics::open(&store)?.create("placed", TopicOptions::new())?;
/// let mut batch = Batch::new();
/// batch.put(&orders, b"order-7", b"two apples")?;
/// let ticket = batch.publish(&placed, b"order-7")?;
/// store.write(batch)?;
/// assert_eq!(ticket.offset(), Some(0));
/// # Ok::<(), duramen_engine::Error>(())
/// ```
pub trait TopicBatch {
    /// Publishes a message when the batch is committed. Messages of a batch get their offsets in the order of the
    /// calls.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`], [`TopicError::PublisherHeldBack`], [`TopicError::TopicFull`], and those of
    /// [`Batch::put`]. If the topic is deleted before the commit, the commit fails with
    /// [`duramen_engine::Reason::TopicDeleted`].
    fn publish<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Ticket>;

    /// Publishes messages one after the other, as [`TopicBatch::publish`] does. If a message fails and the batch is
    /// still committed, the messages before it are published.
    ///
    /// # Errors
    /// As for a single message.
    fn publish_all<'m>(
        &mut self,
        topic: &Topic,
        messages: impl IntoIterator<Item: Into<Message<'m>>>,
    ) -> Result<Vec<Ticket>> {
        messages
            .into_iter()
            .map(|message| self.publish(topic, message))
            .collect()
    }
}

impl TopicBatch for Batch {
    fn publish<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Ticket> {
        topic.with_item(&message.into(), |item| {
            topic.admit(&[item])?;
            let ticket = self.append_to(&topic.shared().sequence, item)?;
            Ok(Ticket::of(ticket))
        })
    }
}

impl TopicWrites for Transaction {
    fn publish<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Ticket> {
        publish_in(self, topic, &message.into())
    }

    fn next_offset(&self, topic: &Topic) -> Result<u64> {
        let state = self.sequence_state(&topic.shared().sequence)?;
        let name = || topic.name().into();
        state
            .map(|state| state.next)
            .ok_or_else(|| Reason::TopicDeleted { name: name() }.into())
    }

    fn published_to(&self, topic: &Topic) -> u64 {
        self.appended_to(&topic.shared().sequence)
    }

    fn publish_once<'m>(
        &mut self,
        publisher: &Publisher,
        sequence: u64,
        message: impl Into<Message<'m>>,
    ) -> Result<Option<Ticket>> {
        publisher.publish_in(self, sequence, message.into())
    }

    fn publish_by_id<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Option<Ticket>> {
        publish_by_id::publish_in(self, topic, &message.into())
    }

    fn publish_at<'m>(
        &mut self,
        topic: &Topic,
        time: SystemTime,
        message: impl Into<Message<'m>>,
    ) -> Result<Scheduled> {
        delayed::schedule_in(self, topic, delayed::whole_millis(since_epoch(time)), &message.into())
    }

    fn cancel(&mut self, topic: &Topic, scheduled: &Scheduled) -> Result<bool> {
        delayed::cancel_in(self, topic, scheduled)
    }

    fn acknowledge(&mut self, delivery: &Delivery) -> Result<()> {
        delivery.settle_in(self, Verdict::Done)
    }

    fn acknowledge_all(&mut self, deliveries: &Deliveries) -> Result<()> {
        deliveries.acknowledge_in(self)
    }

    fn retry(&mut self, delivery: &Delivery, delay: Option<Duration>, why: &str) -> Result<()> {
        delivery.settle_in(self, Verdict::Retry { delay, error: why })
    }

    fn give_up(&mut self, delivery: &Delivery, why: &str) -> Result<()> {
        delivery.settle_in(self, Verdict::GiveUp { error: why })
    }

    fn release(&mut self, deliveries: &Deliveries) -> Result<()> {
        deliveries.release_in(self)
    }

    fn acknowledge_through(&mut self, durable: &Durable, offset: u64) -> Result<()> {
        durable.acknowledge_in(self, offset)
    }
}
