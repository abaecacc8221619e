//! Groups: members compete for the messages of a topic. The group leases each message to one member, and delivers it
//! again until a member acknowledges it.
//!
//! The whole state of a group is in rows of the store (see [`state`]). So an acknowledgement can be part of any
//! transaction: the effects of a message and its acknowledgement are atomic. Members of one process take turns at one
//! lock. Changes by other processes show up as conflicts of transactions:
//! - a delivery writes the cursor, so two processes never deliver the same message;
//! - a member that acknowledges a message writes its single row, or removes its lease;
//! - a process that takes a lease back writes a single row for every message of it that has none, and removes the
//!   lease.
//!
//! So of an acknowledgement and a take-back, one commits. The other runs again and sees the new state of the message.

mod change_listener;
mod combined_requests;
mod combining;
mod dead;
pub(crate) mod deferred_deletes;
mod deliveries;
mod durable;
mod durable_pattern;
mod expire;
mod filter;
mod hints;
mod in_flight;
mod keep_alive;
mod leasing;
mod member;
mod membership;
mod order;
mod pattern_group;
mod pattern_member;
mod receiver;
mod receiving;
pub(crate) mod record;
mod rows;
mod rule;
mod settle;
pub(crate) mod state;
mod topic_creation;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use duramen_engine::{
    Durability, Error, Kind as ErrorKind, Listener, Reason, Result, Sequence, Snapshot, Store, Transaction,
    TransactionOptions, Value,
};

use crate::error::TopicError;
use crate::handle::Topic;
use crate::home::Home;
use crate::lock::locked;
use crate::name::check_name;
use crate::read::{Reading, Start};
use crate::record::{TopicOptions, millis};
use crate::tables::{Tables, after_id, name_key, next_id, offset_of, rule_key};
use crate::time::at;
use change_listener::ChangeListener;
use combining::RequestQueue;
use deliveries::LeaseKey;
use hints::Hints;
use in_flight::count_open;
use record::{GroupRecord, Kind};
use state::{Cursor, Lease, List, Run, Single};

pub use dead::{DeadLetter, Redriven};
pub use deliveries::{Deliveries, Delivery};
pub use durable::Durable;
pub use durable_pattern::{DurablePattern, DurablePosition};
pub use filter::Filter;
pub use keep_alive::KeepAlive;
pub use member::Member;
pub use pattern_group::{PatternGroup, PatternGroupDescription};
pub use pattern_member::PatternMember;
pub use receiving::DeliveryStream;
pub use record::{DeadLetters, GroupOptions};
pub(crate) use rule::Rule;
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
/// let group = orders.ensure_group("stock", Start::Beginning, GroupOptions::new())?;
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

/// State that the handles of a group in this process share.
pub(crate) struct Shared {
    id: u32,
    name: String,
    /// Key of the record.
    key: Vec<u8>,
    /// The record as it was read last, with its bytes.
    known: Mutex<Option<(Vec<u8>, Arc<GroupRecord>)>>,
    /// The turn. The member that delivers messages holds it.
    turn: Mutex<Hints>,
    /// Members that wait for the turn.
    queue: RequestQueue,
    /// Rings when something can be delivered that no publisher announces. Nothing is ever appended to it.
    bell: Sequence,
    changes: ChangeListener,
    /// Leases whose messages were all settled, message by message: their rows can be deleted.
    finished: Mutex<Vec<LeaseKey>>,
    /// Whether a member waits because the maximum number of messages is in flight.
    is_awaited: AtomicBool,
    /// Whether acknowledgements are synced, according to the record as it was read last.
    is_synced: AtomicBool,
    /// The next token of a lease, counted up from a random number; 0: no number was drawn yet.
    tokens: AtomicU64,
    /// Members that may be asleep, and the listener that wakes each.
    members: Mutex<Vec<(u64, Weak<Listener>)>>,
}

impl Shared {
    /// Returns a token that no other lease has. Drawing a random number each time would need a system call.
    fn token(&self, store: &Store) -> u64 {
        if self.tokens.load(Ordering::Relaxed) == 0 {
            let first = store.random_number();
            // A second thread continues from the number that the first thread drew.
            let _ = self
                .tokens
                .compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    fn is_synced(&self) -> bool {
        self.is_synced.load(Ordering::Relaxed)
    }

    /// Records that all messages of a lease were settled, as far as is known. A lease of one message is deleted with
    /// the message.
    fn finished(&self, lease_key: LeaseKey) {
        if !lease_key.is_lone() {
            locked(&self.finished).push(lease_key);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.changes.end(self.bell.bell());
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

/// State and options of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupDescription {
    /// Name of the group.
    pub name: String,
    /// Time when the group was created.
    pub created: SystemTime,
    /// Options of the group; `None`: it is a durable subscription.
    pub options: Option<GroupOptions>,
    /// Whether the group is paused.
    pub is_paused: bool,
    /// Every message before this offset was acknowledged or given up.
    pub acknowledged: u64,
    /// Every message before this offset was delivered at least once, or was skipped.
    pub next: u64,
    /// Messages that members hold, or that wait for redelivery.
    pub pending: u64,
    /// Messages that the topic keeps and that were never delivered. A filter may skip some of them.
    pub lag: u64,
    /// Messages that retention deleted before the group had processed them, since the group was created.
    pub skipped: u64,
    /// Publication time of the oldest message that is kept and not acknowledged.
    pub oldest: Option<SystemTime>,
}

/// A message that a member holds, or that waits for redelivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// Offset of the message.
    pub offset: u64,
    /// Number of deliveries so far.
    pub tries: u32,
    /// Time when its lease ends, or when it is due again. `None`: it waits for an earlier message of its key.
    pub until: Option<SystemTime>,
    /// Name of the member that holds it; `None`: it waits.
    pub member: Option<String>,
    /// Reason of the last failure.
    pub error: Option<String>,
}

/// How long a dead-letter topic that a group created keeps messages.
const DEAD_LETTERS_KEPT: Duration = Duration::from_secs(14 * 86_400);

/// Leases are written, not synced: a power cut ends them anyway.
pub(crate) fn written() -> TransactionOptions {
    TransactionOptions::new().durability(Durability::Written)
}

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
        let home = self.home();
        let key = name_key(self.shared().id, name);
        home.store.transact(|tx| {
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
        })
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
            now: millis(home.store.wall_clock()),
        };
        // Readers of a rule that leave the topic out then find that the topic has the group.
        if tx.get_ref(&home.tables.topics, rule_key(name))?.is_some() {
            tx.ring(home.registry());
        }
        group.put_in(tx, &home.tables)
    }

    /// Checks the options of a group. Returns the dead-letter topic that it needs.
    fn dead_letters_of(&self, options: &GroupOptions) -> Result<Option<String>> {
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
        let home = self.home();
        let key = name_key(self.shared().id, name);
        home.store.transact(|tx| {
            let record = tx.get_ref(&home.tables.groups, &key)?;
            let Some(record) = record.map(|record| GroupRecord::decode(&record)).transpose()? else {
                return Err(self.unknown_group(name));
            };
            tx.delete(&home.tables.groups, &key)?;
            tx.ring(&bell_of(home, record.id, name)?);
            delete_rows(tx, &home.tables, record.id)
        })
    }

    pub(crate) fn group_record(&self, snapshot: &Snapshot, name: &str) -> Result<Option<GroupRecord>> {
        let record = snapshot.get(&self.home().tables.groups, name_key(self.shared().id, name))?;
        record.map(|record| GroupRecord::decode(&record)).transpose()
    }

    /// Returns the durable subscription of this name, creating it when it is missing.
    fn get_or_make_durable(&self, name: &str, start: Start) -> Result<GroupRecord> {
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

    fn group_deleted(&self, name: &str) -> Error {
        let (topic, name) = (self.name().into(), name.into());
        TopicError::GroupDeleted { topic, name }.into()
    }
}

/// Creates a missing dead-letter topic.
fn ensure_dead_in(tx: &mut Transaction, home: &Home, dead: Option<&str>) -> Result<()> {
    let Some(dead) = dead else { return Ok(()) };
    if tx.get_ref(&home.tables.topics, dead.as_bytes())?.is_some() {
        return Ok(());
    }
    let options = TopicOptions::new().keep_for(DEAD_LETTERS_KEPT);
    home.create_in(tx, dead, &options).map(|_| ())
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

/// What happens to an existing group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Refuse,
    /// The group gets the options.
    Change,
}

/// Whether an error says that a member no longer has a message, for whatever reason.
fn is_over(error: &Error) -> bool {
    let is_deleted = matches!(TopicError::of(error), Some(TopicError::GroupDeleted { .. }));
    error.kind() == ErrorKind::Lost || is_deleted || crate::error::is_deleted(error)
}

/// The bell of a group.
fn bell_of(home: &Home, id: u32, name: &str) -> Result<Sequence> {
    Sequence::new(&home.tables.states, &home.tables.payloads, &id.to_be_bytes(), name)
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
    fn put_in(&self, tx: &mut Transaction, tables: &Tables) -> Result<GroupRecord> {
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
fn delete_durable(tx: &mut Transaction, tables: &Tables, topic: u32, name: &str) -> Result<()> {
    let key = name_key(topic, name);
    let record = tx.get_ref(&tables.groups, &key)?;
    match record.map(|record| GroupRecord::decode(&record)).transpose()? {
        Some(record) if record.kind == Kind::Durable => {
            tx.delete(&tables.groups, &key)?;
            // It has no other rows; a range for each topic would be too many ranges.
            tx.delete(&tables.states, state::anchor_key(record.id))?;
            tx.delete(&tables.states, Cursor::key(record.id))
        }
        _ => Ok(()),
    }
}

/// Deletes the whole state of a group.
fn delete_rows(tx: &mut Transaction, tables: &Tables, id: u32) -> Result<()> {
    let (low, high) = (id.to_be_bytes(), after_id(id));
    tx.delete_range(&tables.states, &low[..]..&high[..])
}

/// Names and records of the groups and durable subscriptions of a topic.
fn group_records(reading: &Reading<'_>) -> Result<Vec<(String, GroupRecord)>> {
    let topic = reading.topic.shared().id;
    let mut cursor = reading
        .snapshot
        .prefix(&reading.topic.home().tables.groups, topic.to_be_bytes())?;
    let mut records = Vec::new();
    while let Some((key, record)) = cursor.next()? {
        let name = String::from_utf8_lossy(&key[4..]).into_owned();
        records.push((name, GroupRecord::decode(&record)?));
    }
    Ok(records)
}

fn describe(reading: &Reading<'_>, next: u64, name: String, record: &GroupRecord) -> Result<GroupDescription> {
    let cursor = stored_cursor(reading, &name, record.id)?;
    let bounds = reading.bounds()?;
    let states = &reading.topic.home().tables.states;
    let (low, high) = Run::keys_from(record.id, cursor.floor);
    let runs = reading.snapshot.range(states, &low[..]..&high[..])?;
    let (low, high) = Single::keys(record.id, cursor.floor..u64::MAX);
    let pending = count_open(runs, reading.snapshot.range(states, &low[..]..&high[..])?)?.count;
    let acknowledged = first_open(reading, record.id, &cursor)?;
    let kept_from = cursor.next.max(bounds.first);
    Ok(GroupDescription {
        name,
        created: at(record.created),
        options: match &record.kind {
            Kind::Durable => None,
            Kind::Group(options) => Some(options.clone()),
        },
        is_paused: record.is_paused,
        acknowledged,
        next: cursor.next,
        pending,
        lag: reading.kept_since(kept_from, next)?,
        skipped: cursor.skipped + bounds.first.saturating_sub(cursor.next),
        oldest: reading.time_from(acknowledged.max(bounds.first))?.map(at),
    })
}

fn stored_cursor(reading: &Reading<'_>, name: &str, id: u32) -> Result<Cursor> {
    let cursor = reading
        .snapshot
        .get(&reading.topic.home().tables.states, Cursor::key(id))?;
    let cursor = cursor.ok_or_else(|| reading.topic.group_deleted(name))?;
    Cursor::decode(&cursor)
}

/// The open messages of a group, by offset.
fn pending(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<Vec<Pending>> {
    let states = &reading.topic.home().tables.states;
    let mut leases = std::collections::HashMap::new();
    let (low, high) = List::keys(id);
    let mut walk = reading.snapshot.range(states, &low[..]..&high[..])?;
    while let Some((key, list)) = walk.next()? {
        leases.insert(offset_of(key), List::decode(&list)?.lease);
    }
    let mut found = std::collections::BTreeMap::new();
    let (low, high) = Single::keys(id, cursor.floor..u64::MAX);
    let mut walk = reading.snapshot.range(states, &low[..]..&high[..])?;
    while let Some((key, single)) = walk.next()? {
        let offset = offset_of(key);
        found.insert(offset, pending_single(offset, Single::decode(&single)?, &leases));
    }
    let (low, high) = Run::keys_from(id, cursor.floor);
    let mut walk = reading.snapshot.range(states, &low[..]..&high[..])?;
    while let Some((key, run)) = walk.next()? {
        let run = Run::decode(&run)?;
        for offset in offset_of(key)..run.end {
            let in_run = || Some(held(offset, 1, Some(&run.lease)));
            found.entry(offset).or_insert_with(in_run);
        }
    }
    Ok(found.into_values().flatten().collect())
}

fn held(offset: u64, tries: u32, lease: Option<&Lease>) -> Pending {
    Pending {
        offset,
        tries,
        until: lease.map(|lease| at(lease.deadline)),
        member: lease.map(|lease| lease.member.clone()),
        error: None,
    }
}

fn pending_single(offset: u64, single: Single, leases: &std::collections::HashMap<u64, Lease>) -> Option<Pending> {
    match single {
        Single::Settled { .. } => None,
        Single::Waits { due, tries, error, .. } => Some(Pending {
            offset,
            tries,
            until: Some(at(due)),
            member: None,
            error: Some(error).filter(|error| !error.is_empty()),
        }),
        Single::Held { token, tries, .. } => Some(held(offset, tries, leases.get(&token))),
        Single::Parked { tries, .. } => Some(held(offset, tries, None)),
    }
}

/// The first message that not every group and durable subscription has acknowledged; `None`: there are no groups or
/// subscriptions.
pub(crate) fn acknowledged_by_all(reading: &Reading<'_>) -> Result<Option<u64>> {
    let mut floor = None;
    for (name, record) in group_records(reading)? {
        let cursor = stored_cursor(reading, &name, record.id)?;
        let open = first_open(reading, record.id, &cursor)?;
        floor = Some(floor.map_or(open, |floor: u64| floor.min(open)));
    }
    Ok(floor)
}

/// Makes a transaction conflict with everything that makes an unneeded message of the topic needed again: a group that
/// is created, reset to an earlier position, or brings back dead letters.
pub(crate) fn depend_on_openings(tx: &mut Transaction, reading: &Reading<'_>) -> Result<()> {
    let (tables, topic) = (&reading.topic.home().tables, reading.topic.shared().id);
    let (low, high) = (topic.to_be_bytes(), after_id(topic));
    tx.depends_on(&tables.groups, &low[..]..&high[..])?;
    for (_, record) in group_records(reading)? {
        tx.depends_on_key(&tables.states, &state::anchor_key(record.id))?;
    }
    Ok(())
}

/// Start of the first run, or offset of the first single, whichever comes first; otherwise the end of what was
/// delivered.
fn floor(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<u64> {
    Ok(match first_row(reading, id, cursor)? {
        FirstRow::Run(run) => run.start,
        FirstRow::Other(first) => first,
    })
}

/// The first row of a group from its floor on.
enum FirstRow {
    /// A run of these messages.
    Run(Range<u64>),
    /// A message that no run covers, or the end of what was delivered.
    Other(u64),
}

fn first_row(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<FirstRow> {
    let states = &reading.topic.home().tables.states;
    let (low, high) = Run::keys_from(id, cursor.floor);
    let mut runs = reading.snapshot.range(states, &low[..]..&high[..])?;
    let run = match runs.next()? {
        Some((key, run)) => Some(offset_of(key)..Run::decode(&run)?.end),
        None => None,
    };
    let end = run.as_ref().map_or(cursor.next, |run| run.start);
    let (low, high) = Single::keys(id, cursor.floor..end);
    let mut singles = reading.snapshot.range(states, &low[..]..&high[..])?;
    let single = singles.next()?.map(|(key, _)| offset_of(key));
    Ok(match (single, run) {
        (None, Some(run)) => FirstRow::Run(run),
        (single, _) => FirstRow::Other(single.unwrap_or(cursor.next)),
    })
}

/// Returns the first open message of a group. A run whose messages were all settled stays until it is removed.
fn first_open(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<u64> {
    let mut from = *cursor;
    loop {
        match first_row(reading, id, &from)? {
            FirstRow::Other(first) => return Ok(first),
            FirstRow::Run(run) => {
                let open = open_in_run(reading, id, run.clone())?;
                if open < run.end {
                    return Ok(open);
                }
                from.floor = run.end;
            }
        }
    }
}

/// The first open message of a run, whose first messages may be settled; the end of the run when all are settled.
fn open_in_run(reading: &Reading<'_>, id: u32, run: Range<u64>) -> Result<u64> {
    let states = &reading.topic.home().tables.states;
    let (low, high) = Single::keys(id, run.clone());
    let mut singles = reading.snapshot.range(states, &low[..]..&high[..])?;
    let mut open = run.start;
    while let Some((key, single)) = singles.next()? {
        match Single::decode(&single)? {
            Single::Settled { .. } if offset_of(key) == open => open += 1,
            _ => break,
        }
    }
    Ok(open)
}

impl Group {
    fn new(topic: &Topic, name: &str, record: &GroupRecord) -> Result<Group> {
        let home = topic.home();
        let bell = bell_of(home, record.id, name)?;
        let shared = || {
            Arc::new(Shared {
                id: record.id,
                name: name.into(),
                key: name_key(topic.shared().id, name),
                known: Mutex::new(None),
                turn: Mutex::default(),
                queue: RequestQueue::default(),
                bell,
                changes: ChangeListener::default(),
                finished: Mutex::default(),
                is_awaited: AtomicBool::new(false),
                is_synced: AtomicBool::new(false),
                tokens: AtomicU64::new(0),
                members: Mutex::default(),
            })
        };
        Ok(Group {
            topic: topic.clone(),
            shared: home.group(record.id, shared),
        })
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// Name of the group.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    fn deleted(&self) -> Error {
        self.topic.group_deleted(&self.shared.name)
    }

    /// Creates a member. The name is for people who look at pending messages; several members may have the same name.
    pub fn member(&self, name: &str) -> Member {
        Member::new(self, name)
    }

    /// Returns the state and the options of the group.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], [`Reason::TopicDeleted`].
    pub fn describe(&self) -> Result<GroupDescription> {
        let snapshot = self.topic.snapshot()?;
        let reading = Reading::new(&self.topic, &snapshot);
        let record = self.record(&snapshot)?;
        describe(&reading, reading.state()?.next, self.shared.name.clone(), &record)
    }

    /// Messages that members hold, or that wait for redelivery, by offset.
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
        self.known_record(tx.get_ref(&self.topic.home().tables.groups, &self.shared.key)?)
    }

    /// Decodes a stored record, unless it is unchanged since the last call.
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
        let is_synced = Group::options_of(&record).durability == Durability::Synced;
        self.shared.is_synced.store(is_synced, Ordering::Relaxed);
        *known = Some((stored.to_vec(), record.clone()));
        Ok(record)
    }

    fn options_of(record: &GroupRecord) -> &GroupOptions {
        match &record.kind {
            Kind::Group(options) => options,
            Kind::Durable => unreachable!("a handle of a group is never made for a durable subscription"),
        }
    }

    /// Replaces all options of the group. To keep some options, start with those that [`Group::describe`] returns.
    /// Messages that were delivered before keep their leases.
    ///
    /// # Errors
    /// [`TopicError::InvalidOptions`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn configure(&self, options: GroupOptions) -> Result<()> {
        let dead = self.topic.dead_letters_of(&options)?;
        self.change(|tx, record| {
            record.kind = Kind::Group(options.clone());
            ensure_dead_in(tx, self.topic.home(), dead.as_deref())
        })
    }

    /// Stops delivering messages, for all members in all processes. Members can still settle the messages that they
    /// hold.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], and those of a commit.
    pub fn pause(&self) -> Result<()> {
        self.change(|_, record| {
            record.is_paused = true;
            Ok(())
        })
    }

    /// Resumes delivering messages.
    ///
    /// # Errors
    /// As [`Group::pause`].
    pub fn resume(&self) -> Result<()> {
        self.change(|_, record| {
            record.is_paused = false;
            Ok(())
        })
    }

    fn change(&self, change: impl Fn(&mut Transaction, &mut GroupRecord) -> Result<()>) -> Result<()> {
        let home = self.topic.home();
        home.store.transact(|tx| {
            let mut record = (*self.record_in(tx)?).clone();
            change(tx, &mut record)?;
            self.ring(tx);
            tx.put(&home.tables.groups, &self.shared.key, record.encode())
        })
    }

    /// Continues from another position, forward or back, and forgets what is pending. Members lose the messages that
    /// they hold.
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn reset(&self, start: Start) -> Result<()> {
        let from = {
            let snapshot = self.topic.snapshot()?;
            Reading::new(&self.topic, &snapshot).resolve(start)?
        };
        let home = self.topic.home();
        home.store.transact(|tx| {
            self.record_in(tx)?;
            let before = self.cursor_in(tx)?;
            delete_rows(tx, &home.tables, self.shared.id)?;
            let cursor = Cursor {
                skipped: before.skipped,
                epoch: before.epoch,
                ..Cursor::at(from)
            };
            self.reopen_in(tx, cursor)
        })
    }

    /// The record as it was read last.
    fn known(&self) -> Option<Arc<GroupRecord>> {
        locked(&self.shared.known).as_ref().map(|(_, record)| record.clone())
    }

    /// Transaction options of calls that settle messages.
    fn settling(&self) -> TransactionOptions {
        TransactionOptions::new().durability(match self.shared.is_synced() {
            true => Durability::Synced,
            false => Durability::Written,
        })
    }

    /// Handles the end of a settling call. `again`: due time of a message that is delivered again.
    fn settled(&self, again: Option<u64>) {
        if let Some(time) = again {
            self.shared.turn().note_due(time);
        }
        self.made_room();
    }

    /// Wakes the members that wait for room, if there are any.
    fn made_room(&self) {
        // Usually only loads: members on other processors keep the cache line. SeqCst: see `Group::claim_fresh`.
        let is_awaited = &self.shared.is_awaited;
        if is_awaited.load(Ordering::SeqCst) && is_awaited.swap(false, Ordering::SeqCst) {
            self.wake_members();
        }
    }

    /// Reports a change of the rows that the hints do not tell. Takes no lock: the caller may hold the turn.
    fn look_again(&self) {
        self.shared.changes.ring_again();
    }

    /// Wakes waiting members: there may be messages for them.
    fn wake_members(&self) {
        let mut awake = Vec::new();
        for (token, member) in locked(&self.shared.members).iter() {
            awake.extend(member.upgrade().map(|member| (*token, member)));
        }
        awake.iter().for_each(|(token, member)| member.tell(*token));
    }
}
