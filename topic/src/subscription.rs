//! Subscriptions of this process alone: they wait for messages of one topic, and end with the program.
//!
//! A subscription holds no messages but those of the last batch, and costs a publisher nothing while it is busy: a commit
//! reaches it only after it armed the topic's bell, which it does before it looks for messages a last time and sleeps.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result};

use crate::batches::{BatchStream, Batches, Source};
use crate::follower::{Follower, SubscribeOptions};
use crate::messages::{Messages, Received};
use crate::read::Start;
use crate::topic::Topic;

/// How long a wait lasts at most before the store is looked at again: it may have been closed.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// What a subscription's only bell says.
const TOKEN: u64 = 0;

/// A subscription to one topic, from some place on: every message, in order, each once.
///
/// [`Subscription::batches`] makes an iterator of it, and [`Subscription::stream`] a stream for asynchronous programs; neither
/// ends before an error does it.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{Start, TopicOptions, Topics};
/// use std::time::Duration;
///
/// let orders = Topics::open(&store)?.create("orders", TopicOptions::new())?;
/// let mut subscription = orders.subscribe(Start::Tail)?;
/// orders.publish(b"12 apples")?;
/// let message = subscription.next_message(Duration::from_secs(1))?.unwrap();
/// assert_eq!((message.offset(), message.payload()), (0, &b"12 apples"[..]));
/// assert!(subscription.next_message(Duration::ZERO)?.is_none());
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Debug)]
pub struct Subscription {
    follower: Follower,
    options: SubscribeOptions,
    listener: Arc<Listener>,
    /// What `next_message` has yet to hand out.
    rest: Option<(Messages, usize)>,
    is_over: bool,
}

impl Subscription {
    pub(crate) fn new(topic: &Topic, start: Start, options: SubscribeOptions) -> Result<Subscription> {
        let follower = Follower::new(topic, start, options)?;
        let listener = Listener::new();
        topic
            .home()
            .store
            .listen(topic.shared().sequence.bell(), &listener, TOKEN);
        let subscription = Subscription {
            follower,
            options,
            listener,
            rest: None,
            is_over: false,
        };
        Ok(subscription)
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.follower.topic
    }

    /// The offset of the next message that it delivers.
    pub fn position(&self) -> u64 {
        match &self.rest {
            Some((messages, place)) => messages
                .get(*place)
                .map_or(self.follower.position, |next| next.offset()),
            None => self.follower.position,
        }
    }

    /// Goes on from another place.
    ///
    /// # Errors
    /// As [`Topic::subscribe`].
    pub fn seek(&mut self, start: Start) -> Result<()> {
        self.rest = None;
        self.is_over = false;
        self.follower.seek(start)
    }

    /// Messages that are there and were not delivered.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`].
    pub fn lag(&self) -> Result<u64> {
        let waiting = self.rest.as_ref().map_or(0, |(messages, place)| messages.len() - place);
        Ok(self.follower.lag()? + waiting as u64)
    }

    /// The next messages: those that are there, or, when there are none, what comes within `timeout`; `None`: nothing did.
    ///
    /// # Errors
    /// [`crate::TopicError::Trimmed`], [`crate::TopicError::TooSlow`], [`duramen_engine::Reason::TopicDeleted`],
    /// [`duramen_engine::Reason::Closed`], [`duramen_engine::Reason::Damaged`]. The position stays as it was.
    pub fn next_batch(&mut self, timeout: Duration) -> Result<Option<Messages>> {
        if let Some((messages, place)) = self.rest.take().filter(|(messages, place)| *place < messages.len()) {
            return Ok(Some(messages.part(place..messages.len())));
        }
        let began = Instant::now();
        loop {
            if let Some(messages) = self.take_or_arm(began)? {
                return Ok(Some(messages));
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.listener.wait(left.min(TICK));
        }
    }

    /// Looks for messages, and for the last time after the bell was armed.
    fn take_or_arm(&mut self, began: Instant) -> Result<Option<Messages>> {
        self.linger(began)?;
        if let Some(messages) = self.follower.take()? {
            return Ok(Some(messages));
        }
        self.listener.wait(Duration::ZERO);
        self.topic().shared().sequence.bell().arm();
        self.follower.take()
    }

    /// The batches one after the other. Each call of `next` waits for one; after an error there are no more.
    pub fn batches(&mut self) -> Batches<'_> {
        Batches::of(self)
    }

    /// The batches as a stream, for any asynchronous runtime. After an error there are no more.
    pub fn stream(&mut self) -> BatchStream<'_> {
        BatchStream::of(self)
    }

    /// Waits for a batch to fill up, if that is wanted and there is something.
    fn linger(&mut self, began: Instant) -> Result<()> {
        if self.options.linger.is_zero() {
            return Ok(());
        }
        let lingers_since = Instant::now().max(began);
        loop {
            self.topic().shared().sequence.bell().arm();
            let waiting = self.follower.lag()?;
            let left = self.options.linger.saturating_sub(lingers_since.elapsed());
            if waiting == 0 || waiting >= self.options.messages as u64 || left.is_zero() {
                return Ok(());
            }
            self.listener.wait(left.min(TICK));
        }
    }

    /// The next message, on the terms of [`Subscription::next_batch`].
    ///
    /// # Errors
    /// As [`Subscription::next_batch`].
    pub fn next_message(&mut self, timeout: Duration) -> Result<Option<Received<'_>>> {
        let is_used_up = |(messages, place): &(Messages, usize)| *place == messages.len();
        if self.rest.as_ref().is_none_or(is_used_up) {
            self.rest = None;
            self.rest = self.next_batch(timeout)?.map(|messages| (messages, 0));
        }
        Ok(self.rest.as_mut().and_then(|(messages, place)| {
            *place += 1;
            messages.get(*place - 1)
        }))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.topic().shared().sequence.bell().forget(&self.listener);
    }
}

impl Source for Subscription {
    fn next_batch_or_end(&mut self) -> Option<Result<Messages>> {
        while !self.is_over {
            match self.next_batch(TICK) {
                Ok(None) => {}
                Ok(Some(messages)) => return Some(Ok(messages)),
                Err(error) => {
                    self.is_over = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Messages>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let rest = self
            .rest
            .take()
            .map(|(messages, place)| messages.part(place..messages.len()));
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            return Poll::Ready(Some(Ok(rest)));
        }
        loop {
            self.listener.wait(Duration::ZERO);
            self.topic().shared().sequence.bell().arm();
            match self.follower.take() {
                Ok(Some(messages)) => return Poll::Ready(Some(Ok(messages))),
                Err(error) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(error)));
                }
                // Between the look and this call a commit may have rung.
                Ok(None) if self.listener.poll(context.waker()).is_empty() => return Poll::Pending,
                Ok(None) => {}
            }
        }
    }
}
