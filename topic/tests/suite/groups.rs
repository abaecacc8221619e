//! Groups: leases, redelivery, dead letters, and acknowledging in transactions.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{SECOND, all, check, facts, one_topic, open, publish, text, topics};
use duramen_engine::{Reason, TransactionOptions};
use duramen_io::SimDisk;
use duramen_topic::{
    DeadLetter, Deliveries, Delivery, Group, GroupOptions, LeaseEnd, Message, Redriven, SlowPolicy, Start,
    SubscribeOptions, TopicError, TopicOptions, TopicWrites,
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
fn members_share_the_messages_and_what_is_acknowledged_stays_so() {
    let disk = SimDisk::new(1);
    let (store, _, topic) = one_topic(&disk);
    publish(&topic, 10);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let (mut one, mut other) = (group.member("one"), group.member("other"));
    let first = one.receive(4, NOW).unwrap().unwrap();
    let second = other.receive(100, NOW).unwrap().unwrap();
    assert_eq!(
        (offsets(&first), offsets(&second)),
        (vec![0, 1, 2, 3], vec![4, 5, 6, 7, 8, 9])
    );
    assert!(one.receive(4, NOW).unwrap().is_none());
    let pending = group.pending().unwrap();
    assert_eq!(pending.len(), 10);
    assert_eq!(
        (pending[0].member.as_deref(), pending[9].member.as_deref()),
        (Some("one"), Some("other"))
    );
    second.acknowledge().unwrap();
    let mut first = first.into_iter();
    first.next().unwrap().acknowledge().unwrap();
    let described = group.describe().unwrap();
    assert_eq!(
        (described.acknowledged, described.next, described.pending, described.lag),
        (1, 10, 3, 0)
    );
    // The process that held the messages is gone after a crash, so only these messages come back at once.
    let disk = disk.kill();
    let killed = open(&disk);
    let group = topics(&killed)
        .topic("orders")
        .unwrap()
        .existing_group("group")
        .unwrap();
    let again = receive(&group, 10).unwrap();
    assert_eq!(offsets(&again), [1, 2, 3]);
    assert!(again.clone().into_iter().all(|delivery| delivery.tries() == 2));
    again.acknowledge().unwrap();
    disk.advance(1000 * SECOND);
    assert!(receive(&group, 10).is_none());
    assert_eq!(group.describe().unwrap().acknowledged, 10);
    check(&killed);
    drop(store);
}

#[test]
fn a_lease_that_ran_out_belongs_to_somebody_else() {
    let disk = SimDisk::new(2);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 3);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let mut slow: Vec<Delivery> = receive(&group, 3).unwrap().into_iter().collect();
    slow[0].acknowledge().unwrap();
    disk.advance(11 * SECOND);
    // No member has taken it back yet, so it can still be acknowledged.
    slow[1].acknowledge().unwrap();
    assert!(receive(&group, 3).is_none());
    disk.advance(SECOND);
    let taken = one(&group);
    assert_eq!((taken.offset(), taken.tries()), (2, 2));
    let late = slow.pop().unwrap();
    assert!(matches!(
        facts(late.acknowledge()),
        TopicError::LeaseLost { offset: 2, .. }
    ));
    assert!(matches!(facts(late.retry("late")), TopicError::LeaseLost { .. }));
    assert!(matches!(facts(late.extend(SECOND)), TopicError::LeaseLost { .. }));
    taken.acknowledge().unwrap();
    assert_eq!(facts(taken.acknowledge()), TopicError::AlreadySettled { offset: 2 });
    assert_eq!(facts(late.acknowledge()), TopicError::AlreadySettled { offset: 2 });
}

#[test]
fn a_lease_of_a_redelivery_belongs_to_nobody_but_who_has_it() {
    let disk = SimDisk::new(15);
    let (store, _, topic) = one_topic(&disk);
    publish(&topic, 1);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    one(&group).retry("no").unwrap();
    disk.advance(SECOND);
    let late = receive(&group, 1).unwrap();
    let late_one = late.clone().into_iter().next().unwrap();
    disk.advance(11 * SECOND);
    assert!(receive(&group, 1).is_none());
    disk.advance(5 * SECOND);
    let holder = one(&group);
    assert_eq!((late_one.tries(), holder.tries()), (2, 3));
    let is_lost = |error| matches!(error, TopicError::LeaseLost { offset: 0, .. });
    assert!(is_lost(facts(late_one.acknowledge())));
    assert!(is_lost(facts(late_one.retry("late"))));
    assert!(is_lost(facts(late.acknowledge())));
    assert!(is_lost(facts(late.extend(SECOND))));
    holder.acknowledge().unwrap();
    // A message that another member has settled is not taken for its own work either.
    assert_eq!(
        facts(store.transact(|tx| tx.acknowledge_all(&late))),
        TopicError::AlreadySettled { offset: 0 }
    );
    assert_eq!(facts(late_one.acknowledge()), TopicError::AlreadySettled { offset: 0 });
}

#[test]
fn a_message_handed_out_by_itself_is_settled_once_and_lost_by_a_reset() {
    let disk = SimDisk::new(17);
    let (store, _, topic) = one_topic(&disk);
    publish(&topic, 4);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let lone = one(&group);
    assert_eq!(lone.offset(), 0);
    lone.acknowledge().unwrap();
    assert_eq!(facts(lone.acknowledge()), TopicError::AlreadySettled { offset: 0 });
    let again = store.transact(|tx| tx.acknowledge(&lone));
    assert_eq!(facts(again), TopicError::AlreadySettled { offset: 0 });
    assert_eq!(facts(lone.retry("late")), TopicError::AlreadySettled { offset: 0 });
    // In one transaction it is settled once, too.
    let lone = one(&group);
    let twice = store.transact(|tx| {
        tx.acknowledge(&lone)?;
        tx.acknowledge(&lone)
    });
    assert_eq!(facts(twice), TopicError::AlreadySettled { offset: 1 });
    // A failure and an acknowledgement of the same message conflict.
    let mut late = store.begin(TransactionOptions::new()).unwrap();
    late.acknowledge(&lone).unwrap();
    lone.retry("no").unwrap();
    assert!(matches!(late.commit().unwrap_err().reason(), Reason::Conflict { .. }));
    assert!(matches!(
        facts(lone.acknowledge()),
        TopicError::LeaseLost { offset: 1, .. }
    ));
    // After a reset no member holds it, or another member does, alone or together with others.
    let lone = one(&group);
    group.reset(Start::Beginning).unwrap();
    assert!(matches!(
        facts(lone.acknowledge()),
        TopicError::LeaseLost { offset: 2, .. }
    ));
    let all = receive(&group, 4).unwrap();
    assert!(matches!(
        facts(lone.acknowledge()),
        TopicError::LeaseLost { offset: 2, .. }
    ));
    all.acknowledge().unwrap();
    assert_eq!(facts(lone.acknowledge()), TopicError::AlreadySettled { offset: 2 });
}

#[test]
fn extending_a_lease_keeps_the_message() {
    let disk = SimDisk::new(3);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 2);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let deliveries = receive(&group, 2).unwrap();
    for _ in 0..5 {
        disk.advance(8 * SECOND);
        deliveries.extend(10 * SECOND).unwrap();
        assert!(receive(&group, 2).is_none());
    }
    disk.advance(11 * SECOND);
    assert!(receive(&group, 2).is_none());
    disk.advance(SECOND);
    let again = one(&group);
    disk.advance(8 * SECOND);
    again.extend(60 * SECOND).unwrap();
    disk.advance(50 * SECOND);
    let other = one(&group);
    assert_eq!((again.offset(), other.offset()), (0, 1));
    again.acknowledge().unwrap();
}

#[test]
fn a_lease_that_is_extended_in_one_process_is_not_taken_back_in_another() {
    let disk = SimDisk::new(16);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 3);
    let here = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let run = receive(&here, 2).unwrap();
    one(&here).retry("no").unwrap();
    disk.advance(SECOND);
    let again = one(&here);
    // Another process: it shares only the disk with this one.
    let store = open(&disk);
    let there = topics(&store)
        .get("orders")
        .unwrap()
        .unwrap()
        .existing_group("group")
        .unwrap();
    assert!(receive(&there, 3).is_none());
    disk.advance(8 * SECOND);
    run.extend(10 * SECOND).unwrap();
    again.extend(10 * SECOND).unwrap();
    disk.advance(4 * SECOND);
    assert!(receive(&there, 3).is_none());
    run.acknowledge().unwrap();
    disk.advance(7 * SECOND);
    assert!(receive(&there, 3).is_none());
    disk.advance(6 * SECOND);
    let taken = one(&there);
    assert_eq!((taken.offset(), taken.tries()), (2, 3));
    assert!(matches!(facts(again.acknowledge()), TopicError::LeaseLost { .. }));
}

#[test]
fn what_failed_comes_back_later_and_later() {
    let disk = SimDisk::new(4);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 1);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    for (tries, wait) in [(1, 1), (2, 5), (3, 5)] {
        let delivery = one(&group);
        assert_eq!(delivery.tries(), tries);
        delivery.retry("no luck").unwrap();
        let pending = &group.pending().unwrap()[0];
        assert_eq!(
            (pending.error.as_deref(), pending.tries, &pending.member),
            (Some("no luck"), tries, &None)
        );
        disk.advance(wait * SECOND - Duration::from_millis(1));
        assert!(receive(&group, 1).is_none());
        disk.advance(Duration::from_millis(1));
    }
    one(&group).retry_after(Duration::ZERO, "at once").unwrap();
    let delivery = one(&group);
    delivery.retry_after(100 * SECOND, "much later").unwrap();
    disk.advance(99 * SECOND);
    assert!(receive(&group, 1).is_none());
    disk.advance(SECOND);
    one(&group).acknowledge().unwrap();
}

#[test]
fn a_message_that_cannot_be_buried_keeps_no_other_from_being_handed_out() {
    let disk = SimDisk::new(5);
    let (_, topics, topic) = one_topic(&disk);
    let group = topic
        .ensure_group(
            "group",
            Start::Beginning,
            options().tries(1).dead_letters("orders.dead"),
        )
        .unwrap();
    topic.publish(b"poison").unwrap();
    let _held = receive(&group, 1).unwrap();
    topics.delete("orders.dead").unwrap();
    disk.advance(100 * SECOND);
    topic.publish(b"fine").unwrap();
    let deliveries = receive(&group, 10).expect("the other message");
    let handed_out: Vec<_> = deliveries.messages().iter().map(|message| message.offset()).collect();
    assert_eq!(handed_out, [1]);
    deliveries.acknowledge().unwrap();
    // With no other message to deliver, the member reports the error.
    let error = group.member("member").receive(1, Duration::ZERO);
    assert!(matches!(facts(error), TopicError::UnknownTopic { .. }));
    topics.create("orders.dead", TopicOptions::new()).unwrap();
    assert!(receive(&group, 1).is_none());
    assert_eq!(topics.topic("orders.dead").unwrap().describe().unwrap().next, 1);
}

#[test]
fn the_last_try_ends_among_the_dead_letters_and_comes_back_on_demand() {
    let disk = SimDisk::new(5);
    let (_, topics, topic) = one_topic(&disk);
    topic
        .publish(Message::new(b"poison").key(b"key").header("trace", b"7"))
        .unwrap();
    topic.publish(b"fine").unwrap();
    let group = topic
        .ensure_group(
            "group",
            Start::Beginning,
            options().tries(2).dead_letters("orders.dead"),
        )
        .unwrap();
    let dead = topics.topic("orders.dead").unwrap();
    for _ in 0..2 {
        let deliveries = receive(&group, 10).unwrap();
        for delivery in deliveries {
            match delivery.message().payload() {
                b"poison" => delivery.retry("it is poison").unwrap(),
                _ => delivery.acknowledge().unwrap(),
            }
        }
        disk.advance(100 * SECOND);
    }
    assert!(receive(&group, 10).is_none());
    let letters = dead.read(Start::Beginning, 10).unwrap();
    assert_eq!(letters.len(), 1);
    let letter = letters.get(0).unwrap();
    assert_eq!((letter.payload(), letter.key()), (&b"poison"[..], Some(&b"key"[..])));
    assert_eq!(letter.header("trace"), Some(&b"7"[..]));
    let found = DeadLetter::of(&letter).unwrap();
    assert_eq!(
        (&*found.topic, found.offset, &*found.group, found.tries),
        ("orders", 0, "group", 2)
    );
    assert_eq!(found.error, "it is poison");
    let described = group.describe().unwrap();
    assert_eq!((described.acknowledged, described.pending), (2, 0));
    // This does not concern another group.
    let without = options().discard_dead_letters();
    let other = topic.ensure_group("other", Start::Tail, without).unwrap();
    assert_eq!(group.redrive(10).unwrap(), Redriven { delivered: 1, gone: 0 });
    assert_eq!(group.redrive(10).unwrap(), Redriven::default());
    assert!(receive(&other, 10).is_none());
    let again = one(&group);
    assert_eq!(
        (again.offset(), again.tries(), again.message().payload()),
        (0, 1, &b"poison"[..])
    );
    again.give_up("still").unwrap();
    assert_eq!(
        DeadLetter::of(&dead.read(Start::Last(1), 1).unwrap().get(0).unwrap())
            .unwrap()
            .error,
        "still"
    );
    topic.configure(TopicOptions::new().keep_messages(1)).unwrap();
    topic.trim().unwrap();
    assert_eq!(group.redrive(10).unwrap(), Redriven { delivered: 0, gone: 1 });
    assert!(receive(&group, 10).is_none());
    assert!(matches!(facts(other.redrive(1)), TopicError::InvalidOptions { .. }));
    let own = options().dead_letters("orders");
    assert!(matches!(
        facts(topic.ensure_group("own", Start::Tail, own).map(|_| ())),
        TopicError::InvalidOptions { .. }
    ));
}

#[test]
fn a_member_that_dies_with_its_message_counts_as_a_try() {
    let mut disk = SimDisk::new(6);
    {
        let (_, _, topic) = one_topic(&disk);
        publish(&topic, 1);
        topic
            .ensure_group("group", Start::Beginning, options().tries(3).dead_letters("dead"))
            .unwrap();
    }
    for tries in 1..=3 {
        let store = open(&disk);
        let topics = topics(&store);
        let group = topics.topic("orders").unwrap().existing_group("group").unwrap();
        if tries == 3 {
            // A message that has ended two processes waits before the next process gets it.
            assert!(receive(&group, 1).is_none());
            disk.advance(SECOND);
        }
        let delivery = receive(&group, 1).unwrap().into_iter().next().unwrap();
        assert_eq!(delivery.tries(), tries);
        let killed = disk.kill();
        // Drops in a process that is gone change nothing.
        drop((delivery, group, topics, store));
        disk = killed;
    }
    let store = open(&disk);
    let topics = topics(&store);
    let group = topics.topic("orders").unwrap().existing_group("group").unwrap();
    assert!(receive(&group, 1).is_none());
    let dead = all(&topics.topic("dead").unwrap());
    assert_eq!(dead, [(0, "0".into())]);
}

#[test]
fn an_acknowledgement_in_a_transaction_is_made_with_it_or_not_at_all() {
    let disk = SimDisk::new(7);
    let (store, _, topic) = one_topic(&disk);
    publish(&topic, 3);
    let map = store.map("map").unwrap();
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let deliveries: Vec<_> = receive(&group, 3).unwrap().into_iter().collect();
    store
        .transact(|tx| {
            tx.put(&map, b"0", b"done")?;
            tx.acknowledge(&deliveries[0])
        })
        .unwrap();
    let mut dropped = store.begin(TransactionOptions::new()).unwrap();
    dropped.acknowledge(&deliveries[1]).unwrap();
    drop(dropped);
    // A transaction acknowledges messages that are taken back before it commits. It gets a conflict, and then the
    // actual error.
    let mut late = store.begin(TransactionOptions::new()).unwrap();
    late.put(&map, b"2", b"done late").unwrap();
    late.acknowledge(&deliveries[2]).unwrap();
    disk.advance(12 * SECOND);
    assert!(receive(&group, 3).is_none());
    assert!(matches!(late.commit().unwrap_err().reason(), Reason::Conflict { .. }));
    let again = store.transact(|tx| {
        tx.put(&map, b"2", b"done late")?;
        tx.acknowledge(&deliveries[2])
    });
    assert!(matches!(facts(again), TopicError::LeaseLost { offset: 2, .. }));
    assert_eq!(map.get(b"2").unwrap(), None);
    disk.advance(SECOND);
    let back = receive(&group, 3).unwrap();
    assert_eq!(offsets(&back), [1, 2]);
    store.transact(|tx| tx.acknowledge_all(&back)).unwrap();
    disk.advance(100 * SECOND);
    assert!(receive(&group, 3).is_none());
    assert_eq!(group.describe().unwrap().acknowledged, 3);
}

#[test]
fn acknowledging_all_and_one_by_one_go_together() {
    let disk = SimDisk::new(8);
    let (store, _, topic) = one_topic(&disk);
    publish(&topic, 5);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let all = receive(&group, 5).unwrap();
    let each: Vec<_> = all.clone().into_iter().collect();
    each[1].acknowledge().unwrap();
    each[3].retry("no").unwrap();
    all.acknowledge().unwrap();
    assert_eq!(facts(all.acknowledge()), TopicError::AlreadySettled { offset: 0 });
    assert_eq!(facts(each[0].acknowledge()), TopicError::AlreadySettled { offset: 0 });
    assert!(matches!(
        facts(each[3].acknowledge()),
        TopicError::LeaseLost {
            cause: LeaseEnd::Waits,
            ..
        }
    ));
    let pending = group.pending().unwrap();
    assert_eq!(pending.iter().map(|pending| pending.offset).collect::<Vec<_>>(), [3]);
    disk.advance(SECOND);
    let again = receive(&group, 5).unwrap();
    assert_eq!(offsets(&again), [3]);
    again.acknowledge().unwrap();
    assert!(matches!(
        facts(again.into_iter().next().unwrap().acknowledge()),
        TopicError::AlreadySettled { offset: 3 }
    ));
    check(&store);
}

#[test]
fn a_group_pauses_is_set_back_and_is_deleted() {
    let disk = SimDisk::new(9);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 5);
    let group = topic.ensure_group("group", Start::Offset(1), options()).unwrap();
    let first = receive(&group, 2).unwrap();
    group.pause().unwrap();
    assert!(group.describe().unwrap().is_paused);
    assert!(receive(&group, 2).is_none());
    group.resume().unwrap();
    assert_eq!(offsets(&receive(&group, 1).unwrap()), [3]);
    group.reset(Start::Beginning).unwrap();
    assert!(matches!(facts(first.acknowledge()), TopicError::LeaseLost { .. }));
    let everything = receive(&group, 10).unwrap();
    assert_eq!(offsets(&everything), [0, 1, 2, 3, 4]);
    group.reset(Start::Tail).unwrap();
    assert!(receive(&group, 10).is_none());
    publish(&topic, 1);
    let last = receive(&group, 10).unwrap();
    assert_eq!(offsets(&last), [5]);
    topic.delete_group("group").unwrap();
    assert!(matches!(facts(last.acknowledge()), TopicError::GroupDeleted { .. }));
    assert!(matches!(
        facts(group.member("m").receive(1, NOW)),
        TopicError::GroupDeleted { .. }
    ));
    assert!(matches!(facts(group.describe()), TopicError::GroupDeleted { .. }));
    assert!(matches!(
        facts(topic.delete_group("group")),
        TopicError::UnknownGroup { .. }
    ));
    assert!(matches!(
        facts(topic.existing_group("group").map(|_| ())),
        TopicError::UnknownGroup { .. }
    ));
    // A new group of the same name is another group.
    let new = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    assert!(matches!(facts(group.describe()), TopicError::GroupDeleted { .. }));
    assert_eq!(receive(&new, 10).unwrap().len(), 6);
}

#[test]
fn a_clock_that_is_set_back_or_ahead_loses_nothing_and_delays_nothing_for_long() {
    let disk = SimDisk::new(11);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 3);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let delivery = one(&group);
    one(&group).retry("no").unwrap();
    let day = 86_400;
    disk.set_wall(Duration::from_secs(1_700_000_000));
    disk.advance(2 * SECOND);
    let again = one(&group);
    assert_eq!(again.offset(), 1);
    delivery.acknowledge().unwrap();
    let held = one(&group);
    assert_eq!(held.offset(), 2);
    disk.set_wall(Duration::from_secs(1_700_000_000 + 400 * day));
    assert!(
        receive(&group, 3).is_none(),
        "a lease must not end because the clock was set"
    );
    // A clock that is set back while no process has the store open does not delay a waiting message.
    held.retry("no").unwrap();
    disk.set_wall(Duration::from_secs(1_600_000_000));
    let disk = disk.kill();
    let store = open(&disk);
    let group = topics(&store).topic("orders").unwrap().existing_group("group").unwrap();
    assert!(receive(&group, 3).is_none());
    disk.advance(SECOND);
    assert_eq!(offsets(&receive(&group, 3).unwrap()), [1, 2]);
}

/// Members in threads that acknowledge, fail and forget at random, while the clock runs: in the end every message was
/// acknowledged exactly once, inside a transaction that counted it.
#[test]
fn members_that_fail_at_random_process_every_message_exactly_once() {
    let seed = crate::common::seed();
    let disk = SimDisk::new(seed);
    let (store, _, topic) = one_topic(&disk);
    let counts = store.map("counts").unwrap();
    publish(&topic, 400);
    let options = options()
        .in_flight(60)
        .lease(Duration::from_millis(50))
        .back_off(&[Duration::from_millis(5)]);
    let group = topic.ensure_group("group", Start::Beginning, options).unwrap();
    std::thread::scope(|scope| {
        for member in 0..4 {
            let (group, store, counts, disk) = (&group, &store, &counts, &disk);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed ^ member);
                let mut member = group.member("member");
                while group.describe().unwrap().acknowledged < 400 {
                    disk.advance(Duration::from_millis(rng.u64(1..20)));
                    let Some(deliveries) = member.receive(rng.usize(1..20), Duration::ZERO).unwrap() else {
                        continue;
                    };
                    for delivery in deliveries {
                        match rng.u32(..10) {
                            0 => {}
                            1 => drop(delivery.retry("at random")),
                            _ => {
                                let done = store.transact(|tx| {
                                    tx.add(counts, delivery.message().payload(), 1)?;
                                    tx.acknowledge(&delivery)
                                });
                                if let Err(error) = done {
                                    assert!(TopicError::of(&error).is_some(), "{error}");
                                }
                            }
                        }
                    }
                }
            });
        }
    });
    let mut found = BTreeMap::new();
    let snapshot = store.snapshot().unwrap();
    let mut cursor = snapshot.range(&counts, ..).unwrap();
    while let Some((key, value)) = cursor.next().unwrap() {
        found.insert(text(key), i64::from_be_bytes((*value).try_into().unwrap()));
    }
    assert_eq!(found.len(), 400);
    assert!(found.values().all(|count| *count == 1), "{found:?}");
    assert!(group.pending().unwrap().is_empty());
    check(&store);
}

#[test]
fn one_message_and_all_of_its_run_cannot_be_settled_by_two_at_once() {
    let disk = SimDisk::new(31);
    let (store, _, topic) = one_topic(&disk);
    publish(&topic, 4);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let is_conflict = |done: Result<_, duramen_engine::Error>| match done.map(|_: duramen_engine::Commit| ()) {
        Err(error) => matches!(error.reason(), Reason::Conflict { .. }),
        Ok(()) => false,
    };
    for is_single_first in [true, false] {
        let deliveries = receive(&group, 2).unwrap();
        let single = deliveries.clone().into_iter().next().unwrap();
        let mut all = store.begin(TransactionOptions::new()).unwrap();
        let mut one = store.begin(TransactionOptions::new()).unwrap();
        all.acknowledge_all(&deliveries).unwrap();
        one.acknowledge(&single).unwrap();
        let (first, second) = if is_single_first { (one, all) } else { (all, one) };
        first.commit().unwrap();
        assert!(is_conflict(second.commit()), "{is_single_first}");
    }
    // Two single messages of one run can be settled concurrently.
    group.reset(Start::Beginning).unwrap();
    let both: Vec<Delivery> = receive(&group, 2).unwrap().into_iter().collect();
    let transactions = both.iter().map(|delivery| {
        let mut tx = store.begin(TransactionOptions::new()).unwrap();
        tx.acknowledge(delivery).unwrap();
        tx
    });
    let transactions: Vec<_> = transactions.collect();
    transactions.into_iter().for_each(|tx| drop(tx.commit().unwrap()));
}

#[test]
fn calls_that_commit_beside_an_exclusive_transaction_of_the_same_thread_are_refused_at_once() {
    let (done, ended) = std::sync::mpsc::channel();
    let calls = std::thread::spawn(move || {
        let disk = SimDisk::new(1);
        let (store, topics, topic) = one_topic(&disk);
        publish(&topic, 3);
        let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
        let (batch, delivery) = (receive(&group, 1).unwrap(), one(&group));
        let mut member = group.member("member");
        let publisher = topic.publisher("publisher").unwrap();
        let tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
        let mut refused = Vec::new();
        let mut note = |call: &str, done: duramen_engine::Result<()>| {
            let error = done.expect_err(call);
            assert_eq!(error.kind(), duramen_engine::Kind::FixTheCall);
            match error.reason() {
                Reason::WouldWaitForItself { call, map } => refused.push(format!("{call} {map}")),
                _ => panic!("{call}: {error}"),
            }
        };
        note("publish", topic.publish(b"message").map(drop));
        note("publish_all", topic.publish_all([b"message"]).map(drop));
        note("publish_async", topic.publish_async(b"message").map(drop));
        note("once", publisher.publish(1, b"message").map(drop));
        note("receive", member.receive(1, NOW).map(drop));
        note("acknowledge", delivery.acknowledge());
        note("retry", delivery.retry("why"));
        note("acknowledge all", batch.acknowledge());
        note("create", topics.create("new", TopicOptions::new()).map(drop));
        let name = topic.name();
        let expected = [
            format!("topic.publish {name}"),
            format!("topic.publish {name}"),
            format!("topic.publish {name}"),
            "store.transact (a map of topics)".into(),
            format!("member.receive {name}"),
            format!("delivery.acknowledge {name}"),
            "store.transact (a map of topics)".into(),
            format!("deliveries.acknowledge {name}"),
            "store.transact (a map of topics)".into(),
        ];
        assert_eq!(refused, expected);
        drop(tx);
        topic.publish(b"message").unwrap();
        delivery.acknowledge().unwrap();
        batch.acknowledge().unwrap();
        assert!(member.receive(1, NOW).unwrap().is_some());
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(60));
    assert!(ended.is_ok() || calls.is_finished(), "the calls come to an end");
    calls.join().unwrap();
}

#[test]
fn messages_are_given_back_without_a_try_when_the_member_and_all_that_it_has_are_dropped() {
    let disk = SimDisk::new(41);
    let (store, _, topic) = one_topic(&disk);
    publish(&topic, 4);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let mut member = group.member("one");
    let batch = member.receive(4, NOW).unwrap().unwrap();
    let each: Vec<Delivery> = batch.clone().into_iter().collect();
    each[0].acknowledge().unwrap();
    each[1].retry("no").unwrap();
    store.transact(|tx| tx.acknowledge(&each[2])).unwrap();
    drop((member, batch));
    assert!(receive(&group, 4).is_none(), "one delivery is there still");
    drop(each);
    let back = receive(&group, 4).unwrap();
    let found: Vec<_> = back
        .clone()
        .into_iter()
        .map(|one| (one.offset(), one.tries()))
        .collect();
    assert_eq!(found, [(3, 1)]);
    // While the member exists, dropped messages stay with it until their lease ends.
    let mut member = group.member("two");
    publish(&topic, 1);
    drop(member.receive(4, NOW).unwrap().unwrap());
    assert!(receive(&group, 4).is_none());
    drop(member);
    let again = receive(&group, 4).unwrap();
    assert_eq!(offsets(&again), [4]);
    // By a call: all of them, one of them, and in a transaction.
    again.release().unwrap();
    let again = receive(&group, 4).unwrap();
    assert_eq!(again.clone().into_iter().next().unwrap().tries(), 1);
    again.into_iter().for_each(|one| one.release().unwrap());
    let again = receive(&group, 4).unwrap();
    store.transact(|tx| tx.release(&again)).unwrap();
    assert!(matches!(
        facts(again.acknowledge()),
        TopicError::LeaseLost { offset: 4, .. }
    ));
    disk.advance(Duration::from_millis(100));
    let last = receive(&group, 4).unwrap();
    assert_eq!(last.clone().into_iter().next().unwrap().tries(), 1);
    // The last handle is dropped inside a transaction, which cannot commit anything else.
    let mut last = Some(last);
    store
        .transact(|_| {
            drop(last.take());
            Ok::<_, duramen_engine::Error>(())
        })
        .unwrap();
    let began = std::time::Instant::now();
    while receive(&group, 4).is_none() {
        assert!(began.elapsed() < Duration::from_secs(60));
        disk.advance(Duration::from_millis(1));
        std::thread::yield_now();
    }
    check(&store);
}

#[test]
fn messages_that_always_fail_keep_no_new_ones_away() {
    let disk = SimDisk::new(42);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 100);
    let options = options().back_off(&[]).tries_without_end();
    let group = topic.ensure_group("group", Start::Beginning, options).unwrap();
    let mut member = group.member("member");
    let mut done = 0;
    for _ in 0..200 {
        let delivery = member.receive(1, NOW).unwrap().unwrap().into_iter().next().unwrap();
        match delivery.offset() {
            0..5 => delivery.retry("poison").unwrap(),
            _ => {
                delivery.acknowledge().unwrap();
                done += 1;
            }
        }
    }
    assert_eq!(done, 95);
}

#[test]
fn a_slow_reader_of_dead_letters_does_not_stop_the_group() {
    let disk = SimDisk::new(43);
    let (_, topics, topic) = one_topic(&disk);
    publish(&topic, 50);
    let group = topic
        .ensure_group("group", Start::Beginning, options().tries(1))
        .unwrap();
    let dead = topics.topic("dead.orders").unwrap();
    let hold = SubscribeOptions::new().slow(SlowPolicy::HoldBack {
        max: 1,
        timeout: 3600 * SECOND,
    });
    let _reader = dead.subscribe_with(Start::Beginning, hold).unwrap();
    let mut member = group.member("member");
    for _ in 0..25 {
        drop(member.receive(1, NOW).unwrap());
    }
    for delivery in member.receive(10, NOW).unwrap().into_iter().flatten() {
        delivery.give_up("no").unwrap();
    }
    disk.advance(11 * SECOND);
    assert_eq!(member.receive(100, NOW).unwrap().unwrap().len(), 15);
    assert_eq!(dead.describe().unwrap().next, 35);
}

#[test]
fn failing_and_giving_up_in_a_transaction_are_made_with_it_or_not_at_all() {
    let disk = SimDisk::new(44);
    let (store, topics, topic) = one_topic(&disk);
    publish(&topic, 2);
    let orders = store.map("orders").unwrap();
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let each: Vec<_> = receive(&group, 2).unwrap().into_iter().collect();
    let mut dropped = store.begin(TransactionOptions::new()).unwrap();
    dropped.give_up(&each[0], "no").unwrap();
    drop(dropped);
    store
        .transact(|tx| {
            tx.put(&orders, b"0", b"failed")?;
            tx.give_up(&each[0], "no such customer")?;
            tx.retry(&each[1], Some(7 * SECOND), "later")
        })
        .unwrap();
    let dead = topics.topic("dead.orders").unwrap().read(Start::Beginning, 10).unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(DeadLetter::of(&dead.get(0).unwrap()).unwrap().error, "no such customer");
    disk.advance(6 * SECOND);
    assert!(receive(&group, 2).is_none());
    disk.advance(SECOND);
    let again = one(&group);
    assert_eq!((again.offset(), again.tries()), (1, 2));
    // Two failures in one transaction count as one.
    let twice = store.transact(|tx| {
        tx.retry(&again, None, "no")?;
        tx.retry(&again, None, "no")
    });
    assert!(matches!(
        facts(twice),
        TopicError::LeaseLost {
            cause: LeaseEnd::Waits,
            ..
        }
    ));
}
