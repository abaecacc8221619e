//! A full disk whose free pages are scattered: keys of random sizes in random order, with deletions in between, until
//! nothing fits any more. Without a snapshot every deletion succeeds then, one by one or by range; and
//! afterwards there is room again. With one, a deletion that cannot be done says so.
//!
//! Seeds are printed; `DURAMEN_SEED` replays one of them, `DURAMEN_SEEDS` says how many to try.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::workload::check_sound;
use crate::common::{Watchdog, seed, small_options};
use duramen_engine::{Batch, Error, Kind, Maintenance, Map, Options, Store, TransactionOptions};
use duramen_io::SimDisk;
use fastrand::Rng;

const HANG: Duration = Duration::from_secs(120);

/// What is in the map, by the length of its value.
type Model = BTreeMap<Vec<u8>, usize>;

/// A store on a disk that is full, and what it holds.
struct Full {
    disk: SimDisk,
    store: Store,
    map: Map,
    model: Model,
    rng: Rng,
    value_bytes_max: usize,
    key_bytes_max: usize,
}

fn is_full(error: &Error) -> bool {
    error.kind() == Kind::MakeSpace
}

fn seeds() -> Vec<u64> {
    let count = std::env::var("DURAMEN_SEEDS").ok().and_then(|count| count.parse().ok());
    let first = seed();
    let is_given = std::env::var_os("DURAMEN_SEED").is_some();
    let count = if is_given { 1 } else { count.unwrap_or(6) };
    (0..count).map(|number| first.wrapping_add(number)).collect()
}

impl Full {
    fn new(seed: u64, options: Options) -> Full {
        let mut rng = Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let capacity = rng.u64(5 << 19..5 << 20);
        disk.set_capacity(Some(capacity));
        // Parts that meet a full disk are left to one thread.
        let store = options
            .fold_parts([0, 2, 5, 40][seed as usize % 4], 1)
            .open_on(disk.platform())
            .unwrap();
        let map = store.map("map").unwrap();
        let value_bytes_max = *rng.choice([150, 400, 1300, 6000, 60_000].iter()).unwrap();
        let key_bytes_max = *rng.choice([16, 100, 1000].iter()).unwrap();
        println!("seed {seed}: {capacity} bytes, values to {value_bytes_max}, keys to {key_bytes_max}");
        let mut full = Full {
            disk,
            store,
            map,
            model: Model::new(),
            rng,
            value_bytes_max,
            key_bytes_max,
        };
        for _ in 0..8 {
            full.fill();
            full.delete_scattered();
        }
        full.fill();
        full
    }

    fn put(&mut self) -> Result<(), Error> {
        let key_bytes = self.rng.usize(8..self.key_bytes_max);
        let key: Vec<u8> = (0..key_bytes).map(|_| self.rng.u8(b'a'..b'f')).collect();
        let length = self.rng.usize(0..self.value_bytes_max);
        self.map.put(&key, vec![self.rng.u8(..); length])?;
        self.model.insert(key, length);
        Ok(())
    }

    /// Puts until three in a row do not fit, although everything was folded in between.
    fn fill(&mut self) {
        let mut refused = 0;
        while refused < 3 {
            match self.put() {
                Ok(()) => refused = 0,
                Err(error) => {
                    assert!(is_full(&error), "{error}");
                    refused += 1;
                    let folded = self.store.maintain();
                    assert!(folded.as_ref().err().is_none_or(is_full), "{folded:?}");
                }
            }
        }
    }

    fn delete(&mut self, key: &[u8], when: &str) {
        let deleted = self.map.delete(key);
        let left = self.model.len();
        deleted.unwrap_or_else(|error| panic!("{when}, {left} keys left: {error}\n{:#?}", self.store.stat()));
        self.model.remove(key);
    }

    fn some_keys(&mut self, share: f64) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = self.model.keys().cloned().collect();
        self.rng.shuffle(&mut keys);
        keys.truncate((keys.len() as f64 * share) as usize + 1);
        keys
    }

    fn delete_scattered(&mut self) {
        let share = *self.rng.choice([0.01, 0.1, 0.5].iter()).unwrap();
        for key in self.some_keys(share) {
            self.delete(&key, "thinning out");
        }
    }

    fn assert_shows_model(&self) {
        assert_eq!(self.map.count().unwrap(), self.model.len() as u64);
        for (key, &length) in &self.model {
            assert_eq!(self.map.get(key).unwrap().unwrap().len(), length);
        }
    }

    fn assert_there_is_room(&mut self) {
        (0..2).for_each(|_| self.store.maintain().unwrap());
        assert_eq!(check_sound(&self.store), Ok(()));
        let before = self.model.len();
        self.fill();
        let after = self.model.len();
        assert!(
            after > before + 10,
            "{} keys fit: {:#?}\n{:?}",
            after - before,
            self.store.stat(),
            self.put().unwrap_err()
        );
        self.assert_shows_model();
    }
}

/// Runs a scene for every seed, with maintenance by hand and in the background.
fn on_full_disks(what: &'static str, scene: impl Fn(&mut Full)) {
    for seed in seeds() {
        for maintenance in [Maintenance::Manual, Maintenance::Background] {
            let _watchdog = Watchdog::start(what, seed, HANG);
            let mut full = Full::new(seed, small_options().maintenance(maintenance));
            scene(&mut full);
        }
    }
}

#[test]
fn every_key_can_be_deleted_one_by_one() {
    on_full_disks("deleting one by one", |full| {
        for key in full.some_keys(1.0) {
            full.delete(&key, "emptying");
        }
        full.assert_there_is_room();
    });
}

#[test]
fn a_store_that_was_opened_again_when_full_can_be_emptied() {
    on_full_disks("deleting after opening", |full| {
        *full = full.on(full.disk.kill());
        full.assert_shows_model();
        for key in full.some_keys(1.0) {
            full.delete(&key, "emptying");
        }
        full.assert_there_is_room();
    });
}

#[test]
fn a_full_map_can_be_cleared() {
    on_full_disks("clearing", |full| {
        full.map.clear().unwrap();
        full.model.clear();
        full.assert_there_is_room();
    });
}

#[test]
fn ranges_can_be_deleted() {
    on_full_disks("deleting ranges", |full| {
        while !full.model.is_empty() {
            let low = full.some_keys(0.0).remove(0);
            let high = full
                .model
                .range(low.clone()..)
                .nth(full.rng.usize(1..200))
                .map(|(key, _)| key.clone());
            match &high {
                Some(high) => full.map.delete_range(low.as_slice()..high.as_slice()).unwrap(),
                None => full.map.delete_range(low.as_slice()..).unwrap(),
            }
            full.model
                .retain(|key, _| *key < low || high.as_ref().is_some_and(|high| key >= high));
        }
        full.assert_there_is_room();
    });
}

#[test]
fn with_a_snapshot_a_deletion_works_or_says_what_is_missing_and_works_once_the_snapshot_is_dropped() {
    on_full_disks("deleting beside a snapshot", |full| {
        let snapshot = full.store.snapshot().unwrap();
        let keys = full.some_keys(1.0);
        let mut refused = 0;
        for key in &keys {
            match full.map.delete(key) {
                Ok(()) => drop(full.model.remove(key)),
                Err(error) => {
                    assert!(is_full(&error), "{error}");
                    refused += 1;
                    if refused > 20 {
                        break;
                    }
                }
            }
        }
        println!(
            "{} of {} deleted beside a snapshot",
            keys.len() - full.model.len(),
            keys.len()
        );
        assert_eq!(snapshot.count(&full.map, ..).unwrap(), keys.len() as u64);
        drop(snapshot);
        full.assert_shows_model();
        for key in full.some_keys(1.0) {
            full.delete(&key, "without the snapshot");
        }
        full.assert_there_is_room();
    });
}

impl Full {
    /// The same on another disk.
    fn on(&self, disk: SimDisk) -> Full {
        let store = small_options().open_on(disk.platform()).unwrap();
        Full {
            map: store.map("map").unwrap(),
            store,
            disk,
            model: self.model.clone(),
            rng: self.rng.clone(),
            ..*self
        }
    }
}

#[test]
fn a_store_whose_log_has_its_blocks_is_opened_and_emptied_where_no_file_gets_another_one() {
    // However many of its log files wait to be folded.
    for puts in (200..500u64).step_by(30) {
        let disk = SimDisk::new(1);
        let store = small_options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        for number in 0..puts {
            map.put(number.to_be_bytes(), [7; 400]).unwrap();
        }
        println!("{puts} puts, {:?}", store.stat().unwrap().generations);
        let disk = disk.kill();
        disk.set_capacity(Some(0));
        let store = small_options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        for number in 0..puts {
            map.delete(number.to_be_bytes()).unwrap();
        }
        assert_eq!(map.count().unwrap(), 0);
        assert_eq!(check_sound(&store), Ok(()));
    }
}

#[test]
fn a_closed_store_whose_free_blocks_others_took_is_opened_and_emptied_with_little_room() {
    let options = || Options::new().maintenance(Maintenance::Manual);
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    for number in 0..3000u64 {
        map.put(number.to_be_bytes(), [7; 400]).unwrap();
    }
    drop(map);
    store.close().unwrap();
    let disk = disk.kill();
    // Of the half a mebibyte that a log begins with otherwise.
    disk.set_capacity(Some(disk.allocated_bytes() + (64 << 10)));
    let store = options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    for number in 0..3000u64 {
        map.delete(number.to_be_bytes()).unwrap();
    }
    assert_eq!(map.count().unwrap(), 0);
    assert_eq!(check_sound(&store), Ok(()));
}

#[test]
fn a_long_record_that_finds_no_room_changes_nothing() {
    let disk = SimDisk::new(3);
    let store = small_options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    map.put(b"before", b"value").unwrap();
    // More than a step of the log's growth: its blocks are allocated, not filled.
    let long_batch = || {
        let mut batch = Batch::new();
        (0..1000u32).for_each(|number| batch.put(&map, number.to_be_bytes(), [7; 1000]).unwrap());
        batch
    };
    for room in [0, 100 << 10, 600 << 10, 900 << 10] {
        disk.set_capacity(Some(disk.allocated_bytes() + room));
        let error = store.write(long_batch()).unwrap_err();
        assert!(is_full(&error), "{room}: {error}");
        assert_eq!(map.count().unwrap(), 1);
    }
    disk.set_capacity(None);
    store.write(long_batch()).unwrap();
    let store = small_options().open_on(disk.kill().platform()).unwrap();
    assert_eq!(store.map("map").unwrap().count().unwrap(), 1001);
    check_sound(&store).unwrap();
}

/// A store on a small disk that holds all that it takes, put in order of keys, and how many that were.
fn filled_by_puts(options: Options, value: &[u8]) -> (SimDisk, Store, Map, u64) {
    let disk = SimDisk::new(1);
    let store = options.open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    disk.set_capacity(Some(disk.allocated_bytes() + (6 << 20)));
    for number in 0u64.. {
        if let Err(error) = map.put(number.to_be_bytes(), value) {
            assert!(is_full(&error), "{error}");
            return (disk, store, map, number);
        }
    }
    unreachable!("the disk has an end");
}

#[test]
fn puts_work_at_once_after_room_was_made() {
    for maintenance in [Maintenance::Manual, Maintenance::Background] {
        for length in [100, 3_000, 20_000, 100_000] {
            for all in [false, true] {
                let what = format!("{maintenance:?}, values of {length} bytes, all: {all}");
                let options = small_options().maintenance(maintenance);
                let (_disk, store, map, count) = filled_by_puts(options, &vec![1; length]);
                let first = if all { 0 } else { count / 2 };
                map.delete_range(&first.to_be_bytes()[..]..).unwrap();
                // The log may have taken a little of the room meanwhile.
                let put = (count - first) * 9 / 10;
                for number in first..first + put {
                    map.put(number.to_be_bytes(), vec![2; length])
                        .unwrap_or_else(|error| panic!("{what}: {} of {put}: {error}", number - first));
                }
                assert_eq!(map.count().unwrap(), first + put, "{what}");
                // It can still be emptied.
                map.delete_range(..).unwrap();
                assert_eq!(check_sound(&store), Ok(()), "{what}");
            }
        }
    }
}

#[test]
fn a_long_value_is_put_to_free_pages_where_no_file_gets_another_block() {
    let disk = SimDisk::new(1);
    let value = vec![1; 100_000];
    let store = small_options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    (0..40u64).for_each(|number| map.put(number.to_be_bytes(), &value).unwrap());
    map.delete_range(..).unwrap();
    store.maintain().unwrap();
    drop((map, store));
    // The memory that the processes share is made when the store is opened. No long value was put since.
    let store = small_options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    disk.set_capacity(Some(disk.allocated_bytes()));
    let mut tx = store.begin(TransactionOptions::new()).unwrap();
    (0..30u64).for_each(|number| tx.put(&map, number.to_be_bytes(), &value).unwrap());
    tx.commit().unwrap();
    assert_eq!(map.count().unwrap(), 30);
    assert_eq!(check_sound(&store), Ok(()));
}

#[test]
fn long_values_of_transactions_that_are_dropped_take_no_memory() {
    let value = vec![1; 100_000];
    // At one of these numbers the list of places is full of the place of the value that is held.
    for dropped in 500..520 {
        let disk = SimDisk::new(1);
        let store = small_options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        let with_value = || {
            let mut tx = store.begin(TransactionOptions::new()).unwrap();
            let put = tx.put(&map, b"key", &value);
            put.map(|()| tx).unwrap_or_else(|error| panic!("{dropped}: {error}"))
        };
        drop((with_value(), with_value()));
        disk.set_capacity(Some(disk.allocated_bytes()));
        (0..dropped).for_each(|_| drop(with_value()));
        let held = with_value();
        (0..600).for_each(|_| drop(with_value()));
        drop(held);
        assert_eq!(check_sound(&store), Ok(()));
    }
}

#[test]
fn puts_that_find_nothing_to_free_are_refused_without_a_fold_for_each() {
    for maintenance in [Maintenance::Manual, Maintenance::Background] {
        for length in [100, 100_000] {
            let value = vec![1; length];
            let (_disk, store, map, count) = filled_by_puts(small_options().maintenance(maintenance), &value);
            let folds = || store.stat().unwrap().counts.folds;
            let before = folds();
            for number in 0..200u64 {
                let refused = map.put((count + number).to_be_bytes(), &value);
                assert!(refused.is_err_and(|error| is_full(&error)), "{number}");
            }
            // Those of the background thread, which was folding, are among them.
            let folded = folds() - before;
            assert!(folded <= 3, "{maintenance:?}, values of {length} bytes: {folded} folds");
        }
    }
}
