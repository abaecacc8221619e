//! Publishing to topics that have subscribers, in two rows: publications and deliveries. The clock of the first stops
//! after the last publish call, that of the second after the last delivery.

use std::sync::Arc;

use anyhow::Result;
use tokio::runtime::Builder;
use tokio::task::unconstrained;

use super::{Context, PAYLOAD_BYTES};
use crate::answer::Unsupported;
use crate::broker::{Board, Broker, Payload};
use crate::connection::Way;
use crate::crew::{Worked, alone};
use crate::flight::Flight;
use crate::measure::{Done, Work, own_bytes};
use crate::workloads::Recorder;

/// Messages to topics, and their receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub messages: usize,
    pub topics: usize,
    /// Number of subscribers, dealt over the topics in turn.
    pub subscribers: usize,
    pub order: Order,
}

/// The order in which messages are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All messages of one topic, then all of the next.
    TopicByTopic,
    /// One message to each topic, then the next one to each.
    RoundRobin,
    /// As [`Order::TopicByTopic`] with one topic, through one stream with many messages in flight. A broker without
    /// connections publishes by calls.
    Streamed,
}

/// Messages in flight on the stream of [`Order::Streamed`].
const IN_FLIGHT: usize = 1_024;

impl Shape {
    /// Scales all counts, with at least one of each.
    pub fn scaled(self, context: &Context) -> Shape {
        let topics = context.scaled(self.topics);
        Shape {
            messages: context.scaled(self.messages).max(topics),
            topics,
            subscribers: context.scaled(self.subscribers),
            order: self.order,
        }
    }

    /// Returns the number of messages of each topic.
    fn each(&self) -> u64 {
        (self.messages / self.topics) as u64
    }

    /// Returns the topic and the number of the message that is published at a position.
    fn at(&self, place: u64) -> (usize, u64) {
        match self.order {
            Order::TopicByTopic | Order::Streamed => ((place / self.each()) as usize, place % self.each()),
            Order::RoundRobin => ((place % self.topics as u64) as usize, place / self.topics as u64),
        }
    }

    /// Returns the number of messages published to each topic after `messages` messages in total.
    fn published(&self, messages: u64) -> Vec<u64> {
        let of_topic = |topic: u64| match self.order {
            Order::TopicByTopic | Order::Streamed => messages.saturating_sub(topic * self.each()).min(self.each()),
            Order::RoundRobin => (messages + self.topics as u64 - 1 - topic) / self.topics as u64,
        };
        (0..self.topics as u64).map(of_topic).collect()
    }

    fn subscribers_of(&self, topic: usize) -> u64 {
        ((self.subscribers + self.topics - 1 - topic) / self.topics) as u64
    }
}

/// Names of the rows.
pub const NAMES: [(&str, Work); 2] = [("publishes", Work::Writes), ("deliveries", Work::Writes)];

/// Runs both rows on a broker whose topics, from 0 on, are empty and have no subscribers. Returns the board, to be
/// verified when the broker is closed, and the number of messages published to each topic.
pub fn run(
    context: &Context,
    recorder: &mut Recorder,
    broker: &dyn Broker,
    shape: Shape,
    names: &[(&str, Work); 2],
) -> Result<(Arc<Board>, Vec<u64>)> {
    let board = Board::new();
    let before = own_bytes()?;
    for subscriber in 0..shape.subscribers {
        let topic = subscriber % shape.topics;
        broker.subscribe(topic, board.receiver(topic))?;
    }
    let idle = own_bytes()?.saturating_sub(before);
    let mut published = Vec::new();
    recorder.phases(names, || {
        let (done, of_topics) = publish_all(context, broker, shape, &board)?;
        published = of_topics;
        Ok(done)
    })?;
    let after = own_bytes()?.saturating_sub(before);
    recorder.note(format!(
        "{} subscribers took {} bytes each before the first message, {} of which are the lab's own; after the last one \
         the process had {} MiB more of its own memory than before them (messages themselves: {} MiB)",
        shape.subscribers,
        idle / shape.subscribers.max(1) as u64,
        size_of::<crate::broker::Receiver>(),
        after >> 20,
        (shape.messages * PAYLOAD_BYTES) >> 20,
    ));
    Ok((board, published))
}

fn publish_all(context: &Context, broker: &dyn Broker, shape: Shape, board: &Board) -> Result<(Vec<Done>, Vec<u64>)> {
    let mut payload = Payload::new(context.seed, PAYLOAD_BYTES);
    let planned = shape.each() * shape.topics as u64;
    let streamed = match shape.order {
        Order::Streamed => stream(context, broker, planned, &mut payload)?,
        Order::TopicByTopic | Order::RoundRobin => None,
    };
    let worked = match streamed {
        Some(worked) => worked,
        None => context.pace.whole_shift(1).work(planned, |place| {
            let (topic, number) = shape.at(place);
            broker.publish(topic, payload.of(number))
        })?,
    };
    let published = shape.published(worked.operations);
    let deliveries = |published: &[u64]| -> u64 {
        let of_topic = |(topic, messages): (usize, &u64)| messages * shape.subscribers_of(topic);
        published.iter().enumerate().map(of_topic).sum()
    };
    let made = deliveries(&published);
    board.wait_for(made)?;
    let is_stopped = worked.stopped_at_of.is_some();
    let delivered = Done {
        operations: made,
        stopped_at_of: is_stopped.then(|| deliveries(&shape.published(planned))),
        latencies: Some(board.latencies()),
        ..Done::default()
    };
    let nanos = worked.nanos;
    let publishes = Done {
        wall_nanos: Some(nanos),
        ..alone(worked)
    };
    Ok((vec![publishes, delivered], published))
}

/// Publishes messages to the first topic through a stream; `None`: the broker has no streams.
fn stream(context: &Context, broker: &dyn Broker, planned: u64, payload: &mut Payload) -> Result<Option<Worked>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    // Tokio's budget would interrupt some requests before they are sent, and later ones would overtake them.
    runtime.block_on(unconstrained(async {
        let connection = match broker.connect(Way::Stream(0)).await {
            Err(error) if error.is::<Unsupported>() => return Ok(None),
            opened => opened?,
        };
        let flight = Flight {
            planned,
            in_flight: IN_FLIGHT,
            each: 1,
        };
        let mut numbers = 0..;
        let begin = |_| connection.publish(0, payload.of(numbers.next().expect("numbers do not end")));
        flight.work(context.pace.whole_shift(1), begin).await.map(Some)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_its_place_and_its_number() {
        for order in [Order::TopicByTopic, Order::RoundRobin] {
            let shape = Shape {
                messages: 12,
                topics: 4,
                subscribers: 6,
                order,
            };
            let mut next = [0; 4];
            for place in 0..12 {
                assert_eq!(shape.published(place), next, "{order:?} {place}");
                let (topic, number) = shape.at(place);
                assert_eq!(number, next[topic]);
                next[topic] += 1;
            }
            assert_eq!(next, [3; 4]);
            assert_eq!([0, 1, 2, 3].map(|topic| shape.subscribers_of(topic)), [2, 2, 1, 1]);
        }
    }
}
