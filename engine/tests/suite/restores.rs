//! Restores of checkpoints: each is one commit that every process sees whole, no number that was assigned before comes again,
//! and no page is lost.

use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::time::Duration;

use duramen_engine::{ChangesFrom, Error, Kind, Map, Reason, TransactionOptions};
use duramen_io::SimDisk;

use crate::common::checkpointed::{Open, assert_nothing_is_left, assert_sound, content, options, restore};

#[test]
fn a_process_that_dies_while_it_restores_leaves_the_others_the_present_or_the_past() {
    let (mut calls, mut restored) = (0, [0; 2]);
    loop {
        calls += 1;
        let disk = SimDisk::new(calls);
        let Open { store, map } = Open::on(&disk).expect("a store");
        let fill =
            |map: &Map, with: u8| (0..80u32).for_each(|at| map.put(at.to_be_bytes(), [with; 200]).expect("a put"));
        fill(&map, 1);
        map.append("numbered", "first").expect("an append");
        store.checkpoints().create("old", "OLD").expect("room");
        let old = content(&store.snapshot().expect("a snapshot"), &map);
        fill(&map, 2);
        map.append("numbered", "second").expect("an append");
        map.put("long", vec![7; 100_000]).expect("a put");
        let now = content(&store.snapshot().expect("a snapshot"), &map);
        let held = store.snapshot().expect("a snapshot");
        let (sender, ended) = channel();
        let dies = sender.clone();
        let platform = disk.platform_of_one_who_dies(calls, move || dies.send(true).expect("a test waits"));
        std::thread::spawn(move || {
            let mortal = options().open_on(platform).expect("the store is there");
            restore(&mortal, "old").expect("it is there");
            sender.send(false).expect("a test waits");
        });
        let died = ended.recv().expect("it dies or comes to its end");
        // The next holder of the commit lock finds out whether the commit stands.
        let after = match map.put("key", "value") {
            Ok(()) => {
                map.delete("key").expect("a deletion");
                &now
            }
            Err(error) => {
                assert!(matches!(error.reason(), Reason::Restored), "{calls} calls: {error}");
                assert_eq!(error.kind(), Kind::Reopen);
                &old
            }
        };
        assert!(content(&held, &map) == now, "{calls} calls");
        restored[usize::from(after == &old)] += 1;
        let again = Open::on(&disk).expect("a store");
        assert!(content(&again.store.snapshot().expect("a snapshot"), &again.map) == *after);
        again.store.maintain().expect("a fold");
        assert_sound(&again.store, calls);
        let number = again.map.append("numbered", "third").expect("an append");
        assert_eq!(number, 2, "{calls} calls");
        again.map.put("key", "value").expect("a put");
        let mut expected = after.clone();
        expected.insert(b"key".to_vec(), b"value".to_vec());
        expected.insert([&b"numbered"[..], &2u64.to_be_bytes()].concat(), b"third".to_vec());
        // Both ways in which the next process may find the files.
        for is_killed in [true, false] {
            let disk = if is_killed { disk.kill() } else { disk.power_cut(calls) };
            let last = Open::on(&disk).expect("a store");
            assert!(content(&last.store.snapshot().expect("a snapshot"), &last.map) == expected);
            assert_sound(&last.store, calls);
            assert_nothing_is_left(&last.store, &last.map, calls);
        }
        if !died {
            break;
        }
    }
    assert!(restored[0] > 5 && restored[1] > 5, "{restored:?}");
}

#[test]
fn handles_from_before_a_restore_are_refused_and_what_they_held_stays() {
    let disk = SimDisk::new(1);
    let (one, other) = (Open::on(&disk).expect("a store"), Open::on(&disk).expect("a store"));
    one.map.put("key", "first").expect("a put");
    one.store.checkpoints().create("first", "").expect("room");
    one.map.put("key", "second").expect("a put");
    one.store
        .map("made later")
        .expect("a map")
        .put("a", "b")
        .expect("a put");
    let snapshot = other.store.snapshot().expect("a snapshot");
    let mut tx = other.store.begin(TransactionOptions::default()).expect("a transaction");
    tx.put(&other.map, "other key", "value").expect("room");
    let mut changes = other.store.changes(ChangesFrom::Now).expect("a stream");
    let before = snapshot.commit();
    let unknown = restore(&one.store, "second").expect_err("there is none");
    assert!(matches!(unknown.reason(), Reason::UnknownCheckpoint { .. }));
    one.map.get("key").expect("nothing has happened");
    let restored = restore(&one.store, "first").expect("it is there");
    assert!(restored > before);
    let is_refused = |error: Error| assert!(matches!(error.reason(), Reason::Restored), "{error}");
    for open in [&one, &other] {
        is_refused(open.map.get("key").expect_err("it is of the past"));
        is_refused(open.map.put("key", "third").expect_err("it is of the past"));
        is_refused(open.store.snapshot().expect_err("it is of the past"));
        is_refused(open.store.map("map").expect_err("it is of the past"));
        is_refused(open.store.checkpoints().list().expect_err("it is of the past"));
        is_refused(open.store.checkpoints().drop("first").expect_err("it is of the past"));
    }
    is_refused(changes.next(Duration::ZERO).expect_err("it is of the past"));
    is_refused(tx.commit().expect_err("it is of the past"));
    let held = snapshot.get(&other.map, "key").expect("a get");
    assert_eq!(held.as_deref(), Some(&b"second"[..]));
    drop((held, changes));
    let again = Open::on(&disk).expect("a store");
    assert_eq!(again.map.get("key").expect("a get").as_deref(), Some(&b"first"[..]));
    let names = again.store.maps().list().expect("a list");
    assert_eq!(names.len(), 1, "{names:?}");
    let later = again.store.map("made later").expect("a map");
    assert!(later.is_empty().expect("a look"));
    assert!(again.store.changes(ChangesFrom::After(before)).is_err());
    one.store.close().expect("a handle of the past can be closed");
    drop((snapshot, other));
    again.store.maintain().expect("a fold");
    assert_sound(&again.store, 1);
}

#[test]
fn a_stream_of_commits_does_not_pass_over_a_restore() {
    let disk = SimDisk::new(1);
    let open = || {
        let options = options().retain_log_bytes(1 << 20);
        let store = options.open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        Open { store, map }
    };
    let Open { store, map } = open();
    map.put("key", "first").expect("a put");
    store.checkpoints().create("first", "").expect("room");
    map.put("key", "second").expect("a put");
    let before = store.snapshot().expect("a snapshot").commit();
    let restored = restore(&store, "first").expect("it is there");
    let again = open();
    again.map.put("key", "third").expect("a put");
    // The first process keeps the log for those who were there.
    let gone = match again.store.changes(ChangesFrom::After(before)) {
        Ok(mut changes) => changes
            .next(Duration::ZERO)
            .expect_err("it does not tell what was restored"),
        Err(error) => error,
    };
    assert!(matches!(gone.reason(), Reason::NotRetained { .. }), "{gone}");
    let mut changes = again.store.changes(ChangesFrom::After(restored)).expect("a stream");
    let change = changes.next(Duration::ZERO).expect("a commit").expect("there is one");
    assert_eq!(change.number, restored + 1);
}

/// A checkpoint that several trees come from stays in the file as long as it must, and no longer.
#[test]
fn dropping_a_checkpoint_that_was_restored_keeps_what_its_two_heirs_share() {
    let disk = SimDisk::new(1);
    let mut open = Open::on(&disk).expect("a store");
    let fill = |open: &Open, keys: std::ops::Range<u32>, with: u8| {
        keys.for_each(|at| open.map.put(at.to_be_bytes(), [with; 400]).expect("a put"));
    };
    fill(&open, 0..1_000, 1);
    open.store.checkpoints().create("fork", "").expect("room");
    fill(&open, 0..300, 2);
    open.store.checkpoints().create("heir", "").expect("room");
    fill(&open, 300..400, 3);
    open.restore(&disk, "fork").expect("it is there");
    fill(&open, 500..600, 4);
    let now = content(&open.store.snapshot().expect("a snapshot"), &open.map);
    let checkpoints = open.store.checkpoints();
    assert!(checkpoints.drop("fork").expect("a drop"));
    assert!(!checkpoints.drop("fork").expect("a drop"), "it is gone for the user");
    assert_eq!(checkpoints.list().expect("a list").len(), 1);
    assert!(checkpoints.open("fork").is_err() && checkpoints.open("").is_err());
    open.store.maintain().expect("a fold");
    assert_sound(&open.store, 1);
    checkpoints.create("fork", "").expect("the name is free");
    fill(&open, 0..1_000, 5);
    open.store.maintain().expect("a fold");
    let heir = checkpoints.open("heir").expect("it is there");
    assert_eq!(
        heir.get(&open.map, 0u32.to_be_bytes())
            .expect("a get")
            .expect("a value")[0],
        2
    );
    assert_eq!(
        heir.get(&open.map, 999u32.to_be_bytes())
            .expect("a get")
            .expect("a value")[0],
        1
    );
    drop(heir);
    let fork = checkpoints.open("fork").expect("it is there");
    assert!(content(&fork, &open.map) == now);
    drop(fork);
    assert!(checkpoints.drop("heir").expect("a drop"));
    assert_sound(&open.store, 1);
    assert_nothing_is_left(&open.store, &open.map, 1);
}

/// The process dies between the commit of the restore and its fold. Then the next checkpoint folds it, and comes from what
/// was restored.
#[test]
fn a_checkpoint_that_is_made_first_after_a_restore_that_was_not_folded_keeps_its_pages() {
    let mut restored = 0;
    for calls in 1..60 {
        let disk = SimDisk::new(calls);
        let Open { store, map } = Open::on(&disk).expect("a store");
        let fill = |with: u8| (0..300u32).for_each(|at| map.put(at.to_be_bytes(), [with; 200]).expect("a put"));
        let checkpoints = store.checkpoints();
        fill(1);
        checkpoints.create("one", "ONE").expect("room");
        let one = content(&store.snapshot().expect("a snapshot"), &map);
        fill(2);
        checkpoints.create("two", "TWO").expect("room");
        disk.stop_after(calls);
        let _ = restore(&store, "one");
        let again = Open::on(&disk.kill()).expect("a store");
        let now = || content(&again.store.snapshot().expect("a snapshot"), &again.map);
        if now() == one {
            restored += 1;
            let checkpoints = again.store.checkpoints();
            checkpoints.create("new", "NEW").expect("room");
            for name in ["one", "two"] {
                assert!(checkpoints.drop(name).expect("a drop"));
                assert_sound(&again.store, calls);
            }
            assert!(now() == one, "{calls} calls");
            assert!(content(&checkpoints.open("new").expect("it is there"), &again.map) == one);
            assert_nothing_is_left(&again.store, &again.map, calls);
        }
    }
    assert!(restored > 5, "{restored}");
}

#[test]
fn a_checkpoint_that_is_dropped_during_its_restore_is_not_restored() {
    let disk = SimDisk::new(1);
    let (one, other) = (Open::on(&disk).expect("a store"), Open::on(&disk).expect("a store"));
    one.map.put("key", "first").expect("a put");
    one.store.checkpoints().create("name", "").expect("room");
    one.map.put("key", "second").expect("a put");
    let refused = one
        .store
        .restore_checkpoint("name", &[], |_, _| other.store.checkpoints().drop("name").map(drop));
    let refused = refused.expect_err("it is gone");
    assert!(
        matches!(refused.reason(), Reason::UnknownCheckpoint { .. }),
        "{refused}"
    );
    other.map.put("key", "third").expect("nothing has happened");
    other.store.checkpoints().create("name", "").expect("room");
    other.map.put("key", "fourth").expect("a put");
    restore(&one.store, "name").expect("now it is that one");
    let again = Open::on(&disk).expect("a store");
    assert_eq!(again.map.get("key").expect("a get").as_deref(), Some(&b"third"[..]));
}

/// A restore has folded what there was, and all others wait for it.
#[test]
fn a_restore_for_which_a_disk_has_no_room_does_not_wait_for_folds() {
    let disk = SimDisk::new(1);
    let open = Open::on(&disk).expect("a store");
    open.map.put("key", "first").expect("a put");
    open.store.checkpoints().create("first", "").expect("room");
    let put = |at: u32| open.map.put(at.to_be_bytes(), [7; 400]);
    (0..2_000).for_each(|at| put(at).expect("there is room"));
    // It holds pages that are retired.
    let held = open.store.snapshot().expect("a snapshot");
    disk.set_capacity(Some(disk.allocated_bytes()));
    assert!((2_000..100_000).any(|at| put(at).is_err()), "it is full");
    let begun = std::time::Instant::now();
    let refused = restore(&open.store, "first").expect_err("there is no room");
    assert_eq!(refused.kind(), Kind::MakeSpace);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    open.map.get("key").expect("nothing has happened");
    drop(held);
    disk.set_capacity(None);
    restore(&open.store, "first").expect("there is room");
}

#[test]
fn no_number_comes_again_however_often_a_map_is_dropped_and_comes_back() {
    let disk = SimDisk::new(1);
    let mut open = Open::on(&disk).expect("a store");
    open.map.append("before", "value").expect("an append");
    open.store.checkpoints().create("one", "").expect("room");
    let mut numbers = BTreeSet::from([0]);
    let mut others = BTreeSet::new();
    for round in 0..4 {
        for _ in 0..3 {
            assert!(
                numbers.insert(open.map.append("before", "value").expect("an append")),
                "round {round}"
            );
            // The checkpoint has no counter of it.
            assert!(
                others.insert(open.map.append("since", "value").expect("an append")),
                "round {round}"
            );
        }
        if round != 2 {
            open.store.maps().drop("map").expect("it is there");
        }
        restore(&open.store, "one").expect("it is there");
        open = Open::on(&disk).expect("a store");
        assert_eq!(open.map.count().expect("a count"), 1);
        assert_sound(&open.store, round);
    }
}

#[test]
fn a_store_that_has_come_to_its_quota_can_be_restored() {
    let disk = SimDisk::new(1);
    let options = options().quota_bytes(2 << 20);
    let store = options.clone().open_on(disk.platform()).expect("a store");
    let map = store.map("map").expect("a map");
    map.append("numbered", "first").expect("an append");
    store.checkpoints().create("one", "").expect("room");
    map.append("numbered", "second").expect("an append");
    let put = |map: &Map, at: u32| map.put(at.to_be_bytes(), [7; 500]);
    assert!((0..10_000).any(|at| put(&map, at).is_err()), "there is a quota");
    restore(&store, "one").expect("it brings nothing");
    let store = options.open_on(disk.platform()).expect("a store");
    let map = store.map("map").expect("a map");
    assert_eq!(map.count().expect("a count"), 1);
    (0..1_000).for_each(|at| put(&map, at).expect("there is room again"));
    assert_eq!(map.append("numbered", "third").expect("an append"), 2);
    assert_sound(&store, 1);
}
