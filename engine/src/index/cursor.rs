//! A cursor over the entries of an index, both ways.
//!
//! It takes the references of a leaf out in key order when it enters the leaf, and steps through this copy. At the end
//! it descends to the next leaf from the root: forwards to the fence behind the copied leaf as its descent saw it, which
//! is a key that exists; backwards to the last key before the least it copied. It never goes from node to node, so the
//! divisions that happened meanwhile do not concern it.
//!
//! Entries and versions with commits up to the moment when the cursor was last positioned (by a seek, or by entering a
//! leaf, which is later) are all seen, once and in order; later ones may or may not be. The range of a copied leaf is
//! `[its separator, its fence)` by one reading of each branch; everything older than that reading is in the copy, and
//! whatever arrives between the two later is what may be missed.
//!
//! Keys come from the log. When the kernel failed to write a page of it back, they may be other bytes than those that the
//! tree was built with, and a descent leads anywhere. So each leaf must begin beyond the one before: a walk that would turn
//! back is damage, and every walk ends.

use super::arena::{NONE, Versions};
use super::branch::Bound;
use super::leaf::{LEAF_ENTRIES, Leaf};
use super::newer::Found;
use super::{Index, Keys, Path, Version};
use crate::error::{Error, Result};

/// Above every key: longer than any, and no byte is greater.
#[cfg(test)]
const BEYOND_ALL: [u8; crate::limits::FULL_KEY_BYTES_MAX + 1] = [0xFF; crate::limits::FULL_KEY_BYTES_MAX + 1];

/// What is wrong when keys of a log are not in the order in which they were entered.
pub(crate) const OUT_OF_ORDER: &str =
    "the log holds other keys than were written there; the device may have failed to write them";

/// A position among the entries of an index, or none.
pub(crate) struct IndexCursor<'a, K> {
    index: Index,
    keys: K,
    /// The descent that led to the copied leaf.
    path: Path,
    /// Newest version record of each copied entry, in the order of keys.
    references: [u32; LEAF_ENTRIES],
    /// Where its key is in the log.
    positions: [u32; LEAF_ENTRIES],
    length: usize,
    /// Invalid when not below `length`.
    place: usize,
    /// Where the walk entered the copied leaf: at the first key, going forwards; before the second, going backwards.
    entered: (Option<&'a [u8]>, Option<&'a [u8]>),
}

impl<'a, K: Keys<'a>> IndexCursor<'a, K> {
    /// A cursor that is nowhere yet.
    pub(crate) fn new(index: Index, keys: K) -> IndexCursor<'a, K> {
        IndexCursor {
            index,
            keys,
            path: Path::new(),
            references: [NONE; LEAF_ENTRIES],
            positions: [NONE; LEAF_ENTRIES],
            length: 0,
            place: 0,
            entered: (None, None),
        }
    }

    /// Goes to the first key that is not below `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.entered = (None, None);
        self.place = self.enter(key, Bound::AtMost);
        if self.place == self.length {
            self.enter_next(key)?;
        }
        Ok(())
    }

    /// Goes to the last key below `key`.
    pub(crate) fn seek_before(&mut self, key: &[u8]) {
        self.entered = (None, None);
        self.enter_before(key);
    }

    fn enter_before(&mut self, key: &[u8]) {
        // The separator on the way is below the key, and it is an entry of the leaf: unless the leaf is the first, it
        // holds what is sought.
        match self.enter(key, Bound::Below).checked_sub(1) {
            Some(place) => self.place = place,
            None => self.invalidate(),
        }
    }

    /// Goes to the first key.
    pub(crate) fn first(&mut self) -> Result<()> {
        self.seek(&[])
    }

    /// Goes to the last key.
    #[cfg(test)]
    pub(crate) fn last(&mut self) {
        self.seek_before(&BEYOND_ALL);
    }

    /// Goes to the next key; behind the last one the cursor becomes invalid and stays so until it is positioned again.
    ///
    /// # Errors
    /// [`Damaged`](crate::Kind::Damaged) when the keys in the log are not in the order in which they were inserted.
    pub(crate) fn next(&mut self) -> Result<()> {
        if !self.is_valid() {
            return Ok(());
        }
        match self.place + 1 {
            place if place < self.length => self.place = place,
            _ => self.enter_next(self.key())?,
        }
        Ok(())
    }

    /// Goes to the previous key; before the first one the cursor becomes invalid.
    ///
    /// # Errors
    /// As [`IndexCursor::next`].
    pub(crate) fn prev(&mut self) -> Result<()> {
        if !self.is_valid() {
            return Ok(());
        }
        match self.place.checked_sub(1) {
            Some(place) => self.place = place,
            None => {
                let key = self.key();
                if self.entered.1.is_some_and(|entered| key >= entered) {
                    return Err(self.out_of_order());
                }
                self.entered = (None, Some(key));
                self.enter_before(key);
            }
        }
        Ok(())
    }

    /// How many entries of the copied leaf come after this entry and have keys below `bound`; or, backward, come before
    /// it and have keys above `bound`.
    pub(crate) fn steps_in_leaf(&self, is_forward: bool, bound: &[u8]) -> usize {
        let key = |position: &u32| self.keys.key(*position);
        match is_forward {
            true => {
                let after = &self.positions[self.place + 1..self.length];
                match after.last() {
                    Some(last) if key(last) < bound => after.len(),
                    _ => after.partition_point(|position| key(position) < bound),
                }
            }
            false => {
                let before = &self.positions[..self.place];
                match before.first() {
                    Some(first) if key(first) > bound => before.len(),
                    _ => before.len() - before.partition_point(|position| key(position) <= bound),
                }
            }
        }
    }

    /// Goes to the next or the previous entry, which must be in the copied leaf.
    #[inline]
    pub(crate) fn step_in_leaf(&mut self, is_forward: bool) {
        let place = if is_forward {
            self.place + 1
        } else {
            self.place.wrapping_sub(1)
        };
        assert!(place < self.length, "the copied leaf has no such entry");
        self.place = place;
    }

    /// Goes on to the first key from where the cursor is that has a version of `commit` or a later one; or, if that is not below
    /// `high`, to the first key that is not.
    ///
    /// # Errors
    /// As [`IndexCursor::next`].
    pub(crate) fn skip_forward(&mut self, high: &[u8], commit: u64) -> Result<()> {
        let mut from = self.key();
        loop {
            from = match self.index.newer_from(self.keys, from, high, commit) {
                Found::Leaf(from) => from,
                Found::Nothing => return self.seek(high),
                Found::Disorder => return Err(self.out_of_order()),
            };
            self.place = self.enter(from, Bound::AtMost);
            self.entered = (Some(from), None);
            while self.is_valid() {
                if self.key() >= high || self.newest() >= commit {
                    return Ok(());
                }
                self.place += 1;
            }
            from = match self.index.fence_after(self.keys, &self.path, from) {
                NONE => {
                    self.invalidate();
                    return Ok(());
                }
                fence if self.keys.key(fence) <= from => return Err(self.out_of_order()),
                fence => self.keys.key(fence),
            };
        }
    }

    /// Goes back to the last key up to where the cursor is that has a version of `commit` or a later one; or, if that is below
    /// `low`, to the last key below it.
    ///
    /// # Errors
    /// As [`IndexCursor::next`].
    pub(crate) fn skip_backward(&mut self, low: &[u8], commit: u64) -> Result<()> {
        if self.newest() >= commit {
            return Ok(());
        }
        let mut before = self.key();
        loop {
            before = match self.index.newer_before(self.keys, before, low, commit) {
                Found::Leaf(before) => before,
                Found::Nothing => {
                    self.seek_before(low);
                    return Ok(());
                }
                Found::Disorder => return Err(self.out_of_order()),
            };
            let end = self.enter(before, Bound::Below);
            self.entered = (None, Some(before));
            for place in (0..end).rev() {
                self.place = place;
                if self.key() < low || self.newest() >= commit {
                    return Ok(());
                }
            }
            before = match self.index.fence_before(&self.path) {
                NONE => {
                    self.invalidate();
                    return Ok(());
                }
                fence if self.keys.key(fence) >= before => return Err(self.out_of_order()),
                fence => self.keys.key(fence),
            };
        }
    }

    /// Whether the cursor is at an entry.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.place < self.length
    }

    /// The key of the entry.
    ///
    /// # Panics
    /// When the cursor is not valid.
    #[inline]
    pub(crate) fn key(&self) -> &'a [u8] {
        assert!(self.is_valid(), "the cursor is at no entry");
        self.keys.key(self.positions[self.place])
    }

    /// The versions of the entry, newest first.
    ///
    /// # Panics
    /// When the cursor is not valid.
    pub(crate) fn versions(&self) -> Versions {
        Versions::new(self.index.arena, self.reference())
    }

    /// The newest version of the entry with `commit <= newest_commit`.
    ///
    /// # Panics
    /// When the cursor is not valid.
    #[inline]
    pub(crate) fn visible(&self, newest_commit: u64) -> Option<Version> {
        self.index.visible(self.reference(), newest_commit)
    }

    /// The newest commit of the entry.
    fn newest(&self) -> u64 {
        self.versions().next().map_or(0, |version| version.commit)
    }

    #[inline]
    fn reference(&self) -> u32 {
        assert!(self.is_valid(), "the cursor is at no entry");
        self.references[self.place]
    }

    fn invalidate(&mut self) {
        (self.length, self.place) = (0, 0);
    }

    /// Goes to the start of the leaf behind the copied one, in whose range `key` is.
    fn enter_next(&mut self, key: &[u8]) -> Result<()> {
        let fence = match self.index.fence_after(self.keys, &self.path, key) {
            NONE => {
                self.invalidate();
                return Ok(());
            }
            fence => self.keys.key(fence),
        };
        if self.entered.0.is_some_and(|entered| fence <= entered) {
            return Err(self.out_of_order());
        }
        self.entered = (Some(fence), None);
        self.place = self.enter(fence, Bound::AtMost);
        if !self.is_valid() {
            return Err(self.out_of_order());
        }
        Ok(())
    }

    /// The error for keys that led the walk back to where it was; it ends here.
    #[cold]
    fn out_of_order(&mut self) -> Error {
        self.invalidate();
        Error::damaged(OUT_OF_ORDER)
    }

    /// Copies the leaf that `bound` leads to and returns how many of its keys are below `key`.
    fn enter(&mut self, key: &[u8], bound: Bound) -> usize {
        self.path.clear();
        let path = &mut self.path;
        let offset = self.index.descend(self.keys, key, bound, |step| path.push(step));
        let leaf: &Leaf = self.index.arena.at(offset);
        let count = leaf.count();
        // Neighbours by key lie anywhere in the log: one wait for all of them instead of one for each.
        (0..count).for_each(|slot| self.keys.prefetch(leaf.position(slot)));
        let order = leaf.order(self.keys, count);
        self.length = order.len();
        for (place, ranked) in order.iter().enumerate() {
            self.references[place] = leaf.reference(ranked.slot());
            self.positions[place] = leaf.position(ranked.slot());
        }
        leaf.rank(self.keys, &order, key)
    }
}
