//! Salvages trees from a damaged store into a new store.
//!
//! A tree of which everything can be read is copied row by row, with its earlier revisions. Of any other tree the nodes, leases and
//! rules that can be read are kept, and all that follows from them is made again: children and their counts, deadlines, what counts
//! for quotas, the maps of projections. Such a tree begins with a revision of its own after the newest one, and earlier revisions
//! are compacted: a history with gaps would tell a watch that nothing happened.
//!
//! A row says how far a tree had come. Where it is lost, the tree goes on far behind the greatest revision that any row tells of, so
//! none is used again. Where the newest commits are lost with the log, the tree is what it was before them, its revision included.

use std::collections::BTreeMap;

use duramen_engine::{Batch, Kind, Lost, Map, Reason, Result, Snapshot, Store};

use crate::lease::LeasesLeft;
use crate::node::{Children, Head, Node};
use crate::path::{check, is_below, shown, split};
use crate::rules::{Projection, QuotaUse, Trigger};
use crate::state::State;
use crate::tables::{
    NAME, NAMES, NEXT_ID, PROJECTION, RULE_TAGS, STATE, TRIGGER, Tables, attached_key, change_key, change_of,
    clock_key, implied_key, keeper_key, kept_key, kept_prefix, leases_prefix, mark_key, name_key, node_key, parent_key,
    removed_key, rule_prefix, state_key, tree_of_state,
};
use crate::trees::{FIRST_ID, Trees, TreesOptions};
use crate::writes::kept_conditions;

/// Most rows and bytes of a commit.
const BATCH_ROWS_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Revisions that are left out where nothing says what the newest one was.
const REVISIONS_LEFT_OUT: u64 = 1 << 20;

/// Result of salvaging the trees of a damaged store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedTrees {
    /// Number of trees in the new store.
    pub trees: u64,
    /// Number of their nodes.
    pub nodes: u64,
    /// What is missing or changed, a line each.
    pub lost: Vec<String>,
}

/// Salvages the readable part of the trees of a damaged store (see [`duramen_engine::Options::salvage`]) into another store, which
/// has no trees. `maps` is the result of `Snapshot::salvage_maps`. Salvage removes from it the maps of projections that it makes
/// again. It records unreadable pages in `lost`. It reports the number of saved nodes to `progress` from time to time. Topics
/// are salvaged before, because triggers need them.
///
/// Nodes keep their revisions, versions and leases; leases keep their remaining time.
///
/// # Errors
/// [`Reason::InvalidArgument`] when the new store has trees; errors of a commit there. Damage causes no errors.
pub fn salvage(
    snapshot: &Snapshot,
    maps: &mut Vec<Map>,
    target: &Store,
    lost: &Lost,
    progress: &mut dyn FnMut(u64),
) -> Result<SavedTrees> {
    let names = Lost::new();
    let Some(source) = source(snapshot, &names)? else {
        let mut saved = SavedTrees::default();
        if !names.list().is_empty() {
            saved
                .lost
                .push("trees, if there were any: the names of their maps".into());
        }
        return Ok(saved);
    };
    let trees = Trees::open_with(target, TreesOptions::new().background(false))?;
    if !trees.list()?.is_empty() {
        let cause = "the store that trees are to be saved into has some already; name an empty one";
        return Err(Reason::InvalidArgument(cause.into()).into());
    }
    let mut saving = Saving {
        snapshot,
        source,
        lost,
        tables: Tables::open(target)?,
        trees,
        maps,
        writer: Writer {
            store: target.clone(),
            batch: Batch::new(),
            bytes: 0,
        },
        saved: SavedTrees::default(),
        remade: Vec::new(),
        progress,
    };
    saving.all()?;
    Ok(saving.saved)
}

/// The maps of trees in the damaged store. They were made one after the other, so a name that is lost follows from another one.
fn source(snapshot: &Snapshot, names: &Lost) -> Result<Option<Tables>> {
    let named = snapshot.salvage_reserved_maps(names)?;
    let first = |(place, name): (usize, &&str)| named.get(*name)?.number().checked_sub(place as u32);
    let Some(first) = NAMES.iter().enumerate().find_map(first) else {
        return Ok(None);
    };
    let map = |place: usize| match named.get(NAMES[place]) {
        Some(map) => map.clone(),
        None => snapshot.salvage_nameless_map(first + place as u32),
    };
    Tables::of(|place| Ok(map(place))).map(Some)
}

struct Saving<'a> {
    snapshot: &'a Snapshot,
    source: Tables,
    lost: &'a Lost,
    /// The maps of the new store.
    tables: Tables,
    trees: Trees,
    maps: &'a mut Vec<Map>,
    writer: Writer,
    saved: SavedTrees,
    /// Ids and names of trees that were made again, whose rules come last.
    remade: Vec<(u32, String)>,
    progress: &'a mut dyn FnMut(u64),
}

/// Gets a row: its key and value.
type TakeRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// What the rows of a tree say of it, as far as they can be read.
#[derive(Default)]
struct Found {
    name: Option<String>,
    state: Option<State>,
    /// Its state as it is stored, and the rows beside it.
    rows: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Saving<'_> {
    fn all(&mut self) -> Result<()> {
        let (found, next_id) = self.found()?;
        for (id, tree) in found {
            let name = match tree.name {
                Some(name) => name,
                None => {
                    let name = format!("tree {id} of salvage");
                    self.lose(format!("the name of tree number {id}: it is called {name:?} now"));
                    name
                }
            };
            match tree.state {
                Some(_) if self.is_whole(id)? => self.copy(id, &tree.rows)?,
                state => {
                    self.remake(id, &name, state)?;
                    self.remade.push((id, name.clone()));
                }
            }
            // The name comes last: a tree is there when everything of it is.
            self.writer
                .put(&self.tables.trees, &name_key(&name), &id.to_be_bytes())?;
            self.writer.flush()?;
            self.saved.trees += 1;
        }
        self.writer.put(&self.tables.trees, &NEXT_ID, &next_id.to_be_bytes())?;
        self.writer.flush()?;
        for (id, name) in std::mem::take(&mut self.remade) {
            self.rules(id, &name)?;
        }
        Ok(())
    }

    fn lose(&mut self, line: String) {
        self.saved.lost.push(line);
    }

    /// Passes the rows of a map of the damaged store that begin with a prefix to `take`. Returns whether no page was unreadable.
    fn rows(&self, map: &Map, prefix: &[u8], take: &mut TakeRow<'_>) -> Result<bool> {
        let here = Lost::new();
        let mut walk = self.snapshot.salvage_prefix(map, prefix, &here)?;
        while let Some((key, value)) = walk.next()? {
            take(key, &value)?;
        }
        drop(walk);
        let lines = here.list();
        let is_whole = lines.is_empty();
        lines.into_iter().for_each(|line| self.lost.note(line));
        Ok(is_whole)
    }

    /// All trees by their ids, and an id that none has had.
    fn found(&mut self) -> Result<(BTreeMap<u32, Found>, u32)> {
        let (mut found, mut next_id, mut wrong) = (BTreeMap::<u32, Found>::new(), FIRST_ID, 0);
        let is_whole = self.rows(&self.source.trees, b"", &mut |key, row| {
            let id = row.try_into().map(u32::from_be_bytes).ok().filter(|id| *id < u32::MAX);
            match (key, id) {
                ([NAME, name @ ..], Some(id)) => {
                    found.entry(id).or_default().name = Some(String::from_utf8_lossy(name).into_owned());
                }
                (key, Some(id)) if key == NEXT_ID => next_id = next_id.max(id),
                (key, _) => match tree_of_state(key) {
                    Some((id, tag)) => {
                        let found = found.entry(id).or_default();
                        found.rows.push((key.to_vec(), row.to_vec()));
                        if tag == STATE {
                            found.state = State::decode(row).ok();
                        }
                    }
                    None => wrong += 1,
                },
            }
            Ok(())
        })?;
        if !is_whole || wrong > 0 {
            let line = "names of trees, if there were more than are left, and how far some had come";
            self.lose(line.into());
            for map in [&self.source.nodes, &self.source.changes] {
                let here = Lost::new();
                let mut walk = self.snapshot.salvage(map, &here)?;
                while let Some((key, _)) = walk.next()? {
                    let Some(id) = key.first_chunk().map(|id| u32::from_be_bytes(*id)) else {
                        continue;
                    };
                    found.entry(id).or_default();
                    match id.checked_add(1) {
                        Some(next) => walk.seek(&next.to_be_bytes()),
                        None => break,
                    }
                }
            }
        }
        let newest = found.keys().next_back().map_or(0, |id| id.saturating_add(1));
        Ok((found, next_id.max(newest)))
    }

    /// Whether all rows of a tree can be read.
    fn is_whole(&self, id: u32) -> Result<bool> {
        let mut is_whole = true;
        for map in self.source.of_trees() {
            is_whole &= self.rows(map, &id.to_be_bytes(), &mut |_, _| Ok(()))?;
        }
        Ok(is_whole)
    }

    /// Copies a tree as it is.
    fn copy(&mut self, id: u32, beside: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let (source, target) = (self.source.clone(), self.tables.clone());
        let mut nodes = 0;
        for (place, (from, to)) in source.of_trees().into_iter().zip(target.of_trees()).enumerate() {
            let here = Lost::new();
            let mut walk = self.snapshot.salvage_prefix(from, &id.to_be_bytes(), &here)?;
            while let Some((key, value)) = walk.next()? {
                self.writer.put(to, key, &value)?;
                if place == 0 {
                    nodes += 1;
                    (self.progress)(self.saved.nodes + nodes);
                }
            }
        }
        self.saved.nodes += nodes;
        beside
            .iter()
            .try_for_each(|(key, row)| self.writer.put(&target.trees, key, row))
    }

    /// Makes a tree of what can be read.
    fn remake(&mut self, id: u32, name: &str, state: Option<State>) -> Result<()> {
        let mut revision = state.map_or(0, |state| state.revision);
        let leases = self.leases(id, name)?;
        revision = self.nodes(id, name, &leases)?.max(revision);
        let mut of_changes = 0;
        let are_changes_whole = self.rows(&self.source.changes, &id.to_be_bytes(), &mut |key, _| {
            of_changes = change_of(key).map_or(of_changes, |(revision, _)| revision.max(of_changes));
            Ok(())
        })?;
        revision = revision.max(of_changes).max(State::NEW.revision);
        if state.is_none() {
            revision += REVISIONS_LEFT_OUT;
            self.lose(format!(
                "tree {name:?}: how far it had come; it goes on after revision {}, so no revision is used again",
                revision + 1
            ));
        }
        // No change has this revision, so the tree begins with it.
        let first = revision + 1;
        let why = if are_changes_whole {
            "because other rows are lost"
        } else {
            "because some are lost"
        };
        self.lose(format!(
            "tree {name:?}: its revisions before {first}, {why}; watches from them fail as compacted"
        ));
        self.children(id, first)?;
        let kept = self.kept(id, name)?;
        let state = State {
            revision: first,
            first,
            rules: 0,
            kept,
        };
        self.writer.put(&self.tables.trees, &state_key(id), &state.encode())?;
        let removed = &change_key(0, first, 0)[4..];
        self.writer.put(&self.tables.trees, &removed_key(id), removed)?;
        self.writer.put(&self.tables.trees, &mark_key(id), b"")
    }

    /// Writes the leases of a tree.
    fn leases(&mut self, id: u32, name: &str) -> Result<LeasesLeft> {
        let mut left = LeasesLeft::default();
        let mut wrong = 0;
        let prefix = leases_prefix(id);
        let is_whole = self.rows(&self.source.leases, &prefix, &mut |key, row| {
            if left.add(&key[prefix.len()..], row).is_err() {
                wrong += 1;
            }
            Ok(())
        })?;
        self.rows(&self.source.leases, &clock_key(id), &mut |_, row| {
            left.take_clock(row);
            Ok(())
        })?;
        if !is_whole || wrong > 0 {
            self.lose(format!("tree {name:?}: leases, if there were more than are left"));
        }
        if left.lack_clock() {
            self.lose(format!(
                "tree {name:?}: how much time its leases had left: each has its whole time again"
            ));
        }
        for (key, row) in left.rows(id) {
            self.writer.put(&self.tables.leases, &key, &row)?;
        }
        Ok(left)
    }

    /// Writes the nodes of a tree. Returns the greatest revision.
    fn nodes(&mut self, id: u32, name: &str, leases: &LeasesLeft) -> Result<u64> {
        let (tables, prefix) = (self.tables.clone(), id.to_be_bytes());
        let mut revision = 0;
        let here = Lost::new();
        let mut walk = self.snapshot.salvage_prefix(&self.source.nodes, &prefix, &here)?;
        while let Some((key, row)) = walk.next()? {
            let path = &key[prefix.len()..];
            let (Ok(()), Ok(head)) = (check(path), Head::decode(&row)) else {
                self.saved
                    .lost
                    .push(format!("tree {name:?}: the node {:?}", shown(path)));
                continue;
            };
            revision = revision.max(head.revision).max(head.create_revision);
            if head.lease == 0 || leases.contain(head.lease) {
                self.writer.put(&tables.nodes, key, &row)?;
            } else {
                let path = shown(path);
                self.saved.lost.push(format!(
                    "tree {name:?}: the lease of the node {path:?}: it stays until it is deleted"
                ));
                let node = Node {
                    lease: 0,
                    ..head.with_payload()
                };
                self.writer.put(&tables.nodes, key, &node.encode())?;
            }
            if leases.contain(head.lease) {
                self.writer
                    .put(&tables.leases, &attached_key(id, head.lease, path), b"")?;
            }
            self.saved.nodes += 1;
            (self.progress)(self.saved.nodes);
        }
        drop(walk);
        let lines = here.list();
        if !lines.is_empty() {
            self.lose(format!("tree {name:?}: nodes, if there were more than are left"));
        }
        lines.into_iter().for_each(|line| self.lost.note(line));
        Ok(revision)
    }

    /// Notes which paths are implied, and counts the children of each parent. The version of a list that is not as it was is new to
    /// it.
    fn children(&mut self, id: u32, unused: u64) -> Result<()> {
        let mut before = BTreeMap::new();
        self.rows(&self.source.parents, &id.to_be_bytes(), &mut |key, row| {
            before.extend(Children::decode(row).ok().map(|children| (key.to_vec(), children)));
            Ok(())
        })?;
        self.writer.flush()?;
        let tables = self.tables.clone();
        let snapshot = self.writer.store.snapshot()?;
        let mut nodes = snapshot.prefix(&tables.nodes, id.to_be_bytes())?;
        // The parents of the path at hand, from the top of the tree on, with the children that each has so far. What is below a
        // parent stands together.
        let mut open = vec![(None::<Vec<u8>>, 0u64)];
        let end = |writer: &mut Writer, (parent, count): (Option<Vec<u8>>, u64)| {
            let key = parent_key(id, parent.as_deref());
            let old = before.get(&key).copied().unwrap_or_default();
            let version = match old.count == count {
                true => old.version,
                false => old.version.max(unused) + count,
            };
            writer.put(&tables.parents, &key, &Children { count, version }.encode())
        };
        while let Some((key, _)) = nodes.next()? {
            let path = &key[4..];
            while let Some(ended) =
                open.pop_if(|(parent, _)| parent.as_ref().is_some_and(|parent| !is_below(path, parent)))
            {
                end(&mut self.writer, ended)?;
            }
            let known = open.last().and_then(|(parent, _)| parent.clone());
            let mut opened = Vec::new();
            let mut ancestor = split(path).0;
            while let Some(parent) = ancestor
                && known.as_deref() != Some(parent)
            {
                opened.push(parent);
                ancestor = split(parent).0;
            }
            for parent in opened.into_iter().rev() {
                if !snapshot.contains_key(&tables.nodes, node_key(id, parent))? {
                    let (above, name) = split(parent);
                    self.writer.put(&tables.implied, &implied_key(id, above, name), b"")?;
                    open.last_mut().expect("the top ends last").1 += 1;
                }
                open.push((Some(parent.to_vec()), 0));
            }
            open.last_mut().expect("the top ends last").1 += 1;
        }
        while let Some(ended) = open.pop() {
            if ended.1 > 0 {
                end(&mut self.writer, ended)?;
            }
        }
        Ok(())
    }

    /// Writes the conditions while which nodes are kept. Returns how many nodes have some.
    fn kept(&mut self, id: u32, name: &str) -> Result<u64> {
        let prefix = kept_prefix(id);
        let (mut found, mut wrong) = (Vec::new(), 0);
        let is_whole = self.rows(&self.source.rules, &prefix, &mut |key, row| {
            match kept_conditions(row) {
                Ok(conditions) => found.push((key[prefix.len()..].to_vec(), row.to_vec(), conditions)),
                Err(_) => wrong += 1,
            }
            Ok(())
        })?;
        if !is_whole || wrong > 0 {
            self.lose(format!(
                "tree {name:?}: conditions while which nodes are kept, if there were more than are left: such nodes stay"
            ));
        }
        self.writer.flush()?;
        let tables = self.tables.clone();
        let mut kept = 0;
        for (path, row, conditions) in found {
            if !tables.nodes.contains_key(node_key(id, &path))? {
                continue;
            }
            kept += 1;
            self.writer.put(&tables.rules, &kept_key(id, &path), &row)?;
            for (watched, _) in conditions {
                self.writer.put(&tables.rules, &keeper_key(id, &watched, &path), b"")?;
            }
        }
        Ok(kept)
    }
}

impl Saving<'_> {
    /// Sets the rules of a tree again. What counts for quotas is counted, and the maps of projections are filled.
    fn rules(&mut self, id: u32, name: &str) -> Result<()> {
        let mut rows = Vec::new();
        let mut is_whole = true;
        for tag in RULE_TAGS {
            let prefix = rule_prefix(id, tag);
            is_whole &= self.rows(&self.source.rules, &prefix, &mut |key, row| {
                rows.push((tag, key[prefix.len()..].to_vec(), row.to_vec()));
                Ok(())
            })?;
        }
        if !is_whole {
            self.lose(format!(
                "tree {name:?}: triggers, projections and quotas, if there were more than are left"
            ));
        }
        let Some(tree) = self.trees.get(name)? else {
            return Ok(());
        };
        for (tag, rule, row) in rows {
            let rule_name = shown(&rule);
            let set = match tag {
                TRIGGER => Trigger::decode(&row)
                    .and_then(|trigger| tree.transact(|tree| tree.set_trigger(&rule_name, &trigger))),
                PROJECTION => Projection::decode(&row).and_then(|projection| {
                    tree.transact(|tree| tree.set_projection(&rule_name, &projection))?;
                    self.maps.retain(|map| map.name() != projection.map);
                    Ok(())
                }),
                _ => QuotaUse::decode(&rule, &row)
                    .and_then(|used| tree.transact(|tree| tree.set_quota(&rule, used.quota))),
            };
            match set {
                Ok(()) => {}
                Err(error) if !matches!(error.kind(), Kind::FixTheCall | Kind::Damaged) => return Err(error),
                Err(error) => self.lose(format!("tree {name:?}: the rule {rule_name:?}: {error}")),
            }
        }
        Ok(())
    }
}

/// Writes rows to the new store. They are in the store after a flush.
struct Writer {
    store: Store,
    batch: Batch,
    bytes: usize,
}

impl Writer {
    fn put(&mut self, map: &Map, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() >= BATCH_BYTES_MAX {
            // A batch would hold a copy.
            return map.put(key, value);
        }
        self.batch.put(map, key, value)?;
        self.bytes += key.len() + value.len();
        match self.batch.len() >= BATCH_ROWS_MAX || self.bytes >= BATCH_BYTES_MAX {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        self.store.write(std::mem::take(&mut self.batch)).map(drop)
    }
}
