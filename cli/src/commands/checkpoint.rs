//! `duramen checkpoint`: keeps states of a store by name, lists them, puts the store back to one, and drops them.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use duramen::{Checkpoint as Kept, Difference, Store};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, Outcome};
use crate::opening::{NotationArguments, StoreArguments};
use crate::output::{Output, say};
use crate::text::{Notation, bytes, counted};

const EXAMPLES: &str = r"Examples:
  Keep the state of a store before a change, and see what it costs afterwards:
    $ duramen checkpoint create shop before-prices
    $ duramen checkpoint list shop
  Put the store back to it, or drop it:
    $ duramen checkpoint restore shop before-prices
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

const SHOW_EXAMPLES: &str = r"Examples:
  What a checkpoint is, and the space that only it holds:
    $ duramen checkpoint show shop old
    $ duramen checkpoint show shop old --json";

const DIFF_EXAMPLES: &str = r"Examples:
  The pairs of maps that differ between two checkpoints:
    $ duramen checkpoint create shop new && duramen checkpoint diff shop old new
    $ duramen checkpoint diff shop old old --keys-only --json

Each line begins with - for what was there before, or + for what is there afterwards, and then has
the map, the key and the value.";

const RESTORE_EXAMPLES: &str = r"Examples:
  Keep the present under a name too, and put the store back:
    $ duramen checkpoint create shop present && duramen checkpoint restore shop old
    $ duramen checkpoint restore shop present --json

It is one commit. Afterwards every process that has the store open must open it again: its calls
fail until then. Offsets of topics, revisions of trees and numbers of appends go on above the
highest so far. All checkpoints stay.";

const DROP_EXAMPLES: &str = r"Examples:
  Drop one, or all but the newest three:
    $ duramen checkpoint drop shop old
    $ duramen checkpoint drop shop --keep-last 3";

/// Keep states of a store by name, put the store back to one, list and drop them
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
    /// Show a checkpoint
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        #[command(flatten)]
        store: StoreArguments,
        /// Its name
        name: String,
    },
    /// Show the pairs that differ between two checkpoints
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        #[command(flatten)]
        store: StoreArguments,
        /// The name of the first one
        from: String,
        /// The name of the second one
        to: String,
        /// Leave the values out
        #[arg(long)]
        keys_only: bool,
        #[command(flatten)]
        notation: NotationArguments,
    },
    /// Put the store back to a checkpoint
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore {
        #[command(flatten)]
        store: StoreArguments,
        /// Its name
        name: String,
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
            Action::List { store } => {
                let store = store.open_to_write()?;
                show(&store, store.checkpoints().list()?, output)?;
            }
            Action::Show { store, name } => {
                let store = store.open_to_write()?;
                let checkpoint = store.checkpoints().get(&name)?.ok_or_else(|| missing(&name))?;
                show(&store, vec![checkpoint], output)?;
            }
            Action::Diff {
                store,
                from,
                to,
                keys_only,
                notation,
            } => {
                let mut printing = Ok(());
                let notation = notation.notation();
                store.open_to_write()?.checkpoints().diff(&from, &to, |pair| {
                    printing = print(&pair, notation, keys_only, output);
                    Ok(printing.is_ok())
                })?;
                printing?;
            }
            Action::Restore { store, name } => {
                let store = store.open_to_write()?;
                if store.checkpoints().get(&name)?.is_none() {
                    return Err(missing(&name));
                }
                let commit = duramen_server::restore(&store, &name)?;
                store.close()?;
                if output.is_json {
                    output.json(&json!({"name": name, "commit": commit}))?;
                } else {
                    say(format_args!(
                        "commit {commit} puts the store back to checkpoint {name:?}"
                    ));
                }
            }
            Action::Drop { store, name, keep_last } => {
                let store = store.open_to_write()?;
                let dropped = match (&name, keep_last) {
                    (Some(name), _) if store.checkpoints().drop(name)? => 1,
                    (Some(name), _) => return Err(missing(name)),
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

fn missing(name: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no checkpoint {name:?}")).hint("see `duramen checkpoint list`")
}

/// Prints the two sides of a pair that differs.
fn print(pair: &Difference<'_>, notation: Notation, keys_only: bool, output: &mut Output) -> Outcome<()> {
    let sides = [("-", &pair.old), ("+", &pair.new)];
    if output.is_json {
        let mut line = json!({"map": pair.map, "key": notation.show(pair.key)});
        for ((_, value), name) in sides.into_iter().zip(["old", "new"]) {
            line[name] = match value {
                Some(_) if keys_only => json!(true),
                Some(value) => json!(notation.show(value)),
                None => Value::Null,
            };
        }
        return output.json(&line);
    }
    for (sign, value) in sides {
        let Some(value) = value else { continue };
        write!(output, "{sign}\t{}\t", pair.map)?;
        notation.write(output, pair.key)?;
        if !keys_only {
            output.write_all(b"\t")?;
            notation.write(output, value)?;
        }
        output.write_all(b"\n")?;
    }
    Ok(())
}

fn show(store: &Store, all: Vec<Kept>, output: &mut Output) -> Outcome<()> {
    let checkpoints = store.checkpoints();
    let mut rows = Vec::new();
    for checkpoint in all {
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
