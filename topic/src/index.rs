//! The index: rows about messages of topics with [`crate::TopicOptions::deduplicate_for`],
//! [`crate::TopicOptions::message_expiry`] or [`crate::TopicOptions::latest_per_key`]. Other topics have none.
//!
//! ```text
//! topic id, 0                   -> messages before this offset are in the index, 8 bytes, big-endian
//! topic id, 1, key of messages  -> offset of the newest message of the key, 8 bytes, big-endian
//! topic id, 2, time, offset     -> empty: when a message expires
//! topic id, 3, id of a message  -> time of publication, and a lower bound of the offset (see `ids`)
//! topic id, 4, time, id         -> empty: when an id was published
//! ```
//!
//! Times have 8 bytes and are milliseconds since 1970, big-endian, so rows of one kind are in the order of their times.

use duramen_engine::{Error, Result, Transaction};

use crate::tables::Tables;

/// The kinds of rows.
pub(crate) const POSITION: u8 = 0;
pub(crate) const NEWEST_OF_KEY: u8 = 1;
pub(crate) const EXPIRES: u8 = 2;
pub(crate) const ID: u8 = 3;
pub(crate) const ID_TIME: u8 = 4;

/// The key of a row.
pub(crate) fn key(topic: u32, kind: u8, rest: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(5 + rest.iter().map(|part| part.len()).sum::<usize>());
    key.extend_from_slice(&topic.to_be_bytes());
    key.push(kind);
    rest.iter().for_each(|part| key.extend_from_slice(part));
    key
}

/// Time and rest of the key of a row that is ordered by time.
pub(crate) fn timed(key: &[u8]) -> Result<(u64, &[u8])> {
    let parts = key.get(5..).and_then(|rest| rest.split_first_chunk::<8>());
    let (time, rest) =
        parts.ok_or_else(|| Error::damaged("a row of the index of a topic has a key that is too short"))?;
    Ok((u64::from_be_bytes(*time), rest))
}

/// An offset in the value of a row.
pub(crate) fn offset_in(value: &[u8]) -> Result<u64> {
    let offset = value.try_into().map(u64::from_be_bytes);
    offset.map_err(|_| Error::damaged("a row of the index of a topic has an offset of the wrong length"))
}

/// Deletes the rows of a topic with kinds from `first` to `last`.
pub(crate) fn clear_in(tx: &mut Transaction, tables: &Tables, topic: u32, first: u8, last: u8) -> Result<()> {
    let (low, high) = (key(topic, first, &[]), key(topic, last + 1, &[]));
    tx.delete_range(&tables.index, &low[..]..&high[..])
}
