//! The standard library's `BTreeMap` behind a lock: what a program can use without a store.
//!
//! A read holds the lock for its whole snapshot, so the comparison is fair only while there are no writers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use anyhow::Result;

use crate::answer::Found;
use crate::data::KeySlice;
use crate::peer::{Class, Description, Driver, Pair, Pairs, Peer, Reader, Reading, Setting};

/// The driver of the locked map.
pub struct Locked;

/// Bytes of any length, as in a store: arrays of fixed length would be an advantage that no store has.
type Bytes = Box<[u8]>;
type Map = BTreeMap<Bytes, Bytes>;

#[derive(Default)]
struct LockedMap {
    pairs: RwLock<Map>,
}

impl Driver for Locked {
    fn describe(&self) -> Description {
        Description {
            name: "btreemap".to_string(),
            version: "the standard library's".to_string(),
            classes: vec![(Class::None, "in memory only".to_string())],
            ..Description::default()
        }
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        Ok(Box::new(LockedMap::default()))
    }
}

impl LockedMap {
    fn reading(&self) -> RwLockReadGuard<'_, Map> {
        self.pairs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Map> {
        self.pairs.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader for Map {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(BTreeMap::get(self, key).map(|value| &**value))
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        self.range::<[u8], _>((Bound::Included(from), Bound::Unbounded))
            .take(limit.try_into().unwrap_or(usize::MAX))
            .try_for_each(|(key, value)| pair(key, value))
    }

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        self.iter()
            .rev()
            .take(limit.try_into().unwrap_or(usize::MAX))
            .try_for_each(|(key, value)| pair(key, value))
    }
}

impl Peer for LockedMap {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.writing().insert(key.into(), value.into());
        Ok(())
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        self.writing()
            .extend(pairs.map(|(key, value)| (Box::from(key), Box::from(value))));
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.writing().remove(key);
        Ok(())
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        let mut pairs = self.writing();
        keys.iter().for_each(|key| drop(pairs.remove(key)));
        Ok(())
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        reading(&*self.reading())
    }

    fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(key, value)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
