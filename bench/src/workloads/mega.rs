//! elmdb's published load: 16 writers, 20 readers and 8 listers at once on a store of 1,000,000 records.
//!
//! `mega/60s` runs 60 seconds with all three kinds of workers active throughout. `mega/counts` uses the published
//! counts. `mega/processes` works like `mega/60s`, with each of the 44 workers in its own process; they share one
//! store.
//!
//! Every value found is verified against its key. A read must find a key that was acknowledged before the read began.
//! All workers share the number of acknowledged keys of each writer in memory, or in a mapped file when they are
//! processes. A lister must see every loaded record, in order, and every record acknowledged before its pass.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, anyhow, bail, ensure};

use super::loads::{load_in_batches, read_back};
use super::members::{Crew, MemberArguments, Members, await_start, tell};
use super::{Context, Recorder, Workload, variant};
use crate::crew::{Shift, Worked, crew};
use crate::data::{Checker, Generator, Keys, Length, Values, key_text};
use crate::measure::{Done, Work};
use crate::peer::{Peer, Setting};
use crate::shared::SharedCounters;

const WRITERS: usize = 16;
const READERS: usize = 20;
const LISTERS: usize = 8;
/// Number of processes: one for each worker.
const PROCESSES: usize = WRITERS + READERS + LISTERS;
/// Single-record writes of a writer, and point reads of a reader, in the published counts.
const OPERATIONS: usize = 250_000;
/// Passes of a lister in the published counts.
const PASSES: usize = 5;
/// Writer `id` counts from `id` times this number.
const RANGE: usize = 10_000_000;
/// Seconds of the timed forms at scale 1.
const SECONDS: f64 = 60.0;
const SECONDS_MIN: f64 = 0.3;

pub const WORKLOAD: Workload = Workload {
    name: "mega",
    about: "elmdb's load: 1M records; 16 writers, 20 readers and 8 listers at once, for 60 s, by the published counts, and \
        each in a process of its own",
    variants: &[
        variant("60s", 1_000_000),
        variant("counts", 1_000_000),
        variant("processes", 1_000_000),
    ],
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

const NAMES: [(&str, Work); 3] = [
    ("writes", Work::Writes),
    ("point reads", Work::Writes),
    ("listed rows", Work::Writes),
];

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let is_spread = context.variant.label == "processes";
    if is_spread && !context.driver.describe().is_shared_by_processes {
        recorder.not_done(&NAMES, "several processes cannot share one store");
        return Ok(());
    }
    let values = Values::new(context.seed, Length::Mega);
    let base = base_keys(context.records());
    let peer = open(context)?;
    load_in_batches(&*peer, base.all(), &values)?;
    let file = context.directory.with_extension("counters");
    let counters = SharedCounters::create(&file, WRITERS)?;
    let load = Load::new(context, &values, &counters);
    if is_spread {
        peer.close()?;
        recorder.phases(&NAMES, || run_processes(context, &file))?;
        let peer = open(context)?;
        load.verify_all(&*peer, &base)?;
        std::fs::remove_file(&file)?;
        return peer.close();
    }
    recorder.phases(&NAMES, || {
        let team = load.team(&*peer, 0, 1)?;
        Ok(team.into_phases())
    })?;
    load.verify_all(&*peer, &base)?;
    std::fs::remove_file(&file)?;
    peer.close()
}

/// Opens the store with the published settings: no read-ahead, in addition to no sync and the reader slots.
fn open(context: &Context) -> Result<Box<dyn Peer>> {
    context.open_with(
        context.directory,
        Setting {
            has_read_ahead: false,
            ..context.setting()
        },
    )
}

fn base_keys(count: usize) -> Keys {
    Keys::collect(13, (0..count).map(|number| format!("key{number:010}")))
}

fn writer_key(writer: usize, number: usize) -> String {
    format!("mega_w{writer}_key{:010}", writer * RANGE + number)
}

/// Increments the number at the end of a key, in place.
fn count_up(key: &mut [u8]) {
    for digit in key.iter_mut().rev() {
        if *digit != b'9' {
            *digit += 1;
            return;
        }
        *digit = b'0';
    }
}

/// The data that the workers share.
struct Load<'a> {
    context: &'a Context<'a>,
    values: &'a Values,
    checker: Checker<'a>,
    /// Number of acknowledged records of each writer.
    acknowledged: &'a [AtomicU64],
    is_timed: bool,
    base: usize,
}

/// The work of the workers of one process.
#[derive(Default)]
struct Team {
    writers: Crew,
    readers: Crew,
    listers: Crew,
}

impl Team {
    fn into_phases(self) -> Vec<Done> {
        [self.writers, self.readers, self.listers].map(Crew::into_done).into()
    }
}

/// Ends a pass when its time is over.
#[derive(Debug)]
struct PassEnded;

impl std::fmt::Display for PassEnded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the time of the pass is over")
    }
}

impl std::error::Error for PassEnded {}

impl<'a> Load<'a> {
    fn new(context: &'a Context<'a>, values: &'a Values, counters: &'a SharedCounters) -> Load<'a> {
        Load {
            context,
            values,
            checker: context.checker(values),
            acknowledged: counters.all(),
            is_timed: context.variant.label != "counts",
            base: context.records(),
        }
    }

    fn shift(&self, workers: usize) -> Shift {
        let seconds = self.context.scaled_seconds(SECONDS, SECONDS_MIN);
        self.context.pace.shift(workers, self.is_timed.then_some(seconds))
    }

    fn planned(&self, count: usize) -> u64 {
        if self.is_timed {
            u64::MAX
        } else {
            self.context.scaled(count) as u64
        }
    }

    /// Does the share of one of `processes` processes: every `processes`-th worker.
    fn team(&self, peer: &dyn Peer, process: usize, processes: usize) -> Result<Team> {
        let all = [WRITERS, READERS, LISTERS].into_iter().enumerate();
        let all = all.flat_map(|(kind, count)| (0..count).map(move |id| (kind, id)));
        let workers: Vec<(usize, usize)> = all.skip(process).step_by(processes).collect();
        let hits: Vec<AtomicU64> = workers.iter().map(|_| AtomicU64::new(0)).collect();
        let reads: Vec<Option<Reads>> = workers
            .iter()
            .map(|(kind, id)| (*kind == 1).then(|| Reads::new(self, *id)))
            .collect();
        let worked = crew(workers.len(), |at| match (workers[at], &reads[at]) {
            ((0, id), _) => self.write(peer, id),
            ((_, _), Some(reads)) => self.read(peer, reads, &hits[at]),
            ((_, _), None) => self.list(peer),
        })?;
        let mut team = Team::default();
        for (at, worked) in worked.into_iter().enumerate() {
            match workers[at].0 {
                0 => team.writers.add(worked, None),
                1 => team.readers.add(worked, Some(hits[at].load(Ordering::Relaxed))),
                _ => team.listers.add(worked, None),
            }
        }
        Ok(team)
    }

    fn write(&self, peer: &dyn Peer, writer: usize) -> Result<Worked> {
        let mut key = writer_key(writer, 0).into_bytes();
        let planned = self.planned(OPERATIONS).min(RANGE as u64);
        self.shift(WRITERS).work(planned, |number| {
            peer.put(&key, self.values.of(&key, 0))?;
            self.acknowledged[writer].store(number + 1, Ordering::Release);
            count_up(&mut key);
            Ok(())
        })
    }

    fn read(&self, peer: &dyn Peer, reads: &Reads, hits: &AtomicU64) -> Result<Worked> {
        let mut found_count = 0;
        let worked = self.shift(READERS).work(self.planned(OPERATIONS), |number| {
            let (key, expected) = reads.at(number);
            let must_be_there = match expected {
                Expected::Always => true,
                Expected::Never => false,
                Expected::OnceWritten(writer, at) => self.acknowledged[writer].load(Ordering::Acquire) > at,
            };
            peer.get(key, &mut |found| {
                found_count += u64::from(found.is_some());
                match expected {
                    Expected::Never => self.checker.absent(key, found),
                    _ if must_be_there => self.checker.present(key, 0, found),
                    _ => self.checker.present_or_absent(key, 0, found),
                }
            })
        })?;
        hits.store(found_count, Ordering::Relaxed);
        Ok(worked)
    }

    fn list(&self, peer: &dyn Peer) -> Result<Worked> {
        if self.context.is_exempt {
            // A peer that stores nothing has no rows; the workload runs it for its writers and readers.
            return Ok(Worked::default());
        }
        let shift = self.shift(LISTERS);
        shift.work_while(self.planned(PASSES), &true.into(), |_| self.pass(peer, &shift))
    }

    /// Walks over the whole store once, and returns the number of rows it saw.
    fn pass(&self, peer: &dyn Peer, shift: &Shift) -> Result<u64> {
        let acknowledged: u64 = self
            .acknowledged
            .iter()
            .map(|count| count.load(Ordering::Acquire))
            .sum();
        let (mut rows, mut base, mut last) = (0u64, 0usize, Vec::with_capacity(32));
        let scanned = peer.read(&mut |reader| {
            reader.scan(&[], u64::MAX, &mut |key, value| {
                rows += 1;
                base += usize::from(key.first() == Some(&b'k'));
                ensure!(last.as_slice() < key, "a list gave {} twice or late", key_text(key));
                last.clear();
                last.extend_from_slice(key);
                self.checker.present(key, 0, Some(value))?;
                if rows.is_multiple_of(1024) && shift.is_over() {
                    bail!(PassEnded);
                }
                Ok(())
            })
        });
        match scanned {
            Err(error) if error.is::<PassEnded>() => return Ok(rows),
            scanned => scanned?,
        }
        ensure!(base == self.base, "a list saw {base} of {} loaded records", self.base);
        let least = self.base as u64 + acknowledged;
        ensure!(
            rows >= least,
            "a list saw {rows} records, {least} were acknowledged before it began"
        );
        Ok(rows)
    }

    /// Verifies, after the clock, that everything loaded and everything acknowledged is present.
    fn verify_all(&self, peer: &dyn Peer, base: &Keys) -> Result<()> {
        let present = |key: &[u8], found: Option<&[u8]>| self.checker.present(key, 0, found);
        read_back(peer, base.all(), present)?;
        for (writer, count) in self.acknowledged.iter().enumerate() {
            let width = writer_key(writer, 0).len();
            let count = count.load(Ordering::Acquire) as usize;
            let keys = Keys::collect(width, (0..count).map(|number| writer_key(writer, number)));
            read_back(peer, keys.all(), present)?;
        }
        if !self.context.is_exempt {
            self.pass(peer, &self.shift(1).without_end())?;
        }
        Ok(())
    }
}

/// The result that a read must have.
#[derive(Clone, Copy)]
enum Expected {
    Always,
    Never,
    /// The record with this number of this writer, once it was acknowledged.
    OnceWritten(usize, u64),
}

/// The reads of one reader, drawn before the clock starts. In the timed forms they repeat.
struct Reads {
    base: Keys,
    first: (Keys, Vec<u32>),
    other: (Keys, Vec<u32>),
    other_writer: usize,
    missing: Keys,
}

impl Reads {
    fn new(load: &Load, reader: usize) -> Reads {
        let count = load.context.scaled(OPERATIONS).div_ceil(4);
        let mut generator = Generator::new(load.context.seed, &format!("reader {reader}"));
        let base = generator.picks(count, load.base);
        let other_writer = [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15][reader % 15];
        let written = load.context.scaled(OPERATIONS);
        let mut of_writer = |writer: usize| {
            let picks = generator.picks(count, written);
            let width = writer_key(writer, 0).len();
            let keys = picks.iter().map(|pick| writer_key(writer, *pick as usize));
            (Keys::collect(width, keys), picks)
        };
        let (first, other) = (of_writer(1), of_writer(other_writer));
        Reads {
            base: Keys::collect(13, base.iter().map(|pick| format!("key{pick:010}"))),
            first,
            other,
            other_writer,
            missing: Keys::collect(17, base.iter().map(|pick| format!("missing{pick:010}"))),
        }
    }

    fn at(&self, number: u64) -> (&[u8], Expected) {
        let at = (number / 4) as usize % self.base.len();
        match number % 4 {
            0 => (self.base.at(at), Expected::Always),
            1 => (
                self.first.0.at(at),
                Expected::OnceWritten(1, u64::from(self.first.1[at])),
            ),
            2 => {
                let expected = Expected::OnceWritten(self.other_writer, u64::from(self.other.1[at]));
                (self.other.0.at(at), expected)
            }
            _ => (self.missing.at(at), Expected::Never),
        }
    }
}

/// Runs one process of `mega/processes`: opens the store, reports that, waits for a line, works, and reports its work.
pub fn run_member(context: &Context, arguments: &MemberArguments) -> Result<()> {
    let values = Values::new(context.seed, Length::Mega);
    let counters = SharedCounters::open(&arguments.counters, WRITERS)?;
    let load = Load::new(context, &values, &counters);
    let peer = open(context)?;
    println!("ready");
    await_start()?;
    let team = load.team(&*peer, arguments.process, PROCESSES)?;
    peer.close()?;
    tell([team.writers, team.readers, team.listers])
}

fn run_processes(context: &Context, counters: &Path) -> Result<Vec<Done>> {
    let mut members = Members::start(context, "mega/processes", counters, PROCESSES)?;
    let (crews, cpu) = members.work()?;
    members.end()?;
    let [writers, readers, listers] = crews.try_into().map_err(|_| anyhow!("a process told of other crews"))?;
    let mut phases = Team {
        writers,
        readers,
        listers,
    }
    .into_phases();
    phases.iter_mut().for_each(|done| done.other_processes_cpu_nanos = cpu);
    Ok(phases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_up_as_they_are_formatted() {
        let mut key = writer_key(3, 0).into_bytes();
        for number in 0..1234 {
            assert_eq!(key, writer_key(3, number).into_bytes());
            count_up(&mut key);
        }
        let mut key = b"key0000000999".to_vec();
        count_up(&mut key);
        assert_eq!(key, b"key0000001000");
    }
}
