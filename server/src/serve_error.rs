//! Why a server did not start, or ended.

use std::io;
use std::path::PathBuf;

use crate::security::TlsError;

/// The error of starting a server, or of its end.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The store.
    #[error("the store in {directory}: {error}")]
    Store {
        /// Its directory.
        directory: PathBuf,
        /// What is wrong.
        error: duramen::Error,
    },
    /// Another process put the store back to a checkpoint while the server had it open.
    #[error("the store in {directory} was put back to a checkpoint, so this server ended; start it again")]
    Restored {
        /// Its directory.
        directory: PathBuf,
    },
    /// The data directory.
    #[error("the data directory {directory} cannot be made: {error}; name another one with --data-dir")]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What is wrong.
        error: io::Error,
    },
    /// A listener.
    #[error("cannot listen on {place}: {error}; {cure}")]
    Listen {
        /// Address or path.
        place: String,
        /// What is wrong.
        error: io::Error,
        /// What to do.
        cure: &'static str,
    },
    /// The files of TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The tree for clients of etcd.
    #[error("the tree {tree:?} for clients of etcd cannot be prepared: {cause}")]
    EtcdTree {
        /// The tree.
        tree: String,
        /// What is wrong.
        cause: String,
    },
    /// An import of the tree for clients of etcd has not finished.
    #[error(
        "the tree {tree:?} has a part of an etcd only, because an import has not finished; run `duramen etcd import` again"
    )]
    PartOfEtcd {
        /// The tree.
        tree: String,
    },
    /// The operating system.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
