//! The results as tables with bars for the terminal: one table for each row of the analysis.

use std::fmt::Write as _;

use crate::analysis::{Entry, Row, rows_of, runs_of, spread_text, workloads};
use crate::results::{Label, Outcome, Results, Run};
use crate::text::{bytes_text, ratio_text, time_text};

impl Results {
    /// Returns the tables.
    pub fn text(&self) -> String {
        let mut text = self.heading();
        for workload in workloads(self) {
            for row in rows_of(self, workload) {
                let _ = writeln!(text, "\n{}", row.title());
                text.push_str(&self.table(&row));
            }
            text.push_str(&remarks(&runs_of(self, workload)));
        }
        text
    }

    fn heading(&self) -> String {
        let header = &self.header;
        let machine = &header.machine;
        let gigabytes = machine.memory_bytes as f64 / f64::from(1 << 30);
        let mut text = format!(
            "lab {} at {}; seed {}, scale {}, repeat {}\n{} x {}, {gigabytes:.0} GiB, Linux {}, {}\ncaches of stores that \
             have one: {}\n",
            header.lab,
            header.commit,
            header.seed,
            header.scale,
            header.repeat,
            machine.processors,
            machine.processor,
            machine.kernel,
            machine.file_system,
            header.cache_text(),
        );
        for peer in &header.peers {
            let classes: Vec<String> = peer
                .classes
                .iter()
                .map(|(class, how)| format!("{class} ({how})"))
                .collect();
            let options = peer.options_text();
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
        if let Some(null) = header.peers.iter().find(|peer| peer.is_exempt && !peer.is_no_store) {
            let _ = writeln!(
                text,
                "{} stores nothing: its time/op is what the lab itself costs, checking included, and clock and histogram where \
                 there are percentiles",
                null.name
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

    fn table(&self, row: &Row) -> String {
        let best = row.best_rate();
        let baseline = row.baseline(self);
        let lines: Vec<_> = row.entries.iter().map(|entry| line(entry, baseline, best)).collect();
        let compared = baseline.map_or(String::new(), |baseline| format!("time / {}", baseline.peer));
        let timed = row.timed_text().map_or(String::new(), |text| format!("  {text}\n"));
        render(&lines, &compared) + &timed
    }
}

fn line(entry: &Entry, baseline: Option<&Entry>, best: f64) -> Vec<String> {
    let (Some(time), Some(rate)) = (entry.time(), entry.rate()) else {
        return vec![entry.name(), entry.absence.clone()];
    };
    let operations = entry.median(|phase| phase.operations as f64);
    let is_baseline = baseline.is_some_and(|baseline| baseline.peer == entry.peer);
    let compared = baseline
        .filter(|_| !is_baseline)
        .and_then(|other| entry.times_of(other));
    let mut line = vec![
        entry.name(),
        bar(rate / best),
        if operations > 1.0 {
            format!("{rate:.0}")
        } else {
            "-".to_string()
        },
        spread_text(time, time_text),
        compared.map_or("-".to_string(), |ratio| spread_text(ratio, ratio_text)),
        time_text(entry.median_each(|phase| phase.process_cpu_nanos)),
        time_text(entry.median_each(|phase| phase.callers_cpu_nanos)),
        bytes_text(entry.median(|phase| phase.write_call_bytes as f64)),
        bytes_text(entry.median(|phase| phase.file_bytes as f64)),
        bytes_text(entry.median(|phase| phase.resident_bytes as f64)),
    ];
    line.extend(entry.latency().map(|latency| {
        let parts = [
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p99_9,
            latency.p99_99,
            latency.max,
        ];
        parts.map(|nanos| time_text(nanos as f64)).join(" / ")
    }));
    line
}

/// Width of the longest bar.
const BAR: usize = 16;

/// Draws a bar for a share of the best, in eighths of a character.
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
    "p50 / p90 / p99 / p99.9 / p99.99 / max",
];

/// Aligns the columns. A row of two cells is a peer without numbers: its second cell is a remark.
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

/// Returns the notes of the runs, and the peers that took no part at all.
pub fn remarks(runs: &[&Run]) -> String {
    let mut text = String::new();
    for run in runs {
        match &run.outcome {
            Outcome::Passed(record) => {
                for note in &record.notes {
                    let _ = writeln!(text, "  {} {}: {note}", run.peer, run.repetition + 1);
                }
                let is_first = run.repetition == 0;
                for (phase, reason) in record
                    .unsupported
                    .iter()
                    .filter(|_| is_first && record.phases.is_empty())
                {
                    let _ = writeln!(text, "  {}: n/a in {} {phase}: {reason}", run.peer, run.workload);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Class;
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
    fn heading_states_the_caches() {
        let text = results(vec![run("lmdb", Class::Written, 0, 1)]).text();
        assert!(text.contains("caches of stores that have one: 1 GiB"), "{text}");
    }

    #[test]
    fn cost_of_the_lab_itself_is_shown_for_each_operation() {
        let mut alone = results(vec![run("null", Class::Written, 0, 410)]);
        alone.header.peers.retain(|peer| peer.is_exempt);
        let text = alone.text();
        assert!(
            text.contains("null stores nothing: its time/op is what the lab itself costs"),
            "{text}"
        );
        let line = text.lines().find(|line| line.contains("410 ns")).expect("a line");
        assert!(line.trim_start().starts_with("null"), "{line}");
        let mut without = results(vec![run("lmdb", Class::Written, 0, 100)]);
        without.header.peers.retain(|peer| !peer.is_exempt);
        assert!(!without.text().contains("stores nothing"), "{}", without.text());
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
