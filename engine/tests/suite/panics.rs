//! A thread panics in the middle of a commit or a fold, at every place that leaves something half done. The store stops, or
//! goes on; either way nothing that is acknowledged afterwards is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use duramen_engine::planted::{PlantedBug, panic_at, panic_points_left, plant};
use duramen_engine::{Durability, Kind, Maintenance, Map, Options, Reason, Result, Store};
use duramen_io::SimDisk;

const FAR: i64 = 1 << 40;

fn open(disk: &SimDisk) -> Store {
    let options = Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Written)
        .overwrite_freed(true)
        .generation_bytes(32 << 10, 64 << 10);
    options.open_on(disk.platform()).expect("a store")
}

type Step = fn(&Store, &Map) -> Result<()>;

fn commit(_: &Store, map: &Map) -> Result<()> {
    map.put(b"step", b"value")?;
    map.append(b"log", b"value").map(drop)
}

fn commit_of_a_long_value(_: &Store, map: &Map) -> Result<()> {
    map.put(b"step", vec![7; 100_000])
}

fn commit_of_a_map(store: &Store, _: &Map) -> Result<()> {
    store.map("new")?;
    store.maps().drop("new")
}

fn fold(store: &Store, _: &Map) -> Result<()> {
    store.maintain()
}

/// What the keys of a store hold that were acknowledged, after a panic at one point.
#[derive(Debug, Default)]
struct Run {
    is_over: bool,
    has_stopped: bool,
    lost: Vec<u32>,
}

/// Lets one thread panic at a point of a step, goes on with other commits, and opens the store again.
fn panic_once(step: Step, point: i64) -> Run {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let map = store.map("map").expect("a map");
    let mut acknowledged = Vec::new();
    let put = |number: u32, acknowledged: &mut Vec<u32>| match map.put(number.to_be_bytes(), [1; 100]) {
        Ok(()) => acknowledged.push(number),
        Err(error) => {
            assert!(matches!(error.reason(), Reason::Poisoned { .. }), "{error}");
            assert_eq!(error.kind(), Kind::Reopen);
        }
    };
    (0..100).for_each(|number| put(number, &mut acknowledged));
    panic_at(point);
    let done = catch_unwind(AssertUnwindSafe(|| step(&store, &map)));
    panic_at(0);
    if let Ok(done) = done {
        done.expect("a step in which nothing panics");
        return Run {
            is_over: true,
            ..Run::default()
        };
    }
    (100..110).for_each(|number| put(number, &mut acknowledged));
    let has_stopped = acknowledged.len() < 110;
    // Before the store closes, which folds everything.
    let killed = disk.kill();
    drop((map, store));
    let store = open(&killed);
    let map = store.map("map").expect("a map");
    acknowledged.retain(|number| map.get(number.to_be_bytes()).expect("a read").is_none());
    map.put(b"again", b"value").expect("a put");
    store.maintain().expect("a fold");
    assert_eq!(store.check(&mut |_| ()).expect("a check").problems, [""; 0]);
    Run {
        is_over: false,
        has_stopped,
        lost: acknowledged,
    }
}

/// The points of a step at which a panic stops the store, and those after which something is lost.
fn panic_everywhere(step: Step) -> (usize, usize) {
    let (mut stopped, mut losing) = (0, 0);
    for point in 1.. {
        let run = panic_once(step, point);
        if run.is_over {
            break;
        }
        stopped += usize::from(run.has_stopped);
        losing += usize::from(!run.lost.is_empty());
    }
    (stopped, losing)
}

#[test]
fn nothing_acknowledged_is_lost_after_a_panic_anywhere_in_a_commit() {
    for step in [commit as Step, commit_of_a_long_value, commit_of_a_map, fold] {
        let (stopped, losing) = panic_everywhere(step);
        assert!(stopped > 0, "a panic in the middle stops the store");
        assert_eq!(losing, 0, "acknowledged commits are lost");
    }
}

#[test]
fn commits_after_a_panic_that_stopped_nothing_would_be_lost() {
    plant(Some(PlantedBug::PanicPassedOver));
    let (_, losing) = panic_everywhere(commit);
    plant(None);
    assert!(losing > 0, "the test finds nothing");
}

#[test]
fn points_are_counted_by_thread() {
    panic_at(FAR);
    let disk = SimDisk::new(1);
    open(&disk).map("map").expect("a map");
    assert!(panic_points_left() < FAR);
    assert!(std::thread::spawn(panic_points_left).join().expect("no panic") <= 0);
    panic_at(0);
}
