//! Received messages: read once from the store, then shared by all subscribers.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use duramen_engine::{Error, Result};

use crate::message::{Headers, Stored, may_expire};

/// Some messages of one topic, in order. Clones and parts share the same memory. The last of them frees it.
#[derive(Clone)]
pub struct Messages {
    shared: Arc<Shared>,
    range: Range<usize>,
}

/// State that clones share.
struct Shared {
    topic: Arc<str>,
    /// Number of the topic: another topic may get its name.
    topic_id: u32,
    /// Heads, each followed by its payload if that was stored separately.
    bytes: Vec<u8>,
    places: Vec<Place>,
    /// Offsets that were skipped before the first message.
    gap: Option<Range<u64>>,
}

/// Positions of a message's parts in the bytes.
struct Place {
    offset: u64,
    time: u64,
    head: usize,
    head_end: usize,
    payload: usize,
    end: usize,
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages")
            .field("topic", &self.shared.topic)
            .field("offsets", &self.offsets())
            .finish()
    }
}

impl Messages {
    /// Name of the topic.
    pub fn topic(&self) -> &str {
        &self.shared.topic
    }

    pub(crate) fn topic_id(&self) -> u32 {
        self.shared.topic_id
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The range from the first offset to one past the last offset.
    pub fn offsets(&self) -> Range<u64> {
        match (self.get(0), self.len().checked_sub(1).and_then(|last| self.get(last))) {
            (Some(first), Some(last)) => first.offset()..last.offset() + 1,
            _ => 0..0,
        }
    }

    /// Offsets that the subscriber skipped right before the first of these messages, because it was too slow or the
    /// messages were lost (see [`crate::SlowPolicy::Skip`]).
    pub fn gap(&self) -> Option<Range<u64>> {
        self.shared.gap.clone().filter(|_| self.range.start == 0)
    }

    /// The message at a position, counting from 0.
    pub fn get(&self, place: usize) -> Option<Received<'_>> {
        let place = self.range.start + place;
        (place < self.range.end).then(|| Received {
            messages: self,
            place: &self.shared.places[place],
        })
    }

    /// Iterates over all messages, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Received<'_>> + DoubleEndedIterator {
        let places = self.shared.places[self.range.clone()].iter();
        places.map(|place| Received { messages: self, place })
    }

    /// A part of the messages, by positions counting from 0. Positions outside are ignored.
    pub fn part(&self, places: Range<usize>) -> Messages {
        let start = (self.range.start + places.start).min(self.range.end);
        let end = (self.range.start + places.end).clamp(start, self.range.end);
        Messages {
            shared: self.shared.clone(),
            range: start..end,
        }
    }

    /// The messages from an offset on.
    pub(crate) fn since(&self, offset: u64) -> Messages {
        let places = &self.shared.places[self.range.clone()];
        self.part(places.partition_point(|place| place.offset < offset)..self.len())
    }

    /// The messages whose offsets are wanted: a copy, unless all are wanted.
    pub(crate) fn only(&self, is_wanted: impl Fn(u64) -> bool) -> Messages {
        if self.iter().all(|message| is_wanted(message.offset())) {
            return self.clone();
        }
        let mut collecting = Collecting::new((&self.shared.topic, self.shared.topic_id), self.gap());
        let places = self.shared.places[self.range.clone()].iter();
        for place in places.filter(|place| is_wanted(place.offset)) {
            collecting.copy(&self.shared.bytes, place);
        }
        collecting.finish()
    }
}

/// A received message. It is a view into [`Messages`].
#[derive(Clone, Copy)]
pub struct Received<'a> {
    messages: &'a Messages,
    place: &'a Place,
}

impl fmt::Debug for Received<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("topic", &self.messages.topic())
            .field("offset", &self.offset())
            .field("payload", &self.payload().escape_ascii().to_string())
            .finish()
    }
}

impl<'a> Received<'a> {
    /// Name of the topic of the message.
    pub fn topic(&self) -> &'a str {
        self.messages.topic()
    }

    /// Offset of the message in the topic, counting from 0.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.place.offset
    }

    /// Publication time; never earlier than that of the previous message.
    pub fn time(&self) -> SystemTime {
        crate::time::at(self.place.time)
    }

    /// Publication time in milliseconds since 1970.
    pub fn time_millis(&self) -> u64 {
        self.place.time
    }

    /// Payload of the message.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.messages.shared.bytes[self.place.payload..self.place.end]
    }

    /// Its key, if it has one.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.stored().key
    }

    /// Its headers, in the order in which they were given.
    pub fn headers(&self) -> Headers<'a> {
        Headers::new(self.stored().headers)
    }

    /// The first header with a name.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// Name of the publisher and sequence of the message, if it was published with them (see [`crate::Publisher`]).
    pub fn publisher(&self) -> Option<(&'a str, u64)> {
        self.stored().publisher
    }

    /// Its id, if it has one (see [`crate::Message::id`]).
    pub fn id(&self) -> Option<&'a [u8]> {
        self.stored().id
    }

    /// Expiry time, if the message has one (see [`crate::Message::expires_after`]).
    pub fn expires(&self) -> Option<SystemTime> {
        let at = self.stored().expires_at()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(at))
    }

    fn stored(&self) -> Stored<'a> {
        let head = &self.messages.shared.bytes[self.place.head..self.place.head_end];
        Stored::decode(head).unwrap_or_else(|error| unreachable!("the head was checked when it was read: {error}"))
    }
}

/// Messages that are being read.
pub(crate) struct Collecting {
    shared: Shared,
    /// Whether the caller knows the time, and pushes no expired message.
    knows_time: bool,
    /// A message arrived that may be expired. It and all later messages are left out.
    is_closed: bool,
}

impl Collecting {
    /// For a reader that leaves out expired messages itself.
    pub(crate) fn knowing_time(topic: (&Arc<str>, u32), gap: Option<Range<u64>>) -> Collecting {
        Collecting {
            knows_time: true,
            ..Collecting::new(topic, gap)
        }
    }

    /// Collects messages of the topic with this name and number, up to before the first message with an expiry time.
    /// The caller does not know the time; another reader handles such messages.
    pub(crate) fn new((topic, topic_id): (&Arc<str>, u32), gap: Option<Range<u64>>) -> Collecting {
        Collecting {
            shared: Shared {
                topic: topic.clone(),
                topic_id,
                bytes: Vec::new(),
                places: Vec::new(),
                gap,
            },
            knows_time: false,
            is_closed: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shared.places.len()
    }

    /// Bytes collected so far.
    pub(crate) fn bytes(&self) -> usize {
        self.shared.bytes.len()
    }

    /// Adds a message. If its payload is stored separately, `fetch` reads it, given its length.
    pub(crate) fn push(
        &mut self,
        offset: u64,
        head: &[u8],
        fetch: impl FnOnce(&mut Vec<u8>, u64) -> Result<()>,
    ) -> Result<()> {
        self.is_closed |= !self.knows_time && may_expire(head);
        if self.is_closed {
            return Ok(());
        }
        let stored = Stored::decode(head)?;
        let bytes = &mut self.shared.bytes;
        let start = bytes.len();
        bytes.extend_from_slice(head);
        let head_end = bytes.len();
        let payload = match stored.payload {
            Ok(payload) => bytes.len() - payload.len(),
            Err(length) => {
                let payload = bytes.len();
                fetch(bytes, length)?;
                if (bytes.len() - payload) as u64 != length {
                    return Err(Error::damaged(format!(
                        "the payload of message {offset} has the wrong length"
                    )));
                }
                payload
            }
        };
        let place = Place {
            offset,
            time: stored.time,
            head: start,
            head_end,
            payload,
            end: bytes.len(),
        };
        self.shared.places.push(place);
        Ok(())
    }

    /// Adds a message that was read before.
    fn copy(&mut self, bytes: &[u8], place: &Place) {
        let start = self.shared.bytes.len();
        self.shared.bytes.extend_from_slice(&bytes[place.head..place.end]);
        self.shared.places.push(Place {
            head: start,
            head_end: start + (place.head_end - place.head),
            payload: start + (place.payload - place.head),
            end: self.shared.bytes.len(),
            ..*place
        });
    }

    /// Returns the messages in the order of their offsets, in whatever order they were added.
    pub(crate) fn finish_sorted(mut self) -> Messages {
        self.shared.places.sort_unstable_by_key(|place| place.offset);
        self.finish()
    }

    pub(crate) fn finish(self) -> Messages {
        let range = 0..self.shared.places.len();
        Messages {
            shared: Arc::new(self.shared),
            range,
        }
    }
}
