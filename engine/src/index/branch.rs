//! A branch: up to 63 children, each with a separator, the least key of its range.
//!
//! ```text
//! slots (count and how many of them are sorted), frame, built | 63 heads of 8 bytes | 63 separators | 63 children |
//! newest commit
//! ```
//! The first `sorted` slots are in the order of their separators, the few behind them (at most [`TAIL_SLOTS`]) in the
//! order in which they arrived. Slots are only added, never changed. When a child is divided, *two* slots are added:
//! (separator of the child, left half) and (separator of the right half, right half); of slots with the same separator
//! the latest counts. Both become visible with the one Release store of the slot word. A reader that read the word
//! before goes to the old child, which no longer changes and which holds all that was there when it read the
//! word; it cannot end up in the left half without knowing of the right one, as it could if a child were replaced in
//! its slot.
//!
//! A separator is the log position of a key that is in the index, in the leaf that the separator leads to, at all
//! times, because entries are never removed. The first separator of the leftmost branches is `NONE`, below every key.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use arrayvec::ArrayVec;

use super::Keys;
use super::arena::{NONE, Shared};
use super::head::{Frame, StoredFrame};

/// Children of a branch.
pub(super) const BRANCH_SLOTS: usize = 63;
/// Slots behind the sorted ones. More of them make searches longer, fewer make the writer copy branches more often.
pub(super) const TAIL_SLOTS: usize = 16;
/// A branch is built with at most this many children, so that a full tail fits behind them.
pub(super) const BUILT_SLOTS_MAX: usize = BRANCH_SLOTS - TAIL_SLOTS;
/// Bytes of a head in a branch.
pub(super) const BRANCH_HEAD_BYTES: usize = 8;

#[repr(C, align(64))]
pub(super) struct Branch {
    slots: AtomicU32,
    frame: StoredFrame,
    /// Slots it was built with. Only the writer asks.
    built: AtomicU32,
    heads: [AtomicU64; BRANCH_SLOTS],
    separators: [AtomicU32; BRANCH_SLOTS],
    children: [AtomicU32; BRANCH_SLOTS],
    /// No version below it is of a later commit. In a line of its own: each insert changes it.
    newest: AtomicU64,
}

// SAFETY: atomic integers only.
unsafe impl Shared for Branch {}

const _: () = assert!(size_of::<Branch>() == 1088);

/// How many slots a branch had at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slots {
    pub(super) count: u16,
    pub(super) sorted: u16,
}

impl Slots {
    fn new(count: usize, sorted: usize) -> Slots {
        debug_assert!(sorted <= count && count <= BRANCH_SLOTS);
        Slots {
            count: count as u16,
            sorted: sorted as u16,
        }
    }
}

/// Which separators a search accepts; it takes the greatest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    /// Up to the key itself: leads to the leaf whose range holds the key.
    AtMost,
    /// Below the key: leads to the leaf that holds the last entry before the key.
    Below,
}

/// A child and where its range begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    pub(super) separator: u32,
    pub(super) node: u32,
}

/// A child with the head of its separator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) head: u64,
    pub(super) child: Child,
}

/// The children of a branch in order, and room for two more.
pub(super) type Children = ArrayVec<Placed, { BRANCH_SLOTS + 2 }>;

impl Branch {
    /// Prepares a branch that no reader can see yet, of children in order, whose heads were taken by `frame`.
    pub(super) fn format(&self, frame: Frame, children: impl ExactSizeIterator<Item = Placed>, newest: u64) {
        let count = children.len();
        assert!(count > 0 && count <= BUILT_SLOTS_MAX);
        self.frame.set(frame);
        self.built.store(count as u32, Relaxed);
        self.newest.store(newest, Relaxed);
        children.enumerate().for_each(|(slot, placed)| self.fill(slot, placed));
        self.set_slots(Slots::new(count, count));
    }

    /// The commit after which no version below it is; `u64::MAX`: that is not known.
    #[inline]
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Relaxed)
    }

    /// Says that a version of this commit is about to be added below it. Relaxed: who sees the commit sees this.
    #[inline]
    pub(super) fn expect(&self, commit: u64) {
        if self.newest.load(Relaxed) < commit {
            self.newest.store(commit, Relaxed);
        }
    }

    fn fill(&self, slot: usize, Placed { head, child }: Placed) {
        self.heads[slot].store(head, Relaxed);
        self.separators[slot].store(child.separator, Relaxed);
        self.children[slot].store(child.node, Relaxed);
    }

    #[inline]
    pub(super) fn frame(&self) -> Frame {
        self.frame.get()
    }

    /// Release: pairs with Acquire in [`Branch::slots`]; shows the slots and the nodes that they lead to.
    fn set_slots(&self, slots: Slots) {
        self.slots
            .store(u32::from(slots.sorted) << 16 | u32::from(slots.count), Release);
    }

    /// The slots published. Acquire: pairs with Release in [`Branch::set_slots`].
    #[inline]
    pub(super) fn slots(&self) -> Slots {
        let word = self.slots.load(Acquire);
        Slots {
            count: word as u16,
            sorted: (word >> 16) as u16,
        }
    }

    #[inline]
    fn head(&self, slot: usize) -> u64 {
        self.heads[slot].load(Relaxed)
    }

    #[inline]
    pub(super) fn separator(&self, slot: usize) -> u32 {
        self.separators[slot].load(Relaxed)
    }

    #[inline]
    pub(super) fn child(&self, slot: usize) -> u32 {
        self.children[slot].load(Relaxed)
    }

    /// Whether `bound` accepts the separator in `slot` for `key`.
    fn is_accepted<'a, K: Keys<'a>>(&self, keys: K, slot: usize, key: &[u8], bound: Bound) -> bool {
        match self.separator(slot) {
            NONE => true,
            separator if bound == Bound::AtMost => keys.key(separator) <= key,
            separator => keys.key(separator) < key,
        }
    }

    /// How many of the sorted slots `bound` accepts for `key`, whose head here is `head`.
    #[inline]
    fn accepted<'a, K: Keys<'a>>(&self, keys: K, slots: Slots, key: &[u8], head: u64, bound: Bound) -> usize {
        let heads = &self.heads[..slots.sorted as usize];
        let end = heads.partition_point(|other| other.load(Relaxed) <= head);
        if end == 0 || self.head(end - 1) != head {
            return end;
        }
        let mut low = heads.partition_point(|other| other.load(Relaxed) < head);
        let mut high = end;
        while low < high {
            let middle = low.midpoint(high);
            match self.is_accepted(keys, middle, key, bound) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// The slot whose child leads to `key`: of the separators that `bound` accepts the greatest, of equal ones the
    /// latest.
    #[inline]
    pub(super) fn choose<'a, K: Keys<'a>>(&self, keys: K, slots: Slots, key: &[u8], bound: Bound) -> usize {
        let head = self.frame().head(keys, key);
        let accepted = self.accepted(keys, slots, key, head, bound);
        assert!(accepted > 0, "a search came to a branch that starts behind the key");
        let mut best = accepted - 1;
        let mut best_head = self.head(best);
        for slot in slots.sorted as usize..slots.count as usize {
            let other = self.head(slot);
            // One condition, nearly always true, instead of two that are a coin toss each.
            if (other > head) | (other < best_head) {
                continue;
            }
            let is_candidate = other != head || self.is_accepted(keys, slot, key, bound);
            if is_candidate && self.compare(keys, slot, best).is_ge() {
                (best, best_head) = (slot, other);
            }
        }
        best
    }

    /// The least separator above `key`.
    pub(super) fn separator_after<'a, K: Keys<'a>>(&self, keys: K, slots: Slots, key: &[u8]) -> Option<u32> {
        self.separator_after_if(keys, slots, key, |_| true)
    }

    /// The least separator above `key` among those of children that count.
    pub(super) fn separator_after_if<'a, K: Keys<'a>>(
        &self,
        keys: K,
        slots: Slots,
        key: &[u8],
        counts: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let head = self.frame().head(keys, key);
        let accepted = self.accepted(keys, slots, key, head, Bound::AtMost);
        let (sorted, count) = (slots.sorted as usize, slots.count as usize);
        let mut best = (accepted..sorted).find(|&slot| counts(self.child(slot)));
        for slot in sorted..count {
            let other = self.head(slot);
            if other < head || best.is_some_and(|best| other > self.head(best)) {
                continue;
            }
            let is_after = other > head || !self.is_accepted(keys, slot, key, Bound::AtMost);
            if is_after && counts(self.child(slot)) && best.is_none_or(|best| self.compare(keys, slot, best).is_lt()) {
                best = Some(slot);
            }
        }
        best.map(|slot| self.separator(slot))
    }

    /// The slot with the greatest separator below `key` among those of children that count.
    pub(super) fn slot_before_if<'a, K: Keys<'a>>(
        &self,
        keys: K,
        slots: Slots,
        key: &[u8],
        counts: impl Fn(u32) -> bool,
    ) -> Option<usize> {
        let head = self.frame().head(keys, key);
        let accepted = self.accepted(keys, slots, key, head, Bound::Below);
        let mut best = (0..accepted).rev().find(|&slot| counts(self.child(slot)));
        for slot in slots.sorted as usize..slots.count as usize {
            let other = self.head(slot);
            if other > head || best.is_some_and(|best| other < self.head(best)) {
                continue;
            }
            let is_before = other < head || self.is_accepted(keys, slot, key, Bound::Below);
            if is_before && counts(self.child(slot)) && best.is_none_or(|best| self.compare(keys, slot, best).is_ge()) {
                best = Some(slot);
            }
        }
        best
    }

    /// Compares the separators of two slots.
    fn compare<'a, K: Keys<'a>>(&self, keys: K, left: usize, right: usize) -> Ordering {
        match self.head(left).cmp(&self.head(right)) {
            Ordering::Equal => compare_separators(keys, self.separator(left), self.separator(right)),
            order => order,
        }
    }

    /// Adds one or two children and publishes them together. Declines when they do not fit, and when the heads have
    /// turned out to be useless and taking them again is due.
    pub(super) fn append<'a, K: Keys<'a>>(&self, keys: K, slots: Slots, children: &[Child]) -> bool {
        let (count, sorted) = (slots.count as usize, slots.sorted as usize);
        if count + children.len() > BRANCH_SLOTS {
            return false;
        }
        let extends = children.len() == 1 && self.extends(keys, slots, children[0]);
        let is_declined = match extends {
            true => self.is_copy_due(keys, count, children[0]),
            false => count + children.len() - sorted > TAIL_SLOTS,
        };
        if is_declined {
            return false;
        }
        for (slot, child) in children.iter().enumerate() {
            self.fill(count + slot, child.placed(keys, self.frame()));
        }
        let count = count + children.len();
        self.set_slots(Slots::new(count, if extends { count } else { sorted }));
        true
    }

    /// Whether a branch that grows in order should be copied with a better frame before `last` is added. Its frame was
    /// made when it had few children, and a tail that would force a copy never comes. No sooner than after as many
    /// additions as a tail takes, because `room.rs` counts on that.
    fn is_copy_due<'a, K: Keys<'a>>(&self, keys: K, count: usize, last: Child) -> bool {
        let additions = count - self.built.load(Relaxed) as usize;
        let is_possible = additions >= TAIL_SLOTS / 2 && count < BUILT_SLOTS_MAX;
        is_possible && last.placed(keys, self.frame()).head == self.head(count - 1)
    }

    /// Whether `child` can stand behind all others without making a tail.
    pub(super) fn extends<'a, K: Keys<'a>>(&self, keys: K, slots: Slots, child: Child) -> bool {
        let last = slots.count as usize - 1;
        slots.sorted == slots.count && compare_separators(keys, self.separator(last), child.separator).is_lt()
    }

    /// The children that count, in order, with `additions`.
    pub(super) fn children_with<'a, K: Keys<'a>>(&self, keys: K, slots: Slots, additions: &[Child]) -> Children {
        let (sorted, count) = (slots.sorted as usize, slots.count as usize);
        let placed = |slot| {
            let child = Child::new(self.separator(slot), self.child(slot));
            Placed {
                head: self.head(slot),
                child,
            }
        };
        let mut children: Children = (0..sorted).map(placed).collect();
        (sorted..count).for_each(|slot| place(keys, &mut children, placed(slot)));
        let frame = self.frame();
        additions
            .iter()
            .for_each(|child| place(keys, &mut children, child.placed(keys, frame)));
        children
    }
}

impl Child {
    pub(super) fn new(separator: u32, node: u32) -> Child {
        Child { separator, node }
    }

    /// This child with its head by `frame`.
    pub(super) fn placed<'a, K: Keys<'a>>(self, keys: K, frame: Frame) -> Placed {
        let head = match self.separator {
            NONE => 0,
            separator => frame.head(keys, keys.key(separator)),
        };
        Placed { head, child: self }
    }
}

/// Puts `new` where it belongs, over an older child with the same separator.
fn place<'a, K: Keys<'a>>(keys: K, children: &mut Children, new: Placed) {
    let order = |other: &Placed| match other.head.cmp(&new.head) {
        Ordering::Equal => compare_separators(keys, other.child.separator, new.child.separator),
        order => order,
    };
    match children.binary_search_by(order) {
        Ok(same) => children[same] = new,
        Err(place) => children.insert(place, new),
    }
}

fn compare_separators<'a, K: Keys<'a>>(keys: K, left: u32, right: u32) -> Ordering {
    match (left, right) {
        _ if left == right => Ordering::Equal,
        (NONE, _) => Ordering::Less,
        (_, NONE) => Ordering::Greater,
        _ => keys.key(left).cmp(keys.key(right)),
    }
}
