//! Counts of calls. Each serving thread has its own, so that threads do not write to a cache line of each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tonic::Code;

use super::call_log::CallLog;
use super::codes::CODES;
use super::histogram::{Histogram, Sums};
use super::methods::Methods;
use crate::security::Address;

/// The calls of one serving thread.
#[derive(Debug)]
pub(crate) struct Calls {
    methods: Arc<Methods>,
    counts: Vec<Counts>,
    log: Arc<CallLog>,
}

#[derive(Debug, Default)]
struct Counts {
    by_code: [AtomicU64; CODES.len()],
    latency: Histogram,
}

impl Calls {
    pub(crate) fn new(methods: &Arc<Methods>, log: &Arc<CallLog>) -> Calls {
        Calls {
            methods: methods.clone(),
            counts: methods.iter().map(|_| Counts::default()).collect(),
            log: log.clone(),
        }
    }

    /// The methods that are counted, by number.
    pub(crate) fn methods(&self) -> &Methods {
        &self.methods
    }

    /// The call has its response headers.
    pub(crate) fn answered(&self, method: usize, latency: Duration) {
        self.counts[method].latency.record(latency);
    }

    /// The call has ended. `latency` is the time until its response headers.
    pub(crate) fn ended(&self, method: usize, latency: Duration, code: Code, peer: Address) {
        self.counts[method].by_code[code as usize].fetch_add(1, Ordering::Relaxed);
        self.log.ended(self.methods.get(method), latency, code, peer);
    }
}

/// The calls of one method on all threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallSums {
    /// Calls that have ended, by code.
    pub(crate) by_code: [u64; CODES.len()],
    /// Times until the response headers.
    pub(crate) latency: Sums,
}

impl CallSums {
    /// The calls of a method.
    pub(crate) fn of(threads: &[Arc<Calls>], method: usize) -> CallSums {
        let mut sums = CallSums::default();
        for calls in threads {
            let counts = &calls.counts[method];
            for (sum, count) in sums.by_code.iter_mut().zip(&counts.by_code) {
                *sum += count.load(Ordering::Relaxed);
            }
            sums.latency.add(&counts.latency);
        }
        sums
    }
}
