//! What a merge has read but not yet written at one level of the tree: pairs for leaves, children for branches.
//!
//! A window holds the content of a few pages, in key order, until it is known how to divide it. It knows how many
//! bytes any stretch of it takes as a page (which depends on the prefix that the keys of the stretch share), plans the
//! cuts between pages, and builds the pages.

use std::ops::Range;

use crate::error::{Error, Result, printable};
use crate::limits::{BRANCH_BYTES, FULL_KEY_BYTES_MAX, PAGE_BYTES};

use super::branch::{self, CHILD_BYTES, Child, HEAD_BYTES, HIGH_EXTENTS, LOW_EXTENTS, Layout, count_bytes};
use super::leaf::{EXTENT, PAIR_BYTES, RECORD_HEADER_BYTES, value_bytes};
use super::page::{self, HEADER_BYTES, Header, common_prefix, head_u32, head_u64, tail_bytes};

/// Pages of content that a window may hold before some of it must be written. Dividing eight leaves and a bit evenly
/// leaves each one more than eight ninths full; branches are few, so less will do for them.
const LEAF_WINDOW_PAGES: usize = 8;
const BRANCH_WINDOW_PAGES: usize = 4;

/// Something that a page lists by key.
#[derive(Clone, Copy)]
struct Item {
    start: usize,
    key_length: u16,
    /// Bytes that the key shares with that of the item before: so the prefix of a stretch is the least of its items but
    /// the first, because the keys ascend.
    shared: u16,
    /// Bytes in the page beside the key.
    fixed: u16,
    payload: Payload,
}

/// What belongs to the key of an item.
#[derive(Clone, Copy)]
pub(super) enum Payload {
    /// A pair; the value stands behind the key.
    Pair { tag: u8, field: u16 },
    /// A child page; `reused`: it is a page of the old tree, left as it is.
    Child { child: Child, reused: bool },
}

/// What a stretch of items takes in a page.
#[derive(Default)]
struct Measure {
    /// Items that store their keys.
    keys: Range<usize>,
    /// Bytes that these keys share.
    prefix: usize,
    /// Bytes beside the keys.
    fixed: usize,
    /// Bytes of the keys after the prefix.
    suffixes: usize,
}

impl Measure {
    /// Bytes of the page, free ones not counted. Never less than those of a part of the stretch: therefore the prefix
    /// counts even where it finds room in the header.
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.prefix + self.fixed + self.suffixes
    }
}

/// See the description of the file.
pub(super) struct Window {
    /// Level of the pages that it becomes.
    level: u8,
    bytes: Vec<u8>,
    items: Vec<Item>,
    /// Lower bound of the first leaf (a branch finds it in its first child).
    low: Vec<u8>,
    /// Bytes that came since it was last measured, as if there were no prefix.
    unmeasured: usize,
    /// New content comes behind all old content and more of that kind will follow: pages are filled to the end,
    /// because no later key would fill the second half of an even split.
    pub(super) appending: bool,
}

impl Window {
    pub(super) fn new(level: u8, appending: bool) -> Window {
        Window {
            level,
            bytes: Vec::new(),
            items: Vec::new(),
            low: Vec::new(),
            unmeasured: 0,
            appending,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Sets the lower bound of what will be pushed next.
    pub(super) fn set_low(&mut self, low: &[u8]) {
        self.low.clear();
        self.low.extend_from_slice(low);
    }

    /// Length of the pages that it becomes.
    pub(super) fn page_length(&self) -> usize {
        if self.level == 0 { PAGE_BYTES } else { BRANCH_BYTES }
    }

    fn key(&self, index: usize) -> &[u8] {
        let item = &self.items[index];
        &self.bytes[item.start..item.start + item.key_length as usize]
    }

    /// Adds a pair (with its value) or a child (with its lower bound as the key) behind the others. Keys that do not
    /// ascend come from a damaged page, or from changes that are not in order: both must not get into a tree.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], payload: Payload) -> Result<()> {
        assert!(
            key.len() <= FULL_KEY_BYTES_MAX,
            "keys are measured before they are accepted"
        );
        let mut shared = 0;
        if let Some(last) = self.items.len().checked_sub(1) {
            let last = self.key(last);
            shared = common_prefix(last, key);
            if last.get(shared) >= key.get(shared) {
                let (last, key) = (printable(last), printable(key));
                return Err(Error::damaged(format!(
                    "in the data file, or in what goes into it, {key} follows {last}"
                )));
            }
        }
        let fixed = match payload {
            Payload::Pair { .. } => PAIR_BYTES + value.len(),
            Payload::Child { .. } => HEAD_BYTES + CHILD_BYTES + 2 + count_bytes(self.level),
        };
        self.unmeasured += fixed + key.len();
        let start = self.bytes.len();
        self.items.push(Item {
            start,
            key_length: key.len() as u16,
            shared: shared as u16,
            fixed: fixed as u16,
            payload,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    /// Takes back the last child, with its lower bound, when it is a page of the old tree.
    pub(super) fn pop_reused(&mut self) -> Option<(Vec<u8>, Child)> {
        let item = *self.items.last()?;
        let Payload::Child { child, reused: true } = item.payload else {
            return None;
        };
        self.items.pop();
        let low = self.bytes.split_off(item.start);
        Some((low, child))
    }

    /// Takes all children, with their lower bounds.
    pub(super) fn take_children(&mut self) -> Vec<(Vec<u8>, Payload)> {
        let children = (0..self.len()).map(|index| (self.key(index).to_vec(), self.items[index].payload));
        let children = children.collect();
        self.remove_front(self.len());
        children
    }

    /// The only child, if there is just one, and whether it is a page of the old tree.
    pub(super) fn only_child(&self) -> Option<(Child, bool)> {
        match self.items[..] {
            [
                Item {
                    payload: Payload::Child { child, reused },
                    ..
                },
            ] => Some((child, reused)),
            _ => None,
        }
    }

    /// Puts everything that `other` holds behind what this one holds.
    pub(super) fn append(&mut self, other: &Window) {
        let (shift, held) = (self.bytes.len(), self.items.len());
        self.bytes.extend_from_slice(&other.bytes);
        self.items.extend(other.items.iter().map(|item| Item {
            start: item.start + shift,
            ..*item
        }));
        if held > 0 && held < self.items.len() {
            self.items[held].shared = common_prefix(self.key(held - 1), self.key(held)) as u16;
        }
        self.unmeasured += other.bytes.len();
    }

    /// Drops the first items, which are written now.
    pub(super) fn remove_front(&mut self, items: usize) {
        if items == self.items.len() {
            self.bytes.clear();
            self.items.clear();
        } else {
            self.low = self.separator(items).to_vec();
            let start = self.items[items].start;
            self.bytes.drain(..start);
            self.items.drain(..items);
            self.items.iter_mut().for_each(|item| item.start -= start);
        }
        self.unmeasured = 0;
    }

    /// Lower bound of a page that begins with this item. For a leaf the shortest string above the key before it.
    pub(super) fn separator(&self, index: usize) -> &[u8] {
        let key = self.key(index);
        match (self.level, index) {
            (0, 0) => &self.low,
            (0, _) => &key[..self.items[index].shared as usize + 1],
            _ => key,
        }
    }

    /// Items that store no key at the front of a page: a branch does not store the lower bound of its first child.
    fn keyless(&self) -> usize {
        (self.level > 0) as usize
    }

    /// Bytes that the rest of a key takes beside the fixed part.
    fn suffix_bytes(&self, length: usize) -> usize {
        if self.level == 0 {
            length
        } else {
            branch::heap_bytes(length)
        }
    }

    /// Length of the prefix of a page with these items.
    fn prefix_length(&self, range: &Range<usize>) -> usize {
        let first = range.start + self.keyless();
        if first < range.end {
            common_prefix(self.key(first), self.key(range.end - 1))
        } else {
            0
        }
    }

    /// Takes one more key into a measure, next to those it has.
    fn grow(&self, measure: &mut Measure, index: usize) {
        let length = self.items[index].key_length as usize;
        if measure.keys.is_empty() {
            (measure.keys, measure.prefix) = (index..index + 1, length);
            measure.suffixes = self.suffix_bytes(0);
            return;
        }
        let behind = if index < measure.keys.start {
            measure.keys.start
        } else {
            index
        };
        let prefix = measure.prefix.min(self.items[behind].shared as usize);
        if prefix < measure.prefix {
            measure.suffixes = match self.level {
                0 => measure.suffixes + (measure.prefix - prefix) * measure.keys.len(),
                _ => self.items[measure.keys.clone()]
                    .iter()
                    .map(|item| self.suffix_bytes(item.key_length as usize - prefix))
                    .sum(),
            };
            measure.prefix = prefix;
        }
        measure.suffixes += self.suffix_bytes(length - prefix);
        measure.keys = measure.keys.start.min(index)..measure.keys.end.max(index + 1);
    }

    /// Whether it would make a page so empty that it should take in a neighbour. False when it is empty.
    pub(super) fn is_underfull(&self) -> bool {
        let mut measure = Measure::default();
        for (index, item) in self.items.iter().enumerate() {
            measure.fixed += item.fixed as usize;
            if index >= self.keyless() {
                self.grow(&mut measure, index);
            }
            if measure.bytes() >= self.page_length() / 4 {
                return false;
            }
        }
        !self.is_empty()
    }

    /// Whether so much came in that it is time to see if pages can be written.
    pub(super) fn is_crowded(&self) -> bool {
        self.unmeasured > self.window_pages() * self.page_length()
    }

    fn window_pages(&self) -> usize {
        if self.level == 0 {
            LEAF_WINDOW_PAGES
        } else {
            BRANCH_WINDOW_PAGES
        }
    }

    /// Ends of the pages that can be written while more is coming. Keeps back the last two (when appending the last
    /// one, which is not full yet), so that what remains at the end is never a scrap.
    pub(super) fn plan_spill(&mut self) -> Vec<usize> {
        self.unmeasured = 0;
        let mut ends = self.plan();
        if ends.len() <= self.window_pages() && !self.appending {
            return Vec::new();
        }
        ends.truncate(ends.len() - if self.appending { 1 } else { 2 });
        ends
    }

    /// Ends of the pages for all of it: as few as possible, and about equally full unless it is
    /// appending.
    pub(super) fn plan(&self) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut start = 0;
        while start < self.len() {
            start = self.last_fit(start);
            ends.push(start);
        }
        if self.appending || ends.len() < 2 {
            ends
        } else {
            self.balance(ends.len())
        }
    }

    /// Cuts into `pages` pages that are about equally full.
    fn balance(&self, pages: usize) -> Vec<usize> {
        let weight = |item: &Item| item.fixed as usize + item.key_length as usize;
        let mut left: usize = self.items.iter().map(weight).sum();
        // Where the last page, the last two, ... can begin at the earliest: a cut before that would need one page more.
        let mut earliest = vec![self.len()];
        for _ in 1..pages {
            earliest.push(self.first_fit(earliest[earliest.len() - 1]));
        }
        let mut ends = Vec::with_capacity(pages);
        let mut start = 0;
        for pages in (2..=pages).rev() {
            let (mut end, mut taken) = (start, 0);
            while end < self.len() && (end == start || taken + weight(&self.items[end]) / 2 < left / pages) {
                taken += weight(&self.items[end]);
                end += 1;
            }
            end = end.max(earliest[pages - 1]).min(self.last_fit(start));
            if end == self.len() {
                break;
            }
            ends.push(end);
            left -= self.items[start..end].iter().map(weight).sum::<usize>();
            start = end;
        }
        ends.push(self.len());
        ends
    }

    /// End of the longest stretch from `start` on that one page can hold.
    fn last_fit(&self, start: usize) -> usize {
        let mut measure = Measure::default();
        for index in start..self.len() {
            measure.fixed += self.items[index].fixed as usize;
            if index >= start + self.keyless() {
                self.grow(&mut measure, index);
            }
            if measure.bytes() > self.page_length() {
                assert!(index > start, "the limits make sure that a page holds any one item");
                return index;
            }
        }
        self.len()
    }

    /// Start of the longest stretch up to `end` that one page can hold.
    fn first_fit(&self, end: usize) -> usize {
        let mut measure = Measure::default();
        for index in (0..end).rev() {
            measure.fixed += self.items[index].fixed as usize;
            // With one more item in front, the one that was first stores its key too.
            if index + self.keyless() < end {
                self.grow(&mut measure, index + self.keyless());
            }
            if measure.bytes() > self.page_length() {
                return index + 1;
            }
        }
        0
    }

    /// Builds the page of these items. Returns what its parent has to know, page number missing.
    pub(super) fn build(&self, range: Range<usize>, page: &mut [u8]) -> Child {
        if self.level == 0 {
            self.build_leaf(range, page)
        } else {
            self.build_branch(range, page)
        }
    }

    fn build_leaf(&self, range: Range<usize>, page: &mut [u8]) -> Child {
        let items = &self.items[range.clone()];
        let prefix = self.prefix_length(&range);
        let arrays = PAIR_BYTES - RECORD_HEADER_BYTES;
        let heap: usize = items
            .iter()
            .map(|item| item.fixed as usize - arrays + item.key_length as usize - prefix)
            .sum();
        let heap_top = page.len() - tail_bytes(prefix) - heap;
        let (slots, heads) = (HEADER_BYTES + items.len(), HEADER_BYTES + 3 * items.len());
        assert!(
            HEADER_BYTES + 7 * items.len() <= heap_top,
            "a stretch was measured before it is built"
        );
        page[HEADER_BYTES + 7 * items.len()..heap_top].fill(0);
        let shared = &self.key(range.start)[..prefix];
        let header = Header {
            kind: page::LEAF,
            level: 0,
            count: items.len(),
            heap_top,
            prefix: shared,
        };
        page::write_header(page, header);
        let mut record = heap_top;
        let mut holds_extents = false;
        for (index, item) in items.iter().enumerate() {
            let Payload::Pair { tag, field } = item.payload else {
                unreachable!("leaves hold pairs")
            };
            let key_end = item.start + item.key_length as usize;
            let stored = &self.bytes[item.start + prefix..key_end + value_bytes(field)];
            let suffix_length = item.key_length - prefix as u16;
            let start = record + RECORD_HEADER_BYTES;
            page[HEADER_BYTES + index] = tag;
            page[slots + 2 * index..][..2].copy_from_slice(&(record as u16).to_le_bytes());
            page[heads + 4 * index..][..4].copy_from_slice(&head_u32(&stored[..suffix_length as usize]).to_le_bytes());
            page[record..record + 2].copy_from_slice(&suffix_length.to_le_bytes());
            page[record + 2..record + 4].copy_from_slice(&field.to_le_bytes());
            page[start..start + stored.len()].copy_from_slice(stored);
            record = start + stored.len();
            holds_extents |= field == EXTENT;
        }
        Child {
            page: 0,
            checksum: 0,
            pairs: items.len() as u64,
            holds_extents,
        }
    }

    fn build_branch(&self, range: Range<usize>, page: &mut [u8]) -> Child {
        let count = range.len();
        let prefix = self.prefix_length(&range);
        let layout = Layout::new(count, self.level);
        let separators = range.start + 1..range.end;
        let suffix = |index: usize| &self.key(index)[prefix..];
        let heap: usize = separators
            .clone()
            .map(|index| branch::heap_bytes(suffix(index).len()))
            .sum();
        let heap_top = page.len() - tail_bytes(prefix) - heap;
        assert!(layout.end <= heap_top, "a stretch was measured before it is built");
        page[layout.end..heap_top].fill(0);
        let shared = if separators.is_empty() {
            &[]
        } else {
            &self.key(separators.start)[..prefix]
        };
        let header = Header {
            kind: page::BRANCH,
            level: self.level,
            count,
            heap_top,
            prefix: shared,
        };
        page::write_header(page, header);
        let mut rest_at = heap_top;
        for (index, item) in separators.enumerate() {
            let suffix = suffix(item);
            let mut slot = suffix.len();
            if let Some((_, rest)) = suffix.split_at_checked(HEAD_BYTES)
                && !rest.is_empty()
            {
                slot = rest_at;
                page[rest_at..rest_at + 2].copy_from_slice(&(rest.len() as u16).to_le_bytes());
                page[rest_at + 2..rest_at + 2 + rest.len()].copy_from_slice(rest);
                rest_at += 2 + rest.len();
            }
            page[HEADER_BYTES + HEAD_BYTES * index..][..8].copy_from_slice(&head_u64(suffix).to_le_bytes());
            page[layout.slots + 2 * index..][..2].copy_from_slice(&(slot as u16).to_le_bytes());
        }
        self.build_children(range, page, layout)
    }

    fn build_children(&self, range: Range<usize>, page: &mut [u8], layout: Layout) -> Child {
        let mut sum = Child {
            page: 0,
            checksum: 0,
            pairs: 0,
            holds_extents: false,
        };
        for (index, item) in self.items[range].iter().enumerate() {
            let Payload::Child { child, .. } = item.payload else {
                unreachable!("branches hold children")
            };
            page[layout.children + 4 * index..][..4].copy_from_slice(&child.page.to_le_bytes());
            page[layout.sums + 4 * index..][..4].copy_from_slice(&child.checksum.to_le_bytes());
            if self.level == 1 {
                let count = child.pairs as u16 | if child.holds_extents { LOW_EXTENTS } else { 0 };
                page[layout.counts + 2 * index..][..2].copy_from_slice(&count.to_le_bytes());
            } else {
                let count = child.pairs | if child.holds_extents { HIGH_EXTENTS } else { 0 };
                page[layout.counts + 8 * index..][..8].copy_from_slice(&count.to_le_bytes());
            }
            sum.pairs = sum.pairs.wrapping_add(child.pairs) & !HIGH_EXTENTS;
            sum.holds_extents |= child.holds_extents;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: Payload = Payload::Pair { tag: 0, field: 0 };
    const CHILD: Payload = Payload::Child {
        child: Child {
            page: 0,
            checksum: 0,
            pairs: 0,
            holds_extents: false,
        },
        reused: true,
    };

    /// A window with keys that share much with their neighbours, put in by pushing, appending and taking back.
    fn window(rng: &mut fastrand::Rng, level: u8) -> Window {
        let mut keys: Vec<Vec<u8>> = (0..rng.usize(2..60))
            .map(|_| (0..rng.usize(1..30)).map(|_| rng.u8(b'a'..b'd')).collect())
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let payload = if level == 0 { PAIR } else { CHILD };
        let (front, back) = keys.split_at(rng.usize(0..=keys.len()));
        let [mut window, mut other] = [(); 2].map(|()| Window::new(level, false));
        front.iter().for_each(|key| window.push(key, &[], payload).unwrap());
        if level > 0 && rng.bool() {
            window.pop_reused();
        }
        back.iter().for_each(|key| other.push(key, &[], payload).unwrap());
        window.append(&other);
        if window.len() > 1 && rng.bool() {
            window.remove_front(rng.usize(1..window.len()));
        }
        window
    }

    #[test]
    fn a_measure_is_what_the_keys_of_its_stretch_take_in_whatever_order_they_came() {
        let mut rng = fastrand::Rng::with_seed(19);
        for round in 0..2_000u32 {
            let window = window(&mut rng, (round % 3) as u8);
            if window.is_empty() {
                continue;
            }
            let mut measure = Measure::default();
            let first = rng.usize(0..window.len());
            window.grow(&mut measure, first);
            loop {
                let keys = measure.keys.clone();
                let prefix = common_prefix(window.key(keys.start), window.key(keys.end - 1));
                let lengths = keys.clone().map(|index| window.key(index).len() - prefix);
                assert_eq!(measure.prefix, prefix);
                assert_eq!(
                    measure.suffixes,
                    lengths.map(|length| window.suffix_bytes(length)).sum::<usize>()
                );
                let next = match (keys.start > 0, keys.end < window.len()) {
                    (true, true) if rng.bool() => keys.start - 1,
                    (true, false) => keys.start - 1,
                    (_, true) => keys.end,
                    (false, false) => break,
                };
                window.grow(&mut measure, next);
            }
        }
    }
}
