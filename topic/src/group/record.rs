//! What is stored about a group or durable subscription, and the options of groups.
//!
//! ```text
//!  1  form: 1
//!  1  1 durable subscription, 2 group
//!  4  id, big-endian
//! ..  created, milliseconds since 1970
//!  1  1: paused
//!     and of a group:
//! ..  lease, milliseconds
//! ..  tries, plus one; 0: any number
//! ..  messages in flight
//! ..  back-off: how many; each: milliseconds
//! ..  dead-letter topic: length, name; empty: none
//! ```
//!
//! Numbers without a width have seven bits a byte, least first.

use std::time::Duration;

use duramen_engine::Result;

use crate::bytes::{Reader, put_bytes, put_number};
use crate::error::TopicError;
use crate::name::check_name;
use crate::record::{millis, plus_one};

const FORM: u8 = 1;
const DURABLE: u8 = 1;
const GROUP: u8 = 2;

/// Most messages in flight that a group can be asked to allow: what is known of each is looked through now and then.
const IN_FLIGHT_MAX: u32 = 1_000_000;
/// Most steps of a back-off list.
const BACK_OFF_MAX: usize = 64;

/// How a group delivers.
///
/// To change one thing and keep the others, begin with the options that [`crate::Group::describe`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupOptions {
    /// See [`GroupOptions::lease`].
    pub lease: Duration,
    /// See [`GroupOptions::tries`]; `None`: without end.
    pub tries: Option<u32>,
    /// See [`GroupOptions::in_flight`].
    pub in_flight: u32,
    /// See [`GroupOptions::back_off`].
    pub back_off: Vec<Duration>,
    /// See [`GroupOptions::dead_letters`]; `None`: there is none.
    pub dead_letters: Option<String>,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions {
            lease: Duration::from_secs(30),
            tries: None,
            in_flight: 10_000,
            back_off: [1, 10, 60].map(Duration::from_secs).to_vec(),
            dead_letters: None,
        }
    }
}

impl GroupOptions {
    /// Leases of 30 seconds, redelivery after 1, 10, and then every 60 seconds, without end.
    pub fn new() -> GroupOptions {
        GroupOptions::default()
    }

    /// How long a member may take for the messages it was handed before they are delivered again. Default: 30 seconds.
    pub fn lease(mut self, lease: Duration) -> GroupOptions {
        self.lease = lease;
        self
    }

    /// How often a message is delivered at most. One that fails the last time goes to the dead-letter topic, or is given up
    /// when there is none. Default: without end.
    pub fn tries(mut self, tries: u32) -> GroupOptions {
        self.tries = Some(tries);
        self
    }

    /// Messages that may be with members, or wait to be delivered again, at one time. Default: 10,000.
    pub fn in_flight(mut self, messages: u32) -> GroupOptions {
        self.in_flight = messages;
        self
    }

    /// How long a message that failed waits: the first time, the second time, and so on; the last one counts for all later
    /// times. Default: 1, 10 and 60 seconds.
    pub fn back_off(mut self, delays: &[Duration]) -> GroupOptions {
        self.back_off = delays.to_vec();
        self
    }

    /// The topic to which messages go that failed the last time; made with the group, or by [`crate::Group::configure`], when
    /// it is missing. Whoever deletes it later keeps messages from being given up: that is [`crate::TopicError::UnknownTopic`],
    /// and they stay pending. Default: none.
    pub fn dead_letters(mut self, topic: &str) -> GroupOptions {
        self.dead_letters = Some(topic.into());
        self
    }

    /// How long a message waits that was delivered so many times.
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
        self.dead_letters.as_deref().map_or(Ok(()), check_name)
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

/// What is stored about a group.
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
            put_bytes(&mut out, options.dead_letters.as_deref().unwrap_or("").as_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<GroupRecord> {
        let mut reader = Reader::new(bytes, "the record of a group");
        reader.version(FORM)?;
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
    let dead_letters = Some(reader.text()?).filter(|name| !name.is_empty());
    Ok(GroupOptions {
        lease,
        tries,
        in_flight,
        back_off,
        dead_letters: dead_letters.map(str::to_string),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let options = GroupOptions::new().tries(5).dead_letters("orders.dead").in_flight(7);
        let forever = GroupOptions::new().back_off(&[]);
        for kind in [Kind::Durable, Kind::Group(options), Kind::Group(forever)] {
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
