//! Whether the cost of a message depends on what exists beside it: topics, idle subscribers, kept messages; or on its
//! length. Each form is a size; what matters is how its rows change from form to form.

use anyhow::{Context as _, Result};

use super::{publish_batches_of, read_back, takes_subscribers};
use crate::broker::{Board, Broker, PAYLOAD_BYTES_MIN, Payload};
use crate::crew::{Worked, alone};
use crate::measure::{Done, Work};
use crate::workloads::{Context, Recorder, Variant, Workload, variant};

/// Number of messages published one by one beside the existing objects.
const MESSAGES: usize = 200_000;
/// Number of topics over which idle subscribers are dealt.
const IDLE_TOPICS: usize = 1_000;
const PAYLOAD_BYTES: usize = super::PAYLOAD_BYTES;

/// The forms. The label names what grows, and the number of records is its count; for `size` the records are messages.
const FORMS: &[Variant] = &[
    variant("topics-1", 1),
    variant("topics-1k", 1_000),
    variant("topics-10k", 10_000),
    variant("topics-100k", 100_000),
    variant("idle-1", 1),
    variant("idle-1k", 1_000),
    variant("idle-100k", 100_000),
    variant("idle-1M", 1_000_000),
    variant("kept-1k", 1_000),
    variant("kept-100k", 100_000),
    variant("kept-10M", 10_000_000),
    variant("kept-100M", 100_000_000),
    variant("size-16B", 1_000_000),
    variant("size-256B", 1_000_000),
    variant("size-4kB", 100_000),
    variant("size-64kB", 10_000),
    variant("size-1MB", 1_000),
];

pub const WORKLOAD: Workload = Workload {
    name: "growth",
    about: "what a message costs beside 1 to 100,000 topics, 1 to 1M idle subscribers, 1,000 to 100M messages that are kept, and \
        with 16 bytes to 1 MB",
    variants: FORMS,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let broker = context.open_broker()?;
    let (what, size) = context.variant.label.split_once('-').expect("a label has two parts");
    match what {
        "topics" => beside_topics(context, recorder, broker),
        "idle" => beside_subscribers(context, recorder, broker),
        "kept" => beside_messages(context, recorder, broker),
        "size" => of_size(context, recorder, broker, bytes(size)),
        other => unreachable!("nothing grows that is called {other}"),
    }
}

/// Parses the bytes in a label.
fn bytes(text: &str) -> usize {
    let text = text.strip_suffix('B').expect("a size ends with its unit");
    let (digits, unit) = match text.strip_suffix(['k', 'M']) {
        Some(digits) if text.ends_with('M') => (digits, 1_000_000),
        Some(digits) => (digits, 1_000),
        None => (text, 1),
    };
    digits.parse::<usize>().expect("a number in a label") * unit
}

/// Publishes one by one to topics in turn.
fn beside_topics(context: &Context, recorder: &mut Recorder, mut broker: Box<dyn Broker>) -> Result<()> {
    let topics = context.records();
    recorder.phase("topics made", Work::Writes, || {
        broker.make_topics(topics)?;
        Ok(Done::untimed(topics))
    })?;
    let (mut payload, mut published) = (Payload::new(context.seed, PAYLOAD_BYTES), vec![0; topics]);
    recorder.phase("publishes, to the topics in turn", Work::Writes, || {
        let worked = context
            .pace
            .whole_shift(1)
            .work(context.scaled(MESSAGES) as u64, |place| {
                let topic = place as usize % topics;
                broker.publish(topic, payload.of(published[topic]))?;
                published[topic] += 1;
                Ok(())
            });
        worked.map(alone)
    })?;
    read_back(&*broker, &published)?;
    broker.close()
}

const BESIDE_SUBSCRIBERS: [(&str, Work); 3] = [
    ("idle subscribers taken on", Work::Writes),
    ("publishes", Work::Writes),
    ("deliveries", Work::Writes),
];

/// Publishes to a topic with one subscriber, while other subscribers wait for messages of other topics.
fn beside_subscribers(context: &Context, recorder: &mut Recorder, mut broker: Box<dyn Broker>) -> Result<()> {
    let idle = context.records();
    if !takes_subscribers(&*broker, idle + 1, recorder, &BESIDE_SUBSCRIBERS) {
        return broker.close();
    }
    let idle_topics = idle.min(IDLE_TOPICS);
    broker.make_topics(1 + idle_topics)?;
    let board = Board::new();
    recorder.phases(&BESIDE_SUBSCRIBERS[..1], || {
        for number in 0..idle {
            let topic = 1 + number % idle_topics;
            broker.subscribe(topic, board.receiver(topic))?;
        }
        Ok(vec![Done::untimed(idle)])
    })?;
    broker.subscribe(0, board.receiver(0))?;
    let mut published = vec![0; 1 + idle_topics];
    recorder.phases(&BESIDE_SUBSCRIBERS[1..], || {
        let worked = publish_one_by_one(context, &*broker, 0, PAYLOAD_BYTES)?;
        published[0] = worked.operations;
        board.wait_for(published[0])?;
        let delivered = Done {
            operations: published[0],
            stopped_at_of: worked.stopped_at_of,
            latencies: Some(board.latencies()),
            ..Done::default()
        };
        let wall_nanos = Some(worked.nanos);
        let publishes = Done {
            wall_nanos,
            ..alone(worked)
        };
        Ok(vec![publishes, delivered])
    })?;
    read_back(&*broker, &published[..1])?;
    broker.close()?;
    board.verify(idle + 1, &published)
}

/// Publishes to a topic that has many messages, and reads all of them.
fn beside_messages(context: &Context, recorder: &mut Recorder, mut broker: Box<dyn Broker>) -> Result<()> {
    // The messages are short, so that very many of them have room.
    const BYTES: usize = PAYLOAD_BYTES_MIN;
    broker.make_topics(1)?;
    let kept = context.records() as u64;
    let mut published = 0;
    recorder.phase("publishes by the hundred", Work::Writes, || {
        let shift = context.pace.whole_shift(1);
        let worked = publish_batches_of(context, &shift, &*broker, (0, BYTES), kept)?;
        published = worked.operations;
        Ok(alone(worked))
    })?;
    recorder.phase("publishes one by one", Work::Writes, || {
        let worked = publish_one_by_one(context, &*broker, published, BYTES)?;
        published += worked.operations;
        Ok(alone(worked))
    })?;
    catch_up(recorder, &*broker, published)?;
    broker.close()
}

/// Publishes messages of one size one by one, and reads all of them.
fn of_size(context: &Context, recorder: &mut Recorder, mut broker: Box<dyn Broker>, bytes: usize) -> Result<()> {
    broker.make_topics(1)?;
    let (mut payload, mut published) = (Payload::new(context.seed, bytes), 0);
    recorder.phase("publishes one by one", Work::Writes, || {
        let shift = context.pace.whole_shift(1);
        let worked = shift.work(context.records() as u64, |number| broker.publish(0, payload.of(number)))?;
        published = worked.operations;
        Ok(alone(worked))
    })?;
    catch_up(recorder, &*broker, published)?;
    broker.close()
}

/// Publishes to the first topic, numbered from `first`.
fn publish_one_by_one(context: &Context, broker: &dyn Broker, first: u64, bytes: usize) -> Result<Worked> {
    let mut payload = Payload::new(context.seed, bytes);
    let shift = context.pace.whole_shift(1);
    shift.work(context.scaled(MESSAGES) as u64, |number| {
        broker.publish(0, payload.of(first + number))
    })
}

/// Reads what the first topic keeps. The read also verifies it, so it happens whether or not it is measured.
fn catch_up(recorder: &mut Recorder, broker: &dyn Broker, published: u64) -> Result<()> {
    if recorder.is_stopped() {
        return read_back(broker, &[published]);
    }
    recorder.phase("catch up", Work::Reads, || {
        let board = Board::new();
        let mut receiver = board.receiver(0);
        broker.follow(0, &mut receiver, published)?;
        drop(receiver);
        board.verify(1, &[published]).context("reading messages back")?;
        Ok(Done::untimed(published as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_labels() {
        let size = |form: &&Variant| form.label.strip_prefix("size-").map(bytes);
        let sizes: Vec<_> = FORMS.iter().filter_map(|form| size(&form)).collect();
        assert_eq!(sizes, [16, 256, 4_000, 64_000, 1_000_000]);
        assert!(sizes.iter().all(|bytes| *bytes >= PAYLOAD_BYTES_MIN));
    }
}
