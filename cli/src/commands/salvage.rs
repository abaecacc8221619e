//! `duramen salvage`: copies the readable content of a damaged store, topics and trees included, into a new store, and lists
//! what was lost.
//!
//! It reads everything with system calls, page by page, and skips and notes what is unreadable. It writes the new store
//! in batches, in a directory beside the target. It closes the store, which makes it durable, and gives it its name at last: half
//! a store never looks like a whole one.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;
use duramen::topic::{self, SavedTopics};
use duramen::tree::{self, SavedTrees};
use duramen::{Batch, Durability, Lost, Map, Options, Snapshot, Store};
use serde_json::json;
use tempfile::TempDir;

use crate::exit::{Exit, Failure, Outcome};
use crate::opening::StoreArguments;
use crate::output::{Output, say};
use crate::progress::Meter;
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  Copy what can be read of a damaged store, and see what could not:
    $ duramen salvage shop rest
    $ duramen check rest
  What was lost, for a script:
    $ duramen salvage shop rest-2 --json

Exit code 5 when anything was lost; the new store is whole, and has all the rest. It has its name
once it is whole; until then it is TARGET.unfinished. The damaged store is not changed. Topics go
on where they were, with their offsets, groups and publishers.
Messages that were lost are missing between the others, and readers that come to such a gap are
told so; a group of which something was lost delivers messages again, those too that were
acknowledged. A tree of which something was lost keeps the nodes that can be read, and no
earlier revisions.";

/// Maximum number of pairs in a batch, chosen for the same reason as in `load`.
const BATCH_PAIRS_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Values of at least this length are written on their own, because a batch would hold a copy.
const LONE_VALUE_BYTES: usize = 1 << 20;

/// Copy what can be read of a damaged store into a new one
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Salvage {
    #[command(flatten)]
    store: StoreArguments,

    /// Directory of the new store: missing or empty
    target: PathBuf,
}

impl Salvage {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = self.store.open_to_salvage()?;
        let lost = Lost::new();
        let snapshot = store.snapshot()?;
        let mut copying = Copying::into(Target::make(&self.target)?);
        let mut maps = snapshot.salvage_maps(&lost)?;
        let topics = copying.copy_topics(&snapshot, &mut maps, &lost)?;
        // Triggers of trees need their topics.
        let trees = copying.copy_trees(&snapshot, &mut maps, &lost)?;
        for map in &maps {
            copying.copy(&snapshot, map, &lost)?;
        }
        let pairs = copying.finish()?;
        let lost = self.all_lost(&store, &lost, topics.lost.iter().chain(&trees.lost));
        let copied = Copied {
            maps: maps.len() as u64,
            pairs,
            topics,
            trees,
        };
        self.report(&copied, &lost, output)?;
        Ok(if lost.is_empty() { Exit::Done } else { Exit::Damaged })
    }

    /// Lists what was unreadable, and the checker's further findings. Reading alone cannot notice a page that another
    /// page overwrote.
    fn all_lost<'a>(&self, store: &Store, lost: &Lost, of_layers: impl Iterator<Item = &'a String>) -> Vec<String> {
        let mut all = lost.list();
        let problems = match store.check(&mut |_| ()) {
            Ok(report) => report.problems,
            Err(error) => vec![format!("the check: {error}")],
        };
        let is_new = |problem: &String| !all.iter().any(|line| problem.contains(line.as_str()));
        let more: Vec<String> = problems.into_iter().filter(is_new).collect();
        all.extend(more);
        all.extend(of_layers.cloned());
        all
    }

    fn report(&self, copied: &Copied, lost: &[String], output: &mut Output) -> Outcome<()> {
        let Copied {
            maps,
            pairs,
            topics,
            trees,
        } = copied;
        if output.is_json {
            let (from, to) = (&self.store.directory, &self.target);
            return output.json(&json!({
                "from": from.display().to_string(),
                "to": to.display().to_string(),
                "maps": maps,
                "pairs": pairs,
                "topics": topics.topics,
                "messages": topics.messages,
                "groups": topics.groups,
                "trees": trees.trees,
                "nodes": trees.nodes,
                "lost": lost,
            }));
        }
        for line in lost {
            output.line(format_args!("lost: {line}"))?;
        }
        let mut what = format!("{} with {}", counted(*maps, "map"), counted(*pairs, "pair"));
        if topics.topics > 0 {
            let (messages, groups) = (counted(topics.messages, "message"), counted(topics.groups, "group"));
            what += &format!(" and {} with {messages} and {groups}", counted(topics.topics, "topic"));
        }
        if trees.trees > 0 {
            what += &format!(
                " and {} with {}",
                counted(trees.trees, "tree"),
                counted(trees.nodes, "node")
            );
        }
        say(format_args!("copied {what} to {}", self.target.display()));
        Ok(())
    }
}

/// The content of the new store.
struct Copied {
    maps: u64,
    pairs: u64,
    topics: SavedTopics,
    trees: SavedTrees,
}

/// The new store, under another name until it is whole.
struct Target {
    store: Store,
    /// Where it is made: removed, unless the store is whole. No other user may read it, because it holds what the damaged store holds.
    making: TempDir,
    /// Where it is once it is whole.
    directory: PathBuf,
}

impl Target {
    /// Creates the new store. The directory must be missing or empty.
    fn make(directory: &Path) -> Outcome<Target> {
        if directory.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            let message = format!("{} is not empty; nothing was copied", directory.display());
            return Err(Failure::wrong_call(message).hint("name a directory that is missing or empty"));
        }
        let Some(name) = directory.file_name() else {
            let message = format!("{} does not end with a name; nothing was copied", directory.display());
            return Err(Failure::wrong_call(message).hint("name a directory that is missing or empty"));
        };
        let parent = parent(directory);
        let directory = parent.join(name);
        let mut unfinished = name.to_os_string();
        unfinished.push(".unfinished");
        let making = tempfile::Builder::new()
            .prefix(&unfinished)
            .rand_bytes(0)
            .tempdir_in(parent)
            .map_err(|error| {
                let failure = Failure::of_io("making the new store", &error);
                match error.kind() {
                    ErrorKind::AlreadyExists => failure.hint(
                        "a salvage is making a store there, or was killed; remove it when none runs, or name another \
                         directory",
                    ),
                    _ => failure,
                }
            })?;
        // At the end it would be too late to learn that the directory cannot be replaced: a file system may be mounted there.
        if directory.exists() {
            fs::remove_dir(&directory).map_err(|error| {
                let message = format!(
                    "{} cannot be replaced: {error}; nothing was copied",
                    directory.display()
                );
                Failure::wrong_call(message).hint("name a directory that is missing")
            })?;
        }
        let store = Options::new().durability(Durability::Written).open(making.path())?;
        Ok(Target {
            store,
            making,
            directory,
        })
    }

    /// Gives the store its name.
    fn finish(self) -> Outcome<()> {
        self.store.close()?;
        let made = self.making.keep();
        let naming = format!("naming {}", self.directory.display());
        fs::rename(&made, &self.directory).map_err(|error| {
            let hint = format!("the new store is whole: it is {}, and any name will do", made.display());
            Failure::of_io(&naming, &error).hint(hint)
        })?;
        File::open(parent(&self.directory))
            .and_then(|parent| parent.sync_all())
            .map_err(|error| Failure::of_io(&naming, &error))
    }
}

fn parent(directory: &Path) -> &Path {
    match directory.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// A copy in progress.
struct Copying {
    target: Target,
    batch: Batch,
    batch_bytes: usize,
    /// Number of pairs in committed batches.
    pairs: u64,
    meter: Meter,
}

impl Copying {
    fn into(target: Target) -> Copying {
        Copying {
            target,
            batch: Batch::new(),
            batch_bytes: 0,
            pairs: 0,
            meter: Meter::new("copying", "pairs"),
        }
    }

    /// Copies topics, and removes the maps that belong to topics from `maps`.
    fn copy_topics(&self, snapshot: &Snapshot, maps: &mut Vec<Map>, lost: &Lost) -> Outcome<SavedTopics> {
        let mut meter = Meter::new("copying", "messages");
        let mut progress = |messages| meter.update(messages, 0);
        Ok(topic::salvage(snapshot, maps, &self.target.store, lost, &mut progress)?)
    }

    /// Copies trees, and removes the maps of projections that are made again from `maps`.
    fn copy_trees(&self, snapshot: &Snapshot, maps: &mut Vec<Map>, lost: &Lost) -> Outcome<SavedTrees> {
        let mut meter = Meter::new("copying", "nodes");
        let mut progress = |nodes| meter.update(nodes, 0);
        Ok(tree::salvage(snapshot, maps, &self.target.store, lost, &mut progress)?)
    }

    fn copy(&mut self, snapshot: &Snapshot, map: &Map, lost: &Lost) -> Outcome<()> {
        let to = self.target.store.map(map.name())?;
        let mut walk = snapshot.salvage(map, lost)?;
        while let Some((key, value)) = walk.next()? {
            if value.len() >= LONE_VALUE_BYTES {
                self.commit()?;
                to.put(key, &value)?;
                self.pairs += 1;
                continue;
            }
            self.batch.put(&to, key, &value)?;
            self.batch_bytes += key.len() + value.len();
            if self.batch.len() >= BATCH_PAIRS_MAX || self.batch_bytes >= BATCH_BYTES_MAX {
                self.commit()?;
            }
        }
        self.commit()
    }

    fn commit(&mut self) -> Outcome<()> {
        let pairs = self.batch.len() as u64;
        self.target.store.write(std::mem::take(&mut self.batch))?;
        self.batch_bytes = 0;
        self.pairs += pairs;
        self.meter.update(self.pairs, self.pairs);
        Ok(())
    }

    fn finish(self) -> Outcome<u64> {
        self.target.finish()?;
        Ok(self.pairs)
    }
}
