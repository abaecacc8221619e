//! The examples in other languages run against a server, when their toolchain is there.
//!
//! Packages stay in a cache below the target directory, so only the first run installs them. A test is skipped, and says
//! so, when there is no toolchain, or when packages are missing and there is no network. Any other failure fails it.

mod common;

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::Server;

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

/// A server on a fresh store.
fn server(directory: &tempfile::TempDir) -> (Server, String) {
    let store = directory.path().join("store");
    let server = Server::start_with(&store, &["--log", "off", "--listen", "127.0.0.1:0"]);
    let address = server.place.trim_start_matches("http://").to_string();
    (server, address)
}

fn examples(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(language)
}

fn proto_files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/duramen/v1");
    let mut files: Vec<_> = directory
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "proto"));
    files.sort();
    files
}

/// A directory of the cache. Two test runs at a time do not use it: the second one waits for the lock.
fn cache(name: &str) -> (PathBuf, File) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples").join(name);
    fs::create_dir_all(&directory).unwrap();
    let lock = File::create(directory.join("lock")).unwrap();
    lock.lock().unwrap();
    (directory, lock)
}

/// Runs a program. `None`: there is no such program.
fn output_if_there(command: &mut Command) -> Option<Output> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{command:?}: {error}"),
    }
}

fn told(output: &Output) -> String {
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
}

/// Runs a program and requires success.
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = told(&output);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// Runs a program that fetches packages. An error is the reason to skip: there is no network.
fn fetch(command: &mut Command) -> Result<(), String> {
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

/// Python with the packages of the example. An error is the reason to skip.
fn python() -> Result<(PathBuf, File), String> {
    let requirements = examples("python").join("requirements.txt");
    let probe = "import sys, ensurepip, venv; print(sys.version); sys.exit(sys.version_info < (3, 10))";
    let Some(probed) = output_if_there(Command::new("python3").args(["-c", probe])) else {
        return Err("there is no python3".into());
    };
    if !probed.status.success() {
        return Err("python3 is older than 3.10, or has no venv".into());
    }
    let mut hasher = DefaultHasher::new();
    (&probed.stdout, fs::read(&requirements).unwrap()).hash(&mut hasher);
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
        fetch(Command::new(&python).args(pip).arg(&requirements))?;
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

/// Go with a cache of its own, which has the packages of the example. An error is the reason to skip.
struct Go {
    cache: PathBuf,
    _lock: File,
}

impl Go {
    fn new() -> Result<Go, String> {
        let (cache, lock) = cache("go");
        let toolchain = Go { cache, _lock: lock };
        let Some(version) = output_if_there(
            Command::new("go")
                .args(["env", "GOVERSION"])
                .env("GOTOOLCHAIN", "local"),
        ) else {
            return Err("there is no go".into());
        };
        let needed = fs::read_to_string(examples("go").join("go.mod")).unwrap();
        let needed = needed.lines().find_map(|line| line.strip_prefix("go ")).unwrap();
        let version = told(&version);
        if minor(version.trim_start_matches("go")) < minor(needed) {
            return Err(format!("go is {}, and go.mod asks for {needed}", version.trim()));
        }
        fetch(&mut toolchain.command(&["mod", "download"]))?;
        Ok(toolchain)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("go");
        command.args(arguments);
        self.set_up(&mut command);
        command
    }

    fn set_up(&self, command: &mut Command) {
        command
            .current_dir(examples("go"))
            .env("GOPATH", self.cache.join("path"))
            .env("GOCACHE", self.cache.join("cache"))
            .env("GOFLAGS", "-mod=readonly -modcacherw")
            .env("GOTOOLCHAIN", "local")
            .env("GOWORK", "off")
            .env_remove("GOMODCACHE");
    }
}

/// The value, or a line that says why this test is skipped. The line goes around the capture of the test's output.
fn unless_skipped<T>(what: &str, available: Result<T, String>) -> Option<T> {
    match available {
        Ok(available) => Some(available),
        Err(why) => {
            let line = format!("SKIPPED: {what}: {why}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            None
        }
    }
}

fn assert_all_shown(text: &str) {
    for expected in [
        "published: offsets",
        "packed: every message before offset 4 is acknowledged",
        "sold: 1 apple, 11 left, announced at offset 0",
        "refused: MAP_NOT_FOUND: ",
        "refused: KEY_REUSED: ",
        "all as expected",
    ] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
}

#[test]
fn the_python_example_runs() {
    let Some((python, _lock)) = unless_skipped("the example in Python", python()) else {
        return;
    };
    let generated = tempfile::tempdir().unwrap();
    let out = |name: &str| format!("--{name}={}", generated.path().display());
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    run(Command::new(&python)
        .args(["-m", "grpc_tools.protoc", "-I"])
        .arg(proto)
        .args([out("python_out"), out("pyi_out"), out("grpc_python_out")])
        .args(proto_files()));
    let directory = tempfile::tempdir().unwrap();
    let (_server, address) = server(&directory);
    let text = run(Command::new(&python)
        .arg("-B")
        .arg(examples("python").join("shop.py"))
        .arg(&address)
        .env("PYTHONPATH", generated.path()));
    assert_all_shown(&text);
}

#[test]
fn the_go_example_runs() {
    let Some(toolchain) = unless_skipped("the example in Go", Go::new()) else {
        return;
    };
    run(&mut toolchain.command(&["vet", "./..."]));
    let program = tempfile::tempdir().unwrap();
    let program = program.path().join("shop");
    run(toolchain.command(&["build", "-o"]).arg(&program).arg("."));
    let directory = tempfile::tempdir().unwrap();
    let (_server, address) = server(&directory);
    assert_all_shown(&run(Command::new(&program).arg(&address)));
}

#[test]
fn the_go_example_has_the_code_of_the_proto_files() {
    let what = "whether the generated Go code is that of the .proto files";
    let Some((python, _python_lock)) = unless_skipped(what, python()) else {
        return;
    };
    let Some(toolchain) = unless_skipped(what, Go::new()) else {
        return;
    };
    let generated = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    toolchain.set_up(&mut command);
    command
        .arg("generate.sh")
        .arg(generated.path())
        .env("PROTOC", format!("{} -m grpc_tools.protoc", python.display()));
    run(&mut command);
    // The first lines of a file name the version of protoc, which makes no difference.
    let code = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let is_version = |line: &&str| line.starts_with("//") && line.contains("protoc ");
        text.lines()
            .filter(|line| !is_version(line))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    let names = |directory: &Path| {
        let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    let kept = examples("go").join("duramenv1");
    assert_eq!(names(&kept), names(generated.path()), "run examples/go/generate.sh");
    for name in names(&kept) {
        let is_alike = code(kept.join(&name)) == code(generated.path().join(&name));
        assert!(is_alike, "{}: run examples/go/generate.sh", name.display());
    }
}
