//! Publishing a message with an id once within a window of time: see [`crate::ids`].

use duramen_engine::{Result, Transaction, TransactionOptions};

use crate::error::TopicError;
use crate::handle::Topic;
use crate::ids::{Known, is_duplicate_in, note_in, option_missing, window_in};
use crate::index::{self, ID};
use crate::limits::READ_MESSAGES;
use crate::message::{Message, Stored};
use crate::publish::{Outcome, Ticket};
use crate::read::Reading;

impl Topic {
    /// Publishes a message that has an id ([`Message::id`]), unless a message with this id was published within the
    /// window of the topic ([`TopicOptions::deduplicate_for`]). Then it is a duplicate, and nothing is published. It
    /// makes its own commit, with the durability of the handle. Of two concurrent attempts, also in several processes,
    /// one publishes.
    ///
    /// # Errors
    /// As [`Topic::publish`]; [`TopicError::InvalidMessage`] when the message has no id, [`TopicError::OptionMissing`]
    /// when the topic has no window.
    pub fn publish_by_id<'m>(&self, message: impl Into<Message<'m>>) -> Result<Outcome> {
        let message = message.into();
        let home = self.home();
        home.store.refuse_beside("topic.publish", self.name())?;
        let options = TransactionOptions::new().durability(self.durability());
        let ticket = home.store.transact_with(options, |tx| publish_in(tx, self, &message))?;
        match ticket.and_then(|ticket| ticket.published()) {
            Some(published) => Ok(Outcome::Published(published)),
            None => Ok(Outcome::Duplicate(
                self.find_id(message.given_id().unwrap_or_default())?,
            )),
        }
    }

    /// The offset of the message with an id, if it is known and kept.
    fn find_id(&self, id: &[u8]) -> Result<Option<u64>> {
        let snapshot = self.snapshot()?;
        let row = snapshot.get(&self.home().tables.index, index::key(self.shared().id, ID, &[id]))?;
        let Some(known) = row.map(|row| Known::decode(&row)).transpose()? else {
            return Ok(None);
        };
        let reading = Reading::new(self, &snapshot);
        let bounds = reading.bounds()?;
        let from = known.at_least.max(bounds.first);
        // Only messages that others published while the transaction ran are in between.
        for offset in from..from.saturating_add(READ_MESSAGES as u64).min(bounds.state.next) {
            if let Some(head) = reading.existing_head(offset)?
                && Stored::decode(&head)?.id == Some(id)
            {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }
}

/// Publishes a message that has an id in a transaction; `None`: it is a duplicate.
pub(crate) fn publish_in(tx: &mut Transaction, topic: &Topic, message: &Message<'_>) -> Result<Option<Ticket>> {
    let Some(id) = message.given_id() else {
        let cause = "the message has no id; give it one with Message::id, or call publish";
        return Err(TopicError::InvalidMessage { cause }.into());
    };
    let window = window_in(tx, topic)?.ok_or_else(|| option_missing(topic))?;
    if is_duplicate_in(tx, topic, id, window)? {
        return Ok(None);
    }
    let ticket = topic.with_any_item(message, |item| {
        topic.admit_in(tx, &[item])?;
        tx.append_to(&topic.shared().sequence, item)
    })?;
    note_in(tx, topic, id)?;
    Ok(Some(Ticket::of(ticket)))
}
