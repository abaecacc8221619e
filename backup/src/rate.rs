//! A limit of the bytes that transfers take in a second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A limit, shared by all transfers.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// 0: none.
    bytes_per_second: u64,
    /// When the next transfer may begin.
    next: Mutex<Option<Instant>>,
}

impl Rate {
    pub(crate) fn of(bytes_per_second: u64) -> Rate {
        Rate {
            bytes_per_second,
            next: Mutex::default(),
        }
    }

    /// Waits until a transfer of so many bytes may begin.
    pub(crate) async fn wait(&self, bytes: u64) {
        if let Some(pause) = self.take(bytes, Instant::now()) {
            tokio::time::sleep(pause).await;
        }
    }

    fn take(&self, bytes: u64, now: Instant) -> Option<Duration> {
        if self.bytes_per_second == 0 {
            return None;
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = next.map_or(now, |next| next.max(now));
        *next = Some(begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64));
        Some(begin - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_take_their_turns() {
        let now = Instant::now();
        let rate = Rate::of(1_000);
        assert_eq!(rate.take(500, now), Some(Duration::ZERO));
        assert_eq!(rate.take(2_000, now), Some(Duration::from_millis(500)));
        assert_eq!(
            rate.take(1, now + Duration::from_secs(1)),
            Some(Duration::from_millis(1_500))
        );
        assert_eq!(rate.take(1, now + Duration::from_secs(60)), Some(Duration::ZERO));
        assert_eq!(Rate::default().take(1 << 40, now), None);
    }
}
