//! `duramen publish`: publishes messages, from the command line, a file, or the lines of standard input.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use duramen::topic::{Message, Topic, TopicOptions, Topics};
use duramen::{Durability, Options};
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::opening::{NotationArguments, StoreArguments};
use crate::output::{Output, say};
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  Publish one message; the topic is made with --create when it is missing:
    $ duramen publish shop sales '1 apple' --create
    $ duramen publish shop sales '2 pears' --key order-7 --header currency=EUR
  A file as it is, or each line of standard input as a message, 1000 a second at most:
    $ duramen publish shop pictures --file logo.png --create
    $ printf 'one\ntwo\n' | duramen publish shop sales --lines --rate 1000";

/// Publish messages; they survive power loss when the command ends
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Publish {
    #[command(flatten)]
    store: StoreArguments,

    /// The topic
    topic: String,

    /// The message
    #[arg(required_unless_present_any = ["file", "lines"], conflicts_with_all = ["file", "lines"], allow_negative_numbers = true)]
    message: Option<String>,

    /// Publish a file, as it is
    #[arg(long, value_name = "FILE", conflicts_with = "lines")]
    file: Option<PathBuf>,

    /// Publish each line of standard input, as it is
    #[arg(long)]
    lines: bool,

    /// Lines a second at most
    #[arg(long, value_name = "COUNT", requires = "lines")]
    rate: Option<u32>,

    /// Give the messages a key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    key: Option<String>,

    /// Give the messages a header; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,

    /// Make the store and the topic when they are missing
    #[arg(long)]
    create: bool,

    #[command(flatten)]
    notation: NotationArguments,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a header is NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

impl Publish {
    pub fn run(self, output: &mut Output) -> Outcome {
        let key = self.key.as_ref().map(|key| self.notation.notation().parse("key", key));
        let key = key.transpose()?;
        let single = self.single()?;
        let store = match self.create {
            true => self.store.open_or_create(Options::new())?,
            false => self.store.open_to_write()?,
        };
        let topic = match self.create {
            true => Topics::open(&store)?.get_or_create(&self.topic, TopicOptions::new())?,
            false => super::topics::existing(&store, &self.topic)?,
        };
        let published = match single {
            Some(payload) => {
                let offset = topic.publish(self.dress(&payload, key.as_deref()))?.offset;
                if output.is_json {
                    output.json(&json!({"topic": self.topic, "offset": offset}))?;
                }
                1
            }
            None => self.publish_lines(&topic, key.as_deref())?,
        };
        store.sync()?;
        store.close()?;
        if self.lines {
            match output.is_json {
                true => output.json(&json!({"topic": self.topic, "published": published}))?,
                false => say(format_args!("published {}", counted(published, "message"))),
            }
        }
        Ok(Exit::Done)
    }

    fn single(&self) -> Outcome<Option<Vec<u8>>> {
        match (&self.message, &self.file) {
            (Some(text), _) => self.notation.notation().parse("message", text).map(Some),
            (None, Some(path)) => {
                let failed = |error| Failure::of_io(&format!("reading {}", path.display()), &error);
                std::fs::read(path).map(Some).map_err(failed)
            }
            (None, None) => Ok(None),
        }
    }

    fn dress<'m>(&'m self, payload: &'m [u8], key: Option<&'m [u8]>) -> Message<'m> {
        let mut message = Message::new(payload);
        if let Some(key) = key {
            message = message.key(key);
        }
        for (name, value) in &self.header {
            message = message.header(name, value);
        }
        message
    }

    /// Publishes lines as they come; the sync at the end makes all of them last.
    fn publish_lines(&self, topic: &Topic, key: Option<&[u8]>) -> Outcome<u64> {
        let topic = topic.with_durability(Durability::Written);
        let began = Instant::now();
        let mut published = 0;
        for line in io::stdin().lock().split(b'\n') {
            let line = line.map_err(|error| Failure::of_io("reading messages", &error))?;
            topic.publish(self.dress(&line, key))?;
            published += 1;
            if let Some(rate) = self.rate.filter(|rate| *rate > 0) {
                let due = Duration::from_secs_f64(published as f64 / f64::from(rate));
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
        }
        Ok(published)
    }
}
