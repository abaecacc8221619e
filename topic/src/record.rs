//! What is stored about a topic, and the options it has.
//!
//! ```text
//!  1  form: 1
//!  4  id, big-endian
//! ..  created, milliseconds since 1970
//! ..  keep for so many milliseconds, plus one; 0: for ever
//! ..  keep so many bytes, plus one; 0: all
//! ..  keep so many messages, plus one; 0: all
//!  1  1: drop what all groups have acknowledged
//! ..  remember publishers for so many milliseconds, plus one; 0: for ever
//! ```
//!
//! Numbers without a width have seven bits a byte, least first.

use std::time::Duration;

use duramen_engine::Result;

use crate::bytes::{Reader, put_number};
use crate::error::TopicError;

const FORM: u8 = 1;

/// How long publishers are remembered unless a topic says otherwise.
const REMEMBER_PUBLISHERS: Duration = Duration::from_secs(7 * 86_400);

/// What a topic keeps. The default keeps every message for ever. Of several limits the one that is reached first counts.
///
/// What a limit lets go is removed in the background, some time after it is reached.
///
/// To change one thing and keep the others, begin with the options that [`crate::Topic::describe`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicOptions {
    /// See [`TopicOptions::keep_for`]; `None`: for ever.
    pub keep_for: Option<Duration>,
    /// See [`TopicOptions::keep_bytes`]; `None`: without limit.
    pub keep_bytes: Option<u64>,
    /// See [`TopicOptions::keep_messages`]; `None`: without limit.
    pub keep_messages: Option<u64>,
    /// See [`TopicOptions::drop_acknowledged`].
    pub drop_acknowledged: bool,
    /// See [`TopicOptions::remember_publishers_for`].
    pub remember_publishers_for: Option<Duration>,
}

impl Default for TopicOptions {
    fn default() -> TopicOptions {
        TopicOptions {
            keep_for: None,
            keep_bytes: None,
            keep_messages: None,
            drop_acknowledged: false,
            remember_publishers_for: Some(REMEMBER_PUBLISHERS),
        }
    }
}

impl TopicOptions {
    /// Keeps everything for ever.
    pub fn new() -> TopicOptions {
        TopicOptions::default()
    }

    /// Lets go of messages that are older. Counted in milliseconds.
    pub fn keep_for(mut self, age: Duration) -> TopicOptions {
        self.keep_for = Some(age);
        self
    }

    /// Lets go of the oldest messages while all of them take more bytes: keys, headers and payloads, and about 20 bytes
    /// for each.
    pub fn keep_bytes(mut self, bytes: u64) -> TopicOptions {
        self.keep_bytes = Some(bytes);
        self
    }

    /// Lets go of the oldest messages while there are more.
    pub fn keep_messages(mut self, messages: u64) -> TopicOptions {
        self.keep_messages = Some(messages);
        self
    }

    /// Lets go of what every group and durable subscription of the topic has acknowledged. As long as there is none, this
    /// lets go of nothing.
    pub fn drop_acknowledged(mut self, drop: bool) -> TopicOptions {
        self.drop_acknowledged = drop;
        self
    }

    /// How long the newest sequence of a publisher that is silent is remembered (see [`crate::Publisher`]); `None`: for
    /// ever. Default: seven days.
    pub fn remember_publishers_for(mut self, time: Option<Duration>) -> TopicOptions {
        self.remember_publishers_for = time;
        self
    }

    /// What these options say otherwise than those asked for, an entry for each field.
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
        differences
    }

    /// These options as the store keeps them: times in whole milliseconds.
    pub(crate) fn stored(&self) -> TopicOptions {
        let whole = |time: Option<Duration>| time.map(|time| Duration::from_millis(millis(time)));
        TopicOptions {
            keep_for: whole(self.keep_for),
            remember_publishers_for: whole(self.remember_publishers_for),
            ..self.clone()
        }
    }

    /// Whether anything is ever let go.
    pub(crate) fn has_limits(&self) -> bool {
        self.keep_for.is_some() || self.keep_bytes.is_some() || self.keep_messages.is_some() || self.drop_acknowledged
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.keep_messages == Some(0) || self.keep_bytes == Some(0) || self.keep_for == Some(Duration::ZERO) {
            let cause =
                "a topic that keeps nothing has nothing to deliver; keep at least one message, byte or millisecond";
            return Err(TopicError::InvalidOptions { cause: cause.into() }.into());
        }
        Ok(())
    }
}

/// What is stored about a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicRecord {
    pub(crate) id: u32,
    pub(crate) created: u64,
    pub(crate) options: TopicOptions,
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
        out.push(u8::from(options.drop_acknowledged));
        put_number(&mut out, plus_one(options.remember_publishers_for.map(millis)));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<TopicRecord> {
        let mut reader = Reader::new(bytes, "the record of a topic");
        reader.version(FORM)?;
        let id = u32::from_be_bytes(reader.bytes(4)?.try_into().expect("four bytes"));
        let created = reader.number()?;
        let keep_for = reader.number()?.checked_sub(1).map(Duration::from_millis);
        let keep_bytes = reader.number()?.checked_sub(1);
        let keep_messages = reader.number()?.checked_sub(1);
        let drop_acknowledged = reader.byte()? != 0;
        let remember_publishers_for = reader.number()?.checked_sub(1).map(Duration::from_millis);
        reader.end()?;
        Ok(TopicRecord {
            id,
            created,
            options: TopicOptions {
                keep_for,
                keep_bytes,
                keep_messages,
                drop_acknowledged,
                remember_publishers_for,
            },
        })
    }
}

/// An option as an error names it.
fn shown(option: Option<impl std::fmt::Debug>) -> String {
    option.map_or_else(|| "none".into(), |value| format!("{value:?}"))
}

/// Milliseconds, as many as 64 bits hold.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A limit as it is stored; the largest numbers are as good as one less.
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
            .remember_publishers_for(None);
        for options in [TopicOptions::new(), options] {
            let record = TopicRecord {
                id: 77,
                created: 1_800_000_000_000,
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
