//! Finding what is newer than a commit without looking at what is not: each node says after which commit nothing in it was
//! written. So a walk jumps over what a range delete covers, whole branches at a time, and still meets what was put there later.

use super::arena::NONE;
use super::branch::{Bound, Branch};
use super::leaf::Leaf;
use super::{Index, Keys};

/// What a search comes to.
pub(super) enum Found<'a> {
    /// A descent for this key leads to a leaf that may hold something newer.
    Leaf(&'a [u8]),
    Nothing,
    /// The keys in the log are not in the order in which they were inserted.
    Disorder,
}

impl Index {
    /// The commit after which nothing below a node was written; `level` 0: a leaf.
    pub(super) fn newest_below(&self, node: u32, level: usize) -> u64 {
        match level {
            0 => self.arena.at::<Leaf>(node).newest(),
            _ => self.arena.at::<Branch>(node).newest(),
        }
    }

    /// The first leaf from that of `from` on, with keys below `high`, that may have a version of `commit` or a later one.
    pub(super) fn newer_from<'a, K: Keys<'a>>(&self, keys: K, from: &'a [u8], high: &[u8], commit: u64) -> Found<'a> {
        let (root, height) = self.root();
        self.newer_in(root, height, keys, from, high, commit)
    }

    fn newer_in<'a, K: Keys<'a>>(
        &self,
        node: u32,
        level: usize,
        keys: K,
        mut from: &'a [u8],
        high: &[u8],
        commit: u64,
    ) -> Found<'a> {
        if self.newest_below(node, level) < commit {
            return Found::Nothing;
        }
        if level == 0 {
            return Found::Leaf(from);
        }
        let branch: &Branch = self.arena.at(node);
        let slots = branch.slots();
        loop {
            let child = branch.child(branch.choose(keys, slots, from, Bound::AtMost));
            match self.newer_in(child, level - 1, keys, from, high, commit) {
                Found::Nothing => {}
                found => return found,
            }
            let is_newer = |child| self.newest_below(child, level - 1) >= commit;
            let next = branch.separator_after_if(keys, slots, from, is_newer);
            let next = next.map(|next| keys.key(next));
            match next.filter(|&next| next < high) {
                None => return Found::Nothing,
                Some(next) if next <= from => return Found::Disorder,
                Some(next) => from = next,
            }
        }
    }

    /// The last leaf with keys below `before`, but not only such below `low`, that may have a version of `commit` or a later one.
    pub(super) fn newer_before<'a, K: Keys<'a>>(
        &self,
        keys: K,
        before: &'a [u8],
        low: &[u8],
        commit: u64,
    ) -> Found<'a> {
        let (root, height) = self.root();
        self.newer_back_in((root, NONE), height, keys, before, low, commit)
    }

    /// `separator`: that of the node.
    fn newer_back_in<'a, K: Keys<'a>>(
        &self,
        (node, separator): (u32, u32),
        level: usize,
        keys: K,
        mut before: &'a [u8],
        low: &[u8],
        commit: u64,
    ) -> Found<'a> {
        if self.newest_below(node, level) < commit {
            return Found::Nothing;
        }
        if level == 0 {
            return Found::Leaf(before);
        }
        let branch: &Branch = self.arena.at(node);
        let slots = branch.slots();
        loop {
            let slot = branch.choose(keys, slots, before, Bound::Below);
            let begin = branch.separator(slot);
            match self.newer_back_in((branch.child(slot), begin), level - 1, keys, before, low, commit) {
                Found::Nothing => {}
                found => return found,
            }
            if begin == NONE || begin == separator {
                return Found::Nothing;
            }
            let edge = keys.key(begin);
            if edge <= low {
                return Found::Nothing;
            }
            if edge >= before {
                return Found::Disorder;
            }
            let is_newer = |child| self.newest_below(child, level - 1) >= commit;
            let Some(slot) = branch.slot_before_if(keys, slots, edge, is_newer) else {
                return Found::Nothing;
            };
            // Where that child ends.
            let start = match branch.separator(slot) {
                NONE => &[],
                separator => keys.key(separator),
            };
            let end = branch.separator_after(keys, slots, start).map(|end| keys.key(end));
            before = end.map_or(edge, |end| end.min(edge));
            if before <= low {
                return Found::Nothing;
            }
        }
    }
}
