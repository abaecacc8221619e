//! Leaves in which values are replaced by others of the same length, and in which nothing else changes: the page stays as it
//! is but for those bytes, and is not taken apart and put together again. That is what overwriting counters, or records of
//! a fixed size, does to nearly all leaves.
//!
//! Such a page waits until it is known what follows: an underfull page at the end of its parent takes its pairs in.

use super::super::branch::Child;
use super::super::leaf::{self, Leaf};
use super::super::window::Payload;
use super::super::{ChangeStream, EXTENT_BYTES, PageSink, PageSource, Stored};
use super::{Merger, Output};
use crate::error::Result;
use crate::limits::INLINE_VALUE_BYTES_MAX;

/// A leaf whose place in the order is before all that the window of the leaves holds.
#[derive(Default)]
pub(super) struct Waiting {
    /// Empty: there is none.
    pub(super) page: Vec<u8>,
    /// Lower bound of its keys.
    pub(super) low: Vec<u8>,
}

/// How much of the changes of a leaf was done by overwriting.
#[derive(PartialEq, Eq)]
pub(super) enum Overwritten {
    Nothing,
    /// What comes first; the rest is for the merge, which goes on with the copy.
    Some,
    All,
}

impl<S: PageSource, C: ChangeStream, P: PageSink> Merger<'_, S, C, P> {
    /// Replaces values in a copy of a leaf whose keys end before `high`, as long as the changes are of that kind.
    pub(super) fn overwrite(
        &mut self,
        old: &[u8],
        number: u32,
        high: Option<&[u8]>,
        copy: &mut Vec<u8>,
    ) -> Result<Overwritten> {
        let leaf = Leaf::open(old, number)?;
        let mut done = Overwritten::Nothing;
        while let Some(key) = self.changes.key()
            && high.is_none_or(|high| key < high)
        {
            let Some(index) = leaf.position(key) else {
                return Ok(done);
            };
            let change = self.changes.change();
            let encoded: [u8; EXTENT_BYTES];
            let (field, bytes) = match change {
                Stored::Inline(value) if value.len() <= INLINE_VALUE_BYTES_MAX => (value.len() as u16, value),
                Stored::Extent(extent) => {
                    encoded = extent.encode();
                    (leaf::EXTENT, encoded.as_slice())
                }
                _ => return Ok(done),
            };
            let record = leaf.record(index);
            if !record.holds(field) {
                return Ok(done);
            }
            if done == Overwritten::Nothing {
                copy.clear();
                copy.extend_from_slice(old);
                done = Overwritten::Some;
            }
            copy[record.value()].copy_from_slice(bytes);
            self.retire_value(leaf.location(index), true, &|| leaf.key(index))?;
            self.changes.advance()?;
        }
        Ok(Overwritten::All)
    }

    /// Whether a leaf from `low` on may be written by itself: it must not lie behind pairs that wait for company, there must be
    /// a branch above it, and no cut may reach into it.
    pub(super) fn may_overwrite(&mut self, low: &[u8], high: Option<&[u8]>) -> bool {
        self.skip_cuts(low);
        let is_cut = self
            .cuts
            .first()
            .is_some_and(|cut| high.is_none_or(|high| &*cut.low < high));
        let windows = &self.output.windows;
        !is_cut && windows.len() > 1 && windows[0].is_empty()
    }
}

impl<P: PageSink> Output<'_, P> {
    /// Lets a leaf wait, after the one that waited so far is written. `page` gets memory for the next one.
    pub(super) fn wait(&mut self, page: &mut Vec<u8>, low: &[u8]) -> Result<()> {
        self.write_waiting()?;
        std::mem::swap(&mut self.waiting.page, page);
        self.waiting.low.clear();
        self.waiting.low.extend_from_slice(low);
        Ok(())
    }

    /// Writes the leaf that waits.
    pub(super) fn write_waiting(&mut self) -> Result<()> {
        if self.waiting.page.is_empty() {
            return Ok(());
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let leaf = Leaf::open(&waiting.page, 0)?;
        let (pairs, holds_extents) = (leaf.count() as u64, leaf.holds_extents());
        let link = self.sink.write(&mut waiting.page)?;
        let child = Child {
            page: link.page,
            checksum: link.checksum,
            pairs,
            holds_extents,
        };
        self.push(1, &waiting.low, &[], Payload::Child { child, reused: false })?;
        waiting.page.clear();
        self.waiting = waiting;
        Ok(())
    }
}
