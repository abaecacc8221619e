//! Sessions: the leases of remote members belong to them, not to the process of the server.
//!
//! ```text
//! 0 session                        the session (`StoredSession`)
//! 1 session deadline lease         a lease that it holds (`StoredLease`); the deadline is big-endian
//! ```
//! The rows of a lease are written in the commit that makes or ends it. A lease whose time is over leaves its row; a later
//! lease of the session removes it, and the session remembers up to which deadline that was done. The walk begins there: it
//! must not pass the rows of all leases that were settled since the last fold.

use duramen::topic::LeaseId;
use duramen::{Cursor, Map, Result, Snapshot, Transaction};
use duramen_proto::command::{StoredLease, StoredSession};
use prost::Message;

/// Bytes of the name of a session.
pub const SESSION_BYTES: usize = 16;
/// The most leases that one command looks at.
const LEASES_MAX: usize = 32;
/// Time between two looks for leases of a session that are over.
const SWEEP_MS: u64 = 1_000;

const SESSION: u8 = 0;
const LEASE: u8 = 1;

/// What the store holds of sessions.
pub(super) struct Sessions {
    rows: Map,
}

/// A lease as clients send it back: the deadline that it began with, then what the group calls it.
pub(super) struct SentLease {
    pub(super) deadline: u64,
    pub(super) id: LeaseId,
}

impl SentLease {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.deadline.to_be_bytes().to_vec();
        bytes.extend(self.id.encode());
        bytes
    }

    /// `None`: these are no bytes of a lease.
    pub(super) fn decode(bytes: &[u8]) -> Option<SentLease> {
        let (deadline, id) = bytes.split_first_chunk()?;
        Some(SentLease {
            deadline: u64::from_be_bytes(*deadline),
            id: LeaseId::decode(id)?,
        })
    }
}

/// A lease that a session holds.
pub(super) struct HeldLease {
    key: Vec<u8>,
    pub(super) lease: SentLease,
    pub(super) of: StoredLease,
}

impl Sessions {
    pub(super) fn new(rows: Map) -> Sessions {
        Sessions { rows }
    }

    /// All sessions.
    pub(super) fn list(&self, snapshot: &Snapshot) -> Result<Vec<(Vec<u8>, StoredSession)>> {
        let mut rows = snapshot.prefix(&self.rows, [SESSION])?;
        let mut sessions = Vec::new();
        while let Some((row, value)) = rows.next()? {
            let stored = StoredSession::decode(&value[..]).unwrap_or_default();
            sessions.push((row[1..].to_vec(), stored));
        }
        Ok(sessions)
    }

    pub(super) fn open(&self, tx: &mut Transaction, session: &[u8], stored: &StoredSession) -> Result<()> {
        tx.put(&self.rows, key(SESSION, session), stored.encode_to_vec())
    }

    pub(super) fn get(&self, tx: &Transaction, session: &[u8]) -> Result<Option<StoredSession>> {
        let row = tx.get_ref(&self.rows, key(SESSION, session))?;
        Ok(row.map(|row| StoredSession::decode(&row[..]).unwrap_or_default()))
    }

    pub(super) fn exists(&self, tx: &Transaction, session: &[u8]) -> Result<bool> {
        Ok(tx.get_ref(&self.rows, key(SESSION, session))?.is_some())
    }

    pub(super) fn remove(&self, tx: &mut Transaction, session: &[u8]) -> Result<()> {
        tx.delete(&self.rows, key(SESSION, session))
    }

    pub(super) fn add(&self, tx: &mut Transaction, session: &[u8], lease: &SentLease, of: &StoredLease) -> Result<()> {
        tx.put(&self.rows, lease_key(session, lease), of.encode_to_vec())
    }

    pub(super) fn forget(&self, tx: &mut Transaction, session: &[u8], lease: &SentLease) -> Result<()> {
        tx.delete(&self.rows, lease_key(session, lease))
    }

    pub(super) fn forget_held(&self, tx: &mut Transaction, held: &HeldLease) -> Result<()> {
        tx.delete(&self.rows, &held.key)
    }

    /// Leases that a session holds, those first that began first; not all when there are many.
    pub(super) fn held(&self, tx: &Transaction, session: &[u8]) -> Result<Vec<HeldLease>> {
        self.held_within(session, tx.prefix(&self.rows, key(LEASE, session))?)
    }

    fn held_within(&self, session: &[u8], mut rows: Cursor<'_>) -> Result<Vec<HeldLease>> {
        let mut held = Vec::new();
        while held.len() < LEASES_MAX
            && let Some((row, value)) = rows.next()?
        {
            let lease = row.get(1 + session.len()..).and_then(SentLease::decode);
            let of = StoredLease::decode(&value[..]).ok();
            // What cannot be read would stop all others. Its messages come back when the lease is over.
            let (Some(lease), Some(of)) = (lease, of) else { continue };
            let key = row.to_vec();
            held.push(HeldLease { key, lease, of });
        }
        Ok(held)
    }

    /// Leases whose first deadline was before a time, some of them. Looks for them once a second.
    pub(super) fn over(&self, tx: &mut Transaction, session: &[u8], now_ms: u64) -> Result<Vec<HeldLease>> {
        let Some(stored) = self.get(tx, session)? else {
            return Ok(Vec::new());
        };
        if now_ms < stored.swept_ms + SWEEP_MS {
            return Ok(Vec::new());
        }
        let bound = |deadline: u64| {
            let mut bound = key(LEASE, session);
            bound.extend(deadline.to_be_bytes());
            bound
        };
        let (low, high) = (bound(stored.swept_ms), bound(now_ms));
        let over = self.held_within(session, tx.range(&self.rows, &low[..]..&high[..])?)?;
        if over.len() < LEASES_MAX {
            let swept_ms = now_ms;
            self.open(tx, session, &StoredSession { swept_ms, ..stored })?;
        }
        Ok(over)
    }
}

fn key(tag: u8, session: &[u8]) -> Vec<u8> {
    let mut key = vec![tag];
    key.extend_from_slice(session);
    key
}

fn lease_key(session: &[u8], lease: &SentLease) -> Vec<u8> {
    let mut key = key(LEASE, session);
    key.extend(lease.encode());
    key
}
