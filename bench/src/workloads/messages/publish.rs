//! Publishing to one topic: without subscribers, in batches, and with 50 subscribers, which is Ratatoskr's published
//! load. Also the cost of publishing together with a change of state.

use anyhow::Result;

use super::deliveries::{Order, Shape, run as deliver};
use super::{PAYLOAD_BYTES, publish_batches, publish_each, read_back};
use crate::broker::{Payload, Together};
use crate::crew::alone;
use crate::data::{Generator, Length, Values};
use crate::measure::Work;
use crate::workloads::{Context, Recorder, Workload, variant};

const SUBSCRIBERS: usize = 50;
/// The topic that each row publishes to.
const WITH_SUBSCRIBERS: usize = 0;
const ONE_BY_ONE: usize = 1;
const BATCHES: usize = 2;
const TOPICS: usize = 3;

/// Rows, and how each writes a message with each pair; `None` means without a message.
const WITH_PAIRS: [(Option<Together>, &str); 3] = [
    (None, "put alone"),
    (Some(Together::Transaction), "put and publish in a transaction"),
    (Some(Together::Batch), "put and publish in a batch"),
];

pub const WORKLOAD: Workload = Workload {
    name: "publish",
    about: "messages of 128 bytes to one topic: one by one, in batches of 100, to 50 subscribers (Ratatoskr's load), and \
        together with a put beside the put alone",
    variants: &[variant("1k", 1_000), variant("1M", 1_000_000)],
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

const TO_SUBSCRIBERS: [(&str, Work); 2] = [
    ("publishes, 50 subscribers", Work::Writes),
    ("deliveries, 50 subscribers", Work::Writes),
];

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let messages = context.records() as u64;
    let mut broker = context.open_broker()?;
    broker.make_topics(TOPICS)?;
    let mut published = vec![0; TOPICS];
    recorder.phase("one by one", Work::Writes, || {
        let worked = publish_each(context, &*broker, ONE_BY_ONE, messages)?;
        published[ONE_BY_ONE] = worked.operations;
        Ok(alone(worked))
    })?;
    recorder.phase("batches of 100", Work::Writes, || {
        let shift = context.pace.whole_shift(1);
        let worked = publish_batches(context, &shift, &*broker, BATCHES, messages)?;
        published[BATCHES] = worked.operations;
        Ok(alone(worked))
    })?;
    let shape = Shape {
        messages: messages as usize,
        topics: 1,
        subscribers: SUBSCRIBERS,
        order: Order::TopicByTopic,
    };
    let (board, delivered) = deliver(context, recorder, &*broker, shape, &TO_SUBSCRIBERS)?;
    published[WITH_SUBSCRIBERS] = delivered.first().copied().unwrap_or(0);
    read_back(&*broker, &published)?;
    broker.close()?;
    board.verify(SUBSCRIBERS, &published)?;
    with_pairs(context, recorder)
}

/// Puts pairs alone, and pairs together with a message. Each row has its own store, because the remaining work and the
/// data of one row would slow the next.
fn with_pairs(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let mut generator = Generator::new(context.seed, "pairs");
    let (keys, values) = (
        generator.keys(context.records(), 16),
        Values::new(context.seed, Length::Fixed(100)),
    );
    for (how, label) in WITH_PAIRS {
        let directory = context.directory.join("pairs");
        let mut broker = context.open_broker_in(&directory)?;
        broker.make_topics(1)?;
        let mut count = 0;
        recorder.phase(label, Work::Writes, || {
            let mut payload = Payload::new(context.seed, PAYLOAD_BYTES);
            let worked = context.pace.whole_shift(1).work(keys.len() as u64, |at| {
                let (key, value) = (keys.at(at as usize), values.of(keys.at(at as usize), 0));
                match how {
                    None => broker.put(key, value),
                    Some(how) => broker.put_and_publish(how, (key, value), 0, payload.of(at)),
                }
            })?;
            count = worked.operations;
            Ok(alone(worked))
        })?;
        let checker = context.checker(&values);
        for key in keys.all().part(0, count as usize).iter() {
            broker.get(key, &mut |found| checker.present(key, 0, found))?;
        }
        read_back(&*broker, &[if how.is_some() { count } else { 0 }])?;
        broker.close()?;
        std::fs::remove_dir_all(&directory)?;
    }
    Ok(())
}
