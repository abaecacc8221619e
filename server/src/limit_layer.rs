//! The layer around all services of a thread that applies the limits of principals. It finds them in the token of the
//! request.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Frame, SizeHint};
use hyper::{Request, Response};
use pin_project_lite::pin_project;
use prost::bytes::Bytes;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::security::{Admitted, Credentials, Peer, is_open};
use crate::state::State;

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
