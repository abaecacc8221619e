//! The text format of Prometheus, version 0.0.4: families, and below each the samples of its series.

use std::fmt::{Display, Write};

use super::families::Family;
use crate::measure::{BUCKETS, Sums};

/// What HTTP calls the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Text that grows by families.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    /// Begins a family. Its samples follow.
    pub(super) fn family(&mut self, family: Family) -> Samples<'_> {
        let Family { name, kind, help, .. } = family;
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {}", kind.name()));
        Samples { text: self, family }
    }

    /// A family of one series without labels.
    pub(super) fn value(&mut self, family: Family, value: impl Display) {
        self.family(family).sample(&[], value);
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }

    fn line(&mut self, line: impl Display) {
        writeln!(self.0, "{line}").expect("writing to a String cannot fail");
    }
}

/// The samples of a family.
pub(super) struct Samples<'a> {
    text: &'a mut Text,
    family: Family,
}

impl Samples<'_> {
    /// A series with the values of its labels.
    pub(super) fn sample(&mut self, labels: &[&str], value: impl Display) {
        let labels = self.labels(labels, None);
        self.text.line(format_args!("{}{labels} {value}", self.family.name));
    }

    /// The series of one histogram.
    pub(super) fn histogram(&mut self, labels: &[&str], sums: &Sums) {
        let name = self.family.name;
        let mut count = 0;
        let bounds = BUCKETS.iter().map(|bound| bound.as_secs_f64().to_string());
        for (bucket, bound) in sums.buckets.iter().zip(bounds.chain(["+Inf".into()])) {
            count += bucket;
            let labels = self.labels(labels, Some(&bound));
            self.text.line(format_args!("{name}_bucket{labels} {count}"));
        }
        let labels = self.labels(labels, None);
        let seconds = sums.nanos as f64 / 1e9;
        self.text.line(format_args!("{name}_sum{labels} {seconds}"));
        self.text.line(format_args!("{name}_count{labels} {count}"));
    }

    fn labels(&self, values: &[&str], bound: Option<&str>) -> String {
        assert_eq!(values.len(), self.family.labels.len(), "{}", self.family.name);
        let named = self.family.labels.iter().copied().zip(values.iter().copied());
        let labels: Vec<_> = named
            .chain(bound.map(|bound| ("le", bound)))
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        }
    }
}

/// A label value between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::measure::Histogram;
    use crate::metrics::families::{CALL_TIME, MAP_PAIRS, QUEUED};

    #[test]
    fn samples_follow_their_family_and_labels_are_escaped() {
        let mut text = Text::default();
        text.value(QUEUED, 7);
        text.family(MAP_PAIRS).sample(&["a\"b\\c\nd"], 1);
        assert_eq!(
            text.into_string(),
            "# HELP duramen_queued_bytes Bytes of writes that wait for a commit\n\
             # TYPE duramen_queued_bytes gauge\n\
             duramen_queued_bytes 7\n\
             # HELP duramen_map_pairs Pairs of a map\n\
             # TYPE duramen_map_pairs gauge\n\
             duramen_map_pairs{map=\"a\\\"b\\\\c\\nd\"} 1\n"
        );
    }

    #[test]
    fn the_buckets_of_a_histogram_are_cumulated() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(60));
        histogram.record(Duration::from_millis(3));
        histogram.record(Duration::from_secs(20));
        let mut text = Text::default();
        text.family(CALL_TIME).histogram(&["s", "m"], &Sums::from(&histogram));
        let text = text.into_string();
        let has = |line: &str| assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        has("duramen_call_duration_seconds_bucket{service=\"s\",method=\"m\",le=\"0.00005\"} 0");
        has("duramen_call_duration_seconds_bucket{service=\"s\",method=\"m\",le=\"0.0001\"} 1");
        has("duramen_call_duration_seconds_bucket{service=\"s\",method=\"m\",le=\"10\"} 2");
        has("duramen_call_duration_seconds_bucket{service=\"s\",method=\"m\",le=\"+Inf\"} 3");
        has("duramen_call_duration_seconds_sum{service=\"s\",method=\"m\"} 20.00306");
        has("duramen_call_duration_seconds_count{service=\"s\",method=\"m\"} 3");
    }
}
