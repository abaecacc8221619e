//! The client: its settings, the calls on maps and topics as a whole, and those on the store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use duramen_proto::v1::admin_client::AdminClient;
use duramen_proto::v1::maps_client::MapsClient;
use duramen_proto::v1::topics_client::TopicsClient;
use duramen_proto::v1::transactions_client::TransactionsClient;
use duramen_proto::v1::trees_client::TreesClient;
use duramen_proto::v1::watch_client::WatchClient;
use duramen_proto::v1::{
    Acknowledge, CheckRequest, CheckResponse, Checkpoint, CompactRequest, CompactResponse, ConfigureMapRequest,
    CopyRequest, CopyResponse, CreateCheckpointRequest, CreateMapRequest, CreateTopicRequest, CreateTreeRequest,
    DeleteTreeRequest, DiffCheckpointsRequest, DropCheckpointRequest, DropMapRequest, ExportRequest,
    GetCheckpointRequest, KeepChanges, KeepLastCheckpointsRequest, ListCheckpointsRequest, ListMapsRequest,
    ListTopicsRequest, ListTreesRequest, RenameMapRequest, RestoreCheckpointRequest, StatisticsRequest,
    StatisticsResponse, TopicOptions,
};
use prost::bytes::Bytes;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::call::{Effect, Pool};
use crate::differences::Differences;
use crate::error::{Error, ErrorKind, Result};
use crate::exporting::Exporting;
use crate::map::Map;
use crate::options::WriteOptions;
use crate::tls::{TlsOptions, bad_tls};
use crate::topic::Topic;
use crate::transaction::Transaction;
use crate::tree::Tree;

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

    /// A handle of a map. This makes no call.
    pub fn map(&self, name: impl Into<String>) -> Map {
        Map::new(self.clone(), name.into())
    }

    /// A handle of a topic. This makes no call.
    pub fn topic(&self, name: impl Into<String>) -> Topic {
        Topic::new(self.clone(), name.into())
    }

    /// Begins a transaction. The client sends it as one request when it commits.
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self.clone())
    }

    /// Creates a map. Returns whether this call created it.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn create_map(&self, name: &str) -> Result<bool> {
        let request = CreateMapRequest {
            map: name.into(),
            options: Some(self.options.of_call()),
            ..CreateMapRequest::default()
        };
        Ok(self.write(request, send!(maps.create_map)).await?.created)
    }

    /// Creates a map that keeps its changes, for [`Map::watch`]. Returns `false` when a map of this name with equal
    /// limits exists. Programs that open the store themselves cannot write such a map.
    ///
    /// # Errors
    /// `AlreadyExists` when a map of this name has other limits, or keeps no changes.
    pub async fn create_watched_map(&self, name: &str, limits: KeepChanges) -> Result<bool> {
        let request = CreateMapRequest {
            map: name.into(),
            keep_changes: Some(limits),
            options: Some(self.options.of_call()),
            ..CreateMapRequest::default()
        };
        Ok(self.write(request, send!(maps.create_map)).await?.created)
    }

    /// Replaces what a map keeps of its changes. The next write to the map removes the changes beyond the new limits.
    ///
    /// # Errors
    /// `NotFound`, or `FailedPrecondition` when the map keeps no changes.
    pub async fn configure_watched_map(&self, name: &str, limits: KeepChanges) -> Result<()> {
        let request = ConfigureMapRequest {
            map: name.into(),
            keep_changes: Some(limits),
            options: Some(self.options.of_call()),
            ..ConfigureMapRequest::default()
        };
        self.write(request, send!(maps.configure_map)).await.map(drop)
    }

    /// The names of all maps, sorted.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list_maps(&self) -> Result<Vec<String>> {
        let request = ListMapsRequest::default();
        Ok(self.read(request, send!(maps.list_maps)).await?.maps)
    }

    /// Gives a map another name.
    ///
    /// # Errors
    /// `NotFound`, or `AlreadyExists` when a map has the new name.
    pub async fn rename_map(&self, name: &str, new_name: &str) -> Result<()> {
        let request = RenameMapRequest {
            map: name.into(),
            new_name: new_name.into(),
            options: Some(self.options.of_call()),
            ..RenameMapRequest::default()
        };
        self.write(request, send!(maps.rename_map)).await.map(drop)
    }

    /// Drops a map and its pairs.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn drop_map(&self, name: &str) -> Result<()> {
        let request = DropMapRequest {
            map: name.into(),
            options: Some(self.options.of_call()),
            ..DropMapRequest::default()
        };
        self.write(request, send!(maps.drop_map)).await.map(drop)
    }

    /// A handle of a tree. It makes no call.
    pub fn tree(&self, name: impl Into<String>) -> Tree {
        Tree::new(self.clone(), name.into())
    }

    /// Creates a tree. Returns `false` when it exists already.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is empty or longer than 255 bytes.
    pub async fn create_tree(&self, name: &str) -> Result<bool> {
        let request = CreateTreeRequest {
            tree: name.into(),
            options: Some(self.options.of_call()),
            ..CreateTreeRequest::default()
        };
        Ok(self.write(request, send!(trees.create_tree)).await?.created)
    }

    /// Deletes a tree with its nodes, revisions and leases.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn delete_tree(&self, name: &str) -> Result<()> {
        let request = DeleteTreeRequest {
            tree: name.into(),
            options: Some(self.options.of_call()),
            ..DeleteTreeRequest::default()
        };
        self.write(request, send!(trees.delete_tree)).await.map(drop)
    }

    /// Lists the trees in the order of their names.
    ///
    /// # Errors
    /// Those of [`crate::Error`].
    pub async fn list_trees(&self) -> Result<Vec<String>> {
        let request = ListTreesRequest::default();
        Ok(self.read(request, send!(trees.list_trees)).await?.trees)
    }

    /// Creates a topic. Returns `false` when a topic of this name with equal options exists.
    ///
    /// # Errors
    /// `AlreadyExists` when a topic of this name has other options.
    pub async fn create_topic(&self, name: &str, options: TopicOptions) -> Result<bool> {
        let request = CreateTopicRequest {
            topic: name.into(),
            topic_options: Some(options),
            if_missing: true,
            options: Some(self.options.of_call()),
            ..CreateTopicRequest::default()
        };
        Ok(self.write(request, send!(topics.create_topic)).await?.created)
    }

    /// The names of all topics, sorted.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list_topics(&self) -> Result<Vec<String>> {
        let request = ListTopicsRequest::default();
        Ok(self.read(request, send!(topics.list_topics)).await?.topics)
    }

    /// Says what the server is and what its store holds.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn statistics(&self) -> Result<StatisticsResponse> {
        self.read(StatisticsRequest::default(), send!(admin.statistics)).await
    }

    /// Reads the whole store and reports damage. The deadline must suffice for all of it; see [`Builder::deadline`].
    ///
    /// # Errors
    /// [`Error`].
    pub async fn check(&self) -> Result<CheckResponse> {
        self.read(CheckRequest::default(), send!(admin.check)).await
    }

    /// Makes the files of the store as small as their contents allow. The deadline must suffice for all of it; see
    /// [`Builder::deadline`].
    ///
    /// # Errors
    /// [`Error`].
    pub async fn compact(&self) -> Result<CompactResponse> {
        // The contents stay as they are, so a repeated call does no harm.
        self.read(CompactRequest::default(), send!(admin.compact)).await
    }

    /// Makes a consistent copy of the store, in the directory that the server's setting `copy_dir` names. The deadline must
    /// suffice for all of it; see [`Builder::deadline`]. The call is not repeated once the client has sent it.
    ///
    /// # Errors
    /// `AlreadyExists` when a copy has the name; `FailedPrecondition` when the server makes no copies; `UnknownOutcome` when
    /// the answer did not arrive: then the copy may come into being.
    pub async fn copy(&self, name: &str) -> Result<CopyResponse> {
        let request = CopyRequest { name: name.into() };
        self.pool.call(Effect::WriteOnce, request, send!(admin.copy)).await
    }

    /// Keeps the present state of the store under a name of at most 255 bytes, with at most 4 KiB of metadata. The checkpoint, and
    /// every commit that was acknowledged before the call, survive a power cut when the call returns. The call is not repeated
    /// once the client has sent it.
    ///
    /// # Errors
    /// `AlreadyExists` when a checkpoint has the name; `UnknownOutcome` when the answer did not arrive: [`Client::checkpoint`]
    /// tells whether the checkpoint was made.
    pub async fn create_checkpoint(&self, name: &str, metadata: impl Into<Bytes>) -> Result<Checkpoint> {
        let request = CreateCheckpointRequest {
            name: name.into(),
            metadata: metadata.into(),
        };
        let created = self
            .pool
            .call(Effect::WriteOnce, request, send!(admin.create_checkpoint));
        created.await?.checkpoint.ok_or_else(Error::bad_response)
    }

    /// The checkpoints, in the order in which they were made, with the bytes that only each of them holds.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        let mut checkpoints: Vec<Checkpoint> = Vec::new();
        loop {
            let request = ListCheckpointsRequest {
                with_bytes_alone: true,
                after: checkpoints.last().map_or(0, |last| last.number),
                limit: 0,
            };
            let page = self.read(request, send!(admin.list_checkpoints)).await?;
            // An empty page that promises more would repeat itself.
            let has_more = page.has_more && !page.checkpoints.is_empty();
            checkpoints.extend(page.checkpoints);
            if !has_more {
                return Ok(checkpoints);
            }
        }
    }

    /// A checkpoint, with the bytes that only it holds.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn checkpoint(&self, name: &str) -> Result<Checkpoint> {
        self.described_checkpoint(name, false).await
    }

    /// A checkpoint, with the bytes that only it holds, and those that it shares. The server reads the whole tree of the checkpoint.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn checkpoint_with_shared_bytes(&self, name: &str) -> Result<Checkpoint> {
        self.described_checkpoint(name, true).await
    }

    async fn described_checkpoint(&self, name: &str, with_bytes_shared: bool) -> Result<Checkpoint> {
        let request = GetCheckpointRequest {
            name: name.into(),
            with_bytes_alone: true,
            with_bytes_shared,
        };
        let found = self.read(request, send!(admin.get_checkpoint)).await?;
        found.checkpoint.ok_or_else(Error::bad_response)
    }

    /// Drops a checkpoint. The call is not repeated once the client has sent it: a checkpoint that was made meanwhile may have the
    /// name.
    ///
    /// # Errors
    /// `NotFound`; `UnknownOutcome` when the answer did not arrive.
    pub async fn drop_checkpoint(&self, name: &str) -> Result<()> {
        let request = DropCheckpointRequest { name: name.into() };
        let dropped = self.pool.call(Effect::WriteOnce, request, send!(admin.drop_checkpoint));
        dropped.await.map(drop)
    }

    /// Drops all checkpoints but the newest `count`, at once. Returns how many it dropped. The call is not repeated once the client
    /// has sent it.
    ///
    /// # Errors
    /// `UnknownOutcome` when the answer did not arrive.
    pub async fn keep_last_checkpoints(&self, count: u64) -> Result<u64> {
        let request = KeepLastCheckpointsRequest { count };
        let kept = self
            .pool
            .call(Effect::WriteOnce, request, send!(admin.keep_last_checkpoints));
        Ok(kept.await?.dropped)
    }

    /// Compares two checkpoints: the pairs of maps that differ, in the order of maps and keys. With `keys_only`, the values are empty.
    ///
    /// # Errors
    /// [`Error`]; the stream ends with `NotFound` when there is no such checkpoint.
    pub async fn diff_checkpoints(&self, from: &str, to: &str, keys_only: bool) -> Result<Differences> {
        let request = DiffCheckpointsRequest {
            from: from.into(),
            to: to.into(),
            keys_only,
        };
        let responses = self.open(request, send!(admin.diff_checkpoints)).await?;
        Ok(Differences::new(responses))
    }

    /// Puts the store back to a checkpoint, and returns the number of the commit that does it. The server ends then. The call is not
    /// repeated once the client has sent it.
    ///
    /// # Errors
    /// `NotFound` when there is no such checkpoint; `UnknownOutcome` when the answer did not arrive: then the store may be put back.
    pub async fn restore_checkpoint(&self, name: &str) -> Result<u64> {
        let request = RestoreCheckpointRequest { name: name.into() };
        let restored = self
            .pool
            .call(Effect::WriteOnce, request, send!(admin.restore_checkpoint));
        Ok(restored.await?.commit)
    }

    /// Exports the store to the place that the server's setting `backup_place` names: all pairs the first time or with `full`, and
    /// then what differs.
    ///
    /// # Errors
    /// [`Error`]; the stream ends with `FailedPrecondition` when the server makes no exports, or makes one already.
    pub async fn export(&self, full: bool, metadata: &str) -> Result<Exporting> {
        let request = ExportRequest {
            full,
            metadata: metadata.into(),
        };
        let responses = self.open(request, send!(admin.export)).await?;
        Ok(Exporting::new(responses))
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
