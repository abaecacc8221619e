//! Filling the leaves of a quiet store that random changes have left sparse, step by step: each is published before the next
//! begins, so that the file grows by what one step writes, and not by a second copy of all.
//!
//! It is a merge of changes that change nothing (`touches`), one for each leaf; the merge divides what neighbouring leaves
//! hold evenly over the fewest pages. Values in pages of their own stay where they are. What lies at the end of the file
//! then is moved to the places that came free (`shrink`).

use std::sync::atomic::Ordering;

use crate::base::{self, Cursor, MergeOptions};
use crate::core::{Core, MaintenanceState, with_source};
use crate::error::Result;
use crate::fold::NewTree;
use crate::limits::PAGE_BYTES;
use crate::page_sink::FileSink;
use crate::shrink::unless_it_is_not_to_be;
use crate::space::Claim;
use crate::touches::{Touched, Touches};

/// Between these sizes the space is worth the writing, and the writing does not take long.
const REPACKED_BYTES_MIN: u64 = 384 << 10;
const REPACKED_BYTES_MAX: u64 = 2 << 30;
/// Leaves are sparse when one page in so many, of leaves and all else, would be saved.
const SAVED_PARTS: u64 = 8;
/// Repacking, and moving what it leaves at the end of the file, writes a store at most twice, and is to at most double what folds
/// write: they have written so many times the store since the last time that its leaves were filled, or looked at.
const WRITTEN_TIMES: u64 = 2;
/// In so many steps, of at least so many leaves: each syncs twice.
const STEPS: u64 = 16;
const STEP_LEAVES_MIN: u64 = 1024;
/// After so many leaves is looked whether there is something to fold.
const LEAVES_BETWEEN_LOOKS: u64 = 1024;

impl Core {
    /// Fills the leaves where that saves a good part of the pages, for as long as there is nothing to fold. Returns whether it did.
    pub(crate) fn repack_if_sparse(&self, state: &mut MaintenanceState) -> Result<bool> {
        let used = self.space.used_bytes();
        let is_right_size = (REPACKED_BYTES_MIN + 1..REPACKED_BYTES_MAX).contains(&used);
        // Readers keep what is replaced from coming free; what lies at the end can be moved beside them.
        let is_held = self.region.is_pinned() || self.space.has_retired()?;
        if !is_right_size || is_held || self.is_begun() {
            return Ok(false);
        }
        let goes_on = !state.repacked.is_empty();
        let leaves = (used / PAGE_BYTES as u64 / STEPS).max(STEP_LEAVES_MIN);
        let repacked = if goes_on {
            self.repack(state, leaves)
        } else {
            self.has_sparse_leaves(used)
                .and_then(|is_sparse| Ok(is_sparse && self.repack(state, leaves)?))
        };
        unless_it_is_not_to_be(repacked)
    }

    /// Whether the pairs would lie in a good part fewer leaves, and folds have written so much that they may be written once more
    /// for that. Looks at every leaf.
    fn has_sparse_leaves(&self, used: u64) -> Result<bool> {
        let written = &self.counters.folded_page_bytes;
        if written.load(Ordering::Relaxed) < WRITTEN_TIMES * used || self.pages.exceeds_memory() {
            return Ok(false);
        }
        let (mut leaves, mut pairs, mut bytes) = (0u64, 0u64, 0u64);
        with_source!(self, source => {
            let mut cursor = Cursor::new(source, self.region.version().root);
            cursor.seek(&[])?;
            while cursor.is_valid() {
                let (count, free) = cursor.leaf_fill()?;
                leaves += 1;
                pairs += count as u64;
                bytes += (PAGE_BYTES - free) as u64;
                if leaves.is_multiple_of(LEAVES_BETWEEN_LOOKS) && !self.has_nothing_to_fold_yet() {
                    return Ok(false);
                }
                cursor.skip_leaf()?;
            }
        });
        // As many to a leaf as fit on average.
        let dense = pairs.div_ceil((PAGE_BYTES as u64 * pairs / bytes.max(1)).max(1));
        let is_sparse = leaves.saturating_sub(dense) * PAGE_BYTES as u64 > used / SAVED_PARTS;
        if !is_sparse {
            // They are not looked at again before as much was written once more.
            written.store(0, Ordering::Relaxed);
        }
        Ok(is_sparse)
    }

    /// Fills leaves, so many in each step, from where the last time ended. Returns whether it wrote anything.
    fn repack(&self, state: &mut MaintenanceState, leaves: u64) -> Result<bool> {
        let mut from = std::mem::take(&mut state.repacked);
        let repack_all = || {
            while let Some(rest) = self.repack_step(state, &from, leaves)? {
                from = rest;
                // Also where a reader came who holds what was replaced.
                if !self.has_nothing_to_fold() || self.space.has_retired()? {
                    state.repacked = from;
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let is_whole = repack_all();
        // What failed is not tried again at once.
        if !matches!(is_whole, Ok(false)) {
            self.counters.folded_page_bytes.store(0, Ordering::Relaxed);
        }
        is_whole.map(|_| true)
    }

    /// Fills leaves from a key on. Returns where those begin that are left.
    fn repack_step(&self, state: &mut MaintenanceState, from: &[u8], leaves_max: u64) -> Result<Option<Vec<u8>>> {
        let is_wanted = || self.has_nothing_to_fold_yet();
        let version = self.region.version();
        let mut sink = FileSink::new(self, version.number + 1, Claim::Beyond);
        let touched = Touched {
            from,
            behind: 0,
            leaves_max,
        };
        let options = MergeOptions {
            repack: true,
            ..self.fold_options()
        };
        let merged = with_source!(self, source => {
            Touches::new(source, version.root, &touched, &is_wanted).and_then(|mut touches| {
                let root = base::merge(source, version.root, &mut touches, &[], options, &mut sink)?;
                sink.finish()?;
                Ok((root, touches.rest()))
            })
        });
        let (root, rest) = merged.inspect_err(|_| sink.abandon())?;
        if root == version.root {
            return Ok(None);
        }
        let tree = NewTree {
            birth: sink.birth,
            retired: &sink.retired,
            adopted: &[],
        };
        self.publish_tree(state, tree, |next| next.root = root)?;
        self.counters.folds.fetch_add(1, Ordering::Relaxed);
        self.make_durable(state)?;
        self.reclaim(state)?;
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Durability, Maintenance, Options, Store};

    fn open(disk: &SimDisk) -> Store {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written)
            .overwrite_freed(true);
        options.open_on(disk.platform()).expect("a store")
    }

    #[test]
    fn leaves_that_random_puts_left_sparse_are_filled_once_folds_have_written_enough() {
        let disk = SimDisk::new(2);
        let (store, mut rng) = (open(&disk), fastrand::Rng::with_seed(2));
        let map = store.map("map").expect("a map");
        let total = std::cell::Cell::new(0);
        let mut put = |count: u64| {
            total.set(total.get() + count);
            for _ in 0..count {
                map.put(&rng.u64(..).to_be_bytes(), &[7; 1000]).expect("a put");
            }
            store.maintain().expect("a fold");
        };
        let core = store.core();
        let repack = || {
            let mut state = core.hold_maintenance().expect("nobody else");
            core.repack_if_sparse(&mut state).expect("room")
        };
        let pairs_a_page = || {
            let used = core.space.used_bytes() / PAGE_BYTES as u64;
            core.region.version().root.pairs as f64 / used as f64
        };
        (0..20).for_each(|_| put(400));
        let before = pairs_a_page();
        assert!(before < 2.6, "{before}");
        {
            let mut state = core.hold_maintenance().expect("nobody else");
            core.repack(&mut state, 64).expect("room");
        }
        assert!(!repack(), "what was just written is not written again");
        assert!(pairs_a_page() > 2.85, "{}", pairs_a_page());
        // Some leaves become two with each fold; many of them cost as much as rewriting all.
        for times in 0..2 {
            let mut folds = 0;
            while !repack() {
                put(400);
                folds += 1;
                assert!(folds < 200, "{times}: {}", pairs_a_page());
            }
            assert!(folds > 5, "{times}: {folds}");
            assert!(pairs_a_page() > 2.85, "{times}: {}", pairs_a_page());
        }
        assert!(!repack(), "it is dense");
        assert_eq!(map.count().expect("a sound store"), total.get());
        let report = store.check(&mut |_| ()).expect("a check");
        assert_eq!(report.problems, [""; 0]);
    }

    /// Fills a store in so many rounds, so that its leaves are sparse and folds have written enough to fill them.
    fn fill_sparsely(store: &Store) -> u64 {
        const ROUNDS: u64 = 20;
        let (map, mut rng) = (store.map("map").expect("a map"), fastrand::Rng::with_seed(5));
        for _ in 0..ROUNDS {
            (0..100).for_each(|_| map.put(&rng.u64(..).to_be_bytes(), &[7; 1000]).expect("a put"));
            store.maintain().expect("a fold");
        }
        ROUNDS * 100
    }

    fn repack(store: &Store) -> Result<bool> {
        let core = store.core();
        let mut state = core.hold_maintenance()?;
        core.repack_if_sparse(&mut state)
    }

    fn assert_is_whole(store: &Store, pairs: u64) {
        let report = store.check(&mut |_| ()).expect("a check");
        assert_eq!(report.problems, [""; 0]);
        let map = store.map("map").expect("a map");
        assert_eq!(map.count().expect("a sound store"), pairs);
    }

    #[test]
    fn file_grows_by_what_a_step_writes_and_by_no_second_copy() {
        const STEP: u64 = 100;
        let store = open(&SimDisk::new(3));
        let pairs = fill_sparsely(&store);
        let core = store.core();
        let mut state = core.hold_maintenance().expect("nobody else");
        let before = core.space.figures().expect("nobody else");
        let used = before.file_pages - before.free_pages;
        let (mut from, mut steps) = (Vec::new(), 0);
        while let Some(next) = core.repack_step(&mut state, &from, STEP).expect("room") {
            assert!(next > from);
            (from, steps) = (next, steps + 1);
            let now = core.space.figures().expect("nobody else");
            assert!(
                now.file_pages <= before.file_pages.max(used + 2 * STEP) + 64,
                "{before:?} {now:?}"
            );
            assert_eq!(now.retired_pages, 0);
        }
        assert!(steps > 5, "{steps}");
        let after = core.space.figures().expect("nobody else");
        assert!(
            after.file_pages - after.free_pages < used * 9 / 10,
            "{before:?} {after:?}"
        );
        drop(state);
        assert_is_whole(&store, pairs);
    }

    #[test]
    fn reader_who_holds_what_is_replaced_ends_it_after_a_step_and_it_goes_on_there() {
        let store = open(&SimDisk::new(3));
        let pairs = fill_sparsely(&store);
        let map = store.map("map").expect("a map");
        let snapshot = store.snapshot().expect("a snapshot");
        let core = store.core();
        let folds = core.counters.folds.load(Ordering::Relaxed);
        let mut state = core.hold_maintenance().expect("nobody else");
        assert!(!core.repack_if_sparse(&mut state).expect("room"), "beside a reader");
        assert_eq!(core.counters.folds.load(Ordering::Relaxed), folds);
        // As if he had come after that was looked for.
        core.repack(&mut state, 64).expect("room");
        assert_eq!(core.counters.folds.load(Ordering::Relaxed), folds + 1);
        assert!(!state.repacked.is_empty());
        drop(state);
        let mut held = snapshot.range(&map, ..).expect("a range");
        let mut count = 0;
        while held.next().expect("what nobody overwrote").is_some() {
            count += 1;
        }
        assert_eq!(count, pairs);
        drop(held);
        drop(snapshot);
        let mut state = core.hold_maintenance().expect("nobody else");
        core.reclaim(&mut state).expect("nothing in the way");
        assert!(core.repack_if_sparse(&mut state).expect("room"), "it goes on");
        assert!(state.repacked.is_empty());
        assert!(!core.has_sparse_leaves(1).expect("a sound tree"));
        drop(state);
        assert_is_whole(&store, pairs);
    }

    #[test]
    fn long_values_are_not_written_anew_for_the_sake_of_few_leaves() {
        let store = open(&SimDisk::new(4));
        let map = store.map("long").expect("a map");
        for number in 0..8u64 {
            map.put(&number.to_be_bytes(), &vec![7; 1 << 20]).expect("a put");
        }
        let pairs = fill_sparsely(&store);
        let core = store.core();
        // As after long: folds have written as much as repacking may cost.
        let enough = core.space.used_bytes() * WRITTEN_TIMES;
        core.counters.folded_page_bytes.store(enough, Ordering::Relaxed);
        assert!(!repack(&store).expect("room"));
        core.counters.folded_page_bytes.store(enough, Ordering::Relaxed);
        for number in 0..8u64 {
            map.delete(&number.to_be_bytes()).expect("a deletion");
        }
        store.maintain().expect("a fold");
        assert!(repack(&store).expect("room"));
        assert_is_whole(&store, pairs);
    }

    #[test]
    fn power_cut_or_full_disk_while_leaves_are_filled_leaves_what_was_there() {
        let disk = SimDisk::new(6);
        let store = open(&disk);
        let pairs = fill_sparsely(&store);
        store.sync().expect("synced");
        let sparse = store.core().counters.folded_page_bytes.load(Ordering::Relaxed);
        let full = disk.kill();
        drop(store);
        let as_sparse = |disk: &SimDisk| {
            let store = open(disk);
            store.core().counters.folded_page_bytes.store(sparse, Ordering::Relaxed);
            store
        };
        let store = as_sparse(&full);
        full.set_capacity(Some(full.allocated_bytes()));
        repack(&store).expect("no room is nobody's mistake");
        full.set_capacity(None);
        assert_is_whole(&store, pairs);
        drop(store);
        let (mut calls, mut is_done) = (0, false);
        while !is_done {
            let before = full.kill();
            let store = as_sparse(&before);
            before.stop_after(calls);
            is_done = repack(&store).is_ok_and(|is_filled| is_filled);
            drop(store);
            assert_is_whole(&open(&before.power_cut(calls)), pairs);
            calls += 3;
        }
        assert!(calls > 30, "{calls}");
    }
}
