//! Closing leaves the log and the shared region where folding would take long, and the next opening goes on with them, if
//! nothing can have changed meanwhile. Otherwise it replays the log, as after a crash.

use std::path::Path;

use crate::common::workload::check_sound;
use crate::common::{seed, small_options};
use duramen_engine::{Durability, Options, Store};
use duramen_io::SimDisk;
use fastrand::Rng;

const PAIRS: u32 = 700;
/// Control block and tables of the region.
const HEAD_BYTES: usize = 5 << 20;

/// Closing folds nothing.
fn options() -> Options {
    small_options().folded_at_close(0)
}

fn open(disk: &SimDisk) -> Store {
    options().open_on(disk.platform()).expect("a store that opens")
}

fn fill(store: &Store, numbers: std::ops::Range<u32>) {
    let map = store.map("map").expect("a map");
    for number in numbers {
        map.put(number.to_be_bytes(), value(number)).expect("a put");
    }
}

fn value(number: u32) -> Vec<u8> {
    // Now and then one that has pages of its own.
    let length = if number.is_multiple_of(200) { 70_000 } else { 60 };
    (0..length).map(|at| (number as usize * 17 + at) as u8).collect()
}

fn assert_holds(store: &Store, pairs: u32) {
    let map = store.map("map").expect("a map");
    for number in 0..pairs {
        let found = map.get(number.to_be_bytes()).expect("a sound store");
        assert!(found.as_deref() == Some(&*value(number)), "{number} of {pairs}");
    }
    assert_eq!(map.count().expect("a count"), u64::from(pairs));
    check_sound(store).expect("a sound store");
}

/// What names an opening that began a region: an opening that goes on with one that was left does not change it.
fn region_of(store: &Store) -> u64 {
    store.process_number() >> 32
}

/// A store with so many pairs that was closed, and the region that it left.
fn closed(disk: &SimDisk) -> u64 {
    let store = open(disk);
    fill(&store, 0..PAIRS);
    let region = region_of(&store);
    store.close().expect("a close");
    region
}

#[test]
fn opening_goes_on_with_the_region_that_closing_left() {
    let disk = SimDisk::new(seed());
    let mut region = None;
    for round in 0..20 {
        let store = open(&disk);
        assert_eq!(*region.get_or_insert(region_of(&store)), region_of(&store));
        assert_holds(&store, round * 100);
        if round % 7 == 3 {
            store.maintain().expect("a fold");
        }
        fill(&store, round * 100..(round + 1) * 100);
        store.close().expect("a close");
    }
}

#[test]
fn numbers_of_processes_are_never_given_out_twice() {
    let disk = SimDisk::new(seed());
    let mut seen = std::collections::HashSet::new();
    for round in 0..10 {
        let store = open(&disk);
        assert!(seen.insert(store.process_number()), "{round}");
        assert_eq!(store.processes_alive(), [store.process_number()]);
        fill(&store, round * 50..(round + 1) * 50);
        store.close().expect("a close");
    }
}

#[test]
fn little_is_folded_and_leaves_nothing() {
    let disk = SimDisk::new(seed());
    let store = small_options().open_on(disk.platform()).expect("a store");
    fill(&store, 0..100);
    let region = region_of(&store);
    store.close().expect("a close");
    assert!(disk.read_raw("shared").is_empty());
    let store = open(&disk);
    assert_ne!(region_of(&store), region);
    assert_holds(&store, 100);
}

#[test]
fn closed_store_survives_a_power_cut() {
    let seed = seed();
    for round in 0..30 {
        let disk = SimDisk::new(seed.wrapping_add(round));
        let region = closed(&disk);
        let disk = disk.power_cut(seed.wrapping_add(round));
        let store = open(&disk);
        assert_ne!(region_of(&store), region, "the machine was started again");
        assert_holds(&store, PAIRS);
    }
}

#[test]
fn region_of_a_process_that_was_killed_is_not_used() {
    let disk = SimDisk::new(seed());
    let region = closed(&disk);
    // No process has the store open, so a kill changes nothing.
    let disk = disk.kill();
    let store = open(&disk);
    assert_eq!(region_of(&store), region);
    fill(&store, PAIRS..PAIRS + 10);
    let disk = disk.kill();
    let store = open(&disk);
    assert_ne!(region_of(&store), region);
    assert_holds(&store, PAIRS + 10);
}

#[test]
fn opening_that_failed_has_used_the_region_up() {
    let seed = seed();
    for calls in 0..12 {
        let disk = SimDisk::new(seed);
        closed(&disk);
        disk.stop_after(calls);
        let _ = options().open_on(disk.platform());
        assert_holds(&open(&disk.kill()), PAIRS);
        assert_holds(&open(&disk.power_cut(seed)), PAIRS);
    }
}

#[test]
fn files_that_somebody_changed_are_replayed() {
    let seed = seed();
    for name in ["data", "wal-0", "wal-1"] {
        let disk = SimDisk::new(seed);
        let region = closed(&disk);
        // Nothing is changed but the time of the change.
        let bytes = disk.read_raw(name);
        disk.write_raw(name, 0, &bytes[..1]);
        let store = open(&disk);
        assert_ne!(region_of(&store), region, "{name}");
        assert_holds(&store, PAIRS);
    }
}

#[test]
fn region_with_a_wrong_byte_is_not_used() {
    let mut rng = Rng::with_seed(seed());
    let mut refused = 0;
    for round in 0..80 {
        let disk = SimDisk::new(rng.u64(..));
        let region = closed(&disk);
        let bytes = disk.read_raw("shared");
        // Most of it was never written to.
        let end = if round % 2 == 0 { HEAD_BYTES } else { bytes.len() };
        let places: Vec<usize> = (0..end).filter(|&at| bytes[at] != 0).collect();
        let place = places[rng.usize(..places.len())];
        disk.write_raw("shared", place as u64, &[bytes[place] ^ 1 << rng.u8(..8)]);
        let store = open(&disk);
        let is_refused = region_of(&store) != region;
        refused += u32::from(is_refused);
        // Behind the head some is what indexes that are gone have left.
        assert!(is_refused || place >= HEAD_BYTES, "byte {place}");
        assert_holds(&store, PAIRS);
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn region_that_was_cut_off_is_not_used() {
    let disk = SimDisk::new(seed());
    let region = closed(&disk);
    let length = disk.read_raw("shared").len() as u64;
    let file = disk.platform().storage.open("shared", duramen_io::OpenMode::Write);
    file.expect("the region").set_len(length - 1).expect("a cut");
    let store = open(&disk);
    assert_ne!(region_of(&store), region);
    assert_holds(&store, PAIRS);
}

#[test]
fn stores_to_oneself_and_shared_ones_follow_each_other() {
    let disk = SimDisk::new(seed());
    let region = closed(&disk);
    let mut pairs = PAIRS;
    for is_exclusive in [true, false, true, true, false] {
        let store = options()
            .exclusive(is_exclusive)
            .open_on(disk.platform())
            .expect("a store");
        assert_eq!(region_of(&store), region);
        assert_holds(&store, pairs);
        fill(&store, pairs..pairs + 10);
        pairs += 10;
        store.close().expect("a close");
    }
}

#[test]
fn the_last_of_several_processes_leaves_the_region() {
    let disk = SimDisk::new(seed());
    let (first, second) = (open(&disk), open(&disk));
    fill(&first, 0..300);
    let region = region_of(&first);
    first.close().expect("a close");
    fill(&second, 300..PAIRS);
    second.close().expect("a close");
    let (first, second) = (open(&disk), open(&disk));
    assert_eq!((region_of(&first), region_of(&second)), (region, region));
    assert_holds(&first, PAIRS);
    assert_holds(&second, PAIRS);
}

#[test]
fn region_is_left_by_the_last_process_after_another_was_killed() {
    let disk = SimDisk::new(seed());
    let first = open(&disk);
    let mortal = options().open_on(disk.platform_of_one_who_dies(u64::MAX, || ()));
    let mortal = mortal.expect("a store");
    fill(&mortal, 0..PAIRS);
    // It keeps what it has, and its locks are still there: it lives.
    std::mem::forget(mortal);
    let region = region_of(&first);
    first.close().expect("a close");
    let disk = disk.kill();
    let store = open(&disk);
    assert_ne!(region_of(&store), region, "a process was killed");
    assert_holds(&store, PAIRS);
}

#[test]
fn snapshot_that_outlasts_the_close_keeps_what_it_sees() {
    let disk = SimDisk::new(seed());
    let store = open(&disk);
    fill(&store, 0..PAIRS);
    let map = store.map("map").expect("a map");
    let snapshot = store.snapshot().expect("a snapshot");
    store.close().expect("a close");
    let again = open(&disk);
    fill(&again, PAIRS..PAIRS + 50);
    let found = snapshot.get(&map, 5u32.to_be_bytes()).expect("what it sees");
    assert_eq!(found.as_deref(), Some(&*value(5)));
    drop(snapshot);
    again.close().expect("a close");
    assert_holds(&open(&disk), PAIRS + 50);
}

#[test]
fn reading_a_closed_store_changes_nothing_of_it() {
    let disk = SimDisk::new(seed());
    let region = closed(&disk);
    let reader = options().read_only(true).open_on(disk.platform()).expect("a reader");
    assert_holds(&reader, PAIRS);
    reader.close().expect("a close");
    assert_eq!(region_of(&open(&disk)), region);
}

#[test]
fn map_that_was_dropped_before_the_close_stays_dropped() {
    let disk = SimDisk::new(seed());
    let store = open(&disk);
    fill(&store, 0..PAIRS);
    store.map("other").expect("a map").put("key", "value").expect("a put");
    store.maps().drop("other").expect("a drop");
    store.close().expect("a close");
    let store = open(&disk);
    assert_eq!(store.maps().list().expect("names"), ["map"]);
    assert_holds(&store, PAIRS);
}

fn open_at(path: &Path) -> Store {
    options().open(path).expect("a store that opens")
}

#[test]
fn directory_may_be_moved_and_a_copy_of_it_is_replayed() {
    let directory = tempfile::tempdir().expect("a directory");
    let [there, moved, copied] = ["there", "moved", "copied"].map(|name| directory.path().join(name));
    let store = open_at(&there);
    fill(&store, 0..PAIRS);
    let region = region_of(&store);
    store.close().expect("a close");
    std::fs::create_dir(&copied).expect("a directory");
    for file in std::fs::read_dir(&there).expect("files") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), copied.join(file.file_name())).expect("a copy");
    }
    let copy = open_at(&copied);
    assert_ne!(region_of(&copy), region, "the files are others");
    assert_holds(&copy, PAIRS);
    std::fs::rename(&there, &moved).expect("a rename");
    let store = open_at(&moved);
    // Elsewhere the region does not lie in the directory, and is not left.
    if duramen_io::writes_in_place(&moved).expect("a file system") {
        assert_eq!(region_of(&store), region);
    }
    assert_holds(&store, PAIRS);
}

#[test]
fn older_files_that_are_put_back_are_what_is_opened() {
    let directory = tempfile::tempdir().expect("a directory");
    let [path, backup] = ["store", "backup"].map(|name| directory.path().join(name));
    let copy_files = |from: &Path, to: &Path| {
        for file in std::fs::read_dir(from).expect("files") {
            let name = file.expect("a file").file_name();
            let is_content = name == "data" || name.to_string_lossy().starts_with("wal-");
            if is_content {
                std::fs::copy(from.join(&name), to.join(&name)).expect("a copy");
            }
        }
    };
    let store = open_at(&path);
    fill(&store, 0..PAIRS);
    store.close().expect("a close");
    std::fs::create_dir(&backup).expect("a directory");
    copy_files(&path, &backup);
    let store = open_at(&path);
    fill(&store, PAIRS..PAIRS + 50);
    store.close().expect("a close");
    // Over the newer ones, beside the region that belongs to those.
    copy_files(&backup, &path);
    assert_holds(&open_at(&path), PAIRS);
}

#[test]
fn closing_gives_up_a_fold_that_goes_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options::new().durability(Durability::Written).folded_at_close(0);
    let mut pairs = 0u32;
    for _ in 0..5 {
        let store = options.clone().open(directory.path()).expect("a store");
        let map = store.map("map").expect("a map");
        assert_eq!(map.count().expect("a count"), u64::from(pairs));
        // Generations of 512 KiB: several are frozen, and folded, when the store is closed.
        for number in pairs..pairs + 30_000 {
            map.put(number.reverse_bits().to_be_bytes(), number.to_be_bytes().repeat(20))
                .expect("a put");
        }
        pairs += 30_000;
        store.close().expect("a close");
    }
    let store = options.clone().open(directory.path()).expect("a store");
    let map = store.map("map").expect("a map");
    for number in 0..pairs {
        let found = map.get(number.reverse_bits().to_be_bytes()).expect("a sound store");
        assert!(found.as_deref() == Some(&*number.to_be_bytes().repeat(20)), "{number}");
    }
    check_sound(&store).expect("a sound store");
}
