//! What the suites that crash, fail and damage stores share: seeds, a watchdog, a model of the store's commits
//! (`history`), random work on both (`workload`), values that look like logs (`forged`), stores with checkpoints
//! (`checkpointed`), the crashes themselves (`crashes`), and the deaths of one process among several (`deaths`).

// Each suite is a program of its own and uses a part of this.
#![allow(dead_code)]

pub mod checkpointed;
pub mod crashes;
pub mod deaths;
pub mod forged;
pub mod history;
pub mod workload;

use std::sync::mpsc;
use std::time::Duration;

use duramen_engine::{Durability, Maintenance, Options};

/// What a check found wrong: a message, so that a test of the checks can look at it.
pub type Checked<T = ()> = Result<T, String>;

/// Seed from the environment, or a random seed that is printed when the test fails.
pub fn seed() -> u64 {
    let given = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    seed
}

/// Options of a store in which little work goes a long way: generations hold a few records.
pub fn small_options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(48 << 10, 64 << 10)
        .durability(Durability::Written)
}

/// Ends the program when a test takes longer than it may: a hang is a failure too, and the seed is what it takes to
/// see it again.
pub struct Watchdog {
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    /// Watches until the value is dropped.
    pub fn start(what: &'static str, seed: u64, limit: Duration) -> Watchdog {
        let (alive, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what} hangs: DURAMEN_SEED={seed}");
                std::process::abort();
            }
        });
        Watchdog { _alive: alive }
    }
}
