//! Real processes that are killed while they write, and a supervisor that knows which of their commits were
//! acknowledged.
//!
//! The test program starts itself again as the writer. Several threads, each with its own keys, do what (seed, thread,
//! step) alone determines, and report before and after each step over a pipe. The supervisor's ledger is therefore two
//! numbers a thread. After a kill the store must show, thread by thread, the state after the last acknowledged step or
//! after the step in flight, and nothing else. That covers loss, tearing and half transactions.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, assert_sound, forwards, number_from_environment, restless, seed};
use duramen::{Batch, Durability, Kind, Map, Options, Reason, Snapshot, Store, TransactionOptions};
use fastrand::Rng;

const THREADS: usize = 3;
/// Number of keys of each thread.
const KEYS: u32 = 150;

const CHILD_PATH: &str = "DURAMEN_CHILD_PATH";
const CHILD_ROLE: &str = "DURAMEN_CHILD_ROLE";
const CHILD_SEED: &str = "DURAMEN_CHILD_SEED";
const CHILD_STEPS: &str = "DURAMEN_CHILD_STEPS";

// The steps of a writer, and their results.

/// One step of one thread.
#[derive(Clone, Debug)]
struct Step {
    what: What,
    thread: usize,
    number: u64,
    durability: Durability,
}

#[derive(Clone, Debug)]
enum What {
    Put {
        key: u32,
        length: usize,
    },
    Stream {
        key: u32,
        length: usize,
    },
    Delete {
        key: u32,
    },
    DeleteRange {
        low: u32,
        high: u32,
    },
    /// One pair in two maps, a message and an addition, in one transaction.
    Pair {
        key: u32,
        length: usize,
    },
    /// Several neighbouring keys at once, the first of them deleted.
    Batch {
        first: u32,
        count: u32,
    },
}

impl Step {
    fn of(seed: u64, thread: usize, number: u64) -> Step {
        let mut rng = Rng::with_seed(seed ^ (thread as u64) << 56 ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let key = rng.u32(0..KEYS);
        let what = match rng.u32(0..100) {
            0..40 => What::Put {
                key,
                length: rng.usize(0..900),
            },
            40..43 => What::Put {
                key: key % 5,
                length: rng.usize(65_537..200_000),
            },
            43..45 => What::Stream {
                key: key % 5,
                length: rng.usize(1..1_500_000),
            },
            45..55 => What::Delete { key },
            55..58 => What::DeleteRange {
                low: key,
                high: key + rng.u32(0..20),
            },
            58..61 => What::Pair {
                key: key % 3,
                length: rng.usize(65_537..150_000),
            },
            61..85 => What::Pair {
                key,
                length: rng.usize(0..900),
            },
            _ => What::Batch {
                first: key,
                count: rng.u32(1..30),
            },
        };
        let durability = if rng.u32(0..6) == 0 {
            Durability::Synced
        } else {
            Durability::Written
        };
        Step {
            what,
            thread,
            number,
            durability,
        }
    }

    fn key(&self, key: u32) -> Vec<u8> {
        [&prefix(self.thread)[..], &key.to_be_bytes()].concat()
    }

    fn value(&self, key: u32, length: usize) -> Vec<u8> {
        value(&self.key(key), self.number, length)
    }

    fn message(&self) -> Vec<u8> {
        [&prefix(self.thread)[..], &self.number.to_be_bytes()].concat()
    }
}

fn prefix(thread: usize) -> [u8; 3] {
    [b't', b'0' + thread as u8, b'/']
}

/// Returns a value that shows whether it is complete and belongs to its key: a checksum of the key, the step and the
/// length, and bytes derived from it.
fn value(key: &[u8], step: u64, length: usize) -> Vec<u8> {
    let mut sum = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ length as u64;
    key.iter()
        .for_each(|byte| sum = (sum ^ *byte as u64).wrapping_mul(0x0100_0000_01B3));
    let mut value = [step.to_be_bytes(), sum.to_be_bytes()].concat();
    let mut rng = Rng::with_seed(sum);
    value.resize_with(16 + length, || rng.u8(..));
    value
}

fn is_whole(key: &[u8], found: &[u8]) -> bool {
    let step = found.get(..8).map(|step| u64::from_be_bytes(step.try_into().unwrap()));
    step.is_some_and(|step| found.len() >= 16 && value(key, step, found.len() - 16) == found)
}

/// The maps of the store.
struct Tables {
    store: Store,
    single: Map,
    left: Map,
    right: Map,
    topic: Map,
    sums: Map,
}

impl Tables {
    fn of(store: Store) -> Tables {
        let map = |name| store.map(name).unwrap();
        let (single, left, right, topic, sums) = (map("single"), map("left"), map("right"), map("topic"), map("sums"));
        Tables {
            store,
            single,
            left,
            right,
            topic,
            sums,
        }
    }

    fn perform(&self, step: &Step) -> duramen::Result<()> {
        let single = self.single.with_durability(step.durability);
        match step.what {
            What::Put { key, length } => single.put(step.key(key), step.value(key, length)),
            What::Stream { key, length } => {
                let value = step.value(key, length);
                single.put_stream(step.key(key), value.len() as u64, &mut value.as_slice())
            }
            What::Delete { key } => single.delete(step.key(key)),
            What::DeleteRange { low, high } => single.delete_range(&step.key(low)[..]..&step.key(high)[..]),
            What::Pair { key, length } => self.put_pair(step, key, length),
            What::Batch { first, count } => {
                let mut batch = Batch::new();
                batch.durability(step.durability);
                batch.delete(&self.single, step.key(first))?;
                for key in first + 1..first + count {
                    batch.put(&self.single, step.key(key), step.value(key, 50))?;
                }
                self.store.write(batch).map(|_| ())
            }
        }
    }

    fn put_pair(&self, step: &Step, key: u32, length: usize) -> duramen::Result<()> {
        let options = TransactionOptions::new().durability(step.durability);
        self.store.transact_with(options, |tx| {
            tx.put(&self.left, step.key(key), step.value(key, length))?;
            tx.append(&self.topic, b"", step.message())?;
            tx.add(&self.sums, b"messages", 1)?;
            tx.put(&self.right, step.key(key), step.value(key, length))
        })
    }
}

/// The keys and messages of one thread, found or expected.
#[derive(Clone, Default, PartialEq, Eq)]
struct State {
    single: BTreeMap<Vec<u8>, Vec<u8>>,
    left: BTreeMap<Vec<u8>, Vec<u8>>,
    right: BTreeMap<Vec<u8>, Vec<u8>>,
    messages: Vec<Vec<u8>>,
}

impl State {
    fn apply(&mut self, step: &Step) {
        match step.what {
            What::Put { key, length } | What::Stream { key, length } => {
                self.single.insert(step.key(key), step.value(key, length));
            }
            What::Delete { key } => {
                self.single.remove(&step.key(key));
            }
            What::DeleteRange { low, high } => {
                self.single
                    .retain(|key, _| !(step.key(low)..step.key(high)).contains(key));
            }
            What::Pair { key, length } => {
                self.left.insert(step.key(key), step.value(key, length));
                self.right.insert(step.key(key), step.value(key, length));
                self.messages.push(step.message());
            }
            What::Batch { first, count } => {
                self.single.remove(&step.key(first));
                self.single
                    .extend((first + 1..first + count).map(|key| (step.key(key), step.value(key, 50))));
            }
        }
    }

    fn found(tables: &Tables, snapshot: &Snapshot, thread: usize, messages: &[common::Pair]) -> State {
        let of_thread = |map| {
            let pairs = forwards(&mut snapshot.prefix(map, prefix(thread)).unwrap());
            assert!(
                pairs.iter().all(|(key, value)| is_whole(key, value)),
                "a value is torn, or under a wrong key"
            );
            pairs.into_iter().collect()
        };
        let own = |(_, message): &common::Pair| message.starts_with(&prefix(thread)).then(|| message.clone());
        State {
            single: of_thread(&tables.single),
            left: of_thread(&tables.left),
            right: of_thread(&tables.right),
            messages: messages.iter().filter_map(own).collect(),
        }
    }

    /// Describes the difference of two states briefly.
    fn difference(&self, other: &State) -> String {
        let maps = [
            ("single", &self.single, &other.single),
            ("left", &self.left, &other.left),
        ];
        let maps = maps.into_iter().chain([("right", &self.right, &other.right)]);
        let step = |value: Option<&Vec<u8>>| value.map(|value| u64::from_be_bytes(value[..8].try_into().unwrap()));
        let mut lines = Vec::new();
        for (name, one, two) in maps {
            for key in one
                .keys()
                .chain(two.keys())
                .filter(|key| one.get(*key) != two.get(*key))
            {
                let (one, two) = (step(one.get(key)), step(two.get(key)));
                lines.push(format!("{name} {}: step {one:?} against {two:?}", key.escape_ascii()));
            }
        }
        lines.truncate(10);
        lines.push(format!(
            "{} messages against {}",
            self.messages.len(),
            other.messages.len()
        ));
        lines.join("\n")
    }
}

// The writing processes, which are killed.

/// Sends a line to the supervisor. One call writes one line, so that a kill does not leave half a line.
fn report(line: std::fmt::Arguments<'_>) {
    std::io::stdout()
        .write_all(format!("@{line}\n").as_bytes())
        .expect("the supervisor listens");
}

#[test]
#[ignore = "the other tests run it as a process of its own"]
fn child_process() {
    let Ok(path) = std::env::var(CHILD_PATH) else { return };
    match std::env::var(CHILD_ROLE).unwrap().as_str() {
        "hold" => hold(&path, Options::new()),
        "hold-alone" => hold(&path, Options::new().exclusive(true)),
        "try" => report(format_args!("{}", attempt(&path, Options::new()))),
        "try-alone" => report(format_args!("{}", attempt(&path, Options::new().exclusive(true)))),
        role => write_for_ever(&path, if role == "restless" { restless() } else { Options::new() }),
    }
}

fn attempt(path: &str, options: Options) -> String {
    options
        .open(path)
        .map_or_else(|error| error.to_string(), |_| "open".into())
}

/// Keeps the store open until the supervisor closes the pipe.
fn hold(path: &str, options: Options) {
    let store = options.open(path).unwrap();
    store.map("held").unwrap().put(b"key", b"value").unwrap();
    report(format_args!("open"));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn write_for_ever(path: &str, options: Options) {
    let seed = std::env::var(CHILD_SEED).unwrap().parse().unwrap();
    let steps = std::env::var(CHILD_STEPS).unwrap();
    let tables = Tables::of(options.open(path).unwrap());
    thread::scope(|scope| {
        for (thread, from) in steps.split(',').map(|step| step.parse::<u64>().unwrap()).enumerate() {
            let tables = &tables;
            scope.spawn(move || {
                for number in from.. {
                    let step = Step::of(seed, thread, number);
                    report(format_args!("begin {thread} {number}"));
                    tables.perform(&step).unwrap();
                    report(format_args!("done {thread} {number}"));
                }
            });
        }
    });
}

fn spawn(path: &Path, role: &str, more: &[(&str, String)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "child_process",
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CHILD_PATH, path)
        .env(CHILD_ROLE, role)
        .envs(more.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the next line that the child reports, or `None` when the child is dead.
fn next_report(lines: &mut impl BufRead) -> Option<String> {
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        if !line.ends_with('\n') {
            return None;
        }
        // The test runner's own output has no `@`, and may precede it on the same line.
        if let Some((_, report)) = line.trim_end().split_once('@') {
            return Some(report.to_string());
        }
    }
}

// The supervisor.

/// When a child is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// After this time from its start, which may be during recovery.
    After(Duration),
    /// After this number of announced steps.
    Steps(u64),
}

struct Ledger {
    seed: u64,
    /// For every thread: the state that must be present, the next step, and the step that was announced and not
    /// acknowledged.
    threads: Vec<(State, u64, Option<u64>)>,
    acknowledged: u64,
    landed: u64,
}

impl Ledger {
    fn new(seed: u64) -> Ledger {
        Ledger {
            seed,
            threads: vec![Default::default(); THREADS],
            acknowledged: 0,
            landed: 0,
        }
    }

    fn note(&mut self, report: &str) {
        let words: Vec<&str> = report.split(' ').collect();
        let [what, thread, number] = words[..] else {
            panic!("{report:?}")
        };
        let (thread, number) = (thread.parse::<usize>().unwrap(), number.parse().unwrap());
        let (state, next, in_flight) = &mut self.threads[thread];
        match what {
            "begin" => {
                assert_eq!((*in_flight, *next), (None, number));
                (*in_flight, *next) = (Some(number), number + 1);
            }
            "done" => {
                assert_eq!(in_flight.take(), Some(number));
                state.apply(&Step::of(self.seed, thread, number));
                self.acknowledged += 1;
            }
            _ => panic!("{report:?}"),
        }
    }

    fn in_flight(&self) -> usize {
        self.threads
            .iter()
            .filter(|(_, _, in_flight)| in_flight.is_some())
            .count()
    }

    /// Runs a writer until the moment comes, and kills it. Returns the number of steps in flight.
    fn run_and_kill(&mut self, path: &Path, role: &str, moment: Moment) -> usize {
        let steps: Vec<String> = self.threads.iter().map(|(_, next, _)| next.to_string()).collect();
        let more = [(CHILD_SEED, self.seed.to_string()), (CHILD_STEPS, steps.join(","))];
        let mut child = spawn(path, role, &more);
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let child = Mutex::new(child);
        let kill = || child.lock().unwrap().kill().unwrap();
        thread::scope(|scope| {
            if let Moment::After(time) = moment {
                scope.spawn(move || {
                    thread::sleep(time);
                    kill();
                });
            }
            let mut announced = 0;
            while let Some(report) = next_report(&mut lines) {
                self.note(&report);
                announced += report.starts_with("begin") as u64;
                if matches!(moment, Moment::Steps(steps) if announced == steps) {
                    kill();
                }
            }
        });
        let output = child.into_inner().unwrap().wait_with_output().unwrap();
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_none(), "the writer ended by itself: {talk}");
        assert!(!talk.contains("panicked"), "{talk}");
        self.in_flight()
    }

    /// Compares the store with the ledger, and records which of the steps in flight took effect.
    fn check(&mut self, tables: &Tables) {
        let snapshot = tables.store.snapshot().unwrap();
        let messages = forwards(&mut snapshot.range(&tables.topic, ..).unwrap());
        assert!(
            messages
                .iter()
                .zip(0u64..)
                .all(|((key, _), number)| *key == number.to_be_bytes()),
            "a gap in the topic"
        );
        let sum = snapshot.get(&tables.sums, b"messages").unwrap();
        let sum = sum.map_or(0, |sum| i64::from_be_bytes((*sum).try_into().unwrap()));
        assert_eq!(
            sum,
            messages.len() as i64,
            "half a transaction: sum and messages differ"
        );
        for (thread, (expected, _, in_flight)) in self.threads.iter_mut().enumerate() {
            let found = State::found(tables, &snapshot, thread, &messages);
            assert!(found.left == found.right, "half a transaction: left and right differ");
            let step = in_flight.take().map(|number| Step::of(self.seed, thread, number));
            if found == *expected {
                continue;
            }
            let mut next = expected.clone();
            step.iter().for_each(|step| next.apply(step));
            let difference = expected.difference(&found);
            assert!(
                found == next,
                "thread {thread}, {step:?} in flight, expected against found:\n{difference}"
            );
            *expected = next;
            self.landed += 1;
        }
        assert_sound(&tables.store);
    }
}

fn kill_while_opening(path: &Path, time: Duration) {
    let mut child = spawn(path, "hold", &[]);
    thread::sleep(time);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn random_moment(rng: &mut Rng) -> Moment {
    match rng.u32(0..10) {
        0 => Moment::After(Duration::from_millis(rng.u64(1..30))),
        1..3 => Moment::After(Duration::from_millis(rng.u64(30..300))),
        3..5 => Moment::Steps(rng.u64(1..20)),
        _ => Moment::Steps(rng.u64(20..1500)),
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_torn_however_often_the_writer_is_killed() {
    let kills = number_from_environment("DURAMEN_KILLS", 25);
    let (place, mut rng) = (Place::new(), Rng::with_seed(seed()));
    let mut ledger = Ledger::new(rng.u64(..));
    let mut with_flight = 0;
    let began = Instant::now();
    for kill in 0..kills {
        let role = if rng.bool() { "restless" } else { "default" };
        let moment = random_moment(&mut rng);
        let in_flight = ledger.run_and_kill(&place.path(), role, moment);
        with_flight += (in_flight > 0) as usize;
        println!(
            "kill {kill}: {role}, {moment:?}, {in_flight} in flight, {} acknowledged",
            ledger.acknowledged
        );
        // Sometimes recovery is killed too, or the next writer recovers without a check in between.
        if rng.u32(0..3) == 0 {
            kill_while_opening(&place.path(), Duration::from_millis(rng.u64(2..25)));
        }
        if rng.u32(0..4) > 0 || in_flight > 0 {
            let options = if rng.bool() { restless() } else { Options::new() };
            let tables = Tables::of(options.open(place.path()).unwrap());
            ledger.check(&tables);
            if rng.bool() {
                tables.store.maintain().unwrap();
                ledger.check(&tables);
            }
        }
    }
    let store = Store::open(place.path()).unwrap();
    ledger.check(&Tables::of(store));
    println!(
        "{kills} kills, {with_flight} with commits in flight, of which {} took effect; {} acknowledged; {:?}",
        ledger.landed,
        ledger.acknowledged,
        began.elapsed()
    );
    assert!(
        10 * with_flight >= 3 * kills,
        "only {with_flight} of {kills} kills met a commit in flight"
    );
    assert!(ledger.acknowledged > 10 * kills as u64);
}

fn assert_refused(options: Options, path: &Path, holder: u32) {
    let error = options.open(path).unwrap_err();
    let Reason::InUse { path, holder: named } = error.reason() else {
        panic!("{error}")
    };
    assert_eq!(named.split(' ').next().unwrap(), holder.to_string());
    assert!(Path::new(path).ends_with("store"), "{path}");
    assert_eq!(error.kind(), Kind::Retry);
    assert!(error.to_string().contains(&format!("process {holder}")), "{error}");
    assert!(error.to_string().contains("close it there"), "{error}");
}

#[test]
fn store_that_a_process_has_to_itself_is_refused_and_the_process_is_named() {
    let place = Place::new();
    let mut child = spawn(&place.path(), "hold-alone", &[]);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(next_report(&mut lines).unwrap(), "open");
    for options in [
        Options::new(),
        Options::new().create(false),
        Options::new().read_only(true),
        Options::new().exclusive(true),
    ] {
        assert_refused(options, &place.path(), child.id());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let store = Store::open(place.path()).unwrap();
    assert_eq!(store.map("held").unwrap().get(b"key").unwrap().unwrap(), b"value");
}

#[test]
fn who_wants_a_store_alone_is_refused_while_another_process_has_it_open_which_is_named() {
    let place = Place::new();
    let mut child = spawn(&place.path(), "hold", &[]);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(next_report(&mut lines).unwrap(), "open");
    assert_refused(Options::new().exclusive(true), &place.path(), child.id());
    // Every other process may open the store, to read and to write.
    let held = |store: &Store| {
        store
            .map("held")
            .unwrap()
            .get(b"key")
            .unwrap()
            .map(|value| value.to_vec())
    };
    let reader = Options::new().read_only(true).open(place.path()).unwrap();
    let writer = Options::new().create(false).open(place.path()).unwrap();
    assert_eq!(held(&reader).unwrap(), b"value");
    writer.map("held").unwrap().put(b"key", b"newer").unwrap();
    assert_eq!(held(&reader).unwrap(), b"newer");
    let error = reader.map("held").unwrap().put(b"key", b"of the reader").unwrap_err();
    assert!(matches!(error.reason(), Reason::ReadOnly), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    writer.map("held").unwrap().put(b"key", b"newest").unwrap();
    writer.close().unwrap();
    assert_eq!(held(&reader).unwrap(), b"newest");
    reader.close().unwrap();
    let store = Options::new().exclusive(true).open(place.path()).unwrap();
    assert_eq!(held(&store).unwrap(), b"newest");
    assert_sound(&store);
}

#[test]
fn process_that_wants_a_store_alone_is_refused_while_anything_of_this_one_holds_it() {
    let place = Place::new();
    let store = Store::open(place.path()).unwrap();
    let ask_as = |role: &str| {
        let mut child = spawn(&place.path(), role, &[]);
        let answer = next_report(&mut BufReader::new(child.stdout.take().unwrap())).unwrap();
        child.wait().unwrap();
        answer
    };
    let ask = || ask_as("try-alone");
    assert_eq!(ask_as("try"), "open");
    let answer = ask();
    assert!(
        answer.contains("in use by process") && answer.contains(&std::process::id().to_string()),
        "{answer}"
    );
    let snapshot = store.snapshot().unwrap();
    store.close().unwrap();
    let answer = ask();
    assert!(answer.contains("in use"), "an open snapshot holds the lock: {answer}");
    drop(snapshot);
    assert_eq!(ask(), "open");
}

#[test]
fn process_that_ends_without_closing_leaves_the_lock_free() {
    let place = Place::new();
    for _ in 0..3 {
        let mut child = spawn(&place.path(), "hold", &[]);
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(next_report(&mut lines).unwrap(), "open");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut child = spawn(&place.path(), "hold", &[]);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(next_report(&mut lines).unwrap(), "open");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_sound(&Store::open(place.path()).unwrap());
}
