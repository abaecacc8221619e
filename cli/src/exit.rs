//! Exit codes, and failures with advice for the user.
//!
//! Every failure of the engine passes through this file. Its `Kind` decides the exit code, so that a script can tell
//! "try again" from "restore a copy" without reading the message. Nothing else in the crate calls `exit`.

use std::io;
use std::path::Path;

use duramen::{Error, Kind, Reason};
use duramen_client::ErrorKind;
use serde_json::{Value, json};

/// The exit codes as shown in the help and the reference.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done (also when the reader of a pipe went away)
  1  the key is not there; `check` or `torture` found problems
  2  the call is wrong: usage, unknown map, no store there, a file that cannot be read
  3  nothing is wrong, try again: another process has the store to itself, or a conflict
  4  no space left; nothing was lost
  5  damaged: the store, or the dump to be loaded, is not what was written
  6  the store stopped: after an input/output error, look at the disk; after a restore, run it again
  7  the store, or a snapshot of it, was closed meanwhile
  8  a write with an unknown outcome: it may be lost in a power cut, or the server did not answer";

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    NotFound = 1,
    WrongCall = 2,
    TryAgain = 3,
    NoSpace = 4,
    Damaged = 5,
    Reopen = 6,
    Closed = 7,
    NotSynced = 8,
}

impl Exit {
    fn of(kind: Kind) -> Exit {
        match kind {
            Kind::Retry | Kind::Lost => Exit::TryAgain,
            Kind::MakeSpace => Exit::NoSpace,
            Kind::Damaged => Exit::Damaged,
            Kind::Reopen => Exit::Reopen,
            Kind::Closed => Exit::Closed,
            Kind::Sync => Exit::NotSynced,
            _ => Exit::WrongCall,
        }
    }

    /// The name of the exit code in JSON.
    fn word(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::NotFound => "not_found",
            Exit::WrongCall => "wrong_call",
            Exit::TryAgain => "try_again",
            Exit::NoSpace => "no_space",
            Exit::Damaged => "damaged",
            Exit::Reopen => "reopen",
            Exit::Closed => "closed",
            Exit::NotSynced => "not_synced",
        }
    }
}

/// Why the command failed.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    pub hint: Option<String>,
    /// Whether the reader of our output is gone; the command then reports nothing.
    pub is_broken_pipe: bool,
}

/// The result of everything in this crate that can fail.
pub type Outcome<T = Exit> = Result<T, Failure>;

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure {
            exit,
            message: message.into(),
            hint: None,
            is_broken_pipe: false,
        }
    }

    /// The call is invalid.
    pub fn wrong_call(message: impl Into<String>) -> Failure {
        Failure::new(Exit::WrongCall, message)
    }

    /// The bytes read differ from the bytes once written.
    pub fn damaged(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Damaged, message)
    }

    /// An error of a file or stream outside the store.
    pub fn of_io(doing: &str, error: &io::Error) -> Failure {
        let exit = match error.kind() {
            io::ErrorKind::StorageFull => Exit::NoSpace,
            _ => Exit::WrongCall,
        };
        Failure::new(exit, format!("{doing}: {error}"))
    }

    /// Adds advice for the user.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// The failure as one JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "error": self.message,
            "hint": self.hint,
            "kind": self.exit.word(),
            "exit": self.exit as u8,
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let failure = Failure::new(Exit::of(error.kind()), error.to_string());
        match error.reason() {
            Reason::InUse { path, holder } => in_use(path, holder),
            Reason::NoStore { path } => {
                Failure::new(Exit::WrongCall, format!("there is no store at {path}")).hint(format!(
                    "correct the path, or make one: `duramen maps create {path} NAME` (`put` and `load` make one too)"
                ))
            }
            Reason::Damaged(_) => failure.hint("nothing was changed; `duramen check` tells how far the damage goes"),
            Reason::Full { .. } => {
                failure.hint("deleting works on a full disk; so does `duramen compact` if it has room")
            }
            _ => failure,
        }
    }
}

/// All other input/output has its own error handling, so a plain error comes from standard output.
impl From<duramen_client::Error> for Failure {
    fn from(error: duramen_client::Error) -> Failure {
        let exit = match error.kind {
            ErrorKind::Unavailable | ErrorKind::DeadlineExceeded | ErrorKind::Overloaded => Exit::TryAgain,
            ErrorKind::DataLoss => Exit::Damaged,
            _ => Exit::WrongCall,
        };
        Failure::new(exit, error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure {
            is_broken_pipe: error.kind() == io::ErrorKind::BrokenPipe,
            ..Failure::of_io("writing the output", &error)
        }
    }
}

/// Reports which process holds a store. The lock file names the last process that had exclusive access. If that process
/// has ended, a read-only process holds the store.
fn in_use(path: &str, holder: &str) -> Failure {
    const WAIT: &str = "`--wait SECONDS` waits for it";
    let process = holder.split(' ').next().and_then(|id| id.parse::<u32>().ok());
    match process.filter(|id| Path::new(&format!("/proc/{id}")).exists()) {
        Some(id) => Failure::new(
            Exit::TryAgain,
            format!("the store at {path} is in use by process {holder}"),
        )
        .hint(format!(
            "close it there, or end that process (`kill {id}` loses nothing acknowledged); {WAIT}"
        )),
        None => Failure::new(
            Exit::TryAgain,
            format!("the store at {path} is being read by another process"),
        )
        .hint(format!("try again when it has finished; {WAIT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_is_in_the_table() {
        for exit in [
            Exit::Done,
            Exit::NotFound,
            Exit::WrongCall,
            Exit::TryAgain,
            Exit::NoSpace,
            Exit::Damaged,
            Exit::Reopen,
            Exit::Closed,
        ] {
            assert!(EXIT_CODES.contains(&format!("\n  {}  ", exit as u8)), "{exit:?}");
        }
    }

    #[test]
    fn a_holder_that_has_ended_is_not_blamed() {
        assert!(
            in_use("shop", "4294967294 gone")
                .message
                .contains("being read by another process")
        );
        let alive = in_use("shop", &format!("{} me", std::process::id()));
        assert!(
            alive
                .message
                .ends_with(&format!("in use by process {} me", std::process::id()))
        );
    }
}
