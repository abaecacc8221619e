//! Two processes write the rows of the same sequences, each where it remembers to have written the last ones. One of them
//! is killed again and again, at every place where it leaves something half done; the other one goes on with what it
//! remembers, and no number is given twice, no row lost, and every row can be found. Who follows the sequences there
//! is told of all that was appended.
//!
//! As in `killed.rs` the test program starts itself again as the process that is killed, and what that does follows from
//! the numbers of its steps alone.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duramen_engine::planted::{kill_at, kill_points_left};
use duramen_engine::{Durability, Item, Listener, Maintenance, Map, Options, Result, STAMP_BYTES, Sequence, Store};

const PATH: &str = "DURAMEN_KILLED_PATH";
const POINT: &str = "DURAMEN_KILLED_POINT";
const FROM: &str = "DURAMEN_KILLED_FROM";
/// Steps of one life.
const STEPS: u64 = 20;
const PREFIXES: [&[u8]; 3] = [b"b/", b"d/", b"f/"];

fn options() -> Options {
    Options::new()
        .durability(Durability::Written)
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(64 << 10, 128 << 10)
}

/// What a process has open.
struct Opened {
    store: Store,
    heads: Map,
    pairs: Map,
    sequences: [Sequence; 3],
}

impl Opened {
    fn of(store: Store) -> Opened {
        let (heads, bodies) = (
            store.reserved_map("heads").expect("a map"),
            store.reserved_map("bodies").expect("a map"),
        );
        let sequence = |prefix| Sequence::new(&heads, &bodies, prefix, "a sequence").expect("a sequence");
        Opened {
            sequences: PREFIXES.map(sequence),
            pairs: store.map("pairs").expect("a map"),
            heads,
            store,
        }
    }
}

/// What is done in one commit.
struct Step {
    /// Which sequences are appended to, and how often.
    appends: Vec<usize>,
    /// Prefixes beside those of the sequences, so that leaves with their counters and rows are divided.
    beside: Vec<Vec<u8>>,
    pairs: Vec<u64>,
    is_fold: bool,
}

impl Step {
    fn new(number: u64) -> Step {
        Step::after(number, number, 0)
    }

    /// A step of its own kind after so many of the other process and of this one.
    fn after(kind: u64, theirs: u64, mine: u64) -> Step {
        let mut rng = fastrand::Rng::with_seed(kind);
        let first = rng.usize(..PREFIXES.len());
        let appends = match rng.u8(..4) {
            0 => vec![first; 2],
            1 => vec![first, (first + 1) % PREFIXES.len(), first],
            _ => vec![first],
        };
        // Each right before the counter of a sequence, in whose leaf there is soon no room any more.
        let beside = |(place, rng): (u8, &mut fastrand::Rng)| {
            let before = [b"b.", b"d.", b"f."][rng.usize(..3)];
            [&before[..], &theirs.to_be_bytes(), &mine.to_be_bytes(), &[place]].concat()
        };
        Step {
            appends,
            beside: (0..rng.u8(..12)).map(|place| beside((place, &mut rng))).collect(),
            pairs: (0..rng.usize(..3)).map(|_| rng.u64(..300)).collect(),
            is_fold: mine == 0 && theirs % 47 == 11,
        }
    }

    fn perform(&self, opened: &Opened, text: &str) -> Result<()> {
        if self.is_fold {
            return opened.store.maintain();
        }
        let head = [&[0; STAMP_BYTES], text.as_bytes()].concat();
        let item = Item {
            head: &head,
            body: None,
        };
        if self.beside.is_empty() && self.pairs.is_empty() && self.appends.iter().all(|which| *which == self.appends[0])
        {
            let items = vec![item; self.appends.len()];
            return opened.sequences[self.appends[0]]
                .append(&items, Durability::Written)
                .map(drop);
        }
        opened.store.transact(|tx| {
            for &which in &self.appends {
                tx.append_to(&opened.sequences[which], item)?;
            }
            let savepoint = tx.savepoint()?;
            tx.put(&opened.pairs, b"taken back", text.as_bytes())?;
            tx.append_to(&opened.sequences[0], item)?;
            tx.rollback_to(&savepoint)?;
            for prefix in &self.beside {
                tx.append(&opened.heads, prefix, text.as_bytes())?;
            }
            for pair in &self.pairs {
                tx.put(&opened.pairs, pair.to_be_bytes(), text.as_bytes())?;
            }
            Ok(())
        })
    }
}

/// What must be there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    rows: [Vec<String>; 3],
    beside: BTreeMap<Vec<u8>, Vec<String>>,
    pairs: BTreeMap<u64, String>,
}

impl State {
    fn apply(&mut self, step: &Step, text: &str) {
        if step.is_fold {
            return;
        }
        step.appends
            .iter()
            .for_each(|which| self.rows[*which].push(text.into()));
        for prefix in &step.beside {
            self.beside.entry(prefix.clone()).or_default().push(text.into());
        }
        self.pairs.extend(step.pairs.iter().map(|pair| (*pair, text.into())));
    }

    fn found(opened: &Opened) -> State {
        let snapshot = opened.store.snapshot().expect("a snapshot");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let mut state = State::default();
        let mut cursor = snapshot.range(&opened.heads, ..).expect("a cursor");
        while let Some((key, value)) = cursor.next().expect("a pair") {
            let (prefix, number) = key.split_at(key.len() - 8);
            let rows = match PREFIXES.iter().position(|known| *known == prefix) {
                Some(which) => {
                    state.rows[which].push(text(&value[STAMP_BYTES..]));
                    &state.rows[which]
                }
                None => {
                    let rows = state.beside.entry(prefix.to_vec()).or_default();
                    rows.push(text(&value));
                    rows
                }
            };
            let number = u64::from_be_bytes(number.try_into().expect("eight bytes"));
            assert_eq!(number + 1, rows.len() as u64, "a gap in {prefix:?}");
        }
        let mut cursor = snapshot.range(&opened.pairs, ..).expect("a cursor");
        while let Some((key, value)) = cursor.next().expect("a pair") {
            let pair = u64::from_be_bytes(key.try_into().expect("eight bytes"));
            state.pairs.insert(pair, text(&value));
        }
        for (sequence, rows) in opened.sequences.iter().zip(&state.rows) {
            let counted = snapshot
                .sequence_state(sequence)
                .expect("a counter")
                .expect("it has begun");
            assert_eq!(counted.next, rows.len() as u64, "counted otherwise");
            let bytes = rows.iter().map(|text| STAMP_BYTES + text.len()).sum::<usize>();
            assert_eq!(counted.bytes, bytes as u64);
            // Each row by itself: a walk and a find may go different ways.
            for (number, text) in rows.iter().enumerate() {
                let key = [sequence.prefix(), &(number as u64).to_be_bytes()].concat();
                let row = snapshot.get(&opened.heads, &key).expect("a read").expect("a row");
                assert_eq!(&row[STAMP_BYTES..], text.as_bytes());
            }
        }
        state
    }
}

fn theirs(number: u64) -> String {
    format!("theirs {number}")
}

#[test]
#[ignore = "the other test runs it as a process of its own"]
fn child_process() {
    let Ok(path) = std::env::var(PATH) else { return };
    let number = |name| std::env::var(name).expect("a number").parse::<u64>().expect("a number");
    let (point, from) = (number(POINT) as i64, number(FROM));
    kill_at(point);
    let opened = Opened::of(options().open(path).expect("a store"));
    for step in from..from + STEPS {
        Step::new(step).perform(&opened, &theirs(step)).expect("a step");
        tell(step + 1);
    }
    let Opened { store, .. } = opened;
    store.close().expect("an end");
    tell((point - kill_points_left()) as u64);
}

/// One call writes one line, so that a kill does not leave half of one.
fn tell(number: u64) {
    let line = format!("@{number}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("a listener");
}

/// Lets a process live until it comes to a point. Returns the numbers that it told, and whether it was killed there.
fn live(path: &Path, point: u64, from: u64) -> (Vec<u64>, bool) {
    use std::os::unix::process::ExitStatusExt;
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([
        "--exact",
        "child_process",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
        .env(PATH, path)
        .env(POINT, point.to_string())
        .env(FROM, from.to_string());
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let output = child.expect("a process").wait_with_output().expect("an end");
    let told = BufReader::new(&output.stdout[..])
        .lines()
        .filter_map(|line| line.expect("text").split_once('@')?.1.parse().ok())
        .collect();
    let is_killed = output.status.signal() == Some(9);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(is_killed || output.status.success(), "the process failed: {said}");
    (told, is_killed)
}

/// How far the sequences have come.
fn counted(opened: &Opened) -> [u64; 3] {
    let snapshot = opened.store.snapshot().expect("a snapshot");
    let state = |sequence| snapshot.sequence_state(sequence).expect("a counter");
    opened
        .sequences
        .each_ref()
        .map(|sequence| state(sequence).expect("it has begun").next)
}

/// A follower of the sequences, which reads them only when it is told to.
struct Follower<'a> {
    opened: &'a Opened,
    listener: Arc<Listener>,
    seen: Mutex<[u64; 3]>,
    is_over: AtomicBool,
}

impl<'a> Follower<'a> {
    fn of(opened: &'a Opened) -> Follower<'a> {
        let listener = Listener::new();
        for (which, sequence) in opened.sequences.iter().enumerate() {
            opened.store.listen(sequence.bell(), &listener, which as u64);
        }
        Follower {
            opened,
            listener,
            seen: Mutex::default(),
            is_over: AtomicBool::new(false),
        }
    }

    fn follow(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            self.opened.sequences.iter().for_each(|sequence| sequence.bell().arm());
            let counted = counted(self.opened);
            if std::mem::replace(&mut *self.seen.lock().expect("nobody panics"), counted) == counted {
                self.listener.wait(Duration::from_secs(3_600));
            }
        }
    }

    /// Whether it sees what is there now, soon.
    fn sees_all(&self) -> bool {
        let (goal, began) = (counted(self.opened), Instant::now());
        while *self.seen.lock().expect("nobody panics") != goal {
            if began.elapsed() > Duration::from_secs(30) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Follows while `live` lives, and sees all that it leaves.
    fn beside<T>(&self, live: impl FnOnce() -> T) -> T {
        self.is_over.store(false, Ordering::SeqCst);
        let (lived, sees_all) = std::thread::scope(|scope| {
            scope.spawn(|| self.follow());
            let lived = live();
            let sees_all = self.sees_all();
            self.is_over.store(true, Ordering::SeqCst);
            self.listener.tell(u64::MAX);
            (lived, sees_all)
        });
        assert!(sees_all, "nobody told of what a process appended before it was killed");
        lived
    }
}

fn number_from_environment(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok().and_then(|number| number.parse().ok());
    given.unwrap_or(otherwise)
}

#[test]
fn who_remembers_where_rows_are_goes_on_after_another_process_was_killed() {
    let seed = number_from_environment("DURAMEN_SEED", fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    // A store that is wrong is not closed on the way out.
    let opened = ManuallyDrop::new(Opened::of(options().open(&path).expect("a store")));
    let begin = |sequence: &Sequence| opened.store.transact(|tx| tx.begin_sequence(sequence));
    opened
        .sequences
        .iter()
        .for_each(|sequence| begin(sequence).expect("a beginning"));
    let mut state = State::default();
    let (told, _) = live(&path, i64::MAX as u64, 0);
    let points = *told.last().expect("the number of points");
    (0..STEPS).for_each(|step| state.apply(&Step::new(step), &theirs(step)));
    assert_eq!(State::found(&opened), state);
    let follower = Follower::of(&opened);
    let (mut steps, mut kills, mut mine) = (STEPS, 0, 1);
    for round in 0..number_from_environment("DURAMEN_KILL_POINTS", 80) {
        let point = rng.u64(1..=points);
        let (told, is_killed) = follower.beside(|| live(&path, point, steps));
        let acknowledged = match is_killed {
            true => told.last().copied().unwrap_or(steps),
            false => steps + STEPS,
        };
        kills += u64::from(is_killed);
        (steps..acknowledged).for_each(|step| state.apply(&Step::new(step), &theirs(step)));
        // The first writer repairs everything, and then writes where the dead process did.
        let text = |mine: u64| format!("mine {mine}");
        let first = Step::after(rng.u64(..), steps, mine);
        first.perform(&opened, &text(mine)).expect("a step");
        let mut with = state.clone();
        with.apply(&Step::new(acknowledged), &theirs(acknowledged));
        for state in [&mut state, &mut with] {
            state.apply(&first, &text(mine));
        }
        let found = State::found(&opened);
        assert!(
            found == state || is_killed && found == with,
            "round {round}: after step {acknowledged}"
        );
        steps = acknowledged + u64::from(is_killed && found == with && with != state);
        state = found;
        mine += 1;
        for _ in 0..rng.u64(..12) {
            let step = Step::after(rng.u64(..), steps, mine);
            step.perform(&opened, &text(mine)).expect("a step");
            state.apply(&step, &text(mine));
            mine += 1;
        }
        assert_eq!(State::found(&opened), state, "round {round}");
    }
    println!("{points} points in a life, {kills} kills");
    assert!(kills > 0);
    opened.store.maintain().expect("a fold");
    assert_eq!(State::found(&opened), state);
    let report = opened.store.check(&mut |_| ()).expect("a check");
    assert_eq!(report.problems, [""; 0]);
    drop(ManuallyDrop::into_inner(opened));
    let opened = Opened::of(options().open(&path).expect("a store"));
    assert_eq!(State::found(&opened), state);
}
