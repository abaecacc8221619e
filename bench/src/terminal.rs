//! The results as tables with bars for the terminal.
//!
//! A table is one phase of one workload. Phases that write get a table per durability class; phases that read share
//! one, because how a pair was made durable changes nothing for who reads it. Each peer's class stands beside its name.

use std::fmt::Write as _;

use crate::measure::{Latency, Phase, Work};
use crate::peer::Class;
use crate::results::{Label, Outcome, Results, Run};
use crate::statistics::{Spread, ratios, spread};

impl Results {
    /// The tables.
    pub fn text(&self) -> String {
        let mut text = self.heading();
        let mut workloads: Vec<&str> = self.runs.iter().map(|run| run.workload.as_str()).collect();
        workloads.dedup();
        for workload in workloads {
            let runs: Vec<&Run> = self.runs.iter().filter(|run| run.workload == workload).collect();
            for (phase, work) in phases_of(&runs) {
                for class in classes_of(&runs, work) {
                    let of_class = |run: &&&Run| class.is_none() || run.class == class;
                    let runs: Vec<&Run> = runs.iter().filter(of_class).copied().collect();
                    let class = class.map_or(String::new(), |class| format!(", class {class}"));
                    let _ = writeln!(text, "\n{workload}: {phase}{class}");
                    text.push_str(&self.table(&runs, &phase));
                }
            }
            text.push_str(&remarks(&runs));
        }
        text
    }

    fn heading(&self) -> String {
        let header = &self.header;
        let machine = &header.machine;
        let gigabytes = machine.memory_bytes as f64 / f64::from(1 << 30);
        let mut text = format!(
            "lab {} at {}; seed {}, scale {}, repeat {}\n{} x {}, {gigabytes:.0} GiB, Linux {}, {}\n",
            header.lab,
            header.commit,
            header.seed,
            header.scale,
            header.repeat,
            machine.processors,
            machine.processor,
            machine.kernel,
            machine.file_system,
        );
        for peer in &header.peers {
            let classes: Vec<String> = peer
                .classes
                .iter()
                .map(|(class, how)| format!("{class} ({how})"))
                .collect();
            let options = if peer.options.is_empty() {
                "defaults".to_string()
            } else {
                peer.options.join("; ")
            };
            let _ = writeln!(
                text,
                "  {}: {}; {}; {options}",
                peer.name,
                peer.version,
                classes.join("; ")
            );
        }
        if let [first, _, ..] = header.peers.as_slice() {
            let name = &first.name;
            let _ = writeln!(
                text,
                "time / {name}: above 1 is slower than {name}; the median of run-by-run ratios"
            );
        }
        if header.label == Label::Quick {
            text.push_str("SANITY, NOT EVIDENCE: small counts, few repetitions\n");
        }
        if let Some(rate) = header.rate {
            let _ = writeln!(
                text,
                "open loop: {rate} operations a second were due, whatever the store did; op/s cannot be above that"
            );
        }
        if machine.is_in_memory() {
            text.push_str("THE STORES WERE IN MEMORY: nothing here says anything about a disk; use --directory\n");
        }
        text
    }

    fn table(&self, runs: &[&Run], phase: &str) -> String {
        let series: Vec<Series> = self
            .header
            .peers
            .iter()
            .filter_map(|peer| Series::collect(&peer.name, runs, phase))
            .collect();
        // The longest bar is the best store's; `null` and `btreemap` would make all others invisible.
        let is_store = |one: &&Series| !["null", "btreemap"].contains(&one.peer);
        let best = series
            .iter()
            .filter(is_store)
            .filter_map(Series::rate)
            .fold(0.0, f64::max);
        let best = if best > 0.0 {
            best
        } else {
            series.iter().filter_map(Series::rate).fold(1e-9, f64::max)
        };
        // The first peer in the report's order is the one to compare with: Duramen, where it takes part.
        let Some(baseline) = self
            .header
            .peers
            .first()
            .and_then(|first| series.iter().find(|series| series.peer == first.name))
        else {
            return render(&series.iter().map(|one| one.row(None, best)).collect::<Vec<_>>(), "");
        };
        let rows: Vec<_> = series.iter().map(|one| one.row(Some(baseline), best)).collect();
        render(&rows, &format!("time / {}", baseline.peer))
    }
}

/// The phases in the order in which they were done, those of peers that skip some included.
fn phases_of(runs: &[&Run]) -> Vec<(String, Work)> {
    let mut phases: Vec<(String, Work)> = Vec::new();
    for phase in runs.iter().flat_map(|run| run.phases()) {
        if !phases.iter().any(|(name, _)| *name == phase.name) {
            phases.push((phase.name.clone(), phase.work));
        }
    }
    phases
}

fn classes_of(runs: &[&Run], work: Work) -> Vec<Option<Class>> {
    if work == Work::Reads {
        return vec![None];
    }
    let mut classes: Vec<Option<Class>> = runs.iter().map(|run| run.class).filter(Option::is_some).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// One phase of one peer over all repetitions.
struct Series<'a> {
    peer: &'a str,
    class: Option<Class>,
    phases: Vec<(u32, &'a Phase)>,
    /// Why there are no phases.
    absence: String,
}

impl<'a> Series<'a> {
    fn collect(peer: &'a str, runs: &[&'a Run], phase: &str) -> Option<Series<'a>> {
        let own: Vec<&Run> = runs.iter().filter(|run| run.peer == peer).copied().collect();
        let found = |run: &&'a Run| Some((run.repetition, run.phases().iter().find(|one| one.name == phase)?));
        let first = own.first()?;
        let absence = match &first.outcome {
            Outcome::NotApplicable(reason) => format!("n/a: {reason}"),
            Outcome::Failed(_) => "FAILED".to_string(),
            Outcome::Passed(record) => {
                let reason = record.unsupported.iter().find(|(name, _)| name == phase);
                format!("n/a: {}", reason.map_or("not part of its run", |(_, reason)| reason))
            }
        };
        let phases: Vec<(u32, &Phase)> = own.iter().filter_map(found).collect();
        let stopped = phases.iter().find_map(|(_, phase)| phase.stopped_text());
        Some(Series {
            peer,
            class: first.class,
            // A phase that was stopped did other work than one that was not: it has no rate to compare.
            phases: if stopped.is_some() { Vec::new() } else { phases },
            absence: stopped.unwrap_or(absence),
        })
    }

    fn values(&self, value: impl Fn(&Phase) -> f64) -> Vec<(u32, f64)> {
        self.phases
            .iter()
            .map(|(repetition, phase)| (*repetition, value(phase)))
            .collect()
    }

    fn median(&self, value: impl Fn(&Phase) -> f64) -> f64 {
        spread(self.values(value).into_iter().map(|(_, value)| value)).map_or(0.0, |spread| spread.median)
    }

    fn rate(&self) -> Option<f64> {
        spread(self.values(Phase::wall_nanos_each).into_iter().map(|(_, nanos)| nanos)).map(|time| 1e9 / time.median)
    }

    fn row(&self, baseline: Option<&Series>, best: f64) -> Vec<String> {
        let class = self.class.map_or(String::new(), |class| format!(" ({class})"));
        let name = format!("{}{class}", self.peer);
        let Some(time) = spread(self.values(Phase::wall_nanos_each).into_iter().map(|(_, nanos)| nanos)) else {
            return vec![name, self.absence.clone()];
        };
        let each = |value: fn(&Phase) -> u64| self.median(|phase| value(phase) as f64 / phase.operations.max(1) as f64);
        let operations = self.median(|phase| phase.operations as f64);
        let rate = if operations > 1.0 {
            format!("{:.0}", 1e9 / time.median)
        } else {
            "-".to_string()
        };
        let is_baseline = baseline.is_some_and(|baseline| baseline.peer == self.peer);
        let compared = baseline.filter(|_| !is_baseline).and_then(|baseline| {
            ratios(
                &self.values(Phase::wall_nanos_each),
                &baseline.values(Phase::wall_nanos_each),
            )
        });
        let mut row = vec![
            name,
            bar(1e9 / time.median / best),
            rate,
            spread_text(time, time_text),
            compared.map_or("-".to_string(), |ratio| spread_text(ratio, ratio_text)),
            time_text(each(|phase| phase.process_cpu_nanos)),
            time_text(each(|phase| phase.callers_cpu_nanos)),
            bytes_text(self.median(|phase| phase.write_call_bytes as f64)),
            bytes_text(self.median(|phase| phase.file_bytes as f64)),
            bytes_text(self.median(|phase| phase.resident_bytes as f64)),
        ];
        row.extend(self.latency_text());
        row
    }

    /// Medians of the percentiles over the repetitions; of the maxima the largest.
    fn latency_text(&self) -> Option<String> {
        let latencies: Vec<Latency> = self.phases.iter().filter_map(|(_, phase)| phase.latency).collect();
        let median =
            |value: fn(&Latency) -> u64| spread(latencies.iter().map(|one| value(one) as f64)).map(|all| all.median);
        let parts = [
            median(|one| one.p50)?,
            median(|one| one.p90)?,
            median(|one| one.p99)?,
            median(|one| one.p99_9)?,
        ];
        let max = latencies.iter().map(|one| one.max).max()?;
        let texts: Vec<String> = parts.into_iter().chain([max as f64]).map(time_text).collect();
        Some(texts.join(" / "))
    }
}

/// Places of the longest bar.
const BAR: usize = 16;

/// A bar for a part of the best, in eighths of a place.
fn bar(part: f64) -> String {
    let eighths = (part.clamp(0.0, 1.0) * BAR as f64 * 8.0).round() as usize;
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    let bar = format!("{}{rest}", "█".repeat(eighths / 8));
    if bar.is_empty() { "▏".to_string() } else { bar }
}

const COLUMNS: [&str; 11] = [
    "peer",
    "",
    "op/s",
    "time/op (min .. max)",
    "",
    "cpu/op",
    "callers",
    "written",
    "files",
    "resident",
    "p50 / p90 / p99 / p99.9 / max",
];

/// Lines up the columns. A row of two cells is a peer without numbers: its second cell is a remark.
fn render(rows: &[Vec<String>], compared: &str) -> String {
    let has_latency = rows.iter().any(|row| row.len() == COLUMNS.len());
    let mut heading: Vec<String> = COLUMNS.iter().map(|column| column.to_string()).collect();
    heading[4] = compared.to_string();
    heading.truncate(if has_latency { COLUMNS.len() } else { COLUMNS.len() - 1 });
    let all: Vec<&Vec<String>> = std::iter::once(&heading).chain(rows).collect();
    let is_counted = |row: &&&Vec<String>, column: usize| column == 0 || row.len() > 2;
    let width = |column: usize| {
        let cells = all
            .iter()
            .filter(|row| is_counted(row, column))
            .filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let mut text = String::new();
    for row in all {
        let cells: Vec<String> = match row.as_slice() {
            [name, remark] => vec![format!("{name:<0$}", widths[0]), remark.clone()],
            cells => cells
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| match column {
                    0 | 1 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                })
                .collect(),
        };
        let _ = writeln!(text, "  {}", cells.join("  ").trim_end());
    }
    text
}

/// Notes of the runs and peers that took no part at all.
fn remarks(runs: &[&Run]) -> String {
    let mut text = String::new();
    for run in runs {
        match &run.outcome {
            Outcome::Passed(record) => {
                for note in &record.notes {
                    let _ = writeln!(text, "  {} {}: {note}", run.peer, run.repetition + 1);
                }
            }
            Outcome::NotApplicable(reason) if run.repetition == 0 => {
                let _ = writeln!(text, "  {}: n/a in {}: {reason}", run.peer, run.workload);
            }
            Outcome::NotApplicable(_) => {}
            Outcome::Failed(error) => {
                let _ = writeln!(text, "  {} {}: FAILED: {error}", run.peer, run.repetition + 1);
            }
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn time_text(nanos: f64) -> String {
    match nanos {
        ..1e3 => format!("{nanos:.0} ns"),
        ..1e6 => format!("{:.2} us", nanos / 1e3),
        ..1e9 => format!("{:.2} ms", nanos / 1e6),
        _ => format!("{:.2} s", nanos / 1e9),
    }
}

fn bytes_text(bytes: f64) -> String {
    match bytes {
        ..1e3 => format!("{bytes:.0} B"),
        ..1e6 => format!("{:.0} kB", bytes / 1e3),
        ..1e9 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.2} GB", bytes / 1e9),
    }
}

fn ratio_text(ratio: f64) -> String {
    if ratio < 0.1 {
        format!("{ratio:.4}")
    } else {
        format!("{ratio:.2}")
    }
}

/// Median and range; of a single run only the one number there is.
fn spread_text(spread: Spread, text: fn(f64) -> String) -> String {
    let median = text(spread.median);
    if spread.min == spread.max {
        median
    } else {
        format!("{median} ({} .. {})", text(spread.min), text(spread.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{results, run};

    #[test]
    fn tables_never_mix_classes_of_writes_but_compare_reads() {
        let text = results(vec![
            run("lmdb", Class::Written, 0, 100),
            run("redb", Class::None, 0, 400),
            run("redb", Class::None, 1, 400),
            run("lmdb", Class::Written, 1, 200),
        ])
        .text();
        let (written, rest) = text
            .split_once("put, class written")
            .expect("a table")
            .1
            .split_once("put, class none")
            .expect("a table");
        assert!(written.contains("lmdb") && !written.contains("redb"), "{text}");
        let (none, reads) = rest.split_once("first: get").expect("a table");
        assert!(none.contains("redb") && !none.contains("lmdb"), "{text}");
        assert!(reads.contains("lmdb") && reads.contains("redb"), "{text}");
        // 200 / 50 and 200 / 100, pair by pair.
        assert!(reads.contains("3.00 (2.00 .. 4.00)"), "{text}");
        assert!(reads.contains("75 ns (50 ns .. 100 ns)"), "{text}");
    }

    #[test]
    fn failures_and_absences_are_shown_with_their_reason() {
        let mut failed = run("redb", Class::None, 0, 1);
        failed.outcome = Outcome::Failed("key 00 holds 01".to_string());
        let mut absent = run("null", Class::None, 0, 1);
        absent.outcome = Outcome::NotApplicable("has no class synced".to_string());
        let report = results(vec![run("lmdb", Class::Written, 0, 1), failed, absent]);
        assert_eq!(report.failures().len(), 1);
        let text = report.text();
        assert!(
            text.contains("FAILED: key 00 holds 01") && text.contains("n/a in first: has no class synced"),
            "{text}"
        );
    }

    #[test]
    fn report_survives_json() {
        let report = results(vec![run("lmdb", Class::Written, 0, 100)]);
        let json = serde_json::to_string(&report).expect("a report is JSON");
        let back: Results = serde_json::from_str(&json).expect("what was just written");
        assert_eq!(back.text(), report.text());
    }

    #[test]
    fn phase_that_was_stopped_is_shown_as_such_and_compared_with_nothing() {
        let mut stopped = run("redb", Class::Written, 0, 100);
        if let Outcome::Passed(record) = &mut stopped.outcome {
            record.phases[0].stopped_at_of = Some(1000);
        }
        let text = results(vec![run("lmdb", Class::Written, 0, 100), stopped]).text();
        assert!(text.contains("stopped at 10 of 1000"), "{text}");
        let line = text.lines().find(|line| line.contains("stopped at")).expect("a line");
        assert!(!line.contains("op/s") && !line.contains(" ns"), "{line}");
    }

    #[test]
    fn longest_bar_is_that_of_the_best_store() {
        assert_eq!(bar(1.0), "█".repeat(BAR));
        assert_eq!(bar(0.5), "█".repeat(BAR / 2));
        assert_eq!(bar(0.0), "▏");
        assert_eq!(bar(7.0), bar(1.0), "one that is no store can be beyond it");
    }
}
