//! `duramen torture`: several processes write and read one store while a supervisor kills, stops and restarts them at random,
//! and holds the ledger of what was acknowledged.
//!
//! ```text
//! supervisor ── starts, kills, stops ──▶ writers and readers, processes of their own, on one store
//!     ▲                                       │
//!     └── what they began, what they were acknowledged, what they found wrong: a line each, by pipe
//! ```
//!
//! A line is written to the pipe before a commit and after it returned, and the kernel keeps what is in the pipe when the
//! writer dies. So the supervisor knows what must be there, and what may be; whoever takes the place of a dead writer looks
//! (see [`ledger`]). Readers look at everything in a snapshot, again and again (see [`invariants`] and [`lists`]).

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

/// How long a member tries to open the store: recovery of a killed group takes its time.
const OPENING_MAX: Duration = Duration::from_secs(60);
const OPENING_STEP: Duration = Duration::from_millis(10);

/// Opens the store as all members do.
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

/// Does the work of a member until its standard input ends, or it is killed.
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

/// True until nobody can write to our standard input any more: the supervisor closes it, or is dead.
fn until_input_ends() -> Arc<AtomicBool> {
    let goes_on = Arc::new(AtomicBool::new(true));
    let ended = Arc::clone(&goes_on);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        ended.store(false, Ordering::Relaxed);
    });
    goes_on
}
