//! What reads and then writes: a transaction of its own, again after a conflict, at last with all others shut out.

use super::Map;
use crate::api::transaction::{Transaction, TransactionOptions};
use crate::error::Result;
use crate::key::bounds::KeyBounds;
use crate::limits::ATTEMPTS_MAX;
use crate::read::value::Value;

impl Map {
    /// Runs `body` in a transaction and commits what it wrote, again after a conflict.
    #[doc(hidden)]
    pub fn atomically<T>(&self, call: &'static str, mut body: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        self.commits(call)?;
        self.known()?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let options = TransactionOptions::default().durability(self.durability);
            let in_turn = attempt > ATTEMPTS_MAX;
            let options = if in_turn { options.exclusive() } else { options };
            let mut tx = self.store.begin(options)?;
            let value = body(&mut tx)?;
            if tx.is_unchanged() {
                return Ok(value);
            }
            match tx.commit() {
                Err(error) if !in_turn && error.is_conflict() => {}
                committed => return committed.map(|_| value),
            }
        }
    }

    /// Whether the map holds nothing now.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn is_empty(&self) -> Result<bool> {
        self.known()?;
        self.store.snapshot()?.is_empty(self)
    }

    /// The pair with the smallest key now.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn first(&self) -> Result<Option<(Vec<u8>, Value<'static>)>> {
        self.known()?;
        let snapshot = self.store.snapshot()?;
        let pair = snapshot.first(self)?;
        Ok(pair.map(|(key, value)| (key, value.into_owned())))
    }

    /// The pair with the greatest key now.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn last(&self) -> Result<Option<(Vec<u8>, Value<'static>)>> {
        self.known()?;
        let snapshot = self.store.snapshot()?;
        let pair = snapshot.last(self)?;
        Ok(pair.map(|(key, value)| (key, value.into_owned())))
    }

    /// Removes the pair with the smallest key, and returns it: each pair goes to one caller, whatever the number of threads and
    /// processes.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn pop_first(&self) -> Result<Option<(Vec<u8>, Value<'static>)>> {
        self.atomically("map.pop_first", |tx| tx.pop_first(self))
    }

    /// Removes the pair with the greatest key, and returns it; see [`Map::pop_first`].
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn pop_last(&self) -> Result<Option<(Vec<u8>, Value<'static>)>> {
        self.atomically("map.pop_last", |tx| tx.pop_last(self))
    }

    /// Stores a value if the key is not there. Returns whether it was stored.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn create(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.atomically("map.create", |tx| tx.create(self, key, value))
    }

    /// Replaces what the key holds (`None`: nothing) if that is exactly `expected`. Returns whether it was replaced.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn compare_and_swap(&self, key: impl AsRef<[u8]>, expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        let key = key.as_ref();
        self.atomically("map.compare_and_swap", |tx| {
            tx.compare_and_swap(self, key, expected, new)
        })
    }

    /// Replaces what the key holds by what `change` makes of it (`None`: nothing). Returns what it held before. `change` may
    /// run several times, when others change the key at the same time; the key is changed once.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn update(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Value<'static>>> {
        let key = key.as_ref();
        self.atomically("map.update", |tx| tx.update(self, key, &mut change))
    }

    /// Removes a key, and returns what it held.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Value<'static>>> {
        let key = key.as_ref();
        self.atomically("map.take", |tx| tx.take(self, key))
    }

    /// Removes all pairs for which `keep` says `false`, in one transaction. Returns how many. `keep` may be asked several
    /// times about a pair, when others change the map at the same time.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn retain(&self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<u64> {
        self.atomically("map.retain", |tx| tx.retain(self, &mut keep))
    }

    /// Removes the pairs of a range that `choose` chooses, in one transaction, and returns them. `choose` may be asked several
    /// times about a pair, when others change the map at the same time. [`Transaction::extract_if`] returns an iterator.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn extract_if(
        &self,
        range: impl KeyBounds,
        mut choose: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, Value<'static>)>> {
        self.atomically("map.extract_if", |tx| {
            tx.extract_if(self, &range, &mut choose)?.collect()
        })
    }

    /// Stores pairs whose keys ascend, in one transaction. Returns how many.
    ///
    /// # Errors
    /// As [`Map::put`]; [`InvalidArgument`](crate::Reason::InvalidArgument) when a key is not greater than the one before it: nothing is stored.
    pub fn put_sorted<K: AsRef<[u8]>, V: AsRef<[u8]>>(&self, pairs: impl IntoIterator<Item = (K, V)>) -> Result<u64> {
        self.commits("map.put_sorted")?;
        self.known()?;
        // The pairs come once: so that no conflict asks for them again, all other writers wait meanwhile.
        let options = TransactionOptions::default().durability(self.durability).exclusive();
        let mut tx = self.store.begin(options)?;
        let count = tx.put_sorted(self, pairs)?;
        tx.commit()?;
        Ok(count)
    }
}
