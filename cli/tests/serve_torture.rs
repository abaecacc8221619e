//! Torture over the network: a server process is killed and ended at random under load, clients resume, members of a group
//! die and fall asleep. Nothing that was acknowledged is lost, and nothing takes effect twice.
//!
//! It runs for 10 seconds, or `DURAMEN_SERVE_TORTURE_SECONDS`. `DURAMEN_SEED=n` chooses the random numbers; the moments at which
//! things happen differ from run to run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use duramen_client::{
    Acknowledge, Bytes, Client, ErrorKind, GroupOptions, KeepChanges, Keys, MemberOptions, Start, Subscription,
    TopicOptions, WatchStart, Watched, WriteOptions,
};
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};

/// How long a client waits for a server that is down: long enough for a busy machine.
const PATIENT: Duration = Duration::from_secs(240);
const LEASE: Duration = Duration::from_secs(2);
/// Between messages, so that the members, which make a commit for each, keep up.
const PAUSE: Duration = Duration::from_millis(3);
const PUBLISHERS: usize = 2;
const MEMBERS: usize = 4;

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(directory: &Path, listen: &str) -> Server {
        let mut process = Command::new(env!("CARGO_BIN_EXE_duramen"))
            .args(["serve", "--json", "--log", "warn", "--listen", listen, "--data-dir"])
            .arg(directory.join("store"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = told["listening"].as_str().unwrap().to_string();
        Server { process, address }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn terminate(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Server {
    /// A test that fails leaves no server.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(work)
}

fn connect(address: &str) -> Client {
    Client::builder().deadline(PATIENT).connect(address).unwrap()
}

fn at_a_level(rng: &mut Rng) -> WriteOptions {
    WriteOptions::new().acknowledge(match rng.u8(0..4) {
        0 => Acknowledge::Synced,
        _ => Acknowledge::Written,
    })
}

/// What all roles share.
#[derive(Clone)]
struct Run {
    address: Arc<str>,
    is_over: Arc<AtomicBool>,
    seed: u64,
}

impl Run {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn rng(&self, role: u64) -> Rng {
        Rng::with_seed(self.seed ^ role.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn start<T: Send + 'static>(&self, role: impl FnOnce(Run) -> T + Send + 'static) -> JoinHandle<T> {
        let run = self.clone();
        thread::spawn(move || role(run))
    }
}

/// Publishes numbered messages; a message whose answer got lost is published again with its key. Returns their offsets.
fn publish(run_of: &Run, number: usize) -> Vec<u64> {
    let mut rng = run_of.rng(number as u64);
    run(async {
        let topic = connect(&run_of.address).topic("events");
        let mut offsets = Vec::new();
        while run_of.goes_on() {
            let n = offsets.len();
            let published = topic.with(at_a_level(&mut rng)).publish(format!("{number} {n}")).await;
            let offset = published.unwrap().unwrap();
            offsets.push(offset);
            tokio::time::sleep(PAUSE).await;
        }
        offsets
    })
}

/// Publishes through streams. Returns the acknowledged messages with their offsets.
fn pipeline(run_of: &Run) -> BTreeMap<u64, u64> {
    run(async {
        let topic = connect(&run_of.address).topic("events");
        let topic = topic.with(WriteOptions::new().acknowledge(Acknowledge::Written));
        let (mut acknowledged, mut n) = (BTreeMap::new(), 0);
        while run_of.goes_on() {
            let publisher = topic.publisher().await.unwrap();
            let mut tickets = Vec::new();
            for _ in 0..50 {
                // A stream that broke is replaced; what it did not acknowledge may be published, once.
                let Ok(ticket) = publisher.send(format!("stream {n}")).await else {
                    break;
                };
                tickets.push((n, ticket));
                n += 1;
            }
            for (n, ticket) in tickets {
                match ticket.await {
                    Ok(offset) => drop(acknowledged.insert(n, offset.unwrap())),
                    Err(error) => assert!(error.kind == ErrorKind::UnknownOutcome, "{error}"),
                }
            }
            tokio::time::sleep(20 * PAUSE).await;
        }
        acknowledged
    })
}

/// Adds to a counter. Returns how often.
fn count(run_of: &Run, role: u64) -> i64 {
    let mut rng = run_of.rng(100 + role);
    run(async {
        let client = connect(&run_of.address);
        let mut added = 0;
        while run_of.goes_on() {
            let map = client.with(at_a_level(&mut rng)).map("effects");
            map.add("counter", 1).await.unwrap();
            added += 1;
        }
        added
    })
}

/// Handles messages of the group: the effect and the acknowledgement are one commit. The member now and then dies with what
/// it holds, or sleeps until its leases are over.
fn handle(run_of: &Run, number: u64) -> u64 {
    let mut rng = run_of.rng(200 + number);
    let mut handled = 0;
    loop {
        // The runtime ends with its connections, and nothing is said to the server: so a process dies.
        let is_done = run(async {
            let client = connect(&run_of.address);
            let client = client.with(WriteOptions::new().acknowledge(Acknowledge::Written));
            let group = client.topic("events").group("handlers");
            let options = MemberOptions::new().batch(20).ahead(40).timeout(Duration::from_secs(1));
            let mut member = group.join_with(format!("member {number}"), options).await.unwrap();
            let life = rng.usize(20..400);
            for _ in 0..life {
                let received = tokio::time::timeout(Duration::from_secs(1), member.receive()).await;
                let deliveries = match received {
                    Ok(received) => received.unwrap().unwrap(),
                    Err(_) if run_of.goes_on() => continue,
                    Err(_) => {
                        let described = group.describe().await.unwrap();
                        match described.lag == 0 && described.pending == 0 {
                            true => return true,
                            false => continue,
                        }
                    }
                };
                if rng.u16(0..400) == 0 {
                    tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
                }
                for delivery in deliveries.messages() {
                    let offset = delivery.message.offset;
                    let key = format!("{offset:012}");
                    let done = client
                        .transaction()
                        .add("effects", key, 1)
                        .acknowledge(&deliveries, &[offset])
                        .commit();
                    match done.await {
                        Ok(_) => handled += 1,
                        Err(error) => assert!(
                            error.reason == "LEASE_LOST" || error.reason == "ALREADY_SETTLED",
                            "{error}"
                        ),
                    }
                }
            }
            false
        });
        if is_done {
            return handled;
        }
    }
}

async fn next(messages: &mut Subscription, expected: u64) -> String {
    let message = messages.next().await.unwrap().unwrap();
    assert_eq!(message.offset, expected, "a message is missing or comes twice");
    String::from_utf8(message.payload.to_vec()).unwrap()
}

/// Reads all messages while they are published; no offset is missing and none comes twice.
fn subscribe(run_of: &Run, end: &Mutex<Option<u64>>) -> Vec<String> {
    run(async {
        let topic = connect(&run_of.address).topic("events");
        let mut messages = topic.subscribe(Start::Earliest).await.unwrap();
        let mut read = Vec::new();
        loop {
            let end = *end.lock().unwrap();
            if end == Some(read.len() as u64) {
                return read;
            }
            let next = tokio::time::timeout(Duration::from_millis(300), next(&mut messages, read.len() as u64));
            if let Ok(payload) = next.await {
                read.push(payload);
            }
        }
    })
}

/// Follows the changes of the map of effects while they are made: none is missing and none comes twice. Returns the pairs
/// that they lead to.
fn watch(run_of: &Run, end: &Mutex<Option<u64>>) -> BTreeMap<Bytes, Bytes> {
    run(async {
        let effects = connect(&run_of.address).map("effects");
        let mut watch = effects.watch(Keys::all(), WatchStart::Earliest).await.unwrap();
        let (mut pairs, mut number) = (BTreeMap::new(), 0);
        while *end.lock().unwrap() != Some(number) {
            let next = tokio::time::timeout(Duration::from_millis(300), watch.next());
            let Ok(next) = next.await else { continue };
            let Watched::Changed(change) = next.unwrap().unwrap() else {
                panic!("the watch does not begin with pairs");
            };
            assert_eq!(change.number, number + 1, "a change is missing or comes twice");
            number = change.number;
            let new = change.new.expect("nothing is deleted");
            assert_eq!(pairs.insert(change.key, new), change.old, "change {number}");
        }
        pairs
    })
}

#[test]
fn nothing_acknowledged_is_lost_while_servers_and_clients_die() {
    let seconds = std::env::var("DURAMEN_SERVE_TORTURE_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().into();
    let mut server = Server::start(&path, "127.0.0.1:0");
    let address: Arc<str> = server.address.clone().into();
    let listen = address.trim_start_matches("http://").to_string();
    let torture = Run {
        address: address.clone(),
        is_over: Arc::default(),
        seed,
    };
    run(async {
        let client = connect(&address);
        client
            .create_watched_map("effects", KeepChanges::default())
            .await
            .unwrap();
        client.create_topic("events", TopicOptions::default()).await.unwrap();
        let group = client.topic("events").group("handlers");
        // Attempts do not run out: a message is never given up.
        let options = GroupOptions::new().lease(LEASE).back_off(&[Duration::ZERO]).tries(0);
        group.create(Start::Earliest, options).await.unwrap();
    });
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|number| torture.start(move |run| publish(&run, number)))
        .collect();
    let stream = torture.start(|run| pipeline(&run));
    let counters: Vec<_> = (0..2).map(|role| torture.start(move |run| count(&run, role))).collect();
    let members: Vec<_> = (0..MEMBERS as u64)
        .map(|number| torture.start(move |run| handle(&run, number)))
        .collect();
    let end = Arc::new(Mutex::new(None));
    let subscriber = {
        let end = end.clone();
        torture.start(move |run| subscribe(&run, &end))
    };

    let last_change = Arc::new(Mutex::new(None));
    let watcher = {
        let last_change = last_change.clone();
        torture.start(move |run| watch(&run, &last_change))
    };

    let mut rng = torture.rng(u64::MAX);
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(10));
    let (mut kills, mut ends) = (0, 0);
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(rng.u64(100..1_500)));
        match rng.u8(0..4) {
            0 => {
                server.terminate();
                ends += 1;
            }
            _ => {
                server.kill();
                kills += 1;
            }
        }
        server = Server::start(&path, &listen);
    }
    torture.is_over.store(true, Ordering::SeqCst);
    let published: Vec<Vec<u64>> = publishers.into_iter().map(|role| role.join().unwrap()).collect();
    let streamed = stream.join().unwrap();
    let counted: i64 = counters.into_iter().map(|role| role.join().unwrap()).sum();
    let handled: u64 = members.into_iter().map(|role| role.join().unwrap()).sum();
    let next_offset = run(async { connect(&address).topic("events").describe().await.unwrap().next_offset });
    *end.lock().unwrap() = Some(next_offset);
    let read = subscriber.join().unwrap();
    *last_change.lock().unwrap() = Some(run(async {
        let effects = connect(&address).map("effects");
        effects.watch(Keys::all(), WatchStart::Next).await.unwrap().position()
    }));
    let watched = watcher.join().unwrap();

    // What was acknowledged is there, at the offset that was told, once and in order.
    let mut offsets_of: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (offset, payload) in read.iter().enumerate() {
        offsets_of.entry(payload).or_default().push(offset as u64);
    }
    for (number, offsets) in published.iter().enumerate() {
        assert!(offsets.is_sorted());
        for (n, offset) in offsets.iter().enumerate() {
            assert_eq!(offsets_of[&format!("{number} {n}")[..]], [*offset]);
        }
    }
    for (n, offset) in &streamed {
        assert_eq!(offsets_of[&format!("stream {n}")[..]], [*offset]);
    }
    assert!(
        offsets_of.values().all(|offsets| offsets.len() == 1),
        "a message is there twice"
    );
    // Each message had its effect once.
    run(async {
        let effects = connect(&address).map("effects");
        assert_eq!(effects.count(Keys::all()).await.unwrap(), watched.len() as u64);
        let counter = effects.get("counter").await.unwrap().unwrap();
        assert_eq!(counter, counted.to_be_bytes()[..]);
        assert_eq!(watched.get(&b"counter"[..]), Some(&counter));
        for offset in 0..next_offset {
            let effect = effects.get(format!("{offset:012}")).await.unwrap();
            assert_eq!(
                effect.as_deref(),
                Some(&1_i64.to_be_bytes()[..]),
                "the effect of message {offset}"
            );
            assert_eq!(watched.get(format!("{offset:012}").as_bytes()), effect.as_ref());
        }
    });
    server.terminate();
    println!(
        "{kills} kills, {ends} ends; {} messages one by one, {} of {next_offset} by streams, {counted} additions, \
         {handled} handled",
        published.iter().map(Vec::len).sum::<usize>(),
        streamed.len()
    );
    assert!(kills > 0 && handled <= next_offset);
}
