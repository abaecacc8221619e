//! Latency at 10,000 messages a second, whatever the broker does: the time of a publish call from its due time, and the
//! time until a waiting subscriber has the message. All in one process. The machine limits how fast a waiting thread
//! wakes, so a control thread sleeps and wakes beside them.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};

use super::{PAYLOAD_BYTES, read_back};
use crate::answer::Unsupported;
use crate::broker::{Board, Broker, Payload};
use crate::crew::{Pace, alone};
use crate::measure::{Done, Latencies, Work};
use crate::text::time_text;
use crate::workloads::control::beside_control;
use crate::workloads::{Context, Recorder, Workload, variant};

/// Messages a second.
const RATE: f64 = 10_000.0;

const ROWS: [(&str, Work); 2] = [("publish call", Work::Writes), ("publish to receive", Work::Writes)];

pub const WORKLOAD: Workload = Workload {
    name: "latency",
    about: "10,000 messages a second to one subscriber that waits: publish calls, and publish to receive; look at latencies, \
        not at rates",
    variants: &[variant("", 100_000)],
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let mut broker = context.open_broker()?;
    broker.make_topics(1)?;
    let (mut published, mut late) = (0, Latencies::default());
    let board = Board::new();
    recorder.phases(&ROWS, || {
        let (measured, lateness) = beside_control(|| publish_and_receive(context, &*broker, &board));
        late = lateness;
        let done;
        (done, published) = measured?;
        Ok(done)
    })?;
    recorder.note(format!(
        "a control thread beside them, which only slept and woke, was late by at most {} in half of all cases, {} in 99 of 100, \
         {} in 999 of 1,000, and once by {}",
        time_text(late.at(0.5) as f64),
        time_text(late.at(0.99) as f64),
        time_text(late.at(0.999) as f64),
        time_text(late.at(1.0) as f64)
    ));
    read_back(&*broker, &[published])?;
    broker.close()?;
    match published {
        0 => Ok(()),
        _ => board.verify(1, &[published]),
    }
}

/// Publishes while a subscriber waits in its own thread, or in the broker's when the broker keeps nothing that could be
/// followed. Returns both rows and the number of messages.
fn publish_and_receive(context: &Context, broker: &dyn Broker, board: &Arc<Board>) -> Result<(Vec<Done>, u64)> {
    let messages = context.records() as u64;
    let mut published = 0;
    let is_followed = broker.keeps_messages();
    if !is_followed {
        broker.subscribe(0, board.receiver(0))?;
    }
    let worked = std::thread::scope(|scope| {
        let follow = || broker.follow(0, &mut board.receiver(0), messages);
        let waiting = is_followed.then(|| scope.spawn(follow));
        // The limit of the cell must not end it: the subscriber waits for all messages.
        let pace = Pace {
            rate: Some(RATE),
            seconds: None,
            limit: u64::MAX,
        };
        let mut payload = Payload::new(context.seed, PAYLOAD_BYTES);
        let worked = pace.shift(1, None).work(messages, |number| {
            if waiting.as_ref().is_none_or(|waiting| !waiting.is_finished()) {
                broker.publish(0, payload.of(number))?;
                published += 1;
            }
            Ok(())
        });
        let Some(waiting) = waiting else {
            let worked = worked?;
            board.wait_for(messages).context("receiving")?;
            return Ok(worked);
        };
        match waiting.join().map_err(|_| anyhow!("the subscriber panicked"))? {
            Err(error) if error.is::<Unsupported>() => Err(error),
            followed => followed.context("receiving").and(worked),
        }
    })?;
    board.check()?;
    let received = Done {
        operations: messages,
        latencies: Some(board.latencies()),
        ..Done::default()
    };
    Ok((vec![alone(worked), received], published))
}
