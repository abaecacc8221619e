//! Full disks on several kinds of file systems: those that write in place, and those that copy on write. On the second
//! kind even overwriting existing bytes of a file may find the disk full.
//!
//! Several processes write while another file fills the disk, after a copy that shares their blocks was made. Calls are
//! refused with a typed error, and no process dies of a signal. Acknowledged changes are present, deletions work, and
//! puts work once there is space.
//!
//! The file systems are made in files, which requires root, loop devices and the programs that make them. A row that
//! cannot be made here reports why on standard error, and passes; with `DURAMEN_TOOLS_REQUIRED` set it fails.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{Place, assert_sound, forwards, restless};
use duramen::{Durability, Error, Kind, Map, Options, Store};

const ROLE: &str = "DURAMEN_FILESYSTEMS_ROLE";
const PLACE: &str = "DURAMEN_FILESYSTEMS_PLACE";
const WRITERS: usize = 3;
/// Space that other files take before the writers begin. Removing these files frees at least this space.
const ROOM_BYTES: usize = 8 << 20;

/// A kind of file system.
struct Row {
    name: &'static str,
    /// The command that makes it in a file; empty for a file system in memory.
    made_by: &'static [&'static str],
    mebibytes: u64,
    /// A shell line that copies `$STORE` to `$ROOT/copy` with shared blocks.
    copied_by: &'static str,
}

const ROWS: [Row; 5] = [
    Row {
        name: "ext4",
        made_by: &["mkfs.ext4", "-q", "-m", "0"],
        mebibytes: 64,
        copied_by: "true",
    },
    Row {
        name: "xfs",
        made_by: &["mkfs.xfs", "-q"],
        mebibytes: 320,
        copied_by: "cp -r --reflink=always \"$STORE\" \"$ROOT/copy\"",
    },
    Row {
        name: "btrfs",
        made_by: &["mkfs.btrfs", "-q"],
        mebibytes: 320,
        copied_by: "true",
    },
    Row {
        name: "btrfs with a snapshot",
        made_by: &["mkfs.btrfs", "-q"],
        mebibytes: 320,
        copied_by: "btrfs -q subvolume snapshot \"$ROOT\" \"$ROOT/copy\"",
    },
    Row {
        name: "tmpfs",
        made_by: &[],
        mebibytes: 64,
        copied_by: "true",
    },
];

#[test]
#[ignore = "the other tests run it as a process of its own"]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    match role.strip_prefix("writer ") {
        Some(number) => Writer::run(&place, number),
        None => on_full_disk(ROWS.iter().find(|row| row.name == role).expect("a row"), &place),
    }
}

fn child(role: &str, place: &Path, through: &[&str]) -> Command {
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("a path that is text");
    let own = [
        program,
        "--exact",
        "child_process",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ];
    let line = [through, &own].concat();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).env(ROLE, role).env(PLACE, place);
    command
}

fn said(output: &Output) -> String {
    let [out, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{errors}")
}

/// Returns why a row cannot be made here.
fn hindrance(row: &Row) -> Option<String> {
    let runs = |line: &[&str]| {
        let output = Command::new(line[0]).args(&line[1..]).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !runs(&["unshare", "--mount", "true"]) {
        return Some("no file systems can be mounted here (it takes root and `unshare`)".into());
    }
    let program = row.made_by.first()?;
    if !runs(&["losetup", "--find"]) {
        return Some("there are no loop devices".into());
    }
    if !runs(&["sh", "-c", &format!("command -v {program}")]) {
        return Some(format!("there is no {program}"));
    }
    let kind = row.name.split(' ').next().expect("a kind");
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = || known.lines().any(|line| line.trim().ends_with(kind));
    (!is_known() && !runs(&["modprobe", kind])).then(|| format!("the kernel does not know {kind}"))
}

fn try_row(name: &str) {
    let row = ROWS.iter().find(|row| row.name == name).expect("a row");
    if let Some(reason) = hindrance(row) {
        let message = format!("skipped: {name}: {reason}\n");
        assert!(std::env::var_os("DURAMEN_TOOLS_REQUIRED").is_none(), "{message}");
        // Uses no print macro, because the output of a passing test's macros is hidden.
        let _ = std::io::stderr().write_all(message.as_bytes());
        return;
    }
    // Runs one row at a time: each row syncs all file systems, and would wait for those of the others.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let place = Place::new();
    let output = child(name, &place.beside(""), &["unshare", "--mount"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{name}: {:?}\n{}",
        output.status,
        said(&output)
    );
    println!("{}", said(&output));
}

#[test]
fn full_ext4_beside_several_processes() {
    try_row("ext4");
}

#[test]
fn full_xfs_with_a_reflinked_copy_beside_several_processes() {
    try_row("xfs");
}

#[test]
fn full_btrfs_beside_several_processes() {
    try_row("btrfs");
}

#[test]
fn full_btrfs_with_a_snapshot_beside_several_processes() {
    try_row("btrfs with a snapshot");
}

#[test]
fn full_tmpfs_beside_several_processes() {
    try_row("tmpfs");
}

fn run(line: &[&str], variables: &[(&str, &Path)]) {
    let output = Command::new(line[0])
        .args(&line[1..])
        .envs(variables.iter().copied())
        .output();
    let output = output.expect("a command");
    assert!(output.status.success(), "{line:?}: {}", said(&output));
}

fn mount(row: &Row, place: &Path) -> PathBuf {
    let (image, root) = (place.join("image"), place.join("root"));
    std::fs::create_dir(&root).unwrap();
    let (image_name, root_name) = (image.to_str().unwrap(), root.to_str().unwrap());
    if row.made_by.is_empty() {
        let size = format!("size={}m", row.mebibytes);
        run(&["mount", "-t", "tmpfs", "-o", &size, "none", root_name], &[]);
        return root;
    }
    File::create(&image).unwrap().set_len(row.mebibytes << 20).unwrap();
    run(&[row.made_by, &[image_name]].concat(), &[]);
    run(&["mount", "-o", "loop", image_name, root_name], &[]);
    root
}

/// Creates a file that takes all space.
fn fill(path: &Path) {
    let mut file = File::options().append(true).open(path).unwrap();
    // The sync forces the file system to allocate what it has only promised. Some file systems have a little more space
    // after that.
    for _ in 0..3 {
        for piece in [vec![1; 1 << 20], vec![1; 4096]] {
            while file.write_all(&piece).is_ok() {}
        }
        let _ = file.sync_all();
    }
}

/// Announces a phase to the writers by creating a file of that name. Another file announces that a writer has done it.
fn tell(place: &Path, phase: &str) {
    File::create(place.join(phase)).unwrap();
}

fn await_word(place: &Path, phase: &str) {
    while !place.join(phase).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The writing processes. They end with the test. A surviving writer would keep the output pipe open, and the test
/// waits for the end of that pipe.
struct Writers(Vec<Child>);

impl Drop for Writers {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|writer| drop(writer.kill()));
    }
}

fn await_writers(place: &Path, phase: &str, writers: &mut Writers) {
    for number in 0..WRITERS {
        let done = place.join(format!("{phase} {number}"));
        while !done.exists() {
            for writer in &mut writers.0 {
                if let Some(status) = writer.try_wait().unwrap() {
                    panic!(
                        "in phase {phase} a writer ended: {status}, signal {:?}",
                        status.signal()
                    );
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn on_full_disk(row: &Row, place: &Path) {
    let root = mount(row, place);
    File::create(root.join("ballast"))
        .and_then(|mut file| file.write_all(&vec![1; ROOM_BYTES]))
        .unwrap();
    // A full XFS has no space for another inode.
    File::create(root.join("more ballast")).unwrap();
    let store_path = root.join("store");
    let spawn = |number: usize| {
        let mut command = child(&format!("writer {number}"), place, &[]);
        command
            .stdout(Stdio::inherit())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap()
    };
    let mut writers = Writers((0..WRITERS).map(spawn).collect());
    await_writers(place, "begin", &mut writers);
    let variables = [("STORE", store_path.as_path()), ("ROOT", root.as_path())];
    run(&["sh", "-c", &format!("sync && {}", row.copied_by)], &variables);
    fill(&root.join("ballast"));
    tell(place, "full");
    await_writers(place, "full", &mut writers);
    fill(&root.join("more ballast"));
    tell(place, "fuller");
    await_writers(place, "fuller", &mut writers);
    for name in ["ballast", "more ballast"] {
        std::fs::remove_file(root.join(name)).unwrap();
    }
    run(&["sync"], &[]);
    tell(place, "room");
    await_writers(place, "room", &mut writers);
    tell(place, "end");
    for writer in &mut writers.0 {
        let status = writer.wait().unwrap();
        assert!(status.success(), "{status}, signal {:?}", status.signal());
    }
    let store = Options::new().open(&store_path).unwrap();
    for number in 0..WRITERS {
        let map = store.map(&number.to_string()).unwrap();
        let noted = std::fs::read_to_string(place.join(format!("pairs {number}"))).unwrap();
        assert_eq!(map.count().unwrap().to_string(), noted);
    }
    assert_sound(&store);
    store.close().unwrap();
    let left = std::fs::read_dir("/dev/shm").map_or(0, |entries| {
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("duramen-"))
            .count()
    });
    println!("{}: {left} files of memory in /dev/shm", row.name);
}

struct Writer {
    store: Store,
    map: Map,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    rng: fastrand::Rng,
    put: u32,
    deleted: u32,
    refused: u32,
    refused_deletions: u32,
}

impl Writer {
    fn run(place: &Path, number: &str) {
        let path = place.join("root/store");
        let options = || restless().overwrite_freed(false).durability(Durability::Written);
        let store = loop {
            match options().open(&path) {
                Err(error) if error.kind() == Kind::Retry => {}
                opened => break opened.unwrap(),
            }
        };
        let mut writer = Writer {
            map: store.map(number).unwrap(),
            store,
            model: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(common::seed()),
            put: 0,
            deleted: 0,
            refused: 0,
            refused_deletions: 0,
        };
        let done = |phase: &str| tell(place, &format!("{phase} {number}"));
        while writer.put < 600 {
            writer.step();
        }
        done("begin");
        while !place.join("full").exists() {
            writer.step();
        }
        let is_in_place = duramen_io::writes_in_place(&path).unwrap();
        writer.be_refused(is_in_place);
        done("full");
        while !place.join("fuller").exists() {
            writer.step();
        }
        writer.be_refused(is_in_place);
        done("fuller");
        // No writer takes the freed space before all writers have put their pairs into it.
        await_word(place, "room");
        for put in 0..300u32 {
            writer
                .put(put.to_be_bytes().to_vec(), vec![3; 2_000])
                .unwrap_or_else(|error| panic!("put {put} with room: {error}"));
        }
        done("room");
        await_word(place, "end");
        (0..200).for_each(|_| writer.step());
        let snapshot = writer.store.snapshot().unwrap();
        let found: BTreeMap<_, _> = forwards(&mut snapshot.range(&writer.map, ..).unwrap())
            .into_iter()
            .collect();
        assert!(
            found == writer.model,
            "{} pairs, {} were acknowledged",
            found.len(),
            writer.model.len()
        );
        std::fs::write(place.join(format!("pairs {number}")), found.len().to_string()).unwrap();
        drop(snapshot);
        println!(
            "writer {number}: {} puts, {} deletions, {} and {} refused",
            writer.put, writer.deleted, writer.refused, writer.refused_deletions
        );
        writer.store.close().unwrap();
    }

    /// Continues until this writer has met a full disk several times and has made several deletions. Deletions must
    /// work where the file system writes in place.
    fn be_refused(&mut self, is_in_place: bool) {
        let (refusals, deletions) = if is_in_place { (20, 20) } else { (5, 0) };
        let (refused, deleted) = (self.refused + refusals, self.deleted + deletions);
        for _ in 0..20_000 {
            if self.refused >= refused && self.deleted >= deleted {
                return;
            }
            self.step();
        }
        panic!(
            "{} refused, {} deleted, {} deletions refused",
            self.refused, self.deleted, self.refused_deletions
        );
    }

    fn step(&mut self) {
        let key = self.rng.u16(..3_000).to_be_bytes().to_vec();
        if self.rng.u32(..4) == 0 {
            match self.map.delete(&key) {
                Ok(()) => {
                    self.model.remove(&key);
                    self.deleted += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::MakeSpace, "{error:?}");
                    self.refused_deletions += 1;
                }
            }
        } else {
            let length = [100, 1_000, 4_000, 70_000][self.rng.usize(..4)];
            let value = vec![self.rng.u8(..); length];
            if let Err(error) = self.put(key, value) {
                assert_eq!(error.kind(), Kind::MakeSpace, "{error:?}");
                self.refused += 1;
            }
        }
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Error> {
        self.map.put(&key, &value)?;
        self.model.insert(key, value);
        self.put += 1;
        Ok(())
    }
}
