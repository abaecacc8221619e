//! Typed maps: what goes in comes out, in the order of the types, and what is not of the type is refused.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use duramen::encoding::{DecodeKey, Key};
use duramen::{
    Batch, ChangesFrom, Counter, Durability, Json, KeyFor, Kind, Options, Reason, Result, Store, TypedChange, TypedMap,
    ValueCodec,
};
use duramen_io::SimDisk;

fn store() -> Store {
    Options::new()
        .durability(Durability::Written)
        .open_on(SimDisk::new(1).platform())
        .unwrap()
}

fn comes_back<K: DecodeKey + KeyFor<K> + PartialEq + Debug, V: ValueCodec + PartialEq + Debug>(key: K, value: V) {
    let store = store();
    let map = TypedMap::<K, V>::new(store.map("map").unwrap());
    assert_eq!(map.get(&key).unwrap(), None);
    map.put(&key, &value).unwrap();
    assert_eq!(map.get(&key).unwrap().as_ref(), Some(&value));
    let snapshot = store.snapshot().unwrap();
    let pairs = map
        .at(&snapshot)
        .range(..)
        .unwrap()
        .collect::<Result<Vec<_>>>()
        .unwrap();
    assert_eq!(pairs, [(key, value)]);
}

#[test]
fn every_type_comes_back() {
    comes_back(7u8, 7u64);
    comes_back(-7i64, -7i128);
    comes_back("text \0 with zero".to_string(), "value \0".to_string());
    comes_back(vec![0u8, 1, 0, 255], vec![0u8, 0]);
    comes_back([1u8, 0], [0u8; 3]);
    comes_back(true, false);
    comes_back('x', 'y');
    comes_back(1.5f64, -0.25f32);
    comes_back((), ());
    comes_back(Some(3u16), None::<String>);
    comes_back(Reverse(9u32), Counter(-9));
    comes_back(
        ("a".to_string(), 1u32, [7u8; 4]),
        ("b".to_string(), Some(vec![0u8]), -1i8),
    );
}

#[test]
fn borrowed_keys_find_what_owned_keys_stored() {
    let map = TypedMap::<(String, Option<Vec<u8>>, Reverse<u64>), u32>::new(store().map("map").unwrap());
    map.put(&("name".to_string(), Some(vec![1, 2]), Reverse(3)), &1)
        .unwrap();
    assert_eq!(map.get(&("name", Some(&[1u8, 2][..]), Reverse(3))).unwrap(), Some(1));
    let map = TypedMap::<String, u32>::new(store().map("map").unwrap());
    map.put("name", &1).unwrap();
    assert_eq!(map.get("name").unwrap(), Some(1));
    assert_eq!(map.multi_get(&["name", "other"]).unwrap(), [Some(1), None]);
}

#[test]
fn ranges_follow_the_order_of_the_types() {
    let seed = std::env::var("DURAMEN_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let store = store();
    let map = TypedMap::<(i32, String), u64>::new(store.map("map").unwrap());
    let mut model = BTreeMap::new();
    let mut key = || {
        (
            rng.i32(-3..3),
            "\0".repeat(rng.usize(0..2)) + ["", "a", "ab", "b"][rng.usize(0..4)],
        )
    };
    for number in 0..100 {
        let key = key();
        map.put(&key, &number).unwrap();
        model.insert(key, number);
    }
    let snapshot = store.snapshot().unwrap();
    let reads = map.at(&snapshot);
    for _ in 0..100 {
        let (mut low, mut high) = (key(), key());
        if high < low {
            std::mem::swap(&mut low, &mut high);
        }
        let expected: Vec<_> = model
            .range(low.clone()..=high.clone())
            .map(|(key, value)| (key.clone(), *value))
            .collect();
        let found = reads
            .range(low.clone()..=high.clone())
            .unwrap()
            .collect::<Result<Vec<_>>>()
            .unwrap();
        assert_eq!(found, expected);
        assert_eq!(reads.count(low.clone()..=high.clone()).unwrap(), expected.len() as u64);
        let mut cursor = reads.range(low.clone()..=high).unwrap();
        cursor.seek_end();
        assert_eq!(cursor.prev().unwrap(), expected.last().cloned());
        cursor.seek(&low).unwrap();
        assert_eq!(cursor.next().transpose().unwrap(), expected.first().cloned());
    }
    for first in -3..3 {
        let expected = model.keys().filter(|(number, _)| *number == first).count();
        assert_eq!(reads.prefix(&(first,)).unwrap().count(), expected);
    }
}

#[test]
fn texts_have_prefixes_of_text() {
    let store = store();
    let map = TypedMap::<String, u32>::new(store.map("map").unwrap());
    for key in ["", "a", "ab", "ab\0c", "abc", "b"] {
        map.put(key, &(key.len() as u32)).unwrap();
    }
    let snapshot = store.snapshot().unwrap();
    let found = |text: &str| -> Vec<String> {
        let pairs = map.at(&snapshot).text_prefix(text).unwrap();
        pairs.map(|pair| pair.unwrap().0).collect()
    };
    assert_eq!(found("ab"), ["ab", "ab\0c", "abc"]);
    assert_eq!(found("ab\0"), ["ab\0c"]);
    assert_eq!(found("").len(), 6);
    assert!(found("abd").is_empty());
}

#[test]
fn values_are_of_any_type_that_serde_knows() {
    type Value = Json<BTreeMap<String, Vec<Option<Duration>>>>;
    let map = store().map("map").unwrap();
    let typed = TypedMap::<u8, Value>::new(map.clone());
    let value = Json(BTreeMap::from([(
        "a".to_string(),
        vec![None, Some(Duration::from_millis(7))],
    )]));
    typed.put(&1, &value).unwrap();
    assert_eq!(typed.get(&1).unwrap(), Some(value));
    map.put([2], "{").unwrap();
    let refused = typed.get(&2).unwrap_err();
    assert!(refused.to_string().contains("EOF"), "{refused}");
    // JSON has no such key.
    let odd = TypedMap::<u8, Json<BTreeMap<Vec<u8>, u8>>>::new(map);
    odd.put(&3, &Json(BTreeMap::from([(vec![1], 1)]))).unwrap_err();
}

#[test]
fn conditional_writes_compare_values() {
    let map = TypedMap::<u32, String>::new(store().map("map").unwrap());
    let text = |text: &str| text.to_string();
    assert!(map.create(&1, &text("a")).unwrap());
    assert!(!map.create(&1, &text("b")).unwrap());
    assert!(!map.compare_and_swap(&1, Some(&text("b")), Some(&text("c"))).unwrap());
    assert!(map.compare_and_swap(&1, Some(&text("a")), Some(&text("c"))).unwrap());
    let before = map.update(&1, |now| Some(now.unwrap() + "d")).unwrap();
    assert_eq!((before, map.get(&1).unwrap()), (Some(text("c")), Some(text("cd"))));
    assert_eq!(map.update(&1, |_| None).unwrap(), Some(text("cd")));
    assert_eq!((map.get(&1).unwrap(), map.count().unwrap()), (None, 0));
}

#[test]
fn transactions_and_batches_write_typed() {
    let store = store();
    let map = TypedMap::<(String, u8), u64>::new(store.map("map").unwrap());
    let counters = TypedMap::<String, Counter>::new(store.map("counters").unwrap());
    let mut batch = Batch::new();
    for number in 0..4 {
        map.within(&mut batch).put(&("a", number), &1).unwrap();
        map.within(&mut batch).put(&("b", number), &1).unwrap();
    }
    counters.within(&mut batch).add("sum", 5).unwrap();
    store.write(batch).unwrap();
    let left = store
        .transact(|tx| {
            map.within(tx).delete_prefix(&("a",))?;
            map.within(tx)
                .delete_range(("b".to_string(), 0)..("b".to_string(), 2))?;
            map.within(tx).delete(&("b", 2))?;
            map.within(tx).put(&("c", 0), &9)?;
            counters.within(tx).add("sum", 2)?;
            map.at(tx).range(..)?.collect::<Result<Vec<_>>>()
        })
        .unwrap();
    assert_eq!(left, [(("b".to_string(), 3), 1), (("c".to_string(), 0), 9)]);
    assert_eq!(counters.add("sum", 1).unwrap(), 8);
    assert_eq!(counters.get("sum").unwrap(), Some(Counter(8)));
    map.delete_prefix(&("b",)).unwrap();
    map.delete_range(..).unwrap();
    assert_eq!(map.count().unwrap(), 0);
}

#[test]
fn changes_come_typed() {
    let store = store();
    let map = TypedMap::<String, u32>::new(store.map("map").unwrap());
    let other = TypedMap::<String, u32>::new(store.map("other").unwrap());
    let mut changes = store.changes(ChangesFrom::Now).unwrap();
    map.put("key", &1).unwrap();
    map.put("key", &2).unwrap();
    changes.next(Duration::ZERO).unwrap().unwrap();
    let commit = changes.next(Duration::ZERO).unwrap().unwrap();
    let expected = TypedChange {
        key: "key".to_string(),
        old: Some(1),
        new: Some(2),
    };
    assert_eq!(map.decode_change(&commit.changes[0]).unwrap(), Some(expected));
    assert_eq!(other.decode_change(&commit.changes[0]).unwrap(), None);
}

#[test]
fn bytes_of_another_type_are_refused_by_name() {
    let store = store();
    let bytes = store.map("map").unwrap();
    let map = TypedMap::<String, u32>::new(bytes.clone());
    let key = {
        let mut key = Vec::new();
        "key".encode_to(&mut key);
        key
    };
    bytes.put(&key, b"12345").unwrap();
    let refused = |error: duramen::Error| {
        assert_eq!(error.kind(), Kind::FixTheCall);
        let Reason::InvalidArgument(text) = error.reason() else {
            panic!("{error}")
        };
        assert!(text.contains("key") && text.contains("\"map\""), "{text}");
    };
    refused(map.get("key").unwrap_err());
    refused(map.update("key", |_| Some(1)).unwrap_err());
    assert_eq!(bytes.get(&key).unwrap().unwrap(), b"12345");
    bytes.put(b"no end", b"").unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut all = map.at(&snapshot).range(..).unwrap();
    refused(all.next().unwrap().unwrap_err());
    // An iterator ends after an error, from either end; a cursor goes on where it is told to.
    assert!(all.next().is_none() && all.next_back().is_none());
    all.seek_end();
    refused(all.prev().unwrap_err());
    // What cannot be read is not taken away either.
    for popped in [map.pop_first(), map.pop_last()] {
        refused(popped.unwrap_err());
    }
    refused(map.take("key").unwrap_err());
    refused(map.retain(|_, _| false).unwrap_err());
    assert_eq!(map.count().unwrap(), 2);
}

#[test]
fn typed_pairs_come_from_both_ends() {
    let store = store();
    let map = TypedMap::<u32, String>::new(store.map("map").unwrap());
    for number in [30, 10, 20, 40] {
        map.put(&number, &format!("the {number}th")).unwrap();
    }
    let snapshot = store.snapshot().unwrap();
    let reads = map.at(&snapshot);
    let numbers = |pairs: &mut dyn Iterator<Item = Result<(u32, String)>>| -> Vec<u32> {
        pairs.map(|pair| pair.unwrap().0).collect()
    };
    assert_eq!(numbers(&mut reads.range(..).unwrap().rev().take(2)), [40, 30]);
    let mut pairs = reads.range(10..40).unwrap();
    assert_eq!(pairs.next_back().unwrap().unwrap().0, 30);
    assert_eq!(numbers(&mut pairs), [10, 20]);
    assert_eq!(reads.first().unwrap().unwrap(), (10, "the 10th".to_string()));
    assert_eq!(reads.last().unwrap().unwrap().0, 40);
    assert!(reads.contains_key(&20).unwrap() && !reads.is_empty().unwrap());

    store
        .transact(|tx| {
            assert!(!map.within(tx).create(&10, &"another".to_string())?);
            assert!(map.within(tx).create(&50, &"new".to_string())?);
            map.within(tx).update(&50, |now| now.map(|now| now + "er"))?;
            assert_eq!(map.within(tx).take(&20)?.as_deref(), Some("the 20th"));
            assert_eq!(map.within(tx).pop_first()?.unwrap().0, 10);
            let (old, new) = ("newer".to_string(), "newest".to_string());
            assert!(map.within(tx).compare_and_swap(&50, Some(&old), Some(&new))?);
            Ok::<_, duramen::Error>(())
        })
        .unwrap();
    assert_eq!(map.pop_last().unwrap().unwrap(), (50, "newest".to_string()));
    assert_eq!(map.retain(|number, _| number == 30).unwrap(), 1);
    assert_eq!((map.first().unwrap().unwrap().0, map.count().unwrap()), (30, 1));
    assert_eq!(map.take(&30).unwrap().as_deref(), Some("the 30th"));
    assert!(map.is_empty().unwrap());
}

#[test]
fn a_value_that_cannot_be_stored_is_refused() {
    struct Refusing;
    impl ValueCodec for Refusing {
        fn encode_value(&self, _: &mut Vec<u8>) -> std::result::Result<(), duramen::CodecError> {
            Err("it is too secret".into())
        }
        fn decode_value(_: &[u8]) -> std::result::Result<Self, duramen::CodecError> {
            Ok(Refusing)
        }
    }
    let map = TypedMap::<u8, Refusing>::new(store().map("map").unwrap());
    let error = map.put(&1, &Refusing).unwrap_err();
    assert!(error.to_string().contains("it is too secret"), "{error}");
    assert!(map.update(&1, |_| Some(Refusing)).is_err());
    assert_eq!(map.count().unwrap(), 0);
}
