//! `duramen topics`: lists topics; creates, configures and deletes them.

use std::time::Duration;

use clap::{Args, Subcommand};
use duramen::topic::{Holder, Retention, Topic, TopicDescription, TopicError, TopicOptions, Topics as TopicsOfStore};
use duramen::{Options, Store};
use serde_json::{Value, json};

use super::changes::{finish, refuse_unless};
use crate::exit::{Exit, Failure, Outcome};
use crate::limit::{Limit, count_limit, seconds, time_limit};
use crate::opening::StoreArguments;
use crate::output::Output;
use crate::place::{Place, PlaceArguments};
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  The names of all topics; with offsets and bytes of what each keeps, and its settings:
    $ duramen topics shop
    $ duramen topics shop --describe
  Make, configure and delete topics:
    $ duramen topics create shop returns --keep-messages 1000
    $ duramen topics configure shop returns --keep-for 86400
    $ duramen topics delete shop returns";

const CREATE_EXAMPLES: &str = r"Examples:
  Make a topic that keeps everything, or a day and a gigabyte at most; the store is made when it is missing:
    $ duramen topics create shop refunds
    $ duramen topics create shop clicks --keep-for 86400 --keep-bytes 1000000000
  A work queue that takes 1000 messages at most, and drops those that its groups have acknowledged:
    $ duramen topics create shop jobs --keep-messages 1000 --discard-new --drop-acknowledged
  The newest state of each key; a state that expires deletes its key:
    $ duramen topics create shop prices --latest-per-key --message-expiry
  A day of messages, and those that a group has not acknowledged, up to a gigabyte:
    $ duramen topics create shop bills --keep-for 86400 --protect-groups 1000000000";

const CONFIGURE_EXAMPLES: &str = r"Examples:
  What is not given stays as it is; `none` takes a limit away:
    $ duramen topics configure shop sales --keep-messages 500 --json
    $ duramen topics configure shop sales --keep-messages none --drop-acknowledged";

const CREATE_ON_USE_EXAMPLES: &str = r"Examples:
  From then on publishing makes topics that are missing, in programs too (`Topics::topic`); what it says now:
    $ duramen topics create-on-use shop on
    $ duramen topics create-on-use shop
    $ duramen topics create-on-use shop off";

const DELETE_EXAMPLES: &str = r"Examples:
  An empty topic goes without asking, one with messages only with --force:
    $ duramen topics delete shop sales --force
    $ duramen topics delete shop sales.dead --json";

/// List the topics; create, configure or delete one
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Topics {
    #[command(flatten)]
    place: Option<PlaceArguments>,

    /// Print what each topic keeps as well: first offset, next offset, bytes, settings, and what holds back its publishers
    #[arg(long, conflicts_with = "server")]
    describe: bool,

    #[command(subcommand)]
    change: Option<Change>,
}

/// What a topic keeps.
#[derive(Args, Debug)]
struct Keeps {
    /// Remove messages that are older
    #[arg(long, value_name = "SECONDS|none", value_parser = time_limit)]
    keep_for: Option<Limit<Duration>>,
    /// Remove the oldest messages while all of them take more
    #[arg(long, value_name = "BYTES|none", value_parser = count_limit)]
    keep_bytes: Option<Limit<u64>>,
    /// Remove the oldest messages while there are more
    #[arg(long, value_name = "COUNT|none", value_parser = count_limit)]
    keep_messages: Option<Limit<u64>>,
    /// Remove what all groups and durable subscriptions have acknowledged
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    drop_acknowledged: Option<bool>,
    /// How long the newest sequence of a publisher that is silent is remembered; seven days in a new topic
    #[arg(long, value_name = "SECONDS|none", value_parser = time_limit)]
    remember_publishers_for: Option<Limit<Duration>>,
    /// Limits delete no message that a group has not acknowledged; publishing is refused at so many bytes
    #[arg(long, value_name = "BYTES|none", value_parser = count_limit)]
    protect_groups: Option<Limit<u64>>,
    /// Refuse new messages where --keep-messages or --keep-bytes would delete the oldest
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    discard_new: Option<bool>,
    /// Publish each message id once within this time; without it, messages cannot have ids
    #[arg(long, value_name = "SECONDS|none", value_parser = time_limit)]
    deduplicate_for: Option<Limit<Duration>>,
    /// Take messages that expire
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    message_expiry: Option<bool>,
    /// Keep the newest message of each key, and all without a key
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    latest_per_key: Option<bool>,
}

#[derive(Subcommand, Debug)]
enum Change {
    /// Make a topic
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        #[command(flatten)]
        place: PlaceArguments,
        /// Its name: parts joined by dots
        name: String,
        #[command(flatten)]
        keeps: Keeps,
    },
    /// Change what a topic keeps
    #[command(after_help = CONFIGURE_EXAMPLES)]
    Configure {
        #[command(flatten)]
        store: StoreArguments,
        /// Its name
        name: String,
        #[command(flatten)]
        keeps: Keeps,
    },
    /// Say whether publishing makes topics that are missing, or change that
    #[command(after_help = CREATE_ON_USE_EXAMPLES)]
    CreateOnUse {
        #[command(flatten)]
        store: StoreArguments,
        /// Leave out to be told
        #[arg(value_name = "on|off", value_parser = ["on", "off"])]
        set: Option<String>,
    },
    /// Remove a topic with its messages and groups
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        #[command(flatten)]
        place: PlaceArguments,
        /// Its name
        name: String,
        /// Even if there are messages in it
        #[arg(long)]
        force: bool,
    },
}

impl Keeps {
    /// Returns `options` with the values given on the command line in place of its own.
    fn changed(&self, mut options: TopicOptions) -> TopicOptions {
        if let Some(Limit(time)) = self.keep_for {
            options.keep_for = time;
        }
        if let Some(Limit(bytes)) = self.keep_bytes {
            options.keep_bytes = bytes;
        }
        if let Some(Limit(messages)) = self.keep_messages {
            options.keep_messages = messages;
        }
        if let Some(drop) = self.drop_acknowledged {
            options.drop_acknowledged = drop;
        }
        if let Some(Limit(time)) = self.remember_publishers_for {
            options.remember_publishers_for = time;
        }
        if let Some(Limit(bytes)) = self.protect_groups {
            options.retention = bytes.map_or(Retention::Limits, |max_bytes| Retention::ProtectGroups { max_bytes });
        }
        if let Some(discard) = self.discard_new {
            options.discard_new = discard;
        }
        if let Some(Limit(time)) = self.deduplicate_for {
            options.deduplicate_for = time;
        }
        if let Some(expiry) = self.message_expiry {
            options.message_expiry = expiry;
        }
        if let Some(latest) = self.latest_per_key {
            options.latest_per_key = latest;
        }
        options
    }

    /// Returns the options of a new topic of a server.
    fn on_server(&self) -> duramen_client::TopicOptions {
        let options = self.changed(TopicOptions::new());
        let millis =
            |time: Option<Duration>| time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        duramen_client::TopicOptions {
            keep_for_ms: millis(options.keep_for),
            keep_bytes: options.keep_bytes.unwrap_or(0),
            keep_messages: options.keep_messages.unwrap_or(0),
            message_expiry: options.message_expiry,
            latest_per_key: options.latest_per_key,
            drop_acknowledged: options.drop_acknowledged,
            protect_groups_bytes: protected_bytes(&options).unwrap_or(0),
            discard_new: options.discard_new,
            deduplicate_for_ms: millis(options.deduplicate_for),
            remember_publishers_for_ms: Some(millis(options.remember_publishers_for)),
        }
    }
}

impl Topics {
    pub fn run(self, output: &mut Output) -> Outcome {
        match (self.change, self.place) {
            (Some(change), _) => change.run(output),
            (None, Some(place)) => list(&place.open_to_read()?, self.describe, output),
            (None, None) => Err(Failure::wrong_call(
                "name the directory of a store: `duramen topics DIR`",
            )),
        }
    }
}

fn list(place: &Place, describe: bool, output: &mut Output) -> Outcome {
    let (names, topics) = match place {
        Place::Directory(store) => {
            if !TopicsOfStore::exist(store)? {
                return Ok(Exit::Done);
            }
            let topics = TopicsOfStore::open(store)?;
            (topics.list()?, describe.then_some(topics))
        }
        Place::Server(server) => (server.wait(server.client.list_topics())?, None),
    };
    for name in names {
        match (&topics, output.is_json) {
            (None, false) => output.line(&name)?,
            (None, true) => output.json(&json!({"topic": name}))?,
            (Some(topics), is_json) => {
                let topic = topics.topic(&name)?;
                let (described, holders) = (topic.describe()?, topic.holders()?);
                match is_json {
                    true => output.json(&object(&described, &holders))?,
                    false => output.line(line(&described, &holders))?,
                }
            }
        }
    }
    Ok(Exit::Done)
}

fn line(topic: &TopicDescription, holders: &[Holder]) -> String {
    let settings = settings(&topic.options);
    let holding = holders.iter().filter(|holder| holder.holds_now());
    let holding: Vec<String> = holding.map(holder_text).collect();
    let held_back = match holding.is_empty() {
        true => "-".into(),
        false => holding.join("; "),
    };
    format!(
        "{}\t{}\t{}\t{}\t{settings}\t{held_back}",
        topic.name, topic.first, topic.next, topic.bytes
    )
}

/// Describes in words what can block publishers.
pub fn holder_text(holder: &Holder) -> String {
    let what = match holder {
        Holder::Subscription {
            process,
            lag,
            max,
            timeout,
            ..
        } => format!(
            "a subscription of process {process}, {lag} of {max} messages behind, {} ms",
            timeout.as_millis()
        ),
        Holder::Group {
            name,
            acknowledged,
            kept_bytes,
            max_bytes,
            ..
        } => format!("group {name} from message {acknowledged} on, {kept_bytes} of {max_bytes} bytes"),
        _ => "something that this command does not know".into(),
    };
    match holder.stuck() {
        Some(why) => format!("{what}: {why}"),
        None => what,
    }
}

pub fn holder_object(holder: &Holder) -> Value {
    let (holds_now, stuck) = (holder.holds_now(), holder.stuck());
    match holder {
        Holder::Subscription {
            process,
            lag,
            max,
            timeout,
            idle,
            is_suspended,
            ..
        } => json!({
            "kind": "subscription",
            "process": process,
            "lag": lag,
            "max": max,
            "timeout_seconds": seconds(*timeout),
            "idle_seconds": seconds(*idle),
            "suspended": is_suspended,
            "holds_now": holds_now,
            "stuck": stuck,
        }),
        Holder::Group {
            name,
            is_paused,
            acknowledged,
            pending,
            kept_bytes,
            max_bytes,
            ..
        } => json!({
            "kind": "group",
            "group": name,
            "paused": is_paused,
            "acknowledged": acknowledged,
            "pending": pending,
            "kept_bytes": kept_bytes,
            "max_bytes": max_bytes,
            "holds_now": holds_now,
            "stuck": stuck,
        }),
        _ => json!({"kind": "unknown", "holds_now": holds_now, "stuck": stuck}),
    }
}

/// Formats the options that differ from the default, as command-line options. The default topic keeps everything.
fn settings(options: &TopicOptions) -> String {
    let usual = TopicOptions::new();
    let given = [
        options.keep_for.map(|time| format!("--keep-for {}", seconds(time))),
        options.keep_bytes.map(|bytes| format!("--keep-bytes {bytes}")),
        options
            .keep_messages
            .map(|messages| format!("--keep-messages {messages}")),
        options.drop_acknowledged.then(|| "--drop-acknowledged".into()),
        (options.remember_publishers_for != usual.remember_publishers_for).then(|| {
            format!(
                "--remember-publishers-for {}",
                options
                    .remember_publishers_for
                    .map_or("none".into(), |time| seconds(time).to_string())
            )
        }),
        protected_bytes(options).map(|bytes| format!("--protect-groups {bytes}")),
        options.discard_new.then(|| "--discard-new".into()),
        options
            .deduplicate_for
            .map(|time| format!("--deduplicate-for {}", seconds(time))),
        options.message_expiry.then(|| "--message-expiry".into()),
        options.latest_per_key.then(|| "--latest-per-key".into()),
    ];
    let given: Vec<String> = given.into_iter().flatten().collect();
    match given.is_empty() {
        true => "keeps everything".into(),
        false => given.join(" "),
    }
}

/// Returns the number of bytes up to which a topic keeps messages for its groups. `None` means that limits delete
/// messages regardless of groups.
fn protected_bytes(options: &TopicOptions) -> Option<u64> {
    match options.retention {
        Retention::ProtectGroups { max_bytes } => Some(max_bytes),
        Retention::Limits => None,
    }
}

fn object(topic: &TopicDescription, holders: &[Holder]) -> Value {
    let options = &topic.options;
    json!({
        "topic": topic.name,
        "first": topic.first,
        "next": topic.next,
        "messages": topic.messages(),
        "bytes": topic.bytes,
        "keep_for_seconds": options.keep_for.map(seconds),
        "keep_bytes": options.keep_bytes,
        "keep_messages": options.keep_messages,
        "drop_acknowledged": options.drop_acknowledged,
        "protect_groups": protected_bytes(options),
        "discard_new": options.discard_new,
        "message_expiry": options.message_expiry,
        "latest_per_key": options.latest_per_key,
        "deduplicate_for_seconds": options.deduplicate_for.map(seconds),
        "remember_publishers_for_seconds": options.remember_publishers_for.map(seconds),
        "holders": holders.iter().map(holder_object).collect::<Vec<_>>(),
    })
}

/// Returns the topic named `name`, or an error that says how to list the topics.
pub fn existing(store: &Store, name: &str) -> Outcome<Topic> {
    find(store, name)?.ok_or_else(|| unknown(name).hint("`duramen topics DIR` lists them"))
}

/// Returns the topic named `name` for a publisher. Creates a missing topic if the store creates topics on use.
pub fn for_use(store: &Store, name: &str) -> Outcome<Topic> {
    match find(store, name)? {
        Some(topic) => Ok(topic),
        None if creates_on_use(store)? => Ok(TopicsOfStore::open(store)?.topic(name)?),
        None => Err(unknown(name).hint("make it with --create; `duramen topics DIR` lists those that are there")),
    }
}

/// Returns the topic named `name`, and creates a missing topic with the default options. An existing topic keeps its
/// options.
pub fn created_when_missing(topics: &TopicsOfStore, name: &str) -> Outcome<Topic> {
    loop {
        if let Some(topic) = topics.get(name)? {
            return Ok(topic);
        }
        match topics.create(name, TopicOptions::new()) {
            Err(error) if matches!(TopicError::of(&error), Some(TopicError::TopicExists { .. })) => {}
            created => return Ok(created?),
        }
    }
}

fn find(store: &Store, name: &str) -> Outcome<Option<Topic>> {
    match TopicsOfStore::exist(store)? {
        true => Ok(TopicsOfStore::open(store)?.get(name)?),
        false => Ok(None),
    }
}

fn unknown(name: &str) -> Failure {
    Failure::wrong_call(format!("there is no topic named {name:?}"))
}

fn creates_on_use(store: &Store) -> Outcome<bool> {
    Ok(TopicsOfStore::exist(store)? && TopicsOfStore::open(store)?.creates_on_use()?)
}

fn say_whether_created(store: &Store, output: &mut Output) -> Outcome {
    let creates = creates_on_use(store)?;
    match output.is_json {
        true => output.json(&json!({"create_on_use": creates}))?,
        false => output.line(if creates { "on" } else { "off" })?,
    }
    Ok(Exit::Done)
}

impl Change {
    fn run(self, output: &mut Output) -> Outcome {
        let (place, done) = match self {
            Change::Create { place, name, keeps } => {
                let place = place.open_or_create()?;
                create(&place, &name, &keeps)?;
                (place, json!({"created": name}))
            }
            Change::Configure { store, name, keeps } => {
                let store = store.open_to_write()?;
                let topic = existing(&store, &name)?;
                topic.configure(keeps.changed(topic.describe()?.options))?;
                let trimmed = topic.trim()?;
                (Place::Directory(store), json!({"configured": name, "trimmed": trimmed}))
            }
            Change::CreateOnUse { store, set: None } => return say_whether_created(&store.open_to_read()?, output),
            Change::CreateOnUse { store, set: Some(set) } => {
                let store = store.open_or_create(Options::new())?;
                TopicsOfStore::open(&store)?.create_on_use(set == "on")?;
                (Place::Directory(store), json!({"create_on_use": set == "on"}))
            }
            Change::Delete { place, name, force } => {
                let place = place.open_to_write()?;
                let messages = delete(&place, &name, force)?;
                (place, json!({"deleted": name, "messages": messages}))
            }
        };
        finish(place, &done, output)
    }
}

fn create(place: &Place, name: &str, keeps: &Keeps) -> Outcome<()> {
    match place {
        Place::Directory(store) => {
            TopicsOfStore::open(store)?.create(name, keeps.changed(TopicOptions::new()))?;
        }
        Place::Server(server) => {
            let options = keeps.on_server();
            if !server.wait(server.client.create_topic(name, options))? {
                return Err(Failure::wrong_call(format!("there is a topic named {name:?} already")));
            }
        }
    }
    Ok(())
}

fn delete(place: &Place, name: &str, force: bool) -> Outcome<u64> {
    let (first, next) = match place {
        Place::Directory(store) => {
            let described = existing(store, name)?.describe()?;
            (described.first, described.next)
        }
        Place::Server(server) => {
            let described = server.wait(server.client.topic(name).describe())?;
            (described.first_offset, described.next_offset)
        }
    };
    let messages = next - first;
    let held = format!("the topic {name:?} keeps {}", counted(messages, "message"));
    refuse_unless(force || messages == 0, &held, "deletes")?;
    match place {
        Place::Directory(store) => TopicsOfStore::open(store)?.delete(name)?,
        Place::Server(server) => server.wait(server.client.topic(name).delete())?,
    }
    Ok(messages)
}
