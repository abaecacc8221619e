//! How a server answers etcd's clients.

use std::net::SocketAddr;
use std::time::Duration;

/// What the transport of etcd accepts beyond the largest request.
const TRANSPORT_BYTES: usize = 512 << 10;

/// What a server keeps of earlier revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdRetention {
    /// All of them, until a client compacts.
    All,
    /// Those of the last time. A server that was started knows none older than itself.
    Time(Duration),
    /// The newest ones, so many.
    Revisions(u64),
}

/// How a server answers etcd's clients.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// Addresses on which it listens for them.
    pub listen: Vec<SocketAddr>,
    /// The tree that they see. It is created when it is missing.
    pub tree: String,
    /// The name of the member.
    pub name: String,
    /// Where clients reach the member; empty: where it listens.
    pub client_urls: Vec<String>,
    /// Where other members would reach it.
    pub peer_urls: Vec<String>,
    /// The most operations of a transaction.
    pub operations_max: usize,
    /// The largest request, in bytes.
    pub request_bytes_max: usize,
    /// How often a watch that asked for it is told how far it has come.
    pub progress_every: Duration,
    /// Bytes of the store from which on writes are refused; 0: no limit but the device's.
    pub quota_bytes: u64,
    /// Which earlier revisions are kept.
    pub retention: EtcdRetention,
}

impl Default for EtcdConfig {
    fn default() -> EtcdConfig {
        EtcdConfig {
            listen: Vec::new(),
            tree: "etcd".into(),
            name: "default".into(),
            client_urls: Vec::new(),
            peer_urls: Vec::new(),
            operations_max: 128,
            request_bytes_max: 3 << 19,
            progress_every: Duration::from_secs(600),
            quota_bytes: 0,
            retention: EtcdRetention::All,
        }
    }
}

impl EtcdConfig {
    /// The largest message that the transport takes.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.request_bytes_max + TRANSPORT_BYTES
    }
}
