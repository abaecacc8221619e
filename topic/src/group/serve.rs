//! Serving the concurrent requests of several members in one transaction: see [`super::desk`].

use std::sync::Arc;

use duramen_engine::{Reason, Result, Transaction};

use super::deliveries::{Claim, Deliveries};
use super::desk::{Answer, Served, Wish};
use super::membership::Handed;
use super::outlook::Outlook;
use super::record::GroupRecord;
use super::settle::Verdict;
use super::state::{Cursor, Run};
use super::{Group, written};
use crate::limits::READ_BYTES;
use crate::messages::{Collecting, Messages};

/// Maximum messages of a request that is served together with others. More messages justify a separate transaction and
/// a walk.
pub(super) const SERVED_TOGETHER_MAX: usize = 16;

/// Result of one wish in a transaction. `None`: the requester performs it alone.
type Outcome = Option<Result<Done>>;

enum Done {
    Messages(Messages, Run),
    Nothing,
    Acknowledged,
}

/// The state of a delivery in progress.
struct Fresh {
    record: Arc<GroupRecord>,
    cursor: Cursor,
    /// Number of further messages that may be in flight.
    room: usize,
    is_end: bool,
}

impl Group {
    /// Performs the wish of the turn's holder, and those of other members. Returns the answer to the holder's wish, and
    /// whether messages were settled.
    pub(super) fn serve(&self, outlook: &mut Outlook, wish: &Wish, served: &Served) -> (Option<Result<Answer>>, bool) {
        let wishes: Vec<&Wish> = std::iter::once(wish).chain(served.wishes()).collect();
        let is_for_messages = |wish: &&Wish| matches!(wish, Wish::Messages { .. });
        let hands_out = wishes.iter().any(is_for_messages) && self.is_plain(outlook);
        // A look in an attempt that did not commit may have missed what the next attempt acknowledges.
        outlook.has_looked = false;
        let serve_in = |tx: &mut Transaction| self.serve_in(tx, &wishes, outlook, hands_out);
        let outcomes = self.topic.home().store.transact_with(written(), serve_in);
        let Ok(outcomes) = outcomes else {
            // The commit may have happened. Each member tries alone, and gets its own error.
            outlook.doubt();
            return (None, false);
        };
        outlook.committed();
        let mut answers = wishes.iter().zip(outcomes).map(|(wish, outcome)| {
            let done = outcome?;
            Some(done.map(|done| self.answer(outlook, wish, done)))
        });
        let first = answers.next().expect("there is at least one");
        served.answer(answers);
        let settles = wishes.iter().any(|wish| !is_for_messages(wish));
        (first, settles)
    }

    /// Whether new messages can be delivered here: the group has no order and no filter, and nothing else is due.
    fn is_plain(&self, outlook: &mut Outlook) -> bool {
        let Some(record) = self.known() else { return false };
        let options = Group::options_of(&record);
        if options.order_by_key || !options.filter.is_empty() {
            return false;
        }
        let (now, home) = (self.now(), self.topic.home());
        outlook.departed == Some(home.presence.departed(&home.store))
            && self.renew(outlook, options, now).is_ok()
            && outlook.next_event() > now
    }

    fn serve_in(
        &self,
        tx: &mut Transaction,
        wishes: &[&Wish],
        outlook: &mut Outlook,
        hands_out: bool,
    ) -> Result<Vec<Outcome>> {
        outlook.begin_attempt();
        let mut fresh = None;
        let mut outcomes = Vec::with_capacity(wishes.len());
        for wish in wishes {
            outcomes.push(match wish {
                Wish::Acknowledged { claim, offset } => {
                    let settled = self.settle_in(tx, *claim, *offset, Verdict::Done);
                    Some(settled.map(|_| Done::Acknowledged))
                }
                Wish::Messages { membership, most } if hands_out => {
                    if fresh.is_none() {
                        fresh = Some(self.begin_handing_out(tx, outlook, wishes)?);
                    }
                    let fresh = fresh.as_mut().expect("it was begun just now");
                    self.hand_out_in(tx, fresh, &membership.name, *most)?.map(Ok)
                }
                Wish::Messages { .. } => None,
            });
        }
        let is_handed = |outcome: &Outcome| matches!(outcome, Some(Ok(Done::Messages(..))));
        if outcomes.iter().any(is_handed) {
            let mut cursor = fresh.expect("messages were handed out").cursor;
            if cursor.epoch == outlook.epoch {
                cursor.floor = cursor.floor.max(outlook.floor_in_attempt());
            }
            self.put_cursor(tx, cursor)?;
        }
        Ok(outcomes)
    }

    fn begin_handing_out(&self, tx: &Transaction, outlook: &mut Outlook, wishes: &[&Wish]) -> Result<Fresh> {
        let record = self.record_in(tx)?;
        let cursor = self.cursor_in(tx)?;
        let wanted = wishes.iter().map(|wish| match wish {
            Wish::Messages { most, .. } => *most,
            Wish::Acknowledged { .. } => 0,
        });
        let options = Group::options_of(&record);
        let is_plain = !record.is_paused && !options.order_by_key && options.filter.is_empty();
        let room = match is_plain {
            true => self.room_in(tx, outlook, &cursor, options, wanted.sum())?,
            false => 0,
        };
        Ok(Fresh {
            record,
            cursor,
            room,
            is_end: false,
        })
    }

    /// Delivers the next messages to a member.
    fn hand_out_in(&self, tx: &mut Transaction, fresh: &mut Fresh, member: &str, most: usize) -> Result<Option<Done>> {
        if fresh.room == 0 {
            return Ok(None);
        }
        if fresh.is_end {
            return Ok(Some(Done::Nothing));
        }
        let first = fresh.cursor.next;
        let messages = self.next_in(tx, first, most.min(fresh.room))?;
        if messages.is_empty() {
            fresh.is_end = self.is_end_in(tx, first)?;
            return Ok(fresh.is_end.then_some(Done::Nothing));
        }
        let run = Run {
            end: messages.offsets().end,
            is_extended: false,
            is_counted: Group::options_of(&fresh.record).is_counted(),
            lease: self.lease(Group::options_of(&fresh.record).lease, member),
        };
        self.put_run(tx, first, None, &run)?;
        fresh.cursor.next = run.end;
        fresh.cursor.opened += run.end - first;
        fresh.cursor.counted += if run.is_counted { run.end - first } else { 0 };
        fresh.room -= (run.end - first) as usize;
        Ok(Some(Done::Messages(messages, run)))
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

    /// Answers a wish after its commit.
    fn answer(&self, outlook: &mut Outlook, wish: &Wish, done: Done) -> Answer {
        match (wish, done) {
            (Wish::Messages { membership, .. }, Done::Messages(messages, run)) => {
                outlook.note_run(run.lease.deadline);
                let (first, end, token) = (messages.offsets().start, run.end, run.lease.token);
                let claim = Claim::Run { first, end, token };
                let handed = Handed::new(membership, claim, (first..end).collect(), run.lease.deadline);
                Answer::Messages(Deliveries::new(handed, messages, Vec::new()))
            }
            (Wish::Messages { .. }, _) => Answer::Nothing(outlook.next_event()),
            (Wish::Acknowledged { .. }, _) => {
                outlook.note_closed();
                Answer::Acknowledged
            }
        }
    }
}
