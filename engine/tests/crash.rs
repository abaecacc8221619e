//! Crashes at every call: what was acknowledged is there afterwards, in one piece, and nothing else.
//!
//! A run of random work is stopped in each of its calls to the disk (`common/crashes.rs`). After a kill every
//! acknowledged commit must be there; after a power cut every one that was acknowledged as synced; in both cases the
//! state is that after some commit, with at most the one in flight more. `DURAMEN_CRASH_POINTS` makes the run longer,
//! `DURAMEN_SEED` repeats one.

mod common;

use std::time::Duration;

use common::crashes::{Case, Tally};
use common::{Watchdog, seed};

/// Crash points of the everyday run, of both tests together.
const POINTS: u64 = 10_000;

fn points() -> u64 {
    let asked = std::env::var("DURAMEN_CRASH_POINTS").ok();
    asked.and_then(|points| points.parse().ok()).unwrap_or(POINTS)
}

fn limit(points: u64) -> Duration {
    Duration::from_secs(600 + points / 10)
}

#[test]
fn short_work_that_crashes_in_any_call_is_recovered() {
    let (seed, wanted) = (seed(), points() * 6 / 10);
    let _watchdog = Watchdog::start("a crash", seed, limit(wanted));
    let mut tally = Tally::default();
    for round in 0.. {
        let case = Case::new(seed.wrapping_add(round), 5 + (round % 4) as u32 * 12);
        for calls in 0..=case.calls() {
            if let Err(cause) = case.stopping_after(calls).run(&mut tally) {
                panic!("{cause}");
            }
        }
        if tally.points() >= wanted {
            break;
        }
    }
    println!("{tally:?}");
}

#[test]
fn long_work_that_crashes_somewhere_is_recovered() {
    let (seed, wanted) = (seed().wrapping_add(1 << 32), points() * 4 / 10);
    let _watchdog = Watchdog::start("a crash", seed, limit(wanted));
    let mut tally = Tally::default();
    for round in 0.. {
        let case = Case::new(seed.wrapping_add(round), 200);
        let mut rng = fastrand::Rng::with_seed(case.seed);
        let calls = case.calls();
        for _ in 0..8 {
            if let Err(cause) = case.stopping_after(rng.u64(..=calls)).run(&mut tally) {
                panic!("{cause}");
            }
        }
        if tally.points() >= wanted {
            break;
        }
    }
    println!("{tally:?}");
}
