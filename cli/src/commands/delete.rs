//! `duramen delete`: removes a key, or all keys of a range.

use clap::Args;
use duramen::{Map, Store};
use serde_json::json;

use crate::exit::{Exit, Outcome};
use crate::opening::{KeyRange, MapArguments, NotationArguments, RangeArguments};
use crate::output::{Output, say};
use crate::place::{Place, PlaceArguments, Server};
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  Remove a key:
    $ duramen delete shop apples --map stock
  Remove all keys that begin with a text, or that lie in a range, at once:
    $ duramen delete shop --prefix order/2024- --map orders
    $ duramen delete shop --from order/2025-01 --to order/2025-07 --map orders

Exit code 1 when the key was not there, or nothing lay in the range.";

/// Remove a key, or all keys of a range
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Delete {
    #[command(flatten)]
    place: PlaceArguments,

    /// The key
    #[arg(
        required_unless_present_any = ["from", "to", "prefix"],
        conflicts_with_all = ["from", "to", "prefix"],
        allow_negative_numbers = true,
    )]
    key: Option<String>,

    #[command(flatten)]
    range: RangeArguments,

    #[command(flatten)]
    map: MapArguments,

    #[command(flatten)]
    notation: NotationArguments,
}

impl Delete {
    pub fn run(self, output: &mut Output) -> Outcome {
        let notation = self.notation.notation();
        let key = self.key.as_ref().map(|key| notation.parse("key", key)).transpose()?;
        let range = self.range.range(notation)?;
        let place = self.place.open_to_write()?;
        let (name, deleted) = match &place {
            Place::Directory(store) => {
                let map = self.map.existing(store)?;
                let deleted = match &key {
                    Some(key) => delete_key(store, &map, key)?,
                    None => delete_range(store, &map, &range)?,
                };
                (map.name().to_string(), deleted)
            }
            Place::Server(server) => {
                let map = server.map_name(&self.map)?;
                let deleted = delete_on(server, &map, key.as_deref(), &range)?;
                (map, deleted)
            }
        };
        place.close()?;
        self.report(output, &name, deleted)
    }

    fn report(&self, output: &mut Output, map: &str, deleted: u64) -> Outcome {
        if output.is_json {
            output.json(&json!({"map": map, "key": self.key, "deleted": deleted}))?;
        } else if self.range.is_given() {
            say(format_args!(
                "deleted {} from the map {map:?}",
                counted(deleted, "pair")
            ));
        } else if let (0, Some(key)) = (deleted, &self.key) {
            say(format_args!("duramen: there is no key {key:?} in the map {map:?}"));
        }
        Ok(if deleted > 0 { Exit::Done } else { Exit::NotFound })
    }
}

fn delete_key(store: &Store, map: &Map, key: &[u8]) -> Outcome<u64> {
    let deleted = store.transact(|tx| tx.take(map, key))?;
    Ok(deleted.is_some() as u64)
}

fn delete_range(store: &Store, map: &Map, range: &KeyRange) -> Outcome<u64> {
    store.transact(|tx| {
        let count = tx.count(map, range.bounds())?;
        if count > 0 {
            tx.delete_range(map, range.bounds())?;
        }
        Ok(count)
    })
}

fn delete_on(server: &Server, name: &str, key: Option<&[u8]>, range: &KeyRange) -> Outcome<u64> {
    let client = &server.client;
    server.wait(async {
        if let Some(key) = key {
            let delete = client.transaction().if_exists(name, key).delete(name, key);
            return Ok(delete.commit().await?.succeeded as u64);
        }
        // The count is of the moment before: other clients may write meanwhile.
        let map = client.map(name);
        let count = map.count(range.keys()).await?;
        if count > 0 {
            map.delete_range(range.keys()).await?;
        }
        Ok(count)
    })
}
