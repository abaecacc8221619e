//! The workloads, one file each, and their shared parts: the context of a run and the record of its phases.
//!
//! A workload runs for one peer in its own process. It makes its data from the seed and runs its phases through a
//! [`Recorder`]. It verifies everything it reads, reads back everything it wrote after the clock, and fails on the
//! first wrong value. If the limit of the cell stopped a row, it reads back what was acknowledged by then. The
//! workloads of brokers are in `messages`, those of trees in `trees`; `docs/lab/adding-a-workload.md` says where those of clusters go.

mod backups;
mod control;
mod first;
mod held_snapshot;
mod kept_states;
mod killing;
mod loads;
mod long_values;
mod map;
mod map_mixed;
mod mega;
mod members;
mod messages;
mod open;
mod overwrites;
mod queue;
mod reads;
mod redb_table;
mod scarce_memory;
mod sharing;
mod sizes;
mod state;
mod state_stability;
#[cfg(test)]
mod stopped;
mod synced_puts;
#[cfg(test)]
mod tests;
mod trees;
mod ycsb;

use std::path::Path;

use anyhow::{Result, bail};

use crate::answer::Unsupported;
use crate::crew::Pace;
use crate::data::{Checker, Tally, Values};
use crate::measure::{BY_LIMIT, Record};
use crate::measure::{Done, Meter, Work};
use crate::peer::{CACHE_BYTES, Class, Driver, Peer, Setting};

pub use members::MemberArguments;
pub use messages::killed_publisher::publish_until_killed;
pub use open::write_until_killed;

/// A workload that can be run.
pub struct Workload {
    /// The name on the command line.
    pub name: &'static str,
    /// Description in a sentence.
    pub about: &'static str,
    /// The sizes or forms in which it runs: a label, which follows the name after a slash, and the number of records.
    pub variants: &'static [Variant],
    /// The classes that the workload is meant for. A peer runs in the first of them that it has.
    pub classes: &'static [Class],
    /// Whether the workload makes sense only for data that survives a close.
    pub needs_persistence: bool,
    /// Whether its measured phases are whole loads, which drivers of other languages can run in their own process.
    pub has_drivers: bool,
    /// Whether operations can be issued at a fixed rate.
    pub has_open_loop: bool,
    /// The machine resources of its cells.
    pub resources: Resources,
    /// Runs the workload.
    pub run: fn(&Context, &mut Recorder) -> Result<()>,
}

impl Workload {
    /// What most workloads have in common. Each names itself, its forms and its run.
    const USUAL: Workload = Workload {
        name: "",
        about: "",
        variants: &[],
        classes: &[Class::Written, Class::None],
        needs_persistence: false,
        has_drivers: false,
        has_open_loop: false,
        resources: Resources::USUAL,
        run: |_, _| bail!("a workload has no run of its own"),
    };
}

/// The machine resources of a cell.
#[derive(Clone, Copy)]
pub struct Resources {
    /// Cache size, for this number of records, of stores that have a cache of their own.
    pub cache_bytes: fn(usize) -> u64,
    /// Memory of a cell with this number of records, where it is limited.
    pub memory_bytes: Option<fn(usize) -> u64>,
}

impl Resources {
    /// A cache that everything fits into, and the whole memory.
    pub const USUAL: Resources = Resources {
        cache_bytes: |_| CACHE_BYTES,
        memory_bytes: None,
    };
}

/// One form of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Text after the workload's name and a slash; empty when there is only one form.
    pub label: &'static str,
    /// Records at scale 1.
    pub records: usize,
}

/// Creates a form of a workload.
const fn variant(label: &'static str, records: usize) -> Variant {
    Variant { label, records }
}

/// All workloads.
pub const ALL: &[Workload] = &[
    first::WORKLOAD,
    synced_puts::WORKLOAD,
    open::WORKLOAD,
    mega::WORKLOAD,
    sharing::WORKLOAD,
    map::WORKLOAD,
    map_mixed::WORKLOAD,
    state::WORKLOAD,
    state_stability::WORKLOAD,
    reads::WORKLOAD,
    overwrites::WORKLOAD,
    held_snapshot::WORKLOAD,
    kept_states::WORKLOAD,
    backups::WORKLOAD,
    scarce_memory::WORKLOAD,
    sizes::WORKLOAD,
    long_values::WORKLOAD,
    queue::QUEUE,
    queue::DRAIN,
    queue::EXPIRE,
    redb_table::WORKLOAD,
    ycsb::A,
    ycsb::C,
    ycsb::E,
    messages::publish::WORKLOAD,
    messages::synced_publish::WORKLOAD,
    messages::latency::WORKLOAD,
    messages::requests::WORKLOAD,
    messages::crowd::WORKLOAD,
    messages::fanout::WORKLOAD,
    messages::groups::WORKLOAD,
    messages::catch_up::WORKLOAD,
    messages::growth::WORKLOAD,
    messages::killed_publisher::WORKLOAD,
    trees::ramp::WORKLOAD,
    trees::large::LARGE,
    trees::large::CHILDREN,
    trees::large::SUBTREE,
    trees::watches::WORKLOAD,
    trees::compaction::WORKLOAD,
    trees::etcd_bench::WORKLOAD,
];

/// Does the share of one process of a workload whose processes share a store.
pub fn run_member(task: &Task, context: &Context, arguments: &MemberArguments) -> Result<()> {
    match task.workload.name {
        name if name == mega::WORKLOAD.name => mega::run_member(context, arguments),
        name if name == sharing::WORKLOAD.name => sharing::run_member(context, arguments),
        name => bail!("{name:?} has no processes of its own"),
    }
}

/// One workload in one of its forms.
#[derive(Clone, Copy)]
pub struct Task {
    /// What to run.
    pub workload: &'static Workload,
    /// The form.
    pub variant: Variant,
}

impl Task {
    /// Returns the memory that the process may have at a scale, where it is limited.
    pub fn memory_bytes(&self, scale: f64) -> Option<u64> {
        let of_records = self.workload.resources.memory_bytes?;
        Some(of_records(scaled(self.variant.records, scale)))
    }

    /// Returns the cache size at a scale, for stores that have a cache of their own.
    pub fn cache_bytes(&self, scale: f64) -> u64 {
        (self.workload.resources.cache_bytes)(scaled(self.variant.records, scale))
    }

    /// Returns the name, as on the command line.
    pub fn name(&self) -> String {
        match self.variant.label {
            "" => self.workload.name.to_string(),
            label => format!("{}/{label}", self.workload.name),
        }
    }
}

/// Returns the tasks of a name: all forms of a workload, or the form of `workload/form`.
pub fn named(name: &str) -> Result<Vec<Task>> {
    let (base, label) = name
        .split_once('/')
        .map_or((name, None), |(base, label)| (base, Some(label)));
    let Some(workload) = ALL.iter().find(|workload| workload.name == base) else {
        let known: Vec<_> = ALL.iter().map(|workload| workload.name).collect();
        bail!("there is no workload {name:?}; the workloads are {}", known.join(", "));
    };
    let is_wanted = |variant: &&Variant| label.is_none_or(|label| label.eq_ignore_ascii_case(variant.label));
    let tasks: Vec<Task> = workload
        .variants
        .iter()
        .filter(is_wanted)
        .map(|variant| Task {
            workload,
            variant: *variant,
        })
        .collect();
    if tasks.is_empty() {
        let forms: Vec<_> = workload.variants.iter().map(|variant| variant.label).collect();
        bail!("{base} has no form {name:?}; it has {}", forms.join(", "));
    }
    Ok(tasks)
}

impl Workload {
    /// Whether its rows build on commits of several operations.
    fn needs_commits_of_many(&self) -> bool {
        self.name == state::WORKLOAD.name
    }

    /// Whether it uses brokers instead of stores.
    pub fn is_of_messages(&self) -> bool {
        messages::NAMES.contains(&self.name)
    }

    /// Whether it uses trees instead of stores.
    pub fn is_of_trees(&self) -> bool {
        trees::NAMES.contains(&self.name)
    }

    /// Returns the class that a peer runs in, or why it does not run.
    pub fn class_for(&self, driver: &dyn Driver, wanted: Option<Class>) -> Result<Class, String> {
        let description = driver.describe();
        if description.is_outside && !self.has_drivers {
            return Err("drivers of other languages do not take part".to_string());
        }
        if self.is_of_messages() && !description.is_broker {
            return Err("is no broker".to_string());
        }
        if self.is_of_trees() && !description.is_tree {
            return Err("is no tree".to_string());
        }
        if !self.is_of_messages() && !self.is_of_trees() && description.is_no_store {
            return Err("is no store".to_string());
        }
        if description.is_no_store && description.is_exempt && self.name != messages::requests::WORKLOAD.name {
            return Err("answers requests, and delivers no message".to_string());
        }
        if let Some(reason) = description.unavailable {
            return Err(reason);
        }
        if self.needs_persistence && !description.is_persistent {
            return Err("keeps nothing on disk".to_string());
        }
        if let (true, Some(reason)) = (self.needs_commits_of_many(), &description.single) {
            return Err(reason.clone());
        }
        match wanted {
            Some(class) if description.has(class) => Ok(class),
            Some(class) => Err(format!("has no class {class}")),
            None => {
                let fitting = self.classes.iter().copied().find(|class| description.has(*class));
                fitting.ok_or_else(|| {
                    let classes: Vec<_> = self.classes.iter().map(Class::to_string).collect();
                    format!("has no class {}", classes.join(" or "))
                })
            }
        }
    }
}

/// The environment of one run.
pub struct Context<'a> {
    /// The peer.
    pub driver: &'a dyn Driver,
    /// Whether the peer stores nothing, so that no answer is checked. Its description says so. Describing takes
    /// microseconds, so no operation asks for it.
    pub is_exempt: bool,
    /// Its durability class.
    pub class: Class,
    /// Size of the peer's cache, if it has its own.
    pub cache_bytes: u64,
    /// An empty directory for the run.
    pub directory: &'a Path,
    /// The form of the workload.
    pub variant: Variant,
    /// Factor on all counts and times.
    pub scale: f64,
    /// Seed of all data.
    pub seed: u64,
    /// Duration and rate.
    pub pace: Pace,
}

impl Context<'_> {
    /// Opens the peer in the directory of the run.
    pub fn open(&self) -> Result<Box<dyn Peer>> {
        self.open_in(self.directory)
    }

    /// Opens the peer in a directory, which is created when it is missing.
    pub fn open_in(&self, directory: &Path) -> Result<Box<dyn Peer>> {
        self.open_with(directory, self.setting())
    }

    /// Returns the default setting for opening the peer.
    pub fn setting(&self) -> Setting {
        Setting {
            class: self.class,
            cache_bytes: self.cache_bytes,
            has_read_ahead: true,
        }
    }

    /// Opens the peer in a directory with another setting.
    pub fn open_with(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        std::fs::create_dir_all(directory)?;
        self.driver.open(directory, setting)
    }

    /// Returns the records of the form, at the scale of the run.
    pub fn records(&self) -> usize {
        self.scaled(self.variant.records)
    }

    /// Returns a count at the scale of the run.
    pub fn scaled(&self, count: usize) -> usize {
        scaled(count, self.scale)
    }

    /// Returns a time in seconds at the scale of the run, but at least `least`.
    pub fn scaled_seconds(&self, seconds: f64, least: f64) -> f64 {
        (seconds * self.scale).max(least)
    }

    /// Returns the checker for reads of these values.
    pub fn checker<'v>(&self, values: &'v Values) -> Checker<'v> {
        Checker::new(values, self.is_exempt)
    }
}

/// Returns a count at a scale.
fn scaled(count: usize, scale: f64) -> usize {
    ((count as f64 * scale).round() as usize).max(1)
}

/// Measures the phases of one run.
pub struct Recorder<'a> {
    directory: &'a Path,
    driver: &'a dyn Driver,
    is_stopped: bool,
    record: Record,
}

impl<'a> Recorder<'a> {
    /// Creates an empty recorder. The store's files are in `directory`, and the process to measure is the driver's.
    pub fn new(directory: &'a Path, driver: &'a dyn Driver) -> Recorder<'a> {
        Recorder {
            directory,
            driver,
            is_stopped: false,
            record: Record::default(),
        }
    }

    /// Measures `run`. A peer that cannot run the phase gets `n/a` for it; any other error ends the run. After the
    /// limit stopped a phase, nothing more is measured, because later phases would not have the data they need.
    pub fn phase(&mut self, name: &str, work: Work, run: impl FnOnce() -> Result<Done>) -> Result<()> {
        self.phases(&[(name, work)], || Ok(vec![run()?]))
    }

    /// Measures phases that run at the same time; `run` returns one piece of work for each name.
    pub fn phases(&mut self, names: &[(&str, Work)], run: impl FnOnce() -> Result<Vec<Done>>) -> Result<()> {
        if self.is_stopped {
            self.not_done(names, &format!("not reached {BY_LIMIT}"));
            return Ok(());
        }
        let meter = Meter::start(self.driver.process(), self.directory)?;
        match run() {
            Ok(done) => {
                assert_eq!(done.len(), names.len(), "a piece of work for each name");
                let pieces = names.iter().zip(done).map(|((name, work), done)| (*name, *work, done));
                let phases = meter.stop(pieces.collect())?;
                self.is_stopped |= phases.iter().any(|phase| !phase.is_complete());
                self.record.phases.extend(phases);
                Ok(())
            }
            Err(error) => match error.downcast_ref::<Unsupported>() {
                Some(reason) => {
                    self.not_done(names, reason.0);
                    Ok(())
                }
                None => Err(error.context(format!("in phase {:?}", names[0].0))),
            },
        }
    }

    /// Records phases that did not run.
    pub fn not_done(&mut self, names: &[(&str, Work)], reason: &str) {
        let entry = |(name, _): &(&str, Work)| (name.to_string(), reason.to_string());
        self.record.unsupported.extend(names.iter().map(entry));
    }

    /// Whether the limit of the cell stopped a phase.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Records a fact.
    pub fn note(&mut self, fact: String) {
        self.record.notes.push(fact);
    }

    /// Returns the record.
    pub fn finish(self) -> Record {
        self.record
    }
}

/// Scans everything, and looks at every byte.
pub(crate) fn tally_scan(peer: &dyn Peer) -> Result<Tally> {
    let mut tally = Tally::new();
    peer.read(&mut |reader| {
        reader.scan(&[], u64::MAX, &mut |key, value| {
            tally.add(key, value);
            Ok(())
        })
    })?;
    Ok(tally)
}
