//! A position in a topic, and how it advances: the common part of all subscriptions.

use std::ops::Range;
use std::time::Duration;

use duramen_engine::{BRAKES_MAX, Brake, Result, Snapshot};

use crate::error::TopicError;
use crate::handle::Topic;
use crate::limits::{READ_BYTES, READ_MESSAGES};
use crate::messages::Messages;
use crate::read::{ReadLimits, Reading, Start};

/// What happens when a subscriber lags behind what is published. Under every policy the waiting messages are in the
/// store. At most one batch, of a megabyte or one message, is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowPolicy {
    /// The subscriber reads the messages it missed from the store, whatever its lag is. When retention deletes messages
    /// that it has not read, its next call returns [`TopicError::Trimmed`].
    #[default]
    ReadOn,
    /// The subscriber skips all but the newest `max` messages; [`Messages::gap`] names the skipped messages. It also
    /// skips unread messages that retention deleted or that were lost.
    Skip {
        /// Maximum lag in messages.
        max: u64,
    },
    /// The subscriber's next call returns [`TopicError::TooSlow`] when its lag is more than `max` messages.
    Disconnect {
        /// Maximum lag in messages.
        max: u64,
    },
    /// Publishers of all processes wait before they publish until the subscriber's lag is less than `max` messages.
    /// After `timeout` they get [`TopicError::PublisherHeldBack`]. A message counts as read when the subscriber asks
    /// for the next messages. A store takes 255 such subscriptions at a time.
    HoldBack {
        /// Approximate maximum lag in messages: publishers that pass the check at the same time are not counted.
        max: u64,
        /// Maximum time that a publisher waits.
        timeout: Duration,
    },
}

/// How a subscription reads.
#[derive(Clone, Copy, Debug)]
pub struct SubscribeOptions {
    pub(crate) policy: SlowPolicy,
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) linger: Duration,
}

impl Default for SubscribeOptions {
    fn default() -> SubscribeOptions {
        SubscribeOptions {
            policy: SlowPolicy::ReadOn,
            messages: READ_MESSAGES,
            bytes: READ_BYTES,
            linger: Duration::ZERO,
        }
    }
}

impl SubscribeOptions {
    /// Every message as it is published; a subscriber that lags reads from the store.
    pub fn new() -> SubscribeOptions {
        SubscribeOptions::default()
    }

    /// What happens when the subscriber is slow. Default: [`SlowPolicy::ReadOn`].
    pub fn slow(mut self, policy: SlowPolicy) -> SubscribeOptions {
        self.policy = policy;
        self
    }

    /// Maximum messages in a batch. Default: 4096.
    pub fn batch_messages(mut self, messages: usize) -> SubscribeOptions {
        self.messages = messages;
        self
    }

    /// Bytes after which a batch ends. A batch always contains at least one message. Default: a megabyte.
    pub fn batch_bytes(mut self, bytes: usize) -> SubscribeOptions {
        self.bytes = bytes;
        self
    }

    /// How long a blocking call waits for a batch to fill up once there is a message. A stream does not wait. Default:
    /// no wait.
    pub fn linger(mut self, linger: Duration) -> SubscribeOptions {
        self.linger = linger;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let max = match self.policy {
            SlowPolicy::ReadOn => 1,
            SlowPolicy::Skip { max } | SlowPolicy::Disconnect { max } | SlowPolicy::HoldBack { max, .. } => max,
        };
        if max == 0 || self.messages == 0 || self.bytes == 0 {
            let cause = "a subscriber that may have no message gets none; allow at least one".into();
            return Err(TopicError::InvalidOptions { cause }.into());
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> ReadLimits {
        ReadLimits {
            messages: self.messages,
            bytes: self.bytes,
        }
    }
}

/// A position in a topic.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) topic: Topic,
    pub(crate) position: u64,
    options: SubscribeOptions,
    brake: Option<Brake>,
}

impl Topic {
    /// Holds publishers back until the brake is dropped.
    pub(crate) fn brake(&self, position: u64, max: u64, timeout: Duration) -> Result<Brake> {
        let brake = self
            .home()
            .store
            .brake(self.shared().id.into(), position, max, timeout)?;
        let brake = brake.ok_or(TopicError::TooManyHoldBack { max: BRAKES_MAX })?;
        self.home().brake_threads.moved(&brake);
        Ok(brake)
    }
}

impl Follower {
    pub(crate) fn new(topic: &Topic, start: Start, options: SubscribeOptions) -> Result<Follower> {
        options.check()?;
        let snapshot = topic.snapshot()?;
        let position = Reading::new(topic, &snapshot).resolve(start)?;
        drop(snapshot);
        Follower::at(topic, position, options)
    }

    /// Starts at an offset that exists, or existed.
    pub(crate) fn at(topic: &Topic, position: u64, options: SubscribeOptions) -> Result<Follower> {
        let brake = match options.policy {
            SlowPolicy::HoldBack { max, timeout } => Some(topic.brake(position, max, timeout)?),
            _ => None,
        };
        Ok(Follower {
            topic: topic.clone(),
            position,
            options,
            brake,
        })
    }

    /// Moves to another position.
    pub(crate) fn seek(&mut self, start: Start) -> Result<()> {
        let snapshot = self.topic.snapshot()?;
        self.position = Reading::new(&self.topic, &snapshot).resolve(start)?;
        self.report();
        Ok(())
    }

    /// Returns the next messages, if there are any, and advances past them.
    pub(crate) fn take(&mut self) -> Result<Option<Messages>> {
        self.report();
        let snapshot = self.topic.snapshot()?;
        self.take_in(&snapshot)
    }

    pub(crate) fn take_in(&mut self, snapshot: &Snapshot) -> Result<Option<Messages>> {
        let reading = Reading::new(&self.topic, snapshot);
        let (end, messages) = read_on(&reading, self.options.policy, self.position, self.options.limits())?;
        if messages.is_empty() {
            self.position = self.position.max(end);
            return Ok(None);
        }
        self.position = messages.offsets().end;
        Ok(Some(messages))
    }

    /// Number of published messages that were not read.
    pub(crate) fn lag(&self) -> Result<u64> {
        Ok(self.topic.next()?.saturating_sub(self.position))
    }

    fn report(&self) {
        if let Some(brake) = &self.brake {
            brake.reached(self.position);
            self.topic.home().brake_threads.moved(brake);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(brake) = &self.brake {
            self.topic.home().brake_threads.forget(brake);
        }
    }
}

/// Returns what comes next for a subscriber at a position, and the offset where the read started, after its policy
/// skipped messages. If nothing comes next, the returned offset is the first that was not examined; the subscriber
/// continues there. A subscriber with a gap keeps its position until a message can report the gap.
pub(crate) fn read_on(
    reading: &Reading<'_>,
    policy: SlowPolicy,
    position: u64,
    limits: ReadLimits,
) -> Result<(u64, Messages)> {
    let gap = pass_over(reading, policy, position)?;
    let from = gap.as_ref().map_or(position, |gap| gap.end);
    let is_told = gap.is_some();
    let read = reading.read_through(from, limits, gap);
    let missing = read.as_ref().err().and_then(TopicError::trimmed_to);
    match (missing, policy) {
        // Messages that were lost between others.
        (Some(first), SlowPolicy::Skip { .. }) => Ok((first, reading.read(first, limits, Some(position..first))?)),
        _ => match read? {
            (messages, end) if messages.is_empty() => Ok((if is_told { position } else { end }, messages)),
            (messages, _) => Ok((from, messages)),
        },
    }
}

/// Applies the policy of a subscriber. Returns the offsets that it must skip.
fn pass_over(reading: &Reading<'_>, policy: SlowPolicy, position: u64) -> Result<Option<Range<u64>>> {
    match policy {
        SlowPolicy::ReadOn | SlowPolicy::HoldBack { .. } => Ok(None),
        SlowPolicy::Skip { max } => {
            let bounds = reading.bounds()?;
            let oldest = bounds.state.next.saturating_sub(max).max(bounds.first);
            Ok((position < oldest).then_some(position..oldest))
        }
        SlowPolicy::Disconnect { max } => {
            let lag = reading.state()?.next.saturating_sub(position);
            let topic = reading.topic.name().to_string();
            match lag > max {
                true => Err(TopicError::TooSlow { topic, lag, max }.into()),
                false => Ok(None),
            }
        }
    }
}
