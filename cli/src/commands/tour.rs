//! `duramen tour`: takes the tour, in a temporary or a named directory. Also the hidden command of its child process.

use std::path::PathBuf;

use clap::Args;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::tour::{Part, account_until_killed, publish_orders, sell_until_killed, take, write_until_killed};

const EXAMPLES: &str = r"Examples:
  See in some seconds what a store does, and what it costs on this machine:
    $ duramen tour
  Keep the store, to look around in it afterwards:
    $ duramen tour --keep shop-of-the-tour
  The results for a program:
    $ duramen tour --json";

/// Show what a store does: write, read, collide, get killed, recover, announce, serve, check
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Tour {
    /// Keep the store in this directory, which must be missing or empty
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

impl Tour {
    pub fn run(self, output: &mut Output) -> Outcome {
        if let Some(directory) = &self.keep {
            let is_occupied = directory.read_dir().is_ok_and(|mut entries| entries.next().is_some());
            if is_occupied {
                let path = directory.display();
                return Err(Failure::wrong_call(format!(
                    "{path} is not empty; name a missing or empty directory"
                )));
            }
            take(directory, true, output)?;
            return Ok(Exit::Done);
        }
        let temporary = tempfile::tempdir();
        let temporary = temporary.map_err(|error| Failure::of_io("making a temporary directory", &error))?;
        take(&temporary.path().join("store"), false, output)?;
        Ok(Exit::Done)
    }
}

/// Work until killed (a part of the tour)
#[derive(Args, Debug)]
pub struct TourChild {
    part: Part,
    /// The directory of the store, or the socket of the server
    place: PathBuf,
}

impl TourChild {
    pub fn run(self, _output: &mut Output) -> Outcome {
        match self.part {
            Part::Orders => write_until_killed(&self.place),
            Part::Sales => sell_until_killed(&self.place),
            Part::Accounts => account_until_killed(&self.place),
            Part::Publisher => publish_orders(&self.place),
        }
    }
}
