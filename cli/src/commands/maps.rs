//! `duramen maps`: lists maps; creates, renames and drops them.

use std::time::Duration;

use clap::{Args, Subcommand};
use duramen_client::{KeepChanges, Keys};
use serde_json::json;

use super::changes::{finish, refuse_unless};
use crate::exit::{Exit, Failure, Outcome};
use crate::limit::{Limit, time_limit};
use crate::opening::existing;
use crate::output::Output;
use crate::place::{Place, PlaceArguments};
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  The names of all maps; with the number of pairs in each:
    $ duramen maps shop
    $ duramen maps shop --count
  Make, rename and drop maps:
    $ duramen maps create shop returns
    $ duramen maps rename shop returns refunds
    $ duramen maps drop shop refunds";

const CREATE_EXAMPLES: &str = r"Examples:
  Make a map; the store is made when it is missing:
    $ duramen maps create shop returns
    $ duramen maps create new-shop stock --json
  On a server, a map that keeps its changes for a day, for `duramen watch`:
    $ duramen maps create --server unix:duramen.sock offers --keep-changes 86400";

const RENAME_EXAMPLES: &str = r"Examples:
  Costs the same however much is in the map:
    $ duramen maps rename shop stock inventory
    $ duramen maps rename shop inventory stock --json";

const DROP_EXAMPLES: &str = r"Examples:
  An empty map goes without asking, one with pairs in it only with --force:
    $ duramen maps drop shop empty
    $ duramen maps drop shop orders --force";

/// List the maps; create, rename or drop one
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Maps {
    #[command(flatten)]
    place: Option<PlaceArguments>,

    /// Print the number of pairs of each map as well
    #[arg(long)]
    count: bool,

    #[command(subcommand)]
    change: Option<Change>,
}

#[derive(Subcommand, Debug)]
enum Change {
    /// Make a map
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        #[command(flatten)]
        place: PlaceArguments,
        /// Its name
        name: String,
        /// On a server: keep its changes for so many seconds (none: no limit), for `duramen watch`
        #[arg(long, value_name = "SECONDS", value_parser = time_limit, requires = "server")]
        keep_changes: Option<Limit<Duration>>,
        /// Keep at most so many bytes of changes
        #[arg(long, value_name = "BYTES", requires = "keep_changes")]
        keep_change_bytes: Option<u64>,
    },
    /// Give a map another name
    #[command(after_help = RENAME_EXAMPLES)]
    Rename {
        #[command(flatten)]
        place: PlaceArguments,
        /// Its name now
        from: String,
        /// Its name from now on
        to: String,
    },
    /// Remove a map with everything in it
    #[command(after_help = DROP_EXAMPLES)]
    Drop {
        #[command(flatten)]
        place: PlaceArguments,
        /// Its name
        name: String,
        /// Even if there are pairs in it
        #[arg(long)]
        force: bool,
    },
}

impl Maps {
    pub fn run(self, output: &mut Output) -> Outcome {
        match (self.change, self.place) {
            (Some(change), _) => change.run(output),
            (None, Some(place)) => list(&place.open_to_read()?, self.count, output),
            (None, None) => Err(Failure::wrong_call("name the directory of a store: `duramen maps DIR`")),
        }
    }
}

fn names(place: &Place) -> Outcome<Vec<String>> {
    match place {
        Place::Directory(store) => Ok(store.maps().list()?),
        Place::Server(server) => server.wait(server.client.list_maps()),
    }
}

fn count(place: &Place, map: &str) -> Outcome<u64> {
    match place {
        Place::Directory(store) => Ok(existing(store, map)?.count()?),
        Place::Server(server) => server.wait(server.client.map(map).count(Keys::all())),
    }
}

fn list(place: &Place, with_count: bool, output: &mut Output) -> Outcome {
    for name in names(place)? {
        let pairs = match with_count {
            true => Some(count(place, &name)?),
            false => None,
        };
        match (output.is_json, pairs) {
            (true, Some(pairs)) => output.json(&json!({"map": name, "pairs": pairs}))?,
            (true, None) => output.json(&json!({"map": name}))?,
            (false, Some(pairs)) => output.line(format_args!("{name}\t{pairs}"))?,
            (false, None) => output.line(&name)?,
        }
    }
    Ok(Exit::Done)
}

impl Change {
    fn run(self, output: &mut Output) -> Outcome {
        let (place, done) = match self {
            Change::Create {
                place,
                name,
                keep_changes,
                keep_change_bytes,
            } => {
                let place = place.open_or_create()?;
                let limits = keep_changes.map(|Limit(time)| KeepChanges {
                    age_ms: time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
                    bytes: keep_change_bytes.unwrap_or(0),
                });
                create(&place, &name, limits)?;
                (place, json!({"created": name}))
            }
            Change::Rename { place, from, to } => {
                let place = place.open_to_write()?;
                rename(&place, &from, &to)?;
                (place, json!({"renamed": from, "to": to}))
            }
            Change::Drop { place, name, force } => {
                let place = place.open_to_write()?;
                let pairs = drop_map(&place, &name, force)?;
                (place, json!({"dropped": name, "pairs": pairs}))
            }
        };
        finish(place, &done, output)
    }
}

fn create(place: &Place, name: &str, keep_changes: Option<KeepChanges>) -> Outcome<()> {
    match place {
        Place::Directory(store) => store.maps().create(name).map(drop)?,
        Place::Server(server) => {
            let is_new = match keep_changes {
                None => server.wait(server.client.create_map(name))?,
                Some(limits) => server.wait(server.client.create_watched_map(name, limits))?,
            };
            if !is_new {
                return Err(Failure::wrong_call(format!("there is a map named {name:?} already")));
            }
        }
    }
    Ok(())
}

fn rename(place: &Place, from: &str, to: &str) -> Outcome<()> {
    match place {
        Place::Directory(store) => {
            existing(store, from)?;
            store.maps().rename(from, to)?;
        }
        Place::Server(server) => server.wait(server.client.rename_map(from, to))?,
    }
    Ok(())
}

fn drop_map(place: &Place, name: &str, force: bool) -> Outcome<u64> {
    let pairs = count(place, name)?;
    let held = format!("the map {name:?} holds {}", counted(pairs, "pair"));
    refuse_unless(force || pairs == 0, &held, "drops")?;
    match place {
        Place::Directory(store) => store.maps().drop(name)?,
        Place::Server(server) => server.wait(server.client.drop_map(name))?,
    }
    Ok(pairs)
}
