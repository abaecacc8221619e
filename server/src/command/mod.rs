//! The one way in: every request that writes becomes a command, and [`Applier::apply`] alone changes the store.
//!
//! Commands are applied in entries. An entry carries its time, and its effect depends on nothing but its content and
//! the store. So equal entries make equal stores, which is what replication needs: it changes where entries come from,
//! and nothing else.

mod applier;
mod apply;
mod etcd;
mod groups;
mod idempotency;
mod kept;
mod options;
mod sessions;
mod stopped;
mod token;
mod trees;

pub use applier::Applier;
pub(crate) use applier::map_not_found;
pub use apply::Applied;
pub(crate) use etcd::*;
pub(crate) use groups::start_of;
pub(crate) use kept::{Kept, keeps_none, oldest};
pub(crate) use options::{to_group_options, to_topic_options};
pub use sessions::SESSION_BYTES;
pub(crate) use sessions::{HeldLeases, LeftLeases, Sessions};
pub(crate) use token::TOKENS;
pub(crate) use trees::{to_kind, to_lease, to_node, to_pattern, tree_not_found};

/// The reserved maps of servers.
pub(crate) const MAPS: [&str; 4] = [applier::IDEMPOTENCY, sessions::NAME, TOKENS, kept::CHANGES];

/// The most handles that are kept of maps, and of topics.
const HANDLES_MAX: usize = 10_000;

/// The version of entries that this server writes. It refuses all others.
pub const ENTRY_VERSION: u32 = 1;
