//! The maps of a store that belong to topics. Users can neither see nor name them.
//!
//! ```text
//! topics      name                       -> record of the topic (see `record`)
//!             00 "next"                  -> id of the next topic or group, 4 bytes, big-endian
//!             00 "creates"               -> present: topics are created when they are first used
//!             00 "durable" 00, name      -> durable subscription to a pattern (see `group::durable_pattern`)
//!             00 "gone" 00, id           -> groups of deleted topics that have left rows (see `group::deferred_deletes`)
//! messages    topic id, offset           -> head of a message (see `message`)
//! payloads    topic id, offset           -> payload that is too long for a head
//! publishers  topic id, name             -> newest sequence of a publisher (see `publisher_rows`)
//! groups      topic id, name             -> record of a group or durable subscription (see `record`)
//! states      group id, ...              -> what a group stores about single messages (see `group::state`)
//! delayed     due, number, topic id      -> message that waits until it is due (see `delayed`)
//! index       topic id, kind, ...        -> ids, expiry and newest messages of keys (see `index`)
//! ```
//!
//! Ids have 4 bytes, offsets 8, all big-endian, so keys sort by topic and then by offset.

use duramen_engine::{Map, Result, Sequence, Store, Transaction};

use crate::error::TopicError;

/// Id of the sequence that records which topics were created and deleted.
pub(crate) const REGISTRY: u32 = 0;
/// Id of the first topic.
pub(crate) const FIRST_ID: u32 = 1;

/// Key of the next id. No name begins with a zero.
pub(crate) const NEXT_ID: &[u8] = b"\0next";
/// Key that is present if topics are created when they are first used.
pub(crate) const CREATES: &[u8] = b"\0creates";
/// Prefix of the keys of durable subscriptions to patterns.
pub(crate) const RULES: &[u8] = b"\0durable\0";

/// Prefix of the keys that name groups of deleted topics.
pub(crate) const GONE: &[u8] = b"\0gone\0";

/// Handles of the maps.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) topics: Map,
    pub(crate) messages: Map,
    pub(crate) payloads: Map,
    pub(crate) publishers: Map,
    pub(crate) groups: Map,
    pub(crate) states: Map,
    pub(crate) delayed: Map,
    pub(crate) index: Map,
}

/// The names of the maps, in the order in which they are made.
pub(crate) const NAMES: [&str; 8] = [
    "topics",
    "messages",
    "payloads",
    "publishers",
    "groups",
    "states",
    "delayed",
    "index",
];

impl Tables {
    /// Opens the maps. Creates missing maps if the store is writable.
    pub(crate) fn open(store: &Store) -> Result<Tables> {
        let map = |place: usize| match store.is_read_only() {
            false => store.reserved_map(NAMES[place]),
            true => store.existing_reserved_map(NAMES[place])?.ok_or_else(|| {
                let cause = "the store has no topics yet, and was opened read-only".into();
                TopicError::InvalidOptions { cause }.into()
            }),
        };
        Ok(Tables {
            topics: map(0)?,
            messages: map(1)?,
            payloads: map(2)?,
            publishers: map(3)?,
            groups: map(4)?,
            states: map(5)?,
            delayed: map(6)?,
            index: map(7)?,
        })
    }

    /// The messages of a topic.
    pub(crate) fn sequence(&self, id: u32, name: &str) -> Result<Sequence> {
        Sequence::new(&self.messages, &self.payloads, &id.to_be_bytes(), name)
    }

    /// The names of topics that are created, configured and deleted, in order.
    pub(crate) fn registry(&self) -> Result<Sequence> {
        Sequence::counted(&self.messages, &self.payloads, &REGISTRY.to_be_bytes(), "(topics)")
    }
}

/// Whether topics were ever used in this store.
pub(crate) fn exist(store: &Store) -> Result<bool> {
    // The last map that `open` creates.
    Ok(store.existing_reserved_map("index")?.is_some())
}

/// An id and an offset: the key of a message.
pub(crate) fn offset_key(id: u32, offset: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&id.to_be_bytes());
    key[4..].copy_from_slice(&offset.to_be_bytes());
    key
}

/// The key after all offsets of an id.
pub(crate) fn after_id(id: u32) -> [u8; 4] {
    (id + 1).to_be_bytes()
}

/// The offset at the end of a key.
pub(crate) fn offset_of(key: &[u8]) -> u64 {
    let end = key
        .last_chunk::<8>()
        .expect("the commit put a number at the end of the key");
    u64::from_be_bytes(*end)
}

/// The key of a durable subscription to a pattern.
pub(crate) fn rule_key(name: &str) -> Vec<u8> {
    [RULES, name.as_bytes()].concat()
}

/// An id and a name: the key of a publisher or group.
pub(crate) fn name_key(id: u32, name: &str) -> Vec<u8> {
    [&id.to_be_bytes()[..], name.as_bytes()].concat()
}

/// Takes an id for a topic or group. Ids are never reused.
pub(crate) fn next_id(tx: &mut Transaction, topics: &Map) -> Result<u32> {
    let next = match tx.get_ref(topics, NEXT_ID)? {
        None => FIRST_ID,
        Some(bytes) => {
            let bytes = (*bytes).try_into();
            let wrong = |_| duramen_engine::Error::damaged("the next id of topics has the wrong length");
            u32::from_be_bytes(bytes.map_err(wrong)?)
        }
    };
    // The number after the highest id must be usable as a key too.
    if next == u32::MAX {
        let cause = "four billion topics and groups were made, which is all there can be".into();
        return Err(TopicError::InvalidOptions { cause }.into());
    }
    tx.put(topics, NEXT_ID, (next + 1).to_be_bytes())?;
    Ok(next)
}
