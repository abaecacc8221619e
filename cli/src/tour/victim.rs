//! Processes of the tour that are killed in the middle of their work.
//!
//! Such a child is this binary again, with a hidden command. It reports its work by sending numbers down a pipe. The
//! pipe, and so every report in it, outlives the child.

use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::ValueEnum;

use crate::exit::{Failure, Outcome};

const LIFE_MILLISECONDS: Range<u64> = 5..60;

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Writes orders.
    Orders,
    /// Writes sales, and publishes them.
    Sales,
    /// Counts what was published.
    Accounts,
    /// Publishes orders through a server.
    Publisher,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Orders => "orders",
            Part::Sales => "sales",
            Part::Accounts => "accounts",
            Part::Publisher => "publisher",
        }
    }
}

/// Kills the process when dropped, whatever happens here.
pub struct Victim(pub Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child at work.
pub struct Worker {
    victim: Victim,
    /// Empties the pipe while the child lives; otherwise the child would block on a full pipe.
    reader: JoinHandle<io::Result<Vec<u8>>>,
}

impl Worker {
    /// Starts a child. Its work takes place in a directory, or at a socket.
    pub fn start(part: Part, place: &Path) -> Outcome<Worker> {
        let program = std::env::current_exe().map_err(failed)?;
        let child = Command::new(program)
            .args(["tour-child", part.name()])
            .arg(place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut victim = Victim(child.map_err(failed)?);
        let mut pipe = victim.0.stdout.take().expect("stdout was asked for");
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).map(|_| bytes)
        });
        Ok(Worker { victim, reader })
    }

    /// Kills the child. Returns the numbers that it sent.
    fn kill(self) -> Outcome<Vec<u64>> {
        drop(self.victim);
        numbers(self.reader)
    }

    /// Waits until the child has done its work. Returns the numbers that it sent.
    pub fn finish(mut self) -> Outcome<Vec<u64>> {
        let status = self.victim.0.wait().map_err(failed)?;
        match status.success() {
            true => numbers(self.reader),
            false => Err(failed(io::Error::other(format!("it failed ({status})")))),
        }
    }
}

/// Starts a child, kills it after a while, and returns the numbers that it sent.
pub fn let_run_and_kill(part: Part, directory: &Path) -> Outcome<Vec<u64>> {
    let worker = Worker::start(part, directory)?;
    thread::sleep(Duration::from_millis(fastrand::u64(LIFE_MILLISECONDS)));
    worker.kill()
}

fn numbers(reader: JoinHandle<io::Result<Vec<u8>>>) -> Outcome<Vec<u64>> {
    let bytes = reader.join().expect("the reader does not panic").map_err(failed)?;
    let numbers = bytes
        .chunks_exact(8)
        .map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")));
    Ok(numbers.collect())
}

fn failed(error: io::Error) -> Failure {
    Failure::of_io("running a second process", &error)
}
