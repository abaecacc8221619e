//! A tree at one moment.

use std::sync::Arc;

use duramen_engine::{Result, Snapshot};

use crate::condition::Condition;
use crate::lease::{self, Lease, LeaseClock};
use crate::limits::{BATCH_BYTES, EXAMINED_MAX};
use crate::node::{Children, Head, Node};
use crate::path::{after_prefix, below, joined};
use crate::pattern::Pattern;
use crate::read::Reading;
use crate::selection::{self, Selection};
use crate::shared::Shared;
use crate::state::State;

/// A tree at one revision, in a snapshot of the store. What is written meanwhile changes nothing in it.
///
/// It keeps the space of what it sees, as every [`Snapshot`] does.
#[derive(Debug)]
pub struct TreeView {
    tree: Arc<Shared>,
    snapshot: Arc<Snapshot>,
    state: State,
    /// `None`: the newest revision of the snapshot.
    at: Option<u64>,
}

/// A part of what a read finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// What it has.
    pub content: T,
    /// The path or name after which the next page begins; `None`: this is the last one.
    pub next: Option<Vec<u8>>,
}

/// Nodes with their paths, in the order of the paths.
pub type Nodes = Vec<(Vec<u8>, Node)>;

/// A child of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its name.
    pub name: Vec<u8>,
    /// Its path.
    pub path: Vec<u8>,
    /// Its node; `None`: it is implied by what is below it.
    pub node: Option<Node>,
}

impl TreeView {
    pub(crate) fn new(tree: &Arc<Shared>) -> Result<TreeView> {
        let snapshot = Arc::new(tree.store.snapshot()?);
        let state = tree.reading(&*snapshot).state(&tree.name)?;
        Ok(TreeView {
            tree: tree.clone(),
            snapshot,
            state,
            at: None,
        })
    }

    /// The tree at an earlier revision, in the snapshot of this view.
    ///
    /// # Errors
    /// [`TreeError::Compacted`], [`TreeError::FutureRevision`].
    pub fn at_revision(&self, revision: u64) -> Result<TreeView> {
        let first = self.first_revision()?;
        State { first, ..self.state }.check_revision(&self.tree.name, revision)?;
        Ok(TreeView {
            tree: self.tree.clone(),
            snapshot: self.snapshot.clone(),
            state: self.state,
            at: (revision < self.state.revision).then_some(revision),
        })
    }

    /// The snapshot, and the tree.
    pub(crate) fn place(&self) -> (&Snapshot, &Shared) {
        (&self.snapshot, &self.tree)
    }

    fn reading(&self) -> Reading<'_, Snapshot> {
        self.tree.reading_at(&*self.snapshot, self.at)
    }

    /// The revision of the view.
    pub fn revision(&self) -> u64 {
        self.at.unwrap_or(self.state.revision)
    }

    /// The first revision that can be read.
    ///
    /// # Errors
    /// Those of reading.
    pub fn first_revision(&self) -> Result<u64> {
        self.tree.reading(&*self.snapshot).first_revision(self.state)
    }

    /// Whether rows of compacted revisions are left.
    pub(crate) fn has_compacted_rows(&self) -> Result<bool> {
        let (removed, _) = self.tree.reading(&*self.snapshot).removed()?;
        Ok(removed < self.state.first)
    }

    /// The node of a path.
    ///
    /// # Errors
    /// Those of reading.
    pub fn get(&self, path: impl AsRef<[u8]>) -> Result<Option<Node>> {
        self.reading().node(path.as_ref())
    }

    /// Whether a path has a node.
    ///
    /// # Errors
    /// Those of reading.
    pub fn exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        self.reading().exists(path.as_ref())
    }

    /// Whether a condition holds for a path. At earlier revisions lists of children have version 0.
    ///
    /// # Errors
    /// [`TreeError::InvalidCondition`], and those of reading.
    pub fn holds(&self, path: impl AsRef<[u8]>, condition: &Condition) -> Result<bool> {
        condition.holds(&self.reading(), path.as_ref())
    }

    /// What a path has below it. At the newest revision this takes one read, whatever there is; at an earlier one it reads all
    /// nodes below, and the version of the list is 0.
    ///
    /// # Errors
    /// Those of reading.
    pub fn child_count(&self, path: impl AsRef<[u8]>) -> Result<Children> {
        self.reading().children(Some(path.as_ref()))
    }

    /// What is at the top of the tree, as [`TreeView::child_count`].
    ///
    /// # Errors
    /// Those of reading.
    pub fn top_count(&self) -> Result<Children> {
        self.reading().children(None)
    }

    /// Children of a path in the order of their names, from the one after `after` on, at most `limit`.
    ///
    /// # Errors
    /// Those of reading.
    pub fn children(&self, path: impl AsRef<[u8]>, after: Option<&[u8]>, limit: usize) -> Result<Vec<Child>> {
        self.children_of(Some(path.as_ref()), after, limit)
    }

    /// Names at the top of the tree, as [`TreeView::children`]. A path that begins with `/` has the empty name there.
    ///
    /// # Errors
    /// Those of reading.
    pub fn top(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<Child>> {
        self.children_of(None, after, limit)
    }

    fn children_of(&self, parent: Option<&[u8]>, after: Option<&[u8]>, limit: usize) -> Result<Vec<Child>> {
        let mut children = Vec::new();
        self.reading().each_child(parent, after, limit, |name, node| {
            let path = joined(parent, &name);
            children.push(Child { path, name, node });
            true
        })?;
        Ok(children)
    }

    /// A page of the children of a path, or with `None` of the names at the top: those after the name `after`, or from the first on.
    /// A page ends after `children` of them, and after a mebibyte of paths and payloads. [`Page::next`] is the name of its last one.
    ///
    /// # Errors
    /// Those of reading.
    pub fn children_page(
        &self,
        path: Option<&[u8]>,
        after: Option<&[u8]>,
        children: usize,
    ) -> Result<Page<Vec<Child>>> {
        let (mut content, mut bytes, mut is_full) = (Vec::new(), 0, false);
        self.reading().each_child(path, after, children, |name, node| {
            let path = joined(path, &name);
            bytes += path.len() + node.as_ref().map_or(0, |node| node.payload.len());
            content.push(Child { path, name, node });
            is_full = bytes >= BATCH_BYTES;
            !is_full
        })?;
        let is_part = is_full || content.len() == children;
        let next = content
            .last()
            .filter(|_| is_part)
            .map(|child: &Child| child.name.clone());
        Ok(Page { content, next })
    }

    /// Calls `visit` with the nodes whose paths are in a range of bytes, in order, until it returns `false`. Without `high` the
    /// range has no end.
    ///
    /// # Errors
    /// Those of reading and of `visit`.
    pub fn range(
        &self,
        low: impl AsRef<[u8]>,
        high: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], Node) -> Result<bool>,
    ) -> Result<()> {
        self.reading()
            .each((low.as_ref(), high), |path, head| visit(path, head.with_payload()))
    }

    /// A page of the nodes of a selection, in the order of their paths: those after the path `after`, or from the first on. A page
    /// ends after `nodes` nodes, after a mebibyte of paths and payloads, and when it has looked at 10,000 nodes: it may be empty
    /// although there are more.
    ///
    /// # Errors
    /// Those of reading.
    pub fn page(&self, selection: &Selection, after: Option<&[u8]>, nodes: usize) -> Result<Page<Nodes>> {
        let (mut content, mut bytes) = (Vec::new(), 0);
        let next = self.walk(selection, after, |path, head| {
            bytes += path.len() + head.payload.len();
            content.push((path.to_vec(), head.with_payload()));
            content.len() < nodes && bytes < BATCH_BYTES
        })?;
        Ok(Page { content, next })
    }

    /// Number of the nodes of a selection after the path `after`, or from the first on: of 10,000 nodes at most, so that a program
    /// does not have to wait for the count of a large tree.
    ///
    /// # Errors
    /// Those of reading.
    pub fn count_page(&self, selection: &Selection, after: Option<&[u8]>) -> Result<Page<u64>> {
        let mut content = 0;
        let next = self.walk(selection, after, |_, _| {
            content += 1;
            true
        })?;
        Ok(Page { content, next })
    }

    /// Calls `visit` with the nodes of a selection, until it returns `false` or some nodes were examined. Returns the last path
    /// that was examined, unless that were all.
    fn walk(
        &self,
        selection: &Selection,
        after: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], Head<'_>) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        let first = after.map_or_else(Vec::new, selection::after);
        let (mut examined, mut end) = (0, None);
        for (low, high) in selection.bounds() {
            let low = low.max(first.clone());
            if end.is_some() || high.as_ref().is_some_and(|high| *high <= low) {
                continue;
            }
            self.reading().each_path((&low, high.as_deref()), |path, head| {
                examined += 1;
                let goes_on = head.is_none_or(|head| !selection.matches(path) || visit(path, head));
                if !goes_on || examined == EXAMINED_MAX {
                    end = Some(path.to_vec());
                }
                Ok(end.is_none())
            })?;
        }
        Ok(end)
    }

    /// Number of nodes whose paths are in a range of bytes.
    ///
    /// # Errors
    /// Those of reading.
    pub fn count_range(&self, low: impl AsRef<[u8]>, high: Option<&[u8]>) -> Result<u64> {
        self.reading().count((low.as_ref(), high))
    }

    /// Number of nodes of a path and below it.
    ///
    /// # Errors
    /// Those of reading.
    pub fn count_subtree(&self, path: impl AsRef<[u8]>) -> Result<u64> {
        let path = path.as_ref();
        let (low, high) = below(path);
        let own = u64::from(self.exists(path)?);
        Ok(own + self.reading().count((&low, Some(&high)))?)
    }

    /// Calls `visit` with the nodes whose paths have a pattern, in order, until it returns `false`.
    ///
    /// # Errors
    /// Those of reading and of `visit`.
    pub fn matching(&self, pattern: &Pattern, mut visit: impl FnMut(&[u8], Node) -> Result<bool>) -> Result<()> {
        if let Some(path) = pattern.only_path() {
            if let Some(node) = self.get(&path)? {
                visit(&path, node)?;
            }
            return Ok(());
        }
        let prefix = pattern.prefix();
        let high = after_prefix(&prefix);
        self.reading()
            .each((&prefix, high.as_deref()), |path, head| match pattern.matches(path) {
                true => visit(path, head.with_payload()),
                false => Ok(true),
            })
    }

    /// Nodes whose paths have a pattern, at most `limit`.
    ///
    /// # Errors
    /// Those of reading.
    pub fn get_many(&self, pattern: &Pattern, limit: usize) -> Result<Vec<(Vec<u8>, Node)>> {
        let mut nodes = Vec::new();
        if limit == 0 {
            return Ok(nodes);
        }
        self.matching(pattern, |path, node| {
            nodes.push((path.to_vec(), node));
            Ok(nodes.len() < limit)
        })?;
        Ok(nodes)
    }

    /// Number of nodes whose paths have a pattern.
    ///
    /// # Errors
    /// Those of reading.
    pub fn count(&self, pattern: &Pattern) -> Result<u64> {
        self.fold(pattern, 0, |count, _, _| count + 1)
    }

    /// Folds the nodes whose paths have a pattern into one value, in order.
    ///
    /// # Errors
    /// Those of reading.
    pub fn fold<T>(&self, pattern: &Pattern, start: T, mut step: impl FnMut(T, &[u8], Node) -> T) -> Result<T> {
        let mut folded = Some(start);
        self.matching(pattern, |path, node| {
            folded = folded.take().map(|before| step(before, path, node));
            Ok(true)
        })?;
        Ok(folded.expect("each step gives a value back"))
    }

    /// A lease.
    ///
    /// # Errors
    /// [`TreeError::LeaseGone`].
    pub fn lease(&self, id: u64) -> Result<Lease> {
        let (leases, tree) = (&self.tree.tables.leases, self.tree.id);
        lease::one(&*self.snapshot, leases, (tree, id), self.lease_time()?)
    }

    /// All leases, in the order of their ids. They are those of the newest revision, whatever the revision of the view is.
    ///
    /// # Errors
    /// Those of reading.
    pub fn leases(&self) -> Result<Vec<Lease>> {
        let (leases, id) = (&self.tree.tables.leases, self.tree.id);
        lease::all(&*self.snapshot, leases, id, self.lease_time()?)
    }

    /// The time of the clock of the leases, in milliseconds.
    fn lease_time(&self) -> Result<u64> {
        let clock = LeaseClock::read(&*self.snapshot, &self.tree.tables.leases, self.tree.id)?;
        Ok(clock.map_or(0, |clock| clock.at(self.tree.store.shared_clock()).millis()))
    }

    /// Paths of the nodes of a lease, in order, at most `limit`.
    ///
    /// # Errors
    /// Those of reading.
    pub fn lease_paths(&self, id: u64, limit: usize) -> Result<Vec<Vec<u8>>> {
        lease::attached(&*self.snapshot, &self.tree.tables.leases, (self.tree.id, id), limit)
    }
}
