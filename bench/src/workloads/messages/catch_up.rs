//! Reading messages published earlier: a subscriber starts at the first message of a long topic.

use anyhow::Result;

use super::{publish_batches, read_back};
use crate::broker::Board;
use crate::measure::{Done, Work};
use crate::workloads::{Context, Recorder, Workload, variant};

pub const WORKLOAD: Workload = Workload {
    name: "catch-up",
    about: "10M messages of 128 bytes in one topic, read by a subscriber that comes when all of them are there",
    variants: &[variant("", 10_000_000)],
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let mut broker = context.open_broker()?;
    broker.make_topics(1)?;
    let messages = context.records() as u64;
    let shift = context.pace.whole_shift(1).without_end();
    let published = publish_batches(context, &shift, &*broker, 0, messages)?.operations;
    recorder.phase("catch up", Work::Reads, || {
        if context.pace.is_over() {
            return Ok(Done {
                stopped_at_of: Some(messages),
                ..Done::default()
            });
        }
        let board = Board::new();
        let mut receiver = board.receiver(0);
        broker.follow(0, &mut receiver, published)?;
        drop(receiver);
        board.verify(1, &[published])?;
        Ok(Done::untimed(published as usize))
    })?;
    read_back(&*broker, &[published])?;
    broker.close()
}
