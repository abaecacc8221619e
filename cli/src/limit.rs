//! Times and limits, in arguments and in output.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Returns a time in milliseconds since 1970.
pub fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// A limit as given by the user; `none` removes the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit<T>(pub Option<T>);

/// Parses a limit on a count.
pub fn count_limit(text: &str) -> Result<Limit<u64>, String> {
    limit(text, |text| {
        text.parse()
            .map_err(|_| format!("{text:?} is neither a number nor `none`"))
    })
}

/// Parses a time limit, in seconds.
pub fn time_limit(text: &str) -> Result<Limit<Duration>, String> {
    limit(text, |text| time(text).map_err(|cause| cause + ", nor `none`"))
}

fn limit<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Limit<T>, String> {
    match text {
        "none" => Ok(Limit(None)),
        text => read(text).map(|limit| Limit(Some(limit))),
    }
}

/// Parses seconds, which may have decimals.
pub fn time(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("{text:?} is not a number of seconds"))
}

/// Returns a time in seconds, with decimals only if needed.
pub fn seconds(time: Duration) -> Value {
    match time.subsec_nanos() {
        0 => json!(time.as_secs()),
        _ => json!(time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(count_limit("17"), Ok(Limit(Some(17))));
        assert_eq!(count_limit("none"), Ok(Limit(None)));
        assert_eq!(time_limit("1.5"), Ok(Limit(Some(Duration::from_millis(1_500)))));
        assert_eq!(time_limit("none"), Ok(Limit(None)));
        for wrong in ["", "-1", "all", "1s"] {
            assert!(count_limit(wrong).unwrap_err().contains("none"), "{wrong}");
            assert!(time_limit(wrong).unwrap_err().contains("none"), "{wrong}");
        }
    }

    #[test]
    fn times_are_printed_as_they_are_read() {
        for text in ["0", "60", "1.5", "0.02", "86400"] {
            assert_eq!(seconds(time(text).unwrap()).to_string(), text);
        }
        assert!(time("1e30").is_err() && time("NaN").is_err());
    }
}
