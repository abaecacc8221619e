//! The dispatcher: any number of subscribers in one process, called back on a few threads.
//!
//! The simple version: a thread waits for topics that have new messages, reads them once, and calls every subscriber of the
//! topic with the same batch.
//!
//! Why it is hard: a subscriber may be slow, may never come back, may panic, or may subscribe and unsubscribe from within its
//! call; and none of the others shall notice. So a subscriber's callback is taken out of its place while it runs, no lock is
//! held meanwhile, and a thread that does not come back in time leaves the rest of its round to another one.
//!
//! - [`seats`]: the subscribers of one topic, and the round in which they are called;
//! - [`pool`]: threads, the queue of topics, and the watch over threads that do not come back.
//!
//! Cost: a batch is read once for all subscribers that stand at the same place; each call costs a lock that nobody else
//! holds, and a mark for the watch, but no look at a clock. A subscriber that has nothing to do costs its seat and its callback, and no time.

mod pool;
mod seats;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use duramen_engine::{Error, Result};

use crate::error::TopicError;
use crate::follower::SlowPolicy;
use crate::messages::Messages;
use crate::read::{Reading, Start};
use crate::topic::Topic;
use crate::topics::Topics;
use pool::Pool;

/// What a subscriber is called with: messages, or, in its last call, why there will be no more.
pub(crate) type Callback = Box<dyn FnMut(Result<&Messages, &Error>) + Send>;

/// How subscribers are called.
#[derive(Clone, Copy, Debug)]
pub struct DispatcherOptions {
    threads: usize,
    spare_threads: usize,
    stuck_after: Duration,
}

/// Threads that call subscribers where so many processors are. What they take, publishers do not get; and the longer a round
/// takes, the more messages each call of the next one brings, so fewer threads deliver as much for less.
fn threads_for(processors: usize) -> usize {
    (processors / 2).clamp(1, THREADS_MAX)
}

/// More of them only where a program asks for it: they all take their turns from one queue.
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

    /// Threads that call subscribers. Default: half as many as there are processors, at least one and at most two.
    pub fn threads(mut self, threads: usize) -> DispatcherOptions {
        self.threads = threads;
        self
    }

    /// Threads that may be stuck at one time and have another in their place. With more, what is left is fewer threads than
    /// were asked for. Default: 8.
    pub fn spare_threads(mut self, threads: usize) -> DispatcherOptions {
        self.spare_threads = threads;
        self
    }

    /// For how long a call may take before its thread is replaced. Default: 10 ms.
    pub fn stuck_after(mut self, time: Duration) -> DispatcherOptions {
        self.stuck_after = time;
        self
    }
}

/// Names a subscriber of a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscriberId {
    topic: u32,
    seat: u32,
    /// Seats are used again.
    holder: u32,
}

/// A call that has taken longer than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck {
    /// The topic.
    pub topic: String,
    /// Who was called.
    pub subscriber: SubscriberId,
    /// For how long, at least.
    pub at_least: Duration,
}

/// What a dispatcher has met so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatcherReport {
    /// Subscribers.
    pub subscribers: usize,
    /// Calls that take longer than they may just now.
    pub stuck: Vec<Stuck>,
    /// Threads that were replaced so far, because a call took longer than it might.
    pub replaced: u64,
    /// Subscribers that panicked, and were removed.
    pub panicked: u64,
}

/// Calls subscribers back on a few threads, for programs that have very many of them. A few that wait for themselves are
/// better off with [`crate::Subscription`].
///
/// Every subscriber is called with every message from its start on, in order, each once, and by one thread at a time. One that
/// panics is removed; one that does not come back holds up nobody else, as long as there are spare threads.
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

    /// Calls `callback` with every message of a topic from a place on. A call with an error is the last.
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

    /// The same, with a policy for when the subscriber is slow.
    ///
    /// # Errors
    /// As [`Topic::subscribe`]; [`TopicError::InvalidOptions`] for [`SlowPolicy::HoldBack`], which would let one of very many
    /// subscribers stop publishers, and for a topic of another store.
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

    /// Ends a subscriber; `false`: it has ended before. A call that goes on just now is the last.
    pub fn unsubscribe(&self, subscriber: SubscriberId) -> bool {
        self.pool.unsubscribe(subscriber)
    }

    /// What the dispatcher has met so far.
    pub fn report(&self) -> DispatcherReport {
        self.pool.report()
    }
}

impl Drop for Dispatcher {
    /// Waits for calls that go on; for those that are stuck a second, and then their threads end when they come back, and
    /// keep the store open until then.
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
        // The seat is made anew, and is not that of who left.
        assert!(!dispatcher.unsubscribe(early));
        assert!(dispatcher.unsubscribe(late));
    }
}
