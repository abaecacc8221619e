//! The load behind redb's published table: 24-byte keys, 150-byte values, 5M records. Bulk load in one commit, single
//! and batch writes, random reads and ranges, reads at 4 to 32 threads, removal of half, size before and after
//! compaction. The caches are as large as in the published table.

use anyhow::{Result, ensure};

use super::loads::{get_in_snapshots, put_batch, put_each, ranges_in_a_snapshot, read_back, read_back_shares};
use super::{Context, Recorder, Resources, Workload, only, tally_scan};
use crate::crew::alone;
use crate::data::{Generator, KeySlice, Keys, Length, Values};
use crate::measure::{Done, Work};
use crate::peer::{Class, Peer};

/// As large as in the published table.
const CACHE_BYTES: u64 = 4 << 30;
const READS: usize = 1_000_000;
const RANGES: usize = 500_000;
const RANGE_PAIRS: u64 = 10;
const THREADS: [usize; 4] = [4, 8, 16, 32];

pub const WORKLOAD: Workload = Workload {
    name: "redb-table",
    about: "the load of redb's published table: 5M records of 24 and 150 bytes: bulk load, single and batch writes, random \
        reads, ranges, reads at 4 to 32 threads, removals, size before and after compaction",
    variants: only(5_000_000),
    classes: &[Class::Written, Class::None],
    needs_persistence: false,
    has_drivers: false,
    has_open_loop: false,
    resources: Resources {
        cache_bytes: |_| CACHE_BYTES,
        ..Resources::USUAL
    },
    run,
};

struct Table<'a> {
    context: &'a Context<'a>,
    values: Values,
    bulk: Keys,
    peer: Box<dyn Peer>,
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let table = Table {
        context,
        values: Values::new(context.seed, Length::Fixed(150)),
        bulk: Generator::new(context.seed, "bulk").keys(context.records(), 24),
        peer: context.open()?,
    };
    table.bulk_load(recorder)?;
    let single = table.single_writes(recorder, "single writes", 1_000)?;
    let batches = table.batch_writes(recorder)?;
    // The published row of writes without a sync is another class; in the classes without a sync it is this one.
    let many = (context.class != Class::Synced)
        .then(|| table.single_writes(recorder, "50,000 single writes", 50_000))
        .transpose()?;
    table.reads(recorder)?;
    table.verify([Some(&single), Some(&batches), many.as_ref()])?;
    let is_removed = table.remove_half(recorder)?;
    recorder.phase("compact", Work::Writes, || {
        table.peer.compact().map(|()| Done::untimed(1))
    })?;
    table.verify_after_removal(is_removed)?;
    table.peer.close()
}

impl Table<'_> {
    fn present(&self) -> impl Fn(&[u8], Option<&[u8]>) -> Result<()> + Sync + Copy {
        let checker = self.context.checker(&self.values);
        move |key, found| checker.present(key, 0, found)
    }

    fn bulk_load(&self, recorder: &mut Recorder) -> Result<()> {
        recorder.phase("bulk load", Work::Writes, || {
            put_batch(&*self.peer, self.bulk.all(), &self.values)?;
            Ok(Done::untimed(self.bulk.len()))
        })?;
        // One commit, as published, which nothing can stop: it is done in full, and what comes after it is stopped.
        if self.context.pace.is_over() {
            recorder.note("the bulk load, one commit, ended beyond the limit of the cell".to_string());
        }
        Ok(())
    }

    fn single_writes(&self, recorder: &mut Recorder, name: &str, count: usize) -> Result<Keys> {
        let keys = Generator::new(self.context.seed, name).keys(self.context.scaled(count), 24);
        let mut acknowledged = Vec::new();
        recorder.phase(name, Work::Writes, || {
            let (done, counts) = put_each(self.context, &*self.peer, keys.all(), &self.values, 1)?;
            acknowledged = counts;
            Ok(done)
        })?;
        read_back_shares(&*self.peer, keys.all(), &acknowledged, self.present())?;
        let written = acknowledged.iter().sum::<u64>() as usize;
        Ok(Keys::collect(24, keys.iter().take(written)))
    }

    fn batch_writes(&self, recorder: &mut Recorder) -> Result<Keys> {
        let (batches, each) = (self.context.scaled(100).min(100), 1_000);
        let keys = Generator::new(self.context.seed, "batches").keys(batches * each, 24);
        let mut written = 0;
        recorder.phase("batch writes", Work::Writes, || {
            let shift = self.context.pace.whole_shift(1);
            let worked = shift.work_while(batches as u64, &true.into(), |batch| {
                let start = batch as usize * each;
                put_batch(&*self.peer, keys.all().part(start, start + each), &self.values)?;
                written = start + each;
                Ok(each as u64)
            })?;
            Ok(alone(worked))
        })?;
        Ok(Keys::collect(24, keys.iter().take(written)))
    }

    fn reads(&self, recorder: &mut Recorder) -> Result<()> {
        let count = self.context.scaled(READS);
        let picks = Generator::new(self.context.seed, "reads").picks(count, self.bulk.len());
        let reads = self.bulk.picked(&picks);
        recorder.phase("random reads", Work::Reads, || {
            get_in_snapshots(self.context, &*self.peer, reads.all(), 1, self.present())
        })?;
        let sorted = self.bulk.sorted();
        let starts = Generator::new(self.context.seed, "ranges").picks(self.context.scaled(RANGES), sorted.len());
        let checker = self.context.checker(&self.values);
        recorder.phase("random range reads", Work::Reads, || {
            ranges_in_a_snapshot(self.context, &*self.peer, sorted.all(), &starts, RANGE_PAIRS, checker)
        })?;
        for threads in THREADS {
            recorder.phase(&format!("random reads, {threads} threads"), Work::Reads, || {
                get_in_snapshots(self.context, &*self.peer, reads.all(), threads, self.present())
            })?;
        }
        Ok(())
    }

    /// Everything that was written is there, and nothing else.
    fn verify(&self, written: [Option<&Keys>; 3]) -> Result<()> {
        let mut pairs = self.bulk.len();
        read_back(&*self.peer, self.bulk.all(), self.present())?;
        for keys in written.into_iter().flatten() {
            read_back(&*self.peer, keys.all(), self.present())?;
            pairs += keys.len();
        }
        if !self.context.is_exempt() {
            let seen = tally_scan(&*self.peer)?.pairs();
            ensure!(seen == pairs as u64, "a scan saw {seen} pairs, {pairs} are there");
        }
        Ok(())
    }

    fn removed(&self) -> KeySlice<'_> {
        self.bulk.all().part(0, self.bulk.len() / 2)
    }

    /// Whether the phase was reached.
    fn remove_half(&self, recorder: &mut Recorder) -> Result<bool> {
        let mut is_done = false;
        recorder.phase("removals", Work::Writes, || {
            self.peer.delete_many(self.removed())?;
            is_done = true;
            Ok(Done::untimed(self.removed().len()))
        })?;
        Ok(is_done)
    }

    fn verify_after_removal(&self, is_removed: bool) -> Result<()> {
        let checker = self.context.checker(&self.values);
        let rest = self.bulk.all().part(self.removed().len(), self.bulk.len());
        read_back(&*self.peer, rest, self.present())?;
        read_back(&*self.peer, self.removed(), |key, found| match is_removed {
            true => checker.absent(key, found),
            false => checker.present(key, 0, found),
        })
    }
}
