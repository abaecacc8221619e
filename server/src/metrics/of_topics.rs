//! Metrics of topics and their groups.

use duramen::topic::{GroupDescription, TopicDescription, Topics};

use super::capped::{Capped, OTHER};
use super::families::*;
use super::text::Text;

pub(super) fn write(text: &mut Text, topics: &Topics) {
    let (mut of_topics, mut of_groups) = (Capped::default(), Capped::default());
    // What fails is a topic that was deleted meanwhile, or a store that has stopped, which other metrics tell.
    for name in topics.list().unwrap_or_default() {
        let Ok(Some(topic)) = topics.get(&name) else { continue };
        let Ok(described) = topic.describe() else { continue };
        for group in topic.groups().unwrap_or_default() {
            let values = GroupValues::from(&group);
            of_groups.push(&name, (name.clone(), group.name), values, GroupValues::plus);
        }
        of_topics.push(&name, name.clone(), TopicValues::from(&described), TopicValues::plus);
    }
    let topics = of_topics.with_rest(OTHER.into());
    let groups = of_groups.with_rest((OTHER.into(), OTHER.into()));
    let families: Families<TopicValues> = [
        (TOPIC_FIRST, |values| values.first),
        (TOPIC_NEXT, |values| values.next),
        (TOPIC_BYTES, |values| values.bytes),
    ];
    for (family, value) in families {
        let mut samples = text.family(family);
        for (topic, values) in &topics {
            samples.sample(&[topic], value(values));
        }
    }
    let families: Families<GroupValues> = [
        (GROUP_LAG, |values| values.lag),
        (GROUP_PENDING, |values| values.pending),
        (GROUP_SKIPPED, |values| values.skipped),
    ];
    for (family, value) in families {
        let mut samples = text.family(family);
        for ((topic, group), values) in &groups {
            samples.sample(&[topic, group], value(values));
        }
    }
}

/// Three families, and how each takes its value.
type Families<V> = [(Family, fn(&V) -> u64); 3];

#[derive(Clone, Copy)]
struct TopicValues {
    first: u64,
    next: u64,
    bytes: u64,
}

impl TopicValues {
    fn plus(self, other: TopicValues) -> TopicValues {
        TopicValues {
            first: self.first + other.first,
            next: self.next + other.next,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl From<&TopicDescription> for TopicValues {
    fn from(topic: &TopicDescription) -> TopicValues {
        TopicValues {
            first: topic.first,
            next: topic.next,
            bytes: topic.bytes,
        }
    }
}

#[derive(Clone, Copy)]
struct GroupValues {
    lag: u64,
    pending: u64,
    skipped: u64,
}

impl GroupValues {
    fn plus(self, other: GroupValues) -> GroupValues {
        GroupValues {
            lag: self.lag + other.lag,
            pending: self.pending + other.pending,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl From<&GroupDescription> for GroupValues {
    fn from(group: &GroupDescription) -> GroupValues {
        GroupValues {
            lag: group.lag,
            pending: group.pending,
            skipped: group.skipped,
        }
    }
}
