//! The instruments: clocks, processor time, bytes written, memory, and latency of every operation.
//!
//! A [`Meter`] starts right before the work and stops right after it. Its result is a [`Phase`], the unit of all
//! reports. The meter reads clocks last on start and first on stop, so that the measured time excludes reading `/proc`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::children;
use crate::scratch::allocated_bytes;
use crate::storage::{Device, StorageCounter};

/// The kind of work of a phase. Only writes depend on the durability class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Compared only between peers of one class.
    Writes,
    /// Compared between all peers: the way a pair was made durable changes nothing for its readers.
    Reads,
}

/// The measurements of one part of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// Name of the work.
    pub name: String,
    /// Whether the phase wrote.
    pub work: Work,
    /// Number of operations done.
    pub operations: u64,
    /// Number of planned operations, when the cell's time limit stopped the phase first. Such a phase is shown as
    /// "stopped at n of N" and compared with nothing. [`u64::MAX`] means that the plan was to run for a time.
    #[serde(default)]
    pub stopped_at_of: Option<u64>,
    /// Number of operations that found something, in work where some are meant to find nothing.
    #[serde(default)]
    pub hits: Option<u64>,
    /// Elapsed time of all operations.
    pub wall_nanos: u64,
    /// Processor time of the whole process, background threads of the store included.
    pub process_cpu_nanos: u64,
    /// Processor time of the threads that called the store.
    pub callers_cpu_nanos: u64,
    /// Bytes given to write calls (`wchar` of `/proc/self/io`): not what a store writes through a mapping.
    pub write_call_bytes: u64,
    /// Bytes written to storage, by the storage counter.
    pub storage_bytes: u64,
    /// Bytes taken by read calls (`rchar`): not what is read through a mapping.
    #[serde(default)]
    pub read_call_bytes: u64,
    /// Bytes that came from storage, through a mapping or a call, by the storage counter.
    #[serde(default)]
    pub storage_read_bytes: u64,
    /// The counter of the bytes to and from storage, which defines their meaning: see [`StorageCounter::words`].
    #[serde(default)]
    pub storage_counter: StorageCounter,
    /// Resident memory after the phase, including the lab's own data and mapped pages.
    pub resident_bytes: u64,
    /// The part of the resident memory that belongs to no file: the process's own memory.
    #[serde(default)]
    pub anonymous_bytes: u64,
    /// Disk space taken by the store's files after the phase.
    pub file_bytes: u64,
    /// Latency of every operation, where each was timed; otherwise of every commit, pass or step.
    pub latency: Option<Latency>,
    /// Number of times in the latency. It is less than the number of operations where commits, passes or steps were
    /// timed. Older results lack it.
    #[serde(default)]
    pub timed: Option<u64>,
    /// Percentiles for a curve: quantile and nanoseconds.
    #[serde(default)]
    pub curve: Vec<(f64, u64)>,
    /// Throughput and memory over time.
    #[serde(default)]
    pub timeline: Option<TimelineRecord>,
}

impl Phase {
    /// Returns the elapsed time per operation, the inverse of the throughput.
    pub fn wall_nanos_each(&self) -> f64 {
        self.wall_nanos as f64 / self.operations.max(1) as f64
    }

    /// Returns the text shown instead of a rate when the limit of the cell stopped the phase.
    pub fn stopped_text(&self) -> Option<String> {
        match self.stopped_at_of? {
            u64::MAX => Some(format!("stopped at {} before its time was over", self.operations)),
            planned => Some(format!("stopped at {} of {planned}", self.operations)),
        }
    }

    /// Whether the phase ran to its end.
    pub fn is_complete(&self) -> bool {
        self.stopped_at_of.is_none()
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
    /// Slower than 9,999 of 10,000.
    #[serde(default)]
    pub p99_99: u64,
    /// The slowest.
    pub max: u64,
}

/// A sequence of equal time steps, with the events in each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineRecord {
    /// Length of a step.
    pub step_nanos: u64,
    /// Operations that ended in the step.
    pub operations: Vec<u64>,
    /// Resident memory at the end of the step.
    pub resident_bytes: Vec<u64>,
}

/// The counts of a [`Timeline`], in steps of [`STEP_NANOS`].
#[derive(Debug, Serialize, Deserialize)]
pub struct TimelineCounts(Vec<u64>);

/// Counts operations in steps of time: a compare and an addition for each.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    start: u64,
    step_end: u64,
    counts: Vec<u64>,
}

/// Length of the steps in which operations are counted.
pub const STEP_NANOS: u64 = 50_000_000;
/// Steps in a record: enough for a chart.
const STEPS_MAX: usize = 240;

impl Timeline {
    /// Creates a timeline that counts from `start` on.
    pub fn starting(start: u64) -> Timeline {
        Timeline {
            start,
            step_end: 0,
            counts: Vec::new(),
        }
    }

    /// Counts operations that ended `now`.
    #[inline]
    pub fn count(&mut self, now: u64, operations: u64) {
        if now >= self.step_end {
            self.open_step(now);
        }
        if let Some(last) = self.counts.last_mut() {
            *last += operations;
        }
    }

    #[cold]
    fn open_step(&mut self, now: u64) {
        let step = now.saturating_sub(self.start) / STEP_NANOS;
        self.counts.resize(step as usize + 1, 0);
        self.step_end = self.start + (step + 1) * STEP_NANOS;
    }

    /// Adds the counts of another timeline. Workers of a crew start together, so their steps coincide.
    pub fn merge(&mut self, other: &Timeline) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts
            .iter_mut()
            .zip(&other.counts)
            .for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Returns the counts, to be sent to another process.
    pub fn counts(self) -> TimelineCounts {
        TimelineCounts(self.counts)
    }

    /// Restores the timeline of another process.
    pub fn from_counts(counts: &TimelineCounts) -> Timeline {
        Timeline {
            counts: counts.0.clone(),
            ..Timeline::default()
        }
    }

    /// Returns the number of all operations.
    #[cfg(test)]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the record to store, with the memory sampled meanwhile.
    fn record(&self, memory: &[u64]) -> TimelineRecord {
        let together = self.counts.len().max(memory.len()).div_ceil(STEPS_MAX).max(1);
        TimelineRecord {
            step_nanos: STEP_NANOS * together as u64,
            operations: self.counts.chunks(together).map(|steps| steps.iter().sum()).collect(),
            resident_bytes: memory
                .chunks(together)
                .map(|steps| steps.last().copied().unwrap_or(0))
                .collect(),
        }
    }
}

/// Samples the memory of the measured process once a step, in a thread of its own.
struct MemorySampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<u64>>>,
}

impl MemorySampler {
    fn start(process: Measured) -> MemorySampler {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_nanos(STEP_NANOS));
                samples.push(process.memory("VmRSS").unwrap_or(0));
            }
            samples
        });
        MemorySampler {
            stop,
            thread: Some(thread),
        }
    }

    fn stop(&mut self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Vec::new();
        };
        thread.thread().unpark();
        thread.join().unwrap_or_default()
    }
}

impl Drop for MemorySampler {
    /// Stops the thread even if the phase failed.
    fn drop(&mut self) {
        self.stop();
    }
}

/// The longest measurable time: an hour.
const NANOS_MAX: u64 = 3_600_000_000_000;

/// Times of single operations, exact to three digits.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, NANOS_MAX, 3).expect("bounds that a histogram can have"))
    }
}

impl Latencies {
    /// Returns every recorded time with its count, to be sent to another process.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let entry =
            |value: hdrhistogram::iterators::IterationValue<u64>| (value.value_iterated_to(), value.count_at_value());
        self.0.iter_recorded().map(entry).collect()
    }

    /// Restores the times of another process.
    pub fn from_counts(counts: &[(u64, u64)]) -> Latencies {
        let mut latencies = Latencies::default();
        counts
            .iter()
            .for_each(|(nanos, count)| latencies.0.saturating_record_n(*nanos, *count));
        latencies
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the number of times longer than `nanos`.
    #[cfg(test)]
    pub fn count_above(&self, nanos: u64) -> u64 {
        self.0.len() - self.0.count_between(0, nanos)
    }

    /// Returns quantiles from the median to the last operation, each twice as close to the end as the one before, and
    /// some on the way.
    fn curve(&self) -> Vec<(f64, u64)> {
        let mut quantiles = vec![0.0, 0.1, 0.25];
        let mut rest = 0.5;
        while rest * self.0.len() as f64 >= 1.0 && rest > 1e-7 {
            quantiles.extend([1.0 - rest, 1.0 - rest * 0.75]);
            rest /= 2.0;
        }
        quantiles.push(1.0);
        let at = |quantile| (quantile, self.0.value_at_quantile(quantile));
        quantiles.into_iter().map(at).collect()
    }

    /// Returns the time that this share of the operations did not exceed.
    pub fn at(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    /// Records the time of one operation. A time longer than [`NANOS_MAX`] counts as that long.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// Adds the times of another recording.
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
            p99_99: at(0.9999),
            max: self.0.max(),
        };
        (!self.0.is_empty()).then_some(summary)
    }
}

fn clock_nanos(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result, and all clocks asked for exist on Linux.
    let outcome = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(outcome, 0, "the clock {clock} can be read");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reads the monotonic clock.
#[inline]
pub fn now_nanos() -> u64 {
    clock_nanos(libc::CLOCK_MONOTONIC)
}

/// Returns the processor time of the calling thread.
pub fn thread_cpu_nanos() -> u64 {
    clock_nanos(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the processor time of this process.
pub fn process_cpu_nanos() -> u64 {
    clock_nanos(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The process whose work is measured: this process, or the program that a driver runs in.
#[derive(Clone)]
struct Measured {
    process: Option<u32>,
    /// Servers of a broker, whose work is added.
    servers: Vec<u32>,
}

impl Measured {
    /// Adds up a number of the process and of the servers. A server that has ended counts nothing.
    fn sum(&self, of: impl Fn(Option<u32>) -> Result<u64>) -> Result<u64> {
        let servers = self.servers.iter().filter_map(|server| of(Some(*server)).ok());
        Ok(of(self.process)? + servers.sum::<u64>())
    }

    fn memory(&self, name: &str) -> Result<u64> {
        self.sum(|process| status_bytes(&process_file(process, "status"), name))
    }

    fn cpu_nanos(&self) -> Result<u64> {
        self.sum(|process| {
            let Some(process) = process else {
                return Ok(process_cpu_nanos());
            };
            let mut clock = 0;
            // SAFETY: the place for the result is ours.
            let outcome = unsafe { libc::clock_getcpuclockid(process.try_into()?, &mut clock) };
            ensure!(outcome == 0, "the process {process} of a driver has no clock: it ended");
            Ok(clock_nanos(clock))
        })
    }

    /// Returns the samples that belong to the work. A driver works at the end of a phase; before that, the lab wrote
    /// its load.
    fn samples_of<'m>(&self, memory: &'m [u64], wall_nanos: Option<u64>) -> &'m [u64] {
        match (self.process, wall_nanos) {
            (Some(_), Some(wall)) => &memory[memory.len().saturating_sub(wall.div_ceil(STEP_NANOS) as usize)..],
            _ => memory,
        }
    }

    /// Returns the processor time of the calling thread, if that thread calls the store.
    fn caller_cpu_nanos(&self) -> u64 {
        if self.process.is_none() { thread_cpu_nanos() } else { 0 }
    }
}

/// Converts a duration to nanoseconds.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Measures one phase.
pub struct Meter<'a> {
    directory: &'a Path,
    process: Measured,
    device: Option<Device>,
    io: InputOutput,
    process_cpu: u64,
    thread_cpu: u64,
    wall: u64,
    memory: MemorySampler,
}

impl Meter<'_> {
    /// Starts measuring this process, or another process that does the work. `directory` is the store's.
    pub fn start(process: Option<u32>, directory: &Path) -> Result<Meter<'_>> {
        let process = Measured {
            process,
            servers: children::measured(),
        };
        let device = Device::below(directory)?;
        let memory = MemorySampler::start(process.clone());
        let io = InputOutput::now(&process, device.as_ref())?;
        let (process_cpu, thread_cpu) = (process.cpu_nanos()?, process.caller_cpu_nanos());
        Ok(Meter {
            directory,
            process,
            device,
            io,
            process_cpu,
            thread_cpu,
            wall: now_nanos(),
            memory,
        })
    }

    /// Stops measuring. Each piece of `work` has its own numbers. Pieces that ran at the same time share the elapsed
    /// time, processor time and bytes of all of them.
    pub fn stop(mut self, work: Vec<(&str, Work, Done)>) -> Result<Vec<Phase>> {
        let wall = now_nanos();
        let process = &self.process;
        // Reads the clocks in the reverse order of the start, because the caller's time is a part of the process's
        // time.
        let (thread_cpu, process_cpu) = (process.caller_cpu_nanos(), process.cpu_nanos()?);
        let io = InputOutput::now(process, self.device.as_ref())?;
        let memory = self.memory.stop();
        let (resident_bytes, anonymous_bytes) = (process.memory("VmRSS")?, process.memory("RssAnon")?);
        let file_bytes = allocated_bytes(self.directory)?;
        let phase = |(name, work, done): (&str, Work, Done)| Phase {
            name: name.to_string(),
            work,
            operations: done.operations,
            stopped_at_of: done.stopped_at_of,
            hits: done.hits,
            wall_nanos: done.wall_nanos.unwrap_or(wall - self.wall),
            process_cpu_nanos: process_cpu.saturating_sub(self.process_cpu) + done.other_processes_cpu_nanos,
            callers_cpu_nanos: thread_cpu - self.thread_cpu + done.workers_cpu_nanos,
            write_call_bytes: io.write_call_bytes.saturating_sub(self.io.write_call_bytes),
            storage_bytes: io.storage_bytes - self.io.storage_bytes,
            read_call_bytes: io.read_call_bytes.saturating_sub(self.io.read_call_bytes),
            storage_read_bytes: io.storage_read_bytes - self.io.storage_read_bytes,
            storage_counter: match self.device {
                Some(_) => StorageCounter::Device,
                None => StorageCounter::Process,
            },
            resident_bytes,
            anonymous_bytes,
            file_bytes,
            latency: done.latencies.as_ref().and_then(Latencies::summary),
            timed: done.latencies.as_ref().map(Latencies::count),
            curve: done.latencies.as_ref().map(Latencies::curve).unwrap_or_default(),
            timeline: done
                .timeline
                .as_ref()
                .map(|timeline| timeline.record(process.samples_of(&memory, done.wall_nanos))),
        };
        Ok(work.into_iter().map(phase).collect())
    }
}

/// The report of a piece of work at its end.
#[derive(Default)]
pub struct Done {
    /// Number of operations done.
    pub operations: u64,
    /// Number of planned operations, if the limit of the cell stopped the work first.
    pub stopped_at_of: Option<u64>,
    /// Number of operations that found something, if some are meant to find nothing.
    pub hits: Option<u64>,
    /// Processor time of the threads that the work started to call the store.
    pub workers_cpu_nanos: u64,
    /// Elapsed time of this work, when it ran beside longer work.
    pub wall_nanos: Option<u64>,
    /// Processor time of other processes that worked for this one.
    pub other_processes_cpu_nanos: u64,
    /// The times of the operations, where they were taken.
    pub latencies: Option<Latencies>,
    /// Number of operations over time.
    pub timeline: Option<Timeline>,
}

impl Done {
    /// Returns the report of operations that were not timed individually.
    pub fn untimed(operations: usize) -> Done {
        Done {
            operations: operations as u64,
            ..Done::default()
        }
    }
}

/// Counts of the kernel for this process, and of the device for all processes.
struct InputOutput {
    write_call_bytes: u64,
    storage_bytes: u64,
    read_call_bytes: u64,
    storage_read_bytes: u64,
}

impl InputOutput {
    fn now(process: &Measured, device: Option<&Device>) -> Result<InputOutput> {
        let counted = |name| process.sum(|process| field(&process_file(process, "io"), name));
        let (storage_bytes, storage_read_bytes) = match device.map(Device::transferred).transpose()? {
            Some(transferred) => (transferred.written_bytes, transferred.read_bytes),
            None => (counted("write_bytes")?, counted("read_bytes")?),
        };
        Ok(InputOutput {
            write_call_bytes: counted("wchar")?,
            storage_bytes,
            read_call_bytes: counted("rchar")?,
            storage_read_bytes,
        })
    }
}

/// Returns the path of a file of a process, or of this process.
fn process_file(process: Option<u32>, name: &str) -> String {
    match process {
        None => format!("/proc/self/{name}"),
        Some(process) => format!("/proc/{process}/{name}"),
    }
}

/// Returns a size that `/proc` gives in kilobytes.
pub fn status_bytes(file: &str, name: &str) -> Result<u64> {
    Ok(field(file, name)? * 1024)
}

/// Returns the memory that belongs to this process and to no file.
pub fn own_bytes() -> Result<u64> {
    status_bytes("/proc/self/status", "RssAnon")
}

/// Returns the number after `name:` in a file of `/proc`.
fn field(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| anyhow!("{file} has no number for {name}"))
}

/// The result of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// The measurements.
    pub phases: Vec<Phase>,
    /// Phases that did not run, with the reason: the peer cannot run them, or the cell reached its limit.
    pub unsupported: Vec<(String, String)>,
    /// Facts in addition to the measurements.
    pub notes: Vec<String>,
}

/// End of a reason when the limit of the cell prevented a phase.
pub const BY_LIMIT: &str = "within the time limit of the cell";

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn latency_counts_every_operation() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|nanos| latencies.record(nanos));
        let mut others = Latencies::default();
        others.record(5_000_000_000);
        latencies.merge(&others);
        let summary = latencies.summary().expect("1,001 values");
        assert_eq!((summary.p50, summary.p90, summary.p99), (501, 901, 991));
        let off = summary.max.abs_diff(5_000_000_000);
        assert!(off <= 5_000_000, "{summary:?}");
        assert_eq!(Latencies::default().summary(), None);
        let curve = latencies.curve();
        assert!(curve.windows(2).all(|pair| pair[0] <= pair[1]), "{curve:?}");
        assert_eq!(curve.last().map(|(quantile, _)| *quantile), Some(1.0));
    }

    #[test]
    fn timeline_counts_each_operation_in_its_step() {
        let mut timeline = Timeline::starting(1000);
        for now in [1001, 1002, 1000 + STEP_NANOS, 1000 + 3 * STEP_NANOS] {
            timeline.count(now, 1);
        }
        let record = timeline.record(&[7, 8, 9, 10]);
        assert_eq!(record.operations, [2, 1, 0, 1]);
        assert_eq!(record.resident_bytes, [7, 8, 9, 10]);
        let mut long = Timeline::starting(0);
        (0..1000).for_each(|step| long.count(step * STEP_NANOS, 2));
        let record = long.record(&[]);
        assert!(record.operations.len() <= STEPS_MAX);
        assert_eq!(record.operations.iter().sum::<u64>(), long.total());
    }

    #[test]
    fn meter_sees_time_processor_and_written_and_read_bytes() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let meter = Meter::start(None, scratch.path())?;
        let file = scratch.path().join("file");
        std::fs::write(&file, vec![1u8; 1 << 20])?;
        assert_eq!(std::fs::read(&file)?.len(), 1 << 20);
        std::thread::sleep(Duration::from_millis(20));
        let busy_until = thread_cpu_nanos() + 5_000_000;
        while thread_cpu_nanos() < busy_until {}
        let phases = meter.stop(vec![("test", Work::Reads, Done::untimed(2))])?;
        let [phase] = phases.as_slice() else {
            panic!("one piece of work: {phases:?}")
        };
        assert!(
            phase.wall_nanos > 25_000_000 && phase.wall_nanos_each() < phase.wall_nanos as f64,
            "{phase:?}"
        );
        assert!(phase.callers_cpu_nanos >= 5_000_000, "{phase:?}");
        assert!(phase.process_cpu_nanos >= phase.callers_cpu_nanos, "{phase:?}");
        assert!(
            phase.write_call_bytes >= 1 << 20 && phase.read_call_bytes >= 1 << 20 && phase.resident_bytes > 1 << 20,
            "{phase:?}"
        );
        assert!(phase.anonymous_bytes < phase.resident_bytes, "{phase:?}");
        Ok(())
    }

    #[test]
    fn phase_says_how_many_times_its_latency_is_made_of() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let mut commits = Latencies::default();
        (0..3).for_each(|_| commits.record(1_000));
        let done = Done {
            operations: 300,
            latencies: Some(commits),
            ..Done::default()
        };
        let work = vec![
            ("timed", Work::Writes, done),
            ("untimed", Work::Writes, Done::untimed(1)),
        ];
        let phases = Meter::start(None, scratch.path())?.stop(work)?;
        assert_eq!((phases[0].timed, phases[1].timed), (Some(3), None));
        Ok(())
    }

    #[test]
    fn bytes_to_storage_are_those_of_the_device_where_there_is_one() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let meter = Meter::start(None, scratch.path())?;
        let mut file = File::create(scratch.path().join("file"))?;
        file.write_all(&vec![1; 8 << 20])?;
        file.sync_all()?;
        let phases = meter.stop(vec![("test", Work::Writes, Done::untimed(1))])?;
        let phase = &phases[0];
        if Device::below(scratch.path())?.is_none() {
            assert_eq!(phase.storage_counter, StorageCounter::Process, "{phase:?}");
            return Ok(());
        }
        assert_eq!(phase.storage_counter, StorageCounter::Device, "{phase:?}");
        // The device also counts the writes of other processes.
        assert!((8 << 20..1 << 30).contains(&phase.storage_bytes), "{phase:?}");
        Ok(())
    }

    #[test]
    fn without_a_device_the_process_is_asked() -> Result<()> {
        // This directory exists on every Linux, and on no device.
        let meter = Meter::start(None, Path::new("/proc/self/ns"))?;
        let phases = meter.stop(vec![("test", Work::Writes, Done::untimed(1))])?;
        assert_eq!(phases[0].storage_counter, StorageCounter::Process);
        assert!(phases[0].storage_bytes <= field("/proc/self/io", "write_bytes")?);
        Ok(())
    }
}
