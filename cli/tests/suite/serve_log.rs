//! What `duramen serve` logs to standard error.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duramen::{Store, TransactionOptions};
use duramen_proto::v1::maps_client::MapsClient;
use duramen_proto::v1::*;
use serde_json::Value;
use tonic::transport::Endpoint;

fn start(directory: &Path, arguments: &[&str]) -> (Child, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_duramen"))
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(directory.join("store"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    (process, told["listening"].as_str().unwrap().to_string())
}

/// Ends a server, and returns its standard error.
fn stop(mut server: Child) -> String {
    let process = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let mut text = String::new();
    server.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(server.wait().unwrap().success());
    text
}

fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(body)
}

#[test]
fn the_start_and_the_stop_are_logged_as_objects_and_a_slow_call_with_its_method() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    store.map("stock").unwrap();
    let arguments = [
        "--log-format",
        "json",
        "--slow-call-ms",
        "1",
        "--metrics-listen",
        "127.0.0.1:0",
    ];
    let (server, place) = start(directory.path(), &arguments);
    run(async {
        let channel = Endpoint::from_shared(place.clone()).unwrap().connect().await.unwrap();
        let mut maps = MapsClient::new(channel);
        // Another process holds writers up for longer than a call may take.
        let held = store.begin(TransactionOptions::new().exclusive()).unwrap();
        let put = PutRequest {
            map: "stock".into(),
            key: "secret-key".into(),
            value: "secret-value".into(),
            ..Default::default()
        };
        let put = tokio::spawn(async move { maps.put(put).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(held);
        put.await.unwrap().unwrap();
    });
    let text = stop(server);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let with = |message: &str| {
        let found: Vec<_> = lines.iter().filter(|line| line["message"] == message).collect();
        assert!(!found.is_empty(), "no line says {message:?}: {text}");
        found
    };
    let started = with("server started")[0];
    assert_eq!(started["level"], "INFO");
    assert_eq!(format!("http://{}", started["tcp"].as_str().unwrap()), place);
    assert!(started["metrics"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(started["recovery_ms"].is_f64());
    assert!(started["data_dir"].as_str().unwrap().ends_with("store"));
    with("server stops");
    with("server stopped");
    let slow = with("slow call")[0];
    assert_eq!(slow["level"], "WARN");
    assert_eq!(slow["method"], "duramen.v1.Maps/Put");
    assert_eq!(slow["code"], "OK");
    assert!(slow["duration_ms"].as_f64().unwrap() > 1.0);
    assert!(slow["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn the_level_decides_what_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let (server, _) = start(directory.path(), &[]);
    let text = stop(server);
    let started = text.lines().find(|line| line.contains("server started"));
    assert!(started.is_some_and(|line| line.contains(" INFO ")), "{text}");
    for level in ["off", "warn"] {
        let (server, _) = start(directory.path(), &["--log", level]);
        let text = stop(server);
        assert!(!text.contains("server started"), "{text}");
    }
}

#[test]
fn refused_connections_are_logged_once_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let (server, place) = start(directory.path(), &["--max-connections", "1", "--log-format", "json"]);
    let address = place.strip_prefix("http://").unwrap();
    let held = TcpStream::connect(address).unwrap();
    for _ in 0..3 {
        let mut refused = TcpStream::connect(address).unwrap();
        assert_eq!(refused.read(&mut [0]).unwrap(), 0, "it is closed");
    }
    drop(held);
    let text = stop(server);
    let refused: Vec<_> = text
        .lines()
        .filter(|line| line.contains("connection refused"))
        .collect();
    // Three connections take less than a second, or else each has its line with its count.
    let lines = refused.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let left_out: u64 = lines.map(|line| line["left_out"].as_u64().unwrap()).sum();
    assert!(!refused.is_empty() && refused.len() as u64 + left_out <= 3, "{text}");
}
