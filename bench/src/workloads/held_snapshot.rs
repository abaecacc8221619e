//! A snapshot that is held while random records are overwritten: what it costs in space beside what it sees, whether it
//! still shows what it showed, and whether the writes that follow use the space again.

use std::sync::Mutex;

use anyhow::Result;

use super::loads::{BATCH_PAIRS, load_measured, read_back};
use super::{Context, Recorder, Resources, Workload, only};
use crate::crew::{crew, together};
use crate::data::{Generator, Keys, Length, Values};
use crate::measure::{Done, Work};
use crate::peer::{Class, Peer};

/// Seconds of overwriting at scale 1, each time, and the least of any scale.
const SECONDS: f64 = 60.0;
const SECONDS_MIN: f64 = 0.2;

pub const WORKLOAD: Workload = Workload {
    name: "held-snapshot",
    about: "1M pairs of 16 and 100 bytes; random ones overwritten one by one for 60 seconds while a snapshot of the first state is held, \
        which is read then, and for 60 seconds more without it: how large the files become",
    variants: only(1_000_000),
    classes: &[Class::Written, Class::None],
    needs_persistence: true,
    has_drivers: false,
    has_open_loop: true,
    resources: Resources::USUAL,
    run,
};

struct Overwrites<'a> {
    context: &'a Context<'a>,
    keys: Keys,
    values: Values,
    /// The records that are overwritten, in their order, again and again.
    picks: Vec<u32>,
    /// How often each record was overwritten.
    versions: Mutex<Vec<u32>>,
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let all = Overwrites {
        context,
        keys: Generator::new(context.seed, "load").keys(count, 16),
        values: Values::new(context.seed, Length::Fixed(100)),
        picks: Generator::new(context.seed, "overwrite").picks(count.max(1 << 16), count),
        versions: Mutex::new(vec![0; count]),
    };
    let checker = context.checker(&all.values);
    let peer = context.open()?;
    let mut loaded = 0;
    recorder.phase("load, 1,000 a commit", Work::Writes, || {
        let done = load_measured(context, &*peer, all.keys.all(), &all.values, BATCH_PAIRS)?;
        loaded = done.operations as usize;
        Ok(done)
    })?;
    if loaded < count {
        read_back(&*peer, all.keys.all().part(0, loaded), |key, found| {
            checker.present(key, 0, found)
        })?;
        return peer.close();
    }
    peer.read(&mut |held| {
        // In SQLite a snapshot begins with the first read.
        let first = all.keys.at(0);
        held.get(first, &mut |found| checker.present(first, 0, found))?;
        recorder.phase("overwrites beside a held snapshot", Work::Writes, || {
            all.overwrite(&*peer)
        })?;
        recorder.phase("reads in the held snapshot", Work::Reads, || {
            for &record in &all.picks[..count] {
                let key = all.keys.at(record as usize);
                held.get(key, &mut |found| checker.present(key, 0, found))?;
            }
            Ok(Done::untimed(count))
        })?;
        // Each of them, also when the limit of the cell stopped a row.
        all.keys
            .iter()
            .try_for_each(|key| held.get(key, &mut |found| checker.present(key, 0, found)))
    })?;
    recorder.phase("overwrites after it is dropped", Work::Writes, || all.overwrite(&*peer))?;
    let versions = all.versions.into_inner().unwrap_or_default();
    peer.read(&mut |reader| {
        all.keys
            .iter()
            .zip(&versions)
            .try_for_each(|(key, version)| reader.get(key, &mut |found| checker.present(key, *version, found)))
    })?;
    recorder.phase("sync and close", Work::Writes, || {
        peer.sync()?;
        peer.close().map(|()| Done::untimed(1))
    })
}

impl Overwrites<'_> {
    /// In a thread of its own, because the one that called may have a snapshot open, and not every store lets a thread do
    /// both.
    fn overwrite(&self, peer: &dyn Peer) -> Result<Done> {
        let seconds = self.context.scaled_seconds(SECONDS, SECONDS_MIN);
        let shift = self.context.pace.shift(1, Some(seconds));
        let mut worked = crew(1, |_| {
            let mut versions = self.versions.lock().expect("nobody else has it");
            shift.work(u64::MAX, |at| {
                let record = self.picks[at as usize % self.picks.len()] as usize;
                let key = self.keys.at(record);
                peer.put(key, self.values.of(key, versions[record] + 1))?;
                versions[record] += 1;
                Ok(())
            })
        })?;
        // It was to work for a time; only the limit of the cell cuts that short.
        worked[0].stopped_at_of = shift.is_at_limit().then_some(u64::MAX);
        Ok(together(worked))
    }
}
