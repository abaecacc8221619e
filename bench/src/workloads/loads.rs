//! The building blocks of workloads: putting, reading and deleting, on one thread or many, with every read verified.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail, ensure};

use super::{Context, Recorder, tally_scan};
use crate::crew::{Shift, Worked, alone, crew, together};
use crate::data::{Checker, Generator, KeySlice, Keys, Tally, Values, key_text};
use crate::load::{Load, Operation};
use crate::measure::{Done, Work};
use crate::peer::{Outside, Pairs, Peer, Reader};

/// Number of pairs in one commit of a load that is not the subject of the workload.
pub const BATCH_PAIRS: usize = 1000;

/// Number of acknowledged keys in each worker's share.
pub type Acknowledged = Vec<u64>;

fn acknowledged(crew: &[Worked]) -> Acknowledged {
    crew.iter().map(|worked| worked.operations).collect()
}

/// Runs a load in the process of a driver, timed by its clock, until the shift ends.
pub fn run_outside(outside: &dyn Outside, load: &Load, shift: Shift) -> Result<(Done, Acknowledged)> {
    let ran = outside.run(load, shift.nanos_left())?;
    let counts: Acknowledged = ran.workers.iter().map(|(operations, _)| *operations).collect();
    let (operations, planned) = (counts.iter().sum(), load.len() as u64);
    let done = Done {
        operations,
        stopped_at_of: (operations < planned && shift.is_at_limit()).then_some(planned),
        workers_cpu_nanos: ran.workers.iter().map(|(_, cpu_nanos)| cpu_nanos).sum(),
        wall_nanos: Some(ran.nanos),
        latencies: Some(ran.latencies),
        timeline: Some(ran.timeline),
        ..Done::default()
    };
    Ok((done, counts))
}

/// Returns a load with one operation on each of these keys, each in its own commit, divided among workers as a crew
/// divides them.
fn load_of_each(operation: Operation, keys: KeySlice, values: Option<&Values>, workers: usize) -> Result<Load> {
    let value = |key| values.map_or(&[][..], |values| values.of(key, 0));
    Load::of(operation, keys.iter().map(|key| (key, value(key))), workers, 1)
}

/// Puts every key once, each in its own commit; each worker has a share of the keys.
pub fn put_each(
    context: &Context,
    peer: &dyn Peer,
    keys: KeySlice,
    values: &Values,
    workers: usize,
) -> Result<(Done, Acknowledged)> {
    if let Some(outside) = peer.outside() {
        let load = load_of_each(Operation::Put, keys, Some(values), workers)?;
        return run_outside(outside, &load, context.pace.whole_shift(workers));
    }
    let worked = crew(workers, |worker| {
        let share = keys.share(worker, workers);
        context.pace.whole_shift(workers).work(share.len() as u64, |at| {
            let key = share.at(at as usize);
            peer.put(key, values.of(key, 0))
        })
    })?;
    let counts = acknowledged(&worked);
    Ok((together(worked), counts))
}

/// Deletes every key, each in its own commit; each worker has a share of the keys.
pub fn delete_each(context: &Context, peer: &dyn Peer, keys: KeySlice, workers: usize) -> Result<(Done, Acknowledged)> {
    if let Some(outside) = peer.outside() {
        let load = load_of_each(Operation::Delete, keys, None, workers)?;
        return run_outside(outside, &load, context.pace.whole_shift(workers));
    }
    let worked = crew(workers, |worker| {
        let share = keys.share(worker, workers);
        context
            .pace
            .whole_shift(workers)
            .work(share.len() as u64, |at| peer.delete(share.at(at as usize)))
    })?;
    let counts = acknowledged(&worked);
    Ok((together(worked), counts))
}

/// Reads every key individually. The key must have its first value. Each worker has a share of the keys.
pub fn get_each(context: &Context, peer: &dyn Peer, keys: KeySlice, values: &Values, workers: usize) -> Result<Done> {
    if let Some(outside) = peer.outside() {
        let load = load_of_each(Operation::Get, keys, Some(values), workers)?;
        let (done, _) = run_outside(outside, &load, context.pace.shift(workers, None))?;
        return Ok(done);
    }
    let checker = context.checker(values);
    let worked = crew(workers, |worker| {
        let share = keys.share(worker, workers);
        context.pace.shift(workers, None).work(share.len() as u64, |at| {
            let key = share.at(at as usize);
            peer.get(key, &mut |found| checker.present(key, 0, found))
        })
    })?;
    Ok(together(worked))
}

/// Reads every key. Each worker reads its share in one snapshot.
pub fn get_in_snapshots(
    context: &Context,
    peer: &dyn Peer,
    keys: KeySlice,
    workers: usize,
    check: impl Fn(&[u8], Option<&[u8]>) -> Result<()> + Sync,
) -> Result<Done> {
    let worked = crew(workers, |worker| {
        let share = keys.share(worker, workers);
        let mut worked = Worked::default();
        peer.read(&mut |reader| {
            worked = context.pace.shift(workers, None).work(share.len() as u64, |at| {
                let key = share.at(at as usize);
                reader.get(key, &mut |found| check(key, found))
            })?;
            Ok(())
        })?;
        Ok(worked)
    })?;
    Ok(together(worked))
}

/// Reads every key in one snapshot without a clock in the loop, to find the cost of a read without its measurement.
pub fn get_untimed(
    peer: &dyn Peer,
    keys: KeySlice,
    check: impl Fn(&[u8], Option<&[u8]>) -> Result<()>,
) -> Result<Done> {
    read_back(peer, keys, check)?;
    Ok(Done::untimed(keys.len()))
}

/// Reads every key in one snapshot, after the clock.
pub fn read_back(peer: &dyn Peer, keys: KeySlice, check: impl Fn(&[u8], Option<&[u8]>) -> Result<()>) -> Result<()> {
    if let Some(outside) = peer.outside() {
        return outside.fetch(keys, &mut |key, found| check(key, found));
    }
    peer.read(&mut |reader| {
        keys.iter()
            .try_for_each(|key| reader.get(key, &mut |found| check(key, found)))
    })
}

/// Reads back the acknowledged keys of each worker's share.
pub fn read_back_shares(
    peer: &dyn Peer,
    keys: KeySlice,
    acknowledged: &[u64],
    check: impl Fn(&[u8], Option<&[u8]>) -> Result<()> + Copy,
) -> Result<()> {
    let shares = shares(keys, acknowledged);
    shares
        .into_iter()
        .try_for_each(|(done, _)| read_back(peer, done, check))
}

/// Reads every key, which must be present in its version.
pub fn read_back_versions(peer: &dyn Peer, keys: &Keys, versions: &[u32], checker: Checker) -> Result<()> {
    peer.read(&mut |reader| {
        let mut pairs = keys.iter().zip(versions);
        pairs.try_for_each(|(key, version)| reader.get(key, &mut |found| checker.present(key, *version, found)))
    })
}

/// Random puts of pairs that are there, each in its own commit.
pub struct RandomPuts<'a> {
    pub context: &'a Context<'a>,
    pub peer: &'a dyn Peer,
    pub keys: &'a Keys,
    pub values: &'a Values,
    pub picks: Generator,
    /// How often each pair was put.
    pub versions: Vec<u32>,
}

impl<'a> RandomPuts<'a> {
    pub fn new(context: &'a Context<'a>, peer: &'a dyn Peer, keys: &'a Keys, values: &'a Values) -> RandomPuts<'a> {
        RandomPuts {
            context,
            peer,
            keys,
            values,
            picks: Generator::new(context.seed, "puts"),
            versions: vec![0; keys.len()],
        }
    }

    pub fn put(&mut self) -> Result<()> {
        let record = self.picks.below(self.keys.len());
        let key = self.keys.at(record);
        self.peer.put(key, self.values.of(key, self.versions[record] + 1))?;
        self.versions[record] += 1;
        Ok(())
    }

    pub fn read_back(&self) -> Result<()> {
        read_back_versions(self.peer, self.keys, &self.versions, self.context.checker(self.values))
    }
}

/// Returns the share of each worker: the acknowledged keys, and the rest. A stopped worker had finished every operation
/// it began, so no key is in doubt.
pub fn shares<'a>(keys: KeySlice<'a>, acknowledged: &[u64]) -> Vec<(KeySlice<'a>, KeySlice<'a>)> {
    let shares = acknowledged.iter().enumerate().map(|(worker, &count)| {
        let share = keys.share(worker, acknowledged.len());
        let count = count as usize;
        (share.part(0, count), share.part(count, share.len()))
    });
    shares.collect()
}

/// Loads keys in batches.
pub fn load_in_batches(peer: &dyn Peer, keys: KeySlice, values: &Values) -> Result<()> {
    keys.chunks(BATCH_PAIRS)
        .try_for_each(|batch| put_batch(peer, batch, values))
}

/// Puts keys in one commit.
pub fn put_batch(peer: &dyn Peer, keys: KeySlice, values: &Values) -> Result<()> {
    let mut pairs = keys.iter().map(|key| (key, values.of(key, 0)));
    peer.put_many(&mut pairs as &mut Pairs)
}

/// Loads keys in commits of `batch` pairs as one measured piece of work. The limit of the cell can stop it between two
/// commits. The acknowledged keys are the first ones, as many as the operations. The latencies are those of the
/// commits.
pub fn load_measured(
    context: &Context,
    peer: &dyn Peer,
    keys: KeySlice,
    values: &Values,
    batch: usize,
) -> Result<Done> {
    let batches = keys.len().div_ceil(batch) as u64;
    let mut done = 0;
    let shift = context.pace.whole_shift(1);
    let worked = shift.work_while(batches, &true.into(), |number| {
        let start = number as usize * batch;
        let part = keys.part(start, start + batch);
        put_batch(peer, part, values)?;
        done += part.len() as u64;
        Ok(part.len() as u64)
    })?;
    let mut all = alone(worked);
    all.stopped_at_of = (context.pace.is_over() && done < keys.len() as u64).then_some(keys.len() as u64);
    Ok(all)
}

/// Loads all keys, 1,000 a commit, as the first row. Returns `false` if the limit of the cell stopped it. The
/// acknowledged keys have then been read back, and no more work is possible.
pub fn load_row(
    context: &Context,
    recorder: &mut Recorder,
    peer: &dyn Peer,
    keys: &Keys,
    values: &Values,
) -> Result<bool> {
    let mut loaded = 0;
    recorder.phase("load, 1,000 a commit", Work::Writes, || {
        let done = load_measured(context, peer, keys.all(), values, BATCH_PAIRS)?;
        loaded = done.operations as usize;
        Ok(done)
    })?;
    if loaded == keys.len() {
        return Ok(true);
    }
    let checker = context.checker(values);
    let acknowledged = keys.all().part(0, loaded);
    read_back(peer, acknowledged, |key, found| checker.present(key, 0, found))?;
    Ok(false)
}

/// Fails unless a scan saw exactly `expected`, and names a wrong key if it can. The second scan, which finds that key,
/// is not timed.
pub fn verify_scan(
    peer: &dyn Peer,
    seen: &Tally,
    expected: &Tally,
    check: impl Fn(&[u8], Option<&[u8]>) -> Result<()>,
) -> Result<()> {
    if seen == expected {
        return Ok(());
    }
    let mut last = Vec::new();
    peer.read(&mut |reader| {
        reader.scan(&[], u64::MAX, &mut |key, value| {
            check(key, Some(value))?;
            if last.as_slice() >= key {
                bail!("a scan gave key {} after {}", key_text(key), key_text(&last));
            }
            last = key.to_vec();
            Ok(())
        })
    })?;
    bail!(
        "a scan saw {} pairs, {} are there, or saw pairs that are right alone but not together",
        seen.pairs(),
        expected.pairs()
    )
}

/// Scans everything and verifies it.
pub fn scan_and_verify(peer: &dyn Peer, expected: &Tally, checker: Checker) -> Result<Done> {
    let seen = tally_scan(peer)?;
    verify_scan(peer, &seen, expected, |key, found| checker.present(key, 0, found))?;
    Ok(Done::untimed(seen.pairs() as usize))
}

/// Reads `limit` pairs, starting at a loaded key. `expected` has the loaded keys from there on, up to `limit` of them.
/// The range must begin with the first, be in order, and skip none. It may be short only at the end of the store. Keys
/// stored later may lie between them.
pub fn verified_range(reader: &dyn Reader, expected: KeySlice, limit: u64, checker: Checker) -> Result<()> {
    let (mut pairs, mut due) = (0u64, expected.iter());
    let mut next = due.next();
    reader.scan(expected.at(0), limit, &mut |key, value| {
        pairs += 1;
        if let Some(loaded) = next {
            ensure!(
                key == loaded || (key < loaded && pairs > 1),
                "a range gave key {} and not {}",
                key_text(key),
                key_text(loaded)
            );
            if key == loaded {
                next = due.next();
            }
        }
        checker.present(key, 0, Some(value))
    })?;
    let is_at_end = (expected.len() as u64) < limit && next.is_none();
    ensure!(
        pairs == limit || (is_at_end && pairs < limit),
        "a range of {limit} pairs gave {pairs}"
    );
    Ok(())
}

/// Reads `pairs` pairs from each start, which is a loaded key, in one snapshot.
pub fn ranges_in_a_snapshot(
    context: &Context,
    peer: &dyn Peer,
    sorted: KeySlice,
    starts: &[u32],
    pairs: u64,
    checker: Checker,
) -> Result<Done> {
    let mut worked = Worked::default();
    peer.read(&mut |reader| {
        worked = context.pace.shift(1, None).work(starts.len() as u64, |at| {
            let start = starts[at as usize] as usize;
            let expected = sorted.part(start, start + pairs as usize);
            verified_range(reader, expected, pairs, checker)
        })?;
        Ok(())
    })?;
    Ok(alone(worked))
}

/// The versions of one key that a read may find while others write it, in one word.
///
/// A read must not find a version in this case: a later write began after the version was acknowledged, and was itself
/// acknowledged before the read began. Overlapping writes of one key may end in either order, so generations separate
/// the versions. A generation begins with a write that finds no other write in progress, and all versions before it are
/// `settled`. Once any write of the generation is acknowledged, a read must not find a settled version: that is the
/// `floor`. The invariants: `floor <= settled + 1` and `settled <= issued`; a read may find versions from `floor` to
/// `issued`.
pub struct Versions(AtomicU64);

const FIELD: u64 = (1 << 20) - 1;
const OUTSTANDING_MAX: u64 = 15;

struct Fields {
    issued: u64,
    settled: u64,
    floor: u64,
    outstanding: u64,
}

impl Fields {
    fn of(word: u64) -> Fields {
        Fields {
            issued: word & FIELD,
            settled: word >> 20 & FIELD,
            floor: word >> 40 & FIELD,
            outstanding: word >> 60,
        }
    }

    fn word(&self) -> u64 {
        assert!(
            self.issued <= FIELD && self.outstanding <= OUTSTANDING_MAX,
            "a key's writes fit the word"
        );
        self.issued | self.settled << 20 | self.floor << 40 | self.outstanding << 60
    }
}

impl Versions {
    /// Creates the state with version 0 only, which was loaded.
    pub fn new() -> Versions {
        Versions(AtomicU64::new(0))
    }

    fn change(&self, change: impl Fn(&mut Fields)) -> Fields {
        let mut word = self.0.load(Ordering::SeqCst);
        loop {
            let mut fields = Fields::of(word);
            change(&mut fields);
            match self
                .0
                .compare_exchange_weak(word, fields.word(), Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return fields,
                Err(now) => word = now,
            }
        }
    }

    /// Begins a write, and returns the version that it writes.
    pub fn begin(&self) -> u32 {
        let begun = self.change(|fields| {
            if fields.outstanding == 0 {
                fields.settled = fields.issued;
            }
            fields.issued += 1;
            fields.outstanding += 1;
        });
        begun.issued as u32
    }

    /// Records that a write was acknowledged.
    pub fn acknowledge(&self) {
        self.change(|fields| {
            fields.floor = fields.settled + 1;
            fields.outstanding -= 1;
        });
    }

    /// Returns the oldest version that a read beginning now may find.
    pub fn oldest(&self) -> u32 {
        Fields::of(self.0.load(Ordering::SeqCst)).floor as u32
    }

    /// Returns the newest version that a read ending now may have found.
    pub fn newest(&self) -> u32 {
        Fields::of(self.0.load(Ordering::SeqCst)).issued as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_may_find_only_versions_that_no_acknowledged_write_replaced() {
        let versions = Versions::new();
        assert_eq!((versions.oldest(), versions.newest()), (0, 0));
        assert_eq!(versions.begin(), 1);
        assert_eq!(
            (versions.oldest(), versions.newest()),
            (0, 1),
            "either, while it is under way"
        );
        versions.acknowledge();
        assert_eq!((versions.oldest(), versions.newest()), (1, 1));
        // Two concurrent writes may end in either order.
        versions.begin();
        versions.begin();
        versions.acknowledge();
        assert_eq!((versions.oldest(), versions.newest()), (2, 3));
        versions.acknowledge();
        assert_eq!(
            (versions.oldest(), versions.newest()),
            (2, 3),
            "which came last is not known"
        );
        versions.begin();
        versions.acknowledge();
        assert_eq!((versions.oldest(), versions.newest()), (4, 4));
    }
}
