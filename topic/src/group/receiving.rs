//! Receiving without a thread that waits: for tasks of any asynchronous runtime.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use duramen_engine::{Listener, Result};
use futures_core::Stream;

use super::claim::{Member, Received};
use super::deliveries::Deliveries;
use crate::alarm::Timed;

/// Wakes a task when nothing else does: at the end of a lease, for example, which no commit announces.
#[derive(Debug)]
pub(super) struct WakeUp {
    listener: Arc<Listener>,
    time: Instant,
    is_over: AtomicBool,
}

impl Timed for WakeUp {
    fn ring(&self) -> Option<Instant> {
        self.is_over.store(true, Ordering::Release);
        self.listener.tell(0);
        None
    }
}

/// What a member receives, as a stream: [`Member::stream`].
#[derive(Debug)]
pub struct DeliveryStream<'a> {
    member: &'a mut Member,
    messages: usize,
    is_over: bool,
}

impl Member {
    /// A stream of messages, up to so many in each item, on the terms of [`Member::receive`]. It ends after an error. Works with
    /// any asynchronous runtime: no thread waits, but a poll makes a short commit on the thread that polls.
    pub fn stream(&mut self, messages: usize) -> DeliveryStream<'_> {
        DeliveryStream {
            member: self,
            messages,
            is_over: false,
        }
    }

    /// Up to so many messages, as soon as there are any. Dropping the future before it is ready loses nothing.
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

    fn poll_receive(&mut self, messages: usize, context: &mut Context<'_>) -> Poll<Result<Deliveries>> {
        loop {
            let wait = match self.receive_now(messages) {
                Err(error) => return Poll::Ready(Err(error)),
                Ok(Received::Got(deliveries)) => return Poll::Ready(Ok(deliveries)),
                Ok(Received::Nothing(wait)) => wait,
            };
            if let Err(error) = self.wake_by(Instant::now() + wait) {
                return Poll::Ready(Err(error));
            }
            // Between the look and this call a commit may have rung.
            if self.listener.poll(context.waker()).is_empty() {
                return Poll::Pending;
            }
        }
    }

    /// Wakes the task at a time, or before.
    fn wake_by(&mut self, time: Instant) -> Result<()> {
        let is_set = |wake_up: &Arc<WakeUp>| wake_up.time <= time && !wake_up.is_over.load(Ordering::Acquire);
        if self.wake_up.as_ref().is_some_and(is_set) {
            return Ok(());
        }
        let wake_up = Arc::new(WakeUp {
            listener: self.listener.clone(),
            time,
            is_over: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&wake_up);
        self.wake_up = Some(wake_up);
        self.group().topic.home().alarm.at(time, weak)
    }
}

impl Stream for DeliveryStream<'_> {
    type Item = Result<Deliveries>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Deliveries>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let messages = self.messages;
        let received = std::task::ready!(self.member.poll_receive(messages, context));
        self.is_over = received.is_err();
        Poll::Ready(Some(received))
    }
}
