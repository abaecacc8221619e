//! Calls that would wait for ever, or for long: a commit beside a transaction of its own thread is refused at once, and a
//! wait for a transaction of another thread ends after `Options::lock_timeout`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::time::Duration;

use duramen_engine::{
    Batch, Durability, Kind, Maintenance, Map, Options, Reason, Result, Store, Transaction, TransactionOptions,
};
use duramen_io::SimDisk;

/// A test that hangs ends after so long.
const HANGS: Duration = Duration::from_secs(60);
/// Runs of a closure beside others, before it runs exclusively.
const CONCURRENT_RUNS: u32 = 10;

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written)
        // Long: what is refused at once does not come near it, and what hangs is found by the watchdog.
        .lock_timeout(Duration::from_secs(3600))
}

fn store_with(options: Options) -> (Store, Map) {
    let store = options.open_on(SimDisk::new(1).platform()).expect("a store");
    let map = store.map("counts").expect("a map");
    for name in ["renamed", "dropped"] {
        store.map(name).expect("a map");
    }
    map.put(b"key", b"0").expect("a put");
    (store, map)
}

/// Runs `body` in a thread, and fails when it does not come to an end.
fn in_time<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(body));
        let _ = done.send(());
        result
    });
    ended.recv_timeout(HANGS).expect("the calls come to an end");
    match thread.join().expect("the panic was caught") {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

type Call = fn(&Store, &Map) -> Result<()>;

fn batch(map: &Map) -> Result<Batch> {
    let mut batch = Batch::new();
    batch.put(map, b"key", b"value")?;
    Ok(batch)
}

/// Every call that makes a commit of its own, with its name and the map that its error names.
const CALLS: &[(&str, &str, Call)] = &[
    ("map.put", "counts", |_, map| map.put(b"key", b"value")),
    ("map.put_stream", "counts", |_, map| {
        map.put_stream(b"key", 100_000, &mut &[7; 100_000][..])
    }),
    ("map.delete", "counts", |_, map| map.delete(b"key")),
    ("map.delete_range", "counts", |_, map| map.delete_range(&b"k"[..]..)),
    ("map.clear", "counts", |_, map| map.clear()),
    ("map.create", "counts", |_, map| map.create(b"new", b"value").map(drop)),
    ("map.compare_and_swap", "counts", |_, map| {
        map.compare_and_swap(b"key", Some(b"0"), None).map(drop)
    }),
    ("map.update", "counts", |_, map| {
        map.update(b"key", |_| Some(b"value".to_vec())).map(drop)
    }),
    ("map.add", "counts", |_, map| map.add(b"sum", 1).map(drop)),
    ("map.append", "counts", |_, map| map.append(b"log", b"value").map(drop)),
    ("store.map", "new", |store, _| store.map("new").map(drop)),
    ("maps.create", "made", |store, _| store.maps().create("made").map(drop)),
    ("maps.rename", "renamed", |store, _| {
        store.maps().rename("renamed", "again")
    }),
    ("maps.drop", "dropped", |store, _| store.maps().drop("dropped")),
    ("store.write", "counts", |store, map| store.write(batch(map)?).map(drop)),
    ("store.write_async", "counts", |store, map| {
        store.write_async(batch(map)?).map(drop)
    }),
    ("store.transact", "counts", |store, map| {
        store.transact(|tx| tx.put(map, b"key", b"value"))
    }),
    ("store.begin", "", |store, _| {
        store.begin(TransactionOptions::new().exclusive()).map(drop)
    }),
    ("tx.commit", "counts", |store, map| {
        let mut tx = store.begin(TransactionOptions::new())?;
        tx.put(map, b"key", b"value")?;
        tx.commit().map(drop)
    }),
];

/// Calls that make no commit: they go on inside transactions of any kind.
fn read_beside(store: &Store, map: &Map) -> Result<()> {
    map.get(b"key")?;
    map.count()?;
    store.map("counts")?;
    store.snapshot()?.get(map, b"key")?;
    store.sync()?;
    store.write(Batch::new())?;
    store.transact(|tx| tx.get(map, b"key").map(drop))
}

#[track_caller]
fn assert_refused(done: Result<()>, call: &str, map: &str) {
    let error = done.expect_err(call);
    assert_eq!(error.kind(), Kind::FixTheCall, "{error}");
    match error.reason() {
        Reason::WouldWaitForItself { call: c, map: m } => assert_eq!((*c, m.as_str()), (call, map)),
        _ => panic!("{call}: {error}"),
    }
    let text = error.to_string();
    assert!(
        text.contains(call) && text.contains(map) && text.contains("tx"),
        "{text}"
    );
}

#[test]
fn commits_beside_an_exclusive_transaction_of_the_same_thread_are_refused_at_once() {
    in_time(|| {
        let (store, map) = store_with(options());
        let mut tx = store.begin(TransactionOptions::new().exclusive()).expect("it");
        tx.put(&map, b"key", b"1").expect("a put");
        for (call, name, make) in CALLS {
            assert_refused(make(&store, &map), call, name);
        }
        let nested = store.transact_with(TransactionOptions::new().exclusive(), |_| Ok(()));
        assert_refused(nested, "store.begin", "");
        read_beside(&store, &map).expect("reads");
        tx.commit().expect("it goes on");
        for (call, _, make) in CALLS {
            make(&store, &map).unwrap_or_else(|error| panic!("{call} afterwards: {error}"));
        }
    });
}

#[test]
fn commits_inside_a_closure_that_runs_exclusively_from_the_first_run_on_are_refused_at_once() {
    in_time(|| {
        let (store, map) = store_with(options());
        for (call, name, make) in CALLS {
            let mut runs = 0;
            let done = store.transact_with(TransactionOptions::new().exclusive(), |tx| {
                runs += 1;
                tx.put(&map, b"key", b"1")?;
                read_beside(&store, &map)?;
                make(&store, &map)
            });
            assert_refused(done, call, name);
            assert_eq!(
                (runs, map.get(b"key").expect("a read").as_deref()),
                (1, Some(&b"0"[..]))
            );
        }
    });
}

/// Runs a closure that meets a conflict with another thread until it runs exclusively, and then does `last`.
fn after_ten_conflicts(store: &Store, map: &Map, last: impl Fn(&mut Transaction) -> Result<()>) -> Result<()> {
    let mut runs = 0;
    store.transact(|tx| {
        runs += 1;
        tx.put(map, b"key", b"1")?;
        if runs <= CONCURRENT_RUNS {
            std::thread::scope(|scope| scope.spawn(|| map.put(b"key", b"0")).join().expect("no panic"))?;
            return Ok(());
        }
        last(tx)
    })
}

#[test]
fn commits_inside_a_closure_that_runs_exclusively_after_ten_conflicts_are_refused_at_once() {
    in_time(|| {
        let (store, map) = store_with(options());
        for (call, name, make) in CALLS {
            assert_refused(after_ten_conflicts(&store, &map, |_| make(&store, &map)), call, name);
        }
        after_ten_conflicts(&store, &map, |tx| tx.put(&map, b"key", b"2")).expect("it gets through");
        assert_eq!(map.get(b"key").expect("a read").as_deref(), Some(&b"2"[..]));
    });
}

#[test]
fn update_that_commits_in_its_closure_does_not_wait_for_itself_either() {
    in_time(|| {
        let (_store, map) = store_with(options());
        let (mut runs, mut refused) = (0, None);
        map.update(b"key", |_| {
            runs += 1;
            if runs <= CONCURRENT_RUNS {
                map.put(b"key", b"0").expect("no transaction is open");
            } else {
                refused = map.put(b"other", b"1").err();
            }
            Some(b"1".to_vec())
        })
        .expect("an update");
        assert_refused(refused.map_or(Ok(()), Err), "map.put", "counts");
        assert_eq!(map.get(b"key").expect("a read").as_deref(), Some(&b"1"[..]));
    });
}

#[test]
#[cfg(debug_assertions)]
fn debug_builds_panic_on_a_commit_inside_a_closure_from_the_first_run_on() {
    in_time(|| {
        let (store, map) = store_with(options());
        for (call, name, make) in CALLS {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                store.transact(|tx| {
                    tx.put(&map, b"key", b"1")?;
                    read_beside(&store, &map)?;
                    make(&store, &map)
                })
            }));
            let panic = panic.expect_err(call);
            let text = panic.downcast_ref::<String>().expect("a text");
            assert!(
                text.contains(call) && text.contains(name) && text.contains("tx"),
                "{text}"
            );
            assert_eq!(map.get(b"key").expect("a read").as_deref(), Some(&b"0"[..]), "{call}");
        }
        map.put(b"key", b"1").expect("outside of closures");
    });
}

#[test]
fn other_stores_other_threads_and_transactions_by_hand_are_no_mistake() {
    in_time(|| {
        let (store, map) = store_with(options());
        let (other, other_map) = store_with(options());
        store
            .transact(|tx| {
                tx.put(&map, b"key", b"1")?;
                other_map.put(b"key", b"1")?;
                other.transact(|tx| tx.put(&other_map, b"key", b"2"))?;
                std::thread::scope(|scope| scope.spawn(|| map.put(b"beside", b"1")).join().expect("no panic"))
            })
            .expect("two stores");
        let mut left = store.begin(TransactionOptions::new()).expect("a transaction");
        let mut right = store.begin(TransactionOptions::new()).expect("a transaction");
        left.put(&map, b"left", b"1").expect("a put");
        right.put(&map, b"right", b"1").expect("a put");
        map.put(b"between", b"1").expect("a put");
        left.commit().expect("a commit");
        right.commit().expect("a commit");
    });
}

#[test]
fn exclusive_transaction_belongs_to_the_thread_that_made_the_last_call_on_it() {
    in_time(|| {
        let (store, map) = store_with(options().lock_timeout(Duration::from_millis(20)));
        let mut tx = store.begin(TransactionOptions::new().exclusive()).expect("it");
        assert_refused(map.put(b"key", b"1"), "map.put", "counts");
        let tx = std::thread::scope(|scope| {
            let moved = scope.spawn(|| {
                tx.put(&map, b"key", b"1").expect("a put");
                assert_refused(map.put(b"key", b"2"), "map.put", "counts");
                tx
            });
            moved.join().expect("no panic")
        });
        // Here it is another thread's, so this call waits for it.
        let error = map.put(b"key", b"2").expect_err("it is not over");
        assert!(matches!(error.reason(), Reason::LockTimeout { .. }), "{error}");
        tx.commit().expect("a commit");
        map.put(b"key", b"2").expect("it is over");
    });
}

#[test]
fn waiting_for_an_exclusive_transaction_of_another_thread_ends_and_names_this_process() {
    for timeout in [Duration::ZERO, Duration::from_millis(250)] {
        in_time(move || {
            let (store, map) = store_with(options().lock_timeout(timeout));
            let tx = store.begin(TransactionOptions::new().exclusive()).expect("it");
            let waiting = std::thread::scope(|scope| {
                let calls: [Call; 3] = [
                    |_, map| map.put(b"key", b"1"),
                    |store, _| store.begin(TransactionOptions::new().exclusive()).map(drop),
                    |store, map| store.transact(|tx| tx.put(map, b"key", b"1")),
                ];
                let (store, map) = (&store, &map);
                calls.map(|call| scope.spawn(move || call(store, map)).join().expect("no panic"))
            });
            for done in waiting {
                let error = done.expect_err("it is not over");
                assert_eq!(error.kind(), Kind::Retry);
                let Reason::LockTimeout { process, waited, .. } = error.reason() else {
                    panic!("{error}")
                };
                assert_eq!(*process, std::process::id());
                assert!(*waited >= timeout, "{waited:?}");
                let text = error.to_string();
                assert!(
                    text.contains("another thread of this process") && text.contains("lock_timeout"),
                    "{text}"
                );
            }
            tx.commit().expect("a commit");
            map.put(b"key", b"1").expect("it is over");
        });
    }
}
