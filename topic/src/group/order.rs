//! Ordered groups: the messages of a key are delivered one after the other, while other keys continue.
//!
//! The simple version: every open message that has a key has a *keyed* row, so the rows of a key are its open messages
//! in order. Only the first of them can be delivered; the others are *parked*. Closing a message removes its row, and
//! the next message of its key can be delivered.
//!
//! One member may hold several messages of a key, if it got them together. They are then the first rows of the key, in
//! order. When one of them fails, the later messages are taken from the member and parked, because the failed message
//! must come first.
//!
//! All messages of an ordered group that have a key are counted. A parked message is counted as soon as it can be
//! delivered.
//!
//! Why no message is forgotten: a delivery parks a message because it saw an earlier row, and a member may close that
//! earlier message at the same time. Each of the two transactions depends on what the other writes, so one of them runs
//! again and sees it.

use std::collections::HashSet;

use duramen_engine::{Result, Transaction};
use xxhash_rust::xxh3::xxh3_64;

use super::Group;
use super::rows::message_due;
use super::settle::OpenMessage;
use super::state::{Keyed, List, Single};
use crate::limits::READ_MESSAGES;
use crate::tables::offset_of;

/// Represents a key in the rows. Two keys with the same hash wait for each other, which only causes delay.
pub(super) fn hash_of(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Keys of the messages that one transaction delivers.
#[derive(Debug, Default)]
pub(super) struct Together {
    hashes: HashSet<u64>,
}

impl Group {
    /// Opens a new message that has a key. `true`: it can be delivered, together with those before it. Otherwise it is
    /// parked.
    pub(super) fn open_keyed(&self, tx: &mut Transaction, keyed: Keyed, together: &mut Together) -> Result<bool> {
        let (low, high) = Keyed::keys(self.shared.id, keyed.hash);
        let is_first = together.hashes.contains(&keyed.hash) || {
            let mut rows = tx.range(self.states(), &low[..]..=&high[..])?;
            rows.next()?.is_none()
        };
        tx.put(self.states(), keyed.key(self.shared.id), b"")?;
        if is_first {
            together.hashes.insert(keyed.hash);
            return Ok(true);
        }
        tx.depends_on(self.states(), &low[..]..=&high[..])?;
        self.count_parked(tx, 1)?;
        let parked = Single::Parked {
            tries: 0,
            key: Some(keyed.hash),
        };
        self.put_single(tx, keyed.offset, &parked)?;
        Ok(false)
    }

    /// Handles the closing of a message of an ordered group: the next message of its key can be delivered.
    pub(super) fn close_keyed(&self, tx: &mut Transaction, keyed: Keyed) -> Result<()> {
        let (low, high) = Keyed::keys(self.shared.id, keyed.hash);
        tx.depends_on(self.states(), &low[..]..=&high[..])?;
        tx.delete(self.states(), keyed.key(self.shared.id))?;
        let first = {
            let mut rows = tx.range(self.states(), &low[..]..=&high[..])?;
            rows.next()?.map(|(key, _)| offset_of(key))
        };
        let Some(first) = first else { return Ok(()) };
        match self.single_in(tx, first)? {
            Some(Single::Parked { tries, key }) => self.unpark(tx, first, tries, key),
            _ => Ok(()),
        }
    }

    /// Makes the first open message of a key deliverable.
    fn unpark(&self, tx: &mut Transaction, offset: u64, tries: u32, key: Option<u64>) -> Result<()> {
        self.count_parked(tx, -1)?;
        self.count_closed(tx, -1)?;
        let waits = Single::Waits {
            due: self.now_in(tx),
            tries,
            origin: None,
            is_counted: true,
            key,
            error: String::new(),
        };
        self.wait_in(tx, offset, waits)
    }

    /// Parks all later messages of the key of a message that waits for redelivery. Returns whether the message comes
    /// first. Otherwise an earlier message of its key is open, and this parks the message as well.
    pub(super) fn await_turn(&self, tx: &mut Transaction, keyed: Keyed, open: OpenMessage) -> Result<bool> {
        let (low, high) = Keyed::keys(self.shared.id, keyed.hash);
        tx.depends_on(self.states(), &low[..]..=&high[..])?;
        let first = {
            let mut rows = tx.range(self.states(), &low[..]..=&high[..])?;
            rows.next()?.map(|(key, _)| offset_of(key))
        };
        // A member holds at most as many of them as it gets at once.
        for later in self.after_in(tx, keyed, READ_MESSAGES)? {
            if !self.park_later(tx, later)? {
                // Later messages were parked before.
                break;
            }
        }
        if first.is_none_or(|first| first >= keyed.offset) {
            return Ok(true);
        }
        self.park(tx, keyed.offset, open.tries, Some(keyed.hash))?;
        Ok(false)
    }

    /// Parks a message that follows a failed message of its key. `false`: it was parked already.
    fn park_later(&self, tx: &mut Transaction, offset: u64) -> Result<bool> {
        match self.single_in(tx, offset)? {
            Some(Single::Held { token, tries, key, .. }) => {
                if let Some(list) = self.list_in(tx, token)?.filter(|list| list.lost.is_none()) {
                    let lost = Some(offset);
                    self.put_list(tx, Some(&list), &List { lost, ..list.clone() })?;
                }
                // It is taken from its member before it could fail: that attempt does not count.
                self.park(tx, offset, tries.saturating_sub(1), key)?;
            }
            Some(Single::Waits { due, tries, key, .. }) => {
                self.move_due(tx, Some(message_due(due, offset)), None)?;
                self.park(tx, offset, tries, key)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn park(&self, tx: &mut Transaction, offset: u64, tries: u32, key: Option<u64>) -> Result<()> {
        self.count_parked(tx, 1)?;
        self.count_closed(tx, 1)?;
        self.put_single(tx, offset, &Single::Parked { tries, key })
    }

    /// Parked messages of a key that can be delivered together with an earlier message of it that is being delivered:
    /// those that follow it, at most `most`.
    pub(super) fn parked_behind(&self, tx: &mut Transaction, keyed: Keyed, most: usize) -> Result<Vec<(u64, u32)>> {
        let (low, high) = Keyed::keys(self.shared.id, keyed.hash);
        let mut parked = Vec::new();
        for offset in self.after_in(tx, keyed, most)? {
            match self.single_in(tx, offset)? {
                Some(Single::Parked { tries, .. }) => parked.push((offset, tries)),
                _ => break,
            }
        }
        if !parked.is_empty() {
            tx.depends_on(self.states(), &low[..]..=&high[..])?;
        }
        Ok(parked)
    }

    /// Open messages of the key after the given message, at most `most`.
    fn after_in(&self, tx: &Transaction, keyed: Keyed, most: usize) -> Result<Vec<u64>> {
        let (_, high) = Keyed::keys(self.shared.id, keyed.hash);
        let mut offsets = Vec::new();
        let mut rows = tx.range(self.states(), &keyed.key(self.shared.id)[..]..=&high[..])?;
        while offsets.len() < most
            && let Some((key, _)) = rows.next()?
        {
            offsets.extend(Some(offset_of(key)).filter(|&offset| offset > keyed.offset));
        }
        Ok(offsets)
    }
}
