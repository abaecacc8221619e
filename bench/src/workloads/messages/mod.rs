//! The workloads of brokers, one file each, and their shared parts. One thread or a crew publishes messages, every
//! receiver checks them, and a last read after the clock starts at the first one.

pub mod catch_up;
pub mod crowd;
mod deliveries;
pub mod fanout;
pub mod groups;
pub mod growth;
pub mod killed_publisher;
pub mod latency;
pub mod publish;
pub mod requests;
pub mod synced_publish;

use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Context, Recorder};
use crate::answer::Unsupported;
use crate::broker::{Board, Broker, Payload};
use crate::crew::{Shift, Worked};
use crate::measure::Work;

/// The names of all these workloads.
pub const NAMES: &[&str] = &[
    publish::WORKLOAD.name,
    synced_publish::WORKLOAD.name,
    latency::WORKLOAD.name,
    requests::WORKLOAD.name,
    crowd::WORKLOAD.name,
    fanout::WORKLOAD.name,
    groups::WORKLOAD.name,
    catch_up::WORKLOAD.name,
    growth::WORKLOAD.name,
    killed_publisher::WORKLOAD.name,
];

/// Size of a payload in bytes.
const PAYLOAD_BYTES: usize = 128;
/// Number of messages published together.
const BATCH: usize = 100;

impl Context<'_> {
    /// Opens the broker in the directory of the run.
    fn open_broker(&self) -> Result<Box<dyn Broker>> {
        self.open_broker_in(self.directory)
    }

    /// Opens a broker in another directory.
    fn open_broker_in(&self, directory: &Path) -> Result<Box<dyn Broker>> {
        std::fs::create_dir_all(directory)?;
        self.driver.open_broker(directory, self.setting())
    }
}

/// Publishes messages to a topic one by one, numbered from `first`.
fn publish_each(context: &Context, broker: &dyn Broker, topic: usize, count: u64) -> Result<Worked> {
    let mut payload = Payload::new(context.seed, PAYLOAD_BYTES);
    let shift = context.pace.whole_shift(1);
    shift.work(count, |number| broker.publish(topic, payload.of(number)))
}

/// Publishes messages to a topic in batches, numbered from 0.
fn publish_batches(context: &Context, shift: &Shift, broker: &dyn Broker, topic: usize, count: u64) -> Result<Worked> {
    publish_batches_of(context, shift, broker, (topic, PAYLOAD_BYTES), count)
}

/// Publishes messages of `bytes` bytes to a topic in batches, numbered from 0.
fn publish_batches_of(
    context: &Context,
    shift: &Shift,
    broker: &dyn Broker,
    (topic, bytes): (usize, usize),
    count: u64,
) -> Result<Worked> {
    let mut payloads: Vec<Payload> = (0..BATCH).map(|_| Payload::new(context.seed, bytes)).collect();
    let goes_on = true.into();
    shift.work_while(count.div_ceil(BATCH as u64), &goes_on, |step| {
        let first = step * BATCH as u64;
        let batch = (count - first).min(BATCH as u64);
        let numbered = payloads.iter_mut().zip(first..first + batch);
        let batch: Vec<&[u8]> = numbered.map(|(payload, number)| payload.of(number)).collect();
        broker.publish_many(topic, &batch)?;
        Ok(batch.len() as u64)
    })
}

/// Returns whether a broker takes so many subscribers. If not, the rows are `n/a`.
fn takes_subscribers(broker: &dyn Broker, subscribers: usize, recorder: &mut Recorder, rows: &[(&str, Work)]) -> bool {
    let takes = subscribers <= broker.subscribers_max();
    if !takes {
        recorder.not_done(rows, &format!("takes at most {} subscribers", broker.subscribers_max()));
    }
    takes
}

/// Reads topics after the clock, each from its first message on. All published messages must be present, in order. A
/// broker that keeps no messages is asked for nothing.
fn read_back(broker: &dyn Broker, published: &[u64]) -> Result<()> {
    let board = Board::new();
    for (topic, messages) in published.iter().enumerate() {
        let mut receiver = board.receiver(topic);
        match broker.follow(topic, &mut receiver, *messages) {
            Err(error) if error.is::<Unsupported>() => return Ok(()),
            done => done?,
        }
        board.check().context("reading messages back")?;
    }
    board
        .verify(published.len(), published)
        .context("reading messages back")
}
