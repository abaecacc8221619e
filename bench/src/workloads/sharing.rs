//! Four threads of one process, or four processes with one thread each, on one store of a million pairs: the cost of
//! having the store open in several processes. All workers read, each read in its own snapshot; then all workers put.
//!
//! Both forms do the same work on the same pairs. Every value read is verified. A process that opens the store
//! afterwards reads back every acknowledged put.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};

use super::loads::{load_in_batches, read_back, read_back_shares};
use super::members::{Crew, MemberArguments, Members, await_start, tell};
use super::{Context, Recorder, Workload, variant};
use crate::crew::{Worked, crew};
use crate::data::{Generator, Keys, Length, Values};
use crate::measure::{Done, Work};
use crate::peer::Peer;
use crate::shared::SharedCounters;

const WORKERS: usize = 4;
const KEY_BYTES: usize = 16;
const VALUE_BYTES: Length = Length::Fixed(100);
/// Seconds of each phase at scale 1.
const STEP: f64 = 5.0;
/// Below this a phase would be only a few syncs.
const STEP_MIN: f64 = 0.2;
/// Number of keys to put at scale 1: more than any worker puts in that time.
const KEYS: usize = 4_000_000;
/// Number of reads of a worker before it repeats them.
const PICKS: usize = 500_000;

const READS: (&str, Work) = ("reads in own snapshots", Work::Reads);
const PUTS: (&str, Work) = ("single puts", Work::Writes);

pub const WORKLOAD: Workload = Workload {
    name: "sharing",
    about: "1M pairs; 4 threads of one process, or 4 processes with a thread each, read and then put for 5 seconds each; \
        compare the two forms",
    variants: &[variant("threads", 1_000_000), variant("processes", 1_000_000)],
    needs_persistence: true,
    run,
    ..Workload::USUAL
};

/// The data of all workers; each process makes it from the seed.
struct Load<'a> {
    context: &'a Context<'a>,
    values: Values,
    loaded: Keys,
    put: Keys,
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let is_spread = context.variant.label == "processes";
    if is_spread && !context.driver.describe().is_shared_by_processes {
        recorder.not_done(&[READS, PUTS], "several processes cannot share one store");
        return Ok(());
    }
    let load = Load::new(context);
    let peer = context.open()?;
    load_in_batches(&*peer, load.loaded.all(), &load.values)?;
    peer.close()?;
    let acknowledged = match is_spread {
        true => by_processes(context, recorder)?,
        false => by_threads(&load, recorder)?,
    };
    load.verify(&acknowledged)
}

fn by_threads(load: &Load, recorder: &mut Recorder) -> Result<Vec<u64>> {
    let peer = load.context.open()?;
    let mut acknowledged = Vec::new();
    recorder.phase(READS.0, READS.1, || {
        Ok(together(crew(WORKERS, |worker| load.read(&*peer, worker))?))
    })?;
    if !recorder.is_stopped() {
        recorder.phase(PUTS.0, PUTS.1, || {
            let worked = crew(WORKERS, |worker| load.put(&*peer, worker))?;
            acknowledged = worked.iter().map(|worked| worked.operations).collect();
            Ok(together(worked))
        })?;
    }
    peer.close()?;
    Ok(acknowledged)
}

fn by_processes(context: &Context, recorder: &mut Recorder) -> Result<Vec<u64>> {
    // Members report their acknowledgements; no process reads the counters meanwhile.
    let file = context.directory.with_extension("counters");
    let counters = SharedCounters::create(&file, WORKERS)?;
    let mut members = Members::start(context, "sharing/processes", &file, WORKERS)?;
    let cpu_of = |members: &mut Members, before: u64| -> Result<(Done, u64)> {
        let (crews, cpu) = members.work()?;
        let mut done = crews
            .into_iter()
            .next()
            .context("a process told of no crew")?
            .into_done();
        done.other_processes_cpu_nanos = cpu - before;
        Ok((done, cpu))
    };
    let mut cpu = 0;
    for (name, work) in [READS, PUTS] {
        if !recorder.is_stopped() {
            recorder.phase(name, work, || {
                let (done, cpu_by_now) = cpu_of(&mut members, cpu)?;
                cpu = cpu_by_now;
                Ok(done)
            })?;
        }
    }
    let is_whole = !recorder.is_stopped();
    if is_whole {
        members.end()?;
    }
    drop(members);
    let acknowledged = counters
        .all()
        .iter()
        .map(|count| count.load(Ordering::Acquire))
        .collect();
    std::fs::remove_file(&file)?;
    Ok(acknowledged)
}

fn together(worked: Vec<Worked>) -> Done {
    let mut all = Crew::default();
    worked.into_iter().for_each(|worked| all.add(worked, None));
    all.into_done()
}

/// Runs one process of `sharing/processes`.
pub fn run_member(context: &Context, arguments: &MemberArguments) -> Result<()> {
    let load = Load::new(context);
    let counters = SharedCounters::open(&arguments.counters, WORKERS)?;
    let peer = context.open()?;
    println!("ready");
    await_start()?;
    tell_alone(load.read(&*peer, arguments.process)?)?;
    await_start()?;
    let put = load.put(&*peer, arguments.process)?;
    let acknowledged: &AtomicU64 = &counters.all()[arguments.process];
    acknowledged.store(put.operations, Ordering::Release);
    tell_alone(put)?;
    peer.close()
}

fn tell_alone(worked: Worked) -> Result<()> {
    let mut crew = Crew::default();
    crew.add(worked, None);
    tell([crew])
}

impl<'a> Load<'a> {
    fn new(context: &'a Context<'a>) -> Load<'a> {
        let share = context.scaled(KEYS).div_ceil(WORKERS);
        Load {
            context,
            values: Values::new(context.seed, VALUE_BYTES),
            loaded: Generator::new(context.seed, "load").keys(context.records(), KEY_BYTES),
            put: Generator::new(context.seed, "put").keys(share * WORKERS, KEY_BYTES),
        }
    }

    fn seconds(&self) -> Option<f64> {
        Some(self.context.scaled_seconds(STEP, STEP_MIN))
    }

    /// Returns a separate pool of values. The pool fills a quarter of a processor's second-level cache. Threads would
    /// share it, while processes that take turns on a processor would each fetch their own. Each thread therefore has
    /// its own pool too, so that the forms differ in the store alone.
    fn own_values(&self) -> Values {
        Values::new(self.context.seed, VALUE_BYTES)
    }

    fn read(&self, peer: &dyn Peer, worker: usize) -> Result<Worked> {
        let values = self.own_values();
        let checker = self.context.checker(&values);
        let picks = Generator::new(self.context.seed, &format!("reads of {worker}")).picks(PICKS, self.loaded.len());
        // The keys are in the order of the reads. Threads would share a list of all keys, and each process would have
        // its own. Random accesses to it, like those to the store, would by themselves slow processes down.
        let keys = Keys::collect(KEY_BYTES, picks.iter().map(|&pick| self.loaded.at(pick as usize)));
        let shift = self.context.pace.shift(WORKERS, self.seconds());
        shift.work(u64::MAX, |at| {
            let key = keys.at(at as usize % PICKS);
            peer.get(key, &mut |found| checker.present(key, 0, found))
        })
    }

    fn put(&self, peer: &dyn Peer, worker: usize) -> Result<Worked> {
        let share = self.put.all().share(worker, WORKERS);
        let values = self.own_values();
        let shift = self.context.pace.shift(WORKERS, self.seconds());
        shift.work(share.len() as u64, |at| {
            let key = share.at(at as usize);
            peer.put(key, values.of(key, 0))
        })
    }

    fn verify(&self, acknowledged: &[u64]) -> Result<()> {
        let checker = self.context.checker(&self.values);
        let present = |key: &[u8], found: Option<&[u8]>| checker.present(key, 0, found);
        let peer = self.context.open()?;
        if !acknowledged.is_empty() {
            ensure!(
                acknowledged.len() == WORKERS,
                "a process did not tell what was acknowledged to it"
            );
            read_back_shares(&*peer, self.put.all(), acknowledged, present).context("what was put")?;
        }
        read_back(&*peer, self.loaded.all(), present).context("what was there before")?;
        peer.close()
    }
}
