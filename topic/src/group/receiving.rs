//! Receiving without a blocked thread: for tasks of any asynchronous runtime.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result};
use futures_core::Stream;

use super::deliveries::Deliveries;
use crate::home::Home;
use crate::timer::Timed;

/// A member that can be polled.
pub(super) trait Receives: fmt::Debug + Send {
    /// Returns up to `messages` messages, or wakes the task when there may be some.
    fn poll_receive(&mut self, messages: usize, context: &mut Context<'_>) -> Poll<Result<Deliveries>>;
}

/// Wakes a task when nothing else does: for example at the end of a lease, which no commit announces.
#[derive(Debug, Default)]
pub(super) struct TaskTimer(Option<Arc<WakeUp>>);

#[derive(Debug)]
struct WakeUp {
    listener: Arc<Listener>,
    token: u64,
    time: Instant,
    is_over: AtomicBool,
}

impl Timed for WakeUp {
    fn ring(&self) -> Option<Instant> {
        self.is_over.store(true, Ordering::Release);
        self.listener.tell(self.token);
        None
    }
}

impl TaskTimer {
    /// Gives the listener a token after `wait`, or earlier.
    pub(super) fn ring_by(&mut self, home: &Home, listener: &Arc<Listener>, token: u64, wait: Duration) -> Result<()> {
        let time = Instant::now() + wait;
        let is_set = |wake_up: &Arc<WakeUp>| wake_up.time <= time && !wake_up.is_over.load(Ordering::Acquire);
        if self.0.as_ref().is_some_and(is_set) {
            return Ok(());
        }
        let wake_up = Arc::new(WakeUp {
            listener: listener.clone(),
            token,
            time,
            is_over: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&wake_up);
        self.0 = Some(wake_up);
        home.timer.at(time, weak)
    }
}

/// The messages that a member receives, as a stream: [`crate::Member::stream`], [`crate::PatternMember::stream`].
#[derive(Debug)]
pub struct DeliveryStream<'a> {
    member: &'a mut dyn Receives,
    messages: usize,
    is_over: bool,
}

impl<'a> DeliveryStream<'a> {
    pub(super) fn of(member: &'a mut dyn Receives, messages: usize) -> DeliveryStream<'a> {
        DeliveryStream {
            member,
            messages,
            is_over: false,
        }
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
