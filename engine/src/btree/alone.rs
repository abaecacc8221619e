//! Which pages of a tree belong to no other tree that is kept.
//!
//! Trees share pages, because a merge takes over what it does not change. A page of one tree belongs to another one exactly when
//! the other tree leads to it: by a key in it, at its level. Every key of a page leads to that page in each tree that has it.

use crate::checksum::key_hash;
use crate::error::Result;
use crate::limits::{BRANCH_BYTES, BRANCH_PAGES, PAGE_BYTES};

use super::branch::Branch;
use super::check::Visit;
use super::cursor::check_height;
use super::find::{find, page_at};
use super::leaf::Leaf;
use super::{Extent, Link, Location, PageSource, Root, page};

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

/// A tree among others.
pub(crate) struct Alone<'a, S> {
    pub(crate) source: S,
    pub(crate) hash_seed: u64,
    /// The tree that it comes from, and its version: pages that are not younger belong to that one too.
    pub(crate) parent: (Root, u64),
    /// The trees that come from it.
    pub(crate) children: &'a [Root],
}

/// Visits the pages and values of a tree that neither its parent nor its children have.
pub(crate) fn walk_alone<S: PageSource>(
    tree: &Alone<'_, S>,
    root: Root,
    visit: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    check_height(root)?;
    match root.height {
        0 => Ok(()),
        height => tree.walk(root.link(), height - 1, visit),
    }
}

impl<S: PageSource> Alone<'_, S> {
    fn walk(&self, link: Link, level: u8, visit: &mut dyn FnMut(Visit) -> Result<()>) -> Result<()> {
        let number = link.page;
        let (bytes, pages) = if level == 0 {
            (PAGE_BYTES, 1)
        } else {
            (BRANCH_BYTES, BRANCH_PAGES)
        };
        let page = self.source.page(number, bytes, || link.checksum)?;
        let birth = page::birth(&page);
        if birth <= self.parent.1 {
            return Ok(());
        }
        let key = self.first_key(link, level)?;
        for child in self.children {
            if page_at(self.source, *child, level, &key)? == Some(number) {
                return Ok(());
            }
        }
        visit(Visit::Page {
            number,
            pages,
            level,
            birth,
        })?;
        if level > 0 {
            let branch = Branch::open(&page, number, level)?;
            return (0..branch.count()).try_for_each(|index| self.walk(branch.link(index), level - 1, visit));
        }
        let leaf = Leaf::open(&page, number)?;
        for index in 0..leaf.count() {
            if let Location::Extent(extent) = leaf.location(index)
                && !self.is_shared(extent, &leaf.key(index))?
            {
                visit(Visit::Extent(extent))?;
            }
        }
        Ok(())
    }

    /// A value is written before its commit. So a value that is older than the parent may have come into the tree later.
    fn is_shared(&self, extent: Extent, key: &[u8]) -> Result<bool> {
        let holds = |root: Root| holds_extent(self.source, root, key, self.hash_seed, extent);
        if extent.birth <= self.parent.1 && holds(self.parent.0)? {
            return Ok(true);
        }
        for child in self.children {
            if holds(*child)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first key below a page.
    fn first_key(&self, mut link: Link, mut level: u8) -> Result<Vec<u8>> {
        while level > 0 {
            let page = self.source.page(link.page, BRANCH_BYTES, || link.checksum)?;
            link = Branch::open(&page, link.page, level)?.link(0);
            level -= 1;
        }
        let page = self.source.page(link.page, PAGE_BYTES, || link.checksum)?;
        Ok(Leaf::open(&page, link.page)?.key(0))
    }
}
