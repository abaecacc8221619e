//! `duramen backup --follow`: a machine that is lost at any moment loses what was not sent, and nothing else.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{BINARY, Scratch, seed};
use duramen::Store;
use serde_json::Value;

/// The time of a commit is that of the kernel's coarse clock, which is behind by a tick at most.
const TICK_MS: u64 = 10;

/// A follower, which ends with the value.
struct Follower {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(scratch: &Scratch, arguments: &[&str]) -> Follower {
        let mut child = scratch
            .command(BINARY)
            .args(["backup", "shop", "backup", "--follow", "--json"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Follower { child, lines }
    }

    /// What it tells next: an export, or a segment of the log.
    fn next(&mut self) -> Value {
        let line = self.lines.next().expect("it goes on").unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A put that was acknowledged: its commit is at most this one, and it was made between these two times.
#[derive(Debug)]
struct Put {
    commit: u64,
    began_ms: u64,
    ended_ms: u64,
}

/// Puts ascending numbers, one a commit, until it is told to stop.
fn put_numbers(store: &Store, puts: &mut Vec<Put>, is_over: &AtomicBool) {
    let map = store.map("numbers").unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let began_ms = now_ms();
        map.put("newest", puts.len().to_string()).unwrap();
        map.put(format!("{:06}", puts.len() % 1_000), "old").unwrap();
        let ended_ms = now_ms();
        puts.push(Put {
            commit: store.snapshot().unwrap().commit(),
            began_ms,
            ended_ms,
        });
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The number that a restored store has, and what the import told.
fn restored(scratch: &Scratch, to: &str, arguments: &[&str]) -> (usize, Value) {
    let told = scratch.done(&[&["import", "backup", to, "--json"], arguments].concat());
    scratch.done(&["check", to]);
    let newest = scratch.done(&["get", to, "newest", "--map", "numbers"]);
    (newest.text().trim().parse().unwrap(), told.json().remove(0))
}

#[test]
fn a_follower_that_is_killed_loses_what_was_not_sent_and_nothing_else() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.path("shop")).unwrap();
    let mut rng = fastrand::Rng::with_seed(seed());
    let mut puts = Vec::new();
    for round in 0..3 {
        // A new export, and a log of its own, in each round.
        let mut follower = Follower::start(&scratch, &["--ship-every", "1s"]);
        assert_eq!(follower.next()["number"], round + 1);
        let is_over = AtomicBool::new(false);
        let told: Vec<Value> = std::thread::scope(|scope| {
            scope.spawn(|| put_numbers(&store, &mut puts, &is_over));
            let told = (0..3).map(|_| follower.next()).collect();
            std::thread::sleep(Duration::from_millis(rng.u64(..1_000)));
            drop(follower);
            is_over.store(true, Ordering::Relaxed);
            told
        });
        // The newest state has what was told of, and is that of one commit.
        let (number, state) = restored(&scratch, &format!("newest-{round}"), &[]);
        let commit = state["commit"].as_u64().unwrap();
        assert!(commit >= told[2]["commit"].as_u64().unwrap(), "{state} after {told:?}");
        assert!(puts[number].commit - 1 <= commit, "{number} in {state}");
        assert!(
            puts.get(number + 1).is_none_or(|next| next.commit > commit),
            "{number} in {state}"
        );
        // The end of a second shows what was committed by then, and nothing later.
        let second = told[0]["committed_ms"].as_u64().unwrap() / 1_000;
        let (number, state) = restored(&scratch, &format!("until-{round}"), &["--until", &second.to_string()]);
        let end_ms = second * 1_000 + 999;
        assert!(
            puts[number].began_ms <= end_ms + TICK_MS,
            "{:?} in {state}",
            puts[number]
        );
        assert!(
            puts.get(number + 1).is_none_or(|next| next.ended_ms >= end_ms),
            "{number} in {state}, then {:?}",
            puts.get(number + 1)
        );
        assert_eq!(state["number"], round + 1);
    }
    let listed = scratch.done(&["exports", "backup"]);
    assert!(listed.text().contains("segments"), "{}", listed.text());
    let first = scratch.done(&["exports", "backup", "--json"]).json().remove(0);
    assert!(first["segments"].as_u64().unwrap() >= 3 && first["log_bytes"].as_u64().unwrap() > 0);
    scratch.done(&["verify", "backup"]);
}

#[test]
fn a_long_log_brings_the_next_export() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.path("shop")).unwrap();
    let map = store.map("map").unwrap();
    let mut follower = Follower::start(&scratch, &["--log-bytes", "1000", "--every", "1h"]);
    assert_eq!(follower.next()["number"], 1);
    map.put("key", vec![1; 5_000]).unwrap();
    let segment = follower.next();
    assert_eq!((&segment["number"], &segment["segment"]), (&1.into(), &1.into()));
    map.put("key", "2").unwrap();
    let export = follower.next();
    assert_eq!((&export["number"], &export["segment"]), (&2.into(), &Value::Null));
}

#[test]
fn without_a_log_there_are_exports_only() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.path("shop")).unwrap();
    let map = store.map("map").unwrap();
    let mut follower = Follower::start(&scratch, &["--no-log", "--every", "1s"]);
    for number in 1..4u64 {
        map.put("key", number.to_string()).unwrap();
        let export = follower.next();
        assert_eq!((&export["number"], &export["segment"]), (&number.into(), &Value::Null));
    }
}

/// A place that cannot be written for a time: the follower exports again when it can.
#[test]
fn a_follower_goes_on_when_the_place_is_there_again() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.path("shop")).unwrap();
    let map = store.map("map").unwrap();
    map.put("key", "1").unwrap();
    let mut follower = Follower::start(&scratch, &["--every", "1s"]);
    assert_eq!(follower.next()["number"], 1);
    let place = scratch.path("backup");
    let away = scratch.path("away");
    std::fs::rename(&place, &away).unwrap();
    // No directory can be made there.
    std::fs::write(&place, "in the way").unwrap();
    map.put("key", "2").unwrap();
    std::thread::sleep(Duration::from_millis(2_500));
    std::fs::remove_file(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    map.put("key", "3").unwrap();
    while follower.next()["commit"].as_u64().unwrap() < store.snapshot().unwrap().commit() - 1 {}
    drop(follower);
    scratch.done(&["import", "backup", "copy"]);
    assert_eq!(scratch.done(&["get", "copy", "key", "--map", "map"]).text(), "3\n");
}
