//! Leases of members that no process of the store has: those that a server serves.
//!
//! A server that is replicated applies each of its commands in several stores, and the stores must stay equal. So these
//! calls read rows and their arguments alone: no clock, no random number, and no hints of this process. The time is that of
//! the transaction's commit, and the caller brings the token of a new lease.
//!
//! A lease of such a member ends at its deadline, or when the server returns it. Processes that leave the store do not
//! end it. Members of processes and members of servers can share a group.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use duramen_engine::{Listener, Reason, Result, Transaction};

use super::Group;
use super::expire::TakeBackReason;
use super::in_flight::count_open;
use super::lease_key::LeaseKey;
use super::leasing::{LeasedMessages, NewMessages};
use super::record::GroupOptions;
use super::settle::Verdict;
use super::state::{Cursor, Due, DueKind, Lease, OF_NO_PROCESS_HERE, Run, Single};
use crate::bytes::{Reader, put_number};
use crate::limits::{PARKED_MAX, READ_BYTES, READ_MESSAGES};
use crate::listening::Listening;
use crate::read::{ReadLimits, Reading};
use crate::record::millis;
use crate::tables::offset_of;

/// Maximum leases that one call takes back, and maximum rows that it examines for that.
const TAKEN_BACK_MAX: usize = 16;
const EXAMINED_MAX: usize = 256;

/// What a member of a server asks of a group.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRequest<'a> {
    /// Name of the member, for people.
    pub member: &'a str,
    /// A random number that no other lease has.
    pub token: u64,
    /// Maximum messages.
    pub messages: usize,
    /// Whether new messages come first when there are also messages to deliver again.
    pub prefers_new: bool,
}

/// Answer to a [`LeaseRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leasing {
    /// Messages were leased.
    Leased(RemoteLease),
    /// There are none.
    Nothing,
    /// There are some, but the maximum number of messages is in flight.
    Full,
}

/// Messages that a member of a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLease {
    /// Names the lease to later calls.
    pub id: LeaseId,
    /// The messages with the number of their deliveries, in ascending order of offsets.
    pub messages: Vec<(u64, u32)>,
    /// Time of the shared clock when the lease ends, in milliseconds.
    pub deadline: u64,
}

/// Names a lease of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(LeaseKey);

const RUN: u8 = 1;
const LIST: u8 = 2;

impl LeaseId {
    /// The bytes that a client sends back.
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        match self.0 {
            LeaseKey::Run { first, end, token } => {
                out.push(RUN);
                [first, end, token]
                    .iter()
                    .for_each(|number| put_number(&mut out, *number));
            }
            LeaseKey::List { token } => {
                out.push(LIST);
                put_number(&mut out, token);
            }
        }
        out
    }

    /// `None`: these are no bytes of a lease.
    pub fn decode(bytes: &[u8]) -> Option<LeaseId> {
        let mut reader = Reader::new(bytes, "a lease");
        let kind = reader.byte().ok()?;
        let key = match kind {
            RUN => LeaseKey::Run {
                first: reader.number().ok()?,
                end: reader.number().ok()?,
                token: reader.number().ok()?,
            },
            LIST => LeaseKey::List {
                token: reader.number().ok()?,
            },
            _ => return None,
        };
        let is_run = !matches!(key, LeaseKey::Run { first, end, .. } if first >= end);
        (reader.end().is_ok() && is_run).then_some(LeaseId(key))
    }
}

#[doc(hidden)]
impl Group {
    /// Leases messages to a member of a server.
    ///
    /// Expired leases are taken back first. A lease that cannot be taken back, for example because the topic of its dead
    /// letters is full, does not hold up other messages. Its error is returned when there is nothing else.
    ///
    /// # Errors
    /// [`crate::TopicError::GroupDeleted`], [`duramen_engine::Reason::TopicDeleted`].
    pub fn lease_in(&self, tx: &mut Transaction, request: &LeaseRequest<'_>) -> Result<Leasing> {
        let record = self.record_in(tx)?;
        let options = Group::options_of(&record);
        if record.is_paused {
            return Ok(Leasing::Nothing);
        }
        let now = self.now_in(tx);
        let stuck = self.take_back_expired_in(tx, options, now)?;
        let most = request.messages.clamp(1, READ_MESSAGES);
        let waiting = self.waiting_in(tx, now, most)?;
        let lease = || Lease {
            token: request.token,
            process: OF_NO_PROCESS_HERE,
            deadline: now.saturating_add(millis(options.lease)),
            member: request.member.into(),
        };
        let mut is_full = false;
        let prefers_new = request.prefers_new || waiting.is_empty();
        let mut leased = None;
        if prefers_new {
            leased = self.lease_unread_in(tx, options, (&lease, most), &mut is_full)?;
        }
        if leased.is_none() && !waiting.is_empty() {
            leased = self.lease_due_in(tx, &waiting, lease(), most)?;
        }
        if leased.is_none() && !prefers_new {
            leased = self.lease_unread_in(tx, options, (&lease, most), &mut is_full)?;
        }
        match (leased, stuck) {
            (Some(leased), _) => Ok(Leasing::Leased(leased.into())),
            (None, Some(error)) => Err(error),
            (None, None) if is_full => Ok(Leasing::Full),
            (None, None) => Ok(Leasing::Nothing),
        }
    }

    /// Settles messages of a lease: those at `offsets`, or all that the member still has. The others of the lease are not
    /// touched when one cannot be settled, if the caller rolls the transaction back.
    ///
    /// # Errors
    /// [`crate::TopicError::LeaseLost`], [`crate::TopicError::AlreadySettled`], [`crate::TopicError::GroupDeleted`],
    /// [`Reason::InvalidArgument`] for messages that the lease does not cover.
    pub fn settle_lease_in(
        &self,
        tx: &mut Transaction,
        lease: LeaseId,
        offsets: &[u64],
        verdict: Verdict<'_>,
    ) -> Result<()> {
        let key = self.checked_in(tx, lease.0, offsets)?;
        match (offsets, key, verdict) {
            ([], LeaseKey::Run { first, .. }, Verdict::Done | Verdict::Release) => {
                self.settle_all_in(tx, key, first, verdict)?;
            }
            ([], LeaseKey::List { token }, Verdict::Done | Verdict::Release) => {
                let first = self.list_in(tx, token)?.and_then(|list| list.offsets.first().copied());
                self.settle_all_in(tx, key, first.unwrap_or(0), verdict)?;
            }
            ([], ..) => {
                for offset in self.held_by_in(tx, key)? {
                    self.settle_in(tx, key, offset, verdict)?;
                }
                self.remove_one_finished(tx, key)?;
            }
            (offsets, ..) => {
                for &offset in offsets {
                    self.settle_in(tx, key, offset, verdict)?;
                }
                self.remove_one_finished(tx, key)?;
            }
        }
        Ok(())
    }

    /// Extends a lease to a time at least, and returns when it ends, in milliseconds of the shared clock.
    ///
    /// # Errors
    /// As [`Group::settle_lease_in`].
    pub fn extend_lease_in(&self, tx: &mut Transaction, lease: LeaseId, by: Duration) -> Result<u64> {
        let first = match lease.0 {
            LeaseKey::Run { first, .. } => first,
            LeaseKey::List { .. } => 0,
        };
        self.extend_in(tx, lease.0, first, by)
    }

    /// When a lease ends, in milliseconds of the shared clock; `None`: it has ended.
    ///
    /// # Errors
    /// Those of reading.
    pub fn deadline_in(&self, tx: &Transaction, lease: LeaseId) -> Result<Option<u64>> {
        let lease = match lease.0 {
            LeaseKey::Run { first, token, .. } => {
                let run = self.run_in(tx, first)?.map(|run| run.lease);
                run.filter(|lease| lease.token == token)
            }
            LeaseKey::List { token } => self.list_in(tx, token)?.map(|list| list.lease),
        };
        Ok(lease.map(|lease| lease.deadline))
    }

    /// Returns a lease whose member is gone: its messages failed this attempt. A lease that ended before is no error.
    ///
    /// # Errors
    /// Those of burying messages that had their last attempt, and of [`Transaction::put`].
    pub fn take_back_lease_in(&self, tx: &mut Transaction, lease: LeaseId) -> Result<()> {
        let record = self.record_in(tx)?;
        let options = Group::options_of(&record);
        let end = (TakeBackReason::Gone, self.now_in(tx));
        match lease.0 {
            LeaseKey::Run { first, token, .. } => {
                let is_its = self.run_in(tx, first)?.is_some_and(|run| run.lease.token == token);
                if is_its {
                    self.take_back_run(tx, first, options, end)?;
                }
            }
            LeaseKey::List { token } => drop(self.take_back_list(tx, token, options, end)?),
        }
        Ok(())
    }

    /// From which time of the shared clock on, in milliseconds, a member may get messages; 0: at once, unless too many are in
    /// flight. `u64::MAX`: nothing is planned.
    ///
    /// # Errors
    /// [`crate::TopicError::GroupDeleted`], [`duramen_engine::Reason::TopicDeleted`].
    pub fn next_event(&self) -> Result<u64> {
        let snapshot = self.topic.snapshot()?;
        let record = self.record(&snapshot)?;
        if record.is_paused {
            return Ok(u64::MAX);
        }
        let reading = Reading::new(&self.topic, &snapshot);
        let cursor = super::description::stored_cursor(&reading, &self.shared.name, self.shared.id)?;
        if cursor.next < reading.state()?.next {
            return Ok(0);
        }
        let (low, high) = Due::keys_from(self.shared.id, 0);
        let mut rows = snapshot.range(self.states(), &low[..]..&high[..])?;
        let due = rows.next()?.map(|(key, _)| Due::decode(key)).transpose()?;
        let mut next = due.map_or(u64::MAX, |due| due.time);
        let (low, high) = Run::keys_from(self.shared.id, cursor.floor);
        let mut rows = snapshot.range(self.states(), &low[..]..&high[..])?;
        while let Some((_, run)) = rows.next()? {
            let run = Run::decode(&run)?;
            if !run.is_extended {
                next = next.min(run.lease.deadline);
                break;
            }
        }
        Ok(next)
    }

    /// Milliseconds until a time of the shared clock.
    pub fn time_until(&self, time: u64) -> Duration {
        Duration::from_millis(time.saturating_sub(self.now()))
    }

    /// The key of a lease as its row has it. The bytes and the offsets come from a client: settling a message that the lease
    /// does not cover would make the group pass over it.
    fn checked_in(&self, tx: &Transaction, key: LeaseKey, offsets: &[u64]) -> Result<LeaseKey> {
        let LeaseKey::Run { first, token, .. } = key else {
            // Each message of a list has a row with the token.
            return Ok(key);
        };
        let Some(run) = self.run_in(tx, first)?.filter(|run| run.lease.token == token) else {
            return Ok(key);
        };
        let end = run.end;
        match offsets.iter().find(|offset| !(first..end).contains(offset)) {
            Some(offset) => Err(Reason::InvalidArgument(format!(
                "message {offset} is not of this lease, which has messages {first} to {}",
                end - 1
            ))
            .into()),
            None => Ok(LeaseKey::Run { first, end, token }),
        }
    }

    /// The offsets that the member of a lease still has.
    fn held_by_in(&self, tx: &Transaction, key: LeaseKey) -> Result<Vec<u64>> {
        let mut held = Vec::new();
        match key {
            LeaseKey::Run { first, token, .. } => {
                let run = self.run_in(tx, first)?.filter(|run| run.lease.token == token);
                for offset in run.map_or(0..0, |run| first..run.end) {
                    if self.single_in(tx, offset)?.is_none() {
                        held.push(offset);
                    }
                }
            }
            LeaseKey::List { token } => {
                for offset in self.list_in(tx, token)?.map_or_else(Vec::new, |list| list.offsets) {
                    if self.held_in(tx, offset, token)?.is_some() {
                        held.push(offset);
                    }
                }
            }
        }
        Ok(held)
    }

    /// Takes back leases whose time is over, each of them whole or not at all. Returns an error when a lease could not be taken back.
    fn take_back_expired_in(
        &self,
        tx: &mut Transaction,
        options: &GroupOptions,
        now: u64,
    ) -> Result<Option<duramen_engine::Error>> {
        let mut stuck = None;
        for (kind, id) in self.expired_in(tx, now)? {
            let before = tx.savepoint()?;
            let end = (TakeBackReason::Over, now);
            let taken = match kind {
                DueKind::Run => self.take_back_run(tx, id, options, end),
                _ => self.take_back_list(tx, id, options, end),
            };
            if let Err(error) = taken {
                tx.rollback_to(&before)?;
                stuck.get_or_insert(error);
            }
        }
        Ok(stuck)
    }

    fn expired_in(&self, tx: &Transaction, now: u64) -> Result<Vec<(DueKind, u64)>> {
        let mut expired = Vec::new();
        let (low, high) = Due::keys_from(self.shared.id, 0);
        let mut rows = tx.range(self.states(), &low[..]..&high[..])?;
        for _ in 0..EXAMINED_MAX {
            let Some((key, _)) = rows.next()? else { break };
            let due = Due::decode(key)?;
            if due.time > now || expired.len() >= TAKEN_BACK_MAX {
                break;
            }
            if due.kind != DueKind::Waits {
                expired.push((due.kind, due.id));
            }
        }
        drop(rows);
        let (low, high) = Run::keys_from(self.shared.id, self.cursor_in(tx)?.floor);
        let mut rows = tx.range(self.states(), &low[..]..&high[..])?;
        while expired.len() < 2 * TAKEN_BACK_MAX
            && let Some((key, run)) = rows.next()?
        {
            let run = Run::decode(&run)?;
            if run.is_extended {
                continue;
            }
            if run.lease.deadline > now {
                break;
            }
            expired.push((DueKind::Run, offset_of(key)));
        }
        Ok(expired)
    }

    /// Messages that have waited long enough.
    fn waiting_in(&self, tx: &Transaction, now: u64, most: usize) -> Result<Vec<Due>> {
        let (low, high) = Due::keys_from(self.shared.id, 0);
        let mut rows = tx.range(self.states(), &low[..]..&high[..])?;
        let mut waiting = Vec::new();
        for _ in 0..most + EXAMINED_MAX {
            let Some((key, _)) = rows.next()? else { break };
            let due = Due::decode(key)?;
            if due.time > now || waiting.len() >= most {
                break;
            }
            if due.kind == DueKind::Waits {
                waiting.push(due);
            }
        }
        Ok(waiting)
    }

    /// Leases messages that no member has had yet.
    fn lease_unread_in(
        &self,
        tx: &mut Transaction,
        options: &GroupOptions,
        (lease, most): (&dyn Fn() -> Lease, usize),
        is_full: &mut bool,
    ) -> Result<Option<LeasedMessages>> {
        let limits = ReadLimits {
            messages: if options.filter.is_empty() { most } else { READ_MESSAGES },
            bytes: READ_BYTES,
        };
        // What the transaction itself publishes it does not see, so the snapshot shows all messages.
        let snapshot = self.topic.snapshot()?;
        let reading = Reading::heads_at(&self.topic, &snapshot, millis(tx.wall_clock()));
        for _ in 0..super::leasing::STEPS_MAX {
            let mut cursor = self.cursor_in(tx)?;
            let (messages, end) = reading.read_past(cursor.next, limits)?;
            if messages.is_empty() && end <= cursor.next {
                return Ok(None);
            }
            let room = self.room_at_in(tx, &cursor, options)?.min(most);
            if room == 0 {
                *is_full = true;
                return Ok(None);
            }
            let first = self.first_row_in(tx, &cursor)?.unwrap_or(cursor.next);
            cursor.floor = first.min(cursor.next).max(cursor.floor);
            let fresh = NewMessages { cursor, messages, end };
            if let Some(leased) = self.lease_chosen_in(tx, &fresh, cursor, options, (lease(), room))? {
                return Ok(Some(leased));
            }
        }
        Ok(None)
    }

    /// The first message that a row refers to: no open message is below it.
    fn first_row_in(&self, tx: &Transaction, cursor: &Cursor) -> Result<Option<u64>> {
        let (low, high) = Run::keys_from(self.shared.id, cursor.floor);
        let run = tx
            .range(self.states(), &low[..]..&high[..])?
            .next()?
            .map(|(key, _)| offset_of(key));
        let (low, high) = Single::keys(self.shared.id, cursor.floor..u64::MAX);
        let single = tx
            .range(self.states(), &low[..]..&high[..])?
            .next()?
            .map(|(key, _)| offset_of(key));
        Ok(run.into_iter().chain(single).min())
    }

    /// How many messages may be delivered beside those that are open. Groups that allow many count them, and the rows of
    /// the others are few.
    fn room_at_in(&self, tx: &Transaction, cursor: &Cursor, options: &GroupOptions) -> Result<usize> {
        if options.order_by_key && self.parked_in(tx)? >= PARKED_MAX as i64 {
            return Ok(0);
        }
        let open = if options.is_counted() {
            (cursor.counted as i64).saturating_sub(self.closed_in(tx)?).max(0) as u64
        } else {
            let (low, high) = Run::keys_from(self.shared.id, cursor.floor);
            let runs = tx.range(self.states(), &low[..]..&high[..])?;
            let (low, high) = Single::keys(self.shared.id, cursor.floor..u64::MAX);
            count_open(runs, tx.range(self.states(), &low[..]..&high[..])?)?.count
        };
        Ok(u64::from(options.in_flight).saturating_sub(open) as usize)
    }
}

impl From<LeasedMessages> for RemoteLease {
    fn from(leased: LeasedMessages) -> RemoteLease {
        let offsets = leased.messages.iter().map(|message| message.offset());
        RemoteLease {
            id: LeaseId(leased.lease_key),
            messages: offsets.zip(leased.tries).collect(),
            deadline: leased.deadline,
        }
    }
}

/// Wakes a task of a server when a group may have messages.
#[derive(Debug)]
pub struct GroupWatch {
    group: Group,
    listener: Arc<Listener>,
    _messages: Listening,
    _again: Listening,
}

impl GroupWatch {
    /// Begins to listen.
    pub fn new(group: &Group) -> GroupWatch {
        let listener = Listener::new();
        let store = &group.topic.home().store;
        GroupWatch {
            group: group.clone(),
            _messages: Listening::begin(store, &group.topic.shared().sequence, &listener, 0),
            _again: Listening::begin(store, &group.shared.bell, &listener, 0),
            listener,
        }
    }

    /// Anything committed after this call wakes the task that polls.
    pub fn arm(&self) {
        self.listener.wait(Duration::ZERO);
        self.group.topic.shared().sequence.bell().arm();
        self.group.shared.bell.bell().arm();
    }

    /// Ready once something was committed since [`GroupWatch::arm`].
    pub fn poll_changed(&self, context: &Context<'_>) -> Poll<()> {
        match self.listener.poll(context.waker()).is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}
