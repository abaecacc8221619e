//! Groups: members compete for the messages of a topic, each message is leased to one of them, and is delivered again
//! until somebody acknowledges it.
//!
//! Everything that a group knows is in rows of the store (see [`state`]): so an acknowledgement can be part of any
//! transaction, and what a message caused and that it was acknowledged become true together or not at all. Members of
//! one process take turns at one lock; whoever else changes the rows is met as a conflict of transactions:
//! - a member that acknowledges a message writes its single row;
//! - whoever takes a lease back that ran out writes the single row of every message of it that has none.
//!
//! So of the two, one commits, and the other runs again and sees what has become of the message.

mod claim;
mod dead;
mod deliveries;
mod desk;
mod durable;
mod durable_pattern;
mod memory;
pub(crate) mod record;
mod serve;
mod settle;
pub(crate) mod state;
mod sweep;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use duramen_engine::{
    Durability, Error, Listener, Reason, Result, Snapshot, Store, Transaction, TransactionOptions, Value,
};

use crate::error::TopicError;
use crate::name::check_name;
use crate::read::{Reading, Start};
use crate::record::millis;
use crate::tables::{Tables, after_id, name_key};
use crate::topic::Topic;
use crate::topics::{locked, next_id};
use desk::Desk;
use memory::Memory;
use record::{GroupRecord, Kind};
use state::{Cursor, Row, Single};

pub use claim::Member;
pub use dead::{DeadLetter, Redriven};
pub use deliveries::{Deliveries, Delivery};
pub use durable::Durable;
pub use durable_pattern::{DurablePattern, DurablePosition};
pub(crate) use durable_pattern::{Rule, apply_rules};
pub use record::GroupOptions;
pub(crate) use settle::Verdict;

/// A group of a topic. Clones are handles of the same group.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{GroupOptions, Start, TopicOptions, TopicWrites, Topics};
/// use std::time::Duration;
///
/// let orders = Topics::open(&store)?.create("orders", TopicOptions::new())?;
/// let stock = store.map("stock")?;
/// let group = orders.group("stock", Start::Beginning, GroupOptions::new())?;
/// orders.publish(b"12 apples")?;
///
/// let mut member = group.member("worker 1");
/// let deliveries = member.receive(10, Duration::from_secs(1))?.unwrap();
/// for delivery in deliveries {
///     store.transact(|tx| {
///         tx.put(&stock, b"apples", b"12")?;
///         tx.acknowledge(&delivery) // in the same commit: never once more, never not at all
///     })?;
/// }
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone)]
pub struct Group {
    topic: Topic,
    shared: Arc<Shared>,
}

/// What the handles of a group in this process share.
pub(crate) struct Shared {
    id: u32,
    name: String,
    /// Key of the record.
    key: Vec<u8>,
    /// The record as it was read last, with its bytes.
    known: Mutex<Option<(Vec<u8>, Arc<GroupRecord>)>>,
    /// Whoever hands out messages has it. `None`: the rows are to be read first.
    turn: Mutex<Option<Memory>>,
    /// Members that wait for the turn.
    desk: Desk,
    /// The next token of a lease, counted on from a random number; 0: none was drawn.
    tokens: AtomicU64,
    /// Members that may be asleep.
    members: Mutex<Vec<Weak<Listener>>>,
}

impl Shared {
    /// A token that no other lease has: asking for a random number each time would be a call of the kernel.
    fn token(&self, store: &Store) -> u64 {
        if self.tokens.load(Ordering::Relaxed) == 0 {
            let first = store.random_number();
            // Whoever comes second counts on from what the first has drawn.
            let _ = self
                .tokens
                .compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("topic", &self.topic.name())
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

/// What a group is and has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupDescription {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: SystemTime,
    /// How it delivers; `None`: it is a durable subscription.
    pub options: Option<GroupOptions>,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Everything before this message is acknowledged, or was given up.
    pub acknowledged: u64,
    /// Messages before this one were delivered at least once.
    pub next: u64,
    /// Messages that are with members, or wait to be delivered again.
    pub pending: u64,
    /// Messages that were never delivered.
    pub lag: u64,
}

/// A message that is with a member, or waits to be delivered again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// Its offset.
    pub offset: u64,
    /// How often it was delivered.
    pub tries: u32,
    /// When its lease is over, or it is due again.
    pub until: SystemTime,
    /// The member that has it; `None`: it waits.
    pub member: Option<String>,
    /// Why it failed the last time.
    pub error: Option<String>,
}

/// Claims and acknowledgements outside of transactions are written, not synced: if a power cut takes one back, the message
/// is delivered again.
pub(crate) fn written() -> TransactionOptions {
    TransactionOptions::new().durability(Durability::Written)
}

impl Topic {
    /// A group, which is made with these options when it is missing; then `start` says with which message it begins.
    ///
    /// # Errors
    /// [`TopicError::InvalidName`], [`TopicError::InvalidOptions`], [`TopicError::OtherKind`],
    /// [`TopicError::NotYetPublished`], [`Reason::TopicDeleted`], and those of a commit.
    pub fn group(&self, name: &str, start: Start, options: GroupOptions) -> Result<Group> {
        self.prepare(&options)?;
        let record = self.get_or_make(name, start, Kind::Group(options))?;
        Ok(Group::new(self, name, &record))
    }

    /// Checks the options of a group, and makes its dead-letter topic.
    fn prepare(&self, options: &GroupOptions) -> Result<()> {
        options.check()?;
        let Some(dead) = &options.dead_letters else {
            return Ok(());
        };
        if **dead == *self.name() {
            let cause = "a topic cannot take its own dead letters; name another one".into();
            return Err(TopicError::InvalidOptions { cause }.into());
        }
        self.topics().get_or_create(dead, Default::default()).map(|_| ())
    }

    /// A group that exists.
    ///
    /// # Errors
    /// [`TopicError::UnknownGroup`], [`TopicError::OtherKind`].
    pub fn existing_group(&self, name: &str) -> Result<Group> {
        let snapshot = self.snapshot()?;
        let record = self.group_record(&snapshot, name)?;
        let record = record.ok_or_else(|| self.unknown_group(name))?;
        match record.kind {
            Kind::Group(_) => Ok(Group::new(self, name, &record)),
            Kind::Durable => Err(other_kind(self.name(), name, record.kind.name(), "group")),
        }
    }

    /// What the groups and durable subscriptions of the topic are and have to do, sorted by name.
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

    /// Deletes a group or durable subscription. Members that use it are told so.
    ///
    /// # Errors
    /// [`TopicError::UnknownGroup`], and those of a commit.
    pub fn delete_group(&self, name: &str) -> Result<()> {
        let home = self.home();
        let key = name_key(self.shared().id, name);
        home.store.transact(|tx| {
            let record = tx.get(&home.tables.groups, &key)?;
            let Some(record) = record.map(|record| GroupRecord::decode(&record)).transpose()? else {
                return Err(self.unknown_group(name));
            };
            tx.delete(&home.tables.groups, &key)?;
            delete_rows(tx, &home.tables, record.id)
        })
    }

    pub(crate) fn group_record(&self, snapshot: &Snapshot, name: &str) -> Result<Option<GroupRecord>> {
        let record = snapshot.get(&self.home().tables.groups, &name_key(self.shared().id, name))?;
        record.map(|record| GroupRecord::decode(&record)).transpose()
    }

    /// The record of a group or durable subscription, which is made when it is missing.
    fn get_or_make(&self, name: &str, start: Start, kind: Kind) -> Result<GroupRecord> {
        check_name(name)?;
        let snapshot = self.snapshot()?;
        let record = match self.group_record(&snapshot, name)? {
            Some(record) => record,
            None => {
                let from = Reading::new(self, &snapshot).resolve(start)?;
                drop(snapshot);
                self.make_group(name, from, &kind)?
            }
        };
        if std::mem::discriminant(&record.kind) != std::mem::discriminant(&kind) {
            return Err(other_kind(self.name(), name, record.kind.name(), kind.name()));
        }
        Ok(record)
    }

    /// Makes a group, unless somebody else just did.
    fn make_group(&self, name: &str, from: u64, kind: &Kind) -> Result<GroupRecord> {
        let home = self.home();
        let key = name_key(self.shared().id, name);
        home.store.transact(|tx| {
            if let Some(record) = tx.get(&home.tables.groups, &key)? {
                return GroupRecord::decode(&record);
            }
            if tx.sequence_state(&self.shared().sequence)?.is_none() {
                let name = self.name().to_string();
                return Err(Reason::TopicDeleted { name }.into());
            }
            let group = NewGroup {
                topic: self.shared().id,
                name,
                kind,
                from,
                now: millis(home.store.wall_clock()),
            };
            group.put_in(tx, &home.tables)
        })
    }

    fn group_deleted(&self, name: &str) -> Error {
        let (topic, name) = (self.name().into(), name.into());
        TopicError::GroupDeleted { topic, name }.into()
    }
}

fn other_kind(topic: &str, name: &str, found: &'static str, asked: &'static str) -> Error {
    TopicError::OtherKind {
        topic: topic.into(),
        name: name.into(),
        found,
        asked,
    }
    .into()
}

/// A group that is being made.
#[derive(Clone, Copy)]
pub(crate) struct NewGroup<'a> {
    /// The number of its topic.
    pub(crate) topic: u32,
    pub(crate) name: &'a str,
    pub(crate) kind: &'a Kind,
    /// The first message that it delivers.
    pub(crate) from: u64,
    /// Milliseconds since 1970.
    pub(crate) now: u64,
}

impl NewGroup<'_> {
    fn put_in(&self, tx: &mut Transaction, tables: &Tables) -> Result<GroupRecord> {
        let (record, cursor) = self.rows(next_id(tx, &tables.topics)?);
        tx.put(&tables.groups, &name_key(self.topic, self.name), &record.encode())?;
        tx.put(&tables.states, &Cursor::key(record.id), &cursor.encode())?;
        Ok(record)
    }

    /// What is stored of it when it gets this number.
    pub(crate) fn rows(&self, id: u32) -> (GroupRecord, Cursor) {
        let record = GroupRecord {
            id,
            created: self.now,
            is_paused: false,
            kind: self.kind.clone(),
        };
        let cursor = Cursor {
            next: self.from,
            floor: self.from,
        };
        (record, cursor)
    }
}

/// Deletes the durable subscription of this name, if the topic with this number has one.
fn delete_durable(tx: &mut Transaction, tables: &Tables, topic: u32, name: &str) -> Result<()> {
    let key = name_key(topic, name);
    let record = tx.get(&tables.groups, &key)?;
    match record.map(|record| GroupRecord::decode(&record)).transpose()? {
        Some(record) if record.kind == Kind::Durable => {
            tx.delete(&tables.groups, &key)?;
            // It has no other row; a range for each topic would be too many of them.
            tx.delete(&tables.states, &Cursor::key(record.id))
        }
        _ => Ok(()),
    }
}

/// Deletes all that a group knows.
fn delete_rows(tx: &mut Transaction, tables: &Tables, id: u32) -> Result<()> {
    let (low, high) = (id.to_be_bytes(), after_id(id));
    tx.delete_range(&tables.states, &low[..]..&high[..])
}

/// Names and records of the groups and durable subscriptions of a topic.
fn group_records(reading: &Reading<'_>) -> Result<Vec<(String, GroupRecord)>> {
    let topic = reading.topic.shared().id;
    let mut cursor = reading
        .snapshot
        .prefix(&reading.topic.home().tables.groups, &topic.to_be_bytes())?;
    let mut records = Vec::new();
    while let Some((key, record)) = cursor.next()? {
        let name = String::from_utf8_lossy(&key[4..]).into_owned();
        records.push((name, GroupRecord::decode(&record)?));
    }
    Ok(records)
}

fn describe(reading: &Reading<'_>, next: u64, name: String, record: &GroupRecord) -> Result<GroupDescription> {
    let cursor = stored_cursor(reading, &name, record.id)?;
    let pending = pending(reading, record.id, &cursor)?;
    Ok(GroupDescription {
        name,
        created: at(record.created),
        options: match &record.kind {
            Kind::Durable => None,
            Kind::Group(options) => Some(options.clone()),
        },
        is_paused: record.is_paused,
        acknowledged: pending.first().map_or(cursor.next, |first| first.offset),
        next: cursor.next,
        pending: pending.len() as u64,
        lag: next.saturating_sub(cursor.next),
    })
}

fn stored_cursor(reading: &Reading<'_>, name: &str, id: u32) -> Result<Cursor> {
    let cursor = reading
        .snapshot
        .get(&reading.topic.home().tables.states, &Cursor::key(id))?;
    let cursor = cursor.ok_or_else(|| reading.topic.group_deleted(name))?;
    Cursor::decode(&cursor)
}

/// Messages of a group that are open, by offset.
fn pending(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<Vec<Pending>> {
    let states = &reading.topic.home().tables.states;
    let (low, high) = Row::singles(id, cursor.floor..u64::MAX);
    let mut walk = reading.snapshot.range(states, &low[..]..&high[..])?;
    let mut found = std::collections::BTreeMap::new();
    while let Some((key, row)) = walk.next()? {
        if let Row::Single(offset, single) = Row::decode(key, &row)? {
            found.insert(offset, pending_single(offset, single));
        }
    }
    let (low, high) = Row::runs_from(id, cursor.floor);
    let mut walk = reading.snapshot.range(states, &low[..]..&high[..])?;
    while let Some((key, row)) = walk.next()? {
        let Row::Run(first, run) = Row::decode(key, &row)? else {
            continue;
        };
        for offset in first..run.end {
            let in_run = || {
                Some(Pending {
                    offset,
                    tries: 1,
                    until: at(run.lease.deadline),
                    member: Some(run.lease.member.clone()),
                    error: None,
                })
            };
            found.entry(offset).or_insert_with(in_run);
        }
    }
    Ok(found.into_values().flatten().collect())
}

fn pending_single(offset: u64, single: Single) -> Option<Pending> {
    match single {
        Single::Settled { .. } => None,
        Single::Waits { due, tries, error, .. } => Some(Pending {
            offset,
            tries,
            until: at(due),
            member: None,
            error: Some(error),
        }),
        Single::Again { lease, tries } => Some(Pending {
            offset,
            tries,
            until: at(lease.deadline),
            member: Some(lease.member),
            error: None,
        }),
    }
}

fn at(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// The first message that some group or durable subscription has not acknowledged; `None`: there is none of them.
pub(crate) fn acknowledged_by_all(reading: &Reading<'_>) -> Result<Option<u64>> {
    let mut floor = None;
    for (name, record) in group_records(reading)? {
        let cursor = stored_cursor(reading, &name, record.id)?;
        let open = first_open(reading, record.id, &cursor)?;
        floor = Some(floor.map_or(open, |floor: u64| floor.min(open)));
    }
    Ok(floor)
}

/// The first message of a group that may be open.
fn first_open(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<u64> {
    let states = &reading.topic.home().tables.states;
    let mut open = cursor.next;
    let (low, high) = Row::runs_from(id, cursor.floor);
    if let Some((key, _)) = reading.snapshot.range(states, &low[..]..&high[..])?.next()? {
        open = open.min(crate::tables::offset_of(key));
    }
    let (low, high) = Row::singles(id, cursor.floor..open);
    let mut walk = reading.snapshot.range(states, &low[..]..&high[..])?;
    while let Some((key, row)) = walk.next()? {
        match Row::decode(key, &row)? {
            Row::Single(_, Single::Settled { .. }) => {}
            Row::Single(offset, _) => return Ok(offset),
            Row::Run(..) => {}
        }
    }
    Ok(open)
}

impl Group {
    fn new(topic: &Topic, name: &str, record: &GroupRecord) -> Group {
        let shared = || {
            Arc::new(Shared {
                id: record.id,
                name: name.into(),
                key: name_key(topic.shared().id, name),
                known: Mutex::new(None),
                turn: Mutex::new(None),
                desk: Desk::default(),
                tokens: AtomicU64::new(0),
                members: Mutex::default(),
            })
        };
        Group {
            topic: topic.clone(),
            shared: topic.home().group(record.id, shared),
        }
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    fn deleted(&self) -> Error {
        self.topic.group_deleted(&self.shared.name)
    }

    /// A member. The name is for people who look at what is pending; any number of members may have the same.
    pub fn member(&self, name: &str) -> Member {
        Member::new(self, name)
    }

    /// What the group is and has to do.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], [`Reason::TopicDeleted`].
    pub fn describe(&self) -> Result<GroupDescription> {
        let snapshot = self.topic.snapshot()?;
        let reading = Reading::new(&self.topic, &snapshot);
        let record = self.record(&snapshot)?;
        describe(&reading, reading.state()?.next, self.shared.name.clone(), &record)
    }

    /// Messages that are with members, or wait to be delivered again, by offset.
    ///
    /// # Errors
    /// As [`Group::describe`].
    pub fn pending(&self) -> Result<Vec<Pending>> {
        let snapshot = self.topic.snapshot()?;
        let reading = Reading::new(&self.topic, &snapshot);
        let cursor = stored_cursor(&reading, &self.shared.name, self.shared.id)?;
        pending(&reading, self.shared.id, &cursor)
    }

    fn record(&self, snapshot: &Snapshot) -> Result<Arc<GroupRecord>> {
        self.known_record(snapshot.get(&self.topic.home().tables.groups, &self.shared.key)?)
    }

    /// The record in a transaction.
    fn record_in(&self, tx: &Transaction) -> Result<Arc<GroupRecord>> {
        self.known_record(tx.get(&self.topic.home().tables.groups, &self.shared.key)?)
    }

    /// Takes a stored record apart, unless it is the same as the last time.
    fn known_record(&self, stored: Option<Value<'_>>) -> Result<Arc<GroupRecord>> {
        let stored = stored.ok_or_else(|| self.deleted())?;
        let mut known = locked(&self.shared.known);
        if let Some((bytes, record)) = &*known
            && **bytes == *stored
        {
            return Ok(record.clone());
        }
        let record = Arc::new(GroupRecord::decode(&stored)?);
        if record.id != self.shared.id {
            return Err(self.deleted());
        }
        *known = Some((stored.to_vec(), record.clone()));
        Ok(record)
    }

    fn options_of(record: &GroupRecord) -> &GroupOptions {
        match &record.kind {
            Kind::Group(options) => options,
            Kind::Durable => unreachable!("a handle of a group is never made for a durable subscription"),
        }
    }

    /// Changes how the group delivers, to all of these options. To keep some as they are, begin with those that
    /// [`Group::describe`] returns. What was handed out before keeps the lease it has.
    ///
    /// # Errors
    /// [`TopicError::InvalidOptions`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn configure(&self, options: GroupOptions) -> Result<()> {
        self.topic.prepare(&options)?;
        self.change(|record| record.kind = Kind::Group(options.clone()))
    }

    /// Stops handing out messages, for all members in all processes. What they have they can settle.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], and those of a commit.
    pub fn pause(&self) -> Result<()> {
        self.change(|record| record.is_paused = true)
    }

    /// Hands out messages again.
    ///
    /// # Errors
    /// As [`Group::pause`].
    pub fn resume(&self) -> Result<()> {
        self.change(|record| record.is_paused = false)?;
        self.wake_members();
        Ok(())
    }

    fn change(&self, change: impl Fn(&mut GroupRecord)) -> Result<()> {
        let home = self.topic.home();
        home.store.transact(|tx| {
            let mut record = (*self.record_in(tx)?).clone();
            change(&mut record);
            tx.put(&home.tables.groups, &self.shared.key, &record.encode())
        })
    }

    /// Goes on from another place, forward or back, and forgets what is pending: members that have messages lose them.
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn reset(&self, start: Start) -> Result<()> {
        let from = {
            let snapshot = self.topic.snapshot()?;
            Reading::new(&self.topic, &snapshot).resolve(start)?
        };
        let home = self.topic.home();
        let mut turn = self.shared.turn();
        *turn = None;
        let cursor = Cursor {
            next: from,
            floor: from,
        };
        home.store.transact(|tx| {
            self.record_in(tx)?;
            delete_rows(tx, &home.tables, self.shared.id)?;
            tx.put(&home.tables.states, &Cursor::key(self.shared.id), &cursor.encode())
        })?;
        drop(turn);
        self.wake_members();
        Ok(())
    }

    /// Wakes members that wait: there may be something for them.
    fn wake_members(&self) {
        let members: Vec<Arc<Listener>> = locked(&self.shared.members).iter().filter_map(Weak::upgrade).collect();
        members.iter().for_each(|member| member.tell(0));
    }
}
