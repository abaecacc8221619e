//! redb.
//!
//! `synced` is redb as it comes (`Durability::Immediate`). `Durability::None` keeps a commit in the memory of the
//! process until a durable one follows, so it is class `none`; redb has no `written`.

use std::path::Path;

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::locked_version;
use crate::data::{Key, Value};
use crate::peer::{Class, Description, Driver, Found, Pair, Peer};

const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("pairs");

/// The driver of redb.
pub struct Redb;

struct Store {
    database: Database,
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
            options: Vec::new(),
            is_persistent: true,
        }
    }

    fn open(&self, directory: &Path, class: Class) -> Result<Box<dyn Peer>> {
        let database = Database::create(directory.join("pairs.redb"))?;
        let durability = if class == Class::Synced {
            Durability::Immediate
        } else {
            Durability::None
        };
        let store = Store { database, durability };
        // Reading a table that nobody made is an error in redb.
        let transaction = store.begin_write()?;
        transaction.open_table(PAIRS)?;
        transaction.commit()?;
        Ok(Box::new(store))
    }
}

impl Store {
    fn begin_write(&self) -> Result<WriteTransaction> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(self.durability)?;
        Ok(transaction)
    }
}

impl Peer for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let transaction = self.begin_write()?;
        transaction.open_table(PAIRS)?.insert(key, value)?;
        Ok(transaction.commit()?)
    }

    fn put_batch(&self, keys: &[Key], values: &[Value]) -> Result<()> {
        let transaction = self.begin_write()?;
        {
            let mut table = transaction.open_table(PAIRS)?;
            for (key, value) in keys.iter().zip(values) {
                table.insert(&key[..], &value[..])?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn get_many(&self, keys: &[Key], found: &mut Found) -> Result<()> {
        let table = self.database.begin_read()?.open_table(PAIRS)?;
        keys.iter()
            .try_for_each(|key| found(key, table.get(&key[..])?.as_ref().map(|value| value.value())))
    }

    fn scan(&self, pair: &mut Pair) -> Result<()> {
        let table = self.database.begin_read()?.open_table(PAIRS)?;
        table.iter()?.try_for_each(|next| {
            let (key, value) = next?;
            pair(key.value(), value.value())
        })
    }

    fn sync(&self) -> Result<()> {
        // A durable commit takes all earlier ones with it.
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction.commit()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.database.close()?)
    }
}
