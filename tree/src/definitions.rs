//! Setting and removing the rules of a tree.

use duramen_engine::{Error, Reason, Result};
use duramen_topic::Topics;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::TreeError;
use crate::limits::TREE_NAME_BYTES_MAX;
use crate::path::{after_prefix, below, check};
use crate::read::Rows;
use crate::rules::{Projection, Quota, QuotaUse, Rules, Trigger};
use crate::tables::{PROJECTION, QUOTA, RULE_TAGS, TRIGGER, rule_key, rule_prefix};
use crate::writes::TreeWrites;

impl TreeWrites<'_> {
    /// Lets changes publish messages from now on. A message has the path as its key, the payload of the node (of a deleted node
    /// none), and the headers `change` (`put` or `delete`), `revision` and `tree`. Each call that changes a path publishes one. A
    /// trigger of this name is replaced.
    ///
    /// The topic must exist: without it, every change that the trigger is for fails.
    ///
    /// # Errors
    /// [`TreeError::TriggerTopic`], and those of [`duramen_engine::Transaction::put`].
    pub fn set_trigger(&mut self, name: &str, trigger: &Trigger) -> Result<()> {
        check_name(name)?;
        // Opening the topics of a store that has none would make maps, which is no part of the transaction.
        let is_there = Topics::exist(&self.tree.store)? && self.tree.topics()?.get(&trigger.topic)?.is_some();
        if !is_there {
            return Err(TreeError::TriggerTopic {
                trigger: name.into(),
                topic: trigger.topic.clone(),
            }
            .into());
        }
        self.put_rule(TRIGGER, name.as_bytes(), trigger.encode())
    }

    /// Removes a trigger.
    ///
    /// # Errors
    /// [`TreeError::UnknownRule`].
    pub fn remove_trigger(&mut self, name: &str) -> Result<()> {
        self.remove_rule(TRIGGER, name.as_bytes(), "trigger", name)
    }

    /// Lets a map follow the nodes whose paths have a pattern, and fills it with those that there are. The map is made when it is
    /// missing. Programs read it like any other map. What they write to it is lost with the next call of this or
    /// [`TreeWrites::rebuild_projection`]. A projection of this name is replaced.
    ///
    /// # Errors
    /// [`Reason::InvalidArgument`] when the map has pairs and is not that of this projection, or is that of another
    /// one.
    pub fn set_projection(&mut self, name: &str, projection: &Projection) -> Result<()> {
        check_name(name)?;
        let map = self.tx.map(&projection.map)?;
        let is_taken = |(known, rule): &(String, Projection)| known != name && rule.map == projection.map;
        if let Some((other, _)) = self.rules.projections.iter().find(|rule| is_taken(rule)) {
            let cause = format!(
                "the map {:?} is that of the projection {other:?}; name another map",
                projection.map
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        let is_own = self
            .rules
            .projections
            .iter()
            .any(|(known, rule)| known == name && rule.map == projection.map);
        if !is_own && !self.tx.is_empty(&map)? {
            let cause = format!(
                "the map {:?} has pairs, which the projection {name:?} would remove; name an empty map",
                projection.map
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        self.fill(projection)?;
        self.put_rule(PROJECTION, name.as_bytes(), projection.encode())
    }

    /// Fills the map of a projection again with the nodes that there are.
    ///
    /// # Errors
    /// [`TreeError::UnknownRule`].
    pub fn rebuild_projection(&mut self, name: &str) -> Result<u64> {
        let rules = self.rules.clone();
        let known = rules.projections.iter().find(|(known, _)| known == name);
        let (_, projection) = known.ok_or_else(|| unknown("projection", name))?;
        self.tx.map(&projection.map)?;
        self.fill(projection)?;
        let map = self.tx.map(&projection.map)?;
        self.tx.count(&map, ..)
    }

    /// Removes a projection; its map stays as it is.
    ///
    /// # Errors
    /// [`TreeError::UnknownRule`].
    pub fn remove_projection(&mut self, name: &str) -> Result<()> {
        self.remove_rule(PROJECTION, name.as_bytes(), "projection", name)
    }

    /// Limits the nodes of a path and below it. What is there counts, and stays when it is more. A quota of this path is replaced.
    ///
    /// # Errors
    /// [`TreeError::InvalidPath`].
    pub fn set_quota(&mut self, path: impl AsRef<[u8]>, quota: Quota) -> Result<()> {
        let path = path.as_ref();
        check(path)?;
        let (mut nodes, mut bytes) = (0, 0);
        let mut count = |path: &[u8], payload: &[u8]| {
            nodes += 1;
            bytes += (path.len() + payload.len()) as u64;
        };
        if let Some(node) = self.reading().node(path)? {
            count(path, &node.payload);
        }
        let (low, high) = below(path);
        self.reading().each((&low, Some(&high)), |path, head| {
            count(path, head.payload);
            Ok(true)
        })?;
        let path = path.to_vec();
        let used = QuotaUse {
            path,
            quota,
            nodes,
            bytes,
        };
        self.put_rule(QUOTA, &used.path, used.encode())
    }

    /// Removes the quota of a path.
    ///
    /// # Errors
    /// [`TreeError::UnknownRule`].
    pub fn remove_quota(&mut self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        self.remove_rule(QUOTA, path, "quota of", &crate::path::shown(path))
    }

    fn fill(&mut self, projection: &Projection) -> Result<()> {
        let map = self.tx.map(&projection.map)?;
        if map.is_guarded() {
            let cause = format!(
                "the map {:?} keeps its changes, so only the server writes it; name another map",
                projection.map
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        self.tx.clear(&map)?;
        let prefix = projection.pattern.prefix();
        let high = after_prefix(&prefix);
        let mut pairs = Vec::new();
        self.reading().each((&prefix, high.as_deref()), |path, head| {
            if projection.pattern.matches(path) {
                pairs.push((path.to_vec(), head.payload.to_vec()));
            }
            Ok(true)
        })?;
        self.tx.put_sorted(&map, pairs).map(drop)
    }

    fn put_rule(&mut self, tag: u8, name: &[u8], row: Vec<u8>) -> Result<()> {
        let key = rule_key(self.tree.id, tag, name);
        self.tx.put(&self.tree.tables.rules, key, row)?;
        self.rules_changed()
    }

    fn remove_rule(&mut self, tag: u8, key: &[u8], kind: &'static str, name: &str) -> Result<()> {
        let key = rule_key(self.tree.id, tag, key);
        if self.tx.get_ref(&self.tree.tables.rules, &key)?.is_none() {
            return Err(unknown(kind, name));
        }
        self.tx.delete(&self.tree.tables.rules, key)?;
        self.rules_changed()
    }

    /// Writes a hash of all rules into the state, by which other writers see that theirs are old, and reads them again. What counts
    /// for a quota is no part of it.
    fn rules_changed(&mut self) -> Result<()> {
        let mut all = Vec::new();
        for tag in RULE_TAGS {
            let prefix = rule_prefix(self.tree.id, tag);
            let mut rows = self.tx.rows(&self.tree.tables.rules, &prefix[..]..)?;
            while let Some((key, row)) = rows.next()?
                && key.starts_with(&prefix)
            {
                all.extend((key.len() as u32).to_be_bytes());
                all.extend_from_slice(key);
                if tag != QUOTA {
                    all.extend((row.len() as u32).to_be_bytes());
                    all.extend_from_slice(&row);
                }
            }
        }
        self.state.rules = match all.is_empty() {
            true => 0,
            false => xxh3_64(&all).max(1),
        };
        self.put_state()?;
        self.rules = self.tree.rules(self.tx, self.state.rules)?;
        Ok(())
    }
}

impl crate::view::TreeView {
    /// The triggers with their names.
    ///
    /// # Errors
    /// Those of reading.
    pub fn triggers(&self) -> Result<Vec<(String, Trigger)>> {
        Ok(self.rules()?.triggers)
    }

    /// The projections with their names.
    ///
    /// # Errors
    /// Those of reading.
    pub fn projections(&self) -> Result<Vec<(String, Projection)>> {
        Ok(self.rules()?.projections)
    }

    /// The quotas, and what counts for them.
    ///
    /// # Errors
    /// Those of reading.
    pub fn quotas(&self) -> Result<Vec<QuotaUse>> {
        let (snapshot, tree) = self.place();
        let prefix = rule_prefix(tree.id, QUOTA);
        let mut rows = snapshot.range(&tree.tables.rules, &prefix[..]..)?;
        let mut quotas = Vec::new();
        while let Some((key, row)) = rows.next()?
            && let Some(path) = key.strip_prefix(&prefix[..])
        {
            quotas.push(QuotaUse::decode(path, &row)?);
        }
        Ok(quotas)
    }

    fn rules(&self) -> Result<Rules> {
        let (snapshot, tree) = self.place();
        Rules::read(snapshot, &tree.tables, tree.id)
    }
}

fn unknown(kind: &'static str, name: &str) -> Error {
    TreeError::UnknownRule {
        kind,
        name: name.to_string(),
    }
    .into()
}

fn check_name(name: &str) -> Result<()> {
    if (1..=TREE_NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let cause = format!(
        "a rule has a name of 1 to {TREE_NAME_BYTES_MAX} bytes, and not {}",
        name.len()
    );
    Err(Reason::InvalidArgument(cause).into())
}
