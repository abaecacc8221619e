//! `lab compare`: compares two results, of two commits or two machines, row by row, and separates changes from noise.
//!
//! A permutation test on the difference of the mean logarithms of time per operation decides whether a row changed. If
//! old and new were equal, every split of the repetitions into two groups would be as likely as the observed one. The
//! test is exact for small groups, so chance marks a row as changed in at most [`FALSE_ALARMS`] of all cases. A
//! bootstrap interval of 95 % describes the size of a change.
//!
//! The test assumes independent repetitions. It also reports, and cannot explain, a machine that was slow for the whole
//! of one run. The comparison therefore covers the probes of both runs too.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use crate::analysis::{Entry, rows_of, workloads};
use crate::data::Generator;
use crate::measure::Phase;
use crate::probe::Probe;
use crate::results::Results;
use crate::statistics::spread;
use crate::text::time_text;

/// Share of rows that may be reported as changed although nothing changed.
const FALSE_ALARMS: f64 = 0.04;
/// Standard deviations of the normal distribution beyond which [`FALSE_ALARMS`] lie, on both sides together.
const TWO_SIDED: f64 = 2.054;
/// Standard deviations beyond which one in twenty lies, on one side.
const ONE_SIDED: f64 = 1.645;
/// Number of repetitions from which on the normal distribution is close enough.
const MANY: usize = 30;
/// Number of random splits tried when there are too many to try all.
const DEALS: u64 = 5_000;
/// Resamples of the bootstrap.
const RESAMPLES: usize = 2_000;
/// Factor of a change that matters to people.
const MEANT: f64 = 1.1;
/// Probability with which a change of that size should be found.
const FOUND: f64 = 0.95;
/// Probes further apart than this factor make a comparison doubtful.
const PROBES_APART: f64 = 1.5;

/// How a row changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The new run takes more time.
    Slower,
    /// The new run takes less time.
    Faster,
    /// The difference may be chance.
    Noise,
    /// With so few repetitions the test cannot separate a change from chance.
    TooFew,
}

/// A row that both results have.
pub struct Compared {
    /// Title of the row.
    pub title: String,
    /// Median of the old times per operation.
    pub old: f64,
    /// Median of the new times per operation.
    pub new: f64,
    /// New divided by old: median and interval.
    pub ratio: (f64, f64, f64),
    /// How the row changed.
    pub change: Change,
    /// Repetitions on each side with which a change of 10 % would be found in 95 of 100 comparisons.
    pub repetitions_wanted: usize,
}

/// Returns the number of repetitions on each side that finds a change by `factor` in [`FOUND`] of all comparisons,
/// judged by the scatter of these times. It is the usual sum for two means plus a tenth, because the scatter is itself
/// an estimate.
pub fn repetitions_wanted(old: &[f64], new: &[f64], factor: f64) -> usize {
    let squares = |values: &[f64]| {
        let logs: Vec<f64> = values.iter().map(|value| value.max(1e-9).ln()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
        logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>()
    };
    let freedom = (old.len() + new.len()).saturating_sub(2).max(1) as f64;
    let variance = (squares(old) + squares(new)) / freedom;
    let wanted = 2.0 * variance * ((TWO_SIDED + ONE_SIDED) / factor.ln()).powi(2) * 1.1;
    (wanted.ceil() as usize).max(REPETITIONS_LEAST)
}

/// With fewer repetitions on each side, the test cannot separate a change from chance.
const REPETITIONS_LEAST: usize = 4;

/// Decides by the permutation test whether `new` differs from `old`.
pub fn change(old: &[f64], new: &[f64]) -> Change {
    let logs = |values: &[f64]| -> Vec<f64> { values.iter().map(|value| value.max(1e-9).ln()).collect() };
    let (old, new) = (logs(old), logs(new));
    let ways = ways_to_deal(old.len() + new.len(), old.len());
    // The observed split and its mirror image are as extreme as any. With fewer splits than this, the test can never
    // detect a change.
    if old.is_empty() || new.is_empty() || 2.0 / ways > FALSE_ALARMS {
        return Change::TooFew;
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let seen = mean(&new) - mean(&old);
    let all: Vec<f64> = old.iter().chain(&new).copied().collect();
    let is_chance = if old.len().min(new.len()) >= MANY {
        seen.abs() <= deviation_of_deals(&all, new.len()) * TWO_SIDED
    } else {
        chance(&all, new.len(), seen.abs(), ways) > FALSE_ALARMS
    };
    if is_chance {
        Change::Noise
    } else if seen > 0.0 {
        Change::Slower
    } else {
        Change::Faster
    }
}

fn ways_to_deal(all: usize, part: usize) -> f64 {
    (0..part).fold(1.0, |ways, at| ways * (all - at) as f64 / (at + 1) as f64)
}

/// Returns the standard deviation of the difference between the means of random splits. Over many repetitions these
/// differences follow a normal distribution, and the test need not try them.
fn deviation_of_deals(all: &[f64], part: usize) -> f64 {
    let (count, part) = (all.len() as f64, part as f64);
    let mean = all.iter().sum::<f64>() / count;
    let variance = all.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (variance * (1.0 / part + 1.0 / (count - part))).sqrt()
}

/// Returns the share of all splits whose means are at least as far apart as observed.
fn chance(all: &[f64], part: usize, seen: f64, ways: f64) -> f64 {
    let total: f64 = all.iter().sum();
    let rest = (all.len() - part) as f64;
    let is_as_far = |sum: f64| (sum / part as f64 - (total - sum) / rest).abs() >= seen - 1e-12;
    if ways <= DEALS as f64 {
        let (mut deals, mut far) = (0.0, 0.0);
        every_sum(all, part, 0.0, &mut |sum| {
            deals += 1.0;
            far += f64::from(is_as_far(sum));
        });
        return far / deals;
    }
    let mut generator = Generator::new(1, "deals");
    let mut cards = all.to_vec();
    let mut far = 0;
    for _ in 0..DEALS {
        for at in 0..part {
            let other = at + generator.below(cards.len() - at);
            cards.swap(at, other);
        }
        far += u64::from(is_as_far(cards[..part].iter().sum()));
    }
    // The observed split is one of them.
    (far + 1) as f64 / (DEALS + 1) as f64
}

/// Passes the sums of all choices of `part` values to `take`.
fn every_sum(values: &[f64], part: usize, sum: f64, take: &mut dyn FnMut(f64)) {
    if part == 0 {
        return take(sum);
    }
    if let Some((first, rest)) = values.split_first()
        && values.len() >= part
    {
        every_sum(rest, part - 1, sum + first, take);
        every_sum(rest, part, sum, take);
    }
}

/// Returns new divided by old: the ratio of the medians, and the interval that contains 95 % of its resamples.
pub fn interval(old: &[f64], new: &[f64]) -> (f64, f64, f64) {
    if old.is_empty() || new.is_empty() {
        return (f64::NAN, f64::NAN, f64::NAN);
    }
    let middle = |values: &[f64]| spread(values.iter().copied()).map_or(f64::NAN, |spread| spread.median);
    let mut generator = Generator::new(1, "bootstrap");
    let mut resampled = |values: &[f64]| -> f64 {
        let sample: Vec<f64> = values.iter().map(|_| values[generator.below(values.len())]).collect();
        middle(&sample)
    };
    let mut ratios: Vec<f64> = (0..RESAMPLES).map(|_| resampled(new) / resampled(old)).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |part: f64| ratios[((RESAMPLES - 1) as f64 * part) as usize];
    (middle(new) / middle(old), at(0.025), at(0.975))
}

/// Compares all rows that both results have.
pub fn compare(old: &Results, new: &Results) -> Result<Vec<Compared>> {
    let (before, after) = (&old.header, &new.header);
    ensure!(
        before.scale == after.scale && before.seconds == after.seconds && before.rate == after.rate,
        "these cannot be compared: scale {} and {}, seconds {:?} and {:?}, rate {:?} and {:?}",
        before.scale,
        after.scale,
        before.seconds,
        after.seconds,
        before.rate,
        after.rate
    );
    let mut all = Vec::new();
    for workload in workloads(new) {
        let old_rows = rows_of(old, workload);
        for row in rows_of(new, workload) {
            for entry in &row.entries {
                let is_same = |other: &&Entry| other.peer == entry.peer && other.class == entry.class;
                let partner = old_rows
                    .iter()
                    .filter(|one| one.phase == row.phase && one.class == row.class)
                    .find_map(|one| one.entries.iter().find(is_same));
                all.extend(partner.and_then(|partner| {
                    let before = (partner, undisturbed(old, workload, partner));
                    let after = (entry, undisturbed(new, workload, entry));
                    compared(&row.title(), before, after)
                }));
            }
        }
    }
    ensure!(!all.is_empty(), "there is no row that is in both");
    Ok(all)
}

/// Returns the repetitions of a cell that no other process disturbed.
fn undisturbed(results: &Results, workload: &str, entry: &Entry) -> Vec<f64> {
    let is_disturbed = |repetition: u32| {
        results.runs.iter().any(|run| {
            run.workload == workload
                && run.peer == entry.peer
                && run.repetition == repetition
                && run.probe.as_ref().is_some_and(Probe::is_disturbed)
        })
    };
    let values = entry.values(Phase::wall_nanos_each).into_iter();
    values
        .filter(|(repetition, _)| !is_disturbed(*repetition))
        .map(|(_, nanos)| nanos)
        .collect()
}

fn compared(title: &str, old: (&Entry, Vec<f64>), new: (&Entry, Vec<f64>)) -> Option<Compared> {
    let ((old, old_times), (new, new_times)) = (old, new);
    let (before, after) = (old.time()?, new.time()?);
    Some(Compared {
        title: format!("{title}: {}", new.name()),
        old: before.median,
        new: after.median,
        ratio: interval(&old_times, &new_times),
        change: change(&old_times, &new_times),
        repetitions_wanted: repetitions_wanted(&old_times, &new_times, MEANT),
    })
}

/// Formats the comparison as text.
pub fn text(old: &Results, new: &Results, rows: &[Compared]) -> String {
    let mut text = String::new();
    for (name, header) in [("old", &old.header), ("new", &new.header)] {
        let _ = writeln!(
            text,
            "{name}: commit {}, {}, {} repetitions, {} x {}, Linux {}, {}",
            header.commit,
            header.started,
            header.repeat,
            header.machine.processors,
            header.machine.processor,
            header.machine.kernel,
            header.machine.file_system
        );
    }
    for doubt in doubts(old, new) {
        let _ = writeln!(text, "DOUBTFUL: {doubt}");
    }
    let width = rows.iter().map(|row| row.title.chars().count()).max().unwrap_or(0);
    for row in rows {
        let (ratio, least, most) = row.ratio;
        let percent = |ratio: f64| {
            if ratio.is_nan() {
                "-".to_string()
            } else {
                format!("{:+.1} %", (ratio - 1.0) * 100.0)
            }
        };
        let verdict = match row.change {
            Change::Slower => "SLOWER",
            Change::Faster => "faster",
            Change::Noise => "noise",
            Change::TooFew => "too few repetitions",
        };
        let _ = writeln!(
            text,
            "{:<width$}  {:>9} -> {:>9}  {:>8} ({} .. {})  {verdict}{}",
            row.title,
            time_text(row.old),
            time_text(row.new),
            percent(ratio),
            percent(least),
            percent(most),
            wanted_text(row, old.header.repeat.min(new.header.repeat))
        );
    }
    let count = |change| rows.iter().filter(|row| row.change == change).count();
    let _ = writeln!(
        text,
        "{} rows: {} slower, {} faster, {} noise, {} with too few repetitions",
        rows.len(),
        count(Change::Slower),
        count(Change::Faster),
        count(Change::Noise),
        count(Change::TooFew)
    );
    if count(Change::TooFew) > 0 {
        let _ = writeln!(
            text,
            "nothing can be told with fewer than {REPETITIONS_LEAST} undisturbed repetitions on each side, and `lab run` does 3 unless it \
             is told otherwise: run both with --repeat 5"
        );
    }
    let _ = writeln!(
        text,
        "by chance alone, up to {:.0} of these rows would be called slower or faster; the interval is of the ratio of medians, 95 %",
        (rows.len() as f64 * FALSE_ALARMS).ceil()
    );
    text
}

/// Noise can hide a change: describes how many repetitions would reveal it.
fn wanted_text(row: &Compared, repetitions: u32) -> String {
    let is_hidden =
        matches!(row.change, Change::Noise | Change::TooFew) && row.repetitions_wanted > repetitions as usize;
    if is_hidden {
        format!(
            "; {:.0} % would be found in {:.0} of 100 with {} repetitions",
            (MEANT - 1.0) * 100.0,
            FOUND * 100.0,
            row.repetitions_wanted
        )
    } else {
        String::new()
    }
}

/// Lists the differences between two results other than the commit.
fn doubts(old: &Results, new: &Results) -> Vec<String> {
    let mut doubts = Vec::new();
    for (name, results) in [("old", old), ("new", new)] {
        let probes: Vec<&Probe> = results.runs.iter().filter_map(|run| run.probe.as_ref()).collect();
        let disturbed = probes.iter().filter(|probe| probe.is_disturbed()).count();
        if disturbed > 0 {
            doubts.push(format!(
                "others disturbed {disturbed} of {} cells of the {name} run; those are left out",
                probes.len()
            ));
        }
    }
    if old.header.machine != new.header.machine {
        doubts.push("the machines differ: a difference may be theirs".to_string());
    }
    type Measured = fn(&Probe) -> f64;
    let middle = |results: &Results, value: Measured| {
        let probes = results.runs.iter().filter_map(|run| run.probe.as_ref());
        spread(probes.map(value)).map(|spread| spread.median)
    };
    let probes: [(&str, Measured); 3] = [
        ("a sync", |probe| probe.sync_nanos_p50 as f64),
        ("waking a thread", |probe| probe.wake_nanos_p50 as f64),
        ("a timer", |probe| probe.timer_nanos_p50 as f64),
    ];
    for (name, value) in probes {
        if let (Some(before), Some(after)) = (middle(old, value), middle(new, value))
            && before > 0.0
            && !(1.0 / PROBES_APART..=PROBES_APART).contains(&(after / before))
        {
            doubts.push(format!(
                "{name} took {} beside the old run and {} beside the new one: the machine was not the same",
                time_text(before),
                time_text(after)
            ));
        }
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Class;
    use crate::results::tests::{results, run};

    /// Returns recorded times of repetitions, in nanoseconds per operation; one series a line.
    fn recorded() -> Vec<(String, Vec<f64>)> {
        let parsed = include_str!("../tests/data/repetitions.txt")
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(|line| {
                let (name, numbers) = line.split_once(':').expect("a name and numbers");
                let numbers = numbers.split_whitespace().map(|word| word.parse().expect("a number"));
                (name.to_string(), numbers.collect())
            });
        parsed.collect()
    }

    /// Returns how often two samples of `repetitions` repetitions are called changed when the second is slower by
    /// `factor`.
    fn called_changed(times: &[f64], repetitions: usize, factor: f64, wanted: impl Fn(Change) -> bool) -> f64 {
        let tries = 400;
        let mut generator = Generator::new(7, "resampled");
        let mut sample = |factor: f64| -> Vec<f64> {
            (0..repetitions)
                .map(|_| times[generator.below(times.len())] * factor)
                .collect()
        };
        let called = (0..tries)
            .filter(|_| wanted(change(&sample(1.0), &sample(factor))))
            .count();
        called as f64 / f64::from(tries)
    }

    #[test]
    fn at_most_five_in_a_hundred_comparisons_of_the_same_are_false_alarms() {
        let mut all = Vec::new();
        for (name, times) in recorded() {
            for repetitions in [4, 10] {
                let false_alarms = called_changed(&times, repetitions, 1.0, |change| {
                    matches!(change, Change::Slower | Change::Faster)
                });
                // 400 tries at one in 25 give 16 on average. The bound for one series is 5 % plus three deviations of
                // sampling.
                assert!(false_alarms <= 0.08, "{name} at {repetitions}: {false_alarms}");
                all.push(false_alarms);
            }
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!(mean <= 0.05, "{mean}: {all:?}");
    }

    #[test]
    fn slow_down_of_ten_percent_is_found_in_95_of_a_hundred_comparisons() {
        let mut all = Vec::new();
        for (name, times) in recorded() {
            // Uses the number of repetitions that the lab itself says it needs.
            let repetitions = repetitions_wanted(&times, &times, MEANT);
            let found = called_changed(&times, repetitions, MEANT, |change| change == Change::Slower);
            // 400 tries: three deviations of sampling below 95 % for one series; 95 % over all of them.
            assert!(found >= 0.917, "{name} at {repetitions}: {found}");
            all.push(found);
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!(mean >= FOUND, "{mean}: {all:?}");
    }

    #[test]
    fn three_repetitions_are_too_few_and_four_are_enough_for_a_clear_change() {
        assert_eq!(change(&[1.0, 1.1, 1.2], &[5.0, 5.1, 5.2]), Change::TooFew);
        assert_eq!(change(&[1.0, 1.1, 1.2, 1.1], &[5.0, 5.1, 5.2, 5.3]), Change::Slower);
        assert_eq!(change(&[5.0, 5.1, 5.2, 5.3], &[1.0, 1.1, 1.2, 1.1]), Change::Faster);
        assert_eq!(change(&[1.0, 2.0, 3.0, 4.0], &[4.0, 2.0, 1.0, 3.0]), Change::Noise);
        assert_eq!(change(&[], &[1.0]), Change::TooFew);
    }

    #[test]
    fn comparison_of_too_few_repetitions_says_how_many_to_ask_for() -> Result<()> {
        let of = |count: u32| results((0..count).map(|at| run("lmdb", Class::Written, at, 100)).collect());
        let told = |count| -> Result<String> {
            let rows = compare(&of(count), &of(count))?;
            Ok(text(&of(count), &of(count), &rows))
        };
        assert!(told(3)?.contains("run both with --repeat 5"), "{}", told(3)?);
        assert!(!told(4)?.contains("--repeat"), "{}", told(4)?);
        Ok(())
    }

    #[test]
    fn interval_holds_the_ratio() {
        let (ratio, least, most) = interval(&[100.0, 101.0, 99.0, 100.0], &[110.0, 111.0, 109.0, 110.0]);
        assert!(
            least <= ratio && ratio <= most && (1.08..1.12).contains(&ratio),
            "{ratio} {least} {most}"
        );
    }

    #[test]
    fn comparison_names_what_is_slower_and_what_differs_beside_the_commit() -> Result<()> {
        let of = |nanos: [u64; 4]| {
            let runs = (0..4u32).map(|at| run("lmdb", Class::Written, at, nanos[at as usize]));
            results(runs.collect())
        };
        let (old, mut new) = (of([100, 101, 102, 103]), of([200, 201, 202, 203]));
        new.header.machine.processor = "another one".to_string();
        let rows = compare(&old, &new)?;
        let text = text(&old, &new, &rows);
        assert!(text.contains("first: put, class written: lmdb (written)"), "{text}");
        assert!(text.contains("SLOWER") && text.contains("+98.5 %"), "{text}");
        assert!(text.contains("DOUBTFUL: the machines differ"), "{text}");
        new.header.scale = 0.25;
        assert!(compare(&old, &new).is_err(), "other counts are other work");
        Ok(())
    }
}
