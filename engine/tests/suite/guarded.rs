//! Guarded maps: every program reads them, and only transactions that ask for it write them.

use std::io::Cursor;

use duramen_engine::{Batch, Durability, Maintenance, Map, Options, Reason, Result, Store, TransactionOptions};
use duramen_io::SimDisk;

fn open(disk: &SimDisk) -> Store {
    let options = Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written);
    options.open_on(disk.platform()).unwrap()
}

fn guarded() -> TransactionOptions {
    TransactionOptions::new().guarded()
}

fn make(store: &Store, name: &str) -> Map {
    let mut tx = store.begin(guarded()).unwrap();
    let number = store.maps().list().unwrap().len() as u32;
    let map = tx.guarded_map(name, number).unwrap();
    tx.put(&map, b"key", b"value").unwrap();
    tx.commit().unwrap();
    map
}

fn in_batch(store: &Store, add: impl FnOnce(&mut Batch) -> Result<()>) -> Result<()> {
    let mut batch = Batch::new();
    add(&mut batch)?;
    store.write(batch).map(|_| ())
}

type Write = fn(&Store, &Map) -> Result<()>;

/// Every call that writes a map.
const WRITES: &[(&str, Write)] = &[
    ("map.put", |_, map| map.put(b"key", b"other")),
    ("map.put, long", |_, map| map.put(b"key", vec![1; 1 << 20])),
    ("map.put_stream", |_, map| {
        map.put_stream(b"key", 3, &mut Cursor::new(b"abc"))
    }),
    ("map.put_sorted", |_, map| map.put_sorted([("a", "1")]).map(|_| ())),
    ("map.delete", |_, map| map.delete(b"key")),
    ("map.delete_range", |_, map| map.delete_range(..)),
    ("map.clear", |_, map| map.clear()),
    ("map.add", |_, map| map.add(b"n", 1).map(|_| ())),
    ("map.append", |_, map| map.append(b"n", b"value").map(|_| ())),
    ("map.create", |_, map| map.create(b"new", b"value").map(|_| ())),
    ("map.update", |_, map| map.update(b"key", |_| None).map(|_| ())),
    ("map.compare_and_swap", |_, map| {
        map.compare_and_swap(b"key", Some(b"value"), None).map(|_| ())
    }),
    ("map.take", |_, map| map.take(b"key").map(|_| ())),
    ("map.pop_first", |_, map| map.pop_first().map(|_| ())),
    ("map.pop_last", |_, map| map.pop_last().map(|_| ())),
    ("map.retain", |_, map| map.retain(|_, _| false).map(|_| ())),
    ("map.extract_if", |_, map| map.extract_if(.., |_, _| true).map(|_| ())),
    ("tx.put", |store, map| {
        store.transact(|tx| tx.put(map, b"key", b"other"))
    }),
    ("tx.put_sorted", |store, map| {
        store.transact(|tx| tx.put_sorted(map, [("a", "1")]).map(|_| ()))
    }),
    ("tx.delete", |store, map| store.transact(|tx| tx.delete(map, b"key"))),
    ("tx.delete_range", |store, map| {
        store.transact(|tx| tx.delete_range(map, ..))
    }),
    ("tx.clear", |store, map| store.transact(|tx| tx.clear(map))),
    ("tx.add", |store, map| store.transact(|tx| tx.add(map, b"n", 1))),
    ("tx.append", |store, map| {
        store.transact(|tx| tx.append(map, b"n", b"value"))
    }),
    ("tx.append_numbered", |store, map| {
        store.transact(|tx| tx.append_numbered(map, b"n", b"value").map(|_| ()))
    }),
    ("tx.pop_first", |store, map| {
        store.transact(|tx| tx.pop_first(map).map(|_| ()))
    }),
    ("batch.put", |store, map| {
        in_batch(store, |batch| batch.put(map, b"key", b"other"))
    }),
    ("batch.delete", |store, map| {
        in_batch(store, |batch| batch.delete(map, b"key"))
    }),
    ("batch.delete_range", |store, map| {
        in_batch(store, |batch| batch.delete_range(map, ..))
    }),
    ("batch.add", |store, map| {
        in_batch(store, |batch| batch.add(map, b"n", 1))
    }),
    ("batch.append", |store, map| {
        in_batch(store, |batch| batch.append(map, b"n", b"value"))
    }),
    ("maps.rename", |store, _| store.maps().rename("guarded", "other")),
    ("maps.drop", |store, _| store.maps().drop("guarded")),
];

#[test]
fn every_program_reads_a_guarded_map_and_none_writes_it() {
    let store = open(&SimDisk::new(1));
    make(&store, "guarded");
    let map = store.map("guarded").unwrap();
    assert!(map.is_guarded());
    for (call, write) in WRITES {
        let refused = write(&store, &map).expect_err(call);
        assert!(
            matches!(refused.reason(), Reason::MapGuarded { name } if name == "guarded"),
            "{call}: {refused}"
        );
        assert_eq!(map.count().unwrap(), 1, "{call}");
        assert_eq!(&map.get(b"key").unwrap().unwrap()[..], b"value", "{call}");
    }
    assert_eq!(store.maps().list().unwrap(), ["guarded"]);
}

#[test]
fn a_transaction_that_asks_for_it_writes_renames_and_drops_guarded_maps() {
    let store = open(&SimDisk::new(1));
    let map = make(&store, "guarded");
    let mut tx = store.begin(guarded()).unwrap();
    tx.put(&map, b"other", b"value").unwrap();
    tx.delete(&map, b"key").unwrap();
    tx.rename_map("guarded", "renamed").unwrap();
    assert!(matches!(
        tx.guarded_map("renamed", 1).unwrap_err().reason(),
        Reason::MapExists { .. }
    ));
    tx.commit().unwrap();
    let renamed = store.map("renamed").unwrap();
    assert!(renamed.is_guarded());
    assert_eq!(renamed.first().unwrap().unwrap().0, b"other");
    let mut tx = store.begin(guarded()).unwrap();
    tx.drop_map("renamed").unwrap();
    tx.commit().unwrap();
    assert!(store.maps().list().unwrap().is_empty());
    assert!(!store.map("renamed").unwrap().is_guarded());
}

#[test]
fn guarded_maps_survive_crashes_and_folds_and_ids_stay_apart() {
    let mut disk = SimDisk::new(1);
    let mut names = Vec::new();
    for round in 0..6 {
        let store = open(&disk);
        let (guarded, plain) = (format!("guarded{round}"), format!("plain{round}"));
        make(&store, &guarded);
        store.map(&plain).unwrap().put(b"key", plain.as_bytes()).unwrap();
        names.extend([guarded, plain]);
        store.sync().unwrap();
        if round % 2 == 0 {
            store.maintain().unwrap();
        }
        let mut ids = Vec::new();
        for name in &names {
            let map = store.map(name).unwrap();
            assert_eq!(map.is_guarded(), name.starts_with("guarded"), "{name}");
            assert_eq!(map.count().unwrap(), 1, "{name}");
            ids.push(map.number());
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), names.len());
        disk = match round % 3 {
            0 => disk.kill(),
            _ => disk.power_cut(round),
        };
    }
}
