//! `duramen subscribe`: prints messages of a topic, or takes them as a member of a group.

use std::time::{Duration, SystemTime};

use clap::Args;
use duramen::topic::{Received, Start, Topic};
use serde_json::{Value, json};

use super::topics::existing;
use crate::exit::{Exit, Outcome};
use crate::opening::{NotationArguments, StoreArguments};
use crate::output::Output;
use crate::text::Notation;

const EXAMPLES: &str = r"Examples:
  Everything that a topic keeps; the last two messages; those from an offset on:
    $ duramen subscribe shop sales
    $ duramen subscribe shop sales --from last:2 --json
    $ duramen subscribe shop sales --from 1 --count 10
  As a member of a group, which acknowledges what it prints, or only looks:
    $ duramen subscribe shop sales --group packers --count 1
    $ duramen subscribe shop sales --group packers --no-ack";

/// Messages read at once.
const BATCH: usize = 1000;

/// Print messages of a topic, in order
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Subscribe {
    #[command(flatten)]
    store: StoreArguments,

    /// The topic
    topic: String,

    /// Where to begin: beginning, tail, an offset, last:COUNT, or time:SECONDS since 1970
    #[arg(long, value_name = "PLACE", default_value = "beginning", value_parser = start, conflicts_with = "group")]
    from: Start,

    /// Messages at most
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,

    /// Take messages as a member of this group, and acknowledge each once it is printed
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,

    /// Do not acknowledge: what is printed is delivered again when its lease is over
    #[arg(long, requires = "group")]
    no_ack: bool,

    #[command(flatten)]
    notation: NotationArguments,
}

/// A place in a topic.
pub fn start(text: &str) -> Result<Start, String> {
    let wrong = || "not beginning, tail, an offset, last:COUNT or time:SECONDS".to_string();
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    match text.split_once(':') {
        None if text == "beginning" => Ok(Start::Beginning),
        None if text == "tail" => Ok(Start::Tail),
        None => Ok(Start::Offset(number(text)?)),
        Some(("last", count)) => Ok(Start::Last(number(count)?)),
        Some(("time", seconds)) => {
            let since = Duration::from_secs(number(seconds)?);
            SystemTime::UNIX_EPOCH
                .checked_add(since)
                .map(Start::Time)
                .ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

impl Subscribe {
    pub fn run(self, output: &mut Output) -> Outcome {
        let most = self.count.unwrap_or(u64::MAX);
        if let Some(group) = &self.group {
            let store = self.store.open_to_write()?;
            self.take(&existing(&store, &self.topic)?, group, most, output)?;
            store.close()?;
            return Ok(Exit::Done);
        }
        let store = self.store.open_to_read()?;
        self.read(&existing(&store, &self.topic)?, most, output)?;
        Ok(Exit::Done)
    }

    fn read(&self, topic: &Topic, most: u64, output: &mut Output) -> Outcome<()> {
        let (mut from, mut left) = (self.from, most);
        while left > 0 {
            let messages = topic.read(from, BATCH.min(usize::try_from(left).unwrap_or(BATCH)))?;
            for message in messages.iter() {
                self.print(&message, output)?;
            }
            if messages.is_empty() {
                break;
            }
            left -= messages.len() as u64;
            from = Start::Offset(messages.offsets().end);
        }
        Ok(())
    }

    fn take(&self, topic: &Topic, group: &str, most: u64, output: &mut Output) -> Outcome<()> {
        let mut member = topic.existing_group(group)?.member("duramen subscribe");
        let mut left = most;
        while left > 0 {
            let batch = BATCH.min(usize::try_from(left).unwrap_or(BATCH));
            let Some(deliveries) = member.receive(batch, Duration::ZERO)? else {
                break;
            };
            for message in deliveries.messages().iter() {
                self.print(&message, output)?;
            }
            // What a reader that went away has not seen is not acknowledged.
            std::io::Write::flush(output)?;
            if !self.no_ack {
                deliveries.acknowledge()?;
            }
            left -= deliveries.len() as u64;
        }
        Ok(())
    }

    fn print(&self, message: &Received<'_>, output: &mut Output) -> Outcome<()> {
        let notation = self.notation.notation();
        match output.is_json {
            true => output.json(&object(message, notation)),
            false => output.line(format_args!(
                "{}\t{}",
                message.offset(),
                notation.show(message.payload())
            )),
        }
    }
}

/// A message as JSON.
pub fn object(message: &Received<'_>, notation: Notation) -> Value {
    let headers = message
        .headers()
        .map(|(name, value)| json!([name, notation.show(value)]));
    json!({
        "topic": message.topic(),
        "offset": message.offset(),
        "time": message.time_millis(),
        "key": message.key().map(|key| notation.show(key)),
        "headers": headers.collect::<Vec<_>>(),
        "payload": notation.show(message.payload()),
    })
}
