//! `lab doctor`: whether this machine is fit for measurements, and what will disturb them.

use std::path::Path;

use anyhow::Result;

use crate::machine::Machine;
use crate::probe::{self, LONG, quantile};
use crate::servers::{self, Program};
use crate::text::{bytes_text, time_text};

/// Effect of a finding on measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Good.
    Fit,
    /// Measurements will scatter, or mean less.
    Disturbing,
    /// Measurements would mean nothing.
    Unfit,
}

/// The finding of one check.
#[derive(Debug)]
pub struct Finding {
    health: Health,
    text: String,
}

/// Runs all checks.
pub fn examine(directory: &Path) -> Result<Vec<Finding>> {
    let machine = Machine::here(directory);
    let samples = probe::samples(directory, LONG)?;
    let load = probe::load().unwrap_or(0.0);
    Ok(vec![
        of_file_system(&machine),
        of_syncs(&samples.syncs),
        of_wakes(&samples.wakes),
        of_timers(&samples.timers),
        of_processors(&machine),
        of_load(load, machine.processors),
        of_space(probe::free_bytes(directory)?),
        of_servers(),
        of_build(),
    ])
}

/// Returns the findings as text, and the worst health among them.
pub fn text(findings: &[Finding]) -> (String, Health) {
    let worst = findings
        .iter()
        .map(|finding| finding.health)
        .max()
        .unwrap_or(Health::Fit);
    let line = |finding: &Finding| {
        let mark = match finding.health {
            Health::Fit => "ok      ",
            Health::Disturbing => "caution ",
            Health::Unfit => "unfit   ",
        };
        format!("{mark}{}\n", finding.text)
    };
    let mut text: String = findings.iter().map(line).collect();
    text.push_str(match worst {
        Health::Fit => "this machine is fit to measure on\n",
        Health::Disturbing => "measurements here need more repetitions, and care in reading; see the cautions\n",
        Health::Unfit => "measurements here would mean nothing; see what is unfit\n",
    });
    (text, worst)
}

fn finding(health: Health, text: String) -> Finding {
    Finding { health, text }
}

fn of_file_system(machine: &Machine) -> Finding {
    if machine.is_in_memory() {
        let text = format!(
            "{}: in memory, where a sync costs nothing; choose another --directory",
            machine.file_system
        );
        return finding(Health::Unfit, text);
    }
    finding(Health::Fit, format!("file system: {}", machine.file_system))
}

/// Finds two clusters of times with a gap between them, as from a disk whose cache is sometimes full, or from a
/// neighbour.
fn is_bimodal(sorted: &[u64]) -> Option<(u64, u64)> {
    let (low, high) = (quantile(sorted, 0.1), quantile(sorted, 0.9));
    let gap = sorted.windows(2).max_by(|one, other| {
        let ratio = |pair: &[u64]| pair[1] as f64 / pair[0].max(1) as f64;
        ratio(one).total_cmp(&ratio(other))
    })?;
    let below = sorted.iter().filter(|time| **time <= gap[0]).count() as f64 / sorted.len() as f64;
    let is_gap = gap[1] as f64 > gap[0] as f64 * 1.5 && (0.1..=0.9).contains(&below);
    is_gap.then_some((low, high))
}

fn of_syncs(sorted: &[u64]) -> Finding {
    let (middle, late) = (quantile(sorted, 0.5), quantile(sorted, 0.99));
    let times = format!(
        "sync of 4 KiB: middle {}, 99 of 100 within {}",
        time_text(middle as f64),
        time_text(late as f64)
    );
    if middle < 5_000 {
        let text =
            format!("{times}: no device is that fast, so syncs do not reach one; class synced would mean nothing");
        return finding(Health::Unfit, text);
    }
    if let Some((low, high)) = is_bimodal(sorted) {
        let text = format!(
            "{times}; it is bimodal, about {} or {}: compare synced rows by their curves, not by their means",
            time_text(low as f64),
            time_text(high as f64)
        );
        return finding(Health::Disturbing, text);
    }
    if late > middle * 10 {
        return finding(Health::Disturbing, format!("{times}: synced rows will scatter"));
    }
    finding(Health::Fit, times)
}

fn of_wakes(sorted: &[u64]) -> Finding {
    let (middle, late) = (quantile(sorted, 0.5), quantile(sorted, 0.99));
    let text = format!(
        "waking a thread: middle {}, 99 of 100 within {}",
        time_text(middle as f64),
        time_text(late as f64)
    );
    if middle > 20_000 {
        let text = format!("{text}: stores that wake a thread for each commit pay this each time");
        return finding(Health::Disturbing, text);
    }
    finding(Health::Fit, text)
}

fn of_timers(sorted: &[u64]) -> Finding {
    let middle = quantile(sorted, 0.5);
    let text = format!("a sleep of 100 us ends {} late", time_text(middle as f64));
    if middle > 1_000_000 {
        return finding(
            Health::Disturbing,
            format!("{text}: the timer ticks slowly, open loops will be uneven"),
        );
    }
    finding(Health::Fit, text)
}

fn of_processors(machine: &Machine) -> Finding {
    let text = format!("{} processors of {}", machine.processors, machine.processor);
    if machine.processors < 4 {
        let text = format!("{text}: background threads of stores compete with the threads that call them");
        return finding(Health::Disturbing, text);
    }
    finding(Health::Fit, text)
}

fn of_load(load: f64, processors: usize) -> Finding {
    let text = format!("load over the last minute: {load:.2}");
    if load > 0.2 * processors as f64 {
        return finding(Health::Disturbing, format!("{text}: something else is running"));
    }
    finding(Health::Fit, text)
}

/// Space for the largest workloads, which take some tens of gigabytes in the largest stores.
const SPACE_WANTED: u64 = 40 << 30;
const SPACE_LEAST: u64 = 2 << 30;

fn of_space(free: u64) -> Finding {
    let text = format!("{} free", bytes_text(free as f64));
    if free < SPACE_LEAST {
        return finding(
            Health::Unfit,
            format!("{text}: too little for any workload at full scale"),
        );
    }
    if free < SPACE_WANTED {
        return finding(Health::Disturbing, format!("{text}: map/16M and state/10M may not fit"));
    }
    finding(Health::Fit, text)
}

/// Lists the servers of other brokers. A missing one disturbs nothing: its rows are `n/a`.
fn of_servers() -> Finding {
    let text = |program: &&Program| match program.version() {
        Ok(version) => format!("{} {version}", program.name),
        Err(reason) => reason,
    };
    let texts: Vec<_> = servers::ALL.iter().map(text).collect();
    finding(Health::Fit, format!("servers of other brokers: {}", texts.join("; ")))
}

fn of_build() -> Finding {
    if cfg!(debug_assertions) {
        return finding(
            Health::Unfit,
            "a debug build: its numbers mean nothing; use `cargo lab`".to_string(),
        );
    }
    finding(Health::Fit, "a release build".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_in_two_heaps_are_found_and_one_heap_is_not() {
        let one: Vec<u64> = (0..100).map(|at| 100_000 + at * 300).collect();
        assert_eq!(is_bimodal(&one), None);
        assert_eq!(of_syncs(&one).health, Health::Fit);
        let two: Vec<u64> = (0..100)
            .map(|at| if at < 60 { 100_000 + at } else { 300_000 + at })
            .collect();
        assert!(is_bimodal(&two).is_some());
        assert_eq!(of_syncs(&two).health, Health::Disturbing);
        // One slow sync is not a cluster.
        let mut tail = one.clone();
        tail[99] = 10_000_000;
        assert_eq!(is_bimodal(&tail), None);
    }

    #[test]
    fn sync_that_no_device_could_do_makes_a_machine_unfit() {
        assert_eq!(of_syncs(&[1_000; 50]).health, Health::Unfit);
    }

    #[test]
    fn worst_finding_decides() {
        let findings = [of_load(0.0, 8), of_space(1), of_load(9.0, 8)];
        let (text, worst) = text(&findings);
        assert_eq!(worst, Health::Unfit);
        assert!(
            text.contains("unfit") && text.contains("caution") && text.contains("ok"),
            "{text}"
        );
    }

    #[test]
    fn examination_of_this_machine_looks_at_everything() -> Result<()> {
        assert_eq!(examine(&std::env::temp_dir())?.len(), 9);
        Ok(())
    }
}
