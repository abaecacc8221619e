//! Progress of long calls, on standard error. It appears only on a terminal, and only after the first second.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::text::grouped;

const SILENT_FOR: Duration = Duration::from_secs(1);
const BETWEEN_DRAWINGS: Duration = Duration::from_millis(100);

/// One line that is redrawn repeatedly, and cleared when dropped.
pub struct Meter {
    doing: &'static str,
    unit: &'static str,
    is_terminal: bool,
    started: Instant,
    drawn: Option<Instant>,
}

impl Meter {
    pub fn new(doing: &'static str, unit: &'static str) -> Meter {
        Meter {
            doing,
            unit,
            is_terminal: io::stderr().is_terminal(),
            started: Instant::now(),
            drawn: None,
        }
    }

    /// Shows the progress; `total` is 0 when unknown.
    pub fn update(&mut self, done: u64, total: u64) {
        if !self.is_terminal {
            return;
        }
        let now = Instant::now();
        let is_due = match self.drawn {
            None => now - self.started >= SILENT_FOR,
            Some(drawn) => now - drawn >= BETWEEN_DRAWINGS,
        };
        if is_due {
            self.drawn = Some(now);
            let _ = write!(io::stderr(), "\r\x1b[K{}", self.line(done, total, now - self.started));
        }
    }

    fn line(&self, done: u64, total: u64, elapsed: Duration) -> String {
        let (doing, unit, seconds) = (self.doing, self.unit, elapsed.as_secs());
        match (done * 100).checked_div(total) {
            Some(percent) => {
                let (done, total) = (grouped(done), grouped(total));
                format!("{doing} {:3}%  {done} of {total} {unit}, {seconds} s", percent.min(100))
            }
            None => format!("{doing}  {} {unit}, {seconds} s", grouped(done)),
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_percent_only_when_the_total_is_known() {
        let meter = Meter::new("checking", "pages");
        let after = Duration::from_secs(2);
        assert_eq!(meter.line(500, 2_000, after), "checking  25%  500 of 2,000 pages, 2 s");
        assert_eq!(meter.line(1_500, 0, after), "checking  1,500 pages, 2 s");
    }
}
