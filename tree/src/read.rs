//! Reading a tree, at its newest revision or at an earlier one, in a snapshot or in a transaction.
//!
//! The node of a path at an earlier revision R is the current one, if that is not newer than R. Otherwise it is what the first
//! change after R found, which the row of that change has. So an earlier revision costs one search more, and nothing while no
//! earlier revision is read.

use std::collections::BTreeSet;

use duramen_engine::{Cursor, KeyBounds, Map, Result, Snapshot, Transaction, Value};

use crate::error::TreeError;
use crate::node::{ChangeRow, Children, Head, Node};
use crate::path::{SEPARATOR, below, joined};
use crate::state::{FIRST_REVISION, State};
use crate::tables::{
    Tables, change_key, change_of, implied_key, mark_key, node_key, parent_key, removed_key, state_key, version_key,
    version_of, versions_prefix,
};

/// What rows are read from.
pub(crate) trait Rows {
    fn row(&self, map: &Map, key: &[u8]) -> Result<Option<Value<'_>>>;
    fn rows(&self, map: &Map, range: impl KeyBounds) -> Result<Cursor<'_>>;
    fn count(&self, map: &Map, range: impl KeyBounds) -> Result<u64>;
}

impl Rows for Snapshot {
    fn row(&self, map: &Map, key: &[u8]) -> Result<Option<Value<'_>>> {
        self.get(map, key)
    }

    fn rows(&self, map: &Map, range: impl KeyBounds) -> Result<Cursor<'_>> {
        self.range(map, range)
    }

    fn count(&self, map: &Map, range: impl KeyBounds) -> Result<u64> {
        Snapshot::count(self, map, range)
    }
}

impl Rows for Transaction {
    fn row(&self, map: &Map, key: &[u8]) -> Result<Option<Value<'_>>> {
        self.get_ref(map, key)
    }

    fn rows(&self, map: &Map, range: impl KeyBounds) -> Result<Cursor<'_>> {
        self.range(map, range)
    }

    fn count(&self, map: &Map, range: impl KeyBounds) -> Result<u64> {
        Transaction::count(self, map, range)
    }
}

/// A tree in a snapshot or a transaction.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'r, R> {
    pub(crate) rows: &'r R,
    pub(crate) tables: &'r Tables,
    pub(crate) id: u32,
    /// `None`: the newest revision.
    pub(crate) revision: Option<u64>,
}

/// Names of children at an earlier revision that are looked for at once.
const PAST_NAMES: usize = 64;

/// A range of paths: from the first up to and without the second; `None`: to the end.
pub(crate) type PathRange<'a> = (&'a [u8], Option<&'a [u8]>);

impl<R: Rows> Reading<'_, R> {
    /// How far the tree has come.
    pub(crate) fn state(&self, name: &str) -> Result<State> {
        let row = self.rows.row(&self.tables.trees, &state_key(self.id))?;
        let row = row.ok_or_else(|| TreeError::UnknownTree { name: name.into() })?;
        State::decode(&row)
    }

    /// The first revision that can be read. Where the store was full, changes were removed and the state could not say so.
    pub(crate) fn first_revision(&self, state: State) -> Result<u64> {
        if self.rows.row(&self.tables.trees, &mark_key(self.id))?.is_some() {
            return Ok(state.first);
        }
        let (revision, sub) = self.removed()?;
        let (low, high) = (
            change_key(self.id, revision, sub),
            change_key(self.id, state.revision + 1, 0),
        );
        let mut changes = self.rows.rows(&self.tables.changes, &low[..]..&high[..])?;
        let kept = match changes.next()? {
            Some((key, _)) => match change_of(key)? {
                (revision, 0) => revision,
                // The beginning of the revision may be gone.
                (revision, _) => revision + 1,
            },
            None => state.revision,
        };
        Ok(kept.min(state.revision).max(state.first))
    }

    /// Revision and sub of the first change that may still have a row. Those before the first revision are being removed. It has a row
    /// of its own: so removing them does not conflict with other changes of the tree.
    pub(crate) fn removed(&self) -> Result<(u64, u32)> {
        match self.rows.row(&self.tables.trees, &removed_key(self.id))? {
            Some(row) => change_of(&[&[0; 4], &row[..]].concat()),
            None => Ok((FIRST_REVISION, 0)),
        }
    }

    /// The current node of a path.
    pub(crate) fn current(&self, path: &[u8]) -> Result<Option<Value<'_>>> {
        self.rows.row(&self.tables.nodes, &node_key(self.id, path))
    }

    pub(crate) fn node(&self, path: &[u8]) -> Result<Option<Node>> {
        let current = self.current(path)?;
        let current = current.as_ref().map(|row| Head::decode(row)).transpose()?;
        match (self.revision, current) {
            (Some(revision), None) => self.before_change_after(path, revision),
            (Some(revision), Some(head)) if head.revision > revision => self.before_change_after(path, revision),
            (_, current) => Ok(current.map(Head::with_payload)),
        }
    }

    /// Whether a path has a node.
    pub(crate) fn exists(&self, path: &[u8]) -> Result<bool> {
        match self.revision {
            None => Ok(self.current(path)?.is_some()),
            Some(_) => Ok(self.node(path)?.is_some()),
        }
    }

    /// The node at a revision that is older than the current node, or than the deletion of the last one.
    pub(crate) fn before_change_after(&self, path: &[u8], revision: u64) -> Result<Option<Node>> {
        let low = version_key(self.id, path, revision + 1);
        let mut versions = self.rows.rows(&self.tables.versions, &low[..]..)?;
        match versions.next()? {
            Some((key, sub)) if key.starts_with(&versions_prefix(self.id, path)) => {
                let (_, changed) = version_of(key)?;
                self.found_by_change(changed, &sub, revision)
            }
            _ => Ok(None),
        }
    }

    /// The node that a change found, if it is not newer than a revision.
    fn found_by_change(&self, changed: u64, sub: &[u8], revision: u64) -> Result<Option<Node>> {
        let row = self.change(changed, sub)?;
        let old = ChangeRow::decode(&row)?.old.map(Node::decode).transpose()?;
        Ok(old.filter(|old| old.revision <= revision))
    }

    /// The row of a change, whose sub is in the row of a version.
    pub(crate) fn change(&self, revision: u64, sub: &[u8]) -> Result<Value<'_>> {
        let damaged = || duramen_engine::Error::damaged("a version of a node has no change; run `duramen check`");
        let sub = u32::from_be_bytes(sub.try_into().map_err(|_| damaged())?);
        let row = self
            .rows
            .row(&self.tables.changes, &change_key(self.id, revision, sub))?;
        row.ok_or_else(damaged)
    }

    /// Calls `visit` with the nodes of a range in the order of their paths, until it returns `false`.
    pub(crate) fn each(
        &self,
        range: PathRange<'_>,
        mut visit: impl FnMut(&[u8], Head<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.each_path(range, |path, head| head.map_or(Ok(true), |head| visit(path, head)))
    }

    /// As [`Reading::each`], and `visit` also learns of paths that have nodes at other revisions only.
    pub(crate) fn each_path(
        &self,
        range: PathRange<'_>,
        mut visit: impl FnMut(&[u8], Option<Head<'_>>) -> Result<bool>,
    ) -> Result<()> {
        let low = node_key(self.id, range.0);
        let high = range.1.map_or_else(|| end_of(self.id), |high| node_key(self.id, high));
        let mut nodes = self.rows.rows(&self.tables.nodes, &low[..]..&high[..])?;
        let Some(revision) = self.revision else {
            while let Some((key, row)) = nodes.next()? {
                if !visit(&key[4..], Some(Head::decode(&row)?))? {
                    break;
                }
            }
            return Ok(());
        };
        let mut versions = Versions::new(self, range, revision)?;
        let mut node = nodes.next()?.map(|(key, row)| (key[4..].to_vec(), row));
        let mut version = versions.next()?;
        loop {
            let goes_on = match (&node, &version) {
                (None, None) => return Ok(()),
                (node, Some((path, changed, sub))) if node.as_ref().is_none_or(|(current, _)| path <= current) => {
                    // The change came after the revision, so the current node is of no interest.
                    let found = self.found_by_change(*changed, sub, revision)?;
                    let is_both = node.as_ref().is_some_and(|(current, _)| path == current);
                    let goes_on = visit(path, found.as_ref().map(Head::of))?;
                    version = versions.next()?;
                    if !is_both {
                        if goes_on {
                            continue;
                        }
                        return Ok(());
                    }
                    goes_on
                }
                (Some((path, row)), _) => {
                    let head = Head::decode(row)?;
                    visit(path, Some(head).filter(|head| head.revision <= revision))?
                }
                (None, Some(_)) => unreachable!("a version without a node was looked at"),
            };
            if !goes_on {
                return Ok(());
            }
            node = nodes.next()?.map(|(key, row)| (key[4..].to_vec(), row));
        }
    }

    /// Number of nodes in a range. At the newest revision the store counts rows without reading them.
    pub(crate) fn count(&self, range: PathRange<'_>) -> Result<u64> {
        if self.revision.is_none() {
            let low = node_key(self.id, range.0);
            let high = range.1.map_or_else(|| end_of(self.id), |high| node_key(self.id, high));
            return self.rows.count(&self.tables.nodes, &low[..]..&high[..]);
        }
        let mut count = 0;
        self.each(range, |_, _| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    /// What a path has below it; `None`: the top of the tree.
    pub(crate) fn children(&self, path: Option<&[u8]>) -> Result<Children> {
        if self.revision.is_some() {
            let count = self.past_child_names(path, None, usize::MAX)?.len() as u64;
            return Ok(Children { count, version: 0 });
        }
        let row = self.rows.row(&self.tables.parents, &parent_key(self.id, path))?;
        row.map_or(Ok(Children::default()), |row| Children::decode(&row))
    }

    /// Calls `visit` with the children in order and their nodes, from the one after `after` on, until it returns `false`. Looks for
    /// `limit` children at most.
    pub(crate) fn each_child(
        &self,
        path: Option<&[u8]>,
        after: Option<&[u8]>,
        limit: usize,
        mut visit: impl FnMut(Vec<u8>, Option<Node>) -> bool,
    ) -> Result<()> {
        if self.revision.is_some() {
            return self.each_past_child(path, after, limit, visit);
        }
        let mut nodes = ChildNodes::new(self, path, after)?;
        let mut implied = ImpliedChildren::new(self, path, after)?;
        let (mut step, mut without) = (nodes.next()?, implied.next()?);
        let mut left = limit;
        // Both are in the order of names.
        while left > 0 {
            let goes_on;
            if let Some(name) = without.take_if(|name| step.as_ref().is_none_or(|step| *name <= *step.name())) {
                goes_on = visit(name, None);
                without = implied.next()?;
            } else {
                match step {
                    Some(ChildStep::Node(name, node)) => goes_on = visit(name, Some(node)),
                    Some(ChildStep::Below(name)) => {
                        nodes.pass(path, &name)?;
                        step = nodes.next()?;
                        continue;
                    }
                    None => break,
                }
                step = nodes.next()?;
            }
            if !goes_on {
                break;
            }
            left -= 1;
        }
        Ok(())
    }

    /// As [`Reading::each_child`], at an earlier revision.
    fn each_past_child(
        &self,
        path: Option<&[u8]>,
        after: Option<&[u8]>,
        limit: usize,
        mut visit: impl FnMut(Vec<u8>, Option<Node>) -> bool,
    ) -> Result<()> {
        let (mut left, mut after) = (limit, after.map(<[u8]>::to_vec));
        while left > 0 {
            // Not all at once: `visit` may want a few of them only.
            let most = left.min(PAST_NAMES);
            let names = self.past_child_names(path, after.as_deref(), most)?;
            let is_last = names.len() < most;
            left -= names.len();
            after = names.last().cloned();
            for name in names {
                let node = self.node(&joined(path, &name))?;
                if !visit(name, node) {
                    return Ok(());
                }
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Names of children at an earlier revision. They are not stored, so this walks over the nodes below the path, and passes over
    /// what is below a child with one search.
    fn past_child_names(&self, path: Option<&[u8]>, after: Option<&[u8]>, limit: usize) -> Result<Vec<Vec<u8>>> {
        let (mut low, high) = below_parent(path);
        let prefix = low.len();
        if let Some(after) = after {
            low.extend_from_slice(after);
            low.push(0);
        }
        let is_wanted = |name: &[u8]| after.is_none_or(|after| name > after);
        let mut names = BTreeSet::new();
        loop {
            let mut passed = None;
            self.each((&low, high.as_deref()), |found, _| {
                let rest = &found[prefix..];
                let end = rest.iter().position(|byte| *byte == SEPARATOR);
                let name = &rest[..end.unwrap_or(rest.len())];
                if is_wanted(name) {
                    names.insert(name.to_vec());
                }
                if names.len() >= limit
                    && names
                        .iter()
                        .nth(limit.saturating_sub(1))
                        .is_none_or(|last| &last[..] <= name)
                {
                    // A name that only has nodes below it comes late: `a/x` comes after `a-b`. Each that is missing begins this one.
                    for end in (0..name.len()).filter(|&end| name[end] < SEPARATOR && is_wanted(&name[..end])) {
                        if self.has_below(&found[..prefix + end])? {
                            names.insert(name[..end].to_vec());
                        }
                    }
                    return Ok(false);
                }
                passed = end.map(|end| found[..prefix + end].to_vec());
                Ok(passed.is_none())
            })?;
            match passed {
                Some(child) => low = below(&child).1,
                None => break,
            }
        }
        Ok(names.into_iter().take(limit).collect())
    }

    /// Whether there are nodes below a path.
    fn has_below(&self, path: &[u8]) -> Result<bool> {
        let (low, high) = below(path);
        let mut has_some = false;
        self.each((&low, Some(&high)), |_, _| {
            has_some = true;
            Ok(false)
        })?;
        Ok(has_some)
    }
}

/// The paths below a parent; `None`: all paths.
fn below_parent(path: Option<&[u8]>) -> (Vec<u8>, Option<Vec<u8>>) {
    let (low, high) = path.map(below).unzip();
    (low.unwrap_or_default(), high)
}

/// The children of a path that have nodes, in order.
struct ChildNodes<'r> {
    rows: Cursor<'r>,
    id: u32,
    /// Bytes of the parent and the separator.
    prefix: usize,
}

/// What a walk over the nodes below a parent comes to.
enum ChildStep {
    Node(Vec<u8>, Node),
    /// Something below the child of this name. Each child that comes afterwards has a greater name.
    Below(Vec<u8>),
}

impl ChildStep {
    fn name(&self) -> &Vec<u8> {
        match self {
            ChildStep::Node(name, _) | ChildStep::Below(name) => name,
        }
    }
}

impl<'r> ChildNodes<'r> {
    fn new<R: Rows>(reading: &Reading<'r, R>, parent: Option<&[u8]>, after: Option<&[u8]>) -> Result<ChildNodes<'r>> {
        let (mut low, high) = below_parent(parent);
        let prefix = low.len();
        if let Some(after) = after {
            low.extend_from_slice(after);
            low.push(0);
        }
        let low = node_key(reading.id, &low);
        let high = high.map_or_else(|| end_of(reading.id), |high| node_key(reading.id, &high));
        Ok(ChildNodes {
            rows: reading.rows.rows(&reading.tables.nodes, &low[..]..&high[..])?,
            id: reading.id,
            prefix,
        })
    }

    fn next(&mut self) -> Result<Option<ChildStep>> {
        let Some((key, row)) = self.rows.next()? else {
            return Ok(None);
        };
        let name = &key[4 + self.prefix..];
        Ok(Some(match name.iter().position(|byte| *byte == SEPARATOR) {
            Some(end) => ChildStep::Below(name[..end].to_vec()),
            None => ChildStep::Node(name.to_vec(), Node::decode(&row)?),
        }))
    }

    /// Passes over everything below a child, with one search.
    fn pass(&mut self, parent: Option<&[u8]>, name: &[u8]) -> Result<()> {
        let (_, behind) = below(&joined(parent, name));
        self.rows.seek(node_key(self.id, &behind))
    }
}

/// The children of a path that have no nodes, in order.
struct ImpliedChildren<'r> {
    rows: Cursor<'r>,
    prefix: Vec<u8>,
}

impl<'r> ImpliedChildren<'r> {
    fn new<R: Rows>(
        reading: &Reading<'r, R>,
        parent: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Result<ImpliedChildren<'r>> {
        let prefix = parent_key(reading.id, parent);
        let mut low = prefix.clone();
        if let Some(after) = after {
            low = implied_key(reading.id, parent, after);
            low.push(0);
        }
        Ok(ImpliedChildren {
            rows: reading.rows.rows(&reading.tables.implied, &low[..]..)?,
            prefix,
        })
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let next = self.rows.next()?;
        let name = next.and_then(|(key, _)| key.strip_prefix(&self.prefix[..]));
        Ok(name.map(<[u8]>::to_vec))
    }
}

/// Where the rows of a tree end.
pub(crate) fn end_of(id: u32) -> Vec<u8> {
    (id + 1).to_be_bytes().to_vec()
}

/// The first change of each path after a revision.
struct Versions<'r> {
    rows: Cursor<'r>,
    revision: u64,
    passed: Option<Vec<u8>>,
}

impl<'r> Versions<'r> {
    fn new<R: Rows>(reading: &Reading<'r, R>, range: PathRange<'_>, revision: u64) -> Result<Versions<'r>> {
        let low = versions_prefix(reading.id, range.0);
        let high = range
            .1
            .map_or_else(|| end_of(reading.id), |high| versions_prefix(reading.id, high));
        Ok(Versions {
            rows: reading.rows.rows(&reading.tables.versions, &low[..]..&high[..])?,
            revision,
            passed: None,
        })
    }

    /// Path, revision and sub.
    fn next(&mut self) -> Result<Option<(Vec<u8>, u64, Value<'r>)>> {
        while let Some((key, sub)) = self.rows.next()? {
            let (path, changed) = version_of(key)?;
            if changed > self.revision && self.passed.as_ref() != Some(&path) {
                self.passed = Some(path.clone());
                return Ok(Some((path, changed, sub)));
            }
        }
        Ok(None)
    }
}
