//! Delayed messages are published once, even by real processes that all move them and are killed repeatedly.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duramen_engine::{Durability, Map, Options, Store};
use duramen_topic::{Start, Topic, TopicOptions, TopicWrites, Topics};

/// Tells the program to schedule and publish, and where.
const DIRECTORY: &str = "DURAMEN_TEST_DELAYED_DIRECTORY";
/// Number of processes at any time.
const PROCESSES: usize = 3;

fn kills() -> u32 {
    let given = std::env::var("DURAMEN_KILLS").ok().and_then(|kills| kills.parse().ok());
    given.unwrap_or(40)
}

struct Opened {
    store: Store,
    topics: Topics,
    topic: Topic,
    scheduled: Map,
}

fn open(directory: &Path) -> Opened {
    let options = Options::new().durability(Durability::Written);
    let store = options.open(directory).expect("the store opens");
    let topics = Topics::open(&store).expect("topics");
    Opened {
        topic: topics.ensure("orders", TopicOptions::new()).expect("a topic"),
        scheduled: store.map("scheduled").expect("a map"),
        topics,
        store,
    }
}

/// Schedules messages that all processes publish, until it is killed. This is not a test: the test starts and kills it.
#[test]
#[ignore = "started, and killed, by the other"]
fn publisher() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let opened = open(Path::new(&directory));
    let mut rng = fastrand::Rng::new();
    loop {
        let name = rng.u128(..).to_string();
        let due = std::time::SystemTime::now() + Duration::from_millis(rng.u64(..40));
        opened
            .store
            .transact(|tx| {
                tx.put(&opened.scheduled, name.as_bytes(), b"")?;
                tx.publish_at(&opened.topic, due, &name)
            })
            .expect("it is scheduled");
        opened.topics.publish_due().expect("due messages are published");
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// A process that runs until it is killed or dropped.
struct Publisher(Child);

impl Publisher {
    fn start(directory: &Path) -> Publisher {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "publisher", "--ignored", "--nocapture"])
            .env(DIRECTORY, directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Publisher(child.expect("the process starts"))
    }

    fn kill(mut self) {
        let ended = self.0.try_wait().expect("the process can be asked");
        assert!(ended.is_none(), "the process ended by itself: {ended:?}");
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_that_are_killed_publish_every_delayed_message_exactly_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let start = || Publisher::start(directory.path());
    let mut rng = fastrand::Rng::new();
    let mut publishers: Vec<Publisher> = (0..PROCESSES).map(|_| start()).collect();
    for _ in 0..kills() {
        std::thread::sleep(Duration::from_millis(rng.u64(5..80)));
        publishers.swap_remove(rng.usize(..PROCESSES)).kill();
        publishers.push(start());
    }
    publishers.into_iter().for_each(Publisher::kill);
    let opened = open(directory.path());
    while opened.topic.scheduled().expect("the map").count > 0 {
        opened.topics.publish_due().expect("due messages are published");
    }
    let mut published = Vec::new();
    let mut from = 0;
    while from < opened.topic.describe().expect("the topic").next {
        let messages = opened.topic.read(Start::Offset(from), 1000).expect("messages");
        published.extend(messages.iter().map(|message| message.payload().to_vec()));
        from = messages.offsets().end;
    }
    published.sort_unstable();
    let snapshot = opened.store.snapshot().expect("a snapshot");
    let mut cursor = snapshot.range(&opened.scheduled, ..).expect("a cursor");
    let mut scheduled = Vec::new();
    while let Some((key, _)) = cursor.next().expect("a row") {
        scheduled.push(key.to_vec());
    }
    assert!(scheduled.len() > 50, "only {} messages were scheduled", scheduled.len());
    assert!(published == scheduled, "{} of {}", published.len(), scheduled.len());
}
