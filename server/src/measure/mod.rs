//! Counting and logging on the path of calls: plain relaxed atomics, no locks, no names made while a call runs.
//!
//! The numbers flow one way: this module counts, and [`crate::metrics`] reads the counts when a scrape asks for them.

mod call_log;
mod calls;
mod codes;
#[cfg(test)]
mod cost;
mod histogram;
mod layer;
mod log_limit;
mod methods;

pub(crate) use call_log::CallLog;
pub(crate) use calls::{CallSums, Calls};
pub(crate) use codes::CODES;
pub(crate) use histogram::{BUCKETS, Histogram, Sums};
pub(crate) use layer::MeasureLayer;
pub(crate) use log_limit::LogLimit;
pub(crate) use methods::Methods;
