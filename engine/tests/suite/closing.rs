//! Closing: a closed store can be opened again at once, also in other processes, whatever handles of it are still
//! there. They answer `Closed` and touch nothing; what is open (snapshots, transactions, streams) keeps the lock.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::workload::check_sound;
use crate::common::{Watchdog, seed};
use duramen_engine::{Batch, ChangesFrom, Durability, Kind, Map, Options, Reason, Store};
use fastrand::Rng;

fn options() -> Options {
    Options::new()
        .durability(Durability::Written)
        .generation_bytes(64 << 10, 128 << 10)
}

fn is_in_use(path: &std::path::Path) -> bool {
    match options().exclusive(true).open(path) {
        Ok(store) => {
            store.close().unwrap();
            false
        }
        Err(error) => {
            assert!(matches!(error.reason(), Reason::InUse { .. }), "{error}");
            true
        }
    }
}

#[test]
fn a_closed_store_can_be_opened_while_handles_of_it_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let store = options().open(directory.path()).unwrap();
    let map = store.map("map").unwrap();
    map.put(b"key", b"old").unwrap();
    let (other, future) = (store.clone(), store.write_async(Batch::new()).unwrap());
    store.close().unwrap();
    let again = options().open(directory.path()).unwrap();
    let new = again.map("map").unwrap();
    new.put(b"key", b"new").unwrap();
    for error in [
        map.get(b"key").map(drop).unwrap_err(),
        map.put(b"key", b"lost").unwrap_err(),
        map.put(b"key", vec![1; 100_000]).unwrap_err(),
        map.put_stream(b"key", 100_000, &mut std::io::repeat(1).take(100_000))
            .unwrap_err(),
        other.snapshot().map(drop).unwrap_err(),
        other.begin(Default::default()).map(drop).unwrap_err(),
        other.maintain().unwrap_err(),
        other.compact(&mut |_| ()).map(drop).unwrap_err(),
        other.check(&mut |_| ()).map(drop).unwrap_err(),
        other.copy(directory.path().join("copy"), &mut |_| ()).unwrap_err(),
        other.changes(ChangesFrom::Now).map(drop).unwrap_err(),
        other.stat().map(drop).unwrap_err(),
        other.sync().unwrap_err(),
    ] {
        assert!(matches!(error.reason(), Reason::Closed), "{error}");
    }
    assert_eq!(new.get(b"key").unwrap().unwrap(), b"new");
    drop((map, other, future));
    // Nor does the end of the old handles change anything.
    new.put(b"more", b"more").unwrap();
    assert_eq!(check_sound(&again), Ok(()));
    drop(new);
    again.close().unwrap();
    let store = options().open(directory.path()).unwrap();
    assert_eq!(store.map("map").unwrap().count().unwrap(), 2);
}

#[test]
fn what_is_open_keeps_a_closed_store_locked_until_it_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    for kept in 0..4 {
        let store = options().open(directory.path()).unwrap();
        let map = store.map("map").unwrap();
        map.put(b"key", b"value").unwrap();
        let handle = store.clone();
        let snapshot = (kept == 0).then(|| store.snapshot().unwrap());
        let transaction = (kept == 1).then(|| store.begin(Default::default()).unwrap());
        let stream = (kept == 2).then(|| store.changes(ChangesFrom::Now).unwrap());
        store.close().unwrap();
        assert_eq!(is_in_use(directory.path()), kept < 3);
        if let Some(snapshot) = &snapshot {
            assert_eq!(snapshot.get(&map, b"key").unwrap().unwrap(), b"value");
        }
        drop((snapshot, transaction, stream));
        assert!(!is_in_use(directory.path()), "dropping them lets go");
        assert_eq!(map.get(b"key").unwrap_err().kind(), Kind::Closed);
        drop(handle);
    }
}

#[test]
fn a_store_that_keeps_its_log_for_streams_lets_go_when_it_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let store = options().retain_log_bytes(1 << 20).open(directory.path()).unwrap();
    let map = store.map("map").unwrap();
    for number in 0..50u32 {
        map.put(number.to_be_bytes(), [1; 5000]).unwrap();
    }
    store.maintain().unwrap();
    store.close().unwrap();
    assert!(!is_in_use(directory.path()));
    drop(map);
}

#[test]
fn a_read_only_store_lets_go_when_it_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    options().open(directory.path()).unwrap().map("map").unwrap();
    let store = options().read_only(true).open(directory.path()).unwrap();
    let map = store.map("map").unwrap();
    let error = options().open(directory.path()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("only read it") && !text.contains("process "), "{text}");
    store.close().unwrap();
    assert!(!is_in_use(directory.path()));
    assert_eq!(map.get(b"key").unwrap_err().kind(), Kind::Closed);
}

/// Does whatever a handle can until the store is closed.
fn use_it(store: &Store, map: &Map, rng: &mut Rng, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let key = [rng.u8(..)];
        let outcome = match rng.u8(..7) {
            0 => map.put(key, [key[0]; 200]),
            1 => map.put(key, vec![key[0]; 70_000]),
            2 => map.get(key).map(drop),
            3 => store.snapshot().and_then(|snapshot| snapshot.get(map, key).map(drop)),
            4 => store.maintain(),
            5 => map.delete(key),
            _ => store.transact(|tx| tx.put(map, key, [key[0]; 300])),
        };
        match outcome {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::Closed => return,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn closing_while_others_use_their_handles_hurts_nobody() {
    let seed = seed();
    let _watchdog = Watchdog::start("closing", seed, Duration::from_secs(120));
    let directory = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for round in 0..40u64 {
            // Opened while threads of the rounds before may still be on their way out.
            let store = loop {
                match options().exclusive(round % 2 == 0).open(directory.path()) {
                    Ok(store) => break store,
                    Err(error) => assert!(matches!(error.reason(), Reason::InUse { .. }), "{error}"),
                }
                thread::yield_now();
            };
            assert_eq!(check_sound(&store), Ok(()));
            let map = store.map("map").unwrap();
            let snapshot = store.snapshot().unwrap();
            let mut cursor = snapshot.range(&map, ..).unwrap();
            while let Some((key, value)) = cursor.next().unwrap() {
                assert!(value.iter().all(|byte| *byte == key[0]), "round {round}, key {key:?}");
            }
            drop(cursor);
            drop(snapshot);
            for thread in 0..3 {
                let (store, map, stop) = (store.clone(), map.clone(), &stop);
                let mut rng = Rng::with_seed(seed ^ (round << 8 | thread));
                scope.spawn(move || use_it(&store, &map, &mut rng, stop));
            }
            thread::sleep(Duration::from_millis(5));
            store.close().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let store = options().open(directory.path()).unwrap();
    assert_eq!(check_sound(&store), Ok(()));
}

#[test]
fn a_temporary_store_leaves_nothing_behind() {
    let store = Store::temporary().expect("a store");
    let map = store.map("map").expect("a map");
    map.put("key", "value").expect("a put");
    let text = format!("{store:?}");
    let directory = text.split('"').nth(1).expect("a path").to_string();
    assert!(std::path::Path::new(&directory).is_dir(), "{directory}");
    drop(store);
    // A map is a handle, too.
    assert!(std::path::Path::new(&directory).is_dir(), "{directory}");
    drop(map);
    assert!(!std::path::Path::new(&directory).exists(), "{directory}");
}

/// A waker that unparks the thread which waits.
struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

fn wait_for<F: std::future::Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn closing_can_be_awaited_and_goes_on_when_it_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    for is_awaited in [true, false] {
        let store = Store::open(directory.path()).expect("a store");
        let map = store.map("map").expect("a map");
        map.put("key", "value").expect("a put");
        let closing = store.close_async();
        if is_awaited {
            wait_for(closing).expect("a close");
        } else {
            drop(closing);
            while map.get("key").is_ok() {
                std::thread::yield_now();
            }
        }
        let closed = map.get("key").expect_err("it is closed");
        assert!(matches!(closed.reason(), Reason::Closed), "{closed}");
    }
}
