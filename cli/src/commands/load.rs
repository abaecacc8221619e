//! `duramen load`: writes a dump into a store, in batches.
//!
//! A dump can be as large as its store, so a load is not one transaction. The load checks the maps before it writes
//! anything, and commits the pairs in batches as it reads them. Only the end of the dump shows whether it is complete.
//! If it is incomplete, the failure reports how much of it is in the store. Batches are `Written`; closing the store
//! makes all of them durable before the load reports success.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args;
use duramen::{Batch, Durability, Map, Options, Store};
use serde_json::json;

use crate::dump_format::{AnnouncedMap, DumpReader, Item};
use crate::exit::{Exit, Failure, Outcome};
use crate::opening::{StoreArguments, listed};
use crate::output::{Output, say};
use crate::progress::Meter;
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  Make a store from a dump:
    $ duramen load new-shop shop.dump
  From a pipe, only one map:
    $ gunzip < shop.dump.gz | duramen load stock-only --map stock
  Add to maps that hold pairs already; the dump's values replace those of the same keys:
    $ duramen load shop shop.dump --merge

Exit code 5 when the dump was cut off or changed: the message says how much of it was loaded until then.";

/// Maximum number of pairs in a batch. The time for a batch grows with the square of its length; this length is still
/// cheap.
const BATCH_PAIRS_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Values of at least this length are written on their own, because a batch would hold a copy.
const LONE_VALUE_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 256 << 10;

/// Put a dump into a store
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Load {
    #[command(flatten)]
    store: StoreArguments,

    /// The dump (default, or `-`: standard input)
    file: Option<PathBuf>,

    /// Only this map; may be given several times
    #[arg(long, short, value_name = "NAME")]
    map: Vec<String>,

    /// Also into maps that hold pairs already
    #[arg(long)]
    merge: bool,
}

impl Load {
    pub fn run(self, output: &mut Output) -> Outcome {
        // Reads the head first, so that invalid input does not leave a new store behind.
        let reader = DumpReader::new(self.input()?)?;
        let maps = self.selected(reader.maps())?;
        let store = self
            .store
            .open_or_create(Options::new().durability(Durability::Written))?;
        self.refuse_occupied(&store, &maps)?;
        for map in &maps {
            store.map(&map.name)?;
        }
        let mut loading = Loading::new(store.clone(), &maps);
        let loaded = loading.run(reader);
        let pairs = loading.pairs;
        loaded.map_err(|failure| failure.hint(format!("{} of it are in the store now", counted(pairs, "pair"))))?;
        drop(loading);
        store.close()?;
        if output.is_json {
            output.json(&json!({"maps": maps.len(), "pairs": pairs}))?;
        } else {
            say(format_args!(
                "loaded {} with {}",
                counted(maps.len() as u64, "map"),
                counted(pairs, "pair")
            ));
        }
        Ok(Exit::Done)
    }

    fn input(&self) -> Outcome<Box<dyn BufRead>> {
        match &self.file {
            Some(path) if path != Path::new("-") => {
                let file = File::open(path);
                let file = file.map_err(|error| Failure::of_io(&format!("reading {}", path.display()), &error))?;
                Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, file)))
            }
            _ if io::stdin().is_terminal() => Err(Failure::wrong_call(
                "the dump comes from a file or through a pipe: `duramen load DIR < FILE`",
            )),
            _ => Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, io::stdin()))),
        }
    }

    /// Returns the announced maps that the user asked for.
    fn selected(&self, announced: &[AnnouncedMap]) -> Outcome<Vec<AnnouncedMap>> {
        let is_announced = |name: &&String| announced.iter().any(|map| map.name == **name);
        if let Some(missing) = self.map.iter().find(|name| !is_announced(name)) {
            let names: Vec<String> = announced.iter().map(|map| map.name.clone()).collect();
            let message = format!(
                "there is no map named {missing:?} in the dump; it has {}",
                listed(&names)
            );
            return Err(Failure::wrong_call(message));
        }
        let is_asked_for = |map: &&AnnouncedMap| self.map.is_empty() || self.map.contains(&map.name);
        Ok(announced.iter().filter(is_asked_for).cloned().collect())
    }

    fn refuse_occupied(&self, store: &Store, maps: &[AnnouncedMap]) -> Outcome<()> {
        for map in maps {
            let Some(existing) = store.maps().get(&map.name)? else {
                continue;
            };
            let pairs = existing.count()?;
            if pairs > 0 && !self.merge {
                let holds = format!("the map {:?} holds {} already", map.name, counted(pairs, "pair"));
                return Err(Failure::wrong_call(format!("{holds}; nothing was loaded"))
                    .hint("--merge loads into it all the same: values of the same keys are replaced"));
            }
        }
        Ok(())
    }
}

/// A load in progress.
struct Loading<'a> {
    store: Store,
    selected: &'a [AnnouncedMap],
    batch: Batch,
    batch_bytes: usize,
    /// Number of pairs in committed batches.
    pairs: u64,
    meter: Meter,
    total: u64,
}

impl Loading<'_> {
    fn new(store: Store, selected: &[AnnouncedMap]) -> Loading<'_> {
        Loading {
            store,
            selected,
            batch: Batch::new(),
            batch_bytes: 0,
            pairs: 0,
            meter: Meter::new("loading", "pairs"),
            // The total is unknown if any map does not announce its count.
            total: selected.iter().map(|map| map.pairs).sum::<Option<u64>>().unwrap_or(0),
        }
    }

    fn run(&mut self, mut reader: DumpReader<Box<dyn BufRead>>) -> Outcome<()> {
        let mut target = None;
        loop {
            match reader.next()? {
                Item::Map(name) => target = self.target(&name)?,
                Item::Pair => {
                    if let Some(map) = &target {
                        self.put(map, &reader.key, &reader.value)?;
                    }
                }
                Item::End => return self.commit(),
            }
        }
    }

    fn target(&self, name: &str) -> Outcome<Option<Map>> {
        match self.selected.iter().any(|map| map.name == name) {
            true => Ok(Some(self.store.map(name)?)),
            false => Ok(None),
        }
    }

    fn put(&mut self, map: &Map, key: &[u8], value: &[u8]) -> Outcome<()> {
        if value.len() >= LONE_VALUE_BYTES {
            self.commit()?;
            map.put(key, value)?;
            self.pairs += 1;
            return Ok(());
        }
        self.batch.put(map, key, value)?;
        self.batch_bytes += key.len() + value.len();
        if self.batch.len() >= BATCH_PAIRS_MAX || self.batch_bytes >= BATCH_BYTES_MAX {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Outcome<()> {
        let pairs = self.batch.len() as u64;
        self.store.write(std::mem::take(&mut self.batch))?;
        self.batch_bytes = 0;
        self.pairs += pairs;
        self.meter.update(self.pairs, self.total);
        Ok(())
    }
}
