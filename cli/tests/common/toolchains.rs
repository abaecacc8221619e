//! Programs in other languages, for the suites that run them.
//!
//! Packages stay in a cache below the target directory, so only the first run installs them. A test is skipped, and says
//! so, when there is no toolchain, or when packages are missing and there is no network. Any other failure fails it.

#![allow(dead_code, reason = "each suite uses some of it")]

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What package managers print when they reach no server.
const NO_NETWORK: [&str; 7] = [
    "NewConnectionError",
    "ReadTimeoutError",
    "ConnectTimeoutError",
    "ConnectionResetError",
    "dial tcp",
    "i/o timeout",
    "connection refused",
];

/// A directory of the cache. Two test runs at a time do not use it: the second one waits for the lock.
fn cache(name: &str) -> (PathBuf, File) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples").join(name);
    fs::create_dir_all(&directory).unwrap();
    let lock = File::create(directory.join("lock")).unwrap();
    lock.lock().unwrap();
    (directory, lock)
}

/// Runs a program. `None`: there is no such program.
pub fn output_if_there(command: &mut Command) -> Option<Output> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{command:?}: {error}"),
    }
}

pub fn told(output: &Output) -> String {
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
}

/// Runs a program and requires success.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = told(&output);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// Runs a program that fetches packages. An error is the reason to skip: there is no network.
pub fn fetch(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = told(&output);
    match output.status.success() {
        true => Ok(()),
        false if NO_NETWORK.iter().any(|sign| text.contains(sign)) => {
            Err("the packages are not in the cache, and there is no network".into())
        }
        false => panic!("{command:?}: {}\n{text}", output.status),
    }
}

/// Python with the packages of a file. An error is the reason to skip.
pub fn python(requirements: &Path) -> Result<(PathBuf, File), String> {
    let probe = "import sys, ensurepip, venv; print(sys.version); sys.exit(sys.version_info < (3, 10))";
    let Some(probed) = output_if_there(Command::new("python3").args(["-c", probe])) else {
        return Err("there is no python3".into());
    };
    if !probed.status.success() {
        return Err("python3 is older than 3.10, or has no venv".into());
    }
    let mut hasher = DefaultHasher::new();
    (&probed.stdout, fs::read(requirements).unwrap()).hash(&mut hasher);
    let (cache, lock) = cache("python");
    let venv = cache.join(format!("venv-{:016x}", hasher.finish()));
    let (python, is_complete) = (venv.join("bin/python"), venv.join("complete"));
    if !is_complete.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
        let pip = [
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--retries",
            "1",
            "-r",
        ];
        fetch(Command::new(&python).args(pip).arg(requirements))?;
        File::create(is_complete).unwrap();
    }
    Ok((python, lock))
}

/// The second number of a version: 26 of "1.26.0".
fn minor(version: &str) -> Option<u32> {
    let digits = version
        .split('.')
        .nth(1)?
        .split(|letter: char| !letter.is_ascii_digit())
        .next()?;
    digits.parse().ok()
}

/// Go for a module, with a cache of its own, which has the packages of the module. An error is the reason to skip.
pub struct Go {
    module: PathBuf,
    pub cache: PathBuf,
    _lock: File,
}

impl Go {
    pub fn new(module: &Path) -> Result<Go, String> {
        let (cache, lock) = cache("go");
        let toolchain = Go {
            module: module.into(),
            cache,
            _lock: lock,
        };
        let Some(version) = output_if_there(
            Command::new("go")
                .args(["env", "GOVERSION"])
                .env("GOTOOLCHAIN", "local"),
        ) else {
            return Err("there is no go".into());
        };
        let needed = fs::read_to_string(module.join("go.mod")).unwrap();
        let needed = needed.lines().find_map(|line| line.strip_prefix("go ")).unwrap();
        let version = told(&version);
        if minor(version.trim_start_matches("go")) < minor(needed) {
            return Err(format!("go is {}, and go.mod asks for {needed}", version.trim()));
        }
        fetch(&mut toolchain.command(&["mod", "download"]))?;
        Ok(toolchain)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("go");
        command.args(arguments);
        self.set_up(&mut command);
        command
    }

    pub fn set_up(&self, command: &mut Command) {
        command
            .current_dir(&self.module)
            .env("GOPATH", self.cache.join("path"))
            .env("GOCACHE", self.cache.join("cache"))
            // Programs are built once and run for seconds, so they are not optimised and cannot be debugged.
            .env(
                "GOFLAGS",
                "-mod=readonly -modcacherw '-gcflags=all=-N -l -dwarf=false' -ldflags=-s",
            )
            .env("GOTOOLCHAIN", "local")
            .env("GOWORK", "off")
            .env_remove("GOMODCACHE");
    }
}

/// The value, or a line that says why this test is skipped. The line goes around the capture of the test's output.
pub fn unless_skipped<T>(what: &str, available: Result<T, String>) -> Option<T> {
    match available {
        Ok(available) => Some(available),
        Err(why) => {
            let line = format!("SKIPPED: {what}: {why}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            None
        }
    }
}
