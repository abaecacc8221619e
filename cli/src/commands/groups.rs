//! `duramen groups`: lists the groups and durable subscriptions of a topic, and those to patterns; creates, pauses, resumes,
//! sets back and deletes them.

use std::time::Duration;

use clap::{Args, Subcommand};
use duramen::Store;
use duramen::topic::{DurablePattern, GroupDescription, GroupOptions, Pending, Start, Topic, TopicError, Topics};
use serde_json::{Value, json};

use super::changes::finish;
use super::subscribe::{durable_pattern, is_pattern, no_durable_pattern};
use super::topics::existing;
use crate::exit::{Exit, Failure, Outcome};
use crate::limit::{Limit, count_limit, seconds, time};
use crate::opening::StoreArguments;
use crate::output::Output;

const EXAMPLES: &str = r"Examples:
  What the groups of a topic have done and have to do, with their settings; which messages one of them has not settled:
    $ duramen groups shop sales
    $ duramen groups shop sales --describe
    $ duramen groups shop sales --pending packers
  Durable subscriptions to patterns: how many topics they have, and how far they lie behind:
    $ duramen groups shop
  Look after them:
    $ duramen groups create shop sales billing --tries 5 --dead-letters sales.dead
    $ duramen groups configure shop sales billing --lease 120
    $ duramen groups pause shop sales packers
    $ duramen groups resume shop sales packers
    $ duramen groups reset shop sales packers beginning
    $ duramen groups delete shop sales billing";

const CREATE_EXAMPLES: &str = r"Examples:
  Five tries of a minute each, and then to another topic; or tries without end, of what is new:
    $ duramen groups create shop sales billing --lease 60 --tries 5 --dead-letters sales.dead
    $ duramen groups create shop sales archive --from tail --back-off 1,5,30";

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
    store: Option<StoreArguments>,

    /// The topic; without it, the durable subscriptions to patterns are listed
    topic: Option<String>,

    /// Print the settings of each group as well
    #[arg(long, conflicts_with = "pending", requires = "topic")]
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
    store: StoreArguments,
    /// The topic
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
    /// How often a message is delivered at most; without end in a new group
    #[arg(long, value_name = "COUNT|none", value_parser = count_limit)]
    tries: Option<Limit<u64>>,
    /// Messages that may be with members, or wait to be delivered again; 10000 in a new group
    #[arg(long, value_name = "COUNT")]
    in_flight: Option<u32>,
    /// How long a message waits that failed, the first time, the second time, and so on; 1,10,60 in a new group
    #[arg(long, value_name = "SECONDS,...", value_delimiter = ',', value_parser = time)]
    back_off: Option<Vec<Duration>>,
    /// The topic for messages that failed the last time
    #[arg(long, value_name = "TOPIC")]
    dead_letters: Option<String>,
}

impl Delivers {
    /// These options, with what was given in place of what they say.
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
            options.dead_letters = Some(topic);
        }
        Ok(options)
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
        group: GroupArguments,
        #[command(flatten)]
        delivers: Delivers,
        /// Give messages up that failed the last time
        #[arg(long, conflicts_with = "dead_letters")]
        no_dead_letters: bool,
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
    /// Remove a group or durable subscription, one to a pattern in all its topics
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
            (None, Some(store), None) => return list_durables(&store.open_to_read()?, output),
            (None, None, _) => return Err(Failure::wrong_call("name a store: `duramen groups DIR [TOPIC]`")),
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
                false if self.describe => output.line(line(&group) + "\t" + &settings(&group))?,
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

/// How it delivers, as it would be given.
fn settings(group: &GroupDescription) -> String {
    let Some(options) = &group.options else {
        return "-".into();
    };
    let back_off: Vec<String> = options
        .back_off
        .iter()
        .map(|&delay| seconds(delay).to_string())
        .collect();
    let given = [
        Some(format!("--lease {}", seconds(options.lease))),
        options.tries.map(|tries| format!("--tries {tries}")),
        Some(format!("--in-flight {}", options.in_flight)),
        (!back_off.is_empty()).then(|| format!("--back-off {}", back_off.join(","))),
        options
            .dead_letters
            .as_ref()
            .map(|topic| format!("--dead-letters {topic}")),
    ];
    given.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn object(group: &GroupDescription) -> Value {
    let settings = group.options.as_ref().map(|options| {
        json!({
            "lease_seconds": seconds(options.lease),
            "tries": options.tries,
            "in_flight": options.in_flight,
            "back_off_seconds": options.back_off.iter().map(|&delay| seconds(delay)).collect::<Vec<_>>(),
            "dead_letters": options.dead_letters,
        })
    });
    json!({
        "group": group.name,
        "kind": kind(group),
        "paused": group.is_paused,
        "acknowledged": group.acknowledged,
        "next": group.next,
        "pending": group.pending,
        "lag": group.lag,
        "settings": settings,
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
            Change::Configure { group, .. } => json!({"configured": group.group}),
            Change::Pause { group } => json!({"paused": group.group}),
            Change::Resume { group } => json!({"resumed": group.group}),
            Change::Reset { group, .. } => json!({"reset": group.group}),
            Change::Delete { group } => json!({"deleted": group.group}),
        };
        let store = match self {
            Change::Create { group, from, delivers } => {
                let store = group.store.open_to_write()?;
                let options = delivers.changed(GroupOptions::new())?;
                existing(&store, &group.topic)?.group(&group.group, from, options)?;
                store
            }
            Change::Configure {
                group,
                delivers,
                no_dead_letters,
            } => {
                let store = group.store.open_to_write()?;
                configure(
                    &existing(&store, &group.topic)?,
                    &group.group,
                    delivers,
                    no_dead_letters,
                )?;
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
                match durable(&store, &group)? {
                    Some(durable) => durable.reset(to)?,
                    None => reset(&existing(&store, &group.topic)?, &group.group, to)?,
                }
                store
            }
            Change::Delete { group } => {
                let store = group.store.open_to_write()?;
                match durable(&store, &group)? {
                    Some(durable) => durable.delete()?,
                    None => existing(&store, &group.topic)?.delete_group(&group.group)?,
                }
                store
            }
        };
        finish(store, &done, output)
    }
}

/// The durable subscription to a pattern that is meant, which may be the name of a topic; `None`: a group of the topic is.
fn durable(store: &Store, group: &GroupArguments) -> Outcome<Option<DurablePattern>> {
    let found = durable_pattern(store, &group.topic, &group.group)?;
    match found.is_none() && is_pattern(&group.topic) {
        true => Err(no_durable_pattern(&group.topic, &group.group)),
        false => Ok(found),
    }
}

fn reset(topic: &Topic, name: &str, to: Start) -> Outcome<()> {
    match topic.existing_durable(name) {
        Ok(durable) => durable.reset(to)?,
        Err(error) if matches!(TopicError::of(&error), Some(TopicError::OtherKind { .. })) => {
            topic.existing_group(name)?.reset(to)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn list_durables(store: &Store, output: &mut Output) -> Outcome {
    if !Topics::exist(store)? {
        return Ok(Exit::Done);
    }
    for durable in Topics::open(store)?.durables()? {
        let positions = match durable.positions() {
            // Meanwhile.
            Err(error) if matches!(TopicError::of(&error), Some(TopicError::GroupDeleted { .. })) => continue,
            positions => positions?,
        };
        let (name, pattern) = (durable.name(), durable.pattern().as_str());
        let lag: u64 = positions.iter().map(|position| position.lag).sum();
        match output.is_json {
            true => output.json(&json!({
                "durable": name,
                "pattern": pattern,
                "lag": lag,
                "topics": positions.iter().map(|at| json!({"topic": at.topic, "next": at.next, "lag": at.lag})).collect::<Vec<_>>(),
            }))?,
            false => output.line(format_args!("{name}\t{pattern}\t{}\t{lag}", positions.len()))?,
        }
    }
    Ok(Exit::Done)
}

fn configure(topic: &Topic, group: &str, delivers: Delivers, no_dead_letters: bool) -> Outcome<()> {
    let group = topic.existing_group(group)?;
    let mut options = group.describe()?.options.unwrap_or_default();
    if no_dead_letters {
        options.dead_letters = None;
    }
    group.configure(delivers.changed(options)?)?;
    Ok(())
}
