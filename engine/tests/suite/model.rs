//! The store against a model: random operations on both, over folds, snapshots, conflicts and reopening.

use std::collections::BTreeMap;
use std::ops::Bound;

use duramen_engine::{Batch, Durability, Maintenance, Map, Options, Reason, Snapshot, Store};
use duramen_io::SimDisk;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

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

fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let number = rng.u32(0..2000);
    match number % 7 {
        0 => format!("a long common prefix that many keys share/{number:06}").into_bytes(),
        1 => vec![number as u8; 1 + number as usize % 3],
        2 => [&b"big"[..], &vec![b'x'; number as usize % 1000], &number.to_be_bytes()].concat(),
        _ => (number as u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .to_be_bytes()
            .to_vec(),
    }
}

fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = match rng.u32(0..100) {
        0 => rng.usize(60_000..200_000),
        1..=4 => rng.usize(1000..6000),
        _ => rng.usize(0..300),
    };
    let byte = rng.u8(..);
    vec![byte; length]
}

fn range(rng: &mut fastrand::Rng) -> (Vec<u8>, Vec<u8>) {
    let (one, other) = (key(rng), key(rng));
    if one <= other { (one, other) } else { (other, one) }
}

fn assert_same(snapshot: &Snapshot, map: &Map, model: &Model, rng: &mut fastrand::Rng) {
    let mut cursor = snapshot.range(map, ..).unwrap();
    for (key, value) in model {
        let (found, bytes) = cursor.next().unwrap().expect("the store ends early");
        assert_eq!(found, key.as_slice());
        assert!(bytes == *value, "value of {key:?}");
    }
    assert!(cursor.next().unwrap().is_none());
    for (key, value) in model.iter().rev() {
        let (found, bytes) = cursor.prev().unwrap().expect("the store ends early backwards");
        assert_eq!(found, key.as_slice());
        assert!(bytes == *value);
    }
    assert!(cursor.prev().unwrap().is_none());
    for _ in 0..20 {
        let key = key(rng);
        assert_eq!(
            snapshot.get(map, &key).unwrap().map(|value| value.to_vec()),
            model.get(&key).cloned()
        );
        let (low, high) = range(rng);
        let expected = model
            .range::<Vec<u8>, _>((Bound::Included(&low), Bound::Excluded(&high)))
            .count() as u64;
        assert_eq!(snapshot.count(map, low.as_slice()..high.as_slice()).unwrap(), expected);
        let mut cursor = snapshot.range(map, ..).unwrap();
        cursor.seek(&low).unwrap();
        let next = model.range(low.clone()..).next().map(|(key, _)| key.clone());
        let before = model.range(..low.clone()).next_back().map(|(key, _)| key.clone());
        assert_eq!(cursor.next().unwrap().map(|(key, _)| key.to_vec()), next);
        cursor.seek(&low).unwrap();
        assert_eq!(cursor.prev().unwrap().map(|(key, _)| key.to_vec()), before);
    }
}

fn assert_sound(store: &Store) {
    let report = store.check(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

fn step(store: &Store, map: &Map, model: &mut Model, rng: &mut fastrand::Rng) {
    match rng.u32(0..100) {
        0..40 => {
            let (key, value) = (key(rng), value(rng));
            map.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        40..55 => {
            let key = key(rng);
            map.delete(&key).unwrap();
            model.remove(&key);
        }
        55..58 => {
            let (low, high) = range(rng);
            if rng.bool() || model.len() > 500 {
                map.delete_range(low.as_slice()..high.as_slice()).unwrap();
                model.retain(|key, _| !(low <= *key && *key < high));
            }
        }
        58..65 => {
            let mut batch = Batch::new();
            for _ in 0..rng.usize(1..40) {
                let key = key(rng);
                if rng.u8(..) < 60 {
                    batch.delete(map, &key).unwrap();
                    model.remove(&key);
                } else if rng.u8(..) < 4 {
                    let (low, high) = range(rng);
                    batch.delete_range(map, low.as_slice()..high.as_slice()).unwrap();
                    model.retain(|key, _| !(low <= *key && *key < high));
                } else {
                    let value = value(rng);
                    batch.put(map, &key, &value).unwrap();
                    model.insert(key, value);
                }
            }
            store.write(batch).unwrap();
        }
        65..75 => transaction(store, map, model, rng),
        75..80 => {
            let key = key(rng);
            let created = map.create(&key, b"created").unwrap();
            assert_eq!(created, !model.contains_key(&key));
            model.entry(key).or_insert_with(|| b"created".to_vec());
        }
        80..84 => {
            let key = key(rng);
            let before = map
                .update(&key, |old| {
                    old.map(|old| [old, b"+"].concat()).filter(|new| new.len() < 9000)
                })
                .unwrap();
            assert_eq!(before.as_deref(), model.get(&key).map(Vec::as_slice));
            match before
                .map(|old| [&old[..], b"+"].concat())
                .filter(|new| new.len() < 9000)
            {
                Some(new) => model.insert(key, new),
                None => model.remove(&key),
            };
        }
        _ => {
            let key = key(rng);
            assert_eq!(map.get(&key).unwrap().as_deref(), model.get(&key).map(Vec::as_slice));
        }
    }
}

fn transaction(store: &Store, map: &Map, model: &mut Model, rng: &mut fastrand::Rng) {
    let mut tx = store.begin(Default::default()).unwrap();
    let mut draft = model.clone();
    let mut savepoints: Vec<(duramen_engine::Savepoint, Model)> = Vec::new();
    for _ in 0..rng.usize(0..60) {
        let key = key(rng);
        match rng.u32(0..20) {
            0..9 => {
                let value = value(rng);
                tx.put(map, &key, &value).unwrap();
                draft.insert(key, value);
            }
            9..13 => {
                tx.delete(map, &key).unwrap();
                draft.remove(&key);
            }
            13 => {
                let (low, high) = range(rng);
                tx.delete_range(map, low.as_slice()..high.as_slice()).unwrap();
                draft.retain(|key, _| !(low <= *key && *key < high));
            }
            14 => savepoints.push((tx.savepoint().unwrap(), draft.clone())),
            15 if !savepoints.is_empty() => {
                let place = rng.usize(0..savepoints.len());
                savepoints.truncate(place + 1);
                tx.rollback_to(&savepoints[place].0).unwrap();
                draft = savepoints[place].1.clone();
            }
            16 => {
                let mut cursor = tx.range(map, ..).unwrap();
                cursor.seek(&key).unwrap();
                let expected = draft.range(key..).next().map(|(key, _)| key.clone());
                assert_eq!(cursor.next().unwrap().map(|(key, _)| key.to_vec()), expected);
            }
            17 => assert_eq!(tx.count(map, ..).unwrap(), draft.len() as u64),
            _ => assert_eq!(
                tx.get(map, &key).unwrap().map(|value| value.to_vec()),
                draft.get(&key).cloned()
            ),
        }
    }
    if rng.u8(..) < 200 {
        tx.commit().unwrap();
        *model = draft;
    }
}

#[test]
fn random_operations_agree_with_a_model() {
    let seed = seed();
    for round in 0..9 {
        let mut rng = fastrand::Rng::with_seed(seed.wrapping_add(round));
        // Folds in one piece; in parts, one after the other; and in parts by several threads.
        let options = || match round % 3 {
            0 => options(),
            1 => options().fold_parts(3, 1),
            _ => options().fold_parts(6, 1).maintenance(Maintenance::Background),
        };
        // Where everything stays in memory, and where hardly anything does.
        let machine_bytes = if round % 2 == 0 { 1 << 40 } else { 1 << 16 };
        let options = || options().machine_bytes(machine_bytes);
        let disk = SimDisk::new(rng.u64(..));
        let mut model = Model::new();
        let mut store = options().open_on(disk.platform()).unwrap();
        for _ in 0..3 {
            let map = store.map("model").unwrap();
            let mut held: Vec<(Snapshot, Model)> = Vec::new();
            for _ in 0..1500 {
                step(&store, &map, &mut model, &mut rng);
                if rng.u32(0..100) == 0 {
                    store.maintain().unwrap();
                }
                if rng.u32(0..100) == 0 {
                    held.push((store.snapshot().unwrap(), model.clone()));
                }
                if rng.u32(0..60) == 0 && !held.is_empty() {
                    let (snapshot, model) = held.swap_remove(rng.usize(0..held.len()));
                    assert_same(&snapshot, &map, &model, &mut rng);
                }
            }
            assert_same(&store.snapshot().unwrap(), &map, &model, &mut rng);
            assert_sound(&store);
            for (snapshot, model) in held {
                assert_same(&snapshot, &map, &model, &mut rng);
            }
            if rng.u8(..) < 100 {
                store.compact(&mut |_| ()).unwrap();
                assert_same(&store.snapshot().unwrap(), &map, &model, &mut rng);
                assert_sound(&store);
            }
            let copied = tempfile::tempdir().unwrap();
            store.copy(copied.path().join("copy"), &mut |_| ()).unwrap();
            let copy = Store::open(copied.path().join("copy")).unwrap();
            assert_same(&copy.snapshot().unwrap(), &copy.map("model").unwrap(), &model, &mut rng);
            assert_sound(&copy);
            drop(map);
            if rng.bool() {
                store.close().unwrap();
            } else {
                store = options().open_on(disk.kill().platform()).unwrap();
                drop(store);
            }
            store = options().open_on(disk.platform()).unwrap();
        }
    }
}

#[test]
fn conflicting_transactions_are_refused_and_retried() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    let map = store.map("accounts").unwrap();
    map.put(b"a", b"1").unwrap();
    let mut one = store.begin(Default::default()).unwrap();
    let mut other = store.begin(Default::default()).unwrap();
    one.put(&map, b"a", b"2").unwrap();
    other.put(&map, b"a", b"3").unwrap();
    one.commit().unwrap();
    let error = other.commit().unwrap_err();
    assert!(
        matches!(error.reason(), Reason::Conflict { map, key } if map == "accounts" && key == "\"a\""),
        "{error}"
    );
    assert_eq!(map.get(b"a").unwrap().unwrap(), b"2");
}

#[test]
fn appends_are_dense_and_additions_commute() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    let map = store.map("log").unwrap();
    for number in 0..10 {
        assert_eq!(map.append(b"topic/", b"message").unwrap(), number);
        assert_eq!(map.add(b"sum", 3).unwrap(), 3 * (number as i64 + 1));
        if number == 4 {
            store.maintain().unwrap();
        }
    }
    let mut one = store.begin(Default::default()).unwrap();
    let mut other = store.begin(Default::default()).unwrap();
    one.add(&map, b"sum", 1).unwrap();
    other.add(&map, b"sum", 2).unwrap();
    one.append(&map, b"topic/", b"one").unwrap();
    other.append(&map, b"topic/", b"other").unwrap();
    assert_eq!(one.commit().unwrap().assigned(), [10]);
    assert_eq!(other.commit().unwrap().assigned(), [11]);
    assert_eq!(map.get(b"sum").unwrap().unwrap(), 33i64.to_be_bytes());
}

#[test]
fn a_transaction_larger_than_memory_commits_and_rolls_back() {
    let disk = SimDisk::new(1);
    let store = options()
        .generation_bytes(512 << 10, 4 << 20)
        .open_on(disk.platform())
        .unwrap();
    let map = store.map("large").unwrap();
    map.put(b"before", b"x").unwrap();
    let fill = |tx: &mut duramen_engine::Transaction| {
        for number in 0..60_000u64 {
            tx.put(
                &map,
                number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes(),
                [number as u8; 700],
            )
            .unwrap();
        }
    };
    let mut tx = store.begin(Default::default()).unwrap();
    fill(&mut tx);
    drop(tx);
    assert_eq!(map.count().unwrap(), 1);
    let mut tx = store.begin(Default::default()).unwrap();
    fill(&mut tx);
    tx.delete(&map, b"before").unwrap();
    assert_eq!(tx.get(&map, 0u64.to_be_bytes()).unwrap().unwrap(), [0u8; 700]);
    tx.commit().unwrap();
    assert_eq!(map.count().unwrap(), 60_000);
    store.maintain().unwrap();
    assert_eq!(map.count().unwrap(), 60_000);
    drop((map, store));
    let store = options().open_on(disk.platform()).unwrap();
    assert_eq!(store.map("large").unwrap().count().unwrap(), 60_000);
}

#[test]
fn a_store_can_be_opened_and_killed_any_number_of_times() {
    let mut disk = SimDisk::new(1);
    for round in 0..30u64 {
        let store = options().open_on(disk.platform()).unwrap();
        let map = store.map("rounds").unwrap();
        assert_eq!(map.count().unwrap(), round);
        if round % 3 != 0 {
            map.put(round.to_be_bytes(), b"x").unwrap();
        } else {
            drop((map, store));
            let store = options().open_on(disk.platform()).unwrap();
            store.map("rounds").unwrap().put(round.to_be_bytes(), b"x").unwrap();
            disk = disk.kill();
            continue;
        }
        disk = disk.kill();
    }
}
