//! Duramen, through its public interface, with the options that it comes with.

use std::path::Path;

use anyhow::Result;
use duramen::{Batch, Durability, Map, Options, Store};

use super::locked_version;
use crate::data::{Key, Value};
use crate::peer::{Class, Description, Driver, Found, Pair, Peer};

/// The driver of Duramen.
pub struct Duramen;

struct Opened {
    store: Store,
    pairs: Map,
}

impl Driver for Duramen {
    fn describe(&self) -> Description {
        Description {
            name: "duramen".to_string(),
            version: locked_version("duramen"),
            classes: vec![
                (Class::Synced, "Durability::Synced, as it comes".to_string()),
                (Class::Written, "Durability::Written".to_string()),
            ],
            options: Vec::new(),
            is_persistent: true,
        }
    }

    fn open(&self, directory: &Path, class: Class) -> Result<Box<dyn Peer>> {
        let durability = if class == Class::Synced {
            Durability::Synced
        } else {
            Durability::Written
        };
        let store = Options::new().durability(durability).open(directory)?;
        let pairs = store.map("pairs")?;
        Ok(Box::new(Opened { store, pairs }))
    }
}

impl Peer for Opened {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.pairs.put(key, value)?)
    }

    fn put_batch(&self, keys: &[Key], values: &[Value]) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in keys.iter().zip(values) {
            batch.put(&self.pairs, key, value)?;
        }
        self.store.write(batch)?;
        Ok(())
    }

    fn get_many(&self, keys: &[Key], found: &mut Found) -> Result<()> {
        let snapshot = self.store.snapshot()?;
        keys.iter()
            .try_for_each(|key| found(key, snapshot.get(&self.pairs, key)?.as_deref()))
    }

    fn scan(&self, pair: &mut Pair) -> Result<()> {
        let snapshot = self.store.snapshot()?;
        let mut cursor = snapshot.range(&self.pairs, ..)?;
        while let Some((key, value)) = cursor.next()? {
            pair(key, &value)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.store.sync()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Opened { store, pairs } = *self;
        drop(pairs);
        Ok(store.close()?)
    }
}
