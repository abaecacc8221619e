//! Transactions use the memory of those before them. Several at a time, in one thread and handed from one to another, which
//! commit, are rolled back, dropped, or end with a panic: none sees or writes anything of another one.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use duramen_engine::{
    Durability, Item, Maintenance, Map, Options, STAMP_BYTES, Savepoint, Sequence, Store, Transaction,
    TransactionOptions,
};
use duramen_io::SimDisk;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a map, and a sequence beside it, must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    pairs: Pairs,
    sum: i64,
    appended: u64,
    rows: Vec<Vec<u8>>,
}

/// A map that one transaction at a time writes.
struct Place {
    store: Store,
    map: Map,
    sums: Map,
    sequence: Sequence,
    model: Model,
}

/// A transaction on its way.
struct Open {
    place: usize,
    tx: Transaction,
    model: Model,
    savepoints: Vec<(Savepoint, Model)>,
}

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(192 << 10, 256 << 10)
        .durability(Durability::Written)
}

fn places(disks: &[SimDisk]) -> Vec<Place> {
    let place = |number: usize| {
        let store = options().open_on(disks[number % disks.len()].platform()).unwrap();
        let (heads, bodies) = (
            store.reserved_map("heads").unwrap(),
            store.reserved_map("bodies").unwrap(),
        );
        let sequence = Sequence::new(&heads, &bodies, &[number as u8], "a sequence").unwrap();
        if store.snapshot().unwrap().sequence_state(&sequence).unwrap().is_none() {
            store.transact(|tx| tx.begin_sequence(&sequence)).unwrap();
        }
        Place {
            map: store.map(&format!("map {number}")).unwrap(),
            sums: store.map(&format!("sums {number}")).unwrap(),
            sequence,
            store,
            model: Model::default(),
        }
    };
    (0..4).map(place).collect()
}

fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = [1, 2, 30, 900][rng.usize(..4)];
    let mut key = vec![rng.u8(..6); length];
    key[length - 1] = rng.u8(..40);
    key
}

fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = match rng.u8(..40) {
        0 => 70_000,
        1 => 4_096,
        2..10 => rng.usize(..1_500),
        _ => rng.usize(..50),
    };
    vec![rng.u8(..); length]
}

fn range(rng: &mut fastrand::Rng) -> (Vec<u8>, Vec<u8>) {
    let (one, other) = (key(rng), key(rng));
    if one <= other { (one, other) } else { (other, one) }
}

impl Open {
    fn begin(places: &[Place], place: usize, rng: &mut fastrand::Rng) -> Open {
        let mut options = TransactionOptions::new();
        if rng.bool() {
            options = options.serializable();
        }
        if rng.u8(..4) == 0 {
            // Much of it goes through the data file.
            options = options.memory_bytes(rng.usize(..8_000));
        }
        let Place { store, model, .. } = &places[place];
        Open {
            place,
            tx: store.begin(options).unwrap(),
            model: model.clone(),
            savepoints: Vec::new(),
        }
    }

    fn step(&mut self, at: &Place, rng: &mut fastrand::Rng) {
        let Open {
            tx, model, savepoints, ..
        } = self;
        match rng.u8(..20) {
            0..8 => {
                let (key, value) = (key(rng), value(rng));
                tx.put(&at.map, &key, &value).unwrap();
                model.pairs.insert(key, value);
            }
            8 => {
                // One key again and again.
                let key = key(rng);
                for _ in 0..rng.u32(..200) {
                    let value = value(rng);
                    tx.put(&at.map, &key, &value).unwrap();
                    model.pairs.insert(key.clone(), value);
                }
            }
            9 | 10 => {
                let key = key(rng);
                tx.delete(&at.map, &key).unwrap();
                model.pairs.remove(&key);
            }
            11 => {
                let (low, high) = range(rng);
                tx.delete_range(&at.map, low.as_slice()..high.as_slice()).unwrap();
                model.pairs.retain(|key, _| !(low <= *key && *key < high));
            }
            12 => {
                let delta = rng.i64(-100..100);
                tx.add(&at.sums, b"sum", delta).unwrap();
                model.sum += delta;
            }
            13 => {
                tx.append(&at.sums, b"appended", b"").unwrap();
                model.appended += 1;
            }
            14 => {
                let row = [&[0; STAMP_BYTES][..], &value(rng)[..]].concat();
                let row = &row[..row.len().min(60_000)];
                let item = Item { head: row, body: None };
                tx.append_to(&at.sequence, item).unwrap();
                model.rows.push(row[STAMP_BYTES..].to_vec());
            }
            15 => savepoints.push((tx.savepoint().unwrap(), model.clone())),
            16 if !savepoints.is_empty() => {
                savepoints.truncate(rng.usize(..savepoints.len()) + 1);
                let (savepoint, before) = savepoints.last().unwrap();
                tx.rollback_to(savepoint).unwrap();
                *model = before.clone();
            }
            _ => self.check(at, rng),
        }
    }

    fn check(&self, at: &Place, rng: &mut fastrand::Rng) {
        let (tx, pairs) = (&self.tx, &self.model.pairs);
        let key = key(rng);
        assert_eq!(
            tx.get(&at.map, &key).unwrap().as_deref(),
            pairs.get(&key).map(Vec::as_slice)
        );
        assert_eq!(tx.count(&at.map, ..).unwrap(), pairs.len() as u64);
        let mut cursor = tx.range(&at.map, ..).unwrap();
        cursor.seek(&key).unwrap();
        let mut place = pairs.range(..key.clone()).count();
        let listed: Vec<_> = pairs.iter().collect();
        // To and fro, over what was written and what was there.
        for _ in 0..20 {
            let (found, expected) = match rng.bool() {
                true => {
                    let expected = listed.get(place).copied();
                    place += usize::from(expected.is_some());
                    (cursor.next().unwrap(), expected)
                }
                false => {
                    let before = place.checked_sub(1);
                    place = before.unwrap_or(0);
                    (cursor.prev().unwrap(), before.map(|before| listed[before]))
                }
            };
            let found = found.map(|(key, value)| (key.to_vec(), value.to_vec()));
            assert!(found == expected.map(|(key, value)| (key.clone(), value.clone())));
            if found.is_none() {
                break;
            }
        }
    }

    fn end(self, places: &mut [Place], rng: &mut fastrand::Rng) {
        let Open { place, tx, model, .. } = self;
        match rng.u8(..8) {
            0 => drop(tx),
            1 => tx.rollback(),
            2 => {
                let panics = AssertUnwindSafe(move || {
                    let _tx = tx;
                    resume_unwind(Box::new("in a transaction"));
                });
                catch_unwind(panics).unwrap_err();
            }
            3 => {
                // In another thread, which begins one of its own afterwards, and leaves its memory there.
                let Place { store, sums, .. } = &places[place];
                let sum = std::thread::scope(|scope| {
                    let ending = scope.spawn(move || {
                        tx.commit().unwrap();
                        store.begin(Default::default()).unwrap().count(sums, ..)
                    });
                    ending.join().unwrap()
                });
                sum.unwrap();
                places[place].model = model;
            }
            _ => {
                tx.commit().unwrap();
                places[place].model = model;
            }
        }
    }
}

/// What is there, and whether it is what must be.
fn check(places: &[Place]) {
    for Place {
        store,
        map,
        sums,
        sequence,
        model,
    } in places
    {
        let snapshot = store.snapshot().unwrap();
        let mut found = Pairs::new();
        let mut cursor = snapshot.range(map, ..).unwrap();
        while let Some((key, value)) = cursor.next().unwrap() {
            found.insert(key.to_vec(), value.to_vec());
        }
        assert!(found == model.pairs);
        let sum = snapshot.get(sums, b"sum").unwrap();
        let sum = sum.map_or(0, |sum| i64::from_be_bytes((*sum).try_into().unwrap()));
        let sums = snapshot.count(sums, b"appended".as_slice()..b"b".as_slice()).unwrap();
        let mut rows = Vec::new();
        let mut cursor = snapshot.prefix(sequence.heads(), sequence.prefix()).unwrap();
        while let Some((_, row)) = cursor.next().unwrap() {
            rows.push(row[STAMP_BYTES..].to_vec());
        }
        assert_eq!((sum, sums), (model.sum, model.appended));
        assert!(rows == model.rows);
    }
}

#[test]
fn transactions_in_the_memory_of_those_before_them_are_their_own() {
    let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    for round in 0..8 {
        let mut rng = fastrand::Rng::with_seed(seed.wrapping_add(round));
        let disks = [SimDisk::new(1), SimDisk::new(2)];
        let mut places = places(&disks);
        let mut open: Vec<Open> = Vec::new();
        for step in 0..1_500 {
            let free: Vec<usize> = (0..places.len())
                .filter(|place| open.iter().all(|open| open.place != *place))
                .collect();
            match rng.u8(..20) {
                0..2 if !free.is_empty() => open.push(Open::begin(&places, free[rng.usize(..free.len())], &mut rng)),
                2 if !open.is_empty() => open.swap_remove(rng.usize(..open.len())).end(&mut places, &mut rng),
                3 if rng.u8(..10) == 0 => places[rng.usize(..places.len())].store.maintain().unwrap(),
                4 if free.contains(&0) => {
                    // In one go, as most are.
                    let (number, value) = (step as u64, value(&mut rng));
                    let Place { store, map, .. } = &places[0];
                    let key = number.to_be_bytes();
                    store.transact(|tx| tx.put(map, key, &value)).unwrap();
                    places[0].model.pairs.insert(key.to_vec(), value);
                }
                _ if !open.is_empty() => {
                    let which = rng.usize(..open.len());
                    let place = open[which].place;
                    open[which].step(&places[place], &mut rng);
                }
                _ => {}
            }
            if step % 100 == 0 {
                check(&places);
            }
        }
        open.into_iter().for_each(|open| open.end(&mut places, &mut rng));
        check(&places);
        for Place { store, .. } in &places {
            store.maintain().unwrap();
            assert_eq!(store.check(&mut |_| ()).unwrap().problems, [""; 0]);
        }
        check(&places);
    }
}
