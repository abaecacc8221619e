//! A member of a group over a pattern.
//!
//! It has a receiver in every topic, and one listener for all of them. The cost of a check depends on the topics that
//! may have messages, not on all matching topics. A topic may have messages when one of its bells rings, or at a time
//! from its last check: when a lease ends, or a message has waited long enough. When a process leaves the store, all
//! topics are checked, because leases of that process end.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result, Snapshot};

use super::deliveries::Deliveries;
use super::leasing::TurnOutcome;
use super::pattern_group::{PatternGroup, is_gone};
use super::receiver::Receiver;
use super::receiving::{DeliveryStream, Receives, TaskTimer};
use crate::handle::Topic;
use crate::record::millis;
use crate::subscription::TICK;
use crate::watched::{Begun, Watched, Watcher};

/// The token of the listener for a time. No topic has this number, and the registry has another number.
const TIME_TOKEN: u64 = u32::MAX as u64;
/// How long a topic waits after its last check failed, in milliseconds, so that other topics come first.
const FAILED_WAITS: u64 = 1_000;

/// A member of a group over a pattern. It waits for messages of all topics, and settles them. Topics that have messages
/// take turns.
///
/// When a member and all its deliveries are dropped, its unsettled messages go back to the group at once. The attempt
/// does not count. When its process dies they go back as well, and the attempt counts.
pub struct PatternMember {
    begins: Begins,
    watched: Watched<Followed>,
    /// Times at which topics are checked without an event, and the numbers of the topics. Times are those of the shared
    /// clock.
    times: BTreeSet<(u64, u32)>,
    /// Number of processes that had left the store at the last check.
    departed: u64,
    /// Wakes a waiting task.
    timer: TaskTimer,
}

/// How the member begins in a topic.
struct Begins {
    group: PatternGroup,
    name: Arc<str>,
}

/// A topic whose messages the member takes.
struct Followed {
    receiver: Receiver,
    /// Time of its next check, as in `times`.
    time: Option<u64>,
}

impl fmt::Debug for PatternMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PatternMember")
            .field("group", &self.begins.group.name())
            .field("name", &self.begins.name)
            .field("topics", &self.watched.len())
            .finish_non_exhaustive()
    }
}

impl PatternMember {
    pub(super) fn new(group: &PatternGroup, name: &str) -> PatternMember {
        PatternMember {
            begins: Begins {
                group: group.clone(),
                name: name.into(),
            },
            watched: Watched::new(group.topics(), group.pattern()),
            times: BTreeSet::new(),
            departed: 0,
            timer: TaskTimer::default(),
        }
    }

    /// The group.
    pub fn group(&self) -> &PatternGroup {
        &self.begins.group
    }

    /// Name of the member.
    pub fn name(&self) -> &str {
        &self.begins.name
    }

    /// Returns up to `messages` messages of one topic, leased to this member. If there are none, waits up to `timeout`.
    /// `None`: nothing arrived, or the group is paused, or the maximum number of messages is in flight.
    /// [`crate::Messages::topic`] names their topic.
    ///
    /// All messages of one call are new, or all were delivered before, as with [`crate::Member::receive`].
    ///
    /// # Errors
    /// [`crate::TopicError::GroupDeleted`], and those of a commit. An error that concerns one topic does not block
    /// other topics: the next call continues with them, and returns to the topic after a second.
    pub fn receive(&mut self, messages: usize, timeout: Duration) -> Result<Option<Deliveries>> {
        let began = Instant::now();
        loop {
            if let Some(deliveries) = self.receive_now(messages)? {
                return Ok(Some(deliveries));
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let tokens = self.watched.listener().wait(left.min(self.rest()));
            self.watched.note(&tokens);
            if tokens.is_empty() {
                // Fails when the store was closed, or the group deleted.
                self.begins.snapshot()?;
            }
        }
    }

    /// Time until the next check, unless the listener reports something before.
    fn rest(&self) -> Duration {
        let next = self.times.first().map_or(u64::MAX, |(time, _)| *time);
        Duration::from_millis(next.saturating_sub(self.now()).max(1)).min(TICK)
    }

    fn now(&self) -> u64 {
        millis(self.watched.topics().store().shared_clock())
    }

    /// Checks all topics that may have messages once, until one has.
    fn receive_now(&mut self, messages: usize) -> Result<Option<Deliveries>> {
        let tokens = self.watched.listener().wait(Duration::ZERO);
        self.watched.note(&tokens);
        let home = self.watched.topics().home();
        home.store.refuse_beside("member.receive", self.begins.group.name())?;
        let departed = home.presence.departed(&home.store);
        if self.departed != departed {
            self.departed = departed;
            self.watched.enqueue_all();
        }
        if self.watched.has_news() {
            self.watched.look_for_topics(&self.begins)?;
        }
        self.enqueue_due();
        while let Some(id) = self.watched.dequeue() {
            if let Some(deliveries) = self.take(id, messages)? {
                return Ok(Some(deliveries));
            }
        }
        Ok(None)
    }

    /// Puts topics that are due into the queue.
    fn enqueue_due(&mut self) {
        if self.times.is_empty() {
            return;
        }
        let now = self.now();
        while let Some(&(time, id)) = self.times.first().filter(|(time, _)| *time <= now) {
            self.times.remove(&(time, id));
            if let Some(followed) = self.watched.get_mut(id) {
                followed.time = None;
                self.watched.enqueue(id);
            }
        }
    }

    /// Messages of one topic. A topic with messages goes to the end of the queue.
    fn take(&mut self, id: u32, messages: usize) -> Result<Option<Deliveries>> {
        let Some(followed) = self.watched.get(id) else {
            return Ok(None);
        };
        match followed.receiver.look(messages) {
            Ok(TurnOutcome::Got(deliveries)) => {
                self.watched.enqueue(id);
                Ok(Some(deliveries))
            }
            Ok(TurnOutcome::Nothing(next)) => {
                self.look_at(id, next);
                Ok(None)
            }
            Err(error) if is_gone(&error) => {
                self.look_at(id, u64::MAX);
                self.watched.leave_out(id);
                // If the group is deleted in all topics, this reports it.
                self.begins.snapshot().map(|_| None)
            }
            Err(error) => {
                self.look_at(id, self.now() + FAILED_WAITS);
                Err(error)
            }
        }
    }

    /// Schedules the next check of a topic, replacing an earlier schedule; `u64::MAX`: no check.
    fn look_at(&mut self, id: u32, time: u64) {
        let Some(followed) = self.watched.get_mut(id) else {
            return;
        };
        let time = Some(time).filter(|time| *time != u64::MAX);
        if let Some(before) = std::mem::replace(&mut followed.time, time) {
            self.times.remove(&(before, id));
        }
        self.times.extend(time.map(|time| (time, id)));
    }

    /// A stream of messages of one topic after the other, up to `messages` in each item, as [`PatternMember::receive`]
    /// returns them. It ends after an error. Works with any asynchronous runtime: no thread waits, but a poll makes a
    /// short commit on the polling thread.
    pub fn stream(&mut self, messages: usize) -> DeliveryStream<'_> {
        DeliveryStream::of(self, messages)
    }

    /// Returns up to `messages` messages of one topic, as soon as there are any. Dropping the future before it is ready
    /// loses nothing.
    ///
    /// # Errors
    /// As [`PatternMember::receive`].
    pub async fn receive_async(&mut self, messages: usize) -> Result<Deliveries> {
        std::future::poll_fn(|context| self.poll_receive(messages, context)).await
    }
}

impl Receives for PatternMember {
    fn poll_receive(&mut self, messages: usize, context: &mut Context<'_>) -> Poll<Result<Deliveries>> {
        loop {
            if let Some(received) = self.receive_now(messages).transpose() {
                return Poll::Ready(received);
            }
            if let Err(error) = self.begins.snapshot() {
                return Poll::Ready(Err(error));
            }
            let (home, listener) = (self.watched.topics().home(), self.watched.listener());
            if let Err(error) = self.timer.ring_by(home, listener, TIME_TOKEN, self.rest()) {
                return Poll::Ready(Err(error));
            }
            // A commit may have rung the bell between the check and this call.
            let tokens = self.watched.listener().poll(context.waker());
            if tokens.is_empty() {
                return Poll::Pending;
            }
            self.watched.note(&tokens);
        }
    }
}

impl Watcher<Followed> for Begins {
    fn snapshot(&self) -> Result<Snapshot> {
        self.group.rule.snapshot()
    }

    fn begin(&self, snapshot: &Snapshot, topic: &Topic, listener: &Arc<Listener>) -> Result<Begun<Followed>> {
        let rule = self.group.rule.rule(snapshot)?;
        if !rule.covers(self.group.name(), topic.name()) {
            return Ok(Begun::Foreign);
        }
        let group = self.group.group_of(snapshot, &rule, topic)?;
        Ok(group.map_or(Begun::LeftOut, |group| {
            Begun::Followed(Followed {
                receiver: Receiver::new(&group, &self.name, listener, topic.shared().id.into()),
                time: None,
            })
        }))
    }
}
