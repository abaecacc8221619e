//! Messages: as they are published, and as they are stored.
//!
//! A stored message is the *head* of an append to the topic's sequence (see `duramen_engine::Sequence`):
//!
//! ```text
//! 16  time and position, filled in at commit
//!  1  form: 2
//!  1  parts: 1 key, 2 headers, 4 publisher, 8 the payload is in the map of long payloads, 16 id,
//!     32 expiry
//! ..  key: length, bytes                                         with part 1
//! ..  headers: count; each: length, name, length, value          with part 2
//! ..  publisher: length, name, sequence                          with part 4
//! ..  id: length, bytes                                          with part 16
//! ..  expires this many milliseconds after its time              with part 32
//! ..  payload, to the end; only its length if it is long         always
//! ```
//!
//! Numbers after the first 18 bytes have seven bits a byte, least significant first.

use std::time::Duration;

use duramen_engine::{Item, Result, STAMP_BYTES};

use crate::bytes::{Reader, put_bytes, put_number};
use crate::error::TopicError;
use crate::limits::{
    HEADER_BYTES_MAX, HEADERS_MAX, MESSAGE_ID_BYTES_MAX, MESSAGE_KEY_BYTES_MAX, PAYLOAD_BYTES_MAX, PUBLISHER_BYTES_MAX,
    WHOLE_BYTES_MAX,
};
use crate::time::millis;

const FORM: u8 = 2;
const HAS_KEY: u8 = 1;
const HAS_HEADERS: u8 = 2;
const HAS_PUBLISHER: u8 = 4;
const IS_LONG: u8 = 8;
const HAS_ID: u8 = 16;
const HAS_EXPIRY: u8 = 32;
/// The parts that this version knows.
const KNOWN_PARTS: u8 = HAS_KEY | HAS_HEADERS | HAS_PUBLISHER | IS_LONG | HAS_ID | HAS_EXPIRY;

/// A message to publish: a payload, and optionally a key and headers. Any bytes can be published directly.
///
/// ```
/// use duramen_topic::Message;
/// let message = Message::new(b"12 apples").key(b"order-7").header("currency", b"EUR");
/// # let _ = message;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    key: Option<&'a [u8]>,
    headers: Vec<(&'a str, &'a [u8])>,
    publisher: Option<(&'a str, u64)>,
    id: Option<&'a [u8]>,
    expires_after: Option<u64>,
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// A message without key and headers.
    pub fn new(payload: &'a (impl AsRef<[u8]> + ?Sized)) -> Message<'a> {
        Message {
            payload: payload.as_ref(),
            ..Message::default()
        }
    }

    /// Sets the key, up to [`MESSAGE_KEY_BYTES_MAX`] bytes.
    pub fn key(mut self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Message<'a> {
        self.key = Some(key.as_ref());
        self
    }

    /// Adds a header. Names may repeat. Maximum: [`HEADERS_MAX`] headers of [`HEADER_BYTES_MAX`] bytes together.
    pub fn header(mut self, name: &'a str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Message<'a> {
        self.headers.push((name, value.as_ref()));
        self
    }

    /// Sets the id, up to [`MESSAGE_ID_BYTES_MAX`] bytes. The topic detects duplicates by it: see
    /// [`crate::Topic::publish_by_id`].
    pub fn id(mut self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Message<'a> {
        self.id = Some(id.as_ref());
        self
    }

    /// Makes the message expire this long after its commit. Readers do not see it from then on, and the background
    /// deletes it. In whole milliseconds, rounded up. Needs [`crate::TopicOptions::message_expiry`].
    pub fn expires_after(mut self, time: Duration) -> Message<'a> {
        self.expires_after = Some(millis(time.saturating_add(Duration::from_nanos(999_999))));
        self
    }

    pub(crate) fn expires(&self) -> bool {
        self.expires_after.is_some()
    }

    pub(crate) fn key_bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len)
    }

    pub(crate) fn given_id(&self) -> Option<&'a [u8]> {
        self.id
    }

    /// Sets the publisher and the sequence of the message.
    pub(crate) fn publisher(mut self, name: &'a str, sequence: u64) -> Message<'a> {
        self.publisher = Some((name, sequence));
        self
    }

    fn check(&self) -> Result<()> {
        let too_large = |what, found, max, cure| {
            let error = TopicError::MessageTooLarge { what, found, max, cure };
            Err(error.into())
        };
        let bytes = self.key.map_or(0, <[u8]>::len);
        if bytes > MESSAGE_KEY_BYTES_MAX {
            let max = MESSAGE_KEY_BYTES_MAX as u64;
            return too_large("bytes of key", bytes as u64, max, "put part of it in the payload");
        }
        if self.headers.len() > HEADERS_MAX {
            let max = HEADERS_MAX as u64;
            return too_large("headers", self.headers.len() as u64, max, "put them in the payload");
        }
        let bytes: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > HEADER_BYTES_MAX {
            let max = HEADER_BYTES_MAX as u64;
            return too_large("bytes of headers", bytes as u64, max, "put them in the payload");
        }
        let bytes = self.publisher.map_or(0, |(name, _)| name.len());
        if bytes > PUBLISHER_BYTES_MAX {
            let max = PUBLISHER_BYTES_MAX as u64;
            return too_large("bytes of publisher", bytes as u64, max, "choose a shorter name");
        }
        let bytes = self.id.map_or(0, <[u8]>::len);
        if bytes > MESSAGE_ID_BYTES_MAX {
            let max = MESSAGE_ID_BYTES_MAX as u64;
            return too_large("bytes of id", bytes as u64, max, "take a hash of it");
        }
        if self.payload.len() as u64 > PAYLOAD_BYTES_MAX {
            let (found, max) = (self.payload.len() as u64, PAYLOAD_BYTES_MAX);
            return too_large("bytes of payload", found, max, "split it over several messages");
        }
        Ok(())
    }

    /// Appends the stored form to `out`. Returns the payload if it belongs in the map of long payloads.
    ///
    /// # Errors
    /// [`TopicError::MessageTooLarge`].
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<Option<&'a [u8]>> {
        self.check()?;
        let start = out.len();
        out.extend_from_slice(&[0; STAMP_BYTES]);
        out.extend_from_slice(&[FORM, 0]);
        let mut parts = 0;
        if let Some(key) = self.key {
            parts |= HAS_KEY;
            put_bytes(out, key);
        }
        if !self.headers.is_empty() {
            parts |= HAS_HEADERS;
            put_number(out, self.headers.len() as u64);
            for (name, value) in &self.headers {
                put_bytes(out, name.as_bytes());
                put_bytes(out, value);
            }
        }
        if let Some((name, sequence)) = self.publisher {
            parts |= HAS_PUBLISHER;
            put_bytes(out, name.as_bytes());
            put_number(out, sequence);
        }
        if let Some(id) = self.id {
            parts |= HAS_ID;
            put_bytes(out, id);
        }
        if let Some(time) = self.expires_after {
            parts |= HAS_EXPIRY;
            put_number(out, time);
        }
        let is_long = out.len() - start + self.payload.len() > WHOLE_BYTES_MAX;
        if is_long {
            parts |= IS_LONG;
            put_number(out, self.payload.len() as u64);
        } else {
            out.extend_from_slice(self.payload);
        }
        out[start + STAMP_BYTES + 1] = parts;
        Ok(is_long.then_some(self.payload))
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Message<'a> {
    fn from(payload: &'a T) -> Message<'a> {
        Message::new(payload)
    }
}

/// The stored forms of messages that are published together.
#[derive(Debug, Default)]
pub(crate) struct Encoded<'a> {
    bytes: Vec<u8>,
    /// End of each message in the bytes, and its long payload.
    ends: Vec<(usize, Option<&'a [u8]>)>,
}

impl<'a> Encoded<'a> {
    pub(crate) fn push(&mut self, message: &Message<'a>) -> Result<()> {
        let body = message.encode(&mut self.bytes)?;
        self.ends.push((self.bytes.len(), body));
        Ok(())
    }

    pub(crate) fn items(&self) -> Vec<Item<'_>> {
        let mut start = 0;
        let item = |&(end, body): &(usize, Option<&'a [u8]>)| {
            let head = &self.bytes[start..end];
            start = end;
            Item { head, body }
        };
        self.ends.iter().map(item).collect()
    }
}

/// A decoded stored message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored<'a> {
    pub(crate) time: u64,
    pub(crate) position: u64,
    pub(crate) key: Option<&'a [u8]>,
    /// Number of headers, and their bytes.
    pub(crate) headers: (u64, &'a [u8]),
    pub(crate) publisher: Option<(&'a str, u64)>,
    pub(crate) id: Option<&'a [u8]>,
    /// Milliseconds after its time.
    pub(crate) expires_after: Option<u64>,
    /// `Err`: the length of a payload that is stored separately.
    pub(crate) payload: Result<&'a [u8], u64>,
}

impl<'a> Stored<'a> {
    /// Decodes a stored form.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::Damaged`].
    pub(crate) fn decode(head: &'a [u8]) -> Result<Stored<'a>> {
        let mut reader = Reader::new(head, "a message");
        let stamp = reader.bytes(STAMP_BYTES)?;
        let word = |place: usize| u64::from_be_bytes(stamp[place..place + 8].try_into().expect("eight bytes"));
        reader.form(FORM)?;
        let parts = reader.byte()?;
        if parts & !KNOWN_PARTS != 0 {
            return Err(reader.damaged("has parts that this library does not know"));
        }
        let has = |part: u8| parts & part != 0;
        let key = has(HAS_KEY).then(|| reader.long()).transpose()?;
        let headers = if has(HAS_HEADERS) {
            skip_headers(&mut reader)?
        } else {
            (0, &[][..])
        };
        let publisher = match has(HAS_PUBLISHER) {
            true => Some((reader.text()?, reader.number()?)),
            false => None,
        };
        let id = has(HAS_ID).then(|| reader.long()).transpose()?;
        let expires_after = has(HAS_EXPIRY).then(|| reader.number()).transpose()?;
        let payload = match has(IS_LONG) {
            true => {
                let length = reader.number()?;
                reader.end()?;
                Err(length)
            }
            false => Ok(reader.rest()),
        };
        Ok(Stored {
            time: word(0),
            position: word(8),
            key,
            headers,
            publisher,
            id,
            expires_after,
            payload,
        })
    }

    /// Expiry time in milliseconds since 1970.
    pub(crate) fn expires_at(&self) -> Option<u64> {
        self.expires_after.map(|after| self.time.saturating_add(after))
    }
}

/// Whether a stored form has an expiry time. Reads a single byte.
#[inline]
pub(crate) fn may_expire(head: &[u8]) -> bool {
    head.get(STAMP_BYTES + 1).is_some_and(|parts| parts & HAS_EXPIRY != 0)
}

/// Checks the headers and skips them.
fn skip_headers<'a>(reader: &mut Reader<'a>) -> Result<(u64, &'a [u8])> {
    let count = reader.number()?;
    let before = reader.rest();
    for _ in 0..count {
        reader.text()?;
        reader.long()?;
    }
    Ok((count, &before[..before.len() - reader.rest().len()]))
}

/// Headers of a message: names and values, in the order in which they were given.
#[derive(Clone)]
pub struct Headers<'a> {
    left: u64,
    reader: Reader<'a>,
}

impl<'a> Headers<'a> {
    /// Headers that `Stored::decode` has checked.
    pub(crate) fn new((left, bytes): (u64, &'a [u8])) -> Headers<'a> {
        Headers {
            left,
            reader: Reader::new(bytes, "a header"),
        }
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<(&'a str, &'a [u8])> {
        self.left = self.left.checked_sub(1)?;
        let checked = "headers were checked when they were read";
        Some((self.reader.text().expect(checked), self.reader.long().expect(checked)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_bytes(rng: &mut fastrand::Rng, most: usize) -> Vec<u8> {
        (0..rng.usize(..most)).map(|_| rng.u8(..)).collect()
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..2_000 {
            let (key, payload) = (random_bytes(&mut rng, 100), random_bytes(&mut rng, 300));
            let long = vec![7; WHOLE_BYTES_MAX];
            let headers: Vec<(String, Vec<u8>)> = (0..rng.usize(..4))
                .map(|number| (format!("h{number}"), random_bytes(&mut rng, 50)))
                .collect();
            let mut message = Message::new(if round % 50 == 0 { &long } else { &payload });
            if rng.bool() {
                message = message.key(&key);
            }
            for (name, value) in &headers {
                message = message.header(name, value);
            }
            if rng.bool() {
                message = message.publisher("a publisher", rng.u64(..));
            }
            if rng.bool() {
                message = message.id(&key);
            }
            if rng.bool() {
                message = message.expires_after(Duration::from_millis(rng.u64(..)));
            }
            let mut out = Vec::new();
            let body = message.encode(&mut out).unwrap();
            let stored = Stored::decode(&out).unwrap();
            assert_eq!(stored.key, message.key);
            assert_eq!(stored.publisher, message.publisher);
            assert_eq!((stored.id, stored.expires_after), (message.id, message.expires_after));
            assert_eq!(may_expire(&out), message.expires());
            assert_eq!(Headers::new(stored.headers).collect::<Vec<_>>(), message.headers);
            match stored.payload {
                Ok(payload) => assert_eq!((payload, body), (message.payload, None)),
                Err(length) => assert_eq!((length as usize, body), (long.len(), Some(&long[..]))),
            }
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_damage_and_never_a_panic() {
        let mut rng = fastrand::Rng::with_seed(2);
        let mut whole = Vec::new();
        let message = Message::new(b"payload")
            .key(b"key")
            .header("name", b"value")
            .publisher("me", 300)
            .id(b"id")
            .expires_after(Duration::from_secs(1));
        message.encode(&mut whole).unwrap();
        for length in 0..whole.len() - b"payload".len() {
            assert!(Stored::decode(&whole[..length]).is_err(), "{length}");
        }
        let mut refused = 0;
        for _ in 0..200_000 {
            let mut bytes = whole.clone();
            for _ in 0..rng.usize(1..4) {
                let place = rng.usize(..bytes.len());
                bytes[place] = rng.u8(..);
            }
            bytes.truncate(rng.usize(..=bytes.len()));
            match Stored::decode(&bytes) {
                Ok(stored) => assert_eq!(Headers::new(stored.headers).count() as u64, stored.headers.0),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 1_000, "{refused}");
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let (key, header) = (vec![0; MESSAGE_KEY_BYTES_MAX + 1], vec![0; HEADER_BYTES_MAX + 1]);
        let mut many = Message::new(b"");
        for _ in 0..=HEADERS_MAX {
            many = many.header("a", b"");
        }
        let long_name = "p".repeat(PUBLISHER_BYTES_MAX + 1);
        let refused = [
            Message::new(b"").key(&key),
            Message::new(b"").header("a", &header),
            many,
            Message::new(b"").publisher(&long_name, 0),
            Message::new(b"").id(&key[..MESSAGE_ID_BYTES_MAX + 1]),
        ];
        for message in refused {
            let error = message.encode(&mut Vec::new()).unwrap_err();
            assert!(
                matches!(TopicError::of(&error), Some(TopicError::MessageTooLarge { .. })),
                "{error}"
            );
        }
        let most = vec![0; MESSAGE_KEY_BYTES_MAX];
        let headers = vec![0; HEADER_BYTES_MAX - 1];
        let fits = Message::new(b"").key(&most).header("a", &headers);
        fits.encode(&mut Vec::new()).unwrap();
    }
}
