//! `duramen serve` as a process: killed and started again under load, and ended in good order.

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::Server;
use duramen::Store;
use duramen::tree::{Trees, TreesOptions};
use duramen_proto::etcd::server::AuthenticateRequest;
use duramen_proto::etcd::server::auth_client::AuthClient;
use duramen_proto::v1::maps_client::MapsClient;
use duramen_proto::v1::subscribe_request::Start;
use duramen_proto::v1::topics_client::TopicsClient;
use duramen_proto::v1::transactions_client::TransactionsClient;
use duramen_proto::v1::*;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

async fn channel(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(server.place.clone()).unwrap();
    endpoint.connect().await.unwrap()
}

fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(body)
}

/// The outbox call: order `n` is stored and announced in one commit, once.
fn place_order(n: u64) -> CommitRequest {
    let put = operation::Change::Put(PutOperation {
        map: "orders".into(),
        key: n.to_be_bytes().to_vec().into(),
        value: "2 apples".into(),
    });
    let count = operation::Change::Add(AddOperation {
        map: "orders".into(),
        key: "count".into(),
        delta: 1,
    });
    let publish = operation::Change::Publish(PublishOperation {
        topic: "placed".into(),
        messages: vec![Message {
            payload: n.to_be_bytes().to_vec().into(),
            ..Default::default()
        }],
    });
    let operations = [put, count, publish].map(|change| Operation { change: Some(change) });
    CommitRequest {
        then: operations.into(),
        options: Some(WriteOptions {
            acknowledge: if n.is_multiple_of(8) {
                Acknowledge::Synced
            } else {
                Acknowledge::Written
            } as i32,
            idempotency_key: format!("order-{n}").into(),
        }),
        ..Default::default()
    }
}

#[test]
fn a_killed_server_loses_nothing_that_was_acknowledged_and_repeats_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut acknowledged = 0;
    for round in 0..8 {
        let server = Server::start(&directory.path().join("store"));
        run(async {
            let channel = channel(&server).await;
            if round == 0 {
                let map = CreateMapRequest {
                    map: "orders".into(),
                    ..Default::default()
                };
                MapsClient::new(channel.clone()).create_map(map).await.unwrap();
                let topic = CreateTopicRequest {
                    topic: "placed".into(),
                    ..Default::default()
                };
                TopicsClient::new(channel.clone()).create_topic(topic).await.unwrap();
            }
            let mut transactions = TransactionsClient::new(channel);
            let delay = Duration::from_micros(rng.u64(10_000..100_000));
            let is_killed = Arc::new(AtomicBool::new(false));
            let kills = is_killed.clone();
            let killer = std::thread::spawn(move || {
                std::thread::sleep(delay);
                kills.store(true, Ordering::SeqCst);
                server.kill();
            });
            // The order whose answer was lost is placed again at the next server.
            loop {
                let placed = match transactions.commit(place_order(acknowledged)).await {
                    Ok(placed) => placed.into_inner(),
                    Err(status) => {
                        assert!(is_killed.load(Ordering::SeqCst), "{status}");
                        break;
                    }
                };
                let offset = placed.results[2].result.as_ref();
                assert_eq!(offset, Some(&operation_result::Result::FirstOffset(acknowledged)));
                acknowledged += 1;
            }
            killer.join().unwrap();
        });
    }
    let server = Server::start(&directory.path().join("store"));
    run(async {
        let channel = channel(&server).await;
        let last = TransactionsClient::new(channel.clone())
            .commit(place_order(acknowledged))
            .await;
        last.unwrap();
        acknowledged += 1;
        let subscribe = SubscribeRequest {
            topic: "placed".into(),
            start: Some(Start::Earliest(true)),
            ..Default::default()
        };
        let mut messages = TopicsClient::new(channel.clone())
            .subscribe(subscribe)
            .await
            .unwrap()
            .into_inner();
        let mut next = 0;
        while next < acknowledged {
            for message in messages.message().await.unwrap().unwrap().messages {
                assert_eq!((message.offset, &message.payload[..]), (next, &next.to_be_bytes()[..]));
                next += 1;
            }
        }
        let mut maps = MapsClient::new(channel);
        let get = GetRequest {
            map: "orders".into(),
            key: "count".into(),
            ..Default::default()
        };
        let count = maps.get(get).await.unwrap().into_inner().value.unwrap();
        assert_eq!(&count[..], acknowledged.to_be_bytes());
        let count = CountRequest {
            map: "orders".into(),
            ..Default::default()
        };
        let orders = maps.count(count).await.unwrap().into_inner().count;
        assert_eq!(orders, acknowledged + 1, "with the counter");
    });
    println!("{acknowledged} orders");
    server.kill();
}

#[test]
fn a_terminated_server_ends_in_good_order_and_frees_the_store() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut server = Server::start(&directory.path().join("store"));
        run(async {
            let channel = channel(&server).await;
            let topic = CreateTopicRequest {
                topic: "t".into(),
                if_missing: true,
                ..Default::default()
            };
            let mut topics = TopicsClient::new(channel);
            topics.create_topic(topic).await.unwrap();
            let subscribe = SubscribeRequest {
                topic: "t".into(),
                ..Default::default()
            };
            let mut stream = topics.subscribe(subscribe).await.unwrap().into_inner();
            let process = rustix::process::Pid::from_child(&server.process);
            rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
            let ended = stream.message().await.unwrap_err();
            assert_eq!(ended.code(), tonic::Code::Unavailable, "{ended}");
        });
        assert!(server.process.wait().unwrap().success());
    }
}

#[test]
fn a_server_starts_with_more_leases_than_its_queue_can_hold() {
    const LEASES: u64 = 2_500;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let granted = |store: &Store| {
        let trees = Trees::open_with(store, TreesOptions::new().background(false)).unwrap();
        let view = trees.ensure("etcd").unwrap().view().unwrap();
        view.leases().unwrap().len() as u64
    };
    let store = Store::open(&path).unwrap();
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    let tree = trees.ensure("etcd").unwrap();
    tree.transact(|writes| {
        (1..=LEASES).try_for_each(|id| writes.grant_lease(id, Duration::from_secs(3_600)).map(drop))
    })
    .unwrap();
    assert_eq!(granted(&store), LEASES);
    drop((tree, trees));
    store.close().unwrap();
    let listens = ["--listen", "127.0.0.1:0", "--etcd-listen", "127.0.0.1:0"];
    drop(Server::start_with(
        &path,
        &[&listens[..], &["--queue-bytes", "10000"]].concat(),
    ));
    assert_eq!(granted(&Store::open(&path).unwrap()), LEASES);
}

#[test]
fn services_for_unknown_callers_take_no_large_messages() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--etcd-listen", "127.0.0.1:0"];
    let server = Server::start_with(&directory.path().join("store"), &arguments);
    // It is refused by its length, before it is there.
    let large = "x".repeat(100_000);
    run(async {
        let channel = channel(&server).await;
        let mut health = HealthClient::new(channel.clone());
        let service = large.clone();
        let refused = health.check(HealthCheckRequest { service }).await.unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
        let mut auth = AuthClient::new(channel);
        let (name, password) = (large, "secret".into());
        let asked = auth.authenticate(AuthenticateRequest { name, password });
        let refused = asked.await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(
            refused.message().contains("received message larger than max"),
            "{refused}"
        );
    });
}

#[test]
fn wrong_settings_are_told_with_their_place() {
    let scratch = crate::common::Scratch::new();
    let ended =
        scratch.shell("printf 'threads = 1\\ntreads = 2\\n' > duramen.toml; duramen serve --config duramen.toml");
    assert_eq!(ended.code, 2);
    assert!(
        ended
            .stderr
            .contains("duramen.toml, line 2: there is no setting treads"),
        "{}",
        ended.stderr
    );
    let ended = scratch.shell("duramen serve --listen 0.0.0.0:0");
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("nothing is encrypted"), "{}", ended.stderr);
    let ended = scratch.shell("touch file; duramen serve --data-dir file/store");
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("--data-dir"), "{}", ended.stderr);
    let ended = scratch.shell("duramen health --server unix:missing.sock --wait 0");
    assert_eq!(ended.code, 3);
    let ended = scratch.shell("DURAMEN_THREADS=3 duramen config check --config /dev/null --json");
    assert!(
        ended
            .text()
            .contains(r#""origin":"DURAMEN_THREADS","setting":"threads","value":"3""#),
        "{}",
        ended.text()
    );
}

#[test]
fn systemd_hears_when_the_server_is_ready_and_when_it_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let heard = || {
        let mut bytes = [0; 100];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let mut server = Command::new(env!("CARGO_BIN_EXE_duramen"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(directory.path().join("store"))
        .env("NOTIFY_SOCKET", &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(heard(), "READY=1");
    let process = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert_eq!(heard(), "STOPPING=1");
    assert!(server.wait().unwrap().success());
}

#[test]
fn the_unit_for_systemd_sets_known_variables() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/duramen.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let set = unit.lines().filter_map(|line| line.strip_prefix("Environment="));
    let names: Vec<_> = set
        .filter_map(|set| set.split_once('='))
        .map(|(name, _)| name)
        .collect();
    assert!(names.len() >= 2);
    let known: Vec<_> = duramen_server::SETTINGS
        .iter()
        .map(|setting| duramen_server::variable(setting.name))
        .collect();
    for name in names {
        assert!(known.iter().any(|known| known == name), "{name} is no setting");
    }
}

/// A server whose listening socket was made for it, as systemd does. The shell gives the socket the number 3.
fn with_a_socket(store: &Path, listener: &std::net::TcpListener) -> Command {
    rustix::io::fcntl_setfd(listener, rustix::io::FdFlags::empty()).unwrap();
    let line = format!(
        "exec 3<&{}; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" serve --json --data-dir \"$1\"",
        listener.as_raw_fd()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &line, crate::common::BINARY]).arg(store);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn sockets_that_were_made_for_the_server_take_the_place_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let process = with_a_socket(&directory.path().join("store"), &listener).spawn();
    drop(listener);
    let mut server = Server {
        process: process.unwrap(),
        place: format!("http://{address}"),
    };
    let mut line = String::new();
    BufReader::new(server.process.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(told["listening"], server.place);
    assert_eq!(told["unix"], serde_json::Value::Null);
    run(async {
        let maps = ListMapsRequest::default();
        MapsClient::new(channel(&server).await).list_maps(maps).await.unwrap();
    });
    let process = rustix::process::Pid::from_child(&server.process);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(server.process.wait().unwrap().success());

    // A socket that other machines reach needs TLS, as an address does.
    let remote = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let refused = with_a_socket(&directory.path().join("store"), &remote)
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.contains("nothing is encrypted"), "{told}");
}
