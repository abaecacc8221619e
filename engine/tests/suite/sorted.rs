//! Pairs that are stored in the order of their keys, more of them than the transaction may keep in memory: among other writes of
//! the transaction, with values of every length, refused in the middle, taken back, and beside what was there before.

use std::collections::BTreeMap;

use duramen_engine::{Durability, Maintenance, Map, Options, Reason, Store, Transaction, TransactionOptions};
use duramen_io::SimDisk;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(disk: &SimDisk) -> (Store, Map) {
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

/// One in ten is longer than a leaf takes, one in a hundred longer than the log takes.
fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = match rng.u32(..100) {
        0 => rng.usize(64 << 10..70 << 10),
        1..=9 => rng.usize(1_000..9_000),
        _ => rng.usize(..100),
    };
    vec![rng.u8(..); length]
}

fn sorted(rng: &mut fastrand::Rng) -> Model {
    let (first, count) = (rng.u32(..2_000), rng.u32(..400));
    let numbers = (first..first + count).filter(|_| rng.u8(..4) > 0).collect::<Vec<_>>();
    numbers.into_iter().map(|number| (key(number), value(rng))).collect()
}

fn assert_is(found: impl Iterator<Item = duramen_engine::Result<(Vec<u8>, Vec<u8>)>>, model: &Model) {
    let found: Vec<_> = found.map(|pair| pair.expect("a pair")).collect();
    assert_eq!(found.len(), model.len());
    for ((key, value), (expected_key, expected)) in found.iter().zip(model) {
        assert_eq!(key.escape_ascii().to_string(), expected_key.escape_ascii().to_string());
        assert!(value == expected, "the value of {}", key.escape_ascii());
    }
}

fn assert_shows(tx: &Transaction, map: &Map, model: &Model) {
    let pairs = tx.range(map, ..).expect("a range").iter();
    assert_is(pairs.map(|pair| pair.map(|(key, value)| (key, value.to_vec()))), model);
}

fn assert_holds(store: &Store, map: &Map, model: &Model) {
    let snapshot = store.snapshot().expect("a snapshot");
    let pairs = snapshot.range(map, ..).expect("a range").iter();
    assert_is(pairs.map(|pair| pair.map(|(key, value)| (key, value.to_vec()))), model);
    for key in model.keys().step_by(7) {
        assert_eq!(
            snapshot.get(map, key).expect("a get").expect("it is there"),
            &model[key][..]
        );
    }
}

#[test]
fn sorted_pairs_among_other_writes_are_what_single_puts_would_be() {
    let seed = crate::common::seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let (mut store, mut map) = open(&disk);
    let mut model = Model::new();
    for round in 0..40 {
        let options = TransactionOptions::new().memory_bytes(rng.usize(..40_000));
        let mut tx = store.begin(options).expect("a transaction");
        let mut own = model.clone();
        for _ in 0..rng.u32(1..5) {
            let before = (rng.u8(..5) == 0).then(|| (tx.savepoint().expect("a savepoint"), own.clone()));
            match rng.u8(..6) {
                0 => {
                    let (key, value) = (key(rng.u32(..2_400)), value(&mut rng));
                    tx.put(&map, &key, &value).expect("a put");
                    own.insert(key, value);
                }
                1 => {
                    let (low, high) = (key(rng.u32(..1_200)), key(rng.u32(1_200..2_400)));
                    tx.delete_range(&map, &low..&high).expect("a range delete");
                    own.retain(|key, _| *key < low || *key >= high);
                }
                2 => {
                    let popped = tx.pop_first(&map).expect("a pop").map(|(key, _)| key);
                    assert_eq!(popped, own.pop_first().map(|(key, _)| key));
                }
                _ => {
                    let pairs = sorted(&mut rng);
                    let stored = tx.put_sorted(&map, &pairs).expect("sorted pairs");
                    assert_eq!(stored, pairs.len() as u64);
                    own.extend(pairs);
                }
            }
            if let Some((savepoint, before)) = before
                && rng.bool()
            {
                tx.rollback_to(&savepoint).expect("a rollback");
                own = before;
            }
            if rng.u8(..3) == 0 {
                assert_shows(&tx, &map, &own);
            }
        }
        if rng.u8(..5) > 0 {
            tx.commit().expect("a commit");
            model = own;
        } else {
            drop(tx);
        }
        assert_holds(&store, &map, &model);
        if rng.u8(..6) == 0 {
            store.maintain().expect("a fold");
        }
        if round % 10 == 9 {
            store.close().expect("a close");
            disk = disk.power_cut(rng.u64(..));
            (store, map) = open(&disk);
            assert_holds(&store, &map, &model);
            crate::common::workload::check_sound(&store).expect("a sound store");
        }
    }
}

#[test]
fn pairs_before_one_that_is_refused_are_stored() {
    let disk = SimDisk::new(1);
    let (store, map) = open(&disk);
    let many = |last: Vec<u8>| (1..1_000).map(key).chain([last]).map(|key| (key, vec![7; 100]));
    // Sixteen bytes: a run from the first pairs on. And all of it in memory.
    for memory in [16, 1 << 20] {
        for last in [key(999), key(0), vec![b'x'; 2_000]] {
            let mut tx = store
                .begin(TransactionOptions::new().memory_bytes(memory))
                .expect("a transaction");
            let refused = tx.put_sorted(&map, many(last)).expect_err("the last one");
            assert!(
                matches!(refused.reason(), Reason::InvalidArgument(_) | Reason::KeyTooLong { .. }),
                "{refused}"
            );
            assert_eq!(tx.count(&map, ..).expect("a count"), 999);
        }
        let mut tx = store
            .begin(TransactionOptions::new().memory_bytes(memory))
            .expect("a transaction");
        assert_eq!(tx.put_sorted(&map, [] as [(&str, &str); 0]).expect("none"), 0);
        tx.put_sorted(&map, [(vec![b'x'; 2_000], "")])
            .expect_err("the only one");
        assert!(tx.commit().is_ok() && map.is_empty().expect("a look"));
    }
}

#[test]
fn sorted_pairs_that_find_the_disk_full_leave_nothing_behind() {
    let disk = SimDisk::new(1);
    let (store, map) = open(&disk);
    map.put("before", "value").unwrap();
    let pairs = || (0..3_000).map(|number| (key(number), vec![number as u8; 1_000]));
    let used = || {
        let stat = store.stat().unwrap();
        stat.pages - stat.free_pages
    };
    let before = used();
    disk.set_capacity(Some(disk.allocated_bytes() + (256 << 10)));
    for _ in 0..3 {
        let mut tx = store.begin(TransactionOptions::new().memory_bytes(1_000)).unwrap();
        let refused = tx.put_sorted(&map, pairs()).expect_err("there is no room");
        assert_eq!(refused.kind(), duramen_engine::Kind::MakeSpace, "{refused}");
        // The transaction goes on without them.
        tx.put(&map, "after", "value").unwrap();
        tx.commit().unwrap();
        assert_eq!(map.count().unwrap(), 2);
        crate::common::workload::check_sound(&store).expect("a sound store");
    }
    let after = used();
    assert!(
        after < before + 16,
        "{before} pages were used, and {after} after what was refused"
    );
    disk.set_capacity(None);
    map.put_sorted(pairs()).unwrap();
    assert_eq!(map.count().unwrap(), 3_002);
    crate::common::workload::check_sound(&store).expect("a sound store");
}

#[test]
fn sorted_pairs_of_two_transactions_conflict() {
    let disk = SimDisk::new(1);
    let (store, map) = open(&disk);
    let options = || TransactionOptions::new().memory_bytes(100);
    let (mut first, mut second) = (store.begin(options()).unwrap(), store.begin(options()).unwrap());
    first
        .put_sorted(&map, (0..100).map(|number| (key(2 * number), "a")))
        .unwrap();
    second
        .put_sorted(&map, (50..60).map(|number| (key(2 * number), "b")))
        .unwrap();
    second.commit().unwrap();
    assert!(first.commit().unwrap_err().is_conflict());
    let (mut odd, mut even) = (store.begin(options()).unwrap(), store.begin(options()).unwrap());
    odd.put_sorted(&map, (0..100).map(|number| (key(2 * number + 1), "a")))
        .unwrap();
    even.put_sorted(&map, (0..100).map(|number| (key(2 * number), "a")))
        .unwrap();
    odd.commit().unwrap();
    even.commit().unwrap();
    assert_eq!(map.count().unwrap(), 200);
}

/// Values that a transaction wrote to runs and then replaced, deleted, took back, or did not commit.
#[test]
fn values_in_runs_of_a_transaction_are_free_when_nothing_refers_to_them() {
    for end in ["drop", "conflict", "commit", "clear", "roll back", "sorted"] {
        let (store, map) = open(&SimDisk::new(1));
        map.put("before", "value").unwrap();
        let used = || {
            (0..2).for_each(|_| store.maintain().unwrap());
            let stat = store.stat().unwrap();
            stat.pages - stat.free_pages
        };
        let before = used();
        let options = TransactionOptions::new().memory_bytes(4 << 10);
        let mut tx = store.begin(options).unwrap();
        let start = tx.savepoint().unwrap();
        for number in 0..60 {
            let length = if number % 3 == 0 { 80_000 } else { 2_000 };
            tx.put(&map, key(number % 7), vec![number as u8; length]).unwrap();
        }
        let mut expected = (0..7)
            .map(|number| (key(number), 53 + (number + 3) % 7))
            .collect::<Vec<_>>();
        match end {
            "drop" => drop(tx),
            "conflict" => {
                map.put(key(3), "another").unwrap();
                assert!(tx.commit().is_err());
            }
            "clear" => {
                tx.clear(&map).unwrap();
                tx.commit().unwrap();
            }
            "roll back" => {
                tx.rollback_to(&start).unwrap();
                tx.commit().unwrap();
            }
            "sorted" => {
                tx.put_sorted(&map, (0..7).map(|number| (key(number), vec![1; 3_000])))
                    .unwrap();
                tx.put_sorted(&map, (0..7).map(|number| (key(number), vec![2; 3_000])))
                    .unwrap();
                tx.commit().unwrap();
                expected.iter_mut().for_each(|(_, with)| *with = 2);
            }
            _ => drop(tx.commit().unwrap()),
        }
        if ["commit", "sorted"].contains(&end) {
            for (key, with) in expected {
                assert_eq!(u32::from(map.get(key).unwrap().expect("it is there")[0]), with, "{end}");
            }
        }
        crate::common::workload::check_sound(&store).expect("a sound store");
        map.clear().unwrap();
        map.put("before", "value").unwrap();
        let after = used();
        assert!(
            after <= before + 2,
            "{end}: {before} pages were used, and {after} afterwards"
        );
    }
}

/// Single puts of more than the memory holds are written twice, to runs and again where the commit merges those.
#[test]
fn sorted_pairs_that_do_not_fit_into_memory_are_written_once() {
    let value = [7; 100];
    let written = |put: fn(&mut Transaction, &Map, &[u8])| {
        let disk = SimDisk::new(1);
        let (store, map) = open(&disk);
        let options = TransactionOptions::new().memory_bytes(64 << 10);
        let mut tx = store.begin(options).unwrap();
        disk.trace(true);
        put(&mut tx, &map, &value);
        tx.commit().unwrap();
        assert_eq!(map.count().unwrap(), 10_000);
        let trace = disk.take_trace();
        trace.iter().map(|call| data_bytes(call)).sum::<u64>()
    };
    let sorted = written(|tx, map, value| {
        let put = tx.put_sorted(map, (0..10_000).map(|number| (key(number), value)));
        assert_eq!(put.unwrap(), 10_000);
    });
    let single = written(|tx, map, value| {
        (0..10_000).for_each(|number| tx.put(map, key(number), value).unwrap());
    });
    let pairs = 10_000 * 100;
    assert!(
        (pairs..2 * pairs).contains(&sorted) && sorted * 3 < single * 2,
        "sorted pairs of {pairs} bytes took {sorted}, single ones {single}"
    );
}

/// Bytes that a call of the trace writes to the data file.
fn data_bytes(call: &str) -> u64 {
    let length = call.strip_prefix("write data ").and_then(|range| range.split_once('+'));
    length.map_or(0, |(_, length)| length.parse().expect("a number of bytes"))
}
