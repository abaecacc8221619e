//! The interface that the lab requires of a tree of paths.
//!
//! A tree is a [`Driver`](crate::peer::Driver) that opens as one. Each has one adapter in `trees/`. A path is names that
//! are joined by `/`; all paths of the lab consist of lowercase letters, digits and `/`, which every peer allows. An
//! embedded tree is called by threads. A server has connections, and each keeps a number of requests in flight.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::answer::Answer;
use crate::answer::{Found, Unsupported};
use crate::data::key_text;

const NOT_ETCD: Unsupported = Unsupported("does not speak etcd's protocol");

/// An open tree.
pub enum Tree {
    /// In the lab's process: a call returns when it is done.
    Embedded(Box<dyn EmbeddedTree>),
    /// Behind connections.
    Served(Box<dyn ServedTree>),
}

impl Tree {
    /// Returns what an embedded tree of Duramen does besides.
    pub fn full(&self) -> Result<&dyn FullTree> {
        match self {
            Tree::Embedded(tree) => tree.full(),
            Tree::Served(_) => bail!(Unsupported("takes part in `tree-ramp` and `etcd-bench` only")),
        }
    }

    /// Returns where a tree speaks etcd's protocol.
    pub fn etcd_url(&self) -> Result<&str> {
        match self {
            Tree::Embedded(_) => bail!(NOT_ETCD),
            Tree::Served(tree) => tree.etcd_url(),
        }
    }

    /// Closes the tree.
    pub fn close(self) -> Result<()> {
        match self {
            Tree::Embedded(tree) => tree.close(),
            Tree::Served(tree) => tree.close(),
        }
    }
}

/// A tree in the lab's process. Many threads may make any call at once.
pub trait EmbeddedTree: Send + Sync {
    /// Creates a node in its own commit. Returns false when there is one: nothing changed. The class defines what the
    /// acknowledgement means.
    fn create(&self, path: &[u8], payload: &[u8]) -> Result<bool>;
    /// Reads the payload of a node.
    fn get(&self, path: &[u8], found: &mut Found) -> Result<()>;
    /// Deletes a node in its own commit. Returns false when there is none.
    fn delete(&self, path: &[u8]) -> Result<bool>;
    /// Returns what it does besides.
    fn full(&self) -> Result<&dyn FullTree> {
        bail!(Unsupported("has no children, earlier revisions or watches"))
    }
    /// Closes the tree.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A tree with children, earlier revisions and watches.
pub trait FullTree: EmbeddedTree {
    /// Stores nodes in one commit.
    fn put_all(&self, nodes: &mut dyn Iterator<Item = (Vec<u8>, &[u8])>) -> Result<()>;
    /// Stores a node in its own commit.
    fn put(&self, path: &[u8], payload: &[u8]) -> Result<()>;
    /// Counts the children of a node.
    fn count_children(&self, path: &[u8]) -> Result<u64>;
    /// Lists the names of children after a name, in their order, with the payloads of their nodes.
    fn children(&self, path: &[u8], after: &[u8], limit: usize, seen: &mut NodeSeen) -> Result<()>;
    /// Deletes a node and everything below it in one commit. Returns the number of nodes.
    fn delete_subtree(&self, path: &[u8]) -> Result<u64>;
    /// Returns the newest revision.
    fn revision(&self) -> Result<u64>;
    /// Reads the payloads of nodes as a revision had them.
    fn get_at(&self, revision: u64, paths: &mut dyn Iterator<Item = Vec<u8>>, seen: &mut NodeFound) -> Result<()>;
    /// Forgets what only revisions before this one have.
    fn compact(&self, revision: u64) -> Result<()>;
    /// Watches paths, or everything below each of them, from the next change on. Watches are numbered from 0 on.
    fn watch(&self, paths: &mut dyn Iterator<Item = Vec<u8>>, is_below: bool) -> Result<Box<dyn Watches>>;
}

/// What is called for each child: its name and payload.
pub type NodeSeen<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;
/// What is called for each node: its path and payload, if it is there.
pub type NodeFound<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Result<()> + 'a;

/// A change that a watch has seen.
pub struct Change<'a> {
    /// The number of the watch.
    pub watch: usize,
    /// The path.
    pub path: &'a [u8],
    /// The payload afterwards; `None`: the node is gone.
    pub payload: Option<&'a [u8]>,
    /// The payload before; `None`: there was no node.
    pub old: Option<&'a [u8]>,
}

/// Watches of a tree.
pub trait Watches: Send {
    /// Waits for changes for a time at most, and shows them.
    fn next(&mut self, timeout: Duration, seen: &mut dyn FnMut(Change) -> Result<()>) -> Result<()>;
}

/// A tree behind connections.
pub trait ServedTree: Send + Sync {
    /// Opens a connection, which belongs to the runtime of the caller.
    fn connect(&self) -> Answer<'_, Box<dyn TreeConnection + '_>>;
    /// Returns where it speaks etcd's protocol.
    fn etcd_url(&self) -> Result<&str> {
        bail!(NOT_ETCD)
    }
    /// Stops the server.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A connection to a tree. Requests are copied before their answers are awaited.
pub trait TreeConnection {
    /// As [`EmbeddedTree::create`].
    fn create(&self, path: &[u8], payload: &[u8]) -> Answer<'_, bool>;
    /// Reads the payload of a node.
    fn get(&self, path: &[u8]) -> Answer<'_, Option<Vec<u8>>>;
    /// As [`EmbeddedTree::delete`]. A peer that does not tell whether there was a node returns true.
    fn delete(&self, path: &[u8]) -> Answer<'_, bool>;
}

/// Fails unless a node was created.
pub fn created(path: &[u8], is_new: bool) -> Result<()> {
    match is_new {
        true => Ok(()),
        false => bail!("key {} could not be created: it is there", key_text(path)),
    }
}

/// Fails unless a node was deleted.
pub fn deleted(path: &[u8], was_there: bool) -> Result<()> {
    match was_there {
        true => Ok(()),
        false => bail!(
            "key {} was created and acknowledged, and could not be deleted: it is not there",
            key_text(path)
        ),
    }
}
