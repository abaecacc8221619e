//! Duramen's tree with a planted fault, to test the workloads of trees. As the [peers with one](crate::peers::faulty), these
//! are reached by name only.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};

use super::duramen;
use crate::answer::{Found, Unsupported};
use crate::peer::{Class, Description, Driver, Peer, Setting};
use crate::tree::{Change, EmbeddedTree, FullTree, NodeFound, NodeSeen, Tree, Watches};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Every 97th node or change is read as it was before.
    Stale,
    /// Every 97th put is acknowledged and not done.
    Loses,
    /// Every 97th change is not shown.
    Skips,
}

const EVERY: u64 = 97;

/// The driver of a faulty tree.
pub struct Faulty(Fault);

/// All faulty trees.
pub const ALL: &[&dyn Driver] = &[&Faulty(Fault::Stale), &Faulty(Fault::Loses), &Faulty(Fault::Skips)];

impl Driver for Faulty {
    fn describe(&self) -> Description {
        let name = match self.0 {
            Fault::Stale => "faulty-stale-tree",
            Fault::Loses => "faulty-loses-tree",
            Fault::Skips => "faulty-skips-tree",
        };
        Description {
            name: name.to_string(),
            version: "the lab's own".to_string(),
            classes: vec![(Class::Written, "claimed, wrongly".to_string())],
            is_persistent: true,
            is_tree: true,
            is_no_store: true,
            ..Description::default()
        }
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a tree"))
    }

    fn open_tree(&self, directory: &Path, setting: Setting) -> Result<Tree> {
        let Tree::Embedded(inner) = duramen::open(directory, setting)? else {
            bail!("Duramen's tree is embedded");
        };
        Ok(Tree::Embedded(Box::new(Wrong {
            inner,
            fault: self.0,
            turns: AtomicU64::new(0),
            before: Mutex::default(),
        })))
    }
}

struct Wrong {
    inner: Box<dyn EmbeddedTree>,
    fault: Fault,
    turns: AtomicU64,
    /// The payload of each node before its last put, where the fault needs it.
    before: Mutex<HashMap<Vec<u8>, Option<Vec<u8>>>>,
}

/// Whether it is the turn of a fault.
fn is_turn(turns: &AtomicU64) -> bool {
    turns.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1
}

impl Wrong {
    /// Notes the payload before a put. Returns whether the put is done.
    fn begins(&self, path: &[u8]) -> Result<bool> {
        if self.fault == Fault::Stale {
            let mut before = None;
            self.inner.get(path, &mut |found| {
                before = found.map(<[u8]>::to_vec);
                Ok(())
            })?;
            let mut all = self.before.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(path.to_vec(), before);
        }
        Ok(self.fault != Fault::Loses || !is_turn(&self.turns))
    }

    /// Shows a node, or what it was before.
    fn shows(&self, path: &[u8], found: Option<&[u8]>, seen: &mut Found) -> Result<()> {
        if self.fault == Fault::Stale && is_turn(&self.turns) {
            let all = self.before.lock().unwrap_or_else(PoisonError::into_inner);
            return seen(all.get(path).and_then(|before| before.as_deref()));
        }
        seen(found)
    }
}

impl EmbeddedTree for Wrong {
    fn create(&self, path: &[u8], payload: &[u8]) -> Result<bool> {
        Ok(!self.begins(path)? || self.inner.create(path, payload)?)
    }

    fn get(&self, path: &[u8], seen: &mut Found) -> Result<()> {
        self.inner.get(path, &mut |found| self.shows(path, found, seen))
    }

    fn delete(&self, path: &[u8]) -> Result<bool> {
        self.inner.delete(path)
    }

    fn full(&self) -> Result<&dyn FullTree> {
        Ok(self)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.inner.close()
    }
}

impl FullTree for Wrong {
    fn put_all(&self, nodes: &mut dyn Iterator<Item = (Vec<u8>, &[u8])>) -> Result<()> {
        let mut done = Vec::new();
        for (path, payload) in nodes {
            if self.begins(&path)? {
                done.push((path, payload));
            }
        }
        self.inner.full()?.put_all(&mut done.into_iter())
    }

    fn put(&self, path: &[u8], payload: &[u8]) -> Result<()> {
        match self.begins(path)? {
            true => self.inner.full()?.put(path, payload),
            false => Ok(()),
        }
    }

    fn count_children(&self, path: &[u8]) -> Result<u64> {
        self.inner.full()?.count_children(path)
    }

    fn children(&self, path: &[u8], after: &[u8], limit: usize, seen: &mut NodeSeen) -> Result<()> {
        self.inner.full()?.children(path, after, limit, &mut |child, payload| {
            let place = [path, b"/", child].concat();
            self.shows(&place, Some(payload), &mut |found| {
                found.map_or(Ok(()), |payload| seen(child, payload))
            })
        })
    }

    fn delete_subtree(&self, path: &[u8]) -> Result<u64> {
        self.inner.full()?.delete_subtree(path)
    }

    fn revision(&self) -> Result<u64> {
        self.inner.full()?.revision()
    }

    fn get_at(&self, revision: u64, paths: &mut dyn Iterator<Item = Vec<u8>>, seen: &mut NodeFound) -> Result<()> {
        let shows = &mut |path: &[u8], found: Option<&[u8]>| self.shows(path, found, &mut |found| seen(path, found));
        self.inner.full()?.get_at(revision, paths, shows)
    }

    fn compact(&self, revision: u64) -> Result<()> {
        self.inner.full()?.compact(revision)
    }

    fn watch(&self, paths: &mut dyn Iterator<Item = Vec<u8>>, is_below: bool) -> Result<Box<dyn Watches>> {
        Ok(Box::new(WrongWatches {
            inner: self.inner.full()?.watch(paths, is_below)?,
            fault: self.fault,
            turns: AtomicU64::new(0),
        }))
    }
}

struct WrongWatches {
    inner: Box<dyn Watches>,
    fault: Fault,
    turns: AtomicU64,
}

impl Watches for WrongWatches {
    fn next(&mut self, timeout: Duration, seen: &mut dyn FnMut(Change) -> Result<()>) -> Result<()> {
        let (fault, turns) = (self.fault, &self.turns);
        self.inner.next(timeout, &mut |change| match fault {
            Fault::Skips if is_turn(turns) => Ok(()),
            Fault::Stale if is_turn(turns) => seen(Change {
                payload: change.old,
                ..change
            }),
            _ => seen(change),
        })
    }
}
