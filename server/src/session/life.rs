//! The beginning and the end of sessions.

use std::time::Duration;

use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{EndSession, OpenSession};
use prost::bytes::Bytes;
use tonic::Status;

use crate::command::SESSION_BYTES;
use crate::error::invalid;
use crate::registry::Attached;
use crate::security::Caller;
use crate::state::{State, unexpected};

/// How often sessions are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Gives a session to a stream; it is a new one when the wanted one has ended.
pub(super) async fn attach(
    state: &State,
    caller: &Caller,
    wanted: &[u8],
    timeout: Duration,
) -> Result<Attached, Status> {
    state.sessions.may_use(wanted, caller)?;
    if !wanted.is_empty() && wanted.len() != SESSION_BYTES {
        let message = format!(
            "a session has {SESSION_BYTES} bytes, not {}; leave it empty for a new one",
            wanted.len()
        );
        return Err(invalid(message));
    }
    let owner = state.sessions.owner(wanted);
    let resumed = owner.is_some();
    let session: Bytes = match resumed {
        true => wanted.to_vec().into(),
        false => [state.store.random_number(), state.store.random_number()]
            .iter()
            .flat_map(|number| number.to_be_bytes())
            .collect(),
    };
    // A caller that may do everything does not take the session away from its principal.
    let owner = owner.filter(|_| matches!(caller, Caller::Unlimited));
    let principal = owner.unwrap_or_else(|| caller.name().into());
    // Leases without a stream have the number 0.
    let number = state.store.random_number().max(1);
    let open = Change::OpenSession(OpenSession {
        session: session.clone(),
        timeout_ms: timeout.as_millis() as u64,
        principal: principal.clone(),
        stream: number,
    });
    state.write_unasked(open).await?;
    Ok(state.sessions.attach((session, resumed), principal, timeout, number))
}

/// Ends a session that its client closed.
pub(super) async fn close(state: &State, attached: &Attached) -> Result<(), Status> {
    state.sessions.remove(&attached.session);
    let ended = end(state, attached.session.clone(), true).await;
    if ended.is_err() {
        state.sessions.put_back(attached.session.to_vec());
    }
    ended
}

/// Ends sessions whose time is over, as long as the server runs.
pub(crate) async fn end_expired(state: &State) {
    loop {
        tokio::time::sleep(LOOK).await;
        for session in state.sessions.take_expired() {
            if end(state, session.clone().into(), false).await.is_err() {
                state.sessions.put_back(session);
            }
        }
    }
}

/// Ends a session: returns its leases, some with each command.
async fn end(state: &State, session: Bytes, is_orderly: bool) -> Result<(), Status> {
    loop {
        let end = EndSession {
            session: session.clone(),
            is_orderly,
        };
        match state.write_unasked(Change::EndSession(end)).await? {
            Led::SessionEnded(true) => return Ok(()),
            Led::SessionEnded(false) => {}
            other => return Err(unexpected(&other)),
        }
    }
}
