//! `duramen dump`: writes a store, or some of its maps, as text.

use clap::Args;
use duramen::{Map, Snapshot, Store};
use serde_json::json;

use crate::dump_format::{AnnouncedMap, DumpWriter};
use crate::exit::{Exit, Outcome};
use crate::opening::{StoreArguments, existing};
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
}

impl Dump {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = self.store.open_to_read()?;
        let snapshot = store.snapshot()?;
        let maps = self.maps(&store)?;
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
        report(is_json, maps.len() as u64, pairs);
        Ok(Exit::Done)
    }

    /// The maps to write, each once, sorted.
    fn maps(&self, store: &Store) -> Outcome<Vec<Map>> {
        let mut names = match self.map.is_empty() {
            true => store.maps().list()?,
            false => self.map.clone(),
        };
        names.sort();
        names.dedup();
        names.iter().map(|name| existing(store, name)).collect()
    }
}

fn announced(snapshot: &Snapshot, map: &Map) -> Outcome<AnnouncedMap> {
    Ok(AnnouncedMap {
        name: map.name().into(),
        pairs: Some(snapshot.count(map, ..)?),
    })
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
