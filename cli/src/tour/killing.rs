//! Fifth chapter: a process is killed in the middle of writing, many times, and no acknowledged commit is lost.
//!
//! The child (see `victim`) acknowledges each commit by sending its number down a pipe after the commit returned. Every
//! order in the ledger must be in the store. For each kill, the store may have one more order that was committed but
//! not yet acknowledged. Each order is written together with a counter, so half a transaction would show.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use duramen::{Durability, Map, Options, Snapshot, Store};
use serde_json::json;

use super::source;
use super::stage::{Stage, duration};
use super::victim::{Part, let_run_and_kill};
use crate::exit::{Exit, Failure, Outcome};
use crate::text::grouped;

const SOURCE: &str = include_str!("killing.rs");

const KILLS: u32 = 25;
/// After one kill in this many, the tour does not repair the store before the next child opens it.
const UNATTENDED_EVERY: u32 = 4;

/// The acknowledged orders, and the duration of each recovery.
#[derive(Default)]
struct Ledger {
    acknowledged: Vec<u64>,
    recoveries: Vec<Duration>,
}

pub fn kill(stage: &mut Stage<'_>, store: Store, directory: &Path) -> Outcome<Store> {
    let about = "The store is closed, and given to another process, which writes orders and acknowledges each one \
                 down a pipe, until it is killed (SIGKILL, at a random moment). This is what it runs:";
    stage.chapter("Kill it", about)?;
    stage.listing(&source::function(SOURCE, "write_until_killed"))?;
    shown! { stage;
        store.close()?; // what is in the log is folded into the data file
    }
    let mut ledger = Ledger::default();
    shown! { stage, KILLS;
        for kill in 1..=KILLS {
            ledger.acknowledged.extend(let_run_and_kill(Part::Orders, directory)?);
            if kill % UNATTENDED_EVERY != 0 { // sometimes the next victim has to recover
                let begun = Instant::now();
                let store = Store::open(directory)?;
                ledger.recoveries.push(begun.elapsed());
                store.close()?;
            }
        }
    }
    shown! { stage;
        let store = Store::open(directory)?;
    }
    report(stage, &store, &ledger)?;
    Ok(store)
}

/// The work of the child.
pub fn write_until_killed(directory: &Path) -> Outcome {
    let store = Options::new().durability(Durability::Written).open(directory)?;
    let (orders, totals) = (store.map("orders")?, store.map("totals")?);
    let mut pipe = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    for number in orders.count()?.. {
        store.transact(|tx| {
            tx.put(&orders, order_key(number).as_bytes(), order(number).as_bytes())?;
            tx.add(&totals, b"orders", 1)
        })?;
        pipe.write_all(&number.to_le_bytes())?; // from here on it must not be lost
    }
    Ok(Exit::Done)
}

fn order_key(number: u64) -> String {
    format!("order/{number:08}")
}

fn order(number: u64) -> String {
    format!("{} plums for customer {}", number % 97 + 1, number * 7919 % 1000)
}

fn report(stage: &mut Stage<'_>, store: &Store, ledger: &Ledger) -> Outcome<()> {
    let snapshot = store.snapshot()?;
    let (orders, totals) = (store.map("orders")?, store.map("totals")?);
    let acknowledged = ledger.acknowledged.len() as u64;
    let found = found(&snapshot, &orders, &ledger.acknowledged)?;
    let stored = snapshot.count(&orders, ..)?;
    let counter = snapshot.get(&totals, b"orders")?.map(|value| value.to_vec());
    let total = counter
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, i64::from_be_bytes) as u64;
    stage.figure(
        "kills",
        json!({"kills": KILLS, "acknowledged": acknowledged, "found": found, "stored": stored, "counted": total}),
    );
    let (of, there) = (grouped(acknowledged), grouped(found));
    stage.result(format!("killed {KILLS} times: {of} orders acknowledged, {there} found"))?;
    let more = stored.saturating_sub(found);
    stage.result(format!(
        "{more} more were committed, but killed before saying so; the counter says {}",
        grouped(total)
    ))?;
    let mean = ledger.recoveries.iter().sum::<Duration>().as_nanos() as f64 / ledger.recoveries.len().max(1) as f64;
    let worst = ledger.recoveries.iter().max().copied().unwrap_or_default().as_nanos() as f64;
    stage.result(format!(
        "opening after a kill took {} on average, {} at worst",
        duration(mean),
        duration(worst)
    ))?;
    let is_right = found == acknowledged && total == stored && more <= KILLS as u64;
    match is_right {
        true => Ok(()),
        false => Err(Failure::damaged(
            "a kill lost something, or left half of it: this is a bug in Duramen",
        )),
    }
}

fn found(snapshot: &Snapshot, orders: &Map, acknowledged: &[u64]) -> Outcome<u64> {
    let mut found = 0;
    for &number in acknowledged {
        let value = snapshot.get(orders, order_key(number).as_bytes())?;
        found += value.is_some_and(|value| *value == *order(number).as_bytes()) as u64;
    }
    Ok(found)
}
