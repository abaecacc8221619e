//! Reading ahead for a fold: where the data file is larger than memory, most leaves that a fold changes come from the disk,
//! and to wait for one after the other makes the fold as slow as the disk answers. A scout goes through the same changes
//! some way before the merge, looks into branches only, which are few, and asks for the leaves.

use crate::base::{ChangeStream as _, PageSource, Root, leaf_of};
use crate::error::Result;
use crate::newest::NewestChanges;
use crate::view::GenerationView;

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

impl<S: PageSource> Scout<'_, S> {
    /// A scout for the merge of these generations into a tree, in a range of keys. `None`: the tree stays in memory.
    pub(crate) fn new(
        source: S,
        root: Root,
        generations: &[GenerationView],
        range: (&[u8], Option<&[u8]>),
    ) -> Result<Option<Self>> {
        if !source.wants_read_ahead() {
            return Ok(None);
        }
        let changes = NewestChanges::of_generations_in(source, generations, range)?;
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
