//! What reads and then writes, inside a transaction.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Bound;

use super::Transaction;
use crate::api::map::{Map, check_value};
use crate::api::snapshot::Cursor;
use crate::commit::draft::counter_of;
use crate::commit::{number_behind, numbered};
use crate::error::{Error, Reason, Result};
use crate::key::bounds::KeyBounds;
use crate::key::full_key::{FullKey, check_prefix};
use crate::read::value::Value;
use crate::read::write_set::Written;

/// Pairs that are looked at before those chosen among them are removed.
const LOOKED_AT_TOGETHER: usize = 1024;

/// A key and its value, both with bytes of their own.
type Pair = (Vec<u8>, Value<'static>);

fn owned(pair: Option<(Vec<u8>, Value<'_>)>) -> Option<Pair> {
    pair.map(|(key, value)| (key, value.into_owned()))
}

impl Transaction {
    /// Whether a key is there.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains_key(&self, map: &Map, key: impl AsRef<[u8]>) -> Result<bool> {
        self.is_used_here();
        self.pinned.alive()?;
        let full_key = FullKey::new(map.id_in(self.pinned.core())?, key.as_ref())?;
        self.note_read(|reads| reads.key(&full_key))?;
        match self.own(&full_key)? {
            Some(entry) => Ok(!matches!(entry, crate::read::value::Entry::Deleted)),
            None => self.pinned.view().contains(&full_key),
        }
    }

    /// Whether the map holds nothing.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn is_empty(&self, map: &Map) -> Result<bool> {
        Ok(self.range(map, ..)?.next()?.is_none())
    }

    /// The pair with the smallest key. It owns its bytes, so that the transaction can write while it is in use.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn first(&self, map: &Map) -> Result<Option<(Vec<u8>, Value<'static>)>> {
        self.range(map, ..)?.take_first().map(owned)
    }

    /// The pair with the greatest key.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn last(&self, map: &Map) -> Result<Option<(Vec<u8>, Value<'static>)>> {
        self.range(map, ..)?.take_last().map(owned)
    }

    /// Stores a value if the key is not there. Returns whether it was stored.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::put`].
    pub fn create(&mut self, map: &Map, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        let is_missing = !self.contains_key(map, key)?;
        if is_missing {
            self.put(map, key, value)?;
        }
        Ok(is_missing)
    }

    /// Replaces what the key holds (`None`: nothing) if that is exactly `expected`. Returns whether it was replaced.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::put`].
    pub fn compare_and_swap(
        &mut self,
        map: &Map,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let key = key.as_ref();
        let is_expected = self.get_ref(map, key)?.as_deref() == expected;
        if is_expected {
            self.set(map, key, new)?;
        }
        Ok(is_expected)
    }

    /// Replaces what the key holds by what `change` makes of it (`None`: nothing). Returns what it held before.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::put`].
    pub fn update(
        &mut self,
        map: &Map,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Value<'static>>> {
        let key = key.as_ref();
        let before = self.get(map, key)?;
        self.set(map, key, change(before.as_deref()).as_deref())?;
        Ok(before)
    }

    fn set(&mut self, map: &Map, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => self.put(map, key, value),
            None => self.delete(map, key),
        }
    }

    /// Removes a key, and returns what it held.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::delete`].
    pub fn take(&mut self, map: &Map, key: impl AsRef<[u8]>) -> Result<Option<Value<'static>>> {
        let key = key.as_ref();
        let before = self.get(map, key)?;
        if before.is_some() {
            self.delete(map, key)?;
        }
        Ok(before)
    }

    /// Removes all pairs for which `keep` says `false`. Returns how many.
    ///
    /// # Errors
    /// As [`Transaction::range`] and [`Transaction::delete`].
    pub fn retain(&mut self, map: &Map, mut keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<u64> {
        let mut removed = 0;
        let mut from = Bound::Unbounded;
        loop {
            let mut doomed = Vec::new();
            let mut cursor = self.range(map, (from.as_ref().map(Vec::as_slice), Bound::Unbounded))?;
            let last = look(&mut cursor, |key, value| {
                if !keep(key, &value) {
                    doomed.push(key.to_vec());
                }
            })?;
            drop(cursor);
            doomed.iter().try_for_each(|key| self.delete(map, key))?;
            removed += doomed.len() as u64;
            match last {
                Some(last) => from = Bound::Excluded(last),
                None => return Ok(removed),
            }
        }
    }

    /// Removes the pairs of a range that `choose` chooses, one with each step of the iterator that it returns; pairs that the
    /// iterator did not come to stay. `choose` is asked about some pairs ahead of that.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let store = duramen_engine::Store::open(directory.path())?;
    /// # let jobs = store.map("jobs")?;
    /// # for job in ["1 done", "2 open", "3 done"] { jobs.put(job, "")?; }
    /// let done = store.transact(|tx| {
    ///     let done = tx.extract_if(&jobs, .., |job, _| job.ends_with(b"done"))?;
    ///     done.collect::<duramen_engine::Result<Vec<_>>>()
    /// })?;
    /// assert_eq!(done.len(), 2);
    /// assert_eq!(jobs.count()?, 1);
    /// # Ok::<(), duramen_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::range`] and [`Transaction::delete`]; after one the iterator is at its end.
    pub fn extract_if<F: FnMut(&[u8], &[u8]) -> bool>(
        &mut self,
        map: &Map,
        range: impl KeyBounds,
        choose: F,
    ) -> Result<ExtractIf<'_, F>> {
        // What is not allowed is refused at once.
        self.range(map, (range.low(), range.high()))?;
        Ok(ExtractIf {
            from: Some(range.low().map(<[u8]>::to_vec)),
            high: range.high().map(<[u8]>::to_vec),
            tx: self,
            map: map.clone(),
            choose,
            chosen: VecDeque::new(),
        })
    }

    /// Stores a value under a prefix and the next number, as [`Transaction::append`] does, but assigns the number now and
    /// returns it, so that other writes of the transaction can name it. For that it conflicts with every other append under
    /// the prefix.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let store = duramen_engine::Store::open(directory.path())?;
    /// # let (orders, by_customer) = (store.map("orders")?, store.map("by customer")?);
    /// let order = store.transact(|tx| {
    ///     let number = tx.append_numbered(&orders, "", "three apples")?;
    ///     tx.put(&by_customer, "ada", number.to_be_bytes())?;
    ///     Ok::<_, duramen_engine::Error>(number)
    /// })?;
    /// assert_eq!(orders.get(order.to_be_bytes())?.unwrap(), "three apples");
    /// # Ok::<(), duramen_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::put`]; [`Reason::InvalidArgument`] after an ordinary append under the prefix in the same
    /// transaction.
    pub fn append_numbered(&mut self, map: &Map, prefix: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<u64> {
        let (prefix, value) = (prefix.as_ref(), value.as_ref());
        check_value(value)?;
        check_prefix(prefix)?;
        let id = self.needs(map)?;
        // Once it has given a number there, ordinary appends follow that. So the list of them is looked through once.
        if !self.numbers_under(id, prefix)? && self.appends_under(id, prefix) {
            let cause = format!(
                "the transaction has appended under the prefix \"{}\" in map {:?} without a number that is known; use \
                 `append_numbered` for all appends under the prefix",
                prefix.escape_ascii(),
                map.name()
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        let counter = counter_of(id, prefix)?;
        self.note_read(|reads| reads.key(&counter))?;
        let next = match self.read(&counter)? {
            Some(next) => number_of(&next)?,
            None => {
                let prefix = FullKey::new(id, prefix)?;
                number_behind(&mut *self.scan_full(numbered(&prefix)), prefix.len())?
            }
        };
        self.put(map, [prefix, &next.to_be_bytes()].concat(), value)?;
        self.write(&counter, Written::Put(&(next + 1).to_be_bytes()))?;
        self.work.numbers = true;
        Ok(next)
    }

    /// Whether the transaction gave a number under a prefix itself, so that further appends must follow it.
    pub(super) fn numbers_under(&self, map: u32, prefix: &[u8]) -> Result<bool> {
        Ok(self.work.numbers && self.own(&counter_of(map, prefix)?)?.is_some())
    }
}

fn number_of(bytes: &[u8]) -> Result<u64> {
    let number = bytes.try_into();
    let number = number.map_err(|_| Error::damaged("a counter of appends has the wrong length"))?;
    Ok(u64::from_be_bytes(number))
}

#[cold]
/// Shows the next pairs; returns the last key, or `None` when the range has ended.
fn look(cursor: &mut Cursor<'_>, mut see: impl FnMut(&[u8], Value<'_>)) -> Result<Option<Vec<u8>>> {
    for left in (0..LOOKED_AT_TOGETHER).rev() {
        let Some((key, value)) = cursor.next()? else {
            return Ok(None);
        };
        see(key, value);
        if left == 0 {
            return Ok(Some(key.to_vec()));
        }
    }
    Ok(None)
}

/// See [`Transaction::extract_if`].
pub struct ExtractIf<'a, F> {
    tx: &'a mut Transaction,
    map: Map,
    /// Where to look on; `None`: the range has ended.
    from: Option<Bound<Vec<u8>>>,
    high: Bound<Vec<u8>>,
    choose: F,
    /// Chosen, and not removed yet.
    chosen: VecDeque<Pair>,
}

impl<F> fmt::Debug for ExtractIf<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtractIf")
            .field("map", &self.map)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

impl<F: FnMut(&[u8], &[u8]) -> bool> ExtractIf<'_, F> {
    /// Looks for pairs to remove, until there are some or the range has ended.
    fn refill(&mut self) -> Result<()> {
        while self.chosen.is_empty()
            && let Some(from) = self.from.take()
        {
            let range = (from.as_ref().map(Vec::as_slice), self.high.as_ref().map(Vec::as_slice));
            let mut cursor = self.tx.range(&self.map, range)?;
            let last = look(&mut cursor, |key, value| {
                if (self.choose)(key, &value) {
                    self.chosen.push_back((key.to_vec(), value.into_owned()));
                }
            })?;
            self.from = last.map(Bound::Excluded);
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Pair>> {
        self.refill()?;
        let pair = self.chosen.pop_front();
        if let Some((key, _)) = &pair {
            self.tx.delete(&self.map, key)?;
        }
        Ok(pair)
    }
}

impl<F: FnMut(&[u8], &[u8]) -> bool> Iterator for ExtractIf<'_, F> {
    type Item = Result<(Vec<u8>, Value<'static>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let stepped = self.step();
        if stepped.is_err() {
            (self.from, self.chosen) = (None, VecDeque::new());
        }
        stepped.transpose()
    }
}

impl<F: FnMut(&[u8], &[u8]) -> bool> std::iter::FusedIterator for ExtractIf<'_, F> {}
