//! Ranges of keys, ordered and disjoint, each with the commit that emptied it: a B+tree whose nodes never change.
//!
//! A new range takes the place of what it covers, and copies the nodes on the way to it. So a set costs a reader one descent
//! however many ranges it holds, and the set of an earlier moment stays as it was for those that hold it.
//!
//! ```text
//! [a ........ f)@3                    and a new [c ... h)@7 make
//! [a .. c)@3 [c ............ h)@7
//! ```
//!
//! # Invariants
//! - Ranges are not empty, ascend and do not overlap.
//! - All leaves have the height 0; a branch stands one level above its children, and has at least one.
//! - Two neighbours among the children of a branch hold more than [`SLOTS_MAX`] together where a change touched them, so that
//!   nodes do not grow sparse.

use std::sync::Arc;

use crate::key::full_key::FullRange;

/// Ranges of a leaf, children of a branch.
const SLOTS_MAX: usize = 32;

/// A range of keys that held nothing right after a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Emptied {
    pub(crate) low: Arc<[u8]>,
    pub(crate) high: Arc<[u8]>,
    pub(crate) commit: u64,
}

impl Emptied {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        *self.low <= *key && *key < *self.high
    }
}

/// A set of ranges. A copy costs nothing and stays as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    root: Option<Arc<Node>>,
}

#[derive(Debug)]
struct Node {
    /// How many bytes all lower bounds have in common.
    shared: usize,
    /// The eight bytes of each lower bound behind those, filled up with zeros: comparing them decides nearly always.
    heads: Vec<u64>,
    lows: Vec<Arc<[u8]>>,
    slots: Slots,
}

#[derive(Debug)]
enum Slots {
    /// Upper bounds and commits.
    Leaf(Vec<(Arc<[u8]>, u64)>),
    Branch(Vec<Arc<Node>>),
}

impl Ranges {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The range that holds `key`, or the next one.
    #[inline]
    pub(crate) fn at_or_after(&self, key: &[u8]) -> Option<Emptied> {
        let mut node = self.root.as_ref()?;
        // Where the search turned right for the last time: the next range is there if the leaf has none.
        let mut beyond: Option<&Arc<Node>> = None;
        loop {
            let slot = node.upto(key).saturating_sub(1);
            match &node.slots {
                Slots::Branch(children) => {
                    beyond = children.get(slot + 1).or(beyond);
                    node = &children[slot];
                }
                Slots::Leaf(tops) => {
                    let slot = if *tops[slot].0 <= *key { slot + 1 } else { slot };
                    if slot < tops.len() {
                        return Some(node.emptied(slot));
                    }
                    return beyond.map(|node| node.first());
                }
            }
        }
    }

    /// Whether a range lies in part inside of this one.
    #[inline]
    pub(crate) fn touches(&self, range: &FullRange) -> bool {
        let next = || self.at_or_after(&range.low);
        !self.is_empty() && next().is_some_and(|found| *found.low < *range.high)
    }

    /// What is left of a range without what is emptied at its ends.
    pub(crate) fn trim(&self, range: &FullRange) -> FullRange {
        let mut left = range.clone();
        if let Some(found) = self.at_or_after(&range.low).filter(|found| *found.low <= *range.low) {
            left.low = found.high.to_vec();
        }
        if let Some(found) = self.before(&range.high).filter(|found| *found.high >= *range.high) {
            left.high = found.low.to_vec();
        }
        left
    }

    /// The last range that begins below `key`.
    pub(crate) fn before(&self, key: &[u8]) -> Option<Emptied> {
        let mut node = self.root.as_ref()?;
        let mut beyond: Option<&Arc<Node>> = None;
        loop {
            let below = node.below(key);
            match (&node.slots, below.checked_sub(1)) {
                (Slots::Branch(children), slot) => {
                    let slot = slot.unwrap_or(0);
                    beyond = slot.checked_sub(1).map(|left| &children[left]).or(beyond);
                    node = &children[slot];
                }
                (Slots::Leaf(_), Some(slot)) => return Some(node.emptied(slot)),
                (Slots::Leaf(_), None) => return beyond.map(|node| node.last()),
            }
        }
    }

    /// The commit that emptied the place of `key`.
    #[inline]
    pub(crate) fn emptied_at(&self, key: &[u8]) -> Option<u64> {
        let mut node = self.root.as_ref()?;
        loop {
            let slot = node.upto(key).checked_sub(1)?;
            match &node.slots {
                Slots::Branch(children) => node = &children[slot],
                Slots::Leaf(tops) => {
                    let (high, commit) = &tops[slot];
                    return (*key < **high).then_some(*commit);
                }
            }
        }
    }

    /// All ranges in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Emptied> {
        let mut waiting: Vec<(Arc<Node>, usize)> = self.root.iter().map(|root| (root.clone(), 0)).collect();
        std::iter::from_fn(move || {
            loop {
                let (node, slot) = waiting.last_mut()?;
                if *slot == node.len() {
                    waiting.pop();
                    continue;
                }
                *slot += 1;
                let found = match &node.slots {
                    Slots::Leaf(_) => return Some(node.emptied(*slot - 1)),
                    Slots::Branch(children) => children[*slot - 1].clone(),
                };
                waiting.push((found, 0));
            }
        })
    }

    /// The set with one more range: where others lie that were emptied by a later commit, those stay.
    pub(crate) fn with(&self, low: &[u8], high: &[u8], commit: u64) -> Ranges {
        if low >= high {
            return self.clone();
        }
        let (mut from, mut to): (Arc<[u8]>, Arc<[u8]>) = (low.into(), high.into());
        let mut pieces = Vec::new();
        let mut done = from.clone();
        let mut next = self.at_or_after(low);
        while let Some(old) = next.filter(|old| *old.low < *to) {
            if *old.low < *low {
                from = old.low.clone();
                push(&mut pieces, &old.low, &done, old.commit);
            }
            let above = old.high.clone();
            if old.commit > commit {
                let begin = old.low.clone().max(done.clone());
                push(&mut pieces, &done, &begin, commit);
                done = old.high.clone().min(to.clone());
                push(&mut pieces, &begin, &done, old.commit);
            }
            if *above > *high {
                push(&mut pieces, &done, &to, commit);
                push(&mut pieces, &to, &above, old.commit);
                (done, to) = (above.clone(), above);
                break;
            }
            next = self.at_or_after(&above);
        }
        push(&mut pieces, &done, &to, commit);
        let Some(root) = &self.root else {
            return Ranges::of(vec![Node::leaf(pieces)]);
        };
        let mut nodes = root.replace(Some(&from), Some(&to), pieces);
        // At the edges of what was replaced.
        join(&mut nodes, 0, usize::MAX);
        Ranges::of(nodes)
    }

    /// Adds one more range, as [`Ranges::with`] does. Where no set of an earlier moment shares the nodes on the way, and nothing
    /// is replaced, no node is copied: reading a long list of range deletes costs a search for each.
    pub(crate) fn add(&mut self, low: &[u8], high: &[u8], commit: u64) {
        let is_alone = low < high && self.at_or_after(low).is_none_or(|next| *next.low >= *high);
        let root = self.root.as_mut().filter(|_| is_alone);
        if !root.is_some_and(|root| Node::insert(root, low, high, commit)) {
            *self = self.with(low, high, commit);
        }
    }

    /// The set without the place of one key.
    pub(crate) fn cut(&self, key: &[u8]) -> Ranges {
        let found = self.at_or_after(key).filter(|found| found.contains(key));
        let (Some(found), Some(root)) = (found, &self.root) else {
            return self.clone();
        };
        let (end, begin): (Arc<[u8]>, Arc<[u8]>) = (key.into(), [key, &[0]].concat().into());
        let mut pieces = Vec::new();
        push(&mut pieces, &found.low, &end, found.commit);
        push(&mut pieces, &begin, &found.high, found.commit);
        let mut nodes = root.replace(Some(&found.low), Some(&found.high), pieces);
        join(&mut nodes, 0, usize::MAX);
        Ranges::of(nodes)
    }

    /// The set without what commits up to this one emptied.
    pub(crate) fn after(&self, commit: u64) -> Ranges {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut pieces: Vec<Emptied> = Vec::new();
        for piece in self.iter().filter(|piece| piece.commit > commit) {
            pieces.push(piece);
            if pieces.len() == SLOTS_MAX {
                nodes.push(Node::leaf(std::mem::take(&mut pieces)));
            }
        }
        if !pieces.is_empty() {
            nodes.push(Node::leaf(pieces));
        }
        Ranges::of(nodes)
    }

    /// A tree over nodes of one level.
    fn of(mut nodes: Vec<Arc<Node>>) -> Ranges {
        while nodes.len() > 1 {
            nodes = split_evenly(nodes).into_iter().map(Node::branch).collect();
        }
        let mut root = nodes.pop();
        while let Some(node) = &root
            && let Slots::Branch(children) = &node.slots
            && let [only] = children.as_slice()
        {
            root = Some(only.clone());
        }
        Ranges { root }
    }
}

/// Adds a range behind those that are there. If it touches the last, of the same commit, that becomes longer instead.
fn push(pieces: &mut Vec<Emptied>, low: &Arc<[u8]>, high: &Arc<[u8]>, commit: u64) {
    if low >= high {
        return;
    }
    match pieces.last_mut() {
        Some(last) if last.high == *low && last.commit == commit => last.high = high.clone(),
        _ => pieces.push(Emptied {
            low: low.clone(),
            high: high.clone(),
            commit,
        }),
    }
}

/// Pieces of at most [`SLOTS_MAX`], about equally long.
fn split_evenly<T>(items: Vec<T>) -> Vec<Vec<T>> {
    let parts = items.len().div_ceil(SLOTS_MAX);
    let mut items = items.into_iter();
    let mut left = items.len();
    (0..parts)
        .map(|part| {
            let count = left.div_ceil(parts - part);
            left -= count;
            items.by_ref().take(count).collect()
        })
        .collect()
}

/// Joins neighbours among nodes of one level that fit into one, from the pair `first` on to the pair `last`.
fn join(nodes: &mut Vec<Arc<Node>>, first: usize, last: usize) {
    let mut pair = first;
    let mut end = last.min(nodes.len());
    while pair < end && pair + 1 < nodes.len() {
        if nodes[pair].len() + nodes[pair + 1].len() > SLOTS_MAX {
            pair += 1;
            continue;
        }
        let right = nodes.remove(pair + 1);
        nodes[pair] = nodes[pair].joined(&right);
        end = end.saturating_sub(1).max(pair);
    }
}

impl Node {
    fn new(lows: Vec<Arc<[u8]>>, slots: Slots) -> Arc<Node> {
        let (shared, heads) = heads(&lows);
        Arc::new(Node {
            shared,
            heads,
            lows,
            slots,
        })
    }

    fn leaf(pieces: Vec<Emptied>) -> Arc<Node> {
        let (lows, tops) = pieces
            .into_iter()
            .map(|piece| (piece.low, (piece.high, piece.commit)))
            .unzip();
        Node::new(lows, Slots::Leaf(tops))
    }

    fn branch(children: Vec<Arc<Node>>) -> Arc<Node> {
        let lows = children.iter().map(|child| child.lows[0].clone()).collect();
        Node::new(lows, Slots::Branch(children))
    }

    /// Puts a range among those of a leaf that has room, behind its first one; `false`: that is not possible in place.
    fn insert(node: &mut Arc<Node>, low: &[u8], high: &[u8], commit: u64) -> bool {
        let Some(node) = Arc::get_mut(node) else { return false };
        let slot = node.below(low);
        match &mut node.slots {
            // The bounds of branches stay as they are.
            _ if slot == 0 => false,
            Slots::Branch(children) => Node::insert(&mut children[slot - 1], low, high, commit),
            Slots::Leaf(tops) if tops.len() < SLOTS_MAX => {
                tops.insert(slot, (high.into(), commit));
                node.lows.insert(slot, low.into());
                if slot + 1 < node.lows.len() {
                    node.heads.insert(slot, head(&low[node.shared..]));
                } else {
                    (node.shared, node.heads) = heads(&node.lows);
                }
                true
            }
            Slots::Leaf(_) => false,
        }
    }

    fn joined(&self, right: &Node) -> Arc<Node> {
        let lows = self.lows.iter().chain(&right.lows).cloned().collect();
        let slots = match (&self.slots, &right.slots) {
            (Slots::Leaf(left), Slots::Leaf(right)) => Slots::Leaf(left.iter().chain(right).cloned().collect()),
            (Slots::Branch(left), Slots::Branch(right)) => Slots::Branch(left.iter().chain(right).cloned().collect()),
            _ => unreachable!("neighbours have the same height"),
        };
        Node::new(lows, slots)
    }

    fn len(&self) -> usize {
        self.lows.len()
    }

    fn emptied(&self, slot: usize) -> Emptied {
        let Slots::Leaf(tops) = &self.slots else {
            unreachable!("ranges are in leaves");
        };
        Emptied {
            low: self.lows[slot].clone(),
            high: tops[slot].0.clone(),
            commit: tops[slot].1,
        }
    }

    fn first(&self) -> Emptied {
        match &self.slots {
            Slots::Leaf(_) => self.emptied(0),
            Slots::Branch(children) => children[0].first(),
        }
    }

    fn last(&self) -> Emptied {
        match &self.slots {
            Slots::Leaf(tops) => self.emptied(tops.len() - 1),
            Slots::Branch(children) => children[children.len() - 1].last(),
        }
    }

    /// How many lower bounds are at most `key`.
    #[inline]
    fn upto(&self, key: &[u8]) -> usize {
        self.place(key, |low| low <= key)
    }

    /// How many lower bounds are below `key`.
    fn below(&self, key: &[u8]) -> usize {
        self.place(key, |low| low < key)
    }

    #[inline(always)]
    fn place(&self, key: &[u8], counts: impl Fn(&[u8]) -> bool) -> usize {
        let shared = &self.lows[0][..self.shared];
        let front = &key[..key.len().min(self.shared)];
        if front != shared {
            return if front < shared { 0 } else { self.len() };
        }
        let head = head(&key[self.shared..]);
        let first = self.heads.partition_point(|&other| other < head);
        let equal = self.heads[first..].partition_point(|&other| other == head);
        first + self.lows[first..first + equal].partition_point(|low| counts(low))
    }

    /// The nodes that take the place of this one when the ranges that begin in `from..to` (`None`: no bound) are replaced.
    fn replace(&self, from: Option<&[u8]>, to: Option<&[u8]>, pieces: Vec<Emptied>) -> Vec<Arc<Node>> {
        let first = from.map_or(0, |from| self.below(from));
        let end = to.map_or(self.len(), |to| self.below(to)).max(first);
        match &self.slots {
            Slots::Leaf(_) => {
                let mut all: Vec<Emptied> = (0..first).map(|slot| self.emptied(slot)).collect();
                all.extend(pieces);
                all.extend((end..self.len()).map(|slot| self.emptied(slot)));
                split_evenly(all).into_iter().map(Node::leaf).collect()
            }
            Slots::Branch(children) => {
                // The child in front of the first whole one holds the beginning, the last that begins below `to` the end.
                let left = first.saturating_sub(1);
                let right = end.saturating_sub(1).max(left);
                let mut all: Vec<Arc<Node>> = children[..left].to_vec();
                if left == right {
                    all.extend(children[left].replace(from, to, pieces));
                } else {
                    all.extend(children[left].replace(from, None, pieces));
                    all.extend(children[right].replace(None, to, Vec::new()));
                }
                let changed = all.len();
                all.extend_from_slice(&children[right + 1..]);
                join(&mut all, left.saturating_sub(1), changed);
                split_evenly(all).into_iter().map(Node::branch).collect()
            }
        }
    }
}

/// What lower bounds have in common, and the eight bytes of each behind that.
fn heads(lows: &[Arc<[u8]>]) -> (usize, Vec<u64>) {
    let (first, last) = (&lows[0], &lows[lows.len() - 1]);
    let shared = first.iter().zip(last.iter()).take_while(|(a, b)| a == b).count();
    (shared, lows.iter().map(|low| head(&low[shared..])).collect())
}

/// The first eight bytes, filled up with zeros.
#[inline]
fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(first)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys in order, and for the place between each and the next the last commit that emptied it.
    struct Model {
        keys: Vec<Vec<u8>>,
        emptied: Vec<u64>,
    }

    impl Model {
        fn new(random: &mut fastrand::Rng, count: usize) -> Model {
            let mut keys: Vec<Vec<u8>> = (0..count)
                .map(|_| match random.u8(..4) {
                    0 => vec![0; random.usize(..20)],
                    1 => random.u32(..).to_be_bytes().to_vec(),
                    2 => [
                        b"a long front that many share".as_slice(),
                        &random.u16(..).to_be_bytes(),
                    ]
                    .concat(),
                    _ => (0..random.usize(..12))
                        .map(|_| [0, 1, 0xFF][random.usize(..3)])
                        .collect(),
                })
                .collect();
            keys.sort();
            keys.dedup();
            let emptied = vec![0; keys.len()];
            Model { keys, emptied }
        }

        fn check(&self, ranges: &Ranges) {
            let all: Vec<Emptied> = ranges.iter().collect();
            let mut emptied = vec![0; self.keys.len()];
            for (number, range) in all.iter().enumerate() {
                assert!(range.low < range.high, "an empty range");
                assert!(number == 0 || all[number - 1].high <= range.low, "ranges that overlap");
                let place = |key: &[u8]| self.keys.binary_search_by(|other| (**other).cmp(key)).unwrap();
                emptied[place(&range.low)..place(&range.high)].fill(range.commit);
            }
            assert_eq!(emptied, self.emptied);
            for (key, &emptied) in self.keys.iter().zip(&self.emptied) {
                assert_eq!(ranges.emptied_at(key).unwrap_or(0), emptied);
                let next = all.iter().find(|range| *range.high > **key);
                assert_eq!(ranges.at_or_after(key).as_ref(), next);
                let before = all.iter().rev().find(|range| *range.low < **key);
                assert_eq!(ranges.before(key).as_ref(), before);
            }
        }
    }

    #[test]
    fn ranges_agree_with_a_model_and_older_sets_stay_as_they_were() {
        let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        println!("DURAMEN_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..60 {
            let mut model = Model::new(&mut random, [20, 200, 2_000][round % 3]);
            let mut ranges = Ranges::default();
            let mut older = Vec::new();
            let count = model.keys.len();
            for commit in 1..=count as u64 {
                let low = random.usize(..count);
                let length = if random.u8(..50) == 0 { count } else { 4 };
                let high = (low + random.usize(..length)).min(count - 1);
                // Mostly the newest commit; a range that was found empty may be older than others.
                let commit = if random.u8(..5) == 0 {
                    random.u64(1..=commit)
                } else {
                    commit
                };
                match random.bool() {
                    true => ranges.add(&model.keys[low], &model.keys[high], commit),
                    false => ranges = ranges.with(&model.keys[low], &model.keys[high], commit),
                }
                model.emptied[low..high]
                    .iter_mut()
                    .for_each(|newest| *newest = commit.max(*newest));
                if random.usize(..count) < 4 {
                    older.push((ranges.clone(), model.emptied.clone()));
                }
            }
            model.check(&ranges);
            let place = random.usize(..count - 1);
            let cut = ranges.cut(&model.keys[place]);
            for (number, key) in model.keys.iter().enumerate() {
                let emptied = if number == place { 0 } else { model.emptied[number] };
                assert_eq!(
                    cut.emptied_at(key).unwrap_or(0),
                    emptied,
                    "only the place of one key is taken out"
                );
            }
            let behind = [&model.keys[place][..], &[0]].concat();
            assert_eq!(cut.emptied_at(&behind), ranges.emptied_at(&behind));
            let oldest = random.u64(..count as u64);
            let young = ranges.after(oldest);
            let newest = std::mem::take(&mut model.emptied);
            model.emptied = newest
                .iter()
                .map(|&commit| if commit > oldest { commit } else { 0 })
                .collect();
            model.check(&young);
            for (ranges, emptied) in older {
                model.emptied = emptied;
                model.check(&ranges);
            }
        }
    }

    #[test]
    fn no_order_of_ranges_makes_the_tree_deep() {
        fn height(node: &Node) -> usize {
            match &node.slots {
                Slots::Leaf(_) => 1,
                Slots::Branch(children) => 1 + children.iter().map(|child| height(child)).max().unwrap(),
            }
        }
        let key = |number: u32| number.to_be_bytes();
        let count = 20_000u32;
        for order in ["ascending", "descending", "scattered", "taken away again and again"] {
            let mut ranges = Ranges::default();
            for number in 0..count {
                let place = match order {
                    "ascending" => number,
                    "descending" => count - number,
                    _ => number.wrapping_mul(7919) % count,
                };
                ranges.add(&key(place * 10), &key(place * 10 + 5), number.into());
                if order.starts_with("taken") && number % 100 == 99 {
                    let low = number.wrapping_mul(104_729) % count * 10;
                    ranges = ranges.with(&key(low), &key(low + count), number.into());
                }
            }
            assert!(!ranges.is_empty());
            let height = height(ranges.root.as_ref().unwrap());
            assert!(height <= 4, "{order}: {height} levels of {}", ranges.iter().count());
        }
    }
}
