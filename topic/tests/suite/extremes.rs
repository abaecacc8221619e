//! The longest times that a program can name: they mean "without limit", and are never an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{SECOND, one_topic, publish};
use duramen_io::SimDisk;
use duramen_topic::{
    Delivery, Dispatcher, DispatcherOptions, Group, GroupOptions, SlowPolicy, Start, SubscribeOptions, TopicOptions,
};

const NOW: Duration = Duration::ZERO;
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn one(group: &Group) -> Option<Delivery> {
    let deliveries = group.member("member").receive(1, NOW).unwrap();
    deliveries.and_then(|deliveries| deliveries.into_iter().next())
}

#[test]
fn a_message_can_be_put_off_and_kept_for_ever() {
    let disk = SimDisk::new(1);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 3);
    let group = topic
        .ensure_group("group", Start::Beginning, GroupOptions::new().lease(SECOND))
        .unwrap();
    one(&group).unwrap().retry_after(Duration::MAX, "never again").unwrap();
    let kept = one(&group).unwrap();
    kept.extend(Duration::MAX).unwrap();
    one(&group).unwrap().retry_after(NOW, "again").unwrap();
    let again = one(&group).unwrap();
    again.extend(Duration::MAX).unwrap();
    for years in [1, 1000] {
        disk.advance(years * YEAR);
        assert!(one(&group).is_none());
        assert_eq!(group.pending().unwrap().len(), 3);
    }
    assert_eq!(again.offset(), 2);
    again.acknowledge().unwrap();
    // A member that reads the rows again sees the same.
    group.reset(Start::Beginning).unwrap();
    assert_eq!(one(&group).unwrap().offset(), 0);
}

#[test]
fn leases_back_off_and_retention_can_be_for_ever() {
    let disk = SimDisk::new(2);
    let (_, topics, topic) = one_topic(&disk);
    publish(&topic, 2);
    let options = GroupOptions::new().lease(Duration::MAX).back_off(&[Duration::MAX]);
    let group = topic.ensure_group("group", Start::Beginning, options).unwrap();
    let kept = one(&group).unwrap();
    one(&group).unwrap().retry("put off").unwrap();
    disk.advance(1000 * YEAR);
    assert!(one(&group).is_none());
    kept.acknowledge().unwrap();
    let options = TopicOptions::new()
        .keep_for(Duration::MAX)
        .remember_publishers_for(Some(Duration::MAX));
    let other = topics.create("other", options).unwrap();
    publish(&other, 2);
    other.publisher("publisher").unwrap().publish(1, b"2").unwrap();
    disk.advance(1000 * YEAR);
    assert_eq!(other.trim().unwrap(), 0);
    assert_eq!(other.publisher("publisher").unwrap().newest().unwrap(), Some(1));
}

#[test]
fn a_subscriber_can_linger_and_hold_back_for_ever_and_a_call_be_stuck_for_ever() {
    let disk = SimDisk::new(3);
    let (_, topics, topic) = one_topic(&disk);
    let options = SubscribeOptions::new().linger(Duration::MAX).batch_messages(2);
    let mut lingering = topic.subscribe_with(Start::Tail, options).unwrap();
    let timeout = Duration::MAX;
    let options = SubscribeOptions::new().slow(SlowPolicy::HoldBack { max: 100, timeout });
    let mut holding = topic.subscribe_with(Start::Tail, options).unwrap();
    let called = Arc::new(AtomicU64::new(0));
    let options = DispatcherOptions::new().stuck_after(Duration::MAX);
    let dispatcher = Dispatcher::start(&topics, options).unwrap();
    let calls = called.clone();
    let count = move |messages: Result<&duramen_topic::Messages, &duramen_engine::Error>| {
        calls.fetch_add(messages.map_or(0, |messages| messages.len() as u64), Ordering::SeqCst);
    };
    dispatcher.subscribe(&topic, Start::Tail, count).unwrap();
    publish(&topic, 2);
    assert_eq!(lingering.next_batch(Duration::MAX).unwrap().unwrap().len(), 2);
    assert_eq!(holding.next_batch(Duration::MAX).unwrap().unwrap().len(), 2);
    let began = Instant::now();
    while called.load(Ordering::SeqCst) < 2 {
        assert!(began.elapsed() < 60 * SECOND, "the dispatcher calls nobody");
        std::thread::yield_now();
    }
    assert_eq!(dispatcher.report().replaced, 0);
}
