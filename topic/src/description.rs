//! State and options of a topic.

use std::time::SystemTime;

use duramen_engine::Result;

use crate::handle::Topic;
use crate::message::Stored;
use crate::read::Reading;
use crate::record::TopicOptions;
use crate::time::at;

/// State and options of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicDescription {
    /// Name of the topic.
    pub name: String,
    /// Time when the topic was created.
    pub created: SystemTime,
    /// Options of the topic.
    pub options: TopicOptions,
    /// Offset of the first message that is kept; `next` when no message is kept.
    pub first: u64,
    /// Offset of the next message.
    pub next: u64,
    /// Bytes of the messages that are kept, as [`TopicOptions::keep_bytes`] counts them. Messages that are missing
    /// between them count.
    pub bytes: u64,
    /// Time when the newest message was published.
    pub newest: Option<SystemTime>,
}

impl TopicDescription {
    /// Number of kept messages. Missing messages between them count too. They occur in a topic that removes single
    /// messages (see [`TopicOptions::message_expiry`]), or that was salvaged from a damaged store, or put back to a checkpoint.
    pub fn messages(&self) -> u64 {
        self.next - self.first
    }
}

impl Topic {
    /// Returns the state and the options of the topic.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`].
    pub fn describe(&self) -> Result<TopicDescription> {
        let snapshot = self.snapshot()?;
        let reading = Reading::new(self, &snapshot);
        let bounds = reading.bounds()?;
        let record = self.home().record(&snapshot, &self.shared().name)?;
        let state = bounds.state;
        let bytes = match bounds.first < state.next {
            true => state.bytes - Stored::decode(&reading.head(bounds.first)?)?.position,
            false => 0,
        };
        Ok(TopicDescription {
            name: self.name().into(),
            created: at(record.created),
            options: record.options,
            first: bounds.first,
            next: state.next,
            bytes,
            newest: (state.next > 0).then(|| at(state.time)),
        })
    }
}
