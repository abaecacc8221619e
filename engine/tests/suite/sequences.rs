//! Sequences: appends with number, time and position filled in at commit, and the bells that they ring.

use std::collections::BTreeMap;
use std::time::Duration;

use duramen_engine::{
    Durability, Item, Listener, Maintenance, Map, Options, Reason, STAMP_BYTES, Sequence, Store, TransactionOptions,
};
use duramen_io::SimDisk;

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(192 << 10, 256 << 10)
        .durability(Durability::Written)
}

fn open(disk: &SimDisk) -> Store {
    options().open_on(disk.platform()).unwrap()
}

fn sequence(store: &Store, prefix: &[u8]) -> Sequence {
    let (heads, bodies) = (
        store.reserved_map("heads").unwrap(),
        store.reserved_map("bodies").unwrap(),
    );
    Sequence::new(&heads, &bodies, prefix, "a sequence").unwrap()
}

fn begun(store: &Store, prefix: &[u8]) -> Sequence {
    let sequence = sequence(store, prefix);
    store.transact(|tx| tx.begin_sequence(&sequence)).unwrap();
    sequence
}

fn head(text: &str) -> Vec<u8> {
    [&[0; STAMP_BYTES], text.as_bytes()].concat()
}

fn append(sequence: &Sequence, text: &str) -> u64 {
    let head = head(text);
    let item = Item {
        head: &head,
        body: None,
    };
    sequence.append(&[item], Durability::Written).unwrap().number
}

/// Time, position and text of every head, which must be numbered without gaps.
fn heads(store: &Store, sequence: &Sequence) -> Vec<(u64, u64, String)> {
    let snapshot = store.snapshot().unwrap();
    let mut cursor = snapshot.prefix(sequence.heads(), sequence.prefix()).unwrap();
    let mut found = Vec::new();
    while let Some((key, value)) = cursor.next().unwrap() {
        let number = u64::from_be_bytes(key[sequence.prefix().len()..].try_into().unwrap());
        assert_eq!(number, found.len() as u64);
        let word = |place: usize| u64::from_be_bytes(value[place..place + 8].try_into().unwrap());
        found.push((
            word(0),
            word(8),
            String::from_utf8(value[STAMP_BYTES..].to_vec()).unwrap(),
        ));
    }
    let state = snapshot.sequence_state(sequence).unwrap().unwrap();
    assert_eq!(state.next, found.len() as u64);
    assert!(found.windows(2).all(|pair| pair[0].0 <= pair[1].0), "time ran back");
    found
}

#[test]
fn numbers_and_positions_have_no_gaps_across_writers_transactions_and_crashes() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let sequence_1 = begun(&store, b"one");
    let sequence_2 = begun(&store, b"two");
    let map = store.map("map").unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (store, one, two, map) = (&store, &sequence_1, &sequence_2, &map);
            scope.spawn(move || {
                for round in 0..50 {
                    let text = format!("{writer}/{round}");
                    append(one, &text);
                    let head = head(&text);
                    let item = Item {
                        head: &head,
                        body: None,
                    };
                    let tickets = store.transact(|tx| -> duramen_engine::Result<_> {
                        tx.put(map, format!("{writer}").as_bytes(), text.as_bytes())?;
                        Ok([
                            tx.append_to(two, item)?,
                            tx.append_to(one, item)?,
                            tx.append_to(two, item)?,
                        ])
                    });
                    let numbers = tickets.unwrap().map(|ticket| ticket.stamp().unwrap().number);
                    assert_eq!(numbers[0] + 1, numbers[2]);
                }
            });
        }
    });
    let check = |store: &Store| {
        for (prefix, count) in [(b"one", 400), (b"two", 400)] {
            let found = heads(store, &sequence(store, prefix));
            assert_eq!(found.len(), count);
            let mut position = 0;
            for (_, at, text) in &found {
                assert_eq!(*at, position);
                position += (STAMP_BYTES + text.len()) as u64;
            }
            let mut last: BTreeMap<String, u64> = BTreeMap::new();
            for (_, _, text) in &found {
                let (writer, round) = text.split_once('/').unwrap();
                let round: u64 = round.parse().unwrap();
                let before = last.insert(writer.into(), round);
                assert!(before.is_none_or(|before| before <= round), "{writer}");
            }
        }
    };
    check(&store);
    let killed = open(&disk.kill());
    check(&killed);
    assert_eq!(append(&sequence(&killed, b"one"), "later"), 400);
    store.maintain().unwrap();
    check(&store);
}

#[test]
fn time_never_runs_back_when_the_clock_does() {
    let disk = SimDisk::new(2);
    let store = open(&disk);
    let one = begun(&store, b"one");
    append(&one, "a");
    let first = heads(&store, &one)[0].0;
    disk.set_wall(Duration::from_secs(1));
    append(&one, "b");
    drop((one, store));
    let store = open(&disk.kill());
    let one = sequence(&store, b"one");
    append(&one, "c");
    disk.set_wall(Duration::from_millis(first + 5));
    let times: Vec<u64> = heads(&store, &one).iter().map(|head| head.0).collect();
    assert_eq!(times, [first; 3]);
}

#[test]
fn a_ticket_of_what_was_rolled_back_stays_empty() {
    let store = open(&SimDisk::new(3));
    let one = begun(&store, b"one");
    let head = head("text");
    let item = Item {
        head: &head,
        body: None,
    };
    let mut tx = store.begin(TransactionOptions::new()).unwrap();
    let kept = tx.append_to(&one, item).unwrap();
    let savepoint = tx.savepoint().unwrap();
    let taken_back = tx.append_to(&one, item).unwrap();
    tx.rollback_to(&savepoint).unwrap();
    let second = tx.append_to(&one, item).unwrap();
    assert_eq!(kept.stamp(), None);
    tx.commit().unwrap();
    assert_eq!(taken_back.stamp(), None);
    assert_eq!(kept.stamp().unwrap().number, 0);
    assert_eq!(second.stamp().unwrap().number, 1);
}

#[test]
fn a_sequence_that_ended_refuses_appends_and_keeps_nothing() {
    let store = open(&SimDisk::new(4));
    let one = begun(&store, b"one");
    append(&one, "a");
    let item_head = head("late");
    let item = Item {
        head: &item_head,
        body: None,
    };
    let mut late = store.begin(TransactionOptions::new()).unwrap();
    late.append_to(&one, item).unwrap();
    store.transact(|tx| tx.end_sequence(&one)).unwrap();
    let is_deleted = |error: duramen_engine::Error| matches!(error.reason(), Reason::TopicDeleted { .. });
    assert!(is_deleted(late.commit().unwrap_err()));
    assert!(is_deleted(one.append(&[item], Durability::Written).unwrap_err()));
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.sequence_state(&one).unwrap(), None);
    assert_eq!(snapshot.count(one.heads(), ..).unwrap(), 0);
}

/// Bodies of the sequence in a store on this disk.
fn bodies(store: &Store, map: &Map, prefix: &[u8]) -> Vec<(u64, usize)> {
    let snapshot = store.snapshot().unwrap();
    let mut cursor = snapshot.prefix(map, prefix).unwrap();
    let mut found = Vec::new();
    while let Some((key, value)) = cursor.next().unwrap() {
        let number = u64::from_be_bytes(key[prefix.len()..].try_into().unwrap());
        found.push((number, value.len()));
    }
    found
}

#[test]
fn a_body_has_the_number_of_its_head() {
    let disk = SimDisk::new(5);
    let store = open(&disk);
    let one = begun(&store, b"one");
    let head = head("long");
    let body = vec![7; 200_000];
    let long = Item {
        head: &head,
        body: Some(&body),
    };
    append(&one, "short");
    one.append(&[long, long], Durability::Written).unwrap();
    append(&one, "short");
    let mut tx = store.begin(TransactionOptions::new()).unwrap();
    let short_body = Item {
        head: &head,
        body: Some(b"short"),
    };
    tx.append_to(&one, short_body).unwrap();
    tx.append_to(&one, long).unwrap();
    tx.commit().unwrap();
    let expected = [(1, 200_000), (2, 200_000), (4, 5), (5, 200_000)];
    assert_eq!(bodies(&store, one.bodies(), b"one"), expected);
    // One that does not commit leaves nothing.
    let mut dropped = store.begin(TransactionOptions::new()).unwrap();
    dropped.append_to(&one, long).unwrap();
    drop(dropped);
    let killed = open(&disk.kill());
    let sequence = sequence(&killed, b"one");
    assert_eq!(bodies(&killed, sequence.bodies(), b"one"), expected);
    for store in [store, killed] {
        store.maintain().unwrap();
        let report = store.check(&mut |_| ()).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }
}

#[test]
fn reserved_maps_are_out_of_reach_of_users() {
    let store = open(&SimDisk::new(6));
    let mut changes = store.changes(duramen_engine::ChangesFrom::Now).unwrap();
    let one = begun(&store, b"one");
    append(&one, "a");
    assert_eq!(store.maps().list().unwrap(), [""; 0]);
    assert!(store.maps().get("\u{1}heads").is_err());
    assert!(store.map("\u{1}heads").is_err());
    assert!(store.transact(|tx| tx.map("\u{1}heads").map(|_| ())).is_err());
    assert!(store.maps().drop("\u{1}heads").is_err());
    while let Some(commit) = changes.next(Duration::ZERO).unwrap() {
        assert!(commit.changes.is_empty(), "{commit:?}");
    }
    assert!(store.existing_reserved_map("heads").unwrap().is_some());
    assert!(store.existing_reserved_map("others").unwrap().is_none());
}

/// Writers that append as fast as they can, and a listener that arms, looks, and sleeps: were a single ring lost, it would
/// sleep until the timeout.
#[test]
fn a_listener_never_sleeps_through_an_append() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Written)
        .open(directory.path())
        .unwrap();
    let one = begun(&store, b"one");
    let listener = Listener::new();
    store.listen(one.bell(), &listener, 9);
    let writers: Vec<_> = (0..2)
        .map(|_| {
            let one = one.clone();
            std::thread::spawn(move || {
                for round in 0..3_000 {
                    append(&one, "text");
                    if round % 16 == 0 {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            })
        })
        .collect();
    let mut seen = 0;
    while seen < 6_000 {
        one.bell().arm();
        let next = store.snapshot().unwrap().sequence_state(&one).unwrap().unwrap().next;
        if next > seen {
            seen = next;
            continue;
        }
        let tokens = listener.wait(Duration::from_secs(20));
        assert!(!tokens.is_empty(), "a ring was lost after {seen} appends");
        assert!(tokens.iter().all(|token| *token == 9));
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

#[test]
fn a_listener_that_is_told_the_same_again_and_again_does_not_grow() {
    let listener = Listener::new();
    (0..10_000).for_each(|_| listener.tell(7));
    assert_eq!(listener.wait(Duration::ZERO), [7]);
    assert_eq!(listener.wait(Duration::ZERO), [0; 0]);
}

#[test]
fn what_a_transaction_depends_on_must_not_change_before_it_commits() {
    let disk = SimDisk::new(61);
    let store = open(&disk);
    let map = store.map("map").unwrap();
    map.put(b"b", b"").unwrap();
    let commit_after = |change: &dyn Fn()| {
        let mut tx = store.begin(TransactionOptions::new()).unwrap();
        tx.depends_on(&map, &b"b"[..]..&b"d"[..]).unwrap();
        tx.put(&map, b"z", b"").unwrap();
        change();
        tx.commit().map(|_| ())
    };
    let is_conflict = |done: Result<(), duramen_engine::Error>| {
        done.is_err_and(|error| matches!(error.reason(), Reason::Conflict { .. }))
    };
    let commit_after_key = |change: &dyn Fn()| {
        let mut tx = store.begin(TransactionOptions::new()).unwrap();
        tx.depends_on_key(&map, b"key").unwrap();
        tx.put(&map, b"z", b"").unwrap();
        change();
        tx.commit().map(|_| ())
    };
    assert!(is_conflict(commit_after_key(&|| map.put(b"key", b"").unwrap())));
    assert!(is_conflict(commit_after_key(&|| map.delete(b"key").unwrap())));
    commit_after_key(&|| map.put(b"keys", b"").unwrap()).unwrap();
    assert!(is_conflict(commit_after(&|| map.delete(b"b").unwrap())));
    assert!(is_conflict(commit_after(&|| map.put(b"c", b"").unwrap())));
    commit_after(&|| map.put(b"d", b"").unwrap()).unwrap();
}

#[test]
fn listener_of_one_store_is_told_of_what_the_other_appends() {
    let disk = SimDisk::new(31);
    let (one, other) = (open(&disk), open(&disk));
    let here = begun(&one, b"orders/");
    let there = sequence(&other, b"orders/");
    let elsewhere = begun(&other, b"invoices/");
    let listener = Listener::new();
    one.listen(here.bell(), &listener, 7);
    let tokens = |timeout: Duration| {
        let mut told = listener.wait(timeout);
        // A bell may ring for nothing; it is armed again before one looks.
        here.bell().arm();
        told.dedup();
        told
    };
    // What may have been appended before the thread that rings began.
    tokens(Duration::from_millis(300));
    for round in 0..50 {
        append(&elsewhere, "nobody listens");
        if round == 25 {
            // Whoever rings has looked meanwhile whether anybody here still listens.
            std::thread::sleep(Duration::from_millis(2_500));
        }
        std::thread::scope(|scope| {
            let asleep = scope.spawn(|| tokens(Duration::from_secs(60)));
            append(&there, "told");
            assert_eq!(asleep.join().unwrap(), [7], "round {round}");
        });
        assert_eq!(heads(&one, &here).len(), round + 1);
    }
    // Whoever dies or leaves without having told is told for.
    here.bell().arm();
    other.close().unwrap();
    assert_eq!(tokens(Duration::from_secs(60)), [7]);
    here.bell().forget(&listener);
}

/// Each process remembers where in the index it wrote the rows of a sequence. Another one may have written there meanwhile,
/// and the index may be another.
#[test]
fn rows_are_written_where_they_belong_whoever_wrote_meanwhile() {
    let disk = SimDisk::new(37);
    let stores = [open(&disk), open(&disk)];
    let maps = stores.each_ref().map(|store| store.map("pairs").unwrap());
    let prefixes: [&[u8]; 3] = [b"invoices/", b"orders/", b"returns/"];
    prefixes.iter().for_each(|prefix| drop(begun(&stores[0], prefix)));
    let sequences = stores
        .each_ref()
        .map(|store| prefixes.map(|prefix| sequence(store, prefix)));
    let (mut random, mut counts) = (fastrand::Rng::with_seed(37), [0; 3]);
    for _ in 0..8_000 {
        let (who, which) = (random.usize(..2), random.usize(..3));
        assert_eq!(append(&sequences[who][which], "a head"), counts[which]);
        counts[which] += 1;
        // Keys on either side of them and in between, so that leaves are divided.
        maps[who].put(random.u64(..).to_be_bytes(), [7; 20]).unwrap();
        if random.u32(..400) == 0 {
            stores[who].maintain().unwrap();
        }
    }
    for store in 0..2 {
        for which in 0..3 {
            let found = heads(&stores[store], &sequences[store][which]);
            assert_eq!(found.len() as u64, counts[which]);
        }
    }
    let folds: u64 = stores.iter().map(|store| store.stat().unwrap().counts.folds).sum();
    assert!(folds > 5, "{folds} folds: the index was hardly ever another one");
    assert_eq!(stores[0].check(&mut |_| ()).unwrap().problems, [""; 0]);
}

#[test]
fn rings_of_a_counted_sequence_tell_of_commits_of_all_processes_without_listeners() {
    let disk = SimDisk::new(1);
    let (one, other) = (open(&disk), open(&disk));
    let counted = |store: &Store| {
        let (heads, bodies) = (
            store.reserved_map("heads").unwrap(),
            store.reserved_map("bodies").unwrap(),
        );
        Sequence::counted(&heads, &bodies, b"counted", "a counted sequence").unwrap()
    };
    let (ours, theirs) = (counted(&one), counted(&other));
    one.transact(|tx| tx.begin_sequence(&ours)).unwrap();
    let rings = || (one.rings(ours.bell()), other.rings(theirs.bell()));
    let begun = rings();
    append(&ours, "by the first process");
    let first = rings();
    assert_eq!((first.0, first.1), (begun.0 + 1, begun.1 + 1));
    append(&theirs, "by the other one");
    assert_eq!(rings(), (first.0 + 1, first.1 + 1));
    // Ordinary sequences share counters with each other, and with no counted one.
    for number in 0..2_000u32 {
        append(&begun_at(&one, number), "elsewhere");
    }
    assert_eq!(rings(), (first.0 + 1, first.1 + 1));
}

fn begun_at(store: &Store, number: u32) -> Sequence {
    begun(store, &number.to_be_bytes())
}
