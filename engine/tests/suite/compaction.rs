//! Compaction and checks of a store in use: their progress may be answered with commits, damage that stops them leaves
//! nothing behind, and what they take was promised to nobody.

use std::time::Duration;

use crate::common::workload::check_sound;
use crate::common::{Watchdog, seed, small_options};
use duramen_engine::{Kind, Maintenance, Map, Progress, Store};
use duramen_io::SimDisk;
use fastrand::Rng;

/// Pages between the meta pages, which take no room of the disk but are in the length of the file.
const GAP_PAGES: u64 = 60;
/// What an empty store keeps: the reserve for deletions, what the next fold may need, and those pages.
const KEPT_BYTES: u64 = (448 << 10) + GAP_PAGES * 4096;
const HANG: Duration = Duration::from_secs(60);

fn fill(map: &Map, keys: u64, length: usize) {
    for number in 0..keys {
        map.put(number.to_be_bytes(), vec![number as u8; length]).unwrap();
    }
}

fn pages_in_use(store: &Store) -> u64 {
    let figures = store.stat().unwrap();
    figures.pages - figures.free_pages - figures.retired_pages
}

/// Calls `long` with a closure that commits more than the log takes without a fold.
fn commit_in_the_progress_of(long: impl Fn(&Store, &mut dyn FnMut(Progress))) {
    for maintenance in [Maintenance::Manual, Maintenance::Background] {
        let _watchdog = Watchdog::start("a commit in the progress of a long call", 0, HANG);
        let disk = SimDisk::new(1);
        let store = small_options()
            .maintenance(maintenance)
            .open_on(disk.platform())
            .unwrap();
        let map = store.map("map").unwrap();
        fill(&map, 3000, 400);
        let mut calls = 0u64;
        long(&store, &mut |_| {
            calls += 1;
            (0..200u64).for_each(|number| map.put(((calls % 2) << 32 | number).to_be_bytes(), [2; 3000]).unwrap());
        });
        assert!(calls > 0);
        assert_eq!(map.get((1u64 << 32).to_be_bytes()).unwrap().unwrap(), [2; 3000]);
        assert_eq!(check_sound(&store), Ok(()));
    }
}

#[test]
fn progress_of_a_check_may_be_answered_with_commits() {
    commit_in_the_progress_of(|store, progress| {
        let report = store.check(progress).unwrap();
        assert_eq!(report.problems, [] as [String; 0]);
    });
}

#[test]
fn progress_of_a_compaction_may_be_answered_with_commits() {
    commit_in_the_progress_of(|store, progress| {
        store.compact(progress).unwrap();
    });
}

#[test]
fn compaction_that_meets_damage_leaves_no_pages_behind() {
    let disk = SimDisk::new(1);
    let store = small_options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    fill(&map, 3000, 400);
    map.put(b"long", vec![0xAB; 200_000]).unwrap();
    drop(map);
    store.close().unwrap();
    let data = disk.read_raw("data");
    let long = data.windows(64).rposition(|bytes| bytes == [0xAB; 64]).unwrap();
    let leaf = data.windows(64).rposition(|bytes| bytes == [99; 64]).unwrap();
    for place in [long, leaf] {
        let disk = disk.kill();
        disk.write_raw("data", place as u64, &[0xCD]);
        let store = small_options().open_on(disk.platform()).unwrap();
        let before = pages_in_use(&store);
        for _ in 0..3 {
            let error = store.compact(&mut |_| ()).unwrap_err();
            assert_eq!(error.kind(), Kind::Damaged, "{error}");
            assert_eq!(pages_in_use(&store), before);
        }
    }
}

#[test]
fn compaction_beside_a_snapshot_leaves_room_for_what_commits_were_promised() {
    let first = seed();
    for seed in (0..8).map(|number| first.wrapping_add(number)) {
        println!("seed {seed}");
        let _watchdog = Watchdog::start("compaction on a small disk", seed, HANG);
        let mut rng = Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let store = small_options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        fill(&map, 2000, 500);
        store.maintain().unwrap();
        let snapshot = store.snapshot().unwrap();
        disk.set_capacity(Some(rng.u64(3 << 20..6 << 20)));
        let mut commit = |_| {
            for _ in 0..100 {
                let put = map.put(rng.u64(0..2000).to_be_bytes(), [3; 500]);
                assert!(put.is_ok() || put.is_err_and(|error| error.kind() == Kind::MakeSpace));
            }
        };
        let compacted = store.compact(&mut commit);
        assert!(compacted.is_ok() || compacted.is_err_and(|error| error.kind() == Kind::MakeSpace));
        // What was accepted can be folded, whatever the snapshot holds.
        store.maintain().unwrap();
        assert_eq!(snapshot.count(&map, ..).unwrap(), 2000);
        assert_eq!(snapshot.get(&map, 7u64.to_be_bytes()).unwrap().unwrap(), [7; 500]);
        assert_eq!(check_sound(&store), Ok(()));
    }
}

#[test]
fn compaction_leaves_what_the_data_need_however_often_it_is_done() {
    for keys in [0, 1, 100, 1000, 3000, 5000, 7777, 20_000, 30_000] {
        for deleted in [0, keys / 3, keys / 2, keys] {
            let disk = SimDisk::new(1);
            let store = small_options().open_on(disk.platform()).unwrap();
            let map = store.map("map").unwrap();
            fill(&map, keys, 100);
            (0..deleted).for_each(|number| map.delete(number.to_be_bytes()).unwrap());
            for round in 0..4 {
                let done = store.compact(&mut |_| ()).unwrap();
                println!("{keys} keys, {deleted} deleted, round {round}: {done:?}");
                assert!(done.bytes_after <= done.bytes_before);
                assert!(done.bytes_after <= (keys - deleted) * 120 * 9 / 8 + KEPT_BYTES);
            }
            assert_eq!(check_sound(&store), Ok(()));
        }
    }
}

#[test]
fn compaction_beside_a_snapshot_takes_one_more_copy_and_no_third() {
    for deleted in [0u64, 1000, 2000] {
        let disk = SimDisk::new(1);
        let store = small_options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        fill(&map, 6000, 400);
        (0..deleted).for_each(|number| map.delete((3 * number).to_be_bytes()).unwrap());
        let without = store.compact(&mut |_| ()).unwrap().bytes_after;
        let snapshot = store.snapshot().unwrap();
        for _ in 0..3 {
            let beside = store.compact(&mut |_| ()).unwrap().bytes_after;
            assert!(beside <= 2 * without + (64 << 10), "{without} {beside}");
        }
        assert_eq!(snapshot.count(&map, ..).unwrap(), 6000 - deleted);
        drop(snapshot);
        assert!(store.compact(&mut |_| ()).unwrap().bytes_after <= without);
        assert_eq!(check_sound(&store), Ok(()));
    }
}

#[test]
fn compaction_that_finds_no_room_gives_back_what_it_took() {
    for is_held in [false, true] {
        let disk = SimDisk::new(1);
        let store = small_options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        fill(&map, 6000, 400);
        let pages = |store: &Store| store.stat().unwrap().pages;
        store.compact(&mut |_| ()).unwrap();
        let before = pages(&store);
        let snapshot = is_held.then(|| store.snapshot().unwrap());
        disk.set_capacity(Some((before - GAP_PAGES) * 4096 + (3 << 20)));
        let error = store.compact(&mut |_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::MakeSpace, "{error}");
        assert!(pages(&store) <= before * 9 / 8, "{before} {}", pages(&store));
        map.put(b"another", b"value").unwrap();
        drop(snapshot);
        assert_eq!(map.count().unwrap(), 6001);
        assert_eq!(check_sound(&store), Ok(()));
    }
}
