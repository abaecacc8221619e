//! Calls beside other transactions, closed stores, and the end of handles.

use super::*;

#[test]
fn a_call_beside_an_exclusive_transaction_of_its_thread_fails_also_while_another_waits() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .lock_timeout(Duration::from_secs(5))
        .open(directory.path())
        .unwrap();
    let tree = Trees::open(&store).unwrap().ensure("tree").unwrap();
    let tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
    std::thread::scope(|scope| {
        let other = tree.clone();
        let waiting = scope.spawn(move || other.put("b", ""));
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        let refused = tree.put("a", "").unwrap_err();
        assert!(
            matches!(refused.reason(), Reason::WouldWaitForItself { .. }),
            "{refused}"
        );
        // The lock timeout is what it would wait for.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        drop(tx);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_call_waits_for_another_writer_once() {
    let directory = tempfile::tempdir().unwrap();
    let wait = Duration::from_secs(3);
    let store = Options::new().lock_timeout(wait).open(directory.path()).unwrap();
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    let tree = trees.ensure("tree").unwrap();
    let tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| {
            let begun = Instant::now();
            let error = tree.put("a", "").unwrap_err();
            assert!(matches!(error.reason(), Reason::LockTimeout { .. }), "{error}");
            begun.elapsed()
        });
        assert!(waited.join().unwrap() < wait * 2);
    });
    drop(tx);
}

#[test]
fn a_transaction_of_another_store_is_refused() {
    let disks = [SimDisk::new(1), SimDisk::new(2)];
    let (_store, _trees, tree) = open(&disks[0]);
    let (other, _others, _tree) = open(&disks[1]);
    let mut tx = other.begin(TransactionOptions::new()).unwrap();
    assert!(tree.writes(&mut tx).and_then(|mut tree| tree.put("a", "")).is_err());
}

#[test]
fn a_closed_store_and_one_that_is_only_read_refuse_changes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let empty = tempfile::tempdir().unwrap();
    Store::open(empty.path()).unwrap().close().unwrap();
    let read_only = Options::new().read_only(true).open(empty.path()).unwrap();
    let error = Trees::open(&read_only).unwrap_err();
    assert!(matches!(TreeError::of(&error), Some(TreeError::NoTrees)), "{error}");
    let trees = Trees::open(&store).unwrap();
    let tree = trees.ensure("tree").unwrap();
    tree.put("a", "1").unwrap();
    let lease = tree.grant_lease(Duration::from_secs(1)).unwrap();
    let read_only = Options::new().read_only(true).open(directory.path()).unwrap();
    let read = Trees::open(&read_only).unwrap();
    let same = read.ensure("tree").unwrap();
    let mut watch = same.watch(WatchOptions::all()).unwrap();
    assert!(same.put("a", "2").is_err() && read.ensure("other").is_err() && same.revoke_lease(lease.id).is_err());
    assert_eq!(same.get("a").unwrap().unwrap().payload, b"1");
    tree.put("a", "2").unwrap();
    assert_eq!(watch.next(Duration::from_secs(5)).unwrap().unwrap().len(), 1);
    drop((same, watch, read, read_only));
    std::thread::sleep(Duration::from_millis(700));
    store.close().unwrap();
    let error = tree.put("a", "3").unwrap_err();
    assert!(matches!(error.reason(), Reason::Closed), "{error}");
    assert!(tree.get("a").is_err() && trees.ensure("other").is_err() && trees.work().is_err());
    Options::new().exclusive(true).open(directory.path()).unwrap();
}

#[test]
#[ignore = "dropping the last handle waits for the background thread, which waits for the transaction of the dropping thread"]
fn dropping_the_last_tree_beside_an_exclusive_transaction_does_not_wait_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .lock_timeout(Duration::from_secs(3))
        .open(directory.path())
        .unwrap();
    let tree = Trees::open(&store).unwrap().ensure("tree").unwrap();
    tree.grant_lease(Duration::from_millis(1)).unwrap();
    let tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
    std::thread::sleep(Duration::from_millis(800));
    let begun = Instant::now();
    drop(tree);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    drop(tx);
}
