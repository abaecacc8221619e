//! Torture of `duramen etcd`: the server is killed at random while clients read, write, compare and watch. Each key has to be a
//! linearisable register, and each watch has to show every change once, in order, with the value that was stored.
//!
//! It runs for 10 seconds, or `DURAMEN_ETCD_TORTURE_SECONDS`, in rounds with keys of their own. `DURAMEN_SEED=n` chooses the random numbers; the moments at which
//! things happen differ from run to run. Where Go is present, porcupine checks the history of the last round as well;
//! `DURAMEN_HISTORY=FILE` keeps it, one operation a line.

mod common;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::toolchains::{Go, run, told, unless_skipped};
use common::{BINARY, seed};
use duramen_proto::etcd::kv::event::EventType;
use duramen_proto::etcd::server::compare::TargetUnion;
use duramen_proto::etcd::server::kv_client::KvClient;
use duramen_proto::etcd::server::request_op::Request as Operation;
use duramen_proto::etcd::server::watch_client::WatchClient;
use duramen_proto::etcd::server::watch_request::RequestUnion;
use duramen_proto::etcd::server::*;
use fastrand::Rng;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

const CLIENTS: usize = 6;
const WATCHERS: usize = 3;
const KEYS: usize = 5;
/// A round is as long as its history fits into memory.
const ROUND: Duration = Duration::from_secs(20);
/// How long a call may take before its outcome counts as unknown.
const CALL: Duration = Duration::from_millis(1_500);

struct Server {
    process: Child,
    place: String,
}

impl Server {
    fn start(directory: &Path, place: &str) -> Server {
        let mut process = Command::new(BINARY)
            .args(["etcd", "--json", "--log-level=off", "--data-dir"])
            .arg(directory.join("member"))
            .arg(format!("--listen-client-urls=http://{place}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let place = told["etcd"][0].as_str().unwrap().trim_start_matches("http://").into();
        Server { process, place }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a client did to a key. Values are unique numbers; `None`: the key is missing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    Read,
    Write(u64),
    Delete,
    /// Writes the second value where the first one is found.
    Swap(Option<u64>, u64),
}

/// An operation of the history. Without an output its outcome is unknown: it may take effect at any time after its call, or never.
#[derive(Clone, Debug)]
struct Done {
    client: usize,
    input: Input,
    output: Option<Output>,
    call: u64,
    end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Output {
    Found(Option<u64>),
    Written,
    Swapped(bool),
}

/// The state after an operation, if the operation can have had its output in the state before.
fn step(state: Option<u64>, done: &Done) -> Option<Option<u64>> {
    match (done.input, done.output) {
        (Input::Read, Some(Output::Found(found))) => (found == state).then_some(state),
        (Input::Read, _) => Some(state),
        (Input::Write(value), _) => Some(Some(value)),
        (Input::Delete, _) => Some(None),
        (Input::Swap(expected, value), output) => {
            let holds = expected == state;
            match output {
                Some(Output::Swapped(swapped)) if swapped != holds => None,
                _ => Some(if holds { Some(value) } else { state }),
            }
        }
    }
}

/// Whether operations on a register can have happened one after the other, each between its call and its end: the search of Wing
/// and Gong, with the cache of Lowe, over a list of calls and ends. `first` is the state before them.
fn is_linearisable(first: Option<u64>, history: &[Done]) -> bool {
    // Calls and ends in the order of time, linked. Entry 0 is the head; entry i + 1 stands for event i.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (number, done) in history.iter().enumerate() {
        events.push((done.call, false, number));
        events.push((done.end, true, number));
    }
    events.sort_unstable();
    let count = events.len();
    let mut next: Vec<usize> = (1..=count + 2).collect();
    let mut before: Vec<usize> = std::iter::once(0).chain(0..=count).collect();
    let mut end_of = vec![0; history.len()];
    for (place, (_, is_end, number)) in events.iter().enumerate() {
        if *is_end {
            end_of[*number] = place + 1;
        }
    }
    let lift = |next: &mut Vec<usize>, before: &mut Vec<usize>, place: usize| {
        let (left, right) = (before[place], next[place]);
        next[left] = right;
        before[right] = left;
    };
    let unlift = |next: &mut Vec<usize>, before: &mut Vec<usize>, place: usize| {
        let (left, right) = (before[place], next[place]);
        next[left] = place;
        before[right] = place;
    };
    // A set of operations is known by the sum of their random numbers. Where two sets had one sum, a way would be left out: the
    // answer could be a wrong no, and never a wrong yes.
    let mut rng = Rng::with_seed(1);
    let names: Vec<u64> = history.iter().map(|_| rng.u64(..)).collect();
    let (mut taken, mut state) = (0_u64, first);
    let mut stack: Vec<(usize, Option<u64>)> = Vec::new();
    let mut seen: HashSet<(u64, Option<u64>)> = HashSet::new();
    let mut place = next[0];
    loop {
        let event = events.get(place - 1);
        match event {
            Some((_, false, number)) => {
                let after = step(state, &history[*number]);
                match after.filter(|after| seen.insert((taken ^ names[*number], *after))) {
                    Some(after) => {
                        taken ^= names[*number];
                        stack.push((place, state));
                        state = after;
                        lift(&mut next, &mut before, place);
                        lift(&mut next, &mut before, end_of[*number]);
                        place = next[0];
                    }
                    None => place = next[place],
                }
                continue;
            }
            // The end of an operation that must have happened by then, and did not on this way: another way is tried.
            Some((_, true, number)) if history[*number].output.is_some() => {}
            // What is left has no outcome, and need not have happened.
            _ => return true,
        }
        let Some((last, previous)) = stack.pop() else {
            return false;
        };
        let number = events[last - 1].2;
        state = previous;
        taken ^= names[number];
        unlift(&mut next, &mut before, end_of[number]);
        unlift(&mut next, &mut before, last);
        place = next[last];
    }
}

/// Histories of a register, and whether they are linearisable.
fn histories() -> Vec<(&'static str, bool, Vec<Done>)> {
    let done = |client, input, output, call, end| Done {
        client,
        input,
        output,
        call,
        end,
    };
    let read = |found, call, end| done(1, Input::Read, Some(Output::Found(found)), call, end);
    let write = done(0, Input::Write(1), Some(Output::Written), 0, 10);
    let unknown = done(0, Input::Write(2), None, 20, u64::MAX);
    let swap = |expected, swapped| done(2, Input::Swap(expected, 3), Some(Output::Swapped(swapped)), 20, 21);
    let with = |others: &[Done]| [std::slice::from_ref(&write), others].concat();
    vec![
        (
            "a read beside a write sees what was before",
            true,
            with(&[read(None, 5, 6)]),
        ),
        ("a read beside a write sees it", true, with(&[read(Some(1), 5, 6)])),
        ("a read after a write misses it", false, with(&[read(None, 11, 12)])),
        (
            "the second of two reads goes back",
            false,
            with(&[read(Some(1), 2, 3), read(None, 4, 5)]),
        ),
        (
            "a write without an outcome takes effect late",
            true,
            with(&[unknown.clone(), read(Some(1), 30, 31), read(Some(2), 40, 41)]),
        ),
        (
            "a write without an outcome takes no effect",
            true,
            with(&[unknown.clone(), read(Some(1), 30, 31)]),
        ),
        (
            "a write without an outcome takes effect before its call",
            false,
            vec![unknown.clone(), read(Some(2), 10, 11)],
        ),
        (
            "a write without an outcome takes effect, and is gone",
            false,
            vec![unknown, read(Some(2), 40, 41), read(None, 50, 51)],
        ),
        ("a swap finds what it expects", true, with(&[swap(Some(1), true)])),
        (
            "a swap takes place over another value",
            false,
            with(&[swap(Some(7), true)]),
        ),
        ("a swap misses what it expects", false, with(&[swap(Some(1), false)])),
    ]
}

#[test]
fn the_checker_tells_registers_from_others() {
    for (what, expected, history) in histories() {
        assert_eq!(is_linearisable(None, &history), expected, "{what}");
    }
}

/// What all clients and watchers share.
struct Shared {
    place: String,
    /// What all keys of the round begin with.
    prefix: String,
    /// The revision before the round.
    first: i64,
    begun: Instant,
    ends: AtomicBool,
    next_value: AtomicU64,
    /// By key.
    history: Mutex<BTreeMap<usize, Vec<Done>>>,
    /// The value of each change that was acknowledged, by its revision.
    acknowledged: Mutex<BTreeMap<i64, (usize, Option<u64>)>>,
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap()
    }

    fn key(&self, number: usize) -> Vec<u8> {
        format!("{}{number}", self.prefix).into_bytes()
    }

    /// The range of all keys.
    fn all(&self) -> RangeRequest {
        RangeRequest {
            key: self.prefix.clone().into(),
            range_end: self.prefix.replace('/', "0").into(),
            ..RangeRequest::default()
        }
    }

    fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.place))
            .unwrap()
            .timeout(CALL)
            .connect_lazy()
    }
}

fn parsed(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// A client: it makes random calls, one after the other.
async fn work(shared: Arc<Shared>, client: usize, mut rng: Rng) {
    let mut kv = KvClient::new(shared.channel());
    let mut known: HashMap<usize, (Option<u64>, i64)> = HashMap::new();
    while !shared.ends.load(Ordering::Relaxed) {
        let number = rng.usize(0..KEYS);
        let input = match (rng.u8(0..10), known.get(&number)) {
            (0..4, _) => Input::Read,
            (4..6, Some((found, _))) => Input::Swap(*found, shared.next_value.fetch_add(1, Ordering::Relaxed)),
            (6, _) => Input::Delete,
            _ => Input::Write(shared.next_value.fetch_add(1, Ordering::Relaxed)),
        };
        let put = |value: u64| PutRequest {
            key: shared.key(number).into(),
            value: value.to_string().into(),
            ..PutRequest::default()
        };
        let call = shared.now();
        // The output, and the revision of a change.
        let answer = match input {
            Input::Read => {
                let range = RangeRequest {
                    key: shared.key(number).into(),
                    ..RangeRequest::default()
                };
                kv.range(range).await.map(|told| {
                    let pair = told.get_ref().kvs.first();
                    let found = pair.map(|pair| parsed(&pair.value));
                    known.insert(number, (found, pair.map_or(0, |pair| pair.mod_revision)));
                    (Output::Found(found), None)
                })
            }
            Input::Write(value) => {
                let written = kv.put(put(value)).await;
                written.map(|told| {
                    (
                        Output::Written,
                        Some((told.into_inner().header.unwrap().revision, Some(value))),
                    )
                })
            }
            Input::Delete => {
                let delete = DeleteRangeRequest {
                    key: shared.key(number).into(),
                    ..DeleteRangeRequest::default()
                };
                kv.delete_range(delete).await.map(|told| {
                    let told = told.into_inner();
                    let change = (told.deleted > 0).then(|| (told.header.unwrap().revision, None));
                    (Output::Written, change)
                })
            }
            Input::Swap(_, value) => {
                let transaction = TxnRequest {
                    compare: vec![Compare {
                        target: compare::CompareTarget::Mod as i32,
                        key: shared.key(number).into(),
                        target_union: Some(TargetUnion::ModRevision(known[&number].1)),
                        ..Compare::default()
                    }],
                    success: vec![RequestOp {
                        request: Some(Operation::RequestPut(put(value))),
                    }],
                    failure: Vec::new(),
                };
                kv.txn(transaction).await.map(|told| {
                    let told = told.into_inner();
                    let change = told.succeeded.then(|| (told.header.unwrap().revision, Some(value)));
                    (Output::Swapped(told.succeeded), change)
                })
            }
        };
        let end = shared.now();
        let (output, end) = match answer {
            Ok((output, change)) => {
                if let Some((revision, value)) = change {
                    let before = shared.acknowledged.lock().unwrap().insert(revision, (number, value));
                    assert!(before.is_none(), "two changes have the revision {revision}");
                }
                (Some(output), end)
            }
            // The server was killed, or is on its way back.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(rng.u64(5..50))).await;
                (None, u64::MAX)
            }
        };
        let done = Done {
            client,
            input,
            output,
            call,
            end,
        };
        if !(output.is_none() && input == Input::Read) {
            shared.history.lock().unwrap().entry(number).or_default().push(done);
        }
    }
}

/// The changes that a watcher has seen: key and value by revision.
type Seen = BTreeMap<i64, (usize, Option<u64>)>;

/// A watcher: it goes on after the last revision that it has seen, whenever its stream breaks. It ends at a revision that is set once
/// the clients have ended.
async fn watch(shared: Arc<Shared>, last: Arc<AtomicU64>) -> Seen {
    let mut seen = Seen::new();
    let mut revision = shared.first;
    let all = shared.all();
    loop {
        let end = last.load(Ordering::Relaxed);
        if end > 0 && revision >= end as i64 {
            return seen;
        }
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let create = WatchCreateRequest {
            key: all.key.clone(),
            range_end: all.range_end.clone(),
            start_revision: revision + 1,
            ..WatchCreateRequest::default()
        };
        let create = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create)),
        };
        sender.send(create).await.unwrap();
        let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let endpoint = Endpoint::from_shared(format!("http://{}", shared.place)).unwrap();
        let Ok(channel) = endpoint.connect().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(responses) = WatchClient::new(channel).watch(requests).await else {
            continue;
        };
        let mut responses = responses.into_inner();
        while let Ok(Ok(Some(response))) = tokio::time::timeout(Duration::from_millis(500), responses.message()).await {
            assert!(!response.canceled, "{response:?}");
            for event in response.events {
                let pair = event.kv.as_ref().unwrap();
                assert_eq!(
                    pair.mod_revision,
                    revision + 1,
                    "a watch shows every change once, and in order"
                );
                revision = pair.mod_revision;
                let number = parsed(&pair.key[shared.prefix.len()..]) as usize;
                let value = (event.r#type() == EventType::Put).then(|| parsed(&pair.value));
                seen.insert(revision, (number, value));
            }
        }
    }
}

/// Writes operations a line, for `etcd/go/porcupine`, which says what the fields mean.
fn write_history(path: &Path, history: &BTreeMap<usize, Vec<Done>>) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    for (number, operations) in history {
        for done in operations {
            let (input, value, expected) = match done.input {
                Input::Read => ("read", None, None),
                Input::Write(value) => ("write", Some(value), None),
                Input::Delete => ("delete", None, None),
                Input::Swap(expected, value) => ("swap", Some(value), expected),
            };
            let output = done.output.map(|output| match output {
                Output::Found(found) => json!({ "found": found }),
                Output::Written => json!({}),
                Output::Swapped(swapped) => json!({ "swapped": swapped }),
            });
            let line = json!({
                "client": done.client,
                "key": number,
                "input": input,
                "value": value,
                "expected": expected,
                "output": output,
                "call": done.call,
                "return": (done.end != u64::MAX).then_some(done.end),
            });
            writeln!(file, "{line}").unwrap();
        }
    }
    file.flush().unwrap();
}

#[test]
fn porcupine_tells_registers_from_others() {
    let Some(porcupine) = unless_skipped("porcupine", porcupine()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history");
    for (what, expected, history) in histories() {
        let count = history.len();
        write_history(&path, &BTreeMap::from([(0, history)]));
        let output = Command::new(&porcupine).arg(&path).output().unwrap();
        let answer = match expected {
            true => format!("{count} operations are linearisable\n"),
            false => "key 0 is no linearisable register\n".into(),
        };
        assert_eq!((output.status.success(), told(&output)), (expected, answer), "{what}");
    }
}

/// Porcupine, built. An error is the reason to skip.
fn porcupine() -> Result<PathBuf, String> {
    let toolchain = Go::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd/go"))?;
    run(&mut toolchain.command(&["vet", "./porcupine"]));
    let program = toolchain.cache.join("porcupine");
    run(toolchain.command(&["build", "-o"]).arg(&program).arg("./porcupine"));
    Ok(program)
}

#[test]
fn registers_are_linearisable_and_watches_are_complete_while_the_server_is_killed() {
    let seconds = std::env::var("DURAMEN_ETCD_TORTURE_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let (begun, seconds) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(10)));
    let mut rng = Rng::with_seed(seed());
    let directory = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("DURAMEN_HISTORY").map(PathBuf::from);
    let history_path = kept.unwrap_or_else(|| directory.path().join("history"));
    let mut number = 0;
    while begun.elapsed() < seconds {
        let left = seconds.saturating_sub(begun.elapsed());
        round(
            directory.path(),
            &history_path,
            number,
            &mut rng,
            left.min(ROUND).max(Duration::from_secs(5)),
        );
        number += 1;
    }
    if let Some(porcupine) = unless_skipped("porcupine", porcupine()) {
        print!("porcupine: {}", run(Command::new(porcupine).arg(&history_path)));
    }
}

fn round(directory: &Path, history_path: &Path, number: u64, rng: &mut Rng, seconds: Duration) {
    let mut server = Some(Server::start(directory, "127.0.0.1:0"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let place = server.as_ref().unwrap().place.clone();
    let first = runtime.block_on(async {
        let channel = Endpoint::from_shared(format!("http://{place}"))
            .unwrap()
            .connect()
            .await
            .unwrap();
        let any = RangeRequest {
            key: "any".into(),
            ..RangeRequest::default()
        };
        KvClient::new(channel)
            .range(any)
            .await
            .unwrap()
            .into_inner()
            .header
            .unwrap()
            .revision
    });
    let shared = Arc::new(Shared {
        place,
        prefix: format!("round{number}/"),
        first,
        begun: Instant::now(),
        ends: AtomicBool::new(false),
        next_value: AtomicU64::new(1),
        history: Mutex::default(),
        acknowledged: Mutex::default(),
    });
    let last = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| runtime.spawn(work(shared.clone(), client, rng.fork())))
        .collect();
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|_| runtime.spawn(watch(shared.clone(), last.clone())))
        .collect();
    let mut kills = 0;
    while shared.begun.elapsed() < seconds {
        std::thread::sleep(Duration::from_millis(rng.u64(50..1_500)));
        drop(server.take());
        kills += 1;
        server = Some(Server::start(directory, &shared.place));
    }
    shared.ends.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        for client in clients {
            client.await.unwrap();
        }
        // What is committed now is all there is: a write whose caller has gone is not applied later than this read.
        let mut kv = KvClient::new(shared.channel());
        let found = loop {
            match kv.range(shared.all()).await {
                Ok(found) => break found.into_inner(),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let newest = found.header.unwrap().revision;
        last.store(newest as u64, Ordering::Relaxed);
        let mut seen = Vec::new();
        for watcher in watchers {
            seen.push(watcher.await.unwrap());
        }
        for other in &seen[1..] {
            assert_eq!(*other, seen[0], "two watches differ");
        }
        let acknowledged = shared.acknowledged.lock().unwrap();
        for (revision, change) in acknowledged.iter() {
            assert_eq!(
                seen[0].get(revision),
                Some(change),
                "the acknowledged change of revision {revision}"
            );
        }
        let mut left: BTreeMap<usize, Option<u64>> = BTreeMap::new();
        left.extend(seen[0].values().copied());
        for number in 0..KEYS {
            let pair = found.kvs.iter().find(|pair| pair.key == shared.key(number));
            let value = pair.map(|pair| parsed(&pair.value));
            assert_eq!(
                value,
                left.get(&number).copied().flatten(),
                "what the watches saw last of key {number}"
            );
        }
        let history = shared.history.lock().unwrap();
        write_history(history_path, &history);
        let operations: usize = history.values().map(Vec::len).sum();
        println!("{operations} operations, {newest} revisions, {kills} kills");
        assert!(acknowledged.len() > 100, "the clients did too little to prove anything");
        for (number, operations) in history.iter() {
            assert!(
                is_linearisable(None, operations),
                "key {number} is no register; DURAMEN_HISTORY=FILE keeps the history"
            );
        }
    });
}
