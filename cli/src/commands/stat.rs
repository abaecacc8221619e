//! `duramen stat`: shows what a store consists of.

use clap::Args;
use duramen::topic::{Holder, Topics};
use duramen::{ProcessStatistics, Statistics};
use serde_json::{Value, json};

use super::topics::{holder_object, holder_text};
use crate::exit::{Exit, Outcome};
use crate::output::Output;
use crate::place::{Place, PlaceArguments};
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
    place: PlaceArguments,
}

impl Stat {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = match self.place.open_to_read()? {
            Place::Directory(store) => store,
            Place::Server(server) => {
                let statistics = server.wait(server.client.statistics())?;
                return print_of_server(&statistics, output);
            }
        };
        let statistics = store.stat()?;
        let holders = match Topics::exist(&store)? {
            true => Topics::open(&store)?.holders()?,
            false => Vec::new(),
        };
        if output.is_json {
            output.json(&to_json(&statistics, &holders))?;
        } else {
            let maps = statistics.maps.iter().map(|map| (&map.name[..], map.pairs));
            print_maps(&maps.collect::<Vec<_>>(), output)?;
            print_figures(&statistics, output)?;
            print_processes(&statistics, output)?;
            print_holders(&holders, output)?;
        }
        Ok(Exit::Done)
    }
}

/// Prints what a server tells of its store: not the pages, the processes, and what can block publishers.
fn print_of_server(statistics: &duramen_client::Statistics, output: &mut Output) -> Outcome {
    let maps = statistics.maps.iter().map(|map| (&map.map[..], map.pairs));
    let maps: Vec<_> = maps.collect();
    if output.is_json {
        output.json(&json!({
            "maps": maps_object(&maps),
            "commit": statistics.newest_commit,
            "synced_commit": statistics.synced_commit,
            "data_bytes": statistics.data_bytes,
            "log_bytes": statistics.log_bytes,
            "unfolded_operations": statistics.unfolded_operations,
        }))?;
        return Ok(Exit::Done);
    }
    print_maps(&maps, output)?;
    let figures = [
        ("data file", bytes(statistics.data_bytes)),
        ("log files", bytes(statistics.log_bytes)),
        ("newest commit", grouped(statistics.newest_commit)),
        ("newest synced", grouped(statistics.synced_commit)),
        ("only in the log", counted(statistics.unfolded_operations, "operation")),
    ];
    print_lines(&figures, output)?;
    Ok(Exit::Done)
}

fn maps_object(maps: &[(&str, u64)]) -> Vec<Value> {
    let object = |(map, pairs): &(&str, u64)| json!({"map": map, "pairs": pairs});
    maps.iter().map(object).collect()
}

fn print_maps(maps: &[(&str, u64)], output: &mut Output) -> Outcome<()> {
    let widest = maps.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    output.line(format_args!("{}", counted(maps.len() as u64, "map")))?;
    for (name, pairs) in maps {
        output.line(format_args!("  {name:widest$}  {:>14}", counted(*pairs, "pair")))?;
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
    print_lines(&figures, output)
}

fn print_lines(figures: &[(&str, String)], output: &mut Output) -> Outcome<()> {
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
    let maps = statistics.maps.iter().map(|map| (&map.name[..], map.pairs));
    let maps = maps_object(&maps.collect::<Vec<_>>());
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
