//! A group of eight members that share the messages of a topic, each in its own thread. Three ways: received and
//! acknowledged one at a time, received by the hundred and acknowledged individually, and received by the hundred and
//! acknowledged together.
//!
//! Exactly one member must process each message: no lease expires meanwhile.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use anyhow::{Result, bail, ensure};

use super::{publish_batches, read_back};
use crate::broker::{Acknowledge, Broker, number_and_time};
use crate::crew::{crew, together};
use crate::measure::{Done, Work};
use crate::workloads::{Context, Recorder, Workload, variant};

const MEMBERS: usize = 8;

const ROWS: [(&str, usize, Acknowledge); 3] = [
    ("received and acknowledged one by one", 1, Acknowledge::Each),
    (
        "received by the hundred, acknowledged one by one",
        100,
        Acknowledge::Each,
    ),
    ("received and acknowledged by the hundred", 100, Acknowledge::Together),
];

pub const WORKLOAD: Workload = Workload {
    name: "groups",
    about: "8 members of a group share 1M messages that are there, and acknowledge them one by one and by the hundred",
    variants: &[variant("", 1_000_000)],
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let mut broker = context.open_broker()?;
    broker.make_topics(ROWS.len())?;
    let messages = context.records() as u64;
    let mut published = Vec::new();
    for (topic, (name, most, acknowledge)) in ROWS.into_iter().enumerate() {
        let shift = context.pace.whole_shift(1).without_end();
        published.push(publish_batches(context, &shift, &*broker, topic, messages)?.operations);
        recorder.phase(name, Work::Writes, || {
            broker.make_group(topic)?;
            share(context, &*broker, topic, messages, (most, acknowledge))
        })?;
    }
    read_back(&*broker, &published)?;
    broker.close()
}

/// Runs the members until all messages are acknowledged.
fn share(
    context: &Context,
    broker: &dyn Broker,
    topic: usize,
    messages: u64,
    (most, acknowledge): (usize, Acknowledge),
) -> Result<Done> {
    let seen: Vec<AtomicU8> = (0..messages).map(|_| AtomicU8::new(0)).collect();
    let left = AtomicU64::new(messages);
    let work = |offset: u64, payload: &[u8]| {
        let number = number_and_time(payload).map(|(number, _)| number);
        ensure!(number == Some(offset), "message {offset} is another one: {number:?}");
        match seen
            .get(offset as usize)
            .map(|seen| seen.fetch_add(1, Ordering::Relaxed))
        {
            Some(0) => Ok(()),
            Some(_) => bail!("message {offset} was processed twice"),
            None => bail!("message {offset} was never published"),
        }
    };
    let worked = crew(MEMBERS, |_| {
        let mut member = broker.member(topic)?;
        let shift = context.pace.whole_shift(MEMBERS);
        let goes_on = true.into();
        let mut idle = 0;
        shift.work_while(u64::MAX, &goes_on, |_| {
            let received = member.receive(most, acknowledge, &mut |offset, payload| work(offset, payload))?;
            let is_last = left.fetch_sub(received, Ordering::Relaxed) == received && received > 0;
            idle = if received == 0 { idle + 1 } else { 0 };
            if is_last || left.load(Ordering::Relaxed) == 0 {
                goes_on.store(false, Ordering::Relaxed);
            }
            ensure!(
                idle < 1_000,
                "messages are missing: {} were never received",
                left.load(Ordering::Relaxed)
            );
            Ok(received)
        })
    })?;
    let mut done = together(worked);
    let is_complete = seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 1);
    done.stopped_at_of = done.stopped_at_of.map(|_| messages);
    ensure!(
        is_complete || done.stopped_at_of.is_some(),
        "messages are missing from the group's work"
    );
    Ok(done)
}
