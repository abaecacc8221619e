//! Times in buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets: three for each power of ten, from 50 µs to 10 s.
pub(crate) const BUCKETS: [Duration; 17] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// Counts times by bucket. The last bucket has what is above all bounds.
///
/// All atomics are relaxed: a reader may see a time in its bucket before it sees it in the sum.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    /// Counts one time.
    pub(crate) fn record(&self, time: Duration) {
        let bucket = BUCKETS.partition_point(|bound| *bound < time);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// The counts of one or more histograms at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    /// Times by bucket, not cumulated.
    pub(crate) buckets: [u64; BUCKETS.len() + 1],
    /// All times together.
    pub(crate) nanos: u64,
}

impl Sums {
    /// Adds the counts of a histogram.
    pub(crate) fn add(&mut self, histogram: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        self.nanos = self.nanos.wrapping_add(histogram.nanos.load(Ordering::Relaxed));
    }

    /// How many times were counted.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl From<&Histogram> for Sums {
    fn from(histogram: &Histogram) -> Sums {
        let mut sums = Sums::default();
        sums.add(histogram);
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        histogram.record(Duration::ZERO);
        histogram.record(BUCKETS[0]);
        histogram.record(BUCKETS[0] + Duration::from_nanos(1));
        histogram.record(Duration::from_secs(11));
        let mut sums = Sums::from(&histogram);
        assert_eq!(sums.buckets[..3], [2, 1, 0]);
        assert_eq!(sums.buckets[BUCKETS.len()], 1);
        assert_eq!(sums.nanos, 11_000_100_001);
        sums.add(&histogram);
        assert_eq!(sums.count(), 8);
    }

    #[test]
    fn bounds_ascend() {
        assert!(BUCKETS.is_sorted());
    }
}
