//! The rows of one state, as far as a worker owns them. The keys of rows are drawn in the documentation of the module above.

use std::ops::{Bound, Range};
use std::sync::Arc;

use duramen_engine::encoding::{self, DecodeKey, Key, KeyRange};
use duramen_engine::{KeyBounds, Map, Pairs, Result, Value};

use super::error::StateError;
use super::key_groups::KeyGroups;
use crate::codec::ValueCodec;
use crate::typed::{Reads, decode_value, invalid};

/// Bytes of the key group in front of each key.
const GROUP_BYTES: usize = 2;

/// A state's map, and the key groups that the handle may use.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub map: Map,
    pub job: Arc<str>,
    pub state: Arc<str>,
    pub groups: KeyGroups,
    pub own: Range<u16>,
}

impl Rows {
    /// What the keys of all rows of a key begin with: the key group and the key.
    pub fn key<K: Key + ?Sized>(&self, key: &K) -> Result<Vec<u8>> {
        let mut row = vec![0; GROUP_BYTES];
        key.encode_to(&mut row);
        let group = self.groups.of_encoded(&row[GROUP_BYTES..]);
        if !self.own.contains(&group) {
            return Err(StateError::OtherWorker {
                job: self.job.to_string(),
                state: self.state.to_string(),
                key_group: group,
                first: self.own.start,
                last: self.own.end - 1,
            }
            .into());
        }
        row[..GROUP_BYTES].copy_from_slice(&group.to_be_bytes());
        Ok(row)
    }

    /// All rows of a key. No encoding of a key begins with another, so these are the rows of no other key.
    pub fn of_key<K: Key + ?Sized>(&self, key: &K) -> Result<KeyRange> {
        Ok(KeyRange::of_prefix(self.key(key)?))
    }

    /// The pairs of a key, in their order.
    pub fn pairs_of_key<'a, K: Key + ?Sized>(&self, reads: &'a impl Reads, key: &K) -> Result<Pairs<'a>> {
        let range = self.of_key(key)?;
        Ok(reads.range_bytes(&self.map, (range.low(), range.high()))?.into_iter())
    }

    pub fn count_of_key<K: Key + ?Sized>(&self, reads: &impl Reads, key: &K) -> Result<u64> {
        let range = self.of_key(key)?;
        reads.count_bytes(&self.map, (range.low(), range.high()))
    }

    /// The pairs of all keys of the worker, by key group and key.
    pub fn pairs<'a>(&self, reads: &'a impl Reads) -> Result<Pairs<'a>> {
        let (low, high) = bounds(&self.own);
        let range = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
        Ok(reads.range_bytes(&self.map, range)?.into_iter())
    }

    /// The key at the front of a row's key, and what follows it.
    pub fn split<'r, K: DecodeKey>(&self, row: &'r [u8]) -> Result<(K, &'r [u8])> {
        let mut rest = row.get(GROUP_BYTES..).unwrap_or_default();
        let key = K::decode_from(&mut rest).map_err(|error| self.not_a::<K>(row, &error))?;
        Ok((key, rest))
    }

    /// The last part of a row's key.
    pub fn last_part<K: DecodeKey>(&self, row: &[u8], rest: &[u8]) -> Result<K> {
        encoding::decode(rest).map_err(|error| self.not_a::<K>(row, &error))
    }

    /// The key of a row that has no other part.
    pub fn whole_key<K: DecodeKey>(&self, row: &[u8]) -> Result<K> {
        self.last_part(row, row.get(GROUP_BYTES..).unwrap_or_default())
    }

    pub fn value<V: ValueCodec>(&self, row: &[u8], value: &Value<'_>) -> Result<V> {
        decode_value(&self.map, row, value)
    }

    fn not_a<K>(&self, row: &[u8], cause: &duramen_engine::Error) -> duramen_engine::Error {
        invalid::<K>(&self.map, row, "a part of the", "is not a", cause)
    }
}

/// Bounds of the rows of a range of key groups. The second is excluded.
pub(super) fn bounds(groups: &Range<u16>) -> ([u8; GROUP_BYTES], [u8; GROUP_BYTES]) {
    (groups.start.to_be_bytes(), groups.end.to_be_bytes())
}
