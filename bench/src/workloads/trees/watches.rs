//! Watches beside 1,000 writes a second: many that see a path each, and some that see one subtree.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use super::large::path;
use crate::crew::{Pace, alone};
use crate::measure::{Done, Latencies, Work, now_nanos, own_bytes};
use crate::tree::{FullTree, Watches};
use crate::workloads::{Context, Recorder, Workload, variant};

pub const WORKLOAD: Workload = Workload {
    name: "tree-watches",
    about: "1,000 puts a second to 10,000 paths, which 10,000 watches see, one each, or 100 watches that see them all; look \
        at latencies, not at rates",
    variants: &[variant("10k-paths", 10_000), variant("100-subtrees", 100)],
    run,
    ..Workload::USUAL
};

/// Paths that are written in turn, puts a second, and puts at scale 1.
const PATHS: usize = 10_000;
const RATE: f64 = 1_000.0;
const PUTS: usize = 20_000;
const PARENT: &[u8] = b"table";
/// How long the watches may see nothing once all is written.
const PATIENCE_NANOS: u64 = 10_000_000_000;

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let (watches, paths) = match context.variant.records {
        PATHS => (context.records(), context.records()),
        watches => (watches, context.scaled(PATHS)),
    };
    let is_below = watches != paths;
    let puts = context.scaled(PUTS) as u64;
    let tree = context.open_tree()?;
    let mut each = None;
    recorder.phases(&[("puts", Work::Writes), ("put to event", Work::Reads)], || {
        let full = tree.full()?;
        let before = own_bytes()?;
        let mut watched = (0..watches).map(|number| match is_below {
            true => PARENT.to_vec(),
            false => path(PARENT, number),
        });
        let mut set = full.watch(&mut watched, is_below)?;
        each = Some(own_bytes()?.saturating_sub(before) / watches as u64);
        let load = Load {
            full,
            watches,
            paths,
            is_below,
            begun: (0..puts).map(|_| AtomicU64::new(0)).collect(),
            is_over: AtomicBool::new(false),
        };
        load.run(&mut *set)
    })?;
    if let Some(each) = each {
        recorder.note(format!(
            "{watches} watches took {each} bytes each of memory that belongs to no file"
        ));
    }
    tree.close()
}

struct Load<'a> {
    full: &'a dyn FullTree,
    watches: usize,
    paths: usize,
    is_below: bool,
    /// When each put began.
    begun: Vec<AtomicU64>,
    /// Whether the writer has ended, by an error too.
    is_over: AtomicBool,
}

impl Load<'_> {
    fn run(&self, set: &mut dyn Watches) -> Result<Vec<Done>> {
        let pace = Pace {
            rate: Some(RATE),
            seconds: None,
            limit: u64::MAX,
        };
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| self.receive(set));
            let written = pace.shift(1, None).work(self.begun.len() as u64, |number| {
                self.begun[number as usize].store(now_nanos(), Ordering::Release);
                self.full
                    .put(&path(PARENT, number as usize % self.paths), &number.to_be_bytes())
            });
            self.is_over.store(true, Ordering::Release);
            let seen = watching.join().map_err(|_| anyhow!("the watching thread panicked"))?;
            Ok(vec![alone(written?), seen.context("watching")?])
        })
    }

    /// Waits until each watch has seen all puts that it must see: each once, in order, with the payload before.
    fn receive(&self, set: &mut dyn Watches) -> Result<Done> {
        let puts = self.begun.len() as u64;
        let expected = match self.is_below {
            true => puts * self.watches as u64,
            false => puts,
        };
        let mut next: Vec<u64> = match self.is_below {
            true => vec![0; self.watches],
            false => (0..self.watches as u64).collect(),
        };
        let step = if self.is_below { 1 } else { self.paths as u64 };
        let (mut seen, mut latencies) = (0, Latencies::default());
        let mut quiet_since = now_nanos();
        while seen < expected {
            let before = seen;
            set.next(Duration::from_millis(100), &mut |change| {
                let now = now_nanos();
                let number = next.get_mut(change.watch).context("a watch that there is not")?;
                let old = number.checked_sub(self.paths as u64).map(u64::to_be_bytes);
                ensure!(
                    change.path == path(PARENT, *number as usize % self.paths)
                        && change.payload == Some(&number.to_be_bytes()[..])
                        && change.old == old.as_ref().map(|bytes| &bytes[..]),
                    "watch {} has seen another change than put {number}",
                    change.watch
                );
                latencies.record(now - self.begun[*number as usize].load(Ordering::Acquire));
                *number += step;
                seen += 1;
                Ok(())
            })?;
            if seen > before || !self.is_over.load(Ordering::Acquire) {
                quiet_since = now_nanos();
            }
            ensure!(
                now_nanos() - quiet_since < PATIENCE_NANOS,
                "the watches have seen {seen} changes of {expected}, and no other for ten seconds"
            );
        }
        Ok(Done {
            operations: seen,
            latencies: Some(latencies),
            ..Done::default()
        })
    }
}
