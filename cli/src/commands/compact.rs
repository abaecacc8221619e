//! `duramen compact`: rewrites a store densely and gives space back to the file system.

use clap::Args;
use serde_json::json;

use crate::exit::{Exit, Outcome};
use crate::output::{Output, say};
use crate::place::{Place, PlaceArguments};
use crate::progress::Meter;
use crate::text::bytes;

const EXAMPLES: &str = r"Examples:
  After much was deleted:
    $ duramen compact shop
  The sizes before and after, for a program:
    $ duramen compact shop --json

Stores reuse freed space by themselves; this is for giving it back. It needs room for a second
copy of the data meanwhile. Killed half way, it loses nothing.";

/// Rewrite a store densely and give space back to the file system
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Compact {
    #[command(flatten)]
    place: PlaceArguments,
}

impl Compact {
    pub fn run(self, output: &mut Output) -> Outcome {
        let place = self.place.with_patience(self.place.open_to_write()?)?;
        let (before, after) = match &place {
            Place::Directory(store) => {
                let mut meter = Meter::new("compacting", "pairs");
                let compaction = store.compact(&mut |progress| meter.update(progress.done, progress.total))?;
                (compaction.bytes_before, compaction.bytes_after)
            }
            Place::Server(server) => {
                let compaction = server.wait(server.client.compact())?;
                (compaction.bytes_before, compaction.bytes_after)
            }
        };
        place.close()?;
        if output.is_json {
            output.json(&json!({"bytes_before": before, "bytes_after": after}))?;
        } else {
            say(format_args!("{} before, {} after", bytes(before), bytes(after)));
        }
        Ok(Exit::Done)
    }
}
