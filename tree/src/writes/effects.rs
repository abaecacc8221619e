//! What a change does beside itself: quotas are counted, projections follow, triggers publish.

use duramen_engine::Result;
use duramen_topic::{Message, TopicWrites};

use super::TreeWrites;
use crate::node::ChangeKind;
use crate::rules::{QuotaUse, Trigger};
use crate::tables::{QUOTA, rule_key};

/// A change of a path, as its effects see it.
#[derive(Clone, Copy)]
pub(super) struct Effect<'a> {
    pub(super) path: &'a [u8],
    /// Bytes of the payload before, if there was a node.
    pub(super) old_bytes: Option<usize>,
    /// The payload afterwards, if there is a node.
    pub(super) payload: Option<&'a [u8]>,
}

impl Effect<'_> {
    fn kind(&self) -> ChangeKind {
        match self.payload {
            Some(_) => ChangeKind::Put,
            None => ChangeKind::Delete,
        }
    }

    fn is_for(&self, trigger: &Trigger) -> bool {
        trigger.kind.is_none_or(|wanted| wanted == self.kind()) && trigger.pattern.matches(self.path)
    }

    /// How many nodes and bytes there are more.
    fn growth(&self) -> (i64, i64) {
        let counted = |bytes: usize| (bytes + self.path.len()) as i64;
        let before = self.old_bytes.map_or((0, 0), |bytes| (1, counted(bytes)));
        let after = self.payload.map_or((0, 0), |payload| (1, counted(payload.len())));
        (after.0 - before.0, after.1 - before.1)
    }
}

impl TreeWrites<'_> {
    /// Counts a change for the quotas of its path, before anything of it is written.
    pub(super) fn count_quotas(&mut self, effect: &Effect<'_>) -> Result<()> {
        if self.rules.is_empty() {
            return Ok(());
        }
        let (nodes, bytes) = effect.growth();
        let (id, map) = (self.tree.id, &self.tree.tables.rules);
        let mut counted = Vec::new();
        for path in self.rules.quotas_of(effect.path) {
            let key = rule_key(id, QUOTA, path);
            let row = self.tx.get_ref(map, &key)?;
            let row = row.ok_or_else(|| duramen_engine::Error::damaged("the quota of a tree has no row"))?;
            let mut used = QuotaUse::decode(path, &row)?;
            used.count(nodes, bytes)?;
            counted.push((key, used.encode()));
        }
        for (key, row) in counted {
            self.tx.put(map, key, row)?;
        }
        Ok(())
    }

    /// Refuses a change for which a trigger has no topic, before anything of it is written.
    pub(super) fn check_topics(&self, effect: &Effect<'_>) -> Result<()> {
        let rules = &self.rules;
        let mut triggers = rules.triggers.iter();
        triggers.try_for_each(|(name, trigger)| match effect.is_for(trigger) {
            true => rules.topic(name, trigger).map(drop),
            false => Ok(()),
        })
    }

    /// Does what the projections and triggers of a path say.
    pub(super) fn follow(&mut self, effect: &Effect<'_>) -> Result<()> {
        if self.rules.is_empty() {
            return Ok(());
        }
        let rules = self.rules.clone();
        let matching = rules
            .projections
            .iter()
            .filter(|(_, rule)| rule.pattern.matches(effect.path));
        for (_, projection) in matching {
            // While a program has dropped the map, nothing follows. Nor does a map that keeps its changes and took its name.
            let map = self.tx.existing_map(&projection.map)?;
            if map.is_none_or(|map| map.is_guarded()) {
                continue;
            }
            // Opened so that dropping it meanwhile is a conflict.
            let map = self.tx.map(&projection.map)?;
            match effect.payload {
                Some(payload) => self.tx.put(&map, effect.path, payload)?,
                None => self.tx.delete(&map, effect.path)?,
            }
        }
        let said = match effect.kind() {
            ChangeKind::Put => "put",
            ChangeKind::Delete => "delete",
        };
        let revision = self.state.revision.to_string();
        for (name, trigger) in &rules.triggers {
            if !effect.is_for(trigger) {
                continue;
            }
            let topic = rules.topic(name, trigger)?;
            let message = Message::new(effect.payload.unwrap_or_default())
                .key(effect.path)
                .header("change", said)
                .header("revision", &revision)
                .header("tree", &self.tree.name);
            self.tx.publish(&topic, message)?;
        }
        Ok(())
    }
}
