//! The stream job of the examples is killed at random moments, goes on with another number of workers, and is put back to
//! checkpoints now and then. Its results are there exactly once.
//!
//! The test program starts itself again as the job. The job reports each batch over a pipe and waits for an answer, so the
//! supervisor decides how far it comes before it is killed. What the results must be, follows from the clicks alone.

mod common;

#[path = "../examples/stream_job.rs"]
mod stream_job;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{Place, assert_sound, number_from_environment, restless, seed};
use duramen::encoding::{decode, encode};
use duramen::topic::Start;
use duramen::{Options, Store};
use fastrand::Rng;
use stream_job::{END, Job, LATENESS_SECONDS, WINDOW_SECONDS, second_of_window};

const CHILD_PATH: &str = "DURAMEN_CHILD_PATH";
const CHILD_WORKERS: &str = "DURAMEN_CHILD_WORKERS";
/// The only worker that the child runs; not set: all of them.
const CHILD_WORKER: &str = "DURAMEN_CHILD_WORKER";

/// Most batches that a job reports before it is killed.
const BATCHES_MAX: u64 = 8;
/// Batches that a job may process between its last report and its end.
const BATCHES_UNANSWERED: u64 = 6;
const WORKERS_MAX: u16 = 4;

/// Users and seconds.
type Clicks = Vec<(String, u64)>;

/// Returns clicks in the order in which they are published: not the order of their times, and some come too late.
fn clicks(count: u64, rng: &mut Rng) -> Clicks {
    let click = |number: u64| {
        let user = format!("user {}", rng.u32(0..12));
        let delay = match rng.u32(0..40) {
            0 => rng.u64(0..3 * WINDOW_SECONDS),
            _ => rng.u64(0..LATENESS_SECONDS),
        };
        (user, (200 + number / 2).saturating_sub(delay))
    };
    (0..count).map(click).collect()
}

/// What the job must find.
#[derive(Debug, Default, PartialEq)]
struct Expected {
    /// Clicks by user and window.
    windows: BTreeMap<(String, u64), u64>,
    late: BTreeMap<String, u64>,
}

fn expected(clicks: &Clicks) -> Expected {
    let mut expected = Expected::default();
    let mut newest = 0u64;
    for (user, second) in clicks {
        let window = second_of_window(*second);
        if window + WINDOW_SECONDS + LATENESS_SECONDS <= newest {
            *expected.late.entry(user.clone()).or_default() += 1;
        } else {
            *expected.windows.entry((user.clone(), window)).or_default() += 1;
        }
        newest = newest.max(*second);
    }
    expected
}

/// Options of the job: everything in the background, or as programs have it.
fn options(is_restless: bool) -> Options {
    match is_restless {
        true => restless(),
        false => Options::new().durability(duramen::Durability::Written),
    }
}

// The child.

#[test]
#[ignore = "the job that the supervisor starts as a child process"]
fn child_process() {
    let path = std::env::var(CHILD_PATH).expect("the path of the store");
    let workers: u16 = std::env::var(CHILD_WORKERS).unwrap().parse().unwrap();
    let store = options(workers.is_multiple_of(2)).open(path).unwrap();
    let job = Job::open(&store).unwrap();
    println!("@open");
    let answers = Mutex::new(std::io::stdin());
    let report = |offset| {
        println!("@{offset}");
        let mut answer = String::new();
        answers.lock().unwrap().read_line(&mut answer).unwrap();
        true
    };
    match std::env::var(CHILD_WORKER) {
        Ok(index) => job.run_worker(index.parse().unwrap(), workers, &report).unwrap(),
        Err(_) => job.run(workers, &report).unwrap(),
    }
    println!("@end");
}

fn spawn(path: &Path, workers: u16, only: Option<u16>) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "child_process",
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CHILD_PATH, path)
        .env(CHILD_WORKERS, workers.to_string())
        .envs(only.map(|index| (CHILD_WORKER, index.to_string())))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

// The supervisor.

/// Returns clicks as messages, with the end.
fn messages(clicks: &Clicks) -> Vec<Vec<u8>> {
    let of_clicks = clicks.iter().map(|(user, second)| encode(&(user.as_str(), *second)));
    of_clicks.chain([encode(&("", END))]).collect()
}

/// Publishes clicks in a new store.
fn publish(path: &Path, clicks: &Clicks) {
    let store = options(false).open(path).unwrap();
    Job::open(&store)
        .unwrap()
        .clicks
        .publish_all(&messages(clicks))
        .unwrap();
    store.close().unwrap();
}

/// Runs the job, or only one worker of it, and kills it after some batches. Returns whether it came to its end before.
fn run_and_kill(path: &Path, workers: u16, only: Option<u16>, rng: &mut Rng) -> bool {
    let mut child = spawn(path, workers, only);
    let mut answers = child.stdin.take().unwrap();
    // Kept until the child is dead: writing to a pipe without a reader is an error.
    let mut reports = BufReader::new(child.stdout.take().unwrap()).lines();
    // Before the store is open, or after some batches.
    let batches = rng.u64(0..=BATCHES_MAX);
    // A batch takes 100 microseconds or some milliseconds, so the times have all these magnitudes.
    let magnitudes = if batches == 0 { 8..16 } else { 4..13 };
    let magnitude = 1 << rng.u32(magnitudes);
    let wait = Duration::from_micros(rng.u64(0..magnitude));
    let mut reported = 0;
    let mut is_over = false;
    if batches > 0 {
        for report in reports.by_ref() {
            let report = report.unwrap();
            // The test runner's own output has no `@`, and may precede it on the same line.
            match report.split_once('@').map(|(_, report)| report) {
                None | Some("open") => continue,
                Some("end") => is_over = true,
                Some(_) => reported += 1,
            }
            if is_over || reported == batches {
                break;
            }
            writeln!(answers, "go on").unwrap();
        }
    }
    if !is_over {
        // The pipe is closed when the child failed; its own words are below.
        for _ in 0..BATCHES_UNANSWERED {
            let _ = writeln!(answers, "go on");
        }
        thread::sleep(wait);
        child.kill().unwrap();
    }
    drop(answers);
    let output = child.wait_with_output().unwrap();
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(!talk.contains("panicked"), "{talk}");
    assert!(output.status.code().is_none_or(|code| code == 0), "{talk}");
    is_over
}

fn assert_exactly_once(store: &Store, clicks: &Clicks) {
    let job = Job::open(store).unwrap();
    let expected = expected(clicks);
    let mut windows = BTreeMap::new();
    let mut results = job.results.subscribe(Start::Beginning).unwrap();
    while let Some(result) = results.next_message(Duration::ZERO).unwrap() {
        let (user, window, clicks) = decode::<(String, u64, u64)>(result.payload()).unwrap();
        let earlier = windows.insert((user.clone(), window), clicks);
        assert_eq!(earlier, None, "two results for {user} and {window}");
    }
    let late = job.late().unwrap();
    let late = late
        .iter(&store.snapshot().unwrap())
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(Expected { windows, late }, expected);
}

#[test]
fn results_are_there_exactly_once_however_often_the_job_is_killed() {
    let (place, mut rng) = (Place::new(), Rng::with_seed(seed()));
    let clicks = clicks(number_from_environment("DURAMEN_CLICKS", 3_000) as u64, &mut rng);
    let expected = expected(&clicks);
    assert!(!expected.late.is_empty() && expected.windows.len() > 100);
    publish(&place.path(), &clicks);
    let (mut kills, mut restores) = (0, 0);
    while !run_and_kill(&place.path(), rng.u16(1..=WORKERS_MAX), None, &mut rng) {
        kills += 1;
        // Putting it back is for a few times only, or the job would not come to its end.
        if restores < 4 && rng.u32(0..8) == 0 {
            let store = options(rng.bool()).open(place.path()).unwrap();
            let job = Job::open(&store).unwrap();
            let kept = job.state.checkpoints().unwrap();
            if !kept.is_empty() {
                let id = kept[rng.usize(0..kept.len())].id;
                println!("kill {kills}: back to checkpoint {id} of {}", kept[kept.len() - 1].id);
                job.state.restore(id).unwrap();
                restores += 1;
            }
        }
    }
    println!("{kills} kills, {restores} times back");
    let batches = clicks.len() as u64 / 32;
    let batches_max = BATCHES_MAX + BATCHES_UNANSWERED + u64::from(WORKERS_MAX);
    assert!(kills >= batches / batches_max - 1, "{kills} kills");
    let store = Store::open(place.path()).unwrap();
    assert_exactly_once(&store, &clicks);
    let job = Job::open(&store).unwrap();
    // Once more, when there is nothing left to count.
    job.run(3, &|_| panic!("a batch after the end")).unwrap();
    assert_exactly_once(&store, &clicks);
    assert_sound(&store);

    // From the oldest checkpoint the job comes to the same results. A kill before retention leaves more of them than three.
    let kept = job.state.checkpoints().unwrap();
    println!("{} checkpoints", kept.len());
    if let Some(oldest) = kept.first() {
        job.state.restore(oldest.id).unwrap();
        drop(job);
        store.close().unwrap();
        let store = options(false).open(place.path()).unwrap();
        Job::open(&store).unwrap().run(3, &|_| true).unwrap();
        assert_exactly_once(&store, &clicks);
        assert_sound(&store);
    }
}

#[test]
fn results_are_there_exactly_once_when_each_worker_is_a_process_that_is_killed_alone() {
    let (place, mut rng) = (Place::new(), Rng::with_seed(seed()));
    let clicks = clicks(number_from_environment("DURAMEN_CLICKS", 3_000) as u64 / 3, &mut rng);
    let path = place.path();
    publish(&path, &clicks);
    let mut kills = 0;
    loop {
        let workers = rng.u16(1..=WORKERS_MAX);
        let rngs: Vec<Rng> = (0..workers).map(|_| rng.fork()).collect();
        let ended = thread::scope(|scope| {
            let path = &path;
            let children: Vec<_> = (0..workers)
                .zip(rngs)
                .map(|(index, mut rng)| scope.spawn(move || run_and_kill(path, workers, Some(index), &mut rng)))
                .collect();
            let ended = children.into_iter().map(|child| child.join().unwrap());
            ended.filter(|is_over| *is_over).count()
        });
        kills += workers as usize - ended;
        if ended == workers as usize {
            break;
        }
    }
    println!("{kills} kills");
    assert!(
        kills >= clicks.len() / 32 / (BATCHES_MAX + BATCHES_UNANSWERED + 1) as usize,
        "{kills} kills"
    );
    let store = Store::open(place.path()).unwrap();
    assert_exactly_once(&store, &clicks);
    assert_sound(&store);
}

#[test]
fn second_worker_with_the_same_key_groups_stops() {
    let store = Store::temporary().unwrap();
    let job = Job::open(&store).unwrap();
    let clicks = clicks(200, &mut Rng::with_seed(seed()));
    job.clicks.publish_all(&messages(&clicks)).unwrap();
    // After its first batch, the first worker waits until the second one has counted everything.
    let is_first_batch = AtomicBool::new(true);
    let stopped = job.run(1, &|_| {
        if is_first_batch.swap(false, Ordering::Relaxed) {
            Job::open(&store).unwrap().run(1, &|_| true).unwrap();
        }
        true
    });
    let stopped = stopped.unwrap_err();
    assert!(stopped.to_string().contains("another worker"), "{stopped}");
    assert_exactly_once(&store, &clicks);
}

#[test]
fn example_runs() {
    stream_job::main().expect("the example");
}
