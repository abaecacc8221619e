//! Sessions: the leases of remote members belong to them, not to the process of the server.
//!
//! ```text
//! 0 session                        the session (`StoredSession`)
//! 1 session deadline lease         a lease that it holds (`StoredLease`); the deadline is big-endian
//! ```
//! The rows of a lease are written in the commit that makes or ends it. A lease whose time is over leaves its row; a later
//! lease of the session removes it, and the session remembers up to which deadline that was done. The walk begins there: it
//! must not pass the rows of all leases that were settled since the last fold.

use std::collections::{HashMap, HashSet};

use duramen::topic::LeaseId;
use duramen::{Cursor, Map, Result, Snapshot, Store, Transaction};
use duramen_proto::command::{StoredLease, StoredSession};
use prost::Message;

/// The reserved map of sessions.
pub(super) const NAME: &str = "server.sessions";
/// Bytes of the name of a session.
pub const SESSION_BYTES: usize = 16;
/// The most leases that one command looks at.
const LEASES_MAX: usize = 32;
/// Time between two looks for leases of a session that are over.
const SWEEP_MS: u64 = 1_000;

const SESSION: u8 = 0;
const LEASE: u8 = 1;

/// What the store holds of sessions.
pub(crate) struct Sessions {
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

/// Leases that earlier streams of a session made, by topic, group and member.
#[derive(Default)]
pub(crate) struct LeftLeases {
    leases: HashMap<(String, String, String), Vec<SentLease>>,
}

impl LeftLeases {
    /// Takes the leases of a member out, and returns those that it does not hold, as clients send them.
    pub(crate) fn take_lost(&mut self, owner: (String, String, String), held: &HeldLeases) -> Vec<Vec<u8>> {
        let left = self.leases.remove(&owner).unwrap_or_default();
        let lost = left.iter().filter(|lease| !held.leases.contains(&lease.id));
        lost.map(SentLease::encode).collect()
    }
}

/// Leases that a client says it holds. The deadline is no part of them: that of a stored lease moves when it is extended.
pub(crate) struct HeldLeases {
    leases: HashSet<LeaseId>,
}

impl HeldLeases {
    /// `None`: these are no bytes of leases.
    pub(crate) fn decode(leases: &[impl AsRef<[u8]>]) -> Option<HeldLeases> {
        let ids = leases.iter().map(|lease| Some(SentLease::decode(lease.as_ref())?.id));
        let leases = ids.collect::<Option<_>>()?;
        Some(HeldLeases { leases })
    }
}

/// A lease that a session holds.
pub(super) struct HeldLease {
    key: Vec<u8>,
    pub(super) lease: SentLease,
    pub(super) of: StoredLease,
}

impl Sessions {
    /// # Errors
    /// Those of opening the map.
    pub(crate) fn open_in(store: &Store) -> Result<Sessions> {
        let rows = store.reserved_map(NAME)?;
        Ok(Sessions { rows })
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

    /// The leases of a session that its streams before `stream` made. Once `stream` is the last one of the session, they
    /// only become fewer.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn left(&self, snapshot: &Snapshot, session: &[u8], stream: u64) -> Result<LeftLeases> {
        let stored = snapshot.get(&self.rows, key(SESSION, session))?;
        let stored = stored.map(|row| StoredSession::decode(&row[..]).unwrap_or_default());
        let low = bound(session, stored.map_or(0, |stored| stored.swept_ms));
        // Behind the last deadline: the kind of a lease, which comes next, is less than this byte.
        let mut high = bound(session, u64::MAX);
        high.push(u8::MAX);
        let mut rows = snapshot.range(&self.rows, &low[..]..&high[..])?;
        let mut left = LeftLeases::default();
        while let Some((row, value)) = rows.next()? {
            let lease = row.get(1 + session.len()..).and_then(SentLease::decode);
            let (Some(lease), Ok(of)) = (lease, StoredLease::decode(&value[..])) else {
                continue;
            };
            if of.stream != 0 && of.stream != stream {
                let owner = (of.topic, of.group, of.member);
                left.leases.entry(owner).or_default().push(lease);
            }
        }
        Ok(left)
    }

    /// Leases whose first deadline was before a time, some of them. Looks for them once a second.
    pub(super) fn over(&self, tx: &mut Transaction, session: &[u8], now_ms: u64) -> Result<Vec<HeldLease>> {
        let Some(stored) = self.get(tx, session)? else {
            return Ok(Vec::new());
        };
        if now_ms < stored.swept_ms + SWEEP_MS {
            return Ok(Vec::new());
        }
        let (low, high) = (bound(session, stored.swept_ms), bound(session, now_ms));
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

/// The key before all leases of a session with this deadline.
fn bound(session: &[u8], deadline: u64) -> Vec<u8> {
    let mut bound = key(LEASE, session);
    bound.extend(deadline.to_be_bytes());
    bound
}

fn lease_key(session: &[u8], lease: &SentLease) -> Vec<u8> {
    let mut key = key(LEASE, session);
    key.extend(lease.encode());
    key
}
