//! A tree over a peer that stores pairs, for the peer that does nothing and for peers with a planted fault. Its checks are
//! not atomic, so each path must have one writer.

use anyhow::Result;

use crate::answer::Found;
use crate::peer::Peer;
use crate::tree::{EmbeddedTree, Tree};

/// Uses a peer as a tree. An exempt peer stores nothing, so what it is asked to delete counts as deleted.
pub fn open(peer: Box<dyn Peer>, is_exempt: bool) -> Tree {
    Tree::Embedded(Box::new(Pairs { peer, is_exempt }))
}

struct Pairs {
    peer: Box<dyn Peer>,
    is_exempt: bool,
}

impl Pairs {
    fn is_there(&self, path: &[u8]) -> Result<bool> {
        let mut is_there = false;
        self.peer.get(path, &mut |found| {
            is_there = found.is_some();
            Ok(())
        })?;
        Ok(is_there)
    }
}

impl EmbeddedTree for Pairs {
    fn create(&self, path: &[u8], payload: &[u8]) -> Result<bool> {
        let is_new = self.is_exempt || !self.is_there(path)?;
        if is_new {
            self.peer.put(path, payload)?;
        }
        Ok(is_new)
    }

    fn get(&self, path: &[u8], found: &mut Found) -> Result<()> {
        self.peer.get(path, found)
    }

    fn delete(&self, path: &[u8]) -> Result<bool> {
        let is_there = self.is_exempt || self.is_there(path)?;
        if is_there {
            self.peer.delete(path)?;
        }
        Ok(is_there)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.peer.close()
    }
}
