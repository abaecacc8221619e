//! Topics that refuse messages: groups that retention protects, and bounded work queues.

use std::time::Duration;

use crate::common::{SECOND, all, check, facts, one_topic, open, publish, topics};
use duramen_engine::{Batch, Kind};
use duramen_io::SimDisk;
use duramen_topic::{
    GroupOptions, Holder, Message, Retention, Start, Topic, TopicBatch, TopicError, TopicOptions, TopicWrites,
};

/// Receives messages of a group and acknowledges them.
fn work(topic: &Topic, group: &str, most: usize) -> usize {
    let group = topic.existing_group(group).unwrap();
    let deliveries = group.member("worker").receive(most, Duration::ZERO).unwrap();
    deliveries.map_or(0, |deliveries| {
        let count = deliveries.messages().len();
        deliveries.acknowledge().unwrap();
        count
    })
}

fn full(result: Result<impl std::fmt::Debug, duramen_engine::Error>) -> (&'static str, u64, u64, Option<String>) {
    match facts(result) {
        TopicError::TopicFull {
            option,
            kept,
            max,
            held_by,
            ..
        } => (option, kept, max, held_by),
        other => panic!("{other:?}"),
    }
}

fn kept(topic: &Topic) -> u64 {
    topic.describe().unwrap().messages()
}

#[test]
fn limits_delete_nothing_that_a_protected_group_has_not_acknowledged() {
    let disk = SimDisk::new(1);
    let (_, topics, topic) = one_topic(&disk);
    let protect = Retention::ProtectGroups { max_bytes: 1 << 20 };
    let options = TopicOptions::new().keep_messages(5).keep_for(SECOND).keep_bytes(100);
    topic.configure(options.clone().retention(protect)).unwrap();
    topic
        .ensure_group("slow", Start::Beginning, GroupOptions::new().discard_dead_letters())
        .unwrap();
    let reader = topic.durable("reader", Start::Beginning).unwrap();
    publish(&topic, 100);
    disk.advance(60 * SECOND);
    assert_eq!(topic.trim().unwrap(), 0);
    assert_eq!(work(&topic, "slow", 60), 60);
    let held = topics.holders().unwrap();
    let [(name, holder @ Holder::Group { name: group, .. })] = &held[..] else {
        panic!("{held:?}")
    };
    assert_eq!((name.as_str(), group.as_str()), ("orders", "reader"));
    assert!(!holder.holds_now() && holder.stuck().is_none());
    assert_eq!(topic.trim().unwrap(), 0, "the durable subscription has not read them");
    reader.acknowledge_through(39).unwrap();
    assert_eq!(topic.trim().unwrap(), 40);
    reader.acknowledge_through(99).unwrap();
    assert_eq!(topic.trim().unwrap(), 20);
    // The other mode deletes regardless of groups.
    topic.configure(options).unwrap();
    assert_eq!(topic.trim().unwrap(), 40);
    assert_eq!(work(&topic, "slow", 60), 0);
    // Without a group the limits delete.
    topic
        .configure(TopicOptions::new().keep_messages(5).retention(protect))
        .unwrap();
    topic.delete_group("slow").unwrap();
    topic.delete_group("reader").unwrap();
    publish(&topic, 20);
    topic.trim().unwrap();
    assert_eq!(kept(&topic), 5);
}

#[test]
fn a_topic_that_protects_groups_is_full_at_its_bytes_and_names_the_group() {
    let disk = SimDisk::new(2);
    let (store, topics, topic) = one_topic(&disk);
    let protect = Retention::ProtectGroups { max_bytes: 5000 };
    topic
        .configure(TopicOptions::new().keep_messages(1).retention(protect))
        .unwrap();
    for name in ["fast", "slow"] {
        topic
            .ensure_group(name, Start::Beginning, GroupOptions::new().discard_dead_letters())
            .unwrap();
    }
    let payload = [7; 500];
    let mut published = 0;
    let error = loop {
        match topic.publish(&payload) {
            Ok(_) => published += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::Retry);
    assert_eq!(published, 9, "each takes 518 bytes");
    assert!(topic.describe().unwrap().bytes <= 5000);
    assert_eq!(work(&topic, "fast", 9), 9);
    let (option, kept, max, held_by) = full(topic.publish(&payload));
    assert_eq!(
        (option, kept, max, held_by),
        ("retention", 9 * 518, 5000, Some("slow".into()))
    );
    assert!(error.to_string().contains("group"), "{error}");
    let [holder] = &topic.holders().unwrap()[..] else {
        panic!("one group is the furthest behind")
    };
    let is_slow = matches!(holder, Holder::Group { name, acknowledged: 0, .. } if name == "slow");
    assert!(is_slow && holder.holds_now(), "{holder:?}");
    assert!(holder.stuck().unwrap().contains("no member works on its messages"));
    // Every way to publish is refused; shorter messages that fit are accepted.
    full(topic.publish_all([&payload]));
    full(topic.publish_async(&payload).map(drop));
    full(store.transact(|tx| tx.publish(&topic, &payload).map(drop)));
    full(Batch::new().publish(&topic, &payload).map(drop));
    full(topic.publisher("till").unwrap().publish(1, &payload));
    topic.publish(b"short").unwrap();
    // Messages that every group has acknowledged make room at once.
    assert_eq!(work(&topic, "slow", 3), 3);
    store.transact(|tx| tx.publish(&topic, &payload).map(drop)).unwrap();
    topic.publish(&payload).unwrap();
    assert_eq!(topics.list().unwrap(), ["orders"]);
    check(&store);
}

#[test]
fn a_work_queue_refuses_what_it_has_no_room_for_and_loses_nothing() {
    let disk = SimDisk::new(3);
    let (store, _, topic) = one_topic(&disk);
    let options = TopicOptions::new().keep_messages(10).discard_new(true);
    topic.configure(options.clone()).unwrap();
    publish(&topic, 10);
    assert_eq!(full(topic.publish(b"x")), ("keep_messages", 10, 10, None));
    assert_eq!(topic.trim().unwrap(), 0, "the oldest stay");
    topic.configure(options.drop_acknowledged(true)).unwrap();
    assert_eq!(full(topic.publish(b"x")).3, None);
    topic
        .ensure_group("workers", Start::Beginning, GroupOptions::new())
        .unwrap();
    assert_eq!(full(topic.publish(b"x")).3, Some("workers".into()));
    assert_eq!(work(&topic, "workers", 4), 4);
    full(topic.publish_all([b"x"; 5]));
    topic.publish_all([b"x"; 4]).unwrap();
    full(topic.publish(b"x"));
    assert_eq!(kept(&topic), 10);
    drop((topic, store));
    let store = open(&disk.kill());
    let topic = topics(&store).topic("orders").unwrap();
    full(topic.publish(b"x"));
    assert_eq!(work(&topic, "workers", 100), 10);
    topic.publish(b"next").unwrap();
    assert_eq!(all(&topic), [(14, "next".into())]);
}

#[test]
fn publishers_at_one_time_never_exceed_the_limit() {
    let (store, _, topic) = one_topic(&SimDisk::new(4));
    let options = TopicOptions::new().keep_messages(50).discard_new(true);
    topic.configure(options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, topic) = (&store, &topic);
            scope.spawn(move || {
                for _ in 0..100 {
                    let done = match thread {
                        0 => topic.publish(b"x").map(drop),
                        1 => topic.publish_all([b"x"; 3]).map(drop),
                        _ => store.transact(|tx| tx.publish(topic, Message::new(b"x")).map(drop)),
                    };
                    if let Err(error) = done {
                        assert!(
                            matches!(TopicError::of(&error), Some(TopicError::TopicFull { .. })),
                            "{error}"
                        );
                    }
                    assert!(kept(topic) <= 50);
                }
            });
        }
    });
    assert_eq!(kept(&topic), 50);
}

#[test]
fn options_that_bound_a_queue_count_from_the_next_message_on() {
    let (_, topics, topic) = one_topic(&SimDisk::new(5));
    publish(&topic, 3);
    let bounded = TopicOptions::new().keep_messages(3).discard_new(true);
    topics.ensure("orders", bounded.clone()).unwrap();
    full(topic.publish(b"x"));
    topic.configure(TopicOptions::new()).unwrap();
    topic.publish(b"x").unwrap();
    for wrong in [
        TopicOptions::new().discard_new(true),
        TopicOptions::new().retention(Retention::ProtectGroups { max_bytes: 0 }),
    ] {
        assert!(matches!(
            facts(topic.configure(wrong)),
            TopicError::InvalidOptions { .. }
        ));
    }
    match facts(topics.create("orders", bounded)) {
        TopicError::TopicExists { differences, .. } => {
            assert_eq!(
                differences,
                [
                    "keep_messages is none, asked for 3",
                    "discard_new is false, asked for true"
                ]
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_another_handle_of_the_store_changes_counts() {
    let directory = tempfile::tempdir().unwrap();
    let handle = || {
        let options = duramen_engine::Options::new().durability(duramen_engine::Durability::Written);
        let store = options.open(directory.path()).unwrap();
        let topics = topics(&store);
        let bounded = TopicOptions::new().keep_messages(10).discard_new(true);
        topics.ensure("orders", bounded.drop_acknowledged(true)).unwrap()
    };
    let (one, other) = (handle(), handle());
    one.ensure_group("workers", Start::Beginning, GroupOptions::new())
        .unwrap();
    publish(&one, 10);
    full(one.publish(b"x"));
    full(other.publish(b"x"));
    for round in 1..20 {
        assert_eq!(work(&other, "workers", 4), 4);
        other.trim().unwrap();
        let described = one.describe().unwrap();
        assert_eq!((described.first, described.next), (4 * round, 4 * round + 6));
        one.publish_all([b"x"; 4]).unwrap();
        full(one.publish(b"x"));
    }
    // A topic that refuses messages reads its options each time.
    other.configure(TopicOptions::new()).unwrap();
    one.publish(b"x").unwrap();
    // Otherwise the options apply from some later message on.
    let bounded = TopicOptions::new().keep_messages(1).discard_new(true);
    other.configure(bounded).unwrap();
    while one.publish(b"x").is_ok() {}
    full(one.publish(b"x"));
}
