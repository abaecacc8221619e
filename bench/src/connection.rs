//! Requests over a connection to a broker, which do not wait for each other.
//!
//! A workload opens each connection in a thread of its own and keeps a number of requests in flight on it. The thread
//! runs the whole client side of the connection, so a request wakes no other thread of the client.

use anyhow::bail;

use crate::answer::{Answer, Unsupported};

/// How a connection sends messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each request is a call.
    Calls,
    /// One stream takes all messages, which go to this topic.
    Stream(usize),
}

/// A connection to a broker. Requests are copied before their answers are awaited.
pub trait Connection {
    /// Publishes one message by itself. The class defines what the acknowledgement means.
    fn publish(&self, topic: usize, payload: &[u8]) -> Answer<'_>;
    /// Publishes several messages in one request.
    fn publish_many(&self, _topic: usize, _payloads: &[&[u8]]) -> Answer<'_> {
        Box::pin(async { bail!(Unsupported("sends each message by itself")) })
    }
    /// Stores a pair.
    fn put(&self, _key: &[u8], _value: &[u8]) -> Answer<'_> {
        Box::pin(async { bail!(Unsupported("stores no pairs")) })
    }
    /// Reads a pair.
    fn get(&self, _key: &[u8]) -> Answer<'_, Option<Vec<u8>>> {
        Box::pin(async { bail!(Unsupported("stores no pairs")) })
    }
}
