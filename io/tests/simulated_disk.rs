//! What the simulated disk does and a real disk rarely does: power cuts, deaths, failures, full disks, lies.
//!
//! Random tests print their seed when they fail; DURAMEN_SEED=n replays that one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use duramen_io::{Access, FailKind, FailSpan, File, LockMode, OpenMode, SimDisk};
use fastrand::Rng;

/// The seeds to try: the whole range, or the requested seed.
fn seeds(range: Range<u64>) -> Vec<u64> {
    match std::env::var("DURAMEN_SEED") {
        Ok(seed) => vec![seed.parse().expect("DURAMEN_SEED is a number")],
        Err(_) => range.collect(),
    }
}

/// A disk whose power cuts leave old bytes, new bytes and mixes of both, and destroy nothing.
fn old_and_new_bytes_only(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.tear_units(false);
    disk
}

fn create(disk: &SimDisk, name: &str) -> Arc<dyn File> {
    disk.platform().storage.open(name, OpenMode::Create).unwrap()
}

/// A disk with one file whose name and bytes are durable.
fn disk_with(name: &str, bytes: &[u8]) -> (SimDisk, Arc<dyn File>) {
    let disk = old_and_new_bytes_only(1);
    let file = create(&disk, name);
    file.write_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    disk.platform().storage.sync().unwrap();
    (disk, file)
}

/// All contents of a file after many power cuts now.
fn outcomes(disk: &SimDisk, name: &str) -> BTreeSet<Vec<u8>> {
    (0..500).map(|seed| disk.power_cut(seed).read_raw(name)).collect()
}

fn is_stopped(error: std::io::Error) -> bool {
    error.to_string() == "stopped"
}

/// What a file held at each moment since its last sync.
#[derive(Debug, Default, Clone)]
struct Oracle {
    moments: Vec<Vec<u8>>,
}

impl Oracle {
    fn now(&self) -> Vec<u8> {
        self.moments.last().cloned().unwrap_or_default()
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.now();
        change(&mut bytes);
        self.moments.push(bytes);
    }

    fn sync(&mut self) {
        self.moments = vec![self.now()];
    }

    /// Asserts that every byte is from some moment, and that the length is from some moment.
    fn check(&self, bytes: &[u8], context: &str) {
        let lengths: Vec<usize> = self.moments.iter().map(Vec::len).collect();
        assert!(
            lengths.contains(&bytes.len()),
            "length {} is none of {lengths:?} ({context})",
            bytes.len()
        );
        for (index, byte) in bytes.iter().enumerate() {
            let known = self
                .moments
                .iter()
                .any(|moment| moment.get(index).copied().unwrap_or(0) == *byte);
            assert!(known, "byte {byte} at {index} was never there ({context})");
        }
    }
}

/// Makes one random change to a file, and to its oracle. Sizes are such that several changes meet in a sector.
fn random_change(random: &mut Rng, file: &dyn File, oracle: &mut Oracle) {
    let offset = random.usize(..3000);
    let length = random.usize(1..1500);
    match random.u8(..10) {
        0..6 => {
            let bytes = vec![random.u8(1..); length];
            file.write_at(&bytes, offset as u64).unwrap();
            oracle.change(|content| {
                content.resize(content.len().max(offset + length), 0);
                content[offset..offset + length].copy_from_slice(&bytes);
            });
        }
        6 => {
            file.write_zeros(offset as u64, length as u64).unwrap();
            oracle.change(|content| {
                content.resize(content.len().max(offset + length), 0);
                content[offset..offset + length].fill(0);
            });
        }
        7 => {
            file.allocate(offset as u64, length as u64).unwrap();
            oracle.change(|content| content.resize(content.len().max(offset + length), 0));
        }
        8 => {
            file.set_len(offset as u64).unwrap();
            oracle.change(|content| content.resize(offset, 0));
        }
        _ => {
            file.sync_data().unwrap();
            oracle.sync();
        }
    }
}

#[test]
fn synced_bytes_survive_every_power_cut() {
    for seed in seeds(0..60) {
        let mut random = Rng::with_seed(seed);
        let disk = old_and_new_bytes_only(seed);
        let names = ["a", "b", "c"];
        let files: Vec<_> = names.iter().map(|name| create(&disk, name)).collect();
        disk.platform().storage.sync().unwrap();
        let mut oracles = vec![
            Oracle {
                moments: vec![Vec::new()]
            };
            3
        ];
        for step in 0..60 {
            let which = random.usize(..3);
            random_change(&mut random, &*files[which], &mut oracles[which]);
            for cut in 0..4 {
                let after = disk.power_cut(seed * 1000 + step * 4 + cut);
                for (name, oracle) in names.iter().zip(&oracles) {
                    oracle.check(
                        &after.read_raw(name),
                        &format!("DURAMEN_SEED={seed} step {step} cut {cut} file {name}"),
                    );
                }
            }
            for (name, oracle) in names.iter().zip(&oracles) {
                assert_eq!(disk.read_raw(name), oracle.now(), "DURAMEN_SEED={seed} step {step}");
            }
        }
    }
}

#[test]
fn power_cut_after_kill_loses_no_more_and_no_less() {
    for seed in seeds(0..30) {
        let mut random = Rng::with_seed(seed);
        let mut disk = old_and_new_bytes_only(seed);
        let mut oracle = Oracle {
            moments: vec![Vec::new()],
        };
        create(&disk, "a");
        disk.platform().storage.sync().unwrap();
        for step in 0..40 {
            let file = create(&disk, "a");
            random_change(&mut random, &*file, &mut oracle);
            disk = disk.kill();
            assert_eq!(disk.read_raw("a"), oracle.now());
            oracle.check(
                &disk.power_cut(seed + step).read_raw("a"),
                &format!("DURAMEN_SEED={seed} step {step}"),
            );
        }
    }
}

#[test]
fn power_cuts_are_the_same_for_the_same_seed() {
    let (disk, file) = disk_with("a", &[1; 4096]);
    for index in 0..20 {
        file.write_at(&[index + 2; 700], u64::from(index) * 150).unwrap();
    }
    for seed in 0..50 {
        assert_eq!(disk.power_cut(seed).read_raw("a"), disk.power_cut(seed).read_raw("a"));
    }
}

#[test]
fn unsynced_sectors_may_survive_in_any_combination() {
    let (disk, file) = disk_with("a", &[0; 1536]);
    for sector in 0..3 {
        file.write_at(&[1; 512], sector * 512).unwrap();
    }
    let whole: BTreeSet<Vec<u8>> = outcomes(&disk, "a")
        .into_iter()
        .filter(|bytes| {
            bytes
                .chunks(512)
                .all(|sector| sector.iter().all(|byte| *byte == sector[0]))
        })
        .map(|bytes| bytes.into_iter().step_by(512).collect())
        .collect();
    assert_eq!(whole.len(), 8, "{whole:?}");
}

#[test]
fn unsynced_sector_may_be_torn_at_any_byte() {
    let (disk, file) = disk_with("a", &[0; 512]);
    file.write_at(&[1; 512], 0).unwrap();
    let mut tears = BTreeSet::new();
    for bytes in (0..20_000).map(|seed| disk.power_cut(seed).read_raw("a")) {
        let tear = bytes.iter().position(|byte| *byte == 0).unwrap_or(512);
        assert!(
            bytes[tear..].iter().all(|byte| *byte == 0),
            "new bytes must come before old ones"
        );
        tears.insert(tear);
    }
    assert_eq!(tears.len(), 513);
}

#[test]
fn every_version_of_an_unsynced_sector_may_survive() {
    let (disk, file) = disk_with("a", &[0; 512]);
    for version in 1..5 {
        file.write_at(&[version; 512], 0).unwrap();
    }
    let whole: BTreeSet<u8> = outcomes(&disk, "a")
        .iter()
        .filter(|bytes| bytes.iter().all(|byte| *byte == bytes[0]))
        .map(|bytes| bytes[0])
        .collect();
    assert_eq!(whole, BTreeSet::from([0, 1, 2, 3, 4]));
}

#[test]
fn newest_write_may_survive_alone() {
    let disk = old_and_new_bytes_only(1);
    let (log, data) = (create(&disk, "log"), create(&disk, "data"));
    for file in [&log, &data] {
        file.write_zeros(0, 8192).unwrap();
        file.sync_data().unwrap();
    }
    disk.platform().storage.sync().unwrap();
    for index in 0..16 {
        log.write_at(&[1; 512], index * 512).unwrap();
    }
    data.write_at(&[2; 512], 4096).unwrap();
    let is_alone = |seed| {
        let after = disk.power_cut(seed);
        after.read_raw("log").iter().all(|byte| *byte == 0) && after.read_raw("data").contains(&2)
    };
    assert!((0..500).any(is_alone));
}

#[test]
fn unsynced_extension_reads_as_zeros_or_is_gone() {
    let (disk, file) = disk_with("a", &[1; 100]);
    file.write_at(&[2; 1024], 1024).unwrap();
    let mut seen = BTreeSet::new();
    for bytes in outcomes(&disk, "a") {
        assert_eq!(bytes[..100], [1; 100]);
        assert!(bytes.len() == 100 || bytes.len() == 2048);
        assert!(bytes[100..].iter().take(924).all(|byte| *byte == 0));
        seen.insert((bytes.len(), bytes.contains(&2)));
    }
    assert_eq!(seen, BTreeSet::from([(100, false), (2048, false), (2048, true)]));
}

#[test]
fn surviving_truncation_never_shows_old_bytes() {
    let (disk, file) = disk_with("a", &[1; 4096]);
    file.set_len(700).unwrap();
    file.write_at(&[2; 512], 3072).unwrap();
    let mut lengths = BTreeSet::new();
    for bytes in outcomes(&disk, "a") {
        lengths.insert(bytes.len());
        assert!(bytes[..700].iter().all(|byte| *byte == 1));
        match bytes.len() {
            // The truncation did not survive, so nothing after it did. The file system may have begun by zeroing the
            // rest of the sector that the file would end in.
            4096 => assert!(bytes[1024..].iter().all(|byte| *byte == 1)),
            700 => {}
            3584 => assert!(bytes[700..3072].iter().all(|byte| *byte == 0)),
            other => panic!("length {other}"),
        }
    }
    assert_eq!(lengths, BTreeSet::from([700, 3584, 4096]));
}

#[test]
fn unsynced_name_may_vanish_with_synced_data() {
    let disk = old_and_new_bytes_only(1);
    let file = create(&disk, "a");
    file.write_at(b"data", 0).unwrap();
    file.sync_data().unwrap();
    let found: BTreeSet<Vec<String>> = (0..200).map(|seed| disk.power_cut(seed).files()).collect();
    assert_eq!(found, BTreeSet::from([vec![], vec!["a".to_owned()]]));
    disk.platform().storage.sync().unwrap();
    for seed in 0..200 {
        assert_eq!(disk.power_cut(seed).read_raw("a"), b"data");
    }
}

#[test]
fn unsynced_rename_leaves_the_old_file_or_the_new_one() {
    let (disk, _file) = disk_with("a", b"old");
    let new = create(&disk, "new");
    new.write_at(b"new", 0).unwrap();
    new.sync_data().unwrap();
    let storage = disk.platform().storage;
    storage.rename("new", "a").unwrap();
    let mut found = BTreeSet::new();
    for seed in 0..500 {
        let after = disk.power_cut(seed);
        found.insert((after.files().len(), after.read_raw("a")));
    }
    let expected = [(1, b"old".to_vec()), (2, b"old".to_vec()), (1, b"new".to_vec())];
    assert_eq!(found, BTreeSet::from(expected));
    storage.sync().unwrap();
    assert!((0..200).all(|seed| disk.power_cut(seed).read_raw("a") == b"new"));
}

#[test]
fn unsynced_removals_may_survive_in_any_combination() {
    let disk = old_and_new_bytes_only(1);
    let storage = disk.platform().storage;
    for name in ["a", "b"] {
        create(&disk, name).write_at(name.as_bytes(), 0).unwrap();
        create(&disk, name).sync_data().unwrap();
    }
    storage.sync().unwrap();
    storage.remove("a").unwrap();
    storage.remove("b").unwrap();
    let found: BTreeSet<String> = (0..500).map(|seed| disk.power_cut(seed).files().concat()).collect();
    assert_eq!(found, ["", "a", "ab", "b"].map(str::to_owned).into());
    for seed in 0..100 {
        let after = disk.power_cut(seed);
        for name in after.files() {
            assert_eq!(after.read_raw(&name), name.as_bytes());
        }
    }
}

#[test]
fn stores_through_a_mapping_may_survive_by_sector_and_do_after_sync() {
    let (disk, file) = disk_with("a", &[0; 8192]);
    let mapping = file.map(8192, Access::ReadWrite).unwrap();
    let word = |offset: usize| {
        // SAFETY: aligned and inside the file, which stays mapped; accessed as an atomic only.
        unsafe { &*mapping.base().wrapping_add(offset).cast::<AtomicU32>() }
    };
    word(0).store(1, Ordering::SeqCst);
    word(4096).store(2, Ordering::SeqCst);
    let found: BTreeSet<(u8, u8)> = outcomes(&disk, "a")
        .iter()
        .map(|bytes| (bytes[0], bytes[4096]))
        .collect();
    assert_eq!(found, BTreeSet::from([(0, 0), (0, 2), (1, 0), (1, 2)]));
    assert_eq!(disk.kill().read_raw("a")[4096], 2);
    word(0).store(3, Ordering::SeqCst);
    file.sync_data().unwrap();
    assert!(
        outcomes(&disk, "a")
            .iter()
            .all(|bytes| (bytes[0], bytes[4096]) == (3, 2))
    );
}

#[test]
fn kill_keeps_everything_but_locks_and_open_removed_files() {
    let disk = old_and_new_bytes_only(1);
    let file = create(&disk, "a");
    file.write_at(b"unsynced", 0).unwrap();
    let _lock = disk
        .platform()
        .storage
        .lock("lock", LockMode::Exclusive)
        .unwrap()
        .unwrap();
    let after = disk.kill();
    assert_eq!(after.files(), ["a", "lock"]);
    assert_eq!(after.read_raw("a"), b"unsynced");
    assert!(
        after
            .platform()
            .storage
            .lock("lock", LockMode::Exclusive)
            .unwrap()
            .is_some()
    );
    assert!(
        disk.platform()
            .storage
            .lock("lock", LockMode::Exclusive)
            .unwrap()
            .is_none()
    );
    file.write_at(b"U", 0).unwrap();
    assert_eq!(after.read_raw("a"), b"unsynced", "the two disks share nothing");
    assert!(
        (0..100).any(|seed| after.power_cut(seed).files().is_empty()),
        "the names are still not durable"
    );
}

#[test]
fn stopped_disk_does_a_part_of_one_call_and_then_nothing() {
    let mut written = BTreeSet::new();
    for seed in 0..300 {
        let disk = old_and_new_bytes_only(seed);
        let storage = disk.platform().storage;
        let file = create(&disk, "a");
        file.write_at(&[1; 4], 0).unwrap();
        assert_eq!(disk.calls(), 2);
        disk.stop_after(1);
        file.write_at(&[2; 4], 0).unwrap();
        assert!(is_stopped(file.write_at(&[3; 4], 0).unwrap_err()));
        let after = disk.read_raw("a");
        written.insert(after.clone());
        assert!(is_stopped(file.write_at(&[4; 4], 0).unwrap_err()));
        assert!(is_stopped(file.sync_data().unwrap_err()));
        assert!(is_stopped(file.read_at(&mut [0; 4], 0).unwrap_err()));
        assert!(is_stopped(file.len().unwrap_err()));
        assert!(is_stopped(file.map(4096, Access::Read).unwrap_err()));
        assert!(is_stopped(storage.open("b", OpenMode::Create).unwrap_err()));
        assert!(is_stopped(storage.list().unwrap_err()));
        assert!(is_stopped(storage.lock("a", LockMode::Shared).unwrap_err()));
        assert_eq!((disk.read_raw("a"), disk.calls()), (after, 4));
        create(&disk.kill(), "a").write_at(&[5; 4], 0).unwrap();
    }
    let parts = [[2, 2, 2, 2], [3, 2, 2, 2], [3, 3, 2, 2], [3, 3, 3, 2], [3, 3, 3, 3]];
    assert_eq!(written, parts.map(Vec::from).into());
}

#[test]
fn planned_failure_hits_the_nth_call_once_or_for_ever() {
    let disk = old_and_new_bytes_only(1);
    let file = create(&disk, "a");
    disk.fail(2, FailKind::Io, FailSpan::Once);
    file.write_at(b"one", 0).unwrap();
    let error = file.write_at(b"two", 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    file.write_at(b"three", 0).unwrap();
    disk.fail(1, FailKind::Io, FailSpan::Forever);
    assert!(file.sync_data().is_err());
    assert!(disk.platform().storage.sync().is_err());
    assert!(file.set_len(0).is_err());
    assert!(disk.platform().storage.open("b", OpenMode::Create).is_err());
    disk.stop_failing();
    file.sync_data().unwrap();
    assert_eq!(
        (disk.read_raw("a"), disk.files()),
        (b"three".to_vec(), vec!["a".to_owned()])
    );
}

#[test]
fn no_space_fails_only_calls_that_need_space() {
    let (disk, file) = disk_with("a", &[1; 8192]);
    disk.fail(1, FailKind::NoSpace, FailSpan::Forever);
    file.write_at(&[2; 8192], 0).unwrap();
    file.write_zeros(0, 100).unwrap();
    file.allocate(0, 8192).unwrap();
    file.sync_data().unwrap();
    for error in [
        file.write_at(&[2; 8192], 4096).unwrap_err(),
        file.write_zeros(20_000, 1).unwrap_err(),
        file.allocate(0, 50_000).unwrap_err(),
        file.set_len(60_000).unwrap_err(),
        disk.platform().storage.open("b", OpenMode::Create).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
    file.set_len(0).unwrap();
}

#[test]
fn failed_sync_may_drop_bytes_that_a_later_sync_does_not_bring_back() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let disk = old_and_new_bytes_only(seed);
        let file = create(&disk, "a");
        file.write_at(&[0; 1024], 0).unwrap();
        file.sync_data().unwrap();
        disk.platform().storage.sync().unwrap();
        file.write_at(&[1; 1024], 0).unwrap();
        disk.fail(1, FailKind::Io, FailSpan::Once);
        file.sync_data().unwrap_err();
        file.sync_data().unwrap();
        assert_eq!(disk.read_raw("a"), [1; 1024], "the kernel still shows the bytes");
        assert_eq!(disk.kill().read_raw("a"), [1; 1024]);
        let after: BTreeSet<_> = (0..10).map(|cut| disk.kill().power_cut(cut).read_raw("a")).collect();
        assert_eq!(after.len(), 1, "a sync came after: the outcome is decided");
        seen.insert(after.first().unwrap().contains(&0));

        // Written again, they are dirty again.
        file.write_at(&[1; 1024], 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(disk.power_cut(seed).read_raw("a"), [1; 1024]);
    }
    assert_eq!(seen, BTreeSet::from([false, true]));
}

#[test]
fn failed_directory_sync_may_forget_names_for_good() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let disk = old_and_new_bytes_only(seed);
        create(&disk, "a");
        disk.fail(1, FailKind::Io, FailSpan::Once);
        disk.platform().storage.sync().unwrap_err();
        disk.platform().storage.sync().unwrap();
        assert_eq!(disk.files(), ["a"]);
        seen.insert(disk.power_cut(seed).files().len());
    }
    assert_eq!(seen, BTreeSet::from([0, 1]));
}

#[test]
fn full_disk_is_reported_and_room_helps() {
    let disk = old_and_new_bytes_only(1);
    let storage = disk.platform().storage;
    disk.set_capacity(Some(64 << 10));
    let (a, b) = (create(&disk, "a"), create(&disk, "b"));
    a.allocate(0, 40 << 10).unwrap();
    b.write_zeros(0, 20 << 10).unwrap();
    let full = |outcome: std::io::Result<()>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::StorageFull);
    full(b.write_at(&[1; 8 << 10], 20 << 10));
    assert_eq!(
        b.len().unwrap(),
        24 << 10,
        "what found room is written, as by the kernel"
    );
    full(a.allocate(0, 44 << 10));
    a.write_at(&[1; 40 << 10], 0).unwrap();
    a.write_zeros(0, 40 << 10).unwrap();
    b.set_len(1 << 20).unwrap();
    full(b.write_at(b"x", 1 << 19));

    a.set_len(32 << 10).unwrap();
    b.write_at(&[1; 8 << 10], 24 << 10).unwrap();
    full(b.write_at(b"x", 1 << 19));
    storage.remove("a").unwrap();
    full(b.write_at(b"x", 1 << 19));
    drop(a);
    b.write_at(b"x", 1 << 19).unwrap();
    disk.set_capacity(None);
    b.allocate(0, 1 << 20).unwrap();
    assert_eq!(b.allocated_bytes().unwrap(), 1 << 20);
}

#[test]
fn synced_allocation_survives_a_power_cut_and_an_unsynced_one_may_not() {
    let (disk, file) = disk_with("a", &[]);
    let allocated = |seed| create(&disk.power_cut(seed), "a").allocated_bytes().unwrap();
    file.allocate(0, 65536).unwrap();
    let found: BTreeSet<u64> = (0..200).map(allocated).collect();
    assert_eq!(found, BTreeSet::from([0, 65536]));
    file.sync_data().unwrap();
    file.set_len(4096).unwrap();
    let found: BTreeSet<u64> = (0..200).map(allocated).collect();
    assert_eq!(found, BTreeSet::from([4096, 65536]));
}

#[test]
fn trace_shows_calls_in_order() {
    let disk = old_and_new_bytes_only(1);
    let storage = disk.platform().storage;
    storage.open("before", OpenMode::Create).unwrap();
    disk.trace(true);
    let file = storage.open("wal-0", OpenMode::Create).unwrap();
    storage.open("wal-0", OpenMode::Write).unwrap();
    file.allocate(0, 8192).unwrap();
    file.write_zeros(0, 4096).unwrap();
    file.write_at(&[1; 176], 4096).unwrap();
    file.start_writeback(0, 4096);
    file.read_at(&mut [0; 8], 0).unwrap();
    file.sync_data().unwrap();
    file.set_len(4272).unwrap();
    storage.rename("wal-0", "wal-1").unwrap();
    disk.fail(1, FailKind::Io, FailSpan::Once);
    storage.sync().unwrap_err();
    storage.remove("wal-1").unwrap();
    let expected = [
        "create wal-0",
        "allocate wal-0 0+8192",
        "zeros wal-0 0+4096",
        "write wal-0 4096+176",
        "writeback wal-0 0+4096",
        "sync wal-0",
        "truncate wal-0 4272",
        "rename wal-0 wal-1",
        "sync directory failed",
        "remove wal-1",
    ];
    assert_eq!(disk.take_trace(), expected);
    assert!(disk.take_trace().is_empty());
}

#[test]
fn flipped_bits_are_durable_in_every_version() {
    let (disk, file) = disk_with("a", &[0; 2048]);
    file.write_at(&[1; 1024], 512).unwrap();
    let calls = disk.calls();
    disk.write_raw("a", 600, &[9]);
    assert_eq!(disk.calls(), calls);
    assert!(
        outcomes(&disk, "a")
            .iter()
            .all(|bytes| bytes[600] == 9 && bytes.len() == 2048)
    );
    disk.write_raw("a", 4000, b"longer");
    assert!(
        outcomes(&disk, "a")
            .iter()
            .all(|bytes| bytes.ends_with(b"longer") && bytes.len() == 4006)
    );
}

#[test]
fn lying_disk_loses_what_it_said_was_synced() {
    let disk = old_and_new_bytes_only(1);
    disk.ignore_sync(Some("wal"));
    let (log, data) = (create(&disk, "wal-0"), create(&disk, "data"));
    disk.platform().storage.sync().unwrap();
    for file in [&log, &data] {
        file.write_at(&[1; 512], 0).unwrap();
        file.sync_data().unwrap();
    }
    assert!((0..100).any(|seed| disk.power_cut(seed).read_raw("wal-0").is_empty()));
    assert!((0..100).all(|seed| disk.power_cut(seed).read_raw("data") == [1; 512]));
    disk.ignore_sync(None);
    log.sync_data().unwrap();
    assert!((0..100).all(|seed| disk.power_cut(seed).read_raw("wal-0") == [1; 512]));

    disk.ignore_directory_sync(true);
    create(&disk, "new");
    disk.platform().storage.sync().unwrap();
    assert!((0..100).any(|seed| disk.power_cut(seed).files().len() == 2));
    disk.ignore_directory_sync(false);
    disk.platform().storage.sync().unwrap();
    assert!((0..100).all(|seed| disk.power_cut(seed).files().len() == 3));
}

#[test]
fn names_survive_as_a_history_of_changes_could_leave_them() {
    for seed in seeds(0..200) {
        let mut random = Rng::with_seed(seed);
        let disk = old_and_new_bytes_only(seed);
        let storage = disk.platform().storage;
        let names = ["a", "b", "c", "d"];
        let mut synced: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        // Names that were changed since the last sync of the directory.
        let mut changed: BTreeSet<&str> = BTreeSet::new();
        for step in 0..30u8 {
            let (name, other) = (names[random.usize(..4)], names[random.usize(..4)]);
            let exists = disk.files().iter().any(|known| known == name);
            match random.u8(..8) {
                0..4 if !exists => {
                    let file = create(&disk, name);
                    file.write_at(&[step + 1; 4], 0).unwrap();
                    file.sync_data().unwrap();
                    changed.insert(name);
                }
                4 if exists => {
                    storage.remove(name).unwrap();
                    changed.insert(name);
                }
                5 | 6 if exists && name != other => {
                    storage.rename(name, other).unwrap();
                    changed.extend([name, other]);
                }
                7 => {
                    storage.sync().unwrap();
                    changed.clear();
                    synced = disk
                        .files()
                        .into_iter()
                        .map(|name| (name.clone(), disk.read_raw(&name)))
                        .collect();
                }
                _ => {}
            }
            let after = disk.power_cut(seed * 100 + u64::from(step));
            let mut contents = BTreeSet::new();
            for name in after.files() {
                let bytes = after.read_raw(&name);
                assert!(bytes.len() == 4, "DURAMEN_SEED={seed}: {name} lost synced data");
                assert!(contents.insert(bytes), "DURAMEN_SEED={seed}: one file has two names");
            }
            for (name, bytes) in synced.iter().filter(|(name, _)| !changed.contains(name.as_str())) {
                assert!(
                    after.files().contains(name),
                    "DURAMEN_SEED={seed}: {name} was synced and is gone"
                );
                assert_eq!(&after.read_raw(name), bytes, "DURAMEN_SEED={seed}");
            }
        }
    }
}

/// Sectors of a file that power cuts change although only ten equal bytes were written since the last sync.
fn sectors_at_risk(name: &str, unit: u64, write: impl Fn(&dyn File, &[u8])) -> Vec<usize> {
    let disk = SimDisk::new(1);
    disk.set_write_unit(unit);
    let file = create(&disk, name);
    file.write_at(&[7; 256 << 10], 0).unwrap();
    file.sync_data().unwrap();
    disk.platform().storage.sync().unwrap();
    // The existing bytes: a device that is asked to write them may tear them as well.
    write(&*file, &[7; 10]);
    let mut at_risk = BTreeSet::new();
    for seed in 0..2_000 {
        let found = disk.power_cut(seed).read_raw(name);
        assert_eq!(found.len(), 256 << 10);
        at_risk.extend(
            found
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte != 7)
                .map(|(at, _)| at / 512),
        );
    }
    at_risk.into_iter().collect()
}

#[test]
fn power_cut_may_destroy_all_of_the_unit_that_is_written_and_nothing_beside_it() {
    for unit in [512, 4 << 10, 16 << 10, 64 << 10] {
        let offset = 3 * (unit as usize) + unit as usize / 2;
        let (first, end) = (3 * unit as usize / 512, 4 * unit as usize / 512);
        let expected: Vec<usize> = (first..end).collect();
        let write = |file: &dyn File, bytes: &[u8]| file.write_at(bytes, offset as u64).unwrap();
        assert_eq!(sectors_at_risk("wal-0", unit, write), expected, "unit {unit}");
        // Other files are written in pages.
        let page = unit.min(4096) as usize;
        let first = offset / page * page / 512;
        let expected: Vec<usize> = (first..first + page / 512).collect();
        assert_eq!(sectors_at_risk("data", unit, write), expected, "unit {unit}");
    }
}

#[test]
fn after_a_store_four_units_are_at_risk() {
    for unit in [512, 4 << 10, 16 << 10] {
        let offset = 9 * unit + unit / 2;
        let expected: Vec<usize> = (8 * unit as usize / 512..12 * unit as usize / 512).collect();
        let store = |file: &dyn File, bytes: &[u8]| file.store_at(bytes, offset).unwrap();
        assert_eq!(sectors_at_risk("wal-0", unit, store), expected, "unit {unit}");
    }
}

#[test]
fn power_cut_destroys_nothing_once_a_sync_succeeded() {
    let disk = SimDisk::new(1);
    let file = create(&disk, "wal-0");
    disk.platform().storage.sync().unwrap();
    file.write_at(&[7; 20_000], 0).unwrap();
    file.sync_data().unwrap();
    assert!((0..500).all(|seed| disk.power_cut(seed).read_raw("wal-0") == [7; 20_000]));
}
