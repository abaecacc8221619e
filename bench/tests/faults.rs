//! The matrix of faults for the workloads that start the lab again: `open` and `killed-publisher`, whose writer is
//! killed, `mega/processes` and `sharing`. Its other cells are in `src/workloads/tests.rs`. The faulty peers are those
//! that keep their data in files.

mod common;

use common::{Place, text};

/// Returns the error with which a workload fails on a faulty peer, if it fails.
fn caught(workload: &str, peer: &str, scale: &str) -> Option<String> {
    let place = Place::new();
    let output = place.once(workload, peer, "written", &["--scale", scale]).output();
    let output = output.expect("the lab starts");
    (!output.status.success()).then(|| text(&output.stderr))
}

fn must_catch(workload: &str, peer: &str, scale: &str) {
    let error = caught(workload, peer, scale).unwrap_or_else(|| panic!("{workload} did not notice {peer}"));
    let names_it = ["key ", "records", "message"].iter().any(|word| error.contains(word));
    assert!(names_it, "{workload}: {peer}: {error}");
}

#[test]
fn open_catches_a_stale_value() {
    must_catch("open", "faulty-stale-kept", "0.0005");
}

#[test]
fn open_catches_a_lost_write() {
    must_catch("open", "faulty-loses-kept", "0.0012");
}

#[test]
fn killed_publisher_catches_a_message_that_is_missing_that_came_twice_or_too_late() {
    for fault in ["faulty-gap", "faulty-twice", "faulty-swaps"] {
        must_catch("killed-publisher", fault, "0.003");
    }
}

#[test]
fn killed_publisher_catches_messages_that_were_acknowledged_too_early() {
    must_catch("killed-publisher", "faulty-late", "0.003");
}

#[test]
fn mega_in_several_processes_catches_a_stale_value() {
    must_catch("mega/processes", "faulty-stale-kept", "0.001");
}

#[test]
fn mega_in_several_processes_catches_a_lost_write() {
    must_catch("mega/processes", "faulty-loses-kept", "0.015");
}

#[test]
fn sharing_catches_a_stale_value() {
    for form in ["sharing/threads", "sharing/processes"] {
        must_catch(form, "faulty-stale-kept", "0.001");
    }
}

#[test]
fn sharing_catches_a_lost_write() {
    for form in ["sharing/threads", "sharing/processes"] {
        must_catch(form, "faulty-loses-kept", "0.01");
    }
}

#[test]
fn workloads_without_deletes_cannot_see_that_none_are_done() {
    for workload in ["open", "mega/processes", "sharing/threads", "sharing/processes"] {
        assert_eq!(
            caught(workload, "faulty-keeps-deleted-kept", "0.0005"),
            None,
            "{workload}"
        );
    }
}
