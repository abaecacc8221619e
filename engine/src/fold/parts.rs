//! Folding in parts: the tree is divided into parts by key, each part is merged on its own with the changes in its
//! range, by one thread or several, and the parts are put together under new upper branches.
//!
//! Of a large tree that is done step by step: a few parts are merged, the tree with these and the others as they are is
//! published and made durable beside the next step, and what it replaced comes free long before all is folded. The
//! generations stay in the version, and in the log, until the last step. So readers find the newest change of a key
//! there before they look into the tree, and it does not matter whether the tree holds it too; and after a crash the
//! log is replayed above a base that holds a part of it, which changes nothing.
//!
//! Why that is not quite so simple: (1) A base that holds anything of commit `reaches` must not be without the log up
//! to there. The log is synced before the first step; the meta page names that commit, and recovery says what is
//! missing. (2) A long value that a commit wrote is referred to by a record that may be replayed. So those that lose
//! against a newer one are retired in the last step, and the tree refers to others that the allocator still counts as
//! the log's. (3) A fold that did not come to its end is done again from its beginning, with just the same generations:
//! with newer ones among them, a value that the base holds would lose both as one of the base and as one of the log,
//! and be retired twice.
//!
//! The result holds the same pairs as that of one merge, but not the same pages: content is never shared across the
//! border of two parts, so a page there may be less full; the branches above the parts are rewritten even if nothing
//! under them changed; and after mass deletion each part may leave a chain of branches with one child.
//!
//! Why: one thread folded 350,000 to 650,000 changes a second where it was measured, and one thread that puts is faster
//! than that. Closing a store, which waits for nothing but the fold, then takes less time.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use crate::allocator::Claim;
use crate::btree::{self, Division, MergeOptions, MergedPart, Part, Root};
use crate::core::{Core, MaintenanceState};
use crate::datafile::meta::Meta;
use crate::datafile::promises::LEAVES_PER_OPERATION;
use crate::error::{Error, Kind, Result};
use crate::fold::page_sink::FileSink;
use crate::fold::{Folded, NewTree, REPORT_INTERVAL, Values};
use crate::limits::{BRANCH_PAGES, FOLD_PART_OPERATIONS, FOLD_THREADS_MAX, PAGE_BYTES};
use crate::log::FoldCosts;
use crate::planted::kill_point;
use crate::region::Version;

/// Parts are not equal, and threads not equally fast: the more parts, the less the last one is waited for.
const PARTS_PER_THREAD: usize = 4;
/// In each step of a fold that has several: the steps have to be equal, too.
const PARTS_PER_THREAD_OF_STEP: usize = 2;

/// The changes are sampled at so many keys for each part.
const SAMPLES_PER_PART: usize = 16;
/// Nodes that there are at least for each part or step.
const NODES_EACH_MIN: usize = 2;
/// Threads that fold where a test says into how many parts, and steps there.
const TESTED_THREADS: usize = 4;
const TESTED_STEPS: usize = 5;

/// How a fold is divided.
#[derive(Clone, Copy)]
struct Portions {
    parts: usize,
    /// In about so many steps of one or more parts.
    steps: usize,
    /// Nodes that are divided, if the tree has so many.
    nodes_min: usize,
    /// A tree is published when so many pages were written for it.
    pages: u64,
}

/// What the threads of a step share.
struct Work<'c, 'w> {
    core: &'c Core,
    division: &'w Division,
    frozen: &'w [u16],
    /// The tree that is divided.
    root: Root,
    birth: u64,
    claim: Claim,
    /// The next part to fold, and the end of those of this step.
    next: AtomicUsize,
    end: usize,
    /// Operations that were taken so far, in all parts.
    taken: AtomicU64,
    has_failed: AtomicBool,
}

type FoldedPart<'c> = Folded<'c, MergedPart>;

/// A meta page that is being made durable.
type Pending<'s> = (Meta, ScopedJoinHandle<'s, Result<()>>);

/// A fold in parts.
struct InParts<'c, 'f> {
    core: &'c Core,
    frozen: &'f [u16],
    last_commit: u64,
    division: Division,
    root: Root,
    /// Whether a fold of the same generations did not come to its end.
    is_again: bool,
    /// Parts that are merged, the first ones.
    merged: Vec<MergedPart>,
    values: Values,
    runs: Vec<Root>,
    /// Of the tree that is published next.
    sink: FileSink<'c>,
    /// Operations taken so far.
    taken: u64,
    /// What the operations cost that were taken since a tree was published.
    costs: FoldCosts,
}

impl Core {
    /// Folds frozen generations into a version's base with the threads that folds may take. `None`: that is for one
    /// thread, and nothing was done that another fold cannot begin with.
    pub(crate) fn fold_in_parts(
        &self,
        state: &mut MaintenanceState,
        version: &Version,
        frozen: &[u16],
        operations: u64,
        report: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<(Root, FileSink<'_>)>> {
        let threads = self.fold_threads();
        let portions = self.portions(threads, version.root.height, operations);
        if portions.parts < 2 {
            return Ok(None);
        }
        // SAFETY: the caller has the maintenance lock, as its state shows, under which no frozen generation goes.
        let generations = frozen.iter().map(|&slot| unsafe { self.generation_view(slot) });
        let generations = generations.collect::<Result<Vec<_>>>()?;
        let leaves: usize = generations.iter().map(|generation| generation.index.leaves()).sum();
        let every = (leaves / (portions.parts * SAMPLES_PER_PART)).max(1);
        let sampled = generations
            .iter()
            .flat_map(|generation| generation.index.samples(generation.log, every));
        let mut samples: Vec<&[u8]> = sampled.collect();
        samples.sort_unstable();
        samples.dedup();
        let divided = btree::divide(
            self.source(),
            version.root,
            portions.parts,
            portions.nodes_min,
            &samples,
        );
        let division = match divided {
            Ok(Some(division)) => division,
            Ok(None) => return Ok(None),
            // One thread meets the damage only if something changes under it.
            Err(error) if error.kind() == Kind::Damaged => return Ok(None),
            Err(error) => return Err(error),
        };
        let newest = *frozen.last().expect("there is something to fold");
        let mut fold = InParts {
            core: self,
            frozen,
            last_commit: self.entry(newest).last_commit.load(Ordering::Relaxed),
            division,
            root: version.root,
            is_again: version.is_begun(),
            merged: Vec::new(),
            values: Values::default(),
            runs: Vec::new(),
            sink: FileSink::new(self, version.number + 1, Claim::Promised),
            taken: 0,
            costs: FoldCosts::default(),
        };
        let folded = std::thread::scope(|scope| {
            let mut pending = None;
            let folded = fold.all(scope, state, &mut pending, threads, portions, report);
            let awaited = self.await_durable(state, &mut pending);
            awaited.and(folded)
        });
        match folded.and_then(|()| fold.assemble()) {
            Ok(Some(root)) => {
                let sink = self.retire_folded(fold.values, fold.runs, fold.sink)?;
                Ok(Some((root, sink)))
            }
            // One thread may find the room: it leaves no pages less full where parts meet.
            done => {
                fold.sink.abandon();
                let is_full = |error: &Error| error.kind() == Kind::MakeSpace;
                done.map(|_| None)
                    .or_else(|error| if is_full(&error) { Ok(None) } else { Err(error) })
            }
        }
    }

    /// Into how many parts and steps a fold is divided. Fewer than two parts: it is not.
    fn portions(&self, threads: usize, height: u8, operations: u64) -> Portions {
        let base = self.space.used_bytes() / PAGE_BYTES as u64;
        match self.settings.fold_parts {
            Some((parts, least)) => Portions {
                parts: if operations >= least { parts } else { 0 },
                steps: if self.space.folds_in_one() {
                    1
                } else {
                    (parts / 2).min(TESTED_STEPS)
                },
                nodes_min: parts * NODES_EACH_MIN,
                pages: 1,
            },
            None => {
                let all_steps = self.space.fold_steps();
                // Few changes replace little, wherever they are.
                let most_pages = operations * (LEAVES_PER_OPERATION + u64::from(height) * u64::from(BRANCH_PAGES));
                let steps = if most_pages * all_steps < base { 1 } else { all_steps };
                let per_thread = if steps > 1 {
                    PARTS_PER_THREAD_OF_STEP
                } else {
                    PARTS_PER_THREAD
                };
                let of_step = match threads {
                    1 => 1,
                    threads => (threads * per_thread).min((operations / steps / FOLD_PART_OPERATIONS) as usize),
                };
                let steps = steps as usize;
                let parts = steps * of_step.max(1);
                Portions {
                    parts,
                    steps,
                    nodes_min: if steps > 1 { steps } else { parts * NODES_EACH_MIN },
                    pages: base / (2 * steps as u64),
                }
            }
        }
    }

    /// A tree was published that holds operations of generations that are being folded: what they cost is promised no
    /// more.
    fn is_folded_in_part(&self, frozen: &[u16], mut costs: FoldCosts) {
        for entry in frozen.iter().map(|&slot| self.entry(slot)) {
            let settled = entry.costs.load().min(costs);
            costs -= settled;
            entry.costs.subtract(settled);
            kill_point();
            // A process that dies right before this leaves too much promised, never too little.
            self.space.settle(settled);
        }
    }

    /// Waits until a meta page is durable, if there is one, and frees what is not needed any more.
    fn await_durable(&self, state: &mut MaintenanceState, pending: &mut Option<Pending<'_>>) -> Result<()> {
        let Some((meta, thread)) = pending.take() else {
            return Ok(());
        };
        let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.and_then(|()| self.note_meta(state, meta))
            .map_err(|error| self.poisoned_unless_full(error))?;
        self.reclaim(state)
    }

    /// Threads of a fold: one for each processor. The faster it is over, the less commits pause for it.
    fn fold_threads(&self) -> usize {
        let threads = match self.settings.fold_parts {
            Some(_) => TESTED_THREADS,
            None => self.settings.processors,
        };
        let most = if self.settings.background { FOLD_THREADS_MAX } else { 1 };
        threads.clamp(1, most)
    }

    /// How folds merge.
    pub(crate) fn fold_options(&self) -> MergeOptions {
        MergeOptions {
            keep_deletes: false,
            hash_seed: self.hash_seed,
        }
    }
}

impl<'c> InParts<'c, '_> {
    /// Folds all parts. What is published on the way is durable, or about to be.
    fn all<'s>(
        &mut self,
        scope: &'s Scope<'s, '_>,
        state: &mut MaintenanceState,
        pending: &mut Option<Pending<'s>>,
        threads: usize,
        portions: Portions,
        report: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()>
    where
        'c: 's,
    {
        let mut is_short = false;
        while self.merged.len() < self.division.parts.len() {
            let first = self.merged.len();
            let end = match is_short {
                true => self.division.end_of_part(first),
                false => self.division.end_of_step(first, portions.steps, threads),
            };
            let done = self.step(first..end, threads, report);
            let is_full = |error: &Error| error.kind() == Kind::MakeSpace;
            match done {
                // What was replaced before comes free now. Where nothing was, each part alone from here on.
                Err(error) if is_full(&error) && !is_short => {
                    let mut frees = pending.is_some();
                    self.core.await_durable(state, pending)?;
                    if self.is_ahead() {
                        *pending = self.publish(scope, state)?;
                        self.core.await_durable(state, pending)?;
                        // Unless there was too little for a tree.
                        frees |= !self.is_ahead();
                    }
                    is_short = !frees;
                    continue;
                }
                done => done?,
            }
            let is_last = end == self.division.parts.len();
            let is_enough = match is_short {
                true => self.is_ahead(),
                false => portions.steps > 1 && self.sink.pages() >= portions.pages,
            };
            if is_enough && !is_last {
                self.core.await_durable(state, pending)?;
                *pending = self.publish(scope, state)?;
            }
            if is_short {
                self.core.await_durable(state, pending)?;
            }
        }
        Ok(())
    }

    /// Whether something was merged that is not published yet.
    fn is_ahead(&self) -> bool {
        self.sink.pages() > 0 || !self.sink.retired.is_empty()
    }

    /// Merges a few parts.
    fn step(&mut self, parts: Range<usize>, threads: usize, report: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let work = Work {
            core: self.core,
            division: &self.division,
            frozen: self.frozen,
            root: self.root,
            birth: self.sink.birth,
            claim: if parts.len() > 1 { Claim::Part } else { Claim::Promised },
            next: AtomicUsize::new(parts.start),
            end: parts.end,
            taken: AtomicU64::new(self.taken),
            has_failed: AtomicBool::new(false),
        };
        let folded = work.share(threads, report);
        let taken = work.taken.load(Ordering::Relaxed);
        let (mut done, mut failed) = (Vec::new(), None);
        for (index, folded) in folded {
            match folded {
                Ok(folded) => done.push((index, folded)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            done.iter_mut().for_each(|(_, folded)| folded.sink.abandon());
            return Err(error);
        }
        done.sort_unstable_by_key(|(index, _)| *index);
        self.taken = taken;
        for (_, folded) in done {
            self.merged.push(folded.merged);
            self.values.superseded.extend(folded.values.superseded);
            self.values.surviving.extend(folded.values.surviving);
            self.runs = folded.runs;
            self.costs += folded.costs;
            self.sink.absorb(folded.sink);
        }
        Ok(())
    }

    /// Puts merged parts, and the others as they are, together to a tree. `None`: too little is left of it.
    fn assemble(&mut self) -> Result<Option<Root>> {
        let core = self.core;
        let rest: Vec<MergedPart> = (self.merged.len()..self.division.parts.len())
            .map(|part| self.division.as_it_is(part))
            .collect();
        let parts: Vec<&MergedPart> = self.merged.iter().chain(&rest).collect();
        let root = btree::assemble(
            core.source(),
            &self.division,
            &parts,
            core.fold_options(),
            &mut self.sink,
        )?;
        self.sink.finish()?;
        Ok(root)
    }

    /// Publishes a tree with the parts that are merged so far: what it replaces comes free before all is folded. The
    /// log stays what it was, and says the same of these parts once more.
    fn publish<'s>(&mut self, scope: &'s Scope<'s, '_>, state: &mut MaintenanceState) -> Result<Option<Pending<'s>>>
    where
        'c: 's,
    {
        let core = self.core;
        let Some(root) = self.assemble()? else {
            return Ok(None);
        };
        let next = FileSink::new(core, 0, Claim::Promised);
        let sink = std::mem::replace(&mut self.sink, next);
        let tree = NewTree {
            birth: sink.birth,
            retired: &sink.retired,
            adopted: &[],
        };
        let last_commit = self.last_commit;
        let version = core.publish_tree(state, tree, |next| (next.root, next.reaches) = (root, last_commit))?;
        // What is done again was settled before, in part.
        if !self.is_again {
            core.is_folded_in_part(self.frozen, std::mem::take(&mut self.costs));
        }
        self.sink.birth = version.number + 1;
        self.root = root;
        self.merged.iter_mut().for_each(MergedPart::is_published);
        self.division.is_under(core.source(), root)?;
        let meta = core
            .prepare_meta(state, &version)
            .map_err(|error| core.poisoned_unless_full(error))?;
        if core.settings.background {
            let thread = std::thread::Builder::new().name("duramen-durable".into());
            if let Ok(thread) = thread.spawn_scoped(scope, move || core.write_meta_page(&meta)) {
                return Ok(Some((meta, thread)));
            }
        }
        core.write_meta_page(&meta)
            .and_then(|()| core.note_meta(state, meta))
            .map_err(|error| core.poisoned_unless_full(error))?;
        core.reclaim(state)?;
        Ok(None)
    }
}

impl<'c> Work<'c, '_> {
    /// Folds all parts with so many threads, this one among them, or fewer when there are none to be had.
    fn share(&self, threads: usize, report: &mut dyn FnMut(u64) -> Result<()>) -> Vec<(usize, Result<FoldedPart<'c>>)> {
        let (waiting, done) = (std::thread::current(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let help = || {
                let folded = self.fold_parts(&mut |_| Ok(()));
                done.fetch_add(1, Ordering::Release);
                waiting.unpark();
                folded
            };
            let start = |number: usize| {
                let thread = std::thread::Builder::new().name(format!("duramen-fold-{number}"));
                thread.spawn_scoped(scope, help).ok()
            };
            let parts = self.end - self.next.load(Ordering::Relaxed);
            let helpers: Vec<_> = (1..threads.min(parts)).map_while(start).collect();
            let mut folded = self.fold_parts(report);
            // Commits go on meanwhile, and need what the reports are for.
            let is_done =
                || done.load(Ordering::Acquire) == helpers.len() || helpers.iter().all(|one| one.is_finished());
            while !is_done() {
                if let Err(error) = report(self.taken.load(Ordering::Relaxed)) {
                    self.has_failed.store(true, Ordering::Relaxed);
                    folded.push((usize::MAX, Err(error)));
                }
                std::thread::park_timeout(REPORT_INTERVAL);
            }
            for helper in helpers {
                folded.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            folded
        })
    }

    /// Folds one part after the other, until none is left or one has failed.
    fn fold_parts(&self, report: &mut dyn FnMut(u64) -> Result<()>) -> Vec<(usize, Result<FoldedPart<'c>>)> {
        let mut folded = Vec::new();
        while !self.has_failed.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.end {
                break;
            }
            let part = &self.division.parts[index];
            let done = self.fold_part(part, report);
            self.has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
            folded.push((index, done));
        }
        folded
    }

    fn fold_part(&self, part: &Part, report: &mut dyn FnMut(u64) -> Result<()>) -> Result<FoldedPart<'c>> {
        let core = self.core;
        let sink = FileSink::new(core, self.birth, self.claim);
        let mut counted = 0;
        let mut report_all = |taken: u64| {
            let all = self.taken.fetch_add(taken - counted, Ordering::Relaxed) + taken - counted;
            counted = taken;
            report(all)
        };
        core.fold_range(
            self.root,
            self.frozen,
            part.range(),
            sink,
            &mut report_all,
            |changes, cuts, sink| btree::merge_part(core.source(), part, changes, cuts, core.fold_options(), sink),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use duramen_io::SimDisk;

    use crate::btree::{self, Visit};
    use crate::limits::{BRANCH_PAGES, PAGE_BYTES};
    use crate::{Batch, ChangesFrom, Durability, Kind, Maintenance, Map, Options, Reason, Store};

    fn open(disk: &SimDisk) -> crate::Result<Store> {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Synced)
            .overwrite_freed(true);
        options.fold_parts(20, 1).open_on(disk.platform())
    }

    const KEYS: u32 = 400;

    /// Every kind of value: in the leaf, written to pages of its own by the fold, and by the commit.
    fn value(key: u32, fill: u8) -> Vec<u8> {
        let length = match key {
            key if key % 40 == 7 => 70_000,
            key if key % 20 == 3 => 5_000,
            _ => 500,
        };
        vec![fill; length]
    }

    /// Puts every pair twice, those of a range before and after they are deleted: in a batch, in commits of one, and as
    /// a run.
    fn put_all(store: &Store, map: &Map, fill: u8) -> crate::Result<()> {
        let mut batch = Batch::new();
        for key in 0..KEYS {
            batch.put(map, key.to_be_bytes(), value(key, fill ^ 0xFF))?;
        }
        store.write(batch)?;
        let ends = [100u32, 200].map(u32::to_be_bytes);
        map.delete_range(&ends[0][..]..&ends[1][..])?;
        let mut large = store.begin(crate::TransactionOptions::new().memory_bytes(1))?;
        for key in (0..KEYS).step_by(2) {
            large.put(map, key.to_be_bytes(), value(key, fill))?;
        }
        large.commit()?;
        for key in (1..KEYS).step_by(2) {
            map.put(key.to_be_bytes(), value(key, fill))?;
        }
        Ok(())
    }

    fn assert_holds(store: &Store, fill: u8) {
        let map = store.map("map").expect("a map");
        assert_eq!(map.count().expect("a count"), u64::from(KEYS));
        for key in 0..KEYS {
            let found = map.get(key.to_be_bytes()).expect("a read");
            assert!(found.as_deref() == Some(&value(key, fill)[..]), "key {key}");
        }
        let report = store.check(&mut |_| ()).expect("a check");
        assert_eq!(report.problems, [""; 0]);
    }

    /// What a key held before a commit that the base holds a part of cannot be told any more.
    fn assert_streams_from_where_the_base_ends(store: &Store, base_commit: u64, reaches: u64) {
        let refused = store.changes(ChangesFrom::After(base_commit)).map(drop);
        let refused = refused.expect_err("the base is newer in parts");
        assert!(
            matches!(refused.reason(), Reason::NotRetained { oldest, .. } if *oldest == reaches),
            "{refused}"
        );
        let mut changes = store
            .changes(ChangesFrom::After(reaches))
            .expect("all of it is in the log");
        let key = 5u32.to_be_bytes();
        store.map("map").expect("a map").put(key, b"new").expect("room");
        let commit = changes.next(Duration::ZERO).expect("a stream").expect("a commit");
        assert_eq!(commit.changes[0].old.as_deref(), Some(&value(5, 2)[..]));
    }

    /// A store that stopped in the middle of a fold, after so many calls.
    fn stopped_after(calls: u64) -> (SimDisk, bool) {
        let disk = SimDisk::new(5);
        let store = open(&disk).expect("a store");
        let map = store.map("map").expect("a map");
        put_all(&store, &map, 1).expect("room");
        store.maintain().expect("a fold");
        put_all(&store, &map, 2).expect("room");
        disk.stop_after(calls);
        let is_done = store.maintain().is_ok();
        let left = disk.kill();
        drop((map, store));
        (left, is_done)
    }

    #[test]
    fn what_a_fold_has_published_before_it_was_stopped_is_finished_before_anything_else() {
        let (mut begun, mut calls) = ([0, 0], 0);
        loop {
            let (disk, is_done) = stopped_after(calls);
            for (kind, disk) in [disk.power_cut(calls), disk.kill()].into_iter().enumerate() {
                let store = open(&disk).expect("nothing is damaged");
                let version = store.core().region.version();
                begun[kind] += u32::from(version.is_begun());
                assert_holds(&store, 2);
                if version.is_begun() {
                    assert_streams_from_where_the_base_ends(&store, version.base_commit, version.reaches);
                }
                // Changes of what the base holds already, and the log too.
                let map = store.map("map").expect("a map");
                put_all(&store, &map, 3).expect("room");
                assert_holds(&store, 3);
                store.maintain().expect("a fold");
                assert!(!store.core().is_begun());
                assert_holds(&store, 3);
                let figures = store.core().space.figures().expect("figures");
                assert_eq!((figures.pending_operations, figures.pending_bytes), (0, 0));
                map.clear().expect("a deletion");
                (0..3).for_each(|_| store.maintain().expect("a fold"));
                let used = store.core().space.used_bytes() / PAGE_BYTES as u64;
                assert!(used < 20, "{used} pages are left of an empty store");
            }
            if is_done {
                break;
            }
            calls += 5;
        }
        assert!(begun.iter().all(|&begun| begun > 5), "{begun:?}");
    }

    #[test]
    fn base_with_a_part_of_a_log_that_is_missing_is_damaged() {
        let begun = (0..).map(|calls| stopped_after(calls * 10).0).find(|disk| {
            let store = open(&disk.kill()).expect("nothing is damaged");
            store.core().is_begun()
        });
        let disk = begun.expect("there are enough");
        for name in disk.files().iter().filter(|name| name.starts_with("wal-")) {
            disk.platform().storage.remove(name).expect("a log file");
        }
        let error = open(&disk).map(drop).expect_err("the base is of no moment");
        assert_eq!(error.kind(), Kind::Damaged);
        assert!(error.to_string().contains("parts of the base"), "{error}");
    }

    #[test]
    fn overwriting_a_large_base_takes_little_more_than_the_base() {
        let disk = SimDisk::new(1);
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written)
            .generation_bytes(2 << 20, 2 << 20);
        let store = options.open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        let (pairs, value) = (50_000u32, [7; 1_000]);
        let key = |number: u32| (number.wrapping_mul(0x9E37_79B9)).to_be_bytes();
        for number in 0..pairs {
            map.put(key(number), value).expect("room");
        }
        store.maintain().expect("a fold");
        let mut most = (0, 0);
        for number in 0..4 * pairs {
            map.put(key(number % pairs), [number as u8; 1_000]).expect("room");
            if number % 1_000 == 0 {
                let figures = store.core().space.figures().expect("figures");
                most = most.max((figures.file_pages, store.core().space.used_bytes() / PAGE_BYTES as u64));
            }
        }
        let (file, used) = most;
        assert!(used > 12_000, "{used}");
        assert!(file < used * 3 / 2, "{file} pages for {used} that are used");
    }

    #[test]
    fn damage_under_which_nothing_changes_does_not_keep_a_fold_from_being_done() {
        let disk = SimDisk::new(1);
        let options = Options::new().maintenance(Maintenance::Manual).fold_parts(3, 1);
        let store = options.clone().open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        for number in 0..6_000u32 {
            map.put(number.to_be_bytes(), [7; 1_000]).expect("a put");
        }
        store.maintain().expect("a fold");
        let core = store.core();
        let root = core.region.version().root;
        assert_eq!(root.height, 3);
        let mut branches = Vec::new();
        let visited = btree::walk(core.source(), root, &mut |visit| {
            if let Visit::Page { number, pages, .. } = visit
                && pages == BRANCH_PAGES
                && number != root.page
            {
                branches.push(number);
            }
            Ok(())
        });
        visited.expect("a sound tree");
        assert!(branches.len() > 1);
        // The one with the largest keys.
        let rotten = *branches.last().expect("several");
        // A process that wrote a page itself does not verify it.
        let disk = disk.kill();
        let store = options.open_on(disk.platform()).expect("a store");
        let (core, map) = (store.core(), store.map("map").expect("a map"));
        disk.write_raw("data", u64::from(rotten) * PAGE_BYTES as u64 + 100, &[0xEE; 8]);
        map.put(1u32.to_be_bytes(), b"new").expect("a put");
        let divided = btree::divide(core.source(), root, 3, 6, &[]);
        assert!(divided.is_err(), "the parts cannot be told without that branch");
        store.maintain().expect("one thread does not need it");
        assert_eq!(
            map.get(1u32.to_be_bytes()).expect("a read").as_deref(),
            Some(&b"new"[..])
        );
        assert_eq!(core.region.version().generations.len(), 1);
        let last = map.get(5_999u32.to_be_bytes());
        assert!(last.is_err(), "the damage is still there: {last:?}");
    }
}
