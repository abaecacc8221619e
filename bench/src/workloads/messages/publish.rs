//! Publishing to one topic: nobody listens, in batches, and with 50 subscribers, which is Ratatoskr's published load; and
//! what it costs to publish together with a change of state.

use anyhow::Result;

use super::deliveries::{Order, Shape, run as deliver};
use super::{PAYLOAD_BYTES, publish_batches, publish_each, read_back};
use crate::broker::{Broker, Payload, Together};
use crate::crew::alone;
use crate::data::{Generator, Keys, Length, Values};
use crate::measure::Work;
use crate::peer::Class;
use crate::workloads::{Context, Recorder, Resources, Variant, Workload};

const SUBSCRIBERS: usize = 50;
/// Rows and the topics that they publish to.
const WITH_SUBSCRIBERS: usize = 0;
const ONE_BY_ONE: usize = 1;
const BATCHES: usize = 2;
/// Two, one for each way of writing them together.
const WITH_PAIRS: usize = 3;
const TOPICS: usize = WITH_PAIRS + TOGETHER.len();

const TOGETHER: [(Together, &str); 2] = [
    (Together::Transaction, "put and publish in a transaction"),
    (Together::Batch, "put and publish in a batch"),
];

pub const WORKLOAD: Workload = Workload {
    name: "publish",
    about: "messages of 128 bytes to one topic: one by one, in batches of 100, to 50 subscribers (Ratatoskr's load), and \
        together with a put beside the put alone",
    variants: &[
        Variant {
            label: "1k",
            records: 1_000,
        },
        Variant {
            label: "1M",
            records: 1_000_000,
        },
    ],
    classes: &[Class::Written, Class::None],
    needs_persistence: false,
    has_drivers: false,
    has_open_loop: true,
    resources: Resources::USUAL,
    run,
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
    let pairs = Pairs::new(context);
    pairs.run(context, recorder, &*broker, &mut published[WITH_PAIRS..])?;
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
    board.verify(SUBSCRIBERS, &published)
}

/// Pairs that are put alone, and others that are put together with a message.
struct Pairs {
    alone: Keys,
    together: [Keys; TOGETHER.len()],
    values: Values,
}

impl Pairs {
    fn new(context: &Context) -> Pairs {
        let mut generator = Generator::new(context.seed, "pairs");
        Pairs {
            alone: generator.keys(context.records(), 16),
            together: TOGETHER.map(|_| generator.keys(context.records(), 16)),
            values: Values::new(context.seed, Length::Fixed(100)),
        }
    }

    /// Does all rows, and reads the pairs back.
    fn run(
        &self,
        context: &Context,
        recorder: &mut Recorder,
        broker: &dyn Broker,
        published: &mut [u64],
    ) -> Result<()> {
        let pair = |key| (key, self.values.of(key, 0));
        let mut alone_count = 0;
        recorder.phase("put alone", Work::Writes, || {
            let worked = context.pace.whole_shift(1).work(self.alone.len() as u64, |at| {
                let (key, value) = pair(self.alone.at(at as usize));
                broker.put(key, value)
            })?;
            alone_count = worked.operations;
            Ok(alone(worked))
        })?;
        for (row, (how, label)) in TOGETHER.into_iter().enumerate() {
            recorder.phase(label, Work::Writes, || {
                let mut payload = Payload::new(context.seed, PAYLOAD_BYTES);
                let keys = &self.together[row];
                let worked = context.pace.whole_shift(1).work(keys.len() as u64, |at| {
                    let pair = pair(keys.at(at as usize));
                    broker.put_and_publish(how, pair, WITH_PAIRS + row, payload.of(at))
                })?;
                published[row] = worked.operations;
                Ok(alone(worked))
            })?;
        }
        let checker = context.checker(&self.values);
        let together = self.together.iter().zip(published.iter().copied());
        for (keys, count) in [(&self.alone, alone_count)].into_iter().chain(together) {
            for key in keys.all().part(0, count as usize).iter() {
                broker.get(key, &mut |found| checker.present(key, 0, found))?;
            }
        }
        Ok(())
    }
}
