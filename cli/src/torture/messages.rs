//! What members tell the supervisor: a letter and a number, or a text, on a line of the pipe each. A line is written by one
//! call, so that a member that is killed leaves whole lines.

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
    /// It looked, and this is the number of the newest transaction of its place that it found.
    Found(u64),
    /// The commit of this transaction begins.
    Begins(u64),
    /// That commit returned.
    Acknowledged(u64),
    /// It has looked at everything in so many snapshots.
    Looked(u64),
    /// Somebody who was stopped held it up.
    Busy,
    /// It closed the store.
    Ended,
    /// Something is wrong.
    Failed(String),
}

impl Message {
    /// What a line says.
    pub fn parse(line: &str) -> Option<Message> {
        let (letter, rest) = line.split_at_checked(1)?;
        let number = || rest.trim_start().parse().ok();
        Some(match letter {
            "f" => Message::Found(number()?),
            "b" => Message::Begins(number()?),
            "a" => Message::Acknowledged(number()?),
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
            Message::Looked(count) => write!(f, "l {count}"),
            Message::Busy => write!(f, "w"),
            Message::Ended => write!(f, "e"),
            Message::Failed(problem) => write!(f, "x {}", problem.replace('\n', " ")),
        }
    }
}

/// A member's end of the pipe.
pub struct Reporter<'a> {
    output: &'a mut Output,
}

impl<'a> Reporter<'a> {
    pub fn new(output: &'a mut Output) -> Reporter<'a> {
        Reporter { output }
    }

    /// Tells something. An error means that the supervisor is gone, and so is the reason to go on.
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
