//! Subscriptions: what they deliver, in which order, and what happens to slow subscribers.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::{SECOND, check, facts, one_topic, open, publish, text, topics};
use duramen_engine::{Durability, Error, Options, Reason, Store};
use duramen_io::SimDisk;
use duramen_topic::{
    Holder, Messages, Pattern, PatternSubscription, SlowPolicy, Start, SubscribeOptions, Subscription, Topic,
    TopicError, TopicOptions, TopicWrites, Topics,
};
use futures_core::Stream;

fn offsets(subscription: &mut Subscription) -> Vec<u64> {
    let mut found = Vec::new();
    while let Some(messages) = subscription.next_batch(Duration::ZERO).unwrap() {
        found.extend(messages.iter().map(|message| message.offset()));
    }
    found
}

#[test]
fn a_subscription_delivers_everything_once_and_in_order() {
    let (_, _, topic) = one_topic(&SimDisk::new(1));
    publish(&topic, 10);
    let mut beginning = topic.subscribe(Start::Beginning).unwrap();
    let mut tail = topic.subscribe(Start::Tail).unwrap();
    let small = SubscribeOptions::new().batch_messages(3);
    let mut middle = topic.subscribe_with(Start::Offset(4), small).unwrap();
    assert_eq!(middle.next_batch(SECOND).unwrap().unwrap().offsets(), 4..7);
    publish(&topic, 5);
    assert_eq!(offsets(&mut beginning), (0..15).collect::<Vec<_>>());
    assert_eq!(offsets(&mut tail), (10..15).collect::<Vec<_>>());
    assert_eq!(middle.lag().unwrap(), 8);
    assert_eq!(offsets(&mut middle), (7..15).collect::<Vec<_>>());
    middle.seek(Start::Last(2)).unwrap();
    let one = middle.next_message(SECOND).unwrap().unwrap();
    assert_eq!((one.offset(), one.payload()), (13, &b"3"[..]));
    assert_eq!((middle.position(), middle.lag().unwrap()), (14, 1));
    assert_eq!(offsets(&mut middle), [14]);
    assert!(facts_of_start(&topic));
}

fn facts_of_start(topic: &Topic) -> bool {
    let asked = topic.subscribe(Start::Offset(99)).map(|_| ());
    matches!(
        facts(asked),
        TopicError::NotYetPublished {
            asked: 99,
            next: 15,
            ..
        }
    )
}

#[test]
fn a_subscriber_that_sleeps_is_woken_by_a_transaction_too() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Written)
        .open(directory.path())
        .unwrap();
    let topic = Topics::open(&store)
        .unwrap()
        .create("orders", TopicOptions::new())
        .unwrap();
    let mut subscription = topic.subscribe(Start::Tail).unwrap();
    let publisher = std::thread::spawn({
        let (store, topic) = (store.clone(), topic.clone());
        move || {
            for number in 0..200u64 {
                std::thread::sleep(Duration::from_micros(200));
                match number % 2 {
                    0 => drop(topic.publish(&number.to_string()).unwrap()),
                    _ => drop(store.transact(|tx| tx.publish(&topic, &number.to_string())).unwrap()),
                }
            }
        }
    });
    for number in 0..200u64 {
        let message = subscription
            .next_message(30 * SECOND)
            .unwrap()
            .expect("a message in time");
        assert_eq!(text(message.payload()), number.to_string());
    }
    publisher.join().unwrap();
    assert!(subscription.next_message(Duration::from_millis(5)).unwrap().is_none());
    // Closing the store ends the wait.
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        store.close().unwrap();
    });
    let error = subscription.next_batch(60 * SECOND).unwrap_err();
    assert!(matches!(error.reason(), Reason::Closed), "{error}");
    closing.join().unwrap();
}

#[test]
fn handles_that_are_dropped_let_the_store_be_opened_again_at_once() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let store = Store::open(directory.path()).unwrap();
        let topics = Topics::open(&store).unwrap();
        let topic = topics.ensure("orders", TopicOptions::new().keep_messages(3)).unwrap();
        topic.publish(b"x").unwrap();
        let subscription = topic.subscribe(Start::Tail).unwrap();
        drop((store, topics, topic, subscription));
    }
}

#[test]
fn the_background_trims() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Written)
        .open(directory.path())
        .unwrap();
    let topic = Topics::open(&store)
        .unwrap()
        .create("orders", TopicOptions::new().keep_messages(3))
        .unwrap();
    publish(&topic, 100);
    let began = Instant::now();
    while topic.describe().unwrap().messages() > 3 {
        assert!(began.elapsed() < 60 * SECOND);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_reads_on_is_told_what_retention_took() {
    let (_, _, topic) = one_topic(&SimDisk::new(2));
    publish(&topic, 10);
    let mut subscription = topic.subscribe(Start::Beginning).unwrap();
    topic.configure(TopicOptions::new().keep_messages(4)).unwrap();
    topic.trim().unwrap();
    for _ in 0..2 {
        let trimmed = TopicError::Trimmed {
            topic: "orders".into(),
            asked: 0,
            first: 6,
        };
        assert_eq!(facts(subscription.next_batch(SECOND)), trimmed);
    }
    subscription.seek(Start::Offset(6)).unwrap();
    assert_eq!(offsets(&mut subscription), [6, 7, 8, 9]);
}

#[test]
fn who_skips_is_told_which_messages() {
    let (_, _, topic) = one_topic(&SimDisk::new(3));
    publish(&topic, 10);
    let skip = SubscribeOptions::new().slow(SlowPolicy::Skip { max: 3 });
    let mut subscription = topic.subscribe_with(Start::Beginning, skip).unwrap();
    let messages = subscription.next_batch(SECOND).unwrap().unwrap();
    assert_eq!((messages.gap(), messages.offsets()), (Some(0..7), 7..10));
    publish(&topic, 3);
    let messages = subscription.next_batch(SECOND).unwrap().unwrap();
    assert_eq!((messages.gap(), messages.offsets()), (None, 10..13));
    publish(&topic, 3);
    topic.configure(TopicOptions::new().keep_messages(1)).unwrap();
    topic.trim().unwrap();
    let messages = subscription.next_batch(SECOND).unwrap().unwrap();
    assert_eq!((messages.gap(), messages.offsets()), (Some(13..15), 15..16));
}

#[test]
fn who_is_too_slow_is_disconnected() {
    let (_, _, topic) = one_topic(&SimDisk::new(4));
    let disconnect = SubscribeOptions::new().slow(SlowPolicy::Disconnect { max: 3 });
    let mut subscription = topic.subscribe_with(Start::Beginning, disconnect).unwrap();
    publish(&topic, 3);
    assert_eq!(offsets(&mut subscription), [0, 1, 2]);
    publish(&topic, 4);
    let slow = TopicError::TooSlow {
        topic: "orders".into(),
        lag: 4,
        max: 3,
    };
    assert_eq!(facts(subscription.next_batch(SECOND)), slow);
    let none = SubscribeOptions::new().slow(SlowPolicy::Disconnect { max: 0 });
    let refused = topic.subscribe_with(Start::Tail, none).map(|_| ());
    assert!(matches!(facts(refused), TopicError::InvalidOptions { .. }));
}

#[test]
fn who_holds_publishers_back_does_so_for_a_while_and_no_longer() {
    let (store, _, topic) = one_topic(&SimDisk::new(5));
    let timeout = Duration::from_millis(20);
    let hold = SubscribeOptions::new().slow(SlowPolicy::HoldBack { max: 3, timeout });
    let mut subscription = topic.subscribe_with(Start::Beginning, hold).unwrap();
    publish(&topic, 3);
    let held = facts(topic.publish(b"one too many"));
    assert!(matches!(held, TopicError::PublisherHeldBack { lag: 3, .. }), "{held:?}");
    assert!(
        held.to_string().contains("the thread that publishes read it last"),
        "{held}"
    );
    let in_transaction = store.transact(|tx| tx.publish(&topic, b"one too many"));
    assert!(matches!(facts(in_transaction), TopicError::PublisherHeldBack { .. }));
    assert_eq!(subscription.next_batch(SECOND).unwrap().unwrap().len(), 3);
    // Returned messages count as read only when the subscriber asks for more.
    assert!(topic.publish(b"still").is_err());
    assert!(subscription.next_batch(Duration::ZERO).unwrap().is_none());
    publish(&topic, 3);
    drop(subscription);
    publish(&topic, 10);
}

#[test]
fn publishers_of_another_process_are_held_back_too() {
    let disk = SimDisk::new(5);
    let (store, _, topic) = one_topic(&disk);
    let (other, _, elsewhere) = one_topic(&disk);
    let timeout = Duration::from_millis(20);
    let hold = SubscribeOptions::new().slow(SlowPolicy::HoldBack { max: 3, timeout });
    let mut subscription = topic.subscribe_with(Start::Beginning, hold).unwrap();
    publish(&elsewhere, 3);
    let held = facts(elsewhere.publish(b"one too many"));
    assert!(matches!(held, TopicError::PublisherHeldBack { lag: 3, .. }), "{held:?}");
    assert!(held.to_string().contains("give it another policy"), "{held}");
    disk.advance(5 * SECOND);
    let held = facts(elsewhere.publish(b"one too many"));
    assert!(held.to_string().contains("asked for no messages for 5 s"), "{held}");
    let holders = elsewhere.holders().unwrap();
    let [Holder::Subscription { lag: 3, max: 3, .. }] = holders[..] else {
        panic!("{holders:?}")
    };
    assert!(holders[0].holds_now() && holders[0].stuck().is_some());
    let in_transaction = other.transact(|tx| tx.publish(&elsewhere, b"one too many"));
    assert!(matches!(facts(in_transaction), TopicError::PublisherHeldBack { .. }));
    assert_eq!(subscription.next_batch(SECOND).unwrap().unwrap().len(), 3);
    assert!(subscription.next_batch(Duration::ZERO).unwrap().is_none());
    publish(&elsewhere, 3);
    // A handle of a closed store does not hold back other publishers.
    store.close().unwrap();
    publish(&elsewhere, 10);
}

#[test]
fn a_publisher_that_is_held_back_is_told_when_the_topic_is_deleted() {
    let (_, topics, topic) = one_topic(&SimDisk::new(5));
    let timeout = 600 * SECOND;
    let hold = SubscribeOptions::new().slow(SlowPolicy::HoldBack { max: 1, timeout });
    let _subscription = topic.subscribe_with(Start::Beginning, hold).unwrap();
    publish(&topic, 1);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| topic.publish(b"one too many"));
        std::thread::sleep(Duration::from_millis(20));
        topics.delete("orders").unwrap();
        let refused = held.join().unwrap().unwrap_err();
        assert!(matches!(refused.reason(), Reason::TopicDeleted { .. }), "{refused:?}");
    });
}

#[test]
fn as_many_subscriptions_hold_publishers_back_as_can() {
    let (_, _, topic) = one_topic(&SimDisk::new(5));
    let timeout = SECOND;
    let hold = SubscribeOptions::new().slow(SlowPolicy::HoldBack { max: 1, timeout });
    let all: Vec<Subscription> = (0..255)
        .map(|_| topic.subscribe_with(Start::Tail, hold).unwrap())
        .collect();
    let refused = facts(topic.subscribe_with(Start::Tail, hold).map(drop));
    assert!(
        matches!(refused, TopicError::TooManyHoldBack { max: 255 }),
        "{refused:?}"
    );
    drop(all);
    topic.subscribe_with(Start::Tail, hold).unwrap();
}

#[test]
fn a_publisher_that_is_held_back_goes_on_when_the_subscriber_does() {
    let (_, _, topic) = one_topic(&SimDisk::new(6));
    let hold = SlowPolicy::HoldBack {
        max: 5,
        timeout: 60 * SECOND,
    };
    let options = SubscribeOptions::new().slow(hold).batch_messages(2);
    let mut subscription = topic.subscribe_with(Start::Beginning, options).unwrap();
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..500u64 {
                let offset = topic.publish(&number.to_string()).unwrap().offset;
                assert!(offset <= seen.load(Ordering::SeqCst) + 7, "{offset}");
            }
        });
        let mut next = 0;
        while next < 500 {
            let messages = subscription.next_batch(60 * SECOND).unwrap().unwrap();
            assert_eq!(messages.offsets().start, next);
            next = messages.offsets().end;
            seen.store(next, Ordering::SeqCst);
        }
    });
}

#[test]
fn a_batch_lingers_until_it_is_full() {
    let (_, _, topic) = one_topic(&SimDisk::new(7));
    let options = SubscribeOptions::new().linger(60 * SECOND).batch_messages(10);
    let mut subscription = topic.subscribe_with(Start::Beginning, options).unwrap();
    topic.publish(b"first").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..9 {
                std::thread::sleep(Duration::from_millis(2));
                topic.publish(&number.to_string()).unwrap();
            }
        });
        assert_eq!(subscription.next_batch(60 * SECOND).unwrap().unwrap().len(), 10);
    });
    let options = SubscribeOptions::new()
        .linger(Duration::from_millis(5))
        .batch_messages(10);
    let mut subscription = topic.subscribe_with(Start::Last(2), options).unwrap();
    assert_eq!(subscription.next_batch(60 * SECOND).unwrap().unwrap().len(), 2);
}

/// Wakes a thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let began = Instant::now();
    loop {
        if let Poll::Ready(ready) = poll(&mut Context::from_waker(&waker)) {
            return ready;
        }
        std::thread::park_timeout(30 * SECOND);
        assert!(began.elapsed() < 30 * SECOND, "the task was not woken");
    }
}

#[test]
fn a_stream_wakes_its_task() {
    let (_, _, topic) = one_topic(&SimDisk::new(8));
    let mut subscription = topic.subscribe(Start::Tail).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..300u64 {
                if number % 3 == 0 {
                    std::thread::sleep(Duration::from_micros(300));
                }
                topic.publish(&number.to_string()).unwrap();
            }
        });
        let mut next = 0;
        while next < 300 {
            let mut future = std::pin::pin!(poll_fn(
                |context| Pin::new(&mut subscription.stream()).poll_next(context)
            ));
            let messages = block_on(|context| future.as_mut().poll(context)).unwrap().unwrap();
            assert_eq!(messages.offsets().start, next);
            next = messages.offsets().end;
        }
    });
}

#[test]
fn a_stream_that_waits_is_woken_when_the_store_is_closed() {
    let disk = SimDisk::new(81);
    let store = open(&disk);
    let topic = Topics::open(&store)
        .unwrap()
        .create("orders", TopicOptions::new())
        .unwrap();
    let mut subscription = topic.subscribe(Start::Tail).unwrap();
    let mut store = Some(store);
    let ended = block_on(|context| {
        let polled = Pin::new(&mut subscription.stream()).poll_next(context);
        // It waits now, so the store is closed only now.
        store.take().into_iter().for_each(|store| store.close().unwrap());
        polled
    });
    let error = ended.unwrap().unwrap_err();
    assert!(matches!(error.reason(), Reason::Closed), "{error}");
}

#[test]
fn a_batch_that_was_taken_message_by_message_is_not_followed_by_an_empty_one() {
    let disk = SimDisk::new(1);
    let (_, _, topic) = one_topic(&disk);
    let mut subscription = topic.subscribe(Start::Beginning).unwrap();
    publish(&topic, 2);
    for _ in 0..2 {
        assert!(subscription.next_message(Duration::ZERO).unwrap().is_some());
    }
    assert!(subscription.next_batch(Duration::ZERO).unwrap().is_none());
    publish(&topic, 1);
    assert_eq!(subscription.next_batch(Duration::ZERO).unwrap().unwrap().len(), 1);
}

#[test]
fn a_pattern_follows_topics_that_are_there_and_those_that_come() {
    let (store, topics, _) = one_topic(&SimDisk::new(9));
    let make = |name: &str| topics.create(name, TopicOptions::new()).unwrap();
    let (eu, us) = (make("orders.eu.created"), make("orders.us.created"));
    let other = make("orders.eu.paid");
    publish(&eu, 2);
    let pattern = Pattern::new("orders.*.created").unwrap();
    let mut subscription = topics.subscribe(&pattern, Start::Beginning).unwrap();
    assert_eq!(
        topics.matching(&pattern).unwrap(),
        ["orders.eu.created", "orders.us.created"]
    );
    let mut collect = || {
        let mut found = Vec::new();
        while let Some(messages) = subscription.next_batch(Duration::ZERO).unwrap() {
            found.extend(
                messages
                    .iter()
                    .map(|message| format!("{}:{}", message.topic(), message.offset())),
            );
        }
        found.sort();
        found
    };
    assert_eq!(collect(), ["orders.eu.created:0", "orders.eu.created:1"]);
    publish(&us, 1);
    publish(&other, 1);
    let later = make("orders.asia.created");
    publish(&later, 2);
    assert_eq!(
        collect(),
        ["orders.asia.created:0", "orders.asia.created:1", "orders.us.created:0"]
    );
    topics.delete("orders.us.created").unwrap();
    publish(&eu, 1);
    assert_eq!(collect(), ["orders.eu.created:2"]);
    publish(&make("orders.us.created"), 1);
    assert_eq!(collect(), ["orders.us.created:0"]);
    assert_eq!(collect(), [""; 0]);
    check(&store);
}

/// What a stream delivers next; `None`: nothing is available.
fn polled(subscription: &mut PatternSubscription) -> Option<Option<Result<Messages, Error>>> {
    match Pin::new(&mut subscription.stream()).poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(item) => Some(item),
        Poll::Pending => None,
    }
}

#[test]
fn a_pattern_is_a_stream_that_wakes_its_task_for_every_topic_and_ends_with_the_store() {
    let store = open(&SimDisk::new(91));
    // With the background thread, which wakes waiters when the store is closed.
    let topics = Topics::open(&store).unwrap();
    let pattern = Pattern::new("orders.>").unwrap();
    let mut subscription = topics.subscribe(&pattern, Start::Beginning).unwrap();
    publish(&topics.create("orders", TopicOptions::new()).unwrap(), 1);
    assert!(polled(&mut subscription).is_none(), "another topic");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..30u64 {
                std::thread::sleep(Duration::from_micros(300));
                let name = format!("orders.{}", number % 3);
                let topic = topics.ensure(&name, TopicOptions::new()).unwrap();
                publish(&topic, 10);
            }
        });
        let mut next = [0; 3];
        while next != [100; 3] {
            let mut future = std::pin::pin!(poll_fn(
                |context| Pin::new(&mut subscription.stream()).poll_next(context)
            ));
            let messages = block_on(|context| future.as_mut().poll(context)).unwrap().unwrap();
            let topic: usize = messages.topic().strip_prefix("orders.").unwrap().parse().unwrap();
            assert_eq!(messages.offsets().start, next[topic]);
            next[topic] = messages.offsets().end;
        }
    });
    assert!(polled(&mut subscription).is_none());
    let mut store = Some(store);
    let ended = block_on(|context| {
        let polled = Pin::new(&mut subscription.stream()).poll_next(context);
        store.take().into_iter().for_each(|store| store.close().unwrap());
        polled
    });
    assert!(matches!(ended.unwrap().unwrap_err().reason(), Reason::Closed));
    assert!(matches!(polled(&mut subscription), Some(None)), "it is over");
}

#[test]
fn a_pattern_is_an_iterator_that_goes_on_when_one_topic_cannot() {
    let (store, topics, _) = one_topic(&SimDisk::new(92));
    let make = |name: &str| topics.create(name, TopicOptions::new().keep_messages(1)).unwrap();
    let (eu, us) = (make("orders.eu"), make("orders.us"));
    let pattern = Pattern::new("orders.*").unwrap();
    let mut subscription = topics.subscribe(&pattern, Start::Beginning).unwrap();
    publish(&eu, 5);
    eu.trim().unwrap();
    publish(&us, 1);
    let mut found: Vec<String> = subscription
        .batches()
        .take(2)
        .map(|taken| match taken {
            Ok(messages) => messages.topic().to_string(),
            Err(error) => format!("{:?}", TopicError::of(&error).unwrap()),
        })
        .collect();
    found.sort();
    assert!(found[0].starts_with("Trimmed") && found[1] == "orders.us", "{found:?}");
    assert!(subscription.seek("orders.eu", Start::Beginning).unwrap());
    assert_eq!(subscription.batches().next().unwrap().unwrap().offsets(), 4..5);
    store.close().unwrap();
    assert!(subscription.batches().next().unwrap().is_err());
    assert!(subscription.batches().next().is_none());
}

#[test]
fn a_pattern_lingers_for_a_fuller_batch() {
    let (_, topics, _) = one_topic(&SimDisk::new(93));
    let topic = topics.create("orders.eu", TopicOptions::new()).unwrap();
    let beside = topics.create("orders.us", TopicOptions::new()).unwrap();
    let options = SubscribeOptions::new().linger(60 * SECOND).batch_messages(10);
    let pattern = Pattern::new("orders.*").unwrap();
    let mut subscription = topics.subscribe_with(&pattern, Start::Beginning, options).unwrap();
    publish(&topic, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(2));
                publish(&topic, 1);
                publish(&beside, 1);
            }
        });
        let batches = [(); 2].map(|()| subscription.next_batch(60 * SECOND).unwrap().unwrap());
        let mut lengths = batches.map(|messages| (messages.topic().to_string(), messages.len()));
        lengths.sort();
        assert_eq!(lengths, [("orders.eu".into(), 10), ("orders.us".into(), 10)]);
    });
}

#[test]
fn a_durable_subscription_goes_on_where_it_was() {
    let disk = SimDisk::new(10);
    let (store, _, topic) = one_topic(&disk);
    publish(&topic, 10);
    let reader = topic.durable("reader", Start::Offset(2)).unwrap();
    let map = store.map("map").unwrap();
    let mut subscription = reader.subscribe().unwrap();
    assert_eq!(subscription.next_batch(SECOND).unwrap().unwrap().offsets(), 2..10);
    store
        .transact(|tx| {
            tx.put(&map, b"done", b"5")?;
            tx.acknowledge_through(&reader, 5)
        })
        .unwrap();
    assert_eq!(
        facts(reader.acknowledge_through(5)),
        TopicError::AlreadySettled { offset: 5 }
    );
    assert_eq!(
        facts(reader.acknowledge_through(10)),
        TopicError::NotReceived { offset: 10, next: 10 }
    );
    let killed = open(&disk.kill());
    let again = topics(&killed).topic("orders").unwrap();
    let reader = again.durable("reader", Start::Tail).unwrap();
    assert_eq!(reader.position().unwrap(), 6);
    assert_eq!(
        reader
            .subscribe()
            .unwrap()
            .next_batch(SECOND)
            .unwrap()
            .unwrap()
            .offsets(),
        6..10
    );
    let group = again
        .ensure_group("reader", Start::Tail, Default::default())
        .map(|_| ());
    assert!(matches!(facts(group), TopicError::OtherKind { .. }));
    reader.reset(Start::Beginning).unwrap();
    assert_eq!(reader.position().unwrap(), 0);
    reader.acknowledge_through(3).unwrap();
    let described = again.groups().unwrap();
    assert_eq!(
        (described[0].acknowledged, described[0].lag, described[0].pending),
        (4, 6, 0)
    );
    assert_eq!(described[0].options, None);
    again.delete_group("reader").unwrap();
    assert!(matches!(
        facts(reader.acknowledge_through(5)),
        TopicError::GroupDeleted { .. }
    ));
    assert!(matches!(facts(reader.position()), TopicError::GroupDeleted { .. }));
}

/// Records that a task was woken.
#[derive(Default)]
struct Woken {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Woken {
    fn wait(&self, timeout: Duration) -> bool {
        let is_woken = self.is_woken.lock().unwrap();
        let waited = self.changed.wait_timeout_while(is_woken, timeout, |woken| !*woken);
        *waited.unwrap().0
    }
}

/// Polls a stream only when its waker is called. Calls `act` once the stream is pending and quiet, and returns what it
/// delivers then; `None`: no wake-up came.
fn delivered_after<S: Stream + Unpin>(stream: &mut S, act: impl FnOnce()) -> Option<Option<S::Item>> {
    let mut act = Some(act);
    loop {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        if let Poll::Ready(item) = Pin::new(&mut *stream).poll_next(&mut Context::from_waker(&waker)) {
            return Some(item);
        }
        // The thread that rings for other processes starts by ringing everything.
        if !woken.wait(Duration::from_millis(300)) {
            act.take().map(|act| act())?;
            if !woken.wait(15 * SECOND) {
                return None;
            }
        }
    }
}

#[test]
fn a_task_is_woken_when_another_process_deletes_what_it_waits_for() {
    let disk = SimDisk::new(96);
    let (_store, here, _) = one_topic(&disk);
    let other = open(&disk);
    let there = topics(&other);
    let pattern = Pattern::new("orders.*").unwrap();
    let durable = here.durable(&pattern, "reader", Start::Beginning).unwrap();
    let mut of_topic = here.topic("orders").unwrap().subscribe(Start::Tail).unwrap();
    let delivered = delivered_after(&mut of_topic.stream(), || there.delete("orders").unwrap());
    let error = delivered.expect("the topic's end wakes it").unwrap().unwrap_err();
    assert!(matches!(error.reason(), Reason::TopicDeleted { .. }), "{error}");

    let mut of_pattern = durable.subscribe().unwrap();
    let durable = there.durables().unwrap().remove(0);
    let delivered = delivered_after(&mut of_pattern.stream(), || durable.delete().unwrap());
    let error = delivered.expect("its own end wakes it").unwrap().unwrap_err();
    assert!(
        matches!(TopicError::of(&error), Some(TopicError::GroupDeleted { .. })),
        "{error}"
    );
}
