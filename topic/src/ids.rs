//! Deduplication by the id of a message: within a window of time, each id is published once.
//!
//! The transaction that publishes also reads and writes the row of the id. So of two concurrent attempts one conflicts,
//! runs again and finds the row. A second row, ordered by time, leads the background to ids that are older than the
//! window. It deletes both rows in one transaction.
//!
//! The value of the row of an id:
//!
//! ```text
//!  1  form: 1
//!  8  time of publication, milliseconds since 1970, big-endian
//!  8  lower bound of the offset of the message with the id, big-endian
//! ```

use std::time::Duration;

use duramen_engine::{Durability, Error, Result, Transaction, TransactionOptions};

use crate::bytes::Reader;
use crate::error::TopicError;
use crate::handle::Topic;
use crate::index::{self, ID, ID_TIME};
use crate::limits::FORGOTTEN_TOGETHER_MAX;
use crate::record::{TopicOptions, millis};

const FORM: u8 = 1;

/// The stored state of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    time: u64,
    pub(crate) at_least: u64,
}

impl Known {
    fn encode(self) -> Vec<u8> {
        [&[FORM][..], &self.time.to_be_bytes(), &self.at_least.to_be_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Known> {
        let mut reader = Reader::new(bytes, "the row of a message id");
        reader.form(FORM)?;
        let mut word = || -> Result<u64> { Ok(u64::from_be_bytes(reader.bytes(8)?.try_into().expect("eight bytes"))) };
        let (time, at_least) = (word()?, word()?);
        reader.end()?;
        Ok(Known { time, at_least })
    }

    /// Whether an id that was published at `self.time` is still refused.
    fn is_within(&self, window: Duration, now: u64) -> bool {
        now.saturating_sub(self.time) < millis(window)
    }
}

/// The window of a topic, in a transaction.
pub(crate) fn window_in(tx: &Transaction, topic: &Topic) -> Result<Option<Duration>> {
    let record = topic.home().record_in(tx, topic.name())?;
    let record = record.filter(|record| record.id == topic.shared().id);
    Ok(record.and_then(|record| record.options.deduplicate_for))
}

pub(crate) fn option_missing(topic: &Topic) -> Error {
    TopicError::OptionMissing {
        topic: topic.name().into(),
        what: "an id",
        option: "deduplicate_for",
    }
    .into()
}

/// Whether a message with this id was published within the window.
pub(crate) fn is_duplicate_in(tx: &Transaction, topic: &Topic, id: &[u8], window: Duration) -> Result<bool> {
    let home = topic.home();
    let row = tx.get_ref(&home.tables.index, index::key(topic.shared().id, ID, &[id]))?;
    let known = row.map(|row| Known::decode(&row)).transpose()?;
    Ok(known.is_some_and(|known| known.is_within(window, millis(tx.wall_clock()))))
}

/// Stores an id that the transaction publishes.
pub(crate) fn note_in(tx: &mut Transaction, topic: &Topic, id: &[u8]) -> Result<()> {
    let (home, number) = (topic.home(), topic.shared().id);
    let rows = &home.tables.index;
    let key = index::key(number, ID, &[id]);
    let before = tx.get_ref(rows, &key)?.map(|row| Known::decode(&row)).transpose()?;
    if let Some(before) = before {
        tx.delete(rows, index::key(number, ID_TIME, &[&before.time.to_be_bytes(), id]))?;
    }
    let known = Known {
        time: millis(tx.wall_clock()),
        at_least: tx
            .sequence_state(&topic.shared().sequence)?
            .map_or(0, |state| state.next),
    };
    tx.put(rows, &key, known.encode())?;
    tx.put(rows, index::key(number, ID_TIME, &[&known.time.to_be_bytes(), id]), b"")
}

/// Deletes ids that are older than the window, some in each commit, until `is_over`.
pub(crate) fn forget_old(topic: &Topic, options: &TopicOptions, is_over: &dyn Fn() -> bool) -> Result<()> {
    let Some(window) = options.deduplicate_for else {
        return Ok(());
    };
    let home = topic.home();
    let number = topic.shared().id;
    let now = millis(home.store.wall_clock());
    let Some(end) = now.checked_sub(millis(window)) else {
        return Ok(());
    };
    let (low, high) = (
        index::key(number, ID_TIME, &[]),
        index::key(number, ID_TIME, &[&(end + 1).to_be_bytes()]),
    );
    while !is_over() {
        let mut old = Vec::new();
        {
            let snapshot = topic.snapshot()?;
            let mut cursor = snapshot.range(&home.tables.index, &low[..]..&high[..])?;
            while old.len() < FORGOTTEN_TOGETHER_MAX {
                let Some((key, _)) = cursor.next()? else { break };
                old.push(key.to_vec());
            }
        }
        if old.is_empty() {
            break;
        }
        let written = TransactionOptions::new().durability(Durability::Written);
        home.store
            .transact_with(written, |tx| old.iter().try_for_each(|key| forget_in(tx, topic, key)))?;
    }
    Ok(())
}

/// Deletes an id, unless it was published again.
fn forget_in(tx: &mut Transaction, topic: &Topic, time_key: &[u8]) -> Result<()> {
    let rows = &topic.home().tables.index;
    let (time, id) = index::timed(time_key)?;
    let key = index::key(topic.shared().id, ID, &[id]);
    let known = tx.get_ref(rows, &key)?.map(|row| Known::decode(&row)).transpose()?;
    if known.is_some_and(|known| known.time == time) {
        tx.delete(rows, &key)?;
    }
    tx.delete(rows, time_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_an_id_comes_back_as_it_was() {
        let known = Known {
            time: u64::MAX,
            at_least: 300,
        };
        let bytes = known.encode();
        assert_eq!(Known::decode(&bytes).unwrap(), known);
        for length in 0..bytes.len() {
            assert!(Known::decode(&bytes[..length]).is_err());
        }
    }
}
