//! The Yahoo Cloud Serving Benchmark's workloads A, C and E: 1M records of 1,000 bytes (its ten fields as one value),
//! 1M operations on 8 threads, records chosen by Zipf's law.
//!
//! While other workers write a key, a read may find any version that was not yet replaced when the read began. The lab
//! tracks these versions (`Versions`). A scan must return every loaded record in its range.

use anyhow::Result;

use super::loads::{Versions, load_in_batches, read_back, verified_range};
use super::{Context, Recorder, Workload, variant};
use crate::crew::{crew, together};
use crate::data::{Generator, Keys, Length, Values, Zipfian, scrambled};
use crate::measure::Work;
use crate::peer::Peer;

const OPERATIONS: usize = 1_000_000;
const THREADS: usize = 8;
const VALUE_BYTES: usize = 1_000;
/// `user` and 20 digits.
const KEY_BYTES: usize = 24;
/// A scan asks for 1 to `SCAN_MAX` records.
const SCAN_MAX: usize = 100;

/// Half reads, half updates.
pub const A: Workload = Workload {
    name: "ycsb-a",
    about: "YCSB A: 1M records of 1 kB; 1M operations from 8 threads, half reads, half updates, by Zipf's law",
    variants: &[variant("", 1_000_000)],
    has_open_loop: true,
    run: run_a,
    ..Workload::USUAL
};

/// Reads only.
pub const C: Workload = Workload {
    name: "ycsb-c",
    about: "YCSB C: 1M records of 1 kB; 1M reads from 8 threads, by Zipf's law",
    run: run_c,
    ..A
};

/// Scans and inserts.
pub const E: Workload = Workload {
    name: "ycsb-e",
    about: "YCSB E: 1M records of 1 kB; 1M operations from 8 threads, 95 % scans of 1 to 100 records, 5 % inserts",
    run: run_e,
    ..A
};

/// Returns the key of a record. YCSB hashes the record's number, so that neighbours in number are not neighbours in
/// order.
fn key_of(number: usize) -> String {
    format!("user{:020}", scrambled(number as u64))
}

struct Loaded<'a> {
    context: &'a Context<'a>,
    keys: Keys,
    values: Values,
    zipfian: Zipfian,
    peer: Box<dyn Peer>,
}

impl<'a> Loaded<'a> {
    fn load(context: &'a Context<'a>) -> Result<Loaded<'a>> {
        let count = context.records();
        let keys = Keys::collect(KEY_BYTES, (0..count).map(key_of));
        let values = Values::new(context.seed, Length::Fixed(VALUE_BYTES));
        let peer = context.open()?;
        load_in_batches(&*peer, keys.all(), &values)?;
        Ok(Loaded {
            context,
            zipfian: Zipfian::new(count),
            keys,
            values,
            peer,
        })
    }

    fn operations(&self) -> usize {
        self.context.scaled(OPERATIONS).div_ceil(THREADS)
    }

    /// Returns the records that a worker uses, drawn before the clock starts. The hash in the key scatters the frequent
    /// ones over the store.
    fn choices(&self, worker: usize) -> Vec<u32> {
        let mut generator = Generator::new(self.context.seed, &format!("choices {worker}"));
        (0..self.operations())
            .map(|_| self.zipfian.next(&mut generator) as u32)
            .collect()
    }
}

fn run_a(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let loaded = Loaded::load(context)?;
    let versions: Vec<Versions> = loaded.keys.iter().map(|_| Versions::new()).collect();
    let choices: Vec<Vec<u32>> = (0..THREADS).map(|worker| loaded.choices(worker)).collect();
    let checker = context.checker(&loaded.values);
    let read = |record: usize| {
        let (key, versions) = (loaded.keys.at(record), &versions[record]);
        let oldest = versions.oldest();
        loaded.peer.get(key, &mut |found| {
            checker.present_between(key, oldest, versions.newest(), found)
        })
    };
    let update = |record: usize| {
        let (key, versions) = (loaded.keys.at(record), &versions[record]);
        let version = versions.begin();
        loaded.peer.put(key, loaded.values.of(key, version))?;
        versions.acknowledge();
        Ok(())
    };
    recorder.phase("half reads, half updates", Work::Writes, || {
        let worked = crew(THREADS, |worker| {
            let mine = &choices[worker];
            context.pace.shift(THREADS, None).work(mine.len() as u64, |at| {
                let record = mine[at as usize] as usize;
                // The choice must not depend on the record, or half of the records would never be written.
                if scrambled(at ^ (worker as u64) << 32) & 1 == 0 {
                    read(record)
                } else {
                    update(record)
                }
            })
        })?;
        Ok(together(worked))
    })?;
    (0..loaded.keys.len()).try_for_each(read)?;
    loaded.peer.close()
}

fn run_c(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let loaded = Loaded::load(context)?;
    let choices: Vec<Keys> = (0..THREADS)
        .map(|worker| loaded.keys.picked(&loaded.choices(worker)))
        .collect();
    let checker = context.checker(&loaded.values);
    recorder.phase("reads", Work::Reads, || {
        let worked = crew(THREADS, |worker| {
            let mine = &choices[worker];
            context.pace.shift(THREADS, None).work(mine.len() as u64, |at| {
                let key = mine.at(at as usize);
                loaded.peer.get(key, &mut |found| checker.present(key, 0, found))
            })
        })?;
        Ok(together(worked))
    })?;
    read_back(&*loaded.peer, loaded.keys.all(), |key, found| {
        checker.present(key, 0, found)
    })?;
    loaded.peer.close()
}

/// A step of a worker of E: a scan from a loaded record, or the insert of the next new record.
#[derive(Clone, Copy)]
enum Step {
    Scan { rank: u32, pairs: u32 },
    Insert(u32),
}

fn run_e(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let loaded = Loaded::load(context)?;
    let count = loaded.keys.len();
    let sorted = loaded.keys.sorted();
    let plans: Vec<Vec<Step>> = (0..THREADS).map(|worker| plan_of(&loaded, &sorted, worker)).collect();
    let inserts = loaded.operations().div_ceil(10);
    let fresh: Vec<Keys> = (0..THREADS)
        .map(|worker| Keys::collect(KEY_BYTES, (0..inserts).map(|at| key_of(count + worker * inserts + at))))
        .collect();
    let checker = context.checker(&loaded.values);
    let mut inserted = vec![0; THREADS];
    recorder.phase("95 % scans, 5 % inserts", Work::Writes, || {
        let worked = crew(THREADS, |worker| {
            let mine = &plans[worker];
            context
                .pace
                .shift(THREADS, None)
                .work(mine.len() as u64, |at| match mine[at as usize] {
                    Step::Insert(number) => {
                        let key = fresh[worker].at(number as usize);
                        loaded.peer.put(key, loaded.values.of(key, 0))
                    }
                    Step::Scan { rank, pairs } => {
                        let expected = sorted.all().part(rank as usize, rank as usize + pairs as usize);
                        loaded
                            .peer
                            .read(&mut |reader| verified_range(reader, expected, u64::from(pairs), checker))
                    }
                })
        })?;
        for (worker, worked) in worked.iter().enumerate() {
            let done = &plans[worker][..worked.operations as usize];
            inserted[worker] = done.iter().filter(|step| matches!(step, Step::Insert(_))).count();
        }
        Ok(together(worked))
    })?;
    read_back(&*loaded.peer, loaded.keys.all(), |key, found| {
        checker.present(key, 0, found)
    })?;
    for (keys, count) in fresh.iter().zip(inserted) {
        read_back(&*loaded.peer, keys.all().part(0, count), |key, found| {
            checker.present(key, 0, found)
        })?;
    }
    loaded.peer.close()
}

fn plan_of(loaded: &Loaded, sorted: &Keys, worker: usize) -> Vec<Step> {
    let mut generator = Generator::new(loaded.context.seed, &format!("plan {worker}"));
    let sorted: Vec<&[u8]> = sorted.iter().collect();
    let mut inserts = 0;
    let inserts_max = loaded.operations().div_ceil(10) as u32;
    let steps = loaded.choices(worker).into_iter().map(|record| {
        if generator.below(20) == 0 && inserts < inserts_max {
            inserts += 1;
            return Step::Insert(inserts - 1);
        }
        let rank = sorted.partition_point(|key| *key < loaded.keys.at(record as usize)) as u32;
        let pairs = 1 + generator.below(SCAN_MAX) as u32;
        Step::Scan { rank, pairs }
    });
    steps.collect()
}
