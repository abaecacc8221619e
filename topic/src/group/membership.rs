//! The messages of a member, and what happens to them when the member is dropped.
//!
//! Deliveries keep the membership: it ends when the member and all its deliveries are dropped. Messages that are not
//! settled by then go back to the group at once, and the attempt does not count. A thread that panics returns nothing:
//! those messages failed.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use duramen_engine::Error;

use super::deliveries::Claim;
use super::settle::Verdict;
use super::{Group, written};
use crate::lock::locked;

/// Number of claims dropped without being settled after which claims with expired leases are forgotten.
const DROPPED_MAX: usize = 64;

/// A member of a group, as long as it or any of its deliveries exists.
pub(crate) struct Membership {
    pub(super) group: Group,
    pub(super) name: Arc<str>,
    dropped: Mutex<Dropped>,
}

#[derive(Default)]
struct Dropped {
    claims: Vec<DroppedClaim>,
    /// Number of claims before the next check of their leases.
    next_look: usize,
}

/// Messages that were dropped without being settled.
struct DroppedClaim {
    claim: Claim,
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

    fn take(&self, claim: DroppedClaim) {
        let mut dropped = locked(&self.dropped);
        dropped.claims.push(claim);
        if dropped.claims.len() > dropped.next_look.max(DROPPED_MAX) {
            // Their messages went to other members, or will.
            let now = self.group.now();
            dropped.claims.retain(|claim| claim.deadline > now);
            dropped.next_look = 2 * dropped.claims.len();
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let dropped = std::mem::take(&mut locked(&self.dropped).claims);
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

fn give_back(group: &Group, dropped: Vec<DroppedClaim>) {
    let store = &group.topic.home().store;
    for claim in dropped {
        // Messages that cannot be returned now are delivered again when their leases end.
        let _ = store.transact_with(written(), |tx| {
            for &offset in &claim.offsets {
                match group.settle_in(tx, claim.claim, offset, Verdict::Release) {
                    Err(error) if super::is_over(&error) => {}
                    released => drop(released?),
                }
            }
            Ok::<_, Error>(())
        });
        group.shared.finished(claim.claim);
    }
    group.look_again();
}

/// Messages that were delivered together, as long as a handle of them exists.
pub(crate) struct Handed {
    pub(super) membership: Arc<Membership>,
    pub(super) claim: Claim,
    offsets: Vec<u64>,
    /// Which of the messages were settled, or will be by a transaction of the program.
    done: Vec<AtomicBool>,
    left: AtomicUsize,
    deadline: u64,
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handed")
            .field("claim", &self.claim)
            .finish_non_exhaustive()
    }
}

impl Handed {
    pub(super) fn new(membership: &Arc<Membership>, claim: Claim, offsets: Vec<u64>, deadline: u64) -> Arc<Handed> {
        Arc::new(Handed {
            membership: membership.clone(),
            claim,
            done: offsets.iter().map(|_| AtomicBool::new(false)).collect(),
            left: AtomicUsize::new(offsets.len()),
            offsets,
            deadline,
        })
    }

    pub(super) fn group(&self) -> &Group {
        &self.membership.group
    }

    /// Records that a call settled one message, or that a transaction of the program will.
    pub(super) fn done(&self, place: usize) {
        if !self.done[place].swap(true, Ordering::Relaxed) && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.group().shared.finished(self.claim);
        }
    }

    /// Records that all of them were settled at once.
    pub(super) fn all_done(&self) {
        self.left.store(0, Ordering::Relaxed);
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if *self.left.get_mut() == 0 || std::thread::panicking() {
            return;
        }
        let offsets = self.offsets.iter().zip(&self.done);
        let open = offsets
            .filter(|(_, done)| !done.load(Ordering::Relaxed))
            .map(|(offset, _)| *offset);
        self.membership.take(DroppedClaim {
            claim: self.claim,
            deadline: self.deadline,
            offsets: open.collect(),
        });
    }
}
