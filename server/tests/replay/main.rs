//! Equal entries make equal stores: one store applies them in peace, the other folds, is opened again, and is killed at
//! random moments. This is what replication rests on.
//!
//! `DURAMEN_SEED=n` runs the entries and moments of a seed again.

mod random_entries;

use std::env;
use std::path::Path;
use std::process::{Child, Command as Process};
use std::time::Duration;

use duramen::topic::{Start, Topics, TopicsOptions};
use duramen::{Durability, Options, Store};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::*;
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::{AddOperation, DeleteRangeOperation, KeyRange, PutOperation};
use duramen_server::Applier;
use fastrand::Rng;
use prost::Message as _;
use random_entries::{PROGRESS, apply_random_entries, commit, create_topic, entry, watched};

const ENTRIES_FILE: &str = "entries";
const DIRECTORY: &str = "DURAMEN_REPLAY_DIRECTORY";

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
    for reserved in [
        "server.idempotency",
        "server.sessions",
        "server.principals",
        "server.changes",
        "groups",
        "states",
        "tree.trees",
        "tree.nodes",
        "tree.changes",
        "tree.versions",
        "tree.implied",
        "tree.parents",
        "tree.leases",
        "tree.rules",
    ] {
        maps.push((format!("({reserved})"), store.reserved_map(reserved).unwrap()));
    }
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
    let directory = tempfile::tempdir().unwrap();
    let calm = open(&directory.path().join("calm"));
    let (entries, outcomes) = apply_random_entries(seed, &mut applier(&calm));
    let leased = |outcome: &&Outcome| matches!(&outcome.outcome, Some(Led::Leased(leased)) if !leased.lease.is_empty());
    let leases = outcomes.iter().flatten().filter(leased).count();
    assert!(leases > 20, "{leases} leases; seed {seed}");
    let in_trees =
        |outcome: &&Outcome| matches!(&outcome.outcome, Some(Led::Committed(made)) if !made.revisions.is_empty());
    let changes = outcomes.iter().flatten().filter(in_trees).count();
    assert!(changes > 100, "{changes} transactions came to trees; seed {seed}");
    let of_etcd = |outcome: &&Outcome| matches!(&outcome.outcome, Some(Led::Etcd(made)) if made.succeeded);
    let transactions = outcomes.iter().flatten().filter(of_etcd).count();
    assert!(transactions > 30, "{transactions} transactions of etcd; seed {seed}");
    let refused = |outcome: &&Outcome| matches!(outcome.outcome, Some(Led::Refused(_)));
    let all = outcomes.iter().flatten().count();
    let refusals = outcomes.iter().flatten().filter(refused).count();
    assert!(
        refusals * 20 > all && refusals * 4 < all * 3,
        "{refusals} of {all} were refused; seed {seed}"
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
    let encoded: Vec<u8> = entries
        .iter()
        .flat_map(prost::Message::encode_length_delimited_to_vec)
        .collect();
    std::fs::write(path.join(ENTRIES_FILE), encoded).unwrap();
    let mut kills = 0;
    loop {
        let mut child = child(&path);
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
            let status = self::child(&path).wait().unwrap();
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

fn child(directory: &Path) -> Child {
    Process::new(env::current_exe().unwrap())
        .args(["child_that_applies", "--exact", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
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
    let entries = std::fs::read(Path::new(&directory).join(ENTRIES_FILE)).unwrap();
    let mut entries = &entries[..];
    let mut applies = applier(&store);
    let done = applied(&store);
    let mut number = 0;
    while !entries.is_empty() {
        let entry = Entry::decode_length_delimited(&mut entries).unwrap();
        number += 1;
        if number <= done {
            continue;
        }
        applies.apply(&entry, Durability::Written).unwrap();
        // So that the parent kills at least once, however fast the machine is.
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_entry_that_failed_leaves_no_trace_in_the_changes_of_maps() {
    let directory = tempfile::tempdir().unwrap();
    let stores = ["calm", "troubled"].map(|name| open(&directory.path().join(name)));
    let mut applies = stores.each_ref().map(applier);
    let create = watched(&mut Rng::with_seed(1), "m".into());
    let progress = Change::CreateMap(CreateMap {
        map: PROGRESS.into(),
        ..Default::default()
    });
    for applier in &mut applies {
        let made = entry(0, vec![progress.clone()]);
        applier.apply(&made, Durability::Written).unwrap();
    }
    // More ranges than a transaction takes.
    let ranges = (0..5_000).map(|n| {
        Operated::DeleteRange(DeleteRangeOperation {
            map: PROGRESS.into(),
            range: Some(KeyRange {
                start: format!("{n:09}").into(),
                end: Some(format!("{n:09}a").into()),
            }),
        })
    });
    let failing = entry(0, vec![create.clone(), commit(vec![], ranges.collect(), vec![])]);
    assert!(applies[1].apply(&failing, Durability::Written).is_err());
    for applier in &mut applies {
        let put = Operated::Put(PutOperation {
            map: "m".into(),
            key: "key".into(),
            value: "value".into(),
        });
        let made = entry(0, vec![create.clone(), commit(vec![], vec![put], vec![])]);
        let refused = |outcome: &Outcome| matches!(outcome.outcome, Some(Led::Refused(_)));
        let outcomes = applier.apply(&made, Durability::Written).unwrap().outcomes;
        assert!(!outcomes.iter().any(refused), "{outcomes:?}");
    }
    assert_eq!(contents(&stores[0]), contents(&stores[1]));
}

#[test]
fn an_entry_that_goes_on_after_its_end_is_refused_whole() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let mut applies = applier(&store);
    let create = |map: &str| {
        Change::CreateMap(CreateMap {
            map: map.into(),
            ..Default::default()
        })
    };
    let topic = create_topic(&mut Rng::with_seed(1), 1);
    let refused = applies.apply(
        &entry(0, vec![create("a"), topic.clone(), create("b")]),
        Durability::Written,
    );
    let error = refused.err().expect("it is refused").to_string();
    assert!(error.contains("command 2 of 3 ends its entry"), "{error}");
    assert!(store.maps().list().unwrap().is_empty());
    let done = applies.apply(&entry(0, vec![create("a"), topic]), Durability::Written);
    assert_eq!(done.unwrap().outcomes.len(), 2);
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
    let create = Change::CreateMap(CreateMap {
        map: PROGRESS.into(),
        ..Default::default()
    });
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
