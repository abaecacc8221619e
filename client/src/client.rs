//! The client: its settings, and how it sends requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use duramen_proto::v1::Acknowledge;
use duramen_proto::v1::admin_client::AdminClient;
use duramen_proto::v1::maps_client::MapsClient;
use duramen_proto::v1::topics_client::TopicsClient;
use duramen_proto::v1::transactions_client::TransactionsClient;
use duramen_proto::v1::trees_client::TreesClient;
use duramen_proto::v1::watch_client::WatchClient;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::call::{Effect, Pool};
use crate::error::{Error, ErrorKind, Result};
use crate::options::WriteOptions;
use crate::tls::{TlsOptions, bad_tls};

/// Sends a request with a method of a service: `send!(maps.get)`.
macro_rules! send {
    ($service:ident.$method:ident) => {
        async |channel, request| $crate::client::$service(channel).$method(request).await
    };
}
pub(crate) use send;

/// The largest request and response, in bytes; the server has the same limit.
const MESSAGE_BYTES_MAX: usize = 20 << 20;
/// How long the client waits for a connection before the attempt fails.
const CONNECT: Duration = Duration::from_secs(3);
/// How often the client asks a silent server whether it is alive, and how long the answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(10);
/// The longest deadline. The server forgets idempotency keys after ten minutes, so retries must end before that.
const DEADLINE_MAX: Duration = Duration::from_secs(5 * 60);

/// Settings of a client; see [`Client::builder`].
#[derive(Clone)]
pub struct Builder {
    connections: usize,
    deadline: Duration,
    tls: Option<TlsOptions>,
    token: Option<String>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("connections", &self.connections)
            .field("deadline", &self.deadline)
            .field("tls", &self.tls)
            .field("has_token", &self.token.is_some())
            .finish()
    }
}

impl Builder {
    /// Number of pooled connections, which the calls use by turns. Default: 2.
    pub fn connections(mut self, number: usize) -> Builder {
        self.connections = number.max(1);
        self
    }

    /// Longest duration of a call with all its attempts, at most 5 minutes. Default: 10 seconds.
    pub fn deadline(mut self, deadline: Duration) -> Builder {
        self.deadline = deadline.min(DEADLINE_MAX);
        self
    }

    /// The token that the client sends with each call, as `duramen token create` printed it. Default: none.
    pub fn token(mut self, token: impl Into<String>) -> Builder {
        self.token = Some(token.into());
        self
    }

    /// Files for TLS, which an address with `https://` needs. Default: none.
    pub fn tls(mut self, options: TlsOptions) -> Builder {
        self.tls = Some(options);
        self
    }

    /// A client of the server at `address`; see [`Client::connect`].
    ///
    /// # Errors
    /// `InvalidArgument` when the address is malformed, or the files of TLS cannot be used.
    pub fn connect(self, address: &str) -> Result<Client> {
        let endpoint = Endpoint::from_shared(address.to_string()).map_err(|error| {
            let message =
                format!("{address:?} is no address ({error}); write http://HOST:PORT, https://HOST:PORT or unix:/PATH");
            Error::new(ErrorKind::InvalidArgument, "BAD_ADDRESS", message)
        })?;
        let is_encrypted = endpoint.uri().scheme_str() == Some("https");
        let endpoint = match (is_encrypted, &self.tls) {
            (true, Some(tls)) => tls.apply(endpoint)?,
            (false, None) => endpoint,
            (true, None) => {
                let message = format!("{address:?} needs the authority of the server; set it with Builder::tls");
                return Err(bad_tls(message));
            }
            (false, Some(_)) => {
                let message =
                    format!("{address:?} is not encrypted; write https://HOST:PORT, or leave out Builder::tls");
                return Err(bad_tls(message));
            }
        };
        let endpoint = endpoint
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_ANSWER);
        let token = self.token.as_deref().map(authorization).transpose()?;
        let channels = (0..self.connections).map(|_| endpoint.connect_lazy()).collect();
        Ok(Client {
            pool: Arc::new(Pool::new(channels, self.deadline, token)),
            options: WriteOptions::default(),
        })
    }
}

/// A client of a server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
    options: WriteOptions,
}

impl Client {
    /// A client of the server at an address such as `http://127.0.0.1:7420` or `unix:/run/duramen.sock`.
    ///
    /// The client connects with its first call, and again when a connection breaks.
    ///
    /// # Errors
    /// `InvalidArgument` when the address is malformed.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(address: &str) -> Result<Client> {
        Client::builder().connect(address)
    }

    /// Settings for a client.
    pub fn builder() -> Builder {
        Builder {
            connections: 2,
            deadline: Duration::from_secs(10),
            tls: None,
            token: None,
        }
    }

    /// A client whose writes have these options. Its handles inherit them.
    pub fn with(&self, options: WriteOptions) -> Client {
        let pool = self.pool.clone();
        Client { pool, options }
    }

    pub(crate) fn options(&self) -> &WriteOptions {
        &self.options
    }

    pub(crate) async fn read<Q, A, F>(&self, request: Q, send: impl Fn(Channel, Request<Q>) -> F) -> Result<A>
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        self.pool.call(Effect::Read, request, send).await
    }

    pub(crate) async fn open<Q, A, F>(&self, request: Q, send: impl Fn(Channel, Request<Q>) -> F) -> Result<A>
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        self.pool.call(Effect::Open, request, send).await
    }

    /// A write that is not tried again when it may have taken effect.
    pub(crate) async fn write_once<Q, A, F>(&self, request: Q, send: impl Fn(Channel, Request<Q>) -> F) -> Result<A>
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        self.pool.call(Effect::WriteOnce, request, send).await
    }

    /// A write without an idempotency key. Also returns whether an attempt before the last one may have taken effect.
    pub(crate) async fn write_counted<Q, A, F>(
        &self,
        request: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> (Result<A>, bool)
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let mut was_unknown = false;
        let called = self.pool.call_noting(Effect::Write, request, send, &mut was_unknown);
        let called = called.await;
        (called, was_unknown)
    }

    pub(crate) async fn write<Q, A, F>(&self, request: Q, send: impl Fn(Channel, Request<Q>) -> F) -> Result<A>
    where
        Q: Clone,
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let effect = match self.options.acknowledge {
            Acknowledge::Memory => Effect::WriteOnce,
            _ => Effect::Write,
        };
        self.pool.call(effect, request, send).await
    }
}

/// The metadata that presents a token. It is sensitive, so `Debug` hides it.
fn authorization(token: &str) -> Result<AsciiMetadataValue> {
    let mut value = AsciiMetadataValue::try_from(format!("Bearer {token}")).map_err(|_| {
        let message = "the token has characters that no token has; use what `duramen token create` printed";
        Error::new(ErrorKind::InvalidArgument, "BAD_TOKEN", message)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

pub(crate) fn admin(channel: Channel) -> AdminClient<Channel> {
    AdminClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

pub(crate) fn maps(channel: Channel) -> MapsClient<Channel> {
    MapsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

pub(crate) fn topics(channel: Channel) -> TopicsClient<Channel> {
    TopicsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

pub(crate) fn transactions(channel: Channel) -> TransactionsClient<Channel> {
    TransactionsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

pub(crate) fn trees(channel: Channel) -> TreesClient<Channel> {
    TreesClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

pub(crate) fn watch(channel: Channel) -> WatchClient<Channel> {
    WatchClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}
