//! The lab as a whole, through its command line: every peer survives what its durability class says, and the results
//! come out in the form that is documented.

use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    let directory = std::env::temp_dir();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(arguments);
    if arguments[0] == "run" {
        command.arg("--directory").arg(directory);
    }
    command.output().expect("the lab starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Loads, closes, reopens, kills a writer and looks for what was acknowledged; an error there is exit code 1.
fn survives_kill(class: &str) -> String {
    let output = lab(&[
        "run",
        "open",
        "--scale",
        "0.0005",
        "--repeat",
        "1",
        "--durability",
        class,
    ]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", text(&output.stderr));
    report
}

#[test]
fn peers_of_class_written_lose_nothing_when_killed() {
    let report = survives_kill("written");
    assert!(
        report.contains("lmdb 1: killed after") && report.contains(" 0 of them lost"),
        "{report}"
    );
    assert!(report.contains("redb: n/a in open: has no class written"), "{report}");
}

#[test]
fn peers_of_class_synced_lose_nothing_when_killed() {
    let report = survives_kill("synced");
    assert!(report.contains("redb 1: killed after"), "{report}");
}

#[test]
fn class_none_of_redb_does_lose_writes_when_killed() {
    // Were this to fail, redb would have the class `written`, and its adapter should say so.
    let report = survives_kill("none");
    let note = report
        .lines()
        .find(|line| line.contains("redb 1: killed after"))
        .expect("a note");
    assert!(!note.contains(" 0 of them lost"), "{note}");
}

#[test]
fn json_has_everything_and_the_same_seed_is_kept() {
    let path = std::env::temp_dir().join(format!("lab-{}.json", std::process::id()));
    let path_text = path.to_str().expect("a path of text");
    let arguments = [
        "--peers",
        "btreemap,null",
        "--scale",
        "0.001",
        "--repeat",
        "2",
        "--seed",
        "77",
        "--json",
        path_text,
    ];
    let output = lab(&[&["run", "first"][..], &arguments].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
    std::fs::remove_file(&path).expect("the file is ours");
    assert_eq!(json["seed"], 77);
    assert!(json["commit"].is_string() && json["machine"]["kernel"].is_string());
    let runs = json["runs"].as_array().expect("runs");
    let order: Vec<&str> = runs.iter().filter_map(|run| run["peer"].as_str()).collect();
    assert_eq!(order, ["btreemap", "null", "null", "btreemap"], "the order alternates");
    assert_eq!(runs[0]["outcome"]["passed"]["phases"][0]["operations"], 1000);
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let output = lab(&["run", "first", "--peers", "nothing"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("duramen, lmdb, redb"),
        "{}",
        text(&output.stderr)
    );
    let output = lab(&["run", "nothing"]);
    assert!(
        text(&output.stderr).contains("first, synced-puts, open"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn list_shows_peers_with_versions_and_classes() {
    let list = text(&lab(&["list"]).stdout);
    for expected in ["synced-puts", "redb 4.", "LMDB 0.9.", "MDB_NOSYNC"] {
        assert!(list.contains(expected), "{expected} is missing in {list}");
    }
}
