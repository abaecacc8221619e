//! Snapshots, cursors and streams: what users read through.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::map::Map;
use crate::api::pairs::Pairs;
use crate::api::store::{Handle, Store};
use crate::btree::{Extent, count_below};
use crate::checksum::{checksum_with, key_hash};
use crate::core::catalog::map_id;
use crate::core::pins::{Purpose, describe};
use crate::core::{Core, keep_generations};
use crate::datafile::pages::{MappedPages, extent_table};
use crate::error::{Error, Reason, Result};
use crate::key::bounds::KeyBounds;
use crate::key::full_key::{CATALOG, FullKey, FullRange, split};
use crate::limits::{KEY_BYTES_MAX, MAP_ID_BYTES, PAGE_BYTES, VALUE_CHUNK_BYTES};
use crate::map_name::is_reserved;
use crate::read::scan::{Learner, Scan};
use crate::read::value::{Entry, Value};
use crate::read::view::View;
use crate::read::write_set::OwnWrites;
use crate::region::Pin;

/// A pinned view that keeps the store open. Its pin is given back on drop.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) handle: Arc<Handle>,
    /// Valid as long as the pin is there. Others get it as [`Pinned::view`], which they cannot keep for longer.
    view: View<'static>,
    pub(crate) pin: Pin,
    id: u64,
    /// Number of the generation that took commits when the view was pinned.
    pub(crate) newest_generation: u32,
}

impl Pinned {
    #[inline(always)]
    pub(crate) fn new(store: &Store, limit: &AtomicU64, purpose: Purpose) -> Result<Pinned> {
        // What else can be in the way is looked at with the pin.
        store.core().present()?;
        // SAFETY: the pin stays until the end, the handle keeps the store open for as long, and `Pinned::view` is the only
        // way to what is kept here.
        let (pin, view) = unsafe { store.core().pin_limit(limit) }?;
        // SAFETY: as above.
        let view = unsafe { view.unbound() };
        Ok(Pinned::over(store, pin, view, purpose))
    }

    /// Pins a checkpoint.
    fn of_checkpoint(store: &Store, name: &str) -> Result<Pinned> {
        store.core().present()?;
        store.core().keep_pending_checkpoint()?;
        // SAFETY: as in `new`.
        let (pin, view) = unsafe { store.core().pin_checkpoint(name) }?;
        // SAFETY: as in `new`.
        let view = unsafe { view.unbound() };
        Ok(Pinned::over(store, pin, view, Purpose::Snapshot))
    }

    /// A view that a pin of its own keeps.
    #[inline(always)]
    fn over(store: &Store, pin: Pin, view: View<'static>, purpose: Purpose) -> Pinned {
        let handle = store.lane(pin.index as usize).clone();
        let core = &handle.core;
        describe(core, &pin, purpose);
        let id = core.region.pinned(&pin).id(pin.index);
        let newest_generation = core.entry(view.newest_slot).number.load(Ordering::Relaxed);
        Pinned {
            view,
            pin,
            id,
            newest_generation,
            handle,
        }
    }

    /// What the pin keeps.
    #[inline(always)]
    pub(crate) fn view(&self) -> &View<'_> {
        &self.view
    }

    pub(crate) fn core(&self) -> &Core {
        &self.handle.core
    }

    /// Refuses to go on once the snapshot was ended.
    #[inline]
    pub(crate) fn alive(&self) -> Result<()> {
        self.core().own()?;
        if self.core().region.pinned(&self.pin).is_ended() {
            return Err(Reason::SnapshotEnded.into());
        }
        Ok(())
    }

    /// The range's pairs in key order, merged with a transaction's own writes.
    pub(crate) fn scan<'a>(&'a self, own: OwnWrites<'a>, range: FullRange) -> Box<MappedScan<'a>> {
        let view = self.view();
        // Pages of now: the runs of a transaction may lie beyond those that the view knows.
        let (source, generations) = (self.core().source(), &view.generations);
        let scan = Scan::over(source, view.root, generations, &view.deleted, view.commit, own, range);
        // What a transaction deleted itself does not count for others.
        let learner = match own.nothing {
            Some(nothing) if !own.is_empty() => Learner::Transaction(nothing),
            _ => Learner::Views(&self.core().deletions, view.deleted.base()),
        };
        Box::new(scan.teach(learner))
    }

    /// Pairs in a range: by counting in the branches of the base, and walking what is above it.
    pub(crate) fn count(&self, range: &FullRange) -> Result<u64> {
        if range.is_empty() {
            return Ok(0);
        }
        count_in(self.view(), range)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.handle.core.unpin(&self.pin);
        keep_generations(std::mem::take(&mut self.view.generations));
    }
}

fn count_in(view: &View<'_>, range: &FullRange) -> Result<u64> {
    let between = |low: &[u8], high: &[u8]| -> Result<u64> {
        Ok(count_below(view.pages, view.root, high)? - count_below(view.pages, view.root, low)?)
    };
    let mut count = between(&range.low, &range.high)?;
    if !view.has_recent() {
        return Ok(count);
    }
    view.deleted.sound()?;
    for cut in view.deleted.within(range) {
        count -= between(&cut.low, &cut.high)?;
    }
    // What is above the base, without the base: every key there either adds a pair or hides one.
    let above = View {
        root: Default::default(),
        ..view.clone()
    };
    let mut scan = Scan::new(view.pages, &above, &[], range.clone());
    scan.show_deleted();
    while let Some(entry) = scan.next()? {
        let key = scan.key();
        let in_base = view.in_base(key, key_hash(view.hash_seed, key))?.is_some() && view.deleted.at(key)?.is_none();
        match entry {
            Entry::Deleted if in_base => count -= 1,
            Entry::Deleted => {}
            _ if in_base => {}
            _ => count += 1,
        }
    }
    Ok(count)
}

/// A view of one moment: it never changes, never blocks and is never blocked, however many commits follow. It holds
/// the space of what it can see, and nothing else, until it is dropped.
#[derive(Debug)]
pub struct Snapshot {
    pinned: Pinned,
}

impl Snapshot {
    pub(crate) fn new(store: &Store, limit: &AtomicU64) -> Result<Snapshot> {
        Ok(Snapshot {
            pinned: Pinned::new(store, limit, Purpose::Snapshot)?,
        })
    }

    pub(crate) fn of_checkpoint(store: &Store, name: &str) -> Result<Snapshot> {
        Ok(Snapshot {
            pinned: Pinned::of_checkpoint(store, name)?,
        })
    }

    pub(crate) fn pinned(&self) -> &Pinned {
        &self.pinned
    }

    /// A map by the name that it has in the snapshot; `None`: there is none. So a map that was dropped or renamed since can be read.
    /// Writing to a dropped one fails with [`Reason::MapDropped`].
    ///
    /// # Errors
    /// [`Reason::SnapshotEnded`], [`Reason::Damaged`].
    pub fn map(&self, name: &str) -> Result<Option<Map>> {
        self.pinned.alive()?;
        if is_reserved(name) || name.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        let id = self.pinned.view().get(&FullKey::new(CATALOG, name.as_bytes())?)?;
        id.map(|id| Ok(self.handle_of(map_id(&id)?, name))).transpose()
    }

    /// The maps that the snapshot has, by their names in it, in order.
    ///
    /// # Errors
    /// As [`Snapshot::map`].
    pub fn maps(&self) -> Result<Vec<Map>> {
        let mut names: Vec<_> = self.map_names()?.into_iter().collect();
        names.retain(|(_, name)| !is_reserved(name));
        names.sort_by(|one, other| one.1.cmp(&other.1));
        Ok(names.iter().map(|(id, name)| self.handle_of(*id, name)).collect())
    }

    fn handle_of(&self, id: u32, name: &str) -> Map {
        Map::new(&Store::behind(&self.pinned.handle), id, name, self.commit())
    }

    /// The names of all maps, by their ids.
    pub(crate) fn map_names(&self) -> Result<BTreeMap<u32, String>> {
        self.pinned.alive()?;
        let mut names = BTreeMap::new();
        let mut scan = self.pinned.scan(OwnWrites::default(), FullRange::map(CATALOG));
        while let Some((key, id)) = scan.next_pair()? {
            let (_, name) = split(key);
            names.insert(map_id(&id)?, String::from_utf8_lossy(name).into_owned());
        }
        Ok(names)
    }

    /// The newest commit that the snapshot shows.
    pub fn commit(&self) -> u64 {
        self.pinned.view().commit
    }

    /// The id by which [`Store::end_snapshot`] and the statistics know this snapshot.
    pub fn id(&self) -> u64 {
        self.pinned.id
    }

    /// The value of a key, borrowed from the store where that is possible.
    ///
    /// # Errors
    /// [`Reason::KeyTooLong`], [`Reason::SnapshotEnded`], [`Reason::ForeignMap`], [`Reason::Damaged`].
    #[inline]
    pub fn get(&self, map: &Map, key: impl AsRef<[u8]>) -> Result<Option<Value<'_>>> {
        self.pinned.alive()?;
        let full_key = FullKey::new(map.id_in(self.pinned.core())?, key.as_ref())?;
        self.pinned.view().get(&full_key)
    }

    /// Whether a key is there.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, map: &Map, key: impl AsRef<[u8]>) -> Result<bool> {
        self.pinned.alive()?;
        let full_key = FullKey::new(map.id_in(self.pinned.core())?, key.as_ref())?;
        self.pinned.view().contains(&full_key)
    }

    /// Whether the map holds nothing.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn is_empty(&self, map: &Map) -> Result<bool> {
        Ok(self.range(map, ..)?.next()?.is_none())
    }

    /// The pair with the smallest key.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn first(&self, map: &Map) -> Result<Option<(Vec<u8>, Value<'_>)>> {
        self.range(map, ..)?.take_first()
    }

    /// The pair with the greatest key.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn last(&self, map: &Map) -> Result<Option<(Vec<u8>, Value<'_>)>> {
        self.range(map, ..)?.take_last()
    }

    /// The value of a full key, which may lie outside the maps of users; `map` tells the store.
    pub(crate) fn get_full(&self, map: &Map, full_key: &[u8]) -> Result<Option<Value<'_>>> {
        self.pinned.alive()?;
        map.id_in(self.pinned.core())?;
        self.pinned.view().get(full_key)
    }

    /// The values of several keys, in their order.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, map: &Map, keys: &[K]) -> Result<Vec<Option<Value<'_>>>> {
        keys.iter().map(|key| self.get(map, key)).collect()
    }

    /// A cursor over the pairs whose keys lie in a range, standing before the first.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn range(&self, map: &Map, range: impl KeyBounds) -> Result<Cursor<'_>> {
        let range = FullRange::of(map.id_in(self.pinned.core())?, range)?;
        self.cursor(range)
    }

    /// A cursor over the pairs whose keys begin with a prefix, standing before the first.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn prefix(&self, map: &Map, prefix: impl AsRef<[u8]>) -> Result<Cursor<'_>> {
        let range = FullRange::prefix(map.id_in(self.pinned.core())?, prefix.as_ref())?;
        self.cursor(range)
    }

    fn cursor(&self, range: FullRange) -> Result<Cursor<'_>> {
        self.pinned.alive()?;
        Ok(Cursor::new(&self.pinned, OwnWrites::default(), range))
    }

    /// How many pairs lie in a range; costs a walk down the tree, and one through the commits not yet folded.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn count(&self, map: &Map, range: impl KeyBounds) -> Result<u64> {
        self.pinned.alive()?;
        self.pinned
            .count(&FullRange::of(map.id_in(self.pinned.core())?, range)?)
    }

    /// The value of a key as a stream, for values that should not be in memory as a whole. Every part is verified
    /// before it is handed out.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn stream(&self, map: &Map, key: impl AsRef<[u8]>) -> Result<Option<ValueReader<'_>>> {
        self.pinned.alive()?;
        let full_key = FullKey::new(map.id_in(self.pinned.core())?, key.as_ref())?;
        let view = self.pinned.view();
        let hash = key_hash(view.hash_seed, &full_key);
        let entry = match view.recent(&full_key, hash)? {
            Some((_, entry)) => Some(entry),
            None => view.in_base(&full_key, hash)?,
        };
        Ok(match entry {
            None | Some(Entry::Deleted) => None,
            Some(Entry::Inline(value)) => Some(ValueReader::of_bytes(value)),
            Some(Entry::Extent(extent)) => Some(ValueReader::of_extent(self.pinned.core(), extent)?),
        })
    }
}

/// A position between two pairs of a range, from which one can step both ways.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// let map = store.map("fruit")?;
/// for name in ["apple", "cherry", "plum"] {
///     map.put(name.as_bytes(), b"")?;
/// }
/// let snapshot = store.snapshot()?;
/// let mut cursor = snapshot.range(&map, ..)?;
/// cursor.seek(b"banana")?;
/// assert_eq!(cursor.next()?.unwrap().0, b"cherry");
/// assert_eq!(cursor.prev()?.unwrap().0, b"cherry");
/// assert_eq!(cursor.prev()?.unwrap().0, b"apple");
///
/// for pair in snapshot.range(&map, "b"..)? {
///     let (key, value) = pair?;
///     println!("{key:?} {value:?}");
/// }
/// let last_two: Vec<_> = snapshot.range(&map, ..)?.rev().take(2).collect::<Result<_, _>>()?;
/// assert_eq!(last_two[1].0, b"cherry");
/// # Ok::<(), duramen_engine::Error>(())
/// ```
pub struct Cursor<'a> {
    pinned: &'a Pinned,
    own: OwnWrites<'a>,
    scan: Box<MappedScan<'a>>,
    map: [u8; MAP_ID_BYTES],
}

impl fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("map", &u32::from_be_bytes(self.map))
            .finish_non_exhaustive()
    }
}

/// A scan over mapped pages.
pub(crate) type MappedScan<'a> = Scan<'a, MappedPages<'a>>;

impl<'a> Cursor<'a> {
    pub(crate) fn new(pinned: &'a Pinned, own: OwnWrites<'a>, range: FullRange) -> Cursor<'a> {
        let map = range.low[..MAP_ID_BYTES]
            .try_into()
            .expect("a range begins with a map id");
        Cursor {
            pinned,
            own,
            scan: pinned.scan(own, range),
            map,
        }
    }

    /// Steps over the next pair and returns it. At the end of the range: `None`, and the cursor stays.
    ///
    /// # Errors
    /// [`Reason::SnapshotEnded`], [`Reason::Damaged`].
    #[expect(
        clippy::should_implement_trait,
        reason = "the key is borrowed from the cursor until the next step"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<(&[u8], Value<'a>)>> {
        self.pinned.alive()?;
        let pair = self.scan.next_pair()?;
        Ok(pair.map(|(key, value)| (&key[MAP_ID_BYTES..], value)))
    }

    /// Steps back over the pair before the cursor and returns it. At the beginning of the range: `None`.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    #[inline]
    pub fn prev(&mut self) -> Result<Option<(&[u8], Value<'a>)>> {
        self.pinned.alive()?;
        let pair = self.scan.prev_pair()?;
        Ok(pair.map(|(key, value)| (&key[MAP_ID_BYTES..], value)))
    }

    /// Moves before the first pair whose key is `key` or greater, without leaving the range.
    ///
    /// # Errors
    /// [`Reason::KeyTooLong`].
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.scan
            .seek(&FullKey::new(u32::from_be_bytes(self.map), key.as_ref())?);
        Ok(())
    }

    /// Moves behind the last pair of the range.
    pub fn seek_end(&mut self) {
        self.scan.seek_end();
    }

    /// [`Cursor::next`], but for the key.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<Option<Value<'a>>> {
        self.pinned.alive()?;
        Ok(self.scan.next_pair()?.map(|(_, value)| value))
    }

    /// [`Cursor::prev`], but for the key.
    pub(crate) fn step_back(&mut self) -> Result<Option<Value<'a>>> {
        self.pinned.alive()?;
        Ok(self.scan.prev_pair()?.map(|(_, value)| value))
    }

    /// The key of the last step.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.scan.key()[MAP_ID_BYTES..]
    }

    /// The first pair of the range.
    pub(crate) fn take_first(mut self) -> Result<Option<(Vec<u8>, Value<'a>)>> {
        Ok(self.next()?.map(|(key, value)| (key.to_vec(), value)))
    }

    /// The last pair of the range.
    pub(crate) fn take_last(mut self) -> Result<Option<(Vec<u8>, Value<'a>)>> {
        self.seek_end();
        Ok(self.prev()?.map(|(key, value)| (key.to_vec(), value)))
    }

    /// Another cursor over all of the range, standing before its first pair.
    pub(crate) fn fresh(&self) -> Cursor<'a> {
        Cursor::new(self.pinned, self.own, self.scan.range().clone())
    }

    /// Whether this cursor stands in front of the pair of the other's last step.
    pub(crate) fn is_before_pair_of(&self, other: &Cursor<'_>) -> bool {
        self.scan.is_before(other.scan.key())
    }

    /// An iterator over all pairs of the range, wherever the cursor stands: from both ends, and fused: after an error
    /// there is nothing more. `for pair in cursor` begins where the cursor stands.
    pub fn iter(&self) -> Pairs<'a> {
        Pairs::new(self.fresh())
    }

    /// [`Cursor::iter`] from the last pair on.
    pub fn rev(&self) -> std::iter::Rev<Pairs<'a>> {
        self.iter().rev()
    }
}

impl<'a> IntoIterator for Cursor<'a> {
    type Item = Result<(Vec<u8>, Value<'a>)>;
    type IntoIter = Pairs<'a>;

    fn into_iter(self) -> Pairs<'a> {
        Pairs::new(self)
    }
}

/// A value as a stream of verified parts.
#[derive(Debug)]
pub struct ValueReader<'a> {
    length: u64,
    position: u64,
    /// The part that contains `position`, from `part_start` on.
    part: Part<'a>,
    part_start: u64,
    rest: Option<Rest<'a>>,
}

#[derive(Debug)]
enum Part<'a> {
    Value(Value<'a>),
    Buffer(Vec<u8>),
}

/// Where further parts come from.
#[derive(Debug)]
struct Rest<'a> {
    core: &'a Core,
    extent: Extent,
    checksums: Vec<u8>,
}

impl<'a> ValueReader<'a> {
    fn of_bytes(value: Value<'a>) -> ValueReader<'a> {
        ValueReader {
            length: value.len() as u64,
            position: 0,
            part: Part::Value(value),
            part_start: 0,
            rest: None,
        }
    }

    fn of_extent(core: &'a Core, extent: Extent) -> Result<ValueReader<'a>> {
        let checksums = if extent.length > VALUE_CHUNK_BYTES as u64 {
            let page = extent.page as u64 * PAGE_BYTES as u64;
            let start = extent.length / PAGE_BYTES as u64 * PAGE_BYTES as u64;
            let mut tail = vec![0; extent.pages() as usize * PAGE_BYTES - start as usize];
            let read = core.data.read_at(&mut tail, page + start);
            read.map_err(|error| Error::io("reading the table of a long value", error))?;
            let rest = &tail[(extent.length - start) as usize..];
            extent_table(extent, extent.length as usize, rest, core.seeds.pages)?.to_vec()
        } else {
            extent.checksum.to_le_bytes().to_vec()
        };
        let rest = Some(Rest {
            core,
            extent,
            checksums,
        });
        Ok(ValueReader {
            length: extent.length,
            position: 0,
            part: Part::Buffer(Vec::new()),
            part_start: 0,
            rest,
        })
    }

    /// Bytes of the whole value.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn part(&self) -> &[u8] {
        match &self.part {
            Part::Value(value) => value,
            Part::Buffer(buffer) => buffer,
        }
    }

    /// Reads and verifies the part at `position`.
    fn load(&mut self) -> Result<()> {
        let Some(rest) = &self.rest else { return Ok(()) };
        let index = (self.position / VALUE_CHUNK_BYTES as u64) as usize;
        self.part_start = index as u64 * VALUE_CHUNK_BYTES as u64;
        let length = (self.length - self.part_start).min(VALUE_CHUNK_BYTES as u64) as usize;
        let mut buffer = vec![0; length];
        let offset = rest.extent.page as u64 * PAGE_BYTES as u64 + self.part_start;
        let read = rest.core.data.read_at(&mut buffer, offset);
        read.map_err(|error| Error::io("reading a long value", error))?;
        if checksum_with(rest.core.seeds.pages, &buffer).to_le_bytes() != rest.checksums[index * 4..index * 4 + 4] {
            let page = rest.extent.page;
            return Err(Error::damaged(format!(
                "the value at page {page}: wrong checksum of part {index}"
            )));
        }
        self.part = Part::Buffer(buffer);
        Ok(())
    }
}

impl io::Read for ValueReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.position == self.length || out.is_empty() {
            return Ok(0);
        }
        let end = self.part_start + self.part().len() as u64;
        if self.position >= end {
            self.load().map_err(io::Error::other)?;
        }
        let start = (self.position - self.part_start) as usize;
        let part = &self.part()[start..];
        let count = part.len().min(out.len());
        out[..count].copy_from_slice(&part[..count]);
        self.position += count as u64;
        Ok(count)
    }
}
