//! `duramen topics`: lists topics; creates, configures and deletes them.

use std::time::Duration;

use clap::{Args, Subcommand};
use duramen::topic::{Topic, TopicDescription, TopicOptions, Topics as TopicsOfStore};
use duramen::{Options, Store};
use serde_json::{Value, json};

use super::changes::{finish, refuse_unless};
use crate::exit::{Exit, Failure, Outcome};
use crate::opening::StoreArguments;
use crate::output::Output;
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  The names of all topics; with offsets and bytes of what each keeps:
    $ duramen topics shop
    $ duramen topics shop --describe
  Make, configure and delete topics:
    $ duramen topics create shop returns --keep-messages 1000
    $ duramen topics configure shop returns --keep-for 86400
    $ duramen topics delete shop returns";

const CREATE_EXAMPLES: &str = r"Examples:
  Make a topic that keeps everything, or a day and a gigabyte at most; the store is made when it is missing:
    $ duramen topics create shop refunds
    $ duramen topics create shop clicks --keep-for 86400 --keep-bytes 1000000000";

const CONFIGURE_EXAMPLES: &str = r"Examples:
  What is not given is without limit from then on:
    $ duramen topics configure shop sales --keep-messages 500 --json
    $ duramen topics configure shop sales --drop-acknowledged";

const DELETE_EXAMPLES: &str = r"Examples:
  An empty topic goes without asking, one with messages only with --force:
    $ duramen topics delete shop sales --force
    $ duramen topics delete shop sales.dead --json";

/// List the topics; create, configure or delete one
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Topics {
    #[command(flatten)]
    store: Option<StoreArguments>,

    /// Print what each topic keeps as well: first offset, next offset, bytes
    #[arg(long)]
    describe: bool,

    #[command(subcommand)]
    change: Option<Change>,
}

/// What a topic keeps.
#[derive(Args, Debug)]
struct Keeps {
    /// Let go of messages that are older
    #[arg(long, value_name = "SECONDS")]
    keep_for: Option<u64>,
    /// Let go of the oldest messages while all of them take more
    #[arg(long, value_name = "BYTES")]
    keep_bytes: Option<u64>,
    /// Let go of the oldest messages while there are more
    #[arg(long, value_name = "COUNT")]
    keep_messages: Option<u64>,
    /// Let go of what all groups and durable subscriptions have acknowledged
    #[arg(long)]
    drop_acknowledged: bool,
}

#[derive(Subcommand, Debug)]
enum Change {
    /// Make a topic
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        #[command(flatten)]
        store: StoreArguments,
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
    /// Remove a topic with its messages and groups
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        #[command(flatten)]
        store: StoreArguments,
        /// Its name
        name: String,
        /// Even if there are messages in it
        #[arg(long)]
        force: bool,
    },
}

impl Keeps {
    fn options(&self) -> TopicOptions {
        let mut options = TopicOptions::new().drop_acknowledged(self.drop_acknowledged);
        if let Some(seconds) = self.keep_for {
            options = options.keep_for(Duration::from_secs(seconds));
        }
        if let Some(bytes) = self.keep_bytes {
            options = options.keep_bytes(bytes);
        }
        if let Some(messages) = self.keep_messages {
            options = options.keep_messages(messages);
        }
        options
    }
}

impl Topics {
    pub fn run(self, output: &mut Output) -> Outcome {
        match (self.change, self.store) {
            (Some(change), _) => change.run(output),
            (None, Some(store)) => list(&store.open_to_read()?, self.describe, output),
            (None, None) => Err(Failure::wrong_call(
                "name the directory of a store: `duramen topics DIR`",
            )),
        }
    }
}

fn list(store: &Store, describe: bool, output: &mut Output) -> Outcome {
    if !TopicsOfStore::exist(store)? {
        return Ok(Exit::Done);
    }
    let topics = TopicsOfStore::open(store)?;
    for name in topics.list()? {
        match (describe, output.is_json) {
            (false, false) => output.line(&name)?,
            (false, true) => output.json(&json!({"topic": name}))?,
            (true, false) => output.line(line(&topics.topic(&name)?.describe()?))?,
            (true, true) => output.json(&object(&topics.topic(&name)?.describe()?))?,
        }
    }
    Ok(Exit::Done)
}

fn line(topic: &TopicDescription) -> String {
    format!("{}\t{}\t{}\t{}", topic.name, topic.first, topic.next, topic.bytes)
}

fn object(topic: &TopicDescription) -> Value {
    json!({
        "topic": topic.name,
        "first": topic.first,
        "next": topic.next,
        "messages": topic.messages(),
        "bytes": topic.bytes,
    })
}

/// The topic of a name, or an error that says how to find the others.
pub fn existing(store: &Store, name: &str) -> Outcome<Topic> {
    let unknown =
        || Failure::wrong_call(format!("there is no topic named {name:?}")).hint("`duramen topics DIR` lists them");
    if !TopicsOfStore::exist(store)? {
        return Err(unknown());
    }
    TopicsOfStore::open(store)?.get(name)?.ok_or_else(unknown)
}

impl Change {
    fn run(self, output: &mut Output) -> Outcome {
        let (store, done) = match self {
            Change::Create { store, name, keeps } => {
                let store = store.open_or_create(Options::new())?;
                TopicsOfStore::open(&store)?.create(&name, keeps.options())?;
                (store, json!({"created": name}))
            }
            Change::Configure { store, name, keeps } => {
                let store = store.open_to_write()?;
                let topic = existing(&store, &name)?;
                topic.configure(keeps.options())?;
                let trimmed = topic.trim()?;
                (store, json!({"configured": name, "trimmed": trimmed}))
            }
            Change::Delete { store, name, force } => {
                let store = store.open_to_write()?;
                let messages = delete(&store, &name, force)?;
                (store, json!({"deleted": name, "messages": messages}))
            }
        };
        finish(store, &done, output)
    }
}

fn delete(store: &Store, name: &str, force: bool) -> Outcome<u64> {
    let topic = existing(store, name)?;
    let messages = topic.describe()?.messages();
    let held = format!("the topic {name:?} keeps {}", counted(messages, "message"));
    refuse_unless(force || messages == 0, &held, "deletes")?;
    topic.topics().delete(name)?;
    Ok(messages)
}
