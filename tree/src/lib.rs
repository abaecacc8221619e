//! Trees of paths with revisions, conditions, watches and leases, in the transactions of a Duramen store.
//!
//! Programs use it through the `duramen` crate. The data model is that of etcd: each transaction that changes a tree has a
//! revision, each node knows the revisions that created and changed it and how often it was stored, and earlier revisions can be
//! read and watched until they are compacted. Above it are the commands of Khepri: conditions, patterns, subtrees. All of it is
//! pairs in the engine's one ordered map, so one commit covers trees, maps and topics. `docs/internals/trees.md` explains how it
//! works.
//!
//! Modules are declared bottom first, and each imports only from those above it; `duramen/tests/suite/layers.rs` checks that.

mod limits;

mod error;
mod turns;
mod worker;

mod path;

mod pattern;
mod tables;

mod selection;

mod node;
mod state;

mod read;

mod rules;

mod shared;

mod condition;

mod writes;

mod commit;
mod lease;
mod view;

mod compaction;
mod definitions;
mod watches;

mod watch;

mod tree;

mod trees;

mod salvage;

mod restoring;

pub use commit::{Committed, Done, Operation, TreeCommit};
pub use condition::{Compare, Condition};
pub use error::TreeError;
pub use lease::Lease;
pub use limits::{
    CONDITION_DEPTH_MAX, PATH_BYTES_MAX, PATTERN_BYTES_MAX, PATTERN_NAMES_MAX, PAYLOAD_BYTES_MAX, TREE_NAME_BYTES_MAX,
};
pub use node::{ChangeKind, Children, Node};
pub use pattern::Pattern;
pub use restoring::{MAPS, keep_revisions};
pub use rules::{Projection, Quota, QuotaUse, Trigger};
pub use salvage::{SavedTrees, salvage};
pub use selection::Selection;
pub use tree::Tree;
pub use trees::{Trees, TreesOptions};
pub use view::{Child, Nodes, Page, TreeView};
pub use watch::TreeWatch;
pub use watches::{Event, TreeWatches, WatchOptions, Watched};
pub use writes::{LeaseChange, PausedWrites, TreeWrites};
