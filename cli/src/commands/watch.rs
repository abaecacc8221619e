//! `duramen watch`: prints the changes of a map as they are made.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use duramen::{ChangesFrom, Store};
use duramen_client::{WatchStart, Watched};
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::opening::{KeyRange, MapArguments, NotationArguments, RangeArguments};
use crate::output::Output;
use crate::place::{Place, PlaceArguments, Server};

const EXAMPLES: &str = r"Examples:
  Two changes of a map, as programs that share the store make them:
    $ duramen watch shop --map stock --count 2
  On a server the map keeps its changes, so a watch can begin in the past and goes on when the server
  comes back. Make such a map; print its pairs and then its changes; print all changes:
    $ duramen maps create --server unix:duramen.sock prices --keep-changes 86400
    $ duramen put --server unix:duramen.sock apples 30 --map prices
    $ duramen watch --server unix:duramen.sock --map prices --start current --count 1
    $ duramen watch --server unix:duramen.sock --map prices --start 0 --count 1 --json

A line has the number of the change, `put` or `delete`, the key, and the new value. Pairs of the
beginning have `pair` there. With --json there is the old value too.";

/// How long one call waits for changes.
const PATIENCE: Duration = Duration::from_secs(1);

/// Print the changes of a map as they are made
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Watch {
    #[command(flatten)]
    place: PlaceArguments,

    #[command(flatten)]
    map: MapArguments,

    #[command(flatten)]
    range: RangeArguments,

    /// Where to begin: next (change), or on a server also current (the pairs, then changes), earliest (change that is kept), or
    /// the number of a change to go on after
    #[arg(long, value_name = "PLACE", default_value = "next", value_parser = start)]
    start: WatchStart,

    /// End after so many lines
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,

    #[command(flatten)]
    notation: NotationArguments,
}

fn start(text: &str) -> Result<WatchStart, String> {
    match text {
        "next" => Ok(WatchStart::Next),
        "current" => Ok(WatchStart::Current),
        "earliest" => Ok(WatchStart::Earliest),
        number => match number.parse() {
            Ok(number) => Ok(WatchStart::After(number)),
            Err(_) => Err("not next, current, earliest or the number of a change".into()),
        },
    }
}

/// What a line tells.
struct Line<'a> {
    number: Option<u64>,
    key: &'a [u8],
    old: Option<&'a [u8]>,
    new: Option<&'a [u8]>,
}

impl Watch {
    pub fn run(self, output: &mut Output) -> Outcome {
        let range = self.range.range(self.notation.notation())?;
        // A process that opens a store to read keeps writers out: nothing would ever change.
        match self.place.open_to_write()? {
            Place::Directory(store) => self.watch(&store, &range, output)?,
            Place::Server(server) => self.watch_on(&server, &range, output)?,
        }
        Ok(Exit::Done)
    }

    fn watch(&self, store: &Store, range: &KeyRange, output: &mut Output) -> Outcome<()> {
        if self.start != WatchStart::Next {
            let message = "a directory tells of the changes that are made from now on";
            return Err(Failure::wrong_call(message).hint("a server keeps changes: watch with --server"));
        }
        let map = self.map.existing(store)?;
        let mut changes = store.changes(ChangesFrom::Now)?;
        changes.only(&[&map])?;
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            let Some(commit) = changes.next(PATIENCE)? else {
                continue;
            };
            for change in &commit.changes {
                if left == 0 || !range.contains(&change.key) {
                    continue;
                }
                self.print(
                    &Line {
                        number: Some(commit.number),
                        key: &change.key,
                        old: change.old.as_deref(),
                        new: change.new.as_deref(),
                    },
                    output,
                )?;
                left -= 1;
            }
        }
        Ok(())
    }

    fn watch_on(&self, server: &Server, range: &KeyRange, output: &mut Output) -> Outcome<()> {
        let map = server.client.map(server.map_name(&self.map)?);
        let mut left = self.count.unwrap_or(u64::MAX);
        let mut watch = server.wait(map.watch(range.keys(), self.start))?;
        while left > 0
            && let Some(watched) = server.next(watch.next())?
        {
            match &watched {
                Watched::Pair(pair) => {
                    let (number, old) = (None, None);
                    let (key, new) = (&pair.key[..], Some(&pair.value[..]));
                    self.print(&Line { number, key, old, new }, output)?;
                }
                Watched::Complete => continue,
                Watched::Changed(change) => self.print(
                    &Line {
                        number: Some(change.number),
                        key: &change.key,
                        old: change.old.as_deref(),
                        new: change.new.as_deref(),
                    },
                    output,
                )?,
            }
            left -= 1;
        }
        Ok(())
    }

    fn print(&self, line: &Line<'_>, output: &mut Output) -> Outcome<()> {
        let notation = self.notation.notation();
        let shown = |bytes: Option<&[u8]>| bytes.map(|bytes| notation.show(bytes).to_string());
        if output.is_json {
            let (key, old, new) = (shown(Some(line.key)), shown(line.old), shown(line.new));
            output.json(&match line.number {
                Some(number) => json!({"number": number, "key": key, "old": old, "new": new}),
                None => json!({"key": key, "value": new}),
            })?;
        } else {
            let number = line.number.map_or_else(String::new, |number| number.to_string());
            let what = match (line.number, line.new) {
                (None, _) => "pair",
                (Some(_), Some(_)) => "put",
                (Some(_), None) => "delete",
            };
            let (key, new) = (notation.show(line.key), shown(line.new).unwrap_or_default());
            output.line(format_args!("{number}\t{what}\t{key}\t{new}"))?;
        }
        output.flush()?;
        Ok(())
    }
}
