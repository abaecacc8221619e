//! The charts at the front of the report: throughput against threads, against the size of the data and over time, and
//! latency by percentile. The first of each kind are shown, the others folded away.
//!
//! Charts over time and of latency show one row of each workload, the longest that has something to draw. The parts
//! below have the curves of all rows.

use std::fmt::Write as _;

use crate::analysis::{Row, rows_of, sized, workloads};
use crate::curves::Curves;
use crate::html::escaped;
use crate::measure::Phase;
use crate::results::Results;

/// Number of charts of a kind that are not folded away.
const SHOWN: usize = 4;

/// The rows of one workload of a part.
struct Task<'a> {
    part: usize,
    results: &'a Results,
    workload: &'a str,
    rows: Vec<Row<'a>>,
}

impl<'a> Task<'a> {
    /// Returns all tasks; those of the part that began last come first.
    fn all(all: &'a [Results]) -> Vec<Task<'a>> {
        let mut parts: Vec<(usize, &Results)> = all.iter().enumerate().collect();
        parts.sort_by_key(|(part, results)| std::cmp::Reverse((results.header.started_unix, *part)));
        let of_part = |(part, results): (usize, &'a Results)| {
            workloads(results).into_iter().map(move |workload| Task {
                part,
                results,
                workload,
                rows: rows_of(results, workload),
            })
        };
        parts.into_iter().flat_map(of_part).collect()
    }

    fn base(&self) -> &'a str {
        self.workload.split('/').next().unwrap_or(self.workload)
    }

    /// Whether the rows of two tasks may stand in one chart.
    fn is_alike(&self, other: &Task) -> bool {
        let (one, other) = (&self.results.header, &other.results.header);
        one.machine == other.machine
            && one.durability == other.durability
            && (one.scale, one.seconds, one.rate) == (other.scale, other.seconds, other.rate)
    }
}

/// Writes the charts.
pub fn write_gallery(html: &mut String, all: &[Results], curves: &Curves) {
    let tasks = Task::all(all);
    let threads = tasks.iter().map(|task| {
        curves.threads(
            &format!("{}: operations a second against threads", task.workload),
            &task.rows,
        )
    });
    let kinds = [
        (
            "Throughput against threads",
            threads.filter(|chart| !chart.is_empty()).collect(),
        ),
        ("Throughput against the size of the data", against_size(&tasks, curves)),
        (
            "Throughput over time",
            of_workloads(&tasks, |row| curves.throughput(&row.title(), row)),
        ),
        (
            "Latency by percentile",
            of_workloads(&tasks, |row| curves.latency(&row.title(), row)),
        ),
    ];
    if kinds.iter().all(|(_, charts): &(_, Vec<String>)| charts.is_empty()) {
        return;
    }
    html.push_str("<section><h2 id=\"charts\">Charts</h2>");
    for (title, charts) in &kinds {
        write_kind(html, title, charts);
    }
    html.push_str("</section>\n");
}

fn write_kind(html: &mut String, title: &str, charts: &[String]) {
    if charts.is_empty() {
        return;
    }
    let (shown, folded) = charts.split_at(SHOWN.min(charts.len()));
    let _ = write!(
        html,
        "<h3>{}</h3><div class=\"charts\">{}</div>",
        escaped(title),
        shown.concat()
    );
    if !folded.is_empty() {
        let _ = write!(
            html,
            "<details><summary>{} more: {}</summary><div class=\"charts\">{}</div></details>",
            folded.len(),
            escaped(title),
            folded.concat()
        );
    }
}

/// Returns a chart of each row whose workload ran with several sizes, those with most times first. Sizes may come from
/// several parts.
fn against_size(tasks: &[Task], curves: &Curves) -> Vec<String> {
    let mut charts: Vec<(usize, String)> = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        let Some((family, _)) = sized(task.workload) else {
            continue;
        };
        let is_of =
            |other: &&Task| sized(other.workload).is_some_and(|(name, _)| name == family) && task.is_alike(other);
        if tasks[..at].iter().any(|earlier| is_of(&earlier)) {
            continue;
        }
        let relatives: Vec<&Task> = tasks[at..].iter().filter(is_of).collect();
        for row in &task.rows {
            charts.push(of_sizes(family, row, &relatives, curves));
        }
    }
    charts.retain(|(_, chart)| !chart.is_empty());
    charts.sort_by_key(|(times, _)| std::cmp::Reverse(*times));
    charts.into_iter().map(|(_, chart)| chart).collect()
}

/// Returns the number of times in a chart of sizes, and the chart.
fn of_sizes(family: &str, row: &Row, relatives: &[&Task], curves: &Curves) -> (usize, String) {
    let mut points: Vec<(f64, &Row)> = Vec::new();
    let mut parts: Vec<usize> = Vec::new();
    for task in relatives {
        let size = sized(task.workload).map_or(0.0, |(_, size)| size);
        let mut rows = task.rows.iter();
        let found = rows.find(|other| (&other.phase, other.class) == (&row.phase, row.class));
        // A size that several parts have comes from the part that began last.
        if let Some(found) = found.filter(|_| points.iter().all(|(other, _)| *other != size)) {
            points.push((size, found));
            parts.push(task.part + 1);
        }
    }
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    parts.sort_unstable();
    parts.dedup();
    let mut title = format!("{}: {}", family.trim_end_matches(['/', '-']), row.phase);
    if parts.len() > 1 {
        let parts: Vec<String> = parts.iter().map(usize::to_string).collect();
        let _ = write!(title, " (parts {})", parts.join(", "));
    }
    let times = |(_, row): &(f64, &Row)| row.entries.iter().filter(|entry| entry.time().is_some()).count();
    (points.iter().map(times).sum(), curves.sizes(&title, &points))
}

/// Returns a chart of each workload: that of its longest row that has one.
fn of_workloads(tasks: &[Task], draw: impl Fn(&Row) -> String) -> Vec<String> {
    let mut bases: Vec<&str> = Vec::new();
    for task in tasks {
        if !bases.contains(&task.base()) {
            bases.push(task.base());
        }
    }
    let longest = |base: &str| {
        let of_base = tasks.iter().filter(|task| task.base() == base);
        let mut rows: Vec<&Row> = of_base.flat_map(|task| &task.rows).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(wall_nanos(row)));
        rows.into_iter().map(&draw).find(|chart| !chart.is_empty())
    };
    bases.into_iter().filter_map(longest).collect()
}

fn wall_nanos(row: &Row) -> u64 {
    let middles = row.entries.iter().filter_map(|entry| entry.middle());
    middles.map(|phase: &Phase| phase.wall_nanos).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::part;

    fn gallery(all: &[Results]) -> String {
        let mut html = String::new();
        write_gallery(&mut html, all, &Curves::of(all));
        html
    }

    fn of_size(started: u64, workload: &str) -> Results {
        let mut part = part(started, 100, 200);
        for run in &mut part.runs {
            run.workload = workload.to_string();
        }
        part
    }

    #[test]
    fn sizes_of_several_parts_are_one_chart_that_names_the_parts() {
        let html = gallery(&[of_size(100, "map/1M"), of_size(200, "map/100k")]);
        assert!(html.contains("map: put (parts 1, 2)"), "{html}");
        assert_eq!(html.matches("<polyline").count(), 4, "two peers in two rows: {html}");
        assert!(html.contains("10.0M at 100k, 10.0M at 1.0M"), "{html}");
    }

    #[test]
    fn sizes_of_another_scale_stay_apart_and_one_size_is_no_chart() {
        let mut scaled = of_size(200, "map/100k");
        scaled.header.scale = 1.0;
        assert_eq!(gallery(&[of_size(100, "map/1M"), scaled]), "");
    }

    #[test]
    fn charts_beyond_the_first_are_folded_away() {
        let mut html = String::new();
        let charts: Vec<String> = (0..6).map(|number| format!("<figure>{number}</figure>")).collect();
        write_kind(&mut html, "Latency", &charts);
        assert!(html.find("<figure>3") < html.find("<summary>2 more: Latency"), "{html}");
        assert!(html.find("<summary>") < html.find("<figure>4"), "{html}");
    }
}
