//! The load behind redb's published table: 24-byte keys, 150-byte values, 5M records. It includes the bulk load in one
//! commit, single and batch writes right after it, sorted inserts, and unsynced writes. It goes on with `len`, random
//! reads and ranges, and reads on 4 to 32 threads. Removal of half, `retain`, `extract_if` and pops follow, each in one
//! commit. The last rows are the size before and after compaction. The caches are as large as in the published table.

use std::collections::HashSet;

use anyhow::{Result, ensure};

use super::loads::{get_in_snapshots, put_batch, put_each, ranges_in_a_snapshot, read_back, read_back_shares};
use super::{Context, Recorder, Resources, Workload, variant};
use crate::crew::alone;
use crate::data::{Generator, Keys, Length, Values, key_text};
use crate::measure::{Done, Work};
use crate::peer::{Class, End, Peer};

/// Cache size of the published table.
const CACHE_BYTES: u64 = 4 << 30;
const READS: usize = 1_000_000;
const RANGES: usize = 500_000;
const RANGE_PAIRS: u64 = 10;
const SORTED: usize = 1_000_000;
/// Maximum number of pairs to pop.
const POPS: usize = 500_000;
const THREADS: [usize; 4] = [4, 8, 16, 32];

pub const WORKLOAD: Workload = Workload {
    name: "redb-table",
    about: "the load of redb's published table: 5M records of 24 and 150 bytes: bulk load, single, batch, sorted and unsynced \
        writes, len, random reads, ranges, reads at 4 to 32 threads, removals, retain, extract_if, pops, size before and after \
        compaction",
    variants: &[variant("", 5_000_000)],
    classes: &[Class::Synced, Class::Written, Class::None],
    resources: Resources {
        cache_bytes: |_| CACHE_BYTES,
        ..Resources::USUAL
    },
    run,
    ..Workload::USUAL
};

struct Table<'a> {
    context: &'a Context<'a>,
    values: Values,
    bulk: Keys,
    peer: Box<dyn Peer>,
    /// All present keys.
    present: HashSet<Vec<u8>>,
    /// Keys that were present and then removed.
    removed: Vec<Vec<u8>>,
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let mut table = Table {
        context,
        values: Values::new(context.seed, Length::Fixed(150)),
        bulk: Generator::new(context.seed, "bulk").keys(context.records(), 24),
        peer: context.open()?,
        present: HashSet::new(),
        removed: Vec::new(),
    };
    table.bulk_load(recorder)?;
    table.single_writes(recorder)?;
    table.batch_writes(recorder)?;
    table.sorted_inserts(recorder)?;
    table.unsynced_writes(recorder)?;
    table.len(recorder)?;
    table.reads(recorder)?;
    table.verify()?;
    table.remove_half(recorder)?;
    table.retain(recorder)?;
    table.extract(recorder)?;
    table.pop(recorder)?;
    recorder.phase("compact", Work::Writes, || {
        table.peer.compact().map(|()| Done::untimed(1))
    })?;
    table.verify()?;
    table.peer.close()
}

impl Table<'_> {
    fn is_right(&self) -> impl Fn(&[u8], Option<&[u8]>) -> Result<()> + Sync + Copy {
        let checker = self.context.checker(&self.values);
        move |key, found| checker.present(key, 0, found)
    }

    /// Records that these keys are present.
    fn are_there<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        self.present.extend(keys.map(<[u8]>::to_vec));
    }

    /// Records that a key is no longer present.
    fn is_gone(&mut self, key: Vec<u8>) {
        self.present.remove(&key);
        self.removed.push(key);
    }

    fn bulk_load(&mut self, recorder: &mut Recorder) -> Result<()> {
        recorder.phase("bulk load", Work::Writes, || {
            put_batch(&*self.peer, self.bulk.all(), &self.values)?;
            Ok(Done::untimed(self.bulk.len()))
        })?;
        // The published load is one commit, which cannot be stopped. It runs in full, and later work is stopped.
        if self.context.pace.is_over() {
            recorder.note("the bulk load, one commit, ended beyond the limit of the cell".to_string());
        }
        self.present = self.bulk.iter().map(<[u8]>::to_vec).collect();
        Ok(())
    }

    fn single_writes(&mut self, recorder: &mut Recorder) -> Result<()> {
        let name = "single writes";
        let keys = Generator::new(self.context.seed, name).keys(self.context.scaled(1_000), 24);
        let mut acknowledged = Vec::new();
        recorder.phase(name, Work::Writes, || {
            let (done, counts) = put_each(self.context, &*self.peer, keys.all(), &self.values, 1)?;
            acknowledged = counts;
            Ok(done)
        })?;
        read_back_shares(&*self.peer, keys.all(), &acknowledged, self.is_right())?;
        self.are_there(keys.iter().take(acknowledged.iter().sum::<u64>() as usize));
        Ok(())
    }

    fn batch_writes(&mut self, recorder: &mut Recorder) -> Result<()> {
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
        self.are_there(keys.iter().take(written));
        Ok(())
    }

    /// Inserts sorted keys, which lie between the existing ones, in one commit.
    fn sorted_inserts(&mut self, recorder: &mut Recorder) -> Result<()> {
        let keys = Generator::new(self.context.seed, "sorted").keys(self.context.scaled(SORTED), 24);
        let keys = keys.sorted();
        let mut is_done = false;
        recorder.phase("sorted inserts", Work::Writes, || {
            let mut pairs = keys.iter().map(|key| (key, self.values.of(key, 0)));
            self.peer.put_sorted(&mut pairs)?;
            is_done = true;
            Ok(Done::untimed(keys.len()))
        })?;
        if is_done {
            self.are_there(keys.iter());
        }
        Ok(())
    }

    fn unsynced_writes(&mut self, recorder: &mut Recorder) -> Result<()> {
        let keys = Generator::new(self.context.seed, "unsynced").keys(self.context.scaled(50_000), 24);
        let mut written = 0;
        recorder.phase("50,000 writes without sync", Work::Writes, || {
            let shift = self.context.pace.whole_shift(1);
            let worked = shift.work(keys.len() as u64, |at| {
                let key = keys.at(at as usize);
                self.peer.put_unsynced(key, self.values.of(key, 0))
            })?;
            written = worked.operations as usize;
            Ok(alone(worked))
        })?;
        self.are_there(keys.iter().take(written));
        Ok(())
    }

    /// Counts the pairs for the first time.
    fn len(&self, recorder: &mut Recorder) -> Result<()> {
        recorder.phase("len", Work::Reads, || {
            self.check_len(self.peer.len()?)?;
            Ok(Done::untimed(1))
        })
    }

    fn check_len(&self, found: u64) -> Result<()> {
        let expected = self.present.len() as u64;
        ensure!(
            found == expected || self.context.is_exempt,
            "a count gave {found} pairs, {expected} are there"
        );
        Ok(())
    }

    fn reads(&self, recorder: &mut Recorder) -> Result<()> {
        let count = self.context.scaled(READS);
        let picks = Generator::new(self.context.seed, "reads").picks(count, self.bulk.len());
        let reads = self.bulk.picked(&picks);
        recorder.phase("random reads", Work::Reads, || {
            get_in_snapshots(self.context, &*self.peer, reads.all(), 1, self.is_right())
        })?;
        let sorted = self.bulk.sorted();
        let starts = Generator::new(self.context.seed, "ranges").picks(self.context.scaled(RANGES), sorted.len());
        let checker = self.context.checker(&self.values);
        recorder.phase("random range reads", Work::Reads, || {
            ranges_in_a_snapshot(self.context, &*self.peer, sorted.all(), &starts, RANGE_PAIRS, checker)
        })?;
        for threads in THREADS {
            recorder.phase(&format!("random reads, {threads} threads"), Work::Reads, || {
                get_in_snapshots(self.context, &*self.peer, reads.all(), threads, self.is_right())
            })?;
        }
        Ok(())
    }

    /// Verifies that everything written is present, everything removed is absent, and the store has nothing else.
    fn verify(&self) -> Result<()> {
        let list = |keys: &mut dyn Iterator<Item = &Vec<u8>>| Keys::collect(24, keys);
        let checker = self.context.checker(&self.values);
        read_back(&*self.peer, list(&mut self.present.iter()).all(), self.is_right())?;
        let removed = list(&mut self.removed.iter());
        read_back(&*self.peer, removed.all(), |key, found| checker.absent(key, found))?;
        if self.context.is_exempt {
            return Ok(());
        }
        self.check_len(self.peer.len()?)
    }

    fn remove_half(&mut self, recorder: &mut Recorder) -> Result<()> {
        let half = self.bulk.all().part(0, self.bulk.len() / 2);
        let mut is_done = false;
        recorder.phase("removals", Work::Writes, || {
            self.peer.delete_many(half)?;
            is_done = true;
            Ok(Done::untimed(half.len()))
        })?;
        let gone: Vec<Vec<u8>> = half.iter().map(<[u8]>::to_vec).collect();
        gone.into_iter().filter(|_| is_done).for_each(|key| self.is_gone(key));
        Ok(())
    }

    /// Keeps every second pair. The operations are the pairs that the call looks at, as published.
    fn retain(&mut self, recorder: &mut Recorder) -> Result<()> {
        let (mut gone, mut seen) = (Vec::new(), 0);
        recorder.phase("retain", Work::Writes, || {
            self.peer.retain(&mut |key, value| {
                self.is_right()(key, Some(value))?;
                seen += 1;
                let is_kept = seen % 2 == 0;
                if !is_kept {
                    gone.push(key.to_vec());
                }
                Ok(is_kept)
            })?;
            Ok(Done::untimed(seen))
        })?;
        let expected = self.present.len();
        ensure!(
            seen == expected || self.context.is_exempt || gone.is_empty(),
            "a scan saw {seen} pairs, {expected} are there"
        );
        gone.into_iter().for_each(|key| self.is_gone(key));
        Ok(())
    }

    /// Extracts every second pair of the first third of the keys.
    fn extract(&mut self, recorder: &mut Recorder) -> Result<()> {
        let mut sorted: Vec<&Vec<u8>> = self.present.iter().collect();
        sorted.sort_unstable();
        let expected: Vec<Vec<u8>> = sorted[..sorted.len() / 3]
            .iter()
            .step_by(2)
            .map(|&key| key.clone())
            .collect();
        let Some(end) = sorted.get(sorted.len() / 3).map(|&key| key.clone()) else {
            recorder.not_done(&[("extract_if", Work::Writes)], "there are too few pairs");
            return Ok(());
        };
        let (mut taken, mut seen) = (Vec::new(), 0);
        recorder.phase("extract_if", Work::Writes, || {
            let choose = &mut |_: &[u8], _: &[u8]| {
                seen += 1;
                Ok(seen % 2 == 1)
            };
            self.peer.extract(&end, choose, &mut |key, value| {
                self.is_right()(key, Some(value))?;
                taken.push(key.to_vec());
                Ok(())
            })?;
            Ok(Done::untimed(seen))
        })?;
        check_taken(&taken, &expected, self.context.is_exempt)?;
        taken.into_iter().for_each(|key| self.is_gone(key));
        Ok(())
    }

    /// Pops the first and the last pair in turn.
    fn pop(&mut self, recorder: &mut Recorder) -> Result<()> {
        let mut sorted: Vec<&Vec<u8>> = self.present.iter().collect();
        sorted.sort_unstable();
        let count = self.context.scaled(POPS).min(sorted.len());
        let (mut first, mut last) = (sorted.iter(), sorted.iter().rev());
        let expected: Vec<Vec<u8>> = (0..count)
            .filter_map(|turn| if turn % 2 == 0 { first.next() } else { last.next() })
            .map(|&key| key.clone())
            .collect();
        let mut taken = Vec::new();
        recorder.phase("pop", Work::Writes, || {
            self.peer.pop_many(End::ByTurns, count as u64, &mut |key, value| {
                self.is_right()(key, Some(value))?;
                taken.push(key.to_vec());
                Ok(())
            })?;
            Ok(Done::untimed(count))
        })?;
        check_taken(&taken, &expected, self.context.is_exempt)?;
        taken.into_iter().for_each(|key| self.is_gone(key));
        Ok(())
    }
}

/// Checks that the taken keys are the expected ones in the expected order. Nothing is taken when the row did not run.
fn check_taken(taken: &[Vec<u8>], expected: &[Vec<u8>], is_exempt: bool) -> Result<()> {
    if is_exempt || taken.is_empty() {
        return Ok(());
    }
    ensure!(
        taken.len() == expected.len(),
        "{} pairs were taken where {} were to be",
        taken.len(),
        expected.len()
    );
    match taken.iter().zip(expected).find(|(taken, expected)| taken != expected) {
        None => Ok(()),
        Some((taken, expected)) => {
            let (taken, expected) = (key_text(taken), key_text(expected));
            anyhow::bail!("key {taken} was taken where key {expected} is next")
        }
    }
}
