//! Several watches of a tree that read its changes together.
//!
//! All watches that have come to the same place are *level*: they share one reader, which looks up who wants a change. Ten thousand
//! watches of ten thousand paths cost little more than one. A watch that begins at an earlier revision is *behind*: it reads by
//! itself until it is level.
//!
//! Watches read the stored changes. So they miss nothing, however slow they are, unless the revision that they are at is compacted:
//! then they end, and their program reads the nodes again. They cost the writers nothing but a wake-up.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use duramen_engine::{Error, Listener, Reason, Result, Snapshot};
use duramen_topic::Listening;

use crate::error::TreeError;
use crate::limits::{BATCH_BYTES, BATCH_EVENTS, EXAMINED_MAX, SHARED_BYTES};
use crate::node::{ChangeKind, ChangeRow, Head, Node};
use crate::pattern::Pattern;
use crate::read::Reading;
use crate::selection::Selection;
use crate::shared::Shared;
use crate::tables::{change_key, change_of};

/// What a watch sees.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    selection: Selection,
    from: Option<u64>,
    has_old: bool,
    kind: Option<ChangeKind>,
}

impl WatchOptions {
    /// The nodes of a selection.
    pub fn of(selection: Selection) -> WatchOptions {
        WatchOptions {
            selection,
            from: None,
            has_old: true,
            kind: None,
        }
    }

    /// The whole tree.
    pub fn all() -> WatchOptions {
        WatchOptions::of(Selection::all())
    }

    /// Paths in a range of bytes; without `high` to the end.
    pub fn range(low: impl AsRef<[u8]>, high: Option<&[u8]>) -> WatchOptions {
        WatchOptions::of(Selection::range(low, high))
    }

    /// A path and everything below it.
    pub fn subtree(path: impl AsRef<[u8]>) -> WatchOptions {
        WatchOptions::of(Selection::subtree(path))
    }

    /// One path.
    pub fn path(path: impl AsRef<[u8]>) -> WatchOptions {
        WatchOptions::of(Selection::path(path))
    }

    /// Paths with a pattern.
    pub fn pattern(pattern: Pattern) -> WatchOptions {
        WatchOptions::of(Selection::pattern(pattern))
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

impl Event {
    /// Bytes that it takes in a batch.
    fn bytes(&self) -> usize {
        let payload = |node: &Option<Node>| node.as_ref().map_or(0, |node| node.payload.len());
        self.path.len() + payload(&self.node) + payload(&self.old)
    }
}

/// What a watch of a set has seen.
#[derive(Debug)]
pub enum Watched {
    /// Changes, in their order.
    Events(Vec<Event>),
    /// The watch has ended: the revision that it was at is compacted.
    Ended(Error),
}

/// Revision and sub of a change.
type Place = (u64, u32);

struct Watch {
    options: WatchOptions,
    /// The next change that it sees, where it is behind; otherwise the first that it wants.
    next: Place,
    is_level: bool,
}

/// Several watches of a tree; see [`crate::Tree::watches`].
pub struct TreeWatches {
    tree: Arc<Shared>,
    watches: HashMap<u64, Watch>,
    /// The next change for all watches that are level.
    next: Place,
    /// All changes up to this revision were examined for them.
    examined: u64,
    /// Level watches of one path each, by path.
    of_paths: HashMap<Vec<u8>, Vec<u64>>,
    /// The other level watches.
    of_many: Vec<u64>,
    behind: VecDeque<u64>,
    listener: Arc<Listener>,
    _listening: Listening,
}

impl fmt::Debug for TreeWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeWatches")
            .field("tree", &self.tree.name)
            .field("watches", &self.watches.len())
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl TreeWatches {
    pub(crate) fn begin(tree: &Arc<Shared>) -> Result<TreeWatches> {
        let listener = Listener::new();
        let listening = Listening::begin(&tree.store, &tree.sequence, &listener, 0);
        let snapshot = tree.store.snapshot()?;
        let state = tree.reading(&snapshot).state(&tree.name)?;
        Ok(TreeWatches {
            tree: tree.clone(),
            watches: HashMap::new(),
            next: (state.revision + 1, 0),
            examined: state.revision,
            of_paths: HashMap::new(),
            of_many: Vec::new(),
            behind: VecDeque::new(),
            listener,
            _listening: listening,
        })
    }

    /// Adds a watch with an id that no other watch of the set has. Returns the revision that it begins with.
    ///
    /// # Errors
    /// [`TreeError::Compacted`], [`TreeError::FutureRevision`], [`Reason::InvalidArgument`] for an id that is taken, and those of
    /// reading.
    pub fn add(&mut self, id: u64, options: WatchOptions) -> Result<u64> {
        if self.watches.contains_key(&id) {
            let cause = format!("there is a watch {id} already; take another id");
            return Err(Reason::InvalidArgument(cause).into());
        }
        let tree = self.tree.clone();
        let snapshot = tree.store.snapshot()?;
        let reading = tree.reading(&snapshot);
        let state = reading.state(&tree.name)?;
        let from = options.from.unwrap_or(state.revision + 1);
        if from > state.revision + 1 {
            return Err(TreeError::FutureRevision {
                tree: tree.name.clone(),
                revision: from,
                newest: state.revision,
            }
            .into());
        }
        check_kept(&tree, (from, 0), reading.first_revision(state)?)?;
        let next = (from, 0);
        let watch = Watch {
            options,
            next,
            is_level: false,
        };
        self.watches.insert(id, watch);
        match next >= self.next {
            true => self.make_level(id),
            false => self.behind.push_back(id),
        }
        Ok(from)
    }

    /// Ends a watch. Returns whether there was one.
    pub fn remove(&mut self, id: u64) -> bool {
        let Some(watch) = self.watches.remove(&id) else {
            return false;
        };
        match (watch.is_level, watch.options.selection.only_path()) {
            (false, _) => self.behind.retain(|one| *one != id),
            (true, None) => self.of_many.retain(|one| *one != id),
            (true, Some(path)) => {
                if let Some(ids) = self.of_paths.get_mut(&path) {
                    ids.retain(|one| *one != id);
                    if ids.is_empty() {
                        self.of_paths.remove(&path);
                    }
                }
            }
        }
        true
    }

    /// What a watch of the set selects; `None`: there is no such watch.
    pub fn selection(&self, id: u64) -> Option<&Selection> {
        self.watches.get(&id).map(|watch| &watch.options.selection)
    }

    /// Number of watches.
    pub fn len(&self) -> usize {
        self.watches.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// The revision from which another watch goes on where a watch of the set is: it sees what this one has not seen. Where the last
    /// batch ended within a revision, it sees this revision from its beginning. `None`: there is no such watch.
    pub fn resume_from(&self, id: u64) -> Option<u64> {
        let watch = self.watches.get(&id)?;
        Some(match watch.is_level {
            true => watch.next.max(self.next).0,
            false => watch.next.0,
        })
    }

    /// All changes up to this revision were returned by [`TreeWatches::take`], or no watch wants them.
    pub fn revision(&self) -> u64 {
        let of_those_behind = self.behind.iter().filter_map(|id| self.watches.get(id));
        let behind = of_those_behind.map(|watch| watch.next.0.saturating_sub(1)).min();
        behind.map_or(self.examined, |behind| behind.min(self.examined))
    }

    /// What the watches have seen since the last call, as soon as there is anything; `None`: there was nothing in the given time. With
    /// no time at all it looks at everything that there is. A watch is in the list at most once.
    ///
    /// # Errors
    /// Those of reading, and [`TreeError::UnknownTree`] when the tree was deleted.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Vec<(u64, Watched)>>> {
        let until = Instant::now().checked_add(timeout);
        loop {
            self.arm();
            let (seen, has_more) = self.take()?;
            if !seen.is_empty() {
                return Ok(Some(seen));
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

    /// From this call on, changes that are committed ring: a task calls it, then [`TreeWatches::take`], and then waits with
    /// [`TreeWatches::is_rung`].
    pub fn arm(&self) {
        self.listener.wait(Duration::ZERO);
        self.tree.sequence.bell().arm();
    }

    /// Whether something was committed since [`TreeWatches::arm`]; otherwise the waker is called once it is.
    pub fn is_rung(&self, waker: &Waker) -> bool {
        !self.listener.poll(waker).is_empty()
    }

    /// What the watches have seen since the last call, and whether there is more to look at now. It does not wait.
    ///
    /// # Errors
    /// As [`TreeWatches::next`].
    pub fn take(&mut self) -> Result<(Vec<(u64, Watched)>, bool)> {
        let tree = self.tree.clone();
        let snapshot = tree.store.snapshot()?;
        let reading = tree.reading(&snapshot);
        let state = reading.state(&tree.name)?;
        let first = reading.first_revision(state)?;
        if let Some(id) = self.behind.pop_front() {
            let seen = self.catch_up(id, &snapshot, first)?;
            return Ok((seen, true));
        }
        let end = (state.revision + 1, 0);
        if self.next >= end {
            return Ok((Vec::new(), false));
        }
        if let Err(gone) = check_kept(&tree, self.next, first) {
            // Watches that begin later are not concerned.
            let mut ended: Vec<_> = self.watches.keys().copied().collect();
            ended.retain(|id| self.resume_from(*id).is_some_and(|from| from < first));
            for id in &ended {
                self.remove(*id);
            }
            (self.next, self.examined) = ((first, 0), first - 1);
            let ended = ended.into_iter().map(|id| (id, Watched::Ended(gone.clone())));
            return Ok((ended.collect(), true));
        }
        let mut seen: HashMap<u64, Vec<Event>> = HashMap::new();
        let mut late = Vec::new();
        let (next, examined) = changes(&snapshot, &tree, (self.next, end), |(revision, sub), change| {
            let of_path = self.of_paths.get(change.path).into_iter().flatten();
            let mut wanting = of_path.chain(&self.of_many).filter(|id| {
                let watch = &self.watches[id];
                watch.next.0 <= revision && watch.wants(change)
            });
            let Some(first) = wanting.next() else {
                return Ok((0, 0));
            };
            let event = event(&reading, revision, change)?;
            let (mut bytes, mut events) = (0, 0);
            for id in std::iter::once(first).chain(wanting) {
                if bytes > SHARED_BYTES {
                    late.push((*id, (revision, sub)));
                    continue;
                }
                let event = self.watches[id].shown(&event);
                (bytes, events) = (bytes + event.bytes(), events + 1);
                seen.entry(*id).or_default().push(event);
            }
            // More bytes than a batch has: it ends here, and those that are late see the next changes by themselves.
            Ok((events, bytes))
        })?;
        (self.next, self.examined) = (next, examined);
        let has_more = next < end || !late.is_empty();
        self.fall_behind(&late);
        let seen = seen.into_iter().map(|(id, events)| (id, Watched::Events(events)));
        Ok((seen.collect(), has_more))
    }

    /// Lets level watches read by themselves from their places on.
    fn fall_behind(&mut self, late: &[(u64, Place)]) {
        if late.is_empty() {
            return;
        }
        let ids: HashSet<u64> = late.iter().map(|(id, _)| *id).collect();
        let mut paths = HashSet::new();
        for (id, place) in late {
            let Some(watch) = self.watches.get_mut(id) else {
                continue;
            };
            (watch.next, watch.is_level) = (*place, false);
            paths.extend(watch.options.selection.only_path());
            self.behind.push_back(*id);
        }
        self.of_many.retain(|id| !ids.contains(id));
        for path in paths {
            if let Some(of_path) = self.of_paths.get_mut(&path) {
                of_path.retain(|id| !ids.contains(id));
                if of_path.is_empty() {
                    self.of_paths.remove(&path);
                }
            }
        }
    }

    /// What a watch that is behind sees next.
    fn catch_up(&mut self, id: u64, snapshot: &Snapshot, first: u64) -> Result<Vec<(u64, Watched)>> {
        let tree = self.tree.clone();
        let watch = &self.watches[&id];
        if let Err(gone) = check_kept(&tree, watch.next, first) {
            self.watches.remove(&id);
            return Ok(vec![(id, Watched::Ended(gone))]);
        }
        let reading = tree.reading(snapshot);
        let mut events = Vec::new();
        let (next, _) = changes(snapshot, &tree, (watch.next, self.next), |(revision, _), change| {
            if !watch.wants(change) {
                return Ok((0, 0));
            }
            let event = watch.shown(&event(&reading, revision, change)?);
            let bytes = event.bytes();
            events.push(event);
            Ok((1, bytes))
        })
        // It has the next turn, unless the program ends it.
        .inspect_err(|_| self.behind.push_front(id))?;
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.next = next;
        }
        match next >= self.next {
            true => self.make_level(id),
            false => self.behind.push_back(id),
        }
        Ok(match events.is_empty() {
            true => Vec::new(),
            false => vec![(id, Watched::Events(events))],
        })
    }

    fn make_level(&mut self, id: u64) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        watch.is_level = true;
        match watch.options.selection.only_path() {
            Some(path) => self.of_paths.entry(path).or_default().push(id),
            None => self.of_many.push(id),
        }
    }
}

impl Watch {
    fn wants(&self, change: &ChangeRow<'_>) -> bool {
        self.options.kind.is_none_or(|kind| kind == change.kind) && self.options.selection.matches(change.path)
    }

    fn shown(&self, event: &Event) -> Event {
        match self.options.has_old {
            true => event.clone(),
            false => Event {
                path: event.path.clone(),
                node: event.node.clone(),
                old: None,
                ..*event
            },
        }
    }
}

fn check_kept(tree: &Shared, next: Place, first: u64) -> Result<()> {
    if next.0 >= first {
        return Ok(());
    }
    Err(TreeError::Compacted {
        tree: tree.name.clone(),
        revision: next.0,
        first,
    }
    .into())
}

/// Calls `visit` with changes from one place up to another, until their number or what `visit` returns (events and their bytes) is
/// enough for a batch. Returns the next place, and the revision up to which all changes were visited.
fn changes(
    snapshot: &Snapshot,
    tree: &Shared,
    (from, to): (Place, Place),
    mut visit: impl FnMut(Place, &ChangeRow<'_>) -> Result<(usize, usize)>,
) -> Result<(Place, u64)> {
    let (low, high) = (change_key(tree.id, from.0, from.1), change_key(tree.id, to.0, to.1));
    let mut rows = snapshot.range(&tree.tables.changes, &low[..]..&high[..])?;
    let (mut events, mut bytes, mut examined) = (0, 0, 0);
    while let Some((key, row)) = rows.next()? {
        let (revision, sub) = change_of(key)?;
        if events >= BATCH_EVENTS || bytes >= BATCH_BYTES || examined >= EXAMINED_MAX {
            return Ok(((revision, sub), revision - 1));
        }
        examined += 1;
        let (more, their_bytes) = visit((revision, sub), &ChangeRow::decode(&row)?)?;
        (events, bytes) = (events + more, bytes + their_bytes);
    }
    Ok((to, to.0 - 1))
}

fn event(reading: &Reading<'_, Snapshot>, revision: u64, change: &ChangeRow<'_>) -> Result<Event> {
    let node = match change.kind {
        ChangeKind::Delete => None,
        ChangeKind::Put => Some(node_of(reading, change.path, revision)?),
    };
    Ok(Event {
        revision,
        kind: change.kind,
        path: change.path.to_vec(),
        node,
        old: change.old.map(Node::decode).transpose()?,
    })
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
