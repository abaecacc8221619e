//! Every row of the table at the top of `recovery.rs`: what opening a store finds, and what it does about it.
//!
//! Stores are made on a simulated disk, killed, and their files changed where the row says so.

use crate::common::small_options;
use duramen_engine::{Batch, Durability, Kind, Lost, Map, Reason, Result, Store, TransactionOptions};
use duramen_io::{OpenMode, SimDisk};

const PAGE: usize = 4096;
/// First bytes of a record, and how long its header is.
const RECORD_HEADER: usize = 56;
/// Where the header of a log file names its store.
const STORE_ID: std::ops::Range<usize> = 16..32;

fn open(disk: &SimDisk) -> Result<Store> {
    small_options().create(false).open_on(disk.platform())
}

fn error_of(disk: &SimDisk) -> duramen_engine::Error {
    open(disk).expect_err("the store opened")
}

fn assert_damaged(disk: &SimDisk, fact: &str) {
    let error = error_of(disk);
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(error.to_string().contains(fact), "{error}");
}

/// A disk with a store in it, and the store's map. The making of the map is commit 1.
fn store() -> (SimDisk, Store, Map) {
    let disk = SimDisk::new(7);
    let store = small_options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    (disk, store, map)
}

fn put(map: &Map, number: u64) {
    map.put(number.to_be_bytes(), format!("value {number}").as_bytes())
        .unwrap();
}

/// Fills generations: each takes three or so of these.
fn put_large(map: &Map, number: u64) {
    map.put(number.to_be_bytes(), [number as u8; 3000]).unwrap();
}

/// Puts large values until so many generations are frozen. The last one is alone in the newest. Returns how many.
fn fill_generations(store: &Store, map: &Map, frozen: u64) -> u64 {
    let mut number = 0;
    while store.stat().unwrap().generations.frozen < frozen {
        put_large(map, number);
        number += 1;
    }
    number
}

/// Numbers of the keys in the store on a disk.
fn found(disk: &SimDisk) -> Vec<u64> {
    let store = open(disk).unwrap();
    let Some(map) = store.maps().get("map").unwrap() else {
        return Vec::new();
    };
    let snapshot = store.snapshot().unwrap();
    let mut cursor = snapshot.range(&map, ..).unwrap();
    let mut keys = Vec::new();
    while let Some((key, value)) = cursor.next().unwrap() {
        let number = u64::from_be_bytes(key.try_into().unwrap());
        let short = format!("value {number}");
        assert!(value == *short.as_bytes() || value == vec![number as u8; value.len()]);
        keys.push(number);
    }
    keys
}

fn flip(disk: &SimDisk, file: &str, offset: usize) {
    let byte = disk.read_raw(file)[offset];
    disk.write_raw(file, offset as u64, &[byte ^ 0x10]);
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The id of the store, of which each meta page has a copy.
fn data_store_id(disk: &SimDisk) -> Option<Vec<u8>> {
    let data = disk.read_raw("data");
    let pages = data.chunks(PAGE).step_by(16);
    let ids = pages.filter_map(|page| page.get(STORE_ID));
    ids.map(<[u8]>::to_vec).find(|id| id.iter().any(|&byte| byte != 0))
}

/// Positions of the records in a log file, with their commits.
fn records(disk: &SimDisk, file: &str) -> Vec<(usize, u64)> {
    let bytes = disk.read_raw(file);
    // Each store has a magic number of its own, which also tells records from what an older use of the file has left.
    let Some(store) = data_store_id(disk) else {
        return Vec::new();
    };
    let magic = xxhash_rust::xxh3::xxh3_64_with_seed(&store, 1) as u32;
    let places = (PAGE..bytes.len().saturating_sub(RECORD_HEADER)).step_by(8);
    places
        .filter(|&at| word(&bytes, at) == magic)
        .map(|at| (at, long(&bytes, at + 8)))
        .collect()
}

/// The log file with the record of a commit, and where it is.
fn record_of(disk: &SimDisk, commit: u64) -> (String, usize) {
    for file in logs(disk) {
        if let Some((at, _)) = records(disk, &file).into_iter().find(|(_, found)| *found == commit) {
            return (file, at);
        }
    }
    panic!("no record of commit {commit}")
}

fn logs(disk: &SimDisk) -> Vec<String> {
    let files = disk.files().into_iter();
    files.filter(|name| name.starts_with("wal-")).collect()
}

/// Makes one of the meta pages a page of another format, as a library that knows it would write it.
fn write_format(disk: &SimDisk, page: usize, format: u32) {
    let mut bytes = disk.read_raw("data")[page * PAGE..(page + 1) * PAGE].to_vec();
    bytes[8..12].copy_from_slice(&format.to_le_bytes());
    let sum = crc32c::crc32c_append(format - 1, &bytes[16..]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    disk.write_raw("data", (page * PAGE) as u64, &bytes);
}

/// The meta pages: copies A of the even and of the odd sequence number, and copies B of them.
const META: [usize; 4] = [0, 16, 32, 48];
/// Pages from copy A to copy B.
const TO_COPY_B: usize = 32;

/// Page of copy A of the newest meta page.
fn newest_meta(disk: &SimDisk) -> usize {
    let data = disk.read_raw("data");
    let sequence = |page: usize| long(&data, page * PAGE + 32);
    if sequence(0) > sequence(16) { 0 } else { 16 }
}

fn erase_newest_meta(disk: &SimDisk) {
    let page = newest_meta(disk);
    for page in [page, page + TO_COPY_B] {
        disk.write_raw("data", (page * PAGE) as u64, &[0; PAGE]);
    }
}

/// Lets the device lose both writes of the newest meta page: its copies hold what they did two meta pages before.
fn lose_writes_of_newest_meta(disk: &SimDisk, before: &[u8]) {
    let page = newest_meta(disk);
    for page in [page, page + TO_COPY_B] {
        disk.write_raw("data", (page * PAGE) as u64, &before[page * PAGE..(page + 1) * PAGE]);
    }
}

#[test]
fn an_empty_directory_becomes_a_store() {
    let disk = SimDisk::new(1);
    drop(small_options().open_on(disk.platform()).unwrap());
    assert!(found(&disk).is_empty());
}

#[test]
fn a_missing_store_is_not_made_unless_asked_for() {
    let disk = SimDisk::new(1);
    assert!(matches!(error_of(&disk).reason(), Reason::NoStore { .. }));
    assert!(disk.files().is_empty());
}

#[test]
fn what_an_interrupted_creation_left_does_not_stop_the_next_one() {
    let disk = SimDisk::new(1);
    let storage = disk.platform().storage;
    for name in ["lock", "shared", "data.new"] {
        storage
            .open(name, OpenMode::Create)
            .unwrap()
            .write_at(b"half", 0)
            .unwrap();
    }
    drop(small_options().open_on(disk.platform()).unwrap());
    assert!(found(&disk).is_empty());
}

#[test]
fn a_directory_with_other_files_is_not_a_store() {
    let disk = SimDisk::new(1);
    disk.platform().storage.open("letter.txt", OpenMode::Create).unwrap();
    let error = small_options().open_on(disk.platform()).unwrap_err();
    assert!(matches!(error.reason(), Reason::NotAStore { found, .. } if found.contains("letter.txt")));
    assert_eq!(disk.files(), ["letter.txt"]);
}

#[test]
fn a_log_without_a_data_file_is_damage() {
    let (disk, _store, map) = store();
    put(&map, 1);
    let disk = disk.kill();
    disk.platform().storage.remove("data").unwrap();
    let error = small_options().open_on(disk.platform()).unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
}

#[test]
fn a_data_file_without_an_intact_meta_page_is_damage() {
    let (disk, store, _) = store();
    store.close().unwrap();
    let disk = disk.kill();
    for page in META {
        flip(&disk, "data", page * PAGE + 50);
    }
    assert_damaged(&disk, "no intact meta page");
}

#[test]
fn damaged_copy_of_the_meta_page_is_written_again_by_opening_the_store() {
    let (disk, store, map) = store();
    put(&map, 1);
    drop(map);
    store.close().unwrap();
    for copy in [0, TO_COPY_B, 0, TO_COPY_B] {
        let page = newest_meta(&disk) + copy;
        flip(&disk, "data", page * PAGE + 60);
        assert_eq!(found(&disk), [1]);
    }
}

#[test]
fn one_intact_copy_of_the_meta_page_is_enough() {
    let (disk, store, map) = store();
    put(&map, 1);
    store.close().unwrap();
    let disk = disk.kill();
    let page = newest_meta(&disk);
    for copy in [page, page + TO_COPY_B] {
        let disk = disk.kill();
        flip(&disk, "data", copy * PAGE + 60);
        assert_eq!(found(&disk), [1]);
    }
}

#[test]
fn a_newer_format_is_refused_by_its_number() {
    let (disk, store, _) = store();
    store.close().unwrap();
    let disk = disk.kill();
    write_format(&disk, 0, 9);
    assert!(matches!(error_of(&disk).reason(), Reason::NewerFormat { found: 9, .. }));
}

#[test]
fn a_format_number_that_rotted_is_not_taken_for_a_newer_format() {
    let (disk, store, map) = store();
    put(&map, 1);
    store.close().unwrap();
    let disk = disk.kill();
    for bit in 0..32 {
        let rot = |disk: &SimDisk, page: usize| {
            let at = page * PAGE + 8 + bit / 8;
            let byte = disk.read_raw("data")[at];
            disk.write_raw("data", at as u64, &[byte ^ 1 << (bit % 8)]);
        };
        for page in META {
            let disk = disk.kill();
            rot(&disk, page);
            assert_eq!(found(&disk), [1], "bit {bit} of page {page}");
        }
        let disk = disk.kill();
        META.iter().for_each(|&page| rot(&disk, page));
        assert_damaged(&disk, "no intact meta page");
    }
}

#[test]
fn a_data_file_that_lost_its_end_is_damage() {
    let (disk, store, map) = store();
    (0..40).for_each(|number| put_large(&map, number));
    store.close().unwrap();
    let disk = disk.kill();
    let data = disk.platform().storage.open("data", OpenMode::Write).unwrap();
    let last_used = word(&disk.read_raw("data"), newest_meta(&disk) * PAGE + 96);
    data.set_len((last_used as u64 - 1) * PAGE as u64).unwrap();
    assert_damaged(&disk, "before its last used one");
}

#[test]
fn a_bitmap_that_rotted_is_damage() {
    let (disk, store, map) = store();
    put(&map, 1);
    store.close().unwrap();
    let disk = disk.kill();
    let bitmap = word(&disk.read_raw("data"), newest_meta(&disk) * PAGE + 84);
    flip(&disk, "data", bitmap as usize * PAGE + 3);
    assert_damaged(&disk, "wrong checksum");
}

#[test]
fn a_log_file_with_a_torn_header_is_not_used() {
    let (disk, store, map) = store();
    let number = fill_generations(&store, &map, 1);
    let disk = disk.kill();
    let (last_log, at) = record_of(&disk, number + 1);
    assert_eq!(at, PAGE);
    flip(&disk, &last_log, 33);
    assert_eq!(found(&disk), (0..number - 1).collect::<Vec<_>>());
}

#[test]
fn a_log_file_with_a_rotted_header_is_damage_when_its_records_know_what_was_synced() {
    let (disk, store, map) = store();
    put(&map, 0);
    store.sync().unwrap();
    put(&map, 1);
    let disk = disk.kill();
    let (log, _) = record_of(&disk, 3);
    flip(&disk, &log, 33);
    assert_damaged(&disk, "was synced");
}

#[test]
fn a_log_file_of_another_store_is_not_used() {
    let (other, _other_store, other_map) = {
        let disk = SimDisk::new(8);
        let store = small_options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        (disk, store, map)
    };
    put(&other_map, 99);
    let (disk, _store, _) = store();
    let disk = disk.kill();
    for name in logs(&disk) {
        disk.write_raw(&name, 0, &other.read_raw(&name));
    }
    assert!(found(&disk).is_empty());
}

#[test]
fn a_log_file_that_the_base_contains_is_not_read() {
    let (disk, store, map) = store();
    (0..3).for_each(|number| put(&map, number));
    store.maintain().unwrap();
    let disk = disk.kill();
    let (log, at) = record_of(&disk, 2);
    flip(&disk, &log, at + RECORD_HEADER);
    assert_eq!(found(&disk), [0, 1, 2]);
}

#[test]
fn records_after_the_base_are_replayed() {
    let (disk, store, map) = store();
    (0..3).for_each(|number| put(&map, number));
    store.maintain().unwrap();
    (3..6).for_each(|number| put(&map, number));
    assert_eq!(found(&disk.kill()), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn openings_that_write_nothing_leave_nothing_to_replay() {
    let (disk, _store, map) = store();
    put(&map, 1);
    let mut disk = disk.kill();
    for _ in 0..20 {
        let store = open(&disk).unwrap();
        assert!(store.stat().unwrap().generations.frozen <= 1);
        disk = disk.kill();
    }
    assert_eq!(found(&disk), [1]);
    assert!(logs(&disk).len() <= 4, "{:?}", logs(&disk));
}

#[test]
fn more_than_five_log_files_are_folded_before_the_store_opens() {
    let (disk, store, map) = store();
    let number = fill_generations(&store, &map, 5);
    let disk = disk.kill();
    let reopened = open(&disk).unwrap();
    let stat = reopened.stat().unwrap();
    assert_eq!((stat.base_commit, stat.generations.frozen), (number + 1, 0));
    drop(reopened);
    assert_eq!(found(&disk), (0..number).collect::<Vec<_>>());
}

#[test]
fn up_to_five_log_files_do_not_keep_the_store_closed() {
    let (disk, store, map) = store();
    let number = fill_generations(&store, &map, 4);
    let disk = disk.kill();
    let reopened = open(&disk).unwrap();
    assert_eq!(reopened.stat().unwrap().generations.frozen, 5);
    drop(reopened);
    assert_eq!(found(&disk), (0..number).collect::<Vec<_>>());
}

#[test]
fn a_program_that_crashes_whenever_it_has_started_does_not_pile_up_log_files() {
    let (disk, _store, _map) = store();
    let mut disk = disk.kill();
    for number in 0..30 {
        let store = open(&disk).unwrap();
        put(&store.map("map").unwrap(), number);
        disk = disk.kill();
        assert!(logs(&disk).len() <= 10, "{:?}", logs(&disk));
    }
    assert_eq!(found(&disk), (0..30).collect::<Vec<_>>());
}

#[test]
fn a_torn_record_that_was_not_synced_ends_the_log() {
    let (disk, _store, map) = store();
    (0..5).for_each(|number| put(&map, number));
    for commit in 2..=6 {
        for part in [9, RECORD_HEADER + 2] {
            let disk = disk.kill();
            let (log, at) = record_of(&disk, commit);
            flip(&disk, &log, at + part);
            assert_eq!(found(&disk), (0..commit - 2).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_record_that_does_not_continue_the_chain_ends_the_log() {
    let (disk, _store, map) = store();
    (0..2).for_each(|number| put(&map, number));
    let fork = |seed: u8| {
        let disk = disk.kill();
        let store = open(&disk).unwrap();
        let map = store.map("map").unwrap();
        map.put(2u64.to_be_bytes(), [seed; 7]).unwrap();
        put(&map, 3);
        disk.kill()
    };
    // The same epoch, the same generation, the same place: only the chain tells the records of two histories apart.
    let (one, other) = (fork(2), fork(1));
    let (log, at) = record_of(&one, 4);
    let record = &other.read_raw(&log)[at..at + RECORD_HEADER + 27];
    one.write_raw(&log, at as u64, record);
    let store = open(&one).unwrap();
    let map = store.map("map").unwrap();
    assert_eq!(map.get(2u64.to_be_bytes()).unwrap().unwrap(), [1; 7]);
    assert_eq!(map.count().unwrap(), 3);
}

#[test]
fn a_hole_below_what_a_later_record_says_was_synced_is_damage() {
    let (disk, store, map) = store();
    (0..3).for_each(|number| put(&map, number));
    store.sync().unwrap();
    put(&map, 3);
    for commit in 1..=4 {
        let disk = disk.kill();
        let (log, at) = record_of(&disk, commit);
        flip(&disk, &log, at + RECORD_HEADER + 2);
        assert_damaged(&disk, "was synced");
    }
}

#[test]
fn a_hole_below_what_a_later_log_file_says_was_synced_is_damage() {
    let (disk, store, map) = store();
    (0..2).for_each(|number| put_large(&map, number));
    store.sync().unwrap();
    let (first_log, at) = record_of(&disk, 3);
    let mut number = 2;
    while record_of(&disk, number + 1).0 == first_log {
        put_large(&map, number);
        number += 1;
    }
    let disk = disk.kill();
    let (second_log, _) = record_of(&disk, number + 1);
    // Only the header of the later file is left to claim anything.
    let rest = disk.read_raw(&second_log).len() - PAGE;
    disk.write_raw(&second_log, PAGE as u64, &vec![0; rest]);
    for (_, commit) in records(&disk, &first_log) {
        if commit > 3 {
            let (_, at) = record_of(&disk, commit);
            disk.write_raw(&first_log, at as u64, &[0; RECORD_HEADER]);
        }
    }
    flip(&disk, &first_log, at + RECORD_HEADER + 2);
    assert_damaged(&disk, "was synced");
}

#[test]
fn rot_in_synced_records_is_damage_while_any_intact_header_after_them_says_so() {
    let (disk, store, map) = store();
    (0..3).for_each(|number| put(&map, number));
    store.sync().unwrap();
    put(&map, 3);
    put(&map, 4);
    let disk = disk.kill();
    // The records after the sync are torn as well, but of the first one the header can still be read.
    for commit in [4, 5] {
        let (log, at) = record_of(&disk, commit);
        flip(&disk, &log, at + RECORD_HEADER + 2);
    }
    let (log, at) = record_of(&disk, 6);
    flip(&disk, &log, at + 9);
    assert_damaged(&disk, "was synced");
}

/// The length of a file, cut.
fn cut(disk: &SimDisk, file: &str, length: usize) {
    let file = disk.platform().storage.open(file, OpenMode::Write).unwrap();
    file.set_len(length as u64).unwrap();
}

#[test]
fn a_log_file_that_was_cut_off_is_damage_when_a_later_one_says_that_it_was_synced() {
    let (disk, store, map) = store();
    put_large(&map, 0);
    store.sync().unwrap();
    let (first_log, at) = record_of(&disk, 2);
    let mut number = 1;
    while record_of(&disk, number + 1).0 == first_log {
        put_large(&map, number);
        number += 1;
    }
    for length in [0, 100, PAGE, at, at + RECORD_HEADER, at + 1000] {
        let disk = disk.kill();
        cut(&disk, &first_log, length);
        assert_damaged(&disk, "was synced");
    }
}

/// What nobody can tell: nothing was written after the sync.
#[test]
fn a_log_whose_newest_synced_records_rotted_or_were_cut_off_ends_before_them() {
    let (disk, store, map) = store();
    (0..3).for_each(|number| put(&map, number));
    store.sync().unwrap();
    put(&map, 3);
    store.sync().unwrap();
    let disk = disk.kill();
    let (log, at) = record_of(&disk, 5);
    let rotted = disk.kill();
    flip(&rotted, &log, at + RECORD_HEADER + 2);
    assert_eq!(found(&rotted), [0, 1, 2]);
    for length in [at, at + 10, at + RECORD_HEADER + 1] {
        let disk = disk.kill();
        cut(&disk, &log, length);
        assert_eq!(found(&disk), [0, 1, 2]);
    }
    // Once they are folded the log is not needed, and the meta page says so.
    let folded = disk.kill();
    open(&folded).unwrap().maintain().unwrap();
    let folded = folded.kill();
    for log in logs(&folded) {
        cut(&folded, &log, 0);
    }
    assert_eq!(found(&folded), [0, 1, 2, 3]);
}

#[test]
fn a_log_file_after_an_unsynced_hole_is_not_used() {
    let (disk, store, map) = store();
    fill_generations(&store, &map, 2);
    let disk = disk.kill();
    let (first_log, at) = record_of(&disk, 2);
    flip(&disk, &first_log, at + 70);
    assert!(found(&disk).is_empty());
}

#[test]
fn a_lost_meta_page_that_a_record_knows_is_damage() {
    let (disk, store, map) = store();
    let mut before = Vec::new();
    for number in 0..4 {
        if number == 2 {
            before = disk.read_raw("data");
        }
        put(&map, number);
        store.maintain().unwrap();
    }
    put(&map, 4);
    let disk = disk.kill();
    lose_writes_of_newest_meta(&disk, &before);
    assert_damaged(&disk, "was durable");
}

/// A closed store whose newest meta page is not its first, with keys 0 to 2 in the base.
fn closed() -> SimDisk {
    let (disk, store, map) = store();
    for number in 0..3 {
        put(&map, number);
        store.maintain().unwrap();
    }
    store.close().unwrap();
    disk.kill()
}

/// The newest state, or a refusal; and salvage has the newest state or says what it lost.
fn assert_newest_or_refused(disk: &SimDisk, what: &str) -> bool {
    let opened = open(disk).and_then(|store| Ok(store.maps().get("map")?.map_or(0, |map| map.count().unwrap())));
    if let Ok(count) = opened {
        assert_eq!(count, 3, "{what}: an older state is served");
        return true;
    }
    let error = opened.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{what}: {error}");
    let salvage = small_options().create(false).salvage(true);
    // Without any meta page there is nothing to salvage.
    if let Ok(store) = salvage.open_on(disk.platform()) {
        let lost = Lost::new();
        store.snapshot().unwrap().salvage_maps(&lost).unwrap();
        let lost = lost.list();
        assert!(
            lost.iter().any(|line| line.contains("a newer state")),
            "{what}: salvage does not say that the newest meta page is lost: {lost:?}"
        );
    }
    false
}

fn damage(disk: &SimDisk, bytes: std::ops::Range<usize>) {
    let rubbish = vec![0xA5; bytes.len()];
    disk.write_raw("data", bytes.start as u64, &rubbish);
}

#[test]
fn a_lost_meta_page_that_no_log_knows_is_never_served_as_an_older_state() {
    let disk = closed();
    erase_newest_meta(&disk);
    assert!(!assert_newest_or_refused(&disk, "the newest one"));
    assert_damaged(&disk, "a newer state than number");
    assert_damaged(&disk, "duramen salvage");
}

#[test]
fn any_one_damaged_meta_page_leaves_the_newest_state_and_is_written_again() {
    let rest = closed();
    for page in META {
        let disk = rest.kill();
        damage(&disk, page * PAGE..(page + 1) * PAGE);
        assert!(assert_newest_or_refused(&disk, &format!("page {page}")));
        let store = open(&disk).unwrap();
        assert_eq!(store.check(&mut |_| ()).unwrap().problems, [""; 0]);
    }
}

#[test]
fn any_two_damaged_meta_pages_leave_the_newest_state_or_a_refusal() {
    let rest = closed();
    for (one, other) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
        let disk = rest.kill();
        for page in [META[one], META[other]] {
            damage(&disk, page * PAGE..(page + 1) * PAGE);
        }
        let opens = assert_newest_or_refused(&disk, &format!("meta pages {one} and {other}"));
        // Refused are those that are all copies of one sequence number.
        assert_eq!(opens, other - one != 2, "meta pages {one} and {other}");
    }
}

#[test]
fn damage_of_64_kib_anywhere_among_the_meta_pages_leaves_the_newest_state() {
    let rest = closed();
    for start in (0..META.len() * 16 * PAGE).step_by(512) {
        let disk = rest.kill();
        damage(&disk, start..start + (64 << 10));
        let pages = disk.read_raw("data").len() / PAGE;
        let is_beyond = start + (64 << 10) > 64 * PAGE;
        // Behind the meta pages it meets the base, too, which is found when it is read.
        let what = format!("64 KiB from byte {start} of {pages} pages");
        if !is_beyond {
            assert!(assert_newest_or_refused(&disk, &what));
        } else if let Ok(store) = open(&disk) {
            let read = store
                .maps()
                .get("map")
                .and_then(|map| map.expect("the newest state has it").count());
            assert!(
                read.is_err_and(|error| error.kind() == Kind::Damaged) || found(&disk).len() == 3,
                "{what}"
            );
        }
    }
}

#[test]
fn a_power_cut_at_any_moment_of_writing_meta_pages_leaves_a_store_that_opens() {
    let work = |disk: &SimDisk| -> Result<u64> {
        let store = open(disk)?;
        let map = store.map("map")?;
        let mut kept = 3;
        for number in 3..6u64 {
            map.put(number.to_be_bytes(), format!("value {number}").as_bytes())?;
            if store.maintain().is_err() {
                break;
            }
            kept = number + 1;
        }
        Ok(kept)
    };
    let rest = closed();
    let calls = {
        let disk = rest.kill();
        let before = disk.calls();
        work(&disk).unwrap();
        disk.calls() - before
    };
    for stop in 0..=calls {
        let disk = rest.kill();
        disk.stop_after(stop);
        let kept = work(&disk).unwrap_or(3);
        for seed in 0..4 {
            let cut = disk.power_cut(stop * 4 + seed);
            let keys = found(&cut);
            assert!(
                keys.len() as u64 >= kept,
                "stopped at call {stop}, seed {seed}: {keys:?} of {kept}"
            );
            let store = open(&cut).unwrap();
            assert_eq!(store.check(&mut |_| ()).unwrap().problems, [""; 0]);
        }
    }
}

#[test]
fn an_older_format_is_refused_by_its_number() {
    let disk = closed();
    for page in META {
        damage(&disk, page * PAGE..(page + 1) * PAGE);
    }
    let mut page = [0; PAGE];
    page[..8].copy_from_slice(b"DuramenD");
    disk.write_raw("data", 2 * PAGE as u64, &page);
    write_format(&disk, 2, 1);
    let error = error_of(&disk);
    assert!(
        matches!(error.reason(), Reason::OlderFormat { found: 1, supported: 6 }),
        "{error}"
    );
    assert!(error.to_string().contains("duramen dump"), "{error}");
}

#[test]
fn a_long_value_that_is_not_what_its_record_says_is_damage() {
    let (disk, _store, map) = store();
    let map = map.with_durability(Durability::Synced);
    map.put(b"long", vec![0xA5; 100_000]).unwrap();
    let disk = disk.kill();
    let data = disk.read_raw("data");
    let place = data.windows(64).position(|window| window == [0xA5; 64]).unwrap();
    flip(&disk, "data", place + 50_000);
    assert_eq!(error_of(&disk).kind(), Kind::Damaged);
}

/// Changes a byte of the long value that the data file holds, and says which.
fn break_long_value(disk: &SimDisk) -> usize {
    let data = disk.read_raw("data");
    let start = data.windows(64).position(|window| window == [0xA5; 64]).unwrap();
    flip(disk, "data", start + 50_000);
    start + 50_000
}

#[test]
fn a_written_long_value_that_a_power_cut_took_ends_the_log_for_ever() {
    let (disk, _store, map) = store();
    let map = map.with_durability(Durability::Written);
    put(&map, 0);
    map.put(b"long", vec![0xA5; 100_000]).unwrap();
    put(&map, 1);
    let disk = disk.kill();
    let place = break_long_value(&disk);
    let store = open(&disk).unwrap();
    let map = store.map("map").unwrap().with_durability(Durability::Written);
    assert_eq!(map.count().unwrap(), 1);
    put(&map, 2);
    // Before the store is dropped: closing would fold the log.
    let disk = disk.kill();
    // As if the same value had come to lie there once more: the record that was given up looks whole.
    flip(&disk, "data", place);
    assert_eq!(found(&disk), [0, 2]);
}

#[test]
fn a_written_long_value_that_is_gone_after_it_was_synced_is_damage() {
    let (disk, store, map) = store();
    let map = map.with_durability(Durability::Written);
    map.put(b"long", vec![0xA5; 100_000]).unwrap();
    store.sync().unwrap();
    // Its record says what was synced before.
    put(&map, 1);
    let disk = disk.kill();
    break_long_value(&disk);
    assert_eq!(error_of(&disk).kind(), Kind::Damaged);
}

#[test]
fn a_long_record_is_there_whole_or_not_at_all_wherever_it_stops() {
    let mut found = [0; 2];
    for calls in 0.. {
        let (disk, store, map) = store();
        let mut batch = Batch::new();
        for number in 0..900u64 {
            batch.put(&map, number.to_be_bytes(), [7; 1000]).unwrap();
        }
        disk.trace(true);
        disk.stop_after(calls);
        let written = store.write(batch).and_then(|_| store.sync());
        let trace = disk.take_trace();
        for disk in [disk.kill(), disk.power_cut(calls)] {
            let count = open(&disk).unwrap().map("map").unwrap().count().unwrap();
            assert!(count == 0 || count == 900, "{calls} calls: {count} pairs");
            assert!(
                written.is_err() || count == 900,
                "{calls} calls: what was synced is gone"
            );
            found[usize::from(count == 900)] += 1;
        }
        if written.is_ok() {
            // Its blocks were allocated, not filled with zeros first.
            assert!(trace.iter().any(|call| call.starts_with("allocate wal-")), "{trace:#?}");
            break;
        }
    }
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
}

#[test]
fn long_values_that_wait_for_a_sync_are_bounded() {
    let (disk, _store, map) = store();
    let map = map.with_durability(Durability::Written);
    let syncs_after = |values: u64| {
        disk.trace(true);
        for number in 0..values {
            map.put(number.to_be_bytes(), [0xA5; 1 << 20]).unwrap();
        }
        disk.take_trace().iter().filter(|call| *call == "sync data").count()
    };
    assert_eq!(syncs_after(8), 0);
    assert!(syncs_after(64) > 0, "64 MiB wait at most");
}

#[test]
fn a_sync_makes_long_values_durable_before_their_records() {
    let (disk, store, map) = store();
    let map = map.with_durability(Durability::Written);
    map.put(b"long", vec![0xA5; 100_000]).unwrap();
    store.sync().unwrap();
    for seed in 0..20 {
        let store = open(&disk.power_cut(seed)).unwrap();
        let map = store.map("map").unwrap();
        assert_eq!(
            map.get(b"long").unwrap().as_deref(),
            Some(&[0xA5; 100_000][..]),
            "seed {seed}"
        );
    }
}

#[test]
fn a_run_that_is_not_what_its_record_says_is_damage() {
    for durability in [Durability::Synced, Durability::Written] {
        let disk = killed_with_a_broken_run(durability);
        assert_eq!(error_of(&disk).kind(), Kind::Damaged);
    }
}

#[test]
fn a_run_is_synced_before_its_record_whatever_the_durability() {
    let (disk, store, map) = store();
    disk.trace(true);
    let options = TransactionOptions::new()
        .durability(Durability::Written)
        .memory_bytes(64 << 10);
    let mut tx = store.begin(options).unwrap();
    for number in 0..1000u64 {
        tx.put(&map, number.to_be_bytes(), [0x5A; 500]).unwrap();
    }
    tx.commit().unwrap();
    let trace = disk.take_trace();
    let place = |call: &str| trace.iter().rposition(|line| line.starts_with(call)).unwrap();
    assert!(place("sync data") > place("write data"), "{trace:#?}");
    assert!(place("sync data") < place("write wal-"), "{trace:#?}");
}

/// A store with one transaction, so large that it is a run, of which the data file holds something else than was written.
/// A page of an older tree would pass for one of the run: so whatever the durability, a run is synced before its record.
fn killed_with_a_broken_run(durability: Durability) -> SimDisk {
    let (disk, store, map) = store();
    let mut tx = store.begin(TransactionOptions::new().durability(durability)).unwrap();
    for number in 0..10_000u64 {
        tx.put(&map, number.to_be_bytes(), [0x5A; 2000]).unwrap();
    }
    tx.commit().unwrap();
    drop((map, store.snapshot()));
    let disk = disk.kill();
    assert_eq!(open(&disk.kill()).unwrap().map("map").unwrap().count().unwrap(), 10_000);
    let data = disk.read_raw("data");
    let place = data.windows(64).position(|window| window == [0x5A; 64]).unwrap();
    flip(&disk, "data", place);
    disk
}
