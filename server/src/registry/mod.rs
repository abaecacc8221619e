//! What a server remembers of its clients. It is in memory, and begins again with each server.
//!
//! ```text
//! sessions   which sessions there are, which have a stream, and when the others end
//! rooms      members of groups that wait until messages are settled
//! watches    watches of trees
//! backups    the export that runs
//! ```

mod backups;
mod rooms;
mod sessions;
mod watches;

pub(crate) use backups::Backups;
pub(crate) use rooms::Rooms;
pub(crate) use sessions::{Attached, SessionRegistry};
pub(crate) use watches::{Stream, Watchers};
