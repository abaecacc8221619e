//! The `duramen` command: inspects a store, moves data in and out, checks it, and takes the tour.
//!
//! Each command is one file in `commands`. A command receives its arguments and an [`Output`]. It returns an
//! [`exit::Exit`] or a [`Failure`], which this file alone reports on standard error.

mod commands;
mod dump_format;
mod exit;
mod limit;
mod opening;
mod output;
mod place;
mod progress;
mod text;
mod torture;
mod tour;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use commands::Command;
use exit::{EXIT_CODES, Exit, Failure, Outcome};
use output::{Output, say};

const ABOUT: &str = "\
Looks into a Duramen store, moves data in and out, checks it, and takes the tour.

A store is a directory. It holds named maps, and a map holds keys and values, ordered by key.
New here? `duramen tour` shows in some seconds what a store does, and what each call costs.

Data goes to standard output, everything else to standard error. Keys and values are text; bytes
that are not readable are written \\xNN, in both directions (a backslash is \\\\, a line end \\n),
or all of it is hexadecimal with --hex. Commands that only read change nothing in the directory,
and several of them can run at once.

Most commands also work on a server. Give its place with --server, and leave out the directory:
`duramen get --server 127.0.0.1:7420 apples --map stock`.";

/// The command line.
#[derive(Parser)]
#[command(name = "duramen", version, about = ABOUT, after_help = EXIT_CODES, max_term_width = 100)]
struct CommandLine {
    /// Print JSON: one object, or one a line where there are many
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let (line, is_json) = match parsed() {
        Ok(line) => (line.command, line.json),
        Err(error) => return usage(&error),
    };
    let mut output = Output::new(is_json);
    let ended = line.run(&mut output);
    // Output written before a failure is still data.
    let flushed = output.flush().map_err(Failure::from);
    let ended = match (ended, flushed) {
        (Ok(exit), flushed) => flushed.map(|()| exit),
        (failed, _) => failed,
    };
    ExitCode::from(told(ended, is_json) as u8)
}

fn parsed() -> Result<CommandLine, clap::Error> {
    let arguments: Vec<_> = commands::as_etcd(std::env::args_os().collect());
    let mut command = place::fitted(CommandLine::command(), arguments.iter().cloned());
    let matches = command.try_get_matches_from_mut(arguments)?;
    CommandLine::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Prints help and version as data, and a usage error as a failure.
fn usage(error: &clap::Error) -> ExitCode {
    // A broken pipe while printing help does not matter.
    let _ = error.print();
    let exit = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Done,
        _ => Exit::WrongCall,
    };
    ExitCode::from(exit as u8)
}

/// Reports a failure, and returns the exit code.
fn told(ended: Outcome, is_json: bool) -> Exit {
    let failure = match ended {
        Ok(exit) => return exit,
        Err(failure) if failure.is_broken_pipe => return Exit::Done,
        Err(failure) => failure,
    };
    if is_json {
        say(failure.to_json());
    } else {
        say(format_args!("duramen: {}", failure.message));
        if let Some(hint) = &failure.hint {
            say(format_args!("hint: {hint}"));
        }
    }
    failure.exit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        CommandLine::command().debug_assert();
        let with_server = ["duramen", "get", "--server=host:1"].map(Into::into);
        place::fitted(CommandLine::command(), with_server.into_iter()).debug_assert();
    }
}
