//! Delivering messages: a member's turn.
//!
//! The order is fixed. First, expired leases are taken back. Then come messages that waited long enough and messages
//! that no member has had; if there are both, they alternate. All of it happens while the member has the group's turn
//! in this process. Each step is a transaction that checks what it changes. Two processes that deliver messages write
//! one cursor. So they never deliver the same message, nor more than may be in flight.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duramen_engine::{Result, Transaction};

use super::deliveries::Deliveries;
use super::expire::StuckLeases;
use super::hints::Hints;
use super::lease_key::LeaseKey;
use super::membership::{LeasedBatch, Membership};
use super::order::{Together, hash_of};
use super::record::GroupOptions;
use super::rows::message_due;
use super::settle::OpenMessage;
use super::state::{Cursor, Due, Keyed, Lease, List, Run, Single};
use super::{Group, written};
use crate::limits::{READ_BYTES, READ_MESSAGES};
use crate::message::may_expire;
use crate::messages::{Collecting, Messages};
use crate::read::{ReadLimits, Reading, is_expired_at};
use crate::record::millis;

/// How soon a member checks again when the maximum number of messages is in flight: transactions of the program settle
/// messages without notice.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Maximum steps of skipping or parking messages before a member has to ask again.
pub(super) const STEPS_MAX: usize = 64;

/// Result of a turn.
pub(super) enum TurnOutcome {
    Got(Deliveries),
    /// There are no messages. There may be some at this time of the shared clock.
    Nothing(u64),
}

/// Messages that a transaction delivers.
pub(super) struct LeasedMessages {
    pub(super) messages: Messages,
    pub(super) lease_key: LeaseKey,
    pub(super) deadline: u64,
    pub(super) tries: Vec<u32>,
}

impl Group {
    pub(super) fn turn_with(
        &self,
        hints: &mut Hints,
        membership: &Arc<Membership>,
        most: usize,
    ) -> Result<TurnOutcome> {
        let record = self.record(&self.topic.snapshot()?)?;
        let options = Group::options_of(&record);
        if record.is_paused {
            return Ok(TurnOutcome::Nothing(u64::MAX));
        }
        let (now, mut stuck) = (self.now(), StuckLeases::default());
        self.remove_finished(false)?;
        self.take_back_gone(hints, options, now, &mut stuck)?;
        self.renew(hints, options, now)?;
        let waiting = self.collect_due(hints, options, (now, most), &mut stuck)?;
        let member = &*membership.name;
        let fresh_comes_first = hints.prefers_fresh || waiting.is_empty();
        let mut leased = None;
        let mut is_full = false;
        if fresh_comes_first {
            leased = self.lease_new(hints, most, member, &mut is_full)?;
            hints.prefers_fresh = false;
        }
        if leased.is_none() && !waiting.is_empty() {
            leased = self.lease_due(hints, &waiting, options, (member, most))?;
            hints.prefers_fresh = true;
        }
        if leased.is_none() && !fresh_comes_first {
            leased = self.lease_new(hints, most, member, &mut is_full)?;
        }
        if let Some(leased) = leased {
            let LeasedMessages {
                messages,
                lease_key,
                deadline,
                tries,
            } = leased;
            let offsets = messages.iter().map(|message| message.offset()).collect();
            let batch = LeasedBatch::new(membership, lease_key, offsets, deadline);
            return Ok(TurnOutcome::Got(Deliveries::new(batch, messages, tries)));
        }
        if let Some(error) = stuck.error {
            return Err(error);
        }
        self.remove_finished(true)?;
        let soon = if is_full {
            now + LOOK_AGAIN.as_millis() as u64
        } else {
            u64::MAX
        };
        // The found messages are gone: a search from the beginning tells more.
        let next = if waiting.is_empty() { hints.next_event() } else { now };
        Ok(TurnOutcome::Nothing(next.min(soon)))
    }

    /// Delivers messages again that have waited long enough.
    fn lease_due(
        &self,
        hints: &mut Hints,
        waiting: &[Due],
        options: &GroupOptions,
        (member, most): (&str, usize),
    ) -> Result<Option<LeasedMessages>> {
        let home = self.topic.home();
        let leased = home.store.transact_with(written(), |tx| {
            let lease = self.lease(tx, options.lease, member);
            self.lease_due_in(tx, waiting, lease, most)
        })?;
        hints.doubt();
        if let Some(leased) = &leased {
            hints.note_due(leased.deadline);
        }
        Ok(leased)
    }

    /// Leases messages that have waited long enough; `None`: no member may have them any more.
    pub(super) fn lease_due_in(
        &self,
        tx: &mut Transaction,
        waiting: &[Due],
        lease: Lease,
        most: usize,
    ) -> Result<Option<LeasedMessages>> {
        let (token, deadline) = (lease.token, lease.deadline);
        let mut collecting = self.collecting();
        let (mut tries_of, mut gone) = (Vec::new(), 0);
        for due in waiting {
            if collecting.len() >= most || collecting.bytes() >= READ_BYTES {
                break;
            }
            let offset = due.id;
            let open = match self.single_in(tx, offset)? {
                Some(Single::Waits {
                    due: time,
                    tries,
                    origin,
                    is_counted,
                    key,
                    ..
                }) if time == due.time => OpenMessage {
                    tries: tries + 1,
                    origin,
                    is_counted,
                    key,
                },
                // Damage, or a bug in this code, left a row without a meaning.
                _ => {
                    self.move_due(tx, Some(*due), None)?;
                    continue;
                }
            };
            self.move_due(tx, Some(message_due(due.time, offset)), None)?;
            if !self.collect_in(tx, offset, &mut collecting)? {
                // Retention deleted it meanwhile.
                gone += 1;
                self.close_in(tx, offset, open, 0)?;
                continue;
            }
            tries_of.push((offset, open.tries));
            self.hold_in(tx, offset, token, open)?;
            let Some(hash) = open.key else { continue };
            let more = most - collecting.len();
            for (offset, tries) in self.parked_behind(tx, Keyed { hash, offset }, more)? {
                if collecting.bytes() >= READ_BYTES || !self.collect_in(tx, offset, &mut collecting)? {
                    break;
                }
                self.count_parked(tx, -1)?;
                self.count_closed(tx, -1)?;
                tries_of.push((offset, tries + 1));
                let behind = OpenMessage {
                    tries: tries + 1,
                    origin: None,
                    ..open
                };
                self.hold_in(tx, offset, token, behind)?;
            }
        }
        if gone > 0 {
            let cursor = self.cursor_in(tx)?;
            let skipped = cursor.skipped + gone;
            self.put_cursor(tx, Cursor { skipped, ..cursor })?;
        }
        if tries_of.is_empty() {
            return Ok(None);
        }
        // In the order of the topic, not of their due times.
        let messages = collecting.finish_sorted();
        tries_of.sort_unstable();
        let list = List {
            lease,
            lost: None,
            offsets: tries_of.iter().map(|(offset, _)| *offset).collect(),
        };
        self.put_list(tx, None, &list)?;
        let tries = tries_of.iter().map(|(_, tries)| *tries).collect();
        Ok(Some(LeasedMessages {
            messages,
            lease_key: LeaseKey::List { token },
            deadline,
            tries,
        }))
    }

    fn hold_in(&self, tx: &mut Transaction, offset: u64, token: u64, open: OpenMessage) -> Result<()> {
        let held = Single::Held {
            token,
            tries: open.tries,
            origin: open.origin,
            is_counted: open.is_counted,
            key: open.key,
        };
        self.put_single(tx, offset, &held)
    }

    fn collecting(&self) -> Collecting {
        let topic = self.topic.shared();
        Collecting::new((&topic.name, topic.id), None)
    }

    /// Delivers messages that no member has had yet.
    fn lease_new(
        &self,
        hints: &mut Hints,
        most: usize,
        member: &str,
        is_full: &mut bool,
    ) -> Result<Option<LeasedMessages>> {
        for _ in 0..STEPS_MAX {
            let Some(fresh) = self.fresh(most)? else {
                return Ok(None);
            };
            let step = self
                .topic
                .home()
                .store
                .transact_with(written(), |tx| self.lease_new_in(tx, hints, &fresh, (member, most)))?;
            hints.committed();
            match step {
                Step::Leased(leased) => {
                    match leased.lease_key {
                        LeaseKey::Run { .. } => hints.note_run(leased.deadline),
                        LeaseKey::List { .. } => hints.note_due(leased.deadline),
                    }
                    return Ok(Some(leased));
                }
                Step::Full => {
                    *is_full = true;
                    if self.shared.is_awaited.swap(true, Ordering::SeqCst) {
                        return Ok(None);
                    }
                    // The next check finds what was settled before this; a later settling call wakes the members.
                }
                Step::PassedOver | Step::Overtaken => {}
            }
        }
        Ok(None)
    }

    /// Returns the next messages, unless there are none. Messages that are not kept are skipped, and are the gap of the
    /// first.
    fn fresh(&self, most: usize) -> Result<Option<NewMessages>> {
        let snapshot = self.topic.snapshot()?;
        let reading = Reading::new(&self.topic, &snapshot);
        let cursor = super::description::stored_cursor(&reading, &self.shared.name, self.shared.id)?;
        let record = self.record(&snapshot)?;
        let options = Group::options_of(&record);
        let limits = ReadLimits {
            messages: if options.filter.is_empty() { most } else { READ_MESSAGES },
            bytes: READ_BYTES,
        };
        let (messages, end) = reading.read_past(cursor.next, limits)?;
        let is_any = !messages.is_empty() || end > cursor.next;
        Ok(is_any.then_some(NewMessages { cursor, messages, end }))
    }

    fn lease_new_in(
        &self,
        tx: &mut Transaction,
        hints: &mut Hints,
        fresh: &NewMessages,
        (member, most): (&str, usize),
    ) -> Result<Step> {
        hints.begin_attempt();
        let record = self.record_in(tx)?;
        let options = Group::options_of(&record);
        let mut cursor = self.cursor_in(tx)?;
        if cursor != fresh.cursor {
            return Ok(Step::Overtaken);
        }
        let room = self.room_in(tx, hints, &cursor, options, most)?;
        if room == 0 {
            return Ok(Step::Full);
        }
        let lease = self.lease(tx, options.lease, member);
        if cursor.epoch == hints.epoch {
            cursor.floor = cursor.floor.max(hints.floor_in_attempt());
        }
        let leased = self.lease_chosen_in(tx, fresh, cursor, options, (lease, room))?;
        Ok(leased.map_or(Step::PassedOver, Step::Leased))
    }

    /// Leases new messages, at most `room` of them, and moves the cursor past them; `None`: the group wanted none of them, or
    /// they were parked.
    pub(super) fn lease_chosen_in(
        &self,
        tx: &mut Transaction,
        fresh: &NewMessages,
        mut cursor: Cursor,
        options: &GroupOptions,
        (lease, room): (Lease, usize),
    ) -> Result<Option<LeasedMessages>> {
        let taken = match options.filter.is_empty() && !options.order_by_key {
            true => fresh.first(room),
            false => self.choose_in(tx, fresh, options, room)?,
        };
        let ChosenMessages { messages, keys, end } = taken;
        cursor.skipped += fresh.messages.gap().map_or(0, |gap| gap.end - gap.start);
        cursor.next = end;
        let (count, is_counted) = (messages.len() as u64, options.is_counted());
        cursor.opened += count;
        cursor.counted += if is_counted { count } else { 0 };
        self.put_cursor(tx, cursor)?;
        if messages.is_empty() {
            return Ok(None);
        }
        let deadline = lease.deadline;
        let token = lease.token;
        let Range { start: first, end } = messages.offsets();
        let lease_key = if end - first == count && !options.order_by_key {
            let run = Run {
                end,
                is_extended: false,
                is_counted,
                lease,
            };
            self.put_run(tx, first, None, &run)?;
            LeaseKey::Run { first, end, token }
        } else {
            let offsets: Vec<u64> = messages.iter().map(|message| message.offset()).collect();
            for (place, &offset) in offsets.iter().enumerate() {
                let open = OpenMessage {
                    tries: 1,
                    origin: None,
                    is_counted,
                    key: keys.get(place).copied().flatten(),
                };
                self.hold_in(tx, offset, token, open)?;
            }
            let lost = None;
            self.put_list(tx, None, &List { lease, lost, offsets })?;
            LeaseKey::List { token }
        };
        Ok(Some(LeasedMessages {
            tries: vec![1; messages.len()],
            messages,
            lease_key,
            deadline,
        }))
    }

    /// Selects the messages that match the filter and whose keys no member holds. Other messages of those keys are
    /// parked.
    fn choose_in(
        &self,
        tx: &mut Transaction,
        fresh: &NewMessages,
        options: &GroupOptions,
        room: usize,
    ) -> Result<ChosenMessages> {
        let (mut together, mut parked) = (Together::default(), 0);
        let (mut chosen, mut keys, mut end) = (Vec::new(), Vec::new(), fresh.end);
        for message in fresh.messages.iter() {
            let offset = message.offset();
            if chosen.len() >= room || parked >= READ_MESSAGES {
                end = offset;
                break;
            }
            if !options.filter.matches(&message) {
                continue;
            }
            let key = message.key().filter(|_| options.order_by_key).map(hash_of);
            let is_chosen = match key {
                Some(hash) => self.open_keyed(tx, Keyed { hash, offset }, &mut together)?,
                None => true,
            };
            if is_chosen {
                chosen.push(offset);
                keys.push(key);
            } else {
                parked += 1;
            }
        }
        let messages = fresh.messages.only(|offset| chosen.binary_search(&offset).is_ok());
        Ok(ChosenMessages { messages, keys, end })
    }

    /// Reads one message in a transaction; `false`: it is not kept, or expired.
    pub(super) fn collect_in(&self, tx: &Transaction, offset: u64, collecting: &mut Collecting) -> Result<bool> {
        let topic = self.topic.shared();
        let key = crate::tables::offset_key(topic.id, offset);
        let Some(head) = tx.get_ref(topic.sequence.heads(), key)? else {
            return Ok(false);
        };
        if may_expire(&head) && is_expired_at(&head, millis(tx.wall_clock()))? {
            return Ok(false);
        }
        collecting.push(offset, &head, |bytes, _| {
            let payload = tx.get_ref(topic.sequence.bodies(), key)?;
            let missing = || duramen_engine::Error::damaged(format!("the payload of message {offset} is missing"));
            bytes.extend_from_slice(&payload.ok_or_else(missing)?);
            Ok(())
        })?;
        Ok(true)
    }
}

/// Messages that no member has had yet, and the cursor that they follow.
pub(super) struct NewMessages {
    pub(super) cursor: Cursor,
    pub(super) messages: Messages,
    /// The offset after the last examined message; expired messages were left out.
    pub(super) end: u64,
}

impl NewMessages {
    /// The first `most` messages.
    fn first(&self, most: usize) -> ChosenMessages {
        ChosenMessages {
            messages: self.messages.part(0..most),
            keys: Vec::new(),
            end: self.messages.get(most).map_or(self.end, |next| next.offset()),
        }
    }
}

/// Messages for a member.
struct ChosenMessages {
    messages: Messages,
    /// The hashes of their keys, in an ordered group; otherwise empty.
    keys: Vec<Option<u64>>,
    /// The first message that was not examined.
    end: u64,
}

/// Result of an attempt to deliver new messages.
enum Step {
    Leased(LeasedMessages),
    /// The group wanted none of them, or they were parked.
    PassedOver,
    /// The maximum number of messages is in flight.
    Full,
    /// Another process was faster.
    Overtaken,
}
