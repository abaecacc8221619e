//! A member of a group, for blocking threads and for tasks.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result};

use super::Group;
use super::deliveries::Deliveries;
use super::leasing::TurnOutcome;
use super::receiver::Receiver;
use super::receiving::{DeliveryStream, Receives, TaskTimer};
use crate::subscription::TICK;

/// The token that the listener of a member of one group gets for every event.
const TOKEN: u64 = 0;

/// A member of a group. It waits for messages, and settles them.
///
/// When a member and all its deliveries are dropped, its unsettled messages go back to the group at once. The attempt
/// does not count. When its process dies they go back as well, and the attempt counts.
#[derive(Debug)]
pub struct Member {
    receiver: Receiver,
    listener: Arc<Listener>,
    /// Wakes a waiting task.
    timer: TaskTimer,
}

/// Result of one check of a member.
enum Received {
    Got(Deliveries),
    /// There may be messages after this time, unless the listener reports some before.
    Nothing(Duration),
}

impl Member {
    pub(super) fn new(group: &Group, name: &str) -> Member {
        let listener = Listener::new();
        Member {
            receiver: Receiver::new(group, &name.into(), &listener, TOKEN),
            listener,
            timer: TaskTimer::default(),
        }
    }

    /// The group.
    pub fn group(&self) -> &Group {
        self.receiver.group()
    }

    /// Name of the member.
    pub fn name(&self) -> &str {
        self.receiver.name()
    }

    /// Returns up to `messages` messages, leased to this member. If there are none, waits up to `timeout`. `None`:
    /// nothing arrived, or the group is paused, or the maximum number of messages is in flight.
    ///
    /// All messages of one call are new, or all were delivered before. When there are both, they alternate, so messages
    /// that always fail do not block new messages.
    ///
    /// # Errors
    /// [`crate::TopicError::GroupDeleted`], [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn receive(&mut self, messages: usize, timeout: Duration) -> Result<Option<Deliveries>> {
        let began = Instant::now();
        loop {
            let wait = match self.receive_now(messages)? {
                Received::Got(deliveries) => return Ok(Some(deliveries)),
                Received::Nothing(wait) => wait,
            };
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.listener.wait(left.min(wait));
        }
    }

    /// Checks once. Anything committed after the check wakes the listener.
    fn receive_now(&self, messages: usize) -> Result<Received> {
        self.listener.wait(Duration::ZERO);
        Ok(match self.receiver.look(messages)? {
            TurnOutcome::Got(deliveries) => Received::Got(deliveries),
            TurnOutcome::Nothing(next) => Received::Nothing(self.group().until(next).min(TICK)),
        })
    }

    /// A stream of messages, up to `messages` in each item, as [`Member::receive`] returns them. It ends after an
    /// error. Works with any asynchronous runtime: no thread waits, but a poll makes a short commit on the polling
    /// thread.
    pub fn stream(&mut self, messages: usize) -> DeliveryStream<'_> {
        DeliveryStream::of(self, messages)
    }

    /// Returns up to `messages` messages, as soon as there are any. Dropping the future before it is ready loses
    /// nothing.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let store = duramen_engine::Store::open(directory.path())?;
    /// # use duramen_topic::{GroupOptions, Start, TopicOptions, Topics};
    /// # let orders = Topics::open(&store)?.create("orders", TopicOptions::new())?;
    /// # let group = orders.ensure_group("packers", Start::Beginning, GroupOptions::new())?;
    /// # orders.publish(b"12 apples")?;
    /// # fn block_on<T>(future: impl std::future::Future<Output = T>) -> T {
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     match std::pin::pin!(future).poll(&mut context) {
    /// #         std::task::Poll::Ready(value) => value,
    /// #         std::task::Poll::Pending => unreachable!("there is a message"),
    /// #     }
    /// # }
    /// let mut member = group.member("worker 1");
    /// # block_on::<duramen_engine::Result<()>>(async {
    /// let deliveries = member.receive_async(10).await?;
    /// deliveries.acknowledge()?;
    /// # Ok(())
    /// # })?;
    /// # Ok::<(), duramen_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Member::receive`].
    pub async fn receive_async(&mut self, messages: usize) -> Result<Deliveries> {
        std::future::poll_fn(|context| self.poll_receive(messages, context)).await
    }
}

impl Receives for Member {
    fn poll_receive(&mut self, messages: usize, context: &mut Context<'_>) -> Poll<Result<Deliveries>> {
        loop {
            let wait = match self.receive_now(messages) {
                Err(error) => return Poll::Ready(Err(error)),
                Ok(Received::Got(deliveries)) => return Poll::Ready(Ok(deliveries)),
                Ok(Received::Nothing(wait)) => wait,
            };
            let home = self.receiver.group().topic.home();
            if let Err(error) = self.timer.ring_by(home, &self.listener, TOKEN, wait) {
                return Poll::Ready(Err(error));
            }
            // A commit may have rung the bell between the check and this call.
            if self.listener.poll(context.waker()).is_empty() {
                return Poll::Pending;
            }
        }
    }
}
