//! Options of topics and groups, as the store has them and as clients read and write them. Every option is there: a client
//! that reads options and configures with them changes nothing else.

use std::time::Duration;

use duramen::Durability;
use duramen::topic::{DeadLetters, Filter, GroupOptions, Retention, TopicOptions};
use duramen_proto::v1;
use duramen_proto::v1::group_options::DeadLetters as AskedDead;

pub(super) fn topic_options(options: Option<&v1::TopicOptions>) -> TopicOptions {
    let mut made = TopicOptions::new();
    let Some(options) = options else { return made };
    made.keep_for = given(options.keep_for_ms).map(Duration::from_millis);
    made.keep_bytes = given(options.keep_bytes);
    made.keep_messages = given(options.keep_messages);
    made.message_expiry = options.message_expiry;
    made.latest_per_key = options.latest_per_key;
    made.drop_acknowledged = options.drop_acknowledged;
    if let Some(max_bytes) = given(options.protect_groups_bytes) {
        made.retention = Retention::ProtectGroups { max_bytes };
    }
    made.discard_new = options.discard_new;
    made.deduplicate_for = given(options.deduplicate_for_ms).map(Duration::from_millis);
    if let Some(time) = options.remember_publishers_for_ms {
        made.remember_publishers_for = given(time).map(Duration::from_millis);
    }
    made
}

/// The options of a topic as clients read them.
pub(crate) fn to_topic_options(options: &TopicOptions) -> v1::TopicOptions {
    v1::TopicOptions {
        keep_for_ms: millis(options.keep_for),
        keep_bytes: options.keep_bytes.unwrap_or(0),
        keep_messages: options.keep_messages.unwrap_or(0),
        message_expiry: options.message_expiry,
        latest_per_key: options.latest_per_key,
        drop_acknowledged: options.drop_acknowledged,
        protect_groups_bytes: match options.retention {
            Retention::ProtectGroups { max_bytes } => max_bytes,
            Retention::Limits => 0,
        },
        discard_new: options.discard_new,
        deduplicate_for_ms: millis(options.deduplicate_for),
        remember_publishers_for_ms: Some(millis(options.remember_publishers_for)),
    }
}

/// 0 stands for no value.
fn given(value: u64) -> Option<u64> {
    (value > 0).then_some(value)
}

fn millis(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

pub(super) fn group_options(options: Option<&v1::GroupOptions>) -> GroupOptions {
    let mut made = GroupOptions::new();
    let Some(options) = options else { return made };
    if options.lease_ms > 0 {
        made = made.lease(Duration::from_millis(options.lease_ms));
    }
    made = match options.tries {
        None => made,
        Some(0) => made.tries_without_end(),
        Some(tries) => made.tries(tries),
    };
    if options.in_flight > 0 {
        made = made.in_flight(options.in_flight);
    }
    if !options.back_off_ms.is_empty() {
        let delays: Vec<_> = options.back_off_ms.iter().copied().map(Duration::from_millis).collect();
        made = made.back_off(&delays);
    }
    made = match &options.dead_letters {
        None => made,
        Some(AskedDead::DeadLetterTopic(topic)) => made.dead_letters(topic),
        Some(AskedDead::DiscardDeadLetters(discards)) => match discards {
            true => made.discard_dead_letters(),
            false => made,
        },
    };
    if let Some(asked) = &options.filter {
        let mut filter = Filter::new();
        if !asked.key.is_empty() {
            filter = filter.key(&asked.key);
        }
        for header in &asked.headers {
            filter = filter.header(&header.name, &header.value);
        }
        made = made.filter(filter);
    }
    if options.synced {
        made = made.durability(Durability::Synced);
    }
    made.order_by_key(options.order_by_key)
}

/// The options of a group as clients read them.
pub(crate) fn to_group_options(options: &GroupOptions) -> v1::GroupOptions {
    let filter = (!options.filter.is_empty()).then(|| v1::Filter {
        key: options.filter.wanted_key().unwrap_or_default().into(),
        headers: options
            .filter
            .wanted_headers()
            .map(|(name, value)| v1::HeaderFilter {
                name: name.into(),
                value: value.into(),
            })
            .collect(),
    });
    v1::GroupOptions {
        lease_ms: options.lease.as_millis() as u64,
        tries: Some(options.tries.unwrap_or(0)),
        in_flight: options.in_flight,
        back_off_ms: options.back_off.iter().map(|delay| delay.as_millis() as u64).collect(),
        dead_letters: match &options.dead_letters {
            DeadLetters::Topic(topic) => Some(AskedDead::DeadLetterTopic(topic.clone())),
            DeadLetters::Discard => Some(AskedDead::DiscardDeadLetters(true)),
            _ => None,
        },
        order_by_key: options.order_by_key,
        filter,
        synced: options.durability == Durability::Synced,
    }
}
