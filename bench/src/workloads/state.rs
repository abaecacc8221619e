//! GeaFlow's published state store load: 4-byte keys in big-endian order, values of 100 bytes, one thread. A flush is a
//! commit in the class of the run.
//!
//! Every row has its own store, like each of the published tests. The reading rows read what the row of sequential
//! writes stored. At 1M and 10M there is a flush after every 100,000 puts, because several stores cannot hold more in
//! one commit. The `large` rows keep the published flush after 10,000 puts and one read for ten puts; their records are
//! the published 100,000, 1M and 10M.
//!
//! A commit that has begun is finished and counted, even if the cell reaches its limit meanwhile. After a stopped row,
//! exactly the counted puts are present, and they are read back like those of any other row.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::loads::{get_each, read_back, run_outside};
use super::{Context, Recorder, Workload, variant};
use crate::crew::{Worked, alone};
use crate::data::{Generator, Keys, Length, Values};
use crate::load::{Load, LoadWriter, Operation};
use crate::measure::BY_LIMIT;
use crate::measure::{Done, Work};
use crate::peer::{Outside, Pairs, Peer};

/// Maximum number of puts in one commit, at scale 1 and above.
const COMMIT_MAX: usize = 100_000;
/// Number of puts in one commit of the `large` rows.
const LARGE_COMMIT: usize = 10_000;
/// Minimum number of records of the `large` rows.
const LARGE_MIN: usize = 100_000;

pub const WORKLOAD: Workload = Workload {
    name: "state",
    about: "GeaFlow's load: 4-byte keys, 100-byte values, at 10k, 1M and 10M: sequential and random writes with one flush \
        (at 1M and 10M one after every 100,000), reads, mixed with a commit for each put, batches, checkpoint and recovery, a state that is kept in the store, \
        100k to 10M puts with a flush after every 10,000",
    variants: &[
        variant("10k", 10_000),
        variant("1M", 1_000_000),
        variant("10M", 10_000_000),
    ],
    has_drivers: true,
    run,
    ..Workload::USUAL
};

/// The data of all rows.
struct Rows<'a> {
    context: &'a Context<'a>,
    values: Values,
    count: usize,
    commit_max: usize,
    sequential: Keys,
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let rows = Rows {
        context,
        values: Values::new(context.seed, Length::Fixed(100)),
        count,
        commit_max: context.scaled(COMMIT_MAX).min(COMMIT_MAX),
        sequential: numbers(0..count as u32),
    };
    rows.sequential(recorder)?;
    rows.random(recorder)?;
    rows.mixed(recorder)?;
    rows.batches(recorder)?;
    // Runs before the large rows, which may use up the time of the cell.
    rows.checkpoint(recorder)?;
    rows.kept_state(recorder)?;
    rows.large(recorder)
}

/// Returns numbers as 4-byte keys.
fn numbers(numbers: impl Iterator<Item = u32>) -> Keys {
    Keys::collect(4, numbers.map(u32::to_be_bytes))
}

/// Puts with a flush after every `each` of them, made before the clock starts.
struct Flushes<'a> {
    keys: &'a Keys,
    values: Vec<Vec<u8>>,
    each: usize,
}

impl<'a> Flushes<'a> {
    fn new(keys: &'a Keys, each: usize, value: impl Fn(usize) -> Vec<u8>) -> Flushes<'a> {
        let values = (0..keys.len()).map(value).collect();
        Flushes { keys, values, each }
    }

    /// Puts keys in one commit after another. The acknowledged keys are the first ones, as many as the operations. The
    /// latencies are those of the commits.
    fn put(&self, context: &Context, peer: &dyn Peer) -> Result<Done> {
        let Flushes { keys, values, each } = self;
        let shift = context.pace.whole_shift(1);
        if let Some(outside) = peer.outside() {
            let pairs = keys.iter().zip(values.iter().map(Vec::as_slice));
            let load = Load::of(Operation::Put, pairs, 1, *each)?;
            return run_outside(outside, &load, shift).map(|(done, _)| done);
        }
        let commits = keys.len().div_ceil(*each);
        let worked = shift.work_while(commits as u64, &true.into(), |commit| {
            let start = commit as usize * each;
            let part = keys.all().part(start, start + each);
            let mut pairs = part.iter().zip(values[start..].iter().map(Vec::as_slice));
            peer.put_many(&mut pairs as &mut Pairs)?;
            Ok(part.len() as u64)
        })?;
        Ok(of_puts(worked, keys.len()))
    }

    /// Puts the keys as a row of their own, and returns the number acknowledged before the limit of the cell.
    fn measured(&self, context: &Context, recorder: &mut Recorder, row: &str, peer: &dyn Peer) -> Result<usize> {
        let mut acknowledged = 0;
        recorder.phase(row, Work::Writes, || {
            let done = self.put(context, peer)?;
            acknowledged = done.operations as usize;
            Ok(done)
        })?;
        Ok(acknowledged)
    }
}

/// Converts the plan of a stopped shift, which counted commits, to puts.
fn of_puts(worked: Worked, planned: usize) -> Done {
    let mut done = alone(worked);
    done.stopped_at_of = done.stopped_at_of.map(|_| planned as u64);
    done
}

impl Rows<'_> {
    fn directory(&self, row: &str) -> PathBuf {
        self.context.directory.join(row)
    }

    fn open(&self, row: &str) -> Result<Box<dyn Peer>> {
        self.context.open_in(&self.directory(row))
    }

    fn present(&self, version: u32) -> impl Fn(&[u8], Option<&[u8]>) -> Result<()> + Sync + Copy {
        let checker = self.context.checker(&self.values);
        move |key, found| checker.present(key, version, found)
    }

    fn value(&self, keys: &Keys, version: impl Fn(usize) -> u32) -> impl Fn(usize) -> Vec<u8> {
        move |at| self.values.of(keys.at(at), version(at)).to_vec()
    }

    fn sequential(&self, recorder: &mut Recorder) -> Result<()> {
        let peer = self.open("sequential")?;
        let keys = &self.sequential;
        let flushes = Flushes::new(keys, self.commit_max, self.value(keys, |_| 0));
        let acknowledged = flushes.measured(self.context, recorder, "seq-write", &*peer)?;
        recorder.phase("seq-read", Work::Reads, || {
            get_each(self.context, &*peer, keys.all(), &self.values, 1)
        })?;
        let reads = numbers(
            Generator::new(self.context.seed, "reads")
                .picks(self.count, self.count)
                .into_iter(),
        );
        recorder.phase("rand-read", Work::Reads, || {
            get_each(self.context, &*peer, reads.all(), &self.values, 1)
        })?;
        read_back(&*peer, keys.all().part(0, acknowledged), self.present(0))?;
        peer.close()
    }

    fn random(&self, recorder: &mut Recorder) -> Result<()> {
        let peer = self.open("random")?;
        let picks = Generator::new(self.context.seed, "writes").picks(self.count, self.count);
        let keys = numbers(picks.iter().copied());
        // A number that occurs again is written in its next version.
        let mut last = vec![None::<u32>; self.count];
        let versions: Vec<u32> = picks
            .iter()
            .map(|pick| {
                let version = last[*pick as usize].map_or(0, |version| version + 1);
                last[*pick as usize] = Some(version);
                version
            })
            .collect();
        let flushes = Flushes::new(&keys, self.commit_max, self.value(&keys, |at| versions[at]));
        let acknowledged = flushes.measured(self.context, recorder, "rand-write", &*peer)?;
        if acknowledged < self.count {
            last.fill(None);
            let written = picks.iter().zip(&versions).take(acknowledged);
            written.for_each(|(pick, version)| last[*pick as usize] = Some(*version));
        }
        if acknowledged > 0 {
            self.verify_versions(&*peer, &last)?;
        }
        peer.close()
    }

    /// Verifies that every number is present in its last version, or absent if it was never written.
    fn verify_versions(&self, peer: &dyn Peer, last: &[Option<u32>]) -> Result<()> {
        let checker = self.context.checker(&self.values);
        read_back(peer, self.sequential.all(), |key, found| {
            let number = u32::from_be_bytes(key.try_into().context("a key of 4 bytes")?);
            match last[number as usize] {
                Some(version) => checker.present(key, version, found),
                None => checker.absent(key, found),
            }
        })
    }

    /// Reads and writes existing records, 7 to 3; each write is its own commit.
    fn mixed(&self, recorder: &mut Recorder) -> Result<()> {
        if recorder.is_stopped() {
            recorder.not_done(&[("mixed", Work::Writes)], &format!("not reached {BY_LIMIT}"));
            return Ok(());
        }
        let peer = self.open("mixed")?;
        let flushes = Flushes::new(&self.sequential, self.commit_max, self.value(&self.sequential, |_| 0));
        let loaded = flushes.put(self.context, &*peer)?.operations as usize;
        if loaded < self.count {
            read_back(&*peer, self.sequential.all().part(0, loaded), self.present(0))?;
            recorder.not_done(
                &[("mixed", Work::Writes)],
                &format!("its records were not loaded {BY_LIMIT}"),
            );
            return peer.close();
        }
        let mut generator = Generator::new(self.context.seed, "mixed");
        let picks = generator.picks(self.count, self.count);
        let is_read: Vec<bool> = (0..self.count).map(|_| generator.below(10) < 7).collect();
        let mut versions = vec![0; self.count];
        let checker = self.context.checker(&self.values);
        recorder.phase("mixed", Work::Writes, || {
            if let Some(outside) = peer.outside() {
                return self.mixed_outside(outside, &picks, &is_read, &mut versions);
            }
            let worked = self.context.pace.shift(1, None).work(self.count as u64, |at| {
                let number = picks[at as usize] as usize;
                let key = self.sequential.at(number);
                if is_read[at as usize] {
                    return peer.get(key, &mut |found| checker.present(key, versions[number], found));
                }
                versions[number] += 1;
                peer.put(key, self.values.of(key, versions[number]))
            })?;
            Ok(alone(worked))
        })?;
        self.verify_versions(&*peer, &versions.into_iter().map(Some).collect::<Vec<_>>())?;
        peer.close()
    }

    /// Runs the mixed operations in the process of a driver. Each version of a record is a pair of its own.
    fn mixed_outside(
        &self,
        outside: &dyn Outside,
        picks: &[u32],
        is_read: &[bool],
        versions: &mut [u32],
    ) -> Result<Done> {
        let mut writer = LoadWriter::new(4, 100)?;
        let mut places = Vec::with_capacity(self.count);
        for key in self.sequential.iter() {
            places.push(writer.pair(key, self.values.of(key, 0))?);
        }
        let mut written = vec![0; self.count];
        for (pick, is_read) in picks.iter().zip(is_read) {
            let (number, key) = (*pick as usize, self.sequential.at(*pick as usize));
            if !is_read {
                written[number] += 1;
                places[number] = writer.pair(key, self.values.of(key, written[number]))?;
            }
            let operation = if *is_read { Operation::Get } else { Operation::Put };
            writer.operation(operation, places[number])?;
        }
        let (done, _) = run_outside(outside, &writer.finish(1, 1)?, self.context.pace.shift(1, None))?;
        let all = picks.iter().zip(is_read).take(done.operations as usize);
        all.filter(|(_, is_read)| !**is_read)
            .for_each(|(pick, _)| versions[*pick as usize] += 1);
        Ok(done)
    }

    fn batches(&self, recorder: &mut Recorder) -> Result<()> {
        let peer = self.open("batch")?;
        let keys = &self.sequential;
        let flush = (self.count / 10).clamp(1, self.commit_max);
        let flushes = Flushes::new(keys, flush, self.value(keys, |_| 0));
        let acknowledged = flushes.measured(self.context, recorder, "batch", &*peer)?;
        read_back(&*peer, keys.all().part(0, acknowledged), self.present(0))?;
        peer.close()
    }

    /// Runs the `large` rows. They have as many records as the form, but at least the published 100,000. A flush
    /// follows every 10,000 puts, and there is one read for ten puts.
    fn large(&self, recorder: &mut Recorder) -> Result<()> {
        let peer = self.open("large")?;
        let count = self.count.max(self.context.scaled(LARGE_MIN));
        let keys = numbers(0..count as u32);
        let flushes = Flushes::new(&keys, self.context.scaled(LARGE_COMMIT), self.value(&keys, |_| 0));
        let acknowledged = flushes.measured(self.context, recorder, "large write", &*peer)?;
        let picks = Generator::new(self.context.seed, "large").picks(count.div_ceil(10), count);
        let reads = keys.picked(&picks);
        recorder.phase("large read", Work::Reads, || {
            get_each(self.context, &*peer, reads.all(), &self.values, 1)
        })?;
        read_back(&*peer, keys.all().part(0, acknowledged), self.present(0))?;
        peer.close()
    }

    /// Keeps a checkpoint of 1,000 records, loses the live store, and recovers from the checkpoint, which must stay
    /// unchanged.
    fn checkpoint(&self, recorder: &mut Recorder) -> Result<()> {
        let names = [
            ("create checkpoint", Work::Writes),
            ("recover from checkpoint", Work::Writes),
        ];
        let (live, kept) = (self.directory("live"), self.directory("kept"));
        let peer = self.open("live")?;
        let count = 1_000.min(self.count.max(1));
        let keys = numbers(0..count as u32);
        let mut pairs = keys.iter().map(|key| (key, self.values.of(key, 0)));
        peer.put_many(&mut pairs)?;
        let mut is_made = false;
        recorder.phase(names[0].0, names[0].1, || {
            peer.checkpoint(&kept)?;
            is_made = true;
            Ok(Done::untimed(1))
        })?;
        read_back(&*peer, keys.all(), self.present(0))?;
        peer.close()?;
        if !is_made {
            recorder.not_done(&names[1..], "there is no checkpoint to recover from");
            return Ok(());
        }
        let before = contents(&kept)?;
        std::fs::remove_dir_all(&live)?;
        let mut recovered = None;
        recorder.phase(names[1].0, names[1].1, || {
            copy_directory(&kept, &live)?;
            recovered = Some(self.context.open_in(&live)?);
            Ok(Done::untimed(1))
        })?;
        let peer = recovered.context("a phase that succeeded has recovered the store")?;
        read_back(&*peer, keys.all(), self.present(0))?;
        peer.put(keys.at(0), b"changed after the recovery")?;
        peer.close()?;
        anyhow::ensure!(contents(&kept)? == before, "recovering from the checkpoint changed it");
        Ok(())
    }

    /// Keeps a state of 1,000 records in the store itself, replaces all of them, and goes back: each until it is durable. Going
    /// back includes opening the store again.
    fn kept_state(&self, recorder: &mut Recorder) -> Result<()> {
        let names = [
            ("keep a state in the store", Work::Writes),
            ("go back to it", Work::Writes),
        ];
        let peer = self.open("going back")?;
        let count = 1_000.min(self.count.max(1));
        let keys = numbers(0..count as u32);
        let put = |peer: &dyn Peer, version| {
            let mut pairs = keys.iter().map(|key| (key, self.values.of(key, version)));
            peer.put_many(&mut pairs)
        };
        put(&*peer, 0)?;
        let mut is_kept = false;
        recorder.phase(names[0].0, names[0].1, || {
            peer.keep("kept")?;
            is_kept = true;
            Ok(Done::untimed(1))
        })?;
        if !is_kept {
            recorder.not_done(&names[1..], "there is no state to go back to");
            return peer.close();
        }
        put(&*peer, 1)?;
        read_back(&*peer, keys.all(), self.present(1))?;
        let (mut peer, mut again) = (Some(peer), None);
        recorder.phase(names[1].0, names[1].1, || {
            peer.take().context("the phase runs once")?.go_back("kept")?;
            again = Some(self.context.open_in(&self.directory("going back"))?);
            Ok(Done::untimed(1))
        })?;
        let peer = again.context("a phase that succeeded has opened the store")?;
        read_back(&*peer, keys.all(), self.present(0))?;
        peer.close()
    }
}

/// Copies the files of a directory, for a recovery that leaves the checkpoint unchanged.
pub fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &to.join(entry.file_name()))?;
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Returns every byte below a directory, by file name.
fn contents(directory: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(contents(&path)?);
        } else {
            all.push((path.clone(), std::fs::read(&path)?));
        }
    }
    all.sort();
    Ok(all)
}
