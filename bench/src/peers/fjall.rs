//! fjall.
//!
//! `written` is fjall's default: every insert passes its journal entry to the operating system. `synced` follows each
//! write with `persist(SyncData)`, the lightest call after which fjall promises that the write survives power loss.

use std::path::Path;

use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};

use crate::answer::Found;
use crate::data::KeySlice;
use crate::peer::{Class, Description, Driver, Pair, Pairs, Peer, Reader, Reading, Setting};
use crate::versions::locked_version;

/// The driver of fjall.
pub struct Fjall;

struct Store {
    database: Database,
    pairs: Keyspace,
    is_synced: bool,
}

struct Moment<'a> {
    snapshot: Snapshot,
    pairs: &'a Keyspace,
}

impl Driver for Fjall {
    fn describe(&self) -> Description {
        Description {
            name: "fjall".to_string(),
            version: locked_version("fjall"),
            classes: vec![
                (
                    Class::Synced,
                    "persist(SyncData) before each acknowledgement".to_string(),
                ),
                (Class::Written, "as it comes".to_string()),
            ],
            options: vec!["cache size as for every store that has a cache".to_string()],
            is_persistent: true,
            ..Description::default()
        }
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let database = Database::builder(directory).cache_size(setting.cache_bytes).open()?;
        let pairs = database.keyspace("pairs", KeyspaceCreateOptions::default)?;
        Ok(Box::new(Store {
            database,
            pairs,
            is_synced: setting.class == Class::Synced,
        }))
    }
}

impl Store {
    fn acknowledge(&self) -> Result<()> {
        if self.is_synced {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }
}

impl Reader for Moment<'_> {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(self.snapshot.get(self.pairs, key)?.as_deref())
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        let mut left = limit;
        for next in self.snapshot.range(self.pairs, from..) {
            if left == 0 {
                break;
            }
            let (key, value) = next.into_inner()?;
            pair(&key, &value)?;
            left -= 1;
        }
        Ok(())
    }

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        for next in self.snapshot.iter(self.pairs).rev().take(limit) {
            let (key, value) = next.into_inner()?;
            pair(&key, &value)?;
        }
        Ok(())
    }
}

impl Peer for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.pairs.insert(key, value)?;
        self.acknowledge()
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        let mut batch = self.database.batch();
        for (key, value) in pairs {
            batch.insert(&self.pairs, key, value);
        }
        batch.commit()?;
        self.acknowledge()
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.pairs.remove(key)?;
        self.acknowledge()
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        let mut batch = self.database.batch();
        for key in keys.iter() {
            batch.remove(&self.pairs, key);
        }
        batch.commit()?;
        self.acknowledge()
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        reading(&Moment {
            snapshot: self.database.snapshot(),
            pairs: &self.pairs,
        })
    }

    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(self.pairs.get(key)?.as_deref())
    }

    fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.pairs.insert(key, value)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }

    fn compact(&self) -> Result<()> {
        self.pairs.rotate_memtable_and_wait()?;
        Ok(self.pairs.major_compact()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        // fjall is closed by dropping the last handle; it syncs its journal then.
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}
