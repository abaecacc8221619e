//! `duramen scan`: prints pairs in key order, one a line.

use std::io::Write;

use clap::Args;
use duramen::{Cursor, Store};
use duramen_client::Range;
use serde_json::json;

use crate::exit::{Exit, Outcome};
use crate::opening::{KeyRange, MapArguments, NotationArguments, RangeArguments};
use crate::output::Output;
use crate::place::{Place, PlaceArguments, Server};
use crate::text::Notation;

const EXAMPLES: &str = r"Examples:
  All pairs of a map, one a line, key and value with a tab between:
    $ duramen scan shop --map stock
  The first ten, or the last ten, of those that begin with a text:
    $ duramen scan shop --map orders --prefix order/2025- --limit 10
    $ duramen scan shop --map orders --prefix order/2025- --limit 10 --reverse
  A range, as JSON, one object a line:
    $ duramen scan shop --map orders --from order/2025-01 --to order/2025-02 --json
  How many keys:
    $ duramen scan shop --map stock --keys-only | wc -l";

/// Print pairs in key order
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Scan {
    #[command(flatten)]
    place: PlaceArguments,

    #[command(flatten)]
    map: MapArguments,

    #[command(flatten)]
    range: RangeArguments,

    /// Print at most this many pairs
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,

    /// From the last key to the first
    #[arg(long)]
    reverse: bool,

    /// Print keys without their values
    #[arg(long)]
    keys_only: bool,

    #[command(flatten)]
    notation: NotationArguments,
}

impl Scan {
    pub fn run(self, output: &mut Output) -> Outcome {
        let range = self.range.range(self.notation.notation())?;
        match self.place.open_to_read()? {
            Place::Directory(store) => self.scan(&store, &range, output),
            Place::Server(server) => self.scan_on(&server, &range, output),
        }
    }

    fn scan_on(&self, server: &Server, range: &KeyRange, output: &mut Output) -> Outcome {
        let map = server.client.map(server.map_name(&self.map)?);
        // A range without a limit has the limit 0 there.
        let mut range = Range::new(range.keys()).limit(self.limit.map_or(0, |limit| limit.max(1)));
        if self.reverse {
            range = range.reverse();
        }
        if self.keys_only {
            range = range.keys_only();
        }
        let mut pairs = server.wait(map.range(range))?;
        let mut left = self.limit.unwrap_or(u64::MAX);
        while left > 0
            && let Some(pair) = server.next(pairs.next())?
        {
            let value = (!self.keys_only).then_some(&pair.value[..]);
            print(output, self.notation.notation(), &pair.key, value)?;
            left -= 1;
        }
        Ok(Exit::Done)
    }

    fn scan(&self, store: &Store, range: &KeyRange, output: &mut Output) -> Outcome {
        let map = self.map.existing(store)?;
        let snapshot = store.snapshot()?;
        let mut cursor = snapshot.range(&map, range.bounds())?;
        if self.reverse {
            cursor.seek_end();
        }
        for _ in 0..self.limit.unwrap_or(u64::MAX) {
            if !self.print_next(&mut cursor, output)? {
                break;
            }
        }
        Ok(Exit::Done)
    }

    /// Prints one pair. Returns `false` at the end.
    fn print_next(&self, cursor: &mut Cursor<'_>, output: &mut Output) -> Outcome<bool> {
        let pair = if self.reverse { cursor.prev()? } else { cursor.next()? };
        let Some((key, value)) = pair else { return Ok(false) };
        let value = (!self.keys_only).then_some(&*value);
        print(output, self.notation.notation(), key, value)?;
        Ok(true)
    }
}

fn print(output: &mut Output, notation: Notation, key: &[u8], value: Option<&[u8]>) -> Outcome<()> {
    if output.is_json {
        let key = notation.show(key);
        return match value {
            Some(value) => output.json(&json!({"key": key, "value": notation.show(value)})),
            None => output.json(&json!({"key": key})),
        };
    }
    notation.write(output, key)?;
    if let Some(value) = value {
        output.write_all(b"\t")?;
        notation.write(output, value)?;
    }
    Ok(output.write_all(b"\n")?)
}
