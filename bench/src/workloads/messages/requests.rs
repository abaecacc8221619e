//! Requests over connections: published one at a time, many at a time, in batches and in a stream; and pairs of a map.
//! For a broker in the lab's process, a call stands for a request where one is in flight.
//!
//! Requests in flight together may arrive in any order, so each publishes to a topic of its own. Every topic then has
//! its messages in order, which the last read checks.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::{PAYLOAD_BYTES, read_back};
use crate::answer::Answer;
use crate::broker::connect;
use crate::broker::{Broker, Payload};
use crate::connection::Way;
use crate::data::{Checker, Generator, Keys, Length, Values};
use crate::flight::{Flight, on_connections};
use crate::measure::{Done, Work};
use crate::workloads::{Context, Recorder, Workload, variant};

pub const WORKLOAD: Workload = Workload {
    name: "requests",
    about: "messages of 128 bytes over connections: 1 in flight, 2 connections with 64 in flight each, batches of 1 to 50 \
        (Ratatoskr's load `batch`), and a stream; puts and gets of a map",
    variants: &[variant("", 100_000)],
    run,
    ..Workload::USUAL
};

/// A row of messages.
struct Row {
    name: &'static str,
    connections: usize,
    in_flight: usize,
    /// Messages of a request; `None` publishes a message by itself.
    batch: Option<usize>,
    /// Whether all messages go through one stream.
    is_stream: bool,
}

const fn row(name: &'static str, connections: usize, in_flight: usize, batch: Option<usize>) -> Row {
    Row {
        name,
        connections,
        in_flight,
        batch,
        is_stream: false,
    }
}

const MESSAGES: [Row; 8] = [
    row("publish, 1 in flight", 1, 1, None),
    row("publish, 2 x 64 in flight", 2, 64, None),
    row("batches of 1", 1, 1, Some(1)),
    row("batches of 5", 1, 1, Some(5)),
    row("batches of 10", 1, 1, Some(10)),
    row("batches of 20", 1, 1, Some(20)),
    row("batches of 50", 1, 1, Some(50)),
    Row {
        is_stream: true,
        ..row("stream, 1,024 in flight", 1, 1_024, None)
    },
];

/// Connections of the rows of pairs, and requests in flight on each.
const CONNECTIONS: usize = 2;
const IN_FLIGHT: usize = 64;
const GETS: (&str, Work) = ("map gets, 2 x 64 in flight", Work::Reads);

impl Row {
    /// Returns the number of topics of a connection.
    fn topics(&self) -> usize {
        if self.is_stream { 1 } else { self.in_flight }
    }
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let mut broker = context.open_broker()?;
    let topics = MESSAGES.iter().map(|row| row.connections * row.topics());
    broker.make_topics(topics.sum())?;
    let mut published = Vec::new();
    for row in &MESSAGES {
        let first_topic = published.len();
        published.resize(first_topic + row.connections * row.topics(), 0);
        recorder.phase(row.name, Work::Writes, || {
            publish(context, &*broker, row, first_topic, &mut published[first_topic..])
        })?;
    }
    pairs(context, recorder, &*broker)?;
    read_back(&*broker, &published)?;
    broker.close()
}

/// Publishes the messages of a row to its topics, from `first_topic` on, and counts them in `published`.
fn publish(
    context: &Context,
    broker: &dyn Broker,
    row: &Row,
    first_topic: usize,
    published: &mut [u64],
) -> Result<Done> {
    let counts: Vec<Mutex<_>> = published.chunks_mut(row.topics()).map(Mutex::new).collect();
    let batch = row.batch.unwrap_or(1);
    on_connections(row.connections, async |number| {
        let mut numbers = vec![0; row.topics()];
        let first_topic = first_topic + number * row.topics();
        let way = if row.is_stream {
            Way::Stream(first_topic)
        } else {
            Way::Calls
        };
        let connection = connect(broker, way, row.in_flight).await?;
        let mut payloads: Vec<Payload> = (0..batch).map(|_| Payload::new(context.seed, PAYLOAD_BYTES)).collect();
        let flight = Flight {
            planned: context.records().div_ceil(row.connections * batch) as u64,
            in_flight: row.in_flight,
            each: batch as u64,
        };
        let begin = |slot: usize| {
            let place = slot % row.topics();
            let (topic, first) = (first_topic + place, numbers[place]);
            numbers[place] += batch as u64;
            let numbered = payloads.iter_mut().zip(first..);
            let payloads: Vec<&[u8]> = numbered.map(|(payload, number)| payload.of(number)).collect();
            match row.batch {
                None => connection.publish(topic, payloads[0]),
                Some(_) => connection.publish_many(topic, &payloads),
            }
        };
        let worked = flight.work(context.pace.shift(row.connections, None), begin).await?;
        let mut count = counts[number].lock().unwrap_or_else(PoisonError::into_inner);
        count.copy_from_slice(&numbers);
        Ok(worked)
    })
}

/// Puts pairs and gets them.
fn pairs(context: &Context, recorder: &mut Recorder, broker: &dyn Broker) -> Result<()> {
    let keys = Generator::new(context.seed, "pairs").keys(context.records(), 16);
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let share = keys.len().div_ceil(CONNECTIONS);
    let mut stored = [0; CONNECTIONS];
    recorder.phase("map puts, 2 x 64 in flight", Work::Writes, || {
        let counts = stored.each_mut().map(Mutex::new);
        on_connections(CONNECTIONS, async |number| {
            let connection = connect(broker, Way::Calls, IN_FLIGHT).await?;
            let planned = share.min(keys.len() - number * share);
            let mut next_keys = keys.all().part(number * share, number * share + planned).iter();
            let begin = |_| {
                let key = next_keys.next().expect("a key for each request");
                connection.put(key, values.of(key, 0))
            };
            let worked = flight(planned)
                .work(context.pace.shift(CONNECTIONS, None), begin)
                .await?;
            let mut count = counts[number].lock().unwrap_or_else(PoisonError::into_inner);
            **count = worked.operations as usize;
            Ok(worked)
        })
    })?;
    if stored == [0; CONNECTIONS] && !recorder.is_stopped() {
        recorder.not_done(&[GETS], "no pair was put");
        return Ok(());
    }
    recorder.phase(GETS.0, GETS.1, || {
        on_connections(CONNECTIONS, async |number| {
            let connection = connect(broker, Way::Calls, IN_FLIGHT).await?;
            let (connection, checker) = (&*connection, &checker);
            let mut stored_keys = keys.all().part(number * share, number * share + stored[number]).iter();
            let begin = |_| -> Answer {
                let key = stored_keys.next().expect("a stored key for each request");
                Box::pin(async move { checker.present(key, 0, connection.get(key).await?.as_deref()) })
            };
            flight(stored[number])
                .work(context.pace.shift(CONNECTIONS, None), begin)
                .await
        })
    })?;
    read_pairs_back(broker, &keys, share, &stored, &checker)
}

fn flight(planned: usize) -> Flight {
    Flight {
        planned: planned as u64,
        in_flight: IN_FLIGHT,
        each: 1,
    }
}

/// Reads every stored pair after the clock.
fn read_pairs_back(broker: &dyn Broker, keys: &Keys, share: usize, stored: &[usize], checker: &Checker) -> Result<()> {
    for (number, count) in stored.iter().enumerate() {
        for key in keys.all().part(number * share, number * share + count).iter() {
            broker.get(key, &mut |found| checker.present(key, 0, found))?;
        }
    }
    Ok(())
}
