//! The first thing users try: load pairs one by one, then read them at once.
//!
//! Every put is a commit of its own, in random order. The reads begin without waiting for the store to settle. A store
//! that leaves work behind pays for it in its reads, or in the close at the end.

use anyhow::Result;

use super::loads::{get_in_snapshots, get_untimed, put_each, read_back_shares, scan_and_verify};
use super::{Context, Recorder, Workload, variant};
use crate::answer::Unsupported;
use crate::data::{Generator, Length, Tally, Values};
use crate::measure::{Done, Work};

pub const WORKLOAD: Workload = Workload {
    name: "first",
    about: "1M pairs (16-byte random keys, 100-byte values) put one by one; at once random reads in one snapshot, \
        full scan, missing keys",
    variants: &[variant("", 1_000_000)],
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let keys = Generator::new(context.seed, "load").keys(count, 16);
    let values = Values::new(context.seed, Length::Fixed(100));
    let reads = keys.picked(&Generator::new(context.seed, "read").picks(count, count));
    let missing = Generator::new(context.seed, "missing").absent_keys(count, 16);
    let expected = Tally::expected(&keys, &values, |_| 0);
    let checker = context.checker(&values);
    let present = |key: &[u8], found: Option<&[u8]>| checker.present(key, 0, found);
    let absent = |key: &[u8], found: Option<&[u8]>| checker.absent(key, found);
    let peer = context.open()?;

    let mut acknowledged = Vec::new();
    recorder.phase("single puts", Work::Writes, || {
        let (done, counts) = put_each(context, &*peer, keys.all(), &values, 1)?;
        acknowledged = counts;
        Ok(done)
    })?;
    if acknowledged == [count as u64] {
        recorder.phase("random reads", Work::Reads, || {
            get_untimed(&*peer, reads.all(), present)
        })?;
        recorder.phase("random reads, each timed", Work::Reads, || {
            get_in_snapshots(context, &*peer, reads.all(), 1, present)
        })?;
        recorder.phase("full scan", Work::Reads, || {
            if context.is_exempt {
                anyhow::bail!(Unsupported("stores nothing that could be scanned"));
            }
            scan_and_verify(&*peer, &expected, checker)
        })?;
        recorder.phase("missing keys", Work::Reads, || {
            get_untimed(&*peer, missing.all(), absent)
        })?;
    }
    // Remaining work is due now: making the rest durable, and a clean close.
    recorder.phase("sync", Work::Writes, || peer.sync().map(|()| Done::untimed(1)))?;
    read_back_shares(&*peer, keys.all(), &acknowledged, present)?;
    recorder.phase("close", Work::Writes, || peer.close().map(|()| Done::untimed(1)))
}
