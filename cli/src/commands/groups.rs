//! `duramen groups`: lists groups and durable subscriptions of one topic or of all topics. It also creates, configures,
//! pauses, resumes, resets and deletes them.

use std::time::Duration;

use clap::{Args, Subcommand};
use duramen::topic::{
    DeadLetters, Filter, GroupDescription, GroupOptions, Pattern, Pending, Start, Topic, TopicError, Topics,
};
use duramen::{Durability, Store};
use duramen_client::PendingMessage;
use serde_json::{Value, json};

use super::changes::finish;
use super::meant::Meant;
use super::subscribe::{durable_pattern, start_on};
use super::topics::existing;
use crate::exit::{Exit, Failure, Outcome};
use crate::limit::{Limit, count_limit, millis, seconds, time};
use crate::opening::StoreArguments;
use crate::output::Output;
use crate::place::{Place, PlaceArguments, Server};
use crate::text::is_pattern;

const EXAMPLES: &str = r"Examples:
  All groups of the store, and what they have to do; those of one topic, with their settings:
    $ duramen groups shop
    $ duramen groups shop sales --describe
  Which messages a group has not settled, and which member has them:
    $ duramen groups shop sales --pending packers
  Look after them:
    $ duramen groups create shop sales billing --tries 5 --dead-letters sales.dead
    $ duramen groups configure shop sales billing --lease 120
    $ duramen groups pause shop sales packers
    $ duramen groups resume shop sales packers
    $ duramen groups reset shop sales packers beginning
    $ duramen groups delete shop sales billing
  Those of a server, which tells of topics and not of patterns:
    $ duramen groups --server unix:duramen.sock sales";

const CREATE_EXAMPLES: &str = r"Examples:
  Five tries of a minute each, and then to a topic of your choice; or tries without end, of what is new:
    $ duramen groups create shop sales billing --lease 60 --tries 5 --dead-letters sales.dead
    $ duramen groups create shop sales archive --from tail --back-off 1,5,30 --tries none
  Messages of one key in order, one member at a time; only orders of Europe:
    $ duramen groups create shop sales accounts --order-by-key yes
    $ duramen groups create shop sales europe --filter-key 'order-*' --filter-header region=eu-*
  One group over all topics of a pattern, also over those that are created later:
    $ duramen groups create shop 'sales.*' shippers";

const CONFIGURE_EXAMPLES: &str = r"Examples:
  What is not given stays as it is; what members have keeps the lease it has:
    $ duramen groups configure shop sales packers --lease 60 --in-flight 100
    $ duramen groups configure shop sales packers --tries none --no-dead-letters --json";

const PAUSE_EXAMPLES: &str = r"Examples:
  What members have they can still settle:
    $ duramen groups pause shop sales packers
    $ duramen groups pause shop sales packers --json";

const RESUME_EXAMPLES: &str = r"Examples:
  It goes on where it was:
    $ duramen groups resume shop sales packers
    $ duramen groups resume shop sales packers --json";

const RESET_EXAMPLES: &str = r"Examples:
  Everything again; only what is new; the last message again:
    $ duramen groups reset shop sales packers beginning
    $ duramen groups reset shop sales packers tail
    $ duramen groups reset shop sales packers last:1
  A durable subscription to a pattern, in all its topics:
    $ duramen subscribe shop 'sales.*' --durable totals
    $ duramen groups reset shop 'sales.*' totals beginning";

const DELETE_EXAMPLES: &str = r"Examples:
  The messages stay:
    $ duramen groups delete shop sales packers
    $ duramen groups create shop sales again && duramen groups delete shop sales again --json
  A durable subscription to a pattern, in all its topics:
    $ duramen subscribe shop 'sales.*' --durable totals
    $ duramen groups delete shop 'sales.*' totals";

/// List groups and durable subscriptions; create, pause, resume, reset or delete one
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Groups {
    #[command(flatten)]
    place: Option<PlaceArguments>,

    /// The topic; without it, the groups of all topics are listed, and the groups and durable subscriptions over patterns
    topic: Option<String>,

    /// Print the settings of each group as well
    #[arg(long, conflicts_with_all = ["pending", "server"])]
    describe: bool,

    /// Print the messages that this group has not settled instead
    #[arg(long, value_name = "GROUP", requires = "topic")]
    pending: Option<String>,

    #[command(subcommand)]
    change: Option<Change>,
}

/// Which group.
#[derive(Args, Debug)]
struct GroupArguments {
    #[command(flatten)]
    place: PlaceArguments,
    /// The topic, or the pattern of the group
    topic: String,
    /// The group
    group: String,
}

/// How a group delivers.
#[derive(Args, Debug)]
struct Delivers {
    /// How long a member may take for a message; 30 in a new group
    #[arg(long, value_name = "SECONDS", value_parser = time)]
    lease: Option<Duration>,
    /// How often a message is delivered at most; 20 in a new group
    #[arg(long, value_name = "COUNT|none", value_parser = count_limit)]
    tries: Option<Limit<u64>>,
    /// Messages that may be with members, or wait to be delivered again; 10000 in a new group
    #[arg(long, value_name = "COUNT")]
    in_flight: Option<u32>,
    /// How long a message waits that failed, the first time, the second time, and so on; 1,10,60,600 in a new group
    #[arg(long, value_name = "SECONDS,...", value_delimiter = ',', value_parser = time)]
    back_off: Option<Vec<Duration>>,
    /// The topic for messages that failed the last time; in a new group `dead.` and the name of the topic, or of the group if it
    /// has a pattern
    #[arg(long, value_name = "TOPIC")]
    dead_letters: Option<String>,
    /// Drop messages that failed the last time
    #[arg(long, conflicts_with = "dead_letters")]
    no_dead_letters: bool,
    /// Whether messages of one key are delivered in order, and to one member at a time; no in a new group
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    order_by_key: Option<bool>,
    /// Whether acknowledgements outside of transactions survive a power cut; no in a new group
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    synced: Option<bool>,
    /// Deliver only messages with a key like this; `*` stands for any bytes
    #[arg(long, value_name = "KEY")]
    filter_key: Option<String>,
    /// Deliver only messages with a header like this; `*` stands for any bytes
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    filter_header: Vec<(String, String)>,
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("say yes or no".into()),
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let found = text.split_once('=').map(|(name, value)| (name.into(), value.into()));
    found.ok_or_else(|| "a condition on a header is NAME=VALUE".into())
}

impl Delivers {
    /// Returns `options` with the values given on the command line in place of its own.
    fn changed(self, mut options: GroupOptions) -> Outcome<GroupOptions> {
        if let Some(lease) = self.lease {
            options.lease = lease;
        }
        if let Some(Limit(tries)) = self.tries {
            let too_many = |_| Failure::wrong_call("--tries is too large; `none` is without end");
            options.tries = tries.map(u32::try_from).transpose().map_err(too_many)?;
        }
        if let Some(messages) = self.in_flight {
            options.in_flight = messages;
        }
        if let Some(delays) = self.back_off {
            options.back_off = delays;
        }
        if let Some(topic) = self.dead_letters {
            options.dead_letters = DeadLetters::Topic(topic);
        }
        if self.no_dead_letters {
            options.dead_letters = DeadLetters::Discard;
        }
        if let Some(order) = self.order_by_key {
            options.order_by_key = order;
        }
        if let Some(is_synced) = self.synced {
            options.durability = if is_synced {
                Durability::Synced
            } else {
                Durability::Written
            };
        }
        if self.filter_key.is_some() || !self.filter_header.is_empty() {
            let filter = self
                .filter_key
                .iter()
                .fold(Filter::new(), |filter, key| filter.key(key));
            let headers = self.filter_header.iter();
            options.filter = headers.fold(filter, |filter, (name, value)| filter.header(name, value));
        }
        Ok(options)
    }

    /// Returns the options of a new group of a server.
    fn on_server(self) -> Outcome<duramen_client::GroupOptions> {
        if self.synced.is_some() {
            let message = "a server does not take --synced";
            return Err(Failure::wrong_call(message).hint("give it with the directory of the store"));
        }
        let mut made = duramen_client::GroupOptions::new();
        let (key, headers) = (self.filter_key.clone(), self.filter_header.clone());
        let options = self.changed(GroupOptions::new())?;
        made = made.lease(options.lease).in_flight(options.in_flight);
        made = made.tries(options.tries.unwrap_or(0)).back_off(&options.back_off);
        match options.dead_letters {
            DeadLetters::Topic(topic) => made = made.dead_letters(topic),
            DeadLetters::Discard => made = made.discard_dead_letters(),
            _ => {}
        }
        if options.order_by_key {
            made = made.order_by_key();
        }
        if let Some(key) = key {
            made = made.filter_key(key);
        }
        let headers = headers.into_iter();
        Ok(headers.fold(made, |made, (name, value)| made.filter_header(name, value)))
    }
}

#[derive(Subcommand, Debug)]
enum Change {
    /// Make a group
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        #[command(flatten)]
        group: GroupArguments,
        /// Where it begins: beginning, tail, an offset, last:COUNT, or time:SECONDS since 1970
        #[arg(long, value_name = "PLACE", default_value = "beginning", value_parser = super::subscribe::start)]
        from: Start,
        #[command(flatten)]
        delivers: Delivers,
    },
    /// Change how a group delivers
    #[command(after_help = CONFIGURE_EXAMPLES)]
    Configure {
        #[command(flatten)]
        store: StoreArguments,
        /// The topic, or the pattern of the group
        topic: String,
        /// The group
        group: String,
        #[command(flatten)]
        delivers: Delivers,
    },
    /// Stop handing out messages
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause {
        #[command(flatten)]
        group: GroupArguments,
    },
    /// Hand out messages again
    #[command(after_help = RESUME_EXAMPLES)]
    Resume {
        #[command(flatten)]
        group: GroupArguments,
    },
    /// Go on from another place, and forget what is pending
    #[command(after_help = RESET_EXAMPLES)]
    Reset {
        #[command(flatten)]
        group: GroupArguments,
        /// beginning, tail, an offset, last:COUNT, or time:SECONDS since 1970
        #[arg(value_parser = super::subscribe::start)]
        to: Start,
    },
    /// Remove a group or durable subscription; one over a pattern in all its topics
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        #[command(flatten)]
        group: GroupArguments,
    },
}

/// The columns of a list of groups.
const COLUMNS: [&str; 7] = ["TOPIC", "GROUP", "KIND", "ACKNOWLEDGED", "PENDING", "LAG", "SKIPPED"];

impl Groups {
    pub fn run(self, output: &mut Output) -> Outcome {
        let (place, topic) = match (self.change, self.place, self.topic) {
            (Some(change), ..) => return change.run(output),
            (None, Some(place), topic) => (place.open_to_read()?, topic),
            (None, None, _) => return Err(Failure::wrong_call("name a store: `duramen groups DIR [TOPIC]`")),
        };
        let store = match place {
            Place::Directory(store) => store,
            Place::Server(server) => return list_on(&server, topic, self.pending.as_deref(), output),
        };
        let Some(topic) = topic else {
            return list_all(&store, self.describe, output);
        };
        let topic = existing(&store, &topic)?;
        match self.pending {
            Some(group) => {
                let pending = topic.existing_group(&group)?.pending()?;
                list_pending(pending.into_iter().map(of_store).collect(), output)?;
            }
            None => list(&[topic], Vec::new(), self.describe, output)?,
        }
        Ok(Exit::Done)
    }
}

/// Lists the groups of `topics`, followed by the prepared rows in `more`.
fn list(topics: &[Topic], more: Vec<Vec<String>>, describes: bool, output: &mut Output) -> Outcome<()> {
    let mut rows = Vec::new();
    for topic in topics {
        for group in topic.groups()? {
            if output.is_json {
                output.json(&object(topic, &group))?;
                continue;
            }
            let mut row = Listed::of(topic, &group).row();
            row.extend(describes.then(|| settings(group.options.as_ref())));
            rows.push(row);
        }
    }
    if output.is_json {
        return Ok(());
    }
    rows.extend(more);
    let settings = describes.then_some("SETTINGS");
    let columns: Vec<&str> = COLUMNS.into_iter().chain(settings).collect();
    output.table(&columns, &rows)
}

/// Lists the groups of one topic or of all topics of a server, or what is pending in a group. A server does not tell of
/// patterns.
fn list_on(server: &Server, topic: Option<String>, pending: Option<&str>, output: &mut Output) -> Outcome {
    let topics = match (topic, pending) {
        (Some(topic), Some(group)) => {
            const MOST: u32 = 10_000;
            let pending = server.wait(server.group(&topic, group)?.pending(MOST))?;
            list_pending(pending, output)?;
            return Ok(Exit::Done);
        }
        (Some(topic), None) => vec![topic],
        (None, _) => server.wait(server.client.list_topics())?,
    };
    let mut rows = Vec::new();
    for topic in topics {
        for group in server.wait(server.topic(&topic)?.groups())? {
            let listed = Listed {
                topic: &topic,
                name: &group.group,
                kind: kind(group.group_options.is_some(), group.paused),
                is_paused: group.paused,
                next: group.next_offset,
                counts: [group.acknowledged, group.pending, group.lag, group.skipped],
            };
            match output.is_json {
                true => output.json(&listed.object())?,
                false => rows.push(listed.row()),
            }
        }
    }
    output.table(&COLUMNS, &rows)?;
    Ok(Exit::Done)
}

/// Returns a pending message in the form of the client of a server.
fn of_store(pending: Pending) -> PendingMessage {
    PendingMessage {
        offset: pending.offset,
        tries: pending.tries,
        until_ms: pending.until.map(millis),
        member: pending.member.unwrap_or_default(),
        error: pending.error.unwrap_or_default(),
    }
}

fn list_pending(pending: Vec<PendingMessage>, output: &mut Output) -> Outcome<()> {
    if output.is_json {
        return pending
            .iter()
            .try_for_each(|pending| output.json(&pending_object(pending)));
    }
    let rows: Vec<Vec<String>> = pending.iter().map(pending_row).collect();
    output.table(&["OFFSET", "TRIES", "MEMBER", "ERROR"], &rows)
}

/// What a store and a server tell of a group.
struct Listed<'g> {
    topic: &'g str,
    name: &'g str,
    kind: &'static str,
    is_paused: bool,
    next: u64,
    /// Acknowledged, pending, lag, skipped.
    counts: [u64; 4],
}

impl<'g> Listed<'g> {
    fn of(topic: &'g Topic, group: &'g GroupDescription) -> Listed<'g> {
        Listed {
            topic: topic.name(),
            name: &group.name,
            kind: kind(group.options.is_some(), group.is_paused),
            is_paused: group.is_paused,
            next: group.next,
            counts: [group.acknowledged, group.pending, group.lag, group.skipped],
        }
    }

    fn row(&self) -> Vec<String> {
        let names = [self.topic, self.name, self.kind].map(String::from);
        let counts = self.counts.map(|count| count.to_string());
        names.into_iter().chain(counts).collect()
    }

    fn object(&self) -> Value {
        let [acknowledged, pending, lag, skipped] = self.counts;
        json!({
            "topic": self.topic,
            "group": self.name,
            "kind": self.kind,
            "paused": self.is_paused,
            "acknowledged": acknowledged,
            "next": self.next,
            "pending": pending,
            "lag": lag,
            "skipped": skipped,
        })
    }
}

fn kind(is_group: bool, is_paused: bool) -> &'static str {
    match (is_group, is_paused) {
        (false, _) => "durable",
        (true, true) => "paused",
        (true, false) => "group",
    }
}

/// Formats the delivery settings as command-line options.
fn settings(options: Option<&GroupOptions>) -> String {
    let Some(options) = options else {
        return "-".into();
    };
    let back_off: Vec<String> = options
        .back_off
        .iter()
        .map(|&delay| seconds(delay).to_string())
        .collect();
    let tries = options.tries.map_or("none".into(), |tries| tries.to_string());
    let given = [
        Some(format!("--lease {} --tries {tries}", seconds(options.lease))),
        Some(format!("--in-flight {}", options.in_flight)),
        (!back_off.is_empty()).then(|| format!("--back-off {}", back_off.join(","))),
        match &options.dead_letters {
            DeadLetters::Topic(topic) => Some(format!("--dead-letters {topic}")),
            DeadLetters::Discard => Some("--no-dead-letters".into()),
            _ => None,
        },
        options.order_by_key.then(|| "--order-by-key yes".into()),
        (options.durability == Durability::Synced).then(|| "--synced yes".into()),
        (!options.filter.is_empty()).then(|| filter(&options.filter)),
    ];
    given.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn filter(filter: &Filter) -> String {
    let key = filter.wanted_key().map(|key| format!("--filter-key {key}"));
    let headers = filter.wanted_headers();
    let headers = headers.map(|(name, value)| format!("--filter-header {name}={value}"));
    key.into_iter().chain(headers).collect::<Vec<_>>().join(" ")
}

/// Returns the delivery settings as JSON. `whose` is the suffix of the default dead-letter topic, after `dead.`.
fn settings_object(options: &GroupOptions, whose: &str) -> Value {
    json!({
        "lease_seconds": seconds(options.lease),
        "tries": options.tries,
        "in_flight": options.in_flight,
        "back_off_seconds": options.back_off.iter().map(|&delay| seconds(delay)).collect::<Vec<_>>(),
        "dead_letters": match &options.dead_letters {
            DeadLetters::Topic(topic) => Some(topic.clone()),
            DeadLetters::Discard => None,
            _ => Some(format!("dead.{whose}")),
        },
        "order_by_key": options.order_by_key,
        "synced": options.durability == Durability::Synced,
        "filter_key": options.filter.wanted_key(),
        "filter_headers": options.filter.wanted_headers().collect::<Vec<_>>(),
    })
}

fn object(topic: &Topic, group: &GroupDescription) -> Value {
    let settings = group.options.as_ref();
    let settings = settings.map(|options| settings_object(options, topic.name()));
    let mut object = Listed::of(topic, group).object();
    object["oldest_millis"] = json!(group.oldest.map(millis));
    object["settings"] = json!(settings);
    object
}

fn pending_row(pending: &PendingMessage) -> Vec<String> {
    let who = given(&pending.member).unwrap_or("-");
    let (offset, tries) = (pending.offset.to_string(), pending.tries.to_string());
    vec![offset, tries, who.into(), pending.error.clone()]
}

fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn pending_object(pending: &PendingMessage) -> Value {
    json!({
        "offset": pending.offset,
        "tries": pending.tries,
        "until_millis": pending.until_ms,
        "member": given(&pending.member),
        "error": given(&pending.error),
    })
}

impl Change {
    fn run(self, output: &mut Output) -> Outcome {
        let (place, done) = match self {
            Change::Create { group, from, delivers } => {
                let place = group.place.open_to_write()?;
                create(&place, &group, from, delivers)?;
                (place, json!({"created": group.group}))
            }
            Change::Configure {
                store,
                topic,
                group: name,
                delivers,
            } => {
                let store = store.open_to_write()?;
                match Meant::find(&store, &topic, &name)? {
                    Meant::Everywhere(group) => group.configure(delivers.changed(group.describe()?.options)?)?,
                    Meant::InTopic(topic) => configure(&topic, &name, delivers)?,
                }
                (Place::Directory(store), json!({"configured": name}))
            }
            Change::Pause { group } => (pause(&group, true)?, json!({"paused": group.group})),
            Change::Resume { group } => (pause(&group, false)?, json!({"resumed": group.group})),
            Change::Reset { group, to } => {
                let place = group.place.open_to_write()?;
                match &place {
                    Place::Directory(store) => reset(store, &group, to)?,
                    Place::Server(server) => server.wait(group.on(server)?.reset(start_on(to)))?,
                }
                (place, json!({"reset": group.group}))
            }
            Change::Delete { group } => {
                let place = group.place.open_to_write()?;
                match &place {
                    Place::Directory(store) => delete(store, &group)?,
                    Place::Server(server) => server.wait(group.on(server)?.delete())?,
                }
                (place, json!({"deleted": group.group}))
            }
        };
        finish(place, &done, output)
    }
}

impl GroupArguments {
    fn on(&self, server: &Server) -> Outcome<duramen_client::Group> {
        server.group(&self.topic, &self.group)
    }
}

fn create(place: &Place, group: &GroupArguments, from: Start, delivers: Delivers) -> Outcome<()> {
    match place {
        Place::Directory(store) => {
            let options = delivers.changed(GroupOptions::new())?;
            if is_pattern(&group.topic) {
                let pattern = Pattern::new(&group.topic)?;
                Topics::open(store)?.create_group(&pattern, &group.group, from, options)?;
            } else {
                existing(store, &group.topic)?.create_group(&group.group, from, options)?;
            }
        }
        Place::Server(server) => {
            let options = delivers.on_server()?;
            if !server.wait(group.on(server)?.create(start_on(from), options))? {
                let GroupArguments { topic, group, .. } = group;
                let message = format!("the topic {topic:?} has a group named {group:?} already");
                return Err(Failure::wrong_call(message));
            }
        }
    }
    Ok(())
}

/// Pauses a group, or lets it continue.
fn pause(group: &GroupArguments, paused: bool) -> Outcome<Place> {
    let place = group.place.open_to_write()?;
    match &place {
        Place::Directory(store) => match (Meant::find(store, &group.topic, &group.group)?, paused) {
            (Meant::Everywhere(group), true) => group.pause()?,
            (Meant::Everywhere(group), false) => group.resume()?,
            (Meant::InTopic(topic), true) => topic.existing_group(&group.group)?.pause()?,
            (Meant::InTopic(topic), false) => topic.existing_group(&group.group)?.resume()?,
        },
        Place::Server(server) => server.wait(group.on(server)?.pause(paused))?,
    }
    Ok(place)
}

fn reset(store: &Store, group: &GroupArguments, to: Start) -> Outcome<()> {
    match durable_pattern(store, &group.topic, &group.group)? {
        Some(durable) => durable.reset(to)?,
        None => match Meant::find(store, &group.topic, &group.group)? {
            Meant::Everywhere(group) => group.reset(to)?,
            Meant::InTopic(topic) => reset_in(&topic, &group.group, to)?,
        },
    }
    Ok(())
}

fn delete(store: &Store, group: &GroupArguments) -> Outcome<()> {
    match durable_pattern(store, &group.topic, &group.group)? {
        Some(durable) => durable.delete()?,
        None => match Meant::find(store, &group.topic, &group.group)? {
            Meant::Everywhere(group) => group.delete()?,
            Meant::InTopic(topic) => topic.delete_group(&group.group)?,
        },
    }
    Ok(())
}

fn reset_in(topic: &Topic, name: &str, to: Start) -> Outcome<()> {
    match topic.existing_durable(name) {
        Ok(durable) => durable.reset(to)?,
        Err(error) if matches!(TopicError::of(&error), Some(TopicError::OtherKind { .. })) => {
            topic.existing_group(name)?.reset(to)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Returns the rows of groups over patterns. With JSON, prints the groups directly.
fn pattern_groups(topics: &Topics, describes: bool, output: &mut Output) -> Outcome<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    for group in topics.pattern_groups()? {
        let group = match group.describe() {
            // The group was deleted meanwhile.
            Err(error) if matches!(TopicError::of(&error), Some(TopicError::GroupDeleted { .. })) => continue,
            group => group?,
        };
        let (pattern, pending) = (group.pattern.as_str(), group.pending());
        if output.is_json {
            let object = |(topic, group): &(String, GroupDescription)| json!({"topic": topic, "pending": group.pending, "lag": group.lag});
            output.json(&json!({
                "group": group.name,
                "pattern": pattern,
                "paused": group.is_paused,
                "pending": pending,
                "lag": group.lag(),
                "skipped": group.skipped(),
                "settings": settings_object(&group.options, &group.name),
                "topics": group.topics.iter().map(object).collect::<Vec<_>>(),
            }))?;
        }
        let kind = match group.is_paused {
            true => "paused-pattern-group",
            false => "pattern-group",
        };
        let [lag, skipped] = [group.lag(), group.skipped()].map(|count| count.to_string());
        let names = [pattern, &group.name, kind, "-"].map(String::from);
        let mut row: Vec<String> = names.into_iter().chain([pending.to_string(), lag, skipped]).collect();
        row.extend(describes.then(|| settings(Some(&group.options))));
        rows.push(row);
    }
    Ok(rows)
}

/// Lists the groups of all topics, and the groups and durable subscriptions over patterns.
fn list_all(store: &Store, describes: bool, output: &mut Output) -> Outcome {
    if !Topics::exist(store)? {
        return Ok(Exit::Done);
    }
    let topics = Topics::open(store)?;
    let mut everywhere = pattern_groups(&topics, describes, output)?;
    for durable in topics.durables()? {
        let positions = match durable.positions() {
            // The subscription was deleted meanwhile.
            Err(error) if matches!(TopicError::of(&error), Some(TopicError::GroupDeleted { .. })) => continue,
            positions => positions?,
        };
        let (name, pattern) = (durable.name(), durable.pattern().as_str());
        let lag: u64 = positions.iter().map(|position| position.lag).sum();
        if output.is_json {
            output.json(&json!({
                "durable": name,
                "pattern": pattern,
                "lag": lag,
                "topics": positions.iter().map(|at| json!({"topic": at.topic, "next": at.next, "lag": at.lag})).collect::<Vec<_>>(),
            }))?;
        }
        let unknown = || "-".to_string();
        let kind = "pattern".to_string();
        let mut row = vec![
            pattern.into(),
            name.into(),
            kind,
            unknown(),
            unknown(),
            lag.to_string(),
            unknown(),
        ];
        row.extend(describes.then(unknown));
        everywhere.push(row);
    }
    let mut found = Vec::new();
    for name in topics.list()? {
        found.extend(topics.get(&name)?);
    }
    list(&found, everywhere, describes, output)?;
    Ok(Exit::Done)
}

fn configure(topic: &Topic, group: &str, delivers: Delivers) -> Outcome<()> {
    let group = topic.existing_group(group)?;
    let options = group.describe()?.options.unwrap_or_default();
    group.configure(delivers.changed(options)?)?;
    Ok(())
}
