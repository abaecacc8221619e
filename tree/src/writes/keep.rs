//! Nodes that are kept while conditions on other paths hold, as Khepri's `keep_while`.
//!
//! Each change asks whether its path, or the parent whose list of children it changes, has conditions on it. A node whose
//! conditions do not hold any more is deleted with everything below it, in the transaction of the change. That may end others, and
//! so on.

use std::mem;

use duramen_engine::Result;
use duramen_topic::bytes::{Reader, put_bytes, put_number};

use super::{LeaseChange, TreeWrites};
use crate::condition::Condition;
use crate::error::TreeError;
use crate::limits::{CONDITION_DEPTH_MAX, PATH_BYTES_MAX};
use crate::node::Node;
use crate::path::{check, shown};
use crate::tables::{keeper_key, keeper_of, keepers_below, keepers_prefix, kept_key};

/// Conditions with the paths that they are about.
type Conditions = Vec<(Vec<u8>, Condition)>;

fn encode(conditions: &Conditions) -> Vec<u8> {
    let mut row = Vec::new();
    put_number(&mut row, conditions.len() as u64);
    for (path, condition) in conditions {
        put_bytes(&mut row, path);
        condition.push(&mut row);
    }
    row
}

fn decode(row: &[u8]) -> Result<Conditions> {
    let mut reader = Reader::new(row, "what a node is kept for");
    let count = reader.number()?;
    let conditions = (0..count).map(|_| {
        let path = reader.long()?.to_vec();
        Ok((path, Condition::read(&mut reader, CONDITION_DEPTH_MAX)?))
    });
    let conditions = conditions.collect::<Result<_>>()?;
    reader.end()?;
    Ok(conditions)
}

/// The conditions while which a node is kept, with the paths that they are about, of their row.
pub(crate) fn kept_conditions(row: &[u8]) -> Result<Vec<(Vec<u8>, Condition)>> {
    decode(row)
}

/// Refuses two paths that do not fit into one key.
fn check_both(path: &[u8], watched: &[u8]) -> Result<()> {
    check(watched)?;
    let zeros = watched.iter().filter(|byte| **byte == 0).count();
    if path.len() + watched.len() + zeros <= PATH_BYTES_MAX {
        return Ok(());
    }
    let cause = format!(
        "it is about {:?}, which has more than 1,000 bytes together with the path of the node",
        shown(&watched[..watched.len().min(100)])
    );
    Err(TreeError::InvalidCondition { cause }.into())
}

impl TreeWrites<'_> {
    /// Stores a payload in a node that is kept while conditions on other paths hold, and deleted with everything below it once one
    /// does not. Conditions of the node from before are replaced; a usual put leaves them.
    ///
    /// # Errors
    /// [`TreeError::NotKept`] when a condition does not hold now, [`TreeError::InvalidCondition`], and those of
    /// [`TreeWrites::put`].
    pub fn put_keeping(
        &mut self,
        path: impl AsRef<[u8]>,
        payload: impl AsRef<[u8]>,
        lease: LeaseChange,
        conditions: &[(&[u8], Condition)],
    ) -> Result<()> {
        let path = path.as_ref();
        check(path)?;
        for (watched, condition) in conditions {
            check_both(path, watched)?;
            let node = match *watched == path {
                true => Some(self.node_after_put(path, payload.as_ref(), lease)?),
                false => self.reading().node(watched)?,
            };
            if !condition.holds_as(&self.reading(), watched, node)? {
                let (path, watched) = (shown(path), shown(watched));
                return Err(TreeError::NotKept { path, watched }.into());
            }
        }
        // What the put ends comes after the new conditions: the node may be among it.
        let was_ending = mem::replace(&mut self.is_ending, true);
        let put = self.put_with(path, payload, lease);
        self.is_ending = was_ending;
        put?;
        self.forget_kept(path)?;
        if conditions.is_empty() {
            return self.end_unkept();
        }
        let conditions: Conditions = conditions
            .iter()
            .map(|(watched, condition)| (watched.to_vec(), condition.clone()))
            .collect();
        let (id, rules) = (self.tree.id, self.tree.tables.rules.clone());
        self.tx.put(&rules, kept_key(id, path), encode(&conditions))?;
        for (watched, _) in &conditions {
            self.tx.put(&rules, keeper_key(id, watched, path), b"")?;
        }
        self.state.kept = self.state.kept.saturating_add(1);
        self.put_state()?;
        // The put itself may have changed what a condition is about.
        self.suspects.insert(path.to_vec());
        self.end_unkept()
    }

    /// The node that a put is about to make, for a condition on itself.
    fn node_after_put(&self, path: &[u8], payload: &[u8], lease: LeaseChange) -> Result<Node> {
        let revision = self.next_revision();
        let old = self.reading().node(path)?;
        Ok(Node {
            create_revision: old.as_ref().map_or(revision, |old| old.create_revision),
            revision,
            version: old.as_ref().map_or(0, |old| old.version).saturating_add(1),
            lease: match lease {
                LeaseChange::Detach => 0,
                LeaseChange::Keep => old.map_or(0, |old| old.lease),
                LeaseChange::Attach(lease) => lease,
            },
            payload: payload.to_vec(),
        })
    }

    /// Conditions while which the node of a path is kept, with the paths that they are about.
    ///
    /// # Errors
    /// Those of reading.
    pub fn kept_while(&self, path: impl AsRef<[u8]>) -> Result<Vec<(Vec<u8>, Condition)>> {
        let row = self
            .tx
            .get_ref(&self.tree.tables.rules, kept_key(self.tree.id, path.as_ref()))?;
        row.map_or(Ok(Vec::new()), |row| decode(&row))
    }

    /// Forgets what a node is kept for.
    pub(crate) fn forget_kept(&mut self, path: &[u8]) -> Result<()> {
        if self.state.kept == 0 {
            return Ok(());
        }
        let conditions = self.kept_while(path)?;
        if conditions.is_empty() {
            return Ok(());
        }
        let (id, rules) = (self.tree.id, self.tree.tables.rules.clone());
        for (watched, _) in conditions {
            self.tx.delete(&rules, keeper_key(id, &watched, path))?;
        }
        self.tx.delete(&rules, kept_key(id, path))?;
        self.state.kept -= 1;
        self.put_state()
    }

    /// Notes that nodes with conditions on a path may have to end.
    pub(crate) fn suspect_keepers_of(&mut self, path: &[u8]) -> Result<()> {
        if self.state.kept == 0 {
            return Ok(());
        }
        let prefix = keepers_prefix(self.tree.id, path);
        let mut rows = self.tx.range(&self.tree.tables.rules, &prefix[..]..)?;
        while let Some((key, _)) = rows.next()?
            && let Some(keeper) = key.strip_prefix(&prefix[..])
        {
            self.suspects.insert(keeper.to_vec());
        }
        Ok(())
    }

    /// Notes that nodes with conditions on paths below a path may have to end.
    pub(crate) fn suspect_keepers_below(&mut self, path: &[u8]) -> Result<()> {
        if self.state.kept == 0 {
            return Ok(());
        }
        let (low, high) = keepers_below(self.tree.id, path);
        let mut rows = self.tx.range(&self.tree.tables.rules, &low[..]..&high[..])?;
        while let Some((key, _)) = rows.next()? {
            self.suspects.insert(keeper_of(key)?);
        }
        Ok(())
    }

    /// Ends nodes whose conditions do not hold any more, until none is left.
    pub(crate) fn end_unkept(&mut self) -> Result<()> {
        if self.is_ending {
            return Ok(());
        }
        self.is_ending = true;
        let mut ended = Ok(());
        while ended.is_ok()
            && let Some(path) = self.suspects.pop_first()
        {
            ended = self.end_if_unkept(&path);
            if ended.is_err() {
                // What could not be ended now is tried again.
                self.suspects.insert(path);
            }
        }
        self.is_ending = false;
        ended
    }

    fn end_if_unkept(&mut self, path: &[u8]) -> Result<()> {
        for (watched, condition) in self.kept_while(path)? {
            if !condition.holds(&self.reading(), &watched)? {
                return self.delete_subtree(path).map(drop);
            }
        }
        Ok(())
    }
}
