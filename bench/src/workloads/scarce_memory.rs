//! Five times as much data as memory. A control group limits the process of the cell, including the page cache of its
//! files. Reads and overwrites use random records, so most of them miss.

use anyhow::Result;

use super::loads::{get_each, load_row, verify_scan};
use super::{Context, Recorder, Resources, Workload, tally_scan, variant};
use crate::crew::alone;
use crate::data::{Generator, Length, Tally, Values};
use crate::measure::{Done, Work};

const KEY_BYTES: usize = 20;
const VALUE_BYTES: usize = 1_000;
const DATA_PER_MEMORY: usize = 5;
/// Memory of the lab itself: its program, and for each record the key and a place in each list.
const OWN_BYTES: usize = 40 << 20;
const OWN_BYTES_EACH: usize = 40;
/// Minimum at any scale. With less, stores fail because of their own needs, however little data there is.
const MEMORY_BYTES_MIN: usize = 72 << 20;
/// Number of reads at scale 1, and the threads that share them.
const READS: usize = 200_000;
const READERS: usize = 4;
/// Seconds of overwriting at scale 1, and the minimum at any scale.
const SECONDS: f64 = 30.0;
const SECONDS_MIN: f64 = 0.2;

/// Returns the memory of a cell with this number of records.
fn memory_bytes(records: usize) -> u64 {
    let data = records * (KEY_BYTES + VALUE_BYTES);
    let memory = data / DATA_PER_MEMORY + OWN_BYTES + records * OWN_BYTES_EACH;
    memory.max(MEMORY_BYTES_MIN) as u64
}

pub const WORKLOAD: Workload = Workload {
    name: "scarce-memory",
    about: "1M pairs of 20 and 1,000 bytes with a fifth of that as memory (a control group); loaded 1,000 a commit in random order; 200k random \
        reads from 4 threads, random overwrites one by one for 30 seconds, and a full scan",
    variants: &[variant("", 1_000_000)],
    needs_persistence: true,
    has_open_loop: true,
    resources: Resources {
        // SQLite has one cache for each thread.
        cache_bytes: |records| memory_bytes(records) / 8,
        memory_bytes: Some(memory_bytes),
    },
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let keys = Generator::new(context.seed, "load").keys(count, KEY_BYTES);
    let values = Values::new(context.seed, Length::Fixed(VALUE_BYTES));
    let checker = context.checker(&values);
    let peer = context.open()?;
    if !load_row(context, recorder, &*peer, &keys, &values)? {
        return peer.close();
    }
    let reads = keys.picked(&Generator::new(context.seed, "read").picks(context.scaled(READS), count));
    recorder.phase("reads from 4 threads", Work::Reads, || {
        get_each(context, &*peer, reads.all(), &values, READERS)
    })?;
    drop(reads);
    let mut versions = vec![0u32; count];
    recorder.phase("overwrites", Work::Writes, || {
        let picks = Generator::new(context.seed, "overwrite").picks(count.max(1 << 16), count);
        let shift = context
            .pace
            .shift(1, Some(context.scaled_seconds(SECONDS, SECONDS_MIN)));
        let mut worked = shift.work(u64::MAX, |at| {
            let record = picks[at as usize % picks.len()] as usize;
            let key = keys.at(record);
            peer.put(key, values.of(key, versions[record] + 1))?;
            versions[record] += 1;
            Ok(())
        })?;
        // The plan was to work for a time; only the limit of the cell cuts that short.
        worked.stopped_at_of = shift.is_at_limit().then_some(u64::MAX);
        Ok(alone(worked))
    })?;
    let expected = Tally::expected(&keys, &values, |record| versions[record]);
    let mut scanned = None;
    recorder.phase("full scan", Work::Reads, || {
        let seen = scanned.insert(tally_scan(&*peer)?);
        Ok(Done::untimed(seen.pairs() as usize))
    })?;
    let seen = match scanned {
        Some(seen) => seen,
        // The cell reached its limit before the scan.
        None => tally_scan(&*peer)?,
    };
    if seen != expected {
        // Sorts the records by key: four bytes each, because memory is scarce here too.
        let mut records: Vec<u32> = (0..count as u32).collect();
        records.sort_unstable_by_key(|&record| keys.at(record as usize));
        verify_scan(&*peer, &seen, &expected, |key, found| {
            let place = records.binary_search_by(|&record| keys.at(record as usize).cmp(key));
            let version = place.map_or(0, |place| versions[records[place] as usize]);
            checker.present(key, version, found)
        })?;
    }
    recorder.phase("sync and close", Work::Writes, || {
        peer.sync()?;
        peer.close().map(|()| Done::untimed(1))
    })
}
