//! Faults of real disks, on real files: full file systems, failing devices, and data files that are cut off or changed
//! under a running process.
//!
//! The test program starts itself again, because a case may end a process with a signal. A case with a file system of
//! its own, in memory or ext4 in a file, runs in its own mount namespace. Where that is not allowed, the test says so
//! on standard error, whatever the test harness captures, and passes. With `DURAMEN_TOOLS_REQUIRED` set it fails.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Place, assert_sound, by_hand, forwards};
use duramen::{Batch, Durability, Error, Kind, Lost, Map, Options, Store, TransactionOptions};

const ROLE: &str = "DURAMEN_TROUBLE_ROLE";
const PLACE: &str = "DURAMEN_TROUBLE_PLACE";
const SIGBUS: i32 = 7;
const PAGE: u64 = 4096;

/// Runs the role of the child process.
#[test]
#[ignore = "the other tests run it as a process of its own"]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let place = PathBuf::from(std::env::var(PLACE).expect("a place"));
    match role.as_str() {
        "full tmpfs" => on_full_disk(&mount_memory(&place, 24)),
        "full ext4" => on_full_disk(&mount_ext4(&place, 32, &[])),
        "holes" => write_to_logs_with_holes(&mount_ext4(&place, 32, &["-b", "1024"])),
        "slow ext4" => {
            let below = mount_ext4(&place, 128, &[]);
            on_slow_device(&place, &below, &mount_ext4(&below, 64, &[]));
        }
        "busy" => be_busy(&place),
        "failing device" => on_failing_device(&place),
        "cut" => read_what_is_cut_off(&place),
        other => panic!("no role {other:?}"),
    }
}

fn child(role: &str, place: &Path, through: &[&str]) -> Output {
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("a path that is text");
    let line = [
        through,
        &[
            program,
            "--exact",
            "child_process",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ],
    ]
    .concat();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).env(ROLE, role).env(PLACE, place);
    command.output().expect("a process")
}

/// Returns a command that makes a mount namespace here, as root or in a user namespace, if any works.
fn namespace(with_loop_devices: bool) -> Option<&'static [&'static str]> {
    const AS_ROOT: &[&str] = &["unshare", "--mount"];
    const AS_USER: &[&str] = &["unshare", "--user", "--map-root-user", "--mount"];
    let works = |line: &[&str]| {
        let tried = Command::new(line[0]).args(&line[1..]).arg("true").output();
        tried.is_ok_and(|output| output.status.success())
    };
    let can_loop = || {
        let tried = Command::new("losetup").arg("--find").output();
        tried.is_ok_and(|output| output.status.success())
    };
    if works(AS_ROOT) && (!with_loop_devices || can_loop()) {
        return Some(AS_ROOT);
    }
    (!with_loop_devices && works(AS_USER)).then_some(AS_USER)
}

/// Runs the child where it may mount file systems. Says so if it may not mount them here.
fn in_namespace(role: &str, with_loop_devices: bool) {
    let Some(through) = namespace(with_loop_devices) else {
        let message = format!("SKIPPED: {role}: no file systems can be mounted here (it takes root and `unshare`)\n");
        assert!(std::env::var_os("DURAMEN_TOOLS_REQUIRED").is_none(), "{message}");
        // Uses no print macro, because the output of a passing test's macros is hidden.
        let _ = std::io::stderr().write_all(message.as_bytes());
        return;
    };
    let place = Place::new();
    let output = child(role, &place.beside(""), through);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{role}: {:?}\n{said}", output.status);
    println!("{said}");
}

fn run(line: &[&str]) {
    let output = Command::new(line[0]).args(&line[1..]).output().expect("a command");
    assert!(
        output.status.success(),
        "{line:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Mounts a file system in memory of `size` MiB.
fn mount_memory(place: &Path, size: u32) -> PathBuf {
    let mounted = place.join("memory");
    std::fs::create_dir(&mounted).unwrap();
    let size = format!("size={size}m");
    run(&["mount", "-t", "tmpfs", "-o", &size, "none", mounted.to_str().unwrap()]);
    mounted
}

/// Mounts an ext4 file system of `size` MiB in a file, made with these options.
fn mount_ext4(place: &Path, size: u64, options: &[&str]) -> PathBuf {
    let (image, mounted) = (image(place), place.join("ext4"));
    File::create(&image).unwrap().set_len(size << 20).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    let (image, directory) = (image.to_str().unwrap(), mounted.to_str().unwrap());
    run(&[&["mkfs.ext4", "-q", "-m", "0"], options, &[image]].concat());
    run(&["mount", "-o", "loop", image, directory]);
    mounted
}

fn image(place: &Path) -> PathBuf {
    place.join("image")
}

// Full disks.

/// A file that takes all space except some pages.
struct Ballast {
    path: PathBuf,
}

impl Ballast {
    fn leaving(root: &Path, pages: u64) -> Ballast {
        let path = root.join("ballast");
        let mut file = File::create(&path).unwrap();
        let mut length = 0;
        for piece in [vec![1; 1 << 20], vec![1; PAGE as usize]] {
            while file.write_all(&piece).is_ok() {
                length += piece.len() as u64;
            }
            // A piece may have been written in part.
            length = length.max(file.metadata().unwrap().len());
        }
        file.set_len(length.saturating_sub(pages * PAGE)).unwrap();
        // Forces the file system to allocate the space it has only promised so far.
        let _ = file.sync_all();
        Ballast { path }
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The content that a store must have.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Makes a change, and adds it to the model if it was acknowledged.
fn do_something(store: &Store, map: &Map, model: &mut Model, rng: &mut fastrand::Rng) -> Result<(), Error> {
    let key = rng.u16(..300).to_be_bytes().to_vec();
    let value = vec![rng.u8(..); [50, 900, 3_000, 70_000][rng.usize(..4)]];
    match rng.u32(..10) {
        0 => {
            map.delete(&key)?;
            model.remove(&key);
        }
        1 => {
            let end = [&key[..], &[0xFF]].concat();
            map.delete_range(&key[..]..&end[..])?;
            model.retain(|found, _| !(&key..&end).contains(&found));
        }
        2 => store.maintain()?,
        3 => store.sync()?,
        4 => {
            let mut batch = Batch::new();
            batch.put(map, &key, &value)?;
            batch.put(map, b"~beside", &value[..50])?;
            store.write(batch)?;
            model.insert(b"~beside".to_vec(), value[..50].to_vec());
            model.insert(key, value);
        }
        5 => {
            store.transact_with(TransactionOptions::new().durability(Durability::Synced), |tx| {
                tx.put(map, &key, &value)
            })?;
            model.insert(key, value);
        }
        _ => {
            map.put(&key, &value)?;
            model.insert(key, value);
        }
    }
    Ok(())
}

fn assert_holds(store: &Store, map: &Map, model: &Model) {
    let snapshot = store.snapshot().unwrap();
    let found: Model = forwards(&mut snapshot.range(map, ..).unwrap()).into_iter().collect();
    assert!(
        found == *model,
        "{} pairs, {} were acknowledged",
        found.len(),
        model.len()
    );
}

/// The disk fills up at another place in each round. A refused change has no effect, and an acknowledged change is
/// present. When there is space again, all work continues.
fn on_full_disk(root: &Path) {
    let mut rng = fastrand::Rng::with_seed(common::seed());
    let (path, mut model) = (root.join("store"), Model::new());
    let mut store = by_hand().open(&path).unwrap();
    let mut map = store.map("map").unwrap();
    let mut refused = 0;
    for pages in (0..90).chain((90..400).step_by(10)) {
        let ballast = Ballast::leaving(root, pages);
        if pages % 4 == 3 {
            // A store on a full disk can be opened.
            drop((map, store));
            store = by_hand().open(&path).unwrap();
            map = store.map("map").unwrap();
        }
        for _ in 0..20 {
            if let Err(error) = do_something(&store, &map, &mut model, &mut rng) {
                assert_eq!(error.kind(), Kind::MakeSpace, "{error:?}");
                refused += 1;
            }
        }
        assert_holds(&store, &map, &model);
        // Deletions free space; the store has a reserve for them.
        map.delete_range(&200u16.to_be_bytes()[..]..).unwrap();
        model.retain(|key, _| key.as_slice() < &200u16.to_be_bytes()[..]);
        drop(ballast);
        store.maintain().unwrap();
        map.put(b"room again", [1; 3_000]).unwrap();
        model.insert(b"room again".to_vec(), vec![1; 3_000]);
        assert_holds(&store, &map, &model);
        assert_sound(&store);
    }
    // It was 39 to 65 times in eight runs.
    assert!(refused > 20, "the disk was full {refused} times");
    drop((map, store));
    let store = by_hand().open(&path).unwrap();
    assert_holds(&store, &store.map("map").unwrap(), &model);
    println!("{refused} calls found the disk full");
}

#[test]
fn full_file_system_in_memory_refuses_and_loses_nothing() {
    in_namespace("full tmpfs", false);
}

#[test]
fn full_ext4_refuses_and_loses_nothing() {
    in_namespace("full ext4", true);
}

/// Uses a copy of a store whose log files have holes where there were zeros, on blocks smaller than a page. When the
/// disk fills up, a page of the log may then have space for only some of its bytes.
fn write_to_logs_with_holes(root: &Path) {
    let (path, copy) = (root.join("store"), root.join("copy"));
    let options = || by_hand().durability(Durability::Written);
    let store = options().open(&path).unwrap();
    store.map("map").unwrap().put(b"key", b"value").unwrap();
    let names = [path.to_str().unwrap(), copy.to_str().unwrap()];
    run(&[&["cp", "-r", "--sparse=always"], &names[..]].concat());
    drop(store);
    std::fs::remove_dir_all(&path).unwrap();
    let store = options().open(&copy).unwrap();
    let map = store.map("map").unwrap();
    let (mut model, mut refused) = (Model::from([(b"key".to_vec(), b"value".to_vec())]), 0);
    for round in 0..12u32 {
        let ballast = Ballast::leaving(root, 0);
        for number in 0..300u32 {
            let key = [round.to_be_bytes(), number.to_be_bytes()].concat();
            match map.put(&key, [1; 100]) {
                Ok(()) => drop(model.insert(key, vec![1; 100])),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::MakeSpace, "{error:?}");
                    refused += 1;
                    break;
                }
            }
        }
        drop(ballast);
        // The next log file.
        store.maintain().unwrap();
    }
    assert!(refused > 0, "no log file had holes");
    assert_holds(&store, &map, &model);
}

#[test]
fn log_file_with_holes_on_a_full_disk_with_small_blocks_is_no_signal() {
    in_namespace("holes", true);
}

// Slow devices.

/// Time during which nothing gets written: longer than any process waits for a process that makes no progress.
const OUTAGE_SECONDS: u32 = 8;

/// Writes, folds and syncs until a file is gone.
fn be_busy(place: &Path) {
    let (path, alive) = (place.join("ext4/ext4/store"), place.join("alive"));
    let store = by_hand().open(&path).unwrap();
    let map = store.map("busy").unwrap();
    for number in 0u64.. {
        map.put((number % 100).to_be_bytes(), [1; 1_000]).unwrap();
        store.maintain().unwrap();
        if !alive.exists() {
            break;
        }
    }
}

/// Two processes wait until the device answers; one of them waits for locks of the other. No call fails because of it.
/// `below` is the file system whose file contains the device.
fn on_slow_device(place: &Path, below: &Path, root: &Path) {
    let store = by_hand().open(root.join("store")).unwrap();
    let map = store.map("map").unwrap();
    let alive = place.join("alive");
    File::create(&alive).unwrap();
    let other = std::thread::spawn({
        let place = place.to_owned();
        move || child("busy", &place, &[])
    });
    while store.maps().get("busy").unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let below = below.to_str().unwrap();
    // The outage ends before any process in it can be killed. A process killed in it would leave a file system that
    // cannot be unmounted.
    let outage = format!("fsfreeze -f {below} && sleep {OUTAGE_SECONDS}; fsfreeze -u {below}");
    let mut outage = Command::new("sh").args(["-c", &outage]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    std::thread::scope(|scope| {
        scope.spawn(|| store.maintain().expect("a fold"));
        scope.spawn(|| map.put(b"key", [1; 100]).expect("a put"));
        scope.spawn(|| store.sync().expect("a sync"));
        scope.spawn(|| map.put(b"long", vec![1; 100_000]).expect("a put of a long value"));
    });
    assert!(outage.wait().unwrap().success());
    std::fs::remove_file(&alive).unwrap();
    let other = other.join().unwrap();
    let said = String::from_utf8_lossy(&other.stdout) + String::from_utf8_lossy(&other.stderr);
    assert!(other.status.success(), "{said}");
    assert_sound(&store);
}

#[test]
fn process_whose_device_takes_long_is_not_taken_for_one_that_was_stopped() {
    in_namespace("slow ext4", true);
}

// Devices that fail, and files that are cut off.

const KEYS: u32 = 4_000;

fn value_of(number: u32) -> Vec<u8> {
    let length = if number.is_multiple_of(100) { 9_000 } else { 900 };
    let mut value = number.to_be_bytes().to_vec();
    value.resize(length, number as u8);
    value
}

/// Makes a store whose newest root is at the beginning of its file, in space that was freed there. Most leaves are
/// behind it.
fn make_store(path: &Path) {
    let store = by_hand().open(path).unwrap();
    let map = store.map("map").unwrap();
    map.put(b"room", vec![0; 1 << 20]).unwrap();
    store.maintain().unwrap();
    (0..KEYS).for_each(|number| map.put(number.to_be_bytes(), value_of(number)).unwrap());
    map.put(b"long", vec![3; 1 << 20]).unwrap();
    store.maintain().unwrap();
    map.delete(b"room").unwrap();
    store.maintain().unwrap();
    for number in 0..3 {
        map.put(u32::to_be_bytes(number), value_of(number)).unwrap();
        store.maintain().unwrap();
    }
    drop(map);
    store.close().unwrap();
}

/// Returns the number of readable pairs of a damaged store, and lines about what is unreadable.
fn save_what_can_be_read(store: &Store) -> (usize, Vec<String>) {
    let (snapshot, lost) = (store.snapshot().unwrap(), Lost::new());
    let mut saved = 0;
    for map in snapshot.salvage_maps(&lost).unwrap() {
        let mut walk = snapshot.salvage(&map, &lost).unwrap();
        while walk.next().unwrap().is_some() {
            saved += 1;
        }
    }
    (saved, lost.list())
}

/// The second half of the device stops answering.
fn on_failing_device(place: &Path) {
    let mounted = mount_ext4(place, 32, &[]);
    let path = mounted.join("store");
    make_store(&path);
    run(&["sync", "-f", mounted.to_str().unwrap()]);
    // Drops the file from the page cache, because reads would be served from there.
    let data = File::open(path.join("data")).unwrap();
    let store = Options::new().salvage(true).open(&path).unwrap();
    let (saved, lost) = save_what_can_be_read(&store);
    assert!(saved > KEYS as usize && lost.is_empty(), "{saved} pairs, {lost:?}");
    forget_cached(&data);
    File::options()
        .write(true)
        .open(image(place))
        .unwrap()
        .set_len(0)
        .unwrap();
    let (saved, lost) = save_what_can_be_read(&store);
    println!("{saved} pairs were saved, and these were not: {lost:?}");
    assert!(!lost.is_empty(), "the device never failed");
    // A clean close is no longer possible.
    std::process::exit(0);
}

fn forget_cached(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open; the call takes no memory.
    let done = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(done, 0);
}

#[test]
fn device_that_fails_gives_errors_and_no_signal_while_a_store_is_saved() {
    in_namespace("failing device", true);
}

/// Another program truncates the data file while a process has the store open.
fn read_what_is_cut_off(place: &Path) {
    let path = place.join("store");
    make_store(&path);
    let store = by_hand().open(&path).unwrap();
    let map = store.map("map").unwrap();
    let snapshot = store.snapshot().unwrap();
    let read_all = || {
        let mut cursor = snapshot.range(&map, ..).unwrap();
        while cursor.next().unwrap().is_some() {}
    };
    // A missing page that is read for the first time is an error.
    read_all();
    let data = File::options().write(true).open(path.join("data")).unwrap();
    let length = data.metadata().unwrap().len();
    data.set_len(length / 2).unwrap();
    read_all();
}

/// The guide says this: no promise can be made to the process itself. The rest of the file can be saved.
#[test]
fn data_file_that_is_cut_off_under_a_process_is_a_signal_and_what_is_left_is_saved() {
    let place = Place::new();
    let output = child("cut", &place.beside(""), &[]);
    assert_eq!(output.status.signal(), Some(SIGBUS), "{:?}", output.status);
    // Missing data stays missing, even where the process has made the file longer again.
    match Options::new().read_only(true).open(place.beside("store")) {
        Ok(store) => assert_ne!(store.check(&mut |_| ()).unwrap().problems, [""; 0]),
        Err(error) => assert_eq!(error.kind(), Kind::Damaged, "{error}"),
    }
    let store = Options::new().salvage(true).open(place.beside("store")).unwrap();
    let (saved, lost) = save_what_can_be_read(&store);
    assert!(saved > 100 && !lost.is_empty(), "{saved} pairs");
}

#[test]
fn bytes_that_change_under_a_process_are_found_by_the_checker() {
    let place = Place::new();
    make_store(&place.path());
    let store = by_hand().open(place.path()).unwrap();
    let map = store.map("map").unwrap();
    let key = 2_001u32.to_be_bytes();
    assert_eq!(map.get(key).unwrap().unwrap(), value_of(2_001));
    let data = File::options()
        .read(true)
        .write(true)
        .open(place.path().join("data"))
        .unwrap();
    let bytes = std::fs::read(place.path().join("data")).unwrap();
    let wanted = value_of(2_001);
    let at = bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
        .expect("the value");
    data.write_all_at(&[!bytes[at + 500]], at as u64 + 500).unwrap();
    let page = format!("page {} ", at as u64 / PAGE);
    // A page is verified at its first read, and not again.
    assert_ne!(map.get(key).unwrap().unwrap(), wanted);
    let problems = store.check(&mut |_| ()).unwrap().problems;
    assert!(problems.iter().any(|problem| problem.contains(&page)), "{problems:?}");
}
