//! Which group a command names: that of one topic, or one over a pattern.

use duramen::Store;
use duramen::topic::{PatternGroup, Topic, Topics};

use super::topics::existing;
use crate::exit::{Failure, Outcome};
use crate::text::is_pattern;

/// The group that a command names.
pub enum Meant {
    /// A group over a pattern, in all topics that match.
    Everywhere(PatternGroup),
    /// A group of this topic, which may not exist.
    InTopic(Topic),
}

impl Meant {
    /// Finds the group that a command names. A pattern can look like a topic name; a group over the pattern then takes
    /// precedence.
    pub fn find(store: &Store, topic: &str, name: &str) -> Outcome<Meant> {
        let known = match Topics::exist(store)? {
            true => Topics::open(store)?.pattern_groups()?,
            false => Vec::new(),
        };
        let is_it = |known: &PatternGroup| known.name() == name && known.pattern().as_str() == topic;
        match known.into_iter().find(is_it) {
            Some(group) => Ok(Meant::Everywhere(group)),
            None if is_pattern(topic) => Err(Failure::wrong_call(format!(
                "no group and no durable subscription named {name:?} has the pattern {topic:?}"
            ))
            .hint("`duramen groups DIR` lists them")),
            None => Ok(Meant::InTopic(existing(store, topic)?)),
        }
    }
}
