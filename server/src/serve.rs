//! The server: listeners, threads, and an orderly end.
//!
//! One thread accepts connections and gives them out by turns. Each serving thread has a runtime of its own, and a
//! connection stays on one thread: a call then costs no wake-up of another thread.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use duramen::topic::TopicsOptions;
use duramen::{Durability, Kind, Options, Store};
use duramen_proto::DESCRIPTORS;
use duramen_proto::command::command::Change;
use duramen_proto::command::{TreeCommand, tree_command};
use duramen_proto::v1::admin_server::AdminServer;
use duramen_proto::v1::maps_server::MapsServer;
use duramen_proto::v1::topics_server::TopicsServer;
use duramen_proto::v1::transactions_server::TransactionsServer;
use duramen_proto::v1::trees_server::TreesServer;
use duramen_proto::v1::watch_server::WatchServer;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::command::{Applier, Kept, Sessions};
use crate::config::{Config, EtcdConfig};
use crate::connection::{Accepted, register_all};
use crate::error::is_of_a_restore;
use crate::etcd::{EtcdDoor, compact_by_itself, forget_import, is_a_part, renew_leases};
use crate::limit_layer::LimitLayer;
use crate::measure::{CallLog, Calls, MeasureLayer, Methods};
use crate::metrics::{self, Sources};
use crate::pages::Pages;
use crate::pipeline::{Limits, Pipeline};
use crate::registry::{Backups, Rooms, SessionRegistry, Watchers};
use crate::room::Room;
use crate::security::{Certificates, Guard, OPEN_MESSAGE_BYTES_MAX, Renewal, Usages};
use crate::serve_error::ServeError;
use crate::services::{
    AdminService, MapsService, TopicsService, TransactionsService, TreesService, WatchService, tend,
};
use crate::session::end_expired;
use crate::sockets::Sockets;
use crate::spinning::Spinner;
use crate::state::{Inner, State};

/// The largest request and response, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 20 << 20;
/// Memory that a connection may fill before the server reads on: it is per connection, and hyper keeps it.
///
/// `h2` ends a connection whose unread small frames take more than half of it, each of which it counts as 256 bytes. Keep-alives and
/// new watches of etcd's clients are such frames, of 14 bytes and more. So this is what a stream takes that is full of them:
/// 512 KiB / 14 * 256 * 2.
const CONNECTION_WINDOW: u32 = 20 << 20;
const STREAM_WINDOW: u32 = 512 << 10;
/// The most calls of a connection at a time.
const CALLS_MAX: u32 = 4_096;
/// Calls that a client may cancel before the server has looked at them; more end the connection.
const CANCELLED_MAX: usize = 1_024;
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// How often a quiet connection is asked whether it is alive, and how long the answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(20);
/// How often the server looks whether its store has stopped, or was put back to a checkpoint.
const LOOK_AT_STORE: Duration = Duration::from_millis(100);

/// Where a server listens.
#[derive(Clone, Debug, Default)]
pub struct Listening {
    /// The address, with the port that it got.
    pub tcp: Option<SocketAddr>,
    /// Whether TCP connections are encrypted.
    pub is_tls: bool,
    /// The unix socket.
    pub unix: Option<PathBuf>,
    /// The address of the metrics, with the port that it got.
    pub metrics: Option<SocketAddr>,
    /// The addresses for clients of etcd, with the ports that they got.
    pub etcd: Vec<SocketAddr>,
}

/// A server that runs.
pub struct Running {
    listening: Listening,
    state: State,
    health: HealthReporter,
    ends: watch::Sender<bool>,
    closes: watch::Sender<bool>,
    /// Whether the store was put back to a checkpoint.
    restored: watch::Receiver<bool>,
    threads: Vec<thread::JoinHandle<()>>,
    grace: Duration,
    directory: PathBuf,
    store: Store,
    /// The unix socket that the server has made.
    made: Option<PathBuf>,
}

/// Opens the store and begins to serve it. When this returns, the store is recovered and requests are answered.
///
/// # Errors
/// [`ServeError`].
pub fn start(config: &Config) -> Result<Running, ServeError> {
    let begun = Instant::now();
    let (certificates, renewal) = config.tls.as_ref().map(Certificates::load).transpose()?.unzip();
    let store = open(&config.data_dir)?;
    let in_store = |error| ServeError::Store {
        directory: config.data_dir.clone(),
        error,
    };
    let applier = Applier::new(&store, TopicsOptions::new()).map_err(in_store)?;
    let topics = applier.topics().clone();
    let trees = applier.trees().clone();
    let stored_sessions = applier.sessions().map_err(in_store)?;
    let guard = Guard::new(applier.tokens().clone());
    let limits = Limits {
        queued_bytes: config.queue_bytes,
    };
    let (ends, ending) = watch::channel(false);
    let (closes, closing) = watch::channel(false);
    let state = State::new(Inner {
        store: store.clone(),
        topics,
        trees,
        kept: Kept::open(&store).map_err(in_store)?,
        stored_sessions: Sessions::open_in(&store).map_err(in_store)?,
        pipeline: Pipeline::new(applier, limits),
        arriving: Semaphore::new(config.queue_bytes.min(Semaphore::MAX_PERMITS)),
        guard,
        usages: Usages::default(),
        default_level: config.acknowledge,
        pages: Pages::default(),
        begun,
        copy_dir: config.copy_dir.clone(),
        backups: Backups::new(config),
        subscriptions: AtomicU64::new(0),
        watchers: Watchers::default(),
        sessions: SessionRegistry::new(stored_sessions),
        rooms: Rooms::default(),
        ends: ending.clone(),
    });
    let accepting = runtime()?;
    let recovered = begun.elapsed();
    if !config.etcd.listen.is_empty() {
        let tree = config.etcd.tree.clone();
        if is_a_part(&state.store, &state.trees, &tree).map_err(in_store)? {
            return Err(ServeError::PartOfEtcd { tree });
        }
        forget_import(&state.store, &tree).map_err(in_store)?;
        let prepared = accepting.block_on(async {
            create_tree(&state, tree.clone()).await?;
            // A full store is served, so that its clients can delete.
            if let Err(status) = renew_leases(&state, &tree).await {
                tracing::warn!(
                    cause = status.message(),
                    "leases of the tree of etcd's clients have only the time that they had left"
                );
            }
            Ok::<_, tonic::Status>(())
        });
        prepared.map_err(|status| ServeError::EtcdTree {
            tree,
            cause: status.message().into(),
        })?;
    }
    let metrics = accepting.block_on(async { config.metrics_listen.map(listen_for_scrapes).transpose() })?;
    let sockets = Sockets::open(config)?;
    let first_tcp = sockets.tcp.first().and_then(|listener| listener.local_addr().ok());
    let first_unix = sockets.unix.first().and_then(|listener| listener.local_addr().ok());
    let of_etcd: Vec<_> = sockets
        .etcd
        .iter()
        .filter_map(|listener| listener.local_addr().ok())
        .collect();
    let etcd = (!of_etcd.is_empty()).then(|| EtcdDoor::new(&state, &etcd_config(config, &of_etcd), &config.data_dir));
    let listening = Listening {
        tcp: first_tcp,
        is_tls: (first_tcp.is_some() || !of_etcd.is_empty()) && config.tls.is_some(),
        unix: first_unix.and_then(|address| address.as_pathname().map(Path::to_path_buf)),
        metrics: metrics.as_ref().map(metrics::Listener::address),
        etcd: of_etcd,
    };
    let made = sockets.made.clone();
    let (health, _) = tonic_health::server::health_reporter();
    accepting.block_on(set_health(&health, ServingStatus::Serving));
    let methods = Arc::new(Methods::of_server());
    let call_log = Arc::new(CallLog::new(config.slow_call));
    let mut calls = Vec::new();
    let mut threads = Vec::new();
    let mut serving = Vec::new();
    let spin = config.spin;
    for number in 0..config.threads.max(1) {
        calls.push(Arc::new(Calls::new(&methods, &call_log)));
        let measure = MeasureLayer(calls[number].clone());
        let (sender, receiver) = mpsc::channel(256);
        serving.push(sender);
        let closing = closing.clone();
        let services = services(&state, etcd.clone(), health.clone(), config.reflection);
        let state = state.clone();
        let runtime = runtime()?;
        let thread = thread::Builder::new()
            .name(format!("serve-{number}"))
            .spawn(move || serve_connections(&runtime, state, services, measure, (receiver, spin), closing))
            .map_err(ServeError::Thread)?;
        threads.push(thread);
    }
    let room = Arc::new(Room::new(config.max_connections));
    let sources = Sources {
        state: state.clone(),
        room: room.clone(),
        methods,
        calls,
    };
    let (restores, restored) = watch::channel(false);
    let (pages, health_of_store, door) = (state.clone(), health.clone(), etcd);
    let thread = thread::Builder::new().name("accept".into()).spawn(move || {
        accepting.block_on(async {
            let mut closing = closing;
            tokio::select! {
                () = accept(sockets, certificates, serving, room) => {}
                () = metrics::serve(metrics, sources) => {}
                () = renew(renewal) => {}
                () = end_old_listings(&pages) => {}
                () = end_expired(&pages) => {}
                () = tend(&pages) => {}
                () = compact_by_itself(door) => {}
                () = watch_store(&pages.store, &health_of_store, &restores) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
    });
    threads.push(thread.map_err(ServeError::Thread)?);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        data_dir = %config.data_dir.display(),
        tcp = listening.tcp.map(tracing::field::display),
        unix = listening.unix.as_deref().map(|path| tracing::field::display(path.display())),
        metrics = listening.metrics.map(tracing::field::display),
        recovery_ms = recovered.as_secs_f64() * 1e3,
        "server started"
    );
    Ok(Running {
        listening,
        state,
        health,
        ends,
        closes,
        restored,
        threads,
        grace: config.grace,
        directory: config.data_dir.clone(),
        store,
        made,
    })
}

impl Running {
    /// Where it listens.
    pub fn listening(&self) -> &Listening {
        &self.listening
    }

    /// Returns when another process has put the store back to a checkpoint. All calls fail from then on: stop the server, and start
    /// another one.
    pub fn restored(&self) -> impl Future<Output = ()> + use<> {
        let mut restored = self.restored.clone();
        async move {
            if restored.wait_for(|restored| *restored).await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Ends the server: it refuses new requests, ends streams, lets calls end, writes all to the device, and closes the
    /// store. A client that does not let its calls end holds this up for the time of `grace_seconds`, twice at most.
    ///
    /// # Errors
    /// Those of closing the store. [`ServeError::Restored`]: another process put it back to a checkpoint.
    pub fn stop(self) -> Result<(), ServeError> {
        let grace = self.grace;
        tracing::info!(grace_seconds = grace.as_secs(), "server stops");
        runtime()?.block_on(async {
            set_health(&self.health, ServingStatus::NotServing).await;
            let _ = self.ends.send(true);
            let _ = tokio::time::timeout(grace, self.state.pipeline.close()).await;
            let _ = self.closes.send(true);
            let end = Instant::now() + grace;
            while Instant::now() < end && self.threads.iter().any(|thread| !thread.is_finished()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        // Threads that have not ended hold the store; the process ends them.
        if let Some(path) = &self.made {
            let _ = fs::remove_file(path);
        }
        drop(self.state);
        let synced = self.store.sync();
        if synced.as_ref().is_err_and(is_of_a_restore) {
            // The restore made all commits before it durable.
            let _ = self.store.close();
            tracing::error!("server stopped, because its store was put back to a checkpoint; start it again");
            let directory = self.directory;
            return Err(ServeError::Restored { directory });
        }
        let closed = synced.and_then(|()| self.store.close());
        match &closed {
            Ok(()) => tracing::info!("server stopped"),
            Err(error) => tracing::error!(%error, "server stopped, and its store could not be closed"),
        }
        closed.map_err(|error| ServeError::Store {
            directory: self.directory,
            error,
        })
    }
}

/// Opens the store; a directory that is missing is made for this user alone.
fn open(directory: &Path) -> Result<Store, ServeError> {
    if !directory.exists() {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| ServeError::Directory {
            directory: directory.into(),
            error,
        })?;
    }
    let opened = Options::new().durability(Durability::Written).open(directory);
    opened.map_err(|error| ServeError::Store {
        directory: directory.into(),
        error,
    })
}

fn runtime() -> Result<Runtime, ServeError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Thread)
}

fn listen_for_scrapes(address: SocketAddr) -> Result<metrics::Listener, ServeError> {
    metrics::listen(address).map_err(|error| ServeError::Listen {
        place: address.to_string(),
        error,
        cure: "name a free port of this machine with --metrics-listen",
    })
}

/// Looks at the store until the server ends. A store that has stopped makes the server unhealthy. One restore is reported, because
/// the server cannot go on after it.
async fn watch_store(store: &Store, health: &HealthReporter, restores: &watch::Sender<bool>) {
    let mut is_healthy = true;
    loop {
        tokio::time::sleep(LOOK_AT_STORE).await;
        // The name makes no difference: the lookup fails when the store is not open any more.
        let looked = store.maps().get("any");
        let Some(error) = looked.err().filter(|error| error.kind() == Kind::Reopen) else {
            continue;
        };
        if is_healthy {
            set_health(health, ServingStatus::NotServing).await;
            is_healthy = false;
        }
        if is_of_a_restore(&error) && !restores.send_replace(true) {
            tracing::error!("another process put the store back to a checkpoint, so the server ends");
        }
    }
}

/// Ends listings whose next page was not requested in time.
async fn end_old_listings(state: &State) {
    loop {
        tokio::time::sleep(crate::pages::KEPT / 4).await;
        state.pages.end_old();
    }
}

/// Follows the files of TLS where there are any.
async fn renew(renewal: Option<Renewal>) {
    match renewal {
        Some(renewal) => renewal.follow().await,
        None => std::future::pending().await,
    }
}

/// Accepts connections and gives them to the serving threads by turns.
async fn accept(
    sockets: Sockets,
    certificates: Option<Certificates>,
    serving: Vec<mpsc::Sender<Accepted>>,
    room: Arc<Room>,
) {
    let (sender, mut accepted) = mpsc::channel(1);
    for listener in sockets.tcp.into_iter().chain(sockets.etcd) {
        tokio::spawn(accept_tcp(listener, sender.clone()));
    }
    for listener in sockets.unix {
        tokio::spawn(accept_unix(listener, sender.clone()));
    }
    drop(sender);
    let mut turn = 0;
    while let Some(accepted) = accepted.recv().await {
        // Without room the connection is closed, and the client tries again later.
        let Some(permit) = room.take() else {
            continue;
        };
        let accepted = match accepted {
            New::Tcp(stream) => match &certificates {
                Some(certificates) => Accepted::Tls(stream, certificates.current(), permit),
                None => Accepted::Tcp(stream, permit),
            },
            New::Unix(stream) => Accepted::Unix(stream, permit),
        };
        turn = (turn + 1) % serving.len();
        if serving[turn].send(accepted).await.is_err() {
            return;
        }
    }
}

enum New {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// How long an accepting task waits after an error: out of descriptors, for example, it must not spin.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

async fn accept_tcp(listener: std::net::TcpListener, accepted: mpsc::Sender<New>) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        // A peer that has gone already is left out.
        let stream = stream.set_nodelay(true).and_then(|()| stream.into_std());
        if let Ok(stream) = stream
            && accepted.send(New::Tcp(stream)).await.is_err()
        {
            return;
        }
    }
}

async fn accept_unix(listener: std::os::unix::net::UnixListener, accepted: mpsc::Sender<New>) {
    let Ok(listener) = UnixListener::from_std(listener) else {
        return;
    };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        if let Ok(stream) = stream.into_std()
            && accepted.send(New::Unix(stream)).await.is_err()
        {
            return;
        }
    }
}

/// The services of one thread.
fn services(state: &State, etcd: Option<EtcdDoor>, health: HealthReporter, reflection: bool) -> Routes {
    let maps = MapsServer::new(MapsService(state.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let topics = TopicsServer::new(TopicsService(state.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let transactions = TransactionsServer::new(TransactionsService(state.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let trees = TreesServer::new(TreesService(state.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let watch = WatchServer::new(WatchService(state.clone())).max_encoding_message_size(MESSAGE_BYTES_MAX);
    let admin = AdminServer::new(AdminService(state.clone()));
    let health = tonic_health::server::HealthService::from_health_reporter(health);
    let mut services = Routes::default()
        .add_service(maps)
        .add_service(topics)
        .add_service(transactions)
        .add_service(trees)
        .add_service(watch)
        .add_service(admin)
        .add_service(
            tonic_health::pb::health_server::HealthServer::new(health)
                .max_decoding_message_size(OPEN_MESSAGE_BYTES_MAX),
        );
    if reflection {
        let reflected = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .build_v1()
            .expect("the descriptors were made with the services")
            .max_decoding_message_size(OPEN_MESSAGE_BYTES_MAX);
        services = services.add_service(reflected);
    }
    match etcd {
        Some(door) => door.add_to(services),
        None => services,
    }
}

/// Serves the connections of one thread until the server ends.
fn serve_connections(
    runtime: &Runtime,
    state: State,
    services: Routes,
    measure: MeasureLayer,
    (connections, spin): (mpsc::Receiver<Accepted>, Duration),
    mut closing: watch::Receiver<bool>,
) {
    let (ready, incoming) = mpsc::channel(1);
    let incoming = ReceiverStream::new(incoming);
    let server = Server::builder()
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_concurrent_streams(CALLS_MAX)
        .http2_max_pending_accept_reset_streams(Some(CANCELLED_MAX))
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_ANSWER))
        .layer(measure)
        .layer(LimitLayer(state))
        .add_routes(services);
    let ended = async move {
        let _ = closing.wait_for(|closing| *closing).await;
    };
    // What a connection does wrong ends it alone.
    let _ = runtime.block_on(async {
        let spinner = Arc::new(Spinner::new(spin));
        tokio::spawn(register_all(connections, ready, spinner.clone()));
        tokio::spawn(async move { spinner.run().await });
        server.serve_with_incoming_shutdown(incoming, ended).await
    });
}

/// Creates the tree of etcd's clients, unless it is there.
async fn create_tree(state: &State, tree: String) -> Result<(), tonic::Status> {
    let create = TreeCommand {
        tree,
        change: Some(tree_command::Change::Create(true)),
    };
    state.write_unasked(Change::Tree(create)).await.map(drop)
}

/// What etcd's clients get of a server that listens for them.
fn etcd_config(config: &Config, listening: &[SocketAddr]) -> EtcdConfig {
    let mut etcd = config.etcd.clone();
    if etcd.client_urls.is_empty() {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let urls = listening.iter().map(|address| format!("{scheme}://{address}"));
        etcd.client_urls = urls.collect();
    }
    etcd
}

/// Tells the health of every service.
async fn set_health(health: &HealthReporter, status: ServingStatus) {
    let names = [
        "",
        MapsServer::<MapsService>::NAME,
        TopicsServer::<TopicsService>::NAME,
        TransactionsServer::<TransactionsService>::NAME,
        TreesServer::<TreesService>::NAME,
        WatchServer::<WatchService>::NAME,
        AdminServer::<AdminService>::NAME,
    ];
    for name in names {
        health.set_service_status(name, status).await;
    }
}
