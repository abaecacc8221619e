//! `duramen check`: reads and verifies everything in a store.

use clap::Args;
use duramen::CheckReport;
use serde_json::json;

use crate::exit::{Exit, Outcome};
use crate::opening::StoreArguments;
use crate::output::Output;
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
    store: StoreArguments,
}

impl Check {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = self.store.open_to_read()?;
        let mut meter = Meter::new("checking", "pages");
        let report = store.check(&mut |progress| meter.update(progress.done, progress.total))?;
        drop(meter);
        if output.is_json {
            output.json(&json!({
                "sound": report.problems.is_empty(),
                "problems": report.problems,
                "pages": report.pages,
                "pairs": report.pairs,
                "records": report.records,
            }))?;
        } else {
            print(&report, output)?;
        }
        Ok(if report.problems.is_empty() {
            Exit::Done
        } else {
            Exit::NotFound
        })
    }
}

fn print(report: &CheckReport, output: &mut Output) -> Outcome<()> {
    for problem in &report.problems {
        output.line(problem)?;
    }
    let verdict = match report.problems.len() as u64 {
        0 => "sound".to_string(),
        found => counted(found, "problem"),
    };
    output.line(format_args!(
        "{verdict}: read {} with {}, and {}",
        counted(report.pages, "page"),
        counted(report.pairs, "pair"),
        counted(report.records, "log record"),
    ))
}
