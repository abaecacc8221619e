//! `duramen checkpoint`: keeps states of a store by name, lists them, and drops them.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use duramen::{Checkpoint as Kept, Store};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, Outcome};
use crate::opening::StoreArguments;
use crate::output::{Output, say};
use crate::text::{bytes, counted};

const EXAMPLES: &str = r"Examples:
  Keep the state of a store before a change, and see what it costs afterwards:
    $ duramen checkpoint create shop before-prices
    $ duramen checkpoint list shop
  Drop it:
    $ duramen checkpoint drop shop before-prices

A checkpoint stays through restarts and crashes, and costs the space of what has changed since. It
is in the files of the store, so it is no backup.";

const CREATE_EXAMPLES: &str = r"Examples:
  Keep the present state, with a note:
    $ duramen checkpoint create shop monday --metadata 'offset 7'
    $ duramen checkpoint create shop tuesday --json";

const LIST_EXAMPLES: &str = r"Examples:
  Number, name, commit, age, the space that only this one holds, and metadata, oldest first:
    $ duramen checkpoint list shop
    $ duramen checkpoint list shop --json";

const DROP_EXAMPLES: &str = r"Examples:
  Drop one, or all but the newest three:
    $ duramen checkpoint drop shop old
    $ duramen checkpoint drop shop --keep-last 3";

/// Keep states of a store by name, list and drop them
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Checkpoint {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Keep the present state
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        #[command(flatten)]
        store: StoreArguments,
        /// Its name
        name: String,
        /// What to store with it
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        metadata: String,
    },
    /// List the checkpoints
    #[command(after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Drop a checkpoint, or old ones
    #[command(after_help = DROP_EXAMPLES)]
    Drop {
        #[command(flatten)]
        store: StoreArguments,
        /// Its name
        #[arg(required_unless_present = "keep_last", conflicts_with = "keep_last")]
        name: Option<String>,
        /// Drop all but the newest of this number
        #[arg(long, value_name = "COUNT")]
        keep_last: Option<usize>,
    },
}

impl Checkpoint {
    pub fn run(self, output: &mut Output) -> Outcome {
        match self.action {
            Action::Create { store, name, metadata } => {
                let made = store.open_to_write()?.checkpoints().create(&name, metadata)?;
                if output.is_json {
                    output.json(&shown(&made))?;
                } else {
                    say(format_args!("checkpoint {:?} shows commit {}", made.name, made.commit));
                }
            }
            Action::List { store } => list(&store.open_to_write()?, output)?,
            Action::Drop { store, name, keep_last } => {
                let store = store.open_to_write()?;
                let dropped = match (&name, keep_last) {
                    (Some(name), _) if store.checkpoints().drop(name)? => 1,
                    (Some(name), _) => {
                        let failure = Failure::new(Exit::NotFound, format!("there is no checkpoint {name:?}"));
                        return Err(failure.hint("see `duramen checkpoint list`"));
                    }
                    (None, count) => store.checkpoints().keep_last(count.unwrap_or(0))?,
                };
                if output.is_json {
                    output.json(&json!({"dropped": dropped}))?;
                } else {
                    say(format_args!("dropped {}", counted(dropped, "checkpoint")));
                }
            }
        }
        Ok(Exit::Done)
    }
}

fn shown(checkpoint: &Kept) -> Value {
    let created = checkpoint.created.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "number": checkpoint.number,
        "name": checkpoint.name,
        "commit": checkpoint.commit,
        "created_ms": created.as_millis() as u64,
        "metadata": String::from_utf8_lossy(&checkpoint.metadata),
    })
}

fn list(store: &Store, output: &mut Output) -> Outcome<()> {
    let checkpoints = store.checkpoints();
    let mut rows = Vec::new();
    for checkpoint in checkpoints.list()? {
        // Another process may have dropped it meanwhile.
        let Some(alone) = checkpoints.bytes_alone(&checkpoint.name)? else {
            continue;
        };
        if output.is_json {
            let mut line = shown(&checkpoint);
            line["bytes_alone"] = json!(alone);
            output.json(&line)?;
            continue;
        }
        rows.push(vec![
            checkpoint.number.to_string(),
            checkpoint.name,
            checkpoint.commit.to_string(),
            ago(checkpoint.created),
            bytes(alone),
            String::from_utf8_lossy(&checkpoint.metadata).into_owned(),
        ]);
    }
    output.table(&["number", "name", "commit", "made", "alone", "metadata"], &rows)
}

/// How long ago a checkpoint was made, for people.
fn ago(made: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(made).unwrap_or_default().as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= *unit);
    let (unit, name) = unit.unwrap_or((1, "s"));
    format!("{} {name} ago", seconds / unit)
}
