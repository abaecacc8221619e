//! A system that gives no threads: everything works without those of the store, only not beside the caller.
//!
//! Each test runs itself again in a process of its own, in which every thread would need a stack that no machine has.

use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use duramen_engine::{Batch, Durability, Options};
use duramen_io::SimDisk;

/// Set in the process without threads.
const WITHOUT_THREADS: &str = "DURAMEN_TEST_WITHOUT_THREADS";

/// Runs `body` in a process in which threads cannot be started, and waits for it.
fn without_threads(test: &str, body: impl FnOnce()) {
    if std::env::var_os(WITHOUT_THREADS).is_some() {
        let thread = std::thread::Builder::new().spawn(|| ());
        assert!(thread.is_err(), "a thread was started");
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(WITHOUT_THREADS, "1")
        .env("RUST_MIN_STACK", (1u64 << 46).to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
}

struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn futures_resolve_when_no_thread_can_be_started() {
    without_threads("futures_resolve_when_no_thread_can_be_started", || {
        let disk = SimDisk::new(1);
        let store = Options::new().open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        let woken = Arc::new(Woken(AtomicU32::new(0)));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let commit = |number: u8| {
            let mut batch = Batch::new();
            batch.put(&map, [number], b"value").unwrap();
            batch.durability(Durability::Synced);
            Box::pin(store.write_async(batch).unwrap())
        };
        let mut futures: Vec<_> = (0..3).map(commit).collect();
        for future in &mut futures {
            let Poll::Ready(commit) = future.as_mut().poll(&mut context) else {
                panic!("nobody is there to sync");
            };
            assert!(store.snapshot_durable().unwrap().commit() >= commit.unwrap().number());
        }
        let reopened = Options::new().open_on(disk.power_cut(1).platform()).unwrap();
        assert_eq!(reopened.map("map").unwrap().count().unwrap(), 3);
    });
}

#[test]
fn commits_fold_for_themselves_when_no_thread_can_be_started() {
    without_threads("commits_fold_for_themselves_when_no_thread_can_be_started", || {
        let disk = SimDisk::new(1);
        let options = Options::new()
            .durability(Durability::Written)
            .generation_bytes(48 << 10, 64 << 10);
        let store = options.open_on(disk.platform()).unwrap();
        let map = store.map("map").unwrap();
        for number in 0..500u32 {
            map.put(number.to_be_bytes(), [7; 3000]).unwrap();
        }
        assert_eq!(map.count().unwrap(), 500);
        assert!(store.stat().unwrap().counts.folds > 0);
        store.close().unwrap();
    });
}
