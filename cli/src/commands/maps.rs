//! `duramen maps`: lists maps; creates, renames and drops them.

use clap::{Args, Subcommand};
use duramen::{Options, Store};
use serde_json::json;

use super::changes::{finish, refuse_unless};
use crate::exit::{Exit, Failure, Outcome};
use crate::opening::{StoreArguments, existing};
use crate::output::Output;
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
    $ duramen maps create new-shop stock --json";

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
    store: Option<StoreArguments>,

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
        store: StoreArguments,
        /// Its name
        name: String,
    },
    /// Give a map another name
    #[command(after_help = RENAME_EXAMPLES)]
    Rename {
        #[command(flatten)]
        store: StoreArguments,
        /// Its name now
        from: String,
        /// Its name from now on
        to: String,
    },
    /// Remove a map with everything in it
    #[command(after_help = DROP_EXAMPLES)]
    Drop {
        #[command(flatten)]
        store: StoreArguments,
        /// Its name
        name: String,
        /// Even if there are pairs in it
        #[arg(long)]
        force: bool,
    },
}

impl Maps {
    pub fn run(self, output: &mut Output) -> Outcome {
        match (self.change, self.store) {
            (Some(change), _) => change.run(output),
            (None, Some(store)) => list(&store.open_to_read()?, self.count, output),
            (None, None) => Err(Failure::wrong_call("name the directory of a store: `duramen maps DIR`")),
        }
    }
}

fn list(store: &Store, with_count: bool, output: &mut Output) -> Outcome {
    for name in store.maps().list()? {
        let pairs = match with_count {
            true => Some(existing(store, &name)?.count()?),
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
        let (store, done) = match self {
            Change::Create { store, name } => {
                let store = store.open_or_create(Options::new())?;
                store.maps().create(&name)?;
                (store, json!({"created": name}))
            }
            Change::Rename { store, from, to } => {
                let store = store.open_to_write()?;
                existing(&store, &from)?;
                store.maps().rename(&from, &to)?;
                (store, json!({"renamed": from, "to": to}))
            }
            Change::Drop { store, name, force } => {
                let store = store.open_to_write()?;
                let pairs = drop_map(&store, &name, force)?;
                (store, json!({"dropped": name, "pairs": pairs}))
            }
        };
        finish(store, &done, output)
    }
}

fn drop_map(store: &Store, name: &str, force: bool) -> Outcome<u64> {
    let pairs = existing(store, name)?.count()?;
    let held = format!("the map {name:?} holds {}", counted(pairs, "pair"));
    refuse_unless(force || pairs == 0, &held, "drops")?;
    store.maps().drop(name)?;
    Ok(pairs)
}
