//! States with a map for each key. Each entry is a row, in the order of its key.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use duramen_engine::encoding::{DecodeKey, Key};
use duramen_engine::{KeyBounds, Result, Transaction};

use super::rows::Rows;
use crate::codec::{KeyFor, ValueCodec};
use crate::typed::{Reads, Types, encode_value};

/// A state that holds an ordered map for each key; see [`super::KeyedState::map`]. `M` is the type of the keys in these maps.
#[derive(Debug)]
pub struct MapState<K, M, V> {
    rows: Rows,
    types: Types<(K, M), V>,
}

impl<K, M, V> Clone for MapState<K, M, V> {
    fn clone(&self) -> Self {
        MapState::new(self.rows.clone())
    }
}

impl<K, M, V> MapState<K, M, V> {
    pub(super) fn new(rows: Rows) -> MapState<K, M, V> {
        MapState {
            rows,
            types: PhantomData,
        }
    }
}

impl<K: DecodeKey, M: DecodeKey, V: ValueCodec> MapState<K, M, V> {
    fn row<Q, P>(&self, key: &Q, entry: &P) -> Result<Vec<u8>>
    where
        Q: KeyFor<K> + ?Sized,
        P: KeyFor<M> + ?Sized,
    {
        let mut row = self.rows.key(key)?;
        entry.encode_to(&mut row);
        Ok(row)
    }

    /// The value of an entry.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of reading; [`crate::Reason::InvalidArgument`] when the stored bytes are not a `V`.
    pub fn get<Q, P>(&self, reads: &impl Reads, key: &Q, entry: &P) -> Result<Option<V>>
    where
        Q: KeyFor<K> + ?Sized,
        P: KeyFor<M> + ?Sized,
    {
        let row = self.row(key, entry)?;
        let value = reads.get_bytes(&self.rows.map, &row)?;
        value.map(|value| self.rows.value(&row, &value)).transpose()
    }

    /// Stores an entry.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of [`Transaction::put`]; [`crate::Reason::InvalidArgument`] when the value cannot be
    /// encoded.
    pub fn put<Q, P>(&self, tx: &mut Transaction, key: &Q, entry: &P, value: &V) -> Result<()>
    where
        Q: KeyFor<K> + ?Sized,
        P: KeyFor<M> + ?Sized,
    {
        let row = self.row(key, entry)?;
        let value = encode_value(&self.rows.map, &row, value)?;
        tx.put(&self.rows.map, row, value)
    }

    /// Replaces the value of an entry by what `change` makes of it (`None`: nothing).
    ///
    /// # Errors
    /// As [`MapState::get`] and [`MapState::put`]; the entry keeps its value then.
    pub fn update<Q, P>(
        &self,
        tx: &mut Transaction,
        key: &Q,
        entry: &P,
        change: impl FnOnce(Option<V>) -> Option<V>,
    ) -> Result<()>
    where
        Q: KeyFor<K> + ?Sized,
        P: KeyFor<M> + ?Sized,
    {
        match change(self.get(tx, key, entry)?) {
            Some(value) => self.put(tx, key, entry, &value),
            None => self.delete(tx, key, entry),
        }
    }

    /// Deletes an entry, if it is there.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of [`Transaction::delete`].
    pub fn delete<Q, P>(&self, tx: &mut Transaction, key: &Q, entry: &P) -> Result<()>
    where
        Q: KeyFor<K> + ?Sized,
        P: KeyFor<M> + ?Sized,
    {
        tx.delete(&self.rows.map, self.row(key, entry)?)
    }

    /// The entries of a key whose keys lie in a range, in order and from the end. `..` is all of them.
    ///
    /// # Errors
    /// As [`MapState::get`].
    pub fn range<'a, Q: KeyFor<K> + ?Sized, R: Reads, B: RangeBounds<M>>(
        &'a self,
        reads: &'a R,
        key: &Q,
        range: B,
    ) -> Result<impl DoubleEndedIterator<Item = Result<(M, V)>> + use<'a, K, M, V, Q, R, B>> {
        let prefix = self.rows.key(key)?;
        let of_key = self.rows.of_key(key)?;
        let row_of = |entry: &M| encoded(&prefix, entry);
        let (low, high) = (range.start_bound().map(row_of), range.end_bound().map(row_of));
        let low = match &low {
            Bound::Unbounded => of_key.low(),
            low => low.as_ref().map(Vec::as_slice),
        };
        let high = match &high {
            Bound::Unbounded => of_key.high(),
            high => high.as_ref().map(Vec::as_slice),
        };
        let (front, pairs) = (
            prefix.len(),
            reads.range_bytes(&self.rows.map, (low, high))?.into_iter(),
        );
        Ok(pairs.map(move |pair| {
            let (row, value) = pair?;
            Ok((
                self.rows.last_part(&row, &row[front..])?,
                self.rows.value(&row, &value)?,
            ))
        }))
    }

    /// Number of entries of a key.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of reading.
    pub fn len<Q: KeyFor<K> + ?Sized>(&self, reads: &impl Reads, key: &Q) -> Result<u64> {
        self.rows.count_of_key(reads, key)
    }

    /// Deletes all entries of a key.
    ///
    /// # Errors
    /// [`super::StateError::OtherWorker`]; those of [`Transaction::delete_range`].
    pub fn clear<Q: KeyFor<K> + ?Sized>(&self, tx: &mut Transaction, key: &Q) -> Result<()> {
        tx.delete_range(&self.rows.map, self.rows.of_key(key)?)
    }

    /// All entries of all keys of the worker, by key group, key and key in the map.
    ///
    /// # Errors
    /// Those of reading, and each item as [`MapState::get`].
    pub fn iter<'a, R: Reads>(&'a self, reads: &'a R) -> Result<impl Iterator<Item = Result<(K, M, V)>> + 'a>
    where
        K: 'a,
        M: 'a,
        V: 'a,
    {
        let pairs = self.rows.pairs(reads)?;
        Ok(pairs.map(|pair| {
            let (row, value) = pair?;
            let (key, rest) = self.rows.split(&row)?;
            Ok((key, self.rows.last_part(&row, rest)?, self.rows.value(&row, &value)?))
        }))
    }
}

fn encoded(prefix: &[u8], entry: &impl Key) -> Vec<u8> {
    let mut row = prefix.to_vec();
    entry.encode_to(&mut row);
    row
}
