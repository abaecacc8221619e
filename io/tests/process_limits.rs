//! Limits that the kernel sets on a process (`ulimit`): each limit causes errors only while it is set.
//!
//! A limit applies to a whole process, and some state is created once per process. So each case runs in a separate
//! process: the test program starts itself again, with the case in an environment variable.

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use duramen_io::{OpenMode, real_platform};

const CASE: &str = "DURAMEN_TEST_LIMIT_CASE";

/// Runs a test of this program again, alone in a new process, with a case.
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
    // SAFETY: the call writes to `found`, and to nothing else.
    assert_eq!(unsafe { libc::getrlimit(resource, &mut found) }, 0);
    found.rlim_cur = to.min(found.rlim_max);
    // SAFETY: the call only reads `found`.
    assert_eq!(unsafe { libc::setrlimit(resource, &found) }, 0);
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
        // Two descriptors for a pipe, one of which stays, and one for the file.
        let refused = storage.byte_locks("lock").err();
        assert_eq!(refused.is_some(), spare < 2, "{spare} descriptors: {refused:?}");
    }
    limit(libc::RLIMIT_NOFILE, 256);
    storage.byte_locks("lock").unwrap();
}

#[test]
fn file_that_may_not_grow_is_a_full_disk_and_no_signal() {
    const NAME: &str = "file_that_may_not_grow_is_a_full_disk_and_no_signal";
    const LIMIT: u64 = 64 << 10;
    if std::env::var(CASE).is_err() {
        return in_new_process(NAME, "limited");
    }
    let directory = tempfile::tempdir().unwrap();
    let storage = real_platform(directory.path()).unwrap().storage;
    let files = [
        storage.open("file", OpenMode::Create).unwrap(),
        duramen_io::memory_file().unwrap(),
    ];
    let long = storage.open("long", OpenMode::Create).unwrap();
    long.write_zeros(0, 2 * LIMIT).unwrap();
    let long = storage.open("long", OpenMode::Write).unwrap();
    limit(libc::RLIMIT_FSIZE, LIMIT);
    let assert_refused = |done: std::io::Result<()>| {
        let error = done.expect_err("more than the limit");
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(duramen_io::is_size_limit(&error), "{error}");
        assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
    };
    for file in &files {
        assert_refused(file.write_at(&[1; 100], LIMIT - 99));
        assert_refused(file.allocate(LIMIT, 1));
        assert_refused(file.set_len(LIMIT + 1));
        assert_eq!(file.len().unwrap(), 0);
        // Up to the last byte.
        file.write_at(&[1; 100], LIMIT - 100).unwrap();
        file.allocate(0, LIMIT).unwrap();
        file.set_len(LIMIT).unwrap();
        assert_refused(file.write_zeros(0, LIMIT + 1));
    }
    // A file that is already longer can be read, allocated inside, and cut.
    assert_refused(long.write_at(&[1], 2 * LIMIT - 1));
    long.allocate(LIMIT, LIMIT).unwrap();
    long.set_len(2 * LIMIT - 1).unwrap();
    limit(libc::RLIMIT_FSIZE, u64::MAX);
    for file in files {
        file.write_at(&[1; 100], LIMIT).unwrap();
    }
    long.write_at(&[1], 2 * LIMIT - 2).unwrap();
}
