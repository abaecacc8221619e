//! Results arranged in rows: one row is one phase of one workload, in one class if it writes, with an entry for each
//! peer. The terminal and the page show the same rows, and the verdict follows from them.
//!
//! Phases that write get a row per durability class. Phases that read share one row, because the way a pair was made
//! durable changes nothing for its readers.

use crate::measure::BY_LIMIT;
use crate::measure::{Latency, Phase, Work};
use crate::peer::Class;
use crate::results::{Outcome, Results, Run};
use crate::statistics::{Spread, ratios, spread};
use crate::text::count_text;

/// Peers that are not stores. They show the cost of something, and no peer leads or loses against them.
pub const NO_STORES: [&str; 5] = [
    "btreemap",
    "null",
    "tonic-floor",
    "tonic-floor-apart",
    "tonic-floor-spinning",
];

/// One phase of one workload in one class.
pub struct Row<'a> {
    /// Name of the task.
    pub workload: &'a str,
    /// Name of the phase.
    pub phase: String,
    /// The class, if the phase writes.
    pub class: Option<Class>,
    /// The peers, in the order of the results.
    pub entries: Vec<Entry<'a>>,
}

/// One peer, over all repetitions.
pub struct Entry<'a> {
    /// Name of the peer.
    pub peer: &'a str,
    /// Class of the peer.
    pub class: Option<Class>,
    /// Measured phases, each with its repetition.
    pub phases: Vec<(u32, &'a Phase)>,
    /// How far the peer came.
    pub standing: Standing,
    /// The reason why the peer has no time, if it has none.
    pub absence: String,
}

/// How far a peer came in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The peer did the work, and has a time.
    Timed,
    /// The limit of the cell ended this phase, or an earlier one.
    Stopped,
    /// The peer aborted, or read a wrong value.
    Failed,
    /// The peer cannot do this, or had nothing to do.
    Absent,
}

/// Returns the names of the tasks that ran, in order.
pub fn workloads(results: &Results) -> Vec<&str> {
    let mut names: Vec<&str> = results.runs.iter().map(|run| run.workload.as_str()).collect();
    names.dedup();
    names
}

/// Returns the runs of a task.
pub fn runs_of<'a>(results: &'a Results, workload: &str) -> Vec<&'a Run> {
    results.runs.iter().filter(|run| run.workload == workload).collect()
}

/// Returns all rows of a task, in the order in which the phases ran.
pub fn rows_of<'a>(results: &'a Results, workload: &'a str) -> Vec<Row<'a>> {
    let runs = runs_of(results, workload);
    let mut rows = Vec::new();
    for (phase, work) in phases_of(&runs) {
        for class in classes_of(&runs, work) {
            let of_class = |run: &&&Run| class.is_none() || run.class == class;
            let chosen: Vec<&Run> = runs.iter().filter(of_class).copied().collect();
            let entries = results.header.peers.iter();
            rows.push(Row {
                workload,
                class,
                entries: entries
                    .filter_map(|peer| Entry::collect(&peer.name, &chosen, &phase))
                    .collect(),
                phase: phase.clone(),
            });
        }
    }
    rows
}

/// Returns the phases in the order in which they ran, including those that only some peers can do.
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

impl<'a> Row<'a> {
    /// Returns the baseline peer, if it took part: the first peer of the results.
    pub fn baseline(&self, results: &Results) -> Option<&Entry<'a>> {
        let first = results.header.peers.first()?;
        self.entries.iter().find(|entry| entry.peer == first.name)
    }

    /// Returns the highest rate of a store, or of any peer when no store has a rate.
    pub fn best_rate(&self) -> f64 {
        let rates = |only_stores: bool| {
            let wanted = self
                .entries
                .iter()
                .filter(move |entry| !only_stores || !NO_STORES.contains(&entry.peer));
            wanted.filter_map(Entry::rate).fold(0.0, f64::max)
        };
        let best = rates(true);
        if best > 0.0 { best } else { rates(false).max(1e-9) }
    }

    /// Describes what a latency of this row covers, when it is not a single operation.
    pub fn timed_text(&self) -> Option<String> {
        let together = |phase: &Phase| {
            let timed = phase.timed.filter(|timed| *timed > 0)?;
            Some(phase.operations as f64 / timed as f64).filter(|together| *together >= 1.5)
        };
        let phases = self.entries.iter().flat_map(|entry| &entry.phases);
        let all = spread(phases.filter_map(|(_, phase)| together(phase)))?;
        Some(format!(
            "A latency here is that of a commit, pass or step of about {} operations.",
            count_text(all.median)
        ))
    }

    /// Returns the title of the row's table.
    pub fn title(&self) -> String {
        let class = self.class.map_or(String::new(), |class| format!(", class {class}"));
        format!("{}: {}{class}", self.workload, self.phase)
    }
}

impl<'a> Entry<'a> {
    fn collect(peer: &'a str, runs: &[&'a Run], phase: &str) -> Option<Entry<'a>> {
        let own: Vec<&Run> = runs.iter().filter(|run| run.peer == peer).copied().collect();
        let found = |run: &&'a Run| Some((run.repetition, run.phases().iter().find(|one| one.name == phase)?));
        let first = own.first()?;
        let phases: Vec<(u32, &Phase)> = own.iter().filter_map(found).collect();
        // A class of workers that had nothing to do has no rate.
        let has_worked = !phases.is_empty() && phases.iter().all(|(_, phase)| phase.operations > 0);
        let stopped = phases.iter().find_map(|(_, phase)| phase.stopped_text());
        let not_reached = || own.iter().find_map(|run| stopped_before(run, phase));
        let is_failed = own.iter().any(|run| matches!(run.outcome, Outcome::Failed(_)));
        let (standing, absence) = match stopped {
            _ if is_failed => (Standing::Failed, "FAILED".to_string()),
            Some(stopped) => (Standing::Stopped, stopped),
            None if has_worked => (Standing::Timed, String::new()),
            None if !phases.is_empty() => (Standing::Absent, "nothing to do".to_string()),
            None => match not_reached() {
                Some(stopped) => (Standing::Stopped, stopped),
                None => (Standing::Absent, inability(first, phase)),
            },
        };
        // A stopped phase did different work from a completed one, and a peer that read a wrong value has no speed.
        // Neither has a rate to compare.
        let is_shown = matches!(standing, Standing::Timed | Standing::Absent);
        Some(Entry {
            peer,
            class: first.class,
            phases: if is_shown { phases } else { Vec::new() },
            standing,
            absence,
        })
    }

    /// Returns the name and the class.
    pub fn name(&self) -> String {
        let class = self.class.map_or(String::new(), |class| format!(" ({class})"));
        format!("{}{class}", self.peer)
    }

    /// Returns a number of each repetition.
    pub fn values(&self, value: impl Fn(&Phase) -> f64) -> Vec<(u32, f64)> {
        self.phases
            .iter()
            .map(|(repetition, phase)| (*repetition, value(phase)))
            .collect()
    }

    /// Returns the elapsed time per operation in nanoseconds.
    pub fn time(&self) -> Option<Spread> {
        let times = self.values(Phase::wall_nanos_each);
        spread(times.into_iter().map(|(_, nanos)| nanos)).filter(|_| self.standing == Standing::Timed)
    }

    /// Returns the operations per second.
    pub fn rate(&self) -> Option<f64> {
        self.time().map(|time| 1e9 / time.median.max(1e-3))
    }

    /// Returns the median of a number over the repetitions.
    pub fn median(&self, value: impl Fn(&Phase) -> f64) -> f64 {
        spread(self.values(value).into_iter().map(|(_, value)| value)).map_or(0.0, |spread| spread.median)
    }

    /// Returns the median of a number per operation.
    pub fn median_each(&self, value: impl Fn(&Phase) -> u64) -> f64 {
        self.median(|phase| value(phase) as f64 / phase.operations.max(1) as f64)
    }

    /// Returns this peer's time divided by the other peer's, pair by pair. Above 1, this peer is slower.
    pub fn times_of(&self, other: &Entry) -> Option<Spread> {
        ratios(
            &self.values(Phase::wall_nanos_each),
            &other.values(Phase::wall_nanos_each),
        )
    }

    /// Returns the medians of the percentiles over the repetitions, and the largest of the maxima.
    pub fn latency(&self) -> Option<Latency> {
        let latencies: Vec<Latency> = self.phases.iter().filter_map(|(_, phase)| phase.latency).collect();
        let median = |value: fn(&Latency) -> u64| {
            spread(latencies.iter().map(|one| value(one) as f64)).map(|all| all.median as u64)
        };
        Some(Latency {
            p50: median(|one| one.p50)?,
            p90: median(|one| one.p90)?,
            p99: median(|one| one.p99)?,
            p99_9: median(|one| one.p99_9)?,
            p99_99: median(|one| one.p99_99)?,
            max: latencies.iter().map(|one| one.max).max()?,
        })
    }

    /// Returns the repetition with the median time. Its curves are drawn.
    pub fn middle(&self) -> Option<&'a Phase> {
        let mut phases: Vec<&Phase> = self.phases.iter().map(|(_, phase)| *phase).collect();
        phases.sort_by(|one, other| one.wall_nanos_each().total_cmp(&other.wall_nanos_each()));
        phases.get(phases.len().saturating_sub(1) / 2).copied()
    }
}

/// Describes where the limit of the cell stopped a run, if that is why the run did not reach a phase.
fn stopped_before(run: &Run, phase: &str) -> Option<String> {
    let Outcome::Passed(record) = &run.outcome else {
        return None;
    };
    let reason = record.unsupported.iter().find(|(name, _)| name == phase);
    let is_by_limit = reason.is_none_or(|(_, reason)| reason.ends_with(BY_LIMIT));
    let stopped = |before: &Phase| Some(format!("not reached: {} in {}", before.stopped_text()?, before.name));
    let found = record.phases.iter().find_map(stopped).filter(|_| is_by_limit);
    // A phase stopped before its clock started has no record.
    found.or_else(|| Some(reason.filter(|_| is_by_limit)?.1.clone()))
}

/// Describes why a run lacks a phase that no limit stopped.
fn inability(run: &Run, phase: &str) -> String {
    match &run.outcome {
        Outcome::NotApplicable(reason) => format!("n/a: {reason}"),
        Outcome::Failed(_) => "FAILED".to_string(),
        Outcome::Passed(record) => {
            let reason = record.unsupported.iter().find(|(name, _)| name == phase);
            format!("n/a: {}", reason.map_or("not part of its run", |(_, reason)| reason))
        }
    }
}

/// Returns the title of a row without its class.
pub fn without_class(title: &str) -> &str {
    title.split(", class ").next().unwrap_or(title)
}

/// Splits the name of a task into its family and the size that it ends with: `growth/kept-1k` is 1,000 of
/// `growth/kept-`.
pub fn sized(workload: &str) -> Option<(&str, f64)> {
    let start = workload.rfind(['/', '-'])? + 1;
    let (family, size) = workload.split_at(start);
    let size = size.trim_end_matches('B');
    let digits = size.trim_end_matches(['k', 'M']);
    let factor = match &size[digits.len()..] {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        _ => return None,
    };
    Some((family, digits.parse::<u32>().ok()? as f64 * factor))
}

/// Formats median and range; for a single run, only its number.
pub fn spread_text(spread: Spread, text: fn(f64) -> String) -> String {
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
    use crate::text::{bytes_text, time_text};

    #[test]
    fn size_is_read_from_the_end_of_a_name() {
        assert_eq!(sized("map/16M"), Some(("map/", 16e6)));
        assert_eq!(sized("growth/size-1kB"), Some(("growth/size-", 1e3)));
        assert_eq!(sized("sizes/100B"), Some(("sizes/", 100.0)));
        for name in ["first", "mega/60s", "mega/counts", "fanout/1M-1k-1k-in-turn", "ycsb-a"] {
            assert_eq!(sized(name), None, "{name}");
        }
    }

    #[test]
    fn rows_never_mix_classes_of_writes_but_compare_reads() {
        let results = results(vec![
            run("lmdb", Class::Written, 0, 100),
            run("redb", Class::None, 0, 400),
        ]);
        let rows = rows_of(&results, "first");
        let titles: Vec<String> = rows.iter().map(Row::title).collect();
        assert_eq!(
            titles,
            ["first: put, class written", "first: put, class none", "first: get"]
        );
        assert_eq!(rows[0].entries.len(), 1);
        assert_eq!(rows[2].entries.len(), 2);
        assert_eq!(rows[2].best_rate(), 1e9 / 50.0);
    }

    #[test]
    fn peer_that_failed_once_has_no_speed() {
        let mut failed = run("lmdb", Class::Written, 1, 100);
        failed.outcome = Outcome::Failed("a wrong value".to_string());
        let results = results(vec![run("lmdb", Class::Written, 0, 100), failed]);
        let rows = rows_of(&results, "first");
        let entry = &rows[0].entries[0];
        assert!(entry.phases.is_empty() && entry.absence == "FAILED");
    }

    #[test]
    fn latency_of_a_commit_is_told_from_that_of_an_operation() {
        let mut run = run("lmdb", Class::Written, 0, 100);
        let Outcome::Passed(record) = &mut run.outcome else {
            panic!("it passed")
        };
        record.phases[0].timed = Some(2);
        record.phases[1].timed = Some(10);
        let results = results(vec![run]);
        let rows = rows_of(&results, "first");
        let text = rows[0].timed_text().expect("2 times of 10 operations");
        assert!(text.contains("about 5 operations"), "{text}");
        assert_eq!(rows[1].timed_text(), None, "each was timed");
    }

    #[test]
    fn phase_after_one_that_was_stopped_says_where_its_run_was_stopped() {
        let mut run = run("lmdb", Class::Written, 0, 100);
        let Outcome::Passed(record) = &mut run.outcome else {
            panic!("it passed")
        };
        record.phases[0].stopped_at_of = Some(1000);
        record.phases.pop();
        record
            .unsupported
            .push(("get".to_string(), format!("not reached {BY_LIMIT}")));
        record
            .unsupported
            .push(("compact".to_string(), "cannot be compacted".to_string()));
        let entry = |phase| Entry::collect("lmdb", &[&run], phase).expect("it took part");
        assert_eq!(entry("put").standing, Standing::Stopped);
        assert_eq!(entry("get").standing, Standing::Stopped);
        assert_eq!(entry("get").absence, "not reached: stopped at 10 of 1000 in put");
        assert_eq!(entry("compact").standing, Standing::Absent);
        assert_eq!(entry("compact").absence, "n/a: cannot be compacted");
    }

    #[test]
    fn numbers_are_written_as_people_write_them() {
        assert_eq!(count_text(1_234_567.0), "1,234,567");
        assert_eq!(count_text(999.0), "999");
        assert_eq!(time_text(1_500.0), "1.50 us");
        assert_eq!(bytes_text(2_000_000.0), "2.0 MB");
    }
}
