//! Fingers: where the writer was, so that what it does next nearby need not begin at the root.
//!
//! The rows of a topic are written one behind the other and their counter again and again, so nearly always the leaf is
//! the one of the time before (the fingers of Huddleston and Mehlhorn, "A new data structure for representing sorted
//! lists", 1982). Why a finger stays true: a leaf that is copied says so before its copies can be reached, so one that
//! does not say so is part of the tree, and what it holds is there and nowhere else. And as long as it has room, it
//! also lies between the same two separators as when the finger was made: only a full leaf gets another one beside it.
//!
//! For holders of the commit lock only: readers do not hold it, and the leaf could be copied in between.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::arena::NONE;
use super::leaf::{LEAF_ENTRIES, Leaf};
use super::{Index, Keys, Path};

/// A leaf of one index, and the keys that belong into it: from that at the position `lower` in the log up to that at
/// `upper`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finger {
    pub(super) leaf: u32,
    lower: u32,
    upper: u32,
}

impl Finger {
    /// It leads nowhere.
    pub(crate) const NONE: Finger = Finger {
        leaf: NONE,
        lower: NONE,
        upper: NONE,
    };
}

/// Where the rows of a sequence are written: its counter, and the newest of its heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingers {
    pub(crate) counter: Finger,
    pub(crate) head: Finger,
}

impl Fingers {
    pub(crate) const NONE: Fingers = Fingers {
        counter: Finger::NONE,
        head: Finger::NONE,
    };
}

/// The fingers that a process keeps for a sequence, with the generation in whose index they are. All of it is read and
/// written under the commit lock, which orders it.
#[derive(Debug)]
pub(crate) struct KeptFingers {
    generation: AtomicU32,
    words: [AtomicU32; 6],
}

impl Default for KeptFingers {
    fn default() -> KeptFingers {
        KeptFingers {
            generation: AtomicU32::new(0),
            words: [const { AtomicU32::new(NONE) }; 6],
        }
    }
}

impl KeptFingers {
    /// Those in the index of a generation.
    #[inline]
    pub(crate) fn of(&self, generation: u32) -> Fingers {
        if self.generation.load(Relaxed) != generation {
            return Fingers::NONE;
        }
        let [counter, lower, upper, head, above, below] = self.words.each_ref().map(|word| word.load(Relaxed));
        Fingers {
            counter: Finger {
                leaf: counter,
                lower,
                upper,
            },
            head: Finger {
                leaf: head,
                lower: above,
                upper: below,
            },
        }
    }

    #[inline]
    pub(crate) fn keep(&self, generation: u32, fingers: Fingers) {
        let Fingers { counter, head } = fingers;
        let words = [
            counter.leaf,
            counter.lower,
            counter.upper,
            head.leaf,
            head.lower,
            head.upper,
        ];
        self.words
            .iter()
            .zip(words)
            .for_each(|(kept, word)| kept.store(word, Relaxed));
        self.generation.store(generation, Relaxed);
    }
}

impl Index {
    /// The finger to a leaf into which `key` belongs, to which `path` leads.
    pub(super) fn finger<'a, K: Keys<'a>>(&self, keys: K, leaf: u32, path: &Path, key: &[u8]) -> Finger {
        Finger {
            leaf,
            lower: self.fence_before(path),
            upper: self.fence_after(keys, path, key),
        }
    }

    /// What the finger says of a key; `None`: nothing.
    #[inline]
    pub(super) fn at_finger<'a, K: Keys<'a>>(&self, keys: K, finger: Finger, key: &[u8], tag: u8) -> Option<At<'_>> {
        let Finger { leaf, lower, upper } = finger;
        if leaf == NONE {
            return None;
        }
        let leaf: &Leaf = self.arena.at(leaf);
        if leaf.is_copied() {
            return None;
        }
        let count = leaf.count();
        if let Some(slot) = leaf.find(&self.arena, keys, key, tag, count) {
            return Some(At::Slot(leaf, slot));
        }
        let belongs_there = count < LEAF_ENTRIES
            && (lower == NONE || keys.key(lower) <= key)
            && (upper == NONE || key < keys.key(upper));
        belongs_there.then_some(At::Room(leaf))
    }
}

/// What a finger leads to.
pub(super) enum At<'a> {
    /// The key.
    Slot(&'a Leaf, usize),
    /// Where the key belongs, and is not.
    Room(&'a Leaf),
}
