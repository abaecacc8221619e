//! How durable a change is when its request is answered.

use duramen_proto::v1::Acknowledge;
use tonic::Status;

use crate::error::invalid;

/// What a commit has to survive before a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Nothing: the request is in the queue.
    Memory,
    /// The end of the server's process.
    Written,
    /// A power cut.
    Synced,
}

impl Level {
    /// The level that a request asks for.
    pub fn of(asked: i32, default: Level) -> Result<Level, Status> {
        Ok(match Acknowledge::try_from(asked) {
            Ok(Acknowledge::Unspecified) => default,
            Ok(Acknowledge::Memory) => Level::Memory,
            Ok(Acknowledge::Written) => Level::Written,
            Ok(Acknowledge::Synced) => Level::Synced,
            Err(_) => {
                let message = format!("acknowledge has the unknown value {asked}; use MEMORY, WRITTEN or SYNCED");
                return Err(invalid(message));
            }
        })
    }
}
