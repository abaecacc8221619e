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
use super::durable::Durable;
use super::state::{Cursor, Row, Run, Single};
use crate::error::TopicError;
use crate::limits::{HEADER_BYTES_MAX, HEADERS_MAX};
use crate::message::Message;
use crate::messages::Received;
use crate::read::{ReadLimits, Reading, Start};
use crate::record::millis;
use crate::topic::{Topic, publish_in};

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
        publish_in(tx, &dead, &letter(&original, &own)).map(|_| ())
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
        let Some(name) = &Group::options_of(&record).dead_letters else {
            let cause = format!("group {:?} has no dead-letter topic; configure one", self.shared.name);
            return Err(TopicError::InvalidOptions { cause }.into());
        };
        let dead = self.topic.topics().get_or_create(name, Default::default())?;
        // By its number: with those of their topics before them, the names of two groups may look alike.
        let progress = dead.durable(&format!("redrive.{}", self.shared.id), Start::Beginning)?;
        let mut total = Redriven::default();
        loop {
            let left = most.saturating_sub(total.delivered + total.gone);
            match self.redrive_some(&dead, &progress, left)? {
                Some(some) => {
                    total.delivered += some.delivered;
                    total.gone += some.gone;
                }
                None => break,
            }
        }
        self.wake_members();
        Ok(total)
    }

    /// Brings some back; `None`: there are no more, or none are wanted.
    fn redrive_some(&self, dead: &Topic, progress: &Durable, left: u64) -> Result<Option<Redriven>> {
        if left == 0 {
            return Ok(None);
        }
        let mut turn = self.shared.turn();
        // What is brought back is found by reading the rows.
        turn.iter_mut().for_each(|memory| memory.is_doubtful = true);
        let home = self.topic.home();
        home.store.transact(|tx| {
            let cursor = progress.cursor_in(tx)?;
            let letters = letters(dead, cursor.next)?;
            let mut some = Redriven::default();
            let mut next = cursor.next;
            for letter in letters.iter() {
                if some.delivered + some.gone == left {
                    break;
                }
                next = letter.offset() + 1;
                let Some(found) = self.own_letter(&letter) else {
                    continue;
                };
                match self.revive_in(tx, found.offset)? {
                    true => some.delivered += 1,
                    false => some.gone += 1,
                }
            }
            if next == cursor.next {
                return Ok(None);
            }
            progress.move_in(tx, next)?;
            Ok(Some(some))
        })
    }

    /// What a dead letter says, if this group gave its message up, and the topic is still that one.
    fn own_letter(&self, letter: &Received<'_>) -> Option<DeadLetter> {
        let id = std::str::from_utf8(letter.header(TOPIC_ID)?).ok()?;
        let is_of_topic = id.parse() == Ok(self.topic.shared().id);
        DeadLetter::of(letter).filter(|found| is_of_topic && found.group == self.shared.name)
    }

    /// Whether a member has the run that a message was handed out in.
    fn is_in_a_run(&self, tx: &Transaction, offset: u64) -> Result<bool> {
        let states = &self.topic.home().tables.states;
        let (low, high) = (Run::key(self.shared.id, 0), Run::key(self.shared.id, offset));
        let mut walk = tx.range(states, &low[..]..=&high[..])?;
        walk.seek_end();
        let Some((key, row)) = walk.prev()? else {
            return Ok(false);
        };
        Ok(matches!(Row::decode(key, &row)?, Row::Run(_, run) if offset < run.end))
    }

    /// Lets the group deliver a message again; `false`: it is no longer kept.
    fn revive_in(&self, tx: &mut Transaction, offset: u64) -> Result<bool> {
        let snapshot = self.topic.snapshot()?;
        if Reading::new(&self.topic, &snapshot).existing_head(offset)?.is_none() {
            return Ok(false);
        }
        let home = self.topic.home();
        let cursor = self.cursor_in(tx)?;
        if offset >= cursor.next {
            // The group was set back: it will deliver it anyway.
            return Ok(true);
        }
        let is_on_its_way = match self.single_in(tx, offset)? {
            Some(Single::Waits { .. } | Single::Again { .. }) => true,
            Some(Single::Settled { .. }) => false,
            None => self.is_in_a_run(tx, offset)?,
        };
        if is_on_its_way {
            return Ok(true);
        }
        let single = Single::Waits {
            due: millis(home.store.wall_clock()),
            delay: 0,
            tries: 0,
            error: "brought back".into(),
        };
        tx.put(
            &home.tables.states,
            &Single::key(self.shared.id, offset),
            &single.encode(),
        )?;
        let cursor = Cursor {
            floor: cursor.floor.min(offset),
            ..cursor
        };
        tx.put(&home.tables.states, &Cursor::key(self.shared.id), &cursor.encode())?;
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
    reading.read_past(from, limits)
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
