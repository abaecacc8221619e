//! Dead letters: messages whose last attempt failed, in their own topic, and bringing them back.
//!
//! A dead letter has the key, headers and payload of the message, and headers that name its origin:
//!
//! ```text
//! dead-letter-topic    the topic
//! dead-letter-offset   the offset there, decimal
//! dead-letter-group    the group that gave the message up
//! dead-letter-tries    the number of deliveries, decimal
//! dead-letter-error    the reason of the last failure
//! dead-letter-topic-id number of the topic, because another topic may get its name, decimal
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use duramen_engine::{Error, Item, Result, Transaction};

use super::order::hash_of;
use super::pattern_group::is_gone;
use super::settle::OpenMessage;
use super::state::{Cursor, Keyed, Letters, Run, Single};
use super::{Group, PatternGroup};
use crate::error::TopicError;
use crate::handle::Topic;
use crate::limits::{HEADER_BYTES_MAX, HEADERS_MAX};
use crate::message::{Message, Stored};
use crate::messages::{Messages, Received};
use crate::read::{ReadLimits, Reading};
use crate::tables::offset_key;

const TOPIC: &str = "dead-letter-topic";
const OFFSET: &str = "dead-letter-offset";
const GROUP: &str = "dead-letter-group";
const TRIES: &str = "dead-letter-tries";
const ERROR: &str = "dead-letter-error";
const TOPIC_ID: &str = "dead-letter-topic-id";
const OWN: [&str; 6] = [TOPIC, OFFSET, GROUP, TRIES, ERROR, TOPIC_ID];

/// Dead letters that one commit brings back.
const AT_ONCE: usize = 100;

/// The origin of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The topic of the message.
    pub topic: String,
    /// Offset of the message there.
    pub offset: u64,
    /// The group that gave the message up.
    pub group: String,
    /// Number of deliveries.
    pub tries: u32,
    /// Reason of the last failure.
    pub error: String,
}

impl DeadLetter {
    /// Decodes the headers of a dead letter; `None`: the message is not a dead letter.
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

/// Result of bringing back dead letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Messages that the group delivers again, as if for the first time.
    pub delivered: u64,
    /// Messages that the topic no longer keeps. Their dead letters are still there, with the payloads.
    pub gone: u64,
}

impl Group {
    /// Copies a message that is given up to the dead-letter topic, in the same transaction. A message that retention
    /// has deleted cannot be copied.
    pub(super) fn bury_in(&self, tx: &mut Transaction, dead: &str, offset: u64, tries: u32, error: &str) -> Result<()> {
        let snapshot = self.topic.snapshot()?;
        let Some(messages) = Reading::new(&self.topic, &snapshot).one(offset)? else {
            return Ok(());
        };
        // The topic is not created here: that would nest a commit inside another, which may have exclusive access to
        // the store.
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
        // A slow subscriber of the dead letters must not stop the group.
        publish_unhindered_in(tx, &dead, &letter(&original, &own))
    }

    /// Brings back messages that this group gave up: up to `most` messages of the dead-letter topic, oldest first. Only
    /// this group delivers them again, as if for the first time. Each dead letter is brought back once, and stays in
    /// its topic.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], [`TopicError::InvalidOptions`] when the group has no dead-letter topic, and those
    /// of a commit.
    pub fn redrive(&self, most: u64) -> Result<Redriven> {
        let record = self.record(&self.topic.snapshot()?)?;
        let Some(name) = Group::options_of(&record).dead_letters.topic_of(self.topic.name()) else {
            return Err(no_dead_letters(&self.shared.name));
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

    /// Brings back some dead letters; `None`: there are no more, or `left` is 0.
    fn redrive_some(&self, dead: &Topic, left: u64) -> Result<Option<Redriven>> {
        if left == 0 {
            return Ok(None);
        }
        self.topic
            .home()
            .store
            .transact(|tx| self.redrive_some_in(tx, dead, left))
    }

    fn redrive_some_in(&self, tx: &mut Transaction, dead: &Topic, left: u64) -> Result<Option<Redriven>> {
        let mut reopening = Reopening::begin(tx, self, dead)?;
        let from = reopening.next;
        let mut some = Redriven::default();
        for letter in letters(dead, from)?.iter() {
            if some.delivered + some.gone == left {
                break;
            }
            reopening.next = letter.offset() + 1;
            let found = Origin::of(&letter).filter(|found| found.is_of(self));
            if let Some(found) = found {
                reopening.revive(tx, &found, &mut some)?;
            }
        }
        match reopening.next == from {
            true => Ok(None),
            false => reopening.end(tx).map(|()| Some(some)),
        }
    }

    /// Brings back some dead letters in a transaction, at most `most`; `None`: there are no more.
    ///
    /// # Errors
    /// As [`Group::redrive`].
    #[doc(hidden)]
    pub fn redrive_in(&self, tx: &mut Transaction, most: u64) -> Result<Option<Redriven>> {
        let record = self.record_in(tx)?;
        let Some(name) = Group::options_of(&record).dead_letters.topic_of(self.topic.name()) else {
            return Err(no_dead_letters(&self.shared.name));
        };
        match self.topic.topics().get(&name)? {
            Some(dead) if most > 0 => self.redrive_some_in(tx, &dead, most),
            _ => Ok(None),
        }
    }

    /// Makes the group deliver a message again; `false`: the message is no longer kept.
    fn revive_in(&self, tx: &mut Transaction, cursor: &mut Cursor, offset: u64) -> Result<bool> {
        let topic = self.topic.shared();
        let head_key = offset_key(topic.id, offset);
        let Some(head) = tx.get_ref(topic.sequence.heads(), head_key)? else {
            return Ok(false);
        };
        let options = self.record_in(tx)?;
        let options = Group::options_of(&options);
        let (is_ordered, is_counted) = (options.order_by_key, options.is_counted());
        let key = Stored::decode(&head)?.key.filter(|_| is_ordered).map(hash_of);
        drop(head);
        // If retention deletes the message meanwhile, this transaction runs again.
        tx.depends_on_key(topic.sequence.heads(), &head_key)?;
        if offset >= cursor.next {
            // The group was set back, so it delivers the message anyway.
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
            tx.put(self.states(), Keyed { hash, offset }.key(self.shared.id), b"")?;
        }
        cursor.opened += 1;
        cursor.counted += u64::from(is_counted);
        cursor.floor = cursor.floor.min(offset);
        let open = OpenMessage {
            tries: 0,
            origin: run,
            is_counted,
            key,
        };
        self.open_again(tx, offset, open, self.now_in(tx), "brought back")?;
        Ok(true)
    }
}

impl PatternGroup {
    /// Brings back messages that this group gave up, in all its topics: up to `most` messages of the dead-letter topic,
    /// oldest first. The group delivers them again, as if for the first time. Each dead letter is brought back once, by
    /// this call or by [`Group::redrive`], and stays in its topic. Dead letters of deleted topics, and of topics that
    /// the group leaves out, are skipped.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], [`TopicError::InvalidOptions`] when the group has no dead-letter topic, and those
    /// of a commit.
    pub fn redrive(&self, most: u64) -> Result<Redriven> {
        let options = self.describe_options()?;
        let Some(name) = options.dead_letters.topic_of(self.name()) else {
            return Err(no_dead_letters(self.name()));
        };
        let (mut total, mut groups) = (Redriven::default(), HashMap::new());
        // Without the topic there is nothing to bring back.
        let Some(dead) = self.topics().get(&name)? else {
            return Ok(total);
        };
        loop {
            let left = most.saturating_sub(total.delivered + total.gone);
            match self.redrive_some(&dead, left, &mut groups)? {
                Some(some) => {
                    total.delivered += some.delivered;
                    total.gone += some.gone;
                }
                None => break,
            }
        }
        groups.values().flatten().for_each(Group::look_again);
        Ok(total)
    }

    fn redrive_some(
        &self,
        dead: &Topic,
        left: u64,
        groups: &mut HashMap<u32, Option<Group>>,
    ) -> Result<Option<Redriven>> {
        if left == 0 {
            return Ok(None);
        }
        let topic = dead.shared().id;
        self.topics().store().transact(|tx| {
            let mut rule = self.rule.rule_in(tx)?;
            let known = rule.letters.filter(|known| known.topic == topic);
            let from = known.map_or(0, |known| known.next);
            let (mut next, mut some) = (from, Redriven::default());
            let mut reopenings: HashMap<u32, Reopening> = HashMap::new();
            for letter in letters(dead, from)?.iter() {
                if some.delivered + some.gone == left {
                    break;
                }
                next = letter.offset() + 1;
                let Some(found) = Origin::of(&letter) else { continue };
                let Some(group) = self.group_of_letter(&found, groups)? else {
                    continue;
                };
                let reopening = match reopenings.entry(found.topic_id) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => match Reopening::begin(tx, &group, dead) {
                        // The topic was deleted meanwhile.
                        Err(error) if is_gone(&error) => continue,
                        begun => place.insert(begun?),
                    },
                };
                // Otherwise the group has brought it back in its own topic.
                if reopening.next < next {
                    reopening.next = next;
                    reopening.revive(tx, &found, &mut some)?;
                }
            }
            if next == from {
                return Ok(None);
            }
            reopenings.into_values().try_for_each(|reopening| reopening.end(tx))?;
            rule.letters = Some(Letters { topic, next });
            self.rule.put_in(tx, &rule)?;
            Ok(Some(some))
        })
    }

    /// The group that gave up a message, if it is this group and the topic was not replaced.
    fn group_of_letter(&self, found: &Origin, groups: &mut HashMap<u32, Option<Group>>) -> Result<Option<Group>> {
        if found.letter.group != self.name() {
            return Ok(None);
        }
        if let Some(known) = groups.get(&found.topic_id) {
            return Ok(known.clone());
        }
        let (home, name) = (self.topics().home(), &found.letter.topic);
        let snapshot = home.store.snapshot()?;
        let group = match home.existing_record(&snapshot, name)? {
            Some(record) if record.id == found.topic_id => {
                let rule = self.rule.rule(&snapshot)?;
                self.group_of(&snapshot, &rule, &home.topic(record.id, name)?)?
            }
            _ => None,
        };
        groups.insert(found.topic_id, group.clone());
        Ok(group)
    }
}

/// The exact origin of a dead letter: another topic may have the name by now.
struct Origin {
    letter: DeadLetter,
    topic_id: u32,
}

impl Origin {
    fn of(letter: &Received<'_>) -> Option<Origin> {
        let id = std::str::from_utf8(letter.header(TOPIC_ID)?).ok()?;
        Some(Origin {
            letter: DeadLetter::of(letter)?,
            topic_id: id.parse().ok()?,
        })
    }

    /// Whether this group gave the message up and the topic was not replaced.
    fn is_of(&self, group: &Group) -> bool {
        self.topic_id == group.topic.shared().id && self.letter.group == group.shared.name
    }
}

/// The state of a transaction that brings dead letters back to a group.
struct Reopening {
    group: Group,
    /// The dead-letter topic.
    dead: u32,
    /// The first dead letter that was not examined.
    next: u64,
    before: Cursor,
    cursor: Cursor,
}

impl Reopening {
    fn begin(tx: &Transaction, group: &Group, dead: &Topic) -> Result<Reopening> {
        group.record_in(tx)?;
        let dead = dead.shared().id;
        let known = tx.get_ref(group.states(), Letters::key(group.shared.id))?;
        let known = known.map(|known| Letters::decode(&known)).transpose()?;
        let before = group.cursor_in(tx)?;
        Ok(Reopening {
            group: group.clone(),
            dead,
            // Another topic may have got the name.
            next: known.filter(|known| known.topic == dead).map_or(0, |known| known.next),
            before,
            cursor: before,
        })
    }

    fn revive(&mut self, tx: &mut Transaction, found: &Origin, some: &mut Redriven) -> Result<()> {
        match self.group.revive_in(tx, &mut self.cursor, found.letter.offset)? {
            true => some.delivered += 1,
            false => some.gone += 1,
        }
        Ok(())
    }

    fn end(self, tx: &mut Transaction) -> Result<()> {
        if self.cursor != self.before {
            self.group.reopen_in(tx, self.cursor)?;
        }
        let letters = Letters {
            topic: self.dead,
            next: self.next,
        };
        let key = Letters::key(self.group.shared.id);
        tx.put(self.group.states(), key, letters.encode())
    }
}

fn no_dead_letters(group: &str) -> Error {
    let cause = format!("group {group:?} has no dead-letter topic; configure one");
    TopicError::InvalidOptions { cause }.into()
}

/// Reads the next dead letters. Dead letters that are not kept are skipped.
fn letters(dead: &Topic, from: u64) -> Result<Messages> {
    let snapshot = dead.snapshot()?;
    let reading = Reading::new(dead, &snapshot);
    let limits = ReadLimits {
        messages: AT_ONCE,
        ..ReadLimits::default()
    };
    Ok(reading.read_past(from, limits)?.0)
}

/// Builds a dead letter. The original headers are left out when both together are too many.
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

/// Publishes in a transaction. Nothing that holds back other publishers applies to it.
fn publish_unhindered_in(tx: &mut Transaction, topic: &Topic, message: &Message<'_>) -> Result<()> {
    let mut head = Vec::new();
    let body = message.encode(&mut head)?;
    let item = Item { head: &head, body };
    tx.append_to(&topic.shared().sequence, item).map(|_| ())
}
