//! The dispatcher: every subscriber is called with every message, and no subscriber suffers for another.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use crate::common::{SECOND, facts, one_topic, open, publish};
use duramen_engine::{Durability, Options, Reason, Store};
use duramen_io::SimDisk;
use duramen_topic::{
    Dispatcher, DispatcherOptions, Messages, SlowPolicy, Start, SubscriberId, Topic, TopicError, TopicOptions, Topics,
};

/// Maximum time that a test waits for an expected event.
const LONG: Duration = Duration::from_secs(30);

fn started(topics: &Topics) -> Dispatcher {
    Dispatcher::start(topics, DispatcherOptions::new()).unwrap()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that what comes is next, and counts it.
fn in_order(count: &Arc<AtomicU64>, first: u64) -> impl FnMut(Result<&Messages, &duramen_engine::Error>) + use<> {
    let count = count.clone();
    let mut next = first;
    move |messages| {
        for message in messages.expect("messages").iter() {
            assert_eq!(message.offset(), next);
            next += 1;
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn every_subscriber_gets_every_message_once_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Written)
        .open(directory.path())
        .unwrap();
    let topics = Topics::open(&store).unwrap();
    let all: Vec<Topic> = (0..20)
        .map(|number| topics.create(&format!("topic.{number}"), TopicOptions::new()).unwrap())
        .collect();
    let dispatcher = started(&topics);
    let count = Arc::new(AtomicU64::new(0));
    for topic in &all {
        publish(topic, 5);
        for _ in 0..25 {
            dispatcher
                .subscribe(topic, Start::Beginning, in_order(&count, 0))
                .unwrap();
            dispatcher.subscribe(topic, Start::Tail, in_order(&count, 5)).unwrap();
        }
    }
    std::thread::scope(|scope| {
        for topic in &all {
            scope.spawn(|| publish(topic, 200));
        }
    });
    let expected = 20 * 25 * (205 + 200);
    until("all is delivered", || count.load(Ordering::SeqCst) == expected);
    std::thread::sleep(Duration::from_millis(20));
    let report = dispatcher.report();
    assert_eq!(
        (report.subscribers, report.panicked, count.load(Ordering::SeqCst)),
        (1000, 0, expected)
    );
}

#[test]
fn one_message_at_a_time_wakes_a_dispatcher_that_sleeps() {
    let (_, topics, topic) = one_topic(&SimDisk::new(1));
    let dispatcher = started(&topics);
    let (sender, receiver) = mpsc::channel();
    dispatcher
        .subscribe(&topic, Start::Tail, move |messages| {
            messages
                .unwrap()
                .iter()
                .for_each(|message| sender.send(message.offset()).unwrap());
        })
        .unwrap();
    for number in 0..300 {
        topic.publish(b"x").unwrap();
        assert_eq!(receiver.recv_timeout(LONG).unwrap(), number);
        if number % 10 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_subscriber_that_panics_is_removed_and_nobody_else() {
    let (_, topics, topic) = one_topic(&SimDisk::new(2));
    let dispatcher = started(&topics);
    let count = Arc::new(AtomicU64::new(0));
    dispatcher
        .subscribe(&topic, Start::Beginning, in_order(&count, 0))
        .unwrap();
    let id = dispatcher
        .subscribe(&topic, Start::Beginning, |_| panic!("this is part of the test"))
        .unwrap();
    dispatcher
        .subscribe(&topic, Start::Beginning, in_order(&count, 0))
        .unwrap();
    publish(&topic, 100);
    until("the others are served", || count.load(Ordering::SeqCst) == 200);
    until("one is gone", || {
        let report = dispatcher.report();
        (report.panicked, report.subscribers) == (1, 2)
    });
    assert!(!dispatcher.unsubscribe(id));
}

#[test]
fn a_subscriber_that_is_stuck_holds_up_nobody_and_goes_on_later() {
    let (_, topics, topic) = one_topic(&SimDisk::new(3));
    let other = topics.create("other", TopicOptions::new()).unwrap();
    let options = DispatcherOptions::new().threads(1).spare_threads(2);
    let dispatcher = Dispatcher::start(&topics, options).unwrap();
    let (before, after, stuck) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
    );
    let gate = Arc::new(AtomicBool::new(false));
    dispatcher.subscribe(&topic, Start::Tail, in_order(&before, 0)).unwrap();
    let mut checked = in_order(&stuck, 0);
    let closed = gate.clone();
    let id = dispatcher
        .subscribe(&topic, Start::Tail, move |messages| {
            while !closed.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            checked(messages);
        })
        .unwrap();
    dispatcher.subscribe(&topic, Start::Tail, in_order(&after, 0)).unwrap();
    let elsewhere = Arc::new(AtomicU64::new(0));
    dispatcher
        .subscribe(&other, Start::Tail, in_order(&elsewhere, 0))
        .unwrap();
    publish(&topic, 50);
    publish(&other, 50);
    for count in [&before, &after, &elsewhere] {
        until("the others are served", || count.load(Ordering::SeqCst) == 50);
    }
    let report = dispatcher.report();
    assert_eq!(
        report.stuck.iter().map(|stuck| stuck.subscriber).collect::<Vec<_>>(),
        [id]
    );
    assert_eq!((report.stuck[0].topic.as_str(), report.replaced), ("orders", 1));
    publish(&topic, 50);
    until("the others go on", || after.load(Ordering::SeqCst) == 100);
    assert_eq!(stuck.load(Ordering::SeqCst), 0);
    gate.store(true, Ordering::SeqCst);
    until("it catches up", || stuck.load(Ordering::SeqCst) == 100);
    until("nobody is stuck", || dispatcher.report().stuck.is_empty());
}

#[test]
fn threads_are_replaced_as_often_as_was_allowed_and_no_more() {
    let (_, topics, topic) = one_topic(&SimDisk::new(4));
    let options = DispatcherOptions::new().threads(1).spare_threads(3);
    let dispatcher = Dispatcher::start(&topics, options).unwrap();
    let gate = Arc::new(AtomicBool::new(false));
    let called = Arc::new(AtomicU64::new(0));
    for _ in 0..10 {
        let (gate, called) = (gate.clone(), called.clone());
        dispatcher
            .subscribe(&topic, Start::Tail, move |_| {
                called.fetch_add(1, Ordering::SeqCst);
                while !gate.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
            .unwrap();
    }
    publish(&topic, 1);
    until("all threads are stuck", || called.load(Ordering::SeqCst) == 4);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!((called.load(Ordering::SeqCst), dispatcher.report().replaced), (4, 3));
    gate.store(true, Ordering::SeqCst);
    until("everybody is called", || called.load(Ordering::SeqCst) == 10);
}

#[test]
fn a_dispatcher_that_is_dropped_does_not_wait_for_those_that_are_stuck() {
    let (_, topics, topic) = one_topic(&SimDisk::new(5));
    let dispatcher = started(&topics);
    let gate = Arc::new(AtomicBool::new(false));
    let (closed, called) = (gate.clone(), Arc::new(AtomicBool::new(false)));
    let flag = called.clone();
    dispatcher
        .subscribe(&topic, Start::Tail, move |_| {
            flag.store(true, Ordering::SeqCst);
            while !closed.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .unwrap();
    publish(&topic, 1);
    until("it is called", || called.load(Ordering::SeqCst));
    drop(dispatcher);
    gate.store(true, Ordering::SeqCst);
}

#[test]
fn subscribers_come_and_go_within_their_own_calls() {
    let (_, topics, topic) = one_topic(&SimDisk::new(6));
    let dispatcher = Arc::new(started(&topics));
    let count = Arc::new(AtomicU64::new(0));
    let own: Arc<OnceLock<SubscriberId>> = Arc::default();
    let weak = Arc::downgrade(&dispatcher);
    let called = Arc::new(AtomicBool::new(false));
    let flag = called.clone();
    let (known, inner, new) = (own.clone(), count.clone(), topic.clone());
    let id = dispatcher
        .subscribe(&topic, Start::Tail, move |messages| {
            let Some(dispatcher) = weak.upgrade() else { return };
            let next = messages.unwrap().offsets().end;
            dispatcher
                .subscribe(&new, Start::Offset(next), in_order(&inner, next))
                .unwrap();
            assert!(dispatcher.unsubscribe(*known.wait()));
            flag.store(true, Ordering::SeqCst);
        })
        .unwrap();
    own.set(id).unwrap();
    publish(&topic, 1);
    until("the first one was called", || called.load(Ordering::SeqCst));
    until("only the second one is there", || dispatcher.report().subscribers == 1);
    assert!(!dispatcher.unsubscribe(id));
    publish(&topic, 10);
    until("it is served", || count.load(Ordering::SeqCst) >= 10);
}

#[test]
fn a_topic_that_is_deleted_ends_its_subscribers_with_a_reason() {
    let (_, topics, topic) = one_topic(&SimDisk::new(7));
    let dispatcher = started(&topics);
    let reasons: Arc<Mutex<Vec<String>>> = Arc::default();
    for _ in 0..3 {
        let reasons = reasons.clone();
        dispatcher
            .subscribe(&topic, Start::Tail, move |messages| {
                if let Err(error) = messages {
                    assert!(matches!(error.reason(), Reason::TopicDeleted { .. }), "{error}");
                    reasons.lock().unwrap().push(error.to_string());
                }
            })
            .unwrap();
    }
    publish(&topic, 3);
    topics.delete("orders").unwrap();
    until("everybody was told", || reasons.lock().unwrap().len() == 3);
    until("everybody is gone", || dispatcher.report().subscribers == 0);
}

#[test]
fn policies_count_for_each_subscriber_by_itself() {
    let (_, topics, topic) = one_topic(&SimDisk::new(8));
    publish(&topic, 100);
    let dispatcher = started(&topics);
    let (skipped, cut) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let count = Arc::new(AtomicU64::new(0));
    let (inner, flag) = (skipped.clone(), cut.clone());
    dispatcher
        .subscribe_with(
            &topic,
            Start::Beginning,
            SlowPolicy::Skip { max: 10 },
            move |messages| {
                let gap = messages.unwrap().gap().unwrap_or(0..0);
                inner.fetch_add(gap.end - gap.start, Ordering::SeqCst);
            },
        )
        .unwrap();
    dispatcher
        .subscribe_with(
            &topic,
            Start::Beginning,
            SlowPolicy::Disconnect { max: 10 },
            move |messages| {
                let error = messages.unwrap_err();
                assert!(matches!(
                    TopicError::of(error),
                    Some(TopicError::TooSlow { lag: 100, max: 10, .. })
                ));
                flag.store(true, Ordering::SeqCst);
            },
        )
        .unwrap();
    dispatcher
        .subscribe(&topic, Start::Beginning, in_order(&count, 0))
        .unwrap();
    until("all were called", || {
        skipped.load(Ordering::SeqCst) == 90 && cut.load(Ordering::SeqCst) && count.load(Ordering::SeqCst) == 100
    });
    let hold = SlowPolicy::HoldBack {
        max: 1,
        timeout: SECOND,
    };
    let refused = dispatcher.subscribe_with(&topic, Start::Tail, hold, |_| {});
    assert!(matches!(facts(refused), TopicError::InvalidOptions { .. }));
    let (_other, _, foreign) = one_topic(&SimDisk::new(9));
    let refused = dispatcher.subscribe(&foreign, Start::Tail, |_| {});
    assert!(matches!(facts(refused), TopicError::InvalidOptions { .. }));
    let none = Dispatcher::start(&topics, DispatcherOptions::new().threads(0)).map(|_| ());
    assert!(matches!(facts(none), TopicError::InvalidOptions { .. }));
}

#[test]
fn a_dispatcher_that_is_dropped_lets_go_of_the_store() {
    let disk = SimDisk::new(10);
    for _ in 0..10 {
        let store: Store = open(&disk);
        let topics = crate::common::topics(&store);
        let topic = topics.ensure("orders", TopicOptions::new()).unwrap();
        let dispatcher = started(&topics);
        dispatcher.subscribe(&topic, Start::Tail, |_| {}).unwrap();
        topic.publish(b"x").unwrap();
        drop((dispatcher, topic, topics, store));
    }
}
