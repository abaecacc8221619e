//! Write transactions: reads from a snapshot, writes into layers of its own, one commit at the end.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeBounds;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::{EXTENT_BYTES, Extent, Root};
use crate::batch::{pages_of, stored};
use crate::catalog::check_name;
use crate::checksum::key_hash;
use crate::commit::{Commit, Durability, NOT_EXCLUSIVE};
use crate::conflict::Checks;
use crate::core::{Core, with_source};
use crate::draft::{AddTo, Draft};
use crate::error::{Error, Reason, Result};
use crate::full_key::{CATALOG, COUNTERS, FullKey, FullRange};
use crate::future::CommitFuture;
use crate::limits::{
    ATTEMPTS_MAX, KEY_BYTES_MAX, LOGGED_VALUE_BYTES_MAX, READ_SET_BYTES_MAX, RESOLVED_BYTES_MAX, SAVEPOINTS_MAX,
    TRANSACTION_RANGES_MAX, WRITE_SET_BYTES_MAX,
};
use crate::log::OperationKind;
use crate::map::{Map, check_value, counters_of, map_id, next_map_id};
use crate::planted::{PlantedBug, is_planted};
use crate::sequence::{Body, Place, Ticket};
use crate::snapshot::{Cursor, Pinned, Purpose};
use crate::store::{Store, with_draft};
use crate::value::{Entry, Value};
use crate::view::{encode_root, in_tree};
use crate::write_set::{Layer, Written};

mod sequences;

/// How a transaction runs and commits.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransactionOptions {
    serializable: bool,
    exclusive: bool,
    durability: Option<Durability>,
    memory_bytes: Option<usize>,
}

impl TransactionOptions {
    /// Snapshot isolation, concurrent, the store's durability.
    pub fn new() -> TransactionOptions {
        TransactionOptions::default()
    }

    /// Refuses the commit also when something that the transaction *read* (a key, a range) was changed meanwhile, so
    /// that the outcome is that of some order of the transactions, one after the other.
    pub fn serializable(mut self) -> TransactionOptions {
        self.serializable = true;
        self
    }

    /// Shuts all other writers out until the transaction ends: it never meets a conflict. Readers go on. Writing in
    /// any other way before the transaction ends, in the same thread, waits for ever.
    pub fn exclusive(mut self) -> TransactionOptions {
        self.exclusive = true;
        self
    }

    /// Asks for a durability other than the store's.
    pub fn durability(mut self, durability: Durability) -> TransactionOptions {
        self.durability = Some(durability);
        self
    }

    /// Memory for what the transaction writes, in bytes; what is beyond goes to the data file before the commit. Less
    /// saves memory where many transactions are open at once, more saves a large one the way through the file. Default:
    /// 16 MiB. Appends and additions always stay in memory.
    pub fn memory_bytes(mut self, bytes: usize) -> TransactionOptions {
        self.memory_bytes = Some(bytes);
        self
    }
}

/// A write transaction. It reads the snapshot it began with and its own writes; others see nothing of it until it
/// commits, and then all at once. Dropped without a commit, it leaves nothing behind.
///
/// It may be larger than memory: what does not fit is written to the data file as it goes, and the log gets one record.
///
/// A transaction cannot be used after its end:
///
/// ```compile_fail
/// # let store = duramen_engine::Store::open("store").unwrap();
/// # let map = store.map("map").unwrap();
/// let mut tx = store.begin(Default::default()).unwrap();
/// tx.commit().unwrap();
/// tx.put(&map, b"key", b"value").unwrap(); // error[E0382]: borrow of moved value: `tx`
/// ```
#[derive(Debug)]
pub struct Transaction {
    store: Store,
    pinned: Pinned,
    /// How many changes of maps there were before the snapshot was taken.
    catalog_changes: u64,
    layers: Vec<Layer>,
    /// What all layers but the newest hold; that one changes with every write.
    below: Held,
    savepoints: Vec<Mark>,
    appends: Vec<Append>,
    append_bytes: u64,
    /// Values written to the data file, to give back unless the transaction commits.
    extents: Vec<Extent>,
    maps: Vec<Map>,
    /// Ids of the maps that it opened by name, as its snapshot shows them.
    opened: Vec<u32>,
    /// Ids of the maps that it makes: until it commits they are its own.
    new_maps: Vec<u32>,
    dropped: Vec<u32>,
    renamed: Vec<(u32, String)>,
    reads: Option<Mutex<Reads>>,
    /// What must not change before it commits, whatever else it read.
    needed: Vec<FullRange>,
    needed_keys: Vec<Vec<u8>>,
    token: u32,
    durability: Durability,
    memory_bytes: usize,
    finished: bool,
}

/// What an append takes in a record beyond prefix and value, roughly.
const APPEND_BYTES: usize = 24;

#[derive(Debug)]
struct Append {
    map: u32,
    prefix: Arc<[u8]>,
    kind: OperationKind,
    value: Vec<u8>,
    /// What a sequence knows beside that.
    numbered: Option<Numbered>,
}

/// An append to a sequence.
#[derive(Debug)]
struct Numbered {
    place: Arc<Place>,
    body: Option<Body>,
    bytes: u64,
    ticket: Ticket,
}

impl Append {
    /// Bytes that appends take in the record at most: each may be the only one of its prefix.
    fn bytes(appends: &[Append]) -> u64 {
        let bytes = |append: &Append| {
            let body = append.numbered.as_ref().and_then(|numbered| numbered.body.as_ref());
            let body = body.map_or(0, |body| appended_bytes(append.prefix.len(), body.value.len()));
            appended_bytes(append.prefix.len(), append.value.len()) + body
        };
        appends.iter().map(|append| bytes(append) as u64).sum()
    }
}

/// What an append takes in the record: its own operation, and that of the counter of its prefix.
fn appended_bytes(prefix: usize, value: usize) -> usize {
    2 * (prefix + APPEND_BYTES) + value
}

/// What a serialisable transaction has read, each key and range once.
#[derive(Debug, Default)]
struct Reads {
    keys: HashSet<Vec<u8>>,
    ranges: HashSet<FullRange>,
    bytes: usize,
}

/// Overhead of an entry of a set, roughly.
const READ_BYTES: usize = 64;

impl Reads {
    fn key(&mut self, full_key: &[u8]) -> Result<()> {
        if !self.keys.contains(full_key) {
            self.take(full_key.len())?;
            self.keys.insert(full_key.to_vec());
        }
        Ok(())
    }

    fn range(&mut self, range: &FullRange) -> Result<()> {
        if !self.ranges.contains(range) {
            self.take(range.low.len() + range.high.len())?;
            self.ranges.insert(range.clone());
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        if self.bytes + bytes + READ_BYTES > READ_SET_BYTES_MAX {
            return Err(Reason::TransactionTooLarge {
                what: "would remember more bytes of keys and ranges that it has read",
                max: READ_SET_BYTES_MAX as u64,
                cure: "read whole ranges instead of their keys, or run it exclusively, which needs no such memory",
            }
            .into());
        }
        self.bytes += bytes + READ_BYTES;
        Ok(())
    }
}

/// Memory that layers take, and ranges that they delete.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    bytes: usize,
    addition_bytes: usize,
    ranges: usize,
}

impl Held {
    fn of<'a>(layers: impl IntoIterator<Item = &'a Layer>) -> Held {
        let mut held = Held::default();
        for layer in layers {
            held.bytes += layer.bytes();
            held.addition_bytes += layer.addition_bytes();
            held.ranges += layer.deleted_count();
        }
        held
    }
}

/// A moment of a transaction to which it can be rolled back.
#[derive(Debug)]
pub struct Savepoint {
    number: u64,
}

/// Numbers name savepoints across transactions, so that one cannot be taken for that of another.
static NEXT_SAVEPOINT: AtomicU64 = AtomicU64::new(0);

/// How much a transaction had done when a savepoint was made.
#[derive(Debug)]
struct Mark {
    number: u64,
    /// The layer that begins with the savepoint.
    layer: usize,
    appends: usize,
    maps: usize,
    new_maps: usize,
    dropped: usize,
    renamed: usize,
}

impl Transaction {
    pub(crate) fn begin(store: &Store, options: TransactionOptions) -> Result<Transaction> {
        let core = store.core();
        core.writable()?;
        let token = if options.exclusive {
            core.begin_exclusive()?
        } else {
            NOT_EXCLUSIVE
        };
        let catalog_changes = core.catalog_changes();
        let pinned = match Pinned::new(store, &core.control().visible.0, Purpose::Transaction) {
            Ok(pinned) => pinned,
            Err(error) => {
                if token != NOT_EXCLUSIVE {
                    core.end_exclusive();
                }
                return Err(error);
            }
        };
        core.follow_from(&pinned);
        Ok(Transaction {
            store: store.clone(),
            pinned,
            catalog_changes,
            layers: vec![Layer::new()],
            below: Held::default(),
            savepoints: Vec::new(),
            appends: Vec::new(),
            append_bytes: 0,
            extents: Vec::new(),
            maps: Vec::new(),
            opened: Vec::new(),
            new_maps: Vec::new(),
            dropped: Vec::new(),
            renamed: Vec::new(),
            // Nobody else writes while an exclusive one runs.
            reads: (options.serializable && !options.exclusive).then(Default::default),
            needed: Vec::new(),
            needed_keys: Vec::new(),
            token,
            durability: options.durability.unwrap_or(core.settings.durability),
            memory_bytes: options.memory_bytes.unwrap_or(WRITE_SET_BYTES_MAX),
            finished: false,
        })
    }

    /// The closure form, see [`Store::transact`].
    pub(crate) fn run<T>(
        store: &Store,
        options: TransactionOptions,
        body: &mut dyn FnMut(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let in_turn = attempt > ATTEMPTS_MAX;
            let options = if in_turn { options.exclusive() } else { options };
            let mut tx = Transaction::begin(store, options)?;
            let outcome = body(&mut tx).and_then(|value| tx.commit().map(|_| value));
            match outcome {
                Err(error) => match error.reason() {
                    Reason::Conflict { map, key } if attempt >= 2 * ATTEMPTS_MAX => {
                        let (map, key) = (map.clone(), key.clone());
                        return Err(Reason::RetriesExhausted {
                            attempts: attempt,
                            map,
                            key,
                        }
                        .into());
                    }
                    Reason::Conflict { .. } | Reason::TooOld { .. } if attempt < 2 * ATTEMPTS_MAX => continue,
                    _ => return Err(error),
                },
                done => return done,
            }
        }
    }

    fn core(&self) -> &Core {
        self.pinned.core()
    }

    /// The commit whose state the transaction reads.
    pub fn snapshot_commit(&self) -> u64 {
        self.pinned.view.commit
    }

    /// The value of a key: this transaction's own, or that of its snapshot.
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    pub fn get(&self, map: &Map, key: &[u8]) -> Result<Option<Value<'_>>> {
        self.pinned.alive()?;
        let full_key = FullKey::new(map.id_in(self.pinned.core())?, key)?;
        self.note_read(|reads| reads.key(&full_key))?;
        self.read(&full_key)
    }

    fn read(&self, full_key: &[u8]) -> Result<Option<Value<'_>>> {
        if let Some(entry) = self.own(full_key)? {
            return with_source!(self.core(), source => entry.resolve(source));
        }
        with_source!(self.core(), source => self.pinned.view.get(source, full_key))
    }

    /// What the transaction itself did to a key, if anything.
    fn own(&self, full_key: &[u8]) -> Result<Option<Entry<'_>>> {
        for layer in self.layers.iter().rev() {
            if let Some(written) = layer.entries().and_then(|entries| entries.get(full_key)) {
                return Ok(Some(written.entry()));
            }
            if let Some(root) = layer.run() {
                let hash = key_hash(self.pinned.view.hash_seed, full_key);
                let found = with_source!(self.core(), source => in_tree(source, root, full_key, hash)?);
                if found.is_some() {
                    return Ok(found);
                }
            }
            if layer.deletes(full_key) {
                return Ok(Some(Entry::Deleted));
            }
        }
        Ok(None)
    }

    fn note_read(&self, note: impl FnOnce(&mut Reads) -> Result<()>) -> Result<()> {
        match &self.reads {
            Some(reads) => note(&mut reads.lock().unwrap_or_else(|e| e.into_inner())),
            None => Ok(()),
        }
    }

    /// The values of several keys, in their order.
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, map: &Map, keys: &[K]) -> Result<Vec<Option<Value<'_>>>> {
        keys.iter().map(|key| self.get(map, key.as_ref())).collect()
    }

    /// A cursor over the pairs whose keys lie in a range, own writes included, standing before the first. Appended
    /// pairs are not among them: they have no key before the commit. A serialisable transaction counts the whole
    /// range as read.
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    pub fn range<'k>(&self, map: &Map, range: impl RangeBounds<&'k [u8]>) -> Result<Cursor<'_>> {
        self.cursor(FullRange::of(map.id_in(self.pinned.core())?, range)?)
    }

    /// A cursor over the pairs whose keys begin with a prefix; see [`Transaction::range`].
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    pub fn prefix(&self, map: &Map, prefix: &[u8]) -> Result<Cursor<'_>> {
        self.cursor(FullRange::prefix(map.id_in(self.pinned.core())?, prefix)?)
    }

    fn cursor(&self, range: FullRange) -> Result<Cursor<'_>> {
        self.pinned.alive()?;
        self.note_read(|reads| reads.range(&range))?;
        Ok(Cursor::new(&self.pinned, &self.layers, range))
    }

    /// How many pairs lie in a range, own writes included. With own writes in the map this walks the range.
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    pub fn count<'k>(&self, map: &Map, range: impl RangeBounds<&'k [u8]>) -> Result<u64> {
        let range = FullRange::of(map.id_in(self.pinned.core())?, range)?;
        if self.layers.iter().all(Layer::is_empty) {
            self.pinned.alive()?;
            self.note_read(|reads| reads.range(&range))?;
            return self.pinned.count(&range);
        }
        let mut cursor = self.cursor(range)?;
        let mut count = 0;
        while cursor.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`Reason::KeyTooLong`], [`Reason::ValueTooLong`], [`Reason::MapDropped`], [`Reason::ForeignMap`],
    /// [`Reason::Full`].
    pub fn put(&mut self, map: &Map, key: &[u8], value: &[u8]) -> Result<()> {
        check_value(value)?;
        let full_key = self.for_writing(map, key)?;
        let written = if value.len() > LOGGED_VALUE_BYTES_MAX {
            let extent = self.core().write_value(value.len() as u64, &mut &value[..])?;
            self.extents.push(extent);
            Written::PutExtent(extent)
        } else {
            Written::Put(value.into())
        };
        self.write(&full_key, written)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(&mut self, map: &Map, key: &[u8]) -> Result<()> {
        let full_key = self.for_writing(map, key)?;
        self.write(&full_key, Written::Delete)
    }

    /// Removes all keys of a range: also those that others add before this commits, which is a conflict.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete_range<'k>(&mut self, map: &Map, range: impl RangeBounds<&'k [u8]>) -> Result<()> {
        let id = self.needs(map)?;
        let range = FullRange::of(id, range)?;
        if range.is_empty() {
            return Ok(());
        }
        self.delete_full_range(range)
    }

    fn delete_full_range(&mut self, range: FullRange) -> Result<()> {
        if self.held().ranges >= TRANSACTION_RANGES_MAX {
            return Err(Reason::TransactionTooLarge {
                what: "would delete more ranges",
                max: TRANSACTION_RANGES_MAX as u64,
                cure: "commit and go on in another, or delete larger ranges, or single keys",
            }
            .into());
        }
        self.top().delete_range(range);
        Ok(())
    }

    /// What all layers hold.
    fn held(&self) -> Held {
        let newest = Held::of(self.layers.last());
        Held {
            bytes: self.below.bytes + newest.bytes,
            addition_bytes: self.below.addition_bytes + newest.addition_bytes,
            ranges: self.below.ranges + newest.ranges,
        }
    }

    /// After layers were added or taken away.
    fn count_below(&mut self) {
        let newest = self.layers.len().saturating_sub(1);
        self.below = Held::of(&self.layers[..newest]);
    }

    /// Refuses more appends and additions than fit into a record.
    fn check_resolved(&self, more: usize) -> Result<()> {
        if self.append_bytes + (self.held().addition_bytes + more) as u64 <= RESOLVED_BYTES_MAX {
            return Ok(());
        }
        Err(Reason::TransactionTooLarge {
            what: "would append and add more bytes",
            max: RESOLVED_BYTES_MAX,
            cure: "commit and go on in another",
        }
        .into())
    }

    /// Removes all keys of a map.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn clear(&mut self, map: &Map) -> Result<()> {
        self.delete_range(map, ..)
    }

    /// Stores a value under a prefix and a number that is assigned at commit; see [`Map::append`]. It never conflicts,
    /// and the transaction itself cannot read it.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn append(&mut self, map: &Map, prefix: &[u8], value: &[u8]) -> Result<()> {
        check_value(value)?;
        let map = self.needs(map)?;
        if prefix.len() + 8 > KEY_BYTES_MAX {
            return Err(Reason::KeyTooLong {
                length: prefix.len(),
                max: KEY_BYTES_MAX - 8,
            }
            .into());
        }
        let mut extents = Vec::new();
        let logged = if value.len() > LOGGED_VALUE_BYTES_MAX {
            EXTENT_BYTES
        } else {
            value.len()
        };
        self.check_resolved(appended_bytes(prefix.len(), logged))?;
        let (kind, value) = stored(self.core(), value, &mut extents)?;
        self.extents.extend(extents);
        self.appends.push(Append {
            map,
            prefix: prefix.into(),
            kind,
            value: value.into_owned(),
            numbered: None,
        });
        self.append_bytes += Append::bytes(&self.appends[self.appends.len() - 1..]);
        Ok(())
    }

    /// Adds to a counter; see [`Map::add`]. It does not conflict with the additions of others, only with other
    /// writes of this transaction's own if those conflict.
    ///
    /// # Errors
    /// As [`Transaction::put`], [`Reason::NotACounter`], [`Reason::CounterOverflow`].
    pub fn add(&mut self, map: &Map, key: &[u8], delta: i64) -> Result<()> {
        let full_key = self.for_writing(map, key)?;
        self.check_resolved(full_key.len() + APPEND_BYTES)?;
        let shown = self.read(&full_key)?;
        let sum = self.core().sum(&full_key, shown.as_deref(), delta)?.to_be_bytes();
        let written = match self.own_addition(&full_key)? {
            Some(Some(before)) => Written::Add {
                // What is shown may be in range when the sum of the additions alone is not.
                delta: self.core().sum(&full_key, Some(&before.to_be_bytes()), delta)?,
                shown: sum,
            },
            Some(None) => Written::Put(sum.as_slice().into()),
            None => Written::Add { delta, shown: sum },
        };
        self.write(&full_key, written)
    }

    /// `None`: the transaction did not touch the key; `Some(None)`: it wrote it; else what it added so far.
    fn own_addition(&self, full_key: &[u8]) -> Result<Option<Option<i64>>> {
        for layer in self.layers.iter().rev() {
            if let Some(Written::Add { delta, .. }) = layer.entries().and_then(|entries| entries.get(full_key)) {
                return Ok(Some(Some(*delta)));
            }
            if self.replaces(layer, full_key)? || layer.deletes(full_key) {
                return Ok(Some(None));
            }
        }
        Ok(None)
    }

    /// Whether a layer puts or deletes a key, whatever was there before.
    fn replaces(&self, layer: &Layer, full_key: &[u8]) -> Result<bool> {
        if let Some(root) = layer.run() {
            let hash = key_hash(self.pinned.view.hash_seed, full_key);
            return with_source!(self.core(), source => Ok(in_tree(source, root, full_key, hash)?.is_some()));
        }
        let written = layer.entries().and_then(|entries| entries.get(full_key));
        Ok(written.is_some_and(|written| !matches!(written, Written::Add { .. })))
    }

    /// Opens a map, making it in this transaction when it is missing.
    ///
    /// # Errors
    /// [`Reason::InvalidMapName`], and those of [`Transaction::put`]. Writing to a map that was opened so and that
    /// another transaction has dropped meanwhile is a [`Reason::Conflict`].
    pub fn map(&mut self, name: &str) -> Result<Map> {
        check_name(name)?;
        self.named(name)
    }

    /// The map of a name, which may be a reserved one, made when it is missing.
    pub(crate) fn named(&mut self, name: &str) -> Result<Map> {
        if let Some(map) = self.existing_named(name)? {
            self.opened.push(map.info.id);
            return Ok(map);
        }
        let id = next_map_id(self.core());
        let key = FullKey::new(CATALOG, name.as_bytes())?;
        self.write(&key, Written::Put(id.to_le_bytes().as_slice().into()))?;
        self.new_maps.push(id);
        let info = self.core().catalog.pending(id, name);
        Ok(Map::of(&self.store, info, name))
    }

    /// The map of a name, if there is one, as this transaction sees it.
    pub(crate) fn existing_map(&self, name: &str) -> Result<Option<Map>> {
        check_name(name)?;
        self.existing_named(name)
    }

    fn existing_named(&self, name: &str) -> Result<Option<Map>> {
        self.pinned.alive()?;
        let key = FullKey::new(CATALOG, name.as_bytes())?;
        self.note_read(|reads| reads.key(&key))?;
        let id = self.read(&key)?.map(|id| map_id(&id)).transpose()?;
        Ok(id.map(|id| Map::new(&self.store, id, name, self.catalog_changes)))
    }

    /// Gives a map another name.
    ///
    /// # Errors
    /// [`Reason::UnknownMap`], [`Reason::MapExists`], [`Reason::InvalidMapName`].
    pub fn rename_map(&mut self, from: &str, to: &str) -> Result<()> {
        let map = self
            .existing_map(from)?
            .ok_or_else(|| Reason::UnknownMap { name: from.into() })?;
        self.opened.push(map.info.id);
        if self.existing_map(to)?.is_some() {
            return Err(Reason::MapExists { name: to.into() }.into());
        }
        let id = self.needs(&map)?;
        self.write(&FullKey::new(CATALOG, from.as_bytes())?, Written::Delete)?;
        self.write(
            &FullKey::new(CATALOG, to.as_bytes())?,
            Written::Put(id.to_le_bytes().as_slice().into()),
        )?;
        self.renamed.push((id, to.to_string()));
        Ok(())
    }

    /// Removes a map with everything in it.
    ///
    /// # Errors
    /// [`Reason::UnknownMap`], [`Reason::InvalidMapName`].
    pub fn drop_map(&mut self, name: &str) -> Result<()> {
        let map = self
            .existing_map(name)?
            .ok_or_else(|| Reason::UnknownMap { name: name.into() })?;
        self.opened.push(map.info.id);
        let id = self.needs(&map)?;
        self.write(&FullKey::new(CATALOG, name.as_bytes())?, Written::Delete)?;
        self.delete_full_range(FullRange::map(id))?;
        self.delete_full_range(counters_of(id)?)?;
        self.dropped.push(id);
        Ok(())
    }

    /// Marks this moment, to which [`Transaction::rollback_to`] can return.
    ///
    /// # Errors
    /// [`Reason::InvalidArgument`] when there are too many.
    pub fn savepoint(&mut self) -> Result<Savepoint> {
        if self.savepoints.len() == SAVEPOINTS_MAX {
            let cause = format!("a transaction can have {SAVEPOINTS_MAX} savepoints; roll back or commit first");
            return Err(Reason::InvalidArgument(cause).into());
        }
        let number = NEXT_SAVEPOINT.fetch_add(1, Ordering::Relaxed);
        self.layers.push(Layer::new());
        self.count_below();
        self.savepoints.push(Mark {
            number,
            layer: self.layers.len() - 1,
            appends: self.appends.len(),
            maps: self.maps.len(),
            new_maps: self.new_maps.len(),
            dropped: self.dropped.len(),
            renamed: self.renamed.len(),
        });
        Ok(Savepoint { number })
    }

    /// Takes back every write since a savepoint, which stays, and may be returned to again. Savepoints made after it
    /// are gone.
    ///
    /// # Errors
    /// [`Reason::InvalidArgument`] when the savepoint is gone or belongs to another transaction.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        let Some(place) = self.savepoints.iter().position(|mark| mark.number == savepoint.number) else {
            let cause = "the savepoint is gone, because the transaction was rolled back to an earlier one, or it \
                         belongs to another transaction; roll back to one that is there";
            return Err(Reason::InvalidArgument(cause.into()).into());
        };
        self.savepoints.truncate(place + 1);
        let mark = &self.savepoints[place];
        self.append_bytes -= Append::bytes(&self.appends[mark.appends..]);
        self.appends.truncate(mark.appends);
        self.maps.truncate(mark.maps);
        self.dropped.truncate(mark.dropped);
        self.renamed.truncate(mark.renamed);
        let core = &self.pinned.handle.core;
        self.new_maps
            .drain(mark.new_maps..)
            .for_each(|id| core.catalog.discarded(id));
        for layer in self.layers.drain(mark.layer..) {
            if let Some(root) = layer.run() {
                core.drop_run(root, false)?;
            }
        }
        self.layers.push(Layer::new());
        self.count_below();
        Ok(())
    }

    fn needs(&mut self, map: &Map) -> Result<u32> {
        self.pinned.alive()?;
        let is_own = self.is_new(map);
        let id = if is_own {
            map.id_in(self.pinned.core())?
        } else {
            let id = map.writable_id_in(self.pinned.core());
            id.map_err(|error| self.conflict_if_opened(map, error))?
        };
        if self.dropped.contains(&id) {
            return Err(Reason::MapDropped {
                name: map.name().into(),
            }
            .into());
        }
        if !self.maps.iter().any(|known| Arc::ptr_eq(&known.info, &map.info)) {
            self.maps.push(map.clone());
        }
        Ok(id)
    }

    /// Who asked for the map by its name meant whichever has that name: with a newer snapshot it is another one, or
    /// none, so the transaction can be run again. Not so with a handle that was there before.
    fn conflict_if_opened(&self, map: &Map, error: Error) -> Error {
        let is_dropped = matches!(error.reason(), Reason::MapDropped { .. });
        match FullKey::new(CATALOG, map.name().as_bytes()) {
            Ok(key) if is_dropped && self.opened.contains(&map.info.id) => self.core().conflict(&key),
            _ => error,
        }
    }

    fn for_writing(&mut self, map: &Map, key: &[u8]) -> Result<FullKey> {
        let id = self.needs(map)?;
        FullKey::new(id, key)
    }

    fn top(&mut self) -> &mut Layer {
        if self.layers.last().is_none_or(|layer| layer.run().is_some()) {
            self.layers.push(Layer::new());
            self.count_below();
        }
        self.layers.last_mut().expect("there is a layer now")
    }

    fn write(&mut self, full_key: &[u8], written: Written) -> Result<()> {
        self.top().write(full_key, written);
        if self.held().bytes > self.memory_bytes {
            self.spill()?;
        }
        Ok(())
    }

    /// Moves the layer that takes most memory to the data file.
    fn spill(&mut self) -> Result<()> {
        let layers = self.layers.iter().enumerate();
        let largest = layers.max_by_key(|(_, layer)| layer.bytes());
        let (place, _) = largest.expect("what takes memory is in some layer");
        let root = self.pinned.core().write_run(&self.layers[place..=place])?;
        let additions = self.layers[place].become_run(root);
        if !additions.is_empty() {
            // Right above the run, and of the same savepoint.
            let mut kept = Layer::new();
            additions
                .into_iter()
                .for_each(|(key, written)| kept.write(&key, written));
            self.layers.insert(place + 1, kept);
            let later = self.savepoints.iter_mut().filter(|mark| mark.layer > place);
            later.for_each(|mark| mark.layer += 1);
        }
        self.count_below();
        Ok(())
    }

    /// Commits: all writes become visible at once, and last as was asked for when this returns.
    ///
    /// # Errors
    /// [`Reason::Conflict`] (run the transaction again), [`Reason::TooOld`], [`Reason::Full`] (nothing was written),
    /// [`Reason::Unknown`] (the store must be reopened), [`Reason::NotSynced`] (it is committed), [`Reason::MapDropped`], [`Reason::Poisoned`].
    pub fn commit(mut self) -> Result<Commit> {
        let commit = self.append_all()?;
        if self.durability == Durability::Synced {
            self.core().wait_durable(commit.number)?;
        }
        Ok(commit)
    }

    /// Commits; the writes are visible when this returns, and the future resolves when they last.
    ///
    /// # Errors
    /// As [`Transaction::commit`], but for what comes up while syncing: that is the future's.
    pub fn commit_async(mut self) -> Result<CommitFuture> {
        let commit = self.append_all()?;
        Ok(CommitFuture::new(&self.pinned.handle, commit, self.durability))
    }

    /// Ends the transaction without writing anything; dropping it does the same.
    pub fn rollback(self) {}

    fn append_all(&mut self) -> Result<Commit> {
        self.pinned.alive()?;
        self.fit_into_a_record()?;
        let is_empty = self.layers.iter().all(Layer::is_empty) && self.appends.is_empty();
        let mut checks = self.checks();
        if is_empty && checks.keys.is_empty() && checks.ranges.is_empty() {
            return Ok(Commit {
                number: self.snapshot_commit(),
                assigned: Vec::new(),
            });
        }
        let run = self.settle_layers(&mut checks)?;
        let values = if run.is_some() {
            Durability::Synced
        } else {
            self.core().value_durability(self.durability)
        };
        if run.is_some() || !self.extents.is_empty() {
            self.core().ready_values(pages_of(&self.extents), values)?;
        }
        // Before the commit: a fold may take the run apart right after it.
        let unused = self.unused_extents()?;
        let core = self.pinned.handle.core.clone();
        let commit: Result<Commit> = with_draft(|draft| {
            draft.values_may_tear(values == Durability::Written);
            self.draft(draft, run)?;
            if draft.is_empty() {
                // Nothing to write, but what was read must still be true.
                let _guard = core.hold_commits()?;
                core.check_conflicts(&checks, draft)?;
                return Ok(Commit {
                    number: self.snapshot_commit(),
                    assigned: Vec::new(),
                });
            }
            draft.created.extend(&self.new_maps);
            draft.dropped.extend(&self.dropped);
            draft.renamed.extend(self.renamed.iter().cloned());
            let number = core.append(draft, Some(&checks), self.token);
            let gone = |map: &&Map| map.info.alive().is_err() && !self.is_new(map);
            let number = number.map_err(|error| match self.maps.iter().find(gone) {
                Some(map) => self.conflict_if_opened(map, error),
                None => error,
            })?;
            let tickets = self.kept_appends().filter_map(|append| append.numbered.as_ref());
            tickets
                .zip(draft.stamps())
                .for_each(|(numbered, stamp)| numbered.ticket.resolve(stamp));
            Ok(Commit {
                number,
                assigned: draft.assigned().to_vec(),
            })
        });
        self.finished = match &commit {
            Ok(_) => true,
            // The record may have reached the log: its pages must stay.
            Err(error) => error.is_of_a_made_commit(),
        };
        if commit.is_ok() {
            let free = |extent: &Extent| core.space.give_back(extent.page, extent.pages());
            unused.iter().for_each(free);
        }
        commit
    }

    /// Lets what is in memory go the way of a larger transaction when no record could hold it beside what is resolved
    /// there.
    fn fit_into_a_record(&mut self) -> Result<()> {
        let held = self.held();
        let bytes = self.append_bytes + (held.bytes + held.addition_bytes) as u64;
        if bytes > RESOLVED_BYTES_MAX {
            self.spill()
        } else {
            Ok(())
        }
    }

    /// What must not have changed since the transaction began.
    fn checks(&self) -> Checks {
        let mut checks = Checks {
            since: self.snapshot_commit(),
            ..Checks::default()
        };
        // Single keys that it writes stand in the draft, or in a run.
        for layer in &self.layers {
            checks.ranges.extend(layer.deleted_ranges());
            checks.runs.extend(layer.run());
        }
        checks.ranges.extend(self.needed.iter().cloned());
        checks.keys.extend(self.needed_keys.iter().cloned());
        if let Some(reads) = self.reads.as_ref().filter(|_| !is_planted(PlantedBug::ReadsNotChecked)) {
            let reads = reads.lock().unwrap_or_else(|e| e.into_inner());
            checks.keys.extend(reads.keys.iter().cloned());
            checks.ranges.extend(reads.ranges.iter().cloned());
            checks.keys.sort_unstable();
            checks.keys.dedup();
        }
        if self.token != NOT_EXCLUSIVE {
            // Nobody else could write since it began.
            checks.keys.clear();
            checks.ranges.clear();
            checks.runs.clear();
        }
        checks
    }

    /// When a layer is a run, all layers become one run. Returns it.
    fn settle_layers(&mut self, checks: &mut Checks) -> Result<Option<Root>> {
        if self.layers.iter().all(|layer| layer.run().is_none()) {
            return Ok(None);
        }
        let core = self.pinned.handle.core.clone();
        let root = core.write_run(&self.layers)?;
        let mut merged = Layer::new();
        let mut additions: Vec<(Vec<u8>, Written)> = Vec::new();
        for mut layer in std::mem::take(&mut self.layers) {
            for range in layer.deleted_ranges() {
                additions.retain(|(key, _)| !range.contains(key));
                merged.delete_range(range);
            }
            let mut kept = Vec::new();
            for addition in additions {
                if !self.replaces(&layer, &addition.0)? {
                    kept.push(addition);
                }
            }
            additions = kept;
            match layer.run() {
                Some(old) => core.drop_run(old, false)?,
                None => additions.extend(layer.become_run(root)),
            }
        }
        merged.become_run(root);
        self.layers = vec![merged, Layer::new()];
        self.count_below();
        for (key, written) in additions {
            // Of several additions to a key the last one holds the sum of all.
            self.top().write(&key, written);
        }
        self.savepoints.clear();
        if !checks.runs.is_empty() {
            checks.runs = vec![root];
        }
        Ok(Some(root))
    }

    /// The record's operations: range deletes, the run, single operations, appends.
    fn draft(&self, draft: &mut Draft, run: Option<Root>) -> Result<()> {
        let seed = self.pinned.view.hash_seed;
        self.maps
            .iter()
            .filter(|map| !self.is_new(map))
            .for_each(|map| draft.needs(&map.info));
        for range in crate::view::union(self.layers.iter().flat_map(|layer| layer.deleted_ranges()).collect()) {
            draft.push_note(OperationKind::DeleteRange, &range.low, &range.high);
        }
        if let Some(root) = run {
            draft.push_note(OperationKind::Run, &COUNTERS.to_be_bytes(), &encode_root(root));
        }
        match &self.layers[..] {
            // There is nothing to merge.
            [layer] => layer
                .entries()
                .into_iter()
                .flatten()
                .for_each(|(key, written)| self.draft_one(draft, key, written)),
            _ => self
                .merged()
                .into_iter()
                .for_each(|(key, written)| self.draft_one(draft, key, written)),
        }
        self.kept_appends().try_for_each(|append| match &append.numbered {
            None => draft.push_append(append.map, &append.prefix, append.kind, &append.value),
            Some(numbered) => {
                let body = numbered.body.as_ref().map(Body::as_put);
                let head = (append.map, append.value.as_slice());
                draft.push_numbered(&numbered.place, head, body, numbered.bytes, seed)
            }
        })
    }

    fn draft_one(&self, draft: &mut Draft, key: &[u8], written: &Written) {
        let seed = self.pinned.view.hash_seed;
        let operation = match written {
            Written::Put(value) => draft.push(OperationKind::Put, key, value, seed),
            Written::PutExtent(extent) => draft.push(OperationKind::PutExtent, key, &extent.encode(), seed),
            Written::Delete => draft.push(OperationKind::Delete, key, &[], seed),
            Written::Add { delta, .. } => {
                draft.push_add(key, *delta, AddTo::Newest, seed);
                return;
            }
        };
        // While it runs exclusively, nobody else writes.
        draft.planned[operation].is_checked = self.token == NOT_EXCLUSIVE;
    }

    /// What the layers that are not a run come to: of several writes of a key only the last.
    fn merged(&self) -> BTreeMap<&[u8], &Written> {
        let mut merged: BTreeMap<&[u8], &Written> = BTreeMap::new();
        for layer in &self.layers {
            for range in layer.deleted_ranges() {
                merged.retain(|key, _| !range.contains(key));
            }
            merged.extend(
                layer
                    .entries()
                    .into_iter()
                    .flatten()
                    .map(|(key, written)| (key.as_slice(), written)),
            );
        }
        merged
    }

    /// The appends to maps that the transaction does not drop.
    fn kept_appends(&self) -> impl Iterator<Item = &Append> {
        self.appends.iter().filter(|append| !self.dropped.contains(&append.map))
    }

    fn is_new(&self, map: &Map) -> bool {
        self.new_maps.contains(&map.info.id)
    }

    /// Values that the transaction wrote and then replaced: the record will not refer to them.
    fn unused_extents(&self) -> Result<Vec<Extent>> {
        let core = self.core();
        let mut used: Vec<u32> = Vec::new();
        if self.extents.is_empty() {
            return Ok(Vec::new());
        }
        used.extend(self.merged().values().filter_map(|written| match written {
            Written::PutExtent(extent) => Some(extent.page),
            _ => None,
        }));
        for root in self.layers.iter().filter_map(Layer::run) {
            with_source!(core, source => crate::base::walk(source, root, &mut |visit| {
                if let crate::base::Visit::Extent(extent) = visit {
                    used.push(extent.page);
                }
                Ok(())
            }))?;
        }
        let appended = self.kept_appends().flat_map(|append| {
            let body = append.numbered.as_ref().and_then(|numbered| numbered.body.as_ref());
            let body = body.map(|body| (body.kind, &body.value));
            [Some((append.kind, &append.value)), body].into_iter().flatten()
        });
        for (_, value) in appended.filter(|(kind, _)| *kind == OperationKind::PutExtent) {
            let extent = Extent::decode(value.as_slice().try_into().expect("an encoded extent"));
            used.push(extent.page);
        }
        used.sort_unstable();
        let is_unused = |extent: &&Extent| used.binary_search(&extent.page).is_err();
        Ok(self.extents.iter().filter(is_unused).copied().collect())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let core = self.pinned.handle.core.clone();
        if core.region.is_forked() {
            // All of it is the parent's, who goes on with it.
            return;
        }
        if !self.finished {
            for root in self.layers.iter().filter_map(Layer::run) {
                // The pages are only lost until the store is opened again.
                let _ = core.drop_run(root, false);
            }
            self.extents
                .iter()
                .for_each(|extent| core.space.give_back(extent.page, extent.pages()));
            // Handles of maps that were never made must not write to them.
            self.new_maps.iter().for_each(|&id| core.catalog.discarded(id));
        }
        if self.token != NOT_EXCLUSIVE {
            core.end_exclusive();
        }
    }
}
