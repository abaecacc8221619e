//! The names of a simulated disk: the current names, the names on the device, and the changes in between.
//!
//! A change survives a power cut for certain only after a sync of the directory. Without a sync, changes survive in any
//! possible combination: a change that needs a lost change is lost too.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::survival::{Survival, kept_in_order};

/// Number of a file, independent of its name.
pub(super) type InodeId = u64;

#[derive(Clone, Debug)]
enum Change {
    Create(String, InodeId),
    Remove(String, InodeId),
    Rename(String, String, InodeId),
}

impl Change {
    fn inode(&self) -> InodeId {
        match self {
            Change::Create(_, inode) | Change::Remove(_, inode) | Change::Rename(_, _, inode) => *inode,
        }
    }

    /// Makes the change, if what it needs exists.
    fn apply(&self, names: &mut BTreeMap<String, InodeId>) {
        match self {
            Change::Create(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            Change::Remove(name, inode) if names.get(name) == Some(inode) => {
                names.remove(name);
            }
            Change::Rename(from, to, inode) if names.get(from) == Some(inode) => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
            Change::Remove(..) | Change::Rename(..) => {}
        }
    }
}

/// Names of files.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    names: BTreeMap<String, InodeId>,
    durable: BTreeMap<String, InodeId>,
    /// Unsynced changes with their sequences.
    changes: Vec<(u64, Change)>,
}

impl Directory {
    /// A directory whose names are all durable.
    pub(super) fn settled(names: BTreeMap<String, InodeId>) -> Directory {
        Directory {
            durable: names.clone(),
            names,
            changes: Vec::new(),
        }
    }

    pub(super) fn names(&self) -> &BTreeMap<String, InodeId> {
        &self.names
    }

    pub(super) fn find(&self, name: &str) -> Option<InodeId> {
        self.names.get(name).copied()
    }

    pub(super) fn has_name(&self, inode: InodeId) -> bool {
        self.names.values().any(|named| *named == inode)
    }

    /// Whether the inode may be found now or after a power cut.
    pub(super) fn may_need(&self, inode: InodeId) -> bool {
        self.has_name(inode)
            || self.durable.values().any(|named| *named == inode)
            || self.changes.iter().any(|(_, change)| change.inode() == inode)
    }

    pub(super) fn create(&mut self, sequence: u64, name: &str, inode: InodeId) {
        self.change(sequence, Change::Create(name.to_owned(), inode));
    }

    /// Removes a name that exists.
    pub(super) fn remove(&mut self, sequence: u64, name: &str) {
        let inode = self.names[name];
        self.change(sequence, Change::Remove(name.to_owned(), inode));
    }

    /// Renames a file that exists.
    pub(super) fn rename(&mut self, sequence: u64, from: &str, to: &str) {
        let inode = self.names[from];
        self.change(sequence, Change::Rename(from.to_owned(), to.to_owned(), inode));
    }

    fn change(&mut self, sequence: u64, change: Change) {
        change.apply(&mut self.names);
        self.changes.push((sequence, change));
    }

    /// Makes all changes durable.
    pub(super) fn sync(&mut self) {
        for (_, change) in self.changes.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// Simulates a failed sync: some changes are forgotten, though they can still be seen.
    pub(super) fn sync_badly(&mut self, random: &mut Rng) {
        self.changes.retain(|_| random.bool());
    }

    pub(super) fn sequences(&self) -> impl Iterator<Item = u64> {
        self.changes.iter().map(|(sequence, _)| *sequence)
    }

    /// The names that remain after a power cut now.
    pub(super) fn survivors(&self, survival: Survival, random: &mut Rng) -> BTreeMap<String, InodeId> {
        let sequences: Vec<u64> = self.sequences().collect();
        let in_order = !matches!(survival, Survival::Each { .. }) || random.bool();
        let kept = kept_in_order(survival, &sequences, random);
        let mut names = self.durable.clone();
        for (index, (_, change)) in self.changes.iter().enumerate() {
            if if in_order { index < kept } else { random.bool() } {
                change.apply(&mut names);
            }
        }
        names
    }
}
