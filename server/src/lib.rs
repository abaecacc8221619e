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
mod measure;
mod metrics;
mod pages;
mod pipeline;
mod restoring;
mod room;
mod serve;
mod services;
mod session;
mod signals;
mod sockets;
mod state;
mod tokens;

pub use command::{Applied, Applier, ENTRY_VERSION, SESSION_BYTES};
pub use config::{Config, ConfigError, LogFormat, Origin, SETTINGS, Setting, flag, variable};
pub use etcd::{ETCD_VERSION, EtcdConfig, EtcdImport, EtcdLease, EtcdRetention, EtcdSnapshot, EtcdSnapshotError};
pub use metrics::{FAMILIES, Family, FamilyKind};
pub use pipeline::{Answer, Level, Limits, Pipeline};
pub use restoring::restore;
pub use security::{NoPermission, Permission, TlsError, TlsFiles};
pub use serve::{Listening, MESSAGE_BYTES_MAX, Running, ServeError, start};
pub use signals::{Signals, notify};
pub use tokens::{CreatedToken, ListedToken, NewToken, TokenError, create_token, list_tokens, revoke_token};
