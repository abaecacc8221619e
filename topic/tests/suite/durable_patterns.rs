//! Durable subscriptions to patterns: topics that come and go, acknowledgements, and the messages that are kept for
//! them.

use std::time::Duration;

use crate::common::{check, facts, one_topic, open, publish, topics};
use duramen_engine::Reason;
use duramen_io::SimDisk;
use duramen_topic::{
    DurablePattern, GroupOptions, Pattern, PatternSubscription, Start, TopicError, TopicOptions, TopicWrites, Topics,
};

fn orders() -> Pattern {
    Pattern::new("orders.*").unwrap()
}

fn make(topics: &Topics, name: &str, messages: u64) {
    publish(&topics.create(name, TopicOptions::new()).unwrap(), messages);
}

/// The available messages, as topic:offset, sorted.
fn collect(subscription: &mut PatternSubscription) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(messages) = subscription.next_batch(Duration::ZERO).unwrap() {
        let messages = messages.iter();
        found.extend(messages.map(|message| format!("{}:{}", message.topic(), message.offset())));
    }
    found.sort();
    found
}

/// The positions, as topic:offset.
fn positions(durable: &DurablePattern) -> Vec<String> {
    let positions = durable.positions().unwrap();
    positions.iter().map(|at| format!("{}:{}", at.topic, at.next)).collect()
}

#[test]
fn it_goes_on_where_it_was_in_every_topic_and_misses_none_that_is_made_while_nobody_reads() {
    let disk = SimDisk::new(1);
    let (store, all, _) = one_topic(&disk);
    make(&all, "orders.eu", 2);
    make(&all, "other.eu", 2);
    let reader = all.durable(&orders(), "reader", Start::Offset(1)).unwrap();
    let mut subscription = reader.subscribe().unwrap();
    make(&all, "orders.us", 2);
    assert_eq!(
        collect(&mut subscription),
        ["orders.eu:1", "orders.us:0", "orders.us:1"]
    );
    let map = store.map("map").unwrap();
    let messages = all.topic("orders.us").unwrap().read(Start::Beginning, 9).unwrap();
    let us = reader.of(&messages).unwrap();
    store
        .transact(|tx| {
            tx.put(&map, b"done", b"us:0")?;
            tx.acknowledge_through(&us, 0)
        })
        .unwrap();
    drop(subscription);
    make(&all, "orders.asia", 2);
    assert_eq!(positions(&reader), ["orders.asia:0", "orders.eu:1", "orders.us:1"]);

    let killed = open(&disk.kill());
    let all = topics(&killed);
    let reader = all.durable(&orders(), "reader", Start::Tail).unwrap();
    let mut subscription = reader.subscribe().unwrap();
    let expected = ["orders.asia:0", "orders.asia:1", "orders.eu:1", "orders.us:1"];
    let mut found = Vec::new();
    while let Some(messages) = subscription.next_batch(Duration::ZERO).unwrap() {
        found.extend(messages.iter().map(|one| format!("{}:{}", one.topic(), one.offset())));
        reader.acknowledge(&messages).unwrap();
    }
    found.sort();
    assert_eq!(found, expected);
    assert_eq!(positions(&reader), ["orders.asia:2", "orders.eu:2", "orders.us:2"]);
    assert!(reader.positions().unwrap().iter().all(|at| at.lag == 0));

    all.delete("orders.us").unwrap();
    assert!(matches!(facts(reader.at("orders.us")), TopicError::UnknownTopic { .. }));
    make(&all, "orders.us", 1);
    assert_eq!(collect(&mut subscription), ["orders.us:0"]);
    reader.reset(Start::Last(1)).unwrap();
    assert_eq!(positions(&reader), ["orders.asia:1", "orders.eu:1", "orders.us:0"]);
    check(&killed);
}

#[test]
fn messages_of_a_topic_that_is_gone_acknowledge_nothing_of_its_namesake() {
    let (store, all, _) = one_topic(&SimDisk::new(6));
    let reader = all.durable(&orders(), "reader", Start::Beginning).unwrap();
    make(&all, "orders.eu", 5);
    let mut subscription = reader.subscribe().unwrap();
    let messages = subscription.next_batch(Duration::ZERO).unwrap().unwrap();
    let durable = reader.of(&messages).unwrap();
    all.delete("orders.eu").unwrap();
    reader.acknowledge(&messages).unwrap();
    make(&all, "orders.eu", 10);
    reader.acknowledge(&messages).unwrap();
    let refused = reader.of(&messages).unwrap_err();
    assert!(matches!(refused.reason(), Reason::TopicDeleted { .. }), "{refused}");
    let refused = store.transact(|tx| tx.acknowledge_through(&durable, 4));
    assert!(matches!(facts(refused), TopicError::GroupDeleted { .. }));
    assert_eq!(positions(&reader), ["orders.eu:0"]);
    assert_eq!(collect(&mut subscription).len(), 10);
    check(&store);
}

#[test]
fn what_it_has_not_acknowledged_is_kept_also_in_topics_that_nobody_has_read() {
    let (store, all, _) = one_topic(&SimDisk::new(2));
    let reader = all.durable(&orders(), "reader", Start::Beginning).unwrap();
    let options = TopicOptions::new().drop_acknowledged(true);
    let eu = all.create("orders.eu", options).unwrap();
    publish(&eu, 5);
    eu.trim().unwrap();
    assert_eq!(eu.describe().unwrap().first, 0);
    reader.at("orders.eu").unwrap().acknowledge_through(2).unwrap();
    eu.trim().unwrap();
    assert_eq!(eu.describe().unwrap().first, 3);
    check(&store);
}

#[test]
fn what_retention_took_is_told_and_other_topics_go_on() {
    let (_, all, _) = one_topic(&SimDisk::new(3));
    let reader = all.durable(&orders(), "reader", Start::Beginning).unwrap();
    make(&all, "orders.eu", 2);
    let short = all.create("orders.us", TopicOptions::new().keep_messages(1)).unwrap();
    publish(&short, 4);
    short.trim().unwrap();
    let mut subscription = reader.subscribe().unwrap();
    let mut delivered = Vec::new();
    let trimmed = loop {
        // A bell may ring for nothing, and a topic that has not moved on reports its error once more.
        match subscription.next_batch(Duration::ZERO) {
            Ok(messages) => delivered.extend(
                messages
                    .expect("a word of what is missing")
                    .iter()
                    .map(|one| one.offset()),
            ),
            Err(error) => break facts(Err::<(), _>(error)),
        }
    };
    let expected = TopicError::Trimmed {
        topic: "orders.us".into(),
        asked: 0,
        first: 3,
    };
    assert_eq!(trimmed, expected);
    assert!(subscription.seek("orders.us", Start::Beginning).unwrap());
    while let Some(messages) = subscription.next_batch(Duration::ZERO).unwrap() {
        delivered.extend(messages.iter().map(|one| one.offset()));
    }
    delivered.sort_unstable();
    assert_eq!(delivered, [0, 1, 3]);
}

#[test]
fn a_name_is_one_thing_everywhere() {
    let (_, all, topic) = one_topic(&SimDisk::new(4));
    make(&all, "orders.eu", 3);
    let eu = all.topic("orders.eu").unwrap();
    eu.durable("reader", Start::Offset(2)).unwrap();
    let reader = all.durable(&orders(), "reader", Start::Beginning).unwrap();
    assert_eq!(positions(&reader), ["orders.eu:2"], "what was there stays where it is");
    let other = Pattern::new("orders.>").unwrap();
    assert_eq!(
        facts(all.durable(&other, "reader", Start::Beginning)),
        TopicError::OtherPattern {
            name: "reader".into(),
            found: "orders.*".into(),
            asked: "orders.>".into()
        }
    );
    eu.ensure_group("packers", Start::Beginning, GroupOptions::new())
        .unwrap();
    let refused = all.durable(&orders(), "packers", Start::Beginning);
    assert!(matches!(facts(refused), TopicError::OtherKind { .. }));
    assert_eq!(all.durables().unwrap().len(), 1, "nothing is left of it");
    assert!(matches!(
        facts(all.durable(&orders(), "two words", Start::Beginning)),
        TopicError::InvalidName { .. }
    ));
    let far = all.durable(&orders(), "far", Start::Offset(4));
    assert!(matches!(facts(far), TopicError::NotYetPublished { .. }));
    topic.durable("reader", Start::Beginning).unwrap();
    assert!(matches!(
        facts(reader.at(topic.name())),
        TopicError::UnknownGroup { .. }
    ));
    assert!(matches!(facts(reader.at("\0next")), TopicError::InvalidName { .. }));
    assert!(matches!(facts(reader.at("orders.us")), TopicError::UnknownTopic { .. }));
    assert_eq!(eu.existing_durable("reader").unwrap().position().unwrap(), 2);
    assert!(matches!(
        facts(eu.existing_durable("packers")),
        TopicError::OtherKind { .. }
    ));
    assert!(matches!(
        facts(eu.existing_durable("none")),
        TopicError::UnknownGroup { .. }
    ));
}

#[test]
fn a_topic_that_is_left_out_stays_so_and_one_that_is_deleted_is_deleted_everywhere() {
    let (store, all, _) = one_topic(&SimDisk::new(5));
    make(&all, "orders.eu", 1);
    make(&all, "orders.us", 1);
    let reader = all.durable(&orders(), "reader", Start::Beginning).unwrap();
    all.topic("orders.us").unwrap().delete_group("reader").unwrap();
    let mut subscription = reader.subscribe().unwrap();
    assert_eq!(collect(&mut subscription), ["orders.eu:0"]);
    assert!(matches!(facts(reader.at("orders.us")), TopicError::UnknownGroup { .. }));
    reader.reset(Start::Tail).unwrap();
    assert_eq!(positions(&reader), ["orders.eu:1"]);

    let eu = reader.at("orders.eu").unwrap();
    reader.delete().unwrap();
    make(&all, "orders.asia", 1);
    for refused in [
        facts(subscription.next_batch(Duration::ZERO)),
        facts(subscription.next_batch(Duration::from_millis(1))),
        facts(reader.delete()),
        facts(reader.positions()),
        facts(reader.reset(Start::Beginning)),
        facts(reader.subscribe().map(|_| ())),
        facts(eu.acknowledge_through(0)),
    ] {
        assert!(matches!(refused, TopicError::GroupDeleted { .. }), "{refused}");
    }
    let again = all.durable(&orders(), "reader", Start::Tail).unwrap();
    assert_eq!(positions(&again), ["orders.asia:1", "orders.eu:1", "orders.us:1"]);
    assert!(
        matches!(facts(reader.positions()), TopicError::GroupDeleted { .. }),
        "that is another one"
    );
    check(&store);
}
