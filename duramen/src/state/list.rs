//! States with a list for each key. Each element is a row, so appending does not rewrite the list.

use std::marker::PhantomData;

use duramen_engine::encoding::{DecodeKey, KeyRange};
use duramen_engine::{Result, Transaction};

use super::rows::Rows;
use crate::codec::{KeyFor, ValueCodec};
use crate::typed::{Reads, Types, encode_value};

/// A state that holds a list for each key; see [`super::KeyedState::list`].
#[derive(Debug)]
pub struct ListState<K, V> {
    rows: Rows,
    types: Types<K, V>,
}

impl<K, V> Clone for ListState<K, V> {
    fn clone(&self) -> Self {
        ListState::new(self.rows.clone())
    }
}

impl<K, V> ListState<K, V> {
    pub(super) fn new(rows: Rows) -> ListState<K, V> {
        ListState {
            rows,
            types: PhantomData,
        }
    }
}

impl<K: DecodeKey, V: ValueCodec> ListState<K, V> {
    /// Appends an element to the list of a key, in time that does not grow with the list.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of [`Transaction::put`]; [`crate::Reason::InvalidArgument`] when the element cannot
    /// be encoded.
    pub fn append<Q: KeyFor<K> + ?Sized>(&self, tx: &mut Transaction, key: &Q, element: &V) -> Result<()> {
        self.append_all(tx, key, [element])
    }

    /// Appends elements to the list of a key.
    ///
    /// # Errors
    /// As [`ListState::append`]. The elements before the refused one are appended; roll the transaction back.
    pub fn append_all<'v, Q: KeyFor<K> + ?Sized>(
        &self,
        tx: &mut Transaction,
        key: &Q,
        elements: impl IntoIterator<Item = &'v V>,
    ) -> Result<()>
    where
        V: 'v,
    {
        let prefix = self.rows.key(key)?;
        let places = self.end(tx, &prefix)?..;
        for (place, element) in places.zip(elements) {
            let row = [&prefix[..], &place.to_be_bytes()].concat();
            let value = encode_value(&self.rows.map, &row, element)?;
            tx.put(&self.rows.map, row, value)?;
        }
        Ok(())
    }

    /// The place after the last element. Two transactions that append to one list take the same place, so one of them conflicts.
    fn end(&self, tx: &Transaction, prefix: &[u8]) -> Result<u64> {
        let range = KeyRange::of_prefix(prefix.to_vec());
        let mut cursor = tx.range(&self.rows.map, range)?;
        cursor.seek_end();
        match cursor.prev()? {
            Some((row, _)) => Ok(self.rows.last_part::<u64>(row, &row[prefix.len()..])? + 1),
            None => Ok(0),
        }
    }

    /// The list of a key, in order.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of reading; [`crate::Reason::InvalidArgument`] when stored bytes are not a `V`.
    pub fn get<Q: KeyFor<K> + ?Sized>(&self, reads: &impl Reads, key: &Q) -> Result<Vec<V>> {
        self.elements(reads, key)?.collect()
    }

    /// The elements of a key one by one, in order and from the end.
    ///
    /// # Errors
    /// As [`ListState::get`].
    pub fn elements<'a, Q: KeyFor<K> + ?Sized, R: Reads>(
        &'a self,
        reads: &'a R,
        key: &Q,
    ) -> Result<impl DoubleEndedIterator<Item = Result<V>> + use<'a, K, V, Q, R>> {
        let pairs = self.rows.pairs_of_key(reads, key)?;
        Ok(pairs.map(|pair| {
            let (row, value) = pair?;
            self.rows.value(&row, &value)
        }))
    }

    /// Number of elements of a key.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of reading.
    pub fn len<Q: KeyFor<K> + ?Sized>(&self, reads: &impl Reads, key: &Q) -> Result<u64> {
        self.rows.count_of_key(reads, key)
    }

    /// Deletes the list of a key.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of [`Transaction::delete_range`].
    pub fn clear<Q: KeyFor<K> + ?Sized>(&self, tx: &mut Transaction, key: &Q) -> Result<()> {
        tx.delete_range(&self.rows.map, self.rows.of_key(key)?)
    }

    /// Replaces the list of a key.
    ///
    /// # Errors
    /// As [`ListState::clear`] and [`ListState::append_all`].
    pub fn replace<'v, Q: KeyFor<K> + ?Sized>(
        &self,
        tx: &mut Transaction,
        key: &Q,
        elements: impl IntoIterator<Item = &'v V>,
    ) -> Result<()>
    where
        V: 'v,
    {
        self.clear(tx, key)?;
        self.append_all(tx, key, elements)
    }

    /// All elements of all keys of the worker, by key group, key and place.
    ///
    /// # Errors
    /// Those of reading, and each item as [`ListState::get`].
    pub fn iter<'a, R: Reads>(&'a self, reads: &'a R) -> Result<impl Iterator<Item = Result<(K, V)>> + 'a>
    where
        K: 'a,
        V: 'a,
    {
        let pairs = self.rows.pairs(reads)?;
        Ok(pairs.map(|pair| {
            let (row, value) = pair?;
            let (key, rest) = self.rows.split::<K>(&row)?;
            self.rows.last_part::<u64>(&row, rest)?;
            Ok((key, self.rows.value(&row, &value)?))
        }))
    }
}
