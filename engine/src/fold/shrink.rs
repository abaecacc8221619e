//! Moving what lies at the end of the data file to free places in front of it, so that the file can be cut.
//!
//! A fold writes what changes to other places, so a base that was loaded or changed in random order leaves a file of
//! which up to half is free, all over. Rewriting the base would write all of it, twice; this writes the pages behind
//! the new end of the file, once.
//!
//! It is a merge whose changes put one pair of each such leaf as it is: a leaf in which nothing but values of the same
//! length is put is copied as a whole (`btree/merge/overwrite.rs`), and the branches on the way are rewritten. Values
//! in pages of their own stay where they are.

use std::sync::atomic::Ordering;

use crate::allocator::{Claim, Slack};
use crate::btree::{self, ChangeStream, Cursor, PageSource, Root, Stored};
use crate::core::{Core, MaintenanceState};
use crate::error::{Kind, Result};
use crate::fold::NewTree;
use crate::fold::page_sink::FileSink;
use crate::limits::{BRANCH_PAGES, PAGE_BYTES};

/// The file stays longer than its used pages by this fraction, so that the next commits find room.
const ROOM_PARTS: u64 = 16;
/// It is worth the writing when more than one page in so many can be given back.
const WORTH_PARTS: u64 = 10;
/// And so many bytes.
const WORTH_BYTES_MIN: u64 = 1 << 20;
/// After so many leaves is looked whether there is something to fold: then that is more urgent, and what was moved so
/// far is moved.
const LEAVES_BETWEEN_LOOKS: u64 = 64;

impl Core {
    /// Whether optional work on the file delays no other work.
    fn has_nothing_to_fold(&self) -> bool {
        self.region.version().generations.len() == 1 && !self.closed.load(Ordering::Relaxed)
    }

    /// Moves pages to the front, where that lets a good part of the file go. Returns whether it did.
    pub(crate) fn shrink(&self, state: &mut MaintenanceState) -> Result<bool> {
        let figures = self.space.figures()?;
        let used = self.space.used_bytes() / PAGE_BYTES as u64;
        let wanted = used + used / ROOM_PARTS + WORTH_BYTES_MIN / PAGE_BYTES as u64;
        let surplus = figures.file_pages.saturating_sub(wanted);
        let is_worth_it = surplus > figures.file_pages / WORTH_PARTS && surplus * PAGE_BYTES as u64 > WORTH_BYTES_MIN;
        // Readers may hold what is moved: the file is cut when they end. Until then nothing more is moved, since what
        // they hold is retired. Looking for what to move reads the whole base.
        // What a checkpoint keeps would be copied, and not moved.
        let is_possible = figures.retired_pages == 0 && !self.pages.exceeds_memory() && self.origin().is_none();
        let version = self.region.version();
        let seen = (version.root, figures.file_pages);
        if !is_worth_it || !is_possible || self.is_begun() || state.shrunk_in_vain == Some(seen) {
            return Ok(false);
        }
        let is_wanted = || {
            self.beat();
            self.has_nothing_to_fold()
        };
        let mut sink = FileSink::new(self, version.number + 1, Claim::Front);
        let source = self.source();
        let moved = Touches::new(source, version.root, wanted as u32, &is_wanted).and_then(|mut touches| {
            let options = self.fold_options();
            let root = btree::merge(source, version.root, &mut touches, &[], options, &mut sink)?;
            sink.finish()?;
            Ok(root)
        });
        let root = match moved {
            Ok(root) if root != version.root => root,
            done => {
                sink.abandon();
                // A reader may have held what lay at the end when it was moved.
                let cut = done.and_then(|_| {
                    self.give_space_back(state, Slack::Nothing)?;
                    Ok(self.space.figures()?.file_pages < figures.file_pages)
                });
                let is_cut = unless_it_is_not_to_be(cut)?;
                if !is_cut && self.has_nothing_to_fold() {
                    state.shrunk_in_vain = Some(seen);
                }
                return Ok(is_cut);
            }
        };
        let tree = NewTree {
            birth: sink.birth,
            retired: &sink.retired,
            adopted: &[],
        };
        self.publish_tree(state, tree, |next| next.root = root)?;
        self.watch.folds.up();
        self.make_durable(state)?;
        self.reclaim(state)?;
        // What was moved has no other use than that the file is cut.
        self.give_space_back(state, Slack::Nothing)?;
        Ok(true)
    }
}

/// The result of background work on the file: neither damage that no change has met nor a full disk stops the store.
fn unless_it_is_not_to_be(done: Result<bool>) -> Result<bool> {
    match done {
        Err(error) if matches!(error.kind(), Kind::Damaged | Kind::MakeSpace) => Ok(false),
        done => done,
    }
}

/// Changes that move pages: one pair, with the value that it has, for each leaf whose page or branch lies beyond a limit.
struct Touches<'w, S: PageSource> {
    cursor: Cursor<S>,
    behind: u32,
    /// Whether to go on.
    is_wanted: &'w dyn Fn() -> bool,
    leaves: u64,
    has_ended: bool,
    /// The branches above the leaf at hand, and those above the last leaf that was touched.
    branches: Vec<u32>,
    touched: Vec<u32>,
}

impl<'w, S: PageSource> Touches<'w, S> {
    fn new(source: S, root: Root, behind: u32, is_wanted: &'w dyn Fn() -> bool) -> Result<Touches<'w, S>> {
        let mut touches = Touches {
            cursor: Cursor::new(source, root),
            behind,
            is_wanted,
            leaves: 0,
            has_ended: false,
            branches: Vec::new(),
            touched: Vec::new(),
        };
        touches.cursor.seek(&[])?;
        touches.find()?;
        Ok(touches)
    }

    /// Goes on to the next leaf that must be touched, from the one at hand on.
    fn find(&mut self) -> Result<()> {
        while self.cursor.is_valid() {
            self.leaves += 1;
            let is_time_to_look = self.leaves.is_multiple_of(LEAVES_BETWEEN_LOOKS);
            if is_time_to_look && !(self.is_wanted)() {
                self.has_ended = true;
                return Ok(());
            }
            self.branches.clear();
            self.branches.extend(self.cursor.branches());
            let is_behind = |page: u32, pages: u32| page + pages > self.behind;
            let must_move = self
                .branches
                .iter()
                .any(|&branch| is_behind(branch, BRANCH_PAGES) && !self.touched.contains(&branch));
            if must_move || is_behind(self.cursor.leaf(), 1) {
                std::mem::swap(&mut self.branches, &mut self.touched);
                return Ok(());
            }
            self.cursor.skip_leaf()?;
        }
        Ok(())
    }
}

impl<S: PageSource> ChangeStream for Touches<'_, S> {
    fn key(&self) -> Option<&[u8]> {
        (self.cursor.is_valid() && !self.has_ended).then(|| self.cursor.key())
    }

    fn change(&self) -> Stored<'_> {
        let (page, location) = self.cursor.value();
        location.stored(page)
    }

    fn advance(&mut self) -> Result<()> {
        self.cursor.skip_leaf()?;
        self.find()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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

    fn shrink(store: &Store) -> bool {
        let core = store.core();
        let mut state = core.hold_maintenance().expect("no other process");
        core.shrink(&mut state).expect("room")
    }

    type Model = BTreeMap<[u8; 8], Vec<u8>>;

    /// A store whose pages lie all over its file.
    fn scattered(disk: &SimDisk) -> (Store, Model) {
        let (store, mut rng, mut model) = (open(disk), fastrand::Rng::with_seed(3), Model::new());
        let map = store.map("map").expect("a map");
        for _ in 0..8 {
            for _ in 0..8_000 {
                let key = (rng.u64(..) % 40_000).to_be_bytes();
                let value = vec![rng.u8(..); rng.usize(..200)];
                map.put(key, &value).expect("a put");
                model.insert(key, value);
            }
            store.maintain().expect("a fold");
        }
        (store, model)
    }

    fn assert_holds(store: &Store, model: &Model) {
        let map = store.map("map").expect("a map");
        let snapshot = store.snapshot().expect("a snapshot");
        let mut cursor = snapshot.range(&map, ..).expect("a range");
        for (key, value) in model {
            let (found, held) = cursor.next().expect("a sound store").expect("a pair");
            assert_eq!((found, &*held), (&key[..], &value[..]));
        }
        assert!(cursor.next().expect("a sound store").is_none());
        let report = store.check(&mut |_| ()).expect("a check");
        assert_eq!(report.problems, [""; 0]);
    }

    #[test]
    fn file_with_free_pages_all_over_is_cut_and_holds_what_it_held() {
        let disk = SimDisk::new(1);
        let (store, model) = scattered(&disk);
        let before = store.core().space.figures().expect("no other process");
        assert!(shrink(&store));
        let after = store.core().space.figures().expect("no other process");
        let used = after.file_pages - after.free_pages;
        assert!(after.file_pages < before.file_pages * 4 / 5, "{before:?} {after:?}");
        assert!(after.file_pages < used * 5 / 4 + 300, "{after:?}");
        assert_holds(&store, &model);
        assert!(!shrink(&store), "there is nothing left to do");
        store.close().expect("closed");
        assert_holds(&open(&disk), &model);
    }

    #[test]
    fn end_of_the_file_is_cut_in_pieces_and_a_kill_after_each_leaves_the_store_whole() {
        let cut_to = |call: &String| -> Option<u64> {
            let length = call.strip_prefix("truncate data ")?.split(' ').next()?;
            Some(length.parse().expect("a length"))
        };
        let disk = SimDisk::new(1);
        let (store, model) = scattered(&disk);
        let before = store.core().space.figures().expect("no other process").file_pages * 4096;
        disk.trace(true);
        assert!(shrink(&store));
        let calls = disk.take_trace();
        let lengths: Vec<u64> = calls.iter().filter_map(cut_to).collect();
        assert!(lengths.len() > 3, "{before} {lengths:?}");
        let starts = std::iter::once(before).chain(lengths.iter().copied());
        for (start, end) in starts.zip(&lengths) {
            assert!(*end < start && start - end <= 64 * 4096, "{before} {lengths:?}");
        }
        // The disk stops before a piece, and after it: the store opens again, and holds everything.
        let cuts = (0..calls.len()).filter(|&at| cut_to(&calls[at]).is_some()).take(4);
        for stop in cuts.flat_map(|at| [at, at + 1]) {
            let disk = SimDisk::new(1);
            let (store, _) = scattered(&disk);
            disk.stop_after(stop as u64);
            let core = store.core();
            let mut state = core.hold_maintenance().expect("no other process");
            core.shrink(&mut state)
                .expect_err("the disk stops before the last piece");
            drop(state);
            assert_holds(&open(&disk.kill()), &model);
            assert_holds(&open(&disk.power_cut(stop as u64)), &model);
        }
        assert_holds(&store, &model);
    }

    #[test]
    fn something_to_fold_ends_it_early_and_what_was_moved_is_moved() {
        let disk = SimDisk::new(1);
        let (store, model) = scattered(&disk);
        let core = store.core();
        let (version, looks) = (core.region.version(), std::cell::Cell::new(0));
        let is_wanted = || looks.replace(looks.get() + 1) < 2;
        let mut touches = Touches::new(core.pages.mapped(), version.root, 0, &is_wanted).expect("a sound tree");
        let mut touched = 0;
        while touches.key().is_some() {
            touched += 1;
            touches.advance().expect("a sound tree");
        }
        assert_eq!(touched, 3 * LEAVES_BETWEEN_LOOKS - 1);
        assert_holds(&store, &model);
    }

    #[test]
    fn what_a_reader_holds_is_moved_once_and_the_file_cut_when_he_ends() {
        let disk = SimDisk::new(1);
        let (store, model) = scattered(&disk);
        let before = store.core().space.figures().expect("no other process");
        let (map, snapshot) = (store.map("map").expect("a map"), store.snapshot().expect("a snapshot"));
        assert!(shrink(&store));
        assert!(
            !shrink(&store),
            "moved again, for a reader who still holds the first places"
        );
        for (key, value) in &model {
            let held = snapshot.get(&map, key).expect("a pair that stayed").expect("a pair");
            assert_eq!(&*held, value);
        }
        assert!(store.core().space.figures().expect("no other process").file_pages > before.file_pages * 9 / 10);
        drop(snapshot);
        // As the thread that folds does in a quiet store.
        let mut state = store.core().hold_maintenance().expect("no other process");
        store.core().reclaim(&mut state).expect("nothing in the way");
        store.core().give_space_back(&mut state, Slack::Least).expect("room");
        drop(state);
        let after = store.core().space.figures().expect("no other process");
        assert!(after.file_pages < before.file_pages * 4 / 5, "{before:?} {after:?}");
        assert_holds(&store, &model);
    }

    #[test]
    fn end_that_a_reader_held_is_cut_off_when_he_has_ended_however_short_it_is() {
        let disk = SimDisk::new(1);
        let (store, model) = scattered(&disk);
        let core = store.core();
        // All of it at the front, but for an end that is shorter than the file may keep.
        assert!(shrink(&store));
        let dense = core.space.figures().expect("no other process").file_pages;
        let snapshot = store.snapshot().expect("a snapshot");
        for _ in 0..3 {
            let map = store.map("map").expect("a map");
            for (key, value) in model.iter().step_by(100) {
                map.put(key, value).expect("a put");
            }
            store.maintain().expect("a fold");
        }
        drop(snapshot);
        let mut state = core.hold_maintenance().expect("no other process");
        core.reclaim(&mut state).expect("nothing in the way");
        drop(state);
        let long = core.space.figures().expect("no other process").file_pages;
        assert!(long > dense * 9 / 8, "{dense} {long}");
        let held = store.snapshot().expect("a snapshot");
        while shrink(&store) {}
        drop(held);
        let mut state = core.hold_maintenance().expect("no other process");
        core.reclaim(&mut state).expect("nothing in the way");
        drop(state);
        while shrink(&store) {}
        let after = core.space.figures().expect("no other process");
        let used = after.file_pages - after.free_pages;
        assert!(after.file_pages < used * 9 / 8 + 300, "{after:?}");
        assert_holds(&store, &model);
    }

    #[test]
    fn damage_that_no_change_has_met_ends_it_and_stops_nobody() {
        let (disk, key, wanted) = (
            SimDisk::new(1),
            20_000u64.to_be_bytes(),
            *b"a value that is found in the file",
        );
        let (store, _) = scattered(&disk);
        store.map("map").expect("a map").put(key, wanted).expect("a put");
        store.maintain().expect("a fold");
        drop(store);
        let disk = disk.kill();
        let data = disk.read_raw("data");
        let place = data.windows(wanted.len()).position(|bytes| bytes == wanted);
        disk.write_raw("data", place.expect("its leaf") as u64, b"A");
        let store = open(&disk);
        let pages_in_use = || {
            let figures = store.core().space.figures().expect("no other process");
            figures.file_pages - figures.free_pages
        };
        let before = pages_in_use();
        assert!(!shrink(&store));
        assert_eq!(pages_in_use(), before);
        let map = store.map("map").expect("a map");
        map.put(b"other", b"value").expect("no process is suspended");
        assert_eq!(map.get(key).expect_err("damage").kind(), Kind::Damaged);
    }

    #[test]
    fn power_cut_in_the_middle_of_it_leaves_what_was_there() {
        let disk = SimDisk::new(1);
        let (store, model) = scattered(&disk);
        store.sync().expect("synced");
        drop(store);
        let (mut calls, mut is_done) = (0, false);
        while !is_done {
            let before = disk.kill();
            let store = open(&before);
            before.stop_after(calls);
            let core = store.core();
            let mut state = core.hold_maintenance().expect("no other process");
            is_done = core.shrink(&mut state).is_ok();
            drop(state);
            let after = before.power_cut(calls);
            assert_holds(&open(&after), &model);
            calls += 3;
        }
        assert!(calls > 30, "{calls}");
    }
}
