//! `duramen copy`: makes a consistent, densely filled copy of a store.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::exit::{Exit, Outcome};
use crate::opening::StoreArguments;
use crate::output::{Output, say};
use crate::progress::Meter;

const EXAMPLES: &str = r"Examples:
  Copy a store; the copy is a store of its own, and durable when the command ends:
    $ duramen copy shop backup
  Check the copy as well:
    $ duramen copy shop backup-2 && duramen check backup-2

Delete a copy that failed.";

/// Copy a store into another directory
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Copy {
    #[command(flatten)]
    store: StoreArguments,

    /// Directory of the copy: missing or empty
    target: PathBuf,
}

impl Copy {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = self.store.open_to_read()?;
        let mut meter = Meter::new("copying", "pairs");
        let mut pairs = 0;
        store.copy(&self.target, &mut |progress| {
            pairs = progress.done;
            meter.update(progress.done, progress.total);
        })?;
        drop(meter);
        let (from, to) = (
            self.store.directory.display().to_string(),
            self.target.display().to_string(),
        );
        if output.is_json {
            output.json(&json!({"from": from, "to": to}))?;
        } else {
            say(format_args!("copied {from} to {to}"));
        }
        Ok(Exit::Done)
    }
}
