//! The data file of a store at rest, and ways to change it and keep its checksums valid. A bug, a misdirected write or
//! a hex editor leaves such changes, and no checksum finds them.
//!
//! The layouts are drawn in `engine/src/datafile/meta.rs` and `engine/src/btree/{page,leaf,branch}.rs`.

use std::path::Path;

pub const PAGE: usize = 4096;
const BRANCH: usize = 4 * PAGE;
/// Bytes from a meta page to the meta page of the other sequence number, and from its copy A to its copy B.
pub const TO_OTHER_SEQUENCE: usize = 16 * PAGE;
pub const TO_COPY_B: usize = 32 * PAGE;
/// Bytes of a page before its arrays.
const HEADER: usize = 64;
/// Value field of a record whose value is stored in pages of its own.
const EXTENT: u16 = 0x8000;

/// The data file of a store at rest; see the head of this file.
pub struct Image {
    pub data: Vec<u8>,
}

/// A value in pages of its own, as its record refers to it.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub page: u32,
    /// Position of the reference in the data file.
    pub reference: usize,
    /// Page number of the leaf that holds the reference.
    pub leaf: u32,
}

impl Image {
    pub fn read(store: &Path) -> Image {
        Image {
            data: std::fs::read(store.join("data")).expect("a data file"),
        }
    }

    pub fn write(&self, store: &Path) {
        std::fs::write(store.join("data"), &self.data).expect("a data file");
    }

    pub fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.data[at..at + 2].try_into().expect("two bytes"))
    }

    pub fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.data[at..at + 4].try_into().expect("four bytes"))
    }

    pub fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.data[at..at + 8].try_into().expect("eight bytes"))
    }

    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn flip(&mut self, at: usize) {
        self.data[at] ^= 0x10;
    }

    // Meta pages.

    /// Returns the position of the first copy of the newest meta page.
    pub fn newest_meta(&self) -> usize {
        [0, TO_OTHER_SEQUENCE]
            .into_iter()
            .max_by_key(|&at| self.u64_at(at + 32))
            .expect("two pairs")
    }

    /// Changes both copies of the newest meta page.
    pub fn change_meta(&mut self, change: impl Fn(&mut [u8])) {
        let first = self.newest_meta();
        for at in [first, first + TO_COPY_B] {
            let page = &mut self.data[at..at + PAGE];
            change(page);
            let format = u32::from_le_bytes(page[8..12].try_into().expect("four bytes"));
            let sum = crc32c::crc32c_append(format - 1, &page[16..]);
            page[12..16].copy_from_slice(&sum.to_le_bytes());
        }
    }

    fn meta_word(&self, at: usize) -> u32 {
        self.u32_at(self.newest_meta() + at)
    }

    pub fn root(&self) -> u32 {
        self.meta_word(76)
    }

    pub fn height(&self) -> u32 {
        self.meta_word(80)
    }

    /// Returns the first page and the number of pages of the saved bitmap.
    pub fn bitmap(&self) -> (u32, u32) {
        (self.meta_word(84), self.meta_word(88))
    }

    pub fn is_used(&self, page: u32) -> bool {
        let at = self.bitmap().0 as usize * PAGE + page as usize / 8;
        self.data[at] >> (page % 8) & 1 == 1
    }

    /// Marks a page as used or free in the saved bitmap.
    pub fn set_used(&mut self, page: u32, is_used: bool) {
        let (first, pages) = self.bitmap();
        let at = first as usize * PAGE + page as usize / 8;
        self.data[at] = self.data[at] & !(1 << (page % 8)) | u8::from(is_used) << (page % 8);
        let bytes = &self.data[first as usize * PAGE..][..pages as usize * PAGE];
        let sum = crc32c::crc32c_append(self.checksum_seed(), bytes);
        self.change_meta(|meta| meta[92..96].copy_from_slice(&sum.to_le_bytes()));
    }

    pub fn free_page(&self) -> u32 {
        let pages = self.meta_word(96);
        let (bitmap, length) = self.bitmap();
        let is_free = |page: &u32| !self.is_used(*page) && !(bitmap..bitmap + length).contains(page);
        (64..pages)
            .rev()
            .find(is_free)
            .expect("a free page before the last used one")
    }

    // Pages of the tree.

    /// Corrects the checksum of a page, and those of the pages above it, up to the meta page.
    pub fn seal(&mut self, page: u32) {
        let above = self.branches_above(page, self.root(), self.height());
        for page in [page].into_iter().chain(above) {
            let at = page as usize * PAGE;
            let length = if self.data[at + 16] == 2 { BRANCH } else { PAGE };
            let sum = crc32c::crc32c_append(self.checksum_seed(), &self.data[at + 4..at + length]);
            self.put(at, &sum.to_le_bytes());
            if page == self.root() {
                self.change_meta(|meta| meta[112..116].copy_from_slice(&sum.to_le_bytes()));
            } else {
                self.note_checksum(page, sum, self.root(), self.height());
            }
        }
    }

    /// Returns the seed of the checksums in the data file.
    fn checksum_seed(&self) -> u32 {
        let store = &self.data[self.newest_meta() + 16..][..16];
        xxhash_rust::xxh3::xxh3_64_with_seed(store, 3) as u32
    }

    /// Returns the branches above a page, the lowest first, within a tree of this height.
    fn branches_above(&self, page: u32, top: u32, height: u32) -> Vec<u32> {
        if page == top || height < 2 {
            return Vec::new();
        }
        for child in (0..self.count(top)).map(|index| self.child_page(top, index)) {
            let mut above = self.branches_above(page, child, height - 1);
            if child == page || !above.is_empty() {
                above.push(top);
                return above;
            }
        }
        Vec::new()
    }

    /// Writes the checksum of a page to the branch above it.
    fn note_checksum(&mut self, page: u32, sum: u32, top: u32, height: u32) {
        for index in 0..if height < 2 { 0 } else { self.count(top) } {
            let child = self.child_page(top, index);
            if child == page {
                let at = self.child_checksum(top, index);
                self.put(at, &sum.to_le_bytes());
            } else {
                self.note_checksum(page, sum, child, height - 1);
            }
        }
    }

    /// Returns the position of the checksum of a child page.
    fn child_checksum(&self, branch: u32, index: usize) -> usize {
        let (count, level) = (self.count(branch), self.data[branch as usize * PAGE + 17]);
        let counts = if level == 1 { 2 * count } else { 8 * count };
        self.child(branch, count) + 2 * (count - 1) + counts + 4 * index
    }

    /// Makes a branch refer to another page, with that page's current checksum.
    pub fn put_child(&mut self, branch: u32, index: usize, page: u32) {
        let (at, sum_at) = (self.child(branch, index), self.child_checksum(branch, index));
        let sum = self
            .data
            .get(page as usize * PAGE..)
            .and_then(|bytes| bytes.first_chunk::<4>());
        let sum = sum.copied().unwrap_or_default();
        self.put(at, &page.to_le_bytes());
        self.put(sum_at, &sum);
    }

    fn count(&self, page: u32) -> usize {
        self.u16_at(page as usize * PAGE + 18) as usize
    }

    fn prefix_length(&self, page: u32) -> usize {
        self.u16_at(page as usize * PAGE + 20) as usize
    }

    /// Returns the position of the head of separator `index` (from 1) of a branch.
    pub fn separator(&self, branch: u32, index: usize) -> usize {
        branch as usize * PAGE + HEADER + 8 * (index - 1)
    }

    /// Returns the position of a child's page number.
    pub fn child(&self, branch: u32, index: usize) -> usize {
        branch as usize * PAGE + HEADER + 8 * (self.count(branch) - 1) + 4 * index
    }

    pub fn child_page(&self, branch: u32, index: usize) -> u32 {
        self.u32_at(self.child(branch, index))
    }

    /// Returns the position of the pair count of a child, in a branch directly above the leaves.
    pub fn child_count(&self, branch: u32, index: usize) -> usize {
        let count = self.count(branch);
        branch as usize * PAGE + HEADER + 8 * (count - 1) + 4 * count + 2 * (count - 1) + 2 * index
    }

    /// Returns a branch directly above the leaves, in the middle of the tree.
    pub fn lowest_branch(&self) -> u32 {
        let mut page = self.root();
        for _ in 2..self.height() {
            page = self.child_page(page, self.count(page) / 2);
        }
        page
    }

    /// Returns the leaves under [`Image::lowest_branch`].
    pub fn leaves(&self) -> Vec<u32> {
        let branch = self.lowest_branch();
        (0..self.count(branch))
            .map(|index| self.child_page(branch, index))
            .collect()
    }

    /// Returns a leaf in the middle of the tree that holds several ordinary pairs.
    pub fn leaf(&self) -> u32 {
        let leaves = self.leaves();
        let is_ordinary = |&&leaf: &&u32| {
            let pairs = 0..self.count(leaf);
            pairs.len() > 2
                && pairs
                    .clone()
                    .all(|index| self.u16_at(self.record(leaf, index) + 2) != EXTENT)
        };
        *leaves
            .iter()
            .skip(leaves.len() / 2)
            .find(is_ordinary)
            .expect("an ordinary leaf")
    }

    pub fn tag(&self, leaf: u32, index: usize) -> usize {
        leaf as usize * PAGE + HEADER + index
    }

    pub fn slot(&self, leaf: u32, index: usize) -> usize {
        leaf as usize * PAGE + HEADER + self.count(leaf) + 2 * index
    }

    pub fn head(&self, leaf: u32, index: usize) -> usize {
        leaf as usize * PAGE + HEADER + 3 * self.count(leaf) + 4 * index
    }

    /// Returns the position of a record. A record is: length of the key's rest, value field, rest of the key, value.
    pub fn record(&self, leaf: u32, index: usize) -> usize {
        leaf as usize * PAGE + self.u16_at(self.slot(leaf, index)) as usize
    }

    /// Swaps two neighbouring pairs of a leaf, with all their fields.
    pub fn swap_pairs(&mut self, leaf: u32, index: usize) {
        for (place, width) in [
            (self.tag(leaf, index), 1),
            (self.slot(leaf, index), 2),
            (self.head(leaf, index), 4),
        ] {
            let (one, other) = self.data[place..place + 2 * width].split_at_mut(width);
            one.swap_with_slice(other);
        }
    }

    /// Gives the last pair of a leaf a key greater than all keys of all maps, and updates all fields derived from the
    /// key.
    pub fn enlarge_last_key(&mut self, leaf: u32) {
        let index = self.count(leaf) - 1;
        let record = self.record(leaf, index);
        let length = self.u16_at(record) as usize;
        self.data[record + 4..record + 4 + length].fill(0xFF);
        self.put(self.head(leaf, index), &u32::MAX.to_le_bytes());
        let prefix = leaf as usize * PAGE + 32;
        let mut key = self.data[prefix..prefix + self.prefix_length(leaf)].to_vec();
        key.extend(std::iter::repeat_n(0xFF, length));
        let seed = self.u64_at(self.newest_meta() + 40);
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(&key, seed);
        self.data[leaf as usize * PAGE + HEADER + index] = (hash >> 56) as u8;
    }

    /// Returns a value in pages of its own, with more than `length` bytes.
    pub fn extent(&self, length: u64) -> Extent {
        let all = (0..self.data.len() / PAGE).map(|page| page as u32);
        let leaves = all.filter(|&page| self.is_used(page) && self.is_leaf(page));
        let found = leaves.into_iter().find_map(|leaf| {
            let records = (0..self.count(leaf)).map(|index| self.record(leaf, index));
            let extents = records.filter(|&record| self.u16_at(record + 2) == EXTENT);
            let references = extents.map(|record| record + 4 + self.u16_at(record) as usize);
            let long = references.into_iter().find(|&at| self.u64_at(at + 8) > length);
            long.map(|reference| (leaf, reference))
        });
        let (leaf, reference) = found.expect("a long value");
        Extent {
            page: self.u32_at(reference),
            reference,
            leaf,
        }
    }

    /// Whether a page is a leaf, and not part of something else that looks like a leaf.
    pub fn is_leaf(&self, page: u32) -> bool {
        let at = page as usize * PAGE;
        let sum = crc32c::crc32c_append(self.checksum_seed(), &self.data[at + 4..at + PAGE]);
        let is_sealed = sum == self.u32_at(at);
        self.data[at + 16] == 1 && self.u32_at(at + 4) == page && is_sealed
    }
}
