//! The order in which the engine asks the operating system for things, as texts that people can read.
//!
//! Each scene runs on a simulated disk, which writes down every call that changes something or makes it durable. The
//! expected texts are `tests/traces/*.txt`; each begins with what must hold whatever else changes. Numbers are
//! offset+length in bytes. `DURAMEN_UPDATE_TRACES=1` writes the texts anew: then read what changed against that first
//! line.

use std::fs;
use std::path::Path;

use duramen_engine::{Batch, Durability, Maintenance, Map, Options, Store};
use duramen_io::SimDisk;

fn open(disk: &SimDisk) -> Store {
    Options::new()
        .maintenance(Maintenance::Manual)
        .open_on(disk.platform())
        .unwrap()
}

/// An open store with an empty map and nothing to do.
fn quiet_store(disk: &SimDisk) -> (Store, Map) {
    let store = open(disk);
    let map = store.map("map").unwrap();
    store.maintain().unwrap();
    (store, map)
}

/// What the disk was asked for while `scene` ran.
fn trace_of<T>(disk: &SimDisk, scene: impl FnOnce() -> T) -> Vec<String> {
    disk.trace(true);
    let kept = scene();
    let mut trace = disk.take_trace();
    disk.trace(false);
    drop(kept);
    // How long this one is depends on the process.
    let holder = trace.iter_mut().filter(|call| call.starts_with("write lock "));
    holder.for_each(|call| *call = "write lock (process id and name)".into());
    trace
}

/// Compares a trace with the expected text of this name, or writes that text.
fn assert_trace(name: &str, must_hold: &str, trace: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/traces/{name}.txt"));
    let found = format!("# {must_hold}\n{}\n", trace.join("\n"));
    if std::env::var_os("DURAMEN_UPDATE_TRACES").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "the calls differ from {}; is it still true that: {must_hold}\nfound:\n{found}\nexpected:\n{expected}",
        path.display()
    );
}

/// Position of the first call from `start` on that begins with `call`.
fn place(trace: &[String], start: usize, call: &str) -> usize {
    let found = trace[start..].iter().position(|line| line.starts_with(call));
    start + found.unwrap_or_else(|| panic!("no {call:?} after call {start} of {trace:#?}"))
}

/// Asserts that calls which begin like these come in this order, others between them.
fn assert_order(trace: &[String], calls: &[&str]) {
    calls.iter().fold(0, |start, call| place(trace, start, call) + 1);
}

#[test]
fn new_store_is_whole_before_it_has_its_name() {
    let disk = SimDisk::new(1);
    let trace = trace_of(&disk, || open(&disk));
    assert_order(
        &trace,
        &[
            "write data.new",
            "sync data.new",
            "rename data.new data",
            "sync directory",
        ],
    );
    assert_trace(
        "open-new",
        "the meta pages of data.new are synced, then it is renamed, then the directory is synced; only then comes \
         a log file, whose name and header are synced before anything is written for a caller",
        &trace,
    );
}

#[test]
fn written_put_is_one_write() {
    let disk = SimDisk::new(1);
    let (_store, map) = quiet_store(&disk);
    let trace = trace_of(&disk, || {
        map.with_durability(Durability::Written).put(b"key", b"value").unwrap()
    });
    assert_eq!(trace.len(), 1, "{trace:?}");
    assert_trace("put-written", "one write of one record and no sync", &trace);
}

#[test]
fn synced_put_is_one_write_and_one_sync() {
    let disk = SimDisk::new(1);
    let (_store, map) = quiet_store(&disk);
    let trace = trace_of(&disk, || map.put(b"key", b"value").unwrap());
    assert_eq!(trace.len(), 2, "{trace:?}");
    assert_trace(
        "put-synced",
        "one write of one record, then one sync of that log file",
        &trace,
    );
}

#[test]
fn record_after_a_sync_begins_in_a_unit_of_its_own() {
    let disk = SimDisk::new(1);
    let (_store, map) = quiet_store(&disk);
    let written = map.with_durability(Durability::Written);
    let trace = trace_of(&disk, || {
        written.put(b"one", b"shares a unit with the next").unwrap();
        written.put(b"two", b"shares a unit with the one before").unwrap();
        map.put(b"three", b"is synced with both").unwrap();
        written.put(b"four", b"begins in the next unit").unwrap();
    });
    assert_trace(
        "unit-after-sync",
        "records stand close together, but the one after the sync begins at a multiple of 4096: a unit torn in a \
         power cut must not take along what was acknowledged",
        &trace,
    );
}

#[test]
fn long_value_is_durable_before_the_record_that_refers_to_it() {
    let disk = SimDisk::new(1);
    let (store, map) = quiet_store(&disk);
    let mut batch = Batch::new();
    batch.put(&map, b"short", b"value").unwrap();
    batch.put(&map, b"long", vec![7; 100_000]).unwrap();
    let trace = trace_of(&disk, || store.write(batch).unwrap());
    assert_order(&trace, &["write data", "sync data", "store wal-", "sync wal-"]);
    assert_trace(
        "batch-long-value",
        "the value is written to the data file and synced there before the record that refers to it is written",
        &trace,
    );
}

#[test]
fn long_value_of_a_written_commit_is_synced_with_the_log_and_before_it() {
    let disk = SimDisk::new(1);
    let (store, map) = quiet_store(&disk);
    let written = map.with_durability(Durability::Written);
    let trace = trace_of(&disk, || {
        written.put(b"long", vec![7; 100_000]).unwrap();
        store.sync().unwrap();
    });
    assert_order(&trace, &["write data", "store wal-", "sync data", "sync wal-"]);
    assert_trace(
        "put-long-value-written",
        "the put itself syncs nothing; the sync that follows makes the value durable before the record",
        &trace,
    );
}

#[test]
fn fold_syncs_log_then_pages_then_meta() {
    let disk = SimDisk::new(1);
    let (store, map) = quiet_store(&disk);
    let written = map.with_durability(Durability::Written);
    for number in 0..200u32 {
        written.put(number.to_be_bytes(), [7; 100]).unwrap();
    }
    let trace = trace_of(&disk, || store.maintain().unwrap());
    assert_order(
        &trace,
        &[
            "write wal-",
            "sync wal-",
            "write data",
            "sync data",
            "write data",
            "sync data",
            "write data",
            "sync data",
        ],
    );
    let writes_meta = |call: &String| {
        [0, 16, 32, 48]
            .iter()
            .any(|page| *call == format!("write data {}+4096", page << 12))
    };
    let metas: Vec<usize> = (0..trace.len()).filter(|&at| writes_meta(&trace[at])).collect();
    let [first, second] = metas[..] else {
        panic!("two copies of the meta page: {trace:?}")
    };
    assert_eq!(trace[first - 1], "sync data", "everything else is durable before");
    assert_eq!(second, first + 2, "one copy at a time");
    for copy in metas {
        assert_eq!(trace[copy + 1], "sync data");
    }
    assert_trace(
        "maintain",
        "the frozen log is synced before the base holds any of it; new pages and the bitmap are synced before the \
         meta page; each copy of the meta page is written alone and synced before the next write",
        &trace,
    );
}

#[test]
fn maintenance_without_work_asks_for_nothing() {
    let disk = SimDisk::new(1);
    let (store, _map) = quiet_store(&disk);
    let trace = trace_of(&disk, || store.maintain().unwrap());
    assert_eq!(trace, [""; 0]);
}

#[test]
fn closing_that_leaves_the_log_syncs_it_and_writes_nothing_else() {
    let disk = SimDisk::new(1);
    let options = Options::new().maintenance(Maintenance::Manual).folded_at_close(0);
    let store = options.open_on(disk.platform()).unwrap();
    let map = store.map("map").unwrap();
    store.maintain().unwrap();
    map.with_durability(Durability::Written).put(b"key", b"value").unwrap();
    drop(map);
    let trace = trace_of(&disk, || store.close().unwrap());
    assert_trace(
        "close_and_leave",
        "the log is synced, and the mark in the shared region, which is stored to a mapping, comes after that",
        &trace,
    );
}

#[test]
fn closing_folds_and_then_empties_the_log() {
    let disk = SimDisk::new(1);
    let (store, map) = quiet_store(&disk);
    map.with_durability(Durability::Written).put(b"key", b"value").unwrap();
    drop(map);
    let trace = trace_of(&disk, || store.close().unwrap());
    let durable = trace.iter().rposition(|call| call == "sync data").unwrap();
    let emptied = place(&trace, 0, "truncate wal-");
    assert!(
        durable < emptied,
        "the log goes only after the base is durable: {trace:#?}"
    );
    assert_trace(
        "close",
        "as a fold; the log files are cut down to their headers, and one of these says which meta page is durable, only after \
         the last sync of the data file",
        &trace,
    );
}

#[test]
fn reopening_a_closed_store_writes_nothing_of_its_data_file() {
    let disk = SimDisk::new(1);
    let (store, map) = quiet_store(&disk);
    map.put(b"key", b"value").unwrap();
    drop(map);
    store.close().unwrap();
    let trace = trace_of(&disk, || open(&disk));
    let is_page = |call: &&String| call.starts_with("write data");
    assert_eq!(trace.iter().find(is_page), None, "{trace:#?}");
    assert_trace(
        "reopen-closed",
        "the data file is not written, because the header of the log says that its newest meta page was synced; the \
         header of the new generation, which carries the epoch, is synced before anything is written for a caller",
        &trace,
    );
}

#[test]
fn reopening_after_a_kill_syncs_what_it_replays() {
    let disk = SimDisk::new(1);
    let (_store, map) = quiet_store(&disk);
    map.with_durability(Durability::Written).put(b"key", b"value").unwrap();
    let next = disk.kill();
    let trace = trace_of(&next, || open(&next));
    assert_order(&trace, &["sync wal-1", "write wal-0", "sync wal-0"]);
    assert_trace(
        "reopen-killed",
        "what nothing says is synced of the replayed log is written again, and synced before the header of the next generation is written: what follows must not be \
         durable before what it follows is; the data file need not be, because the log says that its meta page is",
        &trace,
    );
}
