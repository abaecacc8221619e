//! The memory that processes share, in another directory than the store: on file systems that copy on write, and where
//! [`Options::region_directory`] says so. Here the store is on the simulated disk, and the memory in a real directory.

use std::path::Path;

use crate::common::workload::check_sound;
use duramen_engine::{Durability, Kind, Maintenance, Options, Reason, Store};
use duramen_io::SimDisk;

/// A directory on tmpfs; where there is none, the temporary one, if it is on ext4.
fn memory() -> Option<tempfile::TempDir> {
    let places = [Path::new("/dev/shm").to_owned(), std::env::temp_dir()];
    let suits = |place: &std::path::PathBuf| duramen_io::writes_in_place(place).unwrap_or(false);
    let place = places.into_iter().find(suits);
    if place.is_none() {
        eprintln!("skipped: neither /dev/shm nor the temporary directory is on tmpfs or ext4");
    }
    place.map(|place| tempfile::tempdir_in(place).unwrap())
}

fn open(disk: &SimDisk, memory: &Path) -> duramen_engine::Result<Store> {
    Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written)
        .region_directory(memory)
        .open_on(disk.platform())
}

fn files(memory: &Path) -> usize {
    std::fs::read_dir(memory).unwrap().count()
}

#[test]
fn processes_share_memory_that_is_elsewhere_and_the_last_one_removes_it() {
    let Some(memory) = memory() else { return };
    let disk = SimDisk::new(1);
    let first = open(&disk, memory.path()).unwrap();
    first.map("map").unwrap().put(b"key", b"first").unwrap();
    // The others follow the first one, whatever their options say.
    let second = Options::new().open_on(disk.platform()).unwrap();
    assert_eq!(second.map("map").unwrap().get(b"key").unwrap().unwrap(), b"first");
    second.map("map").unwrap().put(b"key", b"second").unwrap();
    assert_eq!(first.map("map").unwrap().get(b"key").unwrap().unwrap(), b"second");
    assert_eq!(files(memory.path()), 1);
    assert!(disk.read_raw("shared").len() < 300, "only its path is in the directory");
    first.close().unwrap();
    assert_eq!(files(memory.path()), 1);
    assert_eq!(check_sound(&second), Ok(()));
    second.close().unwrap();
    assert_eq!(files(memory.path()), 0);
    // Here and there in turn.
    Options::new().open_on(disk.platform()).unwrap().close().unwrap();
    let store = open(&disk, memory.path()).unwrap();
    assert_eq!(store.map("map").unwrap().get(b"key").unwrap().unwrap(), b"second");
}

#[test]
fn memory_of_a_dead_process_is_removed_by_the_next_one_and_memory_in_use_is_not() {
    let Some(memory) = memory() else { return };
    let disk = SimDisk::new(1);
    let store = open(&disk, memory.path()).unwrap();
    store.map("map").unwrap().put(b"key", b"value").unwrap();
    // A copy of the directory names memory that the store it was copied from uses.
    let copy = disk.kill();
    let copied = open(&copy, memory.path()).unwrap();
    assert_eq!(files(memory.path()), 2);
    let beside = open(&disk, memory.path()).unwrap();
    assert_eq!(beside.map("map").unwrap().get(b"key").unwrap().unwrap(), b"value");
    copied.close().unwrap();
    assert_eq!(files(memory.path()), 1);
    // A process that dies leaves its memory, which it does not lock any more.
    let killed = disk.kill();
    let file = std::fs::read_dir(memory.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let hidden = memory.path().join("hidden");
    std::fs::hard_link(&file, &hidden).unwrap();
    store.close().unwrap();
    beside.close().unwrap();
    assert!(!file.exists());
    std::fs::rename(&hidden, &file).unwrap();
    let store = open(&killed, memory.path()).unwrap();
    assert!(!file.exists());
    assert_eq!(files(memory.path()), 1);
    assert_eq!(store.map("map").unwrap().get(b"key").unwrap().unwrap(), b"value");
}

#[test]
fn process_that_does_not_see_the_memory_of_the_others_is_refused_and_told_what_to_do() {
    let Some(memory) = memory() else { return };
    let disk = SimDisk::new(1);
    let store = open(&disk, memory.path()).unwrap();
    let file = std::fs::read_dir(memory.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let hidden = memory.path().join("hidden");
    let assert_refused = || {
        let error = open(&disk, memory.path()).unwrap_err();
        assert!(matches!(error.reason(), Reason::MemoryElsewhere { .. }), "{error}");
        assert_eq!(error.kind(), Kind::Retry);
        assert!(error.to_string().contains("region_directory"), "{error}");
    };
    std::fs::rename(&file, &hidden).unwrap();
    assert_refused();
    std::fs::write(&file, b"another file").unwrap();
    assert_refused();
    std::fs::rename(&hidden, &file).unwrap();
    open(&disk, memory.path()).unwrap();
    store.map("map").unwrap().put(b"key", b"value").unwrap();
}

#[test]
fn memory_is_not_put_where_a_full_disk_would_be_a_signal() {
    let disk = SimDisk::new(1);
    for place in ["/proc", "/nowhere/at/all"] {
        let error = open(&disk, Path::new(place)).unwrap_err();
        assert_eq!(error.kind(), Kind::FixTheCall, "{error}");
        assert!(error.to_string().contains("tmpfs"), "{error}");
    }
    // A process that has the store to itself shares no memory.
    let options = Options::new().region_directory("/proc").exclusive(true);
    let store = options.open_on(disk.platform()).unwrap();
    store.map("map").unwrap().put(b"key", b"value").unwrap();
    store.close().unwrap();
}
