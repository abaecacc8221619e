//! The instruments: clocks, processor time, bytes written, memory, and latency of every operation.
//!
//! A [`Meter`] is started right before the work and stopped right after; what it found is a [`Phase`], the unit of all
//! reports. Clocks are read last on start and first on stop, so that reading `/proc` is not in the measured time.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::scratch::allocated_bytes;

/// What a phase does, because only writing depends on the durability class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Compared only between peers of one class.
    Writes,
    /// Compared between all peers: how a pair was made durable changes nothing for who reads it.
    Reads,
}

/// What was measured of one part of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// What was done.
    pub name: String,
    /// Whether it wrote.
    pub work: Work,
    /// How many operations were done.
    pub operations: u64,
    /// Elapsed time of all of them.
    pub wall_nanos: u64,
    /// Processor time of the whole process, background threads of the store included.
    pub process_cpu_nanos: u64,
    /// Processor time of the threads that called the store.
    pub callers_cpu_nanos: u64,
    /// Bytes given to write calls (`wchar` of `/proc/self/io`): not what a store writes through a mapping.
    pub write_call_bytes: u64,
    /// Bytes of pages made dirty for storage (`write_bytes` of `/proc/self/io`). With large folios the kernel counts
    /// the whole folio for one page of it, so this can be many times what the device sees.
    pub storage_bytes: u64,
    /// Resident memory after the phase, with the lab's own data and mapped pages.
    pub resident_bytes: u64,
    /// Disk space taken by the store's files after the phase.
    pub file_bytes: u64,
    /// Latency of every operation, where each was timed.
    pub latency: Option<Latency>,
}

impl Phase {
    /// Elapsed time per operation; the inverse of the throughput.
    pub fn wall_nanos_each(&self) -> f64 {
        self.wall_nanos as f64 / self.operations.max(1) as f64
    }
}

/// Percentiles in nanoseconds, from every operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: u64,
    /// Slower than nine of ten.
    pub p90: u64,
    /// Slower than 99 of 100.
    pub p99: u64,
    /// Slower than 999 of 1,000.
    pub p99_9: u64,
    /// The slowest.
    pub max: u64,
}

/// The longest time that is told apart: an hour.
const NANOS_MAX: u64 = 3_600_000_000_000;

/// Times of single operations, exact to three digits.
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    pub fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, NANOS_MAX, 3).expect("bounds that a histogram can have"))
    }

    /// Takes the time of one operation. One longer than [`NANOS_MAX`] counts as that long.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// Takes all that another one recorded.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    fn summary(&self) -> Option<Latency> {
        let at = |quantile| self.0.value_at_quantile(quantile);
        let summary = Latency {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: self.0.max(),
        };
        (!self.0.is_empty()).then_some(summary)
    }
}

/// Operations timed end to start: the clock is read once per operation, not twice.
pub struct Lap {
    latencies: Latencies,
    last: u64,
}

impl Lap {
    /// Starts the first operation.
    pub fn start() -> Lap {
        Lap {
            latencies: Latencies::new(),
            last: now_nanos(),
        }
    }

    /// Ends one operation and starts the next; says when that was.
    #[inline]
    pub fn next(&mut self) -> u64 {
        let now = now_nanos();
        self.latencies.record(now - self.last);
        self.last = now;
        now
    }

    /// The times of all operations.
    pub fn finish(self) -> Latencies {
        self.latencies
    }
}

fn clock_nanos(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result, and all clocks asked for exist on Linux.
    let outcome = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(outcome, 0, "the clock {clock} can be read");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The monotonic clock.
#[inline]
pub fn now_nanos() -> u64 {
    clock_nanos(libc::CLOCK_MONOTONIC)
}

/// Processor time of the calling thread.
pub fn thread_cpu_nanos() -> u64 {
    clock_nanos(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// A number of nanoseconds.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Measures one phase.
pub struct Meter {
    write_call_bytes: u64,
    storage_bytes: u64,
    process_cpu: u64,
    thread_cpu: u64,
    wall: u64,
}

impl Meter {
    /// Starts measuring.
    pub fn start() -> Result<Meter> {
        let (write_call_bytes, storage_bytes) = written_bytes()?;
        let (process_cpu, thread_cpu) = (clock_nanos(libc::CLOCK_PROCESS_CPUTIME_ID), thread_cpu_nanos());
        Ok(Meter {
            write_call_bytes,
            storage_bytes,
            process_cpu,
            thread_cpu,
            wall: now_nanos(),
        })
    }

    /// Stops measuring. `work` has its own numbers; `directory` is where the store is.
    pub fn stop(self, work: Done, directory: &Path) -> Result<Phase> {
        let wall = now_nanos();
        let (process_cpu, thread_cpu) = (clock_nanos(libc::CLOCK_PROCESS_CPUTIME_ID), thread_cpu_nanos());
        let (write_call_bytes, storage_bytes) = written_bytes()?;
        Ok(Phase {
            name: String::new(),
            work: Work::Reads,
            operations: work.operations,
            wall_nanos: wall - self.wall,
            process_cpu_nanos: process_cpu - self.process_cpu,
            callers_cpu_nanos: thread_cpu - self.thread_cpu + work.workers_cpu_nanos,
            write_call_bytes: write_call_bytes - self.write_call_bytes,
            storage_bytes: storage_bytes - self.storage_bytes,
            resident_bytes: status_bytes("/proc/self/status", "VmRSS")?,
            file_bytes: allocated_bytes(directory)?,
            latency: work.latencies.as_ref().and_then(Latencies::summary),
        })
    }
}

/// What a piece of work says about itself when it is done.
#[derive(Default)]
pub struct Done {
    /// How many operations it did.
    pub operations: u64,
    /// Processor time of threads that it started for calling the store.
    pub workers_cpu_nanos: u64,
    /// The times of its operations, where it took them.
    pub latencies: Option<Latencies>,
}

impl Done {
    /// Operations that were not timed one by one.
    pub fn untimed(operations: usize) -> Done {
        Done {
            operations: operations as u64,
            ..Done::default()
        }
    }

    /// Operations that were.
    pub fn timed(operations: usize, lap: Lap) -> Done {
        Done {
            latencies: Some(lap.finish()),
            ..Done::untimed(operations)
        }
    }
}

fn written_bytes() -> Result<(u64, u64)> {
    Ok((field("/proc/self/io", "wchar")?, field("/proc/self/io", "write_bytes")?))
}

/// A size that `/proc` gives in kilobytes.
pub fn status_bytes(file: &str, name: &str) -> Result<u64> {
    Ok(field(file, name)? * 1024)
}

/// The number after `name:` in one of the files of `/proc`.
fn field(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| anyhow!("{file} has no number for {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn latency_counts_every_operation() {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|nanos| latencies.record(nanos));
        let mut others = Latencies::new();
        others.record(5_000_000_000);
        latencies.merge(&others);
        let summary = latencies.summary().expect("1,001 values");
        assert_eq!((summary.p50, summary.p90, summary.p99), (501, 901, 991));
        let off = summary.max.abs_diff(5_000_000_000);
        assert!(off <= 5_000_000, "{summary:?}");
        assert_eq!(Latencies::new().summary(), None);
    }

    #[test]
    fn meter_sees_time_processor_and_written_bytes() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let meter = Meter::start()?;
        std::fs::write(scratch.path().join("file"), vec![1u8; 1 << 20])?;
        std::thread::sleep(Duration::from_millis(20));
        let busy_until = thread_cpu_nanos() + 5_000_000;
        while thread_cpu_nanos() < busy_until {}
        let phase = meter.stop(Done::untimed(2), scratch.path())?;
        assert!(
            phase.wall_nanos > 25_000_000 && phase.wall_nanos_each() < phase.wall_nanos as f64,
            "{phase:?}"
        );
        assert!(phase.callers_cpu_nanos >= 5_000_000, "{phase:?}");
        assert!(phase.process_cpu_nanos >= phase.callers_cpu_nanos, "{phase:?}");
        assert!(
            phase.write_call_bytes >= 1 << 20 && phase.resident_bytes > 1 << 20,
            "{phase:?}"
        );
        Ok(())
    }
}
