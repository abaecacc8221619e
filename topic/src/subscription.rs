//! Subscriptions of a single process: they wait for messages of one topic, and end with the program.
//!
//! A subscription holds only the messages of the last batch, and costs a publisher nothing while it is busy. A commit
//! notifies it only after it armed the topic's bell. It arms the bell before it checks for messages a last time and
//! sleeps.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result};

use crate::batches::{BatchStream, Batches, Source};
use crate::follower::{Follower, SubscribeOptions};
use crate::handle::Topic;
use crate::messages::{Messages, Received};
use crate::read::Start;

/// Maximum wait before the store is checked again: it may have been closed.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The token of a subscription's only bell.
const TOKEN: u64 = 0;

/// A subscription to one topic, from a position on: every message, in order, each once.
///
/// [`Subscription::batches`] makes an iterator of it, and [`Subscription::stream`] a stream for asynchronous programs.
/// They end only after an error.
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
    /// Messages that `next_message` has yet to return.
    rest: Option<(Messages, usize)>,
    is_over: bool,
}

impl Topic {
    /// Creates a subscription that belongs to this process and ends with it.
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`duramen_engine::Reason::TopicDeleted`].
    pub fn subscribe(&self, start: Start) -> Result<Subscription> {
        self.subscribe_with(start, SubscribeOptions::new())
    }

    /// Creates a subscription with options; see [`Topic::subscribe`].
    ///
    /// # Errors
    /// As [`Topic::subscribe`], [`TopicError::InvalidOptions`].
    pub fn subscribe_with(&self, start: Start, options: SubscribeOptions) -> Result<Subscription> {
        Subscription::new(self, start, options)
    }
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

    /// Continues from another position.
    ///
    /// # Errors
    /// As [`Topic::subscribe`].
    pub fn seek(&mut self, start: Start) -> Result<()> {
        self.rest = None;
        self.is_over = false;
        self.follower.seek(start)
    }

    /// Number of published messages that were not delivered.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`].
    pub fn lag(&self) -> Result<u64> {
        let waiting = self.rest.as_ref().map_or(0, |(messages, place)| messages.len() - place);
        Ok(self.follower.lag()? + waiting as u64)
    }

    /// Returns the next messages. If there are none, waits up to `timeout`; `None`: nothing arrived.
    ///
    /// # Errors
    /// [`crate::TopicError::Trimmed`], [`crate::TopicError::TooSlow`], [`duramen_engine::Reason::TopicDeleted`],
    /// [`duramen_engine::Reason::Closed`], [`duramen_engine::Reason::Damaged`]. The position does not change.
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

    /// Checks for messages, and once more after it armed the bell.
    fn take_or_arm(&mut self, began: Instant) -> Result<Option<Messages>> {
        self.linger(began)?;
        if let Some(messages) = self.follower.take()? {
            return Ok(Some(messages));
        }
        self.listener.wait(Duration::ZERO);
        self.topic().shared().sequence.bell().arm();
        self.follower.take()
    }

    /// Iterates over batches. Each call of `next` waits for a batch. An error is the last item.
    pub fn batches(&mut self) -> Batches<'_> {
        Batches::of(self)
    }

    /// The batches as a stream, for any asynchronous runtime. An error is the last item.
    pub fn stream(&mut self) -> BatchStream<'_> {
        BatchStream::of(self)
    }

    /// Waits for a batch to fill up, if the options ask for it and there is a message.
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

    /// Returns the next message; waits as [`Subscription::next_batch`] does.
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
                // A commit may have rung the bell between the check and this call.
                Ok(None) if self.listener.poll(context.waker()).is_empty() => return Poll::Pending,
                Ok(None) => {}
            }
        }
    }
}
