//! `duramen publish`: publishes messages, from the command line, a file, or the lines of standard input.

use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use duramen::topic::{Message, Outcome as DuramenOutcome, Topic, TopicWrites, Topics};
use duramen::{Durability, Store, VALUE_BYTES_MAX};
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::limit::time;
use crate::opening::NotationArguments;
use crate::output::{Output, say};
use crate::place::{Place, PlaceArguments, Server};
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  Publish one message; the topic is made with --create when it is missing:
    $ duramen publish shop sales '1 apple' --create
    $ duramen publish shop sales '2 pears' --key order-7 --header currency=EUR
  Several, in one commit: all of them are there, or none:
    $ duramen publish shop sales '3 plums' '4 quinces'
  A file or standard input as one message; each line of standard input as one, 1000 a second at most:
    $ duramen publish shop pictures --file logo.png --create
    $ date | duramen publish shop sales -
    $ printf 'one\ntwo\n' | duramen publish shop sales --lines --rate 1000
  A message that is published once, however often the command runs within an hour:
    $ duramen topics configure shop sales --deduplicate-for 3600
    $ duramen publish shop sales '6 figs' --id order-9
  A message that is gone after a minute:
    $ duramen topics configure shop sales --message-expiry
    $ duramen publish shop sales 'plums at half price' --expires 60
  A message that is published in an hour:
    $ duramen publish shop sales '5 reminders' --delay 3600
  To a server:
    $ duramen publish --server unix:duramen.sock sales '7 limes'";

/// Publish messages; they survive power loss when the command ends
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Publish {
    #[command(flatten)]
    place: PlaceArguments,

    /// The topic
    topic: String,

    /// The messages, in one commit; `-` takes one from standard input, as it comes (a message of one dash is `\x2d`)
    #[arg(
        value_name = "MESSAGE",
        required_unless_present_any = ["files", "lines"],
        conflicts_with_all = ["files", "lines"],
        allow_negative_numbers = true
    )]
    messages: Vec<String>,

    /// Publish a file, as it is; may be given several times
    #[arg(long = "file", value_name = "FILE", conflicts_with = "lines")]
    files: Vec<PathBuf>,

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

    /// Give the message an id: it is published once within the time that --deduplicate-for of the topic says
    #[arg(long, value_name = "ID", conflicts_with_all = ["lines", "server"], allow_negative_numbers = true)]
    id: Option<String>,

    /// Let the messages expire so many seconds after they are published; the topic needs --message-expiry
    #[arg(long, value_name = "SECONDS", value_parser = time)]
    expires: Option<Duration>,

    /// Publish after so many seconds; prints the number of each delayed message. A process that has the store open then,
    /// such as a program that uses its topics, publishes it
    #[arg(long, value_name = "SECONDS", value_parser = time, conflicts_with_all = ["lines", "server"])]
    delay: Option<Duration>,

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
        // Reads the payloads before it opens the store, because a pipe may be slow.
        let payloads = self.payloads()?;
        if self.id.is_some() && payloads.len() != 1 {
            return Err(Failure::wrong_call(
                "an id belongs to one message; publish them one by one",
            ));
        }
        let place = match self.create {
            true => self.place.open_or_create()?,
            false => self.place.open_to_write()?,
        };
        match &place {
            Place::Directory(store) => self.publish(store, &payloads, key.as_deref(), output)?,
            Place::Server(server) => self.publish_on(server, payloads, key.as_deref(), output)?,
        }
        place.close()?;
        Ok(Exit::Done)
    }

    fn publish(&self, store: &Store, payloads: &[Vec<u8>], key: Option<&[u8]>, output: &mut Output) -> Outcome<()> {
        let topic = match self.create {
            true => super::topics::created_when_missing(&Topics::open(store)?, &self.topic)?,
            false => super::topics::for_use(store, &self.topic)?,
        };
        match (self.lines, self.delay) {
            (true, _) => self.publish_lines(&topic, key, output),
            (false, Some(delay)) => self.schedule(&topic, payloads, key, delay, output),
            (false, None) => self.publish_all(&topic, payloads, key, output),
        }
    }

    fn publish_on(
        &self,
        server: &Server,
        payloads: Vec<Vec<u8>>,
        key: Option<&[u8]>,
        output: &mut Output,
    ) -> Outcome<()> {
        if self.create {
            let created = server.client.create_topic(&self.topic, Default::default());
            server.wait(async {
                match created.await {
                    // A topic that exists keeps its options.
                    Err(error) if error.reason == "TOPIC_EXISTS" => Ok(()),
                    created => created.map(drop),
                }
            })?;
        }
        let topic = server.client.topic(&self.topic);
        if self.lines {
            return self.publish_lines_on(server, &topic, key, output);
        }
        let count = payloads.len() as u64;
        let messages = payloads.into_iter().map(|payload| self.dress_on(payload, key));
        let first = server.wait(topic.publish_batch(messages))?;
        self.report(first.unwrap_or(0), count, output)
    }

    /// Returns the messages to publish. Lines are not included; they are read as they arrive.
    fn payloads(&self) -> Outcome<Vec<Vec<u8>>> {
        let dashes = self.messages.iter().filter(|text| *text == "-").count();
        if dashes > 1 {
            return Err(Failure::wrong_call(
                "standard input can be one message only; give `-` once",
            ));
        }
        let of_text = |text: &String| match text.as_str() {
            "-" => from_stdin(),
            text => self.notation.notation().parse("message", text),
        };
        let of_file = |path: &PathBuf| {
            let failed = |error| Failure::of_io(&format!("reading {}", path.display()), &error);
            std::fs::read(path).map_err(failed)
        };
        let texts = self.messages.iter().map(of_text);
        texts.chain(self.files.iter().map(of_file)).collect()
    }

    fn publish_all(&self, topic: &Topic, payloads: &[Vec<u8>], key: Option<&[u8]>, output: &mut Output) -> Outcome<()> {
        let first = match payloads {
            [one] if self.id.is_some() => match topic.publish_by_id(self.dress(one, key))? {
                DuramenOutcome::Published(published) => Some(published),
                DuramenOutcome::Duplicate(offset) => return self.duplicate(offset, output),
            },
            // Publishes without a copy, because the message may be long.
            [one] => Some(topic.publish(self.dress(one, key))?),
            all => topic.publish_all(all.iter().map(|payload| self.dress(payload, key)))?,
        };
        let first = first.map_or(0, |published| published.offset);
        self.report(first, payloads.len() as u64, output)
    }

    fn report(&self, first: u64, count: u64, output: &mut Output) -> Outcome<()> {
        if output.is_json {
            for offset in first..first + count {
                output.json(&json!({"topic": self.topic, "offset": offset}))?;
            }
        }
        Ok(())
    }

    /// Reports that the message was published before.
    fn duplicate(&self, offset: Option<u64>, output: &mut Output) -> Outcome<()> {
        if output.is_json {
            return output.json(&json!({"topic": self.topic, "offset": offset, "duplicate": true}));
        }
        say("nothing was published: the id was published before");
        Ok(())
    }

    fn schedule(
        &self,
        topic: &Topic,
        payloads: &[Vec<u8>],
        key: Option<&[u8]>,
        delay: Duration,
        output: &mut Output,
    ) -> Outcome<()> {
        let due = SystemTime::now().checked_add(delay);
        let due = due.ok_or_else(|| Failure::wrong_call("the delay is too long; give fewer seconds"))?;
        let scheduled = topic.topics().store().transact(|tx| {
            let mut scheduled = Vec::new();
            for payload in payloads {
                scheduled.push(tx.publish_at(topic, due, self.dress(payload, key))?);
            }
            Ok::<_, duramen::Error>(scheduled)
        })?;
        for scheduled in scheduled {
            match output.is_json {
                true => output.json(&json!({"topic": self.topic, "scheduled": scheduled.to_string()}))?,
                false => output.line(scheduled)?,
            }
        }
        Ok(())
    }

    fn dress<'m>(&'m self, payload: &'m [u8], key: Option<&'m [u8]>) -> Message<'m> {
        let mut message = Message::new(payload);
        if let Some(key) = key {
            message = message.key(key);
        }
        if let Some(time) = self.expires {
            message = message.expires_after(time);
        }
        if let Some(id) = &self.id {
            message = message.id(id);
        }
        for (name, value) in &self.header {
            message = message.header(name, value);
        }
        message
    }

    fn dress_on(&self, payload: Vec<u8>, key: Option<&[u8]>) -> duramen_client::Message {
        let mut message = duramen_client::Message::new(payload);
        if let Some(key) = key {
            message = message.key(key);
        }
        if let Some(time) = self.expires {
            message = message.expires_after(time);
        }
        let headers = self.header.iter();
        headers.fold(message, |message, (name, value)| message.header(name, value))
    }

    /// Publishes lines as they arrive. The sync at the end makes all of them durable.
    fn publish_lines(&self, topic: &Topic, key: Option<&[u8]>, output: &mut Output) -> Outcome<()> {
        let topic = topic.with_durability(Durability::Written);
        let began = Instant::now();
        let mut published = 0;
        for line in io::stdin().lock().split(b'\n') {
            let line = line.map_err(|error| Failure::of_io("reading messages", &error))?;
            topic.publish(self.dress(&line, key))?;
            published += 1;
            self.wait_for_rate(began, published);
        }
        topic.topics().store().sync()?;
        self.report_lines(published, output)
    }

    /// Publishes lines as they arrive, and waits for the server where no more have arrived.
    fn publish_lines_on(
        &self,
        server: &Server,
        topic: &duramen_client::Topic,
        key: Option<&[u8]>,
        output: &mut Output,
    ) -> Outcome<()> {
        let publisher = server.wait(topic.publisher())?;
        let mut input = BufReader::new(io::stdin().lock());
        let began = Instant::now();
        let (mut published, mut tickets) = (0, Vec::new());
        loop {
            let mut line = Vec::new();
            let read = input.read_until(b'\n', &mut line);
            if read.map_err(|error| Failure::of_io("reading messages", &error))? == 0 {
                break;
            }
            line.pop_if(|end| *end == b'\n');
            tickets.push(server.wait(publisher.send(self.dress_on(line, key)))?);
            published += 1;
            if !input.buffer().contains(&b'\n') || self.rate.is_some() {
                for ticket in tickets.drain(..) {
                    server.wait(ticket)?;
                }
            }
            self.wait_for_rate(began, published);
        }
        self.report_lines(published, output)
    }

    fn wait_for_rate(&self, began: Instant, published: u64) {
        if let Some(rate) = self.rate.filter(|rate| *rate > 0) {
            let due = Duration::from_secs_f64(published as f64 / f64::from(rate));
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }

    fn report_lines(&self, published: u64, output: &mut Output) -> Outcome<()> {
        match output.is_json {
            true => output.json(&json!({"topic": self.topic, "published": published})),
            false => {
                say(format_args!("published {}", counted(published, "message")));
                Ok(())
            }
        }
    }
}

/// Reads standard input, up to one byte more than the message limit. Publishing then reports that the message is too
/// long.
fn from_stdin() -> Outcome<Vec<u8>> {
    if io::stdin().is_terminal() {
        say("reading the message from the terminal; end it with Ctrl-D");
    }
    let mut payload = Vec::new();
    let failed = |error| Failure::of_io("reading the message", &error);
    io::stdin()
        .lock()
        .take(VALUE_BYTES_MAX + 1)
        .read_to_end(&mut payload)
        .map_err(failed)?;
    Ok(payload)
}
