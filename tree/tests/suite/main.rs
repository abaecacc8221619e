//! What trees do, part by part. `model.rs` compares random changes with a plain map.

mod calls;
mod damage;
mod failures;
mod keep;
mod leases;
mod model;
mod patterns;
mod rules;
mod transactions;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use duramen_engine::{Durability, Maintenance, Options, Reason, Store, Transaction, TransactionOptions};
use duramen_io::SimDisk;
use duramen_topic::{Start, TopicOptions, Topics};
use duramen_tree::{
    ChangeKind, Compare, Condition, Event, LeaseChange, Node, Pattern, Projection, Quota, Selection, Tree, TreeError,
    Trees, TreesOptions, Trigger, WatchOptions, Watched,
};

type Nodes = BTreeMap<Vec<u8>, Node>;

/// A store on a simulated disk, with a tree and without a background thread.
fn open(disk: &SimDisk) -> (Store, Trees, Tree) {
    let store = Options::new().open_on(disk.platform()).unwrap();
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    let tree = trees.ensure("tree").unwrap();
    (store, trees, tree)
}

fn pattern(text: &str) -> Pattern {
    text.parse().unwrap()
}

/// Stores a node that is kept while a condition on another path holds.
fn keep(tree: &Tree, path: &str, watched: &str, condition: Condition) {
    tree.transact(|tree| tree.put_keeping(path, "kept", LeaseChange::Detach, &[(watched.as_bytes(), condition)]))
        .unwrap();
}

/// The nodes of a tree at a revision.
fn nodes_at(tree: &Tree, revision: u64) -> Nodes {
    let mut nodes = Nodes::new();
    let view = tree.view_at(revision).unwrap();
    view.range(b"", None, |path, node| {
        assert_eq!(view.get(path).unwrap().as_ref(), Some(&node));
        nodes.insert(path.to_vec(), node);
        Ok(true)
    })
    .unwrap();
    nodes
}
