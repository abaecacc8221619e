//! `duramen dump`: writes a store, or some of its maps, as text.

use clap::Args;
use duramen::topic::Topics;
use duramen::tree::{Trees, TreesOptions};
use duramen::{Error, Lost, Map, Reason, Snapshot, Store};
use serde_json::json;

use crate::dump_format::{AnnouncedMap, DumpWriter};
use crate::exit::{Exit, Outcome};
use crate::opening::StoreArguments;
use crate::output::{Output, say};
use crate::progress::Meter;
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  Write everything to a file, and compressed:
    $ duramen dump shop > shop.dump
    $ duramen dump shop | gzip > shop.dump.gz
  Only some maps:
    $ duramen dump shop --map stock --map orders > some.dump
  Into another store:
    $ duramen dump shop | duramen load other-shop
  The state of a checkpoint:
    $ duramen dump shop --checkpoint old | duramen load shop-of-old
  What is left of a damaged store (the exit code is 5 when anything was lost):
    $ duramen dump shop --skip-damaged > rest.dump

The format is text with one line a pair, and ends with a checksum; it is described in
docs/reference/dump-format.md. The dump shows one moment. With --json, the summary on standard
error is JSON; the dump is the same.";

/// Write the maps of a store as text
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Dump {
    #[command(flatten)]
    store: StoreArguments,

    /// Only this map; may be given several times
    #[arg(long, short, value_name = "NAME")]
    map: Vec<String>,

    /// The state of this checkpoint (default: the present)
    #[arg(long, value_name = "NAME", conflicts_with = "skip_damaged")]
    checkpoint: Option<String>,

    /// Pass over what is damaged, and list it on standard error
    #[arg(long)]
    skip_damaged: bool,
}

impl Dump {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = match self.skip_damaged {
            true => self.store.open_to_salvage()?,
            false => self.store.open_to_read()?,
        };
        let snapshot = match &self.checkpoint {
            Some(name) => store.checkpoints().open(name)?,
            None => store.snapshot()?,
        };
        if self.skip_damaged {
            self.tell_of_topics(&store);
            return self.salvage(&snapshot, output);
        }
        let maps = self.maps(&snapshot)?;
        let announced = maps
            .iter()
            .map(|map| announced(&snapshot, map))
            .collect::<Outcome<Vec<_>>>()?;
        let total = announced.iter().filter_map(|map| map.pairs).sum();
        let is_json = output.is_json;
        let mut writer = DumpWriter::new(output, &announced)?;
        let mut meter = Meter::new("dumping", "pairs");
        let mut done = 0;
        for map in &maps {
            writer.map(map.name())?;
            let mut cursor = snapshot.range(map, ..)?;
            while let Some((key, value)) = cursor.next()? {
                writer.pair(key, &value)?;
                done += 1;
                meter.update(done, total);
            }
        }
        let pairs = writer.finish()?;
        drop(meter);
        self.tell_of_topics(&store);
        report(is_json, maps.len() as u64, pairs);
        Ok(Exit::Done)
    }

    /// Tells the user that the dump contains no topics and trees, because users who rely on a dump must know what it lacks.
    fn tell_of_topics(&self, store: &Store) {
        // An unreadable store may have topics.
        if self.map.is_empty() && Topics::exist(store).unwrap_or(true) {
            say("topics are not in a dump; `duramen copy` takes them along");
        }
        // Without trees, they cannot be opened in a store that is open to read.
        let options = TreesOptions::new().background(false);
        if self.map.is_empty() && Trees::open_with(store, options).is_ok() {
            say("trees are not in a dump; `duramen copy` and `duramen tree export` take them along");
        }
    }

    /// Writes what is readable, and lists the rest.
    fn salvage(&self, snapshot: &Snapshot, output: &mut Output) -> Outcome {
        let lost = Lost::new();
        let mut maps = snapshot.salvage_maps(&lost)?;
        maps.retain(|map| self.map.is_empty() || self.map.iter().any(|name| name == map.name()));
        maps.sort_by(|one, other| one.name().cmp(other.name()));
        let head: Vec<AnnouncedMap> = maps.iter().map(without_count).collect();
        let is_json = output.is_json;
        let mut writer = DumpWriter::new(output, &head)?;
        let mut meter = Meter::new("dumping", "pairs");
        let mut done = 0;
        for map in &maps {
            writer.map(map.name())?;
            let mut walk = snapshot.salvage(map, &lost)?;
            while let Some((key, value)) = walk.next()? {
                writer.pair(key, &value)?;
                done += 1;
                meter.update(done, done);
            }
        }
        let pairs = writer.finish()?;
        drop(meter);
        Ok(report_lost(is_json, maps.len() as u64, pairs, &lost.list()))
    }

    /// The maps to write, each once, sorted.
    fn maps(&self, snapshot: &Snapshot) -> Outcome<Vec<Map>> {
        if self.map.is_empty() {
            return Ok(snapshot.maps()?);
        }
        let mut names = self.map.clone();
        names.sort();
        names.dedup();
        let map = |name: &String| {
            let name = name.clone();
            let map = snapshot.map(&name)?;
            Ok(map.ok_or_else(|| Error::from(Reason::UnknownMap { name }))?)
        };
        names.iter().map(map).collect()
    }
}

fn announced(snapshot: &Snapshot, map: &Map) -> Outcome<AnnouncedMap> {
    Ok(AnnouncedMap {
        name: map.name().into(),
        pairs: Some(snapshot.count(map, ..)?),
    })
}

/// Announces a map without its number of pairs: the number of readable pairs is known only at the end.
fn without_count(map: &Map) -> AnnouncedMap {
    AnnouncedMap {
        name: map.name().into(),
        pairs: None,
    }
}

fn report_lost(is_json: bool, maps: u64, pairs: u64, lost: &[String]) -> Exit {
    if is_json {
        say(json!({"maps": maps, "pairs": pairs, "lost": lost}));
    } else {
        lost.iter().for_each(|line| say(format_args!("lost: {line}")));
        report(is_json, maps, pairs);
    }
    if lost.is_empty() { Exit::Done } else { Exit::Damaged }
}

fn report(is_json: bool, maps: u64, pairs: u64) {
    if is_json {
        say(json!({"maps": maps, "pairs": pairs}));
    } else {
        say(format_args!(
            "dumped {} with {}",
            counted(maps, "map"),
            counted(pairs, "pair")
        ));
    }
}
