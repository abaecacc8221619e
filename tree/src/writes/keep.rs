//! Nodes that are kept while conditions on other paths hold, as Khepri's `keep_while`.
//!
//! Each change asks whether its path, or the parent whose list of children it changes, has conditions on it. A node whose
//! conditions do not hold any more is deleted with everything below it, in the transaction of the change. That may end others, and
//! so on.

use duramen_engine::Result;
use duramen_topic::bytes::{Reader, put_bytes, put_number};

use super::{LeaseChange, TreeWrites};
use crate::condition::Condition;
use crate::error::TreeError;
use crate::limits::CONDITION_DEPTH_MAX;
use crate::node::Node;
use crate::path::{check, shown};
use crate::tables::{keeper_key, keepers_prefix, kept_key};

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
    conditions.collect()
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
        for (watched, condition) in conditions {
            check(watched)?;
            let node = match *watched == path {
                true => Some(self.node_after_put(path, payload.as_ref())?),
                false => self.reading().node(watched)?,
            };
            if !condition.holds_as(&self.reading(), watched, node)? {
                let (path, watched) = (shown(path), shown(watched));
                return Err(TreeError::NotKept { path, watched }.into());
            }
        }
        self.put_with(path, payload, lease)?;
        self.forget_kept(path)?;
        if conditions.is_empty() {
            return Ok(());
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
        self.state.kept += 1;
        self.put_state()
    }

    /// The node that a put is about to make, for a condition on itself; without its lease.
    fn node_after_put(&self, path: &[u8], payload: &[u8]) -> Result<Node> {
        let revision = self.next_revision();
        let old = self.reading().node(path)?;
        Ok(Node {
            create_revision: old.as_ref().map_or(revision, |old| old.create_revision),
            revision,
            version: old.map_or(0, |old| old.version) + 1,
            lease: 0,
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
        let mut keepers = Vec::new();
        while let Some((key, _)) = rows.next()?
            && let Some(keeper) = key.strip_prefix(&prefix[..])
        {
            keepers.push(keeper.to_vec());
        }
        drop(rows);
        self.suspects.extend(keepers);
        Ok(())
    }

    /// Ends nodes whose conditions do not hold any more, until none is left.
    pub(crate) fn end_unkept(&mut self) -> Result<()> {
        if self.is_ending {
            return Ok(());
        }
        self.is_ending = true;
        while let Some(path) = self.suspects.pop_first() {
            let mut is_kept = true;
            for (watched, condition) in self.kept_while(&path)? {
                is_kept = is_kept && condition.holds(&self.reading(), &watched)?;
            }
            if !is_kept {
                self.delete_subtree(&path)?;
            }
        }
        self.is_ending = false;
        Ok(())
    }
}
