//! Staying awake for a moment after something arrived.
//!
//! A thread that sleeps takes tens of microseconds to wake, more than most requests take. With the setting `spin_us` a serving thread
//! goes on looking at its connections for so long after the last bytes came. A thread that receives nothing sleeps.
//!
//! This is a task that gives way again and again: then the runtime looks for events without waiting for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Keeps the thread of a runtime awake.
#[derive(Debug, Default)]
pub(crate) struct Spinner {
    time: Duration,
    has_received: AtomicBool,
    is_awake: AtomicBool,
    wake: Notify,
}

impl Spinner {
    /// With no time it does nothing.
    pub(crate) fn new(time: Duration) -> Spinner {
        Spinner {
            time,
            ..Spinner::default()
        }
    }

    /// Something arrived. Called in the thread of the runtime.
    pub(crate) fn received(&self) {
        if self.time.is_zero() {
            return;
        }
        self.has_received.store(true, Ordering::Relaxed);
        if !self.is_awake.swap(true, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// The task of the runtime.
    pub(crate) async fn run(&self) {
        if self.time.is_zero() {
            return;
        }
        loop {
            self.wake.notified().await;
            let mut last = Instant::now();
            while last.elapsed() < self.time {
                tokio::task::yield_now().await;
                if self.has_received.swap(false, Ordering::Relaxed) {
                    last = Instant::now();
                }
            }
            self.is_awake.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// With a time that never passes, the thread is awake once something arrived. After a short time it sleeps, until more arrives.
    #[tokio::test]
    async fn it_is_awake_after_something_arrived_and_sleeps_afterwards() {
        let is_awake = |spinner: &Spinner| spinner.is_awake.load(Ordering::Relaxed);
        let always = Arc::new(Spinner::new(Duration::MAX));
        let task = tokio::spawn({
            let spinner = always.clone();
            async move { spinner.run().await }
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!is_awake(&always));
        always.received();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(is_awake(&always) && !always.has_received.load(Ordering::Relaxed));
        task.abort();

        let short = Arc::new(Spinner::new(Duration::from_micros(50)));
        tokio::spawn({
            let spinner = short.clone();
            async move { spinner.run().await }
        });
        for _ in 0..3 {
            short.received();
            assert!(is_awake(&short));
            while is_awake(&short) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    #[tokio::test]
    async fn without_a_time_there_is_no_task() {
        let none = Spinner::new(Duration::ZERO);
        none.received();
        none.run().await;
        assert!(!none.is_awake.load(Ordering::Relaxed));
    }
}
