//! Reading a topic in a snapshot: its first and next offset, the offset for a time, and its messages.
//!
//! Offsets from `first` to `next` are dense: no message is missing in between. There are two exceptions:
//!
//! - A *sparse* topic removes expired messages, or messages with a newer message of the same key. Readers skip the
//!   missing messages, and messages that are expired when the read begins.
//! - A topic that was salvaged from a damaged store may have lost messages. No read crosses such a gap. A reader at a
//!   gap gets the same error as if retention had deleted the missing messages.
//!
//! `first` is the smallest existing key. A hint tells where to search for it, so that the search does not begin among
//! everything that was trimmed before.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use duramen_engine::{Error, Reason, Result, SequenceState, Snapshot, Value};

use crate::error::TopicError;
use crate::handle::Topic;
use crate::limits::{READ_BYTES, READ_MESSAGES};
use crate::message::{Stored, may_expire};
use crate::messages::{Collecting, Messages};
use crate::tables::{after_id, offset_key, offset_of};
use crate::time::since_epoch;

/// Where a reader begins.
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
    /// With the last `n` messages.
    Last(u64),
}

/// Maximum size of one read.
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

/// First and next offset of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Offset of the first message that is kept; `next` when no message is kept.
    pub(crate) first: u64,
    /// State of the topic's sequence.
    pub(crate) state: SequenceState,
}

/// A topic in a snapshot.
pub(crate) struct Reading<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) snapshot: &'a Snapshot,
    /// The time that decides which messages are expired, in milliseconds since 1970. It is read at first use.
    now: OnceCell<u64>,
    /// Whether messages may be missing between others. It is read at first use.
    is_sparse: OnceCell<bool>,
    /// Payloads that are stored outside their heads are left out, and count by their length.
    heads_only: bool,
    left_out: Cell<usize>,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(topic: &'a Topic, snapshot: &'a Snapshot) -> Reading<'a> {
        Reading {
            topic,
            snapshot,
            now: OnceCell::new(),
            is_sparse: OnceCell::new(),
            heads_only: false,
            left_out: Cell::new(0),
        }
    }

    /// Reads as at a time, in milliseconds since 1970, and leaves out payloads that are stored outside their heads.
    pub(crate) fn heads_at(topic: &'a Topic, snapshot: &'a Snapshot, now: u64) -> Reading<'a> {
        Reading {
            now: OnceCell::from(now),
            heads_only: true,
            ..Reading::new(topic, snapshot)
        }
    }

    /// Returns the state of the topic's sequence.
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
        // Trimmed messages never come back. A snapshot that is older than the hint only sees fewer messages than it
        // could.
        shared.first_hint.fetch_max(first, Ordering::Relaxed);
        Ok(Bounds { first, state })
    }

    /// Returns the offset of a start position.
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
                let since = crate::record::millis(since_epoch(time));
                self.first_at(bounds.first..next, since)?
            }
            Start::Last(count) => self.kept_from(next.saturating_sub(count).max(bounds.first), next)?,
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

    /// Returns the first message in `offsets` that was published at `time` or later.
    pub(crate) fn first_at(&self, offsets: Range<u64>, time: u64) -> Result<u64> {
        self.first_with(offsets, |message| message.time >= time)
    }

    /// Returns the first message in `offsets` for which `holds` is true, or their end. `holds` must be true for all
    /// later ones.
    pub(crate) fn first_with(&self, offsets: Range<u64>, holds: impl Fn(&Stored<'_>) -> bool) -> Result<u64> {
        let Range {
            start: mut low,
            end: mut high,
        } = offsets;
        let mut found = high;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.head_from(middle, high)? {
                Some((offset, head)) if !holds(&Stored::decode(&head)?) => low = offset + 1,
                Some((offset, _)) => (found, high) = (offset, middle),
                None => high = middle,
            }
        }
        Ok(found)
    }

    /// Publication time of the first existing message at `offset` or later.
    pub(crate) fn time_from(&self, offset: u64) -> Result<Option<u64>> {
        let next = self.state()?.next;
        if offset >= next {
            return Ok(None);
        }
        let head = self.head_from(offset, next)?;
        head.map(|(_, head)| Ok(Stored::decode(&head)?.time)).transpose()
    }

    /// Returns the first existing message from `from` to before `before`, and its head.
    fn head_from(&self, from: u64, before: u64) -> Result<Option<(u64, Value<'a>)>> {
        if let Some(head) = self.existing_head(from)? {
            return Ok(Some((from, head)));
        }
        let shared = self.topic.shared();
        let (low, high) = (offset_key(shared.id, from), offset_key(shared.id, before));
        let mut cursor = self.snapshot.range(shared.sequence.heads(), &low[..]..&high[..])?;
        Ok(cursor.next()?.map(|(key, head)| (offset_of(key), head)))
    }

    /// Returns the offset of the first existing message from `from` on; `end` when there is none before `end`.
    fn kept_from(&self, from: u64, end: u64) -> Result<u64> {
        if from >= end {
            return Ok(end);
        }
        Ok(self.head_from(from, end)?.map_or(end, |(offset, _)| offset))
    }

    /// The head of a message that must exist.
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
            .get(shared.sequence.heads(), offset_key(shared.id, offset))
    }

    /// Whether a message is expired.
    fn is_expired(&self, head: &[u8]) -> Result<bool> {
        if !may_expire(head) {
            return Ok(false);
        }
        let now = *self
            .now
            .get_or_init(|| crate::record::millis(self.topic.home().store.wall_clock()));
        is_expired_at(head, now)
    }

    /// Whether messages may be missing between others.
    fn is_sparse(&self) -> Result<bool> {
        if let Some(is_sparse) = self.is_sparse.get() {
            return Ok(*is_sparse);
        }
        let (home, shared) = (self.topic.home(), self.topic.shared());
        let record = home.existing_record(self.snapshot, &shared.name)?;
        let is_sparse = record.is_some_and(|record| record.id == shared.id && record.is_sparse);
        Ok(*self.is_sparse.get_or_init(|| is_sparse))
    }

    /// Reads messages from an offset on. The read ends at the first missing message, except in a sparse topic, and at
    /// the limits. `gap` names the offsets that the reader skipped before.
    ///
    /// # Errors
    /// [`TopicError::Trimmed`], [`TopicError::NotYetPublished`], [`Reason::TopicDeleted`], [`Reason::Damaged`].
    pub(crate) fn read(&self, from: u64, limits: ReadLimits, gap: Option<Range<u64>>) -> Result<Messages> {
        self.read_through(from, limits, gap).map(|(messages, _)| messages)
    }

    /// Reads like [`Reading::read`], and also returns the offset after the last message that was examined.
    pub(crate) fn read_through(
        &self,
        from: u64,
        limits: ReadLimits,
        gap: Option<Range<u64>>,
    ) -> Result<(Messages, u64)> {
        let shared = self.topic.shared();
        let (low, high) = (offset_key(shared.id, from), after_id(shared.id));
        let mut cursor = self.snapshot.range(shared.sequence.heads(), &low[..]..&high[..])?;
        let mut collecting = Collecting::knowing_time((&shared.name, shared.id), gap);
        let (mut expected, mut is_at_end) = (from, false);
        self.left_out.set(0);
        while collecting.len() < limits.messages && collecting.bytes() + self.left_out.get() < limits.bytes {
            let Some((key, head)) = cursor.next()? else {
                is_at_end = true;
                break;
            };
            let offset = offset_of(key);
            if offset != expected && !self.is_sparse()? {
                match collecting.len() {
                    0 => return Err(self.trimmed(expected, offset)),
                    // The next read reports the missing messages, or skips them.
                    _ => break,
                }
            }
            expected = offset + 1;
            if !self.is_expired(&head)? {
                collecting.push(offset, &head, |bytes, length| self.fetch(offset, bytes, length))?;
            }
        }
        if collecting.len() == 0 && is_at_end {
            expected = self.check_end(expected)?;
        }
        Ok((collecting.finish(), expected))
    }

    /// Reads messages from an offset on. Also returns the offset after the last message that was examined. Messages
    /// that are not kept are skipped, and become the gap before the first returned message.
    pub(crate) fn read_past(&self, from: u64, limits: ReadLimits) -> Result<(Messages, u64)> {
        match self.read_through(from, limits, None) {
            Err(error) => match TopicError::trimmed_to(&error) {
                Some(first) => self.read_through(first, limits, Some(from..first)),
                None => Err(error),
            },
            read => read,
        }
    }

    /// Returns how many messages are kept from an offset on.
    pub(crate) fn kept_since(&self, offset: u64, next: u64) -> Result<u64> {
        if !self.is_sparse()? {
            return Ok(next.saturating_sub(offset));
        }
        let shared = self.topic.shared();
        let (low, high) = (offset_key(shared.id, offset), after_id(shared.id));
        self.snapshot.count(shared.sequence.heads(), &low[..]..&high[..])
    }

    /// Returns where the newest `count` messages begin in `offsets`, which end where the topic does.
    pub(crate) fn newest(&self, count: u64, offsets: Range<u64>) -> Result<u64> {
        let Range { start: first, end } = offsets;
        if end - first <= count {
            return Ok(first);
        }
        if !self.is_sparse()? {
            return Ok(end - count);
        }
        let more = self.kept_since(first, end)?.saturating_sub(count);
        let shared = self.topic.shared();
        let (low, high) = (offset_key(shared.id, first), offset_key(shared.id, end));
        let mut cursor = self.snapshot.range(shared.sequence.heads(), &low[..]..&high[..])?;
        // Retention deletes what is passed here.
        for _ in 0..more {
            cursor.next()?;
        }
        Ok(cursor.next()?.map_or(end, |(key, _)| offset_of(key)))
    }

    /// Checks an offset without a message: whether the topic ends there. Returns the offset of the next message to
    /// come.
    fn check_end(&self, from: u64) -> Result<u64> {
        let next = self.state()?.next;
        match from {
            from if from > next => Err(self.not_yet(from, next)),
            from if from < next && !self.is_sparse()? => Err(self.trimmed(from, next)),
            _ => Ok(next),
        }
    }

    /// Reads one message, unless it was trimmed.
    pub(crate) fn one(&self, offset: u64) -> Result<Option<Messages>> {
        let (messages, _) = self.some(&[offset], usize::MAX)?;
        Ok(Some(messages).filter(|messages| !messages.is_empty()))
    }

    /// Reads messages by their offsets, until they take `bytes` bytes. Trimmed and expired messages are left out. Also
    /// returns the number of offsets that were examined.
    pub(crate) fn some(&self, offsets: &[u64], bytes: usize) -> Result<(Messages, usize)> {
        let topic = self.topic.shared();
        let mut collecting = Collecting::knowing_time((&topic.name, topic.id), None);
        let mut looked_at = 0;
        for &offset in offsets {
            if collecting.bytes() >= bytes {
                break;
            }
            looked_at += 1;
            if let Some(head) = self.existing_head(offset)?
                && !self.is_expired(&head)?
            {
                collecting.push(offset, &head, |bytes, length| self.fetch(offset, bytes, length))?;
            }
        }
        Ok((collecting.finish(), looked_at))
    }

    /// Reads the payload of a message that is stored outside its head.
    fn fetch(&self, offset: u64, bytes: &mut Vec<u8>, length: u64) -> Result<()> {
        if self.heads_only {
            self.left_out.set(self.left_out.get() + length as usize);
            return Ok(());
        }
        let shared = self.topic.shared();
        let payload = self
            .snapshot
            .get(shared.sequence.bodies(), offset_key(shared.id, offset))?;
        match payload {
            Some(payload) => bytes.extend_from_slice(&payload),
            None => return Err(Error::damaged(format!("the payload of message {offset} is missing"))),
        }
        Ok(())
    }
}

/// Whether a message is expired at a time.
pub(crate) fn is_expired_at(head: &[u8], now: u64) -> Result<bool> {
    Ok(may_expire(head) && Stored::decode(head)?.expires_at().is_some_and(|at| at <= now))
}

impl Topic {
    /// Reads messages by their offsets, in this order. Those that are not kept any more are left out.
    ///
    /// # Errors
    /// Those of reading.
    #[doc(hidden)]
    pub fn read_some(&self, offsets: &[u64]) -> Result<Messages> {
        let snapshot = self.snapshot()?;
        Ok(Reading::new(self, &snapshot).some(offsets, usize::MAX)?.0)
    }

    /// Reads up to `messages` existing messages, starting at `start`. A read also ends after a megabyte, and before
    /// messages that were lost through damage. It returns at least one message, whatever its length, if there is one.
    ///
    /// # Errors
    /// [`TopicError::Trimmed`], [`TopicError::NotYetPublished`], [`duramen_engine::Reason::TopicDeleted`].
    pub fn read(&self, start: Start, messages: usize) -> Result<Messages> {
        let snapshot = self.snapshot()?;
        let reading = Reading::new(self, &snapshot);
        let limits = ReadLimits {
            messages,
            ..ReadLimits::default()
        };
        reading.read(reading.resolve(start)?, limits, None)
    }

    /// Offset of the next message, as far as it is known.
    pub(crate) fn next(&self) -> Result<u64> {
        let snapshot = self.snapshot()?;
        Ok(Reading::new(self, &snapshot).state()?.next)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use duramen_engine::{Maintenance, Options, Store};
    use duramen_io::SimDisk;

    use super::*;
    use crate::follower::{SlowPolicy, SubscribeOptions};
    use crate::group::GroupOptions;
    use crate::handle::Topics;
    use crate::record::TopicOptions;
    use crate::topics::TopicsOptions;

    /// A topic with 20 messages, one a second, of which 5 to 7, 12, and 18 and 19 were lost.
    fn with_gaps(disk: &SimDisk) -> (Store, Topic) {
        let store = Options::new()
            .maintenance(Maintenance::Manual)
            .open_on(disk.platform())
            .unwrap();
        let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
        let topic = topics.create("orders", TopicOptions::new()).unwrap();
        for _ in 0..20 {
            topic.publish(b"message").unwrap();
            disk.advance(Duration::from_secs(1));
        }
        for lost in [5, 6, 7, 12, 18, 19] {
            let key = offset_key(topic.shared().id, lost);
            topics.home().tables.messages.delete(key).unwrap();
        }
        (store, topic)
    }

    fn missing(read: Result<Messages>) -> Option<u64> {
        TopicError::trimmed_to(&read.expect_err("a message is missing"))
    }

    #[test]
    fn no_read_goes_over_a_gap_and_whoever_comes_to_one_is_told_where_it_ends() {
        let (_store, topic) = with_gaps(&SimDisk::new(1));
        let read = |start| topic.read(start, 100).map(|read| read.offsets());
        assert_eq!(read(Start::Beginning).unwrap(), 0..5);
        assert_eq!(read(Start::Offset(8)).unwrap(), 8..12);
        assert_eq!(read(Start::Offset(13)).unwrap(), 13..18);
        let at = |offset| missing(topic.read(Start::Offset(offset), 100));
        assert_eq!([5, 7, 12, 18, 19].map(at), [8, 8, 13, 20, 20].map(Some));
        assert_eq!(topic.publish(b"next").unwrap().offset, 20);
        assert_eq!([5, 18].map(at), [8, 20].map(Some));
    }

    #[test]
    fn messages_are_found_by_time_and_from_the_end_across_gaps() {
        let disk = SimDisk::new(2);
        let (_store, topic) = with_gaps(&disk);
        let time = |offset| topic.read(Start::Offset(offset), 1).unwrap().get(0).unwrap().time();
        let first = |start| topic.read(start, 1).unwrap().offsets().start;
        for offset in (0..5).chain(8..12).chain(13..18) {
            assert_eq!(first(Start::Time(time(offset))), offset);
        }
        let after = |offset| Start::Time(time(offset) + Duration::from_millis(1));
        assert_eq!([4, 11].map(|offset| first(after(offset))), [8, 13]);
        assert!(topic.read(after(17), 1).unwrap().is_empty());
        let last = |count| topic.read(Start::Last(count), 1).unwrap().offsets();
        assert_eq!([3, 8, 14, 100].map(last), [17..18, 13..14, 8..9, 0..1]);
        assert!(topic.read(Start::Last(2), 1).unwrap().is_empty());
    }

    #[test]
    fn subscribers_that_skip_are_told_of_gaps_and_others_get_an_error() {
        let (_store, topic) = with_gaps(&SimDisk::new(3));
        let options = SubscribeOptions::new().slow(SlowPolicy::Skip { max: 100 });
        let mut skips = topic.subscribe_with(Start::Beginning, options).unwrap();
        let mut batches = Vec::new();
        while let Some(messages) = skips.next_batch(Duration::ZERO).unwrap() {
            batches.push((messages.gap(), messages.offsets()));
        }
        assert_eq!(batches, [(None, 0..5), (Some(5..8), 8..12), (Some(12..13), 13..18)]);
        let mut reads_on = topic.subscribe(Start::Beginning).unwrap();
        reads_on.next_batch(Duration::ZERO).unwrap().unwrap();
        let error = reads_on.next_batch(Duration::ZERO).unwrap_err();
        assert_eq!(TopicError::trimmed_to(&error), Some(8));
        reads_on.seek(Start::Offset(8)).unwrap();
        assert_eq!(reads_on.next_batch(Duration::ZERO).unwrap().unwrap().offsets(), 8..12);
    }

    #[test]
    fn groups_pass_over_gaps() {
        let (_store, topic) = with_gaps(&SimDisk::new(4));
        for most in [1, 100] {
            let name = format!("by-{most}");
            let group = topic
                .ensure_group(&name, Start::Beginning, GroupOptions::new())
                .unwrap();
            let mut member = group.member("member");
            let mut received = Vec::new();
            while let Some(deliveries) = member.receive(most, Duration::ZERO).unwrap() {
                received.extend(deliveries.messages().iter().map(|message| message.offset()));
                deliveries.acknowledge().unwrap();
            }
            let kept: Vec<u64> = (0..5).chain(8..12).chain(13..18).collect();
            assert_eq!(received, kept);
        }
        topic.publish(b"next").unwrap();
        let mut member = topic.existing_group("by-1").unwrap().member("member");
        let deliveries = member.receive(1, Duration::ZERO).unwrap().unwrap();
        assert_eq!(deliveries.messages().offsets(), 20..21);
    }
}
