//! Messages that were leased to a member, and what it can say of them.

use std::time::Duration;

use duramen_engine::{Result, Transaction};

use super::desk::Wish;
use super::memory::OpenSingle;
use super::settle::{Failed, Verdict};
use super::{Group, written};
use crate::messages::{Messages, Received};
use crate::subscription::TICK;

/// By what a member has a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It belongs to messages that were handed out together, for the first time.
    Run { first: u64, end: u64, token: u64 },
    /// It was handed out again.
    Again { token: u64 },
}

impl Claim {
    pub(crate) fn token(self) -> u64 {
        match self {
            Claim::Run { token, .. } | Claim::Again { token } => token,
        }
    }

    /// Whether it is one message that was handed out by itself, for the first time.
    pub(crate) fn is_lone(self) -> bool {
        matches!(self, Claim::Run { first, end, .. } if end == first + 1)
    }
}

/// Messages leased to a member. They are settled all together, or one by one: see [`Deliveries::into_iter`].
///
/// Dropping them settles nothing: what is not settled is delivered again when the lease is over.
#[derive(Clone, Debug)]
pub struct Deliveries {
    group: Group,
    messages: Messages,
    claim: Claim,
    /// Of messages that were handed out again.
    tries: Vec<u32>,
}

impl Deliveries {
    pub(super) fn fresh(group: &Group, messages: Messages, claim: Claim) -> Deliveries {
        Deliveries {
            group: group.clone(),
            messages,
            claim,
            tries: Vec::new(),
        }
    }

    /// Messages that were handed out again: those of `messages` that were claimed, which is nearly always all.
    pub(super) fn again(group: &Group, messages: &Messages, claim: Claim, claimed: &[(u64, u32)]) -> Deliveries {
        let is_claimed = |offset: u64| claimed.binary_search_by_key(&offset, |(offset, _)| *offset).is_ok();
        Deliveries {
            group: group.clone(),
            messages: messages.only(is_claimed),
            claim,
            tries: claimed.iter().map(|(_, tries)| *tries).collect(),
        }
    }

    /// The messages.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// How many there are; at least one.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    #[cfg(test)]
    pub(super) fn claim(&self) -> Claim {
        self.claim
    }

    fn offsets(&self) -> Vec<u64> {
        self.messages.iter().map(|message| message.offset()).collect()
    }

    /// Acknowledges all of them, but for those that were settled one by one before. A commit of its own, which a power cut
    /// may take back; then they are delivered again. In a transaction: [`crate::TopicWrites::acknowledge_all`].
    ///
    /// # Errors
    /// [`crate::TopicError::LeaseLost`], [`crate::TopicError::GroupDeleted`], and those of a commit.
    pub fn acknowledge(&self) -> Result<()> {
        let store = &self.group.topic.home().store;
        store.refuse_beside("deliveries.acknowledge", self.group.topic.name())?;
        store.transact_with(written(), |tx| self.acknowledge_in(tx))?;
        self.group.remember(|memory| match self.claim {
            Claim::Run { first, token, .. } => memory.run_over(first, token),
            Claim::Again { token } => {
                let offsets = self.messages.iter().map(|message| message.offset());
                offsets.for_each(|offset| memory.single_over(offset, token));
            }
        });
        Ok(())
    }

    pub(crate) fn acknowledge_in(&self, tx: &mut Transaction) -> Result<()> {
        self.group.settle_all_in(tx, self.claim, &self.offsets())
    }

    /// Gives the member so much time from now on. What was settled before stays so.
    ///
    /// # Errors
    /// As [`Deliveries::acknowledge`].
    pub fn extend(&self, by: Duration) -> Result<()> {
        self.group.extend(self.claim, &self.offsets(), by)
    }
}

impl IntoIterator for Deliveries {
    type Item = Delivery;
    type IntoIter = std::vec::IntoIter<Delivery>;

    /// The messages one by one, each with its own fate.
    fn into_iter(self) -> Self::IntoIter {
        let one = |place: usize| Delivery {
            group: self.group.clone(),
            message: self.messages.part(place..place + 1),
            claim: self.claim,
            tries: self.tries.get(place).copied().unwrap_or(1),
        };
        let all: Vec<Delivery> = (0..self.messages.len()).map(one).collect();
        all.into_iter()
    }
}

/// A message leased to a member.
#[derive(Clone, Debug)]
pub struct Delivery {
    group: Group,
    message: Messages,
    claim: Claim,
    tries: u32,
}

impl Delivery {
    /// The message.
    pub fn message(&self) -> Received<'_> {
        self.message.get(0).expect("a delivery has one message")
    }

    /// Its offset.
    pub fn offset(&self) -> u64 {
        self.message().offset()
    }

    /// How often it was delivered, this time included.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Acknowledges it: it is not delivered again. A commit of its own, which a power cut may take back; then it is
    /// delivered again. In a transaction: [`crate::TopicWrites::acknowledge`].
    ///
    /// # Errors
    /// [`crate::TopicError::LeaseLost`], [`crate::TopicError::AlreadySettled`], [`crate::TopicError::GroupDeleted`], and
    /// those of a commit.
    pub fn acknowledge(&self) -> Result<()> {
        let topic = &self.group.topic;
        topic.home().store.refuse_beside("delivery.acknowledge", topic.name())?;
        let wish = Wish::Acknowledged {
            claim: self.claim,
            offset: self.offset(),
            tries: self.tries,
        };
        match self.group.ask(&wish) {
            Some(answer) => answer.map(|_| ()),
            None => self.settle(Verdict::Done),
        }
    }

    /// It failed, and is to be delivered again after the time that the group's back-off list says; after the last try it
    /// goes to the dead-letter topic. `why` is kept for people to read, cut after 512 bytes.
    ///
    /// # Errors
    /// As [`Delivery::acknowledge`].
    pub fn retry(&self, why: &str) -> Result<()> {
        let (delay, error) = (None, why);
        self.settle(Verdict::Retry { delay, error })
    }

    /// The same, after a time of the member's choice.
    ///
    /// # Errors
    /// As [`Delivery::acknowledge`].
    pub fn retry_after(&self, delay: Duration, why: &str) -> Result<()> {
        let (delay, error) = (Some(delay), why);
        self.settle(Verdict::Retry { delay, error })
    }

    /// It failed, and another try would fail too: it goes to the dead-letter topic now.
    ///
    /// # Errors
    /// As [`Delivery::acknowledge`].
    pub fn give_up(&self, why: &str) -> Result<()> {
        self.settle(Verdict::GiveUp { error: why })
    }

    /// Gives the member so much time from now on, for this message and, when it is delivered for the first time, all that
    /// were handed out with it. What was settled before stays so.
    ///
    /// # Errors
    /// [`crate::TopicError::LeaseLost`], [`crate::TopicError::GroupDeleted`], and those of a commit.
    pub fn extend(&self, by: Duration) -> Result<()> {
        self.group.extend(self.claim, &[self.offset()], by)
    }

    fn settle(&self, verdict: Verdict<'_>) -> Result<()> {
        let store = &self.group.topic.home().store;
        let failed = store.transact_with(written(), |tx| self.settle_in(tx, verdict))?;
        self.group.remember(|memory| {
            match self.claim {
                // Only an acknowledgement takes the run with its message.
                Claim::Run { first, token, .. } if failed.is_some() => memory.left_run(first, token),
                claim => memory.settled(claim, self.offset()),
            }
            if let Some(failed) = failed {
                self.group.note_failed(memory, self.offset(), failed);
            }
        });
        if matches!(failed, Some(Failed::Waits { delay, .. }) if delay < TICK) {
            self.group.wake_members();
        }
        Ok(())
    }

    pub(crate) fn settle_in(&self, tx: &mut Transaction, verdict: Verdict<'_>) -> Result<Option<Failed>> {
        self.group.settle_in(tx, self.claim, self.offset(), self.tries, verdict)
    }
}

impl Group {
    /// Changes what the process remembers, and wakes members that wait for room.
    fn remember(&self, change: impl FnOnce(&mut super::memory::Memory)) {
        let mut turn = self.shared.turn();
        let Some(memory) = turn.as_mut() else { return };
        change(memory);
        let is_awaited = std::mem::take(&mut memory.is_full);
        drop(turn);
        if is_awaited {
            self.wake_members();
        }
    }

    fn extend(&self, claim: Claim, offsets: &[u64], by: Duration) -> Result<()> {
        let store = &self.topic.home().store;
        // The turn first: whoever takes leases back shall not act on the old deadline while this commits.
        let mut turn = self.shared.turn();
        let written = store.transact_with(written(), |tx| self.extend_in(tx, claim, offsets, by))?;
        let until = store.monotonic_clock().saturating_add(by);
        let Some(memory) = turn.as_mut() else { return Ok(()) };
        match claim {
            Claim::Run { first, token, .. } => {
                let run = memory.runs.get_mut(&first).filter(|run| run.token == token);
                run.into_iter()
                    .for_each(|run| (run.deadline, run.written) = (until, written));
            }
            Claim::Again { token: mine } => {
                for offset in offsets {
                    if let Some(OpenSingle::Again {
                        token,
                        deadline,
                        written: before,
                    }) = memory.singles.get_mut(offset)
                        && *token == mine
                    {
                        (*deadline, *before) = (until, written);
                    }
                }
            }
        }
        Ok(())
    }
}
