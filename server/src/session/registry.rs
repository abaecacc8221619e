//! Which sessions there are. A session without a stream ends when its time is over, and its leases with it.
//!
//! The store has the sessions. What is here, the streams and the times, begins again with each server: after a restart each
//! client has the whole time of its session to come back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{EndSession, OpenSession, StoredSession};
use prost::bytes::Bytes;
use tokio::sync::oneshot;
use tonic::{Code, Status};

use crate::command::SESSION_BYTES;
use crate::error::{invalid, status};
use crate::security::Caller;
use crate::state::{State, unexpected};

/// How often sessions are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How soon a session that could not be ended is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The sessions of a server.
pub(crate) struct Registry {
    sessions: Mutex<HashMap<Vec<u8>, Known>>,
}

struct Known {
    timeout: Duration,
    /// The principal that has it; empty: none.
    principal: String,
    place: Place,
}

enum Place {
    /// It has a stream, which ends when the sender is dropped.
    Attached {
        number: u64,
        _ends: oneshot::Sender<()>,
    },
    Detached {
        until: Instant,
    },
}

/// A session that belongs to a stream.
pub(crate) struct Attached {
    pub(crate) session: Bytes,
    pub(crate) resumed: bool,
    pub(crate) timeout: Duration,
    /// Tells this stream from other ones of the session.
    pub(crate) number: u64,
    /// Resolves when another stream takes the session over.
    pub(crate) taken_over: oneshot::Receiver<()>,
}

impl Registry {
    /// A registry of the sessions that a store has.
    pub(crate) fn new(stored: Vec<(Vec<u8>, StoredSession)>) -> Registry {
        let known = stored.into_iter().map(|(session, stored)| {
            let timeout = Duration::from_millis(stored.timeout_ms);
            let known = Known {
                timeout,
                principal: stored.principal,
                place: Place::Detached {
                    until: Instant::now() + timeout,
                },
            };
            (session, known)
        });
        Registry {
            sessions: Mutex::new(known.collect()),
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Known>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.locked().len()
    }

    /// Refuses a session that another principal has. The command that needs a session refuses it when it does not exist.
    pub(crate) fn may_use(&self, session: &[u8], caller: &Caller) -> Result<(), Status> {
        match self.locked().get(session) {
            Some(known) if known.principal != caller.name() && !matches!(caller, Caller::Unlimited) => {
                let message = "another principal opened this session; open one of your own";
                Err(status(Code::PermissionDenied, "PERMISSION_DENIED", message))
            }
            _ => Ok(()),
        }
    }

    /// Gives a session to a stream; it is a new one when the wanted one has ended.
    pub(crate) async fn attach(
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
        let resumed = state.sessions.locked().contains_key(wanted);
        let session = match resumed {
            true => wanted.to_vec(),
            false => [state.store.random_number(), state.store.random_number()]
                .iter()
                .flat_map(|number| number.to_be_bytes())
                .collect(),
        };
        // A caller that may do everything does not take the session away from its principal.
        let owner = state.sessions.locked().get(wanted).map(|known| known.principal.clone());
        let owner = owner.filter(|_| matches!(caller, Caller::Unlimited));
        let principal = owner.unwrap_or_else(|| caller.name().into());
        // Leases without a stream have the number 0.
        let number = state.store.random_number().max(1);
        let open = Change::OpenSession(OpenSession {
            session: session.clone().into(),
            timeout_ms: timeout.as_millis() as u64,
            principal: principal.clone(),
            stream: number,
        });
        state.write_unasked(open).await?;
        let (ends, taken_over) = oneshot::channel();
        let place = Place::Attached { number, _ends: ends };
        // Dropping the place of an older stream ends that stream.
        let known = Known {
            timeout,
            principal,
            place,
        };
        state.sessions.locked().insert(session.clone(), known);
        Ok(Attached {
            session: session.into(),
            resumed,
            timeout,
            number,
            taken_over,
        })
    }

    /// Takes a session back from a stream that has ended, unless another stream has it.
    pub(crate) fn detach(&self, attached: &Attached) {
        if let Some(known) = self.locked().get_mut(&attached.session[..])
            && matches!(known.place, Place::Attached { number, .. } if number == attached.number)
        {
            let until = Instant::now() + known.timeout;
            known.place = Place::Detached { until };
        }
    }

    /// Ends a session that its client closed.
    pub(crate) async fn close(state: &State, attached: &Attached) -> Result<(), Status> {
        state.sessions.locked().remove(&attached.session[..]);
        let ended = end(state, attached.session.clone(), true).await;
        if ended.is_err() {
            state.sessions.put_back(attached.session.to_vec());
        }
        ended
    }

    /// Ends a session soon.
    fn put_back(&self, session: Vec<u8>) {
        let place = Place::Detached {
            until: Instant::now() + TRY_AGAIN,
        };
        let known = Known {
            timeout: TRY_AGAIN,
            principal: String::new(),
            place,
        };
        self.locked().insert(session, known);
    }

    fn take_expired(&self) -> Vec<Vec<u8>> {
        let now = Instant::now();
        let is_expired =
            |_: &Vec<u8>, known: &mut Known| matches!(known.place, Place::Detached { until } if until <= now);
        let mut sessions = self.locked();
        sessions.extract_if(is_expired).map(|(session, _)| session).collect()
    }
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
