//! Single puts that survive power loss, on 1, 8 and 32 threads: the cost of one sync, and whether committers share it.
//!
//! Every step runs for a time or until its keys are used up, whichever comes first, on a store that already holds some
//! pairs. After each step every acknowledged key is read back, and at the end the initial pairs.

use anyhow::{Context as _, Result};

use super::loads::{load_in_batches, read_back, read_back_shares};
use super::{Context, Recorder, Workload, variant};
use crate::crew::{crew, together};
use crate::data::{Generator, Length, Values};
use crate::measure::Work;
use crate::peer::Class;

const THREADS: [usize; 3] = [1, 8, 32];
/// Number of keys for a step at scale 1: more than any disk can sync in its time.
const KEYS: usize = 1_000_000;
/// Seconds of a step at scale 1.
const STEP: f64 = 5.0;
/// Below this a step would be only a few syncs.
const STEP_MIN: f64 = 0.2;

pub const WORKLOAD: Workload = Workload {
    name: "synced-puts",
    about: "single puts, each synced before it is acknowledged, from 1, 8 and 32 threads for 5 seconds each",
    variants: &[variant("", 100_000)],
    classes: &[Class::Synced],
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let present = |key: &[u8], found: Option<&[u8]>| checker.present(key, 0, found);
    let peer = context.open()?;
    let loaded = Generator::new(context.seed, "load").keys(context.records(), 16);
    load_in_batches(&*peer, loaded.all(), &values)?;
    let seconds = context.scaled_seconds(STEP, STEP_MIN);
    for threads in THREADS {
        let name = format!("{threads} {}", if threads == 1 { "thread" } else { "threads" });
        let share = context.scaled(KEYS).div_ceil(threads);
        let keys = Generator::new(context.seed, &name).keys(share * threads, 16);
        let mut acknowledged = Vec::new();
        recorder.phase(&name, Work::Writes, || {
            let worked = crew(threads, |worker| {
                let share = keys.all().share(worker, threads);
                let shift = context.pace.shift(threads, Some(seconds));
                shift.work(share.len() as u64, |at| {
                    let key = share.at(at as usize);
                    peer.put(key, values.of(key, 0))
                })
            })?;
            acknowledged = worked.iter().map(|worked| worked.operations).collect();
            Ok(together(worked))
        })?;
        read_back_shares(&*peer, keys.all(), &acknowledged, present).with_context(|| format!("after {name}"))?;
    }
    read_back(&*peer, loaded.all(), present).context("what was there before")?;
    peer.close()
}
