//! The state of the machine itself, measured beside every cell: the time of a sync, the delay of thread wake-ups and
//! timers, the load, and the free space. A result whose probes differ from those of its neighbours was disturbed; `lab
//! compare` and the report say so.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::measure::now_nanos;
use crate::scratch::Scratch;

/// The findings of the probes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Time of a 4 KiB write and sync into a preallocated file: the median.
    pub sync_nanos_p50: u64,
    /// Time of a 4 KiB write and sync: the 90th percentile.
    pub sync_nanos_p90: u64,
    /// Time until a waiting thread runs after another thread wakes it: the median.
    pub wake_nanos_p50: u64,
    /// Delay of the end of a sleep of 100 microseconds: the median.
    pub timer_nanos_p50: u64,
    /// Runnable processes, on average over the last minute.
    pub load: f64,
    /// Free space in the directory of the stores.
    pub free_bytes: u64,
    /// Share of all processors' time that other processes used while the cell ran, from 0 to 1.
    pub others_busy: f64,
}

/// Share of the processors above which other processes disturbed a cell.
pub const DISTURBED: f64 = 0.2;

impl Probe {
    /// Whether other processes used so much processor time that the times of the cell are unreliable.
    pub fn is_disturbed(&self) -> bool {
        self.others_busy > DISTURBED
    }
}

/// Number of attempts of each probe.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Number of syncs.
    pub syncs: usize,
    /// Number of wake-ups and of timers.
    pub wakes: usize,
}

/// Effort beside a cell: some milliseconds.
pub const SHORT: Effort = Effort { syncs: 20, wakes: 50 };
/// Effort of the doctor.
pub const LONG: Effort = Effort {
    syncs: 400,
    wakes: 1000,
};

/// All measured times, for uses that need more than the median.
pub struct Samples {
    /// Times of syncs.
    pub syncs: Vec<u64>,
    /// Times of wake-ups.
    pub wakes: Vec<u64>,
    /// Delays of sleeps beyond the requested time.
    pub timers: Vec<u64>,
}

/// Runs all probes.
pub fn samples(directory: &Path, effort: Effort) -> Result<Samples> {
    Ok(Samples {
        syncs: sorted(syncs(directory, effort.syncs)?),
        wakes: sorted(wakes(effort.wakes)),
        timers: sorted(timers(effort.wakes.min(100))),
    })
}

/// Runs the probes beside a cell.
pub fn beside(directory: &Path) -> Result<Probe> {
    let samples = samples(directory, SHORT)?;
    Ok(Probe {
        sync_nanos_p50: quantile(&samples.syncs, 0.5),
        sync_nanos_p90: quantile(&samples.syncs, 0.9),
        wake_nanos_p50: quantile(&samples.wakes, 0.5),
        timer_nanos_p50: quantile(&samples.timers, 0.5),
        load: load().unwrap_or(0.0),
        free_bytes: free_bytes(directory).unwrap_or(0),
        others_busy: 0.0,
    })
}

/// Returns the value that this part of the sorted values does not exceed.
pub fn quantile(sorted: &[u64], part: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or(0)
}

fn sorted(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values
}

fn syncs(directory: &Path, count: usize) -> Result<Vec<u64>> {
    let scratch = Scratch::new(directory)?;
    let doing = || format!("probing syncs in {}", directory.display());
    let mut file = File::create(scratch.path().join("probe")).with_context(doing)?;
    // Fills and syncs the file first. A store reuses its log, so the sync of data counts, not that of a growing file.
    file.write_all(&[0; 1 << 16]).with_context(doing)?;
    file.sync_all().with_context(doing)?;
    (0..count)
        .map(|number| {
            let begun = now_nanos();
            file.seek(SeekFrom::Start(4096 * (number as u64 % 16)))?;
            file.write_all(&[number as u8; 4096])?;
            file.sync_data()?;
            Ok(now_nanos() - begun)
        })
        .collect()
}

/// Measures how two threads hand a turn to each other; each hand-over is one sample.
fn wakes(count: usize) -> Vec<u64> {
    let turn = Arc::new((Mutex::new(0usize), Condvar::new()));
    let theirs = Arc::clone(&turn);
    let other = std::thread::spawn(move || play(&theirs, 1, count));
    let mine = play(&turn, 0, count);
    let mut samples = other.join().unwrap_or_default();
    samples.extend(mine);
    samples
}

/// Waits for every second turn. Passes it on after a pause in which the other thread has fallen asleep.
fn play(turn: &(Mutex<usize>, Condvar), parity: usize, count: usize) -> Vec<u64> {
    let (number, changed) = turn;
    let mut samples = Vec::with_capacity(count / 2);
    let mut held = number.lock().unwrap_or_else(PoisonError::into_inner);
    let mut passed_at = None;
    loop {
        while *held % 2 != parity && *held < count {
            held = changed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(passed_at) = passed_at.take() {
            // A round trip is two wake-ups and the pause between them.
            let took: u64 = now_nanos() - passed_at;
            samples.push(took.saturating_sub(PAUSE_NANOS) / 2);
        }
        if *held >= count {
            changed.notify_all();
            return samples;
        }
        let until = now_nanos() + PAUSE_NANOS;
        while now_nanos() < until {
            std::hint::spin_loop();
        }
        *held += 1;
        passed_at = Some(now_nanos());
        changed.notify_all();
    }
}

const PAUSE_NANOS: u64 = 20_000;

fn timers(count: usize) -> Vec<u64> {
    let asked = Duration::from_micros(100);
    let sample = |_| {
        let begun = now_nanos();
        std::thread::sleep(asked);
        (now_nanos() - begun).saturating_sub(asked.as_nanos() as u64)
    };
    (0..count).map(sample).collect()
}

/// Returns the runnable processes, on average over the last minute.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

/// Returns the free space in a directory.
pub fn free_bytes(directory: &Path) -> Result<u64> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: all fields of the structure are numbers, for which zero is a value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in a zero byte and the place for the result is ours.
    let outcome = unsafe { libc::statvfs(path.as_ptr(), &mut found) };
    if outcome != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("asking for space in {}", directory.display()));
    }
    Ok(found.f_bavail * found.f_frsize)
}

/// The processors' time so far, in ticks of a hundredth of a second: total, and not idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    all: u64,
    busy: u64,
}

impl Busy {
    /// Reads the time so far.
    pub fn now() -> Busy {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        Busy::parse(text.lines().next().unwrap_or_default())
    }

    fn parse(line: &str) -> Busy {
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|word| word.parse().ok())
            .collect();
        let all = ticks.iter().sum();
        // Time idle and time waiting for a disk.
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Busy { all, busy: all - idle }
    }

    /// Returns the share of all processors' time since `self` that processes other than the cell used. `own_nanos` is
    /// the processor time of the cell.
    pub fn others_until(&self, now: Busy, own_nanos: u64) -> f64 {
        let (all, busy) = (now.all.saturating_sub(self.all), now.busy.saturating_sub(self.busy));
        let own = own_nanos / 10_000_000;
        busy.saturating_sub(own) as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_find_something_and_take_little() -> Result<()> {
        let begun = now_nanos();
        let probe = beside(&std::env::temp_dir())?;
        assert!(
            probe.sync_nanos_p50 > 0 && probe.sync_nanos_p90 >= probe.sync_nanos_p50,
            "{probe:?}"
        );
        assert!(probe.wake_nanos_p50 > 0 && probe.free_bytes > 0, "{probe:?}");
        assert!(now_nanos() > begun);
        Ok(())
    }

    #[test]
    fn others_are_what_the_cell_did_not_use() {
        let before = Busy::parse("cpu 100 0 100 800 0 0 0 0 0 0");
        let after = Busy::parse("cpu 150 0 150 1000 100 0 0 0 0 0");
        // 400 ticks passed, 100 of them busy, of which the cell used half a second.
        assert_eq!(before.others_until(after, 500_000_000), 50.0 / 400.0);
        assert_eq!(before.others_until(after, 5_000_000_000), 0.0);
    }
}
