//! Groups over patterns: topics that come and go, dead letters, options, and what wakes a member.

use std::time::Duration;

use crate::common::{SECOND, check, facts, one_topic, publish};
use duramen_io::SimDisk;
use duramen_topic::{
    Deliveries, GroupOptions, Pattern, PatternMember, Redriven, Start, TopicError, TopicOptions, Topics,
};

const NOW: Duration = Duration::ZERO;

fn orders() -> Pattern {
    Pattern::new("orders.>").unwrap()
}

fn options() -> GroupOptions {
    GroupOptions::new().lease(10 * SECOND).tries(2).back_off(&[SECOND])
}

fn create(topics: &Topics, name: &str, messages: u64) {
    publish(&topics.create(name, TopicOptions::new()).unwrap(), messages);
}

/// Receives all available messages: as topic:offset, sorted; and the deliveries.
fn collect(member: &mut PatternMember) -> (Vec<String>, Vec<Deliveries>) {
    let (mut found, mut all) = (Vec::new(), Vec::new());
    while let Some(deliveries) = member.receive(100, NOW).unwrap() {
        let messages = deliveries.messages().iter();
        found.extend(messages.map(|message| format!("{}:{}", message.topic(), message.offset())));
        all.push(deliveries);
    }
    found.sort();
    (found, all)
}

#[test]
fn members_share_the_messages_of_all_topics_also_of_those_that_are_created_later() {
    let disk = SimDisk::new(1);
    let (store, topics, _) = one_topic(&disk);
    create(&topics, "orders.eu", 2);
    create(&topics, "other.eu", 2);
    let group = topics
        .create_group(&orders(), "packers", Start::Offset(1), options())
        .unwrap();
    let (mut one, mut other) = (group.member("one"), group.member("other"));
    create(&topics, "orders.us.ny", 1);
    let (found, held) = collect(&mut one);
    assert_eq!(found, ["orders.eu:1", "orders.us.ny:0"]);
    assert!(collect(&mut other).0.is_empty());
    held[0].acknowledge().unwrap();
    let described = group.describe().unwrap();
    assert_eq!(
        (described.pending(), described.lag(), described.topics.len()),
        (1, 0, 2)
    );
    // The lease of the second message ends, and the message waits.
    disk.advance(11 * SECOND);
    assert!(collect(&mut other).0.is_empty());
    disk.advance(2 * SECOND);
    let (found, _held) = collect(&mut other);
    assert_eq!(found.len(), 1);
    topics.delete("orders.eu").unwrap();
    create(&topics, "orders.eu", 1);
    assert_eq!(collect(&mut one).0, ["orders.eu:0"]);
    check(&store);
}

#[test]
fn dead_letters_of_all_topics_go_to_one_topic_that_the_group_leaves_out_and_come_back_once() {
    let disk = SimDisk::new(2);
    let (_, topics, _) = one_topic(&disk);
    let everything = Pattern::new(">").unwrap();
    let group = topics
        .create_group(&everything, "packers", Start::Beginning, options())
        .unwrap();
    create(&topics, "orders.eu", 2);
    create(&topics, "orders.us", 1);
    let mut member = group.member("member");
    for deliveries in collect(&mut member).1 {
        deliveries
            .into_iter()
            .for_each(|delivery| delivery.give_up("poison").unwrap());
    }
    assert_eq!(topics.topic("dead.packers").unwrap().describe().unwrap().messages(), 3);
    assert!(collect(&mut member).0.is_empty());
    let one = group.at("orders.us").unwrap();
    assert_eq!(one.redrive(9).unwrap(), Redriven { delivered: 1, gone: 0 });
    assert_eq!(group.redrive(1).unwrap(), Redriven { delivered: 1, gone: 0 });
    assert_eq!(group.redrive(9).unwrap(), Redriven { delivered: 1, gone: 0 });
    assert_eq!(group.redrive(9).unwrap(), Redriven::default());
    let (found, _held) = collect(&mut member);
    assert_eq!(found, ["orders.eu:0", "orders.eu:1", "orders.us:0"]);
}

#[test]
fn options_pause_reset_and_delete_count_for_all_topics() {
    let disk = SimDisk::new(3);
    let (_, topics, _) = one_topic(&disk);
    create(&topics, "orders.eu", 1);
    let group = topics
        .create_group(&orders(), "packers", Start::Beginning, options())
        .unwrap();
    let again = topics.create_group(&orders(), "packers", Start::Beginning, options().tries(3));
    assert!(matches!(facts(again), TopicError::GroupExists { .. }));
    let other = topics.ensure_group(&Pattern::new("x.*").unwrap(), "packers", Start::Tail, options());
    assert!(matches!(facts(other), TopicError::OtherPattern { .. }));
    let durable = topics.durable(&orders(), "packers", Start::Beginning);
    assert!(matches!(facts(durable), TopicError::OtherKind { .. }));
    assert!(matches!(
        facts(topics.existing_group("none")),
        TopicError::UnknownPatternGroup { .. }
    ));
    group.pause().unwrap();
    create(&topics, "orders.us", 1);
    let mut member = group.member("member");
    assert!(collect(&mut member).0.is_empty());
    group.resume().unwrap();
    let (found, held) = collect(&mut member);
    assert_eq!(found, ["orders.eu:0", "orders.us:0"]);
    group.configure(options().tries(7)).unwrap();
    let options_at = |topic: &str| group.at(topic).unwrap().describe().unwrap().options.unwrap().tries;
    assert_eq!((options_at("orders.eu"), options_at("orders.us")), (Some(7), Some(7)));
    let own = group.configure(options().dead_letters("orders.eu"));
    assert!(matches!(facts(own), TopicError::InvalidOptions { .. }));
    held.iter().for_each(|held| held.acknowledge().unwrap());
    group.reset(Start::Beginning).unwrap();
    let (found, _held) = collect(&mut member);
    assert_eq!(found, ["orders.eu:0", "orders.us:0"]);
    group.delete().unwrap();
    assert!(matches!(facts(member.receive(1, NOW)), TopicError::GroupDeleted { .. }));
    create(&topics, "orders.asia", 1);
    assert!(topics.topic("orders.asia").unwrap().groups().unwrap().is_empty());
}

#[test]
fn a_member_that_waits_is_woken_by_a_topic_that_is_created_and_by_a_message() {
    let directory = tempfile::tempdir().unwrap();
    let store = duramen_engine::Store::open(directory.path()).unwrap();
    let topics = Topics::open(&store).unwrap();
    let group = topics
        .ensure_group(&orders(), "packers", Start::Beginning, GroupOptions::new())
        .unwrap();
    let mut member = group.member("member");
    std::thread::scope(|scope| {
        scope.spawn(|| create(&topics, "orders.eu", 1));
        let first = member.receive(1, Duration::from_secs(60)).unwrap().expect("a message");
        first.acknowledge().unwrap();
        let topic = topics.topic("orders.eu").unwrap();
        scope.spawn(move || publish(&topic, 1));
        assert!(member.receive(1, Duration::from_secs(60)).unwrap().is_some());
    });
}

#[test]
fn topics_that_the_group_leaves_out_keep_groups_of_its_name_to_themselves() {
    let disk = SimDisk::new(4);
    let (_, topics, _) = one_topic(&disk);
    create(&topics, "dead.letters", 1);
    let letters = topics.topic("dead.letters").unwrap();
    let own = letters
        .create_group("packers", Start::Beginning, options().discard_dead_letters())
        .unwrap();
    let everything = Pattern::new(">").unwrap();
    let group = topics
        .create_group(&everything, "packers", Start::Beginning, options())
        .unwrap();
    create(&topics, "orders.eu", 1);
    let mut member = group.member("member");
    let (found, _held) = collect(&mut member);
    assert_eq!(found, ["orders.eu:0"]);
    assert!(matches!(
        facts(group.at("dead.letters")),
        TopicError::UnknownGroup { .. }
    ));
    group.pause().unwrap();
    group.configure(options().tries(9)).unwrap();
    assert!(own.member("own").receive(1, NOW).unwrap().is_some(), "it is not paused");
    group.delete().unwrap();
    assert_eq!(own.describe().unwrap().pending, 1, "it is still there");
}

#[test]
fn a_topic_that_lost_the_group_is_left_out_until_it_has_it_again() {
    let disk = SimDisk::new(5);
    let (_, topics, _) = one_topic(&disk);
    let group = topics
        .create_group(&orders(), "packers", Start::Beginning, options())
        .unwrap();
    create(&topics, "orders.eu", 1);
    let mut member = group.member("member");
    let (found, held) = collect(&mut member);
    assert_eq!(found, ["orders.eu:0"]);
    drop(held);
    let eu = topics.topic("orders.eu").unwrap();
    eu.delete_group("packers").unwrap();
    publish(&eu, 1);
    assert!(collect(&mut member).0.is_empty());
    eu.create_group("packers", Start::Last(1), options()).unwrap();
    let (found, _held) = collect(&mut member);
    assert_eq!(found, ["orders.eu:1"]);
}
