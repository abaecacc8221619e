//! Long walks: over many leaves of folded pairs, and few changes above them that are not folded, so that most steps need not
//! look at the changes and some must.

use std::collections::BTreeMap;

use duramen_engine::{Cursor, Durability, Maintenance, Map, Options, Store};
use duramen_io::SimDisk;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u32 = 4_000;

fn seed() -> u64 {
    let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    seed
}

fn scene(disk: &SimDisk) -> (Store, Map) {
    let options = Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written);
    let store = options.open_on(disk.platform()).expect("a store");
    let map = store.map("map").expect("a map");
    (store, map)
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

/// One change: it may lie between two folded keys.
fn change(rng: &mut fastrand::Rng, model: &mut Model) -> Change {
    let number = rng.u32(..KEYS);
    match rng.u8(..8) {
        0 | 1 => {
            let mut key = key(number);
            key.extend_from_slice(&b"behind"[..rng.usize(..6)]);
            let value = vec![rng.u8(..); rng.usize(..30)];
            model.insert(key.clone(), value.clone());
            Change::Put(key, value)
        }
        2..=5 => {
            model.remove(&key(number));
            Change::Delete(key(number))
        }
        _ => {
            let end = number + rng.u32(..200);
            model.retain(|at, _| *at < key(number) || *at >= key(end));
            Change::DeleteRange(key(number), key(end))
        }
    }
}

enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// Walks from a random place on, mostly forward, with a turn now and then.
fn walk(rng: &mut fastrand::Rng, mut cursor: Cursor<'_>, model: &Model, (low, high): (&[u8], &[u8])) {
    let pairs: Vec<_> = model.range(low.to_vec()..high.to_vec()).collect();
    let mut at = 0;
    if rng.bool() {
        let from = key(rng.u32(..KEYS));
        cursor.seek(&from).expect("a seek");
        at = pairs.partition_point(|(key, _)| **key < from);
    }
    loop {
        let back = rng.u32(..400) == 0;
        let expected = if back {
            at.checked_sub(1).map(|before| pairs[before])
        } else {
            pairs.get(at).copied()
        };
        let found = if back { cursor.prev() } else { cursor.next() };
        let found = found
            .expect("a step")
            .map(|(key, value)| (key.to_vec(), value.to_vec()));
        assert_eq!(
            found,
            expected.map(|(key, value)| (key.clone(), value.clone())),
            "step to {at}"
        );
        match (expected, back) {
            (Some(_), true) => at -= 1,
            (Some(_), false) => at += 1,
            (None, true) => {}
            (None, false) => return,
        }
    }
}

fn check(rng: &mut fastrand::Rng, store: &Store, map: &Map, model: &Model) {
    let (low, high) = match rng.bool() {
        true => (Vec::new(), b"l".to_vec()),
        false => (key(rng.u32(..KEYS)), key(rng.u32(..KEYS))),
    };
    let (low, high) = (low.clone().min(high.clone()), low.max(high));
    let snapshot = store.snapshot().expect("a snapshot");
    walk(
        rng,
        snapshot.range(map, &*low..&*high).expect("a cursor"),
        model,
        (&low, &high),
    );
    let mut own = model.clone();
    let mut tx = store.begin(Default::default()).expect("a transaction");
    for _ in 0..rng.usize(..6) {
        match change(rng, &mut own) {
            Change::Put(key, value) => tx.put(map, &key, &value),
            Change::Delete(key) => tx.delete(map, &key),
            Change::DeleteRange(low, high) => tx.delete_range(map, &*low..&*high),
        }
        .expect("a write");
    }
    walk(
        rng,
        tx.range(map, &*low..&*high).expect("a cursor"),
        &own,
        (&low, &high),
    );
}

#[test]
fn walks_over_many_leaves_see_the_few_changes_above_them() {
    let seed = seed();
    for round in 0..12u64 {
        let rng = &mut fastrand::Rng::with_seed(seed.wrapping_add(round));
        let disk = SimDisk::new(round);
        let (store, map) = scene(&disk);
        let mut model = Model::new();
        for number in 0..KEYS {
            map.put(key(number), b"a value that is folded").expect("a put");
            model.insert(key(number), b"a value that is folded".to_vec());
        }
        store.maintain().expect("a fold");
        for _ in 0..6 {
            check(rng, &store, &map, &model);
            for _ in 0..rng.usize(..8) {
                match change(rng, &mut model) {
                    Change::Put(key, value) => map.put(&key, &value),
                    Change::Delete(key) => map.delete(&key),
                    Change::DeleteRange(low, high) => map.delete_range(&*low..&*high),
                }
                .expect("a write");
            }
        }
    }
}

/// A long transaction that takes pairs away at both ends and in the middle, puts some back, and rolls back now and then: what it
/// remembers of empty stretches never hides a pair.
#[test]
fn a_transaction_sees_what_it_puts_into_stretches_that_it_emptied() {
    let seed = seed();
    for round in 0..30u64 {
        let rng = &mut fastrand::Rng::with_seed(seed.wrapping_add(round));
        let disk = SimDisk::new(round);
        let (store, map) = scene(&disk);
        let mut model = BTreeMap::new();
        for number in 0..rng.u16(1..400) {
            map.put(number.to_be_bytes(), [1]).expect("a put");
            model.insert(number, 1);
            if rng.u8(..100) == 0 {
                store.maintain().expect("a fold");
            }
        }
        let options = duramen_engine::TransactionOptions::new().memory_bytes(rng.usize(1..20_000));
        let mut tx = store.begin(options).expect("a transaction");
        let mut marks = Vec::new();
        // Now and then so many that most of what is read ahead is popped.
        let run = |rng: &mut fastrand::Rng| if rng.u8(..8) == 0 { rng.u8(..100) } else { 1 };
        for step in 0..400 {
            let number = rng.u16(..400);
            let popped = |pair: Option<(Vec<u8>, duramen_engine::Value<'static>)>| {
                pair.map(|(key, value)| (u16::from_be_bytes(key.try_into().expect("two bytes")), value[0]))
            };
            match rng.u8(..20) {
                0..=6 => {
                    for _ in 0..run(rng) {
                        let found = popped(tx.pop_first(&map).expect("a pop"));
                        assert_eq!(found, model.pop_first(), "round {round}, step {step}");
                    }
                }
                7..=9 => {
                    for _ in 0..run(rng) {
                        let found = popped(tx.pop_last(&map).expect("a pop"));
                        assert_eq!(found, model.pop_last(), "round {round}, step {step}");
                    }
                }
                // What one end has read ahead, the other one comes to.
                10 => {
                    for _ in 0..run(rng) {
                        let found = popped(tx.pop_first(&map).expect("a pop"));
                        assert_eq!(found, model.pop_first(), "round {round}, step {step}");
                        let found = popped(tx.pop_last(&map).expect("a pop"));
                        assert_eq!(found, model.pop_last(), "round {round}, step {step}");
                    }
                }
                11..=13 => {
                    tx.delete(&map, number.to_be_bytes()).expect("a deletion");
                    model.remove(&number);
                }
                14 => {
                    let end = number + rng.u16(..20);
                    tx.delete_range(&map, number.to_be_bytes()..end.to_be_bytes())
                        .expect("a deletion");
                    model.retain(|key, _| *key < number || *key >= end);
                }
                15 | 16 => {
                    let value = rng.u8(..);
                    tx.put(&map, number.to_be_bytes(), [value]).expect("a put");
                    model.insert(number, value);
                }
                17 => marks.push((tx.savepoint().expect("a savepoint"), model.clone())),
                18 if !marks.is_empty() => {
                    let place = rng.usize(..marks.len());
                    tx.rollback_to(&marks[place].0).expect("a rollback");
                    model = marks[place].1.clone();
                    marks.truncate(place + 1);
                }
                _ => {
                    let mut cursor = tx.range(&map, number.to_be_bytes()..).expect("a cursor");
                    let found = cursor
                        .next()
                        .expect("a step")
                        .map(|(key, value)| (key.to_vec(), value[0]));
                    let expected = model.range(number..).next();
                    let expected = expected.map(|(key, value)| (key.to_be_bytes().to_vec(), *value));
                    assert_eq!(found, expected, "round {round}, step {step}");
                }
            }
        }
        tx.commit().expect("a commit");
        let snapshot = store.snapshot().expect("a snapshot");
        let pairs = snapshot.range(&map, ..).expect("a cursor").iter();
        let found: Vec<_> = pairs.map(|pair| pair.expect("a step").0).collect();
        let expected: Vec<_> = model.keys().map(|key| key.to_be_bytes().to_vec()).collect();
        assert_eq!(found, expected, "round {round}");
    }
}

/// How many keys a transaction deleted does not matter for the walks after its commit, although all of them have its number.
#[test]
fn what_one_commit_deleted_is_passed_once() {
    let (store, map) = scene(&SimDisk::new(1));
    for number in 0..2_000u16 {
        map.put(number.to_be_bytes(), [1]).expect("a put");
    }
    store.maintain().expect("a fold");
    let delete = |numbers: std::ops::Range<u16>| {
        store.transact(|tx| {
            numbers
                .clone()
                .try_for_each(|number| tx.delete(&map, number.to_be_bytes()))
        })
    };
    delete(0..1_000).expect("a commit");
    let first = || {
        let (key, _) = map.first().expect("a read").expect("a pair");
        u16::from_be_bytes(key.try_into().expect("two bytes"))
    };
    let passed = duramen_engine::keys_passed_by_walks;
    assert_eq!(first(), 1_000);
    assert!(passed() >= 1_000);
    let before = passed();
    (0..10).for_each(|_| assert_eq!(first(), 1_000));
    assert!(passed() - before <= 20, "{} keys were passed again", passed() - before);
    // What the next commit puts there is seen.
    map.put(7u16.to_be_bytes(), [2]).expect("a put");
    assert_eq!(first(), 7);
    delete(0..8).expect("a commit");
    assert_eq!(first(), 1_000);
    // Long ago, and in a transaction.
    let before = passed();
    let mut tx = store.begin(Default::default()).expect("a transaction");
    for number in 1_000..1_500u16 {
        let (key, _) = tx.pop_first(&map).expect("a pop").expect("a pair");
        assert_eq!(key, number.to_be_bytes());
    }
    assert!(
        passed() - before <= 100,
        "{} keys were passed by 500 pops",
        passed() - before
    );
}
