//! Handing out messages: a member's turn.
//!
//! In this order: leases that ran out are taken back; messages that have waited long enough are handed out again; then
//! those that nobody had yet. All of it happens while the member has the group's turn, and each step is a transaction
//! that checks what the memory says against the rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result};

use super::deliveries::{Claim, Deliveries};
use super::desk::{Answer, Wish};
use super::memory::{Expired, ExpiredLease, Memory, OpenRun, OpenSingle};
use super::record::GroupOptions;
use super::serve::SERVED_TOGETHER_MAX;
use super::settle::Failed;
use super::state::{Cursor, Lease, Run, Single};
use super::{Group, written};
use crate::limits::{READ_BYTES, READ_MESSAGES};
use crate::messages::Messages;
use crate::read::{ReadLimits, Reading};
use crate::record::millis;
use crate::subscription::TICK;
use crate::topics::locked;

/// Rows that say nothing any more, after which they are swept up.
const GARBAGE_MAX: u64 = 4096;
/// Messages that are taken back in one transaction, of those that were handed out again.
const TAKEN_BACK_AT_ONCE: usize = 256;
/// The rows are read again at least so often: what happened meanwhile need not be known here.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// How soon the rows are read again at the earliest when too many messages seem to be in flight.
const SWEEP_AGAIN: Duration = Duration::from_millis(10);

/// A member of a group. It waits for messages, and settles those it gets.
#[derive(Debug)]
pub struct Member {
    group: Group,
    name: Arc<str>,
    listener: Arc<Listener>,
}

/// What a turn came to.
enum Turn {
    Got(Deliveries),
    /// There is nothing; at this time, on the clock that never goes back, there may be.
    Nothing(Option<Duration>),
}

impl Member {
    pub(super) fn new(group: &Group, name: &str) -> Member {
        let listener = Listener::new();
        let topic = &group.topic;
        topic.home().store.listen(topic.shared().sequence.bell(), &listener, 0);
        let mut members = locked(&group.shared.members);
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&listener));
        drop(members);
        Member {
            group: group.clone(),
            name: name.into(),
            listener,
        }
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Up to so many messages, leased to this member: those that are there, or, when there are none, what comes within
    /// `timeout`; `None`: nothing did, or the group is paused, or as many messages are in flight as may be.
    ///
    /// # Errors
    /// [`crate::TopicError::GroupDeleted`], [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn receive(&mut self, messages: usize, timeout: Duration) -> Result<Option<Deliveries>> {
        let topic = &self.group.topic;
        topic.home().store.refuse_beside("member.receive", topic.name())?;
        let began = Instant::now();
        let messages = messages.clamp(1, READ_MESSAGES);
        loop {
            self.listener.wait(Duration::ZERO);
            self.group.topic.shared().sequence.bell().arm();
            let next = match self.turn(messages)? {
                Turn::Got(deliveries) => return Ok(Some(deliveries)),
                Turn::Nothing(next) => next,
            };
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let now = self.group.topic.home().store.monotonic_clock();
            let soon = next.map_or(TICK, |next| next.saturating_sub(now).max(Duration::from_millis(1)));
            self.listener.wait(left.min(TICK).min(soon));
        }
    }

    /// A few messages together with what others want; many, or where that is not plain, in a turn of its own.
    fn turn(&self, most: usize) -> Result<Turn> {
        if most <= SERVED_TOGETHER_MAX {
            let member = self.name.clone();
            match self.group.ask(&Wish::Messages { member, most }).transpose()? {
                Some(Answer::Messages(deliveries)) => return Ok(Turn::Got(deliveries)),
                Some(Answer::Nothing(next)) => return Ok(Turn::Nothing(next)),
                Some(Answer::Acknowledged) | None => {}
            }
        }
        self.group.turn(&self.name, most)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.topic.shared().sequence.bell().forget(&self.listener);
    }
}

impl Group {
    /// One turn of a member.
    fn turn(&self, member: &str, most: usize) -> Result<Turn> {
        let mut turn = self.shared.turn();
        self.refresh(&mut turn, self.topic.home().store.monotonic_clock())?;
        let memory = turn.as_mut().expect("it was read just now");
        let got = self.turn_with(memory, member, most);
        // After an error nobody knows how far it came. What is known of deadlines stays.
        memory.is_doubtful |= got.is_err();
        got
    }

    /// Reads the rows again when that is due.
    pub(super) fn refresh(&self, turn: &mut Option<Memory>, now: Duration) -> Result<()> {
        let is_fresh = |memory: &Memory| {
            memory.garbage < GARBAGE_MAX && !memory.is_doubtful && now.saturating_sub(memory.swept) < SWEEP_EVERY
        };
        if !turn.as_ref().is_some_and(is_fresh) {
            *turn = Some(self.sweep(turn.as_ref())?);
        }
        Ok(())
    }

    fn turn_with(&self, memory: &mut Memory, member: &str, most: usize) -> Result<Turn> {
        let record = self.record(&self.topic.snapshot()?)?;
        let options = Group::options_of(&record);
        if record.is_paused {
            return Ok(Turn::Nothing(None));
        }
        let now = self.topic.home().store.monotonic_clock();
        let expired = memory.expired(now);
        // What cannot be taken back, because its dead letter does not find its topic, or it is damaged, must not keep
        // everything else from being handed out. It is told when there is nothing else.
        let stuck = self.take_back_in_parts(memory, expired, options).err();
        memory.is_doubtful |= stuck.is_some();
        let due = memory.due(now, most);
        if !due.is_empty()
            && let Some(deliveries) = self.claim_again(memory, &due, options, member)?
        {
            return Ok(Turn::Got(deliveries));
        }
        let limit = u64::from(options.in_flight);
        if memory.in_flight() >= limit && now.saturating_sub(memory.swept) >= SWEEP_AGAIN {
            // Transactions of the program may have settled some.
            *memory = self.sweep(Some(memory))?;
        }
        let room = limit.saturating_sub(memory.in_flight()).min(most as u64);
        let fresh = match room {
            0 => None,
            room => self.claim_fresh(memory, room as usize, options, member)?,
        };
        memory.is_full |= room == 0;
        let soon = (room == 0).then(|| now + SWEEP_AGAIN);
        let next = memory.next_event().into_iter().chain(soon).min();
        match (fresh, stuck) {
            (Some(fresh), _) => Ok(Turn::Got(fresh)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(Turn::Nothing(next)),
        }
    }

    pub(super) fn lease(&self, options: &GroupOptions, member: &str) -> Lease {
        let store = &self.topic.home().store;
        let length = millis(options.lease);
        Lease {
            token: self.shared.token(store),
            length,
            deadline: millis(store.wall_clock()).saturating_add(length),
            member: member.into(),
        }
    }

    /// Takes leases back that ran out, in transactions of a bounded size: with what they give up, the dead letters of all
    /// of them may be more than one can hold. One that fails leaves the others alone; its error is returned at the end.
    fn take_back_in_parts(&self, memory: &mut Memory, expired: Expired, options: &GroupOptions) -> Result<()> {
        let runs = expired.runs.into_iter().map(|run| Expired {
            runs: vec![run],
            singles: Vec::new(),
        });
        let singles = expired.singles.chunks(TAKEN_BACK_AT_ONCE).map(|singles| Expired {
            runs: Vec::new(),
            singles: singles.to_vec(),
        });
        let mut failed = None;
        for part in runs.chain(singles) {
            if let Err(error) = self.take_back(memory, &part, options) {
                failed = failed.or(Some(error));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Takes leases back that ran out.
    fn take_back(&self, memory: &mut Memory, expired: &Expired, options: &GroupOptions) -> Result<()> {
        let home = self.topic.home();
        let (failed, is_known) = home.store.transact_with(written(), |tx| {
            let (mut failed, mut is_known) = (Vec::new(), true);
            for lease in &expired.runs {
                is_known &= self.take_back_run(tx, lease, options, &mut failed)?;
            }
            for lease in &expired.singles {
                is_known &= self.take_back_single(tx, lease, options, &mut failed)?;
            }
            Ok((failed, is_known))
        })?;
        for lease in &expired.runs {
            memory.run_over(lease.offset, lease.token);
        }
        for lease in &expired.singles {
            memory.single_over(lease.offset, lease.token);
        }
        // What another process has done to the rows is read from them in the next turn.
        memory.is_doubtful |= !is_known;
        failed
            .iter()
            .for_each(|(offset, failed)| self.note_failed(memory, *offset, *failed));
        Ok(())
    }

    /// Remembers what became of a message that failed.
    pub(super) fn note_failed(&self, memory: &mut Memory, offset: u64, failed: Failed) {
        let Failed::Waits { delay, due } = failed else { return };
        let waits = OpenSingle::Waits {
            due: self.topic.home().store.monotonic_clock().saturating_add(delay),
            written: due,
        };
        // What is there already was read from a newer row.
        memory.singles.entry(offset).or_insert(waits);
    }

    /// Returns whether the lease was as it was thought to be.
    fn take_back_run(
        &self,
        tx: &mut duramen_engine::Transaction,
        expired: &ExpiredLease,
        options: &GroupOptions,
        failed: &mut Vec<(u64, Failed)>,
    ) -> Result<bool> {
        let (first, token) = (expired.offset, expired.token);
        let states = &self.topic.home().tables.states;
        let key = Run::key(self.shared.id, first);
        let run = tx.get(states, &key)?.map(|run| Run::decode(&run)).transpose()?;
        let Some(run) = run.filter(|run| expired.is(&run.lease)) else {
            return Ok(false);
        };
        tx.delete(states, &key)?;
        for offset in first..run.end {
            match self.single_in(tx, offset)? {
                Some(Single::Settled { .. }) => tx.delete(states, &Single::key(self.shared.id, offset))?,
                Some(_) => {}
                None => failed.push((
                    offset,
                    self.fail_in(tx, offset, (token, 1), None, &ran_out(&run.lease), options)?,
                )),
            }
        }
        Ok(true)
    }

    /// Returns whether the lease was as it was thought to be.
    fn take_back_single(
        &self,
        tx: &mut duramen_engine::Transaction,
        expired: &ExpiredLease,
        options: &GroupOptions,
        failed: &mut Vec<(u64, Failed)>,
    ) -> Result<bool> {
        let (offset, token) = (expired.offset, expired.token);
        match self.single_in(tx, offset)? {
            Some(Single::Again { lease, tries }) if expired.is(&lease) => {
                let fate = self.fail_in(tx, offset, (token, tries), None, &ran_out(&lease), options)?;
                failed.push((offset, fate));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Hands out messages again that have waited long enough.
    fn claim_again(
        &self,
        memory: &mut Memory,
        due: &[u64],
        options: &GroupOptions,
        member: &str,
    ) -> Result<Option<Deliveries>> {
        let home = self.topic.home();
        let snapshot = self.topic.snapshot()?;
        let (messages, looked_at) = Reading::new(&self.topic, &snapshot).some(due, READ_BYTES)?;
        drop(snapshot);
        let lease = self.lease(options, member);
        let read: Vec<u64> = messages.iter().map(|message| message.offset()).collect();
        let looked_at = &due[..looked_at];
        let claimed = home.store.transact_with(written(), |tx| {
            let mut claimed = Vec::new();
            for &offset in looked_at {
                let Some(Single::Waits { tries, .. }) = self.single_in(tx, offset)? else {
                    continue;
                };
                let is_kept = read.binary_search(&offset).is_ok();
                let single = match is_kept {
                    true => Single::Again {
                        lease: lease.clone(),
                        tries: tries + 1,
                    },
                    // Retention let it go meanwhile.
                    false => Single::Settled { token: 0 },
                };
                tx.put(
                    &home.tables.states,
                    &Single::key(self.shared.id, offset),
                    &single.encode(),
                )?;
                claimed.extend(is_kept.then_some((offset, tries + 1)));
            }
            Ok(claimed)
        })?;
        let deadline = home.store.monotonic_clock() + options.lease;
        memory.is_doubtful |= claimed.len() < looked_at.len();
        for (offset, _) in &claimed {
            let (token, written) = (lease.token, lease.deadline);
            let again = OpenSingle::Again {
                token,
                deadline,
                written,
            };
            memory.singles.insert(*offset, again);
        }
        let claim = Claim::Again { token: lease.token };
        Ok((!claimed.is_empty()).then(|| Deliveries::again(self, &messages, claim, &claimed)))
    }

    /// Hands out messages that nobody had yet.
    fn claim_fresh(
        &self,
        memory: &mut Memory,
        most: usize,
        options: &GroupOptions,
        member: &str,
    ) -> Result<Option<Deliveries>> {
        let home = self.topic.home();
        let lease = self.lease(options, member);
        loop {
            let Some((cursor, messages)) = self.fresh(most)? else {
                return Ok(None);
            };
            let (first, end) = (messages.offsets().start, messages.offsets().end);
            let run = Run {
                end,
                lease: lease.clone(),
            };
            let is_claimed = home.store.transact_with(written(), |tx| {
                self.record_in(tx)?;
                if self.cursor_in(tx)? != cursor {
                    return Ok(false);
                }
                let cursor = Cursor { next: end, ..cursor };
                tx.put(&home.tables.states, &Cursor::key(self.shared.id), &cursor.encode())?;
                tx.put(&home.tables.states, &Run::key(self.shared.id, first), &run.encode())?;
                Ok(true)
            })?;
            if is_claimed {
                let open = OpenRun {
                    token: lease.token,
                    left: end - first,
                    is_counted: false,
                    deadline: home.store.monotonic_clock() + options.lease,
                    written: lease.deadline,
                };
                memory.runs.insert(first, open);
                let token = lease.token;
                let claim = Claim::Run { first, end, token };
                return Ok(Some(Deliveries::fresh(self, messages, claim)));
            }
        }
    }

    /// The cursor, and the messages that come next, unless there are none. What is not kept is passed over.
    fn fresh(&self, most: usize) -> Result<Option<(Cursor, Messages)>> {
        let snapshot = self.topic.snapshot()?;
        let reading = Reading::new(&self.topic, &snapshot);
        let cursor = super::stored_cursor(&reading, &self.shared.name, self.shared.id)?;
        let limits = ReadLimits {
            messages: most,
            bytes: READ_BYTES,
        };
        let read = reading.read_past(cursor.next, limits)?;
        Ok((!read.is_empty()).then_some((cursor, read)))
    }
}

/// Why a message is delivered again whose lease ran out.
fn ran_out(lease: &Lease) -> String {
    format!("the lease of {:?} ran out", lease.member)
}
