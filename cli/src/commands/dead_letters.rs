//! `duramen dead-letters`: prints where the messages of a dead-letter topic came from, and why.

use clap::Args;
use duramen::topic::{DeadLetter, Start};
use serde_json::json;

use super::topics::existing;
use crate::exit::{Exit, Outcome};
use crate::opening::{NotationArguments, StoreArguments};
use crate::output::Output;

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
    store: StoreArguments,

    /// The dead-letter topic
    topic: String,

    #[command(flatten)]
    notation: NotationArguments,
}

impl DeadLetters {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = self.store.open_to_read()?;
        let topic = existing(&store, &self.topic)?;
        let notation = self.notation.notation();
        let mut from = Start::Beginning;
        loop {
            let messages = topic.read(from, BATCH)?;
            if messages.is_empty() {
                return Ok(Exit::Done);
            }
            from = Start::Offset(messages.offsets().end);
            for message in messages.iter() {
                let Some(letter) = DeadLetter::of(&message) else {
                    continue;
                };
                let payload = notation.show(message.payload());
                let DeadLetter {
                    topic,
                    offset,
                    group,
                    tries,
                    error,
                    ..
                } = letter;
                match output.is_json {
                    true => output.json(&json!({
                        "topic": topic, "offset": offset, "group": group, "tries": tries, "error": error,
                        "payload": payload,
                    }))?,
                    false => output.line(format_args!("{topic}\t{offset}\t{group}\t{tries}\t{error}\t{payload}"))?,
                }
            }
        }
    }
}
