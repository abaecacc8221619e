//! The commit stream: what it delivers, replayed, is the store; it holds nothing it does not need.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use duramen_engine::{
    Batch, Change, Changes, ChangesFrom, CommitChanges, Durability, Kind, Maintenance, Map, Options, Reason, Store,
    TransactionOptions,
};
use duramen_io::SimDisk;

/// Pairs by map and key.
type Model = BTreeMap<(String, Vec<u8>), Vec<u8>>;

const AT_ONCE: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(20);

/// Seed from the environment, or one that is printed when the test fails.
fn seed() -> u64 {
    let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    seed
}

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(192 << 10, 256 << 10)
        .durability(Durability::Written)
}

fn open(disk: &SimDisk) -> Store {
    options().open_on(disk.platform()).unwrap()
}

/// Applies a commit to the model, whose values must be the old ones.
fn replay(model: &mut Model, commit: &CommitChanges) {
    let mut before: Option<&Change> = None;
    for change in &commit.changes {
        let place = (change.map.clone(), change.key.clone());
        let known = model.get(&place);
        let shown = |value: Option<&Vec<u8>>| value.map(|value| (value.len(), value.first().copied()));
        assert!(
            known == change.old.as_ref(),
            "commit {} says that {place:?} held {:?}, it held {:?}",
            commit.number,
            shown(change.old.as_ref()),
            shown(known)
        );
        assert!(
            change.old.is_some() || change.new.is_some(),
            "{place:?} was not there before, nor after"
        );
        assert!(
            before.is_none_or(|other| other.map != change.map || other.key < change.key),
            "keys must ascend"
        );
        match &change.new {
            Some(value) => model.insert(place, value.clone()),
            None => model.remove(&place),
        };
        before = Some(change);
    }
}

/// Replays everything there is. Returns how many commits.
fn drain(changes: &mut Changes, model: &mut Model) -> u64 {
    let mut count = 0;
    while let Some(commit) = changes.next(AT_ONCE).unwrap() {
        count += 1;
        assert_eq!(commit.number, changes.position());
        replay(model, &commit);
    }
    count
}

fn contents(store: &Store) -> Model {
    let snapshot = store.snapshot().unwrap();
    let mut model = Model::new();
    for name in store.maps().list().unwrap() {
        let map = store.map(&name).unwrap();
        let mut cursor = snapshot.range(&map, ..).unwrap();
        while let Some((key, value)) = cursor.next().unwrap() {
            model.insert((name.clone(), key.to_vec()), value.to_vec());
        }
    }
    model
}

fn assert_same(one: &Model, other: &Model) {
    assert_eq!(one.len(), other.len());
    for ((place, value), (other_place, other_value)) in one.iter().zip(other) {
        assert_eq!(place, other_place);
        assert!(value == other_value, "{place:?}");
    }
}

fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let number = rng.u32(0..400);
    match number % 5 {
        0 => format!("a long common prefix that many keys share/{number:06}").into_bytes(),
        1 => vec![number as u8; 1 + number as usize % 3],
        _ => (number as u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .to_be_bytes()
            .to_vec(),
    }
}

fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = match rng.u32(0..100) {
        0..=2 => rng.usize(66_000..150_000),
        3..=8 => rng.usize(1000..6000),
        _ => rng.usize(0..300),
    };
    let byte = rng.u8(..);
    (0..length).map(|at| byte.wrapping_add((at / 1000) as u8)).collect()
}

fn range(rng: &mut fastrand::Rng) -> (Vec<u8>, Vec<u8>) {
    let (one, other) = (key(rng), key(rng));
    if one <= other { (one, other) } else { (other, one) }
}

/// One random commit, or two.
fn step(store: &Store, rng: &mut fastrand::Rng) {
    let map = store.map(["first", "second", "third"][rng.usize(0..3)]).unwrap();
    match rng.u32(0..100) {
        0..45 => map.put(key(rng), value(rng)).unwrap(),
        45..55 => map.delete(key(rng)).unwrap(),
        55..58 => {
            let (low, high) = range(rng);
            map.delete_range(low.as_slice()..high.as_slice()).unwrap();
        }
        58..66 => drop(map.append(b"log/", value(rng)).unwrap()),
        66..70 => drop(map.add(b"a counter", rng.i64(-9..9)).unwrap()),
        70..85 => drop(store.write(batch(&map, rng)).unwrap()),
        85..99 => transaction(store, &map, rng),
        _ => store.maps().drop(map.name()).unwrap(),
    }
}

fn batch(map: &Map, rng: &mut fastrand::Rng) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..rng.usize(1..30) {
        match rng.u32(0..20) {
            0 => {
                let (low, high) = range(rng);
                batch.delete_range(map, low.as_slice()..high.as_slice()).unwrap();
            }
            1..5 => batch.delete(map, key(rng)).unwrap(),
            5..7 => batch.append(map, b"log/", value(rng)).unwrap(),
            _ => batch.put(map, key(rng), value(rng)).unwrap(),
        }
    }
    batch
}

fn transaction(store: &Store, map: &Map, rng: &mut fastrand::Rng) {
    let other = store.map("first").unwrap();
    let mut tx = store.begin(TransactionOptions::default()).unwrap();
    for _ in 0..rng.usize(0..30) {
        match rng.u32(0..20) {
            0 => {
                let (low, high) = range(rng);
                tx.delete_range(map, low.as_slice()..high.as_slice()).unwrap();
            }
            1..5 => tx.delete(map, key(rng)).unwrap(),
            5 => tx.add(map, b"a counter", 3).unwrap(),
            6..10 => tx.put(&other, key(rng), value(rng)).unwrap(),
            10 => tx.append(&other, b"log/", value(rng)).unwrap(),
            _ => tx.put(map, key(rng), value(rng)).unwrap(),
        }
    }
    tx.commit().unwrap();
}

#[test]
fn replaying_the_stream_reproduces_the_store() {
    let seed = seed();
    for round in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed.wrapping_add(round));
        let disk = SimDisk::new(rng.u64(..));
        let store = options().open_on(disk.platform()).unwrap();
        let mut streams: Vec<(Changes, Model)> = Vec::new();
        streams.push((store.changes(ChangesFrom::Now).unwrap(), Model::new()));
        for number in 0..1500 {
            step(&store, &mut rng);
            if rng.u32(0..60) == 0 {
                store.maintain().unwrap();
            }
            if number % 250 == 249 {
                // Nobody may fall so far behind that the log is gone.
                streams
                    .iter_mut()
                    .for_each(|(changes, model)| assert!(drain(changes, model) <= 2000));
            }
            if rng.u32(0..30) == 0 {
                let place = rng.usize(0..streams.len());
                let (changes, model) = &mut streams[place];
                drain(changes, model);
            }
            if rng.u32(0..30) == 0 {
                // Only part of it, so that the stream stands in the middle when the next fold comes.
                let place = rng.usize(0..streams.len());
                let (changes, model) = &mut streams[place];
                for _ in 0..rng.usize(0..40) {
                    let Some(commit) = changes.next(AT_ONCE).unwrap() else {
                        break;
                    };
                    replay(model, &commit);
                }
            }
            if streams.len() < 4 && rng.u32(0..200) == 0 {
                let model = contents(&store);
                streams.push((store.changes(ChangesFrom::Now).unwrap(), model));
            }
        }
        let now = contents(&store);
        for (changes, model) in &mut streams {
            drain(changes, model);
            assert_same(model, &now);
        }
    }
}

#[test]
fn every_commit_comes_once_while_others_write_and_fold() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Written)
        .generation_bytes(256 << 10, 512 << 10)
        .overwrite_freed(true)
        .open(directory.path())
        .unwrap();
    let map = store.map("map").unwrap();
    let first = store.snapshot().unwrap().commit();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let (store, map) = (store.clone(), map.clone());
            std::thread::spawn(move || {
                let mut rng = fastrand::Rng::with_seed(writer);
                for number in 0..8_000 {
                    map.put(rng.u16(0..500).to_be_bytes(), vec![number as u8; rng.usize(0..400)])
                        .unwrap();
                    if number % 2000 == 1999 {
                        store.maintain().unwrap();
                    }
                }
            })
        })
        .collect();
    let mut model = Model::new();
    for number in first + 1..=first + 16_000 {
        let commit = changes.next(SOON).unwrap().expect("16,000 commits are made");
        assert_eq!(commit.number, number);
        assert_eq!(commit.changes.len(), 1);
        replay(&mut model, &commit);
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(changes.next(AT_ONCE).unwrap(), None);
    assert_same(&model, &contents(&store));
}

#[test]
fn several_operations_on_a_key_in_one_commit_are_one_change() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    map.put(b"a", b"1").unwrap();
    map.put(b"b", b"1").unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    let mut batch = Batch::new();
    batch.put(&map, b"a", b"2").unwrap();
    batch.put(&map, b"a", b"3").unwrap();
    batch.delete_range(&map, &b"b"[..]..&b"c"[..]).unwrap();
    batch.put(&map, b"b", b"4").unwrap();
    batch.put(&map, b"new", b"5").unwrap();
    batch.delete(&map, b"new").unwrap();
    batch.delete(&map, b"missing").unwrap();
    store.write(batch).unwrap();
    let commit = changes.next(AT_ONCE).unwrap().unwrap();
    let seen: Vec<_> = commit
        .changes
        .iter()
        .map(|c| (&c.key[..], c.old.as_deref(), c.new.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [
            (&b"a"[..], Some(&b"1"[..]), Some(&b"3"[..])),
            (b"b", Some(b"1"), Some(b"4"))
        ]
    );
}

#[test]
fn a_commit_that_changes_nothing_is_delivered_empty() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    map.delete(b"missing").unwrap();
    map.delete_range(..).unwrap();
    let position = changes.position();
    for number in position + 1..position + 3 {
        assert_eq!(
            changes.next(AT_ONCE).unwrap(),
            Some(CommitChanges {
                number,
                changes: Vec::new()
            })
        );
    }
}

#[test]
fn range_deletes_and_dropped_maps_come_pair_by_pair() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    let other = store.map("other").unwrap();
    for number in 0..100u8 {
        map.put([number], [number, 1]).unwrap();
        other.append(b"", [number]).unwrap();
    }
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    map.delete_range(&[10][..]..&[20][..]).unwrap();
    store.maintain().unwrap();
    store.maps().drop("other").unwrap();
    store.maps().rename("map", "renamed").unwrap();
    map.put([0], b"").unwrap();
    store.maintain().unwrap();
    let commit = changes.next(AT_ONCE).unwrap().unwrap();
    let expected = |number: u8| Change {
        map: "map".into(),
        key: vec![number],
        old: Some(vec![number, 1]),
        new: None,
    };
    assert_eq!(commit.changes, (10..20).map(expected).collect::<Vec<_>>());
    let commit = changes.next(AT_ONCE).unwrap().unwrap();
    assert_eq!(commit.changes.len(), 100);
    assert!(
        commit
            .changes
            .iter()
            .all(|change| change.map == "other" && change.new.is_none())
    );
    assert_eq!(changes.next(AT_ONCE).unwrap().unwrap().changes, []);
    assert_eq!(changes.next(AT_ONCE).unwrap().unwrap().changes[0].map, "renamed");
}

#[test]
fn a_transaction_larger_than_memory_comes_pair_by_pair() {
    let disk = SimDisk::new(1);
    let store = options()
        .generation_bytes(512 << 10, 4 << 20)
        .open_on(disk.platform())
        .unwrap();
    let map = store.map("large").unwrap();
    for number in 0..100u64 {
        map.put(number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes(), b"before")
            .unwrap();
    }
    let mut model = contents(&store);
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    let mut idle = store.changes(ChangesFrom::Now).unwrap();
    // The run is born in a later version than the one that the streams hold.
    map.put(b"between", b"x").unwrap();
    store.maintain().unwrap();
    let mut tx = store.begin(TransactionOptions::default()).unwrap();
    tx.delete_range(&map, &[0x00][..]..&[0x20][..]).unwrap();
    let other = tx.map("made by the transaction").unwrap();
    for number in 0..30_000u64 {
        tx.put(
            &map,
            number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes(),
            [number as u8; 700],
        )
        .unwrap();
    }
    tx.delete(&map, 0u64.to_be_bytes()).unwrap();
    tx.put(&other, b"key", vec![7; 100_000]).unwrap();
    tx.put(&other, b"key", vec![8; 100_000]).unwrap();
    tx.commit().unwrap();
    map.put(b"after", b"x").unwrap();
    store.maintain().unwrap();
    // The run and the values that it refers to are replaced, folded away and their pages written over.
    map.clear().unwrap();
    store
        .map("made by the transaction")
        .unwrap()
        .put(b"key", b"short")
        .unwrap();
    store.maintain().unwrap();
    store.maintain().unwrap();
    replay(&mut model, &changes.next(AT_ONCE).unwrap().unwrap());
    let commit = changes.next(AT_ONCE).unwrap().unwrap();
    assert!(
        commit
            .changes
            .iter()
            .any(|change| change.map == "made by the transaction")
    );
    replay(&mut model, &commit);
    assert_eq!(model.len(), 30_001);
    drain(&mut changes, &mut model);
    assert_same(&model, &contents(&store));
    idle.only(&[&store.map("made by the transaction").unwrap()]).unwrap();
    let commit = idle.next(AT_ONCE).unwrap().unwrap();
    assert_eq!(commit.changes.len(), 1);
    assert_eq!(commit.changes[0].new.as_deref(), Some(&[8; 100_000][..]));
}

#[test]
fn a_transaction_meets_a_larger_one_that_was_folded_since_it_began() {
    let disk = SimDisk::new(1);
    let store = options()
        .generation_bytes(512 << 10, 4 << 20)
        .open_on(disk.platform())
        .unwrap();
    let map = store.map("large").unwrap();
    let mut small = store.begin(TransactionOptions::default()).unwrap();
    map.put(b"between", b"x").unwrap();
    store.maintain().unwrap();
    let mut large = store.begin(TransactionOptions::default()).unwrap();
    for number in 0..30_000u64 {
        large.put(&map, number.to_be_bytes(), [number as u8; 700]).unwrap();
    }
    large.commit().unwrap();
    for _ in 0..3 {
        store.maintain().unwrap();
        map.put(b"after", [0; 1000]).unwrap();
    }
    small.put(&map, 7u64.to_be_bytes(), b"x").unwrap();
    let error = small.commit().unwrap_err();
    assert!(matches!(error.reason(), Reason::Conflict { .. }), "{error}");
}

#[test]
fn long_values_are_kept_until_they_are_delivered() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    for number in 0..10u8 {
        map.put(b"key", vec![number; 100_000]).unwrap();
        store.maintain().unwrap();
    }
    for number in 0..10u8 {
        let commit = changes.next(AT_ONCE).unwrap().unwrap();
        let old = number.checked_sub(1).map(|before| vec![before; 100_000]);
        assert!(
            commit.changes[0].old == old && commit.changes[0].new == Some(vec![number; 100_000]),
            "{number}"
        );
    }
}

#[test]
fn a_filter_skips_commits_but_not_their_numbers() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let (one, other) = (store.map("one").unwrap(), store.map("other").unwrap());
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    changes.only(&[&one]).unwrap();
    let begin = changes.position();
    for number in 0..10u8 {
        other.put([number], b"").unwrap();
        if number == 5 {
            one.put(b"key", b"value").unwrap();
            let mut batch = Batch::new();
            batch.put(&other, b"both", b"").unwrap();
            batch.delete(&one, b"key").unwrap();
            store.write(batch).unwrap();
        }
    }
    let commit = changes.next(AT_ONCE).unwrap().unwrap();
    assert_eq!((commit.number, changes.position()), (begin + 7, begin + 7));
    let commit = changes.next(AT_ONCE).unwrap().unwrap();
    assert_eq!(commit.number, begin + 8);
    assert_eq!(commit.changes.len(), 1);
    assert_eq!(commit.changes[0].old.as_deref(), Some(&b"value"[..]));
    assert_eq!(changes.next(AT_ONCE).unwrap(), None);
    assert_eq!(changes.position(), begin + 12);
    changes.only(&[]).unwrap();
    other.put(b"", b"").unwrap();
    assert_eq!(changes.next(AT_ONCE).unwrap().unwrap().changes[0].map, "other");
    let foreign = open(&SimDisk::new(2)).map("one").unwrap();
    let error = changes.only(&[&foreign]).unwrap_err();
    assert!(matches!(error.reason(), Reason::ForeignMap { .. }), "{error}");
}

#[test]
fn the_stream_begins_after_any_commit_that_is_not_folded() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    for number in 0..20u8 {
        map.put([number % 3], [number]).unwrap();
    }
    let newest = store.snapshot().unwrap().commit();
    for after in 0..=newest {
        let mut changes = store.changes(ChangesFrom::After(after)).unwrap();
        for number in after + 1..=newest {
            assert_eq!(changes.next(AT_ONCE).unwrap().unwrap().number, number);
        }
        assert_eq!(changes.next(AT_ONCE).unwrap(), None);
    }
    let error = store.changes(ChangesFrom::After(newest + 1)).unwrap_err();
    assert_eq!(error.kind(), Kind::FixTheCall, "{error}");
    store.maintain().unwrap();
    let error = store.changes(ChangesFrom::After(newest - 1)).unwrap_err();
    assert!(
        matches!(error.reason(), Reason::NotRetained { asked, oldest } if *asked == newest - 1 && *oldest == newest)
    );
    store.changes(ChangesFrom::After(newest)).unwrap();
}

#[test]
fn commits_that_are_kept_can_be_asked_for_after_folds() {
    let disk = SimDisk::new(1);
    let store = options().retain_log_bytes(4 << 20).open_on(disk.platform()).unwrap();
    let mut rng = fastrand::Rng::with_seed(seed());
    let mut models = vec![(store.snapshot().unwrap().commit(), contents(&store))];
    for number in 0..600 {
        step(&store, &mut rng);
        if number % 40 == 0 {
            store.maintain().unwrap();
        }
        if number % 150 == 0 {
            models.push((store.snapshot().unwrap().commit(), contents(&store)));
        }
    }
    let mut kept = 0;
    for (commit, mut model) in models {
        let mut changes = match store.changes(ChangesFrom::After(commit)) {
            Ok(changes) => changes,
            Err(error) => {
                let Reason::NotRetained { asked, oldest } = error.reason() else {
                    panic!("{error}")
                };
                assert!(*asked == commit && *oldest > commit);
                store.changes(ChangesFrom::After(*oldest)).unwrap();
                continue;
            }
        };
        kept += 1;
        drain(&mut changes, &mut model);
        assert_same(&model, &contents(&store));
    }
    assert!(kept >= 2);
}

#[test]
fn what_is_kept_leaves_log_files_to_write_to() {
    let disk = SimDisk::new(1);
    let store = options().retain_log_bytes(1 << 40).open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    for number in 0..120u8 {
        for _ in 0..4 {
            map.put([number], [1; 2000]).unwrap();
        }
        store.maintain().unwrap();
    }
}

#[test]
fn after_reopening_the_stream_goes_back_to_the_durable_base() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    map.put(b"key", vec![1; 100_000]).unwrap();
    store.maintain().unwrap();
    let durable = store.snapshot().unwrap().commit();
    for number in 2..6u8 {
        map.put(b"key", vec![number; 100_000]).unwrap();
    }
    drop((map, store));
    let disk = {
        // As if the process had died before it could fold.
        let store = open(&disk);
        let map = store.map("map").unwrap();
        map.put(b"key", vec![6; 100_000]).unwrap();
        disk.kill()
    };
    let store = open(&disk);
    let newest = store.snapshot().unwrap().commit();
    let base = durable + 4;
    let mut changes = store.changes(ChangesFrom::After(base)).unwrap();
    for number in base + 1..=newest {
        let commit = changes.next(AT_ONCE).unwrap().unwrap();
        assert_eq!(commit.number, number);
        assert!(commit.changes[0].old == Some(vec![5; 100_000]));
        assert!(commit.changes[0].new == Some(vec![6; 100_000]));
    }
    assert!(store.changes(ChangesFrom::After(base - 1)).is_err());
}

#[test]
fn long_values_that_a_crash_left_in_the_log_stay_while_a_snapshot_sees_them() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    // Every rotation publishes a version; no meta page knows of these.
    for number in 0..600u32 {
        map.put(number.to_be_bytes(), [number as u8; 1000]).unwrap();
    }
    map.put(b"key", vec![1; 100_000]).unwrap();
    let disk = disk.kill();
    let store = open(&disk);
    let map = store.map("map").unwrap();
    let snapshot = store.snapshot().unwrap();
    map.put(b"key", b"short").unwrap();
    for _ in 0..3 {
        store.maintain().unwrap();
        map.put(b"other", b"x").unwrap();
    }
    assert!(snapshot.get(&map, b"key").unwrap().unwrap() == [1; 100_000]);
}

#[test]
fn a_stream_that_falls_behind_too_far_loses_its_place_and_holds_nothing() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    let mut forgotten = store.changes(ChangesFrom::Now).unwrap();
    let begin = forgotten.position();
    for number in 0..60u8 {
        map.put(b"key", vec![number; 100_000]).unwrap();
        store.maintain().unwrap();
    }
    let error = forgotten.next(SOON).unwrap_err();
    let Reason::NotRetained { asked, oldest } = *error.reason() else {
        panic!("{error}")
    };
    assert!(asked == begin && oldest > begin);
    assert_eq!(forgotten.next(SOON).unwrap_err().kind(), error.kind());
    let figures = store.stat().unwrap();
    assert!(figures.snapshots.is_empty(), "{:?}", figures.snapshots);
    assert_eq!(store.changes(ChangesFrom::After(oldest)).unwrap().position(), oldest);
}

#[test]
fn a_stream_that_delivered_everything_holds_nothing_old() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    for number in 0..2000u32 {
        map.put((number % 300).to_be_bytes(), [number as u8; 900]).unwrap();
        if number % 100 == 0 {
            while changes.next(AT_ONCE).unwrap().is_some() {}
            store.maintain().unwrap();
        }
    }
    while changes.next(AT_ONCE).unwrap().is_some() {}
    for _ in 0..3 {
        store.maintain().unwrap();
    }
    let figures = store.stat().unwrap();
    assert_eq!(figures.snapshots.len(), 1);
    assert_eq!(figures.snapshots[0].purpose, "changes");
    assert_eq!(figures.snapshots[0].pinned_bytes, 0);
    assert_eq!(figures.generations.folded, 0);
    map.put(b"next", b"x").unwrap();
    assert_eq!(changes.next(AT_ONCE).unwrap().unwrap().changes[0].key, b"next");
}

#[test]
fn a_waiting_stream_is_woken_by_a_commit() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Written)
        .open(directory.path())
        .unwrap();
    let map = store.map("map").unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    let reader = std::thread::spawn(move || {
        let mut woken = Vec::new();
        for _ in 0..20 {
            woken.push((changes.next(SOON).unwrap().unwrap().number, Instant::now()));
        }
        woken
    });
    let mut made = Vec::new();
    for number in 0..20u8 {
        std::thread::sleep(Duration::from_millis(10));
        made.push(Instant::now());
        map.put([number], b"").unwrap();
    }
    for (made, (_, woken)) in made.into_iter().zip(reader.join().unwrap()) {
        assert!(woken - made < Duration::from_secs(2));
    }
}

#[test]
fn a_wait_ends_after_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    let began = Instant::now();
    assert_eq!(changes.next(Duration::from_millis(50)).unwrap(), None);
    assert!(began.elapsed() >= Duration::from_millis(45));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn closing_the_store_wakes_a_waiting_stream() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    let reader = std::thread::spawn(move || changes.next(Duration::MAX));
    std::thread::sleep(Duration::from_millis(50));
    store.close().unwrap();
    let error = reader.join().unwrap().unwrap_err();
    assert!(matches!(error.reason(), Reason::Closed), "{error}");
}

#[test]
fn a_waiting_stream_keeps_the_store_open() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    drop(store);
    let alone = || Options::new().exclusive(true).open(directory.path());
    assert!(matches!(alone().unwrap_err().reason(), Reason::InUse { .. }));
    assert_eq!(changes.next(Duration::from_millis(20)).unwrap(), None);
    drop(changes);
    alone().unwrap();
}

#[test]
fn ending_a_stream_wakes_and_empties_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    let reader = std::thread::spawn(move || changes.next(Duration::MAX));
    std::thread::sleep(Duration::from_millis(50));
    let id = store.stat().unwrap().snapshots[0].id;
    assert!(store.end_snapshot(id).unwrap());
    let error = reader.join().unwrap().unwrap_err();
    assert!(matches!(error.reason(), Reason::SnapshotEnded), "{error}");
    assert!(store.stat().unwrap().snapshots.is_empty());
}

#[test]
fn a_durable_stream_delivers_only_what_is_synced() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Written)
        .open(directory.path())
        .unwrap();
    let map = store.map("map").unwrap();
    store.sync().unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    changes.durable_only(true);
    map.put(b"key", b"value").unwrap();
    assert_eq!(changes.next(AT_ONCE).unwrap(), None);
    let reader = std::thread::spawn(move || changes.next(SOON));
    std::thread::sleep(Duration::from_millis(50));
    store.sync().unwrap();
    let commit = reader.join().unwrap().unwrap().unwrap();
    assert_eq!(commit.changes[0].new.as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_stream_far_behind_on_one_key_catches_up_in_linear_time() {
    let disk = SimDisk::new(1);
    let store = options()
        .generation_bytes(16 << 20, 16 << 20)
        .open_on(disk.platform())
        .unwrap();
    let map = store.map("map").unwrap();
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    for number in 0..120_000u64 {
        map.put(b"a key that is written again and again", number.to_be_bytes())
            .unwrap();
    }
    let began = Instant::now();
    let mut before = None;
    while let Some(commit) = changes.next(AT_ONCE).unwrap() {
        assert_eq!(commit.changes[0].old, before);
        before = commit.changes[0].new.clone();
    }
    assert_eq!(before, Some(119_999u64.to_be_bytes().to_vec()));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn a_store_opened_for_reading_streams_what_its_log_holds() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    map.put(b"key", b"value").unwrap();
    let disk = disk.kill();
    let store = Options::new().read_only(true).open_on(disk.platform()).unwrap();
    let mut changes = store.changes(ChangesFrom::After(0)).unwrap();
    assert_eq!(changes.next(AT_ONCE).unwrap().unwrap().changes, []);
    assert_eq!(changes.next(AT_ONCE).unwrap().unwrap().changes[0].key, b"key");
    assert_eq!(changes.next(Duration::from_millis(10)).unwrap(), None);
}
