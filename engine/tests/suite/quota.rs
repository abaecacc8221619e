//! A quota refuses what would make the data larger, deleting is always possible, and what comes free can be used again.

use duramen_engine::{Durability, Kind, Maintenance, Map, Options, Reason, Store};
use duramen_io::SimDisk;

const QUOTA: u64 = 4 << 20;

fn scene(maintenance: Maintenance) -> (Store, Map) {
    let options = Options::new().quota_bytes(QUOTA).maintenance(maintenance);
    let options = options.durability(Durability::Written);
    let store = options.open_on(SimDisk::new(1).platform()).expect("a store");
    let map = store.map("map").expect("a map");
    (store, map)
}

/// Puts until the quota refuses; returns how many.
fn fill(map: &Map, from: u32, value: &[u8]) -> u32 {
    let mut number = from;
    loop {
        match map.put(number.to_be_bytes(), value) {
            Ok(()) => number += 1,
            Err(error) => {
                let Reason::QuotaExceeded { needed, quota } = error.reason() else {
                    panic!("{error}")
                };
                assert!(*quota == QUOTA && *needed > QUOTA);
                assert_eq!(error.kind(), Kind::MakeSpace);
                assert!(error.to_string().contains("delete data"), "{error}");
                return number - from;
            }
        }
    }
}

fn fills_and_empties(maintenance: Maintenance, value: &[u8]) {
    let (store, map) = scene(maintenance);
    let first = fill(&map, 0, value);
    let bytes = first as u64 * value.len() as u64;
    assert!(
        bytes > QUOTA / 3,
        "{bytes} bytes of values are few for a quota of {QUOTA}"
    );
    assert!(
        bytes < QUOTA,
        "{bytes} bytes of values are too many for a quota of {QUOTA}"
    );
    assert_eq!(map.count().expect("a count"), first as u64);
    // A transaction and a batch are refused as well, and reading goes on.
    let refused = store
        .transact(|tx| tx.put(&map, "more", value))
        .expect_err("it is full");
    assert!(matches!(refused.reason(), Reason::QuotaExceeded { .. }), "{refused}");
    // One by one, and by ranges.
    for number in 0..first / 2 {
        map.delete(number.to_be_bytes()).expect("deleting is always possible");
    }
    let second = fill(&map, first, value);
    assert!(
        second > first / 4,
        "{second} of {first} fit again after half was deleted"
    );
    map.delete_range(..).expect("deleting is always possible");
    let third = fill(&map, 0, value);
    assert!(third > first / 2, "{third} of {first} fit again after all was deleted");
    // Overwriting takes no more, once there is some room.
    for number in 0..third / 4 {
        map.delete(number.to_be_bytes()).expect("deleting is always possible");
    }
    for _ in 0..1_000 {
        map.put((third / 2).to_be_bytes(), value)
            .expect("it replaces what is there");
    }
}

#[test]
fn short_values() {
    fills_and_empties(Maintenance::Manual, &[7; 100]);
}

#[test]
fn values_of_their_own_pages() {
    fills_and_empties(Maintenance::Manual, &[7; 40_000]);
}

#[test]
fn with_folds_in_the_background() {
    fills_and_empties(Maintenance::Background, &[7; 500]);
}

#[test]
fn without_a_quota_nothing_is_refused() {
    let store = Store::temporary().expect("a store");
    let map = store.map("map").expect("a map");
    for number in 0..200u32 {
        map.put(number.to_be_bytes(), vec![7; 40_000]).expect("a put");
    }
}
