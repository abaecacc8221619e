//! The connections that belong to the runtime of their caller.

use anyhow::{Result, bail};
use duramen_client::{Map, Publisher, Topic};

use super::copied;
use crate::answer::Answer;
use crate::answer::Unsupported;
use crate::connection::Connection;

/// A connection whose requests are calls.
pub struct Calls {
    pub topics: Vec<Topic>,
    /// The map of the pairs, when the server and the class have one.
    pub pairs: Option<Map>,
}

impl Calls {
    fn pairs(&self) -> Result<&Map> {
        match &self.pairs {
            Some(pairs) => Ok(pairs),
            None => bail!(Unsupported("stores no pairs in this class")),
        }
    }
}

impl Connection for Calls {
    fn publish(&self, topic: usize, payload: &[u8]) -> Answer<'_> {
        let payload = copied(payload);
        Box::pin(async move {
            self.topics[topic].publish(payload).await?;
            Ok(())
        })
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Answer<'_> {
        let batch: Vec<_> = payloads.iter().copied().map(copied).collect();
        Box::pin(async move {
            self.topics[topic].publish_batch(batch).await?;
            Ok(())
        })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Answer<'_> {
        let (key, value) = (copied(key), copied(value));
        Box::pin(async move { Ok(self.pairs()?.put(key, value).await?) })
    }

    fn get(&self, key: &[u8]) -> Answer<'_, Option<Vec<u8>>> {
        let key = copied(key);
        Box::pin(async move { Ok(self.pairs()?.get(key).await?.map(Into::into)) })
    }
}

/// A connection that publishes all its messages in one stream.
pub struct Stream(pub Publisher);

impl Connection for Stream {
    fn publish(&self, _topic: usize, payload: &[u8]) -> Answer<'_> {
        let payload = copied(payload);
        Box::pin(async move {
            self.0.send(payload).await?.await?;
            Ok(())
        })
    }
}
