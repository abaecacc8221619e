//! canopydb.
//!
//! `written` is canopydb's default: a commit is in the write-ahead log, without a sync. `synced` requests the sync at
//! each commit. Single writes use its concurrent transactions, so that committers can share a sync, and retry after a
//! conflict.

use std::path::Path;

use anyhow::{Context as _, Result};
use canopydb::{Database, DbOptions, EnvOptions, Error, Tree, WriteTransaction};

use crate::answer::Found;
use crate::data::KeySlice;
use crate::peer::{Class, Description, Driver, Pair, Pairs, Peer, Reader, Reading, Setting};
use crate::versions::locked_version;

const PAIRS: &[u8] = b"pairs";

/// The driver of canopydb.
pub struct Canopydb;

struct Store {
    database: Database,
    is_synced: bool,
}

impl Driver for Canopydb {
    fn describe(&self) -> Description {
        Description {
            name: "canopydb".to_string(),
            version: locked_version("canopydb"),
            classes: vec![
                (Class::Synced, "commit_with(sync)".to_string()),
                (Class::Written, "as it comes".to_string()),
            ],
            options: vec!["page cache size as for every store that has a cache".to_string()],
            is_persistent: true,
            ..Description::default()
        }
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let mut options = EnvOptions::new(directory);
        options.page_cache_size = setting.cache_bytes.try_into()?;
        let database = Database::with_options(options, DbOptions::default())?;
        let store = Store {
            database,
            is_synced: setting.class == Class::Synced,
        };
        // Creates the tree, because a reader does not find a tree that was never created.
        let transaction = store.database.begin_write()?;
        drop(transaction.get_or_create_tree(PAIRS)?);
        transaction.commit_with(store.is_synced)?;
        Ok(Box::new(store))
    }
}

impl Store {
    fn write(
        &self,
        begin: impl Fn(&Database) -> Result<WriteTransaction, Error>,
        body: &mut dyn FnMut(&mut Tree) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let transaction = begin(&self.database)?;
        {
            let mut tree = transaction.get_or_create_tree(PAIRS)?;
            body(&mut tree)?;
        }
        transaction.commit_with(self.is_synced)?;
        Ok(())
    }

    fn write_one(&self, body: &mut dyn FnMut(&mut Tree) -> Result<(), Error>) -> Result<()> {
        loop {
            match self.write(Database::begin_write_concurrent, body) {
                Err(Error::WriteConflict) => {}
                done => return Ok(done?),
            }
        }
    }
}

impl Reader for Tree<'_> {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(Tree::get(self, key)?.as_deref())
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        let mut left = limit;
        for next in self.range(from..)? {
            if left == 0 {
                break;
            }
            let (key, value) = next?;
            pair(&key, &value)?;
            left -= 1;
        }
        Ok(())
    }

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        for next in self.range::<&[u8]>(..)?.rev().take(limit) {
            let (key, value) = next?;
            pair(&key, &value)?;
        }
        Ok(())
    }
}

impl Peer for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write_one(&mut |tree| tree.insert(key, value))
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        self.write(Database::begin_write, &mut |tree| {
            for (key, value) in &mut *pairs {
                tree.insert(key, value)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.write_one(&mut |tree| tree.delete(key).map(|_| ()))
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        self.write(Database::begin_write, &mut |tree| {
            keys.iter().try_for_each(|key| tree.delete(key).map(|_| ()))
        })?;
        Ok(())
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        let transaction = self.database.begin_read()?;
        let tree = transaction.get_tree(PAIRS)?.context("opening made the tree")?;
        reading(&tree)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.sync()?)
    }

    fn compact(&self) -> Result<()> {
        Ok(self.database.compact()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Dropping the last handle closes the database and waits for its threads.
        Ok(self.database.sync()?)
    }
}
