//! Limits that the kernel sets on a process (`ulimit`): each is an error while it lasts, and no more once it is lifted.
//!
//! A limit counts for a whole process, and some state is made once in the life of a process. So each case runs in a
//! process of its own: the test program starts itself again, with the case in an environment variable.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use duramen_io::real_platform;

const CASE: &str = "DURAMEN_TEST_LIMIT_CASE";

/// Runs a test of this program again, alone in a new process, with a case for it.
fn in_new_process(test: &str, case: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let signal = output.status.signal();
    assert!(output.status.success(), "case {case}, signal {signal:?}:\n{said}");
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
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open("/dev/null").unwrap();
    file.as_raw_fd() as u64
}

#[test]
fn locks_can_be_taken_once_there_are_descriptors_again() {
    let directory = tempfile::tempdir().unwrap();
    let Ok(spare) = std::env::var(CASE) else {
        for spare in 0..=3 {
            in_new_process(
                "locks_can_be_taken_once_there_are_descriptors_again",
                &spare.to_string(),
            );
        }
        return;
    };
    let spare: u64 = spare.parse().unwrap();
    let storage = real_platform(directory.path()).unwrap().storage;
    limit(libc::RLIMIT_NOFILE, next_descriptor() + spare);
    for _ in 0..2 {
        // Two for a pipe, of which one stays, and one for the file.
        let refused = storage.byte_locks("lock").err();
        assert_eq!(refused.is_some(), spare < 2, "{spare} descriptors: {refused:?}");
    }
    limit(libc::RLIMIT_NOFILE, 256);
    storage.byte_locks("lock").unwrap();
}
