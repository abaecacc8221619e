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

mod administration;
mod change_listener;
mod combined_requests;
mod combining;
mod dead;
pub(crate) mod deferred_deletes;
mod deliveries;
mod description;
mod durable;
mod durable_pattern;
mod expire;
mod filter;
mod hints;
mod in_flight;
mod keep_alive;
mod lease_key;
mod leasing;
mod member;
mod membership;
mod order;
mod pattern_group;
mod pattern_member;
mod receiver;
mod receiving;
pub(crate) mod record;
mod remote;
mod rows;
mod rule;
mod settle;
pub(crate) mod state;
mod topic_creation;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use duramen_engine::{
    Durability, Error, Kind as ErrorKind, Listener, Result, Sequence, Snapshot, Store, Transaction, TransactionOptions,
    Value,
};

use crate::error::TopicError;
use crate::handle::Topic;
use crate::home::Home;
use crate::lock::locked;
use crate::read::{Reading, Start};
use crate::tables::name_key;
use administration::{delete_rows, ensure_dead_in};
use change_listener::ChangeListener;
use combining::RequestQueue;
use description::{describe, pending, stored_cursor};
use hints::Hints;
use lease_key::LeaseKey;
use record::{GroupRecord, Kind};
use state::Cursor;

pub use dead::{DeadLetter, Redriven};
pub use deliveries::{Deliveries, Delivery};
pub use description::{GroupDescription, Pending};
pub(crate) use description::{acknowledged_by_all, depend_on_openings};
pub use durable::Durable;
pub use durable_pattern::{DurablePattern, DurablePosition};
pub use filter::Filter;
pub use keep_alive::KeepAlive;
pub use member::Member;
pub use pattern_group::{PatternGroup, PatternGroupDescription};
pub use pattern_member::PatternMember;
pub use receiving::DeliveryStream;
pub use record::{DeadLetters, GroupOptions};
#[doc(hidden)]
pub use remote::{GroupWatch, LeaseId, LeaseRequest, Leasing, RemoteLease};
pub(crate) use rule::Rule;
#[doc(hidden)]
pub use settle::Verdict;

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

/// Leases are written, not synced: a power cut ends them anyway.
pub(crate) fn written() -> TransactionOptions {
    TransactionOptions::new().durability(Durability::Written)
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
        self.topic.home().store.transact(|tx| self.configure_in(tx, &options))
    }

    /// Replaces all options of the group in a transaction.
    ///
    /// # Errors
    /// As [`Group::configure`].
    #[doc(hidden)]
    pub fn configure_in(&self, tx: &mut Transaction, options: &GroupOptions) -> Result<()> {
        let dead = self.topic.dead_letters_of(options)?;
        self.change_in(tx, |record| record.kind = Kind::Group(options.clone()))?;
        ensure_dead_in(tx, self.topic.home(), dead.as_deref())
    }

    /// Stops delivering messages, for all members in all processes. Members can still settle the messages that they
    /// hold.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], and those of a commit.
    pub fn pause(&self) -> Result<()> {
        self.topic.home().store.transact(|tx| self.pause_in(tx, true))
    }

    /// Resumes delivering messages.
    ///
    /// # Errors
    /// As [`Group::pause`].
    pub fn resume(&self) -> Result<()> {
        self.topic.home().store.transact(|tx| self.pause_in(tx, false))
    }

    /// Stops or resumes delivering messages, in a transaction.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`].
    #[doc(hidden)]
    pub fn pause_in(&self, tx: &mut Transaction, is_paused: bool) -> Result<()> {
        self.change_in(tx, |record| record.is_paused = is_paused)
    }

    fn change_in(&self, tx: &mut Transaction, change: impl Fn(&mut GroupRecord)) -> Result<()> {
        let mut record = (*self.record_in(tx)?).clone();
        change(&mut record);
        self.ring(tx);
        tx.put(&self.topic.home().tables.groups, &self.shared.key, record.encode())
    }

    /// Continues from another position, forward or back, and forgets what is pending. Members lose the messages that
    /// they hold.
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn reset(&self, start: Start) -> Result<()> {
        self.topic.home().store.transact(|tx| self.reset_in(tx, start))
    }

    /// Continues from another position, in a transaction.
    ///
    /// # Errors
    /// As [`Group::reset`].
    #[doc(hidden)]
    pub fn reset_in(&self, tx: &mut Transaction, start: Start) -> Result<()> {
        let from = {
            let snapshot = self.topic.snapshot()?;
            Reading::new(&self.topic, &snapshot).resolve(start)?
        };
        self.record_in(tx)?;
        let before = self.cursor_in(tx)?;
        delete_rows(tx, &self.topic.home().tables, self.shared.id)?;
        let cursor = Cursor {
            skipped: before.skipped,
            epoch: before.epoch,
            ..Cursor::at(from)
        };
        self.reopen_in(tx, cursor)
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
