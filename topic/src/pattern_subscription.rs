//! Subscriptions to all topics whose names match a pattern, including topics that are created later.
//!
//! They begin at a given position, or at the position of a durable subscription in each topic. Topics that may have
//! messages take turns batch by batch: see [`crate::watched`].

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result, Snapshot};

use crate::batches::{BatchStream, Batches, Source};
use crate::error::{TopicError, is_deleted};
use crate::follower::{Follower, SubscribeOptions};
use crate::group::DurablePattern;
use crate::handle::{Topic, Topics};
use crate::listening::Listening;
use crate::messages::Messages;
use crate::name::Pattern;
use crate::read::Start;
use crate::subscription::TICK;
use crate::watched::{Begun, Watched, Watcher};

/// A subscription to all topics of a pattern: every message of each of them, in the order of its topic.
///
/// [`PatternSubscription::batches`] makes an iterator of it, and [`PatternSubscription::stream`] a stream for
/// asynchronous programs. After an error that concerns one topic, such as [`TopicError::Trimmed`], they continue with
/// the other topics. Any other error is the last item.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{Pattern, Start, TopicOptions, Topics};
/// use std::time::Duration;
///
/// let topics = Topics::open(&store)?;
/// let mut created = topics.subscribe(&Pattern::new("orders.*.created")?, Start::Tail)?;
/// topics.create("orders.eu.created", TopicOptions::new())?.publish(b"12 apples")?;
/// let messages = created.next_batch(Duration::from_secs(1))?.unwrap();
/// assert_eq!(messages.topic(), "orders.eu.created");
/// # Ok::<(), duramen_engine::Error>(())
/// ```
pub struct PatternSubscription {
    begins: Begins,
    watched: Watched<Followed>,
    is_over: bool,
}

/// Where a subscription begins in a topic.
#[derive(Clone)]
struct Begins {
    topics: Topics,
    /// The durable subscription that stores the positions.
    durable: Option<DurablePattern>,
    /// Start position without a durable subscription.
    start: Start,
    options: SubscribeOptions,
}

/// A topic that the subscription follows.
struct Followed {
    follower: Follower,
    _listening: Listening,
}

impl fmt::Debug for PatternSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PatternSubscription")
            .field("pattern", &self.watched.pattern().as_str())
            .field("topics", &self.watched.len())
            .finish_non_exhaustive()
    }
}

impl Topics {
    /// Subscribes to all topics of a pattern. `start` applies to topics that exist now. Of topics that are created
    /// later, every message is delivered.
    ///
    /// # Errors
    /// Those of [`duramen_engine::Store::snapshot`].
    pub fn subscribe(&self, pattern: &Pattern, start: Start) -> Result<PatternSubscription> {
        self.subscribe_with(pattern, start, SubscribeOptions::new())
    }

    /// Subscribes with options, which apply to each topic separately; see [`Topics::subscribe`].
    ///
    /// # Errors
    /// As [`Topics::subscribe`], [`crate::TopicError::InvalidOptions`].
    pub fn subscribe_with(
        &self,
        pattern: &Pattern,
        start: Start,
        options: SubscribeOptions,
    ) -> Result<PatternSubscription> {
        PatternSubscription::new(self, pattern, None, start, options)
    }
}

impl DurablePattern {
    /// Subscribes to all topics, in each from the first message that was not acknowledged.
    ///
    /// # Errors
    /// As [`Topics::subscribe`], [`TopicError::GroupDeleted`].
    pub fn subscribe(&self) -> Result<PatternSubscription> {
        self.subscribe_with(SubscribeOptions::new())
    }

    /// Subscribes with options, which apply to each topic separately; see [`DurablePattern::subscribe`].
    ///
    /// # Errors
    /// As [`DurablePattern::subscribe`], [`TopicError::InvalidOptions`].
    pub fn subscribe_with(&self, options: SubscribeOptions) -> Result<PatternSubscription> {
        let durable = Some(self.clone());
        PatternSubscription::new(self.topics(), self.pattern(), durable, Start::Beginning, options)
    }
}

impl PatternSubscription {
    fn new(
        topics: &Topics,
        pattern: &Pattern,
        durable: Option<DurablePattern>,
        start: Start,
        options: SubscribeOptions,
    ) -> Result<PatternSubscription> {
        options.check()?;
        let mut begins = Begins {
            topics: topics.clone(),
            durable,
            start,
            options,
        };
        let mut watched = Watched::new(topics, pattern);
        watched.look_for_topics(&begins)?;
        // Of topics that are created later it delivers every message.
        begins.start = Start::Beginning;
        Ok(PatternSubscription {
            begins,
            watched,
            is_over: false,
        })
    }

    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        self.watched.pattern()
    }

    /// Number of followed topics, as of the last check.
    pub fn topics(&self) -> usize {
        self.watched.len()
    }

    /// Returns the next messages of some topic. If there are none, waits up to `timeout`; `None`: nothing arrived. A
    /// topic that is deleted is left out from then on.
    ///
    /// # Errors
    /// As [`crate::Subscription::next_batch`]; [`TopicError::GroupDeleted`] when it is durable and was deleted. After
    /// [`crate::TopicError::Trimmed`] and [`crate::TopicError::TooSlow`] the named topic keeps its position, and other
    /// topics continue; see [`PatternSubscription::seek`].
    pub fn next_batch(&mut self, timeout: Duration) -> Result<Option<Messages>> {
        let began = Instant::now();
        loop {
            if let Some(messages) = self.take_any(PatternSubscription::linger)? {
                return Ok(Some(messages));
            }
            let left = timeout.saturating_sub(began.elapsed());
            let tokens = self.watched.listener().wait(left.min(TICK));
            self.watched.note(&tokens);
            if !self.watched.is_any_queued() && !self.watched.has_news() && left.is_zero() {
                return Ok(None);
            }
            if tokens.is_empty() {
                // Fails when the store was closed, or the durable subscription deleted.
                self.begins.snapshot()?;
            }
        }
    }

    /// Iterates over batches. Each call of `next` waits for a batch.
    pub fn batches(&mut self) -> Batches<'_> {
        Batches::of(self)
    }

    /// The batches as a stream, for any asynchronous runtime.
    pub fn stream(&mut self) -> BatchStream<'_> {
        BatchStream::of(self)
    }

    /// The next messages of the first topic in the queue that has some. Calls `prepare` before it checks a topic.
    fn take_any(&mut self, prepare: impl Fn(&mut Self, u32) -> Result<()>) -> Result<Option<Messages>> {
        if self.watched.has_news() {
            self.watched.look_for_topics(&self.begins)?;
        } else if self.begins.durable.is_some() && self.watched.is_any_queued() {
            // A deleted durable subscription delivers nothing more, even before the registry's bell rings.
            self.begins.snapshot()?;
        }
        while let Some(id) = self.watched.dequeue() {
            prepare(self, id).inspect_err(|_| self.watched.enqueue(id))?;
            if let Some(messages) = self.take(id)? {
                return Ok(Some(messages));
            }
        }
        Ok(None)
    }

    /// Waits for a batch of a topic to fill up, if the options ask for it and there is a message.
    fn linger(&mut self, id: u32) -> Result<()> {
        let lingers_since = Instant::now();
        let options = self.begins.options;
        while !options.linger.is_zero() {
            let Some(Followed { follower, .. }) = self.watched.get(id) else {
                break;
            };
            follower.topic.shared().sequence.bell().arm();
            let waiting = match follower.lag() {
                Err(error) if is_deleted(&error) => break,
                lag => lag?,
            };
            let left = options.linger.saturating_sub(lingers_since.elapsed());
            if waiting == 0 || waiting >= options.messages as u64 || left.is_zero() {
                break;
            }
            let tokens = self.watched.listener().wait(left.min(TICK));
            self.watched.note(&tokens);
        }
        Ok(())
    }

    /// Passes an item to an iterator or stream. The stream ends after an error, unless the error concerns one topic
    /// alone.
    fn deliver(&mut self, taken: Result<Messages>) -> Option<Result<Messages>> {
        self.is_over = taken.as_ref().is_err_and(|error| !stays_behind(error));
        Some(taken)
    }

    /// The next messages of a topic. A topic with messages goes to the end of the queue.
    fn take(&mut self, id: u32) -> Result<Option<Messages>> {
        let Some(Followed { follower, .. }) = self.watched.get_mut(id) else {
            return Ok(None);
        };
        follower.topic.shared().sequence.bell().arm();
        match follower.take() {
            Ok(Some(messages)) => {
                self.watched.enqueue(id);
                Ok(Some(messages))
            }
            Ok(None) => Ok(None),
            Err(error) if is_deleted(&error) => {
                self.watched.forget(id);
                Ok(None)
            }
            Err(error) => {
                if !stays_behind(&error) {
                    // The error may be gone next time.
                    self.watched.enqueue(id);
                }
                Err(error)
            }
        }
    }

    /// Continues from another position in one topic; `false`: the subscription follows no topic of this name.
    ///
    /// # Errors
    /// As [`crate::Topic::subscribe`].
    pub fn seek(&mut self, topic: &str, start: Start) -> Result<bool> {
        let mut all = self.watched.iter_mut();
        let Some((id, followed)) = all.find(|(_, followed)| followed.follower.topic.name() == topic) else {
            return Ok(false);
        };
        followed.follower.seek(start)?;
        drop(all);
        self.watched.enqueue(id);
        Ok(true)
    }
}

impl Watcher<Followed> for Begins {
    /// A snapshot. If the subscription is durable, it must still exist in it.
    fn snapshot(&self) -> Result<Snapshot> {
        match &self.durable {
            None => self.topics.store().snapshot(),
            Some(durable) => durable.snapshot(),
        }
    }

    fn begin(&self, snapshot: &Snapshot, topic: &Topic, listener: &Arc<Listener>) -> Result<Begun<Followed>> {
        let follower = match &self.durable {
            None => Follower::new(topic, self.start, self.options)?,
            // If that message is no longer kept, the first read of the topic reports it, and other topics continue.
            Some(durable) => match durable.position_in(snapshot, topic)? {
                Some(position) => Follower::at(topic, position, self.options)?,
                None => return Ok(Begun::LeftOut),
            },
        };
        let shared = topic.shared();
        let store = self.topics.store();
        Ok(Begun::Followed(Followed {
            follower,
            _listening: Listening::begin(store, &shared.sequence, listener, shared.id.into()),
        }))
    }
}

impl Source for PatternSubscription {
    fn next_batch_or_end(&mut self) -> Option<Result<Messages>> {
        while !self.is_over {
            match self.next_batch(TICK).transpose() {
                None => {}
                Some(taken) => return self.deliver(taken),
            }
        }
        None
    }

    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Messages>>> {
        while !self.is_over {
            if let Some(taken) = self.take_any(|_, _| Ok(())).transpose() {
                return Poll::Ready(self.deliver(taken));
            }
            // A commit may have rung the bell between the check and this call.
            let tokens = self.watched.listener().poll(context.waker());
            if tokens.is_empty() {
                return Poll::Pending;
            }
            self.watched.note(&tokens);
        }
        Poll::Ready(None)
    }
}

/// Whether an error concerns only one topic, which keeps its position.
fn stays_behind(error: &duramen_engine::Error) -> bool {
    let error = TopicError::of(error);
    matches!(error, Some(TopicError::Trimmed { .. } | TopicError::TooSlow { .. }))
}

#[cfg(test)]
mod tests {
    use duramen_engine::{Maintenance, Options};
    use duramen_io::SimDisk;

    use super::*;
    use crate::record::TopicOptions;
    use crate::topics::TopicsOptions;

    #[test]
    fn topics_that_are_gone_are_forgotten_whether_the_registry_tells_or_not() {
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(SimDisk::new(1).platform()).unwrap();
        let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
        let mut subscription = topics
            .subscribe(&Pattern::new("reply.*").unwrap(), Start::Tail)
            .unwrap();
        let look = |it: &mut PatternSubscription| it.watched.look_for_topics(&it.begins).unwrap();
        for round in 0..2 {
            for number in 0..100 {
                topics.create(&format!("reply.{number}"), TopicOptions::new()).unwrap();
            }
            look(&mut subscription);
            assert_eq!(subscription.topics(), 100);
            for number in 0..100 {
                topics.delete(&format!("reply.{number}")).unwrap();
            }
            topics.create("reply.last", TopicOptions::new()).unwrap();
            if round == 1 {
                // As if the registry's entries were trimmed.
                subscription.watched.lose_track();
            }
            look(&mut subscription);
            assert_eq!(subscription.topics(), 1, "round {round}");
            topics.delete("reply.last").unwrap();
        }
    }
}
