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
/// Every method that publishes is a commit of its own, with the durability of the handle ([`Topic::with_durability`]); to
/// publish together with other writes see [`TopicBatch`] and [`TopicWrites`].
#[derive(Clone)]
pub struct Topic {
    home: Home,
    shared: Arc<Shared>,
    durability: Durability,
}

/// What the handles of one topic in this process share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    pub(crate) sequence: Sequence,
    /// No message before this one is kept.
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

/// Where a message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its offset in the topic.
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

    /// When it was published.
    pub fn time(&self) -> SystemTime {
        at(self.time)
    }
}

/// What a transaction or a batch published; it knows the offset once that has committed.
#[derive(Clone, Debug)]
pub struct Ticket {
    ticket: duramen_engine::Ticket,
}

impl Ticket {
    pub(crate) fn of(ticket: duramen_engine::Ticket) -> Ticket {
        Ticket { ticket }
    }

    /// Where the message went. `None` as long as the transaction or the batch has not committed, and for ever if it does
    /// not, or if what it published was rolled back.
    pub fn published(&self) -> Option<Published> {
        self.ticket.stamp().map(Published::of)
    }

    /// The offset of the message, on the same terms.
    pub fn offset(&self) -> Option<u64> {
        self.published().map(|published| published.offset)
    }
}

/// What a topic has and keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicDescription {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: SystemTime,
    /// What it keeps.
    pub options: TopicOptions,
    /// Offset of the first message that is kept; `next` when none is.
    pub first: u64,
    /// Offset of the next message.
    pub next: u64,
    /// Bytes of the messages that are kept, as [`TopicOptions::keep_bytes`] counts them: those that are missing between them
    /// count.
    pub bytes: u64,
    /// When the newest message was published.
    pub newest: Option<SystemTime>,
}

impl TopicDescription {
    /// Messages that are kept; and those that are missing between them, in a topic that removes messages from the middle (see
    /// [`TopicOptions::message_expiry`]), or that was saved from a damaged store.
    pub fn messages(&self) -> u64 {
        self.next - self.first
    }
}

thread_local! {
    /// The stored form of a single message is put together here.
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

    /// The topics of its store.
    pub fn topics(&self) -> Topics {
        Topics::of(&self.home)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// A handle of the same topic whose commits have another durability.
    pub fn with_durability(&self, durability: Durability) -> Topic {
        Topic {
            durability,
            ..self.clone()
        }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    /// Publishes a message. Publishers of a topic never conflict, and the message is visible to subscribers as soon as it
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

    /// Publishes a message; it is visible when this returns, and the future resolves when it lasts. Any executor will do.
    ///
    /// # Errors
    /// As [`Topic::publish`], but for what comes up while syncing: that is the future's.
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

    /// [`Topic::with_item`] for a caller that looks for duplicates.
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

    /// Publishes several messages in one commit: their offsets follow each other, and all or none of them are there.
    /// Returns where the first one went; `None` without messages.
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

    /// A publisher whose messages are published once, however often he tries.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`] when his name is too long.
    pub fn publisher(&self, name: &str) -> Result<Publisher> {
        Publisher::new(self, name)
    }

    /// A snapshot of the topic's store.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.home.store.snapshot()
    }

    /// Up to so many messages from a place on, as far as they are there now. A read also ends after a megabyte, and before
    /// messages that were lost in an accident, and returns at least one message, whatever its length, unless there is none.
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

    /// What the topic has and keeps.
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

    /// Changes what the topic keeps, to all of these options. To keep some as they are, begin with those that
    /// [`Topic::describe`] returns.
    ///
    /// # Errors
    /// [`TopicError::InvalidOptions`], [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn configure(&self, options: TopicOptions) -> Result<()> {
        self.home.configure(self, options)
    }

    /// Lets go now of what the topic does not have to keep, which otherwise happens in the background. Returns how many
    /// messages went.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn trim(&self) -> Result<u64> {
        retention::trim(self)
    }

    /// A subscription of this process alone, which ends with it.
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`duramen_engine::Reason::TopicDeleted`].
    pub fn subscribe(&self, start: Start) -> Result<Subscription> {
        self.subscribe_with(start, SubscribeOptions::new())
    }

    /// [`Topic::subscribe`] with options.
    ///
    /// # Errors
    /// As [`Topic::subscribe`], [`TopicError::InvalidOptions`].
    pub fn subscribe_with(&self, start: Start, options: SubscribeOptions) -> Result<Subscription> {
        Subscription::new(self, start, options)
    }
}

/// Writes to topics in a transaction: they are made when it commits, all or none, together with everything else that it
/// writes.
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
    /// Publishes a message when the transaction commits. It never conflicts with other publishers, and the transaction
    /// itself does not see it.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`], [`TopicError::PublisherHeldBack`], [`TopicError::TopicFull`], and those of [`Transaction::put`]. If the topic
    /// is deleted before the commit, that ends with [`duramen_engine::Reason::TopicDeleted`].
    fn publish<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Ticket>;

    /// Publishes messages one after the other, as `publish` does. After an error those before it are published if the transaction is
    /// committed all the same.
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

    /// Publishes a message of a publisher, unless it, or one with a higher sequence, was published before: then `None`.
    ///
    /// # Errors
    /// As [`TopicWrites::publish`].
    fn publish_once<'m>(
        &mut self,
        publisher: &Publisher,
        sequence: u64,
        message: impl Into<Message<'m>>,
    ) -> Result<Option<Ticket>>;

    /// Publishes a message that has an id, unless a message with this id was published within the window of the topic
    /// ([`TopicOptions::deduplicate_for`]): then `None`. Of two transactions that publish an id at one time, one conflicts,
    /// and finds the duplicate when it runs again.
    ///
    /// # Errors
    /// As [`TopicWrites::publish`]; [`TopicError::InvalidMessage`] when the message has no id, [`TopicError::OptionMissing`]
    /// when the topic has no window.
    fn publish_by_id<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Option<Ticket>>;

    /// Schedules a message for a later time when the transaction commits (see [`Topic::publish_at`]).
    ///
    /// # Errors
    /// As [`TopicWrites::publish`].
    fn publish_at<'m>(&mut self, topic: &Topic, time: SystemTime, message: impl Into<Message<'m>>)
    -> Result<Scheduled>;

    /// Takes back a delayed message when the transaction commits; `false`: it was published or cancelled before, or is not of
    /// this topic. A transaction that is too late conflicts, and finds that when it runs again.
    ///
    /// # Errors
    /// Those of [`Transaction::delete`].
    fn cancel(&mut self, topic: &Topic, scheduled: &Scheduled) -> Result<bool>;

    /// Acknowledges a message that a group delivered: with everything else that the transaction writes, or not at all.
    ///
    /// # Errors
    /// [`TopicError::LeaseLost`], [`TopicError::AlreadySettled`], [`TopicError::GroupDeleted`]. If the lease is taken back
    /// before the commit, that ends with a conflict, and when the transaction is run again, with one of these.
    fn acknowledge(&mut self, delivery: &Delivery) -> Result<()>;

    /// Acknowledges messages that were delivered together.
    ///
    /// # Errors
    /// As [`TopicWrites::acknowledge`].
    fn acknowledge_all(&mut self, deliveries: &Deliveries) -> Result<()>;

    /// Says that a message failed, with everything else that the transaction writes: it is delivered again after `delay`, or
    /// after the time that the group's back-off list says. After the last try it goes to the dead-letter topic. `why` is kept
    /// for people to read, cut after 512 bytes.
    ///
    /// # Errors
    /// As [`TopicWrites::acknowledge`].
    fn retry(&mut self, delivery: &Delivery, delay: Option<Duration>, why: &str) -> Result<()>;

    /// Sends a message to the dead-letter topic, with everything else that the transaction writes.
    ///
    /// # Errors
    /// As [`TopicWrites::acknowledge`].
    fn give_up(&mut self, delivery: &Delivery, why: &str) -> Result<()>;

    /// Gives messages back that were delivered together: they are delivered again at once, and this try does not count.
    ///
    /// # Errors
    /// As [`TopicWrites::acknowledge`].
    fn release(&mut self, deliveries: &Deliveries) -> Result<()>;

    /// Acknowledges every message up to and including this one for a durable subscription.
    ///
    /// # Errors
    /// [`TopicError::AlreadySettled`], [`TopicError::NotReceived`], [`TopicError::GroupDeleted`].
    fn acknowledge_through(&mut self, durable: &Durable, offset: u64) -> Result<()>;
}

/// Publishing in a [`Batch`]: the message is there when the batch is committed, together with everything else in it, or not at
/// all. A batch reads nothing and never conflicts, so it costs less than a transaction.
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
    /// Publishes a message when the batch is committed. Messages of a batch get their offsets in the order of the calls.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`], [`TopicError::PublisherHeldBack`], [`TopicError::TopicFull`], and those of [`Batch::put`]. If the topic is
    /// deleted before the commit, that ends with [`duramen_engine::Reason::TopicDeleted`].
    fn publish<'m>(&mut self, topic: &Topic, message: impl Into<Message<'m>>) -> Result<Ticket>;

    /// Publishes messages one after the other, as `publish` does. After an error those before it are published if the batch is
    /// committed all the same.
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

/// Refuses a message with an id in calls that look for no duplicates.
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

/// Publishes in a transaction, whatever would hold back other publishers.
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

    /// Sets the hint of where the topic begins.
    pub(crate) fn trimmed_to(&self, first: u64) {
        self.shared.first_hint.fetch_max(first, Ordering::Relaxed);
    }

    pub(crate) fn unknown_group(&self, name: &str) -> duramen_engine::Error {
        let (topic, name) = (self.name().into(), name.into());
        TopicError::UnknownGroup { topic, name }.into()
    }
}
