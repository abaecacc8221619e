//! Settling messages: acknowledging, failing, giving up or releasing them; and extending leases. It always happens in a
//! transaction, that of the program or a separate one.
//!
//! A member can settle a message as long as its lease is in the rows, however late it is: a deadline only allows others
//! to take the lease away. So of a member that settles and a process that takes its lease back, one commits. The other
//! runs again and sees the new state of the message.

use std::time::Duration;

use std::ops::Range;

use duramen_engine::{Error, Result, Transaction};

use super::Group;
use super::lease_key::LeaseKey;
use super::record::GroupOptions;
use super::state::{ERROR_BYTES_MAX, Keyed, Lease, List, Run, Single};
use crate::error::{LeaseEnd, TopicError};
use crate::record::millis;

/// The verdict of a member on a message.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'a> {
    /// The message is done.
    Done,
    /// Deliver it again: after the given time, or according to the group's back-off list.
    Retry {
        /// After this time; `None`: according to the list.
        delay: Option<Duration>,
        /// The reason, for people.
        error: &'a str,
    },
    /// Do not deliver it again.
    GiveUp {
        /// The reason, for people.
        error: &'a str,
    },
    /// Deliver it again at once, without counting this attempt.
    Release,
}

/// Time of the redelivery of a message that was not acknowledged; `None`: it was given up, or waits for others of its
/// key.
pub(crate) type Again = Option<u64>;

/// What the rows say about a message that a member has, or had.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenMessage {
    /// Number of deliveries.
    pub(super) tries: u32,
    /// First message of a run that may still cover it.
    pub(super) origin: Option<u64>,
    pub(super) is_counted: bool,
    /// Hash of its key, in an ordered group.
    pub(super) key: Option<u64>,
}

impl OpenMessage {
    /// A message of a run, which was delivered once. The run itself may be about to be removed.
    pub(super) fn first(run: &Run) -> OpenMessage {
        OpenMessage {
            tries: 1,
            is_counted: run.is_counted,
            ..OpenMessage::default()
        }
    }
}

/// The messages of a run that its member still has.
pub(super) struct HeldMessages {
    run: Range<u64>,
    /// Messages with their own rows: the member does not hold them through the run.
    own: Vec<u64>,
}

impl HeldMessages {
    pub(super) fn count(&self) -> u64 {
        self.run.end - self.run.start - self.own.len() as u64
    }

    pub(super) fn offsets(self) -> impl Iterator<Item = u64> {
        let mut own = self.own.into_iter().peekable();
        self.run.filter(move |offset| own.next_if_eq(offset).is_none())
    }
}

impl Group {
    /// What the rows say about a message that the member of a lease holds.
    ///
    /// # Errors
    /// [`TopicError::LeaseLost`], [`TopicError::AlreadySettled`], [`TopicError::GroupDeleted`].
    fn open_in(&self, tx: &Transaction, lease_key: LeaseKey, offset: u64) -> Result<(OpenMessage, Option<Run>)> {
        let single = match lease_key {
            LeaseKey::Run { first, token, .. } => {
                let run = self.run_in(tx, first)?.filter(|run| run.lease.token == token);
                // The only message of a run has no single while the run exists.
                let single = match lease_key.is_lone() && run.is_some() {
                    true => None,
                    false => self.single_in(tx, offset)?,
                };
                if let (Some(run), None) = (run, &single) {
                    let origin = Some(first);
                    return Ok((
                        OpenMessage {
                            origin,
                            ..OpenMessage::first(&run)
                        },
                        Some(run),
                    ));
                }
                single
            }
            LeaseKey::List { token } => match self.held_in(tx, offset, token)? {
                Some(open) => return Ok((open, None)),
                None => self.single_in(tx, offset)?,
            },
        };
        Err(self.why_not(tx, lease_key, offset, single)?)
    }

    /// Why a member cannot settle a message.
    fn why_not(&self, tx: &Transaction, lease_key: LeaseKey, offset: u64, single: Option<Single>) -> Result<Error> {
        // All rows of a deleted group are gone. Only failing calls read the record to find that out.
        self.record_in(tx)?;
        let end = match single {
            Some(Single::Settled { .. }) => return Ok(TopicError::AlreadySettled { offset }.into()),
            Some(Single::Held { .. }) => LeaseEnd::TakenOver,
            Some(Single::Waits { .. }) => LeaseEnd::Waits,
            Some(Single::Parked { .. }) => LeaseEnd::EarlierFailed,
            None if offset >= self.cursor_in(tx)?.next => LeaseEnd::Reset,
            None => match self.run_over(tx, offset)? {
                Some((_, run)) if run.lease.token != lease_key.token() => LeaseEnd::Reset,
                // A message below the cursor without a row is closed.
                _ => return Ok(TopicError::AlreadySettled { offset }.into()),
            },
        };
        Ok(TopicError::LeaseLost { offset, cause: end }.into())
    }

    /// Settles one message. Returns when it is delivered again.
    pub(crate) fn settle_in(
        &self,
        tx: &mut Transaction,
        lease_key: LeaseKey,
        offset: u64,
        verdict: Verdict<'_>,
    ) -> Result<Again> {
        let (open, run) = self.open_in(tx, lease_key, offset)?;
        let (token, is_of_run) = (lease_key.token(), run.is_some());
        let open = match (lease_key, run) {
            (LeaseKey::Run { first, .. }, Some(run)) if run.end == first + 1 => {
                // The run is its only row, and is removed whatever the verdict is.
                self.delete_run(tx, first, &run)?;
                OpenMessage { origin: None, ..open }
            }
            (LeaseKey::Run { first, .. }, _) => {
                // A transaction that settles the whole run meanwhile writes no row of this message.
                tx.depends_on_key(self.states(), &Run::key(self.shared.id, first))?;
                open
            }
            (LeaseKey::List { .. }, _) => open,
        };
        match verdict {
            Verdict::Done if is_of_run => {
                // It has no row yet, and needs one only while the run exists.
                if open.origin.is_some() {
                    self.put_single(tx, offset, &Single::Settled { token })?;
                }
                self.count_closed(tx, i64::from(open.is_counted)).map(|()| None)
            }
            Verdict::Done => self.close_in(tx, offset, open, token).map(|()| None),
            Verdict::Release => self.release_in(tx, offset, open),
            Verdict::Retry { delay, error } => {
                let record = self.record_in(tx)?;
                self.fail_in(tx, offset, open, token, (delay, error), Group::options_of(&record))
            }
            Verdict::GiveUp { error } => {
                let record = self.record_in(tx)?;
                self.give_up_in(tx, offset, open, token, error, Group::options_of(&record))?;
                Ok(None)
            }
        }
    }

    /// Closes a message.
    pub(super) fn close_in(&self, tx: &mut Transaction, offset: u64, open: OpenMessage, token: u64) -> Result<()> {
        let covering = match open.origin {
            Some(first) => {
                // Every transaction that removes the run also removes the settled rows in it.
                tx.depends_on_key(self.states(), &Run::key(self.shared.id, first))?;
                self.run_in(tx, first)?.filter(|run| offset < run.end)
            }
            None => None,
        };
        match covering {
            Some(_) => self.put_single(tx, offset, &Single::Settled { token })?,
            None if self.single_in(tx, offset)?.is_some() => self.delete_single(tx, offset)?,
            None => {}
        }
        self.count_closed(tx, i64::from(open.is_counted))?;
        match open.key {
            Some(hash) => self.close_keyed(tx, Keyed { hash, offset }),
            None => Ok(()),
        }
    }

    /// Handles a failure: the message waits for the next attempt, or is given up after the last.
    pub(super) fn fail_in(
        &self,
        tx: &mut Transaction,
        offset: u64,
        open: OpenMessage,
        token: u64,
        (delay, error): (Option<Duration>, &str),
        options: &GroupOptions,
    ) -> Result<Again> {
        if options.tries.is_some_and(|most| open.tries >= most) {
            self.give_up_in(tx, offset, open, token, error, options)?;
            return Ok(None);
        }
        let delay = delay.unwrap_or_else(|| options.delay(open.tries));
        self.open_again(tx, offset, open, self.now_in(tx).saturating_add(millis(delay)), error)
    }

    /// Takes a message back from a member: this attempt does not count.
    pub(super) fn release_in(&self, tx: &mut Transaction, offset: u64, open: OpenMessage) -> Result<Again> {
        let tries = open.tries.saturating_sub(1);
        self.open_again(tx, offset, OpenMessage { tries, ..open }, self.now_in(tx), "")
    }

    pub(super) fn open_again(
        &self,
        tx: &mut Transaction,
        offset: u64,
        open: OpenMessage,
        due: u64,
        error: &str,
    ) -> Result<Again> {
        if let Some(hash) = open.key
            && !self.await_turn(tx, Keyed { hash, offset }, open)?
        {
            return Ok(None);
        }
        let waits = Single::Waits {
            due,
            tries: open.tries,
            origin: open.origin,
            is_counted: open.is_counted,
            key: open.key,
            error: shortened(error).into(),
        };
        self.wait_in(tx, offset, waits)?;
        Ok(Some(due))
    }

    fn give_up_in(
        &self,
        tx: &mut Transaction,
        offset: u64,
        open: OpenMessage,
        token: u64,
        error: &str,
        options: &GroupOptions,
    ) -> Result<()> {
        if let Some(dead) = options.dead_letters.topic_of(self.topic.name()) {
            self.bury_in(tx, &dead, offset, open.tries, shortened(error))?;
        }
        self.close_in(tx, offset, open, token)
    }

    /// Settles all messages of a lease that the member still has.
    pub(crate) fn settle_all_in(
        &self,
        tx: &mut Transaction,
        lease_key: LeaseKey,
        offset: u64,
        verdict: Verdict<'_>,
    ) -> Result<Again> {
        match lease_key {
            LeaseKey::Run { first, token, .. } => self.settle_run_in(tx, first, token, verdict),
            LeaseKey::List { token } => self.settle_list_in(tx, token, offset, verdict),
        }
    }

    fn settle_run_in(&self, tx: &mut Transaction, first: u64, token: u64, verdict: Verdict<'_>) -> Result<Again> {
        let run = self.run_in(tx, first)?.filter(|run| run.lease.token == token);
        let Some(run) = run else {
            let (lease_key, single) = (LeaseKey::Run { first, end: 0, token }, self.single_in(tx, first)?);
            return Err(self.why_not(tx, lease_key, first, single)?);
        };
        let left = self.end_run_in(tx, first, &run)?;
        if matches!(verdict, Verdict::Done) {
            let counted = if run.is_counted { left.count() as i64 } else { 0 };
            self.count_closed(tx, counted)?;
            return Ok(None);
        }
        let mut again = None;
        for offset in left.offsets() {
            let open = OpenMessage::first(&run);
            again = earliest(again, self.release_in(tx, offset, open)?);
        }
        Ok(again)
    }

    /// Removes a run, and the rows that have a meaning only within it. Returns the messages that the member still has.
    pub(super) fn end_run_in(&self, tx: &mut Transaction, first: u64, run: &Run) -> Result<HeldMessages> {
        let (low, high) = Single::keys(self.shared.id, first..run.end);
        let (mut settled, mut own) = (Vec::new(), Vec::new());
        let mut walk = tx.range(self.states(), &low[..]..&high[..])?;
        while let Some((key, single)) = walk.next()? {
            let offset = crate::tables::offset_of(key);
            own.push(offset);
            if let Single::Settled { .. } = Single::decode(&single)? {
                settled.push(offset);
            }
        }
        drop(walk);
        // A transaction that settles one of its messages meanwhile does not write the run.
        tx.depends_on(self.states(), &low[..]..&high[..])?;
        for offset in settled {
            self.delete_single(tx, offset)?;
        }
        self.delete_run(tx, first, run)?;
        Ok(HeldMessages {
            run: first..run.end,
            own,
        })
    }

    fn settle_list_in(&self, tx: &mut Transaction, token: u64, offset: u64, verdict: Verdict<'_>) -> Result<Again> {
        let Some(list) = self.list_in(tx, token)? else {
            let single = self.single_in(tx, offset)?;
            return Err(self.why_not(tx, LeaseKey::List { token }, offset, single)?);
        };
        if let (Some(offset), Verdict::Done) = (list.lost, verdict) {
            let cause = LeaseEnd::EarlierFailed;
            return Err(TopicError::LeaseLost { offset, cause }.into());
        }
        let mut again = None;
        for &offset in &list.offsets {
            let Some(open) = self.held_in(tx, offset, token)? else {
                continue;
            };
            match verdict {
                Verdict::Done => self.close_in(tx, offset, open, token)?,
                _ => again = earliest(again, self.release_in(tx, offset, open)?),
            }
        }
        self.delete_list(tx, &list)?;
        Ok(again)
    }

    /// What a list still holds of a message.
    pub(super) fn held_in(&self, tx: &Transaction, offset: u64, token: u64) -> Result<Option<OpenMessage>> {
        match self.single_in(tx, offset)? {
            Some(Single::Held {
                token: mine,
                tries,
                origin,
                is_counted,
                key,
            }) if mine == token => Ok(Some(OpenMessage {
                tries,
                origin,
                is_counted,
                key,
            })),
            _ => Ok(None),
        }
    }

    /// Extends a lease to a time at least. Returns when it ends.
    pub(crate) fn extend_in(
        &self,
        tx: &mut Transaction,
        lease_key: LeaseKey,
        offset: u64,
        by: Duration,
    ) -> Result<u64> {
        let until = self.now_in(tx).saturating_add(millis(by));
        let longer = |lease: &Lease| Lease {
            deadline: lease.deadline.max(until),
            ..lease.clone()
        };
        match lease_key {
            LeaseKey::Run { first, token, .. } => {
                if let Some(run) = self.run_in(tx, first)?.filter(|run| run.lease.token == token) {
                    let extended = Run {
                        lease: longer(&run.lease),
                        is_extended: true,
                        ..run.clone()
                    };
                    self.put_run(tx, first, Some(&run), &extended)?;
                    return Ok(extended.lease.deadline);
                }
            }
            LeaseKey::List { token } => {
                if let Some(list) = self.list_in(tx, token)? {
                    let extended = List {
                        lease: longer(&list.lease),
                        ..list.clone()
                    };
                    self.put_list(tx, Some(&list), &extended)?;
                    return Ok(extended.lease.deadline);
                }
            }
        }
        let single = self.single_in(tx, offset)?;
        Err(self.why_not(tx, lease_key, offset, single)?)
    }
}

/// The earlier of two times, if there are any.
pub(super) fn earliest(one: Again, other: Again) -> Again {
    one.into_iter().chain(other).min()
}

/// The part of a text that is stored, cut between characters.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(ERROR_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
