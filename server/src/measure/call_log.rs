//! Which calls are logged: those that are slow, and those that end with an error of the server.
//!
//! A line has the method, the duration, the code and the peer. It never has a key, a value, a payload or metadata.

use std::time::Duration;

use tonic::Code;

use super::codes::CODES;
use super::log_limit::LogLimit;
use super::methods::Method;
use crate::security::Address;

/// Logs calls.
#[derive(Debug, Default)]
pub(crate) struct CallLog {
    slow_call: Option<Duration>,
    slow: LogLimit,
    failed: LogLimit,
}

impl CallLog {
    /// A log of failed calls, and of calls that take longer than `slow_call`.
    pub(crate) fn new(slow_call: Option<Duration>) -> CallLog {
        CallLog {
            slow_call,
            ..CallLog::default()
        }
    }

    /// A call has ended. `latency` is the time until its response headers.
    pub(crate) fn ended(&self, method: &Method, latency: Duration, code: Code, peer: Address) {
        let is_failed = matches!(code, Code::Internal | Code::Unknown | Code::DataLoss);
        let is_slow = !method.is_streaming && self.slow_call.is_some_and(|slow| latency > slow);
        let path = || format!("{}/{}", method.service, method.name);
        let (code, duration_ms) = (CODES[code as usize], latency.as_secs_f64() * 1e3);
        if is_failed && let Some(left_out) = self.failed.admit() {
            tracing::error!(method = path(), duration_ms, code, %peer, left_out, "call failed");
        }
        if is_slow && let Some(left_out) = self.slow.admit() {
            tracing::warn!(method = path(), duration_ms, code, %peer, left_out, "slow call");
        }
    }
}
