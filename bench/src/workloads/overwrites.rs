//! Overwriting random records one by one for a minute. It shows whether a store keeps its initial speed, how long its
//! slowest writes take, and what a write costs including the work it leaves behind.
//!
//! A control thread sleeps a millisecond at a time beside the writes. Its delays show what the machine does to every
//! thread, whatever the store does.

use anyhow::Result;

use super::control::beside_control;
use super::loads::{load_row, read_back_versions};
use super::{Context, Recorder, Workload, variant};
use crate::crew::alone;
use crate::data::{Generator, Length, Values};
use crate::measure::{Done, Latencies, Work};
use crate::text::time_text;

/// Seconds of overwriting at scale 1, and the minimum at any scale.
const SECONDS: f64 = 60.0;
const SECONDS_MIN: f64 = 0.2;

pub const WORKLOAD: Workload = Workload {
    name: "overwrites",
    about: "5M pairs of 16 and 100 bytes, loaded 1,000 a commit; random ones overwritten one by one for 60 seconds, with a control \
        thread for the machine's own stalls; then everything made durable and closed",
    variants: &[variant("", 5_000_000)],
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let keys = Generator::new(context.seed, "load").keys(count, 16);
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let picks = Generator::new(context.seed, "overwrite").picks(count.max(1 << 16), count);
    let peer = context.open()?;
    if !load_row(context, recorder, &*peer, &keys, &values)? {
        return peer.close();
    }
    let mut versions = vec![0u32; count];
    let mut late = Latencies::default();
    recorder.phase("overwrites", Work::Writes, || {
        let shift = context
            .pace
            .shift(1, Some(context.scaled_seconds(SECONDS, SECONDS_MIN)));
        let (worked, lateness) = beside_control(|| {
            shift.work(u64::MAX, |at| {
                let record = picks[at as usize % picks.len()] as usize;
                let key = keys.at(record);
                peer.put(key, values.of(key, versions[record] + 1))?;
                versions[record] += 1;
                Ok(())
            })
        });
        late = lateness;
        let mut worked = worked?;
        // The plan was to work for a time; only the limit of the cell cuts that short.
        worked.stopped_at_of = shift.is_at_limit().then_some(u64::MAX);
        Ok(alone(worked))
    })?;
    recorder.note(format!(
        "a control thread beside the overwrites, which only slept and woke, was late by at most {} in 9,999 of 10,000 cases, and \
         once by {}",
        time_text(late.at(0.9999) as f64),
        time_text(late.at(1.0) as f64)
    ));
    read_back_versions(&*peer, &keys, &versions, checker)?;
    recorder.phase("sync and close", Work::Writes, || {
        peer.sync()?;
        peer.close().map(|()| Done::untimed(1))
    })
}
