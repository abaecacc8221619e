//! The messages of a member, and what happens to them when the member is dropped.
//!
//! Deliveries keep the membership: it ends when the member and all its deliveries are dropped. Messages that are not
//! settled by then go back to the group at once, and the attempt does not count. A thread that panics returns nothing:
//! those messages failed.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duramen_engine::{Error, Result};

use super::lease_key::LeaseKey;
use super::settle::Verdict;
use super::{Group, written};
use crate::lock::locked;

/// Number of leases dropped without being settled after which expired leases are forgotten.
const DROPPED_MAX: usize = 64;

/// A member of a group, as long as it or any of its deliveries exists.
pub(crate) struct Membership {
    pub(super) group: Group,
    pub(super) name: Arc<str>,
    dropped: Mutex<DroppedLeases>,
}

#[derive(Default)]
struct DroppedLeases {
    leases: Vec<DroppedLease>,
    /// Number of leases before the next check of their deadlines.
    next_look: usize,
}

/// Messages that were dropped without being settled.
struct DroppedLease {
    lease_key: LeaseKey,
    deadline: u64,
    offsets: Vec<u64>,
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("group", &self.group)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Membership {
    pub(super) fn new(group: &Group, name: &str) -> Arc<Membership> {
        Arc::new(Membership {
            group: group.clone(),
            name: name.into(),
            dropped: Mutex::default(),
        })
    }

    fn take(&self, lease: DroppedLease) {
        let mut dropped = locked(&self.dropped);
        dropped.leases.push(lease);
        if dropped.leases.len() > dropped.next_look.max(DROPPED_MAX) {
            // Their messages went to other members, or will.
            let now = self.group.now();
            dropped.leases.retain(|lease| lease.deadline > now);
            dropped.next_look = 2 * dropped.leases.len();
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let dropped = std::mem::take(&mut locked(&self.dropped).leases);
        if dropped.is_empty() || std::thread::panicking() {
            return;
        }
        let group = self.group.clone();
        if !group.topic.home().store.is_beside_transaction() {
            return give_back(&group, dropped);
        }
        // The last handle was dropped inside a transaction of this thread, which cannot commit anything else meanwhile.
        // If the system has no thread left, the messages are delivered again when their leases end.
        let thread = std::thread::Builder::new().name("duramen-release".into());
        let _ = thread.spawn(move || give_back(&group, dropped));
    }
}

fn give_back(group: &Group, leases: Vec<DroppedLease>) {
    let store = &group.topic.home().store;
    for dropped in leases {
        // Messages that cannot be returned now are delivered again when their leases end.
        let _ = store.transact_with(written(), |tx| {
            for &offset in &dropped.offsets {
                match group.settle_in(tx, dropped.lease_key, offset, Verdict::Release) {
                    Err(error) if super::is_over(&error) => {}
                    released => drop(released?),
                }
            }
            Ok::<_, Error>(())
        });
        group.shared.finished(dropped.lease_key);
    }
    group.look_again();
}

/// Messages that were delivered together, as long as a handle of them exists.
pub(crate) struct LeasedBatch {
    pub(super) membership: Arc<Membership>,
    pub(super) lease_key: LeaseKey,
    offsets: Vec<u64>,
    /// Which of the messages were settled, or will be by a transaction of the program.
    done: Vec<AtomicBool>,
    left: AtomicUsize,
    deadline: u64,
}

impl fmt::Debug for LeasedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedBatch")
            .field("lease_key", &self.lease_key)
            .finish_non_exhaustive()
    }
}

impl LeasedBatch {
    pub(super) fn new(
        membership: &Arc<Membership>,
        lease_key: LeaseKey,
        offsets: Vec<u64>,
        deadline: u64,
    ) -> Arc<LeasedBatch> {
        Arc::new(LeasedBatch {
            membership: membership.clone(),
            lease_key,
            done: offsets.iter().map(|_| AtomicBool::new(false)).collect(),
            left: AtomicUsize::new(offsets.len()),
            offsets,
            deadline,
        })
    }

    pub(super) fn group(&self) -> &Group {
        &self.membership.group
    }

    /// Extends the lease, which covers the message at `offset`, to at least `by` from now.
    pub(super) fn extend(&self, offset: u64, by: Duration) -> Result<()> {
        let group = self.group();
        let store = &group.topic.home().store;
        let until = store.transact_with(written(), |tx| group.extend_in(tx, self.lease_key, offset, by))?;
        group.shared.turn().note_due(until);
        Ok(())
    }

    /// Records that a call settled one message, or that a transaction of the program will.
    pub(super) fn done(&self, place: usize) {
        if !self.done[place].swap(true, Ordering::Relaxed) && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.group().shared.finished(self.lease_key);
        }
    }

    /// Records that all of them were settled at once.
    pub(super) fn all_done(&self) {
        self.left.store(0, Ordering::Relaxed);
    }
}

impl Drop for LeasedBatch {
    fn drop(&mut self) {
        if *self.left.get_mut() == 0 || std::thread::panicking() {
            return;
        }
        let offsets = self.offsets.iter().zip(&self.done);
        let open = offsets
            .filter(|(_, done)| !done.load(Ordering::Relaxed))
            .map(|(offset, _)| *offset);
        self.membership.take(DroppedLease {
            lease_key: self.lease_key,
            deadline: self.deadline,
            offsets: open.collect(),
        });
    }
}
