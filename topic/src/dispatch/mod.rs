//! The dispatcher: any number of subscribers in one process, called back on a few threads.
//!
//! The simple version: a thread waits for topics that have new messages, reads them once, and calls every subscriber of
//! the topic with the same batch.
//!
//! Why it is hard: a subscriber may be slow, may never return, may panic, or may subscribe and unsubscribe from within
//! its call. None of this may affect other subscribers. So a thread takes a subscriber's callback out of its place
//! while the callback runs, and holds no lock meanwhile. When a callback does not return in time, another thread takes
//! over the rest of the round.
//!
//! - [`slots`]: the subscribers of one topic, and the round in which they are called;
//! - [`pool`]: threads, the queue of topics, and the watch over calls that do not return.
//!
//! Cost: a batch is read once for all subscribers at the same position. Each call costs an uncontended lock and a mark
//! for the watch, but no clock read. An idle subscriber costs its slot and its callback, and no time.

mod pool;
mod subscriber_slots;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use duramen_engine::{Error, Result};

use crate::error::TopicError;
use crate::follower::SlowPolicy;
use crate::handle::{Topic, Topics};
use crate::messages::Messages;
use crate::read::{Reading, Start};
use pool::Pool;

/// A subscriber's callback. It gets messages or, in its last call, the reason why no more follow.
pub(crate) type Callback = Box<dyn FnMut(Result<&Messages, &Error>) + Send>;

/// How a dispatcher calls subscribers.
#[derive(Clone, Copy, Debug)]
pub struct DispatcherOptions {
    threads: usize,
    spare_threads: usize,
    stuck_after: Duration,
}

/// Number of threads that call subscribers on a machine with this many processors. They take processor time from
/// publishers. A longer round brings more messages to each call of the next round, so fewer threads deliver as much at
/// a lower cost.
fn threads_for(processors: usize) -> usize {
    (processors / 2).clamp(1, THREADS_MAX)
}

/// A program must ask for more threads: all threads take their turns from one queue.
const THREADS_MAX: usize = 2;

impl Default for DispatcherOptions {
    fn default() -> DispatcherOptions {
        DispatcherOptions {
            threads: threads_for(std::thread::available_parallelism().map_or(1, usize::from)),
            spare_threads: 8,
            stuck_after: Duration::from_millis(10),
        }
    }
}

impl DispatcherOptions {
    /// A thread for every two processors, two at most; up to eight more while callbacks are stuck for 10 ms.
    pub fn new() -> DispatcherOptions {
        DispatcherOptions::default()
    }

    /// Threads that call subscribers. Default: half the number of processors, at least one and at most two.
    pub fn threads(mut self, threads: usize) -> DispatcherOptions {
        self.threads = threads;
        self
    }

    /// Maximum stuck threads that are replaced at one time. Each further stuck thread reduces the number of threads
    /// that remain. Default: 8.
    pub fn spare_threads(mut self, threads: usize) -> DispatcherOptions {
        self.spare_threads = threads;
        self
    }

    /// Maximum time of a call before its thread is replaced. Default: 10 ms.
    pub fn stuck_after(mut self, time: Duration) -> DispatcherOptions {
        self.stuck_after = time;
        self
    }
}

/// Identifies a subscriber of a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscriberId {
    topic: u32,
    slot: u32,
    /// Tells holders of a reused slot apart.
    holder: u32,
}

/// A call that takes longer than allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck {
    /// Name of the topic.
    pub topic: String,
    /// The called subscriber.
    pub subscriber: SubscriberId,
    /// Minimum time that the call has taken so far.
    pub at_least: Duration,
}

/// Counts of a dispatcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatcherReport {
    /// Number of subscribers.
    pub subscribers: usize,
    /// Current calls that take longer than allowed.
    pub stuck: Vec<Stuck>,
    /// Threads replaced so far because a call took longer than allowed.
    pub replaced: u64,
    /// Subscribers that panicked, and were removed.
    pub panicked: u64,
}

/// Calls subscribers back on a few threads, for programs with very many subscribers. A program with a few subscribers
/// that wait by themselves should use [`crate::Subscription`].
///
/// Each subscriber is called with every message from its start on, in order, each message once, and by one thread at a
/// time. A subscriber that panics is removed. A subscriber that does not return delays no other subscriber while there
/// are spare threads.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{Dispatcher, Start, TopicOptions, Topics};
/// use std::sync::mpsc;
///
/// let topics = Topics::open(&store)?;
/// let orders = topics.create("orders", TopicOptions::new())?;
/// let dispatcher = Dispatcher::start(&topics, Default::default())?;
/// let (sender, receiver) = mpsc::channel();
/// dispatcher.subscribe(&orders, Start::Tail, move |messages| {
///     if let Ok(messages) = messages {
///         messages.iter().for_each(|message| sender.send(message.offset()).unwrap());
///     }
/// })?;
/// orders.publish(b"12 apples")?;
/// assert_eq!(receiver.recv().unwrap(), 0);
/// # Ok::<(), duramen_engine::Error>(())
/// ```
pub struct Dispatcher {
    topics: Topics,
    pool: Arc<Pool>,
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`TopicError::InvalidOptions`], [`duramen_engine::Reason::Closed`], and [`TopicError::NoThread`].
    pub fn start(topics: &Topics, options: DispatcherOptions) -> Result<Dispatcher> {
        if options.threads == 0 || options.stuck_after.is_zero() {
            let cause = "a dispatcher needs a thread, and its subscribers some time; allow at least one of each".into();
            return Err(TopicError::InvalidOptions { cause }.into());
        }
        topics.store().snapshot()?;
        let pool = Pool::start(options.threads, options.spare_threads, options.stuck_after)?;
        Ok(Dispatcher {
            topics: topics.clone(),
            pool,
        })
    }

    /// Calls `callback` with every message of a topic from `start` on. A call with an error is the last call.
    ///
    /// # Errors
    /// As [`Topic::subscribe`].
    pub fn subscribe(
        &self,
        topic: &Topic,
        start: Start,
        callback: impl FnMut(Result<&Messages, &Error>) + Send + 'static,
    ) -> Result<SubscriberId> {
        self.subscribe_with(topic, start, SlowPolicy::ReadOn, callback)
    }

    /// Calls `callback` with every message of a topic from `start` on. `policy` applies when the subscriber is slow.
    ///
    /// # Errors
    /// As [`Topic::subscribe`]. [`TopicError::InvalidOptions`] for a topic of another store, and for
    /// [`SlowPolicy::HoldBack`], which would let a single subscriber of very many stop publishers.
    pub fn subscribe_with(
        &self,
        topic: &Topic,
        start: Start,
        policy: SlowPolicy,
        callback: impl FnMut(Result<&Messages, &Error>) + Send + 'static,
    ) -> Result<SubscriberId> {
        crate::follower::SubscribeOptions::new().slow(policy).check()?;
        let refused = |cause: &str| Err(TopicError::InvalidOptions { cause: cause.into() }.into());
        if matches!(policy, SlowPolicy::HoldBack { .. }) {
            return refused("a subscriber of a dispatcher cannot hold publishers back; use a subscription");
        }
        if !topic.home().store.is(self.topics.store()) {
            return refused("the topic belongs to another store than the dispatcher");
        }
        let position = {
            let snapshot = topic.snapshot()?;
            Reading::new(topic, &snapshot).resolve(start)?
        };
        Ok(self.pool.subscribe(topic, position, policy, Box::new(callback)))
    }

    /// Ends a subscriber. `false`: it had ended before. A call that is running is the last call.
    pub fn unsubscribe(&self, subscriber: SubscriberId) -> bool {
        self.pool.unsubscribe(subscriber)
    }

    /// Returns the counts of the dispatcher.
    pub fn report(&self) -> DispatcherReport {
        self.pool.report()
    }
}

impl Drop for Dispatcher {
    /// Waits for running calls, and a second for stuck calls. The threads of stuck calls end when the calls return.
    /// They keep the store open until then.
    fn drop(&mut self) {
        self.pool.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use duramen_engine::{Durability, Options};
    use duramen_io::SimDisk;

    use super::*;
    use crate::record::TopicOptions;
    use crate::topics::TopicsOptions;

    #[test]
    fn half_of_the_processors_are_left_to_publishers() {
        assert_eq!([1, 2, 3, 4, 8, 64].map(threads_for), [1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn topics_that_are_gone_and_those_without_subscribers_are_forgotten() {
        let disk = SimDisk::new(1);
        let options = Options::new().durability(Durability::Written);
        let store = options.open_on(disk.platform()).unwrap();
        let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
        let [deleted, left, kept] =
            ["deleted", "left", "kept"].map(|name| topics.create(name, TopicOptions::new()).unwrap());
        let dispatcher = Dispatcher::start(&topics, DispatcherOptions::new()).unwrap();
        dispatcher.subscribe(&deleted, Start::Tail, |_| ()).unwrap();
        dispatcher.subscribe(&kept, Start::Tail, |_| ()).unwrap();
        let early = dispatcher.subscribe(&left, Start::Tail, |_| ()).unwrap();
        assert!(dispatcher.unsubscribe(early));
        topics.delete("deleted").unwrap();
        let began = Instant::now();
        while dispatcher.pool.topics() > 1 {
            left.publish(b"one more round").unwrap();
            assert!(began.elapsed() < Duration::from_secs(60), "they are remembered");
            std::thread::yield_now();
        }
        let late = dispatcher.subscribe(&left, Start::Tail, |_| ()).unwrap();
        // The slot was created again, and is not the slot of the earlier subscriber.
        assert!(!dispatcher.unsubscribe(early));
        assert!(dispatcher.unsubscribe(late));
    }
}
