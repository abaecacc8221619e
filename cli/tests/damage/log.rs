//! Damage to the log: in a store whose process was killed with commits in the log, and in a store in use.

use std::os::unix::fs::FileExt;
use std::path::Path;

use duramen::{Durability, Kind, Store};

use crate::common::Scratch;
use crate::{checked, content, copy_files, is_said, options, salvaged};

/// Content of a log record, by which the test finds its position.
fn mark(number: u8) -> Vec<u8> {
    [&b"record of the log "[..], &[number; 100]].concat()
}

/// Makes a store whose process was killed after ten commits that exist only in the log. All but the last are known to
/// be synced.
fn make_killed_store(path: &Path) {
    let store = options().open(path).unwrap();
    let map = store.map("map").unwrap();
    map.put(b"in the base", b"value").unwrap();
    store.maintain().unwrap();
    let synced = map.with_durability(Durability::Synced);
    (0..10).for_each(|number| synced.put([number], mark(number)).unwrap());
    let long = vec![9; 100_000];
    synced.put(b"long", &long).unwrap();
    synced.put(b"last", b"value").unwrap();
    // Copies the files as a kill leaves them.
    std::mem::forget((store, map, synced));
}

fn killed_store(scratch: &Scratch) {
    make_killed_store(&scratch.path("running"));
    copy_files(&scratch.path("running"), &scratch.path("store"));
}

/// Returns the log file that holds these bytes, and their position.
pub fn find(store: &Path, wanted: &[u8]) -> (String, usize) {
    let files = std::fs::read_dir(store)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap());
    files
        .filter(|name| name.starts_with("wal-"))
        .find_map(|name| {
            let bytes = std::fs::read(store.join(&name)).unwrap();
            let place = bytes.windows(wanted.len()).position(|window| window == wanted)?;
            Some((name, place))
        })
        .expect("it is in the log")
}

pub fn flip(store: &Path, name: &str, place: usize) {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(store.join(name))
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, place as u64).unwrap();
    file.write_all_at(&[byte[0] ^ 1], place as u64).unwrap();
}

fn assert_refused(scratch: &Scratch, words: &[&str]) {
    let (lines, code) = checked(scratch, "store");
    let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
    assert_eq!(code, 5, "{lines:?}");
    assert!(is_said(&lines, &words), "{lines:?}");
    let error = options().open(scratch.path("store")).unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
}

#[test]
fn hole_in_what_was_synced_is_refused_and_what_is_before_it_can_be_saved() {
    let scratch = Scratch::new();
    killed_store(&scratch);
    let store = scratch.path("store");
    let (name, place) = find(&store, &mark(6));
    flip(&store, &name, place + 40);
    assert_refused(&scratch, &["the log ends at commit 8,", "was synced"]);
    let (rest, lost) = salvaged(&scratch, "store");
    let keys: Vec<&[u8]> = rest["map"].keys().map(Vec::as_slice).collect();
    assert_eq!(keys, [&[0][..], &[1], &[2], &[3], &[4], &[5], b"in the base"]);
    assert!(is_said(&lost, &["the log ends at commit 8,".into()]), "{lost:?}");
}

#[test]
fn header_of_a_log_file_that_rotted_is_refused() {
    let scratch = Scratch::new();
    killed_store(&scratch);
    let store = scratch.path("store");
    let (name, _) = find(&store, &mark(6));
    flip(&store, &name, 33);
    assert_refused(&scratch, &["the log ends at commit 2,", "was synced"]);
    let (rest, lost) = salvaged(&scratch, "store");
    assert_eq!(rest["map"].len(), 1);
    assert_eq!(lost.len(), 1, "{lost:?}");
}

#[test]
fn value_that_only_the_log_refers_to_is_named() {
    let scratch = Scratch::new();
    killed_store(&scratch);
    let store = scratch.path("store");
    let data = std::fs::read(store.join("data")).unwrap();
    let place = data
        .windows(4096)
        .position(|window| window == [9; 4096])
        .expect("a long value");
    flip(&store, "data", place + 5000);
    let page = format!("page {}:", place / 4096);
    assert_refused(&scratch, &["value at", &page, "checksum"]);
    let (rest, lost) = salvaged(&scratch, "store");
    assert_eq!(rest["map"].len(), 12);
    assert!(!rest["map"].contains_key(&b"long"[..]));
    assert!(is_said(&lost, &["\"long\"".into(), page.clone()]), "{lost:?}");
}

#[test]
fn end_of_the_log_that_nothing_claims_was_synced_is_a_torn_tail() {
    let scratch = Scratch::new();
    killed_store(&scratch);
    let store = scratch.path("store");
    let (name, place) = find(&store, b"last");
    flip(&store, &name, place);
    assert_eq!(checked(&scratch, "store"), (vec![], 0));
    assert_eq!(content(&Store::open(&store).unwrap())["map"].len(), 12);
}

#[test]
fn log_that_rots_under_a_store_in_use_is_found_by_its_checker() {
    let scratch = Scratch::new();
    let path = scratch.path("store");
    let store = options().open(&path).unwrap();
    let map = store.map("map").unwrap();
    (0..10).for_each(|number| map.put([number], mark(number)).unwrap());
    assert_eq!(store.check(&mut |_| ()).unwrap().problems, [""; 0]);
    let (name, place) = find(&path, &mark(6));
    flip(&path, &name, place + 40);
    let problems = store.check(&mut |_| ()).unwrap().problems;
    assert!(is_said(&problems, &[name.clone(), "end at".into()]), "{problems:?}");
    flip(&path, &name, place + 40);
    flip(&path, &name, 33);
    let problems = store.check(&mut |_| ()).unwrap().problems;
    assert!(is_said(&problems, &[name, "header".into()]), "{problems:?}");
}
