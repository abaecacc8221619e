//! What transactions see of each other. For each anomaly, the test first shows that it appears one level lower: single
//! operations instead of a transaction, or snapshot isolation instead of serialisable. Its absence one level higher is
//! then meaningful.
//!
//! Every scene runs several times: with the conflicting data in the log, and with it folded into the base between begin
//! and commit. The store looks for conflicts in different places then.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::common::{Place, assert_sound, backwards, by_hand, forwards, pairs, restless};
use duramen::{Batch, Kind, Map, Reason, Result, Store, Transaction, TransactionOptions, Value};
use duramen_io::SimDisk;

const SNAPSHOT: fn() -> TransactionOptions = TransactionOptions::new;

fn serializable() -> TransactionOptions {
    TransactionOptions::new().serializable()
}

/// A store on a simulated disk, in which tests interleave transactions by hand.
struct Scene {
    store: Store,
    map: Map,
    folds: bool,
}

impl Scene {
    fn new(folds: bool) -> Scene {
        let store = by_hand().open_on(SimDisk::new(1).platform()).unwrap();
        let map = store.map("accounts").unwrap();
        Scene { store, map, folds }
    }

    /// Moves the commits so far into the base, in the runs that fold.
    fn fold(&self) {
        if self.folds {
            self.store.maintain().unwrap();
        }
    }

    fn begin(&self, options: TransactionOptions) -> Transaction {
        self.store.begin(options).unwrap()
    }

    fn put(&self, key: &str, value: &str) {
        self.map.put(key.as_bytes(), value.as_bytes()).unwrap();
    }

    fn get(&self, key: &str) -> Option<String> {
        self.map.get(key).unwrap().map(|value| text(value.into()))
    }

    fn all(&self) -> Vec<crate::common::Pair> {
        let snapshot = self.store.snapshot().unwrap();
        forwards(&mut snapshot.range(&self.map, ..).unwrap())
    }
}

/// Runs a scene once with everything in the log, and once with folds in between.
fn in_every_setting(act: impl Fn(&Scene)) {
    for folds in [false, true] {
        let scene = Scene::new(folds);
        act(&scene);
        assert_sound(&scene.store);
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn read(tx: &Transaction, map: &Map, key: &str) -> Option<String> {
    tx.get(map, key.as_bytes()).unwrap().map(|value| text(value.to_vec()))
}

fn number(value: Option<impl AsRef<[u8]>>) -> i64 {
    value.map_or(0, |value| std::str::from_utf8(value.as_ref()).unwrap().parse().unwrap())
}

/// Fails unless the commit is refused with a conflict at this key.
#[track_caller]
fn assert_conflict(outcome: Result<impl Sized>, key: &str) {
    let Err(error) = outcome else {
        panic!("the commit should have met a conflict at {key:?}")
    };
    let expected = format!("\"{key}\"");
    let Reason::Conflict { map, key } = error.reason() else {
        panic!("not a conflict: {error}")
    };
    assert_eq!((map.as_str(), key.as_str()), ("accounts", expected.as_str()));
    assert_eq!(error.kind(), Kind::Retry);
    assert!(
        error.to_string().contains(&expected) && error.to_string().contains("run it again"),
        "{error}"
    );
}

// Lost update.

#[test]
fn update_is_lost_between_single_gets_and_puts() {
    in_every_setting(|scene| {
        scene.put("balance", "100");
        let (one, other) = (number(scene.get("balance")), number(scene.get("balance")));
        scene.put("balance", &(one + 10).to_string());
        scene.fold();
        scene.put("balance", &(other + 20).to_string());
        assert_eq!(scene.get("balance").unwrap(), "120", "the first update is lost");
    });
}

#[test]
fn no_update_is_lost_between_transactions() {
    in_every_setting(|scene| {
        scene.put("balance", "100");
        let (mut one, mut other) = (scene.begin(SNAPSHOT()), scene.begin(SNAPSHOT()));
        for (tx, sum) in [(&mut one, "110"), (&mut other, "120")] {
            assert_eq!(read(tx, &scene.map, "balance").unwrap(), "100");
            tx.put(&scene.map, b"balance", sum.as_bytes()).unwrap();
        }
        one.commit().unwrap();
        scene.fold();
        assert_conflict(other.commit(), "balance");
        assert_eq!(scene.get("balance").unwrap(), "110");
    });
}

#[test]
fn every_kind_of_write_conflicts_with_a_put() {
    let acts: [(&str, Change); 8] = [
        ("put", |scene| scene.put("balance", "1")),
        ("delete", |scene| scene.map.delete(b"balance").unwrap()),
        ("delete_range", |scene| {
            scene.map.delete_range(&b"a"[..]..&b"c"[..]).unwrap()
        }),
        ("clear", |scene| scene.map.clear().unwrap()),
        ("update", |scene| {
            scene.map.update(b"balance", |_| Some(b"1".to_vec())).unwrap();
        }),
        ("long value", |scene| {
            scene.map.put(b"balance", vec![1; 100_000]).unwrap()
        }),
        ("batch", |scene| {
            let mut batch = Batch::new();
            batch.put(&scene.map, b"balance", b"1").unwrap();
            scene.store.write(batch).unwrap();
        }),
        ("same value", |scene| scene.put("balance", "100")),
    ];
    for (name, act) in acts {
        println!("{name}");
        in_every_setting(|scene| {
            scene.put("balance", "100");
            let mut tx = scene.begin(SNAPSHOT());
            tx.put(&scene.map, b"balance", b"110").unwrap();
            act(scene);
            scene.fold();
            let outcome = tx.commit();
            let Err(error) = outcome else {
                panic!("{name} was overwritten")
            };
            assert!(matches!(error.reason(), Reason::Conflict { .. }), "{error}");
        });
    }
}

#[test]
fn conflict_is_found_many_folds_later() {
    let scene = Scene::new(true);
    scene.put("balance", "100");
    let mut tx = scene.begin(SNAPSHOT());
    tx.put(&scene.map, b"balance", b"110").unwrap();
    scene.put("balance", "1");
    for round in 0..10 {
        scene.put("other", &round.to_string());
        scene.fold();
    }
    assert_conflict(tx.commit(), "balance");
}

#[test]
fn transaction_that_is_too_old_to_be_checked_says_so() {
    let scene = Scene::new(true);
    let mut tx = scene.begin(SNAPSHOT());
    tx.put(&scene.map, b"balance", b"110").unwrap();
    for round in 0..100 {
        scene.put("other", &round.to_string());
        scene.fold();
    }
    let error = tx.commit().unwrap_err();
    let Reason::TooOld { began, oldest } = error.reason() else {
        panic!("{error}")
    };
    assert!(began < oldest);
    assert_eq!(error.kind(), Kind::Retry);
    assert_eq!(scene.get("balance"), None);
}

// Dirty read.

#[test]
fn half_of_two_single_puts_is_seen() {
    in_every_setting(|scene| {
        scene.put("from", "0");
        scene.fold();
        assert_eq!(
            (scene.get("from").unwrap(), scene.get("to")),
            ("0".into(), None),
            "money is gone for a moment"
        );
        scene.put("to", "100");
    });
}

#[test]
fn nobody_sees_what_is_not_committed() {
    in_every_setting(|scene| {
        scene.put("from", "100");
        let before = scene.all();
        let mut tx = scene.begin(SNAPSHOT());
        tx.put(&scene.map, b"from", b"0").unwrap();
        tx.put(&scene.map, b"to", b"100").unwrap();
        tx.put(&scene.map, b"long", vec![7; 100_000]).unwrap();
        tx.delete_range(&scene.map, &b"x"[..]..).unwrap();
        tx.add(&scene.map, b"counter", 1).unwrap();
        tx.append(&scene.map, b"log/", b"entry").unwrap();
        scene.fold();
        assert_eq!(scene.all(), before);
        assert_eq!(scene.map.count().unwrap(), 1);
        assert_eq!(
            scene
                .map
                .multi_get(&["from", "to"])
                .unwrap()
                .into_iter()
                .map(|value| value.map(Vec::from))
                .collect::<Vec<_>>(),
            [Some(b"100".to_vec()), None]
        );
        let other = scene.begin(serializable());
        assert_eq!(read(&other, &scene.map, "from").unwrap(), "100");
        assert_eq!(backwards_of(&other, &scene.map), before);
        drop(other);
        tx.rollback();
        assert_eq!(scene.all(), before, "what was taken back was never there");
        assert_eq!(
            scene.map.append(b"log/", b"first").unwrap(),
            0,
            "numbers that were taken back are not used up"
        );
    });
}

fn backwards_of(tx: &Transaction, map: &Map) -> Vec<crate::common::Pair> {
    let mut cursor = tx.range(map, ..).unwrap();
    cursor.seek_end();
    let mut found = backwards(&mut cursor);
    found.reverse();
    found
}

// Non-repeatable read and read skew.

#[test]
fn two_single_gets_see_two_moments() {
    in_every_setting(|scene| {
        scene.put("a", "50");
        scene.put("b", "50");
        let a = number(scene.get("a"));
        transfer(scene, 50);
        scene.fold();
        assert_eq!(a + number(scene.get("b")), 150, "the sum is one that never was");
    });
}

fn transfer(scene: &Scene, amount: i64) {
    let move_it = |tx: &mut Transaction| {
        let a = number(tx.get(&scene.map, b"a")?);
        let b = number(tx.get(&scene.map, b"b")?);
        tx.put(&scene.map, b"a", (a - amount).to_string().as_bytes())?;
        tx.put(&scene.map, b"b", (b + amount).to_string().as_bytes())
    };
    scene.store.transact(move_it).unwrap();
}

#[test]
fn snapshot_and_transaction_see_one_moment() {
    in_every_setting(|scene| {
        scene.put("a", "50");
        scene.put("b", "50");
        let (snapshot, tx) = (scene.store.snapshot().unwrap(), scene.begin(SNAPSHOT()));
        let began = number(snapshot.get(&scene.map, b"a").unwrap()) + number(tx.get(&scene.map, b"a").unwrap());
        transfer(scene, 50);
        scene.fold();
        scene.map.delete(b"a").unwrap();
        scene.fold();
        assert_eq!(
            began + number(snapshot.get(&scene.map, b"b").unwrap()) + number(tx.get(&scene.map, b"b").unwrap()),
            200
        );
        let both = |values: Vec<Option<Value<'_>>>| values.into_iter().map(number).collect::<Vec<_>>();
        assert_eq!(both(snapshot.multi_get(&scene.map, &["a", "b"]).unwrap()), [50, 50]);
        assert_eq!(
            both(tx.multi_get(&scene.map, &["a", "b"]).unwrap()),
            [50, 50],
            "reading again gives the same"
        );
    });
}

#[test]
fn multi_get_sees_one_moment_while_others_write() {
    let place = Place::new();
    let store = restless().open(place.path()).unwrap();
    let map = store.map("pairs").unwrap();
    let put_both = |number: u64| {
        let mut batch = Batch::new();
        batch.put(&map, b"a", number.to_be_bytes()).unwrap();
        batch.put(&map, b"b", number.to_be_bytes()).unwrap();
        store.write(batch).unwrap();
    };
    put_both(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| (1..20_000).for_each(put_both));
        while !writer.is_finished() {
            let both = map.multi_get(&["a", "b"]).unwrap();
            assert_eq!(both[0], both[1]);
        }
    });
}

// Phantoms.

#[test]
fn two_single_counts_see_a_phantom() {
    in_every_setting(|scene| {
        scene.put("doctor/1", "on call");
        let before = scene.map.count().unwrap();
        scene.put("doctor/2", "on call");
        scene.fold();
        assert_eq!((before, scene.map.count().unwrap()), (1, 2));
    });
}

#[test]
fn no_phantom_appears_in_a_snapshot_or_transaction() {
    in_every_setting(|scene| {
        scene.put("doctor/1", "on call");
        scene.put("doctor/3", "on call");
        let (snapshot, tx) = (scene.store.snapshot().unwrap(), scene.begin(SNAPSHOT()));
        let expected = pairs(&[("doctor/1", "on call"), ("doctor/3", "on call")]);
        scene.put("doctor/0", "on call");
        scene.put("doctor/2", "on call");
        scene.map.delete(b"doctor/3").unwrap();
        scene.fold();
        scene.map.clear().unwrap();
        scene.fold();
        for mut cursor in [
            snapshot.prefix(&scene.map, b"doctor/").unwrap(),
            tx.prefix(&scene.map, b"doctor/").unwrap(),
        ] {
            assert_eq!(forwards(&mut cursor), expected);
            let mut back = backwards(&mut cursor);
            back.reverse();
            assert_eq!(back, expected);
        }
        assert_eq!(
            (
                snapshot.count(&scene.map, ..).unwrap(),
                tx.count(&scene.map, ..).unwrap()
            ),
            (2, 2)
        );
    });
}

type Read = fn(&Transaction, &Map);
type Change = fn(&Scene);

/// Ways to find out that a range has no other keys; each of them reads all of it.
const READS: [(&str, Read); 5] = [
    ("count", |tx, map| {
        assert_eq!(tx.count(map, &b"d"[..]..&b"e"[..]).unwrap(), 1)
    }),
    ("prefix", |tx, map| {
        assert_eq!(forwards(&mut tx.prefix(map, b"d").unwrap()).len(), 1)
    }),
    ("range", |tx, map| {
        assert_eq!(forwards(&mut tx.range(map, &b"d"[..]..=&b"dz"[..]).unwrap()).len(), 1)
    }),
    ("seek", |tx, map| {
        let mut cursor = tx.range(map, ..).unwrap();
        cursor.seek(b"d2").unwrap();
        assert!(cursor.next().unwrap().is_none());
    }),
    ("backwards", |tx, map| {
        let mut cursor = tx.range(map, &b"d"[..]..).unwrap();
        cursor.seek_end();
        assert_eq!(backwards(&mut cursor).len(), 1);
    }),
];

/// Ways to change what such a read would have found.
const PHANTOMS: [(&str, Change); 7] = [
    ("put", |scene| scene.put("d2", "on call")),
    ("long value", |scene| scene.map.put(b"d2", vec![1; 100_000]).unwrap()),
    ("delete", |scene| scene.map.delete(b"d1").unwrap()),
    ("range delete", |scene| {
        scene.map.delete_range(&b"a"[..]..&b"e"[..]).unwrap()
    }),
    ("append", |scene| {
        assert_eq!(scene.map.append(b"d2", b"on call").unwrap(), 0)
    }),
    ("add", |scene| assert_eq!(scene.map.add(b"d2", 1).unwrap(), 1)),
    ("create", |scene| assert!(scene.map.create(b"d2", b"on call").unwrap())),
];

#[test]
fn phantom_passes_under_snapshot_isolation_and_is_refused_when_serializable() {
    for (read_name, read) in READS {
        for (phantom_name, phantom) in PHANTOMS {
            for (options, passes) in [(SNAPSHOT(), true), (serializable(), false)] {
                in_every_setting(|scene| {
                    scene.put("d1", "on call");
                    scene.fold();
                    let mut tx = scene.begin(options);
                    read(&tx, &scene.map);
                    tx.put(&scene.map, b"outcome", b"I may go").unwrap();
                    phantom(scene);
                    scene.fold();
                    let outcome = tx.commit();
                    assert_eq!(
                        outcome.is_ok(),
                        passes,
                        "{read_name} against {phantom_name}: {outcome:?}"
                    );
                    assert_eq!(scene.get("outcome").is_some(), passes);
                });
            }
        }
    }
}

#[test]
fn serializable_commit_passes_when_nothing_it_read_changed() {
    in_every_setting(|scene| {
        scene.put("d1", "on call");
        let mut tx = scene.begin(serializable());
        assert_eq!(forwards(&mut tx.prefix(&scene.map, b"d").unwrap()).len(), 1);
        assert_eq!(read(&tx, &scene.map, "absent"), None);
        tx.put(&scene.map, b"outcome", b"stay").unwrap();
        scene.put("c", "not read");
        scene.put("e", "not read");
        scene.map.delete_range(&b"e"[..]..&b"f"[..]).unwrap();
        scene.fold();
        tx.commit().unwrap();
    });
}

#[test]
fn serializable_transaction_without_writes_is_refused_when_its_reads_are_stale() {
    in_every_setting(|scene| {
        scene.put("a", "1");
        for (options, passes) in [(SNAPSHOT(), true), (serializable(), false)] {
            let tx = scene.begin(options);
            read(&tx, &scene.map, "a");
            scene.put("a", "2");
            scene.fold();
            assert_eq!(tx.commit().is_ok(), passes);
        }
    });
}

#[test]
fn missing_key_that_was_read_and_then_created_refuses_a_serializable_commit() {
    in_every_setting(|scene| {
        let mut tx = scene.begin(serializable());
        assert_eq!(read(&tx, &scene.map, "claim"), None);
        tx.put(&scene.map, b"owner", b"me").unwrap();
        scene.put("claim", "taken");
        scene.fold();
        assert_conflict(tx.commit(), "claim");
    });
}

// Write skew.

fn two_doctors_leave(scene: &Scene, options: TransactionOptions) -> (Result<()>, Result<()>) {
    scene.put("alice", "on call");
    scene.put("bob", "on call");
    let (mut one, mut other) = (scene.begin(options), scene.begin(options));
    for (tx, who) in [(&mut one, "alice"), (&mut other, "bob")] {
        let on_call = ["alice", "bob"]
            .iter()
            .filter(|name| read(tx, &scene.map, name).unwrap() == "on call")
            .count();
        assert_eq!(on_call, 2);
        tx.put(&scene.map, who.as_bytes(), b"away").unwrap();
    }
    let first = one.commit().map(|_| ());
    scene.fold();
    (first, other.commit().map(|_| ()))
}

#[test]
fn write_skew_appears_under_snapshot_isolation() {
    in_every_setting(|scene| {
        let (first, second) = two_doctors_leave(scene, SNAPSHOT());
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(
            scene.all(),
            pairs(&[("alice", "away"), ("bob", "away")]),
            "nobody is on call"
        );
    });
}

#[test]
fn write_skew_is_refused_when_serializable() {
    in_every_setting(|scene| {
        let (first, second) = two_doctors_leave(scene, serializable());
        first.unwrap();
        assert_conflict(second, "alice");
        assert_eq!(scene.all(), pairs(&[("alice", "away"), ("bob", "on call")]));
    });
}

#[test]
fn one_of_two_doctors_stays_however_often_they_try() {
    let place = Place::new();
    let store = restless().open(place.path()).unwrap();
    let map = store.map("doctors").unwrap();
    for round in 0..200u32 {
        let names = [format!("{round}/alice"), format!("{round}/bob")];
        names
            .iter()
            .for_each(|name| map.put(name.as_bytes(), b"on call").unwrap());
        let leave = |who: usize| {
            store.transact_with(serializable(), |tx| {
                let prefix = format!("{round}/");
                let on_call = forwards(&mut tx.prefix(&map, prefix.as_bytes())?);
                if on_call.iter().filter(|(_, state)| state == b"on call").count() > 1 {
                    tx.put(&map, names[who].as_bytes(), b"away")?;
                }
                Ok::<_, duramen::Error>(())
            })
        };
        thread::scope(|scope| {
            [0, 1]
                .map(|who| scope.spawn(move || leave(who).unwrap()))
                .map(|thread| thread.join().unwrap())
        });
        let away = names
            .iter()
            .filter(|name| map.get(name.as_bytes()).unwrap().unwrap() == b"away")
            .count();
        assert_eq!(away, 1, "in round {round}");
    }
}

// Long fork.

#[test]
fn single_gets_see_two_independent_writes_in_opposite_orders() {
    in_every_setting(|scene| {
        let first_reader_y = scene.get("y");
        let second_reader_x = scene.get("x");
        scene.put("x", "1");
        scene.fold();
        scene.put("y", "1");
        let (first_reader_x, second_reader_y) = (scene.get("x"), scene.get("y"));
        assert_eq!((first_reader_x.is_some(), first_reader_y.is_some()), (true, false));
        assert_eq!(
            (second_reader_x.is_some(), second_reader_y.is_some()),
            (false, true),
            "the history forks"
        );
    });
}

#[test]
fn all_snapshots_agree_on_the_order_of_independent_writes() {
    let place = Place::new();
    let store = restless().open(place.path()).unwrap();
    let map = store.map("fork").unwrap();
    let write = |key: &'static [u8]| (1..6000u64).for_each(|number| map.put(key, number.to_be_bytes()).unwrap());
    let look = |snapshot: &duramen::Snapshot, key: &[u8]| {
        let value = snapshot.get(&map, key).unwrap();
        value.map_or(0, |value| u64::from_be_bytes((*value).try_into().unwrap()))
    };
    let done = AtomicU64::new(0);
    let mut seen = thread::scope(|scope| {
        let writers = [&b"x"[..], b"y"].map(|key| scope.spawn(move || write(key)));
        let readers = [[&b"x"[..], b"y"], [b"y", b"x"]].map(|order| {
            let (done, look, store) = (&done, &look, &store);
            scope.spawn(move || {
                let mut seen = Vec::new();
                while done.load(Ordering::Relaxed) == 0 {
                    let snapshot = store.snapshot().unwrap();
                    let found = order.map(|key| look(&snapshot, key));
                    let (x, y) = if order[0] == b"x" {
                        (found[0], found[1])
                    } else {
                        (found[1], found[0])
                    };
                    seen.push((snapshot.commit(), x, y));
                }
                seen
            })
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(1, Ordering::Relaxed);
        readers
            .into_iter()
            .flat_map(|reader| reader.join().unwrap())
            .collect::<Vec<_>>()
    });
    seen.sort_unstable();
    for pair in seen.windows(2) {
        let ((earlier, x, y), (later, next_x, next_y)) = (pair[0], pair[1]);
        assert!(
            x <= next_x && y <= next_y,
            "{:?} and {:?} cannot be put in one order",
            pair[0],
            pair[1]
        );
        assert_eq!(
            next_x + next_y - x - y,
            later - earlier,
            "every commit writes one number"
        );
    }
}

// Range deletes against puts.

#[test]
fn put_into_a_range_that_another_deletes_conflicts_whoever_commits_first() {
    in_every_setting(|scene| {
        for delete_first in [false, true] {
            scene.put("m", "old");
            let (mut putting, mut deleting) = (scene.begin(SNAPSHOT()), scene.begin(SNAPSHOT()));
            putting.put(&scene.map, b"n", b"new").unwrap();
            deleting.delete_range(&scene.map, &b"m"[..]..&b"p"[..]).unwrap();
            let (first, second) = if delete_first {
                (deleting, putting)
            } else {
                (putting, deleting)
            };
            first.commit().unwrap();
            scene.fold();
            assert_conflict(second.commit(), "n");
            assert_eq!(scene.get("n").is_none(), delete_first);
            scene.map.clear().unwrap();
        }
    });
}

#[test]
fn range_deletes_conflict_where_they_overlap_and_not_where_they_touch() {
    in_every_setting(|scene| {
        for (low, conflicts) in [("c", true), ("d", false)] {
            let (mut one, mut other) = (scene.begin(SNAPSHOT()), scene.begin(SNAPSHOT()));
            one.delete_range(&scene.map, &b"a"[..]..&b"d"[..]).unwrap();
            other.delete_range(&scene.map, low.as_bytes()..&b"f"[..]).unwrap();
            one.commit().unwrap();
            scene.fold();
            assert_eq!(other.commit().is_err(), conflicts, "from {low}");
        }
    });
}

#[test]
fn range_delete_and_put_beside_it_do_not_conflict() {
    in_every_setting(|scene| {
        for key in ["lz", "p"] {
            let (mut putting, mut deleting) = (scene.begin(SNAPSHOT()), scene.begin(SNAPSHOT()));
            putting.put(&scene.map, key.as_bytes(), b"new").unwrap();
            deleting.delete_range(&scene.map, &b"m"[..]..&b"p"[..]).unwrap();
            deleting.commit().unwrap();
            scene.fold();
            putting.commit().unwrap();
            assert_eq!(scene.get(key).unwrap(), "new");
        }
    });
}

#[test]
fn dropping_a_map_conflicts_with_writing_to_it() {
    in_every_setting(|scene| {
        let mut tx = scene.begin(SNAPSHOT());
        tx.put(&scene.map, b"a", b"1").unwrap();
        scene.store.maps().drop("accounts").unwrap();
        scene.fold();
        let error = tx.commit().unwrap_err();
        assert!(
            matches!(error.reason(), Reason::MapDropped { .. } | Reason::Conflict { .. }),
            "{error}"
        );

        let map = scene.store.map("accounts").unwrap();
        let mut tx = scene.begin(SNAPSHOT());
        tx.drop_map("accounts").unwrap();
        map.put(b"a", b"1").unwrap();
        scene.fold();
        assert_conflict(tx.commit(), "a");
        assert_eq!(map.get(b"a").unwrap().unwrap(), b"1");
    });
}

#[test]
fn two_transactions_cannot_both_make_a_map() {
    in_every_setting(|scene| {
        let (mut one, mut other) = (scene.begin(SNAPSHOT()), scene.begin(SNAPSHOT()));
        let (first, second) = (one.map("new").unwrap(), other.map("new").unwrap());
        one.put(&first, b"a", b"1").unwrap();
        other.put(&second, b"a", b"2").unwrap();
        one.commit().unwrap();
        scene.fold();
        let error = other.commit().unwrap_err();
        assert!(matches!(error.reason(), Reason::Conflict { .. }), "{error}");
        assert_eq!(scene.store.map("new").unwrap().get(b"a").unwrap().unwrap(), b"1");
    });
}

// Counters and appends.

#[test]
fn additions_commute() {
    in_every_setting(|scene| {
        scene.map.add(b"sum", 1).unwrap();
        let mut transactions: Vec<Transaction> = (0..5).map(|_| scene.begin(SNAPSHOT())).collect();
        for (number, tx) in transactions.iter_mut().enumerate() {
            tx.add(&scene.map, b"sum", 10i64.pow(number as u32)).unwrap();
            tx.add(&scene.map, b"sum", 1).unwrap();
            let own = 1 + 10i64.pow(number as u32) + 1;
            assert_eq!(
                tx.get(&scene.map, b"sum").unwrap().unwrap(),
                own.to_be_bytes(),
                "own additions are seen"
            );
        }
        for tx in transactions.into_iter().rev() {
            tx.commit().unwrap();
            scene.fold();
        }
        assert_eq!(scene.map.add(b"sum", 0).unwrap(), 1 + 11111 + 5);
    });
}

#[test]
fn additions_conflict_with_other_writes() {
    in_every_setting(|scene| {
        scene.map.add(b"sum", 1).unwrap();
        let (mut adding, mut putting) = (scene.begin(SNAPSHOT()), scene.begin(SNAPSHOT()));
        adding.add(&scene.map, b"sum", 10).unwrap();
        putting.put(&scene.map, b"sum", 100i64.to_be_bytes()).unwrap();
        adding.commit().unwrap();
        scene.fold();
        assert_conflict(putting.commit(), "sum");

        let mut tx = scene.begin(SNAPSHOT());
        tx.put(&scene.map, b"sum", 100i64.to_be_bytes()).unwrap();
        tx.add(&scene.map, b"sum", 1).unwrap();
        scene.map.add(b"sum", 1000).unwrap();
        scene.fold();
        assert_conflict(tx.commit(), "sum");
        assert_eq!(scene.map.add(b"sum", 0).unwrap(), 1011);
    });
}

#[test]
fn appends_are_dense_and_in_commit_order() {
    let place = Place::new();
    let store = restless().open(place.path()).unwrap();
    let map = store.map("topics").unwrap();
    let barrier = Barrier::new(4);
    let publish = |thread: u64| {
        let mut published = Vec::new();
        barrier.wait();
        for round in 0..600u64 {
            let count = 1 + (round + thread) % 3;
            let value = [thread.to_be_bytes(), round.to_be_bytes()].concat();
            let commit = if round % 2 == 0 {
                let mut batch = Batch::new();
                (0..count).for_each(|_| batch.append(&map, b"orders/", &value).unwrap());
                batch.append(&map, b"other/", b"").unwrap();
                store.write(batch).unwrap()
            } else {
                let mut tx = store.begin(SNAPSHOT()).unwrap();
                (0..count).for_each(|_| tx.append(&map, b"orders/", &value).unwrap());
                tx.append(&map, b"other/", b"").unwrap();
                tx.commit().unwrap()
            };
            let numbers = &commit.assigned()[..count as usize];
            published.push((commit.number(), numbers.to_vec(), value));
        }
        published
    };
    let mut published: Vec<_> = thread::scope(|scope| {
        let publish = &publish;
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || publish(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    published.sort();
    let numbers: Vec<u64> = published.iter().flat_map(|(_, numbers, _)| numbers.clone()).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    let snapshot = store.snapshot().unwrap();
    let stored = forwards(&mut snapshot.prefix(&map, b"orders/").unwrap());
    let expected: Vec<crate::common::Pair> = published
        .iter()
        .flat_map(|(_, numbers, value)| {
            numbers
                .iter()
                .map(|n| ([&b"orders/"[..], &n.to_be_bytes()].concat(), value.clone()))
        })
        .collect();
    assert_eq!(stored, expected);
    assert_eq!(snapshot.count(&map, &b"other/"[..]..).unwrap(), 2400);
    assert_sound(&store);
}

// The closure form.

#[test]
fn closure_runs_again_after_a_conflict_and_at_last_in_turn() {
    in_every_setting(|scene| {
        let mut runs = 0;
        let outcome = scene.store.transact(|tx| -> duramen::Result<i32> {
            runs += 1;
            let seen = number(tx.get(&scene.map, b"a")?);
            // Other writers are locked out once the closure runs exclusively, and the put below would wait.
            if runs <= 10 {
                let put = || scene.put("a", &(seen + 1).to_string());
                thread::scope(|scope| scope.spawn(put).join().unwrap());
                scene.fold();
            }
            tx.put(&scene.map, b"a", (seen + 100).to_string().as_bytes())?;
            Ok(runs)
        });
        assert_eq!(outcome.unwrap(), 11, "ten times beside others, then in turn");
        assert_eq!(scene.get("a").unwrap(), "110");
    });
}

#[test]
fn conflict_of_another_store_is_an_error_of_the_closure() {
    in_every_setting(|scene| {
        let elsewhere = Scene::new(false);
        let mut runs = 0;
        let outcome: Result<()> = scene.store.transact(|tx| {
            runs += 1;
            tx.put(&scene.map, b"a", b"1")?;
            let mut late = elsewhere.begin(SNAPSHOT());
            late.put(&elsewhere.map, b"contended", b"1")?;
            elsewhere.put("contended", "2");
            late.commit().map(|_| ())
        });
        let error = outcome.unwrap_err();
        assert!(
            matches!(error.reason(), Reason::Conflict { key, .. } if key == "\"contended\""),
            "{error}"
        );
        assert_eq!(runs, 1, "running again cannot help");
        assert_eq!(scene.get("a"), None);
        scene.put("a", "writers are let in again");
    });
}

#[test]
fn closure_that_returns_an_error_writes_nothing_and_runs_once() {
    in_every_setting(|scene| {
        let mut runs = 0;
        let outcome: Result<()> = scene.store.transact(|tx| {
            runs += 1;
            tx.put(&scene.map, b"a", b"1")?;
            tx.put(&scene.map, [0; 2000], b"")
        });
        assert!(matches!(outcome.unwrap_err().reason(), Reason::KeyTooLong { .. }));
        assert_eq!((runs, scene.get("a")), (1, None));
    });
}

// Exclusive transactions.

#[test]
fn exclusive_transactions_meet_no_conflict_and_shut_out_writers_but_not_readers() {
    let place = Place::new();
    let store = restless().open(place.path()).unwrap();
    let map = store.map("counters").unwrap();
    map.put(b"n", b"0").unwrap();
    let mut tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
    let seen = number(tx.get(&map, b"n").unwrap());
    thread::scope(|scope| {
        let (map, store) = (&map, &store);
        let writers = [
            scope.spawn(|| map.put(b"n", b"1000").unwrap()),
            scope.spawn(|| {
                store.transact(|tx| tx.put(map, b"m", b"1")).unwrap();
            }),
            scope.spawn(|| {
                let mut tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
                tx.put(map, b"o", b"1").unwrap();
                tx.commit().unwrap();
            }),
        ];
        thread::sleep(std::time::Duration::from_millis(100));
        assert!(writers.iter().all(|writer| !writer.is_finished()), "writers wait");
        assert_eq!(map.get(b"n").unwrap().unwrap(), b"0");
        assert_eq!(store.snapshot().unwrap().count(map, ..).unwrap(), 1);
        store.maintain().unwrap();
        tx.put(map, b"n", (seen + 1).to_string().as_bytes()).unwrap();
        let commit = tx.commit().unwrap();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(store.snapshot().unwrap().commit() >= commit.number() + 3);
    });
    assert_eq!(map.count().unwrap(), 3);
    assert_eq!(map.get(b"n").unwrap().unwrap(), b"1000");
}

#[test]
fn exclusive_transaction_that_is_dropped_lets_writers_in() {
    in_every_setting(|scene| {
        let mut tx = scene.begin(TransactionOptions::new().exclusive());
        tx.put(&scene.map, b"a", b"1").unwrap();
        drop(tx);
        scene.put("b", "2");
        scene.begin(TransactionOptions::new().exclusive()).commit().unwrap();
        scene.put("c", "3");
        assert_eq!(scene.all(), pairs(&[("b", "2"), ("c", "3")]));
    });
}

#[test]
fn concurrent_transaction_that_began_earlier_meets_what_an_exclusive_one_wrote() {
    in_every_setting(|scene| {
        let mut early = scene.begin(SNAPSHOT());
        early.put(&scene.map, b"a", b"early").unwrap();
        let mut exclusive = scene.begin(TransactionOptions::new().exclusive());
        exclusive.put(&scene.map, b"a", b"exclusive").unwrap();
        exclusive.commit().unwrap();
        scene.fold();
        assert_conflict(early.commit(), "a");
    });
}

// Savepoints.

#[test]
fn savepoint_takes_back_every_kind_of_write_since() {
    in_every_setting(|scene| {
        scene.put("a", "1");
        scene.put("b", "1");
        scene.fold();
        let mut tx = scene.begin(SNAPSHOT());
        tx.put(&scene.map, b"a", b"2").unwrap();
        tx.append(&scene.map, b"log/", b"kept").unwrap();
        let savepoint = tx.savepoint().unwrap();
        tx.put(&scene.map, b"a", b"3").unwrap();
        tx.put(&scene.map, b"c", vec![1; 100_000]).unwrap();
        tx.delete(&scene.map, b"b").unwrap();
        tx.append(&scene.map, b"log/", b"taken back").unwrap();
        tx.add(&scene.map, b"sum", 1).unwrap();
        tx.delete_range(&scene.map, ..).unwrap();
        assert_eq!(tx.count(&scene.map, ..).unwrap(), 0);
        tx.rollback_to(&savepoint).unwrap();
        assert_eq!(backwards_of(&tx, &scene.map), pairs(&[("a", "2"), ("b", "1")]));
        tx.put(&scene.map, b"d", b"4").unwrap();
        tx.rollback_to(&savepoint).unwrap();
        assert_eq!(tx.commit().unwrap().assigned(), [0]);
        let expected = pairs(&[("a", "2"), ("b", "1"), ("log/\0\0\0\0\0\0\0\0", "kept")]);
        assert_eq!(scene.all(), expected);
    });
}

#[test]
fn savepoints_nest_and_later_ones_go_with_the_earlier() {
    in_every_setting(|scene| {
        let mut tx = scene.begin(SNAPSHOT());
        let points: Vec<_> = (0..4u8)
            .map(|number| {
                let point = tx.savepoint().unwrap();
                tx.put(&scene.map, b"n", [b'0' + number]).unwrap();
                point
            })
            .collect();
        tx.rollback_to(&points[3]).unwrap();
        assert_eq!(read(&tx, &scene.map, "n").unwrap(), "2");
        tx.rollback_to(&points[1]).unwrap();
        assert_eq!(read(&tx, &scene.map, "n").unwrap(), "0");
        let error = tx.rollback_to(&points[2]).unwrap_err();
        assert!(
            matches!(error.reason(), Reason::InvalidArgument(cause) if cause.contains("savepoint")),
            "{error}"
        );
        let foreign = scene.begin(SNAPSHOT()).savepoint().unwrap();
        let error = tx.rollback_to(&foreign).unwrap_err();
        assert!(
            matches!(error.reason(), Reason::InvalidArgument(cause) if cause.contains("another")),
            "{error}"
        );
        tx.rollback_to(&points[0]).unwrap();
        assert_eq!(read(&tx, &scene.map, "n"), None);
        tx.put(&scene.map, b"n", b"end").unwrap();
        tx.commit().unwrap();
        assert_eq!(scene.all(), pairs(&[("n", "end")]));
    });
}

#[test]
fn what_was_taken_back_does_not_conflict() {
    in_every_setting(|scene| {
        scene.put("a", "1");
        let mut tx = scene.begin(SNAPSHOT());
        let savepoint = tx.savepoint().unwrap();
        tx.put(&scene.map, b"a", b"2").unwrap();
        tx.delete_range(&scene.map, ..).unwrap();
        tx.rollback_to(&savepoint).unwrap();
        tx.put(&scene.map, b"b", b"2").unwrap();
        scene.put("a", "3");
        scene.fold();
        tx.commit().unwrap();
        assert_eq!(scene.all(), pairs(&[("a", "3"), ("b", "2")]));
    });
}

#[test]
fn making_dropping_and_renaming_maps_is_taken_back() {
    in_every_setting(|scene| {
        scene.put("a", "1");
        let renamed = scene.store.map("renamed").unwrap();
        scene.map.append(b"log/", b"0").unwrap();
        let mut tx = scene.begin(SNAPSHOT());
        tx.append(&scene.map, b"log/", b"1").unwrap();
        let savepoint = tx.savepoint().unwrap();
        let made = tx.map("made").unwrap();
        tx.put(&made, b"a", b"1").unwrap();
        tx.rename_map("renamed", "other").unwrap();
        tx.drop_map("accounts").unwrap();
        tx.rollback_to(&savepoint).unwrap();
        tx.put(&scene.map, b"b", b"2").unwrap();
        assert_eq!(
            tx.commit().unwrap().assigned(),
            [1],
            "the append before the savepoint stays"
        );
        scene.fold();
        let error = made.put(b"a", b"1").unwrap_err();
        assert!(
            matches!(error.reason(), Reason::MapDropped { name } if name == "made"),
            "{error}"
        );
        assert_eq!(scene.store.maps().list().unwrap(), ["accounts", "renamed"]);
        assert_eq!(scene.get("b").unwrap(), "2", "the handle still works");
        renamed.put(b"a", b"1").unwrap();
        assert_eq!(scene.store.maps().get("renamed").unwrap().unwrap().count().unwrap(), 1);
    });
}

#[test]
fn space_of_long_values_that_were_replaced_or_taken_back_is_not_lost() {
    in_every_setting(|scene| {
        let free = || {
            (0..3).for_each(|_| scene.store.maintain().unwrap());
            let figures = scene.store.stat().unwrap();
            figures.pages - figures.free_pages - figures.retired_pages
        };
        scene.put("a", "1");
        let before = free();
        let mut tx = scene.begin(SNAPSHOT());
        tx.put(&scene.map, b"a", vec![1; 500_000]).unwrap();
        tx.append(&scene.map, b"log/", vec![2; 500_000]).unwrap();
        let savepoint = tx.savepoint().unwrap();
        tx.put(&scene.map, b"a", vec![3; 500_000]).unwrap();
        tx.append(&scene.map, b"log/", vec![4; 500_000]).unwrap();
        tx.rollback_to(&savepoint).unwrap();
        tx.put(&scene.map, b"a", vec![5; 500_000]).unwrap();
        tx.put(&scene.map, b"b", vec![6; 500_000]).unwrap();
        tx.savepoint().unwrap();
        tx.delete_range(&scene.map, &b"b"[..]..&b"c"[..]).unwrap();
        tx.commit().unwrap();
        assert_sound(&scene.store);
        assert_eq!(
            scene.all().iter().map(|(_, value)| value[0]).collect::<Vec<_>>(),
            [5, 2]
        );
        let pages = free() - before;
        assert!(
            pages < 2 * 500_000 / 4096 + 20,
            "{pages} pages are in use for two values of 500000 bytes"
        );
    });
}

#[test]
fn handle_of_a_map_that_was_never_committed_writes_nothing() {
    in_every_setting(|scene| {
        let mut tx = scene.begin(SNAPSHOT());
        let made = tx.map("made").unwrap();
        tx.put(&made, b"a", b"1").unwrap();
        drop(tx);
        assert!(matches!(
            made.put(b"a", b"1").unwrap_err().reason(),
            Reason::MapDropped { .. }
        ));
        assert_eq!(scene.store.maps().list().unwrap(), ["accounts"]);
    });
}

// Reading own writes.

#[test]
fn own_writes_are_read_by_every_way_of_reading() {
    in_every_setting(|scene| {
        ["a", "b", "c", "d", "e"].iter().for_each(|key| scene.put(key, "old"));
        scene.fold();
        ["c", "f"].iter().for_each(|key| scene.put(key, "newer"));
        let mut tx = scene.begin(SNAPSHOT());
        tx.put(&scene.map, b"0", b"own").unwrap();
        tx.put(&scene.map, b"b", b"own").unwrap();
        tx.put(&scene.map, b"cc", b"own").unwrap();
        tx.delete(&scene.map, b"c").unwrap();
        tx.delete(&scene.map, b"missing").unwrap();
        tx.delete_range(&scene.map, &b"d"[..]..&b"f"[..]).unwrap();
        tx.put(&scene.map, b"e", b"again").unwrap();
        let expected = pairs(&[
            ("0", "own"),
            ("a", "old"),
            ("b", "own"),
            ("cc", "own"),
            ("e", "again"),
            ("f", "newer"),
        ]);
        assert_eq!(forwards(&mut tx.range(&scene.map, ..).unwrap()), expected);
        assert_eq!(backwards_of(&tx, &scene.map), expected);
        assert_eq!(tx.count(&scene.map, ..).unwrap(), 6);
        assert_eq!(tx.count(&scene.map, &b"b"[..]..=&b"e"[..]).unwrap(), 3);
        for key in ["0", "a", "b", "c", "cc", "d", "e", "f"] {
            let value = expected
                .iter()
                .find(|(found, _)| found == key.as_bytes())
                .map(|(_, value)| value.as_slice());
            assert_eq!(tx.get(&scene.map, key.as_bytes()).unwrap().as_deref(), value, "{key}");
        }
        assert_eq!(
            forwards(&mut tx.prefix(&scene.map, b"c").unwrap()),
            pairs(&[("cc", "own")])
        );
        tx.commit().unwrap();
        scene.fold();
        assert_eq!(scene.all(), expected);
    });
}

#[test]
fn cursor_turns_around_anywhere_among_own_writes() {
    in_every_setting(|scene| {
        (0..40).step_by(2).for_each(|n| scene.put(&format!("{n:02}"), "old"));
        scene.fold();
        (0..40).step_by(8).for_each(|n| scene.put(&format!("{n:02}"), "newer"));
        let mut tx = scene.begin(SNAPSHOT());
        (1..40)
            .step_by(4)
            .for_each(|n| tx.put(&scene.map, format!("{n:02}").as_bytes(), b"own").unwrap());
        (6..40)
            .step_by(6)
            .for_each(|n| tx.delete(&scene.map, format!("{n:02}").as_bytes()).unwrap());
        let expected = backwards_of(&tx, &scene.map);
        for turn in 0..=expected.len() {
            let mut cursor = tx.range(&scene.map, ..).unwrap();
            for pair in &expected[..turn] {
                let (key, value) = cursor.next().unwrap().unwrap();
                assert_eq!((key, &*value), (pair.0.as_slice(), pair.1.as_slice()));
            }
            let mut back = backwards(&mut cursor);
            back.reverse();
            assert_eq!(back, expected[..turn], "turned around after {turn}");
            assert_eq!(forwards(&mut cursor), expected);
        }
    });
}

#[test]
fn transaction_writes_after_it_has_read_by_cursor() {
    in_every_setting(|scene| {
        (0..100).for_each(|n| scene.put(&format!("{n:03}"), &n.to_string()));
        scene.fold();
        let mut tx = scene.begin(serializable());
        for (key, value) in backwards_of(&tx, &scene.map) {
            let doubled = 2 * number(Some(value));
            tx.put(&scene.map, &key, doubled.to_string().as_bytes()).unwrap();
        }
        tx.commit().unwrap();
        scene.fold();
        assert!(
            scene
                .all()
                .iter()
                .enumerate()
                .all(|(n, (_, value))| number(Some(value)) == 2 * n as i64)
        );
    });
}

// Contention.

const THREADS: usize = 4;
const ROUNDS: usize = 400;

/// Runs a function in several threads at once, and returns the result of each.
fn contend<T: Send>(act: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        let (act, barrier) = (&act, &barrier);
        let run = |thread| {
            scope.spawn(move || {
                barrier.wait();
                act(thread)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn contended() -> (Place, Store, Map) {
    let place = Place::new();
    let store = restless().open(place.path()).unwrap();
    let map = store.map("accounts").unwrap();
    (place, store, map)
}

#[test]
fn one_of_many_creates_each_key() {
    let (_place, store, map) = contended();
    let won = contend(|thread| {
        let create = |n: usize| map.create(n.to_be_bytes(), thread.to_be_bytes()).unwrap();
        (0..ROUNDS).filter(|&n| create(n)).collect::<Vec<_>>()
    });
    assert_eq!(won.iter().map(Vec::len).sum::<usize>(), ROUNDS);
    for (thread, keys) in won.iter().enumerate() {
        assert!(
            keys.iter()
                .all(|n| map.get(n.to_be_bytes()).unwrap().unwrap() == thread.to_be_bytes())
        );
    }
    assert_sound(&store);
}

#[test]
fn compare_and_swap_counts_exactly() {
    let (_place, _store, map) = contended();
    contend(|_| {
        for _ in 0..ROUNDS {
            loop {
                let now = map.get(b"n").unwrap();
                let next = (number(now.as_ref()) + 1).to_string();
                if map
                    .compare_and_swap(b"n", now.as_deref(), Some(next.as_bytes()))
                    .unwrap()
                {
                    break;
                }
            }
        }
    });
    assert_eq!(number(map.get(b"n").unwrap()), (THREADS * ROUNDS) as i64);
    let total = (THREADS * ROUNDS).to_string();
    assert!(!map.compare_and_swap(b"n", Some(b"wrong"), Some(b"0")).unwrap());
    assert!(!map.compare_and_swap(b"n", None, Some(b"0")).unwrap());
    assert!(map.compare_and_swap(b"n", Some(total.as_bytes()), None).unwrap());
    assert_eq!(map.get(b"n").unwrap(), None);
}

#[test]
fn updates_count_exactly_and_each_sees_another_value() {
    let (_place, _store, map) = contended();
    let before = contend(|_| {
        let increase = |now: Option<&[u8]>| Some((number(now) + 1).to_string().into_bytes());
        (0..ROUNDS)
            .map(|_| number(map.update(b"n", increase).unwrap()))
            .collect::<Vec<_>>()
    });
    let mut before: Vec<i64> = before.concat();
    before.sort_unstable();
    assert_eq!(before, (0..(THREADS * ROUNDS) as i64).collect::<Vec<_>>());
}

#[test]
fn additions_count_exactly_and_each_returns_another_sum() {
    let (_place, _store, map) = contended();
    let sums = contend(|_| (0..ROUNDS).map(|_| map.add(b"n", 1).unwrap()).collect::<Vec<_>>());
    let mut sums = sums.concat();
    sums.sort_unstable();
    assert_eq!(sums, (1..=(THREADS * ROUNDS) as i64).collect::<Vec<_>>());
}

#[test]
fn closures_count_exactly() {
    let (_place, store, map) = contended();
    for options in [SNAPSHOT(), serializable(), TransactionOptions::new().exclusive()] {
        map.delete(b"n").unwrap();
        contend(|_| {
            for _ in 0..ROUNDS / 4 {
                let increase = |tx: &mut Transaction| {
                    let next = number(tx.get(&map, b"n")?) + 1;
                    tx.put(&map, b"n", next.to_string().as_bytes())
                };
                store.transact_with(options, increase).unwrap();
            }
        });
        assert_eq!(number(map.get(b"n").unwrap()), (THREADS * ROUNDS / 4) as i64);
    }
}
