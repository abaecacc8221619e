//! Ratatoskr's published `fanout M T S`: M messages over T topics, with S subscribers dealt over them in turn, and
//! every delivery counted. Both orders run: topic by topic, and one message to each topic in turn.

use anyhow::Result;

use super::deliveries::{NAMES, Order, Shape, run as deliver};
use super::{read_back, takes_subscribers};
use crate::workloads::{Context, Recorder, Variant, Workload, variant};

/// The forms. The label has the messages, topics and subscribers; the records are the messages.
const FORMS: &[Variant] = &[
    variant("100k-100-10", 100_000),
    variant("1M-100-10", 1_000_000),
    variant("1M-1k-1k", 1_000_000),
    variant("1M-1k-10k", 1_000_000),
    variant("1M-1k-100k", 1_000_000),
    variant("100k-100-10-in-turn", 100_000),
    variant("1M-100-10-in-turn", 1_000_000),
    variant("1M-1k-1k-in-turn", 1_000_000),
    variant("1M-1k-10k-in-turn", 1_000_000),
    variant("1M-1k-100k-in-turn", 1_000_000),
    variant("100k-1-10", 100_000),
    variant("1M-1-10-streamed", 1_000_000),
];

pub const WORKLOAD: Workload = Workload {
    name: "fanout",
    about: "Ratatoskr's load: messages over topics, subscribers dealt over them, every delivery checked; topic by topic, \
        to the topics in turn, and in a stream",
    variants: FORMS,
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

/// Returns the topics and subscribers of a form.
fn shape(form: Variant) -> Shape {
    let counts = form.label;
    let (counts, order) = match (counts.strip_suffix("-in-turn"), counts.strip_suffix("-streamed")) {
        (Some(counts), _) => (counts, Order::RoundRobin),
        (_, Some(counts)) => (counts, Order::Streamed),
        (None, None) => (counts, Order::TopicByTopic),
    };
    let number = |text: &str| match text.strip_suffix('k') {
        Some(thousands) => thousands.parse().map(|thousands: usize| thousands * 1_000),
        None => text.parse(),
    };
    let mut counts = counts
        .split('-')
        .skip(1)
        .map(|text| number(text).expect("a count in a label"));
    let mut next = || counts.next().expect("a label has three counts");
    Shape {
        messages: form.records,
        topics: next(),
        subscribers: next(),
        order,
    }
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let shape = shape(context.variant).scaled(context);
    let mut broker = context.open_broker()?;
    if !takes_subscribers(&*broker, shape.subscribers, recorder, &NAMES) {
        return broker.close();
    }
    broker.make_topics(shape.topics)?;
    let (board, published) = deliver(context, recorder, &*broker, shape, &NAMES)?;
    read_back(&*broker, &published)?;
    broker.close()?;
    board.verify(shape.subscribers, &published)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_say_what_is_run() {
        let shapes: Vec<_> = FORMS.iter().map(|form| shape(*form)).collect();
        let counts = |shape: &Shape| (shape.messages, shape.topics, shape.subscribers);
        assert_eq!(counts(&shapes[0]), (100_000, 100, 10));
        assert_eq!(counts(&shapes[4]), (1_000_000, 1_000, 100_000));
        assert_eq!(counts(&shapes[9]), counts(&shapes[4]));
        assert_eq!(counts(&shapes[10]), (100_000, 1, 10));
        assert!(shapes[..5].iter().all(|shape| shape.order == Order::TopicByTopic));
        assert_eq!(counts(&shapes[11]), (1_000_000, 1, 10));
        assert_eq!(shapes[11].order, Order::Streamed);
        assert!(shapes[5..10].iter().all(|shape| shape.order == Order::RoundRobin));
    }
}
