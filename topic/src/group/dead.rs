//! Dead letters: messages that failed the last time, in a topic of their own, and bringing them back.
//!
//! A dead letter has key, headers and payload of the message, and headers that tell where it came from:
//!
//! ```text
//! dead-letter-topic    the topic
//! dead-letter-offset   its offset there, decimal
//! dead-letter-group    the group that gave it up
//! dead-letter-tries    how often it was delivered, decimal
//! dead-letter-error    why it failed the last time
//! dead-letter-topic-id number of the topic: another one may be made under its name, decimal
//! ```

use duramen_engine::{Result, Transaction};

use super::Group;
use super::order::hash_of;
use super::settle::Open;
use super::state::{Cursor, Keyed, Letters, Run, Single};
use crate::error::TopicError;
use crate::limits::{HEADER_BYTES_MAX, HEADERS_MAX};
use crate::message::{Message, Stored};
use crate::messages::Received;
use crate::read::{ReadLimits, Reading};
use crate::tables::offset_key;
use crate::topic::{Topic, publish_unhindered_in};

const TOPIC: &str = "dead-letter-topic";
const OFFSET: &str = "dead-letter-offset";
const GROUP: &str = "dead-letter-group";
const TRIES: &str = "dead-letter-tries";
const ERROR: &str = "dead-letter-error";
const TOPIC_ID: &str = "dead-letter-topic-id";
const OWN: [&str; 6] = [TOPIC, OFFSET, GROUP, TRIES, ERROR, TOPIC_ID];

/// Dead letters that are brought back in one commit.
const AT_ONCE: usize = 100;

/// Where a dead letter came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The topic of the message.
    pub topic: String,
    /// Its offset there.
    pub offset: u64,
    /// The group that gave it up.
    pub group: String,
    /// How often it was delivered.
    pub tries: u32,
    /// Why it failed the last time.
    pub error: String,
}

impl DeadLetter {
    /// What the headers of a dead letter say; `None`: it is none.
    pub fn of(message: &Received<'_>) -> Option<DeadLetter> {
        let text = |name| std::str::from_utf8(message.header(name)?).ok();
        Some(DeadLetter {
            topic: text(TOPIC)?.into(),
            offset: text(OFFSET)?.parse().ok()?,
            group: text(GROUP)?.into(),
            tries: text(TRIES)?.parse().ok()?,
            error: text(ERROR)?.into(),
        })
    }
}

/// What became of dead letters that were brought back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// They are delivered to the group again, as if for the first time.
    pub delivered: u64,
    /// Their messages are no longer kept in the topic. The dead letters still are, with the payloads.
    pub gone: u64,
}

impl Group {
    /// Copies a message that is given up to the dead-letter topic, in the same transaction. One that retention has let go
    /// cannot be copied.
    pub(super) fn bury_in(&self, tx: &mut Transaction, dead: &str, offset: u64, tries: u32, error: &str) -> Result<()> {
        let snapshot = self.topic.snapshot()?;
        let Some(messages) = Reading::new(&self.topic, &snapshot).one(offset)? else {
            return Ok(());
        };
        // Not made here: that would be a commit inside of another, which may have the store to itself.
        let name = dead;
        let dead = self.topic.topics().get(name)?;
        let dead = dead.ok_or_else(|| TopicError::UnknownTopic { name: name.into() })?;
        let original = messages.get(0).expect("one message was read");
        let (offset, tries, id) = (
            offset.to_string(),
            tries.to_string(),
            self.topic.shared().id.to_string(),
        );
        let own = [
            (TOPIC, self.topic.name()),
            (OFFSET, &offset),
            (GROUP, &self.shared.name),
            (TRIES, &tries),
            (ERROR, error),
            (TOPIC_ID, &id),
        ];
        // A subscriber of the dead letters that is slow must not stop the group.
        publish_unhindered_in(tx, &dead, &letter(&original, &own))
    }

    /// Brings back what this group gave up: up to so many messages of the dead-letter topic, oldest first, are delivered to
    /// the group again, as if for the first time, and to no other group. Each dead letter is brought back once; it stays in
    /// its topic.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], [`TopicError::InvalidOptions`] when the group has no dead-letter topic, and those of a
    /// commit.
    pub fn redrive(&self, most: u64) -> Result<Redriven> {
        let record = self.record(&self.topic.snapshot()?)?;
        let Some(name) = Group::options_of(&record).dead_letters.topic_of(self.topic.name()) else {
            let cause = format!("group {:?} has no dead-letter topic; configure one", self.shared.name);
            return Err(TopicError::InvalidOptions { cause }.into());
        };
        let mut total = Redriven::default();
        // Without the topic there is nothing to bring back.
        let Some(dead) = self.topic.topics().get(&name)? else {
            return Ok(total);
        };
        loop {
            let left = most.saturating_sub(total.delivered + total.gone);
            match self.redrive_some(&dead, left)? {
                Some(some) => {
                    total.delivered += some.delivered;
                    total.gone += some.gone;
                }
                None => break,
            }
        }
        self.look_again();
        Ok(total)
    }

    /// Brings some back; `None`: there are no more, or none are wanted.
    fn redrive_some(&self, dead: &Topic, left: u64) -> Result<Option<Redriven>> {
        if left == 0 {
            return Ok(None);
        }
        let home = self.topic.home();
        let topic = dead.shared().id;
        home.store.transact(|tx| {
            self.record_in(tx)?;
            let known = tx.get(self.states(), &Letters::key(self.shared.id))?;
            let known = known.map(|known| Letters::decode(&known)).transpose()?;
            // Another topic may have been given the name.
            let from = known.filter(|known| known.topic == topic).map_or(0, |known| known.next);
            let letters = letters(dead, from)?;
            let mut some = Redriven::default();
            let mut next = from;
            let before = self.cursor_in(tx)?;
            let mut cursor = before;
            for letter in letters.iter() {
                if some.delivered + some.gone == left {
                    break;
                }
                next = letter.offset() + 1;
                let Some(found) = self.own_letter(&letter) else {
                    continue;
                };
                match self.revive_in(tx, &mut cursor, found.offset)? {
                    true => some.delivered += 1,
                    false => some.gone += 1,
                }
            }
            if next == from {
                return Ok(None);
            }
            if cursor != before {
                self.reopen_in(tx, cursor)?;
            }
            let letters = Letters { topic, next };
            tx.put(self.states(), &Letters::key(self.shared.id), &letters.encode())?;
            Ok(Some(some))
        })
    }

    /// What a dead letter says, if this group gave its message up, and the topic is still that one.
    fn own_letter(&self, letter: &Received<'_>) -> Option<DeadLetter> {
        let id = std::str::from_utf8(letter.header(TOPIC_ID)?).ok()?;
        let is_of_topic = id.parse() == Ok(self.topic.shared().id);
        DeadLetter::of(letter).filter(|found| is_of_topic && found.group == self.shared.name)
    }

    /// Lets the group deliver a message again; `false`: it is no longer kept.
    fn revive_in(&self, tx: &mut Transaction, cursor: &mut Cursor, offset: u64) -> Result<bool> {
        let topic = self.topic.shared();
        let head_key = offset_key(topic.id, offset);
        let Some(head) = tx.get(topic.sequence.heads(), &head_key)? else {
            return Ok(false);
        };
        let options = self.record_in(tx)?;
        let options = Group::options_of(&options);
        let (is_ordered, is_counted) = (options.order_by_key, options.is_counted());
        let key = Stored::decode(&head)?.key.filter(|_| is_ordered).map(hash_of);
        drop(head);
        // Retention that deletes it meanwhile makes this run again.
        tx.depends_on_key(topic.sequence.heads(), &head_key)?;
        if offset >= cursor.next {
            // The group was set back: it will deliver it anyway.
            return Ok(true);
        }
        let single = self.single_in(tx, offset)?;
        let run = self.run_over(tx, offset)?.map(|(first, _)| first);
        let is_closed = match single {
            Some(single) => matches!(single, Single::Settled { .. }),
            None => run.is_none(),
        };
        if !is_closed {
            return Ok(true);
        }
        if let Some(first) = run {
            tx.depends_on_key(self.states(), &Run::key(self.shared.id, first))?;
        }
        if let Some(hash) = key {
            tx.put(self.states(), &Keyed { hash, offset }.key(self.shared.id), b"")?;
        }
        cursor.opened += 1;
        cursor.counted += u64::from(is_counted);
        cursor.floor = cursor.floor.min(offset);
        let open = Open {
            tries: 0,
            origin: run,
            is_counted,
            key,
        };
        self.open_again(tx, offset, open, self.now(), "brought back")?;
        Ok(true)
    }
}

/// The next dead letters. Those that are not kept are passed over.
fn letters(dead: &Topic, from: u64) -> Result<crate::Messages> {
    let snapshot = dead.snapshot()?;
    let reading = Reading::new(dead, &snapshot);
    let limits = ReadLimits {
        messages: AT_ONCE,
        ..ReadLimits::default()
    };
    Ok(reading.read_past(from, limits)?.0)
}

/// A message with the headers of a dead letter; those of the original are left out when both together are too many.
fn letter<'m>(original: &Received<'m>, own: &[(&'static str, &'m str)]) -> Message<'m> {
    let mut letter = Message::new(original.payload());
    if let Some(key) = original.key() {
        letter = letter.key(key);
    }
    let mut bytes = 0;
    for (name, value) in own {
        bytes += name.len() + value.len();
        letter = letter.header(name, *value);
    }
    let theirs = original.headers().filter(|(name, _)| !OWN.contains(name));
    for (name, value) in theirs.take(HEADERS_MAX - own.len()) {
        bytes += name.len() + value.len();
        if bytes > HEADER_BYTES_MAX {
            break;
        }
        letter = letter.header(name, value);
    }
    letter
}
