//! What a transaction has written so far: layers, oldest first. A savepoint begins a new layer, rolling back to it
//! drops the layers above; a layer that grows too large for memory moves into the data file as a sorted run.

use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use crate::btree::Root;
use crate::key::full_key::FullRange;
use crate::read::deleted::Ranges;
use crate::read::value::Entry;

mod entries;

pub(crate) use entries::{Entries, Written};
use entries::{EntriesFrom, Pair};

/// What a walk sees of a transaction's own writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnWrites<'a> {
    /// Oldest first.
    pub(crate) layers: &'a [Layer],
    /// Stretches in which the transaction sees nothing, as walks found out.
    pub(crate) nothing: Option<&'a Mutex<Ranges>>,
}

impl<'a> OwnWrites<'a> {
    pub(crate) fn of(layers: &'a [Layer]) -> OwnWrites<'a> {
        OwnWrites { layers, nothing: None }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.layers.iter().all(Layer::is_empty)
    }

    /// Where nothing is, as far as it is known now.
    pub(crate) fn nothing(&self) -> Ranges {
        let nothing = self.nothing.map(|nothing| nothing.lock());
        nothing.map_or_else(Ranges::default, |nothing| {
            nothing.unwrap_or_else(PoisonError::into_inner).clone()
        })
    }
}

/// One layer of writes. Its range deletes apply to what lies below it.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Ascending; no two of them overlap or touch.
    deleted: Vec<FullRange>,
    content: Content,
    /// Memory taken by what a run can hold, roughly, and by additions, which it cannot.
    bytes: usize,
    addition_bytes: usize,
}

#[derive(Debug)]
enum Content {
    Memory(Entries),
    Run(Root),
}

/// An addition to a counter, taken out of a layer.
#[derive(Debug)]
pub(crate) struct Addition {
    pub(crate) key: Vec<u8>,
    delta: i64,
    shown: [u8; 8],
}

impl Addition {
    pub(crate) fn written(&self) -> Written<'_> {
        let Addition { delta, shown, .. } = self;
        Written::Add { delta: *delta, shown }
    }
}

/// Overhead of an entry in a `BTreeMap`, roughly.
pub(crate) const ENTRY_BYTES: usize = 96;

impl Layer {
    pub(crate) fn new() -> Layer {
        Layer {
            deleted: Vec::new(),
            content: Content::Memory(Entries::default()),
            bytes: 0,
            addition_bytes: 0,
        }
    }

    /// A layer that is written already.
    pub(crate) fn of_run(root: Root) -> Layer {
        Layer {
            content: Content::Run(root),
            ..Layer::new()
        }
    }

    /// Makes it an empty one, with the memory of a few entries if it has that.
    pub(crate) fn clear(&mut self) {
        self.deleted.clear();
        match &mut self.content {
            Content::Memory(entries) => entries.clear(),
            Content::Run(_) => self.content = Content::Memory(Entries::default()),
        }
        self.bytes = 0;
        self.addition_bytes = 0;
    }

    /// Ranges for which it has memory.
    pub(crate) fn ranges_kept(&self) -> usize {
        self.deleted.capacity()
    }

    /// Memory that making the layer a run would free.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory taken by additions.
    pub(crate) fn addition_bytes(&self) -> usize {
        self.addition_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.deleted.is_empty() && matches!(&self.content, Content::Memory(entries) if entries.is_empty())
    }

    /// The root, when the layer is a run.
    pub(crate) fn run(&self) -> Option<Root> {
        match self.content {
            Content::Run(root) => Some(root),
            Content::Memory(_) => None,
        }
    }

    /// The entries, when the layer is in memory.
    pub(crate) fn entries(&self) -> Option<&Entries> {
        match &self.content {
            Content::Memory(entries) => Some(entries),
            Content::Run(_) => None,
        }
    }

    pub(crate) fn deleted_ranges(&self) -> impl Iterator<Item = FullRange> {
        self.deleted.iter().cloned()
    }

    /// How many ranges the layer deletes.
    pub(crate) fn deleted_count(&self) -> usize {
        self.deleted.len()
    }

    pub(crate) fn deletes(&self, full_key: &[u8]) -> bool {
        self.deleted_around(full_key).is_ok()
    }

    /// The deleted range with a key in it, or those before and after it.
    pub(crate) fn deleted_around(
        &self,
        full_key: &[u8],
    ) -> std::result::Result<&FullRange, (Option<&FullRange>, Option<&FullRange>)> {
        let after = self.deleted.partition_point(|range| range.low.as_slice() <= full_key);
        match after.checked_sub(1).map(|before| &self.deleted[before]) {
            Some(range) if range.contains(full_key) => Ok(range),
            before => Err((before, self.deleted.get(after))),
        }
    }

    /// Whether a range delete reaches into a range.
    pub(crate) fn deletes_in(&self, range: &FullRange) -> bool {
        let after = self.deleted.partition_point(|deleted| deleted.high <= range.low);
        self.deleted.get(after).is_some_and(|deleted| deleted.low < range.high)
    }

    /// What the layer, when it is in memory, does to one key.
    pub(crate) fn written(&self, full_key: &[u8]) -> Option<Written<'_>> {
        self.entries()?.get(full_key)
    }

    /// Writes one key. The layer must be in memory.
    pub(crate) fn write(&mut self, full_key: &[u8], written: Written<'_>) {
        let Content::Memory(entries) = &mut self.content else {
            panic!("a run does not change")
        };
        let (bytes, addition_bytes) = weight(full_key, written);
        self.bytes += bytes;
        self.addition_bytes += addition_bytes;
        entries.insert(full_key, written, |replaced| {
            let (bytes, addition_bytes) = weight(full_key, replaced);
            self.bytes -= bytes;
            self.addition_bytes -= addition_bytes;
        });
    }

    /// Deletes a range, which is not empty. The layer must be in memory.
    pub(crate) fn delete_range(&mut self, range: FullRange) {
        let Content::Memory(entries) = &mut self.content else {
            panic!("a run does not change")
        };
        entries.remove(&range.low, &range.high, |(key, written)| {
            let (bytes, addition_bytes) = weight(key, written);
            self.bytes -= bytes;
            self.addition_bytes -= addition_bytes;
        });
        self.join_deleted(range);
    }

    /// Puts a range in its place among those that are deleted, as one with all that it overlaps or touches.
    fn join_deleted(&mut self, mut range: FullRange) {
        let first = self.deleted.partition_point(|other| other.high < range.low);
        let last = self.deleted.partition_point(|other| other.low <= range.high);
        for other in &mut self.deleted[first..last] {
            range.low = std::mem::take(&mut other.low).min(range.low);
            range.high = std::mem::take(&mut other.high).max(range.high);
        }
        self.deleted.splice(first..last, [range]);
    }

    /// Turns the layer's entries into a run, but for additions, which are returned: they are resolved at commit.
    pub(crate) fn become_run(&mut self, root: Root) -> Vec<Addition> {
        let Content::Memory(entries) = std::mem::replace(&mut self.content, Content::Run(root)) else {
            panic!("the layer is a run already")
        };
        self.bytes = 0;
        self.addition_bytes = 0;
        let addition = |(key, written): Pair<'_>| match written {
            Written::Add { delta, shown } => Some(Addition {
                key: key.to_vec(),
                delta,
                shown: *shown,
            }),
            _ => None,
        };
        entries.iter().filter_map(addition).collect()
    }
}

/// Memory that an entry takes, roughly: what a run can hold, and what it cannot.
fn weight(full_key: &[u8], written: Written<'_>) -> (usize, usize) {
    let entry = full_key.len() + ENTRY_BYTES;
    match written {
        Written::Put(value) => (entry + value.len(), 0),
        Written::PutExtent(_) | Written::Delete => (entry, 0),
        Written::Add { .. } => (0, entry),
    }
}

/// A walk over a layer in memory.
pub(crate) struct LayerCursor<'a> {
    entries: &'a Entries,
    at: Option<Pair<'a>>,
    /// What comes behind `at`, while the walk goes forward.
    behind: Option<EntriesFrom<'a>>,
}

impl<'a> LayerCursor<'a> {
    /// A cursor on nothing; seek first. The layer must be in memory.
    pub(crate) fn new(layer: &'a Layer) -> LayerCursor<'a> {
        LayerCursor {
            entries: layer.entries().expect("runs have cursors of their own"),
            at: None,
            behind: None,
        }
    }

    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        self.at.map(|(key, _)| key)
    }

    pub(crate) fn written(&self) -> Written<'a> {
        self.at.expect("the cursor stands on an entry").1
    }

    pub(crate) fn entry(&self) -> Entry<'a> {
        self.written().entry()
    }

    pub(crate) fn seek(&mut self, key: &[u8]) {
        self.go_on_from(Bound::Included(key));
    }

    pub(crate) fn seek_before(&mut self, key: &[u8]) {
        self.behind = None;
        self.at = self.entries.last_below(key);
    }

    pub(crate) fn next(&mut self) {
        let (key, _) = self.at.expect("the cursor stands on an entry");
        match &mut self.behind {
            Some(behind) => self.at = behind.next(),
            None => self.go_on_from(Bound::Excluded(key)),
        }
    }

    pub(crate) fn prev(&mut self) {
        let (key, _) = self.at.expect("the cursor stands on an entry");
        self.seek_before(key);
    }

    fn go_on_from(&mut self, bound: Bound<&[u8]>) {
        let mut behind = self.entries.from(bound);
        self.at = behind.next();
        self.behind = Some(behind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(low: u8, high: u8) -> FullRange {
        FullRange {
            low: vec![low],
            high: vec![high],
        }
    }

    #[test]
    fn deleted_ranges_that_overlap_or_touch_are_one() {
        let (mut layer, mut model) = (Layer::new(), [false; 256]);
        let mut next = 7u32;
        for step in 0..2000 {
            next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (low, length) = ((next >> 8) as u8 % 200, 1 + (next >> 20) as u8 % 9);
            layer.delete_range(range(low, low + length));
            model[low as usize..(low + length) as usize].fill(true);
            let ranges: Vec<_> = layer.deleted_ranges().collect();
            assert!(ranges.windows(2).all(|pair| pair[0].high < pair[1].low), "{ranges:?}");
            (0..=255u8).for_each(|key| assert_eq!(layer.deletes(&[key]), model[key as usize], "{key}"));
            if step % 40 == 39 {
                (layer, model) = (Layer::new(), [false; 256]);
            }
        }
    }

    #[test]
    fn memory_is_counted_until_it_is_given_up() {
        let mut layer = Layer::new();
        let addition = || Written::Add {
            delta: 1,
            shown: &[0; 8],
        };
        layer.write(b"a", Written::Put(&[0; 100]));
        layer.write(b"b", addition());
        let (one, other) = (layer.bytes(), layer.addition_bytes());
        assert!(one > 100 && (1..100).contains(&other), "{one} {other}");
        layer.write(b"a", Written::Put(&[0; 50]));
        assert_eq!(layer.bytes(), one - 50);
        layer.write(b"a", addition());
        assert_eq!((layer.bytes(), layer.addition_bytes()), (0, 2 * other));
        layer.write(b"b", Written::Delete);
        assert_eq!(layer.addition_bytes(), other);
        layer.delete_range(range(b'a', b'c'));
        assert_eq!((layer.bytes(), layer.addition_bytes()), (0, 0));
    }
}
