//! Which pages of a tree belong to no other tree that is kept, and which pairs differ between two trees.
//!
//! Trees share pages, because a merge takes over what it does not change. A page of one tree belongs to another one exactly when
//! the other tree has it at that level, somewhere in the range of keys of the page. So a walk down one tree looks, for each branch, at
//! the branches of the others for these keys, and passes by every child that they have too. The work is in proportion to what is
//! not shared, and to the branches of the others for the keys of that. Where another tree has grown much larger, these may be many.
//!
//! Take a key in a page that the other tree does not have. If the other tree has the key, then in a page that the first tree does not
//! have: otherwise the key would lead both trees to that page. So the pairs that differ are among those of such pages.

use std::cmp::Ordering;
use std::collections::HashSet;

use crate::checksum::key_hash;
use crate::error::Result;
use crate::limits::{BRANCH_BYTES, BRANCH_PAGES, PAGE_BYTES};

use super::branch::Branch;
use super::check::Visit;
use super::cursor::check_height;
use super::find::find;
use super::leaf::Leaf;
use super::{Extent, Link, Location, PageSource, Root, Stored, page};

/// Whether a key of a tree has this value in pages of its own.
pub(crate) fn holds_extent<S: PageSource>(
    source: S,
    root: Root,
    key: &[u8],
    hash_seed: u64,
    extent: Extent,
) -> Result<bool> {
    let found = find(source, root, key, key_hash(hash_seed, key))?;
    Ok(found.is_some_and(|found| matches!(found.value, Location::Extent(other) if other.page == extent.page)))
}

/// Visits the pages and values of a tree that no other one has.
pub(crate) fn walk_alone<S: PageSource>(
    source: S,
    root: Root,
    others: &[Root],
    hash_seed: u64,
    visit: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    let mut pages = Unshared::new(source, root, others)?;
    while let Some((node, page)) = pages.next()? {
        visit(Visit::Page {
            number: node.link.page,
            pages: if node.level == 0 { 1 } else { BRANCH_PAGES },
            level: node.level,
            birth: page::birth(&page),
        })?;
        if node.level > 0 {
            continue;
        }
        let leaf = Leaf::open(&page, node.link.page)?;
        for index in 0..leaf.count() {
            let Location::Extent(extent) = leaf.location(index) else {
                continue;
            };
            let key = leaf.key(index);
            let mut is_shared = false;
            for other in others {
                is_shared |= holds_extent(source, *other, &key, hash_seed, extent)?;
            }
            if !is_shared {
                visit(Visit::Extent(extent))?;
            }
        }
    }
    Ok(())
}

/// Calls `visit`, in order, with the keys whose values differ between two trees, until it returns `false`.
pub(crate) fn differing_keys<S: PageSource>(
    source: S,
    [from, to]: [Root; 2],
    visit: &mut dyn FnMut(&[u8]) -> Result<bool>,
) -> Result<()> {
    let (of_from, of_to) = ([from], [to]);
    let mut old = UnsharedPairs::new(source, from, &of_to)?;
    let mut new = UnsharedPairs::new(source, to, &of_from)?;
    loop {
        let order = match (&old.page, &new.page) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), Some(_)) => old.key.cmp(&new.key),
        };
        let is_equal = order == Ordering::Equal && old.stored()? == new.stored()?;
        let key = if order == Ordering::Greater { &new.key } else { &old.key };
        if !is_equal && !visit(key)? {
            return Ok(());
        }
        if order != Ordering::Greater {
            old.advance()?;
        }
        if order != Ordering::Less {
            new.advance()?;
        }
    }
}

/// A page with the keys that lead to it: from the first up to and without the second; `None`: to the end.
struct Node {
    link: Link,
    level: u8,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

/// The pages of a tree that other trees do not have, in order: each branch before what is below it.
struct Unshared<'a, S> {
    source: S,
    others: &'a [Root],
    /// What comes next is last.
    waiting: Vec<Node>,
}

impl<'a, S: PageSource> Unshared<'a, S> {
    fn new(source: S, root: Root, others: &'a [Root]) -> Result<Unshared<'a, S>> {
        check_height(root)?;
        let mut pages = Unshared {
            source,
            others,
            waiting: Vec::new(),
        };
        if let Some(level) = root.height.checked_sub(1) {
            let node = Node {
                link: root.link(),
                level,
                low: Vec::new(),
                high: None,
            };
            if !pages.shared(level, &node)?.contains(&root.page) {
                pages.waiting.push(node);
            }
        }
        Ok(pages)
    }

    fn next(&mut self) -> Result<Option<(Node, S::Page)>> {
        let Some(node) = self.waiting.pop() else {
            return Ok(None);
        };
        let bytes = if node.level == 0 { PAGE_BYTES } else { BRANCH_BYTES };
        let page = self.source.page(node.link.page, bytes, || node.link.checksum)?;
        if node.level > 0 {
            let branch = Branch::open(&page, node.link.page, node.level)?;
            let shared = self.shared(node.level - 1, &node)?;
            let separator = |child: usize| {
                let mut key = Vec::new();
                branch.append_separator(child, &mut key);
                key
            };
            for index in (0..branch.count())
                .rev()
                .filter(|&index| !shared.contains(&branch.page(index)))
            {
                self.waiting.push(Node {
                    link: branch.link(index),
                    level: node.level - 1,
                    low: if index == 0 { node.low.clone() } else { separator(index) },
                    high: if index + 1 == branch.count() {
                        node.high.clone()
                    } else {
                        Some(separator(index + 1))
                    },
                });
            }
        }
        Ok(Some((node, page)))
    }

    /// The pages of a level that the other trees have for the keys of a node.
    fn shared(&self, level: u8, node: &Node) -> Result<HashSet<u32>> {
        let mut pages = HashSet::new();
        for other in self.others {
            check_height(*other)?;
            match other.height.checked_sub(1) {
                Some(at) if at == level => drop(pages.insert(other.page)),
                Some(at) if at > level => self.collect(other.link(), at, level, node, &mut pages)?,
                // The tree is not so high.
                _ => {}
            }
        }
        Ok(pages)
    }

    fn collect(&self, link: Link, at: u8, level: u8, node: &Node, pages: &mut HashSet<u32>) -> Result<()> {
        let page = self.source.page(link.page, BRANCH_BYTES, || link.checksum)?;
        let branch = Branch::open(&page, link.page, at)?;
        let first = branch.route(&node.low);
        let mut separator = Vec::new();
        for index in first..branch.count() {
            // The first child has the first key, whatever stands before it.
            if index > first {
                separator.clear();
                branch.append_separator(index, &mut separator);
                if node.high.as_ref().is_some_and(|high| separator >= *high) {
                    break;
                }
            }
            match at - 1 == level {
                true => drop(pages.insert(branch.page(index))),
                false => self.collect(branch.link(index), at - 1, level, node, pages)?,
            }
        }
        Ok(())
    }
}

/// The pairs of these pages, in order.
struct UnsharedPairs<'a, S: PageSource> {
    pages: Unshared<'a, S>,
    /// The leaf at hand and its number; `None`: there are no more pairs.
    page: Option<(S::Page, u32)>,
    index: usize,
    key: Vec<u8>,
}

impl<'a, S: PageSource> UnsharedPairs<'a, S> {
    fn new(source: S, root: Root, others: &'a [Root]) -> Result<UnsharedPairs<'a, S>> {
        let mut pairs = UnsharedPairs {
            pages: Unshared::new(source, root, others)?,
            page: None,
            index: 0,
            key: Vec::new(),
        };
        pairs.find()?;
        Ok(pairs)
    }

    fn advance(&mut self) -> Result<()> {
        self.index += 1;
        self.find()
    }

    /// Goes to the pair of the index, or to the first one of the next leaf.
    fn find(&mut self) -> Result<()> {
        loop {
            if let Some((page, number)) = &self.page {
                let leaf = Leaf::open(page, *number)?;
                if self.index < leaf.count() {
                    self.key.clear();
                    self.key.extend_from_slice(leaf.prefix());
                    self.key.extend_from_slice(leaf.suffix(self.index));
                    return Ok(());
                }
            }
            self.index = 0;
            self.page = loop {
                match self.pages.next()? {
                    Some((node, page)) if node.level == 0 => break Some((page, node.link.page)),
                    Some(_) => {}
                    None => break None,
                }
            };
            if self.page.is_none() {
                return Ok(());
            }
        }
    }

    fn stored(&self) -> Result<Option<Stored<'_>>> {
        let Some((page, number)) = &self.page else {
            return Ok(None);
        };
        let location = Leaf::open(page, *number)?.location(self.index);
        Ok(Some(location.stored(page)))
    }
}
