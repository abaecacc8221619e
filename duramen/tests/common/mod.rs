//! Shared code of the test suites: stores to test on, seeds that can be replayed, and ways to write keys and read
//! ranges.
//!
//! Nothing here depends on the claims of a suite; every suite uses a part of it.

#![allow(dead_code, reason = "each suite is a program of its own and uses a part of this")]

use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use duramen::{Cursor, Durability, Maintenance, Options, Store};

/// A pair in the form that tests compare.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Returns the seed from `DURAMEN_SEED`, or a random seed. Prints it, so that a failure can be replayed.
pub fn seed() -> u64 {
    let given = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    seed
}

/// Returns a number from the environment, for runs longer than the everyday run.
pub fn number_from_environment(name: &str, otherwise: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(otherwise)
}

/// A directory that is removed at the end of the test, and the path of a store in it.
pub struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// Creates an empty place.
    pub fn new() -> Place {
        Place {
            directory: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    /// Returns the path of the store, which may not exist yet.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Returns a path beside the store.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Options with everything in the background and with generations so small that they fill up constantly. Freed pages
/// are overwritten, so that a reader that reads a freed page too late notices it.
pub fn restless() -> Options {
    Options::new()
        .durability(Durability::Written)
        .overwrite_freed(true)
        .generation_bytes(64 << 10, 128 << 10)
}

/// Options with maintenance only on request, and without waiting for the device.
pub fn by_hand() -> Options {
    Options::new()
        .durability(Durability::Written)
        .overwrite_freed(true)
        .maintenance(Maintenance::Manual)
}

/// Returns the rest of a cursor's range, forwards.
pub fn forwards(cursor: &mut Cursor<'_>) -> Vec<Pair> {
    let mut pairs = Vec::new();
    while let Some((key, value)) = cursor.next().unwrap() {
        pairs.push((key.to_vec(), value.to_vec()));
    }
    pairs
}

/// Returns the rest of a cursor's range, backwards.
pub fn backwards(cursor: &mut Cursor<'_>) -> Vec<Pair> {
    let mut pairs = Vec::new();
    while let Some((key, value)) = cursor.prev().unwrap() {
        pairs.push((key.to_vec(), value.to_vec()));
    }
    pairs
}

/// Returns pairs of text, for comparisons.
pub fn pairs(of: &[(&str, &str)]) -> Vec<Pair> {
    of.iter()
        .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

/// Fails if the checker finds any problem in the store.
#[track_caller]
pub fn assert_sound(store: &Store) {
    let report = store.check(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

/// Returns the space that the files of a directory take on the device, in total and each.
pub fn directory_bytes(path: &Path) -> (u64, Vec<(String, u64)>) {
    let entry = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (
            entry.file_name().to_string_lossy().into_owned(),
            entry.metadata().unwrap().blocks() * 512,
        )
    };
    let mut files: Vec<(String, u64)> = std::fs::read_dir(path).unwrap().map(entry).collect();
    files.sort();
    (files.iter().map(|(_, bytes)| bytes).sum(), files)
}

/// Drives a future on this thread: a minimal executor.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
