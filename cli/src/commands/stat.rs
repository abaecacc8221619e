//! `duramen stat`: shows what a store consists of.

use clap::Args;
use duramen::topic::{Holder, Topics};
use duramen::{ProcessStatistics, Statistics, Store};
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
        let (topics, holders) = match Topics::exist(&store)? {
            true => {
                let topics = Topics::open(&store)?;
                (topics.list()?.len() as u64, topics.holders()?)
            }
            false => Default::default(),
        };
        let content = Content {
            maps: statistics
                .maps
                .iter()
                .map(|map| (map.name.clone(), map.pairs))
                .collect(),
            topics,
            trees: trees_of(&store)?,
            checkpoints: store.checkpoints().list()?.len() as u64,
        };
        if output.is_json {
            output.json(&to_json(&content, &statistics, &holders))?;
        } else {
            content.print(output)?;
            print_figures(&statistics, output)?;
            print_processes(&statistics, output)?;
            print_holders(&holders, output)?;
        }
        Ok(Exit::Done)
    }
}

/// Prints what a server tells of its store: not the pages, the processes, and what can block publishers.
fn print_of_server(statistics: &duramen_client::Statistics, output: &mut Output) -> Outcome {
    let tree = |tree: &duramen_client::TreeStatistics| (tree.tree.clone(), tree.nodes, tree.revision);
    let content = Content {
        maps: statistics.maps.iter().map(|map| (map.map.clone(), map.pairs)).collect(),
        topics: statistics.topics,
        trees: statistics.trees.iter().map(tree).collect(),
        checkpoints: statistics.checkpoints,
    };
    if output.is_json {
        output.json(&json!({
            "maps": content.maps_object(),
            "topics": content.topics,
            "trees": content.trees_object(),
            "checkpoints": content.checkpoints,
            "commit": statistics.newest_commit,
            "synced_commit": statistics.synced_commit,
            "data_bytes": statistics.data_bytes,
            "log_bytes": statistics.log_bytes,
            "unfolded_operations": statistics.unfolded_operations,
        }))?;
        return Ok(Exit::Done);
    }
    content.print(output)?;
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

/// What a store holds.
struct Content {
    /// Names, and numbers of pairs.
    maps: Vec<(String, u64)>,
    topics: u64,
    /// Names, numbers of nodes, and newest revisions.
    trees: Vec<(String, u64, u64)>,
    checkpoints: u64,
}

impl Content {
    fn maps_object(&self) -> Vec<Value> {
        let object = |(map, pairs): &(String, u64)| json!({"map": map, "pairs": pairs});
        self.maps.iter().map(object).collect()
    }

    fn trees_object(&self) -> Vec<Value> {
        let object =
            |(tree, nodes, revision): &(String, u64, u64)| json!({"tree": tree, "nodes": nodes, "revision": revision});
        self.trees.iter().map(object).collect()
    }

    fn print(&self, output: &mut Output) -> Outcome<()> {
        let widest = |names: &mut dyn Iterator<Item = &String>| names.map(|name| name.chars().count()).max();
        let width = widest(&mut self.maps.iter().map(|(name, _)| name)).unwrap_or(0);
        output.line(format_args!("{}", counted(self.maps.len() as u64, "map")))?;
        for (name, pairs) in &self.maps {
            output.line(format_args!("  {name:width$}  {:>14}", counted(*pairs, "pair")))?;
        }
        if self.topics > 0 {
            output.line(format_args!("{}", counted(self.topics, "topic")))?;
        }
        if !self.trees.is_empty() {
            output.line(format_args!("{}", counted(self.trees.len() as u64, "tree")))?;
        }
        let width = widest(&mut self.trees.iter().map(|(name, ..)| name)).unwrap_or(0);
        for (name, nodes, revision) in &self.trees {
            let (nodes, revision) = (counted(*nodes, "node"), grouped(*revision));
            output.line(format_args!("  {name:width$}  {nodes:>14}, revision {revision}"))?;
        }
        if self.checkpoints > 0 {
            output.line(format_args!("{}", counted(self.checkpoints, "checkpoint")))?;
        }
        Ok(())
    }
}

fn trees_of(store: &Store) -> Outcome<Vec<(String, u64, u64)>> {
    let mut all = Vec::new();
    let Some(trees) = super::tree::trees(store)? else {
        return Ok(all);
    };
    for name in trees.list()? {
        let Some(tree) = trees.get(&name)? else { continue };
        let view = tree.view()?;
        all.push((name, view.count_range([], None)?, view.revision()));
    }
    Ok(all)
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
fn to_json(content: &Content, statistics: &Statistics, holders: &[(String, Holder)]) -> Value {
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
        "maps": content.maps_object(),
        "topics": content.topics,
        "trees": content.trees_object(),
        "checkpoints": content.checkpoints,
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
