//! Typed maps: keys and values of Rust types over a [`Map`] of bytes.
//!
//! Keys go through the order-preserving [`encoding`], so that ranges and prefixes mean what they say; values through
//! [`ValueCodec`]. Nothing is stored but the encoded bytes: a map can be used typed and untyped side by side, and the
//! types are the program's agreement with itself. Bytes that are not of the type are an error that names the key.

use std::error::Error as StdError;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use duramen_engine::encoding::{self, DecodeKey, Key, KeyRange};
use duramen_engine::{
    Batch, Change, Cursor, Durability, Error, KeyBounds, Map, Pairs, Reason, Result, Snapshot, Transaction, Value,
};

use crate::codec::{Counter, KeyFor, LeadingParts, ValueCodec};

/// A [`Map`] whose keys are `K` and whose values are `V`.
///
/// Its own methods read what is newest and commit each write by itself. [`TypedMap::at`] reads in a snapshot or
/// transaction, [`TypedMap::within`] writes in a transaction or batch.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen::Store::open(directory.path())?;
/// use duramen::TypedMap;
///
/// let scores = TypedMap::<(String, u32), u64>::new(store.map("scores")?);
/// scores.put(&("chess", 2025), &1200)?;
/// scores.put(&("chess", 2026), &1350)?;
/// scores.put(&("go", 2026), &900)?;
/// assert_eq!(scores.get(&("chess", 2026))?, Some(1350));
///
/// let snapshot = store.snapshot()?;
/// let chess = scores.at(&snapshot).prefix(&("chess",))?.collect::<duramen::Result<Vec<_>>>()?;
/// assert_eq!(chess, [(("chess".to_string(), 2025), 1200), (("chess".to_string(), 2026), 1350)]);
///
/// store.transact(|tx| {
///     let best = scores.at(tx).get(&("go", 2026))?.unwrap_or(0).max(950);
///     scores.within(tx).put(&("go", 2026), &best)
/// })?;
/// # Ok::<(), duramen::Error>(())
/// ```
pub struct TypedMap<K, V> {
    map: Map,
    types: Types<K, V>,
}

/// Stands for the types without owning any of them: a typed map can be shared whatever they are.
pub(crate) type Types<K, V> = PhantomData<fn(K, V) -> (K, V)>;

impl<K, V> Clone for TypedMap<K, V> {
    fn clone(&self) -> Self {
        TypedMap {
            map: self.map.clone(),
            types: PhantomData,
        }
    }
}

impl<K, V> fmt::Debug for TypedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = (std::any::type_name::<K>(), std::any::type_name::<V>());
        f.debug_struct("TypedMap")
            .field("name", &self.map.name())
            .field("key", &key)
            .field("value", &value)
            .finish()
    }
}

impl<K: DecodeKey, V: ValueCodec> TypedMap<K, V> {
    /// A typed view of a map. Nothing is read or checked here.
    pub fn new(map: Map) -> TypedMap<K, V> {
        TypedMap {
            map,
            types: PhantomData,
        }
    }

    /// The map of bytes beneath.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// A handle of the same map whose commits have another durability.
    pub fn with_durability(&self, durability: Durability) -> TypedMap<K, V> {
        TypedMap::new(self.map.with_durability(durability))
    }

    /// The map in a snapshot or transaction, for reading.
    pub fn at<'a, R: Reads>(&'a self, reads: &'a R) -> TypedReads<'a, K, V, R> {
        TypedReads {
            map: &self.map,
            reads,
            types: PhantomData,
        }
    }

    /// The map in a transaction or batch, for writing.
    pub fn within<'a, W: Writes>(&'a self, writes: &'a mut W) -> TypedWrites<'a, K, V, W> {
        TypedWrites {
            map: &self.map,
            writes,
            types: PhantomData,
        }
    }

    /// The value of a key now.
    ///
    /// # Errors
    /// As [`Map::get`], and [`Reason::InvalidArgument`] when the stored bytes are not a `V`.
    pub fn get<Q: KeyFor<K> + ?Sized>(&self, key: &Q) -> Result<Option<V>> {
        let key = encoding::encode(key);
        let value = self.map.get(&key)?;
        value.map(|value| decode_value(&self.map, &key, &value)).transpose()
    }

    /// Whether a key is there now.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn contains_key<Q: KeyFor<K> + ?Sized>(&self, key: &Q) -> Result<bool> {
        self.map.contains_key(encoding::encode(key))
    }

    /// The values of several keys, all at the same moment, in their order.
    ///
    /// # Errors
    /// As [`TypedMap::get`].
    pub fn multi_get<Q: KeyFor<K>>(&self, keys: &[Q]) -> Result<Vec<Option<V>>> {
        let keys: Vec<Vec<u8>> = keys.iter().map(encoding::encode).collect();
        let values = self.map.multi_get(&keys)?;
        let decode = |(value, key): (Option<Value<'_>>, &Vec<u8>)| {
            value.map(|value| decode_value(&self.map, key, &value)).transpose()
        };
        values.into_iter().zip(&keys).map(decode).collect()
    }

    /// How many pairs the map has now.
    ///
    /// # Errors
    /// As [`Map::count`].
    pub fn count(&self) -> Result<u64> {
        self.map.count()
    }

    /// Whether the map holds nothing now.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn is_empty(&self) -> Result<bool> {
        self.map.is_empty()
    }

    /// The pair with the smallest key now.
    ///
    /// # Errors
    /// As [`TypedMap::get`].
    pub fn first(&self) -> Result<Option<(K, V)>> {
        decode_owned(&self.map, self.map.first()?)
    }

    /// The pair with the greatest key now.
    ///
    /// # Errors
    /// As [`TypedMap::get`].
    pub fn last(&self) -> Result<Option<(K, V)>> {
        decode_owned(&self.map, self.map.last()?)
    }

    /// Removes the pair with the smallest key, and returns it; see [`Map::pop_first`].
    ///
    /// # Errors
    /// As [`Map::pop_first`]; [`Reason::InvalidArgument`] when the bytes are not of the map's types: the pair stays.
    pub fn pop_first(&self) -> Result<Option<(K, V)>> {
        self.map.atomically("map.pop_first", |tx| self.within(tx).pop_first())
    }

    /// Removes the pair with the greatest key, and returns it; see [`TypedMap::pop_first`].
    ///
    /// # Errors
    /// As [`TypedMap::pop_first`].
    pub fn pop_last(&self) -> Result<Option<(K, V)>> {
        self.map.atomically("map.pop_last", |tx| self.within(tx).pop_last())
    }

    /// Removes a key, and returns what it held.
    ///
    /// # Errors
    /// As [`TypedMap::pop_first`].
    pub fn take<Q: KeyFor<K> + ?Sized>(&self, key: &Q) -> Result<Option<V>> {
        self.map.atomically("map.take", |tx| self.within(tx).take(key))
    }

    /// Removes all pairs for which `keep` says `false`, in one transaction; see [`Map::retain`]. Returns how many.
    ///
    /// # Errors
    /// As [`TypedMap::get`] and [`Map::retain`]; nothing is removed then.
    pub fn retain(&self, mut keep: impl FnMut(K, V) -> bool) -> Result<u64> {
        self.map.atomically("map.retain", |tx| {
            let mut refused = None;
            let removed = tx.retain(&self.map, |key, value| match decode_pair(&self.map, key, value) {
                Ok((key, value)) => keep(key, value),
                Err(error) => {
                    refused.get_or_insert(error);
                    true
                }
            })?;
            refused.map_or(Ok(removed), Err)
        })
    }

    /// Stores a value, whatever the key held before.
    ///
    /// # Errors
    /// As [`Map::put`], and [`Reason::InvalidArgument`] when the value cannot be encoded.
    pub fn put<Q: KeyFor<K> + ?Sized>(&self, key: &Q, value: &V) -> Result<()> {
        let key = encoding::encode(key);
        self.map.put(&key, &encode_value(&self.map, &key, value)?)
    }

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// As [`Map::delete`].
    pub fn delete<Q: KeyFor<K> + ?Sized>(&self, key: &Q) -> Result<()> {
        self.map.delete(encoding::encode(key))
    }

    /// Removes all keys of a range.
    ///
    /// # Errors
    /// As [`Map::delete_range`].
    pub fn delete_range(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.map.delete_range(Encoded::of(&range).bounds())
    }

    /// Removes all keys whose leading parts are these: a tuple that is shorter than the key.
    ///
    /// # Errors
    /// As [`Map::delete_range`].
    pub fn delete_prefix(&self, leading: &impl LeadingParts<K>) -> Result<()> {
        self.map.delete_range(KeyRange::starting_with(leading))
    }

    /// Stores a value if the key is not there. Returns whether it was stored.
    ///
    /// # Errors
    /// As [`TypedMap::put`].
    pub fn create<Q: KeyFor<K> + ?Sized>(&self, key: &Q, value: &V) -> Result<bool> {
        self.compare_and_swap(key, None, Some(value))
    }

    /// Replaces what the key holds (`None`: nothing) if its bytes are those of `expected`. Returns whether it was
    /// replaced.
    ///
    /// # Errors
    /// As [`TypedMap::put`].
    pub fn compare_and_swap<Q: KeyFor<K> + ?Sized>(
        &self,
        key: &Q,
        expected: Option<&V>,
        new: Option<&V>,
    ) -> Result<bool> {
        let key = encoding::encode(key);
        let encode = |value: Option<&V>| value.map(|value| encode_value(&self.map, &key, value)).transpose();
        let (expected, new) = (encode(expected)?, encode(new)?);
        self.map.compare_and_swap(&key, expected.as_deref(), new.as_deref())
    }

    /// Replaces what the key holds by what `change` makes of it. Returns what it held before. `change` may run several
    /// times, when others change the key at the same time; the key is changed once.
    ///
    /// # Errors
    /// As [`TypedMap::get`] and [`TypedMap::put`]; the key then keeps what it held.
    pub fn update<Q: KeyFor<K> + ?Sized>(
        &self,
        key: &Q,
        mut change: impl FnMut(Option<V>) -> Option<V>,
    ) -> Result<Option<V>> {
        self.map.atomically("map.update", |tx| {
            let before = self.at(tx).get(key)?;
            self.within(tx).update(key, &mut change)?;
            Ok(before)
        })
    }

    /// What a commit did to a key of this map; `None`: the change is of another map. Maps are told apart by name.
    ///
    /// # Errors
    /// [`Reason::InvalidArgument`] when the bytes are not of the map's types.
    pub fn decode_change(&self, change: &Change) -> Result<Option<TypedChange<K, V>>> {
        if change.map != self.map.name() {
            return Ok(None);
        }
        let decode = |value: &Option<Vec<u8>>| {
            value
                .as_deref()
                .map(|value| decode_value(&self.map, &change.key, value))
                .transpose()
        };
        let key = decode_key(&self.map, &change.key)?;
        Ok(Some(TypedChange {
            key,
            old: decode(&change.old)?,
            new: decode(&change.new)?,
        }))
    }
}

impl<K: DecodeKey> TypedMap<K, Counter> {
    /// Adds to a counter, and returns the sum; see [`Map::add`].
    ///
    /// # Errors
    /// As [`Map::add`].
    pub fn add<Q: KeyFor<K> + ?Sized>(&self, key: &Q, delta: i64) -> Result<i64> {
        self.map.add(encoding::encode(key), delta)
    }
}

/// A [`Change`] with its types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedChange<K, V> {
    /// The key.
    pub key: K,
    /// What it held before the commit.
    pub old: Option<V>,
    /// What it holds since.
    pub new: Option<V>,
}

/// A typed map in a snapshot or transaction; see [`TypedMap::at`].
pub struct TypedReads<'a, K, V, R> {
    map: &'a Map,
    reads: &'a R,
    types: Types<K, V>,
}

impl<'a, K: DecodeKey, V: ValueCodec, R: Reads> TypedReads<'a, K, V, R> {
    /// The value of a key.
    ///
    /// # Errors
    /// As [`Snapshot::get`], and [`Reason::InvalidArgument`] when the stored bytes are not a `V`.
    pub fn get<Q: KeyFor<K> + ?Sized>(&self, key: &Q) -> Result<Option<V>> {
        let key = encoding::encode(key);
        let value = self.reads.get_bytes(self.map, &key)?;
        value.map(|value| decode_value(self.map, &key, &value)).transpose()
    }

    /// Whether a key is there.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key<Q: KeyFor<K> + ?Sized>(&self, key: &Q) -> Result<bool> {
        self.reads.contains_bytes(self.map, &encoding::encode(key))
    }

    /// Whether the map holds nothing.
    ///
    /// # Errors
    /// As [`Snapshot::range`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.reads.range_bytes(self.map, ALL)?.next()?.is_none())
    }

    /// The pair with the smallest key.
    ///
    /// # Errors
    /// As [`TypedReads::get`].
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.cursor(ALL)?.next().transpose()
    }

    /// The pair with the greatest key.
    ///
    /// # Errors
    /// As [`TypedReads::get`].
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.cursor(ALL)?.next_back().transpose()
    }

    /// The pairs whose keys lie in a range, in key order.
    ///
    /// # Errors
    /// As [`Snapshot::range`].
    pub fn range(&self, range: impl RangeBounds<K>) -> Result<TypedCursor<'a, K, V>> {
        self.cursor(Encoded::of(&range).bounds())
    }

    /// The pairs whose keys have these leading parts: a tuple that is shorter than the key.
    ///
    /// # Errors
    /// As [`Snapshot::range`].
    pub fn prefix(&self, leading: &impl LeadingParts<K>) -> Result<TypedCursor<'a, K, V>> {
        self.cursor(both(&KeyRange::starting_with(leading)))
    }

    fn cursor(&self, bounds: Bounds<'_>) -> Result<TypedCursor<'a, K, V>> {
        let cursor = self.reads.range_bytes(self.map, bounds)?;
        Ok(TypedCursor {
            pairs: cursor.into_iter(),
            map: self.map,
            is_over: false,
            types: PhantomData,
        })
    }

    /// How many pairs lie in a range.
    ///
    /// # Errors
    /// As [`Snapshot::count`].
    pub fn count(&self, range: impl RangeBounds<K>) -> Result<u64> {
        self.reads.count_bytes(self.map, Encoded::of(&range).bounds())
    }
}

/// A position between two pairs, and an iterator over those behind it, from both ends. After an error the iterator has
/// ended; [`TypedCursor::prev`] and [`TypedCursor::seek`] move the position all the same, and it goes on from there.
pub struct TypedCursor<'a, K, V> {
    pairs: Pairs<'a>,
    map: &'a Map,
    is_over: bool,
    types: Types<K, V>,
}

impl<K: DecodeKey, V: ValueCodec> TypedCursor<'_, K, V> {
    /// Steps back over the pair before the cursor and returns it. At the beginning of the range: `None`.
    ///
    /// # Errors
    /// As [`Cursor::prev`], and [`Reason::InvalidArgument`] when the bytes are not of the map's types.
    pub fn prev(&mut self) -> Result<Option<(K, V)>> {
        self.is_over = false;
        let pair = self.pairs.front().prev()?;
        pair.map(|(key, value)| decode_pair(self.map, key, &value)).transpose()
    }

    /// Moves before the first pair whose key is `key` or greater, without leaving the range.
    ///
    /// # Errors
    /// As [`Cursor::seek`].
    pub fn seek<Q: KeyFor<K> + ?Sized>(&mut self, key: &Q) -> Result<()> {
        self.is_over = false;
        self.pairs.front().seek(encoding::encode(key))
    }

    /// Moves behind the last pair of the range.
    pub fn seek_end(&mut self) {
        self.is_over = false;
        self.pairs.front().seek_end();
    }

    /// Takes a step of the iterator; after an error there is none.
    fn stepped(&mut self, pair: Result<Option<(K, V)>>) -> Option<Result<(K, V)>> {
        self.is_over = pair.is_err();
        pair.transpose()
    }
}

impl<K: DecodeKey, V: ValueCodec> Iterator for TypedCursor<'_, K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Result<(K, V)>> {
        if self.is_over {
            return None;
        }
        let decode = |(key, value): (&[u8], Value<'_>)| decode_pair(self.map, key, &value);
        let pair = self.pairs.next_pair().and_then(|pair| pair.map(decode).transpose());
        self.stepped(pair)
    }
}

impl<K: DecodeKey, V: ValueCodec> DoubleEndedIterator for TypedCursor<'_, K, V> {
    fn next_back(&mut self) -> Option<Result<(K, V)>> {
        if self.is_over {
            return None;
        }
        let decode = |(key, value): (&[u8], Value<'_>)| decode_pair(self.map, key, &value);
        let pair = self
            .pairs
            .next_pair_back()
            .and_then(|pair| pair.map(decode).transpose());
        self.stepped(pair)
    }
}

impl<K: DecodeKey, V: ValueCodec> FusedIterator for TypedCursor<'_, K, V> {}

impl<'a, V: ValueCodec, R: Reads> TypedReads<'a, String, V, R> {
    /// The pairs whose keys begin with this text.
    ///
    /// # Errors
    /// As [`Snapshot::range`].
    pub fn text_prefix(&self, text: &str) -> Result<TypedCursor<'a, String, V>> {
        self.cursor(both(&KeyRange::text_starting_with(&(), text)))
    }
}

/// A typed map in a transaction or batch; see [`TypedMap::within`].
pub struct TypedWrites<'a, K, V, W> {
    map: &'a Map,
    writes: &'a mut W,
    types: Types<K, V>,
}

impl<K: DecodeKey, V: ValueCodec, W: Writes> TypedWrites<'_, K, V, W> {
    /// Stores a value.
    ///
    /// # Errors
    /// As [`Transaction::put`], and [`Reason::InvalidArgument`] when the value cannot be encoded.
    pub fn put<Q: KeyFor<K> + ?Sized>(&mut self, key: &Q, value: &V) -> Result<()> {
        let key = encoding::encode(key);
        self.writes
            .put_bytes(self.map, &key, &encode_value(self.map, &key, value)?)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`Transaction::delete`].
    pub fn delete<Q: KeyFor<K> + ?Sized>(&mut self, key: &Q) -> Result<()> {
        self.writes.delete_bytes(self.map, &encoding::encode(key))
    }

    /// Removes all keys of a range.
    ///
    /// # Errors
    /// As [`Transaction::delete_range`].
    pub fn delete_range(&mut self, range: impl RangeBounds<K>) -> Result<()> {
        self.writes.delete_range_bytes(self.map, Encoded::of(&range).bounds())
    }

    /// Removes all keys whose leading parts are these: a tuple that is shorter than the key.
    ///
    /// # Errors
    /// As [`Transaction::delete_range`].
    pub fn delete_prefix(&mut self, leading: &impl LeadingParts<K>) -> Result<()> {
        self.writes
            .delete_range_bytes(self.map, both(&KeyRange::starting_with(leading)))
    }
}

impl<K: DecodeKey, W: Writes> TypedWrites<'_, K, Counter, W> {
    /// Adds to a counter.
    ///
    /// # Errors
    /// As [`Transaction::add`].
    pub fn add<Q: KeyFor<K> + ?Sized>(&mut self, key: &Q, delta: i64) -> Result<()> {
        self.writes.add_bytes(self.map, &encoding::encode(key), delta)
    }
}

impl<K: DecodeKey, V: ValueCodec> TypedWrites<'_, K, V, Transaction> {
    /// Stores a value if the key is not there. Returns whether it was stored.
    ///
    /// # Errors
    /// As [`TypedWrites::put`].
    pub fn create<Q: KeyFor<K> + ?Sized>(&mut self, key: &Q, value: &V) -> Result<bool> {
        let key = encoding::encode(key);
        self.writes.create(self.map, &key, encode_value(self.map, &key, value)?)
    }

    /// Replaces what the key holds (`None`: nothing) if its bytes are those of `expected`. Returns whether it was replaced.
    ///
    /// # Errors
    /// As [`TypedWrites::put`].
    pub fn compare_and_swap<Q: KeyFor<K> + ?Sized>(
        &mut self,
        key: &Q,
        expected: Option<&V>,
        new: Option<&V>,
    ) -> Result<bool> {
        let key = encoding::encode(key);
        let encode = |value: Option<&V>| value.map(|value| encode_value(self.map, &key, value)).transpose();
        let (expected, new) = (encode(expected)?, encode(new)?);
        self.writes
            .compare_and_swap(self.map, &key, expected.as_deref(), new.as_deref())
    }

    /// Replaces what the key holds by what `change` makes of it (`None`: nothing).
    ///
    /// # Errors
    /// As [`TypedReads::get`] and [`TypedWrites::put`]; the key then keeps what it held.
    pub fn update<Q: KeyFor<K> + ?Sized>(
        &mut self,
        key: &Q,
        change: impl FnOnce(Option<V>) -> Option<V>,
    ) -> Result<()> {
        let key = encoding::encode(key);
        let before = self.writes.get_ref(self.map, &key)?;
        let before = before.map(|value| decode_value(self.map, &key, &value)).transpose()?;
        match change(before) {
            Some(value) => self.writes.put(self.map, &key, encode_value(self.map, &key, &value)?),
            None => self.writes.delete(self.map, &key),
        }
    }

    /// Removes a key, and returns what it held.
    ///
    /// # Errors
    /// As [`TypedReads::get`] and [`TypedWrites::delete`]; after the first the key keeps what it held.
    pub fn take<Q: KeyFor<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        let key = encoding::encode(key);
        let value = self.writes.get_ref(self.map, &key)?;
        let value = value.map(|value| decode_value(self.map, &key, &value)).transpose()?;
        if value.is_some() {
            self.writes.delete(self.map, &key)?;
        }
        Ok(value)
    }

    /// Removes the pair with the smallest key, and returns it.
    ///
    /// # Errors
    /// As [`Transaction::pop_first`]; [`Reason::InvalidArgument`] when the bytes are not of the map's types: the pair stays.
    pub fn pop_first(&mut self) -> Result<Option<(K, V)>> {
        let pair = self.writes.first(self.map)?;
        self.remove(pair)
    }

    /// Removes the pair with the greatest key, and returns it.
    ///
    /// # Errors
    /// As [`TypedWrites::pop_first`].
    pub fn pop_last(&mut self) -> Result<Option<(K, V)>> {
        let pair = self.writes.last(self.map)?;
        self.remove(pair)
    }

    fn remove(&mut self, pair: Option<(Vec<u8>, Value<'static>)>) -> Result<Option<(K, V)>> {
        let Some((key, value)) = pair else { return Ok(None) };
        let decoded = decode_pair(self.map, &key, &value)?;
        self.writes.delete(self.map, &key)?;
        Ok(Some(decoded))
    }
}

pub(crate) type Bounds<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

const ALL: Bounds<'static> = (Bound::Unbounded, Bound::Unbounded);

/// Bounds of a typed range as bytes. No encoding begins with another, so each bound means the same as before.
struct Encoded {
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
}

impl Encoded {
    fn of<K: Key>(range: &impl RangeBounds<K>) -> Encoded {
        let encode = |bound: Bound<&K>| bound.map(|key| encoding::encode(key));
        Encoded {
            low: encode(range.start_bound()),
            high: encode(range.end_bound()),
        }
    }

    fn bounds(&self) -> Bounds<'_> {
        (
            self.low.as_ref().map(Vec::as_slice),
            self.high.as_ref().map(Vec::as_slice),
        )
    }
}

fn both(range: &KeyRange) -> Bounds<'_> {
    (range.low(), range.high())
}

pub(crate) fn encode_value<V: ValueCodec>(map: &Map, key: &[u8], value: &V) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    value
        .encode_value(&mut out)
        .map_err(|error| invalid::<V>(map, key, "the value for", "cannot be stored as", &*error))?;
    Ok(out)
}

pub(crate) fn decode_value<V: ValueCodec>(map: &Map, key: &[u8], value: &[u8]) -> Result<V> {
    V::decode_value(value).map_err(|error| invalid::<V>(map, key, "the value of", "is not a", &*error))
}

fn decode_key<K: DecodeKey>(map: &Map, key: &[u8]) -> Result<K> {
    encoding::decode(key).map_err(|error| invalid::<K>(map, key, "the", "is not a", &error))
}

fn decode_pair<K: DecodeKey, V: ValueCodec>(map: &Map, key: &[u8], value: &[u8]) -> Result<(K, V)> {
    Ok((decode_key(map, key)?, decode_value(map, key, value)?))
}

fn decode_owned<K: DecodeKey, V: ValueCodec>(map: &Map, pair: Option<(Vec<u8>, Value<'_>)>) -> Result<Option<(K, V)>> {
    pair.map(|(key, value)| decode_pair(map, &key, &value)).transpose()
}

pub(crate) fn invalid<T>(map: &Map, key: &[u8], what: &str, is_not: &str, cause: &dyn StdError) -> Error {
    let (name, wanted) = (map.name(), std::any::type_name::<T>());
    let text = format!(
        "{what} key \"{}\" in map {name:?} {is_not} {wanted}: {cause}",
        key.escape_ascii()
    );
    Reason::InvalidArgument(text).into()
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for duramen_engine::Snapshot {}
    impl Sealed for duramen_engine::Transaction {}
    impl Sealed for duramen_engine::Batch {}
}

/// What a typed map can be read in: a [`Snapshot`] or a [`Transaction`].
pub trait Reads: sealed::Sealed {
    #[doc(hidden)]
    fn get_bytes(&self, map: &Map, key: &[u8]) -> Result<Option<Value<'_>>>;
    #[doc(hidden)]
    fn contains_bytes(&self, map: &Map, key: &[u8]) -> Result<bool>;
    #[doc(hidden)]
    fn range_bytes(&self, map: &Map, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<Cursor<'_>>;
    #[doc(hidden)]
    fn count_bytes(&self, map: &Map, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64>;
}

/// What a typed map can be written in: a [`Transaction`] or a [`Batch`].
pub trait Writes: sealed::Sealed {
    #[doc(hidden)]
    fn put_bytes(&mut self, map: &Map, key: &[u8], value: &[u8]) -> Result<()>;
    #[doc(hidden)]
    fn delete_bytes(&mut self, map: &Map, key: &[u8]) -> Result<()>;
    #[doc(hidden)]
    fn delete_range_bytes(&mut self, map: &Map, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<()>;
    #[doc(hidden)]
    fn add_bytes(&mut self, map: &Map, key: &[u8], delta: i64) -> Result<()>;
}

macro_rules! reads {
    ($($type:ident $get:ident)+) => {$(
        impl Reads for $type {
            fn get_bytes(&self, map: &Map, key: &[u8]) -> Result<Option<Value<'_>>> {
                self.$get(map, key)
            }

            fn contains_bytes(&self, map: &Map, key: &[u8]) -> Result<bool> {
                self.contains_key(map, key)
            }

            fn range_bytes(&self, map: &Map, range: Bounds<'_>) -> Result<Cursor<'_>> {
                self.range(map, range)
            }

            fn count_bytes(&self, map: &Map, range: Bounds<'_>) -> Result<u64> {
                self.count(map, range)
            }
        }
    )+};
}
reads! { Snapshot get Transaction get_ref }

macro_rules! writes {
    ($($type:ident)+) => {$(
        impl Writes for $type {
            fn put_bytes(&mut self, map: &Map, key: &[u8], value: &[u8]) -> Result<()> {
                self.put(map, key, value)
            }

            fn delete_bytes(&mut self, map: &Map, key: &[u8]) -> Result<()> {
                self.delete(map, key)
            }

            fn delete_range_bytes(&mut self, map: &Map, range: Bounds<'_>) -> Result<()> {
                self.delete_range(map, range)
            }

            fn add_bytes(&mut self, map: &Map, key: &[u8], delta: i64) -> Result<()> {
                self.add(map, key, delta)
            }
        }
    )+};
}
writes! { Transaction Batch }
