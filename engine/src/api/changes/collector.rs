//! Putting together what one commit changed, with what each key held before.

use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, HashMap};

use crate::btree::{Cursor, Root};
use crate::checksum::key_hash;
use crate::core::Core;
use crate::core::catalog::map_id;
use crate::error::{Reason, Result};
use crate::key::full_key::{CATALOG, FIRST_USER_MAP, FullRange, split};
use crate::limits::MAP_ID_BYTES;
use crate::log::{Operation, OperationKind, Operations, decode_root};
use crate::read::deleted::Deleted;
use crate::read::generation_view::GenerationView;
use crate::read::scan::Scan;
use crate::read::value::{Entry, Source};
use crate::read::view::{entry_at, in_tree, recent};
use crate::read::write_set::OwnWrites;
use crate::region::Version;

use super::reader::Latest;

/// What a stream delivers.
#[derive(Debug)]
pub(super) enum Filter {
    /// All that the store keeps: maps, their names and counters.
    Everything,
    /// All maps.
    AllMaps,
    /// These maps, ascending.
    Maps(Vec<u32>),
}

impl Filter {
    /// Whether changes of a map are looked at: those of the catalog always, because it has the names.
    pub(super) fn wants(&self, map: u32) -> bool {
        match self {
            Filter::Everything => true,
            Filter::AllMaps => map == CATALOG || map >= FIRST_USER_MAP,
            Filter::Maps(maps) => map == CATALOG || maps.binary_search(&map).is_ok(),
        }
    }

    /// The watched keys as ranges of full keys.
    fn ranges(&self) -> Vec<FullRange> {
        let catalog = FullRange::map(CATALOG);
        match self {
            Filter::Everything => vec![FullRange::from_map(CATALOG)],
            Filter::AllMaps => vec![catalog, FullRange::from_map(FIRST_USER_MAP)],
            Filter::Maps(maps) => {
                let maps = maps.iter().map(|&map| FullRange::map(map));
                std::iter::once(catalog).chain(maps).collect()
            }
        }
    }
}

/// What a commit did to a key.
#[doc(hidden)]
#[derive(Debug)]
pub struct StoredChange {
    /// What it held before; `None`: nothing.
    pub old: Option<Vec<u8>>,
    /// What it holds since; `None`: it was removed.
    pub new: Option<Vec<u8>>,
}

/// By full key.
pub type Pairs = BTreeMap<Vec<u8>, StoredChange>;

/// The store as of a commit: a base and the generations above it.
pub(super) struct Past<'g, 'p, S> {
    pub(super) source: S,
    pub(super) root: Root,
    pub(super) generations: &'g [GenerationView<'p>],
    pub(super) deleted: Deleted,
    pub(super) commit: u64,
    pub(super) hash_seed: u64,
}

impl<'a, S: Source<'a>> Past<'_, 'a, S> {
    fn resolve(&self, entry: Entry<'a>) -> Result<Option<Vec<u8>>> {
        Ok(entry.resolve(self.source)?.map(|value| value.to_vec()))
    }

    fn get(&self, full_key: &[u8]) -> Result<Option<Vec<u8>>> {
        let hash = key_hash(self.hash_seed, full_key);
        let found = recent(
            self.source,
            self.generations,
            &self.deleted,
            full_key,
            hash,
            self.commit,
        )?;
        if let Some((_, entry)) = found {
            return self.resolve(entry);
        }
        match in_tree(self.source, self.root, full_key, hash)? {
            Some(entry) => self.resolve(entry),
            None => Ok(None),
        }
    }

    /// Visits the pairs of a range.
    fn each(&self, range: FullRange, mut visit: impl FnMut(&[u8], Vec<u8>)) -> Result<()> {
        let (source, deleted) = (self.source, &self.deleted);
        let mut scan = Scan::over(
            source,
            self.root,
            self.generations,
            deleted,
            self.commit,
            OwnWrites::default(),
            range,
        );
        while let Some(entry) = scan.next()? {
            if let Some(value) = self.resolve(entry)? {
                visit(scan.key(), value);
            }
        }
        Ok(())
    }
}

/// Whether a record restores a checkpoint: that comes right after the deletion of everything.
fn restores(body: &[u8]) -> Result<bool> {
    for operation in Operations::of(body).take(2) {
        if operation?.1.kind == OperationKind::Restore {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Puts together what one record did: range deletes first, then its run, then its single operations.
pub(super) struct Collector<'g, 'p, S> {
    pub(super) past: Past<'g, 'p, S>,
    /// Position of the record's body in the newest generation's log.
    pub(super) start: u32,
    /// The generation that has the record.
    pub(super) generation: Option<GenerationView<'static>>,
    pub(super) latest: &'g mut Latest,
    pub(super) filter: &'g Filter,
    pub(super) pairs: Pairs,
}

impl<'a, S: Source<'a>> Collector<'_, 'a, S> {
    pub(super) fn collect(mut self, body: &'a [u8]) -> Result<Pairs> {
        if restores(body)? {
            // All of the store may have changed.
            let asked = self.past.commit;
            let oldest = asked + 1;
            return Err(Reason::NotRetained { asked, oldest }.into());
        }
        for operation in Operations::of(body) {
            let (position, operation) = operation?;
            match operation.kind {
                OperationKind::DeleteRange => {
                    self.latest.clear();
                    self.collect_deleted(operation.full_key, operation.value)?;
                }
                OperationKind::Run => {
                    self.latest.clear();
                    self.collect_run(decode_root(operation.value))?;
                }
                OperationKind::Restore => unreachable!("it was refused before"),
                OperationKind::Checkpoint => {}
                OperationKind::Put | OperationKind::PutExtent | OperationKind::Delete => {
                    self.collect_single(operation, self.start + position as u32)?
                }
            }
        }
        self.pairs.retain(|_, pair| pair.old.is_some() || pair.new.is_some());
        Ok(self.pairs)
    }

    fn collect_single(&mut self, operation: Operation<'a>, position: u32) -> Result<()> {
        let (map, _) = split(operation.full_key);
        if !self.filter.wants(map) {
            return Ok(());
        }
        self.set(operation.full_key, Entry::stored(operation.stored()))?;
        if let Some(generation) = self.generation {
            self.latest.note(operation.full_key, generation, position);
        }
        Ok(())
    }

    fn collect_deleted(&mut self, low: &[u8], high: &[u8]) -> Result<()> {
        for wanted in self.filter.ranges() {
            let range = FullRange::between(low.max(&wanted.low), high.min(&wanted.high));
            let pairs = &mut self.pairs;
            self.past.each(range, |key, value| {
                let (old, new) = (Some(value), None);
                pairs.insert(key.to_vec(), StoredChange { old, new });
            })?;
        }
        Ok(())
    }

    fn collect_run(&mut self, root: Root) -> Result<()> {
        for wanted in self.filter.ranges() {
            let mut cursor = Cursor::new(self.past.source, root);
            cursor.seek(&wanted.low)?;
            while cursor.is_valid() && cursor.key() < wanted.high.as_slice() {
                let (page, location) = cursor.value();
                let entry = entry_at::<S>(page, location);
                self.set(cursor.key(), entry)?;
                cursor.next()?;
            }
        }
        Ok(())
    }

    fn set(&mut self, full_key: &[u8], entry: Entry<'a>) -> Result<()> {
        let new = self.past.resolve(entry)?;
        match self.pairs.entry(full_key.to_vec()) {
            Place::Occupied(mut place) => place.get_mut().new = new,
            Place::Vacant(place) => {
                let old = match self.latest.entry(full_key)? {
                    Some(entry) => self.past.resolve(entry)?,
                    None => self.past.get(full_key)?,
                };
                place.insert(StoredChange { old, new });
            }
        }
        Ok(())
    }
}

/// The names of all maps after a commit.
pub(super) fn names_at(core: &Core, version: &Version, commit: u64) -> Result<HashMap<u32, String>> {
    let _retained = core.keep_generations()?;
    // SAFETY: they are kept until the end of this function.
    let generations = unsafe { core.generations_between(version.base_commit, u32::MAX) }?;
    let mut names = HashMap::new();
    let mut damage = Ok(());
    let past = Past {
        source: core.source(),
        root: version.root,
        generations: &generations,
        deleted: Deleted::all(&generations, version.base_commit, commit)?,
        commit,
        hash_seed: core.hash_seed,
    };
    past.each(FullRange::map(CATALOG), |full_key, id| match map_id(&id) {
        Ok(id) => drop(names.insert(id, name_of(full_key))),
        Err(error) => damage = Err(error),
    })?;
    damage.map(|()| names)
}

/// The name in a full key of the catalog.
pub(super) fn name_of(full_key: &[u8]) -> String {
    String::from_utf8_lossy(&full_key[MAP_ID_BYTES..]).into_owned()
}
