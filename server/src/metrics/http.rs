//! A small HTTP server that answers `GET /metrics` and the probes of orchestrators, with etcd's paths and answers for these.
//!
//! A connection is for one request, and ends after it. So a client can hold one of the few connections no longer than
//! [`REQUEST_TIME`].

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;

use super::sources::Sources;
use super::text;
use crate::state::State;

const METRICS: &str = "/metrics";
/// The server answers at all.
const LIVE: &str = "/livez";
/// The store takes commits.
const READY: &str = "/readyz";
/// As [`READY`], in JSON.
const HEALTH: &str = "/health";
/// The most connections at a time; further ones are closed at once.
const CONNECTIONS_MAX: usize = 64;
/// How long a request may take to arrive: idle connections must not keep probes out.
const HEAD_TIME: Duration = Duration::from_secs(1);
/// How long a connection may take, from its beginning to the end of the response.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// The most bytes of the head of a request, and the most headers. hyper answers larger ones with status 431.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// Where Prometheus connects.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// The address, with the port that it got.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listens on the address of the setting `metrics_listen`, in a runtime.
pub(crate) fn listen(address: SocketAddr) -> io::Result<Listener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let listener = TcpListener::from_std(listener)?;
    Ok(Listener { listener, address })
}

/// Answers scrapes until it is dropped. Without a listener it waits.
pub(crate) async fn serve(listener: Option<Listener>, sources: Sources) {
    let Some(Listener { listener, .. }) = listener else {
        return std::future::pending().await;
    };
    let state = sources.state.clone();
    // Reading the store costs: one scrape at a time does it.
    let sources = Arc::new(Mutex::new(sources));
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, for example: the loop must not spin.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            continue;
        };
        let (sources, state) = (sources.clone(), state.clone());
        tokio::spawn(async move {
            // A client that is late or wrong loses its connection, and nothing else happens.
            let _ = tokio::time::timeout(REQUEST_TIME, answer_one(stream, sources, state)).await;
            drop(permit);
        });
    }
}

async fn answer_one(stream: TcpStream, sources: Arc<Mutex<Sources>>, state: State) {
    let service = service_fn(move |request| answer(request, sources.clone(), state.clone()));
    let served = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let _ = served.await;
}

async fn answer(
    request: Request<Incoming>,
    sources: Arc<Mutex<Sources>>,
    state: State,
) -> Result<Response<String>, Infallible> {
    Ok(match (request.uri().path(), request.method()) {
        (METRICS, &Method::GET) => {
            let sources = sources.lock_owned().await;
            match spawn_blocking(move || sources.text()).await {
                Ok(metrics) => with_header(Response::new(metrics), CONTENT_TYPE, text::CONTENT_TYPE),
                Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "the server stops\n"),
            }
        }
        (LIVE, &Method::GET) => plain(StatusCode::OK, "ok\n"),
        (READY, &Method::GET) => match is_ready(state).await {
            true => plain(StatusCode::OK, "ok\n"),
            false => plain(StatusCode::SERVICE_UNAVAILABLE, "the store takes no commits\n"),
        },
        (HEALTH, &Method::GET) => {
            let (status, answer) = match is_ready(state).await {
                true => (StatusCode::OK, r#"{"health":"true","reason":""}"#),
                false => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    r#"{"health":"false","reason":"the store takes no commits"}"#,
                ),
            };
            with_header(plain(status, answer), CONTENT_TYPE, "application/json")
        }
        (METRICS | LIVE | READY | HEALTH, _) => {
            let refused = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
            with_header(refused, ALLOW, "GET")
        }
        _ => plain(
            StatusCode::NOT_FOUND,
            "there are /metrics, /livez, /readyz and /health\n",
        ),
    })
}

/// Whether the store takes commits, as the metric `duramen_store_healthy`.
async fn is_ready(state: State) -> bool {
    spawn_blocking(move || state.store.stat().is_ok())
        .await
        .unwrap_or(false)
}

fn plain(status: StatusCode, message: &str) -> Response<String> {
    let mut response = Response::new(message.to_string());
    *response.status_mut() = status;
    with_header(response, CONTENT_TYPE, "text/plain; charset=utf-8")
}

fn with_header(mut response: Response<String>, name: HeaderName, value: &'static str) -> Response<String> {
    let value = HeaderValue::from_static(value);
    response.headers_mut().insert(name, value);
    response
}
