//! Drivers: programs of other languages behind the line protocol. The lab's own driver serves honest and faulty peers
//! of the lab, and shows that the lab's end notices what it must. The tests use the drivers in Java where Java is
//! installed, and the driver in Go where `LAB_MMCMAP_SOURCE` names a directory with its library.

mod common;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use common::{JAVA, Place, has_java, has_mmcmap, text};
use serde_json::Value;

/// Runs one cell in its own process.
fn once(workload: &str, peer: &str, class: &str, more: &[&str]) -> Output {
    let place = Place::new();
    let output = place.once(workload, peer, class, more).output();
    output.expect("the lab starts")
}

fn record(workload: &str, peer: &str, class: &str, more: &[&str]) -> Value {
    let output = once(workload, peer, class, more);
    assert!(output.status.success(), "{workload} {peer}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a record")
}

/// Returns the phases by name: their work, or the reason why they did not run.
fn phases(record: &Value) -> BTreeMap<String, String> {
    let name = |value: &Value| value.as_str().expect("a name").to_string();
    let done = record["phases"].as_array().expect("phases").iter();
    let undone = record["unsupported"].as_array().expect("a list").iter();
    done.map(|phase| {
        (
            name(&phase["name"]),
            format!("{} {}", phase["operations"], phase["work"]),
        )
    })
    .chain(undone.map(|entry| (name(&entry[0]), name(&entry[1]))))
    .collect()
}

#[test]
fn served_peer_shows_the_same_rows_as_the_peer_itself() {
    for (workload, scale) in [("state/10k", "0.05"), ("map/100k", "0.01")] {
        let more = ["--scale", scale];
        let inside = phases(&record(workload, "lmdb", "written", &more));
        let outside = phases(&record(workload, "served-lmdb", "written", &more));
        assert_eq!(outside, inside, "{workload}");
        assert!(inside.len() >= 6, "{inside:?}");
    }
}

/// Runs workloads that drivers take no part in, because their operations would be measured one by one through the pipe.
/// They use scans, ranges, batches of deletes and compaction, and verify all of it.
fn passes_what_asks_for_everything(peer: &str) {
    for (workload, scale) in [("first", "0.002"), ("redb-table", "0.0004")] {
        let done = record(workload, peer, "written", &["--scale", scale]);
        assert!(
            done["phases"].as_array().is_some_and(|phases| phases.len() >= 5),
            "{peer}: {done}"
        );
    }
}

#[test]
fn everything_that_the_lab_asks_of_a_peer_works_through_the_protocol() {
    passes_what_asks_for_everything("served-lmdb");
}

#[test]
fn drivers_in_java_do_everything_that_the_lab_asks_of_a_peer() {
    if has_java() {
        JAVA.into_iter().for_each(passes_what_asks_for_everything);
    }
}

#[test]
fn numbers_of_a_driver_are_those_of_its_process_and_of_its_clock() {
    let record = record("state/10k", "served-lmdb", "written", &["--scale", "0.5"]);
    let phases = record["phases"].as_array().expect("phases");
    let write = &phases[0];
    assert_eq!(write["name"], "seq-write");
    let number = |phase: &Value, field: &str| phase[field].as_u64().unwrap_or_else(|| panic!("{field}: {phase}"));
    // The driver's process wrote 5,000 values of 100 bytes into a file with write calls.
    assert!(number(write, "write_call_bytes") >= 500_000, "{write}");
    assert!(number(write, "resident_bytes") > 1 << 20 && number(write, "process_cpu_nanos") > 0);
    let mixed = phases.iter().find(|phase| phase["name"] == "mixed").expect("a phase");
    let latency = |field: &str| mixed["latency"][field].as_u64().expect("nanoseconds");
    assert!(latency("p50") > 0 && latency("p50") <= latency("max"), "{mixed}");
    assert!(latency("max") <= number(mixed, "wall_nanos") * 1001 / 1000, "{mixed}");
    let counted: u64 = mixed["timeline"]["operations"]
        .as_array()
        .expect("steps")
        .iter()
        .filter_map(Value::as_u64)
        .sum();
    assert_eq!(counted, 5000);
}

#[test]
fn limit_of_the_cell_stops_a_driver_and_shows_how_far_it_came() {
    for workload in ["state/10k", "map/100k"] {
        let record = record(workload, "served-lmdb", "written", &["--limit", "0", "--scale", "0.01"]);
        let first = &record["phases"][0];
        assert_eq!(first["operations"], 0, "{first}");
        assert!(
            first["stopped_at_of"].as_u64().is_some_and(|planned| planned > 0),
            "{first}"
        );
        assert_eq!(record["phases"].as_array().map(Vec::len), Some(1), "{record}");
    }
}

/// Returns the lab's message about a driver whose run must fail.
fn caught(workload: &str, peer: &str, scale: &str) -> String {
    let output = once(workload, peer, "written", &["--scale", scale]);
    assert!(!output.status.success(), "{workload} did not notice {peer}");
    text(&output.stderr)
}

#[test]
fn driver_that_returns_stale_values_is_caught() {
    for (workload, scale) in [("state/10k", "0.1"), ("map/100k", "0.01")] {
        let error = caught(workload, "served-faulty-stale", scale);
        assert!(error.contains("key "), "{workload}: {error}");
    }
}

#[test]
fn driver_that_loses_writes_is_caught() {
    for (workload, scale) in [("state/10k", "1.0"), ("map/100k", "0.15")] {
        let error = caught(workload, "served-faulty-loses", scale);
        assert!(
            error.contains("stored and acknowledged, but is not there"),
            "{workload}: {error}"
        );
        let error = caught(workload, "served-lmdb+skips", "0.1");
        assert!(
            error.contains("stored and acknowledged, but is not there"),
            "{workload}: {error}"
        );
    }
}

#[test]
fn driver_that_does_not_delete_is_caught() {
    let error = caught("map/100k", "served-faulty-keeps-deleted", "0.01");
    assert!(error.contains("was deleted or never stored, but is there"), "{error}");
}

#[test]
fn driver_that_never_looks_at_what_it_reads_is_caught_before_anything_is_measured() {
    let error = caught("state/10k", "served-lmdb+blind", "0.1");
    assert!(error.contains("did not notice a wrong value"), "{error}");
}

#[test]
fn driver_that_looks_at_little_of_what_it_reads_is_caught_when_the_lab_reads_back() {
    for (workload, scale) in [("state/10k", "0.1"), ("map/100k", "0.01")] {
        let error = caught(workload, "served-faulty-stale+careless", scale);
        assert!(
            error.contains("key ") && !error.contains("in phase"),
            "{workload}: {error}"
        );
    }
}

#[test]
fn driver_that_dies_in_the_middle_fails_its_run_and_says_where() {
    let error = caught("state/10k", "served-lmdb+dies", "0.1");
    assert!(error.contains("served-lmdb+dies ended in the middle of run"), "{error}");
    assert!(
        error.contains("exit status: 3") && error.contains("in phase \"seq-read\""),
        "{error}"
    );
}

#[test]
fn driver_that_prints_rubbish_fails_its_run_and_is_quoted() {
    let error = caught("state/10k", "served-lmdb+rubbish", "0.1");
    assert!(error.contains("answered run with \"one, two, three\""), "{error}");
}

#[test]
fn acknowledged_writes_of_a_driver_survive_kill_and_a_driver_that_acknowledges_early_is_caught() {
    let kept = record("open", "served-lmdb", "written", &["--scale", "0.0005"]);
    assert!(kept["notes"].to_string().contains(" 0 of them lost"), "{kept}");
    let error = caught("open", "served-faulty-early", "0.0005");
    assert!(
        error.contains("after kill -9") && error.contains("not there"),
        "{error}"
    );
}

#[test]
fn driver_without_its_toolchain_is_shown_with_the_reason_and_fails_nothing() {
    let place = Place::new();
    let own = [
        "--json",
        "results.json",
        "--directory",
        ".",
        "--repeat",
        "1",
        "--scale",
        "0.01",
    ];
    let arguments = [
        &["run", "state/10k", "first", "--peers", "btreemap,lmdbjava,mmcmap"][..],
        &own,
    ]
    .concat();
    let output = place
        .command(&arguments)
        .env("PATH", "")
        .output()
        .expect("the lab starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let runs = place.results()["runs"].as_array().expect("runs").clone();
    let reason = |workload: &str, peer: &str| {
        let run = runs
            .iter()
            .find(|run| run["workload"] == workload && run["peer"] == peer);
        run.expect("a cell")["outcome"]["not_applicable"]
            .as_str()
            .expect("a reason")
            .to_string()
    };
    assert!(reason("state/10k", "lmdbjava").contains("java is not installed"));
    assert!(reason("state/10k", "mmcmap").contains("go is not installed"));
    assert!(reason("first", "lmdbjava").contains("do not take part"));
    let report = text(&output.stdout);
    assert!(report.contains("lmdbjava: n/a in state/10k"), "{report}");

    let listed = place
        .command(&["list"])
        .env("PATH", "")
        .output()
        .expect("the lab starts");
    let list = text(&listed.stdout);
    assert!(
        list.contains("lmdbjava") && list.contains("n/a: java is not installed"),
        "{list}"
    );
}

/// Makes a program of this name that prints a text and fails.
fn failing_program(path: &Path, says: &str) {
    std::fs::write(path, format!("#!/bin/sh\necho '{says}'; echo '{says}' >&2\nexit 1\n")).expect("a script");
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a program");
}

#[test]
fn driver_that_cannot_be_built_is_shown_with_what_the_build_said() {
    let place = Place::new();
    let tools = place.file("tools");
    std::fs::create_dir(&tools).expect("a directory");
    failing_program(&tools.join("java"), "not reached");
    failing_program(&tools.join("mvn"), "[ERROR] no such artifact");
    failing_program(&tools.join("go"), "go: no such module");
    // The drivers are built beside the binary. Beside the real binary they may already be built.
    let lab = place.file("lab");
    std::fs::hard_link(env!("CARGO_BIN_EXE_lab"), &lab)
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_lab"), &lab).map(drop))
        .expect("another lab");
    let output = Command::new(&lab)
        .arg("list")
        .env("PATH", &tools)
        .output()
        .expect("the lab starts");
    let list = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        list.contains("n/a: mvn package failed (exit status: 1): [ERROR] no such artifact"),
        "{list}"
    );
    assert!(
        list.contains("n/a: go build failed (exit status: 1): go: no such module"),
        "{list}"
    );
}

#[test]
fn open_loop_leaves_drivers_out_and_says_so() {
    let place = Place::new();
    let output = place.run(&[
        "map/100k",
        "--peers",
        "btreemap,mmcmap",
        "--scale",
        "0.0005",
        "--repeat",
        "1",
        "--rate",
        "1000",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("have no open loop"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn drivers_in_java_pass_their_workloads_with_the_rows_of_everybody() {
    if !has_java() {
        return;
    }
    for (workload, scale) in [("state/10k", "0.1"), ("map/100k", "0.02")] {
        let names = |peer: &str| phases(&record(workload, peer, "written", &["--scale", scale])).into_keys();
        let expected: Vec<String> = names("lmdb").collect();
        for peer in JAVA {
            assert!(names(peer).eq(expected.iter().cloned()), "{workload} {peer}");
        }
    }
}

#[test]
fn drivers_in_java_of_class_written_lose_nothing_when_killed() {
    if !has_java() {
        return;
    }
    for peer in JAVA {
        let kept = record("open", peer, "written", &["--scale", "0.0005"]);
        let notes = kept["notes"].to_string();
        assert!(
            notes.contains("killed after") && notes.contains(" 0 of them lost"),
            "{peer}: {kept}"
        );
    }
}

#[test]
fn drivers_in_java_state_their_versions_and_options() {
    if !has_java() {
        return;
    }
    let list = text(&Place::new().lab(&["list"]).stdout);
    for expected in [
        "through lmdbjava 0.9.1, Java",
        "RocksDB 9.7.3 through rocksdbjni 9.7.3",
        "reader slots",
    ] {
        assert!(list.contains(expected), "{expected} is missing in {list}");
    }
}

#[test]
fn mmcmap_has_the_rows_of_map_but_those_that_it_cannot_do() {
    if !has_mmcmap() {
        return;
    }
    let more = ["--scale", "0.02"];
    let (all, own) = (
        record("map/100k", "lmdb", "written", &more),
        record("map/100k", "mmcmap", "written", &more),
    );
    let (all, own) = (phases(&all), phases(&own));
    assert!(own.keys().eq(all.keys()), "{own:?}");
    for row in ["write", "read", "read after reopening"] {
        assert_eq!(own[row], all[row], "{own:?}");
    }
    assert!(own["compact"].contains("cannot be compacted"), "{own:?}");
    // A version that deletes has the row; a version that claims to delete and does not is refused.
    let is_refused = own["delete"].contains("do not delete");
    assert!(is_refused || own["delete"] == all["delete"], "{own:?}");
}

#[test]
fn mmcmap_is_not_asked_for_commits_of_many_or_for_syncs() {
    if !has_mmcmap() {
        return;
    }
    let place = Place::new();
    let own = ["--peers", "btreemap,mmcmap", "--scale", "0.01", "--repeat", "1"];
    let output = place.run(&[&["state/10k"], &own[..]].concat());
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", text(&output.stderr));
    assert!(
        report.contains("mmcmap: n/a in state/10k: has no transactions"),
        "{report}"
    );
    let output = place.run(&[&["map/100k", "--force", "--durability", "synced"], &own[..]].concat());
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", text(&output.stderr));
    assert!(
        report.contains("mmcmap: n/a in map/100k: has no class synced"),
        "{report}"
    );
}

#[test]
fn mmcmap_loses_no_acknowledged_put_when_killed() {
    if !has_mmcmap() {
        return;
    }
    // If mmcmap was killed between two stores of one put, which is rare, it takes no more puts, and says so.
    for _ in 0..3 {
        let output = once("open", "mmcmap", "written", &["--scale", "0.0005"]);
        let errors = text(&output.stderr);
        if errors.contains("was left in the middle of a put") {
            continue;
        }
        assert!(output.status.success(), "{errors}");
        let notes = text(&output.stdout);
        assert!(
            notes.contains("killed after") && notes.contains(" 0 of them lost"),
            "{notes}"
        );
        return;
    }
    panic!("killed in the middle of a put three times");
}
