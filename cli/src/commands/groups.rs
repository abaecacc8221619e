//! `duramen groups`: lists the groups of a topic; creates, pauses, resumes, sets back and deletes them.

use std::time::Duration;

use clap::{Args, Subcommand};
use duramen::topic::{GroupDescription, GroupOptions, Pending, Start};
use serde_json::{Value, json};

use super::changes::finish;
use super::topics::existing;
use crate::exit::{Exit, Failure, Outcome};
use crate::opening::StoreArguments;
use crate::output::Output;

const EXAMPLES: &str = r"Examples:
  What the groups of a topic have done and have to do; which messages one of them has not settled:
    $ duramen groups shop sales
    $ duramen groups shop sales --pending packers
  Look after them:
    $ duramen groups create shop sales billing --tries 5 --dead-letters sales.dead
    $ duramen groups pause shop sales packers
    $ duramen groups resume shop sales packers
    $ duramen groups reset shop sales packers beginning
    $ duramen groups delete shop sales billing";

const CREATE_EXAMPLES: &str = r"Examples:
  Five tries of a minute each, and then to another topic; or tries without end:
    $ duramen groups create shop sales billing --lease 60 --tries 5 --dead-letters sales.dead
    $ duramen groups create shop sales archive";

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
    $ duramen groups reset shop sales packers last:1";

const DELETE_EXAMPLES: &str = r"Examples:
  The messages stay:
    $ duramen groups delete shop sales packers
    $ duramen groups create shop sales again && duramen groups delete shop sales again --json";

/// List the groups of a topic; create, pause, resume, reset or delete one
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Groups {
    #[command(flatten)]
    store: Option<StoreArguments>,

    /// The topic
    #[arg(required = true)]
    topic: Option<String>,

    /// Print the messages that this group has not settled instead
    #[arg(long, value_name = "GROUP")]
    pending: Option<String>,

    #[command(subcommand)]
    change: Option<Change>,
}

/// Which group.
#[derive(Args, Debug)]
struct GroupArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// The topic
    topic: String,
    /// The group
    group: String,
}

#[derive(Subcommand, Debug)]
enum Change {
    /// Make a group that begins with the first message kept
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        #[command(flatten)]
        group: GroupArguments,
        /// How long a member may take for a message
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        lease: u64,
        /// How often a message is delivered at most (default: without end)
        #[arg(long, value_name = "COUNT")]
        tries: Option<u32>,
        /// The topic for messages that failed the last time
        #[arg(long, value_name = "TOPIC")]
        dead_letters: Option<String>,
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
    /// Remove a group or durable subscription
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        #[command(flatten)]
        group: GroupArguments,
    },
}

impl Groups {
    pub fn run(self, output: &mut Output) -> Outcome {
        let (store, topic) = match (self.change, self.store, self.topic) {
            (Some(change), ..) => return change.run(output),
            (None, Some(store), Some(topic)) => (store.open_to_read()?, topic),
            _ => {
                return Err(Failure::wrong_call(
                    "name a store and a topic: `duramen groups DIR TOPIC`",
                ));
            }
        };
        let topic = existing(&store, &topic)?;
        if let Some(group) = self.pending {
            for pending in topic.existing_group(&group)?.pending()? {
                match output.is_json {
                    true => output.json(&pending_object(&pending))?,
                    false => output.line(pending_line(&pending))?,
                }
            }
            return Ok(Exit::Done);
        }
        for group in topic.groups()? {
            match output.is_json {
                true => output.json(&object(&group))?,
                false => output.line(line(&group))?,
            }
        }
        Ok(Exit::Done)
    }
}

fn kind(group: &GroupDescription) -> &'static str {
    match (&group.options, group.is_paused) {
        (None, _) => "durable",
        (Some(_), true) => "paused",
        (Some(_), false) => "group",
    }
}

fn line(group: &GroupDescription) -> String {
    let (acknowledged, pending, lag) = (group.acknowledged, group.pending, group.lag);
    format!("{}\t{}\t{acknowledged}\t{pending}\t{lag}", group.name, kind(group))
}

fn object(group: &GroupDescription) -> Value {
    json!({
        "group": group.name,
        "kind": kind(group),
        "acknowledged": group.acknowledged,
        "next": group.next,
        "pending": group.pending,
        "lag": group.lag,
    })
}

fn pending_line(pending: &Pending) -> String {
    let who = pending.member.as_deref().unwrap_or("-");
    let why = pending.error.as_deref().unwrap_or("");
    format!("{}\t{}\t{who}\t{why}", pending.offset, pending.tries)
}

fn pending_object(pending: &Pending) -> Value {
    json!({
        "offset": pending.offset,
        "tries": pending.tries,
        "member": pending.member,
        "error": pending.error,
    })
}

impl Change {
    fn run(self, output: &mut Output) -> Outcome {
        let done = match &self {
            Change::Create { group, .. } => json!({"created": group.group}),
            Change::Pause { group } => json!({"paused": group.group}),
            Change::Resume { group } => json!({"resumed": group.group}),
            Change::Reset { group, .. } => json!({"reset": group.group}),
            Change::Delete { group } => json!({"deleted": group.group}),
        };
        let store = match self {
            Change::Create {
                group,
                lease,
                tries,
                dead_letters,
            } => {
                let store = group.store.open_to_write()?;
                let mut options = GroupOptions::new().lease(Duration::from_secs(lease));
                if let Some(tries) = tries {
                    options = options.tries(tries);
                }
                if let Some(topic) = &dead_letters {
                    options = options.dead_letters(topic);
                }
                existing(&store, &group.topic)?.group(&group.group, Start::Beginning, options)?;
                store
            }
            Change::Pause { group } => {
                let store = group.store.open_to_write()?;
                existing(&store, &group.topic)?.existing_group(&group.group)?.pause()?;
                store
            }
            Change::Resume { group } => {
                let store = group.store.open_to_write()?;
                existing(&store, &group.topic)?.existing_group(&group.group)?.resume()?;
                store
            }
            Change::Reset { group, to } => {
                let store = group.store.open_to_write()?;
                existing(&store, &group.topic)?
                    .existing_group(&group.group)?
                    .reset(to)?;
                store
            }
            Change::Delete { group } => {
                let store = group.store.open_to_write()?;
                existing(&store, &group.topic)?.delete_group(&group.group)?;
                store
            }
        };
        finish(store, &done, output)
    }
}
