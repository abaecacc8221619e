//! One call: it takes a connection of the pool, and repeats itself with backoff and jitter until its deadline.
//!
//! ```text
//! failure                    read     write    write at MEMORY
//! not connected              repeat   repeat   repeat
//! connection lost            repeat   repeat   UnknownOutcome
//! server is unavailable      repeat   repeat   UnknownOutcome
//! queue full, with a delay   repeat   repeat   Overloaded
//! any other                  error    error    error
//! ```
//! A write is repeated with its idempotency key, so it takes effect once. When the deadline passes after an attempt that
//! may have taken effect, the error is `UnknownOutcome`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::error::{Error, ErrorKind, Failure, Result};

/// The first pause between two attempts, and the longest.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a call does, which decides how it is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Reads.
    Read,
    /// Opens a stream. The deadline covers the opening only.
    Open,
    /// Changes something, and carries an idempotency key.
    Write,
    /// Changes something, and must not be sent twice.
    WriteOnce,
}

impl Effect {
    fn is_write(self) -> bool {
        matches!(self, Effect::Write | Effect::WriteOnce)
    }
}

/// The connections to a server. Each connects itself when a call needs it.
pub(crate) struct Pool {
    channels: Vec<Channel>,
    turn: AtomicUsize,
    /// Streams take turns of their own: a call before each of them would put all of them on one connection.
    stream_turn: AtomicUsize,
    deadline: Duration,
    authorization: Option<AsciiMetadataValue>,
}

impl Pool {
    pub(crate) fn new(channels: Vec<Channel>, deadline: Duration, authorization: Option<AsciiMetadataValue>) -> Pool {
        assert!(!channels.is_empty(), "a pool has a connection");
        Pool {
            channels,
            turn: AtomicUsize::new(0),
            stream_turn: AtomicUsize::new(0),
            deadline,
            authorization,
        }
    }

    fn channel(&self, effect: Effect) -> Channel {
        let turns = match effect {
            Effect::Open => &self.stream_turn,
            Effect::Read | Effect::Write | Effect::WriteOnce => &self.turn,
        };
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        self.channels[turn % self.channels.len()].clone()
    }

    /// Sends a request until the server answers it, or the deadline passes.
    pub(crate) async fn call<Q, A, F>(
        &self,
        effect: Effect,
        request: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<A>
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        self.call_noting(effect, request, send, &mut false).await
    }

    /// As [`Pool::call`]; also notes whether an attempt before the last one may have taken effect.
    pub(crate) async fn call_noting<Q, A, F>(
        &self,
        effect: Effect,
        request: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
        was_unknown: &mut bool,
    ) -> Result<A>
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let end = Instant::now() + self.deadline;
        let (mut pauses, mut is_unknown, mut last) = (Pauses::default(), false, None);
        while Instant::now() < end {
            *was_unknown = is_unknown;
            let mut attempt = Request::new(request.clone());
            if let Some(authorization) = &self.authorization {
                attempt.metadata_mut().insert("authorization", authorization.clone());
            }
            if effect != Effect::Open {
                attempt.set_timeout(end.saturating_duration_since(Instant::now()));
            }
            let failure = match timeout_at(end, send(self.channel(effect), attempt)).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => Failure::of(&status),
                Err(_) => {
                    is_unknown = true;
                    break;
                }
            };
            is_unknown |= failure.is_unknown;
            let may_repeat = effect != Effect::WriteOnce || !failure.was_sent;
            if !may_repeat && failure.is_unknown {
                return Err(Error {
                    kind: ErrorKind::UnknownOutcome,
                    ..failure.error
                });
            }
            if !may_repeat || !failure.error.is_transient() {
                return Err(failure.error);
            }
            let pause = pauses.next(failure.error.retry_after);
            last = Some(failure.error);
            sleep_until(end.min(Instant::now() + pause)).await;
        }
        Err(self.deadline_passed(effect.is_write() && is_unknown, last))
    }

    fn deadline_passed(&self, is_unknown: bool, last: Option<Error>) -> Error {
        let (kind, effect) = match is_unknown {
            true => (ErrorKind::UnknownOutcome, "; the write may have taken effect"),
            false => (ErrorKind::DeadlineExceeded, ""),
        };
        let cause = last
            .as_ref()
            .map_or_else(String::new, |last| format!("; the last attempt failed: {last}"));
        let message = format!("the deadline of {:?} passed{effect}{cause}", self.deadline);
        let retry_after = last.and_then(|last| last.retry_after);
        Error {
            retry_after,
            ..Error::new(kind, "DEADLINE", message)
        }
    }
}

/// Pauses between attempts: each is twice as long as the one before, minus up to half of it by chance.
#[derive(Default)]
pub(crate) struct Pauses {
    attempts: u32,
}

impl Pauses {
    /// The next pause, which is not shorter than the server asks for.
    pub(crate) fn next(&mut self, least: Option<Duration>) -> Duration {
        let longest = (PAUSE * 2_u32.pow(self.attempts.min(10))).min(PAUSE_MAX);
        self.attempts += 1;
        longest
            .mul_f64(0.5 + fastrand::f64() / 2.0)
            .max(least.unwrap_or_default())
    }
}
