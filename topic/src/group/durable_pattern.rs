//! Durable subscriptions to all topics of a pattern, also to those that are made later.
//!
//! One is a rule in the store, and a durable subscription of its name in every topic that matches. Whoever makes a topic
//! reads the rules, and does what they say in the same transaction: so no message is published before it counts for them.
//! Rules and topics are made, and rules deleted, one after the other, because all of these transactions take a number
//! ([`next_id`]): of two at the same time one is run again, and sees what the other did. Whoever deletes a topic takes none, and
//! deletes the range of its groups: that is a conflict with whoever puts a row there, whichever of them commits first.
//!
//! ```text
//! rule  1  form: 1
//!       4  its number, big-endian
//!      ..  created: milliseconds since 1970; pattern: length, text
//! ```

use std::collections::HashMap;

use duramen_engine::{Error, Result, Snapshot, Transaction, Value};

use super::durable::Durable;
use super::record::{GroupRecord, Kind};
use super::{NewGroup, delete_durable, other_kind};
use crate::bytes::{Reader, put_bytes, put_number};
use crate::error::{TopicError, is_deleted};
use crate::messages::Messages;
use crate::name::{Pattern, check_name};
use crate::read::{Reading, Start};
use crate::record::{TopicRecord, millis};
use crate::tables::{RULES, Tables, name_key, rule_key};
use crate::topic::Topic;
use crate::topics::{Topics, next_id};

const FORM: u8 = 1;

/// A durable subscription to all topics of a pattern: the store remembers for each of them up to which message its reader
/// has acknowledged, and a topic that is made later counts from its first message on, whether anybody reads or not.
///
/// In every topic it is a durable subscription of the same name, which [`Topic::groups`] lists with the others. A topic in which
/// that was deleted ([`Topic::delete_group`]) is left out from then on; [`Topic::durable`] makes it again.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{Pattern, Start, TopicOptions, TopicWrites, Topics};
/// use std::time::Duration;
///
/// let topics = Topics::open(&store)?;
/// let sums = store.map("sums")?;
/// let reader = topics.durable(&Pattern::new("orders.>")?, "sums", Start::Beginning)?;
/// topics.create("orders.eu", TopicOptions::new())?.publish(b"12 apples")?;
///
/// let mut subscription = reader.subscribe()?;
/// let messages = subscription.next_batch(Duration::from_secs(1))?.unwrap();
/// let orders = reader.of(&messages)?;
/// store.transact(|tx| {
///     tx.put(&sums, b"apples", b"12")?;
///     tx.acknowledge_through(&orders, messages.offsets().end - 1)
/// })?;
/// assert_eq!(reader.positions()?[0].next, 1);
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DurablePattern {
    topics: Topics,
    name: String,
    id: u32,
    pattern: Pattern,
}

/// How far a durable subscription has come in one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DurablePosition {
    /// The topic.
    pub topic: String,
    /// The first message that was not acknowledged.
    pub next: u64,
    /// Messages from that one on.
    pub lag: u64,
}

/// What is stored about one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) id: u32,
    pub(crate) created: u64,
    pub(crate) pattern: Pattern,
}

impl Rule {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORM];
        out.extend_from_slice(&self.id.to_be_bytes());
        put_number(&mut out, self.created);
        put_bytes(&mut out, self.pattern.as_str().as_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Rule> {
        let mut reader = Reader::new(bytes, "the record of a durable subscription to a pattern");
        reader.version(FORM)?;
        let id = u32::from_be_bytes(reader.bytes(4)?.try_into().expect("four bytes"));
        let created = reader.number()?;
        let text = reader.text()?;
        let pattern = Pattern::new(text).map_err(|_| reader.damaged("has a pattern that is none"))?;
        reader.end()?;
        Ok(Rule { id, created, pattern })
    }
}

impl Topics {
    /// A durable subscription to all topics of a pattern, which is made when it is missing. Then `start` says where it begins
    /// in the topics that are there; in those that are made later it begins with their first message. A topic that
    /// has a durable subscription of this name keeps it where it is.
    ///
    /// # Errors
    /// [`TopicError::OtherPattern`], [`TopicError::OtherKind`] when a topic has a group of this name,
    /// [`TopicError::InvalidName`], [`TopicError::NotYetPublished`], and those of a commit.
    pub fn durable(&self, pattern: &Pattern, name: &str, start: Start) -> Result<DurablePattern> {
        check_name(name)?;
        let rule = match self.rule(&self.store().snapshot()?, name)? {
            Some(rule) => rule,
            None => self.make_rule(pattern, name, start)?,
        };
        if rule.pattern != *pattern {
            let (found, asked) = (rule.pattern.to_string(), pattern.to_string());
            return Err(TopicError::OtherPattern {
                name: name.into(),
                found,
                asked,
            }
            .into());
        }
        Ok(DurablePattern::new(self, name, rule))
    }

    /// The durable subscriptions to patterns, sorted by name.
    ///
    /// # Errors
    /// Those of [`duramen_engine::Store::snapshot`].
    pub fn durables(&self) -> Result<Vec<DurablePattern>> {
        let snapshot = self.store().snapshot()?;
        let mut cursor = snapshot.prefix(&self.home().tables.topics, RULES)?;
        let mut found = Vec::new();
        while let Some((key, rule)) = cursor.next()? {
            found.push(DurablePattern::new(self, &rule_name(key), Rule::decode(&rule)?));
        }
        Ok(found)
    }

    fn rule(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Rule>> {
        decoded(snapshot.get(&self.home().tables.topics, &rule_key(name))?)
    }

    fn make_rule(&self, pattern: &Pattern, name: &str, start: Start) -> Result<Rule> {
        let home = self.home();
        // Topics that are not there yet are made later.
        let mut starts = HashMap::new();
        for (topic, record) in home.records(pattern.literal_start())? {
            if pattern.matches(&topic) {
                let topic = home.topic(record?.id, &topic)?;
                match topic
                    .snapshot()
                    .and_then(|snapshot| Reading::new(&topic, &snapshot).resolve(start))
                {
                    Ok(from) => drop(starts.insert(topic.shared().id, from)),
                    // Meanwhile.
                    Err(error) if is_deleted(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        home.store.transact(|tx| {
            let tables = &home.tables;
            if let Some(rule) = decoded(tx.get(&tables.topics, &rule_key(name))?)? {
                return Ok(rule);
            }
            let now = millis(home.store.wall_clock());
            let rule = Rule {
                id: next_id(tx, &tables.topics)?,
                created: now,
                pattern: pattern.clone(),
            };
            tx.put(&tables.topics, &rule_key(name), &rule.encode())?;
            for (topic, id) in topics_of(tx, tables, pattern)? {
                let from = starts.get(&id).copied().unwrap_or(0);
                follow(tx, tables, &topic, NewGroup::durable(id, name, from, now))?;
            }
            Ok(rule)
        })
    }
}

impl DurablePattern {
    fn new(topics: &Topics, name: &str, rule: Rule) -> DurablePattern {
        DurablePattern {
            topics: topics.clone(),
            name: name.into(),
            id: rule.id,
            pattern: rule.pattern,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// The topics of its store.
    pub fn topics(&self) -> &Topics {
        &self.topics
    }

    /// The durable subscription of one of its topics, to look after: to go on from another place, for instance.
    ///
    /// # Errors
    /// [`TopicError::UnknownTopic`], [`TopicError::UnknownGroup`] when the topic does not match, or is left out,
    /// [`TopicError::GroupDeleted`], [`TopicError::InvalidName`].
    pub fn at(&self, topic: &str) -> Result<Durable> {
        check_name(topic)?;
        let snapshot = self.snapshot()?;
        let Some(record) = self.topics.home().existing_record(&snapshot, topic)? else {
            return Err(TopicError::UnknownTopic { name: topic.into() }.into());
        };
        self.durable_at(&snapshot, record.id, topic)
    }

    /// The durable subscription of the topic of these messages, to acknowledge them in a transaction
    /// ([`crate::TopicWrites::acknowledge_through`]).
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`], also when there is another topic of that name by now;
    /// [`TopicError::UnknownGroup`] when the topic is left out, [`TopicError::GroupDeleted`].
    pub fn of(&self, messages: &Messages) -> Result<Durable> {
        let snapshot = self.snapshot()?;
        let name = messages.topic();
        self.topics.home().same_record(&snapshot, name, messages.topic_id())?;
        self.durable_at(&snapshot, messages.topic_id(), name)
    }

    fn durable_at(&self, snapshot: &Snapshot, id: u32, topic: &str) -> Result<Durable> {
        let topic = self.topics.home().topic(id, topic)?;
        let durable = match self.pattern.matches(topic.name()) {
            true => self.durable_of(snapshot, &topic)?,
            false => None,
        };
        durable.ok_or_else(|| topic.unknown_group(&self.name))
    }

    /// How far it has come in each topic, sorted by the names of topics.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`].
    pub fn positions(&self) -> Result<Vec<DurablePosition>> {
        let snapshot = self.snapshot()?;
        let mut positions = Vec::new();
        for topic in self.topics_in(&snapshot)? {
            if let Some(next) = self.position_in(&snapshot, &topic)? {
                let end = Reading::new(&topic, &snapshot).state()?.next;
                positions.push(DurablePosition {
                    topic: topic.name().into(),
                    next,
                    lag: end.saturating_sub(next),
                });
            }
        }
        Ok(positions)
    }

    /// Acknowledges messages, and all of their topic before them, in a commit of its own, which a power cut may take back; then
    /// some are delivered again. Messages of a topic that was deleted meanwhile need no acknowledgement.
    ///
    /// # Errors
    /// [`TopicError::AlreadySettled`], [`TopicError::UnknownGroup`] when the topic is left out, [`TopicError::GroupDeleted`],
    /// and those of a commit.
    pub fn acknowledge(&self, messages: &Messages) -> Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        let last = messages.offsets().end - 1;
        match self.of(messages).and_then(|durable| durable.acknowledge_through(last)) {
            Err(error) if is_deleted(&error) => Ok(()),
            // With its topic, after the look.
            Err(error) if is_group_deleted(&error) && self.of(messages).is_err_and(|error| is_deleted(&error)) => {
                Ok(())
            }
            acknowledged => acknowledged,
        }
    }

    /// Goes on from another place in all topics that are there, forward or back. Subscriptions that exist go on from where they
    /// are. For one topic: [`Durable::reset`].
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn reset(&self, start: Start) -> Result<()> {
        let snapshot = self.snapshot()?;
        let mut moves = Vec::new();
        for topic in self.topics_in(&snapshot)? {
            if let Some(durable) = self.durable_of(&snapshot, &topic)? {
                moves.push((durable, Reading::new(&topic, &snapshot).resolve(start)?));
            }
        }
        drop(snapshot);
        self.topics.store().transact(|tx| {
            self.check_in(tx)?;
            for (durable, next) in &moves {
                match durable.cursor_in(tx) {
                    Ok(_) => durable.reset_in(tx, *next)?,
                    // Meanwhile.
                    Err(error) if is_group_deleted(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    /// Deletes it, in all topics, those too that had a durable subscription of its name before. Topics that are made later do not
    /// know it any more, and its subscriptions in all processes wake up with [`TopicError::GroupDeleted`].
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], and those of a commit.
    pub fn delete(&self) -> Result<()> {
        let tables = &self.topics.home().tables;
        self.topics.store().transact(|tx| {
            self.check_in(tx)?;
            tx.delete(&tables.topics, &rule_key(&self.name))?;
            // Whoever makes a topic now reads the rules anew.
            next_id(tx, &tables.topics)?;
            for (_, topic) in topics_of(tx, tables, &self.pattern)? {
                delete_durable(tx, tables, topic, &self.name)?;
            }
            // Its subscriptions listen to the registry; they look, and find that it is gone.
            tx.ring(self.topics.home().registry());
            Ok(())
        })
    }

    fn check_in(&self, tx: &Transaction) -> Result<()> {
        let rule = decoded(tx.get(&self.topics.home().tables.topics, &rule_key(&self.name))?)?;
        let is_there = rule.is_some_and(|rule| rule.id == self.id);
        is_there.then_some(()).ok_or_else(|| self.deleted())
    }

    /// A snapshot in which it is there.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let snapshot = self.topics.store().snapshot()?;
        let rule = self.topics.rule(&snapshot, &self.name)?;
        rule.filter(|rule| rule.id == self.id).ok_or_else(|| self.deleted())?;
        Ok(snapshot)
    }

    fn topics_in(&self, snapshot: &Snapshot) -> Result<Vec<Topic>> {
        let home = self.topics.home();
        let mut topics = Vec::new();
        for (name, record) in home.records_in(snapshot, self.pattern.literal_start())? {
            if self.pattern.matches(&name) {
                topics.push(home.topic(record?.id, &name)?);
            }
        }
        Ok(topics)
    }

    fn durable_of(&self, snapshot: &Snapshot, topic: &Topic) -> Result<Option<Durable>> {
        let record = topic.group_record(snapshot, &self.name)?;
        let record = record.filter(|record| record.kind == Kind::Durable);
        Ok(record.map(|record| Durable::new(topic, &self.name, record.id)))
    }

    /// The first message of a topic that was not acknowledged; `None`: the topic is left out.
    pub(crate) fn position_in(&self, snapshot: &Snapshot, topic: &Topic) -> Result<Option<u64>> {
        let durable = self.durable_of(snapshot, topic)?;
        durable.map(|durable| durable.position_in(snapshot)).transpose()
    }

    fn deleted(&self) -> Error {
        let (topic, name) = (self.pattern.to_string(), self.name.clone());
        TopicError::GroupDeleted { topic, name }.into()
    }
}

/// Does for a topic that is being made what the rules say.
pub(crate) fn apply_rules(tx: &mut Transaction, tables: &Tables, (topic, id): (&str, u32), now: u64) -> Result<()> {
    let mut names = Vec::new();
    let mut rules = tx.prefix(&tables.topics, RULES)?;
    while let Some((key, rule)) = rules.next()? {
        if Rule::decode(&rule)?.pattern.matches(topic) {
            names.push(rule_name(key));
        }
    }
    drop(rules);
    names
        .iter()
        .try_for_each(|name| follow(tx, tables, topic, NewGroup::durable(id, name, 0, now)))
}

impl<'a> NewGroup<'a> {
    /// The durable subscription of a rule in a topic.
    pub(crate) fn durable(topic: u32, name: &'a str, from: u64, now: u64) -> NewGroup<'a> {
        NewGroup {
            topic,
            name,
            kind: &Kind::Durable,
            from,
            now,
        }
    }
}

/// Makes the durable subscription of a rule in a topic that has none of its name.
fn follow(tx: &mut Transaction, tables: &Tables, topic: &str, durable: NewGroup<'_>) -> Result<()> {
    match tx.get(&tables.groups, &name_key(durable.topic, durable.name))? {
        None => durable.put_in(tx, tables).map(|_| ()),
        Some(record) => match GroupRecord::decode(&record)?.kind {
            Kind::Durable => Ok(()),
            kind => Err(other_kind(topic, durable.name, kind.name(), Kind::Durable.name())),
        },
    }
}

/// Names and numbers of the topics of a pattern, as a transaction sees them.
fn topics_of(tx: &Transaction, tables: &Tables, pattern: &Pattern) -> Result<Vec<(String, u32)>> {
    let mut cursor = tx.prefix(&tables.topics, pattern.literal_start().as_bytes())?;
    let mut found = Vec::new();
    while let Some((key, record)) = cursor.next()? {
        let name = String::from_utf8_lossy(key);
        if key.first() != Some(&0) && pattern.matches(&name) {
            found.push((name.into_owned(), TopicRecord::decode(&record)?.id));
        }
    }
    Ok(found)
}

fn is_group_deleted(error: &Error) -> bool {
    matches!(TopicError::of(error), Some(TopicError::GroupDeleted { .. }))
}

fn decoded(rule: Option<Value<'_>>) -> Result<Option<Rule>> {
    rule.map(|rule| Rule::decode(&rule)).transpose()
}

fn rule_name(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[RULES.len()..]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use duramen_engine::{Durability, Maintenance, Options};
    use duramen_io::SimDisk;

    use super::*;
    use crate::record::TopicOptions;
    use crate::topics::TopicsOptions;

    #[test]
    fn rules_come_back_as_they_were() {
        let rule = Rule {
            id: 9,
            created: 1 << 40,
            pattern: Pattern::new("orders.*.>").unwrap(),
        };
        let bytes = rule.encode();
        assert_eq!(Rule::decode(&bytes).unwrap(), rule);
        for length in 0..bytes.len() {
            assert!(Rule::decode(&bytes[..length]).is_err(), "{length}");
        }
        let strange = [&bytes[..bytes.len() - 1], b" "].concat();
        assert!(Rule::decode(&strange).is_err());
    }

    fn topics_on(disk: &SimDisk) -> Topics {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        let store = options.open_on(disk.platform()).unwrap();
        Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap()
    }

    /// Every topic must have the durable subscriptions that the rules say, and no other; and nothing may be left of
    /// topics and rules that are gone.
    fn check(topics: &Topics) {
        let home = topics.home();
        let snapshot = home.store.snapshot().unwrap();
        let rules = topics.durables().unwrap();
        let mut expected = BTreeSet::new();
        for (topic, record) in home.records("").unwrap() {
            let id = record.unwrap().id;
            let matching = rules.iter().filter(|rule| rule.pattern.matches(&topic));
            expected.extend(matching.map(|rule| name_key(id, &rule.name)));
        }
        let mut found = BTreeSet::new();
        let mut ids = BTreeSet::new();
        let mut cursor = snapshot.prefix(&home.tables.groups, b"").unwrap();
        while let Some((key, record)) = cursor.next().unwrap() {
            ids.insert(GroupRecord::decode(&record).unwrap().id);
            found.insert(key.to_vec());
        }
        assert_eq!(found, expected);
        let mut cursors = BTreeSet::new();
        let mut rows = snapshot.range(&home.tables.states, ..).unwrap();
        while let Some((key, _)) = rows.next().unwrap() {
            let id = u32::from_be_bytes(*key.first_chunk().unwrap());
            assert!(ids.contains(&id), "states of no group");
            cursors.extend((*key == super::super::state::Cursor::key(id)).then_some(id));
        }
        assert_eq!(cursors, ids);
    }

    /// Makes or deletes something; what it meets there, or not, is none of its mistakes.
    fn step(topics: &Topics, rng: &mut fastrand::Rng) -> Result<()> {
        let topic = format!("{}.{}", rng.u8(..3), rng.u8(..4));
        let name = ["red", "green", "blue"][rng.usize(..3)];
        let pattern = Pattern::new(["*.1", ">", "2.*"][rng.usize(..3)]).unwrap();
        let done = match rng.u8(..10) {
            0..=3 => topics.create(&topic, TopicOptions::new()).map(|_| ()),
            4..=5 => topics.delete(&topic),
            6..=7 => topics.durable(&pattern, name, Start::Tail).map(|_| ()),
            8 => topics.durables()?.first().map_or(Ok(()), DurablePattern::delete),
            _ => topics
                .durables()?
                .first()
                .map_or(Ok(()), |durable| durable.reset(Start::Beginning)),
        };
        match done {
            Err(error) if TopicError::of(&error).is_none() && !is_deleted(&error) => Err(error),
            _ => Ok(()),
        }
    }

    #[test]
    fn whoever_makes_and_deletes_topics_and_rules_at_the_same_time_every_topic_has_what_the_rules_say() {
        let topics = topics_on(&SimDisk::new(1));
        for round in 0..40 {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let topics = &topics;
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(round * 4 + thread);
                        (0..25).for_each(|_| step(topics, &mut rng).unwrap());
                    });
                }
            });
            check(&topics);
        }
    }

    #[test]
    fn one_of_very_many_topics_is_deleted_like_any_other() {
        let topics = topics_on(&SimDisk::new(3));
        let durable = topics
            .durable(&Pattern::new(">").unwrap(), "all", Start::Beginning)
            .unwrap();
        for number in 0..5_000 {
            topics.create(&format!("t.{number}"), TopicOptions::new()).unwrap();
        }
        check(&topics);
        durable.reset(Start::Tail).unwrap();
        durable.delete().unwrap();
        check(&topics);
    }

    #[test]
    fn a_crash_leaves_topics_and_rules_in_step() {
        let mut disk = SimDisk::new(2);
        for seed in 0..100 {
            let topics = topics_on(&disk);
            check(&topics);
            let mut rng = fastrand::Rng::with_seed(seed);
            disk.stop_after(rng.u64(1..40));
            let crashed = (0..10_000).any(|_| step(&topics, &mut rng).is_err());
            assert!(crashed, "seed {seed}");
            drop(topics);
            disk = if rng.bool() { disk.kill() } else { disk.power_cut(seed) };
        }
        check(&topics_on(&disk));
    }
}
