//! Stores of every format that this version reads are opened by it, with the same content; those of older ones are refused.
//!
//! `tests/fixtures/format-N/NAME/` is the directory of a store as format N left it, `NAME.txt` beside it lists what the
//! store holds. The tests open copies. `DURAMEN_WRITE_FIXTURES=1` makes the fixtures of the current format anew (on a
//! simulated disk with a fixed seed, so that the same code writes the same bytes); those of older formats are never
//! written again.
//!
//! What is cut off a fixture: zeros at the end of a file, in whole pages. A log file may end anywhere behind its
//! header, and the data file anywhere behind its last page in use (which, as part of a branch, may hold zeros only).

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

use duramen_engine::{Batch, Durability, Kind, Maintenance, Options, Reason, Store};
use duramen_io::{OpenMode, SimDisk};

/// The format that this version writes.
const FORMAT: u32 = 6;
/// The oldest format that this version reads.
const OLDEST_FORMAT: u32 = 6;
const PAGE_BYTES: usize = 4096;
/// Pages of a branch, of which the last ones may be empty.
const BRANCH_PAGES: usize = 4;
/// Pages of the data file that hold meta pages.
const META_PAGES: [usize; 4] = [0, 16, 32, 48];
/// Files that mean nothing once no process has the store open.
const FLEETING: [&str; 2] = ["lock", "shared"];
/// Maps with more pairs than this are listed by their number, a checksum and some pairs.
const LISTED_PAIRS_MAX: usize = 100;
/// Longer keys and values are listed by their length and checksum.
const LISTED_BYTES_MAX: usize = 60;

fn fixtures(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{format}"))
}

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written)
        .generation_bytes(128 << 10, 128 << 10)
}

/// Bytes without zeros at their end, which would be cut off a fixture.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 + 1).collect()
}

fn bytes_as_text(bytes: &[u8]) -> String {
    if bytes.len() <= LISTED_BYTES_MAX {
        format!("\"{}\"", bytes.escape_ascii())
    } else {
        format!("{} bytes, crc32c {:08x}", bytes.len(), crc32c::crc32c(bytes))
    }
}

/// Everything in the store as text, one pair a line.
fn listing(store: &Store) -> String {
    let mut text = String::new();
    let snapshot = store.snapshot().unwrap();
    for name in store.maps().list().unwrap() {
        let map = store.maps().get(&name).unwrap().expect("it is on the list");
        let mut lines = Vec::new();
        let mut sum = 0;
        let mut cursor = snapshot.range(&map, ..).unwrap();
        while let Some((key, value)) = cursor.next().unwrap() {
            sum = crc32c::crc32c_append(crc32c::crc32c_append(sum, key), &value);
            lines.push(format!("  {} = {}", bytes_as_text(key), bytes_as_text(&value)));
        }
        assert_eq!(snapshot.count(&map, ..).unwrap(), lines.len() as u64);
        writeln!(text, "map {name:?}: {} pairs, crc32c of all {sum:08x}", lines.len()).unwrap();
        let step = if lines.len() > LISTED_PAIRS_MAX {
            lines.len() / 10
        } else {
            1
        };
        lines
            .iter()
            .step_by(step)
            .for_each(|line| writeln!(text, "{line}").unwrap());
    }
    text
}

/// Pairs of every kind in a base that was folded several times.
fn fill_base(store: &Store) {
    let fruit = store.map("fruit").unwrap();
    for number in 0..600u32 {
        let value = format!("number {number} of the fruit").repeat(1 + number as usize % 5);
        fruit
            .put(format!("fruit/{number:05}").as_bytes(), value.as_bytes())
            .unwrap();
    }
    store.map("empty").unwrap();
    let odd = store.map("odd ones").unwrap();
    odd.put(b"", b"the empty key").unwrap();
    odd.put(b"an empty value", b"").unwrap();
    odd.put([0xFF; 1024], b"the longest key").unwrap();
    odd.put(b"longest in a leaf", pattern(1200)).unwrap();
    odd.put(b"pages of its own", pattern(1201)).unwrap();
    odd.put(b"beside the log", pattern((64 << 10) + 1)).unwrap();
    odd.add(b"counter", -5).unwrap();
    store.maintain().unwrap();
    fruit.delete_range(&b"fruit/00100"[..]..&b"fruit/00200"[..]).unwrap();
    store.map("dropped").unwrap().put(b"key", b"value").unwrap();
    store.maps().drop("dropped").unwrap();
    store.map("before").unwrap().put(b"key", b"of a renamed map").unwrap();
    store.maps().rename("before", "after").unwrap();
    let topic = store.map("topic").unwrap();
    assert_eq!(topic.append(b"messages/", b"folded").unwrap(), 0);
    assert_eq!(topic.append(b"messages/", b"folded").unwrap(), 1);
    assert_eq!(topic.append(b"messages/", b"folded").unwrap(), 2);
    store.maintain().unwrap();
}

/// What a log can hold: every kind of operation, over two generations.
fn fill_log(store: &Store) {
    let fruit = store.map("fruit").unwrap();
    fruit.delete_range(&b"fruit/00300"[..]..&b"fruit/00400"[..]).unwrap();
    fruit.put(b"fruit/00350", b"put after the range delete").unwrap();
    fruit.delete(b"fruit/00001").unwrap();
    let odd = store.map("odd ones").unwrap();
    let mut batch = Batch::new();
    batch.put(&odd, b"batch", b"of several").unwrap();
    batch.delete(&odd, b"an empty value").unwrap();
    batch.delete_range(&fruit, &b"fruit/00590"[..]..).unwrap();
    batch
        .put(&fruit, b"fruit/00595", b"in the batch of the range delete")
        .unwrap();
    batch.add(&odd, b"counter", 12).unwrap();
    store.write(batch).unwrap();
    odd.put(b"longest in the log", pattern(64 << 10)).unwrap();
    odd.put(b"beside the log", pattern(70_001)).unwrap();
    let topic = store.map("topic").unwrap();
    assert_eq!(topic.append(b"messages/", b"in the log").unwrap(), 3);
    large_transaction(store);
    store.sync().unwrap();
    let later = store.map("later").unwrap();
    for number in 0..20u32 {
        later
            .put(number.to_be_bytes(), pattern(4000 + number as usize))
            .unwrap();
    }
    store.maps().rename("later", "latest").unwrap();
    odd.put(b"last", b"of all").unwrap();
}

/// A transaction that is too large for memory, so that its record refers to a run in the data file. Long keys that
/// differ at their ends take much memory and few pages.
fn large_transaction(store: &Store) {
    let run = store.map("run").unwrap();
    let mut transaction = store.begin(Default::default()).unwrap();
    for number in 0..15_000u32 {
        let mut key = vec![b'k'; 1020];
        key.extend_from_slice(&number.to_be_bytes());
        transaction.put(&run, &key, b"").unwrap();
    }
    transaction.delete(&run, b"nothing there").unwrap();
    transaction.commit().unwrap();
}

fn write_fixture(name: &str, disk: &SimDisk, listing: &str) {
    let directory = fixtures(FORMAT).join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    for file in disk.files().iter().filter(|file| !FLEETING.contains(&file.as_str())) {
        let mut bytes = disk.read_raw(file);
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(used.next_multiple_of(PAGE_BYTES) + (BRANCH_PAGES - 1) * PAGE_BYTES);
        fs::write(directory.join(file), bytes).unwrap();
    }
    fs::write(fixtures(FORMAT).join(format!("{name}.txt")), listing).unwrap();
}

/// Makes the fixtures of this format anew.
fn write_fixtures() {
    let disk = SimDisk::new(1);
    let store = options().open_on(disk.platform()).unwrap();
    fill_base(&store);
    let expected = listing(&store);
    store.close().unwrap();
    write_fixture("closed", &disk, &expected);
    let disk = SimDisk::new(2);
    let store = options().open_on(disk.platform()).unwrap();
    fill_base(&store);
    fill_log(&store);
    write_fixture("killed", &disk.kill(), &listing(&store));
}

/// A copy of a fixture in a temporary directory.
fn copy_of(format: u32, name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixtures(format).join(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Names and bytes of a directory's files.
fn files_of(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> = entries
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}

fn assert_holds(store: &Store, expected: &str, what: &str) {
    let found = listing(store);
    let difference = found
        .lines()
        .zip(expected.lines())
        .find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{what}: first difference (found, expected): {difference:#?}"
    );
    let report = store.check(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
}

/// Every fixture there is, as (format, name, listing).
fn all_fixtures() -> Vec<(u32, String, String)> {
    static WRITTEN: Once = Once::new();
    WRITTEN.call_once(|| {
        if std::env::var_os("DURAMEN_WRITE_FIXTURES").is_some() {
            write_fixtures();
        }
    });
    let mut all = Vec::new();
    for format in OLDEST_FORMAT..=FORMAT {
        for entry in fs::read_dir(fixtures(format)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let name = path.file_name().unwrap().to_str().unwrap().to_string();
                let listing = fs::read_to_string(path.with_extension("txt")).unwrap();
                all.push((format, name, listing));
            }
        }
    }
    assert!(
        all.len() >= 2 * (FORMAT - OLDEST_FORMAT + 1) as usize,
        "fixtures are missing: {all:?}"
    );
    all
}

#[test]
fn stores_of_every_format_open_with_their_content() {
    for (format, name, expected) in all_fixtures() {
        let what = format!("format {format}, {name}");
        let copy = copy_of(format, &name);
        let before = files_of(copy.path());
        let store = options().read_only(true).open(copy.path()).unwrap();
        assert_holds(&store, &expected, &format!("{what}, read-only"));
        let after: Vec<_> = files_of(copy.path())
            .into_iter()
            .filter(|(name, _)| name != "lock")
            .collect();
        assert!(before == after, "{what}: opening read-only changed the files");
        let store = options().open(copy.path()).unwrap();
        assert_holds(&store, &expected, &what);
        store.maintain().unwrap();
        assert_holds(&store, &expected, &format!("{what}, folded"));
        let map = store.map("odd ones").unwrap();
        map.put(b"new", b"from this version").unwrap();
        let appended = if name == "closed" { 3 } else { 4 };
        assert_eq!(store.map("topic").unwrap().append(b"messages/", b"").unwrap(), appended);
        drop(map);
        store.close().unwrap();
        let store = options().open(copy.path()).unwrap();
        assert_eq!(
            store.map("odd ones").unwrap().get(b"new").unwrap().unwrap(),
            b"from this version"
        );
    }
}

#[test]
fn fixtures_are_the_bytes_that_a_killed_process_leaves_on_any_disk() {
    // The same over the simulated disk, after whose power cut everything that was synced is there.
    for (format, name, expected) in all_fixtures() {
        let disk = SimDisk::new(3);
        for (file, bytes) in files_of(&fixtures(format).join(&name)) {
            disk.platform().storage.open(&file, OpenMode::Create).unwrap();
            disk.write_raw(&file, 0, &bytes);
        }
        disk.platform().storage.sync().unwrap();
        let store = options().open_on(disk.power_cut(4).platform()).unwrap();
        assert_holds(&store, &expected, &format!("format {format}, {name}, simulated"));
    }
}

#[test]
fn newer_format_is_refused_by_name() {
    all_fixtures();
    for changed in [&META_PAGES[..], &META_PAGES[..1], &META_PAGES[3..]] {
        let copy = copy_of(FORMAT, "closed");
        let data = copy.path().join("data");
        let mut bytes = fs::read(&data).unwrap();
        for &page in changed {
            let at = page * PAGE_BYTES + 8;
            assert_eq!(bytes[at..at + 4], FORMAT.to_le_bytes());
            bytes[at..at + 4].copy_from_slice(&(FORMAT + 1).to_le_bytes());
            // The checksum of a meta page is made alike in every format.
            let sum = crc32c::crc32c_append(FORMAT, &bytes[at + 8..(page + 1) * PAGE_BYTES]);
            bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        }
        fs::write(&data, &bytes).unwrap();
        for read_only in [false, true] {
            let error = options().read_only(read_only).open(copy.path()).unwrap_err();
            let Reason::NewerFormat { found, supported } = error.reason() else {
                panic!("{error}");
            };
            assert_eq!((*found, *supported), (FORMAT + 1, FORMAT));
            assert_eq!(error.kind(), Kind::FixTheCall);
        }
        assert!(
            fs::read(&data).unwrap() == bytes,
            "a store that is refused is left alone"
        );
    }
}

#[test]
fn older_formats_are_refused_by_name_and_left_alone() {
    for (format, name) in (1..OLDEST_FORMAT).flat_map(|format| [(format, "closed"), (format, "killed")]) {
        let copy = copy_of(format, name);
        let before = files_of(copy.path());
        let salvage = options().salvage(true);
        for options in [options(), options().read_only(true), salvage] {
            let error = options.open(copy.path()).unwrap_err();
            let Reason::OlderFormat { found, supported } = error.reason() else {
                panic!("{error}");
            };
            assert_eq!((*found, *supported), (format, FORMAT));
            assert_eq!(error.kind(), Kind::FixTheCall);
            let formats = [format, FORMAT].map(|format| format!("format {format}"));
            for part in formats
                .iter()
                .map(String::as_str)
                .chain(["duramen dump", "duramen load"])
            {
                assert!(error.to_string().contains(part), "{error}");
            }
        }
        let is_ours = |(name, _): &(String, Vec<u8>)| !FLEETING.contains(&name.as_str());
        let after: Vec<_> = files_of(copy.path()).into_iter().filter(is_ours).collect();
        assert!(before == after, "a store that is refused is left alone");
    }
}
