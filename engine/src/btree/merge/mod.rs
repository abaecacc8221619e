//! The only way to change a tree: cut ranges out of it, apply a sorted stream of changes, get a new root.
//!
//! The simple version would read all pairs, apply the changes and build a new tree. This one does the same, but only
//! where something changes: it goes down from the root in key order, and a child that no change and no cut touches is
//! taken over as it is, by its page number. What it reads of a touched page goes into the [`Window`] of that level
//! together with the changes; full windows are written as pages, whose numbers go into the window of the level above.
//! So memory depends on the height of the tree and on nothing else, and time on the pages that are touched.
//!
//! Order, which everything rests on: before something is put into the window of a level, all windows below it are
//! empty, because what they hold comes first. (One child that may be all there is waits until more comes.)
//!
//! How full pages get:
//! - Neighbouring touched pages share a window, and their content is divided evenly over the fewest pages that hold
//!   it. Where a fold touches every page, as it does in small trees, a page that overflows therefore does not leave
//!   two half full ones behind. (With a window per old page, a tree that was filled to the brim in order came down to
//!   half full pages in one fold that inserted at random.)
//! - Where new pairs come only behind the old ones of a leaf, pages are filled to the end.
//! - What would make a page less than a quarter full takes in the next page under the same parent, or, when it is the
//!   last one, the one before.
//!
//! Leaves in which only values are replaced, by others of the same length, need none of this: see [`overwrite`].
//!
//! Every page of the old tree that is read here is retired here, after its last use, except those taken over.

use crate::checksum::{key_hash, key_tag};
use crate::error::{Error, Result};
use crate::key::full_key::FullRange;
use crate::limits::{BRANCH_BYTES, BRANCH_PAGES, INLINE_VALUE_BYTES_MAX, PAGE_BYTES};

use super::branch::{Branch, Child};
use super::cursor::check_height;
use super::leaf::{DELETED, EXTENT, Leaf};
use super::page;
use super::window::{Payload, Window};
use super::{ChangeStream, Extent, HEIGHT_MAX, Link, Location, PageSink, PageSource, Root, Stored};

mod overwrite;
mod parts;

use overwrite::{Overwritten, Waiting};
pub(crate) use parts::{Division, MergedPart, Part, assemble, divide, merge_part};

/// How to merge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeOptions {
    /// Store deletions, because the tree is a run of changes for a later merge, instead of only carrying them out.
    pub keep_deletes: bool,
    /// Seed of the hashes of keys.
    pub hash_seed: u64,
}

/// Cuts ranges (in order, without overlap) out of the tree at `root`, applies `changes`, and returns the root of the
/// new tree. Nothing of the old tree is written to.
pub(crate) fn merge<S: PageSource, C: ChangeStream, P: PageSink>(
    source: S,
    root: Root,
    changes: &mut C,
    cuts: &[FullRange],
    options: MergeOptions,
    sink: &mut P,
) -> Result<Root> {
    check_height(root)?;
    if changes.key().is_none() && (cuts.is_empty() || root.height == 0) {
        return Ok(root);
    }
    let highest = root.height.saturating_sub(1);
    let mut merger = Merger::new(source, changes, cuts, options, sink, highest, None);
    if root.height == 0 {
        merger.output.windows[0].appending = true;
        merger.take_changes(None)?;
    } else {
        merger.merge_node(root.link(), root.height - 1, &[], None)?;
    }
    merger.finish()
}

struct Merger<'a, S, C, P> {
    source: S,
    changes: &'a mut C,
    /// Those that reach beyond what is merged so far.
    cuts: &'a [FullRange],
    options: MergeOptions,
    output: Output<'a, P>,
    /// Holds the old key at hand.
    key: Vec<u8>,
    /// Holds a leaf in which values were replaced.
    copy: Vec<u8>,
}

/// What becomes of a child.
enum Fate {
    Reuse,
    Drop,
    Merge,
}

impl<'a, S: PageSource, C: ChangeStream, P: PageSink> Merger<'a, S, C, P> {
    /// With windows up to level `highest`. What comes into that of level `kept` stays there.
    fn new(
        source: S,
        changes: &'a mut C,
        cuts: &'a [FullRange],
        options: MergeOptions,
        sink: &'a mut P,
        highest: u8,
        kept: Option<u8>,
    ) -> Self {
        let windows = (0..=highest).map(|level| Window::new(level, false)).collect();
        let output = Output {
            sink,
            windows,
            kept,
            waiting: Waiting::default(),
            page: vec![0; BRANCH_BYTES],
        };
        Merger {
            source,
            changes,
            cuts,
            options,
            output,
            key: Vec::new(),
            copy: Vec::new(),
        }
    }

    /// Merges a page whose keys lie in `low..high` and all that is under it into the windows, up to that of its level.
    fn merge_node(&mut self, link: Link, level: u8, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        if level == 0 {
            self.merge_leaf(link, low, high)
        } else {
            self.merge_branch(link, level, low, high)
        }
    }

    fn merge_leaf(&mut self, link: Link, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        let number = link.page;
        let old = self.source.page(number, PAGE_BYTES, || link.checksum)?;
        let mut copy = std::mem::take(&mut self.copy);
        let overwritten = if self.may_overwrite(low, high) {
            self.overwrite(&old, number, high, &mut copy)?
        } else {
            Overwritten::Nothing
        };
        match overwritten {
            Overwritten::Nothing => self.merge_pairs(Leaf::open(&old, number)?, low, high)?,
            Overwritten::Some => self.merge_pairs(Leaf::open(&copy, number)?, low, high)?,
            Overwritten::All => self.output.wait(&mut copy, low)?,
        }
        self.copy = copy;
        self.output.sink.retire(number, 1, page::birth(&old));
        Ok(())
    }

    /// Merges the pairs of a leaf with the changes below `high`.
    fn merge_pairs(&mut self, leaf: Leaf<'_>, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        self.begin(0, low)?;
        let alone = self.output.windows[0].is_empty();
        let mut only_appended = alone;
        let mut key = std::mem::take(&mut self.key);
        for index in 0..leaf.count() {
            key.clear();
            key.extend_from_slice(leaf.prefix());
            key.extend_from_slice(leaf.suffix(index));
            let before = self.take_changes(Some(&key))?;
            let replaced = self.changes.key() == Some(&key);
            if replaced || self.is_cut(&key) {
                self.retire_value(leaf.location(index), replaced, &|| key.clone())?;
            } else {
                let (field, value) = leaf.value(index);
                self.output.push(
                    0,
                    &key,
                    value,
                    Payload::Pair {
                        tag: leaf.tag(index),
                        field,
                    },
                )?;
            }
            only_appended &= before == 0 && !replaced;
            if replaced {
                self.take_change()?;
            }
        }
        self.key = key;
        self.output.windows[0].appending = only_appended;
        let appended = self.take_changes(high)?;
        // At the right edge one pair behind all others is the pattern of a growing sequence. Elsewhere it may be
        // chance, but two of them hardly.
        self.output.windows[0].appending &= high.is_none() || appended >= 2;
        Ok(())
    }

    /// Takes all changes with keys below `high`; how many.
    fn take_changes(&mut self, high: Option<&[u8]>) -> Result<usize> {
        let mut taken = 0;
        while let Some(key) = self.changes.key()
            && high.is_none_or(|high| key < high)
        {
            self.take_change()?;
            taken += 1;
        }
        Ok(taken)
    }

    fn take_change(&mut self) -> Result<()> {
        let key = self.changes.key().expect("asked only while there is a change");
        let tag = key_tag(key_hash(self.options.hash_seed, key));
        match self.changes.change() {
            Stored::Inline(value) if value.len() <= INLINE_VALUE_BYTES_MAX => {
                self.output.push(
                    0,
                    key,
                    value,
                    Payload::Pair {
                        tag,
                        field: value.len() as u16,
                    },
                )?;
            }
            Stored::Inline(value) => {
                let extent = self.output.sink.write_value(value)?;
                self.output
                    .push(0, key, &extent.encode(), Payload::Pair { tag, field: EXTENT })?;
            }
            Stored::Extent(extent) => {
                self.output
                    .push(0, key, &extent.encode(), Payload::Pair { tag, field: EXTENT })?;
            }
            Stored::Deleted if self.options.keep_deletes => {
                self.output.push(0, key, &[], Payload::Pair { tag, field: DELETED })?;
            }
            Stored::Deleted => {}
        }
        self.changes.advance()
    }

    /// Whether a cut takes an old key. Asked in ascending order.
    fn is_cut(&mut self, key: &[u8]) -> bool {
        self.skip_cuts(key);
        self.cuts.first().is_some_and(|cut| *cut.low <= *key)
    }

    /// Forgets the cuts that end at or below `low`.
    fn skip_cuts(&mut self, low: &[u8]) {
        while let Some((cut, rest)) = self.cuts.split_first()
            && *cut.high <= *low
        {
            self.cuts = rest;
        }
    }

    /// Retires the extent of a pair that goes, unless the change that replaces it refers to the same one.
    fn retire_value(&mut self, old: Location, replaced: bool, key: &dyn Fn() -> Vec<u8>) -> Result<()> {
        if let Location::Extent(extent) = old {
            let kept = replaced && matches!(self.changes.change(), Stored::Extent(new) if new.page == extent.page);
            if !kept && !self.output.sink.keeps(extent, key)? {
                self.output.sink.retire_extent(extent);
            }
        }
        Ok(())
    }

    fn merge_branch(&mut self, link: Link, level: u8, low: &[u8], high: Option<&[u8]>) -> Result<()> {
        let number = link.page;
        let page = self.source.page(number, BRANCH_BYTES, || link.checksum)?;
        let branch = Branch::open(&page, number, level)?;
        self.begin(level, low)?;
        let alone = self.output.windows[level as usize].is_empty();
        let mut untouched = true;
        let (mut child_low, mut separator) = (low.to_vec(), Vec::new());
        for index in 0..branch.count() {
            let is_last = index + 1 == branch.count();
            if !is_last {
                separator.clear();
                branch.append_separator(index + 1, &mut separator);
            }
            let child_high = if is_last { high } else { Some(separator.as_slice()) };
            let child = branch.child(index);
            match self.fate(&child_low, child_high) {
                Fate::Reuse => self.reuse(child, level - 1, &child_low)?,
                Fate::Drop => self.drop_subtree(child, level - 1)?,
                Fate::Merge => {
                    self.output.windows[level as usize].appending = alone && untouched && is_last && high.is_none();
                    self.merge_node(child.link(), level - 1, &child_low, child_high)?;
                    untouched = false;
                }
            }
            std::mem::swap(&mut child_low, &mut separator);
        }
        if !self.may_be_all(level - 1) {
            self.close(level - 1)?;
        }
        self.output.sink.retire(number, BRANCH_PAGES, page::birth(&page));
        Ok(())
    }

    /// Whether the window of a level holds one child, and those above hold nothing: if nothing more comes, that child
    /// is the new root, and a branch for it alone must not be written.
    fn may_be_all(&self, level: u8) -> bool {
        let (windows, above) = self.output.windows.split_at(level as usize + 1);
        windows[level as usize].only_child().is_some() && above.iter().all(Window::is_empty)
    }

    fn fate(&mut self, low: &[u8], high: Option<&[u8]>) -> Fate {
        let is_changed = self.changes.key().is_some_and(|key| high.is_none_or(|high| key < high));
        self.skip_cuts(low);
        match self.cuts.first() {
            Some(cut) if !is_changed && *cut.low <= *low && high.is_some_and(|high| high <= &*cut.high) => Fate::Drop,
            Some(cut) if high.is_none_or(|high| &*cut.low < high) => Fate::Merge,
            _ if is_changed => Fate::Merge,
            _ => Fate::Reuse,
        }
    }

    /// Takes over an untouched child, unless what stands before it needs company.
    fn reuse(&mut self, child: Child, level: u8, low: &[u8]) -> Result<()> {
        // What might have been all is not.
        for below in 0..level {
            if !self.output.windows[below as usize].is_empty() {
                self.close(below)?;
            }
        }
        if self.output.windows[level as usize].is_underfull() {
            return self.copy_node(child.link(), level, low);
        }
        self.output.settle(level)?;
        self.output
            .push(level + 1, low, &[], Payload::Child { child, reused: true })
    }

    /// Puts the content of an untouched page into the window of its level.
    fn copy_node(&mut self, link: Link, level: u8, low: &[u8]) -> Result<()> {
        let number = link.page;
        self.begin(level, low)?;
        if level == 0 {
            let page = self.source.page(number, PAGE_BYTES, || link.checksum)?;
            self.copy_pairs(Leaf::open(&page, number)?)?;
            self.output.sink.retire(number, 1, page::birth(&page));
        } else {
            let page = self.source.page(number, BRANCH_BYTES, || link.checksum)?;
            let branch = Branch::open(&page, number, level)?;
            for index in 0..branch.count() {
                self.key.clear();
                if index == 0 {
                    self.key.extend_from_slice(low);
                } else {
                    branch.append_separator(index, &mut self.key);
                }
                let payload = Payload::Child {
                    child: branch.child(index),
                    reused: true,
                };
                self.output.push(level, &self.key, &[], payload)?;
            }
            self.output.sink.retire(number, BRANCH_PAGES, page::birth(&page));
        }
        Ok(())
    }

    /// Puts the pairs of a leaf into the window.
    fn copy_pairs(&mut self, leaf: Leaf<'_>) -> Result<()> {
        for index in 0..leaf.count() {
            self.key.clear();
            self.key.extend_from_slice(leaf.prefix());
            self.key.extend_from_slice(leaf.suffix(index));
            let (field, value) = leaf.value(index);
            let tag = leaf.tag(index);
            self.output.push(0, &self.key, value, Payload::Pair { tag, field })?;
        }
        Ok(())
    }

    /// Prepares the window of a level for the content of a page whose keys begin at `low`.
    fn begin(&mut self, level: u8, low: &[u8]) -> Result<()> {
        let window = &self.output.windows[level as usize];
        if window.appending && !window.is_underfull() {
            self.output.settle(level)?;
        }
        let window = &mut self.output.windows[level as usize];
        window.appending = false;
        if window.is_empty() {
            window.set_low(low);
        }
        Ok(())
    }

    /// Writes what the window of a level holds, at the end of a parent.
    fn close(&mut self, level: u8) -> Result<()> {
        let [window, parent, ..] = &mut self.output.windows[level as usize..] else {
            return self.output.settle(level);
        };
        if window.is_underfull() && !window.appending {
            if level == 0 && !self.output.waiting.page.is_empty() {
                let last = std::mem::replace(window, Window::new(level, false));
                let waiting = std::mem::take(&mut self.output.waiting);
                self.begin(level, &waiting.low)?;
                self.copy_pairs(Leaf::open(&waiting.page, 0)?)?;
                self.output.windows[level as usize].append(&last);
            } else if let Some((low, child)) = parent.pop_reused() {
                let last = std::mem::replace(window, Window::new(level, false));
                self.copy_node(child.link(), level, &low)?;
                self.output.windows[level as usize].append(&last);
            }
        }
        self.output.settle(level)
    }

    /// Retires a page of `level` and everything under it. Leaves without extents are not even read.
    fn drop_subtree(&mut self, child: Child, level: u8) -> Result<()> {
        if level > 0 {
            let page = self.source.page(child.page, BRANCH_BYTES, || child.checksum)?;
            let branch = Branch::open(&page, child.page, level)?;
            for index in 0..branch.count() {
                self.drop_subtree(branch.child(index), level - 1)?;
            }
            self.output.sink.retire(child.page, BRANCH_PAGES, page::birth(&page));
        } else if child.holds_extents {
            let page = self.source.page(child.page, PAGE_BYTES, || child.checksum)?;
            let leaf = Leaf::open(&page, child.page)?;
            for index in 0..leaf.count() {
                let key = || leaf.key(index);
                if let Location::Extent(extent) = leaf.location(index)
                    && !self.output.sink.keeps(extent, &key)?
                {
                    self.output.sink.retire_extent(extent);
                }
            }
            self.output.sink.retire(child.page, 1, page::birth(&page));
        } else if self.output.sink.asks_for_births() {
            let page = self.source.page(child.page, PAGE_BYTES, || child.checksum)?;
            self.output.sink.retire(child.page, 1, page::birth(&page));
        } else {
            self.output.sink.retire(child.page, 1, 0);
        }
        Ok(())
    }

    /// Writes what is left, level by level, until one page holds all.
    fn finish(mut self) -> Result<Root> {
        for level in 0.. {
            let is_highest = self.output.windows[level as usize + 1..].iter().all(Window::is_empty);
            let window = &self.output.windows[level as usize];
            if is_highest && window.is_empty() {
                return Ok(Root::default());
            }
            if is_highest && let Some((child, reused)) = window.only_child() {
                return self.lower_root(child, level, reused);
            }
            self.close(level)?;
        }
        unreachable!("every level has fewer pages than the one below it")
    }

    /// A branch with one child is no root.
    fn lower_root(&mut self, mut child: Child, mut height: u8, reused: bool) -> Result<Root> {
        while reused && height > 1 {
            let page = self.source.page(child.page, BRANCH_BYTES, || child.checksum)?;
            let branch = Branch::open(&page, child.page, height - 1)?;
            if branch.count() > 1 {
                break;
            }
            self.output.sink.retire(child.page, BRANCH_PAGES, page::birth(&page));
            child = branch.child(0);
            height -= 1;
        }
        Ok(Root {
            page: child.page,
            height,
            pairs: child.pairs,
            checksum: child.checksum,
        })
    }
}

/// The windows of all levels, and where their pages go.
struct Output<'a, P> {
    sink: &'a mut P,
    windows: Vec<Window>,
    /// Level of the window that is not written, whatever comes into it.
    kept: Option<u8>,
    waiting: Waiting,
    page: Vec<u8>,
}

impl<P: PageSink> Output<'_, P> {
    /// Puts something into the window of a level, and writes pages when it holds enough for several.
    fn push(&mut self, level: u8, key: &[u8], value: &[u8], payload: Payload) -> Result<()> {
        let window = &mut self.windows[level as usize];
        window.push(key, value, payload)?;
        if self.kept != Some(level) && window.is_crowded() {
            let ends = window.plan_spill();
            self.write(level, &ends)?;
        }
        Ok(())
    }

    /// Writes all that the window of a level holds.
    fn settle(&mut self, level: u8) -> Result<()> {
        let ends = self.windows[level as usize].plan();
        self.write(level, &ends)
    }

    /// Writes the pages of a level that end at these items, after the leaf that waits.
    fn write(&mut self, level: u8, ends: &[usize]) -> Result<()> {
        if level == 0 {
            self.write_waiting()?;
        }
        let Some(&last) = ends.last() else { return Ok(()) };
        let above = level as usize + 1;
        if above == self.windows.len() {
            if above > HEIGHT_MAX {
                return Err(Error::damaged(
                    "the tree would grow higher than any tree of sound pages can",
                ));
            }
            let appending = self.windows[level as usize].appending;
            self.windows.push(Window::new(above as u8, appending));
        }
        let (lower, upper) = self.windows.split_at_mut(above);
        let (window, parent) = (&mut lower[level as usize], &mut upper[0]);
        let mut start = 0;
        for &end in ends {
            let page = &mut self.page[..window.page_length()];
            let mut child = window.build(start..end, page);
            let link = self.sink.write(page)?;
            (child.page, child.checksum) = (link.page, link.checksum);
            parent.push(window.separator(start), &[], Payload::Child { child, reused: false })?;
            start = end;
        }
        window.remove_front(last);
        if self.kept != Some(level + 1) && parent.is_crowded() {
            let ends = parent.plan_spill();
            self.write(level + 1, &ends)?;
        }
        Ok(())
    }
}

const _: () = assert!(std::mem::size_of::<Extent>() == super::EXTENT_BYTES);
