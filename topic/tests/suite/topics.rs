//! Topics: creating, publishing, reading, trimming, deleting.

use std::time::{Duration, SystemTime};

use crate::common::{SECOND, all, check, facts, one_topic, open, publish, text, topics};
use duramen_engine::{Batch, Durability, Map, Reason, Transaction, TransactionOptions};
use duramen_io::SimDisk;
use duramen_topic::{Message, Outcome, Start, TopicBatch, TopicError, TopicOptions, TopicWrites};

#[test]
fn messages_come_back_whole_and_survive_a_crash() {
    let disk = SimDisk::new(1);
    let (store, _, topic) = one_topic(&disk);
    let long = vec![9; 3 << 20];
    topic.publish(b"plain").unwrap();
    let message = Message::new(b"rich")
        .key(b"key")
        .header("a", b"1")
        .header("a", b"2")
        .header("b", b"");
    topic.publish(message.clone()).unwrap();
    topic.publish(Message::new(&long).key(b"long")).unwrap();
    let batch = topic.publish_all(["x", "y", "z"].map(Message::new)).unwrap().unwrap();
    assert_eq!(batch.offset, 3);
    assert_eq!(topic.publish_all(Vec::<Message<'_>>::new()).unwrap(), None);
    store.maintain().unwrap();
    {
        let store = open(&disk.kill());
        let topic = topics(&store).topic("orders").unwrap();
        let messages = topic.read(Start::Beginning, 100).unwrap();
        // The long message ends the read.
        assert_eq!(messages.len(), 3);
        let rich = messages.get(1).unwrap();
        assert_eq!((rich.key(), rich.payload()), (Some(&b"key"[..]), &b"rich"[..]));
        let headers: Vec<_> = rich.headers().collect();
        assert_eq!(headers, [("a", &b"1"[..]), ("a", b"2"), ("b", b"")]);
        assert_eq!(rich.header("a"), Some(&b"1"[..]));
        assert_eq!(messages.get(0).unwrap().key(), None);
        let third = messages.get(2).unwrap();
        assert!(third.payload() == long && third.key() == Some(b"long"));
        let rest = topic.read(Start::Offset(3), 100).unwrap();
        assert_eq!(
            rest.iter().map(|message| text(message.payload())).collect::<String>(),
            "xyz"
        );
        check(&store);
    }
}

#[test]
fn transactions_and_batches_publish_many() {
    let (store, _, topic) = one_topic(&SimDisk::new(2));
    let tickets = store.transact(|tx| tx.publish_all(&topic, ["a", "b", "c"])).unwrap();
    assert_eq!(tickets.len(), 3);
    let mut batch = Batch::new();
    let more = batch.publish_all(&topic, ["d", "e"]).unwrap();
    store.write(batch).unwrap();
    let offsets: Vec<_> = tickets.iter().chain(&more).map(|ticket| ticket.offset()).collect();
    assert_eq!(offsets, [0, 1, 2, 3, 4].map(Some));
    let messages = topic.read(Start::Beginning, 100).unwrap();
    let texts = messages.iter().map(|message| text(message.payload()));
    assert_eq!(texts.collect::<String>(), "abcde");
    assert!(store.transact(|tx| tx.publish_all(&topic, [""; 0])).unwrap().is_empty());
}

#[test]
fn a_transaction_publishes_with_its_other_writes_or_not_at_all() {
    let (store, _, topic) = one_topic(&SimDisk::new(2));
    let map = store.map("map").unwrap();
    let ticket = store
        .transact(|tx| {
            tx.put(&map, b"key", b"value")?;
            tx.publish(&topic, b"one")?;
            tx.publish(&topic, b"two")
        })
        .unwrap();
    assert_eq!(ticket.offset(), Some(1));
    let mut dropped = store.begin(TransactionOptions::new()).unwrap();
    let never = dropped.publish(&topic, b"never").unwrap();
    drop(dropped);
    assert_eq!(never.published(), None);
    // A conflict in the map takes the message back too.
    let mut late = store.begin(TransactionOptions::new()).unwrap();
    late.put(&map, b"key", b"late").unwrap();
    let lost = late.publish(&topic, b"lost").unwrap();
    map.put(b"key", b"first").unwrap();
    assert!(matches!(late.commit().unwrap_err().reason(), Reason::Conflict { .. }));
    assert_eq!(lost.offset(), None);
    assert_eq!(all(&topic), [(0, "one".into()), (1, "two".into())]);
}

#[test]
fn a_batch_publishes_with_its_other_writes_or_not_at_all() {
    let disk = SimDisk::new(20);
    let (store, topics, topic) = one_topic(&disk);
    let other = topics.create("other", TopicOptions::new()).unwrap();
    let map = store.map("map").unwrap();
    let long = vec![7; 3 << 20];
    // Each of these makes a batch more than a row of puts, before, between or after messages.
    type Write = fn(&mut Batch, &Map);
    let nothing: Write = |_, _| ();
    let range: Write = |batch, map| batch.delete_range(map, &b"a"[..]..&b"k"[..]).unwrap();
    let append: Write = |batch, map| batch.append(map, b"appended", b"x").unwrap();
    let add: Write = |batch, map| batch.add(map, b"sum", 1).unwrap();
    let mut expected = (Vec::new(), Vec::new());
    for write in [nothing, range, append, add] {
        for place in 0..4 {
            let begin = expected.0.len() as u64;
            map.put(b"before", b"there").unwrap();
            let mut batch = Batch::new();
            let write_at = |at, batch: &mut Batch| (at == place).then(|| write(batch, &map));
            write_at(0, &mut batch);
            batch.put(&map, b"key", begin.to_be_bytes()).unwrap();
            let first = batch.publish(&topic, b"one").unwrap();
            write_at(1, &mut batch);
            let elsewhere = batch.publish(&other, Message::new(b"else").key(b"key")).unwrap();
            batch.delete(&map, b"gone").unwrap();
            write_at(2, &mut batch);
            let second = batch.publish(&topic, b"two").unwrap();
            let writes = batch.len();
            if place == 3 {
                batch.publish(&topic, &long).unwrap();
            }
            write_at(3, &mut batch);
            assert_eq!(writes, 5 + (place < 3 && write as usize != nothing as usize) as usize);
            assert_eq!(first.published(), None, "not committed yet");
            store.write(batch).unwrap();
            assert_eq!([first.offset(), second.offset()], [Some(begin), Some(begin + 1)]);
            assert_eq!(elsewhere.offset(), Some(expected.1.len() as u64));
            assert_eq!(map.get(b"key").unwrap().as_deref(), Some(&begin.to_be_bytes()[..]));
            expected.0.extend(["one".to_string(), "two".to_string()]);
            expected.1.push("else".to_string());
            if place == 3 {
                expected.0.push(text(&long));
            }
        }
    }
    assert_eq!(map.get(b"sum").unwrap().as_deref(), Some(&4_i64.to_be_bytes()[..]));
    assert_eq!(map.get(b"before").unwrap().as_deref(), Some(&b"there"[..]));

    let mut batch = Batch::new();
    batch.put(&map, b"key", b"never").unwrap();
    let never = batch.publish(&topic, b"never").unwrap();
    drop(batch);
    assert_eq!(never.published(), None);
    // The first message of a refused batch leaves nothing to the next batch of the thread.
    let mut late = Batch::new();
    late.publish(&topic, b"late").unwrap();
    late.put(&map, b"key", b"late").unwrap();
    let refused = late.publish(&other, &long).unwrap();
    topics.delete("other").unwrap();
    let refusal = store.write(late).unwrap_err();
    assert!(matches!(refusal.reason(), Reason::TopicDeleted { .. }), "{refusal:?}");
    assert_eq!(refused.published(), None);
    assert_ne!(map.get(b"key").unwrap().as_deref(), Some(&b"late"[..]));
    store.write(Batch::new()).unwrap();

    let store = open(&disk.kill());
    let topic = crate::common::topics(&store).topic("orders").unwrap();
    let found = all(&topic).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert!(found == expected.0, "{} of {}", found.len(), expected.0.len());
    check(&store);
}

#[test]
fn a_batch_lasts_as_it_asks_for_and_its_messages_are_there_before() {
    let disk = SimDisk::new(21);
    let (store, _, topic) = one_topic(&disk);
    let mut synced = Batch::new();
    synced.durability(Durability::Synced);
    let first = synced.publish(&topic, b"first").unwrap();
    store.write(synced).unwrap();
    let mut later = Batch::new();
    later.durability(Durability::Synced);
    let second = later.publish(&topic, b"second").unwrap();
    let future = store.write_async(later).unwrap();
    assert_eq!([first.offset(), second.offset()], [Some(0), Some(1)]);
    drop(future);
    store.sync().unwrap();
    let mut written = Batch::new();
    written.publish(&topic, b"third").unwrap();
    store.write(written).unwrap();
    for seed in 0..20 {
        let store = open(&disk.power_cut(seed));
        let kept = all(&crate::common::topics(&store).topic("orders").unwrap());
        assert_eq!(kept[..2], [(0, "first".into()), (1, "second".into())]);
    }
}

#[test]
fn publishers_of_one_topic_never_conflict() {
    let (store, _, topic) = one_topic(&SimDisk::new(3));
    let mut open: Vec<_> = (0..10)
        .map(|_| store.begin(TransactionOptions::new()).unwrap())
        .collect();
    let tickets: Vec<_> = open.iter_mut().map(|tx| tx.publish(&topic, b"x").unwrap()).collect();
    for tx in open.into_iter().rev() {
        tx.commit().unwrap();
    }
    let offsets: Vec<_> = tickets.iter().rev().map(|ticket| ticket.offset().unwrap()).collect();
    assert_eq!(offsets, (0..10).collect::<Vec<_>>());
}

#[test]
fn reading_starts_where_it_is_told_to() {
    let disk = SimDisk::new(4);
    let (_, _, topic) = one_topic(&disk);
    let mut times = Vec::new();
    for number in 0..10 {
        let published = topic.publish(&number.to_string()).unwrap();
        times.push(published.time());
        disk.advance(SECOND);
    }
    let first = |start| topic.read(start, 1).unwrap().get(0).map(|message| message.offset());
    assert_eq!(first(Start::Beginning), Some(0));
    assert_eq!(first(Start::Offset(4)), Some(4));
    assert_eq!(first(Start::Last(3)), Some(7));
    assert_eq!(first(Start::Last(100)), Some(0));
    assert_eq!(first(Start::Tail), None);
    assert_eq!(first(Start::Offset(10)), None);
    assert_eq!(first(Start::Time(times[5])), Some(5));
    assert_eq!(first(Start::Time(times[5] + Duration::from_millis(1))), Some(6));
    assert_eq!(first(Start::Time(SystemTime::UNIX_EPOCH)), Some(0));
    assert_eq!(
        first(Start::Time(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40))),
        None
    );
    let (topic_name, asked, next) = ("orders".to_string(), 11, 10);
    let expected = TopicError::NotYetPublished {
        topic: topic_name,
        asked,
        next,
    };
    assert_eq!(facts(topic.read(Start::Offset(11), 1)), expected);
    assert_eq!(topic.read(Start::Beginning, 4).unwrap().len(), 4);
}

#[test]
fn retention_lets_go_of_the_oldest_and_says_what_is_left() {
    let disk = SimDisk::new(5);
    let (store, _, topic) = one_topic(&disk);
    for _ in 0..10 {
        publish(&topic, 100);
        disk.advance(SECOND);
    }
    let kept = |options: TopicOptions| {
        topic.configure(options).unwrap();
        topic.trim().unwrap();
        topic.describe().unwrap().messages()
    };
    assert_eq!(kept(TopicOptions::new()), 1000);
    assert_eq!(kept(TopicOptions::new().keep_messages(900)), 900);
    assert_eq!(kept(TopicOptions::new().keep_for(Duration::from_millis(8_500))), 800);
    let bytes = topic.describe().unwrap().bytes;
    assert_eq!(kept(TopicOptions::new().keep_bytes(bytes)), 800);
    let left = kept(TopicOptions::new().keep_bytes(bytes / 2));
    assert!((395..=405).contains(&left), "{left}");
    assert!(topic.describe().unwrap().bytes <= bytes / 2);
    // More than are removed one by one.
    publish(&topic, 2000);
    assert_eq!(kept(TopicOptions::new().keep_messages(100)), 100);
    let trimmed = TopicError::Trimmed {
        topic: "orders".into(),
        asked: 5,
        first: 2900,
    };
    assert_eq!(facts(topic.read(Start::Offset(5), 1)), trimmed);
    // A reader that asks for no messages gets no error about trimmed messages.
    assert!(topic.read(Start::Beginning, 0).unwrap().is_empty());
    disk.advance(100 * SECOND);
    assert_eq!(kept(TopicOptions::new().keep_for(SECOND)), 0);
    assert_eq!(
        facts(topic.read(Start::Offset(2950), 1)),
        TopicError::Trimmed {
            topic: "orders".into(),
            asked: 2950,
            first: 3000
        }
    );
    assert_eq!(topic.publish(b"next").unwrap().offset, 3000);
    store.maintain().unwrap();
    check(&store);
    drop((topic, store));
    let store = open(&disk.kill());
    let topic = topics(&store).topic("orders").unwrap();
    assert_eq!(all(&topic), [(3000, "next".into())]);
}

#[test]
fn trimming_takes_long_payloads_along() {
    let disk = SimDisk::new(6);
    let (store, _, topic) = one_topic(&disk);
    let long = vec![1; 300_000];
    for _ in 0..4 {
        topic.publish(&long).unwrap();
        topic.publish(b"short").unwrap();
    }
    topic.configure(TopicOptions::new().keep_messages(1)).unwrap();
    assert_eq!(topic.trim().unwrap(), 7);
    store.maintain().unwrap();
    let payloads = store.existing_reserved_map("payloads").unwrap().unwrap();
    assert_eq!(payloads.count().unwrap(), 0);
    assert_eq!(topic.read(Start::Beginning, 9).unwrap().len(), 1);
}

#[test]
fn names_and_options_that_make_no_sense_are_refused() {
    let (_, topics, topic) = one_topic(&SimDisk::new(7));
    assert!(matches!(
        facts(topics.create("a b", TopicOptions::new())),
        TopicError::InvalidName { at: 1, .. }
    ));
    assert!(matches!(
        facts(topics.create("orders", TopicOptions::new())),
        TopicError::TopicExists { .. }
    ));
    assert!(matches!(
        facts(topics.topic("missing")),
        TopicError::UnknownTopic { .. }
    ));
    assert!(matches!(
        facts(topics.delete("missing")),
        TopicError::UnknownTopic { .. }
    ));
    let nothing = TopicOptions::new().keep_messages(0);
    assert!(matches!(
        facts(topic.configure(nothing)),
        TopicError::InvalidOptions { .. }
    ));
    topics.create_on_use(true).unwrap();
    assert_eq!(topics.topic("missing").unwrap().publish(b"x").unwrap().offset, 0);
    topics.create_on_use(false).unwrap();
    assert!(matches!(facts(topics.topic("other")), TopicError::UnknownTopic { .. }));
    assert_eq!(topics.list().unwrap(), ["missing", "orders"]);
}

#[test]
fn a_deleted_topic_is_gone_for_its_handles_and_not_for_a_new_one() {
    let disk = SimDisk::new(8);
    let (store, topics, topic) = one_topic(&disk);
    publish(&topic, 10);
    let publisher = topic.publisher("me").unwrap();
    publisher.publish(1, b"x").unwrap();
    topic
        .ensure_group("group", Start::Beginning, Default::default())
        .unwrap();
    let mut late = store.begin(TransactionOptions::new()).unwrap();
    late.publish(&topic, b"late").unwrap();
    topics.delete("orders").unwrap();
    let is_deleted =
        |error: duramen_engine::Error| matches!(error.reason(), Reason::TopicDeleted { name } if name == "orders");
    assert!(is_deleted(topic.publish(b"x").unwrap_err()));
    assert!(is_deleted(late.commit().unwrap_err()));
    assert!(is_deleted(topic.read(Start::Beginning, 1).unwrap_err()));
    assert!(is_deleted(topic.trim().unwrap_err()));
    assert!(is_deleted(topic.describe().unwrap_err()));
    assert!(is_deleted(topic.configure(TopicOptions::new()).unwrap_err()));
    assert!(is_deleted(topic.groups().unwrap_err()));
    let again = topics.create("orders", TopicOptions::new()).unwrap();
    assert!(is_deleted(topic.publish(b"x").unwrap_err()));
    assert!(is_deleted(topic.describe().unwrap_err()));
    assert_eq!(again.publish(b"new").unwrap().offset, 0);
    assert_eq!(again.groups().unwrap(), []);
    assert_eq!(again.publisher("me").unwrap().newest().unwrap(), None);
    for name in ["messages", "publishers", "groups", "states"] {
        let map = store.existing_reserved_map(name).unwrap().unwrap();
        // The registry has four messages: the topic and its dead-letter topic were created, the topic was deleted, and
        // created again.
        let expected = if name == "messages" { 5 } else { 0 };
        assert_eq!(map.count().unwrap(), expected, "{name}");
    }
}

#[test]
fn a_publisher_publishes_once_however_often_it_tries() {
    let disk = SimDisk::new(9);
    let (store, _, topic) = one_topic(&disk);
    let publisher = topic.publisher("till").unwrap();
    assert_eq!(publisher.newest().unwrap(), None);
    let published = |outcome| matches!(outcome, Outcome::Published(_));
    assert!(published(publisher.publish(5, b"a").unwrap()));
    topic.publish(b"of somebody else").unwrap();
    assert_eq!(publisher.publish(5, b"a").unwrap(), Outcome::Duplicate(Some(0)));
    assert!(published(publisher.publish(9, b"b").unwrap()));
    assert_eq!(publisher.publish(5, b"a").unwrap(), Outcome::Duplicate(None));
    let killed = open(&disk.kill());
    let again = topics(&killed).topic("orders").unwrap();
    let publisher = again.publisher("till").unwrap();
    assert_eq!(publisher.newest().unwrap(), Some(9));
    assert_eq!(publisher.publish(9, b"b").unwrap(), Outcome::Duplicate(Some(2)));
    let ticket = killed.transact(|tx| tx.publish_once(&publisher, 9, b"b")).unwrap();
    assert!(ticket.is_none());
    let ticket = killed.transact(|tx| tx.publish_once(&publisher, 10, b"c")).unwrap();
    assert_eq!(ticket.unwrap().offset(), Some(3));
    assert_eq!(all(&again).len(), 4);
    let last = again.read(Start::Last(1), 1).unwrap();
    assert_eq!(last.get(0).unwrap().publisher(), Some(("till", 10)));
    // Another topic and another name have their own counters.
    assert!(published(again.publisher("other").unwrap().publish(1, b"d").unwrap()));
    drop(store);
}

#[test]
fn attempts_of_one_publisher_at_the_same_time_publish_once() {
    let (_, _, topic) = one_topic(&SimDisk::new(10));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let publisher = topic.publisher("till").unwrap();
                for sequence in 1..=100 {
                    publisher.publish(sequence, &sequence.to_string()).unwrap();
                }
            });
        }
    });
    let found: Vec<_> = all(&topic)
        .into_iter()
        .map(|(_, text)| text.parse::<u64>().unwrap())
        .collect();
    // A thread that lags finds its number taken. The newest message is there once, and the order never breaks.
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
    assert_eq!(found.last(), Some(&100));
}

#[test]
fn silent_publishers_are_forgotten_and_busy_ones_are_not() {
    let disk = SimDisk::new(11);
    let (_, _, topic) = one_topic(&disk);
    topic
        .configure(TopicOptions::new().remember_publishers_for(Some(10 * SECOND)))
        .unwrap();
    let (busy, silent) = (topic.publisher("busy").unwrap(), topic.publisher("silent").unwrap());
    busy.publish(1, b"x").unwrap();
    silent.publish(1, b"x").unwrap();
    disk.advance(8 * SECOND);
    busy.publish(2, b"x").unwrap();
    disk.advance(8 * SECOND);
    topic.trim().unwrap();
    assert_eq!((busy.newest().unwrap(), silent.newest().unwrap()), (Some(2), None));
}

#[test]
fn a_full_disk_refuses_a_message_and_loses_none() {
    let disk = SimDisk::new(12);
    let (store, _, topic) = one_topic(&disk);
    disk.set_capacity(Some(disk.allocated_bytes() + (300 << 10)));
    let payload = vec![5; 5000];
    let mut published = 0;
    let error = loop {
        match topic.publish(&payload) {
            Ok(_) => published += 1,
            Err(error) => break error,
        }
        assert!(published < 10_000);
    };
    assert_eq!(error.kind(), duramen_engine::Kind::MakeSpace, "{error}");
    assert_eq!(topic.describe().unwrap().next, published);
    topic
        .configure(TopicOptions::new().keep_messages(1))
        .or_else(|_| {
            disk.set_capacity(None);
            topic.configure(TopicOptions::new().keep_messages(1))
        })
        .unwrap();
    topic.trim().unwrap();
    disk.set_capacity(None);
    assert_eq!(topic.publish(&payload).unwrap().offset, published);
    check(&store);
}

#[test]
fn durability_is_that_of_the_handle() {
    let disk = SimDisk::new(13);
    let (_, _, topic) = one_topic(&disk);
    topic.publish(b"written").unwrap();
    topic.with_durability(Durability::Synced).publish(b"synced").unwrap();
    topic.publish(b"perhaps lost").unwrap();
    for seed in 0..20 {
        let store = open(&disk.power_cut(seed));
        let topic = topics(&store).topic("orders").unwrap();
        let kept = topic.describe().unwrap().next;
        assert!((2..=3).contains(&kept), "{kept}");
    }
}

#[test]
fn a_transaction_of_another_store_refuses_a_topic_as_what_it_is() {
    let (store, _, _) = one_topic(&SimDisk::new(21));
    let (_other, _, foreign) = one_topic(&SimDisk::new(22));
    let refused = store
        .transact(|tx| tx.publish(&foreign, b"astray").map(drop))
        .unwrap_err();
    assert!(matches!(refused.reason(), Reason::ForeignMap { .. }), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("of a topic or group belongs to another store"),
        "{refused}"
    );
}

#[test]
fn ensure_applies_options_and_create_names_those_that_differ() {
    let disk = SimDisk::new(30);
    let (_, topics, topic) = one_topic(&disk);
    let five = TopicOptions::new().keep_messages(5).keep_for(90 * SECOND);
    assert_eq!(topics.ensure("orders", five.clone()).unwrap().name(), "orders");
    assert_eq!(topic.describe().unwrap().options, five);
    let asked = TopicOptions::new().keep_messages(500).drop_acknowledged(true);
    let expected = [
        "keep_for is 90s, asked for none",
        "keep_messages is 5, asked for 500",
        "drop_acknowledged is false, asked for true",
    ];
    let before = store_rows(&topics);
    match facts(topics.create("orders", asked)) {
        TopicError::TopicExists { name, differences } => {
            assert_eq!((&*name, &differences[..]), ("orders", &expected.map(String::from)[..]));
        }
        other => panic!("{other:?}"),
    }
    match facts(topics.create("orders", five.clone())) {
        TopicError::TopicExists { differences, .. } => assert!(differences.is_empty()),
        other => panic!("{other:?}"),
    }
    let error = topics.create("orders", TopicOptions::new()).unwrap_err().to_string();
    assert!(error.contains("keep_messages is 5, asked for none"), "{error}");
    assert_eq!(topic.describe().unwrap().options, five, "a refusal changes nothing");
    // Options that a topic has already cost no commit.
    topics.ensure("orders", five).unwrap();
    assert_eq!(store_rows(&topics), before);
    let nothing = TopicOptions::new().keep_messages(0);
    assert!(matches!(
        facts(topics.ensure("new", nothing)),
        TopicError::InvalidOptions { .. }
    ));
    assert_eq!(topics.list().unwrap(), ["orders"]);
    topics.ensure("new", TopicOptions::new()).unwrap();
    assert_eq!(topics.list().unwrap(), ["new", "orders"]);
}

/// Rows of topics and messages, and the newest commit.
fn store_rows(topics: &duramen_topic::Topics) -> (u64, u64, u64) {
    let store = topics.store();
    let count = |name: &str| store.existing_reserved_map(name).unwrap().unwrap().count().unwrap();
    (count("topics"), count("messages"), store.snapshot().unwrap().commit())
}

#[test]
fn a_transaction_creates_configures_and_deletes_topics_with_its_other_writes() {
    let store = open(&SimDisk::new(1));
    let topics = topics(&store);
    let kept = topics.create("kept", TopicOptions::new()).unwrap();
    kept.publish(b"first").unwrap();
    let exclusive = TransactionOptions::new().exclusive();
    let change = |tx: &mut Transaction| {
        topics.create_in(tx, "new", &TopicOptions::new())?;
        assert!(topics.create_in(tx, "new", &TopicOptions::new()).is_err());
        topics.configure_in(tx, "kept", &TopicOptions::new().keep_messages(5))?;
        assert!(topics.configure_in(tx, "missing", &TopicOptions::new()).is_err());
        assert_eq!(tx.next_offset(&kept)?, 1);
        tx.publish(&kept, b"second")
    };
    let mut tx = store.begin(exclusive).unwrap();
    change(&mut tx).unwrap();
    tx.rollback();
    assert_eq!(topics.list().unwrap(), ["kept"]);
    let mut tx = store.begin(exclusive).unwrap();
    let ticket = change(&mut tx).unwrap();
    tx.commit().unwrap();
    assert_eq!(ticket.offset(), Some(1));
    assert_eq!(topics.list().unwrap(), ["kept", "new"]);
    assert_eq!(kept.describe().unwrap().options.keep_messages, Some(5));
    assert_eq!(topics.topic("new").unwrap().publish(b"message").unwrap().offset, 0);
    let mut tx = store.begin(exclusive).unwrap();
    topics.delete_in(&mut tx, "kept").unwrap();
    assert!(tx.next_offset(&kept).is_err());
    tx.commit().unwrap();
    assert_eq!(topics.list().unwrap(), ["new"]);
    assert!(kept.publish(b"too late").is_err());
}

#[test]
fn a_commit_has_the_time_that_was_asked_for_and_time_never_runs_back() {
    let store = open(&SimDisk::new(1));
    let topics = topics(&store);
    let topic = topics.create("t", TopicOptions::new()).unwrap();
    // Later than every clock: what came before does not matter.
    let base = SystemTime::UNIX_EPOCH + store.wall_clock() + Duration::from_secs(1_000_000);
    let publish_at = |time| {
        let mut tx = store.begin(TransactionOptions::new().commit_time(time)).unwrap();
        let ticket = tx.publish(&topic, b"message").unwrap();
        tx.commit().unwrap();
        ticket.published().unwrap().time()
    };
    let millis = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    assert_eq!(millis(publish_at(base)), millis(base));
    assert_eq!(millis(publish_at(base - Duration::from_secs(9))), millis(base));
    let later = base + Duration::from_secs(9);
    assert_eq!(millis(publish_at(later)), millis(later));
    assert_eq!(millis(topic.publish(b"by the clock").unwrap().time()), millis(later));
}
