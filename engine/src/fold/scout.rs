//! Reading ahead for a fold: where the data file is larger than memory, most leaves that a fold changes come from the disk,
//! and to wait for one after the other makes the fold as slow as the disk answers. A scout goes through the same changes
//! some way before the merge, looks into branches only, which are few, and asks for the leaves.

use crate::btree::{ChangeStream as _, PageSource, Root, leaf_of};
use crate::error::Result;
use crate::fold::newest::NewestChanges;
use crate::read::generation_view::GenerationView;

/// Operations by which a scout is ahead of the merge: enough for the disk to have something to choose from, and so little that
/// what was asked for is still in memory when the merge comes to it.
const AHEAD_MOST: u64 = 128;
/// With less than this it goes on.
const AHEAD_LEAST: u64 = AHEAD_MOST / 2;

/// See the module.
pub(crate) struct Scout<'a, S: PageSource> {
    source: S,
    root: Root,
    changes: NewestChanges<'a, S>,
    /// The leaf that was asked for last: neighbours among the changes often share one.
    last: Option<u32>,
}

impl<'a, S: PageSource> Scout<'a, S> {
    /// A scout for the merge of these generations into a tree, in a range of keys. `None`: the tree stays in memory.
    pub(crate) fn new(
        source: S,
        root: Root,
        generations: &[GenerationView<'a>],
        range: (&[u8], Option<&[u8]>),
    ) -> Result<Option<Self>> {
        if !source.wants_read_ahead() {
            return Ok(None);
        }
        let changes = NewestChanges::of_generations(source, generations, range)?;
        let mut scout = Scout {
            source,
            root,
            changes,
            last: None,
        };
        scout.keep_ahead(0)?;
        Ok(Some(scout))
    }

    /// Asks for leaves that a merge which has taken so many operations will come to.
    pub(crate) fn keep_ahead(&mut self, taken: u64) -> Result<()> {
        if self.changes.taken >= taken + AHEAD_LEAST {
            return Ok(());
        }
        let mut leaves = Vec::new();
        while self.changes.taken < taken + AHEAD_MOST
            && let Some(key) = self.changes.key()
        {
            let leaf = leaf_of(self.source, self.root, key)?;
            if leaf.is_some() && leaf != self.last {
                leaves.extend(leaf);
                self.last = leaf;
            }
            self.changes.advance()?;
        }
        // The merge answers for them.
        self.changes.superseded.clear();
        self.changes.surviving.clear();
        if !leaves.is_empty() {
            self.source.read_ahead(&mut leaves.into_iter());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use duramen_io::SimDisk;

    use super::*;
    use crate::datafile::pages::MappedPages;
    use crate::{Maintenance, Options};

    /// Pages of a store, and the leaves that were asked for.
    #[derive(Clone, Copy)]
    struct Noted<'a> {
        pages: MappedPages<'a>,
        asked: &'a RefCell<Vec<u32>>,
    }

    impl<'a> PageSource for Noted<'a> {
        type Page = &'a [u8];

        fn page(self, number: u32, bytes: usize, checksum: impl FnOnce() -> u32) -> Result<&'a [u8]> {
            self.pages.page(number, bytes, checksum)
        }

        fn wants_read_ahead(self) -> bool {
            self.pages.wants_read_ahead()
        }

        fn read_ahead(self, numbers: &mut dyn Iterator<Item = u32>) {
            self.asked.borrow_mut().extend(numbers);
        }
    }

    /// Which leaves a scout asks for after so many operations were taken, and which ones the changes lie in.
    fn asked_and_changed(machine_bytes: u64, taken: &[u64]) -> (Vec<Vec<u32>>, Vec<u32>) {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .machine_bytes(machine_bytes);
        // All changes in one generation.
        let options = options.generation_bytes(8 << 20, 8 << 20);
        let store = options.open_on(SimDisk::new(1).platform()).expect("a store");
        let map = store.map("map").expect("a map");
        let put = |number: u32| map.put(number.to_be_bytes(), [7; 500]).expect("a put");
        (0..6_000).for_each(put);
        store.maintain().expect("a fold");
        (0..6_000).step_by(10).for_each(put);
        let (core, asked) = (store.core(), RefCell::default());
        let source = Noted {
            pages: core.pages.mapped(),
            asked: &asked,
        };
        let version = core.region.version();
        let newest = *version.generations.last().expect("one takes commits");
        // SAFETY: no other thread has the store, and this one folds nothing meanwhile.
        let generations = [unsafe { core.generation_view(newest) }.expect("a mapped log")];
        let all = (&[][..], None);
        let mut changes = NewestChanges::of_generations(source, &generations, all).expect("sound changes");
        let mut changed = Vec::new();
        while let Some(key) = changes.key() {
            changed.extend(leaf_of(source, version.root, key).expect("sound branches"));
            changes.advance().expect("sound changes");
        }
        changed.dedup();
        let mut scout = Scout::new(source, version.root, &generations, all).expect("sound changes");
        let asked = taken.iter().map(|&taken| {
            if let Some(scout) = &mut scout {
                scout.keep_ahead(taken).expect("sound branches");
            }
            asked.borrow().clone()
        });
        (asked.collect(), changed)
    }

    #[test]
    fn scout_asks_once_for_each_leaf_that_changes_and_is_not_far_ahead() {
        let (asked, changed) = asked_and_changed(1 << 16, &[0, AHEAD_LEAST, AHEAD_MOST, 600]);
        assert!(changed.len() > 2 * AHEAD_MOST as usize, "{}", changed.len());
        for (asked, taken) in asked.iter().zip([0, AHEAD_LEAST, AHEAD_MOST]) {
            // Each change lies in a leaf of its own here, and the one at hand counts as taken.
            let (least, most) = ((taken + AHEAD_LEAST - 1) as usize, (taken + AHEAD_MOST) as usize);
            assert!((least..=most).contains(&asked.len()), "{} after {taken}", asked.len());
            assert_eq!(asked[..], changed[..asked.len()]);
        }
        assert!(asked[3].len() > asked[2].len());
    }

    #[test]
    fn there_is_no_scout_where_everything_stays_in_memory() {
        let (asked, changed) = asked_and_changed(1 << 40, &[0, 600]);
        assert!(!changed.is_empty() && asked.iter().all(Vec::is_empty));
    }
}
