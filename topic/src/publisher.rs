//! Publishing once despite retries: a publisher numbers its messages, and the store remembers the newest number.
//!
//! The transaction that publishes also reads and writes the number, so the number survives what the message survives.
//! Two concurrent attempts conflict; the second runs again and finds the number.
//!
//! ```text
//!  1  form: 1
//! ..  newest sequence
//! ..  lower bound of the offset of the message with that sequence
//! ..  time of that message, milliseconds since 1970
//! ```
//!
//! Numbers have seven bits a byte, least significant first.

use std::fmt;
use std::time::Duration;

use duramen_engine::{Durability, Result, Transaction, TransactionOptions};

use crate::bytes::{Reader, put_number};
use crate::error::TopicError;
use crate::limits::{PUBLISHER_BYTES_MAX, READ_MESSAGES};
use crate::message::{Message, Stored};
use crate::read::Reading;
use crate::record::millis;
use crate::tables::{after_id, name_key};
use crate::topic::{Published, Ticket, Topic, publish_in};
use crate::topics::Home;

const FORM: u8 = 1;
/// Maximum publishers that one part of a check removes.
const FORGOTTEN_AT_ONCE: usize = 1000;
/// Maximum publishers that one part of a check reads.
const LOOKED_AT_ONCE: usize = 10_000;

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

/// Result of publishing a message at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was published now.
    Published(Published),
    /// It was published before. The offset is known for the publisher's newest message, and for a message with an id,
    /// while the topic keeps them.
    Duplicate(Option<u64>),
}

/// The stored state of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    pub(crate) sequence: u64,
    pub(crate) at_least: u64,
    pub(crate) time: u64,
}

impl Newest {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![FORM];
        put_number(&mut out, self.sequence);
        put_number(&mut out, self.at_least);
        put_number(&mut out, self.time);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Newest> {
        let mut reader = Reader::new(bytes, "the newest sequence of a publisher");
        reader.version(FORM)?;
        let (sequence, at_least, time) = (reader.number()?, reader.number()?, reader.number()?);
        reader.end()?;
        Ok(Newest {
            sequence,
            at_least,
            time,
        })
    }
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
            time: millis(home.store.wall_clock()),
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

/// Removes publishers of a topic that were silent for longer than `remembered`.
pub(crate) fn forget_silent(home: &Home, topic: u32, remembered: Duration) -> Result<()> {
    let mut from = None;
    loop {
        from = forget_part(home, topic, remembered, from)?;
        if from.is_none() {
            return Ok(());
        }
    }
}

/// Checks a limited number of publishers, and removes those that were silent for too long. Returns the key where the
/// next check begins; `None`: there are no more.
pub(crate) fn forget_part(
    home: &Home,
    topic: u32,
    remembered: Duration,
    from: Option<Vec<u8>>,
) -> Result<Option<Vec<u8>>> {
    let since = millis(home.store.wall_clock()).saturating_sub(millis(remembered));
    let (low, high) = (from.unwrap_or_else(|| name_key(topic, "")), after_id(topic));
    let snapshot = home.store.snapshot()?;
    let mut cursor = snapshot.range(&home.tables.publishers, &low[..]..&high[..])?;
    let (mut silent, mut looked_at, mut rest) = (Vec::new(), 0, None);
    while let Some((key, newest)) = cursor.next()? {
        if silent.len() == FORGOTTEN_AT_ONCE || looked_at == LOOKED_AT_ONCE {
            rest = Some(key.to_vec());
            break;
        }
        looked_at += 1;
        if Newest::decode(&newest)?.time < since {
            silent.push(key.to_vec());
        }
    }
    drop(cursor);
    drop(snapshot);
    silent.iter().try_for_each(|key| forget(home, key, since))?;
    Ok(rest)
}

/// Removes a publisher, unless it has published again.
fn forget(home: &Home, key: &[u8], since: u64) -> Result<()> {
    let options = TransactionOptions::new().durability(Durability::Written);
    home.store.transact_with(options, |tx| {
        let newest = tx.get_ref(&home.tables.publishers, key)?;
        let newest = newest.map(|newest| Newest::decode(&newest)).transpose()?;
        match newest {
            Some(newest) if newest.time < since => tx.delete(&home.tables.publishers, key),
            _ => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_sequence_comes_back_as_it_was() {
        let newest = Newest {
            sequence: u64::MAX,
            at_least: 300,
            time: 0,
        };
        let bytes = newest.encode();
        assert_eq!(Newest::decode(&bytes).unwrap(), newest);
        for length in 0..bytes.len() {
            assert!(Newest::decode(&bytes[..length]).is_err());
        }
    }
}
