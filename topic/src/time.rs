//! Times and durations as they are stored.

use std::time::Duration;

/// Milliseconds, as many as 64 bits hold.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
