//! Topics that remove single messages: expired messages, and messages whose key has a newer message.
//!
//! Publishing does neither. The background reads each new message once, from a separate position in the index. It
//! records when the message expires and which message of its key is the newest. It deletes a replaced message in that
//! step, and an expired message when its row comes up. Each step is one transaction of ordinary deletes, together with
//! the position or the rows that led to it. So a crash in between changes nothing, and of two processes that do one
//! step, the second conflicts.
//!
//! A reader does not wait for any of this: an expired message is invisible at once (see `read`).

use std::ops::Range;

use duramen_engine::{Durability, Error, Result, Transaction, TransactionOptions};

use crate::handle::Topic;
use crate::index::{self, EXPIRES, NEWEST_OF_KEY, POSITION};
use crate::limits::{INDEXED_TOGETHER_MAX, LATEST_KEY_BYTES_MAX};
use crate::message::Stored;
use crate::record::{TopicOptions, millis};
use crate::tables::{after_id, offset_key, offset_of};

/// The parts of a message that the index needs.
struct Facts {
    offset: u64,
    /// Its key, if the topic keeps only the newest message of a key.
    key: Option<Vec<u8>>,
    expires_at: Option<u64>,
}

impl Facts {
    fn of(offset: u64, head: &[u8]) -> Result<Facts> {
        let stored = Stored::decode(head)?;
        let key = stored.key.filter(|key| key.len() <= LATEST_KEY_BYTES_MAX);
        Ok(Facts {
            offset,
            key: key.map(<[u8]>::to_vec),
            expires_at: stored.expires_at(),
        })
    }

    fn expiry_row(&self, topic: &Topic) -> Option<Vec<u8>> {
        let at = self.expires_at?.to_be_bytes();
        Some(index::key(
            topic.shared().id,
            EXPIRES,
            &[&at, &self.offset.to_be_bytes()],
        ))
    }

    fn key_row(&self, topic: &Topic) -> Option<Vec<u8>> {
        let key = self.key.as_ref()?;
        Some(index::key(topic.shared().id, NEWEST_OF_KEY, &[key]))
    }
}

/// Updates the index, and deletes messages that are expired or have a newer message of their key, until `is_over`.
/// Returns how many it deleted.
pub(crate) fn maintain(topic: &Topic, options: &TopicOptions, is_over: &dyn Fn() -> bool) -> Result<u64> {
    if !options.is_sparse() {
        return Ok(0);
    }
    let written = TransactionOptions::new().durability(Durability::Written);
    let store = &topic.home().store;
    let mut removed = 0;
    while !is_over() {
        match store.transact_with(written, |tx| index_some(tx, topic, options))? {
            Some(some) => removed += some,
            None => break,
        }
    }
    while !is_over() && has_expired(topic)? {
        removed += store.transact_with(written, |tx| remove_expired(tx, topic))?;
    }
    Ok(removed)
}

/// Adds the next messages to the index, and deletes those that they replace. `None`: there are no more.
fn index_some(tx: &mut Transaction, topic: &Topic, options: &TopicOptions) -> Result<Option<u64>> {
    let (rows, shared) = (&topic.home().tables.index, topic.shared());
    let position_row = index::key(shared.id, POSITION, &[]);
    let position = tx.get_ref(rows, &position_row)?;
    let position = position.map_or(Ok(0), |position| index::offset_in(&position))?;
    let mut next = Vec::new();
    {
        let (low, high) = (offset_key(shared.id, position), after_id(shared.id));
        let mut cursor = tx.range(shared.sequence.heads(), &low[..]..&high[..])?;
        while next.len() < INDEXED_TOGETHER_MAX {
            let Some((key, head)) = cursor.next()? else { break };
            next.push(Facts::of(offset_of(key), &head)?);
        }
    }
    let Some(last) = next.last().map(|facts| facts.offset) else {
        return Ok(None);
    };
    let mut removed = 0;
    for facts in &next {
        if let Some(row) = facts.expiry_row(topic) {
            tx.put(rows, &row, b"")?;
        }
        let Some(row) = facts.key_row(topic).filter(|_| options.latest_per_key) else {
            continue;
        };
        let older = tx
            .get_ref(rows, &row)?
            .map(|older| index::offset_in(&older))
            .transpose()?;
        if let Some(older) = older.filter(|older| *older < facts.offset) {
            removed += u64::from(remove(tx, topic, older)?.is_some());
        }
        tx.put(rows, &row, facts.offset.to_be_bytes())?;
    }
    tx.put(rows, &position_row, (last + 1).to_be_bytes())?;
    Ok(Some(removed))
}

/// The key bounds of the rows of expired messages.
fn expired_rows(topic: &Topic) -> (Vec<u8>, Vec<u8>) {
    let (home, id) = (topic.home(), topic.shared().id);
    let end = millis(home.store.wall_clock()).saturating_add(1).to_be_bytes();
    (index::key(id, EXPIRES, &[]), index::key(id, EXPIRES, &[&end]))
}

fn has_expired(topic: &Topic) -> Result<bool> {
    let (low, high) = expired_rows(topic);
    let snapshot = topic.snapshot()?;
    let mut cursor = snapshot.range(&topic.home().tables.index, &low[..]..&high[..])?;
    Ok(cursor.next()?.is_some())
}

/// Removes some expired messages.
fn remove_expired(tx: &mut Transaction, topic: &Topic) -> Result<u64> {
    let rows = &topic.home().tables.index;
    let (low, high) = expired_rows(topic);
    let mut expired = Vec::new();
    {
        let mut cursor = tx.range(rows, &low[..]..&high[..])?;
        while expired.len() < INDEXED_TOGETHER_MAX {
            let Some((key, _)) = cursor.next()? else { break };
            let (_, offset) = index::timed(key)?;
            expired.push((key.to_vec(), index::offset_in(offset)?));
        }
    }
    let mut removed = 0;
    for (row, offset) in expired {
        if let Some(facts) = remove(tx, topic, offset)? {
            forget_key(tx, topic, &facts)?;
            removed += 1;
        }
        tx.delete(rows, &row)?;
    }
    Ok(removed)
}

/// Deletes a message with its payload and the row of its expiry. `None`: it does not exist.
fn remove(tx: &mut Transaction, topic: &Topic, offset: u64) -> Result<Option<Facts>> {
    let shared = topic.shared();
    let key = offset_key(shared.id, offset);
    let Some(head) = tx.get_ref(shared.sequence.heads(), key)?.map(|head| head.to_vec()) else {
        return Ok(None);
    };
    let facts = Facts::of(offset, &head)?;
    if Stored::decode(&head)?.payload.is_err() {
        tx.delete(shared.sequence.bodies(), key)?;
    }
    tx.delete(shared.sequence.heads(), key)?;
    if let Some(row) = facts.expiry_row(topic) {
        tx.delete(&topic.home().tables.index, &row)?;
    }
    Ok(Some(facts))
}

/// Deletes the row that names a message as the newest of its key.
fn forget_key(tx: &mut Transaction, topic: &Topic, facts: &Facts) -> Result<()> {
    let rows = &topic.home().tables.index;
    let Some(row) = facts.key_row(topic) else {
        return Ok(());
    };
    let newest = tx
        .get(rows, &row)?
        .map(|newest| index::offset_in(&newest))
        .transpose()?;
    match newest == Some(facts.offset) {
        true => tx.delete(rows, &row),
        false => Ok(()),
    }
}

/// Removes the rows of messages that retention is about to delete.
pub(crate) fn forget(topic: &Topic, options: &TopicOptions, offsets: Range<u64>) -> Result<()> {
    if !options.is_sparse() {
        return Ok(());
    }
    let shared = topic.shared();
    let written = TransactionOptions::new().durability(Durability::Written);
    let mut from = offsets.start;
    while from < offsets.end {
        from = topic.home().store.transact_with(written, |tx| {
            let (low, high) = (offset_key(shared.id, from), offset_key(shared.id, offsets.end));
            let mut some = Vec::new();
            {
                let mut cursor = tx.range(shared.sequence.heads(), &low[..]..&high[..])?;
                while some.len() < INDEXED_TOGETHER_MAX {
                    let Some((key, head)) = cursor.next()? else { break };
                    some.push(Facts::of(offset_of(key), &head)?);
                }
            }
            for facts in &some {
                forget_key(tx, topic, facts)?;
                if let Some(row) = facts.expiry_row(topic) {
                    tx.delete(&topic.home().tables.index, &row)?;
                }
            }
            Ok::<_, Error>(some.last().map_or(offsets.end, |last| last.offset + 1))
        })?;
    }
    Ok(())
}
