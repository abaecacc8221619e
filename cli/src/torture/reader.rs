//! A reader: checks whole snapshots, again and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use duramen::{Kind, Store};

use super::checkpoints;
use super::content::Maps;
use super::invariants::{Seen, look};
use super::messages::{Message, Reporter};

/// Pause between two checks. Readers should see many moments without taking the processors from the writers.
const PAUSE: Duration = Duration::from_millis(5);
/// After one snapshot in so many, a reader checks the checkpoints of a writer.
const CHECKPOINTS_EVERY: u64 = 32;

pub fn read(store: &Store, slots: u32, goes_on: &AtomicBool, reporter: &mut Reporter<'_>) -> Result<(), String> {
    let maps = Maps::open(store).map_err(|error| format!("opening the maps: {error}"))?;
    let mut seen = Seen::default();
    let mut looks = 0;
    while goes_on.load(Ordering::Relaxed) {
        let snapshot = match store.snapshot() {
            Err(error) if error.kind() == Kind::Retry => continue,
            snapshot => snapshot.map_err(|error| format!("a snapshot: {error}"))?,
        };
        seen = look(&snapshot, &maps, slots, &seen)
            .map_err(|problem| format!("in the snapshot of commit {}: {problem}", snapshot.commit()))?;
        drop(snapshot);
        looks += 1;
        if looks % CHECKPOINTS_EVERY == 0 {
            let slot = (looks / CHECKPOINTS_EVERY % u64::from(slots)) as u32;
            look_at_checkpoints(store, &maps, slots, slot)?;
        }
        reporter.tell(&Message::Looked(looks))?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn look_at_checkpoints(store: &Store, maps: &Maps, slots: u32, slot: u32) -> Result<(), String> {
    let numbers = match checkpoints::numbers(store, slot) {
        Err(error) if error.kind() == Kind::Retry => return Ok(()),
        numbers => numbers.map_err(|error| format!("listing checkpoints: {error}"))?,
    };
    for number in numbers {
        checkpoints::check(store, maps, slots, slot, number)?;
    }
    Ok(())
}
