//! Khepri's benchmark: inserts, queries and deletes of `[table, key]` with more and more workers.
//!
//! Khepri's own has 10,000 keys that all steps share: after seconds its inserts overwrite, and its deletes find nothing.
//! Here each step begins with an empty table. Its inserts create, its queries read what was inserted, and its deletes find
//! what they delete; every answer is checked. Work runs for a time, and some before the clock. A worker of an embedded tree is
//! a thread. A worker of a server is a request in flight: two connections share the workers. After the clock, each step
//! deletes what is left, and reads every path that it had: none is there.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

use crate::answer::Answer;
use crate::crew::{Shift, Worked, crew, together};
use crate::data::{Checker, Generator, KeySlice, Keys, Length, Values};
use crate::flight::{Flight, on_connections};
use crate::measure::{Done, Work};
use crate::tree::{EmbeddedTree, Tree, TreeConnection, created, deleted};
use crate::workloads::{Context, Recorder, Workload, variant};

pub const WORKLOAD: Workload = Workload {
    name: "tree-ramp",
    about: "Khepri's load: nodes of 100 bytes inserted, queried and deleted one by one by more and more workers, for 2 \
        seconds each; a worker of a server is a request in flight",
    variants: &[variant("1-50-100-200", 4), variant("1-to-200", 21)],
    run,
    ..Workload::USUAL
};

/// Number of paths of a step at scale 1: more than any tree creates in its time.
const PATHS: usize = 4_000_000;
/// Seconds of a row at scale 1, and the least.
const SECONDS: (f64, f64) = (2.0, 0.05);
/// Part of these seconds for which inserts and queries run before the clock.
const BEFORE: f64 = 0.25;
/// Most connections to a server.
const CONNECTIONS: usize = 2;
/// Bytes of a path: the table, and the letters of the key.
const TABLE: &[u8] = b"table/";
const LETTERS: usize = 16;

/// Returns the numbers of workers of a form.
fn ramp(steps: usize) -> Vec<usize> {
    match steps {
        4 => vec![1, 50, 100, 200],
        _ => std::iter::once(1).chain((10..=200).step_by(10)).collect(),
    }
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let values = Values::new(context.seed, Length::Fixed(100));
    let letters = Generator::new(context.seed, "paths").letters(context.scaled(PATHS), LETTERS);
    let paths = letters.iter().map(|letters| [TABLE, letters].concat());
    let paths = Keys::collect(TABLE.len() + LETTERS, paths);
    let tree = context.open_tree()?;
    for workers in ramp(context.variant.records) {
        let mut step = Step::new(context, &tree, &paths, &values, workers);
        step.run(recorder).with_context(|| format!("with {workers} workers"))?;
    }
    tree.close()
}

/// The work of a number of workers. Each lane works on paths of its own: a thread, or a connection with its requests.
struct Step<'a> {
    context: &'a Context<'a>,
    tree: &'a Tree,
    paths: KeySlice<'a>,
    values: &'a Values,
    checker: Checker<'a>,
    workers: usize,
    lanes: Vec<Mutex<Lane>>,
}

/// What a lane has done: the first `deleted` paths of its share are deleted, and others before `created` are there.
#[derive(Clone, Copy, Default)]
struct Lane {
    created: usize,
    deleted: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Insert,
    Query,
    Delete,
    /// Reads all paths that the lane had, each as it must be.
    Verify,
}

impl<'a> Step<'a> {
    fn new(context: &'a Context, tree: &'a Tree, paths: &'a Keys, values: &'a Values, workers: usize) -> Step<'a> {
        let lanes = match tree {
            Tree::Embedded(_) => workers,
            Tree::Served(_) => workers.min(CONNECTIONS),
        };
        Step {
            context,
            tree,
            paths: paths.all(),
            values,
            checker: context.checker(values),
            workers,
            lanes: (0..lanes).map(|_| Mutex::default()).collect(),
        }
    }

    fn run(&mut self, recorder: &mut Recorder) -> Result<()> {
        let seconds = self.context.scaled_seconds(SECONDS.0, SECONDS.1);
        let timed = |seconds| self.context.pace.shift(self.lanes.len(), Some(seconds));
        let rows = [
            ("inserts", Work::Writes, Operation::Insert),
            ("queries", Work::Reads, Operation::Query),
            ("deletes", Work::Writes, Operation::Delete),
        ];
        for (name, work, operation) in rows {
            // A peer that deletes much faster than it inserts would have nothing left for the row.
            if !recorder.is_stopped() && operation != Operation::Delete {
                self.work(operation, &|| timed(seconds * BEFORE))?;
            }
            let unit = if self.workers == 1 { "worker" } else { "workers" };
            recorder.phase(&format!("{name}, {} {unit}", self.workers), work, || {
                self.work(operation, &|| timed(seconds))
            })?;
        }
        if !recorder.is_stopped() {
            self.work(Operation::Delete, &|| self.context.pace.whole_shift(self.lanes.len()))?;
        }
        self.work(Operation::Verify, &|| timed(0.0).without_end())?;
        Ok(())
    }

    /// Does one operation after the other on each lane, until all its paths are done or the shift is over.
    fn work(&self, operation: Operation, shift: &(dyn Fn() -> Shift + Sync)) -> Result<Done> {
        match self.tree {
            Tree::Embedded(tree) => {
                let worked = crew(self.lanes.len(), |number| {
                    let mut lane = self.lane(number, operation);
                    let planned = lane.planned();
                    let worked = shift().work(planned, |_| self.call(&**tree, operation, &lane.next()))?;
                    self.done(number, operation, &worked);
                    Ok(worked)
                })?;
                Ok(together(worked))
            }
            Tree::Served(tree) => on_connections(self.lanes.len(), async |number| {
                let connection = tree.connect().await?;
                let connection = &*connection;
                let mut lane = self.lane(number, operation);
                let flight = Flight {
                    planned: lane.planned(),
                    in_flight: self.workers / self.lanes.len(),
                    each: 1,
                };
                let begin = |_| self.request(connection, operation, lane.next());
                let worked = flight.work(shift(), begin).await?;
                self.done(number, operation, &worked);
                Ok(worked)
            }),
        }
    }

    /// Returns the paths for an operation on a lane.
    fn lane(&self, number: usize, operation: Operation) -> Paths<'a> {
        let lane = *self.lanes[number].lock().unwrap_or_else(PoisonError::into_inner);
        Paths {
            share: self.paths.share(number, self.lanes.len()),
            lane,
            operation,
            picks: Generator::new(self.context.seed, &format!("queries of {number}")),
            begun: 0,
        }
    }

    fn done(&self, number: usize, operation: Operation, worked: &Worked) {
        let mut lane = self.lanes[number].lock().unwrap_or_else(PoisonError::into_inner);
        match operation {
            Operation::Insert => lane.created += worked.operations as usize,
            Operation::Delete => lane.deleted += worked.operations as usize,
            Operation::Query | Operation::Verify => {}
        }
    }

    fn call(&self, tree: &dyn EmbeddedTree, operation: Operation, next: &Next) -> Result<()> {
        let path = next.path;
        match operation {
            Operation::Insert => created(path, tree.create(path, self.values.of(path, 0))?),
            Operation::Delete => deleted(path, tree.delete(path)?),
            Operation::Query | Operation::Verify => tree.get(path, &mut |found| self.check(next, found)),
        }
    }

    fn request<'s>(&'s self, tree: &'s dyn TreeConnection, operation: Operation, next: Next<'s>) -> Answer<'s> {
        let path = next.path;
        match operation {
            Operation::Insert => {
                let answer = tree.create(path, self.values.of(path, 0));
                Box::pin(async move { created(path, answer.await?) })
            }
            Operation::Delete => {
                let answer = tree.delete(path);
                Box::pin(async move { deleted(path, answer.await?) })
            }
            Operation::Query | Operation::Verify => {
                let answer = tree.get(path);
                Box::pin(async move { self.check(&next, answer.await?.as_deref()) })
            }
        }
    }

    fn check(&self, next: &Next, found: Option<&[u8]>) -> Result<()> {
        match next.is_there {
            true => self.checker.present(next.path, 0, found),
            false => self.checker.absent(next.path, found),
        }
    }
}

/// The paths for an operation on a lane.
struct Paths<'a> {
    share: KeySlice<'a>,
    lane: Lane,
    operation: Operation,
    picks: Generator,
    begun: usize,
}

/// A path, and whether it must be there for a read.
struct Next<'a> {
    path: &'a [u8],
    is_there: bool,
}

impl<'a> Paths<'a> {
    /// Returns the number of operations there are.
    fn planned(&self) -> u64 {
        let there = self.lane.created - self.lane.deleted;
        match self.operation {
            Operation::Insert => (self.share.len() - self.lane.created) as u64,
            Operation::Query if there == 0 => 0,
            Operation::Query => u64::MAX,
            Operation::Delete => there as u64,
            Operation::Verify => self.lane.created as u64,
        }
    }

    fn next(&mut self) -> Next<'a> {
        let Lane { created, deleted } = self.lane;
        let at = match self.operation {
            Operation::Insert => created + self.begun,
            Operation::Query => deleted + self.picks.below(created - deleted),
            Operation::Delete => deleted + self.begun,
            Operation::Verify => self.begun,
        };
        self.begun += 1;
        Next {
            path: self.share.at(at),
            is_there: at >= deleted,
        }
    }
}
