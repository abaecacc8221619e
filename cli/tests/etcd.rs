//! Clients of etcd use `duramen etcd` unchanged: etcd's command line client, its Go client, Python clients, and etcd's own tests.
//!
//! `etcd/suite.txt` names each of etcd's tests, whether it passes, and why it does not. `DURAMEN_UPDATE=1` writes it again. A test
//! that passed once has to pass. `common/toolchains.rs` says when tests are skipped.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::BINARY;
use common::toolchains::{Go, output_if_there, python, run, told, unless_skipped};
use serde_json::Value;

fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd")
}

/// A server in the place of etcd. It is killed when it is dropped.
struct Etcd {
    process: Child,
    /// Host and port.
    place: String,
}

impl Etcd {
    fn start(directory: &Path, place: &str) -> Etcd {
        let mut process = Command::new(BINARY)
            .args(["etcd", "--json", "--log-level", "off", "--listen-client-urls"])
            .arg(format!("http://{place}"))
            .arg("--data-dir")
            .arg(directory.join("member"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = process.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(told["message"], "ready to serve client requests");
        let place = told["etcd"][0].as_str().unwrap().trim_start_matches("http://");
        Etcd {
            process,
            place: place.into(),
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The Go module of these tests; it has etcd's client, command line client and tests.
fn go() -> Result<Go, String> {
    Go::new(&files().join("go"))
}

#[test]
fn etcds_go_client_sees_what_it_expects_also_when_the_server_is_killed() {
    let Some(go) = unless_skipped("etcd's Go client", go()) else {
        return;
    };
    run(&mut go.command(&["vet", "./client"]));
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("client");
    run(go.command(&["build", "-o"]).arg(&program).arg("./client"));
    let server = Etcd::start(directory.path(), "127.0.0.1:0");
    let mut client = Command::new(program);
    client.arg(&server.place);
    run_through_a_kill(client, server, directory.path());
}

/// Runs a program that prints "kill" when it wants its server killed. The server comes back, and the program gets a line.
fn run_through_a_kill(mut client: Command, server: Etcd, directory: &Path) {
    let place = server.place.clone();
    let mut client = client
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let first = lines.next().map(Result::unwrap);
    if first.as_deref() == Some("kill") {
        drop(server);
        let _server = Etcd::start(directory, &place);
        let mut stdin: ChildStdin = client.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        let last = lines.next().map(Result::unwrap);
        let ended = client.wait_with_output().unwrap();
        assert_eq!(last.as_deref(), Some("all as expected"), "{}", told(&ended));
        return;
    }
    let ended = client.wait_with_output().unwrap();
    panic!("{first:?}\n{}", told(&ended));
}

#[test]
fn pythons_clients_of_etcd_see_what_they_expect() {
    for (package, requirements) in [("etcd3", "requirements.txt"), ("aetcd", "requirements-aetcd.txt")] {
        let what = format!("{package} for Python");
        let requirements = files().join("python").join(requirements);
        let Some((python, _lock)) = unless_skipped(&what, python(&requirements)) else {
            continue;
        };
        let directory = tempfile::tempdir().unwrap();
        let server = Etcd::start(directory.path(), "127.0.0.1:0");
        let (host, port) = server.place.split_once(':').unwrap();
        let script = files().join("python").join(format!("with_{package}.py"));
        let mut client = Command::new(python);
        client.arg("-B").arg(script).args([host, port]);
        run_through_a_kill(client, server, directory.path());
    }
}

/// A command of etcd's command line client.
fn etcdctl(program: &Path, place: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    // With a scheme, clients before 3.5 send an authority to `status` and `defrag` that is none, and HTTP/2 refuses it.
    command.arg(format!("--endpoints={place}")).args(arguments);
    command
}

/// A command of etcd's command line client that goes on: it watches, holds a lock, or keeps a lease alive.
struct Etcdctl {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Etcdctl {
    fn start(program: &Path, place: &str, arguments: &[&str]) -> Etcdctl {
        let mut process = etcdctl(program, place, arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Etcdctl { process, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("etcdctl ended").unwrap()
    }

    /// Ends it as an operator does.
    fn interrupt(mut self) {
        let pid = self.process.id().to_string();
        // Not SIGINT, which a child ignores where a shell has started the tests in the background.
        run(Command::new("kill").args(["-TERM", &pid]));
        self.process.wait().unwrap();
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs etcd's command line client through what an operator does by hand.
fn run_etcdctl(program: &Path) {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Etcd::start(directory.path(), "127.0.0.1:0");
    let place = server.place.clone();
    let transaction = |input: &str| {
        let mut process = etcdctl(program, &place, &["txn"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        told(&process.wait_with_output().unwrap())
    };
    let go_on = |arguments: &[&str]| Etcdctl::start(program, &place, arguments);
    let etcdctl = |arguments: &[&str]| run(&mut etcdctl(program, &place, arguments));
    assert_eq!(etcdctl(&["put", "a/1", "one"]), "OK\n");
    assert_eq!(etcdctl(&["put", "a/1", "two", "--prev-kv"]), "OK\na/1\none\n");
    assert_eq!(etcdctl(&["get", "a/1", "--rev=2", "--print-value-only"]), "one\n");
    assert_eq!(etcdctl(&["get", "a/", "--prefix", "--keys-only"]), "a/1\n\n");
    let granted = etcdctl(&["lease", "grant", "60"]);
    let lease = granted.split_whitespace().nth(1).unwrap().to_string();
    assert_eq!(etcdctl(&["put", "leased", "x", "--lease", &lease]), "OK\n");
    assert!(etcdctl(&["lease", "timetolive", &lease, "--keys"]).contains("attached keys([leased])"));
    assert!(etcdctl(&["lease", "keep-alive", "--once", &lease]).contains("keepalived with TTL(60)"));
    assert!(etcdctl(&["endpoint", "health"]).contains("is healthy"));
    assert!(etcdctl(&["endpoint", "status"]).contains(&place));
    assert!(etcdctl(&["member", "list"]).contains("default"));
    assert!(etcdctl(&["defrag"]).contains("Finished defragmenting"));
    assert_eq!(etcdctl(&["alarm", "list"]), "");
    assert_eq!(etcdctl(&["lock", "name", "echo", "held"]), "held\n");

    // What goes on while the server is killed.
    let mut watch = go_on(&["watch", "a/", "--prefix", "--rev=2"]);
    let mut seen = |value: &str| assert_eq!([watch.line(), watch.line(), watch.line()], ["PUT", "a/1", value]);
    seen("one");
    seen("two");
    let mut kept = go_on(&["lease", "keep-alive", &lease]);
    assert!(kept.line().ends_with("keepalived with TTL(60)"));
    let mut lock = go_on(&["lock", "held"]);
    let held = lock.line();
    let mut elected = go_on(&["elect", "leader", "first"]);
    let first = elected.line();
    assert_eq!(elected.line(), "first");
    let mut other = go_on(&["elect", "leader", "second"]);
    drop(server);
    server = Etcd::start(directory.path(), &place);
    assert_eq!(etcdctl(&["put", "a/1", "three"]), "OK\n");
    seen("three");
    assert!(kept.line().ends_with("keepalived with TTL(60)"));
    kept.interrupt();
    assert_eq!(etcdctl(&["get", &held, "--keys-only"]), format!("{held}\n\n"));
    lock.interrupt();
    assert_eq!(etcdctl(&["get", "held/", "--prefix"]), "");
    let mut listener = go_on(&["elect", "--listen", "leader"]);
    assert_eq!([listener.line(), listener.line()], [first.clone(), "first".into()]);
    elected.interrupt();
    let second = other.line();
    assert_eq!(other.line(), "second");
    assert!(second != first && second.starts_with("leader/"));
    assert_eq!([listener.line(), listener.line()], [second, "second".into()]);
    other.interrupt();
    listener.interrupt();

    // Conditions, what is done if they hold, what is done if not; an empty line ends each.
    let buy = "value(\"a/1\") = \"three\"\n\nput a/1 four\nget a/1\n\nget a/1\n\n";
    assert_eq!(transaction(buy), "SUCCESS\n\nOK\n\na/1\nfour\n");
    assert_eq!(transaction(buy), "FAILURE\n\na/1\nfour\n");
    assert!(etcdctl(&["lease", "revoke", &lease]).contains("revoked"));
    assert_eq!(etcdctl(&["get", "leased"]), "");
    assert_eq!(etcdctl(&["compact", "3"]), "compacted revision 3\n");
    assert_eq!(etcdctl(&["del", "a/", "--prefix"]), "1\n");
    drop(server);
}

#[test]
fn etcdctl_of_the_system_works() {
    let found = match output_if_there(Command::new("etcdctl").arg("version")) {
        Some(_) => Ok(()),
        None => Err("there is no etcdctl".to_string()),
    };
    if unless_skipped("etcdctl of the system", found).is_some() {
        run_etcdctl("etcdctl".as_ref());
    }
}

/// Why a test of etcd does not pass.
fn reason_of(test: &str, text: &str) -> &'static str {
    match test {
        _ if text.contains("names several members") => "it needs several members",
        _ if test.contains("Auth") || test.contains("Role") || test.contains("User") => "it needs users and roles",
        _ if test.starts_with("TestMember") => "it changes the members",
        _ => "",
    }
}

/// What the tests of etcd did: "pass", "skip", or "fail" with the reason.
fn run_suite(etcdctl: &Path, suite: &Path, scratch: &Path) -> BTreeMap<String, String> {
    let binaries = scratch.join("bin");
    fs::create_dir(&binaries).unwrap();
    symlink(BINARY, binaries.join("etcd")).unwrap();
    symlink(etcdctl, binaries.join("etcdctl")).unwrap();
    // The tests look for their files two directories above.
    let below = scratch.join("tests/common");
    fs::create_dir_all(&below).unwrap();
    let tests = run(Command::new(suite).args(["-test.list", "."]).current_dir(&below));
    let mut results = BTreeMap::new();
    for test in tests.lines().filter(|line| line.starts_with("Test")) {
        // It waits for what Go's HTTP/2 writes to the log of etcd, and panics at a random moment where that does not come.
        if test == "TestAuthority" {
            results.insert(test.into(), "fail: it reads the log of Go's HTTP/2".into());
            continue;
        }
        // One panic would end all of them, so each runs alone.
        let output = Command::new(suite)
            .args(["-test.v", "-test.timeout=100s", "-test.run"])
            .arg(format!("^{test}$"))
            .arg(format!("-bin-dir={}", binaries.display()))
            .env("E2E_TEST_MINIMAL", "1")
            .current_dir(&below)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = told(&output);
        for line in text.lines() {
            let Some((how, rest)) = line
                .trim_start()
                .strip_prefix("--- ")
                .and_then(|line| line.split_once(": "))
            else {
                continue;
            };
            let name = rest.split_once(" (").map_or(rest, |(name, _)| name);
            let how = match how {
                "FAIL" => format!("fail: {}", reason_of(name, &text)),
                how => how.to_lowercase(),
            };
            results.insert(name.to_string(), how);
        }
    }
    // A test with parts says nothing that its parts do not say.
    let names: Vec<_> = results.keys().cloned().collect();
    let is_whole = |name: &String| names.iter().any(|other| other.starts_with(&format!("{name}/")));
    results.retain(|name, _| !is_whole(name));
    results
}

#[test]
fn etcds_own_tests_pass_as_the_list_says() {
    let Some(go) = unless_skipped("etcd's own tests", go()) else {
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let (etcdctl, suite) = (scratch.path().join("etcdctl"), scratch.path().join("suite"));
    run(go
        .command(&["build", "-o"])
        .arg(&etcdctl)
        .arg("go.etcd.io/etcd/etcdctl/v3"));
    let mut build = go.command(&["test", "-c", "-tags", "e2e", "-o"]);
    run(build.arg(&suite).arg("go.etcd.io/etcd/tests/v3/common"));
    run_etcdctl(&etcdctl);
    let results = run_suite(&etcdctl, &suite, scratch.path());
    let list: String = results.iter().map(|(name, how)| format!("{name}  {how}\n")).collect();
    let path = files().join("suite.txt");
    if std::env::var_os("DURAMEN_UPDATE").is_some() {
        fs::write(&path, &list).unwrap();
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    let kept: BTreeMap<_, _> = kept.lines().filter_map(|line| line.split_once("  ")).collect();
    for (name, how) in &results {
        let kept = kept.get(&name[..]).copied();
        assert_eq!(
            Some(&how[..]),
            kept,
            "{name}: DURAMEN_UPDATE=1 writes cli/tests/etcd/suite.txt again"
        );
    }
    assert_eq!(results.len(), kept.len(), "a test of the list is gone");
    assert!(!results.values().any(|how| how == "fail: "), "{list}");
}
