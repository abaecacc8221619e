//! The proof of the durability classes. `written`: acknowledged writes survive kill -9. `synced`: the trace of the
//! system calls shows a successful sync between each write and its acknowledgement.

mod common;

use common::{JAVA, Place, has_java, text};

/// Returns the peers that claim the class `written`, with RocksDB where it is built in: `cargo test --release
/// --manifest-path bench/Cargo.toml --features rocksdb --test classes`.
fn of_class_written() -> Vec<&'static str> {
    let rocksdb = cfg!(feature = "rocksdb").then_some("rocksdb");
    let others = ["duramen", "lmdb", "fjall", "canopydb", "sqlite"];
    others.into_iter().chain(rocksdb).collect()
}

/// Loads, closes, reopens, kills a writer, and looks for what was acknowledged; an error there is exit code 1.
fn survives_kill(class: &str) -> String {
    let place = Place::new();
    let output = place.run(&["open", "--scale", "0.0005", "--repeat", "1", "--durability", class]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", text(&output.stderr));
    report
}

#[test]
fn peers_of_class_written_lose_nothing_when_killed() {
    let report = survives_kill("written");
    for peer in of_class_written() {
        let note = report
            .lines()
            .find(|line| line.contains(&format!("{peer} 1: killed after")));
        assert!(
            note.is_some_and(|note| note.contains(" 0 of them lost")),
            "{peer}: {report}"
        );
    }
    assert!(report.contains("redb: n/a in open: has no class written"), "{report}");
}

#[test]
fn peers_of_class_synced_lose_nothing_when_killed() {
    let report = survives_kill("synced");
    assert!(report.contains("redb 1: killed after"), "{report}");
}

#[test]
fn class_none_of_redb_does_lose_writes_when_killed() {
    // If this failed, redb would have the class `written`, and its adapter should say so.
    let report = survives_kill("none");
    let note = report
        .lines()
        .find(|line| line.contains("redb 1: killed after"))
        .expect("a note");
    assert!(!note.contains(" 0 of them lost"), "{note}");
}

#[test]
fn peer_that_acknowledges_before_it_writes_is_caught_by_the_kill() {
    let place = Place::new();
    let arguments = [
        "once",
        "open",
        "--peer",
        "faulty-early",
        "--durability",
        "written",
        "--seed",
        "1",
    ];
    let own = ["--scale", "0.0005", "--directory", "."];
    let output = place.lab(&[&arguments[..], &own].concat());
    assert!(!output.status.success());
    let errors = text(&output.stderr);
    assert!(
        errors.contains("after kill -9") && errors.contains("not there"),
        "{errors}"
    );
}

#[test]
fn messages_and_their_pairs_are_there_when_their_publisher_was_killed() {
    for class in ["written", "synced"] {
        let place = Place::new();
        let output = place.run(&[
            "killed-publisher",
            "--scale",
            "0.003",
            "--repeat",
            "1",
            "--durability",
            class,
        ]);
        let report = text(&output.stdout);
        assert!(output.status.success(), "{report}\n{}", text(&output.stderr));
        let has_redis = std::process::Command::new("redis-server")
            .arg("--version")
            .output()
            .is_ok();
        if !has_redis {
            eprintln!("n/a: redis-server is not installed, so its classes are not proven here");
        }
        let redis = has_redis.then_some("redis-streams");
        for peer in ["duramen", "duramen-grpc"].into_iter().chain(redis) {
            let start = format!("{peer} 1: killed after");
            let is_note = |line: &str| line.contains(&start) && line.contains(" 0 of them lost");
            assert!(report.lines().any(is_note), "{peer}: {report}");
        }
    }
}

/// What a trace shows between one acknowledgement and the next.
#[derive(Debug, Default)]
struct Between {
    has_written: bool,
    has_synced_after_write: bool,
}

/// Traces a writer of the lab, which puts 20 pairs and reports each one. Returns one entry for each acknowledgement, or
/// `None` when this machine has no tracer. Where tests run before a change lands, there must be a tracer.
fn traced(peer: &str, class: &str) -> Option<Vec<Between>> {
    let place = Place::new();
    let lab = env!("CARGO_BIN_EXE_lab");
    // Duramen stores short records in quick succession to memory, which no trace shows. After a pause it uses a call.
    // Here the tracer delays each acknowledgement for longer than that.
    let pauses: &[&str] = match peer {
        "duramen" => &["-e", "inject=write:delay_exit=150000"],
        _ => &[],
    };
    let output = std::process::Command::new("strace")
        .args(["-f", "-y", "-s", "1", "-o", "trace"])
        .args(pauses)
        .args([
            "-e",
            "trace=write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,msync,sync_file_range,openat",
        ])
        .args([
            lab,
            "writer",
            "open",
            "--puts",
            "5",
            "--peer",
            peer,
            "--durability",
            class,
            "--seed",
            "1",
            "--directory",
            "store",
        ])
        .current_dir(place.path())
        .output();
    let Ok(output) = output else {
        assert!(
            std::env::var_os("LAB_TOOLS_REQUIRED").is_none(),
            "strace is missing: class synced cannot be proven"
        );
        eprintln!("n/a: strace is not installed, so class synced is not proven here");
        return None;
    };
    assert_eq!(output.stdout.len(), 20, "{peer}: {}", text(&output.stderr));
    let trace = std::fs::read_to_string(place.file("trace")).expect("a trace");
    Some(read_trace(&trace))
}

/// Parses a trace. Calls that end later than they begin occupy two lines; what counts is where a write begins and where
/// a sync ends. The first process is the lab, which reports acknowledgements. Pipes and files in memory carry the
/// messages between it and a driver.
fn read_trace(trace: &str) -> Vec<Between> {
    let (mut all, mut now) = (Vec::new(), Between::default());
    let process_of = |line: &str| line.split(' ').next().unwrap_or("").to_string();
    let lab = trace.lines().next().map(process_of).unwrap_or_default();
    let mut synchronous: Vec<String> = Vec::new();
    for line in trace.lines() {
        let call = line.split_once(' ').map_or("", |(_, call)| call.trim_start());
        let is_ended_well = !call.contains("= -1") && !call.contains("<unfinished");
        let descriptor = call
            .split_once('(')
            .map_or("", |(_, rest)| rest.split([',', ')']).next().unwrap_or(""));
        let name = call.trim_start_matches("<... ").split(['(', ' ']).next().unwrap_or("");
        match name {
            "openat" if call.contains("SYNC") && is_ended_well => {
                synchronous.push(call.rsplit("= ").next().unwrap_or("").trim().to_string());
            }
            "write" if descriptor.starts_with("1<") && process_of(line) == lab => all.push(std::mem::take(&mut now)),
            "write" | "writev" if descriptor.contains("<pipe:") || descriptor.contains("memfd") => {}
            "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => {
                now.has_written = true;
                // LMDB writes its meta page through a descriptor that syncs each write.
                now.has_synced_after_write |= is_ended_well && synchronous.iter().any(|open| open == descriptor);
            }
            "fsync" | "fdatasync" | "msync" if is_ended_well && now.has_written => now.has_synced_after_write = true,
            _ => {}
        }
    }
    all
}

fn assert_syncs_before_it_acknowledges(peer: &str) {
    let Some(all) = traced(peer, "synced") else { return };
    assert_eq!(all.len(), 20, "{peer}");
    for (number, between) in all.iter().enumerate() {
        assert!(
            between.has_written && between.has_synced_after_write,
            "{peer}: put {number} was acknowledged after {between:?}"
        );
    }
}

#[test]
fn trace_of_class_synced_shows_the_sync_before_each_acknowledgement() {
    for peer in of_class_written().into_iter().chain(["redb"]) {
        assert_syncs_before_it_acknowledges(peer);
    }
}

#[test]
fn trace_of_drivers_in_java_shows_the_sync_before_each_acknowledgement_of_class_synced() {
    if !has_java() {
        return;
    }
    for peer in JAVA {
        assert_syncs_before_it_acknowledges(peer);
        let Some(all) = traced(peer, "written") else { return };
        let synced = all.iter().skip(1).filter(|between| between.has_synced_after_write);
        assert!(synced.count() < 5, "{peer}: {all:?}");
        assert!(all.iter().skip(1).all(|between| between.has_written), "{peer}: {all:?}");
    }
}

#[test]
fn trace_tells_peers_that_do_not_sync_and_one_that_does_not_even_write() {
    for peer in of_class_written() {
        let Some(all) = traced(peer, "written") else { return };
        assert!(all.iter().skip(1).all(|between| between.has_written), "{peer}: {all:?}");
        let synced = all
            .iter()
            .skip(1)
            .filter(|between| between.has_synced_after_write)
            .count();
        assert!(synced < 5, "{peer}: {all:?}");
    }
    let Some(all) = traced("faulty-early", "synced") else {
        return;
    };
    let unwritten = all.iter().filter(|between| !between.has_written).count();
    assert!(unwritten > 10, "{all:?}");
}
