//! Tests of rows that the limit of the cell stopped: what was acknowledged by then is read back.
//!
//! The peer of these tests waits for the limit in the middle of a row, so that the row stops at the same place on every
//! machine. At that moment a pair vanishes that was acknowledged long before, and only the read-back can notice it.
//! Without the loss, the run must pass and show the row as stopped.

use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::tests::{pace, run_paced};
use crate::crew::Pace;
use crate::data::KeySlice;
use crate::measure::Record;
use crate::measure::now_nanos;
use crate::peer::{Class, Description, Driver, Pairs, Peer, Reading, Setting};
use crate::peers;

/// Time that a run has until the write that waits for the limit.
const LIMIT: Duration = Duration::from_secs(6);
/// For a row that is neither stopped nor done.
const NEVER: u64 = u64::MAX;

/// Where a run is stopped: in which row, and at which write to which of the stores that the workload opens.
#[derive(Clone, Copy)]
struct Case {
    workload: &'static str,
    scale: f64,
    row: &'static str,
    store: usize,
    waits: u64,
    /// The number of the write whose pair vanishes at `waits`; if no write waits, the pair is lost at once.
    vanishes: u64,
}

const fn case(
    (workload, scale): (&'static str, f64),
    row: &'static str,
    store: usize,
    (vanishes, waits): (u64, u64),
) -> Case {
    Case {
        workload,
        scale,
        row,
        store,
        waits,
        vanishes,
    }
}

const STATE: (&str, f64) = ("state/1M", 0.0002);
const STABILITY: (&str, f64) = ("state-stability", 0.1);

/// Each case has enough pairs before the write that waits, and as many after it.
const CASES: &[Case] = &[
    case(("first", 0.0002), "single puts", 1, (5, 50)),
    case(("synced-puts", 0.0002), "1 thread", 1, (5, 50)),
    case(("synced-puts", 0.0002), "1 thread", 1, (25, 50)),
    case(("open", 0.0002), "load in batches of 1,000", 1, (5, 500)),
    case(("mega/counts", 0.0005), "writes", 1, (505, 600)),
    case(("map/100k", 0.016), "write", 1, (5, 500)),
    // The remaining keys must be present. The write that ended last is not the first one of any thread's share, and
    // each thread deletes only its first one.
    case(("map/100k", 0.016), "delete", 1, (1_599, 1_600)),
    case(("map-mixed/100k", 0.002), "mixed write", 1, (205, 215)),
    case(STATE, "seq-write", 1, (5, 50)),
    case(STATE, "rand-write", 2, (5, 50)),
    // The load of this row was stopped.
    case(STATE, "mixed", 3, (5, 50)),
    case(STATE, "mixed", 3, (205, 220)),
    case(STATE, "batch", 4, (5, 50)),
    case(STATE, "create checkpoint", 5, (5, NEVER)),
    case(STATE, "large write", 7, (5, 50)),
    case(STABILITY, "1,000 x (100 puts + flush)", 1, (5, 500)),
    case(STABILITY, "growth over 10 x 1,000 records", 3, (5, 150)),
    case(STABILITY, "100 x (50 gets + 10 puts + flush)", 4, (1_005, 1_050)),
    case(
        STABILITY,
        "50 x (200 puts of 500 B + 200 gets), checkpoints",
        5,
        (5, 250),
    ),
    case(("reads/1M", 0.0002), "single puts", 1, (5, 50)),
    case(("overwrites", 0.0005), "load, 1,000 a commit", 1, (5, 500)),
    case(("overwrites", 0.0005), "overwrites", 1, (2_505, 2_550)),
    case(("held-snapshot/500k", 0.002), "load, 1,000 a commit", 1, (5, 500)),
    case(
        ("held-snapshot/500k", 0.002),
        "overwrites beside a held snapshot",
        1,
        (2_005, 2_050),
    ),
    case(("scarce-memory", 0.002), "load, 1,000 a commit", 1, (5, 500)),
    case(("scarce-memory", 0.002), "overwrites", 1, (2_005, 2_050)),
    case(("sizes/100B", 0.0002), "random single puts", 1, (5, 50)),
    case(("sizes/100B", 0.0002), "single deletes of everything", 1, (199, 210)),
    case(("redb-table", 0.004), "single writes", 1, (5, 20_002)),
    case(("redb-table", 0.004), "single writes", 1, (20_001, 20_002)),
    case(("ycsb-e", 0.002), "95 % scans, 5 % inserts", 1, (2_005, 2_010)),
];

/// A driver that opens peers, of which one waits.
struct Waiting {
    case: Case,
    is_honest: bool,
    limit: u64,
    opened: AtomicUsize,
}

/// A peer that keeps its pairs in another peer.
struct WaitingPeer {
    inner: Box<dyn Peer>,
    /// The write that waits, and until when; `None` in stores that do not wait.
    waits: Option<(u64, u64)>,
    vanishes: Option<u64>,
    writes: AtomicU64,
    vanishing: Mutex<Option<Vec<u8>>>,
}

impl Driver for Waiting {
    fn describe(&self) -> Description {
        Description {
            name: "waiting".to_string(),
            version: "the lab's own".to_string(),
            classes: [Class::Synced, Class::Written, Class::None]
                .map(|class| (class, "claimed, wrongly".to_string()))
                .to_vec(),
            // Some workloads require this, but are stopped before they close the store.
            is_persistent: ["open", "held-snapshot/500k", "scarce-memory", "sizes/100B"].contains(&self.case.workload),
            ..Description::default()
        }
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let is_it = self.opened.fetch_add(1, Ordering::Relaxed) + 1 == self.case.store;
        // `btreemap` locks writers out as long as there is a snapshot.
        let inner = if self.case.workload == "held-snapshot/500k" {
            "lmdb"
        } else {
            "btreemap"
        };
        Ok(Box::new(WaitingPeer {
            inner: peers::one(inner)?.open(directory, setting)?,
            waits: is_it.then_some((self.case.waits, self.limit)),
            vanishes: (is_it && !self.is_honest).then_some(self.case.vanishes),
            writes: AtomicU64::new(0),
            vanishing: Mutex::default(),
        }))
    }
}

impl WaitingPeer {
    /// Does one write, or its replacement.
    fn write(&self, key: &[u8], write: impl FnOnce() -> Result<()>) -> Result<()> {
        let number = self.writes.fetch_add(1, Ordering::SeqCst);
        let (waits, limit) = self.waits.unwrap_or((NEVER, 0));
        if number == waits && self.vanishes.is_some() {
            self.inner.delete(&self.vanishing())?;
        }
        if number >= waits {
            std::thread::sleep(Duration::from_nanos(limit.saturating_sub(now_nanos())));
        }
        if self.vanishes != Some(number) {
            return write();
        }
        if waits == NEVER {
            return Ok(());
        }
        write()?;
        *self.vanishing.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.to_vec());
        Ok(())
    }

    /// Returns the key whose pair vanishes; another thread may be about to write it.
    fn vanishing(&self) -> Vec<u8> {
        loop {
            if let Some(key) = self.vanishing.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return key;
            }
            std::thread::yield_now();
        }
    }
}

impl Peer for WaitingPeer {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(key, || self.inner.put(key, value))
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        for (key, value) in pairs {
            self.put(key, value)?;
        }
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.write(key, || self.inner.delete(key))
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        keys.iter().try_for_each(|key| self.delete(key))
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        self.inner.read(reading)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn checkpoint(&self, directory: &Path) -> Result<()> {
        match self.waits {
            // The next row needs this directory; no code opens this store.
            Some((waits, _)) if waits != NEVER => Ok(std::fs::create_dir(directory)?),
            _ => self.inner.checkpoint(directory),
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.inner.close()
    }
}

fn run(case: Case, is_honest: bool) -> Result<Record> {
    let limit = now_nanos() + LIMIT.as_nanos() as u64;
    let driver = Waiting {
        case,
        is_honest,
        limit,
        opened: AtomicUsize::new(0),
    };
    // Timed work continues until the limit.
    let seconds = Some(2.0 * LIMIT.as_secs_f64());
    let pace = Pace {
        limit,
        seconds,
        ..pace()
    };
    run_paced(case.workload, &driver, case.scale, pace)
}

/// Checks all cases in parallel, because they mostly wait.
fn for_each_case(check: impl Fn(Case) + Sync) {
    std::thread::scope(|scope| {
        for case in CASES {
            let check = &check;
            scope.spawn(move || check(*case));
        }
    });
}

#[test]
fn pair_that_vanished_from_a_stopped_row_is_found() {
    for_each_case(|case| {
        let name = format!("{} {} {}", case.workload, case.row, case.vanishes);
        let error = run(case, false)
            .err()
            .unwrap_or_else(|| panic!("{name}: it was not noticed"));
        // Workloads that list or scan count the pairs.
        let error = format!("{error:#}");
        let is_named = ["key ", "a list saw", "a scan saw"]
            .iter()
            .any(|words| error.contains(words));
        assert!(is_named, "{name}: {error}");
    });
}

#[test]
fn stopped_row_of_an_honest_peer_is_shown_as_such_and_fails_nothing() {
    for_each_case(|case| {
        let name = format!("{} {}", case.workload, case.row);
        let record = run(case, true).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let stopped: Vec<_> = record.phases.iter().filter(|phase| !phase.is_complete()).collect();
        let is_stopped = stopped.iter().any(|phase| {
            let planned = phase.stopped_at_of.unwrap_or(0);
            phase.name == case.row && phase.operations > 0 && phase.operations < planned
        });
        let is_not_done = record.unsupported.iter().any(|(row, _)| row == case.row);
        assert!(
            is_stopped || is_not_done,
            "{name}: {stopped:?} {:?}",
            record.unsupported
        );
    });
}

#[test]
fn bulk_load_beyond_the_limit_is_shown_as_done_and_all_of_it_is_read_back() {
    // The bulk load is one commit, which waits in its middle.
    let case = case(("redb-table", 0.00004), "bulk load", 1, (5, 100));
    let record = run(case, true).expect("an honest peer");
    let [bulk, single] = record.phases.as_slice() else {
        panic!("the bulk load and what was stopped at its beginning: {record:?}");
    };
    assert_eq!((bulk.operations, bulk.stopped_text()), (200, None));
    assert_eq!(single.stopped_text().as_deref(), Some("stopped at 0 of 1"));
    assert!(
        record.notes.iter().any(|note| note.contains("beyond the limit")),
        "{record:?}"
    );
    let error = run(case, false).expect_err("a pair that vanished");
    assert!(format!("{error:#}").contains("not there"), "{error:#}");
}
