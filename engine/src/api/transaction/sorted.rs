//! Storing pairs that come in the order of their keys.
//!
//! The simple version: put one after the other.
//!
//! Why there is more to it: what a transaction cannot keep in memory goes to the data file as sorted runs, and the commit merges
//! all of them into one. Pairs that come sorted are such a run already. So those that do not fit into memory are written once,
//! straight to where they stay, and the commit has nothing to merge.

use super::Transaction;
use crate::api::map::{Map, check_value};
use crate::btree::{ChangeStream, Extent, Stored};
use crate::core::Core;
use crate::error::{Error, Reason, Result};
use crate::key::full_key::KeyRoom;
use crate::limits::{LOGGED_VALUE_BYTES_MAX, MAP_ID_BYTES};
use crate::read::write_set::{ENTRY_BYTES, Layer};

impl Transaction {
    /// Stores pairs whose keys ascend, each greater than the one before. Returns how many. Large amounts cost less than with
    /// [`Transaction::put`]: what the transaction cannot keep in memory is sorted already, and is written once.
    ///
    /// # Errors
    /// As [`Transaction::put`]; [`Reason::InvalidArgument`] when a key does not ascend. Pairs before the refused one
    /// were stored; when the disk is full, perhaps none.
    pub fn put_sorted<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        map: &Map,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let id = self.needs(map)?;
        let mut pairs = pairs.into_iter();
        let (mut few, mut room) = (Vec::new(), self.memory_bytes.saturating_sub(self.held().bytes));
        while let Some((key, value)) = pairs.next() {
            let bytes = key.as_ref().len() + value.as_ref().len() + ENTRY_BYTES;
            few.push((key, value));
            let Some(left) = room.checked_sub(bytes) else {
                return self.put_run(id, few.into_iter().chain(pairs));
            };
            room = left;
        }
        let mut last: Option<&[u8]> = None;
        for (key, value) in &few {
            check_ascends(last, key.as_ref())?;
            self.put(map, key, value)?;
            last = Some(key.as_ref());
        }
        Ok(few.len() as u64)
    }

    /// Stores pairs whose keys ascend as a run of their own.
    fn put_run<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        map: u32,
        pairs: impl Iterator<Item = (K, V)>,
    ) -> Result<u64> {
        let core = self.pinned.handle.core.clone();
        let mut ascending = Ascending::new(&core, map, pairs);
        let written = ascending.advance().and_then(|()| core.write_changes(&mut ascending));
        let root = written.inspect_err(|_| core.give_back_values(&ascending.extents))?;
        self.forget_ahead();
        *self.nothing() = Default::default();
        if root.pairs > 0 {
            self.work.extents.append(&mut ascending.extents);
            self.work.layers.push(Layer::of_run(root));
            self.count_below();
        }
        ascending.refused.map_or(Ok(root.pairs), Err)
    }
}

/// Pairs of one map as changes. They end before the first pair that is refused.
struct Ascending<'a, I, V> {
    core: &'a Core,
    map: u32,
    pairs: I,
    /// Full key at hand; empty before the first.
    key: Vec<u8>,
    /// `None` at the end.
    value: Option<Value<V>>,
    refused: Option<Error>,
    /// Long values, which were written.
    extents: Vec<Extent>,
}

enum Value<V> {
    Short(V),
    Long(Extent),
}

impl<'a, I, V> Ascending<'a, I, V> {
    fn new(core: &'a Core, map: u32, pairs: I) -> Self {
        Ascending {
            core,
            map,
            pairs,
            key: Vec::new(),
            value: None,
            refused: None,
            extents: Vec::new(),
        }
    }
}

impl<V: AsRef<[u8]>, I> Ascending<'_, I, V> {
    fn take(&mut self, key: &[u8], value: V) -> Result<Value<V>> {
        check_ascends(self.key.get(MAP_ID_BYTES..), key)?;
        let bytes = value.as_ref();
        check_value(bytes)?;
        let mut room = KeyRoom::new();
        let full_key = room.join(self.map, key)?;
        let taken = if bytes.len() > LOGGED_VALUE_BYTES_MAX {
            let extent = self.core.write_value(bytes)?;
            self.extents.push(extent);
            Value::Long(extent)
        } else {
            Value::Short(value)
        };
        self.key.clear();
        self.key.extend_from_slice(full_key);
        Ok(taken)
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>, I: Iterator<Item = (K, V)>> ChangeStream for Ascending<'_, I, V> {
    fn key(&self) -> Option<&[u8]> {
        self.value.is_some().then_some(&self.key)
    }

    fn change(&self) -> Stored<'_> {
        match self.value.as_ref().expect("asked only while there is a key") {
            Value::Short(value) => Stored::Inline(value.as_ref()),
            Value::Long(extent) => Stored::Extent(*extent),
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.value = match self.pairs.next() {
            Some((key, value)) => self
                .take(key.as_ref(), value)
                .map_err(|error| self.refused = Some(error))
                .ok(),
            None => None,
        };
        Ok(())
    }
}

fn check_ascends(last: Option<&[u8]>, key: &[u8]) -> Result<()> {
    match last.filter(|last| *last >= key) {
        Some(last) => {
            let cause = format!(
                "key \"{}\" does not come after \"{}\", which was before it; sort the pairs by key, and leave each key once",
                key.escape_ascii(),
                last.escape_ascii()
            );
            Err(Reason::InvalidArgument(cause).into())
        }
        None => Ok(()),
    }
}
