//! Maps and the single operations on them, each a commit of its own.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::api::batch::Batch;
use crate::api::snapshot::Pinned;
use crate::api::store::{Store, with_draft};
use crate::api::transaction::Transaction;
use crate::commit::Commit;
use crate::commit::draft::AddTo;
use crate::core::Core;
use crate::core::catalog::{MapInfo, check_name, map_id};
use crate::core::pins::Purpose;
use crate::error::{Error, Reason, Result};
use crate::key::bounds::KeyBounds;
use crate::key::full_key::{CATALOG, COUNTERS, FullKey, FullRange, GUARDED, KeyRoom};
use crate::limits::{LOGGED_VALUE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::log::OperationKind;
use crate::map_name::is_reserved;
use crate::read::value::Value;
use crate::read::write_set::OwnWrites;
use crate::settings::Durability;

mod read_write;

/// A named, ordered map from keys to values, both arbitrary bytes. Clones are handles of the same map.
///
/// Every method that writes is a commit of its own, with the durability of the handle ([`Map::with_durability`]).
#[derive(Clone)]
pub struct Map {
    pub(crate) store: Store,
    pub(crate) info: Arc<MapInfo>,
    name: Arc<str>,
    durability: Durability,
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("name", &self.name)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Map {
    /// Its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Map {
    /// `commit` is that of the view that showed the map.
    pub(crate) fn new(store: &Store, id: u32, name: &str, commit: u64) -> Map {
        let core = store.core();
        let info = core.catalog.info(id, name, commit);
        // After that: a transaction that drops the map from here on finds the entry.
        if core.newest_catalog_change() > commit {
            // The view may be older than what was done to the map.
            core.catalog.doubt();
        }
        Map::of(store, info, name)
    }

    pub(crate) fn of(store: &Store, info: Arc<MapInfo>, name: &str) -> Map {
        Map {
            store: store.clone(),
            info,
            name: name.into(),
            durability: store.core().settings.durability,
        }
    }

    fn core(&self) -> &Core {
        self.store.core()
    }

    /// The map's id, for use with the store of `core`.
    #[inline]
    pub(crate) fn id_in(&self, core: &Core) -> Result<u32> {
        if !std::ptr::eq(self.core(), core) {
            return Err(Reason::ForeignMap {
                name: self.name.to_string(),
            }
            .into());
        }
        Ok(self.info.id)
    }

    /// The id of a map that must still exist, for a write.
    pub(crate) fn writable_id_in(&self, core: &Core) -> Result<u32> {
        self.info.alive()?;
        self.id_in(core)
    }

    /// Refuses to work with a map that was dropped.
    #[inline]
    fn known(&self) -> Result<()> {
        self.core().know_maps()?;
        self.info.alive()
    }

    /// Refuses a commit to a guarded map, and one beside an exclusive transaction of the same thread.
    #[inline]
    fn commits(&self, call: &'static str) -> Result<()> {
        self.unguarded()?;
        self.core().refuse_beside(call, || self.name.to_string())
    }

    fn full_key(&self, key: &[u8]) -> Result<FullKey> {
        self.known()?;
        FullKey::new(self.info.id, key)
    }

    /// The name under which this handle was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the map exists and still has the name with which this handle was opened.
    #[doc(hidden)]
    pub fn is_current(&self) -> bool {
        self.info.alive().is_ok() && self.info.has_name(&self.name)
    }

    /// Its name, which may be another one than the handle was opened by.
    #[doc(hidden)]
    pub fn current_name(&self) -> String {
        self.info.name()
    }

    /// Whether only transactions write the map that were begun with `TransactionOptions::guarded`.
    #[doc(hidden)]
    #[inline]
    pub fn is_guarded(&self) -> bool {
        self.info.id & GUARDED != 0
    }

    /// Refuses to write a guarded map.
    #[inline]
    pub(crate) fn unguarded(&self) -> Result<()> {
        match self.is_guarded() {
            false => Ok(()),
            true => Err(Reason::MapGuarded { name: self.info.name() }.into()),
        }
    }

    /// Its number in the store.
    #[doc(hidden)]
    pub fn number(&self) -> u32 {
        self.info.id
    }

    /// The number in the store of the map that [`crate::Transaction::guarded_map`] made with this one.
    #[doc(hidden)]
    pub fn guarded_id(number: u32) -> u32 {
        number | GUARDED
    }

    /// A handle of the same map whose commits have another durability.
    pub fn with_durability(&self, durability: Durability) -> Map {
        Map {
            durability,
            ..self.clone()
        }
    }

    /// The value of a key now.
    ///
    /// # Errors
    /// [`Reason::KeyTooLong`], [`Reason::MapDropped`], [`Reason::Closed`], [`Reason::Damaged`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value<'static>>> {
        let full_key = self.full_key(key.as_ref())?;
        let core = self.core();
        core.healthy()?;
        core.with_view(|view| Ok(view.get(&full_key)?.map(Value::into_owned)))
    }

    /// Whether a key is there now.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let full_key = self.full_key(key.as_ref())?;
        let core = self.core();
        core.healthy()?;
        core.with_view(|view| view.contains(&full_key))
    }

    /// The values of several keys, all at the same moment, in their order.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value<'static>>>> {
        let core = self.core();
        core.healthy()?;
        core.with_view(|view| {
            keys.iter()
                .map(|key| {
                    let full_key = self.full_key(key.as_ref())?;
                    Ok(view.get(&full_key)?.map(Value::into_owned))
                })
                .collect()
        })
    }

    /// Stores a value, whatever the key held before.
    ///
    /// # Errors
    /// [`Reason::KeyTooLong`], [`Reason::ValueTooLong`] and those of a commit: [`Reason::Full`], [`Reason::Unknown`],
    /// [`Reason::Poisoned`], [`Reason::ReadOnly`], [`Reason::MapDropped`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.commits("map.put")?;
        self.known()?;
        let mut room = KeyRoom::new();
        let full_key = room.join(self.info.id, key)?;
        if value.len() > LOGGED_VALUE_BYTES_MAX {
            return self.put_stream(key, value.len() as u64, &mut &value[..]);
        }
        self.single(OperationKind::Put, full_key, value)
    }

    /// Stores a value of `length` bytes, up to 1 GiB, from a stream, without holding it in memory.
    ///
    /// # Errors
    /// As [`Map::put`], and [`Reason::ValueLengthMismatch`].
    pub fn put_stream(&self, key: impl AsRef<[u8]>, length: u64, stream: &mut dyn Read) -> Result<()> {
        self.commits("map.put_stream")?;
        let full_key = self.full_key(key.as_ref())?;
        self.core().writable()?;
        if length > VALUE_BYTES_MAX {
            return Err(Reason::ValueTooLong {
                length,
                max: VALUE_BYTES_MAX,
            }
            .into());
        }
        if length <= LOGGED_VALUE_BYTES_MAX as u64 {
            let value = read_exactly(length, stream)?;
            return self.single(OperationKind::Put, &full_key, &value);
        }
        let extent = self.core().write_stream(length, stream)?;
        let values = self.core().value_durability(self.durability);
        let may_tear = values == Durability::Written;
        let written = self
            .core()
            .ready_values(extent.pages(), values)
            .and_then(|()| self.write_one(OperationKind::PutExtent, &full_key, &extent.encode(), may_tear));
        if written.as_ref().is_err_and(|error| !error.is_of_a_made_commit()) {
            self.core().give_back_values(&[extent]);
        }
        written
    }

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.commits("map.delete")?;
        self.known()?;
        self.single(
            OperationKind::Delete,
            KeyRoom::new().join(self.info.id, key.as_ref())?,
            &[],
        )
    }

    fn single(&self, kind: OperationKind, full_key: &[u8], value: &[u8]) -> Result<()> {
        self.write_one(kind, full_key, value, false)
    }

    /// Commits one operation. `may_tear`: its value is long, and not synced yet.
    fn write_one(&self, kind: OperationKind, full_key: &[u8], value: &[u8], may_tear: bool) -> Result<()> {
        with_draft(|draft| {
            draft.values_may_tear(may_tear);
            draft.push(kind, full_key, value, self.core().hash_seed);
            draft.needs(&self.info);
            self.core().commit(draft, None, self.durability).map(|_| ())
        })
    }

    /// Removes all keys of a range. Costs by pages, not by pairs.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn delete_range(&self, range: impl KeyBounds) -> Result<()> {
        self.commits("map.delete_range")?;
        let mut batch = Batch::new();
        batch.delete_range(self, range)?;
        self.commit_batch(batch)?;
        Ok(())
    }

    /// Removes all keys.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn clear(&self) -> Result<()> {
        self.commits("map.clear")?;
        self.delete_range(..)
    }

    /// Adds to a counter (8 bytes, a big-endian `i64`; a missing key counts as 0) and returns the sum. Additions
    /// commute: they never conflict with each other.
    ///
    /// # Errors
    /// As [`Map::put`], [`Reason::NotACounter`], [`Reason::CounterOverflow`].
    pub fn add(&self, key: impl AsRef<[u8]>, delta: i64) -> Result<i64> {
        self.commits("map.add")?;
        let full_key = self.full_key(key.as_ref())?;
        with_draft(|draft| {
            draft.push_add(&full_key, delta, AddTo::Newest, self.core().hash_seed);
            draft.needs(&self.info);
            self.core().commit(draft, None, self.durability)?;
            Ok(draft.first_sum())
        })
    }

    /// Stores a value under `prefix` followed by a number of 8 big-endian bytes that is assigned at commit: dense, in
    /// commit order, never given again. Returns the number. The first one is 0, or, where such keys were put before
    /// anything was appended, as in a store that was loaded from a dump, the one after the greatest (of those below
    /// 2^48).
    ///
    /// # Errors
    /// As [`Map::put`].
    pub fn append(&self, prefix: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<u64> {
        self.commits("map.append")?;
        let mut batch = Batch::new();
        batch.append(self, prefix, value)?;
        Ok(self.commit_batch(batch)?.assigned()[0])
    }

    fn commit_batch(&self, mut batch: Batch) -> Result<Commit> {
        batch.durability(self.durability);
        self.store.write(batch)
    }

    /// How many pairs the map has now.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn count(&self) -> Result<u64> {
        self.core().know_maps()?;
        self.info.alive()?;
        self.store.snapshot()?.count(self, ..)
    }
}

/// A short value from a stream that must have exactly its length.
fn read_exactly(length: u64, stream: &mut dyn Read) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    let read = stream.take(length + 1).read_to_end(&mut value);
    read.map_err(Error::of_stream)?;
    if value.len() as u64 != length {
        return Err(Reason::ValueLengthMismatch {
            announced: length,
            found: value.len() as u64,
        }
        .into());
    }
    Ok(value)
}

/// Refuses values that are too long.
pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    if value.len() as u64 > VALUE_BYTES_MAX {
        return Err(Reason::ValueTooLong {
            length: value.len() as u64,
            max: VALUE_BYTES_MAX,
        }
        .into());
    }
    Ok(())
}

/// The maps of a store, by name.
#[derive(Debug)]
pub struct Maps<'a> {
    pub(crate) store: &'a Store,
}

impl Maps<'_> {
    /// The names of all maps, sorted.
    ///
    /// # Errors
    /// As [`Map::get`].
    pub fn list(&self) -> Result<Vec<String>> {
        let pinned = Pinned::new(self.store, &self.store.core().control().visible.0, Purpose::Snapshot)?;
        let mut scan = pinned.scan(OwnWrites::default(), FullRange::map(CATALOG));
        let mut names = Vec::new();
        while let Some((key, _)) = scan.next_pair()? {
            names.push(String::from_utf8_lossy(&key[4..]).into_owned());
        }
        names.retain(|name| !is_reserved(name));
        Ok(names)
    }

    /// The map of a name, if there is one.
    ///
    /// # Errors
    /// As [`Map::get`], [`Reason::InvalidMapName`].
    pub fn get(&self, name: &str) -> Result<Option<Map>> {
        check_name(name)?;
        self.named(name)
    }

    /// The map of a name, which may be a reserved one.
    pub(crate) fn named(&self, name: &str) -> Result<Option<Map>> {
        let core = self.store.core();
        core.healthy()?;
        let key = FullKey::new(CATALOG, name.as_bytes())?;
        let found = core.with_view(|view| {
            let id = view.get(&key)?.map(|id| map_id(&id)).transpose()?;
            Ok(id.map(|id| (id, view.commit)))
        })?;
        Ok(found.map(|(id, commit)| Map::new(self.store, id, name, commit)))
    }

    /// Makes a map.
    ///
    /// # Errors
    /// [`Reason::MapExists`], [`Reason::InvalidMapName`], and those of a commit.
    pub fn create(&self, name: &str) -> Result<Map> {
        self.create_by("maps.create", name)
    }

    pub(crate) fn create_by(&self, call: &'static str, name: &str) -> Result<Map> {
        self.in_transaction(call, name, |tx| {
            if tx.existing_map(name)?.is_some() {
                return Err(Reason::MapExists { name: name.into() }.into());
            }
            tx.map(name)
        })
    }

    /// Gives a map another name. Handles of it go on working.
    ///
    /// # Errors
    /// [`Reason::UnknownMap`], [`Reason::MapExists`], [`Reason::InvalidMapName`], and those of a commit.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.in_transaction("maps.rename", from, |tx| tx.rename_map(from, to))
    }

    /// Removes a map with everything in it. Costs by pages, not by pairs.
    ///
    /// # Errors
    /// [`Reason::UnknownMap`], and those of a commit.
    pub fn drop(&self, name: &str) -> Result<()> {
        self.in_transaction("maps.drop", name, |tx| tx.drop_map(name))
    }

    fn in_transaction<T>(
        &self,
        call: &'static str,
        name: &str,
        body: impl FnMut(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        self.store.core().refuse_beside(call, || name.to_string())?;
        self.store.transact(body)
    }
}

/// The id of a new map.
pub(crate) fn next_map_id(core: &Core) -> u32 {
    core.control().tail.0.next_map.fetch_add(1, Ordering::Relaxed)
}

/// The counters of a map's appends, which go when the map goes.
pub(crate) fn counters_of(id: u32) -> Result<FullRange> {
    FullRange::prefix(COUNTERS, &id.to_be_bytes())
}
