//! Changing a tree in a transaction.
//!
//! All changes of a [`TreeWrites`] have one revision, and each path has at most one change in it: what several calls do to a path
//! is one change from what was there before to what is there afterwards.

mod effects;
mod keep;

pub(crate) use keep::kept_conditions;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use duramen_engine::{Error, Map, Reason, Result, Transaction};

use self::effects::Effect;
use crate::condition::Condition;
use crate::error::TreeError;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::node::{ChangeKind, ChangeRow, Children, Head, Node};
use crate::path::{after_prefix, below, check, shown, split};
use crate::pattern::Pattern;
use crate::read::Reading;
use crate::rules::Rules;
use crate::shared::Shared;
use crate::state::State;
use crate::tables::{
    attached_key, change_key, implied_key, mark_key, node_key, parent_key, parents_below, state_key, version_key,
};

/// Changes a tree in a transaction; see [`crate::Tree::writes`].
///
/// What it reads is what the transaction sees: the state that the transaction began with, and its own changes.
pub struct TreeWrites<'t> {
    pub(crate) tree: &'t Shared,
    pub(crate) tx: &'t mut Transaction,
    pub(crate) state: State,
    /// Whether the revision is that of these changes already.
    has_begun: bool,
    next_sub: u32,
    /// Nodes that these changes have created, with the subs of their changes.
    created: HashMap<Vec<u8>, u32>,
    pub(crate) rules: Arc<Rules>,
    /// Paths of nodes that may have to end.
    suspects: BTreeSet<Vec<u8>>,
    is_ending: bool,
    /// Whether changes are noted without the node before.
    forgets: bool,
    /// Whether [`TreeWrites::end_several`] puts the state, once for all revisions.
    defers_state: bool,
    /// Ranges that these changes have deleted.
    ranges: usize,
}

/// Rows of a range that are deleted one by one.
const ROWS_SINGLY: usize = 64;
/// Ranges that the changes of one [`TreeWrites`] delete: a part of what a transaction takes.
const RANGES_MAX: usize = 1_000;

/// What [`TreeWrites`] have done, while their transaction does something else; see [`TreeWrites::pause`].
#[derive(Debug)]
pub struct PausedWrites {
    /// The tree, and the transaction.
    tree: u32,
    transaction: u64,
    state: State,
    has_begun: bool,
    next_sub: u32,
    created: HashMap<Vec<u8>, u32>,
    rules: Arc<Rules>,
    suspects: BTreeSet<Vec<u8>>,
    ranges: usize,
}

/// What a put does with the lease of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseChange {
    /// The node has no lease afterwards.
    #[default]
    Detach,
    /// It keeps the lease that it has.
    Keep,
    /// It has this lease afterwards.
    Attach(u64),
}

impl<'t> TreeWrites<'t> {
    pub(crate) fn begin(tree: &'t Shared, tx: &'t mut Transaction) -> Result<TreeWrites<'t>> {
        let state = tree.reading(tx).state(&tree.name)?;
        let rules = tree.rules(tx, state.rules)?;
        Ok(TreeWrites {
            tree,
            tx,
            state,
            has_begun: false,
            next_sub: 0,
            created: HashMap::new(),
            rules,
            suspects: BTreeSet::new(),
            is_ending: false,
            forgets: false,
            defers_state: false,
            ranges: 0,
        })
    }

    /// Begins writes with several revisions, for changes by single calls. Nothing else may use the transaction before
    /// [`TreeWrites::end_several`].
    pub(crate) fn begin_several(tree: &'t Shared, tx: &'t mut Transaction) -> Result<TreeWrites<'t>> {
        let mut writes = TreeWrites::begin(tree, tx)?;
        writes.defers_state = true;
        Ok(writes)
    }

    /// What follows has the next revision.
    pub(crate) fn end_revision(&mut self) {
        self.has_begun = false;
        self.next_sub = 0;
        self.created.clear();
        self.suspects.clear();
    }

    /// Puts the state that all revisions have led to.
    pub(crate) fn end_several(mut self) -> Result<()> {
        self.defers_state = false;
        self.put_state()
    }

    /// Frees the transaction for something else. [`crate::Tree::resume`] goes on: what follows has this revision too.
    pub fn pause(self) -> PausedWrites {
        PausedWrites {
            tree: self.tree.id,
            transaction: self.tx.number(),
            state: self.state,
            has_begun: self.has_begun,
            next_sub: self.next_sub,
            created: self.created,
            rules: self.rules,
            suspects: self.suspects,
            ranges: self.ranges,
        }
    }

    pub(crate) fn resume(tree: &'t Shared, tx: &'t mut Transaction, paused: PausedWrites) -> Result<TreeWrites<'t>> {
        if (paused.tree, paused.transaction) != (tree.id, tx.number()) {
            let cause = "the writes were paused in another transaction or are those of another tree; resume them there, and begin new \
                         writes in each transaction";
            return Err(Reason::InvalidArgument(cause.into()).into());
        }
        let mut writes = TreeWrites::begin(tree, tx)?;
        if writes.state != paused.state {
            let cause = "the transaction has changed the tree since its writes were paused; resume them instead";
            return Err(Reason::InvalidArgument(cause.into()).into());
        }
        writes.has_begun = paused.has_begun;
        writes.next_sub = paused.next_sub;
        writes.created = paused.created;
        writes.rules = paused.rules;
        writes.suspects = paused.suspects;
        writes.ranges = paused.ranges;
        Ok(writes)
    }

    pub(crate) fn reading(&self) -> Reading<'_, Transaction> {
        self.tree.reading(self.tx)
    }

    /// The revision of the changes so far; without one, the newest revision of the tree.
    pub fn revision(&self) -> u64 {
        self.state.revision
    }

    /// The node of a path.
    ///
    /// # Errors
    /// Those of reading.
    pub fn get(&self, path: impl AsRef<[u8]>) -> Result<Option<Node>> {
        self.reading().node(path.as_ref())
    }

    /// What a path has below it; an empty slice of a path is not the top of the tree.
    ///
    /// # Errors
    /// Those of reading.
    pub fn children(&self, path: impl AsRef<[u8]>) -> Result<Children> {
        self.reading().children(Some(path.as_ref()))
    }

    /// Stores a payload, whether there is a node or not. Returns the node before.
    ///
    /// # Errors
    /// [`TreeError::InvalidPath`], [`TreeError::PayloadTooLarge`], [`TreeError::LeaseGone`], and those of
    /// [`Transaction::put`].
    pub fn put(&mut self, path: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Result<Option<Node>> {
        self.put_with(path, payload, LeaseChange::default())
    }

    /// [`TreeWrites::put`], with the lease of the node.
    ///
    /// # Errors
    /// As [`TreeWrites::put`].
    pub fn put_with(
        &mut self,
        path: impl AsRef<[u8]>,
        payload: impl AsRef<[u8]>,
        lease: LeaseChange,
    ) -> Result<Option<Node>> {
        let (path, payload) = (path.as_ref(), payload.as_ref());
        check(path)?;
        let old = self.current(path)?;
        self.replace(path, payload, lease, old)
    }

    /// Stores a payload in place of a node.
    fn replace(
        &mut self,
        path: &[u8],
        payload: &[u8],
        lease: LeaseChange,
        old: Option<Vec<u8>>,
    ) -> Result<Option<Node>> {
        check_payload(path, payload)?;
        let old_head = old.as_deref().map(Head::decode).transpose()?;
        let old_lease = old_head.map_or(0, |head| head.lease);
        let lease = match lease {
            LeaseChange::Detach => 0,
            LeaseChange::Keep => old_lease,
            LeaseChange::Attach(lease) => {
                self.check_lease(lease)?;
                lease
            }
        };
        let effect = Effect {
            path,
            old_bytes: old_head.map(|head| head.payload.len()),
            payload: Some(payload),
        };
        self.check_topics(&effect)?;
        self.count_quotas(&effect)?;
        self.begin_revision()?;
        let revision = self.state.revision;
        self.note(ChangeKind::Put, path, old.as_deref())?;
        if old.is_none() {
            match self.reading().children(Some(path))?.count {
                0 => self.link(path)?,
                _ => self.imply(path, false)?,
            }
        }
        let node = Node {
            create_revision: old_head.map_or(revision, |head| head.create_revision),
            revision,
            version: old_head.map_or(0, |head| head.version).saturating_add(1),
            lease,
            payload: payload.to_vec(),
        };
        let tables = &self.tree.tables;
        self.tx
            .put(&tables.nodes, node_key(self.tree.id, path), node.encode())?;
        if lease != old_lease {
            self.attach(path, old_lease, lease)?;
        }
        self.follow(&effect)?;
        self.suspect_keepers_of(path)?;
        self.end_unkept()?;
        old_head.map(|head| Ok(head.with_payload())).transpose()
    }

    /// Creates a node.
    ///
    /// # Errors
    /// [`TreeError::Exists`], and those of [`TreeWrites::put`].
    pub fn create(&mut self, path: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Result<()> {
        self.create_with(path, payload, LeaseChange::default())
    }

    /// [`TreeWrites::create`], with the lease of the node.
    ///
    /// # Errors
    /// As [`TreeWrites::create`].
    pub fn create_with(&mut self, path: impl AsRef<[u8]>, payload: impl AsRef<[u8]>, lease: LeaseChange) -> Result<()> {
        let path = path.as_ref();
        check(path)?;
        if let Some(row) = self.current(path)? {
            let (path, version) = (shown(path), Head::decode(&row)?.version);
            return Err(TreeError::Exists { path, version }.into());
        }
        self.replace(path, payload.as_ref(), lease, None).map(drop)
    }

    /// Replaces the payload of a node, which keeps its lease. Returns the node before.
    ///
    /// # Errors
    /// [`TreeError::Missing`], and those of [`TreeWrites::put`].
    pub fn update(&mut self, path: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Result<Node> {
        let path = path.as_ref();
        check(path)?;
        let old = self.put_existing(path, payload.as_ref())?;
        old.ok_or_else(|| missing(path))
    }

    fn put_existing(&mut self, path: &[u8], payload: &[u8]) -> Result<Option<Node>> {
        match self.current(path)? {
            Some(old) => self.replace(path, payload, LeaseChange::Keep, Some(old)),
            None => Ok(None),
        }
    }

    /// Replaces the payload of a node that holds another one, and changes nothing otherwise. The node keeps its lease.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Mismatch`], and those of [`TreeWrites::put`].
    pub fn compare_and_swap(
        &mut self,
        path: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        payload: impl AsRef<[u8]>,
    ) -> Result<()> {
        let path = path.as_ref();
        let old = self.get(path)?.ok_or_else(|| missing(path))?;
        if old.payload != expected.as_ref() {
            let found = format!(
                "it has version {} of revision {}, with another payload",
                old.version, old.revision
            );
            let path = shown(path);
            return Err(TreeError::Mismatch { path, found }.into());
        }
        self.put_with(path, payload, LeaseChange::Keep).map(drop)
    }

    /// Empties the payload of a node, and keeps the node. Returns whether there is one.
    ///
    /// # Errors
    /// As [`TreeWrites::put`].
    pub fn clear_payload(&mut self, path: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.put_existing(path.as_ref(), b"")?.is_some())
    }

    /// Deletes the node of a path, and nothing below it. Returns the node.
    ///
    /// # Errors
    /// Those of [`Transaction::delete`].
    pub fn delete(&mut self, path: impl AsRef<[u8]>) -> Result<Option<Node>> {
        let path = path.as_ref();
        let Some(old) = self.current(path)? else {
            return Ok(None);
        };
        let head = Head::decode(&old)?;
        let effect = Effect {
            path,
            old_bytes: Some(head.payload.len()),
            payload: None,
        };
        self.check_topics(&effect)?;
        self.count_quotas(&effect)?;
        self.begin_revision()?;
        self.note(ChangeKind::Delete, path, Some(&old))?;
        let tables = &self.tree.tables;
        self.tx.delete(&tables.nodes, node_key(self.tree.id, path))?;
        self.attach(path, head.lease, 0)?;
        match self.reading().children(Some(path))? {
            Children { count: 0, version } => self.unlink(path, version)?,
            _ => self.imply(path, true)?,
        }
        self.follow(&effect)?;
        self.forget_kept(path)?;
        self.suspect_keepers_of(path)?;
        self.end_unkept()?;
        Ok(Some(head.with_payload()))
    }

    /// Deletes the node of a path and all nodes below it. Returns how many.
    ///
    /// # Errors
    /// Those of [`Transaction::delete_range`].
    pub fn delete_subtree(&mut self, path: impl AsRef<[u8]>) -> Result<u64> {
        let path = path.as_ref();
        check(path)?;
        let (low, high) = below(path);
        let is_node = self.reading().exists(path)?;
        if is_node {
            self.check_deletion(path)?;
        }
        let below = self.note_deleted((&low, &high))?;
        if below == 0 {
            return self.delete(path).map(|deleted| u64::from(deleted.is_some()));
        }
        let (id, tables) = (self.tree.id, self.tree.tables.clone());
        self.delete_rows(&tables.nodes, &node_key(id, &low), &node_key(id, &high))?;
        let (first, end) = parents_below(id, path);
        for map in [&tables.implied, &tables.parents] {
            self.delete_rows(map, &first, &end)?;
        }
        self.delete_implied_children_of(path)?;
        self.tx.delete(&tables.parents, parent_key(id, Some(path)))?;
        // Those for a path without a node are about its children.
        self.suspect_keepers_of(path)?;
        self.suspect_keepers_below(path)?;
        if is_node {
            // Without children it ends like any other node.
            self.delete(path)?;
        } else {
            self.imply(path, false)?;
            self.unlink(path, 0)?;
        }
        self.end_unkept()?;
        Ok(below + u64::from(is_node))
    }

    /// Deletes the node of a path and all nodes below it, and keeps none of it for earlier revisions: the revision of this change is
    /// the first that can be read afterwards. Watches that are behind fail; others see deletions without the nodes before. Returns
    /// how many nodes it deleted.
    ///
    /// # Errors
    /// As [`TreeWrites::delete_subtree`]; [`Reason::InvalidArgument`] after other changes by these writes.
    pub fn purge(&mut self, path: impl AsRef<[u8]>) -> Result<u64> {
        if self.has_begun {
            let cause = "a purge is the only change of its revision; make it in a transaction of its own";
            return Err(Reason::InvalidArgument(cause.into()).into());
        }
        self.forgets = true;
        let deleted = self.delete_subtree(path);
        self.forgets = false;
        // Also after an error that the caller ignores: earlier revisions lack what was deleted before it.
        if self.has_begun {
            self.state.first = self.state.revision;
            self.put_state()?;
            let trees = &self.tree.tables.trees;
            self.tx.put(trees, mark_key(self.tree.id), b"")?;
        }
        deleted
    }

    /// Refuses the deletion of a node for which a trigger has no topic.
    pub(crate) fn check_deletion(&self, path: &[u8]) -> Result<()> {
        self.check_topics(&Effect {
            path,
            old_bytes: None,
            payload: None,
        })
    }

    /// Removes the implied children of a path.
    fn delete_implied_children_of(&mut self, path: &[u8]) -> Result<()> {
        let prefix = parent_key(self.tree.id, Some(path));
        // The prefix ends with a byte 0, so the next prefix of this length is the end.
        let mut end = prefix.clone();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let implied = self.tree.tables.implied.clone();
        self.delete_rows(&implied, &prefix, &end)
    }

    /// Deletes the rows of a range of keys. A transaction deletes some thousand ranges at most, and one change may end any number of
    /// subtrees: so few rows are deleted one by one, and many are after [`RANGES_MAX`] ranges.
    fn delete_rows(&mut self, map: &Map, low: &[u8], high: &[u8]) -> Result<()> {
        let singly = match self.ranges < RANGES_MAX {
            true => ROWS_SINGLY,
            false => usize::MAX,
        };
        let mut keys = Vec::new();
        let mut rows = self.tx.range(map, low..high)?;
        while keys.len() <= singly
            && let Some((key, _)) = rows.next()?
        {
            keys.push(key.to_vec());
        }
        drop(rows);
        if keys.len() > singly {
            self.ranges += 1;
            return self.tx.delete_range(map, low..high);
        }
        keys.iter().try_for_each(|key| self.tx.delete(map, key))
    }

    /// Calls `visit` with the nodes whose paths are in a range of bytes, in order, until it returns `false`. Without `high` the
    /// range has no end. They are those of an earlier revision; `None`: those that these changes have led to.
    ///
    /// # Errors
    /// [`TreeError::Compacted`], [`TreeError::FutureRevision`], and those of reading and of `visit`.
    pub fn range(
        &self,
        at: Option<u64>,
        low: impl AsRef<[u8]>,
        high: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], Node) -> Result<bool>,
    ) -> Result<()> {
        self.reading_at(at)?
            .each((low.as_ref(), high), |path, head| visit(path, head.with_payload()))
    }

    /// Number of the nodes that [`TreeWrites::range`] visits.
    ///
    /// # Errors
    /// As [`TreeWrites::range`].
    pub fn count_range(&self, at: Option<u64>, low: impl AsRef<[u8]>, high: Option<&[u8]>) -> Result<u64> {
        self.reading_at(at)?.count((low.as_ref(), high))
    }

    fn reading_at(&self, at: Option<u64>) -> Result<Reading<'_, Transaction>> {
        let Some(revision) = at else {
            return Ok(self.reading());
        };
        let first = self.first_revision()?;
        State { first, ..self.state }.check_revision(&self.tree.name, revision)?;
        let is_past = revision < self.state.revision;
        Ok(self.tree.reading_at(self.tx, is_past.then_some(revision)))
    }

    /// The first revision that can be read.
    ///
    /// # Errors
    /// Those of reading.
    pub fn first_revision(&self) -> Result<u64> {
        self.reading().first_revision(self.state)
    }

    /// Whether a condition holds for a path.
    ///
    /// # Errors
    /// [`TreeError::InvalidCondition`], and those of reading.
    pub fn holds(&self, path: impl AsRef<[u8]>, condition: &Condition) -> Result<bool> {
        condition.holds(&self.reading(), path.as_ref())
    }

    /// Stores a payload in all nodes whose paths have a pattern; they keep their leases. Returns how many.
    ///
    /// # Errors
    /// As [`TreeWrites::put`]; some of the nodes have the payload then.
    pub fn put_many(&mut self, pattern: &Pattern, payload: impl AsRef<[u8]>) -> Result<u64> {
        let paths = self.matching(pattern)?;
        let mut count = 0;
        for path in &paths {
            // A kept node may have ended with a node before it.
            count += u64::from(self.put_existing(path, payload.as_ref())?.is_some());
        }
        Ok(count)
    }

    /// Deletes the nodes whose paths have a pattern. Returns how many.
    ///
    /// # Errors
    /// As [`TreeWrites::delete`].
    pub fn delete_many(&mut self, pattern: &Pattern) -> Result<u64> {
        let paths = self.matching(pattern)?;
        self.delete_all(&paths)
    }

    /// Deletes the nodes of paths. Returns how many of them were there: kept nodes may have ended with one before them.
    fn delete_all(&mut self, paths: &[Vec<u8>]) -> Result<u64> {
        let mut count = 0;
        for path in paths {
            count += u64::from(self.delete(path)?.is_some());
        }
        Ok(count)
    }

    fn matching(&self, pattern: &Pattern) -> Result<Vec<Vec<u8>>> {
        let mut paths = Vec::new();
        let prefix = pattern.prefix();
        let high = after_prefix(&prefix);
        self.reading().each((&prefix, high.as_deref()), |path, _| {
            if pattern.matches(path) {
                paths.push(path.to_vec());
            }
            Ok(true)
        })?;
        Ok(paths)
    }

    /// Deletes the nodes of a range of bytes. Returns how many.
    ///
    /// # Errors
    /// Those of [`Transaction::delete`].
    pub fn delete_range(&mut self, low: impl AsRef<[u8]>, high: Option<&[u8]>) -> Result<u64> {
        let mut paths = Vec::new();
        self.reading().each((low.as_ref(), high), |path, _| {
            paths.push(path.to_vec());
            Ok(true)
        })?;
        self.delete_all(&paths)
    }

    fn current(&self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.reading().current(path)?.map(|row| row.to_vec()))
    }

    /// Takes the next revision, once.
    pub(crate) fn begin_revision(&mut self) -> Result<()> {
        if self.has_begun {
            return Ok(());
        }
        self.has_begun = true;
        self.state.revision += 1;
        self.put_state()?;
        self.tx.ring(&self.tree.sequence);
        Ok(())
    }

    /// The revision of the next change.
    fn next_revision(&self) -> u64 {
        self.state.revision + u64::from(!self.has_begun)
    }

    pub(crate) fn put_state(&mut self) -> Result<()> {
        if self.defers_state {
            return Ok(());
        }
        let key = state_key(self.tree.id);
        self.tx.put(&self.tree.tables.trees, key, self.state.encode())
    }

    /// Notes a change of a path with the row of its node before.
    fn note(&mut self, kind: ChangeKind, path: &[u8], old: Option<&[u8]>) -> Result<()> {
        let revision = self.state.revision;
        let version = version_key(self.tree.id, path, revision);
        let old = old.filter(|_| !self.forgets);
        if self.next_sub > 0 {
            // What these writes have done to the path before stays one change.
            let before = self.tx.get_ref(&self.tree.tables.versions, &version)?;
            if let Some(sub) = before.map(|row| row.to_vec()) {
                let row = self.reading().change(revision, &sub)?.to_vec();
                let row = ChangeRow {
                    kind,
                    ..ChangeRow::decode(&row)?
                }
                .encode();
                let sub = u32::from_be_bytes(sub.try_into().map_err(|_| damaged())?);
                let key = change_key(self.tree.id, revision, sub);
                return self.tx.put(&self.tree.tables.changes, key, row);
            }
            let is_own = match old {
                Some(old) => Head::decode(old)?.revision == revision,
                None => false,
            };
            if is_own {
                // These writes have created the node. Its creation stays, or both vanish.
                return match kind {
                    ChangeKind::Put => Ok(()),
                    ChangeKind::Delete => self.forget_creation(path),
                };
            }
        }
        let sub = self.take_sub()?;
        let row = ChangeRow { kind, path, old }.encode();
        let tables = &self.tree.tables;
        self.tx
            .put(&tables.changes, change_key(self.tree.id, revision, sub), row)?;
        match (old, kind) {
            (Some(_), _) => self.tx.put(&tables.versions, version, sub.to_be_bytes())?,
            (None, ChangeKind::Put) => drop(self.created.insert(path.to_vec(), sub)),
            // A purge keeps nothing of the node.
            (None, ChangeKind::Delete) => {}
        }
        Ok(())
    }

    fn take_sub(&mut self) -> Result<u32> {
        let sub = self.next_sub;
        let next = sub.checked_add(1).ok_or_else(|| {
            let cause = "a revision has at most 4,294,967,295 changes; divide them over several";
            Error::from(Reason::InvalidArgument(cause.into()))
        })?;
        self.next_sub = next;
        Ok(sub)
    }

    /// Removes the change that created a node in this revision.
    fn forget_creation(&mut self, path: &[u8]) -> Result<()> {
        let (id, revision) = (self.tree.id, self.state.revision);
        match self.created.remove(path) {
            Some(sub) => self.tx.delete(&self.tree.tables.changes, change_key(id, revision, sub)),
            None => Ok(()),
        }
    }

    /// Notes that all nodes of a range are deleted. Returns how many there are.
    fn note_deleted(&mut self, range: (&[u8], &[u8])) -> Result<u64> {
        let mut gone = Vec::new();
        let mut leased = Vec::new();
        let (low, high) = (node_key(self.tree.id, range.0), node_key(self.tree.id, range.1));
        let mut rows = self.tx.range(&self.tree.tables.nodes, &low[..]..&high[..])?;
        while let Some((key, row)) = rows.next()? {
            let (path, head) = (key[4..].to_vec(), Head::decode(&row)?);
            if head.lease != 0 {
                leased.push((path.clone(), head.lease));
            }
            gone.push((path, row.to_vec()));
        }
        drop(rows);
        if gone.is_empty() {
            return Ok(0);
        }
        if !self.rules.is_empty() {
            for (path, _) in &gone {
                self.check_deletion(path)?;
            }
        }
        let is_first = !self.has_begun;
        self.begin_revision()?;
        for (path, lease) in leased {
            self.attach(&path, lease, 0)?;
        }
        let count = gone.len() as u64;
        if !self.rules.is_empty() || self.state.kept > 0 {
            for (path, old) in &gone {
                let effect = Effect {
                    path,
                    old_bytes: Some(Head::decode(old)?.payload.len()),
                    payload: None,
                };
                self.count_quotas(&effect)?;
                self.follow(&effect)?;
                self.forget_kept(path)?;
                self.suspect_keepers_of(path)?;
            }
        }
        if !is_first {
            for (path, old) in &gone {
                self.note(ChangeKind::Delete, path, Some(old))?;
            }
            return Ok(count);
        }
        // Without changes before these, both lists are in order.
        let (id, revision, first, forgets) = (self.tree.id, self.state.revision, self.next_sub, self.forgets);
        for _ in 0..gone.len() {
            self.take_sub()?;
        }
        let tables = self.tree.tables.clone();
        let changes = gone.iter().zip(first..).map(|((path, old), sub)| {
            let row = ChangeRow {
                kind: ChangeKind::Delete,
                path,
                old: Some(&old[..]).filter(|_| !forgets),
            };
            (change_key(id, revision, sub), row.encode())
        });
        self.tx.put_sorted(&tables.changes, changes)?;
        if forgets {
            return Ok(count);
        }
        let versions = gone
            .iter()
            .zip(first..)
            .map(|((path, _), sub)| (version_key(id, path, revision), sub.to_be_bytes()));
        self.tx.put_sorted(&tables.versions, versions)?;
        Ok(count)
    }

    /// Notes whether a path without a node is implied by nodes below it.
    fn imply(&mut self, path: &[u8], is_implied: bool) -> Result<()> {
        let (parent, name) = split(path);
        let key = implied_key(self.tree.id, parent, name);
        match is_implied {
            true => self.tx.put(&self.tree.tables.implied, key, b""),
            false => self.tx.delete(&self.tree.tables.implied, key),
        }
    }

    /// Counts a path that is new among the children of its parent, and the parent among those of its own, as far as they are new.
    fn link(&mut self, path: &[u8]) -> Result<()> {
        let mut path = path;
        loop {
            let (parent, _) = split(path);
            let children = self.reading().children(parent)?;
            let more = Children {
                count: children.count.saturating_add(1),
                version: children.version.saturating_add(1),
            };
            let key = parent_key(self.tree.id, parent);
            self.tx.put(&self.tree.tables.parents, key, more.encode())?;
            let Some(parent) = parent else { return Ok(()) };
            self.suspect_keepers_of(parent)?;
            if children.count > 0 || self.reading().exists(parent)? {
                return Ok(());
            }
            self.imply(parent, true)?;
            path = parent;
        }
    }

    /// Counts a path no more among the children of its parent, and the parent among those of its own, as far as nothing is left of
    /// them. `version` is that of its own list of children, which ends with it; 0: it has none.
    fn unlink(&mut self, path: &[u8], version: u64) -> Result<()> {
        let id = self.tree.id;
        if version > 0 {
            self.tx.delete(&self.tree.tables.parents, parent_key(id, Some(path)))?;
        }
        let mut path = path;
        loop {
            let (parent, _) = split(path);
            let children = self.reading().children(parent)?;
            let fewer = Children {
                count: children.count.saturating_sub(1),
                version: children.version.saturating_add(1),
            };
            if let Some(parent) = parent {
                self.suspect_keepers_of(parent)?;
            }
            let key = parent_key(id, parent);
            match parent {
                Some(parent) if fewer.count == 0 && !self.reading().exists(parent)? => {
                    self.tx.delete(&self.tree.tables.parents, key)?;
                    self.imply(parent, false)?;
                    path = parent;
                }
                _ => return self.tx.put(&self.tree.tables.parents, key, fewer.encode()),
            }
        }
    }

    /// Moves a path from one lease to another.
    fn attach(&mut self, path: &[u8], from: u64, to: u64) -> Result<()> {
        let (id, leases) = (self.tree.id, &self.tree.tables.leases);
        if from != 0 {
            self.tx.delete(leases, attached_key(id, from, path))?;
        }
        if to != 0 {
            self.tx.put(leases, attached_key(id, to, path), b"")?;
        }
        Ok(())
    }
}

fn check_payload(path: &[u8], payload: &[u8]) -> Result<()> {
    if payload.len() <= PAYLOAD_BYTES_MAX {
        return Ok(());
    }
    Err(TreeError::PayloadTooLarge {
        path: shown(path),
        bytes: payload.len(),
        max: PAYLOAD_BYTES_MAX,
    }
    .into())
}

fn missing(path: &[u8]) -> Error {
    TreeError::Missing { path: shown(path) }.into()
}

fn damaged() -> Error {
    Error::damaged("a version of a node has a wrong value; run `duramen check`")
}
