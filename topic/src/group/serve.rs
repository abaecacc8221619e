//! Serving what members want at the same time in one transaction: see [`super::desk`].

use std::sync::Arc;
use std::time::Duration;

use duramen_engine::{Reason, Result, Transaction};

use super::deliveries::{Claim, Deliveries};
use super::desk::{Answer, Served, Wish};
use super::memory::{Memory, OpenRun};
use super::record::GroupRecord;
use super::settle::Verdict;
use super::state::{Cursor, Run};
use super::{Group, written};
use crate::limits::READ_BYTES;
use crate::messages::{Collecting, Messages};
use crate::tables::offset_key;

/// Messages for which a member is served together with others; more are worth a transaction of their own, and a walk.
pub(super) const SERVED_TOGETHER_MAX: usize = 16;

/// What a transaction does for one wish. `None`: whoever asked does it for himself.
type Outcome = Option<Result<Done>>;

enum Done {
    Messages(Messages, Run),
    Nothing,
    Acknowledged,
}

/// Messages that are being handed out.
struct Fresh {
    record: Arc<GroupRecord>,
    cursor: Cursor,
    /// How many more may be in flight.
    room: u64,
    is_end: bool,
}

impl Group {
    /// Does what the holder of the turn wants, and all the others. Returns what comes of the first, and whether members that
    /// wait for room are to be woken.
    pub(super) fn serve(
        &self,
        turn: &mut Option<Memory>,
        wish: &Wish,
        served: &Served,
    ) -> (Option<Result<Answer>>, bool) {
        let wishes: Vec<&Wish> = std::iter::once(wish).chain(served.wishes()).collect();
        let hands_out = wishes.iter().any(|wish| matches!(wish, Wish::Messages { .. })) && self.is_plain(turn);
        let in_flight = turn.as_ref().filter(|_| hands_out).map(Memory::in_flight);
        let outcomes = self
            .topic
            .home()
            .store
            .transact_with(written(), |tx| self.serve_in(tx, &wishes, in_flight));
        let Ok(outcomes) = outcomes else {
            // Nobody knows what came of it; and everybody shall meet an error of his own.
            turn.iter_mut().for_each(|memory| memory.is_doubtful = true);
            return (None, false);
        };
        let mut answers = wishes.iter().zip(outcomes).map(|(wish, outcome)| {
            let done = outcome?;
            Some(done.map(|done| self.answer(turn, wish, done)))
        });
        let first = answers.next().expect("there is at least one");
        served.answer(answers);
        let settles = wishes.iter().any(|wish| matches!(wish, Wish::Acknowledged { .. }));
        let memory = turn.as_mut().filter(|_| settles);
        (first, memory.is_some_and(|memory| std::mem::take(&mut memory.is_full)))
    }

    /// Whether messages can be handed out that nobody had yet, and nothing else is due.
    fn is_plain(&self, turn: &mut Option<Memory>) -> bool {
        let now = self.topic.home().store.monotonic_clock();
        if self.refresh(turn, now).is_err() {
            return false;
        }
        let event = turn.as_ref().and_then(Memory::next_event);
        event.is_none_or(|event| event > now)
    }

    fn serve_in(&self, tx: &mut Transaction, wishes: &[&Wish], in_flight: Option<u64>) -> Result<Vec<Outcome>> {
        let mut fresh = None;
        let mut serve = |wish: &&Wish| match (*wish, in_flight) {
            (Wish::Acknowledged { claim, offset, tries }, _) => {
                let settled = self.settle_in(tx, *claim, *offset, *tries, Verdict::Done);
                Ok(Some(settled.map(|_| Done::Acknowledged)))
            }
            (Wish::Messages { member, most }, Some(in_flight)) => {
                if fresh.is_none() {
                    fresh = Some(self.begin_handing_out(tx, in_flight)?);
                }
                let fresh = fresh.as_mut().expect("it was begun just now");
                Ok(self.hand_out_in(tx, fresh, member, *most)?.map(Ok))
            }
            (Wish::Messages { .. }, None) => Ok(None),
        };
        let outcomes = wishes.iter().map(&mut serve).collect::<Result<Vec<_>>>()?;
        if outcomes
            .iter()
            .any(|outcome| matches!(outcome, Some(Ok(Done::Messages(..)))))
        {
            let cursor = fresh.expect("messages were handed out").cursor;
            tx.put(
                &self.topic.home().tables.states,
                &Cursor::key(self.shared.id),
                &cursor.encode(),
            )?;
        }
        Ok(outcomes)
    }

    fn begin_handing_out(&self, tx: &Transaction, in_flight: u64) -> Result<Fresh> {
        let record = self.record_in(tx)?;
        let most = u64::from(Group::options_of(&record).in_flight);
        let room = if record.is_paused {
            0
        } else {
            most.saturating_sub(in_flight)
        };
        Ok(Fresh {
            record,
            cursor: self.cursor_in(tx)?,
            room,
            is_end: false,
        })
    }

    /// Hands the next messages to a member.
    fn hand_out_in(&self, tx: &mut Transaction, fresh: &mut Fresh, member: &str, most: usize) -> Result<Option<Done>> {
        if fresh.room == 0 {
            return Ok(None);
        }
        if fresh.is_end {
            return Ok(Some(Done::Nothing));
        }
        let first = fresh.cursor.next;
        let messages = self.next_in(tx, first, most.min(fresh.room as usize))?;
        if messages.is_empty() {
            fresh.is_end = self.is_end_in(tx, first)?;
            return Ok(fresh.is_end.then_some(Done::Nothing));
        }
        let run = Run {
            end: messages.offsets().end,
            lease: self.lease(Group::options_of(&fresh.record), member),
        };
        tx.put(
            &self.topic.home().tables.states,
            &Run::key(self.shared.id, first),
            &run.encode(),
        )?;
        fresh.cursor.next = run.end;
        fresh.room -= run.end - first;
        Ok(Some(Done::Messages(messages, run)))
    }

    /// The messages from an offset on, read one by one: cheaper for a few than a walk.
    fn next_in(&self, tx: &Transaction, from: u64, most: usize) -> Result<Messages> {
        let topic = self.topic.shared();
        let mut collecting = Collecting::new((&topic.name, topic.id), None);
        for offset in from..from + most as u64 {
            if collecting.bytes() >= READ_BYTES {
                break;
            }
            let key = offset_key(topic.id, offset);
            let Some(head) = tx.get(topic.sequence.heads(), &key)? else {
                break;
            };
            collecting.push(offset, &head, |bytes, _| {
                let payload = tx.get(topic.sequence.bodies(), &key)?;
                let missing = || duramen_engine::Error::damaged(format!("the payload of message {offset} is missing"));
                bytes.extend_from_slice(&payload.ok_or_else(missing)?);
                Ok(())
            })?;
        }
        Ok(collecting.finish())
    }

    /// Whether the topic ends here; if not, retention let go of messages here.
    fn is_end_in(&self, tx: &Transaction, offset: u64) -> Result<bool> {
        let state = tx.sequence_state(&self.topic.shared().sequence)?;
        let name = || self.topic.name().to_string();
        let state = state.ok_or_else(|| Reason::TopicDeleted { name: name() })?;
        Ok(state.next == offset)
    }

    /// Remembers what was committed for a wish.
    fn answer(&self, turn: &mut Option<Memory>, wish: &Wish, done: Done) -> Answer {
        match (wish, done) {
            (Wish::Acknowledged { claim, offset, .. }, _) => {
                turn.iter_mut().for_each(|memory| memory.settled(*claim, *offset));
                Answer::Acknowledged
            }
            (_, Done::Messages(messages, run)) => {
                let (first, token) = (messages.offsets().start, run.lease.token);
                let open = OpenRun {
                    token,
                    left: run.end - first,
                    is_counted: false,
                    deadline: self.topic.home().store.monotonic_clock() + Duration::from_millis(run.lease.length),
                    written: run.lease.deadline,
                };
                if let Some(memory) = turn {
                    memory.runs.insert(first, open);
                }
                let end = run.end;
                Answer::Messages(Deliveries::fresh(self, messages, Claim::Run { first, end, token }))
            }
            (_, Done::Nothing | Done::Acknowledged) => Answer::Nothing(turn.as_ref().and_then(Memory::next_event)),
        }
    }
}
