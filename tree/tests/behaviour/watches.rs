//! Watches, and views beside compactions.

use super::*;

#[test]
fn a_watch_that_passes_many_other_changes_finds_its_own() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let mut watch = tree.watch(WatchOptions::path("z")).unwrap();
    tree.transact(|tree| {
        for number in 0..10_500 {
            tree.put(format!("a/{number}"), "")?;
        }
        tree.put("z", "")
    })
    .unwrap();
    assert_eq!(watch.next(Duration::ZERO).unwrap().unwrap().len(), 1);
}

#[test]
fn a_watch_waits_as_long_as_it_takes() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let mut watch = tree.watch(WatchOptions::all()).unwrap();
    let other = tree.clone();
    let put = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        other.put("a", "").unwrap();
    });
    assert_eq!(watch.next(Duration::MAX).unwrap().unwrap().len(), 1);
    put.join().unwrap();
}

#[test]
fn nodes_that_are_created_and_deleted_in_one_transaction_leave_no_change() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let mut watch = tree.watch(WatchOptions::all()).unwrap();
    let deleted = tree.transact(|tree| {
        for number in 0..2_000 {
            tree.put(format!("a/{number}"), "")?;
        }
        tree.put("b", "")?;
        tree.delete_subtree("a")
    });
    assert_eq!(deleted.unwrap(), 2_000);
    let events = watch.next(Duration::ZERO).unwrap().unwrap();
    assert_eq!(events.iter().map(|event| &event.path[..]).collect::<Vec<_>>(), [b"b"]);
}

#[test]
fn a_view_reads_on_after_a_compaction_to_the_newest_revision() {
    let disk = SimDisk::new(1);
    let (_store, trees, tree) = open(&disk);
    for number in 0..50 {
        tree.put(format!("a/{}", number % 7), format!("{number}")).unwrap();
    }
    let view = tree.view().unwrap();
    let mut watch = tree.watch(WatchOptions::all().from_revision(51)).unwrap();
    let mut late = tree.watch(WatchOptions::all().from_revision(50)).unwrap();
    tree.compact(51).unwrap();
    assert_eq!(view.at_revision(3).unwrap().count_subtree("a").unwrap(), 2);
    assert_eq!(tree.view_at(51).unwrap().count_subtree("a").unwrap(), 7);
    let error = tree.view_at(50).unwrap_err();
    assert!(
        matches!(TreeError::of(&error), Some(TreeError::Compacted { first: 51, .. })),
        "{error}"
    );
    let event = watch.next(Duration::ZERO).unwrap().unwrap().remove(0);
    assert_eq!((event.revision, event.node.unwrap().version), (51, 8));
    let error = late.next(Duration::ZERO).unwrap_err();
    assert!(
        matches!(TreeError::of(&error), Some(TreeError::Compacted { .. })),
        "{error}"
    );
    trees.work().unwrap();
}
