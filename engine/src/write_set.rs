//! What a transaction has written so far: layers, oldest first. A savepoint begins a new layer, rolling back to it
//! drops the layers above; a layer that grows too large for memory moves into the data file as a sorted run.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::base::{Extent, Root};
use crate::full_key::FullRange;
use crate::value::{Entry, Value};

/// What a transaction does to one key.
#[derive(Clone, Debug)]
pub(crate) enum Written {
    Put(Arc<[u8]>),
    PutExtent(Extent),
    Delete,
    /// An addition to a counter that this transaction has not otherwise written: it does not conflict. `shown` is
    /// what the transaction itself reads until then.
    Add {
        delta: i64,
        shown: [u8; 8],
    },
}

impl Written {
    pub(crate) fn entry(&self) -> Entry<'_> {
        match self {
            Written::Put(value) => Entry::Inline(Value::borrowed(value)),
            Written::PutExtent(extent) => Entry::Extent(*extent),
            Written::Delete => Entry::Deleted,
            Written::Add { shown, .. } => Entry::Inline(Value::borrowed(shown)),
        }
    }
}

/// One layer of writes. Its range deletes apply to what lies below it.
#[derive(Debug)]
pub(crate) struct Layer {
    deleted: Vec<FullRange>,
    content: Content,
    /// Memory taken by keys and values, roughly.
    bytes: usize,
}

#[derive(Debug)]
enum Content {
    Memory(BTreeMap<Vec<u8>, Written>),
    Run(Root),
}

/// Overhead of an entry in a `BTreeMap`, roughly.
const ENTRY_BYTES: usize = 96;

impl Layer {
    pub(crate) fn new() -> Layer {
        Layer {
            deleted: Vec::new(),
            content: Content::Memory(BTreeMap::new()),
            bytes: 0,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.deleted.is_empty() && matches!(&self.content, Content::Memory(map) if map.is_empty())
    }

    /// The root, when the layer is a run.
    pub(crate) fn run(&self) -> Option<Root> {
        match self.content {
            Content::Run(root) => Some(root),
            Content::Memory(_) => None,
        }
    }

    /// The entries, when the layer is in memory.
    pub(crate) fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Written>> {
        match &self.content {
            Content::Memory(entries) => Some(entries),
            Content::Run(_) => None,
        }
    }

    pub(crate) fn deleted_ranges(&self) -> impl Iterator<Item = FullRange> {
        self.deleted.iter().cloned()
    }

    pub(crate) fn deletes(&self, full_key: &[u8]) -> bool {
        self.deleted.iter().any(|range| range.contains(full_key))
    }

    /// Writes one key. Returns what it replaced in this layer. The layer must be in memory.
    pub(crate) fn write(&mut self, full_key: &[u8], written: Written) -> Option<Written> {
        let Content::Memory(entries) = &mut self.content else {
            panic!("a run does not change")
        };
        if let Written::Put(value) = &written {
            self.bytes += value.len();
        }
        let replaced = entries.insert(full_key.to_vec(), written);
        match &replaced {
            None => self.bytes += full_key.len() + ENTRY_BYTES,
            Some(Written::Put(value)) => self.bytes -= value.len(),
            Some(_) => {}
        }
        replaced
    }

    /// Deletes a range. Returns the entries of this layer that it removed. The layer must be in memory.
    pub(crate) fn delete_range(&mut self, range: FullRange) -> Vec<Written> {
        let Content::Memory(entries) = &mut self.content else {
            panic!("a run does not change")
        };
        let inside = (Bound::Included(range.low.clone()), Bound::Excluded(range.high.clone()));
        let keys: Vec<Vec<u8>> = entries.range(inside).map(|(key, _)| key.clone()).collect();
        let removed: Vec<Written> = keys.iter().filter_map(|key| entries.remove(key)).collect();
        self.bytes += range.low.len() + range.high.len() + ENTRY_BYTES;
        self.deleted.push(range);
        removed
    }

    /// Turns the layer's entries into a run, but for additions, which are returned: they are resolved at commit.
    pub(crate) fn become_run(&mut self, root: Root) -> Vec<(Vec<u8>, Written)> {
        let Content::Memory(entries) = std::mem::replace(&mut self.content, Content::Run(root)) else {
            panic!("the layer is a run already")
        };
        self.bytes = 0;
        entries
            .into_iter()
            .filter(|(_, written)| matches!(written, Written::Add { .. }))
            .collect()
    }
}

/// A walk over a layer in memory.
pub(crate) struct LayerCursor<'a> {
    entries: &'a BTreeMap<Vec<u8>, Written>,
    at: Option<(&'a Vec<u8>, &'a Written)>,
}

impl<'a> LayerCursor<'a> {
    /// A cursor on nothing; seek first. The layer must be in memory.
    pub(crate) fn new(layer: &'a Layer) -> LayerCursor<'a> {
        LayerCursor {
            entries: layer.entries().expect("runs have cursors of their own"),
            at: None,
        }
    }

    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        self.at.map(|(key, _)| key.as_slice())
    }

    pub(crate) fn written(&self) -> &'a Written {
        self.at.expect("the cursor stands on an entry").1
    }

    pub(crate) fn entry(&self) -> Entry<'a> {
        self.written().entry()
    }

    pub(crate) fn seek(&mut self, key: &[u8]) {
        self.at = self
            .entries
            .range::<[u8], _>((Bound::Included(key), Bound::Unbounded))
            .next();
    }

    pub(crate) fn seek_before(&mut self, key: &[u8]) {
        self.at = self
            .entries
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key)))
            .next_back();
    }

    pub(crate) fn next(&mut self) {
        let (key, _) = self.at.expect("the cursor stands on an entry");
        self.at = self
            .entries
            .range::<[u8], _>((Bound::Excluded(key.as_slice()), Bound::Unbounded))
            .next();
    }

    pub(crate) fn prev(&mut self) {
        let (key, _) = self.at.expect("the cursor stands on an entry");
        self.at = self
            .entries
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key.as_slice())))
            .next_back();
    }
}
