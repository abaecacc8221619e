//! Tests of the workloads: honest peers pass all of them, and the workloads of the matrix catch each planted fault.

use anyhow::Result;

use super::{Context, Recorder, Task, named};
use crate::brokers;
use crate::crew::Pace;
use crate::measure::Record;
use crate::measure::now_nanos;
use crate::peer::{Class, Driver};
use crate::peers;
use crate::scratch::Scratch;
use crate::trees;

#[test]
fn every_workload_says_what_it_is_and_has_forms_and_a_run_of_its_own() {
    for workload in super::ALL {
        assert!(!workload.name.is_empty() && !workload.about.is_empty());
        assert!(!workload.variants.is_empty(), "{}", workload.name);
        assert!(
            !std::ptr::fn_addr_eq(workload.run, super::Workload::USUAL.run),
            "{}",
            workload.name
        );
    }
}

pub fn pace() -> Pace {
    Pace {
        limit: u64::MAX,
        seconds: None,
        rate: None,
    }
}

pub fn run_paced(name: &str, driver: &dyn Driver, scale: f64, pace: Pace) -> Result<Record> {
    let task = named(name)?[0];
    let class = task.workload.class_for(driver, None).map_err(anyhow::Error::msg)?;
    run_in(task, driver, class, (scale, pace))
}

fn run_in(task: Task, driver: &dyn Driver, class: Class, (scale, pace): (f64, Pace)) -> Result<Record> {
    let scratch = Scratch::new(&std::env::temp_dir())?;
    let directory = scratch.path().join("run");
    std::fs::create_dir(&directory)?;
    let context = Context {
        driver,
        is_exempt: driver.describe().is_exempt,
        class,
        cache_bytes: task.cache_bytes(scale),
        directory: &directory,
        variant: task.variant,
        scale,
        seed: 5,
        pace,
    };
    let mut recorder = Recorder::new(&directory, driver);
    (task.workload.run)(&context, &mut recorder)?;
    Ok(recorder.finish())
}

fn run(name: &str, driver: &dyn Driver, scale: f64) -> Result<Record> {
    run_paced(name, driver, scale, pace())
}

/// Checks that every participating peer passes, and that all show equal phases.
fn honest_peers_pass(name: &str, scale: f64) {
    let mut shown: Option<Vec<String>> = None;
    for driver in peers::ALL.iter().chain(brokers::ALL).chain(trees::ALL) {
        let peer = driver.describe().name;
        let task = named(name).expect("known")[0];
        if task.workload.class_for(*driver, None).is_err() {
            continue;
        }
        let record = run(name, *driver, scale).unwrap_or_else(|error| panic!("{name}: {peer}: {error:#}"));
        let mut phases: Vec<String> = record.phases.iter().map(|phase| phase.name.clone()).collect();
        phases.extend(record.unsupported.iter().map(|(phase, _)| phase.clone()));
        phases.sort();
        assert_eq!(shown.get_or_insert(phases.clone()), &phases, "{name}: {peer}");
    }
}

macro_rules! honest {
    ($($test:ident: $name:literal at $scale:literal,)*) => {
        /// The workloads, each at a scale at which it takes little time.
        const TINY: &[(&str, f64)] = &[$(($name, $scale)),*];

        $(#[test]
        fn $test() {
            honest_peers_pass($name, $scale);
        })*
    };
}

honest! {
    honest_peers_pass_first: "first" at 0.002,
    honest_peers_pass_synced_puts: "synced-puts" at 0.0005,
    honest_peers_pass_mega_timed: "mega/60s" at 0.0005,
    honest_peers_pass_mega_counts: "mega/counts" at 0.0005,
    honest_peers_pass_map: "map/100k" at 0.01,
    honest_peers_pass_map_mixed: "map-mixed/100k" at 0.01,
    honest_peers_pass_state: "state/10k" at 0.05,
    honest_peers_pass_state_in_several_commits: "state/1M" at 0.0005,
    honest_peers_pass_state_stability: "state-stability" at 0.05,
    honest_peers_pass_reads: "reads/1M" at 0.002,
    honest_peers_pass_overwrites: "overwrites" at 0.0005,
    honest_peers_pass_held_snapshot: "held-snapshot/500k" at 0.002,
    honest_peers_pass_held_snapshot_for_long: "held-snapshot/1h" at 0.001,
    honest_peers_pass_kept_states: "kept-states/1M" at 0.002,
    honest_peers_pass_backups: "backups/1M" at 0.002,
    honest_peers_pass_scarce_memory: "scarce-memory" at 0.002,
    honest_peers_pass_sizes: "sizes/100B" at 0.002,
    honest_peers_pass_sizes_of_long_values: "sizes/1kB" at 0.001,
    honest_peers_pass_redb_table: "redb-table" at 0.0004,
    honest_peers_pass_long_values: "long-values" at 0.002,
    honest_peers_pass_queue: "queue/1k" at 0.002,
    honest_peers_pass_drain: "drain" at 0.002,
    honest_peers_pass_expire: "expire" at 0.002,
    honest_peers_pass_ycsb_a: "ycsb-a" at 0.001,
    honest_peers_pass_ycsb_c: "ycsb-c" at 0.001,
    honest_peers_pass_ycsb_e: "ycsb-e" at 0.001,
    honest_peers_pass_publish: "publish/1k" at 1.0,
    honest_peers_pass_publish_of_many: "publish/1M" at 0.002,
    honest_peers_pass_synced_publish: "synced-publish" at 0.001,
    honest_peers_pass_latency: "latency" at 0.01,
    honest_peers_pass_requests: "requests" at 0.005,
    honest_peers_pass_crowd: "crowd/topic-by-topic" at 0.05,
    honest_peers_pass_crowd_in_turn: "crowd/in-turn" at 0.05,
    honest_peers_pass_fanout: "fanout/1M-1k-10k" at 0.005,
    honest_peers_pass_fanout_in_turn: "fanout/1M-1k-10k-in-turn" at 0.005,
    honest_peers_pass_fanout_streamed: "fanout/1M-1-10-streamed" at 0.001,
    honest_peers_pass_groups: "groups" at 0.005,
    honest_peers_pass_catch_up: "catch-up" at 0.001,
    honest_peers_pass_growth_of_topics: "growth/topics-1k" at 0.01,
    honest_peers_pass_growth_of_subscribers: "growth/idle-1k" at 0.01,
    honest_peers_pass_growth_of_messages: "growth/kept-100k" at 0.01,
    honest_peers_pass_growth_of_sizes: "growth/size-64kB" at 0.001,
    honest_peers_pass_tree_ramp: "tree-ramp/1-50-100-200" at 0.01,
    honest_peers_pass_tree_large: "tree-large/1M" at 0.003,
    honest_peers_pass_tree_children: "tree-children/1M" at 0.003,
    honest_peers_pass_tree_subtree: "tree-subtree" at 0.02,
    honest_peers_pass_tree_watches_of_paths: "tree-watches/10k-paths" at 0.01,
    honest_peers_pass_tree_watches_of_subtrees: "tree-watches/100-subtrees" at 0.01,
    honest_peers_pass_tree_compaction: "tree-compaction" at 0.01,
    honest_peers_pass_etcd_bench: "etcd-bench/operations" at 0.001,
    honest_peers_pass_etcd_bench_for_memory: "etcd-bench/memory" at 0.001,
}

/// Checks that an honest peer never fails because of the cell's limit, wherever it falls, including between two
/// measured phases.
#[test]
fn limit_at_any_time_fails_nobody() {
    for name in ["state/10k", "map/100k", "redb-table", "reads/1M", "overwrites"] {
        for millis in [1, 3, 6, 10, 15, 25, 40, 80] {
            let pace = Pace {
                limit: now_nanos() + millis * 1_000_000,
                ..pace()
            };
            let driver = peers::one("btreemap").expect("a peer");
            let scale = if name == "state/10k" { 1.0 } else { 0.01 };
            run_paced(name, driver, scale, pace).unwrap_or_else(|error| panic!("{name}: {millis} ms: {error:#}"));
        }
    }
}

#[test]
fn limit_of_the_cell_stops_workloads_of_messages_at_any_time_and_fails_none() {
    let driver = peers::one("duramen").expect("a peer");
    let all = [
        "publish/1M",
        "synced-publish",
        "requests",
        "crowd/in-turn",
        "fanout/1M-1k-10k",
        "groups",
        "catch-up",
        "growth/topics-1k",
        "growth/idle-1k",
        "growth/kept-100k",
        "growth/size-4kB",
        "tree-ramp/1-50-100-200",
        "tree-large/1M",
        "tree-children/1M",
        "tree-compaction",
    ];
    for name in all {
        for millis in [0, 2, 10, 40] {
            let pace = Pace {
                limit: now_nanos() + millis * 1_000_000,
                ..pace()
            };
            let record =
                run_paced(name, driver, 0.02, pace).unwrap_or_else(|error| panic!("{name}: {millis} ms: {error:#}"));
            let is_stopped = record.phases.iter().any(|phase| !phase.is_complete());
            assert!(is_stopped || millis > 0, "{name}: {record:?}");
        }
    }
}

/// Runs `requests` in a class.
fn requests(peer: &str, class: Class, limit: u64) -> Record {
    let pace = Pace { limit, ..pace() };
    let record = run_in(
        named("requests").expect("known")[0],
        peers::one(peer).expect("a peer"),
        class,
        (0.005, pace),
    );
    record.unwrap_or_else(|error| panic!("{peer}: {class}: {error:#}"))
}

#[test]
fn requests_to_a_server_run_and_are_verified_at_each_level() {
    for class in [Class::Synced, Class::Written, Class::None] {
        let record = requests("duramen-grpc", class, u64::MAX);
        // Only publishing has the level memory.
        let rows = if class == Class::None { (8, 2) } else { (10, 0) };
        assert_eq!(
            (record.phases.len(), record.unsupported.len()),
            rows,
            "{class}: {:?}",
            record.unsupported
        );
        assert!(
            record.phases.iter().all(|phase| phase.operations >= 500),
            "{class}: {:?}",
            record.unsupported
        );
        let floor = requests("tonic-floor", class, u64::MAX);
        assert_eq!(
            (floor.phases.len(), floor.unsupported.len()),
            (8, 2),
            "{class}: {:?}",
            floor.unsupported
        );
    }
}

/// Runs a small workload of each kind on the brokers whose servers are installed here.
#[test]
fn brokers_with_servers_of_their_own_are_verified_in_each_class() {
    for peer in ["nats", "jetstream", "redis-streams", "redis-pubsub"] {
        let driver = peers::one(peer).expect("a peer");
        let description = driver.describe();
        if let Some(reason) = description.unavailable {
            eprintln!("skipped: {peer}: {reason}");
            continue;
        }
        for (class, _) in description.classes {
            for (name, rows, scale) in [("publish/1k", 4, 0.1), ("latency", 2, 0.002), ("requests", 8, 0.002)] {
                let record = run_in(named(name).expect("known")[0], driver, class, (scale, pace()));
                let record = record.unwrap_or_else(|error| panic!("{peer}: {class}: {name}: {error:#}"));
                let is_filled = record.phases.len() >= rows && record.phases.iter().all(|phase| phase.operations >= 20);
                assert!(is_filled, "{peer}: {class}: {name}: {record:?}");
            }
        }
    }
}

#[test]
fn limit_of_the_cell_stops_requests_to_a_server_at_any_time_and_fails_none() {
    for millis in [0, 20, 60, 100] {
        let record = requests("duramen-grpc", Class::Written, now_nanos() + millis * 1_000_000);
        let is_stopped = record.phases.iter().any(|phase| !phase.is_complete());
        assert!(is_stopped || millis > 0, "{record:?}");
    }
}

#[test]
fn limit_of_the_cell_stops_requests_of_etcd_at_any_time_and_fails_none() {
    let driver = peers::one("duramen-etcd").expect("a peer");
    for millis in [0, 20, 200, 1_000] {
        let pace = Pace {
            limit: now_nanos() + millis * 1_000_000,
            ..pace()
        };
        let record =
            run_paced("etcd-bench", driver, 0.02, pace).unwrap_or_else(|error| panic!("{millis} ms: {error:#}"));
        let is_stopped = record.phases.iter().any(|phase| !phase.is_complete());
        assert!(is_stopped || millis > 0, "{record:?}");
    }
}

#[test]
fn more_subscribers_than_a_connection_has_streams_are_not_applicable() {
    let driver = peers::one("duramen-grpc").expect("a peer");
    for (name, rows) in [("fanout/1M-1k-10k", 2), ("growth/idle-100k", 3)] {
        let record = run(name, driver, 1.0).expect("no failure");
        assert!(record.phases.is_empty(), "{name}: {record:?}");
        assert_eq!(record.unsupported.len(), rows, "{name}: {record:?}");
        assert_eq!(record.unsupported[0].1, "takes at most 4000 subscribers");
    }
}

#[test]
fn floor_takes_part_in_requests_only() {
    let floor = peers::one("tonic-floor").expect("a peer");
    for workload in super::ALL {
        assert_eq!(
            workload.class_for(floor, None).is_ok(),
            workload.name == "requests",
            "{}",
            workload.name
        );
    }
}

/// LMDB keeps every overwritten page while the snapshot is held. At this scale the limit is its minimum, 64 MiB.
#[test]
fn held_snapshot_for_long_ends_when_the_files_reach_a_limit_in_proportion_to_the_scale() {
    let record = run("held-snapshot/1h", peers::one("lmdb").expect("it is built in"), 0.001).expect("a run");
    let notes = record.notes.join("; ");
    assert!(notes.contains("ended when the files had 67108864 bytes"), "{notes}");
}

/// Returns the error with which a workload fails on a faulty peer, if it fails.
fn caught(name: &str, fault: &str, scale: f64) -> Option<String> {
    let driver = peers::one(fault).expect("a faulty peer");
    run(name, driver, scale).err().map(|error| format!("{error:#}"))
}

fn must_catch(name: &str, fault: &str, scale: f64) {
    let error = caught(name, fault, scale).unwrap_or_else(|| panic!("{name} did not notice {fault}"));
    let names_it = [
        "key ", "pairs", "records", "scan", "list", "range", "message", "children", "nodes", "change",
    ]
    .iter()
    .any(|word| error.contains(word));
    assert!(names_it, "{name}: {fault}: {error}");
}

/// The matrix: one test for each workload and each fault that it must catch. Two kinds of cells are not in it and are
/// tested below. A workload without deletes cannot notice faulty deletes. Only a crash can show an acknowledgement that
/// came too early (`tests/classes.rs`). The cells of `open`, `killed-publisher`, `mega/processes` and `sharing`, which
/// start the lab again, are in `tests/faults.rs`. Those of stopped rows are in `stopped.rs`.
macro_rules! matrix {
    ($($test:ident: $name:literal catches $fault:literal at $scale:literal,)*) => {
        const MATRIX: &[(&str, &str)] = &[$(($name, $fault)),*];

        $(#[test]
        fn $test() {
            must_catch($name, $fault, $scale);
        })*
    };
}

matrix! {
    first_catches_a_stale_value: "first" catches "faulty-stale" at 0.002,
    first_catches_a_lost_write: "first" catches "faulty-loses" at 0.02,
    synced_puts_catches_a_stale_value: "synced-puts" catches "faulty-stale" at 0.002,
    synced_puts_catches_a_lost_write: "synced-puts" catches "faulty-loses" at 0.02,
    mega_timed_catches_a_stale_value: "mega/60s" catches "faulty-stale" at 0.001,
    mega_timed_catches_a_lost_write: "mega/60s" catches "faulty-loses" at 0.02,
    mega_counts_catches_a_stale_value: "mega/counts" catches "faulty-stale" at 0.001,
    mega_counts_catches_a_lost_write: "mega/counts" catches "faulty-loses" at 0.02,
    reads_catches_a_stale_value: "reads/1M" catches "faulty-stale" at 0.005,
    reads_catches_a_lost_write: "reads/1M" catches "faulty-loses" at 0.02,
    overwrites_catches_a_stale_value: "overwrites" catches "faulty-stale" at 0.002,
    overwrites_catches_a_lost_write: "overwrites" catches "faulty-loses" at 0.005,
    held_snapshot_catches_a_stale_value: "held-snapshot/500k" catches "faulty-stale-kept" at 0.002,
    held_snapshot_catches_a_lost_write: "held-snapshot/500k" catches "faulty-loses-kept" at 0.02,
    held_snapshot_for_long_catches_a_stale_value: "held-snapshot/1h" catches "faulty-stale-kept" at 0.002,
    scarce_memory_catches_a_stale_value: "scarce-memory" catches "faulty-stale-kept" at 0.002,
    scarce_memory_catches_a_lost_write: "scarce-memory" catches "faulty-loses-kept" at 0.02,
    sizes_catches_a_stale_value: "sizes/100B" catches "faulty-stale-kept" at 0.002,
    sizes_catches_a_lost_write: "sizes/100B" catches "faulty-loses-kept" at 0.02,
    map_catches_a_stale_value: "map/100k" catches "faulty-stale" at 0.01,
    map_catches_a_lost_write: "map/100k" catches "faulty-loses" at 0.15,
    map_catches_a_delete_that_was_not_done: "map/100k" catches "faulty-keeps-deleted" at 0.01,
    map_mixed_catches_a_stale_value: "map-mixed/100k" catches "faulty-stale" at 0.01,
    map_mixed_catches_a_lost_write: "map-mixed/100k" catches "faulty-loses" at 0.15,
    state_catches_a_stale_value: "state/10k" catches "faulty-stale" at 0.1,
    state_catches_a_lost_write: "state/10k" catches "faulty-loses" at 1.0,
    state_stability_catches_a_stale_value: "state-stability" catches "faulty-stale" at 0.05,
    state_stability_catches_a_lost_write: "state-stability" catches "faulty-loses" at 0.15,
    queue_catches_a_stale_value: "queue/1k" catches "faulty-stale" at 0.1,
    queue_catches_a_lost_write: "queue/1k" catches "faulty-loses" at 0.1,
    queue_catches_a_delete_that_was_not_done: "queue/1k" catches "faulty-keeps-deleted" at 0.002,
    queue_catches_a_delete_that_took_the_next_key: "queue/1k" catches "faulty-deletes-next" at 0.002,
    drain_catches_a_stale_value: "drain" catches "faulty-stale" at 0.002,
    drain_catches_a_lost_write: "drain" catches "faulty-loses" at 0.1,
    drain_catches_a_delete_that_was_not_done: "drain" catches "faulty-keeps-deleted" at 0.002,
    drain_catches_a_delete_that_took_the_next_key: "drain" catches "faulty-deletes-next" at 0.002,
    long_values_catches_a_stale_value: "long-values" catches "faulty-stale" at 0.002,
    long_values_catches_a_lost_write: "long-values" catches "faulty-loses" at 0.002,
    expire_catches_a_stale_value: "expire" catches "faulty-stale" at 0.002,
    expire_catches_a_lost_write: "expire" catches "faulty-loses" at 0.02,
    expire_catches_a_delete_that_was_not_done: "expire" catches "faulty-keeps-deleted" at 0.002,
    expire_catches_a_delete_that_took_the_next_key: "expire" catches "faulty-deletes-next" at 0.002,
    redb_table_catches_a_stale_value: "redb-table" catches "faulty-stale" at 0.0004,
    redb_table_catches_a_lost_write: "redb-table" catches "faulty-loses" at 0.003,
    redb_table_catches_a_delete_that_was_not_done: "redb-table" catches "faulty-keeps-deleted" at 0.0004,
    redb_table_catches_a_delete_that_took_more: "redb-table" catches "faulty-deletes-next" at 0.0004,
    ycsb_a_catches_a_stale_value: "ycsb-a" catches "faulty-stale" at 0.002,
    ycsb_a_catches_a_lost_write: "ycsb-a" catches "faulty-loses" at 0.02,
    ycsb_c_catches_a_stale_value: "ycsb-c" catches "faulty-stale" at 0.002,
    ycsb_c_catches_a_lost_write: "ycsb-c" catches "faulty-loses" at 0.02,
    ycsb_e_catches_a_stale_value: "ycsb-e" catches "faulty-stale" at 0.002,
    ycsb_e_catches_a_lost_write: "ycsb-e" catches "faulty-loses" at 0.02,
    publish_catches_a_message_that_is_missing: "publish/1k" catches "faulty-gap" at 0.2,
    publish_catches_a_message_that_came_twice: "publish/1k" catches "faulty-twice" at 0.2,
    publish_catches_a_message_that_came_too_late: "publish/1k" catches "faulty-swaps" at 0.2,
    synced_publish_catches_a_message_that_is_missing: "synced-publish" catches "faulty-gap" at 0.0005,
    synced_publish_catches_a_message_that_came_twice: "synced-publish" catches "faulty-twice" at 0.0005,
    synced_publish_catches_a_message_that_came_too_late: "synced-publish" catches "faulty-swaps" at 0.0005,
    latency_catches_a_message_that_is_missing: "latency" catches "faulty-gap" at 0.005,
    latency_catches_a_message_that_came_twice: "latency" catches "faulty-twice" at 0.005,
    latency_catches_a_message_that_came_too_late: "latency" catches "faulty-swaps" at 0.005,
    requests_catches_a_message_that_is_missing: "requests" catches "faulty-gap" at 0.002,
    requests_catches_a_message_that_came_twice: "requests" catches "faulty-twice" at 0.002,
    requests_catches_a_message_that_came_too_late: "requests" catches "faulty-swaps" at 0.002,
    crowd_catches_a_message_that_is_missing: "crowd/in-turn" catches "faulty-gap" at 0.05,
    crowd_catches_a_message_that_came_twice: "crowd/in-turn" catches "faulty-twice" at 0.05,
    crowd_catches_a_message_that_came_too_late: "crowd/in-turn" catches "faulty-swaps" at 0.05,
    fanout_catches_a_message_that_is_missing: "fanout/1M-1k-10k" catches "faulty-gap" at 0.005,
    fanout_catches_a_message_that_came_twice: "fanout/1M-1k-10k" catches "faulty-twice" at 0.005,
    fanout_catches_a_message_that_came_too_late: "fanout/1M-1k-10k" catches "faulty-swaps" at 0.005,
    fanout_streamed_catches_a_message_that_is_missing: "fanout/1M-1-10-streamed" catches "faulty-gap" at 0.001,
    groups_catches_a_message_that_is_missing: "groups" catches "faulty-gap" at 0.001,
    groups_catches_a_message_that_came_twice: "groups" catches "faulty-twice" at 0.001,
    groups_catches_a_message_that_came_too_late: "groups" catches "faulty-swaps" at 0.001,
    catch_up_catches_a_message_that_is_missing: "catch-up" catches "faulty-gap" at 0.0001,
    catch_up_catches_a_message_that_came_twice: "catch-up" catches "faulty-twice" at 0.0001,
    catch_up_catches_a_message_that_came_too_late: "catch-up" catches "faulty-swaps" at 0.0001,
    growth_of_topics_catches_a_message_that_is_missing: "growth/topics-1k" catches "faulty-gap" at 0.05,
    growth_of_topics_catches_a_message_that_came_twice: "growth/topics-1k" catches "faulty-twice" at 0.05,
    growth_of_topics_catches_a_message_that_came_too_late: "growth/topics-1k" catches "faulty-swaps" at 0.05,
    growth_of_subscribers_catches_a_message_that_is_missing: "growth/idle-1k" catches "faulty-gap" at 0.01,
    growth_of_subscribers_catches_a_message_that_came_twice: "growth/idle-1k" catches "faulty-twice" at 0.01,
    growth_of_subscribers_catches_a_message_that_came_too_late: "growth/idle-1k" catches "faulty-swaps" at 0.01,
    growth_of_messages_catches_a_message_that_is_missing: "growth/kept-100k" catches "faulty-gap" at 0.01,
    growth_of_messages_catches_a_message_that_came_twice: "growth/kept-100k" catches "faulty-twice" at 0.01,
    growth_of_messages_catches_a_message_that_came_too_late: "growth/kept-100k" catches "faulty-swaps" at 0.01,
    growth_of_sizes_catches_a_message_that_is_missing: "growth/size-4kB" catches "faulty-gap" at 0.005,
    growth_of_sizes_catches_a_message_that_came_twice: "growth/size-4kB" catches "faulty-twice" at 0.005,
    growth_of_sizes_catches_a_message_that_came_too_late: "growth/size-4kB" catches "faulty-swaps" at 0.005,
    backups_catches_a_stale_read: "backups/1M" catches "faulty-stale-kept" at 0.01,
    backups_catches_a_put_that_is_missing: "backups/1M" catches "faulty-loses-kept" at 0.02,
    kept_states_catches_a_stale_read: "kept-states/1M" catches "faulty-stale-kept" at 0.01,
    kept_states_catches_a_put_that_is_missing: "kept-states/1M" catches "faulty-loses-kept" at 0.02,
    tree_ramp_catches_a_node_that_is_missing: "tree-ramp/1-50-100-200" catches "faulty-loses" at 0.02,
    tree_ramp_catches_a_stale_read: "tree-ramp/1-50-100-200" catches "faulty-stale" at 0.01,
    tree_ramp_catches_a_delete_that_was_not_done: "tree-ramp/1-50-100-200" catches "faulty-keeps-deleted" at 0.01,
    tree_ramp_catches_a_delete_that_took_the_next_node: "tree-ramp/1-50-100-200" catches "faulty-deletes-next" at 0.01,
    tree_large_catches_a_node_that_is_missing: "tree-large/1M" catches "faulty-loses-tree" at 0.001,
    tree_large_catches_a_stale_read: "tree-large/1M" catches "faulty-stale-tree" at 0.001,
    tree_children_catches_a_node_that_is_missing: "tree-children/1M" catches "faulty-loses-tree" at 0.003,
    tree_children_catches_a_stale_read: "tree-children/1M" catches "faulty-stale-tree" at 0.003,
    tree_subtree_catches_a_node_that_is_missing: "tree-subtree" catches "faulty-loses-tree" at 0.01,
    tree_subtree_catches_a_stale_read: "tree-subtree" catches "faulty-stale-tree" at 0.01,
    tree_subtree_catches_a_change_that_was_not_shown: "tree-subtree" catches "faulty-skips-tree" at 0.01,
    tree_watches_catches_a_put_that_is_missing: "tree-watches/10k-paths" catches "faulty-loses-tree" at 0.01,
    tree_watches_catches_a_change_that_is_another: "tree-watches/100-subtrees" catches "faulty-stale-tree" at 0.01,
    tree_watches_catches_a_change_that_was_not_shown: "tree-watches/10k-paths" catches "faulty-skips-tree" at 0.01,
    tree_compaction_catches_a_put_that_is_missing: "tree-compaction" catches "faulty-loses-tree" at 0.001,
    tree_compaction_catches_a_stale_read: "tree-compaction" catches "faulty-stale-tree" at 0.001,
    etcd_bench_catches_a_put_that_is_missing: "etcd-bench/operations" catches "faulty-loses-etcd" at 0.001,
    etcd_bench_catches_a_stale_read: "etcd-bench/operations" catches "faulty-stale-etcd" at 0.001,
    etcd_bench_catches_an_event_that_was_not_shown: "etcd-bench/operations" catches "faulty-skips-etcd" at 0.001,
    etcd_bench_for_memory_catches_a_put_that_is_missing: "etcd-bench/memory" catches "faulty-loses-etcd" at 0.001,
}

#[test]
fn every_workload_is_in_the_matrix_with_each_fault_of_its_reads_and_writes() {
    for workload in super::ALL
        .iter()
        .filter(|workload| !["open", "sharing", "killed-publisher"].contains(&workload.name))
    {
        let faults: &[&str] = match workload.is_of_messages() {
            true => &["faulty-gap", "faulty-twice", "faulty-swaps"],
            false => &["faulty-stale", "faulty-loses"],
        };
        for fault in faults {
            let is_caught = MATRIX
                .iter()
                .any(|(name, caught)| name.split('/').next() == Some(workload.name) && caught.starts_with(fault));
            assert!(is_caught, "{} {fault}", workload.name);
        }
        let is_honest = |(name, _): &(&str, f64)| name.split('/').next() == Some(workload.name);
        assert!(TINY.iter().any(is_honest), "{}", workload.name);
    }
}

/// Checks that workloads outside the matrix do not catch this fault.
fn cannot_see(fault: &str) {
    let driver = peers::one(fault).expect("a faulty peer");
    let runs = |name: &str| named(name).expect("known")[0].workload.class_for(driver, None).is_ok();
    let all = TINY.iter().filter(|(name, _)| !MATRIX.contains(&(*name, fault)));
    for (name, scale) in all.filter(|(name, _)| runs(name)) {
        assert_eq!(caught(name, fault, *scale), None, "{name}");
    }
}

#[test]
fn workloads_without_deletes_cannot_see_that_none_are_done() {
    cannot_see("faulty-keeps-deleted");
}

/// One of these workloads deletes and is still not in the matrix: it deletes everything, so no remaining pair can be
/// missing.
#[test]
fn workloads_that_delete_nothing_or_everything_cannot_see_what_else_a_delete_takes() {
    cannot_see("faulty-deletes-next");
}

#[test]
fn what_was_acknowledged_too_early_is_seen_by_nobody_as_long_as_the_process_lives() {
    cannot_see("faulty-early");
}

#[test]
fn limit_of_the_cell_stops_every_workload_and_shows_how_far_it_came() {
    let driver = peers::one("btreemap").expect("a peer");
    for workload in super::ALL.iter().filter(|workload| !workload.needs_persistence) {
        if workload.class_for(driver, None).is_err() {
            continue;
        }
        let over = Pace {
            limit: now_nanos(),
            ..pace()
        };
        let record = run_paced(workload.name, driver, 0.0005, over);
        let record = record.unwrap_or_else(|error| panic!("{}: {error:#}", workload.name));
        let stopped = record.phases.iter().filter(|phase| !phase.is_complete()).count();
        assert!(stopped >= 1, "{}: {record:?}", workload.name);
        let complete = record.phases.iter().filter(|phase| phase.is_complete());
        assert_eq!(complete.count() + stopped, record.phases.len());
    }
}

#[test]
fn seconds_end_a_phase_and_leave_it_complete() {
    let driver = peers::one("btreemap").expect("a peer");
    let short = Pace {
        seconds: Some(0.01),
        ..pace()
    };
    let record = run_paced("ycsb-c", driver, 0.01, short).expect("an honest peer");
    assert!(record.phases.iter().all(|phase| phase.is_complete()), "{record:?}");
}

#[test]
fn open_loop_gives_operations_at_the_rate_that_was_asked_for() {
    let driver = peers::one("btreemap").expect("a peer");
    let open = Pace {
        rate: Some(5_000.0),
        ..pace()
    };
    let record = run_paced("ycsb-c", driver, 0.001, open).expect("an honest peer");
    let phase = &record.phases[0];
    assert_eq!(phase.operations, 1000);
    // 1,000 operations at 5,000 a second take 0.2 s, however fast the store is.
    assert!(phase.wall_nanos >= 190_000_000, "{phase:?}");
}

#[test]
fn peers_run_only_in_classes_that_they_have() {
    let class = |workload: &str, peer: &str, wanted| {
        named(workload).expect("known")[0]
            .workload
            .class_for(peers::one(peer).expect("known"), wanted)
    };
    assert_eq!(class("first", "lmdb", None), Ok(Class::Written));
    assert_eq!(class("first", "redb", None), Ok(Class::None));
    assert_eq!(class("first", "redb", Some(Class::Synced)), Ok(Class::Synced));
    assert!(class("first", "redb", Some(Class::Written)).is_err());
    assert!(class("synced-puts", "btreemap", None).is_err());
    assert!(class("open", "btreemap", Some(Class::None)).is_err());
}

#[test]
fn names_select_all_forms_of_a_workload_or_one() {
    let names = |name| -> Vec<String> {
        named(name).map_or(Vec::new(), |tasks| tasks.iter().map(|task| task.name()).collect())
    };
    assert_eq!(names("state"), ["state/10k", "state/1M", "state/10M"]);
    assert_eq!(names("map/1m"), ["map/1M"]);
    assert_eq!(names("first"), ["first"]);
    let error = named("map/3M").err().expect("no such form").to_string();
    assert!(error.contains("100k, 1M, 2M, 4M, 16M"), "{error}");
}
