//! The proof of the durability classes. `written`: acknowledged writes survive kill -9. `synced`: the trace of the system
//! calls shows a sync that succeeded between each write and its acknowledgement.

mod common;

use common::{Place, text};

/// Loads, closes, reopens, kills a writer and looks for what was acknowledged; an error there is exit code 1.
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
    for peer in ["duramen", "lmdb", "fjall", "canopydb", "sqlite"] {
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
    // Were this to fail, redb would have the class `written`, and its adapter should say so.
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
