//! Last chapter: reads and verifies everything, and closes the store.

use duramen::Store;
use serde_json::json;

use super::source;
use super::stage::Stage;
use crate::exit::{Failure, Outcome};
use crate::text::{bytes, grouped};

const SOURCE: &str = include_str!("checking.rs");

pub fn check(stage: &mut Stage<'_>, store: Store) -> Outcome<()> {
    let about = "After all that: every checksum, the order of all keys, the counts, and what each page is used for.";
    stage.chapter("Check", about)?;
    shown! { stage;
        let report = store.check(&mut |_progress| {})?;
    }
    let (pages, pairs, problems) = (grouped(report.pages), grouped(report.pairs), report.problems.len());
    stage.result(format!("{problems} problems in {pages} pages with {pairs} pairs"))?;
    stage.figure(
        "check",
        json!({"problems": report.problems, "pages": report.pages, "pairs": report.pairs}),
    );
    shown! { stage;
        let statistics = store.stat()?;
    }
    stage.result(format!(
        "{} of data, commit {}",
        bytes(statistics.data_bytes),
        grouped(statistics.commit)
    ))?;
    shown! { stage;
        store.close()?;
    }
    match report.problems.first() {
        None => Ok(()),
        Some(problem) => Err(Failure::damaged(format!(
            "the check found a problem ({problem}): this is a bug in Duramen"
        ))),
    }
}
