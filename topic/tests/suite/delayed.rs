//! Delayed messages: published when they are due, once, in order, even after crashes.

use std::time::{Duration, SystemTime};

use crate::common::{SECOND, all, check, facts, one_topic, open, options, text};
use duramen_engine::{Error, Map, Options, Reason, Store, TransactionOptions};
use duramen_io::SimDisk;
use duramen_topic::{Message, Scheduled, Start, Topic, TopicError, TopicOptions, TopicWrites, Topics, TopicsOptions};
use fastrand::Rng;

fn texts(topic: &Topic) -> Vec<String> {
    all(topic).into_iter().map(|(_, text)| text).collect()
}

fn now(store: &Store) -> SystemTime {
    SystemTime::UNIX_EPOCH + store.wall_clock()
}

#[test]
fn messages_are_published_when_they_are_due_in_the_order_of_scheduling() {
    let disk = SimDisk::new(1);
    let (store, topics, topic) = one_topic(&disk);
    let at = now(&store) + 10 * SECOND;
    let long = vec![b'x'; 200_000];
    topic.publish_after(20 * SECOND, b"last").unwrap();
    for number in 0..600 {
        topic.publish_at(at, &format!("{number}")).unwrap();
    }
    topic
        .publish_at(at, Message::new(&long).key(b"key").header("a", b"b"))
        .unwrap();
    topic.publish_after(5 * SECOND, b"first").unwrap();
    let waiting = topic.scheduled().unwrap();
    assert_eq!((waiting.count, waiting.next), (603, Some(now(&store) + 5 * SECOND)));
    assert_eq!(topics.publish_due().unwrap(), 0);
    disk.advance(5 * SECOND - Duration::from_millis(1));
    assert_eq!(topics.publish_due().unwrap(), 0);
    disk.advance(Duration::from_millis(1));
    assert_eq!(topics.publish_due().unwrap(), 1);
    disk.advance(5 * SECOND);
    assert_eq!(topics.publish_due().unwrap(), 601);
    let read = topic.read(Start::Offset(601), 1).unwrap();
    let message = read.get(0).unwrap();
    assert_eq!(
        (message.key(), message.header("a")),
        (Some(&b"key"[..]), Some(&b"b"[..]))
    );
    assert!(message.payload() == long && message.time() == at);
    drop((topic, topics, store));
    // Later than their due times: the first check publishes all.
    let disk = disk.kill();
    disk.advance(100 * SECOND);
    let store = open(&disk);
    let topics = crate::common::topics(&store);
    let topic = topics.topic("orders").unwrap();
    assert_eq!(topics.publish_due().unwrap(), 1);
    let mut expected: Vec<String> = (0..600).map(|number| number.to_string()).collect();
    expected.insert(0, "first".into());
    expected.extend([text(&long), "last".into()]);
    assert!(texts(&topic) == expected);
    let waiting = topic.scheduled().unwrap();
    assert_eq!((waiting.count, waiting.next), (0, None));
    check(&store);
}

#[test]
fn a_cancelled_message_is_never_published_and_a_published_one_cannot_be_cancelled() {
    let disk = SimDisk::new(2);
    let (store, topics, topic) = one_topic(&disk);
    let other = topics.create("other", TopicOptions::new()).unwrap();
    let [kept, gone] = ["kept", "gone"].map(|payload| topic.publish_after(SECOND, payload).unwrap());
    assert!(!other.cancel(&gone).unwrap(), "it belongs to another topic");
    let read_back: Scheduled = gone.to_string().parse().unwrap();
    assert_eq!(read_back, gone);
    assert!(topic.cancel(&read_back).unwrap());
    assert!(!topic.cancel(&gone).unwrap());
    // A transaction that is rolled back neither schedules nor cancels.
    let mut dropped = store.begin(TransactionOptions::new()).unwrap();
    dropped.publish_at(&topic, now(&store), b"never").unwrap();
    assert!(dropped.cancel(&topic, &kept).unwrap());
    drop(dropped);
    // A cancellation that commits too late conflicts with the move.
    let mut late = store.begin(TransactionOptions::new()).unwrap();
    assert!(late.cancel(&topic, &kept).unwrap());
    disk.advance(SECOND);
    assert_eq!(topics.publish_due().unwrap(), 1);
    let refused = late.commit().unwrap_err();
    assert!(matches!(refused.reason(), Reason::Conflict { .. }), "{refused}");
    assert!(!topic.cancel(&kept).unwrap());
    assert_eq!(texts(&topic), ["kept"]);
}

#[test]
fn deleting_a_topic_drops_its_delayed_messages() {
    let disk = SimDisk::new(3);
    let (store, topics, topic) = one_topic(&disk);
    let other = topics.create("other", TopicOptions::new()).unwrap();
    topic.publish_after(SECOND, b"dropped").unwrap();
    other.publish_after(SECOND, b"stays").unwrap();
    topics.delete("orders").unwrap();
    let again = topics.create("orders", TopicOptions::new()).unwrap();
    let refused = topic.publish_after(SECOND, b"x").unwrap_err();
    assert!(matches!(refused.reason(), Reason::TopicDeleted { .. }), "{refused}");
    assert_eq!(again.scheduled().unwrap().count, 0);
    disk.advance(SECOND);
    assert_eq!(topics.publish_due().unwrap(), 1);
    assert_eq!((texts(&again), texts(&other)), (vec![], vec!["stays".into()]));
    let rows = store.existing_reserved_map("delayed").unwrap().unwrap();
    assert_eq!(rows.count().unwrap(), 0);
}

#[test]
fn a_damaged_row_is_told_and_keeps_no_other_from_being_published() {
    let disk = SimDisk::new(4);
    let (store, topics, topic) = one_topic(&disk);
    topic.publish_after(SECOND, b"spoilt").unwrap();
    topic.publish_after(SECOND, b"whole").unwrap();
    let rows = store.existing_reserved_map("delayed").unwrap().unwrap();
    let snapshot = store.snapshot().unwrap();
    let first = snapshot.range(&rows, ..).unwrap().next().unwrap().unwrap().0.to_vec();
    rows.put(&first, b"no message").unwrap();
    disk.advance(SECOND);
    let error = topics.publish_due().unwrap_err();
    assert!(matches!(error.reason(), Reason::Damaged { .. }), "{error}");
    assert_eq!(texts(&topic), ["whole"]);
}

#[test]
fn a_full_queue_refuses_to_schedule() {
    let (_, _, topic) = one_topic(&SimDisk::new(5));
    topic
        .configure(TopicOptions::new().keep_messages(1).discard_new(true))
        .unwrap();
    topic.publish(b"x").unwrap();
    let refused = facts(topic.publish_after(SECOND, b"y"));
    assert!(matches!(refused, TopicError::TopicFull { .. }), "{refused:?}");
}

#[test]
fn several_movers_publish_each_message_once() {
    let disk = SimDisk::new(6);
    let (_, topics, topic) = one_topic(&disk);
    for number in 0..3000 {
        topic.publish_after(SECOND, &format!("{number}")).unwrap();
    }
    disk.advance(SECOND);
    let moved: u64 = std::thread::scope(|scope| {
        let movers: Vec<_> = (0..4).map(|_| scope.spawn(|| topics.publish_due().unwrap())).collect();
        movers.into_iter().map(|mover| mover.join().unwrap()).sum()
    });
    assert_eq!(moved, 3000);
    let mut found: Vec<u32> = texts(&topic).iter().map(|text| text.parse().unwrap()).collect();
    found.sort_unstable();
    assert!(found.into_iter().eq(0..3000));
}

#[test]
fn the_background_publishes_what_is_due() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new().open(directory.path()).unwrap();
    let topic = Topics::open(&store)
        .unwrap()
        .create("orders", TopicOptions::new())
        .unwrap();
    let mut subscription = topic.subscribe(Start::Tail).unwrap();
    topic.publish_after(Duration::from_millis(30), b"later").unwrap();
    topic.publish_after(3600 * SECOND, b"much later").unwrap();
    store
        .transact(|tx| tx.publish_at(&topic, SystemTime::now(), b"now"))
        .unwrap();
    let mut received = Vec::new();
    while received.len() < 2 {
        let message = subscription.next_message(60 * SECOND).unwrap().unwrap();
        received.push(text(message.payload()));
    }
    received.sort_unstable();
    assert_eq!(received, ["later", "now"]);
    assert_eq!(topic.scheduled().unwrap().count, 1);
}

struct Opened {
    store: Store,
    topics: Topics,
    topic: Topic,
    /// Payload -> the scheduled message, as stored by the transactions that schedule and cancel.
    expected: Map,
}

fn open_for_crashes(disk: &SimDisk) -> Result<Opened, Error> {
    let store = options().open_on(disk.platform())?;
    let topics = Topics::open_with(&store, TopicsOptions::new().background(false))?;
    Ok(Opened {
        topic: topics.ensure("orders", TopicOptions::new())?,
        expected: store.map("expected")?,
        topics,
        store,
    })
}

fn step(opened: &Opened, disk: &SimDisk, number: &mut u32, rng: &mut Rng) -> Result<(), Error> {
    match rng.u32(..100) {
        0..50 => {
            *number += 1;
            let payload = format!("message {number}");
            let due = now(&opened.store) + Duration::from_millis(rng.u64(..3000));
            opened.store.transact(|tx| {
                let scheduled = tx.publish_at(&opened.topic, due, &payload)?;
                tx.put(&opened.expected, payload.as_bytes(), scheduled.to_string().as_bytes())
            })
        }
        50..60 => {
            let Some((payload, scheduled)) = any_expected(opened, rng)? else {
                return Ok(());
            };
            opened.store.transact(|tx| {
                if tx.cancel(&opened.topic, &scheduled)? {
                    tx.delete(&opened.expected, &payload)?;
                }
                Ok(())
            })
        }
        60..80 => opened.topics.publish_due().map(drop),
        80..85 => opened.store.sync(),
        85..88 => opened.store.maintain(),
        _ => {
            disk.advance(Duration::from_millis(rng.u64(..1500)));
            Ok(())
        }
    }
}

fn any_expected(opened: &Opened, rng: &mut Rng) -> Result<Option<(Vec<u8>, Scheduled)>, Error> {
    let snapshot = opened.store.snapshot()?;
    let low = format!("message {}", rng.u32(1..10));
    let mut cursor = snapshot.range(&opened.expected, low.as_bytes()..)?;
    let Some((key, value)) = cursor.next()? else {
        return Ok(None);
    };
    Ok(Some((key.to_vec(), text(&value).parse()?)))
}

/// Asserts that every message that was scheduled and not cancelled waits or was published, once.
fn compare(opened: &Opened) {
    let mut found = texts(&opened.topic);
    let published = found.len() as u64;
    found.sort_unstable();
    let snapshot = opened.store.snapshot().unwrap();
    let mut cursor = snapshot.range(&opened.expected, ..).unwrap();
    let mut expected = Vec::new();
    while let Some((key, _)) = cursor.next().unwrap() {
        expected.push(text(key));
    }
    let waiting = opened.topic.scheduled().unwrap().count;
    assert_eq!(published + waiting, expected.len() as u64);
    if waiting == 0 {
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let mut number = 0;
    for _ in 0..rng.u32(1..6) {
        if rng.u32(..4) != 0 {
            disk.stop_after(rng.u64(..600));
        }
        let opened = open_for_crashes(&disk).and_then(|opened| {
            for _ in 0..rng.u32(..300) {
                step(&opened, &disk, &mut number, &mut rng)?;
            }
            Ok(opened)
        });
        let is_power_cut = rng.bool();
        disk = crate::common::crash(&disk, is_power_cut, &mut rng);
        drop(opened);
        let again = open_for_crashes(&disk).expect("the store opens again");
        compare(&again);
        check(&again.store);
    }
    let opened = open_for_crashes(&disk).expect("the store opens at last");
    disk.advance(10 * SECOND);
    opened.topics.publish_due().unwrap();
    assert_eq!(opened.topic.scheduled().unwrap().count, 0);
    compare(&opened);
}

#[test]
fn crashes_lose_no_delayed_message_and_publish_none_twice() {
    crate::common::for_each_seed(run);
}
