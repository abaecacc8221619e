//! What layers above know of the processes that share a store: which of them live, and a clock that all of them read.
//!
//! A layer that leases something to a process writes the process's number and a deadline into the store. Others take the
//! lease back when the deadline is over, or at once when the process is gone. Both need facts that only the engine has:
//!
//! - **Numbers of processes** are unique among all processes that ever opened the store. A number joins the epoch of the log
//!   that began with the region, and the count of processes that had attached to the region before.
//! - **The shared clock** runs with the machine's monotonic clock while any process has the store open, so a step of the
//!   system time moves no deadline. It begins at the system time, or at the time of the newest commit if that is later.
//!   A commit that rings a bell may hold a time that others wait for, so it counts with the shared clock. So the clock never
//!   runs back behind such a time, not even from one opening of the store to the next.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::api::store::Store;

impl Store {
    /// The number of this process, which no other process that opens the store ever gets.
    #[doc(hidden)]
    pub fn process_number(&self) -> u64 {
        let region = &self.core().region;
        let arrival = region.process(region.me()).arrival.load(Ordering::Relaxed);
        self.core().process_number_of(arrival)
    }

    /// The numbers of all processes that have the store open now, this one included. Costs a system call for each other one.
    #[doc(hidden)]
    pub fn processes_alive(&self) -> Vec<u64> {
        let core = self.core();
        let region = &core.region;
        let attached = region.processes();
        // The number first: an entry that changes hands after the look is alive, and its later owner asks for itself.
        let numbered =
            attached.map(|(owner, entry)| (owner, core.process_number_of(entry.arrival.load(Ordering::Acquire))));
        numbered
            .filter(|&(owner, _)| owner == region.me() || region.seat().is_alive(owner))
            .map(|(_, number)| number)
            .collect()
    }

    /// How many processes have attached since the first opening and are not there any more. Another number than before says
    /// that a process left or died meanwhile. A process that attaches just now may be counted for a moment.
    #[doc(hidden)]
    pub fn processes_departed(&self) -> u64 {
        let arrivals = self.core().control().arrivals.load(Ordering::SeqCst);
        arrivals.saturating_sub(self.processes_alive().len() as u64)
    }

    /// Time since 1970 on a clock that all processes share and that never runs back. It follows the system time as of the
    /// first opening of the store, and no later step of it.
    #[doc(hidden)]
    pub fn shared_clock(&self) -> Duration {
        Duration::from_micros(self.core().shared_micros())
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use crate::{Maintenance, Options, Store};
    use std::time::Duration;

    fn open(disk: &SimDisk) -> Store {
        let options = Options::new().maintenance(Maintenance::Manual);
        options.open_on(disk.platform()).expect("a store")
    }

    #[test]
    fn the_shared_clock_ignores_steps_of_the_system_time_and_never_runs_back() {
        let mut disk = SimDisk::new(1);
        let store = open(&disk);
        let began = store.shared_clock();
        disk.advance(Duration::from_secs(5));
        disk.set_wall(Duration::from_secs(7));
        assert_eq!(store.shared_clock(), began + Duration::from_secs(5));
        disk.set_wall(began + Duration::from_secs(100));
        assert_eq!(store.shared_clock(), began + Duration::from_secs(5));
        store
            .map("map")
            .and_then(|map| map.put(b"key", b"value"))
            .expect("a put");
        disk = disk.kill();
        drop(store);
        // The newest commit was made at the time that the system said then.
        disk.set_wall(Duration::from_secs(7));
        let store = open(&disk);
        assert_eq!(store.shared_clock(), began + Duration::from_secs(100));
    }

    #[test]
    fn every_opening_has_a_process_number_of_its_own() {
        let mut disk = SimDisk::new(2);
        let mut known = Vec::new();
        for round in 0..4 {
            let store = open(&disk);
            assert_eq!(store.processes_alive(), [store.process_number()]);
            assert!(!known.contains(&store.process_number()));
            known.push(store.process_number());
            store
                .map("map")
                .and_then(|map| map.put(b"key", [round]))
                .expect("a put");
            disk = if round % 2 == 0 {
                disk.kill()
            } else {
                disk.power_cut(round.into())
            };
            drop(store);
        }
    }
}
