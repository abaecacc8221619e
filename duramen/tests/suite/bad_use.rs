//! Wrong uses of the store: wrong calls, wrong places to open it, and changed files. Each case returns its own typed
//! reason and kind, with a message that names the cause and the remedy, and leaves the store unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::common::{Place, assert_sound, by_hand, forwards};
use duramen::{
    Batch, Durability, Error, KEY_BYTES_MAX, Kind, Map, Options, Reason, Result, Store, Transaction,
    TransactionOptions, VALUE_BYTES_MAX,
};
use duramen_io::SimDisk;

/// Fails unless the call is refused with this reason and kind, and a message with these words.
macro_rules! refused {
    ($call:expr, $kind:ident, $reason:pat $(if $guard:expr)?, $($word:expr),+ $(,)?) => {{
        let error: Error = match $call {
            Ok(_) => panic!("{} succeeded", stringify!($call)),
            Err(error) => error,
        };
        assert!(matches!(error.reason(), $reason $(if $guard)?), "{error:?}");
        assert_eq!(error.kind(), Kind::$kind, "{error:?}");
        let message = error.to_string();
        $(assert!(message.contains($word), "{message:?} does not say {:?}", $word);)+
    }};
}

fn scene() -> (Store, Map) {
    let store = by_hand().open_on(SimDisk::new(1).platform()).unwrap();
    let map = store.map("words").unwrap();
    (store, map)
}

fn begin(store: &Store) -> Transaction {
    store.begin(TransactionOptions::new()).unwrap()
}

// Keys and values.

#[test]
fn key_that_is_too_long_is_refused_wherever_a_key_is_given() {
    let (store, map) = scene();
    let (longest, long) = ([7u8; KEY_BYTES_MAX], [7u8; KEY_BYTES_MAX + 1]);
    let (snapshot, mut tx, mut batch) = (store.snapshot().unwrap(), begin(&store), Batch::new());
    type Call<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;
    let calls: [(&str, Call<'_>); 21] = [
        ("put", &mut |key| map.put(key, b"")),
        ("put_stream", &mut |key| map.put_stream(key, 1, &mut &b"x"[..])),
        ("get", &mut |key| map.get(key).map(drop)),
        ("multi_get", &mut |key| map.multi_get(&[key]).map(drop)),
        ("delete", &mut |key| map.delete(key)),
        ("delete_range", &mut |key| map.delete_range(key..=key)),
        ("create", &mut |key| map.create(key, b"").map(drop)),
        ("compare_and_swap", &mut |key| {
            map.compare_and_swap(key, None, None).map(drop)
        }),
        ("update", &mut |key| map.update(key, |_| None).map(drop)),
        ("batch put", &mut |key| batch.put(&map, key, b"")),
        ("snapshot get", &mut |key| snapshot.get(&map, key).map(drop)),
        ("snapshot range from", &mut |key| snapshot.range(&map, key..).map(drop)),
        ("snapshot range to", &mut |key| snapshot.range(&map, ..key).map(drop)),
        ("snapshot prefix", &mut |key| snapshot.prefix(&map, key).map(drop)),
        ("snapshot count", &mut |key| snapshot.count(&map, ..key).map(drop)),
        ("snapshot stream", &mut |key| snapshot.stream(&map, key).map(drop)),
        ("cursor seek", &mut |key| snapshot.range(&map, ..).unwrap().seek(key)),
        ("add", &mut |key| {
            map.with_durability(Durability::Written).add(key, 1).map(drop)
        }),
        ("delete again", &mut |key| map.delete(key)),
        ("multi_get of a snapshot", &mut |key| {
            snapshot.multi_get(&map, &[key]).map(drop)
        }),
        ("transaction", &mut |key| {
            tx.put(&map, key, b"")
                .and_then(|()| tx.add(&map, b"n", 1))
                .and(tx.delete(&map, key))
        }),
    ];
    for (name, call) in calls {
        println!("{name}");
        call(&longest).unwrap();
        refused!(
            call(&long),
            FixTheCall,
            Reason::KeyTooLong {
                length: 1025,
                max: 1024
            },
            "1025 bytes",
            "1024",
            "hash"
        );
    }
}

#[test]
fn prefix_that_leaves_no_room_for_a_number_is_refused() {
    let (store, map) = scene();
    let (longest, long) = ([7u8; KEY_BYTES_MAX - 8], [7u8; KEY_BYTES_MAX - 7]);
    assert_eq!(map.append(longest, b"").unwrap(), 0);
    assert_eq!(map.append(longest, b"").unwrap(), 1);
    refused!(
        map.append(long, b""),
        FixTheCall,
        Reason::KeyTooLong {
            length: 1017,
            max: 1016
        },
        "1017",
        "1016"
    );
    let refusal = begin(&store).append(&map, long, b"");
    refused!(
        refusal,
        FixTheCall,
        Reason::KeyTooLong {
            length: 1017,
            max: 1016
        },
        "1017",
        "1016"
    );
    let refusal = Batch::new().append(&map, long, b"");
    refused!(
        refusal,
        FixTheCall,
        Reason::KeyTooLong {
            length: 1017,
            max: 1016
        },
        "1017",
        "1016"
    );
    assert_eq!(map.count().unwrap(), 2);
}

#[test]
fn value_that_is_too_long_is_refused_before_anything_is_read() {
    let (store, map) = scene();
    struct Untouched;
    impl Read for Untouched {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("the stream was read")
        }
    }
    let length = VALUE_BYTES_MAX + 1;
    let refusal = map.put_stream(b"a", length, &mut Untouched);
    refused!(
        refusal,
        FixTheCall,
        Reason::ValueTooLong { .. },
        "1073741825 bytes",
        "1073741824",
        "split it"
    );
    // Zero pages from the system take no memory until they are read.
    let huge = vec![0u8; length as usize];
    refused!(
        map.put(b"a", &huge),
        FixTheCall,
        Reason::ValueTooLong { .. },
        "1073741825"
    );
    refused!(
        map.create(b"a", &huge),
        FixTheCall,
        Reason::ValueTooLong { .. },
        "1073741825"
    );
    refused!(
        begin(&store).put(&map, b"a", &huge),
        FixTheCall,
        Reason::ValueTooLong { .. },
        "1073741825"
    );
    refused!(
        begin(&store).append(&map, b"a", &huge),
        FixTheCall,
        Reason::ValueTooLong { .. },
        "1073741825"
    );
    refused!(
        Batch::new().put(&map, b"a", &huge),
        FixTheCall,
        Reason::ValueTooLong { .. },
        "1073741825"
    );
    refused!(
        Batch::new().append(&map, b"a", &huge),
        FixTheCall,
        Reason::ValueTooLong { .. },
        "1073741825"
    );
    assert_eq!(map.count().unwrap(), 0);
}

fn pages_in_use(store: &Store) -> u64 {
    (0..3).for_each(|_| store.maintain().unwrap());
    let figures = store.stat().unwrap();
    figures.pages - figures.free_pages - figures.retired_pages
}

#[test]
fn stream_of_another_length_than_announced_is_refused_and_leaves_nothing() {
    let (store, map) = scene();
    map.put(b"a", b"before").unwrap();
    let before = pages_in_use(&store);
    for announced in [10u64, 65_536, 65_537, 100_000, 3_000_000] {
        for found in [0, 1, announced / 2, announced - 1] {
            println!("{found} instead of {announced}");
            let refusal = map.put_stream(b"a", announced, &mut io::repeat(1).take(found));
            refused!(
                refusal,
                FixTheCall,
                Reason::ValueLengthMismatch { announced: a, found: f } if *a == announced && *f == found,
                &format!("{found} bytes"),
                &format!("{announced} were announced"),
                "true length"
            );
        }
        let refusal = map.put_stream(b"a", announced, &mut io::repeat(1).take(announced + 1));
        refused!(
            refusal,
            FixTheCall,
            Reason::ValueLengthMismatch { announced: a, found } if *a == announced && *found > announced,
            "true length"
        );
        assert_eq!(map.get(b"a").unwrap().unwrap(), b"before");
        assert_eq!(pages_in_use(&store), before, "pages of the refused value are lost");
    }
    assert_sound(&store);
}

#[test]
fn stream_that_fails_or_panics_leaves_nothing() {
    struct Fails(bool);
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            assert!(!self.0, "the stream panics");
            Err(io::Error::other("the source went away"))
        }
    }
    let (store, map) = scene();
    map.put(b"b", b"beside").unwrap();
    let before = pages_in_use(&store);
    for length in [100, 200_000, 2_000_000] {
        let refusal = map.put_stream(b"a", length, &mut io::repeat(1).take(length / 2).chain(Fails(false)));
        refused!(
            refusal,
            FixTheCall,
            Reason::Io { .. },
            "reading a value from its stream",
            "the source went away"
        );
        let mut panics = io::repeat(1).take(length / 2).chain(Fails(true));
        catch_unwind(AssertUnwindSafe(|| map.put_stream(b"a", length, &mut panics))).unwrap_err();
        assert_eq!(map.get(b"a").unwrap(), None);
        assert_eq!(pages_in_use(&store), before, "pages of the refused value are lost");
    }
    map.put(b"a", b"after").unwrap();
    assert_sound(&store);
}

#[test]
fn range_that_is_upside_down_is_empty() {
    let (store, map) = scene();
    map.put(b"m", b"1").unwrap();
    map.delete_range(&b"z"[..]..&b"a"[..]).unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut cursor = snapshot.range(&map, &b"z"[..]..&b"a"[..]).unwrap();
    assert!(cursor.next().unwrap().is_none() && cursor.prev().unwrap().is_none());
    cursor.seek(b"m").unwrap();
    assert!(cursor.next().unwrap().is_none() && cursor.prev().unwrap().is_none());
    assert_eq!(snapshot.count(&map, &b"z"[..]..&b"a"[..]).unwrap(), 0);
    assert_eq!(map.count().unwrap(), 1);
}

// Maps.

#[test]
fn bad_map_names_are_refused_everywhere() {
    let (store, _) = scene();
    let longest = "x".repeat(255);
    for good in [longest.as_str(), "with spaces and / and .", "größer", "🗺"] {
        store.map(good).unwrap();
    }
    for bad in ["", &"x".repeat(256), "two\nlines", "zero\0", "tab\t", "\u{7f}"] {
        let invalid = |outcome: Result<()>| {
            refused!(
                outcome,
                FixTheCall,
                Reason::InvalidMapName { max: 255, .. },
                "cannot name a map",
                "1 to 255 bytes"
            )
        };
        invalid(store.map(bad).map(drop));
        invalid(store.maps().get(bad).map(drop));
        invalid(store.maps().create(bad).map(drop));
        invalid(store.maps().rename("words", bad));
        invalid(store.maps().rename(bad, "words"));
        invalid(store.maps().drop(bad));
        invalid(begin(&store).map(bad).map(drop));
    }
    assert_eq!(store.maps().list().unwrap().len(), 5);
}

#[test]
fn unknown_and_existing_maps_are_refused_by_name() {
    let (store, _) = scene();
    store.map("other").unwrap();
    let maps = store.maps();
    assert!(maps.get("missing").unwrap().is_none());
    for refusal in [
        maps.drop("missing"),
        maps.rename("missing", "new"),
        begin(&store).drop_map("missing"),
    ] {
        refused!(refusal, FixTheCall, Reason::UnknownMap { name } if name == "missing", "\"missing\"", "create it");
    }
    let renamed = [
        maps.rename("words", "other"),
        maps.rename("words", "words"),
        begin(&store).rename_map("words", "other"),
    ];
    for (refusal, taken) in renamed.into_iter().zip(["other", "words", "other"]) {
        refused!(refusal, FixTheCall, Reason::MapExists { name } if name == taken, taken, "choose another name");
    }
    refused!(maps.create("words"), FixTheCall, Reason::MapExists { name } if name == "words", "\"words\"", "drop that");
    assert_eq!(maps.list().unwrap(), ["other", "words"]);
}

#[test]
fn handle_of_a_dropped_map_is_refused_and_the_new_map_of_that_name_is_another() {
    let (store, map) = scene();
    map.put(b"a", b"1").unwrap();
    let (snapshot, mut early) = (store.snapshot().unwrap(), begin(&store));
    let mut batch = Batch::new();
    batch.put(&map, b"b", b"2").unwrap();
    store.maps().drop("words").unwrap();
    let again = store.map("words").unwrap();
    let dropped = |outcome: Result<()>| refused!(outcome, FixTheCall, Reason::MapDropped { name } if name == "words", "\"words\" was dropped", "open it again");
    dropped(map.get(b"a").map(drop));
    dropped(map.put(b"a", b"2"));
    dropped(map.delete(b"a"));
    dropped(map.count().map(drop));
    dropped(map.clear());
    dropped(map.append(b"", b"").map(drop));
    dropped(map.add(b"n", 1).map(drop));
    dropped(map.multi_get(&[b"a"]).map(drop));
    dropped(map.create(b"a", b"").map(drop));
    dropped(early.put(&map, b"a", b"2"));
    dropped(begin(&store).delete_range(&map, ..));
    dropped(Batch::new().put(&map, b"a", b"2"));
    dropped(store.write(batch).map(drop));
    assert_eq!(
        snapshot.get(&map, b"a").unwrap().unwrap(),
        b"1",
        "an older snapshot still shows it"
    );
    assert_eq!(again.count().unwrap(), 0);
    again.put(b"a", b"3").unwrap();
    assert_eq!(again.get(b"a").unwrap().unwrap(), b"3");
    assert_sound(&store);
}

#[test]
fn handle_of_another_store_is_refused() {
    let ((store, map), (_other, foreign)) = (scene(), scene());
    let (snapshot, mut tx) = (store.snapshot().unwrap(), begin(&store));
    let mut batch = Batch::new();
    batch.put(&map, b"a", b"1").unwrap();
    let refusals: [Result<()>; 9] = [
        snapshot.get(&foreign, b"a").map(drop),
        snapshot.range(&foreign, ..).map(drop),
        snapshot.count(&foreign, ..).map(drop),
        snapshot.stream(&foreign, b"a").map(drop),
        tx.get(&foreign, b"a").map(drop),
        tx.put(&foreign, b"a", b"1"),
        tx.append(&foreign, b"a", b"1"),
        batch.put(&foreign, b"a", b"1"),
        {
            let mut batch = Batch::new();
            batch.put(&foreign, b"a", b"1").unwrap();
            store.write(batch).map(drop)
        },
    ];
    for refusal in refusals {
        refused!(refusal, FixTheCall, Reason::ForeignMap { name } if name == "words", "another store", "open the map in this");
    }
    store.write(batch).unwrap();
    assert_eq!((map.count().unwrap(), foreign.count().unwrap()), (1, 0));
}

// Counters, savepoints, transactions.

#[test]
fn additions_to_what_is_no_counter_are_refused() {
    let (store, map) = scene();
    map.put(b"text", b"seven").unwrap();
    let mut batch = Batch::new();
    batch.put(&map, b"beside", b"1").unwrap();
    batch.add(&map, b"text", 1).unwrap();
    let refusals = [
        map.add(b"text", 1).map(drop),
        begin(&store).add(&map, b"text", 1),
        store.write(batch).map(drop),
    ];
    for refusal in refusals {
        refused!(
            refusal,
            FixTheCall,
            Reason::NotACounter { map, key, length: 5 } if map == "words" && key == "\"text\"",
            "holds 5 bytes, not a counter",
            "choose another key"
        );
    }
    assert_eq!(map.get(b"beside").unwrap(), None, "the batch was written in part");
    assert_eq!(map.get(b"text").unwrap().unwrap(), b"seven");
}

#[test]
fn additions_that_leave_the_range_of_a_counter_are_refused() {
    let (store, map) = scene();
    for (start, delta) in [(i64::MAX, 1), (i64::MIN, -1), (1, i64::MAX), (-2, i64::MIN)] {
        map.put(b"n", start.to_be_bytes()).unwrap();
        let refusals = [map.add(b"n", delta).map(drop), begin(&store).add(&map, b"n", delta)];
        for refusal in refusals {
            refused!(
                refusal,
                FixTheCall,
                Reason::CounterOverflow { value, delta: d, .. } if (*value, *d) == (start, delta),
                &start.to_string(),
                &delta.to_string(),
                "64-bit counter"
            );
        }
        assert_eq!(map.get(b"n").unwrap().unwrap(), start.to_be_bytes());
    }
}

#[test]
fn addition_that_overflows_only_at_commit_is_refused_and_nothing_is_written() {
    let (store, map) = scene();
    let mut tx = begin(&store);
    tx.add(&map, b"n", i64::MAX).unwrap();
    tx.put(&map, b"beside", b"1").unwrap();
    map.add(b"n", 1).unwrap();
    refused!(
        tx.commit(),
        FixTheCall,
        Reason::CounterOverflow { value: 1, .. },
        "64-bit counter"
    );
    assert_eq!((map.add(b"n", 0).unwrap(), map.get(b"beside").unwrap()), (1, None));
}

#[test]
fn additions_of_one_transaction_whose_sum_is_too_large_are_refused() {
    let (store, map) = scene();
    map.add(b"n", -10).unwrap();
    let mut tx = begin(&store);
    tx.add(&map, b"n", i64::MAX).unwrap();
    refused!(
        tx.add(&map, b"n", 5),
        FixTheCall,
        Reason::CounterOverflow { .. },
        "64-bit counter"
    );
    tx.commit().unwrap();
    assert_eq!(map.add(b"n", 0).unwrap(), i64::MAX - 10);
}

#[test]
fn any_number_of_savepoints_can_be_made_and_returned_to() {
    let (store, map) = scene();
    let mut tx = begin(&store);
    let first = tx.savepoint().unwrap();
    let mut marks = Vec::new();
    for number in 0..3_000u32 {
        // Sometimes takes two savepoints without a write in between.
        if number % 3 > 0 {
            tx.put(&map, number.to_be_bytes(), b"x").unwrap();
        }
        marks.push((
            tx.savepoint().unwrap(),
            tx.contains_key(&map, number.to_be_bytes()).unwrap(),
        ));
    }
    assert!(
        marks
            .iter()
            .enumerate()
            .all(|(number, (_, is_there))| *is_there == (number % 3 > 0))
    );
    assert_eq!(tx.count(&map, ..).unwrap(), 2_000);
    for number in [2_999, 2_000, 1_999, 1_998, 3, 0] {
        tx.put(&map, b"later", b"x").unwrap();
        tx.rollback_to(&marks[number].0).unwrap();
        assert_eq!(tx.count(&map, ..).unwrap() as usize, number - number / 3, "{number}");
    }
    tx.rollback_to(&first).unwrap();
    tx.put(&map, b"after", b"x").unwrap();
    tx.savepoint().unwrap();
    tx.commit().unwrap();
    assert_eq!(map.count().unwrap(), 1);
}

#[test]
fn closure_that_panics_writes_nothing_and_the_store_goes_on() {
    let (store, map) = scene();
    map.put(b"a", b"1").unwrap();
    let before = pages_in_use(&store);
    for options in [
        TransactionOptions::new(),
        TransactionOptions::new().serializable(),
        TransactionOptions::new().exclusive(),
    ] {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            store.transact_with(options, |tx| -> Result<()> {
                tx.put(&map, b"a", b"2")?;
                tx.put(&map, b"long", vec![1; 500_000])?;
                let _cursor = tx.range(&map, ..)?;
                panic!("the closure panics")
            })
        }));
        assert!(outcome.is_err());
        map.put(b"b", b"writers are let in").unwrap();
        assert_eq!(map.get(b"a").unwrap().unwrap(), b"1");
        assert!(
            store.stat().unwrap().snapshots.is_empty(),
            "the transaction is still there"
        );
    }
    catch_unwind(AssertUnwindSafe(|| map.update(b"a", |_| panic!("the closure panics")))).unwrap_err();
    map.delete(b"b").unwrap();
    assert_eq!(map.get(b"a").unwrap().unwrap(), b"1");
    assert_eq!(pages_in_use(&store), before, "pages of what was not committed are lost");
    assert_sound(&store);
}

#[test]
fn closure_may_use_the_store_it_runs_in() {
    let (store, map) = scene();
    map.put(b"a", b"1").unwrap();
    let before = map
        .update(b"a", |now| {
            map.put(b"b", now.unwrap()).unwrap();
            store.maintain().unwrap();
            Some(map.get(b"b").unwrap().unwrap().into())
        })
        .unwrap();
    assert_eq!((&*before.unwrap(), map.count().unwrap()), (&b"1"[..], 2));
}

// Snapshots.

#[test]
fn forgotten_snapshot_is_listed_and_can_be_ended() {
    let (store, map) = scene();
    (0..2000u32).for_each(|number| map.put(number.to_be_bytes(), [1; 200]).unwrap());
    store.maintain().unwrap();
    let snapshot = store.snapshot().unwrap();
    let (id, commit) = (snapshot.id(), snapshot.commit());
    std::mem::forget(snapshot);
    map.clear().unwrap();
    (0..2).for_each(|_| store.maintain().unwrap());
    let listed = store.stat().unwrap().snapshots;
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].id, listed[0].commit, listed[0].purpose),
        (id, commit, "snapshot")
    );
    assert_eq!(listed[0].process, std::process::id());
    assert!(listed[0].pinned_bytes > 2000 * 200, "{listed:?}");
    assert!(!listed[0].ended);
    assert!(store.end_snapshot(id).unwrap());
    assert!(store.stat().unwrap().snapshots[0].ended);
    assert!(!store.end_snapshot(id ^ 1 << 40).unwrap(), "there is no such snapshot");
}

#[test]
fn ended_snapshot_refuses_to_go_on_but_what_was_borrowed_stays() {
    let (store, map) = scene();
    (0..2000u32).for_each(|number| map.put(number.to_be_bytes(), [1; 200]).unwrap());
    map.put(b"long", vec![2; 3_000_000]).unwrap();
    store.maintain().unwrap();
    let snapshot = store.snapshot().unwrap();
    let (short, long) = (
        snapshot.get(&map, [0; 4]).unwrap().unwrap(),
        snapshot.get(&map, b"long").unwrap().unwrap(),
    );
    let mut cursor = snapshot.range(&map, ..).unwrap();
    let (_, first) = cursor.next().unwrap().unwrap();
    assert!(store.end_snapshot(snapshot.id()).unwrap());
    let ended =
        |outcome: Result<()>| refused!(outcome, Closed, Reason::SnapshotEnded, "end_snapshot", "take a new one");
    ended(snapshot.get(&map, b"a").map(drop));
    ended(snapshot.multi_get(&map, &[b"a"]).map(drop));
    ended(snapshot.range(&map, ..).map(drop));
    ended(snapshot.prefix(&map, b"a").map(drop));
    ended(snapshot.count(&map, ..).map(drop));
    ended(snapshot.stream(&map, b"long").map(drop));
    ended(cursor.next().map(drop));
    ended(cursor.prev().map(drop));
    for _ in 0..3 {
        map.clear().unwrap();
        (0..2000u32).for_each(|number| map.put(number.to_be_bytes(), [3; 200]).unwrap());
        store.maintain().unwrap();
    }
    assert!(short == [1; 200] && first == [1; 200] && long == [2; 3_000_000]);
    let id = snapshot.id();
    drop((short, long, first, cursor));
    drop(snapshot);
    assert!(store.stat().unwrap().snapshots.is_empty());
    assert!(!store.end_snapshot(id).unwrap(), "its id is not given again");
}

#[test]
fn ended_transaction_commits_nothing() {
    let (store, map) = scene();
    for options in [TransactionOptions::new(), TransactionOptions::new().exclusive()] {
        let mut tx = store.begin(options).unwrap();
        tx.put(&map, b"a", b"1").unwrap();
        let listed = store.stat().unwrap().snapshots;
        assert_eq!(listed[0].purpose, "transaction");
        assert!(store.end_snapshot(listed[0].id).unwrap());
        refused!(tx.get(&map, b"a"), Closed, Reason::SnapshotEnded, "take a new one");
        refused!(
            tx.put(&map, b"a", b"2"),
            Closed,
            Reason::SnapshotEnded,
            "take a new one"
        );
        refused!(tx.commit(), Closed, Reason::SnapshotEnded, "take a new one");
        assert_eq!(map.get(b"a").unwrap(), None);
        map.put(b"b", b"others are let in").unwrap();
    }
}

// Opening and closing.

/// Returns length, hash and modification time of every file in a directory.
fn contents(path: &Path) -> BTreeMap<String, (usize, u64, std::time::SystemTime)> {
    let file = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let changed = entry.metadata().unwrap().modified().unwrap();
        let bytes = fs::read(entry.path()).unwrap();
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        (
            entry.file_name().to_string_lossy().into_owned(),
            (bytes.len(), hasher.finish(), changed),
        )
    };
    fs::read_dir(path).unwrap().map(file).collect()
}

/// Copies the files of a store as a crash would leave them now.
fn crash_into(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for name in contents(from).keys() {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[test]
fn directory_with_something_else_and_a_file_are_refused_and_left_alone() {
    let place = Place::new();
    fs::create_dir(place.path()).unwrap();
    fs::write(place.path().join("letter.txt"), b"dear reader").unwrap();
    let before = contents(&place.path());
    for options in [
        Options::new(),
        Options::new().create(false),
        Options::new().read_only(true),
    ] {
        refused!(
            options.open(place.path()),
            FixTheCall,
            Reason::NotAStore { .. },
            "not a Duramen store",
            "letter.txt",
            "empty directory"
        );
    }
    assert_eq!(contents(&place.path()), before);
    let file = place.path().join("letter.txt");
    refused!(
        Store::open(&file),
        FixTheCall,
        Reason::NotAStore { .. },
        "letter.txt",
        "it is a file"
    );
    refused!(
        Store::open(file.join("below")),
        FixTheCall,
        Reason::Io { .. },
        "letter.txt"
    );
    refused!(
        Store::open(place.beside("missing").join("deeper")),
        FixTheCall,
        Reason::Io { .. },
        "missing"
    );
    assert!(!place.beside("missing").exists());
}

#[test]
fn missing_store_is_not_made_when_that_was_not_asked_for() {
    let place = Place::new();
    for options in [Options::new().create(false), Options::new().read_only(true)] {
        refused!(
            options.open(place.path()),
            FixTheCall,
            Reason::NoStore { .. },
            place.path().to_str().unwrap(),
            "open it with `create`"
        );
    }
    assert!(!place.path().exists());
    fs::create_dir(place.path()).unwrap();
    let refusal = Options::new().create(false).open(place.path());
    refused!(
        refusal,
        FixTheCall,
        Reason::NoStore { .. },
        "no store",
        "correct the path"
    );
    assert!(contents(&place.path()).is_empty());
    Store::open(place.path()).unwrap();
}

#[test]
fn log_without_its_data_file_is_not_made_into_an_empty_store() {
    let place = Place::new();
    let store = by_hand().open(place.path()).unwrap();
    store.map("words").unwrap().put(b"a", b"1").unwrap();
    let crashed = place.beside("crashed");
    crash_into(&place.path(), &crashed);
    fs::remove_file(crashed.join("data")).unwrap();
    let before = contents(&crashed);
    for options in [Options::new(), Options::new().create(false)] {
        refused!(
            options.open(&crashed),
            Damaged,
            Reason::Damaged(_),
            "\"data\"",
            "wal-0",
            "restore it"
        );
    }
    assert_eq!(contents(&crashed), before);
}

#[test]
fn opening_that_cannot_go_with_another_is_refused_and_names_the_holder() {
    let place = Place::new();
    let alone = || Options::new().exclusive(true);
    let process = std::process::id().to_string();
    for (first, seconds) in [
        (alone(), vec![Options::new(), Options::new().read_only(true), alone()]),
        (Options::new(), vec![alone(), alone().read_only(true)]),
    ] {
        let store = first.open(place.path()).unwrap();
        for second in seconds {
            refused!(
                second.open(place.path()),
                Retry,
                Reason::InUse { .. },
                &process,
                "close it there"
            );
        }
        drop(store);
    }
    let readers = [(); 2].map(|()| Options::new().read_only(true).open(place.path()).unwrap());
    refused!(Store::open(place.path()), Retry, Reason::InUse { .. }, "in use");
    drop(readers);
    Store::open(place.path()).unwrap();
}

#[test]
fn store_that_is_opened_read_only_shows_everything_and_changes_nothing() {
    let place = Place::new();
    let store = by_hand().open(place.path()).unwrap();
    let map = store.map("words").unwrap();
    (0..3000u32).for_each(|number| map.put(number.to_be_bytes(), [1; 100]).unwrap());
    store.maintain().unwrap();
    (0..50u32).for_each(|number| map.put(number.to_be_bytes(), b"only in the log").unwrap());
    map.put(b"long", vec![2; 200_000]).unwrap();
    let expected = forwards(&mut store.snapshot().unwrap().range(&map, ..).unwrap());
    let crashed = place.beside("crashed");
    crash_into(&place.path(), &crashed);
    let before = contents(&crashed);
    let copy = Options::new().read_only(true).open(&crashed).unwrap();
    let words = copy.map("words").unwrap();
    assert!(forwards(&mut copy.snapshot().unwrap().range(&words, ..).unwrap()) == expected);
    let mut batch = Batch::new();
    batch.put(&words, b"a", b"1").unwrap();
    let refusals: [Result<()>; 14] = [
        words.put(b"a", b"1"),
        words.put(b"a", vec![1; 100_000]),
        words.delete(b"a"),
        words.clear(),
        words.create(b"a", b"1").map(drop),
        words.update(b"a", |_| None).map(drop),
        words.add(b"n", 1).map(drop),
        words.append(b"", b"").map(drop),
        copy.begin(TransactionOptions::new()).map(drop),
        copy.transact(|_| Ok(())),
        copy.write(batch).map(drop),
        copy.map("new").map(drop),
        copy.maps().drop("words"),
        copy.maintain(),
    ];
    for refusal in refusals {
        refused!(
            refusal,
            FixTheCall,
            Reason::ReadOnly,
            "read-only",
            "open it without `read_only`"
        );
    }
    refused!(copy.compact(&mut |_| ()), FixTheCall, Reason::ReadOnly, "read-only");
    assert_sound(&copy);
    copy.sync().unwrap();
    copy.close().unwrap();
    assert_eq!(contents(&crashed), before, "a file was changed");
}

#[test]
fn directory_without_permission_to_write_can_only_be_read() {
    let place = Place::new();
    Store::open(place.path())
        .unwrap()
        .map("words")
        .unwrap()
        .put(b"a", b"1")
        .unwrap();
    let permit = |mode| fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
    for entry in fs::read_dir(place.path()).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o444)).unwrap();
    }
    permit(0o555);
    if fs::write(place.path().join("probe"), b"").is_ok() {
        // Permissions do not stop root; `store_that_is_opened_read_only_...` covers what can be shown.
        permit(0o755);
        return;
    }
    refused!(
        Store::open(place.path()),
        FixTheCall,
        Reason::Io { .. },
        "opening the store",
        "ermission"
    );
    let store = Options::new().read_only(true).open(place.path()).unwrap();
    assert_eq!(store.map("words").unwrap().get(b"a").unwrap().unwrap(), b"1");
    drop(store);
    permit(0o755);
}

#[test]
fn closed_store_refuses_everything_but_open_snapshots_go_on() {
    let place = Place::new();
    let store = Store::open(place.path()).unwrap();
    let map = store.map("words").unwrap();
    map.put(b"a", b"1").unwrap();
    let (snapshot, mut tx) = (store.snapshot().unwrap(), begin(&store));
    tx.put(&map, b"b", b"2").unwrap();
    let other = store.clone();
    store.close().unwrap();
    let mut batch = Batch::new();
    batch.put(&map, b"c", b"3").unwrap();
    let refusals: [Result<()>; 16] = [
        map.get(b"a").map(drop),
        map.put(b"a", b"2"),
        map.delete(b"a"),
        map.count().map(drop),
        map.add(b"n", 1).map(drop),
        other.map("words").map(drop),
        other.maps().list().map(drop),
        other.snapshot().map(drop),
        other.begin(TransactionOptions::new()).map(drop),
        other.write(batch).map(drop),
        other.sync(),
        other.maintain(),
        other.stat().map(drop),
        other.check(&mut |_| ()).map(drop),
        tx.commit().map(drop),
        other.close(),
    ];
    for (number, refusal) in refusals.into_iter().enumerate() {
        println!("call {number}");
        refused!(refusal, Closed, Reason::Closed, "closed", "open it again");
    }
    assert_eq!(snapshot.get(&map, b"a").unwrap().unwrap(), b"1");
    assert_eq!(forwards(&mut snapshot.range(&map, ..).unwrap()).len(), 1);
    let alone = || Options::new().exclusive(true).open(place.path());
    refused!(alone(), Retry, Reason::InUse { .. }, "in use");
    drop((snapshot, map));
    let store = Store::open(place.path()).unwrap();
    assert_eq!(
        store.map("words").unwrap().count().unwrap(),
        1,
        "what was not committed is not there"
    );
}

// Changed files.

/// Makes a closed store of a few hundred pages.
fn stored(place: &Place) -> Map {
    let store = by_hand().open(place.path()).unwrap();
    let map = store.map("words").unwrap();
    (0..3000u32).for_each(|number| map.put(number.to_be_bytes(), number.to_le_bytes().repeat(50)).unwrap());
    map.put(b"long", vec![9; 300_000]).unwrap();
    store.close().unwrap();
    map
}

/// Changes bytes of a file.
fn patch(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn find(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
        .expect("the bytes are in the file")
}

#[test]
fn store_of_a_newer_format_is_refused_and_left_alone() {
    let place = Place::new();
    drop(stored(&place));
    // One changed copy of the four suffices: it says that a newer library wrote it.
    patch(&place.path().join("data"), |bytes| {
        bytes[8..12].copy_from_slice(&77u32.to_le_bytes());
        let sum = crc32c::crc32c_append(77 - 1, &bytes[16..4096]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    });
    let before = contents(&place.path());
    for options in [Options::new(), Options::new().read_only(true)] {
        refused!(
            options.open(place.path()),
            FixTheCall,
            Reason::NewerFormat { found: 77, .. },
            "format 77",
            "newer version of Duramen"
        );
    }
    assert_eq!(contents(&place.path())["data"], before["data"]);
}

#[test]
fn damaged_page_is_reported_when_it_is_read_and_the_rest_can_be_read() {
    let place = Place::new();
    drop(stored(&place));
    let damaged = 1234u32;
    patch(&place.path().join("data"), |bytes| {
        let at = find(bytes, &damaged.to_le_bytes().repeat(50));
        bytes[at + 7] ^= 1;
    });
    let store = by_hand().open(place.path()).unwrap();
    let map = store.map("words").unwrap();
    refused!(
        map.get(damaged.to_be_bytes()),
        Damaged,
        Reason::Damaged(_),
        "page ",
        "checksum",
        "restore it from a copy"
    );
    assert_eq!(map.get(0u32.to_be_bytes()).unwrap().unwrap(), [0; 200]);
    assert!(map.get(b"long").unwrap().unwrap() == [9; 300_000]);
    let snapshot = store.snapshot().unwrap();
    let mut cursor = snapshot.range(&map, ..).unwrap();
    let outcome = loop {
        match cursor.next() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the scan passed over the damage"),
            Err(error) => break error,
        }
    };
    assert_eq!(outcome.kind(), Kind::Damaged);
    let report = store.check(&mut |_| ()).unwrap();
    assert!(!report.problems.is_empty());
}

#[test]
fn damaged_long_value_is_reported_when_it_is_read() {
    let place = Place::new();
    drop(stored(&place));
    patch(&place.path().join("data"), |bytes| {
        let at = find(bytes, &[9; 8192]);
        bytes[at + 150_000] ^= 1;
    });
    let store = by_hand().open(place.path()).unwrap();
    let map = store.map("words").unwrap();
    refused!(
        map.get(b"long"),
        Damaged,
        Reason::Damaged(_),
        "value at page ",
        "checksum",
        "restore it"
    );
    let snapshot = store.snapshot().unwrap();
    let streamed = snapshot
        .stream(&map, b"long")
        .unwrap()
        .unwrap()
        .read_to_end(&mut Vec::new());
    assert!(streamed.unwrap_err().to_string().contains("checksum"));
    assert_eq!(
        map.get(1u32.to_be_bytes()).unwrap().unwrap(),
        1u32.to_le_bytes().repeat(50)
    );
}

#[test]
fn one_damaged_meta_page_does_no_harm_and_four_are_damage() {
    let place = Place::new();
    drop(stored(&place));
    let damage = |page: usize| patch(&place.path().join("data"), |bytes| bytes[page * 4096 + 50] ^= 1);
    let pages = [0, 16, 32, 48];
    for page in pages {
        damage(page);
        let store = by_hand().open(place.path()).unwrap();
        assert_eq!(store.map("words").unwrap().count().unwrap(), 3001);
        store.close().unwrap();
        damage(page);
        drop(by_hand().open(place.path()).unwrap());
    }
    pages.into_iter().for_each(damage);
    refused!(
        Store::open(place.path()),
        Damaged,
        Reason::Damaged(_),
        "no intact meta page",
        "restore it"
    );
}

#[test]
fn data_file_that_was_cut_off_is_damage() {
    let place = Place::new();
    drop(stored(&place));
    patch(&place.path().join("data"), |bytes| bytes.truncate(bytes.len() / 2));
    refused!(
        Store::open(place.path()),
        Damaged,
        Reason::Damaged(_),
        "the data file ends",
        "restore it"
    );
}

/// Makes a store with its newest commits in several log files, as a crash leaves it.
fn crashed(place: &Place) -> std::path::PathBuf {
    let store = by_hand()
        .durability(Durability::Synced)
        .generation_bytes(64 << 10, 64 << 10)
        .open(place.path())
        .unwrap();
    let map = store.map("words").unwrap();
    for number in 0u32.. {
        map.put(number.to_be_bytes(), [number as u8; 1000]).unwrap();
        if store.stat().unwrap().generations.frozen == 2 {
            break;
        }
        assert!(number < 1000, "no two log files wait to be folded at the same time");
    }
    let crashed = place.beside("crashed");
    crash_into(&place.path(), &crashed);
    crashed
}

#[test]
fn log_in_which_synced_commits_are_missing_is_damage() {
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 4] = [
        ("cut off", |bytes| bytes.truncate(20_000)),
        ("empty", |bytes| bytes.clear()),
        // Each synced record begins at a multiple of 4 KiB.
        ("zeros", |bytes| bytes[20_800..21_400].fill(0)),
        ("one bit", |bytes| bytes[20_800] ^= 1),
    ];
    for (name, change) in changes {
        println!("{name}");
        let place = Place::new();
        let crashed = crashed(&place);
        patch(&crashed.join("wal-0"), change);
        let before = contents(&crashed);
        for options in [Options::new(), Options::new().read_only(true)] {
            refused!(
                options.open(&crashed),
                Damaged,
                Reason::Damaged(_),
                "was synced",
                "restore it"
            );
        }
        for (name, file) in contents(&crashed)
            .into_iter()
            .filter(|(name, _)| name != "lock" && name != "shared")
        {
            assert_eq!(
                (file.0, file.1),
                (before[&name].0, before[&name].1),
                "{name} was changed"
            );
        }
    }
}

#[test]
fn log_file_that_is_missing_is_damage() {
    let place = Place::new();
    let crashed = crashed(&place);
    fs::remove_file(crashed.join("wal-0")).unwrap();
    refused!(
        Store::open(&crashed),
        Damaged,
        Reason::Damaged(_),
        "was synced",
        "restore it"
    );
}

#[test]
fn files_that_do_not_belong_to_the_store_are_left_alone() {
    let place = Place::new();
    drop(stored(&place));
    fs::write(place.path().join("notes.txt"), b"mine").unwrap();
    fs::write(place.path().join("wal-63"), b"not a log").unwrap();
    let store = Store::open(place.path()).unwrap();
    assert_eq!(store.map("words").unwrap().count().unwrap(), 3001);
    store.close().unwrap();
    assert_eq!(fs::read(place.path().join("notes.txt")).unwrap(), b"mine");
}

#[test]
fn copy_into_a_directory_that_is_in_use_is_refused() {
    let place = Place::new();
    drop(stored(&place));
    let store = Store::open(place.path()).unwrap();
    let target = place.beside("target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("letter.txt"), b"dear reader").unwrap();
    let refusal = store.copy(&target, &mut |_| ());
    refused!(
        refusal,
        FixTheCall,
        Reason::InvalidArgument(_),
        "not empty",
        "missing or empty"
    );
    assert_eq!(contents(&target).len(), 1);
}

#[test]
fn copy_into_the_store_itself_is_refused() {
    let place = Place::new();
    let store = by_hand().open(place.path()).unwrap();
    let before = contents(&place.path());
    for inside in [
        place.path().to_path_buf(),
        place.path().join("inner"),
        place.path().join("inner").join("most"),
    ] {
        refused!(
            store.copy(&inside, &mut |_| ()),
            FixTheCall,
            Reason::InvalidArgument(_),
            "in the store that it is made of",
            "another directory"
        );
    }
    assert!(contents(&place.path()).keys().eq(before.keys()));
}
