//! Moving over the pairs of a tree in both directions, and counting them.
//!
//! A cursor keeps the branches on the way to its leaf, with the child it took in each. The key at hand is put together
//! in a buffer: the prefix when the leaf is entered, the rest on every move.

use std::ops::Range;

use arrayvec::ArrayVec;

use crate::error::{Error, Result};
use crate::limits::{BRANCH_BYTES, PAGE_BYTES};

use super::branch::{self, Branch};
use super::find::checksum_below;
use super::leaf::{Leaf, Record};
use super::{HEIGHT_MAX, LINE_BYTES, Location, PageSource, Root};

/// Leaves that a cursor asks for before it comes to them, at most.
pub(super) const READ_AHEAD_LEAVES_MAX: usize = 64;

/// A position in a tree: on a pair, or nowhere.
pub(crate) struct Cursor<S: PageSource> {
    source: S,
    root: Root,
    path: ArrayVec<Step<S::Page>, HEIGHT_MAX>,
    leaf: Option<S::Page>,
    /// Page number of the leaf, for messages.
    number: u32,
    count: usize,
    index: usize,
    record: Record,
    prefix_length: usize,
    ahead: Option<Ahead>,
    read_ahead: ReadAhead,
    valid: bool,
    key: KeyBuffer,
}

/// The leaf that comes next when moving on in the same direction, as far as its parent says; it is asked for part by
/// part.
struct Ahead {
    leaf: u32,
    /// Parts that were asked for, and that are asked for at each step.
    asked: usize,
    step: usize,
}

/// The key of the pair at hand.
#[derive(Default)]
struct KeyBuffer {
    /// Longer than the key by [`KeyBuffer::COPIED_BYTES`] or more, once there is one.
    bytes: Vec<u8>,
    length: usize,
}

impl KeyBuffer {
    /// Copied at once, because a call to copy a few bytes costs more than the rest of a step.
    const COPIED_BYTES: usize = 32;

    #[inline]
    fn get(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn set(&mut self, prefix: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(prefix);
        self.bytes.resize(prefix.len() + 2 * KeyBuffer::COPIED_BYTES, 0);
        self.length = prefix.len();
    }

    /// Replaces what comes after the first `at` bytes by a part of `page`.
    #[inline(always)]
    fn set_rest(&mut self, at: usize, page: &[u8], part: Range<usize>) {
        self.length = at + part.len();
        if self.bytes.len() < self.length + KeyBuffer::COPIED_BYTES {
            self.bytes.resize(self.length + KeyBuffer::COPIED_BYTES, 0);
        }
        let all = page.get(part.start..part.start + KeyBuffer::COPIED_BYTES);
        match all {
            Some(all) if part.len() <= KeyBuffer::COPIED_BYTES => {
                self.bytes[at..at + KeyBuffer::COPIED_BYTES].copy_from_slice(all);
            }
            _ => self.bytes[at..self.length].copy_from_slice(&page[part]),
        }
    }
}

/// A branch on the way down, and the child that was taken.
struct Step<P> {
    page: P,
    number: u32,
    level: u8,
    index: usize,
}

impl<P: std::ops::Deref<Target = [u8]>> Step<P> {
    fn branch(&self) -> Result<Branch<'_>> {
        Branch::open(&self.page, self.number, self.level)
    }
}

/// Leaves that were asked for before the cursor comes to them, where they are likely to be missing in memory.
#[derive(Default)]
struct ReadAhead {
    /// Leaves that the cursor moved on to without a search.
    moves: usize,
    /// How many of the leaves that follow in this branch were asked for.
    asked: usize,
}

impl ReadAhead {
    /// The cursor moved on to a leaf, after which `left` more follow in its branch. Which of them to ask for now: the
    /// further it has moved, the more, because it will move on.
    fn moved_on(&mut self, left: usize) -> Option<Range<usize>> {
        self.moves += 1;
        self.asked = self.asked.saturating_sub(1);
        let wanted = self.moves.min(READ_AHEAD_LEAVES_MAX).min(left);
        (wanted > 0 && self.asked <= wanted / 2).then(|| std::mem::replace(&mut self.asked, wanted)..wanted)
    }

    /// The cursor came to another branch.
    fn left_branch(&mut self) {
        self.asked = 0;
    }
}

/// Which child to take on the way down.
#[derive(Clone, Copy)]
enum Aim<'a> {
    First,
    Last,
    Key(&'a [u8]),
}

impl<S: PageSource> Cursor<S> {
    /// A cursor on no pair.
    pub(crate) fn new(source: S, root: Root) -> Cursor<S> {
        Cursor {
            source,
            root,
            path: ArrayVec::new(),
            leaf: None,
            number: 0,
            count: 0,
            index: 0,
            record: Record::default(),
            prefix_length: 0,
            ahead: None,
            read_ahead: ReadAhead::default(),
            valid: false,
            key: KeyBuffer::default(),
        }
    }

    /// Whether it is on a pair.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.valid
    }

    /// Full key of the pair it is on.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        assert!(self.valid, "a cursor that is on no pair has no key");
        self.key.get()
    }

    /// The leaf it is in, and where in it the value is.
    #[inline]
    pub(crate) fn value(&self) -> (&S::Page, Location) {
        assert!(self.valid, "a cursor that is on no pair has no value");
        let page = self.leaf.as_ref().expect("a valid cursor has a leaf");
        (page, self.record.location(page))
    }

    /// Number of the leaf it is in: as long as this stays, so does what [`Cursor::leaf_is_below`] said.
    #[inline]
    pub(crate) fn leaf(&self) -> u32 {
        self.number
    }

    /// Where its pages come from.
    pub(crate) fn source(&self) -> S {
        self.source
    }

    /// Numbers of the branches above the leaf.
    pub(crate) fn branches(&self) -> impl Iterator<Item = u32> {
        self.path.iter().map(|step| step.number)
    }

    /// Goes to the first pair of the next leaf; from the last one to nowhere.
    pub(crate) fn skip_leaf(&mut self) -> Result<()> {
        assert!(self.valid, "a cursor that is on no pair cannot move");
        self.next_leaf()
    }

    /// Whether the branch above the leaf shows that all keys of the leaf are below `key`.
    #[inline]
    pub(crate) fn leaf_is_below(&self, key: &[u8]) -> bool {
        let Some(step) = self.path.last() else { return false };
        let branch = step.branch().expect("it was opened on the way down");
        step.index + 1 < branch.count() && branch.ends_at_most(step.index, key)
    }

    /// Goes to the first pair.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn first(&mut self) -> Result<()> {
        self.valid = false;
        if self.descend(Aim::First)? {
            self.settle(0)
        } else {
            Ok(())
        }
    }

    /// Goes to the last pair.
    pub(crate) fn last(&mut self) -> Result<()> {
        self.valid = false;
        if self.descend(Aim::Last)? {
            self.settle(self.count - 1)
        } else {
            Ok(())
        }
    }

    /// Goes to the first pair whose key is `key` or above.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        match self.lower_bound(key) {
            Ok(Some(index)) if index < self.count => self.settle(index),
            Ok(Some(_)) => self.next_leaf(),
            Ok(None) => Ok(()),
            // The way down ends above what cannot be read.
            Err(error) if self.source.passes_over(&error) => self.next_leaf(),
            Err(error) => Err(error),
        }
    }

    /// Goes to the last pair whose key is below `key`.
    pub(crate) fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        match self.lower_bound(key)? {
            Some(0) => self.previous_leaf(),
            Some(index) => self.settle(index - 1),
            None => Ok(()),
        }
    }

    /// Goes to the next pair; from the last one to nowhere.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<()> {
        assert!(self.valid, "a cursor that is on no pair cannot move");
        if self.index + 1 < self.count {
            self.settle(self.index + 1)
        } else {
            self.next_leaf()
        }
    }

    /// How many pairs of the leaf come after this pair and have keys below `bound`; or, backward, come before it and
    /// have keys above `bound`.
    pub(crate) fn steps_in_leaf(&self, is_forward: bool, bound: &[u8]) -> usize {
        assert!(self.valid, "a cursor that is on no pair has no place in a leaf");
        if is_forward && self.leaf_is_below(bound) {
            return self.count - 1 - self.index;
        }
        let leaf = self.leaf.as_ref().map(|page| Leaf::open(page, self.number));
        let Some(Ok(leaf)) = leaf else { return 0 };
        let first = leaf.lower_bound(bound);
        match is_forward {
            true => first.saturating_sub(self.index + 1),
            false => self
                .index
                .saturating_sub(first + usize::from(leaf.holds_at(first, bound))),
        }
    }

    /// Goes to the next or the previous pair, which must be in the leaf.
    #[inline]
    pub(crate) fn step_in_leaf(&mut self, is_forward: bool) {
        let index = if is_forward {
            self.index + 1
        } else {
            self.index.wrapping_sub(1)
        };
        assert!(index < self.count, "the leaf has no such pair");
        self.settle(index).expect("the leaf was entered");
    }

    /// Goes to the previous pair; from the first one to nowhere.
    #[inline]
    pub(crate) fn prev(&mut self) -> Result<()> {
        assert!(self.valid, "a cursor that is on no pair cannot move");
        if self.index > 0 {
            self.settle(self.index - 1)
        } else {
            self.previous_leaf()
        }
    }

    /// Goes to the leaf that would hold `key`; where in it the first pair not below `key` is or would be.
    fn lower_bound(&mut self, key: &[u8]) -> Result<Option<usize>> {
        self.valid = false;
        if !self.descend(Aim::Key(key))? {
            return Ok(None);
        }
        let page = self.leaf.as_ref().expect("a descent ends in a leaf");
        Ok(Some(Leaf::open(page, self.number)?.lower_bound(key)))
    }

    /// Goes down from the root. False in an empty tree.
    fn descend(&mut self, aim: Aim<'_>) -> Result<bool> {
        self.path.clear();
        self.read_ahead = ReadAhead::default();
        check_height(self.root)?;
        if self.root.height == 0 {
            return Ok(false);
        }
        self.descend_from(self.root.page, self.root.height - 1, aim)?;
        Ok(true)
    }

    fn descend_from(&mut self, mut number: u32, level: u8, aim: Aim<'_>) -> Result<()> {
        for level in (1..=level).rev() {
            let page = self.source.page(number, BRANCH_BYTES, || self.checksum_below())?;
            let branch = Branch::open(&page, number, level)?;
            let index = match aim {
                Aim::First => 0,
                Aim::Last => branch.count() - 1,
                Aim::Key(key) => branch.route(key),
            };
            let child = branch.page(index);
            self.path.push(Step {
                page,
                number,
                level,
                index,
            });
            number = child;
        }
        self.enter_leaf(number)
    }

    /// The checksum of the page that is next on the way down.
    #[cold]
    fn checksum_below(&self) -> u32 {
        match self.path.last() {
            Some(step) => branch::checksum_of_child(&step.page, step.index),
            None => self.root.checksum,
        }
    }

    fn enter_leaf(&mut self, number: u32) -> Result<()> {
        self.ahead = None;
        self.source.prefetch(number);
        let page = self.source.page(number, PAGE_BYTES, || self.checksum_below())?;
        let leaf = Leaf::open(&page, number)?;
        self.number = number;
        self.count = leaf.count();
        self.key.set(leaf.prefix());
        self.prefix_length = leaf.prefix().len();
        self.leaf = Some(page);
        Ok(())
    }

    /// Comes to rest on a pair of the leaf.
    #[inline]
    fn settle(&mut self, index: usize) -> Result<()> {
        if let Some(ahead) = &mut self.ahead {
            // A leaf's worth of lines while a leaf is walked through: all at once would be more than the processor
            // keeps track of.
            self.source
                .prefetch_lines(ahead.leaf, ahead.asked..ahead.asked + ahead.step);
            ahead.asked += ahead.step;
        }
        let page = self.leaf.as_ref().expect("a cursor settles in a leaf");
        self.record = Leaf::open(page, self.number)?.record(index);
        self.key.set_rest(self.prefix_length, page, self.record.suffix());
        self.index = index;
        self.valid = true;
        Ok(())
    }

    /// Asks for leaves after the leaf that the cursor moves to; `left` more of them are in its branch.
    fn ask_ahead(&mut self, left: usize, leaf_after: impl Fn(usize) -> u32) {
        if self.source.wants_read_ahead()
            && let Some(asked) = self.read_ahead.moved_on(left)
        {
            self.source.read_ahead(&mut asked.map(leaf_after));
        }
    }

    fn will_come_to(&mut self, leaf: Option<u32>) {
        let step = (PAGE_BYTES / LINE_BYTES).div_ceil(self.count.max(1));
        self.ahead = leaf.map(|leaf| Ahead { leaf, asked: 0, step });
    }

    fn next_leaf(&mut self) -> Result<()> {
        self.valid = false;
        while let Some(mut step) = self.path.pop() {
            let branch = step.branch()?;
            let next = step.index + 1;
            if next == branch.count() {
                self.read_ahead.left_branch();
                continue;
            }
            let (number, level) = (branch.page(next), step.level);
            let ahead = (level == 1 && next + 1 < branch.count()).then(|| branch.page(next + 1));
            if level == 1 {
                let left = branch.count() - 1 - next;
                self.ask_ahead(left, |after| branch.page(next + 1 + after));
            }
            step.index = next;
            self.path.push(step);
            match self.descend_from(number, level - 1, Aim::First) {
                Ok(()) => {
                    self.will_come_to(ahead);
                    self.index = 0;
                    return self.settle(0);
                }
                Err(error) if self.source.passes_over(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn previous_leaf(&mut self) -> Result<()> {
        self.valid = false;
        while let Some(mut step) = self.path.pop() {
            let Some(previous) = step.index.checked_sub(1) else {
                self.read_ahead.left_branch();
                continue;
            };
            let branch = step.branch()?;
            let (number, level) = (branch.page(previous), step.level);
            let ahead = (level == 1 && previous > 0).then(|| branch.page(previous - 1));
            if level == 1 {
                self.ask_ahead(previous, |after| branch.page(previous - 1 - after));
            }
            step.index = previous;
            self.path.push(step);
            self.descend_from(number, level - 1, Aim::Last)?;
            self.will_come_to(ahead);
            self.index = self.count;
            return self.settle(self.count - 1);
        }
        Ok(())
    }
}

/// A root comes from a meta page; a height that no tree has is damage.
pub(super) fn check_height(root: Root) -> Result<()> {
    if root.height as usize > HEIGHT_MAX {
        return Err(Error::damaged(format!(
            "the root says that the tree has {} levels",
            root.height
        )));
    }
    Ok(())
}

/// Number of pairs with keys below `key`. Reads one page a level.
pub(crate) fn count_below<S: PageSource>(source: S, root: Root, key: &[u8]) -> Result<u64> {
    check_height(root)?;
    if root.height == 0 {
        return Ok(0);
    }
    let (mut number, mut below, mut above) = (root.page, 0u64, None);
    for level in (1..root.height).rev() {
        let page = source.page(number, BRANCH_BYTES, || checksum_below(&above, root))?;
        let branch = Branch::open(&page, number, level)?;
        let index = branch.route(key);
        below = below.wrapping_add(branch.pairs_before(index));
        number = branch.page(index);
        above = Some((page, index));
    }
    let page = source.page(number, PAGE_BYTES, || checksum_below(&above, root))?;
    Ok(below.wrapping_add(Leaf::open(&page, number)?.lower_bound(key) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_leaf_is_asked_for_once_before_the_cursor_comes_to_it() {
        for leaves in [1, 2, 3, 10, 200] {
            let mut ahead = ReadAhead::default();
            // Two branches: what was asked for in the first is nothing in the second.
            for branch in 0..2 {
                let (mut asked, mut reached) = (Vec::new(), 0);
                for at in 1..leaves {
                    // The one that is moved to now, but for the first two moves of all.
                    reached += usize::from(asked.contains(&at));
                    let left = leaves - 1 - at;
                    asked.extend(ahead.moved_on(left).into_iter().flatten().map(|after| at + 1 + after));
                    let most = asked.last().map_or(0, |last| last - at);
                    assert!(most <= READ_AHEAD_LEAVES_MAX.min(left));
                }
                let expected: Vec<usize> = (2..leaves).collect();
                assert_eq!(asked, expected, "{leaves} leaves, branch {branch}");
                assert_eq!(reached, expected.len());
                ahead.left_branch();
            }
        }
    }
}
