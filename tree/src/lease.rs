//! Leases: nodes that end with the client that keeps them alive.
//!
//! A tree has a clock of its own for deadlines. It runs with the store's shared clock, but time that passes between two
//! commits which store it counts for [`STEP_MAX`] at most. While a process has the store open and there are leases, its
//! background thread stores the clock once a second. So the clock stands still while no process runs, and a lease has its
//! remaining time after a restart, also where the system's time was set back. It follows from rows and from the times of
//! commits alone: equal commits make equal clocks.
//!
//! Nodes of a lease that has expired are deleted by a change like any other, by [`TreeWrites::expire_leases`].

use std::collections::BTreeMap;
use std::time::Duration;

use duramen_engine::{Error, Map, Result};
use duramen_topic::bytes::{Reader, put_number};

use crate::error::TreeError;
use crate::read::Rows;
use crate::tables::{
    attached_key, attached_prefix, clock_key, deadline_key, deadline_of, deadlines_prefix, lease_key, leases_prefix,
};
use crate::writes::TreeWrites;

/// Nodes that one call deletes for expired leases.
const EXPIRED_NODES_MAX: usize = 1_000;
/// The longest lease: about 285 years, as in etcd.
const TTL_MAX: Duration = Duration::from_secs(9_000_000_000);

/// The most time that counts between two commits which store the clock.
const STEP_MAX: Duration = Duration::from_secs(2);
/// Time after which a commit stores the clock.
const STORED_EVERY: Duration = Duration::from_secs(1);

/// The clock of the leases of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseClock {
    /// Its time when it was stored, in milliseconds.
    lease_ms: u64,
    /// The time of the shared clock then.
    shared_ms: u64,
}

impl LeaseClock {
    /// The stored clock of a tree. It begins at 0 when a tree gets its first lease.
    pub(crate) fn read<R: Rows>(rows: &R, leases: &Map, tree: u32) -> Result<Option<LeaseClock>> {
        let row = rows.row(leases, &clock_key(tree))?;
        row.map(|row| LeaseClock::decode(&row)).transpose()
    }

    fn decode(row: &[u8]) -> Result<LeaseClock> {
        let mut reader = Reader::new(row, "the clock of a tree");
        let clock = LeaseClock {
            lease_ms: reader.number()?,
            shared_ms: reader.number()?,
        };
        reader.end()?;
        Ok(clock)
    }

    /// The clock at a time of the shared clock.
    pub(crate) fn at(self, shared: Duration) -> LeaseClock {
        let passed = self.since(shared).min(STEP_MAX);
        LeaseClock {
            lease_ms: self.lease_ms.saturating_add(millis(passed)),
            shared_ms: match self.is_ahead(shared) {
                true => millis(shared),
                false => millis(shared).max(self.shared_ms),
            },
        }
    }

    /// Whether the next change should store it.
    pub(crate) fn is_due(self, shared: Duration) -> bool {
        self.since(shared) >= STORED_EVERY || self.is_ahead(shared)
    }

    /// Whether the shared clock has run back: it begins with the system's time when a store is opened, and that may have been set
    /// back since. The clock goes on from where it is then.
    fn is_ahead(self, shared: Duration) -> bool {
        Duration::from_millis(self.shared_ms).saturating_sub(shared) > STEP_MAX
    }

    /// Time that has passed since it was stored.
    fn since(self, shared: Duration) -> Duration {
        shared.saturating_sub(Duration::from_millis(self.shared_ms))
    }

    pub(crate) fn millis(self) -> u64 {
        self.lease_ms
    }

    fn encode(self) -> Vec<u8> {
        let mut row = Vec::new();
        put_number(&mut row, self.lease_ms);
        put_number(&mut row, self.shared_ms);
        row
    }
}

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its id, which is not 0.
    pub id: u64,
    /// How long it lasts after it was granted or kept alive.
    pub ttl: Duration,
    /// How long it lasts from now on; zero: it has expired and its nodes are about to be deleted.
    pub remaining: Duration,
}

/// What the row of a lease holds.
#[derive(Clone, Copy)]
struct Stored {
    ttl_ms: u64,
    deadline_ms: u64,
}

impl Stored {
    fn encode(self) -> Vec<u8> {
        let mut row = Vec::new();
        put_number(&mut row, self.ttl_ms);
        put_number(&mut row, self.deadline_ms);
        row
    }

    fn decode(row: &[u8]) -> Result<Stored> {
        let mut reader = Reader::new(row, "a lease of a tree");
        let stored = Stored {
            ttl_ms: reader.number()?,
            deadline_ms: reader.number()?,
        };
        reader.end()?;
        Ok(stored)
    }

    fn lease(self, id: u64, now_ms: u64) -> Lease {
        Lease {
            id,
            ttl: Duration::from_millis(self.ttl_ms),
            remaining: Duration::from_millis(self.deadline_ms.saturating_sub(now_ms)),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The leases of a tree that is made again from the rows that are left.
#[derive(Default)]
pub(crate) struct LeasesLeft {
    leases: BTreeMap<u64, Stored>,
    clock: Option<LeaseClock>,
}

impl LeasesLeft {
    /// Adds a lease by the end of its key and its row.
    pub(crate) fn add(&mut self, id: &[u8], row: &[u8]) -> Result<()> {
        self.leases.insert(id_of(id)?, Stored::decode(row)?);
        Ok(())
    }

    /// Takes the row of the clock, if it is one.
    pub(crate) fn take_clock(&mut self, row: &[u8]) {
        self.clock = LeaseClock::decode(row).ok();
    }

    /// Whether nothing tells how much time the leases have left.
    pub(crate) fn lack_clock(&self) -> bool {
        self.clock.is_none() && !self.leases.is_empty()
    }

    pub(crate) fn contain(&self, id: u64) -> bool {
        self.leases.contains_key(&id)
    }

    /// All rows. Without a clock, which begins at 0 again, each lease has its whole time.
    pub(crate) fn rows(&self, tree: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut rows = Vec::new();
        rows.extend(self.clock.map(|clock| (clock_key(tree), clock.encode())));
        for (&id, &stored) in &self.leases {
            let deadline_ms = match self.clock {
                Some(_) => stored.deadline_ms,
                None => stored.ttl_ms,
            };
            let row = Stored { deadline_ms, ..stored }.encode();
            rows.push((lease_key(tree, id), row));
            rows.push((deadline_key(tree, deadline_ms, id), Vec::new()));
        }
        rows
    }
}

impl TreeWrites<'_> {
    /// Grants a lease with an id that no other lease has.
    ///
    /// # Errors
    /// [`TreeError::LeaseExists`], [`TreeError::InvalidLease`] for the id 0 and for times under a millisecond or over
    /// 9,000,000,000 seconds.
    pub fn grant_lease(&mut self, id: u64, ttl: Duration) -> Result<Lease> {
        let cause = match (id, ttl) {
            (0, _) => Some("0 means no lease; take another id"),
            (_, ttl) if ttl < Duration::from_millis(1) => Some("it lasts less than a millisecond"),
            (_, ttl) if ttl > TTL_MAX => {
                Some("it lasts more than 9,000,000,000 seconds; nodes without a lease last longer")
            }
            _ => None,
        };
        if let Some(cause) = cause {
            return Err(TreeError::InvalidLease { cause }.into());
        }
        let tree = self.tree.id;
        if self
            .tx
            .get_ref(&self.tree.tables.leases, lease_key(tree, id))?
            .is_some()
        {
            return Err(TreeError::LeaseExists { id }.into());
        }
        self.put_lease(id, None, millis(ttl))
    }

    /// Lets a lease last its whole time from now on.
    ///
    /// # Errors
    /// [`TreeError::LeaseGone`].
    pub fn keep_lease_alive(&mut self, id: u64) -> Result<Lease> {
        let before = self.living_lease(id)?;
        self.put_lease(id, Some(before), before.ttl_ms)
    }

    /// Ends a lease and deletes its nodes. Returns how many.
    ///
    /// # Errors
    /// [`TreeError::LeaseGone`], and those of [`TreeWrites::delete`].
    pub fn revoke_lease(&mut self, id: u64) -> Result<u64> {
        let stored = self.stored_lease(id)?;
        let mut deleted = 0;
        loop {
            let paths = self.attached(id, EXPIRED_NODES_MAX)?;
            if paths.is_empty() {
                break;
            }
            let mut refused = Vec::new();
            deleted += self.delete_attached(id, &paths, &mut refused)?;
            if let Some(error) = refused.pop() {
                return Err(error);
            }
        }
        self.remove_lease(id, stored)?;
        Ok(deleted)
    }

    /// A lease.
    ///
    /// # Errors
    /// [`TreeError::LeaseGone`].
    pub fn lease(&self, id: u64) -> Result<Lease> {
        Ok(self.stored_lease(id)?.lease(id, self.lease_time()?))
    }

    /// A lease that has not expired: after its end some of its nodes may be deleted already.
    fn living_lease(&self, id: u64) -> Result<Stored> {
        let stored = self.stored_lease(id)?;
        match stored.deadline_ms > self.lease_time()? {
            true => Ok(stored),
            false => Err(TreeError::LeaseGone { id }.into()),
        }
    }

    /// Refuses a lease to which no node can be attached any more.
    pub(crate) fn check_lease(&self, id: u64) -> Result<()> {
        self.living_lease(id).map(drop)
    }

    /// Ends leases that have expired, and deletes their nodes: some of them, when there are many. Returns how many nodes it
    /// deleted, and whether there may be more. A lease with a node that cannot be deleted, because a trigger has no topic, stays, and
    /// others end.
    ///
    /// # Errors
    /// Those of [`TreeWrites::delete`]; that of a missing topic only where no lease ends.
    pub fn expire_leases(&mut self) -> Result<(u64, bool)> {
        let now = self.advance_clock()?;
        let (mut deleted, mut refused, mut passed) = (0, Vec::new(), None);
        let (mut has_ended, mut has_more) = (false, false);
        loop {
            let left = EXPIRED_NODES_MAX.saturating_sub(deleted as usize + refused.len());
            if left == 0 {
                has_more = deleted > 0;
                break;
            }
            let Some((deadline, id)) = self.first_deadline(passed)?.filter(|(deadline, _)| *deadline <= now) else {
                break;
            };
            let paths = self.attached(id, left)?;
            let (is_all, refused_before) = (paths.len() < left, refused.len());
            deleted += self.delete_attached(id, &paths, &mut refused)?;
            if is_all && refused.len() == refused_before {
                let stored = Stored {
                    ttl_ms: 0,
                    deadline_ms: deadline,
                };
                self.remove_lease(id, stored)?;
                has_ended = true;
            } else {
                // A transaction that keeps the lease alive meanwhile must conflict.
                let row = self.stored_lease(id)?.encode();
                self.tx
                    .put(&self.tree.tables.leases, lease_key(self.tree.id, id), row)?;
                passed = Some((deadline, id));
            }
        }
        match refused.pop() {
            Some(error) if deleted == 0 && !has_ended => Err(error),
            _ => Ok((deleted, has_more)),
        }
    }

    /// The time of the tree's clock, in milliseconds.
    fn lease_time(&self) -> Result<u64> {
        Ok(self.clock()?.1.lease_ms)
    }

    /// The stored clock, and the clock now.
    fn clock(&self) -> Result<(Option<LeaseClock>, LeaseClock)> {
        let shared = self.tx.shared_clock();
        let stored = LeaseClock::read(self.tx, &self.tree.tables.leases, self.tree.id)?;
        let first = LeaseClock {
            lease_ms: 0,
            shared_ms: millis(shared),
        };
        Ok((stored, stored.map_or(first, |clock| clock.at(shared))))
    }

    /// Stores the clock where some time has passed since it was stored. Returns its time.
    fn advance_clock(&mut self) -> Result<u64> {
        let (stored, now) = self.clock()?;
        let shared = self.tx.shared_clock();
        if stored.is_none_or(|stored| stored.is_due(shared)) {
            let key = clock_key(self.tree.id);
            self.tx.put(&self.tree.tables.leases, key, now.encode())?;
        }
        Ok(now.lease_ms)
    }

    fn first_deadline(&self, passed: Option<(u64, u64)>) -> Result<Option<(u64, u64)>> {
        first_deadline(self.tx, &self.tree.tables.leases, self.tree.id, passed)
    }

    fn stored_lease(&self, id: u64) -> Result<Stored> {
        let row = self.tx.get_ref(&self.tree.tables.leases, lease_key(self.tree.id, id))?;
        let row = row.ok_or(TreeError::LeaseGone { id })?;
        Stored::decode(&row)
    }

    fn put_lease(&mut self, id: u64, before: Option<Stored>, ttl_ms: u64) -> Result<Lease> {
        let now = self.advance_clock()?;
        let stored = Stored {
            ttl_ms,
            deadline_ms: now.saturating_add(ttl_ms),
        };
        let (tree, leases) = (self.tree.id, &self.tree.tables.leases);
        if let Some(before) = before {
            self.tx.delete(leases, deadline_key(tree, before.deadline_ms, id))?;
        }
        self.tx.put(leases, lease_key(tree, id), stored.encode())?;
        self.tx.put(leases, deadline_key(tree, stored.deadline_ms, id), b"")?;
        Ok(stored.lease(id, now))
    }

    fn remove_lease(&mut self, id: u64, stored: Stored) -> Result<()> {
        let (tree, leases) = (self.tree.id, &self.tree.tables.leases);
        self.tx.delete(leases, deadline_key(tree, stored.deadline_ms, id))?;
        self.tx.delete(leases, lease_key(tree, id))?;
        // A transaction that attaches a node meanwhile must conflict: it has read that there is the lease.
        self.put_state()
    }

    /// Deletes nodes of a lease. Returns how many. Adds to `refused` why others cannot be deleted.
    fn delete_attached(&mut self, id: u64, paths: &[Vec<u8>], refused: &mut Vec<Error>) -> Result<u64> {
        let mut deleted = 0;
        for path in paths {
            if let Err(error) = self.check_deletion(path) {
                refused.push(error);
                continue;
            }
            match self.delete(path)? {
                Some(_) => deleted += 1,
                // It may have ended with a node before it.
                None => {
                    let key = attached_key(self.tree.id, id, path);
                    if self.tx.get_ref(&self.tree.tables.leases, key)?.is_some() {
                        return Err(Error::damaged("a lease of a tree has a node that is missing"));
                    }
                }
            }
        }
        Ok(deleted)
    }

    fn attached(&self, id: u64, limit: usize) -> Result<Vec<Vec<u8>>> {
        attached(self.tx, &self.tree.tables.leases, (self.tree.id, id), limit)
    }
}

/// The lease of the end of its key.
fn id_of(key: &[u8]) -> Result<u64> {
    let id = key.try_into().map(u64::from_be_bytes);
    id.map_err(|_| Error::damaged("a lease of a tree has a wrong key"))
}

/// The first deadline of a tree, and its lease; or the first after another one.
pub(crate) fn first_deadline<R: Rows>(
    rows: &R,
    leases: &Map,
    tree: u32,
    passed: Option<(u64, u64)>,
) -> Result<Option<(u64, u64)>> {
    let prefix = deadlines_prefix(tree);
    let low = passed.map_or_else(
        || prefix.clone(),
        |(deadline, lease)| [&deadline_key(tree, deadline, lease)[..], &[0]].concat(),
    );
    let mut deadlines = rows.rows(leases, &low[..]..)?;
    match deadlines.next()? {
        Some((key, _)) if key.starts_with(&prefix) => deadline_of(key).map(Some),
        _ => Ok(None),
    }
}

/// Paths of a lease, at most `limit`.
pub(crate) fn attached<R: Rows>(rows: &R, leases: &Map, (tree, id): (u32, u64), limit: usize) -> Result<Vec<Vec<u8>>> {
    let prefix = attached_prefix(tree, id);
    let mut found = rows.rows(leases, &prefix[..]..)?;
    let mut paths = Vec::new();
    while paths.len() < limit
        && let Some((key, _)) = found.next()?
        && let Some(path) = key.strip_prefix(&prefix[..])
    {
        paths.push(path.to_vec());
    }
    Ok(paths)
}

/// A lease of a tree.
pub(crate) fn one<R: Rows>(rows: &R, leases: &Map, (tree, id): (u32, u64), now_ms: u64) -> Result<Lease> {
    let row = rows.row(leases, &lease_key(tree, id))?;
    let row = row.ok_or(TreeError::LeaseGone { id })?;
    Ok(Stored::decode(&row)?.lease(id, now_ms))
}

/// All leases of a tree, in the order of their ids.
pub(crate) fn all<R: Rows>(rows: &R, leases: &Map, tree: u32, now_ms: u64) -> Result<Vec<Lease>> {
    let prefix = leases_prefix(tree);
    let mut found = rows.rows(leases, &prefix[..]..)?;
    let mut all = Vec::new();
    while let Some((key, row)) = found.next()?
        && let Some(id) = key.strip_prefix(&prefix[..])
    {
        all.push(Stored::decode(&row)?.lease(id_of(id)?, now_ms));
    }
    Ok(all)
}
