//! Durable subscriptions to all topics of a pattern, including topics that are created later: see [`super::rule`].

use duramen_engine::{Error, Result, Snapshot};

use super::administration::Existing;
use super::administration::delete_durable;
use super::durable::Durable;
use super::record::Kind;
use super::rule::{Rule, RuleHandle, Wanted};
use crate::error::{TopicError, is_deleted};
use crate::handle::{Topic, Topics};
use crate::messages::Messages;
use crate::name::Pattern;
use crate::read::{Reading, Start};

/// A durable subscription to all topics of a pattern. For each topic the store remembers up to which message the reader
/// has acknowledged. A topic that is created later counts from its first message on, even while no reader exists.
///
/// In every topic it is a durable subscription of the same name, which [`Topic::groups`] lists with the others. A topic
/// where that subscription was deleted ([`Topic::delete_group`]) is left out from then on; [`Topic::durable`] creates
/// it again.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{Pattern, Start, TopicOptions, TopicWrites, Topics};
/// use std::time::Duration;
///
/// let topics = Topics::open(&store)?;
/// let sums = store.map("sums")?;
/// let reader = topics.durable(&Pattern::new("orders.>")?, "sums", Start::Beginning)?;
/// topics.create("orders.eu", TopicOptions::new())?.publish(b"12 apples")?;
///
/// let mut subscription = reader.subscribe()?;
/// let messages = subscription.next_batch(Duration::from_secs(1))?.unwrap();
/// let orders = reader.of(&messages)?;
/// store.transact(|tx| {
///     tx.put(&sums, b"apples", b"12")?;
///     tx.acknowledge_through(&orders, messages.offsets().end - 1)
/// })?;
/// assert_eq!(reader.positions()?[0].next, 1);
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DurablePattern {
    rule: RuleHandle,
}

/// Position of a durable subscription in one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DurablePosition {
    /// The topic.
    pub topic: String,
    /// The first message that was not acknowledged.
    pub next: u64,
    /// Number of messages from `next` on.
    pub lag: u64,
}

impl Topics {
    /// Returns a durable subscription to all topics of a pattern, creating it when it is missing. `start` selects where
    /// a new subscription begins in existing topics; in topics that are created later it begins with the first message.
    /// A topic that has a durable subscription of this name keeps its position.
    ///
    /// # Errors
    /// [`TopicError::OtherPattern`], [`TopicError::OtherKind`] when a topic has a group of this name,
    /// [`TopicError::InvalidName`], [`TopicError::NotYetPublished`], and those of a commit.
    pub fn durable(&self, pattern: &Pattern, name: &str, start: Start) -> Result<DurablePattern> {
        let rule = self.put_rule(&Wanted {
            pattern,
            name,
            start,
            kind: Kind::Durable,
            existing: Existing::Change,
        })?;
        Ok(DurablePattern::new(self, name, rule))
    }

    /// The durable subscriptions to patterns, sorted by name.
    ///
    /// # Errors
    /// Those of [`duramen_engine::Store::snapshot`].
    pub fn durables(&self) -> Result<Vec<DurablePattern>> {
        let rules = self.rules()?.into_iter();
        let durables = rules.filter(|(_, rule)| rule.record.kind == Kind::Durable);
        Ok(durables
            .map(|(name, rule)| DurablePattern::new(self, &name, rule))
            .collect())
    }
}

impl DurablePattern {
    fn new(topics: &Topics, name: &str, rule: Rule) -> DurablePattern {
        DurablePattern {
            rule: RuleHandle::new(topics, name, rule),
        }
    }

    /// Name of the subscription.
    pub fn name(&self) -> &str {
        &self.rule.name
    }

    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.rule.pattern
    }

    /// The topics of the same store.
    pub fn topics(&self) -> &Topics {
        &self.rule.topics
    }

    /// The durable subscription of one of its topics, for example to reset it there.
    ///
    /// # Errors
    /// [`TopicError::UnknownTopic`], [`TopicError::UnknownGroup`] when the topic does not match, or is left out,
    /// [`TopicError::GroupDeleted`], [`TopicError::InvalidName`].
    pub fn at(&self, topic: &str) -> Result<Durable> {
        let snapshot = self.snapshot()?;
        let topic = self.rule.topic(&snapshot, topic)?;
        self.durable_at(&snapshot, &topic)
    }

    /// The durable subscription of the topic of these messages, to acknowledge them in a transaction
    /// ([`crate::TopicWrites::acknowledge_through`]).
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`], also when another topic has that name by now;
    /// [`TopicError::UnknownGroup`] when the topic is left out; [`TopicError::GroupDeleted`].
    pub fn of(&self, messages: &Messages) -> Result<Durable> {
        let snapshot = self.snapshot()?;
        let name = messages.topic();
        let home = self.rule.topics.home();
        home.same_record(&snapshot, name, messages.topic_id())?;
        self.durable_at(&snapshot, &home.topic(messages.topic_id(), name)?)
    }

    fn durable_at(&self, snapshot: &Snapshot, topic: &Topic) -> Result<Durable> {
        let durable = self.durable_of(snapshot, topic)?;
        durable.ok_or_else(|| topic.unknown_group(&self.rule.name))
    }

    /// The position in each topic, sorted by the names of topics.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`].
    pub fn positions(&self) -> Result<Vec<DurablePosition>> {
        let snapshot = self.snapshot()?;
        let mut positions = Vec::new();
        for topic in self.rule.topics_in(&snapshot)? {
            if let Some(next) = self.position_in(&snapshot, &topic)? {
                let end = Reading::new(&topic, &snapshot).state()?.next;
                positions.push(DurablePosition {
                    topic: topic.name().into(),
                    next,
                    lag: end.saturating_sub(next),
                });
            }
        }
        Ok(positions)
    }

    /// Acknowledges messages and all earlier messages of their topic, in its own commit. A power cut may undo the
    /// commit; then some messages are delivered again. Messages of a topic that was deleted meanwhile need no
    /// acknowledgement.
    ///
    /// # Errors
    /// [`TopicError::AlreadySettled`], [`TopicError::UnknownGroup`] when the topic is left out,
    /// [`TopicError::GroupDeleted`], and those of a commit.
    pub fn acknowledge(&self, messages: &Messages) -> Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        let last = messages.offsets().end - 1;
        match self.of(messages).and_then(|durable| durable.acknowledge_through(last)) {
            Err(error) if is_deleted(&error) => Ok(()),
            // The group was deleted with its topic, after the lookup.
            Err(error) if is_group_deleted(&error) && self.of(messages).is_err_and(|error| is_deleted(&error)) => {
                Ok(())
            }
            acknowledged => acknowledged,
        }
    }

    /// Continues from another position in all existing topics, forward or back. Existing subscriptions keep their
    /// positions. For one topic: [`Durable::reset`].
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn reset(&self, start: Start) -> Result<()> {
        let snapshot = self.snapshot()?;
        let mut moves = Vec::new();
        for topic in self.rule.topics_in(&snapshot)? {
            if let Some(durable) = self.durable_of(&snapshot, &topic)? {
                moves.push((durable, Reading::new(&topic, &snapshot).resolve(start)?));
            }
        }
        drop(snapshot);
        self.rule.topics.store().transact(|tx| {
            self.rule.rule_in(tx)?;
            for (durable, next) in &moves {
                match durable.cursor_in(tx) {
                    Ok(_) => durable.reset_in(tx, *next)?,
                    // The group was deleted meanwhile.
                    Err(error) if is_group_deleted(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    /// Deletes the subscription in all topics, including topics that had a durable subscription of its name before.
    /// Topics that are created later do not get it. Its subscriptions in all processes wake up with
    /// [`TopicError::GroupDeleted`].
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], and those of a commit.
    pub fn delete(&self) -> Result<()> {
        self.rule.delete(|tx, tables, topics| {
            let mut topics = topics.iter();
            topics.try_for_each(|(_, topic)| delete_durable(tx, tables, *topic, &self.rule.name))
        })
    }

    /// A snapshot in which the subscription exists.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.rule.snapshot()
    }

    fn durable_of(&self, snapshot: &Snapshot, topic: &Topic) -> Result<Option<Durable>> {
        let record = self.rule.record_of(snapshot, topic)?;
        let record = record.filter(|record| record.kind == Kind::Durable);
        Ok(record.map(|record| Durable::new(topic, &self.rule.name, record.id)))
    }

    /// The first message of a topic that was not acknowledged; `None`: the topic is left out.
    pub(crate) fn position_in(&self, snapshot: &Snapshot, topic: &Topic) -> Result<Option<u64>> {
        let durable = self.durable_of(snapshot, topic)?;
        durable.map(|durable| durable.position_in(snapshot)).transpose()
    }
}

fn is_group_deleted(error: &Error) -> bool {
    matches!(TopicError::of(error), Some(TopicError::GroupDeleted { .. }))
}
