//! What a store tells those who operate it: events, counters, and the last error in the background.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duramen_engine::{Durability, Kind, Maintenance, Options, Reason};
use duramen_io::SimDisk;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};

/// Events as text, one for each.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &match field.name() {
            "message" => format!("{value:?} "),
            name => format!("{name}={value:?} "),
        };
    }
}

impl Subscriber for Events {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Counters by name.
#[derive(Default)]
struct Meters(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Recorder for Meters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut meters = self.0.lock().unwrap();
        Counter::from_arc(meters.entry(key.name().to_string()).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// One test at a time: whether anybody listens is remembered for each event by all threads together.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .durability(Durability::Synced)
}

#[test]
fn events_say_what_happens() {
    let _alone = alone();
    let events = Events::default();
    tracing::subscriber::with_default(events.clone(), || {
        let store = options().open_on(SimDisk::new(1).platform()).unwrap();
        let map = store.map("map").unwrap();
        map.put("key", "value").unwrap();
        let mut late = store.begin(Default::default()).unwrap();
        late.put(&map, "key", "late").unwrap();
        map.put("key", "first").unwrap();
        late.commit().unwrap_err();
        store.maintain().unwrap();
        store.close().unwrap();
    });
    let told = events.0.lock().unwrap().join("\n");
    for expected in [
        "INFO store opened path=",
        "TRACE log synced commit=",
        "DEBUG transaction refused because of a conflict map=\"map\" key=\"\\\"key\\\"\"",
        "DEBUG log folded operations=3",
        "INFO store closed path=",
    ] {
        assert!(told.contains(expected), "{expected} is not in\n{told}");
    }
}

#[test]
fn counters_count() {
    let _alone = alone();
    let meters = Meters::default();
    metrics::with_local_recorder(&meters, || {
        let store = options().open_on(SimDisk::new(1).platform()).unwrap();
        let map = store.map("map").unwrap();
        for number in 0..10u32 {
            map.put(number.to_be_bytes(), "value").unwrap();
        }
        store.maintain().unwrap();
        let counts = store.stat().unwrap().counts;
        let meters = meters.0.lock().unwrap();
        let meter = |name: &str| meters[name].load(Ordering::Relaxed);
        assert_eq!(meter("duramen_commits_total"), counts.commits);
        assert_eq!(counts.commits, 11);
        assert_eq!(meter("duramen_syncs_total"), counts.syncs);
        assert_eq!(meter("duramen_folds_total"), counts.folds);
        assert_eq!(meter("duramen_conflicts_total"), 0);
        assert_eq!(meter("duramen_background_errors_total"), 0);
    });
}

#[test]
fn the_last_error_in_the_background_is_in_the_figures() {
    let _alone = alone();
    let store = options().open_on(SimDisk::new(1).platform()).unwrap();
    assert!(store.stat().unwrap().background_error.is_none());
    for open in [6, 7] {
        store.note_background_error("looking around", &Reason::TooManySnapshots { open }.into());
    }
    let noted = store.stat().unwrap().background_error.unwrap();
    assert_eq!(
        (noted.during, noted.kind, noted.count),
        ("looking around", Kind::Retry, 2)
    );
    assert!(noted.error.contains("7 snapshots"), "{}", noted.error);
}
