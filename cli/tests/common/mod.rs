//! Runs the real binary in a scratch directory, for all test suites of the command.

#![allow(dead_code, reason = "each suite uses some of it")]

pub mod toolchains;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_duramen");

/// A scratch directory in which commands run. Relative paths in their arguments resolve against it.
pub struct Scratch {
    directory: TempDir,
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ended {
    fn of(output: Output) -> Ended {
        Ended {
            code: output.status.code().expect("not ended by a signal"),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).expect("messages are UTF-8"),
        }
    }

    /// Standard output as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text is UTF-8")
    }

    /// Standard output as JSON, one value a line.
    pub fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        self.text().lines().map(parse).collect()
    }
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch {
            directory: tempfile::tempdir().expect("a scratch directory"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Prepares a program to run in the scratch directory, with the binary under test as `duramen` on its path.
    pub fn command(&self, program: &str) -> Command {
        let binaries = Path::new(BINARY).parent().expect("the binary lies in a directory");
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(self.directory.path())
            .env("PATH", format!("{}:{path}", binaries.display()))
            .env_remove("COLUMNS")
            .stdin(Stdio::null());
        command
    }

    /// Runs `duramen` with arguments.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        Ended::of(self.command(BINARY).args(arguments).output().expect("the binary runs"))
    }

    /// Runs `duramen` and requires success.
    pub fn done(&self, arguments: &[&str]) -> Ended {
        let ended = self.run(arguments);
        assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.stderr);
        ended
    }

    /// Runs `duramen` with `input` on standard input.
    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ended {
        let mut command = self.command(BINARY);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let mut stdin = child.stdin.take().expect("asked for");
        let input = input.to_vec();
        // A command that refuses its call does not read its input.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("the binary ends");
        writer.join().expect("the writer does not panic");
        Ended::of(output)
    }

    /// Runs a line in a shell that finds the binary.
    pub fn shell(&self, line: &str) -> Ended {
        let output = self
            .command("bash")
            .arg("-o")
            .arg("pipefail")
            .arg("-c")
            .arg(line)
            .output();
        Ended::of(output.expect("the shell runs"))
    }
}

/// A server process, and the place where it listens. It is killed when it is dropped.
pub struct Server {
    pub process: Child,
    pub place: String,
}

impl Server {
    /// Starts a server of a store on a free port.
    pub fn start(store: &Path) -> Server {
        Server::start_with(store, &["--listen", "127.0.0.1:0"])
    }

    pub fn start_with(store: &Path, arguments: &[&str]) -> Server {
        let mut process = Command::new(BINARY)
            .args(["serve", "--json", "--data-dir"])
            .arg(store)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let stdout = process.stdout.as_mut().expect("asked for");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let told: Value = serde_json::from_str(&line).expect("the server tells where it listens");
        let place = told["listening"].as_str().or(told["unix"].as_str());
        let place = place.expect("a place").to_string();
        Server { process, place }
    }

    pub fn kill(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The seed of a random test, from the environment or random. Prints the seed in both cases.
pub fn seed() -> u64 {
    let seed = std::env::var("DURAMEN_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("DURAMEN_SEED={seed}");
    seed
}

/// A `duramen etcd`, and the URL where it listens. It is killed when it is dropped.
pub struct EtcdServer {
    process: Child,
    pub url: String,
}

impl EtcdServer {
    /// Starts one on a free port.
    pub fn start(store: &Path) -> EtcdServer {
        EtcdServer::start_with(store, &["--listen-client-urls", "http://127.0.0.1:0"])
    }

    /// Starts one with arguments, of which one says where it listens.
    pub fn start_with(store: &Path, arguments: &[&str]) -> EtcdServer {
        EtcdServer::try_start_with(store, arguments).unwrap_or_else(|ended| panic!("{}", ended.stderr))
    }

    /// As [`EtcdServer::start_with`]; an error is the end of a server that did not start.
    pub fn try_start_with(store: &Path, arguments: &[&str]) -> Result<EtcdServer, Ended> {
        let mut process = Command::new(BINARY)
            .args(["etcd", "--json", "--log-level=off"])
            .args(arguments)
            .arg("--data-dir")
            .arg(store)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let stdout = process.stdout.as_mut().expect("asked for");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        if line.is_empty() {
            return Err(Ended::of(process.wait_with_output().expect("the binary ends")));
        }
        let told: Value = serde_json::from_str(&line).expect("the server tells where it listens");
        let url = told["etcd"][0].as_str().expect("a URL").to_string();
        Ok(EtcdServer { process, url })
    }

    /// What `etcdctl snapshot save` would write.
    pub fn snapshot(&self) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let client = duramen_proto::etcd::server::maintenance_client::MaintenanceClient::connect(self.url.clone());
            let mut client = client.await.expect("a connection");
            let request = duramen_proto::etcd::server::SnapshotRequest::default();
            let mut messages = client.snapshot(request).await.expect("a stream").into_inner();
            let (mut bytes, mut remaining) = (Vec::new(), None);
            while let Some(message) = messages.message().await.expect("a message") {
                assert!(message.blob.len() <= 32 << 10);
                if let Some(remaining) = remaining.filter(|remaining| *remaining > 0) {
                    assert_eq!(message.remaining_bytes + message.blob.len() as u64, remaining);
                }
                remaining = Some(message.remaining_bytes);
                bytes.extend_from_slice(&message.blob);
            }
            assert_eq!(bytes.len() % 4_096, 32, "pages and a SHA-256");
            bytes
        })
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
