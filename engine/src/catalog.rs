//! The names of maps: pairs in map 0, `name -> id`, and the handles of this process, so that a dropped map is noticed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Reason, Result};
use crate::limits::MAP_NAME_BYTES_MAX;

/// What the handles of one map share.
#[derive(Debug)]
pub(crate) struct MapInfo {
    pub(crate) id: u32,
    pub(crate) name: Mutex<String>,
    state: AtomicU8,
}

/// The map exists.
const ALIVE: u8 = 0;
/// The map was dropped, or the transaction that was to make it did not commit.
const DROPPED: u8 = 1;
/// The transaction that makes the map has not committed: only that transaction may use it.
const PENDING: u8 = 2;

impl MapInfo {
    /// Refuses to work with a map that was dropped, or that does not exist yet.
    #[inline]
    pub(crate) fn alive(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            ALIVE => Ok(()),
            PENDING => Err(Reason::UnknownMap { name: self.name() }.into()),
            _ => Err(Reason::MapDropped { name: self.name() }.into()),
        }
    }

    pub(crate) fn name(&self) -> String {
        self.name.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

/// The maps that this process has handles of.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    known: Mutex<HashMap<u32, Arc<MapInfo>>>,
    /// What `Control::catalog` was when it was last made sure that this process knows of all changes.
    seen: AtomicU64,
}

/// No such number of changes: somebody is to look.
const NOT_SEEN: u64 = u64::MAX;
/// The number of changes before a view that nobody knows the age of.
pub(crate) const LONG_AGO: u64 = u64::MAX;

impl Catalog {
    /// The shared part of all handles of a map.
    pub(crate) fn info(&self, id: u32, name: &str) -> Arc<MapInfo> {
        self.known_or(id, name, ALIVE)
    }

    /// The same for a map that a transaction is making.
    pub(crate) fn pending(&self, id: u32, name: &str) -> Arc<MapInfo> {
        self.known_or(id, name, PENDING)
    }

    fn known_or(&self, id: u32, name: &str, state: u8) -> Arc<MapInfo> {
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        let fresh = || {
            Arc::new(MapInfo {
                id,
                name: Mutex::new(name.to_string()),
                state: AtomicU8::new(state),
            })
        };
        known.entry(id).or_insert_with(fresh).clone()
    }

    /// Lets somebody look whether a map, whose handle was made from what may be an old view, is still there.
    pub(crate) fn doubt(&self) {
        self.seen.store(NOT_SEEN, Ordering::Release);
    }

    /// Whether everything is known up to this number of changes.
    #[inline]
    pub(crate) fn has_seen(&self, changes: u64) -> bool {
        self.seen.load(Ordering::Acquire) == changes
    }

    /// Learns what is left of the maps, by id, and what they are called, after so many changes. Under the commit lock.
    pub(crate) fn learn(&self, names: &HashMap<u32, String>, changes: u64) {
        let known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        for info in known
            .values()
            .filter(|info| info.state.load(Ordering::Relaxed) == ALIVE)
        {
            match names.get(&info.id) {
                Some(name) => info.name.lock().unwrap_or_else(|e| e.into_inner()).clone_from(name),
                None => info.state.store(DROPPED, Ordering::Release),
            }
        }
        self.seen.store(changes, Ordering::Release);
    }

    /// Notes a change that this process makes itself, and knows of. Under the commit lock, when all before it are known.
    pub(crate) fn has_changed(&self, changes: u64) {
        // Not what somebody doubts.
        let _ = self
            .seen
            .compare_exchange(changes - 1, changes, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The transaction that made a map has committed.
    pub(crate) fn created(&self, id: u32) {
        if let Some(info) = self.known.lock().unwrap_or_else(|e| e.into_inner()).get(&id) {
            info.state.store(ALIVE, Ordering::Release);
        }
    }

    /// Marks a map as dropped for all handles, also for those that are still made from what an older snapshot shows:
    /// so it stays known.
    pub(crate) fn dropped(&self, id: u32) {
        self.known_or(id, "", DROPPED).state.store(DROPPED, Ordering::Release);
    }

    /// Marks a map as dropped whose transaction did not commit: nobody else can learn its id.
    pub(crate) fn discarded(&self, id: u32) {
        if let Some(info) = self.known.lock().unwrap_or_else(|e| e.into_inner()).remove(&id) {
            info.state.store(DROPPED, Ordering::Release);
        }
    }

    /// Gives a map its new name in messages.
    pub(crate) fn renamed(&self, id: u32, name: &str) {
        if let Some(info) = self.known.lock().unwrap_or_else(|e| e.into_inner()).get(&id) {
            *info.name.lock().unwrap_or_else(|e| e.into_inner()) = name.to_string();
        }
    }

    /// The name of a map, for messages.
    pub(crate) fn name_of(&self, id: u32) -> String {
        let known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        match id {
            crate::full_key::CATALOG => "(names of maps)".into(),
            crate::full_key::COUNTERS => "(numbers of appends)".into(),
            _ => known.get(&id).map_or_else(|| format!("#{id}"), |info| info.name()),
        }
    }
}

/// Names of maps that layers above the engine keep for themselves begin with this. No user can give such a name: it has a
/// control character.
pub(crate) const RESERVED: char = '\u{1}';

/// The name of a map that a layer above the engine keeps for itself.
pub(crate) fn reserved(name: &str) -> String {
    format!("{RESERVED}{name}")
}

/// Whether a map belongs to a layer above the engine.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// Refuses what cannot name a map.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAP_NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Reason::InvalidMapName {
            name: name.to_string(),
            max: MAP_NAME_BYTES_MAX,
        }
        .into());
    }
    Ok(())
}
