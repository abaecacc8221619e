//! redb.
//!
//! `synced` is redb's default (`Durability::Immediate`). `Durability::None` keeps a commit in the memory of the process
//! until a durable commit follows, so it is class `none`; redb has no `written`.

use std::path::Path;
use std::sync::{PoisonError, RwLock};

use anyhow::{Context, Result};
use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTableMetadata, TableDefinition,
    WriteTransaction,
};

use crate::answer::Found;
use crate::data::KeySlice;
use crate::peer::{Choice, Class, Description, Driver, End, Pair, Pairs, Peer, Reader, Reading, Setting, decide};
use crate::versions::locked_version;

const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("pairs");

/// The driver of redb.
pub struct Redb;

struct Store {
    /// Compaction needs exclusive access to the database; everything else shares it.
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
        // Creates the table, because reading a table that was never created is an error in redb.
        store.write(|transaction| {
            transaction.open_table(PAIRS)?;
            Ok(())
        })?;
        Ok(Box::new(store))
    }
}

impl Store {
    fn write(&self, body: impl FnOnce(&WriteTransaction) -> Result<()>) -> Result<()> {
        self.write_as(self.durability, body)
    }

    fn write_as(&self, durability: Durability, body: impl FnOnce(&WriteTransaction) -> Result<()>) -> Result<()> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let mut transaction = database.begin_write()?;
        transaction.set_durability(durability)?;
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

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        for next in self.range::<&[u8]>(..)?.rev().take(limit) {
            let (key, value) = next?;
            pair(key.value(), value.value())?;
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

    fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write_as(Durability::None, |transaction| {
            transaction.open_table(PAIRS)?.insert(key, value)?;
            Ok(())
        })
    }

    fn len(&self) -> Result<u64> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        Ok(database.begin_read()?.open_table(PAIRS)?.len()?)
    }

    fn delete_range(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.write(|transaction| Ok(transaction.open_table(PAIRS)?.retain_in(from..to, |_, _| false)?))
    }

    fn pop_many(&self, end: End, count: u64, popped: &mut Pair) -> Result<()> {
        self.write(|transaction| {
            let mut table = transaction.open_table(PAIRS)?;
            for turn in 0..count {
                let is_first = end == End::First || end == End::ByTurns && turn % 2 == 0;
                let pair = match is_first {
                    true => table.pop_first()?,
                    false => table.pop_last()?,
                };
                let (key, value) = pair.context("there are as many pairs")?;
                popped(key.value(), value.value())?;
            }
            Ok(())
        })
    }

    fn retain(&self, keep: &mut Choice) -> Result<()> {
        let mut chosen = Ok(());
        self.write(|transaction| {
            let mut table = transaction.open_table(PAIRS)?;
            Ok(table.retain(|key, value| decide(&mut chosen, keep(key, value)))?)
        })?;
        chosen
    }

    fn extract(&self, to: &[u8], choose: &mut Choice, taken: &mut Pair) -> Result<()> {
        let mut chosen = Ok(());
        self.write(|transaction| {
            let mut table = transaction.open_table(PAIRS)?;
            let choose = |key: &[u8], value: &[u8]| decide(&mut chosen, choose(key, value));
            for pair in table.extract_from_if(..to, choose)? {
                let (key, value) = pair?;
                taken(key.value(), value.value())?;
            }
            Ok(())
        })?;
        chosen
    }

    fn sync(&self) -> Result<()> {
        // A durable commit makes all earlier ones durable.
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
