//! Peers with a planted fault, to test the workloads. The workloads that the matrix in `workloads/tests.rs` names must
//! catch each fault. These peers are reached by name only and never listed, so no run includes one by accident.
//!
//! They claim every class. Most wrap the locked `BTreeMap`. Those whose names end in `-kept` wrap LMDB, for the
//! workloads that close and open the store or share it among processes. Only a crash can catch the peer that
//! acknowledges before it writes, so it wraps LMDB too.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::btreemap::Locked;
use super::lmdb::Lmdb;
use crate::answer::Found;
use crate::data::KeySlice;
use crate::peer::{Class, Description, Driver, Pair, Pairs, Peer, Reader, Reading, Setting};
use crate::tree::Tree;
use crate::trees;

/// The fault of a faulty peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every 97th read of a key returns the value before the last write to it.
    Stale,
    /// Every 10,000th write is acknowledged and not done, and so is every later write to its key. Otherwise a workload
    /// that overwrites for a time, as fast as the machine can, would repair the loss, and catching it would depend on
    /// chance.
    Loses,
    /// A deletion is acknowledged and not done.
    KeepsDeleted,
    /// A deletion also deletes the next pair.
    DeletesNext,
    /// Writes are acknowledged while they are in the memory of the process.
    Early,
}

/// The driver of a faulty peer.
pub struct Faulty {
    fault: Fault,
    /// Whether the peer keeps its data in files, which several processes may share.
    is_kept: bool,
}

/// All faulty peers.
pub const ALL: &[&dyn Driver] = &[
    &in_memory(Fault::Stale),
    &in_memory(Fault::Loses),
    &in_memory(Fault::KeepsDeleted),
    &in_memory(Fault::DeletesNext),
    &kept(Fault::Stale),
    &kept(Fault::Loses),
    &kept(Fault::KeepsDeleted),
    &kept(Fault::Early),
];

const fn in_memory(fault: Fault) -> Faulty {
    Faulty { fault, is_kept: false }
}

const fn kept(fault: Fault) -> Faulty {
    Faulty { fault, is_kept: true }
}

const STALE_EVERY: u64 = 97;
const LOSES_EVERY: u64 = 10_000;
/// Number of acknowledged writes that [`Fault::Early`] holds in memory.
const EARLY_WRITES: usize = 16;

impl Driver for Faulty {
    fn describe(&self) -> Description {
        let name = match (self.fault, self.is_kept) {
            (Fault::Stale, false) => "faulty-stale",
            (Fault::Loses, false) => "faulty-loses",
            (Fault::KeepsDeleted, false) => "faulty-keeps-deleted",
            (Fault::DeletesNext, _) => "faulty-deletes-next",
            (Fault::Stale, true) => "faulty-stale-kept",
            (Fault::Loses, true) => "faulty-loses-kept",
            (Fault::KeepsDeleted, true) => "faulty-keeps-deleted-kept",
            (Fault::Early, _) => "faulty-early",
        };
        Description {
            name: name.to_string(),
            version: "the lab's own".to_string(),
            classes: [Class::Synced, Class::Written, Class::None]
                .map(|class| (class, "claimed, wrongly".to_string()))
                .to_vec(),
            is_persistent: self.is_kept,
            // Another process does not see the writes that [`Fault::Early`] holds in memory.
            is_shared_by_processes: self.is_kept && self.fault != Fault::Early,
            is_tree: !self.is_kept,
            ..Description::default()
        }
    }

    fn open_tree(&self, directory: &Path, setting: Setting) -> Result<Tree> {
        Ok(trees::pairs::open(self.open(directory, setting)?, false))
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let base: &dyn Driver = if self.is_kept { &Lmdb } else { &Locked };
        let setting = Setting {
            class: Class::Written,
            ..setting
        };
        let inner = base.open(directory, setting)?;
        if self.fault == Fault::Early {
            return Ok(Box::new(Early {
                inner,
                kept: Mutex::default(),
            }));
        }
        let before = directory.join("before");
        std::fs::create_dir_all(&before)?;
        Ok(Box::new(Wrong {
            inner,
            fault: self.fault,
            before: base.open(&before, setting)?,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            lost: Mutex::default(),
        }))
    }
}

/// Prefix of a previous value. If there was no value, there is no prefix.
const THERE: u8 = 1;

struct Wrong {
    inner: Box<dyn Peer>,
    fault: Fault,
    /// The value of each key before its last write, kept in the way the pairs are.
    before: Box<dyn Peer>,
    reads: AtomicU64,
    writes: AtomicU64,
    /// The keys whose writes the peer loses.
    lost: Mutex<HashSet<Vec<u8>>>,
}

/// A read snapshot of a peer whose reads are sometimes stale.
struct WrongMoment<'a> {
    inner: &'a dyn Reader,
    peer: &'a Wrong,
}

impl Wrong {
    fn is_lost(&self, key: &[u8]) -> bool {
        if self.fault != Fault::Loses {
            return false;
        }
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if number % LOSES_EVERY == LOSES_EVERY - 1 {
            lost.insert(key.to_vec());
        }
        lost.contains(key)
    }

    fn remember(&self, key: &[u8]) -> Result<()> {
        if self.fault != Fault::Stale {
            return Ok(());
        }
        let mut before = Vec::new();
        self.inner.get(key, &mut |found| {
            if let Some(value) = found {
                before.push(THERE);
                before.extend_from_slice(value);
            }
            Ok(())
        })?;
        self.before.put(key, &before)
    }

    fn delete_next(&self, key: &[u8]) -> Result<()> {
        let mut next = None;
        self.inner.read(&mut |reader| {
            reader.scan(key, 2, &mut |found, _| {
                next = (found != key).then(|| found.to_vec());
                Ok(())
            })
        })?;
        next.map_or(Ok(()), |next| self.inner.delete(&next))
    }
}

impl Reader for WrongMoment<'_> {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        let number = self.peer.reads.fetch_add(1, Ordering::Relaxed);
        if self.peer.fault == Fault::Stale && number % STALE_EVERY == STALE_EVERY - 1 {
            let mut before = None;
            self.peer.before.get(key, &mut |found| {
                before = found.map(<[u8]>::to_vec);
                Ok(())
            })?;
            if let Some(before) = before {
                return found(before.strip_prefix(&[THERE]));
            }
        }
        self.inner.get(key, found)
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        self.inner.scan(from, limit, pair)
    }

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        self.inner.scan_back(limit, pair)
    }
}

impl Peer for Wrong {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.remember(key)?;
        if self.is_lost(key) {
            return Ok(());
        }
        self.inner.put(key, value)
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        for (key, value) in pairs {
            self.put(key, value)?;
        }
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.remember(key)?;
        if self.fault == Fault::KeepsDeleted || self.is_lost(key) {
            return Ok(());
        }
        if self.fault == Fault::DeletesNext {
            self.delete_next(key)?;
        }
        self.inner.delete(key)
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        keys.iter().try_for_each(|key| self.delete(key))
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        self.inner
            .read(&mut |inner| reading(&WrongMoment { inner, peer: self }))
    }

    fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(key, value)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn back_up(&self, place: &Path) -> Result<u64> {
        self.inner.back_up(place)
    }

    fn forget_copies(&self) -> Result<()> {
        self.inner.forget_copies()
    }

    fn bring_back(&self, place: &Path, directory: &Path) -> Result<()> {
        self.inner.bring_back(place, directory)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.before.close()?;
        self.inner.close()
    }
}

type Kept = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// A peer that behaves correctly as long as its process lives.
struct Early {
    inner: Box<dyn Peer>,
    kept: Mutex<Kept>,
}

impl Early {
    fn keep(&self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        // The newest writes stay in memory, so that a kill at any time loses some.
        let settled = kept.len().saturating_sub(EARLY_WRITES);
        self.settle(&mut kept, settled)
    }

    fn settle(&self, kept: &mut Kept, count: usize) -> Result<()> {
        kept.drain(..count).try_for_each(|(key, value)| match value {
            Some(value) => self.inner.put(&key, &value),
            None => self.inner.delete(&key),
        })
    }

    fn settle_all(&self) -> Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let all = kept.len();
        self.settle(&mut kept, all)
    }
}

impl Peer for Early {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keep(key, Some(value))
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        self.settle_all()?;
        self.inner.put_many(pairs)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.keep(key, None)
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        self.settle_all()?;
        self.inner.delete_many(keys)
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        self.settle_all()?;
        self.inner.read(reading)
    }

    fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(key, value)
    }

    fn sync(&self) -> Result<()> {
        self.settle_all()?;
        self.inner.sync()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.settle_all()?;
        self.inner.close()
    }
}
