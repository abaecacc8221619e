//! The standard library's `BTreeMap` behind a lock: what a program has that needs no store.
//!
//! Its reads hold the lock for the whole snapshot, so it is a fair comparison only while nobody writes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use anyhow::Result;

use crate::data::{Key, Value};
use crate::peer::{Class, Description, Driver, Found, Pair, Peer};

/// The driver of the locked map.
pub struct Locked;

/// Of any length, as in a store: arrays of fixed length would be an advantage that no store has.
type Bytes = Box<[u8]>;

struct LockedMap {
    pairs: RwLock<BTreeMap<Bytes, Bytes>>,
}

impl Driver for Locked {
    fn describe(&self) -> Description {
        Description {
            name: "btreemap".to_string(),
            version: "the standard library's".to_string(),
            classes: vec![(Class::None, "in memory only".to_string())],
            options: Vec::new(),
            is_persistent: false,
        }
    }

    fn open(&self, _directory: &Path, _class: Class) -> Result<Box<dyn Peer>> {
        Ok(Box::new(LockedMap {
            pairs: RwLock::default(),
        }))
    }
}

impl Peer for LockedMap {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.pairs
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key.into(), value.into());
        Ok(())
    }

    fn put_batch(&self, keys: &[Key], values: &[Value]) -> Result<()> {
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        pairs.extend(
            keys.iter()
                .zip(values)
                .map(|(key, value)| (Box::from(&key[..]), Box::from(&value[..]))),
        );
        Ok(())
    }

    fn get_many(&self, keys: &[Key], found: &mut Found) -> Result<()> {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter()
            .try_for_each(|key| found(key, pairs.get(&key[..]).map(|value| &**value)))
    }

    fn scan(&self, pair: &mut Pair) -> Result<()> {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        pairs.iter().try_for_each(|(key, value)| pair(key, value))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
