//! `duramen dead-letters`: prints where the messages of a dead-letter topic came from, and why.

use clap::Args;
use duramen::Store;
use duramen::topic::{DeadLetter, Start};
use duramen_client::Received;
use serde_json::json;

use super::subscribe::read_on;
use super::topics::existing;
use crate::exit::{Exit, Outcome};
use crate::opening::NotationArguments;
use crate::output::Output;
use crate::place::{Place, PlaceArguments, Server};

const EXAMPLES: &str = r"Examples:
  Which messages failed the last time, and why:
    $ duramen dead-letters shop sales.dead
    $ duramen dead-letters shop sales.dead --json";

/// Maximum number of dead letters read at once.
const BATCH: usize = 1000;

/// Print which messages failed the last time, and why
///
/// One letter is one line: topic and offset of the message, group, tries, last error, payload.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DeadLetters {
    #[command(flatten)]
    place: PlaceArguments,

    /// The dead-letter topic
    topic: String,

    #[command(flatten)]
    notation: NotationArguments,
}

impl DeadLetters {
    pub fn run(self, output: &mut Output) -> Outcome {
        match self.place.open_to_read()? {
            Place::Directory(store) => self.read(&store, output)?,
            Place::Server(server) => self.read_on(&server, output)?,
        }
        Ok(Exit::Done)
    }

    fn read(&self, store: &Store, output: &mut Output) -> Outcome<()> {
        let topic = existing(store, &self.topic)?;
        let mut from = Start::Beginning;
        loop {
            let messages = topic.read(from, BATCH)?;
            if messages.is_empty() {
                return Ok(());
            }
            from = Start::Offset(messages.offsets().end);
            for message in messages.iter() {
                let Some(letter) = DeadLetter::of(&message) else {
                    continue;
                };
                let letter = Letter {
                    topic: &letter.topic,
                    offset: letter.offset,
                    group: &letter.group,
                    tries: letter.tries,
                    error: &letter.error,
                };
                self.print(&letter, message.payload(), output)?;
            }
        }
    }

    fn read_on(&self, server: &Server, output: &mut Output) -> Outcome<()> {
        read_on(server, &self.topic, Start::Beginning, false, |message| {
            if let Some(letter) = Letter::of(message) {
                self.print(&letter, &message.payload, output)?;
            }
            Ok(true)
        })
    }

    fn print(&self, letter: &Letter<'_>, payload: &[u8], output: &mut Output) -> Outcome<()> {
        let payload = self.notation.notation().show(payload);
        let Letter {
            topic,
            offset,
            group,
            tries,
            error,
        } = letter;
        match output.is_json {
            true => output.json(&json!({
                "topic": topic, "offset": offset, "group": group, "tries": tries, "error": error, "payload": payload,
            })),
            false => output.line(format_args!("{topic}\t{offset}\t{group}\t{tries}\t{error}\t{payload}")),
        }
    }
}

/// Where a dead letter came from, and why.
struct Letter<'l> {
    topic: &'l str,
    offset: u64,
    group: &'l str,
    tries: u32,
    error: &'l str,
}

impl<'l> Letter<'l> {
    /// Decodes the headers of a dead letter of a server, as `DeadLetter::of` does for a store.
    fn of(message: &'l Received) -> Option<Letter<'l>> {
        let text = |wanted: &str| {
            let (_, value) = message.headers.iter().find(|(name, _)| name == wanted)?;
            std::str::from_utf8(value).ok()
        };
        Some(Letter {
            topic: text("dead-letter-topic")?,
            offset: text("dead-letter-offset")?.parse().ok()?,
            group: text("dead-letter-group")?,
            tries: text("dead-letter-tries")?.parse().ok()?,
            error: text("dead-letter-error")?,
        })
    }
}
