//! What a group stores about the messages of its topic, and in which form.
//!
//! ```text
//! group id, 0                    cursor: messages before `next` were delivered or skipped
//! group id, 1, offset            run: the messages from this offset to before `end` were delivered together
//! group id, 2, offset            single: the state of one message
//! group id, 3, token             list: messages that were delivered together, but not as a run
//! group id, 4, time, kind, id    due: at this time something of this kind can continue; no value
//! group id, 5                    number of counted messages that were closed: additions change it
//! group id, 6, key hash, offset  keyed: an open message of an ordered group; no value
//! group id, 7                    number of parked messages: additions change it
//! group id, 8                    position up to which dead letters were brought back
//! group id, 9                    anchor: rewritten when the group opens closed messages again; no value
//!
//! cursor   1  form: 2
//!         ..  next, floor, opened, counted, skipped, epoch
//! lease   ..  token, process, deadline; member: length, name
//! run      1  form: 2
//!         ..  end; flags: 1 extended, 2 counted; lease
//! list     1  form: 2
//!         ..  lease; lost offset plus one; count; each: offset, as the distance from the previous offset
//! single   1  form: 2
//!          1  0 settled: token of the lease that settled it
//!             1 waits: due, tries, origin plus one; 1: counted; key hash; error: length, text
//!             2 held: token, tries, origin plus one; 1: counted; key hash
//!             3 parked: tries; key hash
//! letters  1  form: 2
//!         ..  number of the dead-letter topic, offset of the next dead letter
//! key hash 1  1: it has one, in 8 bytes
//! ```
//!
//! Numbers have seven bits a byte, least significant first. Times are milliseconds since 1970 on the clock that all
//! processes share ([`duramen_engine::Store::shared_clock`]).
//!
//! The state of a message follows from its rows. A single states it. Without a single, the member of a covering run
//! holds the message. Any other message below `next` is closed: it was settled, or the group skipped it.
//!
//! Invariants:
//! - `floor <= every open message < next`, and no run begins below `floor`, so a search begins at `floor`;
//! - of the counted messages, `counted - closed` are held by members or wait, and `parked` more wait for an earlier
//!   message of their key. The group decides at delivery which messages are counted: see [`super::in_flight`];
//! - a waiting single has a row in `due`, and so have a list and an extended run;
//! - runs that were not extended end in the order of their offsets, unless the group got a shorter lease meanwhile;
//! - a settled single is inside a run: without the run it would have no meaning.

use std::ops::Range;

use duramen_engine::Result;

use crate::bytes::{Reader, put_bytes, put_number};
use crate::tables::offset_of;

const FORM: u8 = 2;
const CURSOR: u8 = 0;
const RUN: u8 = 1;
const SINGLE: u8 = 2;
const LIST: u8 = 3;
const DUE: u8 = 4;
const CLOSED: u8 = 5;
const KEYED: u8 = 6;
const PARKED_COUNT: u8 = 7;
const LETTERS: u8 = 8;
const ANCHOR: u8 = 9;

const SETTLED: u8 = 0;
const WAITS: u8 = 1;
const HELD: u8 = 2;
const PARKED: u8 = 3;

/// Maximum length of the stored reason for a failure.
pub(crate) const ERROR_BYTES_MAX: usize = 512;

/// Position and counts of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) next: u64,
    pub(crate) floor: u64,
    /// Messages that were opened: delivered for the first time, or brought back.
    pub(crate) opened: u64,
    /// Opened messages that were counted.
    pub(crate) counted: u64,
    /// Messages that retention deleted before the group had delivered them, or while they waited.
    pub(crate) skipped: u64,
    /// Counts operations that may open messages below `floor`.
    pub(crate) epoch: u64,
}

impl Cursor {
    /// The cursor of a group that begins with message `from`.
    pub(crate) fn at(from: u64) -> Cursor {
        Cursor {
            next: from,
            floor: from,
            ..Cursor::default()
        }
    }

    pub(crate) fn key(group: u32) -> [u8; 5] {
        tagged(group, CURSOR)
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![FORM];
        let counts = [self.opened, self.counted, self.skipped];
        for number in [self.next, self.floor].into_iter().chain(counts).chain([self.epoch]) {
            put_number(&mut out, number);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Cursor> {
        let mut reader = Reader::new(bytes, "the cursor of a group");
        reader.form(FORM)?;
        let cursor = Cursor {
            next: reader.number()?,
            floor: reader.number()?,
            opened: reader.number()?,
            counted: reader.number()?,
            skipped: reader.number()?,
            epoch: reader.number()?,
        };
        reader.end()?;
        Ok(cursor)
    }
}

/// In the place of the number of a process: the lease belongs to a member of a server.
pub(super) const OF_NO_PROCESS_HERE: u64 = u64::MAX;

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Unique for each lease, so that a member cannot mistake another lease for its own.
    pub(crate) token: u64,
    /// The process of the member, as [`duramen_engine::Store::process_number`] numbers it; all bits set: a server has the
    /// member, and no process ends the lease.
    pub(crate) process: u64,
    /// Time when the lease ends.
    pub(crate) deadline: u64,
    pub(crate) member: String,
}

impl Lease {
    /// A lease that any process takes back at once: no process has the number 0.
    fn of_no_process(&self) -> Lease {
        Lease {
            process: 0,
            ..self.clone()
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        for number in [self.token, self.process, self.deadline] {
            put_number(out, number);
        }
        put_bytes(out, self.member.as_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Lease> {
        Ok(Lease {
            token: reader.number()?,
            process: reader.number()?,
            deadline: reader.number()?,
            member: reader.text()?.into(),
        })
    }
}

/// Consecutive messages that were delivered together for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) end: u64,
    pub(crate) is_extended: bool,
    pub(crate) is_counted: bool,
    pub(crate) lease: Lease,
}

impl Run {
    /// A copy of the run that no process holds.
    pub(crate) fn of_no_process(&self) -> Run {
        Run {
            lease: self.lease.of_no_process(),
            ..self.clone()
        }
    }

    pub(crate) fn key(group: u32, first: u64) -> [u8; 13] {
        placed(group, RUN, first)
    }

    /// The key range of all runs that begin at an offset or later.
    pub(crate) fn keys_from(group: u32, first: u64) -> ([u8; 13], [u8; 5]) {
        (placed(group, RUN, first), tagged(group, RUN + 1))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORM];
        put_number(&mut out, self.end);
        out.push(u8::from(self.is_extended) | u8::from(self.is_counted) << 1);
        self.lease.put(&mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Run> {
        let mut reader = Reader::new(bytes, "a lease of a group");
        reader.form(FORM)?;
        let (end, flags) = (reader.number()?, reader.byte()?);
        let run = Run {
            end,
            is_extended: flags & 1 != 0,
            is_counted: flags & 2 != 0,
            lease: Lease::read(&mut reader)?,
        };
        reader.end()?;
        Ok(run)
    }
}

/// Messages that were delivered together, each with its own single.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) lease: Lease,
    /// A message that was taken out of the list without an action of its member. The list can then no longer be
    /// acknowledged as a whole.
    pub(crate) lost: Option<u64>,
    /// In ascending order.
    pub(crate) offsets: Vec<u64>,
}

impl List {
    /// A copy of the list that no process holds.
    pub(crate) fn of_no_process(&self) -> List {
        List {
            lease: self.lease.of_no_process(),
            ..self.clone()
        }
    }

    pub(crate) fn key(group: u32, token: u64) -> [u8; 13] {
        placed(group, LIST, token)
    }

    /// The key range of all lists.
    pub(crate) fn keys(group: u32) -> ([u8; 5], [u8; 5]) {
        (tagged(group, LIST), tagged(group, LIST + 1))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORM];
        self.lease.put(&mut out);
        put_optional(&mut out, self.lost);
        put_number(&mut out, self.offsets.len() as u64);
        let mut last = 0;
        for &offset in &self.offsets {
            put_number(&mut out, offset - last);
            last = offset;
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<List> {
        let mut reader = Reader::new(bytes, "a lease of a group");
        reader.form(FORM)?;
        let lease = Lease::read(&mut reader)?;
        let lost = reader.number()?.checked_sub(1);
        let (count, mut last, mut offsets) = (reader.number()?, 0u64, Vec::new());
        for _ in 0..count {
            let offset = last.checked_add(reader.number()?);
            last = offset.ok_or_else(|| reader.damaged("has an offset that is too large"))?;
            offsets.push(last);
        }
        reader.end()?;
        Ok(List { lease, lost, offsets })
    }
}

/// The state of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Single {
    /// The holder of this token acknowledged the message or gave it up; 0: no holder was left.
    Settled { token: u64 },
    /// The message waits for delivery, usually for redelivery.
    Waits {
        due: u64,
        /// Number of deliveries.
        tries: u32,
        /// First message of the run that delivered it, if that run may still exist.
        origin: Option<u64>,
        is_counted: bool,
        /// Hash of its key, in an ordered group.
        key: Option<u64>,
        /// Reason of the failure.
        error: String,
    },
    /// A list holds it.
    Held {
        token: u64,
        /// Number of deliveries, including this one.
        tries: u32,
        origin: Option<u64>,
        is_counted: bool,
        key: Option<u64>,
    },
    /// It waits until all earlier messages of its key are closed.
    Parked { tries: u32, key: Option<u64> },
}

impl Single {
    pub(crate) fn key(group: u32, offset: u64) -> [u8; 13] {
        placed(group, SINGLE, offset)
    }

    /// The key range of the singles of some messages.
    pub(crate) fn keys(group: u32, offsets: Range<u64>) -> ([u8; 13], [u8; 13]) {
        (placed(group, SINGLE, offsets.start), placed(group, SINGLE, offsets.end))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORM];
        match self {
            Single::Settled { token } => {
                out.push(SETTLED);
                put_number(&mut out, *token);
            }
            Single::Waits {
                due,
                tries,
                origin,
                is_counted,
                key,
                error,
            } => {
                out.push(WAITS);
                put_number(&mut out, *due);
                put_number(&mut out, u64::from(*tries));
                put_optional(&mut out, *origin);
                out.push(u8::from(*is_counted));
                put_hash(&mut out, *key);
                put_bytes(&mut out, error.as_bytes());
            }
            Single::Held {
                token,
                tries,
                origin,
                is_counted,
                key,
            } => {
                out.push(HELD);
                put_number(&mut out, *token);
                put_number(&mut out, u64::from(*tries));
                put_optional(&mut out, *origin);
                out.push(u8::from(*is_counted));
                put_hash(&mut out, *key);
            }
            Single::Parked { tries, key } => {
                out.push(PARKED);
                put_number(&mut out, u64::from(*tries));
                put_hash(&mut out, *key);
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Single> {
        let mut reader = Reader::new(bytes, "what a group knows of a message");
        reader.form(FORM)?;
        let single = match reader.byte()? {
            SETTLED => Single::Settled {
                token: reader.number()?,
            },
            WAITS => Single::Waits {
                due: reader.number()?,
                tries: tries(&mut reader)?,
                origin: reader.number()?.checked_sub(1),
                is_counted: reader.byte()? != 0,
                key: hash(&mut reader)?,
                error: reader.text()?.into(),
            },
            HELD => Single::Held {
                token: reader.number()?,
                tries: tries(&mut reader)?,
                origin: reader.number()?.checked_sub(1),
                is_counted: reader.byte()? != 0,
                key: hash(&mut reader)?,
            },
            PARKED => Single::Parked {
                tries: tries(&mut reader)?,
                key: hash(&mut reader)?,
            },
            _ => return Err(reader.damaged("is of no known kind")),
        };
        reader.end()?;
        Ok(single)
    }
}

fn put_optional(out: &mut Vec<u8>, offset: Option<u64>) {
    put_number(out, offset.map_or(0, |offset| offset.saturating_add(1)));
}

fn put_hash(out: &mut Vec<u8>, key: Option<u64>) {
    out.push(u8::from(key.is_some()));
    out.extend(key.iter().flat_map(|hash| hash.to_be_bytes()));
}

fn hash(reader: &mut Reader<'_>) -> Result<Option<u64>> {
    match reader.byte()? {
        0 => Ok(None),
        _ => Ok(Some(u64::from_be_bytes(
            reader.bytes(8)?.try_into().expect("eight bytes"),
        ))),
    }
}

fn tries(reader: &mut Reader<'_>) -> Result<u32> {
    let tries = reader.number()?;
    u32::try_from(tries).map_err(|_| reader.damaged("has more tries than can be"))
}

/// What can continue at a due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum DueKind {
    /// A message can be delivered: `id` is its offset.
    Waits = 0,
    /// The lease of a list ends: `id` is its token.
    List = 1,
    /// The lease of an extended run ends: `id` is its first offset.
    Run = 2,
}

/// A row of `due`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Due {
    pub(crate) time: u64,
    pub(crate) kind: DueKind,
    pub(crate) id: u64,
}

impl Due {
    pub(crate) fn key(self, group: u32) -> [u8; 22] {
        let mut key = [0; 22];
        key[..13].copy_from_slice(&placed(group, DUE, self.time));
        key[13] = self.kind as u8;
        key[14..].copy_from_slice(&self.id.to_be_bytes());
        key
    }

    /// The key range of all rows that are due at a time or later.
    pub(crate) fn keys_from(group: u32, time: u64) -> ([u8; 13], [u8; 5]) {
        (placed(group, DUE, time), tagged(group, DUE + 1))
    }

    pub(crate) fn decode(key: &[u8]) -> Result<Due> {
        let mut reader = Reader::new(key, "a time that a group waits for");
        reader.bytes(5)?;
        let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        let time = word(reader.bytes(8)?);
        let kind = match reader.byte()? {
            0 => DueKind::Waits,
            1 => DueKind::List,
            2 => DueKind::Run,
            _ => return Err(reader.damaged("is of no known kind")),
        };
        let id = word(reader.bytes(8)?);
        reader.end()?;
        Ok(Due { time, kind, id })
    }
}

/// Key of the number of closed messages.
pub(crate) fn closed_key(group: u32) -> [u8; 5] {
    tagged(group, CLOSED)
}

/// Key of the number of parked messages.
pub(crate) fn parked_key(group: u32) -> [u8; 5] {
    tagged(group, PARKED_COUNT)
}

/// Key of the row that is rewritten when closed messages are opened again.
pub(crate) fn anchor_key(group: u32) -> [u8; 5] {
    tagged(group, ANCHOR)
}

/// Decodes a number that additions change.
pub(crate) fn counted(value: Option<&[u8]>) -> Result<i64> {
    let Some(value) = value else { return Ok(0) };
    let bytes = value.try_into();
    let wrong = |_| duramen_engine::Error::damaged("a count of a group has the wrong length");
    Ok(i64::from_be_bytes(bytes.map_err(wrong)?))
}

/// An open message of an ordered group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keyed {
    pub(crate) hash: u64,
    pub(crate) offset: u64,
}

impl Keyed {
    pub(crate) fn key(self, group: u32) -> [u8; 21] {
        let mut key = [0; 21];
        key[..13].copy_from_slice(&placed(group, KEYED, self.hash));
        key[13..].copy_from_slice(&self.offset.to_be_bytes());
        key
    }

    /// First and last key of the open messages of a key.
    pub(crate) fn keys(group: u32, hash: u64) -> ([u8; 21], [u8; 21]) {
        let at = |offset| Keyed { hash, offset }.key(group);
        (at(0), at(u64::MAX))
    }
}

/// Position up to which a group has brought back dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Letters {
    pub(crate) topic: u32,
    pub(crate) next: u64,
}

impl Letters {
    pub(crate) fn key(group: u32) -> [u8; 5] {
        tagged(group, LETTERS)
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![FORM];
        put_number(&mut out, u64::from(self.topic));
        put_number(&mut out, self.next);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Letters> {
        let mut reader = Reader::new(bytes, "how far dead letters were brought back");
        reader.form(FORM)?;
        let (topic, next) = (reader.number()?, reader.number()?);
        let topic = u32::try_from(topic).map_err(|_| reader.damaged("has a number that is too large"))?;
        reader.end()?;
        Ok(Letters { topic, next })
    }
}

fn tagged(group: u32, tag: u8) -> [u8; 5] {
    let mut key = [tag; 5];
    key[..4].copy_from_slice(&group.to_be_bytes());
    key
}

fn placed(group: u32, tag: u8, offset: u64) -> [u8; 13] {
    let mut key = [0; 13];
    key[..5].copy_from_slice(&tagged(group, tag));
    key[5..].copy_from_slice(&offset.to_be_bytes());
    key
}

/// A row of a group, for readers of all rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Cursor(Cursor),
    Run(u64, Run),
    Single(u64, Single),
    List(u64, List),
    /// A row that says nothing about a message by itself.
    Other,
}

impl Row {
    /// Reads a row.
    pub(crate) fn decode(key: &[u8], bytes: &[u8]) -> Result<Row> {
        let strange = || Reader::new(bytes, "a row of a group").damaged("is of no known kind");
        Ok(match (key.get(4), key.len()) {
            (Some(&CURSOR), 5) => Row::Cursor(Cursor::decode(bytes)?),
            (Some(&RUN), 13) => Row::Run(offset_of(key), Run::decode(bytes)?),
            (Some(&SINGLE), 13) => Row::Single(offset_of(key), Single::decode(bytes)?),
            (Some(&LIST), 13) => Row::List(offset_of(key), List::decode(bytes)?),
            (Some(&DUE), 22) => Due::decode(key).map(|_| Row::Other)?,
            (Some(&CLOSED | &PARKED_COUNT), 5) => counted(Some(bytes)).map(|_| Row::Other)?,
            (Some(&KEYED), 21) | (Some(&ANCHOR), 5) if bytes.is_empty() => Row::Other,
            (Some(&LETTERS), 5) => Letters::decode(bytes).map(|_| Row::Other)?,
            _ => return Err(strange()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        Lease {
            token: u64::MAX,
            process: 7 << 32,
            deadline: 1 << 41,
            member: "worker".into(),
        }
    }

    fn waits(origin: Option<u64>, key: Option<u64>) -> Single {
        Single::Waits {
            due: 1,
            tries: 3,
            origin,
            is_counted: true,
            key,
            error: "no".into(),
        }
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let run = Run {
            end: 700,
            is_extended: true,
            is_counted: true,
            lease: lease(),
        };
        let held = Single::Held {
            token: 5,
            tries: 4,
            origin: Some(0),
            is_counted: false,
            key: None,
        };
        let parked = Single::Parked { tries: 0, key: Some(3) };
        let list = List {
            lease: lease(),
            lost: Some(0),
            offsets: vec![0, 3, 1 << 40],
        };
        let cursor = Cursor {
            next: 300,
            floor: 2,
            opened: 5,
            counted: 3,
            skipped: 4,
            epoch: 1,
        };
        let due = Due {
            time: 9,
            kind: DueKind::List,
            id: 8,
        };
        assert_eq!(Due::decode(&due.key(8)).unwrap(), due);
        let letters = Letters {
            topic: 6,
            next: 1 << 33,
        };
        assert_eq!(Letters::decode(&letters.encode()).unwrap(), letters);
        let rows = [
            Row::Cursor(cursor),
            Row::Run(600, run),
            Row::Single(601, Single::Settled { token: 300 }),
            Row::Single(602, waits(Some(600), Some(u64::MAX))),
            Row::Single(603, waits(None, None)),
            Row::Single(604, held),
            Row::Single(605, parked),
            Row::List(606, list),
        ];
        for row in rows {
            let (key, bytes) = match &row {
                Row::Cursor(cursor) => (Cursor::key(8).to_vec(), cursor.encode()),
                Row::Run(first, run) => (Run::key(8, *first).to_vec(), run.encode()),
                Row::Single(offset, single) => (Single::key(8, *offset).to_vec(), single.encode()),
                Row::List(token, list) => (List::key(8, *token).to_vec(), list.encode()),
                Row::Other => unreachable!(),
            };
            assert_eq!(Row::decode(&key, &bytes).unwrap(), row);
            for length in 0..bytes.len() {
                assert!(Row::decode(&key, &bytes[..length]).is_err());
            }
        }
    }

    #[test]
    fn keys_lie_in_the_ranges_that_are_searched() {
        let (low, high) = Run::keys_from(8, 5);
        assert!(low[..] <= Run::key(8, 5)[..] && Run::key(8, u64::MAX)[..] < high[..]);
        assert!(Cursor::key(8)[..] < low[..] && high[..] < Single::key(8, 0)[..]);
        let (low, high) = Single::keys(8, 5..7);
        assert!(low == Single::key(8, 5) && Single::key(8, 6) < high && high <= Single::key(8, 7));
        let at = |time, kind, id| Due { time, kind, id };
        let (low, high) = Due::keys_from(8, 5);
        assert!(low[..] <= at(5, DueKind::Waits, 0).key(8)[..]);
        assert!(at(u64::MAX, DueKind::Run, u64::MAX).key(8)[..] < high[..]);
        assert!(at(5, DueKind::Run, 9).key(8) < at(6, DueKind::Waits, 0).key(8));
    }
}
