//! Reading a topic in a snapshot: where it begins and ends, where a time lies in it, and its messages.
//!
//! Offsets from `first` to `next` are dense: none is missing in between. `first` is the smallest key there is; a hint
//! tells where to look for it, so that the search does not begin among all that was trimmed before.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use duramen_engine::{Error, Reason, Result, SequenceState, Snapshot, Value};

use crate::error::TopicError;
use crate::limits::{READ_BYTES, READ_MESSAGES};
use crate::message::Stored;
use crate::messages::{Collecting, Messages};
use crate::tables::{after_id, offset_key, offset_of};
use crate::topic::Topic;

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the first message that is kept.
    Beginning,
    /// With the next message to be published.
    Tail,
    /// With the message that has this offset.
    Offset(u64),
    /// With the first message that was published at this time or later.
    Time(SystemTime),
    /// With the last so many messages.
    Last(u64),
}

/// How much one read returns at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Default for ReadLimits {
    fn default() -> ReadLimits {
        ReadLimits {
            messages: READ_MESSAGES,
            bytes: READ_BYTES,
        }
    }
}

/// What is kept of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Offset of the first message that is kept; `next` when none is.
    pub(crate) first: u64,
    /// How far the topic has come.
    pub(crate) state: SequenceState,
}

/// A topic in a snapshot.
pub(crate) struct Reading<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) snapshot: &'a Snapshot,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(topic: &'a Topic, snapshot: &'a Snapshot) -> Reading<'a> {
        Reading { topic, snapshot }
    }

    /// How far the topic has come.
    ///
    /// # Errors
    /// [`Reason::TopicDeleted`].
    pub(crate) fn state(&self) -> Result<SequenceState> {
        let state = self.snapshot.sequence_state(&self.topic.shared().sequence)?;
        let name = || self.topic.name().to_string();
        state.ok_or_else(|| Reason::TopicDeleted { name: name() }.into())
    }

    pub(crate) fn bounds(&self) -> Result<Bounds> {
        let state = self.state()?;
        let shared = self.topic.shared();
        let hint = shared.first_hint.load(Ordering::Relaxed).min(state.next);
        let (low, high) = (offset_key(shared.id, hint), after_id(shared.id));
        let mut cursor = self.snapshot.range(shared.sequence.heads(), &low[..]..&high[..])?;
        let first = cursor.next()?.map_or(state.next, |(key, _)| offset_of(key));
        // What was trimmed never comes back. A snapshot that is older than the hint only sees less than it could.
        shared.first_hint.fetch_max(first, Ordering::Relaxed);
        Ok(Bounds { first, state })
    }

    /// The offset at which to begin.
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`].
    pub(crate) fn resolve(&self, start: Start) -> Result<u64> {
        let bounds = self.bounds()?;
        let next = bounds.state.next;
        Ok(match start {
            Start::Beginning => bounds.first,
            Start::Tail => next,
            Start::Offset(asked) if asked > next => return Err(self.not_yet(asked, next)),
            Start::Offset(asked) => asked,
            Start::Time(time) => {
                let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
                self.first_at(bounds.first..next, crate::record::millis(since))?
            }
            Start::Last(count) => next.saturating_sub(count).max(bounds.first),
        })
    }

    fn not_yet(&self, asked: u64, next: u64) -> Error {
        let topic = self.topic.name().to_string();
        TopicError::NotYetPublished { topic, asked, next }.into()
    }

    fn trimmed(&self, asked: u64, first: u64) -> Error {
        let topic = self.topic.name().to_string();
        TopicError::Trimmed { topic, asked, first }.into()
    }

    /// The first of some messages that was published at a time or later.
    pub(crate) fn first_at(&self, offsets: Range<u64>, time: u64) -> Result<u64> {
        self.first_with(offsets, |message| message.time >= time)
    }

    /// The first of some messages for which a condition holds, which holds for all after it.
    pub(crate) fn first_with(&self, offsets: Range<u64>, holds: impl Fn(&Stored<'_>) -> bool) -> Result<u64> {
        let Range {
            start: mut low,
            end: mut high,
        } = offsets;
        while low < high {
            let middle = low + (high - low) / 2;
            let head = self.head(middle)?;
            if holds(&Stored::decode(&head)?) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }

    /// The head of a message that must be there.
    pub(crate) fn head(&self, offset: u64) -> Result<Value<'a>> {
        self.existing_head(offset)?.ok_or_else(|| {
            let topic = self.topic.name();
            Error::damaged(format!("message {offset} of topic {topic:?} is missing between others"))
        })
    }

    /// The head of a message, unless it was trimmed.
    pub(crate) fn existing_head(&self, offset: u64) -> Result<Option<Value<'a>>> {
        let shared = self.topic.shared();
        self.snapshot
            .get(shared.sequence.heads(), &offset_key(shared.id, offset))
    }

    /// Messages from an offset on, as many as there are and the limits allow. `gap` is what the reader was made to pass
    /// over before.
    ///
    /// # Errors
    /// [`TopicError::Trimmed`], [`TopicError::NotYetPublished`], [`Reason::TopicDeleted`], [`Reason::Damaged`].
    pub(crate) fn read(&self, from: u64, limits: ReadLimits, gap: Option<Range<u64>>) -> Result<Messages> {
        let shared = self.topic.shared();
        let (low, high) = (offset_key(shared.id, from), after_id(shared.id));
        let mut cursor = self.snapshot.range(shared.sequence.heads(), &low[..]..&high[..])?;
        let mut collecting = Collecting::new(&shared.name, gap);
        while collecting.len() < limits.messages && collecting.bytes() < limits.bytes {
            let Some((key, head)) = cursor.next()? else { break };
            let offset = offset_of(key);
            if collecting.len() == 0 && offset != from {
                return Err(self.trimmed(from, offset));
            }
            collecting.push(offset, &head, |bytes, _| self.fetch(offset, bytes))?;
        }
        if collecting.len() == 0 && limits.messages > 0 {
            self.check_end(from)?;
        }
        Ok(collecting.finish())
    }

    /// Where no message is: whether that is because the topic ends here.
    fn check_end(&self, from: u64) -> Result<()> {
        let next = self.state()?.next;
        match from {
            from if from > next => Err(self.not_yet(from, next)),
            from if from < next => Err(self.trimmed(from, next)),
            _ => Ok(()),
        }
    }

    /// One message, unless it was trimmed.
    pub(crate) fn one(&self, offset: u64) -> Result<Option<Messages>> {
        let (messages, _) = self.some(&[offset], usize::MAX)?;
        Ok(Some(messages).filter(|messages| !messages.is_empty()))
    }

    /// Messages by their offsets, until they take so many bytes. Those that were trimmed are left out. Returns how many
    /// offsets were looked at, too.
    pub(crate) fn some(&self, offsets: &[u64], bytes: usize) -> Result<(Messages, usize)> {
        let mut collecting = Collecting::new(&self.topic.shared().name, None);
        let mut looked_at = 0;
        for &offset in offsets {
            if collecting.bytes() >= bytes {
                break;
            }
            looked_at += 1;
            if let Some(head) = self.existing_head(offset)? {
                collecting.push(offset, &head, |bytes, _| self.fetch(offset, bytes))?;
            }
        }
        Ok((collecting.finish(), looked_at))
    }

    /// The payload of a message whose head says that it lies elsewhere.
    fn fetch(&self, offset: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let shared = self.topic.shared();
        let payload = self
            .snapshot
            .get(shared.sequence.bodies(), &offset_key(shared.id, offset))?;
        match payload {
            Some(payload) => bytes.extend_from_slice(&payload),
            None => return Err(Error::damaged(format!("the payload of message {offset} is missing"))),
        }
        Ok(())
    }
}
