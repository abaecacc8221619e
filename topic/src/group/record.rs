//! The stored record of a group or durable subscription, and the options of groups.
//!
//! ```text
//!  1  form: 2
//!  1  1 durable subscription, 2 group
//!  4  id, big-endian
//! ..  created, milliseconds since 1970
//!  1  1: paused
//!     and of a group:
//! ..  lease, milliseconds
//! ..  tries (deliveries at most), plus one; 0: no limit
//! ..  messages in flight
//! ..  back-off: count; each: milliseconds
//!  1  dead letters: 0 default topic, 1 named topic, 2 discarded
//! ..  dead-letter topic: length, name; empty unless named
//!  1  1: ordered by key
//!  1  1: acknowledgements are synced
//! ..  filter: 1: of a key; key: length, text; conditions on headers: count; each: length, name, length, text
//! ```
//!
//! Numbers without a width have seven bits a byte, least significant first.

use std::time::Duration;

use duramen_engine::{Durability, Result};

use super::filter::Filter;
use crate::bytes::{Reader, put_bytes, put_number};
use crate::error::TopicError;
use crate::name::check_name;
use crate::record::{millis, plus_one};

const FORM: u8 = 2;
const DURABLE: u8 = 1;
const GROUP: u8 = 2;

const DEFAULT: u8 = 0;
const NAMED: u8 = 1;
const DISCARD: u8 = 2;

/// Prefix of the names of default dead-letter topics.
pub(super) const DEAD: &str = "dead.";

/// Maximum messages in flight that a group's options may allow: the rows of all of them are searched from time to time.
const IN_FLIGHT_MAX: u32 = 1_000_000;
/// Maximum steps of a back-off list.
const BACK_OFF_MAX: usize = 64;

/// How a group delivers.
///
/// To change one option and keep the others, start with the options that [`crate::Group::describe`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupOptions {
    /// See [`GroupOptions::lease`].
    pub lease: Duration,
    /// See [`GroupOptions::tries`]; `None`: no limit.
    pub tries: Option<u32>,
    /// See [`GroupOptions::in_flight`].
    pub in_flight: u32,
    /// See [`GroupOptions::back_off`].
    pub back_off: Vec<Duration>,
    /// See [`GroupOptions::dead_letters`].
    pub dead_letters: DeadLetters,
    /// See [`GroupOptions::order_by_key`].
    pub order_by_key: bool,
    /// See [`GroupOptions::durability`].
    pub durability: Durability,
    /// See [`GroupOptions::filter`].
    pub filter: Filter,
}

/// What happens to messages after their last failed attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetters {
    /// They go to a topic whose name is `dead.` and the name of the group's topic. For a group over a pattern, the name
    /// is `dead.` and the group's own name.
    #[default]
    Default,
    /// They go to the topic of this name.
    Topic(String),
    /// The group drops them.
    Discard,
}

impl DeadLetters {
    /// The name of the dead-letter topic. `whose`: the name of the topic, or of the group over a pattern.
    pub(crate) fn topic_of(&self, whose: &str) -> Option<String> {
        match self {
            DeadLetters::Default => Some(format!("{DEAD}{whose}")),
            DeadLetters::Topic(name) => Some(name.clone()),
            DeadLetters::Discard => None,
        }
    }
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions {
            lease: Duration::from_secs(30),
            tries: Some(20),
            in_flight: 10_000,
            back_off: [1, 10, 60, 600].map(Duration::from_secs).to_vec(),
            dead_letters: DeadLetters::Default,
            order_by_key: false,
            durability: Durability::Written,
            filter: Filter::new(),
        }
    }
}

impl GroupOptions {
    /// Leases of 30 seconds. A failed message comes back after 1, 10 and 60 seconds, and then every ten minutes. After
    /// 20 attempts, about three hours, it goes to the dead-letter topic `dead.` and the name of the topic.
    pub fn new() -> GroupOptions {
        GroupOptions::default()
    }

    /// Maximum time that a member may take for messages before the group delivers them again. Default: 30 seconds.
    pub fn lease(mut self, lease: Duration) -> GroupOptions {
        self.lease = lease;
        self
    }

    /// Maximum number of deliveries of a message. A message that fails the last attempt goes to the dead-letter topic.
    /// Default: 20.
    pub fn tries(mut self, tries: u32) -> GroupOptions {
        self.tries = Some(tries);
        self
    }

    /// Delivers a message again until a member acknowledges it or gives it up. A message that always fails then costs
    /// an attempt every few minutes, without limit.
    pub fn tries_without_end(mut self) -> GroupOptions {
        self.tries = None;
        self
    }

    /// Maximum messages that members hold, or that wait for redelivery, at one time. Default: 10,000.
    pub fn in_flight(mut self, messages: u32) -> GroupOptions {
        self.in_flight = messages;
        self
    }

    /// How long a failed message waits: after the first failure, the second failure, and so on. The last delay applies
    /// to all later failures. Default: 1, 10, 60 and 600 seconds.
    pub fn back_off(mut self, delays: &[Duration]) -> GroupOptions {
        self.back_off = delays.to_vec();
        self
    }

    /// Sets the topic for messages whose last attempt failed. Creating or configuring the group creates a missing
    /// topic, which then keeps messages for 14 days. While the topic does not exist, messages cannot be given up: the
    /// call returns [`crate::TopicError::UnknownTopic`], and they stay pending. Default: `dead.` and the name of the
    /// group's topic.
    ///
    /// Dead letters are never held back: neither a slow subscriber nor a limit of the dead-letter topic stops the
    /// group.
    pub fn dead_letters(mut self, topic: &str) -> GroupOptions {
        self.dead_letters = DeadLetters::Topic(topic.into());
        self
    }

    /// Drops messages whose last attempt failed: the group never delivers them again, and keeps no copy.
    pub fn discard_dead_letters(mut self) -> GroupOptions {
        self.dead_letters = DeadLetters::Discard;
        self
    }

    /// Whether messages of one key are delivered in the order of their offsets, and to one member at a time. Other keys
    /// and messages without a key do not wait for them. Default: no. A change of an existing group applies to messages
    /// that it delivers from then on.
    ///
    /// A member may get several messages of a key in one batch. The group does not prevent it from acknowledging a
    /// later message first. When the member fails one of them, it loses the later messages of that key: settling them
    /// returns [`crate::TopicError::LeaseLost`]. A message that waits for an earlier message of its key is set aside.
    /// When 100,000 messages are set aside, the group delivers no new messages until some are done.
    pub fn order_by_key(mut self, order: bool) -> GroupOptions {
        self.order_by_key = order;
        self
    }

    /// Durability of acknowledgements, failures and releases that a member makes outside its own transactions.
    ///
    /// - [`Durability::Written`], the default, survives the death of processes. After a power cut the group delivers
    ///   some acknowledged messages again.
    /// - [`Durability::Synced`] also survives a power cut. Each call waits for the device, and concurrent calls share a
    ///   sync.
    ///
    /// Leases are always only written: a power cut ends them anyway.
    pub fn durability(mut self, durability: Durability) -> GroupOptions {
        self.durability = durability;
        self
    }

    /// Which messages the group delivers; all others count as acknowledged. Default: every message.
    pub fn filter(mut self, filter: Filter) -> GroupOptions {
        self.filter = filter;
        self
    }

    /// Lists the differences from the requested options, for people.
    fn difference(&self, asked: &GroupOptions) -> String {
        let fields: [(&str, &dyn std::fmt::Debug, &dyn std::fmt::Debug); 8] = [
            ("lease", &self.lease, &asked.lease),
            ("tries", &self.tries, &asked.tries),
            ("in_flight", &self.in_flight, &asked.in_flight),
            ("back_off", &self.back_off, &asked.back_off),
            ("dead_letters", &self.dead_letters, &asked.dead_letters),
            ("order_by_key", &self.order_by_key, &asked.order_by_key),
            ("durability", &self.durability, &asked.durability),
            ("filter", &self.filter, &asked.filter),
        ];
        let mut text = String::new();
        for (name, found, wanted) in fields {
            let (found, wanted) = (format!("{found:?}"), format!("{wanted:?}"));
            if found != wanted {
                text += &format!(", its {name} is {found}, asked for {wanted}");
            }
        }
        text
    }

    /// How long a message waits after `tries` deliveries.
    pub(crate) fn delay(&self, tries: u32) -> Duration {
        let step = (tries.max(1) as usize - 1).min(self.back_off.len().saturating_sub(1));
        self.back_off.get(step).copied().unwrap_or_default()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |cause: String| Err(TopicError::InvalidOptions { cause }.into());
        if self.lease < Duration::from_millis(1) {
            return wrong("a lease shorter than a millisecond is over before it begins".into());
        }
        if self.tries == Some(0) {
            return wrong("a message that may be tried no times is never delivered; allow one try".into());
        }
        if self.in_flight == 0 || self.in_flight > IN_FLIGHT_MAX {
            return wrong(format!("allow between 1 and {IN_FLIGHT_MAX} messages in flight"));
        }
        if self.back_off.len() > BACK_OFF_MAX {
            return wrong(format!("a back-off list has {BACK_OFF_MAX} steps at most"));
        }
        self.filter.check()?;
        match &self.dead_letters {
            DeadLetters::Topic(name) => check_name(name),
            DeadLetters::Default | DeadLetters::Discard => Ok(()),
        }
    }
}

/// A group or a durable subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Durable,
    Group(GroupOptions),
}

impl Kind {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::Durable => "durable subscription",
            Kind::Group(_) => "group",
        }
    }
}

impl Kind {
    /// Describes the differences from the requested kind, for people.
    pub(crate) fn difference(&self, asked: &Kind) -> String {
        match (self, asked) {
            (Kind::Group(found), Kind::Group(asked)) => found.difference(asked),
            _ => String::new(),
        }
    }
}

/// The stored record of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    pub(crate) id: u32,
    pub(crate) created: u64,
    pub(crate) is_paused: bool,
    pub(crate) kind: Kind,
}

impl GroupRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            Kind::Durable => DURABLE,
            Kind::Group(_) => GROUP,
        };
        let mut out = vec![FORM, kind];
        out.extend_from_slice(&self.id.to_be_bytes());
        put_number(&mut out, self.created);
        out.push(u8::from(self.is_paused));
        if let Kind::Group(options) = &self.kind {
            put_number(&mut out, millis(options.lease));
            put_number(&mut out, plus_one(options.tries.map(u64::from)));
            put_number(&mut out, u64::from(options.in_flight));
            put_number(&mut out, options.back_off.len() as u64);
            options
                .back_off
                .iter()
                .for_each(|delay| put_number(&mut out, millis(*delay)));
            let (kind, name) = match &options.dead_letters {
                DeadLetters::Default => (DEFAULT, ""),
                DeadLetters::Topic(name) => (NAMED, &**name),
                DeadLetters::Discard => (DISCARD, ""),
            };
            out.push(kind);
            put_bytes(&mut out, name.as_bytes());
            out.push(u8::from(options.order_by_key));
            out.push(u8::from(options.durability == Durability::Synced));
            options.filter.encode(&mut out);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<GroupRecord> {
        let mut reader = Reader::new(bytes, "the record of a group");
        reader.form(FORM)?;
        let kind = reader.byte()?;
        let id = u32::from_be_bytes(reader.bytes(4)?.try_into().expect("four bytes"));
        let created = reader.number()?;
        let is_paused = reader.byte()? != 0;
        let kind = match kind {
            DURABLE => Kind::Durable,
            GROUP => Kind::Group(decode_options(&mut reader)?),
            _ => return Err(reader.damaged("is of no known kind")),
        };
        reader.end()?;
        Ok(GroupRecord {
            id,
            created,
            is_paused,
            kind,
        })
    }
}

fn decode_options(reader: &mut Reader<'_>) -> Result<GroupOptions> {
    let lease = Duration::from_millis(reader.number()?);
    let tries = reader.number()?.checked_sub(1);
    let in_flight = reader.number()?;
    let steps = reader.number()?;
    let too_large = |_| reader.damaged("has a number that is too large");
    let tries = tries.map(u32::try_from).transpose().map_err(too_large)?;
    let in_flight = u32::try_from(in_flight).map_err(too_large)?;
    if steps > BACK_OFF_MAX as u64 {
        return Err(reader.damaged("has too many steps of back-off"));
    }
    let back_off = (0..steps).map(|_| Ok(Duration::from_millis(reader.number()?)));
    let back_off = back_off.collect::<Result<Vec<_>>>()?;
    let (kind, name) = (reader.byte()?, reader.text()?);
    let dead_letters = match kind {
        DEFAULT => DeadLetters::Default,
        NAMED => DeadLetters::Topic(name.into()),
        DISCARD => DeadLetters::Discard,
        _ => return Err(reader.damaged("has dead letters of no known kind")),
    };
    let order_by_key = reader.byte()? != 0;
    let durability = match reader.byte()? {
        0 => Durability::Written,
        _ => Durability::Synced,
    };
    Ok(GroupOptions {
        order_by_key,
        durability,
        filter: Filter::decode(reader)?,
        lease,
        tries,
        in_flight,
        back_off,
        dead_letters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let options = GroupOptions::new().tries(5).dead_letters("orders.dead").in_flight(7);
        let forever = GroupOptions::new()
            .back_off(&[])
            .tries_without_end()
            .discard_dead_letters();
        let filter = Filter::new().key("a*").header("b", "c");
        let ordered = GroupOptions::new()
            .order_by_key(true)
            .durability(Durability::Synced)
            .filter(filter);
        for kind in [
            Kind::Durable,
            Kind::Group(options),
            Kind::Group(forever),
            Kind::Group(ordered),
        ] {
            let record = GroupRecord {
                id: 9,
                created: 1 << 40,
                is_paused: true,
                kind,
            };
            let bytes = record.encode();
            assert_eq!(GroupRecord::decode(&bytes).unwrap(), record);
            for length in 0..bytes.len() {
                assert!(GroupRecord::decode(&bytes[..length]).is_err());
            }
        }
    }

    #[test]
    fn the_last_step_of_a_back_off_counts_for_all_later_tries() {
        let [one, two] = [1, 2].map(Duration::from_secs);
        let options = GroupOptions::new().back_off(&[one, two]);
        assert_eq!([1, 2, 3, 100].map(|tries| options.delay(tries)), [one, two, two, two]);
        assert_eq!(GroupOptions::new().back_off(&[]).delay(1), Duration::ZERO);
    }
}
