//! Watches: the changes of a tree, one after the other, from any revision that is kept.
//!
//! A watch reads the stored changes. So it misses nothing, however slow it is, unless the revision that it is at is compacted: then
//! it fails, and its program reads the nodes again. A watch costs the writers nothing but a wake-up.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duramen_engine::{Error, Listener, Result, Snapshot};
use duramen_topic::Listening;

use crate::error::TreeError;
use crate::limits::{BATCH_BYTES, BATCH_EVENTS, EXAMINED_MAX};
use crate::node::{ChangeKind, ChangeRow, Head, Node};
use crate::path::below;
use crate::pattern::Pattern;
use crate::read::Reading;
use crate::shared::Shared;
use crate::tables::{change_key, change_of};

/// What a watch sees.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    filter: Filter,
    from: Option<u64>,
    has_old: bool,
    kind: Option<ChangeKind>,
}

#[derive(Clone, Debug)]
enum Filter {
    Range { low: Vec<u8>, high: Option<Vec<u8>> },
    Subtree { path: Vec<u8>, low: Vec<u8>, high: Vec<u8> },
    Pattern(Pattern),
}

impl Filter {
    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Filter::Range { low, high } => path >= &low[..] && high.as_ref().is_none_or(|high| path < &high[..]),
            Filter::Subtree { path: top, low, high } => path == top || (path >= &low[..] && path < &high[..]),
            Filter::Pattern(pattern) => pattern.matches(path),
        }
    }
}

impl WatchOptions {
    fn of(filter: Filter) -> WatchOptions {
        WatchOptions {
            filter,
            from: None,
            has_old: true,
            kind: None,
        }
    }

    /// The whole tree.
    pub fn all() -> WatchOptions {
        WatchOptions::range(b"", None)
    }

    /// Paths in a range of bytes; without `high` to the end.
    pub fn range(low: impl AsRef<[u8]>, high: Option<&[u8]>) -> WatchOptions {
        WatchOptions::of(Filter::Range {
            low: low.as_ref().to_vec(),
            high: high.map(<[u8]>::to_vec),
        })
    }

    /// A path and everything below it.
    pub fn subtree(path: impl AsRef<[u8]>) -> WatchOptions {
        let path = path.as_ref().to_vec();
        let (low, high) = below(&path);
        WatchOptions::of(Filter::Subtree { path, low, high })
    }

    /// One path.
    pub fn path(path: impl AsRef<[u8]>) -> WatchOptions {
        let low = path.as_ref();
        WatchOptions::range(low, Some(&[low, &[0]].concat()))
    }

    /// Paths with a pattern.
    pub fn pattern(pattern: Pattern) -> WatchOptions {
        WatchOptions::of(Filter::Pattern(pattern))
    }

    /// Begins with the changes of a revision. Default: with the next change.
    pub fn from_revision(mut self, revision: u64) -> WatchOptions {
        self.from = Some(revision);
        self
    }

    /// Leaves the nodes before the changes out.
    pub fn without_old_nodes(mut self) -> WatchOptions {
        self.has_old = false;
        self
    }

    /// Sees changes of one kind only.
    pub fn only(mut self, kind: ChangeKind) -> WatchOptions {
        self.kind = Some(kind);
        self
    }
}

/// A change of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The revision of the change.
    pub revision: u64,
    /// What was done.
    pub kind: ChangeKind,
    /// The path.
    pub path: Vec<u8>,
    /// The node afterwards; `None`: it was deleted.
    pub node: Option<Node>,
    /// The node before; `None`: there was none, or the watch leaves it out.
    pub old: Option<Node>,
}

/// Watches a tree; see [`crate::Tree::watch`].
pub struct TreeWatch {
    tree: Arc<Shared>,
    options: WatchOptions,
    /// Revision and sub of the next change.
    next: (u64, u32),
    /// All changes up to this revision were examined.
    examined: u64,
    listener: Arc<Listener>,
    _listening: Listening,
}

impl fmt::Debug for TreeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeWatch")
            .field("tree", &self.tree.name)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl TreeWatch {
    pub(crate) fn begin(tree: &Arc<Shared>, options: WatchOptions) -> Result<TreeWatch> {
        let listener = Listener::new();
        let listening = Listening::begin(&tree.store, &tree.sequence, &listener, 0);
        let snapshot = tree.store.snapshot()?;
        let state = tree.reading(&snapshot).state(&tree.name)?;
        let from = options.from.unwrap_or(state.revision + 1);
        if from > state.revision + 1 {
            return Err(TreeError::FutureRevision {
                tree: tree.name.clone(),
                revision: from,
                newest: state.revision,
            }
            .into());
        }
        let watch = TreeWatch {
            tree: tree.clone(),
            options,
            next: (from, 0),
            examined: from.saturating_sub(1),
            listener,
            _listening: listening,
        };
        watch.check_kept(tree.reading(&snapshot).first_revision(state)?)?;
        Ok(watch)
    }

    /// The revision from which another watch goes on where this one is: it sees what this one has not returned. Where the last
    /// batch ended within a revision, it sees this revision from its beginning.
    pub fn resume_from(&self) -> u64 {
        self.next.0
    }

    /// All changes up to this revision were returned, or are not of interest to the watch.
    pub fn revision(&self) -> u64 {
        self.examined
    }

    /// The next changes, in order, as soon as there are any; `None`: there were none in the given time. With no time at all it
    /// looks at everything that there is. A revision with very many changes comes in several batches.
    ///
    /// # Errors
    /// [`TreeError::Compacted`], and those of reading.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Vec<Event>>> {
        let until = Instant::now().checked_add(timeout);
        loop {
            self.arm();
            let (events, has_more) = self.look()?;
            if !events.is_empty() {
                return Ok(Some(events));
            }
            let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() && !(has_more && timeout.is_zero()) {
                return Ok(None);
            }
            if !has_more {
                self.listener.wait(left);
            }
        }
    }

    /// What is committed after this call wakes the listener.
    fn arm(&self) {
        self.listener.wait(Duration::ZERO);
        self.tree.sequence.bell().arm();
    }

    fn check_kept(&self, first: u64) -> Result<()> {
        if self.next.0 >= first {
            return Ok(());
        }
        Err(TreeError::Compacted {
            tree: self.tree.name.clone(),
            revision: self.next.0,
            first,
        }
        .into())
    }

    /// The next changes that are there, and whether there may be more.
    fn look(&mut self) -> Result<(Vec<Event>, bool)> {
        let tree = self.tree.clone();
        let snapshot = tree.store.snapshot()?;
        let reading = tree.reading(&snapshot);
        let state = reading.state(&tree.name)?;
        self.check_kept(reading.first_revision(state)?)?;
        let mut events = Vec::new();
        if self.next.0 > state.revision {
            return Ok((events, false));
        }
        let low = change_key(tree.id, self.next.0, self.next.1);
        let high = change_key(tree.id, state.revision + 1, 0);
        let mut rows = snapshot.range(&tree.tables.changes, &low[..]..&high[..])?;
        let (mut bytes, mut examined) = (0, 0);
        while let Some((key, row)) = rows.next()? {
            let (revision, sub) = change_of(key)?;
            if events.len() >= BATCH_EVENTS || bytes >= BATCH_BYTES || examined >= EXAMINED_MAX {
                self.next = (revision, sub);
                self.examined = revision - 1;
                return Ok((events, true));
            }
            examined += 1;
            let change = ChangeRow::decode(&row)?;
            let is_wanted = self.options.kind.is_none_or(|kind| kind == change.kind);
            if is_wanted && self.options.filter.matches(change.path) {
                let event = self.event(&reading, revision, &change)?;
                let payloads = [&event.node, &event.old].map(|node| node.as_ref().map_or(0, |node| node.payload.len()));
                bytes += event.path.len() + payloads[0] + payloads[1];
                events.push(event);
            }
        }
        self.next = (state.revision + 1, 0);
        self.examined = state.revision;
        Ok((events, false))
    }

    fn event(&self, reading: &Reading<'_, Snapshot>, revision: u64, change: &ChangeRow<'_>) -> Result<Event> {
        let node = match change.kind {
            ChangeKind::Delete => None,
            ChangeKind::Put => Some(node_of(reading, change.path, revision)?),
        };
        let old = change.old.filter(|_| self.options.has_old);
        Ok(Event {
            revision,
            kind: change.kind,
            path: change.path.to_vec(),
            node,
            old: old.map(Node::decode).transpose()?,
        })
    }
}

/// The node that a put has stored: the current one, or what the next change found.
fn node_of(reading: &Reading<'_, Snapshot>, path: &[u8], revision: u64) -> Result<Node> {
    if let Some(row) = reading.current(path)? {
        let head = Head::decode(&row)?;
        if head.revision == revision {
            return Ok(head.with_payload());
        }
    }
    let found = reading.before_change_after(path, revision)?;
    found
        .filter(|node| node.revision == revision)
        .ok_or_else(|| Error::damaged("a change of a tree has lost its node; run `duramen check`"))
}
