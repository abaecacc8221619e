//! A disk that fails and a disk that is full: every call returns, with success or with an error that says what to do;
//! nothing acknowledged is lost; after a failed sync nothing more is promised until the store is opened anew;
//! a full store can be emptied, and then there is room again. The same where several processes share the store: an error
//! that stops it in one of them stops it in all.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::common::crashes::panic_message;
use crate::common::history::History;
use crate::common::workload::{Ended, Workload, check_sound};
use crate::common::{Checked, Watchdog, seed, small_options};
use duramen_engine::{Durability, Error, Kind, Maintenance, Map, Options, Reason, Store, TransactionOptions};
use duramen_io::{FailKind, FailSpan, SimDisk};

const HANG: Duration = Duration::from_secs(60);

/// Work in which one call to the disk, or every call from one on, fails.
#[derive(Clone, Copy, Debug)]
struct Failing {
    seed: u64,
    steps: u32,
    nth: u64,
    kind: FailKind,
    span: FailSpan,
    /// That share the store; one has it to itself.
    processes: usize,
}

impl Failing {
    fn run(&self) -> Checked {
        let run = AssertUnwindSafe(|| self.run_unguarded());
        let found = catch_unwind(run).unwrap_or_else(|panic| Err(format!("panic: {}", panic_message(&*panic))));
        found.map_err(|cause| format!("{cause}\n{self:?}"))
    }

    fn run_unguarded(&self) -> Checked {
        let disk = SimDisk::new(self.seed);
        disk.fail(self.nth, self.kind, self.span);
        let mut history = History::new();
        let stores = self.open(&disk)?;
        if !stores.is_empty() {
            self.work(&stores, &mut history)?;
        }
        let (killed, cut) = (disk.kill(), disk.power_cut(self.seed));
        drop(stores);
        disk.stop_failing();
        // Three ways on: the same process opens the store again, another one after a kill, one after a power cut.
        for disk in [disk, killed] {
            reopened(&disk, history.clone())?;
        }
        history.power_cut();
        reopened(&cut, history)
    }

    /// Opens the store in as many processes as can.
    fn open(&self, disk: &SimDisk) -> Checked<Vec<Store>> {
        let mut stores = Vec::new();
        for _ in 0..self.processes {
            let options = small_options().fold_parts([0, 2, 5, 40][self.seed as usize % 4], 1);
            match options.open_on(disk.platform()) {
                Ok(store) => stores.push(store),
                // Whoever found no room for the memory to share has the store to himself.
                Err(error) if !stores.is_empty() && matches!(error.reason(), Reason::InUse { .. }) => {}
                Err(error) => self.expected(&error)?,
            }
        }
        Ok(stores)
    }

    /// Goes on after errors, as a program would that hopes for the best.
    fn work(&self, stores: &[Store], history: &mut History) -> Checked {
        let mut workload = Workload::new(self.seed, self.seed ^ 1);
        let mut stopped = false;
        for _ in 0..self.steps {
            let error = match workload.run_among(stores, history, 1) {
                Ok(()) if stopped => return Err("the store went on after it had stopped".into()),
                Ok(()) => continue,
                Err(Ended::Stopped(error)) => error,
                Err(Ended::Wrong(cause)) => return Err(cause),
            };
            self.expected(&error)?;
            if stopped && error.kind() != Kind::Reopen {
                return Err(format!("the store has stopped and answers {error}"));
            }
            // The error that stops the store may be that of the call itself.
            let store = &stores[0];
            let snapshot = store.snapshot();
            let said = stores
                .iter()
                .map(|store| store.snapshot().err().map(|error| error.kind()));
            let said: Vec<Option<Kind>> = said.collect();
            if said.iter().any(|kind| *kind != said[0]) {
                return Err(format!("the store has stopped in some processes alone: {said:?}"));
            }
            stopped |= error.kind() == Kind::Reopen || said[0] == Some(Kind::Reopen);
            if !matches!(error.reason(), Reason::Unknown { .. }) {
                history.refused_if_pending();
            }
            if stopped && history.is_pending() {
                break;
            }
            if !stopped {
                let snapshot = snapshot.map_err(|error| error.to_string())?;
                history.compare_snapshot(store, &snapshot)?;
            }
        }
        Ok(())
    }

    /// Refuses errors that do not say what happened.
    fn expected(&self, error: &Error) -> Checked {
        let fits = match self.kind {
            FailKind::NoSpace => error.kind() == Kind::MakeSpace,
            FailKind::Io => error.kind() == Kind::Reopen || matches!(error.reason(), Reason::Io { .. }),
        };
        if fits {
            Ok(())
        } else {
            Err(format!("an unexpected error: {error:?}"))
        }
    }
}

fn reopened(disk: &SimDisk, mut history: History) -> Checked {
    let store = small_options().open_on(disk.platform());
    let store = store.map_err(|error| format!("the store does not open: {error}"))?;
    history.recovered(&store)?;
    check_sound(&store)?;
    let mut workload = Workload::new(1, 2);
    if let Err(ended) = workload.run(&store, &mut history, 10) {
        return Err(format!("after the failure: {ended:?}"));
    }
    drop(workload);
    store.close().map_err(|error| format!("closing: {error}"))
}

fn fail_every_call(kind: FailKind, span: FailSpan, processes: usize, rounds: u64) {
    let seed = seed();
    let _watchdog = Watchdog::start("a failing disk", seed, HANG * 5);
    for round in 0..rounds {
        let case = Failing {
            seed: seed.wrapping_add(round),
            steps: 30,
            nth: u64::MAX,
            kind,
            span,
            processes,
        };
        let disk = SimDisk::new(case.seed);
        let stores = case.open(&disk).unwrap();
        case.work(&stores, &mut History::new()).unwrap();
        drop(stores);
        for nth in 1..=disk.calls() {
            if let Err(cause) = (Failing { nth, ..case }).run() {
                panic!("{cause}");
            }
        }
    }
}

#[test]
fn one_call_without_space_loses_nothing() {
    fail_every_call(FailKind::NoSpace, FailSpan::Once, 1, 2);
}

#[test]
fn no_space_from_any_call_on_loses_nothing() {
    fail_every_call(FailKind::NoSpace, FailSpan::Forever, 1, 2);
}

#[test]
fn one_failing_call_loses_nothing() {
    fail_every_call(FailKind::Io, FailSpan::Once, 1, 2);
}

#[test]
fn failing_from_any_call_on_loses_nothing() {
    fail_every_call(FailKind::Io, FailSpan::Forever, 1, 2);
}

#[test]
fn one_call_without_space_loses_nothing_of_several_processes() {
    fail_every_call(FailKind::NoSpace, FailSpan::Once, 3, 2);
}

#[test]
fn no_space_from_any_call_on_loses_nothing_of_several_processes() {
    fail_every_call(FailKind::NoSpace, FailSpan::Forever, 2, 2);
}

#[test]
fn one_failing_call_loses_nothing_of_several_processes() {
    fail_every_call(FailKind::Io, FailSpan::Once, 3, 2);
}

#[test]
fn failing_from_any_call_on_loses_nothing_of_several_processes() {
    fail_every_call(FailKind::Io, FailSpan::Forever, 2, 2);
}

#[test]
fn after_a_failed_sync_the_store_promises_nothing_until_it_is_opened_anew() {
    let disk = SimDisk::new(1);
    let store = small_options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    map.put(b"before", b"1").unwrap();
    store.sync().unwrap();
    let synced = map.with_durability(Durability::Synced);
    // The record is written, its sync fails.
    disk.fail(2, FailKind::Io, FailSpan::Once);
    let error = synced.put(b"doubtful", b"2").unwrap_err();
    assert!(matches!(error.reason(), Reason::Unknown { commit: 3, .. }), "{error}");
    for error in [
        synced.put(b"later", b"3").unwrap_err(),
        map.delete(b"before").unwrap_err(),
        store.sync().unwrap_err(),
        store.maintain().unwrap_err(),
        store.begin(Default::default()).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Reopen, "{error}");
    }
    let cut = disk.power_cut(3);
    drop((map, synced, store));
    for disk in [disk, cut] {
        let store = small_options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        assert_eq!(map.get(b"before").unwrap().unwrap(), b"1");
        assert_eq!(map.get(b"later").unwrap(), None);
        map.with_durability(Durability::Synced).put(b"later", b"4").unwrap();
    }
}

/// Fails the first sync of what `fails` does that is answered by an error, and expects that to say that the store must
/// be opened anew, and why.
fn a_failed_sync_says_so(setting: impl Fn(&Store, &Map), fails: impl Fn(&Store, &Map) -> Result<(), Error>) {
    let mut stopped = 0;
    for nth in 1..100 {
        let disk = SimDisk::new(nth);
        let store = small_options().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        setting(&store, &map);
        disk.fail(nth, FailKind::Io, FailSpan::Once);
        let outcome = fails(&store, &map);
        disk.stop_failing();
        let Err(error) = outcome else { break };
        match store.snapshot() {
            Ok(_) => assert!(matches!(error.reason(), Reason::Io { .. }), "call {nth}: {error:?}"),
            Err(later) => {
                stopped += 1;
                assert_eq!(later.kind(), Kind::Reopen);
                assert_eq!(error.kind(), Kind::Reopen, "call {nth}: {error:?}");
                assert!(error.to_string().contains("rror"), "call {nth} has no cause: {error}");
            }
        }
    }
    assert!(stopped > 0, "no call stopped the store");
}

#[test]
fn a_failed_sync_of_long_values_says_that_the_store_must_be_opened_anew() {
    a_failed_sync_says_so(
        |_, _| (),
        |store, map| {
            let mut tx = store.begin(TransactionOptions::new().durability(Durability::Synced))?;
            tx.put(map, b"long", vec![1; 100_000])?;
            tx.commit().map(drop)
        },
    );
    a_failed_sync_says_so(
        |_, _| (),
        |_, map| map.with_durability(Durability::Synced).put(b"long", vec![1; 100_000]),
    );
    // A commit that need not be durable leaves it to the next sync.
    a_failed_sync_says_so(
        |_, map| map.put(b"long", vec![1; 100_000]).unwrap(),
        |store, _| store.sync(),
    );
}

#[test]
fn a_base_that_cannot_be_made_durable_says_that_the_store_must_be_opened_anew() {
    a_failed_sync_says_so(|_, map| map.put(b"key", b"value").unwrap(), |store, _| store.maintain());
}

#[test]
fn an_error_of_the_device_is_not_blamed_on_the_call() {
    use std::io::ErrorKind;
    let directory = tempfile::tempdir().unwrap();
    let error = Options::new().open(directory.path().join("missing/store")).unwrap_err();
    assert!(matches!(error.reason(), Reason::Io { error, .. } if error.kind() == ErrorKind::NotFound));
    assert_eq!(error.kind(), Kind::FixTheCall, "{error}");
    let disk = SimDisk::new(1);
    disk.fail(1, FailKind::Io, FailSpan::Forever);
    let error = small_options().open_on(disk.platform()).unwrap_err();
    assert!(matches!(error.reason(), Reason::Io { .. }), "{error}");
    assert_eq!(error.kind(), Kind::Retry, "{error}");
    disk.stop_failing();
    small_options().open_on(disk.platform()).unwrap();
}

/// How a full store is emptied.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Emptying {
    /// All keys by one range delete.
    Range,
    /// Every key by itself.
    Singly,
}

fn is_full(error: &Error) -> bool {
    error.kind() == Kind::MakeSpace
}

/// Puts until the disk is full; returns how many keys there are. Errors say that space is missing, and every key that
/// was acknowledged can be read.
fn fill(map: &Map, length: usize) -> u64 {
    let mut number = 0u64;
    let error = loop {
        match map.put(number.to_be_bytes(), vec![number as u8; length]) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 100_000, "the disk never gets full");
    };
    assert!(is_full(&error), "{error}");
    assert_eq!(map.count().unwrap(), number);
    number
}

fn empty(map: &Map, keys: u64, how: Emptying) {
    match how {
        Emptying::Range => map.delete_range(..).unwrap(),
        Emptying::Singly => (0..keys).for_each(|number| {
            let deleted = map.delete(number.to_be_bytes());
            deleted.unwrap_or_else(|error| panic!("deleting key {number} of {keys}: {error}"));
        }),
    }
    assert_eq!(map.count().unwrap(), 0);
}

fn a_full_store_can_be_emptied(options: Options, capacity: u64, length: usize, how: Emptying, has_reader: bool) {
    println!("capacity {capacity}, values of {length}, {how:?}, reader {has_reader}");
    let _watchdog = Watchdog::start("a full disk", capacity, HANG);
    let disk = SimDisk::new(capacity);
    disk.set_capacity(Some(capacity));
    let store = options.clone().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    for _ in 0..3 {
        let keys = fill(&map, length);
        let reader = has_reader.then(|| store.snapshot().unwrap());
        assert!(keys > 10, "{keys} keys fit");
        empty(&map, keys, how);
        if let Some(reader) = &reader {
            assert_eq!(reader.count(&map, ..).unwrap(), keys);
        }
        drop(reader);
        store.maintain().unwrap();
        store.maintain().unwrap();
        assert_eq!(check_sound(&store), Ok(()));
    }
    let keys = fill(&map, length);
    drop((map, store));
    let store = options.open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    assert_eq!(map.count().unwrap(), keys);
    empty(&map, keys, how);
    store.maintain().unwrap();
    assert!(fill(&map, length) > 10);
}

#[test]
fn a_full_disk_can_always_be_emptied() {
    for how in [Emptying::Range, Emptying::Singly] {
        for (capacity, length) in [(3 << 20, 100), (3 << 20, 3000), (8 << 20, 700), (8 << 20, 100_000)] {
            a_full_store_can_be_emptied(small_options(), capacity, length, how, false);
        }
    }
}

#[test]
fn a_full_disk_of_any_size_can_be_emptied_key_by_key() {
    for pages in (0..64).step_by(3) {
        let capacity = (3 << 20) + pages * 4096;
        a_full_store_can_be_emptied(small_options(), capacity, 100, Emptying::Singly, false);
    }
}

#[test]
fn a_full_disk_can_be_emptied_by_range_while_somebody_reads() {
    for (capacity, length) in [(3 << 20, 100), (3 << 20, 3000), (8 << 20, 700), (8 << 20, 100_000)] {
        a_full_store_can_be_emptied(small_options(), capacity, length, Emptying::Range, true);
    }
}

#[test]
fn a_full_disk_can_be_emptied_with_maintenance_in_the_background() {
    let options = small_options().maintenance(Maintenance::Background);
    for how in [Emptying::Range, Emptying::Singly] {
        a_full_store_can_be_emptied(options.clone(), 4 << 20, 1000, how, false);
    }
}

#[test]
fn deleting_singly_on_a_full_disk_while_somebody_reads_works_or_says_what_is_missing() {
    let _watchdog = Watchdog::start("a full disk", 0, HANG);
    let disk = SimDisk::new(1);
    disk.set_capacity(Some(4 << 20));
    let store = small_options().open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    let keys = fill(&map, 700);
    let reader = store.snapshot().unwrap();
    let mut deleted = 0;
    for number in 0..keys {
        match map.delete(number.to_be_bytes()) {
            Ok(()) => deleted += 1,
            Err(error) => assert!(is_full(&error), "{error}"),
        }
    }
    println!("{deleted} of {keys} deleted");
    assert_eq!(map.count().unwrap(), keys - deleted);
    assert_eq!(reader.count(&map, ..).unwrap(), keys);
    drop(reader);
    store.maintain().unwrap();
    empty(&map, keys, Emptying::Singly);
}
