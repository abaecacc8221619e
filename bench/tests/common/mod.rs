//! Shared code of the test suites: calls the lab in a separate directory that is removed afterwards.

// Each suite is a separate crate and uses only a part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory for one test.
pub struct Place(PathBuf);

impl Place {
    pub fn new() -> Place {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lab-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a new directory");
        Place(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns a command for the lab with these arguments, working in this directory.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.args(arguments).current_dir(&self.0);
        command
    }

    pub fn lab(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the lab starts")
    }

    /// Runs `lab run` with these arguments; results go to `results.json`.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let own = ["--json", "results.json", "--directory", "."];
        self.lab(&[&["run"], arguments, &own].concat())
    }

    /// Returns a command for one cell in its own process, with its store in `store`.
    pub fn once(&self, workload: &str, peer: &str, class: &str, more: &[&str]) -> Command {
        std::fs::create_dir(self.file("store")).expect("a directory");
        let own = ["once", workload, "--peer", peer, "--durability", class];
        let place = ["--seed", "5", "--directory", "store"];
        self.command(&[&own[..], &place, more].concat())
    }

    pub fn results(&self) -> serde_json::Value {
        let bytes = std::fs::read(self.file("results.json")).expect("results");
        serde_json::from_slice(&bytes).expect("JSON")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A leftover directory in the temporary directory is not a reason to fail a test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether the drivers in Java can be built here. Where tests run before a change lands, they must be.
pub fn has_java() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    let missing = ["java", "mvn"].into_iter().find(|program| !has(program));
    let Some(missing) = missing else { return true };
    assert!(
        std::env::var_os("LAB_TOOLS_REQUIRED").is_none(),
        "{missing} is missing: the drivers in Java cannot be tested"
    );
    eprintln!("n/a: {missing} is not installed, so the drivers in Java are not tested here");
    false
}

/// The drivers in Java.
pub const JAVA: [&str; 2] = ["lmdbjava", "rocksdbjni"];

/// Whether the driver in Go can be built here against a local library. The tests do not use a registry's version, so
/// that no test depends on a registry.
pub fn has_mmcmap() -> bool {
    let has_source = std::env::var_os("LAB_MMCMAP_SOURCE").is_some();
    if !has_source {
        eprintln!("n/a: LAB_MMCMAP_SOURCE names no directory, so the driver in Go is not tested here");
    }
    has_source
}
