//! `duramen stat`: shows what a store consists of.

use clap::Args;
use duramen::topic::{Holder, Topics};
use duramen::{ProcessStatistics, Statistics};
use serde_json::{Value, json};

use super::topics::{holder_object, holder_text};
use crate::exit::{Exit, Outcome};
use crate::opening::StoreArguments;
use crate::output::Output;
use crate::text::{bytes, counted, grouped};

const EXAMPLES: &str = r#"Examples:
  Maps, sizes, and how much of the log waits to be folded into the data file:
    $ duramen stat shop
  The same for a program:
    $ duramen stat shop --json
    $ duramen stat shop --json | grep -o '"data_bytes":[0-9]*'"#;

/// Show what a store is made of
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Stat {
    #[command(flatten)]
    store: StoreArguments,
}

impl Stat {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = self.store.open_to_read()?;
        let statistics = store.stat()?;
        let holders = match Topics::exist(&store)? {
            true => Topics::open(&store)?.holders()?,
            false => Vec::new(),
        };
        if output.is_json {
            output.json(&to_json(&statistics, &holders))?;
        } else {
            print_maps(&statistics, output)?;
            print_figures(&statistics, output)?;
            print_processes(&statistics, output)?;
            print_holders(&holders, output)?;
        }
        Ok(Exit::Done)
    }
}

fn print_maps(statistics: &Statistics, output: &mut Output) -> Outcome<()> {
    let widest = statistics
        .maps
        .iter()
        .map(|map| map.name.chars().count())
        .max()
        .unwrap_or(0);
    output.line(format_args!("{}", counted(statistics.maps.len() as u64, "map")))?;
    for map in &statistics.maps {
        let name = &map.name;
        output.line(format_args!("  {name:widest$}  {:>14}", counted(map.pairs, "pair")))?;
    }
    Ok(())
}

fn print_figures(statistics: &Statistics, output: &mut Output) -> Outcome<()> {
    let of_pages = |pages: u64| bytes(pages * statistics.page_bytes);
    let free = format!(
        "{} free, {} replaced but not free yet",
        of_pages(statistics.free_pages),
        of_pages(statistics.retired_pages)
    );
    let figures = [
        ("data file", format!("{} ({free})", bytes(statistics.data_bytes))),
        ("log files", bytes(statistics.log_bytes)),
        ("tree", counted(statistics.depth as u64, "level")),
        ("newest commit", grouped(statistics.commit)),
        ("newest synced", grouped(statistics.synced_commit)),
        ("in the tree up to", grouped(statistics.base_commit)),
        (
            "only in the log",
            format!(
                "{}, {}",
                counted(statistics.unfolded_operations, "operation"),
                bytes(statistics.unfolded_bytes)
            ),
        ),
    ];
    for (name, figure) in figures {
        output.line(format_args!("{name:<18} {figure}"))?;
    }
    Ok(())
}

/// Returns the processes that have the store open, except this one.
fn others(statistics: &Statistics) -> impl Iterator<Item = &ProcessStatistics> {
    statistics.processes.iter().filter(|process| !process.is_this)
}

fn print_processes(statistics: &Statistics, output: &mut Output) -> Outcome<()> {
    let count = others(statistics).count() as u64;
    output.line(format_args!("{:<18} {}", "open in", counted_processes(count)))?;
    for process in others(statistics) {
        let held = counted(process.snapshots as u64, "snapshot");
        let (seconds, version) = (process.age.as_secs(), &process.version);
        output.line(format_args!(
            "  process {:<8} for {seconds} s, {held}, version {version}",
            process.process
        ))?;
    }
    Ok(())
}

/// Prints what can block publishers, if anything can.
fn print_holders(holders: &[(String, Holder)], output: &mut Output) -> Outcome<()> {
    for (topic, holder) in holders {
        let what = match holder.holds_now() {
            true => "holds back",
            false => "may hold back",
        };
        output.line(format_args!(
            "{what:<18} publishers of {topic}: {}",
            holder_text(holder)
        ))?;
    }
    Ok(())
}

fn counted_processes(count: u64) -> String {
    match count {
        0 => "no process".into(),
        1 => "1 process".into(),
        more => format!("{more} processes"),
    }
}

/// Formats the statistics as JSON. Contains only facts about the store on disk; counters of this short-lived process
/// are not among them.
fn to_json(statistics: &Statistics, holders: &[(String, Holder)]) -> Value {
    let maps: Vec<Value> = statistics
        .maps
        .iter()
        .map(|map| json!({"map": map.name, "pairs": map.pairs}))
        .collect();
    let processes: Vec<Value> = others(statistics)
        .map(|process| {
            json!({
                "process": process.process,
                "open_seconds": process.age.as_secs(),
                "version": process.version,
                "snapshots": process.snapshots,
            })
        })
        .collect();
    let holder = |(topic, holder): &(String, Holder)| {
        let mut object = holder_object(holder);
        object["topic"] = json!(topic);
        object
    };
    json!({
        "maps": maps,
        "processes": processes,
        "holders": holders.iter().map(holder).collect::<Vec<_>>(),
        "commit": statistics.commit,
        "synced_commit": statistics.synced_commit,
        "base_commit": statistics.base_commit,
        "page_bytes": statistics.page_bytes,
        "pages": statistics.pages,
        "free_pages": statistics.free_pages,
        "retired_pages": statistics.retired_pages,
        "depth": statistics.depth,
        "data_bytes": statistics.data_bytes,
        "log_bytes": statistics.log_bytes,
        "unfolded_operations": statistics.unfolded_operations,
        "unfolded_bytes": statistics.unfolded_bytes,
    })
}
