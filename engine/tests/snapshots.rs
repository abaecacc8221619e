//! Snapshots held at many moments while writers go on: each shows its moment exactly, none of them stops anybody, and
//! what they held comes back when they are dropped, or when the process dies with them.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::workload::check_sound;
use common::{Watchdog, seed, small_options};
use duramen_engine::{Durability, Kind, Maintenance, Map, Options, Reason, Snapshot, Store};
use duramen_io::SimDisk;
use fastrand::Rng;

const HANG: Duration = Duration::from_secs(120);
/// Snapshots that are held at once, each at another generation of the log.
const HELD: usize = 300;
const KEYS: u16 = 60;
/// Log files of a store that nobody reads: those in use and those kept for use.
const QUIET_LOG_FILES_MAX: usize = 24;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A snapshot and what it has to show.
struct Held {
    snapshot: Snapshot,
    pairs: Pairs,
}

/// A store that is written to while snapshots are taken, and what is in it.
struct Writer {
    store: Store,
    map: Map,
    pairs: Pairs,
    rng: Rng,
}

impl Writer {
    fn new(store: Store, seed: u64) -> Writer {
        let map = store.map("map").unwrap();
        Writer {
            store,
            map,
            pairs: Pairs::new(),
            rng: Rng::with_seed(seed),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        self.rng.u16(..KEYS).to_be_bytes().to_vec()
    }

    /// A few commits: puts, deletes, range deletes.
    fn write(&mut self) {
        for _ in 0..self.rng.u8(1..6) {
            let key = self.key();
            let mut value = vec![0; self.rng.usize(..400)];
            self.rng.fill(&mut value);
            self.map.put(&key, &value).unwrap();
            self.pairs.insert(key, value);
        }
        let (key, other) = (self.key(), self.key());
        self.map.delete(&key).unwrap();
        self.pairs.remove(&key);
        if self.rng.u8(..8) == 0 && key < other {
            self.map.delete_range(&key[..]..&other[..]).unwrap();
            self.pairs.retain(|found, _| !(&key..&other).contains(&found));
        }
    }

    fn hold(&self) -> Held {
        Held {
            snapshot: self.store.snapshot().unwrap(),
            pairs: self.pairs.clone(),
        }
    }

    /// Holds a snapshot at each of so many generations.
    fn hold_generations(&mut self, count: usize) -> Vec<Held> {
        let mut held = Vec::new();
        for _ in 0..count {
            self.write();
            held.push(self.hold());
            self.store.maintain().unwrap();
        }
        held
    }
}

impl Held {
    fn assert_exact(&self, map: &Map) {
        let mut cursor = self.snapshot.range(map, ..).unwrap();
        for (key, value) in &self.pairs {
            let (found, bytes) = cursor.next().unwrap().expect("a pair is missing");
            assert_eq!((found, &bytes[..]), (&key[..], &value[..]));
        }
        assert!(cursor.next().unwrap().is_none());
        assert_eq!(self.snapshot.count(map, ..).unwrap(), self.pairs.len() as u64);
    }
}

fn assert_state(store: &Store, pairs: &Pairs) {
    let map = store.map("map").unwrap();
    let snapshot = store.snapshot().unwrap();
    let pairs = pairs.clone();
    Held { snapshot, pairs }.assert_exact(&map);
}

fn log_files(disk: &SimDisk) -> usize {
    disk.files().iter().filter(|name| name.starts_with("wal-")).count()
}

fn assert_sound(store: &Store) {
    assert_eq!(check_sound(store), Ok(()));
}

#[test]
fn snapshots_at_hundreds_of_generations_stay_exact_and_give_everything_back() {
    let seed = seed();
    let _watchdog = Watchdog::start("many snapshots", seed, HANG);
    let disk = SimDisk::new(seed);
    let mut writer = Writer::new(small_options().open_on(disk.platform()).unwrap(), seed);
    // What the store takes when it has been written to for a while and nobody holds anything.
    drop(writer.hold_generations(20));
    writer.store.compact(&mut |_| ()).unwrap();
    let quiet = writer.store.stat().unwrap();
    let mut held = writer.hold_generations(HELD);
    assert!(log_files(&disk) >= HELD, "{} log files", log_files(&disk));
    held.iter().for_each(|held| held.assert_exact(&writer.map));
    assert_sound(&writer.store);
    let mut rng = Rng::with_seed(seed);
    rng.shuffle(&mut held);
    while let Some(dropped) = held.pop() {
        dropped.assert_exact(&writer.map);
        drop(dropped);
        writer.write();
        writer.store.maintain().unwrap();
        if let Some(other) = rng.choice(&held) {
            other.assert_exact(&writer.map);
        }
        if held.len().is_multiple_of(100) {
            held.iter().for_each(|held| held.assert_exact(&writer.map));
            assert_sound(&writer.store);
        }
    }
    assert!(
        log_files(&disk) <= QUIET_LOG_FILES_MAX + 16,
        "{} log files",
        log_files(&disk)
    );
    writer.store.compact(&mut |_| ()).unwrap();
    let stat = writer.store.stat().unwrap();
    assert!(
        log_files(&disk) <= QUIET_LOG_FILES_MAX,
        "{} log files",
        log_files(&disk)
    );
    assert_eq!(stat.retired_pages, 0);
    assert!(stat.data_bytes <= quiet.data_bytes + (64 << 12), "{stat:?} {quiet:?}");
    assert!(stat.log_bytes <= quiet.log_bytes + (256 << 10), "{stat:?} {quiet:?}");
    assert!(
        stat.memory.index_bytes <= quiet.memory.index_bytes + (256 << 10),
        "{stat:?} {quiet:?}"
    );
    assert_state(&writer.store, &writer.pairs);
    assert_sound(&writer.store);
}

#[test]
fn a_store_killed_while_hundreds_of_generations_are_held_comes_back_whole_and_small() {
    let seed = seed();
    let _watchdog = Watchdog::start("many snapshots", seed, HANG);
    let disk = SimDisk::new(seed);
    let mut writer = Writer::new(small_options().open_on(disk.platform()).unwrap(), seed);
    let held = writer.hold_generations(HELD);
    writer.write();
    let killed = disk.kill();
    writer.store.sync().unwrap();
    let cut = disk.power_cut(seed);
    drop(held);
    for disk in [killed, cut] {
        assert!(log_files(&disk) >= HELD);
        let read_only = small_options().read_only(true).open_on(disk.platform()).unwrap();
        assert_state(&read_only, &writer.pairs);
        drop(read_only);
        let store = small_options().open_on(disk.platform()).unwrap();
        assert_state(&store, &writer.pairs);
        store.maintain().unwrap();
        assert_sound(&store);
        let mut after = Writer::new(store, seed);
        after.pairs = writer.pairs.clone();
        let held = after.hold_generations(30);
        held.iter().for_each(|held| held.assert_exact(&after.map));
        drop(held);
        let (map, store) = (after.map, after.store);
        drop(map);
        store.close().unwrap();
        assert!(
            log_files(&disk) <= QUIET_LOG_FILES_MAX,
            "{} log files",
            log_files(&disk)
        );
        assert_state(&small_options().open_on(disk.platform()).unwrap(), &after.pairs);
    }
}

#[test]
fn power_cuts_while_log_files_are_removed_lose_nothing() {
    let seed = seed();
    let _watchdog = Watchdog::start("many snapshots", seed, HANG);
    for round in 0..12 {
        let seed = seed.wrapping_add(round);
        let disk = SimDisk::new(seed);
        let mut writer = Writer::new(small_options().open_on(disk.platform()).unwrap(), seed);
        let mut held = writer.hold_generations(60);
        Rng::with_seed(seed).shuffle(&mut held);
        while held.pop().is_some() {
            writer.write();
            writer.store.maintain().unwrap();
            if held.len().is_multiple_of(7) {
                writer.store.sync().unwrap();
                for crashed in [disk.kill(), disk.power_cut(seed ^ held.len() as u64)] {
                    let store = small_options().open_on(crashed.platform()).unwrap();
                    assert_state(&store, &writer.pairs);
                    store.close().unwrap();
                }
            }
        }
    }
}

#[test]
fn readers_that_hold_every_log_file_are_named_and_writers_go_on_once_one_ends() {
    let _watchdog = Watchdog::start("all log files held", 0, HANG);
    let disk = SimDisk::new(1);
    let store = small_options().log_files(20).open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    let mut held = Vec::new();
    let error = loop {
        if let Err(error) = map.put(b"key", [held.len() as u8; 5000]) {
            break error;
        }
        held.push(store.snapshot().unwrap());
        match store.maintain() {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::MakeSpace, "{error}");
    assert!(matches!(error.reason(), Reason::LogHeld { files: 20, .. }), "{error}");
    let text = error.to_string();
    let oldest = format!("snapshot {} of process {}", held[0].id(), std::process::id());
    assert!(text.contains(&oldest) && text.contains("end_snapshot"), "{text}");
    for (number, snapshot) in held.iter().enumerate() {
        assert_eq!(snapshot.get(&map, b"key").unwrap().unwrap(), [number as u8; 5000]);
    }
    held.truncate(1);
    store.maintain().unwrap();
    map.put(b"key", b"goes on").unwrap();
    assert_eq!(held[0].get(&map, b"key").unwrap().unwrap(), [0; 5000]);
    assert_sound(&store);
}

/// With files of the machine: more generations are held than a process may have open files.
#[test]
fn generations_that_are_held_need_no_open_files() {
    let seed = seed();
    let _watchdog = Watchdog::start("many snapshots", seed, HANG);
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written)
        .generation_bytes(48 << 10, 64 << 10);
    let mut writer = Writer::new(options.clone().open(directory.path()).unwrap(), seed);
    let held = writer.hold_generations(150);
    let open = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|path| path.starts_with(directory.path()))
        .count();
    assert!(open < 100, "{open} open files");
    held.iter().for_each(|held| held.assert_exact(&writer.map));
    drop(held);
    let map = writer.map;
    drop(map);
    writer.store.close().unwrap();
    let store = options.open(directory.path()).unwrap();
    assert_state(&store, &writer.pairs);
    assert_sound(&store);
}
