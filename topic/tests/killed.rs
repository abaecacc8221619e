//! Exactly-once processing by real consumers that share a group and are killed repeatedly. If the acknowledgement is in
//! the transaction that does the work, every message is processed once. Otherwise the same program processes some
//! messages twice.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use duramen_engine::{Durability, Map, Options, Store};
use duramen_topic::{GroupOptions, Start, Topic, TopicError, TopicOptions, TopicWrites, Topics};

/// Tells the program that it must consume, and how.
const CONSUMER: &str = "DURAMEN_TEST_CONSUMER";
/// Directory of the store.
const DIRECTORY: &str = "DURAMEN_TEST_DIRECTORY";

/// Number of consumers at any time.
const CONSUMERS: usize = 3;

fn kills() -> u32 {
    std::env::var("DURAMEN_KILLS")
        .ok()
        .and_then(|kills| kills.parse().ok())
        .unwrap_or(50)
}

struct Opened {
    store: Store,
    topic: Topic,
    counts: Map,
}

fn open(directory: &Path) -> Opened {
    let store = Options::new()
        .durability(Durability::Written)
        .open(directory)
        .expect("the store opens");
    let topic = Topics::open(&store).and_then(|topics| topics.ensure("orders", TopicOptions::new()));
    Opened {
        counts: store.map("counts").expect("a map"),
        topic: topic.expect("a topic"),
        store,
    }
}

/// Publishes and consumes until it is killed. This is not a test: the tests start and kill it.
#[test]
#[ignore = "started, and killed, by the others"]
fn consumer() {
    let (Ok(way), Ok(directory)) = (std::env::var(CONSUMER), std::env::var(DIRECTORY)) else {
        return;
    };
    let opened = open(Path::new(&directory));
    let options = GroupOptions::new().lease(Duration::from_millis(20)).back_off(&[]);
    let group = opened
        .topic
        .ensure_group("group", Start::Beginning, options)
        .expect("a group");
    let mut member = group.member("consumer");
    loop {
        opened.topic.publish(b"work").expect("it is published");
        let Some(deliveries) = member.receive(5, Duration::ZERO).expect("messages") else {
            continue;
        };
        for delivery in deliveries {
            let offset = delivery.offset().to_be_bytes();
            let done = match way.as_str() {
                "together" => opened.store.transact(|tx| {
                    tx.add(&opened.counts, offset, 1)?;
                    tx.acknowledge(&delivery)
                }),
                _ => {
                    opened.counts.add(offset, 1).expect("it is counted");
                    std::thread::sleep(Duration::from_micros(500));
                    delivery.acknowledge()
                }
            };
            if let Err(error) = done {
                // Another consumer may have got the message meanwhile, and settled it already.
                let fact = TopicError::of(&error);
                let is_lost = matches!(
                    fact,
                    Some(TopicError::LeaseLost { .. } | TopicError::AlreadySettled { .. })
                );
                assert!(is_lost, "{error}");
            }
        }
    }
}

/// A consumer that runs until it is killed or dropped.
struct Consumer(Child);

impl Consumer {
    fn start(way: &str, directory: &Path) -> Consumer {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "consumer", "--ignored", "--nocapture"])
            .env(CONSUMER, way)
            .env(DIRECTORY, directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Consumer(child.expect("the consumer starts"))
    }

    fn kill(mut self) {
        let ended = self.0.try_wait().expect("the consumer can be asked");
        assert!(ended.is_none(), "the consumer ended by itself: {ended:?}");
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts consumers of one group and kills them in turn, many times. Returns the number of published messages, and how
/// often each was counted.
fn killed_again_and_again(way: &str) -> (u64, Vec<i64>) {
    let directory = tempfile::tempdir().expect("a directory");
    let start = || Consumer::start(way, directory.path());
    let mut rng = fastrand::Rng::new();
    let mut consumers: Vec<Consumer> = (0..CONSUMERS).map(|_| start()).collect();
    for _ in 0..kills() {
        std::thread::sleep(Duration::from_millis(rng.u64(5..80)));
        consumers.swap_remove(rng.usize(..CONSUMERS)).kill();
        consumers.push(start());
    }
    consumers.into_iter().for_each(Consumer::kill);
    let opened = open(directory.path());
    finish(&opened);
    let next = opened.topic.describe().expect("the topic").next;
    let count = |number: u64| {
        let found = opened.counts.get(number.to_be_bytes()).expect("the map");
        found.map_or(0, |found| i64::from_be_bytes(found.try_into().expect("a counter")))
    };
    (next, (0..next).map(count).collect())
}

/// Processes what is left.
fn finish(opened: &Opened) {
    let group = opened.topic.existing_group("group").expect("the group");
    let mut member = group.member("the last");
    let began = Instant::now();
    while group.describe().expect("the group").acknowledged < opened.topic.describe().expect("the topic").next {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", group.pending());
        let Some(deliveries) = member.receive(100, Duration::from_millis(50)).expect("messages") else {
            continue;
        };
        for delivery in deliveries {
            let done = opened.store.transact(|tx| {
                tx.add(&opened.counts, delivery.offset().to_be_bytes(), 1)?;
                tx.acknowledge(&delivery)
            });
            done.expect("it is processed");
        }
    }
}

#[test]
fn a_consumer_that_acknowledges_with_its_work_processes_every_message_exactly_once() {
    let (published, counts) = killed_again_and_again("together");
    assert!(published > 50, "only {published} messages were published");
    let wrong: Vec<_> = counts.iter().enumerate().filter(|(_, count)| **count != 1).collect();
    assert!(wrong.is_empty(), "{wrong:?} of {published}");
}

#[test]
fn the_same_consumer_without_that_processes_some_twice_and_none_not_at_all() {
    let (published, counts) = killed_again_and_again("apart");
    assert!(counts.iter().all(|count| *count >= 1));
    let twice = counts.iter().filter(|count| **count > 1).count();
    assert!(twice > 0, "none of {published}: then the test above shows nothing");
}
