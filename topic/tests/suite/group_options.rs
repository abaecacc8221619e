//! Options of groups: how many messages are in flight, filters, order by key; and the effect of retention on groups.

use std::time::Duration;

use crate::common::{SECOND, facts, one_topic, publish};
use duramen_io::SimDisk;
use duramen_topic::{
    Deliveries, Delivery, FILTER_BYTES_MAX, FILTER_HEADERS_MAX, Filter, Group, GroupOptions, LeaseEnd, Message, Start,
    TopicError, TopicOptions, TopicWrites,
};

const NOW: Duration = Duration::ZERO;

/// Leases of ten seconds, back-off of one and five.
fn options() -> GroupOptions {
    GroupOptions::new().lease(10 * SECOND).back_off(&[SECOND, 5 * SECOND])
}

fn receive(group: &Group, most: usize) -> Option<Deliveries> {
    group.member("member").receive(most, NOW).unwrap()
}

fn offsets(deliveries: &Deliveries) -> Vec<u64> {
    deliveries.messages().iter().map(|message| message.offset()).collect()
}

fn one(group: &Group) -> Delivery {
    receive(group, 1).expect("a message").into_iter().next().unwrap()
}

#[test]
fn no_more_messages_are_in_flight_than_may_be() {
    let disk = SimDisk::new(10);
    let (store, _, topic) = one_topic(&disk);
    publish(&topic, 20);
    let group = topic
        .ensure_group("group", Start::Beginning, options().in_flight(5))
        .unwrap();
    let first: Vec<_> = receive(&group, 10).unwrap().into_iter().collect();
    assert_eq!(first.len(), 5);
    assert!(receive(&group, 10).is_none());
    first[0].acknowledge().unwrap();
    first[1].retry("later").unwrap();
    let fifth = receive(&group, 10).unwrap();
    assert_eq!(offsets(&fifth), [5]);
    // The group also notices what a transaction settles.
    store
        .transact(|tx| first[2..].iter().try_for_each(|delivery| tx.acknowledge(delivery)))
        .unwrap();
    let next = receive(&group, 10).unwrap();
    assert_eq!(offsets(&next), [6, 7, 8]);
    assert!(receive(&group, 10).is_none());
}

#[test]
fn what_all_groups_have_acknowledged_can_be_let_go() {
    let disk = SimDisk::new(12);
    let (_, _, topic) = one_topic(&disk);
    topic.configure(TopicOptions::new().drop_acknowledged(true)).unwrap();
    publish(&topic, 10);
    let first = || {
        topic.trim().unwrap();
        topic.describe().unwrap().first
    };
    assert_eq!(first(), 0);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let reader = topic.durable("reader", Start::Beginning).unwrap();
    let each: Vec<_> = receive(&group, 6).unwrap().into_iter().collect();
    reader.acknowledge_through(8).unwrap();
    assert_eq!(first(), 0);
    each[0].acknowledge().unwrap();
    each[1].retry("no").unwrap();
    each[2..].iter().for_each(|delivery| delivery.acknowledge().unwrap());
    disk.advance(Duration::from_secs(40));
    let again = receive(&group, 1).unwrap();
    assert_eq!(offsets(&again), [1]);
    assert_eq!(first(), 1);
    again.acknowledge().unwrap();
    assert_eq!(first(), 6);
    receive(&group, 100).unwrap().acknowledge().unwrap();
    assert_eq!(first(), 9);
    reader.acknowledge_through(9).unwrap();
    assert_eq!(first(), 10);
}

#[test]
fn a_group_passes_over_what_retention_took() {
    let disk = SimDisk::new(13);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 5);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    one(&group).retry("no").unwrap();
    publish(&topic, 5);
    topic.configure(TopicOptions::new().keep_messages(2)).unwrap();
    topic.trim().unwrap();
    disk.advance(SECOND);
    assert_eq!(offsets(&receive(&group, 10).unwrap()), [8, 9]);
    disk.advance(100 * SECOND);
    let pending: Vec<_> = group.pending().unwrap().iter().map(|pending| pending.offset).collect();
    assert_eq!(pending, [8, 9]);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let (_, _, topic) = one_topic(&SimDisk::new(14));
    let wrong = [
        GroupOptions::new().lease(Duration::ZERO),
        GroupOptions::new().tries(0),
        GroupOptions::new().in_flight(0),
        GroupOptions::new().in_flight(u32::MAX),
        GroupOptions::new().back_off(&[SECOND; 65]),
    ];
    for options in wrong {
        let refused = topic.ensure_group("group", Start::Beginning, options).map(|_| ());
        assert!(matches!(facts(refused), TopicError::InvalidOptions { .. }));
    }
    let name = topic.ensure_group("a b", Start::Beginning, options()).map(|_| ());
    assert!(matches!(facts(name), TopicError::InvalidName { at: 1, .. }));
    let dead = topic
        .ensure_group("group", Start::Beginning, options().dead_letters("a..b"))
        .map(|_| ());
    assert!(matches!(facts(dead), TopicError::InvalidName { at: 2, .. }));
}

#[test]
fn lag_counts_what_is_kept_and_what_was_skipped_is_counted_and_told() {
    let disk = SimDisk::new(45);
    let (_, _, topic) = one_topic(&disk);
    topic.configure(TopicOptions::new().keep_messages(10)).unwrap();
    publish(&topic, 100);
    let group = topic.ensure_group("group", Start::Offset(0), options()).unwrap();
    let described = || {
        let described = group.describe().unwrap();
        (described.lag, described.skipped, described.pending)
    };
    assert_eq!(described(), (100, 0, 0));
    topic.trim().unwrap();
    assert_eq!(described(), (10, 90, 0));
    let got = receive(&group, 4).unwrap();
    assert_eq!(
        (offsets(&got), got.messages().gap()),
        (vec![90, 91, 92, 93], Some(0..90))
    );
    assert_eq!(described(), (6, 90, 4));
    // A waiting message that retention deletes is skipped as well.
    got.into_iter().for_each(|one| one.retry("no").unwrap());
    publish(&topic, 10);
    topic.trim().unwrap();
    disk.advance(SECOND);
    let got = receive(&group, 100).unwrap();
    assert_eq!((got.len(), got.messages().gap()), (10, Some(94..100)));
    got.acknowledge().unwrap();
    assert!(receive(&group, 100).is_none());
    assert_eq!(described(), (0, 100, 0));
}

#[test]
fn a_group_that_exists_is_refused_with_what_differs_or_gets_the_options() {
    let disk = SimDisk::new(46);
    let (_, topics, topic) = one_topic(&disk);
    let first = options().dead_letters("first.dead");
    topic.create_group("group", Start::Beginning, first).unwrap();
    let other = options().tries(3).dead_letters("second.dead");
    let refused = facts(topic.create_group("group", Start::Beginning, other.clone()).map(|_| ()));
    let TopicError::GroupExists { difference, .. } = &refused else {
        panic!("{refused:?}");
    };
    assert!(
        difference.contains("tries is Some(20), asked for Some(3)"),
        "{difference}"
    );
    assert!(
        difference.contains("second.dead") && !difference.contains("lease"),
        "{difference}"
    );
    assert!(
        topics.get("second.dead").unwrap().is_none(),
        "nothing is made on the way to a refusal"
    );
    let group = topic.ensure_group("group", Start::Beginning, other.clone()).unwrap();
    assert_eq!(group.describe().unwrap().options, Some(other));
    assert!(topics.get("second.dead").unwrap().is_some());
    let durable = topic.durable("reader", Start::Beginning).unwrap();
    let kind = topic
        .ensure_group(durable.name(), Start::Beginning, options())
        .map(|_| ());
    assert!(matches!(facts(kind), TopicError::OtherKind { .. }));
}

#[test]
fn a_filter_delivers_what_matches_and_passes_over_the_rest() {
    let disk = SimDisk::new(47);
    let (_, _, topic) = one_topic(&disk);
    let options = options().filter(Filter::new().key("order-*").header("region", "eu*"));
    let group = topic.ensure_group("group", Start::Beginning, options).unwrap();
    assert!(receive(&group, 10).is_none());
    let mut expected = Vec::new();
    for number in 0..10_000u64 {
        let key = if number % 3 == 0 { "order-1" } else { "other" };
        let region = if number % 7 == 0 { "eu-west" } else { "us" };
        topic
            .publish(
                Message::new(b"x")
                    .key(key.as_bytes())
                    .header("region", region.as_bytes()),
            )
            .unwrap();
        expected.extend((number % 21 == 0).then_some(number));
    }
    let mut found = Vec::new();
    let mut member = group.member("member");
    let mut rounds = 0;
    while let Some(got) = member.receive(100, NOW).unwrap() {
        found.extend(offsets(&got));
        assert!(group.describe().unwrap().pending <= 100);
        match rounds % 3 {
            0 => got.acknowledge().unwrap(),
            _ => got.into_iter().for_each(|one| one.acknowledge().unwrap()),
        }
        rounds += 1;
    }
    assert_eq!(found, expected);
    let described = group.describe().unwrap();
    assert_eq!(
        (described.acknowledged, described.pending, described.lag),
        (10_000, 0, 0)
    );
    assert!(group.pending().unwrap().is_empty());
}

#[test]
fn limits_of_filters_and_names_are_errors() {
    let (_, topics, topic) = one_topic(&SimDisk::new(48));
    let refused = |options: GroupOptions| {
        let made = topic.ensure_group("group", Start::Beginning, options);
        assert!(matches!(facts(made.map(|_| ())), TopicError::InvalidOptions { .. }));
    };
    let long = "x".repeat(FILTER_BYTES_MAX);
    refused(options().filter(Filter::new().key(&long).header("a", "b")));
    let many = (0..=FILTER_HEADERS_MAX).fold(Filter::new(), |filter, _| filter.header("a", "b"));
    refused(options().filter(many));
    let most = (0..FILTER_HEADERS_MAX).fold(Filter::new(), |filter, _| filter.header("a", "b"));
    topic
        .ensure_group("group", Start::Beginning, options().filter(most))
        .unwrap();
    // The dead-letter topic's name would be too long.
    let long = topics.create(&"n".repeat(255), TopicOptions::new()).unwrap();
    let made = long.ensure_group("group", Start::Beginning, options()).map(|_| ());
    assert!(matches!(facts(made), TopicError::InvalidOptions { .. }));
    long.ensure_group("group", Start::Beginning, options().discard_dead_letters())
        .unwrap();
}

#[test]
fn a_group_that_allows_many_messages_counts_them_to_the_last_one() {
    let disk = SimDisk::new(49);
    let (store, _, topic) = one_topic(&disk);
    topic.publish_all(vec![b"message"; 12_000]).unwrap();
    let group = topic
        .ensure_group("group", Start::Beginning, options().in_flight(10_001))
        .unwrap();
    let mut member = group.member("member");
    let mut held = Vec::new();
    while let Some(some) = member.receive(700, NOW).unwrap() {
        held.push(some);
    }
    let count = |held: &[Deliveries]| held.iter().map(Deliveries::len).sum::<usize>();
    assert_eq!(count(&held), 10_001);
    // However messages are closed, the same number is delivered.
    held.pop().unwrap().acknowledge().unwrap();
    let some = held.pop().unwrap();
    store.transact(|tx| tx.acknowledge_all(&some)).unwrap();
    for (place, one) in held.pop().unwrap().into_iter().enumerate() {
        match place % 3 {
            0 => one.acknowledge().unwrap(),
            1 => one.give_up("no").unwrap(),
            _ => store.transact(|tx| tx.acknowledge(&one)).unwrap(),
        }
    }
    while let Some(some) = member.receive(1000, NOW).unwrap() {
        held.push(some);
    }
    assert_eq!(count(&held), 10_001);
    // A failed message stays in flight.
    held.pop().unwrap().into_iter().for_each(|one| one.retry("no").unwrap());
    assert!(member.receive(1, NOW).unwrap().is_none());
    assert_eq!(group.describe().unwrap().pending, 10_001);
}

/// A topic with messages of keys, by their letters, and an ordered group.
fn ordered(disk: &SimDisk, keys: &str) -> (duramen_engine::Store, Group) {
    let (store, _, topic) = one_topic(disk);
    for key in keys.chars() {
        let key = key.to_string();
        match key.as_str() {
            "-" => topic.publish(b"without a key").unwrap(),
            _ => topic.publish(Message::new(b"step").key(key.as_bytes())).unwrap(),
        };
    }
    let group = topic
        .ensure_group("group", Start::Beginning, options().order_by_key(true))
        .unwrap();
    (store, group)
}

fn tries(deliveries: &Deliveries) -> Vec<(u64, u32)> {
    let each = deliveries.clone().into_iter();
    each.map(|one| (one.offset(), one.tries())).collect()
}

#[test]
fn messages_of_a_key_are_with_one_member_in_order_and_other_keys_go_on() {
    let disk = SimDisk::new(50);
    let (_store, group) = ordered(&disk, "aab-abcb-");
    let (mut one, mut other) = (group.member("one"), group.member("other"));
    let first = one.receive(3, NOW).unwrap().unwrap();
    assert_eq!(offsets(&first), [0, 1, 2]);
    // All others of these keys are set aside.
    let second = other.receive(9, NOW).unwrap().unwrap();
    assert_eq!(offsets(&second), [3, 6, 8]);
    assert!(other.receive(9, NOW).unwrap().is_none());
    let mut first = first.into_iter();
    let (a, later_a, b) = (first.next().unwrap(), first.next().unwrap(), first.next().unwrap());
    b.acknowledge().unwrap();
    disk.advance(SECOND / 10);
    let next_b = other.receive(9, NOW).unwrap().unwrap();
    assert_eq!(offsets(&next_b), [5, 7]);
    // The failed message comes first again, so the member loses the later message, and that attempt does not count.
    a.retry("no").unwrap();
    let cause = LeaseEnd::EarlierFailed;
    assert_eq!(facts(later_a.acknowledge()), TopicError::LeaseLost { offset: 1, cause });
    assert!(other.receive(9, NOW).unwrap().is_none());
    disk.advance(SECOND);
    let again = other.receive(9, NOW).unwrap().unwrap();
    assert_eq!(tries(&again), [(0, 2), (1, 1), (4, 1)]);
    [again, next_b, second]
        .iter()
        .for_each(|some| some.acknowledge().unwrap());
    assert_eq!(group.describe().unwrap().acknowledged, 9);
}

#[test]
fn a_batch_of_which_one_message_was_lost_is_not_acknowledged_as_a_whole() {
    let disk = SimDisk::new(51);
    let (store, group) = ordered(&disk, "aa");
    let mut member = group.member("member");
    for one in member.receive(1, NOW).unwrap().into_iter().flatten() {
        one.give_up("no").unwrap();
    }
    let later = member.receive(9, NOW).unwrap().unwrap();
    assert_eq!(offsets(&later), [1]);
    // The earlier message comes back, and is first.
    assert_eq!(group.redrive(9).unwrap().delivered, 1);
    let cause = LeaseEnd::EarlierFailed;
    let lost = TopicError::LeaseLost { offset: 1, cause };
    assert_eq!(facts(store.transact(|tx| tx.acknowledge_all(&later))), lost);
    assert_eq!(facts(later.acknowledge()), lost);
    let both = member.receive(9, NOW).unwrap().unwrap();
    assert_eq!(offsets(&both), [0, 1]);
    both.acknowledge().unwrap();
}

#[test]
fn leases_of_ordered_groups_that_end_or_are_given_back_keep_the_order() {
    let disk = SimDisk::new(52);
    let (_store, group) = ordered(&disk, "aaab");
    drop(receive(&group, 2));
    let mut member = group.member("member");
    let mut found = Vec::new();
    let mut held = Vec::new();
    while let Some(some) = member.receive(9, NOW).unwrap() {
        found.extend(tries(&some));
        held.push(some);
        disk.advance(SECOND / 10);
    }
    found.sort_unstable();
    assert_eq!(found, [(0, 1), (1, 1), (3, 1)]);
    disk.advance(11 * SECOND);
    assert!(member.receive(9, NOW).unwrap().is_none());
    disk.advance(SECOND);
    let again = member.receive(9, NOW).unwrap().unwrap();
    assert_eq!(offsets(&again), [0, 1, 2, 3]);
    let cause = LeaseEnd::TakenOver;
    let offset = held[0].messages().offsets().start;
    assert_eq!(facts(held[0].acknowledge()), TopicError::LeaseLost { offset, cause });
    again.acknowledge().unwrap();
    assert_eq!(group.describe().unwrap().pending, 0);
}

#[test]
fn an_ordered_group_sets_aside_a_limited_number_of_messages() {
    let disk = SimDisk::new(53);
    let (_, _, topic) = one_topic(&disk);
    for _ in 0..106 {
        let busy = (0..1000).map(|_| Message::new(b"step").key(b"busy"));
        topic.publish_all(busy).unwrap();
    }
    topic.publish(Message::new(b"step").key(b"other")).unwrap();
    let group = topic
        .ensure_group("group", Start::Beginning, options().order_by_key(true))
        .unwrap();
    let mut member = group.member("member");
    let first = member.receive(1, NOW).unwrap().unwrap();
    // One call sets a bounded number of messages aside.
    let mut next = 0;
    while next < group.describe().unwrap().next {
        next = group.describe().unwrap().next;
        assert!(member.receive(1000, NOW).unwrap().is_none());
    }
    assert!((100_000..105_000).contains(&next), "{next}");
    first.acknowledge().unwrap();
    assert_eq!(offsets(&member.receive(1, NOW).unwrap().unwrap()), [1]);
}
