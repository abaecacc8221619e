//! A process of several that share a store is killed where it leaves something half done, at every such place; the others
//! go on at once, and find everything that it was told is there, and nothing torn or lost in the store.
//!
//! The test program starts itself again as the process that is killed. What that does follows from the numbers of its steps
//! alone, and it tells of each that was acknowledged, so the test knows what must be there. The process that goes on is the
//! test itself: it has the store open all the time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duramen_engine::planted::{PlantedBug, kill_at, kill_points_left, plant, planted, stop_at};
use duramen_engine::{Batch, Durability, Kind, Maintenance, Map, Options, Reason, Store, TransactionOptions};

const PATH: &str = "DURAMEN_KILLED_PATH";
const POINT: &str = "DURAMEN_KILLED_POINT";
const FROM: &str = "DURAMEN_KILLED_FROM";
const IS_STOPPED: &str = "DURAMEN_KILLED_IS_STOPPED";
/// Steps of one life.
const STEPS: u64 = 60;
const KEYS: u64 = 40;
/// A step that is one batch of short pairs.
const SHORT_STEP: u64 = 2;
/// A step that folds.
const FOLDING_STEP: u64 = 5;

fn options() -> Options {
    Options::new()
        .durability(Durability::Written)
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(64 << 10, 128 << 10)
}

/// The maps that a step changes: the first two alike.
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

fn key(number: u64) -> [u8; 8] {
    (number % KEYS).to_be_bytes()
}

/// What a step stores.
fn value(number: u64) -> Vec<u8> {
    let length = match number % 11 {
        0 => 66_000 + number as usize % 5 * 10_000,
        1 => 3_000,
        _ => 30 + number as usize % 200,
    };
    let mut rng = fastrand::Rng::with_seed(number);
    [
        &number.to_be_bytes()[..],
        &(0..length).map(|_| rng.u8(..)).collect::<Vec<_>>(),
    ]
    .concat()
}

/// One step: a batch, a transaction, deleting a range, or folding.
fn perform(maps: &Maps, number: u64) -> duramen_engine::Result<()> {
    let long = value(number);
    match number % 13 {
        5 => maps.store.maintain(),
        3 | 9 => maps.store.transact_with(TransactionOptions::new(), |tx| {
            tx.put(&maps.left, key(number), &long)?;
            tx.put(&maps.right, key(number), &long)?;
            tx.append(&maps.sums, b"steps", number.to_be_bytes())?;
            tx.add(&maps.sums, b"sum", 1)
        }),
        7 => {
            let mut batch = Batch::new();
            let (low, high) = (key(number), (number % KEYS + 3).to_be_bytes());
            batch.delete_range(&maps.left, &low[..]..&high[..])?;
            batch.delete_range(&maps.right, &low[..]..&high[..])?;
            maps.store.write(batch).map(drop)
        }
        _ => {
            let mut batch = Batch::new();
            for offset in 0..5 {
                batch.put(&maps.left, key(number + offset), &long)?;
                batch.put(&maps.right, key(number + offset), &long)?;
            }
            maps.store.write(batch).map(drop)
        }
    }
}

/// What the steps so far have left.
#[derive(Clone, Default, PartialEq, Eq)]
struct State {
    pairs: BTreeMap<[u8; 8], u64>,
    appended: Vec<u64>,
}

impl State {
    fn after(steps: u64) -> State {
        let mut state = State::default();
        (0..steps).for_each(|number| state.apply(number));
        state
    }

    fn apply(&mut self, number: u64) {
        match number % 13 {
            5 => {}
            3 | 9 => {
                self.pairs.insert(key(number), number);
                self.appended.push(number);
            }
            7 => {
                let (low, high) = (key(number), (number % KEYS + 3).to_be_bytes());
                self.pairs.retain(|key, _| !(low..high).contains(key));
            }
            _ => self.pairs.extend((0..5).map(|offset| (key(number + offset), number))),
        }
    }

    /// What a snapshot shows; it must be whole.
    fn found(maps: &Maps) -> State {
        let snapshot = maps.store.snapshot().expect("a snapshot");
        let pairs_of = |map| {
            let mut cursor = snapshot.range(map, ..).expect("a cursor");
            let mut pairs = BTreeMap::new();
            while let Some((key, found)) = cursor.next().expect("a pair") {
                let number = u64::from_be_bytes(found[..8].try_into().expect("eight bytes"));
                assert!(*found == value(number), "a value is torn");
                pairs.insert(key.try_into().expect("eight bytes"), number);
            }
            pairs
        };
        let pairs = pairs_of(&maps.left);
        assert!(pairs == pairs_of(&maps.right), "half of a commit is missing");
        let mut appended = Vec::new();
        let mut cursor = snapshot.prefix(&maps.sums, b"steps").expect("a cursor");
        while let Some((_, number)) = cursor.next().expect("a pair") {
            appended.push(u64::from_be_bytes((*number).try_into().expect("eight bytes")));
        }
        let sum = snapshot.get(&maps.sums, b"sum").expect("a sum");
        let sum = sum.map_or(0, |sum| i64::from_be_bytes((*sum).try_into().expect("eight bytes")));
        assert_eq!(sum, appended.len() as i64);
        State { pairs, appended }
    }
}

#[test]
#[ignore = "the other tests run it as a process of its own"]
fn child_process() {
    let Ok(path) = std::env::var(PATH) else { return };
    let number = |name| std::env::var(name).expect("a number").parse::<u64>().expect("a number");
    let point = number(POINT) as i64;
    let is_stopped = std::env::var(IS_STOPPED).is_ok();
    if is_stopped {
        // After opening: its first step stops in the middle.
        let maps = Maps::of(options().open(path).expect("a store"));
        tell(0);
        std::io::stdin()
            .read_line(&mut String::new())
            .expect("a line, or an end");
        stop_at(point);
        perform(&maps, number(FROM)).expect("a step");
        return;
    }
    kill_at(point);
    let maps = Maps::of(options().open(path).expect("a store"));
    let from = number(FROM);
    for step in from..from + STEPS {
        perform(&maps, step).expect("a step");
        tell(step + 1);
    }
    let Maps { store, .. } = maps;
    store.close().expect("an end");
    tell((point - kill_points_left()) as u64);
}

/// One call writes one line, so that a kill does not leave half of one.
fn tell(number: u64) {
    let line = format!("@{number}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("a listener");
}

/// This program as the process that is killed or stopped.
fn other_process(path: &Path, point: u64, from: u64) -> Command {
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
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Lets a process live until it comes to a point. Returns the numbers that it told, and whether it was killed there.
fn live(path: &Path, point: u64, from: u64) -> (Vec<u64>, bool) {
    use std::os::unix::process::ExitStatusExt;
    let child = other_process(path, point, from).spawn().expect("a process");
    let output = child.wait_with_output().expect("an end");
    let told = BufReader::new(&output.stdout[..])
        .lines()
        .filter_map(|line| line.expect("text").split_once('@')?.1.parse().ok())
        .collect();
    let is_killed = output.status.signal() == Some(9);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(is_killed || output.status.success(), "the process failed: {said}");
    (told, is_killed)
}

fn number_from_environment(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok().and_then(|number| number.parse().ok());
    given.unwrap_or(otherwise)
}

/// Whether the last commit of a process stands that was killed before must be decided for who opens the store, also while
/// another process is burying the dead, so that it cannot.
fn what_who_opens_finds(path: &Path, is_burying: bool) -> State {
    let bug = planted();
    if is_burying && bug.is_none() {
        plant(Some(PlantedBug::DeadNotBuried));
    }
    let opened = options().open(path);
    plant(bug);
    let maps = Maps::of(opened.expect("a store"));
    let found = State::found(&maps);
    let Maps { store, .. } = maps;
    store.close().expect("an end");
    found
}

/// Kills a process again and again, each time somewhere else, and looks after each kill.
fn kill_again_and_again(rounds: u64, rng: &mut fastrand::Rng) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    // A store that is wrong is not closed on the way out.
    let maps = ManuallyDrop::new(Maps::of(options().open(&path).expect("a store")));
    let mine = ManuallyDrop::new(maps.store.map("mine").expect("a map"));
    let (told, _) = live(&path, i64::MAX as u64, 0);
    let points = *told.last().expect("the number of points");
    let (mut steps, mut kills) = (STEPS, 0);
    for round in 0..rounds {
        let (told, is_killed) = live(&path, rng.u64(1..=points), steps);
        let acknowledged = match is_killed {
            true => told.last().copied().unwrap_or(steps),
            false => steps + STEPS,
        };
        kills += is_killed as u64;
        let decided = (round % 3 == 1).then(|| what_who_opens_finds(&path, rng.bool()));
        // The first to write after the kill puts everything in order.
        mine.put(round.to_be_bytes(), b"went on").expect("a put");
        let found = State::found(&maps);
        let is_as_decided = decided.is_none_or(|decided| decided == found);
        assert!(
            is_as_decided,
            "round {round}: a commit came after somebody had opened the store"
        );
        let (without, with) = (State::after(acknowledged), State::after(acknowledged + 1));
        assert!(
            found == without || is_killed && found == with,
            "round {round}: after step {acknowledged}"
        );
        steps = acknowledged + (found != without) as u64;
        if round % 3 == 2 {
            maps.store.maintain().expect("a fold");
            assert!(State::found(&maps) == found);
            assert_sound(&maps.store);
            let figures = maps.store.stat().expect("figures");
            assert_eq!(
                (figures.processes.len(), figures.snapshots.len()),
                (1, 0),
                "the dead are buried"
            );
            assert_eq!(figures.unfolded_operations, 0, "nothing is promised to the dead");
        }
    }
    println!("{points} points in a life, {kills} kills");
    assert!(kills > 0);
    let found = State::found(&maps);
    drop(ManuallyDrop::into_inner(mine));
    drop(ManuallyDrop::into_inner(maps));
    let maps = Maps::of(options().open(&path).expect("a store"));
    assert!(State::found(&maps) == found);
    assert_sound(&maps.store);
}

fn assert_sound(store: &Store) {
    let report = store.check(&mut |_| ()).expect("a check");
    assert_eq!(report.problems, [""; 0]);
}

fn rng() -> fastrand::Rng {
    let seed = number_from_environment("DURAMEN_SEED", fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

#[test]
fn process_killed_wherever_it_leaves_something_half_done_harms_nobody() {
    kill_again_and_again(number_from_environment("DURAMEN_KILL_POINTS", 80), &mut rng());
}

#[test]
fn repairs_that_are_left_out_are_noticed() {
    let mut rng = rng();
    for bug in [
        PlantedBug::CommitNotFinished,
        PlantedBug::AllocatorNotUndone,
        PlantedBug::TreeNotGivenUp,
        PlantedBug::TreeNotPutInOrder,
        PlantedBug::DeadNotBuried,
        PlantedBug::OpenedUndecided,
    ] {
        plant(Some(bug));
        let ran = catch_unwind(AssertUnwindSafe(|| kill_again_and_again(300, &mut rng)));
        plant(None);
        assert!(ran.is_err(), "nothing was noticed of {bug:?}");
    }
}

fn after_the_short_step() -> State {
    let mut state = State::default();
    state.apply(SHORT_STEP);
    state
}

/// Lets a process go on until it is stopped in the middle of its first commit.
fn stopped_inside_a_commit(path: &Path) -> Child {
    // The first few places of a step that writes short pairs are in the allocator; the tenth is in the commit.
    let mut command = other_process(path, 10, SHORT_STEP);
    command.env(IS_STOPPED, "").stderr(Stdio::null());
    let child = command.spawn().expect("a process");
    assert!(is_stopped(&child), "it was to be stopped");
    child
}

/// Waits until a process is stopped, or has ended.
fn is_stopped(child: &Child) -> bool {
    let mut status = 0;
    let options = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
    let mut found = std::mem::MaybeUninit::uninit();
    // SAFETY: the PID of our own child, which was not waited for. The call only writes to `found`.
    unsafe { libc::waitid(libc::P_PID, child.id(), found.as_mut_ptr(), options) };
    // SAFETY: as above.
    unsafe { libc::waitpid(child.id() as libc::pid_t, &mut status, libc::WUNTRACED | libc::WNOHANG) };
    libc::WIFSTOPPED(status)
}

#[test]
fn process_stopped_inside_a_commit_holds_up_writers_alone_and_goes_on_unharmed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let maps = Maps::of(options().open(&path).expect("a store"));
    maps.left.put(b"before", b"value").expect("a put");
    // A failed test does not wait for suspended processes.
    let (maps, child) = (ManuallyDrop::new(maps), stopped_inside_a_commit(&path));
    let error = maps.left.put(b"mine", b"value").expect_err("somebody has the lock");
    assert!(
        matches!(error.reason(), Reason::Busy { process, .. } if *process == child.id()),
        "{error}"
    );
    assert_eq!(error.kind(), Kind::Retry);
    // Readers do not notice.
    assert_eq!(maps.left.get(b"before").expect("a read").expect("a value"), b"value");
    assert_eq!(maps.left.count().expect("a count"), 1);
    // SAFETY: the number of our own child.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGCONT) };
    let output = child.wait_with_output().expect("an end");
    assert!(output.status.success(), "it did not go on");
    maps.left.put(b"mine", b"value").expect("a put");
    maps.left.delete(b"mine").expect("a delete");
    maps.left.delete(b"before").expect("a delete");
    assert!(
        State::found(&maps) == after_the_short_step(),
        "its step was acknowledged"
    );
    assert_sound(&maps.store);
}

#[test]
fn process_killed_after_it_was_stopped_inside_a_commit_frees_the_lock() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let maps = Maps::of(options().open(&path).expect("a store"));
    let mut child = stopped_inside_a_commit(&path);
    child.kill().expect("a process");
    child.wait().expect("its end");
    maps.sums.put(b"mine", b"value").expect("a put");
    maps.sums.delete(b"mine").expect("a delete");
    let found = State::found(&maps);
    // Its record was in the log.
    assert!(found == after_the_short_step());
    maps.store.maintain().expect("a fold");
    assert_sound(&maps.store);
}

/// A process is killed at one point, and the process that repairs what it left is suspended at another point, while a third
/// one folds, and buries the first. Then the second goes on, or is killed too.
fn stop_an_heir(point: u64, heir_step: u64, heir_point: u64, is_heir_killed: bool) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    // A store that is wrong is not closed on the way out.
    let maps = ManuallyDrop::new(Maps::of(options().open(&path).expect("a store")));
    let mut command = other_process(&path, heir_point, heir_step);
    command.env(IS_STOPPED, "").stdin(Stdio::piped()).stderr(Stdio::null());
    let mut heir = command.spawn().expect("a process");
    let mut told = BufReader::new(heir.stdout.take().expect("what it tells")).lines();
    let has_opened = told.any(|line| line.is_ok_and(|line| line.ends_with("@0")));
    assert!(has_opened, "it was to open the store");
    let (told, is_killed) = live(&path, point, 0);
    assert!(is_killed, "it was to be killed");
    let acknowledged = told.last().copied().unwrap_or(0);
    writeln!(heir.stdin.take().expect("a way to tell it")).expect("a listener");
    let is_heir_stopped = is_stopped(&heir);
    std::thread::scope(|scope| {
        let folding = scope.spawn(|| maps.store.maintain());
        // Long enough for who does not wait.
        std::thread::sleep(Duration::from_millis(100));
        let signal = if is_heir_killed { libc::SIGKILL } else { libc::SIGCONT };
        if is_heir_stopped {
            // SAFETY: the PID of our own child, which was not waited for.
            unsafe { libc::kill(heir.id() as libc::pid_t, signal) };
        }
        // Where it was not stopped its end was waited for.
        let _ = heir.wait();
        folding.join().expect("an end").expect("a fold");
    });
    let found = State::found(&maps);
    let is_possible = [acknowledged, acknowledged + 1].into_iter().any(|steps| {
        let (without, mut with) = (State::after(steps), State::after(steps));
        with.apply(heir_step);
        found == with || is_heir_stopped && is_heir_killed && found == without
    });
    assert!(is_possible, "after step {acknowledged}");
    maps.store.maintain().expect("a fold");
    assert!(State::found(&maps) == found);
    assert_sound(&maps.store);
    drop(ManuallyDrop::into_inner(maps));
}

/// The pages of its values would be taken for pages that never came into the log.
#[test]
fn nobody_is_buried_before_it_is_decided_whether_his_last_commit_stands() {
    // The first commit has long values. These are places in it; the heir comes to a few in the allocator, and then to those where
    // it puts in order what it took over.
    for point in [42, 47, 52] {
        (3..10).for_each(|heir_point| stop_an_heir(point, SHORT_STEP, heir_point, false));
    }
}

#[test]
fn process_stopped_wherever_it_puts_in_order_what_a_dead_one_left_harms_nobody() {
    let mut rng = rng();
    for _ in 0..number_from_environment("DURAMEN_KILL_POINTS", 30) {
        // Fewer than there are in a life.
        let (heir_step, places) = if rng.bool() {
            (SHORT_STEP, 60)
        } else {
            (FOLDING_STEP, 400)
        };
        let (point, heir_point, is_heir_killed) = (rng.u64(1..1_000), rng.u64(1..places), rng.bool());
        println!("{point}, {heir_step}, {heir_point}, {is_heir_killed}");
        stop_an_heir(point, heir_step, heir_point, is_heir_killed);
    }
}
