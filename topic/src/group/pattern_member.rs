//! A member of a group over a pattern.
//!
//! It has a receiver in every topic, and one listener for all of them: a look costs by the topics that may have something, not
//! by those that match. A topic has something when one of its bells rings, or at a time that its last look gave: when a lease
//! ends, or a message has waited long enough. When a process leaves the store, all topics are looked at, because leases of that
//! process end.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result, Snapshot};

use super::claim::Turn;
use super::deliveries::Deliveries;
use super::pattern_group::{PatternGroup, is_gone};
use super::receiver::Receiver;
use super::receiving::{DeliveryStream, Receives, TaskAlarm};
use crate::record::millis;
use crate::subscription::TICK;
use crate::topic::Topic;
use crate::watched::{Begun, Watched, Watcher};

/// What the listener gets at a time. No topic has this number, and the registry has another one.
const TIME_TOKEN: u64 = u32::MAX as u64;
/// How long a topic waits whose last look failed, in milliseconds, so that others come first.
const FAILED_WAITS: u64 = 1_000;

/// A member of a group over a pattern. It waits for messages of all topics, and settles those it gets. Topics that have
/// messages take turns.
///
/// When a member and everything that it was handed are dropped, messages that it has not settled go back to the group at once,
/// without counting the try. When its process dies they go back as well, and the try counts.
pub struct PatternMember {
    begins: Begins,
    watched: Watched<Followed>,
    /// When topics are looked at that nothing announces, and their numbers. Times are those of the shared clock.
    times: BTreeSet<(u64, u32)>,
    /// How many processes had left the store at the last look.
    departed: u64,
    /// Wakes a task that waits.
    alarm: TaskAlarm,
}

/// How it begins in a topic.
struct Begins {
    group: PatternGroup,
    name: Arc<str>,
}

/// A topic that it takes messages of.
struct Followed {
    receiver: Receiver,
    /// When it is looked at, as in `times`.
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
            alarm: TaskAlarm::default(),
        }
    }

    /// The group.
    pub fn group(&self) -> &PatternGroup {
        &self.begins.group
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.begins.name
    }

    /// Up to so many messages of one topic, leased to this member: those that are there, or, when there are none, what comes
    /// within `timeout`. `None`: nothing came, or the group is paused, or as many messages are in flight as may be.
    /// [`crate::Messages::topic`] says whose messages they are.
    ///
    /// All messages of one call are new, or all were delivered before, on the terms of [`crate::Member::receive`].
    ///
    /// # Errors
    /// [`crate::TopicError::GroupDeleted`], and those of a commit. An error that concerns one topic keeps no other from being
    /// received: the next call goes on with them, and comes back to the topic after a second.
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
                // Says so when the store was closed, or the group deleted.
                self.begins.snapshot()?;
            }
        }
    }

    /// How long there is nothing to look at, if the listener says nothing before.
    fn rest(&self) -> Duration {
        let next = self.times.first().map_or(u64::MAX, |(time, _)| *time);
        Duration::from_millis(next.saturating_sub(self.now()).max(1)).min(TICK)
    }

    fn now(&self) -> u64 {
        millis(self.watched.topics().store().shared_clock())
    }

    /// Looks once at all topics that may have something, until one has.
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

    /// Puts topics into the queue whose time has come.
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

    /// Messages of one topic, which goes to the end of the queue when there were any.
    fn take(&mut self, id: u32, messages: usize) -> Result<Option<Deliveries>> {
        let Some(followed) = self.watched.get(id) else {
            return Ok(None);
        };
        match followed.receiver.look(messages) {
            Ok(Turn::Got(deliveries)) => {
                self.watched.enqueue(id);
                Ok(Some(deliveries))
            }
            Ok(Turn::Nothing(next)) => {
                self.look_at(id, next);
                Ok(None)
            }
            Err(error) if is_gone(&error) => {
                self.look_at(id, u64::MAX);
                self.watched.leave_out(id);
                // When it is gone everywhere, this says so.
                self.begins.snapshot().map(|_| None)
            }
            Err(error) => {
                self.look_at(id, self.now() + FAILED_WAITS);
                Err(error)
            }
        }
    }

    /// Looks at a topic at this time, and at no other; `u64::MAX`: at none.
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

    /// A stream of messages of one topic after the other, up to so many in each item, on the terms of
    /// [`PatternMember::receive`]. It ends after an error. Works with any asynchronous runtime: no thread waits, but a poll
    /// makes a short commit on the thread that polls.
    pub fn stream(&mut self, messages: usize) -> DeliveryStream<'_> {
        DeliveryStream::of(self, messages)
    }

    /// Up to so many messages of one topic, as soon as there are any. Dropping the future before it is ready loses nothing.
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
            if let Err(error) = self.alarm.ring_by(home, listener, TIME_TOKEN, self.rest()) {
                return Poll::Ready(Err(error));
            }
            // Between the look and this call a commit may have rung.
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
