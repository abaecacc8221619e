//! Inserting: what the one writer does. `mod.rs` says why readers may go on meanwhile.
//!
//! A full leaf is divided evenly into two new ones, or, when its entries arrive in ascending or descending order, left
//! as it is with a new leaf beside it: sequential loads then fill their leaves and copy nothing. What follows in the
//! branches goes up level by level while nodes must be copied, and ends with the one store that publishes it all.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};

use arrayvec::ArrayVec;

use super::arena::{NONE, VersionRecord, count_up, count_up_wide};
use super::branch::{BRANCH_HEAD_BYTES, BRANCH_SLOTS, BUILT_SLOTS_MAX, Bound, Branch, Child, Children, Placed};
use super::finger::At;
use super::head::{Fences, Frame};
use super::leaf::{Entry, LEAF_ENTRIES, LEAF_HEAD_BYTES, Leaf, Order, leaf_head};
use super::{Finger, Index, Keys, Path, Step, Version, key_tag};
use crate::planted::kill_point;

/// As many of the latest arrivals must be at the end of the order, one beside the other, for a load to count as
/// sequential. By chance that happens to one full leaf in 30,000.
const SEQUENTIAL_ARRIVALS: usize = 3;

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
        self.filter.prefetch(&self.arena, hash);
        let mut path = Path::new();
        let leaf = self.descend(keys, full_key, Bound::AtMost, |step| path.push(step));
        self.insert_in(leaf, &path, keys, full_key, hash, Version { commit, position });
    }

    /// Inserts a key that may belong where a finger leads to. Returns the finger to where it does belong. Conditions
    /// as for [`Index::insert`].
    pub(crate) fn insert_near<'a, K: Keys<'a>>(
        &self,
        keys: K,
        full_key: &[u8],
        hash: u64,
        version: Version,
        finger: Finger,
    ) -> Finger {
        match self.at_finger(keys, finger, full_key, key_tag(hash)) {
            Some(At::Slot(leaf, slot)) => {
                debug_assert!(self.leads_to(keys, full_key, leaf));
                leaf.expect(version.commit);
                self.renew(leaf, slot, version);
                return finger;
            }
            Some(At::Room(leaf)) => {
                debug_assert!(self.leads_to(keys, full_key, leaf));
                leaf.expect(version.commit);
                leaf.push(self.entry(leaf, keys, full_key, hash, version));
                self.count_entry();
                return finger;
            }
            None => {}
        }
        self.filter.prefetch(&self.arena, hash);
        let mut path = Path::new();
        let leaf = self.descend(keys, full_key, Bound::AtMost, |step| path.push(step));
        let found = self.finger(keys, leaf, &path, full_key);
        // What comes by the finger does not pass these.
        path.iter()
            .for_each(|step| self.arena.at::<Branch>(step.branch).expect(u64::MAX));
        self.insert_in(leaf, &path, keys, full_key, hash, version);
        found
    }

    /// Adds an operation to the leaf that `path` leads to, or to what the leaf is divided into.
    #[inline(always)]
    fn insert_in<'a, K: Keys<'a>>(
        &self,
        leaf_offset: u32,
        path: &Path,
        keys: K,
        full_key: &[u8],
        hash: u64,
        version: Version,
    ) {
        debug_assert!(version.position != NONE && keys.key(version.position) == full_key);
        let leaf: &Leaf = self.arena.at(leaf_offset);
        leaf.expect(version.commit);
        for step in path {
            self.arena.at::<Branch>(step.branch).expect(version.commit);
        }
        let count = leaf.count();
        if let Some(slot) = leaf.find(&self.arena, keys, full_key, key_tag(hash), count) {
            self.renew(leaf, slot, version);
            return;
        }
        let entry = self.entry(leaf, keys, full_key, hash, version);
        if count < LEAF_ENTRIES {
            leaf.push(entry);
        } else {
            self.divide_leaf(keys, path, leaf_offset, full_key, entry);
        }
        self.count_entry();
    }

    /// Gives the key in a slot a newer version.
    #[inline]
    fn renew(&self, leaf: &Leaf, slot: usize, version: Version) {
        let newest = leaf.reference(slot);
        if self.is_new(version, newest) {
            leaf.set_reference(slot, self.arena.allocate_version(version, newest));
            count_up_wide(&self.arena.header().counters.versions);
        }
    }

    /// An entry for a key that is new.
    #[inline]
    fn entry<'a, K: Keys<'a>>(&self, leaf: &Leaf, keys: K, full_key: &[u8], hash: u64, version: Version) -> Entry {
        self.filter.add(&self.arena, hash);
        Entry {
            head: leaf_head(leaf.frame().head(keys, full_key)),
            reference: self.arena.allocate_version(version, NONE),
            position: version.position,
            tag: key_tag(hash),
        }
    }

    #[inline]
    fn count_entry(&self) {
        let counters = &self.arena.header().counters;
        count_up_wide(&counters.entries);
        count_up_wide(&counters.versions);
    }

    /// Whether a descent ends at this leaf.
    fn leads_to<'a, K: Keys<'a>>(&self, keys: K, full_key: &[u8], leaf: &Leaf) -> bool {
        let reached = self.descend(keys, full_key, Bound::AtMost, |_| ());
        std::ptr::eq(leaf, self.arena.at::<Leaf>(reached))
    }

    /// Adds a range delete. Conditions as for [`Index::insert`].
    pub(crate) fn add_range_delete(&self, commit: u64, position: u32) {
        self.note(&self.arena.header().range_deletes, Version { commit, position });
    }

    /// Adds an attached run. Conditions as for [`Index::insert`].
    pub(crate) fn add_run(&self, commit: u64, position: u32) {
        self.note(&self.arena.header().runs, Version { commit, position });
    }

    fn note(&self, newest_of_its_kind: &AtomicU32, version: Version) {
        let newest = newest_of_its_kind.load(Relaxed);
        if newest == NONE || self.is_new(version, newest) {
            // Release: pairs with Acquire in `range_deletes` and `runs`.
            newest_of_its_kind.store(self.arena.allocate_version(version, newest), Release);
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
        let order = leaf.order(keys, LEAF_ENTRIES);
        let rank = leaf.rank(keys, &order, key);
        let fences = Fences::new(self.fence_before(path), self.fence_after(keys, path, key));
        let is_open = !leaf.is_closed();
        let additions = if is_open && rank == LEAF_ENTRIES && is_ascending(&order) {
            self.start_leaf_after(keys, leaf, fences, &order, entry)
        } else if is_open && rank == 0 && is_descending(&order) {
            self.start_leaf_before(keys, leaf_offset, fences, &order, entry)
        } else {
            leaf.is_being_copied();
            kill_point();
            let mut entries: Entries = order.iter().map(|ranked| leaf.entry(*ranked)).collect();
            entries.insert(rank, entry);
            self.halve(keys, leaf, fences, &entries)
        };
        count_up(&self.arena.header().counters.leaves);
        self.add_children(keys, key, path, additions, leaf.newest());
    }

    /// A new leaf with `entry` behind a full one that keeps its entries.
    fn start_leaf_after<'a, K: Keys<'a>>(
        &self,
        keys: K,
        leaf: &Leaf,
        fences: Fences,
        order: &Order,
        entry: Entry,
    ) -> Additions {
        leaf.close();
        // What follows will share with this key what this one shares with the leaf before, or nearly.
        let sample = (leaf.position(order[0].slot()), entry.position);
        let fences = Fences::new(entry.position, fences.upper);
        let frame = Frame::between(keys, fences, sample, LEAF_HEAD_BYTES);
        let node = self.new_leaf(keys, frame, None, &[entry], leaf.newest());
        Additions::from_iter([Child::new(entry.position, node)])
    }

    /// A new leaf with `entry` in front of a full one that keeps its entries.
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
        let separator = leaf.position(order[0].slot());
        let sample = (entry.position, leaf.position(order[LEAF_ENTRIES - 1].slot()));
        let frame = Frame::between(keys, Fences::new(fences.lower, separator), sample, LEAF_HEAD_BYTES);
        let node = self.new_leaf(keys, frame, None, &[entry], leaf.newest());
        Additions::from_iter([Child::new(fences.lower, node), Child::new(separator, leaf_offset)])
    }

    /// Two new leaves of half the entries each.
    fn halve<'a, K: Keys<'a>>(&self, keys: K, leaf: &Leaf, fences: Fences, entries: &[Entry]) -> Additions {
        let (left, right) = entries.split_at(entries.len() / 2);
        let separator = right[0].position;
        let build = |fences, half: &[Entry]| {
            let sample = (half[0].position, half[half.len() - 1].position);
            let wanted = Frame::between(keys, fences, sample, LEAF_HEAD_BYTES);
            self.new_leaf(keys, wanted, Some(leaf.frame()), half, leaf.newest())
        };
        let left = build(Fences::new(fences.lower, separator), left);
        let right = build(Fences::new(separator, fences.upper), right);
        Additions::from_iter([Child::new(fences.lower, left), Child::new(separator, right)])
    }

    /// Offset of a new leaf with `entries`, whose heads were taken by the frame `taken_by`, if any.
    fn new_leaf<'a, K: Keys<'a>>(
        &self,
        keys: K,
        wanted: Frame,
        taken_by: Option<Frame>,
        entries: &[Entry],
        newest: u64,
    ) -> u32 {
        let (offset, leaf) = self.arena.allocate_node::<Leaf>();
        if let Some(frame) = taken_by.and_then(|frame| frame.kept_for(wanted, LEAF_HEAD_BYTES / 2)) {
            leaf.format(frame, entries, newest);
        } else {
            let mut entries: Entries = entries.iter().copied().collect();
            for entry in &mut entries {
                entry.head = leaf_head(wanted.head(keys, keys.key(entry.position)));
            }
            leaf.format(wanted, &entries, newest);
        }
        offset
    }

    /// Tells the branch at the end of `path` of new children, and publishes. `key` is the one being inserted, by this
    /// commit.
    fn add_children<'a, K: Keys<'a>>(&self, keys: K, key: &[u8], path: &[Step], additions: Additions, commit: u64) {
        let Some((step, above)) = path.split_last() else {
            return self.add_root(keys, &additions);
        };
        let branch: &Branch = self.arena.at(step.branch);
        kill_point();
        if branch.append(keys, step.slots, &additions) {
            kill_point();
            return;
        }
        let fences = Fences::new(self.fence_before(above), self.fence_after(keys, above, key));
        let level = self.root().1 - path.len();
        let is_full = step.slots.count as usize == BRANCH_SLOTS;
        let additions = if is_full && additions.len() == 1 && branch.extends(keys, step.slots, additions[0]) {
            // What follows will span about as much as what this branch spans.
            let sample = branch.separator(1);
            self.start_branch_after(keys, sample, level, fences, additions[0], commit)
        } else {
            let children = branch.children_with(keys, step.slots, &additions);
            self.copy_branch(keys, level, fences, branch, &children)
        };
        self.add_children(keys, key, above, additions, commit);
    }

    /// A new branch with `child` behind a full one that is in order and stays as it is; `sample` is one of its
    /// separators.
    fn start_branch_after<'a, K: Keys<'a>>(
        &self,
        keys: K,
        sample: u32,
        level: usize,
        fences: Fences,
        child: Child,
        commit: u64,
    ) -> Additions {
        let fences = Fences::new(child.separator, fences.upper);
        let frame = Frame::between(keys, fences, (sample, child.separator), BRANCH_HEAD_BYTES);
        let node = self.new_branch(keys, frame, None, &[child.placed(keys, frame)], commit);
        count_up(&self.arena.header().counters.branches[level]);
        Additions::from_iter([Child::new(child.separator, node)])
    }

    /// One new branch, or two, in place of one, with these children, whose heads were taken by its frame.
    fn copy_branch<'a, K: Keys<'a>>(
        &self,
        keys: K,
        level: usize,
        fences: Fences,
        branch: &Branch,
        children: &Children,
    ) -> Additions {
        let build = |fences: Fences, children: &[Placed]| {
            let wanted = Frame::between(keys, fences, sample_of(children), BRANCH_HEAD_BYTES);
            let node = self.new_branch(keys, wanted, Some(branch.frame()), children, branch.newest());
            Child::new(fences.lower, node)
        };
        if children.len() <= BUILT_SLOTS_MAX {
            return Additions::from_iter([build(fences, children)]);
        }
        let (left, right) = children.split_at(children.len() / 2);
        let middle = right[0].child.separator;
        count_up(&self.arena.header().counters.branches[level]);
        let left = build(Fences::new(fences.lower, middle), left);
        Additions::from_iter([left, build(Fences::new(middle, fences.upper), right)])
    }

    /// Puts what takes the place of the root, or stands beside it, at the top.
    fn add_root<'a, K: Keys<'a>>(&self, keys: K, additions: &[Child]) {
        let (root, height) = self.root();
        let children = match *additions {
            [only] if only.separator == NONE => return self.set_root(only.node, height),
            [right] => [Child::new(NONE, root), right],
            [left, right] => [left, right],
            _ => unreachable!("a node is replaced by one or two"),
        };
        let children = children.map(|child| child.placed(keys, Frame::WHOLE));
        let frame = Frame::between(keys, Fences::new(NONE, NONE), sample_of(&children), BRANCH_HEAD_BYTES);
        let newest = children
            .iter()
            .map(|placed| self.newest_below(placed.child.node, height));
        let newest = newest.max().unwrap_or(0);
        let node = self.new_branch(keys, frame, None, &children, newest);
        count_up(&self.arena.header().counters.branches[height]);
        self.set_root(node, height + 1);
    }

    /// Offset of a new branch with `children`, whose heads were taken by the frame `taken_by`, if any.
    fn new_branch<'a, K: Keys<'a>>(
        &self,
        keys: K,
        wanted: Frame,
        taken_by: Option<Frame>,
        children: &[Placed],
        newest: u64,
    ) -> u32 {
        let (offset, branch) = self.arena.allocate_node::<Branch>();
        match taken_by.and_then(|frame| frame.kept_for(wanted, BRANCH_HEAD_BYTES / 2)) {
            Some(frame) => branch.format(frame, children.iter().copied(), newest),
            None => {
                let children = children.iter().map(|placed| placed.child.placed(keys, wanted));
                branch.format(wanted, children, newest);
            }
        }
        offset
    }
}

/// The least and the greatest separator that is a key.
fn sample_of(children: &[Placed]) -> (u32, u32) {
    let first = usize::from(children[0].child.separator == NONE && children.len() > 1);
    let last = children.len() - 1;
    (children[first].child.separator, children[last].child.separator)
}

/// Whether the latest arrivals of a full leaf are its greatest, in order.
fn is_ascending(order: &Order) -> bool {
    (0..SEQUENTIAL_ARRIVALS).all(|back| order[LEAF_ENTRIES - 1 - back].slot() == LEAF_ENTRIES - 1 - back)
}

/// Whether the latest arrivals of a full leaf are its least, in falling order.
fn is_descending(order: &Order) -> bool {
    (0..SEQUENTIAL_ARRIVALS).all(|back| order[back].slot() == LEAF_ENTRIES - 1 - back)
}
