//! Durable subscriptions: a named position of a reader, which outlives the reader.

use duramen_engine::{Result, Snapshot, Transaction};

use super::administration::other_kind;
use super::record::{GroupRecord, Kind};
use super::state::{Cursor, anchor_key};
use super::written;
use crate::error::TopicError;
use crate::follower::SubscribeOptions;
use crate::handle::Topic;
use crate::read::{Reading, Start};
use crate::subscription::Subscription;
use crate::tables::name_key;

/// A durable subscription: the store remembers up to which message its reader has acknowledged. It is meant for one
/// reader at a time; several readers each get every message. For readers that share the work see [`crate::Group`].
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{Start, TopicOptions, TopicWrites, Topics};
/// use std::time::Duration;
///
/// let orders = Topics::open(&store)?.create("orders", TopicOptions::new())?;
/// let sums = store.map("sums")?;
/// let reader = orders.durable("sums", Start::Beginning)?;
/// orders.publish(b"12 apples")?;
///
/// let mut subscription = reader.subscribe()?;
/// let messages = subscription.next_batch(Duration::from_secs(1))?.unwrap();
/// store.transact(|tx| {
///     tx.put(&sums, b"apples", b"12")?;
///     tx.acknowledge_through(&reader, messages.offsets().end - 1)
/// })?;
/// assert_eq!(reader.position()?, 1);
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Durable {
    topic: Topic,
    name: String,
    id: u32,
}

impl Topic {
    /// Returns a durable subscription, creating it when it is missing. `start` selects the first message of a new
    /// subscription. A durable subscription has no options that could differ.
    ///
    /// # Errors
    /// [`TopicError::InvalidName`], [`TopicError::OtherKind`], [`TopicError::NotYetPublished`],
    /// [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn durable(&self, name: &str, start: Start) -> Result<Durable> {
        let record = self.get_or_make_durable(name, start)?;
        Ok(Durable::new(self, name, record.id))
    }

    /// Returns an existing durable subscription.
    ///
    /// # Errors
    /// [`TopicError::UnknownGroup`], [`TopicError::OtherKind`].
    pub fn existing_durable(&self, name: &str) -> Result<Durable> {
        let snapshot = self.snapshot()?;
        let record = self.group_record(&snapshot, name)?;
        let record = record.ok_or_else(|| self.unknown_group(name))?;
        match record.kind {
            Kind::Durable => Ok(Durable::new(self, name, record.id)),
            Kind::Group(_) => Err(other_kind(self.name(), name, record.kind.name(), Kind::Durable.name())),
        }
    }
}

impl Durable {
    pub(super) fn new(topic: &Topic, name: &str, id: u32) -> Durable {
        Durable {
            topic: topic.clone(),
            name: name.into(),
            id,
        }
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// Name of the subscription.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The first message that was not acknowledged.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`].
    pub fn position(&self) -> Result<u64> {
        self.position_in(&self.topic.snapshot()?)
    }

    pub(super) fn position_in(&self, snapshot: &Snapshot) -> Result<u64> {
        let reading = Reading::new(&self.topic, snapshot);
        Ok(super::description::stored_cursor(&reading, &self.name, self.id)?.next)
    }

    /// Subscribes from the first message that was not acknowledged.
    ///
    /// # Errors
    /// As [`Topic::subscribe`], [`TopicError::GroupDeleted`].
    pub fn subscribe(&self) -> Result<Subscription> {
        self.subscribe_with(SubscribeOptions::new())
    }

    /// Subscribes with options; see [`Durable::subscribe`].
    ///
    /// # Errors
    /// As [`Durable::subscribe`].
    pub fn subscribe_with(&self, options: SubscribeOptions) -> Result<Subscription> {
        self.topic.subscribe_with(Start::Offset(self.position()?), options)
    }

    /// Acknowledges every message up to and including `offset`, in its own commit. A power cut may undo the commit;
    /// then some messages are delivered again. In a transaction: [`crate::TopicWrites::acknowledge_through`].
    ///
    /// # Errors
    /// [`TopicError::AlreadySettled`], [`TopicError::NotReceived`], [`TopicError::GroupDeleted`], and those of a
    /// commit.
    pub fn acknowledge_through(&self, offset: u64) -> Result<()> {
        let store = &self.topic.home().store;
        store.transact_with(written(), |tx| self.acknowledge_in(tx, offset))
    }

    pub(crate) fn acknowledge_in(&self, tx: &mut Transaction, offset: u64) -> Result<()> {
        let cursor = self.cursor_in(tx)?;
        if offset < cursor.next {
            return Err(TopicError::AlreadySettled { offset }.into());
        }
        let next = tx
            .sequence_state(&self.topic.shared().sequence)?
            .map_or(0, |state| state.next);
        if offset >= next {
            return Err(TopicError::NotReceived { offset, next }.into());
        }
        self.move_in(tx, offset + 1)
    }

    /// Continues from another position, forward or back. Existing subscriptions keep their positions.
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn reset(&self, start: Start) -> Result<()> {
        let snapshot = self.topic.snapshot()?;
        let next = Reading::new(&self.topic, &snapshot).resolve(start)?;
        drop(snapshot);
        self.topic.home().store.transact(|tx| {
            self.cursor_in(tx)?;
            self.reset_in(tx, next)
        })
    }

    /// Continues from another position, perhaps an earlier one. Retention then keeps the messages from there on that it
    /// has not deleted yet.
    pub(super) fn reset_in(&self, tx: &mut Transaction, next: u64) -> Result<()> {
        tx.put(&self.topic.home().tables.states, anchor_key(self.id), b"")?;
        self.move_in(tx, next)
    }

    pub(super) fn move_in(&self, tx: &mut Transaction, next: u64) -> Result<()> {
        let cursor = Cursor::at(next);
        tx.put(&self.topic.home().tables.states, Cursor::key(self.id), cursor.encode())
    }

    pub(super) fn cursor_in(&self, tx: &Transaction) -> Result<Cursor> {
        let tables = &self.topic.home().tables;
        let deleted = || self.topic.group_deleted(&self.name);
        let record = tx.get_ref(&tables.groups, name_key(self.topic.shared().id, &self.name))?;
        let record = record.map(|record| GroupRecord::decode(&record)).transpose()?;
        record.filter(|record| record.id == self.id).ok_or_else(deleted)?;
        let cursor = tx.get_ref(&tables.states, Cursor::key(self.id))?;
        Cursor::decode(&cursor.ok_or_else(deleted)?)
    }
}
