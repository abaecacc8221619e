//! What the lab asks of a store. Each store has one adapter in `peers/`, which is all that knows its interface.
//!
//! The interface is as narrow as the workloads need and is the same for everybody: bytes in, bytes out, the reader's
//! callback sees borrowed bytes, so nobody is made to copy. Every call goes through one virtual call; the `null` peer
//! shows what that and the verification cost.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::data::{Key, Value};

/// What an acknowledged write survives. Results of different classes are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Power loss: a sync ends before the write is acknowledged.
    Synced,
    /// The death of the process, by `kill -9` too: the bytes are in the kernel's pages of a file.
    Written,
    /// Nothing is promised.
    None,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Synced => "synced",
            Class::Written => "written",
            Class::None => "none",
        })
    }
}

/// What a reader of results must know about a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// The name on the command line.
    pub name: String,
    /// Version of the store and of what it is reached through.
    pub version: String,
    /// The classes it can run in, each with how.
    pub classes: Vec<(Class, String)>,
    /// Every option that is not the default, with the reason.
    pub options: Vec<String>,
    /// Whether its data is there after a close and open.
    pub is_persistent: bool,
}

impl Description {
    /// Whether the peer can run in `class`.
    pub fn has(&self, class: Class) -> bool {
        self.classes.iter().any(|(own, _)| *own == class)
    }
}

/// A peer that can be opened.
pub trait Driver: Sync {
    /// What it is.
    fn describe(&self) -> Description;
    /// Opens the store in `directory`, which exists; makes the store when there is none. `class` is one of those
    /// described.
    fn open(&self, directory: &Path, class: Class) -> Result<Box<dyn Peer>>;
}

/// Takes what a read found: the key that was asked for and the value, if there is one.
pub type Found<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Result<()> + 'a;
/// Takes one pair of a scan.
pub type Pair<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// An open store. All calls may come from many threads at once.
pub trait Peer: Send + Sync {
    /// Stores one pair in a commit of its own, acknowledged as the class says.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Stores pairs in one commit; `keys` and `values` are equally long.
    fn put_batch(&self, keys: &[Key], values: &[Value]) -> Result<()>;
    /// Reads every key, in this order, in one snapshot.
    fn get_many(&self, keys: &[Key], found: &mut Found) -> Result<()>;
    /// Reads every pair in key order, in one snapshot.
    fn scan(&self, pair: &mut Pair) -> Result<()>;
    /// Returns when everything acknowledged so far survives power loss.
    fn sync(&self) -> Result<()>;
    /// Closes the store in an orderly way and releases its files.
    fn close(self: Box<Self>) -> Result<()>;
}

/// The error of a peer that cannot do what it is asked. It becomes `n/a` in the report and fails nothing.
#[derive(Debug)]
pub struct Unsupported(pub &'static str);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unsupported {}
