//! Publishing once despite retries: a publisher numbers its messages, and the store remembers the newest number.
//!
//! The transaction that publishes also reads and writes the number, so the number survives what the message survives.
//! Two concurrent attempts conflict; the second runs again and finds the number.

use std::fmt;

use duramen_engine::{Result, Transaction, TransactionOptions};

use crate::error::TopicError;
use crate::handle::Topic;
use crate::limits::{PUBLISHER_BYTES_MAX, READ_MESSAGES};
use crate::message::{Message, Stored};
use crate::publish::{Outcome, Ticket, publish_in};
use crate::publisher_rows::Newest;
use crate::read::Reading;
use crate::record::millis;
use crate::tables::name_key;

/// A named publisher of a topic that numbers its messages. A message whose number is not above all earlier numbers is a
/// duplicate, and is not published. Gaps between numbers are allowed.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{Outcome, TopicOptions, Topics};
///
/// let orders = Topics::open(&store)?.create("orders", TopicOptions::new())?;
/// let till = orders.publisher("till 4")?;
/// assert!(matches!(till.publish(1, b"12 apples")?, Outcome::Published(_)));
/// // The answer got lost, so the till tries again:
/// assert_eq!(till.publish(1, b"12 apples")?, Outcome::Duplicate(Some(0)));
/// assert_eq!(till.newest()?, Some(1));
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Publisher {
    topic: Topic,
    name: String,
}

impl fmt::Display for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.name, self.topic.name())
    }
}

impl Publisher {
    pub(crate) fn new(topic: &Topic, name: &str) -> Result<Publisher> {
        if name.len() > PUBLISHER_BYTES_MAX {
            return Err(TopicError::MessageTooLarge {
                what: "bytes of publisher",
                found: name.len() as u64,
                max: PUBLISHER_BYTES_MAX as u64,
                cure: "choose a shorter name",
            }
            .into());
        }
        Ok(Publisher {
            topic: topic.clone(),
            name: name.into(),
        })
    }

    fn key(&self) -> Vec<u8> {
        name_key(self.topic.shared().id, &self.name)
    }

    /// The sequence of its newest message, after which it continues. `None`: it has published nothing, or was silent
    /// for so long that the topic forgot it (see [`crate::TopicOptions::remember_publishers_for`]).
    ///
    /// # Errors
    /// Those of [`duramen_engine::Store::snapshot`].
    pub fn newest(&self) -> Result<Option<u64>> {
        let newest = self.topic.home().tables.publishers.get(self.key())?;
        Ok(newest
            .map(|newest| Newest::decode(&newest))
            .transpose()?
            .map(|newest| newest.sequence))
    }

    /// Publishes a message, unless a message with this sequence or a higher one was published before. It makes its own
    /// commit, with the durability of the topic's handle.
    ///
    /// # Errors
    /// As [`Topic::publish`].
    pub fn publish<'m>(&self, sequence: u64, message: impl Into<Message<'m>>) -> Result<Outcome> {
        let message = message.into();
        let store = &self.topic.home().store;
        let options = TransactionOptions::new().durability(self.topic.durability());
        let ticket = store.transact_with(options, |tx| self.publish_in(tx, sequence, message.clone()))?;
        let published = ticket.map(|ticket| ticket.published().expect("the transaction has committed"));
        match published {
            Some(published) => Ok(Outcome::Published(published)),
            None => Ok(Outcome::Duplicate(self.find(sequence)?)),
        }
    }

    pub(crate) fn publish_in<'m>(
        &'m self,
        tx: &mut Transaction,
        sequence: u64,
        message: Message<'m>,
    ) -> Result<Option<Ticket>> {
        let home = self.topic.home();
        let key = self.key();
        let newest = tx.get_ref(&home.tables.publishers, &key)?;
        let newest = newest.map(|newest| Newest::decode(&newest)).transpose()?;
        if newest.is_some_and(|newest| sequence <= newest.sequence) {
            return Ok(None);
        }
        let state = tx.sequence_state(&self.topic.shared().sequence)?;
        let newest = Newest {
            sequence,
            at_least: state.map_or(0, |state| state.next),
            time: millis(tx.wall_clock()),
        };
        tx.put(&home.tables.publishers, &key, newest.encode())?;
        publish_in(tx, &self.topic, &message.publisher(&self.name, sequence)).map(Some)
    }

    /// The offset of the newest message, if it has this sequence and is still kept.
    fn find(&self, sequence: u64) -> Result<Option<u64>> {
        let snapshot = self.topic.snapshot()?;
        let newest = snapshot.get(&self.topic.home().tables.publishers, self.key())?;
        let newest = newest.map(|newest| Newest::decode(&newest)).transpose()?;
        let Some(newest) = newest.filter(|newest| newest.sequence == sequence) else {
            return Ok(None);
        };
        let reading = Reading::new(&self.topic, &snapshot);
        let from = newest.at_least.max(reading.bounds()?.first);
        // Only messages that others published while the transaction ran are in between.
        for offset in from..from.saturating_add(READ_MESSAGES as u64) {
            let Some(head) = reading.existing_head(offset)? else {
                break;
            };
            if Stored::decode(&head)?.publisher == Some((&self.name, sequence)) {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }
}

impl Topic {
    /// Returns a publisher whose messages are published once, however often it retries.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`] when its name is too long.
    pub fn publisher(&self, name: &str) -> Result<Publisher> {
        Publisher::new(self, name)
    }
}
