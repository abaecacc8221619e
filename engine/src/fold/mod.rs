//! Folding: moving frozen generations into the base, making the result durable, and freeing what is no longer needed.
//!
//! The simple version: walk the frozen generations in key order, newest version of each key first, merge them into a
//! new tree that shares all untouched pages with the old one, publish its root, sync the file, write the meta page,
//! free the log.
//!
//! Why it is hard: readers go on with the old root and the old generations; commits go on in the active generation;
//! and a crash may come between any two steps. So the order is: (1) sync the log up to the last frozen commit, so
//! that the base never holds what a power cut may take from the log; (2) write all new pages, to places that have no
//! readers; (3) publish the version {root, L, remaining generations} under the commit lock; (4) only then retire what
//! it replaced, with that version as its death; (5) sync the data file, write the meta page, sync again; (6) only then
//! count the older durable version as forgotten and the log up to L as free. Whatever comes in between, the last
//! durable meta page and the log after it are complete.
//!
//! Invariant: the published root, with the generations of its version above it, is exactly what was committed; by
//! itself it is the state after commit L, or, while a fold goes on step by step (`fold_parts`) or did not come to its
//! end, that state with some ranges of keys as they are after the last commit that is folded, which is `reaches`:
//! `durable <= L <= reaches <= synced`.

pub(crate) mod checkpoints;
pub(crate) mod newest;
pub(crate) mod page_sink;
pub(crate) mod parts;
pub(crate) mod room;
pub(crate) mod scout;
pub(crate) mod shrink;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::allocator::{Claim, Retired, Slack};
use crate::btree::{self, ChangeStream, Extent, MergeOptions, PageSource, Root, Stored};
use crate::core::pins::{Purpose, describe};
use crate::core::watch::Begun;
use crate::core::{Core, MaintenanceState};
use crate::datafile::meta::Meta;
use crate::datafile::pages::MappedPages;
use crate::datafile::promises::LEAVES_PER_OPERATION;
use crate::datafile::register::SavedRegister;
use crate::error::{Error, Reason, Result, unless_full};
use crate::fold::newest::NewestChanges;
use crate::fold::page_sink::FileSink;
use crate::fold::scout::Scout;
use crate::key::full_key::FullRange;
use crate::limits::{PAGE_BYTES, PAGES_AT_CLOSE_MAX, RETAINED_GENERATIONS_MAX};
use crate::log::FoldCosts;
use crate::planted::{PlantedBug, is_planted, kill_point};
use crate::read::write_set::Layer;
use crate::region::{GenerationEntry, GenerationState, Pin, Pins, Version};

/// How often to look again while a reader is just beginning.
const BEGINNING_ROUNDS_MAX: u32 = 100;
/// How often a merge says how far it is, at most: in operations, so that the clock is not asked for each, and in time.
const REPORT_OPERATIONS: u64 = 256;
/// How often, and for how long each time, a fold waits for a sync of the log before it gives more pages to the device.
const SYNC_LOOKS: u32 = 10;
const SYNC_PAUSE: Duration = Duration::from_micros(100);
/// Pause between two pieces that a fold cuts off the end of the file. A piece takes a third of that, or less. In debug builds
/// the pieces are 128 times smaller.
const CUT_PAUSE: Duration = Duration::from_micros(if cfg!(debug_assertions) { 160 } else { 20_000 });
/// Generations of a log that is folded in time: the active one, those that a fold takes, and one that waits.
const GENERATIONS_IN_TIME: usize = 3;
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_millis(2);

/// What was folded: all, or a part.
pub(crate) struct Folded<'c, T> {
    pub(crate) merged: T,
    /// Roots of the runs among the changes: the same for all parts.
    pub(crate) runs: Vec<Root>,
    pub(crate) values: Values,
    pub(crate) costs: FoldCosts,
    pub(crate) sink: FileSink<'c>,
}

/// What becomes of the long values among changes, once all of them are folded: until then recovery would replay records
/// that refer to them.
#[derive(Default)]
pub(crate) struct Values {
    /// Nothing refers to them then.
    pub(crate) superseded: Vec<Extent>,
    pub(crate) surviving: Vec<Extent>,
}

/// A tree that is ready to be published.
pub(crate) struct NewTree<'a> {
    /// The version that its pages say they were born in.
    pub(crate) birth: u64,
    /// What it does not hold of the one before.
    pub(crate) retired: &'a [Retired],
    /// What commits brought that it holds.
    pub(crate) adopted: &'a [Extent],
}

impl MaintenanceState {
    /// The version as which the tree of a page was published that is retired now.
    ///
    /// No snapshot of a version between that one and the one in which its pages say that they were born sees the tree.
    /// So its pages, when they are retired one day, are retired as born when they were published. That holds for pages
    /// of trees alone: values are seen in the log first. What another process published is not known here, and its
    /// pages may wait for more snapshots than they must.
    fn published_as(&self, item: Retired) -> u64 {
        if item.is_logged {
            return item.birth;
        }
        let place = self.published.binary_search_by_key(&item.birth, |&(birth, _)| birth);
        place.map_or(item.birth, |place| self.published[place].1)
    }
}

impl Core {
    /// One round of everything that is due: fold what is there, make it durable, free what is no longer needed.
    pub(crate) fn maintain(&self) -> Result<()> {
        if self.settings.read_only {
            return Err(Reason::ReadOnly.into());
        }
        self.unpoisoned()?;
        self.undamaged()?;
        let _user = self.enter()?;
        self.bury_the_dead();
        self.maintain_all()?;
        // The generation that takes commits now may have been the spare, and what was folded can be the next one. On a
        // full disk the next commit that adds something says so.
        unless_full(self.keep_spare()).map(drop)
    }

    /// Runs [`Core::maintain`] on a store that may be closing.
    pub(crate) fn maintain_all(&self) -> Result<()> {
        let mut state = self.hold_maintenance()?;
        self.maintain_holding(&mut state)
    }

    /// Folds all of the log, makes that durable, and frees what is no longer needed.
    pub(crate) fn maintain_holding(&self, state: &mut MaintenanceState) -> Result<()> {
        let is_frozen = match self.freeze_active() {
            // Folding what is frozen frees a log file, so that it needs no new one.
            Err(error) if error.kind() == crate::error::Kind::MakeSpace => false,
            frozen => frozen?,
        };
        self.maintain_frozen(state)?;
        if !is_frozen {
            self.freeze_active()?;
            self.maintain_frozen(state)?;
        }
        Ok(())
    }

    /// Lets the end of the data file go when it is free: that takes both meta pages, and one more when the saved bitmap
    /// lies there.
    pub(crate) fn give_space_back(&self, state: &mut MaintenanceState, slack: Slack) -> Result<()> {
        for _ in 0..3 {
            self.space.cut(slack, &self.pages, Duration::ZERO)?;
            if !self.space.has_surplus(slack)? {
                return Ok(());
            }
            self.renew_durable(state)?;
            self.reclaim(state)?;
        }
        self.space.cut(slack, &self.pages, Duration::ZERO)
    }

    /// Lets the log have what the data file does not need, on a disk that has no room for both. `false`: that is
    /// nothing.
    pub(crate) fn give_end_back(&self) -> Result<bool> {
        if !self.space.has_surplus(Slack::Least)? {
            return Ok(false);
        }
        let mut state = self.hold_maintenance()?;
        let before = self.space.figures()?.file_pages;
        self.give_space_back(&mut state, Slack::Least)?;
        Ok(self.space.figures()?.file_pages < before)
    }

    /// Folds the frozen generations, makes that durable, and frees space. The active generation stays active.
    pub(crate) fn maintain_frozen(&self, state: &mut MaintenanceState) -> Result<()> {
        self.unpoisoned()?;
        self.undamaged()?;
        let done = self
            .free_what_is_counted_on(state)
            .and_then(|()| self.finish_begun(state))
            .and_then(|()| self.fold_and_keep(state))
            .and_then(|()| self.reclaim_too_early(state))
            .and_then(|()| self.make_durable(state))
            .and_then(|()| self.reclaim(state));
        self.pace.ends(self.platform.clock.monotonic());
        self.fold_failed.store(done.is_err(), Ordering::Relaxed);
        if let Err(error) = &done
            && let Reason::Damaged(what) = error.reason()
        {
            self.stop_writing(what);
        }
        self.report_progress();
        done
    }

    /// Leaves a quiet store with generations of the smallest size, and files and memory to match.
    pub(crate) fn leave_large_generations(&self, state: &mut MaintenanceState) -> Result<()> {
        self.discard_standbys(|slot| self.is_large(slot))?;
        self.trim_log_files()?;
        let least = self.settings.generation_bytes_min;
        self.control().next_capacity.store(least, Ordering::Relaxed);
        self.keep_spare()?;
        // The next standby may have been prepared after the large one. The standby after that was not.
        for _ in 0..2 {
            if self.leave_large_active()? {
                self.maintain_frozen(state)?;
                self.discard_standbys(|_| true)?;
                self.keep_spare()?;
                self.trim_log_files()?;
            }
        }
        self.region.cut_memory()
    }

    /// Folds the frozen generations, and keeps the pending checkpoint on the way.
    fn fold_and_keep(&self, state: &mut MaintenanceState) -> Result<()> {
        self.keep_what_is_reached(state)?;
        self.fold(state)?;
        if self.keep_what_is_reached(state)? {
            self.free_what_is_counted_on(state)?;
            self.fold(state)?;
        }
        Ok(())
    }

    /// A fold relies on the pages that the one before it replaced, and that may have failed halfway; and a snapshot may
    /// have been dropped since.
    pub(crate) fn free_what_is_counted_on(&self, state: &mut MaintenanceState) -> Result<()> {
        if self.space.has_retired()? {
            self.make_durable(state)?;
            self.reclaim(state)?;
        }
        Ok(())
    }

    /// Whether folding all of the log is so little work that closing the store does it.
    pub(crate) fn has_little_to_fold(&self) -> bool {
        // What cannot be looked at cannot be left to others either.
        let Ok(figures) = self.space.figures() else { return true };
        let base = self.space.used_bytes() / PAGE_BYTES as u64;
        let rewritten = (figures.pending_operations * LEAVES_PER_OPERATION).min(base);
        figures.pending_operations <= self.settings.folded_at_close
            && rewritten + figures.pending_bytes / PAGE_BYTES as u64 <= PAGES_AT_CLOSE_MAX
    }

    /// Whether the base holds a part of what is in frozen generations: a fold of them did not come to its end.
    pub(crate) fn is_begun(&self) -> bool {
        self.region.version().is_begun()
    }

    /// Folds what the base holds a part of. That must come before anything else is done to the base: records that refer
    /// to long values are still in the log, while the base refers to the same ones.
    pub(crate) fn finish_begun(&self, state: &mut MaintenanceState) -> Result<()> {
        if self.is_begun() {
            self.fold(state)?;
            self.make_durable(state)?;
            self.reclaim(state)?;
        }
        Ok(())
    }

    /// Frees what was replaced and is not needed any more. `false`: that is nothing.
    pub(crate) fn free_retired(&self) -> Result<bool> {
        if !self.space.has_retired()? {
            return Ok(false);
        }
        let mut state = self.hold_maintenance()?;
        let before = self.space.figures()?.free_pages;
        self.free_what_is_counted_on(&mut state)?;
        Ok(self.space.figures()?.free_pages > before)
    }

    /// Lets commits go on in a new generation, so that what is there can be folded. `false`: that must wait for a fold.
    fn freeze_active(&self) -> Result<bool> {
        let _guard = self.hold_commits()?;
        let active = self.control().tail.0.slot.load(Ordering::Relaxed) as u16;
        let entry = self.entry(active);
        let is_empty = entry.first_commit.load(Ordering::Relaxed) > self.control().visible.0.load(Ordering::Relaxed);
        let rotate = || self.whole_or_stopped("beginning a generation", || self.rotate(0, 0));
        Ok(is_empty || self.can_rotate() && rotate()?)
    }

    /// Folds all frozen generations, or those that a fold has begun with, or those before a pending checkpoint. Returns whether there
    /// were any.
    pub(crate) fn fold(&self, state: &mut MaintenanceState) -> Result<bool> {
        let version = self.region.version();
        let (_, frozen) = version
            .generations
            .split_last()
            .expect("one generation always takes commits");
        // The base may hold a part of the oldest ones: of these, long values that lose are not retired yet.
        let is_begun = |slot: &u16| self.entry(*slot).last_commit.load(Ordering::Relaxed) <= version.reaches;
        let frozen = match frozen.iter().filter(|slot| is_begun(slot)).count() {
            begun if version.is_begun() => &frozen[..begun],
            _ => frozen,
        };
        // What begins with a pending checkpoint is not in it.
        let pending = self.control().pending_checkpoint.0.commit().unwrap_or(u64::MAX);
        let is_before = |&slot: &u16| self.entry(slot).first_commit.load(Ordering::Relaxed) < pending;
        let frozen = &frozen[..frozen.iter().take_while(|slot| is_before(slot)).count()];
        let (Some(&oldest), Some(&newest)) = (frozen.first(), frozen.last()) else {
            return Ok(false);
        };
        let last_commit = self.entry(newest).last_commit.load(Ordering::Relaxed);
        let begun = Begun::now();
        let (mut bytes, mut operations) = (0, 0);
        for entry in frozen.iter().map(|&slot| self.entry(slot)) {
            bytes += entry.tail.load(Ordering::Relaxed);
            operations += entry.costs.load().operations;
        }
        let number = |slot: u16| self.entry(slot).number.load(Ordering::Relaxed);
        self.pace
            .begins(number(oldest), number(newest), bytes, self.platform.clock.monotonic());
        self.set_price();
        if !is_planted(PlantedBug::FoldAheadOfSync) {
            self.wait_generation_synced(last_commit)?;
        }
        self.pace.merges(self.platform.clock.monotonic());
        let mut reported = self.platform.clock.monotonic();
        let mut can_prepare = true;
        let mut report = |done| {
            self.beat();
            let now = self.platform.clock.monotonic();
            if now.saturating_sub(reported) < REPORT_INTERVAL {
                return Ok(());
            }
            reported = now;
            self.pace.merged(done, operations);
            self.set_price();
            if self.closed.load(Ordering::Relaxed) && !self.has_little_to_fold() {
                // The next opening goes on from the log.
                return Err(Reason::Closed.into());
            }
            // For commits that continue. On a full disk the commit that needs a generation reports it.
            if can_prepare && self.folds_in_background() && !self.closed.load(Ordering::Relaxed) {
                can_prepare = self.keep_growing_spare_if_possible()?;
            }
            Ok(())
        };
        let restored = self.restored_by(frozen)?;
        let mut register = version.register;
        let folded = match &restored {
            Some(restored) => {
                self.fold_over_checkpoint(&version, frozen, restored, &mut report)
                    .map(|(root, sink, saved)| {
                        register = saved;
                        (root, sink)
                    })
            }
            None => self
                .fold_in_parts(state, &version, frozen, operations, &mut report)
                .and_then(|folded| match folded {
                    Some(folded) => Ok(folded),
                    None => self.fold_in_one(&self.region.version(), frozen, &mut report),
                }),
        };
        let (root, mut sink) = folded?;
        if let Err(error) = self.keep_history(state, frozen) {
            sink.abandon();
            return Err(error);
        }
        self.install(state, root, last_commit, frozen, sink, register)?;
        if restored.is_some() {
            self.learn_origin()?;
        }
        self.pace.finishes(self.platform.clock.monotonic());
        self.set_price();
        self.count_fold(operations, begun);
        Ok(true)
    }

    /// Merges frozen generations into a version's base, in this thread.
    fn fold_in_one(
        &self,
        version: &Version,
        frozen: &[u16],
        report: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(Root, FileSink<'_>)> {
        let (source, root) = (self.source(), version.root);
        let sink = FileSink::new(self, version.number + 1, Claim::Promised);
        let folded = self.fold_range(root, frozen, (&[], None), sink, report, |changes, cuts, sink| {
            btree::merge(source, root, changes, cuts, self.fold_options(), sink)
        })?;
        let sink = self.retire_folded(folded.values, folded.runs, folded.sink)?;
        Ok((folded.merged, sink))
    }

    /// Merges the changes of frozen generations in a range of keys with what the tree at `root` holds there, as `merge`
    /// does.
    pub(crate) fn fold_range<'c, T>(
        &'c self,
        root: Root,
        frozen: &[u16],
        range: (&[u8], Option<&[u8]>),
        sink: FileSink<'c>,
        report: &mut dyn FnMut(u64) -> Result<()>,
        merge: impl FnOnce(&mut Reported<'_, 'c, MappedPages<'c>>, &[FullRange], &mut FileSink<'c>) -> Result<T>,
    ) -> Result<Folded<'c, T>> {
        // SAFETY: a thread that folds has the maintenance lock, or works for the thread that has it; frozen generations
        // go only under that lock, after the fold.
        let generations = frozen.iter().map(|&slot| unsafe { self.generation_view(slot) });
        let generations = generations.collect::<Result<Vec<_>>>()?;
        let source = self.source();
        let ((merged, mut changes), sink) = sink.filled_by(|sink| {
            let mut changes = NewestChanges::of_generations(source, &generations, range)?;
            let cuts = changes.take_cuts();
            let scout = Scout::new(source, root, &generations, range)?;
            let merged = merge(&mut Reported::new(&mut changes, scout, report), &cuts, sink)?;
            Ok((merged, changes))
        })?;
        Ok(Folded {
            merged,
            runs: changes.take_runs(),
            values: Values {
                superseded: changes.superseded,
                surviving: changes.surviving,
            },
            costs: changes.costs,
            sink,
        })
    }

    /// Says what becomes of the long values and of the runs among changes that are folded: the tree of the sink holds
    /// them.
    pub(crate) fn retire_folded<'c>(
        &self,
        values: Values,
        runs: Vec<Root>,
        mut sink: FileSink<'c>,
    ) -> Result<FileSink<'c>> {
        values
            .superseded
            .into_iter()
            .for_each(|value| sink.retire_logged(value.page, value.pages(), value.birth));
        sink.adopted.extend(values.surviving);
        let retired = retire_runs(self.source(), runs, &mut sink);
        retired.inspect_err(|_| sink.abandon())?;
        Ok(sink)
    }

    /// Publishes the folded root; from here on the fold stands.
    fn install(
        &self,
        state: &mut MaintenanceState,
        root: Root,
        last_commit: u64,
        frozen: &[u16],
        sink: FileSink<'_>,
        register: SavedRegister,
    ) -> Result<()> {
        let tree = NewTree {
            birth: sink.birth,
            retired: &sink.retired,
            adopted: &sink.adopted,
        };
        let published = self.publish_tree(state, tree, |next| {
            next.root = root;
            (next.base_commit, next.reaches) = (last_commit, last_commit);
            next.generations.retain(|slot| !frozen.contains(slot));
            next.register = register;
        });
        published.map(drop)
    }

    /// Publishes a tree, and updates everything that depends on it. Once published, the tree stands, even if this
    /// process dies.
    ///
    /// # Errors
    /// [`crate::Reason::Busy`], before the publication or after it. The next holder of the maintenance lock gives the
    /// tree up, or finishes the updates.
    pub(crate) fn publish_tree(
        &self,
        state: &mut MaintenanceState,
        tree: NewTree<'_>,
        change: impl FnOnce(&mut Version),
    ) -> Result<Version> {
        let birth = tree.birth;
        let published = self.owed_if_busy(self.try_publish_tree(state, tree, change))?;
        let settled = self.finish_install();
        self.note_published(state, birth, published.number);
        self.owed_if_busy(settled).map(|()| published)
    }

    fn try_publish_tree(
        &self,
        state: &MaintenanceState,
        tree: NewTree<'_>,
        change: impl FnOnce(&mut Version),
    ) -> Result<Version> {
        let retired = tree.retired.iter().map(|&item| Retired {
            birth: state.published_as(item),
            ..item
        });
        self.space.stage(retired, tree.adopted)?;
        kill_point();
        let guard = self.hold_commits()?;
        let mut next = self.region.version();
        next.number += 1;
        change(&mut next);
        self.whole_or_stopped("publishing a tree", || {
            // Release, like all that `repair` looks at: first what is going to happen, then that it has.
            self.control().installing.store(next.number, Ordering::Release);
            kill_point();
            self.region.publish(&next);
            kill_point();
        });
        drop(guard);
        Ok(next)
    }

    /// Puts in order what a published tree changes: generations that it holds are folded, and pages that it does not
    /// hold are retired. Under the maintenance lock. If this process dies here, the next holder repeats it.
    pub(crate) fn finish_install(&self) -> Result<()> {
        let death = self.control().installing.load(Ordering::Acquire);
        let version = self.region.version();
        assert!(
            version.number >= death,
            "a tree was published before it is put in order"
        );
        for (slot, entry) in self.region.generations() {
            if entry.state() == GenerationState::Frozen && !version.generations.contains(&slot) {
                self.is_folded(entry, death);
            }
        }
        let pins = self.pins();
        self.space.install(death, &pins)?;
        // Of a large base not for each step.
        if !version.is_begun() {
            self.count_branches(version.root);
        }
        self.control().installing.store(0, Ordering::Release);
        Ok(())
    }

    fn is_folded(&self, entry: &GenerationEntry, death: u64) {
        let costs = entry.costs.load();
        entry.death.store(death, Ordering::Relaxed);
        entry.set_state(GenerationState::Folded);
        kill_point();
        // A process that dies right before this leaves too much promised, never too little.
        self.space.settle(costs);
    }

    /// Looks how many blocks rewriting the base takes.
    pub(crate) fn count_branches(&self, root: Root) {
        let counted = btree::count_branches(self.source(), root);
        // A read of the damaged page's pairs reports the damage.
        self.space.tree_is(root.height, counted.ok());
    }

    /// Remembers as which version a tree was published whose pages say that they were born in version `birth`.
    pub(crate) fn note_published(&self, state: &mut MaintenanceState, birth: u64, published: u64) {
        let pins = self.pins();
        state.published.push((birth, published));
        // Later processes see the two versions as one.
        let oldest = if pins.everything {
            0
        } else {
            pins.versions.first().copied().unwrap_or(published)
        };
        state.published.retain(|&(_, published)| published > oldest);
    }

    /// Everything that snapshots pin. A reader that is just beginning pins everything for less than a microsecond. This
    /// waits for it, for a limited time, because a thread can be suspended at any instruction.
    fn pins(&self) -> Pins {
        for _ in 0..BEGINNING_ROUNDS_MAX {
            let pins = self.region.pins();
            if !pins.everything {
                return pins;
            }
            std::thread::yield_now();
        }
        self.region.pins()
    }

    /// Keeps the version that the fold is about to replace for commit streams, and releases the oldest versions.
    fn keep_history(&self, state: &mut MaintenanceState, frozen: &[u16]) -> Result<()> {
        if self.settings.retain_log_bytes == 0 {
            return Ok(());
        }
        let bytes = frozen
            .iter()
            .map(|&slot| self.entry(slot).tail.load(Ordering::Relaxed))
            .sum();
        let (pin, version, _) = self.region.pin(0, &self.control().visible.0)?;
        describe(self, &pin, Purpose::Changes);
        state.history.push_back((pin, version, bytes));
        let too_much = |history: &VecDeque<(Pin, Version, u64)>| {
            let bytes: u64 = history.iter().map(|(_, _, bytes)| bytes).sum();
            let generations: usize = history
                .iter()
                .map(|(_, version, _)| version.generations.len() - 1)
                .sum();
            bytes > self.settings.retain_log_bytes || generations > RETAINED_GENERATIONS_MAX
        };
        while too_much(&state.history) {
            let (pin, ..) = state
                .history
                .pop_front()
                .expect("the sum of nothing is not above a limit");
            self.region.unpin(&pin);
        }
        Ok(())
    }

    /// Whether the published base holds commits that the durable one does not.
    pub(crate) fn is_base_ahead(&self) -> bool {
        self.region.version().base_commit > self.control().durable.0.load(Ordering::Acquire)
    }

    /// Makes the published base durable, if it is not.
    pub(crate) fn make_durable(&self, state: &mut MaintenanceState) -> Result<()> {
        let version = self.region.version();
        let is_register_durable = version.register == state.durable.register;
        if version.base_commit == state.durable.base_commit && version.root == state.durable.root && is_register_durable
        {
            // Only generations without a commit were folded in between, and no reader needs them.
            self.durable_is(version.number);
            return Ok(());
        }
        self.renew_durable(state)
    }

    /// Writes a meta page for the published base.
    pub(crate) fn renew_durable(&self, state: &mut MaintenanceState) -> Result<()> {
        let version = self.region.version();
        let written = self.prepare_meta(state, &version).and_then(|meta| {
            self.write_meta_page(&meta)?;
            self.note_meta(state, meta)
        });
        written.map_err(|error| self.poisoned_unless_full(error))?;
        let pause = if self.folds_in_background() {
            CUT_PAUSE
        } else {
            Duration::ZERO
        };
        self.space.cut(Slack::Usual, &self.pages, pause)
    }

    /// Only room that was asked for and not given: after a failed sync even a full disk leaves nothing certain.
    pub(crate) fn poisoned_unless_full(&self, error: Error) -> Error {
        match error.reason() {
            crate::error::Reason::Full { .. } | crate::error::Reason::NoRoom { .. } => error,
            _ if error.waited_for().is_some() => error,
            _ => self.poisoned_by(error),
        }
    }

    /// The meta page of a version, whose bitmap is written.
    pub(crate) fn prepare_meta(&self, state: &MaintenanceState, version: &Version) -> Result<Meta> {
        let old = state.durable;
        let (bitmap, data_pages) = self.space.save(old.bitmap, &self.pages)?;
        let tail = &self.control().tail.0;
        Ok(Meta {
            sequence: old.sequence + 1,
            base_commit: version.base_commit,
            previous: self.header_of(version.base_commit, old.previous),
            root: version.root,
            version: version.number,
            bitmap,
            data_pages,
            next_map: tail.next_map.load(Ordering::Relaxed),
            epoch: tail.epoch.load(Ordering::Relaxed),
            next_generation: self.oldest_unfolded(version),
            reaches: version.reaches,
            time: tail.time.load(Ordering::Relaxed).max(old.time),
            register: version.register,
            ..old
        })
    }

    /// Writes a meta page after everything that it refers to.
    pub(crate) fn write_meta_page(&self, meta: &Meta) -> Result<()> {
        if !is_planted(PlantedBug::MetaBeforePages) {
            self.sync_data_file("making the base durable")?;
        }
        kill_point();
        // From the first copy on a power cut may bring it back.
        let sync = || self.sync_data_file("making the base durable");
        self.owed_if_busy(meta.write(&*self.data, &sync))
    }

    /// A meta page was written.
    pub(crate) fn note_meta(&self, state: &mut MaintenanceState, meta: Meta) -> Result<()> {
        self.owed_if_busy(self.is_durable(&meta))?;
        state.durable = meta;
        Ok(())
    }

    /// A meta page is durable. First the allocator learns of it: the next bitmap must never overwrite a bitmap that is
    /// in use.
    pub(crate) fn is_durable(&self, meta: &Meta) -> Result<()> {
        kill_point();
        self.space.saved(meta.bitmap, meta.data_pages)?;
        kill_point();
        self.durable_is(meta.version);
        let control = self.control();
        control.durable.0.store(meta.base_commit, Ordering::Release);
        kill_point();
        // Last: a process that finds another number than the file's repeats all of this.
        control
            .tail
            .0
            .meta_sequence
            .store(meta.sequence as u32, Ordering::Release);
        Ok(())
    }

    /// Header checksum of the record of a commit that ends a generation.
    fn header_of(&self, commit: u64, unchanged: u32) -> u32 {
        let ends = self.region.generations().find(|(_, entry)| {
            entry.state() == GenerationState::Folded && entry.last_commit.load(Ordering::Relaxed) == commit
        });
        ends.map_or(unchanged, |(_, entry)| entry.last_header.load(Ordering::Relaxed))
    }

    /// Number of the oldest generation that is not in the version's base; recovery ignores all before it.
    fn oldest_unfolded(&self, version: &Version) -> u32 {
        let oldest = version
            .generations
            .first()
            .expect("one generation always takes commits");
        self.entry(*oldest).number.load(Ordering::Relaxed)
    }

    /// Nothing, unless a test of the tests plants it: pages of the durable base are freed before there is a newer one.
    fn reclaim_too_early(&self, _state: &mut MaintenanceState) -> Result<()> {
        if is_planted(PlantedBug::ReclaimIgnoresDurableBase) {
            let pins = self.region.pins();
            self.space.reclaim(&pins, u64::MAX, &self.pages)?;
        }
        Ok(())
    }

    /// Frees pages and generations that are no longer needed.
    pub(crate) fn reclaim(&self, state: &mut MaintenanceState) -> Result<()> {
        self.move_streams();
        let mut pins = self.pins();
        if is_planted(PlantedBug::ReclaimIgnoresSnapshots) {
            pins = Pins::default();
        }
        self.space.reclaim(&pins, self.durable_version(), &self.pages)?;
        self.recycle(state)
    }

    /// Waits a moment while a sync of the log is in progress, before more pages go to the device. Otherwise each commit
    /// that waits for its sync would wait for the device to take what a fold writes. A fold that is behind does not
    /// wait.
    pub(crate) fn let_syncs_pass(&self) {
        let lock = &self.control().sync_lock.0;
        for _ in 0..SYNC_LOOKS {
            let is_behind = self.region.version().generations.len() > GENERATIONS_IN_TIME;
            if is_behind || lock.holder().is_none() {
                return;
            }
            std::thread::sleep(SYNC_PAUSE);
        }
    }

    /// Writes all layers of a transaction as one sorted run. Returns its root, and the values that it does not refer to.
    pub(crate) fn write_run(&self, layers: &[Layer]) -> Result<(Root, Vec<Extent>)> {
        let mut changes = NewestChanges::of_layers(self.source(), layers)?;
        let root = self.write_changes(&mut changes)?;
        Ok((root, changes.superseded))
    }

    /// Writes changes as one sorted run.
    pub(crate) fn write_changes(&self, changes: &mut impl ChangeStream) -> Result<Root> {
        let birth = self.region.version().number;
        let source = self.source();
        let options = MergeOptions {
            keep_deletes: true,
            ..self.fold_options()
        };
        let sink = FileSink::new(self, birth, Claim::Loose);
        let written = sink.filled_by(|sink| btree::merge(source, Root::default(), changes, &[], options, sink));
        written.map(|(root, _)| root)
    }

    /// Gives back the pages of a run that only the caller has seen, and those of the values for which `is_dropped` says so.
    pub(crate) fn drop_run(&self, root: Root, is_dropped: impl Fn(&Extent) -> bool) -> Result<()> {
        // Find all pages first: another process may take a page as soon as it is given back, and the page leads to
        // others.
        let mut found = Vec::new();
        btree::walk(self.source(), root, &mut |visit| {
            match visit {
                btree::Visit::Page { number, pages, .. } => found.push((number, pages)),
                btree::Visit::Extent(value) if is_dropped(&value) => found.push((value.page, value.pages())),
                btree::Visit::Extent(_) => {}
            }
            Ok(())
        })?;
        found
            .into_iter()
            .for_each(|(page, pages)| self.space.give_back(page, pages, &self.pages));
        Ok(())
    }
}

/// Changes, with a word now and then of how many were taken, and a scout ahead of them where there is one.
pub(crate) struct Reported<'a, 's, S: PageSource> {
    changes: &'a mut NewestChanges<'s, S>,
    scout: Option<Scout<'s, S>>,
    report: &'a mut dyn FnMut(u64) -> Result<()>,
    next: u64,
}

impl<'a, 's, S: PageSource> Reported<'a, 's, S> {
    pub(crate) fn new(
        changes: &'a mut NewestChanges<'s, S>,
        scout: Option<Scout<'s, S>>,
        report: &'a mut dyn FnMut(u64) -> Result<()>,
    ) -> Reported<'a, 's, S> {
        Reported {
            changes,
            scout,
            report,
            next: 0,
        }
    }
}

impl<S: PageSource> ChangeStream for Reported<'_, '_, S> {
    fn key(&self) -> Option<&[u8]> {
        self.changes.key()
    }

    fn change(&self) -> Stored<'_> {
        self.changes.change()
    }

    fn advance(&mut self) -> Result<()> {
        self.changes.advance()?;
        if let Some(scout) = &mut self.scout {
            scout.keep_ahead(self.changes.taken)?;
        }
        if self.changes.taken >= self.next {
            self.next = self.changes.taken + REPORT_OPERATIONS;
            (self.report)(self.changes.taken)?;
        }
        Ok(())
    }
}

/// Retires the pages of runs that are merged.
fn retire_runs<S: PageSource>(source: S, runs: Vec<Root>, sink: &mut FileSink<'_>) -> Result<()> {
    for run in runs {
        btree::walk(source, run, &mut |visit| {
            if let btree::Visit::Page {
                number, pages, birth, ..
            } = visit
            {
                sink.retire_logged(number, pages, birth);
            }
            Ok(())
        })?;
    }
    Ok(())
}
