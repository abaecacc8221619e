//! Reads as programs do them: in one snapshot; each in its own snapshot on 1, 4 and 32 threads; of missing keys; of
//! ranges; of everything; and beside a writer with a fixed rate.
//!
//! The pairs are loaded by single puts in random order, and the reads begin without waiting for the store to settle.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

use super::loads::{
    Versions, get_each, get_untimed, put_each, ranges_in_a_snapshot, read_back_shares, scan_and_verify,
};
use super::{Context, Recorder, Workload, variant};
use crate::answer::Unsupported;
use crate::crew::{Pace, crew, together};
use crate::data::{Checker, Generator, Keys, Length, Tally, Values};
use crate::measure::Work;
use crate::peer::Peer;

/// Numbers of threads that read in snapshots of their own.
const THREADS: [usize; 3] = [1, 4, 32];
/// Writes per second beside the reads.
const RATES: [u32; 2] = [10_000, 100_000];
/// Number of ranges at scale 1, and pairs in each.
const RANGES: usize = 500_000;
const RANGE_PAIRS: u64 = 10;

pub const WORKLOAD: Workload = Workload {
    name: "reads",
    about: "pairs of 16 and 100 bytes put one by one; reads in one snapshot, in snapshots of their own from 1, 4 and 32 threads, \
        missing keys, a full scan, 500k ranges of 10, and reads beside 10k and 100k writes a second",
    variants: &[variant("1M", 1_000_000), variant("10M", 10_000_000)],
    run,
    ..Workload::USUAL
};

struct Reads<'a> {
    context: &'a Context<'a>,
    keys: Keys,
    values: Values,
    /// The records to read, in order: a million at scale 1, whatever the number of records.
    picks: Vec<u32>,
    peer: Box<dyn Peer>,
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let reads = count.min(context.scaled(1_000_000));
    let reads = Reads {
        context,
        keys: Generator::new(context.seed, "load").keys(count, 16),
        values: Values::new(context.seed, Length::Fixed(100)),
        picks: Generator::new(context.seed, "read").picks(reads, count),
        peer: context.open()?,
    };
    let mut acknowledged = Vec::new();
    recorder.phase("single puts", Work::Writes, || {
        let (done, counts) = put_each(context, &*reads.peer, reads.keys.all(), &reads.values, 1)?;
        acknowledged = counts;
        Ok(done)
    })?;
    if acknowledged != [count as u64] {
        let checker = context.checker(&reads.values);
        read_back_shares(&*reads.peer, reads.keys.all(), &acknowledged, |key, found| {
            checker.present(key, 0, found)
        })?;
        return reads.peer.close();
    }
    reads.of_a_store_at_rest(recorder)?;
    let versions: Vec<Versions> = reads.keys.iter().map(|_| Versions::new()).collect();
    for rate in RATES {
        reads.beside_writes(recorder, rate, &versions)?;
    }
    let checker = context.checker(&reads.values);
    for (record, versions) in versions.iter().enumerate() {
        reads.read(checker, record, versions)?;
    }
    reads.peer.close()
}

impl Reads<'_> {
    fn of_a_store_at_rest(&self, recorder: &mut Recorder) -> Result<()> {
        let (context, peer) = (self.context, &*self.peer);
        let checker = context.checker(&self.values);
        let present = |key: &[u8], found: Option<&[u8]>| checker.present(key, 0, found);
        let reads = self.keys.picked(&self.picks);
        recorder.phase("reads in one snapshot", Work::Reads, || {
            get_untimed(peer, reads.all(), present)
        })?;
        for threads in THREADS {
            let name = format!("reads in own snapshots, {}", threads_text(threads));
            recorder.phase(&name, Work::Reads, || {
                get_each(context, peer, reads.all(), &self.values, threads)
            })?;
        }
        let missing = Generator::new(context.seed, "missing").absent_keys(reads.len(), 16);
        recorder.phase("missing keys", Work::Reads, || {
            get_untimed(peer, missing.all(), |key, found| checker.absent(key, found))
        })?;
        drop(missing);
        let sorted = self.keys.sorted();
        let starts = Generator::new(context.seed, "ranges").picks(context.scaled(RANGES), sorted.len());
        recorder.phase("ranges of 10", Work::Reads, || {
            ranges_in_a_snapshot(context, peer, sorted.all(), &starts, RANGE_PAIRS, checker)
        })?;
        let expected = Tally::expected(&self.keys, &self.values, |_| 0);
        recorder.phase("full scan", Work::Reads, || {
            if context.is_exempt {
                bail!(Unsupported("stores nothing that could be scanned"));
            }
            scan_and_verify(peer, &expected, checker)
        })
    }

    /// Reads one by one while a second thread overwrites random records at `rate` per second, until the reads are done.
    /// The number of writes it achieved is a separate row.
    fn beside_writes(&self, recorder: &mut Recorder, rate: u32, versions: &[Versions]) -> Result<()> {
        let (read, written) = (
            format!("reads beside {}k writes/s", rate / 1000),
            format!("{}k writes/s beside reads", rate / 1000),
        );
        let writes = Generator::new(self.context.seed, &written).picks(self.picks.len(), self.keys.len());
        let goes_on = AtomicBool::new(true);
        let checker = self.context.checker(&self.values);
        recorder.phases(&[(&read, Work::Reads), (&written, Work::Writes)], || {
            let mut worked = crew(2, |worker| {
                if worker == 0 {
                    let shift = self.context.pace.shift(1, None);
                    let worked = shift.work(self.picks.len() as u64, |at| {
                        let record = self.picks[at as usize] as usize;
                        self.read(checker, record, &versions[record])
                    });
                    goes_on.store(false, Ordering::Relaxed);
                    return worked;
                }
                let pace = Pace {
                    rate: Some(f64::from(rate)),
                    ..self.context.pace
                };
                pace.whole_shift(1).work_while(u64::MAX, &goes_on, |at| {
                    let record = writes[at as usize % writes.len()] as usize;
                    let version = versions[record].begin();
                    let key = self.keys.at(record);
                    self.peer.put(key, self.values.of(key, version))?;
                    versions[record].acknowledge();
                    Ok(1)
                })
            })?;
            let writer = worked.split_off(1);
            Ok(vec![together(worked), together(writer)])
        })
    }

    fn read(&self, checker: Checker, record: usize, versions: &Versions) -> Result<()> {
        let oldest = versions.oldest();
        self.peer.get(self.keys.at(record), &mut |found| {
            checker.present_between(self.keys.at(record), oldest, versions.newest(), found)
        })
    }
}

fn threads_text(threads: usize) -> String {
    format!("{threads} {}", if threads == 1 { "thread" } else { "threads" })
}
