//! The stored record of a topic, and the options of a topic.
//!
//! ```text
//!  1  form: 2
//!  4  id, big-endian
//! ..  created, milliseconds since 1970
//! ..  keep_for in milliseconds, plus one; 0: no limit
//! ..  keep_bytes, plus one; 0: no limit
//! ..  keep_messages, plus one; 0: no limit
//!  1  flags: 1 drop messages that all groups have acknowledged, 2 refuse new messages when full,
//!     4 messages may expire, 8 keep the newest message of each key, 16 messages may be missing between others
//! ..  remember_publishers_for in milliseconds, plus one; 0: without limit
//! ..  protect groups up to this many bytes, plus one; 0: limits delete regardless of groups
//! ..  deduplicate_for in milliseconds, plus one; 0: no message ids
//! ```
//!
//! Numbers without a width are encoded with seven bits a byte, least significant first.

use std::time::Duration;

use duramen_engine::Result;

use crate::bytes::{Reader, put_number};
use crate::error::TopicError;

pub(crate) use crate::time::millis;

const FORM: u8 = 2;
const DROP_ACKNOWLEDGED: u8 = 1;
const DISCARD_NEW: u8 = 2;
const MESSAGE_EXPIRY: u8 = 4;
const LATEST_PER_KEY: u8 = 8;
const IS_SPARSE: u8 = 16;
/// The flags that this version knows.
const KNOWN_FLAGS: u8 = DROP_ACKNOWLEDGED | DISCARD_NEW | MESSAGE_EXPIRY | LATEST_PER_KEY | IS_SPARSE;

/// Default for how long a topic remembers publishers.
const REMEMBER_PUBLISHERS: Duration = Duration::from_secs(7 * 86_400);

/// Whether retention checks the groups of a topic before it deletes messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// `keep_for`, `keep_bytes` and `keep_messages` delete messages whether or not a group has processed them. A group
    /// skips deleted messages.
    #[default]
    Limits,
    /// `keep_for`, `keep_bytes` and `keep_messages` delete only messages that every group and durable subscription of
    /// the topic has acknowledged. Publishers get [`TopicError::TopicFull`] when a message would push the kept messages
    /// over `max_bytes`. Without a group or durable subscription the limits delete as in [`Retention::Limits`].
    ProtectGroups {
        /// Maximum bytes that the topic keeps, counted as [`TopicOptions::keep_bytes`] counts them.
        max_bytes: u64,
    },
}

/// What a topic keeps. By default a topic keeps every message without limit. With several limits, the limit that is
/// reached first applies.
///
/// The background deletes messages some time after a limit is reached.
///
/// To change one option and keep the others, start with the options that [`crate::Topic::describe`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicOptions {
    /// See [`TopicOptions::keep_for`]; `None`: no limit.
    pub keep_for: Option<Duration>,
    /// See [`TopicOptions::keep_bytes`]; `None`: no limit.
    pub keep_bytes: Option<u64>,
    /// See [`TopicOptions::keep_messages`]; `None`: no limit.
    pub keep_messages: Option<u64>,
    /// See [`TopicOptions::drop_acknowledged`].
    pub drop_acknowledged: bool,
    /// See [`TopicOptions::remember_publishers_for`].
    pub remember_publishers_for: Option<Duration>,
    /// See [`TopicOptions::retention`].
    pub retention: Retention,
    /// See [`TopicOptions::discard_new`].
    pub discard_new: bool,
    /// See [`TopicOptions::deduplicate_for`]; `None`: messages have no ids.
    pub deduplicate_for: Option<Duration>,
    /// See [`TopicOptions::message_expiry`].
    pub message_expiry: bool,
    /// See [`TopicOptions::latest_per_key`].
    pub latest_per_key: bool,
}

impl Default for TopicOptions {
    fn default() -> TopicOptions {
        TopicOptions {
            keep_for: None,
            keep_bytes: None,
            keep_messages: None,
            drop_acknowledged: false,
            remember_publishers_for: Some(REMEMBER_PUBLISHERS),
            retention: Retention::Limits,
            discard_new: false,
            deduplicate_for: None,
            message_expiry: false,
            latest_per_key: false,
        }
    }
}

impl TopicOptions {
    /// Keeps every message without limit.
    pub fn new() -> TopicOptions {
        TopicOptions::default()
    }

    /// Deletes messages that are older than `age`. Measured in milliseconds.
    pub fn keep_for(mut self, age: Duration) -> TopicOptions {
        self.keep_for = Some(age);
        self
    }

    /// Deletes the oldest messages while all messages together take more than `bytes`. Counted are keys, headers and
    /// payloads, and about 20 bytes for each message.
    pub fn keep_bytes(mut self, bytes: u64) -> TopicOptions {
        self.keep_bytes = Some(bytes);
        self
    }

    /// Deletes the oldest messages while the topic has more than `messages`.
    pub fn keep_messages(mut self, messages: u64) -> TopicOptions {
        self.keep_messages = Some(messages);
        self
    }

    /// Deletes messages that every group and durable subscription of the topic has acknowledged. Without a group or
    /// durable subscription it deletes nothing, and the first group or subscription starts with the messages that are
    /// kept at that time. A group that is created later never sees messages that the other groups had acknowledged
    /// before.
    pub fn drop_acknowledged(mut self, drop: bool) -> TopicOptions {
        self.drop_acknowledged = drop;
        self
    }

    /// How long the topic remembers the newest sequence of a silent publisher (see [`crate::Publisher`]). `None`:
    /// without limit. Default: seven days.
    pub fn remember_publishers_for(mut self, time: Option<Duration>) -> TopicOptions {
        self.remember_publishers_for = time;
        self
    }

    /// Whether the limits delete messages that groups have not processed. Default: [`Retention::Limits`].
    pub fn retention(mut self, retention: Retention) -> TopicOptions {
        self.retention = retention;
        self
    }

    /// Refuses new messages with [`TopicError::TopicFull`] where `keep_messages` or `keep_bytes` would delete the
    /// oldest. Together with [`TopicOptions::drop_acknowledged`] this makes a bounded work queue. Messages that
    /// retention can delete do not count. Default: no.
    ///
    /// The limit is exact for [`crate::Topic::publish`], [`crate::Topic::publish_all`] and transactions. They publish
    /// to such a topic one after the other. The limit does not count:
    ///
    /// - messages that the transaction itself published before;
    /// - messages of batches and asynchronous publishers that pass the check at the same time.
    pub fn discard_new(mut self, discard: bool) -> TopicOptions {
        self.discard_new = discard;
        self
    }

    /// Publishes each message id ([`crate::Message::id`]) at most once within this time: see
    /// [`crate::Topic::publish_by_id`]. The time is in whole milliseconds of the wall clock. Each id takes two rows of
    /// about 60 bytes together until the time ends. The background, or [`crate::Topic::trim`], then deletes them.
    /// Default: messages have no ids.
    pub fn deduplicate_for(mut self, window: Duration) -> TopicOptions {
        self.deduplicate_for = Some(window);
        self
    }

    /// Accepts messages that expire ([`crate::Message::expires_after`]). An expired message is invisible to each read
    /// that begins after its time, by the wall clock. The background, or [`crate::Topic::trim`], deletes it. An expired
    /// message is gone for groups too, whether or not they processed it.
    ///
    /// Readers skip messages that are missing between others, without an error and without [`crate::Messages::gap`].
    /// They also skip messages that `keep_for`, `keep_bytes` or `keep_messages` deleted. So a reader of such a topic
    /// never gets [`TopicError::Trimmed`], even after the option is taken back. Offsets count deleted messages, so
    /// `keep_messages`, `keep_bytes` and lags count them too. Default: no.
    pub fn message_expiry(mut self, expiry: bool) -> TopicOptions {
        self.message_expiry = expiry;
        self
    }

    /// Keeps the newest message of each key, and all messages without a key. The background, or [`crate::Topic::trim`],
    /// reads each new message once and deletes the message that it replaces. This happens some time after the new
    /// message was published; until then readers may see both. A message is deleted whether or not groups processed it.
    /// Keys have up to [`crate::LATEST_KEY_BYTES_MAX`] bytes. Readers skip missing messages, as in a topic with
    /// [`TopicOptions::message_expiry`].
    ///
    /// A message with an empty payload is an ordinary message. To delete a key, publish a message of that key that
    /// expires. Default: no.
    pub fn latest_per_key(mut self, latest: bool) -> TopicOptions {
        self.latest_per_key = latest;
        self
    }

    /// Whether an option removes messages from between others.
    pub(crate) fn is_sparse(&self) -> bool {
        self.message_expiry || self.latest_per_key
    }

    /// Whether publishers may be refused.
    pub(crate) fn refuses(&self) -> bool {
        self.discard_new || matches!(self.retention, Retention::ProtectGroups { .. })
    }

    /// Lists where these options differ from the requested options, an entry for each field.
    pub(crate) fn differences(&self, asked: &TopicOptions) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |field: &str, is: String, asked: String| {
            if is != asked {
                differences.push(format!("{field} is {is}, asked for {asked}"));
            }
        };
        compare("keep_for", shown(self.keep_for), shown(asked.keep_for));
        compare("keep_bytes", shown(self.keep_bytes), shown(asked.keep_bytes));
        compare("keep_messages", shown(self.keep_messages), shown(asked.keep_messages));
        let (is, wanted) = (self.drop_acknowledged, asked.drop_acknowledged);
        compare("drop_acknowledged", is.to_string(), wanted.to_string());
        let (is, wanted) = (self.remember_publishers_for, asked.remember_publishers_for);
        compare("remember_publishers_for", shown(is), shown(wanted));
        let retention = |options: &TopicOptions| format!("{:?}", options.retention);
        compare("retention", retention(self), retention(asked));
        let (is, wanted) = (self.discard_new, asked.discard_new);
        compare("discard_new", is.to_string(), wanted.to_string());
        let (is, wanted) = (self.deduplicate_for, asked.deduplicate_for);
        compare("deduplicate_for", shown(is), shown(wanted));
        let (is, wanted) = (self.message_expiry, asked.message_expiry);
        compare("message_expiry", is.to_string(), wanted.to_string());
        let (is, wanted) = (self.latest_per_key, asked.latest_per_key);
        compare("latest_per_key", is.to_string(), wanted.to_string());
        differences
    }

    /// These options as the store keeps them: times in whole milliseconds.
    pub(crate) fn stored(&self) -> TopicOptions {
        let whole = |time: Option<Duration>| time.map(|time| Duration::from_millis(millis(time)));
        TopicOptions {
            keep_for: whole(self.keep_for),
            remember_publishers_for: whole(self.remember_publishers_for),
            deduplicate_for: whole(self.deduplicate_for),
            ..self.clone()
        }
    }

    /// Whether a retention option ever deletes messages.
    pub(crate) fn has_limits(&self) -> bool {
        self.keep_for.is_some() || self.keep_bytes.is_some() || self.keep_messages.is_some() || self.drop_acknowledged
    }

    /// Whether retention depends on the progress of groups.
    pub(crate) fn asks_groups(&self) -> bool {
        self.drop_acknowledged || matches!(self.retention, Retention::ProtectGroups { .. })
    }

    /// Whether the background has work to do for the topic.
    pub(crate) fn needs_upkeep(&self) -> bool {
        self.has_limits() || self.is_sparse() || self.deduplicate_for.is_some()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.keep_messages == Some(0) || self.keep_bytes == Some(0) || self.keep_for == Some(Duration::ZERO) {
            let cause =
                "a topic that keeps nothing has nothing to deliver; keep at least one message, byte or millisecond";
            return Err(TopicError::InvalidOptions { cause: cause.into() }.into());
        }
        if self.retention == (Retention::ProtectGroups { max_bytes: 0 }) {
            let cause = "a topic that may keep no bytes takes no message; give ProtectGroups a larger max_bytes";
            return Err(TopicError::InvalidOptions { cause: cause.into() }.into());
        }
        if self.deduplicate_for.is_some_and(|window| millis(window) == 0) {
            let cause = "a window of less than a millisecond finds no duplicate; give deduplicate_for a longer one";
            return Err(TopicError::InvalidOptions { cause: cause.into() }.into());
        }
        if self.discard_new && self.keep_messages.is_none() && self.keep_bytes.is_none() {
            let cause = "discard_new needs a limit; set keep_messages or keep_bytes";
            return Err(TopicError::InvalidOptions { cause: cause.into() }.into());
        }
        Ok(())
    }
}

/// The stored record of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicRecord {
    pub(crate) id: u32,
    pub(crate) created: u64,
    pub(crate) options: TopicOptions,
    /// Whether messages may be missing between others: the topic has, or had, an option that removes them, or the store was put back
    /// to a checkpoint.
    pub(crate) is_sparse: bool,
}

impl TopicRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let options = &self.options;
        let mut out = vec![FORM];
        out.extend_from_slice(&self.id.to_be_bytes());
        put_number(&mut out, self.created);
        put_number(&mut out, plus_one(options.keep_for.map(millis)));
        put_number(&mut out, plus_one(options.keep_bytes));
        put_number(&mut out, plus_one(options.keep_messages));
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.push(
            flag(options.drop_acknowledged, DROP_ACKNOWLEDGED)
                | flag(options.discard_new, DISCARD_NEW)
                | flag(options.message_expiry, MESSAGE_EXPIRY)
                | flag(options.latest_per_key, LATEST_PER_KEY)
                | flag(self.is_sparse, IS_SPARSE),
        );
        put_number(&mut out, plus_one(options.remember_publishers_for.map(millis)));
        let protected = match options.retention {
            Retention::ProtectGroups { max_bytes } => Some(max_bytes),
            Retention::Limits => None,
        };
        put_number(&mut out, plus_one(protected));
        put_number(&mut out, plus_one(options.deduplicate_for.map(millis)));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<TopicRecord> {
        let mut reader = Reader::new(bytes, "the record of a topic");
        reader.form(FORM)?;
        let id = u32::from_be_bytes(reader.bytes(4)?.try_into().expect("four bytes"));
        let created = reader.number()?;
        let keep_for = reader.number()?.checked_sub(1).map(Duration::from_millis);
        let keep_bytes = reader.number()?.checked_sub(1);
        let keep_messages = reader.number()?.checked_sub(1);
        let flags = reader.byte()?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(reader.damaged("has options that this library does not know"));
        }
        let remember_publishers_for = reader.number()?.checked_sub(1).map(Duration::from_millis);
        let retention = match reader.number()?.checked_sub(1) {
            Some(max_bytes) => Retention::ProtectGroups { max_bytes },
            None => Retention::Limits,
        };
        let deduplicate_for = reader.number()?.checked_sub(1).map(Duration::from_millis);
        reader.end()?;
        Ok(TopicRecord {
            id,
            created,
            options: TopicOptions {
                keep_for,
                keep_bytes,
                keep_messages,
                drop_acknowledged: flags & DROP_ACKNOWLEDGED != 0,
                remember_publishers_for,
                retention,
                discard_new: flags & DISCARD_NEW != 0,
                deduplicate_for,
                message_expiry: flags & MESSAGE_EXPIRY != 0,
                latest_per_key: flags & LATEST_PER_KEY != 0,
            },
            is_sparse: flags & IS_SPARSE != 0,
        })
    }
}

/// An option's value as errors show it.
fn shown(option: Option<impl std::fmt::Debug>) -> String {
    option.map_or_else(|| "none".into(), |value| format!("{value:?}"))
}

/// A limit as it is stored. The largest number is stored as one less, which makes no difference.
pub(crate) fn plus_one(limit: Option<u64>) -> u64 {
    limit.map_or(0, |limit| limit.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let options = TopicOptions::new()
            .keep_for(Duration::from_secs(3))
            .keep_bytes(1 << 40)
            .drop_acknowledged(true)
            .remember_publishers_for(None)
            .retention(Retention::ProtectGroups { max_bytes: 1 << 50 })
            .discard_new(true)
            .deduplicate_for(Duration::from_secs(120))
            .message_expiry(true)
            .latest_per_key(true);
        for options in [TopicOptions::new(), options] {
            let record = TopicRecord {
                id: 77,
                created: 1_800_000_000_000,
                is_sparse: options.is_sparse(),
                options,
            };
            let bytes = record.encode();
            assert_eq!(TopicRecord::decode(&bytes).unwrap(), record);
            for length in 0..bytes.len() {
                assert!(TopicRecord::decode(&bytes[..length]).is_err());
            }
        }
    }
}
