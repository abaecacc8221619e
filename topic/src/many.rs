//! Subscriptions to all topics whose names match a pattern, also those that are made later.
//!
//! They begin where they are told to, or where a durable subscription has come to in each topic. One listener stands at
//! the bells of all the topics, and at that of the registry, which rings when a topic is made or deleted. Topics that
//! may have messages stand in a queue, each once, and take turns batch by batch.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result, Snapshot};

use crate::batches::{BatchStream, Batches, Source};
use crate::error::{TopicError, is_deleted};
use crate::follower::{Follower, SubscribeOptions};
use crate::group::DurablePattern;
use crate::messages::Messages;
use crate::name::Pattern;
use crate::read::Start;
use crate::registry::{Event, News};
use crate::subscription::TICK;
use crate::tables::REGISTRY;
use crate::topic::Topic;
use crate::topics::Topics;

/// What the registry's bell says; no topic has this id.
const REGISTRY_TOKEN: u64 = REGISTRY as u64;

/// A subscription to all topics of a pattern: every message of each of them, in the order of its topic.
///
/// [`PatternSubscription::batches`] makes an iterator of it, and [`PatternSubscription::stream`] a stream for asynchronous
/// programs. After an error that concerns one topic, as [`TopicError::Trimmed`], they go on with the others; any other error
/// is the last item.
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
    topics: Topics,
    pattern: Pattern,
    /// What remembers where it begins in a topic.
    durable: Option<DurablePattern>,
    options: SubscribeOptions,
    followers: HashMap<u32, Follower>,
    /// Topics that may have messages, each once.
    queue: VecDeque<u32>,
    queued: HashSet<u32>,
    /// Topics were made or deleted since it last looked.
    registry_rang: bool,
    /// The entry of the registry with which the next look begins.
    seen: Option<u64>,
    /// Topics match in which the durable subscription is missing.
    leaves_topics_out: bool,
    listener: Arc<Listener>,
    is_over: bool,
}

impl fmt::Debug for PatternSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PatternSubscription")
            .field("pattern", &self.pattern.as_str())
            .field("topics", &self.followers.len())
            .finish_non_exhaustive()
    }
}

impl Topics {
    /// Subscribes to all topics of a pattern. `start` counts for those that are there now; of those that are made later
    /// every message is delivered.
    ///
    /// # Errors
    /// Those of [`duramen_engine::Store::snapshot`].
    pub fn subscribe(&self, pattern: &Pattern, start: Start) -> Result<PatternSubscription> {
        self.subscribe_with(pattern, start, SubscribeOptions::new())
    }

    /// [`Topics::subscribe`] with options, which count for every topic by itself.
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
    /// Messages of all topics, of each from the first one on that was not acknowledged.
    ///
    /// # Errors
    /// As [`Topics::subscribe`], [`TopicError::GroupDeleted`].
    pub fn subscribe(&self) -> Result<PatternSubscription> {
        self.subscribe_with(SubscribeOptions::new())
    }

    /// [`DurablePattern::subscribe`] with options, which count for every topic by itself.
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
        let mut subscription = PatternSubscription {
            topics: topics.clone(),
            pattern: pattern.clone(),
            durable,
            options,
            followers: HashMap::new(),
            queue: VecDeque::new(),
            queued: HashSet::new(),
            registry_rang: false,
            seen: None,
            leaves_topics_out: false,
            listener: Listener::new(),
            is_over: false,
        };
        let home = topics.home();
        home.store
            .listen(home.registry().bell(), &subscription.listener, REGISTRY_TOKEN);
        subscription.look_for_topics(start)?;
        Ok(subscription)
    }

    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Topics that match it, as far as it has looked.
    pub fn topics(&self) -> usize {
        self.followers.len()
    }

    /// Begins to follow topics that it did not know, and forgets those that are gone. Reads what the registry tells since the
    /// last look, and all topics only where that does not do.
    fn look_for_topics(&mut self, start: Start) -> Result<()> {
        let home = self.topics.home().clone();
        home.registry().bell().arm();
        let snapshot = self.snapshot()?;
        // A durable subscription that a topic lost may be made again, which the registry does not tell.
        let seen = self.seen.filter(|_| !self.leaves_topics_out);
        let (news, next) = home.news(&snapshot, seen)?;
        match news {
            News::Everything => self.look_at_all_topics(&snapshot, start)?,
            News::Of(news) => {
                for (event, id, name) in news {
                    match event {
                        Event::Deleted => self.forget(id),
                        Event::Created if self.pattern.matches(&name) => {
                            // Meanwhile it may be deleted, and created again: later entries tell.
                            let record = home.existing_record(&snapshot, &name)?;
                            if record.is_some_and(|record| record.id == id) {
                                self.follow(&snapshot, id, &name, start)?;
                            }
                        }
                        Event::Created | Event::Configured | Event::Exists => {}
                    }
                }
            }
        }
        self.seen = Some(next);
        Ok(())
    }

    fn look_at_all_topics(&mut self, snapshot: &Snapshot, start: Start) -> Result<()> {
        let home = self.topics.home().clone();
        self.leaves_topics_out = false;
        let mut gone: HashSet<u32> = self.followers.keys().copied().collect();
        for (name, record) in home.records_in(snapshot, self.pattern.literal_start())? {
            if !self.pattern.matches(&name) {
                continue;
            }
            let id = record?.id;
            gone.remove(&id);
            self.follow(snapshot, id, &name, start)?;
        }
        gone.into_iter().for_each(|id| self.forget(id));
        Ok(())
    }

    /// Begins to follow a topic, unless it does already.
    fn follow(&mut self, snapshot: &Snapshot, id: u32, name: &str, start: Start) -> Result<()> {
        if self.followers.contains_key(&id) {
            return Ok(());
        }
        let home = self.topics.home().clone();
        let topic = home.topic(id, name)?;
        match self.follower(snapshot, &topic, start) {
            Ok(None) => self.leaves_topics_out = true,
            Ok(Some(follower)) => {
                let bell = topic.shared().sequence.bell();
                home.store.listen(bell, &self.listener, u64::from(id));
                self.followers.insert(id, follower);
                self.enqueue(id);
            }
            // Meanwhile.
            Err(error) if is_deleted(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Forgets a topic that is gone.
    fn forget(&mut self, id: u32) {
        if let Some(gone) = self.followers.remove(&id) {
            gone.topic.shared().sequence.bell().forget(&self.listener);
        }
    }

    /// A snapshot, in which the durable subscription is there that it begins with.
    fn snapshot(&self) -> Result<Snapshot> {
        match &self.durable {
            None => self.topics.store().snapshot(),
            Some(durable) => durable.snapshot(),
        }
    }

    /// Begins in a topic; `None`: it is not to be followed.
    fn follower(&self, snapshot: &Snapshot, topic: &Topic, start: Start) -> Result<Option<Follower>> {
        let Some(durable) = &self.durable else {
            return Follower::new(topic, start, self.options).map(Some);
        };
        // Where that is not kept any more, the first look at the topic says so, and the others go on.
        let position = durable.position_in(snapshot, topic)?;
        position
            .map(|position| Follower::at(topic, position, self.options))
            .transpose()
    }

    /// The next messages of some topic: those that are there, or, when there are none, what comes within `timeout`;
    /// `None`: nothing did. A topic that is deleted is left out from then on.
    ///
    /// # Errors
    /// As [`crate::Subscription::next_batch`]; [`TopicError::GroupDeleted`] when it is durable and was deleted. After
    /// [`crate::TopicError::Trimmed`] and [`crate::TopicError::TooSlow`] the topic named there stays where it was, and
    /// others go on; see [`PatternSubscription::seek`].
    pub fn next_batch(&mut self, timeout: Duration) -> Result<Option<Messages>> {
        let began = Instant::now();
        loop {
            if let Some(messages) = self.take_any(PatternSubscription::linger)? {
                return Ok(Some(messages));
            }
            let left = timeout.saturating_sub(began.elapsed());
            let tokens = self.listener.wait(left.min(TICK));
            self.note(&tokens);
            if self.queue.is_empty() && !self.registry_rang && left.is_zero() {
                return Ok(None);
            }
            if tokens.is_empty() {
                // Says so when the store was closed, or the durable subscription deleted.
                self.snapshot()?;
            }
        }
    }

    /// The batches one after the other. Each call of `next` waits for one.
    pub fn batches(&mut self) -> Batches<'_> {
        Batches::of(self)
    }

    /// The batches as a stream, for any asynchronous runtime.
    pub fn stream(&mut self) -> BatchStream<'_> {
        BatchStream::of(self)
    }

    /// The next messages of the first topic in the queue that has some. `prepare` is called before a topic is looked at.
    fn take_any(&mut self, prepare: impl Fn(&mut Self, u32) -> Result<()>) -> Result<Option<Messages>> {
        if self.registry_rang {
            self.look_for_topics(Start::Beginning)?;
            self.registry_rang = false;
        } else if self.durable.is_some() && !self.queue.is_empty() {
            // A durable subscription that was deleted delivers nothing more, also before the registry's ring arrives.
            self.snapshot()?;
        }
        while let Some(id) = self.queue.pop_front() {
            self.queued.remove(&id);
            prepare(self, id).inspect_err(|_| self.enqueue(id))?;
            if let Some(messages) = self.take(id)? {
                return Ok(Some(messages));
            }
        }
        Ok(None)
    }

    /// Notes which bells rang, before anything can fail: none rings twice without being armed.
    fn note(&mut self, tokens: &[u64]) {
        self.registry_rang |= tokens.contains(&REGISTRY_TOKEN);
        for token in tokens.iter().filter(|token| **token != REGISTRY_TOKEN) {
            self.enqueue(*token as u32);
        }
    }

    /// Waits for a batch of a topic to fill up, if that is wanted and there is something.
    fn linger(&mut self, id: u32) -> Result<()> {
        let lingers_since = Instant::now();
        while !self.options.linger.is_zero() {
            let Some(follower) = self.followers.get(&id) else { break };
            follower.topic.shared().sequence.bell().arm();
            let waiting = match follower.lag() {
                Err(error) if is_deleted(&error) => break,
                lag => lag?,
            };
            let left = self.options.linger.saturating_sub(lingers_since.elapsed());
            if waiting == 0 || waiting >= self.options.messages as u64 || left.is_zero() {
                break;
            }
            let tokens = self.listener.wait(left.min(TICK));
            self.note(&tokens);
        }
        Ok(())
    }

    /// What an iterator or stream delivers: it ends after an error, but for those that concern one topic alone.
    fn deliver(&mut self, taken: Result<Messages>) -> Option<Result<Messages>> {
        self.is_over = taken.as_ref().is_err_and(|error| !stays_behind(error));
        Some(taken)
    }

    /// The next messages of a topic, which goes to the end of the queue when there were any.
    fn take(&mut self, id: u32) -> Result<Option<Messages>> {
        let Some(follower) = self.followers.get_mut(&id) else {
            return Ok(None);
        };
        follower.topic.shared().sequence.bell().arm();
        match follower.take() {
            Ok(Some(messages)) => {
                self.enqueue(id);
                Ok(Some(messages))
            }
            Ok(None) => Ok(None),
            Err(error) if is_deleted(&error) => {
                self.forget(id);
                Ok(None)
            }
            Err(error) => {
                if !stays_behind(&error) {
                    // It may be over next time.
                    self.enqueue(id);
                }
                Err(error)
            }
        }
    }

    fn enqueue(&mut self, id: u32) {
        if self.queued.insert(id) {
            self.queue.push_back(id);
        }
    }

    /// Goes on from another place in one topic; `false`: it follows no topic of this name.
    ///
    /// # Errors
    /// As [`crate::Topic::subscribe`].
    pub fn seek(&mut self, topic: &str, start: Start) -> Result<bool> {
        let found = self
            .followers
            .iter_mut()
            .find(|(_, follower)| follower.topic.name() == topic);
        let Some((&id, follower)) = found else {
            return Ok(false);
        };
        follower.seek(start)?;
        self.enqueue(id);
        Ok(true)
    }
}

impl Drop for PatternSubscription {
    fn drop(&mut self) {
        self.topics.home().registry().bell().forget(&self.listener);
        let bells = self
            .followers
            .values()
            .map(|follower| follower.topic.shared().sequence.bell());
        bells.for_each(|bell| bell.forget(&self.listener));
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
            // Between the look and this call a commit may have rung.
            let tokens = self.listener.poll(context.waker());
            if tokens.is_empty() {
                return Poll::Pending;
            }
            self.note(&tokens);
        }
        Poll::Ready(None)
    }
}

/// Whether an error concerns one topic, which stays where it was, and no other.
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
        for round in 0..2 {
            for number in 0..100 {
                topics.create(&format!("reply.{number}"), TopicOptions::new()).unwrap();
            }
            subscription.look_for_topics(Start::Tail).unwrap();
            assert_eq!(subscription.topics(), 100);
            for number in 0..100 {
                topics.delete(&format!("reply.{number}")).unwrap();
            }
            topics.create("reply.last", TopicOptions::new()).unwrap();
            if round == 1 {
                // As if its entries were trimmed.
                subscription.seen = None;
            }
            subscription.look_for_topics(Start::Tail).unwrap();
            assert_eq!(subscription.topics(), 1, "round {round}");
            topics.delete("reply.last").unwrap();
        }
    }
}
