//! Serves the maps and topics of a Duramen store over gRPC.
//!
//! Programs start it as `duramen serve`; this library is for those who put a server into a program of their own. The
//! services are in the crate `duramen-proto`.
//!
//! ```text
//! serve       listeners, threads, the end
//! services    one file per gRPC service: requests into commands, reads from snapshots
//! etcd        the services of etcd, over one tree
//! session     remote members of groups, and the sessions that their leases belong to
//! registry    what the server remembers of its clients, in memory
//! pipeline    queued commands into commits, and their answers
//! measure     counts and logs of calls, without locks
//! metrics     all counts as text, for Prometheus
//! security    TLS, tokens, permissions
//! tokens      creates, lists and revokes tokens, without a server
//! command     apply(entry): the only way in which a server changes its store
//! ```

mod command;
mod security;

mod config;
mod connection;
mod error;
mod etcd;
mod level;
mod limit_layer;
mod measure;
mod metrics;
mod pages;
mod pipeline;
mod refusal;
mod registry;
mod restoring;
mod room;
mod serve;
mod serve_error;
mod services;
mod session;
mod signals;
mod sockets;
mod spinning;
mod state;
mod tokens;

pub use command::{Applied, Applier, ENTRY_VERSION, SESSION_BYTES};
pub use config::{
    Config, ConfigError, EtcdConfig, EtcdRetention, LogFormat, Origin, SETTINGS, Setting, flag, variable,
};
pub use etcd::{ETCD_VERSION, EtcdImport, EtcdLease, EtcdSnapshot, EtcdSnapshotError};
pub use level::Level;
pub use metrics::{FAMILIES, Family, FamilyKind};
pub use pipeline::{Answer, Limits, Pipeline};
pub use restoring::restore;
pub use security::{NoPermission, Permission, TlsError, TlsFiles};
pub use serve::{Listening, MESSAGE_BYTES_MAX, Running, start};
pub use serve_error::ServeError;
pub use signals::{Signals, notify};
pub use tokens::{CreatedToken, ListedToken, NewToken, TokenError, create_token, list_tokens, revoke_token};
