//! `duramen checkpoint`: keeps states of a store by name, lists them, puts the store back to one, and drops them.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use clap::{Args, Subcommand};
use duramen::Store;
use duramen_client::Bytes;
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, Outcome};
use crate::opening::NotationArguments;
use crate::output::{Output, say};
use crate::place::{Place, PlaceArguments, Server};
use crate::text::{Notation, ago, bytes, counted};

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
fail until then. A server ends: start it again. Offsets of topics, revisions of trees and numbers
of appends go on above the highest so far. All checkpoints stay.";

const DROP_EXAMPLES: &str = r"Examples:
  Drop one, or all but the newest three:
    $ duramen checkpoint drop shop old
    $ duramen checkpoint drop shop --keep-last 3
  Drop those of backups whose places are gone:
    $ duramen checkpoint drop shop --prefix 'backup '";

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
        place: PlaceArguments,
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
        place: PlaceArguments,
    },
    /// Show a checkpoint, and the space that it holds alone and shared
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        #[command(flatten)]
        place: PlaceArguments,
        /// Its name
        name: String,
    },
    /// Show the pairs that differ between two checkpoints
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        #[command(flatten)]
        place: PlaceArguments,
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
        place: PlaceArguments,
        /// Its name
        name: String,
    },
    /// Drop a checkpoint, or old ones
    #[command(after_help = DROP_EXAMPLES)]
    Drop {
        #[command(flatten)]
        place: PlaceArguments,
        /// Its name
        #[arg(required_unless_present_any = ["keep_last", "prefix"], conflicts_with_all = ["keep_last", "prefix"])]
        name: Option<String>,
        /// Drop all but the newest of this number
        #[arg(long, value_name = "COUNT")]
        keep_last: Option<usize>,
        /// Drop all whose names begin with this text
        #[arg(long, value_name = "TEXT", conflicts_with = "keep_last")]
        prefix: Option<String>,
    },
}

impl Checkpoint {
    pub fn run(self, output: &mut Output) -> Outcome {
        match self.action {
            Action::Create { place, name, metadata } => create(&patient(&place)?, &name, metadata, output)?,
            Action::List { place } => {
                let rows = match patient(&place)? {
                    Place::Directory(store) => with_bytes_alone(&store, store.checkpoints().list()?)?,
                    Place::Server(server) => {
                        let listed = server.wait(server.client.checkpoints())?;
                        listed.into_iter().map(Kept::from).collect()
                    }
                };
                show(rows, output)?;
            }
            Action::Show { place, name } => {
                let found = match patient(&place)? {
                    Place::Directory(store) => {
                        let found = store.checkpoints().get(&name)?;
                        let found = with_bytes_alone(&store, found.into_iter().collect())?.pop();
                        let bytes_shared = store.checkpoints().bytes_shared(&name)?;
                        found.map(|found| Kept { bytes_shared, ..found })
                    }
                    Place::Server(server) => {
                        let found = server.client.checkpoint_with_shared_bytes(&name);
                        unless_unknown(&server, found)?.map(Kept::from)
                    }
                };
                show(vec![found.ok_or_else(|| missing(&name))?], output)?;
            }
            Action::Diff {
                place,
                from,
                to,
                keys_only,
                notation,
            } => {
                let notation = notation.notation();
                let mut print = |pair: Pair<'_>| print(&pair, notation, keys_only, output);
                match patient(&place)? {
                    Place::Directory(store) => diff(&store, &from, &to, &mut print)?,
                    Place::Server(server) => diff_on(&server, &from, &to, keys_only, &mut print)?,
                }
            }
            Action::Restore { place, name } => restore(&place, &name, output)?,
            Action::Drop {
                place,
                name,
                keep_last,
                prefix,
            } => {
                let place = patient(&place)?;
                let dropped = match (&name, &prefix) {
                    (Some(name), _) => drop_named(&place, name)?,
                    (None, Some(prefix)) => drop_all(&place, prefix)?,
                    (None, None) => keep_last_on(&place, keep_last.unwrap_or(0))?,
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

/// Opens the place for calls that read or fold much of the store.
fn patient(place: &PlaceArguments) -> Outcome<Place> {
    place.with_patience(place.open_to_write()?)
}

fn create(place: &Place, name: &str, metadata: String, output: &mut Output) -> Outcome<()> {
    let made: Kept = match place {
        Place::Directory(store) => store.checkpoints().create(name, metadata)?.into(),
        Place::Server(server) => server.wait(server.client.create_checkpoint(name, metadata))?.into(),
    };
    if output.is_json {
        return output.json(&made.to_json());
    }
    say(format_args!("checkpoint {:?} shows commit {}", made.name, made.commit));
    Ok(())
}

fn restore(place: &PlaceArguments, name: &str, output: &mut Output) -> Outcome<()> {
    let commit = match patient(place)? {
        Place::Directory(store) => {
            if store.checkpoints().get(name)?.is_none() {
                return Err(missing(name));
            }
            let commit = duramen_server::restore(&store, name)?;
            store.close()?;
            commit
        }
        Place::Server(server) => {
            let restored = unless_unknown(&server, server.client.restore_checkpoint(name))?;
            restored.ok_or_else(|| missing(name))?
        }
    };
    if output.is_json {
        return output.json(&json!({"name": name, "commit": commit}));
    }
    say(format_args!(
        "commit {commit} puts the store back to checkpoint {name:?}"
    ));
    Ok(())
}

fn drop_named(place: &Place, name: &str) -> Outcome<u64> {
    match drop_if_there(place, name)? {
        true => Ok(1),
        false => Err(missing(name)),
    }
}

fn drop_if_there(place: &Place, name: &str) -> Outcome<bool> {
    match place {
        Place::Directory(store) => Ok(store.checkpoints().drop(name)?),
        Place::Server(server) => Ok(unless_unknown(server, server.client.drop_checkpoint(name))?.is_some()),
    }
}

/// Drops all whose names begin with a text.
fn drop_all(place: &Place, prefix: &str) -> Outcome<u64> {
    let names: Vec<String> = match place {
        Place::Directory(store) => {
            let all = store.checkpoints().list()?.into_iter();
            all.map(|checkpoint| checkpoint.name).collect()
        }
        Place::Server(server) => {
            let all = server.wait(server.client.checkpoints())?.into_iter();
            all.map(|checkpoint| checkpoint.name).collect()
        }
    };
    let mut dropped = 0;
    for name in names.iter().filter(|name| name.starts_with(prefix)) {
        dropped += u64::from(drop_if_there(place, name)?);
    }
    Ok(dropped)
}

fn keep_last_on(place: &Place, count: usize) -> Outcome<u64> {
    match place {
        Place::Directory(store) => Ok(store.checkpoints().keep_last(count)?),
        Place::Server(server) => server.wait(server.client.keep_last_checkpoints(count as u64)),
    }
}

/// Waits for a call; `None`: the server has no checkpoint of the name.
fn unless_unknown<T>(server: &Server, call: impl Future<Output = duramen_client::Result<T>>) -> Outcome<Option<T>> {
    server.wait(async {
        match call.await {
            Err(error) if error.reason == "CHECKPOINT_NOT_FOUND" => Ok(None),
            called => called.map(Some),
        }
    })
}

fn missing(name: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no checkpoint {name:?}")).hint("see `duramen checkpoint list`")
}

/// A checkpoint of a directory or a server.
struct Kept {
    number: u64,
    name: String,
    metadata: Bytes,
    commit: u64,
    created_ms: u64,
    /// `None`: it is not known.
    bytes_alone: Option<u64>,
    bytes_shared: Option<u64>,
}

impl From<duramen::Checkpoint> for Kept {
    fn from(checkpoint: duramen::Checkpoint) -> Kept {
        let created = checkpoint.created.duration_since(UNIX_EPOCH).unwrap_or_default();
        Kept {
            number: checkpoint.number,
            name: checkpoint.name,
            metadata: checkpoint.metadata.into(),
            commit: checkpoint.commit,
            created_ms: created.as_millis() as u64,
            bytes_alone: None,
            bytes_shared: None,
        }
    }
}

impl From<duramen_client::Checkpoint> for Kept {
    fn from(checkpoint: duramen_client::Checkpoint) -> Kept {
        Kept {
            number: checkpoint.number,
            name: checkpoint.name,
            metadata: checkpoint.metadata,
            commit: checkpoint.commit,
            created_ms: checkpoint.created_ms,
            bytes_alone: checkpoint.bytes_alone,
            bytes_shared: checkpoint.bytes_shared,
        }
    }
}

impl Kept {
    fn to_json(&self) -> Value {
        let mut line = json!({
            "number": self.number,
            "name": self.name,
            "commit": self.commit,
            "created_ms": self.created_ms,
            "metadata": String::from_utf8_lossy(&self.metadata),
        });
        if let Some(alone) = self.bytes_alone {
            line["bytes_alone"] = json!(alone);
        }
        if let Some(shared) = self.bytes_shared {
            line["bytes_shared"] = json!(shared);
        }
        line
    }
}

fn with_bytes_alone(store: &Store, all: Vec<duramen::Checkpoint>) -> Outcome<Vec<Kept>> {
    let mut kept = Vec::new();
    for checkpoint in all {
        // Another process may have dropped it meanwhile.
        let Some(alone) = store.checkpoints().bytes_alone(&checkpoint.name)? else {
            continue;
        };
        kept.push(Kept {
            bytes_alone: Some(alone),
            ..Kept::from(checkpoint)
        });
    }
    Ok(kept)
}

/// The place of the column of shared bytes, which only `show` has.
const SHARED_COLUMN: usize = 5;

fn show(all: Vec<Kept>, output: &mut Output) -> Outcome<()> {
    if output.is_json {
        return all.iter().try_for_each(|kept| output.json(&kept.to_json()));
    }
    let has_shared = all.iter().any(|kept| kept.bytes_shared.is_some());
    let row = |kept: Kept| {
        let mut row = vec![
            kept.number.to_string(),
            kept.name,
            kept.commit.to_string(),
            ago(UNIX_EPOCH + Duration::from_millis(kept.created_ms)),
            kept.bytes_alone.map_or_else(String::new, bytes),
            String::from_utf8_lossy(&kept.metadata).into_owned(),
        ];
        if has_shared {
            row.insert(SHARED_COLUMN, kept.bytes_shared.map_or_else(String::new, bytes));
        }
        row
    };
    let rows: Vec<_> = all.into_iter().map(row).collect();
    let mut columns = vec!["number", "name", "commit", "made", "alone", "metadata"];
    if has_shared {
        columns.insert(SHARED_COLUMN, "shared");
    }
    output.table(&columns, &rows)
}

/// A pair that differs between two checkpoints.
struct Pair<'a> {
    map: &'a str,
    key: &'a [u8],
    old: Option<&'a [u8]>,
    new: Option<&'a [u8]>,
}

fn diff(store: &Store, from: &str, to: &str, print: &mut dyn FnMut(Pair<'_>) -> Outcome<()>) -> Outcome<()> {
    let mut printing = Ok(());
    store.checkpoints().diff(from, to, |pair| {
        printing = print(Pair {
            map: pair.map,
            key: pair.key,
            old: pair.old.as_deref(),
            new: pair.new.as_deref(),
        });
        Ok(printing.is_ok())
    })?;
    printing
}

fn diff_on(
    server: &Server,
    from: &str,
    to: &str,
    keys_only: bool,
    print: &mut dyn FnMut(Pair<'_>) -> Outcome<()>,
) -> Outcome<()> {
    let mut differences = server.wait(server.client.diff_checkpoints(from, to, keys_only))?;
    while let Some(pair) = server.next(differences.next())? {
        print(Pair {
            map: &pair.map,
            key: &pair.key,
            old: pair.old.as_deref(),
            new: pair.new.as_deref(),
        })?;
    }
    Ok(())
}

/// Prints the two sides of a pair that differs.
fn print(pair: &Pair<'_>, notation: Notation, keys_only: bool, output: &mut Output) -> Outcome<()> {
    let sides = [("-", pair.old), ("+", pair.new)];
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
