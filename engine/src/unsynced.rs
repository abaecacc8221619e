//! Writing again what is in the data file and not known to be durable, after a process died while it synced that file.
//!
//! The simple version would be to sync once more. But the kernel tells of a page that it could not write once, to each
//! description of the file that was open then, and takes the page for clean afterwards. The dead process may have been told,
//! and one that came later is not. So the pages are written again, from the kernel's memory, where they still are: then the next
//! sync has them to write, and tells.
//!
//! What the durable base refers to is durable. What is not known to be is found from what refers to it: the pages of the
//! published tree that are newer than the durable base, and the values and runs that records refer to which are not
//! folded. A pin keeps the first where they are meanwhile, and all of them the lock on syncs of the data file, which the caller has:
//! without such a sync nothing comes free that is in use now. What somebody has written and nothing refers to yet is
//! synced before a record does, or with it, by a process that lives and had the file open.

use std::collections::BTreeSet;

use crate::base::{self, Visit};
use crate::core::{Core, with_source};
use crate::error::{Error, Result};
use crate::limits::PAGE_BYTES;
use crate::region::Version;

/// Pages written by one call, at most.
const RUN_PAGES_MAX: u32 = 256;

impl Core {
    /// See the module.
    pub(crate) fn write_unsynced_pages_again(&self) -> Result<()> {
        // What the log refers to is known once it is decided whether the last commit of a dead process stands.
        drop(self.hold_commits()?);
        let (pin, version, _) = self.region.pin(0, &self.control().visible.0)?;
        let written = self.cover_data().and_then(|()| self.write_pages_again(&version));
        self.region.unpin(&pin);
        written
    }

    fn write_pages_again(&self, version: &Version) -> Result<()> {
        let mut pages: BTreeSet<u32> = self.pages_in_log(version)?.into_iter().collect();
        let durable = self.durable_version();
        with_source!(self, source => base::walk_newer(source, version.root, durable, &mut |visit| {
            let (page, count) = match visit {
                Visit::Page { number, pages, .. } => (number, pages),
                Visit::Extent(extent) => (extent.page, extent.pages()),
            };
            pages.extend(page..page + count);
            Ok(())
        }))?;
        let mut pages = pages.into_iter().peekable();
        while let Some(first) = pages.next() {
            let mut count = 1;
            while count < RUN_PAGES_MAX && pages.next_if_eq(&(first + count)).is_some() {
                count += 1;
            }
            self.write_run_again(first, count)?;
        }
        Ok(())
    }

    fn write_run_again(&self, first: u32, count: u32) -> Result<()> {
        let doing = |error| Error::io("writing pages again that a process died syncing", error);
        let place = u64::from(first) * PAGE_BYTES as u64;
        let mut bytes = vec![0; count as usize * PAGE_BYTES];
        self.data.read_at(&mut bytes, place).map_err(doing)?;
        self.data.write_at(&bytes, place).map_err(doing)
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::{FailKind, FailSpan, SimDisk};

    use crate::{Durability, Maintenance, Options, Store};

    fn open(disk: &SimDisk) -> Store {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written)
            .generation_bytes(32 << 10, 64 << 10);
        options.open_on(disk.platform()).expect("a store")
    }

    fn value(number: u32) -> Vec<u8> {
        let length = if number.is_multiple_of(100) { 100_000 } else { 90 };
        (0..length).map(|at| (number as usize * 31 + at) as u8).collect()
    }

    /// A base that is published and not durable, and long values that only the log refers to, when the process that syncs
    /// the data file is told of an error, and dies. The disk's seed says which of the pages are lost.
    #[test]
    fn what_the_kernel_gave_up_is_written_again_and_survives_power_loss() {
        for seed in 0..10 {
            let disk = SimDisk::new(seed);
            let store = open(&disk);
            let map = store.map("map").expect("a map");
            let put = |numbers: std::ops::Range<u32>| {
                numbers.for_each(|number| map.put(&number.to_be_bytes(), &value(number)).expect("a put"));
            };
            put(0..1_000);
            store.maintain().expect("a durable base");
            put(500..1_500);
            store.sync().expect("a durable log");
            let core = store.core();
            let mut state = core.hold_maintenance().expect("nobody else has it");
            assert!(core.fold(&mut state).expect("a fold"), "some generations are full");
            drop(state);
            put(1_500..1_550);
            disk.fail(1, FailKind::Io, FailSpan::Once);
            core.data.sync_data().expect_err("somebody was told");
            core.write_unsynced_pages_again().expect("a disk that works again");
            store.sync().expect("a durable log");
            store.maintain().expect("a durable base");
            assert_whole(&disk.power_cut(seed));
        }
    }

    fn assert_whole(disk: &SimDisk) {
        let store = open(disk);
        let map = store.map("map").expect("a map");
        for number in 0..1_550u32 {
            let found = map.get(&number.to_be_bytes()).expect("a sound store");
            assert!(found == Some(value(number)), "{number}");
        }
        let report = store.check(&mut |_| ()).expect("a check");
        assert_eq!(report.problems, [""; 0]);
    }
}
