//! Reasons for rows in which the first peer does not lead, as found by profiling. A report shows them beside a loss.
//!
//! A file of reasons has one reason a line, `ROW | REASON`. ROW is a row's title as the report shows it, without the
//! class: `state/10k: batch`. A `*` in it matches anything: `map/*: close and reopen`. The first line that matches a
//! row counts. Empty lines and lines that begin with `#` are ignored.

use std::cell::Cell;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::analysis::without_class;

/// The reasons of a report.
#[derive(Debug, Default)]
pub struct Reasons {
    lines: Vec<Reason>,
}

#[derive(Debug)]
struct Reason {
    row: String,
    text: String,
    is_used: Cell<bool>,
}

impl Reasons {
    /// Reads a file of reasons.
    pub fn read(path: &Path) -> Result<Reasons> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading the reasons {}", path.display()))?;
        Reasons::parse(&text).with_context(|| format!("the reasons {}", path.display()))
    }

    /// Parses the text of a file of reasons.
    pub fn parse(text: &str) -> Result<Reasons> {
        let reason = |(row, text): (&str, &str)| Reason {
            row: row.to_string(),
            text: text.to_string(),
            is_used: Cell::new(false),
        };
        let lines = row_lines(text, "REASON")?;
        Ok(Reasons {
            lines: lines.into_iter().map(reason).collect(),
        })
    }

    /// Whether there are no reasons.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns why the first peer does not lead in a row.
    pub fn of(&self, title: &str) -> Option<&str> {
        let title = without_class(title);
        let reason = self.lines.iter().find(|reason| fits(&reason.row, title))?;
        reason.is_used.set(true);
        Some(&reason.text)
    }

    /// Returns the rows of unused reasons: either the row leads now, or its name is wrong.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let unused = self.lines.iter().filter(|reason| !reason.is_used.get());
        unused.map(|reason| reason.row.as_str())
    }
}

/// Splits text of lines `ROW | WHAT`. Empty lines and lines that begin with `#` are ignored.
pub fn row_lines<'a>(text: &'a str, what: &str) -> Result<Vec<(&'a str, &'a str)>> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let split = |(number, line): (usize, &'a str)| {
        let (row, rest) = line.split_once('|').unwrap_or((line, ""));
        let (row, rest) = (row.trim(), rest.trim());
        ensure!(!rest.is_empty(), "line {} is not `ROW | {what}`: {line}", number + 1);
        Ok((row, rest))
    };
    lines.map(split).collect()
}

/// Whether a text matches a pattern.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(after) = text.strip_prefix(start) else {
        return false;
    };
    (0..=after.len()).any(|at| after.get(at..).is_some_and(|after| fits(rest, after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_that_fits_counts_and_the_others_are_told() {
        let reasons =
            Reasons::parse("# why\n\nmap/1M: read | one\nmap/*: read | two\nmap/*: wri*te | three\n").unwrap();
        assert_eq!(reasons.of("map/1M: read"), Some("one"));
        assert_eq!(reasons.of("map/16M: read"), Some("two"));
        assert_eq!(reasons.of("map/16M: write, class written"), Some("three"));
        assert_eq!(reasons.of("map/16M: reads"), None);
        assert_eq!(reasons.unused().count(), 0);
        assert_eq!(Reasons::parse("a | b").unwrap().unused().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn line_without_a_reason_is_refused_with_its_number() {
        for text in ["\nmap/1M: read", "\nmap/1M: read | "] {
            let error = Reasons::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("line 2 is not `ROW | REASON`"), "{error}");
        }
    }
}
