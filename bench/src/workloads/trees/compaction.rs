//! Puts at a fixed rate with and without the removal of old revisions beside them, in windows that alternate.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow};

use super::large::{COMMIT, load, path, scattered};
use crate::crew::{Pace, alone, in_turn};
use crate::data::{Length, Values};
use crate::measure::Work;
use crate::tree::FullTree;
use crate::workloads::{Context, Recorder, Workload, variant};

pub const WORKLOAD: Workload = Workload {
    name: "tree-compaction",
    about: "10,000 puts a second to nodes with 1M earlier revisions, in windows that alternate: with and without the compaction of a \
        fifth of them; look at latencies, not at rates",
    variants: &[variant("", 1_000_000)],
    run,
    ..Workload::USUAL
};

/// Nodes, puts a second, and windows of each kind.
const NODES: usize = 100_000;
const RATE: f64 = 10_000.0;
const WINDOWS: usize = 5;
/// Seconds of a window at scale 1, and the least.
const SECONDS: (f64, f64) = (4.0, 0.05);
const PARENT: &[u8] = b"table";

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let tree = context.open_tree()?;
    let nodes = context.scaled(NODES);
    // Each commit is a revision, so the earlier revisions are puts one by one.
    let revisions = context.records() as u64;
    let mut versions = vec![0u32; nodes];
    let mut at = 0;
    let mut put = |full: &dyn FullTree| {
        let number = at % nodes;
        at += 1;
        let path = path(PARENT, number);
        full.put(&path, values.of(&path, versions[number] + 1))?;
        versions[number] += 1;
        anyhow::Ok(())
    };
    let mut before = 0;
    recorder.phase("earlier revisions", Work::Writes, || {
        let full = tree.full()?;
        let mut numbers = scattered(nodes);
        for _ in 0..nodes.div_ceil(COMMIT) {
            load(full, PARENT, &values, &mut numbers.by_ref().take(COMMIT))?;
        }
        before = full.revision()?;
        Ok(alone(context.pace.whole_shift(1).work(revisions, |_| put(full))?))
    })?;
    let rows = [
        ("puts", Work::Writes),
        ("puts beside compaction", Work::Writes),
        ("compactions", Work::Writes),
    ];
    recorder.phases(&rows, || {
        let full = tree.full()?;
        let seconds = context.scaled_seconds(SECONDS.0, SECONDS.1);
        let pace = Pace {
            rate: Some(RATE),
            seconds: None,
            limit: u64::MAX,
        };
        let (mut quiet, mut beside, mut compactions) = (Vec::new(), Vec::new(), Vec::new());
        for window in 1..=WINDOWS as u64 {
            quiet.push(pace.shift(1, Some(seconds)).work(u64::MAX, |_| put(full))?);
            let is_compacting = AtomicBool::new(true);
            let worked = std::thread::scope(|scope| {
                let compacting = scope.spawn(|| {
                    let to = before + revisions * window / WINDOWS as u64;
                    let worked = context.pace.whole_shift(1).work(1, |_| full.compact(to));
                    is_compacting.store(false, Ordering::Relaxed);
                    worked
                });
                let worked = pace
                    .shift(1, None)
                    .work_while(u64::MAX, &is_compacting, |_| put(full).map(|()| 1));
                let compacted = compacting
                    .join()
                    .map_err(|_| anyhow!("the compacting thread panicked"))?;
                compactions.push(compacted?);
                worked
            })?;
            beside.push(worked);
        }
        Ok([quiet, beside, compactions].into_iter().map(in_turn).collect())
    })?;
    recorder.phase("queries", Work::Reads, || {
        let full = tree.full()?;
        let worked = context.pace.whole_shift(1).work(nodes as u64, |number| {
            let path = path(PARENT, number as usize);
            full.get(&path, &mut |found| {
                checker.present(&path, versions[number as usize], found)
            })
        })?;
        Ok(alone(worked))
    })?;
    tree.close()
}
