//! What a group knows of the messages of its topic, and how that is stored.
//!
//! ```text
//! group id, 0           -> cursor: messages before `next` were handed out; nothing below `floor` is open
//! group id, 1, offset   -> run: the messages from this offset to before `end` were handed to one member together
//! group id, 2, offset   -> single: what became of one message
//!
//! cursor   1  form: 1
//!         ..  next, floor
//! run      1  form: 1
//!         ..  end, token, lease, deadline; member: length, name
//! single   1  form: 1
//!          1  0 settled: token of the lease by which it was
//!             1 waits: due, delay, tries; error: length, text
//!             2 handed out again: token, lease, deadline, tries; member: length, name
//! ```
//!
//! Numbers have seven bits a byte, least first. Deadlines and dues are milliseconds since 1970; lease and delay say how far
//! ahead they were when they were written, so that a clock that was set back cannot move them further away.
//!
//! What a message is follows from its rows: a single says it; without one, a message in a run is with the run's member; any
//! other message below `next` is settled. So a run whose messages are all settled at once is one row less, and `floor` may
//! be lower than it could be: it only says where to begin looking.

use duramen_engine::Result;

use crate::bytes::{Reader, put_bytes, put_number};
use crate::tables::offset_of;

const FORM: u8 = 1;
const CURSOR: u8 = 0;
const RUN: u8 = 1;
const SINGLE: u8 = 2;
const SETTLED: u8 = 0;
const WAITS: u8 = 1;
const AGAIN: u8 = 2;

/// Longest text kept of why a message failed.
pub(crate) const ERROR_BYTES_MAX: usize = 512;

/// How far a group has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) next: u64,
    pub(crate) floor: u64,
}

impl Cursor {
    pub(crate) fn key(group: u32) -> [u8; 5] {
        tagged(group, CURSOR)
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![FORM];
        put_number(&mut out, self.next);
        put_number(&mut out, self.floor);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Cursor> {
        let mut reader = Reader::new(bytes, "the cursor of a group");
        reader.version(FORM)?;
        let (next, floor) = (reader.number()?, reader.number()?);
        reader.end()?;
        Ok(Cursor { next, floor })
    }
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Drawn for every lease, so that a member cannot take the lease of another for its own.
    pub(crate) token: u64,
    /// How long it was to be, in milliseconds.
    pub(crate) length: u64,
    /// Milliseconds since 1970.
    pub(crate) deadline: u64,
    pub(crate) member: String,
}

/// Messages that were handed out together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) end: u64,
    pub(crate) lease: Lease,
}

impl Run {
    pub(crate) fn key(group: u32, first: u64) -> [u8; 13] {
        placed(group, RUN, first)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORM];
        put_number(&mut out, self.end);
        put_number(&mut out, self.lease.token);
        put_number(&mut out, self.lease.length);
        put_number(&mut out, self.lease.deadline);
        put_bytes(&mut out, self.lease.member.as_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Run> {
        let mut reader = Reader::new(bytes, "a lease of a group");
        reader.version(FORM)?;
        let end = reader.number()?;
        let lease = Lease {
            token: reader.number()?,
            length: reader.number()?,
            deadline: reader.number()?,
            member: reader.text()?.into(),
        };
        reader.end()?;
        Ok(Run { end, lease })
    }
}

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Single {
    /// It was acknowledged, or given up, by the holder of this token; 0: nobody could do it any more.
    Settled { token: u64 },
    /// It failed and is to be delivered again.
    Waits {
        /// Milliseconds since 1970.
        due: u64,
        /// How far ahead that was.
        delay: u64,
        /// How often it was delivered.
        tries: u32,
        /// Why it failed.
        error: String,
    },
    /// It was delivered again.
    Again { lease: Lease, tries: u32 },
}

impl Single {
    pub(crate) fn key(group: u32, offset: u64) -> [u8; 13] {
        placed(group, SINGLE, offset)
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
                delay,
                tries,
                error,
            } => {
                out.push(WAITS);
                put_number(&mut out, *due);
                put_number(&mut out, *delay);
                put_number(&mut out, u64::from(*tries));
                put_bytes(&mut out, error.as_bytes());
            }
            Single::Again { lease, tries } => {
                out.push(AGAIN);
                put_number(&mut out, lease.token);
                put_number(&mut out, lease.length);
                put_number(&mut out, lease.deadline);
                put_number(&mut out, u64::from(*tries));
                put_bytes(&mut out, lease.member.as_bytes());
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Single> {
        let mut reader = Reader::new(bytes, "what a group knows of a message");
        reader.version(FORM)?;
        let single = match reader.byte()? {
            SETTLED => Single::Settled {
                token: reader.number()?,
            },
            WAITS => Single::Waits {
                due: reader.number()?,
                delay: reader.number()?,
                tries: tries(&mut reader)?,
                error: reader.text()?.into(),
            },
            AGAIN => {
                let (token, length, deadline) = (reader.number()?, reader.number()?, reader.number()?);
                let tries = tries(&mut reader)?;
                let member = reader.text()?.into();
                let lease = Lease {
                    token,
                    length,
                    deadline,
                    member,
                };
                Single::Again { lease, tries }
            }
            _ => return Err(reader.damaged("is of no known kind")),
        };
        reader.end()?;
        Ok(single)
    }
}

fn tries(reader: &mut Reader<'_>) -> Result<u32> {
    let tries = reader.number()?;
    u32::try_from(tries).map_err(|_| reader.damaged("has more tries than can be"))
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

/// A row of a run or single.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Run(u64, Run),
    Single(u64, Single),
}

impl Row {
    /// Keys between which the runs lie that begin at an offset or later.
    pub(crate) fn runs_from(group: u32, floor: u64) -> ([u8; 13], [u8; 5]) {
        (placed(group, RUN, floor), tagged(group, SINGLE))
    }

    /// Keys between which the singles of some messages lie.
    pub(crate) fn singles(group: u32, offsets: std::ops::Range<u64>) -> ([u8; 13], [u8; 13]) {
        (placed(group, SINGLE, offsets.start), placed(group, SINGLE, offsets.end))
    }

    /// Reads a row.
    pub(crate) fn decode(key: &[u8], bytes: &[u8]) -> Result<Row> {
        let offset = offset_of(key);
        Ok(match key[4] {
            RUN => Row::Run(offset, Run::decode(bytes)?),
            SINGLE => Row::Single(offset, Single::decode(bytes)?),
            _ => return Err(Reader::new(bytes, "a row of a group").damaged("is of no known kind")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        Lease {
            token: u64::MAX,
            length: 30_000,
            deadline: 1 << 41,
            member: "worker".into(),
        }
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let run = Run {
            end: 700,
            lease: lease(),
        };
        let waits = Single::Waits {
            due: 1,
            delay: 2,
            tries: 3,
            error: "no".into(),
        };
        let again = Single::Again {
            lease: lease(),
            tries: 4,
        };
        let rows = [
            Row::Run(600, run),
            Row::Single(601, Single::Settled { token: 300 }),
            Row::Single(602, waits),
            Row::Single(603, again),
        ];
        for row in rows {
            let (key, bytes) = match &row {
                Row::Run(first, run) => (Run::key(8, *first), run.encode()),
                Row::Single(offset, single) => (Single::key(8, *offset), single.encode()),
            };
            assert_eq!(Row::decode(&key, &bytes).unwrap(), row);
            for length in 0..bytes.len() {
                assert!(Row::decode(&key, &bytes[..length]).is_err());
            }
        }
        let cursor = Cursor { next: 300, floor: 2 };
        assert_eq!(Cursor::decode(&cursor.encode()).unwrap(), cursor);
    }

    #[test]
    fn keys_lie_in_the_ranges_that_are_searched() {
        let (low, high) = Row::runs_from(8, 5);
        assert!(low[..] <= Run::key(8, 5)[..] && Run::key(8, u64::MAX)[..] < high[..]);
        assert!(Cursor::key(8)[..] < low[..] && high[..] < Single::key(8, 0)[..]);
        let (low, high) = Row::singles(8, 5..7);
        assert!(low == Single::key(8, 5) && Single::key(8, 6) < high && high <= Single::key(8, 7));
    }
}
