//! The tests of the tests: bugs that are planted in the engine, and disks that lie, are found by the everyday checks.
//! The same checks pass when nothing is planted.

use crate::common::Checked;
use crate::common::crashes::{Case, Lie, Tally};
use duramen_engine::planted::{PlantedBug, plant};
use duramen_engine::{Reason, Store, TransactionOptions};
use duramen_io::SimDisk;

/// Crash points within which a bug must be found. The everyday run has more.
const POINTS_MAX: u64 = 6000;

/// Short and long work in turn, until something is wrong or there were so many crash points. Always the same.
fn check_crashes(points: u64, lie: Option<Lie>) -> Checked {
    check_crashes_among(1, points, lie)
}

/// The same in so many processes that share the store.
fn check_crashes_among(processes: usize, points: u64, lie: Option<Lie>) -> Checked {
    let mut tally = Tally::default();
    for seed in 0.. {
        let steps = if seed % 2 == 0 { 20 } else { 120 };
        let case = Case {
            lie,
            ..Case::new(seed, steps).among(processes)
        };
        let mut rng = fastrand::Rng::with_seed(seed);
        let calls = 40 + steps as u64 * 2;
        for _ in 0..8 {
            case.stopping_after(rng.u64(..calls)).run(&mut tally)?;
        }
        if tally.points() >= points {
            println!("{tally:?}");
            return Ok(());
        }
    }
    unreachable!("seeds do not run out")
}

/// The same few commits before and after a power cut that may take the first ones, a sync between the later ones, and
/// a kill: whatever the power cut left of the first ones must not be taken for the later ones.
fn check_repeated_commits() -> Checked {
    for seed in 0..1000 {
        let disk = SimDisk::new(seed);
        let open = |disk: &SimDisk| {
            crate::common::small_options()
                .open_on(disk.platform())
                .map_err(|error| error.to_string())
        };
        let work = |store: &Store, fill: u8, synced: u8| -> Result<(), duramen_engine::Error> {
            let map = store.map("map")?;
            for number in 0..4 {
                map.put([number], [fill; 60])?;
                if number == synced {
                    store.sync()?;
                }
            }
            Ok(())
        };
        let store = open(&disk)?;
        work(&store, 1, u8::MAX).map_err(|error| error.to_string())?;
        let disk = disk.power_cut(seed);
        let store = open(&disk)?;
        work(&store, 2, 1).map_err(|error| error.to_string())?;
        let disk = disk.kill();
        let map = open(&disk)?.map("map").map_err(|error| error.to_string())?;
        for number in 0..4 {
            let value = map.get([number]).map_err(|error| error.to_string())?;
            if value.as_deref() != Some(&[2; 60]) {
                return Err(format!("seed {seed}: key {number} holds {value:?}"));
            }
        }
    }
    Ok(())
}

/// Whether a transaction conflicts with what another one commits after it began.
fn check_conflicts() -> Checked {
    let disk = SimDisk::new(1);
    let store = crate::common::small_options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    for key in [b"a", b"c"] {
        map.put(key, b"1").unwrap();
    }
    let conflicts = |what: &str, other: &dyn Fn(), tx: duramen_engine::Transaction| -> Checked {
        other();
        match tx
            .commit()
            .map_err(|error| matches!(error.reason(), Reason::Conflict { .. }))
        {
            Err(true) => Ok(()),
            _ => Err(format!("{what}: no conflict")),
        }
    };
    let begin = |options: TransactionOptions| store.begin(options).unwrap();
    let mut tx = begin(TransactionOptions::new());
    tx.delete_range(&map, ..).unwrap();
    conflicts(
        "a put into a range that is deleted",
        &|| map.put(b"b", b"1").unwrap(),
        tx,
    )?;
    let mut tx = begin(TransactionOptions::new());
    tx.put(&map, b"a", b"2").unwrap();
    conflicts("a put of a key that was put", &|| map.put(b"a", b"3").unwrap(), tx)?;
    // Write skew: each reads what the other writes.
    let mut tx = begin(TransactionOptions::new().serializable());
    tx.get(&map, b"a").unwrap();
    tx.put(&map, b"c", b"4").unwrap();
    conflicts("write skew", &|| map.put(b"a", b"5").unwrap(), tx)
}

/// Whether a closed store both of whose newest meta pages are lost is served as an older one.
fn check_lost_meta_page() -> Checked {
    const PAGE: usize = 4096;
    let disk = SimDisk::new(1);
    let open = |disk: &SimDisk| crate::common::small_options().open_on(disk.platform());
    let store = open(&disk).unwrap();
    let map = store.map("map").unwrap();
    for number in 0..4u8 {
        map.put([number], b"value").unwrap();
        store.maintain().unwrap();
    }
    drop(map);
    store.close().unwrap();
    let disk = disk.kill();
    for file in disk.files().iter().filter(|file| *file != "data") {
        disk.platform().storage.remove(file).unwrap();
    }
    let data = disk.read_raw("data");
    let sequence = |page: usize| data[page * PAGE + 32..page * PAGE + 40].to_vec();
    let newest = if sequence(0) > sequence(16) { 0 } else { 16 };
    for page in [newest, newest + 32] {
        disk.write_raw("data", (page * PAGE) as u64, &[0; PAGE]);
    }
    match open(&disk) {
        Ok(_) => Err("a store without its newest meta page opened".into()),
        Err(_) => Ok(()),
    }
}

/// Whether a page is served that the device has replaced by its own older version.
fn check_stale_pages() -> Checked {
    const PAGE: usize = 4096;
    const ROUNDS: u8 = 20;
    let disk = SimDisk::new(1);
    let options = || crate::common::small_options().overwrite_freed(false);
    let store = options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    let mut images = Vec::new();
    for round in 0..=ROUNDS {
        (0..100u8).for_each(|number| map.put([number], [round; 400]).unwrap());
        store.maintain().unwrap();
        images.push(disk.read_raw("data"));
    }
    drop(map);
    store.close().unwrap();
    let disk = disk.kill();
    let word = |page: &[u8], at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
    for image in &images {
        for (number, page) in image.chunks_exact(PAGE).enumerate().skip(64) {
            if word(page, 4) as usize != number || page[16] != 1 {
                continue;
            }
            let disk = disk.kill();
            disk.write_raw("data", (number * PAGE) as u64, page);
            let opened = options().open_on(disk.platform()).and_then(|store| store.map("map"));
            let Ok(map) = opened else { continue };
            for key in 0..100u8 {
                if let Ok(Some(value)) = map.get([key])
                    && value != [ROUNDS; 400]
                {
                    return Err(format!("page {number}: an older value of key {key} is served"));
                }
            }
        }
    }
    Ok(())
}

/// The check fails while the bug is planted.
fn is_found(bug: PlantedBug, check: impl Fn() -> Checked) {
    plant(Some(bug));
    let found = check();
    plant(None);
    let cause = found.expect_err("nobody noticed the planted bug");
    println!("{bug:?}: {cause}");
}

fn is_found_by_crashes(bug: PlantedBug) {
    is_found(bug, || check_crashes(POINTS_MAX, None));
}

#[test]
fn nothing_is_found_where_nothing_is_planted() {
    assert_eq!(check_conflicts(), Ok(()));
    assert_eq!(check_repeated_commits(), Ok(()));
    assert_eq!(check_crashes(800, None), Ok(()));
}

#[test]
fn a_disk_that_does_not_sync_the_log_is_found() {
    check_crashes(POINTS_MAX, Some(Lie::Sync("wal-"))).unwrap_err();
}

#[test]
fn a_disk_that_does_not_sync_the_data_file_is_found() {
    check_crashes(POINTS_MAX, Some(Lie::Sync("data"))).unwrap_err();
}

#[test]
fn a_disk_that_does_not_sync_its_directory_is_found() {
    check_crashes(POINTS_MAX, Some(Lie::DirectorySync)).unwrap_err();
}

#[test]
fn acknowledging_before_the_sync_is_found() {
    is_found_by_crashes(PlantedBug::AcknowledgeBeforeSync);
}

#[test]
fn bugs_are_found_in_several_processes_as_in_one() {
    assert_eq!(check_crashes_among(2, 400, None), Ok(()));
    for bug in [
        PlantedBug::AcknowledgeBeforeSync,
        PlantedBug::ReclaimIgnoresDurableBase,
        PlantedBug::FoldAheadOfSync,
        PlantedBug::ValuesNotSynced,
        PlantedBug::DirectoryNotSynced,
    ] {
        is_found(bug, || check_crashes_among(2, POINTS_MAX, None));
    }
}

#[test]
fn a_record_in_a_unit_that_was_synced_is_found() {
    is_found_by_crashes(PlantedBug::UnitShared);
}

#[test]
fn a_store_beside_records_that_were_synced_is_found() {
    is_found_by_crashes(PlantedBug::StoredBesideSynced);
}

#[test]
fn freeing_pages_of_the_durable_base_is_found() {
    is_found_by_crashes(PlantedBug::ReclaimIgnoresDurableBase);
}

#[test]
fn freeing_pages_of_snapshots_is_found() {
    is_found_by_crashes(PlantedBug::ReclaimIgnoresSnapshots);
}

#[test]
fn not_syncing_the_directory_is_found() {
    is_found_by_crashes(PlantedBug::DirectoryNotSynced);
}

#[test]
fn replaying_whatever_has_the_next_number_is_found() {
    is_found_by_crashes(PlantedBug::ChainNotChecked);
}

#[test]
fn replaying_torn_records_is_found() {
    is_found_by_crashes(PlantedBug::BodiesNotChecked);
}

#[test]
fn a_meta_page_before_its_pages_is_found() {
    is_found_by_crashes(PlantedBug::MetaBeforePages);
}

#[test]
fn a_base_ahead_of_the_synced_log_is_found() {
    is_found_by_crashes(PlantedBug::FoldAheadOfSync);
}

#[test]
fn a_record_before_its_long_value_is_found() {
    is_found_by_crashes(PlantedBug::ValuesNotSynced);
}

#[test]
fn a_bitmap_without_the_used_pages_is_found() {
    is_found_by_crashes(PlantedBug::BitmapNotSaved);
}

#[test]
fn relying_on_a_base_that_is_not_durable_is_found() {
    is_found_by_crashes(PlantedBug::FoundBaseNotSynced);
}

#[test]
fn an_epoch_that_a_power_cut_takes_back_is_found() {
    is_found(PlantedBug::EpochNotSynced, check_repeated_commits);
}

#[test]
fn ranges_without_conflicts_are_found() {
    is_found(PlantedBug::RangesNotChecked, check_conflicts);
}

#[test]
fn write_skew_is_found() {
    is_found(PlantedBug::ReadsNotChecked, check_conflicts);
}

#[test]
fn the_state_before_a_lost_meta_page_is_found() {
    assert_eq!(check_lost_meta_page(), Ok(()));
    is_found(PlantedBug::OtherMetaPairNotLookedAt, check_lost_meta_page);
}

#[test]
fn an_older_version_of_a_page_is_found() {
    assert_eq!(check_stale_pages(), Ok(()));
    is_found(PlantedBug::ChildChecksumNotCompared, check_stale_pages);
}

/// The bug is planted in one thread alone.
#[test]
fn a_planted_bug_stays_in_its_thread() {
    plant(Some(PlantedBug::RangesNotChecked));
    let other = std::thread::spawn(check_conflicts).join().unwrap();
    plant(None);
    assert_eq!(other, Ok(()));
}
