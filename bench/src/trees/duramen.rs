//! Duramen's trees, through its public interface, with the default options.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use duramen::tree::{Tree as DuramenTree, TreeError, TreeWatches, Trees, WatchOptions, Watched};
use duramen::{Durability, Options, Store};

use crate::answer::Found;
use crate::peer::{Class, Setting};
use crate::tree::{Change, EmbeddedTree, FullTree, NodeFound, NodeSeen, Tree, Watches};

/// The name of the tree.
pub const NAME: &str = "lab";

/// A store with one tree.
struct Opened {
    // The order matters: what works in the background must end before the store is closed.
    tree: DuramenTree,
    trees: Trees,
    store: Store,
}

/// Opens the store as a tree.
pub fn open(directory: &Path, setting: Setting) -> Result<Tree> {
    let durability = match setting.class {
        Class::Synced => Durability::Synced,
        Class::Written | Class::None => Durability::Written,
    };
    let store = Options::new().durability(durability).open(directory)?;
    let trees = Trees::open(&store)?;
    let tree = trees.ensure(NAME)?;
    Ok(Tree::Embedded(Box::new(Opened { tree, trees, store })))
}

impl EmbeddedTree for Opened {
    fn create(&self, path: &[u8], payload: &[u8]) -> Result<bool> {
        match self.tree.create(path, payload) {
            Ok(()) => Ok(true),
            Err(error) if matches!(TreeError::of(&error), Some(TreeError::Exists { .. })) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn get(&self, path: &[u8], found: &mut Found) -> Result<()> {
        let node = self.tree.get(path)?;
        found(node.as_ref().map(|node| &node.payload[..]))
    }

    fn delete(&self, path: &[u8]) -> Result<bool> {
        Ok(self.tree.delete(path)?.is_some())
    }

    fn full(&self) -> Result<&dyn FullTree> {
        Ok(self)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Opened { tree, trees, store } = *self;
        drop((tree, trees));
        Ok(store.close()?)
    }
}

impl FullTree for Opened {
    fn put_all(&self, nodes: &mut dyn Iterator<Item = (Vec<u8>, &[u8])>) -> Result<()> {
        self.tree.transact::<_, anyhow::Error>(|tree| {
            for (path, payload) in nodes {
                tree.put(path, payload)?;
            }
            Ok(())
        })
    }

    fn put(&self, path: &[u8], payload: &[u8]) -> Result<()> {
        self.tree.put(path, payload)?;
        Ok(())
    }

    fn count_children(&self, path: &[u8]) -> Result<u64> {
        Ok(self.tree.child_count(path)?.count)
    }

    fn children(&self, path: &[u8], after: &[u8], limit: usize, seen: &mut NodeSeen) -> Result<()> {
        for child in self.tree.children(path, Some(after), limit)? {
            let node = child.node.context("a child without a node")?;
            seen(&child.name, &node.payload)?;
        }
        Ok(())
    }

    fn delete_subtree(&self, path: &[u8]) -> Result<u64> {
        Ok(self.tree.delete_subtree(path)?)
    }

    fn revision(&self) -> Result<u64> {
        Ok(self.tree.revision()?)
    }

    fn get_at(&self, revision: u64, paths: &mut dyn Iterator<Item = Vec<u8>>, seen: &mut NodeFound) -> Result<()> {
        let view = self.tree.view_at(revision)?;
        for path in paths {
            let node = view.get(&path)?;
            seen(&path, node.as_ref().map(|node| &node.payload[..]))?;
        }
        Ok(())
    }

    fn compact(&self, revision: u64) -> Result<()> {
        Ok(self.tree.compact(revision)?)
    }

    fn watch(&self, paths: &mut dyn Iterator<Item = Vec<u8>>, is_below: bool) -> Result<Box<dyn Watches>> {
        let mut watches = self.tree.watches()?;
        for (number, path) in paths.enumerate() {
            let options = match is_below {
                true => WatchOptions::subtree(path),
                false => WatchOptions::path(path),
            };
            watches.add(number as u64, options)?;
        }
        Ok(Box::new(watches))
    }
}

impl Watches for TreeWatches {
    fn next(&mut self, timeout: Duration, seen: &mut dyn FnMut(Change) -> Result<()>) -> Result<()> {
        for (watch, watched) in TreeWatches::next(self, timeout)?.into_iter().flatten() {
            let Watched::Events(events) = watched else {
                bail!("watch {watch} has ended");
            };
            for event in events.iter() {
                seen(Change {
                    watch: watch as usize,
                    path: &event.path,
                    payload: event.node.as_ref().map(|node| &node.payload[..]),
                    old: event.old.as_ref().map(|node| &node.payload[..]),
                })?;
            }
        }
        Ok(())
    }
}
