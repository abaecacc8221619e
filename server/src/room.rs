//! How many connections there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use crate::connection::Permit;
use crate::measure::LogLimit;

/// Room for connections.
#[derive(Debug)]
pub(crate) struct Room {
    permits: Arc<Semaphore>,
    most: usize,
    refused: AtomicU64,
    log: LogLimit,
}

impl Room {
    pub(crate) fn new(most: usize) -> Room {
        Room {
            permits: Arc::new(Semaphore::new(most)),
            most,
            refused: AtomicU64::new(0),
            log: LogLimit::default(),
        }
    }

    /// Room for one more connection, until the permit is dropped.
    pub(crate) fn take(&self) -> Option<Permit> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = self.log.admit() {
            let max_connections = self.most;
            tracing::warn!(
                max_connections,
                left_out,
                "connection refused: there are max_connections already"
            );
        }
        None
    }

    /// Connections at present.
    pub(crate) fn taken(&self) -> usize {
        self.most - self.permits.available_permits()
    }

    /// The most connections at a time.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Connections that were closed at once because there was no room.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
