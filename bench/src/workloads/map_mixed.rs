//! mmcmap's mixed load: the store has N keys. The workload does 0.8 N reads of them in parallel with 0.2 N writes of
//! new keys.

use anyhow::{Result, ensure};

use super::loads::{load_in_batches, read_back, read_back_shares};
use super::map::{LETTERS, THREADS, VARIANTS};
use super::{Context, Recorder, Workload};
use crate::crew::{crew, together};
use crate::data::{Generator, Length, Values};
use crate::measure::Work;

/// Number of writers among the 16 threads, in proportion to their share of the operations.
const WRITERS: usize = 3;
const READERS: usize = THREADS - WRITERS;

pub const WORKLOAD: Workload = Workload {
    name: "map-mixed",
    about: "mmcmap's mixed load: N keys of 32 letters; 0.8 N reads of them by 13 threads while 3 threads write 0.2 N new ones",
    variants: VARIANTS,
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let (reads, writes) = (count * 4 / 5, (count / 5).max(1));
    let seeded = Generator::new(context.seed, "letters").letters(count, LETTERS);
    let fresh = Generator::new(context.seed, "fresh letters").letters(writes, LETTERS);
    let order = seeded.picked(&Generator::new(context.seed, "read").picks(reads, count));
    let values = Values::new(context.seed, Length::Key);
    let checker = context.checker(&values);
    let present = |key: &[u8], found: Option<&[u8]>| checker.present(key, 0, found);
    let peer = context.open()?;
    load_in_batches(&*peer, seeded.all(), &values)?;

    let mut acknowledged = Vec::new();
    let names = [("mixed read", Work::Reads), ("mixed write", Work::Writes)];
    recorder.phases(&names, || {
        let mut worked = crew(THREADS, |worker| {
            let shift = context.pace.shift(THREADS, None);
            if let Some(reader) = worker.checked_sub(WRITERS) {
                let share = order.all().share(reader, READERS);
                return shift.work(share.len() as u64, |at| {
                    let key = share.at(at as usize);
                    peer.get(key, &mut |found| present(key, found))
                });
            }
            let share = fresh.all().share(worker, WRITERS);
            shift.work(share.len() as u64, |at| {
                let key = share.at(at as usize);
                peer.put(key, values.of(key, 0))
            })
        })?;
        let readers = worked.split_off(WRITERS);
        acknowledged = worked.iter().map(|worked| worked.operations).collect();
        Ok(vec![together(readers), together(worked)])
    })?;
    ensure!(
        acknowledged.len() == WRITERS,
        "the readers and writers are the first phase, which always runs"
    );
    read_back(&*peer, seeded.all(), present)?;
    read_back_shares(&*peer, fresh.all(), &acknowledged, present)?;
    peer.close()
}
