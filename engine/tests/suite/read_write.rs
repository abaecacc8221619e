//! Operations that read and then write, iterators from both ends, closures with errors of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use duramen_engine::{
    Durability, Error, KeyBounds, Maintenance, Map, Options, Reason, Result, Rollback, Store, Transaction, Value,
};
use duramen_io::SimDisk;

fn scene() -> (Store, Map) {
    let options = Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written);
    let store = options.open_on(SimDisk::new(1).platform()).unwrap();
    let map = store.map("map").unwrap();
    (store, map)
}

fn keys(map: &Map, store: &Store) -> Vec<String> {
    let snapshot = store.snapshot().unwrap();
    let pairs = snapshot.range(map, ..).unwrap().iter();
    pairs.map(|pair| String::from_utf8(pair.unwrap().0).unwrap()).collect()
}

fn seed() -> u64 {
    let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    seed
}

/// Each operation in a transaction, and what it is called for a map.
#[test]
fn a_transaction_can_do_what_a_map_can() {
    let (store, map) = scene();
    let mut tx = store.begin(Default::default()).unwrap();
    assert!(tx.is_empty(&map).unwrap());
    assert!(tx.first(&map).unwrap().is_none() && tx.pop_last(&map).unwrap().is_none());
    assert!(tx.create(&map, "a", "1").unwrap());
    assert!(!tx.create(&map, "a", "2").unwrap());
    assert!(!tx.compare_and_swap(&map, "a", Some(b"2"), None).unwrap());
    assert!(tx.compare_and_swap(&map, "a", Some(b"1"), Some(b"2")).unwrap());
    assert!(tx.compare_and_swap(&map, "b", None, Some(b"3")).unwrap());
    let before = tx.update(&map, "b", |now| Some([now.unwrap(), b"!"].concat()));
    assert_eq!(before.unwrap().unwrap(), "3");
    assert_eq!(tx.take(&map, "a").unwrap().unwrap(), "2");
    assert!(tx.take(&map, "a").unwrap().is_none());
    assert!(!tx.contains_key(&map, "a").unwrap() && tx.contains_key(&map, "b").unwrap());
    assert_eq!(tx.put_sorted(&map, [("c", "4"), ("d", "5")]).unwrap(), 2);
    assert_eq!(
        tx.first(&map).unwrap().unwrap(),
        (b"b".to_vec(), tx.get(&map, "b").unwrap().unwrap())
    );
    assert_eq!(tx.last(&map).unwrap().unwrap().0, b"d");
    assert_eq!(tx.pop_first(&map).unwrap().unwrap().0, b"b");
    assert_eq!(tx.pop_last(&map).unwrap().unwrap().0, b"d");
    // A value that was read does not keep the transaction from writing.
    let value = tx.get(&map, "c").unwrap().unwrap();
    tx.put(&map, "e", &value).unwrap();
    tx.commit().unwrap();
    assert_eq!(keys(&map, &store), ["c", "e"]);
    assert_eq!(map.get("e").unwrap().unwrap(), "4");

    assert!(!map.is_empty().unwrap() && map.contains_key("c").unwrap());
    assert_eq!(map.first().unwrap().unwrap().0, b"c");
    assert_eq!(map.last().unwrap().unwrap().0, b"e");
    assert_eq!(map.take("c").unwrap().unwrap(), "4");
    assert_eq!(map.pop_first().unwrap().unwrap().0, b"e");
    assert!(map.pop_last().unwrap().is_none() && map.take("c").unwrap().is_none());
    assert!(map.is_empty().unwrap());
    let snapshot = store.snapshot().unwrap();
    assert!(snapshot.is_empty(&map).unwrap() && snapshot.first(&map).unwrap().is_none());
}

#[test]
fn long_values_are_there_without_being_read() {
    let (store, map) = scene();
    map.put("long", vec![7; 100_000]).unwrap();
    for _ in 0..2 {
        assert!(map.contains_key("long").unwrap());
        assert!(store.snapshot().unwrap().contains_key(&map, "long").unwrap());
        assert!(
            store
                .begin(Default::default())
                .unwrap()
                .contains_key(&map, "long")
                .unwrap()
        );
        store.maintain().unwrap();
    }
    assert_eq!(map.take("long").unwrap().unwrap(), [7; 100_000]);
}

#[test]
fn each_pair_is_popped_by_one_thread() {
    let (_store, map) = scene();
    for number in 0..400u32 {
        map.put(number.to_be_bytes(), "").unwrap();
    }
    let popped = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let map = &map;
                scope.spawn(move || {
                    let pop = || {
                        if number % 2 == 0 {
                            map.pop_first()
                        } else {
                            map.pop_last()
                        }
                    };
                    std::iter::from_fn(|| pop().unwrap())
                        .map(|(key, _)| key)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let popped = threads.into_iter().map(|thread| thread.join().unwrap());
        popped.collect::<Vec<_>>().concat()
    });
    assert_eq!(popped.len(), 400);
    assert_eq!(popped.into_iter().collect::<BTreeSet<_>>().len(), 400);
}

/// More pairs than are looked at together, some of them the transaction's own.
#[test]
fn retain_and_extract_remove_what_was_chosen_and_nothing_else() {
    let (store, map) = scene();
    let number = |key: &[u8]| u32::from_be_bytes(key.try_into().unwrap());
    let fill = |numbers: &mut dyn Iterator<Item = u32>| {
        map.put_sorted(numbers.map(|number| (number.to_be_bytes(), "value")))
            .unwrap();
    };
    fill(&mut (0..5_000));
    store.maintain().unwrap();
    assert_eq!(map.retain(|key, _| number(key) % 5 > 0).unwrap(), 1_000);
    assert_eq!(map.retain(|_, value| value == b"value").unwrap(), 0);

    let mut tx = store.begin(Default::default()).unwrap();
    tx.put(&map, 5u32.to_be_bytes(), "own").unwrap();
    let (low, high) = (3u32.to_be_bytes(), 4_000u32.to_be_bytes());
    let mut extracted = tx.extract_if(&map, low..high, |key, _| number(key) % 2 == 1).unwrap();
    let taken: Vec<u32> = extracted
        .by_ref()
        .take(2)
        .map(|pair| number(&pair.unwrap().0))
        .collect();
    assert_eq!(taken, [3, 5]);
    drop(extracted);
    // What the iterator did not come to is there.
    assert_eq!(tx.count(&map, ..).unwrap(), 3_999);
    let rest = tx.extract_if(&map, .., |key, _| number(key) % 2 == 1).unwrap();
    let rest: Vec<u32> = rest.map(|pair| number(&pair.unwrap().0)).collect();
    let expected: Vec<u32> = (0..5_000).filter(|n| n % 2 == 1 && n % 5 > 0 && *n != 3).collect();
    assert_eq!(rest, expected);
    tx.commit().unwrap();
    let even: Vec<_> = map.extract_if(.., |key, _| number(key) < 8).unwrap();
    assert_eq!(even.len(), 3, "2, 4 and 6");
    assert_eq!(map.count().unwrap(), 1_997);
}

#[test]
fn sorted_pairs_must_ascend() {
    let (store, map) = scene();
    for wrong in [["b", "a"], ["a", "a"]] {
        let refused = map.put_sorted(wrong.map(|key| (key, ""))).unwrap_err();
        assert!(refused.to_string().contains("does not come after"), "{refused}");
        assert!(map.is_empty().unwrap());
        let mut tx = store.begin(Default::default()).unwrap();
        tx.put_sorted(&map, wrong.map(|key| (key, ""))).unwrap_err();
    }
}

#[test]
fn numbers_are_known_inside_the_transaction() {
    let (store, map) = scene();
    assert_eq!(map.append("p/", "zero").unwrap(), 0);
    let mut tx = store.begin(Default::default()).unwrap();
    assert_eq!(tx.append_numbered(&map, "p/", "one").unwrap(), 1);
    let here = tx.savepoint().unwrap();
    assert_eq!(tx.append_numbered(&map, "p/", "taken back").unwrap(), 2);
    assert_eq!(tx.append_numbered(&map, "other/", "taken back").unwrap(), 0);
    tx.rollback_to(&here).unwrap();
    // An ordinary append follows the numbers that are known.
    tx.append(&map, "p/", "two").unwrap();
    assert_eq!(tx.append_numbered(&map, "p/", "three").unwrap(), 3);
    tx.append(&map, "other/", "zero").unwrap();
    let refused = tx.append_numbered(&map, "other/", "").unwrap_err();
    assert!(matches!(refused.reason(), Reason::InvalidArgument(_)), "{refused}");
    tx.commit().unwrap();
    assert_eq!(map.append("p/", "four").unwrap(), 4);
    assert_eq!(map.append("other/", "one").unwrap(), 1);
    let snapshot = store.snapshot().unwrap();
    let values: Vec<_> = snapshot
        .prefix(&map, "p/")
        .unwrap()
        .iter()
        .map(|pair| pair.unwrap().1)
        .collect();
    assert_eq!(values, ["zero", "one", "two", "three", "four"]);

    // It conflicts with an append of others, and counts from what was loaded.
    let mut tx = store.begin(Default::default()).unwrap();
    tx.append_numbered(&map, "p/", "late").unwrap();
    map.append("p/", "five").unwrap();
    assert!(matches!(tx.commit().unwrap_err().reason(), Reason::Conflict { .. }));
    map.put([&b"loaded/"[..], &8u64.to_be_bytes()].concat(), "").unwrap();
    let mut tx = store.begin(Default::default()).unwrap();
    assert_eq!(tx.append_numbered(&map, "loaded/", "").unwrap(), 9);
    tx.commit().unwrap();
    assert_eq!(map.append("loaded/", "").unwrap(), 10);
}

#[test]
fn threads_that_number_in_transactions_leave_no_gap() {
    let (store, map) = scene();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let number = store.transact(|tx| {
                        let number = tx.append_numbered(&map, "", "")?;
                        tx.put(&map, [b"by number ", &number.to_be_bytes()[..]].concat(), "")?;
                        Ok::<_, Error>(number)
                    });
                    number.unwrap();
                    map.append("", "").unwrap();
                }
            });
        }
    });
    assert_eq!(map.append("", "").unwrap(), 400);
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.prefix(&map, "by number ").unwrap().into_iter().count(), 200);
}

/// An error type of the program, with a conflict hidden inside.
#[derive(Debug)]
struct Own;

impl From<Error> for Own {
    fn from(_: Error) -> Own {
        Own
    }
}

#[test]
fn closures_have_errors_of_their_own() {
    let (store, map) = scene();
    let refused = store.transact(|tx| {
        tx.put(&map, "key", "value")?;
        Err::<(), Own>(Own)
    });
    assert!(matches!(refused, Err(Own)) && map.is_empty().unwrap());
    let counted = store.transact(|tx| {
        tx.put(&map, "key", "value")?;
        Err::<(), _>(Rollback::With(tx.count(&map, ..)?))
    });
    assert!(matches!(counted, Err(Rollback::With(1))) && map.is_empty().unwrap());
    let too_long = store.transact(|tx| {
        tx.put(&map, vec![0; 2_000], "")?;
        Ok::<_, Rollback<u8>>(())
    });
    assert!(matches!(too_long, Err(Rollback::Error(error)) if matches!(error.reason(), Reason::KeyTooLong { .. })));
}

/// The closure turns the conflict into an error of its own: it runs again all the same.
#[test]
fn a_conflict_inside_a_closure_runs_it_again_whatever_the_error_becomes() {
    let (store, _) = scene();
    let mut runs = 0;
    let done = store.transact(|tx: &mut Transaction| -> std::result::Result<(), Own> {
        runs += 1;
        let map = tx.map("map")?;
        if runs == 1 {
            let drop_map = || store.maps().drop("map");
            thread::scope(|scope| scope.spawn(drop_map).join().unwrap())?;
        }
        Ok(tx.put(&map, "key", "value")?)
    });
    assert!(done.is_ok());
    assert_eq!(runs, 2);
    assert_eq!(store.map("map").unwrap().get("key").unwrap().unwrap(), "value");
}

#[test]
fn an_owned_value_outlives_its_snapshot_and_its_clones_share_it() {
    let (store, map) = scene();
    map.put("key", "value").unwrap();
    let value: Value<'static> = {
        let snapshot = store.snapshot().unwrap();
        snapshot.get(&map, "key").unwrap().unwrap().into_owned()
    };
    let copy = value.clone();
    map.delete("key").unwrap();
    store.close().unwrap();
    assert_eq!(copy, "value");
    assert_eq!(copy.as_ptr(), value.as_ptr());
    assert_eq!(Vec::from(copy), b"value");
}

/// Bounds of every form.
#[test]
fn ranges_are_of_anything_that_is_bytes() {
    let (store, map) = scene();
    map.put_sorted(["a", "b", "c", "d"].map(|key| (key, ""))).unwrap();
    let snapshot = store.snapshot().unwrap();
    let count = |range: &dyn KeyBounds| snapshot.count(&map, range).unwrap();
    assert_eq!(count(&..), 4);
    assert_eq!(count(&("b".."d")), 2);
    assert_eq!(count(&(b"b"..=b"d")), 3);
    assert_eq!(count(&(String::from("b")..)), 3);
    assert_eq!(count(&(..vec![b'b'])), 1);
    assert_eq!(count(&(..=[b'b'])), 2);
    use std::ops::Bound;
    assert_eq!(count(&(Bound::Excluded("b"), Bound::Unbounded)), 2);
    assert_eq!(count(&duramen_engine::encoding::KeyRange::of_prefix(b"c".to_vec())), 1);
}

/// Steps from both ends at random, over folded pairs and others, until they meet.
#[test]
fn iterators_from_both_ends_meet() {
    let seed = seed();
    for round in 0..200 {
        let rng = &mut fastrand::Rng::with_seed(seed.wrapping_add(round));
        let (store, map) = scene();
        let mut model = BTreeMap::new();
        for number in 0..rng.u32(0..40) {
            let (key, value) = (rng.u8(0..60), number.to_le_bytes());
            map.put([key], value).unwrap();
            model.insert(key, value);
            if rng.u8(..10) == 0 {
                store.maintain().unwrap();
            }
            if rng.u8(..4) == 0 {
                let gone = rng.u8(0..60);
                map.delete([gone]).unwrap();
                model.remove(&gone);
            }
        }
        let (low, high) = (rng.u8(0..30), rng.u8(30..60));
        let expected: Vec<_> = model.range(low..high).collect();
        let tx = store.begin(Default::default()).unwrap();
        let mut pairs = tx.range(&map, [low]..[high]).unwrap().into_iter();
        let (mut front, mut back) = (0, expected.len());
        let steps = expected.len() + 4;
        for _ in 0..steps {
            let is_back = rng.bool();
            let found = if is_back { pairs.next_back() } else { pairs.next() };
            let found = found.map(|pair| pair.map(|(key, value)| (key[0], value.to_vec())).unwrap());
            let expected = (front < back).then(|| if is_back { expected[back - 1] } else { expected[front] });
            assert_eq!(
                found,
                expected.map(|(key, value)| (*key, value.to_vec())),
                "round {round}"
            );
            match expected.is_some() {
                true if is_back => back -= 1,
                true => front += 1,
                false => {}
            }
        }
    }
}

#[test]
fn an_iterator_ends_after_an_error() {
    let (store, map) = scene();
    map.put_sorted(["a", "b", "c"].map(|key| (key, ""))).unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut pairs = snapshot.range(&map, ..).unwrap().iter();
    assert!(pairs.next().unwrap().is_ok());
    store.end_snapshot(snapshot.id()).unwrap();
    let ended: Vec<Result<_>> = pairs.by_ref().collect();
    assert_eq!(ended.len(), 1);
    assert!(matches!(ended[0].as_ref().unwrap_err().reason(), Reason::SnapshotEnded));
    assert!(pairs.next_back().is_none());
}

#[test]
fn errors_are_cloned_and_print_what_to_do() {
    let (store, map) = scene();
    let mut late = store.begin(Default::default()).unwrap();
    late.put(&map, "key", "late").unwrap();
    map.put("key", "first").unwrap();
    let error = late.commit().unwrap_err();
    let copy = error.clone();
    assert!(error.is_conflict() && copy.is_conflict());
    let text = format!("{copy:?}");
    assert!(text.starts_with(&error.to_string()), "{text}");
    assert!(text.ends_with("run it again (Retry, Conflict)"), "{text}");
    assert_eq!(
        (map.to_string(), Durability::Synced.to_string()),
        ("map".into(), "synced".into())
    );
    assert!(!map.put(vec![0; 2_000], "").unwrap_err().is_conflict());
}

/// The power goes after each call to the disk: a number and what names it are there together, without gaps, and so is a pair that was
/// taken from one map and put into another.
#[test]
fn numbers_and_pops_survive_a_power_cut_as_one() {
    let mut is_over = false;
    for calls in 0.. {
        if is_over {
            break;
        }
        let disk = SimDisk::new(calls);
        let options = || Options::new().maintenance(Maintenance::Manual);
        let store = options().open_on(disk.platform()).unwrap();
        let (orders, named, jobs) = (
            store.map("orders").unwrap(),
            store.map("named").unwrap(),
            store.map("jobs").unwrap(),
        );
        jobs.put_sorted((0..6u8).map(|job| ([job], ""))).unwrap();
        disk.stop_after(calls);
        let mut acknowledged = 0;
        for turn in 0..6 {
            let done = store.transact(|tx| {
                let number = tx.append_numbered(&orders, "", "order")?;
                tx.put(&named, number.to_be_bytes(), "")?;
                assert!(tx.pop_first(&jobs)?.is_some());
                Ok::<_, Error>(())
            });
            match done {
                Ok(()) => acknowledged += 1,
                Err(_) => break,
            }
            if turn == 2 && store.maintain().is_err() {
                break;
            }
        }
        is_over = acknowledged == 6;
        let disk = disk.power_cut(calls);
        drop((orders, named, jobs, store));
        let store = options().open_on(disk.platform()).unwrap();
        let count = |name: &str| store.map(name).unwrap().count().unwrap();
        let (orders, named) = (count("orders"), count("named"));
        assert!(orders >= acknowledged, "{orders} of {acknowledged} after {calls} calls");
        assert_eq!((named, count("jobs")), (orders, 6 - orders), "after {calls} calls");
        let last = store.map("orders").unwrap().last().unwrap();
        assert_eq!(
            last.map(|(key, _)| key),
            orders.checked_sub(1).map(|last| last.to_be_bytes().to_vec())
        );
        assert_eq!(store.map("orders").unwrap().append("", "next").unwrap(), orders);
    }
}
