//! Imports into a tree: until an import has finished, its tree has a mark, so that a part is not served as if it were all.
//!
//! ```text
//! name of the tree                 -> a random number, which names the import
//! ```

use std::hash::{BuildHasher, RandomState};

use duramen::tree::Trees;
use duramen::{Map, Result, Store, Transaction, TransactionOptions};

/// The reserved map of the marks.
pub(crate) const IMPORTS: &str = "server.etcd_imports";

/// An import that has begun: it has its tree to itself.
#[derive(Debug)]
pub struct EtcdImport {
    marks: Map,
    tree: String,
    id: [u8; 8],
}

impl EtcdImport {
    /// Creates a tree and its mark. A part that an earlier import has left is deleted, even if that import still runs: its next
    /// commit fails. `None`: there is such a tree, and no import has left it.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn begin(store: &Store, trees: &Trees, tree: &str) -> Result<Option<EtcdImport>> {
        // Each `RandomState` has random keys of its own.
        let id = RandomState::new().hash_one(tree).to_be_bytes();
        let import = EtcdImport {
            marks: store.reserved_map(IMPORTS)?,
            tree: tree.into(),
            id,
        };
        let has_begun = import.transact(store, |tx| {
            if tx.get_ref(&import.marks, tree)?.is_some() {
                trees.delete_in(tx, tree)?;
            }
            let is_new = trees.create_in(tx, tree)?;
            if is_new {
                tx.put(&import.marks, tree, import.id)?;
            }
            Ok(is_new)
        })?;
        Ok(has_begun.then_some(import))
    }

    /// The tree is complete: from now on it is served. Returns whether the import still had its tree; if not, another import has
    /// it now.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn finish(&self, store: &Store) -> Result<bool> {
        self.transact(store, |tx| self.remove_mark(tx))
    }

    /// Deletes the tree, unless another import has it now.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn undo(&self, store: &Store, trees: &Trees) -> Result<()> {
        self.transact(store, |tx| {
            if self.remove_mark(tx)? {
                trees.delete_in(tx, &self.tree)?;
            }
            Ok(())
        })
    }

    fn remove_mark(&self, tx: &mut Transaction) -> Result<bool> {
        let mark = tx.get_ref(&self.marks, &self.tree)?;
        let is_own = mark.is_some_and(|mark| mark[..] == self.id);
        if is_own {
            tx.delete(&self.marks, &self.tree)?;
        }
        Ok(is_own)
    }

    fn transact<R>(&self, store: &Store, work: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        store.transact_with(TransactionOptions::new().exclusive(), work)
    }
}

/// Whether a tree is what an import has left that did not finish.
pub(crate) fn is_a_part(store: &Store, trees: &Trees, tree: &str) -> Result<bool> {
    let Some(marks) = store.existing_reserved_map(IMPORTS)? else {
        return Ok(false);
    };
    Ok(marks.contains_key(tree)? && trees.get(tree)?.is_some())
}

/// Removes the mark of a tree that was deleted since its import began, before there is another tree of the name.
pub(crate) fn forget_import(store: &Store, tree: &str) -> Result<()> {
    match store.existing_reserved_map(IMPORTS)? {
        Some(marks) if marks.contains_key(tree)? => marks.delete(tree).map(drop),
        _ => Ok(()),
    }
}
