//! Requests over a connection to a broker, which do not wait for each other.
//!
//! A workload opens each connection in a thread of its own and keeps a number of requests in flight on it. The thread
//! runs the whole client side of the connection, so a request wakes no other thread of the client.

use std::future::ready;
use std::pin::Pin;

use anyhow::{Result, bail};

use crate::broker::Broker;
use crate::peer::Unsupported;

/// The answer to a request.
pub type Answer<'a, T = ()> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

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

/// Opens a connection. Where `in_flight` is 1, the calls of a broker without connections take their place.
pub async fn connect<'b>(broker: &'b dyn Broker, way: Way, in_flight: usize) -> Result<Box<dyn Connection + 'b>> {
    match broker.connect(way).await {
        Err(error) if error.is::<Unsupported>() && way == Way::Calls && in_flight == 1 => Ok(Box::new(Direct(broker))),
        opened => opened,
    }
}

/// A broker whose calls return when they are done.
struct Direct<'b>(&'b dyn Broker);

impl Connection for Direct<'_> {
    fn publish(&self, topic: usize, payload: &[u8]) -> Answer<'_> {
        Box::pin(ready(self.0.publish(topic, payload)))
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Answer<'_> {
        Box::pin(ready(self.0.publish_many(topic, payloads)))
    }
}
