//! Stores with checkpoints: how tests open them, what they hold, and that no page is lost.

use std::collections::BTreeMap;

use duramen_engine::{Durability, Maintenance, Map, Options, Reason, Result, Snapshot, Store};
use duramen_io::SimDisk;

pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn options() -> Options {
    Options::new()
        .durability(Durability::Synced)
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(64 << 10, 256 << 10)
}

pub fn content(snapshot: &Snapshot, map: &Map) -> Content {
    let mut content = Content::new();
    let mut pairs = snapshot.range(map, ..).expect("a range");
    while let Some((key, value)) = pairs.next().expect("a pair") {
        content.insert(key.to_vec(), value.to_vec());
    }
    let counted = snapshot.count(map, ..).expect("a count");
    assert_eq!(counted, content.len() as u64);
    content
}

pub fn restore(store: &Store, name: &str) -> Result<u64> {
    store.restore_checkpoint(name, &[], |_, _| Ok(()))
}

pub fn assert_sound(store: &Store, seed: u64) {
    let report = store.check(&mut |_| ()).expect("a check");
    assert_eq!(report.problems, [""; 0], "seed {seed}");
}

/// Drops everything: then no page is in use that an empty store would not use.
pub fn assert_nothing_is_left(store: &Store, map: &Map, seed: u64) {
    assert!(store.checkpoints().keep_last(0).is_ok());
    map.delete_range(..).expect("a deletion");
    store.maintain().expect("a fold");
    store.maintain().expect("a fold");
    assert_sound(store, seed);
    assert!(map.is_empty().expect("a look"));
}

/// A store that is open.
pub struct Open {
    pub store: Store,
    pub map: Map,
}

impl Open {
    /// Opens the store of a disk.
    pub fn on(disk: &SimDisk) -> Result<Open> {
        let store = options().open_on(disk.platform())?;
        let map = store.map("map")?;
        Ok(Open { store, map })
    }

    /// Puts the store back, and opens it again.
    pub fn restore(&mut self, disk: &SimDisk, name: &str) -> Result<()> {
        restore(&self.store, name)?;
        let refused = self.map.put("key", "value").expect_err("the handle is of the past");
        // A disk may have stopped.
        assert!(
            matches!(refused.reason(), Reason::Restored | Reason::Poisoned { .. }),
            "{refused}"
        );
        *self = Open::on(disk)?;
        Ok(())
    }
}
