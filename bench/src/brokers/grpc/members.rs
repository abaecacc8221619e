//! Members of a group on the server, each with a session of its own.

use std::time::Duration;

use anyhow::Result;
use duramen_client::{Deliveries, Group, Member as Remote, MemberOptions};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::broker::{Acknowledge, Member};

pub(super) const GROUP: &str = "group";
/// How long one call waits for messages.
const WAIT: Duration = Duration::from_millis(20);

/// A member that joins with its first call.
pub(super) struct Sharing<'r> {
    runtime: &'r Runtime,
    group: Group,
    joined: Option<Remote>,
}

impl Sharing<'_> {
    pub(super) fn new(runtime: &Runtime, group: Group) -> Sharing<'_> {
        Sharing {
            runtime,
            group,
            joined: None,
        }
    }

    /// Returns the next messages, or nothing when none arrived for a while.
    fn next(&mut self, most: usize) -> Result<Option<Deliveries>> {
        self.runtime.block_on(async {
            let joined = match &mut self.joined {
                Some(joined) => joined,
                None => {
                    // The server sends the next messages while the member works on these.
                    let options = MemberOptions::new().batch(most as u32).ahead(2 * most as u64);
                    self.joined.insert(self.group.join_with("lab", options).await?)
                }
            };
            match timeout(WAIT, joined.receive()).await {
                Ok(received) => Ok(received.transpose()?),
                Err(_) => Ok(None),
            }
        })
    }
}

impl Member for Sharing<'_> {
    fn receive(
        &mut self,
        most: usize,
        acknowledge: Acknowledge,
        work: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<u64> {
        let Some(deliveries) = self.next(most)? else {
            return Ok(0);
        };
        for delivery in deliveries.messages() {
            let message = &delivery.message;
            work(message.offset, &message.payload)?;
            if acknowledge == Acknowledge::Each {
                self.runtime.block_on(deliveries.acknowledge_one(message.offset))?;
            }
        }
        if acknowledge == Acknowledge::Together {
            self.runtime.block_on(deliveries.acknowledge())?;
        }
        Ok(deliveries.messages().len() as u64)
    }
}

impl Drop for Sharing<'_> {
    fn drop(&mut self) {
        // The session of a member that is dropped ends by a task.
        let _entered = self.runtime.enter();
        self.joined = None;
    }
}
