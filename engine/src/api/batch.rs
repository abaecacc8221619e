//! Batches: several writes that become one commit, without reading anything.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::api::future::CommitFuture;
use crate::api::map::{Map, check_value};
use crate::api::sequence::{Item, Sequence, Ticket, check_item, draft_item};
use crate::api::store::{Store, keep_draft, take_draft};
use crate::btree::Extent;
use crate::commit::Commit;
use crate::commit::draft::{AddTo, Draft};
use crate::commit::exclusive::NOT_EXCLUSIVE;
use crate::commit::sequence_state::Place;
use crate::core::Core;
use crate::core::catalog::MapInfo;
use crate::error::{Reason, Result};
use crate::key::bounds::KeyBounds;
use crate::key::full_key::{FullKey, FullRange, check_key, check_prefix, split};
use crate::limits::{FULL_KEY_BYTES_MAX, LOG_SPAN_BYTES, LOGGED_VALUE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::log::OperationKind;
use crate::settings::Durability;

/// Writes to any maps of one store that are committed together by [`Store::write`]. They take effect in the order of
/// the calls.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_engine::Batch;
/// let (orders, events) = (store.map("orders")?, store.map("events")?);
/// let mut batch = Batch::new();
/// batch.put(&orders, b"order-7", b"paid")?;
/// batch.append(&events, b"order-7/", b"paid")?;
/// let commit = store.write(batch)?;
/// assert_eq!(commit.assigned(), [0]);
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Debug)]
pub struct Batch {
    /// Puts, deletions and short appends to sequences as the log will have them, while there is nothing else in the
    /// batch.
    plain: Box<Draft>,
    /// All writes, once what becomes of some of them depends on others.
    mixed: Option<Mixed>,
    /// Of the appends to sequences, in the order of the calls.
    tickets: Vec<Ticket>,
    store: Option<Store>,
    durability: Option<Durability>,
}

/// Writes in the order of the calls.
#[derive(Debug, Default)]
struct Mixed {
    writes: Vec<Write>,
    /// Keys and values of all writes, one after the other.
    bytes: Vec<u8>,
    maps: Vec<Arc<MapInfo>>,
    /// Of the appends to sequences, in the order of the calls.
    numbered: Vec<Numbered>,
}

/// An append to a sequence, but for its head, which is the value of a [`Write`].
#[derive(Debug)]
struct Numbered {
    place: Arc<Place>,
    /// Id of the map of bodies, and where the body lies.
    body: Option<(u32, Range<usize>)>,
}

/// A write; its key and its value lie in the bytes from `start` on.
#[derive(Debug)]
struct Write {
    start: usize,
    value_length: u32,
    key_length: u16,
    what: What,
    /// Place among the maps.
    map: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Put,
    Delete,
    /// From the key up to the value, both of them full keys.
    DeleteRange,
    /// The key is a prefix.
    Append,
    /// The value is what to add, in eight bytes.
    Add,
    /// The value is the head; there is no key. The place is that of the next [`Numbered`].
    AppendTo,
}

const _: () = assert!(FULL_KEY_BYTES_MAX < u16::MAX as usize && VALUE_BYTES_MAX <= u32::MAX as u64);

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch {
            plain: take_draft(),
            mixed: None,
            tickets: Vec::new(),
            store: None,
            durability: None,
        }
    }

    /// Writes in the batch.
    pub fn len(&self) -> usize {
        match &self.mixed {
            None => self.plain.planned.len() - self.plain.sequences.len(),
            Some(mixed) => mixed.writes.len(),
        }
    }

    /// Whether nothing is in the batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks for a durability other than the store's.
    pub fn durability(&mut self, durability: Durability) {
        self.durability = Some(durability);
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`Reason::KeyTooLong`], [`Reason::ValueTooLong`], [`Reason::MapDropped`], [`Reason::ForeignMap`].
    pub fn put(&mut self, map: &Map, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_key(key)?;
        check_value(value)?;
        self.write(map, What::Put, key, value)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`Batch::put`].
    pub fn delete(&mut self, map: &Map, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        check_key(key)?;
        self.write(map, What::Delete, key, &[])
    }

    /// Removes all keys of a range, but not those that later calls put there. Pairs that the same batch appends stay,
    /// also those appended before: they get their keys only at the commit.
    ///
    /// # Errors
    /// As [`Batch::put`].
    pub fn delete_range(&mut self, map: &Map, range: impl KeyBounds) -> Result<()> {
        let range = FullRange::of(map.info.id, range)?;
        self.admit(map)?;
        self.mixed().push(&map.info, What::DeleteRange, &range.low, &range.high);
        Ok(())
    }

    /// Stores a value under a prefix and a number that is assigned at commit; see [`Map::append`].
    ///
    /// # Errors
    /// As [`Batch::put`].
    pub fn append(&mut self, map: &Map, prefix: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (prefix, value) = (prefix.as_ref(), value.as_ref());
        check_prefix(prefix)?;
        check_value(value)?;
        self.admit(map)?;
        self.mixed().push(&map.info, What::Append, prefix, value);
        Ok(())
    }

    /// Adds to a counter; see [`Map::add`].
    ///
    /// # Errors
    /// As [`Batch::put`].
    pub fn add(&mut self, map: &Map, key: impl AsRef<[u8]>, delta: i64) -> Result<()> {
        let key = key.as_ref();
        check_key(key)?;
        self.admit(map)?;
        self.mixed().push(&map.info, What::Add, key, &delta.to_le_bytes());
        Ok(())
    }

    /// Appends to a sequence; the ticket knows the number once the batch is committed.
    #[doc(hidden)]
    pub fn append_to(&mut self, sequence: &Sequence, item: Item<'_>) -> Result<Ticket> {
        check_item(&item)?;
        let (heads, bodies) = (sequence.heads(), sequence.bodies());
        self.admit(heads)?;
        self.admit(bodies)?;
        if self.mixed.is_none() && item.body.is_none() && self.has_room() {
            self.plain.needs(&heads.info);
            self.plain.needs(&bodies.info);
            let head = (heads.info.id, item.head);
            let seed = heads.store.core().hash_seed;
            self.plain
                .push_numbered(sequence.place(), head, None, item.bytes(), seed)?;
        } else {
            self.mixed().push_numbered(sequence, &item);
        }
        let ticket = Ticket::default();
        self.tickets.push(ticket.clone());
        Ok(ticket)
    }

    /// Whether a draft may become longer: no record takes more than a log file, and positions in a body have 32 bits.
    fn has_room(&self) -> bool {
        (self.plain.body.len() as u64) < LOG_SPAN_BYTES
    }

    /// Refuses a map that is gone, or of another store than the batch's.
    fn admit(&mut self, map: &Map) -> Result<()> {
        map.unguarded()?;
        map.info.alive()?;
        let store = self.store.get_or_insert_with(|| map.store.clone());
        if !store.is(&map.store) {
            return Err(Reason::ForeignMap {
                name: map.name().into(),
            }
            .into());
        }
        Ok(())
    }

    /// Takes a put or a deletion.
    fn write(&mut self, map: &Map, what: What, key: &[u8], value: &[u8]) -> Result<()> {
        self.admit(map)?;
        let fits = value.len() <= LOGGED_VALUE_BYTES_MAX && self.has_room();
        if self.mixed.is_none() && fits {
            self.plain.needs(&map.info);
            let full_key = FullKey::new(map.info.id, key)?;
            let kind = if what == What::Put {
                OperationKind::Put
            } else {
                OperationKind::Delete
            };
            self.plain.push(kind, &full_key, value, map.store.core().hash_seed);
        } else {
            self.mixed().push(&map.info, what, key, value);
        }
        Ok(())
    }

    fn mixed(&mut self) -> &mut Mixed {
        let plain = &mut self.plain;
        self.mixed.get_or_insert_with(|| {
            let mixed = Mixed::of(plain);
            plain.clear();
            mixed
        })
    }

    pub(crate) fn commit(self, store: &Store) -> Result<Commit> {
        let durability = self.durability_in(store);
        let commit = self.make_visible(store, durability, "store.write")?;
        store.core().wait_as_asked(commit.number, durability)?;
        Ok(commit)
    }

    pub(crate) fn commit_async(self, store: &Store) -> Result<CommitFuture> {
        let durability = self.durability_in(store);
        let commit = self.make_visible(store, durability, "store.write_async")?;
        Ok(CommitFuture::new(store.handle(), commit, durability))
    }

    fn durability_in(&self, store: &Store) -> Durability {
        self.durability.unwrap_or(store.core().settings.durability)
    }

    /// Makes the writes visible, without waiting for a sync.
    fn make_visible(self, store: &Store, durability: Durability, call: &'static str) -> Result<Commit> {
        if let Some(mine) = &self.store
            && !mine.is(store)
        {
            let maps = self.mixed.as_ref().map_or(&self.plain.maps, |mixed| &mixed.maps);
            let name = maps[0].name();
            return Err(Reason::ForeignMap { name }.into());
        }
        let core = store.core();
        core.writable()?;
        if self.is_empty() {
            return Ok(Commit {
                number: core.control().visible.0.load(std::sync::atomic::Ordering::Acquire),
                assigned: Vec::new(),
            });
        }
        core.refuse_beside(call, || {
            let maps = self.mixed.as_ref().map_or(&self.plain.maps, |mixed| &mixed.maps);
            maps[0].name()
        })?;
        let (mut draft, mut extents) = (self.plain, Vec::new());
        let drafted = match &self.mixed {
            None => Ok(()),
            Some(mixed) => mixed.draft_all(core, &mut draft, durability, &mut extents),
        };
        let appended = drafted.and_then(|()| core.append(&mut draft, None, NOT_EXCLUSIVE));
        if appended.as_ref().is_err_and(|error| !error.is_of_a_made_commit()) {
            core.give_back_values(&extents);
        }
        let commit = appended.map(|number| {
            let resolve = |(ticket, stamp): (&Ticket, _)| ticket.resolve(stamp);
            self.tickets.iter().zip(draft.stamps()).for_each(resolve);
            Commit {
                number,
                assigned: draft.assigned().to_vec(),
            }
        });
        keep_draft(draft);
        commit
    }
}

impl Mixed {
    /// The writes of a draft of puts, deletions and short appends to sequences.
    fn of(plain: &Draft) -> Mixed {
        let mut mixed = Mixed {
            maps: plain.maps.clone(),
            ..Mixed::default()
        };
        let mut heads = plain.heads.iter().peekable();
        let mut counters = plain.sequences.iter().peekable();
        for operation in 0..plain.planned.len() {
            let (id, key) = split(plain.full_key(operation));
            let map = plain.maps.iter().find(|map| map.id == id);
            let known = || map.expect("a draft knows the maps of its operations");
            if counters
                .next_if(|counter| counter.counter_operation == operation)
                .is_some()
            {
                continue;
            }
            let (kind, value) = plain.operation(operation);
            if let Some(head) = heads.next_if(|head| head.operation == operation) {
                mixed.push(known(), What::AppendTo, &[], value);
                mixed.numbered.push(Numbered {
                    place: plain.sequences[head.sequence].place.clone(),
                    body: None,
                });
            } else if kind == OperationKind::Put {
                mixed.push(known(), What::Put, key, value);
            } else {
                mixed.push(known(), What::Delete, key, &[]);
            }
        }
        mixed
    }

    fn push_numbered(&mut self, sequence: &Sequence, item: &Item<'_>) {
        let bodies = &sequence.bodies().info;
        self.place_of(bodies);
        self.push(&sequence.heads().info, What::AppendTo, &[], item.head);
        let body = item.body.map(|body| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(body);
            (bodies.id, start..self.bytes.len())
        });
        self.numbered.push(Numbered {
            place: sequence.place().clone(),
            body,
        });
    }

    /// Where the map is among those that the writes need.
    fn place_of(&mut self, map: &Arc<MapInfo>) -> usize {
        // The map of the write before, nearly always.
        let known = self.maps.iter().rposition(|known| Arc::ptr_eq(known, map));
        known.unwrap_or_else(|| {
            self.maps.push(map.clone());
            self.maps.len() - 1
        })
    }

    fn push(&mut self, map: &Arc<MapInfo>, what: What, key: &[u8], value: &[u8]) {
        let place = self.place_of(map);
        self.writes.push(Write {
            start: self.bytes.len(),
            value_length: value.len() as u32,
            key_length: key.len() as u16,
            what,
            map: place as u32,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    fn map(&self, write: &Write) -> &Arc<MapInfo> {
        &self.maps[write.map as usize]
    }

    fn key(&self, write: &Write) -> &[u8] {
        &self.bytes[write.start..][..write.key_length as usize]
    }

    fn value(&self, write: &Write) -> &[u8] {
        &self.bytes[write.start + write.key_length as usize..][..write.value_length as usize]
    }

    /// Puts the draft together, with long values written to where it refers to.
    fn draft_all(
        &self,
        core: &Core,
        draft: &mut Draft,
        durability: Durability,
        extents: &mut Vec<Extent>,
    ) -> Result<()> {
        let values = core.value_durability(durability);
        draft.values_may_tear(values == Durability::Written);
        self.draft(core, draft, extents)?;
        match extents.is_empty() {
            true => Ok(()),
            false => core.ready_values(pages_of(extents), values),
        }
    }

    /// Range deletes come first in a record; so writes that a later range delete covers are left out.
    fn draft(&self, core: &Core, draft: &mut Draft, extents: &mut Vec<Extent>) -> Result<()> {
        self.maps.iter().for_each(|map| draft.needs(map));
        let deleted: Vec<(usize, FullRange)> = self.deleted_ranges().collect();
        for (_, range) in deleted.iter().filter(|(_, range)| !range.is_empty()) {
            draft.push_note(OperationKind::DeleteRange, &range.low, &range.high);
        }
        let covered = |key: &[u8], places: Range<usize>| {
            let covers = |(place, range): &(usize, FullRange)| places.contains(place) && range.contains(key);
            deleted.iter().any(covers)
        };
        // Where the draft has the newest write of each key, for additions to keys that the batch also writes.
        let has_additions = self.writes.iter().any(|write| write.what == What::Add);
        let mut newest: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut numbered = self.numbered.iter();
        for (index, write) in self.writes.iter().enumerate() {
            if write.what == What::DeleteRange {
                continue;
            }
            let (map, key, value) = (self.map(write).id, self.key(write), self.value(write));
            if write.what == What::Append {
                let (kind, value) = stored(core, value, extents)?;
                draft.push_append(map, key, kind, &value)?;
                continue;
            }
            if write.what == What::AppendTo {
                let Numbered { place, body } = numbered.next().expect("each append to a sequence has one");
                let body = body.as_ref().map(|(map, range)| (*map, &self.bytes[range.clone()]));
                draft_item(core, draft, place, (map, value), body, extents)?;
                continue;
            }
            let full_key = FullKey::new(map, key)?;
            if covered(&full_key, index + 1..self.writes.len()) {
                continue;
            }
            let operation = match write.what {
                What::Put => {
                    let (kind, value) = stored(core, value, extents)?;
                    draft.push(kind, &full_key, &value, core.hash_seed)
                }
                What::Add => {
                    let base = match newest.get(&full_key[..]) {
                        Some(&earlier) => AddTo::Operation(earlier),
                        None if covered(&full_key, 0..index) => AddTo::Nothing,
                        None => AddTo::Newest,
                    };
                    let delta = i64::from_le_bytes(value.try_into().expect("`add` kept eight bytes"));
                    draft.push_add(&full_key, delta, base, core.hash_seed)
                }
                _ => draft.push(OperationKind::Delete, &full_key, &[], core.hash_seed),
            };
            if has_additions {
                newest.insert(full_key.to_vec(), operation);
            }
        }
        Ok(())
    }

    fn deleted_ranges(&self) -> impl Iterator<Item = (usize, FullRange)> {
        let ranges = self.writes.iter().enumerate();
        ranges
            .filter(|(_, write)| write.what == What::DeleteRange)
            .map(|(place, write)| (place, FullRange::between(self.key(write), self.value(write))))
    }
}

/// Pages that extents take together.
pub(crate) fn pages_of(extents: &[Extent]) -> u32 {
    extents
        .iter()
        .fold(0, |pages, extent| pages.saturating_add(extent.pages()))
}

/// How a value goes into a record: itself, or a reference to pages that it was written to.
pub(crate) fn stored<'v>(
    core: &Core,
    value: &'v [u8],
    extents: &mut Vec<Extent>,
) -> Result<(OperationKind, std::borrow::Cow<'v, [u8]>)> {
    if value.len() <= LOGGED_VALUE_BYTES_MAX {
        return Ok((OperationKind::Put, value.into()));
    }
    let extent = core.write_value(value)?;
    extents.push(extent);
    Ok((OperationKind::PutExtent, extent.encode().to_vec().into()))
}
