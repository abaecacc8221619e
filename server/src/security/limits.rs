//! Limits of principals: how many calls at a time, and how many bytes a second.
//!
//! The layer of `limit_layer` finds the limits in the token of a request. A call over the number of calls is refused. Bytes are
//! never refused: the server reads and writes them later, and the flow control of HTTP/2 holds the client up. All connections
//! and threads share the counts of a principal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::error::with_retry;

/// How soon a client tries again that has too many calls.
const RETRY: Duration = Duration::from_millis(100);
/// A principal may use the bytes of this time at once, after it was quiet.
const BURST: Duration = Duration::from_secs(1);
/// Principals whose counts are kept. Beyond that, those without a call are forgotten.
const KEPT_MAX: usize = 1_024;

/// Services that every caller may use: health, what the server speaks, and that which makes callers known.
const OPEN: [&str; 3] = ["/grpc.health.v1.Health/", "/grpc.reflection.", "/etcdserverpb.Auth/"];

/// The largest request of these services: each call of a connection may hold that much. The requests have names and a token.
pub(crate) const OPEN_MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Whether every caller may use the service of a path.
pub(crate) fn is_open(path: &str) -> bool {
    OPEN.iter().any(|open| path.starts_with(open))
}

/// What a principal may use; 0: as much as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrincipalLimits {
    /// Calls at a time. A stream is a call as long as it is open.
    pub(crate) calls: u32,
    /// Bytes of requests and responses in a second.
    pub(crate) bytes_per_second: u64,
}

/// What the principals of a server use now.
#[derive(Default)]
pub(crate) struct Usages {
    of: Mutex<HashMap<String, Arc<Usage>>>,
}

/// What a principal uses.
struct Usage {
    counts: Mutex<Counts>,
}

struct Counts {
    calls: u32,
    /// When all bytes so far have had their time.
    paid: Instant,
}

impl Usages {
    fn of(&self, principal: &str) -> Arc<Usage> {
        let mut known = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(usage) = known.get(principal) {
            return usage.clone();
        }
        if known.len() >= KEPT_MAX {
            known.retain(|_, usage| Arc::strong_count(usage) > 1 || usage.locked().paid > Instant::now());
        }
        let counts = Counts {
            calls: 0,
            paid: Instant::now(),
        };
        let usage = Arc::new(Usage {
            counts: Mutex::new(counts),
        });
        known.insert(principal.to_string(), usage.clone());
        usage
    }

    /// Begins a call of a principal.
    pub(crate) fn admit(&self, principal: &str, limits: PrincipalLimits) -> Result<Admitted, Status> {
        let usage = self.of(principal);
        let mut counts = usage.locked();
        if limits.calls > 0 && counts.calls >= limits.calls {
            let message = format!(
                "the principal {principal:?} has {} calls at a time, as many as its token allows; end some, or create a \
                 token that allows more with `duramen token create --calls`",
                counts.calls
            );
            return Err(with_retry(Code::ResourceExhausted, "TOO_MANY_CALLS", message, RETRY));
        }
        counts.calls += 1;
        drop(counts);
        let bytes_per_second = limits.bytes_per_second;
        Ok(Admitted(Arc::new(Call {
            usage,
            bytes_per_second,
        })))
    }
}

impl Usage {
    fn locked(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call of a principal with limits. The request and the response share it.
#[derive(Clone)]
pub(crate) struct Admitted(Arc<Call>);

struct Call {
    usage: Arc<Usage>,
    bytes_per_second: u64,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.usage.locked().calls -= 1;
    }
}

impl Admitted {
    /// Notes bytes that were used.
    pub(crate) fn used(&self, bytes: usize) {
        if self.0.bytes_per_second == 0 {
            return;
        }
        let time = Duration::from_secs_f64(bytes as f64 / self.0.bytes_per_second as f64);
        let mut counts = self.0.usage.locked();
        let earliest = Instant::now().checked_sub(BURST);
        counts.paid = earliest.map_or(counts.paid, |earliest| counts.paid.max(earliest)) + time;
    }

    /// When the next bytes may be used, if that is not now.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        let paid = self.0.usage.locked().paid;
        (self.0.bytes_per_second > 0 && paid > Instant::now()).then_some(paid)
    }
}
