//! Notices that rows of a group changed: see [`super::hints`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use duramen_engine::{Bell, Listener, Store};

/// Listens to the bell of a group for all its members in this process.
#[derive(Debug, Default)]
pub(super) struct ChangeListener {
    listener: OnceLock<Arc<Listener>>,
    rings_again: AtomicBool,
}

impl ChangeListener {
    /// Starts listening, if it did not listen before.
    pub(super) fn begin(&self, store: &Store, bell: &Bell) {
        self.listener.get_or_init(|| {
            let listener = Listener::new();
            store.listen(bell, &listener, 0);
            listener
        });
    }

    /// Whether the bell rang since the last call, as far as it was armed.
    pub(super) fn is_rung(&self) -> bool {
        let rings_again = self.rings_again.swap(false, Ordering::Relaxed);
        let rang = self
            .listener
            .get()
            .is_none_or(|listener| !listener.wait(Duration::ZERO).is_empty());
        rang || rings_again
    }

    /// Makes the last ring count again, because it could not be handled.
    pub(super) fn ring_again(&self) {
        self.rings_again.store(true, Ordering::Relaxed);
    }

    /// Ends listening.
    pub(super) fn end(&mut self, bell: &Bell) {
        if let Some(listener) = self.listener.take() {
            bell.forget(&listener);
        }
    }
}
