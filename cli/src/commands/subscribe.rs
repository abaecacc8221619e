//! `duramen subscribe`: prints messages of a topic, or of all topics that match a pattern. It reads once, as a durable
//! subscription, or as a member of a group.

use std::io::Write;
use std::time::{Duration, SystemTime};

use clap::{ArgGroup, Args};
use duramen::topic::{
    Deliveries, DurablePattern, Messages, Pattern, Received, SlowPolicy, Start, SubscribeOptions, Topics,
};
use duramen::{Result, Store};
use duramen_client::Start as StartOn;
use serde_json::{Value, json};

use super::meant::Meant;
use super::topics::existing;
use crate::exit::{Exit, Failure, Outcome};
use crate::limit::millis;
use crate::opening::NotationArguments;
use crate::output::{Output, say};
use crate::place::{Place, PlaceArguments, Server};
use crate::text::{Notation, counted, is_pattern};

const EXAMPLES: &str = r"Examples:
  Everything that a topic keeps; the last two messages; those from an offset on:
    $ duramen subscribe shop sales
    $ duramen subscribe shop sales --from last:2 --json
    $ duramen subscribe shop sales --from 1 --count 10
  Of all topics whose names match, also of those that are made later; the topic comes first:
    $ duramen subscribe shop 'sales.>'
  Go on with what is published, until it is interrupted or has printed so many:
    $ duramen subscribe shop sales --follow --count 2
  Go on where the last call with this name ended, in all topics of a pattern too; or only look:
    $ duramen subscribe shop sales --durable archive
    $ duramen subscribe shop 'sales.>' --durable totals
    $ duramen subscribe shop sales --durable archive --no-ack --json
  As a member of a group, which acknowledges what it prints, or only looks:
    $ duramen subscribe shop sales --group packers --count 1
    $ duramen subscribe shop sales --group packers --no-ack
  As a member of a group over a pattern:
    $ duramen groups create shop 'sales.*' shippers
    $ duramen subscribe shop 'sales.*' --group shippers
  From a server, also while it restarts:
    $ duramen subscribe --server unix:duramen.sock sales --follow --count 2";

/// Maximum number of messages that a group member receives at once.
const BATCH: usize = 1000;
/// The name of this command as a member of a group.
const MEMBER: &str = "duramen subscribe";
/// How long one call waits for messages with `--follow`.
const PATIENCE: Duration = Duration::from_secs(1);

/// Print messages of a topic, in order
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, group(ArgGroup::new("reader").args(["durable", "group"])))]
pub struct Subscribe {
    #[command(flatten)]
    place: PlaceArguments,

    /// The topic, or a pattern: `*` stands for one part of a name, `>` for all that follow
    topic: String,

    /// Where to begin: beginning, tail, an offset, last:COUNT, or time:SECONDS since 1970. A durable subscription that exists
    /// goes on where it was
    #[arg(long, value_name = "PLACE", default_value = "beginning", value_parser = start, conflicts_with = "group")]
    from: Start,

    /// Wait for messages that are published later, and print them as they come
    #[arg(long)]
    follow: bool,

    /// Messages at most
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,

    /// Go on where the durable subscription of this name has come to, and acknowledge what is printed; it is made when it is
    /// missing
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    durable: Option<String>,

    /// Take messages as a member of this group, and acknowledge each once it is printed
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,

    /// Do not acknowledge: what is printed comes again, to a group once this command ends
    #[arg(long, requires = "reader")]
    no_ack: bool,

    #[command(flatten)]
    notation: NotationArguments,
}

/// Options of a reader that skips messages deleted by retention and is told of it. A command cannot ask what to do.
fn passing_over() -> SubscribeOptions {
    SubscribeOptions::new().slow(SlowPolicy::Skip { max: u64::MAX })
}

/// Returns the durable subscription of a name to a pattern, if it exists.
pub fn durable_pattern(store: &Store, pattern: &str, name: &str) -> Outcome<Option<DurablePattern>> {
    let known = match Topics::exist(store)? {
        true => Topics::open(store)?.durables()?,
        false => Vec::new(),
    };
    let is_it = |known: &DurablePattern| known.name() == name && known.pattern().as_str() == pattern;
    Ok(known.into_iter().find(is_it))
}

pub fn no_durable_pattern(pattern: &str, name: &str) -> Failure {
    Failure::wrong_call(format!(
        "there is no durable subscription named {name:?} to {pattern:?}"
    ))
    .hint("`duramen groups DIR` lists them")
}

/// Parses a position in a topic.
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
        // A process that opens the store only to read, and opens it first, keeps writers out. With `--follow`, no
        // message would ever arrive.
        let place = match self.follow || self.group.is_some() || self.durable.is_some() {
            true => self.place.open_to_write()?,
            false => self.place.open_to_read()?,
        };
        match (&place, &self.group) {
            (Place::Directory(store), _) => self.print_all(store, output)?,
            (Place::Server(server), Some(group)) => self.take_on(server, group, output)?,
            (Place::Server(server), None) => self.print_all_on(server, output)?,
        }
        place.close()?;
        Ok(Exit::Done)
    }

    fn print_all(&self, store: &Store, output: &mut Output) -> Outcome<()> {
        let is_pattern = is_pattern(&self.topic);
        match (&self.group, &self.durable) {
            (Some(group), _) => self.take(store, group, output)?,
            (None, Some(name)) if is_pattern => {
                let reader = self.durable_pattern(store, name)?;
                let mut subscription = reader.subscribe_with(passing_over())?;
                let acknowledge = |messages: &Messages| reader.acknowledge(messages);
                self.read(|patience| subscription.next_batch(patience), acknowledge, output)?;
            }
            (None, Some(name)) => {
                let topic = existing(store, &self.topic)?;
                let reader = match self.no_ack {
                    true => topic.existing_durable(name)?,
                    false => topic.durable(name, self.from)?,
                };
                let mut subscription = reader.subscribe_with(passing_over())?;
                let acknowledge = |messages: &Messages| reader.acknowledge_through(messages.offsets().end - 1);
                self.read(|patience| subscription.next_batch(patience), acknowledge, output)?;
            }
            (None, None) if is_pattern => self.read_all(store, output)?,
            (None, None) => {
                let mut subscription = existing(store, &self.topic)?.subscribe(self.from)?;
                self.read(|patience| subscription.next_batch(patience), |_| Ok(()), output)?;
            }
        }
        Ok(())
    }

    fn print_all_on(&self, server: &Server, output: &mut Output) -> Outcome<()> {
        let mut left = self.count.unwrap_or(u64::MAX);
        if left == 0 {
            return Ok(());
        }
        read_on(server, &self.topic, self.from, self.follow, |message| {
            self.print(&Seen::on(&self.topic, message), output)?;
            if self.follow {
                output.flush()?;
            }
            left -= 1;
            Ok(left > 0)
        })
    }

    /// Prints what a group of a server delivers. Ends when there is no more; with `--follow` it never ends.
    fn take_on(&self, server: &Server, group: &str, output: &mut Output) -> Outcome<()> {
        let group = server.group(&self.topic, group)?;
        let mut left = self.count.unwrap_or(u64::MAX);
        let mut held = Vec::new();
        while left > 0 {
            let most = left.min(BATCH as u64);
            let Some(fetched) = server.wait(group.fetch(MEMBER, most as u32, self.patience()))? else {
                if self.follow {
                    continue;
                }
                break;
            };
            for delivery in fetched.messages() {
                self.print(&Seen::on(&self.topic, &delivery.message), output)?;
            }
            output.flush()?;
            left -= fetched.messages().len() as u64;
            match self.no_ack {
                true => held.push(fetched),
                false => server.wait(fetched.acknowledge())?,
            }
        }
        held.iter().try_for_each(|fetched| server.wait(fetched.release()))
    }

    /// Opens the durable subscription. With `--no-ack`, it must exist already.
    fn durable_pattern(&self, store: &Store, name: &str) -> Outcome<DurablePattern> {
        match self.no_ack {
            true => durable_pattern(store, &self.topic, name)?.ok_or_else(|| no_durable_pattern(&self.topic, name)),
            false => Ok(Topics::open(store)?.durable(&Pattern::new(&self.topic)?, name, self.from)?),
        }
    }

    fn read_all(&self, store: &Store, output: &mut Output) -> Outcome<()> {
        let pattern = Pattern::new(&self.topic)?;
        // A read-only process cannot create what topics need. It finds nothing where there are no topics.
        if !self.follow && !Topics::exist(store)? {
            return Ok(());
        }
        let mut subscription = Topics::open(store)?.subscribe(&pattern, self.from)?;
        self.read(|patience| subscription.next_batch(patience), |_| Ok(()), output)
    }

    /// Prints what `next` returns and acknowledges it. Ends when there is no more; with `--follow` it never ends.
    fn read(
        &self,
        mut next: impl FnMut(Duration) -> Result<Option<Messages>>,
        acknowledge: impl Fn(&Messages) -> Result<()>,
        output: &mut Output,
    ) -> Outcome<()> {
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            let Some(messages) = next(self.patience())? else {
                if self.follow {
                    continue;
                }
                break;
            };
            let some = usize::try_from(left).unwrap_or(usize::MAX).min(messages.len());
            let messages = messages.part(0..some);
            if let Some(gap) = messages.gap() {
                say(format_args!(
                    "messages {} to {} of topic {:?} are no longer kept",
                    gap.start,
                    gap.end - 1,
                    messages.topic()
                ));
            }
            for message in messages.iter() {
                self.print(&Seen::of(&message), output)?;
            }
            if self.follow || self.durable.is_some() {
                // Flushes before it acknowledges, so that messages a closed pipe did not take stay unacknowledged.
                output.flush()?;
            }
            if !self.no_ack {
                acknowledge(&messages)?;
            }
            left -= some as u64;
        }
        Ok(())
    }

    fn take(&self, store: &Store, group: &str, output: &mut Output) -> Outcome<()> {
        match Meant::find(store, &self.topic, group)? {
            Meant::Everywhere(group) => {
                let mut member = group.member(MEMBER);
                self.take_with(|most, patience| member.receive(most, patience), output)
            }
            Meant::InTopic(topic) => {
                let mut member = topic.existing_group(group)?.member(MEMBER);
                self.take_with(|most, patience| member.receive(most, patience), output)
            }
        }
    }

    /// Prints what `receive` returns. Ends when there is no more; with `--follow` it never ends.
    fn take_with(
        &self,
        mut receive: impl FnMut(usize, Duration) -> Result<Option<Deliveries>>,
        output: &mut Output,
    ) -> Outcome<()> {
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            let batch = BATCH.min(usize::try_from(left).unwrap_or(BATCH));
            let Some(deliveries) = receive(batch, self.patience())? else {
                if self.follow {
                    continue;
                }
                break;
            };
            for message in deliveries.messages().iter() {
                self.print(&Seen::of(&message), output)?;
            }
            // Flushes before it acknowledges, so that messages a closed pipe did not take stay unacknowledged.
            output.flush()?;
            if !self.no_ack {
                deliveries.acknowledge()?;
            }
            left -= deliveries.len() as u64;
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        match self.follow {
            true => PATIENCE,
            false => Duration::ZERO,
        }
    }

    fn print(&self, message: &Seen<'_>, output: &mut Output) -> Outcome<()> {
        let notation = self.notation.notation();
        let (topic, offset, payload) = (message.topic, message.offset, notation.show(message.payload));
        match (output.is_json, topic == self.topic) {
            (true, _) => output.json(&object(message, notation)),
            (false, true) => output.line(format_args!("{offset}\t{payload}")),
            (false, false) => output.line(format_args!("{topic}\t{offset}\t{payload}")),
        }
    }
}

/// Passes the messages of a topic of a server to `each` until it returns `false`. Without `follow` it ends at the end that
/// the topic has now.
pub fn read_on(
    server: &Server,
    topic: &str,
    from: Start,
    follow: bool,
    mut each: impl FnMut(&duramen_client::Received) -> Outcome<bool>,
) -> Outcome<()> {
    let topic = server.topic(topic)?;
    let (mut start, mut since, mut end) = (start_on(from), SystemTime::UNIX_EPOCH, None);
    if !follow {
        let described = server.wait(topic.describe())?;
        let next = described.next_offset;
        // A subscription tells of no end, so it must not begin where no message comes.
        let is_at_end = match from {
            // The server refuses it.
            Start::Offset(offset) if offset > next => false,
            Start::Offset(offset) if offset == next => true,
            Start::Tail | Start::Last(0) => true,
            _ => described.first_offset == next,
        };
        if is_at_end {
            return Ok(());
        }
        if described.topic_options.is_some_and(|options| options.message_expiry) {
            let message = "a server does not tell where messages that expire end";
            return Err(Failure::wrong_call(message).hint("read them with --follow"));
        }
        if let Start::Time(time) = from {
            (start, since) = (StartOn::Earliest, time);
        }
        end = Some(next);
    }
    let mut skipped = 0;
    let mut subscription = server.wait(topic.subscribe(start))?;
    while let Some(message) = server.next(subscription.next())? {
        if subscription.skipped() > skipped {
            let more = subscription.skipped() - skipped;
            say(format_args!("{} no longer kept", counted(more, "message")));
            skipped += more;
        }
        if message.time >= since && !each(&message)? || end.is_some_and(|end| message.offset + 1 >= end) {
            break;
        }
    }
    Ok(())
}

/// Returns a position in the form that the client of a server takes.
pub fn start_on(start: Start) -> StartOn {
    match start {
        Start::Beginning => StartOn::Earliest,
        Start::Offset(offset) => StartOn::Offset(offset),
        Start::Last(count) => StartOn::Last(count),
        Start::Time(time) => StartOn::Time(time),
        _ => StartOn::Next,
    }
}

/// A message of a store or of a server.
struct Seen<'m> {
    topic: &'m str,
    offset: u64,
    time: u64,
    key: Option<&'m [u8]>,
    headers: Vec<(&'m str, &'m [u8])>,
    payload: &'m [u8],
}

impl<'m> Seen<'m> {
    fn of(message: &'m Received<'_>) -> Seen<'m> {
        Seen {
            topic: message.topic(),
            offset: message.offset(),
            time: message.time_millis(),
            key: message.key(),
            headers: message.headers().collect(),
            payload: message.payload(),
        }
    }

    fn on(topic: &'m str, message: &'m duramen_client::Received) -> Seen<'m> {
        let headers = message.headers.iter();
        Seen {
            topic,
            offset: message.offset,
            time: millis(message.time),
            key: message.key.as_deref(),
            headers: headers.map(|(name, value)| (&name[..], &value[..])).collect(),
            payload: &message.payload,
        }
    }
}

/// Returns a message as JSON.
fn object(message: &Seen<'_>, notation: Notation) -> Value {
    let headers = message.headers.iter();
    let headers = headers.map(|(name, value)| json!([name, notation.show(value)]));
    json!({
        "topic": message.topic,
        "offset": message.offset,
        "time": message.time,
        "key": message.key.map(|key| notation.show(key)),
        "headers": headers.collect::<Vec<_>>(),
        "payload": notation.show(message.payload),
    })
}
