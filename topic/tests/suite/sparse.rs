//! Topics that remove single messages: expired messages, and older messages of each key.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{SECOND, check, facts, one_topic, options, text};
use duramen_engine::{Error, Store};
use duramen_io::SimDisk;
use duramen_topic::{
    Dispatcher, DispatcherOptions, GroupOptions, LATEST_KEY_BYTES_MAX, Message, Pattern, SlowPolicy, Start,
    SubscribeOptions, Topic, TopicError, TopicOptions, TopicWrites, Topics, TopicsOptions,
};
use fastrand::Rng;

/// Offsets of all messages that a reader sees.
fn seen(topic: &Topic) -> Vec<u64> {
    let messages = topic.read(Start::Beginning, usize::MAX).unwrap();
    messages.iter().map(|message| message.offset()).collect()
}

/// Publishes ten messages. Every third of them, and the last two, expire after a second.
fn with_expiry(topic: &Topic) {
    topic.configure(TopicOptions::new().message_expiry(true)).unwrap();
    for number in 0..10 {
        let payload = number.to_string();
        let message = Message::new(&payload);
        match number % 3 == 0 || number == 8 {
            true => topic.publish(message.expires_after(SECOND)).unwrap(),
            false => topic.publish(message).unwrap(),
        };
    }
}

const LEFT: [u64; 5] = [1, 2, 4, 5, 7];

/// Number of rows in the index.
fn rows(store: &Store) -> u64 {
    store.existing_reserved_map("index").unwrap().unwrap().count().unwrap()
}

#[test]
fn expired_messages_are_invisible_at_once_and_removed_later() {
    let disk = SimDisk::new(1);
    let (store, _, topic) = one_topic(&disk);
    with_expiry(&topic);
    disk.advance(SECOND - Duration::from_millis(1));
    assert_eq!(seen(&topic), (0..10).collect::<Vec<_>>());
    let first = topic.read(Start::Offset(3), 1).unwrap();
    let message = first.get(0).unwrap();
    assert_eq!(message.expires(), Some(message.time() + SECOND));
    assert_eq!(topic.trim().unwrap(), 0);
    disk.advance(Duration::from_millis(1));
    // Before they are deleted, and after.
    for removed in [5, 0] {
        assert_eq!(seen(&topic), LEFT);
        assert_eq!(topic.read(Start::Offset(3), 1).unwrap().offsets(), 4..5);
        assert!(topic.read(Start::Offset(8), 1).unwrap().is_empty());
        assert_eq!(topic.read(Start::Last(5), 9).unwrap().offsets(), 5..8);
        assert_eq!(topic.trim().unwrap(), removed);
    }
    let messages = store.existing_reserved_map("messages").unwrap().unwrap();
    assert_eq!(
        messages.count().unwrap(),
        5 + 2,
        "and two of the registry: the topic was created and configured"
    );
    assert_eq!(rows(&store), 1, "the position of the index");
    assert_eq!(topic.publish(b"next").unwrap().offset, 10);
    let not_yet = facts(topic.read(Start::Offset(12), 1));
    assert!(matches!(not_yet, TopicError::NotYetPublished { .. }), "{not_yet:?}");
    check(&store);
}

#[test]
fn all_kinds_of_readers_pass_over_what_is_expired() {
    for is_removed in [false, true] {
        let disk = SimDisk::new(2);
        let (_store, topics, topic) = one_topic(&disk);
        let mut early = topic.subscribe(Start::Beginning).unwrap();
        let durable = topic.durable("durable", Start::Beginning).unwrap();
        let group = topic
            .ensure_group("group", Start::Beginning, GroupOptions::new())
            .unwrap();
        with_expiry(&topic);
        disk.advance(SECOND);
        if is_removed {
            topic.trim().unwrap();
        }
        let batch = early.next_batch(Duration::ZERO).unwrap().unwrap();
        let offsets = |messages: &duramen_topic::Messages| -> Vec<u64> {
            messages.iter().map(|message| message.offset()).collect()
        };
        assert_eq!(offsets(&batch), LEFT);
        assert_eq!(batch.gap(), None);
        assert!(early.next_batch(Duration::ZERO).unwrap().is_none());
        assert_eq!(early.position(), 10, "it does not look at them again");
        let skip = SubscribeOptions::new().slow(SlowPolicy::Skip { max: 4 });
        let mut skips = topic.subscribe_with(Start::Beginning, skip).unwrap();
        let batch = skips.next_batch(Duration::ZERO).unwrap().unwrap();
        assert_eq!(offsets(&batch), [7]);
        let mut all = topics.subscribe(&Pattern::new(">").unwrap(), Start::Beginning).unwrap();
        assert_eq!(offsets(&all.next_batch(Duration::ZERO).unwrap().unwrap()), LEFT);
        assert!(all.next_batch(Duration::ZERO).unwrap().is_none());
        let mut reader = durable.subscribe().unwrap();
        assert_eq!(offsets(&reader.next_batch(Duration::ZERO).unwrap().unwrap()), LEFT);
        durable.acknowledge_through(9).unwrap();
        for most in [1, 100] {
            group.reset(Start::Beginning).unwrap();
            let mut member = group.member("member");
            let mut received = Vec::new();
            while let Some(deliveries) = member.receive(most, Duration::ZERO).unwrap() {
                received.extend(offsets(deliveries.messages()));
                deliveries.acknowledge().unwrap();
            }
            assert_eq!(received, LEFT);
        }
        let dispatcher = Dispatcher::start(&topics, DispatcherOptions::new()).unwrap();
        let (sender, receiver) = mpsc::channel();
        dispatcher
            .subscribe(&topic, Start::Beginning, move |messages| {
                let messages = messages.expect("messages");
                messages
                    .iter()
                    .for_each(|message| sender.send(message.offset()).unwrap_or(()));
            })
            .unwrap();
        topic.publish(b"next").unwrap();
        let mut received = Vec::new();
        while received.last() != Some(&10) {
            received.push(receiver.recv_timeout(60 * SECOND).expect("the next message"));
        }
        assert_eq!(received, [&LEFT[..], &[10]].concat());
        let next = early.next_batch(Duration::ZERO).unwrap().unwrap();
        assert_eq!(offsets(&next), [10]);
    }
}

#[test]
fn a_message_that_expires_while_a_group_has_it_is_not_delivered_again() {
    let disk = SimDisk::new(3);
    let (_store, _, topic) = one_topic(&disk);
    topic.configure(TopicOptions::new().message_expiry(true)).unwrap();
    let group_options = GroupOptions::new().lease(2 * SECOND).back_off(&[]);
    let group = topic.ensure_group("group", Start::Beginning, group_options).unwrap();
    topic.publish(Message::new(b"short").expires_after(SECOND)).unwrap();
    topic.publish(b"long").unwrap();
    let mut member = group.member("member");
    let held = member.receive(10, Duration::ZERO).unwrap().unwrap();
    assert_eq!(held.messages().len(), 2);
    disk.advance(3 * SECOND);
    topic.trim().unwrap();
    let again = member.receive(10, Duration::ZERO).unwrap().unwrap();
    assert_eq!(again.messages().offsets(), 1..2);
    again.acknowledge().unwrap();
    assert!(member.receive(10, Duration::ZERO).unwrap().is_none());
    assert_eq!(group.describe().unwrap().acknowledged, 2);
}

#[test]
fn messages_expire_only_in_topics_with_the_option_and_others_tell_what_is_trimmed() {
    let disk = SimDisk::new(4);
    let (store, _, topic) = one_topic(&disk);
    let message = Message::new(b"x").expires_after(SECOND);
    let missing = |error| match error {
        TopicError::OptionMissing { option, .. } => assert_eq!(option, "message_expiry"),
        other => panic!("{other:?}"),
    };
    missing(facts(topic.publish(message.clone())));
    missing(facts(topic.publish_all([message.clone()])));
    missing(facts(
        store.transact(|tx| tx.publish(&topic, message.clone()).map(drop)),
    ));
    missing(facts(topic.publish_after(SECOND, message.clone())));
    crate::common::publish(&topic, 5);
    topic.configure(TopicOptions::new().keep_messages(2)).unwrap();
    topic.trim().unwrap();
    assert!(matches!(
        facts(topic.read(Start::Offset(0), 1)),
        TopicError::Trimmed { first: 3, .. }
    ));
    // A topic that had the option continues without errors: messages may be missing there.
    topic.configure(TopicOptions::new().message_expiry(true)).unwrap();
    topic.publish(message).unwrap();
    disk.advance(SECOND);
    topic.trim().unwrap();
    topic.publish(b"last").unwrap();
    topic.configure(TopicOptions::new()).unwrap();
    assert_eq!(seen(&topic), [3, 4, 6]);
    assert_eq!(rows(&store), 0);
}

#[test]
fn a_topic_keeps_the_newest_message_of_each_key() {
    let disk = SimDisk::new(5);
    let (store, topics, topic) = one_topic(&disk);
    let long = vec![7; 100_000];
    let keyed = |key: &'static str, payload: &'static str| Message::new(payload).key(key);
    // Messages from before the option count.
    topic.publish(Message::new(&long).key(b"a")).unwrap();
    topic.publish(keyed("b", "1")).unwrap();
    topic.publish(b"no key").unwrap();
    topic.configure(TopicOptions::new().latest_per_key(true)).unwrap();
    topic.publish(keyed("a", "2")).unwrap();
    assert_eq!(seen(&topic), [0, 1, 2, 3], "until the background removes them");
    assert_eq!(topic.trim().unwrap(), 1);
    assert_eq!(seen(&topic), [1, 2, 3]);
    let payloads = store.existing_reserved_map("payloads").unwrap().unwrap();
    assert_eq!(payloads.count().unwrap(), 0);
    for _ in 0..1000 {
        topic.publish(keyed("a", "3")).unwrap();
    }
    topic.publish(keyed("b", "")).unwrap();
    assert_eq!(topic.trim().unwrap(), 1001);
    assert_eq!(seen(&topic), [2, 1003, 1004]);
    assert_eq!(topic.read(Start::Last(1), 1).unwrap().get(0).unwrap().payload(), b"");
    // Deleting a key: its last message expires.
    topic
        .configure(TopicOptions::new().latest_per_key(true).message_expiry(true))
        .unwrap();
    topic.publish(keyed("a", "").expires_after(SECOND)).unwrap();
    disk.advance(SECOND);
    assert_eq!(topic.trim().unwrap(), 2);
    assert_eq!(seen(&topic), [2, 1004]);
    assert_eq!(rows(&store), 2, "the position, and the newest of b");
    // Deletions by retention leave no row behind.
    topic
        .configure(TopicOptions::new().latest_per_key(true).keep_messages(1))
        .unwrap();
    topic.publish(b"no key").unwrap();
    topic.trim().unwrap();
    assert_eq!(seen(&topic), [1006]);
    assert_eq!(rows(&store), 1);
    let key = vec![1; LATEST_KEY_BYTES_MAX + 1];
    let refused = facts(topic.publish(Message::new(b"x").key(&key)));
    assert!(matches!(refused, TopicError::MessageTooLarge { .. }), "{refused:?}");
    topic.publish(Message::new(b"x").key(&key[1..])).unwrap();
    topic.trim().unwrap();
    topics.delete("orders").unwrap();
    assert_eq!(rows(&store), 0);
    check(&store);
}

struct Opened {
    store: Store,
    topic: Topic,
}

fn sparse() -> TopicOptions {
    TopicOptions::new().latest_per_key(true).message_expiry(true)
}

fn open(disk: &SimDisk) -> Result<Opened, Error> {
    let store = options().open_on(disk.platform())?;
    let topics = Topics::open_with(&store, TopicsOptions::new().background(false))?;
    Ok(Opened {
        topic: topics.ensure("orders", sparse())?,
        store,
    })
}

/// One action of a program. It also writes a row of a map for each message.
fn step(opened: &Opened, disk: &SimDisk, number: &mut u64, rng: &mut Rng) -> Result<(), Error> {
    match rng.u32(..100) {
        0..65 => {
            *number += 1;
            let (key, payload) = (rng.u32(..6).to_string(), number.to_string());
            let is_long = rng.u32(..20) == 0;
            let body = format!("{payload} {}", "x".repeat(if is_long { 70_000 } else { 0 }));
            let mut message = Message::new(&body);
            if rng.u32(..5) > 0 {
                message = message.key(&key);
            }
            if rng.u32(..3) == 0 {
                message = message.expires_after(Duration::from_millis(rng.u64(1..5000)));
            }
            let published = opened.store.map("published")?;
            opened.store.transact(|tx| {
                tx.append(&published, b"", b"")?;
                tx.publish(&opened.topic, message.clone()).map(drop)
            })
        }
        65..80 => opened.topic.trim().map(drop),
        80..85 => opened.store.sync(),
        85..88 => opened.store.maintain(),
        _ => {
            disk.advance(Duration::from_millis(rng.u64(..2000)));
            Ok(())
        }
    }
}

/// What a reader saw of a message: its key, when it expires, its payload.
type Seen = BTreeMap<u64, (Option<Vec<u8>>, Option<u64>, String)>;

/// Asserts that only messages are missing that expired or have a newer message of their key. `known` is what was seen
/// before.
fn compare(opened: &Opened, known: &mut Seen) {
    let now = opened.store.wall_clock().as_millis() as u64;
    let next = opened.topic.describe().unwrap().next;
    let published = opened.store.map("published").unwrap().count().unwrap();
    assert_eq!(next, published);
    let mut visible = Seen::new();
    for message in opened.topic.read(Start::Beginning, usize::MAX).unwrap().iter() {
        let expires = message
            .expires()
            .map(|at| at.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64);
        assert!(expires.is_none_or(|at| at > now), "an expired message is visible");
        let facts = (message.key().map(<[u8]>::to_vec), expires, text(message.payload()));
        visible.insert(message.offset(), facts);
    }
    for (offset, (key, expires, payload)) in known.iter() {
        let is_expired = expires.is_some_and(|at| at <= now);
        // A newer message may have expired meanwhile, or been replaced itself.
        let may_be_newer = |newer| visible.get(&newer).is_none_or(|(other, ..)| other == key);
        let has_newer = key.is_some() && (offset + 1..next).any(may_be_newer);
        let is_there = visible.get(offset).is_some_and(|(_, _, found)| found == payload);
        assert!(is_there || is_expired || has_newer, "message {offset} is missing");
    }
    *known = visible;
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let (mut number, mut known) = (0, BTreeMap::new());
    for _ in 0..rng.u32(1..6) {
        if rng.u32(..4) != 0 {
            disk.stop_after(rng.u64(..600));
        }
        let opened = open(&disk).and_then(|opened| {
            for _ in 0..rng.u32(..300) {
                step(&opened, &disk, &mut number, &mut rng)?;
            }
            Ok(opened)
        });
        let is_power_cut = rng.bool();
        disk = crate::common::crash(&disk, is_power_cut, &mut rng);
        drop(opened);
        // A power cut may undo what was not synced, and give its offsets to other messages.
        if is_power_cut {
            known.clear();
        }
        let again = open(&disk).expect("the store opens again");
        compare(&again, &mut known);
        check(&again.store);
    }
    let opened = open(&disk).expect("the store opens at last");
    disk.advance(10 * SECOND);
    opened.topic.trim().unwrap();
    // The newest message of each key is left, unless it expired; and one row of the index for each.
    let mut keys = BTreeMap::new();
    for message in opened.topic.read(Start::Beginning, usize::MAX).unwrap().iter() {
        assert_eq!(message.expires(), None);
        if let Some(key) = message.key() {
            assert_eq!(
                keys.insert(key.to_vec(), message.offset()),
                None,
                "two messages of a key"
            );
        }
    }
    let position = u64::from(opened.topic.describe().unwrap().next > 0);
    assert_eq!(rows(&opened.store), position + keys.len() as u64);
    check(&opened.store);
}

#[test]
fn crashes_remove_no_message_that_is_to_be_kept() {
    crate::common::for_each_seed(run);
}

/// What groups are done with is deleted together with its rows in the index.
#[test]
fn acknowledged_messages_are_dropped_with_their_rows() {
    let disk = SimDisk::new(1);
    let (store, _, topic) = one_topic(&disk);
    let all = TopicOptions::new()
        .message_expiry(true)
        .latest_per_key(true)
        .drop_acknowledged(true);
    topic.configure(all).unwrap();
    let group = topic
        .create_group("group", Start::Beginning, GroupOptions::new())
        .unwrap();
    for number in 0..10 {
        let (payload, key) = (number.to_string(), format!("key {number}"));
        let message = Message::new(&payload).key(&key);
        topic.publish(message.expires_after(60 * SECOND)).unwrap();
    }
    assert_eq!(topic.trim().unwrap(), 0);
    let all_rows = rows(&store);
    let mut member = group.member("member");
    member
        .receive(4, Duration::ZERO)
        .unwrap()
        .unwrap()
        .acknowledge()
        .unwrap();
    assert_eq!(topic.trim().unwrap(), 4);
    assert_eq!(seen(&topic), (4..10).collect::<Vec<_>>());
    assert!(rows(&store) < all_rows);
    member
        .receive(100, Duration::ZERO)
        .unwrap()
        .unwrap()
        .acknowledge()
        .unwrap();
    assert_eq!(topic.trim().unwrap(), 6);
    assert!(seen(&topic).is_empty());
    disk.advance(120 * SECOND);
    assert_eq!(topic.trim().unwrap(), 0);
}
