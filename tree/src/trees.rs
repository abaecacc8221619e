//! The trees of a store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use duramen_engine::{Error, Result, Store, Transaction, TransactionOptions};

use crate::error::TreeError;
use crate::limits::TREE_NAME_BYTES_MAX;
use crate::read::end_of;
use crate::shared::Shared;
use crate::state::State;
use crate::tables::{NAME, NEXT_ID, Tables, mark_key, name_key, removed_key, state_key};
use crate::tree::Tree;
use crate::worker::Worker;

pub(crate) const FIRST_ID: u32 = 1;

/// The trees of a store. Handles are cheap to clone; dropping the last handle of them and of each [`Tree`] ends the background
/// thread.
#[derive(Clone, Debug)]
pub struct Trees {
    open: Arc<Open>,
    worker: Option<Arc<Worker>>,
}

/// What the background thread works on.
#[derive(Debug)]
struct Open {
    store: Store,
    tables: Tables,
    known: Mutex<HashMap<u32, Tree>>,
}

/// How trees are opened.
#[derive(Clone, Copy, Debug)]
pub struct TreesOptions {
    is_background: bool,
}

impl Default for TreesOptions {
    fn default() -> TreesOptions {
        TreesOptions { is_background: true }
    }
}

impl TreesOptions {
    /// With a background thread.
    pub fn new() -> TreesOptions {
        TreesOptions::default()
    }

    /// Whether a thread of this process expires leases and removes compacted rows. Without one, call [`Trees::work`].
    pub fn background(mut self, is_background: bool) -> TreesOptions {
        self.is_background = is_background;
        self
    }
}

impl Trees {
    /// Opens the trees of a store.
    ///
    /// # Errors
    /// Those of creating maps.
    pub fn open(store: &Store) -> Result<Trees> {
        Trees::open_with(store, TreesOptions::new())
    }

    /// [`Trees::open`] with options.
    ///
    /// # Errors
    /// As [`Trees::open`].
    pub fn open_with(store: &Store, options: TreesOptions) -> Result<Trees> {
        let open = Arc::new(Open {
            store: store.clone(),
            tables: Tables::open(store)?,
            known: Mutex::default(),
        });
        let is_working = options.is_background && !store.is_read_only();
        // Without a thread, leases end by that of another process, or later.
        let worker = is_working.then(|| Worker::start(look(open.clone()))).flatten();
        let worker = worker.map(Arc::new);
        Ok(Trees { open, worker })
    }

    /// A tree, which is created when it is missing.
    ///
    /// # Errors
    /// [`TreeError::InvalidName`], and those of a commit.
    pub fn ensure(&self, name: &str) -> Result<Tree> {
        check_name(name)?;
        let open = &self.open;
        if let Some(tree) = self.get(name)? {
            return Ok(tree);
        }
        let options = TransactionOptions::new().exclusive();
        let id = open.store.transact_with(options, |tx| open.create_in(tx, name))?;
        Ok(open.tree(id, name)?.with_worker(&self.worker))
    }

    /// A tree; `None`: there is none of this name.
    ///
    /// # Errors
    /// Those of reading.
    pub fn get(&self, name: &str) -> Result<Option<Tree>> {
        let tree = self.open.get(name)?;
        Ok(tree.map(|tree| tree.with_worker(&self.worker)))
    }

    /// Names of all trees, in order.
    ///
    /// # Errors
    /// Those of reading.
    pub fn list(&self) -> Result<Vec<String>> {
        Ok(self.open.list()?.into_iter().map(|(name, _)| name).collect())
    }

    /// Deletes a tree with all its nodes, changes and leases. Returns whether there was one. Handles of it fail from then on.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn delete(&self, name: &str) -> Result<bool> {
        let open = &self.open;
        let options = TransactionOptions::new().exclusive();
        open.store.transact_with(options, |tx| open.delete_in(tx, name))
    }

    /// Creates a tree in a transaction, which has it after its commit. Returns whether there was none. The transaction must be
    /// exclusive.
    ///
    /// # Errors
    /// [`TreeError::InvalidName`], and those of [`Transaction::put`].
    pub fn create_in(&self, tx: &mut Transaction, name: &str) -> Result<bool> {
        check_name(name)?;
        let is_new = tx.get_ref(&self.open.tables.trees, name_key(name))?.is_none();
        self.open.create_in(tx, name)?;
        Ok(is_new)
    }

    /// Deletes a tree in a transaction, as [`Trees::delete`]. The transaction must be exclusive.
    ///
    /// # Errors
    /// Those of [`Transaction::delete`].
    pub fn delete_in(&self, tx: &mut Transaction, name: &str) -> Result<bool> {
        self.open.delete_in(tx, name)
    }

    /// Does once what the background thread does: ends leases that have expired, and removes rows of compacted revisions.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn work(&self) -> Result<()> {
        self.open.work()
    }
}

impl Open {
    fn get(&self, name: &str) -> Result<Option<Tree>> {
        let row = self.tables.trees.get(name_key(name))?;
        row.map(|row| self.tree(id_of(&row)?, name)).transpose()
    }

    fn tree(&self, id: u32, name: &str) -> Result<Tree> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tree) = known.get(&id) {
            return Ok(tree.clone());
        }
        let tree = Tree::new(Arc::new(Shared::new(&self.store, &self.tables, id, name)?));
        known.insert(id, tree.clone());
        Ok(tree)
    }

    fn list(&self) -> Result<Vec<(String, u32)>> {
        let snapshot = self.store.snapshot()?;
        let mut rows = snapshot.prefix(&self.tables.trees, [NAME])?;
        let mut names = Vec::new();
        while let Some((key, row)) = rows.next()? {
            let name = String::from_utf8(key[1..].to_vec());
            let name = name.map_err(|_| Error::damaged("the name of a tree is no text"))?;
            names.push((name, id_of(&row)?));
        }
        Ok(names)
    }

    fn create_in(&self, tx: &mut Transaction, name: &str) -> Result<u32> {
        // Another process may have been faster.
        if let Some(row) = tx.get_ref(&self.tables.trees, name_key(name))? {
            return id_of(&row);
        }
        let id = match tx.get_ref(&self.tables.trees, NEXT_ID)? {
            Some(row) => id_of(&row)?,
            None => FIRST_ID,
        };
        tx.put(&self.tables.trees, NEXT_ID, (id + 1).to_be_bytes())?;
        tx.put(&self.tables.trees, name_key(name), id.to_be_bytes())?;
        tx.put(&self.tables.trees, state_key(id), State::NEW.encode())?;
        tx.put(&self.tables.trees, mark_key(id), b"")?;
        Ok(id)
    }

    fn delete_in(&self, tx: &mut Transaction, name: &str) -> Result<bool> {
        let Some(row) = tx.get(&self.tables.trees, name_key(name))? else {
            return Ok(false);
        };
        let id = id_of(&row)?;
        // Should the transaction fail, the tree gets another handle.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&id);
        drop(known);
        tx.delete(&self.tables.trees, name_key(name))?;
        tx.delete(&self.tables.trees, state_key(id))?;
        tx.delete(&self.tables.trees, mark_key(id))?;
        tx.delete(&self.tables.trees, removed_key(id))?;
        let (low, high) = (id.to_be_bytes(), end_of(id));
        for map in self.tables.of_trees() {
            tx.delete_range(map, &low[..]..&high[..])?;
        }
        // Watches learn that there is nothing to watch any more.
        tx.ring(&self.tables.sequence(id, name)?);
        Ok(true)
    }

    fn work(&self) -> Result<()> {
        // A tree that fails holds up no other one.
        let mut worked = Ok(());
        let mut has_more = true;
        while has_more {
            has_more = false;
            for (name, id) in self.list()? {
                match self.tree(id, &name).and_then(|tree| tree.work()) {
                    Ok(more) => has_more |= more,
                    Err(error) => worked = worked.and(Err(error)),
                }
            }
        }
        worked
    }
}

/// What the background thread does at each look. The trees that it has do not keep it running.
fn look(trees: Arc<Open>) -> impl Fn() + Send + 'static {
    // What failed is tried again at the next look.
    move || drop(trees.work())
}

pub(crate) fn id_of(row: &[u8]) -> Result<u32> {
    let id = row.try_into().map(u32::from_be_bytes);
    let id = id.map_err(|_| Error::damaged("the id of a tree has not four bytes"))?;
    // There is always a next one.
    match id {
        u32::MAX => Err(Error::damaged("the id of a tree is too large")),
        id => Ok(id),
    }
}

fn check_name(name: &str) -> Result<()> {
    let cause = match name.len() {
        0 => "it is empty",
        length if length > TREE_NAME_BYTES_MAX => "it is longer than 255 bytes",
        _ => return Ok(()),
    };
    let name = name.chars().take(100).collect();
    Err(TreeError::InvalidName { name, cause }.into())
}
