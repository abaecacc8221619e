//! Saving what a damaged store still holds: a walk in key order that passes over pages and values which cannot be read,
//! and remembers each of them.
//!
//! It reads by system calls, never through the mapping, so that an error of the device is an error and not a signal.
//! A page that is passed over takes everything under it along; commits that are still in the log are shown all the
//! same. Of a transaction larger than memory, whose pages in the data file are damaged before they were folded, what
//! it replaced is shown instead.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::api::map::{Map, counters_of};
use crate::api::snapshot::Snapshot;
use crate::api::store::Store;
use crate::btree::{Extent, PageSource};
use crate::commit::sequence_state::SequenceState;
use crate::core::catalog::LONG_AGO;
use crate::core::catalog::map_id;
use crate::datafile::pages::VerifiedPages;
use crate::error::{Error, Kind, Reason, Result, printable};
use crate::key::full_key::{CATALOG, FIRST_USER_MAP, FullRange, split};
use crate::limits::MAP_ID_BYTES;
use crate::map_name::{RESERVED, is_reserved};
use crate::read::scan::Scan;
use crate::read::value::{Source, Value};

/// What could not be read, one line each.
#[derive(Debug, Default)]
pub struct Lost {
    found: Mutex<BTreeSet<String>>,
}

impl Lost {
    /// Nothing, so far.
    pub fn new() -> Lost {
        Lost::default()
    }

    /// What could not be read so far, sorted, each once.
    pub fn list(&self) -> Vec<String> {
        let found = self.found.lock().unwrap_or_else(|e| e.into_inner());
        found.iter().cloned().collect()
    }

    /// Notes what else could not be read, or made sense of.
    pub fn note(&self, line: String) {
        self.found.lock().unwrap_or_else(|e| e.into_inner()).insert(line);
    }
}

/// What a map is called whose name is lost.
fn nameless(id: u32) -> String {
    format!("map {id}, whose name is lost")
}

fn cannot_be_read(error: &Error) -> bool {
    error.kind() == Kind::Damaged || matches!(error.reason(), Reason::Io { .. })
}

/// Pages of which those that cannot be read are passed over.
#[derive(Clone, Copy)]
struct Salvaged<'a> {
    pages: VerifiedPages<'a>,
    lost: &'a Lost,
}

impl PageSource for Salvaged<'_> {
    type Page = Arc<[u8]>;

    fn page(self, number: u32, bytes: usize, checksum: impl FnOnce() -> u32) -> Result<Arc<[u8]>> {
        self.pages.page(number, bytes, checksum)
    }

    fn passes_over(self, error: &Error) -> bool {
        let passes = cannot_be_read(error);
        if passes {
            self.lost.note(error.fact());
        }
        passes
    }
}

impl<'a> Source<'a> for Salvaged<'a> {
    fn value(page: &Arc<[u8]>, range: Range<usize>) -> Value<'a> {
        Value::owned(&page[range])
    }

    fn extent(self, extent: Extent) -> Result<Value<'a>> {
        self.pages.extent(extent).map(Value::owned)
    }
}

/// A walk over the pairs of a map that can be read; see [`Snapshot::salvage`].
pub struct Salvage<'a> {
    scan: Scan<'a, Salvaged<'a>>,
    /// The map that its range begins in.
    map: u32,
    source: Salvaged<'a>,
}

impl std::fmt::Debug for Salvage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Salvage")
            .field("lost", &self.source.lost)
            .finish_non_exhaustive()
    }
}

impl<'a> Salvage<'a> {
    fn over(snapshot: &'a Snapshot, range: FullRange, lost: &'a Lost) -> Salvage<'a> {
        let pages = snapshot.pinned().core().pages.verified();
        let source = Salvaged { pages, lost };
        Salvage {
            map: split(&range.low).0,
            scan: Scan::new(source, snapshot.pinned().view(), &[], range),
            source,
        }
    }

    /// Goes on with the first key that is not below this one.
    #[doc(hidden)]
    pub fn seek(&mut self, key: &[u8]) {
        let full_key = [&self.map.to_be_bytes()[..], key].concat();
        self.scan.seek(&full_key);
    }

    /// The next pair that can be read.
    ///
    /// # Errors
    /// None that damage causes.
    #[expect(
        clippy::should_implement_trait,
        reason = "the key is borrowed from the walk until the next step"
    )]
    pub fn next(&mut self) -> Result<Option<(&[u8], Value<'a>)>> {
        let value = self.next_value()?;
        Ok(value.map(|value| (&self.scan.key()[MAP_ID_BYTES..], value)))
    }

    fn next_value(&mut self) -> Result<Option<Value<'a>>> {
        while let Some(entry) = self.scan.next()? {
            match entry.resolve(self.source) {
                Ok(Some(value)) => return Ok(Some(value)),
                Ok(None) => {}
                Err(error) if cannot_be_read(&error) => {
                    let key = printable(split(self.scan.key()).1);
                    self.source
                        .lost
                        .note(format!("the value of key {key}: {}", error.fact()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Snapshot {
    /// Walks over what can be read of a map in a damaged store, in key order, from the device. What cannot be read is
    /// noted in `lost` and passed over. In a sound store these are all pairs.
    ///
    /// # Errors
    /// [`Reason::SnapshotEnded`], [`Reason::ForeignMap`].
    pub fn salvage<'a>(&'a self, map: &Map, lost: &'a Lost) -> Result<Salvage<'a>> {
        self.pinned().alive()?;
        let range = FullRange::map(map.id_in(self.pinned().core())?);
        Ok(Salvage::over(self, range, lost))
    }

    /// Reads what is left of the pairs of a map whose keys begin with a prefix.
    #[doc(hidden)]
    pub fn salvage_prefix<'a>(&'a self, map: &Map, prefix: &[u8], lost: &'a Lost) -> Result<Salvage<'a>> {
        self.pinned().alive()?;
        let range = FullRange::prefix(map.id_in(self.pinned().core())?, prefix)?;
        Ok(Salvage::over(self, range, lost))
    }

    /// How far the sequences of a map have come, by prefix, as far as that can be read.
    #[doc(hidden)]
    pub fn salvage_sequences(&self, heads: &Map, lost: &Lost) -> Result<BTreeMap<Vec<u8>, SequenceState>> {
        self.pinned().alive()?;
        let range = counters_of(heads.id_in(self.pinned().core())?)?;
        let mut states = BTreeMap::new();
        let mut counters = Salvage::over(self, range, lost);
        while let Some((counter, state)) = counters.next()? {
            let prefix = &counter[MAP_ID_BYTES..];
            match SequenceState::decode(&state) {
                Ok(state) => drop(states.insert(prefix.to_vec(), state)),
                Err(error) => lost.note(format!("the counter of {}: {}", printable(prefix), error.fact())),
            }
        }
        Ok(states)
    }

    /// The maps of a damaged store, as far as they can be found, for [`Snapshot::salvage`]. One whose name is lost gets
    /// a name with its number. What opening with [`crate::Options::salvage`] passed over is noted too.
    ///
    /// # Errors
    /// [`Reason::SnapshotEnded`].
    pub fn salvage_maps(&self, lost: &Lost) -> Result<Vec<Map>> {
        let mut maps = self.found_maps(lost)?;
        // What a layer above keeps in maps of its own means nothing without that layer.
        maps.retain(|map| !is_reserved(map.name()));
        Ok(maps)
    }

    /// The maps that layers above keep for themselves, by the names that these know, as far as the names can be read.
    #[doc(hidden)]
    pub fn salvage_reserved_maps(&self, lost: &Lost) -> Result<BTreeMap<String, Map>> {
        self.pinned().alive()?;
        let store = Store::behind(&self.pinned().handle);
        let names = self.readable_names(lost)?.into_iter();
        let named = names.filter_map(|(id, name)| {
            let known = name.strip_prefix(RESERVED)?.to_string();
            Some((known, Map::new(&store, id, &name, LONG_AGO)))
        });
        Ok(named.collect())
    }

    /// A map whose name is lost, by its number, whether anything is in it or not.
    #[doc(hidden)]
    pub fn salvage_nameless_map(&self, number: u32) -> Map {
        Map::new(
            &Store::behind(&self.pinned().handle),
            number,
            &nameless(number),
            LONG_AGO,
        )
    }

    fn found_maps(&self, lost: &Lost) -> Result<Vec<Map>> {
        self.pinned().alive()?;
        let passed_over = &self.pinned().core().passed_over;
        let passed_over = passed_over.lock().unwrap_or_else(|e| e.into_inner());
        passed_over.iter().for_each(|what| lost.note(what.clone()));
        drop(passed_over);
        let mut names = self.readable_names(lost)?;
        let mut rest = Salvage::over(self, FullRange::from_map(FIRST_USER_MAP), lost);
        while rest.scan.next()?.is_some() {
            let (id, _) = split(rest.scan.key());
            names.entry(id).or_insert_with(|| {
                lost.note(format!("the name of map {id}"));
                nameless(id)
            });
            rest.scan.seek(&FullRange::map(id).high);
        }
        let store = Store::behind(&self.pinned().handle);
        // Other processes may have changed the maps since the snapshot was taken.
        let core = store.core();
        let changes = if core.is_shared() {
            LONG_AGO
        } else {
            core.newest_catalog_change()
        };
        let maps = names.iter().map(|(&id, name)| Map::new(&store, id, name, changes));
        Ok(maps.collect())
    }

    fn readable_names(&self, lost: &Lost) -> Result<BTreeMap<u32, String>> {
        let mut names = BTreeMap::new();
        let mut catalog = Salvage::over(self, FullRange::map(CATALOG), lost);
        while let Some((name, id)) = catalog.next()? {
            names.insert(map_id(&id)?, String::from_utf8_lossy(name).into_owned());
        }
        Ok(names)
    }
}
