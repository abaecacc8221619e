//! Limits of principals: how many calls at a time, and how many bytes a second.
//!
//! A layer around all services of a thread finds the limits in the token of the request. A call over the number of calls is
//! refused. Bytes are never refused: the server reads and writes them later, and the flow control of HTTP/2 holds the client
//! up. All connections and threads share the counts of a principal.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{Frame, SizeHint};
use hyper::{Request, Response};
use pin_project_lite::pin_project;
use prost::bytes::Bytes;
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

use super::authorize::Credentials;
use super::peer::Peer;
use crate::error::with_retry;
use crate::state::State;

/// How soon a client tries again that has too many calls.
const RETRY: Duration = Duration::from_millis(100);
/// A principal may use the bytes of this time at once, after it was quiet.
const BURST: Duration = Duration::from_secs(1);
/// Principals whose counts are kept. Beyond that, those without a call are forgotten.
const KEPT_MAX: usize = 1_024;

/// Services that every caller may use: health, what the server speaks, and that which makes callers known.
const OPEN: [&str; 3] = ["/grpc.health.v1.Health/", "/grpc.reflection.", "/etcdserverpb.Auth/"];

/// The largest request of these services: each call of a connection may hold that much. The requests have names and a token.
pub(crate) const OPEN_MESSAGE_BYTES_MAX: usize = 16 << 10;

fn is_open(path: &str) -> bool {
    OPEN.iter().any(|open| path.starts_with(open))
}

/// What a principal may use; 0: as much as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrincipalLimits {
    /// Calls at a time. A stream is a call as long as it is open.
    pub(crate) calls: u32,
    /// Bytes of requests and responses in a second.
    pub(crate) bytes_per_second: u64,
}

/// What the principals of a server use now.
#[derive(Default)]
pub(crate) struct Usages {
    of: Mutex<HashMap<String, Arc<Usage>>>,
}

/// What a principal uses.
struct Usage {
    counts: Mutex<Counts>,
}

struct Counts {
    calls: u32,
    /// When all bytes so far have had their time.
    paid: Instant,
}

impl Usages {
    fn of(&self, principal: &str) -> Arc<Usage> {
        let mut known = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(usage) = known.get(principal) {
            return usage.clone();
        }
        if known.len() >= KEPT_MAX {
            known.retain(|_, usage| Arc::strong_count(usage) > 1 || usage.locked().paid > Instant::now());
        }
        let counts = Counts {
            calls: 0,
            paid: Instant::now(),
        };
        let usage = Arc::new(Usage {
            counts: Mutex::new(counts),
        });
        known.insert(principal.to_string(), usage.clone());
        usage
    }

    /// Begins a call of a principal.
    fn admit(&self, principal: &str, limits: PrincipalLimits) -> Result<Admitted, Status> {
        let usage = self.of(principal);
        let mut counts = usage.locked();
        if limits.calls > 0 && counts.calls >= limits.calls {
            let message = format!(
                "the principal {principal:?} has {} calls at a time, as many as its token allows; end some, or create a \
                 token that allows more with `duramen token create --calls`",
                counts.calls
            );
            return Err(with_retry(Code::ResourceExhausted, "TOO_MANY_CALLS", message, RETRY));
        }
        counts.calls += 1;
        drop(counts);
        let bytes_per_second = limits.bytes_per_second;
        Ok(Admitted(Arc::new(Call {
            usage,
            bytes_per_second,
        })))
    }
}

impl Usage {
    fn locked(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call of a principal with limits. The request and the response share it.
#[derive(Clone)]
struct Admitted(Arc<Call>);

struct Call {
    usage: Arc<Usage>,
    bytes_per_second: u64,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.usage.locked().calls -= 1;
    }
}

impl Admitted {
    /// Notes bytes that were used.
    fn used(&self, bytes: usize) {
        if self.0.bytes_per_second == 0 {
            return;
        }
        let time = Duration::from_secs_f64(bytes as f64 / self.0.bytes_per_second as f64);
        let mut counts = self.0.usage.locked();
        let earliest = Instant::now().checked_sub(BURST);
        counts.paid = earliest.map_or(counts.paid, |earliest| counts.paid.max(earliest)) + time;
    }

    /// When the next bytes may be used, if that is not now.
    fn held_until(&self) -> Option<Instant> {
        let paid = self.0.usage.locked().paid;
        (self.0.bytes_per_second > 0 && paid > Instant::now()).then_some(paid)
    }
}

/// Applies the limits of principals to the calls of one serving thread.
#[derive(Clone)]
pub(crate) struct LimitLayer(pub(crate) State);

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, service: S) -> Limited<S> {
        let state = self.0.clone();
        Limited { service, state }
    }
}

/// A service whose calls have limits.
#[derive(Clone)]
pub(crate) struct Limited<S> {
    service: S,
    state: State,
}

impl<S> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = LimitedFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> LimitedFuture<S::Future> {
        let credentials = Credentials::new(request.headers(), request.extensions().get::<Peer>());
        let limits = match self.state.guard.limits(&credentials) {
            Ok(limits) => limits,
            // Before its message is read, so that it takes no memory.
            Err(refused) if !is_open(request.uri().path()) => {
                return LimitedFuture::Refused { refused: Some(refused) };
            }
            Err(_) => None,
        };
        let admitted = limits.map(|(principal, limits)| self.state.usages.admit(&principal, limits));
        match admitted {
            None => LimitedFuture::Passed {
                response: self.service.call(request),
                admitted: None,
            },
            Some(Err(refused)) => LimitedFuture::Refused { refused: Some(refused) },
            Some(Ok(admitted)) => LimitedFuture::Passed {
                response: self
                    .service
                    .call(request.map(|body| Body::new(Paced::new(body, admitted.clone())))),
                admitted: Some(admitted),
            },
        }
    }
}

pin_project! {
    /// A response that is awaited, or a refusal.
    #[project = LimitedFutureProject]
    pub(crate) enum LimitedFuture<F> {
        Passed { #[pin] response: F, admitted: Option<Admitted> },
        Refused { refused: Option<Status> },
    }
}

impl<F, E> Future for LimitedFuture<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = Result<Response<Body>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            LimitedFutureProject::Passed { response, admitted } => {
                let response = ready!(response.poll(context))?;
                Poll::Ready(Ok(match admitted.take() {
                    Some(admitted) => response.map(|body| Body::new(Paced::new(body, admitted))),
                    None => response,
                }))
            }
            LimitedFutureProject::Refused { refused } => {
                let refused = refused
                    .take()
                    .unwrap_or_else(|| Status::internal("polled after its end"));
                Poll::Ready(Ok(refused.into_http()))
            }
        }
    }
}

/// A body whose frames wait for the time of those before. It holds the call as long as it lives.
struct Paced {
    body: Body,
    admitted: Admitted,
    wait: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    fn new(body: Body, admitted: Admitted) -> Paced {
        let wait = None;
        Paced { body, admitted, wait }
    }
}

impl hyper::body::Body for Paced {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(wait) = &mut this.wait {
                ready!(wait.as_mut().poll(context));
                this.wait = None;
            }
            let Some(until) = this.admitted.held_until() else { break };
            this.wait = Some(Box::pin(tokio::time::sleep_until(until.into())));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.admitted.used(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
