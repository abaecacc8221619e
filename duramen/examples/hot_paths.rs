//! The hot paths, one at a time and deterministic, so that their instructions can be counted. `scripts/instructions`
//! runs this under valgrind, twice for each path with different numbers of operations, and divides the difference.
//!
//! ```sh
//! cargo run --release -p duramen --example hot_paths -- get 100000
//! ```

use std::hint::black_box;
use std::time::Duration;

use duramen::topic::{GroupOptions, Start, Topic, TopicBatch, TopicOptions, TopicWrites, Topics, TopicsOptions};
use duramen::{Batch, Durability, Maintenance, Map, Options, Result, Store};

/// Number of pairs that the reading paths find in the store.
const PAIRS: usize = 50_000;
/// Number of pairs in a batch.
const BATCH: usize = 1_000;
const VALUE: [u8; 100] = [7; 100];

/// A path: its preparation and its operations.
struct Path {
    name: &'static str,
    about: &'static str,
    is_folded: bool,
    run: fn(&Store, &Map, &[Key], usize) -> Result<()>,
}

type Key = [u8; 16];

const PATHS: &[Path] = &[
    Path {
        name: "snapshot",
        about: "take a snapshot and drop it",
        is_folded: true,
        run: |store, _, _, count| (0..count).try_for_each(|_| store.snapshot().map(drop)),
    },
    Path {
        name: "get",
        about: "read a folded pair in a snapshot",
        is_folded: true,
        run: get,
    },
    Path {
        name: "get-recent",
        about: "read a pair that is not folded yet",
        is_folded: false,
        run: get,
    },
    Path {
        name: "get-missing",
        about: "look for a key that is not there",
        is_folded: true,
        run: |store, map, keys, count| {
            let snapshot = store.snapshot()?;
            for at in 0..count {
                let mut key = keys[at % keys.len()];
                key[15] ^= 1;
                black_box(snapshot.get(map, key)?);
            }
            Ok(())
        },
    },
    Path {
        name: "next",
        about: "step over a pair of a scan",
        is_folded: true,
        run: |store, map, _, count| {
            let snapshot = store.snapshot()?;
            let mut left = count;
            while left > 0 {
                let mut cursor = snapshot.range(map, ..)?;
                while left > 0
                    && let Some(pair) = cursor.next()?
                {
                    black_box(pair);
                    left -= 1;
                }
            }
            Ok(())
        },
    },
    Path {
        name: "put",
        about: "put a new pair in a commit of its own, with its share of the folding",
        is_folded: true,
        run: |_, map, _, count| fresh(count).iter().try_for_each(|key| map.put(key, VALUE)),
    },
    Path {
        name: "overwrite",
        about: "put a pair that is there, with its share of the folding",
        is_folded: true,
        run: |_, map, keys, count| (0..count).try_for_each(|at| map.put(keys[at % keys.len()], VALUE)),
    },
    Path {
        name: "put-in-batch",
        about: "put a new pair together with 999 others, with its share of the folding",
        is_folded: true,
        run: |store, map, _, count| put_in_batches(store, map, &fresh(count)),
    },
    Path {
        name: "delete",
        about: "delete a pair in a commit of its own, with its share of the folding",
        is_folded: true,
        run: |_, map, keys, count| (0..count).try_for_each(|at| map.delete(keys[at % keys.len()])),
    },
    Path {
        name: "transaction",
        about: "put a new pair in a transaction, with its share of the folding",
        is_folded: true,
        run: |store, map, _, count| {
            let put = |key: &Key| store.transact(|tx| tx.put(map, key, VALUE));
            fresh(count).iter().try_for_each(put)
        },
    },
    Path {
        name: "publish",
        about: "publish a message, with its share of the folding",
        is_folded: true,
        run: |store, _, _, count| {
            let topic = topic(store)?;
            (0..count).try_for_each(|_| topic.publish(&VALUE).map(drop))
        },
    },
    Path {
        name: "publish-many",
        about: "publish a message together with 99 others, with its share of the folding",
        is_folded: true,
        run: |store, _, _, count| publish_many(&topic(store)?, count),
    },
    Path {
        name: "put-publish",
        about: "put a new pair and publish a message in one transaction, with its share of the folding",
        is_folded: true,
        run: |store, map, _, count| {
            let topic = topic(store)?;
            let both = |key: &Key| {
                store.transact(|tx| {
                    tx.put(map, key, VALUE)?;
                    tx.publish(&topic, &VALUE).map(drop)
                })
            };
            fresh(count).iter().try_for_each(both)
        },
    },
    Path {
        name: "batch-publish",
        about: "put a new pair and publish a message in one batch, with its share of the folding",
        is_folded: true,
        run: |store, map, _, count| {
            let topic = topic(store)?;
            let both = |key: &Key| {
                let mut batch = Batch::new();
                batch.put(map, key, VALUE)?;
                batch.publish(&topic, &VALUE)?;
                store.write(batch).map(drop)
            };
            fresh(count).iter().try_for_each(both)
        },
    },
    Path {
        name: "receive-one",
        about: "publish with 99 others, receive and acknowledge a message, with its share of the folding",
        is_folded: true,
        run: |store, _, _, count| receive(&topic(store)?, count, 1),
    },
    Path {
        name: "receive-many",
        about: "publish and receive a message with 99 others, and acknowledge it by itself, with its share of the folding",
        is_folded: true,
        run: |store, _, _, count| receive(&topic(store)?, count, 100),
    },
];

fn get(store: &Store, map: &Map, keys: &[Key], count: usize) -> Result<()> {
    let snapshot = store.snapshot()?;
    for at in 0..count {
        black_box(snapshot.get(map, keys[at % keys.len()])?.expect("it was put"));
    }
    Ok(())
}

/// Returns keys that are not in the store.
fn fresh(count: usize) -> Vec<Key> {
    random_keys(2, count)
}

fn random_keys(seed: u64, count: usize) -> Vec<Key> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut key = || {
        let mut key = [0; 16];
        random.fill(&mut key);
        // The keys of `get-missing` differ in this bit.
        key[15] &= !1;
        key
    };
    (0..count).map(|_| key()).collect()
}

fn put_in_batches(store: &Store, map: &Map, keys: &[Key]) -> Result<()> {
    for keys in keys.chunks(BATCH) {
        let mut batch = Batch::new();
        keys.iter().try_for_each(|key| batch.put(map, key, VALUE))?;
        store.write(batch)?;
    }
    Ok(())
}

fn topic(store: &Store) -> Result<Topic> {
    // No background thread runs.
    let topics = Topics::open_with(store, TopicsOptions::new().background(false))?;
    topics.create("messages", TopicOptions::new())
}

fn publish_many(topic: &Topic, count: usize) -> Result<()> {
    for _ in 0..count / 100 {
        topic.publish_all([&VALUE; 100])?;
    }
    Ok(())
}

/// Publishes messages. A member of a group receives `at_once` at a time, and acknowledges each individually.
fn receive(topic: &Topic, count: usize, at_once: usize) -> Result<()> {
    publish_many(topic, count)?;
    let group = topic.ensure_group("group", Start::Beginning, GroupOptions::new())?;
    let mut member = group.member("member");
    while let Some(deliveries) = member.receive(at_once, Duration::ZERO)? {
        deliveries.into_iter().try_for_each(|delivery| delivery.acknowledge())?;
    }
    assert_eq!(group.describe()?.acknowledged, count as u64);
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_default();
    let count = arguments.next().and_then(|count| count.parse().ok());
    let (Some(path), Some(count)) = (PATHS.iter().find(|known| known.name == path), count) else {
        eprintln!("usage: hot_paths PATH COUNT, where PATH is");
        for path in PATHS {
            eprintln!("  {:<13} {}", path.name, path.about);
        }
        std::process::exit(2);
    };
    let directory = tempfile::tempdir().expect("a directory for the store");
    // No background thread runs, so the count is always the same.
    let store = Options::new()
        .durability(Durability::Written)
        .maintenance(Maintenance::Manual)
        .open(directory.path())?;
    let map = store.map("pairs")?;
    let mut keys = random_keys(1, PAIRS);
    // Unfolded pairs must fit into one generation of the log.
    keys.truncate(if path.is_folded { PAIRS } else { 2 * BATCH });
    put_in_batches(&store, &map, &keys)?;
    if path.is_folded {
        store.maintain()?;
    }
    (path.run)(&store, &map, &keys, count)?;
    // Closing leaves the log of many operations unfolded, so their share of the folding would not be counted.
    store.maintain()
}
