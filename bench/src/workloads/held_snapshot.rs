//! A snapshot that is held while random records are overwritten: what it costs in space beside what it sees, whether it
//! still shows what it showed, and whether the writes that follow use the space again.

use std::sync::Mutex;

use anyhow::Result;

use super::loads::{load_row, read_back_versions};
use super::{Context, Recorder, Resources, Workload, only};
use crate::crew::{crew, together};
use crate::data::{Generator, Keys, Length, Values};
use crate::measure::{Done, Work};
use crate::peer::{Class, Peer};

/// Overwrites at scale 1, each time. As many for everybody, however fast: what a snapshot holds grows with them.
const OVERWRITES: usize = 500_000;

pub const WORKLOAD: Workload = Workload {
    name: "held-snapshot",
    about: "1M pairs of 16 and 100 bytes; 500k random overwrites one by one while a snapshot of the first state is held, which is \
        read then, and as many without it: how large the files become",
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
    /// The records that are overwritten while the snapshot is held, and then, in their order.
    picks: [Vec<u32>; 2],
    /// How often each record was overwritten.
    versions: Mutex<Vec<u32>>,
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let mut overwrites = Generator::new(context.seed, "overwrite");
    let all = Overwrites {
        context,
        keys: Generator::new(context.seed, "load").keys(count, 16),
        values: Values::new(context.seed, Length::Fixed(100)),
        picks: [(); 2].map(|()| overwrites.picks(context.scaled(OVERWRITES), count)),
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
        recorder.phase("overwrites beside a held snapshot", Work::Writes, || {
            all.overwrite(&*peer, &all.picks[0])
        })?;
        recorder.phase("reads in the held snapshot", Work::Reads, || {
            for &record in &all.picks[1] {
                let key = all.keys.at(record as usize);
                held.get(key, &mut |found| checker.present(key, 0, found))?;
            }
            Ok(Done::untimed(all.picks[1].len()))
        })?;
        // Each of them, also when the limit of the cell stopped a row.
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
    /// In a thread of its own, because the one that called may have a snapshot open, and not every store lets a thread do
    /// both.
    fn overwrite(&self, peer: &dyn Peer, picks: &[u32]) -> Result<Done> {
        let worked = crew(1, |_| {
            let mut versions = self.versions.lock().expect("nobody else has it");
            self.context.pace.whole_shift(1).work(picks.len() as u64, |at| {
                let record = picks[at as usize] as usize;
                let key = self.keys.at(record);
                peer.put(key, self.values.of(key, versions[record] + 1))?;
                versions[record] += 1;
                Ok(())
            })
        })?;
        Ok(together(worked))
    }
}
