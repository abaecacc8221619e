//! A member's state for one topic: its membership, and the bells that it listens to.

use std::sync::Arc;

use duramen_engine::{Listener, Result};

use super::Group;
use super::combined_requests::COMBINED_MESSAGES_MAX;
use super::combining::{Answer, Request};
use super::deliveries::Deliveries;
use super::leasing::TurnOutcome;
use super::membership::Membership;
use crate::limits::READ_MESSAGES;
use crate::listening::Listening;
use crate::lock::locked;
use crate::record::millis;

/// Takes messages of one group. The listener gets a token when there may be messages.
#[derive(Debug)]
pub(super) struct Receiver {
    membership: Arc<Membership>,
    listener: Arc<Listener>,
    _messages: Listening,
    _again: Listening,
}

impl Receiver {
    pub(super) fn new(group: &Group, name: &Arc<str>, listener: &Arc<Listener>, token: u64) -> Receiver {
        let store = &group.topic.home().store;
        let (messages, again) = (&group.topic.shared().sequence, &group.shared.bell);
        group.shared.changes.begin(store, again.bell());
        let mut members = locked(&group.shared.members);
        members.push((token, Arc::downgrade(listener)));
        drop(members);
        Receiver {
            membership: Membership::new(group, name),
            listener: listener.clone(),
            _messages: Listening::begin(store, messages, listener, token),
            _again: Listening::begin(store, again, listener, token),
        }
    }

    pub(super) fn group(&self) -> &Group {
        &self.membership.group
    }

    pub(super) fn name(&self) -> &str {
        &self.membership.name
    }

    /// Checks once for up to `messages` messages. Anything committed after the check gives the listener a token. The
    /// exception is messages that another process delivers meanwhile: their leases end no earlier than one lease from
    /// now, and by then this checks again.
    pub(super) fn look(&self, messages: usize) -> Result<TurnOutcome> {
        let group = self.group();
        let topic = &group.topic;
        topic.home().store.refuse_beside("member.receive", topic.name())?;
        topic.shared().sequence.bell().arm();
        group.shared.bell.bell().arm();
        Ok(match self.turn(messages.clamp(1, READ_MESSAGES))? {
            TurnOutcome::Nothing(next) => {
                let lease = group
                    .known()
                    .map_or(0, |record| millis(Group::options_of(&record).lease));
                TurnOutcome::Nothing(next.min(group.now().saturating_add(lease)))
            }
            got => got,
        })
    }

    /// Takes a few messages together with the requests of other members. Takes many messages, and special cases, in a
    /// separate turn.
    fn turn(&self, most: usize) -> Result<TurnOutcome> {
        let group = self.group();
        if most <= COMBINED_MESSAGES_MAX {
            let membership = self.membership.clone();
            match group.combine(&Request::Messages { membership, most }).transpose()? {
                Some(Answer::Messages(batch, messages)) => {
                    return Ok(TurnOutcome::Got(Deliveries::new(batch, messages, Vec::new())));
                }
                Some(Answer::Nothing(next)) => return Ok(TurnOutcome::Nothing(next)),
                Some(Answer::Acknowledged) | None => {}
            }
        }
        let mut hints = group.shared.turn();
        let turn = group.turn_with(&mut hints, &self.membership, most);
        if turn.is_err() {
            // The attempt may have changed rows before it failed.
            hints.doubt();
        }
        turn
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut members = locked(&self.group().shared.members);
        members.retain(|(_, member)| !std::ptr::eq(member.as_ptr(), Arc::as_ptr(&self.listener)));
    }
}
