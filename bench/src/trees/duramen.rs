//! Duramen's trees, through its public interface, with the default options.

use std::path::Path;

use anyhow::Result;
use duramen::tree::{Tree as DuramenTree, TreeError, Trees};
use duramen::{Durability, Options, Store};

use crate::peer::{Class, Found, Setting};
use crate::tree::{EmbeddedTree, Tree};

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

    fn close(self: Box<Self>) -> Result<()> {
        let Opened { tree, trees, store } = *self;
        drop((tree, trees));
        Ok(store.close()?)
    }
}
