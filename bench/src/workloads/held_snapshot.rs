//! A snapshot is held while random records are overwritten. The workload measures the space that this costs, checks
//! that the snapshot still shows its state, and checks that later writes reuse the space.
//!
//! `held-snapshot/500k` has a number of overwrites, equal for every peer. `held-snapshot/1h` holds the snapshot during
//! an hour of overwrites. If a store's files grow without end, the hour ends when they reach a limit, which is in
//! proportion to the scale.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::loads::{load_row, read_back_versions};
use super::{Context, Recorder, Workload, variant};
use crate::crew::{Shift, crew, together};
use crate::data::{Generator, Keys, Length, Values};
use crate::measure::{Done, Work};
use crate::peer::Peer;
use crate::scratch::allocated_bytes;

/// Overwrites at scale 1, each time, and all overwrites after the hour. The number is equal for every peer, however
/// fast, because it determines how much a snapshot holds.
const OVERWRITES: usize = 500_000;
/// Seconds of overwriting beside the snapshot in the long form at scale 1, and the minimum at any scale.
const SECONDS: f64 = 3_600.0;
const SECONDS_MIN: f64 = 0.2;
/// Size of the files that ends the hour at scale 1, and the minimum at any scale. A store that keeps every overwritten
/// record, such as LMDB, otherwise takes gigabytes within seconds; on a full disk LMDB's write fails with `EIO`.
const FILES_BYTES_MAX: f64 = (16u64 << 30) as f64;
const FILES_BYTES_MIN: u64 = 64 << 20;
/// Interval between two checks of the files.
const LOOK: Duration = Duration::from_millis(50);
const LONG: &str = "1h";

pub const WORKLOAD: Workload = Workload {
    name: "held-snapshot",
    about: "1M pairs of 16 and 100 bytes; 500k random overwrites one by one, or an hour of them, while a snapshot of the first \
        state is held, which is read then, and 500k without it: how large the files become",
    variants: &[variant("500k", 1_000_000), variant(LONG, 1_000_000)],
    needs_persistence: true,
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

struct Overwrites<'a> {
    context: &'a Context<'a>,
    keys: Keys,
    values: Values,
    /// The records to overwrite, in order: while the snapshot is held, and afterwards.
    picks: [Vec<u32>; 2],
    /// Number of overwrites of each record.
    versions: Mutex<Vec<u32>>,
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let is_long = context.variant.label == LONG;
    let first_picks = if is_long { count } else { context.scaled(OVERWRITES) };
    let mut overwrites = Generator::new(context.seed, "overwrite");
    let all = Overwrites {
        context,
        keys: Generator::new(context.seed, "load").keys(count, 16),
        values: Values::new(context.seed, Length::Fixed(100)),
        picks: [first_picks, context.scaled(OVERWRITES)].map(|picks| overwrites.picks(picks, count)),
        versions: Mutex::new(vec![0; count]),
    };
    let checker = context.checker(&all.values);
    let peer = context.open()?;
    if !load_row(context, recorder, &*peer, &all.keys, &all.values)? {
        return peer.close();
    }
    peer.read(&mut |held| {
        // In SQLite a snapshot begins with the first read.
        let first = all.keys.at(0);
        held.get(first, &mut |found| checker.present(first, 0, found))?;
        let mut is_too_large = false;
        recorder.phase("overwrites beside a held snapshot", Work::Writes, || {
            if !is_long {
                return all.overwrite(&*peer, &all.picks[0]);
            }
            let (done, has_ended) = all.overwrite_for_long(&*peer)?;
            is_too_large = has_ended;
            Ok(done)
        })?;
        if is_too_large {
            recorder.note(format!(
                "the overwrites beside the snapshot ended when the files had {} bytes",
                all.files_bytes_max()
            ));
        }
        recorder.phase("reads in the held snapshot", Work::Reads, || {
            for &record in &all.picks[1] {
                let key = all.keys.at(record as usize);
                held.get(key, &mut |found| checker.present(key, 0, found))?;
            }
            Ok(Done::untimed(all.picks[1].len()))
        })?;
        // Checks every record, even when the limit of the cell stopped a row.
        all.keys
            .iter()
            .try_for_each(|key| held.get(key, &mut |found| checker.present(key, 0, found)))
    })?;
    recorder.phase("overwrites after it is dropped", Work::Writes, || {
        all.overwrite(&*peer, &all.picks[1])
    })?;
    let versions = all.versions.into_inner().unwrap_or_default();
    read_back_versions(&*peer, &all.keys, &versions, checker)?;
    recorder.phase("sync and close", Work::Writes, || {
        peer.sync()?;
        peer.close().map(|()| Done::untimed(1))
    })
}

impl Overwrites<'_> {
    fn files_bytes_max(&self) -> u64 {
        ((FILES_BYTES_MAX * self.context.scale) as u64).max(FILES_BYTES_MIN)
    }

    fn overwrite(&self, peer: &dyn Peer, picks: &[u32]) -> Result<Done> {
        let shift = self.context.pace.whole_shift(1);
        self.overwrite_while(peer, shift, picks, picks.len() as u64, &AtomicBool::new(true))
    }

    /// Overwrites for the time of the long form, or until the files are too large. Returns whether they are.
    fn overwrite_for_long(&self, peer: &dyn Peer) -> Result<(Done, bool)> {
        let seconds = self.context.scaled_seconds(SECONDS, SECONDS_MIN);
        let shift = self.context.pace.shift(1, Some(seconds));
        let files_bytes_max = self.files_bytes_max();
        let (goes_on, is_done) = (AtomicBool::new(true), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    if allocated_bytes(self.context.directory)? > files_bytes_max {
                        goes_on.store(false, Ordering::Relaxed);
                        break;
                    }
                    std::thread::park_timeout(LOOK);
                }
                anyhow::Ok(())
            });
            let done = self.overwrite_while(peer, shift, &self.picks[0], u64::MAX, &goes_on);
            is_done.store(true, Ordering::Relaxed);
            watcher.thread().unpark();
            let watched = watcher
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the watcher of the files panicked")));
            watched.and(done).map(|done| (done, !goes_on.load(Ordering::Relaxed)))
        })
    }

    /// Overwrites the picked records repeatedly, until `planned` overwrites are done. Runs in its own thread, because
    /// the calling thread may have a snapshot open, and not every store lets a thread do both.
    fn overwrite_while(
        &self,
        peer: &dyn Peer,
        shift: Shift,
        picks: &[u32],
        planned: u64,
        goes_on: &AtomicBool,
    ) -> Result<Done> {
        let worked = crew(1, |_| {
            let mut versions = self.versions.lock().expect("no thread panics with it");
            let mut worked = shift.work_while(planned, goes_on, |at| {
                let record = picks[at as usize % picks.len()] as usize;
                let key = self.keys.at(record);
                peer.put(key, self.values.of(key, versions[record] + 1))?;
                versions[record] += 1;
                Ok(1)
            })?;
            if planned == u64::MAX {
                // The plan was to work for a time; only the limit of the cell cuts that short.
                worked.stopped_at_of = shift.is_at_limit().then_some(u64::MAX);
            }
            Ok(worked)
        })?;
        Ok(together(worked))
    }
}
