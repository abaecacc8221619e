//! Commands with an idempotency key take effect once.
//!
//! ```text
//! 0 key               what the command was and what it led to (`Remembered`)
//! 1 time, big-endian  key; so that the oldest are found
//! ```
//! Both rows are written in the commit of the command.

use duramen::{Map, Result, Transaction};
use duramen_proto::command::{Command, Outcome, Remembered};
use prost::Message;
use tonic::Code;
use xxhash_rust::xxh3::xxh3_64;

use crate::refusal::refused;

/// How long a key is remembered, in microseconds.
const REMEMBERED_US: u64 = 10 * 60 * 1_000_000;
/// The longest key, in bytes.
const KEY_BYTES_MAX: usize = 64;
/// The most keys that one entry forgets.
const FORGOTTEN_MAX: usize = 1_000;

const BY_KEY: u8 = 0;
const BY_TIME: u8 = 1;

/// What the store holds of commands with a key.
pub(super) struct Keys {
    rows: Map,
}

/// What is known of a command.
pub(super) enum Known {
    /// It has no key, or an unknown one.
    New,
    /// It was applied before, or its key is in use for another command.
    Answered(Outcome),
}

impl Keys {
    pub(super) fn new(rows: Map) -> Keys {
        Keys { rows }
    }

    /// What is known of a command at a time.
    pub(super) fn look_up(&self, tx: &Transaction, command: &Command, now_us: u64) -> Result<Known> {
        let key = &command.idempotency_key;
        if key.is_empty() {
            return Ok(Known::New);
        }
        if key.len() > KEY_BYTES_MAX {
            let message = format!(
                "the idempotency key has {} bytes, the longest is {KEY_BYTES_MAX}; a random UUID is a good key",
                key.len()
            );
            return Ok(answered(refused(Code::InvalidArgument, "INVALID_ARGUMENT", message)));
        }
        let Some(row) = tx.get_ref(&self.rows, by_key(key))? else {
            return Ok(Known::New);
        };
        let Ok(remembered) = Remembered::decode(&row[..]) else {
            let message = "what the store keeps of this idempotency key is damaged; use another key";
            return Ok(answered(refused(Code::DataLoss, "DAMAGED", message)));
        };
        if is_old(remembered.time_us, now_us) {
            return Ok(Known::New);
        }
        if remembered.fingerprint != fingerprint(command) {
            let message = "the idempotency key was used for another request; use a new key for each request";
            return Ok(answered(refused(Code::InvalidArgument, "KEY_REUSED", message)));
        }
        Ok(remembered.outcome.map_or(Known::New, Known::Answered))
    }

    /// Remembers what a command led to.
    pub(super) fn remember(
        &self,
        tx: &mut Transaction,
        command: &Command,
        time_us: u64,
        outcome: &Outcome,
    ) -> Result<()> {
        let key = &command.idempotency_key;
        if key.is_empty() {
            return Ok(());
        }
        let remembered = Remembered {
            time_us,
            fingerprint: fingerprint(command),
            outcome: Some(outcome.clone()),
        };
        tx.put(&self.rows, by_key(key), remembered.encode_to_vec())?;
        let mut due = vec![BY_TIME];
        due.extend_from_slice(&time_us.to_be_bytes());
        due.extend_from_slice(key);
        tx.put(&self.rows, due, b"")
    }

    /// Forgets keys that are old at a time.
    pub(super) fn forget_old(&self, tx: &mut Transaction, now_us: u64) -> Result<()> {
        let Some(end) = now_us.checked_sub(REMEMBERED_US) else {
            return Ok(());
        };
        let mut high = vec![BY_TIME];
        high.extend_from_slice(&end.to_be_bytes());
        let mut old = Vec::new();
        let mut cursor = tx.range(&self.rows, &[BY_TIME][..]..&high[..])?;
        while old.len() < FORGOTTEN_MAX
            && let Some((row, _)) = cursor.next()?
        {
            old.push(row.to_vec());
        }
        drop(cursor);
        for row in old {
            if let Some((time, key)) = row[1..].split_first_chunk() {
                self.forget(tx, key, u64::from_be_bytes(*time))?;
            }
            tx.delete(&self.rows, &row)?;
        }
        Ok(())
    }

    /// Forgets a key, unless it was used again after this time.
    fn forget(&self, tx: &mut Transaction, key: &[u8], time_us: u64) -> Result<()> {
        let row = tx.get_ref(&self.rows, by_key(key))?;
        let is_of_this_use = row.is_some_and(|row| {
            let remembered = Remembered::decode(&row[..]);
            remembered.map_or(true, |remembered| remembered.time_us == time_us)
        });
        match is_of_this_use {
            true => tx.delete(&self.rows, by_key(key)),
            false => Ok(()),
        }
    }
}

fn is_old(time_us: u64, now_us: u64) -> bool {
    now_us.saturating_sub(time_us) > REMEMBERED_US
}

fn answered(refusal: duramen_proto::command::Refusal) -> Known {
    use duramen_proto::command::outcome::Outcome as Kind;
    Known::Answered(Outcome {
        outcome: Some(Kind::Refused(refusal)),
    })
}

fn by_key(key: &[u8]) -> Vec<u8> {
    let mut row = vec![BY_KEY];
    row.extend_from_slice(key);
    row
}

fn fingerprint(command: &Command) -> u64 {
    xxh3_64(&command.encode_to_vec())
}
