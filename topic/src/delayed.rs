//! Delayed messages: messages that wait until they are due, and moving them into their topics.
//!
//! A delayed message is a row of a separate map:
//!
//! ```text
//! key     8  due, milliseconds since 1970, big-endian
//!         8  number, which orders messages of one due time, big-endian
//!         4  topic id, big-endian
//! value   1  form: 1
//!        ..  name of the topic: length, bytes
//!        ..  head of the message: length, bytes (see `message`)
//!        ..  payload that is too long for a head, to the end
//! ```
//!
//! The key begins with the due time. So the first row tells whether anything is due, however many messages wait. A due
//! message is moved in one transaction that deletes its row and appends to its topic. If two processes move the same
//! row, both delete it: the second process conflicts, runs again and finds no row. So each message is published once.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use duramen_engine::{Error, Item, Reason, Result, Transaction, TransactionOptions};

use crate::bytes::{Reader, put_bytes};
use crate::error::{TopicError, is_deleted};
use crate::handle::{Topic, Topics};
use crate::home::{Home, Inner};
use crate::ids;
use crate::limits::{MOVED_BYTES, MOVED_TOGETHER_MAX};
use crate::message::{Message, Stored};
use crate::record::millis;
use crate::time::{at, since_epoch};

const FORM: u8 = 1;
const KEY_BYTES: usize = 20;

/// A delayed message: what [`Topic::publish_at`] returns and [`Topic::cancel`] takes. Its text form can be stored, and
/// read back by any process.
///
/// ```
/// use duramen_topic::Scheduled;
/// let scheduled: Scheduled = "1800000000000-17".parse()?;
/// assert_eq!(scheduled.to_string(), "1800000000000-17");
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scheduled {
    due: u64,
    number: u64,
}

impl Scheduled {
    /// Due time of the message, in whole milliseconds.
    pub fn due(&self) -> SystemTime {
        at(self.due)
    }

    fn key(self, topic: u32) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&self.due.to_be_bytes());
        key[8..16].copy_from_slice(&self.number.to_be_bytes());
        key[16..].copy_from_slice(&topic.to_be_bytes());
        key
    }

    /// Decodes a key: the message, and the number of its topic.
    fn of_key(key: &[u8]) -> Result<(Scheduled, u32)> {
        let mut reader = Reader::new(key, "the key of a delayed message");
        let mut word = || -> Result<u64> { Ok(u64::from_be_bytes(reader.bytes(8)?.try_into().expect("eight bytes"))) };
        let (due, number) = (word()?, word()?);
        let topic = u32::from_be_bytes(reader.bytes(4)?.try_into().expect("four bytes"));
        reader.end()?;
        Ok((Scheduled { due, number }, topic))
    }
}

impl fmt::Display for Scheduled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.due, self.number)
    }
}

impl FromStr for Scheduled {
    type Err = Error;

    fn from_str(text: &str) -> Result<Scheduled> {
        let parsed = text.split_once('-').and_then(|(due, number)| {
            Some(Scheduled {
                due: due.parse().ok()?,
                number: number.parse().ok()?,
            })
        });
        let cause =
            || format!("{text:?} names no delayed message; it has the form DUE-NUMBER, as publishing returned it");
        parsed.ok_or_else(|| TopicError::InvalidOptions { cause: cause() }.into())
    }
}

/// Counts of the delayed messages of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduledMessages {
    /// Number of waiting messages.
    pub count: u64,
    /// Due time of the first message; `None`: no message waits.
    pub next: Option<SystemTime>,
}

/// The decoded value of a row.
pub(crate) struct Delayed<'a> {
    name: &'a str,
    item: Item<'a>,
}

impl<'a> Delayed<'a> {
    fn encode(name: &str, item: &Item<'_>) -> Vec<u8> {
        let body = item.body.unwrap_or_default();
        let mut out = Vec::with_capacity(name.len() + item.head.len() + body.len() + 8);
        out.push(FORM);
        put_bytes(&mut out, name.as_bytes());
        put_bytes(&mut out, item.head);
        out.extend_from_slice(body);
        out
    }

    fn decode(bytes: &'a [u8]) -> Result<Delayed<'a>> {
        let mut reader = Reader::new(bytes, "a delayed message");
        reader.form(FORM)?;
        let name = reader.text()?;
        let head = reader.long()?;
        let body = reader.rest();
        let body = match Stored::decode(head)?.payload {
            Err(length) if length == body.len() as u64 => Some(body),
            Ok(_) if body.is_empty() => None,
            _ => return Err(reader.damaged("has a payload of the wrong length")),
        };
        Ok(Delayed {
            name,
            item: Item { head, body },
        })
    }

    /// Checks that key and value are those of a delayed message. Returns the number of its topic.
    pub(crate) fn check(key: &[u8], value: &[u8]) -> Result<u32> {
        let (_, topic) = Scheduled::of_key(key)?;
        Delayed::decode(value).map(|_| topic)
    }
}

impl Topic {
    /// Publishes a message at a later time. The message waits in the store, survives crashes as other writes do, and is
    /// published exactly once when it is due. The time is in whole milliseconds, rounded up; a time in the past is due
    /// at once. Scheduling makes its own commit, with the durability of the handle.
    ///
    /// The background thread of any process that has the store open publishes the message, or [`Topics::publish_due`].
    /// If neither runs, the message is late. Messages with the same due time are published in the order of these calls.
    /// Between processes, the wall clock decides which call came first.
    ///
    /// A message with an id ([`Message::id`]) is dropped when it is due if its id was published within the window then.
    ///
    /// A topic that refuses messages when it is full refuses delayed messages when they are scheduled, and accepts them
    /// when they are due. Deleting the topic drops its delayed messages.
    ///
    /// # Errors
    /// As [`Topic::publish`].
    pub fn publish_at<'m>(&self, time: SystemTime, message: impl Into<Message<'m>>) -> Result<Scheduled> {
        self.publish_due_at(whole_millis(since_epoch(time)), &message.into())
    }

    /// Publishes a message after a delay from now, by the wall clock, as [`Topic::publish_at`] does.
    ///
    /// # Errors
    /// As [`Topic::publish`].
    pub fn publish_after<'m>(&self, delay: Duration, message: impl Into<Message<'m>>) -> Result<Scheduled> {
        let now = self.home().store.wall_clock();
        self.publish_due_at(whole_millis(now.saturating_add(delay)), &message.into())
    }

    fn publish_due_at(&self, due: u64, message: &Message<'_>) -> Result<Scheduled> {
        let home = self.home();
        home.store.refuse_beside("topic.publish", self.name())?;
        let options = TransactionOptions::new().durability(self.durability());
        home.store
            .transact_with(options, |tx| schedule_in(tx, self, due, message))
    }

    /// Cancels a delayed message, in its own commit. `false`: the message was published or cancelled before, or belongs
    /// to another topic. In a transaction: [`crate::TopicWrites::cancel`].
    ///
    /// # Errors
    /// Those of a commit.
    pub fn cancel(&self, scheduled: &Scheduled) -> Result<bool> {
        let options = TransactionOptions::new().durability(self.durability());
        self.home()
            .store
            .transact_with(options, |tx| cancel_in(tx, self, scheduled))
    }

    /// Number of delayed messages of the topic, and due time of the first. Reads the keys of the delayed messages of
    /// all topics.
    ///
    /// # Errors
    /// Those of [`duramen_engine::Store::snapshot`].
    pub fn scheduled(&self) -> Result<ScheduledMessages> {
        let snapshot = self.snapshot()?;
        let mut cursor = snapshot.range(&self.home().tables.delayed, ..)?;
        let mut waiting = ScheduledMessages { count: 0, next: None };
        while let Some((key, _)) = cursor.next()? {
            let (scheduled, topic) = Scheduled::of_key(key)?;
            if topic == self.shared().id {
                waiting.count += 1;
                waiting.next.get_or_insert(scheduled.due());
            }
        }
        Ok(waiting)
    }
}

impl Topics {
    /// Publishes the delayed messages of all topics that are due now. Returns how many it published. Needed where no
    /// process that has the store open runs a background thread (see [`crate::TopicsOptions::background`]). Concurrent
    /// calls, also in several processes, publish each message once.
    ///
    /// # Errors
    /// Those of a commit; [`Reason::Damaged`] for a row that cannot be decoded, after all others were published.
    pub fn publish_due(&self) -> Result<u64> {
        publish_due(self.home(), &|| false)
    }
}

/// Schedules a message in a transaction.
pub(crate) fn schedule_in(tx: &mut Transaction, topic: &Topic, due: u64, message: &Message<'_>) -> Result<Scheduled> {
    let home = topic.home();
    if tx.sequence_state(&topic.shared().sequence)?.is_none() {
        let name = topic.name().into();
        return Err(Reason::TopicDeleted { name }.into());
    }
    if message.given_id().is_some() && ids::window_in(tx, topic)?.is_none() {
        return Err(ids::option_missing(topic));
    }
    let scheduled = topic.with_any_item(message, |item| {
        topic.admit(&[item])?;
        let delayed = &home.tables.delayed;
        let mut number = home.delayed_number();
        loop {
            let scheduled = Scheduled { due, number };
            let key = scheduled.key(topic.shared().id);
            // A clock that was set back may produce a number again.
            if tx.get_ref(delayed, key)?.is_none() {
                tx.put(delayed, key, Delayed::encode(topic.name(), &item))?;
                return Ok(scheduled);
            }
            number += 1;
        }
    })?;
    home.wake_background(due);
    Ok(scheduled)
}

pub(crate) fn cancel_in(tx: &mut Transaction, topic: &Topic, scheduled: &Scheduled) -> Result<bool> {
    let delayed = &topic.home().tables.delayed;
    let key = scheduled.key(topic.shared().id);
    if tx.get_ref(delayed, key)?.is_none() {
        return Ok(false);
    }
    tx.delete(delayed, key)?;
    Ok(true)
}

/// Milliseconds, rounded up: a message is never early.
pub(crate) fn whole_millis(time: Duration) -> u64 {
    millis(time.saturating_add(Duration::from_nanos(999_999)))
}

impl Inner {
    /// A number above all numbers that this process drew before, and by the clock above those of other processes.
    fn delayed_number(&self) -> u64 {
        let now = u64::try_from(self.store.wall_clock().as_nanos()).unwrap_or(u64::MAX);
        let draw = |last: u64| Some(now.max(last.saturating_add(1)));
        // Relaxed: only the number is shared; it publishes no other data.
        let last = self
            .delayed_numbers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, draw);
        now.max(last.unwrap_or_default().saturating_add(1))
    }

    /// Time until the first delayed message is due; `None`: no message waits.
    pub(crate) fn due_in(&self) -> Result<Option<Duration>> {
        let snapshot = self.store.snapshot()?;
        let mut cursor = snapshot.range(&self.tables.delayed, ..)?;
        let Some((key, _)) = cursor.next()? else {
            return Ok(None);
        };
        let (first, _) = Scheduled::of_key(key)?;
        let now = self.store.wall_clock();
        Ok(Some(Duration::from_millis(first.due).saturating_sub(now)))
    }
}

/// Publishes due messages, until `is_over`. Returns how many messages it published.
pub(crate) fn publish_due(home: &Home, is_over: &dyn Fn() -> bool) -> Result<u64> {
    let now = millis(home.store.wall_clock());
    let end = now.saturating_add(1).to_be_bytes();
    let (mut published, mut failed) = (0, None);
    let mut from: Vec<u8> = Vec::new();
    while !is_over() {
        let keys = due_keys(home, &from, &end)?;
        let Some(last) = keys.last() else { break };
        // Continues after this row: a damaged row stays, and must not prevent others from being published.
        from = [&last[..], &[0]].concat();
        published += move_rows(home, &keys, &mut failed)?;
    }
    failed.map_or(Ok(published), Err)
}

/// Keys of the next rows before `end`, limited to what one transaction moves.
fn due_keys(home: &Home, from: &[u8], end: &[u8]) -> Result<Vec<Vec<u8>>> {
    let snapshot = home.store.snapshot()?;
    let mut cursor = snapshot.range(&home.tables.delayed, from..end)?;
    let (mut keys, mut bytes) = (Vec::new(), 0);
    while keys.len() < MOVED_TOGETHER_MAX && bytes < MOVED_BYTES {
        let Some((key, value)) = cursor.next()? else { break };
        bytes += value.len();
        keys.push(key.to_vec());
    }
    Ok(keys)
}

/// Moves rows into their topics in one transaction. Returns how many messages it published. `failed` gets the error of
/// the first row that cannot be decoded.
fn move_rows(home: &Home, keys: &[Vec<u8>], failed: &mut Option<Error>) -> Result<u64> {
    loop {
        let moved = home.store.transact(|tx| {
            let mut published = 0;
            for key in keys {
                match move_row(home, tx, key) {
                    Ok(is_published) => published += u64::from(is_published),
                    Err(error) if matches!(error.reason(), Reason::Damaged { .. }) => {
                        failed.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(published)
        });
        match moved {
            // Deleted since the transaction began: the next attempt drops its messages.
            Err(error) if is_deleted(&error) => {}
            moved => return moved,
        }
    }
}

/// Moves one row. `false`: the row or its topic is gone, or the message is a duplicate.
fn move_row(home: &Home, tx: &mut Transaction, key: &[u8]) -> Result<bool> {
    let (_, topic) = Scheduled::of_key(key)?;
    let Some(value) = tx.get_ref(&home.tables.delayed, key)?.map(|value| value.to_vec()) else {
        return Ok(false);
    };
    let delayed = Delayed::decode(&value)?;
    let topic = home.topic(topic, delayed.name)?;
    let is_there = tx.sequence_state(&topic.shared().sequence)?.is_some();
    let id = Stored::decode(delayed.item.head)?.id;
    let window = id.and(ids::window_in(tx, &topic)?);
    let is_duplicate = match (id, window) {
        (Some(id), Some(window)) => ids::is_duplicate_in(tx, &topic, id, window)?,
        _ => false,
    };
    tx.delete(&home.tables.delayed, key)?;
    if !is_there || is_duplicate {
        return Ok(false);
    }
    tx.append_to(&topic.shared().sequence, delayed.item)?;
    if let (Some(id), Some(_)) = (id, window) {
        ids::note_in(tx, &topic, id)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_and_damage_is_an_error() {
        let scheduled = Scheduled { due: 77, number: 3 };
        let key = scheduled.key(9);
        assert_eq!(Scheduled::of_key(&key).unwrap(), (scheduled, 9));
        assert_eq!(scheduled.to_string().parse::<Scheduled>().unwrap(), scheduled);
        for wrong in ["", "7", "7-", "a-b", "-7-7"] {
            assert!(wrong.parse::<Scheduled>().is_err(), "{wrong}");
        }
        let long = vec![7; 100_000];
        for payload in [&b"short"[..], &long] {
            let mut head = Vec::new();
            let body = Message::new(payload).key(b"key").encode(&mut head).unwrap();
            let value = Delayed::encode("orders", &Item { head: &head, body });
            let delayed = Delayed::decode(&value).unwrap();
            assert_eq!(
                (delayed.name, delayed.item.head, delayed.item.body),
                ("orders", &head[..], body)
            );
            assert_eq!(Delayed::check(&key, &value).unwrap(), 9);
            for length in 0..value.len().min(30) {
                assert!(Delayed::decode(&value[..length]).is_err(), "{length}");
                assert!(Scheduled::of_key(&key[..length.min(19)]).is_err());
            }
        }
    }
}
