//! One store, opened from environments that have little in common: mount namespaces, process namespaces, a `/dev/shm`
//! that is tiny or missing, another path to the directory, another C library. They work together, because everything
//! they share is in the store's directory.
//!
//! The test program starts itself again as a writer. `DURAMEN_OTHER_PROGRAM` names this test program built for another
//! C library, which is then every other writer (`scripts/two-libraries` builds and runs it). Where namespaces cannot be
//! created, the test says so on standard error, whatever the test harness captures, and passes. With
//! `DURAMEN_TOOLS_REQUIRED` set it fails.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Place, assert_sound, restless};
use duramen::{Kind, Options, Store, TransactionOptions};

const PATH: &str = "DURAMEN_CONTAINER_PATH";
const NUMBER: &str = "DURAMEN_CONTAINER_NUMBER";
const OTHER_PROGRAM: &str = "DURAMEN_OTHER_PROGRAM";
/// Number of steps of a writer before it closes the store.
const STEPS: u64 = 300;

/// Options for several processes that open the store.
fn options() -> Options {
    restless()
}

/// The environment of a writer: the command that makes it, and a shell line that finds `$STORE` and sets up the rest.
struct Surroundings {
    name: &'static str,
    made_by: &'static [&'static str],
    set_up: &'static str,
}

const ALL: [Surroundings; 6] = [
    Surroundings {
        name: "nothing special",
        made_by: &[],
        set_up: "true",
    },
    Surroundings {
        name: "a /dev/shm of one page",
        made_by: &["unshare", "--mount"],
        set_up: "mount -t tmpfs -o size=4k none /dev/shm",
    },
    Surroundings {
        name: "no /dev/shm at all",
        made_by: &["unshare", "--mount"],
        set_up: "mount -t tmpfs none /dev && test ! -e /dev/shm",
    },
    Surroundings {
        name: "another path to the store",
        made_by: &["unshare", "--mount"],
        set_up: "mount -t tmpfs none /mnt && mkdir /mnt/elsewhere && mount --bind \"$STORE\" /mnt/elsewhere && STORE=/mnt/elsewhere",
    },
    Surroundings {
        name: "process numbers of its own",
        made_by: &["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"],
        set_up: "true",
    },
    Surroundings {
        name: "process numbers of its own, and nothing of others to be seen",
        made_by: &[
            "unshare",
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--net",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ],
        set_up: "mount -t tmpfs none /dev",
    },
];

#[test]
#[ignore = "the other tests run it as a process of its own"]
fn child_process() {
    let Ok(path) = std::env::var(PATH) else { return };
    let number: u8 = std::env::var(NUMBER).expect("a number").parse().expect("a number");
    let store = open(Path::new(&path));
    let map = store.map("map").expect("a map");
    for step in 0..STEPS {
        let done = store.transact_with(TransactionOptions::new(), |tx| {
            tx.add(&map, b"sum", 1)?;
            tx.append(&map, [number], step.to_be_bytes())?;
            tx.put(&map, [b'v', number], value(step))
        });
        done.expect("a transaction");
        // One call writes one line, so that a kill does not leave half a line.
        let line = format!("@{}\n", step + 1);
        std::io::stdout().write_all(line.as_bytes()).expect("a listener");
    }
    drop(map);
    store.close().expect("an end");
}

fn value(step: u64) -> Vec<u8> {
    vec![step as u8; if step % 50 == 7 { 70_000 } else { 200 }]
}

/// Opens the store, which other processes may be opening or leaving.
fn open(path: &Path) -> Store {
    for _ in 0..1_000 {
        match options().open(path) {
            Err(error) if error.kind() == Kind::Retry => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.expect("a store"),
        }
    }
    panic!("the store stays in use");
}

fn works(surroundings: &Surroundings) -> bool {
    let Some((program, arguments)) = surroundings.made_by.split_first() else {
        return true;
    };
    let tried = Command::new(program).args(arguments).arg("true").output();
    tried.is_ok_and(|output| output.status.success())
}

/// Returns the environments that can be made here.
fn possible() -> Vec<&'static Surroundings> {
    let (possible, others): (Vec<_>, Vec<_>) = ALL.iter().partition(|surroundings| works(surroundings));
    for missing in others {
        let message = format!("SKIPPED: {}: {:?} does not work here\n", missing.name, missing.made_by);
        assert!(std::env::var_os("DURAMEN_TOOLS_REQUIRED").is_none(), "{message}");
        // Uses no print macro, because the output of a passing test's macros is hidden.
        let _ = std::io::stderr().write_all(message.as_bytes());
    }
    possible
}

fn spawn(surroundings: &Surroundings, path: &Path, number: u8) -> Child {
    let own = std::env::current_exe().expect("this program");
    let other = std::env::var_os(OTHER_PROGRAM).filter(|_| number % 2 == 1);
    let program = other.unwrap_or_else(|| own.into_os_string());
    let set_up = format!(
        "{} && export {PATH}=\"$STORE\" && exec \"$0\" \"$@\"",
        surroundings.set_up
    );
    let line = [surroundings.made_by, &["sh", "-c", &set_up]].concat();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).arg(program);
    command.args([
        "--exact",
        "child_process",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env("STORE", path).env(NUMBER, number.to_string());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("a process")
}

/// Returns the last step that a writer reported before its output ended.
fn last_told(child: &mut Child) -> u64 {
    let output = BufReader::new(child.stdout.take().expect("asked for"));
    let told = output
        .lines()
        .filter_map(|line| line.expect("text").split_once('@')?.1.parse().ok());
    told.last().unwrap_or(0)
}

/// Checks that the effects of each writer are present exactly `told` times, or once more if the writer was killed.
fn assert_holds(store: &Store, told: &BTreeMap<u8, (u64, bool)>) {
    let map = store.map("map").unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut sum = 0;
    for (&number, &(told, is_killed)) in told {
        let mut cursor = snapshot.prefix(&map, [number]).unwrap();
        let mut found = 0u64;
        while let Some((_, step)) = cursor.next().unwrap() {
            assert_eq!(*step, found.to_be_bytes(), "writer {number}");
            found += 1;
        }
        assert!(
            found == told || is_killed && found == told + 1,
            "writer {number}: {found} of {told}"
        );
        if found > 0 {
            assert!(*snapshot.get(&map, [b'v', number]).unwrap().unwrap() == *value(found - 1));
        }
        sum += found;
    }
    let counted = snapshot.get(&map, b"sum").unwrap().unwrap();
    assert_eq!(i64::from_be_bytes((*counted).try_into().unwrap()), sum as i64);
}

#[test]
fn processes_of_different_surroundings_write_one_store() {
    let place = Place::new();
    let store = open(&place.path());
    let mut children: Vec<(u8, &str, Child)> = Vec::new();
    for (number, surroundings) in possible().into_iter().cycle().take(8).enumerate() {
        children.push((
            number as u8,
            surroundings.name,
            spawn(surroundings, &place.path(), number as u8),
        ));
    }
    let mut told = BTreeMap::new();
    for (number, name, mut child) in children {
        let last = last_told(&mut child);
        let mut said = String::new();
        child
            .stderr
            .take()
            .expect("asked for")
            .read_to_string(&mut said)
            .unwrap();
        assert!(child.wait().unwrap().success(), "{name}: {said}");
        assert_eq!(last, STEPS, "{name}: {said}");
        told.insert(number, (last, false));
    }
    assert_holds(&store, &told);
    assert_sound(&store);
    store.close().unwrap();
    let store = open(&place.path());
    assert_holds(&store, &told);
    assert_sound(&store);
}

/// A PID means something else in another namespace; the kernel reports that a process is dead.
#[test]
fn death_in_other_surroundings_is_noticed() {
    let place = Place::new();
    let store = open(&place.path());
    let map = store.map("map").unwrap();
    let mut told = BTreeMap::new();
    let mut rng = fastrand::Rng::with_seed(common::seed());
    for (number, surroundings) in possible().into_iter().cycle().take(18).enumerate() {
        let number = number as u8;
        let mut child = spawn(surroundings, &place.path(), number);
        let mut output = BufReader::new(child.stdout.take().expect("asked for"));
        let (mut last, kill_after) = (0, rng.u64(1..STEPS));
        let mut line = String::new();
        while output.read_line(&mut line).unwrap() > 0 {
            if let Some(step) = line.split_once('@').and_then(|(_, step)| step.trim().parse().ok()) {
                last = step;
                if last == kill_after {
                    // With `--kill-child`, the processes that it started die with it.
                    child.kill().unwrap();
                }
            }
            line.clear();
        }
        child.wait().unwrap();
        // The next writer takes over what the dead one held.
        map.put(b"after", [number]).unwrap();
        told.insert(number, (last, true));
        assert_holds(&store, &told);
    }
    store.maintain().unwrap();
    assert_sound(&store);
    // Any process that notices the dead removes them.
    let began = Instant::now();
    while store.stat().unwrap().processes.len() > 1 {
        assert!(began.elapsed() < Duration::from_secs(30), "the dead are not buried");
        std::thread::sleep(Duration::from_millis(10));
    }
}
