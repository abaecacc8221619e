//! Reading the metrics of a server, and a strict parser of the text format of Prometheus.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use duramen_server::Running;

/// Sends a request to the listener of the metrics, and returns the whole response.
pub fn request(server: &Running, request: &str) -> String {
    let mut stream = TcpStream::connect(server.listening().metrics.unwrap()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

/// The metrics of a server.
pub fn scrape(server: &Running) -> Metrics {
    let response = request(server, "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    Metrics::parse(body)
}

/// Labels of a series with their values.
pub type Labels = BTreeMap<String, String>;

/// What a scrape gave.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Families with their kinds.
    pub families: BTreeMap<String, String>,
    /// Samples by name and labels.
    pub samples: BTreeMap<(String, Labels), f64>,
}

impl Metrics {
    fn parse(text: &str) -> Metrics {
        assert!(text.ends_with('\n'));
        let mut metrics = Metrics::default();
        let mut helped = String::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(!help.is_empty());
                helped = name.into();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, helped, "HELP comes first");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                let before = metrics.families.insert(name.into(), kind.into());
                assert_eq!(before, None, "{name} is there twice");
                current = name.into();
            } else {
                metrics.add_sample(line, &current);
            }
        }
        metrics
    }

    fn add_sample(&mut self, line: &str, family: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, parse_labels(labels.strip_suffix('}').unwrap())),
            None => (series, Labels::new()),
        };
        let suffixes: &[&str] = match self.families[family].as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        let is_of_family = suffixes.iter().any(|suffix| name == format!("{family}{suffix}"));
        assert!(is_of_family, "{line} is below {family}");
        let before = self.samples.insert((name.into(), labels), value.parse().unwrap());
        assert_eq!(before, None, "{series} is there twice");
    }

    /// The value of a series, if there is one.
    pub fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        self.samples.get(&(name.to_string(), labels)).copied()
    }

    /// The value of a series that must be there.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found = self.find(name, labels);
        found.unwrap_or_else(|| panic!("there is no {name} {labels:?} in {self:#?}"))
    }
}

/// Parses `name="value",name="value"`, with escapes in the values.
fn parse_labels(text: &str) -> Labels {
    let mut labels = Labels::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap();
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next().unwrap().1 {
                    'n' => '\n',
                    letter @ ('\\' | '"') => letter,
                    other => panic!("{other} is no escape in {text}"),
                }),
                (_, letter) => value.push(letter),
            }
        };
        assert_eq!(labels.insert(name.into(), value), None, "{text}");
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    labels
}
