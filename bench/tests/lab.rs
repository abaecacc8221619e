//! The lab as a whole, through its command line: results have the documented form, and bad input gets a clear message
//! and never a half-written file.

mod common;

use std::io::Write as _;

use common::{Place, text};

const TINY: [&str; 4] = ["--scale", "0.001", "--repeat", "1"];

#[test]
fn json_has_everything_and_the_same_seed_is_kept() {
    let place = Place::new();
    let output = place.run(&[
        "first",
        "--peers",
        "btreemap,null",
        "--scale",
        "0.001",
        "--repeat",
        "2",
        "--seed",
        "77",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = place.results();
    assert_eq!((&json["seed"], &json["schema"]), (&77.into(), &3.into()));
    assert_eq!(json["cache_bytes"], serde_json::json!({ "first": 1u64 << 30 }));
    assert!(json["commit"].is_string() && json["machine"]["kernel"].is_string());
    assert!(json["started"].as_str().is_some_and(|date| date.starts_with("20")));
    let runs = json["runs"].as_array().expect("runs");
    let order: Vec<&str> = runs.iter().filter_map(|run| run["peer"].as_str()).collect();
    assert_eq!(order, ["btreemap", "null", "null", "btreemap"], "the order alternates");
    assert_eq!(runs[0]["outcome"]["passed"]["phases"][0]["operations"], 1000);
    assert!(runs[0]["commit"].is_string() && runs[0]["probe"]["sync_nanos_p50"].is_u64());
}

#[test]
fn file_system_is_synced_before_each_cell() {
    let place = Place::new();
    let traced = std::process::Command::new("strace")
        .args(["-f", "-o", "trace", "-e", "trace=syncfs,execve"])
        .args([env!("CARGO_BIN_EXE_lab"), "run", "first", "--peers", "btreemap,null"])
        .args(TINY)
        .args(["--json", "results.json", "--directory", "."])
        .current_dir(place.path())
        .output();
    let Ok(output) = traced else {
        assert!(std::env::var_os("LAB_TOOLS_REQUIRED").is_none(), "strace is missing");
        eprintln!("n/a: strace is not installed, so the sync before a cell is not looked for here");
        return;
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let trace = std::fs::read_to_string(place.file("trace")).expect("a trace");
    let called = |line: &str| {
        let cell = line.contains("\"once\"").then_some("cell");
        cell.or(line.contains(" syncfs(").then_some("sync"))
    };
    let calls: Vec<&str> = trace.lines().filter_map(called).collect();
    assert_eq!(calls, ["sync", "cell", "sync", "cell"], "{trace}");
}

#[test]
fn unknown_names_are_refused_with_the_known_ones_and_leave_no_file() {
    let place = Place::new();
    let refused = |arguments: &[&str], expected: &str| {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
        assert_eq!(std::fs::read_dir(place.path()).expect("a directory").count(), 0);
    };
    refused(&["first", "--peers", "nothing"], "duramen, lmdb");
    refused(&["nothing"], "first, synced-puts, open");
    refused(&["map/3M"], "100k, 1M, 2M, 4M, 16M");
    refused(&["first", "--scale", "0"], "--scale");
    refused(&["state", "--rate", "10"], "open loop");
}

#[cfg(not(feature = "rocksdb"))]
#[test]
fn rocksdb_that_is_not_built_in_is_named_with_what_to_do() {
    let output = Place::new().run(&["first", "--peers", "rocksdb"]);
    assert!(
        text(&output.stderr).contains("--features rocksdb"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn list_shows_peers_with_versions_and_classes_and_workloads_with_forms() {
    let list = text(&Place::new().lab(&["list"]).stdout);
    for expected in [
        "synced-puts",
        "redb 4.",
        "LMDB 0.9.",
        "MDB_NOSYNC",
        "map/16M",
        "state/10M",
        "fjall 3.",
        "SQLite 3.",
        "canopydb 0.",
    ] {
        assert!(list.contains(expected), "{expected} is missing in {list}");
    }
}

#[test]
fn whoever_reads_only_the_beginning_of_a_list_gets_no_error() {
    // The first call may build drivers, and reports that.
    assert!(Place::new().lab(&["list"]).status.success());
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Place::new().command(&["list"]).stdout(writer).output();
    let output = output.expect("the lab starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn interrupted_run_is_resumed_where_it_stopped() {
    let place = Place::new();
    let arguments = [
        "run",
        "first",
        "--peers",
        "btreemap,null",
        "--repeat",
        "3",
        "--scale",
        "0.001",
    ];
    let own = ["--json", "results.json", "--directory", ".", "--seed", "9"];
    let whole = place.lab(&[&arguments[..], &own].concat());
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    let whole = place.results();

    // The state that an interruption leaves: the header, two cells and the beginning of a third.
    let mut header = whole.clone();
    let runs = header.as_object_mut().expect("an object").remove("runs").expect("runs");
    let lines = [
        header.to_string(),
        runs[0].to_string(),
        runs[1].to_string(),
        r#"{"workl"#.to_string(),
    ];
    std::fs::write(place.file("results.json.partial"), lines.join("\n")).expect("a file");
    std::fs::remove_file(place.file("results.json")).expect("results");

    let resumed = place.lab(&["run", "--resume", "results.json.partial"]);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    let resumed = place.results();
    let (before, after) = (
        runs.as_array().expect("runs"),
        resumed["runs"].as_array().expect("runs"),
    );
    assert_eq!(after.len(), before.len());
    assert_eq!(after[..2], before[..2], "what was done is kept");
    assert_eq!(after[5]["seed"], before[5]["seed"]);
    assert!(!place.file("results.json.partial").exists());
}

#[test]
fn resuming_takes_no_option_that_it_would_ignore() {
    let place = Place::new();
    let options = [
        ["--scale", "0.1"],
        ["--repeat", "9"],
        ["--durability", "synced"],
        ["--limit", "9"],
        ["--seconds", "1"],
        ["--directory", "."],
        ["--seed", "1"],
        ["--json", "results.json"],
    ];
    for option in options {
        let output = place.lab(&[&["run", "--resume", "results.json.partial"][..], &option].concat());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("--resume") && errors.contains(option[0]), "{errors}");
    }
}

#[test]
fn results_that_are_there_are_replaced_only_by_force() {
    let place = Place::new();
    let run = |more: &[&str]| place.run(&[&["first", "--peers", "btreemap"][..], &TINY, more].concat());
    std::fs::write(place.file("results.json"), "mine").expect("a file");
    let output = run(&[]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("results.json is there already") && errors.contains("--force"),
        "{errors}"
    );
    assert_eq!(std::fs::read(place.file("results.json")).expect("as it was"), b"mine");
    assert!(!place.file("results.json.partial").exists());
    let output = run(&["--force"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(place.results()["runs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn journal_that_never_began_is_in_nobodys_way() {
    let place = Place::new();
    std::fs::write(place.file("results.json.partial"), r#"{"schema":3,"la"#).expect("a file");
    let output = place.lab(&["run", "--resume", "results.json.partial"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("begin the run again"),
        "{}",
        text(&output.stderr)
    );
    let output = place.run(&[&["first", "--peers", "btreemap"][..], &TINY].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(place.file("results.json").exists() && !place.file("results.json.partial").exists());
}

#[test]
fn signal_ends_a_run_in_order_and_says_how_to_go_on() {
    let place = Place::new();
    let arguments = [
        "run",
        "mega/60s",
        "--peers",
        "btreemap",
        "--scale",
        "0.2",
        "--json",
        "results.json",
        "--directory",
        ".",
    ];
    let child = place
        .command(&arguments)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the lab starts");
    while !place.file("results.json.partial").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // The lab catches the signal from the moment at which it announces the first cell.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let pid = child.id().to_string();
    assert!(
        std::process::Command::new("kill")
            .arg(&pid)
            .status()
            .expect("kill")
            .success()
    );
    let output = child.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--resume"), "{}", text(&output.stderr));
    let left: Vec<_> = std::fs::read_dir(place.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["results.json.partial"], "no store and no half of a result");
}

#[test]
fn cell_that_reaches_its_limit_is_shown_as_stopped() {
    let place = Place::new();
    let output = place.run(&[
        "mega/60s", "--peers", "btreemap", "--repeat", "1", "--scale", "0.1", "--limit", "1",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("stopped at"), "{}", text(&output.stdout));
}

#[test]
fn several_processes_share_a_store_where_the_peer_allows_it() {
    let place = Place::new();
    let peers = ["--peers", "duramen,lmdb,sqlite,redb"];
    let output = place.run(&[&["mega/processes", "sharing/processes"][..], &peers, &TINY].concat());
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", text(&output.stderr));
    assert!(report.contains("several processes cannot share one store"), "{report}");
    let json = place.results();
    for run in json["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .filter(|run| run["peer"] != "redb")
    {
        let phases = run["outcome"]["passed"]["phases"].as_array().expect("phases");
        assert!(phases.len() >= 2, "{run}");
        for phase in phases {
            assert!(phase["operations"].as_u64().is_some_and(|count| count > 0), "{run}");
        }
    }
}

/// Returns the running child processes of this parent. An ended child that was not waited for stays in `/proc`, but
/// does not count.
fn children(parent: u32) -> Vec<u32> {
    let process = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let all = std::fs::read_dir("/proc").expect("the processes").flatten();
    let is_child = |process: &u32| running_child_of(*process) == Some(parent);
    all.filter_map(process).filter(is_child).collect()
}

/// Returns the parent of a running process.
fn running_child_of(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // After the name, which may contain anything: the state, and the parent.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (!["Z", "X"].contains(&state)).then_some(fields.next()?.parse().ok()?)
}

/// Waits until `is_so` is true, and fails when it takes too long.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let last = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !is_so() {
        assert!(std::time::Instant::now() < last, "{what} did not come");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn processes_that_share_a_store_end_when_their_cell_is_killed() {
    let place = Place::new();
    // The workers would run for a minute.
    let more = ["--scale", "0.001", "--seconds", "60"];
    let mut cell = place
        .once("mega/processes", "lmdb", "written", &more)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the lab starts");
    wait_until("a process for each worker", || children(cell.id()).len() == 44);
    let members = children(cell.id());
    // If they were killed before they work, they would end with the pipe that they read from. The counters exceed 0
    // once they work.
    let counters = place.file("store.counters");
    wait_until("a write", || {
        std::fs::read(&counters).is_ok_and(|counters| counters.iter().any(|byte| *byte != 0))
    });
    cell.kill().expect("a cell that runs");
    cell.wait().expect("its end");
    wait_until("the end of all processes", || {
        members.iter().all(|member| running_child_of(*member).is_none())
    });
}

#[test]
fn quick_ends_with_where_its_report_is_and_that_it_is_no_evidence() {
    let place = Place::new();
    let output = place.lab(&["quick", "--scale", "0.0002", "--directory", "."]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}\n{}", text(&output.stderr));
    let last: Vec<&str> = shown.lines().rev().take(3).collect();
    let [report, results, label] = last[..] else {
        panic!("three last lines: {shown}");
    };
    assert!(label.starts_with("sanity, not evidence"), "{label}");
    let named = |line: &str, before: &str| {
        let path = line.strip_prefix(before).unwrap_or_else(|| panic!("{before}: {line}"));
        std::fs::read_to_string(place.file(path.trim())).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let page = named(report, "report:");
    assert!(
        page.contains("Sanity, not evidence") && page.ends_with("</html>\n"),
        "{report}"
    );
    let results: serde_json::Value = serde_json::from_str(&named(results, "results:")).expect("JSON");
    assert_eq!(
        (&results["label"], &results["scale"]),
        (&"quick".into(), &0.0002.into())
    );
    let runs = results["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 48, "four peers, six workloads, twice");
}

#[test]
fn report_is_one_file_beside_its_results() {
    let place = Place::new();
    let output = place.run(&["first", "--peers", "lmdb,btreemap", "--scale", "0.001", "--repeat", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = place.lab(&["report", "results.json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim(), "results.html");
    let page = std::fs::read_to_string(place.file("results.html")).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("Verdict") && page.contains("first: single puts"));
}

#[test]
fn compressed_results_have_a_report_and_are_compared() {
    let place = Place::new();
    let output = place.run(&["first", "--peers", "btreemap", "--scale", "0.001", "--repeat", "3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = std::fs::read(place.file("results.json")).expect("results");
    let file = std::fs::File::create(place.file("old.json.gz")).expect("a file");
    let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::default());
    encoder.write_all(&json).expect("written");
    encoder.finish().expect("written");
    let output = place.lab(&["report", "old.json.gz"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim(), "old.html");
    let output = place.lab(&["compare", "old.json.gz", "results.json"]);
    let comparison = text(&output.stdout);
    assert!(output.status.success(), "{comparison}{}", text(&output.stderr));
    assert!(comparison.contains("run both with --repeat 5"), "{comparison}");
}

#[test]
fn report_of_several_results_has_one_verdict_and_a_command_that_works() {
    let place = Place::new();
    let run = || {
        let peers = ["first", "--peers", "lmdb,sqlite", "--durability", "written"];
        let output = place.run(&[&peers[..], &TINY].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    run();
    std::fs::rename(place.file("results.json"), place.file("earlier.json")).expect("a new name");
    run();
    let output = place.lab(&["report", "earlier.json", "results.json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(place.file("earlier.html")).expect("a page");
    assert_eq!(page.matches("<h2 id=\"verdict\">").count(), 1);
    assert!(
        page.contains("first, rows: 7. Part 2 counts in place of part 1"),
        "{page}"
    );

    let command = page.split("<pre tabindex=\"0\">cargo lab ").nth(1).expect("a command");
    let command = command.split('<').next().expect("its end");
    let words: Vec<&str> = command.split(' ').collect();
    let output = place.lab(&[&words[..], &["--json", "again.json", "--directory", "."]].concat());
    assert!(output.status.success(), "{command}: {}", text(&output.stderr));
    assert!(place.file("again.json").exists());
}

#[test]
fn bad_results_get_a_message_and_no_report() {
    let place = Place::new();
    std::fs::write(place.file("old.json"), r#"{"format": 1, "commit": "cafe", "runs": []}"#).expect("a file");
    for (file, expected) in [("old.json", "schema 1"), ("missing.json", "missing.json")] {
        let output = place.lab(&["report", file, "--output", "page.html"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
        assert!(!place.file("page.html").exists());
    }
}

#[test]
fn comparison_of_a_run_with_itself_finds_nothing() {
    let place = Place::new();
    let output = place.run(&["first", "--peers", "btreemap", "--scale", "0.001", "--repeat", "4"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = place.lab(&["compare", "results.json", "results.json"]);
    let comparison = text(&output.stdout);
    assert!(output.status.success(), "{comparison}{}", text(&output.stderr));
    assert!(
        comparison.contains(" 0 slower, 0 faster") && comparison.contains("noise"),
        "{comparison}"
    );
}

#[test]
fn doctor_tells_what_it_found_and_that_this_build_is_unfit() {
    let place = Place::new();
    let output = place.lab(&["doctor", "--directory", "."]);
    let findings = text(&output.stdout);
    for expected in ["sync of 4 KiB", "waking a thread", "free", "file system", "load"] {
        assert!(findings.contains(expected), "{findings}");
    }
    if cfg!(debug_assertions) {
        assert_eq!(output.status.code(), Some(1), "{findings}");
        assert!(findings.contains("a debug build"), "{findings}");
    }
}

/// Runs a script with a file system of three megabytes mounted at `small`. Returns `None` where mounting is not
/// allowed.
fn with_small_disk(place: &Place, script: &str) -> Option<std::process::Output> {
    std::fs::create_dir(place.file("small")).expect("a directory");
    let mounted = format!("mount -t tmpfs -o size=3m none small || exit 77; {script}");
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &mounted])
        .current_dir(place.path())
        .output()
        .ok()?;
    let is_refused = output.status.code() == Some(77) || text(&output.stderr).contains("unshare");
    if is_refused {
        assert!(
            std::env::var_os("LAB_TOOLS_REQUIRED").is_none(),
            "no file system of our own: {}",
            text(&output.stderr)
        );
        eprintln!("n/a: this machine does not allow mounts of small file systems");
        return None;
    }
    Some(output)
}

#[test]
fn full_disk_fails_the_cell_and_is_named_with_what_to_do() {
    let place = Place::new();
    let lab = env!("CARGO_BIN_EXE_lab");
    let script = format!("{lab} run first --peers lmdb --scale 0.05 --repeat 1 --json results.json --directory small");
    let Some(output) = with_small_disk(&place, &script) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("is full") && text(&output.stdout).contains("--directory"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn run_that_cannot_be_begun_on_a_full_disk_leaves_no_journal() {
    let place = Place::new();
    let lab = env!("CARGO_BIN_EXE_lab");
    let script = format!(
        "head -c 3m /dev/zero > small/filler; {lab} run first --peers btreemap --scale 0.001 --repeat 1 --json \
         small/results.json --directory .; code=$?; ls small; exit $code"
    );
    let Some(output) = with_small_disk(&place, &script) else {
        return;
    };
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("No space left"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(text(&output.stdout).trim(), "filler", "no half of a journal");
}

#[test]
fn report_that_does_not_fit_on_the_disk_is_not_written_at_all() {
    let place = Place::new();
    let output = place.run(&["first", "--peers", "btreemap", "--scale", "0.001", "--repeat", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lab = env!("CARGO_BIN_EXE_lab");
    let script = format!(
        "head -c 3m /dev/zero > small/filler; {lab} report results.json --output small/page.html; code=$?; ls small; exit $code"
    );
    let Some(output) = with_small_disk(&place, &script) else {
        return;
    };
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout).trim(), "filler", "no half of a report");
    assert!(
        text(&output.stderr).contains("No space left"),
        "{}",
        text(&output.stderr)
    );
}
