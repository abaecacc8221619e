//! Publishing where each message survives power loss before the call returns, from 1 and 50 publishers to one topic
//! each. It shows the cost of a sync, and whether publishers share it.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

use super::{PAYLOAD_BYTES, read_back};
use crate::broker::Payload;
use crate::crew::{crew, together};
use crate::measure::Work;
use crate::peer::Class;
use crate::workloads::{Context, Recorder, Workload, variant};

const PUBLISHERS: [usize; 2] = [1, 50];
/// Seconds of a step at scale 1.
const STEP: f64 = 5.0;
const STEP_MIN: f64 = 0.2;

pub const WORKLOAD: Workload = Workload {
    name: "synced-publish",
    about: "messages of 128 bytes, each synced before it is acknowledged, from 1 and 50 publishers for 5 seconds each",
    variants: &[variant("", 1_000_000)],
    classes: &[Class::Synced],
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let mut broker = context.open_broker()?;
    broker.make_topics(PUBLISHERS.iter().sum())?;
    let seconds = context.scaled_seconds(STEP, STEP_MIN);
    let mut published = Vec::new();
    for publishers in PUBLISHERS {
        let first_topic = published.len();
        published.resize(first_topic + publishers, 0);
        let name = format!(
            "{publishers} {}",
            if publishers == 1 { "publisher" } else { "publishers" }
        );
        let counts: Vec<AtomicUsize> = (0..publishers).map(|_| AtomicUsize::new(0)).collect();
        recorder.phase(&name, Work::Writes, || {
            let worked = crew(publishers, |publisher| {
                let mut payload = Payload::new(context.seed, PAYLOAD_BYTES);
                let shift = context.pace.shift(publishers, Some(seconds));
                let share = context.records().div_ceil(publishers) as u64;
                let topic = first_topic + publisher;
                let worked = shift.work(share, |number| broker.publish(topic, payload.of(number)))?;
                counts[publisher].store(worked.operations as usize, Ordering::Relaxed);
                Ok(worked)
            })?;
            Ok(together(worked))
        })?;
        for (publisher, count) in counts.into_iter().enumerate() {
            published[first_topic + publisher] = count.into_inner() as u64;
        }
    }
    read_back(&*broker, &published)?;
    broker.close()
}
