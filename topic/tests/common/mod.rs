//! Helpers of all suites: stores on a simulated disk, whose clock moves only on request.

#![allow(dead_code, reason = "each suite is a program of its own and uses a part of this")]

use std::time::Duration;

use duramen_engine::{Durability, Error, Maintenance, Options, Store};
use duramen_io::SimDisk;
use duramen_topic::{Start, Topic, TopicError, TopicOptions, Topics, TopicsOptions};

/// Seed from the environment, or a random seed that is printed when the test fails.
pub fn seed() -> u64 {
    let given = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    seed
}

/// Runs a test for many seeds: 60, or the number in `DURAMEN_RUNS`. After a panic, the message tells how to repeat the
/// run.
pub fn for_each_seed(run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let first = seed();
    let runs = std::env::var("DURAMEN_RUNS").ok().and_then(|runs| runs.parse().ok());
    for number in 0..runs.unwrap_or(60) {
        let seed = first.wrapping_add(number);
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "DURAMEN_SEED={seed} DURAMEN_RUNS=1");
    }
}

/// Simulates the end of the process or of the machine of a store.
pub fn crash(disk: &SimDisk, is_power_cut: bool, rng: &mut fastrand::Rng) -> SimDisk {
    match is_power_cut {
        true => disk.power_cut(rng.u64(..)),
        false => disk.kill(),
    }
}

/// Options of a store with small generations: they hold a few records, so little work reaches many states.
pub fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(96 << 10, 128 << 10)
        .durability(Durability::Written)
}

/// Opens the store on a disk.
pub fn open(disk: &SimDisk) -> Store {
    options().open_on(disk.platform()).expect("the store opens")
}

/// The topics of a store, without a background thread that trims them.
pub fn topics(store: &Store) -> Topics {
    Topics::open_with(store, TopicsOptions::new().background(false)).expect("topics open")
}

/// A store with one topic that keeps everything.
pub fn one_topic(disk: &SimDisk) -> (Store, Topics, Topic) {
    let store = open(disk);
    let topics = topics(&store);
    let topic = topics.ensure("orders", TopicOptions::new()).expect("a topic");
    (store, topics, topic)
}

/// Publishes `count` messages, each with its number as its payload.
pub fn publish(topic: &Topic, count: u64) {
    for number in 0..count {
        topic.publish(&number.to_string()).expect("it is published");
    }
}

/// All payloads that the topic keeps, which must be dense, with their offsets.
pub fn all(topic: &Topic) -> Vec<(u64, String)> {
    let description = topic.describe().expect("the topic is there");
    let mut found = Vec::new();
    let mut from = description.first;
    while from < description.next {
        let messages = topic.read(Start::Offset(from), 1000).expect("messages");
        for message in messages.iter() {
            assert_eq!(message.offset(), from);
            found.push((from, text(message.payload())));
            from += 1;
        }
    }
    found
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the facts of a topic error.
pub fn facts<T: std::fmt::Debug>(result: Result<T, Error>) -> TopicError {
    let error = result.expect_err("an error");
    TopicError::of(&error).unwrap_or_else(|| panic!("{error:?}")).clone()
}

/// Asserts that the store is sound.
pub fn check(store: &Store) {
    let report = store.check(&mut |_| ()).expect("the check runs");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

pub const SECOND: Duration = Duration::from_secs(1);
