//! The space that a store takes. Pages are reused while readers are open, data that no reader can see any more is
//! freed, and an emptied store is small.
//!
//! The bounds are multiples of the bytes of all keys and values, and the tests print what they measured. For a file
//! that is being overwritten, about one such multiple is the visible version. Another is the previous version, until
//! the new one is durable. The rest is reserved for commits that are in the log and not folded, so that a commit meets
//! a full disk, not a fold.

mod common;

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use common::{Place, assert_sound, directory_bytes, number_from_environment, seed};
use duramen::{Batch, Durability, Map, Options, Snapshot, Store, TransactionOptions};
use fastrand::Rng;

const PAIRS: u64 = 20_000;
const VALUE_BYTES: usize = 300;
/// The unit of all bounds.
const DATA_BYTES: u64 = PAIRS * (8 + VALUE_BYTES as u64);

fn options() -> Options {
    Options::new().durability(Durability::Written)
}

fn open(place: &Place) -> (Store, Map) {
    let store = options().open(place.path()).unwrap();
    let map = store.map("data").unwrap();
    (store, map)
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

/// Writes every pair, in another order each round.
fn overwrite(store: &Store, map: &Map, round: u64, rng: &mut Rng) {
    let mut numbers: Vec<u64> = (0..PAIRS).collect();
    rng.shuffle(&mut numbers);
    for part in numbers.chunks(50) {
        let mut batch = Batch::new();
        part.iter()
            .for_each(|number| batch.put(map, key(*number), [round as u8; VALUE_BYTES]).unwrap());
        store.write(batch).unwrap();
    }
}

fn assert_shows(snapshot: &Snapshot, map: &Map, round: u64) {
    assert_eq!(snapshot.count(map, ..).unwrap(), PAIRS);
    let mut cursor = snapshot.range(map, ..).unwrap();
    while let Some((_, value)) = cursor.next().unwrap() {
        assert!(value == [round as u8; VALUE_BYTES]);
    }
}

fn file_bytes(place: &Place, name: &str) -> u64 {
    std::fs::metadata(place.path().join(name)).unwrap().len()
}

fn data_file_bytes(place: &Place) -> u64 {
    file_bytes(place, "data")
}

fn show(what: &str, bytes: u64) {
    println!(
        "{what}: {bytes} bytes, {:.2} times the data",
        bytes as f64 / DATA_BYTES as f64
    );
}

/// Overwrites everything twenty times; `hold` says what to do with the snapshots. Returns the largest size of the data
/// file, whose growth must be bounded.
fn largest_file(place: &Place, mut hold: impl FnMut(&Store, &Map, u64)) -> u64 {
    let mut rng = Rng::with_seed(seed());
    let (store, map) = open(place);
    let rounds = number_from_environment("DURAMEN_ROUNDS", 20) as u64;
    let mut largest = [0, 0];
    for round in 0..rounds {
        overwrite(&store, &map, round, &mut rng);
        hold(&store, &map, round);
        let half = &mut largest[(2 * round / rounds) as usize];
        *half = data_file_bytes(place).max(*half);
    }
    store.maintain().unwrap();
    assert_sound(&store);
    show("largest data file in the first half", largest[0]);
    show("largest data file in the second half", largest[1]);
    assert!(largest[1] < largest[0] + DATA_BYTES, "the file grows with every round");
    largest[0].max(largest[1])
}

#[test]
fn overwriting_without_a_snapshot_stays_below_seven_times_the_data() {
    let place = Place::new();
    assert!(largest_file(&place, |_, _, _| ()) < 7 * DATA_BYTES);
}

#[test]
fn overwriting_with_one_snapshot_held_stays_below_nine_times_the_data() {
    let place = Place::new();
    let mut held = None;
    let largest = largest_file(&place, |store, map, round| {
        if round == 0 {
            store.maintain().unwrap();
        }
        let snapshot = held.get_or_insert_with(|| store.snapshot().unwrap());
        if round % 5 == 4 {
            assert_shows(snapshot, map, 0);
        }
    });
    assert!(largest < 9 * DATA_BYTES);
}

#[test]
fn overwriting_with_the_newest_snapshots_held_takes_at_most_two_sizes_for_each() {
    let place = Place::new();
    let mut held = std::collections::VecDeque::new();
    let largest = largest_file(&place, |store, map, round| {
        held.push_back((store.snapshot().unwrap(), round));
        if held.len() > 3 {
            let (snapshot, round) = held.pop_front().unwrap();
            assert_shows(&snapshot, map, round);
        }
    });
    assert!(largest < (7 + 2 * 4) * DATA_BYTES);
}

#[test]
fn log_stays_in_proportion_and_is_cut_when_the_store_is_quiet() {
    let place = Place::new();
    let mut largest = 0;
    let mut rng = Rng::with_seed(seed());
    let (store, map) = open(&place);
    for round in 0..10 {
        overwrite(&store, &map, round, &mut rng);
        largest = largest.max(store.stat().unwrap().log_bytes);
    }
    show("largest log", largest);
    assert!(
        largest < 10 * DATA_BYTES,
        "the log was never shorter than everything that was written"
    );
    // The log file that takes commits, and two prepared generations.
    let quiet = wait_until(|| store.stat().unwrap().log_bytes <= 4 << 20);
    show("log of the quiet store", store.stat().unwrap().log_bytes);
    assert!(quiet);
}

/// Gives the background a few seconds.
fn wait_until(done: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Deletes everything in one of several ways.
fn empty(store: &Store, map: &Map, how: usize) {
    match how {
        0 => map.clear().unwrap(),
        1 => store.maps().drop("data").unwrap(),
        _ => (0..PAIRS).for_each(|number| map.delete(key(number)).unwrap()),
    }
}

/// Maximum size that the background leaves of an emptied store: it does not rewrite a file for less.
const LEFT_BYTES: u64 = 16 << 20;
/// Maximum size after an explicit compaction.
const COMPACT_BYTES: u64 = 8 << 20;

#[test]
fn emptied_store_gives_its_space_back() {
    for how in 0..3 {
        let place = Place::new();
        let mut rng = Rng::with_seed(seed());
        let (store, map) = open(&place);
        (0..3).for_each(|round| overwrite(&store, &map, round, &mut rng));
        (0..30).for_each(|number| map.put(key(PAIRS + number), vec![7; 1_000_000]).unwrap());
        (0..30).for_each(|number| map.delete(key(PAIRS + number)).unwrap());
        empty(&store, &map, how);
        (0..5).for_each(|_| store.maintain().unwrap());
        let show_files = |when: &str| {
            let (bytes, files) = directory_bytes(&place.path());
            println!("emptied in way {how}, {when}: {bytes} bytes: {files:?}");
            bytes
        };
        let left = wait_until(|| directory_bytes(&place.path()).0 < LEFT_BYTES);
        show_files("in the background");
        assert!(left);
        store.compact(&mut |_| ()).unwrap();
        assert!(show_files("compacted") < COMPACT_BYTES);
        assert_sound(&store);
        drop(map);
        store.close().unwrap();
        assert!(show_files("closed") < COMPACT_BYTES);
        let (store, map) = open(&place);
        assert_eq!(map.count().unwrap(), 0);
        overwrite(&store, &map, 9, &mut rng);
        assert_shows(&store.snapshot().unwrap(), &map, 9);
    }
}

#[test]
fn emptied_and_quiet_store_takes_less_than_two_mebibytes_with_all_its_files() {
    for how in 0..3 {
        let place = Place::new();
        let mut rng = Rng::with_seed(seed());
        let (store, map) = open(&place);
        (0..3).for_each(|round| overwrite(&store, &map, round, &mut rng));
        empty(&store, &map, how);
        // 240 KiB of the length are between the meta pages, and have no blocks.
        let is_small =
            wait_until(|| directory_bytes(&place.path()).0 < 2 << 20 && file_bytes(&place, "data") < 960 << 10);
        println!("emptied in way {how}: {:?}", directory_bytes(&place.path()));
        assert!(is_small);
        drop(map);
        store.close().unwrap();
        println!("closed: {:?}", directory_bytes(&place.path()));
        assert_eq!(file_bytes(&place, "shared"), 0);
        let closed = directory_bytes(&place.path());
        assert!(closed.0 < 704 << 10, "{closed:?}");
    }
}

#[test]
fn quiet_store_moves_its_last_pages_to_the_front_and_gets_shorter() {
    let place = Place::new();
    let (store, map) = open(&place);
    let mut batch = Batch::new();
    (0..PAIRS).for_each(|number| batch.put(&map, key(number), [5; VALUE_BYTES]).unwrap());
    store.write(batch).unwrap();
    store.maintain().unwrap();
    // Pages all over the file are rewritten at its end, fewer than would justify a compaction.
    (0..PAIRS)
        .step_by(10)
        .for_each(|number| map.put(key(number), [5; VALUE_BYTES]).unwrap());
    store.maintain().unwrap();
    show("data file of the busy store", data_file_bytes(&place));
    let is_short = wait_until(|| data_file_bytes(&place) < DATA_BYTES + DATA_BYTES / 2);
    show("data file of the quiet store", data_file_bytes(&place));
    assert!(is_short);
    assert_shows(&store.snapshot().unwrap(), &map, 5);
    assert_sound(&store);
}

#[test]
fn space_comes_back_when_the_snapshot_that_held_it_is_dropped_long_after_the_last_commit() {
    let place = Place::new();
    let mut rng = Rng::with_seed(seed());
    let (store, map) = open(&place);
    (0..30).for_each(|number| map.put(key(PAIRS + number), vec![7; 1_000_000]).unwrap());
    store.maintain().unwrap();
    let snapshot = store.snapshot().unwrap();
    map.clear().unwrap();
    overwrite(&store, &map, 0, &mut rng);
    // The store has done its first background cleanup by then.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(data_file_bytes(&place) > 30_000_000);
    assert!(store.stat().unwrap().snapshots[0].pinned_bytes > 30_000_000);
    assert_eq!(snapshot.count(&map, ..).unwrap(), 30);
    drop(snapshot);
    let back = wait_until(|| data_file_bytes(&place) < LEFT_BYTES + DATA_BYTES);
    println!("data file at last: {} bytes", data_file_bytes(&place));
    assert!(back);
    assert_shows(&store.snapshot().unwrap(), &map, 0);
}

#[test]
fn long_values_that_are_overwritten_use_the_same_pages() {
    let place = Place::new();
    let (store, map) = open(&place);
    let mut rng = Rng::with_seed(seed());
    let mut largest = 0;
    for round in 0..60u64 {
        let length = rng.usize(500_000..1_000_000);
        map.put(key(round % 8), vec![round as u8; length]).unwrap();
        if round % 4 == 3 {
            store.maintain().unwrap();
        }
        largest = largest.max(data_file_bytes(&place));
    }
    println!("largest data file: {largest} bytes for at most 8000000 bytes of values");
    assert!(largest < 3 * 8_000_000);
    assert_sound(&store);
}

#[test]
fn transactions_that_are_rolled_back_leave_no_pages_behind() {
    let place = Place::new();
    let (store, map) = open(&place);
    let in_use = || {
        (0..3).for_each(|_| store.maintain().unwrap());
        let figures = store.stat().unwrap();
        figures.pages - figures.free_pages - figures.retired_pages
    };
    map.put(b"a", b"1").unwrap();
    let before = in_use();
    for round in 0..4u64 {
        let mut tx = store.begin(TransactionOptions::new()).unwrap();
        // This is more than a transaction keeps in memory, so a part of it is written to the data file.
        for number in 0..40_000 {
            tx.put(&map, key(number), [round as u8; 500]).unwrap();
        }
        tx.put(&map, b"long", vec![1; 700_000]).unwrap();
        if round % 2 == 0 {
            tx.rollback();
        } else {
            map.put(key(7), b"in between").unwrap();
            tx.commit().unwrap_err();
            map.delete(key(7)).unwrap();
        }
    }
    assert_eq!(in_use(), before);
    assert_eq!(map.count().unwrap(), 1);
    assert_sound(&store);
}

#[test]
fn compacting_gives_back_what_scattered_deletes_left_free() {
    let place = Place::new();
    let mut rng = Rng::with_seed(seed());
    let (store, map) = open(&place);
    overwrite(&store, &map, 1, &mut rng);
    (0..PAIRS)
        .filter(|number| number % 10 > 0)
        .for_each(|number| map.delete(key(number)).unwrap());
    store.compact(&mut |_| ()).unwrap();
    show("data file with a tenth of the data", data_file_bytes(&place));
    assert!(data_file_bytes(&place) < DATA_BYTES / 2);
    assert_eq!(map.count().unwrap(), PAIRS / 10);
    assert_sound(&store);
}

/// Returns the bytes of the in-memory files that this process has open.
fn memory_file_bytes() -> u64 {
    let is_in_memory = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"))
    };
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.map(|entry| entry.unwrap().path())
        .filter(|path| is_in_memory(path))
        .filter_map(|path| std::fs::metadata(path).ok())
        .map(|metadata| metadata.blocks() * 512)
        .sum()
}

#[test]
fn reading_a_large_file_takes_little_memory_for_its_free_pages() {
    let place = Place::new();
    let (store, map) = open(&place);
    map.put(b"key", b"value").unwrap();
    drop(map);
    store.close().unwrap();
    let data = std::fs::File::options()
        .write(true)
        .open(place.path().join("data"))
        .unwrap();
    data.set_len(16 << 30).unwrap();
    let before = memory_file_bytes();
    let store = options().read_only(true).open(place.path()).unwrap();
    let taken = memory_file_bytes().saturating_sub(before);
    println!("{taken} bytes of memory");
    // A bit for each of four million pages, twice, and the head of the region.
    assert!((1 << 20..4 << 20).contains(&taken), "{taken}");
    assert_eq!(store.map("data").unwrap().get(b"key").unwrap().unwrap(), b"value");
}
