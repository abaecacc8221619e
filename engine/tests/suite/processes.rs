//! One store in several processes: here two opened stores on one simulated disk, which share nothing but its files. That
//! any of them may be killed is for `duramen/tests/processes.rs`.

use std::time::Duration;

use duramen_engine::{ChangesFrom, Durability, Kind, Maintenance, Options, Reason, Store, TransactionOptions};
use duramen_io::{FailKind, FailSpan, SimDisk};

fn options() -> Options {
    Options::new()
        .durability(Durability::Written)
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(64 << 10, 128 << 10)
}

fn open(disk: &SimDisk) -> Store {
    options().open_on(disk.platform()).expect("a store")
}

fn assert_sound(store: &Store) {
    let report = store.check(&mut |_| ()).expect("a check");
    assert_eq!(report.problems, [""; 0]);
}

#[test]
fn each_reads_what_the_other_wrote_whoever_folds() {
    let disk = SimDisk::new(1);
    let stores = [open(&disk), open(&disk)];
    let maps = stores.each_ref().map(|store| store.map("map").unwrap());
    let mut rng = fastrand::Rng::with_seed(5);
    let mut model = std::collections::BTreeMap::new();
    for step in 0..6_000u32 {
        let (writer, key) = (rng.usize(..2), rng.u16(..2_000).to_be_bytes());
        let value = vec![step as u8; rng.usize(..300)];
        maps[writer].put(key, &value).unwrap();
        model.insert(key, value);
        let key = rng.u16(..2_000).to_be_bytes();
        let found = maps[1 - writer].get(key).unwrap();
        assert_eq!(found.as_deref(), model.get(&key).map(Vec::as_slice));
        match rng.u32(..500) {
            0 => stores[rng.usize(..2)].maintain().unwrap(),
            1 => {
                let long = vec![7; rng.usize(65_537..200_000)];
                maps[writer].put(key, &long).unwrap();
                model.insert(key, long);
            }
            _ => {}
        }
    }
    for (store, map) in stores.iter().zip(&maps) {
        let snapshot = store.snapshot().unwrap();
        let mut cursor = snapshot.range(map, ..).unwrap();
        for (key, value) in &model {
            let (found_key, found) = cursor.next().unwrap().unwrap();
            assert_eq!((found_key, &*found), (&key[..], &value[..]));
        }
        assert!(cursor.next().unwrap().is_none());
    }
    stores.iter().for_each(assert_sound);
    drop(maps);
    let [one, other] = stores;
    one.close().unwrap();
    other.map("map").unwrap().put(b"after", b"the first left").unwrap();
    assert_sound(&other);
    other.close().unwrap();
    let store = open(&disk);
    assert_eq!(store.map("map").unwrap().count().unwrap(), model.len() as u64 + 1);
    assert_sound(&store);
}

#[test]
fn snapshot_of_one_stays_while_the_other_folds_and_frees() {
    let disk = SimDisk::new(2);
    let (one, other) = (open(&disk), open(&disk));
    let maps = [one.map("map").unwrap(), other.map("map").unwrap()];
    for key in 0..500u32 {
        maps[0].put(key.to_be_bytes(), [1; 200]).unwrap();
    }
    one.maintain().unwrap();
    let snapshot = other.snapshot().unwrap();
    for round in 2..8 {
        for key in 0..500u32 {
            maps[0].put(key.to_be_bytes(), [round; 200]).unwrap();
        }
        one.maintain().unwrap();
    }
    let listed = one.stat().unwrap().snapshots;
    assert_eq!(listed.len(), 1, "{listed:?}");
    for key in 0..500u32 {
        assert_eq!(snapshot.get(&maps[1], key.to_be_bytes()).unwrap().unwrap(), [1; 200]);
    }
    assert!(one.end_snapshot(snapshot.id()).unwrap());
    let ended = snapshot.get(&maps[1], b"key").unwrap_err();
    assert!(matches!(ended.reason(), Reason::SnapshotEnded), "{ended}");
    drop(snapshot);
    one.maintain().unwrap();
    assert_sound(&one);
}

#[test]
fn what_one_does_to_a_map_the_other_notices() {
    let disk = SimDisk::new(3);
    let (one, other) = (open(&disk), open(&disk));
    let here = one.map("map").unwrap();
    let there = other.map("map").unwrap();
    here.put(b"key", b"value").unwrap();
    one.maps().rename("map", "renamed").unwrap();
    assert_eq!(there.get(b"key").unwrap().unwrap(), b"value");
    there.put(b"key", b"newer").unwrap();
    assert_eq!(here.get(b"key").unwrap().unwrap(), b"newer");
    one.maps().drop("renamed").unwrap();
    let error = there.get(b"key").unwrap_err();
    assert!(
        matches!(error.reason(), Reason::MapDropped { name } if name == "renamed"),
        "{error}"
    );
    let error = there.put(b"key", b"value").unwrap_err();
    assert!(matches!(error.reason(), Reason::MapDropped { .. }), "{error}");
    assert_eq!(other.maps().list().unwrap(), [""; 0]);
    let again = other.map("map").unwrap();
    assert_eq!(again.get(b"key").unwrap(), None);
    assert_eq!(one.map("map").unwrap().count().unwrap(), 0);
}

#[test]
fn transactions_of_both_conflict_and_exclusive_ones_shut_the_other_out() {
    let disk = SimDisk::new(4);
    let (one, other) = (open(&disk), open(&disk));
    let (here, there) = (one.map("map").unwrap(), other.map("map").unwrap());
    let mut mine = one.begin(TransactionOptions::default()).unwrap();
    let mut theirs = other.begin(TransactionOptions::default()).unwrap();
    mine.put(&here, b"key", b"mine").unwrap();
    theirs.put(&there, b"key", b"theirs").unwrap();
    theirs.commit().unwrap();
    let error = mine.commit().unwrap_err();
    assert!(matches!(error.reason(), Reason::Conflict { .. }), "{error}");
    assert_eq!(error.kind(), Kind::Retry);
    assert_eq!(here.get(b"key").unwrap().unwrap(), b"theirs");
    // Numbers are given, and sums made, over both.
    for round in 0..10 {
        let (store, map) = if round % 2 == 0 {
            (&one, &here)
        } else {
            (&other, &there)
        };
        assert_eq!(map.append(b"topic", b"message").unwrap(), round);
        store
            .transact(|tx| tx.add(if round % 2 == 0 { &here } else { &there }, b"sum", 1))
            .unwrap();
    }
    assert_eq!(here.get(b"sum").unwrap().unwrap(), 10i64.to_be_bytes());
}

#[test]
fn stream_of_one_delivers_the_commits_of_both_in_order() {
    let disk = SimDisk::new(5);
    let (one, other) = (open(&disk), open(&disk));
    let maps = [one.map("map").unwrap(), other.map("map").unwrap()];
    let mut changes = one.changes(ChangesFrom::Now).unwrap();
    for number in 0..3_000u32 {
        maps[number as usize % 2].put(number.to_be_bytes(), [3; 100]).unwrap();
        if number % 700 == 0 {
            other.maintain().unwrap();
        }
        if number % 300 == 299 {
            for number in number - 299..=number {
                let commit = changes.next(Duration::ZERO).unwrap().expect("a commit");
                assert_eq!(commit.changes[0].key, number.to_be_bytes());
            }
            assert_eq!(changes.next(Duration::ZERO).unwrap(), None);
        }
    }
}

#[test]
fn stream_that_waits_is_woken_by_a_commit_of_the_other() {
    let disk = SimDisk::new(6);
    let (one, other) = (open(&disk), open(&disk));
    let there = other.map("map").unwrap();
    let mut changes = one.changes(ChangesFrom::Now).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || changes.next(Duration::from_secs(60)).unwrap());
        std::thread::sleep(Duration::from_millis(30));
        there.put(b"key", b"value").unwrap();
        assert_eq!(waiter.join().unwrap().expect("a commit").changes.len(), 1);
    });
}

#[test]
fn files_that_one_removed_and_made_again_are_not_mistaken_by_the_other() {
    let disk = SimDisk::new(7);
    let (one, other) = (open(&disk), open(&disk));
    let maps = [one.map("map").unwrap(), other.map("map").unwrap()];
    for round in 0..6u8 {
        // Each snapshot holds the generations of its moment, so that there must be many log files.
        let mut held = Vec::new();
        for key in 0..3_000u32 {
            maps[key as usize % 2].put(key.to_be_bytes(), [round; 300]).unwrap();
            if key % 60 == 0 {
                held.push(one.snapshot().unwrap());
            }
        }
        drop(held);
        // Those that are no longer needed are removed.
        (0..3).for_each(|_| one.maintain().unwrap());
        for key in 0..3_000u32 {
            assert_eq!(maps[1].get(key.to_be_bytes()).unwrap().unwrap(), [round; 300]);
        }
    }
    assert_sound(&other);
    drop((maps, one, other));
    let store = open(&disk.kill());
    assert_eq!(store.map("map").unwrap().count().unwrap(), 3_000);
}

#[test]
fn the_last_one_leaves_nothing_to_replay_and_a_failed_sync_stops_both() {
    let disk = SimDisk::new(8);
    let (one, other) = (open(&disk), open(&disk));
    one.map("map").unwrap().put(b"key", b"value").unwrap();
    other.close().unwrap();
    assert_eq!(
        one.stat().unwrap().synced_commit,
        one.stat().unwrap().commit,
        "closing makes durable"
    );
    let other = open(&disk);
    let written = other.map("map").unwrap().with_durability(Durability::Synced);
    // The record is written, and cannot be synced.
    disk.fail(2, FailKind::Io, FailSpan::Once);
    let error = written.put(b"key", b"newer").unwrap_err();
    assert_eq!(error.kind(), Kind::Reopen, "{error}");
    let error = one.map("map").unwrap_err();
    assert!(
        matches!(error.reason(), Reason::Poisoned { cause } if cause.contains("sync")),
        "{error}"
    );
    drop((written, one, other));
    assert_sound(&open(&disk));
}

#[test]
fn who_wants_a_store_alone_shuts_others_out_and_is_shut_out_by_them() {
    let disk = SimDisk::new(9);
    let (me, with) = (std::process::id(), |options: Options| options.open_on(disk.platform()));
    let alone = || options().exclusive(true);
    let assert_refused = |options: Options| {
        let error = with(options).unwrap_err();
        let Reason::InUse { holder, .. } = error.reason() else {
            panic!("{error}")
        };
        assert!(holder.starts_with(&me.to_string()), "{error}");
    };
    let one = open(&disk);
    let other = open(&disk);
    assert_refused(alone());
    one.close().unwrap();
    assert_refused(alone());
    other.close().unwrap();
    let only = with(alone()).unwrap();
    assert_refused(options());
    assert_refused(options().read_only(true));
    assert_refused(alone());
    only.close().unwrap();
    let reader = with(options().read_only(true)).unwrap();
    for writer in [options(), alone()] {
        let error = with(writer).unwrap_err();
        assert!(error.to_string().contains("only read it"), "{error}");
    }
    reader.close().unwrap();
    open(&disk).close().unwrap();
}

#[test]
fn who_only_reads_beside_others_sees_what_they_write_and_keeps_nobody_out() {
    let disk = SimDisk::new(11);
    let writer = open(&disk);
    let map = writer.map("map").unwrap();
    map.put(b"key", b"old").unwrap();
    let reader = options().read_only(true).open_on(disk.platform()).unwrap();
    let seen = reader.map("map").unwrap();
    let snapshot = reader.snapshot().unwrap();
    for key in 0..2_000u32 {
        map.put(key.to_be_bytes(), [7; 300]).unwrap();
        assert_eq!(seen.get(key.to_be_bytes()).unwrap().unwrap(), [7; 300]);
    }
    map.put(b"key", b"new").unwrap();
    (0..3).for_each(|_| writer.maintain().unwrap());
    assert_eq!(snapshot.get(&seen, b"key").unwrap().unwrap(), b"old");
    assert_eq!(seen.get(b"key").unwrap().unwrap(), b"new");
    let held: Vec<usize> = writer
        .stat()
        .unwrap()
        .processes
        .iter()
        .map(|found| found.snapshots)
        .collect();
    assert_eq!(held, [0, 1]);
    let refusals = [
        seen.put(b"key", b"of the reader").err(),
        reader.begin(TransactionOptions::new()).err(),
        reader.map("missing").err(),
        reader.maintain().err(),
    ];
    for refusal in refusals {
        let refusal = refusal.expect("who only reads is refused");
        assert!(matches!(refusal.reason(), Reason::ReadOnly), "{refusal}");
    }
    writer.close().unwrap();
    assert_eq!(seen.get(b"key").unwrap().unwrap(), b"new");
    // Another writer comes while only readers are there.
    let writer = open(&disk);
    writer.map("map").unwrap().put(b"key", b"newest").unwrap();
    assert_eq!(seen.get(b"key").unwrap().unwrap(), b"newest");
    writer.close().unwrap();
    drop((snapshot, seen));
    reader.close().unwrap();
    let store = options().exclusive(true).open_on(disk.platform()).unwrap();
    assert_eq!(store.map("map").unwrap().get(b"key").unwrap().unwrap(), b"newest");
    assert_sound(&store);
}

#[test]
fn those_who_share_a_store_are_listed() {
    let disk = SimDisk::new(10);
    let one = open(&disk);
    assert_eq!(one.stat().unwrap().processes.len(), 1);
    let other = open(&disk);
    for store in [&one, &other] {
        let processes = store.stat().unwrap().processes;
        assert_eq!(processes.len(), 2);
        assert!(processes.iter().all(|found| found.process == std::process::id()));
        assert_eq!(processes.iter().filter(|found| found.is_this).count(), 1);
    }
    one.close().unwrap();
    let processes = other.stat().unwrap().processes;
    assert!(processes.len() == 1 && processes[0].is_this);
}

#[test]
fn power_cut_takes_only_a_suffix_of_what_nobody_synced_whoever_wrote_it() {
    for seed in 0..25 {
        let disk = SimDisk::new(seed);
        let stores = [open(&disk), open(&disk)];
        let maps = stores.each_ref().map(|store| store.map("map").unwrap());
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut synced, steps) = (0, rng.u32(1..1_200));
        for step in 0..steps {
            let who = rng.usize(..2);
            let value = vec![step as u8; if rng.u8(..40) == 0 { 70_000 } else { rng.usize(..400) }];
            let is_synced = rng.u8(..20) == 0;
            let durability = if is_synced {
                Durability::Synced
            } else {
                Durability::Written
            };
            let map = maps[who].with_durability(durability);
            map.put(step.to_be_bytes(), &value).unwrap();
            if is_synced {
                synced = step + 1;
            }
            if rng.u16(..300) == 0 {
                stores[rng.usize(..2)].maintain().unwrap();
            }
        }
        let after = disk.power_cut(seed);
        let store = open(&after);
        let map = store.map("map").unwrap();
        let found = map.count().unwrap() as u32;
        assert!(
            (synced..=steps).contains(&found),
            "seed {seed}: {found} of {synced} to {steps}"
        );
        for step in 0..found {
            let value = map.get(step.to_be_bytes()).unwrap();
            assert!(
                value.is_some_and(|value| value.iter().all(|&byte| byte == step as u8)),
                "seed {seed}: {step}"
            );
        }
        assert_sound(&store);
    }
}

#[test]
fn page_that_another_process_wrote_anew_is_verified_again() {
    const MARK: &[u8] = b"marked as written by the second process";
    let disk = SimDisk::new(41);
    let stores = [open(&disk), open(&disk)];
    let maps = stores.each_ref().map(|store| store.map("map").unwrap());
    let key = |number: u32| number.to_be_bytes();
    (0..2_000).for_each(|number| maps[1].put(key(number), [1; 60]).unwrap());
    stores[1].maintain().unwrap();
    let read_all = |map: &duramen_engine::Map| (0..2_000).filter(|&number| map.get(key(number)).is_ok()).count();
    // The first one touches all pages, again and again, while the other one rewrites all of them.
    for _ in 0..4 {
        assert_eq!(read_all(&maps[0]), 2_000);
        (0..2_000).for_each(|number| maps[1].put(key(number), MARK).unwrap());
        stores[1].maintain().unwrap();
    }
    let data = disk.read_raw("data");
    let marks = data
        .windows(MARK.len())
        .enumerate()
        .filter(|(_, window)| *window == MARK);
    marks.for_each(|(place, _)| disk.write_raw("data", place as u64, b"M"));
    assert_eq!(
        read_all(&maps[0]),
        0,
        "no page is served that was damaged before it was touched"
    );
}
