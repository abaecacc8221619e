//! A device that fails at any call, and a store that is full: what was acknowledged survives, and the rows of a tree fit
//! together afterwards.
//!
//! `DURAMEN_SEED=n` runs a seed again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use duramen_engine::{Durability, Kind, Maintenance, Options, Store};
use duramen_io::{FailKind, FailSpan, SimDisk};
use duramen_tree::{Event, LeaseChange, Node, Tree, TreeError, TreeView, Trees, TreesOptions, WatchOptions};

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written)
}

fn open(disk: &SimDisk) -> (Store, Tree) {
    let store = options().open_on(disk.platform()).unwrap();
    let tree = tree_of(&store);
    (store, tree)
}

fn tree_of(store: &Store) -> Tree {
    let trees = Trees::open_with(store, TreesOptions::new().background(false)).unwrap();
    trees.ensure("tree").unwrap()
}

fn nodes_of(view: &TreeView) -> BTreeMap<Vec<u8>, Node> {
    let mut nodes = BTreeMap::new();
    view.range(b"", None, |path, node| {
        nodes.insert(path.to_vec(), node);
        Ok(true)
    })
    .unwrap();
    nodes
}

/// The changes after a revision.
fn events(tree: &Tree, revision: u64) -> Vec<Event> {
    let mut watch = tree.watch(WatchOptions::all().from_revision(revision + 1)).unwrap();
    let mut all = Vec::new();
    while let Some(events) = watch.next(Duration::ZERO).unwrap() {
        all.extend(events);
    }
    all
}

/// The nodes are what the changes make of them, and lists of children are those of the nodes.
fn check(tree: &Tree) -> BTreeSet<Vec<u8>> {
    let view = tree.view().unwrap();
    let nodes = nodes_of(&view);
    let first = view.first_revision().unwrap();
    let (mut made, mut last) = (nodes_of(&view.at_revision(first).unwrap()), first);
    for event in events(tree, first) {
        assert!(
            event.revision == last || event.revision == last + 1,
            "revision {} after {last}",
            event.revision
        );
        last = event.revision;
        let old = match event.node {
            Some(node) => made.insert(event.path, node),
            None => made.remove(&event.path),
        };
        assert_eq!(old, event.old);
    }
    assert_eq!(made, nodes);
    assert_eq!(last, view.revision());
    let mut children: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for path in nodes.keys() {
        let mut path = &path[..];
        while let Some(at) = path.iter().rposition(|byte| *byte == b'/') {
            children
                .entry(path[..at].to_vec())
                .or_default()
                .insert(path[at + 1..].to_vec());
            path = &path[..at];
        }
    }
    for (parent, names) in &children {
        let listed = view.children(parent, None, usize::MAX).unwrap();
        let listed: BTreeSet<_> = listed.into_iter().map(|child| child.name).collect();
        assert_eq!(&listed, names);
        assert_eq!(view.child_count(parent).unwrap().count, names.len() as u64);
    }
    nodes.into_keys().collect()
}

#[test]
fn what_is_acknowledged_survives_whichever_call_of_the_device_fails() {
    let given = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = given.unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    let mut failures = 0;
    for seed in first..first + if given.is_some() { 1 } else { 80 } {
        println!("DURAMEN_SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let (store, tree) = open(&disk);
        // Paths that are there for sure, and those of which it is not known.
        let (mut stored, mut open_outcome) = (BTreeSet::new(), BTreeSet::new());
        let kind = if rng.bool() { FailKind::Io } else { FailKind::NoSpace };
        let span = if rng.bool() { FailSpan::Once } else { FailSpan::Forever };
        disk.fail(rng.u64(1..25), kind, span);
        for step in 0..60 {
            let path = format!("a/{}/{}", rng.u8(0..3), rng.u8(0..6)).into_bytes();
            let payload = vec![step; if rng.u8(..) < 30 { 70_000 } else { rng.usize(0..300) }];
            let is_put = rng.u8(..) < 150;
            let done = match (is_put, rng.u8(0..4)) {
                (true, 0) => tree
                    .grant_lease(Duration::from_secs(60))
                    .and_then(|lease| {
                        tree.transact(|tree| tree.put_with(&path, &payload, LeaseChange::Attach(lease.id)))
                    })
                    .map(drop),
                (true, _) => tree.put(&path, &payload).map(drop),
                (false, 0) => tree.purge(&path).map(drop),
                (false, 1) => tree.delete_subtree(&path).map(drop),
                (false, _) => tree.delete(&path).map(drop),
            };
            if rng.u8(..) < 20 {
                // What fails here may be done in part, and is no change of a node.
                let _ = tree.revision().and_then(|revision| tree.compact(rng.u64(1..=revision)));
            }
            match done {
                Ok(()) => {
                    open_outcome.remove(&path);
                    if is_put {
                        stored.insert(path);
                    } else {
                        stored.remove(&path);
                    }
                }
                Err(error) => {
                    failures += 1;
                    assert_ne!(error.kind(), Kind::FixTheCall, "seed {seed}: {error}");
                    stored.remove(&path);
                    open_outcome.insert(path);
                }
            }
            if rng.u8(..) < 20 {
                // Folding may meet the failure, and is tried again later.
                let _ = store.maintain();
            }
        }
        let killed = disk.kill();
        drop((tree, store));
        let (_store, tree) = open(&killed);
        let found = check(&tree);
        assert!(found.is_superset(&stored), "seed {seed}: {stored:?} in {found:?}");
        assert!(
            found
                .iter()
                .all(|path| stored.contains(path) || open_outcome.contains(path)),
            "seed {seed}"
        );
    }
    assert!(given.is_some() || failures > 0, "no call failed");
}

#[test]
fn a_power_cut_leaves_a_tree_whose_rows_fit_together() {
    let first = fastrand::u64(..u64::MAX / 2);
    for seed in first..first + 60 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let (store, tree) = open(&disk);
        let mut synced = BTreeSet::new();
        for step in 0..80 {
            let path = format!("a/{}/{}", rng.u8(0..3), step).into_bytes();
            tree.put(&path, [step]).unwrap();
            match rng.u8(0..12) {
                0 => {
                    store.sync().unwrap();
                    synced = check(&tree);
                }
                1 => {
                    let gone = format!("a/{}", rng.u8(0..3));
                    tree.delete_subtree(&gone).unwrap();
                    store.sync().unwrap();
                    synced = check(&tree);
                }
                2 => store.maintain().unwrap(),
                _ => {}
            }
        }
        let cut = disk.power_cut(seed);
        drop((tree, store));
        let (_store, tree) = open(&cut);
        assert!(check(&tree).is_superset(&synced), "seed {seed}");
    }
}

#[test]
fn a_full_store_refuses_nodes_and_deletes_them() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().quota_bytes(4 << 20).durability(Durability::Written);
    let store = options.open(directory.path()).unwrap();
    let tree = tree_of(&store);
    let mut number = 0;
    let full = loop {
        match tree.put(format!("a/{number:04}"), [7; 20_000]) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 10_000, "the quota was never reached");
    };
    assert_eq!(full.kind(), Kind::MakeSpace, "{full}");
    assert_eq!(check(&tree).len(), number);
    // What is deleted would be kept for earlier revisions, and there is no room for that.
    let mut watch = tree.watch(WatchOptions::all()).unwrap();
    let refused = (0..number).find_map(|number| tree.delete(format!("a/{number:04}")).err());
    assert_eq!(refused.unwrap().kind(), Kind::MakeSpace);
    // Forgetting them with their history makes room.
    let left = check(&tree);
    for path in &left {
        let shown = String::from_utf8_lossy(path).into_owned();
        let purged = tree.purge(path).unwrap_or_else(|error| panic!("{shown}: {error}"));
        assert_eq!(purged, 1);
    }
    let behind = watch.next(Duration::ZERO).unwrap_err();
    assert!(
        matches!(TreeError::of(&behind), Some(TreeError::Compacted { .. })),
        "{behind}"
    );
    let view = tree.view().unwrap();
    assert_eq!(view.first_revision().unwrap(), view.revision());
    assert_eq!(view.child_count("a").unwrap().count, 0);
    store.maintain().unwrap();
    tree.put("a/0000", [7; 20_000]).unwrap();
    assert_eq!(tree.purge("a").unwrap(), 1);
    assert_eq!(tree.purge("a").unwrap(), 0);
}

/// Fills a store with earlier payloads of one node until not even an empty node finds room.
fn filled_with_history(directory: &std::path::Path) -> (Store, Tree) {
    let options = Options::new().quota_bytes(4 << 20).durability(Durability::Written);
    let store = options.open(directory).unwrap();
    let tree = tree_of(&store);
    for bytes in [20_000, 1_000, 50, 0] {
        let mut puts = 0;
        while tree.put("a/history", vec![7; bytes]).is_ok() {
            puts += 1;
            assert!(puts < 100_000, "the quota was never reached");
        }
    }
    (store, tree)
}

#[test]
fn a_store_that_is_full_of_earlier_revisions_is_compacted() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, tree) = filled_with_history(directory.path());
    let revision = tree.revision().unwrap();
    let refused = tree.transact(|tree| tree.compact(revision)).unwrap_err();
    assert_eq!(
        refused.kind(),
        Kind::MakeSpace,
        "nothing can say so in the state: {refused}"
    );
    tree.compact(revision).unwrap();
    assert_eq!(tree.view().unwrap().first_revision().unwrap(), revision);
    check(&tree);
    tree.put("a/history", [7; 20_000]).unwrap();
    check(&tree);
}

#[test]
fn a_store_that_is_full_of_earlier_revisions_is_purged() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, tree) = filled_with_history(directory.path());
    let refused = tree.transact(|tree| tree.purge("a/history")).unwrap_err();
    assert_eq!(refused.kind(), Kind::MakeSpace, "{refused}");
    assert_eq!(tree.purge("a").unwrap(), 1);
    assert!(check(&tree).is_empty());
    tree.put("a/history", [7; 20_000]).unwrap();
}
