//! The entries of a layer in memory, in the order of their keys. Most transactions write a few keys, so a few entries
//! lie one behind the other in memory that the next transaction uses again; many go into a tree. Transactions that write
//! many keys often write them in ascending order. What is above everything in the tree waits in an array behind it. The
//! array goes into the tree when a key between two of it comes, or when some go from between. So each entry goes there at
//! most once.
//!
//! Invariants: `few` is empty, or `many` and `last` are. All keys of `last` are above those of `many`. Memory of `few` is
//! bounded by [`FEW_MAX`] and [`FEW_BYTES_MAX`].

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

use smallvec::SmallVec;

use crate::btree::Extent;
use crate::read::value::{Entry, Value};

/// Entries from which on a layer has a tree: finding a place among fewer costs less than memory for one of them.
const FEW_MAX: usize = 16;
/// Bytes of keys and values from which on a layer has a tree, replaced ones included.
const FEW_BYTES_MAX: usize = 4096;

/// A key in the tree. Most full keys are this short, and need no memory of their own.
type Key = SmallVec<[u8; 24]>;

/// What a transaction does to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written<'a> {
    Put(&'a [u8]),
    PutExtent(Extent),
    Delete,
    /// An addition to a counter that this transaction has not otherwise written: it does not conflict. `shown` is
    /// what the transaction itself reads until then.
    Add {
        delta: i64,
        shown: &'a [u8; 8],
    },
}

impl<'a> Written<'a> {
    pub(crate) fn entry(self) -> Entry<'a> {
        match self {
            Written::Put(value) => Entry::Inline(Value::borrowed(value)),
            Written::PutExtent(extent) => Entry::Extent(extent),
            Written::Delete => Entry::Deleted,
            Written::Add { shown, .. } => Entry::Inline(Value::borrowed(shown)),
        }
    }

    fn value(self) -> &'a [u8] {
        match self {
            Written::Put(value) => value,
            _ => &[],
        }
    }
}

/// A write as the layer keeps it; `B` says where the value is.
#[derive(Debug)]
enum Kept<B> {
    Put(B),
    PutExtent(Extent),
    Delete,
    Add { delta: i64, shown: [u8; 8] },
}

impl<B> Kept<B> {
    fn new(written: Written<'_>, keep: impl FnOnce(&[u8]) -> B) -> Kept<B> {
        match written {
            Written::Put(value) => Kept::Put(keep(value)),
            Written::PutExtent(extent) => Kept::PutExtent(extent),
            Written::Delete => Kept::Delete,
            Written::Add { delta, shown } => Kept::Add { delta, shown: *shown },
        }
    }

    fn written<'a>(&'a self, value: impl FnOnce(&'a B) -> &'a [u8]) -> Written<'a> {
        match self {
            Kept::Put(kept) => Written::Put(value(kept)),
            Kept::PutExtent(extent) => Written::PutExtent(*extent),
            Kept::Delete => Written::Delete,
            Kept::Add { delta, shown } => Written::Add { delta: *delta, shown },
        }
    }
}

/// A place in `Entries::bytes`.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u16,
    end: u16,
}

const _: () = assert!(FEW_BYTES_MAX <= u16::MAX as usize);

impl Span {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }
}

#[derive(Debug)]
struct Few {
    key: Span,
    kept: Kept<Span>,
}

/// A key and what is done to it.
pub(crate) type Pair<'a> = (&'a [u8], Written<'a>);

/// Entries in the order of their keys.
pub(crate) struct EntriesFrom<'a> {
    entries: &'a Entries,
    few: std::slice::Iter<'a, Few>,
    many: btree_map::Range<'a, Key, Kept<Box<[u8]>>>,
    last: std::slice::Iter<'a, (Key, Kept<Box<[u8]>>)>,
}

impl<'a> Iterator for EntriesFrom<'a> {
    type Item = Pair<'a>;

    fn next(&mut self) -> Option<Pair<'a>> {
        if let Some(few) = self.few.next() {
            return Some(self.entries.pair(few));
        }
        let of_many = self.many.next();
        let (key, kept) = of_many.or_else(|| self.last.next().map(|(key, kept)| (key, kept)))?;
        Some((key, apart(kept)))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    bytes: Vec<u8>,
    /// Ascending.
    few: Vec<Few>,
    many: BTreeMap<Key, Kept<Box<[u8]>>>,
    /// Ascending.
    last: Vec<(Key, Kept<Box<[u8]>>)>,
}

impl Entries {
    pub(crate) fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty() && self.last.is_empty()
    }

    /// Forgets everything, and keeps the memory of a few.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.few.clear();
        self.many.clear();
        self.last = Vec::new();
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Written<'_>> {
        if let Ok(place) = self.place(key) {
            return Some(self.pair(&self.few[place]).1);
        }
        match self.place_in_last(key) {
            Ok(place) => Some(apart(&self.last[place].1)),
            Err(0) => self.many.get(key).map(apart),
            Err(_) => None,
        }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> EntriesFrom<'_> {
        self.from(Bound::Unbounded)
    }

    /// Those from a bound on.
    pub(crate) fn from(&self, bound: Bound<&[u8]>) -> EntriesFrom<'_> {
        let [of_few, of_last] = match bound {
            Bound::Included(key) => {
                [self.place(key), self.place_in_last(key)].map(|place| place.unwrap_or_else(|place| place))
            }
            Bound::Excluded(key) => [self.place(key), self.place_in_last(key)]
                .map(|place| place.map_or_else(|place| place, |place| place + 1)),
            Bound::Unbounded => [0, 0],
        };
        EntriesFrom {
            entries: self,
            few: self.few[of_few..].iter(),
            many: self.many.range::<[u8], _>((bound, Bound::Unbounded)),
            last: self.last[of_last..].iter(),
        }
    }

    /// The last entry below a key.
    pub(crate) fn last_below(&self, key: &[u8]) -> Option<Pair<'_>> {
        let place = self.place(key).unwrap_or_else(|place| place);
        if let Some(place) = place.checked_sub(1) {
            return Some(self.pair(&self.few[place]));
        }
        let place = self.place_in_last(key).unwrap_or_else(|place| place);
        let (key, kept) = match place.checked_sub(1).map(|place| &self.last[place]) {
            Some((key, kept)) => (key, kept),
            None => {
                let below = (Bound::Unbounded, Bound::Excluded(key));
                self.many.range::<[u8], _>(below).next_back()?
            }
        };
        Some((key, apart(kept)))
    }

    /// Writes a key. `replaced` is told what it was to before, if anything.
    pub(crate) fn insert(&mut self, key: &[u8], written: Written<'_>, mut replaced: impl FnMut(Written<'_>)) {
        let place = self.place(key);
        if let Ok(place) = place {
            replaced(self.pair(&self.few[place]).1);
        }
        let is_full = self.few.len() == FEW_MAX && place.is_err();
        let bytes = self.bytes.len() + key.len() + written.value().len();
        let has_many = !self.last.is_empty() || !self.many.is_empty();
        if is_full || bytes > FEW_BYTES_MAX || has_many {
            self.spread_few();
            let before = self.insert_among_many(key, Kept::new(written, |value| value.into()));
            // Who was among the few has been told of.
            if let Some(before) = before.filter(|_| place.is_err()) {
                replaced(apart(&before));
            }
            return;
        }
        let kept = Kept::new(written, |value| append(&mut self.bytes, value));
        match place {
            Ok(place) => self.few[place].kept = kept,
            Err(place) => {
                let key = append(&mut self.bytes, key);
                self.few.insert(place, Few { key, kept });
            }
        }
    }

    /// Removes what lies from one key up to another. `removed` is told of each.
    pub(crate) fn remove(&mut self, low: &[u8], high: &[u8], mut removed: impl FnMut(Pair<'_>)) {
        let [first, last] = [low, high].map(|key| self.place(key).unwrap_or_else(|place| place));
        for few in self.few.get(first..last).into_iter().flatten() {
            removed(self.pair(few));
        }
        self.few.drain(first..last.max(first));
        let [first, last] = [low, high].map(|key| self.place_in_last(key).unwrap_or_else(|place| place));
        let is_end_of_last = first < last && last == self.last.len();
        if first < last && !is_end_of_last {
            // Closing a gap in the array would move all that lies above it, for each range again.
            self.many.extend(self.last.drain(..));
        }
        let inside = (Bound::Included(low), Bound::Excluded(high));
        let keys: Vec<Key> = match self.many.is_empty() {
            true => Vec::new(),
            false => self.many.range::<[u8], _>(inside).map(|(key, _)| key.clone()).collect(),
        };
        for (key, kept) in keys.iter().filter_map(|key| self.many.remove_entry(key)) {
            removed((&key, apart(&kept)));
        }
        if is_end_of_last {
            for (key, kept) in self.last.drain(first..) {
                removed((&key, apart(&kept)));
            }
        }
    }

    /// Puts a key into the tree or the array behind it. Returns what it replaced.
    fn insert_among_many(&mut self, key: &[u8], kept: Kept<Box<[u8]>>) -> Option<Kept<Box<[u8]>>> {
        let greatest = match self.last.last() {
            Some((greatest, _)) => Some(greatest),
            None => self.many.last_key_value().map(|(greatest, _)| greatest),
        };
        if greatest.is_none_or(|greatest| key > greatest.as_slice()) {
            self.last.push((Key::from_slice(key), kept));
            return None;
        }
        match self.place_in_last(key) {
            Ok(place) => return Some(std::mem::replace(&mut self.last[place].1, kept)),
            Err(0) => {}
            Err(_) => self.many.extend(self.last.drain(..)),
        }
        self.many.insert(Key::from_slice(key), kept)
    }

    /// Where a key is among the few, or belongs.
    fn place(&self, key: &[u8]) -> Result<usize, usize> {
        self.few.binary_search_by(|few| few.key.of(&self.bytes).cmp(key))
    }

    fn pair<'a>(&'a self, few: &'a Few) -> Pair<'a> {
        (few.key.of(&self.bytes), few.kept.written(|value| value.of(&self.bytes)))
    }

    /// Makes the few entries the first of many.
    fn spread_few(&mut self) {
        for Few { key, kept } in self.few.drain(..) {
            let written = kept.written(|value| value.of(&self.bytes));
            let key = Key::from_slice(key.of(&self.bytes));
            self.last.push((key, Kept::new(written, |value| value.into())));
        }
        self.bytes.clear();
    }

    /// Where a key is in the array behind the tree, or belongs.
    fn place_in_last(&self, key: &[u8]) -> Result<usize, usize> {
        self.last.binary_search_by(|(last, _)| last.as_slice().cmp(key))
    }
}

/// A write whose value has memory of its own.
fn apart(kept: &Kept<Box<[u8]>>) -> Written<'_> {
    kept.written(|value| value)
}

fn append(bytes: &mut Vec<u8>, part: &[u8]) -> Span {
    let start = bytes.len() as u16;
    bytes.extend_from_slice(part);
    Span {
        start,
        end: bytes.len() as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few and many entries, as they come and go, are what a map from keys to values is.
    #[test]
    fn entries_agree_with_a_map() {
        let mut random = fastrand::Rng::with_seed(11);
        for round in 0..400 {
            let (mut entries, mut model) = (Entries::default(), BTreeMap::<Vec<u8>, Vec<u8>>::new());
            // A round stays few, becomes many by its keys, or by its bytes; or most of its keys ascend.
            let (keys, longest, ascends) =
                [(8, 20, false), (60, 20, false), (8, 900, false), (60, 20, true)][round % 4];
            for step in 0..60 {
                let key = match ascends && random.u8(..8) > 0 {
                    true => vec![b'k', step],
                    false => vec![b'k', random.u8(..keys)],
                };
                match random.u8(..10) {
                    0 => remove(&mut entries, &mut model, &key, &[b'k', random.u8(..keys)]),
                    _ => {
                        let value = vec![random.u8(..); random.usize(..longest)];
                        let mut replaced = None;
                        entries.insert(&key, Written::Put(&value), |before| {
                            assert!(replaced.replace(before.value().to_vec()).is_none());
                        });
                        assert_eq!(replaced, model.insert(key, value));
                    }
                }
                check(&entries, &model);
            }
            entries.clear();
            check(&entries, &BTreeMap::new());
        }
    }

    fn remove(entries: &mut Entries, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, low: &[u8], high: &[u8]) {
        let mut removed = Vec::new();
        entries.remove(low, high.max(low), |(key, written)| {
            removed.push((key.to_vec(), written.value().to_vec()))
        });
        let is_inside = |key: &[u8]| low <= key && key < high;
        let mut expected = model.clone();
        expected.retain(|key, _| is_inside(key));
        model.retain(|key, _| !is_inside(key));
        assert!(expected.into_iter().eq(removed));
    }

    fn check(entries: &Entries, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
        fn pair<'a>((key, value): (&'a Vec<u8>, &'a Vec<u8>)) -> Pair<'a> {
            (key, Written::Put(value))
        }
        assert_eq!(entries.is_empty(), model.is_empty());
        assert!(entries.iter().eq(model.iter().map(pair)));
        for last in 0..64 {
            let key: &[u8] = &[b'k', last];
            assert_eq!(entries.get(key), model.get(key).map(|value| Written::Put(value)));
            for bound in [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded] {
                let expected = model.range::<[u8], _>((bound, Bound::Unbounded)).next();
                assert_eq!(entries.from(bound).next(), expected.map(pair));
            }
            let below = (Bound::Unbounded, Bound::Excluded(key));
            let expected = model.range::<[u8], _>(below).next_back();
            assert_eq!(entries.last_below(key), expected.map(pair));
        }
    }
}
