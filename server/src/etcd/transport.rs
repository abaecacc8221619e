//! Messages that are larger than the transport of etcd takes get its answer.

use std::task::{Context, Poll};

use hyper::{Request, Response};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;
use tower::util::MapResponse;

use crate::error::status;

/// A service with its answers changed.
type Mapped<S> = MapResponse<S, fn(Response<Body>) -> Response<Body>>;

/// A service whose answers are those of etcd.
#[derive(Clone)]
pub(super) struct AsEtcd<S>(Mapped<S>);

impl<S> AsEtcd<S> {
    pub(super) fn new(service: S) -> AsEtcd<S> {
        AsEtcd(MapResponse::new(service, with_text_of_etcd))
    }
}

impl<S: NamedService> NamedService for AsEtcd<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for AsEtcd<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = <Mapped<S> as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.0.call(request)
    }
}

fn with_text_of_etcd(response: Response<Body>) -> Response<Body> {
    // Only an answer without a message has its status in the head.
    let is_too_large = |told: &Status| told.code() == Code::OutOfRange;
    let told = Status::from_header_map(response.headers()).filter(is_too_large);
    match told.as_ref().and_then(|told| sizes(told.message())) {
        Some((bytes, most)) => too_large(bytes, most).into_http(),
        None => response,
    }
}

/// The bytes of a message and the most bytes, of the text with which tonic refuses the message.
fn sizes(text: &str) -> Option<(&str, &str)> {
    let told = text.strip_prefix("Error, decoded message length too large: found ")?;
    let (bytes, told) = told.split_once(" bytes, the limit is: ")?;
    Some((bytes, told.strip_suffix(" bytes")?))
}

fn too_large(bytes: &str, most: &str) -> Status {
    let message = format!("grpc: received message larger than max ({bytes} vs. {most})");
    status(Code::ResourceExhausted, "REQUEST_TOO_LARGE", message)
}
