//! Measures the time from publishing a message in one process until a sleeping subscriber has it in another:
//!
//! ```sh
//! cargo run --release -p duramen --example wake_up -- 5000
//! ```
//!
//! The program starts itself again as the subscriber. Each message carries the time at which its publication began, on
//! the clock that all processes of a machine share. The next message is published when the subscriber is asleep again.

use std::process::{Command, Stdio};
use std::time::Duration;

use duramen::topic::{Start, Topic, TopicOptions, Topics};
use duramen::{Durability, Options, Store};

/// Time between two messages.
const PAUSE: Duration = Duration::from_millis(1);
/// Content of the last message.
const END: u64 = u64::MAX;

fn main() -> duramen::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("subscribe"), Some(directory)) => subscribe(&open(directory.as_ref())?),
        (count, None) => publish(count.and_then(|count| count.parse().ok()).unwrap_or(5_000)),
        _ => {
            eprintln!("usage: wake_up [MESSAGES]");
            std::process::exit(2)
        }
    }
}

fn open(directory: &std::path::Path) -> duramen::Result<Store> {
    Options::new().durability(Durability::Written).open(directory)
}

fn publish(count: usize) -> duramen::Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path())?;
    let topic = Topics::open(&store)?.create("ticks", TopicOptions::new())?;
    let mut subscriber = Command::new(std::env::current_exe().expect("this program"))
        .arg("subscribe")
        .arg(directory.path())
        .stdin(Stdio::null())
        .spawn()
        .expect("the subscriber starts");
    // Gives the subscriber time to start and wait.
    std::thread::sleep(Duration::from_secs(1));
    let published = publish_all(&store, &topic, count);
    if published.is_err() {
        // Otherwise the subscriber would wait for the last message.
        let _ = subscriber.kill();
    }
    let status = subscriber.wait().expect("it ends");
    assert!(published.is_err() || status.success(), "{status}");
    published
}

fn publish_all(store: &Store, topic: &Topic, count: usize) -> duramen::Result<()> {
    for _ in 0..count {
        std::thread::sleep(PAUSE);
        topic.publish(&(store.monotonic_clock().as_nanos() as u64).to_be_bytes())?;
    }
    topic.publish(&END.to_be_bytes()).map(drop)
}

fn subscribe(store: &Store) -> duramen::Result<()> {
    let topic = Topics::open(store)?.get("ticks")?.expect("the topic is there");
    let mut subscription = topic.subscribe(Start::Beginning)?;
    let mut nanos = Vec::new();
    loop {
        let Some(messages) = subscription.next_batch(Duration::from_secs(10))? else {
            continue;
        };
        let now = store.monotonic_clock().as_nanos() as u64;
        for message in messages.iter() {
            match u64::from_be_bytes(message.payload().try_into().expect("eight bytes")) {
                END => {
                    print(nanos);
                    return Ok(());
                }
                published => nanos.push(now - published),
            }
        }
    }
}

fn print(mut nanos: Vec<u64>) {
    nanos.sort_unstable();
    let at = |share: f64| nanos[((nanos.len() - 1) as f64 * share) as usize] / 1000;
    println!(
        "{} messages, microseconds from publishing to having it: half {}, 99 of 100 {}, 999 of 1000 {}, most {}",
        nanos.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}
