//! Standard output: data, and nothing but data. Talk goes to standard error through [`say`].
//!
//! Output is buffered and flushed once at the end; an error while writing becomes a `Failure`, and a reader that went
//! away (`| head`) one that ends the command quietly.

use std::fmt;
use std::io::{self, BufWriter, StdoutLock, Write};

use serde_json::Value;

use crate::exit::Outcome;

/// Where a command puts its data.
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

/// Tells the user something that is not data. When nobody listens, that is not an error.
pub fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
