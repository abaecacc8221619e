//! What commands do to groups, and to the leases of remote members.

use std::time::{Duration, UNIX_EPOCH};

use duramen::topic::{Group, LeaseRequest, Leasing, Start, TopicError, Verdict};
use duramen::{Error, Kind, Transaction};
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{
    ConfigureGroup, CreateGroup, EndSession, Extend, Lease, Leased, OpenSession, Redrive, Redriven, StoredLease,
    StoredSession,
};
use duramen_proto::v1::position::At;
use duramen_proto::v1::settlement::Verdict as Said;
use duramen_proto::v1::{Position, Settlement};
use tonic::Code;

use super::applier::Applier;
use super::options::group_options;
use super::sessions::{SESSION_BYTES, SentLease};
use super::stopped::{Ran, Stopped, outcome};
use crate::refusal::refused;

/// The most dead letters that one command brings back; the group's own limit is lower.
const REDRIVEN_MAX: u64 = 1_000;

impl Applier {
    /// A group of a topic.
    fn group(&mut self, tx: &Transaction, topic: &str, group: &str) -> Result<Group, Stopped> {
        let (topic, _) = self.topic(tx, topic)?;
        let key = (topic.name().to_string(), group.to_string());
        if let Some(known) = self.known_groups.get(&key) {
            return Ok(known.clone());
        }
        let found = topic.existing_group(group)?;
        self.keep_group(key, &found);
        Ok(found)
    }

    fn keep_group(&mut self, key: (String, String), group: &Group) {
        if self.known_groups.len() >= super::HANDLES_MAX {
            self.known_groups.clear();
        }
        self.known_groups.insert(key, group.clone());
    }

    /// Does something with a group. The handle of a group that was deleted meanwhile is of no use, and there may be another
    /// group of this name.
    fn with_group<T>(
        &mut self,
        tx: &mut Transaction,
        (topic, name): (&str, &str),
        act: impl Fn(&mut Transaction, &Group) -> duramen::Result<T>,
    ) -> Result<T, Stopped> {
        let group = self.group(tx, topic, name)?;
        match act(tx, &group) {
            Err(error) if matches!(TopicError::of(&error), Some(TopicError::GroupDeleted { .. })) => {
                self.known_groups.remove(&(topic.to_string(), name.to_string()));
                let group = self.group(tx, topic, name)?;
                Ok(act(tx, &group)?)
            }
            done => Ok(done?),
        }
    }

    pub(super) fn create_group(&mut self, tx: &mut Transaction, create: &CreateGroup) -> Ran {
        let (topic, _) = self.topic(tx, &create.topic)?;
        let options = group_options(create.options.as_ref());
        let made = topic.create_group_in(tx, &create.group, start_of(create.start.as_ref()), &options);
        match made {
            Ok(()) => Ok(outcome(Led::Changed(true))),
            Err(error) => match TopicError::of(&error) {
                Some(TopicError::GroupExists { difference, .. }) if create.if_missing && difference.is_empty() => {
                    Ok(outcome(Led::Changed(false)))
                }
                _ => Err(error.into()),
            },
        }
    }

    pub(super) fn configure_group(&mut self, tx: &mut Transaction, configure: &ConfigureGroup) -> Ran {
        let options = group_options(configure.options.as_ref());
        let name = (&configure.topic[..], &configure.group[..]);
        self.with_group(tx, name, |tx, group| group.configure_in(tx, &options))?;
        Ok(outcome(Led::Changed(true)))
    }

    pub(super) fn delete_group(&mut self, tx: &mut Transaction, topic: &str, group: &str) -> Ran {
        let (topic, _) = self.topic(tx, topic)?;
        topic.delete_group_in(tx, group)?;
        self.known_groups.remove(&(topic.name().to_string(), group.to_string()));
        Ok(outcome(Led::Changed(true)))
    }

    pub(super) fn pause_group(&mut self, tx: &mut Transaction, name: (&str, &str), paused: bool) -> Ran {
        self.with_group(tx, name, |tx, group| group.pause_in(tx, paused))?;
        Ok(outcome(Led::Changed(true)))
    }

    pub(super) fn reset_group(&mut self, tx: &mut Transaction, name: (&str, &str), start: Option<&Position>) -> Ran {
        self.with_group(tx, name, |tx, group| group.reset_in(tx, start_of(start)))?;
        Ok(outcome(Led::Changed(true)))
    }

    pub(super) fn redrive(&mut self, tx: &mut Transaction, redrive: &Redrive) -> Ran {
        let most = redrive.messages.min(REDRIVEN_MAX);
        let name = (&redrive.topic[..], &redrive.group[..]);
        let some = self.with_group(tx, name, |tx, group| group.redrive_in(tx, most))?;
        Ok(outcome(Led::Redriven(Redriven {
            all: some.is_none(),
            delivered: some.map_or(0, |some| some.delivered),
            gone: some.map_or(0, |some| some.gone),
        })))
    }

    pub(super) fn lease(&mut self, tx: &mut Transaction, lease: &Lease, now_ms: u64) -> Ran {
        if !lease.session.is_empty() {
            let session = self.sessions.get(tx, &lease.session)?;
            let session = session.ok_or_else(session_ended)?;
            // A later stream releases what earlier streams left, once. A lease that came after that would be lost.
            if lease.stream != 0 && lease.stream != session.stream {
                return Err(taken_over().into());
            }
        }
        let request = LeaseRequest {
            member: &lease.member,
            token: lease.token,
            messages: lease.messages as usize,
            prefers_new: lease.prefers_new,
        };
        let name = (&lease.topic[..], &lease.group[..]);
        let leased = match self.with_group(tx, name, |tx, group| group.lease_in(tx, &request))? {
            Leasing::Leased(leased) => leased,
            Leasing::Nothing => return Ok(outcome(Led::Leased(Leased::default()))),
            Leasing::Full => {
                let full = true;
                let none = Leased {
                    full,
                    ..Leased::default()
                };
                return Ok(outcome(Led::Leased(none)));
            }
        };
        let sent = SentLease {
            deadline: leased.deadline,
            id: leased.id,
        };
        if !lease.session.is_empty() {
            self.forget_leases_that_are_over(tx, &lease.session, now_ms)?;
            let of = StoredLease {
                topic: lease.topic.clone(),
                group: lease.group.clone(),
                member: lease.member.clone(),
                stream: lease.stream,
            };
            self.sessions.add(tx, &lease.session, &sent, &of)?;
        }
        let (offsets, tries) = leased.messages.into_iter().unzip();
        Ok(outcome(Led::Leased(Leased {
            lease: sent.encode().into(),
            deadline_ms: leased.deadline,
            offsets,
            tries,
            full: false,
        })))
    }

    /// Removes the rows of leases that the session has lost, and keeps those of leases that were extended.
    fn forget_leases_that_are_over(
        &mut self,
        tx: &mut Transaction,
        session: &[u8],
        now_ms: u64,
    ) -> Result<(), Stopped> {
        for held in self.sessions.over(tx, session, now_ms)? {
            let deadline = match self.group(tx, &held.of.topic, &held.of.group) {
                Ok(group) => group.deadline_in(tx, held.lease.id)?,
                Err(Stopped::Refused(_)) => None,
                Err(failed) => return Err(failed),
            };
            self.sessions.forget_held(tx, &held)?;
            if let Some(deadline) = deadline {
                let lease = SentLease { deadline, ..held.lease };
                self.sessions.add(tx, session, &lease, &held.of)?;
            }
        }
        Ok(())
    }

    pub(super) fn settle(&mut self, tx: &mut Transaction, settle: &Settlement) -> Result<(), Stopped> {
        let lease = sent_lease(&settle.lease)?;
        let verdict = match &settle.verdict {
            None | Some(Said::Acknowledge(_)) => Verdict::Done,
            Some(Said::Release(_)) => Verdict::Release,
            Some(Said::Retry(retry)) => Verdict::Retry {
                delay: retry.delay_ms.map(Duration::from_millis),
                error: &retry.reason,
            },
            Some(Said::GiveUp(give_up)) => Verdict::GiveUp { error: &give_up.reason },
        };
        let name = (&settle.topic[..], &settle.group[..]);
        let is_over = self.with_group(tx, name, |tx, group| {
            group.settle_lease_in(tx, lease.id, &settle.offsets, verdict)?;
            Ok(group.deadline_in(tx, lease.id)?.is_none())
        })?;
        if is_over && !settle.session.is_empty() {
            self.sessions.forget(tx, &settle.session, &lease)?;
        }
        Ok(())
    }

    pub(super) fn extend(&mut self, tx: &mut Transaction, extend: &Extend) -> Ran {
        let lease = sent_lease(&extend.lease)?;
        let by = Duration::from_millis(extend.by_ms);
        let name = (&extend.topic[..], &extend.group[..]);
        let until = self.with_group(tx, name, |tx, group| group.extend_lease_in(tx, lease.id, by))?;
        Ok(outcome(Led::ExtendedToMs(until)))
    }

    pub(super) fn open_session(&mut self, tx: &mut Transaction, open: &OpenSession) -> Ran {
        if open.session.len() != SESSION_BYTES {
            let message = format!("a session has {SESSION_BYTES} bytes, not {}", open.session.len());
            return Err(refused(Code::InvalidArgument, "INVALID_ARGUMENT", message).into());
        }
        let before = self.sessions.get(tx, &open.session)?;
        let is_of_another = |before: &StoredSession| !open.principal.is_empty() && before.principal != open.principal;
        if before.as_ref().is_some_and(is_of_another) {
            let message = "another principal opened this session; open one of your own";
            return Err(refused(Code::PermissionDenied, "PERMISSION_DENIED", message).into());
        }
        let is_new = before.is_none();
        let stored = StoredSession {
            timeout_ms: open.timeout_ms,
            principal: open.principal.clone(),
            swept_ms: before.map_or(0, |before| before.swept_ms),
            stream: open.stream,
        };
        self.sessions.open(tx, &open.session, &stored)?;
        Ok(outcome(Led::Changed(is_new)))
    }

    /// Returns leases of a session to their groups. When there are more, another command goes on.
    pub(super) fn end_session(&mut self, tx: &mut Transaction, end: &EndSession) -> Ran {
        let held = self.sessions.held(tx, &end.session)?;
        if held.is_empty() {
            self.sessions.remove(tx, &end.session)?;
            return Ok(outcome(Led::SessionEnded(true)));
        }
        for held in held {
            let before = tx.savepoint()?;
            let name = (&held.of.topic[..], &held.of.group[..]);
            let returned = self.with_group(tx, name, |tx, group| match end.is_orderly {
                true => group.settle_lease_in(tx, held.lease.id, &[], Verdict::Release),
                false => group.take_back_lease_in(tx, held.lease.id),
            });
            match returned {
                Ok(()) => {}
                // The lease is over, the group or topic is gone, or the messages cannot be buried now: then they come back
                // when the lease is over.
                Err(Stopped::Refused(_)) => tx.rollback_to(&before)?,
                Err(Stopped::Failed(error)) if is_over(&error) => tx.rollback_to(&before)?,
                Err(failed) => return Err(failed),
            }
            self.sessions.forget_held(tx, &held)?;
        }
        Ok(outcome(Led::SessionEnded(false)))
    }
}

/// Whether an error says that a lease, a group or a topic is gone, or that the messages cannot be buried.
fn is_over(error: &Error) -> bool {
    matches!(error.kind(), Kind::Lost | Kind::FixTheCall) || TopicError::of(error).is_some()
}

fn session_ended() -> duramen_proto::command::Refusal {
    let message = "the session has ended, and its leases with it; open a new one";
    refused(Code::Aborted, "SESSION_ENDED", message)
}

fn taken_over() -> duramen_proto::command::Refusal {
    let message = "another stream opened this session, and this one is over";
    refused(Code::Aborted, "SESSION_TAKEN_OVER", message)
}

fn sent_lease(bytes: &[u8]) -> Result<SentLease, Stopped> {
    SentLease::decode(bytes).ok_or_else(|| {
        let message = "these are not the bytes of a lease; send those that came with the messages";
        refused(Code::InvalidArgument, "INVALID_LEASE", message).into()
    })
}

pub(crate) fn start_of(position: Option<&Position>) -> Start {
    match position.and_then(|position| position.at) {
        None => Start::Tail,
        Some(At::Offset(offset)) => Start::Offset(offset),
        Some(At::TimeMs(time)) => Start::Time(UNIX_EPOCH + Duration::from_millis(time)),
        Some(At::Earliest(_)) => Start::Beginning,
        Some(At::Last(messages)) => Start::Last(messages),
    }
}
