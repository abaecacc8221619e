//! The writes that the device receives, as the kernel traces them (`block_rq_issue`), on ext4 in a file.
//!
//! A block that holds an acknowledged `Synced` record is never written again, because a power cut may destroy any part
//! of a block that is being written. The test needs root, a loop device and the kernel's tracing. Where they are
//! missing, it says so on standard error and passes; with `DURAMEN_TOOLS_REQUIRED` set it fails.

mod common;

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::Place;
use duramen::{Durability, Maintenance, Options, Store};

const PLACE: &str = "DURAMEN_TRACE_PLACE";
const SECTOR: u64 = 512;
const PUTS: u64 = 60;
const THREADS: u64 = 4;
const ROUNDS: u64 = 60;
/// Maximum bytes that the device may receive for a single synced put of a hundred bytes.
const BYTES_OF_A_PUT_MAX: u64 = 8 << 10;

fn run(line: &[&str]) -> Result<String, String> {
    let output = Command::new(line[0]).args(&line[1..]).output();
    let output = output.map_err(|error| format!("{line:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{line:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Mounts ext4 in a file, on a loop device.
fn mount(place: &Path) -> Result<PathBuf, String> {
    let (image, mounted) = (place.join("image"), place.join("ext4"));
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    let (image, directory) = (image.to_str().unwrap(), mounted.to_str().unwrap());
    // Disables lazy work of the kernel that would write to the device meanwhile.
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    run(&["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", lazy, image])?;
    run(&["mount", "-o", "loop", image, directory])?;
    Ok(mounted)
}

/// The kernel's trace of one device, in its own buffer.
struct Trace {
    instance: PathBuf,
}

impl Trace {
    fn of(place: &Path, device: u64) -> Result<Trace, String> {
        let tracing = place.join("tracing");
        std::fs::create_dir(&tracing).unwrap();
        run(&["mount", "-t", "tracefs", "none", tracing.to_str().unwrap()])?;
        let instance = tracing.join(format!("instances/duramen-{}", std::process::id()));
        std::fs::create_dir(&instance).map_err(|error| format!("a buffer for traces: {error}"))?;
        let trace = Trace { instance };
        let event = "events/block/block_rq_issue";
        // The kernel's internal encoding of device numbers.
        let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
        trace.write(&format!("{event}/filter"), &format!("dev == {}", major << 20 | minor))?;
        trace.write(&format!("{event}/enable"), "1")?;
        Ok(trace)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        std::fs::write(self.instance.join(file), text).map_err(|error| format!("{file} of the trace: {error}"))
    }

    fn clear(&self) {
        self.write("trace", "").expect("a trace can be cleared");
    }

    /// Returns first sector and number of sectors of each write since the trace was cleared.
    fn writes(&self) -> Vec<(u64, u64)> {
        let text = std::fs::read_to_string(self.instance.join("trace")).expect("a trace");
        text.lines().filter_map(write_in).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.write("events/block/block_rq_issue/enable", "0");
        let _ = std::fs::remove_dir(&self.instance);
    }
}

/// Parses the write from a line such as `... block_rq_issue: 7,0 WS 4096 () 265216 + 8 ... [name]`.
fn write_in(line: &str) -> Option<(u64, u64)> {
    let (_, event) = line.split_once("block_rq_issue: ")?;
    let mut words = event.split_whitespace().skip(1);
    if !words.next()?.contains('W') {
        return None;
    }
    let mut words = words.skip_while(|word| !word.ends_with(')')).skip(1);
    let first = words.next()?.parse().ok()?;
    let count = words.nth(1)?.parse().ok()?;
    Some((first, count))
}

/// First sector in the file, first sector on the device, and number of sectors.
type Extent = (u64, u64, u64);

/// Returns the extents of the log files on the device.
fn log_extents(store: &Path) -> Result<Vec<(PathBuf, Vec<Extent>)>, String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(store).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with("wal-") {
            continue;
        }
        // Lines such as `0: 0..  1023:  265216..  266239:  1024: flags`.
        let said = run(&["filefrag", "-b512", "-v", path.to_str().unwrap()])?;
        let first = |text: &str| text.split("..").next().and_then(|first| first.trim().parse().ok());
        let extent = |line: &str| {
            let fields: Vec<&str> = line.split(':').collect();
            let [number, logical, physical, count, ..] = fields[..] else {
                return None;
            };
            number.trim().parse::<u32>().ok()?;
            Some((first(logical)?, first(physical)?, count.trim().parse().ok()?))
        };
        let extents = said.lines().filter_map(extent).collect();
        files.push((path, extents));
    }
    Ok(files)
}

/// Returns the sectors of the device that the log files occupy.
fn log_sectors(store: &Path) -> Result<HashSet<u64>, String> {
    let files = log_extents(store)?;
    let extents = files.into_iter().flat_map(|(_, extents)| extents);
    Ok(extents.flat_map(|(_, first, count)| first..first + count).collect())
}

fn put(store: &Store, number: u64) {
    let map = store.map("map").expect("a map");
    map.put(number.to_be_bytes(), [7; 100]).expect("a put");
}

/// Makes synced puts on one thread. Returns the written sectors of the log, and the total bytes written to the device.
fn traced_puts(trace: &Trace, store: &Store, log: &HashSet<u64>) -> (Vec<u64>, u64) {
    trace.clear();
    (0..PUTS).for_each(|number| put(store, number));
    let writes = trace.writes();
    let sectors = writes.iter().flat_map(|&(first, count)| first..first + count);
    let of_log = sectors.filter(|sector| log.contains(sector)).collect();
    (of_log, writes.iter().map(|(_, count)| count * SECTOR).sum())
}

#[test]
#[ignore = "the other test runs it as a process of its own"]
fn child_process() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let is_required = std::env::var_os("DURAMEN_TOOLS_REQUIRED").is_some();
    let prepared = mount(&place).and_then(|mounted| {
        let device = std::fs::metadata(&mounted).unwrap().dev();
        Ok((Trace::of(&place, device)?, mounted))
    });
    let (trace, mounted) = match prepared {
        Ok(prepared) => prepared,
        Err(cause) if is_required => panic!("{cause}"),
        Err(cause) => return println!("@SKIPPED {cause}"),
    };
    let path = mounted.join("store");
    // Manual maintenance, because folds would write to the device too.
    let options = Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Synced);
    let store = options.open(&path).expect("a store");
    // A log file is filled with zeros once, ahead of its first records, and then reused repeatedly. From here on all of
    // them are reused.
    let map = store.map("map").expect("a map").with_durability(Durability::Written);
    for round in 0..4u64 {
        for number in 0..400u64 {
            map.put((round << 32 | number).to_be_bytes(), [7; 1_000])
                .expect("a put");
        }
        store.maintain().expect("a fold");
    }
    put(&store, u64::MAX);
    run(&["sync", "-f", mounted.to_str().unwrap()]).expect("a sync");
    let log = log_sectors(&path).expect("the places of the log files");
    assert!(!log.is_empty());
    let (sectors, bytes) = traced_puts(&trace, &store, &log);
    let distinct: HashSet<u64> = sectors.iter().copied().collect();
    assert!(!sectors.is_empty(), "the trace shows no write of the log");
    assert_eq!(sectors.len(), distinct.len(), "a sector of the log was written twice");
    println!("{} bytes for each of {PUTS} puts", bytes / PUTS);
    assert!(bytes <= PUTS * BYTES_OF_A_PUT_MAX, "{} bytes a put", bytes / PUTS);
    drop(store);
    acknowledged_sectors_stay(&trace, &mounted.join("stores"));
    println!("@DONE");
}

/// Mixes `Written` commits, most of which are stored to a mapping of the log, with `Synced` ones of one thread and of
/// several. While threads wait for a sync, the kernel may write a sector twice. Once the threads have returned, it may
/// not.
fn acknowledged_sectors_stay(trace: &Trace, path: &Path) {
    let options = Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Synced)
        .generation_bytes(16 << 20, 16 << 20);
    let store = options.open(path).expect("a store");
    let map = store.map("map").expect("a map").with_durability(Durability::Written);
    let mut acknowledged = HashSet::new();
    for round in 0..ROUNDS {
        trace.clear();
        // In some rounds there is so much that it reaches the next part of the file, in which nothing is synced.
        for number in 0..[3, 40, 0, 2_500, 0, 0][round as usize % 6] {
            map.put((round << 32 | number).to_be_bytes(), [7; 300]).expect("a put");
        }
        std::thread::scope(|scope| {
            for thread in 0..[1, THREADS][round as usize % 2] {
                let store = &store;
                scope.spawn(move || put(store, thread << 32 | round));
            }
        });
        let sectors = trace
            .writes()
            .into_iter()
            .flat_map(|(first, count)| first..first + count);
        let again: Vec<u64> = sectors.filter(|sector| acknowledged.contains(sector)).collect();
        assert!(
            again.is_empty(),
            "round {round}: sectors with acknowledged records were written again: {again:?}"
        );
        acknowledged.extend(used_log_sectors(path));
    }
    let bytes = acknowledged.len() as u64 * SECTOR;
    assert!(bytes > 6 << 20, "{bytes} bytes of log were found on the device");
}

/// Returns the sectors of the device with non-zero parts of log files that are used for the first time.
fn used_log_sectors(store: &Path) -> Vec<u64> {
    let places = log_extents(store).expect("the places of the log files");
    let mut used = Vec::new();
    for (path, extents) in places {
        let bytes = std::fs::read(path).unwrap();
        for (at, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            if sector.iter().any(|byte| *byte != 0) {
                let at = at as u64;
                let extent = extents
                    .iter()
                    .find(|extent| (extent.0..extent.0 + extent.2).contains(&at));
                let (logical, physical, _) = extent.expect("a place for what was written");
                used.push(physical + at - logical);
            }
        }
    }
    used
}

#[test]
fn no_block_with_an_acknowledged_record_is_written_again() {
    let place = Place::new();
    let program = std::env::current_exe().expect("this program");
    let output = Command::new("unshare")
        .args(["--mount", program.to_str().unwrap()])
        .args([
            "--exact",
            "child_process",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PLACE, place.beside(""))
        .output();
    let (said, is_done) = match output {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            let is_skipped = said.contains("@SKIPPED") || !said.contains("running 1 test");
            assert!(is_skipped || output.status.success(), "{said}");
            (said.into_owned(), !is_skipped)
        }
        Err(error) => (error.to_string(), false),
    };
    if !is_done {
        assert!(std::env::var_os("DURAMEN_TOOLS_REQUIRED").is_none(), "{said}");
        // Uses no print macro, because the output of a passing test's macros is hidden.
        let _ = std::io::stderr().write_all(format!("SKIPPED: no block traces here: {said}\n").as_bytes());
    }
    println!("{said}");
}
