//! Times and durations in their stored form.

use std::time::{Duration, SystemTime};

/// Milliseconds, limited to 64 bits.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Converts stored milliseconds since 1970 to a time.
pub(crate) fn at(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// Time since 1970; zero for earlier times.
pub(crate) fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
