//! The display of the tour: listings with their cost at the right margin and results below. Colours appear only on a
//! terminal. With `--json` the tour displays nothing, collects everything, and prints it as one object at the end.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::exit::Outcome;
use crate::output::Output;
use crate::text::grouped;

/// Width, in columns, of everything the tour prints.
const WIDTH: usize = 96;
const INDENT: &str = "    ";

const PLAIN: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const CODE: &str = "\x1b[36m";
const RESULT: &str = "\x1b[32m";

/// The tour in progress.
pub struct Stage<'a> {
    output: &'a mut Output,
    has_colours: bool,
    chapters: u32,
    chapter: &'static str,
    steps: Vec<Value>,
    figures: Map<String, Value>,
    /// Column after the end of the listing that runs now.
    column: usize,
}

impl<'a> Stage<'a> {
    pub fn new(output: &'a mut Output) -> Stage<'a> {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        Stage {
            has_colours: std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb,
            output,
            chapters: 0,
            chapter: "",
            steps: Vec::new(),
            figures: Map::new(),
            column: 0,
        }
    }

    fn styled(&self, style: &str, text: &str) -> String {
        match self.has_colours {
            true => format!("{style}{text}{PLAIN}"),
            false => text.to_string(),
        }
    }

    /// Displays text at once; does nothing with JSON.
    fn show(&mut self, text: &str) -> Outcome<()> {
        if !self.output.is_json {
            self.output.write_all(text.as_bytes())?;
            self.output.flush()?;
        }
        Ok(())
    }

    /// Displays a heading.
    pub fn title(&mut self, title: &str, about: &str) -> Outcome<()> {
        let title = self.styled(BOLD, title);
        self.show(&format!("\n{title}\n{about}\n"))
    }

    /// Begins a chapter.
    pub fn chapter(&mut self, name: &'static str, about: &str) -> Outcome<()> {
        self.chapters += 1;
        self.chapter = name;
        let title = self.styled(BOLD, &format!("{}. {name}", self.chapters));
        let about: String = wrapped(about, WIDTH - INDENT.len())
            .iter()
            .map(|line| format!("{INDENT}{line}\n"))
            .collect();
        self.show(&format!("\n{title}\n{about}\n"))
    }

    /// Displays code that does not run here.
    pub fn listing(&mut self, code: &str) -> Outcome<()> {
        let lines: String = code
            .lines()
            .map(|line| format!("{INDENT}{}\n", self.styled(CODE, line)))
            .collect();
        self.show(&format!("{lines}\n"))
    }

    /// Displays a remark.
    pub fn remark(&mut self, text: &str) -> Outcome<()> {
        self.show(&format!("{INDENT}{text}\n"))
    }

    /// Displays code that is about to run. Its last line stays open for the cost.
    pub fn begin(&mut self, code: String) -> Outcome<()> {
        let lines: Vec<String> = code
            .lines()
            .map(|line| format!("{INDENT}{}", self.styled(CODE, line)))
            .collect();
        self.column = INDENT.len() + code.lines().last().map_or(0, |line| line.chars().count());
        self.steps
            .push(json!({"chapter": self.chapter, "code": code, "results": []}));
        self.show(&lines.join("\n"))
    }

    /// Displays the cost of the code.
    pub fn end(&mut self, took: Duration, calls: u64) -> Outcome<()> {
        let each = took.as_nanos() as f64 / calls.max(1) as f64;
        let cost = match calls {
            1 => duration(each),
            _ => format!("{} each, {} times", duration(each), grouped(calls)),
        };
        let step = self.steps.last_mut().expect("an end has its beginning");
        step["calls"] = json!(calls);
        step["nanoseconds_per_call"] = json!(each.round() as u64);
        let gap = (WIDTH.saturating_sub(cost.chars().count() + self.column)).max(2);
        let cost = self.styled(DIM, &cost);
        self.show(&format!("{:gap$}{cost}\n", ""))
    }

    /// Displays a result.
    pub fn result(&mut self, text: impl AsRef<str>) -> Outcome<()> {
        let text = text.as_ref();
        let step = self.steps.last_mut().expect("a result has its step");
        step["results"].as_array_mut().expect("made as one").push(json!(text));
        let mut mark = "→ ";
        for line in wrapped(text, WIDTH - INDENT.len() - 4) {
            let line = self.styled(RESULT, &format!("{mark}{line}"));
            self.show(&format!("{INDENT}  {line}\n"))?;
            mark = "  ";
        }
        Ok(())
    }

    /// Adds a figure for readers of the JSON.
    pub fn figure(&mut self, name: &str, value: Value) {
        self.figures.insert(name.into(), value);
    }

    /// Ends the tour; prints the JSON if asked for.
    pub fn finish(mut self, seconds: f64) -> Outcome<()> {
        self.figures.insert("seconds".into(), json!(seconds));
        self.figures
            .insert("steps".into(), Value::Array(std::mem::take(&mut self.steps)));
        if self.output.is_json {
            self.output.json(&Value::Object(self.figures))?;
        }
        Ok(())
    }
}

/// Wraps text into lines of at most `width` columns. A longer word gets a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_string());
        }
    }
    lines
}

/// Formats a duration with three significant digits.
pub fn duration(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        short if short < 1e3 => return format!("{short:.0} ns"),
        short if short < 1e6 => (short / 1e3, "µs"),
        short if short < 1e9 => (short / 1e6, "ms"),
        long => (long / 1e9, "s"),
    };
    match value {
        small if small < 10.0 => format!("{small:.2} {unit}"),
        middle if middle < 100.0 => format!("{middle:.1} {unit}"),
        large => format!("{large:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_between_words() {
        assert_eq!(wrapped("to be or not", 5), ["to be", "or", "not"]);
        assert_eq!(wrapped("unbreakable a", 5), ["unbreakable", "a"]);
    }

    #[test]
    fn durations_have_three_digits_that_count() {
        let cases = [
            (0.4, "0 ns"),
            (812.0, "812 ns"),
            (1_934.0, "1.93 µs"),
            (312_400.0, "312 µs"),
            (2.5e9, "2.50 s"),
        ];
        for (nanoseconds, text) in cases {
            assert_eq!(duration(nanoseconds), text);
        }
    }
}
