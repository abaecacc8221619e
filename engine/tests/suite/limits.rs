//! Limits of what one transaction may hold: each is an error that says what to do instead, after which the transaction
//! goes on, or it is no limit at all because what is beyond goes to disk.

use std::collections::BTreeMap;

use duramen_engine::{Durability, Error, Kind, Maintenance, Map, Options, Reason, Store, TransactionOptions};
use duramen_io::SimDisk;

fn store() -> (Store, Map) {
    let disk = SimDisk::new(1);
    let options = Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written);
    let store = options.open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    (store, map)
}

fn assert_too_large(error: &Error, cure: &str) {
    assert!(
        matches!(error.reason(), Reason::TransactionTooLarge { .. }),
        "{error:?}"
    );
    assert_eq!(error.kind(), Kind::FixTheCall);
    assert!(error.to_string().contains(cure), "{error}");
}

#[test]
fn a_transaction_deletes_so_many_ranges_and_overlapping_ones_count_once() {
    let (store, map) = store();
    for number in 0..20_000u32 {
        map.put(number.to_be_bytes(), b"value").unwrap();
    }
    let mut tx = store.begin(Default::default()).unwrap();
    for number in 0..20_000u32 {
        tx.delete_range(&map, &number.to_be_bytes()[..]..&(number + 1).to_be_bytes()[..])
            .unwrap();
    }
    assert_eq!(tx.count(&map, ..).unwrap(), 0);
    drop(tx);
    let mut tx = store.begin(Default::default()).unwrap();
    let even = |number: u32| (2 * number).to_be_bytes();
    let odd = |number: u32| (2 * number + 1).to_be_bytes();
    let mut deleted = 0;
    let error = loop {
        match tx.delete_range(&map, &even(deleted)[..]..&odd(deleted)[..]) {
            Ok(()) => deleted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(deleted, 4096);
    assert_too_large(&error, "commit and go on in another");
    tx.put(&map, b"after", b"the refusal").unwrap();
    tx.commit().unwrap();
    assert_eq!(map.count().unwrap(), 20_000 - 4096 + 1);
    assert!(map.get(even(4095)).unwrap().is_none());
    assert!(map.get(even(4096)).unwrap().is_some() && map.get(odd(7)).unwrap().is_some());
    store.maintain().unwrap();
    assert_eq!(map.count().unwrap(), 20_000 - 4096 + 1);
}

#[test]
fn a_serialisable_transaction_remembers_so_much_of_what_it_read_each_key_once() {
    let (store, map) = store();
    let serializable = TransactionOptions::new().serializable();
    let key = |number: u32| [&number.to_be_bytes()[..], &[7; 1000]].concat();
    let tx = store.begin(serializable).unwrap();
    for _ in 0..200_000 {
        tx.get(&map, key(1)).unwrap();
    }
    let mut tx = tx;
    let mut read = 0;
    let error = loop {
        match tx.get(&map, key(read)).map(drop) {
            Ok(()) => read += 1,
            Err(error) => break error,
        }
        assert!(read < 100_000, "there is no limit");
    };
    assert!(read > 50_000, "{read}");
    assert_too_large(&error, "exclusively");
    // Whole ranges take no more than their ends, and what was read is still checked.
    map.put(key(17), b"changed").unwrap();
    tx.put(&map, b"key", b"value").unwrap();
    let error = tx.commit().unwrap_err();
    assert!(matches!(error.reason(), Reason::Conflict { .. }), "{error}");
    let tx = store.begin(serializable.exclusive()).unwrap();
    for number in 0..100_000 {
        tx.get(&map, key(number)).unwrap();
    }
}

#[test]
fn layers_of_many_savepoints_go_to_disk_together() {
    const SAVEPOINTS: usize = 96;
    let (store, map) = store();
    let used = || {
        let stat = store.stat().unwrap();
        (stat.pages - stat.free_pages) * stat.page_bytes
    };
    let before = used();
    let mut tx = store.begin(Default::default()).unwrap();
    let mut marks = Vec::new();
    let mut model: Vec<BTreeMap<Vec<u8>, Vec<u8>>> = vec![BTreeMap::new()];
    let mut sums = vec![0i64];
    for number in 0..SAVEPOINTS {
        let mut state = model.last().unwrap().clone();
        for part in 0..8u8 {
            // Half a mebibyte a savepoint; some keys are written by each of them.
            let key = if part == 0 { vec![0] } else { vec![part, number as u8] };
            let value = vec![number as u8; 60 << 10];
            tx.put(&map, &key, &value).unwrap();
            state.insert(key, value);
        }
        tx.add(&map, b"counter", 1).unwrap();
        sums.push(sums[number] + 1);
        model.push(state);
        marks.push(tx.savepoint().unwrap());
    }
    // 45 MiB were written; at most 16 of them, and what one more layer takes, are in memory.
    assert!(used() - before > 20 << 20, "{} bytes went to disk", used() - before);
    let show = |tx: &duramen_engine::Transaction, number: usize| {
        let mut expected = model[number].clone();
        expected.insert(b"counter".to_vec(), sums[number].to_be_bytes().to_vec());
        let mut cursor = tx.range(&map, ..).unwrap();
        for (key, value) in &expected {
            let (found, bytes) = cursor.next().unwrap().expect("a pair is missing");
            assert!(found == key.as_slice() && bytes == *value, "after savepoint {number}");
        }
        assert!(cursor.next().unwrap().is_none());
    };
    for number in [SAVEPOINTS, 90, 50, 49, 7] {
        tx.rollback_to(&marks[number - 1]).unwrap();
        show(&tx, number);
    }
    map.add(b"counter", 100).unwrap();
    tx.commit().unwrap();
    assert_eq!(map.get(b"counter").unwrap().unwrap(), 107i64.to_be_bytes());
    assert_eq!(map.count().unwrap(), model[7].len() as u64 + 1);
    let report = store.check(&mut |_| ()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

#[test]
fn appends_of_a_transaction_are_refused_when_no_record_could_hold_them() {
    let (store, map) = store();
    let mut tx = store.begin(Default::default()).unwrap();
    let value = vec![5; 64 << 10];
    let savepoint = tx.savepoint().unwrap();
    let fill = |tx: &mut duramen_engine::Transaction| -> (u64, Error) {
        let mut appended = 0;
        loop {
            match tx.append(&map, b"prefix", &value) {
                Ok(()) => appended += 1,
                Err(error) => return (appended, error),
            }
        }
    };
    let (first, error) = fill(&mut tx);
    assert_too_large(&error, "commit and go on in another");
    assert!((4000..4096).contains(&first), "{first}");
    let error = (0..10_000u32).find_map(|number| tx.add(&map, number.to_be_bytes(), 1).err());
    assert_too_large(&error.expect("additions count as well"), "commit and go on in another");
    // What is taken back makes room again.
    tx.rollback_to(&savepoint).unwrap();
    assert_eq!(fill(&mut tx).0, first);
    assert_eq!(tx.commit().unwrap().assigned().len() as u64, first);
    assert_eq!(map.count().unwrap(), first);
}

#[test]
fn what_a_transaction_holds_in_memory_goes_to_disk_when_no_record_could_hold_it() {
    let value = vec![5; 60 << 10];
    let put = |tx: &mut duramen_engine::Transaction, map: &Map, keys: u32| {
        (0..keys).for_each(|key| tx.put(map, key.to_be_bytes(), &value).unwrap());
    };
    // Beside as many appends as a transaction takes, whose prefixes differ, so that each has a counter as well.
    let (store, map) = store();
    let mut tx = store.begin(Default::default()).unwrap();
    put(&mut tx, &map, 200);
    let mut appended = 0u32;
    while tx
        .append(
            &map,
            [&appended.to_be_bytes()[..], &[7; 1000]].concat(),
            &value[..32 << 10],
        )
        .is_ok()
    {
        appended += 1;
    }
    assert!(appended > 7000, "{appended}");
    tx.commit().unwrap();
    assert_eq!(map.count().unwrap(), (200 + appended) as u64);
    assert!(*map.get(199u32.to_be_bytes()).unwrap().unwrap() == *value);
    // And when the transaction was allowed more memory than a record takes.
    let (store, map) = self::store();
    let mut tx = store.begin(TransactionOptions::new().memory_bytes(1 << 30)).unwrap();
    put(&mut tx, &map, 4500);
    tx.commit().unwrap();
    assert_eq!(map.count().unwrap(), 4500);
    assert!(*map.get(4499u32.to_be_bytes()).unwrap().unwrap() == *value);
}

#[test]
fn what_exceeds_the_memory_of_a_transaction_goes_to_the_data_file_before_the_commit() {
    let (store, map) = store();
    let pages_in_use = || {
        let figures = store.stat().unwrap();
        figures.pages - figures.free_pages - figures.retired_pages
    };
    let before = pages_in_use();
    for (memory_bytes, pages) in [(1 << 20, 0), (10_000, 20)] {
        let mut tx = store
            .begin(TransactionOptions::new().memory_bytes(memory_bytes))
            .unwrap();
        (0..100u64).for_each(|number| tx.put(&map, number.to_be_bytes(), [7; 1000]).unwrap());
        let taken = pages_in_use() - before;
        assert!(taken >= pages && (taken == 0) == (pages == 0), "{taken} pages");
        tx.rollback();
        assert_eq!(pages_in_use(), before);
    }
}
