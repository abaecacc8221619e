//! Ratatoskr's published `crowd`: 10 topics, 200 subscribers of each, 5,000 messages to each.

use anyhow::Result;

use super::deliveries::{NAMES, Order, Shape, run as deliver};
use super::read_back;
use crate::workloads::{Context, Recorder, Workload, variant};

const TOPICS: usize = 10;
const SUBSCRIBERS: usize = 200 * TOPICS;
const MESSAGES: usize = 5_000 * TOPICS;

pub const WORKLOAD: Workload = Workload {
    name: "crowd",
    about: "Ratatoskr's load: 10 topics with 200 subscribers each, 5,000 messages to each topic; topic by topic, and in turn",
    variants: &[variant("topic-by-topic", MESSAGES), variant("in-turn", MESSAGES)],
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let shape = Shape {
        messages: context.variant.records,
        topics: TOPICS,
        subscribers: SUBSCRIBERS,
        order: match context.variant.label {
            "in-turn" => Order::RoundRobin,
            _ => Order::TopicByTopic,
        },
    };
    let shape = shape.scaled(context);
    let mut broker = context.open_broker()?;
    broker.make_topics(shape.topics)?;
    let (board, published) = deliver(context, recorder, &*broker, shape, &NAMES)?;
    read_back(&*broker, &published)?;
    broker.close()?;
    board.verify(shape.subscribers, &published)
}
