//! The guarantees of the traits, checked on the real machine and on the simulated disk alike.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duramen_io::{Access, LockMode, Mapping, OpenMode, Platform, SimDisk, real_platform, real_platform_read_only};

/// Makes one test of each claim for each machine.
macro_rules! claims {
    ($($claim:ident)*) => {
        mod real {
            $(#[test] fn $claim() {
                let directory = tempfile::tempdir().unwrap();
                super::$claim(&duramen_io::real_platform(directory.path()).unwrap());
            })*
        }
        mod simulated {
            $(#[test] fn $claim() {
                super::$claim(&duramen_io::SimDisk::new(1).platform());
            })*
        }
    };
}

claims! {
    written_bytes_are_read_back
    reading_past_the_end_is_an_error
    open_modes_decide_what_is_allowed
    names_are_listed_renamed_and_removed
    names_that_leave_the_directory_are_refused
    removed_file_stays_usable_while_open
    allocated_range_reads_as_zeros_and_takes_blocks
    allocation_keeps_what_was_written
    written_zeros_replace_bytes_and_extend
    cut_file_grows_back_as_zeros
    short_writes_one_behind_the_other_are_read_back
    mapping_sees_writes_and_growth
    preloading_changes_no_bytes_and_writes_go_on
    discarding_touches_nothing_beside_its_range
    mapping_outlives_the_file
    two_mappings_share_stores
    stores_through_a_mapping_are_read_back
    read_only_file_cannot_be_mapped_for_stores
    impossible_reservations_are_errors
    sleepers_are_woken_through_another_mapping
    locks_exclude_within_one_process
    dropped_lock_is_free
    locks_of_different_names_do_not_meet
    byte_locks_exclude_other_holders_and_whole_locks
    syncs_and_hints_succeed
    clock_does_not_go_back
    random_numbers_differ
}

/// Bytes `offset..offset + length` through a mapping.
fn mapped(mapping: &Mapping, offset: usize, length: usize) -> Vec<u8> {
    assert!(offset + length <= mapping.reserved());
    // SAFETY: tests ask only for bytes below the end of the file, and no thread or process writes meanwhile.
    unsafe { std::slice::from_raw_parts(mapping.base().wrapping_add(offset), length).to_vec() }
}

/// The word at `offset` of a mapping.
fn word(mapping: &Mapping, offset: usize) -> &AtomicU32 {
    assert!(offset.is_multiple_of(4) && offset + 4 <= mapping.reserved());
    // SAFETY: aligned, inside the file in all tests, and only accessed as an atomic.
    unsafe { &*mapping.base().wrapping_add(offset).cast::<AtomicU32>() }
}

fn read(platform: &Platform, name: &str) -> Vec<u8> {
    let file = platform.storage.open(name, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn written_bytes_are_read_back(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    assert_eq!(file.len().unwrap(), 0);
    file.write_at(b"hello", 3).unwrap();
    file.write_at(b"", 100).unwrap();
    assert_eq!(file.len().unwrap(), 8);
    assert_eq!(read(platform, "a"), b"\0\0\0hello");
    let long: Vec<u8> = (0..100_000).map(|index| (index % 251) as u8).collect();
    file.write_at(&long, 4000).unwrap();
    assert_eq!(&read(platform, "a")[4000..], long);
}

fn reading_past_the_end_is_an_error(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.write_at(&[7; 10], 0).unwrap();
    let mut buffer = [0; 4];
    file.read_at(&mut buffer, 6).unwrap();
    file.read_at(&mut [], 50).unwrap();
    for offset in [7, 10, 11, 1 << 30] {
        assert_eq!(
            file.read_at(&mut buffer, offset).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
    }
}

fn open_modes_decide_what_is_allowed(platform: &Platform) {
    let storage = &platform.storage;
    for mode in [OpenMode::Read, OpenMode::Write] {
        assert_eq!(storage.open("a", mode).unwrap_err().kind(), ErrorKind::NotFound);
    }
    storage
        .open("a", OpenMode::Create)
        .unwrap()
        .write_at(b"kept", 0)
        .unwrap();
    storage.open("a", OpenMode::Create).unwrap();
    storage.open("a", OpenMode::Write).unwrap().write_at(b"K", 0).unwrap();
    let file = storage.open("a", OpenMode::Read).unwrap();
    assert_eq!(file.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(file.write_zeros(0, 1).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(file.allocate(0, 1).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(file.set_len(0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(read(platform, "a"), b"Kept");
}

fn names_are_listed_renamed_and_removed(platform: &Platform) {
    let storage = &platform.storage;
    assert!(storage.list().unwrap().is_empty());
    for name in ["a", "b", "c"] {
        storage
            .open(name, OpenMode::Create)
            .unwrap()
            .write_at(name.as_bytes(), 0)
            .unwrap();
    }
    storage.rename("a", "b").unwrap();
    storage.rename("c", "c").unwrap();
    storage.rename("c", "d").unwrap();
    let mut names = storage.list().unwrap();
    names.sort();
    assert_eq!(names, ["b", "d"]);
    assert_eq!(
        (read(platform, "b"), read(platform, "d")),
        (b"a".to_vec(), b"c".to_vec())
    );
    storage.remove("b").unwrap();
    assert_eq!(storage.list().unwrap(), ["d"]);
    assert_eq!(storage.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(storage.rename("b", "d").unwrap_err().kind(), ErrorKind::NotFound);
}

fn names_that_leave_the_directory_are_refused(platform: &Platform) {
    let storage = &platform.storage;
    for name in ["", ".", "..", "../a", "/a", "a/b", "a\0"] {
        assert_eq!(
            storage.open(name, OpenMode::Create).unwrap_err().kind(),
            ErrorKind::InvalidInput,
            "{name:?}"
        );
        assert_eq!(storage.remove(name).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(storage.rename(name, "a").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(
            storage.lock(name, LockMode::Shared).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}

fn removed_file_stays_usable_while_open(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.write_at(b"one", 0).unwrap();
    platform.storage.remove("a").unwrap();
    platform.storage.sync().unwrap();
    platform
        .storage
        .open("a", OpenMode::Create)
        .unwrap()
        .write_at(b"other", 0)
        .unwrap();
    file.write_at(b"O", 0).unwrap();
    let mut bytes = [0; 3];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!((&bytes, read(platform, "a")), (b"One", b"other".to_vec()));
}

fn allocated_range_reads_as_zeros_and_takes_blocks(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.allocate(0, 0).unwrap();
    assert_eq!((file.len().unwrap(), file.allocated_bytes().unwrap()), (0, 0));
    file.allocate(8192, 65536).unwrap();
    assert_eq!(file.len().unwrap(), 8192 + 65536);
    let allocated = file.allocated_bytes().unwrap();
    assert!((65536..65536 + 8192).contains(&allocated), "{allocated}");
    assert!(read(platform, "a").iter().all(|byte| *byte == 0));
    file.set_len(1 << 20).unwrap();
    assert!(file.allocated_bytes().unwrap() < 1 << 20);
    file.set_len(0).unwrap();
    assert_eq!(file.allocated_bytes().unwrap(), 0);
}

fn allocation_keeps_what_was_written(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.write_at(&[9; 5000], 0).unwrap();
    file.allocate(0, 3000).unwrap();
    assert_eq!(file.len().unwrap(), 5000);
    file.allocate(0, 20_000).unwrap();
    let bytes = read(platform, "a");
    assert_eq!(bytes.len(), 20_000);
    assert!(
        bytes
            .iter()
            .enumerate()
            .all(|(index, byte)| *byte == if index < 5000 { 9 } else { 0 })
    );
}

fn written_zeros_replace_bytes_and_extend(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.write_at(&[9; 100_000], 0).unwrap();
    file.write_zeros(1000, 50_000).unwrap();
    file.write_zeros(99_000, 40_000).unwrap();
    let bytes = read(platform, "a");
    assert_eq!(bytes.len(), 139_000);
    for (index, byte) in bytes.iter().enumerate() {
        let is_nine = index < 1000 || (51_000..99_000).contains(&index);
        assert_eq!(*byte, if is_nine { 9 } else { 0 }, "at {index}");
    }
}

fn cut_file_grows_back_as_zeros(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.write_at(&[9; 10_000], 0).unwrap();
    let mapping = file.map(1 << 20, Access::Read).unwrap();
    file.set_len(100).unwrap();
    assert_eq!(read(platform, "a"), [9; 100]);
    file.set_len(10_000).unwrap();
    let bytes = read(platform, "a");
    assert!(
        bytes
            .iter()
            .enumerate()
            .all(|(index, byte)| *byte == if index < 100 { 9 } else { 0 })
    );
    assert_eq!(mapped(&mapping, 0, 10_000), bytes);
}

fn short_writes_one_behind_the_other_are_read_back(machine: &Platform) {
    const LENGTH: u64 = 3 << 20;
    let open = || machine.storage.open("file", OpenMode::Create).unwrap();
    let (one, other) = (open(), open());
    one.write_zeros(0, LENGTH).unwrap();
    let mapping = one.map(LENGTH, Access::Read).unwrap();
    let mut expected = vec![0; LENGTH as usize];
    let mut end = 0;
    for number in 0_usize.. {
        // Words and bytes, longer than a page now and then, with gaps, through one handle and the other.
        let length = [8, 152, 16, 304, 7, 1, 4096, 5000, 80][number % 9];
        let bytes = vec![1 + (number % 255) as u8; length];
        if end + length > expected.len() {
            break;
        }
        let file = if number % 50 < 30 { &one } else { &other };
        file.store_at(&bytes, end as u64).unwrap();
        expected[end..end + length].copy_from_slice(&bytes);
        end += length + (number % 11 == 0) as usize * 600;
    }
    assert!(mapped(&mapping, 0, expected.len()) == expected);
    let mut found = vec![0; expected.len()];
    other.read_at(&mut found, 0).unwrap();
    assert!(found == expected);
    one.sync_data().unwrap();
    // Cut and filled again, like a reused log file.
    one.set_len(0).unwrap();
    one.write_zeros(0, LENGTH).unwrap();
    one.store_at(&[9; 8], 0).unwrap();
    one.store_at(&[8; 8], 8).unwrap();
    assert_eq!(mapped(&mapping, 0, 24), [[9; 8], [8; 8], [0; 8]].concat());
    drop((one, other));
    assert_eq!(mapped(&mapping, 0, 8), [9; 8]);
}

fn mapping_sees_writes_and_growth(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    let mapping = file.map(5 << 20, Access::Read).unwrap();
    assert_eq!(mapping.base() as usize % (2 << 20), 0);
    assert_eq!(mapping.reserved(), 6 << 20);
    file.write_at(b"first", 0).unwrap();
    assert_eq!(mapped(&mapping, 0, 5), b"first");
    file.write_at(b"second", 3 << 20).unwrap();
    assert_eq!(mapped(&mapping, 3 << 20, 6), b"second");
    assert_eq!(mapped(&mapping, 1 << 20, 4), [0; 4]);
    let other = platform.storage.open("a", OpenMode::Write).unwrap();
    other.write_at(b"FI", 0).unwrap();
    assert_eq!(mapped(&mapping, 0, 5), b"FIrst");

    // Far beyond what the simulated disk reserves at first, while the small mapping stays in use.
    let large = file.map(1 << 30, Access::Read).unwrap();
    assert_eq!(mapped(&large, 0, 5), b"FIrst");
    file.write_at(b"both", 8).unwrap();
    file.write_at(b"far", 900 << 20).unwrap();
    assert_eq!(mapped(&large, 900 << 20, 3), b"far");
    assert_eq!(mapped(&mapping, 8, 4), b"both");
    assert_eq!(mapped(&large, 8, 4), b"both");
}

fn preloading_changes_no_bytes_and_writes_go_on(platform: &Platform) {
    let file = platform.storage.open("data", OpenMode::Create).unwrap();
    file.write_at(b"before", 3 << 20).unwrap();
    file.allocate(0, 9 << 20).unwrap();
    file.preload_in_large_pieces(1 << 20, 8 << 20);
    let mapping = file.map(16 << 20, Access::Read).unwrap();
    assert_eq!(mapped(&mapping, 3 << 20, 7), b"before\0");
    assert!(mapped(&mapping, 4 << 20, 5 << 20).iter().all(|&byte| byte == 0));
    file.write_at(b"behind", (6 << 20) - 3).unwrap();
    assert_eq!(mapped(&mapping, (6 << 20) - 4, 8), b"\0behind\0");
    // A range without a whole piece, a range beyond the end, and an empty range.
    file.preload_in_large_pieces(4096, 8192);
    file.preload_in_large_pieces(8 << 20, 64 << 20);
    file.preload_in_large_pieces(0, 0);
    assert_eq!(file.len().unwrap(), 9 << 20);
}

fn discarding_touches_nothing_beside_its_range(platform: &Platform) {
    let file = platform.storage.open("data", OpenMode::Create).unwrap();
    file.write_at(&[7; 3 * 65_536], 0).unwrap();
    file.discard(65_536, 65_536);
    file.discard(0, 0);
    let bytes = read(platform, "data");
    assert_eq!(bytes.len(), 3 * 65_536);
    assert!(
        bytes[..65_536]
            .iter()
            .chain(&bytes[2 * 65_536..])
            .all(|&byte| byte == 7)
    );
    let middle = &bytes[65_536..2 * 65_536];
    assert!(middle.iter().all(|&byte| byte == 0) || middle.iter().all(|&byte| byte == 7));
    file.allocate(65_536, 65_536).unwrap();
    file.write_at(&[8; 65_536], 65_536).unwrap();
    assert!(read(platform, "data")[65_536..2 * 65_536].iter().all(|&byte| byte == 8));
}

fn mapping_outlives_the_file(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.write_at(b"still here", 0).unwrap();
    let mapping = file.map(4096, Access::Read).unwrap();
    drop(file);
    platform.storage.remove("a").unwrap();
    platform.storage.sync().unwrap();
    assert_eq!(mapped(&mapping, 0, 10), b"still here");
}

fn two_mappings_share_stores(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.set_len(4096).unwrap();
    let one = file.map(4096, Access::ReadWrite).unwrap();
    let two = platform
        .storage
        .open("a", OpenMode::Write)
        .unwrap()
        .map(8192, Access::ReadWrite)
        .unwrap();
    word(&one, 8).store(77, Ordering::SeqCst);
    assert_eq!(word(&two, 8).fetch_add(1, Ordering::SeqCst), 77);
    assert_eq!(word(&one, 8).load(Ordering::SeqCst), 78);
}

fn stores_through_a_mapping_are_read_back(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.allocate(0, 8192).unwrap();
    let mapping = file.map(8192, Access::ReadWrite).unwrap();
    word(&mapping, 4096).store(0x0403_0201, Ordering::SeqCst);
    assert_eq!(read(platform, "a")[4096..4100], [1, 2, 3, 4]);
    file.write_at(&[5], 4096).unwrap();
    assert_eq!(word(&mapping, 4096).load(Ordering::SeqCst), 0x0403_0205);
}

fn read_only_file_cannot_be_mapped_for_stores(platform: &Platform) {
    platform
        .storage
        .open("a", OpenMode::Create)
        .unwrap()
        .write_at(b"x", 0)
        .unwrap();
    let file = platform.storage.open("a", OpenMode::Read).unwrap();
    assert_eq!(
        file.map(4096, Access::ReadWrite).unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    assert_eq!(mapped(&file.map(4096, Access::Read).unwrap(), 0, 1), b"x");
}

fn impossible_reservations_are_errors(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    assert_eq!(file.map(0, Access::Read).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(
        file.map(1 << 60, Access::Read).unwrap_err().kind(),
        ErrorKind::OutOfMemory
    );
}

fn sleepers_are_woken_through_another_mapping(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.allocate(0, 4096).unwrap();
    let (one, two) = (
        file.map(4096, Access::ReadWrite).unwrap(),
        file.map(4096, Access::ReadWrite).unwrap(),
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while word(&one, 0).load(Ordering::SeqCst) == 0 {
                let patience = Some(Duration::from_secs(30));
                assert!(duramen_io::wait(word(&one, 0), 0, patience), "nobody woke us");
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        word(&two, 0).store(1, Ordering::SeqCst);
        duramen_io::wake(word(&two, 0), 1);
    });
}

fn locks_exclude_within_one_process(platform: &Platform) {
    let storage = &platform.storage;
    let lock = |mode| storage.lock("lock", mode).unwrap();
    let exclusive = lock(LockMode::Exclusive).unwrap();
    assert!(lock(LockMode::Exclusive).is_none());
    assert!(lock(LockMode::Shared).is_none());
    drop(exclusive);
    let (first, second) = (lock(LockMode::Shared).unwrap(), lock(LockMode::Shared).unwrap());
    assert!(lock(LockMode::Exclusive).is_none());
    drop(first);
    assert!(lock(LockMode::Exclusive).is_none());
    drop(second);
    assert!(lock(LockMode::Exclusive).is_some());
}

fn dropped_lock_is_free(platform: &Platform) {
    for _ in 0..3 {
        assert!(platform.storage.lock("lock", LockMode::Exclusive).unwrap().is_some());
    }
    assert_eq!(platform.storage.list().unwrap(), ["lock"]);
}

fn locks_of_different_names_do_not_meet(platform: &Platform) {
    let _one = platform.storage.lock("one", LockMode::Exclusive).unwrap().unwrap();
    let _two = platform.storage.lock("two", LockMode::Exclusive).unwrap().unwrap();
}

fn syncs_and_hints_succeed(platform: &Platform) {
    let file = platform.storage.open("a", OpenMode::Create).unwrap();
    file.write_at(&[1; 10_000], 0).unwrap();
    file.start_writeback(0, 10_000);
    file.start_writeback(u64::MAX, u64::MAX);
    file.sync_data().unwrap();
    platform.storage.sync().unwrap();
    assert!(platform.storage.path().is_absolute());
}

fn clock_does_not_go_back(platform: &Platform) {
    let mut last = platform.clock.monotonic();
    for _ in 0..10_000 {
        let now = platform.clock.monotonic();
        assert!(now >= last);
        last = now;
    }
    assert!(platform.clock.wall() > Duration::from_secs(1_600_000_000));
}

fn random_numbers_differ(platform: &Platform) {
    let numbers: std::collections::BTreeSet<u64> = (0..1000).map(|_| platform.random.next_u64()).collect();
    assert_eq!(numbers.len(), 1000);
}

#[test]
fn created_directory_may_exist_but_its_parent_must() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("store");
    assert_eq!(real_platform(&path).unwrap_err().kind(), ErrorKind::NotFound);
    duramen_io::create_directory(&path).unwrap();
    duramen_io::create_directory(&path).unwrap();
    real_platform(&path).unwrap();
    let orphan = parent.path().join("missing/store");
    assert_eq!(
        duramen_io::create_directory(&orphan).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    std::fs::write(parent.path().join("file"), "").unwrap();
    let taken = parent.path().join("file");
    assert_eq!(
        duramen_io::create_directory(&taken).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(real_platform(&taken).unwrap_err().kind(), ErrorKind::NotADirectory);
}

#[test]
fn read_only_platform_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let writer = real_platform(directory.path()).unwrap();
    writer
        .storage
        .open("a", OpenMode::Create)
        .unwrap()
        .write_at(b"kept", 0)
        .unwrap();
    let reader = real_platform_read_only(directory.path()).unwrap().storage;
    let read_only = ErrorKind::ReadOnlyFilesystem;
    assert_eq!(reader.open("a", OpenMode::Write).unwrap_err().kind(), read_only);
    assert_eq!(reader.open("b", OpenMode::Create).unwrap_err().kind(), read_only);
    assert_eq!(reader.remove("a").unwrap_err().kind(), read_only);
    assert_eq!(reader.rename("a", "b").unwrap_err().kind(), read_only);
    assert_eq!(reader.lock("a", LockMode::Exclusive).unwrap_err().kind(), read_only);
    assert_eq!(
        reader.lock("b", LockMode::Shared).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let shared = reader.lock("a", LockMode::Shared).unwrap().unwrap();
    assert!(writer.storage.lock("a", LockMode::Exclusive).unwrap().is_none());
    drop(shared);
    assert!(writer.storage.lock("a", LockMode::Exclusive).unwrap().is_some());
    assert_eq!(read(&writer, "a"), b"kept");
}

#[test]
fn real_full_disk_is_a_storage_full_error() {
    // The only file on every Linux where writing finds no space.
    let devices = real_platform(std::path::Path::new("/dev")).unwrap();
    let full = devices.storage.open("full", OpenMode::Write).unwrap();
    let error = full.write_at(b"x", 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(error.to_string().contains("write full"), "{error}");
}

#[test]
fn lock_of_another_process_excludes_and_ends_with_it() {
    const DIRECTORY: &str = "DURAMEN_TEST_LOCK_DIRECTORY";
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        // This code runs in the other process.
        let storage = real_platform(directory.as_ref()).unwrap().storage;
        let _lock = storage.lock("lock", LockMode::Exclusive).unwrap().unwrap();
        storage.open("held", OpenMode::Create).unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }
    let directory = tempfile::tempdir().unwrap();
    let storage = real_platform(directory.path()).unwrap().storage;
    let mut holder = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lock_of_another_process_excludes_and_ends_with_it"])
        .env(DIRECTORY, directory.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while storage.open("held", OpenMode::Read).is_err() {
        assert!(holder.try_wait().unwrap().is_none(), "the other process ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = storage.lock("lock", LockMode::Shared).unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(refused.is_none());
    assert!(storage.lock("lock", LockMode::Exclusive).unwrap().is_some());
}

#[test]
fn simulated_clock_stands_still_until_advanced() {
    let disk = SimDisk::new(1);
    let clock = disk.platform().clock;
    let (monotonic, wall) = (clock.monotonic(), clock.wall());
    assert_eq!((clock.monotonic(), clock.wall()), (monotonic, wall));
    disk.clone().advance(Duration::from_millis(1500));
    assert_eq!(clock.monotonic(), monotonic + Duration::from_millis(1500));
    assert_eq!(clock.wall(), wall + Duration::from_millis(1500));
    assert_eq!(disk.kill().platform().clock.monotonic(), clock.monotonic());
    let restarted = disk.power_cut(1).platform().clock;
    assert!(
        restarted.monotonic() < clock.monotonic(),
        "the monotonic clock begins anew with the machine"
    );
    assert_eq!(restarted.wall(), clock.wall());
}

fn byte_locks_exclude_other_holders_and_whole_locks(platform: &Platform) {
    let storage = &platform.storage;
    let (one, two) = (storage.byte_locks("lock").unwrap(), storage.byte_locks("lock").unwrap());
    assert!(one.take(0).unwrap() && one.take(70).unwrap());
    assert!(one.take(70).unwrap(), "who has it may ask again");
    assert!(!two.take(70).unwrap() && two.take(71).unwrap());
    assert!(two.is_taken(70).unwrap() && one.is_taken(71).unwrap());
    assert!(!one.is_taken(70).unwrap(), "by another holder, that is");
    assert!(!one.is_taken(72).unwrap());
    for mode in [LockMode::Shared, LockMode::Exclusive] {
        assert!(storage.lock("lock", mode).unwrap().is_none());
    }
    one.release(70).unwrap();
    assert!(two.take(70).unwrap() && !one.take(70).unwrap());
    drop(two);
    assert!(one.take(71).unwrap() && !one.is_taken(70).unwrap());
    drop(one);
    let whole = storage.lock("lock", LockMode::Shared).unwrap().unwrap();
    let three = storage.byte_locks("lock").unwrap();
    assert!(!three.take(0).unwrap() && three.is_taken(70).unwrap());
    drop(whole);
    assert!(three.take(0).unwrap());
}

/// Forks. The child sleeps, once it can tell that it is a child, until it is killed. Returns the child's PID.
fn fork_sleeper() -> libc::pid_t {
    let before = duramen_io::forks();
    // SAFETY: the child only compares numbers, sleeps and leaves, which is allowed in a child of a program with
    // threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_counted = duramen_io::forks() == before + 1;
        // SAFETY: a signal handler may make this call, so a fork may as well.
        unsafe { libc::sleep(if is_counted { 60 } else { 0 }) };
        // SAFETY: as for the other call.
        unsafe { libc::_exit(1) };
    }
    assert!(child > 0 && duramen_io::forks() == before);
    child
}

#[test]
fn parent_that_dies_lets_go_of_its_locks_while_its_forked_child_lives() {
    let directory = tempfile::tempdir().unwrap();
    let storage = real_platform(directory.path()).unwrap().storage;
    let observer = storage.byte_locks("bytes").unwrap();
    let whole = || storage.lock("whole", LockMode::Exclusive).unwrap();
    let word = duramen_io::memory_file().unwrap();
    word.allocate(0, 4096).unwrap();
    let shared = word.map(4096, Access::ReadWrite).unwrap();
    // SAFETY: the child makes calls that take memory, which the C library allows a child of a program with threads.
    let parent = unsafe { libc::fork() };
    if parent == 0 {
        let locks = (whole().unwrap(), storage.byte_locks("bytes").unwrap());
        assert!(locks.1.take(7).unwrap());
        self::word(&shared, 0).store(fork_sleeper() as u32, Ordering::SeqCst);
        // SAFETY: like a kill, this runs no destructors.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the PID of our own child.
    assert_eq!(unsafe { libc::waitpid(parent, &mut status, 0) }, parent);
    assert_eq!(status, 0);
    let child = self::word(&shared, 0).load(Ordering::SeqCst) as libc::pid_t;
    // SAFETY: the PID of its child, which sleeps until it is killed.
    assert_eq!(unsafe { libc::kill(child, 0) }, 0, "the child did not count the fork");
    let is_free = || !observer.is_taken(7).unwrap() && whole().is_some();
    // The child may not have run at all yet.
    let were_freed = (0..1000).any(|_| {
        let is_free = is_free();
        if !is_free {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        is_free
    });
    // SAFETY: the child still sleeps.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(were_freed, "the child keeps the locks");
}
