//! Equal entries make equal stores: one store applies them in peace, the other folds, is opened again, and is killed at
//! random moments. This is what replication rests on.
//!
//! `DURAMEN_SEED=n` runs the entries and moments of a seed again.

use std::env;
use std::path::Path;
use std::process::{Child, Command as Process};
use std::time::Duration;

use duramen::topic::{Start, Topics, TopicsOptions};
use duramen::{Durability, Options, Store};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::*;
use duramen_proto::v1::condition::Test;
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::{self, *};
use duramen_server::{Applier, ENTRY_VERSION};
use fastrand::Rng;
use prost::Message as _;

const ENTRIES: usize = 600;
const DIRECTORY: &str = "DURAMEN_REPLAY_DIRECTORY";

/// The map in which each entry counts itself, so that a store knows how many it has applied.
const PROGRESS: &str = "progress";

fn seed() -> u64 {
    let given = env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..))
}

fn open(directory: &Path) -> Store {
    Options::new().durability(Durability::Written).open(directory).unwrap()
}

fn applier(store: &Store) -> Applier {
    Applier::new(store, TopicsOptions::new().background(false)).unwrap()
}

/// Entries of all kinds of commands, some of them wrong.
fn entries(seed: u64) -> Vec<Entry> {
    let mut rng = Rng::with_seed(seed);
    let mut time_us = 1_700_000_000_000_000;
    let mut entries = vec![entry(
        time_us,
        vec![Change::CreateMap(CreateMap { map: PROGRESS.into() })],
    )];
    while entries.len() < ENTRIES {
        if entries.len() == 1 {
            let maps = (0..4).map(|n| Change::CreateMap(CreateMap { map: format!("map{n}") }));
            entries.push(entry(time_us, maps.collect()));
        }
        // Time may run back: a leader may have another clock than the one before.
        time_us += rng.u64(0..50_000_000);
        time_us -= rng.u64(0..10_000_000);
        let changes = (0..rng.usize(1..8)).map(|_| change(&mut rng)).collect();
        let mut made = entry(time_us, changes);
        for command in &mut made.commands {
            if rng.bool() {
                command.idempotency_key = vec![rng.u8(0..40)].into();
            }
        }
        entries.push(made);
    }
    for entry in &mut entries {
        let count = Operated::Add(AddOperation {
            map: PROGRESS.into(),
            key: "entries".into(),
            delta: 1,
        });
        entry.commands.push(command(commit(vec![], vec![count], vec![])));
    }
    entries
}

fn entry(time_us: u64, changes: Vec<Change>) -> Entry {
    Entry {
        version: ENTRY_VERSION,
        time_us,
        commands: changes.into_iter().map(command).collect(),
    }
}

fn command(change: Change) -> Command {
    Command {
        idempotency_key: Vec::new().into(),
        change: Some(change),
    }
}

fn commit(conditions: Vec<Condition>, then: Vec<Operated>, otherwise: Vec<Operated>) -> Change {
    let operations = |changes: Vec<Operated>| {
        let made = changes.into_iter().map(|change| Operation { change: Some(change) });
        made.collect::<Vec<_>>()
    };
    Change::Commit(CommitRequest {
        conditions,
        then: operations(then),
        otherwise: operations(otherwise),
        ..Default::default()
    })
}

fn map(rng: &mut Rng) -> String {
    format!("map{}", rng.u8(0..4))
}

fn topic(rng: &mut Rng) -> String {
    format!("topic{}", rng.u8(0..4))
}

fn catalog(rng: &mut Rng) -> Change {
    match rng.u8(0..10) {
        0 => Change::DropMap(DropMap { map: map(rng) }),
        1 => Change::RenameMap(RenameMap {
            map: map(rng),
            new_name: map(rng),
        }),
        _ => Change::CreateMap(CreateMap { map: map(rng) }),
    }
}

fn change(rng: &mut Rng) -> Change {
    match rng.u8(0..10) {
        0 => Change::CreateTopic(CreateTopic {
            topic: topic(rng),
            options: Some(v1::TopicOptions {
                latest_per_key: rng.bool(),
                ..Default::default()
            }),
            if_missing: rng.bool(),
        }),
        1 => Change::ConfigureTopic(ConfigureTopic {
            topic: topic(rng),
            options: Some(v1::TopicOptions {
                message_expiry: rng.bool(),
                ..Default::default()
            }),
        }),
        2 if rng.u8(0..4) == 0 => Change::DeleteTopic(DeleteTopic { topic: topic(rng) }),
        3 => catalog(rng),
        _ => {
            let condition = |rng: &mut Rng| Condition {
                map: map(rng),
                key: key(rng).into(),
                test: Some(Test::Exists(rng.bool())),
            };
            let conditions = (0..rng.usize(0..2)).map(|_| condition(rng)).collect();
            let then = (0..rng.usize(1..5)).map(|_| operation(rng)).collect();
            let otherwise = (0..rng.usize(0..3)).map(|_| operation(rng)).collect();
            commit(conditions, then, otherwise)
        }
    }
}

fn key(rng: &mut Rng) -> String {
    format!("{:02}", rng.u8(0..60))
}

fn operation(rng: &mut Rng) -> Operated {
    match rng.u8(0..12) {
        0..5 => Operated::Put(PutOperation {
            map: map(rng),
            key: key(rng).into(),
            // Some do not fit into a log record, and some are counters for the additions.
            value: match rng.u8(0..12) {
                0 => vec![rng.u8(..); 40_000].into(),
                1 => rng.i64(..).to_be_bytes().to_vec().into(),
                _ => vec![rng.u8(..); rng.usize(0..200)].into(),
            },
        }),
        5 => Operated::Delete(DeleteOperation {
            map: map(rng),
            key: key(rng).into(),
        }),
        6 => Operated::DeleteRange(DeleteRangeOperation {
            map: map(rng),
            range: Some(KeyRange {
                start: key(rng).into(),
                end: rng.bool().then(|| key(rng).into()),
            }),
        }),
        7 | 8 => Operated::Add(AddOperation {
            map: map(rng),
            key: format!("n{}", rng.u8(0..5)).into(),
            delta: if rng.u8(0..10) == 0 {
                i64::MAX
            } else {
                rng.i64(-100..100)
            },
        }),
        _ => Operated::Publish(PublishOperation {
            topic: topic(rng),
            messages: (0..rng.usize(0..12).min(3)).map(|_| message(rng)).collect(),
        }),
    }
}

fn message(rng: &mut Rng) -> v1::Message {
    v1::Message {
        payload: vec![rng.u8(..); rng.usize(0..300)].into(),
        key: if rng.bool() { key(rng).into() } else { Vec::new().into() },
        headers: (0..rng.usize(0..2))
            .map(|_| Header {
                name: "h".into(),
                value: vec![rng.u8(..)].into(),
            })
            .collect(),
        expires_after_ms: if rng.u8(0..8) == 0 { 1_000 } else { 0 },
    }
}

/// All that a store holds, as far as a reader can tell, and what it remembers of idempotency keys.
fn contents(store: &Store) -> Vec<String> {
    let mut lines = Vec::new();
    let snapshot = store.snapshot().unwrap();
    let mut maps: Vec<_> = store
        .maps()
        .list()
        .unwrap()
        .into_iter()
        .map(|name| (name.clone(), store.maps().get(&name).unwrap().unwrap()))
        .collect();
    maps.push(("(keys)".into(), store.reserved_map("server.idempotency").unwrap()));
    for (name, map) in maps {
        lines.push(name.clone());
        let mut cursor = snapshot.range(&map, ..).unwrap();
        while let Some((key, value)) = cursor.next().unwrap() {
            lines.push(format!("{name} {key:?} {:?}", &value[..]));
        }
    }
    let topics = Topics::open_with(store, TopicsOptions::new().background(false)).unwrap();
    for name in topics.list().unwrap() {
        let topic = topics.topic(&name).unwrap();
        lines.push(format!("{:?}", topic.describe().unwrap()));
        let mut next = 0;
        loop {
            let messages = topic.read(Start::Offset(next), 1_000).unwrap();
            if messages.is_empty() {
                break;
            }
            for message in messages.iter() {
                let headers: Vec<_> = message.headers().collect();
                let (offset, time, payload) = (message.offset(), message.time_millis(), message.payload());
                let (key, expires) = (message.key(), message.expires());
                lines.push(format!(
                    "{name} {offset} {time} {key:?} {headers:?} {expires:?} {payload:?}"
                ));
            }
            next = messages.offsets().end;
        }
    }
    lines
}

fn applied(store: &Store) -> u64 {
    let Some(map) = store.maps().get(PROGRESS).unwrap() else {
        return 0;
    };
    let count = map.get("entries").unwrap();
    count.map_or(0, |count| u64::from_be_bytes(count[..].try_into().unwrap()))
}

#[test]
fn equal_entries_make_equal_stores() {
    let seed = seed();
    println!("DURAMEN_SEED={seed}");
    let entries = entries(seed);
    let directory = tempfile::tempdir().unwrap();
    let calm = open(&directory.path().join("calm"));
    let mut outcomes = Vec::new();
    let mut applies = applier(&calm);
    for entry in &entries {
        outcomes.push(applies.apply(entry, Durability::Written).unwrap().outcomes);
    }
    let refused = |outcome: &&Outcome| matches!(outcome.outcome, Some(Led::Refused(_)));
    let all = outcomes.iter().flatten().count();
    let refusals = outcomes.iter().flatten().filter(refused).count();
    assert!(
        refusals * 20 > all && refusals * 2 < all,
        "{refusals} of {all} were refused"
    );
    let expected = contents(&calm);

    // The same entries after a journey through bytes, while the store folds and is opened again.
    let mut rng = Rng::with_seed(seed);
    let path = directory.path().join("folded");
    let mut store = open(&path);
    let mut applies = applier(&store);
    for (entry, expected) in entries.iter().zip(&outcomes) {
        let entry = Entry::decode(&entry.encode_to_vec()[..]).unwrap();
        assert_eq!(&applies.apply(&entry, Durability::Written).unwrap().outcomes, expected);
        match rng.u8(0..40) {
            0 => store.maintain().unwrap(),
            1 => {
                drop(applies);
                store.close().unwrap();
                store = open(&path);
                applies = applier(&store);
            }
            _ => {}
        }
    }
    assert!(contents(&store) == expected, "the folded store differs; seed {seed}");

    // A process applies them and is killed again and again. It goes on with the first entry that it has not applied.
    let path = directory.path().join("killed");
    drop(open(&path));
    let mut kills = 0;
    loop {
        let mut child = child(&path, seed);
        let ended = (0..rng.u32(1..60)).find_map(|_| {
            std::thread::sleep(Duration::from_millis(2));
            child.try_wait().unwrap()
        });
        match ended {
            Some(status) => {
                assert!(status.success(), "seed {seed}: {status}");
                break;
            }
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                kills += 1;
            }
        }
        if kills > 200 {
            let status = self::child(&path, seed).wait().unwrap();
            assert!(status.success(), "seed {seed}: {status}");
            break;
        }
    }
    assert!(kills > 0, "seed {seed}: the process was never killed");
    println!("killed {kills} times");
    assert!(
        contents(&open(&path)) == expected,
        "the killed store differs; seed {seed}"
    );
}

fn child(directory: &Path, seed: u64) -> Child {
    Process::new(env::current_exe().unwrap())
        .args(["child_that_applies", "--exact", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .env("DURAMEN_SEED", seed.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the child of `equal_entries_make_equal_stores`"]
fn child_that_applies() {
    let Some(directory) = env::var_os(DIRECTORY) else {
        return;
    };
    let store = open(Path::new(&directory));
    let entries = entries(seed());
    let mut applies = applier(&store);
    let done = applied(&store) as usize;
    for entry in &entries[done..] {
        applies.apply(entry, Durability::Written).unwrap();
        // So that the parent kills at least once, however fast the machine is.
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_key_is_forgotten_after_ten_minutes() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let mut applies = applier(&store);
    let at = |minutes: u64, key: &str| {
        let add = Operated::Add(AddOperation {
            map: PROGRESS.into(),
            key: "n".into(),
            delta: 1,
        });
        let mut made = entry(minutes * 60_000_000, vec![commit(vec![], vec![add], vec![])]);
        made.commands[0].idempotency_key = key.to_string().into();
        made
    };
    let create = Change::CreateMap(CreateMap { map: PROGRESS.into() });
    applies.apply(&entry(0, vec![create]), Durability::Written).unwrap();
    for (minutes, key, expected) in [
        (100, "a", 1),
        (105, "a", 1),
        (109, "b", 2),
        (111, "a", 3),
        (112, "b", 3),
    ] {
        applies.apply(&at(minutes, key), Durability::Written).unwrap();
        let value = store.maps().get(PROGRESS).unwrap().unwrap().get("n").unwrap().unwrap();
        assert_eq!(
            &value[..],
            i64::to_be_bytes(expected),
            "key {key} after {minutes} minutes"
        );
    }
    let rows = store.reserved_map("server.idempotency").unwrap();
    // Two rows for each of two keys: nothing is left of the first use of "a".
    assert_eq!(store.snapshot().unwrap().count(&rows, ..).unwrap(), 4);
}
