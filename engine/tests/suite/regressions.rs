//! Faults that a review of the engine found, each as the shortest program that showed it.

use duramen_engine::{Batch, Durability, Kind, Maintenance, Map, Options, Reason, Store};
use std::path::Path;
use std::sync::{Arc, Mutex};

use duramen_io::{ByteLocks, FailKind, FailSpan, File, Lock, LockMode, OpenMode, Platform, SimDisk, Storage};

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(192 << 10, 256 << 10)
        .durability(Durability::Written)
}

fn assert_sound(store: &Store) {
    let report = store.check(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

fn counter(map: &Map, key: &[u8]) -> i64 {
    i64::from_be_bytes(map.get(key).unwrap().unwrap().try_into().unwrap())
}

/// Writes more than a transaction keeps in memory, so that it spills into a run.
fn spill(tx: &mut duramen_engine::Transaction, map: &Map) {
    for number in 0..18_000u32 {
        tx.put(map, number.to_be_bytes(), [7; 1000]).unwrap();
    }
}

#[test]
fn additions_of_one_batch_see_what_the_batch_did_before() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    let map = store.map("counters").unwrap();
    map.add(b"deleted", 100).unwrap();
    map.add(b"range/deleted", 100).unwrap();
    let mut batch = Batch::new();
    batch.add(&map, b"twice", 1).unwrap();
    batch.add(&map, b"twice", 2).unwrap();
    batch.put(&map, b"put", 5i64.to_be_bytes()).unwrap();
    batch.add(&map, b"put", 1).unwrap();
    batch.delete(&map, b"deleted").unwrap();
    batch.add(&map, b"deleted", 1).unwrap();
    batch.delete_range(&map, &b"range/"[..]..&b"range0"[..]).unwrap();
    batch.add(&map, b"range/deleted", 1).unwrap();
    store.write(batch).unwrap();
    assert_eq!(counter(&map, b"twice"), 3);
    assert_eq!(counter(&map, b"put"), 6);
    assert_eq!(counter(&map, b"deleted"), 1);
    assert_eq!(counter(&map, b"range/deleted"), 1);
}

#[test]
fn additions_that_overflow_within_a_transaction_are_refused() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    let map = store.map("counters").unwrap();
    map.add(b"key", -5).unwrap();
    let mut tx = store.begin(Default::default()).unwrap();
    tx.add(&map, b"key", i64::MAX).unwrap();
    let error = tx.add(&map, b"key", 2).unwrap_err();
    assert!(matches!(error.reason(), Reason::CounterOverflow { .. }), "{error}");
}

#[test]
fn id_of_a_map_made_in_a_spilled_transaction_is_not_given_out_again() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    let mut tx = store.begin(Default::default()).unwrap();
    let map = tx.map("large").unwrap();
    spill(&mut tx, &map);
    tx.commit().unwrap();
    let store = options().open_on(disk.kill().platform()).unwrap();
    assert_eq!(store.map("large").unwrap().count().unwrap(), 18_000);
    let other = store.map("other").unwrap();
    assert_eq!(other.count().unwrap(), 0);
    assert_sound(&store);
}

#[test]
fn put_after_an_addition_counts_in_a_spilled_transaction() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    for spills_first in [false, true] {
        let mut tx = store.begin(Default::default()).unwrap();
        tx.add(&map, b"put", 1).unwrap();
        tx.add(&map, b"deleted", 1).unwrap();
        tx.add(&map, b"counter", 1).unwrap();
        tx.savepoint().unwrap();
        if spills_first {
            spill(&mut tx, &map);
        }
        tx.put(&map, b"put", b"text").unwrap();
        tx.delete(&map, b"deleted").unwrap();
        if !spills_first {
            spill(&mut tx, &map);
        }
        tx.commit().unwrap();
        assert_eq!(map.get(b"put").unwrap().unwrap(), b"text");
        assert_eq!(map.get(b"deleted").unwrap(), None);
        map.delete(b"put").unwrap();
    }
    assert_eq!(counter(&map, b"counter"), 2);
}

#[test]
fn map_opened_by_name_and_dropped_by_somebody_else_is_a_conflict_that_the_closure_form_survives() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    let old = store.map("map").unwrap();
    old.put(b"old", b"1").unwrap();
    // Dropped before the map is used, between two uses, and right before the commit.
    for drop_at in 0..3 {
        let mut runs = 0;
        let transacted = store.transact(|tx| -> duramen_engine::Result<()> {
            runs += 1;
            let dropped_now = |at: u32| runs == 1 && at == drop_at;
            // By another thread: a thread makes no commit of its own inside a closure.
            let drop_map = || store.maps().drop("map");
            let drop_map = || std::thread::scope(|scope| scope.spawn(drop_map).join().expect("no panic"));
            let map = tx.map("map")?;
            for at in 0..2 {
                if dropped_now(at) {
                    drop_map()?;
                }
                tx.put(&map, [at as u8], b"new")?;
            }
            if dropped_now(2) {
                drop_map()?;
            }
            Ok(())
        });
        transacted.unwrap_or_else(|error| panic!("dropped at {drop_at}: {error}"));
        assert_eq!(runs, 2);
        let map = store.map("map").unwrap();
        assert_eq!(map.count().unwrap(), 2);
        assert_eq!(map.get(b"old").unwrap(), None);
    }
    let mut tx = store.begin(Default::default()).unwrap();
    let map = tx.map("map").unwrap();
    store.maps().drop("map").unwrap();
    let error = tx.put(&map, b"key", b"value").unwrap_err();
    assert!(
        matches!(error.reason(), Reason::Conflict { key, .. } if key == "\"map\""),
        "{error}"
    );
    // A handle that was there before names the map that is gone, and no other.
    let handle = store.map("map").unwrap();
    let mut tx = store.begin(Default::default()).unwrap();
    store.maps().drop("map").unwrap();
    let error = tx.put(&handle, b"key", b"value").unwrap_err();
    assert!(matches!(error.reason(), Reason::MapDropped { .. }), "{error}");
    assert_sound(&store);
}

#[test]
fn handle_from_an_old_snapshot_does_not_write_to_a_dropped_map() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    store.map("map").unwrap().put(b"key", b"value").unwrap();
    let mut tx = store.begin(Default::default()).unwrap();
    store.maps().drop("map").unwrap();
    let stale = tx.map("map").unwrap();
    assert_eq!(tx.get(&stale, b"key").unwrap().unwrap(), *b"value");
    let outcome = tx
        .append(&stale, b"prefix", b"value")
        .and_then(|()| tx.commit().map(drop));
    assert!(outcome.is_err());
    assert!(stale.put(b"key", b"value").is_err());
    assert_sound(&store);
}

/// A power cut may take the header of the new log file and leave records in it. They must not come back when the next
/// run happens to write the same first record.
#[test]
fn lost_records_do_not_come_back_behind_an_equal_first_record() {
    for seed in 0..60 {
        let disk = SimDisk::new(seed);
        let store = options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        map.put(b"first", b"lost").unwrap();
        map.put(b"second", b"lost").unwrap();
        let disk = disk.power_cut(seed);
        let store = options().open_on(disk.platform()).unwrap();
        let survived = store.maps().get("map").unwrap().is_some();
        store.map("map").unwrap();
        if survived {
            continue;
        }
        let store = options().open_on(disk.kill().platform()).unwrap();
        assert_eq!(store.map("map").unwrap().count().unwrap(), 0, "seed {seed}");
    }
}

/// After a failed sync the kernel may show bytes that the device never got, and later syncs do not write them. What a
/// new opening finds must be on the device before anything builds on it.
#[test]
fn store_reopened_after_a_failed_call_survives_a_power_cut() {
    let synced = || options().durability(Durability::Synced);
    let write = |store: &Store, round: u32| -> Result<(), duramen_engine::Error> {
        let map = store.map("map")?;
        for number in 0..12u32 {
            map.put(
                (round * 100 + number).to_be_bytes(),
                vec![number as u8; 20_000 * (number as usize % 5)],
            )?;
            if number % 4 == 3 {
                store.maintain()?;
            }
        }
        Ok(())
    };
    for nth in 1.. {
        let disk = SimDisk::new(nth);
        let store = synced().open_on(disk.platform()).unwrap();
        write(&store, 0).unwrap();
        disk.fail(nth, FailKind::Io, FailSpan::Once);
        let before = disk.calls();
        let outcome = write(&store, 1).err();
        let is_over = disk.calls() - before < nth;
        disk.stop_failing();
        drop(store);
        let Ok(store) = synced().open_on(disk.platform()) else {
            panic!("call {nth}: it does not open after {outcome:?}")
        };
        // Nothing but appending to the log, so that the next meta page does not hide a lost one.
        let map = store.map("map").unwrap();
        map.put(b"last", b"value").unwrap();
        let found = map.count().unwrap();
        for seed in 0..3 {
            let after = synced()
                .open_on(disk.power_cut(seed).platform())
                .unwrap_or_else(|error| panic!("call {nth}, seed {seed}, first {outcome:?}: {error}"));
            assert_eq!(
                after.map("map").unwrap().count().unwrap(),
                found,
                "call {nth}, seed {seed}"
            );
            assert_sound(&after);
        }
        if is_over {
            break;
        }
    }
}
/// Values a little too long for a leaf take a page each when they are folded, which is more than twice their length.
#[test]
fn full_store_of_awkward_values_can_be_emptied() {
    for length in [700, 1201, 5000, 70_000] {
        let disk = SimDisk::new(1);
        let store = options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        map.put(b"first", b"value").unwrap();
        disk.set_capacity(Some(6 << 20));
        let mut count = 0u32;
        let error = loop {
            match map.put(count.to_be_bytes(), vec![count as u8; length]) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error.kind(), Kind::MakeSpace), "{error}");
        assert!(count > 20, "length {length}: full after {count}");
        for number in 0..count {
            map.delete(number.to_be_bytes())
                .unwrap_or_else(|error| panic!("length {length}: delete {number} of {count}: {error}"));
        }
        store
            .maintain()
            .unwrap_or_else(|error| panic!("length {length}: {error}"));
        store.maintain().unwrap();
        assert_eq!(map.count().unwrap(), 1);
        map.put(b"again", vec![1; length]).unwrap();
        assert_sound(&store);
    }
}

#[test]
fn full_store_can_be_emptied_after_a_spilled_transaction() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    let mut tx = store.begin(Default::default()).unwrap();
    spill(&mut tx, &map);
    disk.set_capacity(Some(46 << 20));
    match tx.commit() {
        Ok(_) => {}
        Err(error) => assert!(matches!(error.kind(), Kind::MakeSpace), "{error}"),
    }
    let mut count = 0u32;
    while map.put((1 << 20 | count).to_be_bytes(), [1; 5000]).is_ok() {
        count += 1;
    }
    map.clear().unwrap();
    store.maintain().unwrap();
    store.maintain().unwrap();
    map.put(b"again", [1; 5000]).unwrap();
    assert_sound(&store);
}

/// A log file whose name may not survive a power cut must not take commits.
#[test]
fn failed_sync_of_the_directory_stops_the_store() {
    for nth in 1..40 {
        let disk = SimDisk::new(nth);
        let store = options()
            .durability(Durability::Synced)
            .open_on(disk.platform())
            .unwrap();
        let map = store.map("map").unwrap();
        disk.fail(nth, FailKind::Io, FailSpan::Once);
        let (mut acknowledged, mut has_failed) = (0, false);
        for number in 0..40u32 {
            let is_made = map.put(number.to_be_bytes(), vec![1; 30_000]).is_ok();
            acknowledged += is_made as u64;
            if is_made && has_failed {
                break;
            }
            has_failed |= !is_made;
        }
        for seed in 0..6 {
            let after = options().open_on(disk.power_cut(seed).platform()).unwrap();
            let found = after.map("map").unwrap().count().unwrap();
            assert!(
                found >= acknowledged,
                "call {nth}, seed {seed}: {found} of {acknowledged}"
            );
        }
    }
}

/// An executor may drop a future, and with it the last handle of the store, in the waker.
#[test]
fn last_handle_can_be_dropped_in_a_waker() {
    use std::future::Future;
    use std::sync::{Arc, Mutex, mpsc};
    use std::task::{Context, Wake};

    struct Dropping(Mutex<Option<duramen_engine::CommitFuture>>, mpsc::Sender<()>);
    impl Wake for Dropping {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
            self.1.send(()).unwrap();
        }
    }

    let (done, is_done) = mpsc::channel();
    let (mut woken, rounds) = (0, 20);
    for _ in 0..rounds {
        let disk = SimDisk::new(1);
        let store = options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        let mut batch = Batch::new();
        batch.put(&map, b"key", b"value").unwrap();
        batch.durability(Durability::Synced);
        let future = store.write_async(batch).unwrap();
        drop((map, store));
        let waker = Arc::new(Dropping(Mutex::new(Some(future)), done.clone()));
        let mut held = waker.0.lock().unwrap();
        let polled = std::pin::pin!(held.as_mut().unwrap()).poll(&mut Context::from_waker(&waker.clone().into()));
        drop(held);
        if polled.is_pending() {
            is_done
                .recv_timeout(std::time::Duration::from_secs(20))
                .expect("the waker hangs or died");
            woken += 1;
        }
    }
    println!("woken {woken} of {rounds}");
}

/// Bytes that all files of a disk have.
fn used_bytes(disk: &SimDisk) -> u64 {
    let length = |name: &String| (disk.read_raw(name).len() as u64).next_multiple_of(4096);
    disk.files().iter().map(length).sum()
}

#[test]
fn a_version_holds_all_generations_that_crashes_and_full_disks_can_leave_to_recovery() {
    let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let small = || options().generation_bytes(48 << 10, 64 << 10);
    let (mut most, mut refused) = (0, 0);
    for _ in 0..12 {
        let mut disk = SimDisk::new(rng.u64(..));
        let mut expected = std::collections::BTreeMap::new();
        for _ in 0..12 {
            disk = disk.kill();
            // Now and then there is no room to fold what is found, or not for all of it.
            let room = rng.u64(..20) << 12;
            disk.set_capacity(rng.bool().then(|| used_bytes(&disk) + room));
            let store = match small().open_on(disk.platform()) {
                Ok(store) => store,
                Err(error) => {
                    assert_eq!(error.kind(), Kind::MakeSpace, "{error}");
                    refused += 1;
                    continue;
                }
            };
            most = most.max(store.stat().unwrap().generations.frozen);
            let Ok(map) = store.map("map") else { continue };
            for _ in 0..rng.u32(..60) {
                let (key, value) = ([rng.u8(..)], vec![rng.u8(..); rng.usize(..5000)]);
                match map.put(key, &value) {
                    Ok(()) => drop(expected.insert(key, value)),
                    Err(error) => assert_eq!(error.kind(), Kind::MakeSpace, "{error}"),
                }
            }
            most = most.max(store.stat().unwrap().generations.frozen);
            disk = disk.kill();
        }
        disk.set_capacity(None);
        let store = small().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        assert_eq!(map.count().unwrap(), expected.len() as u64);
        assert!(
            expected
                .iter()
                .all(|(key, value)| map.get(key).unwrap().unwrap() == *value)
        );
        assert_sound(&store);
    }
    println!("up to {most} frozen generations, {refused} openings refused for want of room");
    assert!(most >= 4, "hardly anything was left to recovery");
}

#[test]
fn a_log_does_not_outlast_the_name_of_a_store_whose_maker_was_killed() {
    let opened = |disk: &SimDisk, calls: u64| {
        disk.stop_after(calls);
        drop(options().open_on(disk.platform()));
    };
    let has_log = |disk: &SimDisk| disk.files().iter().any(|name| name.starts_with("wal-"));
    let mut cuts = 0;
    for seed in 0..16 {
        // The maker is killed in one of its calls before there is a log; what that call did is random.
        for made in 0.. {
            let disk = SimDisk::new(seed);
            opened(&disk, made);
            if has_log(&disk) {
                break;
            }
            if !disk.files().iter().any(|name| name == "data") {
                continue;
            }
            // The next one to open it meets a power cut in one of its own.
            for calls in 0..24 {
                let disk = disk.kill();
                opened(&disk, calls);
                let disk = disk.power_cut(seed);
                if let Err(error) = options().open_on(disk.platform()) {
                    panic!("seed {seed}, killed after {made} calls, power cut after {calls} more: {error}");
                }
                cuts += has_log(&disk) as u32;
            }
        }
    }
    assert!(cuts > 100, "the power was cut {cuts} times when there was a log");
}

/// A directory in which somebody else does something right before a lock is taken.
struct Crowded {
    storage: Arc<dyn Storage>,
    before_lock: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Crowded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.storage.fmt(f)
    }
}

impl Crowded {
    fn act(&self) {
        let somebody = self.before_lock.lock().unwrap().take();
        if let Some(act) = somebody {
            act();
        }
    }
}

impl Storage for Crowded {
    fn open(&self, name: &str, mode: OpenMode) -> std::io::Result<Arc<dyn File>> {
        self.storage.open(name, mode)
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
        self.act();
        self.storage.lock(name, mode)
    }
    fn byte_locks(&self, name: &str) -> std::io::Result<Box<dyn ByteLocks>> {
        self.act();
        self.storage.byte_locks(name)
    }
    fn path(&self) -> &Path {
        self.storage.path()
    }
}

#[test]
fn a_store_that_somebody_makes_while_another_one_opens_it_is_not_made_again() {
    for is_exclusive in [false, true] {
        open_while_somebody_makes_it(options().exclusive(is_exclusive));
    }
}

fn open_while_somebody_makes_it(second: Options) {
    let disk = SimDisk::new(1);
    let somebody = disk.platform();
    let makes_and_puts = move || {
        let store = options().durability(Durability::Synced).open_on(somebody).unwrap();
        store.map("map").unwrap().put(b"key", b"acknowledged").unwrap();
        store.close().unwrap();
    };
    let platform = disk.platform();
    let storage = Crowded {
        storage: platform.storage.clone(),
        before_lock: Mutex::new(Some(Box::new(makes_and_puts))),
    };
    let platform = Platform {
        storage: Arc::new(storage),
        ..platform
    };
    let store = second.open_on(platform).unwrap();
    assert_eq!(
        store.map("map").unwrap().get(b"key").unwrap().as_deref(),
        Some(&b"acknowledged"[..])
    );
}

#[test]
fn files_whose_names_could_not_be_made_durable_are_made_anew() {
    // The sync of the directory fails, and drops the name of the data file, or of the log; the next one succeeds without.
    let mut failed = 0;
    for nth in 1..40 {
        for seed in 0..8 {
            let disk = SimDisk::new(seed);
            disk.fail(nth, FailKind::Io, FailSpan::Once);
            if options().open_on(disk.platform()).is_ok() {
                continue;
            }
            failed += 1;
            let store = options().open_on(disk.platform()).unwrap();
            let map = store.map("map").unwrap().with_durability(Durability::Synced);
            map.put(b"key", b"value").unwrap();
            let after = disk.power_cut(seed);
            let store = options().open_on(after.platform()).unwrap();
            let map = store.map("map").unwrap();
            let found = map.get(b"key").unwrap();
            assert_eq!(found.as_deref(), Some(&b"value"[..]), "call {nth}, seed {seed}");
        }
    }
    assert!(failed > 0);
}

#[test]
fn appends_go_on_after_pairs_that_were_put_where_they_go() {
    let store = options().open_on(SimDisk::new(1).platform()).unwrap();
    let map = store.map("map").unwrap();
    let key = |prefix: &[u8], number: u64| [prefix, &number.to_be_bytes()].concat();
    // As a dump that is loaded: no append was ever made here.
    for number in 0..3 {
        map.put(key(b"a/", number), b"loaded").unwrap();
        map.put(key(b"b/", number), b"loaded").unwrap();
    }
    map.delete(key(b"b/", 2)).unwrap();
    map.put([key(b"a/", 9), b"longer".to_vec()].concat(), b"").unwrap();
    map.put(b"a/z", b"shorter").unwrap();
    map.put(b"a/any text", b"text as long as a number").unwrap();
    assert_eq!(map.append(b"a/", b"new").unwrap(), 3);
    store.maintain().unwrap();
    assert_eq!(map.append(b"b/", b"new").unwrap(), 2);
    assert_eq!(map.append(b"c/", b"new").unwrap(), 0);
    // From here on it is counted, whatever becomes of the pairs.
    map.delete(key(b"a/", 3)).unwrap();
    map.put(key(b"a/", 7), b"put").unwrap();
    assert_eq!(map.append(b"a/", b"new").unwrap(), 4);
    for number in 0..3 {
        let held = map.get(key(b"a/", number)).unwrap();
        assert_eq!(held.as_deref(), Some(&b"loaded"[..]));
    }
    // What nobody can have counted to does not count.
    for number in [5, 1 << 48, u64::MAX] {
        map.put(key(b"d/", number), b"put").unwrap();
    }
    assert_eq!(map.append(b"d/", b"new").unwrap(), 6);
    assert_eq!(map.append(b"e/", b"new").unwrap(), 0);
}
