//! Checkpoints that writers make. Each has the name of its writer and the number of the writer's newest transaction, and shows a
//! moment of the store like any snapshot. A writer drops those before its newest one when it makes another.

use duramen::{Checkpoint, Kind, Reason, Result, Store};

use super::content::Maps;
use super::invariants::{Seen, look, newest_of};

fn prefix(slot: u32) -> String {
    format!("writer {slot} ")
}

fn name(slot: u32, number: u64) -> String {
    format!("{}{number}", prefix(slot))
}

fn number_of(checkpoint: &Checkpoint, slot: u32) -> Option<u64> {
    checkpoint.name.strip_prefix(&prefix(slot))?.parse().ok()
}

/// Makes the checkpoint of a writer after a transaction.
pub fn keep(store: &Store, slot: u32, number: u64) -> Result<()> {
    store
        .checkpoints()
        .create(&name(slot, number), number.to_be_bytes())
        .map(drop)
}

/// The numbers of a writer's checkpoints.
pub fn numbers(store: &Store, slot: u32) -> Result<Vec<u64>> {
    let all = store.checkpoints().list()?;
    Ok(all
        .iter()
        .filter_map(|checkpoint| number_of(checkpoint, slot))
        .collect())
}

/// Drops the checkpoint of a writer after a transaction.
pub fn remove(store: &Store, slot: u32, number: u64) -> Result<()> {
    store.checkpoints().drop(&name(slot, number)).map(drop)
}

/// Checks a checkpoint of a writer as a snapshot, and that the writer's newest transaction in it is the one in its name. `false`: it
/// was dropped meanwhile, or a process that is suspended blocked the call.
pub fn check(store: &Store, maps: &Maps, slots: u32, slot: u32, number: u64) -> std::result::Result<bool, String> {
    let name = name(slot, number);
    let told = |problem: String| format!("checkpoint {name:?}: {problem}");
    let snapshot = match store.checkpoints().open(&name) {
        Err(error) if error.kind() == Kind::Retry || matches!(error.reason(), Reason::UnknownCheckpoint { .. }) => {
            return Ok(false);
        }
        opened => opened.map_err(|error| told(error.to_string()))?,
    };
    look(&snapshot, maps, slots, &Seen::default()).map_err(told)?;
    let newest = newest_of(&snapshot, maps, slot).map_err(told)?;
    if newest != number {
        return Err(told(format!("it shows {newest} transactions of its writer")));
    }
    Ok(true)
}
