//! redb.
//!
//! `synced` is redb as it comes (`Durability::Immediate`). `Durability::None` keeps a commit in the memory of the
//! process until a durable one follows, so it is class `none`; redb has no `written`.

use std::path::Path;
use std::sync::{PoisonError, RwLock};

use anyhow::Result;
use redb::{Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition, WriteTransaction};

use super::locked_version;
use crate::data::KeySlice;
use crate::peer::{Class, Description, Driver, Found, Pair, Pairs, Peer, Reader, Reading, Setting};

const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("pairs");

/// The driver of redb.
pub struct Redb;

struct Store {
    /// Compaction wants the database for itself; everything else shares it.
    database: RwLock<Database>,
    durability: Durability,
}

impl Driver for Redb {
    fn describe(&self) -> Description {
        Description {
            name: "redb".to_string(),
            version: locked_version("redb"),
            classes: vec![
                (Class::Synced, "Durability::Immediate, as it comes".to_string()),
                (Class::None, "Durability::None".to_string()),
            ],
            options: vec!["cache size as for every store that has a cache".to_string()],
            is_persistent: true,
            ..Description::default()
        }
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let database = Builder::new()
            .set_cache_size(setting.cache_bytes.try_into()?)
            .create(directory.join("pairs.redb"))?;
        let durability = if setting.class == Class::Synced {
            Durability::Immediate
        } else {
            Durability::None
        };
        let store = Store {
            database: RwLock::new(database),
            durability,
        };
        // Reading a table that nobody made is an error in redb.
        store.write(|transaction| {
            transaction.open_table(PAIRS)?;
            Ok(())
        })?;
        Ok(Box::new(store))
    }
}

impl Store {
    fn write(&self, body: impl FnOnce(&WriteTransaction) -> Result<()>) -> Result<()> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let mut transaction = database.begin_write()?;
        transaction.set_durability(self.durability)?;
        body(&transaction)?;
        Ok(transaction.commit()?)
    }
}

impl Reader for ReadOnlyTable<&'static [u8], &'static [u8]> {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(ReadOnlyTable::get(self, key)?.as_ref().map(|value| value.value()))
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        let mut left = limit;
        for next in self.range(from..)? {
            if left == 0 {
                break;
            }
            let (key, value) = next?;
            pair(key.value(), value.value())?;
            left -= 1;
        }
        Ok(())
    }
}

impl Peer for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(|transaction| {
            transaction.open_table(PAIRS)?.insert(key, value)?;
            Ok(())
        })
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        self.write(|transaction| {
            let mut table = transaction.open_table(PAIRS)?;
            for (key, value) in pairs {
                table.insert(key, value)?;
            }
            Ok(())
        })
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.write(|transaction| {
            transaction.open_table(PAIRS)?.remove(key)?;
            Ok(())
        })
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        self.write(|transaction| {
            let mut table = transaction.open_table(PAIRS)?;
            for key in keys.iter() {
                table.remove(key)?;
            }
            Ok(())
        })
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        let transaction = {
            let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
            database.begin_read()?
        };
        reading(&transaction.open_table(PAIRS)?)
    }

    fn sync(&self) -> Result<()> {
        // A durable commit takes all earlier ones with it.
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction.commit()?)
    }

    fn compact(&self) -> Result<()> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        database.compact()?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let database = self.database.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(database.close()?)
    }
}
