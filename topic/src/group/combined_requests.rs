//! Performing the concurrent requests of several members in one transaction: see [`super::combining`].

use std::sync::Arc;

use duramen_engine::{Reason, Result, Transaction};

use super::combining::{Answer, Request, RequestBatch};
use super::hints::Hints;
use super::lease_key::LeaseKey;
use super::membership::LeasedBatch;
use super::record::GroupRecord;
use super::settle::Verdict;
use super::state::{Cursor, Run};
use super::{Group, written};
use crate::limits::READ_BYTES;
use crate::messages::{Collecting, Messages};

/// Maximum messages of a request that is performed together with others. More messages justify a separate transaction and
/// a walk.
pub(super) const COMBINED_MESSAGES_MAX: usize = 16;

/// Result of one request in a transaction. `None`: the requester performs it alone.
type RequestResult = Option<Result<RequestEffect>>;

enum RequestEffect {
    Messages(Messages, Run),
    Nothing,
    Acknowledged,
}

/// The state of a delivery in progress.
struct DeliveryProgress {
    record: Arc<GroupRecord>,
    cursor: Cursor,
    /// Number of further messages that may be in flight.
    room: usize,
    is_end: bool,
}

impl Group {
    /// Performs the request of the turn's holder, and those of other members. Returns the answer to the holder's request, and
    /// whether messages were settled.
    pub(super) fn perform(
        &self,
        hints: &mut Hints,
        request: &Request,
        batch: &RequestBatch,
    ) -> (Option<Result<Answer>>, bool) {
        let requests: Vec<&Request> = std::iter::once(request).chain(batch.requests()).collect();
        let is_for_messages = |request: &&Request| matches!(request, Request::Messages { .. });
        let hands_out = requests.iter().any(is_for_messages) && self.is_plain(hints);
        // A look in an attempt that did not commit may have missed what the next attempt acknowledges.
        hints.has_looked = false;
        let perform_in = |tx: &mut Transaction| self.perform_in(tx, &requests, hints, hands_out);
        let outcomes = self.topic.home().store.transact_with(written(), perform_in);
        let Ok(outcomes) = outcomes else {
            // The commit may have happened. Each member tries alone, and gets its own error.
            hints.doubt();
            return (None, false);
        };
        hints.committed();
        let mut answers = requests.iter().zip(outcomes).map(|(request, outcome)| {
            let done = outcome?;
            Some(done.map(|done| self.answer(hints, request, done)))
        });
        let first = answers.next().expect("there is at least one");
        batch.answer(answers);
        let settles = requests.iter().any(|request| !is_for_messages(request));
        (first, settles)
    }

    /// Whether new messages can be delivered here: the group has no order and no filter, and nothing else is due.
    fn is_plain(&self, hints: &mut Hints) -> bool {
        let Some(record) = self.known() else { return false };
        let options = Group::options_of(&record);
        if options.order_by_key || !options.filter.is_empty() {
            return false;
        }
        let (now, home) = (self.now(), self.topic.home());
        hints.departed == Some(home.presence.departed(&home.store))
            && self.renew(hints, options, now).is_ok()
            && hints.next_event() > now
    }

    fn perform_in(
        &self,
        tx: &mut Transaction,
        requests: &[&Request],
        hints: &mut Hints,
        hands_out: bool,
    ) -> Result<Vec<RequestResult>> {
        hints.begin_attempt();
        let mut fresh = None;
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            outcomes.push(match request {
                Request::Acknowledged { lease_key, offset } => {
                    let settled = self.settle_in(tx, *lease_key, *offset, Verdict::Done);
                    Some(settled.map(|_| RequestEffect::Acknowledged))
                }
                Request::Messages { membership, most } if hands_out => {
                    if fresh.is_none() {
                        fresh = Some(self.begin_handing_out(tx, hints, requests)?);
                    }
                    let fresh = fresh.as_mut().expect("it was begun just now");
                    self.hand_out_in(tx, fresh, &membership.name, *most)?.map(Ok)
                }
                Request::Messages { .. } => None,
            });
        }
        let is_handed = |outcome: &RequestResult| matches!(outcome, Some(Ok(RequestEffect::Messages(..))));
        if outcomes.iter().any(is_handed) {
            let mut cursor = fresh.expect("messages were batch out").cursor;
            if cursor.epoch == hints.epoch {
                cursor.floor = cursor.floor.max(hints.floor_in_attempt());
            }
            self.put_cursor(tx, cursor)?;
        }
        Ok(outcomes)
    }

    fn begin_handing_out(
        &self,
        tx: &Transaction,
        hints: &mut Hints,
        requests: &[&Request],
    ) -> Result<DeliveryProgress> {
        let record = self.record_in(tx)?;
        let cursor = self.cursor_in(tx)?;
        let wanted = requests.iter().map(|request| match request {
            Request::Messages { most, .. } => *most,
            Request::Acknowledged { .. } => 0,
        });
        let options = Group::options_of(&record);
        let is_plain = !record.is_paused && !options.order_by_key && options.filter.is_empty();
        let room = match is_plain {
            true => self.room_in(tx, hints, &cursor, options, wanted.sum())?,
            false => 0,
        };
        Ok(DeliveryProgress {
            record,
            cursor,
            room,
            is_end: false,
        })
    }

    /// Delivers the next messages to a member.
    fn hand_out_in(
        &self,
        tx: &mut Transaction,
        fresh: &mut DeliveryProgress,
        member: &str,
        most: usize,
    ) -> Result<Option<RequestEffect>> {
        if fresh.room == 0 {
            return Ok(None);
        }
        if fresh.is_end {
            return Ok(Some(RequestEffect::Nothing));
        }
        let first = fresh.cursor.next;
        let messages = self.next_in(tx, first, most.min(fresh.room))?;
        if messages.is_empty() {
            fresh.is_end = self.is_end_in(tx, first)?;
            return Ok(fresh.is_end.then_some(RequestEffect::Nothing));
        }
        let run = Run {
            end: messages.offsets().end,
            is_extended: false,
            is_counted: Group::options_of(&fresh.record).is_counted(),
            lease: self.lease(tx, Group::options_of(&fresh.record).lease, member),
        };
        self.put_run(tx, first, None, &run)?;
        fresh.cursor.next = run.end;
        fresh.cursor.opened += run.end - first;
        fresh.cursor.counted += if run.is_counted { run.end - first } else { 0 };
        fresh.room -= (run.end - first) as usize;
        Ok(Some(RequestEffect::Messages(messages, run)))
    }

    /// Reads the messages from an offset on one by one, which is cheaper for a few than a walk.
    fn next_in(&self, tx: &Transaction, from: u64, most: usize) -> Result<Messages> {
        let topic = self.topic.shared();
        let mut collecting = Collecting::new((&topic.name, topic.id), None);
        for offset in from..from + most as u64 {
            if collecting.bytes() >= READ_BYTES || !self.collect_in(tx, offset, &mut collecting)? {
                break;
            }
        }
        Ok(collecting.finish())
    }

    /// Whether the topic ends here. If not, retention deleted messages here.
    fn is_end_in(&self, tx: &Transaction, offset: u64) -> Result<bool> {
        let state = tx.sequence_state(&self.topic.shared().sequence)?;
        let name = || self.topic.name().to_string();
        let state = state.ok_or_else(|| Reason::TopicDeleted { name: name() })?;
        Ok(state.next == offset)
    }

    /// Answers a request after its commit.
    fn answer(&self, hints: &mut Hints, request: &Request, done: RequestEffect) -> Answer {
        match (request, done) {
            (Request::Messages { membership, .. }, RequestEffect::Messages(messages, run)) => {
                hints.note_run(run.lease.deadline);
                let (first, end, token) = (messages.offsets().start, run.end, run.lease.token);
                let lease_key = LeaseKey::Run { first, end, token };
                let batch = LeasedBatch::new(membership, lease_key, (first..end).collect(), run.lease.deadline);
                Answer::Messages(batch, messages)
            }
            (Request::Messages { .. }, _) => Answer::Nothing(hints.next_event()),
            (Request::Acknowledged { .. }, _) => {
                hints.note_closed();
                Answer::Acknowledged
            }
        }
    }
}
