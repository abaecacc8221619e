//! The first thing anybody tries: load pairs one by one, then read them at once.
//!
//! Every put is a commit of its own, in random order. Nothing waits for the store to settle before the reads: a store
//! that leaves work behind pays for it in its reads, or in the close at the end.

use anyhow::Result;

use super::{Context, Recorder, Workload, tally_scan, verify_scan};
use crate::data::{Generator, Tally, values_of, verify};
use crate::measure::{Done, Lap, Work};
use crate::peer::Class;

/// Pairs at scale 1.
const PAIRS: usize = 1_000_000;

pub const WORKLOAD: Workload = Workload {
    name: "first",
    about: "1M pairs (16-byte random keys, 100-byte values) put one by one; at once random reads in one snapshot, \
        full scan, missing keys",
    classes: &[Class::Written, Class::None],
    needs_persistence: false,
    run,
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.scaled(PAIRS);
    let keys = Generator::new(context.seed, "load").present_keys(count);
    let values = values_of(&keys);
    let reads = Generator::new(context.seed, "read").sample(&keys, count);
    let missing = Generator::new(context.seed, "missing").absent_keys(count);
    let expected = Tally::expected(&keys);
    let peer = context.open()?;

    recorder.phase("single puts", Work::Writes, || {
        let mut lap = Lap::start();
        for (key, value) in keys.iter().zip(&values) {
            peer.put(key, value)?;
            lap.next();
        }
        Ok(Done::timed(count, lap))
    })?;
    recorder.phase("random reads", Work::Reads, || {
        peer.get_many(&reads, &mut verify)?;
        Ok(Done::untimed(count))
    })?;
    recorder.phase("random reads, each timed", Work::Reads, || {
        let mut lap = Lap::start();
        peer.get_many(&reads, &mut |key, found| {
            lap.next();
            verify(key, found)
        })?;
        Ok(Done::timed(count, lap))
    })?;
    recorder.phase("full scan", Work::Reads, || {
        verify_scan(&*peer, &tally_scan(&*peer)?, &expected)?;
        Ok(Done::untimed(count))
    })?;
    recorder.phase("missing keys", Work::Reads, || {
        peer.get_many(&missing, &mut verify)?;
        Ok(Done::untimed(count))
    })?;
    // What was left behind is due now: making the rest durable, and an orderly end.
    recorder.phase("sync", Work::Writes, || peer.sync().map(|()| Done::untimed(1)))?;
    recorder.phase("close", Work::Writes, || peer.close().map(|()| Done::untimed(1)))
}
