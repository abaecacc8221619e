//! Forgetting the changes before a revision.
//!
//! Compacting takes effect at once: earlier revisions cannot be read or watched any more. Their rows are removed afterwards, some
//! with each commit, so writers wait for none of it.

use duramen_engine::Result;

use crate::limits::COMPACTED_AT_ONCE;
use crate::node::ChangeRow;
use crate::read::Rows;
use crate::tables::{change_key, change_of, version_key};
use crate::view::check_revision;
use crate::writes::TreeWrites;

impl TreeWrites<'_> {
    /// Makes a revision the first that can be read. A revision that is compacted already changes nothing.
    ///
    /// # Errors
    /// [`crate::TreeError::FutureRevision`].
    pub fn compact(&mut self, revision: u64) -> Result<()> {
        if revision <= self.state.first {
            return Ok(());
        }
        check_revision(&self.tree.name, self.state, revision)?;
        self.state.first = revision;
        self.put_state()?;
        // Watches that are behind learn that they are.
        self.tx.ring(&self.tree.sequence);
        Ok(())
    }

    /// Removes rows of compacted revisions, some of them when there are many. Returns whether there are more.
    ///
    /// # Errors
    /// Those of [`duramen_engine::Transaction::delete`].
    pub fn remove_compacted(&mut self) -> Result<bool> {
        let (id, first) = (self.tree.id, self.state.first);
        let (revision, sub) = self.state.removed;
        if revision >= first {
            return Ok(false);
        }
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
        self.state.removed = end;
        self.put_state()?;
        Ok(end.0 < first)
    }
}
