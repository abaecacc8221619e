//! Creating, changing, finding and deleting groups.

use std::time::Duration;

use duramen_engine::{Error, Reason, Result, Snapshot, Transaction};

use super::description::{GroupDescription, describe, group_records};
use super::record::{GroupOptions, GroupRecord, Kind};
use super::state::{Cursor, anchor_key};
use super::{Group, bell_of};
use crate::error::TopicError;
use crate::handle::Topic;
use crate::home::Home;
use crate::name::check_name;
use crate::read::{Reading, Start};
use crate::record::{TopicOptions, millis};
use crate::tables::{Tables, after_id, name_key, next_id, rule_key};

/// How long a dead-letter topic that a group created keeps messages.
const DEAD_LETTERS_KEPT: Duration = Duration::from_secs(14 * 86_400);

impl Topic {
    pub(crate) fn unknown_group(&self, name: &str) -> duramen_engine::Error {
        let (topic, name) = (self.name().into(), name.into());
        TopicError::UnknownGroup { topic, name }.into()
    }

    /// Creates a group with these options. `start` selects its first message.
    ///
    /// # Errors
    /// [`TopicError::GroupExists`], which lists the differences. [`TopicError::InvalidName`],
    /// [`TopicError::InvalidOptions`], [`TopicError::NotYetPublished`], [`Reason::TopicDeleted`], and those of a
    /// commit.
    pub fn create_group(&self, name: &str, start: Start, options: GroupOptions) -> Result<Group> {
        self.put_group(name, start, options, Existing::Refuse)
    }

    /// Makes sure that there is a group with these options. A missing group is created, and `start` selects its first
    /// message. An existing group gets all these options, and keeps its position.
    ///
    /// # Errors
    /// [`TopicError::InvalidName`], [`TopicError::InvalidOptions`], [`TopicError::OtherKind`],
    /// [`TopicError::NotYetPublished`], [`Reason::TopicDeleted`], and those of a commit.
    pub fn ensure_group(&self, name: &str, start: Start, options: GroupOptions) -> Result<Group> {
        self.put_group(name, start, options, Existing::Change)
    }

    fn put_group(&self, name: &str, start: Start, options: GroupOptions, existing: Existing) -> Result<Group> {
        check_name(name)?;
        let dead = self.dead_letters_of(&options)?;
        let snapshot = self.snapshot()?;
        let kind = Kind::Group(options);
        let known = self.group_record(&snapshot, name)?;
        let is_dead_there = match &dead {
            Some(dead) => self.home().existing_record(&snapshot, dead)?.is_some(),
            None => true,
        };
        if let Some(record) = known.filter(|record| record.kind == kind && is_dead_there)
            && existing == Existing::Change
        {
            return Group::new(self, name, &record);
        }
        drop(snapshot);
        let record = self.write_group(name, start, &kind, existing, dead.as_deref())?;
        Group::new(self, name, &record)
    }

    /// Creates or changes a group and its dead-letter topic, in one transaction.
    fn write_group(
        &self,
        name: &str,
        start: Start,
        kind: &Kind,
        existing: Existing,
        dead: Option<&str>,
    ) -> Result<GroupRecord> {
        let write = |tx: &mut Transaction| self.write_group_in(tx, (name, start), kind, existing, dead);
        self.home().store.transact(write)
    }

    fn write_group_in(
        &self,
        tx: &mut Transaction,
        (name, start): (&str, Start),
        kind: &Kind,
        existing: Existing,
        dead: Option<&str>,
    ) -> Result<GroupRecord> {
        let home = self.home();
        let key = name_key(self.shared().id, name);
        let found = tx.get_ref(&home.tables.groups, &key)?;
        let found = found.map(|record| GroupRecord::decode(&record)).transpose()?;
        let record = match found {
            Some(found) if existing == Existing::Refuse => {
                return Err(TopicError::GroupExists {
                    topic: self.name().into(),
                    name: name.into(),
                    kind: found.kind.name(),
                    difference: found.kind.difference(kind),
                }
                .into());
            }
            Some(found) if found.kind.name() != kind.name() => {
                return Err(other_kind(self.name(), name, found.kind.name(), kind.name()));
            }
            Some(found) => {
                let kind = kind.clone();
                let record = GroupRecord { kind, ..found };
                tx.put(&home.tables.groups, &key, record.encode())?;
                tx.ring(&bell_of(home, record.id, name)?);
                record
            }
            None => self.new_group_in(tx, name, start, kind)?,
        };
        ensure_dead_in(tx, home, dead)?;
        Ok(record)
    }

    /// Creates a group in a transaction, as [`Topic::create_group`] does.
    ///
    /// # Errors
    /// As [`Topic::create_group`].
    #[doc(hidden)]
    pub fn create_group_in(
        &self,
        tx: &mut Transaction,
        name: &str,
        start: Start,
        options: &GroupOptions,
    ) -> Result<()> {
        check_name(name)?;
        let dead = self.dead_letters_of(options)?;
        let kind = Kind::Group(options.clone());
        self.write_group_in(tx, (name, start), &kind, Existing::Refuse, dead.as_deref())?;
        Ok(())
    }

    /// Deletes a group or durable subscription in a transaction.
    ///
    /// # Errors
    /// [`TopicError::UnknownGroup`].
    #[doc(hidden)]
    pub fn delete_group_in(&self, tx: &mut Transaction, name: &str) -> Result<()> {
        let home = self.home();
        let key = name_key(self.shared().id, name);
        let record = tx.get_ref(&home.tables.groups, &key)?;
        let Some(record) = record.map(|record| GroupRecord::decode(&record)).transpose()? else {
            return Err(self.unknown_group(name));
        };
        tx.delete(&home.tables.groups, &key)?;
        tx.ring(&bell_of(home, record.id, name)?);
        delete_rows(tx, &home.tables, record.id)
    }

    fn new_group_in(&self, tx: &mut Transaction, name: &str, start: Start, kind: &Kind) -> Result<GroupRecord> {
        let home = self.home();
        let from = Reading::new(self, &self.snapshot()?).resolve(start)?;
        if tx.sequence_state(&self.shared().sequence)?.is_none() {
            let name = self.name().to_string();
            return Err(Reason::TopicDeleted { name }.into());
        }
        let group = NewGroup {
            topic: self.shared().id,
            name,
            kind,
            is_paused: false,
            from,
            now: millis(tx.wall_clock()),
        };
        // Readers of a rule that leave the topic out then find that the topic has the group.
        if tx.get_ref(&home.tables.topics, rule_key(name))?.is_some() {
            tx.ring(home.registry());
        }
        group.put_in(tx, &home.tables)
    }

    /// Checks the options of a group. Returns the dead-letter topic that it needs.
    pub(super) fn dead_letters_of(&self, options: &GroupOptions) -> Result<Option<String>> {
        options.check()?;
        let Some(dead) = options.dead_letters.topic_of(self.name()) else {
            return Ok(None);
        };
        let refused = |cause: String| Err(TopicError::InvalidOptions { cause }.into());
        if dead == self.name() {
            return refused("a topic cannot take its own dead letters; name another one".into());
        }
        if check_name(&dead).is_err() {
            let name = self.name();
            return refused(format!(
                "the name of topic {name:?} is too long to put `dead.` before it; name a dead-letter topic"
            ));
        }
        Ok(Some(dead))
    }

    /// Returns an existing group.
    ///
    /// # Errors
    /// [`TopicError::UnknownGroup`], [`TopicError::OtherKind`].
    pub fn existing_group(&self, name: &str) -> Result<Group> {
        let snapshot = self.snapshot()?;
        let record = self.group_record(&snapshot, name)?;
        let record = record.ok_or_else(|| self.unknown_group(name))?;
        match record.kind {
            Kind::Group(_) => Group::new(self, name, &record),
            Kind::Durable => Err(other_kind(self.name(), name, record.kind.name(), "group")),
        }
    }

    /// Describes the groups and durable subscriptions of the topic, sorted by name.
    ///
    /// # Errors
    /// [`Reason::TopicDeleted`].
    pub fn groups(&self) -> Result<Vec<GroupDescription>> {
        let snapshot = self.snapshot()?;
        let reading = Reading::new(self, &snapshot);
        let next = reading.state()?.next;
        let records = group_records(&reading)?;
        let describe = |(name, record)| describe(&reading, next, name, &record);
        records.into_iter().map(describe).collect()
    }

    /// Deletes a group or durable subscription. Members that use it get [`TopicError::GroupDeleted`].
    ///
    /// # Errors
    /// [`TopicError::UnknownGroup`], and those of a commit.
    pub fn delete_group(&self, name: &str) -> Result<()> {
        self.home().store.transact(|tx| self.delete_group_in(tx, name))
    }

    pub(crate) fn group_record(&self, snapshot: &Snapshot, name: &str) -> Result<Option<GroupRecord>> {
        let record = snapshot.get(&self.home().tables.groups, name_key(self.shared().id, name))?;
        record.map(|record| GroupRecord::decode(&record)).transpose()
    }

    /// Returns the durable subscription of this name, creating it when it is missing.
    pub(super) fn get_or_make_durable(&self, name: &str, start: Start) -> Result<GroupRecord> {
        check_name(name)?;
        let snapshot = self.snapshot()?;
        let record = match self.group_record(&snapshot, name)? {
            Some(record) => record,
            None => self.write_group(name, start, &Kind::Durable, Existing::Change, None)?,
        };
        match record.kind {
            Kind::Durable => Ok(record),
            kind => Err(other_kind(self.name(), name, kind.name(), Kind::Durable.name())),
        }
    }

    pub(super) fn group_deleted(&self, name: &str) -> Error {
        let (topic, name) = (self.name().into(), name.into());
        TopicError::GroupDeleted { topic, name }.into()
    }
}

/// Creates a missing dead-letter topic.
pub(super) fn ensure_dead_in(tx: &mut Transaction, home: &Home, dead: Option<&str>) -> Result<()> {
    let Some(dead) = dead else { return Ok(()) };
    if tx.get_ref(&home.tables.topics, dead.as_bytes())?.is_some() {
        return Ok(());
    }
    let options = TopicOptions::new().keep_for(DEAD_LETTERS_KEPT);
    home.create_in(tx, dead, &options).map(|_| ())
}

pub(super) fn other_kind(topic: &str, name: &str, found: &'static str, asked: &'static str) -> Error {
    TopicError::OtherKind {
        topic: topic.into(),
        name: name.into(),
        found,
        asked,
    }
    .into()
}

/// What happens to an existing group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    Refuse,
    /// The group gets the options.
    Change,
}

/// A group that is being created.
#[derive(Clone, Copy)]
pub(crate) struct NewGroup<'a> {
    /// Number of its topic.
    pub(crate) topic: u32,
    pub(crate) name: &'a str,
    pub(crate) kind: &'a Kind,
    pub(crate) is_paused: bool,
    /// The first message that it delivers.
    pub(crate) from: u64,
    /// Milliseconds since 1970.
    pub(crate) now: u64,
}

impl NewGroup<'_> {
    pub(super) fn put_in(&self, tx: &mut Transaction, tables: &Tables) -> Result<GroupRecord> {
        let (record, cursor) = self.rows(next_id(tx, &tables.topics)?);
        tx.put(&tables.groups, name_key(self.topic, self.name), record.encode())?;
        tx.put(&tables.states, Cursor::key(record.id), cursor.encode())?;
        Ok(record)
    }

    /// The stored rows of the group with this number.
    pub(crate) fn rows(&self, id: u32) -> (GroupRecord, Cursor) {
        let record = GroupRecord {
            id,
            created: self.now,
            is_paused: self.is_paused,
            kind: self.kind.clone(),
        };
        (record, Cursor::at(self.from))
    }
}

/// Deletes the durable subscription of this name, if the topic with this number has one.
pub(super) fn delete_durable(tx: &mut Transaction, tables: &Tables, topic: u32, name: &str) -> Result<()> {
    let key = name_key(topic, name);
    let record = tx.get_ref(&tables.groups, &key)?;
    match record.map(|record| GroupRecord::decode(&record)).transpose()? {
        Some(record) if record.kind == Kind::Durable => {
            tx.delete(&tables.groups, &key)?;
            // It has no other rows; a range for each topic would be too many ranges.
            tx.delete(&tables.states, anchor_key(record.id))?;
            tx.delete(&tables.states, Cursor::key(record.id))
        }
        _ => Ok(()),
    }
}

/// Deletes the whole state of a group.
pub(super) fn delete_rows(tx: &mut Transaction, tables: &Tables, id: u32) -> Result<()> {
    let (low, high) = (id.to_be_bytes(), after_id(id));
    tx.delete_range(&tables.states, &low[..]..&high[..])
}
