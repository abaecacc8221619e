//! What the suites share: stores on a simulated disk, whose clock only moves when it is told to.

#![allow(dead_code, reason = "each suite is a program of its own and uses a part of this")]

use std::time::Duration;

use duramen_engine::{Durability, Error, Maintenance, Options, Store};
use duramen_io::SimDisk;
use duramen_topic::{Start, Topic, TopicError, TopicOptions, Topics, TopicsOptions};

/// Seed from the environment, or one that is printed when the test fails.
pub fn seed() -> u64 {
    let given = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    seed
}

/// Options of a store in which little work goes a long way: generations hold a few records.
pub fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(96 << 10, 128 << 10)
        .durability(Durability::Written)
}

/// The store on a disk.
pub fn open(disk: &SimDisk) -> Store {
    options().open_on(disk.platform()).expect("the store opens")
}

/// The topics of a store, which nobody trims in the background.
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

/// The facts of an error about topics.
pub fn facts<T: std::fmt::Debug>(result: Result<T, Error>) -> TopicError {
    let error = result.expect_err("an error");
    TopicError::of(&error).unwrap_or_else(|| panic!("{error:?}")).clone()
}

/// The store must be sound.
pub fn check(store: &Store) {
    let report = store.check(&mut |_| ()).expect("the check runs");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

pub const SECOND: Duration = Duration::from_secs(1);
