//! The curves of a report: what the phases of one or several rows draw, as charts and in words.

use crate::analysis::{Entry, Row};
use crate::charts::{Axis, Chart, Line, Scale};
use crate::measure::Phase;
use crate::results::Results;
use crate::text::time_text;

/// The curves of a page. Each peer has one colour and dash on the whole page.
pub struct Curves {
    peers: Vec<String>,
}

impl Curves {
    /// Creates the curves of a page of these results.
    pub fn of(all: &[Results]) -> Curves {
        let mut peers: Vec<String> = Vec::new();
        for peer in all.iter().flat_map(|results| &results.header.peers) {
            if !peers.contains(&peer.name) {
                peers.push(peer.name.clone());
            }
        }
        Curves { peers }
    }

    /// Returns the names of the peers, in the order of the results.
    pub fn peers(&self) -> Vec<&str> {
        self.peers.iter().map(String::as_str).collect()
    }

    /// Returns the index of the colour and dash of a peer.
    pub fn style(&self, peer: &str) -> usize {
        self.peers.iter().position(|one| one == peer).unwrap_or(0)
    }

    /// Returns the lines of the peers that have something to draw.
    fn lines(&self, row: &Row, points: impl Fn(&Phase) -> Vec<(f64, f64)>) -> Vec<Line> {
        let line = |entry: &Entry| {
            let points = points(entry.middle()?);
            (points.len() > 1).then(|| Line {
                name: entry.name(),
                style: self.style(entry.peer),
                points,
            })
        };
        row.entries.iter().filter_map(line).collect()
    }

    /// Draws the latency of the peers by percentile.
    pub fn latency(&self, title: &str, row: &Row) -> String {
        // 50 %, 90 %, 99 %, .. are evenly spaced: each leaves a tenth of the remaining operations.
        let points = |phase: &Phase| -> Vec<(f64, f64)> {
            let last = phase.operations.max(2) as f64;
            let place = |quantile: f64| (1.0 / (1.0 - quantile).max(1.0 / last)).max(1.0);
            let points = phase.curve.iter().filter(|(quantile, _)| *quantile >= 0.1);
            points
                .map(|(quantile, nanos)| (place(*quantile), *nanos as f64))
                .collect()
        };
        let lines = self.lines(row, points);
        let most = lines
            .iter()
            .flat_map(|line| line.points.iter())
            .fold(1.0, |most: f64, point| most.max(point.0));
        let ticks = [
            (2.0, "50 %"),
            (10.0, "90 %"),
            (100.0, "99 %"),
            (1e3, "99.9 %"),
            (1e4, "99.99 %"),
            (1e5, "99.999 %"),
        ];
        let shown = ticks.into_iter().filter(|(place, _)| *place <= most);
        Chart {
            title: title.to_string(),
            description: latency_words(row),
            x: Axis {
                title: "part of the operations that were faster".to_string(),
                scale: Scale::Logarithmic,
                text: |_| String::new(),
                ticks: shown.map(|(place, text)| (place, text.to_string())).collect(),
            },
            y: Axis::new("", Scale::Logarithmic, tick_time),
            lines,
        }
        .svg()
    }

    /// Draws the operations per second of the peers over time.
    pub fn throughput(&self, title: &str, row: &Row) -> String {
        let points = |phase: &Phase| -> Vec<(f64, f64)> {
            let Some(timeline) = &phase.timeline else {
                return Vec::new();
            };
            let step = timeline.step_nanos as f64 / 1e9;
            // The last step ends early, and would look like a stall.
            let whole = timeline.operations.len().saturating_sub(1);
            let steps = timeline.operations[..whole].iter().enumerate();
            steps
                .map(|(at, count)| ((at as f64 + 0.5) * step, *count as f64 / step))
                .collect()
        };
        over_time(title, "op/s", si_text, self.lines(row, points))
    }

    /// Draws the memory of the peers over time.
    pub fn memory(&self, row: &Row) -> String {
        let points = |phase: &Phase| -> Vec<(f64, f64)> {
            let Some(timeline) = &phase.timeline else {
                return Vec::new();
            };
            let step = timeline.step_nanos as f64 / 1e9;
            let steps = timeline.resident_bytes.iter().enumerate();
            steps
                .map(|(at, bytes)| ((at as f64 + 1.0) * step, *bytes as f64))
                .collect()
        };
        over_time("Resident memory over time", "bytes", si_text, self.lines(row, points))
    }

    /// Draws operations per second against threads or workers, a chart for each work that the rows do with several
    /// numbers of them.
    pub fn threads(&self, title: &str, rows: &[Row]) -> String {
        let mut works: Vec<(Work, Vec<(f64, &Row)>)> = Vec::new();
        for row in rows {
            let Some((work, number, unit)) = crew_in(&row.phase) else {
                continue;
            };
            match works.iter_mut().find(|(known, _)| *known == (work, unit)) {
                Some((_, points)) => points.push((number, row)),
                None => works.push(((work, unit), vec![(number, row)])),
            }
        }
        let chart = |((work, unit), points): &(Work, Vec<(f64, &Row)>)| {
            let title = match *work {
                "" => title.to_string(),
                work => format!("{title}: {work}"),
            };
            self.rates(&title, (unit, Scale::Linear), points.iter().copied())
        };
        works.iter().filter(|(_, points)| points.len() > 1).map(chart).collect()
    }

    /// Draws operations per second against the size of the data.
    pub fn sizes(&self, title: &str, rows: &[(f64, &Row)]) -> String {
        self.rates(title, ("size", Scale::Logarithmic), rows.iter().copied())
    }

    /// Draws operations per second against a number that the rows differ in.
    fn rates<'a>(
        &self,
        title: &str,
        (axis, scale): (&str, Scale),
        rows: impl Iterator<Item = (f64, &'a Row<'a>)>,
    ) -> String {
        let mut lines: Vec<Line> = Vec::new();
        for (place, row) in rows {
            for entry in &row.entries {
                let Some(rate) = entry.rate() else { continue };
                let name = entry.name();
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push((place, rate)),
                    None => lines.push(Line {
                        style: self.style(entry.peer),
                        name,
                        points: vec![(place, rate)],
                    }),
                }
            }
        }
        lines.retain(|line| line.points.len() > 1);
        let words: Vec<String> = lines.iter().map(line_words).collect();
        Chart {
            title: title.to_string(),
            description: words.join(". "),
            x: Axis::new(axis, scale, si_text),
            y: Axis::new("op/s", Scale::Linear, si_text),
            lines,
        }
        .svg()
    }
}

/// The name of a work, and what the numbers of its rows count.
type Work<'a> = (&'a str, &'static str);

/// Returns the work in the name of a phase, a number, and what it counts: threads or workers.
fn crew_in(phase: &str) -> Option<(&str, f64, &'static str)> {
    let (work, crew) = phase.rsplit_once(", ").unwrap_or(("", phase));
    let (number, unit) = crew.split_once(' ')?;
    let unit = ["threads", "workers"]
        .into_iter()
        .find(|name| unit.starts_with(name.trim_end_matches('s')))?;
    Some((work, number.parse().ok()?, unit))
}

fn latency_words(row: &Row) -> String {
    let words = |entry: &Entry| {
        let latency = entry.latency()?;
        Some(format!(
            "{}: half of the operations took at most {}, 99 percent at most {}, the slowest {}",
            entry.name(),
            time_text(latency.p50 as f64),
            time_text(latency.p99 as f64),
            time_text(latency.max as f64)
        ))
    };
    row.entries.iter().filter_map(words).collect::<Vec<_>>().join(". ")
}

fn line_words(line: &Line) -> String {
    let points: Vec<String> = line
        .points
        .iter()
        .map(|(x, y)| format!("{} at {}", si_text(*y), si_text(*x)))
        .collect();
    format!("{}: {}", line.name, points.join(", "))
}

fn over_time(title: &str, unit: &str, text: fn(f64) -> String, lines: Vec<Line>) -> String {
    let words = |line: &Line| {
        let values = || line.points.iter().map(|point| point.1);
        let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        format!("{}: from {} to {} {unit}", line.name, text(least), text(most))
    };
    Chart {
        title: title.to_string(),
        description: lines.iter().map(words).collect::<Vec<_>>().join(". "),
        x: Axis::new("seconds", Scale::Linear, |value| {
            if value < 10.0 {
                format!("{value:.1}")
            } else {
                format!("{value:.0}")
            }
        }),
        y: Axis::new(unit, Scale::Linear, text),
        lines,
    }
    .svg()
}

fn tick_time(nanos: f64) -> String {
    match nanos {
        ..1e3 => format!("{nanos:.0} ns"),
        ..1e6 => format!("{:.0} us", nanos / 1e3),
        ..1e9 => format!("{:.0} ms", nanos / 1e6),
        _ => format!("{:.0} s", nanos / 1e9),
    }
}

/// Formats a number with k, M or G.
fn si_text(value: f64) -> String {
    match value {
        ..1e3 => format!("{value:.0}"),
        ..1e6 => format!("{:.0}k", value / 1e3),
        ..1e9 => format!("{:.1}M", value / 1e6),
        _ => format!("{:.1}G", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_read_from_the_name_of_a_phase() {
        assert_eq!(
            crew_in("random reads, 16 threads"),
            Some(("random reads", 16.0, "threads"))
        );
        assert_eq!(crew_in("1 thread"), Some(("", 1.0, "threads")));
        assert_eq!(crew_in("queries, 200 workers"), Some(("queries", 200.0, "workers")));
        assert_eq!(crew_in("random reads"), None);
    }
}
