//! A process that has a store open forks. It has no other test: a fork copies the locks that other threads hold at that moment, and
//! the child has the files of their stores.

mod common;

use common::workload::check_sound;
use duramen_engine::{ChangesFrom, Durability, Options, Reason, TransactionOptions};

#[test]
fn forked_child_can_do_nothing_with_the_handles_and_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    for is_exclusive in [false, true] {
        let path = directory.path().join(is_exclusive.to_string());
        let store = Options::new()
            .durability(Durability::Written)
            .exclusive(is_exclusive)
            .overwrite_freed(true)
            .generation_bytes(64 << 10, 128 << 10)
            .open(&path)
            .unwrap();
        let map = store.map("map").unwrap();
        map.put(b"key", b"value").unwrap();
        let snapshot = store.snapshot().unwrap();
        let mut transaction = store.begin(TransactionOptions::new()).unwrap();
        transaction.put(&map, b"long", vec![1; 100_000]).unwrap();
        let changes = store.changes(ChangesFrom::Now).unwrap();
        // SAFETY: the child takes memory and writes nothing to the terminal, which the C library allows one of a program
        // with threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_forked = |error: Option<duramen_engine::Error>| {
                error.is_some_and(|error| matches!(error.reason(), Reason::Forked))
            };
            let answers = [
                is_forked(map.put(b"key", b"of the child").err()),
                is_forked(map.get(b"key").err()),
                is_forked(snapshot.get(&map, b"key").err()),
                is_forked(store.snapshot().err()),
                is_forked(store.sync().err()),
                is_forked(store.maintain().err()),
                is_forked(store.stat().err()),
                is_forked(transaction.put(&map, b"key", b"of the child").err()),
                is_forked(transaction.commit().err()),
                is_forked(store.clone().close().err()),
            ];
            drop((map, snapshot, changes, store));
            let status = answers
                .iter()
                .position(|&is_right| !is_right)
                .map_or(0, |wrong| wrong as i32 + 1);
            // SAFETY: leaves at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the number of our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the answer number {} of the child", status >> 8);
        assert_eq!(store.stat().unwrap().snapshots.len(), 3, "they are all still there");
        assert_eq!(snapshot.get(&map, b"key").unwrap().unwrap(), b"value");
        transaction.commit().unwrap();
        map.put(b"key", b"of the parent").unwrap();
        store.maintain().unwrap();
        assert_eq!(map.get(b"long").unwrap().unwrap(), vec![1; 100_000]);
        drop((snapshot, changes));
        check_sound(&store).expect("a sound store");
    }
}
