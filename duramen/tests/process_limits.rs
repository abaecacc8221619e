//! Limits that the kernel sets on a process (`ulimit`), with the default action of the signals that go with them: every
//! call that meets one returns an error that says what to do, nothing is lost, and once the limit is raised everything
//! goes on.
//!
//! A limit counts for a whole process, so the test program starts itself again for each case.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Place, by_hand};
use duramen::{Kind, Options};

const CASE: &str = "DURAMEN_LIMIT_CASE";
const PLACE: &str = "DURAMEN_LIMIT_PLACE";

/// Runs a test of this program again, alone in a new process, with a case for it, and returns what it printed.
fn in_new_process(test: &str, case: &str, place: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .env(PLACE, place)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let signal = output.status.signal();
    assert!(output.status.success(), "case {case}, signal {signal:?}:\n{said}");
    said
}

/// The case of this process, and its place; none in the process that starts the others.
fn case() -> Option<(String, PathBuf)> {
    Some((std::env::var(CASE).ok()?, std::env::var_os(PLACE)?.into()))
}

/// Sets the soft limit of a resource; the hard limit stays.
fn limit(resource: libc::__rlimit_resource_t, to: u64) {
    let mut found = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `found` is there for both calls.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &mut found), 0);
        found.rlim_cur = to.min(found.rlim_max);
        assert_eq!(libc::setrlimit(resource, &found), 0);
    }
}

/// The number that the next descriptor gets.
fn next_descriptor() -> u64 {
    let file = std::fs::File::open("/dev/null").unwrap();
    file.as_raw_fd() as u64
}

#[test]
fn store_opens_once_there_are_descriptors_again_whichever_one_was_missing() {
    const NAME: &str = "store_opens_once_there_are_descriptors_again_whichever_one_was_missing";
    let Some((spare, place)) = case() else {
        let place = Place::new();
        let opened = |spare: u64| {
            let path = place.beside(&spare.to_string());
            in_new_process(NAME, &spare.to_string(), &path).contains("opened at once")
        };
        let enough = (0..100).find(|&spare| opened(spare)).expect("so many are enough");
        assert!(enough > 5, "{enough} descriptors were enough");
        return;
    };
    let spare: u64 = spare.parse().unwrap();
    let options = || by_hand().maintenance(duramen::Maintenance::Background);
    limit(libc::RLIMIT_NOFILE, next_descriptor() + spare);
    let mut was_refused = false;
    for _ in 0..3 {
        match options().open(&place) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), Kind::Retry, "{error}");
                was_refused = true;
            }
        }
    }
    limit(libc::RLIMIT_NOFILE, 256);
    let store = options().open(&place).unwrap();
    store.map("map").unwrap().put(b"key", b"value").unwrap();
    store.close().unwrap();
    let store = Options::new().open(&place).unwrap();
    assert_eq!(store.map("map").unwrap().get(b"key").unwrap().unwrap(), b"value");
    if !was_refused {
        println!("opened at once");
    }
}
