//! Closing a store without waiting for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::api::store::Store;
use crate::error::Result;

/// A store that is being closed; see [`Store::close_async`].
#[must_use = "the store is being closed, but only the future tells when that is done, and whether it went well"]
pub struct CloseFuture(Arc<Mutex<Progress>>);

#[derive(Default)]
struct Progress {
    closed: Option<Result<()>>,
    waker: Option<Waker>,
}

impl fmt::Debug for CloseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloseFuture").finish_non_exhaustive()
    }
}

impl CloseFuture {
    pub(crate) fn new(store: Store) -> CloseFuture {
        let progress = Arc::new(Mutex::new(Progress::default()));
        let (at_the_end, kept) = (progress.clone(), store.clone());
        let close = move || finish(&at_the_end, store.close());
        // Without a thread it closes here: late is better than never.
        if std::thread::Builder::new()
            .name("duramen-close".into())
            .spawn(close)
            .is_err()
        {
            finish(&progress, kept.close());
        }
        CloseFuture(progress)
    }
}

fn finish(progress: &Mutex<Progress>, closed: Result<()>) {
    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
    progress.closed = Some(closed);
    let waker = progress.waker.take();
    drop(progress);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Future for CloseFuture {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match progress.closed.take() {
            Some(closed) => Poll::Ready(closed),
            None => {
                progress.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
