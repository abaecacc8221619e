//! Remote members of groups, and the sessions that their leases belong to.
//!
//! ```text
//! member     leases messages of one group, and waits for them
//! registry   which sessions there are, which have a stream, and when the others end
//! lost       leases that a stream made and its client never got: a later stream releases them
//! stream     one bidirectional stream: requests of the client, subscriptions, answers
//! ```

mod lost;
mod member;
mod registry;
mod stream;

pub(crate) use member::{Holder, RemoteMember, Rooms};
pub(crate) use registry::{Registry, end_expired};
pub(crate) use stream::{extend_lease, serve, settle_all};
