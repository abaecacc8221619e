//! Deduplication by the id of a message, within a window of time.

use std::collections::BTreeMap;

use crate::common::{SECOND, all, check, facts, one_topic, options, text};
use duramen_engine::{Error, Map, Reason, Store, TransactionOptions};
use duramen_io::SimDisk;
use duramen_topic::{
    Message, Outcome, Start, Topic, TopicBatch, TopicError, TopicOptions, TopicWrites, Topics, TopicsOptions,
};
use fastrand::Rng;

fn windowed() -> TopicOptions {
    TopicOptions::new().deduplicate_for(10 * SECOND)
}

fn is_published(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Published(_))
}

/// Number of rows that are stored for ids.
fn rows(store: &Store) -> u64 {
    store.existing_reserved_map("index").unwrap().unwrap().count().unwrap()
}

#[test]
fn an_id_is_published_once_within_the_window() {
    let disk = SimDisk::new(1);
    let (store, _, topic) = one_topic(&disk);
    topic.configure(windowed()).unwrap();
    let message = |payload: &'static str, id: &'static str| Message::new(payload).id(id);
    assert!(is_published(topic.publish_by_id(message("a", "1")).unwrap()));
    topic.publish(b"between").unwrap();
    disk.advance(9 * SECOND);
    assert_eq!(
        topic.publish_by_id(message("b", "1")).unwrap(),
        Outcome::Duplicate(Some(0))
    );
    assert!(is_published(topic.publish_by_id(message("c", "2")).unwrap()));
    assert_eq!(
        topic.read(Start::Last(1), 1).unwrap().get(0).unwrap().id(),
        Some(&b"2"[..])
    );
    // After a kill, and after the window.
    let killed = crate::common::open(&disk.kill());
    let again = crate::common::topics(&killed).topic("orders").unwrap();
    assert_eq!(
        again.publish_by_id(message("d", "2")).unwrap(),
        Outcome::Duplicate(Some(2))
    );
    disk.advance(SECOND);
    assert!(is_published(topic.publish_by_id(message("e", "1")).unwrap()));
    assert_eq!(
        topic.publish_by_id(message("f", "1")).unwrap(),
        Outcome::Duplicate(Some(3))
    );
    assert_eq!(
        topic.publish_by_id(message("g", "2")).unwrap(),
        Outcome::Duplicate(Some(2))
    );
    let texts: Vec<String> = all(&topic).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["a", "between", "c", "e"]);
    // Each id has two rows, until the window is over.
    assert_eq!(rows(&store), 4);
    disk.advance(9 * SECOND);
    topic.trim().unwrap();
    assert_eq!(rows(&store), 2);
    disk.advance(SECOND);
    topic.trim().unwrap();
    assert_eq!(rows(&store), 0);
}

#[test]
fn ids_of_many_messages_are_forgotten_and_take_no_room() {
    let disk = SimDisk::new(2);
    let (store, topics, topic) = one_topic(&disk);
    topic.configure(windowed()).unwrap();
    for round in 0..5 {
        for number in 0..1500 {
            let id = format!("{round}.{number}");
            assert!(is_published(topic.publish_by_id(Message::new(b"x").id(&id)).unwrap()));
        }
        disk.advance(10 * SECOND);
        topic.trim().unwrap();
        assert_eq!(rows(&store), 0);
    }
    topic.publish_by_id(Message::new(b"x").id(b"1")).unwrap();
    topic.configure(TopicOptions::new()).unwrap();
    assert_eq!(rows(&store), 0, "without the option there are no ids");
    topic.configure(windowed()).unwrap();
    topic.publish_by_id(Message::new(b"x").id(b"1")).unwrap();
    topics.delete("orders").unwrap();
    assert_eq!(rows(&store), 0);
}

#[test]
fn transactions_publish_an_id_once_or_not_at_all() {
    let (store, _, topic) = one_topic(&SimDisk::new(3));
    topic.configure(windowed()).unwrap();
    let message = Message::new(b"x").id(b"1");
    let mut late = store.begin(TransactionOptions::new()).unwrap();
    assert!(late.publish_by_id(&topic, message.clone()).unwrap().is_some());
    assert!(
        late.publish_by_id(&topic, message.clone()).unwrap().is_none(),
        "its own"
    );
    let mut dropped = store.begin(TransactionOptions::new()).unwrap();
    dropped.publish_by_id(&topic, message.clone()).unwrap();
    drop(dropped);
    assert!(is_published(topic.publish_by_id(message.clone()).unwrap()));
    let refused = late.commit().unwrap_err();
    assert!(matches!(refused.reason(), Reason::Conflict { .. }), "{refused}");
    let ticket = store.transact(|tx| tx.publish_by_id(&topic, message.clone())).unwrap();
    assert!(ticket.is_none());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..100 {
                    topic
                        .publish_by_id(Message::new(b"y").id(&format!("{number}")))
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(topic.describe().unwrap().next, 101 - 1, "0 to 99, of which 1 was there");
}

#[test]
fn ids_need_the_option_and_the_call_that_looks_for_them() {
    let disk = SimDisk::new(4);
    let (store, topics, topic) = one_topic(&disk);
    let message = Message::new(b"x").id(b"1");
    let missing = |error| match error {
        TopicError::OptionMissing { option, .. } => assert_eq!(option, "deduplicate_for"),
        other => panic!("{other:?}"),
    };
    missing(facts(topic.publish_by_id(message.clone())));
    missing(facts(topic.publish_after(SECOND, message.clone())));
    topic.configure(windowed()).unwrap();
    let invalid = |error| assert!(matches!(error, TopicError::InvalidMessage { .. }), "{error:?}");
    invalid(facts(topic.publish_by_id(b"x")));
    invalid(facts(topic.publish(message.clone())));
    invalid(facts(topic.publish_all([message.clone()])));
    invalid(facts(topic.publish_async(message.clone()).map(drop)));
    invalid(facts(
        store.transact(|tx| tx.publish(&topic, message.clone()).map(drop)),
    ));
    invalid(facts(
        duramen_engine::Batch::new().publish(&topic, message.clone()).map(drop),
    ));
    let none = TopicOptions::new().deduplicate_for(std::time::Duration::ZERO);
    assert!(matches!(
        facts(topic.configure(none)),
        TopicError::InvalidOptions { .. }
    ));
    // A delayed message is a duplicate when it is due.
    topic.publish_after(SECOND, message.clone()).unwrap();
    topic.publish_after(2 * SECOND, message.clone()).unwrap();
    disk.advance(2 * SECOND);
    assert_eq!(topics.publish_due().unwrap(), 1);
    assert_eq!(topic.publish_by_id(message).unwrap(), Outcome::Duplicate(Some(0)));
    assert_eq!(topic.scheduled().unwrap().count, 0);
}

struct Opened {
    store: Store,
    topic: Topic,
    /// Id -> how often a transaction published it.
    counts: Map,
}

fn open(disk: &SimDisk) -> Result<Opened, Error> {
    let store = options().open_on(disk.platform())?;
    let topics = Topics::open_with(&store, TopicsOptions::new().background(false))?;
    Ok(Opened {
        topic: topics.ensure("orders", windowed())?,
        counts: store.map("counts")?,
        store,
    })
}

fn step(opened: &Opened, disk: &SimDisk, rng: &mut Rng) -> Result<(), Error> {
    let id = rng.u32(..40).to_string();
    match rng.u32(..100) {
        0..60 => opened.store.transact(|tx| {
            if tx.publish_by_id(&opened.topic, Message::new(&id).id(&id))?.is_some() {
                tx.add(&opened.counts, id.as_bytes(), 1)?;
            }
            Ok(())
        }),
        60..75 => opened.topic.trim().map(drop),
        75..80 => opened.store.sync(),
        80..83 => opened.store.maintain(),
        _ => {
            disk.advance(SECOND);
            Ok(())
        }
    }
}

/// Asserts that messages exist as often as transactions published them, and never twice within the window.
fn compare(opened: &Opened) {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    let mut times = BTreeMap::new();
    let next = opened.topic.describe().unwrap().next;
    let messages = opened.topic.read(Start::Beginning, usize::MAX).unwrap();
    assert_eq!(messages.len() as u64, next);
    for message in messages.iter() {
        let id = text(message.payload());
        if let Some(before) = times.insert(id.clone(), message.time_millis()) {
            assert!(message.time_millis() - before >= 10_000, "{id} twice within the window");
        }
        *counts.entry(id).or_default() += 1;
    }
    let snapshot = opened.store.snapshot().unwrap();
    let mut cursor = snapshot.range(&opened.counts, ..).unwrap();
    let mut told = BTreeMap::new();
    while let Some((key, value)) = cursor.next().unwrap() {
        told.insert(text(key), i64::from_be_bytes((*value).try_into().unwrap()));
    }
    assert_eq!(counts, told);
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    for _ in 0..rng.u32(1..6) {
        if rng.u32(..4) != 0 {
            disk.stop_after(rng.u64(..600));
        }
        let opened = open(&disk).and_then(|opened| {
            for _ in 0..rng.u32(..300) {
                step(&opened, &disk, &mut rng)?;
            }
            Ok(opened)
        });
        let is_power_cut = rng.bool();
        disk = crate::common::crash(&disk, is_power_cut, &mut rng);
        drop(opened);
        let again = open(&disk).expect("the store opens again");
        compare(&again);
        check(&again.store);
    }
    let opened = open(&disk).expect("the store opens at last");
    disk.advance(20 * SECOND);
    opened.topic.trim().unwrap();
    assert_eq!(rows(&opened.store), 0);
}

#[test]
fn crashes_publish_no_id_twice_within_the_window() {
    crate::common::for_each_seed(run);
}
