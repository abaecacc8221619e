//! The interface that the lab requires of a tree of paths.
//!
//! A tree is a [`Driver`](crate::peer::Driver) that opens as one. Each has one adapter in `trees/`. A path is names that
//! are joined by `/`; all paths of the lab consist of lowercase letters, digits and `/`, which every peer allows. An
//! embedded tree is called by threads. A server has connections, and each keeps a number of requests in flight.

use anyhow::{Result, bail};

use crate::connection::Answer;
use crate::data::key_text;
use crate::peer::Found;

/// An open tree.
pub enum Tree {
    /// In the lab's process: a call returns when it is done.
    Embedded(Box<dyn EmbeddedTree>),
    /// Behind connections.
    Served(Box<dyn ServedTree>),
}

impl Tree {
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
    /// Closes the tree.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A tree behind connections.
pub trait ServedTree: Send + Sync {
    /// Opens a connection, which belongs to the runtime of the caller.
    fn connect(&self) -> Answer<'_, Box<dyn TreeConnection + '_>>;
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
