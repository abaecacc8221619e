//! The handle of a topic: publishing to it and reading it.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use duramen_engine::{Batch, CommitFuture, Durability, Item, Result, Sequence, Snapshot, Stamp, Transaction};

use crate::admission::KnownOptions;
use crate::delayed::{self, Scheduled};
use crate::error::TopicError;
use crate::follower::SubscribeOptions;
use crate::group::{Deliveries, Delivery, Durable, Verdict};
use crate::ids;
use crate::message::{Encoded, Message};
use crate::messages::Messages;
use crate::publisher::Publisher;
use crate::read::{ReadLimits, Reading, Start};
use crate::record::TopicOptions;
use crate::retention;
use crate::subscription::Subscription;
use crate::time::{at, since_epoch};
use crate::topics::{Home, Topics};

/// A topic: an ordered, durable sequence of messages. Clones are handles of the same topic.
///
/// Every method that publishes makes its own commit, with the durability of the handle ([`Topic::with_durability`]). To
/// publish together with other writes see [`TopicBatch`] and [`TopicWrites`].
#[derive(Clone)]
pub struct Topic {
    home: Home,
    shared: Arc<Shared>,
    durability: Durability,
}

/// State that the handles of one topic in this process share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    pub(crate) sequence: Sequence,
    /// No message before this offset is kept.
    pub(crate) first_hint: AtomicU64,
    pub(crate) known: KnownOptions,
}

impl Shared {
    pub(crate) fn new(id: u32, name: &str, sequence: Sequence) -> Shared {
        Shared {
            id,
            name: name.into(),
            sequence,
            first_hint: AtomicU64::new(0),
            known: KnownOptions::default(),
        }
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic")
            .field("name", &self.shared.name)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

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

/// State and options of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicDescription {
    /// Name of the topic.
    pub name: String,
    /// Time when the topic was created.
    pub created: SystemTime,
    /// Options of the topic.
    pub options: TopicOptions,
    /// Offset of the first message that is kept; `next` when no message is kept.
    pub first: u64,
    /// Offset of the next message.
    pub next: u64,
    /// Bytes of the messages that are kept, as [`TopicOptions::keep_bytes`] counts them. Messages that are missing
    /// between them count.
    pub bytes: u64,
    /// Time when the newest message was published.
    pub newest: Option<SystemTime>,
}

impl TopicDescription {
    /// Number of kept messages. Missing messages between them count too. They occur in a topic that removes single
    /// messages (see [`TopicOptions::message_expiry`]), or that was salvaged from a damaged store.
    pub fn messages(&self) -> u64 {
        self.next - self.first
    }
}

thread_local! {
    /// Buffer for the stored form of a single message.
    static HEAD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Topic {
    pub(crate) fn new(home: &Home, shared: Arc<Shared>) -> Topic {
        Topic {
            home: home.clone(),
            shared,
            durability: home.store.default_durability(),
        }
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The topics of the same store.
    pub fn topics(&self) -> Topics {
        Topics::of(&self.home)
    }

    /// Name of the topic.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns a handle of the topic whose commits have another durability.
    pub fn with_durability(&self, durability: Durability) -> Topic {
        Topic {
            durability,
            ..self.clone()
        }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    /// Publishes a message. Publishers of a topic never conflict. The message is visible to subscribers as soon as it
    /// is written, whatever the durability.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`], [`TopicError::PublisherHeldBack`], [`TopicError::TopicFull`],
    /// [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn publish<'m>(&self, message: impl Into<Message<'m>>) -> Result<Published> {
        self.home.store.refuse_beside("topic.publish", self.name())?;
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
        self.home.store.refuse_beside("topic.publish", self.name())?;
        self.with_item(&message.into(), |item| {
            self.admit(&[item])?;
            let (stamp, future) = self.shared.sequence.append_async(&[item], self.durability)?;
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
        self.home.store.refuse_beside("topic.publish", self.name())?;
        self.wait_for_brakes()?;
        Ok(Some(Published::of(self.append_admitted(&items)?)))
    }

    /// Returns a publisher whose messages are published once, however often it retries.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`] when its name is too long.
    pub fn publisher(&self, name: &str) -> Result<Publisher> {
        Publisher::new(self, name)
    }

    /// A snapshot of the topic's store.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.home.store.snapshot()
    }

    /// Reads up to `messages` existing messages, starting at `start`. A read also ends after a megabyte, and before
    /// messages that were lost through damage. It returns at least one message, whatever its length, if there is one.
    ///
    /// # Errors
    /// [`TopicError::Trimmed`], [`TopicError::NotYetPublished`], [`duramen_engine::Reason::TopicDeleted`].
    pub fn read(&self, start: Start, messages: usize) -> Result<Messages> {
        let snapshot = self.snapshot()?;
        let reading = Reading::new(self, &snapshot);
        let limits = ReadLimits {
            messages,
            ..ReadLimits::default()
        };
        reading.read(reading.resolve(start)?, limits, None)
    }

    /// Returns the state and the options of the topic.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`].
    pub fn describe(&self) -> Result<TopicDescription> {
        let snapshot = self.snapshot()?;
        let reading = Reading::new(self, &snapshot);
        let bounds = reading.bounds()?;
        let record = self.home.record(&snapshot, &self.shared.name)?;
        let state = bounds.state;
        let bytes = match bounds.first < state.next {
            true => state.bytes - crate::message::Stored::decode(&reading.head(bounds.first)?)?.position,
            false => 0,
        };
        Ok(TopicDescription {
            name: self.name().into(),
            created: at(record.created),
            options: record.options,
            first: bounds.first,
            next: state.next,
            bytes,
            newest: (state.next > 0).then(|| at(state.time)),
        })
    }

    /// Replaces all options of the topic. To keep some options, start with those that [`Topic::describe`] returns.
    ///
    /// # Errors
    /// [`TopicError::InvalidOptions`], [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn configure(&self, options: TopicOptions) -> Result<()> {
        self.home.configure(self, options)
    }

    /// Deletes now what retention no longer keeps. Otherwise the background deletes it. Returns the number of deleted
    /// messages.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn trim(&self) -> Result<u64> {
        retention::trim(self)
    }

    /// Creates a subscription that belongs to this process and ends with it.
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`duramen_engine::Reason::TopicDeleted`].
    pub fn subscribe(&self, start: Start) -> Result<Subscription> {
        self.subscribe_with(start, SubscribeOptions::new())
    }

    /// Creates a subscription with options; see [`Topic::subscribe`].
    ///
    /// # Errors
    /// As [`Topic::subscribe`], [`TopicError::InvalidOptions`].
    pub fn subscribe_with(&self, start: Start, options: SubscribeOptions) -> Result<Subscription> {
        Subscription::new(self, start, options)
    }
}

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
            let ticket = self.append_to(&topic.shared.sequence, item)?;
            Ok(Ticket { ticket })
        })
    }
}

impl TopicWrites for Transaction {
    fn publish<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Ticket> {
        publish_in(self, topic, &message.into())
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
        ids::publish_in(self, topic, &message.into())
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
        let ticket = tx.append_to(&topic.shared.sequence, item)?;
        Ok(Ticket { ticket })
    })
}

/// Publishes in a transaction. Nothing that holds back other publishers applies to it.
pub(crate) fn publish_unhindered_in(tx: &mut Transaction, topic: &Topic, message: &Message<'_>) -> Result<()> {
    let mut head = Vec::new();
    let body = message.encode(&mut head)?;
    let item = Item { head: &head, body };
    tx.append_to(&topic.shared.sequence, item).map(|_| ())
}

impl Topic {
    /// Offset of the next message, as far as it is known.
    pub(crate) fn next(&self) -> Result<u64> {
        let snapshot = self.snapshot()?;
        Ok(Reading::new(self, &snapshot).state()?.next)
    }

    /// Raises the hint for the first offset of the topic.
    pub(crate) fn trimmed_to(&self, first: u64) {
        self.shared.first_hint.fetch_max(first, Ordering::Relaxed);
    }

    pub(crate) fn unknown_group(&self, name: &str) -> duramen_engine::Error {
        let (topic, name) = (self.name().into(), name.into());
        TopicError::UnknownGroup { topic, name }.into()
    }
}
