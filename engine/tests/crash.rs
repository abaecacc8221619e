//! Crashes at every call: what was acknowledged is there afterwards, in one piece, and nothing else.
//!
//! A run of random work is stopped in each of its calls to the disk (`common/crashes.rs`): that of one process, and that of
//! several which share the store, come and go. After a kill every
//! acknowledged commit must be there; after a power cut every one that was acknowledged as synced; in both cases the
//! state is that after some commit, with at most the one in flight more. `DURAMEN_CRASH_POINTS` makes the run longer,
//! `DURAMEN_SEED` repeats one.

mod common;

use std::time::Duration;

use common::crashes::{Case, Tally};
use common::{Watchdog, seed};

/// Crash points of the everyday run, of all tests together.
const POINTS: u64 = 10_000;

fn points() -> u64 {
    let asked = std::env::var("DURAMEN_CRASH_POINTS").ok();
    asked.and_then(|points| points.parse().ok()).unwrap_or(POINTS)
}

fn limit(points: u64) -> Duration {
    Duration::from_secs(600 + points / 10)
}

/// Crashes in every call of short work, of one seed after the other.
fn crash_in_any_call(seed: u64, wanted: u64, case_of: impl Fn(u64) -> Case) {
    let _watchdog = Watchdog::start("a crash", seed, limit(wanted));
    let mut tally = Tally::default();
    for round in 0.. {
        let case = case_of(round);
        for calls in 0..=case.calls() {
            if let Err(cause) = case.stopping_after(calls).run(&mut tally) {
                panic!("{cause}");
            }
        }
        if tally.points() >= wanted {
            break;
        }
    }
    println!("{} crash points: {tally:?}", tally.points());
}

/// Crashes in some calls of long work, of one seed after the other.
fn crash_somewhere(seed: u64, wanted: u64, case_of: impl Fn(u64) -> Case) {
    let _watchdog = Watchdog::start("a crash", seed, limit(wanted));
    let mut tally = Tally::default();
    for round in 0.. {
        let case = case_of(round);
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
    println!("{} crash points: {tally:?}", tally.points());
}

fn short(seed: u64, round: u64) -> Case {
    Case::new(seed.wrapping_add(round), 5 + (round % 4) as u32 * 12)
}

fn long(seed: u64, round: u64) -> Case {
    Case::new(seed.wrapping_add(round), 200)
}

/// Two or three.
fn processes(round: u64) -> usize {
    2 + (round % 3 == 2) as usize
}

#[test]
fn short_work_that_crashes_in_any_call_is_recovered() {
    let seed = seed();
    crash_in_any_call(seed, points() * 4 / 10, |round| short(seed, round));
}

#[test]
fn long_work_that_crashes_somewhere_is_recovered() {
    let seed = seed().wrapping_add(1 << 32);
    crash_somewhere(seed, points() * 3 / 10, |round| long(seed, round));
}

#[test]
fn short_work_of_several_processes_that_crashes_in_any_call_is_recovered() {
    let seed = seed().wrapping_add(2 << 32);
    let case_of = |round| short(seed, round).among(processes(round));
    crash_in_any_call(seed, points() * 2 / 10, case_of);
}

#[test]
fn long_work_of_several_processes_that_crashes_somewhere_is_recovered() {
    let seed = seed().wrapping_add(3 << 32);
    let case_of = |round| long(seed, round).among(processes(round));
    crash_somewhere(seed, points() / 10, case_of);
}

/// Crash points of the everyday run after one of several processes died: the others wait for a tenth of a second each time
/// they find a lock that it had.
const DEATHS_SHARE: u64 = 20;
/// Cases with deaths in one program: each leaves a thread and its addresses behind.
const ROUNDS_OF_A_PROGRAM: u64 = 10;
const DEATHS_OF_A_CASE: u32 = 4;
const FIRST_ROUND: &str = "DURAMEN_CRASH_ROUND";
const SEED: &str = "DURAMEN_SEED";

#[test]
#[ignore = "the test of deaths runs it as a program of its own"]
fn child_process() {
    let Ok(first) = std::env::var(FIRST_ROUND) else { return };
    let first: u64 = first.parse().expect("a number");
    let seed = seed().wrapping_add(4 << 32);
    let mut tally = Tally::default();
    for round in first..first + ROUNDS_OF_A_PROGRAM {
        let case = short(seed, round).among(processes(round));
        let mut rng = fastrand::Rng::with_seed(case.seed);
        let calls = case.calls();
        for _ in 0..DEATHS_OF_A_CASE {
            // It makes about as many itself.
            if let Err(cause) = case.run_with_death(rng.u64(..=calls / case.processes as u64), &mut tally) {
                panic!("{cause}");
            }
        }
    }
    println!("\n{} points, {tally:?}", tally.points());
}

/// Crash points of some rounds, in another program.
fn deaths_from(round: u64, seed: u64) -> u64 {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child_process", "--ignored", "--nocapture"]);
    let output = command.env(FIRST_ROUND, round.to_string()).env(SEED, seed.to_string());
    let output = output.output().expect("a program");
    let said = String::from_utf8_lossy(&output.stdout);
    let points = said.lines().find_map(|line| line.split_once(" points, "));
    match points {
        Some((points, tally)) if output.status.success() => {
            println!("{points} points, {tally}");
            points.parse().expect("a number")
        }
        _ => panic!("{said}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

#[test]
fn others_go_on_after_one_of_several_processes_died_in_a_call_and_so_does_who_comes_after_a_power_cut() {
    let (seed, wanted) = (seed(), points() / DEATHS_SHARE);
    let _watchdog = Watchdog::start("a death", seed, limit(points()));
    let mut points = 0;
    for round in (0..).step_by(ROUNDS_OF_A_PROGRAM as usize) {
        points += deaths_from(round, seed);
        if points >= wanted {
            break;
        }
    }
    println!("{points} crash points after a death");
}
