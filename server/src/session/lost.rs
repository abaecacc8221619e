//! Leases that are lost: a stream of the session made them, and its client never got the messages.
//!
//! A client that resumes a session tells with each subscription which leases it holds. The server releases the others that
//! earlier streams made for the subscription's topic, group and member. Why no lease is released that a client holds or
//! will get, and none stays:
//! - The command that opens the session names its new stream. From that command on, the store refuses leases for earlier
//!   streams. So the leases of earlier streams are all in the store when the first subscription begins.
//! - A lease of the new stream is never released here, in whichever order subscriptions begin.
//! - A settlement that races with the release is a command too. The later one of them is refused.

use duramen_proto::command::Command;
use duramen_proto::command::command::Change;
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::settlement::Verdict;
use duramen_proto::v1::{BeginSubscription, CommitRequest, Operation, Settlement};
use prost::bytes::Bytes;
use tonic::{Code, Status};

use super::member::Holder;
use crate::command::{HeldLeases, LeftLeases};
use crate::error::{failed, invalid, reason_of, status, unanswered};
use crate::level::Level;
use crate::state::{State, led};

/// The most leases that a client can say it holds, with one subscription.
const HELD_MAX: usize = 10_000;
/// Releases that wait for their commit at a time.
const RELEASES_MAX: usize = 32;

/// The leases of a session that its earlier streams made, as a stream finds them.
pub(super) enum LostLeases {
    /// The session is new and has none.
    None,
    /// The stream has not looked yet.
    Unread,
    /// Those of members that no subscription of this stream asked for yet.
    Left(LeftLeases),
}

impl LostLeases {
    pub(super) fn new(is_resumed: bool) -> LostLeases {
        match is_resumed {
            true => LostLeases::Unread,
            false => LostLeases::None,
        }
    }

    /// Takes the list of held leases out of a request, and returns the leases that are lost.
    pub(super) fn take(
        &mut self,
        state: &State,
        holder: &Holder,
        begin: &mut BeginSubscription,
    ) -> Result<Vec<Vec<u8>>, Status> {
        let Some(held) = begin.held.take().filter(|_| !begin.group.is_empty()) else {
            return Ok(Vec::new());
        };
        if held.leases.len() > HELD_MAX {
            let message = format!(
                "held has {} leases; with more than {HELD_MAX}, leave it absent",
                held.leases.len()
            );
            return Err(invalid(message));
        }
        let Some(held) = HeldLeases::decode(&held.leases) else {
            let message = "held has bytes that are no lease; send those that came with the messages";
            return Err(status(Code::InvalidArgument, "INVALID_LEASE", message));
        };
        if let LostLeases::Unread = self {
            let snapshot = state.store.snapshot().map_err(|error| failed(&error))?;
            let left = state.stored_sessions.left(&snapshot, &holder.session, holder.stream);
            *self = LostLeases::Left(left.map_err(|error| failed(&error))?);
        }
        let LostLeases::Left(left) = self else {
            return Ok(Vec::new());
        };
        let owner = (begin.topic.clone(), begin.group.clone(), begin.member.clone());
        Ok(left.take_lost(owner, &held))
    }
}

/// Releases leases of a session: their group delivers the messages again at once, and the attempt does not count.
pub(super) async fn release(
    state: &State,
    holder: &Holder,
    (topic, group): (&str, &str),
    leases: Vec<Vec<u8>>,
) -> Result<(), Status> {
    for some in leases.chunks(RELEASES_MAX) {
        let mut answers = Vec::with_capacity(some.len());
        for lease in some {
            let settlement = Settlement {
                topic: topic.into(),
                group: group.into(),
                lease: Bytes::copy_from_slice(lease),
                offsets: Vec::new(),
                session: holder.session.clone(),
                verdict: Some(Verdict::Release(true)),
            };
            let release = Operation {
                change: Some(Operated::Settle(settlement)),
            };
            // Each lease has a command of its own: when it is over, the others are released all the same.
            let command = Command {
                idempotency_key: Bytes::new(),
                change: Some(Change::Commit(CommitRequest {
                    then: vec![release],
                    ..CommitRequest::default()
                })),
            };
            answers.push(state.pipeline.enqueue(command, Level::Written)?);
        }
        for answer in answers {
            let outcome = answer.await.unwrap_or_else(|_| Err(unanswered()))?;
            match led(outcome) {
                Err(refused) if !is_over(&refused) => return Err(refused),
                _ => {}
            }
        }
    }
    if !leases.is_empty() {
        state.rooms.made(topic, group);
    }
    Ok(())
}

/// Whether a lease needs no release: it ended meanwhile.
fn is_over(refused: &Status) -> bool {
    matches!(&reason_of(refused)[..], "LEASE_LOST" | "ALREADY_SETTLED")
}
