//! Messages from members to the supervisor. Each is a letter with a number or a text, on its own line of the pipe. A
//! member writes each line with one call, so a killed member leaves only whole lines.

use std::fmt;
use std::io::Write;

use clap::ValueEnum;

use crate::exit::Outcome;
use crate::output::Output;

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Commits, one transaction after the other.
    Writer,
    /// Looks at everything in snapshots.
    Reader,
}

/// A line from a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The member checked the store; this is the newest transaction of its slot that it found.
    Found(u64),
    /// The commit of this transaction begins.
    Begins(u64),
    /// The commit of this transaction returned.
    Acknowledged(u64),
    /// The newest checkpoint of its slot that the member found is the one after this transaction; 0: there is none.
    FoundKept(u64),
    /// The member begins to make a checkpoint, after this transaction.
    Keeps(u64),
    /// The checkpoint after this transaction is made.
    Kept(u64),
    /// The member has checked everything in this many snapshots.
    Looked(u64),
    /// A suspended process blocked the member.
    Busy,
    /// The member closed the store.
    Ended,
    /// The member found a problem.
    Failed(String),
}

impl Message {
    /// Parses a line.
    pub fn parse(line: &str) -> Option<Message> {
        let (letter, rest) = line.split_at_checked(1)?;
        let number = || rest.trim_start().parse().ok();
        Some(match letter {
            "f" => Message::Found(number()?),
            "b" => Message::Begins(number()?),
            "a" => Message::Acknowledged(number()?),
            "g" => Message::FoundKept(number()?),
            "c" => Message::Keeps(number()?),
            "k" => Message::Kept(number()?),
            "l" => Message::Looked(number()?),
            "w" => Message::Busy,
            "e" => Message::Ended,
            "x" => Message::Failed(rest.trim_start().to_string()),
            _ => return None,
        })
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Found(number) => write!(f, "f {number}"),
            Message::Begins(number) => write!(f, "b {number}"),
            Message::Acknowledged(number) => write!(f, "a {number}"),
            Message::FoundKept(number) => write!(f, "g {number}"),
            Message::Keeps(number) => write!(f, "c {number}"),
            Message::Kept(number) => write!(f, "k {number}"),
            Message::Looked(count) => write!(f, "l {count}"),
            Message::Busy => write!(f, "w"),
            Message::Ended => write!(f, "e"),
            Message::Failed(problem) => write!(f, "x {}", problem.replace('\n', " ")),
        }
    }
}

/// The member's end of the pipe.
pub struct Reporter<'a> {
    output: &'a mut Output,
}

impl<'a> Reporter<'a> {
    pub fn new(output: &'a mut Output) -> Reporter<'a> {
        Reporter { output }
    }

    /// Sends a message. An error means that the supervisor has died, so the member has no reason to continue.
    pub fn tell(&mut self, message: &Message) -> Result<(), String> {
        let told = self.output.line(message).map_err(|failure| failure.message);
        told.and_then(|()| self.output.flush().map_err(|error| error.to_string()))
    }

    pub fn ends(&mut self) -> Outcome<()> {
        self.output.line(Message::Ended)
    }

    pub fn failed(&mut self, problem: &str) -> Outcome<()> {
        self.output.line(Message::Failed(problem.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_read_as_it_was_written() {
        let messages = [
            Message::Found(0),
            Message::Begins(17),
            Message::Acknowledged(u64::MAX),
            Message::FoundKept(0),
            Message::Keeps(18),
            Message::Kept(19),
            Message::Looked(3),
            Message::Busy,
            Message::Ended,
            Message::Failed("account 7: x b 3".into()),
        ];
        for message in messages {
            assert_eq!(Message::parse(&message.to_string()), Some(message));
        }
        for line in ["", "b", "b x", "é 3", "q 3"] {
            assert_eq!(Message::parse(line), None, "{line:?}");
        }
    }
}
