//! Accidents that users cause with files: a store copied while in use, an older file restored below newer ones, files
//! of another store. The result is refused, or found by the checker, or is a state that the store once had. The guide
//! says which.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Place, assert_sound, by_hand, restless};
use duramen::{Batch, Kind, Map, Options, Reason, Store};

/// Copies files one after another, as `cp -r` does.
fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        // A file removed meanwhile is not in the copy either.
        let _ = std::fs::copy(file.path(), to.join(file.file_name()));
    }
}

const KEYS: u64 = 50;

/// Writes one number to all keys, in one commit.
fn write_round(store: &Store, map: &Map, round: u64) {
    let mut batch = Batch::new();
    for key in 0..KEYS {
        let value = [&round.to_be_bytes()[..], &vec![round as u8; (key * 40) as usize]].concat();
        batch.put(map, key.to_be_bytes(), &value).unwrap();
    }
    store.write(batch).unwrap();
}

/// Returns the number in a copy, which must be consistent. `None` means that the store reports damage.
fn round_in(copy: &Path) -> Option<u64> {
    let store = match Options::new().create(false).open(copy) {
        Ok(store) => store,
        Err(error) => {
            assert_eq!(error.kind(), Kind::Damaged, "{error}");
            return None;
        }
    };
    if !store.check(&mut |_| ()).unwrap().problems.is_empty() {
        return None;
    }
    let map = store.maps().get("map").unwrap().expect("the map");
    assert_eq!(map.count().unwrap(), KEYS);
    let number_of = |key: u64| {
        let value = map.get(key.to_be_bytes()).unwrap().expect("a value");
        let round = u64::from_be_bytes(value[..8].try_into().unwrap());
        assert!(value.len() as u64 == 8 + key * 40 && value[8..].iter().all(|&byte| byte == round as u8));
        round
    };
    let round = number_of(0);
    assert!(
        (0..KEYS).all(|key| number_of(key) == round),
        "a copy shows half of a commit"
    );
    Some(round)
}

#[test]
fn files_copied_while_the_store_is_in_use_are_refused_found_or_a_state_that_it_had() {
    let place = Place::new();
    let store = restless().open(place.path()).unwrap();
    let map = store.map("map").unwrap();
    write_round(&store, &map, 0);
    let goes_on = AtomicBool::new(true);
    let (mut whole, mut found) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in (1..).take_while(|_| goes_on.load(Ordering::Relaxed)) {
                write_round(&store, &map, round);
            }
        });
        for number in 0..40 {
            let copy = place.beside(&format!("copy-{number}"));
            copy_files(&place.path(), &copy);
            match round_in(&copy) {
                Some(_) => whole += 1,
                None => found += 1,
            }
            std::fs::remove_dir_all(copy).unwrap();
        }
        goes_on.store(false, Ordering::Relaxed);
    });
    println!("{whole} copies are whole, {found} say that they are not");
    // The supported way to copy works.
    store.copy(place.beside("copy"), &mut |_| ()).unwrap();
    assert!(round_in(&place.beside("copy")).is_some());
}

/// Returns the data file from one generation of changes earlier, and leaves the closed store in place.
fn store_and_older_data(place: &Place) -> Vec<u8> {
    let mut older = Vec::new();
    for round in 0..3 {
        older = std::fs::read(place.path().join("data")).unwrap_or_default();
        let store = by_hand().open(place.path()).unwrap();
        let map = store.map("map").unwrap();
        write_round(&store, &map, round);
        drop(map);
        store.close().unwrap();
    }
    older
}

#[test]
fn older_data_file_put_back_under_a_newer_log_is_refused() {
    let place = Place::new();
    let older = store_and_older_data(&place);
    let newer = std::fs::read(place.path().join("data")).unwrap();
    std::fs::write(place.path().join("data"), older).unwrap();
    let error = by_hand().open(place.path()).unwrap_err();
    assert!(
        matches!(error.reason(), Reason::Damaged(what) if what.contains("was durable")),
        "{error}"
    );
    std::fs::write(place.path().join("data"), newer).unwrap();
    assert_eq!(round_in(&place.path()), Some(2));
}

#[test]
fn data_file_alone_is_the_whole_of_a_closed_store() {
    let place = Place::new();
    let older = store_and_older_data(&place);
    let restored = place.beside("restored");
    std::fs::create_dir(&restored).unwrap();
    std::fs::write(restored.join("data"), older).unwrap();
    assert_eq!(round_in(&restored), Some(1));
}

#[test]
fn log_of_another_store_is_not_taken_for_ones_own() {
    let place = Place::new();
    store_and_older_data(&place);
    let other = restless().open(place.beside("other")).unwrap();
    let map = other.map("map").unwrap();
    (0..20).for_each(|round| write_round(&other, &map, 100 + round));
    copy_files(&place.beside("other"), &place.beside("files"));
    for file in std::fs::read_dir(place.beside("files")).unwrap() {
        let file = file.unwrap();
        if file.file_name().to_string_lossy().starts_with("wal-") {
            std::fs::copy(file.path(), place.path().join(file.file_name())).unwrap();
        }
    }
    assert_eq!(round_in(&place.path()), Some(2));
}

#[test]
fn what_a_dead_process_left_of_the_memory_that_is_shared_means_nothing() {
    let place = Place::new();
    store_and_older_data(&place);
    for rest in [vec![], vec![0xFF; 10], vec![0xA5; 7 << 20]] {
        std::fs::write(place.path().join("shared"), rest).unwrap();
        let store = by_hand().open(place.path()).unwrap();
        assert_sound(&store);
        store.close().unwrap();
        assert_eq!(round_in(&place.path()), Some(2));
    }
}
