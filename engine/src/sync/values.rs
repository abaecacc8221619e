//! When long values become durable: before the record that refers to them, or with the next sync of the log.

use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::error::Result;
use crate::limits::{PAGE_BYTES, VALUES_TO_SYNC_BYTES, VALUES_UNSYNCED_BYTES_MAX};
use crate::planted::{PlantedBug, is_planted};
use crate::settings::Durability;

impl Core {
    /// When the values of a commit are to be durable: before its record, or, for a commit that need not be, with the
    /// next sync of the log, which syncs the data file first. A power cut before that may keep the record and take the
    /// values; the record says so. Not with runs: an extent is known by its checksum, but a page of a tree that lay
    /// there before is as good as the right one.
    pub(crate) fn value_durability(&self, commit: Durability) -> Durability {
        let waiting = self.control().values_unsynced_bytes.load(Ordering::Relaxed);
        let most = match self.folds_in_background() {
            true => VALUES_UNSYNCED_BYTES_MAX,
            false => VALUES_TO_SYNC_BYTES,
        };
        if waiting >= most { Durability::Synced } else { commit }
    }

    /// Readies values and runs that were written for the record that will refer to them.
    pub(crate) fn ready_values(&self, pages: u32, durability: Durability) -> Result<()> {
        if durability == Durability::Written {
            self.leave_to_sync(pages);
            return Ok(());
        }
        if is_planted(PlantedBug::ValuesNotSynced) {
            return Ok(());
        }
        let synced = self.sync_data_file("syncing long values");
        synced.map_err(|error| self.poisoned_unless_busy(error))
    }

    /// Lets the next sync of the log sync the data file first.
    pub(crate) fn leave_to_sync(&self, pages: u32) {
        let control = self.control();
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        let waited = control.values_unsynced_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Release: a thread that syncs a record that refers to them sees this number, or a later one.
        control.values_written.fetch_add(1, Ordering::Release);
        if (waited..waited + bytes).contains(&VALUES_TO_SYNC_BYTES) {
            self.ask_for_fold();
        }
    }

    /// Makes values durable in the background once many wait, so that few commits wait for the device.
    pub(crate) fn sync_many_values(&self) -> Result<()> {
        let waiting = self.control().values_unsynced_bytes.load(Ordering::Relaxed);
        if waiting >= VALUES_TO_SYNC_BYTES {
            self.sync_data_file("syncing long values")?;
        }
        Ok(())
    }

    /// Makes values durable before the log is. The caller holds the sync lock and has read how far the log is visible.
    pub(crate) fn sync_values(&self) -> Result<()> {
        let control = self.control();
        // Acquire: pairs with the Release in `leave_to_sync`.
        let are_synced =
            control.values_synced.load(Ordering::Relaxed) == control.values_written.load(Ordering::Acquire);
        if are_synced || is_planted(PlantedBug::ValuesNotSynced) {
            return Ok(());
        }
        self.sync_data_file("syncing long values")
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Maintenance, Options};

    #[test]
    fn the_background_syncs_values_once_many_wait_and_not_before() {
        let disk = SimDisk::new(1);
        let options = Options::new()
            .durability(Durability::Written)
            .maintenance(Maintenance::Manual);
        let store = options.open_on(disk.platform()).expect("a store");
        let (core, map) = (store.core(), store.map("map").expect("a map"));
        let syncs = || disk.take_trace().iter().filter(|call| *call == "sync data").count();
        disk.trace(true);
        let value = vec![7; 1 << 20];
        (0..10u8).try_for_each(|key| map.put([key], &value)).expect("room");
        core.sync_many_values().expect("it need not sync yet");
        assert_eq!(syncs(), 0);
        (10..64u8).try_for_each(|key| map.put([key], &value)).expect("room");
        assert_eq!(syncs(), 0, "no commit waited for the device");
        core.sync_many_values().expect("a sync");
        assert_eq!(syncs(), 1);
        core.sync_many_values().expect("nothing waits any more");
        assert_eq!(syncs(), 0);
        assert_eq!(core.control().values_unsynced_bytes.load(Ordering::Relaxed), 0);
    }
}
