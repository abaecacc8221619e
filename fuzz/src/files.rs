//! Changed files of stores that were sound: log files, and the four meta pages at the head of the data file.
//!
//! An input is a list of changes of a sample: for each a place of three bytes, a length, and that many bytes. The first
//! byte says whether the checksums are repaired afterwards. Without repair every change must be noticed or harmless:
//! the store holds what it held after some commit. With repair the files are forgeries, and may mean anything.

use std::sync::LazyLock;

use duramen_engine::{Batch, Durability, Kind, Maintenance, Options, Store, fuzzing};
use duramen_io::{OpenMode, SimDisk};

use super::Input;

const PAGE_BYTES: usize = 4096;
const HEAD_BYTES: usize = 64 * PAGE_BYTES;
const BRANCH_BYTES: usize = 4 * PAGE_BYTES;
const KIND_AT: usize = 16;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;

/// Everything in a store: map, key, value.
type Content = Vec<(String, Vec<u8>, Vec<u8>)>;

/// The files of a store.
#[derive(Clone)]
struct Files {
    files: Vec<(String, Vec<u8>)>,
}

/// A store whose process was killed.
struct Sample {
    files: Files,
    /// What it held after each commit of its log, the base first.
    states: Vec<Content>,
}

static KILLED: LazyLock<Sample> = LazyLock::new(killed_store);
static CLOSED: LazyLock<Sample> = LazyLock::new(closed_store);

/// Opens a killed store whose log files were changed.
pub fn log_in_store(data: &[u8]) {
    let mut input = Input(data);
    let control = input.byte();
    let repairs = control & 1 == 1;
    let mut files = KILLED.files.clone();
    let logs = files.files.iter_mut().filter(|(name, _)| name.starts_with("wal-"));
    let mut logs: Vec<&mut Vec<u8>> = logs.map(|(_, bytes)| bytes).collect();
    let changed = (control >> 1) as usize % logs.len();
    change(logs[changed], &mut input);
    if repairs {
        fuzzing::repair_log(logs[changed]);
    }
    open_changed(&files, &KILLED, repairs);
}

/// Opens a closed store whose meta pages were changed.
pub fn head(data: &[u8]) {
    let mut input = Input(data);
    let repairs = input.byte() & 1 == 1;
    let mut files = CLOSED.files.clone();
    let data_file = files.files.iter_mut().find(|(name, _)| name == "data");
    let bytes = &mut data_file.expect("a store has a data file").1;
    change(&mut bytes[..HEAD_BYTES], &mut input);
    if repairs {
        fuzzing::repair_meta(bytes);
    }
    open_changed(&files, &CLOSED, repairs);
}

fn change(bytes: &mut [u8], input: &mut Input<'_>) {
    while !input.is_empty() {
        let at = input.number() % bytes.len();
        let length = input.byte() as usize;
        let new = input.take(length);
        let length = new.len().min(bytes.len() - at);
        bytes[at..at + length].copy_from_slice(&new[..length]);
    }
}

/// Opens a store and uses it; it holds one of the sample's states, unless it is a forgery.
fn open_changed(files: &Files, sample: &Sample, is_forged: bool) {
    let disk = files.on_disk();
    let Some(store) = refused_or(options().open_on(disk.platform()), is_forged) else {
        return;
    };
    let Some(found) = refused_or(content(&store), is_forged) else {
        return;
    };
    assert!(
        is_forged || sample.states.contains(&found),
        "the store holds what was never there"
    );
    let used = use_store(&store);
    drop(store);
    if refused_or(used, is_forged).is_some() && !is_forged {
        let store = options().open_on(disk.platform()).expect("it was just closed");
        let expected = found.len() + 1;
        assert_eq!(content(&store).expect("nothing is damaged").len(), expected);
    }
}

/// A result; `None` where the error is one that damaged files may give.
fn refused_or<T>(result: duramen_engine::Result<T>, is_forged: bool) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let is_known = matches!(error.kind(), Kind::Damaged | Kind::FixTheCall);
            // A forgery may say, say, that a counter is no number, or that a terabyte waits to be folded.
            assert!(is_known || is_forged, "{error}");
            None
        }
    }
}

fn use_store(store: &Store) -> duramen_engine::Result<()> {
    store.map("new")?.put(b"key", b"value")?;
    let report = store.check(&mut |_| ())?;
    // Whatever is wrong with a forgery, the check lives to tell.
    let _ = report.problems;
    store.maintain()
}

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .generation_bytes(128 << 10, 128 << 10)
        .durability(Durability::Written)
}

fn content(store: &Store) -> duramen_engine::Result<Content> {
    let mut content = Vec::new();
    let snapshot = store.snapshot()?;
    for name in store.maps().list()? {
        let Some(map) = store.maps().get(&name)? else { continue };
        let mut cursor = snapshot.range(&map, ..)?;
        while let Some((key, value)) = cursor.next()? {
            content.push((name.clone(), key.to_vec(), value.to_vec()));
        }
    }
    Ok(content)
}

impl Files {
    fn of(disk: &SimDisk) -> Files {
        let kept = disk
            .files()
            .into_iter()
            .filter(|name| name == "data" || name.starts_with("wal-"));
        Files {
            files: kept.map(|name| (name.clone(), trimmed(disk.read_raw(&name)))).collect(),
        }
    }

    fn on_disk(&self) -> SimDisk {
        let disk = SimDisk::new(1);
        let platform = disk.platform();
        for (name, bytes) in &self.files {
            platform
                .storage
                .open(name, OpenMode::Create)
                .expect("the disk does not fail");
            disk.write_raw(name, 0, bytes);
        }
        disk
    }
}

/// Without most of the zeros at the end.
fn trimmed(mut bytes: Vec<u8>) -> Vec<u8> {
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let kept = used.next_multiple_of(PAGE_BYTES) + BRANCH_BYTES;
    bytes.truncate(kept);
    bytes
}

/// A store with a base of two levels.
fn filled_store(disk: &SimDisk) -> Store {
    let store = options().open_on(disk.platform()).expect("the disk does not fail");
    let map = store.map("map").expect("the disk does not fail");
    for number in 0..300u32 {
        let value = vec![number as u8; 20 + number as usize % 80];
        map.put(format!("key/{number:04}").as_bytes(), &value)
            .expect("the disk does not fail");
    }
    map.put(b"long", [7; 66_000]).expect("the disk does not fail");
    store.maintain().expect("the disk does not fail");
    store
}

fn closed_store() -> Sample {
    let disk = SimDisk::new(1);
    let store = filled_store(&disk);
    // A second base, so that both pairs of meta pages are in use and the older one is not the newer one's content.
    let before = content(&store).expect("nothing is damaged");
    store
        .map("map")
        .and_then(|map| map.delete(b"key/0007"))
        .expect("the disk does not fail");
    let states = vec![before, content(&store).expect("nothing is damaged")];
    store.close().expect("the disk does not fail");
    Sample {
        files: Files::of(&disk),
        states,
    }
}

fn killed_store() -> Sample {
    let disk = SimDisk::new(1);
    let store = filled_store(&disk);
    let mut states = vec![content(&store).expect("nothing is damaged")];
    for number in 0..24u32 {
        write_one(&store, number).expect("the disk does not fail");
        states.push(content(&store).expect("nothing is damaged"));
    }
    Sample {
        files: Files::of(&disk.kill()),
        states,
    }
}

/// A commit of another kind for every number.
fn write_one(store: &Store, number: u32) -> duramen_engine::Result<()> {
    let map = store.maps().get("map")?.expect("it was made");
    let key = format!("key/{:04}", number * 11);
    match number % 8 {
        0 => map.put(key.as_bytes(), b"new"),
        1 => map.with_durability(Durability::Synced).put(key.as_bytes(), [9; 900]),
        2 => map.delete(key.as_bytes()),
        3 => map.delete_range(key.as_bytes()..b"key/0250"),
        4 => map.append(b"topic/", b"message").map(drop),
        5 => map.put(b"long", vec![number as u8; 65_537 + number as usize]),
        6 => map.put(key.as_bytes(), [number as u8; 20_000]),
        _ => {
            let mut batch = Batch::new();
            batch.put(&map, key.as_bytes(), b"in a batch")?;
            batch.delete(&map, b"key/0001")?;
            batch.add(&map, b"counter", number as i64)?;
            store.write(batch).map(drop)
        }
    }
}

/// Leaves, each with a branch behind it.
pub(crate) fn sample_pages() -> Vec<Vec<u8>> {
    let (_, data) = &CLOSED.files.files[0];
    let pages = data[HEAD_BYTES..].chunks_exact(PAGE_BYTES);
    let leaves: Vec<&[u8]> = pages
        .filter(|page| page[KIND_AT] == LEAF && page[KIND_AT + 1] == 0)
        .collect();
    let starts = (HEAD_BYTES..data.len() - BRANCH_BYTES).step_by(PAGE_BYTES);
    let branches: Vec<usize> = starts
        .filter(|at| data[at + KIND_AT] == BRANCH && data[at + KIND_AT + 1] == 1)
        .collect();
    let pair = |(index, leaf): (usize, &&[u8])| {
        let branch = branches[index % branches.len()];
        [leaf, &data[branch..branch + BRANCH_BYTES]].concat()
    };
    leaves.iter().enumerate().take(20).map(pair).collect()
}

/// Log files, without most of what is behind their records.
pub(crate) fn sample_logs() -> Vec<Vec<u8>> {
    let logs = KILLED.files.files.iter().filter(|(name, _)| name.starts_with("wal-"));
    logs.map(|(_, bytes)| bytes.clone()).collect()
}
