//! Rules: the stored form of a durable subscription or a group over a pattern, and how rules apply to topics.
//!
//! A rule gives every topic that matches its pattern a durable subscription or group of its name. The transaction that
//! creates a topic reads the rules and applies them, so no message is published before the rules apply. All
//! transactions that create topics or rules, or change or delete rules, take a number ([`next_id`]). So they run one
//! after the other: of two concurrent transactions one runs again, and sees the changes of the other. A transaction
//! that deletes a topic takes no number. It deletes the range of the topic's groups, which conflicts with each
//! transaction that puts a row there.
//!
//! ```text
//! rule  1  form: 2
//!      ..  pattern: length, text
//!      ..  position up to which dead letters were brought back: number of the topic plus one, or 0; next offset
//!      ..  record of the durable subscription or group: see `record`
//! ```

use std::collections::HashMap;

use duramen_engine::{Error, Result, Snapshot, Transaction, Value};

use super::administration::{Existing, NewGroup, ensure_dead_in, other_kind};
use super::bell_of;
use super::record::{DEAD, DeadLetters, GroupRecord, Kind};
use super::state::Letters;
use crate::bytes::{Reader, put_bytes, put_number};
use crate::error::{TopicError, is_deleted};
use crate::handle::{Topic, Topics};
use crate::home::Home;
use crate::name::{Pattern, check_name};
use crate::read::{Reading, Start};
use crate::record::{TopicRecord, millis};
use crate::tables::{RULES, Tables, name_key, next_id, rule_key};

const FORM: u8 = 2;

/// The stored form of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) pattern: Pattern,
    /// Position up to which dead letters were brought back.
    pub(super) letters: Option<Letters>,
    pub(crate) record: GroupRecord,
}

impl Rule {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORM];
        put_bytes(&mut out, self.pattern.as_str().as_bytes());
        let (topic, next) = self
            .letters
            .map_or((0, 0), |letters| (u64::from(letters.topic) + 1, letters.next));
        put_number(&mut out, topic);
        put_number(&mut out, next);
        out.extend_from_slice(&self.record.encode());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Rule> {
        let mut reader = Reader::new(bytes, "the rule of a pattern");
        reader.form(FORM)?;
        let text = reader.text()?;
        let pattern = Pattern::new(text).map_err(|_| reader.damaged("has a pattern that is none"))?;
        let (topic, next) = (reader.number()?, reader.number()?);
        let topic = topic.checked_sub(1).map(u32::try_from).transpose();
        let topic = topic.map_err(|_| reader.damaged("has a number that is too large"))?;
        Ok(Rule {
            pattern,
            letters: topic.map(|topic| Letters { topic, next }),
            record: GroupRecord::decode(reader.rest())?,
        })
    }

    /// Whether a topic gets a durable subscription or group by this rule, which has this name.
    ///
    /// A group never gets dead-letter topics, unless its pattern names them. Otherwise a message that always fails
    /// would come back to the group, or circulate between such groups, without end.
    pub(crate) fn covers(&self, name: &str, topic: &str) -> bool {
        let is_left_out = match &self.record.kind {
            Kind::Durable => false,
            Kind::Group(options) => {
                let is_own = options.dead_letters.topic_of(name).as_deref() == Some(topic);
                is_own || (topic.starts_with(DEAD) && !self.pattern.as_str().starts_with(DEAD))
            }
        };
        self.pattern.matches(topic) && !is_left_out
    }

    /// The kind that a topic gets. All topics of the rule share one dead-letter topic.
    pub(crate) fn kind_in_topics(&self, name: &str) -> Kind {
        let mut kind = self.record.kind.clone();
        if let Kind::Group(options) = &mut kind
            && let Some(dead) = options.dead_letters.topic_of(name)
        {
            options.dead_letters = DeadLetters::Topic(dead);
        }
        kind
    }
}

/// A handle of a rule.
#[derive(Clone, Debug)]
pub(super) struct RuleHandle {
    pub(super) topics: Topics,
    pub(super) name: String,
    pub(super) pattern: Pattern,
    id: u32,
}

impl RuleHandle {
    pub(super) fn new(topics: &Topics, name: &str, rule: Rule) -> RuleHandle {
        RuleHandle {
            topics: topics.clone(),
            name: name.into(),
            id: rule.record.id,
            pattern: rule.pattern,
        }
    }

    pub(super) fn deleted(&self) -> Error {
        let (topic, name) = (self.pattern.to_string(), self.name.clone());
        TopicError::GroupDeleted { topic, name }.into()
    }

    fn same(&self, rule: Option<Rule>) -> Result<Rule> {
        let rule = rule.filter(|rule| rule.record.id == self.id);
        rule.ok_or_else(|| self.deleted())
    }

    /// The rule, in a snapshot.
    pub(super) fn rule(&self, snapshot: &Snapshot) -> Result<Rule> {
        self.same(self.topics.rule(snapshot, &self.name)?)
    }

    /// The rule, in a transaction.
    pub(super) fn rule_in(&self, tx: &Transaction) -> Result<Rule> {
        let rule = tx.get_ref(&self.topics.home().tables.topics, rule_key(&self.name))?;
        self.same(decoded(rule)?)
    }

    pub(super) fn put_in(&self, tx: &mut Transaction, rule: &Rule) -> Result<()> {
        tx.put(&self.topics.home().tables.topics, rule_key(&self.name), rule.encode())
    }

    /// A snapshot in which the rule exists.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        let snapshot = self.topics.store().snapshot()?;
        self.rule(&snapshot)?;
        Ok(snapshot)
    }

    /// The topics that match.
    pub(super) fn topics_in(&self, snapshot: &Snapshot) -> Result<Vec<Topic>> {
        let home = self.topics.home();
        let mut topics = Vec::new();
        for (name, record) in home.records_in(snapshot, self.pattern.literal_start())? {
            if self.pattern.matches(&name) {
                topics.push(home.topic(record?.id, &name)?);
            }
        }
        Ok(topics)
    }

    /// The record of this name in a matching topic.
    pub(super) fn record_of(&self, snapshot: &Snapshot, topic: &Topic) -> Result<Option<GroupRecord>> {
        match self.pattern.matches(topic.name()) {
            true => topic.group_record(snapshot, &self.name),
            false => Ok(None),
        }
    }

    /// Returns an existing topic by its name.
    pub(super) fn topic(&self, snapshot: &Snapshot, name: &str) -> Result<Topic> {
        check_name(name)?;
        let home = self.topics.home();
        let record = home.existing_record(snapshot, name)?;
        let record = record.ok_or_else(|| TopicError::UnknownTopic { name: name.into() })?;
        home.topic(record.id, name)
    }

    /// Deletes the rule; `delete_in` deletes what it gave to each topic. Its readers in all processes wake up and find
    /// that it is gone.
    pub(super) fn delete(
        &self,
        delete_in: impl Fn(&mut Transaction, &Tables, &[(String, u32)]) -> Result<()>,
    ) -> Result<()> {
        let home = self.topics.home();
        let tables = &home.tables;
        home.store.transact(|tx| {
            let rule = self.rule_in(tx)?;
            tx.delete(&tables.topics, rule_key(&self.name))?;
            // Makes a transaction that creates a topic now read the rules again.
            next_id(tx, &tables.topics)?;
            let mut topics = topics_of(tx, tables, &self.pattern)?;
            topics.retain(|(topic, _)| rule.covers(&self.name, topic));
            delete_in(tx, tables, &topics)?;
            tx.ring(home.registry());
            Ok(())
        })
    }
}

/// The requested state of a rule.
pub(super) struct Wanted<'a> {
    pub(super) pattern: &'a Pattern,
    pub(super) name: &'a str,
    pub(super) start: Start,
    pub(super) kind: Kind,
    pub(super) existing: Existing,
}

impl Topics {
    /// The rules with their names, sorted by name.
    pub(super) fn rules(&self) -> Result<Vec<(String, Rule)>> {
        let snapshot = self.store().snapshot()?;
        let mut cursor = snapshot.prefix(&self.home().tables.topics, RULES)?;
        let mut found = Vec::new();
        while let Some((key, rule)) = cursor.next()? {
            found.push((rule_name(key), Rule::decode(&rule)?));
        }
        Ok(found)
    }

    pub(super) fn rule(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Rule>> {
        decoded(snapshot.get(&self.home().tables.topics, rule_key(name))?)
    }

    /// Creates a rule, or changes it to the requested state, with all its topics, in one commit. An unchanged rule
    /// costs no commit.
    pub(super) fn put_rule(&self, wanted: &Wanted<'_>) -> Result<Rule> {
        check_name(wanted.name)?;
        let dead = dead_letters_of(wanted)?;
        let home = self.home();
        let snapshot = home.store.snapshot()?;
        let known = self.rule(&snapshot, wanted.name)?;
        if let Some(rule) = known.as_ref().filter(|rule| rule.record.kind == wanted.kind) {
            wanted.check(rule)?;
            let is_dead_there = match &dead {
                Some(dead) => home.existing_record(&snapshot, dead)?.is_some(),
                None => true,
            };
            if is_dead_there {
                return Ok(rule.clone());
            }
        }
        drop(snapshot);
        let starts = match known {
            Some(_) => HashMap::new(),
            None => self.starts(wanted)?,
        };
        home.store.transact(|tx| {
            let found = decoded(tx.get_ref(&home.tables.topics, rule_key(wanted.name))?)?;
            let rule = match found {
                Some(found) => {
                    wanted.check(&found)?;
                    change_in(tx, home, wanted.name, found, |record| {
                        record.kind = wanted.kind.clone();
                    })?
                }
                None => new_in(tx, home, wanted, &starts)?,
            };
            ensure_dead_in(tx, home, dead.as_deref())?;
            Ok(rule)
        })
    }

    /// Changes the rule of a handle to the requested state, with all its topics, in one commit.
    pub(super) fn change_rule(&self, wanted: &Wanted<'_>, handle: &RuleHandle) -> Result<()> {
        let (home, dead) = (self.home(), dead_letters_of(wanted)?);
        home.store.transact(|tx| {
            let rule = handle.rule_in(tx)?;
            change_in(tx, home, wanted.name, rule, |record| record.kind = wanted.kind.clone())?;
            ensure_dead_in(tx, home, dead.as_deref())
        })
    }

    /// The start positions in existing topics. Missing topics are created later.
    fn starts(&self, wanted: &Wanted<'_>) -> Result<HashMap<u32, u64>> {
        let home = self.home();
        let mut starts = HashMap::new();
        for (topic, record) in home.records(wanted.pattern.literal_start())? {
            if !wanted.pattern.matches(&topic) {
                continue;
            }
            let topic = home.topic(record?.id, &topic)?;
            let resolve = |snapshot| Reading::new(&topic, &snapshot).resolve(wanted.start);
            match topic.snapshot().and_then(resolve) {
                Ok(from) => drop(starts.insert(topic.shared().id, from)),
                // The topic was deleted meanwhile.
                Err(error) if is_deleted(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(starts)
    }
}

impl Wanted<'_> {
    /// Refuses a rule that cannot change to the requested state.
    fn check(&self, found: &Rule) -> Result<()> {
        let (kind, asked) = (found.record.kind.name(), self.kind.name());
        if kind != asked {
            return Err(other_kind(found.pattern.as_str(), self.name, kind, asked));
        }
        if found.pattern != *self.pattern {
            let (found, asked) = (found.pattern.to_string(), self.pattern.to_string());
            let name = self.name.into();
            return Err(TopicError::OtherPattern { name, found, asked }.into());
        }
        match self.existing {
            Existing::Change => Ok(()),
            Existing::Refuse => Err(TopicError::GroupExists {
                topic: found.pattern.to_string(),
                name: self.name.into(),
                kind,
                difference: found.record.kind.difference(&self.kind),
            }
            .into()),
        }
    }
}

/// Checks the options of a group. Returns the dead-letter topic that it needs.
fn dead_letters_of(wanted: &Wanted<'_>) -> Result<Option<String>> {
    let Kind::Group(options) = &wanted.kind else {
        return Ok(None);
    };
    options.check()?;
    let dead = options.dead_letters.topic_of(wanted.name);
    match dead {
        Some(dead) if check_name(&dead).is_err() => Err(TopicError::InvalidOptions {
            cause: format!(
                "the name of group {:?} is too long to put `{DEAD}` before it; name a dead-letter topic",
                wanted.name
            ),
        }
        .into()),
        dead => Ok(dead),
    }
}

fn new_in(tx: &mut Transaction, home: &Home, wanted: &Wanted<'_>, starts: &HashMap<u32, u64>) -> Result<Rule> {
    let (tables, name) = (&home.tables, wanted.name);
    let now = millis(home.store.wall_clock());
    let rule = Rule {
        pattern: wanted.pattern.clone(),
        letters: None,
        record: GroupRecord {
            id: next_id(tx, &tables.topics)?,
            created: now,
            is_paused: false,
            kind: wanted.kind.clone(),
        },
    };
    tx.put(&tables.topics, rule_key(name), rule.encode())?;
    for (topic, id) in topics_of(tx, tables, wanted.pattern)? {
        let from = starts.get(&id).copied().unwrap_or(0);
        obey_in(tx, home, (name, &rule), (&topic, id), (from, now))?;
    }
    Ok(rule)
}

/// Changes a rule, and the groups or subscriptions that it gave to topics.
pub(super) fn change_in(
    tx: &mut Transaction,
    home: &Home,
    name: &str,
    mut rule: Rule,
    change: impl Fn(&mut GroupRecord),
) -> Result<Rule> {
    let (tables, before) = (&home.tables, rule.clone());
    change(&mut rule.record);
    tx.put(&tables.topics, rule_key(name), rule.encode())?;
    // Makes a transaction that creates a topic now read the rules again.
    next_id(tx, &tables.topics)?;
    for (topic, id) in topics_of(tx, tables, &rule.pattern)? {
        let key = name_key(id, name);
        let found = tx.get_ref(&tables.groups, &key)?;
        let Some(found) = found.map(|record| GroupRecord::decode(&record)).transpose()? else {
            continue;
        };
        if found.kind.name() != rule.record.kind.name() {
            continue;
        }
        if !rule.covers(name, &topic) {
            if !before.covers(name, &topic) {
                continue;
            }
            let cause = format!(
                "topic {topic:?} cannot take the dead letters of group {name:?}, which delivers its messages; \
                 name another topic, or delete the group there first"
            );
            return Err(TopicError::InvalidOptions { cause }.into());
        }
        put_changed_in(tx, home, (name, &rule), &key, found)?;
    }
    Ok(rule)
}

/// Gives a topic's group the options of the rule.
fn put_changed_in(
    tx: &mut Transaction,
    home: &Home,
    (name, rule): (&str, &Rule),
    key: &[u8],
    found: GroupRecord,
) -> Result<()> {
    let record = GroupRecord {
        is_paused: rule.record.is_paused,
        kind: rule.kind_in_topics(name),
        ..found
    };
    tx.ring(&bell_of(home, record.id, name)?);
    tx.put(&home.tables.groups, key, record.encode())
}

/// Applies the rules to a topic that is being created.
pub(super) fn apply_rules(tx: &mut Transaction, home: &Home, (topic, id): (&str, u32), now: u64) -> Result<()> {
    let mut found = Vec::new();
    let mut rules = tx.prefix(&home.tables.topics, RULES)?;
    while let Some((key, rule)) = rules.next()? {
        let (name, rule) = (rule_name(key), Rule::decode(&rule)?);
        if rule.covers(&name, topic) {
            found.push((name, rule));
        }
    }
    drop(rules);
    found
        .iter()
        .try_for_each(|(name, rule)| obey_in(tx, home, (name, rule), (topic, id), (0, now)))
}

/// Applies a rule to a topic. A group or subscription of this name that the topic already has keeps its position.
fn obey_in(
    tx: &mut Transaction,
    home: &Home,
    (name, rule): (&str, &Rule),
    (topic, id): (&str, u32),
    (from, now): (u64, u64),
) -> Result<()> {
    if !rule.covers(name, topic) {
        return Ok(());
    }
    let key = name_key(id, name);
    let found = tx.get_ref(&home.tables.groups, &key)?;
    match found.map(|record| GroupRecord::decode(&record)).transpose()? {
        None => {
            let kind = rule.kind_in_topics(name);
            let group = rule.new_group(name, id, &kind, (from, now));
            group.put_in(tx, &home.tables).map(|_| ())
        }
        Some(found) if found.kind.name() != rule.record.kind.name() => {
            Err(other_kind(topic, name, found.kind.name(), rule.record.kind.name()))
        }
        Some(found) => match &rule.record.kind {
            Kind::Durable => Ok(()),
            Kind::Group(_) => put_changed_in(tx, home, (name, rule), &key, found),
        },
    }
}

impl Rule {
    /// The group or subscription that the rule creates in the topic with this number.
    pub(crate) fn new_group<'a>(
        &self,
        name: &'a str,
        topic: u32,
        kind: &'a Kind,
        (from, now): (u64, u64),
    ) -> NewGroup<'a> {
        NewGroup {
            topic,
            name,
            kind,
            is_paused: self.record.is_paused,
            from,
            now,
        }
    }
}

/// Names and numbers of the topics of a pattern, as a transaction sees them.
pub(super) fn topics_of(tx: &Transaction, tables: &Tables, pattern: &Pattern) -> Result<Vec<(String, u32)>> {
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

fn decoded(rule: Option<Value<'_>>) -> Result<Option<Rule>> {
    rule.map(|rule| Rule::decode(&rule)).transpose()
}

fn rule_name(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[RULES.len()..]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use duramen_engine::{Durability, Maintenance, Options};
    use duramen_io::SimDisk;

    use super::super::record::GroupOptions;
    use super::super::state::Cursor;
    use super::*;
    use crate::record::TopicOptions;
    use crate::topics::TopicsOptions;

    #[test]
    fn rules_come_back_as_they_were() {
        let letters = Letters {
            topic: 0,
            next: 1 << 40,
        };
        for (letters, kind) in [
            (None, Kind::Durable),
            (Some(letters), Kind::Group(GroupOptions::new().tries(3))),
        ] {
            let record = GroupRecord {
                id: 9,
                created: 1 << 40,
                is_paused: letters.is_some(),
                kind,
            };
            let rule = Rule {
                pattern: Pattern::new("orders.*.>").unwrap(),
                letters,
                record,
            };
            let bytes = rule.encode();
            assert_eq!(Rule::decode(&bytes).unwrap(), rule);
            for length in 0..bytes.len() {
                assert!(Rule::decode(&bytes[..length]).is_err(), "{length}");
            }
            let strange = bytes.iter().map(|byte| if *byte == b'*' { b' ' } else { *byte });
            assert!(Rule::decode(&strange.collect::<Vec<_>>()).is_err());
        }
    }

    fn topics_on(disk: &SimDisk) -> Topics {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        let store = options.open_on(disk.platform()).unwrap();
        Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap()
    }

    /// Asserts that every topic has exactly what the rules say, and that nothing is left of deleted topics and rules.
    fn check(topics: &Topics) {
        let home = topics.home();
        let snapshot = home.store.snapshot().unwrap();
        let rules = topics.rules().unwrap();
        let mut expected = BTreeMap::new();
        for (topic, record) in home.records("").unwrap() {
            let id = record.unwrap().id;
            for (name, rule) in rules.iter().filter(|(name, rule)| rule.covers(name, &topic)) {
                let (kind, is_paused) = (rule.kind_in_topics(name), rule.record.is_paused);
                expected.insert(name_key(id, name), (kind, is_paused));
            }
        }
        let mut found = BTreeMap::new();
        let mut ids = BTreeSet::new();
        let mut cursor = snapshot.prefix(&home.tables.groups, b"").unwrap();
        while let Some((key, record)) = cursor.next().unwrap() {
            let record = GroupRecord::decode(&record).unwrap();
            ids.insert(record.id);
            found.insert(key.to_vec(), (record.kind, record.is_paused));
        }
        assert_eq!(found, expected);
        let mut cursors = BTreeSet::new();
        let mut rows = snapshot.range(&home.tables.states, ..).unwrap();
        while let Some((key, _)) = rows.next().unwrap() {
            let id = u32::from_be_bytes(*key.first_chunk().unwrap());
            assert!(ids.contains(&id), "states of no group");
            cursors.extend((*key == Cursor::key(id)).then_some(id));
        }
        assert_eq!(cursors, ids);
    }

    /// Creates, changes or deletes something. Existing or missing objects are not errors here.
    fn step(topics: &Topics, rng: &mut fastrand::Rng) -> Result<()> {
        let topic = format!("{}.{}", rng.u8(..3), rng.u8(..4));
        let name = ["red", "green", "blue"][rng.usize(..3)];
        let pattern = Pattern::new(["*.1", ">", "2.*"][rng.usize(..3)]).unwrap();
        let options = GroupOptions::new().tries(rng.u32(1..3));
        let done = match rng.u8(..14) {
            0..=4 => topics.create(&topic, TopicOptions::new()).map(|_| ()),
            5..=6 => topics.delete(&topic),
            7 => topics.durable(&pattern, name, Start::Tail).map(|_| ()),
            8..=9 => topics
                .ensure_group(&pattern, name, Start::Beginning, options)
                .map(|_| ()),
            10 => match topics.existing_group(name) {
                Ok(group) if rng.bool() => group.pause(),
                Ok(group) => group.resume(),
                Err(error) => Err(error),
            },
            11 => match topics.existing_group(name) {
                Ok(group) if rng.bool() => group.delete(),
                Ok(group) => group.reset(Start::Beginning),
                Err(error) => Err(error),
            },
            12 => topics.durables()?.first().map_or(Ok(()), |durable| durable.delete()),
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
    fn topics_have_what_the_rules_say_when_threads_change_both() {
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
        let pattern = Pattern::new("t.*").unwrap();
        let group = topics
            .create_group(&pattern, "all", Start::Beginning, GroupOptions::new())
            .unwrap();
        group.pause().unwrap();
        check(&topics);
        group.delete().unwrap();
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
