//! A publisher that is killed. It publishes each message in one commit with a pair. Afterwards everything acknowledged
//! must be present, in order and without a gap, and each message must have its pair and each pair its message.
//!
//! The publisher is a second process of the lab, like the writer of `open`.

use std::io::Write;

use anyhow::{Context as _, Result, bail, ensure};

use super::PAYLOAD_BYTES;
use crate::answer::Unsupported;
use crate::broker::{Board, Broker, Payload, Together};
use crate::measure::{Done, Work};
use crate::peer::Class;
use crate::workloads::killing::{Writing, kill_after};
use crate::workloads::{Context, Recorder, Workload, variant};

/// Number of topics; the publisher uses them in turn.
const TOPICS: usize = 4;
const OPEN: (&str, Work) = ("open after kill -9", Work::Reads);

pub const WORKLOAD: Workload = Workload {
    name: "killed-publisher",
    about: "messages in one commit with a pair each, to 4 topics, from a process that is killed after 100,000 of them were \
        acknowledged or after 10 seconds; open; look for everything that was acknowledged",
    variants: &[variant("", 100_000)],
    classes: &[Class::Written, Class::Synced],
    needs_persistence: true,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    if let Err(error) = put_and_publish_once(context) {
        let reason = error.downcast::<Unsupported>()?;
        recorder.not_done(&[OPEN], reason.0);
        return Ok(());
    }
    let writing = Writing::planned(context.records());
    let acknowledged = kill_after(context, WORKLOAD.name, writing)? as u64;
    let mut opened = None;
    recorder.phase(OPEN.0, OPEN.1, || {
        opened = Some(context.open_broker()?);
        Ok(Done::untimed(1))
    })?;
    let mut broker = opened.context("a phase that succeeded has opened the broker")?;
    broker.make_topics(TOPICS)?;
    let there = messages_with_pairs(&*broker, acknowledged)?;
    recorder.note(format!(
        "killed after {acknowledged} acknowledged messages, 0 of them lost; {} more were there, each with its pair",
        there - acknowledged
    ));
    broker.close()
}

/// Tries, in a directory of its own, whether the broker has commits with a pair and a message.
fn put_and_publish_once(context: &Context) -> Result<()> {
    let directory = context.directory.join("once");
    let mut broker = context.open_broker_in(&directory)?;
    broker.make_topics(1)?;
    let mut payload = Payload::new(context.seed, PAYLOAD_BYTES);
    let done = broker.put_and_publish(Together::Transaction, (b"key", b"value"), 0, payload.of(0));
    broker.close()?;
    std::fs::remove_dir_all(&directory)?;
    done
}

/// Reads everything. Returns the number of messages, each of which has its pair.
fn messages_with_pairs(broker: &dyn Broker, acknowledged: u64) -> Result<u64> {
    let mut pairs = acknowledged;
    while has_pair(broker, pairs)? {
        pairs += 1;
    }
    let mut messages = 0;
    for topic in 0..TOPICS {
        let board = Board::new();
        let mut receiver = board.receiver(topic);
        // A pair whose message does not arrive violates the rule.
        broker.follow(topic, &mut receiver, of_topic(topic, pairs))?;
        board.check().context("after kill -9")?;
        messages += receiver.taken();
    }
    ensure!(
        messages == pairs,
        "after kill -9, {messages} messages have {pairs} pairs"
    );
    for number in 0..acknowledged {
        ensure!(has_pair(broker, number)?, "after kill -9, message {number} has no pair");
    }
    Ok(messages)
}

/// Returns how many of the first `messages` messages belong to a topic.
fn of_topic(topic: usize, messages: u64) -> u64 {
    (messages + (TOPICS - 1 - topic) as u64) / TOPICS as u64
}

fn has_pair(broker: &dyn Broker, number: u64) -> Result<bool> {
    let mut is_there = false;
    broker.get(&number.to_be_bytes(), &mut |found| {
        is_there = found.is_some();
        ensure!(
            found.is_none_or(|value| value == number.to_le_bytes()),
            "after kill -9, message {number} has the pair of another one"
        );
        Ok(())
    })?;
    Ok(is_there)
}

/// Runs the publishing process: publishes messages one by one, and writes one byte to `acknowledgements` after each.
pub fn publish_until_killed(context: &Context, messages: usize, mut acknowledgements: impl Write) -> Result<()> {
    let mut broker = context.open_broker()?;
    broker.make_topics(TOPICS)?;
    let mut payload = Payload::new(context.seed, PAYLOAD_BYTES);
    for number in 0..messages as u64 {
        let topic = number as usize % TOPICS;
        let payload = payload.of(number / TOPICS as u64);
        let how = [Together::Transaction, Together::Batch][number as usize / TOPICS % 2];
        let pair = (&number.to_be_bytes()[..], &number.to_le_bytes()[..]);
        broker.put_and_publish(how, pair, topic, payload)?;
        acknowledgements.write_all(&[1])?;
        acknowledgements.flush()?;
    }
    bail!("the publisher was to be killed, but published all its {messages} messages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_of_one_topic() {
        for messages in 0..10 {
            let of_topics: Vec<u64> = (0..TOPICS).map(|topic| of_topic(topic, messages)).collect();
            let counted = |topic| {
                (0..messages)
                    .filter(|number| *number as usize % TOPICS == topic)
                    .count()
            };
            let expected: Vec<u64> = (0..TOPICS).map(|topic| counted(topic) as u64).collect();
            assert_eq!(of_topics, expected);
        }
    }
}
