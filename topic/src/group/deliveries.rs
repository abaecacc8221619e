//! Messages that are leased to a member, and the calls that settle them.

use std::sync::Arc;
use std::time::Duration;

use duramen_engine::{Result, Transaction};

use super::Group;
use super::combining::Request;
use super::keep_alive::KeepAlive;
use super::membership::LeasedBatch;
use super::settle::Verdict;
use crate::messages::{Messages, Received};

/// Messages leased to a member. They are settled all together, or one by one: see [`Deliveries::into_iter`].
///
/// Dropping them settles nothing while their [`super::Member`] exists: they are delivered again when the lease ends.
/// When the member is dropped too, they go back to the group at once.
#[derive(Clone, Debug)]
pub struct Deliveries {
    batch: Arc<LeasedBatch>,
    messages: Messages,
    /// Number of deliveries of each message; empty: all were delivered once.
    tries: Vec<u32>,
}

impl Deliveries {
    pub(super) fn new(batch: Arc<LeasedBatch>, messages: Messages, tries: Vec<u32>) -> Deliveries {
        Deliveries { batch, messages, tries }
    }

    /// The messages.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// Number of messages; at least one.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    #[cfg(test)]
    pub(super) fn lease_key(&self) -> super::lease_key::LeaseKey {
        self.batch.lease_key
    }

    fn group(&self) -> &Group {
        self.batch.group()
    }

    /// Acknowledges all messages except those that were settled one by one before. It makes its own commit, with the
    /// durability from the group's options. By default a power cut may undo it, and then the messages are delivered
    /// again. In a transaction: [`crate::TopicWrites::acknowledge_all`].
    ///
    /// In an ordered group a message may be lost because an earlier message of its key failed. Then this acknowledges
    /// none.
    ///
    /// # Errors
    /// [`crate::TopicError::LeaseLost`], [`crate::TopicError::AlreadySettled`], [`crate::TopicError::GroupDeleted`],
    /// and those of a commit.
    pub fn acknowledge(&self) -> Result<()> {
        self.settle_all("deliveries.acknowledge", Verdict::Done)
    }

    /// Releases all messages except those that were settled before. They are delivered again at once, and this attempt
    /// does not count. For a member that is about to end, or took more than it can process. It makes its own commit.
    ///
    /// # Errors
    /// As [`Deliveries::acknowledge`].
    pub fn release(&self) -> Result<()> {
        self.settle_all("deliveries.release", Verdict::Release)
    }

    fn settle_all(&self, call: &'static str, verdict: Verdict<'_>) -> Result<()> {
        let group = self.group();
        let store = &group.topic.home().store;
        store.refuse_beside(call, group.topic.name())?;
        let again = store.transact_with(group.settling(), |tx| self.settle_in(tx, verdict))?;
        self.batch.all_done();
        group.settled(again);
        Ok(())
    }

    fn settle_in(&self, tx: &mut Transaction, verdict: Verdict<'_>) -> Result<Option<u64>> {
        let first = self.messages.offsets().start;
        self.group().settle_all_in(tx, self.batch.lease_key, first, verdict)
    }

    pub(crate) fn acknowledge_in(&self, tx: &mut Transaction) -> Result<()> {
        self.settle_in(tx, Verdict::Done)?;
        // If the transaction does not commit, they are delivered again when the lease ends.
        self.batch.all_done();
        Ok(())
    }

    pub(crate) fn release_in(&self, tx: &mut Transaction) -> Result<()> {
        self.settle_in(tx, Verdict::Release)?;
        self.batch.all_done();
        Ok(())
    }

    /// Extends the lease to at least `by` from now. A longer lease does not change, and settled messages stay settled.
    ///
    /// # Errors
    /// As [`Deliveries::acknowledge`].
    pub fn extend(&self, by: Duration) -> Result<()> {
        self.batch.extend(self.messages.offsets().start, by)
    }

    /// Keeps extending the lease until the guard is dropped: see [`KeepAlive`].
    ///
    /// # Errors
    /// [`crate::TopicError::NoThread`], and those of [`Deliveries::extend`].
    pub fn keep_alive(&self) -> Result<KeepAlive> {
        KeepAlive::begin(&self.batch, self.messages.offsets().start)
    }
}

impl IntoIterator for Deliveries {
    type Item = Delivery;
    type IntoIter = std::vec::IntoIter<Delivery>;

    /// The messages one by one, to be settled separately.
    fn into_iter(self) -> Self::IntoIter {
        let one = |place: usize| Delivery {
            batch: self.batch.clone(),
            message: self.messages.part(place..place + 1),
            place,
            tries: self.tries.get(place).copied().unwrap_or(1),
        };
        let all: Vec<Delivery> = (0..self.messages.len()).map(one).collect();
        all.into_iter()
    }
}

/// A message leased to a member.
#[derive(Clone, Debug)]
pub struct Delivery {
    batch: Arc<LeasedBatch>,
    message: Messages,
    /// Position of the message among those that were delivered together.
    place: usize,
    tries: u32,
}

impl Delivery {
    /// The message.
    pub fn message(&self) -> Received<'_> {
        self.message.get(0).expect("a delivery has one message")
    }

    /// Offset of the message.
    pub fn offset(&self) -> u64 {
        self.message().offset()
    }

    /// Number of deliveries of the message, including this one.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    fn group(&self) -> &Group {
        self.batch.group()
    }

    /// Acknowledges the message: the group does not deliver it again. It makes its own commit, with the durability from
    /// the group's options. By default a power cut may undo it, and then the message is delivered again. In a
    /// transaction: [`crate::TopicWrites::acknowledge`].
    ///
    /// # Errors
    /// [`crate::TopicError::LeaseLost`], [`crate::TopicError::AlreadySettled`], [`crate::TopicError::GroupDeleted`],
    /// and those of a commit.
    pub fn acknowledge(&self) -> Result<()> {
        let group = self.group();
        let topic = &group.topic;
        topic.home().store.refuse_beside("delivery.acknowledge", topic.name())?;
        if group.shared.is_synced() {
            // Concurrent callers share a sync, and none of them delays the others.
            return self.settle(Verdict::Done);
        }
        let (lease_key, offset) = (self.batch.lease_key, self.offset());
        match group.combine(&Request::Acknowledged { lease_key, offset }) {
            Some(answer) => {
                answer?;
                self.batch.done(self.place);
                Ok(())
            }
            None => self.settle(Verdict::Done),
        }
    }

    /// Marks the message as failed. The group delivers it again after the time in its back-off list. After the last
    /// attempt the message goes to the dead-letter topic. The store keeps `why` for people to read, cut after 512
    /// bytes. In a transaction: [`crate::TopicWrites::retry`].
    ///
    /// # Errors
    /// As [`Delivery::acknowledge`].
    pub fn retry(&self, why: &str) -> Result<()> {
        let (delay, error) = (None, why);
        self.settle(Verdict::Retry { delay, error })
    }

    /// Marks the message as failed. The group delivers it again after `delay`. After the last attempt it goes to the
    /// dead-letter topic. The store keeps `why` for people to read, cut after 512 bytes.
    ///
    /// # Errors
    /// As [`Delivery::acknowledge`].
    pub fn retry_after(&self, delay: Duration, why: &str) -> Result<()> {
        let (delay, error) = (Some(delay), why);
        self.settle(Verdict::Retry { delay, error })
    }

    /// Gives the message up: it failed, and another attempt would fail too. It goes to the dead-letter topic now. In a
    /// transaction: [`crate::TopicWrites::give_up`].
    ///
    /// # Errors
    /// As [`Delivery::acknowledge`].
    pub fn give_up(&self, why: &str) -> Result<()> {
        self.settle(Verdict::GiveUp { error: why })
    }

    /// Releases the message: it is delivered again at once, and this attempt does not count.
    ///
    /// # Errors
    /// As [`Delivery::acknowledge`].
    pub fn release(&self) -> Result<()> {
        self.settle(Verdict::Release)
    }

    /// Extends the lease to at least `by` from now, for this message and all that were delivered with it. A longer
    /// lease does not change, and settled messages stay settled.
    ///
    /// # Errors
    /// [`crate::TopicError::LeaseLost`], [`crate::TopicError::AlreadySettled`], [`crate::TopicError::GroupDeleted`],
    /// and those of a commit.
    pub fn extend(&self, by: Duration) -> Result<()> {
        self.batch.extend(self.offset(), by)
    }

    /// Keeps extending the lease until the guard is dropped, for this message and all that were delivered with it: see
    /// [`KeepAlive`].
    ///
    /// # Errors
    /// [`crate::TopicError::NoThread`], and those of [`Delivery::extend`].
    pub fn keep_alive(&self) -> Result<KeepAlive> {
        KeepAlive::begin(&self.batch, self.offset())
    }

    fn settle(&self, verdict: Verdict<'_>) -> Result<()> {
        let group = self.group();
        let settle = |tx: &mut Transaction| group.settle_in(tx, self.batch.lease_key, self.offset(), verdict);
        let again = group.topic.home().store.transact_with(group.settling(), settle)?;
        self.batch.done(self.place);
        group.settled(again);
        Ok(())
    }

    pub(crate) fn settle_in(&self, tx: &mut Transaction, verdict: Verdict<'_>) -> Result<()> {
        self.group()
            .settle_in(tx, self.batch.lease_key, self.offset(), verdict)?;
        // If the transaction does not commit, the message is delivered again when the lease ends.
        self.batch.done(self.place);
        Ok(())
    }
}
