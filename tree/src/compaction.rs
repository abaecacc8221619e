//! Forgetting the changes before a revision.
//!
//! Compacting takes effect at once: earlier revisions cannot be read or watched any more. Their rows are removed afterwards, some
//! with each commit, so writers wait for none of it.
//!
//! A full store takes no put, and so no new state; it takes deletions. There the rows are removed first, from the oldest on. A
//! revision whose rows are gone cannot be read either: a mark is deleted with them, and without it readers look for the first row.

use duramen_engine::Result;

use crate::limits::COMPACTED_AT_ONCE;
use crate::node::ChangeRow;
use crate::read::Rows;
use crate::tables::{change_key, change_of, mark_key, removed_key, version_key};
use crate::writes::TreeWrites;

impl TreeWrites<'_> {
    /// Makes a revision the first that can be read. A revision that is compacted already changes nothing.
    ///
    /// # Errors
    /// [`crate::TreeError::FutureRevision`].
    pub fn compact(&mut self, revision: u64) -> Result<()> {
        let (id, first) = (self.tree.id, self.reading().first_revision(self.state)?);
        self.state.check_revision(&self.tree.name, revision.max(first))?;
        if revision <= self.state.first && first == self.state.first {
            return Ok(());
        }
        self.state.first = revision.max(first);
        self.put_state()?;
        self.tx.put(&self.tree.tables.trees, mark_key(id), b"")?;
        // Watches that are behind learn that they are.
        self.tx.ring(&self.tree.sequence);
        Ok(())
    }

    /// Ends leases that have expired and removes rows of compacted revisions: some of them, when there are many. Returns whether
    /// there are more. A program without a background thread calls it; see [`crate::TreesOptions::background`].
    ///
    /// # Errors
    /// Those of [`TreeWrites::expire_leases`] and [`TreeWrites::remove_compacted`].
    pub fn tend(&mut self) -> Result<bool> {
        let (_, has_more) = self.expire_leases()?;
        Ok(self.remove_compacted()? || has_more)
    }

    /// Removes rows of compacted revisions, some of them when there are many. Returns whether there are more.
    ///
    /// # Errors
    /// Those of [`duramen_engine::Transaction::delete`].
    pub fn remove_compacted(&mut self) -> Result<bool> {
        let first = self.state.first;
        if self.reading().removed()?.0 >= first {
            return Ok(false);
        }
        let end = self.remove_before(first)?;
        let key = removed_key(self.tree.id);
        self.tx
            .put(&self.tree.tables.trees, key, &change_key(0, end.0, end.1)[4..])?;
        Ok(end.0 < first)
    }

    /// Removes changes before a revision, some of them when there are many, by deletions alone: so it works in a full store. Returns
    /// whether there are more. What [`TreeWrites::compact`] does is left to do afterwards.
    ///
    /// # Errors
    /// [`crate::TreeError::FutureRevision`], and those of [`duramen_engine::Transaction::delete`].
    pub fn remove_without_room(&mut self, revision: u64) -> Result<bool> {
        self.state
            .check_revision(&self.tree.name, revision.max(self.state.first))?;
        self.tx.delete(&self.tree.tables.trees, mark_key(self.tree.id))?;
        Ok(self.remove_before(revision)?.0 < revision)
    }

    /// Removes rows of changes before a revision. Returns the revision and sub of the first that may be left.
    fn remove_before(&mut self, first: u64) -> Result<(u64, u32)> {
        let id = self.tree.id;
        let (revision, sub) = self.reading().removed()?;
        let (low, high) = (change_key(id, revision, sub), change_key(id, first, 0));
        let (mut versions, mut seen, mut end) = (Vec::new(), 0, (first, 0));
        let mut rows = self.tx.rows(&self.tree.tables.changes, &low[..]..&high[..])?;
        while let Some((key, row)) = rows.next()? {
            let (revision, sub) = change_of(key)?;
            if seen == COMPACTED_AT_ONCE {
                end = (revision, sub);
                break;
            }
            seen += 1;
            let change = ChangeRow::decode(&row)?;
            if change.old.is_some() {
                versions.push(version_key(id, change.path, revision));
            }
        }
        drop(rows);
        let bound = change_key(id, end.0, end.1);
        for key in versions {
            self.tx.delete(&self.tree.tables.versions, key)?;
        }
        self.tx.delete_range(&self.tree.tables.changes, &low[..]..&bound[..])?;
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use duramen_engine::Options;
    use duramen_io::SimDisk;

    use crate::{TreeError, Trees, TreesOptions, WatchOptions};

    /// The process that makes room may die after it has removed changes, and before the state says so.
    #[test]
    fn changes_that_were_removed_without_a_word_of_the_state_cannot_be_read() {
        let mut disk = SimDisk::new(1);
        for killed in [false, true] {
            let store = Options::new().open_on(disk.platform()).unwrap();
            let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
            let tree = trees.ensure("tree").unwrap();
            if !killed {
                (2..=6).for_each(|revision| drop(tree.put("a", revision.to_string()).unwrap()));
                tree.transact(|tree| tree.remove_without_room(4)).unwrap();
                disk = disk.kill();
            }
            let view = tree.view().unwrap();
            assert_eq!((view.first_revision().unwrap(), view.revision()), (4, 6));
            assert_eq!(view.at_revision(4).unwrap().get("a").unwrap().unwrap().payload, b"4");
            let gone = view.at_revision(3).unwrap_err();
            assert!(
                matches!(TreeError::of(&gone), Some(TreeError::Compacted { first: 4, .. })),
                "{gone}"
            );
            assert!(tree.watch(WatchOptions::all().from_revision(3)).is_err());
            let mut watch = tree.watch(WatchOptions::all().from_revision(4)).unwrap();
            let events = watch.next(Duration::ZERO).unwrap().unwrap();
            assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [4, 5, 6]);
            // The next compaction says so, whatever revision it is for.
            if killed {
                tree.compact(2).unwrap();
                assert_eq!(tree.view().unwrap().first_revision().unwrap(), 4);
            }
        }
    }
}
