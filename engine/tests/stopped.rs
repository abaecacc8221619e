//! A process of several that share a store is stopped (`SIGSTOP`) at places where it has a lock or is in the middle of a
//! sync. No process waits without end then, and none takes anything from it: every call of the others returns, with
//! success or with the number of the process that was stopped. Then it goes on, and everything is right.
//!
//! The test program starts itself again as the suspended process.

use std::io::{BufRead, BufReader, Write};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use duramen_engine::planted::{kill_points_left, stop_at};
use duramen_engine::{Batch, Durability, Kind, Maintenance, Options, Reason, Result, Store, TransactionOptions};

const PATH: &str = "DURAMEN_STOPPED_PATH";
const POINT: &str = "DURAMEN_STOPPED_POINT";
const STEP: &str = "DURAMEN_STOPPED_STEP";
const FAR: i64 = 1 << 40;
/// Longer than anybody may wait for a process that is stopped, with several locks one after the other.
const WAIT_MAX: Duration = Duration::from_secs(40);
/// A reader waits for no process: this is for busy machines.
const READ_MAX: Duration = Duration::from_secs(3);

fn options(maintenance: Maintenance) -> Options {
    Options::new()
        .durability(Durability::Written)
        .maintenance(maintenance)
        .overwrite_freed(true)
        .generation_bytes(64 << 10, 128 << 10)
}

fn put(store: &Store, key: &[u8], length: usize, durability: Durability) -> Result<()> {
    let mut batch = Batch::new();
    batch.durability(durability);
    batch.put(&store.map("map")?, key, vec![7; length])?;
    store.write(batch).map(drop)
}

/// What the process does that is stopped in it.
fn perform(store: &Store, step: &str) -> Result<()> {
    match step {
        "sync" => put(store, b"its own", 100, Durability::Synced),
        "sync with values" => put(store, b"its own", 100_000, Durability::Synced),
        "exclusive" => store.transact_with(TransactionOptions::new().exclusive(), |tx| {
            tx.put(&store.map("map")?, b"its own", b"value")?;
            // SAFETY: it only stops this process.
            unsafe { libc::raise(libc::SIGSTOP) };
            Ok(())
        }),
        "read" => {
            let map = store.map("map")?;
            tell("has a handle");
            let mut byte = 0u8;
            // SAFETY: one byte goes into one byte.
            unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
            assert!(map.get(b"before")?.is_some());
            Ok(())
        }
        "exclusive and alive" => store.transact_with(TransactionOptions::new().exclusive(), |tx| {
            tx.put(&store.map("map")?, b"its own", b"value")?;
            tell("inside");
            let mut byte = 0u8;
            // Not by `std::io::stdin`, which the child's main loop has locked.
            // SAFETY: one byte goes into one byte.
            unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
            Ok(())
        }),
        _ => store.maintain(),
    }
}

#[test]
#[ignore = "the other tests run it as a process of its own"]
fn child_process() {
    let Ok(path) = std::env::var(PATH) else { return };
    let point = std::env::var(POINT).expect("a point").parse().expect("a number");
    let step = std::env::var(STEP).expect("a step");
    let store = options(Maintenance::Manual).open(path).expect("a store");
    let mut lines = std::io::stdin().lines();
    tell("ready");
    lines.next();
    stop_at(point);
    perform(&store, &step).expect("a step that nobody disturbs");
    tell(&format!("done {}", point - kill_points_left()));
    lines.next();
    put(&store, b"afterwards", 100, Durability::Synced).expect("a put after it went on");
    store.close().expect("an end");
}

fn tell(what: &str) {
    let line = format!("@{what}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("a listener");
}

/// The other process. On the way out of a test that failed it is killed.
struct Other {
    child: Child,
    told: Receiver<String>,
    input: Option<ChildStdin>,
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Other {
    fn start(path: &Path, step: &str, point: i64) -> Other {
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
            .env(STEP, step)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("what it tells"));
        let (teller, told) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
                if let Some((_, said)) = line.split_once('@') {
                    let _ = teller.send(said.to_string());
                }
            }
        });
        let other = Other { child, told, input };
        assert_eq!(other.hear(), "ready");
        other
    }

    fn hear(&self) -> String {
        self.told.recv_timeout(WAIT_MAX).expect("it tells something")
    }

    fn go(&mut self) {
        writeln!(self.input.as_mut().expect("a way to tell it")).expect("a listener");
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is stopped.
    fn is_stopped(&self) {
        let mut status = 0;
        // SAFETY: the PID of our own child, which was not waited for.
        unsafe { libc::waitpid(self.id() as libc::pid_t, &mut status, libc::WUNTRACED) };
        assert!(libc::WIFSTOPPED(status), "it was to be stopped");
    }

    fn goes_on(&self) {
        // SAFETY: the number of our own child.
        unsafe { libc::kill(self.id() as libc::pid_t, libc::SIGCONT) };
    }
}

/// How many places a step comes to.
fn points_of(step: &str) -> i64 {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let store = prepared(&path, Maintenance::Manual);
    let mut other = Other::start(&path, step, FAR);
    other.go();
    let told = other.hear();
    let points = told.strip_prefix("done ").and_then(|count| count.parse().ok());
    other.go();
    assert!(other.child.wait().expect("an end").success());
    drop(ManuallyDrop::into_inner(store));
    points.expect("a number")
}

fn prepared(path: &Path, maintenance: Maintenance) -> ManuallyDrop<Store> {
    let store = options(maintenance).open(path).expect("a store");
    for number in 0..300u32 {
        put(&store, &number.to_be_bytes(), 100, Durability::Written).expect("a put");
    }
    // Some of it unsynced and unfolded, and some not.
    store.sync().expect("a sync");
    put(&store, b"before", 100, Durability::Written).expect("a put");
    // A failed test does not wait for suspended processes.
    ManuallyDrop::new(store)
}

/// The outcome of a call while a process was suspended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Nothing happened.
    Refused,
    /// It was committed, and is not known to be durable.
    NotSynced,
}

fn outcome(what: &str, done: Result<()>, stopped: u32) -> Outcome {
    let Err(error) = done else { return Outcome::Done };
    // Of these two, one folds and waits for the stopped process, and the other one waits for that.
    let folds = ["maintain", "open and close"].contains(&what.rsplit(": ").next().unwrap_or_default());
    let is_behind_it = |process: u32| process == stopped || folds && process == std::process::id();
    match *error.reason() {
        Reason::Busy { process, .. } if is_behind_it(process) && error.kind() == Kind::Retry => Outcome::Refused,
        Reason::NotSynced { process, .. } if process == stopped && error.kind() == Kind::Sync => Outcome::NotSynced,
        _ => panic!("{what}: {error}"),
    }
}

/// What the others do meanwhile, each in a thread of its own.
const CALLS: [&str; 6] = ["written", "synced", "values", "sync", "maintain", "open and close"];

fn call(path: &Path, store: &Store, what: &str) -> Result<()> {
    match what {
        "written" => put(store, b"written", 100, Durability::Written),
        "synced" => put(store, b"synced", 100, Durability::Synced),
        "values" => put(store, b"values", 100_000, Durability::Synced),
        "sync" => store.sync(),
        "maintain" => store.maintain(),
        _ => options(Maintenance::Background).open(path)?.close(),
    }
}

/// Stops a process at a point of a step, and returns what came of all calls of the others.
fn while_stopped(step: &'static str, point: i64) -> Vec<Outcome> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let store = prepared(&path, Maintenance::Manual);
    let mut other = Other::start(&path, step, point);
    other.go();
    other.is_stopped();
    let began = Instant::now();
    let map = store.maps().get("map").expect("a read").expect("a map");
    assert!(map.get(b"before").expect("a read").is_some());
    assert!(began.elapsed() < READ_MAX, "{step} {point}: a reader waited");
    let (sender, outcomes) = channel();
    for (number, what) in CALLS.into_iter().enumerate() {
        let (sender, store, path) = (sender.clone(), Store::clone(&store), path.clone());
        std::thread::spawn(move || {
            let done = call(&path, &store, what);
            drop(store);
            let _ = sender.send((number, done));
        });
    }
    let mut found: Vec<Option<Outcome>> = CALLS.iter().map(|_| None).collect();
    for _ in CALLS {
        match outcomes.recv_timeout(WAIT_MAX) {
            Ok((number, done)) => {
                let what = format!("{step} {point}: {}", CALLS[number]);
                found[number] = Some(outcome(&what, done, other.id()));
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                panic!("{step} {point}: somebody waits without end: {found:?}")
            }
        }
    }
    let found: Vec<Outcome> = found.into_iter().map(|found| found.expect("all came back")).collect();
    other.goes_on();
    assert!(other.hear().starts_with("done"), "{step} {point}: it goes on");
    other.go();
    assert!(other.child.wait().expect("an end").success(), "{step} {point}");
    for (what, found) in CALLS.into_iter().zip(&found).take(3) {
        let value = map.get(what.as_bytes()).expect("a read");
        assert_eq!(value.is_some(), *found != Outcome::Refused, "{step} {point}: {what}");
    }
    let expected = if step == "maintain" { "afterwards" } else { "its own" };
    assert!(map.get(expected.as_bytes()).expect("a read").is_some());
    for key in ["synced again", "values again"] {
        let length = if key.starts_with('v') { 100_000 } else { 100 };
        put(&store, key.as_bytes(), length, Durability::Synced).expect("a put");
    }
    store.maintain().expect("a fold");
    let report = store.check(&mut |_| ()).expect("a check");
    assert_eq!(report.problems, [""; 0], "{step} {point}");
    drop(map);
    ManuallyDrop::into_inner(store).close().expect("an end");
    found
}

/// Runs several points at once: they are slow because all processes wait.
fn while_stopped_at(step: &'static str, points: &[i64]) -> Vec<(i64, Vec<Outcome>)> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = points
            .iter()
            .map(|&point| scope.spawn(move || (point, while_stopped(step, point))))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Somewhere among the places of a step, and its last ones.
fn some_of(points: i64, some: usize, last: i64) -> Vec<i64> {
    let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}, {points} points");
    let mut rng = fastrand::Rng::with_seed(seed);
    let random = (0..some).map(|_| rng.i64(1..=points - last)).collect::<Vec<_>>();
    random.into_iter().chain(points - last + 1..=points).collect()
}

/// Places in the sync of the log: when it was begun, when a log file is synced, when all are.
const POINTS_OF_SYNC: i64 = 3;

#[test]
fn process_stopped_in_a_sync_of_the_log_holds_up_only_what_needs_a_sync() {
    let points = points_of("sync");
    for (point, found) in while_stopped_at("sync", &some_of(points, 0, POINTS_OF_SYNC)) {
        let [written, synced, values, sync, ..] = &found[..] else {
            panic!("{point}: {found:?}")
        };
        assert_eq!(*written, Outcome::Done, "{point}: {found:?}");
        // A commit stands although it cannot be said to be durable.
        assert_eq!(
            (synced, values),
            (&Outcome::NotSynced, &Outcome::NotSynced),
            "{point}: {found:?}"
        );
        assert_eq!(*sync, Outcome::Refused, "{point}: {found:?}");
    }
}

#[test]
fn nobody_waits_without_end_for_a_process_stopped_in_a_commit() {
    let points = points_of("sync with values");
    while_stopped_at("sync with values", &some_of(points, 8, POINTS_OF_SYNC));
}

#[test]
fn nobody_waits_without_end_for_a_process_stopped_in_a_fold() {
    let points = points_of("maintain");
    while_stopped_at("maintain", &some_of(points, 9, 2));
}

/// Commits go on until the log is full, and then say who is in the way. Returns how many there were.
fn fill_the_log(maintenance: Maintenance, point: i64) -> u32 {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let store = prepared(&path, maintenance);
    let mut other = Other::start(&path, "maintain", point);
    other.go();
    other.is_stopped();
    let (sender, filled) = channel();
    let writer = Store::clone(&store);
    std::thread::spawn(move || {
        let mut written = 0u32;
        let refused = loop {
            match put(&writer, &written.to_be_bytes(), 1_000, Durability::Written) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 10_000, "the log has a bound");
        };
        drop(writer);
        let _ = sender.send((written, refused));
    });
    let (written, refused) = filled.recv_timeout(WAIT_MAX).expect("nobody waits without end");
    assert_eq!(outcome("a put", Err(refused), other.id()), Outcome::Refused);
    other.goes_on();
    other.hear();
    put(&store, b"after", 1_000, Durability::Written).expect("a put");
    other.go();
    assert!(other.child.wait().expect("an end").success());
    let map = store.map("map").expect("a map");
    for number in 0..written {
        let value = map.get(number.to_be_bytes()).expect("a read").expect("a value");
        assert_eq!(value.len(), 1_000, "{number}");
    }
    drop(map);
    ManuallyDrop::into_inner(store).close().expect("an end");
    written
}

#[test]
fn commits_end_with_busy_once_the_log_is_full_while_the_one_who_folds_is_stopped() {
    let points = points_of("maintain");
    for maintenance in [Maintenance::Manual, Maintenance::Background] {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|part| scope.spawn(move || fill_the_log(maintenance, 1 + part * (points - 1) / 8)))
                .collect();
            let written = threads.into_iter().map(|thread| thread.join().expect("an end"));
            // Not where it has another lock as well, which commits need sooner.
            assert!(written.max() > Some(100), "the log takes more than that");
        });
    }
}

/// A process that is stopped in an exclusive transaction, and a store of this one.
fn stopped_with_the_store_to_itself() -> (tempfile::TempDir, ManuallyDrop<Store>, Other) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let store = prepared(&path, Maintenance::Manual);
    let mut other = Other::start(&path, "exclusive", FAR);
    other.go();
    other.is_stopped();
    (directory, store, other)
}

/// Other writers while a process with exclusive access is suspended.
fn write_beside_exclusive(store: &Store) -> [Result<()>; 2] {
    let alone = || store.transact_with(TransactionOptions::new().exclusive(), |_| Ok(()));
    std::thread::scope(|scope| {
        let write = scope.spawn(|| put(store, b"beside", 100, Durability::Written));
        let also_alone = scope.spawn(alone);
        [write, also_alone].map(|thread| thread.join().expect("no panic"))
    })
}

#[test]
fn nobody_waits_without_end_for_a_process_stopped_in_an_exclusive_transaction() {
    let (_directory, store, mut other) = stopped_with_the_store_to_itself();
    for done in write_beside_exclusive(&store) {
        assert_eq!(outcome("beside", done, other.id()), Outcome::Refused);
    }
    other.goes_on();
    other.hear();
    for done in write_beside_exclusive(&store) {
        done.expect("nobody has the store to himself");
    }
    other.go();
    assert!(other.child.wait().expect("an end").success());
    let map = store.map("map").expect("a map");
    for key in [&b"its own"[..], b"beside", b"afterwards"] {
        assert!(map.get(key).expect("a read").is_some(), "{key:?}");
    }
}

#[test]
fn reader_stopped_while_it_learns_of_other_maps_is_in_no_writers_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let store = prepared(&path, Maintenance::Manual);
    let mut other = Other::start(&path, "read", 1);
    other.go();
    assert_eq!(other.hear(), "has a handle");
    store.map("another").expect("a map");
    other.go();
    other.is_stopped();
    put(&store, b"beside", 100, Durability::Written).expect("a put");
    store.maps().drop("another").expect("a commit that changes maps");
    other.goes_on();
    assert_eq!(other.hear(), "done 1");
    other.go();
    assert!(other.child.wait().expect("an end").success());
    drop(ManuallyDrop::into_inner(store));
}

#[test]
fn waiting_for_the_exclusive_transaction_of_a_process_that_goes_on_ends_and_names_the_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    drop(ManuallyDrop::into_inner(prepared(&path, Maintenance::Manual)));
    let timeout = Duration::from_millis(300);
    let store = options(Maintenance::Manual)
        .lock_timeout(timeout)
        .open(&path)
        .expect("a store");
    let store = ManuallyDrop::new(store);
    let mut other = Other::start(&path, "exclusive and alive", FAR);
    other.go();
    assert_eq!(other.hear(), "inside");
    for done in write_beside_exclusive(&store) {
        let error = done.expect_err("another process has the store to itself");
        assert_eq!(error.kind(), Kind::Retry);
        let Reason::LockTimeout {
            process, name, waited, ..
        } = error.reason()
        else {
            panic!("{error}")
        };
        assert_eq!(*process, other.id());
        assert!(!name.is_empty() && *waited >= timeout, "{error}");
        assert!(
            error.to_string().contains(&format!("process {process} ({name})")),
            "{error}"
        );
    }
    assert!(
        store
            .map("map")
            .expect("a map")
            .get(b"before")
            .expect("a read")
            .is_some()
    );
    other.go();
    other.hear();
    for done in write_beside_exclusive(&store) {
        done.expect("the transaction is over");
    }
    other.go();
    assert!(other.child.wait().expect("an end").success());
    drop(ManuallyDrop::into_inner(store));
}

#[test]
fn process_killed_in_an_exclusive_transaction_is_in_nobodys_way_even_if_nobody_folds() {
    let (_directory, store, mut other) = stopped_with_the_store_to_itself();
    other.child.kill().expect("an end");
    other.child.wait().expect("an end");
    for done in write_beside_exclusive(&store) {
        done.expect("whoever had the store to himself is dead");
    }
    let map = store.map("map").expect("a map");
    assert!(map.get(b"its own").expect("a read").is_none());
}
