//! `duramen check`: reads and verifies everything in a store.

use clap::Args;
use serde_json::json;

use crate::exit::{Exit, Outcome};
use crate::output::Output;
use crate::place::{Place, PlaceArguments};
use crate::progress::Meter;
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  Verify every checksum, the order of keys, the counts, and what every page is used for:
    $ duramen check shop
  In a script:
    $ duramen check shop --json
    $ duramen check shop && duramen copy shop backup

Exit code 1 when there are problems, 5 when the damage is such that the store cannot even be
opened. It changes nothing.";

/// Read and verify everything in a store
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Check {
    #[command(flatten)]
    place: PlaceArguments,
}

impl Check {
    pub fn run(self, output: &mut Output) -> Outcome {
        let place = self.place.with_patience(self.place.open_to_read()?)?;
        let (problems, pairs, read) = match &place {
            Place::Directory(store) => {
                let mut meter = Meter::new("checking", "pages");
                let report = store.check(&mut |progress| meter.update(progress.done, progress.total))?;
                (report.problems, report.pairs, Some((report.pages, report.records)))
            }
            Place::Server(server) => {
                let report = server.wait(server.client.check())?;
                (report.problems, report.pairs, None)
            }
        };
        if output.is_json {
            let mut object = json!({"sound": problems.is_empty(), "problems": problems, "pairs": pairs});
            if let Some((pages, records)) = read {
                object["pages"] = json!(pages);
                object["records"] = json!(records);
            }
            output.json(&object)?;
        } else {
            print(&problems, pairs, read, output)?;
        }
        Ok(if problems.is_empty() {
            Exit::Done
        } else {
            Exit::NotFound
        })
    }
}

/// Prints the report. A server does not tell the numbers of pages and log records that it read.
fn print(problems: &[String], pairs: u64, read: Option<(u64, u64)>, output: &mut Output) -> Outcome<()> {
    for problem in problems {
        output.line(problem)?;
    }
    let verdict = match problems.len() as u64 {
        0 => "sound".to_string(),
        found => counted(found, "problem"),
    };
    let pairs = counted(pairs, "pair");
    match read {
        Some((pages, records)) => output.line(format_args!(
            "{verdict}: read {} with {pairs}, and {}",
            counted(pages, "page"),
            counted(records, "log record"),
        )),
        None => output.line(format_args!("{verdict}: read {pairs}")),
    }
}
