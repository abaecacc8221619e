//! The names of maps: pairs in map 0, `name -> id`, and the handles of this process, so that a dropped map is noticed.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Reason, Result};
use crate::limits::MAP_NAME_BYTES_MAX;

/// What the handles of one map share.
#[derive(Debug)]
pub(crate) struct MapInfo {
    pub(crate) id: u32,
    pub(crate) name: Mutex<String>,
    state: AtomicU8,
    /// A commit that shows the map: a catalogue that is older says nothing about it.
    since: AtomicU64,
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

    pub(crate) fn has_name(&self, name: &str) -> bool {
        *self.name.lock().unwrap_or_else(|e| e.into_inner()) == name
    }

    pub(crate) fn name(&self) -> String {
        self.name.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

/// The maps that this process has handles of.
///
/// Changes of the catalogue are numbered by the commits that make them ([`crate::region::Control::catalog`]). A number
/// is announced before its commit is visible, so a snapshot shows change `n` if and only if its commit is `n` or later.
///
/// An entry goes when its map is dropped. A handle that is made later, from an old snapshot, gets another entry, and
/// the newest catalogue says that the map is dropped: its id is not there, and ids are never used again.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    known: Mutex<HashMap<u32, Arc<MapInfo>>>,
    /// The newest change up to which this process knows of all.
    seen: AtomicU64,
    /// The change that was announced and not visible when the catalogue was last read; all before it are known.
    looked: AtomicU64,
    /// Names of maps that were dropped lately, for messages.
    gone: Mutex<VecDeque<(u32, String)>>,
}

/// No such change: the catalogue must be read.
const NOT_SEEN: u64 = u64::MAX;
/// The commit of a view of unknown age.
pub(crate) const LONG_AGO: u64 = 0;
/// The commit of a map that is not made yet.
const NOT_YET: u64 = u64::MAX;
/// Names of dropped maps that are kept.
const GONE_MAX: usize = 64;

impl Catalog {
    /// The shared part of all handles of a map that commit `since` shows.
    pub(crate) fn info(&self, id: u32, name: &str, since: u64) -> Arc<MapInfo> {
        self.known_or(id, name, ALIVE, since)
    }

    /// The entry of a map that a transaction is making.
    pub(crate) fn pending(&self, id: u32, name: &str) -> Arc<MapInfo> {
        self.known_or(id, name, PENDING, NOT_YET)
    }

    fn known_or(&self, id: u32, name: &str, state: u8, since: u64) -> Arc<MapInfo> {
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        let fresh = || {
            Arc::new(MapInfo {
                id,
                name: Mutex::new(name.to_string()),
                state: AtomicU8::new(state),
                since: AtomicU64::new(since),
            })
        };
        known.entry(id).or_insert_with(fresh).clone()
    }

    /// Lets the next user look whether a map, whose handle was made from an old view, is still there.
    pub(crate) fn doubt(&self) {
        // Under the lock: a catalogue that is being learned now may be too old for the handle.
        let _known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        self.looked.store(NOT_SEEN, Ordering::Release);
        self.seen.store(NOT_SEEN, Ordering::Release);
    }

    /// Whether everything is known up to this change.
    #[inline]
    pub(crate) fn has_seen(&self, change: u64) -> bool {
        self.seen.load(Ordering::Acquire) == change
    }

    /// Whether everything is known before this change, which was not visible then.
    #[inline]
    pub(crate) fn has_looked(&self, change: u64) -> bool {
        self.looked.load(Ordering::Acquire) == change
    }

    /// Learns from the catalogue at `commit` which maps there are, by id, and what they are called. `change` was the
    /// newest change before that commit was chosen. No lock is needed: others may learn, and change the catalogue,
    /// meanwhile.
    pub(crate) fn learn(&self, names: &HashMap<u32, String>, commit: u64, change: u64) {
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        let seen = self.seen.load(Ordering::Acquire);
        if seen != NOT_SEEN && seen >= change {
            // Another thread read a catalogue that is as new, or made the change itself.
            return;
        }
        known.retain(|_, info| {
            if info.state.load(Ordering::Relaxed) != ALIVE || info.since.load(Ordering::Relaxed) > commit {
                return true;
            }
            match names.get(&info.id) {
                Some(name) => info.name.lock().unwrap_or_else(|e| e.into_inner()).clone_from(name),
                None => self.is_gone(info),
            }
            info.state.load(Ordering::Relaxed) == ALIVE
        });
        if commit >= change {
            self.seen.store(change, Ordering::Release);
        } else {
            self.looked.store(change, Ordering::Release);
        }
    }

    fn is_gone(&self, info: &MapInfo) {
        info.state.store(DROPPED, Ordering::Release);
        let mut gone = self.gone.lock().unwrap_or_else(|e| e.into_inner());
        if gone.len() == GONE_MAX {
            gone.pop_front();
        }
        gone.push_back((info.id, info.name()));
    }

    /// Notes a change that this process makes itself, and knows of. `before` was the newest one before it. Under the
    /// commit lock, before the change is visible.
    pub(crate) fn has_changed(&self, before: u64, change: u64) {
        // Not what is in doubt.
        let _ = self
            .seen
            .compare_exchange(before, change, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The transaction that made a map commits, as `commit`.
    pub(crate) fn created(&self, id: u32, commit: u64) {
        if let Some(info) = self.known.lock().unwrap_or_else(|e| e.into_inner()).get(&id) {
            info.since.store(commit, Ordering::Relaxed);
            info.state.store(ALIVE, Ordering::Release);
        }
    }

    /// Marks a map as dropped for all handles. Those that are still made from what an older snapshot shows are in
    /// doubt, see [`Catalog::doubt`].
    pub(crate) fn dropped(&self, id: u32) {
        if let Some(info) = self.known.lock().unwrap_or_else(|e| e.into_inner()).remove(&id) {
            self.is_gone(&info);
        }
    }

    /// How many maps are known.
    #[cfg(test)]
    pub(crate) fn known_count(&self) -> usize {
        self.known.lock().unwrap_or_else(|e| e.into_inner()).len()
    }

    /// Marks a map as dropped whose transaction did not commit: no other transaction can learn its id.
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
        match id {
            crate::key::full_key::CATALOG => return "(names of maps)".into(),
            crate::key::full_key::COUNTERS => return "(numbers of appends)".into(),
            _ => {}
        }
        let known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(info) = known.get(&id) {
            return info.name();
        }
        let gone = self.gone.lock().unwrap_or_else(|e| e.into_inner());
        let name = gone.iter().rev().find(|(gone, _)| *gone == id);
        name.map_or_else(|| format!("#{id}"), |(_, name)| name.clone())
    }
}

/// The id stored under a map's name.
pub(crate) fn map_id(bytes: &[u8]) -> Result<u32> {
    let bytes = bytes
        .try_into()
        .map_err(|_| Error::damaged("a map's id has the wrong length"))?;
    Ok(u32::from_le_bytes(bytes))
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

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Durability, Maintenance, Options, Store, TransactionOptions};

    fn open(disk: &SimDisk) -> Store {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        options.open_on(disk.platform()).expect("a store")
    }

    #[test]
    fn maps_that_come_and_go_leave_nothing_behind() {
        let store = open(&SimDisk::new(1));
        let kept = store.map("kept").expect("a map");
        for round in 0..1_000 {
            let names: Vec<String> = (0..100).map(|number| format!("{round} {number}")).collect();
            let maps = store.transact(|tx| names.iter().map(|name| tx.map(name)).collect::<Result<Vec<_>>>());
            let maps = maps.expect("new maps");
            let dropped = store.transact(|tx| names.iter().try_for_each(|name| tx.drop_map(name)));
            dropped.expect("no maps");
            let error = maps[99].put(b"key", b"value").expect_err("it was dropped");
            assert!(matches!(error.reason(), Reason::MapDropped { .. }), "{error}");
            assert_eq!(store.core().catalog.known_count(), 1);
        }
        kept.put(b"key", b"value").expect("it is there");
        assert_eq!(store.core().catalog.gone.lock().expect("no panic").len(), GONE_MAX);
    }

    #[test]
    fn handle_from_an_old_view_of_a_dropped_map_is_known_to_be_dropped() {
        let disk = SimDisk::new(1);
        let (store, other) = (open(&disk), open(&disk));
        store.map("map").expect("a map").put(b"key", b"value").expect("a put");
        let mut tx = store.begin(TransactionOptions::new()).expect("a transaction");
        for by in [&store, &other] {
            by.maps().drop("map").expect("it is there");
            let map = tx.map("map").expect("the old view shows it");
            for done in [map.get(b"key").map(drop), map.put(b"key", b"1")] {
                let error = done.expect_err("it was dropped");
                assert!(matches!(error.reason(), Reason::MapDropped { .. }), "{error}");
            }
            drop(tx);
            store.map("map").expect("a map");
            tx = store.begin(TransactionOptions::new()).expect("a transaction");
        }
    }

    #[test]
    fn reader_learns_of_dropped_and_renamed_maps_while_another_process_has_the_commit_lock() {
        let disk = SimDisk::new(1);
        let (store, other) = (open(&disk), open(&disk));
        let (dropped, renamed) = (
            store.map("dropped").expect("a map"),
            store.map("before").expect("a map"),
        );
        other.maps().drop("dropped").expect("it is there");
        other.maps().rename("before", "after").expect("it is there");
        let held = other.core().hold_commits().expect("no other process has it");
        let error = dropped.get(b"key").expect_err("it was dropped");
        assert!(matches!(error.reason(), Reason::MapDropped { .. }), "{error}");
        assert_eq!(renamed.get(b"key").expect("a read"), None);
        assert_eq!(store.core().catalog.name_of(renamed.number()), "after");
        drop(held);
    }

    #[test]
    fn change_that_is_announced_and_not_visible_is_learned_once_it_is_visible() {
        let disk = SimDisk::new(1);
        let (store, other) = (open(&disk), open(&disk));
        let (map, older) = (store.map("map").expect("a map"), store.map("older").expect("a map"));
        other.maps().drop("older").expect("it is there");
        // As between the two stores of a commit that another process makes.
        let control = other.core().control();
        let before = control.catalog.load(Ordering::Relaxed);
        let next = control.visible.0.load(Ordering::Relaxed) + 1;
        control.catalog.store(next, Ordering::Release);
        assert_eq!(map.get(b"key").expect("a read"), None);
        let error = older.get(b"key").expect_err("the change before is visible");
        assert!(matches!(error.reason(), Reason::MapDropped { .. }), "{error}");
        let catalog = &store.core().catalog;
        assert!(!catalog.has_seen(next) && catalog.has_looked(next));
        control.catalog.store(before, Ordering::Release);
        other.maps().drop("map").expect("it is there");
        assert_eq!(
            control.catalog.load(Ordering::Relaxed),
            next,
            "it has the number that was announced"
        );
        let error = map.get(b"key").expect_err("it was dropped");
        assert!(matches!(error.reason(), Reason::MapDropped { .. }), "{error}");
    }

    #[test]
    fn an_old_catalogue_says_nothing_about_newer_maps_and_does_not_replace_newer_knowledge() {
        let store = open(&SimDisk::new(1));
        let map = store.map("map").expect("a map");
        let catalog = &store.core().catalog;
        let change = store.core().newest_catalog_change();
        catalog.doubt();
        catalog.learn(&HashMap::new(), change - 1, change);
        map.put(b"key", b"value").expect("the map is newer than that catalogue");
        assert!(catalog.has_seen(change), "the commit has looked");
        let old = HashMap::from([(map.number(), "an old name".to_string())]);
        catalog.learn(&old, change, change - 1);
        assert_eq!(catalog.name_of(map.number()), "map");
    }
}
