//! Several real processes that write one store at once and fold in the background, while they are killed and suspended
//! at random. A supervisor also has the store open, and knows what was acknowledged to each of them.
//!
//! The test program starts itself again as a writer. A writer has its own keys. Its number and the number of the step
//! alone determine what it does, and it reports every acknowledged step. The supervisor's ledger is therefore one
//! number for each writer. After a kill the store must show, for that writer, the state after the last acknowledged
//! step or after the next.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{Pair, Place, assert_sound, forwards, number_from_environment, restless, seed};
use duramen::{Batch, Map, Options, Snapshot, Store, TransactionOptions};
use fastrand::Rng;

const PATH: &str = "DURAMEN_WRITER_PATH";
const NUMBER: &str = "DURAMEN_WRITER_NUMBER";
const STEP: &str = "DURAMEN_WRITER_STEP";
const WRITERS: u8 = 3;
const KEYS: u32 = 60;

fn options() -> Options {
    restless()
}

struct Maps {
    store: Store,
    left: Map,
    right: Map,
    sums: Map,
}

impl Maps {
    fn of(store: Store) -> Maps {
        let map = |name| store.map(name).expect("a map");
        let (left, right, sums) = (map("left"), map("right"), map("sums"));
        Maps {
            store,
            left,
            right,
            sums,
        }
    }
}

/// What a step does.
enum Step {
    /// One pair in both maps, with a message and an addition that all writers share.
    Pair(u32, usize),
    /// Neighbouring keys in both maps.
    Batch(u32),
    /// Removes neighbouring keys from both maps.
    Remove(u32, u32),
}

impl Step {
    fn of(writer: u8, number: u64) -> Step {
        let mut rng = Rng::with_seed(u64::from(writer) << 56 ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let key = rng.u32(..KEYS);
        match rng.u32(..20) {
            0 => Step::Pair(key % 4, rng.usize(66_000..150_000)),
            1..8 => Step::Pair(key, rng.usize(..900)),
            8..10 => Step::Remove(key, key + rng.u32(..10)),
            _ => Step::Batch(key),
        }
    }
}

fn key(writer: u8, key: u32) -> Vec<u8> {
    [&[writer][..], &key.to_be_bytes()].concat()
}

/// Returns a value that shows whether it is complete.
fn value(step: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::with_seed(step ^ (length as u64) << 40);
    let mut value = step.to_be_bytes().to_vec();
    value.resize_with(8 + length, || rng.u8(..));
    value
}

fn perform(maps: &Maps, writer: u8, number: u64) -> duramen::Result<()> {
    match Step::of(writer, number) {
        Step::Pair(place, length) => maps.store.transact_with(TransactionOptions::new(), |tx| {
            tx.put(&maps.left, key(writer, place), value(number, length))?;
            tx.append(&maps.sums, b"steps", [writer])?;
            tx.add(&maps.sums, b"sum", 1)?;
            tx.put(&maps.right, key(writer, place), value(number, length))
        }),
        Step::Batch(first) => {
            let mut batch = Batch::new();
            for place in first..first + 8 {
                batch.put(&maps.left, key(writer, place), value(number, 40))?;
                batch.put(&maps.right, key(writer, place), value(number, 40))?;
            }
            maps.store.write(batch).map(drop)
        }
        Step::Remove(low, high) => {
            let mut batch = Batch::new();
            for map in [&maps.left, &maps.right] {
                batch.delete_range(map, &key(writer, low)[..]..&key(writer, high)[..])?;
            }
            maps.store.write(batch).map(drop)
        }
    }
}

/// The keys of one writer, and its number of messages.
#[derive(Clone, Default, PartialEq, Eq)]
struct State {
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    messages: usize,
}

impl State {
    fn apply(&mut self, writer: u8, number: u64) {
        match Step::of(writer, number) {
            Step::Pair(place, length) => {
                self.pairs.insert(key(writer, place), value(number, length));
                self.messages += 1;
            }
            Step::Batch(first) => self
                .pairs
                .extend((first..first + 8).map(|place| (key(writer, place), value(number, 40)))),
            Step::Remove(low, high) => self
                .pairs
                .retain(|found, _| !(key(writer, low)..key(writer, high)).contains(found)),
        }
    }

    fn found(maps: &Maps, snapshot: &Snapshot, writer: u8) -> State {
        let pairs_of = |map| -> Vec<Pair> { forwards(&mut snapshot.prefix(map, [writer]).expect("a cursor")) };
        let pairs = pairs_of(&maps.left);
        assert!(pairs == pairs_of(&maps.right), "half of a commit is missing");
        let messages = forwards(&mut snapshot.prefix(&maps.sums, b"steps").expect("a cursor"));
        let sum = snapshot.get(&maps.sums, b"sum").expect("a sum");
        let sum = sum.map_or(0, |sum| i64::from_be_bytes((*sum).try_into().expect("eight bytes")));
        assert_eq!(sum, messages.len() as i64, "additions and messages of all writers");
        State {
            pairs: pairs.into_iter().collect(),
            messages: messages.iter().filter(|(_, message)| *message == [writer]).count(),
        }
    }
}

#[test]
#[ignore = "the other tests run it as a process of its own"]
fn writer_process() {
    let Ok(path) = std::env::var(PATH) else { return };
    let number = |name| std::env::var(name).expect("a number").parse::<u64>().expect("a number");
    let maps = Maps::of(options().open(path).expect("a store"));
    let writer = number(NUMBER) as u8;
    for step in number(STEP).. {
        perform(&maps, writer, step).expect("a step");
        // One call writes one line, so that a kill does not leave half a line.
        let line = format!("@{}\n", step + 1);
        std::io::stdout().write_all(line.as_bytes()).expect("a listener");
    }
}

/// A writer, and the supervisor's knowledge of it.
struct Writer {
    number: u8,
    child: Child,
    listener: Option<JoinHandle<()>>,
    /// Number of steps that the writer reported as acknowledged.
    acknowledged: Arc<AtomicU64>,
    /// The state after `steps` steps.
    state: State,
    steps: u64,
}

impl Writer {
    fn start(path: &Path, number: u8) -> Writer {
        let acknowledged = Arc::new(AtomicU64::new(0));
        let (child, listener) = spawn(path, number, 0, &acknowledged);
        Writer {
            number,
            child,
            listener: Some(listener),
            acknowledged,
            state: State::default(),
            steps: 0,
        }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    }

    fn kill(&mut self) {
        self.child.kill().expect("a process");
        self.child.wait().expect("its end");
        self.listener.take().expect("a listener").join().expect("its end");
    }

    /// Compares the store with the acknowledgements of the dead writer. Returns whether a step took effect without an
    /// acknowledgement.
    fn check(&mut self, maps: &Maps) -> bool {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        (self.steps..acknowledged).for_each(|step| self.state.apply(self.number, step));
        self.steps = acknowledged;
        let found = State::found(maps, &maps.store.snapshot().expect("a snapshot"), self.number);
        if found == self.state {
            return false;
        }
        self.state.apply(self.number, acknowledged);
        assert!(found == self.state, "writer {} after step {acknowledged}", self.number);
        self.steps += 1;
        self.acknowledged.store(self.steps, Ordering::SeqCst);
        true
    }

    fn start_again(&mut self, path: &Path) {
        let (child, listener) = spawn(path, self.number, self.steps, &self.acknowledged);
        (self.child, self.listener) = (child, Some(listener));
    }
}

fn spawn(path: &Path, number: u8, step: u64, acknowledged: &Arc<AtomicU64>) -> (Child, JoinHandle<()>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([
        "--exact",
        "writer_process",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
        .env(PATH, path)
        .env(NUMBER, number.to_string())
        .env(STEP, step.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a process");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let acknowledged = acknowledged.clone();
    let listener = thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if let Some(step) = line.split_once('@').and_then(|(_, step)| step.parse().ok()) {
                acknowledged.store(step, Ordering::SeqCst);
            }
        }
    });
    (child, listener)
}

#[test]
fn nothing_acknowledged_is_lost_and_nobody_stops_however_often_writers_are_killed_and_stopped() {
    let (place, mut rng) = (Place::new(), Rng::with_seed(seed()));
    let path = place.path();
    let maps = Maps::of(options().open(&path).expect("a store"));
    let mine = maps.store.map("mine").expect("a map");
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::start(&path, number)).collect();
    let (kills, began) = (number_from_environment("DURAMEN_KILLS", 25), Instant::now());
    let mut landed = 0;
    for kill in 0..kills {
        thread::sleep(Duration::from_millis(rng.u64(5..200)));
        if rng.u32(..4) == 0 {
            // Processes that do not commit never wait long for a suspended writer. The writer continues when resumed.
            let stopped = &writers[rng.usize(..writers.len())];
            stopped.signal("-STOP");
            State::found(&maps, &maps.store.snapshot().expect("a snapshot"), stopped.number);
            thread::sleep(Duration::from_millis(rng.u64(..50)));
            stopped.signal("-CONT");
        }
        let writer = &mut writers[rng.usize(..WRITERS as usize)];
        writer.kill();
        mine.put(kill.to_be_bytes(), b"went on").expect("a put");
        landed += writer.check(&maps) as usize;
        writer.start_again(&path);
        if kill % 8 == 7 {
            assert_sound(&maps.store);
        }
    }
    for writer in &mut writers {
        writer.kill();
        mine.put(b"end", b"went on").expect("a put");
        landed += writer.check(&maps) as usize;
    }
    let steps: u64 = writers.iter().map(|writer| writer.steps).sum();
    println!(
        "{kills} kills, {landed} steps landed unacknowledged, {steps} in all, {:?}",
        began.elapsed()
    );
    assert!(steps > 5 * kills as u64, "{steps} steps");
    assert_eq!(mine.count().expect("a count"), kills as u64 + 1);
    assert_sound(&maps.store);
    // The resources of the dead writers are free soon.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let stat = maps.store.stat().expect("figures");
        // A thread of this process may hold a snapshot for a moment.
        if stat.processes.len() == 1 && stat.snapshots.is_empty() {
            break;
        }
        let (processes, snapshots) = (stat.processes.len(), &stat.snapshots);
        assert!(
            Instant::now() < deadline,
            "still listed: {processes} processes, {snapshots:?}"
        );
        thread::sleep(Duration::from_millis(20));
    }
    drop((mine, maps));
    let maps = Maps::of(Store::open(&path).expect("a store"));
    for writer in &mut writers {
        assert!(!writer.check(&maps));
    }
    assert_sound(&maps.store);
}
