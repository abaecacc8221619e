//! Which sessions there are. A session without a stream ends when its time is over, and its leases with it.
//!
//! The store has the sessions. What is here, the streams and the times, begins again with each server: after a restart each
//! client has the whole time of its session to come back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use duramen_proto::command::StoredSession;
use prost::bytes::Bytes;
use tokio::sync::oneshot;
use tonic::{Code, Status};

use crate::error::status;
use crate::security::Caller;

/// How soon a session that could not be ended is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The sessions of a server.
pub(crate) struct SessionRegistry {
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

impl SessionRegistry {
    /// A registry of the sessions that a store has.
    pub(crate) fn new(stored: Vec<(Vec<u8>, StoredSession)>) -> SessionRegistry {
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
        SessionRegistry {
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

    /// Whether there is such a session, and the principal that has it.
    pub(crate) fn owner(&self, session: &[u8]) -> Option<String> {
        self.locked().get(session).map(|known| known.principal.clone())
    }

    /// Notes that a stream has a session. An older stream of the session ends.
    pub(crate) fn attach(
        &self,
        (session, resumed): (Bytes, bool),
        principal: String,
        timeout: Duration,
        number: u64,
    ) -> Attached {
        let (ends, taken_over) = oneshot::channel();
        let place = Place::Attached { number, _ends: ends };
        // Dropping the place of an older stream ends that stream.
        let known = Known {
            timeout,
            principal,
            place,
        };
        self.locked().insert(session.to_vec(), known);
        Attached {
            session,
            resumed,
            timeout,
            number,
            taken_over,
        }
    }

    /// Forgets a session.
    pub(crate) fn remove(&self, session: &[u8]) {
        self.locked().remove(session);
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

    /// Ends a session soon.
    pub(crate) fn put_back(&self, session: Vec<u8>) {
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

    /// Takes the sessions whose time is over.
    pub(crate) fn take_expired(&self) -> Vec<Vec<u8>> {
        let now = Instant::now();
        let is_expired =
            |_: &Vec<u8>, known: &mut Known| matches!(known.place, Place::Detached { until } if until <= now);
        let mut sessions = self.locked();
        sessions.extract_if(is_expired).map(|(session, _)| session).collect()
    }
}
