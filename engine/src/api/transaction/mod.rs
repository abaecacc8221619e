//! Write transactions: reads from a snapshot, writes into layers of its own, one commit at the end.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::api::batch::{pages_of, stored};
use crate::api::future::CommitFuture;
use crate::api::map::{Map, check_value, counters_of, next_map_id};
use crate::api::sequence::{Body, Ticket};
use crate::api::snapshot::{Cursor, MappedScan, Pinned};
use crate::api::store::{Store, with_draft};
use crate::btree::{EXTENT_BYTES, Extent, Root};
use crate::checksum::key_hash;
use crate::commit::Commit;
use crate::commit::conflict::Checks;
use crate::commit::draft::{AddTo, Draft};
use crate::commit::exclusive::NOT_EXCLUSIVE;
use crate::commit::sequence_state::Place;
use crate::core::Core;
use crate::core::bell::Bell;
use crate::core::beside::Closure;
use crate::core::catalog::map_id;
use crate::core::catalog::{MapInfo, check_name};
use crate::core::pins::Purpose;
use crate::datafile::register::Kept;
use crate::error::{Error, Reason, Result};
use crate::key::bounds::KeyBounds;
use crate::key::full_key::{CATALOG, COUNTERS, FullKey, FullRange, GUARDED, KeyRoom, check_prefix};
use crate::limits::{
    ATTEMPTS_MAX, LOGGED_VALUE_BYTES_MAX, READ_SET_BYTES_MAX, RESOLVED_BYTES_MAX, TRANSACTION_RANGES_MAX,
    WRITE_SET_BYTES_MAX,
};
use crate::log::OperationKind;
use crate::log::encode_root;
use crate::planted::{PlantedBug, is_planted};
use crate::read::deleted::Ranges;
use crate::read::value::{Entry, Value};
use crate::read::view::in_tree;
use crate::read::write_set::{Addition, Entries, Layer, OwnWrites, Written};
use crate::settings::Durability;

mod pops;
mod read_write;
mod restoring;
mod rollback;
mod sequences;
mod sorted;
mod work;

use pops::Ahead;
pub use read_write::ExtractIf;
pub use rollback::Rollback;
use work::Reused;

/// How a transaction runs and commits.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransactionOptions {
    serializable: bool,
    exclusive: bool,
    durability: Option<Durability>,
    memory_bytes: Option<usize>,
    commit_time: Option<u64>,
    shared_time: Option<u64>,
    guarded: bool,
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

    /// Shuts all other writers out until the transaction ends: it never meets a conflict. Readers go on. A commit that
    /// the same thread makes in any other way before the transaction ends is refused with
    /// [`Reason::WouldWaitForItself`]. The transaction belongs to the thread that made the last call on it. Other
    /// writers wait for it up to [`crate::Options::lock_timeout`].
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

    /// The time of the commit, instead of the clock's: commits and messages carry it. This is for programs that apply
    /// one list of changes to several stores and want equal stores. The time of a store never runs back, so a commit
    /// gets at least the time of the commit before it. Resolution: 1 microsecond; times before 1970 become 1970.
    pub fn commit_time(mut self, time: SystemTime) -> TransactionOptions {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.commit_time = Some(u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
        self
    }

    /// The time that the transaction compares deadlines with, in place of the shared clock's: see `Store::shared_clock`.
    #[doc(hidden)]
    pub fn shared_time(mut self, time: Duration) -> TransactionOptions {
        self.shared_time = Some(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        self
    }

    /// Lets the transaction write guarded maps: its caller keeps up what belongs to them.
    #[doc(hidden)]
    pub fn guarded(mut self) -> TransactionOptions {
        self.guarded = true;
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
    work: Reused,
    reads: Option<Mutex<Reads>>,
    token: u32,
    /// The checkpoint that it puts in the place of everything.
    restores: Option<Kept>,
    durability: Durability,
    memory_bytes: usize,
    commit_time: Option<u64>,
    shared_time: Option<u64>,
    guarded: bool,
    finished: bool,
    /// Whether it found out before its commit that it cannot be made.
    met_conflict: bool,
    /// How the user commits it, for errors.
    call: &'static str,
}

/// The work of a transaction.
#[derive(Debug, Default)]
struct Work {
    /// Not empty while the transaction runs.
    layers: Vec<Layer>,
    /// Stretches in which the transaction sees nothing, as walks found out since it wrote something.
    nothing: Mutex<Ranges>,
    /// What pops read ahead.
    ahead: Option<Box<Ahead>>,
    /// What all layers but the newest hold; that one changes with every write.
    below: Held,
    savepoints: Vec<Mark>,
    appends: Vec<Append>,
    /// Whether it gave appends their numbers itself.
    numbers: bool,
    /// The values of all of them, one behind the other.
    append_values: Vec<u8>,
    append_bytes: u64,
    /// Values written to the data file, to give back unless the transaction commits.
    extents: Vec<Extent>,
    /// What must still be there when it commits.
    maps: Vec<Arc<MapInfo>>,
    /// The maps that it opened by name, as its snapshot shows them.
    opened: Vec<Map>,
    /// Ids of the maps that it makes: until it commits they are its own.
    new_maps: Vec<u32>,
    dropped: Vec<u32>,
    renamed: Vec<(u32, String)>,
    /// What must not change before it commits, whatever else it read.
    needed: Vec<FullRange>,
    needed_keys: Vec<Vec<u8>>,
    /// What the commit rings beside what it appends to. Rolling back to a savepoint keeps it: a ring too many is
    /// harmless.
    rung: Vec<Arc<Bell>>,
    /// Tells it from every other transaction of this process, once something has asked.
    number: Option<u64>,
}

/// What an append takes in a record beyond prefix and value, roughly.
const APPEND_BYTES: usize = 24;

#[derive(Debug)]
struct Append {
    map: u32,
    kind: OperationKind,
    /// Where its value is among those of all.
    value: Range<usize>,
    to: AppendTo,
}

#[derive(Debug)]
enum AppendTo {
    Prefix(Box<[u8]>),
    Sequence(Numbered),
}

/// What an append to a sequence knows beside its head.
#[derive(Debug)]
struct Numbered {
    place: Arc<Place>,
    body: Option<Body>,
    bytes: u64,
    ticket: Ticket,
}

impl Append {
    /// Bytes that it takes in the record at most: it may be the only one of its prefix.
    fn bytes(&self) -> u64 {
        let (prefix, body) = match &self.to {
            AppendTo::Prefix(prefix) => (prefix.len(), None),
            AppendTo::Sequence(numbered) => (numbered.place.prefix.len(), numbered.body.as_ref()),
        };
        let body = body.map_or(0, |body| appended_bytes(prefix, body.value.len()));
        (appended_bytes(prefix, self.value.len()) + body) as u64
    }

    fn numbered(&self) -> Option<&Numbered> {
        match &self.to {
            AppendTo::Prefix(_) => None,
            AppendTo::Sequence(numbered) => Some(numbered),
        }
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

/// Numbers name savepoints across transactions, so that one cannot be taken for that of another. They name transactions, too.
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
            core.refuse_beside("store.begin", String::new)?;
            core.begin_exclusive()?
        } else {
            NOT_EXCLUSIVE
        };
        let pinned = match Pinned::new(store, &core.control().visible.0, Purpose::Transaction) {
            Ok(pinned) => pinned,
            Err(error) => {
                if token != NOT_EXCLUSIVE {
                    core.end_exclusive();
                }
                return Err(error);
            }
        };
        // For conflict checks. While the pin is held the generations after its view cannot have gone.
        core.region.follow(&pinned.pin, Some(pinned.newest_generation));
        Ok(Transaction {
            store: store.clone(),
            pinned,
            work: Reused::begin(),
            // No other transaction writes while an exclusive one runs.
            reads: (options.serializable && !options.exclusive).then(Default::default),
            token,
            restores: None,
            durability: options.durability.unwrap_or(core.settings.durability),
            memory_bytes: options.memory_bytes.unwrap_or(WRITE_SET_BYTES_MAX),
            commit_time: options.commit_time,
            shared_time: options.shared_time,
            guarded: options.guarded,
            finished: false,
            met_conflict: false,
            call: "tx.commit",
        })
    }

    /// The closure form, see [`Store::transact`].
    pub(crate) fn run<T, E: From<Error>>(
        store: &Store,
        options: TransactionOptions,
        body: &mut dyn FnMut(&mut Transaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let in_turn = attempt > ATTEMPTS_MAX;
            let options = if in_turn { options.exclusive() } else { options };
            let mut tx = Transaction::begin(store, options)?;
            tx.call = "store.transact";
            let closure = Closure::of(store.core());
            let done = body(&mut tx);
            drop(closure);
            let value = match done {
                Ok(value) => value,
                // Whatever the closure made of the conflict, it ran on a state that is gone.
                Err(_) if tx.met_conflict && !in_turn => continue,
                Err(error) => return Err(error),
            };
            let Err(error) = tx.commit() else { return Ok(value) };
            if in_turn || !error.is_conflict() {
                return Err(error.into());
            }
        }
    }

    fn core(&self) -> &Core {
        self.pinned.core()
    }

    /// The commit whose state the transaction reads.
    pub fn snapshot_commit(&self) -> u64 {
        self.pinned.view().commit
    }

    /// The value of a key: this transaction's own, or that of its snapshot. It owns its bytes, so that the transaction
    /// can write while the value is in use; [`Transaction::get_ref`] makes no copy.
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    pub fn get(&self, map: &Map, key: impl AsRef<[u8]>) -> Result<Option<Value<'static>>> {
        Ok(self.get_ref(map, key)?.map(Value::into_owned))
    }

    /// The value of a key, borrowed from the store or the transaction where that is possible. The transaction cannot
    /// write while the value is in use.
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    #[inline]
    pub fn get_ref(&self, map: &Map, key: impl AsRef<[u8]>) -> Result<Option<Value<'_>>> {
        self.get_bytes(map, key.as_ref())
    }

    fn get_bytes(&self, map: &Map, key: &[u8]) -> Result<Option<Value<'_>>> {
        self.is_used_here();
        self.pinned.alive()?;
        let full_key = FullKey::new(map.id_in(self.pinned.core())?, key)?;
        self.note_read(|reads| reads.key(&full_key))?;
        self.read(&full_key)
    }

    /// Notes that the calling thread has the transaction now: it may have come from another one.
    #[inline]
    fn is_used_here(&self) {
        if self.token != NOT_EXCLUSIVE {
            self.core().exclusive_thread.is_here();
        }
    }

    fn read(&self, full_key: &[u8]) -> Result<Option<Value<'_>>> {
        if let Some(entry) = self.own(full_key)? {
            return entry.resolve(self.core().source());
        }
        self.pinned.view().get(full_key)
    }

    /// What the transaction itself did to a key, if anything.
    fn own(&self, full_key: &[u8]) -> Result<Option<Entry<'_>>> {
        for layer in self.work.layers.iter().rev() {
            if let Some(written) = layer.written(full_key) {
                return Ok(Some(written.entry()));
            }
            if let Some(root) = layer.run() {
                let hash = key_hash(self.pinned.view().hash_seed, full_key);
                let found = in_tree(self.core().source(), root, full_key, hash)?;
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
    pub fn multi_get<K: AsRef<[u8]>>(&self, map: &Map, keys: &[K]) -> Result<Vec<Option<Value<'static>>>> {
        keys.iter().map(|key| self.get(map, key)).collect()
    }

    /// A cursor over the pairs whose keys lie in a range, own writes included, standing before the first. Appended
    /// pairs are not among them: they have no key before the commit. A serialisable transaction counts the whole
    /// range as read.
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    pub fn range(&self, map: &Map, range: impl KeyBounds) -> Result<Cursor<'_>> {
        self.cursor(FullRange::of(map.id_in(self.pinned.core())?, range)?)
    }

    /// A cursor over the pairs whose keys begin with a prefix; see [`Transaction::range`].
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    pub fn prefix(&self, map: &Map, prefix: impl AsRef<[u8]>) -> Result<Cursor<'_>> {
        self.cursor(FullRange::prefix(map.id_in(self.pinned.core())?, prefix.as_ref())?)
    }

    fn cursor(&self, range: FullRange) -> Result<Cursor<'_>> {
        self.is_used_here();
        self.pinned.alive()?;
        self.note_read(|reads| reads.range(&range))?;
        Ok(Cursor::new(&self.pinned, self.own_writes(), range))
    }

    /// How many pairs lie in a range, own writes included. With own writes in the map this walks the range.
    ///
    /// # Errors
    /// As [`crate::Snapshot::get`].
    pub fn count(&self, map: &Map, range: impl KeyBounds) -> Result<u64> {
        let range = FullRange::of(map.id_in(self.pinned.core())?, range)?;
        if self.work.layers.iter().all(Layer::is_empty) {
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
    #[inline]
    pub fn put(&mut self, map: &Map, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_bytes(map, key.as_ref(), value.as_ref())
    }

    fn put_bytes(&mut self, map: &Map, key: &[u8], value: &[u8]) -> Result<()> {
        check_value(value)?;
        let id = self.needs(map)?;
        let mut room = KeyRoom::new();
        let full_key = room.join(id, key)?;
        let written = if value.len() > LOGGED_VALUE_BYTES_MAX {
            let extent = self.core().write_value(value)?;
            self.work.extents.push(extent);
            Written::PutExtent(extent)
        } else {
            Written::Put(value)
        };
        self.write(full_key, written)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(&mut self, map: &Map, key: impl AsRef<[u8]>) -> Result<()> {
        let id = self.needs(map)?;
        self.write(KeyRoom::new().join(id, key.as_ref())?, Written::Delete)
    }

    /// Removes all keys of a range: also those that others add before this commits, which is a conflict.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete_range(&mut self, map: &Map, range: impl KeyBounds) -> Result<()> {
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
        self.forget_ahead();
        self.top().delete_range(range);
        Ok(())
    }

    /// What all layers hold.
    fn held(&self) -> Held {
        let newest = Held::of(self.work.layers.last());
        Held {
            bytes: self.work.below.bytes + newest.bytes,
            addition_bytes: self.work.below.addition_bytes + newest.addition_bytes,
            ranges: self.work.below.ranges + newest.ranges,
        }
    }

    /// After layers were added or taken away.
    fn count_below(&mut self) {
        let newest = self.work.layers.len().saturating_sub(1);
        self.work.below = Held::of(&self.work.layers[..newest]);
    }

    /// Refuses more appends and additions than fit into a record.
    fn check_resolved(&self, more: usize) -> Result<()> {
        if self.work.append_bytes + (self.held().addition_bytes + more) as u64 <= RESOLVED_BYTES_MAX {
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
    pub fn append(&mut self, map: &Map, prefix: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (prefix, value) = (prefix.as_ref(), value.as_ref());
        check_value(value)?;
        let id = self.needs(map)?;
        check_prefix(prefix)?;
        if self.numbers_under(id, prefix)? {
            return self.append_numbered(map, prefix, value).map(|_| ());
        }
        let map = id;
        let mut extents = Vec::new();
        let logged = if value.len() > LOGGED_VALUE_BYTES_MAX {
            EXTENT_BYTES
        } else {
            value.len()
        };
        self.check_resolved(appended_bytes(prefix.len(), logged))?;
        let (kind, value) = stored(self.core(), value, &mut extents)?;
        self.work.extents.extend(extents);
        self.push_append(map, kind, &value, AppendTo::Prefix(prefix.into()));
        Ok(())
    }

    /// Whether it appends under a prefix.
    fn appends_under(&self, map: u32, prefix: &[u8]) -> bool {
        self.work
            .appends
            .iter()
            .any(|append| append.map == map && matches!(&append.to, AppendTo::Prefix(other) if **other == *prefix))
    }

    /// A walk through full keys, own writes included.
    fn scan_full(&self, range: FullRange) -> Box<MappedScan<'_>> {
        self.pinned.scan(self.own_writes(), range)
    }

    /// Stretches in which the transaction sees nothing.
    fn nothing(&mut self) -> &mut Ranges {
        self.work.nothing.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_writes(&self) -> OwnWrites<'_> {
        OwnWrites {
            layers: &self.work.layers,
            nothing: Some(&self.work.nothing),
        }
    }

    /// Whether nothing was written.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.work.layers.iter().all(Layer::is_empty) && self.work.appends.is_empty()
    }

    fn push_append(&mut self, map: u32, kind: OperationKind, value: &[u8], to: AppendTo) {
        let start = self.work.append_values.len();
        self.work.append_values.extend_from_slice(value);
        let value = start..self.work.append_values.len();
        let append = Append { map, kind, value, to };
        self.work.append_bytes += append.bytes();
        self.work.appends.push(append);
    }

    /// Adds to a counter; see [`Map::add`]. It does not conflict with the additions of others, only with other
    /// writes of this transaction's own if those conflict.
    ///
    /// # Errors
    /// As [`Transaction::put`], [`Reason::NotACounter`], [`Reason::CounterOverflow`].
    pub fn add(&mut self, map: &Map, key: impl AsRef<[u8]>, delta: i64) -> Result<()> {
        let full_key = FullKey::new(self.needs(map)?, key.as_ref())?;
        self.check_resolved(full_key.len() + APPEND_BYTES)?;
        let shown = self.read(&full_key)?;
        let sum = self.core().sum(&full_key, shown.as_deref(), delta)?.to_be_bytes();
        let written = match self.own_addition(&full_key)? {
            Some(Some(before)) => Written::Add {
                // What is shown may be in range when the sum of the additions alone is not.
                delta: self.core().sum(&full_key, Some(&before.to_be_bytes()), delta)?,
                shown: &sum,
            },
            Some(None) => Written::Put(&sum),
            None => Written::Add { delta, shown: &sum },
        };
        self.write(&full_key, written)
    }

    /// `None`: the transaction did not touch the key; `Some(None)`: it wrote it; else what it added so far.
    fn own_addition(&self, full_key: &[u8]) -> Result<Option<Option<i64>>> {
        for layer in self.work.layers.iter().rev() {
            if let Some(Written::Add { delta, .. }) = layer.written(full_key) {
                return Ok(Some(Some(delta)));
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
            let hash = key_hash(self.pinned.view().hash_seed, full_key);
            return Ok(in_tree(self.core().source(), root, full_key, hash)?.is_some());
        }
        let written = layer.written(full_key);
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
            self.work.opened.push(map.clone());
            return Ok(map);
        }
        self.make_map(next_map_id(self.core()), name)
    }

    /// Makes a map that only transactions write which were begun with `TransactionOptions::guarded`. The caller gives each
    /// such map of the store another number, below 2^31, and keeps count of them in the store.
    #[doc(hidden)]
    pub fn guarded_map(&mut self, name: &str, number: u32) -> Result<Map> {
        if self.existing_map(name)?.is_some() {
            return Err(Reason::MapExists { name: name.into() }.into());
        }
        self.make_map(number | GUARDED, name)
    }

    fn make_map(&mut self, id: u32, name: &str) -> Result<Map> {
        let key = FullKey::new(CATALOG, name.as_bytes())?;
        self.write(&key, Written::Put(&id.to_le_bytes()))?;
        self.work.new_maps.push(id);
        let info = self.core().catalog.pending(id, name);
        Ok(Map::of(&self.store, info, name))
    }

    /// The map of a name, if there is one, as this transaction sees it.
    #[doc(hidden)]
    pub fn existing_map(&self, name: &str) -> Result<Option<Map>> {
        check_name(name)?;
        self.existing_named(name)
    }

    fn existing_named(&self, name: &str) -> Result<Option<Map>> {
        self.is_used_here();
        self.pinned.alive()?;
        let key = FullKey::new(CATALOG, name.as_bytes())?;
        self.note_read(|reads| reads.key(&key))?;
        let id = self.read(&key)?.map(|id| map_id(&id)).transpose()?;
        Ok(id.map(|id| Map::new(&self.store, id, name, self.snapshot_commit())))
    }

    /// Gives a map another name.
    ///
    /// # Errors
    /// [`Reason::UnknownMap`], [`Reason::MapExists`], [`Reason::InvalidMapName`].
    pub fn rename_map(&mut self, from: &str, to: &str) -> Result<()> {
        let map = self
            .existing_map(from)?
            .ok_or_else(|| Reason::UnknownMap { name: from.into() })?;
        self.work.opened.push(map.clone());
        if self.existing_map(to)?.is_some() {
            return Err(Reason::MapExists { name: to.into() }.into());
        }
        let id = self.needs(&map)?;
        self.write(&FullKey::new(CATALOG, from.as_bytes())?, Written::Delete)?;
        self.write(&FullKey::new(CATALOG, to.as_bytes())?, Written::Put(&id.to_le_bytes()))?;
        self.work.renamed.push((id, to.to_string()));
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
        self.work.opened.push(map.clone());
        let id = self.needs(&map)?;
        self.write(&FullKey::new(CATALOG, name.as_bytes())?, Written::Delete)?;
        self.delete_full_range(FullRange::map(id))?;
        self.delete_full_range(counters_of(id)?)?;
        self.work.dropped.push(id);
        Ok(())
    }

    /// A number that no other transaction of this process has, for what crates above this one keep of it.
    #[doc(hidden)]
    pub fn number(&mut self) -> u64 {
        let next = || NEXT_SAVEPOINT.fetch_add(1, Ordering::Relaxed);
        *self.work.number.get_or_insert_with(next)
    }

    /// Marks this moment, to which [`Transaction::rollback_to`] can return. There may be any number of them; reads of
    /// the transaction look separately through what was written after each, so they cost in proportion to the
    /// savepoints with writes after them.
    ///
    /// # Errors
    /// [`Reason::SnapshotEnded`].
    pub fn savepoint(&mut self) -> Result<Savepoint> {
        self.pinned.alive()?;
        let number = NEXT_SAVEPOINT.fetch_add(1, Ordering::Relaxed);
        let work = &mut *self.work;
        // Where nothing was written since the last one, both begin with one layer.
        if !work.layers.last().is_some_and(Layer::is_empty) {
            work.layers.push(Layer::new());
        }
        work.savepoints.push(Mark {
            number,
            layer: work.layers.len() - 1,
            appends: work.appends.len(),
            maps: work.maps.len(),
            new_maps: work.new_maps.len(),
            dropped: work.dropped.len(),
            renamed: work.renamed.len(),
        });
        self.count_below();
        Ok(Savepoint { number })
    }

    /// Takes back every write since a savepoint, which stays, and may be returned to again. Savepoints made after it
    /// are gone.
    ///
    /// # Errors
    /// [`Reason::InvalidArgument`] when the savepoint is gone or belongs to another transaction.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        let Some(place) = self
            .work
            .savepoints
            .iter()
            .position(|mark| mark.number == savepoint.number)
        else {
            let cause = "the savepoint is gone, because the transaction was rolled back to an earlier one, or it \
                         belongs to another transaction; roll back to one that is there";
            return Err(Reason::InvalidArgument(cause.into()).into());
        };
        let work = &mut *self.work;
        (work.nothing, work.ahead) = Default::default();
        work.savepoints.truncate(place + 1);
        let mark = &work.savepoints[place];
        if let Some(first) = work.appends.get(mark.appends) {
            work.append_values.truncate(first.value.start);
        }
        let gone = work.appends.drain(mark.appends..);
        work.append_bytes -= gone.map(|append| append.bytes()).sum::<u64>();
        work.maps.truncate(mark.maps);
        work.dropped.truncate(mark.dropped);
        work.renamed.truncate(mark.renamed);
        let core = &self.pinned.handle.core;
        let of_run = of_run(&work.extents);
        work.new_maps
            .drain(mark.new_maps..)
            .for_each(|id| core.catalog.discarded(id));
        for layer in work.layers.drain(mark.layer..) {
            if let Some(root) = layer.run() {
                core.drop_run(root, &of_run)?;
            }
        }
        work.layers.push(Layer::new());
        self.count_below();
        Ok(())
    }

    fn needs(&mut self, map: &Map) -> Result<u32> {
        self.is_used_here();
        self.pinned.alive()?;
        if !self.guarded {
            map.unguarded()?;
        }
        let is_own = self.is_new(&map.info);
        let id = if is_own {
            map.id_in(self.pinned.core())?
        } else {
            match map.writable_id_in(self.pinned.core()) {
                Ok(id) => id,
                Err(error) => {
                    let error = self.conflict_if_opened(&map.info, error);
                    self.met_conflict |= error.is_conflict();
                    return Err(error);
                }
            }
        };
        if self.work.dropped.contains(&id) {
            return Err(Reason::MapDropped {
                name: map.name().into(),
            }
            .into());
        }
        if !self.work.maps.iter().any(|known| Arc::ptr_eq(known, &map.info)) {
            self.work.maps.push(map.info.clone());
        }
        Ok(id)
    }

    /// Who asked for the map by its name meant whichever has that name: with a newer snapshot it is another one, or
    /// none, so the transaction can be run again. Not so with a handle that was there before.
    fn conflict_if_opened(&self, map: &MapInfo, error: Error) -> Error {
        let is_dropped = matches!(error.reason(), Reason::MapDropped { .. });
        let opened = self.work.opened.iter().find(|opened| opened.info.id == map.id);
        match opened.map(|opened| FullKey::new(CATALOG, opened.name().as_bytes())) {
            Some(Ok(key)) if is_dropped => self.core().conflict(&key),
            _ => error,
        }
    }

    fn top(&mut self) -> &mut Layer {
        if self.work.layers.last().is_none_or(|layer| layer.run().is_some()) {
            self.work.layers.push(Layer::new());
            self.count_below();
        }
        self.work.layers.last_mut().expect("there is a layer now")
    }

    fn write(&mut self, full_key: &[u8], written: Written<'_>) -> Result<()> {
        self.forget_ahead();
        let nothing = self.nothing();
        if written != Written::Delete && !nothing.is_empty() {
            *nothing = nothing.cut(full_key);
        }
        self.top().write(full_key, written);
        if self.held().bytes > self.memory_bytes {
            self.spill()?;
        }
        Ok(())
    }

    /// Moves the layer that takes most memory to the data file.
    fn spill(&mut self) -> Result<()> {
        let layers = self.work.layers.iter().enumerate();
        let largest = layers.max_by_key(|(_, layer)| layer.bytes());
        let (place, _) = largest.expect("what takes memory is in some layer");
        let (root, _) = self.pinned.core().write_run(&self.work.layers[place..=place])?;
        let additions = self.work.layers[place].become_run(root);
        if !additions.is_empty() {
            // Right above the run, and of the same savepoint.
            let mut kept = Layer::new();
            additions
                .iter()
                .for_each(|addition| kept.write(&addition.key, addition.written()));
            self.work.layers.insert(place + 1, kept);
            let later = self.work.savepoints.iter_mut().filter(|mark| mark.layer > place);
            later.for_each(|mark| mark.layer += 1);
        }
        self.count_below();
        Ok(())
    }

    /// Commits: all writes become visible at once, and last as was asked for when this returns.
    ///
    /// # Errors
    /// [`Reason::Conflict`] (run the transaction again), [`Reason::TooOld`], [`Reason::Full`] (nothing was written),
    /// [`Reason::Unknown`] (the store must be reopened), [`Reason::NotSynced`] (it is committed),
    /// [`Reason::MapDropped`], [`Reason::Poisoned`].
    pub fn commit(mut self) -> Result<Commit> {
        let commit = self.append_all()?;
        if self.durability == Durability::Synced {
            self.core().wait_durable(commit.number)?;
        }
        Ok(commit)
    }

    /// The right of an exclusive transaction to commit.
    pub(crate) fn token(&self) -> u32 {
        self.token
    }

    /// Commits, and goes on to shut other writers out until the transaction is dropped.
    pub(crate) fn commit_and_stay(mut self) -> Result<Transaction> {
        self.append_all()?;
        Ok(self)
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
        self.is_used_here();
        self.pinned.alive()?;
        self.fit_into_a_record()?;
        let is_empty = self.is_unchanged() && self.restores.is_none();
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
        if run.is_some() || !self.work.extents.is_empty() {
            self.core().ready_values(pages_of(&self.work.extents), values)?;
        }
        // Before the commit: a fold may take the run apart right after it.
        let unused = self.unused_extents()?;
        let mut maps = std::mem::take(&mut self.work.maps);
        let core = self.core();
        let commit: Result<Commit> = with_draft(|draft| {
            draft.values_may_tear(values == Durability::Written);
            draft.time = self.commit_time;
            if !self.work.new_maps.is_empty() {
                maps.retain(|map| !self.is_new(map));
            }
            // What the draft had is empty, and its memory goes to the next transaction.
            std::mem::swap(&mut draft.maps, &mut maps);
            self.draft(draft, run)?;
            if draft.is_empty() {
                // Nothing to write, but what was read must still be true.
                let _guard = core.hold_commits_in_time()?;
                core.check_conflicts(&checks, draft)?;
                return Ok(Commit {
                    number: self.snapshot_commit(),
                    assigned: Vec::new(),
                });
            }
            if self.token == NOT_EXCLUSIVE {
                let map = || draft.maps.first().map_or_else(String::new, |map| map.name());
                core.refuse_beside(self.call, map)?;
            }
            draft.created.extend(&self.work.new_maps);
            draft.dropped.extend(&self.work.dropped);
            draft.renamed.extend(self.work.renamed.iter().cloned());
            draft.rung.extend(self.work.rung.iter().cloned());
            let number = core.append(draft, Some(&checks), self.token);
            let number = number.map_err(|error| match draft.maps.iter().find(|map| map.alive().is_err()) {
                Some(map) => self.conflict_if_opened(map, error),
                None => error,
            })?;
            let tickets = self.kept_appends().filter_map(Append::numbered);
            tickets
                .zip(draft.stamps())
                .for_each(|(numbered, stamp)| numbered.ticket.resolve(stamp));
            Ok(Commit {
                number,
                assigned: draft.assigned().to_vec(),
            })
        });
        if commit.is_ok() {
            core.give_back_values(&unused);
        }
        self.finished = match &commit {
            Ok(_) => true,
            // The record may have reached the log: its pages must stay.
            Err(error) => error.is_of_a_made_commit(),
        };
        self.work.maps = maps;
        commit
    }

    /// Lets what is in memory go the way of a larger transaction when no record could hold it beside what is resolved
    /// there.
    fn fit_into_a_record(&mut self) -> Result<()> {
        let held = self.held();
        let bytes = self.work.append_bytes + (held.bytes + held.addition_bytes) as u64;
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
        for layer in &self.work.layers {
            checks.ranges.extend(layer.deleted_ranges());
            checks.runs.extend(layer.run());
        }
        checks.ranges.extend_from_slice(&self.work.needed);
        checks.keys.extend_from_slice(&self.work.needed_keys);
        if let Some(reads) = self.reads.as_ref().filter(|_| !is_planted(PlantedBug::ReadsNotChecked)) {
            let reads = reads.lock().unwrap_or_else(|e| e.into_inner());
            checks.keys.extend(reads.keys.iter().cloned());
            checks.ranges.extend(reads.ranges.iter().cloned());
            checks.keys.sort_unstable();
            checks.keys.dedup();
        }
        if self.token != NOT_EXCLUSIVE {
            // No other transaction could write since it began.
            checks.keys.clear();
            checks.ranges.clear();
            checks.runs.clear();
        }
        checks
    }

    /// When a layer is a run, all layers become one run. Returns it.
    fn settle_layers(&mut self, checks: &mut Checks) -> Result<Option<Root>> {
        let layers = &mut self.work.layers;
        let runs = layers.iter().filter_map(Layer::run).count();
        if runs == 0 {
            return Ok(None);
        }
        if runs == 1 && layers.iter().all(|layer| layer.run().is_some() || layer.is_empty()) {
            // It is what the merge would write.
            layers.retain(|layer| layer.run().is_some());
            let root = layers[0].run();
            layers.push(Layer::new());
            self.work.savepoints.clear();
            self.count_below();
            return Ok(root);
        }
        let core = self.pinned.handle.core.clone();
        let (root, superseded) = core.write_run(&self.work.layers)?;
        let mut merged = Layer::new();
        let mut additions: Vec<Addition> = Vec::new();
        for mut layer in std::mem::take(&mut self.work.layers) {
            for range in layer.deleted_ranges() {
                additions.retain(|addition| !range.contains(&addition.key));
                merged.delete_range(range);
            }
            let mut kept = Vec::new();
            for addition in additions {
                if !self.replaces(&layer, &addition.key)? {
                    kept.push(addition);
                }
            }
            additions = kept;
            match layer.run() {
                // The new run has its values.
                Some(old) => core.drop_run(old, |_| false)?,
                None => additions.extend(layer.become_run(root)),
            }
        }
        let of_run = of_run(&self.work.extents);
        let needless: Vec<Extent> = superseded.into_iter().filter(|value| of_run(value)).collect();
        core.give_back_values(&needless);
        merged.become_run(root);
        self.work.layers = vec![merged, Layer::new()];
        self.count_below();
        for addition in &additions {
            // Of several additions to a key the last one holds the sum of all.
            self.top().write(&addition.key, addition.written());
        }
        self.work.savepoints.clear();
        if !checks.runs.is_empty() {
            checks.runs = vec![root];
        }
        Ok(Some(root))
    }

    /// The record's operations: range deletes, the run, single operations, appends.
    fn draft(&self, draft: &mut Draft, run: Option<Root>) -> Result<()> {
        let seed = self.pinned.view().hash_seed;
        self.draft_restore(draft);
        if self.held().ranges > 0 {
            let deleted = self.work.layers.iter().flat_map(Layer::deleted_ranges);
            for range in crate::read::view::union(deleted.collect()) {
                draft.push_note(OperationKind::DeleteRange, &range.low, &range.high);
            }
        }
        if let Some(root) = run {
            draft.push_note(OperationKind::Run, &COUNTERS.to_be_bytes(), &encode_root(root));
        }
        match &self.work.layers[..] {
            // There is nothing to merge.
            [layer] => layer
                .entries()
                .into_iter()
                .flat_map(Entries::iter)
                .for_each(|(key, written)| self.draft_one(draft, key, written)),
            _ => self
                .merged()
                .into_iter()
                .for_each(|(key, written)| self.draft_one(draft, key, written)),
        }
        self.kept_appends().try_for_each(|append| {
            let value = &self.work.append_values[append.value.clone()];
            match &append.to {
                AppendTo::Prefix(prefix) => draft.push_append(append.map, prefix, append.kind, value),
                AppendTo::Sequence(numbered) => {
                    let body = numbered.body.as_ref().map(Body::as_put);
                    draft.push_numbered(&numbered.place, (append.map, value), body, numbered.bytes, seed)
                }
            }
        })
    }

    fn draft_one(&self, draft: &mut Draft, key: &[u8], written: Written<'_>) {
        let seed = self.pinned.view().hash_seed;
        let operation = match written {
            Written::Put(value) => draft.push(OperationKind::Put, key, value, seed),
            Written::PutExtent(extent) => draft.push(OperationKind::PutExtent, key, &extent.encode(), seed),
            Written::Delete => draft.push(OperationKind::Delete, key, &[], seed),
            Written::Add { delta, .. } => {
                draft.push_add(key, delta, AddTo::Newest, seed);
                return;
            }
        };
        // While it runs exclusively, no other transaction writes.
        draft.planned[operation].is_checked = self.token == NOT_EXCLUSIVE;
    }

    /// What the layers that are not a run come to: of several writes of a key only the last.
    fn merged(&self) -> BTreeMap<&[u8], Written<'_>> {
        let mut merged: BTreeMap<&[u8], Written<'_>> = BTreeMap::new();
        for layer in &self.work.layers {
            for range in layer.deleted_ranges() {
                merged.retain(|key, _| !range.contains(key));
            }
            merged.extend(layer.entries().into_iter().flat_map(Entries::iter));
        }
        merged
    }

    /// The appends to maps that the transaction does not drop.
    fn kept_appends(&self) -> impl Iterator<Item = &Append> {
        self.work
            .appends
            .iter()
            .filter(|append| !self.work.dropped.contains(&append.map))
    }

    fn is_new(&self, map: &MapInfo) -> bool {
        self.work.new_maps.contains(&map.id)
    }

    /// Values that the transaction wrote and then replaced: the record will not refer to them.
    fn unused_extents(&self) -> Result<Vec<Extent>> {
        let core = self.core();
        let mut used: Vec<u32> = Vec::new();
        if self.work.extents.is_empty() {
            return Ok(Vec::new());
        }
        used.extend(self.merged().values().filter_map(|written| match written {
            Written::PutExtent(extent) => Some(extent.page),
            _ => None,
        }));
        for root in self.work.layers.iter().filter_map(Layer::run) {
            crate::btree::walk(core.source(), root, &mut |visit| {
                if let crate::btree::Visit::Extent(extent) = visit {
                    used.push(extent.page);
                }
                Ok(())
            })?;
        }
        let appended = self.kept_appends().flat_map(|append| {
            let body = append.numbered().and_then(|numbered| numbered.body.as_ref());
            let body = body.map(|body| (body.kind, body.value.as_slice()));
            let own = (append.kind, &self.work.append_values[append.value.clone()]);
            [Some(own), body].into_iter().flatten()
        });
        for (_, value) in appended.filter(|(kind, _)| *kind == OperationKind::PutExtent) {
            let extent = Extent::decode(value.try_into().expect("an encoded extent"));
            used.push(extent.page);
        }
        used.sort_unstable();
        let is_unused = |extent: &&Extent| used.binary_search(&extent.page).is_err();
        Ok(self.work.extents.iter().filter(is_unused).copied().collect())
    }
}

/// Says which values a run wrote itself, because they were too long for its leaves. The others are among those that the
/// transaction wrote before.
fn of_run(extents: &[Extent]) -> impl Fn(&Extent) -> bool + use<> {
    let pages: HashSet<u32> = extents.iter().map(|extent| extent.page).collect();
    move |value| !pages.contains(&value.page)
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let core = &self.pinned.handle.core;
        if core.region.is_forked() {
            // All of it is the parent's, who goes on with it.
            return;
        }
        if !self.finished {
            let of_run = of_run(&self.work.extents);
            for root in self.work.layers.iter().filter_map(Layer::run) {
                // The pages are only lost until the store is opened again.
                let _ = core.drop_run(root, &of_run);
            }
            core.give_back_values(&self.work.extents);
            // Handles of maps that were never made must not write to them.
            self.work.new_maps.iter().for_each(|&id| core.catalog.discarded(id));
        }
        if self.token != NOT_EXCLUSIVE {
            core.end_exclusive();
        }
    }
}
