//! Inserting: what the one writer does. `mod.rs` says why readers may go on meanwhile.
//!
//! A full leaf is divided evenly into two new ones, or, when its entries arrive in ascending or descending order, left
//! as it is with a new leaf beside it: sequential loads then fill their leaves and copy nothing. What follows in the
//! branches goes up level by level while nodes must be copied, and ends with the one store that publishes it all.

use std::sync::atomic::Ordering::{Relaxed, Release};

use arrayvec::ArrayVec;

use super::arena::{NONE, VersionRecord, count_up, count_up_wide};
use super::branch::{BRANCH_HEAD_BYTES, BUILT_SLOTS_MAX, Bound, Branch, Child, Children, place};
use super::head::{Fences, Frame};
use super::leaf::{Entry, LEAF_ENTRIES, LEAF_HEAD_BYTES, Leaf, Order, key_of, leaf_head};
use super::{Index, Keys, Path, Step, Version, key_tag};

/// As many of the latest arrivals must be at the end of the order, one beside the other, for a load to count as
/// sequential. By chance that happens to one full leaf in 30,000.
const SEQUENTIAL_ARRIVALS: usize = 3;
/// Heads are taken anew from the keys in the log only when they can gain this many bytes: reading all keys of a leaf
/// costs a cache miss each.
const HEAD_BYTES_GAINED_MIN: usize = 2;

/// What a branch is told about a child that was divided or copied: one or two children to add.
type Additions = ArrayVec<Child, 2>;
/// Entries of a full leaf and the new one, in order.
type Entries = ArrayVec<Entry, { LEAF_ENTRIES + 1 }>;

impl Index {
    /// Adds an operation of `commit`, whose key (`full_key`, with that `hash`) is in the log at `position`. A newer
    /// version of a key goes in front of the older ones. Readers see it entirely or not at all. Commits and, within a
    /// commit, positions must not decrease; one that is there already (its writer died) is left alone.
    ///
    /// The caller holds the commit lock and has asked [`Index::has_room`].
    pub(crate) fn insert<'a, K: Keys<'a>>(&self, keys: K, full_key: &[u8], hash: u64, commit: u64, position: u32) {
        debug_assert!(position != NONE && keys.key(position) == full_key);
        let mut path = Path::new();
        let leaf_offset = self.descend(keys, full_key, Bound::AtMost, |step| path.push(step));
        let leaf: &Leaf = self.arena.at(leaf_offset);
        let (tag, count) = (key_tag(hash), leaf.count());
        let counters = &self.arena.header().counters;
        let version = Version { commit, position };
        if let Some((slot, newest)) = leaf.find(&self.arena, keys, full_key, tag, count) {
            if self.is_new(version, newest) {
                leaf.set_reference(slot, self.arena.allocate_version(version, newest));
                count_up_wide(&counters.versions);
            }
            return;
        }
        self.filter.add(&self.arena, hash);
        let reference = self.arena.allocate_version(version, NONE);
        let head = leaf_head(leaf.frame().head(keys, full_key));
        let entry = Entry { head, reference, tag };
        if count < LEAF_ENTRIES {
            leaf.push(entry);
        } else {
            self.divide_leaf(keys, &path, leaf_offset, full_key, entry);
        }
        count_up_wide(&counters.entries);
        count_up_wide(&counters.versions);
    }

    /// Adds a special record (a range delete, an attached run). Conditions as for [`Index::insert`].
    pub(crate) fn note(&self, commit: u64, position: u32) {
        let notes = &self.arena.header().notes;
        let newest = notes.load(Relaxed);
        let version = Version { commit, position };
        if newest == NONE || self.is_new(version, newest) {
            // Release: pairs with Acquire in `notes`.
            notes.store(self.arena.allocate_version(version, newest), Release);
        }
    }

    /// Whether `version` is not yet among those from the record `newest` back.
    fn is_new(&self, version: Version, newest: u32) -> bool {
        let newest = self.arena.at::<VersionRecord>(newest).version();
        assert!(
            newest.commit <= version.commit,
            "commit {} inserted after {}",
            version.commit,
            newest.commit
        );
        (newest.commit, newest.position) < (version.commit, version.position)
    }

    /// Divides the full leaf that `path` leads to and adds `entry`, whose key is `key`.
    fn divide_leaf<'a, K: Keys<'a>>(&self, keys: K, path: &[Step], leaf_offset: u32, key: &[u8], entry: Entry) {
        let leaf: &Leaf = self.arena.at(leaf_offset);
        let order = leaf.order(&self.arena, keys, LEAF_ENTRIES);
        let rank = leaf.rank(&self.arena, keys, &order, key);
        let fences = Fences {
            lower: self.fence_before(path),
            upper: self.fence_after(keys, path, key),
        };
        let is_open = !leaf.is_closed();
        let additions = if is_open && rank == LEAF_ENTRIES && is_ascending(&order) {
            self.start_leaf_after(keys, leaf, fences, order[0].slot(), entry)
        } else if is_open && rank == 0 && is_descending(&order) {
            self.start_leaf_before(keys, leaf_offset, fences, &order, entry)
        } else {
            let mut entries: Entries = order.iter().map(|ranked| leaf.entry(*ranked)).collect();
            entries.insert(rank, entry);
            self.halve(keys, leaf.frame(), fences, &entries)
        };
        count_up(&self.arena.header().counters.leaves);
        self.add_children(keys, key, path, additions);
    }

    /// A new leaf with `entry` behind a full one. `least` is the slot of the least entry of the full one.
    fn start_leaf_after<'a, K: Keys<'a>>(
        &self,
        keys: K,
        leaf: &Leaf,
        fences: Fences,
        least: usize,
        entry: Entry,
    ) -> Additions {
        leaf.close();
        let separator = self.position_of(entry.reference);
        let fences = Fences {
            lower: separator,
            ..fences
        };
        // What follows will share with this key what this one shares with the leaf before, or nearly.
        let sample = (self.position_of(leaf.reference(least)), separator);
        let frame = Frame::between(keys, fences, sample, LEAF_HEAD_BYTES);
        let node = self.new_leaf(keys, frame, None, &[entry]);
        Additions::from_iter([Child { separator, node }])
    }

    /// A new leaf with `entry` in front of a full one.
    fn start_leaf_before<'a, K: Keys<'a>>(
        &self,
        keys: K,
        leaf_offset: u32,
        fences: Fences,
        order: &Order,
        entry: Entry,
    ) -> Additions {
        let leaf: &Leaf = self.arena.at(leaf_offset);
        leaf.close();
        let position = |slot| self.position_of(leaf.reference(slot));
        let separator = position(order[0].slot());
        let sample = (
            self.position_of(entry.reference),
            position(order[LEAF_ENTRIES - 1].slot()),
        );
        let frame = Frame::between(
            keys,
            Fences {
                upper: separator,
                ..fences
            },
            sample,
            LEAF_HEAD_BYTES,
        );
        let node = self.new_leaf(keys, frame, None, &[entry]);
        Additions::from_iter([
            Child {
                separator: fences.lower,
                node,
            },
            Child {
                separator,
                node: leaf_offset,
            },
        ])
    }

    /// Two new leaves of half the entries each.
    fn halve<'a, K: Keys<'a>>(&self, keys: K, frame: Frame, fences: Fences, entries: &[Entry]) -> Additions {
        let (left, right) = entries.split_at(entries.len() / 2);
        let separator = self.position_of(right[0].reference);
        let build = |fences, half: &[Entry]| {
            let sample = (
                self.position_of(half[0].reference),
                self.position_of(half[half.len() - 1].reference),
            );
            let wanted = Frame::between(keys, fences, sample, LEAF_HEAD_BYTES);
            self.new_leaf(keys, wanted, Some(frame), half)
        };
        let left = Child {
            separator: fences.lower,
            node: build(
                Fences {
                    upper: separator,
                    ..fences
                },
                left,
            ),
        };
        let right = Child {
            separator,
            node: build(
                Fences {
                    lower: separator,
                    ..fences
                },
                right,
            ),
        };
        Additions::from_iter([left, right])
    }

    /// Offset of a new leaf with `entries`, whose heads were taken by the frame `taken_by`, if any.
    fn new_leaf<'a, K: Keys<'a>>(&self, keys: K, wanted: Frame, taken_by: Option<Frame>, entries: &[Entry]) -> u32 {
        let kept = taken_by.filter(|frame| {
            let gained = wanted.skip.saturating_sub(frame.skip) as usize;
            frame.is_sure() && wanted.is_sure() && gained < HEAD_BYTES_GAINED_MIN
        });
        let (offset, leaf) = self.arena.allocate_node::<Leaf>();
        match kept {
            Some(frame) => leaf.format(
                Frame {
                    skip: frame.skip,
                    ..wanted
                },
                entries,
            ),
            None => {
                let head = |entry: &Entry| leaf_head(wanted.head(keys, key_of(&self.arena, keys, entry.reference)));
                let entries: Entries = entries
                    .iter()
                    .map(|entry| Entry {
                        head: head(entry),
                        ..*entry
                    })
                    .collect();
                leaf.format(wanted, &entries);
            }
        }
        offset
    }

    /// Tells the branch at the end of `path` of new children, and publishes. `key` is the one being inserted.
    fn add_children<'a, K: Keys<'a>>(&self, keys: K, key: &[u8], path: &[Step], additions: Additions) {
        let Some((step, above)) = path.split_last() else {
            return self.add_root(keys, &additions);
        };
        let branch: &Branch = self.arena.at(step.branch);
        if branch.append(keys, step.slots, &additions) {
            return;
        }
        let fences = Fences {
            lower: self.fence_before(above),
            upper: self.fence_after(keys, above, key),
        };
        let level = self.root().1 - path.len();
        let additions = if additions.len() == 1 && branch.extends(keys, step.slots, additions[0]) {
            self.start_branch_after(keys, branch, step, level, fences, additions[0])
        } else {
            let mut children = branch.children(keys, step.slots);
            additions
                .into_iter()
                .for_each(|child| place(keys, &mut children, child));
            self.copy_branch(keys, level, fences, &children)
        };
        self.add_children(keys, key, above, additions);
    }

    /// A new branch with `child` behind a full one that is in order and stays as it is.
    fn start_branch_after<'a, K: Keys<'a>>(
        &self,
        keys: K,
        full: &Branch,
        step: &Step,
        level: usize,
        fences: Fences,
        child: Child,
    ) -> Additions {
        let fences = Fences {
            lower: child.separator,
            ..fences
        };
        let sample = (full.separator(step.slots.count as usize / 2), child.separator);
        let frame = Frame::between(keys, fences, sample, BRANCH_HEAD_BYTES);
        let node = self.new_branch(keys, frame, &[child]);
        count_up(&self.arena.header().counters.branches[level]);
        Additions::from_iter([Child { node, ..child }])
    }

    /// One new branch, or two, in place of one with these children.
    fn copy_branch<'a, K: Keys<'a>>(&self, keys: K, level: usize, fences: Fences, children: &Children) -> Additions {
        let build = |fences: Fences, children: &[Child]| {
            let sample = sample_of(children);
            let frame = Frame::between(keys, fences, sample, BRANCH_HEAD_BYTES);
            Child {
                separator: fences.lower,
                node: self.new_branch(keys, frame, children),
            }
        };
        if children.len() <= BUILT_SLOTS_MAX {
            return Additions::from_iter([build(fences, children)]);
        }
        let (left, right) = children.split_at(children.len() / 2);
        let middle = right[0].separator;
        count_up(&self.arena.header().counters.branches[level]);
        let left = build(
            Fences {
                upper: middle,
                ..fences
            },
            left,
        );
        Additions::from_iter([
            left,
            build(
                Fences {
                    lower: middle,
                    ..fences
                },
                right,
            ),
        ])
    }

    /// Puts what takes the place of the root, or stands beside it, at the top.
    fn add_root<'a, K: Keys<'a>>(&self, keys: K, additions: &[Child]) {
        let (root, height) = self.root();
        let children = match *additions {
            [only] if only.separator == NONE => return self.set_root(only.node, height),
            [right] => [
                Child {
                    separator: NONE,
                    node: root,
                },
                right,
            ],
            [left, right] => [left, right],
            _ => unreachable!("a node is replaced by one or two"),
        };
        let fences = Fences {
            lower: NONE,
            upper: NONE,
        };
        let frame = Frame::between(keys, fences, sample_of(&children), BRANCH_HEAD_BYTES);
        let node = self.new_branch(keys, frame, &children);
        count_up(&self.arena.header().counters.branches[height]);
        self.set_root(node, height + 1);
    }

    fn new_branch<'a, K: Keys<'a>>(&self, keys: K, frame: Frame, children: &[Child]) -> u32 {
        let (offset, branch) = self.arena.allocate_node::<Branch>();
        branch.format(keys, frame, children);
        offset
    }

    fn position_of(&self, reference: u32) -> u32 {
        self.arena.at::<VersionRecord>(reference).position()
    }
}

/// The least and the greatest separator that is a key.
fn sample_of(children: &[Child]) -> (u32, u32) {
    let first = usize::from(children[0].separator == NONE && children.len() > 1);
    (children[first].separator, children[children.len() - 1].separator)
}

/// Whether the latest arrivals of a full leaf are its greatest, in order.
fn is_ascending(order: &Order) -> bool {
    (0..SEQUENTIAL_ARRIVALS).all(|back| order[LEAF_ENTRIES - 1 - back].slot() == LEAF_ENTRIES - 1 - back)
}

/// Whether the latest arrivals of a full leaf are its least, in falling order.
fn is_descending(order: &Order) -> bool {
    (0..SEQUENTIAL_ARRIVALS).all(|back| order[back].slot() == LEAF_ENTRIES - 1 - back)
}
