//! Trees with very many nodes: children counted and listed in pages, random queries with little memory, and subtrees that
//! are deleted while a watch sees it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::crew::{alone, crew, together};
use crate::data::{Generator, Length, Values, wrong_read};
use crate::measure::{Done, Latencies, Work, nanos};
use crate::tree::{FullTree, Tree};
use crate::workloads::{Context, Recorder, Resources, Workload, variant};

pub const LARGE: Workload = Workload {
    name: "tree-large",
    about: "nodes of 100 bytes below one parent, created 1,000 a commit in random order, with 51 bytes of memory for each (a control \
        group); their parent's children counted, 1,000 of them listed from the middle, and random ones read",
    variants: &[variant("1M", 1_000_000), variant("10M", 10_000_000)],
    needs_persistence: true,
    resources: Resources {
        memory_bytes: Some(memory_bytes),
        ..Resources::USUAL
    },
    run: run_large,
    ..Workload::USUAL
};

pub const CHILDREN: Workload = Workload {
    name: "tree-children",
    about: "the nodes of tree-large, without a limit of memory: their parent's children counted, and 1,000 of them listed from the middle",
    variants: LARGE.variants,
    needs_persistence: true,
    run: |context, recorder| {
        let tree = context.open_tree()?;
        load_and_list(context, recorder, &tree)?;
        tree.close()
    },
    ..Workload::USUAL
};

pub const SUBTREE: Workload = Workload {
    name: "tree-subtree",
    about: "a subtree of 100,000 nodes of 100 bytes deleted in one commit, while a watch sees each node with its old payload",
    variants: &[variant("", 100_000)],
    run: run_subtree,
    ..Workload::USUAL
};

/// Memory at 10M nodes, and the least at any scale.
const MEMORY_BYTES: usize = 512 << 20;
const MEMORY_BYTES_MIN: usize = 96 << 20;
/// Nodes of a commit while a tree is loaded.
pub const COMMIT: usize = 1_000;
/// Children of a page.
const PAGE: usize = 1_000;
/// Calls of the rows at scale 1.
const COUNTS: usize = 10_000;
const PAGES: usize = 200;
/// Seconds of the queries at scale 1, and the least.
const SECONDS: (f64, f64) = (5.0, 0.05);
const READERS: usize = 4;
/// How often a subtree is deleted, and nodes of it that are read as they were.
const SUBTREES: usize = 5;
const EARLIER: usize = 100;
const PARENT: &[u8] = b"table";

fn memory_bytes(records: usize) -> u64 {
    (records * (MEMORY_BYTES / 10_000_000)).max(MEMORY_BYTES_MIN) as u64
}

/// Returns the path of a node. Its number has a fixed length, so paths are in the order of their numbers.
pub fn path(parent: &[u8], number: usize) -> Vec<u8> {
    [parent, b"/", name(number).as_bytes()].concat()
}

fn name(number: usize) -> String {
    format!("{number:010}")
}

/// Returns the numbers below `count` in an order without order: multiples of a number that has no factor in common with it.
pub fn scattered(count: usize) -> impl Iterator<Item = usize> {
    let common = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let about = (count as f64 * 0.618) as usize;
    let step = (about.max(1)..).find(|&step| common(step, count) == 1).unwrap_or(1);
    (0..count).map(move |at| (at as u64 * step as u64 % count as u64) as usize)
}

/// Creates the nodes, counts the children of their parent, and lists 1,000 of them from places in the middle.
fn load_and_list(context: &Context, recorder: &mut Recorder, tree: &Tree) -> Result<()> {
    let count = context.records();
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    recorder.phase("load", Work::Writes, || {
        let full = tree.full()?;
        let mut numbers = scattered(count);
        let commits = count.div_ceil(COMMIT) as u64;
        let worked = context.pace.whole_shift(1).work(commits, |_| {
            load(full, PARENT, &values, &mut numbers.by_ref().take(COMMIT))
        })?;
        Ok(alone(worked))
    })?;
    recorder.phase("count the children", Work::Reads, || {
        let full = tree.full()?;
        let worked = context.pace.shift(1, None).work(context.scaled(COUNTS) as u64, |_| {
            let children = full.count_children(PARENT)?;
            ensure!(
                children == count as u64,
                "{children} children are counted; there are {count}"
            );
            Ok(())
        })?;
        Ok(alone(worked))
    })?;
    recorder.phase("1,000 children from the middle", Work::Reads, || {
        let full = tree.full()?;
        let mut picks = Generator::new(context.seed, "pages");
        let worked = context.pace.shift(1, None).work(context.scaled(PAGES) as u64, |_| {
            let after = count / 4 + picks.below(count / 2);
            let mut next = after + 1;
            full.children(PARENT, name(after).as_bytes(), PAGE, &mut |child, payload| {
                ensure!(child == name(next).as_bytes(), "child {next} is not where it must be");
                checker.present(&path(PARENT, next), 0, Some(payload))?;
                next += 1;
                Ok(())
            })?;
            ensure!(next - after - 1 == PAGE.min(count - after - 1), "a page is too short");
            Ok(())
        })?;
        Ok(alone(worked))
    })
}

fn run_large(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let tree = context.open_tree()?;
    load_and_list(context, recorder, &tree)?;
    for threads in [1, READERS] {
        let unit = if threads == 1 { "thread" } else { "threads" };
        recorder.phase(&format!("queries, {threads} {unit}"), Work::Reads, || {
            let full = tree.full()?;
            let seconds = context.scaled_seconds(SECONDS.0, SECONDS.1);
            let worked = crew(threads, |number| {
                let mut picks = Generator::new(context.seed, &format!("queries of {number}"));
                let shift = context.pace.shift(threads, Some(seconds));
                shift.work(u64::MAX, |_| {
                    let path = path(PARENT, picks.below(count));
                    full.get(&path, &mut |found| checker.present(&path, 0, found))
                })
            })?;
            Ok(together(worked))
        })?;
    }
    tree.close()
}

/// Creates nodes in one commit.
pub fn load(
    tree: &dyn FullTree,
    parent: &[u8],
    values: &Values,
    numbers: &mut dyn Iterator<Item = usize>,
) -> Result<()> {
    let paths: Vec<_> = numbers.map(|number| path(parent, number)).collect();
    tree.put_all(&mut paths.iter().map(|path| (path.clone(), values.of(path, 0))))
}

fn run_subtree(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let tree = context.open_tree()?;
    let rows = [
        ("delete a subtree", Work::Writes),
        ("the watch has seen it", Work::Reads),
    ];
    recorder.phases(&rows, || {
        let full = tree.full()?;
        let (mut commits, mut events) = (Latencies::default(), Latencies::default());
        let (mut committing, mut seeing) = (0, 0);
        for at in 0..SUBTREES {
            let parent = format!("table {at}").into_bytes();
            let mut numbers = scattered(count);
            for _ in 0..count.div_ceil(COMMIT) {
                load(full, &parent, &values, &mut numbers.by_ref().take(COMMIT))?;
            }
            let before = full.revision()?;
            let mut watches = full.watch(&mut [parent.clone()].into_iter(), true)?;
            let begun = Instant::now();
            let deleted = full.delete_subtree(&parent)?;
            let committed = nanos(begun.elapsed());
            ensure!(
                deleted == count as u64,
                "{deleted} nodes were deleted; there were {count}"
            );
            let mut seen = 0;
            while seen < count {
                let before = seen;
                watches.next(Duration::from_secs(60), &mut |change| {
                    let wanted = path(&parent, seen);
                    ensure!(
                        change.path == wanted && change.payload.is_none(),
                        "change {seen} is another one"
                    );
                    seen += 1;
                    checker.present(&wanted, 0, change.old)
                })?;
                ensure!(
                    seen > before,
                    "the watch has seen {seen} changes of {count} for a minute"
                );
            }
            let all_seen = nanos(begun.elapsed());
            commits.record(committed);
            events.record(all_seen);
            committing += committed;
            seeing += all_seen;
            // The state before is still there, and the present has none of it.
            let mut picks = Generator::new(context.seed, "earlier");
            let mut earlier = (0..EARLIER).map(|_| path(&parent, picks.below(count)));
            full.get_at(before, &mut earlier, &mut |path, found| checker.present(path, 0, found))?;
            ensure!(full.count_children(&parent)? == 0, "children are left");
            full.get_at(
                full.revision()?,
                &mut [path(&parent, 0)].into_iter(),
                &mut |path, found| wrong_read(path, found, None),
            )?;
        }
        let done = |latencies, wall_nanos| Done {
            operations: SUBTREES as u64,
            latencies: Some(latencies),
            wall_nanos: Some(wall_nanos),
            ..Done::default()
        };
        Ok(vec![done(commits, committing), done(events, seeing)])
    })?;
    tree.close()
}
