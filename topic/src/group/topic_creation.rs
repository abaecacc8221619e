//! Creating a topic, with the groups that the rules of patterns give it.

use duramen_engine::{Result, Transaction};

use super::rule::apply_rules;
use crate::home::Home;
use crate::record::{TopicOptions, TopicRecord, millis};
use crate::registry::Event;
use crate::tables::next_id;

impl Home {
    /// Creates a topic that does not exist, and returns its number.
    pub(crate) fn create_in(&self, tx: &mut Transaction, name: &str, options: &TopicOptions) -> Result<u32> {
        let topics = &self.tables.topics;
        let (id, now) = (next_id(tx, topics)?, millis(tx.wall_clock()));
        let record = TopicRecord {
            id,
            created: now,
            options: options.clone(),
            is_sparse: options.is_sparse(),
        };
        tx.put(topics, name.as_bytes(), record.encode())?;
        tx.begin_sequence(&self.tables.sequence(id, name)?)?;
        apply_rules(tx, self, (name, id), now)?;
        self.register(tx, Event::Created, id, name)?;
        Ok(id)
    }
}
