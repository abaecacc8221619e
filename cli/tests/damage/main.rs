//! Damage of every kind, planted in stores on disk. The checker finds each one and reports its place, and the command
//! exits with the documented code. `salvage` makes a valid store of the remains, and names what is missing.
//!
//! `engine/tests/suite/every_byte.rs` covers corruption of any single byte. Here the checksums are corrected where that hides
//! the damage from everything but the checker.

#[path = "../common/mod.rs"]
mod common;

mod catalogue;
mod image;
mod log;
mod topics;
mod trees;

use std::collections::BTreeMap;
use std::path::Path;

use catalogue::{CATALOGUE, Noticed};
use common::Scratch;
use duramen::{Durability, Maintenance, Options, Store};
use image::Image;

/// Pairs by map and key.
pub type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

const KEYS: u32 = 4_000;

fn options() -> Options {
    Options::new()
        .durability(Durability::Written)
        .maintenance(Maintenance::Manual)
}

fn value(name: &str, number: u32) -> Vec<u8> {
    match number {
        77 => vec![7; 2_500_000],
        78 => vec![8; 5_000],
        _ => format!("{name} {number} ").repeat(60).into_bytes(),
    }
}

/// Makes a closed store with a tree of three levels, long values, and free pages.
fn make_store(path: &Path) {
    let store = options().open(path).unwrap();
    for name in ["first", "second"] {
        let map = store.map(name).unwrap();
        (0..KEYS).for_each(|number| map.put(number.to_be_bytes(), value(name, number)).unwrap());
    }
    store.maintain().unwrap();
    // Frees pages in the middle.
    store
        .map("first")
        .unwrap()
        .delete_range(&1000u32.to_be_bytes()[..]..&1200u32.to_be_bytes()[..])
        .unwrap();
    store.close().unwrap();
}

/// Returns everything in a store.
pub fn content(store: &Store) -> Content {
    let snapshot = store.snapshot().unwrap();
    let mut content = Content::new();
    for name in store.maps().list().unwrap() {
        let map = store.maps().get(&name).unwrap().expect("it was just listed");
        let pairs = content.entry(name).or_default();
        let mut cursor = snapshot.range(&map, ..).unwrap();
        while let Some((key, value)) = cursor.next().unwrap() {
            pairs.insert(key.to_vec(), value.to_vec());
        }
    }
    content
}

/// Copies the files of a store that no process has open.
pub fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Whether one of the lines contains all words.
fn is_said(lines: &[String], words: &[String]) -> bool {
    lines
        .iter()
        .any(|line| words.iter().all(|word| line.contains(word.as_str())))
}

/// Runs `duramen check` and returns the reported problems and the exit code.
pub fn checked(scratch: &Scratch, name: &str) -> (Vec<String>, i32) {
    let ended = scratch.run(&["check", name, "--json"]);
    if ended.code == 5 {
        let error: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
        return (vec![error["error"].as_str().unwrap().to_string()], 5);
    }
    let report = &ended.json()[0];
    let problems = report["problems"].as_array().unwrap().iter();
    let problems: Vec<String> = problems.map(|line| line.as_str().unwrap().to_string()).collect();
    assert_eq!(report["sound"], problems.is_empty());
    (problems, ended.code)
}

/// Salvages a store. Checks that the new store is valid, and returns its content and the reported losses.
pub fn salvaged(scratch: &Scratch, name: &str) -> (Content, Vec<String>) {
    let ended = scratch.run(&["salvage", name, "rest", "--json"]);
    let report = &ended.json()[0];
    let lost = report["lost"].as_array().unwrap().iter();
    let lost: Vec<String> = lost.map(|line| line.as_str().unwrap().to_string()).collect();
    assert_eq!(ended.code, if lost.is_empty() { 0 } else { 5 }, "{}", ended.stderr);
    let store = Store::open(scratch.path("rest")).unwrap();
    assert_eq!(store.check(&mut |_| ()).unwrap().problems, [""; 0]);
    let content = content(&store);
    let pairs: usize = content.values().map(BTreeMap::len).sum();
    assert!(report["pairs"].as_u64().unwrap() >= pairs as u64);
    store.close().unwrap();
    std::fs::remove_dir_all(scratch.path("rest")).unwrap();
    (content, lost)
}

/// Asserts that the salvaged content was in the store, except pairs with changed keys. A report that only an older
/// state was readable lifts this. The report must name what is missing.
fn assert_is_the_rest(name: &str, rest: &Content, lost: &[String], whole: &Content) {
    let mut missing = 0;
    for (map, pairs) in whole {
        let empty = BTreeMap::new();
        let found = rest.get(map).unwrap_or(&empty);
        missing += pairs
            .iter()
            .filter(|(key, value)| found.get(*key) != Some(*value))
            .count();
        let strange = found
            .iter()
            .filter(|(key, value)| pairs.get(*key) != Some(*value))
            .count();
        let is_older = lost.iter().any(|line| line.contains("was durable"));
        assert!(
            strange <= 1 || is_older,
            "{name}: {strange} pairs of {map} were never written"
        );
    }
    assert!(
        missing == 0 || !lost.is_empty(),
        "{name}: {missing} pairs are missing without a word"
    );
}

#[test]
fn sound_store_has_no_problems_and_is_salvaged_whole() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let whole = content(&options().read_only(true).open(scratch.path("store")).unwrap());
    assert_eq!(checked(&scratch, "store"), (vec![], 0));
    assert!(salvaged(&scratch, "store") == (whole, vec![]));
    let ended = scratch.run(&["salvage", "store", "store"]);
    assert_eq!(ended.code, 2, "a store is not written over: {}", ended.stderr);
}

#[test]
fn the_new_store_has_its_name_however_that_is_written_and_is_kept_where_it_cannot_have_it() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let whole = content(&options().read_only(true).open(scratch.path("store")).unwrap());
    std::fs::create_dir(scratch.path("empty")).unwrap();
    for target in ["rest/", "./other", "empty", "empty/../last/."] {
        let ended = scratch.done(&["salvage", "store", target]);
        let store = options().read_only(true).open(scratch.path(target)).unwrap();
        assert!(content(&store) == whole, "{target}: {}", ended.stderr);
    }
    let refused = |target: &str, told: &str| {
        let ended = scratch.run(&["salvage", "store", target]);
        assert_eq!(ended.code, 2, "{target}: {}", ended.stderr);
        assert!(ended.stderr.contains(told), "{target}: {}", ended.stderr);
    };
    refused("rest", "is not empty");
    refused("..", "is not empty");
    std::fs::write(scratch.path("file"), "a file").unwrap();
    refused("file", "cannot be replaced");
    refused("missing/rest", "No such file");
    let names = |directory: &Path| {
        let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    let made = ["empty", "file", "last", "other", "rest", "store"];
    assert_eq!(names(&scratch.path("")), made);

    // A name that is taken meanwhile: a link to nothing looks like a missing directory, and cannot be replaced by one.
    std::os::unix::fs::symlink("nothing", scratch.path("link")).unwrap();
    refused("link", "the new store is whole: it is");
    let store = options().read_only(true).open(scratch.path("link.unfinished")).unwrap();
    assert!(content(&store) == whole);
}

#[test]
fn every_damage_of_the_catalogue_is_found_and_its_place_is_said() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let whole = content(&options().read_only(true).open(scratch.path("store")).unwrap());
    assert!(Image::read(&scratch.path("store")).height() > 2);
    for damage in CATALOGUE {
        println!("{}", damage.name);
        copy_files(&scratch.path("store"), &scratch.path("damaged"));
        let mut image = Image::read(&scratch.path("damaged"));
        let noticed = (damage.plant)(&mut image);
        image.write(&scratch.path("damaged"));
        let (lines, code) = checked(&scratch, "damaged");
        let (words, expected) = match &noticed {
            Noticed::Checking(words) => (words, 1),
            Noticed::Opening(words) => (words, 5),
        };
        assert_eq!(code, expected, "{}: {lines:#?}", damage.name);
        assert!(
            is_said(&lines, words),
            "{}: {words:?} is not in {lines:#?}",
            damage.name
        );
        if let Noticed::Checking(words) = &noticed {
            // Checks the same damage in a program that has such a store open for writing.
            copy_files(&scratch.path("damaged"), &scratch.path("opened"));
            let store = options().open(scratch.path("opened")).unwrap();
            let problems = store.check(&mut |_| ()).unwrap().problems;
            let is_mended = damage.name.contains("one copy of the newest meta page");
            assert!(is_mended == problems.is_empty(), "{}: {problems:#?}", damage.name);
            assert!(is_mended || is_said(&problems, words), "{}: {problems:#?}", damage.name);
            drop(store);
            std::fs::remove_dir_all(scratch.path("opened")).unwrap();
        }
        if !damage.name.contains("all meta pages") {
            let (rest, lost) = salvaged(&scratch, "damaged");
            assert_is_the_rest(damage.name, &rest, &lost, &whole);
            assert!(
                is_said(&lost, words),
                "{}: {words:?} is not among {lost:#?}",
                damage.name
            );
        }
        std::fs::remove_dir_all(scratch.path("damaged")).unwrap();
    }
}
