//! Settling messages: acknowledged, to be tried again, or given up; and extending leases. Always in a transaction, that of
//! the program or one of its own.

use std::time::Duration;

use duramen_engine::{Result, Transaction};

use super::Group;
use super::deliveries::Claim;
use super::record::GroupOptions;
use super::state::{ERROR_BYTES_MAX, Lease, Row, Run, Single};
use crate::error::TopicError;
use crate::record::millis;

/// What a member says of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict<'a> {
    Done,
    /// To be tried again: after the time given, or as the group's back-off list says.
    Retry {
        delay: Option<Duration>,
        error: &'a str,
    },
    /// Not to be tried again.
    GiveUp {
        error: &'a str,
    },
}

/// What became of a message that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    Waits {
        delay: Duration,
        /// As it is written.
        due: u64,
    },
    GivenUp,
}

impl Group {
    pub(super) fn single_in(&self, tx: &Transaction, offset: u64) -> Result<Option<Single>> {
        let single = tx.get(&self.topic.home().tables.states, &Single::key(self.shared.id, offset))?;
        single.map(|single| Single::decode(&single)).transpose()
    }

    fn run_in(&self, tx: &Transaction, first: u64, token: u64, offset: u64) -> Result<Run> {
        let run = tx.get(&self.topic.home().tables.states, &Run::key(self.shared.id, first))?;
        let run = run.map(|run| Run::decode(&run)).transpose()?;
        let run = run.filter(|run| run.lease.token == token);
        run.ok_or_else(|| {
            lost(
                offset,
                "its lease ran out, or all messages of it were settled, or the group was reset",
            )
        })
    }

    /// What to say of a message that was handed out by itself, and whose run is gone without a row of its own. As a rule it
    /// was settled, as every message below the cursor is that no row speaks of.
    fn gone(&self, tx: &Transaction, offset: u64, lost: duramen_engine::Error) -> Result<duramen_engine::Error> {
        let cursor = self.cursor_in(tx)?;
        let mut is_open = offset >= cursor.next;
        let (low, _) = Row::runs_from(self.shared.id, cursor.floor.min(offset));
        let (high, _) = Row::runs_from(self.shared.id, offset + 1);
        let mut runs = tx.range(&self.topic.home().tables.states, &low[..]..&high[..])?;
        while let Some((key, row)) = runs.next()? {
            is_open |= matches!(Row::decode(key, &row)?, Row::Run(_, run) if offset < run.end);
        }
        Ok(match is_open {
            // The group was reset.
            true => lost,
            false => TopicError::AlreadySettled { offset }.into(),
        })
    }

    /// Refuses to settle what the member does not have (any more).
    fn check_claim(&self, tx: &Transaction, claim: Claim, offset: u64) -> Result<()> {
        let single = self.single_in(tx, offset)?;
        if matches!(single, Some(Single::Settled { .. })) {
            return Err(TopicError::AlreadySettled { offset }.into());
        }
        match (claim, single) {
            (Claim::Run { first, token, .. }, None) if claim.is_lone() => match self.run_in(tx, first, token, offset) {
                Err(error) if is_lost(&error) => Err(self.gone(tx, offset, error)?),
                run => run.map(|_| ()),
            },
            (Claim::Run { first, token, .. }, None) => self.run_in(tx, first, token, offset).map(|_| ()),
            (Claim::Run { .. }, Some(_)) => Err(lost(offset, "it failed, or was given back, before")),
            (Claim::Again { token }, Some(Single::Again { lease, .. })) if lease.token == token => Ok(()),
            (Claim::Again { .. }, _) => Err(lost(offset, "its lease ran out, or the group was reset")),
        }
    }

    /// Whether the member still has a message, and has not settled it itself. What somebody else settled was lost before.
    fn has_still(&self, tx: &Transaction, claim: Claim, offset: u64) -> Result<bool> {
        match self.single_in(tx, offset)? {
            Some(Single::Settled { token }) if token == claim.token() => Ok(false),
            Some(Single::Settled { .. }) => Err(lost(offset, "its lease ran out, and somebody else settled it")),
            _ => self.check_claim(tx, claim, offset).map(|()| true),
        }
    }

    /// Settles one message. `tries` is how often it was delivered.
    pub(crate) fn settle_in(
        &self,
        tx: &mut Transaction,
        claim: Claim,
        offset: u64,
        tries: u32,
        verdict: Verdict<'_>,
    ) -> Result<Option<Failed>> {
        self.check_claim(tx, claim, offset)
            .or_else(|error| self.or_deleted(tx, error))?;
        let states = &self.topic.home().tables.states;
        if let (Claim::Run { first, .. }, true, Verdict::Done) = (claim, claim.is_lone(), verdict) {
            // The run is its only row. Whoever says meanwhile that it failed writes another.
            tx.depends_on_key(states, &Single::key(self.shared.id, offset))?;
            return tx.delete(states, &Run::key(self.shared.id, first)).map(|()| None);
        }
        if let Claim::Run { first, .. } = claim {
            // Whoever settles the whole run meanwhile writes no row of this message.
            let key = Run::key(self.shared.id, first);
            tx.depends_on_key(states, &key)?;
        }
        match verdict {
            Verdict::Done => {
                let token = claim.token();
                self.put_single(tx, offset, &Single::Settled { token }).map(|()| None)
            }
            Verdict::Retry { delay, error } => {
                let record = self.record_in(tx)?;
                let options = Group::options_of(&record);
                self.fail_in(tx, offset, (claim.token(), tries), delay, error, options)
                    .map(Some)
            }
            Verdict::GiveUp { error } => {
                let record = self.record_in(tx)?;
                self.give_up_in(tx, offset, (claim.token(), tries), error, Group::options_of(&record))?;
                Ok(Some(Failed::GivenUp))
            }
        }
    }

    fn put_single(&self, tx: &mut Transaction, offset: u64, single: &Single) -> Result<()> {
        let key = Single::key(self.shared.id, offset);
        tx.put(&self.topic.home().tables.states, &key, &single.encode())
    }

    /// A message failed: it waits for the next try, or is given up after the last.
    pub(super) fn fail_in(
        &self,
        tx: &mut Transaction,
        offset: u64,
        (token, tries): (u64, u32),
        delay: Option<Duration>,
        error: &str,
        options: &GroupOptions,
    ) -> Result<Failed> {
        if options.tries.is_some_and(|most| tries >= most) {
            self.give_up_in(tx, offset, (token, tries), error, options)?;
            return Ok(Failed::GivenUp);
        }
        let delay = delay.unwrap_or_else(|| options.delay(tries));
        let due = millis(self.topic.home().store.wall_clock()).saturating_add(millis(delay));
        let single = Single::Waits {
            due,
            delay: millis(delay),
            tries,
            error: shortened(error).into(),
        };
        self.put_single(tx, offset, &single)?;
        Ok(Failed::Waits { delay, due })
    }

    fn give_up_in(
        &self,
        tx: &mut Transaction,
        offset: u64,
        (token, tries): (u64, u32),
        error: &str,
        options: &GroupOptions,
    ) -> Result<()> {
        if let Some(dead) = &options.dead_letters {
            self.bury_in(tx, dead, offset, tries, shortened(error))?;
        }
        self.put_single(tx, offset, &Single::Settled { token })
    }

    /// The error of somebody who has nothing to settle, or, when that is because the group was deleted, with all its rows,
    /// one that says so. Those who do have something need not read the record of the group for it.
    fn or_deleted<T>(&self, tx: &Transaction, error: duramen_engine::Error) -> Result<T> {
        self.record_in(tx)?;
        Err(error)
    }

    /// Settles all messages of a claim that the member still has.
    pub(crate) fn settle_all_in(&self, tx: &mut Transaction, claim: Claim, offsets: &[u64]) -> Result<()> {
        let settled = self.settle_rows_in(tx, claim, offsets);
        settled.or_else(|error| self.or_deleted(tx, error))
    }

    fn settle_rows_in(&self, tx: &mut Transaction, claim: Claim, offsets: &[u64]) -> Result<()> {
        let Claim::Run { first, token, .. } = claim else {
            let token = claim.token();
            for &offset in offsets {
                if self.has_still(tx, claim, offset)? {
                    self.put_single(tx, offset, &Single::Settled { token })?;
                }
            }
            return Ok(());
        };
        let run = self.run_in(tx, first, token, first)?;
        let states = &self.topic.home().tables.states;
        let (low, high) = Row::singles(self.shared.id, first..run.end);
        let mut settled = Vec::new();
        let mut walk = tx.range(states, &low[..]..&high[..])?;
        while let Some((key, row)) = walk.next()? {
            if let Row::Single(offset, Single::Settled { .. }) = Row::decode(key, &row)? {
                settled.push(offset);
            }
        }
        drop(walk);
        // And whoever settles one message of it meanwhile does not write the run's.
        tx.depends_on(states, &low[..]..&high[..])?;
        for offset in settled {
            tx.delete(states, &Single::key(self.shared.id, offset))?;
        }
        tx.delete(states, &Run::key(self.shared.id, first))
    }

    /// Gives a claim a new deadline, and returns it as it is written.
    pub(crate) fn extend_in(&self, tx: &mut Transaction, claim: Claim, offsets: &[u64], by: Duration) -> Result<u64> {
        let states = &self.topic.home().tables.states;
        let until = millis(self.topic.home().store.wall_clock()).saturating_add(millis(by));
        let longer = |lease: Lease| Lease {
            length: millis(by),
            deadline: until,
            ..lease
        };
        if let Claim::Run { first, token, .. } = claim {
            let run = self.run_in(tx, first, token, first)?;
            let lease = longer(run.lease);
            tx.put(states, &Run::key(self.shared.id, first), &Run { lease, ..run }.encode())?;
            return Ok(until);
        }
        for &offset in offsets {
            if !self.has_still(tx, claim, offset)? {
                continue;
            }
            if let Some(Single::Again { lease, tries }) = self.single_in(tx, offset)? {
                let lease = longer(lease);
                self.put_single(tx, offset, &Single::Again { lease, tries })?;
            }
        }
        Ok(until)
    }
}

fn is_lost(error: &duramen_engine::Error) -> bool {
    matches!(TopicError::of(error), Some(TopicError::LeaseLost { .. }))
}

fn lost(offset: u64, cause: &'static str) -> duramen_engine::Error {
    TopicError::LeaseLost { offset, cause }.into()
}

/// What is kept of a text, cut between letters.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(ERROR_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
