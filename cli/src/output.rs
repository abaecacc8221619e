//! Standard output: data, and nothing but data. Messages for the user go to standard error through [`say`].
//!
//! Output is buffered and flushed once at the end. A write error becomes a `Failure`. A broken pipe (`| head`) becomes
//! a failure that ends the command quietly.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use serde_json::Value;

use crate::exit::Outcome;

/// The destination of a command's data.
pub struct Output {
    stdout: BufWriter<StdoutLock<'static>>,
    /// Whether the caller asked for JSON.
    pub is_json: bool,
}

const BUFFER_BYTES: usize = 64 << 10;

impl Output {
    pub fn new(is_json: bool) -> Output {
        Output {
            stdout: BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock()),
            is_json,
        }
    }

    /// Writes one JSON object on a line of its own.
    pub fn json(&mut self, value: &Value) -> Outcome<()> {
        Ok(writeln!(self.stdout, "{value}")?)
    }

    /// Writes rows as a table. On a terminal the columns are aligned below their names; elsewhere tabs separate them,
    /// without the names.
    pub fn table(&mut self, columns: &[&str], rows: &[Vec<String>]) -> Outcome<()> {
        if !io::stdout().is_terminal() {
            return rows.iter().try_for_each(|row| self.line(row.join("\t")));
        }
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([columns[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        let aligned = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for (cell, width) in cells.zip(&widths) {
                text += &format!("{cell:width$}  ");
            }
            text.trim_end().to_string()
        };
        self.line(aligned(&mut columns.iter().copied()))?;
        rows.iter()
            .try_for_each(|row| self.line(aligned(&mut row.iter().map(String::as_str))))
    }

    /// Writes a line of text.
    pub fn line(&mut self, line: impl fmt::Display) -> Outcome<()> {
        Ok(writeln!(self.stdout, "{line}")?)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stdout.write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdout.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }
}

/// Prints a message that is not data. A failure to print it is not an error.
pub fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
