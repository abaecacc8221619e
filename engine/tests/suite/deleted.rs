//! Walks over what was deleted: they jump over it, and miss nothing that was put there later. Two processes write, and each
//! remembers for itself where it found nothing.

use std::collections::BTreeMap;
use std::ops::Bound;

use duramen_engine::{Durability, Maintenance, Map, Options, Snapshot, Store};
use duramen_io::SimDisk;

type Model = BTreeMap<u16, u32>;

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

fn pair(found: Option<(&[u8], duramen_engine::Value<'_>)>) -> Option<(u16, u32)> {
    found.map(|(key, value)| {
        let key = key.try_into().expect("two bytes");
        let value = value[..].try_into().expect("four bytes");
        (u16::from_be_bytes(key), u32::from_be_bytes(value))
    })
}

/// Compares reads of every kind at a few places.
fn check(snapshot: &Snapshot, map: &Map, model: &Model, rng: &mut fastrand::Rng) {
    let key = rng.u16(..KEYS);
    let found = snapshot.get(map, key.to_be_bytes()).expect("a read");
    assert_eq!(
        found.map(|value| value.to_vec()),
        model.get(&key).map(|value| value.to_be_bytes().to_vec())
    );
    let end = rng.u16(key..=KEYS);
    let (low, high) = (key.to_be_bytes(), end.to_be_bytes());
    let counted = snapshot.count(map, &low[..]..&high[..]).expect("a count");
    assert_eq!(counted, model.range(key..end).count() as u64, "pairs in {key}..{end}");
    let mut cursor = snapshot.range(map, ..).expect("a cursor");
    let mut at = match rng.u8(..3) {
        0 => Bound::Unbounded,
        _ => {
            cursor.seek(low).expect("a seek");
            Bound::Included(key)
        }
    };
    // Where it stands between two pairs: what is below is on its left.
    let mut is_behind = false;
    for _ in 0..rng.usize(..6) {
        let expected = if rng.u8(..4) > 0 {
            let expected = match (at, is_behind) {
                (Bound::Included(key), true) => model.range((Bound::Excluded(key), Bound::Unbounded)).next(),
                (at, _) => model.range((at, Bound::Unbounded)).next(),
            };
            assert_eq!(pair(cursor.next().expect("a step")), expected.map(|(k, v)| (*k, *v)));
            is_behind = true;
            expected
        } else {
            let expected = match (at, is_behind) {
                (Bound::Included(key), true) => model.range(..=key).next_back(),
                (Bound::Included(key), false) => model.range(..key).next_back(),
                _ => None,
            };
            assert_eq!(pair(cursor.prev().expect("a step")), expected.map(|(k, v)| (*k, *v)));
            is_behind = false;
            expected
        };
        match expected {
            Some((key, _)) => at = Bound::Included(*key),
            None => break,
        }
    }
    cursor.seek_end();
    assert_eq!(
        pair(cursor.prev().expect("a step")),
        model.last_key_value().map(|(k, v)| (*k, *v))
    );
}

const KEYS: u16 = 600;

fn take_first(store: &Store, map: &Map, model: &mut Model, is_last: bool) {
    let snapshot = store.snapshot().expect("a snapshot");
    let mut cursor = snapshot.range(map, ..).expect("a cursor");
    let found = if is_last {
        cursor.seek_end();
        pair(cursor.prev().expect("a step"))
    } else {
        pair(cursor.next().expect("a step"))
    };
    let expected = if is_last { model.pop_last() } else { model.pop_first() };
    assert_eq!(found, expected);
    if let Some((key, _)) = found {
        map.delete(key.to_be_bytes()).expect("a delete");
    }
}

#[test]
fn walks_over_what_was_deleted_agree_with_a_model() {
    let seed = seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..12 {
        let disk = SimDisk::new(round);
        let open = || options().open_on(disk.platform()).expect("a store");
        let stores = [open(), open()];
        let maps = stores.each_ref().map(|store| store.map("map").expect("a map"));
        let mut model = Model::new();
        let mut kept: Vec<(usize, Snapshot, Model)> = Vec::new();
        for step in 0..1_500u32 {
            let process = rng.usize(..2);
            let (store, map) = (&stores[process], &maps[process]);
            let key = rng.u16(..KEYS);
            match rng.u8(..20) {
                0..=4 => {
                    map.put(key.to_be_bytes(), step.to_be_bytes()).expect("a put");
                    model.insert(key, step);
                }
                5 => {
                    let count = rng.u16(..100).min(KEYS - key);
                    let mut tx = store.begin(Default::default()).expect("a transaction");
                    for key in key..key + count {
                        tx.put(map, key.to_be_bytes(), step.to_be_bytes()).expect("a put");
                        model.insert(key, step);
                    }
                    tx.commit().expect("a commit");
                }
                6..=10 => (0..rng.usize(..20)).for_each(|_| take_first(store, map, &mut model, false)),
                11 | 12 => (0..rng.usize(..20)).for_each(|_| take_first(store, map, &mut model, true)),
                13 | 14 => {
                    let end = rng.u16(key..=(key + 60).min(KEYS));
                    map.delete_range(&key.to_be_bytes()[..]..&end.to_be_bytes()[..])
                        .expect("a range delete");
                    model.retain(|other, _| !(key..end).contains(other));
                }
                15 => {
                    map.delete(key.to_be_bytes()).expect("a delete");
                    model.remove(&key);
                }
                16 if rng.u8(..4) == 0 => store.maintain().expect("a fold"),
                17 => kept.push((process, store.snapshot().expect("a snapshot"), model.clone())),
                18 if !kept.is_empty() => drop(kept.swap_remove(rng.usize(..kept.len()))),
                _ => {}
            }
            check(&store.snapshot().expect("a snapshot"), map, &model, &mut rng);
            if !kept.is_empty() {
                let (process, snapshot, model) = &kept[rng.usize(..kept.len())];
                check(snapshot, &maps[*process], model, &mut rng);
            }
        }
    }
}

#[test]
fn many_range_deletes_wait_for_one_fold() {
    let disk = SimDisk::new(1);
    let store = options()
        .generation_bytes(8 << 20, 8 << 20)
        .open_on(disk.platform())
        .expect("a store");
    let map = store.map("map").expect("a map");
    let mut batch = duramen_engine::Batch::new();
    for number in 0..50_000u32 {
        batch.put(&map, number.to_be_bytes(), b"value").expect("a put");
    }
    store.write(batch).expect("a batch");
    store.maintain().expect("a fold");
    let old = store.snapshot().expect("a snapshot");
    // Every second ten keys, in a scattered order.
    for number in 0..2_500u32 {
        let low = number * 7919 % 2_500 * 20;
        map.delete_range(&low.to_be_bytes()[..]..&(low + 10).to_be_bytes()[..])
            .expect("a range delete");
    }
    let looks = |store: &Store| {
        let snapshot = store.snapshot().expect("a snapshot");
        assert_eq!(snapshot.count(&map, ..).expect("a count"), 25_000);
        let mut cursor = snapshot.range(&map, ..).expect("a cursor");
        for number in (0..50_000u32).filter(|number| number % 20 >= 10) {
            let (key, _) = cursor.next().expect("a step").expect("a pair");
            assert_eq!(key, number.to_be_bytes());
        }
        assert!(cursor.next().expect("a step").is_none());
    };
    looks(&store);
    assert_eq!(old.count(&map, ..).expect("a count"), 50_000);
    drop(old);
    store.maintain().expect("a fold");
    looks(&store);
}

/// A durable view is older than the newest one; between what is remembered for the two lie more range deletes than moments.
#[test]
fn an_older_view_made_after_a_newer_one_sees_what_was_deleted_up_to_its_commit() {
    let store = options().open_on(SimDisk::new(1).platform()).expect("a store");
    let map = store.map("map").expect("a map");
    for key in 0..300u16 {
        map.put(key.to_be_bytes(), b"4444").expect("a put");
    }
    store.maintain().expect("a fold");
    let delete = |key: u16| map.delete_range(key.to_be_bytes()..(key + 1).to_be_bytes());
    delete(0).expect("a range delete");
    // Made now, the set of this commit is remembered.
    assert_eq!(map.count().expect("a count"), 299);
    (1..100).for_each(|key| delete(key).expect("a range delete"));
    store.sync().expect("a sync");
    // Of several in one commit there are fewer moments than ranges.
    let mut batch = duramen_engine::Batch::new();
    for key in 100..150u16 {
        let range = key.to_be_bytes()..(key + 1).to_be_bytes();
        batch.delete_range(&map, range).expect("room in the batch");
    }
    store.write(batch).expect("a commit");
    (150..200).for_each(|key| delete(key).expect("a range delete"));
    assert_eq!(map.first().expect("a pair").expect("a pair").0, 200u16.to_be_bytes());
    let durable = store.snapshot_durable().expect("a snapshot");
    assert_eq!(
        durable.first(&map).expect("a pair").expect("a pair").0,
        100u16.to_be_bytes()
    );
    assert_eq!(durable.count(&map, ..).expect("a count"), 200);
    for key in 0..300u16 {
        let is_there = durable.contains_key(&map, key.to_be_bytes()).expect("a read");
        assert_eq!(is_there, key >= 100, "{key}");
    }
}
