//! A write of the log that the file system refuses for want of room, after nothing or a part of it was written: on file
//! systems that copy on write, and where a quota or a limit of the process ends, that happens to bytes that the file has.
//! The commit is refused and has no effect, the store goes on, and so does one that is opened after its process died.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::common::workload::check_sound;
use duramen_engine::{Batch, Durability, Kind, Maintenance, Options};
use duramen_io::{Access, ByteLocks, File, Lock, LockMode, Mapping, OpenMode, Platform, SimDisk, Storage};

/// How many bytes of the next write to a log file are written before it is refused; negative: all are.
type Room = Arc<AtomicI64>;

#[derive(Debug)]
struct Quota {
    storage: Arc<dyn Storage>,
    room: Room,
    /// As `room`, for the data file.
    meta: Room,
}

#[derive(Debug)]
struct LogFile {
    file: Arc<dyn File>,
    room: Room,
}

impl Storage for Quota {
    fn open(&self, name: &str, mode: OpenMode) -> std::io::Result<Arc<dyn File>> {
        let file = self.storage.open(name, mode)?;
        if name == "data" {
            let room = self.meta.clone();
            return Ok(Arc::new(LogFile { file, room }));
        }
        if !name.starts_with("wal-") {
            return Ok(file);
        }
        let room = self.room.clone();
        Ok(Arc::new(LogFile { file, room }))
    }
    fn list(&self) -> std::io::Result<Vec<String>> {
        self.storage.list()
    }
    fn write_unit(&self) -> u64 {
        self.storage.write_unit()
    }
    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.storage.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.storage.rename(from, to)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.storage.sync()
    }
    fn lock(&self, name: &str, mode: LockMode) -> std::io::Result<Option<Lock>> {
        self.storage.lock(name, mode)
    }
    fn byte_locks(&self, name: &str) -> std::io::Result<Box<dyn ByteLocks>> {
        self.storage.byte_locks(name)
    }
    fn path(&self) -> &Path {
        self.storage.path()
    }
}

impl File for LogFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        let room = self.room.load(Ordering::Relaxed);
        if room < 0 {
            return self.file.write_at(bytes, offset);
        }
        let written = bytes.len().min(room as usize);
        self.file.write_at(&bytes[..written], offset)?;
        Err(std::io::Error::new(ErrorKind::StorageFull, "the quota is used up"))
    }
    fn len(&self) -> std::io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.file.read_at(buffer, offset)
    }
    fn read_device(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<bool> {
        self.file.read_device(buffer, offset)
    }
    fn allocate(&self, offset: u64, length: u64) -> std::io::Result<()> {
        self.file.allocate(offset, length)
    }
    fn write_zeros(&self, offset: u64, length: u64) -> std::io::Result<()> {
        self.file.write_zeros(offset, length)
    }
    fn set_len(&self, length: u64) -> std::io::Result<()> {
        self.file.set_len(length)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }
    fn start_writeback(&self, offset: u64, length: u64) {
        self.file.start_writeback(offset, length);
    }
    fn allocated_bytes(&self) -> std::io::Result<u64> {
        self.file.allocated_bytes()
    }
    fn map(&self, reserve: u64, access: Access) -> std::io::Result<Mapping> {
        self.file.map(reserve, access)
    }
}

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written)
}

fn limited(disk: &SimDisk) -> (Platform, Room) {
    limited_by(disk, Room::new(AtomicI64::new(-1)))
}

fn limited_by(disk: &SimDisk, meta: Room) -> (Platform, Room) {
    let room = Room::new(AtomicI64::new(-1));
    let platform = disk.platform();
    let storage = Quota {
        storage: platform.storage.clone(),
        room: room.clone(),
        meta,
    };
    let platform = Platform {
        storage: Arc::new(storage),
        ..platform
    };
    (platform, room)
}

/// Bytes of a write that are written before it is refused: none, parts of a header and of a body.
const PARTS: [i64; 7] = [0, 1, 40, 48, 60, 100, 1_000];

#[test]
fn commit_whose_record_was_written_in_part_is_refused_and_the_next_one_takes_its_place() {
    for synced_between in [false, true] {
        for part in PARTS {
            let disk = SimDisk::new(1);
            let (platform, room) = limited(&disk);
            let store = options().open_on(platform).unwrap();
            let map = store.map("map").unwrap();
            map.put(b"before", b"value").unwrap();
            room.store(part, Ordering::Relaxed);
            for _ in 0..3 {
                let error = map.put(b"refused", [7; 3_000]).unwrap_err();
                assert_eq!(error.kind(), Kind::MakeSpace, "{part}: {error}");
                let mut batch = Batch::new();
                batch.put(&map, b"refused too", [7; 3_000]).unwrap();
                batch.append(&map, b"list", b"value").unwrap();
                let error = store.write(batch).unwrap_err();
                assert_eq!(error.kind(), Kind::MakeSpace, "{part}: {error}");
            }
            assert_eq!(map.count().unwrap(), 1);
            // The process may die here, and the power may go.
            for disk in [disk.kill(), disk.power_cut(1), disk.power_cut(2)] {
                let store = options().open_on(disk.platform()).unwrap();
                assert_eq!(store.map("map").unwrap().get(b"refused").unwrap(), None);
                assert_eq!(check_sound(&store), Ok(()));
            }
            room.store(-1, Ordering::Relaxed);
            if synced_between {
                // The next record begins in another unit.
                store.sync().unwrap();
            }
            map.put(b"after", b"value").unwrap();
            assert_eq!(map.append(b"list", b"value").unwrap(), 0);
            store.sync().unwrap();
            for disk in [disk.kill(), disk.power_cut(1), disk.power_cut(2)] {
                let store = options().open_on(disk.platform()).unwrap();
                let map = store.map("map").unwrap();
                assert_eq!(map.get(b"refused").unwrap(), None);
                assert_eq!(map.get(b"refused too").unwrap(), None);
                for key in [b"before".as_slice(), b"after"] {
                    assert_eq!(map.get(key).unwrap().unwrap(), b"value", "{part}");
                }
                assert_eq!(check_sound(&store), Ok(()));
            }
            store.maintain().unwrap();
            assert_eq!(map.count().unwrap(), 3);
            assert_eq!(check_sound(&store), Ok(()));
        }
    }
}

#[test]
fn commit_whose_record_is_whole_although_its_write_was_refused_is_made() {
    let disk = SimDisk::new(1);
    let (platform, room) = limited(&disk);
    let store = options().open_on(platform).unwrap();
    let map = store.map("map").unwrap();
    // All that is not written of it are zeros, which the log file has there.
    room.store(100, Ordering::Relaxed);
    map.put(b"key", [0; 3_000]).unwrap();
    room.store(-1, Ordering::Relaxed);
    map.put(b"after", b"value").unwrap();
    let reopened = options().open_on(disk.kill().platform()).unwrap();
    let map = reopened.map("map").unwrap();
    assert_eq!(map.get(b"key").unwrap().unwrap(), [0; 3_000]);
    assert_eq!(map.get(b"after").unwrap().unwrap(), b"value");
}

#[test]
fn refused_records_keep_no_room_promised() {
    let disk = SimDisk::new(1);
    let (platform, room) = limited(&disk);
    let store = options().open_on(platform).unwrap();
    let map = store.map("map").unwrap();
    map.put(b"key", [1; 3_000]).unwrap();
    disk.set_capacity(Some(disk.allocated_bytes() + (400 << 10)));
    room.store(10, Ordering::Relaxed);
    for _ in 0..1_000 {
        assert_eq!(map.put(b"key", [2; 3_000]).unwrap_err().kind(), Kind::MakeSpace);
    }
    room.store(-1, Ordering::Relaxed);
    for _ in 0..10 {
        map.put(b"key", [3; 3_000]).unwrap();
    }
    assert_eq!(check_sound(&store), Ok(()));
}

#[test]
fn fold_that_may_write_no_page_is_refused_and_made_later() {
    let disk = SimDisk::new(1);
    let meta = Room::new(AtomicI64::new(-1));
    let (platform, _) = limited_by(&disk, meta.clone());
    let store = options().open_on(platform).unwrap();
    let map = store.map("map").unwrap();
    map.put(b"key", [1; 3_000]).unwrap();
    for _ in 0..3 {
        meta.store(0, Ordering::Relaxed);
        assert_eq!(store.maintain().unwrap_err().kind(), Kind::MakeSpace);
        map.put(b"key", b"value").unwrap();
    }
    meta.store(-1, Ordering::Relaxed);
    store.maintain().unwrap();
    assert_eq!(check_sound(&store), Ok(()));
    let store = options().open_on(disk.kill().platform()).unwrap();
    assert_eq!(store.map("map").unwrap().get(b"key").unwrap().unwrap(), b"value");
}

#[test]
fn puts_work_at_once_after_folds_that_could_write_no_page() {
    for processes in [1, 3] {
        let disk = SimDisk::new(1);
        let meta = Room::new(AtomicI64::new(-1));
        let open = || {
            let options = options().maintenance(Maintenance::Background);
            let store = options
                .generation_bytes(48 << 10, 64 << 10)
                .open_on(limited_by(&disk, meta.clone()).0);
            store.unwrap()
        };
        let stores: Vec<_> = (0..processes).map(|_| open()).collect();
        let maps: Vec<_> = stores.iter().map(|store| store.map("map").unwrap()).collect();
        let put = |map: usize, number: u32| maps[map].put(number.to_be_bytes(), [1; 3_000]);
        let mut next = 0;
        for round in 0..3 {
            meta.store(0, Ordering::Relaxed);
            let (mut refused, begun) = (0, Instant::now());
            while refused < 100 {
                match put(refused % processes, next) {
                    Ok(()) => next += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::MakeSpace, "{error}");
                        refused += 1;
                    }
                }
            }
            let elapsed = begun.elapsed();
            assert!(elapsed < Duration::from_secs(5), "{refused} refusals took {elapsed:?}");
            meta.store(-1, Ordering::Relaxed);
            for map in (0..processes).cycle().take(100) {
                put(map, next).unwrap_or_else(|error| panic!("round {round}, {processes} processes: {error}"));
                next += 1;
            }
        }
        assert_eq!(maps[0].count().unwrap(), u64::from(next));
        assert_eq!(check_sound(&stores[0]), Ok(()));
    }
}
