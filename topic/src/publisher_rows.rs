//! What the store remembers of a publisher: the newest number that it published.
//!
//! ```text
//!  1  form: 1
//! ..  newest sequence
//! ..  lower bound of the offset of the message with that sequence
//! ..  time of that message, milliseconds since 1970
//! ```
//!
//! Numbers have seven bits a byte, least significant first.

use std::time::Duration;

use duramen_engine::{Durability, Result, TransactionOptions};

use crate::bytes::{Reader, put_number};
use crate::home::Home;
use crate::record::millis;
use crate::tables::{after_id, name_key};

const FORM: u8 = 1;
/// Maximum publishers that one part of a check removes.
const FORGOTTEN_AT_ONCE: usize = 1000;
/// Maximum publishers that one part of a check reads.
const LOOKED_AT_ONCE: usize = 10_000;

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
