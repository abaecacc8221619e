//! Values that look like logs, of this format or another, by users who know the format and not the store: recovery never
//! takes them for records of the store, whatever a crash leaves of the log around them.

use crate::common::{forged, small_options};
use duramen_engine::planted::{PlantedBug, plant};
use duramen_engine::{Durability, Maintenance, Options, Store};
use duramen_io::SimDisk;

/// So long that a value begins at a multiple of eight bytes of the log, as records do.
const KEY: &[u8] = b"upload/1.jpg";

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written)
}

fn open(disk: &SimDisk) -> Store {
    options().open_on(disk.platform()).expect("a store")
}

/// Pairs of the store after a crash, or why it does not open.
fn pairs(disk: &SimDisk) -> Result<u64, String> {
    let store = options().open_on(disk.platform()).map_err(|error| error.to_string())?;
    let map = store.map("map").map_err(|error| error.to_string())?;
    map.count().map_err(|error| error.to_string())
}

/// Three synced commits, and a fourth in flight whose value is `forged`, when the process is killed in it.
fn killed_in_flight(seed: u64, forged: &[u8]) -> SimDisk {
    let disk = SimDisk::new(seed);
    let store = open(&disk);
    let map = store.map("map").expect("a map");
    for number in 0..3u32 {
        map.put(number.to_be_bytes(), b"mine").expect("a put");
    }
    store.sync().expect("a sync");
    disk.stop_after(0);
    let _ = map.put(KEY, forged);
    disk.kill()
}

/// The same, but the fourth commit is acknowledged as written, and the power goes.
fn cut_after_written(seed: u64, forged: &[u8]) -> SimDisk {
    let disk = SimDisk::new(seed);
    let store = open(&disk);
    let map = store.map("map").expect("a map");
    for number in 0..3u32 {
        map.put(number.to_be_bytes(), b"mine").expect("a put");
    }
    store.sync().expect("a sync");
    map.put(KEY, forged).expect("a put");
    disk.power_cut(seed)
}

/// In how many of the crashes the store cannot be opened.
fn refusals(crash: fn(u64, &[u8]) -> SimDisk, forged: &[u8]) -> usize {
    let outcome = |seed| pairs(&crash(seed, forged));
    let is_refused = |outcome: &Result<u64, String>| match outcome {
        Ok(count) => {
            assert!([3, 4].contains(count), "{count} pairs");
            false
        }
        Err(_) => true,
    };
    (0..60).map(outcome).filter(is_refused).count()
}

#[test]
fn value_that_is_a_log_of_another_store_keeps_no_store_closed() {
    for crash in [killed_in_flight, cut_after_written] {
        assert_eq!(refusals(crash, forged::log_of_another_store()), 0);
    }
}

#[test]
fn value_with_forged_headers_keeps_no_store_closed() {
    for crash in [killed_in_flight, cut_after_written] {
        assert_eq!(refusals(crash, forged::headers_of_any_generation()), 0);
    }
}

/// Were the checksums of all stores alike, the test above would fail.
#[test]
fn checksums_that_do_not_name_the_store_are_found() {
    plant(Some(PlantedBug::StoresAlike));
    // Made in this thread, with the bug planted.
    let disk = SimDisk::new(99);
    let theirs = open(&disk);
    let map = theirs.map("theirs").expect("a map");
    for number in 0..50u32 {
        map.put(number.to_be_bytes(), b"a value of theirs").expect("a put");
        theirs.sync().expect("a sync");
    }
    let mut log = disk.read_raw("wal-0");
    // From the records on, because a value of 64 KiB is stored elsewhere.
    log.drain(..4096);
    log.truncate(60 << 10);
    let refused = refusals(killed_in_flight, &log) + refusals(cut_after_written, &log);
    plant(None);
    assert!(refused > 0, "nothing was noticed");
}

/// A value that was folded long ago is left in a log file that is about to be used again, when the file's new header is torn.
#[test]
fn torn_header_of_a_log_file_that_is_used_again_keeps_no_store_closed() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").expect("a map");
    map.put(KEY, &forged::log_of_another_store()[4096..]).expect("a put");
    store.sync().expect("a sync");
    store.maintain().expect("a fold");
    map.put(b"other", b"value").expect("a put");
    store.sync().expect("a sync");
    let torn = disk.power_cut(1);
    let holds_value = |name: &String| torn.read_raw(name).windows(KEY.len()).any(|bytes| bytes == KEY);
    let logs = torn.files().into_iter().filter(|name| name.starts_with("wal-"));
    let reused: Vec<String> = logs.filter(holds_value).collect();
    assert!(!reused.is_empty(), "the value is still in a log file");
    for name in reused {
        torn.write_raw(&name, 20, &[0xEE; 30]);
    }
    assert_eq!(pairs(&torn), Ok(2));
}

/// Blocks of a deleted store lie behind the tail of a new one, at the places where its next records belong.
#[test]
fn blocks_of_a_deleted_store_are_not_taken_for_records() {
    let deleted = SimDisk::new(7);
    let store = small_options().open_on(deleted.platform()).expect("a store");
    let map = store.map("map").expect("a map");
    for number in 0..100u32 {
        map.put(number.to_be_bytes(), [9; 100]).expect("a put");
        store.sync().expect("a sync");
    }
    let stale = deleted.read_raw("wal-0");
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        disk.leave_stale_blocks(stale.clone());
        let store = open(&disk);
        let map = store.map("map").expect("a map");
        for number in 0..3u32 {
            map.put(number.to_be_bytes(), [1; 100]).expect("a put");
        }
        store.sync().expect("a sync");
        map.put(b"later", [2; 100]).expect("a put");
        let after = disk.power_cut(seed);
        let count = pairs(&after).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!([3, 4].contains(&count), "seed {seed}: {count} pairs");
    }
}
