//! What callers pass: options of writes, ranges of keys, messages, and where a subscription begins.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duramen_proto::v1::{self, Acknowledge, Header, KeyRange};
use prost::bytes::Bytes;

/// Options of a write.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub(crate) acknowledge: Acknowledge,
    pub(crate) idempotency_key: Option<Bytes>,
}

impl WriteOptions {
    /// The server's default level, and a random idempotency key for each call.
    pub fn new() -> WriteOptions {
        WriteOptions::default()
    }

    /// What the write survives before the server acknowledges it.
    pub fn acknowledge(mut self, level: Acknowledge) -> WriteOptions {
        self.acknowledge = level;
        self
    }

    /// A key for one write, at most 64 bytes, that the program keeps. When the program repeats the write with this key
    /// within ten minutes, the server changes nothing and gives the first answer again.
    pub fn idempotency_key(mut self, key: impl AsRef<[u8]>) -> WriteOptions {
        self.idempotency_key = Some(copied(key));
        self
    }

    /// The options of one call. Calls that are never repeated need no key.
    pub(crate) fn of_call(&self) -> v1::WriteOptions {
        let key = match &self.idempotency_key {
            Some(key) => key.clone(),
            None if self.acknowledge == Acknowledge::Memory => Bytes::new(),
            None => Bytes::copy_from_slice(&fastrand::u128(..).to_be_bytes()),
        };
        v1::WriteOptions {
            acknowledge: self.acknowledge as i32,
            idempotency_key: key,
        }
    }
}

/// A set of keys that follow each other in byte order.
#[derive(Clone, Debug, Default)]
pub struct Keys(pub(crate) KeyRange);

impl Keys {
    /// All keys of a map.
    pub fn all() -> Keys {
        Keys::default()
    }

    /// The key `start` and all that follow.
    pub fn starting_at(start: impl AsRef<[u8]>) -> Keys {
        Keys::new(start.as_ref(), None)
    }

    /// The keys from `start` to `end`, without `end`.
    pub fn between(start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Keys {
        Keys::new(start.as_ref(), Some(end.as_ref()))
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Keys {
        let start = prefix.as_ref();
        // The first key after them: the last byte that can grow grows, and the bytes after it go.
        let mut end = start.to_vec();
        while end.pop_if(|byte| *byte == u8::MAX).is_some() {}
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Keys::new(start, (!end.is_empty()).then_some(&end[..]))
    }

    fn new(start: &[u8], end: Option<&[u8]>) -> Keys {
        Keys(KeyRange {
            start: Bytes::copy_from_slice(start),
            end: end.map(Bytes::copy_from_slice),
        })
    }
}

/// What a range reads: keys, their order, and how many.
#[derive(Clone, Debug, Default)]
pub struct Range {
    pub(crate) keys: Keys,
    pub(crate) reverse: bool,
    pub(crate) limit: u64,
    pub(crate) keys_only: bool,
}

impl Range {
    /// All pairs of these keys, in ascending order.
    pub fn new(keys: Keys) -> Range {
        Range {
            keys,
            ..Range::default()
        }
    }

    /// In descending order.
    pub fn reverse(mut self) -> Range {
        self.reverse = true;
        self
    }

    /// At most so many pairs; 0: no limit. For a page, the number of its pairs: 0 means 1,000, and 10,000 is the most.
    pub fn limit(mut self, pairs: u64) -> Range {
        self.limit = pairs;
        self
    }

    /// Without the values, which are then empty.
    pub fn keys_only(mut self) -> Range {
        self.keys_only = true;
        self
    }
}

impl From<Keys> for Range {
    fn from(keys: Keys) -> Range {
        Range::new(keys)
    }
}

/// A message to publish.
#[derive(Clone, Debug, Default)]
pub struct Message(pub(crate) v1::Message);

impl Message {
    /// A message without key and headers.
    pub fn new(payload: impl Into<Bytes>) -> Message {
        Message(v1::Message {
            payload: payload.into(),
            ..v1::Message::default()
        })
    }

    /// Its key. A topic with `latest_per_key` keeps the newest message of each key.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Message {
        self.0.key = copied(key);
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Message {
        self.0.headers.push(Header {
            name: name.into(),
            value: copied(value),
        });
        self
    }

    /// How long after publication it expires. The topic must have `message_expiry`.
    pub fn expires_after(mut self, time: Duration) -> Message {
        self.0.expires_after_ms = millis(time);
        self
    }
}

impl<T: Into<Bytes>> From<T> for Message {
    fn from(payload: T) -> Message {
        Message::new(payload)
    }
}

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At this offset. When the topic does not keep it: at the oldest message after it.
    Offset(u64),
    /// At the first message that is not older.
    Time(SystemTime),
    /// At the oldest message that the topic keeps.
    Earliest,
    /// At the last so many messages.
    Last(u64),
    /// At the next message that is published.
    Next,
}

pub(crate) fn millis_since_1970(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn copied(bytes: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(bytes.as_ref())
}
