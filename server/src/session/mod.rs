//! Remote members of groups, and the sessions that their leases belong to.
//!
//! ```text
//! member     leases messages of one group, and waits for them
//! life       sessions begin, and end when their time is over
//! lost       leases that a stream made and its client never got: a later stream releases them
//! stream     one bidirectional stream: requests of the client, subscriptions, answers
//! ```

mod life;
mod lost;
mod member;
mod stream;

pub(crate) use life::end_expired;
pub(crate) use member::{Holder, RemoteMember};
pub(crate) use stream::{extend_lease, serve, settle_all};
