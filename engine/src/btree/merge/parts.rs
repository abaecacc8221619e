//! Merging in parts: a tree is divided by key, each part is merged on its own, and the results go under new upper
//! branches.

use super::super::branch::{Branch, Child};
use super::super::cursor::{Cursor, check_height};
use super::super::page;
use super::super::window::Payload;
use super::super::{ChangeStream, PageSink, PageSource, Root, Stored};
use super::{Fate, MergeOptions, Merger};
use crate::error::Result;
use crate::key::full_key::FullRange;
use crate::limits::{BRANCH_BYTES, BRANCH_PAGES};

/// Changes that a sample stands for are as much work as so many nodes of which most are only taken over.
const NODES_PER_SAMPLE: usize = 16;

/// Neighbouring nodes of one level, or keys behind all that the tree holds: what can be merged on its own.
pub(crate) struct Part {
    level: u8,
    /// Lower bound of all its keys.
    low: Vec<u8>,
    /// None: the tree holds no such keys. The bound of the first is that of the part.
    nodes: Vec<Node>,
    /// Lower bound of what follows.
    high: Option<Vec<u8>>,
}

impl Part {
    /// The keys that lie in it: from the first on, to before the second.
    pub(crate) fn range(&self) -> (&[u8], Option<&[u8]>) {
        (&self.low, self.high.as_deref())
    }
}

/// A tree in parts, and the branches above them, which no part holds.
pub(crate) struct Division {
    pub(crate) parts: Vec<Part>,
    level: u8,
    /// Page and birth of each.
    above: Vec<(u32, u64)>,
}

impl Division {
    /// Where a step ends that begins with a part: it has its share of the nodes, and work for so many threads. Keys
    /// behind all that the tree holds, which replace nothing, are in the last one.
    pub(crate) fn end_of_step(&self, first: usize, steps: usize, threads: usize) -> usize {
        let nodes: usize = self.parts.iter().map(|part| part.nodes.len()).sum();
        let least = nodes
            .div_ceil(steps.max(1))
            .max(if threads > 1 { 2 * threads } else { 1 });
        let mut taken = 0;
        let mut end = first;
        while end < self.parts.len() && (taken < least || self.parts[end].nodes.is_empty()) {
            taken += self.parts[end].nodes.len();
            end += 1;
        }
        end
    }

    /// Where a part ends, or all that follow when the tree holds no keys of theirs.
    pub(crate) fn end_of_part(&self, part: usize) -> usize {
        let is_held = |part: &Part| !part.nodes.is_empty();
        let rest = self.parts[part + 1..].iter();
        part + 1 + rest.take_while(|part| !is_held(part)).count()
    }

    /// A part as it is.
    pub(crate) fn as_it_is(&self, part: usize) -> MergedPart {
        let part = &self.parts[part];
        let nodes = part.nodes.iter().map(|(low, child)| {
            let payload = Payload::Child {
                child: *child,
                reused: true,
            };
            (low.clone(), payload)
        });
        MergedPart {
            level: part.level,
            nodes: nodes.collect(),
        }
    }

    /// The tree was put together again from parts that hold these keys: the branches above them are others.
    pub(crate) fn is_under<S: PageSource>(&mut self, source: S, root: Root) -> Result<()> {
        let mut above = Vec::new();
        let mut level = root.height - 1;
        let mut nodes = vec![root.link()];
        while level > self.level {
            let mut children = Vec::new();
            for link in nodes {
                let number = link.page;
                let page = source.page(number, BRANCH_BYTES, || link.checksum)?;
                let branch = Branch::open(&page, number, level)?;
                above.push((number, page::birth(&page)));
                if level > self.level + 1 {
                    children.extend((0..branch.count()).map(|index| branch.link(index)));
                }
            }
            nodes = children;
            level -= 1;
        }
        self.above = above;
        Ok(())
    }
}

impl MergedPart {
    /// Its pages belong to a tree that was published.
    pub(crate) fn is_published(&mut self) {
        for (_, node) in &mut self.nodes {
            if let Payload::Child { reused, .. } = node {
                *reused = true;
            }
        }
    }
}

#[cfg(test)]
impl Division {
    pub(in crate::btree) fn is_above_leaves(&self) -> bool {
        self.level > 0
    }
}

/// A node with its lower bound.
type Node = (Vec<u8>, Child);

/// What became of a part: nodes of its level, or leaves, if it is one of keys that the tree did not hold.
pub(crate) struct MergedPart {
    level: u8,
    nodes: Vec<(Vec<u8>, Payload)>,
}

/// Divides a tree into parts, up to twice as many, with about the same work each: no more than its share of the
/// samples, keys that stand for equal numbers of changes, in order. Keys behind all that the tree holds are divided as
/// well, so that what is only appended to has parts, too. `None`: there is nothing to divide.
pub(crate) fn divide<S: PageSource>(
    source: S,
    root: Root,
    parts: usize,
    nodes_min: usize,
    samples: &[&[u8]],
) -> Result<Option<Division>> {
    check_height(root)?;
    if root.height < 2 {
        return Ok(None);
    }
    let (nodes, mut division) = nodes_to_divide(source, root, nodes_min)?;
    let mut cursor = Cursor::new(source, root);
    cursor.last()?;
    let whole = nodes.len() + samples.len() * NODES_PER_SAMPLE;
    let share = whole.div_ceil(parts);
    let nodes_most = nodes.len().div_ceil(parts.min(nodes_min).max(1));
    let mut held = samples.partition_point(|sample| *sample <= cursor.key());
    // Too little for a part: that would leave a branch of its own in the tree.
    if (samples.len() - held) * NODES_PER_SAMPLE < share {
        held = samples.len();
    }
    let (mut rest, appended) = samples.split_at(held);
    let mut weight = 0;
    let mut add = |low: Vec<u8>, node: Option<Child>, more: usize| {
        let is_full = |part: &Part| weight + more > share || node.is_some() && part.nodes.len() >= nodes_most;
        if division.parts.last().is_none_or(is_full) {
            if let Some(before) = division.parts.last_mut() {
                before.high = Some(low.clone());
            }
            division.parts.push(Part {
                level: division.level,
                low: low.clone(),
                nodes: Vec::new(),
                high: None,
            });
            weight = 0;
        }
        weight += more;
        let part = division.parts.last_mut().expect("there is one now");
        part.nodes.extend(node.map(|node| (low, node)));
    };
    let mut nodes = nodes.into_iter().peekable();
    while let Some((low, node)) = nodes.next() {
        let inside = match nodes.peek() {
            Some((high, _)) => rest.partition_point(|sample| *sample < high.as_slice()),
            None => rest.len(),
        };
        rest = &rest[inside..];
        add(low, Some(node), 1 + inside * NODES_PER_SAMPLE);
    }
    for sample in appended {
        add(sample.to_vec(), None, NODES_PER_SAMPLE);
    }
    Ok((division.parts.len() > 1).then_some(division))
}

/// The nodes of the highest level that has several for each part, with their lower bounds, and the branches above them.
fn nodes_to_divide<S: PageSource>(source: S, root: Root, nodes_min: usize) -> Result<(Vec<Node>, Division)> {
    let mut level = root.height - 1;
    let whole = Child {
        page: root.page,
        checksum: root.checksum,
        pairs: root.pairs,
        holds_extents: true,
    };
    let mut nodes = vec![(Vec::new(), whole)];
    let mut above = Vec::new();
    while level > 0 && nodes.len() < nodes_min {
        let mut children = Vec::new();
        for (low, node) in nodes {
            let page = source.page(node.page, BRANCH_BYTES, || node.checksum)?;
            let branch = Branch::open(&page, node.page, level)?;
            above.push((node.page, page::birth(&page)));
            let mut low = Some(low);
            children.extend((0..branch.count()).map(|index| {
                let low = low.take().unwrap_or_else(|| {
                    let mut separator = Vec::new();
                    branch.append_separator(index, &mut separator);
                    separator
                });
                (low, branch.child(index))
            }));
        }
        nodes = children;
        level -= 1;
    }
    let division = Division {
        parts: Vec::new(),
        level,
        above,
    };
    Ok((nodes, division))
}

/// Merges one part of a tree, as [`merge`] does for all of it; `changes` are those in its range.
pub(crate) fn merge_part<S: PageSource, C: ChangeStream, P: PageSink>(
    source: S,
    part: &Part,
    changes: &mut C,
    cuts: &[FullRange],
    options: MergeOptions,
    sink: &mut P,
) -> Result<MergedPart> {
    // Leaves behind the tree are left to `assemble`, which fills branches with those of several parts.
    let level = if part.nodes.is_empty() { 0 } else { part.level };
    let top = level + 1;
    let mut merger = Merger::new(source, changes, cuts, options, sink, top, Some(top));
    if part.nodes.is_empty() {
        merger.begin(0, &part.low)?;
        merger.output.windows[0].appending = true;
        merger.take_changes(part.high.as_deref())?;
    }
    let highs = part.nodes.iter().skip(1).map(|(low, _)| Some(low.as_slice()));
    for ((low, node), high) in part.nodes.iter().zip(highs.chain([part.high.as_deref()])) {
        match merger.fate(low, high) {
            Fate::Reuse => merger.reuse(*node, part.level, low)?,
            Fate::Drop => merger.drop_subtree(*node, part.level)?,
            Fate::Merge => merger.merge_node(node.link(), part.level, low, high)?,
        }
    }
    for below in 0..=level {
        merger.close(below)?;
    }
    let nodes = merger.output.windows[top as usize].take_children();
    Ok(MergedPart { level, nodes })
}

/// Puts a tree together from its merged parts, in order. `None`: too little is left for a tree of that height, and
/// nothing was done.
pub(crate) fn assemble<S: PageSource, P: PageSink>(
    source: S,
    division: &Division,
    parts: &[&MergedPart],
    options: MergeOptions,
    sink: &mut P,
) -> Result<Option<Root>> {
    if parts.iter().map(|part| part.nodes.len()).sum::<usize>() < 2 {
        return Ok(None);
    }
    let above = division.level + 1;
    let mut changes = NoChanges;
    let mut merger = Merger::new(source, &mut changes, &[], options, sink, above, None);
    for part in parts {
        if part.level < division.level {
            let windows = &mut merger.output.windows[part.level as usize + 1..];
            windows.iter_mut().for_each(|window| window.appending = true);
        }
        for (low, node) in &part.nodes {
            merger.output.push(part.level + 1, low, &[], *node)?;
        }
    }
    for &(number, birth) in &division.above {
        merger.output.sink.retire(number, BRANCH_PAGES, birth);
    }
    merger.finish().map(Some)
}

struct NoChanges;

impl ChangeStream for NoChanges {
    fn key(&self) -> Option<&[u8]> {
        None
    }

    fn change(&self) -> Stored<'_> {
        Stored::Deleted
    }

    fn advance(&mut self) -> Result<()> {
        Ok(())
    }
}
