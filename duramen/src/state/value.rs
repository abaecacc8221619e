//! States with one value for each key.

use std::marker::PhantomData;

use duramen_engine::encoding::DecodeKey;
use duramen_engine::{Result, Transaction};

use super::rows::Rows;
use crate::codec::{KeyFor, ValueCodec};
use crate::typed::{Reads, Types, encode_value};

/// A state that holds one value for each key; see [`super::KeyedState::value`].
#[derive(Debug)]
pub struct ValueState<K, V> {
    rows: Rows,
    types: Types<K, V>,
}

impl<K, V> Clone for ValueState<K, V> {
    fn clone(&self) -> Self {
        ValueState::new(self.rows.clone())
    }
}

impl<K, V> ValueState<K, V> {
    pub(super) fn new(rows: Rows) -> ValueState<K, V> {
        ValueState {
            rows,
            types: PhantomData,
        }
    }
}

impl<K: DecodeKey, V: ValueCodec> ValueState<K, V> {
    /// The value of a key.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of reading; [`crate::Reason::InvalidArgument`] when the stored bytes are not a `V`.
    pub fn get<Q: KeyFor<K> + ?Sized>(&self, reads: &impl Reads, key: &Q) -> Result<Option<V>> {
        let row = self.rows.key(key)?;
        let value = reads.get_bytes(&self.rows.map, &row)?;
        value.map(|value| self.rows.value(&row, &value)).transpose()
    }

    /// Stores the value of a key.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of [`Transaction::put`]; [`crate::Reason::InvalidArgument`] when the value cannot be
    /// encoded.
    pub fn put<Q: KeyFor<K> + ?Sized>(&self, tx: &mut Transaction, key: &Q, value: &V) -> Result<()> {
        let row = self.rows.key(key)?;
        let value = encode_value(&self.rows.map, &row, value)?;
        tx.put(&self.rows.map, row, value)
    }

    /// Replaces the value of a key by what `change` makes of it (`None`: nothing).
    ///
    /// # Errors
    /// As [`ValueState::get`] and [`ValueState::put`]; the key keeps its value then.
    pub fn update<Q: KeyFor<K> + ?Sized>(
        &self,
        tx: &mut Transaction,
        key: &Q,
        change: impl FnOnce(Option<V>) -> Option<V>,
    ) -> Result<()> {
        match change(self.get(tx, key)?) {
            Some(value) => self.put(tx, key, &value),
            None => self.delete(tx, key),
        }
    }

    /// Deletes the value of a key, if there is one.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of [`Transaction::delete`].
    pub fn delete<Q: KeyFor<K> + ?Sized>(&self, tx: &mut Transaction, key: &Q) -> Result<()> {
        tx.delete(&self.rows.map, self.rows.key(key)?)
    }

    /// All keys of the worker with their values, by key group and key.
    ///
    /// # Errors
    /// Those of reading, and each item as [`ValueState::get`].
    pub fn iter<'a, R: Reads>(&'a self, reads: &'a R) -> Result<impl Iterator<Item = Result<(K, V)>> + 'a>
    where
        K: 'a,
        V: 'a,
    {
        let pairs = self.rows.pairs(reads)?;
        Ok(pairs.map(|pair| {
            let (row, value) = pair?;
            Ok((self.rows.whole_key(&row)?, self.rows.value(&row, &value)?))
        }))
    }
}
