//! Subscriptions as iterators and as streams. The program selects which: a type that is both would have two methods
//! with each of many names.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use duramen_engine::Result;
use futures_core::Stream;

use crate::messages::Messages;

/// A source of batches, blocking or not.
pub(crate) trait Source {
    /// Waits for the next batch; `None`: the source ended with an error.
    fn next_batch_or_end(&mut self) -> Option<Result<Messages>>;

    /// Returns the next batch. If there is none, wakes the task once there may be one.
    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Messages>>>;
}

/// An iterator over the batches of a subscription: [`crate::Subscription::batches`].
pub struct Batches<'a> {
    source: &'a mut dyn SourceOfThread,
}

/// The batches of a subscription as a stream, for any asynchronous runtime: [`crate::Subscription::stream`].
pub struct BatchStream<'a> {
    source: &'a mut dyn SourceOfThread,
}

/// A source that a task may move to another thread.
trait SourceOfThread: Source + Send {}

impl<S: Source + Send> SourceOfThread for S {}

impl<'a> Batches<'a> {
    pub(crate) fn of(source: &'a mut (impl Source + Send)) -> Batches<'a> {
        Batches { source }
    }
}

impl<'a> BatchStream<'a> {
    pub(crate) fn of(source: &'a mut (impl Source + Send)) -> BatchStream<'a> {
        BatchStream { source }
    }
}

impl fmt::Debug for Batches<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").finish_non_exhaustive()
    }
}

impl fmt::Debug for BatchStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchStream").finish_non_exhaustive()
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<Messages>;

    fn next(&mut self) -> Option<Result<Messages>> {
        self.source.next_batch_or_end()
    }
}

impl Stream for BatchStream<'_> {
    type Item = Result<Messages>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Messages>>> {
        self.get_mut().source.poll_batch(context)
    }
}
