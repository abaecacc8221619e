//! `duramen torture`: several processes write and read one store. A supervisor kills, suspends and restarts them at
//! random, and keeps the ledger of acknowledged commits.
//!
//! ```text
//! supervisor ── starts, kills, stops ──▶ writers and readers, processes of their own, on one store
//!     ▲                                       │
//!     └── what they began, what they were acknowledged, what they found wrong: a line each, by pipe
//! ```
//!
//! A writer sends a line before each commit and after the commit returned. The kernel keeps the pipe's content when the
//! writer dies. The supervisor therefore knows which transactions must be in the store, and which may be. The writer
//! that takes over the slot of a dead one checks them (see [`ledger`]). Readers check whole snapshots, again and again
//! (see [`invariants`] and [`lists`]), and those that writers have kept (see [`checkpoints`]).

mod checkpoints;
mod content;
mod invariants;
mod ledger;
mod lists;
mod messages;
mod reader;
mod supervisor;
mod writer;

pub use messages::Role;
pub use supervisor::{Plan, Sum, torture};

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use duramen::{Durability, Kind, Options, Store};

use crate::exit::{Exit, Outcome};
use crate::output::Output;
use messages::Reporter;

/// Maximum time a member tries to open the store. Recovery after a kill of all members takes time.
const OPENING_MAX: Duration = Duration::from_secs(60);
const OPENING_STEP: Duration = Duration::from_millis(10);

/// Opens the store with the options that all members use.
fn open(directory: &Path) -> Result<Store, String> {
    let began = Instant::now();
    loop {
        let options = Options::new().durability(Durability::Written);
        match options.open(directory) {
            Err(error) if error.kind() == Kind::Retry && began.elapsed() < OPENING_MAX => {
                std::thread::sleep(OPENING_STEP);
            }
            opened => return opened.map_err(|error| format!("opening: {error}")),
        }
    }
}

/// Does the work of a member until its standard input ends or the supervisor kills it.
pub fn be_member(directory: &Path, role: Role, slot: u32, slots: u32, seed: u64, output: &mut Output) -> Outcome {
    let goes_on = until_input_ends();
    let mut reporter = Reporter::new(output);
    let done = open(directory).and_then(|store| {
        match role {
            Role::Writer => writer::write(&store, slot, slots, seed, &goes_on, &mut reporter)?,
            Role::Reader => reader::read(&store, slots, &goes_on, &mut reporter)?,
        }
        store.close().map_err(|error| format!("closing: {error}"))
    });
    match done {
        Ok(()) => reporter.ends(),
        Err(problem) => reporter.failed(&problem),
    }?;
    Ok(Exit::Done)
}

/// Returns a flag that is true while a process can write to our standard input. It becomes false when the supervisor
/// closes the pipe or dies.
fn until_input_ends() -> Arc<AtomicBool> {
    let goes_on = Arc::new(AtomicBool::new(true));
    let ended = Arc::clone(&goes_on);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        ended.store(false, Ordering::Relaxed);
    });
    goes_on
}
