//! Looking at everything: the pages and extents of a tree, and whether they are what the invariants in the module's
//! description say.

use std::ops::Range;

use crate::checksum::{key_hash, key_tag};
use crate::error::{Result, printable};
use crate::limits::{BRANCH_BYTES, PAGE_BYTES};

use super::branch::Branch;
use super::cursor::{READ_AHEAD_LEAVES_MAX, check_height};
use super::leaf::Leaf;
use super::page::{self, common_prefix, head_u32};
use super::{Extent, Link, Location, PageSource, Root};

/// Something that a tree consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// A page, or the run of pages of a branch.
    Page {
        /// First page.
        number: u32,
        /// Pages of the run.
        pages: u32,
        /// 0 for a leaf.
        level: u8,
        /// Version that wrote it.
        birth: u64,
    },
    /// A value in pages of its own.
    Extent(Extent),
}

impl Visit {
    /// The version that wrote it.
    pub(crate) fn birth(self) -> u64 {
        match self {
            Visit::Page { birth, .. } => birth,
            Visit::Extent(extent) => extent.birth,
        }
    }

    /// The pages that it takes.
    pub(crate) fn pages(self) -> Range<u32> {
        match self {
            Visit::Page { number, pages, .. } => number..number + pages,
            Visit::Extent(extent) => extent.page..extent.page + extent.pages(),
        }
    }
}

/// Visits every page and extent of a tree, parents before children, in key order.
pub(crate) fn walk<S: PageSource>(source: S, root: Root, visit: &mut dyn FnMut(Visit) -> Result<()>) -> Result<()> {
    walk_newer(source, root, 0, visit)
}

/// Visits a tree as [`walk`] does, without pages that version `than` or an older version wrote, and without what is
/// under them: that is as old, or older.
pub(crate) fn walk_newer<S: PageSource>(
    source: S,
    root: Root,
    than: u64,
    visit: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    check_height(root)?;
    if root.height == 0 {
        Ok(())
    } else {
        walk_node(source, root.link(), root.height - 1, than, visit)
    }
}

fn walk_node<S: PageSource>(
    source: S,
    link: Link,
    level: u8,
    than: u64,
    visit: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    let number = link.page;
    let page = source.page(number, page_length(level), || link.checksum)?;
    if than > 0 && page::birth(&page) <= than {
        return Ok(());
    }
    if level > 0 {
        let branch = Branch::open(&page, number, level)?;
        visit(visit_page(&page, number, level))?;
        for index in 0..branch.count() {
            ask_for_leaves(source, branch, level, index);
            walk_node(source, branch.link(index), level - 1, than, visit)?;
        }
    } else {
        let leaf = Leaf::open(&page, number)?;
        visit(visit_page(&page, number, level))?;
        for index in 0..leaf.count() {
            if let Location::Extent(extent) = leaf.location(index) {
                visit(Visit::Extent(extent))?;
            }
        }
    }
    Ok(())
}

/// Asks for the leaves of a branch that is walked through, some at a time, where they are likely to be missing in
/// memory.
fn ask_for_leaves<S: PageSource>(source: S, branch: Branch<'_>, level: u8, index: usize) {
    if level == 1 && index.is_multiple_of(READ_AHEAD_LEAVES_MAX) && source.wants_read_ahead() {
        let end = (index + READ_AHEAD_LEAVES_MAX).min(branch.count());
        source.read_ahead(&mut (index..end).map(|index| branch.page(index)));
    }
}

/// Branches of a tree. Those of the lowest level are counted without being read.
pub(crate) fn count_branches<S: PageSource>(source: S, root: Root) -> Result<u64> {
    check_height(root)?;
    if root.height < 2 {
        Ok(0)
    } else {
        count_under(source, root.link(), root.height - 1)
    }
}

fn count_under<S: PageSource>(source: S, link: Link, level: u8) -> Result<u64> {
    if level == 1 {
        return Ok(1);
    }
    let page = source.page(link.page, BRANCH_BYTES, || link.checksum)?;
    let branch = Branch::open(&page, link.page, level)?;
    (0..branch.count()).try_fold(1, |sum, index| {
        Ok(sum + count_under(source, branch.link(index), level - 1)?)
    })
}

fn page_length(level: u8) -> usize {
    if level == 0 { PAGE_BYTES } else { BRANCH_BYTES }
}

fn visit_page(page: &[u8], number: u32, level: u8) -> Visit {
    Visit::Page {
        number,
        pages: (page_length(level) / PAGE_BYTES) as u32,
        level,
        birth: page::birth(page),
    }
}

/// Checks a whole tree. What is wrong goes into `problems`, one line each, and the check goes on with the rest; an
/// error comes only from `visit`, which sees all that could be read.
pub(crate) fn check_tree<S: PageSource>(
    source: S,
    root: Root,
    hash_seed: u64,
    problems: &mut Vec<String>,
    visit: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    if let Err(error) = check_height(root) {
        problems.push(error.to_string());
        return Ok(());
    }
    if root.height == 0 {
        if root.pairs != 0 {
            problems.push(format!("the root says {} pairs, but the tree is empty", root.pairs));
        }
        return Ok(());
    }
    if root.height > 1
        && let Ok(page) = source.page(root.page, BRANCH_BYTES, || root.checksum)
        && page::count(&page) < 2
    {
        problems.push(format!(
            "page {} of the data file: it is a root with one child",
            root.page
        ));
    }
    let mut check = Check {
        source,
        hash_seed,
        problems,
        visit,
    };
    let range = Bounds { low: &[], high: None };
    if let Some(found) = check.node(root.link(), root.height - 1, range)?
        && found.pairs != root.pairs
    {
        check
            .problems
            .push(format!("the root says {} pairs, there are {}", root.pairs, found.pairs));
    }
    Ok(())
}

struct Check<'a, S> {
    source: S,
    hash_seed: u64,
    problems: &'a mut Vec<String>,
    visit: &'a mut dyn FnMut(Visit) -> Result<()>,
}

/// Where the keys of a page must lie.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    low: &'a [u8],
    high: Option<&'a [u8]>,
}

impl Bounds<'_> {
    fn contains(&self, key: &[u8]) -> bool {
        self.low <= key && self.high.is_none_or(|high| key < high)
    }
}

/// What was found under a page.
struct Found {
    pairs: u64,
    holds_extents: bool,
}

impl<S: PageSource> Check<'_, S> {
    /// Checks a page and all under it; `None` when some of that could not be read, so that counting makes no sense.
    fn node(&mut self, link: Link, level: u8, bounds: Bounds<'_>) -> Result<Option<Found>> {
        let number = link.page;
        let page = match self.source.page(number, page_length(level), || link.checksum) {
            Ok(page) => page,
            Err(error) => return self.unreadable(error),
        };
        if level == 0 {
            match Leaf::open(&page, number) {
                Ok(leaf) => {
                    (self.visit)(visit_page(&page, number, level))?;
                    self.leaf(leaf, number, bounds).map(Some)
                }
                Err(error) => self.unreadable(error),
            }
        } else {
            match Branch::open(&page, number, level) {
                Ok(branch) => {
                    (self.visit)(visit_page(&page, number, level))?;
                    self.branch(branch, number, level, bounds)
                }
                Err(error) => self.unreadable(error),
            }
        }
    }

    fn unreadable(&mut self, error: crate::error::Error) -> Result<Option<Found>> {
        self.problems.push(error.to_string());
        Ok(None)
    }

    fn problem(&mut self, number: u32, what: impl std::fmt::Display) {
        self.problems.push(format!("page {number} of the data file: {what}"));
    }

    fn leaf(&mut self, leaf: Leaf<'_>, number: u32, bounds: Bounds<'_>) -> Result<Found> {
        let mut holds_extents = false;
        let (mut key, mut previous) = (Vec::new(), Vec::new());
        for index in 0..leaf.count() {
            key.clear();
            key.extend_from_slice(leaf.prefix());
            key.extend_from_slice(leaf.suffix(index));
            if index > 0 && key <= previous {
                self.problem(
                    number,
                    format_args!("{} follows {}", printable(&key), printable(&previous)),
                );
            }
            if !bounds.contains(&key) {
                self.problem(
                    number,
                    format_args!("{} is outside the range of the page", printable(&key)),
                );
            }
            if leaf.tag(index) != key_tag(key_hash(self.hash_seed, &key)) {
                self.problem(number, format_args!("wrong tag of {}", printable(&key)));
            }
            if leaf.head(index) != head_u32(leaf.suffix(index)) {
                self.problem(number, format_args!("wrong head of {}", printable(&key)));
            }
            if let Location::Extent(extent) = leaf.location(index) {
                holds_extents = true;
                (self.visit)(Visit::Extent(extent))?;
            }
            std::mem::swap(&mut key, &mut previous);
        }
        let (first, last) = (leaf.suffix(0), leaf.suffix(leaf.count() - 1));
        if common_prefix(first, last) > 0 {
            self.problem(number, "its prefix is shorter than what its keys share");
        }
        Ok(Found {
            pairs: leaf.count() as u64,
            holds_extents,
        })
    }

    fn branch(&mut self, branch: Branch<'_>, number: u32, level: u8, bounds: Bounds<'_>) -> Result<Option<Found>> {
        let mut sum = Some(Found {
            pairs: 0,
            holds_extents: false,
        });
        let (mut low, mut high) = (bounds.low.to_vec(), Vec::new());
        for index in 0..branch.count() {
            let is_last = index + 1 == branch.count();
            if !is_last {
                high.clear();
                branch.append_separator(index + 1, &mut high);
                self.separator(number, &low, &high, bounds);
            }
            let child_bounds = Bounds {
                low: &low,
                high: if is_last { bounds.high } else { Some(&high) },
            };
            let child = branch.child(index);
            let found = self.node(child.link(), level - 1, child_bounds)?;
            match (&mut sum, found) {
                (Some(sum), Some(found)) => {
                    if found.pairs != child.pairs || found.holds_extents != child.holds_extents {
                        self.problem(number, format_args!("wrong count or flag of child {index}"));
                    }
                    sum.pairs += found.pairs;
                    sum.holds_extents |= found.holds_extents;
                }
                _ => sum = None,
            }
            std::mem::swap(&mut low, &mut high);
        }
        Ok(sum)
    }

    fn separator(&mut self, number: u32, low: &[u8], separator: &[u8], bounds: Bounds<'_>) {
        if separator <= low {
            self.problem(
                number,
                format_args!("separator {} follows {}", printable(separator), printable(low)),
            );
        }
        if !bounds.contains(separator) {
            self.problem(
                number,
                format_args!("separator {} is outside its range", printable(separator)),
            );
        }
    }
}
